//! The machine by hand: each rule with its numbers.

use std::{sync::Arc, time::Duration};

use steadfast_core::{Reason, RecoveryTable, Token};
use tokio::time::Instant;

use super::{Change, Decision, Machine, SOON};
use crate::{
    BreakerPolicy, Cause, LonePolicy, SlowPolicy, Snapshot, State,
    verdict::{Blame, Verdict, Weight},
};

/// A machine and its time.
struct Bench {
    machine: Machine,
    start: Instant,
    now: Instant,
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn hard(reason: Reason) -> Verdict {
    Verdict::Failure(Blame { weight: Weight::Hard, reason, hint: None, permanent: false })
}

fn soft() -> Verdict {
    let reason = Reason::RateLimit;
    Verdict::Failure(Blame { weight: Weight::Soft, reason, hint: None, permanent: false })
}

fn proof(permanent: bool) -> Verdict {
    let reason = Reason::Auth;
    Verdict::Failure(Blame { weight: Weight::Proof, reason, hint: None, permanent })
}

fn hinted(hint: Duration) -> Verdict {
    let reason = Reason::RateLimit;
    let hint = Some(hint);
    Verdict::Failure(Blame { weight: Weight::Soft, reason, hint, permanent: false })
}

/// No jitter, and nobody is alone: what most tests want.
fn plain() -> BreakerPolicy {
    BreakerPolicy { jitter: 0.0, lone: None, ..BreakerPolicy::default() }
}

impl Bench {
    fn new(policy: BreakerPolicy) -> Self {
        policy.validate().unwrap();
        let start = Instant::now();
        let machine = Machine::new(Arc::new(policy), fastrand::Rng::with_seed(7), start);
        Self { machine, start, now: start }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    fn ask(&mut self, lone: bool) -> Decision {
        self.machine.on_admit(self.now, lone).decision
    }

    #[track_caller]
    fn pass(&mut self) -> Token {
        match self.ask(false) {
            Decision::Pass(token) => token,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn probe(&mut self) -> Token {
        match self.ask(false) {
            Decision::Probe(token) => token,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn lone(&mut self) -> Token {
        match self.ask(true) {
            Decision::Lone(token) => token,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn refused(&mut self) -> Duration {
        match self.ask(false) {
            Decision::Refuse { wait } => wait,
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self, token: Token, verdict: Verdict) -> Option<Change> {
        self.machine.on_settle(self.now, token, verdict, None)
    }

    /// A call that passes and ends so.
    #[track_caller]
    fn call(&mut self, verdict: Verdict) -> Option<Change> {
        let token = self.pass();
        self.end(token, verdict)
    }

    /// Opens it.
    #[track_caller]
    fn open(&mut self, verdict: Verdict) -> Change {
        for _ in 0..100 {
            if let Some(change) = self.call(verdict) {
                assert_eq!(change.to, State::Open);
                return change;
            }
        }
        panic!("does not open");
    }

    fn seen(&mut self) -> Snapshot<()> {
        self.machine.snapshot((), self.now)
    }

    /// The end of the rest, from now.
    fn rest(&mut self) -> Duration {
        self.seen().until.unwrap() - self.now
    }
}

#[test]
fn opens_at_the_fifth_hard_failure_in_a_row() {
    let mut it = Bench::new(plain());
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
    assert_eq!((change.from, change.to), (State::Closed, State::Open));
    assert_eq!((change.cause, change.reason), (Cause::Consecutive, Some(Reason::Network)));
    assert_eq!(it.rest(), secs(30), "the table's cooldown of the reason that did it");
    assert_eq!(it.refused(), secs(30));
}

#[test]
fn throttling_never_completes_a_row_but_counts_in_the_rate() {
    let mut it = Bench::new(plain());
    for _ in 0..19 {
        assert_eq!(it.call(soft()), None);
    }
    let change = it.call(soft()).unwrap();
    assert_eq!(change.cause, Cause::FailureRate);
    assert_eq!(it.rest(), secs(60));
}

#[test]
fn the_rate_is_of_the_window_and_needs_enough_calls() {
    let policy = BreakerPolicy { consecutive: None, ..plain() };
    // Nineteen failures are too few to tell.
    let mut it = Bench::new(policy.clone());
    for _ in 0..19 {
        assert_eq!(it.call(hard(Reason::Timeout)), None);
    }
    // A success completes the number, but is no moment to stop.
    assert_eq!(it.call(Verdict::Success), None);
    assert_eq!(it.call(hard(Reason::Timeout)).map(|change| change.cause), Some(Cause::FailureRate));

    // Old failures slide out, call by call or not.
    let mut it = Bench::new(policy.clone());
    for _ in 0..19 {
        it.call(hard(Reason::Timeout));
    }
    it.wait(secs(60));
    assert_eq!(it.call(hard(Reason::Timeout)), None);
    assert_eq!(it.seen().calls, 1);

    // Just under a half, and a half.
    let mut it = Bench::new(policy);
    for _ in 0..20 {
        it.call(Verdict::Success);
    }
    for _ in 0..19 {
        assert_eq!(it.call(soft()), None);
    }
    assert_eq!(it.call(soft()).map(|change| change.cause), Some(Cause::FailureRate));
    assert_eq!(it.seen().failure_rate(), Some(0.5));
}

#[test]
fn slowness_is_counted_apart_and_only_when_asked_for() {
    let slow = SlowPolicy { after: secs(10), rate: 0.5 };
    let mut it = Bench::new(BreakerPolicy { slow: Some(slow), min_calls: 4, ..plain() });
    let call = |it: &mut Bench, took| {
        let token = it.pass();
        it.machine.on_settle(it.now, token, Verdict::Success, Some(took))
    };
    assert_eq!(call(&mut it, secs(10)), None);
    assert_eq!(call(&mut it, secs(1)), None);
    assert_eq!(call(&mut it, secs(11)), None);
    let change = call(&mut it, secs(11)).unwrap();
    assert_eq!((change.cause, change.reason), (Cause::SlowRate, None));
    assert_eq!(it.rest(), secs(30));
    // A probe that is slow is no proof of recovery.
    it.wait(secs(15));
    let probe = it.probe();
    let change = it.machine.on_settle(it.now, probe, Verdict::Success, Some(secs(11))).unwrap();
    assert_eq!(change.cause, Cause::ProbeFailed);

    let mut it = Bench::new(BreakerPolicy { min_calls: 1, ..plain() });
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
        // A hint of a week is believed for a day.
        (hinted(secs(604_800)), 24 * hour, 24 * hour, 24 * hour),
        // Permanent: long, doubling to a day, whatever short hint it came with.
        (proof(true), hour, 2 * hour, 24 * hour),
        (
            Verdict::Failure(Blame { hint: Some(secs(5)), ..none(proof(true)) }),
            hour,
            2 * hour,
            24 * hour,
        ),
    ];
    for (verdict, first, second, last) in table {
        let mut it = Bench::new(plain());
        it.open(verdict);
        assert_eq!(it.rest(), first, "{verdict:?}");
        for round in 1..12 {
            // Probed at the very end, so that no rest that is left adds to it.
            let rest = it.rest();
            it.wait(rest);
            let probe = it.probe();
            let change = it.end(probe, verdict).unwrap();
            assert_eq!(change.cause, Cause::ProbeFailed);
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
        assert_eq!(it.end(probe, Verdict::Success).map(|change| change.to), Some(State::Closed));
        it.open(verdict);
        assert_eq!(it.rest(), first, "{verdict:?}");
    }
}

#[test]
fn a_reason_without_a_cooldown_rests_the_usual_time() {
    let table = RecoveryTable::default().cooldown(Reason::Network, Duration::ZERO);
    let mut it = Bench::new(BreakerPolicy { table, cooldown: secs(11), ..plain() });
    it.open(hard(Reason::Network));
    assert_eq!(it.rest(), secs(11));
}

#[test]
fn jitter_only_lengthens_and_follows_the_seed() {
    let rests = |seed| -> Vec<Duration> {
        let policy = BreakerPolicy { jitter: 0.25, ..plain() };
        let mut it = Bench::new(policy.clone());
        it.machine = Machine::new(Arc::new(policy), fastrand::Rng::with_seed(seed), it.start);
        (0..20)
            .map(|_| {
                it.open(hard(Reason::Network));
                let rest = it.rest();
                it.machine.reset(it.now);
                rest
            })
            .collect()
    };
    let some = rests(1);
    assert_eq!(some, rests(1));
    assert_ne!(some, rests(2));
    assert!(some.iter().all(|rest| (secs(30)..=Duration::from_millis(37_500)).contains(rest)));
    assert!(some.iter().any(|rest| *rest > secs(31)), "{some:?}");
}

#[test]
fn a_shorter_rest_never_overwrites_a_longer_one() {
    let mut it = Bench::new(plain());
    it.open(hinted(secs(1_000)));
    let until = it.seen().until;
    it.wait(secs(980));
    let probe = it.probe();
    // Doubled it would be 14 s: before the provider's own 20 s are over.
    it.end(probe, hinted(secs(7))).unwrap();
    assert_eq!(it.seen().until, until);
    it.machine.trip(it.now, Reason::Overloaded, secs(1));
    assert_eq!(it.seen().until, until);
    it.machine.trip(it.now, Reason::Overloaded, secs(100));
    assert_eq!(it.rest(), secs(100));
}

#[test]
fn the_probe_goes_a_little_early() {
    // The rest, and when the probe may be made.
    for (rest, from) in [(1_000, 970), (60, 30), (50, 25), (10, 5)] {
        let mut it = Bench::new(plain());
        it.open(hinted(secs(rest)));
        it.wait(secs(from) - Duration::from_millis(1));
        let left = secs(rest - from) + Duration::from_millis(1);
        assert_eq!(it.refused(), left, "refused calls are told the end of the rest");
        it.wait(Duration::from_millis(1));
        it.probe();
        assert_eq!(it.seen().state, State::HalfOpen);
    }
    let mut it = Bench::new(BreakerPolicy { probe_lead: Duration::ZERO, ..plain() });
    it.open(hinted(secs(60)));
    it.wait(secs(59));
    assert_eq!(it.refused(), secs(1));
    it.wait(secs(1));
    it.probe();
}

#[test]
fn one_probe_at_a_time_and_every_end_frees_its_place() {
    let mut it = Bench::new(plain());
    it.open(hard(Reason::Network));
    it.wait(secs(30));
    for _ in 0..3 {
        let probe = it.probe();
        assert_eq!(it.refused(), SOON, "the rest is over, the probe is out");
        // Cancelled, the caller's fault, a refusal of our own: no answer to the question.
        assert_eq!(it.end(probe, Verdict::Nothing), None);
        assert_eq!((it.seen().state, it.seen().probes), (State::HalfOpen, 0));
    }
    let probe = it.probe();
    let change = it.end(probe, Verdict::Success).unwrap();
    assert_eq!((change.to, change.cause), (State::Closed, Cause::Recovered));
    it.pass();
}

#[test]
fn several_probes_and_a_threshold() {
    let mut it = Bench::new(BreakerPolicy { probes: 2, successes: 3, ..plain() });
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
    assert_eq!(it.end(third, soft()).map(|change| change.cause), Some(Cause::ProbeFailed));
    assert_eq!(it.end(fourth, Verdict::Success), None);
    assert_eq!(it.seen().state, State::Open);
    it.wait(secs(900));
    for closes in [false, false, true] {
        let probe = it.probe();
        assert_eq!(it.end(probe, Verdict::Success).is_some(), closes);
    }
}

#[test]
fn a_lost_probe_gives_up_its_place_and_its_say() {
    let mut it = Bench::new(plain());
    it.open(hard(Reason::Network));
    it.wait(secs(30));
    let lost = it.probe();
    it.wait(secs(599));
    assert_eq!(it.refused(), SOON);
    it.wait(secs(1));
    assert_eq!(it.seen().probes, 0);
    let admission = it.machine.on_admit(it.now, false);
    assert_eq!(admission.lost, 1);
    let Decision::Probe(second) = admission.decision else { panic!("{admission:?}") };
    // It comes after all.
    assert_eq!(it.end(lost, hard(Reason::Network)), None);
    assert_eq!(it.seen().state, State::HalfOpen);
    assert_eq!(it.end(second, Verdict::Success).map(|change| change.to), Some(State::Closed));
}

#[test]
fn stragglers_decide_nothing() {
    let mut it = Bench::new(plain());
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
    assert_eq!(it.seen().state, State::HalfOpen);
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
    assert_eq!(it.seen().state, State::HalfOpen);
}

#[test]
fn proof_opens_at_once() {
    let mut it = Bench::new(plain());
    let change = it.call(proof(false)).unwrap();
    assert_eq!((change.cause, change.reason), (Cause::Proof, Some(Reason::Auth)));
    assert_eq!(it.rest(), secs(600));
    let mut it = Bench::new(BreakerPolicy { jitter: 0.0, ..BreakerPolicy::adr012() });
    let change = it.call(hard(Reason::ServerError)).unwrap();
    assert_eq!(change.cause, Cause::Consecutive, "one is enough there");
}

#[test]
fn with_nowhere_else_to_go_a_little_passes() {
    let mut it = Bench::new(BreakerPolicy { jitter: 0.0, ..BreakerPolicy::default() });
    it.open(hinted(secs(1_000)));
    assert_eq!(it.ask(true), Decision::Refuse { wait: secs(1) });
    assert_eq!(it.refused(), secs(1_000), "others have somewhere to go");
    it.wait(secs(1));
    let first = it.lone();
    it.wait(secs(5));
    assert_eq!(it.ask(true), Decision::Refuse { wait: secs(1) }, "one at a time");
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
    assert_eq!(it.end(lone, Verdict::Success).map(|change| change.to), Some(State::Closed));
    assert_eq!(it.end(probe, hard(Reason::Network)), None);
}

#[test]
fn three_in_a_row_end_a_rest_nobody_asked_for() {
    let mut it = Bench::new(BreakerPolicy { jitter: 0.0, ..BreakerPolicy::default() });
    it.open(hard(Reason::ServerError));
    let mut told = vec![];
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
        told.push(it.end(token, verdict).map(|change| change.to));
    }
    let mut expected = vec![None; 6];
    expected.push(Some(State::Closed));
    assert_eq!(told, expected);
}

#[test]
fn a_lost_lone_call_does_not_lock_out_the_next() {
    let mut it = Bench::new(BreakerPolicy { jitter: 0.0, ..BreakerPolicy::default() });
    it.open(hinted(secs(10_000)));
    it.wait(secs(1));
    it.lone();
    it.wait(secs(599));
    assert!(matches!(it.ask(true), Decision::Refuse { .. }));
    it.wait(secs(1));
    it.lone();
}

#[test]
fn held_by_hand() {
    let lone = Some(LonePolicy::default());
    let mut it = Bench::new(BreakerPolicy { lone, ..plain() });
    let change = it.machine.force_open(it.now).unwrap();
    assert_eq!((change.from, change.to), (State::Closed, State::ForcedOpen));
    assert_eq!(change.cause, Cause::Manual);
    assert_eq!(it.machine.force_open(it.now), None);
    it.wait(secs(1_000_000));
    assert_eq!(it.refused(), secs(30));
    // The panic rule lets a little pass, and nothing it brings opens the door.
    for _ in 0..10 {
        let token = it.lone();
        assert_eq!(it.end(token, Verdict::Success), None);
        it.wait(secs(1));
    }
    assert_eq!(it.machine.trip(it.now, Reason::Overloaded, secs(1)), None);

    let change = it.machine.isolate(it.now).unwrap();
    assert_eq!((change.from, change.to), (State::ForcedOpen, State::Isolated));
    it.wait(secs(1_000_000));
    assert_eq!(it.ask(true), Decision::Refuse { wait: secs(30) });

    let change = it.machine.force_closed(it.now).unwrap();
    assert_eq!((change.from, change.to), (State::Isolated, State::ForcedClosed));
    for _ in 0..100 {
        assert_eq!(it.call(proof(true)), None);
    }
    assert_eq!(it.seen().failures, 100);

    let change = it.machine.reset(it.now).unwrap();
    assert_eq!((change.from, change.to), (State::ForcedClosed, State::Closed));
    assert_eq!((it.seen().calls, it.seen().consecutive), (0, 0), "nothing held against it");
    assert_eq!(it.machine.reset(it.now), None);
    assert!(it.call(proof(false)).is_some());
}

#[test]
fn times_beyond_all_clocks_do_not_overflow() {
    let policy = BreakerPolicy {
        cooldown: Duration::MAX,
        max_cooldown: Duration::MAX,
        permanent_cooldown: Duration::MAX,
        max_permanent: Duration::MAX,
        probe_lead: Duration::MAX,
        probe_limit: Duration::MAX,
        jitter: 1.0,
        lone: Some(LonePolicy { every: Duration::MAX, ..LonePolicy::default() }),
        ..BreakerPolicy::default()
    };
    for verdict in [hinted(Duration::MAX), proof(true), hard(Reason::Network)] {
        let mut it = Bench::new(policy.clone());
        it.open(verdict);
        it.ask(true);
        it.ask(false);
        let left = it.rest();
        it.wait(left);
        let probe = it.probe();
        assert!(it.end(probe, verdict).is_some());
        it.machine.bar();
        it.seen();
    }
}
