//! What the layer tells the log and the traces. Never what a conversation says.

use steadfast_core::{Reason, RecoveryLog, Step, Target, Window};

use crate::{Degraded, Effect, GateState, Report, TooLarge};

/// What an event is about.
#[derive(Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) log: &'a RecoveryLog,
    pub(crate) target: Option<&'a Target>,
    pub(crate) tenant: Option<&'a str>,
    pub(crate) session: Option<&'a str>,
}

impl About<'_> {
    fn step(&self, action: &'static str, detail: impl FnOnce() -> String) {
        self.log.record(|| Step::new("compact", action).target(self.target).detail(detail()));
    }
}

macro_rules! event {
    ($level:ident, $name:literal, $about:expr, $($rest:tt)*) => {
        tracing::event!(
            name: $name,
            target: "steadfast::compact",
            tracing::Level::$level,
            target_name = $about.target.map(tracing::field::display),
            tenant = $about.tenant,
            session = $about.session,
            $($rest)*
        )
    };
}

/// The window is filling. Told in every answer, and as an event when it begins.
pub(crate) fn warned(about: About<'_>, tokens: u64, window: u64, is_new: bool) {
    if is_new {
        event!(INFO, "steadfast::compact::warned", about, tokens, window, "the window is filling");
    }
    about.step("warned", || format!("tokens={tokens} window={window}"));
}

/// A compaction was made, or taken back for not having helped.
pub(crate) fn compacted(about: About<'_>, report: &Report) {
    let Report { before, after, floor, target, kept, dropped, stripped, .. } = *report;
    let (tier, effect) = (report.tier.as_str(), report.effect.as_str());
    if report.effect == Effect::Ineffective {
        event!(
            WARN, "steadfast::compact::ineffective", about, before, floor, target,
            "a compaction did not help and was taken back"
        );
        about.step("ineffective", || report.to_string());
    } else {
        event!(
            INFO, "steadfast::compact::compacted", about, tier, effect, before, after, floor,
            target, kept, dropped, stripped, "a conversation was compacted"
        );
        about.step("compacted", || report.to_string());
    }
}

/// A compaction does without the summariser's words.
pub(crate) fn degraded(about: About<'_>, why: Degraded) {
    let cause = why.as_str();
    let reason = match why {
        Degraded::Failed(reason) => Some(reason.as_str()),
        _ => None,
    };
    event!(
        WARN, "steadfast::compact::degraded", about, cause, reason,
        "a conversation is compacted without a summary"
    );
    about.step("degraded", || reason.map_or_else(|| cause.to_owned(), |r| format!("{cause}={r}")));
}

/// The provider refused a request as too large, and it is compacted harder.
pub(crate) fn overflow(about: About<'_>, window: Window, times: u32) {
    let (limit, requested) = (window.limit, window.requested);
    event!(
        WARN, "steadfast::compact::overflow", about, limit, requested, times,
        "the provider refused a conversation as too large"
    );
    about.log.record(|| {
        Step::new("compact", "overflow").target(about.target).reason(Reason::ContextOverflow)
    });
}

/// What is never touched is too large.
pub(crate) fn too_large(about: About<'_>, error: &TooLarge) {
    let TooLarge { before, floor, required, limit, .. } = *error;
    event!(
        WARN, "steadfast::compact::too_large", about, before, floor, required, limit,
        "a conversation can not be made to fit"
    );
    about.step("too_large", || format!("floor={floor} required={required} limit={limit}"));
}

/// Compactions of a conversation have stopped helping.
pub(crate) fn thrashing(about: About<'_>, times: u32) {
    event!(
        WARN, "steadfast::compact::thrashing", about, times,
        "a conversation is not summarised any more: it did not help"
    );
    about.step("thrashing", || format!("times={times}"));
}

/// The layer made an error of its own.
pub(crate) fn threw(about: About<'_>, what: &'static str, times: u32) {
    event!(
        ERROR, "steadfast::compact::threw", about, what, times,
        "a compaction failed by an error of its own and was taken back"
    );
    about.step("threw", || what.to_owned());
}

/// The layer leaves a conversation alone from now on.
pub(crate) fn switched_off(about: About<'_>, is_new: bool) {
    if is_new {
        event!(
            ERROR, "steadfast::compact::switched_off", about,
            "a conversation is not compacted any more, after errors of the layer's own"
        );
    }
    about.step("switched_off", String::new);
}

/// A compaction was begun for the next turn.
pub(crate) fn deferred(about: About<'_>) {
    event!(
        INFO, "steadfast::compact::deferred", about,
        "a conversation is compacted in the background"
    );
    about.step("deferred", String::new);
}

/// A compaction is used and not kept.
pub(crate) fn dropped(about: About<'_>, why: &'static str) {
    event!(
        WARN, "steadfast::compact::dropped", about, why,
        "a compaction is not kept for the next turn"
    );
    about.step("dropped", || why.to_owned());
}

/// The summariser's breaker changed.
pub(crate) fn gate(state: GateState) {
    let state = state.as_str();
    tracing::event!(
        name: "steadfast::compact::summariser",
        target: "steadfast::compact",
        tracing::Level::WARN,
        state,
        "the breaker of the summariser changed"
    );
}
