//! The same judgement for a raw HTTP service: hyper's client, an axum router, anybody's.
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
//! let service = ServiceBuilder::new().layer(ClassifyLayer::http()).service(upstream);
//! let failure = service.oneshot(Request::default()).await.unwrap_err();
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
/// [`ClassifyLayer::http`](crate::ClassifyLayer::http).
///
/// * An answer that is no 2xx becomes a [`Failure`](steadfast_core::Failure) with its first
///   64 KiB kept as evidence. Up to 64 KiB more are read and dropped so that the connection can be
///   used again; longer bodies cost the connection.
/// * A 2xx of JSON is inspected before it is handed out, up to 64 KiB of it, so that an error
///   object in it can be retried. A 2xx that is a web page is a failure.
/// * A 2xx event stream, or one of JSON lines, is handed on as it comes; after an error event, an
///   error between the events, or an end without the dialect's terminal event, the body ends with
///   the failure.
/// * Transport errors of the call and of the body are judged by their types.
/// * 101 and 304 are handed on; other redirects are failures, because no LLM API redirects a call.
///
/// Bodies with a `content-encoding` are judged by status and headers alone: put the layer outside
/// one that decodes them.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct HttpClassifyLayer {
    classifier: Classifier,
}

impl HttpClassifyLayer {
    /// Judges by `classifier`.
    pub fn new(classifier: Classifier) -> Self {
        Self { classifier }
    }

    /// Asks `own` before the built-in rules; it may have no opinion. See [`ClassifyOverride`].
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
