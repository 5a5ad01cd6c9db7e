//! For operators: alive, ready, counting, and who is resting.

use axum::{
    body::Body,
    extract::{Extension, State},
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use std::sync::atomic::Ordering;

use steadfast::guard::TaskId;

use super::{App, Peer, chat::query, reply};
use crate::escape;

/// `GET /healthz`: the process answers.
pub(super) async fn health() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: it takes requests, and at least one target may be asked. An outage of all providers does
/// not make it unready: without it their callers would be no better off.
pub(super) async fn ready(State(app): State<App>) -> Response {
    if app.0.draining.load(Ordering::Relaxed) {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response()
    } else if !app.gateway().any_target_available() {
        (StatusCode::SERVICE_UNAVAILABLE, "every target refuses our keys\n").into_response()
    } else {
        "ready\n".into_response()
    }
}

/// `GET /metrics`: Prometheus' text format.
pub(super) async fn metrics(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Response {
    let text = app.metrics().render() + &app.gateway().gauges();
    let text = app.outgoing(&headers, &uri).mask.text(text);
    reply::ok("application/openmetrics-text; version=1.0.0; charset=utf-8", Body::from(text))
}

/// `GET /admin/status`: who is resting, why and until when, and each breaker's state.
pub(super) async fn status(
    State(app): State<App>,
    peer: Option<Extension<Peer>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    if let Err(refused) = admin(&app, peer, &headers) {
        return refused;
    }
    let mut status = app.gateway().status();
    status["attempts"] = app.metrics().attempts().into();
    status["reload"] = app.0.reloads.lock().json();
    let text = status.to_string();
    let text = app.outgoing(&headers, &uri).mask.text(escape::json(&text).into_owned());
    reply::ok("application/json", Body::from(text))
}

/// `POST /admin/reload`: the file is read again; 400 with what is wrong with it, when something is.
pub(super) async fn reload(
    State(app): State<App>,
    peer: Option<Extension<Peer>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    if let Err(refused) = admin(&app, peer, &headers) {
        return refused;
    }
    let mask = app.outgoing(&headers, &uri).mask;
    // It reads files.
    match tokio::task::spawn_blocking(move || app.reload()).await {
        Ok(Ok(done)) => mask.text(done.to_string()).into_response(),
        Ok(Err(errors)) => {
            (StatusCode::BAD_REQUEST, mask.text(format!("{errors}\n"))).into_response()
        }
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the reload broke off\n").into_response(),
    }
}

/// `POST /admin/guard/extend?task=NAME&tenant=NAME`: the task gets its limits anew, and a stop is lifted.
pub(super) async fn extend(
    State(app): State<App>,
    peer: Option<Extension<Peer>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    if let Err(refused) = admin(&app, peer, &headers) {
        return refused;
    }
    let Some(task) = query(&uri, "task").filter(|task| !task.is_empty()) else {
        return (
            StatusCode::BAD_REQUEST,
            "which task? ask for ?task=NAME, and &tenant=NAME where there are any\n",
        )
            .into_response();
    };
    let tenant = query(&uri, "tenant");
    let task = TaskId { tenant: tenant.as_deref(), name: &task };
    if app.gateway().handles().guard.extend(task) {
        "extended\n".into_response()
    } else {
        (StatusCode::NOT_FOUND, "no such task is known\n").into_response()
    }
}

/// `POST /admin/compaction/forget?model=NAME`: the window that a provider has stated for the model is
/// forgotten before its hour is over.
pub(super) async fn forget(
    State(app): State<App>,
    peer: Option<Extension<Peer>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    if let Err(refused) = admin(&app, peer, &headers) {
        return refused;
    }
    let Some(model) = query(&uri, "model").filter(|model| !model.is_empty()) else {
        return (StatusCode::BAD_REQUEST, "which model? ask for ?model=NAME\n").into_response();
    };
    if app.gateway().handles().compaction.forget_learned(&model) {
        "forgotten\n".into_response()
    } else {
        (StatusCode::NOT_FOUND, "no window has been learned for this model\n").into_response()
    }
}

/// Whether the caller is an operator.
#[expect(clippy::result_large_err, reason = "it is the answer")]
fn admin(app: &App, peer: Option<Extension<Peer>>, headers: &HeaderMap) -> Result<(), Response> {
    let loopback =
        peer.is_some_and(|Extension(peer)| peer.remote.ip().to_canonical().is_loopback());
    if app.setup().keys.is_admin(headers, loopback) {
        return Ok(());
    }
    Err((StatusCode::UNAUTHORIZED, "the admin key is missing or unknown\n").into_response())
}
