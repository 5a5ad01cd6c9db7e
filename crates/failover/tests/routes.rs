//! Where a call goes after each failure, and what cools.

mod support;

use http::StatusCode;
use steadfast_core::{
    Call, CallContext, Failover, Failure, Needs, Reason, Scope, Target, TimeLimit, Window,
};
use steadfast_failover::{
    Capabilities, Chain, ChooseChain, CooldownFailoverLayer, OneChain, Status, TargetSpec,
};
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
async fn every_reason_takes_its_route() {
    let (one, both, home) = ("a/big#1", vec!["a/big#1", "a/big#2", "b/other"], None);
    let next = vec![one, "b/other"];
    let stay = vec![one];
    // Everything at `a` fails for the reason; where the call went, and what cooled first.
    for (reason, route, cooled) in [
        (Reason::Auth, both.clone(), Some("a#1")),
        (Reason::Billing, both.clone(), Some("a#1")),
        (Reason::RateLimit, both, Some("a/big#1")),
        (Reason::Overloaded, next.clone(), Some("a/big")),
        (Reason::ServerError, next.clone(), Some("a")),
        (Reason::Timeout, next.clone(), Some("a")),
        (Reason::Network, next.clone(), Some("a")),
        (Reason::Unknown, next.clone(), Some("a")),
        (Reason::ModelNotFound, vec![one, "a/small#1", "b/other"], Some("a/big")),
        (Reason::Unsupported, next, home),
        (Reason::CircuitOpen, vec![one, "a/big#2", "b/other"], home),
        (Reason::Budget, vec![one, "a/big#2", "b/other"], home),
        (Reason::ContextOverflow, stay.clone(), home),
        (Reason::OutputTruncated, stay.clone(), home),
        (Reason::ContentFilter, stay.clone(), home),
        (Reason::Format, stay.clone(), home),
        (Reason::PayloadTooLarge, stay.clone(), home),
        (Reason::Cancelled, stay.clone(), home),
        (Reason::Safety, stay, home),
    ] {
        let world = World::new();
        world.set("a", fail(reason));
        let layer = CooldownFailoverLayer::new(rich()).at_once();
        let handle = layer.handle();
        let answer = ask(&layer, &world, Ask::model("big")).await;
        assert_eq!(world.calls(), route, "{reason}");
        match answer {
            Ok(answer) => assert_eq!(answer, "b/other", "{reason}"),
            Err(failure) => {
                assert_eq!(failure.reason(), reason, "returned as it is");
                assert_eq!((failure.attempts(), failure.trail().len()), (1, 0), "{reason}");
                assert_eq!(failure.target().unwrap().to_string(), one, "it says where");
            }
        }
        let snapshot = handle.snapshot();
        match cooled {
            Some(key) => assert!(snapshot.get(&target(key)).unwrap().cooling.is_some(), "{reason}"),
            None => assert_eq!(snapshot.cooling().count(), 0, "{reason}"),
        }
        let spare = snapshot.get(&target("b")).unwrap();
        assert_eq!((spare.status, spare.errors), (Status::Healthy, 0), "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_model_does_not_take_its_provider_down() {
    let world = World::new();
    world.set("a/gone", fail(Reason::ModelNotFound));
    let layer = abc().at_once();
    assert_eq!(ask(&layer, &world, Ask::model("gone")).await.unwrap(), "b/gone");
    assert_eq!(ask(&layer, &world, Ask::model("here")).await.unwrap(), "a/here");
    assert_eq!(ask(&layer, &world, Ask::model("gone")).await.unwrap(), "b/gone");
    assert_eq!(world.calls(), ["a/gone", "b/gone", "a/here", "b/gone"], "asked once");

    // When requests name no model, which one is missing is not known.
    world.set("a", fail(Reason::ModelNotFound));
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "b");
    world.mend("a");
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn an_overload_of_one_model_leaves_the_others_alone() {
    let world = World::new();
    world.set("a/big", fail(Reason::Overloaded));
    let layer = abc().at_once();
    assert_eq!(ask(&layer, &world, Ask::model("big")).await.unwrap(), "b/big");
    assert_eq!(ask(&layer, &world, Ask::model("small")).await.unwrap(), "a/small");
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_is_remembered_and_ends_with_its_cooldown() {
    let world = World::new();
    world.set("a/big", fail(Reason::ModelNotFound));
    let layer = CooldownFailoverLayer::new(rich()).at_once();
    let first = Ask::model("big");
    let log = first.log();
    assert_eq!(ask(&layer, &world, first).await.unwrap(), "a/small#1");
    assert!(log.to_string().contains("failover.downgraded a/small#1 model_not_found"), "{log}");
    // The next one goes there straight away, and says why.
    let second = Ask::model("big");
    let log = second.log();
    assert_eq!(ask(&layer, &world, second).await.unwrap(), "a/small#1");
    assert!(log.to_string().contains("failover.downgraded a/small#1 model_not_found"), "{log}");
    assert_eq!(world.calls(), ["a/big#1", "a/small#1", "a/small#1"]);
    world.mend("a/big");
    tokio::time::advance(secs(3_601)).await;
    assert_eq!(ask(&layer, &world, Ask::model("big")).await.unwrap(), "a/big#1");
}

#[tokio::test(start_paused = true)]
async fn an_overload_is_downgraded_when_asked_or_when_the_retry_asks() {
    let plain = fail(Reason::Overloaded);
    let asks = fail_with(|| Failure::new(Reason::Overloaded, "").with_wants_fallback());
    let standard = CooldownFailoverLayer::new(rich()).at_once();
    for (layer, act, expected) in [
        (standard.clone(), plain.clone(), "b/other"),
        (standard.clone().with_downgrade_on_overload(), plain, "a/small#1"),
        (standard.tune(|_| {}), asks, "a/small#1"),
    ] {
        let world = World::new();
        world.set("a/big", act);
        assert_eq!(ask(&layer, &world, Ask::model("big")).await.unwrap(), expected);
        assert_eq!(world.calls(), ["a/big#1", expected], "the other key has no more capacity");
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
    let world = World::new();
    world.set("a", overflow(Window::default()));
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "large");
    world.set("a", overflow(Window { limit: None, requested: Some(300) }));
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "huge");
    // What the provider states counts more than what is configured.
    world.set("a", overflow(Window { limit: Some(500), requested: None }));
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "huge");
    world.calls();
    world.set("a", overflow(Window { limit: Some(5_000), requested: None }));
    let failure = ask(&layer, &world, Ask::new()).await.unwrap_err();
    assert_eq!(world.calls(), ["a"]);
    assert_eq!(failure.reason(), Reason::ContextOverflow, "so that it can be compacted");
    assert_eq!(layer.handle().snapshot().cooling().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_operators_table_changes_direction_and_scope() {
    let world = World::new();
    world.set("a", fail(Reason::ContentFilter));
    let layer = abc().with_failover_on(Reason::ContentFilter).at_once();
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "b");
    assert_eq!(layer.handle().snapshot().cooling().count(), 0, "still nobody's fault");

    let table = steadfast_core::RecoveryTable::default()
        .with_rule(Reason::ServerError, |rule| rule.scope = Scope::Model)
        .with_cooldown(Reason::ServerError, secs(7));
    let layer = abc().with_table(table).at_once();
    world.set("a", fail(Reason::ServerError));
    ask(&layer, &world, Ask::model("m")).await.unwrap();
    let snapshot = layer.handle().snapshot();
    let cooling: Vec<_> = snapshot
        .cooling()
        .map(|health| (health.target.to_string(), health.cooling_for(snapshot.at())))
        .collect();
    assert_eq!(cooling, [("a/m".to_owned(), Some(secs(7)))]);
}

#[tokio::test(start_paused = true)]
async fn forbidden_stays_forbidden_and_delivered_stays_delivered() {
    let acts: [fn() -> Failure; 4] = [
        || Failure::new(Reason::Safety, "loop"),
        || Failure::new(Reason::ServerError, "").with_failover(Failover::Forbidden),
        || Failure::new(Reason::ServerError, "").with_delivered(),
        || Failure::new(Reason::Timeout, "").with_time_limit(TimeLimit::Pipeline),
    ];
    for act in acts {
        let world = World::new();
        world.set("a", fail_with(act));
        let layer =
            abc().with_failover_on(Reason::Safety).with_failover_on(Reason::ServerError).at_once();
        let failure = ask(&layer, &world, Ask::new()).await.unwrap_err();
        assert_eq!(failure.reason(), act().reason());
        assert_eq!(world.calls(), ["a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn models_are_mapped_per_target_and_the_context_says_where() {
    let layer = CooldownFailoverLayer::new(chain([
        TargetSpec::new("a").with_max_output(8_000),
        TargetSpec::new("b").with_model("claude-sonnet-4", "gpt-4o").with_credential("main"),
        TargetSpec::new("c").with_model("*", "gemini-1.5-pro"),
    ]))
    .at_once();
    let world = World::new();
    world.set("a", fail_with(|| Failure::new(Reason::ServerError, "").with_attempts(3)));
    world.set("b", fail(Reason::ServerError));
    ask(&layer, &world, Ask::model("claude-sonnet-4")).await.unwrap();
    let seen = world.seen();
    let at: Vec<_> = seen.iter().map(|seen| seen.at.as_str()).collect();
    assert_eq!(at, ["a/claude-sonnet-4", "b/gpt-4o#main", "c/gemini-1.5-pro"]);
    let context = |n: usize| -> &CallContext { seen[n].ask.context() };
    let counts: Vec<_> = (0..3).map(|n| (context(n).attempts, context(n).alternatives)).collect();
    assert_eq!(counts, [(0, 2), (3, 1), (4, 0)], "attempts so far, providers left");
    let fitted = |n: usize| seen[n].ask.fitted.as_ref().unwrap();
    assert_eq!(fitted(0).max_output, Some(8_000));
    assert_eq!((0..3).map(|n| fitted(n).foreign_history).collect::<Vec<_>>(), [false, true, true]);
}

#[tokio::test(start_paused = true)]
async fn attempts_made_before_count_on() {
    let world = World::new();
    world.set("a", fail(Reason::ServerError));
    let mut request = Ask::new();
    request.context.attempts = 5;
    ask(&abc().at_once(), &world, request).await.unwrap();
    let attempts: Vec<_> = world.seen().iter().map(|seen| seen.ask.context.attempts).collect();
    assert_eq!(attempts, [5, 6]);
}

#[tokio::test(start_paused = true)]
async fn targets_that_can_not_are_passed_over() {
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
    let world = World::new();
    let mut image = Ask::new();
    image.needs.vision = true;
    assert_eq!(ask(&layer, &world, image.clone()).await.unwrap(), "small");
    image.needs.input_tokens = 5_000;
    let log = image.log();
    assert_eq!(ask(&layer, &world, image.clone()).await.unwrap(), "sees");
    assert!(log.to_string().contains("failover.skipped blind unsupported"), "{log}");
    // Nobody is left who can do both: the call says so, and asks nobody.
    world.calls();
    image.model = Some("text".to_owned());
    world.set("small", fail(Reason::ServerError));
    image.needs.input_tokens = 0;
    let failure = ask(&layer, &world, image).await.unwrap_err();
    assert_eq!(world.calls(), ["small/text"]);
    let why: Vec<_> = failure.trail().iter().map(ToString::to_string).collect();
    assert_eq!(
        why,
        [
            "blind/text: skipped, unsupported",
            "small/text: server_error",
            "sees/text: skipped, unsupported"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_fitted_is_passed_over_and_says_so() {
    let world = World::new();
    let request = Ask { unfit_for: Some("a"), ..Ask::new() };
    assert_eq!(ask(&abc().at_once(), &world, request.clone()).await.unwrap(), "b");
    assert_eq!(world.calls(), ["b"]);
    // It is no failure of the target, and costs no attempt.
    world.set("b", fail(Reason::Format));
    let failure = ask(&abc().at_once(), &world, request.clone()).await.unwrap_err();
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Format, 1));
    assert_eq!(failure.trail()[0].to_string(), "a: skipped, unsupported");
    // A lone target that does not fit: its own words.
    let lone = CooldownFailoverLayer::new(chain(["a"])).at_once();
    let failure = ask(&lone, &world, request).await.unwrap_err();
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Unsupported, 0));
    assert_eq!(failure.http_status(), StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn chains_are_chosen_by_request() {
    let layer = abc()
        .with_chain("vision", chain(["v"]))
        .with_chain("large", chain(["l"]))
        .with_chain_for(|ask: &Ask, needs: &Needs| match needs {
            _ if ask.model.as_deref() == Some("odd") => Some("no such chain"),
            Needs { vision: true, .. } => Some("vision"),
            needs => (needs.input_tokens > 100_000).then_some("large"),
        })
        .at_once();
    let world = World::new();
    let mut image = Ask::new();
    image.needs.vision = true;
    let mut large = Ask::new();
    large.needs.input_tokens = 200_000;
    for (request, expected) in
        [(Ask::new(), "a"), (image, "v"), (large, "l"), (Ask::model("odd"), "a/odd")]
    {
        assert_eq!(ask(&layer, &world, request).await.unwrap(), expected);
    }

    #[derive(Clone)]
    struct ByModel(String);
    impl ChooseChain<Ask> for ByModel {
        fn choose<'a>(&'a self, ask: &'a Ask, _: &Needs) -> Option<&'a str> {
            (ask.model.as_deref() == Some("x")).then_some(&*self.0)
        }
    }
    assert!(!ChooseChain::<Ask>::is_needed(&OneChain), "needs are told only where they matter");
    let layer =
        abc().with_chain("own", chain(["own"])).with_chooser(ByModel("own".to_owned())).at_once();
    assert_eq!(ask(&layer, &world, Ask::model("x")).await.unwrap(), "own/x");
}

#[tokio::test(start_paused = true)]
async fn a_health_is_shared_by_the_chains_of_a_layer() {
    let layer = abc()
        .with_chain("other", chain(["a", "d"]))
        .with_chain_for(|ask: &Ask, _: &Needs| ask.model.is_none().then_some("other"))
        .at_once();
    let world = World::new();
    world.set("a", fail(Reason::Network));
    ask(&layer, &world, Ask::model("m")).await.unwrap();
    world.calls();
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "d");
    assert_eq!(world.calls(), ["d"], "known from the other chain");
}

#[tokio::test(start_paused = true)]
async fn a_callers_mistake_comes_back_as_it_is_whoever_was_passed_over() {
    let world = World::new();
    let layer = abc().at_once();
    layer.handle().cool(&target("a"), secs(60));
    layer.handle().cool(&target("c"), secs(60));
    world.set("b", fail(Reason::Format));
    let failure = ask(&layer, &world, Ask::new()).await.unwrap_err();
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Format, 1));
    assert_eq!(world.calls(), ["b"]);
    let trail: Vec<_> = failure.trail().iter().map(ToString::to_string).collect();
    assert_eq!(trail, ["a: skipped, cooling", "b: format"], "`c` had no say");
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_names_its_own_target_keeps_it() {
    let world = World::new();
    world.set("a", fail_with(|| Failure::new(Reason::Format, "").with_target(Target::new("deep"))));
    let failure = ask(&abc().at_once(), &world, Ask::new()).await.unwrap_err();
    assert_eq!(failure.target().unwrap().to_string(), "deep");
}

#[tokio::test(start_paused = true)]
async fn with_one_or_two_of_three_down_everybody_is_answered() {
    let names = ["a", "b", "c"];
    let faults = Reason::ALL.into_iter().filter(|reason| {
        !matches!(reason.rule().failover, Failover::Never | Failover::Forbidden)
            && *reason != Reason::ContextOverflow
    });
    let mut acts: Vec<(String, Act)> =
        faults.map(|reason| (reason.to_string(), fail(reason))).collect();
    // A hang ends as our own stall limit below.
    let stall = || Failure::new(Reason::Timeout, "").with_time_limit(TimeLimit::Stall);
    acts.push(("hang".to_owned(), after(secs(5), fail_with(stall))));
    for (first, one) in &acts {
        for (second, other) in &acts {
            for (down, also) in [(0, 1), (1, 2), (2, 0), (0, 0), (1, 1), (2, 2)] {
                let world = World::new();
                world.set(names[down], one.clone());
                if also != down {
                    world.set(names[also], other.clone());
                }
                let layer = abc().at_once();
                for call in 0..3 {
                    let answer = ask(&layer, &world, Ask::model("m")).await;
                    let answer = answer.unwrap_or_else(|failure| {
                        panic!("{first} at {down}, {second} at {also}, call {call}: {failure}")
                    });
                    assert!(!answer.starts_with(names[down]) && !answer.starts_with(names[also]));
                }
            }
        }
    }
}
