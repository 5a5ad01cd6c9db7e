//! Serves one request: fault, checks, answer, response.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use serde_json::Value;

use crate::answer::{Answer, Stop, Usage};
use crate::body::{SimBody, Step};
use crate::clock::go_duration;
use crate::dialect::overflow::{self, Overflow};
use crate::dialect::{self, Check, Dialect, ErrorContext, Form, Refusal, Render, Route};
use crate::embed::{self, EmbedCall};
use crate::error::{SimError, SimErrorKind};
use crate::fault::{Fault, RawResponse};
use crate::hash;
use crate::hosting::{Received, VendorRequest};
use crate::journal::{End, Entry, EntryGuard, redacted_headers, redacted_query};
use crate::limit::Resource;
use crate::models::Model;
use crate::provider::Inner;
use crate::request::SimRequest;
use crate::tokens::count_tokens;
use crate::wire::{BodyBuilder, Frame, Kind};

/// The first creation time that is sent; each request's number is added.
const CREATED: u64 = 1_760_000_000;

/// A request in flight.
struct RequestInFlight<'a> {
    provider: &'a Inner,
    guard: EntryGuard,
    request_id: (Option<&'static str>, String),
    rng: fastrand::Rng,
    form: Form,
    key: String,
    /// The requested model, or a placeholder of that name if there is none.
    model: Model,
    known: bool,
    number: u64,
}

pub(crate) async fn serve(
    provider: &Inner,
    head: Parts,
    body: Bytes,
) -> Result<Response<SimBody>, SimError> {
    let dialect = provider.dialect;
    let hosting = &*provider.hosting;
    let path = head.uri.path();
    let query = head.uri.query().unwrap_or_default();
    let keys = provider.keys();
    let received = Received { dialect, head: &head, body: &body, keys: keys.as_deref() };
    let VendorRequest { path: vendor_path, query: vendor_query, headers, json, key, refused } =
        hosting.open(&received);
    let route = dialect::route(dialect, &head.method, &vendor_path);
    let (model, stream) = model_and_stream(&route, json.as_ref().ok());
    let (number, fault) = match &route {
        Route::Generate { .. } | Route::Embed { .. } => {
            provider.next_fault(&model, stream, json.as_ref().ok())
        }
        Route::Count { .. } => (0, provider.count_fault()),
        _ => (0, None),
    };

    let mut entry = Entry::new(&provider.name, head.method.as_str(), path);
    entry.number = number;
    entry.query = redacted_query(query);
    entry.headers = redacted_headers(&head.headers);
    entry.key = key.as_deref().map(hash::redact);
    entry.body = body.clone();
    entry.json = json.as_ref().ok().cloned();
    entry.model.clone_from(&model);
    entry.stream = stream;
    tracing::debug!(name: "steadfast::sim::request", target: "steadfast::sim", provider = %provider.name, number, path);

    let seed = hash::seed(&[
        &provider.seed.to_le_bytes(),
        provider.name.as_bytes(),
        &number.to_le_bytes(),
        &body,
    ]);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut in_flight = RequestInFlight {
        provider,
        guard: provider.journal.open(entry),
        request_id: hosting.request_id(dialect, &mut rng),
        rng,
        form: Form {
            crlf: provider.crlf,
            sse: dialect != Dialect::Gemini || is_sse(&vendor_query),
        },
        key: key.unwrap_or_default(),
        known: provider.model(&model).is_some(),
        model: provider.model(&model).cloned().unwrap_or_else(|| Model::new(model, 8_192, 1_024)),
        number,
    };

    let faults = fault.as_ref().map(Fault::each).unwrap_or_default();
    if let Some(before) = faults.iter().find(|fault| before_headers(fault)) {
        in_flight.guard.update(|entry| entry.fault.clone_from(&fault));
        return in_flight.fault_response(before, stream).await;
    }
    for one in faults {
        if let Fault::Window(window) = one {
            in_flight.model.context = window.tokens;
            in_flight.model.overflow = window.overflow.unwrap_or(in_flight.model.overflow);
            in_flight.guard.update(|entry| entry.fault.clone_from(&fault));
        }
    }
    in_flight.pause().await;
    let vendor = Opened { method: &head.method, path, headers: &headers, route: &route };
    let checked = match refused {
        Some(refusal) => Err(refusal),
        None => in_flight.validate(&vendor, json, &body),
    };
    match checked {
        Err(refusal) => Ok(in_flight.refuse(&refusal)),
        Ok(Reply::Document(document)) => Ok(in_flight.document(&document)),
        Ok(Reply::Embeddings(call)) => {
            in_flight.guard.update(|entry| entry.fault.clone_from(&fault));
            Ok(in_flight.embeddings(&call, faults))
        }
        Ok(Reply::Answer(request)) => {
            in_flight.guard.update(|entry| entry.fault.clone_from(&fault));
            Ok(in_flight.answer(&request, faults))
        }
    }
}

