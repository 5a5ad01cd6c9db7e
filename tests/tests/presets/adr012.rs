//! `adr-012`.

use std::time::Duration;

use steadfast::{
    Preset, Reason, Stack, Target,
    failover::Chain,
    sim::{ErrorKind, Fault, FaultPlan, Model, PlanRule, SimProvider},
};
use steadfast_tests::harness;
use tokio::time::advance;

use crate::{World, always, chain, error, fine, hinted, request, secs, sims, status};

const PRESET: Preset = Preset::Adr012;

#[tokio::test(start_paused = true)]
async fn what_passes_is_tried_three_times_and_opens_the_providers_breaker() {
    for (name, fault, rest) in [
        ("429", status(429, "slow down"), 60),
        ("408", status(408, "late"), 30),
        ("503", status(503, "not now"), 60),
        ("500", status(500, "oops"), 60),
        ("504", status(504, "late"), 60),
        ("529", status(529, "not now"), 60),
        ("507", status(507, "full"), 60),
        ("refused", Fault::Refused, 60),
    ] {
        let world = World::new(PRESET, [always(fault), fine()]);
        world.ask().await.answer();
        assert_eq!(world.waits(0), [1_000, 2_000], "{name}");
        assert_eq!(world.counts(), [3, 1], "{name}");
        assert_eq!(world.rest(0), Some(secs(rest - 3)), "{name}: since the first failure");
        // It stays open for everybody and every model.
        world.set(0, fine());
        world.ask().await.answer();
        assert_eq!(world.counts(), [3, 2], "{name}");
        // The next call after the probe time is the probe; one success closes.
        advance(secs(rest) - secs(3) - secs(30).min(secs(rest) / 2)).await;
        world.ask().await.answer();
        assert_eq!((world.counts(), world.rest(0)), (vec![4, 2], None), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hint_is_the_rest_and_a_failed_probe_the_same_again() {
    let world = World::new(PRESET, [always(hinted(429, 90)), fine()]);
    world.ask().await.answer();
    assert_eq!(world.rest(0), Some(secs(90)));
    let world = World::new(PRESET, [always(status(503, "not now")), fine()]);
    world.ask().await.answer();
    assert_eq!(world.rest(0), Some(secs(57)), "since its first failure");
    for _ in 0..4 {
        advance(secs(58)).await;
        world.ask().await.answer();
        assert_eq!(world.rest(0), Some(secs(60)), "no longer each time");
    }
}

#[tokio::test(start_paused = true)]
async fn permanent_failures_leave_the_provider_at_once_and_without_end() {
    for (name, fault) in [
        ("401", status(401, "no")),
        ("402", status(402, "pay")),
        ("404", error(ErrorKind::ModelNotFound)),
    ] {
        let world = World::new(PRESET, [always(fault.clone()), fine()]);
        world.ask().await.answer();
        assert_eq!(world.counts(), [1, 1], "{name}");
        world.set(0, fine());
        assert!(world.handles.failover.reset(&Target::new("anthropic")));
        world.ask().await.answer();
        assert_eq!(world.counts(), [2, 1], "{name}: nothing else keeps it from being asked");

        let world = World::new(PRESET, [always(fault), fine()]);
        world.ask().await.answer();
        world.set(0, fine());
        for days in [1, 30, 365] {
            advance(secs(days * 24 * 3_600)).await;
            world.ask().await.answer();
            assert_eq!(world.counts()[0], 1, "{name} after {days} days");
        }
        assert!(world.handles.failover.reset(&Target::new("anthropic")));
        world.ask().await.answer();
        assert_eq!(world.counts()[0], 2, "{name}: until it is reset");
    }
}

/// Also where the breaker takes more than one failure of the others.
#[tokio::test(start_paused = true)]
async fn permanent_failures_open_at_any_threshold() {
    let of = |fault: Fault| {
        let mut policies = PRESET.policies();
        policies.failover.rest_after = 5;
        // Each call is one failure.
        policies.retry.retries = 0;
        let sims = sims([always(fault), fine()], |_, provider| provider);
        World::of(&Stack::new(chain(&sims)).with_policies(&policies).unwrap(), sims)
    };
    let world = of(status(503, "not now"));
    for call in 1..=5 {
        // Of a caller each: what fails for one alone rests for that one.
        let mut request = request();
        request.context = std::mem::take(&mut request.context).with_tenant(format!("{call}"));
        world.send(request).await.answer();
        assert_eq!((world.counts()[0], world.anything_rests()), (call, call == 5));
    }
    for (name, fault) in [
        ("401", status(401, "no")),
        ("402", status(402, "pay")),
        ("404", error(ErrorKind::ModelNotFound)),
    ] {
        let world = of(fault);
        for _ in 0..3 {
            world.ask().await.answer();
            advance(secs(24 * 3_600)).await;
        }
        assert_eq!(world.counts()[0], 1, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_unknown_goes_to_the_caller_and_changes_nothing() {
    for fault in [
        status(400, "what?"),
        status(403, "not you"),
        status(409, "conflict"),
        status(418, "teapot"),
        error(ErrorKind::ContextOverflow),
    ] {
        let world = World::new(PRESET, [always(fault.clone()), fine()]);
        let _failure = world.ask().await.failure.unwrap();
        assert_eq!(world.counts(), [1, 0], "{fault:?}");
        assert!(!world.anything_rests(), "{fault:?}");
        let _failure = world.ask().await.failure.unwrap();
        assert_eq!(world.counts(), [2, 0], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_in_the_text_is_found() {
    let page = |text: &str| {
        Fault::Status(steadfast::sim::RawResponse {
            status: 200,
            headers: [("content-type".to_owned(), "text/plain".to_owned())].into(),
            body: text.to_owned(),
        })
    };
    let world =
        World::new(PRESET, [always(page("upstream error: HTTP 503 Service Unavailable")), fine()]);
    world.ask().await.answer();
    assert_eq!(world.counts(), [3, 1]);
    assert!(world.rest(0).is_some());
}

/// Two providers, each with two smaller models.
fn with_maps(plans: [FaultPlan; 2]) -> (Chain, Vec<SimProvider>) {
    let sims = sims(plans, |_, provider| {
        let model = |name| Model::new(name, 128_000, 16_000);
        provider.with_model(model("small")).with_model(model("tiny"))
    });
    let targets =
        sims.iter().map(|sim| harness::target(sim).with_downgrade("*", ["small", "tiny"]));
    (Chain::new(targets).unwrap(), sims)
}

fn models(world: &World, position: usize) -> Vec<String> {
    world.asked(position).into_iter().map(|entry| entry.model).collect()
}

#[tokio::test(start_paused = true)]
async fn three_attempts_then_each_cheaper_model_once_then_the_next_provider() {
    for fault in [status(503, "not now"), status(429, "slow down"), status(500, "oops")] {
        let (chain, sims) = with_maps([always(fault.clone()), always(fault)]);
        let world = World::of(&Stack::new(chain).preset(PRESET), sims);
        let failure = world.ask().await.failure.unwrap();
        let (first, second) = ("claude-sonnet-4-5", "gpt-4o");
        assert_eq!(models(&world, 0), [first, first, first, "small", "tiny"]);
        assert_eq!(models(&world, 1), [second, second, second, "small", "tiny"]);
        // 1,000 x 2^(retry - 1 + index).
        assert_eq!(world.waits(0), [1_000, 2_000, 0, 0]);
        assert_eq!(world.waits(1), [2_000, 4_000, 0, 0]);

        // The last word has the category of each, and the newest as its own.
        assert_eq!(failure.attempts(), 10);
        let tried: Vec<_> = failure.trail().iter().map(|attempt| attempt.target.clone()).collect();
        for (provider, model) in [("anthropic", "tiny"), ("openai", second), ("openai", "tiny")] {
            let found = tried
                .iter()
                .flatten()
                .any(|target| target.provider() == provider && target.model() == Some(model));
            assert!(found, "{provider}/{model} in {tried:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_model_goes_through_the_map_first() {
    let mut gone = PlanRule::new(error(ErrorKind::ModelNotFound));
    gone = gone.model("claude-*");
    let (chain, sims) = with_maps([FaultPlan::none().rule(gone), fine()]);
    let world = World::of(&Stack::new(chain).preset(PRESET), sims);
    world.ask().await.answer();
    assert_eq!(models(&world, 0), ["claude-sonnet-4-5", "small"]);
    assert_eq!(world.counts(), [2, 0]);
}

#[tokio::test(start_paused = true)]
async fn the_last_word_has_the_newest_category() {
    let world = World::new(PRESET, [always(status(503, "not now")), always(status(401, "no"))]);
    let failure = world.ask().await.failure.unwrap();
    assert_eq!(failure.because(), Some(Reason::Auth), "{failure}");
    let categories: Vec<_> = failure.trail().iter().map(|attempt| attempt.reason).collect();
    assert_eq!(categories, [Reason::Overloaded, Reason::Auth]);
}

#[tokio::test(start_paused = true)]
async fn streams_go_the_same_way() {
    let world = World::new(PRESET, [always(status(503, "not now")), fine()]);
    world.send(request().streaming()).await.answer();
    assert_eq!(world.waits(0), [1_000, 2_000]);
    assert_eq!(world.counts(), [3, 1]);
    assert_eq!(world.rest(0), Some(Duration::from_secs(57)));
}
