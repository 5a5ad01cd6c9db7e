//! Scripted providers, and a minimal request.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each test file uses a part of it, and it is for tests alone"
)]

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use steadfast_core::{
    Beginning, Call, CallContext, Failure, Needs, OnUnsupported, Profile, PromptDigest, Reason,
    RecoveryLog, Target,
};
use steadfast_failover::{Chain, CooldownFailoverLayer, TargetSpec};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};

/// A request, and the profile it was adapted to.
#[derive(Clone, Debug, Default)]
pub struct PlainRequest {
    pub model: Option<String>,
    pub needs: Needs,
    /// Its answer comes whole.
    pub whole: bool,
    /// The digest of its prompt.
    pub prompt: Option<u64>,
    /// What its conversation begins with, and whether that is all of it.
    pub begins: Option<(&'static str, bool)>,
    /// A provider it can not be fitted to.
    pub unfit_for: Option<&'static str>,
    pub context: CallContext,
    pub fitted: Option<Profile>,
}

impl PlainRequest {
    pub fn new() -> Self {
        Self { context: CallContext::recording(), ..Self::default() }
    }

    pub fn model(model: &str) -> Self {
        Self { model: Some(model.to_owned()), ..Self::new() }
    }

    pub fn session(session: &str) -> Self {
        let context = CallContext::recording().with_session(session);
        Self { context, ..Self::new() }
    }

    pub fn prompt(prompt: u64) -> Self {
        Self { prompt: Some(prompt), ..Self::new() }
    }

    pub fn log(&self) -> RecoveryLog {
        self.context.log.clone()
    }
}

impl Call for PlainRequest {
    fn context(&self) -> &CallContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.context
    }

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn is_whole(&self) -> Option<bool> {
        Some(self.whole)
    }

    fn prompt_digest(&self) -> Option<u64> {
        self.prompt
    }

    fn beginning(&self) -> Option<Beginning> {
        let (text, is_first_turn) = self.begins?;
        let mut digest = PromptDigest::default();
        digest.add(text.as_bytes());
        Some(Beginning::new(digest.finish(), is_first_turn))
    }

    fn beginning_texts(&self, add: &mut dyn FnMut(&[u8])) {
        self.begins.iter().for_each(|(text, _)| add(text.as_bytes()));
    }

    fn needs(&self) -> Needs {
        self.needs
    }

    fn adapt(&mut self, profile: &Profile) -> Result<(), Failure> {
        assert_eq!(self.context.target.as_ref(), Some(&profile.target), "set before `adapt`");
        if self.unfit_for == Some(profile.target.provider())
            || (self.needs.vision
                && !profile.can.vision
                && profile.can.on_unsupported == OnUnsupported::Refuse)
        {
            return Err(Failure::refused(Reason::Unsupported, "it does not fit"));
        }
        self.fitted = Some(profile.clone());
        Ok(())
    }
}

/// What a target does with a call.
#[derive(Clone)]
pub enum Action {
    Answer,
    Fail(Arc<dyn Fn() -> Failure + Send + Sync>),
    Hang,
    After(Duration, Box<Action>),
    /// Attempts fail for these reasons, each reported when it does, as a retry layer would. Then the
    /// action, or the last failure again.
    Attempts(Vec<Reason>, Option<Box<Action>>),
}

pub fn fail(reason: Reason) -> Action {
    fail_with(move || Failure::new(reason, format!("{reason} it is")))
}

pub fn fail_with(failure: impl Fn() -> Failure + Send + Sync + 'static) -> Action {
    Action::Fail(Arc::new(failure))
}

pub fn after(wait: Duration, action: Action) -> Action {
    Action::After(wait, Box::new(action))
}

/// A provider that asks for a wait of `wait` seconds.
pub fn limited(wait: u64) -> Action {
    fail_with(move || {
        Failure::new(Reason::RateLimit, "slow down")
            .with_status(http::StatusCode::TOO_MANY_REQUESTS)
            .with_retry_after(Some(secs(wait)))
    })
}

pub fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub fn target(name: &str) -> Target {
    let (rest, credential) =
        name.split_once('#').map_or((name, None), |(rest, credential)| (rest, Some(credential)));
    let (provider, model) =
        rest.split_once('/').map_or((rest, None), |(provider, model)| (provider, Some(model)));
    let mut target = Target::new(provider);
    if let Some(model) = model {
        target = target.with_model(model);
    }
    match credential {
        Some(credential) => target.with_credential(credential),
        None => target,
    }
}

/// A request that a target received.
#[derive(Clone, Debug)]
pub struct Received {
    pub at: String,
    pub time: Instant,
    pub request: PlainRequest,
}

/// Scripted providers, and the requests they received.
#[derive(Clone, Default)]
pub struct Providers(Arc<Inner>);

#[derive(Default)]
struct Inner {
    actions: Mutex<HashMap<String, Action>>,
    received: Mutex<Vec<Received>>,
    /// Calls under way, and calls dropped before they were over.
    open: Mutex<(usize, Vec<String>)>,
}

