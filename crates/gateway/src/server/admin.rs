//! For operators: alive, ready, counting, and who is resting.

use axum::{
    body::Body,
    extract::State,
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use std::sync::atomic::Ordering;

use serde_json::Value;
use steadfast::guard::TaskId;

use super::{
    App,
    chat::query,
    dashboard::{self, operated},
    reply,
};
use crate::{escape, metrics};

/// `GET /healthz`: the process answers.
pub(super) async fn health(State(app): State<App>, asked: Parts) -> Response {
    match observer(&app, &asked) {
        Ok(()) => "ok\n".into_response(),
        Err(refused) => refused,
    }
}

/// `GET /readyz`: it takes requests, and at least one target may be asked. An outage of all providers does
/// not make it unready: without it their callers would be no better off.
pub(super) async fn ready(State(app): State<App>, asked: Parts) -> Response {
    if let Err(refused) = observer(&app, &asked) {
        refused
    } else if app.0.draining.load(Ordering::Relaxed) {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response()
    } else if !app.gateway().any_target_available() {
        (StatusCode::SERVICE_UNAVAILABLE, "every target refuses our keys\n").into_response()
    } else {
        "ready\n".into_response()
    }
}

/// `GET /metrics`: OpenMetrics' text, or Prometheus' messages for whoever prefers those, which have native histograms. What
/// tenants have spent is for operators.
pub(super) async fn metrics(State(app): State<App>, asked: Parts) -> Response {
    if let Err(refused) = observer(&app, &asked) {
        return refused;
    }
    let with_accounts = admin(&app, &asked).is_ok();
    let own = app.gateway().gauges(with_accounts);
    let text = app.metrics().render()
        + &app.traces().counters()
        + &app.admission().gauges()
        + &app.fleet().gauges()
        + &own;
    let text = app.outgoing(&asked.headers, &asked.uri).mask.text(text);
    if metrics::is_preferred(&asked.headers) {
        let messages = metrics::encode(&text, &app.metrics().natives());
        return reply::ok(metrics::CONTENT_TYPE, Body::from(messages));
    }
    reply::ok("application/openmetrics-text; version=1.0.0; charset=utf-8", Body::from(text))
}

/// `GET /admin/status`: who is resting, why and until when, and each breaker's state.
pub(super) async fn status(State(app): State<App>, asked: Parts) -> Response {
    if let Err(refused) = admin(&app, &asked) {
        return refused;
    }
    shown_to(&app, &asked, &dashboard::status(&app))
}

/// `GET /admin/spend`: what each tenant and each key has spent, where there are caps or `spend_limit.record` is set.
pub(super) async fn spend(State(app): State<App>, asked: Parts) -> Response {
    match admin(&app, &asked) {
        Ok(()) => shown_to(&app, &asked, &app.gateway().spend()),
        Err(refused) => refused,
    }
}

/// `GET /admin/fleet`: the gateways that share what they know, the store by which they do, and what each has found.
pub(super) async fn fleet(State(app): State<App>, asked: Parts) -> Response {
    match admin(&app, &asked) {
        Ok(()) => shown_to(&app, &asked, &app.fleet().json(&app.gateway())),
        Err(refused) => refused,
    }
}

/// `POST /admin/reload`: the file is read again; 400 with what is wrong with it, when something is.
pub(super) async fn reload(State(app): State<App>, asked: Parts) -> Response {
    if let Err(refused) = admin(&app, &asked) {
        return refused;
    }
    let mask = app.outgoing(&asked.headers, &asked.uri).mask;
    // It reads files.
    let reloaded = tokio::task::spawn_blocking(move || app.reload()).await;
    operated(&asked, "reload", "", matches!(reloaded, Ok(Ok(_))));
    match reloaded {
        Ok(Ok(done)) => mask.text(done.to_string()).into_response(),
        Ok(Err(errors)) => {
            (StatusCode::BAD_REQUEST, mask.text(format!("{errors}\n"))).into_response()
        }
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the reload broke off\n").into_response(),
    }
}

/// `POST /admin/guard/extend?task=NAME&tenant=NAME`: the task gets its limits anew, and a stop is lifted.
pub(super) async fn extend(State(app): State<App>, asked: Parts) -> Response {
    if let Err(refused) = admin(&app, &asked) {
        return refused;
    }
    let Some(task) = query(&asked.uri, "task").filter(|task| !task.is_empty()) else {
        return (
            StatusCode::BAD_REQUEST,
            "which task? ask for ?task=NAME, and &tenant=NAME where there are any\n",
        )
            .into_response();
    };
    let tenant = query(&asked.uri, "tenant");
    let task = TaskId { tenant: tenant.as_deref(), name: &task };
    let extended = app.gateway().handles().guard.extend(task);
    operated(&asked, "guard.extend", task.name, extended);
    if extended {
        "extended\n".into_response()
    } else {
        (StatusCode::NOT_FOUND, "no such task is known\n").into_response()
    }
}

/// `POST /admin/compaction/forget?model=NAME`: what a provider has stated of the model, its window and the
/// parameters that it refuses, is forgotten before its hour is over.
pub(super) async fn forget(State(app): State<App>, asked: Parts) -> Response {
    if let Err(refused) = admin(&app, &asked) {
        return refused;
    }
    let Some(model) = query(&asked.uri, "model").filter(|model| !model.is_empty()) else {
        return (StatusCode::BAD_REQUEST, "which model? ask for ?model=NAME\n").into_response();
    };
    let forgotten = app.gateway().handles().compaction.forget_learned(&model);
    operated(&asked, "compaction.forget", &model, forgotten);
    if forgotten {
        "forgotten\n".into_response()
    } else {
        (StatusCode::NOT_FOUND, "nothing has been learned of this model\n").into_response()
    }
}

/// Whether the caller may see what needs no key.
#[expect(clippy::result_large_err, reason = "it is the answer")]
fn observer(app: &App, asked: &Parts) -> Result<(), Response> {
    if app.setup().keys.is_observer(asked) {
        return Ok(());
    }
    Err((StatusCode::FORBIDDEN, format!("{}\n", reply::NO_KEY)).into_response())
}

/// Whether the caller is an operator.
#[expect(clippy::result_large_err, reason = "it is the answer")]
pub(super) fn admin(app: &App, asked: &Parts) -> Result<(), Response> {
    if dashboard::is_operator(app, asked) {
        return Ok(());
    }
    Err((StatusCode::UNAUTHORIZED, "the admin key is missing or unknown\n").into_response())
}

/// What an operator asked for, without secrets.
pub(super) fn shown_to(app: &App, asked: &Parts, shown: &Value) -> Response {
    let text = shown.to_string();
    let text = app.outgoing(&asked.headers, &asked.uri).mask.text(escape::json(&text).into_owned());
    reply::ok("application/json", Body::from(text))
}
