//! A span around each call of a tool.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_chat::{ToolInvocation, ToolResult};
use steadfast_core::{Failure, IntoFailure, inner_service};
use tower_layer::Layer;
use tower_service::Service;
use tracing::{Instrument, Span, field::Empty, instrument::Instrumented};

/// Opens a `tracing` span for each call of a tool, with the fields that OpenTelemetry's conventions have for
/// `execute_tool`. It is in a trace where the application exports its spans, as by `steadfast-otel`; what the tool does
/// itself, such as to ask a model, is beneath it.
///
/// Of the call the span has the tool's name and the call's id, and of the result how it failed: neither arguments nor
/// what came of them.
///
/// # Where to put this layer
///
/// Outermost of the layers around a tool.
///
/// **Wrong:** inside a breaker or a policy. A call that they refuse is in no trace then.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct ToolSpanLayer {
    _private: (),
}

impl ToolSpanLayer {
    /// The layer.
    pub const fn new() -> Self {
        Self { _private: () }
    }
}

impl<S> Layer<S> for ToolSpanLayer {
    type Service = ToolSpans<S>;

    fn layer(&self, inner: S) -> ToolSpans<S> {
        ToolSpans { inner }
    }
}

/// Opens a span for each call of the inner service; see [`ToolSpanLayer`].
#[derive(Clone, Debug)]
#[must_use = "services do nothing unless called"]
pub struct ToolSpans<S> {
    inner: S,
}

inner_service!(ToolSpans<S>);

impl<S, R> Service<R> for ToolSpans<S>
where
    S: Service<R, Response = ToolResult>,
    S::Error: IntoFailure,
    R: ToolInvocation,
{
    type Response = ToolResult;
    type Error = Failure;
    type Future = ToolSpanFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let call = request.call();
        let span = tracing::info_span!(
            target: "steadfast::tool",
            "execute_tool",
            otel.name = %format_args!("execute_tool {}", call.name),
            otel.kind = "internal",
            otel.status_code = Empty,
            gen_ai.operation.name = "execute_tool",
            gen_ai.tool.name = call.name.as_str(),
            gen_ai.tool.call.id = (!call.id.is_empty()).then_some(call.id.as_str()),
            gen_ai.tool.type = "function",
            error.type = Empty,
        );
        let call = span.in_scope(|| self.inner.call(request));
        ToolSpanFuture { call: call.instrument(span) }
    }
}

pin_project! {
    /// Waits for the result. Dropping it drops the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct ToolSpanFuture<F> {
        #[pin]
        call: Instrumented<F>,
    }
}

impl<F, E> Future for ToolSpanFuture<F>
where
    F: Future<Output = Result<ToolResult, E>>,
    E: IntoFailure,
{
    type Output = Result<ToolResult, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut call = self.project().call;
        let result = ready!(call.as_mut().poll(cx)).map_err(Into::into);
        let error = match &result {
            Ok(result) if result.is_error => {
                Some(result.failure_kind().unwrap_or_default().as_str())
            }
            Ok(_) => None,
            Err(failure) => Some(failure.reason().as_str()),
        };
        if let Some(error) = error {
            failed(call.span(), error);
        }
        Poll::Ready(result)
    }
}

fn failed(span: &Span, error: &str) {
    span.record("error.type", error).record("otel.status_code", "ERROR");
}

impl<F> fmt::Debug for ToolSpanFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolSpanFuture").finish_non_exhaustive()
    }
}
