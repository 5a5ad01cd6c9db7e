//! What a provider keeps of responses.

use http::{Method, Request, Response};
use steadfast_core::{BoxError, Dialect, Failure, Target};
use tower_service::Service;

use crate::{ClientBody, LlmClient, models::bare_request, platform::Operation};

impl<S> LlmClient<S> {
    /// Asks `target` by `method` for what it keeps under `path` below `/responses/`, such as `resp_1/cancel`: its
    /// answer, whatever its status is.
    ///
    /// One attempt without a time limit; dropping the future ends it. It is no call of a model: no layer hears of it.
    ///
    /// # Errors
    ///
    /// When there is no such provider, or it can not be reached.
    pub async fn stored<B>(
        &self,
        target: &Target,
        method: Method,
        path: &str,
    ) -> Result<Response<B>, Failure>
    where
        S: Service<Request<ClientBody>, Response = Response<B>> + Clone,
        S::Error: Into<BoxError>,
    {
        let (endpoint, key) = self.providers().route(Some(target), Some(Dialect::Responses))?;
        let path = format!("/responses/{path}");
        let request = bare_request(endpoint, key, Operation::Stored, method, &path)?;
        self.ask(target, request).await
    }
}
