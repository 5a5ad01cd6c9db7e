//! Some providers, a stack around them, and the callers.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use steadfast::{
    BudgetPolicy, ChatRequest, ChatService, Dialect, Needs, RetryBudget, Target,
    breaker::{BreakerHandle, BreakerPolicy},
    circuit::CircuitState,
    client::{Credential, LlmClient, Provider, Providers, dialect::Wire},
    failover::{FailoverHandle, FailoverPolicy, TargetSpec},
    retry::RetryPolicy,
    sim::{FaultPlan, Journal, Latency, Limits, SimProvider},
    timeout::StallPolicy,
};
use steadfast_tests::harness::{self, Got, Net};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    bugs::Bug,
    callers::{Caller, Ending},
    chance, faults,
    laws::{Court, Law},
    layers::{Layers, Parts},
    maybe, ms,
    net::Rough,
    policies,
    timeline::{Timeline, What},
};

/// Longer than anything rests: a day, as long again by jitter, and an hour.
const LONG: Duration = Duration::from_secs(49 * 3_600);

/// The most providers there are.
pub(crate) const NAMES: [&str; 4] = ["amber", "birch", "cedar", "delta"];

pub(crate) struct World {
    pub(crate) court: Court,
    pub(crate) timeline: Timeline,
    pub(crate) sims: Vec<SimProvider>,
    /// What all of them saw.
    pub(crate) journal: Journal,
    pub(crate) layers: Layers,
    pub(crate) failover: Option<FailoverHandle>,
    pub(crate) breaker: Option<BreakerHandle>,
    pub(crate) policies: Arc<Policies>,
    /// Models with credentials, of all providers together.
    pub(crate) candidates: usize,
    specs: Vec<TargetSpec>,
    faults: Vec<FaultPlan>,
    rough: Rough,
    service: ChatService,
    dice: Rng,
}

/// What the layers go by.
#[derive(Debug)]
pub(crate) struct Policies {
    pub(crate) retry: RetryPolicy,
    pub(crate) stall: StallPolicy,
    pub(crate) breaker: BreakerPolicy,
    pub(crate) failover: FailoverPolicy,
    pub(crate) pipeline: Duration,
    pub(crate) budget: Option<RetryBudget>,
}

impl Policies {
    fn new(dice: &mut Rng) -> Self {
        let hedge = chance(dice, 0.3).then(|| ms(dice, 1..10_000));
        Self {
            retry: policies::retry(dice),
            stall: policies::stall(dice),
            breaker: policies::breaker(dice),
            failover: policies::failover(dice, hedge),
            pipeline: ms(dice, 5_000..=120_000),
            budget: chance(dice, 0.8).then(|| {
                let capacity = dice.u32(0..500);
                RetryBudget::new(BudgetPolicy { capacity, ..BudgetPolicy::default() })
            }),
        }
    }
}

/// A provider's own chain, for an agent of its name.
pub(crate) fn by_agent(request: &ChatRequest, _: &Needs) -> Option<&'static str> {
    let agent = request.context.agent()?;
    NAMES.into_iter().find(|name| *name == agent)
}

/// Quick enough for every limit there can be; whatever is slow is a fault.
fn latency(dice: &mut Rng) -> Latency {
    Latency { headers: ms(dice, 0..400), per_token: ms(dice, 0..3), jitter: dice.f64() }
}

/// Mostly none. `may` is false where they are told of by dates, and those are not to be.
fn limits(dice: &mut Rng, may: bool) -> Limits {
    if !may || chance(dice, 0.8) {
        return Limits::default();
    }
    Limits {
        requests: maybe(dice, |dice| dice.u64(8..40)),
        tokens: maybe(dice, |dice| dice.u64(2_000..10_000)),
    }
}

