//! Which models can be asked for.

use axum::{
    body::Body,
    extract::{Path, State},
    http::{Uri, request::Parts},
    response::Response,
};
use serde_json::{Value, json};
use steadfast_core::{Dialect, Failure, Reason};

use super::{App, chat, codex, reply};

/// `GET /v1/models` and `GET /v1beta/models`, in the shape of the caller's dialect: Anthropic's for
/// a caller that sends its version header, Gemini's for one with its key header or address, Codex's for one that says
/// its version.
pub(super) async fn list(State(app): State<App>, asked: Parts) -> Response {
    let dialect = reply::guess_dialect(&asked.headers, &asked.uri);
    if let Err(failure) = chat::caller(&app.setup(), &asked) {
        return refused(&app, dialect, &failure, &asked);
    }
    let names = match app.gateway().catalog().names().await {
        Ok(names) => names,
        Err(failure) => return refused(&app, dialect, &failure, &asked),
    };
    let (names, more) = page(dialect, &asked.uri, &names);
    let models: Vec<_> = names.iter().map(|name| describe(dialect, name)).collect();
    let body = match dialect {
        Dialect::Anthropic => json!({
            "data": models,
            "has_more": more,
            "first_id": names.first(),
            "last_id": names.last(),
        }),
        Dialect::Gemini => match names.last().filter(|_| more) {
            Some(last) => json!({ "models": models, "nextPageToken": last }),
            None => json!({ "models": models }),
        },
        Dialect::OpenAi if chat::query(&asked.uri, "client_version").is_some() => {
            codex::list(&app.gateway(), names)
        }
        Dialect::OpenAi | Dialect::Responses => json!({ "object": "list", "data": models }),
    };
    reply::ok("application/json", Body::from(body.to_string()))
}

/// The part of the list that is asked for, and whether more follows. Who asks for no part of it gets all.
fn page<'a>(dialect: Dialect, uri: &Uri, names: &'a [String]) -> (&'a [String], bool) {
    let (most, after) = match dialect {
        Dialect::Anthropic => ("limit", "after_id"),
        Dialect::Gemini => ("pageSize", "pageToken"),
        Dialect::OpenAi | Dialect::Responses => return (names, false),
    };
    let after = chat::query(uri, after);
    let seen = after.map_or(0, |after| names.partition_point(|name| **name <= *after));
    let left = &names[seen..];
    let most = chat::query(uri, most).and_then(|most| most.parse().ok());
    match most.filter(|most: &usize| (1..left.len()).contains(most)) {
        Some(most) => (&left[..most], true),
        None => (left, false),
    }
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
    let gateway = app.gateway();
    let is_there = gateway.alias(&name).is_some()
        || chat::named(&name).is_ok()
            && gateway.catalog().has(&name, gateway.is_public(&name)).await;
    if !is_there {
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
            "lifecycle": "active",
            "created_at": "1970-01-01T00:00:00Z",
        }),
        Dialect::Gemini => json!({
            "name": format!("models/{name}"),
            "displayName": name,
            "supportedGenerationMethods": match name.contains("embed") {
                true => ["embedContent", "batchEmbedContents"],
                false => ["generateContent", "streamGenerateContent"],
            },
        }),
        _ => json!({"id": name, "object": "model", "created": 0, "owned_by": "steadfast"}),
    }
}
