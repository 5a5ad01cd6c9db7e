//! `guppy`, around the agent: replies, tools, texts and threads, with a stack of the preset inside.

use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use steadfast::{
    ChatRequest, Failure, Preset, Reason, Stack, ToolFailureKind, ToolRequest, ToolResult,
    deliver::{
        Announcement, DeadLetterLayer, DeadLetterPolicy, DeadLetters, DeliveryLedger,
        DeliveryRetryLayer, DeliveryRetryPolicy, LedgerPolicy, LetterQueuePolicy, SendOnceLayer,
    },
    session::{SessionLayer, SessionPrompt, SessionRun, SessionStore, SessionTurn},
    sim::{Answer, Fault, FaultPlan, PlanRule},
    supervise::{Actors, PostBody, Prompt, TOOL_TIMEOUT, ThreadPost, TurnFailure},
    tool::{ToolBreakerLayer, ToolErrorLayer, ToolTimeoutLayer},
};
use steadfast_testkit::CapturedEvents;
use tokio::time::{Instant, sleep};
use tower::{Layer as _, ServiceBuilder, ServiceExt as _, service_fn};

use crate::{
    World,
    around::{Channel, Posts, Tools, Turn, TurnLoop, mailboxes, prompt},
    chain, fine, secs, sims, status,
};

const PRESET: Preset = Preset::Guppy;

/// An agent without tools in mailboxes whose replies go to people by `deliver`, as the system does it.
fn with_replies(world: &World, channel: &Channel) -> (Actors<String>, DeadLetters) {
    let agent = TurnLoop::without_tools(world.llm.clone());
    let ledger = DeliveryLedger::in_memory(LedgerPolicy::default()).unwrap();
    let once = SendOnceLayer::new(ledger.clone()).layer(channel.service());
    let letters =
        DeadLetters::in_memory(LetterQueuePolicy::default(), ledger, once.clone()).unwrap();
    let nothing_kept = DeadLetterLayer::new(letters.clone()).with_policy(DeadLetterPolicy::guppy());
    let replies = ServiceBuilder::new()
        .layer(nothing_kept)
        .layer(DeliveryRetryLayer::new(DeliveryRetryPolicy::guppy()).unwrap())
        .service(once);
    let turn = service_fn(move |asked: Prompt<String>| -> Turn {
        let (agent, input) = (agent.clone(), asked.input);
        let request = ChatRequest::user(input).with_model("any").with_context(asked.context);
        Box::pin(async move { agent.run(request).await })
    });
    let actors = Actors::new(turn, move |post: ThreadPost<String>| {
        let replies = replies.clone();
        async move {
            let text = match &post.body {
                PostBody::Reply(text) => text.clone(),
                PostBody::Failed(failure) => failure.to_string(),
                other => panic!("{other:?}"),
            };
            let key = format!("reply-{}", post.prompt);
            replies.oneshot(Announcement::reply(key, post.thread.thread(), text)).await?;
            Ok(())
        }
    });
    (actors, letters)
}

/// Three times again, after what the platform asks for or longer and longer; then it is logged and dropped, and the
/// next prompt is answered.
#[tokio::test(start_paused = true)]
async fn a_reply_is_sent_three_times_again_and_then_logged_and_dropped() {
    let with_status = |reason, status| {
        move || {
            let status = http::StatusCode::from_u16(status).unwrap();
            Failure::new(reason, "the platform says no").with_status(status)
        }
    };
    let hinted = || {
        Failure::new(Reason::RateLimit, "the platform says no")
            .with_status(http::StatusCode::TOO_MANY_REQUESTS)
            .with_retry_after(Some(Duration::from_secs(7)))
    };
    let refused = || {
        let cause = io::Error::from(io::ErrorKind::ConnectionRefused);
        Failure::new(Reason::Network, "the platform says no").with_source(cause)
    };
    let reset = || Failure::new(Reason::Network, "the platform says no");
    type Fails = Box<dyn Fn() -> Failure + Send + Sync>;
    let backoff = [1_000, 2_000, 4_000].as_slice();
    let rows: [(&str, Fails, &[u128]); 8] = [
        ("429", Box::new(with_status(Reason::RateLimit, 429)), backoff),
        ("429 with retryAfter", Box::new(hinted), &[7_000, 7_000, 7_000]),
        ("500", Box::new(with_status(Reason::ServerError, 500)), backoff),
        ("502", Box::new(with_status(Reason::ServerError, 502)), backoff),
        ("503", Box::new(with_status(Reason::Overloaded, 503)), backoff),
        ("refused", Box::new(refused), backoff),
        ("reset", Box::new(reset), backoff),
        ("400", Box::new(with_status(Reason::Format, 400)), &[]),
    ];
    for (name, fails, waits) in rows {
        let events = CapturedEvents::default();
        let _guard = tracing::subscriber::set_default(events.clone());
        let sims =
            sims([fine()], |_, provider| provider.respond(|_| Some(Answer::text("The answer."))));
        let world = World::of(&Stack::new(chain(&sims)).preset(PRESET), sims);
        let channel = Channel::default();
        channel.fail(fails);
        let (actors, letters) = with_replies(&world, &channel);
        actors.send("a", "one".to_owned()).unwrap();
        sleep(secs(60)).await;
        let waited = channel.waits();
        assert_eq!(waited.len(), waits.len(), "{name}: {waited:?}");
        for (wait, least) in waited.iter().zip(waits) {
            assert!((*least..=least + least / 4).contains(wait), "{name}: {waited:?}");
        }
        let events = events.take();
        let dropped = events.iter().filter(|line| line.contains("deliver::dropped")).count();
        assert_eq!(dropped, 1, "{name}: {events:#?}");
        assert_eq!((letters.snapshot().waiting, letters.list().ended.len()), (0, 0), "{name}");
        // It is never sent later, and the thread goes on.
        channel.recover();
        sleep(secs(7_200)).await;
        assert!(channel.sent().is_empty(), "{name}");
        actors.send("a", "two".to_owned()).unwrap();
        sleep(secs(1)).await;
        assert_eq!(channel.sent().len(), 1, "{name}");
        assert_eq!(world.counts(), [2], "{name}: the answer was not made again");
    }
}

