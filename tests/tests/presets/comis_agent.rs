//! `comis`, around the agent: the whole prompt, sub-agents, notices, dead letters and tools, each with a stack of
//! the preset inside.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use parking_lot::Mutex;
use steadfast::{
    CallContext, ChatRequest, ChatService, Failure, Preset, Reason, Stack, ToolFailure,
    ToolFailureKind, ToolRequest, ToolResult,
    deliver::{
        Announcement, DeadLetterLayer, DeadLetters, DeliveryLedger, DeliveryRetryLayer,
        DeliveryRoute, FailureNotice, LedgerPolicy, LetterEnd, LetterQueuePolicy,
        RouteFallbackLayer, RoutePolicy, SendOnceLayer,
    },
    health::HealthStatus,
    sim::{Answer, End, Fault, FaultPlan, FirstToken, PlanRule},
    supervise::{
        Actors, AgentRun, GhostPolicy, GhostSweep, NoticeKind, NoticeVia, PostBody, Prompt,
        RunNotice, RunRegistry, RunState, ThreadPost, TurnFailure, WatchdogLayer,
    },
    tool::{ToolBreakerLayer, ToolErrorLayer, ToolTimeoutLayer},
};
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer as _, ServiceBuilder, ServiceExt as _, service_fn};

use crate::{
    World, always,
    around::{Channel, Posts, Tools, Turn, TurnLoop, prompt},
    chain, fine, request, secs, sims, status,
};

