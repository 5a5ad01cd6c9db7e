//! Asking the summariser: chunks side by side, within a time, a budget and a bound on what is read.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use steadfast_chat::{ChatRequest, ChatResponse, Completion, Events, Message, Part, Role};
use steadfast_core::{CallContext, Deadline, Failure, Keep, Reason};
use tokio::time::Instant;
use tower_service::Service;

use crate::{
    Pending, Reservation, SpendCap, Unusable, accept, ask, chunks,
    gate::{Came, GateState, Pass},
    ledger::clip,
    state::Shared,
    summarise::MAX_PART,
};

/// The most tokens that one part of a message comes to when it is shown: it is cut at 6,000 bytes.
const SHOWN: u64 = 2_000;

/// Tokens of the instructions and the frame.
const FRAME: u64 = 400;

/// Tokens that a summary may be asked for, at least and at most.
const OUTPUT: (u64, u64) = (1_000, 8_000);

/// How much more is read of an answer than was asked for, thinking included, in bytes.
const READ: usize = 256 * 1024;

/// Why a conversation was compacted without the summariser's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Degraded {
    /// A call of the summariser failed.
    Failed(Reason),
    /// An answer that can not replace history.
    Unusable(Unusable),
    /// An answer that went on beyond everything it was asked for.
    Endless,
    /// The calls took too long.
    TimedOut,
    /// The tenant's cap is spent.
    OverBudget,
    /// The summariser failed too often, and rests.
    Resting,
    /// It would have taken too many calls.
    TooLong,
    /// Compactions of this conversation did not help.
    Thrashing,
    /// Whose conversation it is can not be told, so nothing that is paid for would be kept.
    Unscoped,
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
            Degraded::Resting => "resting",
            Degraded::TooLong => "too_long",
            Degraded::Thrashing => "thrashing",
            Degraded::Unscoped => "unscoped",
        }
    }

    /// Whether the summariser is to blame.
    const fn is_failure(self) -> bool {
        matches!(
            self,
            Degraded::Failed(_) | Degraded::Unusable(_) | Degraded::Endless | Degraded::TimedOut
        )
    }
}

type Asking = Pin<Box<dyn Future<Output = Result<Completion, Asked>> + Send>>;

/// Why there is no whole answer.
enum Asked {
    Failed(Failure),
    Endless,
}

/// Somebody's service, its type forgotten: it is asked on the slow path only.
pub(crate) struct Summariser(Box<dyn Fn(ChatRequest, usize) -> Asking + Send + Sync>);

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

/// Readies the service, asks it, and reads at most so many bytes.
async fn read<S, E>(mut service: S, request: ChatRequest, most: usize) -> Result<Completion, Asked>
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error: Into<Failure>>,
    E: Events + Unpin,
{
    let failed = |error: S::Error| Asked::Failed(error.into());
    poll_fn(|cx| service.poll_ready(cx)).await.map_err(failed)?;
    let (head, mut events) = service.call(request).await.map_err(failed)?.into_parts();
    let mut answer = Completion::new(head);
    let mut bytes = 0;
    while let Some(event) = events.next().await {
        let event = event.map_err(Asked::Failed)?;
        bytes += event.size();
        if bytes > most {
            return Err(Asked::Endless);
        }
        answer.push(&event);
    }
    Ok(answer)
}

/// What one tenant may spend.
#[derive(Debug)]
pub(crate) struct Tenant(pub(crate) Mutex<SpendCap>);

impl Keep for Tenant {
    /// A cap that is forgotten is a cap that is not kept.
    fn keep(&self, now: Instant) -> bool {
        self.0.lock().spent(now) != (0, 0)
    }
}

/// Tokens set aside for one compaction; what was not used comes back when it is dropped.
struct Paid {
    tenant: Arc<Tenant>,
    reservation: Option<Reservation>,
    used: AtomicU64,
}

impl Paid {
    fn used(&self, tokens: u64) {
        self.used.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Nobody knows what it did cost: it is taken to have cost what it might.
    fn keep_all(&mut self) {
        self.reservation = None;
    }
}

impl Drop for Paid {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            let used = *self.used.get_mut();
            self.tenant.0.lock().settle(reservation, used, Instant::now());
        }
    }
}

/// Leave to ask; dropped, it says that nothing came of it.
struct Leave<'a> {
    shared: &'a Shared,
    pass: Option<Pass>,
}

impl Leave<'_> {
    fn settle(mut self, came: Came) -> Option<GateState> {
        let pass = self.pass.take()?;
        self.shared.gate.lock().settle(pass, came, Instant::now())
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.shared.gate.lock().settle(pass, Came::Nothing, Instant::now());
        }
    }
}

/// The calls that one summary takes.
pub(crate) struct Calls {
    chunks: Vec<std::ops::Range<usize>>,
    costs: Vec<u64>,
    output: u64,
}