/// A shell whose command has left its group and session, and ignores signals: nothing of it is left after 120 s, and
/// the agent goes on.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_tool_has_two_minutes_and_then_its_whole_tree_is_killed() {
    use steadfast::tool::ShellTool;

    let mark = format!("86400.{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started");
    let command = format!(
        "(setsid sh -c 'trap \"\" TERM; sleep {mark}; sleep {mark}' &); touch {}; sleep {mark}",
        started.display()
    );
    let arguments = serde_json::json!({ "command": command }).to_string();
    let sims = sims([fine()], |_, provider| {
        let arguments = arguments.clone();
        provider.respond(move |request| {
            Some(match request.after_tool_results {
                true => Answer::text("It took too long."),
                false => Answer::tool_call("run_command", arguments.clone()),
            })
        })
    });
    let world = World::of(&Stack::new(chain(&sims)).preset(PRESET), sims);
    let tools = ServiceBuilder::new()
        .layer(ToolBreakerLayer::default())
        .layer(ToolErrorLayer::default())
        .layer(ToolTimeoutLayer::default())
        .service(ShellTool::default());
    let agent = TurnLoop { llm: world.llm.clone(), tools: Tools::new(tools) };
    let began = Instant::now();
    let turn = tokio::spawn(async move { agent.run(prompt("Run it.", "run_command")).await });
    // In real time until the processes are there.
    while !(started.exists() && alive(&mark) >= 3) {
        sleep(Duration::from_millis(5)).await;
        assert!(began.elapsed() < secs(30), "it has not started");
    }
    tokio::time::pause();
    let text = turn.await.unwrap().unwrap();
    let took = began.elapsed();
    tokio::time::resume();
    assert_eq!(text, "It took too long.");
    // The command ends a moment before the limit, so that what it wrote is not lost.
    assert!(took > secs(118) && took < secs(125), "{took:?}");
    let sent = String::from_utf8_lossy(&world.asked(0)[1].body).into_owned();
    assert!(sent.contains("is_error") && sent.contains("was stopped"), "{sent}");
    while alive(&mark) > 0 {
        sleep(Duration::from_millis(5)).await;
        assert!(began.elapsed() < took + secs(30), "{} are left", alive(&mark));
    }
}

/// How many processes with this in their command are alive.
#[cfg(target_os = "linux")]
fn alive(mark: &str) -> usize {
    let pids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let own = std::process::id().to_string();
    let pids = pids.filter(|name| *name != own && name.bytes().all(|byte| byte.is_ascii_digit()));
    let has = |pid: &String| {
        let read =
            |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let is_dead = || read("stat").rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'));
        read("cmdline").contains(mark) && !is_dead()
    };
    pids.filter(has).count()
}

