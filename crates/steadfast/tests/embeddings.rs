//! The layers around embeddings: the state of the chats' stack, and one model.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{future::ready, sync::Arc, time::Duration};

use parking_lot::Mutex;
use steadfast::{
    Call, Dialect, EmbedRequest, EmbedResponse, EmbedService, Embedding, Failure, Head, Reason,
    Stack, Target, Usage,
    failover::{Chain, TargetSpec},
};
use tower::{ServiceExt, service_fn};

type Asked = Arc<Mutex<Vec<String>>>;

/// A service that notes whom it is asked for, and fails those of `down`.
fn service(
    stack: &Stack,
    chain: Chain,
    down: &'static [(&'static str, Reason)],
) -> (EmbedService, Asked) {
    let asked = Asked::default();
    let seen = asked.clone();
    let client = service_fn(move |request: EmbedRequest| {
        let target = request.context().target.clone().unwrap();
        seen.lock().push(format!("{}/{}", target.provider(), request.model));
        let fails = down.iter().find(|(name, _)| *name == target.provider());
        ready(match fails {
            Some((_, reason)) => Err(Failure::new(*reason, "down").with_target(target)),
            None => {
                let mut head = Head::new(Dialect::OpenAi);
                head.target = Some(target);
                let vectors = vec![Embedding::new("[0.5]".into()); request.inputs().len()];
                Ok(EmbedResponse::new(head, vectors, "{}".into()).with_usage(Usage::new(7, 0)))
            }
        })
    });
    (stack.embeddings(chain).boxed(client), asked)
}

fn chain() -> Chain {
    let spare = TargetSpec::new("b").with_model("small", "their-small");
    Chain::new([TargetSpec::new("a").with_downgrade("*", ["other"]), spare]).unwrap()
}

fn request() -> EmbedRequest {
    EmbedRequest::new(["x", "y"]).with_model("small")
}

#[tokio::test(start_paused = true)]
async fn a_failure_goes_on_to_the_same_model_elsewhere_and_its_cooldown_is_the_chats_too() {
    let chat = Stack::new(Chain::new(["a", "b"]).unwrap());
    let (llm, asked) = service(&chat, chain(), &[("a", Reason::Auth)]);
    for _ in 0..4 {
        let answer = llm.clone().oneshot(request()).await.unwrap();
        assert_eq!(answer.embeddings.len(), 2);
        assert_eq!(answer.head.target.as_ref().unwrap().provider(), "b");
        assert_eq!(answer.embeddings[0].values().unwrap(), [0.5]);
    }
    assert!(asked.lock().iter().all(|asked| asked == "a/small" || asked == "b/their-small"));
    let cools = chat.handles().failover.snapshot();
    assert!(cools.cooling().any(|health| health.target.provider() == "a"), "{cools:?}");
    assert!(asked.lock().iter().filter(|asked| *asked == "a/small").count() < 4, "it rests");
}

#[tokio::test(start_paused = true)]
async fn what_cools_for_chats_is_not_asked_and_attempts_are_retried_and_recorded() {
    let chat = Stack::new(Chain::new(["a", "b"]).unwrap());
    chat.handles().failover.cool(&Target::new("a"), Duration::from_secs(60));
    let (llm, asked) = service(&chat, chain(), &[]);
    let answer = llm.oneshot(request()).await.unwrap();
    assert_eq!(*asked.lock(), ["b/their-small"]);
    assert!(answer.head.log.is_enabled());

    let chat = Stack::new(Chain::new(["a"]).unwrap());
    let one = Chain::new([TargetSpec::new("a").with_downgrade("*", ["other"])]).unwrap();
    let (llm, asked) = service(&chat, one, &[("a", Reason::ServerError)]);
    let failure = llm.oneshot(request()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::ServerError);
    assert!(asked.lock().len() > 1, "it is retried");
    assert!(asked.lock().iter().all(|asked| asked == "a/small"), "and never downgraded");
}

#[tokio::test(start_paused = true)]
async fn a_session_of_chats_stays_where_it_is() {
    let chat = Stack::new(Chain::new(["a", "b"]).unwrap());
    let (llm, _) = service(&chat, chain(), &[]);
    let mut request = request();
    request.context = request.context.with_session("s");
    llm.oneshot(request).await.unwrap();
    assert_eq!(chat.handles().failover.sessions(), 0);
}