/// What of the vendor's request was read before it is checked.
#[derive(Clone, Copy)]
struct Opened<'a> {
    method: &'a Method,
    /// As it was received.
    path: &'a str,
    headers: &'a HeaderMap,
    route: &'a Route,
}

enum Reply {
    Document(Value),
    Embeddings(EmbedCall),
    Answer(Box<SimRequest>),
}

/// Model and form, as far as they can be read before anything was checked.
fn model_and_stream(route: &Route, json: Option<&Value>) -> (String, bool) {
    let (model, stream) = match route {
        Route::Generate { model, stream } => (model.clone(), *stream),
        Route::Count { model } | Route::Embed { model, .. } => (model.clone(), None),
        _ => return (String::new(), false),
    };
    let from_body = |key: &str| json.map(|json| &json[key]);
    (
        model.or_else(|| from_body("model")?.as_str().map(str::to_owned)).unwrap_or_default(),
        stream.or_else(|| from_body("stream")?.as_bool()).unwrap_or(false),
    )
}

fn is_sse(query: &str) -> bool {
    query.split('&').any(|pair| pair == "alt=sse")
}

fn before_headers(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Status(_)
            | Fault::Error(_)
            | Fault::ErrorInOk(_)
            | Fault::Empty
            | Fault::Hang
            | Fault::Refused
            | Fault::Reset
            | Fault::Close
            | Fault::HalfHeaders
    )
}

