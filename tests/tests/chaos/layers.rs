//! The layers of a run, and how the stack is built.

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
use steadfast_tests::seeds::chance;
use tower::ServiceExt as _;
use tower_layer::Layer as _;
use tower_service::Service;

use crate::{
    bugs::{Bug, BuggyLayer},
    guard::Guard,
    net::FaultyNetwork,
    timeline::{Boundary, Tap, Timeline},
    world::{Policies, by_agent},
};

type ByAgent = fn(&ChatRequest, &Needs) -> Option<&'static str>;

/// The layers of a run, in the one order that works. Classification is always there, because the
/// others depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layers {
    pub(crate) deadline: bool,
    pub(crate) failover: bool,
    pub(crate) retry: bool,
    pub(crate) breaker: bool,
    pub(crate) stall: bool,
    /// Built by [`Stack`], as its users do, without a [`Tap`] between the layers.
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

    pub(crate) fn new(rng: &mut Rng) -> Self {
        let mut one = || chance(rng, 0.7);
        let some = Self {
            deadline: one(),
            failover: one(),
            retry: one(),
            breaker: one(),
            stall: one(),
            preset: false,
        };
        match rng.u8(0..10) {
            0..=4 => Self::ALL,
            5 => Self { preset: true, ..Self::ALL },
            _ => some,
        }
    }

    /// All layers if there is a bug to find.
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

/// The stack and its handles.
pub(crate) struct Built {
    pub(crate) service: ChatService,
    pub(crate) failover: Option<FailoverHandle>,
    pub(crate) breaker: Option<BreakerHandle>,
}

/// Erases the type of a service.
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
    pub(crate) fn build(&self, layers: Layers, client: LlmClient<FaultyNetwork>) -> Built {
        let Policies { retry, stall, breaker, pipeline, budget, .. } = self.policies;
        let failover = self.failover();
        let retry = RetryBackoffLayer::new(*retry).unwrap().with_seed(1);
        let breaker = CircuitBreakerLayer::new(breaker.clone()).unwrap();
        let stall = StallTimeoutLayer::new(*stall).unwrap();
        let deadline = DeadlineLayer::after(*pipeline).unwrap();

        if layers.preset {
            // Resuming and continuing answers have other invariants: see `conversation_chaos`.
            let stack = Stack::around(failover).without_continuation().without_resume();
            let stack = stack.with_retry(retry).with_breaker(breaker);
            let stack = stack.with_stall(stall).with_deadline(deadline);
            let stack = match budget {
                Some(budget) => stack.with_budget(budget.clone()),
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
        service = self.tapped(service, Boundary::Admitted);
        if layers.breaker {
            service = boxed(breaker.layer(service));
        }
        service = self.tapped(service, Boundary::Attempt);
        if layers.retry {
            service = boxed(retry.layer(service));
        }
        service = self.tapped(service, Boundary::Target);
        if layers.failover {
            service = boxed(failover.layer(service));
        }
        service = self.tapped(service, Boundary::Call);
        if layers.deadline && self.bug != Some(Bug::ForgetsDeadline) {
            service = boxed(deadline.layer(service));
        }
        if let Some(bug) = self.bug.filter(|bug| bug.boundary().is_none()) {
            service = BuggyLayer::around(service, bug);
        }
        Built {
            service,
            failover: layers.failover.then(|| failover.handle()),
            breaker: layers.breaker.then(|| breaker.handle()),
        }
    }

    fn failover(&self) -> CooldownFailoverLayer<ByAgent> {
        let chain = Chain::new(self.specs.to_vec()).unwrap();
        let mut layer = CooldownFailoverLayer::new(chain)
            .with_policy(self.policies.failover.clone())
            .with_seed(1);
        for spec in self.specs {
            layer = layer.with_chain(spec.provider.as_str(), Chain::new([spec.clone()]).unwrap());
        }
        layer.with_chain_for(by_agent as ByAgent)
    }

    fn guarded(&self, service: ChatService) -> ChatService {
        Guard::around(service, self.timeline, self.guard.clone())
    }

    /// Adds a [`Tap`], and a bug above it.
    fn tapped(&self, service: ChatService, boundary: Boundary) -> ChatService {
        let service = Tap::around(service, boundary, self.timeline);
        match self.bug {
            Some(bug) if bug.boundary() == Some(boundary) => BuggyLayer::around(service, bug),
            _ => service,
        }
    }
}
