//! The machine against a naive model: one that keeps every event that ever happened with its
//! time, and works out what it is asked by reading through them.

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;
use steadfast_core::{Reason, RecoveryTable, Token};
use tokio::time::Instant;

use super::{Decision, Machine, SOON};
use crate::{
    BreakerPolicy, LonePolicy, SlowPolicy, State,
    verdict::{Blame, Verdict, Weight},
    window::BUCKETS,
};

#[derive(Clone, Copy, Debug)]
enum Op {
    Wait(u64),
    Admit {
        lone: bool,
    },
    /// Ends the call with this index among those under way.
    End {
        which: usize,
        verdict: Verdict,
        first_content: u64,
    },
    /// Successes that nobody told the machine of one by one.
    Quiet(u32),
    ForceOpen,
    ForceClosed,
    Isolate,
    Reset,
    Trip(u64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Ordinary,
    Probe,
    Lone,
}

/// A call that was let through, as the model sees it.
#[derive(Clone, Copy, Debug)]
struct Call {
    kind: Kind,
    era: u64,
    at: Duration,
    token: Token,
    over: bool,
    /// It was out too long, and somebody asked.
    lost: bool,
}

/// How an ordinary call of an era ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    era: u64,
    at: Duration,
    failed: Option<Weight>,
    slow: bool,
}

struct Model {
    policy: BreakerPolicy,
    now: Duration,
    state: State,
    era: u64,
    calls: Vec<Call>,
    ended: Vec<Ended>,
    /// The rest: since, until, asked for.
    since: Duration,
    until: Duration,
    asked: bool,
    /// Ends of probes and lone calls since the rest began, as far as they count: success or not.
    probes: Vec<bool>,
    lone: Vec<bool>,
    /// Rests begun by failed probes since it was closed.
    doublings: u32,
}

