//! Stacks around simulated providers in process, on tokio's clock.
//!
//! A [`Net`] routes each request of the client to the provider with the name of its host. So
//! everything from the typed request down to the bytes on the wire runs as over a network, but
//! without a socket, and on a paused clock all times are exact.
//!
//! ```
//! use steadfast::{ChatRequest, Dialect, Stack};
//! use steadfast_tests::harness::{self, CallResult};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
//! let sims = harness::trio(|_, provider| provider);
//! let llm = Stack::new(harness::chain(&sims)).boxed(harness::client(&sims));
//! let got = CallResult::of(&llm, ChatRequest::user("hello")).await;
//! assert_eq!(got.answer().text(), sims[0].journal().last().unwrap().sent.unwrap().text);
//! # }
//! ```
// A harness fails by panicking: it runs only in tests.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{Request, Response};
use steadfast::{
    ChatRequest, ChatService, Completion, Dialect, Event, EventStream, Failure, Head,
    client::{ClientBody, Credential, LlmClient, Provider, Providers, dialect::Wire},
    failover::{Chain, TargetSpec},
    sim::{self, Entry, SimBody, SimError, SimProvider, SimProviderBuilder},
};
use tokio::time::Instant;
use tokio_stream::{Stream as _, StreamExt as _};
use tower::ServiceExt as _;
use tower_service::Service;

/// The usual three providers, in the order of the usual chain.
pub const TRIO: [(&str, Dialect); 3] =
    [("anthropic", Dialect::Anthropic), ("openai", Dialect::OpenAi), ("google", Dialect::Gemini)];

/// A network of simulated providers; the name of a provider is its host.
#[derive(Clone, Debug)]
pub struct Net(Arc<[SimProvider]>);

impl Net {
    /// The network of these providers.
    pub fn new(sims: &[SimProvider]) -> Self {
        Self(sims.into())
    }
}

impl Service<Request<ClientBody>> for Net {
    type Response = Response<SimBody>;
    type Error = SimError;
    type Future = sim::ResponseFuture;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), SimError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        let host = request.uri().host().unwrap_or_default();
        // One that speaks two dialects is two of one name, of which the address chooses.
        let wants = request.uri().path().ends_with("/responses");
        let own = |one: &&SimProvider| (one.dialect() == Dialect::Responses) == wants;
        let mut named = self.0.iter().filter(|provider| provider.name() == host);
        let first = named.next();
        let provider = first.filter(own).or_else(|| named.find(own)).or(first);
        provider.unwrap_or_else(|| panic!("no provider is called {host:?}")).clone().call(request)
    }
}

/// The model that callers of this dialect request, and that is sent to its provider.
pub fn model(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Anthropic => "claude-sonnet-4-5",
        Dialect::Gemini => "gemini-2.5-flash",
        _ => "gpt-4o",
    }
}

/// The field of a request that has the conversation.
pub fn turns_key(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::OpenAi | Dialect::Anthropic => "messages",
        Dialect::Gemini => "contents",
        Dialect::Responses => "input",
    }
}

/// The providers of [`TRIO`], each set up by `set_up`.
pub fn trio(
    set_up: impl Fn(Dialect, SimProviderBuilder) -> SimProviderBuilder,
) -> Vec<SimProvider> {
    TRIO.map(|(name, dialect)| {
        set_up(dialect, SimProvider::builder(dialect).with_name(name)).build()
    })
    .into()
}

/// The address of this provider in a [`Net`].
pub fn base_url(provider: &SimProvider) -> String {
    let version = match provider.dialect() {
        Dialect::OpenAi | Dialect::Responses => "/v1",
        Dialect::Anthropic | Dialect::Gemini => "",
    };
    format!("http://{}{version}", provider.name())
}

/// A client of these providers.
pub fn client(sims: &[SimProvider]) -> LlmClient<Net> {
    LlmClient::with_service(providers(sims), Net::new(sims))
}

/// These providers, as a client knows them: for a network of your own.
pub fn providers(sims: &[SimProvider]) -> Providers {
    let providers = sims.iter().map(|provider| {
        Provider::new(provider.name(), provider.dialect())
            .with_base_url(base_url(provider))
            .with_wire(Wire::default())
            .with_credential(Credential::new("main", "sk-0123456789abcdef"))
    });
    Providers::new(providers).unwrap()
}

/// A provider as a target: whatever model is requested, it gets one that it has.
pub fn target(provider: &SimProvider) -> TargetSpec {
    let dialect = provider.dialect();
    TargetSpec::new(provider.name()).with_dialect(dialect).with_model("*", model(dialect))
}

/// These providers as targets, in their order.
pub fn chain(sims: &[SimProvider]) -> Chain {
    Chain::new(sims.iter().map(target)).unwrap()
}

/// What one caller received.
#[derive(Debug)]
pub struct CallResult {
    /// The events before the end or the failure, combined; `None` without an answer.
    pub seen: Option<Completion>,
    /// The same events, one by one.
    pub events: Vec<Event>,
    /// The failure that ended it.
    pub failure: Option<Failure>,
    /// Whether it failed after the answer had started.
    pub in_answer: bool,
    /// From the call to its end, on tokio's clock.
    pub took: Duration,
    /// What followed the end or the first error: must be `None`.
    pub after_end: Option<String>,
}

impl CallResult {
    /// Makes the call and reads the answer to its end.
    ///
    /// # Panics
    ///
    /// When anything follows the end or the first error.
    pub async fn of(service: &ChatService, request: ChatRequest) -> Self {
        let got = Self::unchecked(service, request).await;
        assert_eq!(got.after_end, None, "after the end");
        got
    }

    /// The same without the panic, for tests that check [`after_end`](Self::after_end).
    pub async fn unchecked(service: &ChatService, request: ChatRequest) -> Self {
        let started = Instant::now();
        match service.clone().oneshot(request).await {
            Err(failure) => Self {
                seen: None,
                events: Vec::new(),
                failure: Some(failure),
                in_answer: false,
                took: started.elapsed(),
                after_end: None,
            },
            Ok(response) => {
                let (head, events) = response.into_parts();
                Self::read(head, events, started).await
            }
        }
    }

    async fn read(head: Head, mut stream: EventStream, started: Instant) -> Self {
        let mut seen = Completion::new(head);
        let mut events = Vec::new();
        let mut failure = None;
        while let Some(item) = stream.next().await {
            match item {
                Ok(event) => {
                    seen.push(&event);
                    events.push(event);
                }
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        let took = started.elapsed();
        let mut after_end = None;
        for _ in 0..3 {
            let again = Pin::new(&mut stream).poll_next(&mut Context::from_waker(Waker::noop()));
            if !matches!(again, Poll::Ready(None)) {
                after_end.get_or_insert_with(|| format!("{again:?}"));
            }
        }
        let in_answer = failure.is_some();
        Self { seen: Some(seen), events, failure, in_answer, took, after_end }
    }

    /// The whole answer.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn answer(&self) -> &Completion {
        match (&self.failure, &self.seen) {
            (None, Some(seen)) if seen.ended => seen,
            (failure, _) => panic!("no whole answer: {failure:?}"),
        }
    }
}

/// The wait before each request but the first, since the end of the one before it.
pub fn waits(entries: &[Entry]) -> Vec<Duration> {
    entries.windows(2).map(|pair| pair[1].at - pair[0].ended_at.unwrap_or(pair[0].at)).collect()
}
