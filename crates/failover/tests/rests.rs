//! When a target rests, for whom and for how long, by the defaults.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use std::{future::Future, pin::Pin, time::Duration};

use steadfast_core::{AtOnce, CallContext, Failure, Reason};
use steadfast_failover::{Cooldown, CooldownFailoverLayer, OneChain, TargetSpec};
use support::*;
use tokio::time::{Instant, advance};
use tokio_test::task::{self, Spawn};

type Failover = CooldownFailoverLayer<OneChain, AtOnce>;
type Started<'a> = Spawn<Pin<Box<dyn Future<Output = Result<String, Failure>> + 'a>>>;

fn cooldown(layer: &Failover, name: &str) -> Option<Cooldown> {
    layer.handle().snapshot().get(&target(name))?.cooling
}

/// How long `name` cools from now on.
fn left(layer: &Failover, name: &str) -> Option<Duration> {
    Some(cooldown(layer, name)?.until - Instant::now())
}

/// The targets that the call asks.
async fn ask(layer: &Failover, providers: &Providers, request: PlainRequest) -> Vec<String> {
    providers.calls();
    drop(send(layer, providers, request).await);
    providers.calls()
}

/// A call under way at `a`, which does `action`.
fn start<'a>(layer: &'a Failover, providers: &'a Providers, action: Action) -> Started<'a> {
    providers.set("a", action);
    let future: Pin<Box<dyn Future<Output = _>>> =
        Box::pin(send(layer, providers, PlainRequest::new()));
    let mut call = task::spawn(future);
    assert!(call.poll().is_pending());
    call
}

#[tokio::test(start_paused = true)]
async fn the_second_failure_of_a_row_rests_a_target_for_two_seconds() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    providers.set("a", fail(Reason::Network));
    assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["a", "b"]);
    assert_eq!(cooldown(&layer, "a"), None, "one is an accident");
    let request = PlainRequest::new();
    let log = request.log();
    assert_eq!(ask(&layer, &providers, request).await, ["a", "b"]);
    assert!(log.to_string().contains("failover.cooled a network 2000ms"), "{log}");
    let rest = cooldown(&layer, "a").unwrap();
    assert_eq!((rest.until - Instant::now(), rest.reason), (secs(2), Reason::Network));
    assert!(!rest.hinted && !rest.refuses);
    let request = PlainRequest::new();
    let log = request.log();
    assert_eq!(ask(&layer, &providers, request).await, ["b"]);
    assert!(log.to_string().contains("failover.skipped a network"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn a_success_between_two_failures_breaks_the_row() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    for _ in 0..10 {
        providers.set("a", fail(Reason::ServerError));
        assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["a", "b"]);
        providers.repair("a");
        assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["a"]);
    }
    assert_eq!(cooldown(&layer, "a"), None);
}

#[tokio::test(start_paused = true)]
async fn a_call_under_way_stands_between_two_failures() {
    for (end, rests) in [(fail(Reason::Network), true), (Action::Answer, false)] {
        let (layer, providers) = (abc().at_once(), Providers::new());
        let first = start(&layer, &providers, after(secs(1), fail(Reason::Network)));
        let second = start(&layer, &providers, after(secs(5), end));
        let third = start(&layer, &providers, after(secs(1), fail(Reason::Network)));
        assert_eq!((first.await.unwrap(), third.await.unwrap()), ("b".into(), "b".into()));
        assert_eq!(cooldown(&layer, "a"), None, "the second is under way");
        second.await.unwrap();
        assert_eq!(cooldown(&layer, "a").is_some(), rests);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_from_before_the_last_success_is_of_no_row() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    let early = start(&layer, &providers, after(secs(5), fail(Reason::Network)));
    providers.repair("a");
    assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["a"]);
    assert_eq!(early.await.unwrap(), "b");
    providers.set("a", fail(Reason::Network));
    assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["a", "b"]);
    assert_eq!(cooldown(&layer, "a"), None);
}