impl RequestInFlight<'_> {
    fn error_context(&self) -> ErrorContext<'_> {
        ErrorContext {
            dialect: self.provider.dialect,
            model: &self.model,
            wall: &self.provider.wall,
            request_id: &self.request_id.1,
            form: self.form,
            hosting: &*self.provider.hosting,
        }
    }

    async fn pause(&self) {
        let wait = self.provider.latency.headers;
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// The response of a fault that replaces the answer.
    async fn fault_response(
        mut self,
        fault: &Fault,
        stream: bool,
    ) -> Result<Response<SimBody>, SimError> {
        let broken = match fault {
            Fault::Refused => Some(SimErrorKind::Refused),
            Fault::Reset => Some(SimErrorKind::Reset),
            Fault::Close => Some(SimErrorKind::Closed),
            Fault::HalfHeaders => Some(SimErrorKind::HalfHeaders),
            _ => None,
        };
        if broken == Some(SimErrorKind::Refused) {
            self.guard.end(End::Broken);
            return Err(SimError::head(SimErrorKind::Refused));
        }
        self.pause().await;
        if let Some(kind) = broken {
            self.guard.end(End::Broken);
            return Err(SimError::head(kind));
        }
        match fault {
            Fault::Status(raw) => Ok(self.raw(raw)),
            Fault::Error(kind) => {
                let refusal = self.error_context().refusal(kind);
                Ok(self.send_refusal(&refusal, refusal.status))
            }
            Fault::ErrorInOk(kind) => {
                let refusal = self.error_context().refusal(kind);
                Ok(self.send_refusal(&refusal, 200))
            }
            Fault::Empty => {
                let dialect = self.provider.dialect;
                let (kind, body) = if stream {
                    (self.stream_type(), dialect::empty_stream(dialect))
                } else {
                    (dialect::json_type(dialect), "")
                };
                let mut headers = self.headers();
                set(&mut headers, header::CONTENT_TYPE, kind);
                Ok(self.finish(200, headers, BodyBuilder::whole(body)))
            }
            _ => std::future::pending().await,
        }
    }

    /// Everything a real provider checks.
    fn validate(
        &self,
        opened: &Opened<'_>,
        json: Result<Value, serde_json::Error>,
        raw: &[u8],
    ) -> Result<Reply, Refusal> {
        let provider = self.provider;
        let dialect = provider.dialect;
        let hosting = &*provider.hosting;
        let route = opened.route;
        if *route == Route::Hello {
            return Ok(Reply::Document(serde_json::json!({"message": "hello"})));
        }
        let counting = match route {
            Route::Unknown | Route::Hello => {
                return Err(dialect::no_route(dialect, opened.method, opened.path));
            }
            Route::Models => {
                return Ok(Reply::Document(dialect::models(dialect, &provider.models)));
            }
            Route::Model(name) => {
                let model = provider.model(name).ok_or_else(|| hosting.no_model(dialect, name))?;
                return Ok(Reply::Document(dialect::model(dialect, model)));
            }
            Route::Kept(id) => return provider.memory.responses.get(id).map(Reply::Document),
            Route::Deleted(id) => return provider.memory.responses.delete(id).map(Reply::Document),
            Route::Generate { .. } | Route::Embed { .. } => false,
            Route::Count { .. } => true,
        };
        let refused = |refusal| hosting.refused(dialect, refusal, counting);
        dialect::check_headers(dialect, opened.headers).map_err(refused)?;
        let mut body = json.map_err(|error| hosting.bad_json(dialect, &error, raw))?;
        if !body.is_object() {
            let error = serde::de::Error::custom("expected an object");
            return Err(hosting.bad_json(dialect, &error, raw));
        }
        if dialect == Dialect::Gemini && counting && body["generateContentRequest"].is_object() {
            body = body["generateContentRequest"].take();
        }
        if dialect == Dialect::Responses {
            body = provider.memory.responses.expand(body);
        }
        dialect::model_of(dialect, &body).map_err(refused)?;
        let embeds = matches!(route, Route::Embed { .. });
        if !self.known || (!counting && embeds != (self.model.dimensions > 0)) {
            return Err(hosting.no_model(dialect, &self.model.name));
        }
        if let Route::Embed { single, .. } = route {
            let call = embed::read(dialect, &self.model, *single, &body).map_err(refused)?;
            provider.limiter.admit(&self.key, call.input_tokens).map_err(|denied| {
                hosting.limited(dialect, &denied, &self.model.name, &provider.wall)
            })?;
            return Ok(Reply::Embeddings(call));
        }
        dialect::check(
            dialect,
            &Check {
                body: &body,
                model: &self.model,
                signer: &provider.signer,
                refuse_unknown: provider.refuse_unknown,
                signatures: self.model.signatures || (provider.signatures && self.model.thinking),
                bound_thinking: provider.bound_thinking,
                compacts: provider.compacts,
                counting,
                memory: &provider.memory,
            },
        )
        .map_err(refused)?;
        let input_tokens = count_tokens(&body) as u64;
        if counting {
            return Ok(Reply::Document(hosting.count(dialect, input_tokens)));
        }
        provider.limiter.admit(&self.key, input_tokens).map_err(|denied| {
            hosting.limited(dialect, &denied, &self.model.name, &provider.wall)
        })?;
        let (model, stream) = model_and_stream(route, Some(&body));
        let mut request = SimRequest {
            dialect,
            number: self.number,
            model,
            stream,
            body,
            last_user: String::new(),
            after_tool_results: false,
            tool_results: 0,
            asks_for_compaction: false,
            compacted: String::new(),
            prefill: String::new(),
            partial_answer: String::new(),
            tools: Vec::new(),
            max_output: None,
            thinking: false,
            input_tokens,
            include_usage: false,
            sse: self.form.sse,
        };
        request.tool_results = dialect::tool_results(dialect, &request.body);
        dialect::read(dialect, &mut request);
        if dialect == Dialect::Responses {
            request.compacted = dialect::compacted(&request.body, &provider.signer);
            request.asks_for_compaction &= provider.compacts == crate::SimCompaction::Made;
        }
        Ok(Reply::Answer(Box::new(request)))
    }

    fn refuse(self, refusal: &Refusal) -> Response<SimBody> {
        self.guard.update(|entry| entry.refused = Some(refusal.message.clone()));
        self.send_refusal(refusal, refusal.status)
    }

    fn send_refusal(self, refusal: &Refusal, status: u16) -> Response<SimBody> {
        let mut headers = self.headers();
        let kind = match refusal.html {
            Some(_) => "text/html",
            None => dialect::json_type(self.provider.dialect),
        };
        set(&mut headers, header::CONTENT_TYPE, kind);
        for (name, value) in &refusal.headers {
            set(&mut headers, HeaderName::from_static(name), value);
        }
        let body = self.error_context().body_of(refusal);
        self.finish(status, headers, BodyBuilder::whole(body))
    }

    fn raw(self, raw: &RawResponse) -> Response<SimBody> {
        let mut headers = HeaderMap::new();
        let json = serde_json::from_str::<Value>(&raw.body).is_ok();
        let kind = if json { "application/json" } else { "text/plain" };
        set(&mut headers, header::CONTENT_TYPE, kind);
        for (name, value) in &raw.headers {
            if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                set(&mut headers, name, value);
            }
        }
        self.finish(raw.status, headers, BodyBuilder::whole(raw.body.clone()))
    }

    fn document(self, document: &Value) -> Response<SimBody> {
        let mut headers = self.headers();
        set(&mut headers, header::CONTENT_TYPE, dialect::json_type(self.provider.dialect));
        self.finish(200, headers, BodyBuilder::whole(document.to_string()))
    }

    fn embeddings(self, call: &EmbedCall, faults: &[Fault]) -> Response<SimBody> {
        let dialect = self.provider.dialect;
        let mut builder = BodyBuilder::whole(call.answer(dialect, &self.model));
        builder.apply(faults, &self.error_context());
        let mut headers = self.headers();
        set(&mut headers, header::CONTENT_TYPE, dialect::json_type(dialect));
        self.finish(200, headers, builder)
    }

    fn answer(mut self, request: &SimRequest, faults: &[Fault]) -> Response<SimBody> {
        let provider = self.provider;
        let dialect = provider.dialect;
        let text_seed =
            hash::seed(&[&provider.seed.to_le_bytes(), request.body.to_string().as_bytes()]);
        let (mut limit, window) = self.limit(request, faults);
        let mut instead = (None, None);
        for fault in faults {
            match fault {
                Fault::Answer(answer) => instead.0 = Some(&**answer),
                Fault::Continuation(how) => instead.1 = Some(how),
                _ => {}
            }
        }
        let (mut answer, is_part) = provider
            .answer(request, limit, instead, || crate::generate::answer(request, text_seed));
        if let Some(kind) = &answer.refuse {
            let refusal = self.error_context().refusal(kind);
            return self.refuse(&refusal);
        }
        let own = answer.limit.filter(|own| *own < limit);
        limit = own.unwrap_or(limit);
        let mut request = request;
        let short;
        if request.input_tokens > self.model.context {
            match self.model.overflow {
                Overflow::Silent => {
                    let usage = Usage { input: request.input_tokens, ..Usage::default() };
                    answer = Answer::default().stop(Stop::EndTurn).usage(usage);
                }
                Overflow::Truncates => {
                    short = SimRequest { input_tokens: self.model.context, ..request.clone() };
                    request = &short;
                }
                _ => {}
            }
        }
        let cut = answer.cut_in(limit);
        if cut.is_some() && window && own.is_none() {
            answer.stop = Some(Stop::Window);
        }

        let mut render = Render {
            request,
            signer: &provider.signer,
            rng: self.rng.fork(),
            created: CREATED + self.number,
            form: self.form,
            signs: self.model.thinking || self.model.signatures,
            infix: provider.hosting.id_infix(),
        };
        let keeps = dialect == Dialect::Responses && request.body["store"] != false;
        let (mut builder, mut sent) = if request.stream {
            let (frames, sent) = dialect::stream(dialect, &answer, &mut render);
            if let Some(last) = frames.last().filter(|_| keeps) {
                provider.memory.responses.keep_end(&request.body, &last.bytes);
            }
            let frames = provider.hosting.frames(dialect, frames, &sent);
            (BodyBuilder::stream(self.timed(frames)), sent)
        } else {
            let (body, sent) = dialect::whole(dialect, &answer, &mut render);
            if keeps {
                let response = serde_json::from_str(&body).unwrap_or_default();
                provider.memory.responses.keep(&request.body, response);
            }
            let tokens = u32::try_from(sent.usage.output).unwrap_or(u32::MAX);
            let wait = provider.latency.per_token.saturating_mul(tokens);
            (BodyBuilder::whole_after(wait, provider.hosting.whole(dialect, body)), sent)
        };
        sent.cut = cut;
        provider.limiter.charge_output(&self.key, sent.usage.output);
        // A client joins parts of an answer, and has the thinking of the first.
        if dialect == Dialect::Anthropic && !is_part {
            provider.memory.remember(&sent);
        }
        builder.apply(faults, &self.error_context());

        let mut headers = self.headers();
        provider.hosting.answer_headers(dialect, request.stream, &sent, &mut headers);
        let mut kind =
            if request.stream { self.stream_type() } else { dialect::json_type(dialect) };
        for fault in faults {
            if let Fault::ContentType(other) = fault {
                kind = other;
            }
        }
        set(&mut headers, header::CONTENT_TYPE, kind);
        self.guard.update(|entry| entry.sent = Some(sent));
        self.finish(200, headers, builder)
    }

    /// How many output tokens an answer may have, and whether the window sets that limit.
    fn limit(&self, request: &SimRequest, faults: &[Fault]) -> (u64, bool) {
        let own = self.provider.output_limit.unwrap_or(u64::MAX);
        let mut limit = request.max_output.unwrap_or(u64::MAX).min(self.model.output).min(own);
        for fault in faults {
            if let Fault::OutputLimit(tokens) = fault {
                limit = limit.min(*tokens);
            }
        }
        match overflow::room(self.provider.dialect, &self.model, request.input_tokens) {
            Some(room) if room < limit => (room, true),
            _ => (limit, false),
        }
    }

    /// Adds the pauses between the content events.
    fn timed(&mut self, mut frames: Vec<Frame>) -> Vec<Frame> {
        let latency = self.provider.latency;
        if latency.per_token.is_zero() {
            return frames;
        }
        let jitter = if latency.jitter.is_finite() { latency.jitter.clamp(0.0, 1.0) } else { 0.0 };
        for frame in frames.iter_mut().filter(|frame| frame.kind == Kind::Content) {
            let factor = 1.0 + jitter * (2.0 * self.rng.f64() - 1.0);
            frame.wait = latency.per_token.mul_f64(factor);
        }
        frames
    }

    fn stream_type(&self) -> &'static str {
        self.provider.hosting.stream_type(self.provider.dialect, self.form.sse)
    }

    /// The headers every response of this provider has.
    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let hosting = &*self.provider.hosting;
        if let (Some(name), id) = &self.request_id {
            set(&mut headers, HeaderName::from_static(name), id);
        }
        hosting.headers(self.provider.dialect, &self.request_id.1, &mut headers);
        match self.provider.dialect {
            _ if !hosting.is_vendor() => {}
            Dialect::OpenAi | Dialect::Responses => {
                set(&mut headers, HeaderName::from_static("openai-version"), "2020-10-01");
                set(&mut headers, HeaderName::from_static("openai-organization"), "org-sim");
            }
            Dialect::Anthropic => {
                set(&mut headers, HeaderName::from_static("anthropic-organization-id"), "sim");
            }
            Dialect::Gemini => return headers,
        }
        if !hosting.shows_limits() {
            return headers;
        }
        for level in self.provider.limiter.levels(&self.key) {
            let what = match level.resource {
                Resource::Requests => "requests",
                Resource::Tokens => "tokens",
            };
            let rows = match self.provider.dialect {
                Dialect::Anthropic => [
                    (format!("anthropic-ratelimit-{what}-limit"), level.limit.to_string()),
                    (format!("anthropic-ratelimit-{what}-remaining"), level.remaining.to_string()),
                    (
                        format!("anthropic-ratelimit-{what}-reset"),
                        self.provider.wall.rfc3339_in(level.reset),
                    ),
                ],
                Dialect::OpenAi | Dialect::Gemini | Dialect::Responses => [
                    (format!("x-ratelimit-limit-{what}"), level.limit.to_string()),
                    (format!("x-ratelimit-remaining-{what}"), level.remaining.to_string()),
                    (format!("x-ratelimit-reset-{what}"), go_duration(level.reset)),
                ],
            };
            for (name, value) in rows {
                if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                    set(&mut headers, name, &value);
                }
            }
        }
        headers
    }

    fn finish(self, status: u16, headers: HeaderMap, builder: BodyBuilder) -> Response<SimBody> {
        self.guard.update(|entry| entry.status = Some(status));
        let exact = builder.exact();
        let steps: Vec<Step> = builder.into_steps();
        let mut response = Response::new(SimBody::new(steps, exact, Some(self.guard)));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        *response.headers_mut() = headers;
        response
    }
}

/// Sets a header; a value that can not be one is left out.
pub(crate) fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
