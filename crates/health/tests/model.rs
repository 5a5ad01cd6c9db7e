//! The state machine against a naive model, and against chance.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;
use steadfast_core::{Failure, Outcome, Reason};
use steadfast_health::{AgentKey, HealthCall, HealthMonitor, HealthPolicy, HealthStatus};
use tokio::time::Instant;

/// Nothing but a list of what happened since the last change.
#[derive(Default)]
struct Naive {
    /// When each verdict came, in milliseconds, and whether it was a failure.
    verdicts: Vec<(u64, bool)>,
    /// Of each agent: when it failed, with the order of the call, and the latest success.
    agents: BTreeMap<u64, (Vec<(u64, u64)>, u64)>,
    under_way: u64,
    epoch: u64,
    good: u32,
    is_degraded: bool,
}

const WINDOW: u64 = 60_000;

impl Naive {
    fn share(&self, now: u64, more: u64) -> f64 {
        // By tenths of the window, as the machine counts.
        let inside = |at: u64| at / (WINDOW / 10) + 10 > now / (WINDOW / 10);
        let inside: Vec<_> = self.verdicts.iter().filter(|(at, _)| inside(*at)).collect();
        let all = inside.len() as u64 + more;
        let failed = inside.iter().filter(|(_, failed)| *failed).count();
        if all == 0 { 0.0 } else { failed as f64 / all as f64 }
    }

    fn change(&mut self, to: bool, began: u64) {
        *self = Self {
            is_degraded: to,
            epoch: began,
            verdicts: if to { Vec::new() } else { std::mem::take(&mut self.verdicts) },
            ..Self::default()
        };
    }

    fn succeeds(
        &mut self,
        policy: &HealthPolicy,
        now: u64,
        began: u64,
        (agent, order): (u64, u64),
    ) {
        if order <= self.epoch {
            return;
        }
        self.under_way -= 1;
        self.verdicts.push((now, false));
        let (_, succeeded) = self.agents.entry(agent).or_default();
        *succeeded = order.max(*succeeded);
        self.good += 1;
        if self.is_degraded
            && self.good >= policy.recover_after
            && self.share(now, 0) <= policy.recover_share
        {
            self.change(false, began);
        }
    }

    fn fails(&mut self, policy: &HealthPolicy, now: u64, began: u64, (agent, order): (u64, u64)) {
        if order <= self.epoch {
            return;
        }
        self.under_way -= 1;
        self.verdicts.push((now, true));
        self.good = 0;
        self.agents.entry(agent).or_default().0.push((now, order));
        if self.is_degraded {
            return;
        }
        let recent = |at: u64| now - at < WINDOW;
        let failing =
            |(failures, _): &&(Vec<(u64, u64)>, u64)| failures.iter().any(|(at, _)| recent(*at));
        let agents = self.agents.values().filter(failing).count();
        let (failures, succeeded) = &self.agents[&agent];
        let row = failures.iter().filter(|(at, order)| recent(*at) && order > succeeded).count();
        // The one that decides is a part of it.
        let is_row = order > *succeeded && row >= policy.failures as usize;
        if (agents >= policy.agents as usize || is_row)
            && self.share(now, self.under_way) >= policy.min_share
        {
            self.change(true, began);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Wait(u64),
    Begin(u64),
    /// One of those under way ends.
    End(usize, bool),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        2 => (0..30_000u64).prop_map(Event::Wait),
        1 => prop_oneof![Just(59_999u64), Just(60_000)].prop_map(Event::Wait),
        5 => (0..4u64).prop_map(Event::Begin),
        5 => (0..8usize, any::<bool>()).prop_map(|(which, good)| Event::End(which, good)),
    ];
    proptest::collection::vec(event, 0..120)
}

proptest! {
    #[test]
    fn agrees_with_a_list(
        events in events(),
        agents in 1..4u32,
        failures in 1..5u32,
        (min_share, recover_share) in prop_oneof![Just((0.2, 0.1)), Just((0.0, 1.0)), Just((0.5, 0.5))],
        recover_after in 1..4u32,
    ) {
        let policy = HealthPolicy {
            agents, failures, min_share, recover_share, recover_after, ..HealthPolicy::default()
        };
        let start = Instant::now();
        let mut monitor = HealthMonitor::new(policy, start);
        let (mut naive, mut now, mut began) = (Naive::default(), 0, 0);
        let mut under_way: Vec<(HealthCall, u64, u64)> = vec![];
        let failure = Failure::new(Reason::Network, "");
        for event in events {
            match event {
                Event::Wait(ms) => now += ms,
                Event::Begin(agent) => {
                    began += 1;
                    naive.under_way += 1;
                    let call = monitor.began(AgentKey::named(&agent.to_string()));
                    under_way.push((call, agent, began));
                }
                Event::End(which, good) => {
                    if under_way.is_empty() {
                        continue;
                    }
                    let (call, agent, order) = under_way.remove(which % under_way.len());
                    let at = start + Duration::from_millis(now);
                    let before = monitor.status();
                    let change = if good {
                        naive.succeeds(&policy, now, began, (agent, order));
                        monitor.ended(at, &call, Outcome::Success, false)
                    } else {
                        naive.fails(&policy, now, began, (agent, order));
                        monitor.ended(at, &call, Outcome::Failure(&failure), false)
                    };
                    prop_assert_eq!(change.is_some(), before != monitor.status());
                }
            }
            prop_assert_eq!(monitor.status() == HealthStatus::Degraded, naive.is_degraded);
        }
    }
}

/// An hour of 10 calls a second by 50 agents, of which a share fails by chance; how often the provider was degraded.
fn degradations(policy: HealthPolicy, failing: f64, seed: u64) -> u64 {
    let (start, mut rng) = (Instant::now(), fastrand::Rng::with_seed(seed));
    let mut monitor = HealthMonitor::new(policy, start);
    let failure = Failure::new(Reason::ServerError, "");
    for call in 0..36_000u64 {
        let now = start + Duration::from_millis(call * 100);
        let began = monitor.began(AgentKey::named(&rng.u32(..50).to_string()));
        // The first minute is good: what is not known yet is another test.
        if call > 600 && rng.f64() < failing {
            monitor.ended(now, &began, Outcome::Failure(&failure), false);
        } else {
            monitor.ended(now, &began, Outcome::Success, false);
        }
    }
    monitor.snapshot("p", start + Duration::from_secs(3_600)).degradations
}

#[test]
fn chance_below_the_threshold_degrades_nobody() {
    for seed in 0..8 {
        for failing in [0.0, 0.01, 0.05, 0.1, 0.15] {
            let times = degradations(HealthPolicy::default(), failing, seed);
            assert_eq!(times, 0, "{failing} with seed {seed}");
        }
        // Above it, and for the rest of the hour: only at once after it may three in a row succeed by chance.
        for failing in [0.3, 0.5, 0.9] {
            let times = degradations(HealthPolicy::default(), failing, seed);
            assert!((1..=4).contains(&times), "{times} at {failing} with seed {seed}");
        }
        // Which is why the preset's rule is not the default.
        assert!(degradations(HealthPolicy::comis(), 0.05, seed) > 100);
    }
}
