//! One chat request: read, asked, answered.

use std::{borrow::Cow, num::NonZeroU32, pin::pin, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::Request,
    response::Response,
};
use http::{HeaderMap, HeaderValue, Uri, header, request::Parts};
use http_body::Body as _;
use http_body_util::BodyExt;
use steadfast::recover::CONTINUE;
use steadfast_chat::{ChatRequest, ChatResponse, Completion, Event, EventStream, FrameKind};
use steadfast_client::dialect::{Caller, Route, StreamEncoder, codec, values};
use steadfast_core::{
    CallContext, Deadline, Dialect, Failure, FaultSide, Priority, Reason, time::later,
};
use tokio::time::{Instant, timeout_at};

use tower::{Service, ServiceExt};

use super::{
    App, Peer, Setup,
    array::ArrayEncoder,
    record::Record,
    reply::{self, Outgoing},
    stream::StreamBody,
    unread,
};
use crate::{
    admission::{Admitted, COST, SMALL},
    keys::Principal,
};

/// The longest name of a model, in bytes: 512. Vendors' are below 100, cloud resource names of
/// tuned ones below 300. Names go into logs, metrics and what is remembered of targets.
const MAX_MODEL: usize = 512;

/// The largest body that is copied out of the connection's buffer, in bytes: half of hyper's 8 KiB. The values of one
/// are not worth counting.
const COPIED: usize = 4 * 1024;

/// What Gemini's dialect says in the address.
pub(super) struct GeminiRoute {
    pub(super) model: String,
    pub(super) stream: bool,
}

/// Answers a chat request in the caller's dialect, whatever happens.
pub(super) async fn answer(
    app: &App,
    dialect: Dialect,
    route: Option<GeminiRoute>,
    request: Request,
) -> Response {
    let (parts, mut body) = request.into_parts();
    let reader = parts.extensions.get::<Peer>().map(|peer| peer.reader.clone());
    // What is in force now is in force for all of this request.
    let setup = app.setup();
    let outgoing = Outgoing::of(&setup.secrets, &parts.headers, &parts.uri);
    let mut record = Record::begin(app.metrics().clone(), dialect, outgoing.id.clone(), reader);

    let received = match receive(app, &setup, &parts, &mut body).await {
        Ok(received) => received,
        Err(failure) => {
            record.failed(&failure, false);
            let refused = reply::refused(dialect, &failure, &outgoing);
            return unread::drop_rest(&parts.headers, body, refused).await;
        }
    };
    let is_large = received.body.len() > SMALL;
    let asked = {
        let asked = pin!(ask(&setup, dialect, route.as_ref(), &parts, received, &mut record));
        if is_large { app.heavy().run(asked).await } else { asked.await }
    };
    let answered = match asked {
        Ok((response, Some(streamed))) => {
            let sse = dialect != Dialect::Gemini || wants_sse(&parts);
            let addressee = Caller::new(record.model(), streamed.usage);
            record.streams(streamed.deadline, streamed.pipeline);
            let keepalive = setup.keepalive;
            return stream(keepalive, dialect, &addressee, sse, response, record, outgoing);
        }
        Ok((response, None)) => whole(dialect, response, &mut record, &outgoing).await,
        Err(failure) => Err(failure),
    };
    answered.unwrap_or_else(|failure| {
        let log = record.log();
        record.failed(&failure, false);
        reply::failed(dialect, &failure, &outgoing, &log)
    })
}

/// A request that was let in, and has come.
struct Received {
    caller: Principal,
    body: Bytes,
    admitted: Admitted,
}

/// Lets a request in whose caller may ask, and takes its body.
async fn receive(
    app: &App,
    setup: &Setup,
    parts: &Parts,
    body: &mut Body,
) -> Result<Received, Failure> {
    let caller = caller(setup, parts)?;
    uncompressed(&parts.headers)?;
    let tenant = match &caller {
        Principal::Tenant(key) => Some(key.tenant.clone()),
        Principal::Anyone => None,
    };
    let mut admitted = app.admission().enter(tenant)?;
    let body = let_go(collect(body, setup, &mut admitted).await?);
    Ok(Received { caller, body, admitted })
}

