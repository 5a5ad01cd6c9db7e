//! What providers keep of responses.

use std::{fmt, pin::Pin, time::Duration};

use axum::body::Body;
use bytes::Buf;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use steadfast::{
    Failure, Target,
    client::{ClientBody, LlmClient},
};
use steadfast_core::{BoxError, Reason};
use tokio::time::timeout;
use tower::Service;

/// How long a provider may take to begin its answer: 30 s, as its own SDK waits for nothing that it has to make.
const PATIENCE: Duration = Duration::from_secs(30);

type StoredFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Failure>> + Send>>;

/// Asks a provider for what it keeps.
pub(crate) struct StoredClient(Box<dyn Fn(Target, Method, String) -> StoredFuture + Send + Sync>);

impl StoredClient {
    pub(super) fn new<T, B>(client: LlmClient<T>) -> Self
    where
        T: Service<Request<ClientBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
        T::Future: Send,
        T::Error: Into<BoxError>,
        B: http_body::Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Box::new(move |target, method, path| {
            let client = client.clone();
            Box::pin(async move {
                let response = client.stored(&target, method, &path).await?;
                Ok(response.map(|body| {
                    Body::new(body.map_frame(|frame| {
                        frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))
                    }))
                }))
            })
        }))
    }

    /// The answer of `target` for `path` below `/responses/`.
    ///
    /// # Errors
    ///
    /// When it can not be reached, or has not begun within 30 s.
    pub(crate) async fn ask(
        &self,
        target: Target,
        method: Method,
        path: String,
    ) -> Result<Response<Body>, Failure> {
        match timeout(PATIENCE, (self.0)(target.clone(), method, path)).await {
            Ok(answer) => answer.map_err(|failure| failure.with_target(target)),
            Err(_) => {
                let message = format!("`{}` did not answer within {PATIENCE:?}", target.provider());
                Err(Failure::new(Reason::Timeout, message).with_target(target))
            }
        }
    }
}

impl fmt::Debug for StoredClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredClient").finish_non_exhaustive()
    }
}
