//! What happened, in order, recorded between the layers.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use steadfast::{
    ChatRequest, ChatResponse, ChatService, Event, EventStream, Failover, Failure, FaultSide,
    Priority, Reason, RecoveryLog, Retry, Scope, Target, TimeLimit,
    breaker::{BreakerSnapshot, BreakerTransition},
    circuit::OUT_OF_TURN,
    failover::FailoverSnapshot,
};
use tokio::{sync::broadcast, time::Instant};
use tower_service::Service;

use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tokio_stream::Stream;

/// Between which layers something was recorded, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Boundary {
    /// Around the failover: a caller's call.
    Call,
    /// Below the failover: a call of one target.
    Target,
    /// Below the retries: an attempt.
    Attempt,
    /// Below the breaker: an attempt that it admitted.
    Admitted,
}

/// The properties of a failure.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) reason: Reason,
    pub(crate) retry: Retry,
    pub(crate) failover: Failover,
    pub(crate) scope: Scope,
    pub(crate) fault: FaultSide,
    pub(crate) permanent: bool,
    pub(crate) hint: Option<Duration>,
    pub(crate) limit: Option<TimeLimit>,
    /// How often a provider was asked.
    pub(crate) attempts: u32,
    /// A breaker refused a repetition, and would not refuse a first attempt.
    pub(crate) out_of_turn: bool,
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
            attempts: failure.attempts(),
            out_of_turn: failure.evidence() == OUT_OF_TURN,
        }
    }
}

