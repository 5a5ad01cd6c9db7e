//! What the layer writes to the recovery log and traces: never the content of a conversation.

use steadfast_chat::ChatRequest;
use steadfast_core::{Reason, RecoveryLog, Step, Target, Window, circuit::CircuitState};

use crate::{CompactionReport, Degraded, Effect, TooLarge, decide::Remedy};

/// What an event is about.
#[derive(Clone, Copy)]
pub(crate) struct About<'a> {
    log: &'a RecoveryLog,
    target: Option<&'a Target>,
    tenant: Option<&'a str>,
    session: Option<&'a str>,
}

impl<'a> About<'a> {
    /// An event about this request.
    pub(crate) fn of(request: &'a ChatRequest) -> Self {
        let context = &request.context;
        let (tenant, session) = (context.tenant(), context.session());
        Self { log: &context.log, target: context.target.as_ref(), tenant, session }
    }

    fn step(self, action: &'static str, detail: impl FnOnce() -> String) {
        self.log
            .record(|| Step::new("compact", action).with_target(self.target).with_detail(detail()));
    }
}

macro_rules! event {
    ($about:expr, $level:ident $action:literal $message:literal, $($field:ident),*) => {
        tracing::event!(
            name: concat!("steadfast::compact::", $action),
            target: "steadfast::compact",
            tracing::Level::$level,
            target = $about.target.map(tracing::field::display),
            tenant = $about.tenant,
            session = $about.session,
            $($field,)*
            $message
        )
    };
}

/// The window is filling. Recorded for every answer, and traced when it begins.
pub(crate) fn warned(about: About<'_>, tokens: u64, window: u64, is_new: bool) {
    if is_new {
        event!(about, WARN "warned" "the window is filling", tokens, window);
    }
    about.step("warned", || format!("tokens={tokens} window={window}"));
}

/// A compaction was made, or taken back for not having helped.
pub(crate) fn compacted(about: About<'_>, report: &CompactionReport) {
    let CompactionReport { before, after, floor, target: goal, kept, dropped, stripped, .. } =
        *report;
    let (tier, effect) = (report.tier.as_str(), report.effect.as_str());
    let action = if report.effect == Effect::Ineffective {
        event!(about, WARN "ineffective" "a compaction did not help and was taken back",
            before, floor, goal);
        "ineffective"
    } else {
        event!(about, INFO "compacted" "a conversation was compacted",
            tier, effect, before, after, floor, goal, kept, dropped, stripped);
        "compacted"
    };
    about.step(action, || report.to_string());
}

/// A compaction is made without a summary.
pub(crate) fn degraded(about: About<'_>, why: Degraded) {
    let cause = why.as_str();
    let reason = match why {
        Degraded::Failed(reason) => Some(reason.as_str()),
        _ => None,
    };
    event!(about, WARN "degraded" "a conversation is compacted without a summary", cause, reason);
    about.step("degraded", || reason.map_or_else(|| cause.to_owned(), |r| format!("{cause}={r}")));
}

/// The provider refused a request as too large, and it is compacted harder.
pub(crate) fn overflow(about: About<'_>, window: Window, times: u32) {
    let (limit, requested) = (window.limit, window.requested);
    event!(about, WARN "overflow" "the provider refused a conversation as too large",
        limit, requested, times);
    let step = || Step::new("compact", "overflow").with_reason(Reason::ContextOverflow);
    about.log.record(|| step().with_target(about.target));
}

/// The provider refused a request, which is repaired and sent once more.
pub(crate) fn repaired(about: About<'_>, remedy: Remedy, why: Reason) {
    let (remedy, reason) = (remedy.as_str(), why.as_str());
    event!(about, WARN "repaired" "a request that the provider refused is repaired and sent again",
        remedy, reason);
    let step = || Step::new("compact", "repaired").with_reason(why).with_detail(remedy);
    about.log.record(|| step().with_target(about.target));
}

/// What is never changed is too large.
pub(crate) fn too_large(about: About<'_>, error: &TooLarge) {
    let TooLarge { before, floor, required, limit, .. } = *error;
    event!(about, WARN "too_large" "a conversation can not be made to fit",
        before, floor, required, limit);
    about.step("too_large", || format!("floor={floor} required={required} limit={limit}"));
}

/// Compactions of a conversation have stopped helping.
pub(crate) fn thrashing(about: About<'_>, times: u32) {
    event!(about, WARN "thrashing" "a conversation is not summarised any more: it did not help",
        times);
    about.step("thrashing", || format!("times={times}"));
}

/// The layer had an internal error.
pub(crate) fn threw(about: About<'_>, what: &'static str, times: u32) {
    event!(about, ERROR "threw" "a compaction failed by an error of its own and was taken back",
        what, times);
    about.step("threw", || what.to_owned());
}

/// The layer does not compact a conversation any more.
pub(crate) fn switched_off(about: About<'_>, is_new: bool) {
    if is_new {
        event!(about, ERROR "switched_off"
            "a conversation is not compacted any more, after errors of the layer's own",);
    }
    about.step("switched_off", String::new);
}

/// A compaction was started for the next turn.
pub(crate) fn deferred(about: About<'_>) {
    event!(about, INFO "deferred" "a conversation is compacted in the background",);
    about.step("deferred", String::new);
}

/// A compaction is used and not kept.
pub(crate) fn dropped(about: About<'_>, why: &'static str) {
    event!(about, WARN "dropped" "a compaction is not kept for the next turn", why);
    about.step("dropped", || why.to_owned());
}

/// The summariser's breaker of a tenant changed.
pub(crate) fn summariser(tenant: &str, state: CircuitState) {
    let (tenant, state) = (Some(tenant).filter(|tenant| !tenant.is_empty()), state.as_str());
    tracing::event!(
        name: "steadfast::compact::summariser",
        target: "steadfast::compact",
        tracing::Level::WARN,
        tenant,
        state,
        "the breaker of the summariser changed"
    );
}
