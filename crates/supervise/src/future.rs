//! The future of a run under the watchdog.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use steadfast_core::{
    Failover, Failure, FaultSide, IntoFailure, Reason, RecoveryLog, Retry, Scope, Step,
    time::{Alarm, later, millis},
};
use tokio::{sync::oneshot, time::Instant};
use tower_service::Service;

use crate::{
    AgentRun, RunHandle, RunState, event, guard::RunGuard, panic::caught, record::RunEnd, run::Due,
    runs::Ended,
};

/// The longest time that a run waits for its registration to be on disk: a disk that hangs delays runs and does not stop them. More than
/// a loaded disk takes.
const REGISTRATION: Duration = Duration::from_secs(5);

/// The limits of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) budget: Duration,
    pub(crate) hard: Instant,
    pub(crate) max_run: Duration,
}

pin_project! {
    /// Waits for the run's registration, then for the run or its limit, whichever is first.
    ///
    /// Dropped, it drops the run, which is then registered as cancelled.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, T>
    where
        S: Service<AgentRun<T>>,
    {
        // Until it is registered.
        registering: Option<Box<Registering<S, T>>>,
        #[pin]
        call: Option<S::Future>,
        alarm: Option<Alarm>,
        // `None` once ready, or when there is no run.
        running: Option<Running>,
        refused: Option<Failure>,
    }
}

struct Registering<S, T> {
    service: S,
    run: AgentRun<T>,
    written: oneshot::Receiver<()>,
    slow: Alarm,
}

struct Running {
    guard: RunGuard,
    limits: Limits,
    log: RecoveryLog,
}

impl<S: Service<AgentRun<T>>, T> ResponseFuture<S, T> {
    pub(crate) const fn refused(failure: Failure) -> Self {
        Self { registering: None, call: None, alarm: None, running: None, refused: Some(failure) }
    }

    pub(crate) const fn started(
        call: S::Future,
        guard: RunGuard,
        limits: Limits,
        log: RecoveryLog,
    ) -> Self {
        let running = Some(Running { guard, limits, log });
        Self { registering: None, call: Some(call), alarm: None, running, refused: None }
    }

    pub(crate) fn registering(
        service: S,
        run: AgentRun<T>,
        written: oneshot::Receiver<()>,
        guard: RunGuard,
        limits: Limits,
        log: RecoveryLog,
    ) -> Self {
        let slow = Alarm::at(later(Instant::now(), REGISTRATION));
        let registering = Some(Box::new(Registering { service, run, written, slow }));
        let running = Some(Running { guard, limits, log });
        Self { registering, call: None, alarm: None, running, refused: None }
    }
}

impl<S, T> Future for ResponseFuture<S, T>
where
    S: Service<AgentRun<T>, Error: IntoFailure>,
{
    type Output = Result<S::Response, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(running) = this.running.as_mut() else {
            return Poll::Ready(Err(this.refused.take().unwrap_or_else(polled_again)));
        };
        if let Some(registering) = this.registering.as_mut()
            && registering.poll(cx).is_ready()
            && let Some(registering) = this.registering.take()
        {
            let Registering { mut service, run, .. } = *registering;
            let call = running.guard.watching(|| service.call(run));
            this.call.set(Some(call));
        }
        if let Some(call) = this.call.as_mut().as_pin_mut()
            && let Poll::Ready(result) = running.guard.watching(|| call.poll(cx))
        {
            let result = result.map_err(Into::into);
            let end = match &result {
                Ok(_) => RunEnd::of(RunState::Completed),
                Err(failure) => RunEnd::failed(failure.reason()),
            };
            let ended = running.guard.end(end, Instant::now());
            (*this.running, *this.alarm) = (None, None);
            this.call.set(None);
            return Poll::Ready(match ended {
                // Its notice says that it failed, and nobody is to hear the contrary.
                Ended::Late(state) => Err(given_up(state)),
                // It was, so long ago that it has been forgotten.
                Ended::Unknown => Err(given_up(RunState::GhostSweep)),
                Ended::First => result,
            });
        }
        let failure = ready!(running.poll_over(this.alarm, cx));
        (*this.running, *this.alarm, *this.registering) = (None, None, None);
        // What is given up is given up, whatever its drop does.
        let _ = caught(|| this.call.set(None));
        Poll::Ready(Err(failure))
    }
}