/// A model that stands in for the usual one of `dialect`.
fn lesser(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Anthropic => "claude-haiku-4-5",
        Dialect::Gemini => "gemini-2.0-flash",
        _ => "gpt-4o-mini",
    }
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>, court: &Court) -> Self {
        let mut dice = Rng::with_seed(seed);
        let began = Instant::now();
        let timeline = Timeline::new(began);
        let journal = Journal::new();
        // Dates have whole seconds, and the clock on the wall does not begin with one: what is
        // hinted by them differs from run to run.
        let dates = seed % 8 == 7;
        let dialects = [Dialect::OpenAi, Dialect::Anthropic, Dialect::Gemini];
        let (mut sims, mut specs, mut endpoints) = (Vec::new(), Vec::new(), Vec::new());
        let mut plans = Vec::new();
        for name in &NAMES[..dice.usize(1..=NAMES.len())] {
            let dialect = dialects[dice.usize(..3)];
            let sim = SimProvider::builder(harness::simulated(dialect))
                .with_name(*name)
                .with_seed(seed)
                .with_journal(&journal)
                .with_latency(latency(&mut dice))
                .with_limits(limits(&mut dice, dates || dialect != Dialect::Anthropic))
                .build();
            let plan = faults::plan(&mut dice, dates);
            sim.set_faults(plan.clone());
            plans.push(plan);
            let mut spec = harness::target(&sim);
            if chance(&mut dice, 0.2) {
                spec = spec.with_downgrade(harness::model(dialect), [lesser(dialect)]);
            }
            let keys = maybe(&mut dice, |dice| dice.usize(1..=2)).unwrap_or(0);
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

        let layers = Layers::new(&mut dice).with(bug);
        let policies = Arc::new(Policies::new(&mut dice));
        let rough = Rough::around(Net::new(&sims), &timeline, dice.fork());
        let client = LlmClient::with_service(Providers::new(endpoints).unwrap(), rough.clone());
        let guard = dice.fork();
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
            court: court.clone(),
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
            rough,
            dice,
        }
    }

    /// What its providers do, and how they stand in the chain.
    pub(crate) fn providers(&self) -> Vec<(FaultPlan, TargetSpec)> {
        self.faults.iter().cloned().zip(self.specs.iter().cloned()).collect()
    }

    /// Where a call goes when there is no failover to choose.
    fn target(&self, provider: usize) -> Option<Target> {
        let model = harness::model(harness::dialect(&self.sims[provider]));
        let target = || Target::new(self.sims[provider].name()).with_model(model);
        (!self.layers.failover).then(target)
    }

    /// Up to eight lanes of callers, who share the stack.
    pub(crate) async fn weather(&mut self) -> Vec<Ending> {
        let lanes = self.dice.usize(1..=8);
        let pipeline = self.layers.deadline.then_some(self.policies.pipeline);
        // From a crowd to one call in minutes, so that what rests comes back meanwhile.
        let pace = [1_000, 10_000, 60_000, 300_000][self.dice.usize(..4)];
        let mut plans: Vec<Vec<Caller>> = vec![Vec::new(); lanes];
        for id in 0..self.dice.usize(3..=18) {
            let provider = self.dice.usize(..self.sims.len());
            let target = self.target(provider);
            let caller = Caller::new(id, self.layers.deadline, pace, target, &mut self.dice);
            plans[id % lanes].push(caller);
        }
        let mut running = JoinSet::new();
        for callers in plans {
            let (service, timeline) = (self.service.clone(), self.timeline.clone());
            let look = self.looker();
            running.spawn(async move {
                let mut endings = Vec::new();
                for caller in callers {
                    endings.push(caller.call(service.clone(), pipeline, timeline.clone()).await);
                    look();
                }
                endings
            });
        }
        let mut endings = Vec::new();
        while let Some(lane) = running.join_next().await {
            match lane {
                Ok(lane) => endings.extend(lane),
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            }
        }
        endings.sort_by_key(|ending| ending.caller.id);
        endings
    }

    /// Notes the states of breakers and cooldowns, for the naive models to be compared with.
    pub(crate) fn looker(&self) -> impl Fn() + Send + 'static {
        let Self { timeline, breaker, failover, .. } = self;
        let (timeline, breaker, failover) = (timeline.clone(), breaker.clone(), failover.clone());
        move || {
            let breakers = breaker.as_ref().map(BreakerHandle::snapshot).unwrap_or_default();
            let targets = failover.as_ref().map(FailoverHandle::snapshot);
            timeline.note(What::Looked { breakers, targets });
        }
    }

    /// All faults are over. After a reset, or when enough time has passed, all is well again.
    pub(crate) async fn clear_sky(&mut self) {
        self.rough.calm();
        for provider in &self.sims {
            provider.set_faults(FaultPlan::none());
        }
        let reset = self.dice.bool();
        if reset {
            // What a key may do in a minute it may do again.
            sleep(Duration::from_secs(60)).await;
            self.timeline.note(What::Reset);
            self.failover.iter().for_each(FailoverHandle::reset_all);
            self.breaker.iter().for_each(|breaker| _ = breaker.reset_all());
        } else {
            self.timeline.note(What::Quiet);
            sleep(LONG).await;
        }
        if let Some(failover) = &self.failover {
            let cooling: Vec<_> = failover.snapshot().cooling().cloned().collect();
            self.court.check(Law::ProbesReturn, cooling.is_empty(), || {
                format!("reset: {reset}, still cooling: {cooling:?}")
            });
        }
        for round in 0..4 {
            for provider in 0..self.sims.len() {
                self.expect_answer(provider, round % 2 == 0, reset).await;
            }
        }
        self.looker()();
        for breaker in self.breaker.iter().flat_map(BreakerHandle::snapshot) {
            let used = breaker.key.as_ref().is_some_and(|key| self.usual(key));
            let well = !used || breaker.circuit.state == CircuitState::Closed;
            self.court.check(Law::ProbesReturn, well, || format!("four answers, and {breaker:?}"));
        }
    }

    /// Whether a call in good weather goes there: the first model with the first credential.
    fn usual(&self, target: &Target) -> bool {
        let provider =
            self.sims.iter().zip(&self.specs).find(|(sim, _)| sim.name() == target.provider());
        provider.is_some_and(|(sim, spec)| {
            target.model() == Some(harness::model(harness::dialect(sim)))
                && target.credential() == spec.credentials.first().map(String::as_str)
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
        let got = Got::of(&self.service, request).await;
        let at = format!("{name}, stream: {stream}, reset: {reset}");
        let check = |holds, what: &dyn Fn() -> String| {
            self.court.check(Law::ProbesReturn, holds, || format!("{at}: {}", what()));
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
