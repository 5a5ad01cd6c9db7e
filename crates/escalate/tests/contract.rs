//! The contract of every layer.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use steadfast_core::Reason;
use steadfast_escalate::{EscalationDecision, EscalationLayer, EscalationPolicy, HeldRequest};
use steadfast_testkit::{Action, Aspect, Chat, Contract, contract};

fn on() -> EscalationLayer {
    EscalationLayer::new(EscalationPolicy::default()).unwrap()
}

contract!(
    nobody_decides,
    Contract::new(Chat, on)
        .none(Aspect::Refusal, "every call is sent")
        .state(Action::fail(Reason::Network), |layer| layer.handle().snapshot().total)
        .held(|layer| layer.handle().snapshot().held as u64)
);

contract!(
    an_operator_tries_again,
    Contract::new(Chat, || {
        on().with_operator(async |_: Arc<HeldRequest>| Some(EscalationDecision::TryAgain))
    })
    .none(Aspect::Refusal, "every call is sent")
    .state(Action::fail(Reason::Network), |layer| layer.handle().snapshot().total)
    .held(|layer| layer.handle().snapshot().held as u64)
);

contract!(
    off,
    Contract::new(Chat, EscalationLayer::off)
        .none(Aspect::Refusal, "every call is sent")
        .none(Aspect::State, "nothing is counted")
        .held(|layer| layer.handle().snapshot().held as u64)
);