impl<S, T> Registering<S, T> {
    /// Ready when the run may start.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Written, or not to be written: both are an answer.
        if Pin::new(&mut self.written).poll(cx).is_ready() {
            return Poll::Ready(());
        }
        ready!(self.slow.poll(cx));
        event::registry_slow(self.run.id(), REGISTRATION);
        Poll::Ready(())
    }
}

impl Running {
    /// Ready with the failure when the run is to be given up.
    fn poll_over(&mut self, alarm: &mut Option<Alarm>, cx: &mut Context<'_>) -> Poll<Failure> {
        let handle = self.guard.handle();
        handle.register(cx.waker());
        let mut now = Instant::now();
        loop {
            if handle.is_given_up() {
                let state = self.guard.give_up(now).unwrap_or(RunState::Cancelled);
                return Poll::Ready(given_up(state));
            }
            let Some(due) = handle.due(now) else { return Poll::Ready(polled_again()) };
            if due.at <= now {
                return Poll::Ready(self.time_out(due, now));
            }
            let alarm = alarm.get_or_insert_with(|| Alarm::at(due.at));
            if alarm.deadline() != due.at {
                alarm.reset(due.at);
            }
            ready!(alarm.poll(cx));
            now = Instant::now().max(alarm.deadline());
        }
    }

    fn time_out(&mut self, due: Due, now: Instant) -> Failure {
        let Limits { budget, max_run, .. } = self.limits;
        let (limit, knob) = if due.elapsed.saturating_sub(due.spared) >= budget && budget < max_run
        {
            (budget, "per_step_timeout_ms")
        } else if due.elapsed >= max_run {
            (max_run, "max_run_timeout_ms")
        } else {
            (due.elapsed, "the deadline of its caller")
        };
        let handle = self.guard.handle().clone();
        let parent = handle.parent().map(RunHandle::id);
        // Before the run is dropped, which would be a cancellation.
        let ended = self.guard.end(RunEnd::of(RunState::WatchdogTimeout), now);
        if let Ended::Late(state) = ended {
            return given_up(state);
        }
        event::watchdog_timeout(handle.id(), parent, limit, due.elapsed, due.spared, knob);
        self.log.record(|| {
            Step::new("supervise", "watchdog_timeout")
                .with_reason(Reason::Timeout)
                .with_wait(due.elapsed)
        });
        let elapsed = Duration::from_millis(millis(due.elapsed));
        let message = format!(
            "the run was not over in time: limit of {limit:?}, set by `{knob}`; given up after {elapsed:?}"
        );
        local(Failure::new(Reason::Timeout, message)).with_evidence("watchdog_timeout")
    }
}

/// The failure of a run that somebody else has ended.
fn given_up(state: RunState) -> Failure {
    match state {
        RunState::Cancelled => Failure::new(Reason::Cancelled, "the run was cancelled by hand")
            .with_evidence("by_hand"),
        state => {
            let message = "the run was given up before it ended, and that was reported already";
            local(Failure::new(Reason::Timeout, message)).with_evidence(state.as_str())
        }
    }
}

/// Neither a retry nor another target helps, and no provider is to blame.
fn local(failure: Failure) -> Failure {
    failure
        .with_retry(Retry::No)
        .with_failover(Failover::Never)
        .with_scope(Scope::Request)
        .with_fault(FaultSide::Local)
}

fn polled_again() -> Failure {
    Failure::refused_fixed(
        Reason::Unknown,
        "the future of a watched run was polled after it was ready",
    )
}

impl<S: Service<AgentRun<T>>, T> fmt::Debug for ResponseFuture<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("run", &self.running.as_ref().map(|running| running.guard.handle().id()))
            .field("registering", &self.registering.is_some())
            .finish_non_exhaustive()
    }
}
