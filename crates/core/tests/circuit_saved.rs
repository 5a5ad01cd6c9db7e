//! A rest that is saved and restored: the same decisions as without, and bounds whatever is in the file.

#![cfg(feature = "serde")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::time::Duration;

use proptest::prelude::*;
use steadfast_core::{
    Permit, Reason, Witness,
    circuit::{
        Blame, Circuit, CircuitCause, CircuitPolicy, CircuitState, CircuitVerdict, LonePolicy,
        Moment, SavedCircuit, Weight,
    },
    time::WallClock,
};
use tokio::time::Instant;

/// When the first process starts, in milliseconds since 1970.
const START: u64 = 1_800_000_000_000;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn policy() -> CircuitPolicy {
    CircuitPolicy {
        consecutive: Some(3),
        second_witness: false,
        trusted_for: Duration::ZERO,
        window: ms(60_000),
        min_calls: 20,
        failure_rate: Some(0.5),
        slow: None,
        content_is_success: false,
        cooldown: ms(30_000),
        first_rest: None,
        growth: 2.0,
        max_cooldown: ms(900_000),
        permanent_cooldown: ms(3_600_000),
        max_permanent: ms(86_400_000),
        probe_lead: ms(30_000),
        probe_limit: ms(600_000),
        probes: 1,
        successes: 1,
        lone: None,
        turns: None,
    }
}

/// Repetitions take turns.
fn turns() -> CircuitPolicy {
    CircuitPolicy {
        consecutive: Some(4),
        second_witness: true,
        content_is_success: true,
        failure_rate: None,
        cooldown: ms(1_000),
        first_rest: Some(ms(1_000)),
        growth: 1.0,
        turns: Some(ms(1_000)),
        ..policy()
    }
}

fn blame(weight: Weight, reason: Reason, cooldown: u64) -> Blame {
    Blame { weight, reason, cooldown: ms(cooldown), hinted: false, permanent: false }
}

fn server() -> CircuitVerdict {
    CircuitVerdict::Failure(blame(Weight::Hard, Reason::ServerError, 60_000))
}

/// A process: its clocks, and a circuit in it. Each has an order of calls of its own.
struct Process {
    circuit: Circuit,
    start: Instant,
    /// When it started, by the wall.
    wall: u64,
    order: u64,
}

impl Process {
    fn new(policy: CircuitPolicy, start: Instant, wall: u64) -> Self {
        Self { circuit: Circuit::new(policy, start), start, wall, order: 0 }
    }

    /// `at` milliseconds after its start.
    fn clock(&self, at: u64) -> WallClock {
        WallClock::new(self.start + ms(at), ms(self.wall + at))
    }

    fn now(&self, at: u64) -> Moment {
        Moment { at: self.start + ms(at), order: self.order }
    }

    /// A call begins and ends.
    fn call(&mut self, at: u64, verdict: CircuitVerdict) {
        self.order += 1;
        let permit = self.circuit.admit(self.now(at), false).result.expect("it passes");
        self.circuit.end(self.now(at), &permit, verdict, None);
    }

    /// What the file has after `at` milliseconds, written and read.
    fn file(&self, at: u64) -> Option<SavedCircuit> {
        let saved = self.circuit.save(self.clock(at))?;
        let text = serde_json::to_string(&saved).unwrap();
        assert_eq!(serde_json::from_str::<SavedCircuit>(&text).unwrap(), saved);
        Some(saved)
    }

    /// What is left of the rest.
    fn left(&mut self, at: u64) -> Duration {
        let now = self.start + ms(at);
        self.circuit.snapshot(now).remaining(now)
    }
}

/// Three failures at once: 60 s of rest, with a probe after 30 s.
fn resting() -> Process {
    let mut process = Process::new(policy(), Instant::now(), START);
    (0..3).for_each(|_| process.call(0, server()));
    assert_eq!(process.left(0), ms(60_000));
    process
}

