//! Judgement for an HTTP service: hyper's client, an axum router, anybody's.
//!
//! * [`ClassifyLayer::llm_http`](crate::ClassifyLayer::llm_http) is for a client of an LLM API:
//!   bodies are read as well, those of errors and those that seem fine.
//! * [`ClassifyLayer::http`](crate::ClassifyLayer::http) is for everything else: status, headers and
//!   transport errors decide, and no body does. An LLM's answers it does not know: an error in a 200,
//!   a 429 that is an unpaid bill, a stream that was cut off.
//!
//! ```
//! use http::{Request, Response, StatusCode};
//! use http_body_util::Full;
//! use steadfast_classify::ClassifyLayer;
//! use steadfast_core::Reason;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let upstream = service_fn(|_: Request<Full<&[u8]>>| async {
//!     let body: &[u8] = br#"{"type":"error","error":{"type":"overloaded_error"}}"#;
//!     let mut response = Response::new(Full::new(body));
//!     *response.status_mut() = StatusCode::from_u16(529).expect("a status");
//!     Ok::<_, std::convert::Infallible>(response)
//! });
//! let service = ServiceBuilder::new().layer(ClassifyLayer::llm_http()).service(upstream);
//! let failure = service.oneshot(Request::default()).await.unwrap_err();
//! assert_eq!(failure.reason(), Reason::Overloaded);
//! # }
//! ```
//!
//! Any HTTP service, for which a 404 is an answer like others:
//!
//! ```
//! use http::{Request, Response, StatusCode};
//! use steadfast_classify::{ClassifyLayer, Evidence, Opinion};
//! use steadfast_core::Reason;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let upstream = service_fn(|request: Request<String>| async move {
//!     let mut response = Response::new("nobody of that name".to_owned());
//!     *response.status_mut() = match request.uri().path() {
//!         "/busy" => StatusCode::SERVICE_UNAVAILABLE,
//!         _ => StatusCode::NOT_FOUND,
//!     };
//!     Ok::<_, std::convert::Infallible>(response)
//! });
//! let fine = |evidence: &Evidence<'_>| {
//!     (evidence.status == Some(StatusCode::NOT_FOUND)).then_some(Opinion::Fine)
//! };
//! let layer = ClassifyLayer::http().with_override(fine);
//! let service = ServiceBuilder::new().layer(layer).service(upstream);
//!
//! let answer = service.clone().oneshot(Request::default()).await.unwrap();
//! assert_eq!(answer.status(), StatusCode::NOT_FOUND);
//! let busy = Request::get("/busy").body(String::new()).unwrap();
//! let failure = service.oneshot(busy).await.unwrap_err();
//! assert_eq!(failure.reason(), Reason::Overloaded);
//! # }
//! ```

mod body;
mod future;
mod service;
mod sse;

use steadfast_core::RecoveryTable;
use tower_layer::Layer;

pub use self::{body::ClassifiedBody, future::ResponseFuture, service::HttpClassify};
use crate::{Classifier, ClassifyOverride};

/// Judges the answers of an HTTP service; made by
/// [`ClassifyLayer::http`](crate::ClassifyLayer::http) and
/// [`ClassifyLayer::llm_http`](crate::ClassifyLayer::llm_http).
///
/// Both:
///
/// * An answer from 400 on becomes a [`Failure`](steadfast_core::Failure) with its first 64 KiB kept
///   as evidence. Up to 64 KiB more are read so that the connection can be used again; longer bodies
///   cost the connection.
/// * `retry-after` and its relatives are the failure's wait, `x-should-retry` is obeyed.
/// * Transport errors of the call and of the body are judged by their types.
/// * What the user's own rules find [`Fine`](crate::Opinion::Fine) is handed on, whatever its status.
///   They are asked about the first 64 KiB of an error. With such rules a 2xx of JSON or a web page is
///   read ahead as far, and shown to them too.
///
/// For any HTTP service ([`Classifier::http`]):
///
/// * Everything below 400 is handed on, redirects too, and its body is not read.
/// * The reason is the status's: 401 and 403 `auth`, 402 `billing`, 429 `rate_limit`, 408 and 504
///   `timeout`, 503 and 529 `overloaded`, 409 and other 5xx `server_error`, most other 4xx `format`,
///   which is the caller's fault: it is not retried, and does not count against the service.
///
/// For an LLM API ([`Classifier::new`]):
///
/// * What the body of an error says decides before its status.
/// * A 2xx of JSON is inspected before it is handed out, up to 64 KiB of it, so that an error
///   object in it can be retried. A 2xx that is a web page is a failure.
/// * A 2xx event stream, or one of JSON lines, is handed on as it comes; after an error event, an
///   error between the events, or an end without the dialect's terminal event, the body ends with
///   the failure.
/// * 101 and 304 are handed on; other redirects are failures, because no LLM API redirects a call.
/// * Bodies with a `content-encoding` are judged by status and headers alone: put the layer outside
///   one that decodes them.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct HttpClassifyLayer {
    classifier: Classifier,
}

impl HttpClassifyLayer {
    /// Judges by `classifier`, which is for LLM APIs or for any HTTP service.
    pub fn new(classifier: Classifier) -> Self {
        Self { classifier }
    }

    /// Asks `own` before the built-in rules; it may have no opinion, or find an answer fine. See
    /// [`ClassifyOverride`].
    pub fn with_override(mut self, own: impl ClassifyOverride + 'static) -> Self {
        self.classifier = self.classifier.with_override(own);
        self
    }

    /// Reads reasons through `table`.
    pub fn with_table(mut self, table: RecoveryTable) -> Self {
        self.classifier = self.classifier.with_table(table);
        self
    }
}

impl<S> Layer<S> for HttpClassifyLayer {
    type Service = HttpClassify<S>;

    fn layer(&self, inner: S) -> HttpClassify<S> {
        HttpClassify::new(inner, self.classifier.clone())
    }
}
