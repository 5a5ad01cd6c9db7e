//! Bugs, planted to see that they are found.

use std::{
    collections::BTreeSet,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use steadfast::{
    ChatRequest, ChatResponse, ChatService, Delta, Event, EventStream, Failure, Reason,
    RecoveryLog, Target,
};
use tokio_stream::Stream;
use tower_service::Service;

use crate::{laws::Law, timeline::Place};

/// A bug as layers have had them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Goes on after the end.
    GoesOn,
    /// Nobody watches the deadline.
    ForgetsDeadline,
    /// Tries again on its own account.
    RetriesInSecret,
    /// Delivers a piece twice.
    SaysTwice,
    /// Loses a piece.
    LosesPiece,
    /// Adds usage up that was cumulative.
    AddsUsage,
    /// Fails without a word.
    Wordless,
    /// Retries what is forbidden.
    RetriesForbidden,
    /// Holds on to an answer that was dropped.
    HoldsAnswer,
    /// Leaves a task behind.
    LeavesTask,
    /// Leaves a timer behind.
    LeavesTimer,
    /// Takes throttling for breakage, below the breaker.
    TakesThrottlingForBreakage,
    /// Loses what a provider asked for, below the failover.
    ForgetsHint,
    /// Never forgives a target that failed.
    BearsGrudge,
    /// Keeps what it did to itself.
    HidesLog,
    /// Panics at a piece it does not like.
    Panics,
}

impl Bug {
    pub(crate) const ALL: [Bug; 16] = [
        Bug::GoesOn,
        Bug::ForgetsDeadline,
        Bug::RetriesInSecret,
        Bug::SaysTwice,
        Bug::LosesPiece,
        Bug::AddsUsage,
        Bug::Wordless,
        Bug::RetriesForbidden,
        Bug::HoldsAnswer,
        Bug::LeavesTask,
        Bug::LeavesTimer,
        Bug::TakesThrottlingForBreakage,
        Bug::ForgetsHint,
        Bug::BearsGrudge,
        Bug::HidesLog,
        Bug::Panics,
    ];

    /// The law it breaks.
    pub(crate) fn breaks(self) -> Law {
        match self {
            Bug::GoesOn => Law::EndsOnce,
            Bug::ForgetsDeadline => Law::InTime,
            Bug::RetriesInSecret => Law::WithinAttempts,
            Bug::SaysTwice | Bug::LosesPiece => Law::NothingLostNothingTwice,
            Bug::AddsUsage => Law::UsageOnce,
            Bug::Wordless => Law::Told,
            Bug::RetriesForbidden => Law::ForbiddenIsFinal,
            Bug::HoldsAnswer | Bug::LeavesTask | Bug::LeavesTimer => Law::NothingLeft,
            Bug::TakesThrottlingForBreakage => Law::BreakerAgrees,
            Bug::ForgetsHint => Law::CooldownsAgree,
            Bug::BearsGrudge => Law::ProbesReturn,
            Bug::HidesLog => Law::LogAgrees,
            Bug::Panics => Law::NoPanic,
        }
    }

    /// Right above which place it sits; `None` around everything.
    pub(crate) fn place(self) -> Option<Place> {
        match self {
            Bug::TakesThrottlingForBreakage | Bug::RetriesInSecret | Bug::RetriesForbidden => {
                Some(Place::Asked)
            }
            Bug::HoldsAnswer | Bug::HidesLog => Some(Place::Attempt),
            Bug::ForgetsHint | Bug::BearsGrudge => Some(Place::Visit),
            Bug::ForgetsDeadline => Some(Place::Call),
            _ => None,
        }
    }
}

/// The layer that has it.
#[derive(Clone)]
pub(crate) struct Planted {
    inner: ChatService,
    bug: Bug,
    grudges: Arc<Mutex<BTreeSet<String>>>,
}

impl Planted {
    pub(crate) fn around(inner: ChatService, bug: Bug) -> ChatService {
        ChatService::new(Self { inner, bug, grudges: Arc::default() })
    }
}

fn name(target: Option<&Target>) -> String {
    target.map_or_else(String::new, Target::to_string)
}

