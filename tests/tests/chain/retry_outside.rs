//! The wrong order `Retry(Failover(client))`: what docs/ordering.md says of it.

use steadfast::{
    ChatRequest, ChatResponse, ChatService, Dialect, Reason, RetryBudget,
    classify::ClassifyLayer,
    failover::CooldownFailoverLayer,
    retry::RetryBackoffLayer,
    sim::{ErrorKind, Fault, FaultPlan, RateLimit, SimProvider},
};
use steadfast_tests::harness::{self, CallResult, TRIO};
use tower::{ServiceBuilder, ServiceExt as _};

/// Where the retry layer is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Retry {
    Outside,
    Inside,
    Nowhere,
}

fn service(sims: &[SimProvider], retry: Retry) -> ChatService {
    let budget = RetryBudget::default();
    let failover = CooldownFailoverLayer::new(harness::chain(sims)).with_budget(budget.clone());
    let retries = || RetryBackoffLayer::default().with_budget(budget.drawing());
    let client = ServiceBuilder::new().layer(ClassifyLayer::default());
    let client = client.service(harness::client(sims));
    let layers = ServiceBuilder::new();
    // Three types of answers.
    match retry {
        Retry::Outside => {
            let service = layers.layer(retries()).layer(failover).service(client);
            ChatService::new(service.map_response(ChatResponse::boxed))
        }
        Retry::Inside => {
            let service = layers.layer(failover).layer(retries()).service(client);
            ChatService::new(service.map_response(ChatResponse::boxed))
        }
        Retry::Nowhere => {
            let service = layers.layer(failover).service(client);
            ChatService::new(service.map_response(ChatResponse::boxed))
        }
    }
}

async fn ask(service: &ChatService) -> CallResult {
    CallResult::of(service, ChatRequest::user("What is it?").with_model("any")).await
}

/// Who was asked, in this order.
fn asked(sims: &[SimProvider]) -> Vec<String> {
    let mut entries: Vec<_> = sims.iter().flat_map(|sim| sim.journal().entries()).collect();
    entries.sort_by_key(|entry| entry.at);
    entries.into_iter().map(|entry| entry.provider).collect()
}

/// A round is one attempt at each of the targets, with a retry layer around them or without one; what comes
/// out after ten is a refusal that it does not retry.
#[tokio::test(start_paused = true)]
async fn three_targets_get_one_attempt_each_in_a_round_and_no_retry() {
    let plan = FaultPlan::always(Fault::Error(ErrorKind::ServerError));
    let run = async |retry| {
        let sims = harness::trio(|_, provider| provider.with_faults(plan.clone()));
        let failure = ask(&service(&sims, retry)).await.failure.unwrap();
        assert_eq!(failure.reason(), Reason::Exhausted, "{retry:?}: {failure}");
        assert_eq!(failure.attempts(), 10, "{retry:?}: {failure}");
        asked(&sims)
    };
    let rounds: Vec<_> = TRIO.iter().cycle().take(10).map(|(name, _)| *name).collect();
    assert_eq!(run(Retry::Outside).await, rounds);
    assert_eq!(run(Retry::Nowhere).await, rounds, "it adds nothing");
    let inside = run(Retry::Inside).await;
    assert_eq!(inside[..4], ["anthropic", "anthropic", "openai", "openai"], "in place first");
}

#[tokio::test(start_paused = true)]
async fn a_hint_of_a_second_is_not_waited_for() {
    let plan = FaultPlan::first(1, Fault::rate_limit(RateLimit::after("1")));
    for (retry, expected, waited) in [
        (Retry::Outside, ["anthropic", "openai"], 0),
        (Retry::Inside, ["anthropic", "anthropic"], 1),
    ] {
        let sims = harness::trio(|dialect, provider| match dialect {
            Dialect::Anthropic => provider.with_faults(plan.clone()),
            _ => provider,
        });
        let got = ask(&service(&sims, retry)).await;
        got.answer();
        assert_eq!(asked(&sims), expected, "{retry:?}");
        assert_eq!(got.took.as_secs(), waited, "{retry:?}");
    }
}

/// The failure of a target that is alone is its own, so both retry it.
#[tokio::test(start_paused = true)]
async fn around_a_single_target_the_attempts_multiply() {
    let plan = FaultPlan::always(Fault::Error(ErrorKind::ServerError));
    let run = async |retry| {
        let mut sims = harness::trio(|_, provider| provider.with_faults(plan.clone()));
        sims.truncate(1);
        assert!(ask(&service(&sims, retry)).await.failure.is_some());
        sims[0].journal().len()
    };
    assert!(run(Retry::Inside).await <= 11);
    assert!(run(Retry::Nowhere).await <= 10);
    let multiplied = run(Retry::Outside).await;
    assert!(multiplied > 30, "{multiplied}");
}
