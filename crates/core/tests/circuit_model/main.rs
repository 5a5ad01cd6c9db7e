//! The circuit compared with a naive model, over random policies and random sequences of events.

use std::time::Duration;

use proptest::prelude::*;
use steadfast_core::{
    CallContext, Permit, PermitKind, Reason, Witness,
    circuit::{
        Blame, Circuit, CircuitPolicy, CircuitState, CircuitVerdict, LonePolicy, Moment,
        SlowPolicy, Transition, Weight,
    },
};
use tokio::time::Instant;

use self::model::{Change, CircuitModel};

mod model;

#[derive(Clone, Copy, Debug)]
enum Op {
    Wait(u64),
    Admit {
        lone: bool,
        witness: Option<u64>,
    },
    /// Ends the call with this index among those under way.
    End {
        which: usize,
        verdict: CircuitVerdict,
        first_content: u64,
    },
    Force(CircuitState),
    Reset,
    Trip(u64),
}

/// Runs both and compares after every step.
fn run(policy: CircuitPolicy, ops: impl IntoIterator<Item = Op>) -> Result<(), TestCaseError> {
    let start = Instant::now();
    let mut circuit = Circuit::new(policy, start);
    let mut model = CircuitModel::new(policy, Duration::ZERO);
    let mut at = Duration::ZERO;
    let mut order = 0;
    let mut calls: Vec<Permit> = vec![];
    for op in ops {
        let mut changes: Vec<Option<Transition>> = vec![];
        let mut now = Moment { at: start + at, order };
        match op {
            Op::Wait(ms) => at += Duration::from_millis(ms),
            Op::Admit { lone, witness } => {
                order += 1;
                now.order = order;
                let expected = model.admit(order, at, lone, witness);
                let admission = circuit.admit(now, lone);
                changes.push(admission.transition);
                let got = admission.result.map_err(|refused| refused.wait);
                prop_assert_eq!(got.map(|permit| permit.kind), expected);
                // A call that does not pass has no place in the order.
                order -= u64::from(got.is_err());
                let by = |witness: u64| {
                    Witness::new(&CallContext::new().with_session(witness.to_string()), None)
                };
                let witness = witness.map_or(Witness::NONE, by);
                calls.extend(got.ok().map(|permit| Permit { witness, ..permit }));
            }
            Op::End { which, verdict, first_content } => {
                if calls.is_empty() {
                    continue;
                }
                let permit = calls.swap_remove(which % calls.len());
                let took = Some(Duration::from_millis(first_content));
                model.end(permit.order, at, verdict, took);
                changes.push(circuit.end(now, &permit, verdict, took));
            }
            Op::Force(state) => {
                let change = circuit.force(now, state);
                prop_assert_eq!(change.is_some(), model.force(at, state));
                changes.push(change);
            }
            Op::Reset => {
                let change = circuit.reset(now);
                prop_assert_eq!(change.is_some(), model.reset());
                changes.push(change);
            }
            Op::Trip(ms) => {
                let rest = Duration::from_millis(ms);
                model.trip(at, Reason::Overloaded, rest);
                changes.push(circuit.trip(now, Reason::Overloaded, rest));
            }
        }
        for change in changes.into_iter().flatten() {
            let seen = Change {
                from: change.from,
                to: change.to,
                cause: change.cause,
                reason: change.reason,
                until: change.until.map(|until| until - start),
            };
            prop_assert_eq!(model.take_change(), Some(seen), "after {:?}", op);
        }
        prop_assert_eq!(model.take_change(), None, "after {:?}", op);
        let seen = circuit.snapshot(start + at);
        prop_assert_eq!(seen.state, model.state(), "after {:?}", op);
        prop_assert_eq!(seen.generation, model.generation(), "after {:?}", op);
        let rest =
            seen.until.zip(seen.probe_from).map(|(until, from)| (until - start, from - start));
        prop_assert_eq!(rest, model.rest(), "after {:?}", op);
        prop_assert_eq!(seen.probes, model.under_way(PermitKind::Probe, at), "after {:?}", op);
        prop_assert_eq!(seen.lone, model.under_way(PermitKind::Lone, at), "after {:?}", op);
        prop_assert!(seen.probes <= policy.probes);
        prop_assert!(seen.lone <= policy.lone.map_or(0, |rule| rule.at_once));
        prop_assert_eq!(seen.consecutive, model.row(), "after {:?}", op);
        prop_assert_eq!(seen.failed_probes, model.failed_probes(), "after {:?}", op);
        let window = (seen.calls, seen.failures, seen.slow);
        prop_assert_eq!(window, model.window(at), "after {:?}", op);
    }
    // Whatever happened, and even if a probe never ended: unless it is forced, a call gets through
    // once the longest rest and the limit of a probe have passed.
    if matches!(model.state(), CircuitState::Closed | CircuitState::Open | CircuitState::HalfOpen) {
        let rested = model.rest().map_or(at, |(until, _)| until.max(at));
        let later = Moment { at: start + rested + policy.probe_limit, order: order + 1 };
        prop_assert!(circuit.admit(later, false).result.is_ok(), "locked out: {circuit:?}");
    }
    Ok(())
}