const PRESET: Preset = Preset::Comis;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Sets a flag when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Ten minutes for models, tools and the reply together: whatever of them runs then is dropped, its user gets a fixed
/// text for which no model is asked, and the next prompt runs.
#[tokio::test(start_paused = true)]
async fn a_prompt_with_its_models_tools_and_reply_has_ten_minutes() {
    // A model that thinks for a minute and a tool that takes 100 s: that is until 480 s, and 540 s with an answer.
    for (name, most_tools, reply) in [("models and tools", 9, secs(0)), ("reply", 3, secs(90))] {
        let thinks = Fault::FirstToken(FirstToken { after_ms: 60_000, ping_every_ms: None });
        let sims = sims([always(thinks)], |_, provider| {
            provider.respond(move |request| {
                let called = request.body.to_string().matches("tool_use_id").count();
                Some(match request.last_user.as_str() {
                    "Short." => Answer::text("done"),
                    _ if called < most_tools => {
                        Answer::tool_call("dig", format!(r#"{{"meter": {called}}}"#))
                    }
                    _ => Answer::text("too late"),
                })
            })
        });
        let world = World::of(&Stack::new(chain(&sims)).preset(PRESET), sims);
        let tool_dropped = Arc::new(AtomicBool::new(false));
        let dropped = tool_dropped.clone();
        let tools = ServiceBuilder::new()
            .layer(ToolBreakerLayer::default())
            .layer(ToolErrorLayer::default())
            .layer(ToolTimeoutLayer::default())
            .service(service_fn(move |request: ToolRequest| {
                dropped.store(false, SeqCst);
                let held = Dropped(dropped.clone());
                async move {
                    sleep(secs(100)).await;
                    drop(held);
                    let text = format!("dug with {}", request.call.arguments);
                    Ok::<_, Failure>(ToolResult::of(&request.call, text))
                }
            }));
        let agent = TurnLoop { llm: world.llm.clone(), tools: Tools::new(tools) };
        let posts = Posts::new();
        let turn = move |asked: Prompt<String>| -> Turn {
            let agent = agent.clone();
            let request = prompt(&asked.input, "dig").with_context(asked.context).streaming();
            Box::pin(async move { agent.run(request).await })
        };
        let sink = posts.clone();
        let actors = Actors::new(service_fn(turn), move |post: ThreadPost<String>| {
            let sink = sink.clone();
            async move {
                let is_late = post.body == PostBody::Reply("too late".to_owned());
                sleep(if is_late { reply } else { secs(0) }).await;
                sink.push(&post);
                Ok(())
            }
        });
        actors.send("a", "Long.".to_owned()).unwrap();
        actors.send("a", "Short.".to_owned()).unwrap();
        sleep(ms(600_000)).await;
        let asked = world.counts()[0];
        sleep(ms(1)).await;
        let text = TurnFailure::Pipeline.to_string();
        assert_eq!(posts.all(), [(600_000, "a".to_owned(), text)], "{name}");
        assert!(tool_dropped.load(SeqCst), "{name}");
        // Nothing was asked for the text: what is asked now is the next prompt.
        sleep(secs(59)).await;
        assert_eq!(world.counts(), [asked + 1], "{name}");
        assert_eq!(world.asked(0)[asked].at, secs(600), "{name}");
        sleep(secs(2)).await;
        assert_eq!(posts.all()[1], (660_000, "a".to_owned(), "done".to_owned()), "{name}");
    }
}

/// A sub-agent that asks its models again and again, and gets nothing.
fn tireless(llm: &ChatService, registry: &RunRegistry) -> TirelessAgent {
    let llm = llm.clone();
    let asks = service_fn(move |run: AgentRun<&'static str>| {
        let llm = llm.clone();
        async move {
            loop {
                let request = ChatRequest::user(run.input).with_model("any");
                let answer = llm.clone().oneshot(request.with_context(run.context.clone())).await;
                if let Ok(answer) = answer {
                    return Ok::<_, Failure>(answer.collect().await?.text());
                }
                sleep(secs(1)).await;
            }
        }
    });
    let layer = WatchdogLayer::default().with_registry(registry.clone());
    TirelessAgent::new(layer.layer(asks))
}

type TirelessAgent = tower::util::BoxCloneSyncService<AgentRun<&'static str>, String, Failure>;

#[tokio::test(start_paused = true)]
async fn a_sub_agent_has_a_minute_for_each_step_and_ten_in_all() {
    for (steps, limit) in [(0, 600), (1, 60), (3, 180), (10, 600), (100, 600)] {
        let world = World::new(PRESET, [always(Fault::Hang)]);
        let notices: Arc<Mutex<Vec<RunNotice>>> = Arc::default();
        let kept = notices.clone();
        let registry = RunRegistry::in_memory().with_notices(move |notice| {
            kept.lock().push(notice);
            std::future::ready(Ok(NoticeVia::Direct))
        });
        let run = AgentRun::new("Go on.").with_max_steps(NonZeroU32::new(steps));
        let (id, began) = (run.id().clone(), Instant::now());
        let failure = tireless(&world.llm, &registry).oneshot(run).await.unwrap_err();
        assert_eq!(began.elapsed(), secs(limit), "{steps} steps");
        assert_eq!(failure.evidence(), "watchdog_timeout", "{steps} steps");
        assert_eq!(registry.get(&id).unwrap().state, RunState::WatchdogTimeout);
        sleep(ms(1)).await;
        assert!(world.asked(0).iter().all(|entry| entry.end == End::Dropped), "{steps} steps");
        let kinds: Vec<_> = notices.lock().iter().map(|notice| notice.kind).collect();
        assert_eq!(kinds, [NoticeKind::NotInTime], "{steps} steps");
    }
}

/// A run whose watchdog can not fire, since nobody polls it any more, in the middle of a call of its model.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_stuck_is_swept_after_twelve_minutes() {
    let world = World::new(PRESET, [always(Fault::Hang)]);
    let registry = RunRegistry::in_memory();
    let run = AgentRun::new("Go on.").with_max_steps(NonZeroU32::new(3));
    let id = run.id().clone();
    let mut stuck = Box::pin(tireless(&world.llm, &registry).oneshot(run));
    assert!(timeout(ms(10), &mut stuck).await.is_err());
    assert_eq!(world.counts(), [1], "its model has been asked");
    let sweep = GhostSweep::new(registry.clone(), GhostPolicy::default()).unwrap();
    sleep(ms(719_989)).await;
    assert_eq!((sweep.sweep(), registry.get(&id).unwrap().state), (0, RunState::Running));
    sleep(ms(1)).await;
    assert_eq!((sweep.sweep(), registry.get(&id).unwrap().state), (1, RunState::GhostSweep));
    // What becomes of it later changes nothing.
    assert!(stuck.await.is_err());
    assert_eq!(registry.get(&id).unwrap().state, RunState::GhostSweep);
    assert_eq!(world.asked(0)[0].end, End::Dropped);
}

fn ledger() -> DeliveryLedger {
    DeliveryLedger::in_memory(LedgerPolicy::default()).unwrap()
}

/// The parent agent: it says in its own words what it is to announce, which takes a call of its model.
fn parent(
    llm: &ChatService,
    channel: &Channel,
) -> tower::util::BoxCloneSyncService<Announcement, (), Failure> {
    let (agent, channel) = (TurnLoop::without_tools(llm.clone()), channel.clone());
    tower::util::BoxCloneSyncService::new(service_fn(move |message: Announcement| {
        let (agent, channel) = (agent.clone(), channel.clone());
        async move {
            let text = format!("Say to the user: {}", message.text);
            let request = ChatRequest::user(text).with_model("any").with_context(message.context);
            channel.send(&agent.run(request).await?)
        }
    }))
}

