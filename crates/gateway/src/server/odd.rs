//! Requests beside those for models, which clients make to see whether somebody is there.

use axum::{body::Body, response::Response};

use super::reply;

/// `GET` and `HEAD` of `/` and `/api/hello`: Claude Code asks for both before it does anything else.
pub(super) async fn hello() -> Response {
    reply::ok("application/json", Body::from(r#"{"name":"steadfast"}"#))
}
