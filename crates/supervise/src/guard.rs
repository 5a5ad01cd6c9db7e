//! What a run holds while it runs.

use std::fmt;

use tokio::time::Instant;
use tracing::Span;

use crate::{RunHandle, RunRegistry, RunState, event, record::RunEnd, runs::Ended};

/// A registered run. Dropped without an end, it was cancelled; by a panic, it failed; while the registry stops, it was interrupted.
pub(crate) struct RunGuard {
    registry: RunRegistry,
    handle: RunHandle,
    /// What the run does is in it.
    span: Span,
    is_ended: bool,
}

impl RunGuard {
    pub(crate) const fn new(registry: RunRegistry, handle: RunHandle, span: Span) -> Self {
        Self { registry, handle, span, is_ended: false }
    }

    /// The run has ended.
    pub(crate) fn end(&mut self, end: RunEnd, now: Instant) -> Ended {
        if std::mem::replace(&mut self.is_ended, true) {
            return Ended::Unknown;
        }
        event::ended(&self.span, end);
        self.handle.end(now);
        self.registry.end(self.handle.id(), end, true)
    }

    /// The run was ended by somebody else, and has no result: in which state.
    pub(crate) fn give_up(&mut self, now: Instant) -> Option<RunState> {
        self.is_ended = true;
        self.handle.end(now);
        self.registry.get(self.handle.id()).map(|record| record.state)
    }

    /// Calls the run's own code. If that panics, the run has failed: whoever drops the future afterwards cancels nothing.
    pub(crate) fn watching<T>(&mut self, call: impl FnOnce() -> T) -> T {
        struct Fail<'a>(&'a mut RunGuard);
        impl Drop for Fail<'_> {
            fn drop(&mut self) {
                self.0.end(RunEnd::panicked(), Instant::now());
            }
        }
        let fail = Fail(self);
        let result = fail.0.span.clone().in_scope(call);
        std::mem::forget(fail);
        result
    }

    pub(crate) const fn handle(&self) -> &RunHandle {
        &self.handle
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        if self.is_ended {
            return;
        }
        self.is_ended = true;
        self.handle.end(Instant::now());
        let id = self.handle.id();
        if std::thread::panicking() {
            event::ended(&self.span, RunEnd::panicked());
            self.registry.end(id, RunEnd::panicked(), true);
            return;
        }
        self.registry.dropped(id);
    }
}

impl fmt::Debug for RunGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunGuard").field("handle", &self.handle).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::Failure;
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::{AgentRun, WatchdogLayer};

    /// The disk is held by the test, as one that hangs.
    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_delays_a_run_by_five_seconds() {
        let folder = tempfile::tempdir().unwrap();
        let registry = RunRegistry::open(folder.path()).await.unwrap();
        let layer = WatchdogLayer::default().with_registry(registry.clone());
        let service =
            layer.layer(service_fn(async |run: AgentRun<()>| Ok::<_, Failure>(run.id().clone())));
        let (id, started) = {
            let _disk = registry.hang();
            let started = Instant::now();
            let mut run = tokio_test::task::spawn(service.oneshot(AgentRun::new(())));
            assert!(run.poll().is_pending());
            tokio::time::advance(std::time::Duration::from_millis(4_999)).await;
            assert!(run.poll().is_pending());
            tokio::time::advance(std::time::Duration::from_millis(1)).await;
            let std::task::Poll::Ready(Ok(id)) = run.poll() else { panic!("it has to run now") };
            (id, started)
        };
        assert_eq!(started.elapsed().as_secs(), 5);
        registry.close(std::time::Duration::ZERO).await;
        let registry = RunRegistry::open(folder.path()).await.unwrap();
        assert_eq!(registry.get(&id).unwrap().state, RunState::Completed, "written afterwards");
    }
}
