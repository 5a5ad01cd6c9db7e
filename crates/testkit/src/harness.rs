//! A layer around a probe, and everything that is observed of the two.

use std::{pin::Pin, sync::Arc, task::Context, task::Poll};

use futures_core::Stream;
use steadfast_core::{Call, Failure};
use tower_service::Service;

use crate::{
    Contract, Exchange, Probe, ProbeHandle, Read, TestTask, contract::ContractedLayer, task::Stuck,
};

/// The message of a violated clause.
pub(crate) type ClauseResult = Result<(), String>;

/// A layer, its service around a probe, and everything that can be observed of them.
pub(crate) struct Harness<'a, E: Exchange, L: ContractedLayer<E>> {
    contract: &'a Contract<E, L>,
    pub(crate) layer: L,
    /// `None` once dropped.
    service: Option<L::Service>,
    pub(crate) probe: Probe<E>,
    pub(crate) handle: ProbeHandle,
    pub(crate) task: TestTask,
    /// Every request has a share: the count shows how many contexts are alive.
    agent: Arc<str>,
    tasks: usize,
    /// Calls of the probe before the last call of the service.
    calls: u64,
}

/// The remaining pieces of a reply.
pub(crate) struct Reply<R: Read> {
    pub(crate) pieces: Pin<Box<R::Pieces>>,
}

pub(crate) type ReplyOf<E, L> = Reply<
    <<L as tower_layer::Layer<Probe<E>>>::Service as tower_service::Service<
        <E as Exchange>::Request,
    >>::Response,
>;

type FutureOf<E, L> = <<L as tower_layer::Layer<Probe<E>>>::Service as tower_service::Service<
    <E as Exchange>::Request,
>>::Future;

impl<'a, E: Exchange, L: ContractedLayer<E>> Harness<'a, E, L> {
    pub(crate) async fn new(contract: &'a Contract<E, L>) -> Self {
        let layer = contract.layer().await;
        let (probe, handle) = Probe::new(contract.exchange.clone());
        Self::with(contract, layer, probe, handle)
    }

    pub(crate) fn with(
        contract: &'a Contract<E, L>,
        layer: L,
        probe: Probe<E>,
        handle: ProbeHandle,
    ) -> Self {
        let service = Some(layer.layer(probe.clone()));
        let agent = Arc::from("a request of the probe");
        let tasks = tasks();
        Self {
            contract,
            layer,
            service,
            probe,
            handle,
            task: TestTask::new(),
            agent,
            tasks,
            calls: 0,
        }
    }

    pub(crate) fn request(&self) -> E::Request {
        let mut request = self.contract.exchange.request();
        request.context_mut().identity_mut().agent = Some(self.agent.clone());
        request
    }

    pub(crate) fn service(&mut self) -> &mut L::Service {
        // Made again after it was dropped.
        self.service.get_or_insert_with(|| self.layer.layer(self.probe.clone()))
    }

    pub(crate) fn drop_service(&mut self) {
        self.service = None;
    }

    /// One poll of the service's readiness.
    pub(crate) fn poll_ready(&mut self) -> Poll<Result<(), Failure>> {
        let service = self.service.get_or_insert_with(|| self.layer.layer(self.probe.clone()));
        self.task.poll(|cx| service.poll_ready(cx)).map_err(Into::into)
    }

    /// Waits for readiness and calls.
    pub(crate) async fn call(
        &mut self,
        request: E::Request,
    ) -> Result<Pin<Box<FutureOf<E, L>>>, String> {
        self.calls = self.handle.calls();
        let service = self.service.get_or_insert_with(|| self.layer.layer(self.probe.clone()));
        match self.task.finish(|cx| service.poll_ready(cx)).await {
            Ok(Ok(())) => Ok(Box::pin(service.call(request))),
            Ok(Err(error)) => {
                Err(format!("`poll_ready` failed although the probe is ready: {}", error.into()))
            }
            Err(stuck) => Err(format!("`poll_ready`: {}", stuck.describe())),
        }
    }

