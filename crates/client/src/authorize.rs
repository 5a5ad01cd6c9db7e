//! Sending a request with what proves who asks.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::Full;
use pin_project_lite::pin_project;
use steadfast_core::{BoxError, Failure, FaultSide, Reason, RecoveryLog, Scope, Step, Target};
use tower_service::Service;

use crate::{
    ClientBody, Platform,
    platform::Envelope,
    provider::{Endpoint, Key},
    source::{Proof, REST, Renewed, TemporaryCredential},
};

pin_project! {
    /// Waits for the response to a request; before that, where the credential is one that expires, for that.
    ///
    /// A provider that no longer takes such a credential is asked once more with a new one.
    #[must_use = "futures do nothing unless polled"]
    pub struct Sending<S: Service<Request<ClientBody>>> {
        #[pin]
        state: State<S>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S: Service<Request<ClientBody>>> {
        Calling { #[pin] future: S::Future },
        // Boxed: it is the larger one, and rare.
        Renewing { exchange: Box<Exchange<S>> },
    }
}

/// A request that is ready to be sent but for a credential that expires.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) request: Request<()>,
    pub(crate) body: Bytes,
    pub(crate) access: Access,
}

/// What a request needs besides itself to be sent.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    /// Nothing: its credential, if it has one, stands in it.
    Ready,
    /// A credential of a source.
    Renewed { credential: Arc<Renewed>, platform: Platform, envelope: Envelope },
}

impl Access {
    /// What a request to `endpoint` with `key` needs.
    pub(crate) fn of(endpoint: &Endpoint, key: Option<&Key>) -> Self {
        match key.and_then(Key::renewed) {
            None => Self::Ready,
            Some(credential) => Self::Renewed {
                credential: credential.clone(),
                platform: endpoint.platform.clone(),
                envelope: endpoint.envelope,
            },
        }
    }
}

/// A request that is sent with a credential of a source, perhaps twice.
struct Exchange<S: Service<Request<ClientBody>>> {
    service: S,
    /// The service has a place for this call.
    ready: bool,
    parts: http::request::Parts,
    body: Bytes,
    credential: Arc<Renewed>,
    platform: Platform,
    envelope: Envelope,
    log: RecoveryLog,
    target: Target,
    renewed: bool,
    turn: Turn<S::Future>,
}

type Fetching = Pin<Box<dyn Future<Output = Result<Arc<TemporaryCredential>, Failure>> + Send>>;

enum Turn<F> {
    Fetching(Fetching),
    Waiting(Arc<TemporaryCredential>),
    Calling(Pin<Box<F>>, Arc<TemporaryCredential>),
}

impl<S: Service<Request<ClientBody>>> Sending<S> {
    /// Sends `request` by `service`, which is ready.
    pub(crate) fn new(
        service: &mut S,
        Outgoing { request, body, access }: Outgoing,
        (target, log): (&Target, &RecoveryLog),
    ) -> Self
    where
        S: Clone,
    {
        let Access::Renewed { credential, platform, envelope } = access else {
            let future = service.call(request.map(|()| Full::new(body)));
            return Self { state: State::Calling { future } };
        };
        // The one that is ready makes the call.
        let next = service.clone();
        let service = mem::replace(service, next);
        let turn = Turn::Fetching(fetching(credential.clone()));
        let exchange = Exchange {
            service,
            ready: true,
            parts: request.into_parts().0,
            body,
            credential,
            platform,
            envelope,
            log: log.clone(),
            target: target.clone(),
            renewed: false,
            turn,
        };
        Self { state: State::Renewing { exchange: Box::new(exchange) } }
    }
}

fn fetching(credential: Arc<Renewed>) -> Fetching {
    Box::pin(async move { credential.current().await })
}

impl<S, B> Future for Sending<S>
where
    S: Service<Request<ClientBody>, Response = Response<B>>,
    S::Error: Into<BoxError>,
{
    type Output = Result<Response<B>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Calling { future } => future.poll(cx).map_err(Into::into),
            StateProj::Renewing { exchange } => exchange.poll(cx),
        }
    }
}

impl<S, B> Exchange<S>
where
    S: Service<Request<ClientBody>, Response = Response<B>>,
    S::Error: Into<BoxError>,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<B>, BoxError>> {
        loop {
            match &mut self.turn {
                Turn::Fetching(fetching) => {
                    let fetched = ready!(fetching.as_mut().poll(cx));
                    self.turn = Turn::Waiting(fetched?);
                }
                Turn::Waiting(credential) => {
                    if !mem::take(&mut self.ready) {
                        ready!(self.service.poll_ready(cx)).map_err(Into::into)?;
                    }
                    let mut request =
                        Request::from_parts(self.parts.clone(), Full::new(self.body.clone()));
                    prove(&mut request, &self.body, credential, &self.platform)?;
                    let future = Box::pin(self.service.call(request));
                    self.turn = Turn::Calling(future, credential.clone());
                }
                Turn::Calling(future, credential) => {
                    let mut response = ready!(future.as_mut().poll(cx)).map_err(Into::into)?;
                    let is_stale =
                        self.envelope.is_stale(response.status(), response.headers(), credential);
                    if !is_stale {
                        return Poll::Ready(Ok(response));
                    }
                    self.credential.forget(credential);
                    if mem::replace(&mut self.renewed, true) {
                        // What comes of its source may be good before a person has changed anything.
                        let rest = || HeaderValue::from(REST.as_secs());
                        response.headers_mut().entry(header::RETRY_AFTER).or_insert_with(rest);
                        return Poll::Ready(Ok(response));
                    }
                    self.log.count_attempt();
                    self.log.record(|| {
                        let detail = format!("refused with {}", response.status());
                        Step::new("client", "credential_renewed")
                            .with_target(Some(&self.target))
                            .with_detail(detail)
                    });
                    tracing::debug!(
                        name: "steadfast::client::credential_renewed",
                        target: "steadfast::client",
                        target = %self.target,
                        status = response.status().as_u16(),
                    );
                    self.turn = Turn::Fetching(fetching(self.credential.clone()));
                }
            }
        }
    }
}

/// Puts into `request` what proves who asks.
fn prove(
    request: &mut Request<ClientBody>,
    body: &[u8],
    credential: &TemporaryCredential,
    platform: &Platform,
) -> Result<(), BoxError> {
    match &credential.proof {
        Proof::Bearer(token) => {
            let value = HeaderValue::try_from(format!("Bearer {}", token.expose()));
            let mut value =
                value.map_err(|_| unusable("has characters that no header can carry"))?;
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
            Ok(())
        }
        Proof::Aws(keys) => {
            platform.sign(request, body, keys).map_err(|error| unusable(&error.to_string()).into())
        }
    }
}

fn unusable(why: &str) -> Failure {
    Failure::refused(Reason::Auth, format!("the credential {why}"))
        .with_fault(FaultSide::Local)
        .with_scope(Scope::Credential)
        .with_evidence("credential")
}

impl<S: Service<Request<ClientBody>>> fmt::Debug for Sending<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending").finish_non_exhaustive()
    }
}