#[test]
fn what_is_left_of_a_rest_goes_on_and_no_more() {
    let day = 86_400_000_i64;
    // How long after the start it was saved, the wall clock of the next process, and what is left there.
    for (saved_at, wall, left) in [
        (0, 0, Some(60_000)),
        (10_000, 10_000, Some(50_000)),
        (10_000, 59_999, Some(1)),
        (10_000, 60_000, None),
        (10_000, 5 * day, None),
        // A clock that was set back: never longer than the rest was.
        (10_000, 9_000, Some(51_000)),
        (10_000, -day, Some(60_000)),
        (59_000, -day, Some(60_000)),
    ] {
        let old = resting();
        let saved = old.file(saved_at).unwrap();
        let wall = START.checked_add_signed(wall).unwrap();
        let mut new = Process::new(policy(), old.start + ms(7), wall);
        let transition = new.circuit.restore(&saved, new.clock(0), 0);
        assert_eq!(transition.is_some(), left.is_some(), "{saved_at}, {wall}");
        assert_eq!(new.left(0), ms(left.unwrap_or(0)), "{saved_at}, {wall}");
        let Some(transition) = transition else {
            assert_eq!(new.circuit.snapshot(new.start).state, CircuitState::Closed);
            continue;
        };
        assert_eq!(
            (transition.from, transition.to, transition.cause, transition.reason),
            (
                CircuitState::Closed,
                CircuitState::Open,
                CircuitCause::Restored,
                Some(Reason::ServerError)
            )
        );
    }
}

#[test]
fn nothing_is_saved_of_what_does_not_rest() {
    let mut process = Process::new(policy(), Instant::now(), START);
    assert_eq!(process.file(0), None);
    process.call(0, server());
    assert_eq!(process.file(0), None, "failures that rest nothing");
    for state in [CircuitState::ForcedOpen, CircuitState::ForcedClosed, CircuitState::Isolated] {
        process.circuit.force(process.now(0), state);
        assert_eq!(process.file(0), None, "{state}");
    }
}

#[test]
fn a_file_decides_no_more_than_a_policy_allows() {
    let longest = policy().longest();
    assert_eq!(longest, ms(86_400_000));
    let far = u64::MAX;
    // Times, and the longest rest that may come of them.
    for (since, until, probe, lone) in [
        (0, far, 0, 0),
        (0, far, far, far),
        (START, far, far, START),
        (far, far, far, far),
        (far, START + 5, 0, far),
        (START - 5, START + 200_000_000, far, 0),
        (0, 0, far, far),
    ] {
        for (count, turns_taken) in [(0, false), (u32::MAX, false), (u32::MAX, true)] {
            let mut saved = SavedCircuit::default();
            (saved.since_ms, saved.until_ms) = (since, until);
            (saved.probe_from_ms, saved.lone_ms) = (probe, lone);
            (saved.successes, saved.lone_successes) = (count, count);
            (saved.failed_probes, saved.row) = (count, count);
            (saved.permanent, saved.refuses, saved.hinted) = (true, true, true);
            let policy = if turns_taken { turns() } else { policy() };
            let mut process = Process::new(policy, Instant::now(), START);
            let restored = process.circuit.restore(&saved, process.clock(0), 0).is_some();
            let left = process.left(0);
            assert!(left <= longest && left <= ms(until.saturating_sub(since)), "{saved:?}");
            assert!(restored || left.is_zero());
            // Then one call passes.
            let end = u64::try_from(left.as_millis()).unwrap();
            process.order = 1;
            let permit = process.circuit.admit(process.now(end), false).result.unwrap();
            process.circuit.end(process.now(end), &permit, server(), None);
            assert!(process.left(end) <= longest, "{saved:?}");
            process.order = 2;
            let again = end + u64::try_from(longest.as_millis()).unwrap();
            let permit = process.circuit.admit(process.now(again), true).result.unwrap();
            process.circuit.end(process.now(again), &permit, CircuitVerdict::Success, None);
        }
    }
}

#[test]
fn only_a_closed_circuit_is_restored() {
    let old = resting();
    let saved = old.file(1_000).unwrap();
    let mut new = Process::new(policy(), old.start, START + 1_000);
    new.circuit.force(new.now(0), CircuitState::ForcedClosed);
    assert!(new.circuit.restore(&saved, new.clock(0), 0).is_none());
    new.circuit.reset(new.now(0));
    assert!(new.circuit.restore(&saved, new.clock(0), 0).is_some());
    assert!(new.circuit.restore(&saved, new.clock(0), 0).is_none());
}