    /// Polls `future` until it is ready or `most` times.
    pub(crate) async fn drive(
        &mut self,
        future: &mut Pin<Box<FutureOf<E, L>>>,
        most: usize,
    ) -> Result<Option<Result<ReplyOf<E, L>, Failure>>, Stuck> {
        let ready = self.task.run(most, |cx| future.as_mut().poll(cx)).await?;
        Ok(ready.map(|result| match result {
            Ok(reply) => match reply.failure() {
                Some(failure) => Err(failure),
                None => Ok(Reply { pieces: Box::pin(reply.read().1) }),
            },
            Err(error) => Err(error.into()),
        }))
    }

    /// A call with the probe's next actions, to its reply.
    pub(crate) async fn send(&mut self) -> Result<Result<ReplyOf<E, L>, Failure>, String> {
        let request = self.request();
        let mut future = self.call(request).await?;
        match self.drive(&mut future, usize::MAX).await {
            Ok(Some(result)) => Ok(result),
            Ok(None) => Err("it was not polled".to_owned()),
            Err(stuck) => Err(format!("a call: {}", stuck.describe())),
        }
    }

    /// A call and its whole reply: the number of pieces.
    pub(crate) async fn send_and_read(&mut self) -> Result<Result<usize, Failure>, String> {
        Ok(match self.send().await? {
            Ok(mut reply) => self.read(&mut reply).await?,
            Err(failure) => Err(failure),
        })
    }

    /// The next piece.
    pub(crate) async fn next<R: Read>(
        &mut self,
        reply: &mut Reply<R>,
    ) -> Result<Option<Result<R::Piece, Failure>>, Stuck> {
        self.task.finish(|cx| reply.pieces.as_mut().poll_next(cx)).await
    }

    /// Reads to the end: the number of pieces.
    pub(crate) async fn read<R: Read>(
        &mut self,
        reply: &mut Reply<R>,
    ) -> Result<Result<usize, Failure>, String> {
        let mut count = 0;
        loop {
            match self.next(reply).await {
                Ok(None) => return Ok(Ok(count)),
                Ok(Some(Ok(_))) => count += 1,
                Ok(Some(Err(failure))) => return Ok(Err(failure)),
                Err(stuck) => return Err(format!("a reply: {}", stuck.describe())),
            }
        }
    }

    /// How many permits, leases and probes the layer counts as held.
    pub(crate) fn held(&self) -> u64 {
        self.contract.held.as_ref().map_or(0, |held| held(&self.layer))
    }

    /// Checks that nothing is left of any call. The service may be kept, but no readiness; except
    /// after a refused call, whose readiness is kept for the next one.
    pub(crate) async fn freed(&mut self, when: &str) -> ClauseResult {
        if self.handle.calls() == self.calls {
            self.service = None;
        }
        // Tasks that end because a future was dropped have to be polled for that.
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        let counts: [(&str, u64); 7] = [
            ("calls of the inner service", self.handle.futures() as u64),
            ("replies of the inner service", self.handle.bodies() as u64),
            ("unused readiness of the inner service", self.handle.reserved() as u64),
            ("copies of the request", Arc::strong_count(&self.agent) as u64 - 1),
            ("wakers of the caller (in a timer or a queue)", self.task.holders() as u64),
            ("spawned tasks", tasks().saturating_sub(self.tasks) as u64),
            ("permits, leases or probes by the layer's own count", self.held()),
        ];
        let left: Vec<_> = counts
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(what, n)| format!("{n} {what}"))
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        Err(format!("{when}, this is left: {}; all of it should be free", left.join(", ")))
    }
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// One poll of a stream, without a waker.
pub(crate) fn poll_quietly<S: Stream>(stream: Pin<&mut S>) -> Poll<Option<S::Item>> {
    stream.poll_next(&mut Context::from_waker(std::task::Waker::noop()))
}
