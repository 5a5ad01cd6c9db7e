//! `Failure` as an axum response.

use axum_core::response::{IntoResponse, Response};
use http::{HeaderValue, header};

use crate::Failure;

impl IntoResponse for Failure {
    /// The status of [`Failure::http_status`], `retry-after` when there is a hint, and a small
    /// JSON body with the [reported reason](Failure::outward_reason) and its text for the end user,
    /// without any part of the provider's error.
    fn into_response(self) -> Response {
        let reason = self.outward_reason();
        let body = serde_json::json!({
            "error": { "type": reason.as_str(), "message": reason.user_message() }
        });
        let mut response = (
            self.http_status(),
            [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))],
            body.to_string(),
        )
            .into_response();
        if let Some(wait) = self.retry_after() {
            // Whole seconds, rounded up: an early retry would be refused again.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Attempt, Reason};

    #[test]
    fn has_retry_after_and_nothing_of_the_provider() {
        let failure = Failure::new(Reason::RateLimit, "org-123 is over its limit")
            .with_retry_after(Some(Duration::from_millis(1_500)));
        let response = failure.into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
    }

    #[tokio::test]
    async fn status_and_body_agree() {
        let limited = Attempt::from_failure(&Failure::new(Reason::RateLimit, "too many"));
        let exhausted = Failure::refused(Reason::Exhausted, "nobody is left");
        let response = exhausted.with_trail(vec![limited.clone(), limited]).into_response();
        assert_eq!(response.status(), 429);
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body.to_bytes()).unwrap();
        assert_eq!(body["error"]["type"], "rate_limit");
    }
}
