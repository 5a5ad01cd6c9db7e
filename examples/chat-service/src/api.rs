//! The three endpoints.

use std::convert::Infallible;

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response, Sse, sse},
    routing::{get, post},
};
use futures_util::{Stream, stream};
use serde_json::json;
use steadfast_supervise::{MailboxError, ThreadKey};
use tokio::sync::broadcast::error::RecvError;

use crate::{Chat, UserMessage, ended};

pub(crate) fn router(chat: Chat) -> Router {
    Router::new()
        .route("/threads/{id}/messages", post(send))
        .route("/threads/{id}/events", get(events))
        .route("/threads/{id}/abort", post(abort))
        .with_state(chat)
}

#[derive(serde::Deserialize)]
struct MessageBody {
    text: String,
}

/// Takes a message; its reply is an event with the same `prompt`. What is sent again with its `Idempotency-Key` gets the same
/// answer, and is in the history once.
async fn send(
    State(chat): State<Chat>,
    Path(thread): Path<String>,
    headers: HeaderMap,
    Json(body): Json<MessageBody>,
) -> Response {
    let key = headers.get("idempotency-key").map(|key| key.to_str().map(str::to_owned));
    let Ok(key) = key.transpose() else {
        return refusal(StatusCode::BAD_REQUEST, "key", "`Idempotency-Key` has to be ASCII text");
    };
    match chat.actors.send(thread.as_str(), UserMessage { text: body.text, key }) {
        Ok(prompt) => (StatusCode::ACCEPTED, Json(json!({"prompt": prompt}))).into_response(),
        Err(error) => {
            let status = match error {
                MailboxError::Full { .. } => StatusCode::TOO_MANY_REQUESTS,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            };
            refusal(status, error.as_str(), &error.to_string())
        }
    }
}

fn refusal(status: StatusCode, kind: &str, message: &str) -> Response {
    (status, Json(json!({"error": {"type": kind, "message": message}}))).into_response()
}

/// What the users of this thread are sent from now on, until the service ends.
async fn events(
    State(chat): State<Chat>,
    Path(thread): Path<String>,
) -> Sse<impl Stream<Item = Result<sse::Event, Infallible>>> {
    let state = (chat.events.subscribe(), Box::pin(ended(&chat)), thread);
    let events = stream::unfold(state, async |(mut events, mut ended, thread)| {
        loop {
            let event = tokio::select! {
                // What was sent before the end is delivered before it.
                biased;
                event = events.recv() => event,
                () = &mut ended => return None,
            };
            let event = match event {
                Ok(event) if event.thread == thread => {
                    sse::Event::default().event(event.name).data(event.data.to_string())
                }
                Ok(_) => continue,
                Err(RecvError::Lagged(_)) => sse::Event::default().event("missed").data("{}"),
                Err(RecvError::Closed) => return None,
            };
            return Some((Ok(event), (events, ended, thread)));
        }
    });
    Sse::new(events).keep_alive(sse::KeepAlive::default())
}

/// Drops the turn that runs. Its user has asked for it and gets no text; what waits runs next.
async fn abort(State(chat): State<Chat>, Path(thread): Path<String>) -> Response {
    let aborted = chat.actors.abort(&ThreadKey::from(thread.as_str()));
    Json(json!({"aborted": aborted})).into_response()
}