/// How an answer in pieces was asked for.
struct Streamed {
    usage: bool,
    deadline: Option<Deadline>,
    pipeline: Duration,
}

/// Reads what is asked, and asks it.
async fn ask(
    setup: &Setup,
    dialect: Dialect,
    route: Option<&GeminiRoute>,
    parts: &Parts,
    mut received: Received,
    record: &mut Record,
) -> Result<(ChatResponse, Option<Streamed>), Failure> {
    if received.body.len() > COPIED {
        received.admitted.weigh(values(&received.body)).await?;
    }
    let request = read(setup, dialect, route, parts, &received);
    record.admitted(received.admitted);
    let request = request?;
    let route = setup.gateway.route(&request);
    record.asked(&request, route.name());
    let streamed = request.stream.then(|| Streamed {
        usage: request.params.stream_usage == Some(true),
        deadline: request.context.deadline,
        pipeline: route.pipeline(),
    });
    let mut service = route.service();
    let response = service.ready().await?.call(request).await?;
    Ok((response, streamed))
}

/// Reads what is asked.
fn read(
    setup: &Setup,
    dialect: Dialect,
    route: Option<&GeminiRoute>,
    parts: &Parts,
    Received { caller, body, admitted }: &Received,
) -> Result<ChatRequest, Failure> {
    let route = route.map_or_else(Route::default, |route| Route {
        model: Some(&route.model),
        stream: Some(route.stream),
    });
    let mut request = codec(dialect).decode_request(body, route)?;
    named(&request.model)?;
    if let Some(model) = setup.gateway.alias(&request.model) {
        request.model = model.to_owned().into();
    }
    request.context = context(request.context, &parts.headers, caller);
    request.context.held_bytes = admitted.held();
    for name in &setup.forward {
        for value in parts.headers.get_all(name) {
            // Copied too: a value shares that buffer. What was one still is.
            if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                request.headers.append(name.clone(), value);
            }
        }
    }
    // For the continuation layer; no header of this gateway's own goes to a provider.
    if parts.headers.get(CONTINUE).is_some_and(|value| value == "1") {
        request.headers.insert(CONTINUE, HeaderValue::from_static("1"));
    }
    Ok(request)
}

/// Whether the body can be read as it comes.
fn uncompressed(headers: &HeaderMap) -> Result<(), Failure> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            let message = "the request body is compressed, which this gateway does not unpack; \
                           send it without content-encoding";
            Err(Failure::refused(Reason::Format, message)
                .with_status(http::StatusCode::UNSUPPORTED_MEDIA_TYPE)
                .with_evidence("content-encoding"))
        }
        _ => Ok(()),
    }
}

/// Whether `model` can be a name. What is no name is refused before anything remembers it.
fn named(model: &str) -> Result<(), Failure> {
    let problem = if model.len() > MAX_MODEL {
        format!("has {} bytes; a name has at most {MAX_MODEL}", model.len())
    } else if model.contains(char::is_control) {
        "has a line end or another control character in it".to_owned()
    } else {
        return Ok(());
    };
    Err(Failure::refused(Reason::Format, format!("model: {problem}")).with_evidence("model"))
}