impl Model {
    fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            now: Duration::ZERO,
            state: State::Closed,
            era: 0,
            calls: vec![],
            ended: vec![],
            since: Duration::ZERO,
            until: Duration::ZERO,
            asked: false,
            probes: vec![],
            lone: vec![],
            doublings: 0,
        }
    }

    fn under_way(&self, kind: Kind) -> usize {
        let limit = self.policy.probe_limit;
        let mine = |call: &&Call| call.kind == kind && call.era == self.era && !call.over;
        self.calls.iter().filter(mine).filter(|call| self.now < call.at + limit).count()
    }

    fn probe_from(&self) -> Duration {
        let whole = self.until - self.since;
        let early = self.until.saturating_sub(self.policy.probe_lead);
        early.max(self.since + (whole - whole / 2))
    }

    fn last_lone(&self) -> Duration {
        let mine = |call: &&Call| call.kind == Kind::Lone && call.era == self.era;
        self.calls.iter().filter(mine).map(|call| call.at).max().unwrap_or(self.since)
    }

    /// When the panic rule lets the next call through, as far as can be said.
    fn next_lone(&self) -> Option<Duration> {
        let rule = self.policy.lone?;
        let next = (self.last_lone() + rule.every).saturating_sub(self.now);
        let full = self.under_way(Kind::Lone) >= rule.at_once as usize;
        (self.state != State::Isolated).then(|| if full { next.max(rule.every) } else { next })
    }

    fn admit(&mut self, lone: bool) -> Result<Kind, Duration> {
        if self.state == State::Open && self.now >= self.probe_from() {
            self.state = State::HalfOpen;
        }
        let room = self.under_way(Kind::Probe) < self.policy.probes as usize;
        match self.state {
            State::Closed | State::ForcedClosed => return Ok(Kind::Ordinary),
            State::HalfOpen if room => return Ok(Kind::Probe),
            _ => {}
        }
        let next = self.next_lone().filter(|_| lone);
        if next == Some(Duration::ZERO) {
            return Ok(Kind::Lone);
        }
        let rest = match self.state {
            State::Open | State::HalfOpen if self.until > self.now => self.until - self.now,
            State::Open | State::HalfOpen => SOON,
            _ => self.policy.cooldown,
        };
        Err(next.map_or(rest, |next| next.min(rest)))
    }

    fn window(&self) -> Vec<Ended> {
        let piece = self.policy.window.as_nanos() / BUCKETS as u128;
        let bucket = |at: Duration| at.as_nanos() / piece;
        let inside = |ended: &&Ended| {
            ended.era == self.era && bucket(ended.at) + BUCKETS as u128 > bucket(self.now)
        };
        self.ended.iter().filter(inside).copied().collect()
    }

    fn row(&self) -> usize {
        let mut mine: Vec<_> = self.ended.iter().filter(|ended| ended.era == self.era).collect();
        mine.reverse();
        let row = mine.iter().take_while(|ended| ended.failed.is_some());
        row.filter(|ended| ended.failed != Some(Weight::Soft)).count()
    }

    fn rest_after(&self, blame: Option<Blame>) -> (Duration, Duration) {
        let policy = &self.policy;
        let own = |reason| policy.table.rule(reason).cooldown.unwrap_or(policy.cooldown);
        match blame {
            None => (policy.cooldown, policy.max_cooldown),
            Some(blame) => {
                let base = match blame.hint {
                    Some(hint) => hint.min(policy.max_permanent),
                    None => own(blame.reason),
                };
                if blame.permanent {
                    (base.max(policy.permanent_cooldown), policy.max_permanent)
                } else {
                    (base, policy.max_cooldown)
                }
            }
        }
    }

    fn open(&mut self, blame: Option<Blame>) {
        let (mut rest, cap) = self.rest_after(blame);
        for _ in 0..self.doublings {
            rest = rest.max((rest * 2).min(cap));
        }
        let asked = blame.is_some_and(|blame| blame.hint.is_some());
        let again = self.state == State::HalfOpen;
        if !again || self.now + rest >= self.until {
            self.asked = asked;
            self.until = self.now + rest;
        }
        self.since = self.now;
        self.state = State::Open;
        self.next_era();
    }

    fn close(&mut self, state: State) {
        self.state = state;
        self.doublings = 0;
        self.since = self.now;
        self.next_era();
    }

    fn next_era(&mut self) {
        self.era += 1;
        self.probes.clear();
        self.lone.clear();
    }

    fn end(&mut self, index: usize, verdict: Verdict, slow: bool) {
        let call = self.calls[index];
        self.calls[index].over = true;
        if call.era != self.era || verdict == Verdict::Nothing || call.lost {
            return;
        }
        let blame = match verdict {
            Verdict::Failure(blame) => Some(blame),
            _ => None,
        };
        match call.kind {
            Kind::Ordinary => {
                let failed = blame.map(|blame| blame.weight);
                self.ended.push(Ended { era: self.era, at: self.now, failed, slow });
                if self.state == State::Closed && self.too_much(blame, slow) {
                    self.open(blame);
                }
            }
            Kind::Probe => {
                self.probes.push(blame.is_none() && !slow);
                if self.probes.contains(&false) {
                    self.doublings += 1;
                    self.open(blame);
                } else if self.probes.len() >= self.policy.successes as usize {
                    self.close(State::Closed);
                }
            }
            Kind::Lone if self.state == State::ForcedOpen => {}
            Kind::Lone => {
                self.lone.push(blame.is_none() && !slow);
                if let Some(blame) = blame {
                    if let Some(hint) = blame.hint {
                        let hint = hint.min(self.policy.max_permanent);
                        self.until = self.until.max(self.now + hint);
                        self.asked = true;
                    }
                    if blame.weight == Weight::Proof {
                        self.until = self.until.max(self.now + self.rest_after(Some(blame)).0);
                    }
                }
                let row = self.lone.iter().rev().take_while(|good| **good).count();
                let rule = self.policy.lone.expect("there is a lone call").successes;
                let enough = row >= rule.max(self.policy.successes) as usize;
                if row > 0 && enough && !(self.asked && self.now < self.probe_from()) {
                    self.close(State::Closed);
                }
            }
        }
    }

    fn too_much(&self, blame: Option<Blame>, slow: bool) -> bool {
        let weight = blame.map(|blame| blame.weight);
        let row = self.policy.consecutive;
        if weight == Some(Weight::Proof)
            || (weight == Some(Weight::Hard) && row.is_some_and(|row| self.row() >= row as usize))
        {
            return true;
        }
        let window = self.window();
        if window.len() < self.policy.min_calls as usize {
            return false;
        }
        let share = |part: usize| part as f64 / window.len() as f64;
        let failed = window.iter().filter(|ended| ended.failed.is_some()).count();
        let slows = window.iter().filter(|ended| ended.slow).count();
        (blame.is_some() && self.policy.failure_rate.is_some_and(|rate| share(failed) >= rate))
            || (slow && self.policy.slow.is_some_and(|policy| share(slows) >= policy.rate))
    }
}