#[tokio::test(start_paused = true)]
async fn a_caller_alone_rests_a_target_for_itself_alone() {
    let session = |n: u64| PlainRequest { prompt: Some(n), ..PlainRequest::session("s") };
    let prompt = |_| PlainRequest::prompt(7);
    let loops = |n: u64| {
        let context = CallContext::recording().with_session(n.to_string());
        PlainRequest { context, ..PlainRequest::prompt(7) }
    };
    type Caller<'a> = &'a dyn Fn(u64) -> PlainRequest;
    let callers: [(&str, Caller<'_>); 3] =
        [("a session", &session), ("a prompt", &prompt), ("new sessions with a prompt", &loops)];
    for (who, caller) in callers {
        // Without affinities, which would keep a session at `b`.
        let (layer, providers) = (abc().with_sticky(secs(0)).at_once(), Providers::new());
        providers.set("a", fail(Reason::ServerError));
        for n in 0..2 {
            assert_eq!(ask(&layer, &providers, caller(n)).await, ["a", "b"], "{who}");
        }
        assert_eq!(ask(&layer, &providers, caller(2)).await, ["b"], "{who}");
        assert_eq!(cooldown(&layer, "a"), None, "{who}: for nobody else");
        providers.repair("a");
        assert_eq!(ask(&layer, &providers, PlainRequest::prompt(99)).await, ["a"], "{who}");
        // Its rests grow as those of all do.
        providers.set("a", fail(Reason::ServerError));
        advance(secs(2)).await;
        assert_eq!(ask(&layer, &providers, caller(3)).await, ["a", "b"], "{who}");
        advance(Duration::from_millis(2_999)).await;
        assert_eq!(ask(&layer, &providers, caller(4)).await, ["b"], "{who}");
        advance(Duration::from_millis(1)).await;
        assert_eq!(ask(&layer, &providers, caller(5)).await, ["a", "b"], "{who}");
        assert_eq!(cooldown(&layer, "a"), None, "{who}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_of_two_callers_rest_a_target_for_everybody() {
    for before in 1..3 {
        let (layer, providers) = (abc().at_once(), Providers::new());
        providers.set("a", fail(Reason::ServerError));
        for _ in 0..before {
            assert_eq!(ask(&layer, &providers, PlainRequest::prompt(7)).await, ["a", "b"]);
        }
        assert_eq!(cooldown(&layer, "a"), None);
        assert_eq!(ask(&layer, &providers, PlainRequest::prompt(8)).await, ["a", "b"]);
        assert_eq!(left(&layer, "a"), Some(secs(2)));
        assert_eq!(ask(&layer, &providers, PlainRequest::prompt(9)).await, ["b"]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_rests_for_one_caller_is_asked_by_it_when_nobody_else_answers() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    providers.set("a", fail(Reason::ServerError));
    for _ in 0..2 {
        ask(&layer, &providers, PlainRequest::prompt(7)).await;
    }
    providers.repair("a").set_all(&["b", "c"], &fail(Reason::ServerError));
    assert_eq!(ask(&layer, &providers, PlainRequest::prompt(7)).await, ["b", "c", "a"]);
}

#[tokio::test(start_paused = true)]
async fn a_rest_grows_with_each_failed_probe_up_to_the_reasons_cooldown() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    rest(&layer, &providers, "a").await;
    providers.set("a", fail(Reason::Network));
    let mut rests = Vec::new();
    for _ in 0..9 {
        let rest = cooldown(&layer, "a").unwrap();
        let whole = rest.until - Instant::now();
        rests.push(whole.as_millis());
        assert_eq!(rest.probe_from - Instant::now(), whole / 2, "an early probe at its half");
        advance(whole / 2 - Duration::from_millis(1)).await;
        assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["b"]);
        advance(Duration::from_millis(1)).await;
        assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["a", "b"]);
    }
    assert_eq!(rests, [2_000, 3_000, 4_500, 6_750, 10_125, 15_187, 22_781, 30_000, 30_000]);
    // Of a long rest the last 30 s.
    providers.set("a", fail(Reason::ServerError));
    for _ in 0..6 {
        advance(left(&layer, "a").unwrap()).await;
        ask(&layer, &providers, PlainRequest::new()).await;
    }
    let longest = cooldown(&layer, "a").unwrap();
    assert_eq!(longest.until - Instant::now(), secs(60));
    assert_eq!(longest.until - longest.probe_from, secs(30));
}

#[tokio::test(start_paused = true)]
async fn any_success_ends_a_rest() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    rest(&layer, &providers, "a").await;
    // Not a probe: it is asked because the others fail.
    providers.repair("a").set_all(&["b", "c"], &fail(Reason::Network));
    let request = PlainRequest::new();
    let log = request.log();
    assert_eq!(ask(&layer, &providers, request).await, ["b", "c", "a"]);
    let log = log.to_string();
    assert!(log.contains("failover.insisted a server_error"), "{log}");
    assert!(log.contains("failover.recovered a"), "{log}");
    assert_eq!(cooldown(&layer, "a"), None);
    assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn resting_targets_are_asked_last_and_the_soonest_back_first() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    rest(&layer, &providers, "a").await;
    advance(Duration::from_millis(500)).await;
    rest(&layer, &providers, "b").await;
    assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["c"]);
    let all = fail(Reason::ServerError);
    providers.repair("b").set("c", all);
    assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["c", "a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_key_an_unpaid_bill_and_a_missing_model_are_refused_at_once() {
    let permanent = fail_with(|| Failure::new(Reason::ServerError, "gone").with_permanent(true));
    for (action, key, wait) in [
        (fail(Reason::Auth), "a#k", 600),
        (fail(Reason::Billing), "a#k", 1_800),
        (fail(Reason::ModelNotFound), "a/m", 3_600),
        (permanent, "a", 3_600),
    ] {
        let spec = TargetSpec::new("a").with_credential("k");
        let chain = chain([spec, TargetSpec::new("b")]);
        let (layer, providers) = (CooldownFailoverLayer::new(chain).at_once(), Providers::new());
        providers.set("a", action);
        let model = || PlainRequest::model("m");
        assert_eq!(ask(&layer, &providers, model()).await, ["a/m#k", "b/m"], "{key}");
        let rest = cooldown(&layer, key).unwrap();
        assert_eq!((rest.until - Instant::now(), rest.refuses), (secs(wait), true), "{key}");
        // It is not asked even when nobody else answers.
        providers.repair("a").set("b", fail(Reason::Format));
        assert_eq!(ask(&layer, &providers, model()).await, ["b/m"], "{key}");
        advance(secs(wait - 30)).await;
        assert_eq!(ask(&layer, &providers, model()).await, ["a/m#k"], "{key}: a probe");
        assert_eq!(cooldown(&layer, key), None, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_has_answered_lately_is_refused_on_a_second_witness_alone() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    ask(&layer, &providers, PlainRequest::new()).await;
    advance(secs(599)).await;
    providers.set("a", fail(Reason::Auth));
    assert_eq!(ask(&layer, &providers, PlainRequest::prompt(1)).await, ["a", "b"]);
    assert_eq!(cooldown(&layer, "a"), None, "one caller's word");
    assert_eq!(ask(&layer, &providers, PlainRequest::prompt(1)).await, ["b"], "that goes for it");
    assert_eq!(ask(&layer, &providers, PlainRequest::prompt(2)).await, ["a", "b"]);
    assert!(cooldown(&layer, "a").unwrap().refuses);
    assert_eq!(ask(&layer, &providers, PlainRequest::prompt(3)).await, ["b"]);

    // Nobody vouches for one that has not answered for ten minutes.
    layer.handle().reset_all();
    providers.repair("a");
    ask(&layer, &providers, PlainRequest::new()).await;
    advance(secs(600)).await;
    providers.set("a", fail(Reason::Auth));
    ask(&layer, &providers, PlainRequest::prompt(1)).await;
    assert!(cooldown(&layer, "a").unwrap().refuses);
}

#[tokio::test(start_paused = true)]
async fn a_smaller_model_stands_in_for_the_caller_who_misses_the_other() {
    let spec = TargetSpec::new("a").with_downgrade("big", ["small"]);
    let layer = CooldownFailoverLayer::new(chain([spec])).at_once();
    let providers = Providers::new();
    let caller = |prompt| PlainRequest { prompt: Some(prompt), ..PlainRequest::model("big") };
    ask(&layer, &providers, caller(1)).await;
    // It has answered lately, so one caller's word is not enough for the others.
    providers.set("a/big", fail(Reason::ModelNotFound));
    assert_eq!(ask(&layer, &providers, caller(1)).await, ["a/big", "a/small"]);
    assert_eq!(ask(&layer, &providers, caller(1)).await, ["a/small"]);
    assert_eq!(ask(&layer, &providers, caller(2)).await, ["a/big", "a/small"]);
    assert_eq!(ask(&layer, &providers, caller(3)).await, ["a/small"]);
}

#[tokio::test(start_paused = true)]
async fn a_reset_key_is_not_trusted_for_what_the_old_one_did() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    ask(&layer, &providers, PlainRequest::new()).await;
    layer.handle().reset(&target("a"));
    providers.set("a", fail(Reason::Auth));
    ask(&layer, &providers, PlainRequest::prompt(1)).await;
    assert!(cooldown(&layer, "a").unwrap().refuses);
}

#[tokio::test(start_paused = true)]
async fn what_refuses_is_not_closed_to_others_while_its_probe_is_slow() {
    // An operator has left it alone for a while, which is over.
    let layer = CooldownFailoverLayer::new(chain(["a"])).at_once();
    let providers = Providers::new();
    layer.handle().cool(&target("a"), secs(30));
    advance(secs(30)).await;
    let probe = start(&layer, &providers, after(secs(60), Action::Answer));
    providers.repair("a");
    assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["a"]);
    assert_eq!(probe.await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_target_that_mostly_fails_is_asked_after_the_others() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    // Two of three calls fail; each third one ends the rest.
    for _ in 0..2 {
        rest(&layer, &providers, "a").await;
        advance(secs(1)).await;
        providers.repair("a");
        assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["a"], "a probe");
    }
    providers.set("a", fail(Reason::ServerError));
    assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["a", "b"]);
    assert_eq!(cooldown(&layer, "a"), None);
    providers.repair("a");
    assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["b"], "5 of 7 failed");
    // It is not refused, and comes before what rests.
    rest(&layer, &providers, "b").await;
    providers.set("c", fail(Reason::ServerError));
    assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["c", "a"]);
    // A minute later nothing of it counts any more.
    providers.repair("b").repair("c");
    advance(secs(61)).await;
    assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn the_share_that_fails_is_of_all_attempts_of_the_last_minute() {
    for (answers, behind) in [(0, true), (1, false)] {
        let (layer, providers) = (abc().at_once(), Providers::new());
        for _ in 0..answers {
            ask(&layer, &providers, PlainRequest::new()).await;
        }
        advance(secs(30)).await;
        providers.set("a", Action::Attempts(vec![Reason::ServerError; 3], None));
        assert_eq!(ask(&layer, &providers, PlainRequest::new()).await, ["a", "b"]);
        let next = ask(&layer, &providers, PlainRequest::new()).await;
        assert_eq!(next[0] == "b", behind, "3 of {} failed", answers + 3);
    }
}

