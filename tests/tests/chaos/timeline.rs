//! What happened, in order: seen from between the layers.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use steadfast::{
    ChatRequest, ChatResponse, ChatService, Event, EventStream, Failover, Failure, Fault, Reason,
    RecoveryLog, Retry, Scope, Target, TimeLimit,
    breaker::{BreakerSnapshot, BreakerTransition},
    failover::FailoverSnapshot,
};
use tokio::{sync::broadcast, time::Instant};
use tower_service::Service;

use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tokio_stream::Stream;

/// Between which layers something was seen, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Around the failover: one of a caller's calls.
    Call,
    /// Below it: a target is visited.
    Visit,
    /// Below the retries: an attempt is made.
    Attempt,
    /// Below the breaker: it was let through.
    Asked,
}

/// What one failure says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) reason: Reason,
    pub(crate) retry: Retry,
    pub(crate) failover: Failover,
    pub(crate) scope: Scope,
    pub(crate) fault: Fault,
    pub(crate) permanent: bool,
    pub(crate) hint: Option<Duration>,
    pub(crate) limit: Option<TimeLimit>,
}

impl From<&Failure> for Facts {
    fn from(failure: &Failure) -> Self {
        Self {
            reason: failure.reason(),
            retry: failure.retry(),
            failover: failure.failover(),
            scope: failure.scope(),
            fault: failure.fault(),
            permanent: failure.is_permanent(),
            hint: failure.retry_after(),
            limit: failure.time_limit(),
        }
    }
}

/// How something ended.
#[derive(Clone, Debug)]
pub(crate) enum How {
    Whole,
    Failed(Facts),
    /// It was dropped before.
    Left,
}

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Began {
        place: Place,
        id: u64,
        caller: Option<usize>,
        target: Option<Target>,
        /// There is nowhere else to go.
        alone: bool,
    },
    /// The head of the answer came.
    Answered {
        id: u64,
        target: Option<Target>,
    },
    /// The first content.
    Content {
        id: u64,
    },
    Ended {
        place: Place,
        id: u64,
        how: How,
    },
    /// A breaker changed its state.
    Turned(BreakerTransition<Option<Target>>),
    /// The guard refused for good.
    Forbade {
        caller: Option<usize>,
    },
    /// Somebody looked.
    Looked {
        breakers: Vec<BreakerSnapshot<Option<Target>>>,
        targets: Option<FailoverSnapshot>,
    },
    /// An operator is about to reset everything.
    Reset,
    /// A caller calls.
    Calls(usize),
    /// A caller has its answer, or a failure, or left; and what the layers say that they did.
    Gone {
        caller: usize,
        told: Option<Result<(), String>>,
        log: RecoveryLog,
    },
    /// The network does something of its own.
    Network(&'static str),
    /// All faults are over, and nobody calls for long.
    Quiet,
}

/// One of them, and when: since the world began.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) at: Duration,
    pub(crate) what: What,
}

/// Everything that happened. Clones are one.
#[derive(Clone, Debug)]
pub(crate) struct Timeline(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    notes: Vec<Note>,
    turns: Option<broadcast::Receiver<BreakerTransition<Option<Target>>>>,
    next: u64,
}

impl Timeline {
    pub(crate) fn new(began: Instant) -> Self {
        Self(Arc::new(Inner { began, state: Mutex::default() }))
    }

    /// Also what this breaker tells.
    pub(crate) fn listen(&self, turns: broadcast::Receiver<BreakerTransition<Option<Target>>>) {
        self.0.state.lock().turns = Some(turns);
    }

    pub(crate) fn began(&self) -> Instant {
        self.0.began
    }

    /// How long after the beginning of the world `at` is.
    pub(crate) fn since(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.0.began)
    }

    pub(crate) fn note(&self, what: What) {
        let mut state = self.0.state.lock();
        self.drain(&mut state);
        state.notes.push(Note { at: self.0.began.elapsed(), what });
    }

    /// What the breaker has told since, before what happens next.
    fn drain(&self, state: &mut State) {
        let State { notes, turns, .. } = state;
        let Some(turns) = turns else { return };
        let mut told: Vec<_> = std::iter::from_fn(|| turns.try_recv().ok()).collect();
        // What many breakers do at once, they do in the order of a hash map.
        told.sort_by_cached_key(|turn| {
            (turn.transition.at, turn.key.as_ref().map(ToString::to_string).unwrap_or_default())
        });
        for turn in told {
            notes.push(Note { at: self.since(turn.transition.at), what: What::Turned(turn) });
        }
    }

    fn id(&self) -> u64 {
        let mut state = self.0.state.lock();
        state.next += 1;
        state.next
    }

    pub(crate) fn notes(&self) -> Vec<Note> {
        let mut state = self.0.state.lock();
        self.drain(&mut state);
        state.notes.clone()
    }
}

