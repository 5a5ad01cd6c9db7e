//! The stacks of a configuration around something else than its providers: no key is read, nobody is asked.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use steadfast::{ChatRequest, ChatResponse, ChatService, Failure, Handles, Target, limit::Prices};
use tokio::time::Instant;
use tower::{Service, ServiceExt};

use super::{layers, models::ModelLimits};
use crate::{
    config::{Config, ConfigErrors, RouteConfig, Source},
    secrets::Secrets,
};

/// The stack of each route, as [`Gateway`](super::Gateway) makes them, without escalations, and without summaries: there is
/// nobody who would decide, and nothing to summarise.
pub(crate) struct SimulatedStacks {
    /// In the order of the file; the last one takes every request.
    routes: Vec<SimulatedRoute>,
    handles: Handles,
}

struct SimulatedRoute {
    when: Option<RouteConfig>,
    service: ChatService,
    /// Clones of it that have made their call: a clone copies some forty counted pointers.
    idle: Mutex<Vec<ChatService>>,
}

impl SimulatedRoute {
    fn new(when: Option<RouteConfig>, service: ChatService) -> Self {
        Self { when, service, idle: Mutex::default() }
    }
}

impl SimulatedStacks {
    /// Those of `config` around `client`.
    ///
    /// # Errors
    ///
    /// When numbers of the configuration contradict each other.
    pub(crate) fn new<S>(config: &Config, source: &Source, client: S) -> Result<Self, ConfigErrors>
    where
        S: Service<ChatRequest, Response = ChatResponse, Error = Failure>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send,
    {
        let limits = ModelLimits::of(config, Arc::default());
        let spend = layers::spend_limit(config, source, None)?;
        let masks = Arc::new(Secrets::of::<&[u8]>([]));
        let stack = |config: &Config| layers::stack(config, source, &limits, None, &spend, &masks);
        let base = stack(config)?;
        let handles = base.handles();
        let mut routes = Vec::new();
        for (name, route) in config.routes() {
            let own = stack(&source.route(config, name)?)?.sharing(&handles);
            routes.push(SimulatedRoute::new(Some(route.clone()), own.boxed(client.clone())));
        }
        routes.push(SimulatedRoute::new(None, base.boxed(client)));
        Ok(Self { routes, handles })
    }

    /// Asks the stack that `request` takes.
    ///
    /// # Errors
    ///
    /// What the stack makes of failures.
    pub(crate) async fn ask(&self, request: ChatRequest) -> Result<ChatResponse, Failure> {
        let route = self.route(&request);
        let idle = route.idle.lock().pop();
        let mut service = idle.unwrap_or_else(|| route.service.clone());
        let call = service.ready().await?.call(request);
        route.idle.lock().push(service);
        call.await
    }

    /// The route that `request` takes.
    fn route(&self, request: &ChatRequest) -> &SimulatedRoute {
        let context = &request.context;
        let model = steadfast_core::Call::model(request).unwrap_or_default();
        let takes = |route: &&SimulatedRoute| {
            let when = route.when.as_ref();
            when.is_none_or(|when| when.takes(model, context.tenant(), context.agent()))
        };
        let found = self.routes.iter().find(takes);
        found.unwrap_or(&self.routes[self.routes.len() - 1])
    }

    /// The targets that rest now.
    pub(crate) fn resting(&self) -> Vec<Target> {
        let (now, snapshot) = (Instant::now(), self.handles.failover.snapshot());
        let resting = snapshot.targets().iter().filter(|health| health.cooling_for(now).is_some());
        resting.map(|health| health.target.clone()).collect()
    }
}

impl fmt::Debug for SimulatedStacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedStacks")
            .field("routes", &self.routes.len())
            .finish_non_exhaustive()
    }
}

/// What models cost by `config`.
///
/// # Errors
///
/// When numbers of the configuration contradict each other.
pub(crate) fn prices(config: &Config, source: &Source) -> Result<Arc<Prices>, ConfigErrors> {
    Ok(layers::spend_limit(config, source, None)?.prices().clone())
}
