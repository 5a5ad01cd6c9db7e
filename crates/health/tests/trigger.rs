//! What degrades a provider, and what it takes to recover: tables over the state machine.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use steadfast_core::{Failure, FaultSide, Outcome, Reason, TimeLimit};
use steadfast_health::{
    AgentKey, HealthCause, HealthMonitor, HealthPolicy, HealthStatus, HealthTransition,
};
use tokio::time::Instant;

/// One provider, in time.
struct World {
    start: Instant,
    now: Instant,
    monitor: HealthMonitor,
}

fn agent(name: &str) -> AgentKey {
    if name == "?" { AgentKey::UNKNOWN } else { AgentKey::named(name) }
}

fn broken() -> Failure {
    Failure::new(Reason::ServerError, "it broke")
}

impl World {
    fn new(policy: HealthPolicy) -> Self {
        policy.validate().unwrap();
        let start = Instant::now();
        Self { start, now: start, monitor: HealthMonitor::new(policy, start) }
    }

    /// Milliseconds since the start.
    fn at(&mut self, ms: u64) -> &mut Self {
        self.now = self.start + Duration::from_millis(ms);
        self
    }

    fn fails(&mut self, name: &str) -> Option<HealthTransition> {
        self.fails_with(name, &broken())
    }

    fn fails_with(&mut self, name: &str, failure: &Failure) -> Option<HealthTransition> {
        let call = self.monitor.began(agent(name));
        self.monitor.ended(self.now, &call, Outcome::Failure(failure), false)
    }

    fn answers(&mut self, name: &str) -> Option<HealthTransition> {
        let call = self.monitor.began(agent(name));
        self.monitor.ended(self.now, &call, Outcome::Success, false)
    }

    fn is_degraded(&self) -> bool {
        self.monitor.status() == HealthStatus::Degraded
    }
}

/// The default without its share.
fn counts_alone() -> HealthPolicy {
    HealthPolicy { min_share: 0.0, recover_share: 1.0, ..HealthPolicy::default() }
}

fn degraded(policy: HealthPolicy) -> World {
    let mut world = World::new(policy);
    world.fails("a");
    world.fails("b");
    assert!(world.is_degraded());
    world
}

/// Events as `milliseconds agent outcome`: `-` for a failure, `+` for a success.
fn plays(policy: HealthPolicy, script: &str) -> Option<HealthCause> {
    let mut world = World::new(policy);
    let mut cause = None;
    for event in script.split(',').map(str::trim) {
        let (ms, rest) = event.split_once(' ').unwrap();
        world.at(ms.parse().unwrap());
        let (name, outcome) = rest.split_at(rest.len() - 1);
        let transition = if outcome == "-" { world.fails(name) } else { world.answers(name) };
        cause = cause.or(transition.map(|transition| transition.cause));
    }
    cause
}

#[test]
fn the_trigger_at_its_boundaries() {
    let (agents, row) = (Some(HealthCause::Agents), Some(HealthCause::Consecutive));
    for (script, expected) in [
        // Two agents, within a minute.
        ("0 a-, 0 b-", agents),
        ("0 a-, 59999 b-", agents),
        ("0 a-, 60000 b-", None),
        ("0 a-, 60000 b-, 119999 a-", agents),
        // A success does not undo that an agent has failed.
        ("0 a-, 10 a+, 20 b-", agents),
        ("0 a-, 10 b+, 20 b-", agents),
        // One agent: three in a row, within a minute.
        ("0 a-, 10 a-", None),
        ("0 a-, 10 a-, 20 a-", row),
        ("0 a-, 10 a-, 20 a+, 30 a-", None),
        ("0 a-, 10 a-, 20 a+, 30 a-, 40 a-, 50 a-", row),
        ("0 a-, 10 a-, 20 b+, 30 a-", row),
        ("0 a-, 10 a-, 59999 a-", row),
        ("0 a-, 10 a-, 60000 a-", None),
        ("0 a-, 10 a-, 60000 a-, 60009 a-", row),
        // Calls by nobody known are each by somebody else.
        ("0 ?-, 10 ?-", agents),
        ("0 ?-", None),
        ("0 a-, 10 ?-", agents),
        ("0 a+, 10 b+, 20 ?+", None),
    ] {
        for policy in [HealthPolicy::comis(), counts_alone()] {
            assert_eq!(plays(policy, script), expected, "{script}");
        }
    }
}

