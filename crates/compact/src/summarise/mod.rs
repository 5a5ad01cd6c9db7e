//! Calls of the summariser: parallel, with a timeout, a budget and a bound on what is read.

mod breaker;
mod policy;
mod prompt;
mod spend;

use std::{
    fmt,
    future::{Future, poll_fn},
    ops::Range,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use steadfast_chat::{ChatRequest, ChatResponse, Completion, Events, Message, Part, Role};
use steadfast_core::{CallContext, Deadline, Failure, Keep, Priority, Reason, RecoveryLog, Step};
use tokio::time::Instant;
use tower_service::Service;

pub(crate) use self::spend::account;
use self::{breaker::SummariserBreaker, prompt::MAX_PART, spend::SummarySpend};
pub use self::{
    policy::SummaryPolicy,
    prompt::{Unusable, accept, ask, chunks},
    spend::SpendPolicy,
};
use crate::{SummaryInput, apply::clip, state::LayerState};

/// The most tokens that one part of a message comes to when it is shown: it is cut at 6,000 bytes.
const SHOWN: u64 = 2_000;

/// Tokens of the instructions and the frame.
const FRAME: u64 = 400;

/// Tokens that a summary may be asked for, at least and at most.
const OUTPUT: (u64, u64) = (1_000, 8_000);

/// How much more is read of an answer than was asked for, thinking included, in bytes.
const READ: usize = 256 * 1024;

/// Why a conversation was compacted without a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Degraded {
    /// A call of the summariser failed.
    Failed(Reason),
    /// An answer that can not replace history.
    Unusable(Unusable),
    /// An answer much longer than requested.
    Endless,
    /// The calls took too long.
    TimedOut,
    /// The tenant's cap is spent.
    OverBudget,
    /// The summariser failed too often and is not called for a while.
    BreakerOpen,
    /// It would have taken too many calls.
    TooLong,
    /// Compactions of this conversation did not help.
    Thrashing,
    /// The conversation can not be identified, so a paid summary would not be kept.
    Unscoped,
    /// The provider that writes summaries is degraded.
    ProviderDegraded,
}

impl Degraded {
    /// The name used in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Degraded::Failed(_) => "failed",
            Degraded::Unusable(Unusable::Empty) => "empty",
            Degraded::Unusable(Unusable::ThinkingOnly) => "thinking_only",
            Degraded::Unusable(Unusable::ToolCall) => "tool_call",
            Degraded::Unusable(Unusable::Refused) => "refused",
            Degraded::Unusable(Unusable::Truncated) => "truncated",
            Degraded::Unusable(Unusable::Unfinished) => "unfinished",
            Degraded::Endless => "endless",
            Degraded::TimedOut => "timed_out",
            Degraded::OverBudget => "over_budget",
            Degraded::BreakerOpen => "breaker_open",
            Degraded::TooLong => "too_long",
            Degraded::Thrashing => "thrashing",
            Degraded::Unscoped => "unscoped",
            Degraded::ProviderDegraded => "provider_degraded",
        }
    }

    /// The reason of a failure of the summariser's.
    const fn reason(self) -> Reason {
        match self {
            Degraded::Failed(reason) => reason,
            Degraded::TimedOut => Reason::Timeout,
            _ => Reason::Unknown,
        }
    }
}

/// An answer, read to its end.
type Answer = Pin<Box<dyn Future<Output = Result<Completion, NoAnswer>> + Send>>;

/// Why there is no whole answer.
enum NoAnswer {
    Failed(Failure),
    Endless,
}

/// The summariser, without its type: boxing costs nothing beside a model's answer.
pub(crate) struct Summariser(Box<dyn Fn(ChatRequest, usize) -> Answer + Send + Sync>);

impl Summariser {
    pub(crate) fn new<S, E>(service: S) -> Self
    where
        S: Service<ChatRequest, Response = ChatResponse<E>, Error: Into<Failure>, Future: Send>
            + Clone
            + Send
            + 'static,
        E: Events + Unpin + Send + 'static,
    {
        let service = Mutex::new(service);
        Self(Box::new(move |request, most| {
            let service = service.lock().clone();
            Box::pin(read(service, request, most))
        }))
    }
}

impl fmt::Debug for Summariser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Summariser")
    }
}

/// Waits until the service is ready, calls it, and reads at most so many bytes.
async fn read<S, E>(
    mut service: S,
    request: ChatRequest,
    most: usize,
) -> Result<Completion, NoAnswer>
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error: Into<Failure>>,
    E: Events + Unpin,
{
    let failed = |error: S::Error| NoAnswer::Failed(error.into());
    poll_fn(|cx| service.poll_ready(cx)).await.map_err(failed)?;
    let (head, mut events) = service.call(request).await.map_err(failed)?.into_parts();
    let mut answer = Completion::new(head);
    let mut bytes = 0;
    while let Some(event) = events.next().await {
        let event = event.map_err(NoAnswer::Failed)?;
        bytes += event.size();
        if bytes > most {
            return Err(NoAnswer::Endless);
        }
        answer.push(&event);
    }
    Ok(answer)
}

