//! One chat request: read, asked, answered.

use std::{borrow::Cow, num::NonZeroU32, pin::pin, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::Request,
    response::Response,
};
use http::{HeaderMap, HeaderValue, Uri, header, request::Parts};
use steadfast::recover::CONTINUE;
use steadfast_chat::{
    ChatRequest, ChatResponse, Completion, Delta, Event, EventStream, FrameKind, Head, StopReason,
};
use steadfast_client::dialect::{Caller, Route, StreamEncoder, codec, values};
use steadfast_core::{CallContext, Deadline, Dialect, Failure, FaultSide, Priority, Reason, Usage};
use tokio::time::timeout;
use tower::{Service, ServiceExt};

use super::{
    App, Setup,
    array::ArrayEncoder,
    body, compaction, down,
    record::Record,
    reply::{self, Outgoing},
    session,
    stream::{AnswerFuture, EventSource, StreamBody},
    unread, upward,
    websocket::SocketCall,
};
use crate::{
    admission::{Admitted, SMALL},
    keys::Principal,
    responses,
};

/// The longest name of a model, in bytes: 512. Vendors' are below 100, cloud resource names of
/// tuned ones below 300. Names go into logs, metrics and what is remembered of targets.
const MAX_MODEL: usize = 512;

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
    // What is in force now is in force for all of this request.
    let setup = app.setup();
    let outgoing = Outgoing::of(&setup.secrets, &parts.headers, &parts.uri);
    let mut record = app.record(dialect, &outgoing, &parts);

    let received = match receive(app, &setup, &parts, &mut body).await {
        Ok(received) => received,
        Err(failure) => {
            record.failed(&failure, false);
            let mut refused = reply::refused(dialect, &failure, &outgoing);
            if parts.headers.contains_key(header::CONTENT_ENCODING) {
                // Its rest went with what unpacks it.
                refused.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                return refused;
            }
            return unread::drop_rest(&parts.headers, body, refused).await;
        }
    };
    let is_large = received.body.len() > SMALL;
    let called = {
        let called = pin!(ask(app, &setup, dialect, route.as_ref(), &parts, received, &mut record));
        if is_large { app.heavy().run(called).await } else { called.await }
    };
    let (mut call, addressee, streamed) = match called {
        Ok(called) => called,
        Err(failure) => return refused(dialect, &failure, record, &outgoing),
    };
    let Some(streamed) = streamed else {
        let answered = wait(app, is_large, &mut call).await;
        let answered = match answered {
            Ok(response) => whole(dialect, response, addressee, &mut record, &outgoing).await,
            Err(failure) => Err(failure),
        };
        return answered.unwrap_or_else(|failure| refused(dialect, &failure, record, &outgoing));
    };

    let sse = dialect != Dialect::Gemini || wants_sse(&parts);
    record.streams(streamed.deadline, streamed.pipeline);
    // What is no stream of events has no sign of life.
    let early = setup.early_keepalive.filter(|_| sse);
    let answered = match early {
        None => wait(app, is_large, &mut call).await,
        Some(early) => match timeout(early, wait(app, is_large, &mut call)).await {
            Ok(answered) => answered,
            Err(_) => {
                let call = if is_large { app.heavy().clone().boxed(call) } else { call };
                let log = record.log();
                let source = EventSource::Opening { call, addressee };
                let mut response = streaming(true);
                reply::stamp(response.headers_mut(), dialect, None, 0, &outgoing, &log);
                let body =
                    StreamBody::new(dialect, source, None, setup.keepalive, record, outgoing.mask);
                return response.map(|_| Body::new(body));
            }
        },
    };
    match answered {
        Ok(response) => {
            stream(setup.keepalive, dialect, &addressee, sse, response, record, outgoing)
        }
        Err(failure) => refused(dialect, &failure, record, &outgoing),
    }
}

/// Waits for the answer of `call`, where large requests run.
async fn wait(app: &App, is_large: bool, call: &mut AnswerFuture) -> Result<ChatResponse, Failure> {
    if is_large { app.heavy().run(call.as_mut()).await } else { call.await }
}

/// The answer to a call that failed before anything was sent.
fn refused(
    dialect: Dialect,
    failure: &Failure,
    mut record: Record,
    outgoing: &Outgoing,
) -> Response {
    let log = record.log();
    record.failed(failure, false);
    reply::failed(dialect, failure, outgoing, &log)
}

/// A request that was let in, and has come.
pub(super) struct Received {
    pub(super) caller: Principal,
    pub(super) body: Bytes,
    pub(super) admitted: Admitted,
}

/// Lets a request in whose caller may ask, and takes its body.
pub(super) async fn receive(
    app: &App,
    setup: &Setup,
    parts: &Parts,
    body: &mut Body,
) -> Result<Received, Failure> {
    let caller = caller(setup, parts)?;
    let encoding = body::encoding(&parts.headers)?;
    let tenant = match &caller {
        Principal::Tenant(key) => Some(key.tenant.clone()),
        Principal::Anyone => None,
    };
    let mut admitted = app.admission().enter(tenant)?;
    let body = match encoding {
        None => body::collect(body, setup, &mut admitted).await?,
        Some(encoding) => {
            // What is left unread of it is dropped with it, and ends the connection.
            let packed = std::mem::take(body);
            let mut unpacked = encoding.unpack(packed, setup.body_limit);
            body::collect(&mut unpacked, setup, &mut admitted).await?
        }
    };
    Ok(Received { caller, body: body::let_go(body), admitted })
}

/// How an answer in pieces was asked for.
struct Streamed {
    deadline: Option<Deadline>,
    pipeline: Duration,
}

