//! Steps, as they happen.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

use crate::{Call, RecoveryLog, Step, inner_service};

/// Is given each step. Does not panic.
pub(crate) type StepObserver = dyn Fn(&Step) + Send + Sync;

/// Gives each step that the layers inside it record to a closure, as it happens: for logs, metrics and
/// dashboards of your own.
///
/// The closure is given the steps of every call, also of those whose [`RecoveryLog`] is disabled, and also
/// those that are recorded after the head of an answer: a stream that broke, a resume. A step has
/// the layer, what it did, the target, the reason, the wait, how often a provider had been asked by then, who
/// called, and the model that was asked for.
///
/// It runs on the task that makes the call, so it must not block. The steps of one call come in order; those
/// of calls that run at the same time are mixed. If it panics, that step is lost, and the call goes on.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use steadfast_core::{Call, CallContext, Failure, OnStepLayer, Step};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Failure> {
/// let seen = Arc::new(Mutex::new(Vec::new()));
/// let steps = seen.clone();
/// let service = ServiceBuilder::new()
///     .layer(OnStepLayer::new(move |step: &Step| steps.lock().unwrap().push(step.to_string())))
///     // In place of layers, which record what they do.
///     .service(service_fn(async |request: http::Request<()>| {
///         request.context().log.record(|| Step::new("retry", "retried"));
///         Ok::<_, Failure>("done")
///     }));
///
/// service.oneshot(http::Request::new(())).await?;
/// assert_eq!(*seen.lock().unwrap(), ["retry.retried"]);
/// # Ok(())
/// # }
/// ```
///
/// # Where to put this layer
///
/// Outermost.
///
/// **Wrong:** inside another layer, such as retry. The steps of that layer are not seen, and `attempts`
/// begins again with each of its attempts unless the caller keeps a log.
#[derive(Clone, Default)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct OnStepLayer {
    observer: Option<Arc<StepObserver>>,
}

impl OnStepLayer {
    /// Gives each step to `on_step`.
    pub fn new(on_step: impl Fn(&Step) + Send + Sync + 'static) -> Self {
        Self::none().and(on_step)
    }

    /// Gives the steps to nobody: a call passes through, without an allocation.
    pub const fn none() -> Self {
        Self { observer: None }
    }

    /// Gives each step to `on_step`, too.
    pub fn and(self, on_step: impl Fn(&Step) + Send + Sync + 'static) -> Self {
        let before = self.observer;
        let observer = move |step: &Step| {
            if let Some(before) = &before {
                before(step);
            }
            // The message of the panic is the panic hook's matter.
            let _ = catch_unwind(AssertUnwindSafe(|| on_step(step)));
        };
        Self { observer: Some(Arc::new(observer)) }
    }

    /// Gives the steps of `request` to its closures from now on: for a service of your own that does more with
    /// a call than to observe its steps.
    pub fn observe<Req: Call>(&self, request: &mut Req) {
        if let Some(observer) = &self.observer {
            let log = RecoveryLog::observed(request, observer.clone());
            request.context_mut().log = log;
        }
    }
}

impl<S> Layer<S> for OnStepLayer {
    type Service = OnStep<S>;

    fn layer(&self, inner: S) -> OnStep<S> {
        OnStep { inner, layer: self.clone() }
    }
}

impl fmt::Debug for OnStepLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnStepLayer").field("observed", &self.observer.is_some()).finish()
    }
}

/// Gives the steps of its calls to a closure; see [`OnStepLayer`].
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct OnStep<S> {
    inner: S,
    layer: OnStepLayer,
}

inner_service!(OnStep<S>);

impl<S, Req> Service<Req> for OnStep<S>
where
    S: Service<Req>,
    Req: Call,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, mut request: Req) -> S::Future {
        self.layer.observe(&mut request);
        self.inner.call(request)
    }
}

impl<S: fmt::Debug> fmt::Debug for OnStep<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnStep").field("inner", &self.inner).field("layer", &self.layer).finish()
    }
}
