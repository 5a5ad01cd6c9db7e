//! The server: the dialects' endpoints over one stack.

mod admin;
mod array;
mod body;
mod chat;
mod codex;
mod compaction;
mod connection;
mod count;
mod dashboard;
mod down;
mod embed;
mod escalations;
mod head;
mod heavy;
mod listen;
mod models;
mod odd;
mod reader;
mod record;
mod reload;
mod reply;
mod saved;
mod session;
mod shared;
mod socket;
mod stored;
mod stories;
mod stream;
mod unread;
mod upward;
mod version;
mod wake;
mod websocket;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::{Path, Request, State, rejection::PathRejection},
    response::Response,
    routing::{get, post},
};
use http::{HeaderMap, Uri, header, request::Parts};
use parking_lot::{Mutex, RwLock};
use steadfast_client::{Secret, dialect::EmbedRoute};
use steadfast_core::{Dialect, Failure, Reason, shared::SharedState};

pub(crate) use self::{chat::query, saved::usable as usable_state_file};
pub use self::{
    connection::{ConnectionLimits, Peer},
    listen::serve,
    reload::Reloaded,
    saved::StateFile,
};
use self::{
    dashboard::{Feed, Sessions},
    heavy::Heavy,
    record::Record,
    reload::Reloads,
    reply::Outgoing,
};
use crate::{
    admission::{Admission, Limit, Limits},
    config::{Config, ConfigErrors, Source},
    fleet::Fleet,
    keys::KeyRing,
    metrics::Metrics,
    responses::ResponseMemory,
    secrets::{Mask, Secrets, keep_configured},
    stack::Gateway,
    stories::Stories,
    traces::Traces,
};

/// What every handler needs; cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    /// What requests go by that come now.
    setup: RwLock<Arc<Setup>>,
    reloads: Mutex<Reloads>,
    metrics: Metrics,
    admission: Admission,
    heavy: Heavy,
    responses: Arc<ResponseMemory>,
    stories: Arc<Stories>,
    traces: Traces,
    fleet: Fleet,
    /// What sockets hold of messages that are no requests yet.
    socket_bytes: Arc<AtomicU64>,
    draining: AtomicBool,
    sessions: Sessions,
    feed: Feed,
}

/// What a configuration comes to; a reload makes another one.
struct Setup {
    config: Config,
    source: Source,
    gateway: Gateway,
    keys: KeyRing,
    /// The secrets by which it is served, and those by which it was served before.
    secrets: Arc<Secrets>,
    /// The former alone.
    own_secrets: Vec<Secret>,
    body_limit: usize,
    body_timeout: Duration,
    body_progress: Duration,
    keepalive: Duration,
    early_keepalive: Option<Duration>,
    forward: Vec<http::HeaderName>,
}

impl Setup {
    /// The gateway is made last, when nothing else can be wrong. What was a secret `before` still is: calls by
    /// it are under way.
    fn new(
        config: &Config,
        source: &Source,
        before: &[Secret],
        gateway: impl FnOnce(&Config, &Source) -> Result<Gateway, ConfigErrors>,
    ) -> Result<Self, ConfigErrors> {
        let server = &config.server;
        let forward = server.forward_headers.iter();
        let (keys, mut own_secrets) = KeyRing::read(config, source)?;
        let gateway = gateway(config, source)?;
        own_secrets.extend_from_slice(gateway.secrets());
        let secrets = before.iter().chain(&own_secrets).map(Secret::expose);
        let secrets = Arc::new(Secrets::of(secrets));
        keep_configured(&secrets);
        Ok(Self {
            keys,
            secrets,
            own_secrets,
            body_limit: server.body_limit,
            body_timeout: server.body_timeout,
            body_progress: server.body_progress,
            keepalive: server.keepalive,
            early_keepalive: server.early_keepalive,
            forward: forward
                .filter_map(|name| http::HeaderName::try_from(name.as_str()).ok())
                .collect(),
            gateway,
            config: config.clone(),
            source: source.clone(),
        })
    }
}

impl Setup {
    /// Whether a response that is not known here is not there: it may be another tenant's, or no provider keeps any.
    fn isolates(&self) -> bool {
        self.config.tenants.len() > 1 || self.gateway.keeper_of_responses().is_none()
    }
}

impl App {
    /// The application of a checked configuration around `gateway`.
    ///
    /// # Errors
    ///
    /// When a key that the configuration names can not be read.
    pub fn new(config: &Config, source: &Source, gateway: Gateway) -> Result<Self, ConfigErrors> {
        let setup = Setup::new(config, source, &[], |_, _| Ok(gateway))?;
        let admission = Admission::new(Limits::of(&config.server, config.tenants.len()));
        Ok(Self(Arc::new(Inner {
            setup: RwLock::new(Arc::new(setup)),
            reloads: Mutex::default(),
            metrics: Metrics::default(),
            admission,
            heavy: Heavy::default(),
            responses: Arc::new(ResponseMemory::new(config.responses)),
            stories: Arc::new(Stories::new(&config.observe)),
            traces: Traces::default(),
            fleet: Fleet::default(),
            socket_bytes: Arc::default(),
            draining: AtomicBool::new(false),
            sessions: Sessions::new(),
            feed: Feed::new(),
        })))
    }