impl Service<ChatRequest> for Planted {
    type Response = ChatResponse;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<ChatResponse, Failure>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let (bug, grudges) = (self.bug, self.grudges.clone());
        let target = name(request.context.target.as_ref());
        match bug {
            Bug::ForgetsDeadline => request.context.deadline = None,
            Bug::HidesLog => request.context.log = RecoveryLog::disabled(),
            Bug::LeavesTask => _ = tokio::spawn(std::future::pending::<()>()),
            Bug::LeavesTimer => {
                let mut timer = Box::pin(tokio::time::sleep(Duration::from_secs(100 * 86_400)));
                let _ = timer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                mem::forget(timer);
            }
            Bug::BearsGrudge if grudges.lock().contains(&target) => {
                let refusal = Failure::refused(Reason::CircuitOpen, "it failed once");
                return Box::pin(async move { Err(refusal) });
            }
            _ => {}
        }
        let (mut again, second) = (self.inner.clone(), request.clone());
        let call = self.inner.call(request);
        Box::pin(async move {
            let mut answer = call.await;
            if let Err(failure) = &answer {
                if bug == Bug::BearsGrudge {
                    grudges.lock().insert(target);
                }
                let forbidden = failure.reason() == Reason::Safety;
                if bug == Bug::RetriesInSecret && !forbidden
                    || bug == Bug::RetriesForbidden && forbidden
                {
                    std::future::poll_fn(|cx| again.poll_ready(cx)).await?;
                    answer = again.call(second).await;
                }
            }
            let spoilt = |response: ChatResponse| {
                response.map(|events| {
                    Box::pin(Spoilt { events: Some(events), bug, count: 0, more: None })
                        as EventStream
                })
            };
            answer.map(spoilt).map_err(|failure| spoil(bug, failure))
        })
    }
}

fn spoil(bug: Bug, failure: Failure) -> Failure {
    match (bug, failure.reason()) {
        (Bug::Wordless, reason) => {
            let wordless = Failure::new(reason, "").with_attempts(failure.attempts());
            if failure.is_delivered() { wordless.with_delivered() } else { wordless }
        }
        (Bug::TakesThrottlingForBreakage, Reason::RateLimit | Reason::Overloaded) => {
            failure.with_reason(Reason::ServerError)
        }
        (Bug::ForgetsHint, _) => failure.with_retry_after(None),
        _ => failure,
    }
}

/// Its answers.
struct Spoilt {
    events: Option<EventStream>,
    bug: Bug,
    /// Pieces of content so far.
    count: usize,
    more: Option<Event>,
}

impl Stream for Spoilt {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(more) = this.more.take() {
                return Poll::Ready(Some(Ok(more)));
            }
            let Some(events) = &mut this.events else { return Poll::Ready(None) };
            let polled = std::task::ready!(events.as_mut().poll_next(cx));
            let mut event = match polled {
                Some(Ok(event)) => event,
                Some(Err(failure)) => {
                    this.events = None;
                    return Poll::Ready(Some(Err(spoil(this.bug, failure))));
                }
                None => {
                    this.events = None;
                    let ping = (this.bug == Bug::GoesOn).then(|| Ok(Event::new([Delta::Ping])));
                    return Poll::Ready(ping);
                }
            };
            if this.bug == Bug::AddsUsage {
                for delta in event.deltas_mut() {
                    if let Delta::Usage(usage) = delta {
                        *usage = usage.plus(&usage.clone());
                    }
                }
            }
            if event.is_content() && !event.is_end() {
                this.count += 1;
                match (this.bug, this.count) {
                    (Bug::LosesPiece, 3) => continue,
                    (Bug::SaysTwice, 3) => this.more = Some(event.clone()),
                    (Bug::Panics, 3) => panic!("the third piece"),
                    _ => {}
                }
            }
            return Poll::Ready(Some(Ok(event)));
        }
    }
}

impl Drop for Spoilt {
    fn drop(&mut self) {
        if self.bug == Bug::HoldsAnswer {
            mem::forget(self.events.take());
        }
    }
}
