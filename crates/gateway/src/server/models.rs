//! Which models can be asked for.

use axum::{
    body::Body,
    extract::{Path, State},
    http::request::Parts,
    response::Response,
};
use serde_json::{Value, json};
use steadfast_core::{Dialect, Failure, Reason};

use super::{App, chat, reply};

/// `GET /v1/models` and `GET /v1beta/models`, in the shape of the caller's dialect: Anthropic's for
/// a caller that sends its version header, Gemini's for one with its key header or address.
pub(super) async fn list(State(app): State<App>, asked: Parts) -> Response {
    let dialect = reply::guess_dialect(&asked.headers, &asked.uri);
    if let Err(failure) = chat::caller(&app.setup(), &asked) {
        return refused(&app, dialect, &failure, &asked);
    }
    let gateway = app.gateway();
    let names = gateway.models();
    let models: Vec<_> = names.iter().map(|name| describe(dialect, name)).collect();
    let body = match dialect {
        Dialect::Anthropic => json!({
            "data": models,
            "has_more": false,
            "first_id": names.first(),
            "last_id": names.last(),
        }),
        Dialect::Gemini => json!({ "models": models }),
        Dialect::OpenAi => json!({ "object": "list", "data": models }),
    };
    reply::ok("application/json", Body::from(body.to_string()))
}

/// `GET /v1/models/{model}` and `GET /v1beta/models/{model}`.
pub(super) async fn one(
    State(app): State<App>,
    Path(name): Path<String>,
    asked: Parts,
) -> Response {
    let dialect = reply::guess_dialect(&asked.headers, &asked.uri);
    if let Err(failure) = chat::caller(&app.setup(), &asked) {
        return refused(&app, dialect, &failure, &asked);
    }
    if !app.gateway().models().contains(&name) {
        let failure = Failure::refused(
            Reason::ModelNotFound,
            format!("this gateway has no model by the name `{name}`; GET /v1/models lists them"),
        );
        return refused(&app, dialect, &failure, &asked);
    }
    reply::ok("application/json", Body::from(describe(dialect, &name).to_string()))
}

fn refused(app: &App, dialect: Dialect, failure: &Failure, asked: &Parts) -> Response {
    reply::refused(dialect, failure, &app.outgoing(&asked.headers, &asked.uri))
}

/// When it was made is not known here; a date of some kind is required.
fn describe(dialect: Dialect, name: &str) -> Value {
    match dialect {
        Dialect::Anthropic => json!({
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": "1970-01-01T00:00:00Z",
        }),
        Dialect::Gemini => json!({
            "name": format!("models/{name}"),
            "displayName": name,
            "supportedGenerationMethods": ["generateContent", "streamGenerateContent"],
        }),
        _ => json!({"id": name, "object": "model", "created": 0, "owned_by": "steadfast"}),
    }
}
