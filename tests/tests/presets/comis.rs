//! `comis`.

use std::time::Duration;

use steadfast::{
    ChatRequest, Delta, Event, Failure, Message, Needs, Part, Preset, Reason, Role, Stack,
    TimeLimit, ToolRequest, ToolResult,
    failover::{Chain, CooldownFailoverLayer},
    sim::{
        Answer, Drip, Fault, FaultPlan, FirstToken, How, Model, PlanRule, SimProvider,
        SimProviderBuilder, Usage,
    },
    tool::ToolTimeoutLayer,
};
use steadfast_tests::harness;
use tokio::time::{Instant, sleep};
use tokio_stream::StreamExt as _;
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::{
    World, always,
    around::{Tools, TurnLoop, prompt},
    chain, fine, request, secs, sims, status,
};

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

/// When the pieces of an answer came, and how it ended.
async fn pieces(world: &World, request: ChatRequest) -> (Vec<(Duration, Event)>, Option<Failure>) {
    let began = Instant::now();
    let log = request.context.log.clone();
    let answer = world.llm.clone().oneshot(request).await;
    let (_, mut events) = answer.unwrap_or_else(|failure| panic!("{failure:?} {log}")).into_parts();
    let mut pieces = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => pieces.push((began.elapsed(), event)),
            Err(failure) => return (pieces, Some(failure)),
        }
    }
    (pieces, None)
}

/// Nobody sees anything for minutes, and the model thinks; pings are no thoughts.
#[tokio::test(start_paused = true)]
async fn thinking_restarts_the_stall() {
    // A frame every forty seconds: four of them are thoughts, and text comes minutes later.
    let answer = Answer::thinking("thinking").then_text("ok").in_chunks_of(2);
    let drip = Fault::Drip(Drip { bytes: 6_000, every_ms: 40_000 });
    let sims = sims([always(drip)], |_, provider| {
        let answer = answer.clone();
        provider.respond(move |_| Some(answer.clone()))
    });
    let world = World::of(&Stack::new(chain(&sims)).preset(PRESET), sims);
    let (pieces, failure) = pieces(&world, request().streaming()).await;
    assert!(failure.is_none(), "{failure:?}");
    let is_text = |event: &Event| event.deltas.iter().any(|it| matches!(it, Delta::Text { .. }));
    let (first_text, _) = pieces.iter().find(|(_, event)| is_text(event)).unwrap();
    assert!(*first_text > secs(300), "{first_text:?}");

    let late = FirstToken { after_ms: 181_000, ping_every_ms: Some(5_000) };
    let world = World::new(PRESET, [always(Fault::FirstToken(late))]);
    assert!(world.send(request().streaming()).await.took > secs(180), "pings restart nothing");
}

/// The time of tools is no silence of the model: each of its calls has the whole stall.
#[tokio::test(start_paused = true)]
async fn what_tools_take_is_no_stall() {
    let late = Fault::FirstToken(FirstToken { after_ms: 170_000, ping_every_ms: None });
    let sims = sims([always(late)], |_, provider| {
        provider.respond(|request| {
            Some(match request.after_tool_results {
                true => Answer::text("done"),
                false => Answer::tool_call("dig", "{}"),
            })
        })
    });
    let world = World::of(&Stack::new(chain(&sims)).preset(PRESET), sims);
    let tools = ToolTimeoutLayer::default().layer(service_fn(async |request: ToolRequest| {
        sleep(secs(110)).await;
        Ok::<_, Failure>(ToolResult::of(&request.call, "dug"))
    }));
    let agent = TurnLoop { llm: world.llm.clone(), tools: Tools::new(tools) };
    let began = Instant::now();
    let request = prompt("Dig.", "dig").streaming();
    assert_eq!(agent.run(request).await.unwrap(), "done");
    assert_eq!(began.elapsed().as_secs(), 170 + 110 + 170);
    assert_eq!(world.counts(), [2], "each was asked once");
}

