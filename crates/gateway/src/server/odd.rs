//! Requests beside those for models, which clients make to see whether somebody is there.

use axum::{
    body::Body,
    extract::{Request, State},
    response::Response,
};
use http::{HeaderValue, StatusCode, header};
use steadfast_core::{Dialect, Failure, Reason};

use super::{App, refuse, reply, wrong_method};

/// `GET` and `HEAD` of `/` and `/api/hello`: Claude Code asks for both before it does anything else.
pub(super) async fn hello() -> Response {
    reply::ok("application/json", Body::from(r#"{"name":"steadfast"}"#))
}

/// `GET` of `/v1/responses`: Codex asks for a WebSocket there first, and goes on without one after a 426.
pub(super) async fn responses(State(app): State<App>, request: Request) -> Response {
    let wants = request.headers().get(header::UPGRADE);
    if !wants.is_some_and(|wants| wants.as_bytes().eq_ignore_ascii_case(b"websocket")) {
        return wrong_method(State(app), request).await;
    }
    let message = "there is no WebSocket here; send a request for each answer";
    let failure =
        Failure::refused(Reason::Unsupported, message).with_status(StatusCode::UPGRADE_REQUIRED);
    let mut response = refuse(&app, Dialect::Responses, &failure, request).await;
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("HTTP/1.1"));
    response
}