#[test]
fn a_dead_target_has_turns_in_the_next_process_too() {
    let restart = |at: u64, wall: u64| {
        let mut old = Process::new(turns(), Instant::now(), START);
        (0..4).for_each(|_| old.call(0, server()));
        assert_eq!(old.circuit.snapshot(old.start).state, CircuitState::Open);
        let mut new = Process::new(turns(), old.start, START + wall);
        let saved = old.file(at).unwrap();
        new.circuit.restore(&saved, new.clock(0), 0).map(|_| new)
    };
    // Its rest of a second is over, and it has not answered.
    let mut new = restart(5_000, 60_000).unwrap();
    let turn = |process: &mut Process, at, first| {
        process.order += 1;
        let now = process.now(at);
        let result = process.circuit.take_turn(now, first, Witness::NONE).result;
        process.order -= u64::from(result.is_err());
        result.map_err(|refused| refused.wait)
    };
    for first in [true, false] {
        let permit = turn(&mut new, 0, first).unwrap();
        new.circuit.end(new.now(0), &permit, CircuitVerdict::Nothing, None);
    }
    assert_eq!(turn(&mut new, 300, false).unwrap_err(), ms(700));
    let permit = turn(&mut new, 1_000, false).unwrap();
    // One more failure lengthens its row; it is not the first of one.
    new.circuit.end(new.now(1_000), &permit, server(), None);
    assert!(new.circuit.resting().is_some());
    let permit = turn(&mut new, 2_000, true).unwrap();
    let end = new.circuit.first_content(new.now(2_000), &permit, ms(1)).unwrap();
    assert_eq!(end.to, CircuitState::Closed);
    // After a quarter of an hour nobody believes it.
    assert!(restart(5_000, 900_000 + 1_000).is_none());
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Wait(u64),
    Admit { lone: bool },
    End { which: usize, verdict: CircuitVerdict },
    Trip(u64),
}

/// Milliseconds, two at a time: half a rest is then a whole number of them, as files have them.
fn even(range: std::ops::Range<u64>) -> impl Strategy<Value = u64> {
    (range.start / 2..range.end / 2).prop_map(|half| 2 * half)
}

fn policies() -> impl Strategy<Value = CircuitPolicy> {
    (
        (1u32..4, any::<bool>(), any::<bool>()),
        proptest::option::of(even(50..1_500)),
        (1u32..4, 1u32..4, even(0..2_000), even(500..5_000)),
        proptest::option::of((1u32..3, even(10..1_000), 1u32..4)),
    )
        .prop_map(|((row, second_witness, grows), first_rest, probing, lone)| {
            let (probes, successes, lead, limit) = probing;
            let lone = lone.map(|(at_once, every, successes)| LonePolicy {
                at_once,
                every: ms(every),
                successes,
            });
            CircuitPolicy {
                consecutive: Some(row),
                second_witness,
                failure_rate: None,
                cooldown: ms(700),
                first_rest: first_rest.map(ms),
                growth: if grows { 2.0 } else { 1.0 },
                max_cooldown: ms(4_000),
                permanent_cooldown: ms(5_000),
                max_permanent: ms(15_000),
                probe_lead: ms(lead),
                probe_limit: ms(limit),
                probes,
                successes,
                lone,
                ..policy()
            }
        })
}

