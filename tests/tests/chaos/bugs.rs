//! Planted bugs, each of which must be found.

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

use crate::{invariants::Invariant, timeline::Boundary};

/// A bug of a kind that layers have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Sends another event after the end.
    ContinuesAfterEnd,
    /// Ignores the deadline.
    ForgetsDeadline,
    /// Retries without counting the attempt.
    HiddenRetry,
    /// Delivers a piece twice.
    DuplicatesPiece,
    /// Loses a piece.
    LosesPiece,
    /// Adds up cumulative usage.
    AddsUsage,
    /// Fails without a message.
    EmptyMessage,
    /// Retries what is forbidden.
    RetriesForbidden,
    /// Leaks an answer that was dropped.
    LeaksAnswer,
    /// Leaks a task.
    LeaksTask,
    /// Leaks a timer.
    LeaksTimer,
    /// Turns throttling into a server error, below the breaker.
    MisreadsThrottling,
    /// Drops the provider's `retry-after`, below the retries.
    ForgetsHint,
    /// Forgets how failover came to the target.
    ForgetsRoute,
    /// Refuses a target for ever after one failure.
    NeverRecovers,
    /// Logs nothing.
    HidesLog,
    /// Panics in the middle of an answer.
    Panics,
}

impl Bug {
    pub(crate) const ALL: [Bug; 17] = [
        Bug::ContinuesAfterEnd,
        Bug::ForgetsDeadline,
        Bug::HiddenRetry,
        Bug::DuplicatesPiece,
        Bug::LosesPiece,
        Bug::AddsUsage,
        Bug::EmptyMessage,
        Bug::RetriesForbidden,
        Bug::LeaksAnswer,
        Bug::LeaksTask,
        Bug::LeaksTimer,
        Bug::MisreadsThrottling,
        Bug::ForgetsHint,
        Bug::ForgetsRoute,
        Bug::NeverRecovers,
        Bug::HidesLog,
        Bug::Panics,
    ];

    /// The invariant that it violates.
    pub(crate) fn breaks(self) -> Invariant {
        match self {
            Bug::ContinuesAfterEnd => Invariant::EndsOnce,
            Bug::ForgetsDeadline => Invariant::InTime,
            Bug::HiddenRetry => Invariant::WithinAttempts,
            Bug::DuplicatesPiece | Bug::LosesPiece => Invariant::NothingLostNothingTwice,
            Bug::AddsUsage => Invariant::UsageOnce,
            Bug::EmptyMessage => Invariant::Reported,
            Bug::RetriesForbidden => Invariant::ForbiddenIsFinal,
            Bug::LeaksAnswer | Bug::LeaksTask | Bug::LeaksTimer => Invariant::NothingLeft,
            Bug::MisreadsThrottling => Invariant::BreakerAgrees,
            Bug::ForgetsHint | Bug::ForgetsRoute => Invariant::CooldownsAgree,
            Bug::NeverRecovers => Invariant::ProbesReturn,
            Bug::HidesLog => Invariant::LogAgrees,
            Bug::Panics => Invariant::NoPanic,
        }
    }

    /// The boundary that it is right above; `None` is around the whole stack.
    pub(crate) fn boundary(self) -> Option<Boundary> {
        match self {
            Bug::MisreadsThrottling | Bug::HiddenRetry | Bug::RetriesForbidden => {
                Some(Boundary::Admitted)
            }
            Bug::LeaksAnswer | Bug::HidesLog | Bug::ForgetsHint => Some(Boundary::Attempt),
            Bug::NeverRecovers | Bug::ForgetsRoute => Some(Boundary::Target),
            Bug::ForgetsDeadline => Some(Boundary::Call),
            _ => None,
        }
    }
}

/// The service that has the bug.
#[derive(Clone)]
pub(crate) struct BuggyLayer {
    inner: ChatService,
    bug: Bug,
    failed_targets: Arc<Mutex<BTreeSet<String>>>,
}

impl BuggyLayer {
    pub(crate) fn around(inner: ChatService, bug: Bug) -> ChatService {
        ChatService::new(Self { inner, bug, failed_targets: Arc::default() })
    }
}

fn name(target: Option<&Target>) -> String {
    target.map_or_else(String::new, Target::to_string)
}

impl Service<ChatRequest> for BuggyLayer {
    type Response = ChatResponse;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<ChatResponse, Failure>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let (bug, failed_targets) = (self.bug, self.failed_targets.clone());
        let target = name(request.context.target.as_ref());
        match bug {
            Bug::ForgetsDeadline => request.context.deadline = None,
            Bug::ForgetsRoute => request.context.routed = None,
            Bug::HidesLog => request.context.log = RecoveryLog::disabled(),
            Bug::LeaksTask => _ = tokio::spawn(std::future::pending::<()>()),
            Bug::LeaksTimer => {
                let mut timer = Box::pin(tokio::time::sleep(Duration::from_secs(100 * 86_400)));
                let _ = timer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                mem::forget(timer);
            }
            Bug::NeverRecovers if failed_targets.lock().contains(&target) => {
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
                if bug == Bug::NeverRecovers {
                    failed_targets.lock().insert(target);
                }
                let forbidden = failure.reason() == Reason::Safety;
                if bug == Bug::HiddenRetry && !forbidden
                    || bug == Bug::RetriesForbidden && forbidden
                {
                    std::future::poll_fn(|cx| again.poll_ready(cx)).await?;
                    answer = again.call(second).await;
                }
            }
            let with_bug = |response: ChatResponse| {
                response.map(|events| {
                    Box::pin(BuggyStream { events: Some(events), bug, count: 0, more: None })
                        as EventStream
                })
            };
            answer.map(with_bug).map_err(|failure| corrupt(bug, failure))
        })
    }
}

fn corrupt(bug: Bug, failure: Failure) -> Failure {
    match (bug, failure.reason()) {
        (Bug::EmptyMessage, reason) => {
            let silent = Failure::new(reason, "").with_attempts(failure.attempts());
            if failure.is_delivered() { silent.with_delivered() } else { silent }
        }
        (Bug::MisreadsThrottling, Reason::RateLimit | Reason::Overloaded) => {
            failure.with_reason(Reason::ServerError)
        }
        (Bug::ForgetsHint, _) => failure.with_retry_after(None),
        _ => failure,
    }
}

/// The stream of an answer with the bug.
struct BuggyStream {
    events: Option<EventStream>,
    bug: Bug,
    /// Pieces of content so far.
    count: usize,
    more: Option<Event>,
}

impl Stream for BuggyStream {
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
                    return Poll::Ready(Some(Err(corrupt(this.bug, failure))));
                }
                None => {
                    this.events = None;
                    let ping =
                        (this.bug == Bug::ContinuesAfterEnd).then(|| Ok(Event::new([Delta::Ping])));
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
                    (Bug::DuplicatesPiece, 3) => this.more = Some(event.clone()),
                    (Bug::Panics, 3) => panic!("the third piece"),
                    _ => {}
                }
            }
            return Poll::Ready(Some(Ok(event)));
        }
    }
}

impl Drop for BuggyStream {
    fn drop(&mut self) {
        if self.bug == Bug::LeaksAnswer {
            mem::forget(self.events.take());
        }
    }
}
