//! Equal targets share the calls.

mod support;

use std::collections::BTreeMap;

use proptest::prelude::*;
use steadfast_core::Reason;
use steadfast_failover::{Balance, Chain, CooldownFailoverLayer, TargetSpec};
use support::*;
use tokio::time::advance;

/// Two of weights 3 and 1, and a third behind both.
fn equals() -> Chain {
    chain([
        TargetSpec::new("a").with_weight(3),
        TargetSpec::new("b").as_equal(),
        TargetSpec::new("c"),
    ])
}

fn layer(balance: Balance) -> CooldownFailoverLayer {
    CooldownFailoverLayer::new(equals()).tune(|policy| policy.balance = balance).with_seed(7)
}

fn counted(calls: Vec<String>) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    calls.into_iter().for_each(|name| *counts.entry(name).or_default() += 1);
    counts
}

#[tokio::test(start_paused = true)]
async fn calls_are_shared_by_weight_and_the_same_seed_shares_alike() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let (providers, layer) = (Providers::new(), layer(Balance::Weight).at_once());
        for _ in 0..400 {
            send(&layer, &providers, PlainRequest::new()).await.unwrap();
        }
        runs.push(providers.calls());
    }
    assert_eq!(runs[0], runs[1]);
    let counts = counted(runs.remove(0));
    assert!((260..340).contains(&counts["a"]) && counts["a"] + counts["b"] == 400, "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_session_stays_where_it_is_while_that_is_well() {
    let (providers, layer) = (Providers::new(), layer(Balance::Weight).at_once());
    for session in 0..20 {
        let session = format!("session {session}");
        let first = send(&layer, &providers, PlainRequest::session(&session)).await.unwrap();
        for _ in 0..10 {
            let next = send(&layer, &providers, PlainRequest::session(&session)).await.unwrap();
            assert_eq!(next, first);
        }
    }
    assert_eq!(counted(providers.calls()).len(), 2, "both have some");
}

#[tokio::test(start_paused = true)]
async fn one_that_cools_comes_after_its_equals_and_before_nobody() {
    for balance in [Balance::Weight, Balance::LeastInFlight, Balance::FirstContent] {
        let (providers, layer) = (Providers::new(), layer(balance).at_once());
        providers.set("a", limited(90));
        for prompt in 0..20 {
            send(&layer, &providers, PlainRequest::prompt(prompt)).await.unwrap();
        }
        let counts = counted(providers.calls());
        assert_eq!((counts["a"], counts["b"], counts.get("c")), (2, 20, None), "{balance:?}");
        // An equal is asked before the next in the chain when one fails.
        providers.set("b", fail(Reason::ServerError));
        send(&layer, &providers, PlainRequest::new()).await.unwrap();
        assert_eq!(providers.calls(), ["b", "c"], "{balance:?}");
        advance(secs(91)).await;
        providers.repair("a").repair("b");
        for _ in 0..40 {
            send(&layer, &providers, PlainRequest::new()).await.unwrap();
        }
        assert!(counted(providers.calls())["a"] > 0, "{balance:?}: it comes back");
    }
}

#[tokio::test(start_paused = true)]
async fn the_one_with_fewer_calls_under_way_is_asked() {
    let (providers, layer) = (Providers::new(), layer(Balance::default()).at_once());
    for name in ["a", "b"] {
        providers.set(name, after(secs(60), Action::Answer));
    }
    let mut calls = Vec::new();
    for _ in 0..40 {
        let mut call = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
        assert!(call.poll().is_pending());
        calls.push(call);
    }
    let counts = counted(providers.calls());
    assert_eq!((counts["a"], counts["b"]), (30, 10), "three times as many where the weight is 3");
    // Those of one end by being dropped, and count no more.
    calls.truncate(0);
    let mut call = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
    assert!(call.poll().is_pending());
    let mut more = Vec::new();
    for _ in 0..3 {
        let mut call = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
        assert!(call.poll().is_pending());
        more.push(call);
    }
    let counts = counted(providers.calls());
    assert_eq!((counts["a"], counts["b"]), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn calls_move_to_the_faster_one_and_come_back() {
    let (providers, layer) = (Providers::new(), layer(Balance::FirstContent).at_once());
    let spans = async |times: u32| {
        for _ in 0..times {
            send(&layer, &providers, PlainRequest::new()).await.unwrap();
            advance(secs(1)).await;
        }
        counted(providers.calls())
    };
    providers.set("a", after(secs(4), Action::Answer));
    providers.set("b", after(std::time::Duration::from_millis(200), Action::Answer));
    let counts = spans(60).await;
    assert!(counts["b"] > 50, "{counts:?}");
    assert!(counts["a"] > 0, "nobody starves: {counts:?}");
    providers.set("a", after(std::time::Duration::from_millis(100), Action::Answer));
    spans(120).await;
    let counts = spans(60).await;
    assert!(counts["a"] > 40, "it is three times as heavy and as fast: {counts:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever is equal to what: a call asks each once and in the order of the groups.
    #[test]
    fn groups_keep_their_order(equal in prop::collection::vec(any::<bool>(), 1..7), seed: u64) {
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        let specs = names.iter().zip(&equal).map(|(name, equal)| {
            let spec = TargetSpec::new(*name);
            if *equal { spec.as_equal() } else { spec }
        });
        let group_of = |name: &str| {
            let at = names.iter().position(|one| *one == name).unwrap();
            equal[..=at].iter().skip(1).filter(|equal| !**equal).count()
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time().start_paused(true).build().unwrap();
        let calls = runtime.block_on(async {
            let providers = Providers::new();
            providers.set_all(&names, &fail(Reason::ServerError));
            let layer = CooldownFailoverLayer::new(chain(specs))
                .with_when_exhausted(steadfast_failover::WhenExhausted::Fail)
                .with_seed(seed)
                .at_once();
            let _failed = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
            providers.calls()
        });
        let groups: Vec<_> = calls.iter().map(|name| group_of(name)).collect();
        prop_assert!(groups.is_sorted(), "{:?}", calls);
        prop_assert_eq!(counted(calls).len(), equal.len());
    }
}