/// What is kept of one tenant: whether the summariser works for it.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) breaker: Arc<SummariserBreaker>,
}

impl Tenant {
    /// The tenant of this name.
    fn of(layer: &LayerState, name: &str, now: Instant) -> Arc<Self> {
        let name: Box<str> = name.into();
        layer.memory.tenants.get_or_insert_with(&name, now, || Self {
            breaker: Arc::new(SummariserBreaker::new(&name, layer.config.summaries)),
        })
    }
}

impl Keep for Tenant {
    /// Without its breaker a summariser that is down would be called again.
    fn keep(&self, now: Instant) -> bool {
        self.breaker.is_worth_keeping(now)
    }
}

/// One summary that is asked for: its calls, and what they may cost.
struct SummaryCalls<'a> {
    layer: &'a LayerState,
    summariser: &'a Summariser,
    input: &'a SummaryInput,
    context: &'a CallContext,
    /// Which messages each call is about, and what it may cost.
    chunks: Vec<(Range<usize>, u64)>,
    /// Tokens of one answer.
    output: u64,
    deadline: Deadline,
    /// How long it may go on after a failure; `None` in the background, where nobody waits for it.
    patience: Option<Duration>,
    /// What the summariser's own layers do, in all calls.
    log: RecoveryLog,
}

/// The summariser's summary of the messages that will be removed.
pub(crate) async fn summarise(
    layer: &LayerState,
    summariser: &Summariser,
    input: &SummaryInput,
    context: &CallContext,
) -> Result<String, Degraded> {
    let policy = &layer.config.summaries;
    let now = Instant::now();
    let calls = SummaryCalls::new(layer, summariser, input, context);
    let mut calls = calls.ok_or(Degraded::TooLong)?;
    let name = context.tenant().unwrap_or_default();
    let tenant = Tenant::of(layer, name, now);
    let spends = calls.reserve(now).ok_or(Degraded::OverBudget)?;
    let (lease, is_probe) = tenant.breaker.admit(now).ok_or(Degraded::BreakerOpen)?;
    let mut time = if is_probe { policy.probe.min(policy.time) } else { policy.time };
    if let Some(deadline) = context.deadline {
        time = time.min(deadline.remaining_at(now) / 2);
    }
    calls.deadline = Deadline::after(time);
    let run = tokio::time::timeout(time, calls.run(&spends));
    let summary = until_failing(run, &calls.log, calls.patience.unwrap_or(Duration::MAX)).await;
    let summary = summary.map_or_else(
        |reason| Err(Degraded::Failed(reason)),
        |ended| ended.unwrap_or(Err(Degraded::TimedOut)),
    );
    match &summary {
        Ok(_) => lease.success(),
        Err(why) => lease.failure(&Failure::new(why.reason(), why.as_str())),
    }
    if matches!(summary, Err(Degraded::TimedOut | Degraded::Endless)) {
        spends.iter().for_each(|spend| spend.keep(Instant::now()));
    }
    summary
}

/// The output of `work`, unless it takes longer than `patience` from the first failure in `log` on: then
/// that failure's reason. So the retries in a summariser's own layers do not hold a caller whom rules
/// alone can help, and a summariser that is slow and works has its time.
async fn until_failing<F: Future>(
    work: F,
    log: &RecoveryLog,
    patience: Duration,
) -> Result<F::Output, Reason> {
    let mut work = pin!(work);
    let mut limit = None;
    poll_fn(|cx| {
        if let Poll::Ready(output) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        if limit.is_none() {
            let failed = log.steps().iter().find_map(failed);
            limit = failed.map(|reason| (reason, Box::pin(tokio::time::sleep(patience))));
        }
        let Some((reason, sleep)) = &mut limit else { return Poll::Pending };
        sleep.as_mut().poll(cx).map(|()| Err(*reason))
    })
    .await
}

/// Why an attempt failed, where a step says that one did.
fn failed(step: &Step) -> Option<Reason> {
    /// Their reason is that of an earlier call.
    const EARLIER: [&str; 2] = ["insisted", "skipped"];
    step.reason.filter(|_| !EARLIER.contains(&step.action))
}

