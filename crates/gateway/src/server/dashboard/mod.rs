//! The page at `/dashboard`: who may see it, what it is fed with, and what an operator can do there.
//!
//! What it does goes by the same endpoints that a program uses. Nothing is done for it while nobody looks at it.

mod actions;
mod assets;
mod feed;
mod folders;
mod session;
mod snapshot;

use axum::{
    Json, Router,
    body::to_bytes,
    extract::{Request, State},
    middleware::map_response,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{HeaderName, HeaderValue, StatusCode, header, request::Parts};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use self::session::{Session, forgotten, is_safe};
pub(super) use self::{
    actions::operated,
    feed::Feed,
    folders::{DRAIN, ordered, summary},
    session::Sessions,
    snapshot::status,
};
use super::{App, Peer};
use crate::authority::{is_local, is_same_origin};

/// The longest login, in bytes.
const LOGIN_LIMIT: usize = 4 * 1024;

/// What every answer has that a browser may show: nothing is loaded from elsewhere, run that is not in a file of ours, shown in
/// a frame, or kept.
const PRIVATE: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=(), payment=()",
    ),
];

/// The page, and what operators can do beside what `/admin` has had.
pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/dashboard", get(assets::page))
        .route("/dashboard/", get(assets::page))
        .route("/dashboard/app.js", get(assets::script))
        .route("/dashboard/app.css", get(assets::style))
        .route("/dashboard/session", get(show).post(log_in).delete(log_out))
        .route("/dashboard/feed", get(feed::feed))
        .route("/admin/targets/{action}", post(actions::target))
        .route("/admin/breakers/{action}", post(actions::breaker))
        .route("/admin/letters", get(folders::letters))
        .route("/admin/letters/drain", post(folders::drain))
        .route("/admin/sessions", get(folders::sessions))
        .route("/admin/runs", get(folders::runs))
        .layer(map_response(|mut response: Response| async {
            private(&mut response);
            response
        }))
}

/// Adds what a browser has to know of an answer of ours.
fn private(response: &mut Response) {
    let headers = response.headers_mut();
    for (name, value) in PRIVATE {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// Whether `asked` is from an operator: it has the admin key, or the cookie of a session that the key has begun, and
/// then the page's token as well where it changes something; without an admin key it is from a program of this machine,
/// or from a page that this machine has served.
pub(super) fn is_operator(app: &App, asked: &Parts) -> bool {
    let setup = app.setup();
    if setup.keys.is_admin(asked, is_loopback(asked)) {
        return true;
    }
    if !setup.keys.has_admin() || !is_same_origin(asked) {
        return false;
    }
    let Some(key) = session_key(app) else { return false };
    Session::of(asked, &key)
        .is_some_and(|session| is_safe(&asked.method) || session.has_token(&asked.headers, &key))
}

fn is_loopback(asked: &Parts) -> bool {
    let peer = asked.extensions.get::<Peer>();
    peer.is_some_and(|peer| peer.remote.ip().to_canonical().is_loopback())
}

fn session_key(app: &App) -> Option<[u8; 32]> {
    Some(app.setup().keys.session_key(app.0.sessions.process()?))
}

/// `GET /dashboard/session`: whether there is one, and its token then.
async fn show(State(app): State<App>, asked: Parts) -> Response {
    let needs_key = app.has_admin_key();
    if let Some(key) = session_key(&app)
        && is_same_origin(&asked)
        && let Some(session) = Session::of(&asked, &key)
        && (needs_key || (is_loopback(&asked) && is_local(&asked)))
    {
        return shown(session, &key, needs_key).into_response();
    }
    // No refusal: every page asks, and a browser shows refusals as errors.
    let message = "there is no session here, or it has ended";
    Json(json!({ "needs_key": needs_key, "message": message })).into_response()
}

fn shown(session: Session, key: &[u8; 32], needs_key: bool) -> Json<serde_json::Value> {
    let (token, ends) = (session.token(key), session.ends());
    Json(json!({ "token": token, "ends": ends, "needs_key": needs_key }))
}

/// What begins a session.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    #[serde(default)]
    key: Option<String>,
}

/// `POST /dashboard/session`: begins one, with the admin key where there is one.
async fn log_in(State(app): State<App>, request: Request) -> Response {
    let (asked, body) = request.into_parts();
    let needs_key = app.has_admin_key();
    let refused = |status: StatusCode, message: &str| {
        (status, Json(json!({ "needs_key": needs_key, "message": message }))).into_response()
    };
    if !is_same_origin(&asked) {
        let message = "the page that asks is from another address than this one; a proxy has to pass on the host \
                       that the browser asked for";
        return refused(StatusCode::FORBIDDEN, message);
    }
    let body = match timeout(app.setup().body_timeout, to_bytes(body, LOGIN_LIMIT)).await {
        Ok(Ok(body)) => body,
        _ => return refused(StatusCode::BAD_REQUEST, "the key is too long, or did not come"),
    };
    let Ok(login) = serde_json::from_slice::<Login>(&body) else {
        return refused(StatusCode::BAD_REQUEST, "write {\"key\": \"the admin key\"}");
    };
    if needs_key {
        let from = asked.extensions.get::<Peer>().map(|peer| peer.remote.ip());
        if let Err(left) = app.0.sessions.may_guess(from) {
            let mut response =
                refused(StatusCode::TOO_MANY_REQUESTS, "too many wrong keys; wait a minute");
            response.headers_mut().insert(header::RETRY_AFTER, (left.as_secs() + 1).into());
            return response;
        }
        if !app.setup().keys.is_admin_key(login.key.as_deref().unwrap_or_default()) {
            app.0.sessions.guessed(from);
            operated(&asked, "login", "", false);
            return refused(StatusCode::UNAUTHORIZED, "that is not the admin key");
        }
    } else if !(is_loopback(&asked) && is_local(&asked)) {
        let message = "without an admin key (`server.admin_key`) the dashboard is for this machine alone, at a loopback \
                       address";
        return refused(StatusCode::FORBIDDEN, message);
    }
    let proved = session_key(&app).zip(Session::begin());
    let Some((key, session)) = proved else {
        return refused(StatusCode::INTERNAL_SERVER_ERROR, "the system has no random numbers");
    };
    operated(&asked, "login", "", true);
    let mut response = shown(session, &key, needs_key).into_response();
    if let Some(cookie) = session.cookie(&asked, &key) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// `DELETE /dashboard/session`: the browser forgets it.
async fn log_out(asked: Parts) -> Response {
    if !is_same_origin(&asked) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Some(cookie) = forgotten(&asked) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}
