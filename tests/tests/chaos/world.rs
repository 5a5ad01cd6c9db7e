//! Some providers, a stack around them, and the callers.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use steadfast::{
    BudgetPolicy, ChatRequest, ChatService, Dialect, Needs, RetryBudget, Target,
    breaker::{BreakerHandle, BreakerPolicy},
    circuit::CircuitState,
    client::{Credential, LlmClient, Provider, Providers, dialect::Wire},
    failover::{FailoverHandle, FailoverPolicy, Status, TargetSpec},
    retry::RetryPolicy,
    sim::{FaultPlan, Journal, KeyLimits, Latency, SimProvider},
    timeout::StallPolicy,
};
use steadfast_tests::{
    harness::{self, CallResult, Net},
    seeds::{chance, maybe},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    bugs::Bug,
    callers::{Caller, Ending},
    faults,
    invariants::{Invariant, Violations},
    layers::{Layers, Parts},
    ms,
    net::FaultyNetwork,
    policies,
    timeline::{Timeline, TraceEvent},
};

/// Longer than any cooldown: a day, as much again for jitter, and an hour.
const LONG: Duration = Duration::from_secs(49 * 3_600);

/// The names of the providers; a run has some of them.
pub(crate) const NAMES: [&str; 4] = ["amber", "birch", "cedar", "delta"];

pub(crate) struct World {
    pub(crate) violations: Violations,
    pub(crate) timeline: Timeline,
    pub(crate) sims: Vec<SimProvider>,
    /// Shared by all of them.
    pub(crate) journal: Journal,
    pub(crate) layers: Layers,
    pub(crate) failover: Option<FailoverHandle>,
    pub(crate) breaker: Option<BreakerHandle>,
    pub(crate) policies: Arc<Policies>,
    /// Models with credentials, of all providers together.
    pub(crate) candidates: usize,
    /// The chain.
    pub(crate) specs: Vec<TargetSpec>,
    faults: Vec<FaultPlan>,
    network: FaultyNetwork,
    service: ChatService,
    rng: Rng,
}

/// The policies of the layers.
#[derive(Debug)]
pub(crate) struct Policies {
    pub(crate) retry: RetryPolicy,
    pub(crate) stall: StallPolicy,
    pub(crate) breaker: BreakerPolicy,
    pub(crate) failover: FailoverPolicy,
    pub(crate) pipeline: Duration,
    pub(crate) budget: Option<RetryBudget>,
    /// Callers are so many witnesses of failures. No more than a circuit remembers.
    pub(crate) witnesses: usize,
}

impl Policies {
    fn new(rng: &mut Rng) -> Self {
        Self {
            retry: policies::retry(rng),
            stall: policies::stall(rng),
            breaker: policies::breaker(rng),
            failover: policies::failover(rng),
            pipeline: ms(rng, 5_000..=120_000),
            budget: chance(rng, 0.8).then(|| {
                let capacity = rng.u32(0..500);
                RetryBudget::new(BudgetPolicy { capacity, ..BudgetPolicy::default() })
            }),
            witnesses: if chance(rng, 0.3) { rng.usize(1..=3) } else { 16 },
        }
    }
}

/// Selects a chain of one provider, for an agent with the provider's name.
pub(crate) fn by_agent(request: &ChatRequest, _: &Needs) -> Option<&'static str> {
    let agent = request.context.agent()?;
    NAMES.into_iter().find(|name| *name == agent)
}

/// Fast enough for every limit of the policies; slowness is a fault.
fn latency(rng: &mut Rng) -> Latency {
    Latency { headers: ms(rng, 0..400), per_token: ms(rng, 0..3), jitter: rng.f64() }
}

/// Mostly none. `may` is false for providers that report limits as dates, in runs without dates.
fn limits(rng: &mut Rng, may: bool) -> KeyLimits {
    if !may || chance(rng, 0.8) {
        return KeyLimits::default();
    }
    KeyLimits {
        requests: maybe(rng, |rng| rng.u64(8..40)),
        tokens: maybe(rng, |rng| rng.u64(2_000..10_000)),
    }
}

