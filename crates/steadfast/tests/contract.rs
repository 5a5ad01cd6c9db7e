//! The contract of every layer, asked of all of them together.
#![cfg(feature = "stack")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use steadfast::{Stack, Target, failover::Chain};
use steadfast_testkit::{Action, Aspect, Chat, Contract, contract};

const NAMES: [&str; 3] = ["probe", "other", "third"];

fn stack() -> Stack {
    Stack::new(Chain::new(NAMES).unwrap())
}

contract!(
    stack_of_chat,
    Contract::new(Chat, stack)
        .refuses(|stack, _| {
            for name in NAMES {
                stack.handles().failover.cool(&Target::new(name), Duration::from_secs(1_000));
            }
        })
        .state(Action::answer(), |stack| stack.handles().retry.snapshot().calls)
        .held(|stack| {
            let handles = stack.handles();
            let breakers = handles.breaker.snapshot();
            let health = handles.failover.snapshot();
            breakers.iter().map(|one| u64::from(one.circuit.probes + one.circuit.lone)).sum::<u64>()
                + health.targets().iter().filter(|one| one.probing).count() as u64
        })
        .allocates(3, "what is needed to continue and to resume the answer, and its first event")
);

contract!(
    stack_that_never_asks_for_more_of_an_answer,
    Contract::new(Chat, || stack().without_guard().without_continuation().without_resume())
        .state(Action::answer(), |stack| stack.handles().retry.snapshot().calls)
        .none(Aspect::Refusal, "the same as of the whole stack")
        .none(Aspect::Held, "the same as of the whole stack")
        .allocates(1, "the first event, by the layer that waits for it")
);
