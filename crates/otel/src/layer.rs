//! The layer: a span for each call, made of what the layers inside it report.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use steadfast_core::{
    AtOnce, Call, Failure, Identity, IntoFailure, Lease, LeaseEnd, Leased, Observer, Outcome,
    Permit, PermitKind, RecoveryLog, Track, UntilEnd, inner_service,
};
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use crate::{CallOutcome, CallReport, CallSpan, Operation, Telemetry};

/// Traces each call, and counts it. See the [crate's documentation](crate).
#[derive(Clone)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct OtelLayer<T = UntilEnd> {
    telemetry: Option<Telemetry>,
    operation: Operation,
    track: T,
}

impl OtelLayer {
    /// For replies that are over with their body or stream.
    pub fn new(telemetry: Telemetry) -> Self {
        Self { telemetry: Some(telemetry), ..Self::off() }
    }

    /// Traces nothing: a call passes through, without an allocation.
    pub const fn off() -> Self {
        Self { telemetry: None, operation: Operation::Chat, track: UntilEnd }
    }
}

impl<T> OtelLayer<T> {
    /// For calls that ask for this.
    pub fn with_operation(mut self, operation: Operation) -> Self {
        self.operation = operation;
        self
    }

    /// For replies that are over when they arrive, such as plain values.
    pub fn at_once(self) -> OtelLayer<AtOnce> {
        let Self { telemetry, operation, .. } = self;
        OtelLayer { telemetry, operation, track: AtOnce }
    }

    /// What is sent by it; `None` where it is off.
    pub fn telemetry(&self) -> Option<&Telemetry> {
        self.telemetry.as_ref()
    }
}

impl<S, T: Clone> Layer<S> for OtelLayer<T> {
    type Service = Otel<S, T>;

    fn layer(&self, inner: S) -> Otel<S, T> {
        Otel { inner, layer: self.clone() }
    }
}

impl<T: fmt::Debug> fmt::Debug for OtelLayer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtelLayer")
            .field("telemetry", &self.telemetry)
            .field("operation", &self.operation)
            .field("track", &self.track)
            .finish()
    }
}

/// A service whose calls are traced; made by [`OtelLayer`].
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct Otel<S, T = UntilEnd> {
    inner: S,
    layer: OtelLayer<T>,
}

inner_service!(Otel<S, T>);

impl<S, Req, T> Service<Req> for Otel<S, T>
where
    S: Service<Req>,
    S::Error: IntoFailure,
    Req: Call,
    T: Track<S::Response> + Clone,
{
    type Response = T::Tracked;
    type Error = Failure;
    type Future = Leased<S::Future, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, mut request: Req) -> Self::Future {
        let lease = match &self.layer.telemetry {
            None => Lease::idle().with_log(request.context().log.clone()),
            Some(telemetry) => begin(telemetry, self.layer.operation, &mut request),
        };
        Leased::new(self.inner.call(request), lease, self.layer.track.clone())
    }
}

impl<S: fmt::Debug, T: fmt::Debug> fmt::Debug for Otel<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Otel").field("inner", &self.inner).field("layer", &self.layer).finish()
    }
}

/// Begins the span of `request`, which has it and a log from now on.
fn begin<Req: Call>(telemetry: &Telemetry, operation: Operation, request: &mut Req) -> Lease {
    let caller = request.context().trace.clone();
    let span = telemetry.begin_here(operation, request.model(), caller.as_deref());
    let model = request.model().unwrap_or_default().into();
    let stream = request.is_whole() == Some(false);
    let context = request.context_mut();
    let callers = context.log.clone();
    if !callers.is_enabled() {
        context.log = RecoveryLog::enabled();
    }
    context.trace = span.trace().cloned();
    let log = context.log.clone();
    let before = (log.attempt_records().len(), log.steps().len(), log.dropped());
    let identity = context.identity().cloned();
    let started = Instant::now();
    let span = Mutex::new(Some(span));
    let call = Traced { span, operation, model, stream, identity, started, log, before };
    // A reply has the log that its caller has asked for.
    Lease::new(Arc::new(call), Permit::new(PermitKind::Ordinary, 1), callers)
}

/// A call that is under way.
struct Traced {
    /// `None` once it is over.
    span: Mutex<Option<CallSpan>>,
    operation: Operation,
    model: Box<str>,
    stream: bool,
    identity: Option<Identity>,
    started: Instant,
    log: RecoveryLog,
    /// How many attempts, steps and dropped steps its log had before: of another call, which shares it.
    before: (usize, usize, usize),
}

impl Observer for Traced {
    fn ended(&self, end: LeaseEnd<'_>) {
        let Some(span) = self.span.lock().take() else { return };
        let (attempts, steps) = (self.log.attempt_records(), self.log.steps());
        let evidence = match &end.outcome {
            Outcome::Failure(failure) => Some(failure.evidence()).filter(|text| !text.is_empty()),
            _ => None,
        };
        let outcome = match end.outcome {
            Outcome::Success => CallOutcome::Answered,
            Outcome::Failure(failure) => CallOutcome::Failed { reason: failure.reason(), evidence },
            _ => CallOutcome::Cancelled,
        };
        let (own, done, dropped) = self.before;
        let own = attempts.get(own..).unwrap_or_default();
        let done = steps.get(done..).unwrap_or_default();
        let mut report = CallReport::new(self.started, own, done, outcome);
        report.log_started = self.log.started().unwrap_or(self.started);
        report.steps_dropped = self.log.dropped().saturating_sub(dropped);
        (report.operation, report.model, report.stream) =
            (self.operation, &self.model, self.stream);
        if let Some(identity) = &self.identity {
            report.tenant = identity.tenant.as_deref();
            report.key = identity.key.as_deref();
            report.agent = identity.agent.as_deref();
            report.task = identity.task.as_deref();
            report.conversation = identity.session.as_deref();
        }
        span.end(&report);
    }
}