#[test]
fn the_default_requires_a_share_of_the_calls() {
    let policy = HealthPolicy::default();
    for (good, expected) in [(0, true), (7, true), (8, true), (9, false), (100, false)] {
        let mut world = World::new(policy);
        for _ in 0..good {
            world.answers("c");
        }
        world.fails("a");
        world.fails("b");
        assert_eq!(world.is_degraded(), expected, "2 failures beside {good} successes");
    }
    // What is known of successes leaves the window, too.
    let mut world = World::new(policy);
    for _ in 0..100 {
        world.answers("c");
    }
    world.at(66_000).fails("a");
    world.fails("b");
    assert!(world.is_degraded());
    let mut comis = World::new(HealthPolicy::comis());
    for _ in 0..100 {
        comis.answers("c");
    }
    comis.fails("a");
    comis.fails("b");
    assert!(comis.is_degraded(), "the preset has no share");
}

#[test]
fn calls_under_way_are_taken_as_good() {
    let mut world = World::new(HealthPolicy::default());
    let calls: Vec<_> = (0..10).map(|_| world.monitor.began(agent("c"))).collect();
    world.fails("a");
    world.fails("b");
    assert!(!world.is_degraded(), "2 of 12");
    world.fails("d");
    assert!(world.is_degraded(), "3 of 13");
    // One that was cancelled is none any more.
    let mut world = World::new(HealthPolicy::default());
    let cancelled: Vec<_> = (0..10).map(|_| world.monitor.began(agent("c"))).collect();
    for call in &cancelled {
        let now = world.now;
        assert_eq!(world.monitor.ended(now, call, Outcome::Cancelled, false), None);
    }
    world.fails("a");
    world.fails("b");
    assert!(world.is_degraded());
    drop(calls);
}

#[test]
fn only_failures_of_the_provider_count() {
    let limited = |limit| Failure::new(Reason::Timeout, "").with_time_limit(limit);
    let counts = [
        Failure::new(Reason::ServerError, ""),
        Failure::new(Reason::Network, ""),
        Failure::new(Reason::Unknown, ""),
        limited(TimeLimit::Stall),
        limited(TimeLimit::FirstContent),
    ];
    // Of one model or credential alone.
    let narrow = [
        Failure::new(Reason::Overloaded, ""),
        Failure::new(Reason::RateLimit, ""),
        Failure::new(Reason::Auth, ""),
        Failure::new(Reason::ModelNotFound, ""),
    ];
    let does_not = [
        Failure::new(Reason::Format, ""),
        Failure::new(Reason::ContextOverflow, ""),
        Failure::new(Reason::ContentFilter, ""),
        Failure::new(Reason::Cancelled, ""),
        Failure::new(Reason::Safety, ""),
        Failure::refused(Reason::CircuitOpen, ""),
        Failure::refused(Reason::Budget, ""),
        Failure::new(Reason::ServerError, "").with_fault(FaultSide::Model),
        limited(TimeLimit::Makespan),
        limited(TimeLimit::Pipeline),
        limited(TimeLimit::Makespan).with_fault(FaultSide::Local),
    ];
    for policy in [HealthPolicy::default(), HealthPolicy::comis()] {
        let played = |failure: &Failure| {
            let mut world = World::new(policy);
            for name in ["a", "b", "c", "a", "a", "a"] {
                world.fails_with(name, failure);
            }
            world
        };
        for failure in &counts {
            assert!(played(failure).is_degraded(), "{failure:?}");
        }
        for failure in &narrow {
            assert_eq!(played(failure).is_degraded(), policy.any_scope, "{failure:?}");
        }
        for failure in &does_not {
            let mut world = played(failure);
            let now = world.now;
            let snapshot = world.monitor.snapshot("p", now);
            assert!(!world.is_degraded(), "{failure:?}");
            assert_eq!((snapshot.calls, snapshot.failures, snapshot.under_way), (0, 0, 0));
        }
    }
}

#[test]
fn recovery_takes_three_successes_and_a_tenth() {
    let mut world = degraded(HealthPolicy::default());
    assert_eq!(world.answers("a"), None);
    assert_eq!(world.answers("a"), None);
    let recovered = world.at(5_000).answers("b").unwrap();
    assert_eq!((recovered.to, recovered.cause), (HealthStatus::Healthy, HealthCause::Successes));
    assert_eq!(recovered.after, Duration::from_secs(5));
    // A failure in between: three more, and until it is a tenth of the window.
    let mut world = degraded(HealthPolicy::default());
    world.answers("a");
    world.answers("a");
    world.fails("a");
    for _ in 0..6 {
        assert_eq!(world.answers("a"), None);
    }
    assert!(world.answers("a").is_some(), "1 of 10");
    // Or until it has left the window.
    let mut world = degraded(HealthPolicy::default());
    world.fails("a");
    world.at(66_000);
    assert_eq!((world.answers("a"), world.answers("a")), (None, None));
    assert!(world.answers("a").is_some());
}

#[test]
fn the_preset_recovers_with_the_first_success() {
    let mut world = degraded(HealthPolicy::comis());
    assert_eq!(world.fails("c"), None);
    assert!(world.answers("a").is_some());
    assert!(!world.is_degraded());
}

