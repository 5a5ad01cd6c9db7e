//! Caps that two processes share, as callers of a layer meet them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::join_all};
use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, EventStream, Head};
use steadfast_core::{
    CallContext, CapSharing, Dialect, Failure, Reason, Spend, SpendAccount, SpendCaps,
    SpendRefusal, Usage,
    shared::{EmbeddedNode, EmbeddedStore},
};
use steadfast_limit::{SpendLimitLayer, SpendLimitPolicy};
use tokio::time::{Instant, sleep};
use tower::{ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};

/// Of a call: 142 tokens of input at most, and 50 of output.
const MOST: u64 = 192;

struct Process {
    node: EmbeddedNode,
    layer: SpendLimitLayer,
    service: BoxCloneService<ChatRequest, ChatResponse, Failure>,
}

impl Process {
    /// Answers take a second, and use 100 tokens.
    fn start(store: &EmbeddedStore, name: &str, cap: u64, sharing: CapSharing) -> Self {
        let policy = SpendLimitPolicy { tokens_hour: cap, ..SpendLimitPolicy::default() };
        let layer = SpendLimitLayer::new(policy).unwrap();
        let node = store.join(name);
        assert!(layer.ledger().share(Arc::new(node.clone()), sharing));
        assert!(!layer.ledger().share(Arc::new(node.clone()), sharing), "once");
        let model = service_fn(async |_: ChatRequest| {
            sleep(Duration::from_secs(1)).await;
            let deltas = [Delta::Usage(Usage::new(80, 20)), Delta::End];
            let events = futures_util::stream::iter([Ok(Event::new(deltas))]);
            let events = Box::pin(events) as EventStream;
            Ok::<_, Failure>(ChatResponse::new(Head::new(Dialect::OpenAi), events))
        });
        let service = ServiceBuilder::new().layer(&layer).layer(layer.meter()).service(model);
        let service = service.map_response(ChatResponse::boxed).boxed_clone();
        Self { node, layer, service }
    }

    async fn call(&self) -> Result<(), Failure> {
        let context = CallContext::recording().with_tenant("acme");
        let request = ChatRequest::user("x".repeat(400)).with_model("gpt-4o").with_max_output(50);
        let answer = self.service.clone().oneshot(request.with_context(context)).await?;
        assert_eq!(answer.collect().await?.usage.total(), Some(100));
        Ok(())
    }

    fn totals(&self) -> (u64, u64) {
        let account = SpendAccount::Tenant("acme".into());
        let totals = self.layer.ledger().totals(&account, Instant::now());
        (totals.hour.tokens, totals.held.tokens)
    }
}

fn pair(cap: u64, sharing: CapSharing) -> (EmbeddedStore, [Process; 2]) {
    let store = EmbeddedStore::new();
    let processes = ["one", "two"].map(|name| Process::start(&store, name, cap, sharing));
    (store, processes)
}

fn refusal(failure: &Failure) -> &SpendRefusal {
    assert_eq!((failure.reason(), failure.attempts()), (Reason::SpendCap, 0));
    std::error::Error::source(failure).unwrap().downcast_ref().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_cap_holds_for_both_together() {
    for sharing in [CapSharing::Strict, CapSharing::Share] {
        let (_store, [one, two]) = pair(10 * MOST, sharing);
        let calls = join_all((0..30).flat_map(|_| [one.call(), two.call()])).await;
        let made = calls.iter().filter(|call| call.is_ok()).count();
        // At once, and each holds its most until it is answered.
        let most = if sharing == CapSharing::Strict { 10 } else { 12 };
        assert!((8..=most).contains(&made), "{sharing:?}: {made}");
        // What they did not use is there again.
        sleep(Duration::from_secs(8)).await;
        assert_eq!(one.totals(), two.totals(), "both know it");
        assert_eq!(one.totals(), (100 * made as u64, 0));
        two.call().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn who_asks_first_gets_the_last_call_and_the_other_hears_when_there_is_room() {
    let (_store, [one, two]) = pair(2 * MOST, CapSharing::Strict);
    one.call().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    two.call().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let failure = one.call().await.unwrap_err();
    let refusal = refusal(&failure);
    assert_eq!((refusal.cap, refusal.used, refusal.requested), (2 * MOST, 200, MOST), "{refusal}");
    assert!(!refusal.unasked && !refusal.away);
    let frees = refusal.frees_in.unwrap();
    assert!(frees > Duration::from_secs(3_500) && frees < Duration::from_secs(3_700), "{frees:?}");
    assert_eq!(failure.retry_after(), Some(frees));
    sleep(frees + Duration::from_secs(1)).await;
    one.call().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_the_store_a_strict_cap_admits_what_was_granted_and_no_more() {
    let (store, [one, two]) = pair(100 * MOST, CapSharing::Strict);
    one.call().await.unwrap();
    store.set_away(true);
    let failure = two.call().await.unwrap_err();
    assert!(refusal(&failure).away, "{failure}");
    assert!(failure.to_string().contains("can not be reached"), "{failure}");
    let start = Instant::now();
    assert!(two.call().await.is_err() && start.elapsed().is_zero(), "nobody waits for it");
    store.set_away(false);
    two.call().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_the_store_each_has_its_part_of_a_cap() {
    let (store, [one, two]) = pair(20 * MOST, CapSharing::Share);
    for process in [&one, &two] {
        process.call().await.unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    store.set_away(true);
    let mut made = [0_u64; 2];
    for (made, process) in made.iter_mut().zip([&one, &two]) {
        while process.call().await.is_ok() {
            *made += 1;
        }
    }
    let all = made[0] + made[1];
    assert!((all + 2) * 100 <= 20 * MOST, "{made:?} of 100 tokens each");
    assert!(made.iter().all(|made| *made >= 14), "{made:?}");
    store.set_away(false);
    sleep(Duration::from_secs(8)).await;
    assert_eq!(one.totals(), ((all + 2) * 100, 0), "what was spent meanwhile is known");
    assert_eq!(two.totals(), one.totals());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_goes_while_it_waits_leaves_nothing() {
    let (_store, [one, two]) = pair(2 * MOST, CapSharing::Strict);
    for _ in 0..20 {
        // Polled once: it waits for the store.
        assert!(Box::pin(one.call()).now_or_never().is_none());
    }
    sleep(Duration::from_secs(3)).await;
    assert_eq!(one.totals(), (0, 0));
    two.call().await.unwrap();
    drop((one.node, two.node));
}

#[tokio::test(start_paused = true)]
async fn an_account_without_a_cap_asks_nobody() {
    let store = EmbeddedStore::new();
    let policy = SpendLimitPolicy { record: true, ..SpendLimitPolicy::default() };
    let ledger = SpendLimitLayer::new(policy).unwrap().ledger().clone();
    let node = store.join("one");
    ledger.share(Arc::new(node), CapSharing::Strict);
    store.set_away(true);
    let account = SpendAccount::Tenant("acme".into());
    let held =
        ledger.reserve(&account, &SpendCaps::default(), Spend::new(1_000, 0), Instant::now());
    held.unwrap().charge(Spend::new(10, 0), Instant::now());
    assert_eq!(ledger.totals(&account, Instant::now()).hour, Spend::new(10, 0));
}
