//! `comis`.

use steadfast::{
    Preset, Reason, Stack, TimeLimit,
    sim::{
        Answer, Drip, Fault, FaultPlan, FirstToken, How, PlanRule, SimProvider, SimProviderBuilder,
        Usage,
    },
};

use crate::{World, always, chain, request, secs, sims, status};

const PRESET: Preset = Preset::Comis;

/// A provider whose answers take their time: `bytes` each second.
fn slow(bytes: usize, rules: impl IntoIterator<Item = PlanRule>) -> Vec<SimProvider> {
    sims([dripping(bytes, rules)], |_, provider| provider.respond(|_| Some(long_answer())))
}

/// These faults, and answers of `bytes` each second.
fn dripping(bytes: usize, rules: impl IntoIterator<Item = PlanRule>) -> FaultPlan {
    let drip = Fault::Drip(Drip { bytes, every_ms: 1_000 });
    let plan = rules.into_iter().fold(FaultPlan::none(), FaultPlan::rule);
    plan.rule(PlanRule::new(drip))
}

fn long_answer() -> Answer {
    let words: Vec<_> = (0..2_000).map(|at| format!("word {at}")).collect();
    Answer::text(words.join(" ")).in_chunks_of(150)
}

#[tokio::test(start_paused = true)]
async fn a_prompt_may_be_silent_for_three_minutes() {
    for (how, took) in [(Fault::break_after(3, How::Stall), 180), (Fault::Hang, 180)] {
        let world = World::new(PRESET, [always(how)]);
        let got = world.send(request().streaming()).await;
        let failure = got.failure.unwrap();
        assert!(got.took >= secs(took), "{failure} after {:?}", got.took);
    }
    let late = |after_ms| Fault::FirstToken(FirstToken { after_ms, ping_every_ms: Some(5_000) });
    let world = World::new(PRESET, [always(late(179_000))]);
    let got = world.send(request().streaming()).await;
    got.answer();
    assert_eq!(got.took.as_secs(), 179);
}

#[tokio::test(start_paused = true)]
async fn a_first_call_may_stream_for_long_and_a_retry_one_minute_to_its_end() {
    let first = |sims: Vec<_>, preset: Option<Preset>| {
        let stack = Stack::new(chain(&sims)).without_resume();
        let stack = match preset {
            Some(preset) => Stack::new(chain(&sims)).preset(preset).without_resume(),
            None => stack,
        };
        World::of(&stack, sims)
    };
    // Some minutes.
    let answered = first(slow(6_000, []), Some(PRESET)).send(request().streaming()).await;
    answered.answer();
    let took = answered.took;
    assert!(took > secs(70) && took < secs(500), "{took:?}");
    let failing = || slow(6_000, [PlanRule::new(status(500, "oops")).nth(1)]);
    let got = first(failing(), Some(PRESET)).send(request().streaming()).await;
    let failure = got.failure.unwrap();
    assert_eq!(failure.time_limit(), Some(TimeLimit::Attempt), "{failure}");
    assert!(got.took < secs(70), "{:?}", got.took);
    // By default that limit ends with the first content.
    let got = first(failing(), None).send(request().streaming()).await;
    got.answer();
    assert!(got.took > secs(70), "{:?}", got.took);
}

/// Another provider is asked for less time, too: to the end of its answer, whatever of it has come.
#[tokio::test(start_paused = true)]
async fn a_fallback_has_one_minute_to_its_end() {
    // Of the streams of the second provider, and of its whole answers.
    for (stream, bytes) in [(true, 2_000), (false, 200)] {
        let fallback = |preset: bool| {
            let sims = sims([always(status(401, "no")), dripping(bytes, [])], |_, provider| {
                provider.respond(|_| Some(long_answer()))
            });
            let stack = Stack::new(chain(&sims));
            let stack = if preset { stack.preset(PRESET) } else { stack };
            World::of(&stack.without_resume(), sims)
        };
        let send = |world: World| async move {
            let request = if stream { request().streaming() } else { request() };
            let got = world.send(request).await;
            (got, world.counts())
        };
        let (got, asked) = send(fallback(true)).await;
        let failure = got.failure.as_ref().unwrap();
        assert!(failure.message().contains("limit attempt of 60s"), "stream {stream}: {failure}");
        assert_eq!(asked[0], 1, "stream {stream}");
        let most = secs(60 * asked[1] as u64);
        assert!((most..most + secs(2)).contains(&got.took), "{stream}: {:?}, {asked:?}", got.took);
        // By default it has all the time that the answer needs.
        let (got, _) = send(fallback(false)).await;
        got.answer();
        assert!(got.took > secs(60), "stream {stream}: {:?}", got.took);
    }
}

#[tokio::test(start_paused = true)]
async fn the_whole_takes_ten_minutes_at_most() {
    let world = World::of(&Stack::new(chain(&slow(50, []))).preset(PRESET), slow(50, []));
    let got = world.send(request().streaming()).await;
    assert_eq!(got.failure.unwrap().time_limit(), Some(TimeLimit::Pipeline));
    assert_eq!(got.took, secs(600));
}

