//! The circuit by hand: each rule with its numbers.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use steadfast_core::{
    Permit, PermitKind, Reason,
    circuit::{
        Blame, Circuit, CircuitCause, CircuitPolicy, CircuitSnapshot, CircuitState, LonePolicy,
        Moment, Recovery, SlowPolicy, Transition, Verdict, Weight,
    },
};
use tokio::time::Instant;

/// A circuit, its time, and the order of its calls.
struct Rig {
    circuit: Circuit,
    now: Instant,
    order: u64,
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn blame(weight: Weight, reason: Reason, cooldown: Duration) -> Blame {
    Blame { weight, reason, cooldown, hinted: false, permanent: false }
}

fn hard(reason: Reason) -> Verdict {
    let cooldown = if reason == Reason::ServerError { 60 } else { 30 };
    Verdict::Failure(blame(Weight::Hard, reason, secs(cooldown)))
}

fn soft() -> Verdict {
    Verdict::Failure(blame(Weight::Soft, Reason::RateLimit, secs(60)))
}

fn proof(permanent: bool) -> Verdict {
    Verdict::Failure(Blame { permanent, ..blame(Weight::Proof, Reason::Auth, secs(600)) })
}

fn hinted(hint: Duration) -> Verdict {
    Verdict::Failure(Blame { hinted: true, ..blame(Weight::Soft, Reason::RateLimit, hint) })
}

/// The circuit breaker's numbers, and nobody is alone: what most tests want.
fn plain() -> CircuitPolicy {
    CircuitPolicy {
        consecutive: Some(5),
        second_witness: false,
        window: secs(60),
        min_calls: 20,
        failure_rate: Some(0.5),
        slow: None,
        content_is_success: false,
        cooldown: secs(30),
        growth: 2.0,
        max_cooldown: secs(900),
        permanent_cooldown: secs(3_600),
        max_permanent: secs(86_400),
        probe_lead: secs(30),
        probe_limit: secs(600),
        probes: 1,
        successes: 1,
        recovery: Recovery::Probes,
        lone: None,
    }
}

fn with_lone() -> CircuitPolicy {
    CircuitPolicy { lone: Some(LonePolicy::default()), ..plain() }
}

/// Failover's numbers: the first failure opens it, and rests are a preference.
fn cooling() -> CircuitPolicy {
    CircuitPolicy {
        consecutive: Some(1),
        failure_rate: None,
        growth: 1.0,
        probe_limit: secs(180),
        recovery: Recovery::Everyone,
        ..plain()
    }
}

impl Rig {
    fn new(policy: CircuitPolicy) -> Self {
        let now = Instant::now();
        Self { circuit: Circuit::new(policy, now), now, order: 0 }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    fn moment(&self) -> Moment {
        Moment { at: self.now, order: self.order }
    }

    fn begin(&mut self) -> Moment {
        self.order += 1;
        self.moment()
    }

    fn ask(&mut self, lone: bool) -> Result<Permit, Duration> {
        let now = self.begin();
        self.circuit.admit(now, lone).result.map_err(|refused| refused.wait)
    }

    #[track_caller]
    fn asked_as(&mut self, kind: PermitKind, lone: bool) -> Permit {
        match self.ask(lone) {
            Ok(permit) if permit.kind == kind => permit,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn pass(&mut self) -> Permit {
        self.asked_as(PermitKind::Ordinary, false)
    }

    #[track_caller]
    fn probe(&mut self) -> Permit {
        self.asked_as(PermitKind::Probe, false)
    }

    #[track_caller]
    fn lone(&mut self) -> Permit {
        self.asked_as(PermitKind::Lone, true)
    }

    #[track_caller]
    fn refused(&mut self) -> Duration {
        self.ask(false).unwrap_err()
    }

    fn end(&mut self, permit: Permit, verdict: Verdict) -> Option<Transition> {
        self.circuit.end(self.moment(), &permit, verdict, None)
    }

    fn end_after(
        &mut self,
        permit: Permit,
        verdict: Verdict,
        content: Duration,
    ) -> Option<Transition> {
        self.circuit.end(self.moment(), &permit, verdict, Some(content))
    }

    /// A call that passes and ends so.
    #[track_caller]
    fn call(&mut self, verdict: Verdict) -> Option<Transition> {
        let permit = self.pass();
        self.end(permit, verdict)
    }

    /// The same, by `witness`.
    #[track_caller]
    fn call_of(&mut self, witness: Option<u64>, verdict: Verdict) -> Option<Transition> {
        let permit = Permit { witness, ..self.pass() };
        self.end(permit, verdict)
    }

    /// Opens it.
    #[track_caller]
    fn open(&mut self, verdict: Verdict) -> Transition {
        for _ in 0..100 {
            if let Some(change) = self.call(verdict) {
                assert_eq!(change.to, CircuitState::Open);
                return change;
            }
        }
        panic!("does not open");
    }

    fn trip(&mut self, reason: Reason, cooldown: Duration) -> Option<Transition> {
        self.circuit.trip(self.moment(), reason, cooldown)
    }

    fn force(&mut self, state: CircuitState) -> Option<Transition> {
        self.circuit.force(self.moment(), state)
    }

    fn reset(&mut self) -> Option<Transition> {
        self.circuit.reset(self.moment())
    }

    fn claim(&mut self) -> Option<Permit> {
        let now = self.begin();
        self.circuit.claim_probe(now)
    }

    fn seen(&mut self) -> CircuitSnapshot {
        self.circuit.snapshot(self.now)
    }

    /// The end of the rest, from now.
    fn rest(&mut self) -> Duration {
        self.seen().until.unwrap() - self.now
    }

    /// What is left of the rest, in seconds, while it rests.
    fn left(&self) -> Option<u64> {
        self.circuit.resting(self.now).map(|rest| (rest.until - self.now).as_secs())
    }
}

#[test]
fn opens_at_the_fifth_hard_failure_in_a_row() {
    let mut it = Rig::new(plain());
    for _ in 0..4 {
        assert_eq!(it.call(hard(Reason::ServerError)), None);
    }
    it.call(Verdict::Success);
    for _ in 0..4 {
        assert_eq!(it.call(hard(Reason::ServerError)), None);
    }
    // Neither throttling nor nothing breaks the row or lengthens it.
    assert_eq!(it.call(soft()), None);
    assert_eq!(it.call(Verdict::Nothing), None);
    assert_eq!(it.seen().consecutive, 4);
    let change = it.call(hard(Reason::Network)).unwrap();
    assert_eq!((change.from, change.to), (CircuitState::Closed, CircuitState::Open));
    assert_eq!((change.cause, change.reason), (CircuitCause::Consecutive, Some(Reason::Network)));
    assert_eq!(it.rest(), secs(30), "the cooldown of the failure that did it");
    assert_eq!(it.refused(), secs(30));
}

#[test]
fn throttling_never_completes_a_row_but_counts_in_the_rate() {
    let mut it = Rig::new(plain());
    for _ in 0..19 {
        assert_eq!(it.call(soft()), None);
    }
    let change = it.call(soft()).unwrap();
    assert_eq!(change.cause, CircuitCause::FailureRate);
    assert_eq!(it.rest(), secs(60));
}

#[test]
fn the_rate_is_of_the_window_and_needs_enough_calls() {
    let policy = CircuitPolicy { consecutive: None, ..plain() };
    // Nineteen failures are too few to tell.
    let mut it = Rig::new(policy);
    for _ in 0..19 {
        assert_eq!(it.call(hard(Reason::Timeout)), None);
    }
    // A success completes the number, but is no moment to stop.
    assert_eq!(it.call(Verdict::Success), None);
    assert_eq!(
        it.call(hard(Reason::Timeout)).map(|change| change.cause),
        Some(CircuitCause::FailureRate)
    );

    // Old failures slide out, call by call or not.
    let mut it = Rig::new(policy);
    for _ in 0..19 {
        it.call(hard(Reason::Timeout));
    }
    it.wait(secs(60));
    assert_eq!(it.call(hard(Reason::Timeout)), None);
    assert_eq!(it.seen().calls, 1);

    // Just under a half, and a half.
    let mut it = Rig::new(policy);
    for _ in 0..20 {
        it.call(Verdict::Success);
    }
    for _ in 0..19 {
        assert_eq!(it.call(soft()), None);
    }
    assert_eq!(it.call(soft()).map(|change| change.cause), Some(CircuitCause::FailureRate));
    assert_eq!(it.seen().failure_rate(), Some(0.5));
}

#[test]
fn slowness_is_counted_apart_and_only_when_asked_for() {
    let slow = SlowPolicy { after: secs(10), rate: 0.5 };
    let mut it = Rig::new(CircuitPolicy { slow: Some(slow), min_calls: 4, ..plain() });
    let call = |it: &mut Rig, took| {
        let token = it.pass();
        it.end_after(token, Verdict::Success, took)
    };
    assert_eq!(call(&mut it, secs(10)), None);
    assert_eq!(call(&mut it, secs(1)), None);
    assert_eq!(call(&mut it, secs(11)), None);
    let change = call(&mut it, secs(11)).unwrap();
    assert_eq!((change.cause, change.reason), (CircuitCause::SlowRate, None));
    assert_eq!(it.rest(), secs(30));
    // A probe that is slow is no proof of recovery.
    it.wait(secs(15));
    let probe = it.probe();
    let change = it.end_after(probe, Verdict::Success, secs(11)).unwrap();
    assert_eq!(change.cause, CircuitCause::ProbeFailed);

    let mut it = Rig::new(CircuitPolicy { min_calls: 1, ..plain() });
    for _ in 0..50 {
        assert_eq!(call(&mut it, secs(1_000)), None);
    }
}

#[test]
fn how_long_it_rests() {
    let hour = secs(3_600);
    let none = |verdict| match verdict {
        Verdict::Failure(blame) => blame,
        _ => unreachable!(),
    };
    // What opened it, the first rest, after one failed probe, after many.
    let table = [
        (hard(Reason::Network), secs(30), secs(60), secs(900)),
        (hard(Reason::ServerError), secs(60), secs(120), secs(900)),
        // The provider's own word, doubled when it was wrong.
        (hinted(secs(7)), secs(7), secs(14), secs(900)),
        // Its own cooldown is kept even where the doubling ends earlier.
        (proof(false), secs(600), secs(900), secs(900)),
        (hinted(secs(5_000)), secs(5_000), secs(5_000), secs(5_000)),
        // Permanent: long, doubling to a day, whatever short hint it came with.
        (proof(true), hour, 2 * hour, 24 * hour),
        (
            Verdict::Failure(Blame { cooldown: secs(5), hinted: true, ..none(proof(true)) }),
            hour,
            2 * hour,
            24 * hour,
        ),
    ];
    for (verdict, first, second, last) in table {
        let mut it = Rig::new(plain());
        it.open(verdict);
        assert_eq!(it.rest(), first, "{verdict:?}");
        for round in 1..12 {
            // Probed at the very end, so that no rest that is left adds to it.
            let rest = it.rest();
            it.wait(rest);
            let probe = it.probe();
            let change = it.end(probe, verdict).unwrap();
            assert_eq!(change.cause, CircuitCause::ProbeFailed);
            if round == 1 {
                assert_eq!(it.rest(), second, "{verdict:?}");
            }
        }
        assert_eq!(it.rest(), last, "{verdict:?}");
        assert_eq!(it.seen().failed_probes, 11);
        // A success forgets all that.
        let rest = it.rest();
        it.wait(rest);
        let probe = it.probe();
        assert_eq!(
            it.end(probe, Verdict::Success).map(|change| change.to),
            Some(CircuitState::Closed)
        );
        it.open(verdict);
        assert_eq!(it.rest(), first, "{verdict:?}");
    }
}

#[test]
fn a_shorter_rest_never_overwrites_a_longer_one() {
    let mut it = Rig::new(plain());
    it.open(proof(false));
    let until = it.seen().until;
    it.wait(secs(580));
    let probe = it.probe();
    // Doubled it would be 14 s: before the 20 s that are left.
    it.end(probe, hinted(secs(7))).unwrap();
    assert_eq!(it.seen().until, until);
    it.trip(Reason::Overloaded, secs(1));
    assert_eq!(it.seen().until, until);
    it.trip(Reason::Overloaded, secs(100));
    assert_eq!(it.rest(), secs(100));
}

#[test]
fn the_probe_goes_a_little_early() {
    // The rest, and when the probe may be made.
    for (rest, from) in [(1_000, 970), (60, 30), (50, 25), (10, 5)] {
        let mut it = Rig::new(plain());
        it.open(Verdict::Failure(blame(Weight::Proof, Reason::Auth, secs(rest))));
        it.wait(secs(from) - Duration::from_millis(1));
        let left = secs(rest - from) + Duration::from_millis(1);
        assert_eq!(it.refused(), left, "refused calls are told the end of the rest");
        it.wait(Duration::from_millis(1));
        it.probe();
        assert_eq!(it.seen().state, CircuitState::HalfOpen);
    }
    // Not at all where the policy or the provider says when.
    let late = CircuitPolicy { probe_lead: Duration::ZERO, ..plain() };
    for (policy, verdict) in [(late, hard(Reason::ServerError)), (plain(), hinted(secs(60)))] {
        let mut it = Rig::new(policy);
        it.open(verdict);
        it.wait(secs(59));
        assert_eq!(it.refused(), secs(1));
        it.wait(secs(1));
        it.probe();
    }
}

#[test]
fn one_probe_at_a_time_and_every_end_frees_its_place() {
    let mut it = Rig::new(plain());
    it.open(hard(Reason::Network));
    it.wait(secs(30));
    for _ in 0..3 {
        let probe = it.probe();
        assert_eq!(it.refused(), secs(1), "the rest is over, the probe is out");
        // Cancelled, the caller's fault, a refusal of our own: no answer to the question.
        assert_eq!(it.end(probe, Verdict::Nothing), None);
        assert_eq!((it.seen().state, it.seen().probes), (CircuitState::HalfOpen, 0));
    }
    let probe = it.probe();
    let change = it.end(probe, Verdict::Success).unwrap();
    assert_eq!((change.to, change.cause), (CircuitState::Closed, CircuitCause::Recovered));
    it.pass();
}

#[test]
fn several_probes_and_a_threshold() {
    let mut it = Rig::new(CircuitPolicy { probes: 2, successes: 3, ..plain() });
    it.open(hard(Reason::Network));
    it.wait(secs(30));
    let (first, second) = (it.probe(), it.probe());
    it.refused();
    assert_eq!(it.end(first, Verdict::Success), None);
    let third = it.probe();
    assert_eq!(it.end(second, Verdict::Success), None);
    assert_eq!(it.seen().probe_successes, 2);
    // One that fails is enough, and the others' answers are of yesterday.
    let fourth = it.probe();
    assert_eq!(it.end(third, soft()).map(|change| change.cause), Some(CircuitCause::ProbeFailed));
    assert_eq!(it.end(fourth, Verdict::Success), None);
    assert_eq!(it.seen().state, CircuitState::Open);
    it.wait(secs(900));
    for closes in [false, false, true] {
        let probe = it.probe();
        assert_eq!(it.end(probe, Verdict::Success).is_some(), closes);
    }
}

#[test]
fn a_lost_probe_gives_up_its_place_and_its_say() {
    let mut it = Rig::new(plain());
    it.open(hard(Reason::Network));
    it.wait(secs(30));
    let lost = it.probe();
    it.wait(secs(599));
    assert_eq!(it.refused(), secs(1));
    it.wait(secs(1));
    assert_eq!(it.seen().probes, 0);
    let now = it.begin();
    let admission = it.circuit.admit(now, false);
    assert_eq!(admission.lost, 1);
    let second = admission.result.unwrap();
    assert_eq!(second.kind, PermitKind::Probe);
    // It comes after all.
    assert_eq!(it.end(lost, hard(Reason::Network)), None);
    assert_eq!(it.seen().state, CircuitState::HalfOpen);
    assert_eq!(
        it.end(second, Verdict::Success).map(|change| change.to),
        Some(CircuitState::Closed)
    );
}

#[test]
fn stragglers_decide_nothing() {
    let mut it = Rig::new(plain());
    let before: Vec<_> = (0..10).map(|_| it.pass()).collect();
    it.open(hard(Reason::Network));
    let opened = it.seen();
    // Neither while it is open, with a worse hint,
    assert_eq!(it.end(before[0], hinted(secs(5_000))), None);
    assert_eq!(it.seen(), opened);
    it.wait(secs(30));
    let probe = it.probe();
    // nor while it is half-open: a success would close it, a failure open it,
    assert_eq!(it.end(before[1], Verdict::Success), None);
    assert_eq!(it.end(before[2], hard(Reason::Network)), None);
    assert_eq!(it.seen().state, CircuitState::HalfOpen);
    it.end(probe, Verdict::Success).unwrap();
    // nor when it has closed: five of them would open it.
    for token in &before[3..] {
        assert_eq!(it.end(*token, hard(Reason::Network)), None);
    }
    assert_eq!((it.seen().calls, it.seen().consecutive), (0, 0));
    // The same end told twice is told once.
    it.open(hard(Reason::Network));
    it.wait(secs(30));
    let probe = it.probe();
    it.end(probe, Verdict::Nothing);
    assert_eq!(it.end(probe, Verdict::Success), None);
    assert_eq!(it.seen().state, CircuitState::HalfOpen);
}

#[test]
fn proof_opens_at_once() {
    let mut it = Rig::new(plain());
    let change = it.call(proof(false)).unwrap();
    assert_eq!((change.cause, change.reason), (CircuitCause::Proof, Some(Reason::Auth)));
    assert_eq!(it.rest(), secs(600));
    let mut it = Rig::new(CircuitPolicy { consecutive: Some(1), ..plain() });
    let change = it.call(hard(Reason::ServerError)).unwrap();
    assert_eq!(change.cause, CircuitCause::Consecutive, "one is enough there");
}

#[test]
fn with_nowhere_else_to_go_a_little_passes() {
    let mut it = Rig::new(with_lone());
    it.open(hinted(secs(1_000)));
    assert_eq!(it.ask(true), Err(secs(1)));
    assert_eq!(it.refused(), secs(1_000), "others have somewhere to go");
    it.wait(secs(1));
    let first = it.lone();
    it.wait(secs(5));
    assert_eq!(it.ask(true), Err(secs(1)), "one at a time");
    // Failing without a word of the provider changes nothing,
    let until = it.seen().until;
    assert_eq!(it.end(first, hard(Reason::ServerError)), None);
    assert_eq!((it.seen().until, it.seen().failed_probes), (until, 0));
    // with a shorter hint nothing either, with a longer one it rests longer.
    for (hint, rest) in [(secs(3), secs(994)), (secs(2_000), secs(2_000))] {
        let token = it.lone();
        assert_eq!(it.end(token, hinted(hint)), None);
        assert_eq!(it.rest(), rest);
        it.wait(secs(1));
    }
    // The provider asked for this rest: no number of successes ends it,
    for _ in 0..10 {
        let token = it.lone();
        assert_eq!(it.end(token, Verdict::Success), None);
        it.wait(secs(1));
    }
    // before a probe might.
    let left = it.seen().probe_from.unwrap() - it.now;
    it.wait(left);
    let probe = it.probe();
    let lone = it.lone();
    assert_eq!(it.end(lone, Verdict::Success).map(|change| change.to), Some(CircuitState::Closed));
    assert_eq!(it.end(probe, hard(Reason::Network)), None);
}

#[test]
fn three_in_a_row_end_a_rest_nobody_asked_for() {
    let mut it = Rig::new(with_lone());
    it.open(hard(Reason::ServerError));
    let mut changes = vec![];
    for verdict in [
        Verdict::Success,
        Verdict::Success,
        hard(Reason::Network),
        Verdict::Success,
        Verdict::Nothing,
        Verdict::Success,
        Verdict::Success,
    ] {
        it.wait(secs(1));
        let token = it.lone();
        changes.push(it.end(token, verdict).map(|change| change.to));
    }
    let mut expected = vec![None; 6];
    expected.push(Some(CircuitState::Closed));
    assert_eq!(changes, expected);
}

#[test]
fn a_lost_lone_call_does_not_lock_out_the_next() {
    let mut it = Rig::new(with_lone());
    it.open(hinted(secs(10_000)));
    it.wait(secs(1));
    it.lone();
    it.wait(secs(599));
    assert!(it.ask(true).is_err());
    it.wait(secs(1));
    it.lone();
}

#[test]
fn held_by_hand() {
    let lone = Some(LonePolicy::default());
    let mut it = Rig::new(CircuitPolicy { lone, ..plain() });
    let change = it.force(CircuitState::ForcedOpen).unwrap();
    assert_eq!((change.from, change.to), (CircuitState::Closed, CircuitState::ForcedOpen));
    assert_eq!(change.cause, CircuitCause::Manual);
    assert_eq!(it.force(CircuitState::ForcedOpen), None);
    it.wait(secs(1_000_000));
    assert_eq!(it.refused(), secs(30));
    // The panic rule lets a little pass, and nothing it brings opens the door.
    for _ in 0..10 {
        let token = it.lone();
        assert_eq!(it.end(token, Verdict::Success), None);
        it.wait(secs(1));
    }
    assert_eq!(it.trip(Reason::Overloaded, secs(1)), None);

    let change = it.force(CircuitState::Isolated).unwrap();
    assert_eq!((change.from, change.to), (CircuitState::ForcedOpen, CircuitState::Isolated));
    it.wait(secs(1_000_000));
    assert_eq!(it.ask(true), Err(secs(30)));

    let change = it.force(CircuitState::ForcedClosed).unwrap();
    assert_eq!((change.from, change.to), (CircuitState::Isolated, CircuitState::ForcedClosed));
    for _ in 0..100 {
        assert_eq!(it.call(proof(true)), None);
    }
    assert_eq!(it.seen().failures, 100);

    let change = it.reset().unwrap();
    assert_eq!((change.from, change.to), (CircuitState::ForcedClosed, CircuitState::Closed));
    assert_eq!((it.seen().calls, it.seen().consecutive), (0, 0), "nothing held against it");
    assert_eq!(it.reset(), None);
    assert!(it.call(proof(false)).is_some());
}

#[test]
fn times_beyond_all_clocks_do_not_overflow() {
    let policy = CircuitPolicy {
        cooldown: Duration::MAX,
        max_cooldown: Duration::MAX,
        permanent_cooldown: Duration::MAX,
        max_permanent: Duration::MAX,
        probe_lead: Duration::MAX,
        probe_limit: Duration::MAX,
        lone: Some(LonePolicy { every: Duration::MAX, ..LonePolicy::default() }),
        ..plain()
    };
    let forever = Verdict::Failure(blame(Weight::Proof, Reason::Auth, Duration::MAX));
    for verdict in [forever, hinted(Duration::MAX), proof(true), hard(Reason::Network)] {
        let mut it = Rig::new(policy);
        it.open(verdict);
        let _ = (it.ask(true), it.ask(false));
        let left = it.rest();
        it.wait(left);
        let probe = it.probe();
        assert!(it.end(probe, verdict).is_some());
        it.seen();
    }
}

#[test]
fn one_witness_opens_nothing_where_two_are_wanted() {
    let policy = CircuitPolicy { second_witness: true, failure_rate: None, ..plain() };
    let fails = hard(Reason::ServerError);
    let mut it = Rig::new(policy);
    for _ in 0..50 {
        assert_eq!(it.call_of(Some(7), fails), None);
    }
    assert_eq!(
        it.call_of(Some(8), fails).map(|change| change.cause),
        Some(CircuitCause::Consecutive)
    );
    // Calls without a name are witnesses of their own.
    let mut it = Rig::new(policy);
    for _ in 0..4 {
        assert_eq!(it.call_of(None, fails), None);
    }
    assert!(it.call_of(None, fails).is_some());
    // A success forgets who had failed.
    let mut it = Rig::new(policy);
    it.call_of(Some(1), fails);
    it.call_of(Some(2), fails);
    it.call(Verdict::Success);
    for _ in 0..20 {
        assert_eq!(it.call_of(Some(1), fails), None);
    }
    // Proof needs no second one, and without the rule one is enough.
    assert!(it.call_of(Some(1), proof(false)).is_some());
    let mut it = Rig::new(plain());
    let last = (0..5).filter_map(|_| it.call_of(Some(7), fails)).last();
    assert_eq!(last.map(|change| change.cause), Some(CircuitCause::Consecutive));
}

#[test]
fn content_is_a_sign_of_life_where_the_policy_says_so() {
    let lively = CircuitPolicy { content_is_success: true, failure_rate: None, ..plain() };
    // Content ends a row; what breaks after it does not lengthen one.
    for (policy, row) in [(lively, 0), (plain(), 4)] {
        let mut it = Rig::new(policy);
        for _ in 0..4 {
            it.call(hard(Reason::ServerError));
        }
        let permit = it.pass();
        it.circuit.first_content(it.moment(), &permit, secs(1));
        assert_eq!(it.seen().consecutive, row);
        let opened = it.end_after(permit, hard(Reason::Network), secs(1));
        assert_eq!(
            (it.seen().consecutive, opened.is_some()),
            if row == 0 { (0, false) } else { (5, true) }
        );
    }
    // It is a probe's success, and what becomes of the stream is no second one.
    let mut it = Rig::new(CircuitPolicy { successes: 2, ..lively });
    it.open(hard(Reason::Network));
    it.wait(secs(30));
    let probe = it.probe();
    assert_eq!(it.circuit.first_content(it.moment(), &probe, secs(1)), None);
    assert_eq!(it.seen().probe_successes, 1);
    assert_eq!(it.end_after(probe, Verdict::Success, secs(1)), None);
    assert_eq!((it.seen().probe_successes, it.seen().probes), (1, 0));
    let probe = it.probe();
    let change = it.circuit.first_content(it.moment(), &probe, secs(1)).unwrap();
    assert_eq!((change.to, change.cause), (CircuitState::Closed, CircuitCause::Recovered));
    assert_eq!(it.end_after(probe, hard(Reason::Network), secs(1)), None, "of yesterday");
    // One that breaks after its content is no failed probe either.
    let mut it = Rig::new(CircuitPolicy { successes: 2, ..lively });
    it.open(hard(Reason::Network));
    it.wait(secs(30));
    let probe = it.probe();
    it.circuit.first_content(it.moment(), &probe, secs(1));
    assert_eq!(it.end_after(probe, hard(Reason::Network), secs(1)), None);
    assert_eq!((it.seen().state, it.seen().failed_probes), (CircuitState::HalfOpen, 0));
    // Neither a straggler's content nor slow content says anything.
    let slow = Some(SlowPolicy { after: secs(10), rate: 1.0 });
    let mut it = Rig::new(CircuitPolicy { slow, ..lively });
    let before = it.pass();
    it.open(hard(Reason::Network));
    assert_eq!(it.circuit.first_content(it.moment(), &before, secs(1)), None);
    it.wait(secs(30));
    let probe = it.probe();
    assert_eq!(it.circuit.first_content(it.moment(), &probe, secs(11)), None);
    assert_eq!(it.seen().probe_successes, 0);
}

#[test]
fn a_rest_that_is_a_preference_lets_everyone_pass_when_it_is_over() {
    let mut it = Rig::new(cooling());
    it.open(hard(Reason::ServerError));
    assert_eq!(it.left(), Some(60));
    it.wait(secs(60));
    assert_eq!(it.left(), None);
    let (first, second) = (it.pass(), it.pass());
    // It is not well before somebody has been answered,
    let change = it.end(first, hard(Reason::ServerError)).unwrap();
    assert_eq!((change.from, change.cause), (CircuitState::Open, CircuitCause::ProbeFailed));
    assert_eq!(it.left(), Some(60), "no longer than before");
    assert_eq!(it.end(second, Verdict::Success), None, "it began before the rest");
    // and somebody who is sent there all the same may find it so.
    let now = it.begin();
    let sent = Permit::new(PermitKind::Ordinary, now.order);
    assert_eq!(it.end(sent, Verdict::Success).map(|change| change.to), Some(CircuitState::Closed));
    assert_eq!(it.left(), None);
}

#[test]
fn permanent_rests_double_to_a_day_and_start_over_after_a_success() {
    let mut it = Rig::new(cooling());
    let mut hours = Vec::new();
    for _ in 0..7 {
        it.call(proof(true));
        assert!(it.circuit.is_permanent());
        let left = it.left().unwrap();
        hours.push(left / 3_600);
        it.wait(secs(left));
    }
    assert_eq!(hours, [1, 2, 4, 8, 16, 24, 24]);
    it.call(Verdict::Success);
    it.call(proof(true));
    assert_eq!(it.left(), Some(3_600));
    // How often it failed for a while says nothing of what does not pass by itself.
    let mut it = Rig::new(cooling());
    for _ in 0..5 {
        it.call(hard(Reason::Network));
        it.wait(secs(30));
    }
    it.call(proof(true));
    assert_eq!(it.left(), Some(3_600));
}

#[test]
fn a_crowd_that_was_under_way_together_rests_it_once() {
    let mut it = Rig::new(cooling());
    let crowd: Vec<_> = (0..50).map(|_| it.pass()).collect();
    for permit in crowd {
        it.end(permit, proof(true));
    }
    assert_eq!((it.left(), it.seen().failed_probes), (Some(3_600), 0));
}

#[test]
fn a_place_for_a_probe_can_be_claimed() {
    let mut it = Rig::new(cooling());
    assert!(it.claim().is_none(), "nothing rests");
    it.open(hard(Reason::ServerError));
    it.wait(secs(29));
    assert!(it.claim().is_none(), "too early");
    it.wait(secs(1));
    let probe = it.claim().unwrap();
    assert!(it.circuit.is_probing(it.now));
    assert!(it.claim().is_none(), "one is enough");
    it.end(probe, Verdict::Nothing);
    let lost = it.claim().expect("free again");
    // One that is never heard of is replaced, and decides nothing.
    it.wait(secs(20));
    let longer = Verdict::Failure(blame(Weight::Hard, Reason::Auth, secs(600)));
    it.end(lost, longer);
    it.wait(secs(570));
    let lost = it.claim().unwrap();
    it.wait(secs(10));
    it.trip(Reason::Overloaded, secs(600));
    it.wait(secs(600));
    assert!(it.claim().is_some());
    assert_eq!(it.end(lost, Verdict::Success), None);
    assert_eq!(it.seen().state, CircuitState::HalfOpen);
}

#[test]
fn what_can_not_be_asked_rests_without_having_failed() {
    let mut it = Rig::new(cooling());
    let before = it.pass();
    it.circuit.rest(it.now, secs(20), Reason::CircuitOpen);
    assert_eq!((it.left(), it.seen().consecutive), (Some(20), 0));
    assert_eq!(it.circuit.resting(it.now).unwrap().reason, Some(Reason::CircuitOpen));
    it.circuit.rest(it.now, secs(5), Reason::CircuitOpen);
    assert_eq!(it.left(), Some(20), "never shorter");
    // What is under way decides as before.
    assert_eq!(
        it.end(before, Verdict::Success).map(|change| change.to),
        Some(CircuitState::Closed)
    );
    assert_eq!(it.left(), None);
    // A cooldown of nothing counts the failure and rests nothing.
    let nothing = Verdict::Failure(blame(Weight::Hard, Reason::Network, Duration::ZERO));
    assert_eq!(it.call(nothing), None);
    assert_eq!((it.left(), it.seen().consecutive), (None, 1));
}