/// The whole of a body, within its limits and in memory that there is. One that is announced as too large is
/// not read.
async fn collect(
    body: &mut Body,
    setup: &Setup,
    admitted: &mut Admitted,
) -> Result<Bytes, Failure> {
    let limit = setup.body_limit;
    let too_large = || {
        let message =
            format!("the request body is larger than the {limit} bytes this gateway takes");
        Failure::refused(Reason::PayloadTooLarge, message)
    };
    let hint = body.size_hint();
    if hint.lower() > limit as u64 {
        return Err(too_large());
    }
    let announced = hint.upper().map_or(limit, |length| length as usize);
    admitted.announced(hint.lower())?;
    let now = Instant::now();
    let end = later(now, setup.body_timeout);
    let mut due = end.min(later(now, setup.body_progress));
    let mut pieces = Collected::default();
    loop {
        let frame = match timeout_at(due, body.frame()).await {
            Err(_) => return Err(late(due == end, setup)),
            Ok(None) => break,
            Ok(Some(Err(error))) => {
                let broken = Failure::refused(Reason::Cancelled, "the request body broke off");
                return Err(broken.with_source(error));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        // An empty piece is no progress.
        let Some(bytes) = frame.into_data().ok().filter(|bytes| !bytes.is_empty()) else {
            continue;
        };
        let length = pieces.len() + bytes.len();
        if length > limit {
            return Err(too_large());
        }
        // Twice as much each time, so that nothing is taken for what may never come.
        let most = announced.max(length);
        admitted.reserve(length.next_power_of_two().min(most)).await?;
        pieces.push(bytes, most);
        if !body.is_end_stream() {
            due = end.min(later(Instant::now(), setup.body_progress));
        }
    }
    admitted.shrink(pieces.len());
    Ok(pieces.whole())
}

/// The failure of a body that took too long: as a whole, or between two pieces.
fn late(whole: bool, setup: &Setup) -> Failure {
    let (limit, key) = if whole {
        (setup.body_timeout, "body_timeout_s")
    } else {
        (setup.body_progress, "body_progress_s")
    };
    let limit = limit.as_secs_f64();
    let what = if whole { "did not arrive in time" } else { "stopped on its way" };
    let message = format!("the request body {what}: the limit is {limit} s (`server.{key}`)");
    Failure::refused(Reason::Timeout, message)
        .with_status(http::StatusCode::REQUEST_TIMEOUT)
        .with_fault(FaultSide::Caller)
        .with_evidence("request body")
}

/// The pieces of a body that have come; one alone is not copied.
#[derive(Default)]
struct Collected {
    first: Bytes,
    /// With the first, once there are more.
    all: Vec<u8>,
}

impl Collected {
    fn len(&self) -> usize {
        self.first.len().max(self.all.len())
    }

    /// One more, of `most` bytes in all.
    fn push(&mut self, bytes: Bytes, most: usize) {
        if self.len() == 0 {
            self.first = bytes;
            return;
        }
        let length = self.len() + bytes.len();
        if self.all.capacity() < length {
            // Grown in few steps: what is left behind is not given back at once. As much is charged by now.
            let capacity = length.saturating_mul(COST as usize).min(most);
            self.all.reserve_exact(capacity - self.all.len());
        }
        if self.all.is_empty() {
            self.all.extend_from_slice(&self.first);
            self.first = Bytes::new();
        }
        self.all.extend_from_slice(&bytes);
    }

    fn whole(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.into() }
    }
}

/// `body`, without the buffer it was read into if it is small. The request is kept until its answer
/// has ended, and would keep that buffer with it; the connection would get another one meanwhile.
fn let_go(body: Bytes) -> Bytes {
    if body.len() <= COPIED { Bytes::copy_from_slice(&body) } else { body }
}

/// `context` with what the caller says beside the request itself, in `x-steadfast-*` headers.
fn context(mut context: CallContext, headers: &HeaderMap, caller: &Principal) -> CallContext {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let number = |name: &str| text(name).and_then(|text| text.trim().parse::<u64>().ok());
    if let Principal::Tenant(key) = caller {
        context = context.with_tenant(key.tenant.clone()).with_key(key.name.clone());
    }
    if !headers.keys().any(|name| name.as_str().starts_with("x-steadfast-")) {
        return context;
    }
    if let Some(session) = text("x-steadfast-session") {
        context = context.with_session(session);
    }
    if let Some(agent) = text("x-steadfast-agent") {
        context = context.with_agent(agent);
    }
    if let Some(task) = text("x-steadfast-task") {
        context = context.with_task(task);
    }
    if text("x-steadfast-priority") == Some("background") {
        context = context.with_priority(Priority::Background);
    }
    if let Some(limit) = number("x-steadfast-timeout-ms") {
        context = context.with_deadline(Deadline::after(Duration::from_millis(limit)));
    }
    context.max_attempts = number("x-steadfast-max-attempts")
        .and_then(|most| u32::try_from(most).ok())
        .and_then(NonZeroU32::new);
    context
}

/// The next event of an answer.
async fn next(events: &mut EventStream) -> Option<Result<Event, Failure>> {
    std::future::poll_fn(|cx| events.as_mut().poll_next(cx)).await
}

/// A whole answer.
async fn whole(
    dialect: Dialect,
    response: ChatResponse,
    record: &mut Record,
    outgoing: &Outgoing,
) -> Result<Response, Failure> {
    record.answered(&response.head);
    let (head, mut events) = response.into_parts();
    let first = next(&mut events).await.transpose()?;
    let own = first.as_ref().filter(|event| event.is_end()).and_then(|event| event.frame(dialect));
    let body = match own.filter(|frame| frame.kind == FrameKind::Body) {
        // In the caller's own dialect the body is the answer, and nobody needs to know what it says.
        // Nothing comes behind the end.
        Some(frame) => {
            if let Some(usage) = first.as_ref().and_then(Event::usage) {
                record.used(usage);
            }
            frame.bytes.clone()
        }
        None => {
            let mut completion = Completion::new(head.clone());
            let mut more = first;
            while let Some(event) = more {
                completion.push(&event);
                more = next(&mut events).await.transpose()?;
            }
            record.used(&completion.usage);
            let addressee = Caller::new(record.model(), false);
            codec(dialect).encode_answer(&completion, &addressee)?
        }
    };
    let mut response = reply::ok("application/json", Body::from(body));
    reply::stamp(
        response.headers_mut(),
        dialect,
        head.target.as_ref(),
        head.attempts,
        outgoing,
        &head.log,
    );
    record.done();
    Ok(response)
}

/// An answer in pieces. From here on a failure is an event of the stream.
fn stream(
    keepalive: Duration,
    dialect: Dialect,
    addressee: &Caller,
    sse: bool,
    response: ChatResponse,
    mut record: Record,
    outgoing: Outgoing,
) -> Response {
    record.answered(&response.head);
    let (head, events) = response.into_parts();
    let encoder = StreamEncoder::new(dialect, addressee, head.dialect);
    let array = (!sse).then(ArrayEncoder::default);
    let content_type = if sse { "text/event-stream" } else { "application/json" };
    let mut response = reply::ok(content_type, Body::empty());
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, http::HeaderValue::from_static("no-cache"));
    // Proxies such as nginx must not collect a stream before they forward it.
    headers.insert("x-accel-buffering", http::HeaderValue::from_static("no"));
    reply::stamp(headers, dialect, head.target.as_ref(), head.attempts, &outgoing, &head.log);
    let body = StreamBody::new(dialect, events, encoder, array, keepalive, record, outgoing.mask);
    *response.body_mut() = Body::new(body);
    response
}

