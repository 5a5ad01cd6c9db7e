//! Which models can be asked for.

use axum::{body::Body, extract::State, http::HeaderMap, response::Response};
use serde_json::json;
use steadfast_core::{Dialect, Failure, Reason};

use super::{App, reply};

/// `GET /v1/models`, in OpenAI's shape, or in Anthropic's for a caller that sends its version
/// header.
pub(super) async fn list(State(app): State<App>, headers: HeaderMap) -> Response {
    let anthropic = headers.contains_key("anthropic-version");
    let dialect = if anthropic { Dialect::Anthropic } else { Dialect::OpenAi };
    if let Some(refusal) = refusal(&app, &headers, dialect) {
        return refusal;
    }
    let models = app.gateway().models();
    let body = if anthropic {
        let data: Vec<_> = models
            .iter()
            .map(|model| {
                json!({
                    "type": "model",
                    "id": model,
                    "display_name": model,
                    "created_at": "1970-01-01T00:00:00Z",
                })
            })
            .collect();
        json!({
            "data": data,
            "has_more": false,
            "first_id": models.first(),
            "last_id": models.last(),
        })
    } else {
        let data: Vec<_> = models
            .iter()
            .map(|model| json!({"id": model, "object": "model", "created": 0, "owned_by": "steadfast"}))
            .collect();
        json!({"object": "list", "data": data})
    };
    reply::ok("application/json", Body::from(body.to_string()))
}

/// `GET /v1beta/models`, in Gemini's shape.
pub(super) async fn list_gemini(State(app): State<App>, headers: HeaderMap) -> Response {
    if let Some(refusal) = refusal(&app, &headers, Dialect::Gemini) {
        return refusal;
    }
    let models: Vec<_> = app
        .gateway()
        .models()
        .iter()
        .map(|model| {
            json!({
                "name": format!("models/{model}"),
                "displayName": model,
                "supportedGenerationMethods": ["generateContent", "streamGenerateContent"],
            })
        })
        .collect();
    reply::ok("application/json", Body::from(json!({"models": models}).to_string()))
}

/// What a caller without a key is told.
fn refusal(app: &App, headers: &HeaderMap, dialect: Dialect) -> Option<Response> {
    if app.0.keys.caller(headers, None).is_some() {
        return None;
    }
    let failure = Failure::refused(Reason::Auth, "the gateway key is missing or unknown")
        .with_status(http::StatusCode::UNAUTHORIZED);
    Some(reply::refused(dialect, &failure, &reply::request_id(headers)))
}