/// How something ended.
#[derive(Clone, Debug)]
pub(crate) enum EndState {
    Complete,
    Failed(Facts),
    /// Dropped before its end.
    Dropped,
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub(crate) enum TraceEvent {
    Started {
        boundary: Boundary,
        id: u64,
        caller: Option<usize>,
        target: Option<Target>,
        /// How many other targets could serve the call.
        alternatives: u32,
        /// How often the call has asked this target before, where failover says so.
        repeats: Option<u32>,
        /// How many attempts it may still have.
        attempts_left: u32,
        /// Until when it has to be over.
        deadline: Option<Duration>,
        /// Nobody waits for it.
        background: bool,
    },
    /// The head of the answer arrived. Around the failover its first content did too, which that waits
    /// for.
    Answered {
        id: u64,
        target: Option<Target>,
    },
    /// The first content.
    Content {
        id: u64,
    },
    Ended {
        boundary: Boundary,
        id: u64,
        how: EndState,
    },
    /// A breaker changed its state.
    BreakerChanged(BreakerTransition<Option<Target>>),
    /// The guard refused a caller permanently.
    GuardRefused {
        caller: Option<usize>,
    },
    /// The states of breakers and targets.
    Snapshot {
        breakers: Vec<BreakerSnapshot<Option<Target>>>,
        targets: Option<FailoverSnapshot>,
    },
    /// An operator is about to reset everything.
    Reset,
    /// A caller makes its call.
    CallerStarted(usize),
    /// A caller has its answer or a failure, or has cancelled (`None`); and the recovery log.
    CallerDone {
        caller: usize,
        result: Option<Result<(), String>>,
        log: RecoveryLog,
    },
    /// A fault of the network.
    Network(&'static str),
    /// All faults have stopped, and a long time without calls begins.
    Quiet,
}

/// A [`TraceEvent`] and its time since the start of the run.
#[derive(Clone, Debug)]
pub(crate) struct TraceEntry {
    pub(crate) at: Duration,
    pub(crate) what: TraceEvent,
}

/// Everything that happened. Clones share one timeline.
#[derive(Clone, Debug)]
pub(crate) struct Timeline(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    notes: Vec<TraceEntry>,
    turns: Option<broadcast::Receiver<BreakerTransition<Option<Target>>>>,
    next: u64,
}

impl Timeline {
    pub(crate) fn new(began: Instant) -> Self {
        Self(Arc::new(Inner { began, state: Mutex::default() }))
    }

    /// Also records the transitions of this breaker.
    pub(crate) fn listen(&self, turns: broadcast::Receiver<BreakerTransition<Option<Target>>>) {
        self.0.state.lock().turns = Some(turns);
    }

    pub(crate) fn began(&self) -> Instant {
        self.0.began
    }

    /// The time of `at` since the start of the run.
    pub(crate) fn since(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.0.began)
    }

    pub(crate) fn note(&self, what: TraceEvent) {
        let mut state = self.0.state.lock();
        self.drain(&mut state);
        state.notes.push(TraceEntry { at: self.0.began.elapsed(), what });
    }

    /// Adds the breaker's transitions since the last entry.
    fn drain(&self, state: &mut State) {
        let State { notes, turns, .. } = state;
        let Some(turns) = turns else { return };
        let mut received: Vec<_> = std::iter::from_fn(|| turns.try_recv().ok()).collect();
        // Breakers that change at the same time do so in the order of a hash map.
        received.sort_by_cached_key(|turn| {
            (turn.transition.at, turn.key.as_ref().map(ToString::to_string).unwrap_or_default())
        });
        for turn in received {
            notes.push(TraceEntry {
                at: self.since(turn.transition.at),
                what: TraceEvent::BreakerChanged(turn),
            });
        }
    }

    fn id(&self) -> u64 {
        let mut state = self.0.state.lock();
        state.next += 1;
        state.next
    }

    pub(crate) fn notes(&self) -> Vec<TraceEntry> {
        let mut state = self.0.state.lock();
        self.drain(&mut state);
        state.notes.clone()
    }
}

/// The caller, from the context.
pub(crate) fn caller_of(request: &ChatRequest) -> Option<usize> {
    request.context.task()?.parse().ok()
}

/// Records what passes, and changes nothing.
#[derive(Clone)]
pub(crate) struct Tap {
    inner: ChatService,
    boundary: Boundary,
    timeline: Timeline,
}

impl Tap {
    pub(crate) fn around(
        inner: ChatService,
        boundary: Boundary,
        timeline: &Timeline,
    ) -> ChatService {
        ChatService::new(Self { inner, boundary, timeline: timeline.clone() })
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
        let Self { boundary, timeline, .. } = self;
        let (boundary, id) = (*boundary, timeline.id());
        timeline.note(TraceEvent::Started {
            boundary,
            id,
            caller: caller_of(&request),
            target: request.context.target.clone(),
            alternatives: request.context.alternatives,
            repeats: request.context.routed.as_ref().map(|routed| routed.repeats),
            attempts_left: request.context.attempts_left(),
            background: request.context.priority == Priority::Background,
            deadline: request.context.deadline.map(|deadline| timeline.since(deadline.instant())),
        });
        let mut recorder =
            Recorder { timeline: timeline.clone(), boundary, id, content: false, ended: false };
        let inner = self.inner.call(request);
        Box::pin(async move {
            match inner.await {
                Err(failure) => {
                    recorder.end(EndState::Failed((&failure).into()));
                    Err(failure)
                }
                Ok(response) => {
                    let target = response.head.target.clone();
                    recorder.timeline.note(TraceEvent::Answered { id, target });
                    Ok(response.map(|events| Box::pin(Tapped { events, recorder }) as EventStream))
                }
            }
        })
    }
}

struct Recorder {
    timeline: Timeline,
    boundary: Boundary,
    id: u64,
    content: bool,
    ended: bool,
}

impl Recorder {
    fn end(&mut self, how: EndState) {
        if !std::mem::replace(&mut self.ended, true) {
            self.timeline.note(TraceEvent::Ended { boundary: self.boundary, id: self.id, how });
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end(EndState::Dropped);
    }
}

struct Tapped {
    events: EventStream,
    recorder: Recorder,
}

impl Stream for Tapped {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { events, recorder } = &mut *self;
        let polled = events.as_mut().poll_next(cx);
        if let Poll::Ready(item) = &polled {
            match item {
                Some(Ok(event)) => {
                    if event.is_content() && !std::mem::replace(&mut recorder.content, true) {
                        recorder.timeline.note(TraceEvent::Content { id: recorder.id });
                    }
                    if event.is_end() {
                        recorder.end(EndState::Complete);
                    }
                }
                Some(Err(failure)) => recorder.end(EndState::Failed(failure.into())),
                None => recorder.end(EndState::Complete),
            }
        }
        polled
    }
}

impl fmt::Display for EndState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndState::Complete => f.write_str("whole"),
            EndState::Dropped => f.write_str("left"),
            EndState::Failed(facts) => {
                let Facts { reason, retry, failover, scope, fault, .. } = facts;
                let Facts { permanent, hint, limit, .. } = facts;
                write!(f, "{reason} (retry {retry:?}, {failover:?}, {scope:?}, {fault:?}")?;
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

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |target: &Option<Target>| {
            target.as_ref().map_or_else(|| "nowhere".to_owned(), Target::to_string)
        };
        match self {
            TraceEvent::Started { boundary, id, caller, target, alternatives, repeats, .. } => {
                write!(f, "{boundary:?} {id} begins, ")?;
                if let Some(caller) = caller {
                    write!(f, "caller {caller}, ")?;
                }
                write!(f, "at {}, {alternatives} others", named(target))?;
                match repeats {
                    Some(repeats) if *repeats > 0 => write!(f, ", asked {repeats} times before"),
                    _ => Ok(()),
                }
            }
            TraceEvent::Answered { id, target } => write!(f, "  {id} answers, {}", named(target)),
            TraceEvent::Content { id } => write!(f, "  {id} has content"),
            TraceEvent::Ended { boundary, id, how } => write!(f, "{boundary:?} {id} ends: {how}"),
            TraceEvent::BreakerChanged(turn) => {
                let change = turn.transition;
                let wait = change.until.map(|until| until - change.at);
                write!(f, "breaker of {}: {} to {}", named(&turn.key), change.from, change.to)?;
                write!(f, ", {}, {:?}, rests {wait:?}", change.cause, change.reason)
            }
            TraceEvent::GuardRefused { caller } => write!(f, "the guard refuses caller {caller:?}"),
            TraceEvent::Snapshot { .. } => f.write_str("snapshot"),
            TraceEvent::Reset => f.write_str("an operator resets"),
            TraceEvent::CallerStarted(caller) => write!(f, "caller {caller} calls"),
            TraceEvent::CallerDone { caller, result, log } => {
                match result {
                    None => write!(f, "caller {caller} cancels")?,
                    Some(Ok(())) => write!(f, "caller {caller} has its answer")?,
                    Some(Err(failure)) => write!(f, "caller {caller} gets the failure {failure}")?,
                }
                write!(f, " [{log}]")
            }
            TraceEvent::Network(what) => write!(f, "the network {what}"),
            TraceEvent::Quiet => f.write_str("a quiet time begins"),
        }
    }
}
