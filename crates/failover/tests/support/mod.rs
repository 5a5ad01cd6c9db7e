//! A world of providers that do as they are told, and a request type that is nobody's but ours.

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
    Call, CallContext, Failure, Needs, OnUnsupported, Profile, Reason, RecoveryLog, Target,
};
use steadfast_failover::{Chain, CooldownFailoverLayer, TargetSpec};
use tower::{Layer, Service, ServiceExt};

/// A request: what it asks for, and what it was fitted to.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    pub model: Option<String>,
    pub needs: Needs,
    /// A provider it can not be fitted to.
    pub unfit_for: Option<&'static str>,
    pub context: CallContext,
    pub fitted: Option<Profile>,
}

impl Ask {
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

    pub fn log(&self) -> RecoveryLog {
        self.context.log.clone()
    }
}

impl Call for Ask {
    fn context(&self) -> &CallContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.context
    }

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn needs(&self) -> Needs {
        self.needs
    }

    fn adapt(&mut self, profile: &Profile) -> Result<(), Failure> {
        assert_eq!(self.context.target.as_ref(), Some(&profile.target), "set before fitting");
        if self.unfit_for == Some(profile.target.provider())
            || (self.needs.vision
                && !profile.vision
                && profile.on_unsupported == OnUnsupported::Refuse)
        {
            return Err(Failure::refused(Reason::Unsupported, "it does not fit"));
        }
        self.fitted = Some(profile.clone());
        Ok(())
    }
}

/// What a target does with a call.
#[derive(Clone)]
pub enum Act {
    Answer,
    Fail(Arc<dyn Fn() -> Failure + Send + Sync>),
    Hang,
    After(Duration, Box<Act>),
}

pub fn fail(reason: Reason) -> Act {
    fail_with(move || Failure::new(reason, format!("{reason} it is")))
}

pub fn fail_with(failure: impl Fn() -> Failure + Send + Sync + 'static) -> Act {
    Act::Fail(Arc::new(failure))
}

pub fn after(wait: Duration, act: Act) -> Act {
    Act::After(wait, Box::new(act))
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

/// What a target was sent.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: String,
    pub ask: Ask,
}

/// The providers, and everything they were sent.
#[derive(Clone, Default)]
pub struct World(Arc<Inner>);

#[derive(Default)]
struct Inner {
    acts: Mutex<HashMap<String, Act>>,
    seen: Mutex<Vec<Seen>>,
    /// Calls under way, and calls dropped before they were over.
    open: Mutex<(usize, Vec<String>)>,
}

impl World {
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on `target` (`provider`, `provider/model`, ... the most exact one counts) does
    /// `act`; anything else answers.
    pub fn set(&self, target: &str, act: Act) -> &Self {
        self.0.acts.lock().insert(target.to_owned(), act);
        self
    }

    pub fn mend(&self, target: &str) -> &Self {
        self.set(target, Act::Answer)
    }

    /// Where calls went since the last time of asking.
    pub fn calls(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.at).collect()
    }

    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.0.seen.lock())
    }

    pub fn open(&self) -> usize {
        self.0.open.lock().0
    }

    pub fn dropped(&self) -> Vec<String> {
        std::mem::take(&mut self.0.open.lock().1)
    }

    fn act(&self, target: &Target) -> Act {
        let acts = self.0.acts.lock();
        let provider = Target::new(target.provider());
        let model = target.model().map(|model| provider.with_model(model));
        let credential = target.credential().map(|name| provider.with_credential(name));
        [Some(target.clone()), model, credential, Some(provider)]
            .into_iter()
            .flatten()
            .find_map(|target| acts.get(&target.to_string()).cloned())
            .unwrap_or(Act::Answer)
    }

    /// A client of these providers. It insists on being ready.
    pub fn client(&self) -> Client {
        Client { world: self.clone(), ready: false }
    }
}

pub struct Client {
    world: World,
    ready: bool,
}

impl Clone for Client {
    fn clone(&self) -> Self {
        self.world.client()
    }
}

impl Service<Ask> for Client {
    type Response = String;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<String, Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, ask: Ask) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without having been ready");
        let target = ask.context.target.clone().expect("failover sets it");
        let at = target.to_string();
        let mut act = self.world.act(&target);
        self.world.0.seen.lock().push(Seen { at: at.clone(), ask });
        let open = Open { world: self.world.clone(), at: Some(at.clone()) };
        open.world.0.open.lock().0 += 1;
        Box::pin(async move {
            let mut open = open;
            let result = loop {
                act = match act {
                    Act::Answer => break Ok(at),
                    Act::Fail(failure) => break Err(failure()),
                    Act::Hang => std::future::pending().await,
                    Act::After(wait, act) => {
                        tokio::time::sleep(wait).await;
                        *act
                    }
                };
            };
            open.close();
            result
        })
    }
}

struct Open {
    world: World,
    at: Option<String>,
}

impl Open {
    fn close(&mut self) {
        self.at = None;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut open = self.world.0.open.lock();
        open.0 -= 1;
        open.1.extend(self.at.take());
    }
}

pub fn chain<T: Into<TargetSpec>>(targets: impl IntoIterator<Item = T>) -> Chain {
    Chain::new(targets).unwrap()
}

/// Three providers that go by one letter.
pub fn abc() -> CooldownFailoverLayer {
    CooldownFailoverLayer::new(chain(["a", "b", "c"]))
}

/// Sends `ask` through `layer` to `world`.
pub async fn ask<L>(layer: &L, world: &World, ask: Ask) -> Result<String, Failure>
where
    L: Layer<Client>,
    L::Service: Service<Ask, Response = String, Error = Failure>,
{
    layer.layer(world.client()).oneshot(ask).await
}