/// Who calls, as the context says.
pub(crate) fn caller_of(request: &ChatRequest) -> Option<usize> {
    request.context.task()?.parse().ok()
}

/// Sees what passes, and changes nothing.
#[derive(Clone)]
pub(crate) struct Tap {
    inner: ChatService,
    place: Place,
    timeline: Timeline,
}

impl Tap {
    pub(crate) fn around(inner: ChatService, place: Place, timeline: &Timeline) -> ChatService {
        ChatService::new(Self { inner, place, timeline: timeline.clone() })
    }
}

impl Service<ChatRequest> for Tap {
    type Response = ChatResponse;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<ChatResponse, Failure>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let Self { place, timeline, .. } = self;
        let (place, id) = (*place, timeline.id());
        timeline.note(What::Began {
            place,
            id,
            caller: caller_of(&request),
            target: request.context.target.clone(),
            alone: request.context.alternatives == 0,
        });
        let mut seen = Seen { timeline: timeline.clone(), place, id, content: false, ended: false };
        let inner = self.inner.call(request);
        Box::pin(async move {
            match inner.await {
                Err(failure) => {
                    seen.end(How::Failed((&failure).into()));
                    Err(failure)
                }
                Ok(response) => {
                    let target = response.head.target.clone();
                    seen.timeline.note(What::Answered { id, target });
                    Ok(response.map(|events| Box::pin(Tapped { events, seen }) as EventStream))
                }
            }
        })
    }
}

struct Seen {
    timeline: Timeline,
    place: Place,
    id: u64,
    content: bool,
    ended: bool,
}

impl Seen {
    fn end(&mut self, how: How) {
        if !std::mem::replace(&mut self.ended, true) {
            self.timeline.note(What::Ended { place: self.place, id: self.id, how });
        }
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.end(How::Left);
    }
}

struct Tapped {
    events: EventStream,
    seen: Seen,
}

impl Stream for Tapped {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { events, seen } = &mut *self;
        let polled = events.as_mut().poll_next(cx);
        if let Poll::Ready(item) = &polled {
            match item {
                Some(Ok(event)) => {
                    if event.is_content() && !std::mem::replace(&mut seen.content, true) {
                        seen.timeline.note(What::Content { id: seen.id });
                    }
                    if event.is_end() {
                        seen.end(How::Whole);
                    }
                }
                Some(Err(failure)) => seen.end(How::Failed(failure.into())),
                None => seen.end(How::Whole),
            }
        }
        polled
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::Whole => f.write_str("whole"),
            How::Left => f.write_str("left"),
            How::Failed(facts) => {
                let Facts { reason, retry, scope, fault, permanent, hint, limit, .. } = facts;
                write!(f, "{reason} (retry {retry:?}, {scope:?}, {fault:?}")?;
                if *permanent {
                    f.write_str(", permanent")?;
                }
                if let Some(hint) = hint {
                    write!(f, ", hint {hint:?}")?;
                }
                if let Some(limit) = limit {
                    write!(f, ", limit {limit}")?;
                }
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |target: &Option<Target>| {
            target.as_ref().map_or_else(|| "nowhere".to_owned(), Target::to_string)
        };
        match self {
            What::Began { place, id, caller, target, alone } => {
                write!(f, "{place:?} {id} begins, ")?;
                if let Some(caller) = caller {
                    write!(f, "caller {caller}, ")?;
                }
                write!(f, "at {}{}", named(target), if *alone { ", alone" } else { "" })
            }
            What::Answered { id, target } => write!(f, "  {id} answers, {}", named(target)),
            What::Content { id } => write!(f, "  {id} has content"),
            What::Ended { place, id, how } => write!(f, "{place:?} {id} ends: {how}"),
            What::Turned(turn) => {
                let change = turn.transition;
                let wait = change.until.map(|until| until - change.at);
                write!(f, "breaker of {}: {} to {}", named(&turn.key), change.from, change.to)?;
                write!(f, ", {}, {:?}, rests {wait:?}", change.cause, change.reason)
            }
            What::Forbade { caller } => write!(f, "the guard refuses caller {caller:?}"),
            What::Looked { .. } => f.write_str("somebody looks"),
            What::Reset => f.write_str("an operator resets"),
            What::Calls(caller) => write!(f, "caller {caller} calls"),
            What::Gone { caller, told, log } => {
                match told {
                    None => write!(f, "caller {caller} leaves")?,
                    Some(Ok(())) => write!(f, "caller {caller} has its answer")?,
                    Some(Err(failure)) => write!(f, "caller {caller} is told {failure}")?,
                }
                write!(f, " [{log}]")
            }
            What::Network(what) => write!(f, "the network {what}"),
            What::Quiet => f.write_str("a quiet time begins"),
        }
    }
}
