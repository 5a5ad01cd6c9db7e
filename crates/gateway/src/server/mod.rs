//! The server: the three dialects' endpoints over one stack.

mod admin;
mod array;
mod chat;
mod listen;
mod models;
mod record;
mod reply;
mod stream;
mod unread;
mod version;
mod wake;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::{Path, Request, State, rejection::PathRejection},
    response::Response,
    routing::{get, post},
};
use steadfast_core::{Dialect, Failure, Reason};

pub use self::listen::{Peer, serve};
use crate::{
    config::{Config, ConfigErrors, Source},
    keys::KeyRing,
    metrics::Metrics,
    stack::Gateway,
};

/// What every handler needs; cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    gateway: Gateway,
    keys: KeyRing,
    metrics: Metrics,
    body_limit: usize,
    body_timeout: Duration,
    keepalive: Duration,
    forward: Vec<http::HeaderName>,
    draining: AtomicBool,
}

impl App {
    /// The application of a checked configuration around `gateway`.
    ///
    /// # Errors
    ///
    /// When a key that the configuration names can not be read.
    pub fn new(config: &Config, source: &Source, gateway: Gateway) -> Result<Self, ConfigErrors> {
        let forward = config
            .server
            .forward_headers
            .iter()
            .filter_map(|name| http::HeaderName::try_from(name.as_str()).ok())
            .collect();
        Ok(Self(Arc::new(Inner {
            gateway,
            keys: KeyRing::read(config, source)?,
            metrics: Metrics::default(),
            body_limit: config.server.body_limit,
            body_timeout: config.server.body_timeout,
            keepalive: config.server.keepalive,
            forward,
            draining: AtomicBool::new(false),
        })))
    }

    /// What the gateway counts.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The stack and its handles.
    pub fn gateway(&self) -> &Gateway {
        &self.0.gateway
    }

    /// From now on `/readyz` says no, so that whoever balances load stops sending.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    /// All endpoints.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/v1/chat/completions", post(openai))
            .route("/v1/messages", post(anthropic))
            // Google's SDKs differ in the version they put into the address.
            .route("/v1beta/models/{*call}", post(gemini).get(models::one))
            .route("/v1/models/{*call}", post(gemini).get(models::one))
            .route("/v1/models", get(models::list))
            .route("/v1beta/models", get(models::list))
            .route("/healthz", get(admin::health))
            .route("/readyz", get(admin::ready))
            .route("/metrics", get(admin::metrics))
            .route("/admin/status", get(admin::status))
            .route("/admin/guard/extend", post(admin::extend))
            .route("/admin/compaction/forget", post(admin::forget))
            .fallback(nowhere)
            .method_not_allowed_fallback(wrong_method)
            .with_state(self.clone())
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("keys", &self.0.keys).finish_non_exhaustive()
    }
}

async fn openai(State(app): State<App>, request: Request) -> Response {
    chat::answer(&app, Dialect::OpenAi, None, request).await
}

async fn anthropic(State(app): State<App>, request: Request) -> Response {
    chat::answer(&app, Dialect::Anthropic, None, request).await
}

/// `models/{model}:{method}`; a model's name may have slashes in it.
async fn gemini(
    State(app): State<App>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let Ok(Path(call)) = path else {
        let message = "the model in the address is not valid UTF-8";
        let failure = Failure::refused(Reason::Format, message);
        return refuse(Dialect::Gemini, &failure, request).await;
    };
    let (model, method) = call.rsplit_once(':').unwrap_or((&call, ""));
    let stream = match method {
        "generateContent" => false,
        "streamGenerateContent" => true,
        _ => {
            let failure = Failure::refused(
                Reason::Unsupported,
                format!(
                    "`{method}` is no method of this gateway; there are generateContent and \
                     streamGenerateContent"
                ),
            )
            .with_status(http::StatusCode::NOT_FOUND);
            return refuse(Dialect::Gemini, &failure, request).await;
        }
    };
    let route = chat::GeminiRoute { model: model.to_owned(), stream };
    chat::answer(&app, Dialect::Gemini, Some(route), request).await
}

async fn wrong_method(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let message =
        format!("{method} is not what {path} is for; models are asked by POST, all else by GET");
    unsupported(http::StatusCode::METHOD_NOT_ALLOWED, message, request).await
}

async fn nowhere(request: Request) -> Response {
    let message = format!("there is nothing at {} {}", request.method(), request.uri().path());
    unsupported(http::StatusCode::NOT_FOUND, message, request).await
}

async fn unsupported(status: http::StatusCode, message: String, request: Request) -> Response {
    let failure = Failure::refused(Reason::Unsupported, message).with_status(status);
    refuse(reply::guess_dialect(request.headers(), request.uri()), &failure, request).await
}

/// Answers `request`, which nobody read, with `failure`.
async fn refuse(dialect: Dialect, failure: &Failure, request: Request) -> Response {
    let response = reply::refused(dialect, failure, &reply::request_id(request.headers()));
    unread::drop_rest(request.into_body(), response).await
}
