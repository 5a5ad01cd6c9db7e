//! Every clause finds its violation, in a layer that can be made to violate any one of them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod flaw;
mod layer;

use std::{collections::BTreeSet, sync::atomic::Ordering::SeqCst};

use flaw::Flaw;
use layer::Limited;
use steadfast_testkit::{
    Action, Aspect, CLAUSES, Contract, ContractViolation, Http, check_clause, run, verify,
};

/// Which clauses each flaw must violate. It may violate others as well.
const VIOLATIONS: &[(Flaw, &[&str])] = &[
    (Flaw::CallsAClone, &["ready_before_call"]),
    (Flaw::PollsNewClones, &["readiness_is_kept_until_used"]),
    (Flaw::LosesReadiness, &["readiness_is_kept_until_used"]),
    (Flaw::ClonesReadiness, &["readiness_is_absent_in_a_clone"]),
    (Flaw::AlwaysReady, &["readiness_passes_through", "readiness_errors_pass_through"]),
    (Flaw::NoWakerInReadiness, &["readiness_passes_through"]),
    (Flaw::SwallowsErrors, &["readiness_errors_pass_through"]),
    (Flaw::WaitsForTheBroken, &["readiness_errors_pass_through"]),
    (Flaw::FailsInReadiness, &["poll_ready_never_fails_by_itself"]),
    (Flaw::LeaksOnDrop, &["a_dropped_future_frees"]),
    (Flaw::KeepsWakers, &["a_dropped_future_frees"]),
    (Flaw::Spawns, &["a_dropped_future_frees"]),
    (Flaw::LeaksBodies, &["a_dropped_body_frees"]),
    (Flaw::HoldsUntilDrop, &["a_body_read_to_its_end_frees", "a_failed_body_frees"]),
    (Flaw::HoldsFailedBodies, &["a_failed_body_frees"]),
    (Flaw::LeaksOnError, &["every_error_frees"]),
    (Flaw::LeaksOnRefusal, &["every_error_frees"]),
    (Flaw::StateOfTheService, &["state_is_shared"]),
    (Flaw::StateOfTheProcess, &["a_new_layer_has_new_state"]),
    (Flaw::CallsAndRefuses, &["a_refusal_calls_nothing"]),
    (Flaw::HoardsReadiness, &["a_refusal_calls_nothing"]),
    (Flaw::RefusesLate, &["a_refusal_calls_nothing"]),
    (Flaw::NeedsTheNextCall, &["works_in_a_concurrency_limit", "works_in_a_buffer"]),
    (Flaw::WaitsForItself, &["works_around_a_concurrency_limit", "works_around_a_buffer"]),
    (Flaw::Panics, &["works_in_a_concurrency_limit", "works_around_a_concurrency_limit"]),
    (Flaw::Panics, &["works_in_a_buffer", "works_around_a_buffer"]),
    (Flaw::NoWaker, &["a_waker_on_every_pending"]),
    (Flaw::StaleWaker, &["a_waker_on_every_pending"]),
    (Flaw::NoWakerInBodies, &["a_waker_on_every_pending"]),
    (Flaw::Spins, &["nothing_spins"]),
    (Flaw::SpinsInReadiness, &["nothing_spins"]),
    (Flaw::ShowsRequests, &["auto_traits"]),
    (Flaw::Allocates, &["allocations"]),
    (Flaw::ChangesRequests, &["a_request_passes_unchanged"]),
    (Flaw::CallsTwice, &["a_request_passes_unchanged"]),
    (Flaw::ChangesHeads, &["a_reply_passes_unchanged"]),
    (Flaw::DropsAPiece, &["a_reply_passes_unchanged"]),
];

/// The boxed future of the call.
const BOXES: u64 = 1;

fn contract(flaw: Flaw) -> Contract<Http, Limited> {
    Contract::new(Http, move || Limited::new(flaw))
        .refuses(|layer, _| layer.state.refuses.store(true, SeqCst))
        .state(Action::answer(), |layer| layer.state.calls.load(SeqCst))
        .held(|layer| layer.state.taken.load(SeqCst))
        .allocates(BOXES, "its futures are boxed, to keep this short")
}

#[test]
fn the_sound_layer_keeps_every_clause() {
    run(async { verify(&contract(Flaw::None)).await });
}

#[test]
fn every_clause_finds_its_flaws() {
    let mut survived = Vec::new();
    for (flaw, clauses) in VIOLATIONS {
        for clause in *clauses {
            let mut found = Ok(());
            run(async {
                found = check_clause(clause, &contract(*flaw)).await;
                Ok(())
            });
            match found {
                Ok(()) => survived.push((flaw, clause)),
                Err(ContractViolation { clause: named, message, .. }) => {
                    assert_eq!(named, *clause);
                    assert!(message.len() > 40, "a sentence, not {message:?}");
                }
            }
        }
    }
    assert!(survived.is_empty(), "flaws that no clause found: {survived:?}");
}

/// A leak is found without the layer's own count too: the permit is missing later.
#[test]
fn leaks_are_found_from_outside() {
    for (flaw, clause) in [
        (Flaw::LeaksOnDrop, "a_dropped_future_frees"),
        (Flaw::LeaksBodies, "a_dropped_body_frees"),
        (Flaw::HoldsUntilDrop, "a_body_read_to_its_end_frees"),
    ] {
        let contract = || {
            Contract::new(Http, move || Limited::new(flaw))
                .none(Aspect::Held, "its own count is not used here")
        };
        let mut found = Ok(());
        run(async {
            found = check_clause(clause, &contract()).await;
            Ok(())
        });
        let violation = found.expect_err(clause);
        assert!(violation.message.contains("too many calls at once"), "{violation}");
    }
}

/// An aspect that is not declared is an error; one declared as `none` is not applicable.
#[test]
fn a_clause_that_has_nothing_to_test_does_not_pass() {
    for (aspect, clause) in [
        (Aspect::Refusal, "a_refusal_calls_nothing"),
        (Aspect::State, "state_is_shared"),
        (Aspect::State, "a_new_layer_has_new_state"),
        (Aspect::Held, "a_dropped_future_frees"),
    ] {
        let bare = || Contract::new(Http, || Limited::new(Flaw::None));
        let (mut undeclared, mut declined) = (Ok(()), Ok(()));
        run(async {
            undeclared = check_clause(clause, &bare()).await;
            declined = check_clause(clause, &bare().none(aspect, "as a test")).await;
            Ok(())
        });
        let message = undeclared.expect_err(clause).message;
        assert!(message.contains(&format!(".none(Aspect::{aspect:?}")), "{clause}: {message}");
        declined.expect(clause);
    }
}

#[test]
fn every_clause_has_a_flaw_to_find() {
    let all: BTreeSet<_> = CLAUSES.iter().collect();
    let tried: BTreeSet<_> = VIOLATIONS.iter().flat_map(|(_, clauses)| *clauses).collect();
    assert_eq!(all, tried);
    assert_eq!(all.len(), CLAUSES.len(), "each once");
}

#[test]
#[should_panic(
    expected = "`ready_before_call` is violated: misuse of the inner service: it was called"
)]
fn a_violated_clause_names_itself() {
    run(async { verify(&contract(Flaw::CallsAClone)).await });
}

#[test]
#[should_panic(expected = "there is no clause `nonsense`")]
fn an_unknown_clause_panics() {
    run(async { check_clause("nonsense", &contract(Flaw::None)).await });
}