/// A smaller model than the usual one of `dialect`.
fn lesser(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Anthropic => "claude-haiku-4-5",
        Dialect::Gemini => "gemini-2.0-flash",
        _ => "gpt-4o-mini",
    }
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>, violations: &Violations) -> Self {
        let mut rng = Rng::with_seed(seed);
        let began = Instant::now();
        let timeline = Timeline::new(began);
        let journal = Journal::new();
        // Dates have whole seconds, and the wall clock does not start on one: their hints differ
        // from run to run.
        let dates = seed % 8 == 7;
        let dialects = [Dialect::OpenAi, Dialect::Anthropic, Dialect::Gemini];
        let (mut sims, mut specs, mut endpoints) = (Vec::new(), Vec::new(), Vec::new());
        let mut plans = Vec::new();
        for name in &NAMES[..rng.usize(1..=NAMES.len())] {
            let dialect = dialects[rng.usize(..3)];
            let sim = SimProvider::builder(dialect)
                .with_name(*name)
                .with_seed(seed)
                .with_journal(&journal)
                .with_latency(latency(&mut rng))
                .with_limits(limits(&mut rng, dates || dialect != Dialect::Anthropic))
                .build();
            let plan = faults::plan(&mut rng, dates);
            sim.set_faults(plan.clone());
            plans.push(plan);
            let mut spec = harness::target(&sim);
            if chance(&mut rng, 0.2) {
                spec = spec.with_downgrade(harness::model(dialect), [lesser(dialect)]);
            }
            let keys = maybe(&mut rng, |rng| rng.usize(1..=2)).unwrap_or(0);
            let mut endpoint = Provider::new(*name, dialect)
                .with_base_url(match dialect {
                    Dialect::OpenAi => format!("http://{name}/v1"),
                    _ => format!("http://{name}"),
                })
                .with_wire(Wire::default());
            for key in &["main", "spare"][..keys.max(1)] {
                endpoint =
                    endpoint.with_credential(Credential::new(*key, format!("sk-{name}-{key}")));
            }
            for key in &["main", "spare"][..keys] {
                spec = spec.with_credential(*key);
            }
            sims.push(sim);
            specs.push(spec);
            endpoints.push(endpoint);
        }

        let layers = Layers::new(&mut rng).with(bug);
        let policies = Arc::new(Policies::new(&mut rng));
        let network = FaultyNetwork::around(Net::new(&sims), &timeline, rng.fork());
        let client = LlmClient::with_service(Providers::new(endpoints).unwrap(), network.clone());
        let guard = rng.fork();
        let parts = Parts { policies: &policies, specs: &specs, timeline: &timeline, guard, bug };
        let built = parts.build(layers, client);
        if let Some(breaker) = &built.breaker {
            timeline.listen(breaker.subscribe());
        }
        let candidates = specs
            .iter()
            .map(|spec| (1 + spec.downgrades.iter().count()) * spec.credentials.len().max(1))
            .sum();
        Self {
            violations: violations.clone(),
            timeline,
            sims,
            journal,
            layers,
            failover: built.failover,
            breaker: built.breaker,
            service: built.service,
            policies,
            candidates,
            specs,
            faults: plans,
            network,
            rng,
        }
    }

    /// The faults of its providers, and their targets in the order of the chain.
    pub(crate) fn providers(&self) -> Vec<(FaultPlan, TargetSpec)> {
        self.faults.iter().cloned().zip(self.specs.iter().cloned()).collect()
    }

    /// The target of a call when there is no failover.
    fn target(&self, provider: usize) -> Option<Target> {
        let model = harness::model(self.sims[provider].dialect());
        let target = || Target::new(self.sims[provider].name()).with_model(model);
        (!self.layers.failover).then(target)
    }

    /// Up to eight groups of callers, who share the stack. The calls of a group are sequential.
    pub(crate) async fn run_callers(&mut self) -> Vec<Ending> {
        let groups = self.rng.usize(1..=8);
        let pipeline = self.layers.deadline.then_some(self.policies.pipeline);
        // From many calls at once to one in minutes, so that cooldowns expire in between.
        let pace = [1_000, 10_000, 60_000, 300_000][self.rng.usize(..4)];
        let mut plans: Vec<Vec<Caller>> = vec![Vec::new(); groups];
        for id in 0..self.rng.usize(3..=18) {
            let provider = self.rng.usize(..self.sims.len());
            let target = self.target(provider);
            let caller = Caller::new(id, self.layers.deadline, pace, target, &mut self.rng)
                .with_witness(id % self.policies.witnesses);
            plans[id % groups].push(caller);
        }
        let mut running = JoinSet::new();
        for callers in plans {
            let (service, timeline) = (self.service.clone(), self.timeline.clone());
            let record_snapshot = self.snapshot_recorder();
            running.spawn(async move {
                let mut endings = Vec::new();
                for caller in callers {
                    endings.push(caller.call(service.clone(), pipeline, timeline.clone()).await);
                    record_snapshot();
                }
                endings
            });
        }
        let mut endings = Vec::new();
        while let Some(group) = running.join_next().await {
            match group {
                Ok(group) => endings.extend(group),
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            }
        }
        endings.sort_by_key(|ending| ending.caller.id);
        endings
    }

    /// Notes the states of breakers and cooldowns, for the naive models to be compared with.
    pub(crate) fn snapshot_recorder(&self) -> impl Fn() + Send + 'static {
        let Self { timeline, breaker, failover, .. } = self;
        let (timeline, breaker, failover) = (timeline.clone(), breaker.clone(), failover.clone());
        move || {
            let breakers = breaker.as_ref().map(BreakerHandle::snapshot).unwrap_or_default();
            let targets = failover.as_ref().map(FailoverHandle::snapshot);
            timeline.note(TraceEvent::Snapshot { breakers, targets });
        }
    }

    /// Stops all faults. After a reset, or after enough time, every provider must be used again.
    pub(crate) async fn recover(&mut self) {
        self.network.stop_faults();
        for provider in &self.sims {
            provider.set_faults(FaultPlan::none());
        }
        let reset = self.rng.bool();
        if reset {
            // The limits of the keys are per minute.
            sleep(Duration::from_secs(60)).await;
            self.timeline.note(TraceEvent::Reset);
            self.failover.iter().for_each(FailoverHandle::reset_all);
            self.breaker.iter().for_each(|breaker| _ = breaker.reset_all());
        } else {
            self.timeline.note(TraceEvent::Quiet);
            sleep(LONG).await;
        }
        if let Some(failover) = &self.failover {
            let now = Instant::now();
            let snapshot = failover.snapshot();
            let cooling: Vec<_> =
                snapshot.cooling().filter(|it| it.cooling_for(now).is_some()).collect();
            self.violations.check(Invariant::ProbesReturn, cooling.is_empty(), || {
                format!("reset: {reset}, still cooling: {cooling:?}")
            });
        }
        for round in 0..4 {
            for provider in 0..self.sims.len() {
                self.expect_answer(provider, round % 2 == 0, reset).await;
            }
        }
        self.snapshot_recorder()();
        for health in self.failover.iter().flat_map(|it| it.snapshot().targets().to_vec()) {
            let well = health.status == Status::Healthy || !self.is_of_usual(&health.target);
            self.violations
                .check(Invariant::ProbesReturn, well, || format!("after four answers: {health:?}"));
        }
        for breaker in self.breaker.iter().flat_map(BreakerHandle::snapshot) {
            let used = breaker.key.as_ref().is_some_and(|key| self.usual(key));
            let well = !used || breaker.circuit.state == CircuitState::Closed;
            self.violations.check(Invariant::ProbesReturn, well, || {
                format!("after four answers: {breaker:?}")
            });
        }
    }

    /// Whether a call without faults uses it: the first model with the first credential.
    fn usual(&self, target: &Target) -> bool {
        let provider =
            self.sims.iter().zip(&self.specs).find(|(sim, _)| sim.name() == target.provider());
        provider.is_some_and(|(sim, spec)| {
            target.model() == Some(harness::model(sim.dialect()))
                && target.credential() == spec.credentials.first().map(String::as_str)
        })
    }

    /// Whether it is, or is a part of, a target that a call without faults uses.
    fn is_of_usual(&self, part: &Target) -> bool {
        let (sims, specs) = (self.sims.iter(), self.specs.iter());
        sims.zip(specs).filter(|(sim, _)| sim.name() == part.provider()).any(|(sim, spec)| {
            let model = harness::model(sim.dialect());
            let credential = spec.credentials.first().map(String::as_str);
            part.model().is_none_or(|own| own == model)
                && (part.credential().is_none() || part.credential() == credential)
        })
    }

    async fn expect_answer(&self, provider: usize, stream: bool, reset: bool) {
        let name = self.sims[provider].name();
        let target = self.target(provider);
        let model = target.as_ref().and_then(Target::model).unwrap_or("any").to_owned();
        let request = ChatRequest::user("Are you there?").with_model(model).with_max_output(60);
        let mut request = if stream { request.streaming() } else { request };
        request.context = request.context.with_agent(name);
        request.context.target = target;
        let before = self.journal.len();
        let got = CallResult::of(&self.service, request).await;
        let at = format!("{name}, stream: {stream}, reset: {reset}");
        let check = |holds, what: &dyn Fn() -> String| {
            self.violations.check(Invariant::ProbesReturn, holds, || format!("{at}: {}", what()));
        };
        check(got.failure.is_none(), &|| format!("{:?}", got.failure));
        let made = self.journal.len() - before;
        check(made == 1, &|| format!("{made} attempts, and one does"));
        let Some(entry) = self.journal.last() else { return };
        check(entry.provider == name, &|| format!("{} was asked", entry.provider));
        if let (None, Some(seen), Some(sent)) = (&got.failure, &got.seen, &entry.sent) {
            check(seen.text() == sent.text, &|| format!("{:?}, not {:?}", seen.text(), sent.text));
        }
    }
}