/// Reads what is asked, and asks it. The answer is to be waited for.
async fn ask(
    app: &App,
    setup: &Setup,
    dialect: Dialect,
    route: Option<&GeminiRoute>,
    parts: &Parts,
    mut received: Received,
    record: &mut Record,
) -> Result<(AnswerFuture, Caller, Option<Streamed>), Failure> {
    if received.body.len() > body::COPIED {
        received.admitted.weigh(values(&received.body)).await?;
    }
    let request = read(setup, dialect, route, parts, &received);
    record.admitted(received.admitted);
    let mut request = request?;
    request.context.trace = record.trace();
    let socket = parts.extensions.get::<SocketCall>();
    let memory = socket.map(|socket| &socket.memory);
    app.responses().learn(&request).await;
    record.keeps(app.responses().fit_for(&mut request, setup.isolates(), memory)?);
    let route = setup.gateway.route(&request);
    record.asked(
        &request.context,
        &request.model,
        request.stream,
        route.name(),
        setup.gateway.prices(),
    );
    record.teaches(setup.gateway.counting().lesson(&request));
    let addressee = Caller::of(&request);
    let streamed = request
        .stream
        .then(|| Streamed { deadline: request.context.deadline, pipeline: route.pipeline() });
    if socket.is_some_and(|socket| !socket.generate) {
        return Ok((Box::pin(std::future::ready(Ok(prepared(&request)))), addressee, streamed));
    }
    let pinned = responses::pinned(&request).cloned();
    let mut service = route.service();
    let call: AnswerFuture = if compaction::is_asked(&request) {
        let may = compaction::may_be_made_there(setup, &request);
        Box::pin(compaction::respond(service, request, may))
    } else {
        service.ready().await?.call(request)
    };
    let call: AnswerFuture = match pinned {
        None => call,
        Some(at) => {
            Box::pin(async move { call.await.map_err(|failure| responses::stuck(failure, &at)) })
        }
    };
    Ok((call, addressee, streamed))
}

/// The answer to a `request` that no model is to be asked: it is remembered, and says nothing.
fn prepared(request: &ChatRequest) -> ChatResponse {
    let mut head = Head::new(Dialect::Responses);
    (head.stream, head.log) = (request.stream, request.context.log.clone());
    let event = Event::new([
        Delta::Start { id: None, model: Some(request.model.as_str().to_owned()) },
        Delta::Usage(Usage::new(0, 0)),
        Delta::Stop(StopReason::EndTurn.into()),
        Delta::End,
    ]);
    let events: EventStream = Box::pin(futures_util::stream::iter([Ok(event)]));
    ChatResponse::new(head, events)
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
    session::identify(&mut request, &parts.headers);
    request.context.held_bytes = admitted.held();
    upward::add(&mut request.headers, &mut request.query, dialect, parts, &setup.forward);
    // For the continuation layer; no header of this gateway's own goes to a provider.
    if parts.headers.get(CONTINUE).is_some_and(|value| value == "1") {
        request.headers.insert(CONTINUE, HeaderValue::from_static("1"));
    }
    Ok(request)
}

/// Whether `model` can be a name. What is no name is refused before anything remembers it.
pub(super) fn named(model: &str) -> Result<(), Failure> {
    let problem = if model.len() > MAX_MODEL {
        format!("has {} bytes; a name has at most {MAX_MODEL}", model.len())
    } else if model.contains(char::is_control) {
        "has a line end or another control character in it".to_owned()
    } else {
        return Ok(());
    };
    Err(Failure::refused(Reason::Format, format!("model: {problem}")).with_evidence("model"))
}

/// `context` with what the caller says beside the request itself, in `x-steadfast-*` headers.
pub(super) fn context(
    mut context: CallContext,
    headers: &HeaderMap,
    caller: &Principal,
) -> CallContext {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let number = |name: &str| text(name).and_then(|text| text.trim().parse::<u64>().ok());
    if let Principal::Tenant(key) = caller {
        context = context.with_tenant(key.tenant.clone()).with_key(key.name.clone());
    }
    if !headers.keys().any(|name| name.as_str().starts_with("x-steadfast-")) {
        return context;
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
pub(super) async fn next(events: &mut EventStream) -> Option<Result<Event, Failure>> {
    std::future::poll_fn(|cx| events.as_mut().poll_next(cx)).await
}

/// A whole answer.
async fn whole(
    dialect: Dialect,
    response: ChatResponse,
    mut addressee: Caller,
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
            addressee.stream_usage = false;
            codec(dialect).encode_answer(&completion, &addressee)?
        }
    };
    record.keep_whole(&body);
    let mut response = reply::ok("application/json", Body::from(body));
    reply::stamp(
        response.headers_mut(),
        dialect,
        head.target.as_ref(),
        head.attempts,
        outgoing,
        &head.log,
    );
    reply::stamp_left_out(response.headers_mut(), &head, outgoing);
    down::add(response.headers_mut(), dialect, head.headers.received(), head.dialect, outgoing);
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
    let source = EventSource::Open { events, encoder };
    let array = (!sse).then(ArrayEncoder::default);
    let mut response = streaming(sse);
    let headers = response.headers_mut();
    reply::stamp(headers, dialect, head.target.as_ref(), head.attempts, &outgoing, &head.log);
    reply::stamp_left_out(headers, &head, &outgoing);
    down::add(headers, dialect, head.headers.received(), head.dialect, &outgoing);
    let body = StreamBody::new(dialect, source, array, keepalive, record, outgoing.mask);
    response.map(|_| Body::new(body))
}

/// The head of an answer in pieces.
fn streaming(sse: bool) -> Response {
    let content_type = if sse { "text/event-stream" } else { "application/json" };
    let mut response = reply::ok(content_type, Body::empty());
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies such as nginx must not collect a stream before they forward it.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
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
