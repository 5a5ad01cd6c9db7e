//! OpenAI's Responses API over a WebSocket: a `response.create` for each answer, whose events come as frames.
//!
//! Every answer goes the way of a `POST /v1/responses`, with the head of the handshake, so that it is let in, asked,
//! recovered and counted as such: what fails behind it fails over while the socket stays. What is not stored by its
//! provider is remembered for the socket, until it is closed.

mod metered;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, VecDeque},
    io::ErrorKind,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    response::Response,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::{SinkExt, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, request::Parts};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use steadfast_client::sse::{Rest, SseFrame, SseParser};
use steadfast_core::{Dialect, Failure, Reason, time::later};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at, sleep_until},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message, Utf8Bytes,
        handshake::derive_accept_key,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};

use self::metered::{Metered, SocketBytes};
use super::{App, Peer, chat, connection::Successor, refuse, wrong_method};
use crate::responses::SocketMemory;

const DIALECT: Dialect = Dialect::Responses;

/// How often the other side is pinged: 30 s, below the minute after which common proxies cut what is silent.
const PING: Duration = Duration::from_secs(30);

/// How long nothing may come of the other side, which answers pings: 90 s.
const SILENT: Duration = Duration::from_secs(90);

/// How old a socket may become: 60 minutes, as at the vendor. Clients know to connect anew.
const OLDEST: Duration = Duration::from_secs(3_600);

/// How many answers there may be at once, one for each `stream_id`: 8.
const STREAMS: usize = 8;

/// How many further requests may wait for their turn: 16. Then no more is read.
const WAITING: usize = 16;

/// How many events may wait for the socket, for all answers together: 64.
const EVENTS: usize = 64;

/// How much is read at once, in bytes: 8 KiB, as of other connections. An idle socket has as much.
const READ_BUFFER: usize = 8 * 1024;

/// The longest `stream_id`, in bytes: 128.
const LONGEST: usize = 128;

/// Headers of the handshake that are no headers of a request.
const HANDSHAKE: [HeaderName; 8] = [
    header::CONNECTION,
    header::UPGRADE,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_VERSION,
    header::SEC_WEBSOCKET_EXTENSIONS,
    header::SEC_WEBSOCKET_PROTOCOL,
];

