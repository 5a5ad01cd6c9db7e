//! Three providers, a stack around them, and the callers.

use std::time::Duration;

use fastrand::Rng;
use steadfast::{
    BudgetPolicy, ChatRequest, ChatService, Handles, Needs, RetryBudget, Stack,
    breaker::{CircuitBreakerLayer, State},
    failover::{Chain, CooldownFailoverLayer, FailoverPolicy},
    retry::{RetryBackoffLayer, RetryPolicy},
    sim::{FaultPlan, Journal, Latency, SimProvider},
    timeout::{DeadlineLayer, StallPolicy, StallTimeoutLayer},
};
use steadfast_tests::harness::{self, Got};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    callers::{Caller, Ending},
    chance, check, faults, ms, policies,
};

/// Longer than anything rests: a day, as long again by jitter, and an hour.
const LONG: Duration = Duration::from_secs(49 * 3_600);

type ByAgent = fn(&ChatRequest, &Needs) -> Option<&'static str>;

pub(crate) struct World {
    pub(crate) began: Instant,
    pub(crate) sims: Vec<SimProvider>,
    /// What all of them saw.
    pub(crate) journal: Journal,
    pub(crate) handles: Handles,
    pub(crate) budget: Option<RetryBudget>,
    pub(crate) retry: RetryPolicy,
    pub(crate) failover: FailoverPolicy,
    pipeline: Duration,
    service: ChatService,
    dice: Rng,
}

/// A provider's own chain, for an agent of its name.
fn by_agent(request: &ChatRequest, _: &Needs) -> Option<&'static str> {
    let agent = request.context.agent()?;
    harness::TRIO.map(|(name, _)| name).into_iter().find(|name| *name == agent)
}

/// Quick enough for every limit there can be; whatever is slow is a fault.
fn latency(dice: &mut Rng) -> Latency {
    Latency { headers: ms(dice, 0..400), per_token: ms(dice, 0..3), jitter: dice.f64() }
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Rng::with_seed(seed);
        let journal = Journal::new();
        let latencies = [latency(&mut dice), latency(&mut dice), latency(&mut dice)];
        let sims = harness::trio(|dialect, provider| {
            let place = harness::TRIO.iter().position(|(_, other)| *other == dialect).unwrap();
            provider.seed(seed).journal(&journal).latency(latencies[place])
        });
        for provider in &sims {
            provider.set_faults(faults::plan(&mut dice));
        }

        let retry = policies::retry(&mut dice);
        let stall = policies::stall(&mut dice);
        let breaker = policies::breaker(&mut dice);
        let hedge = chance(&mut dice, 0.3).then(|| ms(&mut dice, 1..10_000));
        let failover = policies::failover(&mut dice, hedge);
        let pipeline = ms(&mut dice, 5_000..=120_000);
        let budget = chance(&mut dice, 0.8).then(|| {
            let capacity = dice.u32(0..500);
            RetryBudget::new(BudgetPolicy { capacity, ..BudgetPolicy::default() })
        });
        let stack = stack(&sims, &failover, retry, &stall, &budget)
            .breaker(CircuitBreakerLayer::new(breaker).unwrap())
            .deadline(DeadlineLayer::after(pipeline).unwrap());
        Self {
            began: Instant::now(),
            journal,
            handles: stack.handles(),
            service: stack.boxed(harness::client(&sims)),
            sims,
            budget,
            retry,
            failover,
            pipeline,
            dice,
        }
    }

    /// Everybody calls, at once or one by one.
    pub(crate) async fn weather(&mut self) -> Vec<Ending> {
        let callers = self.dice.usize(5..=25);
        let mut callers =
            (0..callers).map(|id| Caller::new(id, &mut self.dice)).collect::<Vec<_>>();
        let mut endings = Vec::new();
        if self.dice.bool() {
            let mut running = JoinSet::new();
            for caller in callers {
                running.spawn(caller.call(self.service.clone(), self.pipeline, self.began));
            }
            while let Some(ending) = running.join_next().await {
                match ending {
                    Ok(ending) => endings.push(ending),
                    Err(panic) => std::panic::resume_unwind(panic.into_panic()),
                }
            }
        } else {
            for caller in callers.drain(..) {
                let call = caller.call(self.service.clone(), self.pipeline, self.began);
                endings.push(call.await);
                check::budget(self);
            }
        }
        endings
    }

    /// All faults are over. After a reset, or when enough time has passed, all is well again.
    pub(crate) async fn clear_sky(&mut self) {
        for provider in &self.sims {
            provider.set_faults(FaultPlan::none());
        }
        let reset = self.dice.bool();
        if reset {
            self.handles.failover.reset_all();
            self.handles.breaker.reset_all();
        } else {
            sleep(LONG).await;
        }
        let cooling: Vec<_> = self.handles.failover.snapshot().cooling().cloned().collect();
        assert!(cooling.is_empty(), "reset: {reset}, still cooling: {cooling:?}");
        for round in 0..4 {
            for (name, _) in harness::TRIO {
                self.assert_answers(name, round % 2 == 0, reset).await;
            }
        }
        for breaker in self.handles.breaker.snapshot() {
            assert_eq!(breaker.state, State::Closed, "four whole answers, and {breaker:?}");
        }
        check::at_rest(self);
    }

    async fn assert_answers(&self, name: &str, stream: bool, reset: bool) {
        let mut request = Caller::plain(stream);
        request.context = request.context.with_agent(name);
        let before = self.journal.len();
        let got = Got::of(&self.service, request).await;
        let at = format!("{name}, stream: {stream}, reset: {reset}");
        assert!(got.failure.is_none(), "{at}: {:?}", got.failure);
        assert_eq!(self.journal.len(), before + 1, "{at}: one attempt does");
        let entry = self.journal.last().unwrap();
        assert_eq!(entry.provider, name, "{at}");
        let sent = entry.sent.unwrap();
        assert_eq!(got.answer().text(), sent.text, "{at}");
    }
}

fn stack(
    sims: &[SimProvider],
    failover: &FailoverPolicy,
    retry: RetryPolicy,
    stall: &StallPolicy,
    budget: &Option<RetryBudget>,
) -> Stack<ByAgent> {
    let mut layer = CooldownFailoverLayer::new(harness::chain(sims)).policy(failover.clone());
    for provider in sims {
        layer = layer.named(provider.name(), Chain::new([harness::target(provider)]).unwrap());
    }
    let stack = Stack::around(layer.chain_for(by_agent as ByAgent))
        .retry(RetryBackoffLayer::new(retry).unwrap().seed(1))
        .stall(StallTimeoutLayer::new(*stall).unwrap());
    match budget {
        Some(budget) => stack.budget(budget.clone()),
        None => stack.without_budget(),
    }
}
