//! The queue of spans: bounded, so that a collector which is slow or gone costs nothing but the spans that are dropped.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use opentelemetry::{Context, context::FutureExt};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{Span, SpanData, SpanExporter, SpanProcessor},
};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::{Instant, timeout, timeout_at},
};

use crate::{
    SpanQueuePolicy,
    mask::{self, MaskText},
};

/// How often it is logged, at most, that spans were dropped: each minute. A collector that is gone is gone for long.
const REPORTED: Duration = Duration::from_secs(60);

/// Where spans wait for their export. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SpanQueue(Arc<Shared>);

struct Shared {
    waiting: mpsc::Sender<SpanData>,
    flush: mpsc::UnboundedSender<oneshot::Sender<()>>,
    counts: Arc<Counts>,
    mask: OnceLock<Box<MaskText>>,
}

#[derive(Default)]
struct Counts {
    /// Those for which there was room.
    taken: AtomicU64,
    /// Those for which there was none.
    refused: AtomicU64,
    sent: AtomicU64,
    /// Those that were taken and could not be sent.
    lost: AtomicU64,
}

impl Counts {
    fn dropped(&self) -> u64 {
        self.refused.load(Relaxed) + self.lost.load(Relaxed)
    }
}

impl SpanQueue {
    /// A queue whose spans are exported by `exporter`, on `runtime`.
    pub(crate) fn start<E: SpanExporter + 'static>(
        exporter: E,
        policy: SpanQueuePolicy,
        runtime: &Handle,
    ) -> Self {
        let (waiting, spans) = mpsc::channel(policy.capacity.max(1));
        let (flush, flushes) = mpsc::unbounded_channel();
        let counts = Arc::<Counts>::default();
        let export =
            Export { exporter, policy, spans, flushes, counts: counts.clone(), reported: None };
        runtime.spawn(export.run());
        Self(Arc::new(Shared { waiting, flush, counts, mask: OnceLock::new() }))
    }

    /// Adds a span, unless there is no room. Waits for nobody.
    pub(crate) fn push(&self, mut span: SpanData) {
        if let Some(mask) = self.mask() {
            mask::span(&mut span, mask);
        }
        let counts = &self.0.counts;
        let count = match self.0.waiting.try_send(span) {
            Ok(()) => &counts.taken,
            Err(_) => &counts.refused,
        };
        count.fetch_add(1, Relaxed);
    }

    /// What takes secrets out of what is exported.
    pub(crate) fn mask(&self) -> Option<&MaskText> {
        self.0.mask.get().map(|mask| &**mask)
    }

    /// Takes secrets out of what is exported from now on. Only the first is used.
    pub(crate) fn set_mask(&self, mask: Box<MaskText>) {
        // Another one is dropped.
        let _ = self.0.mask.set(mask);
    }

    /// Returns once all that waits now was exported or dropped.
    pub(crate) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        if self.0.flush.send(done).is_ok() {
            // An error means that the task has ended, and with it what waited.
            let _ = is_done.await;
        }
    }

    /// How many wait, those that are being sent among them.
    pub(crate) fn waiting(&self) -> u64 {
        let counts = &self.0.counts;
        let over = counts.sent.load(Relaxed) + counts.lost.load(Relaxed);
        counts.taken.load(Relaxed).saturating_sub(over)
    }

    /// How many a collector has taken.
    pub(crate) fn sent(&self) -> u64 {
        self.0.counts.sent.load(Relaxed)
    }

    /// How many were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.0.counts.dropped()
    }
}

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        // What is not sampled may be recorded, and is not exported.
        if span.span_context.is_sampled() {
            self.push(span);
        }
    }

    /// Does not wait, since it may be called on a thread of the runtime; [`Telemetry::shutdown`](crate::Telemetry::shutdown)
    /// does.
    fn force_flush(&self) -> OTelSdkResult {
        let (done, _) = oneshot::channel();
        let _ = self.0.flush.send(done);
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        self.force_flush()
    }

    fn set_resource(&mut self, _: &Resource) {}
}

impl fmt::Debug for SpanQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpanQueue")
            .field("waiting", &self.waiting())
            .field("sent", &self.sent())
            .field("dropped", &self.dropped())
            .finish()
    }
}

/// The task that exports.
struct Export<E> {
    exporter: E,
    policy: SpanQueuePolicy,
    spans: mpsc::Receiver<SpanData>,
    flushes: mpsc::UnboundedReceiver<oneshot::Sender<()>>,
    counts: Arc<Counts>,
    /// When it was logged that spans were dropped, and how many had been by then.
    reported: Option<(Instant, u64)>,
}

impl<E: SpanExporter> Export<E> {
    async fn run(mut self) {
        loop {
            let mut batch = Vec::with_capacity(self.policy.batch);
            let asked = tokio::select! {
                // In this order, so that what is flushed is what came before.
                biased;
                asked = self.flushes.recv() => asked,
                first = self.spans.recv() => match first {
                    None => break,
                    Some(first) => {
                        batch.push(first);
                        self.collect(&mut batch).await
                    }
                },
            };
            match asked {
                None if batch.is_empty() => break,
                None => self.send(batch).await,
                Some(done) => {
                    self.drain(batch).await;
                    // Nobody may be waiting for it.
                    let _ = done.send(());
                }
            }
        }
        self.drain(Vec::new()).await;
        let _ = self.exporter.shutdown_with_timeout(self.policy.timeout);
    }

    /// Waits until `batch` is full, or has waited long enough; or until somebody asks for a flush.
    async fn collect(&mut self, batch: &mut Vec<SpanData>) -> Option<oneshot::Sender<()>> {
        let until = Instant::now() + self.policy.delay;
        while batch.len() < self.policy.batch {
            tokio::select! {
                biased;
                asked = self.flushes.recv() => return asked,
                next = timeout_at(until, self.spans.recv()) => match next {
                    Ok(Some(span)) => batch.push(span),
                    Ok(None) | Err(_) => break,
                },
            }
        }
        None
    }

    /// Sends `batch`, and all that waits.
    async fn drain(&mut self, mut batch: Vec<SpanData>) {
        loop {
            while batch.len() < self.policy.batch
                && let Ok(span) = self.spans.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() {
                return;
            }
            self.send(std::mem::take(&mut batch)).await;
        }
    }

    async fn send(&mut self, batch: Vec<SpanData>) {
        let count = batch.len() as u64;
        // What the transport does is no trace of anybody's call.
        let quiet = Context::current().with_telemetry_suppressed();
        let exported =
            timeout(self.policy.timeout, self.exporter.export(batch)).with_context(quiet);
        let problem = match exported.await {
            Ok(Ok(())) => {
                self.counts.sent.fetch_add(count, Relaxed);
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {:?}", self.policy.timeout)),
        };
        if problem.is_some() {
            self.counts.lost.fetch_add(count, Relaxed);
        }
        self.report(problem.as_deref());
    }

    /// Logs that spans were dropped since it was logged last.
    fn report(&mut self, problem: Option<&str>) {
        let dropped = self.counts.dropped();
        let before = self.reported.map_or(0, |(_, before)| before);
        let is_early = self.reported.is_some_and(|(at, _)| at.elapsed() < REPORTED);
        if dropped == before || is_early {
            return;
        }
        self.reported = Some((Instant::now(), dropped));
        tracing::warn!(
            name: "steadfast::otel::dropped",
            target: "steadfast::otel",
            spans = dropped - before,
            error = problem,
            "spans were dropped: the collector did not take them in time",
        );
    }
}