impl Providers {
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on `target` (`provider`, `provider/model`, ...; the most exact one counts) does
    /// `action`. Targets without an action answer.
    pub fn set(&self, target: &str, action: Action) -> &Self {
        self.0.actions.lock().insert(target.to_owned(), action);
        self
    }

    pub fn repair(&self, target: &str) -> &Self {
        self.set(target, Action::Answer)
    }

    /// The same for several targets.
    pub fn set_all(&self, targets: &[&str], action: &Action) -> &Self {
        for target in targets {
            self.set(target, action.clone());
        }
        self
    }

    /// The targets called since the last call of this.
    pub fn calls(&self) -> Vec<String> {
        self.received().into_iter().map(|received| received.at).collect()
    }

    /// The same, with the time of each in milliseconds since `start`.
    pub fn times(&self, start: Instant) -> Vec<(String, u128)> {
        let since = |time: Instant| (time - start).as_millis();
        self.received().into_iter().map(|received| (received.at, since(received.time))).collect()
    }

    pub fn received(&self) -> Vec<Received> {
        std::mem::take(&mut *self.0.received.lock())
    }

    pub fn in_flight(&self) -> usize {
        self.0.open.lock().0
    }

    pub fn dropped(&self) -> Vec<String> {
        std::mem::take(&mut self.0.open.lock().1)
    }

    fn action(&self, target: &Target) -> Action {
        let actions = self.0.actions.lock();
        let provider = Target::new(target.provider());
        let model = target.model().map(|model| provider.with_model(model));
        let credential = target.credential().map(|name| provider.with_credential(name));
        [Some(target.clone()), model, credential, Some(provider)]
            .into_iter()
            .flatten()
            .find_map(|target| actions.get(&target.to_string()).cloned())
            .unwrap_or(Action::Answer)
    }

    /// A client of these providers, which checks that it was polled ready.
    pub fn client(&self) -> Client {
        Client { providers: self.clone(), ready: false }
    }
}

pub struct Client {
    providers: Providers,
    ready: bool,
}

impl Clone for Client {
    fn clone(&self) -> Self {
        self.providers.client()
    }
}

impl Service<PlainRequest> for Client {
    type Response = String;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<String, Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: PlainRequest) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without having been ready");
        let target = request.context.target.clone().expect("failover sets it");
        let at = target.to_string();
        let mut action = self.providers.action(&target);
        let context = request.context.clone();
        let received = Received { at: at.clone(), time: Instant::now(), request };
        self.providers.0.received.lock().push(received);
        let open = Open { providers: self.providers.clone(), at: Some(at.clone()) };
        open.providers.0.open.lock().0 += 1;
        Box::pin(async move {
            let mut open = open;
            let result = loop {
                action = match action {
                    Action::Answer => break Ok(at),
                    Action::Fail(failure) => break Err(failure()),
                    Action::Hang => std::future::pending().await,
                    Action::After(wait, action) => {
                        tokio::time::sleep(wait).await;
                        *action
                    }
                    Action::Attempts(reasons, then) => {
                        let routed = context.routed.as_ref().expect("failover sets it");
                        let mut last = None;
                        for reason in reasons {
                            let failure = Failure::new(reason, format!("{reason} it is"));
                            last = Some(routed.failed(failure, &context.log));
                        }
                        match then {
                            Some(action) => *action,
                            None => break Err(last.expect("an attempt")),
                        }
                    }
                };
            };
            open.close();
            result
        })
    }
}

struct Open {
    providers: Providers,
    at: Option<String>,
}

impl Open {
    fn close(&mut self) {
        self.at = None;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut open = self.providers.0.open.lock();
        open.0 -= 1;
        open.1.extend(self.at.take());
    }
}

pub fn chain<T: Into<TargetSpec>>(targets: impl IntoIterator<Item = T>) -> Chain {
    Chain::new(targets).unwrap()
}

/// Three providers with names of one letter.
pub fn abc() -> CooldownFailoverLayer {
    CooldownFailoverLayer::new(chain(["a", "b", "c"]))
}

/// Two calls fail at `name`, so that it rests for 2 s.
pub async fn rest<L>(layer: &L, providers: &Providers, name: &str)
where
    L: Layer<Client>,
    L::Service: Service<PlainRequest, Response = String, Error = Failure>,
{
    providers.set(name, fail(Reason::ServerError));
    for _ in 0..2 {
        let _ = send(layer, providers, PlainRequest::new()).await;
    }
    providers.calls();
}

/// Sends `request` through `layer` to `providers`.
pub async fn send<L>(
    layer: &L,
    providers: &Providers,
    request: PlainRequest,
) -> Result<String, Failure>
where
    L: Layer<Client>,
    L::Service: Service<PlainRequest, Response = String, Error = Failure>,
{
    layer.layer(providers.client()).oneshot(request).await
}