/// The notice of a run that its watchdog has given up.
#[tokio::test(start_paused = true)]
async fn a_notice_has_the_parent_for_half_a_minute_and_then_goes_directly() {
    let fixed = FailureNotice::NotInTime.text();
    for (name, is_parent_well, is_degraded, after, text) in [
        ("the parent announces it", true, false, 0, "I am sorry."),
        ("the parent hangs", false, false, 30_000, fixed),
        ("its provider is degraded", false, true, 0, fixed),
    ] {
        let hangs = |text: &str| PlanRule::new(Fault::Hang).contains(text);
        let plan = FaultPlan::none().rule(hangs("Go on."));
        let plan = if is_parent_well { plan } else { plan.rule(hangs("Say to the user")) };
        let sims =
            sims([plan], |_, provider| provider.respond(|_| Some(Answer::text("I am sorry."))));
        let world = World::of(&Stack::new(chain(&sims)).preset(PRESET), sims);
        if is_degraded {
            world.handles.health.force("anthropic", HealthStatus::Degraded);
        }
        let (channel, ledger) = (Channel::default(), ledger());
        let degraded = world.handles.health.degraded();
        let route = RouteFallbackLayer::new(parent(&world.llm, &channel), ledger.clone())
            .with_policy(RoutePolicy::comis())
            .unwrap()
            .skip_parent_when(move || degraded.contains("anthropic"));
        let delivery = ServiceBuilder::new()
            .layer(route)
            .layer(SendOnceLayer::new(ledger))
            .service(channel.service());
        let routes: Arc<Mutex<Vec<DeliveryRoute>>> = Arc::default();
        let seen = routes.clone();
        let registry = RunRegistry::in_memory().with_notices(move |notice: RunNotice| {
            let (delivery, seen) = (delivery.clone(), seen.clone());
            async move {
                assert_eq!(notice.kind, NoticeKind::NotInTime);
                let text = FailureNotice::NotInTime;
                let message = Announcement::notice(notice.key.as_str(), "room", text);
                let route = delivery.oneshot(message).await?.route;
                seen.lock().push(route);
                Ok(match route {
                    DeliveryRoute::Parent => NoticeVia::Parent,
                    _ => NoticeVia::Direct,
                })
            }
        });
        let began = Instant::now();
        let run = AgentRun::new("Go on.").with_max_steps(NonZeroU32::new(1));
        let _given_up = tireless(&world.llm, &registry).oneshot(run).await.unwrap_err();
        let asked = world.counts()[0];
        sleep(secs(60)).await;
        let sent: Vec<_> =
            channel.sent().into_iter().map(|(at, text)| (at - began, text)).collect();
        assert_eq!(sent, [(ms(60_000 + after), text.to_owned())], "{name}");
        let route = if is_parent_well { DeliveryRoute::Parent } else { DeliveryRoute::Direct };
        assert_eq!(*routes.lock(), [route], "{name}");
        assert_eq!(world.counts()[0] - asked, usize::from(!is_degraded), "{name}");
    }
}

/// What could not be delivered, by the policy of the preset.
fn letters(policy: LetterQueuePolicy, channel: &Channel) -> (DeadLetters, Delivery) {
    let ledger = ledger();
    let once = SendOnceLayer::new(ledger.clone()).layer(channel.service());
    let letters = DeadLetters::in_memory(policy, ledger, once.clone()).unwrap();
    let delivery = ServiceBuilder::new()
        .layer(DeadLetterLayer::new(letters.clone()))
        .layer(DeliveryRetryLayer::default())
        .service(once);
    (letters, Delivery::new(delivery.map_response(|receipt| receipt.route)))
}

type Delivery = tower::util::BoxCloneSyncService<Announcement, DeliveryRoute, Failure>;