fn ops(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Op>> {
    let failure = (
        prop_oneof![
            5 => Just((Weight::Hard, Reason::ServerError, 900)),
            1 => Just((Weight::Soft, Reason::RateLimit, 1_700)),
            1 => Just((Weight::Proof, Reason::Auth, 6_000)),
        ],
        proptest::option::weighted(0.2, even(100..15_000)),
        proptest::bool::weighted(0.2),
    )
        .prop_map(|((weight, reason, cooldown), hint, permanent)| {
            let blame = blame(weight, reason, hint.unwrap_or(cooldown));
            CircuitVerdict::Failure(Blame { hinted: hint.is_some(), permanent, ..blame })
        });
    let verdict = prop_oneof![
        4 => Just(CircuitVerdict::Success),
        5 => failure,
        1 => Just(CircuitVerdict::Nothing),
    ];
    let op = prop_oneof![
        12 => any::<bool>().prop_map(|lone| Op::Admit { lone }),
        12 => (any::<usize>(), verdict).prop_map(|(which, verdict)| Op::End { which, verdict }),
        4 => even(0..700).prop_map(Op::Wait),
        1 => even(700..6_000).prop_map(Op::Wait),
        1 => even(2..5_000).prop_map(Op::Trip),
    ];
    proptest::collection::vec(op, length)
}

/// Applies `op` to one process; what it decided.
fn apply(
    process: &mut Process,
    at: u64,
    op: Op,
    calls: &mut Vec<Permit>,
) -> Option<Result<steadfast_core::PermitKind, Duration>> {
    match op {
        Op::Wait(_) => None,
        Op::Admit { lone } => {
            process.order += 1;
            let result = process.circuit.admit(process.now(at), lone).result;
            process.order -= u64::from(result.is_err());
            calls.extend(result.ok());
            Some(result.map(|permit| permit.kind).map_err(|refused| refused.wait))
        }
        Op::End { which, verdict } => {
            if !calls.is_empty() {
                let permit = calls.swap_remove(which % calls.len());
                process.circuit.end(process.now(at), &permit, verdict, None);
            }
            None
        }
        Op::Trip(wait) => {
            process.circuit.trip(process.now(at), Reason::Overloaded, ms(wait));
            None
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// A circuit that is saved and restored decides as one whose process went on.
    #[test]
    fn restored_circuits_decide_the_same(
        policy in policies(),
        before in ops(5..120),
        after in ops(1..120),
        down in even(0..300),
    ) {
        let mut old = Process::new(policy, Instant::now(), START);
        let (mut at, mut calls) = (0, vec![]);
        for op in before {
            if let Op::Wait(ms) = op { at += ms }
            apply(&mut old, at, op, &mut calls);
        }
        // The process ends, and with it its calls.
        for permit in calls.drain(..) {
            old.circuit.end(old.now(at), &permit, CircuitVerdict::Nothing, None);
        }
        let saved = old.file(at);
        at += down;
        let mut new = Process::new(policy, old.start + ms(at), START + at);
        let restored = saved.is_some_and(|saved| new.circuit.restore(&saved, new.clock(0), 0).is_some());
        let rests = old.circuit.resting().is_some_and(|rest| rest.until > old.start + ms(at));
        // A wait that was longer than any of the policy's is cut.
        prop_assert_eq!(restored, rests);
        if !restored {
            return Ok(());
        }
        let (mut new_at, mut new_calls) = (0, vec![]);
        for op in after {
            if let Op::Wait(ms) = op {
                at += ms;
                new_at += ms;
            }
            let was = apply(&mut old, at, op, &mut calls);
            let is = apply(&mut new, new_at, op, &mut new_calls);
            prop_assert_eq!(was, is, "{:?}", op);
            let now = old.start + ms(at);
            let [was, is] = [&mut old, &mut new].map(|one| one.circuit.snapshot(now));
            prop_assert_eq!(
                (was.state, was.until, was.probe_from, was.failed_probes, was.probe_successes),
                (is.state, is.until, is.probe_from, is.failed_probes, is.probe_successes),
                "{:?}", op
            );
            prop_assert_eq!((was.last_reason, was.probes, was.lone), (is.last_reason, is.probes, is.lone));
        }
    }

    /// No file makes it panic, or locks anybody out for longer than the policy's longest rest.
    #[test]
    fn any_file_is_survived(
        policy in policies(),
        times in proptest::array::uniform4(prop_oneof![
            any::<u64>(), START - 100_000..START + 100_000, Just(0), Just(u64::MAX)
        ]),
        counts in proptest::array::uniform4(prop_oneof![any::<u32>(), 0u32..5]),
        flags in proptest::array::uniform5(any::<bool>()),
        after in ops(1..60),
    ) {
        let mut saved = SavedCircuit::default();
        [saved.since_ms, saved.until_ms, saved.probe_from_ms, saved.lone_ms] = times;
        [saved.successes, saved.lone_successes, saved.failed_probes, saved.row] = counts;
        [saved.half_open, saved.hinted, saved.unprobed, saved.permanent, saved.refuses] = flags;
        let mut process = Process::new(policy, Instant::now(), START);
        process.circuit.restore(&saved, process.clock(0), 0);
        prop_assert!(process.left(0) <= policy.longest());
        let longest = u64::try_from(policy.longest().as_millis()).unwrap();
        let mut other = Process::new(policy, process.start, START);
        other.circuit = process.circuit.clone();
        other.order = 1;
        prop_assert!(other.circuit.admit(other.now(longest), false).result.is_ok());
        let (mut at, mut calls) = (0, vec![]);
        for op in after {
            if let Op::Wait(ms) = op { at += ms }
            apply(&mut process, at, op, &mut calls);
        }
    }
}