    /// What a request goes by that comes now.
    fn setup(&self) -> Arc<Setup> {
        self.0.setup.read().clone()
    }

    /// How many requests for models are in progress.
    pub fn in_flight(&self) -> u64 {
        self.admission().in_flight()
    }

    /// Who is let in.
    fn admission(&self) -> &Admission {
        &self.0.admission
    }

    /// Where large requests run.
    fn heavy(&self) -> &Heavy {
        &self.0.heavy
    }

    /// The responses that callers may name.
    fn responses(&self) -> &Arc<ResponseMemory> {
        &self.0.responses
    }

    /// What became of each request.
    fn stories(&self) -> &Arc<Stories> {
        &self.0.stories
    }

    /// Where traces go.
    pub(crate) fn traces(&self) -> &Traces {
        &self.0.traces
    }

    /// The other gateways.
    pub(crate) fn fleet(&self) -> &Fleet {
        &self.0.fleet
    }

    /// Shares by `state` from now on what is known of targets and conversations, what was spent under caps, held requests, and
    /// what the folders of `[observe]` have, where nothing is shared yet; others see that this gateway is at `address`. From
    /// inside a tokio runtime.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn share(&self, state: Arc<dyn SharedState>, address: impl Into<String>) {
        let setup = self.setup();
        let tasks = |state: &_| shared::tasks(self, state);
        let (text, address) = (setup.source.as_str(), address.into());
        let names = self.fleet().join(state.clone(), &setup.gateway, text, address, tasks);
        if let Some(names) = names {
            self.responses().share(state, names);
        }
    }

    /// Traces requests by `telemetry` from now on, where nothing does so yet.
    #[cfg(feature = "otel")]
    pub fn trace(&self, telemetry: steadfast::otel::Telemetry) {
        self.traces().set(telemetry);
        self.traces().set_servers(&self.gateway());
    }

    /// For the answer to the request with this head.
    fn outgoing(&self, headers: &HeaderMap, uri: &Uri) -> Outgoing {
        Outgoing::of(&self.setup().secrets, headers, uri)
    }

    /// What is masked where nobody has asked.
    fn mask(&self) -> Mask {
        Mask::of(self.setup().secrets.clone(), &HeaderMap::new(), &Uri::default())
    }

    /// The record of a request in `dialect` that has just come.
    fn record(&self, dialect: Dialect, outgoing: &Outgoing, parts: &Parts) -> Record {
        let reader = parts.extensions.get::<Peer>().map(|peer| peer.reader.clone());
        let (metrics, stories) = (self.metrics().clone(), self.stories().clone());
        Record::begin(metrics, stories, dialect, outgoing.id.clone(), reader)
            .traced(self.traces(), &parts.headers)
    }

    /// What the gateway counts.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The stacks and their handles, as they are now.
    pub fn gateway(&self) -> Gateway {
        self.setup().gateway.clone()
    }

    /// Whether `/admin/*` needs a key. Without one, programs of this machine need none.
    pub fn has_admin_key(&self) -> bool {
        self.setup().keys.has_admin()
    }

    /// How many connections to it there may be, and how long they may do nothing.
    pub fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits::new(&self.setup().config.server, self.admission().clone())
    }

    /// From now on `/readyz` says no, so that whoever balances load stops sending, and dashboards are fed no more.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
        self.0.feed.close();
    }

    /// All endpoints.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/v1/chat/completions", post(openai))
            .route("/v1/messages", post(anthropic))
            .route("/v1/messages/count_tokens", post(count_anthropic))
            .route("/v1/embeddings", post(embeddings))
            // Google's SDKs differ in the version they put into the address.
            .route("/v1beta/models/{*call}", post(gemini).get(models::one))
            .route("/v1/models/{*call}", post(gemini).get(models::one))
            .route("/v1/models", get(models::list))
            .route("/v1beta/models", get(models::list))
            .route("/", get(odd::hello))
            .route("/api/hello", get(odd::hello))
            .route("/v1/responses", post(responses).get(websocket::upgrade))
            .route("/v1/responses/compact", post(compact))
            .route("/v1/responses/input_tokens", post(count_responses))
            .route("/v1/responses/{id}", get(stored::get).delete(stored::delete))
            .route("/v1/responses/{id}/cancel", post(stored::cancel))
            .route("/v1/responses/{id}/input_items", get(stored::input_items))
            .route("/healthz", get(admin::health))
            .route("/readyz", get(admin::ready))
            .route("/metrics", get(admin::metrics))
            .route("/admin/status", get(admin::status))
            .route("/admin/spend", get(admin::spend))
            .route("/admin/fleet", get(admin::fleet))
            .route("/admin/requests", get(stories::list))
            .route("/admin/timeline", get(stories::timeline))
            .route("/admin/requests/{id}", get(stories::one))
            .route("/admin/reload", post(admin::reload))
            .route("/admin/escalations", get(escalations::list))
            .route("/admin/escalations/{id}", post(escalations::decide))
            .route("/admin/guard/extend", post(admin::extend))
            .route("/admin/compaction/forget", post(admin::forget))
            .merge(dashboard::routes())
            .fallback(nowhere)
            .method_not_allowed_fallback(wrong_method)
            .with_state(self.clone())
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("keys", &self.setup().keys).finish_non_exhaustive()
    }
}