impl<'a> SummaryCalls<'a> {
    /// `None` when there would be too many.
    fn new(
        layer: &'a LayerState,
        summariser: &'a Summariser,
        input: &'a SummaryInput,
        context: &'a CallContext,
    ) -> Option<Self> {
        let policy = &layer.config.summaries;
        let shown = input
            .messages
            .iter()
            .zip(&input.tokens)
            .map(|(message, tokens)| (*tokens).min(SHOWN * message.parts().len() as u64 + 16));
        let shown: Vec<u64> = shown.collect();
        // Twice what there is room for, at four bytes to a token: cut off, an answer is lost.
        let output = (input.room as u64 / 2).clamp(OUTPUT.0, OUTPUT.1);
        let mut earlier = input.earlier.as_ref().map_or(0, |text| text.len() as u64 / 3);
        let cost = |chunk: Range<usize>| {
            let earlier = std::mem::take(&mut earlier);
            let tokens: u64 = shown[chunk.clone()].iter().sum();
            (chunk, tokens + earlier + FRAME + output)
        };
        let chunks: Vec<_> =
            chunks(&shown, policy.chunk, policy.overlap).into_iter().map(cost).collect();
        let is_possible = (1..=policy.max_chunks).contains(&chunks.len());
        is_possible.then(|| Self {
            layer,
            summariser,
            input,
            context,
            chunks,
            output,
            deadline: Deadline::after(policy.time),
            patience: (context.priority == Priority::Interactive).then_some(policy.patience),
            log: RecoveryLog::enabled(),
        })
    }

    /// Reserves what all calls may cost, the last of them for merging; `None` when a cap leaves less.
    fn reserve(&self, now: Instant) -> Option<Vec<SummarySpend>> {
        let Self { layer, context, chunks, .. } = self;
        let costs = chunks.iter().map(|(_, cost)| *cost).chain([self.merge_cost()]);
        let policy = layer.config.spend;
        costs.map(|cost| SummarySpend::reserve(&layer.ledger, policy, context, cost, now)).collect()
    }

    /// What merging may cost, where there is something to merge.
    fn merge_cost(&self) -> u64 {
        if self.chunks.len() < 2 { 0 } else { (self.chunks.len() as u64 + 1) * self.output + FRAME }
    }

    /// Asks about every chunk, and for one record of all.
    async fn run(&self, spends: &[SummarySpend]) -> Result<String, Degraded> {
        let input = self.input;
        let mut earlier = input.earlier.as_deref();
        let calls = self.chunks.iter().zip(spends).map(|((chunk, cost), spend)| {
            self.call(&input.messages[chunk.clone()], earlier.take(), *cost, spend)
        });
        let calls: Vec<_> = calls.collect();
        let parallel = self.layer.config.summaries.parallel;
        let mut records: Vec<String> = stream::iter(calls).buffered(parallel).try_collect().await?;
        if records.len() == 1 {
            return Ok(records.remove(0));
        }
        // A record that has room as it is need not be written again.
        if records.iter().map(|record| record.len() + 2).sum::<usize>() <= input.room {
            return Ok(records.join("\n\n"));
        }
        let count = records.len();
        let parts = records.iter().enumerate().map(|(at, record)| {
            let header = format!("Record of part {} of {count}, the oldest first:", at + 1);
            let pieces = pieces(record).map(Part::text);
            Message::new(Role::User, std::iter::once(Part::text(header)).chain(pieces).collect())
        });
        let parts: Vec<_> = parts.collect();
        self.call(&parts, None, self.merge_cost(), &spends[self.chunks.len()]).await
    }

    /// Asks for a record of `messages`, which may cost so much.
    fn call(
        &self,
        messages: &[Message],
        earlier: Option<&str>,
        cost: u64,
        spend: &SummarySpend,
    ) -> impl Future<Output = Result<String, Degraded>> {
        let mut request = ask(messages, earlier, self.output, &mut self.layer.rng());
        let identity = request.context.identity_mut();
        identity.tenant = self.context.tenant().map(Into::into);
        identity.agent = self.context.agent().map(Into::into);
        request.context.deadline = Some(self.deadline);
        // So that no wait begins which would be cut off.
        request.context.patience = self.patience;
        request.context.log = self.log.clone();
        request.context.spend = Some(spend.call.clone());
        let most = READ + usize::try_from(self.output).unwrap_or(usize::MAX).saturating_mul(64);
        let answer = (self.summariser.0)(request, most);
        async move {
            spend.made();
            match answer.await {
                Ok(answer) => {
                    spend.charge(Some(answer.usage.total().unwrap_or(cost)), Instant::now());
                    accept(&answer).map_err(Degraded::Unusable)
                }
                Err(NoAnswer::Endless) => Err(Degraded::Endless),
                Err(NoAnswer::Failed(failure)) => {
                    let used = failure.usage().and_then(|usage| usage.total());
                    spend.charge(Some(used.unwrap_or(0)), Instant::now());
                    Err(Degraded::Failed(failure.reason()))
                }
            }
        }
    }
}

/// A record in parts that are shown whole.
fn pieces(record: &str) -> impl Iterator<Item = &str> {
    let mut rest = record;
    std::iter::from_fn(move || {
        let piece = clip(rest, MAX_PART);
        rest = &rest[piece.len()..];
        (!piece.is_empty()).then_some(piece)
    })
}
