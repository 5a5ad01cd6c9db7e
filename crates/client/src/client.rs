//! The client: a request becomes an HTTP request, an HTTP response an answer.

use std::{
    fmt,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, header};
use http_body::Body;
use http_body_util::Full;
use steadfast_chat::{ChatRequest, ChatResponse, ModelName};
use steadfast_core::{BoxError, CallContext, Dialect, Failure, FaultSide, Reason, Target};
use tower_service::Service;

use crate::{
    Providers,
    authorize::{Access, Outgoing, Sending},
    dialect::translation::{self, LeftOut},
    events::{Asked, ClientEvents},
    future::ResponseFuture,
    headers::may_pass,
    platform::Operation,
    provider::{Endpoint, Key},
    transport_failure,
};

/// The body of the requests a client sends.
pub type ClientBody = Full<Bytes>;

/// The number of the attempt, counted over all targets.
const ATTEMPT: HeaderName = HeaderName::from_static("x-steadfast-attempt");

pub(crate) const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("steadfast/", env!("CARGO_PKG_VERSION")));

/// How much of an answer is read, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AnswerLimits {
    /// What is kept of an error's body. 64 KiB: errors worth reading are a few hundred bytes, and
    /// pages of HTML are smaller.
    pub error: usize,
    /// How much more of an error's body is read and thrown away, so that the connection can be
    /// used again: 64 KiB, about what a new TLS connection costs in time.
    pub drain: usize,
    /// The largest whole answer. 64 MiB: a few generated images in base64.
    pub answer: usize,
    /// The largest answer with embeddings. 256 MiB: 2,048 vectors of 3,072 numbers as text, the most that OpenAI
    /// gives at once, are half of that.
    pub embeddings: usize,
    /// The largest event of a stream; see [`MAX_EVENT`](crate::sse::MAX_EVENT).
    pub event: usize,
}

impl Default for AnswerLimits {
    fn default() -> Self {
        Self {
            error: 64 * 1024,
            drain: 64 * 1024,
            answer: 64 * 1024 * 1024,
            embeddings: 256 * 1024 * 1024,
            event: crate::sse::MAX_EVENT,
        }
    }
}

/// An LLM client over any tower HTTP service.
///
/// The request's [context](steadfast_core::CallContext) names the target: provider, model,
/// credential; without one the first provider is asked. It makes one attempt and no more, and has
/// no time limit: those are the layers' above.
///
/// What comes back ends well only after the provider's terminal event. A refusal, a 200 with an
/// error or a page of HTML in it, a broken connection: all are a [`Failure`], with what the
/// provider sent as evidence for a classifier. Dropping the future or the answer closes the
/// connection, or the HTTP/2 stream, under it.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use steadfast_client::{Credential, LlmClient, Provider, Providers};
/// use steadfast_chat::ChatRequest;
/// use steadfast_core::Dialect;
/// use tower_service::Service;
///
/// let providers = Providers::new([
///     Provider::new("openai", Dialect::OpenAi).with_credential(Credential::env("OPENAI_API_KEY")?),
/// ])?;
/// let mut client = LlmClient::new(providers);
/// let answer = client.call(ChatRequest::user("hello").with_model("gpt-4o")).await?.collect().await?;
/// println!("{}", answer.text());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LlmClient<S> {
    pub(crate) providers: Providers,
    pub(crate) service: S,
    pub(crate) limits: AnswerLimits,
}

impl<S> LlmClient<S> {
    /// A client that sends through `service`: an axum `Router`, a simulator, a client of one's own.
    pub fn with_service(providers: Providers, service: S) -> Self {
        Self { providers, service, limits: AnswerLimits::default() }
    }

