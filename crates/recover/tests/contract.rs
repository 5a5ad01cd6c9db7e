//! The contract of every layer.
#![allow(clippy::unwrap_used, reason = "tests")]

use steadfast_chat::{ChatRequest, ChatResponse};
use steadfast_core::{Failure, Reason};
use steadfast_recover::{ContinuationLayer, StreamResumeLayer};
use steadfast_testkit::{Act, Aspect, Chat, Contract, contract};
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneService};

contract!(
    resume,
    Contract::new(Chat, StreamResumeLayer::default)
        .state(Act::fail_late(Reason::Network), |layer| layer.handle().snapshot().broken)
        .none(Aspect::Refusal, "every call is sent")
        .none(Aspect::Held, "what was read of an answer goes with it")
);

contract!(
    continuation,
    Contract::new(Chat, ContinuationLayer::default)
        .none(Aspect::Refusal, "every call is sent")
        .none(Aspect::State, "it counts answers cut by length, and no act of the probe is one")
        .none(Aspect::Held, "what was read of an answer goes with it")
);

#[tokio::test(start_paused = true)]
async fn the_two_stack_around_a_boxed_service() {
    let inner = BoxCloneService::new(tower::service_fn(|_: ChatRequest| async {
        Err::<ChatResponse, _>(Failure::new(Reason::Network, "nobody is there"))
    }));
    let stack = ServiceBuilder::new()
        .layer(ContinuationLayer::default())
        .layer(StreamResumeLayer::default())
        .service(inner);
    let failure = stack.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!((failure.reason(), failure.is_delivered()), (Reason::Network, false));
}