async fn openai(State(app): State<App>, request: Request) -> Response {
    chat::answer(&app, Dialect::OpenAi, None, request).await
}

async fn responses(State(app): State<App>, request: Request) -> Response {
    chat::answer(&app, Dialect::Responses, None, request).await
}

async fn anthropic(State(app): State<App>, request: Request) -> Response {
    chat::answer(&app, Dialect::Anthropic, None, request).await
}

async fn count_anthropic(State(app): State<App>, request: Request) -> Response {
    count::answer(&app, Dialect::Anthropic, None, request).await
}

async fn compact(State(app): State<App>, request: Request) -> Response {
    compaction::answer(&app, request).await
}

async fn count_responses(State(app): State<App>, request: Request) -> Response {
    count::answer(&app, Dialect::Responses, None, request).await
}

async fn embeddings(State(app): State<App>, request: Request) -> Response {
    embed::answer(&app, Dialect::OpenAi, EmbedRoute::default(), request).await
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
        return refuse(&app, Dialect::Gemini, &failure, request).await;
    };
    let (model, method) = call.rsplit_once(':').unwrap_or((&call, ""));
    let stream = match method {
        "generateContent" => false,
        "streamGenerateContent" => true,
        "countTokens" => return count::answer(&app, Dialect::Gemini, Some(model), request).await,
        "embedContent" | "batchEmbedContents" => {
            let route = EmbedRoute { model: Some(model), is_single: method == "embedContent" };
            return embed::answer(&app, Dialect::Gemini, route, request).await;
        }
        _ => {
            let failure = Failure::refused(
                Reason::Unsupported,
                format!(
                    "`{method}` is no method of this gateway; there are generateContent, \
                     streamGenerateContent, countTokens, embedContent and batchEmbedContents"
                ),
            )
            .with_status(http::StatusCode::NOT_FOUND);
            return refuse(&app, Dialect::Gemini, &failure, request).await;
        }
    };
    let route = chat::GeminiRoute { model: model.to_owned(), stream };
    chat::answer(&app, Dialect::Gemini, Some(route), request).await
}

async fn wrong_method(State(app): State<App>, request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let message =
        format!("{method} is not what {path} is for; models are asked by POST, all else by GET");
    unsupported(&app, http::StatusCode::METHOD_NOT_ALLOWED, message, request).await
}

async fn nowhere(State(app): State<App>, request: Request) -> Response {
    let message = format!("there is nothing at {} {}", request.method(), request.uri().path());
    unsupported(&app, http::StatusCode::NOT_FOUND, message, request).await
}

async fn unsupported(
    app: &App,
    status: http::StatusCode,
    message: String,
    request: Request,
) -> Response {
    let failure = Failure::refused(Reason::Unsupported, message).with_status(status);
    refuse(app, reply::guess_dialect(request.headers(), request.uri()), &failure, request).await
}

/// Answers `request`, which nobody read, with `failure`.
async fn refuse(app: &App, dialect: Dialect, failure: &Failure, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let outgoing = app.outgoing(&parts.headers, &parts.uri);
    let response = reply::refused(dialect, failure, &outgoing);
    unread::drop_rest(&parts.headers, body, response).await
}

/// The answer to a request whose head can be read in two ways: `problem`. What follows on its connection is
/// not believed either.
fn malformed(problem: &'static str, headers: &HeaderMap, uri: &Uri) -> Response {
    closing(&Failure::refused(Reason::Format, problem), headers, uri)
}

/// The answer to a request on one connection more than there may be; `None` for those that watch over the gateway.
fn crowded(admission: &Admission, headers: &HeaderMap, uri: &Uri) -> Option<Response> {
    let path = uri.path();
    if path.starts_with("/admin/")
        || path.starts_with("/dashboard")
        || ["/healthz", "/readyz", "/metrics"].contains(&path)
    {
        return None;
    }
    Some(closing(&admission.refused(Limit::Connections), headers, uri))
}

/// The answer to a request that is not read, and after which its connection ends.
fn closing(failure: &Failure, headers: &HeaderMap, uri: &Uri) -> Response {
    let dialect = reply::guess_dialect(headers, uri);
    // Nothing of the configuration's is in there.
    let outgoing = Outgoing::of(&Arc::new(Secrets::of::<&[u8]>([])), headers, uri);
    let mut response = reply::refused(dialect, failure, &outgoing);
    response.headers_mut().insert(header::CONNECTION, http::HeaderValue::from_static("close"));
    response
}