    /// With these limits.
    #[must_use]
    pub fn with_limits(mut self, limits: AnswerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The providers it knows.
    pub fn providers(&self) -> &Providers {
        &self.providers
    }

    /// The HTTP request for `request`, and what is to be remembered of it.
    fn prepare(&self, mut request: ChatRequest) -> Result<(Outgoing, Asked), Failure> {
        let target = request.context.target.clone();
        let refuse = |failure| refused(failure, target.as_ref());
        let caller = request.dialect();
        let (endpoint, key) = self.resolve(target.as_ref(), caller, &mut request.model)?;
        if let Some(target) = target.as_ref().filter(|_| caller == Some(endpoint.codec.dialect())) {
            request.leave_kept(target);
        }
        let left_out = translation::check(&request, endpoint.codec.dialect()).map_err(refuse)?;
        let body = endpoint.codec.encode_request(&request, &endpoint.wire).map_err(refuse)?;
        let outbound = Outbound {
            context: &request.context,
            model: &request.model,
            dialect: request.dialect(),
            headers: &request.headers,
            query: request.query.as_deref(),
            uri: endpoint.uri.as_ref(),
            path: &|| endpoint.codec.path(&request.model, request.stream),
            what: Operation::Generate { stream: request.stream },
        };
        let http = http_request(endpoint, key, &outbound, body).map_err(refuse)?;
        let asked = Asked { left_out, ..self.asked(endpoint, key, &outbound) };
        // A retry leaves out the same.
        let retried = request.context.routed.as_ref().is_some_and(|routed| routed.repeats > 0);
        if !(asked.left_out.is_empty() || retried) {
            let left_out = asked.left_out.to_string();
            translation::left_out(&asked.target, &left_out, &request.context.log);
        }
        Ok((http, asked))
    }

    /// Where a call of `caller` to `target` goes, which names its model.
    pub(crate) fn resolve(
        &self,
        target: Option<&Target>,
        caller: Option<Dialect>,
        model: &mut ModelName,
    ) -> Result<(&Endpoint, Option<&Key>), Failure> {
        let found =
            self.providers.route(target, caller).map_err(|failure| refused(failure, target))?;
        if let Some(own) = target.and_then(Target::model)
            && *model != own
        {
            *model = own.into();
        }
        if model.is_empty() {
            let message = "the request names no model, and its target neither";
            let failure = Failure::refused(Reason::Format, message)
                .with_fault(FaultSide::Caller)
                .with_evidence("client:model");
            return Err(refused(failure, target));
        }
        Ok(found)
    }

    /// What is to be remembered of a request that is sent.
    pub(crate) fn asked(
        &self,
        endpoint: &Endpoint,
        key: Option<&Key>,
        request: &Outbound<'_>,
    ) -> Asked {
        let context = request.context;
        let target = context.target.clone().unwrap_or_else(|| {
            let target = Target::new(endpoint.name.clone()).with_model(request.model.as_str());
            key.map_or(target.clone(), |key| target.with_credential(key.name.clone()))
        });
        let attempts = context.attempts.saturating_add(1);
        tracing::debug!(
            name: "steadfast::client::sent",
            target: "steadfast::client",
            target = %target,
            attempt = attempts,
            stream = request.is_stream(),
        );
        Asked {
            caller: request.dialect,
            left_out: LeftOut::default(),
            target,
            codec: endpoint.codec,
            envelope: endpoint.envelope,
            what: request.what,
            attempts,
            log: context.log.clone(),
            limits: self.limits,
        }
    }
}

/// A failure of a call that was not sent to `target`.
pub(crate) fn refused(failure: Failure, target: Option<&Target>) -> Failure {
    let failure = failure.with_attempts(0);
    match target {
        Some(target) => failure.with_target(target.clone()),
        None => failure,
    }
}

/// What is sent besides a body.
pub(crate) struct Outbound<'a> {
    pub(crate) context: &'a CallContext,
    pub(crate) model: &'a ModelName,
    /// The dialect it was read in.
    pub(crate) dialect: Option<Dialect>,
    pub(crate) headers: &'a HeaderMap,
    /// What the caller's address had in its query.
    pub(crate) query: Option<&'a str>,
    /// Its address without a query, where that is always the same.
    pub(crate) uri: Option<&'a Uri>,
    /// The path below the base URL, as the vendor has it.
    pub(crate) path: &'a dyn Fn() -> String,
    pub(crate) what: Operation,
}

