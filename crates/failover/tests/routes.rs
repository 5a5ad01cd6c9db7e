//! The next target after each failure, and what cools.

mod support;

use http::StatusCode;
use steadfast_core::{
    Call, CallContext, Failover, Failure, Needs, Reason, RecoveryTable, Scope, Target, TimeLimit,
    Window,
};
use steadfast_failover::{
    Capabilities, Chain, ChooseChain, CooldownFailoverLayer, OneChain, Status, TargetSpec,
    WhenExhausted,
};
use steadfast_testkit::CapturedEvents;
use support::*;

/// `a` with two keys and a smaller model, and `b`.
fn rich() -> Chain {
    chain([
        TargetSpec::new("a")
            .with_credential("1")
            .with_credential("2")
            .with_downgrade("big", ["small"]),
        TargetSpec::new("b").with_model("*", "other"),
    ])
}

#[tokio::test(start_paused = true)]
async fn every_reason_has_its_route() {
    let (one, both, nothing) = ("a/big#1", vec!["a/big#1", "a/big#2", "b/other"], None);
    let next = vec![one, "b/other"];
    let end = vec![one];
    // `a` fails for the reason; the targets called, what the failure is counted for, and whether that cools
    // at once, or after the second call.
    for (reason, route, counted, at_once) in [
        (Reason::Auth, both.clone(), Some("a#1"), true),
        (Reason::Billing, both.clone(), Some("a#1"), true),
        (Reason::RateLimit, both, Some("a/big#1"), false),
        (Reason::Overloaded, next.clone(), Some("a/big"), false),
        (Reason::ServerError, next.clone(), Some("a"), false),
        (Reason::Timeout, next.clone(), Some("a"), false),
        (Reason::Network, next.clone(), Some("a"), false),
        (Reason::Unknown, next.clone(), Some("a"), false),
        (Reason::ModelNotFound, vec![one, "a/small#1", "b/other"], Some("a/big"), true),
        (Reason::Unsupported, next, nothing, false),
        (Reason::CircuitOpen, vec![one, "a/big#2", "b/other"], nothing, false),
        (Reason::Budget, vec![one, "a/big#2", "b/other"], nothing, false),
        (Reason::ContextOverflow, end.clone(), nothing, false),
        (Reason::OutputTruncated, end.clone(), nothing, false),
        (Reason::ContentFilter, end.clone(), nothing, false),
        (Reason::Format, end.clone(), nothing, false),
        (Reason::PayloadTooLarge, end.clone(), nothing, false),
        (Reason::Cancelled, end.clone(), nothing, false),
        (Reason::Safety, end, nothing, false),
    ] {
        let providers = Providers::new();
        providers.set("a", fail(reason));
        let layer = CooldownFailoverLayer::new(rich()).at_once();
        let handle = layer.handle();
        let answer = send(&layer, &providers, PlainRequest::model("big")).await;
        assert_eq!(providers.calls(), route, "{reason}");
        match answer {
            Ok(answer) => assert_eq!(answer, "b/other", "{reason}"),
            Err(failure) => {
                assert_eq!(failure.reason(), reason, "returned unchanged");
                assert_eq!((failure.attempts(), failure.trail().len()), (1, 0), "{reason}");
                assert_eq!(failure.target().unwrap().to_string(), one, "it has the target");
            }
        }
        let snapshot = handle.snapshot();
        if let Some(key) = counted {
            let health = snapshot.get(&target(key)).unwrap();
            assert_eq!((health.errors, health.cooling.is_some()), (1, at_once), "{reason}");
        }
        let spare = snapshot.get(&target("b")).unwrap();
        assert_eq!((spare.status, spare.errors), (Status::Healthy, 0), "{reason}");
        drop(send(&layer, &providers, PlainRequest::model("big")).await);
        let snapshot = handle.snapshot();
        match counted {
            Some(key) => assert!(snapshot.get(&target(key)).unwrap().cooling.is_some(), "{reason}"),
            None => assert_eq!(snapshot.cooling().count(), 0, "{reason}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_model_does_not_take_its_provider_down() {
    let providers = Providers::new();
    providers.set("a/gone", fail(Reason::ModelNotFound));
    let layer = abc().at_once();
    assert_eq!(send(&layer, &providers, PlainRequest::model("gone")).await.unwrap(), "b/gone");
    assert_eq!(send(&layer, &providers, PlainRequest::model("here")).await.unwrap(), "a/here");
    assert_eq!(send(&layer, &providers, PlainRequest::model("gone")).await.unwrap(), "b/gone");
    assert_eq!(providers.calls(), ["a/gone", "b/gone", "a/here", "b/gone"], "called once");

    // When requests name no model, which one is missing is not known.
    providers.set("a", fail(Reason::ModelNotFound));
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    providers.repair("a");
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn an_overload_of_one_model_does_not_cool_others() {
    let providers = Providers::new();
    providers.set("a/big", fail(Reason::Overloaded));
    let layer = abc().at_once();
    assert_eq!(send(&layer, &providers, PlainRequest::model("big")).await.unwrap(), "b/big");
    assert_eq!(send(&layer, &providers, PlainRequest::model("small")).await.unwrap(), "a/small");
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_is_remembered_and_ends_with_its_cooldown() {
    let providers = Providers::new();
    providers.set("a/big", fail(Reason::ModelNotFound));
    let layer = CooldownFailoverLayer::new(rich()).at_once();
    let first = PlainRequest::model("big");
    let log = first.log();
    assert_eq!(send(&layer, &providers, first).await.unwrap(), "a/small#1");
    assert!(log.to_string().contains("failover.downgraded a/small#1 model_not_found"), "{log}");
    // The next call goes there directly, and logs the reason.
    let second = PlainRequest::model("big");
    let log = second.log();
    assert_eq!(send(&layer, &providers, second).await.unwrap(), "a/small#1");
    assert!(log.to_string().contains("failover.downgraded a/small#1 model_not_found"), "{log}");
    assert_eq!(providers.calls(), ["a/big#1", "a/small#1", "a/small#1"]);
    providers.repair("a/big");
    tokio::time::advance(secs(3_601)).await;
    assert_eq!(send(&layer, &providers, PlainRequest::model("big")).await.unwrap(), "a/big#1");
}

/// Where cooling targets are never asked, a provider's smaller models are asked all the same after what the
/// call itself has just found out about the whole provider.
#[tokio::test(start_paused = true)]
async fn a_cooling_provider_is_asked_for_a_downgrade_only_in_the_round_that_made_it_cool() {
    let layer = |when_exhausted| {
        let spec = TargetSpec::new("a").with_downgrade("big", ["small"]);
        let table = RecoveryTable::default().with_rule(Reason::ModelNotFound, |rule| {
            rule.scope = Scope::Provider;
        });
        let layer = CooldownFailoverLayer::new(chain([spec, TargetSpec::new("b")]));
        layer.with_table(table).with_when_exhausted(when_exhausted).at_once()
    };
    let missing = || after(secs(1), fail(Reason::ModelNotFound));

    let (own, providers) = (layer(WhenExhausted::Fail), Providers::new());
    providers.set("a/big", missing());
    assert_eq!(send(&own, &providers, PlainRequest::model("big")).await.unwrap(), "a/small");

    // In another round it is as with any that cools.
    let (own, providers) = (layer(WhenExhausted::Wait(secs(60))), Providers::new());
    providers.set("a/big", missing()).set("a/small", fail(Reason::Network));
    providers.set("b", fail(Reason::Network));
    let mut call = tokio_test::task::spawn(send(&own, &providers, PlainRequest::model("big")));
    assert!(call.poll().is_pending());
    tokio::time::advance(secs(1)).await;
    assert!(call.poll().is_pending());
    assert_eq!(providers.calls(), ["a/big", "a/small", "b/big"]);
    providers.repair("b");
    assert_eq!(call.await.unwrap(), "b/big");
    assert_eq!(providers.calls(), ["b/big"]);
}

#[tokio::test(start_paused = true)]
async fn what_another_call_found_out_about_a_provider_rules_out_its_downgrades() {
    let spec = TargetSpec::new("a").with_downgrade("big", ["small"]);
    let layer = CooldownFailoverLayer::new(chain([spec, TargetSpec::new("b")]))
        .with_when_exhausted(WhenExhausted::Fail)
        .at_once();
    let providers = Providers::new();
    providers.set("a/big", after(secs(1), fail(Reason::ModelNotFound)));
    let mut call = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::model("big")));
    assert!(call.poll().is_pending());
    layer.handle().cool(&target("a"), secs(600));
    assert_eq!(call.await.unwrap(), "b/big");
    assert_eq!(providers.calls(), ["a/big", "b/big"]);
}

#[tokio::test(start_paused = true)]
async fn an_overload_is_downgraded_when_configured_or_when_the_retry_layer_asks() {
    let plain = fail(Reason::Overloaded);
    let asks = fail_with(|| Failure::new(Reason::Overloaded, "").with_wants_fallback());
    let standard = CooldownFailoverLayer::new(rich()).at_once();
    for (layer, action, expected) in [
        (standard.clone(), plain.clone(), "b/other"),
        (standard.clone().with_downgrade_on_overload(), plain, "a/small#1"),
        (standard.tune(|_| {}), asks, "a/small#1"),
    ] {
        let providers = Providers::new();
        providers.set("a/big", action);
        assert_eq!(send(&layer, &providers, PlainRequest::model("big")).await.unwrap(), expected);
        assert_eq!(providers.calls(), ["a/big#1", expected], "the other key has no more capacity");
    }
}

#[tokio::test(start_paused = true)]
async fn an_overflow_goes_to_a_window_known_to_be_larger_only() {
    let layer = CooldownFailoverLayer::new(chain([
        TargetSpec::new("a").with_window(100),
        TargetSpec::new("same").with_window(100),
        TargetSpec::new("unknown"),
        TargetSpec::new("large").with_window(200),
        TargetSpec::new("huge").with_window(1_000),
    ]))
    .at_once();
    let overflow =
        |window| fail_with(move || Failure::new(Reason::ContextOverflow, "").with_window(window));
    let providers = Providers::new();
    providers.set("a", overflow(Window::default()));
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "large");
    providers.set("a", overflow(Window { limit: None, requested: Some(300) }));
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "huge");
    // The provider's number has priority over the configured one.
    providers.set("a", overflow(Window { limit: Some(500), requested: None }));
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "huge");
    providers.calls();
    providers.set("a", overflow(Window { limit: Some(5_000), requested: None }));
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!(providers.calls(), ["a"]);
    assert_eq!(failure.reason(), Reason::ContextOverflow, "so that it can be compacted");
    assert_eq!(layer.handle().snapshot().cooling().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_operators_table_changes_direction_and_scope() {
    let providers = Providers::new();
    providers.set("a", fail(Reason::ContentFilter));
    let layer = abc().with_failover_on(Reason::ContentFilter).at_once();
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    assert_eq!(layer.handle().snapshot().cooling().count(), 0, "it counts against no target");

    let table = steadfast_core::RecoveryTable::default()
        .with_rule(Reason::ServerError, |rule| rule.scope = Scope::Model)
        .with_cooldown(Reason::ServerError, secs(7));
    let layer = abc().with_table(table).tune(|policy| policy.first_rest = None).at_once();
    providers.set("a", fail(Reason::ServerError));
    for _ in 0..2 {
        send(&layer, &providers, PlainRequest::model("m")).await.unwrap();
    }
    let snapshot = layer.handle().snapshot();
    let cooling: Vec<_> = snapshot
        .cooling()
        .map(|health| (health.target.to_string(), health.cooling_for(snapshot.at())))
        .collect();
    assert_eq!(cooling, [("a/m".to_owned(), Some(secs(7)))]);
}

#[tokio::test(start_paused = true)]
async fn forbidden_and_delivered_failures_are_not_failed_over() {
    let actions: [fn() -> Failure; 4] = [
        || Failure::new(Reason::Safety, "loop"),
        || Failure::new(Reason::ServerError, "").with_failover(Failover::Forbidden),
        || Failure::new(Reason::ServerError, "").with_delivered(),
        || Failure::new(Reason::Timeout, "").with_time_limit(TimeLimit::Pipeline),
    ];
    for action in actions {
        let providers = Providers::new();
        providers.set("a", fail_with(action));
        let layer =
            abc().with_failover_on(Reason::Safety).with_failover_on(Reason::ServerError).at_once();
        let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
        assert_eq!(failure.reason(), action().reason());
        assert_eq!(providers.calls(), ["a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn models_are_mapped_per_target_and_the_context_has_the_target() {
    let layer = CooldownFailoverLayer::new(chain([
        TargetSpec::new("a").with_max_output(8_000),
        TargetSpec::new("b").with_model("claude-sonnet-4", "gpt-4o").with_credential("main"),
        TargetSpec::new("c").with_model("*", "gemini-1.5-pro"),
    ]))
    .at_once();
    let providers = Providers::new();
    providers.set("a", fail_with(|| Failure::new(Reason::ServerError, "").with_attempts(3)));
    providers.set("b", fail(Reason::ServerError));
    send(&layer, &providers, PlainRequest::model("claude-sonnet-4")).await.unwrap();
    let received = providers.received();
    let at: Vec<_> = received.iter().map(|received| received.at.as_str()).collect();
    assert_eq!(at, ["a/claude-sonnet-4", "b/gpt-4o#main", "c/gemini-1.5-pro"]);
    let context = |n: usize| -> &CallContext { received[n].request.context() };
    let counts: Vec<_> = (0..3).map(|n| (context(n).attempts, context(n).alternatives)).collect();
    assert_eq!(counts, [(0, 2), (3, 2), (4, 2)], "attempts so far, other targets");
    let fitted = |n: usize| received[n].request.fitted.as_ref().unwrap();
    assert_eq!(fitted(0).can.max_output, Some(8_000));
    assert_eq!((0..3).map(|n| fitted(n).foreign_history).collect::<Vec<_>>(), [false, true, true]);
}

#[tokio::test(start_paused = true)]
async fn earlier_attempts_are_counted() {
    let providers = Providers::new();
    providers.set("a", fail(Reason::ServerError));
    let mut request = PlainRequest::new();
    request.context.attempts = 5;
    send(&abc().at_once(), &providers, request).await.unwrap();
    let attempts: Vec<_> =
        providers.received().iter().map(|received| received.request.context.attempts).collect();
    assert_eq!(attempts, [5, 6]);
}

#[tokio::test(start_paused = true)]
async fn targets_without_the_needed_capability_are_skipped() {
    let layer = CooldownFailoverLayer::new(chain([
        TargetSpec::new("blind").with_vision(false),
        TargetSpec::new("small").with_window(1_000),
        TargetSpec::new("sees").with_capabilities_of("text", {
            let mut can = Capabilities::default();
            can.vision = false;
            can
        }),
    ]))
    .at_once();
    let providers = Providers::new();
    let mut image = PlainRequest::new();
    image.needs.vision = true;
    assert_eq!(send(&layer, &providers, image.clone()).await.unwrap(), "small");
    image.needs.input_tokens = 5_000;
    let log = image.log();
    assert_eq!(send(&layer, &providers, image.clone()).await.unwrap(), "sees");
    assert!(log.to_string().contains("failover.skipped blind unsupported"), "{log}");
    // No target can do both: the call fails without calling one.
    providers.calls();
    image.model = Some("text".to_owned());
    providers.set("small", fail(Reason::Unsupported));
    image.needs.input_tokens = 0;
    let failure = send(&layer, &providers, image).await.unwrap_err();
    assert_eq!(providers.calls(), ["small/text"]);
    let why: Vec<_> = failure.trail().iter().map(ToString::to_string).collect();
    assert_eq!(
        why,
        [
            "blind/text: skipped, unsupported",
            "small/text: unsupported",
            "sees/text: skipped, unsupported"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_target_the_request_does_not_fit_is_skipped_with_a_reason() {
    let providers = Providers::new();
    let request = PlainRequest { unfit_for: Some("a"), ..PlainRequest::new() };
    assert_eq!(send(&abc().at_once(), &providers, request.clone()).await.unwrap(), "b");
    assert_eq!(providers.calls(), ["b"]);
    // It is no failure of the target, and costs no attempt.
    providers.set("b", fail(Reason::Format));
    let failure = send(&abc().at_once(), &providers, request.clone()).await.unwrap_err();
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Format, 1));
    assert_eq!(failure.trail()[0].to_string(), "a: skipped, unsupported");
    // A single target that does not fit: its own failure.
    let single = CooldownFailoverLayer::new(chain(["a"])).at_once();
    let failure = send(&single, &providers, request).await.unwrap_err();
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Unsupported, 0));
    assert_eq!(failure.http_status(), StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn chains_are_selected_by_request() {
    let layer = abc()
        .with_chain("vision", chain(["v"]))
        .with_chain("large", chain(["l"]))
        .with_chain_for(|_: &PlainRequest, needs: &Needs| match needs {
            Needs { vision: true, .. } => Some("vision"),
            needs => (needs.input_tokens > 100_000).then_some("large"),
        })
        .at_once();
    let providers = Providers::new();
    let mut image = PlainRequest::new();
    image.needs.vision = true;
    let mut large = PlainRequest::new();
    large.needs.input_tokens = 200_000;
    for (request, expected) in [(PlainRequest::new(), "a"), (image, "v"), (large, "l")] {
        assert_eq!(send(&layer, &providers, request).await.unwrap(), expected);
    }

    #[derive(Clone)]
    struct ByModel(String);
    impl ChooseChain<PlainRequest> for ByModel {
        fn choose<'a>(&'a self, request: &'a PlainRequest, _: &Needs) -> Option<&'a str> {
            (request.model.as_deref() == Some("x")).then_some(&*self.0)
        }
    }
    assert!(
        !ChooseChain::<PlainRequest>::is_needed(&OneChain),
        "needs are computed only when they matter"
    );
    let layer =
        abc().with_chain("own", chain(["own"])).with_chooser(ByModel("own".to_owned())).at_once();
    assert_eq!(send(&layer, &providers, PlainRequest::model("x")).await.unwrap(), "own/x");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_chain_is_the_default_one_and_is_reported() {
    let captured = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(captured.clone());
    let layer = abc()
        .with_chain("own", chain(["own"]))
        .with_chain_for(|_: &PlainRequest, _: &Needs| Some("no such chain"))
        .at_once();
    for _ in 0..2 {
        let answer = send(&layer, &Providers::new(), PlainRequest::model("m")).await;
        assert_eq!(answer.unwrap(), "a/m");
        assert_eq!(captured.take(), ["steadfast::failover::unknown_chain name=\"no such chain\""]);
    }
}

#[tokio::test(start_paused = true)]
async fn health_is_shared_by_the_chains_of_a_layer() {
    let layer = abc()
        .with_chain("other", chain(["a", "d"]))
        .with_chain_for(|request: &PlainRequest, _: &Needs| {
            request.model.is_none().then_some("other")
        })
        .at_once();
    let providers = Providers::new();
    providers.set("a", fail(Reason::Network));
    for _ in 0..2 {
        send(&layer, &providers, PlainRequest::model("m")).await.unwrap();
    }
    providers.calls();
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "d");
    assert_eq!(providers.calls(), ["d"], "known from the other chain");
}

#[tokio::test(start_paused = true)]
async fn a_callers_mistake_is_returned_even_when_targets_were_skipped() {
    let providers = Providers::new();
    let layer = abc().at_once();
    layer.handle().cool(&target("a"), secs(60));
    layer.handle().cool(&target("c"), secs(60));
    providers.set("b", fail(Reason::Format));
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Format, 1));
    assert_eq!(providers.calls(), ["b"]);
    let trail: Vec<_> = failure.trail().iter().map(ToString::to_string).collect();
    assert_eq!(trail, ["a: skipped, cooling", "b: format"], "`c` was not considered");
}

#[tokio::test(start_paused = true)]
async fn a_failure_with_a_target_keeps_it() {
    let providers = Providers::new();
    providers
        .set("a", fail_with(|| Failure::new(Reason::Format, "").with_target(Target::new("deep"))));
    let failure = send(&abc().at_once(), &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!(failure.target().unwrap().to_string(), "deep");
}

#[tokio::test(start_paused = true)]
async fn with_one_or_two_of_three_down_every_call_is_answered() {
    let names = ["a", "b", "c"];
    let faults = Reason::ALL.into_iter().filter(|reason| {
        !matches!(reason.rule().failover, Failover::Never | Failover::Forbidden)
            && *reason != Reason::ContextOverflow
    });
    let mut actions: Vec<(String, Action)> =
        faults.map(|reason| (reason.to_string(), fail(reason))).collect();
    // A hang ends with the failure of an inner stall limit.
    let stall = || Failure::new(Reason::Timeout, "").with_time_limit(TimeLimit::Stall);
    actions.push(("hang".to_owned(), after(secs(5), fail_with(stall))));
    for (first, one) in &actions {
        for (second, other) in &actions {
            for (down, also) in [(0, 1), (1, 2), (2, 0), (0, 0), (1, 1), (2, 2)] {
                let providers = Providers::new();
                providers.set(names[down], one.clone());
                if also != down {
                    providers.set(names[also], other.clone());
                }
                let layer = abc().at_once();
                for call in 0..3 {
                    let answer = send(&layer, &providers, PlainRequest::model("m")).await;
                    let answer = answer.unwrap_or_else(|failure| {
                        panic!("{first} at {down}, {second} at {also}, call {call}: {failure}")
                    });
                    assert!(!answer.starts_with(names[down]) && !answer.starts_with(names[also]));
                }
            }
        }
    }
}
