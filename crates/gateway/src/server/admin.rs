//! For operators: alive, ready, counting, and who is resting.

use axum::{
    body::Body,
    extract::{Extension, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use std::sync::atomic::Ordering;

use super::{App, Peer, reply};

/// `GET /healthz`: the process answers.
pub(super) async fn health() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: it takes requests, and at least one target is not resting.
pub(super) async fn ready(State(app): State<App>) -> Response {
    if app.0.draining.load(Ordering::Relaxed) {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response()
    } else if !app.gateway().any_target_available() {
        (StatusCode::SERVICE_UNAVAILABLE, "every target is resting\n").into_response()
    } else {
        "ready\n".into_response()
    }
}

/// `GET /metrics`: Prometheus' text format.
pub(super) async fn metrics(State(app): State<App>) -> Response {
    let text = app.metrics().render() + &app.gateway().gauges();
    reply::ok("application/openmetrics-text; version=1.0.0; charset=utf-8", Body::from(text))
}

/// `GET /admin/status`: who is resting, why and until when, and each breaker's state.
pub(super) async fn status(
    State(app): State<App>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
) -> Response {
    let loopback =
        peer.is_some_and(|Extension(peer)| peer.remote.ip().to_canonical().is_loopback());
    if !app.0.keys.is_admin(&headers, loopback) {
        return (StatusCode::UNAUTHORIZED, "the admin key is missing or unknown\n").into_response();
    }
    reply::ok("application/json", Body::from(app.gateway().status().to_string()))
}