#[test]
fn the_summariser_has_its_documented_numbers() {
    let policies = PRESET.policies();
    assert_eq!((policies.spend.hour, policies.spend.day), (500_000, 5_000_000));
    let summaries = policies.summaries;
    assert_eq!((summaries.failures, summaries.rest), (5, secs(60)));
    assert_eq!(summaries.probe, secs(30));
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_tenant_may_cost_ten_million_tokens_an_hour_and_a_hundred_a_day() {
    let caps = PRESET.policies().spend_limit;
    assert_eq!((caps.tokens_hour, caps.tokens_day), (10_000_000, 100_000_000));
    let answer = Answer::text("expensive").usage(Usage {
        input: 3_999_000,
        output: 1_000,
        ..Usage::default()
    });
    let provider = move |_, provider: SimProviderBuilder| {
        let answer = answer.clone();
        provider.respond(move |_| Some(answer.clone()))
    };
    let world = |preset: Option<Preset>| {
        let sims = sims([FaultPlan::none()], provider.clone());
        let stack = Stack::new(chain(&sims));
        World::of(&preset.map_or(stack.clone(), |preset| stack.preset(preset)), sims)
    };
    let of = |tenant: &str| {
        let mut request = request();
        request.context = std::mem::take(&mut request.context).with_tenant(tenant);
        request
    };
    let capped = world(Some(PRESET));
    for _ in 0..3 {
        // The third begins while there is room: what it costs is known at its end.
        capped.send(of("acme")).await.answer();
    }
    let failure = capped.send(of("acme")).await.failure.unwrap();
    assert_eq!(failure.reason(), Reason::SpendCap, "{failure}");
    assert_eq!(capped.counts(), [3]);
    capped.send(of("other")).await.answer();
    tokio::time::advance(secs(3_700)).await;
    capped.send(of("acme")).await.answer();
    let free = world(None);
    for _ in 0..5 {
        free.send(of("acme")).await.answer();
    }
}

/// Two agents, or three failures in a row of one, within a minute; then the provider is skipped until a call sees
/// that it is well again.
#[tokio::test(start_paused = true)]
async fn a_degraded_provider_is_skipped() {
    let agent = |name: &str| {
        let mut request = request();
        request.context = std::mem::take(&mut request.context).with_agent(name);
        request
    };
    // One failure each; by itself failover begins a rest with two in a row, which ends after two seconds.
    let failing = |calls| always_nth(&status(401, "no"), calls);
    for (agents, failures) in [(&["one", "two"][..], 2), (&["one", "one", "one"], 3)] {
        let world = World::new(PRESET, [failing(failures), FaultPlan::none()]);
        for name in agents {
            world.handles.failover.reset_all();
            world.send(agent(name)).await.answer();
            tokio::time::advance(secs(10)).await;
        }
        assert!(world.handles.health.degraded().contains(world.sims[0].name()), "{agents:?}");
        world.handles.failover.reset_all();
        for _ in 0..5 {
            world.send(agent("three")).await.answer();
        }
        assert_eq!(world.counts(), [failures, failures + 5], "{agents:?}");
        // After a minute one call goes there, and what it finds is enough.
        tokio::time::advance(secs(60)).await;
        world.send(agent("three")).await.answer();
        assert!(world.handles.health.degraded().is_empty(), "{agents:?}");
        world.send(agent("three")).await.answer();
        assert_eq!(world.counts(), [failures + 2, failures + 5], "{agents:?}");
    }
    // With nobody else it is asked.
    let world = World::new(PRESET, [failing(2)]);
    for name in ["one", "two"] {
        world.handles.failover.reset_all();
        world.send(agent(name)).await;
    }
    world.handles.failover.reset_all();
    assert!(!world.handles.health.degraded().is_empty());
    world.send(agent("three")).await.answer();
    // Two failures are not enough of one agent, nor sixty seconds apart of two.
    for (agents, apart) in [(&["one", "one"][..], 1), (&["one", "two"], 60)] {
        let world = World::new(PRESET, [failing(2), FaultPlan::none()]);
        for name in agents {
            world.handles.failover.reset_all();
            world.send(agent(name)).await.answer();
            tokio::time::advance(secs(apart)).await;
        }
        assert!(world.handles.health.degraded().is_empty(), "{agents:?}");
    }
}

/// The other presets have nothing of the kind.
#[tokio::test(start_paused = true)]
async fn no_other_preset_has_it() {
    for preset in Preset::ALL {
        let policies = preset.policies();
        assert_eq!(policies.health.is_some(), preset == PRESET, "{preset}");
        assert_eq!(policies.failover.skip_degraded, preset == PRESET, "{preset}");
    }
}

/// This fault for the first calls.
fn always_nth(fault: &Fault, calls: usize) -> FaultPlan {
    (1..=calls).fold(FaultPlan::none(), |plan, call| {
        plan.rule(PlanRule::new(fault.clone()).nth(u64::try_from(call).unwrap()))
    })
}