impl Calls {
    /// `None` when there would be too many.
    pub(crate) fn plan(shared: &Shared, pending: &Pending) -> Option<Self> {
        let policy = &shared.config.summaries;
        let shown: Vec<u64> = pending
            .messages
            .iter()
            .zip(&pending.tokens)
            .map(|(message, tokens)| (*tokens).min(SHOWN * message.parts().len() as u64 + 16))
            .collect();
        let chunks = chunks(&shown, policy.chunk, policy.overlap);
        if chunks.len() > policy.max_chunks || chunks.is_empty() {
            return None;
        }
        // Twice what there is room for, at four bytes to a token: cut off, an answer is lost.
        let output = (pending.room as u64 / 2).clamp(OUTPUT.0, OUTPUT.1);
        let earlier = pending.earlier.as_ref().map_or(0, |text| text.len() as u64 / 3);
        let cost = |(at, chunk): (usize, &std::ops::Range<usize>)| {
            let earlier = if at == 0 { earlier } else { 0 };
            shown[chunk.clone()].iter().sum::<u64>() + earlier + FRAME + output
        };
        let costs = chunks.iter().enumerate().map(cost).collect();
        Some(Self { chunks, costs, output })
    }

    /// What merging may cost, where there is something to merge.
    fn merge_cost(&self) -> u64 {
        if self.chunks.len() < 2 { 0 } else { (self.chunks.len() as u64 + 1) * self.output + FRAME }
    }

    fn total(&self) -> u64 {
        self.costs.iter().sum::<u64>() + self.merge_cost()
    }
}

/// What the summariser writes of the messages that will go.
pub(crate) async fn summarise(
    shared: &Shared,
    summariser: &Summariser,
    pending: &Pending,
    calls: &Calls,
    context: &CallContext,
) -> Result<String, Degraded> {
    let now = Instant::now();
    let tenant = shared.tenant(context.tenant(), now);
    let reserved = tenant.0.lock().reserve(calls.total(), now);
    let reservation = reserved.map_err(|_| Degraded::OverBudget)?;
    let mut paid = Paid { tenant, reservation: Some(reservation), used: AtomicU64::new(0) };
    let pass = shared.gate.lock().admit(now).ok_or(Degraded::Resting)?;
    let policy = &shared.config.summaries;
    let mut time = if pass.probe { policy.probe.min(policy.time) } else { policy.time };
    if let Some(deadline) = context.deadline {
        time = time.min(deadline.remaining_at(now) / 2);
    }
    let leave = Leave { shared, pass: Some(pass) };
    let work = written(shared, summariser, pending, calls, context, time, &paid);
    let came = match tokio::time::timeout(time, work).await {
        Ok(came) => came,
        Err(_) => Err(Degraded::TimedOut),
    };
    if matches!(came, Err(Degraded::TimedOut | Degraded::Endless)) {
        paid.keep_all();
    }
    let verdict = if came.is_ok() { Came::Good } else { Came::Bad };
    if let Some(state) = leave.settle(verdict) {
        crate::event::gate(state);
    }
    debug_assert!(came.as_ref().err().is_none_or(|degraded| degraded.is_failure()));
    came
}

/// A record in parts that are shown whole.
fn pieces(record: &str) -> impl Iterator<Item = Part> + '_ {
    let mut rest = record;
    std::iter::from_fn(move || {
        let piece = clip(rest, MAX_PART);
        rest = &rest[piece.len()..];
        (!piece.is_empty()).then(|| Part::text(piece))
    })
}

/// Asks about every chunk, and for one record of all.
async fn written(
    shared: &Shared,
    summariser: &Summariser,
    pending: &Pending,
    calls: &Calls,
    context: &CallContext,
    time: Duration,
    paid: &Paid,
) -> Result<String, Degraded> {
    let deadline = Deadline::after(time);
    let one = |request: ChatRequest, cost: u64| {
        let mut request = request;
        let identity = request.context.identity_mut();
        identity.tenant = context.tenant().map(Into::into);
        identity.agent = context.agent().map(Into::into);
        request.context = std::mem::take(&mut request.context).with_deadline(deadline);
        let most = READ + usize::try_from(calls.output).unwrap_or(usize::MAX).saturating_mul(64);
        let asked = (summariser.0)(request, most);
        async move {
            match asked.await {
                Ok(answer) => {
                    paid.used(answer.usage.total().unwrap_or(cost));
                    accept(&answer).map_err(Degraded::Unusable)
                }
                Err(Asked::Endless) => Err(Degraded::Endless),
                Err(Asked::Failed(failure)) => {
                    paid.used(failure.usage().and_then(|usage| usage.total()).unwrap_or(0));
                    Err(Degraded::Failed(failure.reason()))
                }
            }
        }
    };
    let asked: Vec<_> = calls
        .chunks
        .iter()
        .zip(&calls.costs)
        .enumerate()
        .map(|(at, (chunk, cost))| {
            let earlier = pending.earlier.as_deref().filter(|_| at == 0);
            let messages = &pending.messages[chunk.clone()];
            one(ask(messages, earlier, calls.output, &mut shared.rng()), *cost)
        })
        .collect();
    let mut records: Vec<String> =
        stream::iter(asked).buffered(shared.config.summaries.parallel).try_collect().await?;
    let bytes = records.iter().map(|record| record.len() + 2).sum::<usize>();
    if records.len() == 1 {
        return Ok(records.remove(0));
    }
    // A record that has room as it is need not be written again.
    if bytes <= pending.room {
        return Ok(records.join("\n\n"));
    }
    let count = records.len();
    let parts = records.iter().enumerate().map(|(at, record)| {
        let heading = format!("Record of part {} of {count}, the oldest first:", at + 1);
        Message::new(
            Role::User,
            std::iter::once(Part::text(heading)).chain(pieces(record)).collect(),
        )
    });
    let parts: Vec<_> = parts.collect();
    one(ask(&parts, None, calls.output, &mut shared.rng()), calls.merge_cost()).await
}