/// The stall is counted from the last piece, to a second.
#[tokio::test(start_paused = true)]
async fn a_stream_of_many_pieces_that_falls_silent_has_three_minutes_from_the_last() {
    let drip = Fault::Drip(Drip { bytes: 100, every_ms: 100 });
    let plan = always(Fault::Many(vec![drip, Fault::break_after(40, How::Stall)]));
    let sims = sims([plan], |_, provider| provider.respond(|_| Some(long_answer())));
    let stack = Stack::new(chain(&sims)).preset(PRESET).without_resume();
    let world = World::of(&stack, sims);
    let began = Instant::now();
    let (pieces, failure) = pieces(&world, request().streaming()).await;
    assert_eq!(failure.unwrap().time_limit(), Some(TimeLimit::Stall));
    let (last, _) = pieces.last().unwrap();
    assert!(*last > secs(3) && pieces.len() > 20, "{last:?}, {} pieces", pieces.len());
    let silent = began.elapsed() - *last;
    assert!((secs(180)..=secs(181)).contains(&silent), "{silent:?}");
}

/// Ten stalls for an answer that keeps coming; the whole has less by default, and more here.
#[tokio::test(start_paused = true)]
async fn an_answer_that_keeps_coming_has_ten_stalls() {
    let mut policies = PRESET.policies();
    policies.deadline.pipeline = secs(3_600);
    let sims = slow(10, []);
    let stack = Stack::new(chain(&sims)).with_policies(&policies).unwrap().without_resume();
    let got = World::of(&stack, sims).send(request().streaming()).await;
    assert_eq!(got.failure.unwrap().time_limit(), Some(TimeLimit::Makespan));
    assert_eq!(got.took, secs(1_800));
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

/// A hundred million in a day, by less than ten million an hour; 0 is no cap.
#[tokio::test(start_paused = true)]
async fn a_day_of_calls_has_a_cap_of_its_own_and_none_is_zero() {
    let usage = Usage { input: 8_999_000, output: 1_000, ..Usage::default() };
    let world = |policies: &steadfast::Policies| {
        let sims = sims([fine()], |_, provider| {
            provider.respond(move |_| Some(Answer::text("expensive").usage(usage)))
        });
        World::of(&Stack::new(chain(&sims)).with_policies(policies).unwrap(), sims)
    };
    let ask = async |world: &World| {
        let mut request = request();
        request.context = std::mem::take(&mut request.context).with_tenant("acme");
        world.send(request).await
    };
    // Nine million in each hour: the eleventh call leaves one million, the twelfth begins within it.
    let capped = world(&PRESET.policies());
    for _ in 0..12 {
        ask(&capped).await.answer();
        tokio::time::advance(secs(3_700)).await;
    }
    let failure = ask(&capped).await.failure.unwrap();
    assert_eq!(failure.reason(), Reason::SpendCap, "{failure}");
    assert!(failure.message().contains("day"), "{failure}");
    assert_eq!(capped.counts(), [12]);
    tokio::time::advance(secs(14 * 3_600)).await;
    ask(&capped).await.answer();

    let mut none = PRESET.policies();
    (none.spend_limit.tokens_hour, none.spend_limit.tokens_day) = (0, 0);
    let free = world(&none);
    for _ in 0..15 {
        ask(&free).await.answer();
    }
}

/// After its retries a model's place is taken by the next one, at its own provider and then at the others.
#[tokio::test(start_paused = true)]
async fn the_next_model_is_asked_after_retries() {
    let world =
        World::new(PRESET, [always(status(500, "oops")), always(status(503, "not now")), fine()]);
    world.ask().await.answer();
    assert_eq!(world.counts(), [2, 3, 1]);

    let asked = harness::model(steadfast::Dialect::Anthropic);
    let busy = |model| PlanRule::new(status(529, "not now")).model(model);
    let plan = FaultPlan::none().rule(busy(asked)).rule(busy("small"));
    let sims = sims([plan], |_, provider| {
        let model = |name| Model::new(name, 128_000, 16_000);
        provider.with_model(model("small")).with_model(model("tiny"))
    });
    let target = harness::target(&sims[0]).with_downgrade("*", ["small", "tiny"]);
    let stack = Stack::new(Chain::new([target]).unwrap()).preset(PRESET);
    let world = World::of(&stack, sims);
    world.ask().await.answer();
    let mut models: Vec<_> = world.asked(0).into_iter().map(|entry| entry.model).collect();
    let first = models.iter().filter(|model| *model == asked).count();
    assert_eq!(first, 3, "two retries: {models:?}");
    models.dedup();
    assert_eq!(models, [asked, "small", "tiny"]);
}

/// Images have a chain of their own: primary, secondary, tertiary.
#[tokio::test(start_paused = true)]
async fn images_have_a_chain_of_their_own() {
    let image = || {
        let parts = vec![Part::text("What is this?"), Part::image("image/png", "AAAA")];
        ChatRequest::new(vec![Message::new(Role::User, parts)]).with_model("any")
    };
    let worlds = |failing: usize| {
        let down = |at: usize| if at < failing { always(status(500, "oops")) } else { fine() };
        // The second is the first for images, then the third.
        let sims = sims([fine(), down(0), down(1)], |_, provider| provider);
        let order = [1, 2, 0].map(|at| harness::target(&sims[at]));
        let failover = CooldownFailoverLayer::new(chain(&sims))
            .with_chain("vision", Chain::new(order).unwrap())
            .with_chain_for(|_: &ChatRequest, needs: &Needs| needs.vision.then_some("vision"));
        let stack = Stack::around(failover).preset(PRESET);
        let (llm, handles) = (stack.boxed(harness::client(&sims)), stack.handles());
        World { sims, llm, handles }
    };
    for (failing, counts) in [(0, [0, 1, 0]), (1, [0, 2, 1]), (2, [1, 2, 2])] {
        let world = worlds(failing);
        world.send(image()).await.answer();
        assert_eq!(world.counts(), counts);
        // Text goes its own way.
        world.ask().await.answer();
        assert_eq!(world.counts()[0], counts[0] + 1);
    }
}

/// The same in the gateway's file.
#[cfg(feature = "gateway")]
#[tokio::test(start_paused = true)]
async fn images_have_a_chain_of_their_own_in_the_gateway() {
    use steadfast_tests::gateway::{http::HttpRequest, in_process::InProcess};

    let plans = [fine(), always(status(500, "oops")), always(status(500, "oops"))];
    let sims = sims(plans, |_, provider| provider);
    let providers: String = sims
        .iter()
        .map(|sim| {
            let (name, dialect) = (sim.name(), sim.dialect());
            let (url, model) = (harness::base_url(sim), harness::model(dialect));
            format!(
                "[[providers]]\nname = \"{name}\"\ndialect = \"{dialect}\"\nbase_url = \"{url}\"\n\
                 credentials = [\"env:KEY\"]\nmodels = {{ \"*\" = \"{model}\" }}\n"
            )
        })
        .collect();
    let file = format!(
        "preset = \"comis\"\n[server]\nauth = \"none\"\n[failover]\n\
         chain = [\"anthropic\", \"openai\", \"google\"]\n\
         chains = {{ vision = [\"openai\", \"google\", \"anthropic\"] }}\n{providers}"
    );
    let gateway = InProcess::with_file(&file, &sims);
    let body = r#"{"model":"any","messages":[{"role":"user","content":[
        {"type":"text","text":"What is this?"},
        {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}"#;
    let reply = gateway.send(&HttpRequest::post("/v1/chat/completions", body)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let counts: Vec<_> = sims.iter().map(|sim| sim.journal().len()).collect();
    assert_eq!(counts, [1, 2, 2]);
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