fn unavailable() -> Failure {
    Failure::new(Reason::ServerError, "down").with_status(http::StatusCode::SERVICE_UNAVAILABLE)
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_has_five_retries_and_an_hour() {
    for (retries, tries, end) in [
        (LetterQueuePolicy::comis().retries, 5, LetterEnd::NoRetries),
        // With more of them it is its age.
        (100, 5, LetterEnd::TooOld),
    ] {
        let channel = Channel::default();
        channel.fail(unavailable);
        let policy = LetterQueuePolicy { retries, ..LetterQueuePolicy::comis() };
        let (letters, delivery) = letters(policy, &channel);
        let message = Announcement::new("key", "room", "It is done.");
        assert_eq!(delivery.oneshot(message).await.unwrap(), DeliveryRoute::Letter);
        let kept = Instant::now();
        let before = channel.calls().len();
        assert_eq!(before, 4, "once and three times again");
        let ended = async {
            while letters.list().ended.is_empty() {
                sleep(secs(1)).await;
            }
        };
        timeout(secs(2 * 3_600), ended).await.unwrap();
        let list = letters.list();
        assert_eq!((list.ended[0].end, list.waiting.len()), (Some(end), 0));
        assert_eq!(channel.calls().len() - before, tries, "{end}");
        let age = kept.elapsed();
        assert!(age <= secs(3_601), "{end} after {age:?}");
        if end == LetterEnd::TooOld {
            assert!(age >= secs(3_570), "{age:?}");
        }
        channel.recover();
        sleep(secs(7_200)).await;
        assert!(channel.sent().is_empty(), "{end}");
    }
}

/// The health of the stack's providers drains the letters: by a success, and not by time.
#[tokio::test(start_paused = true)]
async fn letters_are_drained_when_the_provider_recovers() {
    let world = World::new(PRESET, [always(status(500, "oops"))]);
    let channel = Channel::default();
    let (letters, delivery) = letters(LetterQueuePolicy::comis(), &channel);
    letters.drain_when(world.handles.health.watch(), |health| health.degraded().next().is_none());
    let ask = async |agent: &str| {
        let context = CallContext::recording().with_agent(agent);
        world.send(request().with_context(context)).await
    };
    for agent in ["one", "two"] {
        assert!(ask(agent).await.failure.is_some());
    }
    assert!(world.handles.health.degraded().contains("anthropic"));
    channel.fail(unavailable);
    let message = Announcement::new("key", "room", "It is done.");
    assert_eq!(delivery.oneshot(message).await.unwrap(), DeliveryRoute::Letter);
    channel.recover();
    // Well again, and nobody has noticed: the letter waits for its backoff.
    sleep(secs(20)).await;
    assert_eq!((channel.sent().len(), letters.snapshot().waiting), (0, 1));
    world.set(0, fine());
    let now = Instant::now();
    ask("three").await.answer();
    assert!(world.handles.health.degraded().is_empty());
    sleep(ms(1)).await;
    assert_eq!(channel.sent(), [(now, "It is done.".to_owned())]);
    assert_eq!(letters.snapshot().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn tools_that_keep_failing_are_blocked_and_tried_again_after_a_minute() {
    let plain = || ToolFailure::from(ToolFailureKind::Failed);
    let tagged = || plain().with_tag("connection_refused");
    for (name, same_call, failure, calls, made, text) in [
        ("one call", true, plain(), 4, 3, "this same call failed 3 times in a row"),
        ("one tool", false, plain(), 7, 5, "it failed 5 times in a row, with whatever arguments"),
        ("one tag", false, tagged(), 4, 2, "it failed 2 times in a row, again and again with"),
    ] {
        let sims = sims([fine()], |_, provider| {
            provider.respond(move |request| {
                let asked = request.body.to_string();
                let called = asked.matches("tool_use_id").count();
                let most = if request.body.to_string().contains("Once.") { 1 } else { calls };
                let at = if same_call { 0 } else { called + most };
                Some(match called < most {
                    true => Answer::tool_call("fetch", format!(r#"{{"page": {at}}}"#)),
                    false => Answer::text("done"),
                })
            })
        });
        let world = World::of(&Stack::new(chain(&sims)).preset(PRESET), sims);
        let ran = Arc::new(AtomicUsize::new(0));
        let counted = ran.clone();
        let tools = ServiceBuilder::new()
            .layer(ToolBreakerLayer::default())
            .layer(ToolErrorLayer::default())
            .layer(ToolTimeoutLayer::default())
            .service(service_fn(move |request: ToolRequest| {
                let at = counted.fetch_add(1, SeqCst);
                let mut result = ToolResult::of(&request.call, format!("no answer, number {at}"));
                (result.is_error, result.failure) = (true, Some(Box::new(failure.clone())));
                std::future::ready(Ok::<_, Failure>(result))
            }));
        let agent = TurnLoop { llm: world.llm.clone(), tools: Tools::new(tools) };
        let run = async |text: &str| {
            let context = CallContext::recording().with_session("s");
            agent.run(prompt(text, "fetch").with_context(context)).await.unwrap()
        };
        assert_eq!(run("Fetch it.").await, "done", "{name}: it is no end of the loop");
        assert_eq!(ran.load(SeqCst), made, "{name}");
        let last = world.asked(0).last().unwrap().clone();
        let sent = String::from_utf8_lossy(&last.body).into_owned();
        assert!(sent.contains(text), "{name}: the model reads why: {sent}");
        assert_eq!(run("Once.").await, "done");
        assert_eq!(ran.load(SeqCst), made, "{name}: it rests");
        sleep(secs(60)).await;
        assert_eq!(run("Once.").await, "done");
        assert_eq!(ran.load(SeqCst), made + 1, "{name}: half open");
        assert_eq!(run("Once.").await, "done");
        assert_eq!(ran.load(SeqCst), made + 1, "{name}: it has failed again");
    }
}
