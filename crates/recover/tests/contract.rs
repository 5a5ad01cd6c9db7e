//! The contract of every layer.
#![allow(clippy::unwrap_used, reason = "tests")]

use steadfast_chat::{ChatRequest, ChatResponse};
use steadfast_core::{Failure, Reason};
use steadfast_recover::{ContinuationLayer, StreamResumeLayer, ThinkingMemoryLayer};
use steadfast_testkit::{Action, Aspect, Chat, Contract, contract};
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneService};

const ITS_ANSWER: &str =
    "what an answer needs to be continued: too large to be moved by each layer outside";

contract!(
    resume,
    Contract::new(Chat, StreamResumeLayer::default)
        .state(Action::fail_late(Reason::Network), |layer| layer.handle().snapshot().broken)
        .none(Aspect::Refusal, "every call is sent")
        .none(Aspect::Held, "the text of an answer is dropped with it")
        .allocates(1, ITS_ANSWER)
);

contract!(
    continuation,
    Contract::new(Chat, ContinuationLayer::default)
        .none(Aspect::Refusal, "every call is sent")
        .none(Aspect::State, "it counts truncated answers, which the probe does not give")
        .none(Aspect::Held, "the text of an answer is dropped with it")
        .allocates(1, ITS_ANSWER)
);

contract!(
    thinking,
    Contract::new(Chat, ThinkingMemoryLayer::default)
        .none(Aspect::Refusal, "every call is sent")
        .none(Aspect::State, "it remembers thinking, which the probe's answers do not have")
        .none(Aspect::Held, "what an answer is bound to is dropped with it")
);

#[tokio::test(start_paused = true)]
async fn the_two_stack_around_a_boxed_service() {
    let inner = BoxCloneService::new(tower::service_fn(|_: ChatRequest| async {
        Err::<ChatResponse, _>(Failure::new(Reason::Network, "no connection"))
    }));
    let stack = ServiceBuilder::new()
        .layer(ContinuationLayer::default())
        .layer(StreamResumeLayer::default())
        .service(inner);
    let failure = stack.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!((failure.reason(), failure.is_delivered()), (Reason::Network, false));
}