fn policies() -> impl Strategy<Value = CircuitPolicy> {
    (
        (proptest::option::of(1u32..5), any::<bool>()),
        100u64..5_000,
        1u32..8,
        proptest::option::of(0.1f64..1.0),
        proptest::option::of((50u64..400, 0.2f64..1.0)),
        (1u32..4, 1u32..4, 0u64..2_000, 500u64..5_000),
        proptest::option::of((1u32..3, 10u64..1_000, 1u32..4)),
        (any::<bool>(), proptest::option::of(50u64..1_500), 0u64..3_000),
    )
        .prop_map(
            |(
                row,
                window,
                min_calls,
                failure_rate,
                slow,
                probing,
                lone,
                (grows, first_rest, trusted),
            )| {
                let ms = Duration::from_millis;
                let (probes, successes, lead, limit) = probing;
                CircuitPolicy {
                    consecutive: row.0,
                    second_witness: row.1,
                    trusted_for: ms(trusted),
                    window: ms(window),
                    min_calls,
                    failure_rate,
                    slow: slow.map(|(after, rate)| SlowPolicy { after: ms(after), rate }),
                    content_is_success: false,
                    cooldown: ms(700),
                    first_rest: first_rest.map(ms),
                    growth: if grows { 2.0 } else { 1.0 },
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
                    turns: None,
                }
            },
        )
}

fn verdicts() -> impl Strategy<Value = CircuitVerdict> {
    let blame = (
        prop_oneof![
            4 => Just((Weight::Hard, Reason::ServerError, 900)),
            3 => Just((Weight::Soft, Reason::RateLimit, 1_700)),
            1 => Just((Weight::Proof, Reason::Auth, 6_000)),
        ],
        proptest::option::weighted(0.2, 100u64..15_000),
        proptest::bool::weighted(0.1),
    )
        .prop_map(|((weight, reason, cooldown), hint, permanent)| {
            let cooldown = Duration::from_millis(hint.unwrap_or(cooldown));
            CircuitVerdict::Failure(Blame {
                weight,
                reason,
                cooldown,
                hinted: hint.is_some(),
                permanent,
            })
        });
    prop_oneof![5 => Just(CircuitVerdict::Success), 4 => blame, 1 => Just(CircuitVerdict::Nothing)]
}

fn ops() -> impl Strategy<Value = Op> {
    let end = (any::<usize>(), verdicts(), 0u64..600)
        .prop_map(|(which, verdict, first_content)| Op::End { which, verdict, first_content });
    let wait = prop_oneof![6 => 0u64..300, 2 => 300u64..3_000, 1 => 3_000u64..20_000];
    let admit = (any::<bool>(), proptest::option::of(0u64..2))
        .prop_map(|(lone, witness)| Op::Admit { lone, witness });
    prop_oneof![
        12 => admit,
        12 => end,
        6 => wait.prop_map(Op::Wait),
        1 => prop_oneof![
            1 => Just(Op::Force(CircuitState::ForcedOpen)),
            1 => Just(Op::Force(CircuitState::ForcedClosed)),
            1 => Just(Op::Force(CircuitState::Isolated)),
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

    /// Long sequences: windows that have slid many times, and hundreds of generations.
    #[test]
    fn agrees_with_the_model_for_thousands_of_steps(
        policy in policies(),
        ops in proptest::collection::vec(ops(), 3_000..4_000),
    ) {
        run(policy, ops)?;
    }
}
