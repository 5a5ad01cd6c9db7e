//! Which layers there are, and how they are put together.

use fastrand::Rng;
use steadfast::{
    ChatRequest, ChatResponse, ChatService, Events, Failure, Needs, Stack,
    breaker::{BreakerHandle, CircuitBreakerLayer},
    classify::ClassifyLayer,
    client::LlmClient,
    failover::{Chain, CooldownFailoverLayer, FailoverHandle, TargetSpec},
    retry::RetryBackoffLayer,
    timeout::{DeadlineLayer, StallTimeoutLayer},
};
use tower::ServiceExt as _;
use tower_layer::Layer as _;
use tower_service::Service;

use crate::{
    bugs::{Bug, Planted},
    chance,
    guard::Guard,
    net::Rough,
    timeline::{Place, Tap, Timeline},
    world::{Policies, by_agent},
};

type ByAgent = fn(&ChatRequest, &Needs) -> Option<&'static str>;

/// Which layers there are, in the one order that works. Classification is always there: it is
/// what tells the others what happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layers {
    pub(crate) deadline: bool,
    pub(crate) failover: bool,
    pub(crate) retry: bool,
    pub(crate) breaker: bool,
    pub(crate) stall: bool,
    /// Built by [`Stack`], as its users do, with nobody looking between the layers.
    pub(crate) preset: bool,
}

impl Layers {
    const ALL: Self = Self {
        deadline: true,
        failover: true,
        retry: true,
        breaker: true,
        stall: true,
        preset: false,
    };

    pub(crate) fn new(dice: &mut Rng) -> Self {
        let mut one = || chance(dice, 0.7);
        let some = Self {
            deadline: one(),
            failover: one(),
            retry: one(),
            breaker: one(),
            stall: one(),
            preset: false,
        };
        match dice.u8(0..10) {
            0..=4 => Self::ALL,
            5 => Self { preset: true, ..Self::ALL },
            _ => some,
        }
    }

    /// With everything that `bug` could be found by.
    pub(crate) fn with(self, bug: Option<Bug>) -> Self {
        if bug.is_some() { Self::ALL } else { self }
    }
}

/// What a stack is made of.
pub(crate) struct Parts<'a> {
    pub(crate) policies: &'a Policies,
    pub(crate) specs: &'a [TargetSpec],
    pub(crate) timeline: &'a Timeline,
    pub(crate) guard: Rng,
    pub(crate) bug: Option<Bug>,
}

/// What it came to.
pub(crate) struct Built {
    pub(crate) service: ChatService,
    pub(crate) failover: Option<FailoverHandle>,
    pub(crate) breaker: Option<BreakerHandle>,
}

/// A service whose type is forgotten.
fn boxed<S, E>(service: S) -> ChatService
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error = Failure>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    E: Events + Send + 'static,
{
    ChatService::new(service.map_response(ChatResponse::boxed))
}

impl Parts<'_> {
    pub(crate) fn build(&self, layers: Layers, client: LlmClient<Rough>) -> Built {
        let Policies { retry, stall, breaker, pipeline, budget, .. } = self.policies;
        let failover = self.failover();
        let retry = RetryBackoffLayer::new(*retry).unwrap().with_seed(1);
        let breaker = CircuitBreakerLayer::new(breaker.clone()).unwrap();
        let stall = StallTimeoutLayer::new(*stall).unwrap();
        let deadline = DeadlineLayer::after(*pipeline).unwrap();

        if layers.preset {
            // What asks for more of an answer has its own laws: see `conversation_chaos`.
            let stack = Stack::around(failover).without_continuation().without_resume();
            let stack = stack.retry(retry).breaker(breaker);
            let stack = stack.stall(stall).deadline(deadline);
            let stack = match budget {
                Some(budget) => stack.budget(budget.clone()),
                None => stack.without_budget(),
            };
            let handles = stack.handles();
            return Built {
                service: stack.boxed(self.guarded(boxed(client))),
                failover: Some(handles.failover),
                breaker: Some(handles.breaker),
            };
        }

        let (failover, retry) = match budget {
            Some(budget) => {
                (failover.with_budget(budget.clone()), retry.with_budget(budget.drawing()))
            }
            None => (failover.without_budget(), retry.without_budget()),
        };
        let mut service = self.guarded(boxed(ClassifyLayer::default().layer(client)));
        if layers.stall {
            service = boxed(stall.layer(service));
        }
        service = self.seen(service, Place::Asked);
        if layers.breaker {
            service = boxed(breaker.layer(service));
        }
        service = self.seen(service, Place::Attempt);
        if layers.retry {
            service = boxed(retry.layer(service));
        }
        service = self.seen(service, Place::Visit);
        if layers.failover {
            service = boxed(failover.layer(service));
        }
        service = self.seen(service, Place::Call);
        if layers.deadline && self.bug != Some(Bug::ForgetsDeadline) {
            service = boxed(deadline.layer(service));
        }
        if let Some(bug) = self.bug.filter(|bug| bug.place().is_none()) {
            service = Planted::around(service, bug);
        }
        Built {
            service,
            failover: layers.failover.then(|| failover.handle()),
            breaker: layers.breaker.then(|| breaker.handle()),
        }
    }

    fn failover(&self) -> CooldownFailoverLayer<ByAgent> {
        let chain = Chain::new(self.specs.to_vec()).unwrap();
        let mut layer =
            CooldownFailoverLayer::new(chain).with_policy(self.policies.failover.clone());
        for spec in self.specs {
            layer = layer.with_chain(spec.provider.as_str(), Chain::new([spec.clone()]).unwrap());
        }
        layer.with_chain_for(by_agent as ByAgent)
    }

    fn guarded(&self, service: ChatService) -> ChatService {
        Guard::around(service, self.timeline, self.guard.clone())
    }

    /// With a look at what passes here, and what is planted above it.
    fn seen(&self, service: ChatService, place: Place) -> ChatService {
        let service = Tap::around(service, place, self.timeline);
        match self.bug {
            Some(bug) if bug.place() == Some(place) => Planted::around(service, bug),
            _ => service,
        }
    }
}