/// `GET /v1/responses`.
pub(super) async fn upgrade(State(app): State<App>, mut request: Request) -> Response {
    if !says(request.headers(), &header::UPGRADE, "websocket") {
        return wrong_method(State(app), request).await;
    }
    let wanted = says(request.headers(), &header::CONNECTION, "upgrade")
        && says(request.headers(), &header::SEC_WEBSOCKET_VERSION, "13");
    let key = request.headers().get(header::SEC_WEBSOCKET_KEY).cloned();
    let key = key.filter(|key| STANDARD.decode(key).is_ok_and(|key| key.len() == 16));
    let successor = request.extensions().get::<Successor>().cloned();
    let (true, Some(key), Some(successor)) = (wanted, key, successor) else {
        let message = "this is no handshake of a WebSocket of version 13 over HTTP/1.1; send one, or a request for each answer";
        let failure = Failure::refused(Reason::Unsupported, message)
            .with_status(StatusCode::UPGRADE_REQUIRED);
        let mut response = refuse(&app, DIALECT, &failure, request).await;
        let headers = response.headers_mut();
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return response;
    };
    let upgraded = hyper::upgrade::on(&mut request);
    let (parts, body) = request.into_parts();
    let setup = app.setup();
    if let Err(failure) = chat::caller(&setup, &parts) {
        return refuse(&app, DIALECT, &failure, Request::from_parts(parts, body)).await;
    }
    let limit = setup.body_limit;
    let most = app.admission().memory_of_sockets();
    let bytes = SocketBytes::new(app.0.socket_bytes.clone(), most);
    let head = Head::of(parts);
    let memory = SocketMemory::new(app.responses().clone());
    successor.set(move |stopped| {
        Box::pin(async move {
            let Ok(upgraded) = upgraded.await else { return };
            let config = WebSocketConfig::default()
                .read_buffer_size(READ_BUFFER)
                .max_message_size(Some(limit))
                .max_frame_size(Some(limit));
            let io = Metered::new(TokioIo::new(upgraded), bytes.clone());
            let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
            Session::new(app, head, memory, bytes, limit).run(socket, stopped).await;
        })
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::try_from(derive_accept_key(key.as_bytes())) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

/// Whether the header `name` has `word` in its list.
fn says(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(word))
}

/// What all requests of a socket have in common.
struct Head {
    headers: HeaderMap,
    peer: Option<Peer>,
}

impl Head {
    fn of(parts: Parts) -> Self {
        let mut headers = parts.headers;
        for name in HANDSHAKE {
            headers.remove(name);
        }
        // It is about the socket.
        headers.remove("openai-beta");
        // Each has its own.
        headers.remove("x-request-id");
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Self { headers, peer: parts.extensions.get::<Peer>().cloned() }
    }

    /// The request for one answer.
    fn request(&self, body: Vec<u8>, call: SocketCall) -> Request {
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static("/v1/responses");
        *request.headers_mut() = self.headers.clone();
        if let Some(peer) = &self.peer {
            request.extensions_mut().insert(peer.anew());
        }
        request.extensions_mut().insert(call);
        request
    }
}

/// What is particular to a request that came over a socket: in its extensions.
#[derive(Clone, Debug)]
pub(super) struct SocketCall {
    /// Where its answer is remembered though no provider is to store it.
    pub(super) memory: Arc<SocketMemory>,
    /// A model is to be asked; else the request is remembered for one that goes on from it.
    pub(super) generate: bool,
}

/// A `response.create`, as a request.
#[derive(Debug)]
struct Create {
    id: StreamId,
    generate: bool,
    body: Vec<u8>,
}

/// What the events of an answer are marked with.
type StreamId = Option<Box<str>>;

/// What is wrong with a message: a status, a code, and why.
type Problem = (StatusCode, &'static str, String);

impl Create {
    /// Reads a message.
    fn read(text: &str) -> Result<Self, (StreamId, Problem)> {
        #[derive(Deserialize)]
        struct Envelope {
            r#type: Option<Box<str>>,
            stream_id: Option<Box<str>>,
            generate: Option<bool>,
            background: Option<bool>,
        }
        let bad = |id: StreamId, code: &'static str, why: String| {
            Err((id, (StatusCode::BAD_REQUEST, code, why)))
        };
        let envelope: Envelope = match serde_json::from_str(text) {
            Ok(envelope) => envelope,
            Err(error) => {
                return bad(None, "invalid_json", format!("the message can not be read: {error}"));
            }
        };
        let id = envelope.stream_id;
        if id.as_ref().is_some_and(|id| id.is_empty() || id.len() > LONGEST) {
            return bad(
                None,
                "invalid_stream_id",
                format!("stream_id: is to have 1 to {LONGEST} bytes"),
            );
        }
        match envelope.r#type.as_deref() {
            Some("response.create") => {}
            other => {
                let other = other.unwrap_or("nothing").chars().take(64).collect::<String>();
                return bad(
                    id,
                    "unsupported_event",
                    format!("type: is `{other}`; what can be sent here is `response.create`"),
                );
            }
        }
        if envelope.background == Some(true) {
            let why = "background: not over a WebSocket; send a request of its own".to_owned();
            return bad(id, "unsupported_parameter", why);
        }
        let Ok(mut fields) = serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(text) else {
            return bad(id, "invalid_json", "the message is no object".to_owned());
        };
        for name in ["type", "stream_id", "generate", "background", "stream"] {
            fields.remove(name);
        }
        let mut body = br#"{"stream":true"#.to_vec();
        for (name, value) in fields {
            body.push(b',');
            // A string can always be written.
            body.extend(serde_json::to_vec(&name).unwrap_or_default());
            body.push(b':');
            body.extend_from_slice(value.get().as_bytes());
        }
        body.push(b'}');
        Ok(Self { id, generate: envelope.generate.unwrap_or(true), body })
    }
}

/// An error as a message.
fn error(id: Option<&str>, (status, code, why): &Problem) -> Message {
    let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
    let error = json!({
        "type": kind, "code": code, "message": why, "param": null,
    });
    failed(id, *status, &error, &HeaderMap::new())
}

/// An answer that failed before it began.
fn failed(id: Option<&str>, status: StatusCode, error: &Value, headers: &HeaderMap) -> Message {
    let is_shown =
        |name: &HeaderName| *name == header::RETRY_AFTER || name.as_str().starts_with("x-");
    let headers = headers.iter().filter(|(name, _)| is_shown(name)).filter_map(|(name, value)| {
        Some((name.as_str().to_owned(), Value::from(value.to_str().ok()?)))
    });
    let headers: serde_json::Map<_, _> = headers.collect();
    let mut message = json!({"type": "error", "status": status.as_u16(), "error": error});
    if !headers.is_empty() {
        // Beside the error, and in it: OpenAI's SDKs read them there.
        if message["error"].is_object() {
            message["error"]["headers"] = headers.clone().into();
        }
        message["headers"] = headers.into();
    }
    if let Some(id) = id {
        message["stream_id"] = id.into();
    }
    Message::Text(message.to_string().into())
}

/// An event of a stream as a message.
fn event(id: Option<&str>, frame: &SseFrame) -> Option<Message> {
    let data = frame.data.clone()?;
    let text = match id {
        None => Utf8Bytes::try_from(data).ok()?,
        Some(id) => {
            let data = std::str::from_utf8(&data).ok()?;
            let rest = data.trim_start().strip_prefix('{')?;
            format!("{{\"stream_id\":{},{rest}", Value::from(id)).into()
        }
    };
    Some(Message::Text(text))
}

/// One socket.
struct Session {
    app: App,
    head: Head,
    memory: Arc<SocketMemory>,
    streams: HashMap<StreamId, VecDeque<Create>>,
    waiting: usize,
    /// What those have that wait, in bytes: as much as one message may have, and the last one more.
    waiting_bytes: usize,
    most_bytes: usize,
    bytes: Arc<SocketBytes>,
    calls: JoinSet<StreamId>,
    events: mpsc::Sender<Message>,
    received: mpsc::Receiver<Message>,
}

impl Session {
    fn new(
        app: App,
        head: Head,
        memory: Arc<SocketMemory>,
        bytes: Arc<SocketBytes>,
        most_bytes: usize,
    ) -> Self {
        let (events, received) = mpsc::channel(EVENTS);
        Self {
            app,
            head,
            memory,
            streams: HashMap::new(),
            waiting: 0,
            waiting_bytes: 0,
            most_bytes,
            bytes,
            calls: JoinSet::new(),
            events,
            received,
        }
    }

    /// Serves `socket` until one side has enough of it. Calls under way end with it.
    async fn run<S>(mut self, socket: WebSocketStream<S>, mut stopped: watch::Receiver<()>)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send,
    {
        let (mut out, mut messages) = socket.split();
        let born = Instant::now();
        let mut heard = born;
        let mut pings = interval_at(later(born, PING), PING);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut old = pin!(sleep_until(later(born, OLDEST)));
        let mut closing = None;
        loop {
            let reads = self.waiting < WAITING && self.waiting_bytes < self.most_bytes;
            if let Some(why) =
                closing.take_if(|_| self.calls.is_empty() && self.received.is_empty())
            {
                if let Closing::Old = why {
                    let why = "the connection is 60 minutes old; connect anew".to_owned();
                    let problem =
                        (StatusCode::BAD_REQUEST, "websocket_connection_limit_reached", why);
                    let _ = out.send(error(None, &problem)).await;
                }
                let frame = CloseFrame { code: why.code(), reason: Utf8Bytes::default() };
                let _ = out.send(Message::Close(Some(frame))).await;
                return;
            }
            let sent = tokio::select! {
                biased;
                Some(event) = self.received.recv() => out.send(event).await,
                Some(ended) = self.calls.join_next() => match ended {
                    Ok(id) => {
                        self.ended(&id);
                        Ok(())
                    }
                    // It panicked: whoever waits for its answer must not wait for ever.
                    Err(_) => return,
                },
                message = messages.next(), if reads => {
                    heard = Instant::now();
                    match message {
                        Some(Ok(Message::Text(text))) if closing.is_none() => {
                            let taken = self.take(&text);
                            // What has been read is a request, or waits to be one.
                            self.bytes.set(self.waiting_bytes as u64);
                            match taken {
                                Ok(()) => Ok(()),
                                Err((id, problem)) => out.send(error(id.as_deref(), &problem)).await,
                            }
                        }
                        Some(Ok(Message::Binary(_))) => {
                            closing = Some(Closing::Binary);
                            Ok(())
                        }
                        // What answers it has been written.
                        Some(Ok(Message::Ping(_))) => out.flush().await,
                        Some(Err(Error::Io(error))) if error.kind() == ErrorKind::OutOfMemory => {
                            let code = CloseCode::Again;
                            let frame = CloseFrame { code, reason: Utf8Bytes::default() };
                            let _ = out.send(Message::Close(Some(frame))).await;
                            return;
                        }
                        Some(Ok(Message::Close(_)) | Err(_)) | None => {
                            let _ = out.flush().await;
                            return;
                        }
                        Some(Ok(_)) => Ok(()),
                    }
                }
                at = pings.tick() => {
                    // While it is not read nothing is heard.
                    if reads && at.saturating_duration_since(heard) > SILENT {
                        return;
                    }
                    out.send(Message::Ping(Bytes::new())).await
                }
                () = &mut old, if closing.is_none() => {
                    closing = Some(Closing::Old);
                    Ok(())
                }
                // Nobody can stop it any more, or somebody does.
                _ = stopped.changed(), if closing.is_none() => {
                    closing = Some(Closing::Stopped);
                    Ok(())
                }
            };
            if sent.is_err() {
                return;
            }
        }
    }

    /// Takes a message: answers it, or has it wait for the one before it.
    fn take(&mut self, text: &str) -> Result<(), (StreamId, Problem)> {
        let create = Create::read(text)?;
        if let Some(queue) = self.streams.get_mut(&create.id) {
            self.waiting += 1;
            self.waiting_bytes += create.body.len();
            queue.push_back(create);
            return Ok(());
        }
        if self.streams.len() >= STREAMS {
            let why = format!(
                "stream_id: {STREAMS} answers are under way on this socket, the most there may be at once"
            );
            return Err((create.id, (StatusCode::TOO_MANY_REQUESTS, "too_many_streams", why)));
        }
        self.streams.insert(create.id.clone(), VecDeque::new());
        self.start(create);
        Ok(())
    }

    fn start(&mut self, create: Create) {
        let Create { id, generate, body } = create;
        let call = SocketCall { memory: self.memory.clone(), generate };
        let request = self.head.request(body, call);
        let (app, events) = (self.app.clone(), self.events.clone());
        self.calls.spawn(async move {
            let response = chat::answer(&app, DIALECT, None, request).await;
            // Whoever takes events is gone only when this is dropped, too.
            let _ = relay(response, id.as_deref(), &events).await;
            id
        });
    }

    /// The answer of `id` has ended: the next one's turn.
    fn ended(&mut self, id: &StreamId) {
        match self.streams.get_mut(id).and_then(VecDeque::pop_front) {
            Some(next) => {
                self.waiting -= 1;
                self.waiting_bytes -= next.body.len();
                self.bytes.sub(next.body.len() as u64);
                self.start(next);
            }
            None => {
                self.streams.remove(id);
            }
        }
    }
}

/// Why a socket is closed when what is under way has ended.
#[derive(Clone, Copy, Debug)]
enum Closing {
    Old,
    Stopped,
    Binary,
}

impl Closing {
    fn code(self) -> CloseCode {
        match self {
            Self::Old => CloseCode::Normal,
            Self::Stopped => CloseCode::Away,
            Self::Binary => CloseCode::Unsupported,
        }
    }
}

/// Sends `response` as messages.
async fn relay(
    response: Response,
    id: Option<&str>,
    events: &mpsc::Sender<Message>,
) -> Result<(), mpsc::error::SendError<Message>> {
    let (parts, mut body) = response.into_parts();
    if !parts.status.is_success() {
        let body = body.collect().await.map(http_body_util::Collected::to_bytes);
        let read = body.ok().and_then(|body| serde_json::from_slice::<Value>(&body).ok());
        let error = read.map(|mut body| body["error"].take()).unwrap_or_default();
        return events.send(failed(id, parts.status, &error, &parts.headers)).await;
    }
    // Whatever the gateway itself has written is passed on.
    let mut parser = SseParser::with_limit(usize::MAX);
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            let why = "the answer was broken off".to_owned();
            let problem = (StatusCode::BAD_GATEWAY, "server_error", why);
            return events.send(error(id, &problem)).await;
        };
        let Ok(data) = frame.into_data() else { continue };
        parser.push(data);
        while let Ok(Some(frame)) = parser.next_frame() {
            if let Some(message) = event(id, &frame) {
                events.send(message).await?;
            }
        }
    }
    if let Rest::Frame(frame) = parser.finish()
        && let Some(message) = event(id, &frame)
    {
        events.send(message).await?;
    }
    Ok(())
}
