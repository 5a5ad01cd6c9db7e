//! What the tests share.

#![allow(dead_code, reason = "not every test needs all of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{future::Future, num::NonZeroU32, pin::Pin, sync::Arc};

use parking_lot::Mutex;
use steadfast_core::Failure;
use steadfast_supervise::{
    AgentRun, NoticeVia, RunId, RunNotice, RunRegistry, RunState, WatchdogLayer,
};
use tower::{Layer, service_fn, util::BoxCloneSyncService};

pub(crate) type JobFuture = Pin<Box<dyn Future<Output = Result<&'static str, Failure>> + Send>>;

/// What a run does.
#[derive(Clone)]
pub(crate) struct Job(pub(crate) Arc<dyn Fn(AgentRun<Job>) -> JobFuture + Send + Sync>);

/// A service of jobs, under a watchdog.
pub(crate) type Watched = BoxCloneSyncService<AgentRun<Job>, &'static str, Failure>;

pub(crate) fn job<F, Fut>(run: F) -> Job
where
    F: Fn(AgentRun<Job>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<&'static str, Failure>> + Send + 'static,
{
    Job(Arc::new(move |request| Box::pin(run(request))))
}

pub(crate) fn steps(job: Job, steps: u32) -> AgentRun<Job> {
    AgentRun::new(job).with_max_steps(NonZeroU32::new(steps))
}

pub(crate) fn watched() -> (Watched, RunRegistry) {
    let registry = RunRegistry::in_memory();
    (watched_by(&registry), registry)
}

pub(crate) fn watched_by(registry: &RunRegistry) -> Watched {
    let layer = WatchdogLayer::default().with_registry(registry.clone());
    let service = service_fn(|run: AgentRun<Job>| {
        let job = run.input.clone();
        (job.0)(run)
    });
    BoxCloneSyncService::new(layer.layer(service))
}

pub(crate) fn ran(registry: &RunRegistry, id: &RunId) -> RunState {
    registry.get(id).unwrap().state
}

/// The notices that were sent.
#[derive(Clone, Default)]
pub(crate) struct Notices(pub(crate) Arc<Mutex<Vec<RunNotice>>>);

impl Notices {
    pub(crate) fn sink(
        &self,
    ) -> impl Fn(RunNotice) -> std::future::Ready<Result<NoticeVia, Failure>> + Send + Sync + 'static
    {
        let notices = self.0.clone();
        move |notice| {
            notices.lock().push(notice);
            std::future::ready(Ok(NoticeVia::Direct))
        }
    }

    pub(crate) fn take(&self) -> Vec<RunNotice> {
        std::mem::take(&mut *self.0.lock())
    }
}