#[tokio::test(start_paused = true)]
async fn the_second_request_to_wait_rests_the_target_for_others() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    let model = || PlainRequest::model("m");
    providers.set("a", limited(90));
    assert_eq!(ask(&layer, &providers, model()).await, ["a/m", "b/m"]);
    assert_eq!(ask(&layer, &providers, model()).await, ["a/m", "b/m"], "one binds its call alone");
    let rest = cooldown(&layer, "a/m").unwrap();
    assert_eq!((rest.until - Instant::now(), rest.hinted, rest.refuses), (secs(90), true, false));
    // Exactly as long as it has asked for, without an early probe.
    providers.repair("a");
    advance(Duration::from_millis(89_999)).await;
    assert_eq!(ask(&layer, &providers, model()).await, ["b/m"]);
    assert_eq!(ask(&layer, &providers, PlainRequest::model("n")).await, ["a/n"]);
    advance(Duration::from_millis(1)).await;
    assert_eq!(ask(&layer, &providers, model()).await, ["a/m"]);
    assert_eq!(cooldown(&layer, "a/m"), None);
}

#[tokio::test(start_paused = true)]
async fn another_model_of_a_provider_that_is_down_is_not_asked_first() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    providers.set("a", fail(Reason::ServerError));
    assert_eq!(ask(&layer, &providers, PlainRequest::model("m")).await, ["a/m", "b/m"]);
    assert_eq!(ask(&layer, &providers, PlainRequest::model("n")).await, ["a/n", "b/n"]);
    assert_eq!(ask(&layer, &providers, PlainRequest::model("o")).await, ["b/o"]);
    // An overload is one model's.
    layer.handle().reset_all();
    providers.set("a", fail(Reason::Overloaded));
    for _ in 0..2 {
        ask(&layer, &providers, PlainRequest::model("m")).await;
    }
    assert_eq!(ask(&layer, &providers, PlainRequest::model("m")).await, ["b/m"]);
    assert_eq!(ask(&layer, &providers, PlainRequest::model("o")).await, ["a/o", "b/o"]);
}

#[tokio::test(start_paused = true)]
async fn every_failure_may_rest_its_target_for_the_whole_cooldown() {
    let layer = abc().tune(|policy| (policy.rest_after, policy.first_rest) = (1, None)).at_once();
    let providers = Providers::new();
    providers.set("a", fail(Reason::ServerError));
    assert_eq!(ask(&layer, &providers, PlainRequest::prompt(1)).await, ["a", "b"]);
    assert_eq!(left(&layer, "a"), Some(secs(60)));
}