/// Runs both and compares after every step.
fn run(policy: BreakerPolicy, ops: impl IntoIterator<Item = Op>) -> Result<(), TestCaseError> {
    policy.validate().expect("the strategy makes valid policies");
    let start = Instant::now();
    let policy = BreakerPolicy { jitter: 0.0, ..policy };
    let mut machine = Machine::new(Arc::new(policy.clone()), fastrand::Rng::with_seed(1), start);
    let mut model = Model::new(policy.clone());
    for op in ops {
        let now = start + model.now;
        match op {
            Op::Wait(ms) => model.now += Duration::from_millis(ms),
            Op::Admit { lone } => {
                let closed = matches!(model.state, State::Closed | State::ForcedClosed);
                let expected = model.admit(lone);
                // Whoever asks a breaker that is not closed takes back what is lost.
                for call in model.calls.iter_mut().filter(|_| !closed) {
                    call.lost |=
                        model.now >= call.at + policy.probe_limit && call.kind != Kind::Ordinary;
                }
                let bar = machine.bar();
                let got = machine.on_admit(now, lone).decision;
                if let Some(bar) = bar {
                    let back = bar.lone.filter(|_| lone);
                    if now < bar.before && back.is_none_or(|back| now < back) {
                        let wait = back.map_or(bar.until, |back| back.min(bar.until)) - now;
                        prop_assert_eq!(got, Decision::Refuse { wait }, "{:?}", bar);
                    }
                }
                let (kind, token) = match (expected, got) {
                    (Ok(Kind::Ordinary), Decision::Pass(token)) => (Kind::Ordinary, token),
                    (Ok(Kind::Probe), Decision::Probe(token)) => (Kind::Probe, token),
                    (Ok(Kind::Lone), Decision::Lone(token)) => (Kind::Lone, token),
                    (Err(expected), Decision::Refuse { wait }) => {
                        prop_assert_eq!(wait, expected);
                        continue;
                    }
                    _ => return Err(TestCaseError::fail(format!("{got:?}, not {expected:?}"))),
                };
                let (era, at) = (model.era, model.now);
                model.calls.push(Call { kind, era, at, token, over: false, lost: false });
            }
            Op::End { which, verdict, first_content } => {
                let open: Vec<_> =
                    (0..model.calls.len()).filter(|&index| !model.calls[index].over).collect();
                let Some(&index) = open.get(which % open.len().max(1)) else { continue };
                let took = Duration::from_millis(first_content);
                let slow = policy.slow.is_some_and(|slow| took > slow.after);
                let token = model.calls[index].token;
                model.end(index, verdict, slow);
                machine.on_settle(now, token, verdict, Some(took));
            }
            Op::Quiet(calls) => {
                if machine.quiet_until().is_none_or(|until| now >= until) {
                    continue;
                }
                machine.absorb(calls);
                for _ in 0..calls {
                    let ended = Ended { era: model.era, at: model.now, failed: None, slow: false };
                    model.ended.push(ended);
                }
            }
            Op::ForceOpen if model.state != State::ForcedOpen => {
                model.close(State::ForcedOpen);
                prop_assert!(machine.force_open(now).is_some());
            }
            Op::ForceClosed if model.state != State::ForcedClosed => {
                model.close(State::ForcedClosed);
                prop_assert!(machine.force_closed(now).is_some());
            }
            Op::Isolate if model.state != State::Isolated => {
                model.close(State::Isolated);
                prop_assert!(machine.isolate(now).is_some());
            }
            Op::ForceOpen => prop_assert!(machine.force_open(now).is_none()),
            Op::ForceClosed => prop_assert!(machine.force_closed(now).is_none()),
            Op::Isolate => prop_assert!(machine.isolate(now).is_none()),
            Op::Reset => {
                let was = model.state;
                model.close(State::Closed);
                prop_assert_eq!(machine.reset(now).is_some(), was != State::Closed);
            }
            Op::Trip(ms) => {
                let rest = Duration::from_millis(ms);
                match model.state {
                    State::Closed => {
                        model.since = model.now;
                        model.until = model.now + rest;
                        model.asked = true;
                        model.state = State::Open;
                        model.next_era();
                    }
                    State::Open | State::HalfOpen => {
                        model.until = model.until.max(model.now + rest);
                        model.asked = true;
                    }
                    _ => {}
                }
                machine.trip(now, Reason::Overloaded, rest);
            }
        }
        let now = start + model.now;
        let seen = machine.snapshot((), now);
        prop_assert_eq!(seen.state, model.state, "after {:?}", op);
        prop_assert_eq!(seen.generation, model.era, "after {:?}", op);
        let resting = matches!(model.state, State::Open | State::HalfOpen);
        prop_assert_eq!(seen.until, resting.then(|| start + model.until), "after {:?}", op);
        prop_assert_eq!(seen.probe_from, resting.then(|| start + model.probe_from()));
        prop_assert_eq!(seen.probes as usize, model.under_way(Kind::Probe), "after {:?}", op);
        prop_assert_eq!(seen.lone as usize, model.under_way(Kind::Lone), "after {:?}", op);
        prop_assert!(seen.probes <= policy.probes);
        prop_assert!(seen.lone <= policy.lone.map_or(0, |rule| rule.at_once));
        if matches!(model.state, State::Closed | State::ForcedClosed) {
            let window = model.window();
            let failed = window.iter().filter(|ended| ended.failed.is_some()).count();
            prop_assert_eq!(seen.calls, window.len() as u64, "after {:?}", op);
            prop_assert_eq!(seen.failures, failed as u64, "after {:?}", op);
            prop_assert_eq!(seen.consecutive as usize, model.row(), "after {:?}", op);
        }
    }
    // Whatever happened, and whoever never reported: unless somebody holds it, a call gets through
    // once the longest rest and the limit of a probe have passed.
    if matches!(model.state, State::Closed | State::Open | State::HalfOpen) {
        let later = start + model.now.max(model.until) + policy.probe_limit;
        let decision = machine.on_admit(later, false).decision;
        prop_assert!(!matches!(decision, Decision::Refuse { .. }), "locked out: {machine:?}");
    }
    Ok(())
}