/// Who asks. Gemini's SDKs may send the key in the address.
pub(super) fn caller(setup: &Setup, request: &Parts) -> Result<Principal, Failure> {
    setup.keys.caller(request, query(&request.uri, "key").as_deref()).ok_or_else(|| {
        Failure::refused(Reason::Auth, reply::NO_KEY)
            .with_status(http::StatusCode::UNAUTHORIZED)
            .with_fault(FaultSide::Caller)
            .with_evidence("gateway key")
    })
}

/// Whether a Gemini caller asked for server-sent events rather than a JSON array.
fn wants_sse(parts: &Parts) -> bool {
    query(&parts.uri, "alt").as_deref() == Some("sse")
}

/// The value of `name` in the query of `uri`.
pub(crate) fn query<'a>(uri: &'a Uri, name: &str) -> Option<Cow<'a, str>> {
    form_urlencoded::parse(uri.query()?.as_bytes())
        .find_map(|(key, value)| (key == name).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_body_lets_go_of_what_it_was_read_into() {
        for (length, free) in [(0, true), (COPIED, true), (COPIED + 1, false)] {
            let buffer = Bytes::from(vec![b'x'; 2 * COPIED]);
            let body = let_go(buffer.slice(..length));
            assert_eq!((body.len(), buffer.is_unique()), (length, free));
        }
    }
}