impl Outbound<'_> {
    fn is_stream(&self) -> bool {
        matches!(self.what, Operation::Generate { stream: true })
    }
}

pub(crate) fn http_request(
    endpoint: &Endpoint,
    key: Option<&Key>,
    request: &Outbound<'_>,
    body: Bytes,
) -> Result<Outgoing, Failure> {
    let codec = endpoint.codec;
    let mut http = Request::new(());
    *http.method_mut() = Method::POST;
    // What is the caller's own goes where it means to the provider what it meant to the caller.
    let is_own_dialect = request.dialect.is_none_or(|read| read == codec.dialect());
    let query = request.query.filter(|_| is_own_dialect && endpoint.envelope.keeps_query());
    *http.uri_mut() = match (request.uri, query) {
        (Some(uri), None) => uri.clone(),
        _ => address(endpoint, request, query)?,
    };
    let headers = http.headers_mut();
    // With room for those of the transport.
    *headers = HeaderMap::with_capacity(12);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let accept = if request.is_stream() { "text/event-stream" } else { "application/json" };
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    // Answers are read as they come; a stream that is compressed comes later.
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(header::USER_AGENT, USER_AGENT);
    for (name, value) in codec.facts().headers {
        headers.insert(name, value.clone());
    }
    if is_own_dialect {
        for name in request.headers.keys().filter(|name| may_pass(name)) {
            headers.remove(name);
            for value in request.headers.get_all(name) {
                headers.append(name, value.clone());
            }
        }
    }
    for name in endpoint.headers.keys() {
        // Betas add up; every other header of the operator's replaces the caller's.
        if name != "anthropic-beta" {
            headers.remove(name);
        }
        for value in endpoint.headers.get_all(name) {
            headers.append(name, value.clone());
        }
    }
    let attempt = match request.context.attempts {
        0 => HeaderValue::from_static("1"),
        before => before.saturating_add(1).into(),
    };
    headers.insert(ATTEMPT, attempt);
    if let Some(trace) = request.context.trace.as_ref().filter(|_| endpoint.propagates) {
        trace.write_to(headers);
    }
    let body = endpoint.envelope.wrap(request.what, body, headers)?;
    if let Some(key) = key {
        key.add_to(headers);
    }
    Ok(Outgoing { request: http, body, access: Access::of(endpoint, key) })
}

/// The address of `request`, with what the caller's had in its query.
fn address(
    endpoint: &Endpoint,
    request: &Outbound<'_>,
    query: Option<&str>,
) -> Result<Uri, Failure> {
    let mut text = endpoint.path(request.what, request.model, (request.path)())?;
    if let Some(query) = query {
        text.push(if text.contains('?') { '&' } else { '?' });
        text.push_str(query);
    }
    format!("{}{text}", endpoint.base_url).parse().map_err(|error| {
        let message = format!("the model `{}` gives no valid address: {error}", request.model);
        Failure::refused(Reason::Format, message).with_evidence("client:address")
    })
}

impl<S, B> Service<ChatRequest> for LlmClient<S>
where
    S: Service<Request<ClientBody>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Body,
    B::Error: Into<BoxError>,
{
    type Response = ChatResponse<ClientEvents<B>>;
    type Error = Failure;
    type Future = ResponseFuture<Sending<S>, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.service.poll_ready(cx).map_err(|error| transport_failure(error.into()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        match self.prepare(request) {
            Ok((http, asked)) => {
                asked.log.count_attempt();
                ResponseFuture::calling(asked.send(&mut self.service, http), asked)
            }
            Err(failure) => ResponseFuture::refused(failure),
        }
    }
}

impl<S> fmt::Debug for LlmClient<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlmClient")
            .field("providers", &self.providers)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
