//! The client: a request becomes an HTTP request, an HTTP response an answer.

use std::{
    fmt,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, header};
use http_body::Body;
use http_body_util::Full;
use steadfast_chat::{ChatRequest, ChatResponse};
use steadfast_core::{BoxError, Failure, FaultSide, Reason, Target};
use tower_service::Service;

use crate::{
    Providers,
    events::{Asked, ClientEvents},
    future::ResponseFuture,
    headers::may_pass,
    provider::{Endpoint, Key},
    transport_failure,
};

/// The body of the requests a client sends.
pub type ClientBody = Full<Bytes>;

/// The number of the attempt, counted over all targets.
const ATTEMPT: HeaderName = HeaderName::from_static("x-steadfast-attempt");

const USER_AGENT: HeaderValue =
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
    /// The largest event of a stream; see [`MAX_EVENT`](crate::sse::MAX_EVENT).
    pub event: usize,
}

impl Default for AnswerLimits {
    fn default() -> Self {
        Self {
            error: 64 * 1024,
            drain: 64 * 1024,
            answer: 64 * 1024 * 1024,
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
    providers: Providers,
    service: S,
    limits: AnswerLimits,
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
    fn prepare(&self, mut request: ChatRequest) -> Result<(Request<ClientBody>, Asked), Failure> {
        let context = &request.context;
        let attempts = context.attempts;
        let target = context.target.clone();
        let refuse = |failure: Failure| {
            let failure = failure.with_attempts(0);
            match &target {
                Some(target) => failure.with_target(target.clone()),
                None => failure,
            }
        };
        let (endpoint, key) = self.providers.route(target.as_ref()).map_err(refuse)?;
        if let Some(model) = target.as_ref().and_then(Target::model)
            && request.model != model
        {
            request.model = model.into();
        }
        if request.model.is_empty() {
            let message = "the request names no model, and its target neither";
            return Err(refuse(
                Failure::refused(Reason::Format, message)
                    .with_fault(FaultSide::Caller)
                    .with_evidence("client:model"),
            ));
        }
        let body = endpoint.codec.encode_request(&request, &endpoint.wire).map_err(refuse)?;
        let http = http_request(endpoint, key, &request, body).map_err(refuse)?;
        let target = target.unwrap_or_else(|| {
            let target = Target::new(endpoint.name.clone()).with_model(request.model.as_str());
            key.map_or(target.clone(), |key| target.with_credential(key.name.clone()))
        });
        tracing::debug!(
            name: "steadfast::client::sent",
            target: "steadfast::client",
            target = %target,
            attempt = attempts.saturating_add(1),
            stream = request.stream,
        );
        let asked = Asked {
            target,
            codec: endpoint.codec,
            stream: request.stream,
            attempts: attempts.saturating_add(1),
            log: request.context.log.clone(),
            limits: self.limits,
        };
        Ok((http, asked))
    }
}

fn http_request(
    endpoint: &Endpoint,
    key: Option<&Key>,
    request: &ChatRequest,
    body: Bytes,
) -> Result<Request<ClientBody>, Failure> {
    let codec = endpoint.codec;
    let mut http = Request::new(Full::new(body));
    *http.method_mut() = Method::POST;
    *http.uri_mut() = match &endpoint.uri {
        Some(uri) => uri.clone(),
        None => format!("{}{}", endpoint.base_url, codec.path(&request.model, request.stream))
            .parse::<Uri>()
            .map_err(|error| {
                Failure::refused(
                    Reason::Format,
                    format!("the model `{}` gives no valid address: {error}", request.model),
                )
                .with_evidence("client:address")
            })?,
    };
    let headers = http.headers_mut();
    // With room for those of the transport.
    *headers = HeaderMap::with_capacity(12);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let accept = if request.stream { "text/event-stream" } else { "application/json" };
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    headers.insert(header::USER_AGENT, USER_AGENT);
    for (name, value) in codec.facts().headers {
        headers.insert(name, value.clone());
    }
    // The caller's own, where they mean to the provider what they meant to the caller.
    if request.dialect().is_none_or(|read| read == codec.dialect()) {
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
    if let Some(key) = key {
        headers.insert(&key.header, key.value.clone());
    }
    Ok(http)
}

impl<S, B> Service<ChatRequest> for LlmClient<S>
where
    S: Service<Request<ClientBody>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: Body,
    B::Error: Into<BoxError>,
{
    type Response = ChatResponse<ClientEvents<B>>;
    type Error = Failure;
    type Future = ResponseFuture<S::Future, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.service.poll_ready(cx).map_err(|error| transport_failure(error.into()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        match self.prepare(request) {
            Ok((http, asked)) => {
                asked.log.count_attempt();
                ResponseFuture::calling(self.service.call(http), asked)
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
