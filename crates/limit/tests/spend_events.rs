//! What the spend caps report. A file of its own: other tests would reach the same events without a subscriber.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures_util::stream;
use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, EventStream, Head};
use steadfast_core::{
    CallContext, Dialect, Failover, Failure, FaultSide, Reason, Retry, SpendAccount, Usage,
};
use steadfast_limit::{SpendLimitLayer, SpendLimitPolicy};
use steadfast_retry::RetryBackoffLayer;
use steadfast_testkit::{CapturedEvents, secs};
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tracing::subscriber::set_default;

/// 400 bytes, at most 142 tokens, and an output of at most 50.
fn request() -> ChatRequest {
    ChatRequest::user("x".repeat(400))
        .with_model("gpt-4o")
        .with_max_output(50)
        .with_context(CallContext::recording().with_tenant("acme"))
}

/// A whole answer with what it reports to have used.
fn whole(input: u64, output: u64) -> ChatResponse {
    let text = Delta::Text { index: 0, text: "y".repeat(40) };
    let deltas = [text, Delta::Usage(Usage::new(input, output)), Delta::End];
    let events = Box::pin(stream::iter([Ok(Event::new(deltas))])) as EventStream;
    ChatResponse::new(Head::new(Dialect::OpenAi), events)
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_final_and_says_which_cap_and_until_when() {
    let policy = SpendLimitPolicy { tokens_hour: 1_000, ..SpendLimitPolicy::default() };
    let layer = SpendLimitLayer::new(policy).unwrap();
    let (events, calls) = (CapturedEvents::default(), Arc::new(AtomicU64::new(0)));
    let _guard = set_default(events.clone());
    let count = calls.clone();
    let service = ServiceBuilder::new()
        .layer(RetryBackoffLayer::transient())
        .layer(layer.clone())
        .service(service_fn(move |_: ChatRequest| {
            count.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, Failure>(whole(800, 120)) }
        }));
    service.clone().oneshot(request()).await.unwrap().collect().await.unwrap();
    let acme = SpendAccount::Tenant("acme".into());
    assert_eq!(layer.ledger().totals(&acme, Instant::now()).hour.tokens, 920);
    tokio::time::advance(secs(600)).await;
    let asked = request();
    let log = asked.context.log.clone();
    let failure = service.clone().oneshot(asked).await.unwrap_err();
    assert_eq!(calls.load(Ordering::Relaxed), 1, "nobody was asked again");
    assert_eq!((failure.reason(), failure.fault()), (Reason::SpendCap, FaultSide::Local));
    assert_eq!((failure.retry(), failure.failover()), (Retry::Forbidden, Failover::Forbidden));
    assert_eq!((failure.attempts(), failure.http_status().as_u16()), (0, 402));
    let wait = failure.retry_after().unwrap();
    assert!((2_999..3_061).contains(&wait.as_secs()), "{wait:?}");
    let message = failure.message();
    assert!(
        message
            .starts_with("the cap of tenant `acme` on the tokens of a hour is 1000: 920 are used"),
        "{message}"
    );
    assert!(message.contains("this call may need 192"), "{message}");
    assert!(log.to_string().contains("limit.spend_refused spend_cap"), "{log}");
    let refused = events
        .take()
        .into_iter()
        .find(|event| event.starts_with("steadfast::limit::spend_refused"));
    let refused = refused.unwrap();
    assert!(
        refused.contains("window=\"hour\" unit=\"tokens\" cap=1000 used=920 requested=192"),
        "{refused}"
    );
    // When it says so, there is room.
    tokio::time::advance(wait).await;
    service.oneshot(request()).await.unwrap().collect().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_unknown_price_is_reported_once() {
    let events = CapturedEvents::default();
    let _guard = set_default(events.clone());
    let layer =
        SpendLimitLayer::new(SpendLimitPolicy { cost_day: 1_000, ..SpendLimitPolicy::default() })
            .unwrap();
    let service = layer.layer(service_fn(async |_: ChatRequest| Ok::<_, Failure>(whole(100, 50))));
    for _ in 0..3 {
        let answer = service.clone().oneshot(request().with_model("house")).await.unwrap();
        drop(answer);
    }
    let unpriced =
        events.take().into_iter().filter(|event| event.starts_with("steadfast::limit::unpriced"));
    assert_eq!(
        unpriced.collect::<Vec<_>>(),
        ["steadfast::limit::unpriced model=\"house\" taken_for=Free"]
    );
}