fn policies() -> impl Strategy<Value = BreakerPolicy> {
    (
        proptest::option::of(1u32..5),
        100u64..5_000,
        1u32..8,
        proptest::option::of(0.1f64..1.0),
        proptest::option::of((50u64..400, 0.2f64..1.0)),
        (1u32..4, 1u32..4, 0u64..2_000, 500u64..5_000),
        proptest::option::of((1u32..3, 10u64..1_000, 1u32..4)),
    )
        .prop_map(|(consecutive, window, min_calls, failure_rate, slow, probing, lone)| {
            let ms = Duration::from_millis;
            let (probes, successes, lead, limit) = probing;
            BreakerPolicy {
                consecutive,
                window: ms(window),
                min_calls,
                failure_rate,
                slow: slow.map(|(after, rate)| SlowPolicy { after: ms(after), rate }),
                table: RecoveryTable::default()
                    .cooldown(Reason::ServerError, ms(900))
                    .cooldown(Reason::RateLimit, ms(1_700))
                    .cooldown(Reason::Auth, ms(6_000)),
                cooldown: ms(700),
                max_cooldown: ms(4_000),
                permanent_cooldown: ms(5_000),
                max_permanent: ms(15_000),
                probes,
                successes,
                probe_lead: ms(lead),
                probe_limit: ms(limit),
                lone: lone.map(|(at_once, every, successes)| LonePolicy {
                    at_once,
                    every: ms(every),
                    successes,
                }),
                ..BreakerPolicy::default()
            }
        })
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    let blame = (
        prop_oneof![
            4 => Just((Weight::Hard, Reason::ServerError)),
            3 => Just((Weight::Soft, Reason::RateLimit)),
            1 => Just((Weight::Proof, Reason::Auth)),
        ],
        proptest::option::weighted(0.2, 100u64..20_000),
        proptest::bool::weighted(0.1),
    )
        .prop_map(|((weight, reason), hint, permanent)| {
            Verdict::Failure(Blame {
                weight,
                reason,
                hint: hint.map(Duration::from_millis),
                permanent,
            })
        });
    prop_oneof![5 => Just(Verdict::Success), 4 => blame, 1 => Just(Verdict::Nothing)]
}

fn ops() -> impl Strategy<Value = Op> {
    let end = (any::<usize>(), verdicts(), 0u64..600)
        .prop_map(|(which, verdict, first_content)| Op::End { which, verdict, first_content });
    let wait = prop_oneof![6 => 0u64..300, 2 => 300u64..3_000, 1 => 3_000u64..20_000];
    prop_oneof![
        12 => any::<bool>().prop_map(|lone| Op::Admit { lone }),
        12 => end,
        6 => wait.prop_map(Op::Wait),
        1 => (1u32..6).prop_map(Op::Quiet),
        1 => prop_oneof![
            1 => Just(Op::ForceOpen),
            1 => Just(Op::ForceClosed),
            1 => Just(Op::Isolate),
            6 => Just(Op::Reset),
            2 => (1u64..5_000).prop_map(Op::Trip),
        ],
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_model(
        policy in policies(),
        ops in proptest::collection::vec(ops(), 1..250),
    ) {
        run(policy, ops)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, ..ProptestConfig::default() })]

    /// Long lives: windows that have slid many times, generations by the hundred.
    #[test]
    fn agrees_with_the_model_for_thousands_of_steps(
        policy in policies(),
        ops in proptest::collection::vec(ops(), 3_000..4_000),
    ) {
        run(policy, ops)?;
    }
}