/// What goes wrong, and what a user reads of it. The next prompt of the thread is answered each time.
#[tokio::test(start_paused = true)]
async fn each_kind_of_failure_has_its_text_and_the_next_prompt_runs() {
    const SECRET: &str = "sk-of-the-raw-error";
    let fails = |text: &str, fault| PlanRule::new(fault).contains(text);
    let plan = FaultPlan::none().rule(fails("no provider", status(503, SECRET)));
    let sims = sims([plan], |_, provider| {
        provider.respond(|request| {
            Some(match request.last_user.contains("tool") {
                true => Answer::tool_call("wait", r#"{"for": "ever"}"#),
                false => Answer::text("Fine."),
            })
        })
    });
    let world = World::of(&Stack::new(chain(&sims)).preset(PRESET), sims);
    let tools = ServiceBuilder::new()
        .layer(ToolBreakerLayer::default())
        .layer(ToolErrorLayer::default())
        .layer(ToolTimeoutLayer::default())
        .service(service_fn(|_: ToolRequest| {
            std::future::pending::<Result<ToolResult, Failure>>()
        }));
    // The turn is over when a command takes too long, as a bot does it that has nothing else to say.
    let tools = tools.and_then(async |result: ToolResult| match result.failure_kind() {
        Some(ToolFailureKind::TimedOut) => {
            Err(Failure::new(Reason::Timeout, SECRET).with_evidence(TOOL_TIMEOUT))
        }
        _ => Ok(result),
    });
    let agent = TurnLoop { llm: world.llm.clone(), tools: Tools::new(tools) };
    let folder = tempfile::tempdir().unwrap();
    let start = |posts: &Posts| {
        let agent = agent.clone();
        let turns = SessionLayer::new(SessionStore::new(folder.path())).layer(service_fn(
            move |run: SessionRun| {
                let agent = agent.clone();
                async move {
                    let asked = run.request.messages.iter().last().unwrap().text();
                    assert!(!asked.contains("a bug"), "{SECRET}");
                    let tools = prompt("", "wait").tools;
                    let text = agent.run(run.request.with_tools(tools)).await?;
                    Ok::<_, Failure>(SessionTurn::from(steadfast::Message::assistant(text)))
                }
            },
        ));
        mailboxes(
            move |asked: Prompt<String>| -> Turn {
                let turns = turns.clone();
                Box::pin(async move {
                    let request = ChatRequest::user(asked.input)
                        .with_model("any")
                        .with_context(asked.context);
                    let session = SessionPrompt::new(asked.thread.thread(), request);
                    Ok(turns.oneshot(session).await?.to_string())
                })
            },
            posts,
        )
    };
    let posts = Posts::new();
    let actors = start(&posts);
    let mut expected = Vec::new();
    for (text, failure) in [
        ("There is no provider.", TurnFailure::Provider),
        ("Call the tool.", TurnFailure::ToolTimeout),
        ("There is a bug.", TurnFailure::Unknown("panic")),
    ] {
        actors.send("a", text.to_owned()).unwrap();
        actors.send("a", "And now?".to_owned()).unwrap();
        expected.extend([failure.to_string(), "Fine.".to_owned()]);
        sleep(secs(200)).await;
        assert_eq!(posts.texts(), expected);
    }
    actors.shutdown(secs(10)).await;
    drop(actors);

    // The history is damaged while the process does not run.
    for file in ["log.jsonl", "context.jsonl", "context.jsonl.bak"] {
        let path = folder.path().join("a").join(file);
        if path.exists() {
            fs::write(path, "{\n{\n").unwrap();
        }
    }
    let posts = Posts::new();
    let actors = start(&posts);
    for text in ["And now?", "And then?"] {
        actors.send("a", text.to_owned()).unwrap();
        sleep(secs(10)).await;
    }
    let lost = TurnFailure::History.to_string();
    assert_eq!(posts.texts(), [format!("{lost}\n\nFine."), "Fine.".to_owned()]);
    actors.shutdown(secs(10)).await;
    for text in posts.texts().iter().chain(&expected) {
        assert!(!text.contains(SECRET), "{text}");
    }
}

/// Prompts of a thread run one after the other, and no thread waits for another one.
#[tokio::test(start_paused = true)]
async fn each_thread_has_an_actor_of_its_own() {
    let slow = PlanRule::new(Fault::first_token_after_ms(100_000)).contains("Slow.");
    let quick = PlanRule::new(Fault::first_token_after_ms(1_000)).contains("Quick.");
    let dead = PlanRule::new(status(401, "no")).contains("Dead.");
    let plan = FaultPlan::none().rule(slow).rule(quick).rule(dead);
    let sims = sims([plan], |_, provider| {
        provider.respond(|request| Some(Answer::text(request.last_user.clone())))
    });
    let world = World::of(&Stack::new(chain(&sims)).preset(PRESET), sims);
    let agent = TurnLoop::without_tools(world.llm.clone());
    let most = Arc::new(AtomicUsize::new(0));
    let running = Arc::new(AtomicUsize::new(0));
    let (most_seen, now) = (most.clone(), running.clone());
    let posts = Posts::new();
    let actors = mailboxes(
        move |asked: Prompt<String>| -> Turn {
            let (agent, most, now) = (agent.clone(), most_seen.clone(), now.clone());
            let request = ChatRequest::user(asked.input).with_model("any").streaming();
            Box::pin(async move {
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                let ended = agent.run(request).await;
                now.fetch_sub(1, SeqCst);
                ended
            })
        },
        &posts,
    );
    for (thread, text) in [("a", "Slow."), ("a", "After."), ("b", "Quick."), ("c", "Dead.")] {
        actors.send(thread, text.to_owned()).unwrap();
    }
    sleep(secs(2)).await;
    assert_eq!(actors.snapshot().threads, 3);
    let provider = TurnFailure::Provider.to_string();
    let row = |at, thread: &str, text: &str| (at, thread.to_owned(), text.to_owned());
    let mut expected = vec![row(0, "c", &provider), row(1_000, "b", "Quick.")];
    assert_eq!(posts.all(), expected);
    sleep(secs(200)).await;
    expected.extend([row(100_000, "a", "Slow."), row(100_000, "a", "After.")]);
    assert_eq!(posts.all(), expected);
    assert_eq!(most.load(SeqCst), 3, "three threads at once, and one prompt of each");
}