#[test]
fn silence_is_no_evidence() {
    for policy in [HealthPolicy::default(), HealthPolicy::comis()] {
        let mut world = degraded(policy);
        let day = Duration::from_secs(24 * 3_600);
        world.now += day;
        let now = world.now;
        assert_eq!(world.monitor.snapshot("p", now).status, HealthStatus::Degraded);
        // Nor are calls that nobody waited for, and mistakes of callers.
        for _ in 0..10 {
            let call = world.monitor.began(agent("a"));
            world.monitor.ended(now, &call, Outcome::Cancelled, false);
            world.fails_with("a", &Failure::new(Reason::Format, ""));
        }
        assert!(world.is_degraded());
    }
}

#[test]
fn stragglers_decide_nothing() {
    let mut world = World::new(counts_alone());
    let [good, bad] = [world.monitor.began(agent("c")), world.monitor.began(agent("d"))];
    world.fails("a");
    world.fails("b");
    assert!(world.is_degraded());
    let now = world.now;
    // Three that began before are no recovery.
    assert_eq!(world.monitor.reached(now, &good), None);
    assert_eq!(world.monitor.ended(now, &good, Outcome::Success, true), None);
    let late = [world.monitor.began(agent("a")), world.monitor.began(agent("b"))];
    for _ in 0..3 {
        world.answers("c");
    }
    assert!(!world.is_degraded());
    // Failures of the outage that are known after it do not bring it back.
    let failure = broken();
    for call in [bad, late[0], late[1]] {
        assert_eq!(world.monitor.ended(now, &call, Outcome::Failure(&failure), false), None);
    }
    let snapshot = world.monitor.snapshot("p", now);
    assert_eq!((snapshot.failures, snapshot.failing_agents, snapshot.under_way), (0, 0, 0));
    world.fails("a");
    assert!(world.fails("b").is_some(), "new ones do");
}

#[test]
fn a_late_failure_of_an_agent_is_no_part_of_a_row_after_its_success() {
    let mut world = World::new(counts_alone());
    let slow = world.monitor.began(agent("a"));
    world.answers("a");
    let (now, failure) = (world.now, broken());
    world.monitor.ended(now, &slow, Outcome::Failure(&failure), false);
    world.fails("a");
    assert_eq!(world.fails("a"), None, "two since the success");
    assert!(world.fails("a").is_some());
}

#[test]
fn a_stream_that_breaks_is_a_success_and_a_failure() {
    let mut world = World::new(HealthPolicy::default());
    let breaks = |world: &mut World, name| {
        let call = world.monitor.began(agent(name));
        world.monitor.reached(world.now, &call);
        world.monitor.ended(world.now, &call, Outcome::Failure(&broken()), true)
    };
    assert_eq!(breaks(&mut world, "a"), None);
    let now = world.now;
    let snapshot = world.monitor.snapshot("p", now);
    assert_eq!((snapshot.calls, snapshot.failures, snapshot.under_way), (2, 1, 0));
    assert!(breaks(&mut world, "b").is_some());
    // While degraded, each takes back what it gave.
    for _ in 0..10 {
        assert_eq!(breaks(&mut world, "a"), None);
    }
    assert!(world.is_degraded());
}

#[test]
fn what_is_forced_stays_until_it_is_reset() {
    let mut world = World::new(HealthPolicy::comis());
    let now = world.now;
    let forced = world.monitor.force(HealthStatus::Degraded, now).unwrap();
    assert_eq!((forced.to, forced.cause), (HealthStatus::Degraded, HealthCause::Manual));
    for _ in 0..10 {
        assert_eq!(world.answers("a"), None);
    }
    assert!(world.monitor.force(HealthStatus::Healthy, now).is_some());
    for name in ["a", "b", "c"] {
        assert_eq!(world.fails(name), None);
    }
    assert_eq!(world.monitor.reset(now), None, "it was healthy");
    world.fails("a");
    assert!(world.fails("b").is_some());
    assert_eq!(world.monitor.reset(now).unwrap().to, HealthStatus::Healthy);
    let snapshot = world.monitor.snapshot("p", now);
    assert_eq!((snapshot.calls, snapshot.failures, snapshot.degradations), (0, 0, 2));
}

#[test]
fn another_policy_keeps_what_is_known() {
    let mut world = World::new(HealthPolicy { agents: 5, ..counts_alone() });
    let now = world.now;
    world.fails("a");
    world.fails("b");
    world.monitor.set_policy(counts_alone(), now);
    assert!(world.fails("c").is_some());
    let policy = HealthPolicy { window: Duration::from_secs(5), ..counts_alone() };
    world.monitor.set_policy(policy, now);
    assert!(world.is_degraded());
}
