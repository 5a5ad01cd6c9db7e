//! What operators can do about targets and breakers.

use axum::{
    extract::{Path, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use steadfast::Target;

use super::session::TOKEN;
use crate::{
    escape,
    server::{App, admin::admin, chat::query},
};

/// `POST /admin/targets/{action}?target=NAME`: `reset` ends the rest of the target and of its parts, `out` takes it out
/// until `in` puts it back.
pub(in crate::server) async fn target(
    State(app): State<App>,
    Path(action): Path<String>,
    asked: Parts,
) -> Response {
    if let Err(refused) = admin(&app, &asked) {
        return refused;
    }
    let gateway = app.gateway();
    let failover = &gateway.handles().failover;
    let snapshot = failover.snapshot();
    let known = |name: &str| {
        let known = snapshot.targets().iter().map(|health| &health.target);
        known.clone().find(|known| known.as_str() == name).cloned()
    };
    let target = match named(&asked, |name| gateway.configured(name).or_else(|| known(name))) {
        Ok(target) => target,
        Err(refused) => return refused,
    };
    let (changed, done) = match &*action {
        "reset" => {
            let covered = snapshot.targets().iter().filter(|health| target.covers(&health.target));
            // What somebody has taken out stays out.
            let rests = covered.filter(|health| !health.out && health.cooling.is_some());
            let reset = rests.filter(|health| failover.reset(&health.target)).count();
            (reset > 0, "it may be asked")
        }
        "out" => (failover.take_out(&target), "it is out, until it is put back"),
        "in" => (failover.put_back(&target), "it is back"),
        _ => return unknown("reset, out and in"),
    };
    done_with(&app, &asked, (&format!("target.{action}"), target.as_str()), changed, done)
}

/// `POST /admin/breakers/{action}?target=NAME`: `open` lets nobody through but single calls that see whether it is well,
/// `close` everybody, until `reset` has it decide by itself again.
pub(in crate::server) async fn breaker(
    State(app): State<App>,
    Path(action): Path<String>,
    asked: Parts,
) -> Response {
    if let Err(refused) = admin(&app, &asked) {
        return refused;
    }
    let gateway = app.gateway();
    let breaker = &gateway.handles().breaker;
    let find = |name: &str| {
        let known = breaker.snapshot().into_iter().map(|known| known.key);
        known.flatten().find(|key| key.as_str() == name)
    };
    let key = match named(&asked, find) {
        Ok(target) => Some(target),
        Err(refused) => return refused,
    };
    let name = key.as_ref().map_or("", Target::as_str);
    let (changed, done) = match &*action {
        "open" => {
            // What is forced the other way is not forced twice.
            breaker.reset(&key);
            (breaker.force_open(&key), "it is open, until it is reset")
        }
        "close" => {
            breaker.reset(&key);
            (breaker.force_closed(&key), "it is closed, until it is reset")
        }
        "reset" => (breaker.reset(&key), "it decides by itself"),
        _ => return unknown("open, close and reset"),
    };
    done_with(&app, &asked, (&format!("breaker.{action}"), name), changed, done)
}

/// The target that the query names, if it is one.
#[expect(clippy::result_large_err, reason = "it is the answer")]
fn named(asked: &Parts, find: impl Fn(&str) -> Option<Target>) -> Result<Target, Response> {
    let Some(name) = query(&asked.uri, "target").filter(|name| !name.is_empty()) else {
        let why =
            "which target? ask for ?target=NAME, as /admin/status writes it, with %23 for #\n";
        return Err((StatusCode::BAD_REQUEST, why).into_response());
    };
    find(&name).ok_or_else(|| {
        let name = escape::text(&name).into_owned();
        let why = format!("nothing is known of {name}; /admin/status has what is\n");
        (StatusCode::NOT_FOUND, why).into_response()
    })
}

fn unknown(there_are: &str) -> Response {
    (StatusCode::NOT_FOUND, format!("there are {there_are}\n")).into_response()
}

fn done_with(
    app: &App,
    asked: &Parts,
    (action, subject): (&str, &str),
    changed: bool,
    done: &str,
) -> Response {
    operated(asked, action, subject, changed);
    app.0.feed.changed();
    let was = if changed { "" } else { " already" };
    let text = format!("{}: {done}{was}\n", escape::text(subject));
    app.outgoing(&asked.headers, &asked.uri).mask.text(text).into_response()
}

/// Logs what an operator has done.
pub(in crate::server) fn operated(asked: &Parts, action: &str, subject: &str, changed: bool) {
    let by = if asked.headers.contains_key(TOKEN) { "dashboard" } else { "admin" };
    tracing::info!(
        name: "steadfast::gateway::operator",
        target: "steadfast::gateway",
        action, subject = %escape::text(subject), by, changed,
        "an operator has done something"
    );
}
