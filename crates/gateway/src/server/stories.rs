//! What became of requests, for operators.

use axum::{
    extract::{Path, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::{
    App,
    admin::{admin, shown_to},
    chat::query,
};
use crate::stories::StoryQuery;

/// `GET /admin/requests`: those under way, then those that are over, newest first.
pub(super) async fn list(State(app): State<App>, asked: Parts) -> Response {
    if let Err(refused) = admin(&app, &asked) {
        return refused;
    }
    let query = match StoryQuery::of(&asked.uri) {
        Ok(query) => query,
        Err(why) => return (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response(),
    };
    let stories = app.stories().find(&query);
    let shown: Vec<_> = stories.iter().map(|story| story.summary()).collect();
    let (running, remembered, bytes) = app.stories().sizes();
    let lately = app.stories().lately();
    let all = json!({
        "running": running,
        "remembered": remembered,
        "bytes": bytes,
        "last_5_min": lately,
        "requests": shown,
    });
    shown_to(&app, &asked, &all)
}

/// `GET /admin/requests/{id}`: all that is known of one request, by the id that its answer had in
/// `x-steadfast-request-id`.
pub(super) async fn one(State(app): State<App>, Path(id): Path<String>, asked: Parts) -> Response {
    if let Err(refused) = admin(&app, &asked) {
        return refused;
    }
    let Some(story) = app.stories().get(&id) else {
        let why = "no request with this id is under way, or remembered: /admin/requests lists those that are\n";
        return (StatusCode::NOT_FOUND, why).into_response();
    };
    shown_to(&app, &asked, &story.whole())
}

/// `GET /admin/timeline?span=15m`: how it went, in intervals.
pub(super) async fn timeline(State(app): State<App>, asked: Parts) -> Response {
    if let Err(refused) = admin(&app, &asked) {
        return refused;
    }
    let span = query(&asked.uri, "span");
    match app.stories().timeline(span.as_deref().unwrap_or("15m")) {
        Ok(timeline) => shown_to(&app, &asked, &timeline),
        Err(why) => (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response(),
    }
}
