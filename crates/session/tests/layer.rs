//! The layer: what an agent is given, and what is kept of what it does.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use steadfast_chat::{ChatRequest, Completion, Delta, Event, Head, Message, Part, Role};
use steadfast_core::{CallContext, Dialect, Failure, Reason};
use steadfast_session::{
    LOST_HISTORY, PromptParts, SessionLayer, SessionPolicy, SessionPrompt, SessionReply,
    SessionRun, SessionScope, SessionStore, SessionTurn, TurnSink,
};
use steadfast_testkit::CapturedEvents;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

fn prompt(thread: &str, text: &str) -> SessionPrompt {
    SessionPrompt::new(thread, ChatRequest::user(text))
}

/// Role and text of each message, to compare by.
fn texts(messages: &[Message]) -> Vec<String> {
    let of = |message: &Message| format!("{}:{}", message.role().as_str(), message.text());
    messages.iter().map(of).collect()
}

/// Answers `re: TEXT` to the last message, and keeps what it was given.
#[derive(Clone, Default)]
struct Echo {
    given: Arc<Mutex<Vec<Vec<String>>>>,
    fail: Arc<AtomicUsize>,
}

impl Echo {
    async fn ask(
        &self,
        layer: &SessionLayer,
        prompt: SessionPrompt,
    ) -> Result<SessionReply, Failure> {
        let echo = self.clone();
        let service = service_fn(move |run: SessionRun| {
            let echo = echo.clone();
            async move {
                echo.given.lock().push(texts(&run.request.messages));
                let left = echo.fail.load(Ordering::Relaxed);
                if left > 0 {
                    echo.fail.store(left - 1, Ordering::Relaxed);
                    return Err(Failure::new(Reason::ServerError, "no"));
                }
                let last = run.request.messages.last().map(Message::text).unwrap_or_default();
                Ok(SessionTurn::from(Message::assistant(format!("re: {last}"))))
            }
        });
        layer.layer(service).oneshot(prompt).await
    }

    fn last_given(&self) -> Vec<String> {
        self.given.lock().last().cloned().unwrap_or_default()
    }
}

fn layer() -> (TempDir, SessionLayer) {
    let folder = tempfile::tempdir().unwrap();
    let layer = SessionLayer::new(SessionStore::new(folder.path()));
    (folder, layer)
}

async fn history(layer: &SessionLayer, thread: &str) -> Vec<String> {
    texts(&layer.store().open(thread).await.unwrap().history())
}

#[tokio::test]
async fn an_agent_is_given_the_system_prompt_the_history_and_the_prompt() {
    let (folder, layer) = layer();
    let memory = folder.path().join("memory.md");
    let layer = layer.with_prompt(PromptParts::new().text("be brief").file("Memory", &memory));
    let echo = Echo::default();
    let reply = echo.ask(&layer, prompt("a", "one")).await.unwrap();
    assert_eq!((reply.text().as_str(), reply.turn, reply.saved), ("re: one", 1, true));
    assert_eq!(echo.last_given(), ["system:be brief", "user:one"]);
    fs::write(memory, "tea").unwrap();
    echo.ask(&layer, prompt("a", "two")).await.unwrap();
    assert_eq!(
        echo.last_given(),
        ["system:be brief\n\n# Memory\n\ntea", "user:one", "assistant:re: one", "user:two"],
        "put together anew, and not in the history",
    );
    echo.ask(&layer, prompt("b", "other")).await.unwrap();
    assert_eq!(echo.last_given().len(), 2, "another thread has another history");
    let request = ChatRequest::new(vec![Message::system("in French"), Message::user("three")]);
    echo.ask(&layer, SessionPrompt::new("a", request)).await.unwrap();
    assert_eq!(echo.last_given()[1..3], ["system:in French", "user:one"]);
    assert_eq!(echo.last_given().len(), 7);
    let kept = history(&layer, "a").await;
    assert!(kept.iter().all(|text| !text.starts_with("system")), "for its run alone: {kept:?}");
}

#[tokio::test]
async fn the_prompts_settings_reach_the_agent_and_its_thread_is_the_session() {
    let (_folder, layer) = layer();
    let service = layer.layer(service_fn(|run: SessionRun| async move {
        assert_eq!(run.request.model.as_str(), "m");
        assert_eq!(run.request.context.session(), Some("a"));
        assert_eq!((&*run.thread, run.session), ("a", 1));
        Ok::<_, Failure>(SessionTurn::from(Message::assistant("ok")))
    }));
    let prompt = SessionPrompt::new("a", ChatRequest::user("hi").with_model("m"));
    service.oneshot(prompt).await.unwrap();
}

#[tokio::test]
async fn a_failed_run_leaves_nothing_and_its_retry_adds_the_prompt_once() {
    let (_folder, layer) = layer();
    let echo = Echo::default();
    echo.fail.store(2, Ordering::Relaxed);
    for _ in 0..2 {
        let failure = echo.ask(&layer, prompt("a", "one").with_key("k")).await.unwrap_err();
        assert_eq!(failure.reason(), Reason::ServerError, "the agent's own failure");
        assert_eq!(history(&layer, "a").await, [""; 0]);
    }
    echo.ask(&layer, prompt("a", "one").with_key("k")).await.unwrap();
    assert_eq!(history(&layer, "a").await, ["user:one", "assistant:re: one"]);
}

#[tokio::test]
async fn a_retry_after_the_answer_gets_the_same_answer_also_after_a_restart() {
    let (folder, layer) = layer();
    let echo = Echo::default();
    echo.ask(&layer, prompt("a", "one").with_key("k")).await.unwrap();
    echo.ask(&layer, prompt("a", "two").with_key("l")).await.unwrap();
    drop(layer);
    let layer = SessionLayer::new(SessionStore::new(folder.path()));
    let reply = echo.ask(&layer, prompt("a", "one").with_key("k")).await.unwrap();
    assert!(reply.replayed && reply.saved);
    assert_eq!((texts(&reply.messages), reply.turn), (vec!["assistant:re: one".to_owned()], 1));
    assert_eq!(echo.given.lock().len(), 2, "nothing was run");
    let reply = echo.ask(&layer, prompt("a", "one")).await.unwrap();
    assert!(!reply.replayed, "without a key each call is a new prompt");
    assert_eq!(history(&layer, "a").await.len(), 6);
    fs::write(folder.path().join("a/log.jsonl"), "").unwrap();
    let failure = echo.ask(&layer, prompt("a", "one").with_key("k")).await.unwrap_err();
    assert!(failure.message().contains("can not be read any more"), "never an empty answer");
}

#[tokio::test]
async fn an_answer_of_which_a_turn_is_gone_is_no_answer() {
    let (folder, layer) = layer();
    let ask = || prompt("a", "list").with_key("k");
    two_steps(&layer, ask(), false).await.unwrap();
    let path = folder.path().join("a/log.jsonl");
    let log = fs::read_to_string(&path).unwrap();
    fs::write(&path, log.replacen("a.txt", "b.txt", 1)).unwrap();
    let failure = two_steps(&layer, ask(), false).await.unwrap_err();
    assert!(failure.message().contains("can not be read any more"), "{}", failure.message());
}

#[tokio::test]
async fn the_wire_of_each_clause_about_what_never_enters() {
    let (_folder, layer) = layer();
    for (turn, what) in [
        (SessionTurn::from(Message::assistant("")), "has an empty message"),
        (SessionTurn::from(Message::new(Role::Assistant, Vec::new())), "has an empty message"),
        (SessionTurn::from(Message::system("obey")), "has instructions in it"),
    ] {
        let service = layer.layer(service_fn(move |_: SessionRun| {
            let turn = turn.clone();
            async { Ok::<_, Failure>(turn) }
        }));
        let failure = service.oneshot(prompt("a", "one")).await.unwrap_err();
        assert!(failure.message().contains(what), "{}", failure.message());
    }
    let service =
        layer.layer(service_fn(|_: SessionRun| async { Ok::<_, Failure>(SessionTurn::default()) }));
    let reply = service.oneshot(prompt("a", "one")).await.unwrap();
    assert_eq!((reply.turn, reply.messages.len()), (0, 0));
    assert_eq!(history(&layer, "a").await, [""; 0]);
    let echo = Echo::default();
    let failure = echo.ask(&layer, SessionPrompt::new("a", ChatRequest::new(vec![]))).await;
    assert!(failure.unwrap_err().message().contains("has no message"));
    let failure = echo.ask(&layer, prompt("", "one")).await.unwrap_err();
    assert!(failure.message().contains("no thread is named"));
}

#[test]
fn an_answer_that_has_not_ended_or_is_empty_is_no_turn() {
    let answer = |deltas: Vec<Delta>| {
        let mut answer = Completion::new(Head::new(Dialect::OpenAi));
        answer.push(&Event::new(deltas));
        SessionTurn::from_answer(answer)
    };
    let text = || Delta::Text { index: 0, text: "hi".into() };
    for (deltas, what) in
        [(vec![text()], "has not ended"), (vec![Delta::End], "is empty"), (vec![], "has not ended")]
    {
        assert!(answer(deltas).unwrap_err().message().contains(what));
    }
    assert_eq!(texts(&answer(vec![text(), Delta::End]).unwrap().messages), ["assistant:hi"]);
}

/// An agent of two steps that stops between them as often as `interrupt` says.
async fn two_steps(
    layer: &SessionLayer,
    prompt: SessionPrompt,
    interrupt: bool,
) -> Result<SessionReply, Failure> {
    let service = layer.layer(service_fn(move |run: SessionRun| async move {
        let call = Message::new(Role::Assistant, vec![Part::tool_call("c1", "ls", "{}")]);
        let is_first = run.request.messages.iter().all(|message| message.role() != Role::Tool);
        if is_first {
            let step = run.turns.end_turn(vec![call, Message::tool("c1", "a.txt")]).await?;
            assert!(step.saved);
        }
        if interrupt {
            return Err(Failure::new(Reason::Network, "gone"));
        }
        Ok(SessionTurn::from(Message::assistant("there is a.txt")))
    }));
    service.oneshot(prompt).await
}

#[tokio::test]
async fn each_turn_of_a_run_is_saved_and_a_retry_goes_on_after_it() {
    let (folder, layer) = layer();
    let ask = || prompt("a", "list").with_key("k");
    let _ = two_steps(&layer, ask(), true).await.unwrap_err();
    let steps = ["user:list", "assistant:", "tool:"];
    assert_eq!(history(&layer, "a").await, steps, "what was reported stays");
    drop(layer);
    let layer = SessionLayer::new(SessionStore::new(folder.path()));
    let log = ask();
    let reply = two_steps(&layer, log.clone(), false).await.unwrap();
    assert_eq!((reply.turn, reply.text().as_str()), (2, "there is a.txt"));
    let steps = log.request.context.log.steps();
    assert_eq!(steps.iter().map(|step| step.action).collect::<Vec<_>>(), ["resumed"]);
    let whole = ["user:list", "assistant:", "tool:", "assistant:there is a.txt"];
    assert_eq!(history(&layer, "a").await, whole, "the prompt is there once");
    let reply = two_steps(&layer, ask(), false).await.unwrap();
    assert!(reply.replayed);
    assert_eq!(texts(&reply.messages), whole[1..], "the whole answer");
}

#[tokio::test]
async fn a_retry_after_other_prompts_is_refused() {
    let (_folder, layer) = layer();
    let _ = two_steps(&layer, prompt("a", "list").with_key("k"), true).await.unwrap_err();
    Echo::default().ask(&layer, prompt("a", "hello")).await.unwrap();
    let failure = two_steps(&layer, prompt("a", "list").with_key("k"), false).await.unwrap_err();
    assert!(failure.message().contains("send it under a new key"), "{}", failure.message());
    assert_eq!(failure.reason(), Reason::Format);
}

#[tokio::test]
async fn a_call_without_a_result_is_answered_for_the_target_and_stays_as_it_was() {
    let (folder, layer) = layer();
    let call = Message::new(Role::Assistant, vec![Part::tool_call("c1", "ls", "{}")]);
    let mut thread = layer.store().open("a").await.unwrap();
    assert!(thread.end_turn(vec![Message::user("list"), call]).await.saved);
    drop(thread);
    let echo = Echo::default();
    let events = CapturedEvents::default();
    let guard = tracing::subscriber::set_default(events.clone());
    let asked = prompt("a", "and?");
    echo.ask(&layer, asked.clone()).await.unwrap();
    drop(guard);
    assert_eq!(echo.last_given().len(), 4);
    assert_eq!(echo.last_given()[2], "tool:", "a result was made");
    let name = "steadfast::session::repaired";
    assert!(events.take().iter().any(|event| event.starts_with(name)));
    assert_eq!(asked.request.context.log.steps()[0].action, "repaired");
    assert_eq!(history(&layer, "a").await.len(), 4, "and is not kept: it is made each time");
    drop(folder);
}

#[tokio::test]
async fn what_is_reported_after_the_run_is_not_added() {
    let (_folder, layer) = layer();
    let kept: Arc<Mutex<Option<TurnSink>>> = Arc::default();
    let keep = kept.clone();
    let service = layer.layer(service_fn(move |run: SessionRun| {
        *keep.lock() = Some(run.turns);
        async { Ok::<_, Failure>(SessionTurn::from(Message::assistant("done"))) }
    }));
    service.oneshot(prompt("a", "one")).await.unwrap();
    let is_over = async || {
        let sink = kept.lock().take().unwrap();
        let error = sink.end_turn(Message::assistant("late")).await.unwrap_err();
        assert!(error.to_string().contains("is over"), "{error}");
    };
    is_over().await;

    // Failed, and dropped.
    for fails in [true, false] {
        let keep = kept.clone();
        let service = layer.layer(service_fn(move |run: SessionRun| {
            *keep.lock() = Some(run.turns);
            async move {
                if !fails {
                    std::future::pending::<()>().await;
                }
                Err::<SessionTurn, _>(Failure::new(Reason::Network, "gone"))
            }
        }));
        let run = tokio::spawn(service.oneshot(prompt("a", "one")));
        common::until(|| kept.lock().is_some()).await;
        if fails {
            let _ = run.await.unwrap().unwrap_err();
        } else {
            run.abort();
            let _ = run.await.unwrap_err();
        }
        is_over().await;
    }
    assert_eq!(history(&layer, "a").await.len(), 2);
}

#[tokio::test]
async fn a_run_that_is_dropped_at_any_point_leaves_a_whole_history() {
    // Polled so many times, then dropped; each poll waits for the blocking task before it.
    for polls in 0..12 {
        let (folder, layer) = layer();
        let run = two_steps(&layer, prompt("a", "list").with_key("k"), false);
        let mut run = Box::pin(run);
        for _ in 0..polls {
            if tokio::time::timeout(Duration::from_millis(2), &mut run).await.is_ok() {
                break;
            }
        }
        drop(run);
        // A new process: whatever was acknowledged or not, the history is one of three.
        let found = history(&layer, "a").await.len();
        assert!([0, 3, 4].contains(&found), "{found} messages after {polls} polls");
        let reply = two_steps(&layer, prompt("a", "list").with_key("k"), false).await.unwrap();
        assert_eq!(reply.text(), "there is a.txt");
        assert_eq!(history(&layer, "a").await.len(), 4);
        assert!(layer.store().verify().unwrap()[0].is_ok());
        drop(folder);
    }
}

#[tokio::test]
async fn turns_of_one_thread_are_serialised_and_of_two_are_not() {
    let (_folder, layer) = layer();
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (count, peak) = (running.clone(), most.clone());
    let service = layer.layer(service_fn(move |run: SessionRun| {
        let (running, most) = (count.clone(), peak.clone());
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            running.fetch_sub(1, Ordering::SeqCst);
            let text = format!("after {}", run.request.messages.len());
            Ok::<_, Failure>(SessionTurn::from(Message::assistant(text)))
        }
    }));
    let ask = |thread: String| {
        let mut service = service.clone();
        async move { service.ready().await.unwrap().call(prompt(&thread, "hi")).await.unwrap() }
    };
    let tasks: Vec<_> = (0..8).map(|_| tokio::spawn(ask("one".into()))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(most.swap(0, Ordering::SeqCst), 1);
    let seen = history(&layer, "one").await;
    let answers: Vec<_> = seen.iter().skip(1).step_by(2).cloned().collect();
    let expected: Vec<_> = (0..8).map(|n| format!("assistant:after {}", 2 * n + 1)).collect();
    assert_eq!(answers, expected, "each saw all before it");

    // Nobody waits for another thread: this agent answers only when both are running.
    let both = Arc::new(tokio::sync::Barrier::new(2));
    let service = layer.layer(service_fn(move |_: SessionRun| {
        let both = both.clone();
        async move {
            both.wait().await;
            Ok::<_, Failure>(SessionTurn::from(Message::assistant("met")))
        }
    }));
    let (one, two) =
        tokio::join!(service.clone().oneshot(prompt("x", "")), service.oneshot(prompt("y", "")));
    assert_eq!((one.unwrap().text(), two.unwrap().text()), ("met".into(), "met".into()));
}

#[tokio::test]
async fn too_many_callers_of_one_thread_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let policy = SessionPolicy { max_waiting: 2, ..SessionPolicy::default() };
    let store = SessionStore::with_policy(folder.path(), policy).unwrap();
    let first = store.open("a").await.unwrap();
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.open("a").await.map(drop) })
        })
        .collect();
    common::until(|| store.snapshot().waiting == 2).await;
    let failure = Failure::from(store.open("a").await.unwrap_err());
    assert!(failure.message().contains("`session.max_waiting`"), "{}", failure.message());
    assert_eq!(failure.reason(), Reason::Budget);
    drop(first);
    for caller in waiting {
        caller.await.unwrap().unwrap();
    }
    assert_eq!(store.snapshot().waiting, 0);
}

/// The folder of a thread of three turns that can not be read any more.
async fn lost() -> (TempDir, Echo) {
    let (folder, layer) = layer();
    let echo = Echo::default();
    for text in ["one", "two", "three"] {
        echo.ask(&layer, prompt("a", text).with_key(text)).await.unwrap();
    }
    drop(layer);
    let at = |name: &str| folder.path().join("a").join(name);
    let log = fs::read_to_string(at("log.jsonl")).unwrap();
    fs::write(at("log.jsonl"), log.replacen("two", "TWO", 1)).unwrap();
    fs::write(at("context.jsonl"), "{").unwrap();
    fs::write(at("context.jsonl.bak"), "{").unwrap();
    (folder, echo)
}

/// A run that fails after a turn has informed nobody. A retry of the prompt whose answer did gets that very answer.
#[tokio::test]
async fn a_lost_history_is_reported_until_an_answer_has_done_it() {
    for restarts in [false, true] {
        let (folder, echo) = lost().await;
        let mut layer = SessionLayer::new(SessionStore::new(folder.path()));
        let restart = |layer: &mut SessionLayer| {
            if restarts {
                *layer = SessionLayer::new(SessionStore::new("nowhere"));
                *layer = SessionLayer::new(SessionStore::new(folder.path()));
            }
        };
        let _ = two_steps(&layer, prompt("a", "list").with_key("k"), true).await.unwrap_err();
        restart(&mut layer);
        assert_eq!(layer.store().open("a").await.unwrap().notice(), Some(LOST_HISTORY));
        let reply = two_steps(&layer, prompt("a", "list").with_key("k"), false).await.unwrap();
        assert_eq!((reply.notice, reply.turn), (Some(LOST_HISTORY), 5));
        restart(&mut layer);
        let reply = two_steps(&layer, prompt("a", "list").with_key("k"), false).await.unwrap();
        assert_eq!((reply.notice, reply.replayed), (Some(LOST_HISTORY), true));
        let reply = echo.ask(&layer, prompt("a", "four").with_key("four")).await.unwrap();
        assert_eq!(reply.notice, None);
        for old in ["three", "four"] {
            let reply = echo.ask(&layer, prompt("a", old).with_key(old)).await.unwrap();
            assert_eq!((reply.notice, reply.replayed), (None, true), "{old}");
        }
    }
}

#[tokio::test]
async fn a_lost_history_is_reported_with_the_first_answer_after_it() {
    let (folder, echo) = lost().await;
    let events = CapturedEvents::default();
    let guard = tracing::subscriber::set_default(events.clone());
    let layer = SessionLayer::new(SessionStore::new(folder.path()));
    echo.fail.store(1, Ordering::Relaxed);
    let _ = echo.ask(&layer, prompt("a", "four")).await.unwrap_err();
    drop(layer);
    let layer = SessionLayer::new(SessionStore::new(folder.path()));
    let reply = echo.ask(&layer, prompt("a", "four")).await.unwrap();
    assert_eq!(reply.notice, Some(LOST_HISTORY), "also after a failed run and a restart");
    assert_eq!((reply.session, reply.turn), (2, 4));
    assert_eq!(echo.last_given(), ["user:four"]);
    let reply = echo.ask(&layer, prompt("a", "five")).await.unwrap();
    assert_eq!((reply.notice, echo.last_given().len()), (None, 3), "once");
    drop(guard);
    let lost: Vec<_> = events.take();
    let lost = lost.iter().filter(|event| event.starts_with("steadfast::session::lost"));
    assert_eq!(lost.count(), 1);
    let kept: Vec<_> = fs::read_dir(folder.path().join("a"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(".bad"))
        .collect();
    assert_eq!(kept.len(), 3, "both contexts and the line: {kept:?}");
    let shown = layer.store().show(&SessionScope::thread("a")).unwrap();
    assert_eq!(shown.entries.len(), 5, "two turns of three, the start, two turns");
}

#[tokio::test]
async fn rollover_is_explicit_and_an_ambiguous_scope_is_refused() {
    let (_folder, layer) = layer();
    let echo = Echo::default();
    for thread in ["slack/1", "slack/2", "irc"] {
        echo.ask(&layer, prompt(thread, "old")).await.unwrap();
    }
    let store = layer.store();
    let events = CapturedEvents::default();
    let guard = tracing::subscriber::set_default(events.clone());
    for (scope, text) in [
        (SessionScope::prefix("slack/"), "2 threads are `slack/...`"),
        (SessionScope::thread("slack"), "there is no thread `slack`"),
        (SessionScope::thread("irc").in_session(2), "session 1 is"),
        (SessionScope::prefix(""), "no thread is named"),
    ] {
        let error = store.roll_over(&scope).await.unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(store.roll_over(&SessionScope::prefix("ir").in_session(1)).await.unwrap(), 2);
    drop(guard);
    let events = events.take();
    let count = |name: &str| events.iter().filter(|event| event.starts_with(name)).count();
    assert_eq!(count("steadfast::session::refused"), 4);
    assert_eq!(count("steadfast::session::rolled_over"), 1);
    let failure = echo.ask(&layer, prompt("irc", "new").in_session(1)).await.unwrap_err();
    assert!(failure.message().contains("is not live"), "{}", failure.message());
    let reply = echo.ask(&layer, prompt("irc", "new").in_session(2)).await.unwrap();
    assert_eq!((reply.turn, echo.last_given()), (2, vec!["user:new".to_owned()]));
    for thread in ["slack/1", "slack/2"] {
        assert_eq!(history(&layer, thread).await.len(), 2, "untouched");
    }
}

#[tokio::test]
async fn an_agent_can_make_its_history_shorter_and_the_log_keeps_all() {
    let (folder, layer) = layer();
    let echo = Echo::default();
    for text in ["one", "two"] {
        echo.ask(&layer, prompt("a", text)).await.unwrap();
    }
    let service = layer.layer(service_fn(|_: SessionRun| async {
        let answer = Message::assistant("three");
        let history = vec![Message::user("(summary)"), answer.clone()];
        Ok::<_, Failure>(SessionTurn::from(answer).with_history(history))
    }));
    service.oneshot(prompt("a", "shorter")).await.unwrap();
    drop(layer);
    let layer = SessionLayer::new(SessionStore::new(folder.path()));
    echo.ask(&layer, prompt("a", "four")).await.unwrap();
    assert_eq!(echo.last_given(), ["user:(summary)", "assistant:three", "user:four"]);
    assert!(layer.store().verify().unwrap()[0].is_ok());
    assert_eq!(layer.store().show(&SessionScope::thread("a")).unwrap().entries.len(), 4);
}

#[tokio::test]
async fn prompts_that_wait_for_a_busy_thread_hold_nothing_of_the_inner_service() {
    let (_folder, layer) = layer();
    let (running, finish) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (began, may_end) = (running.clone(), finish.clone());
    let service = ServiceBuilder::new().concurrency_limit(2).service_fn(move |run: SessionRun| {
        let (began, may_end) = (began.clone(), may_end.clone());
        async move {
            began.add_permits(1);
            if &*run.thread == "busy" {
                may_end.acquire().await.unwrap().forget();
            }
            let text = run.request.messages.len().to_string();
            Ok::<_, Failure>(SessionTurn::from(Message::assistant(text)))
        }
    });
    let service = layer.layer(service);
    let ask = |thread: &'static str| {
        let mut service = service.clone();
        tokio::spawn(async move { service.ready().await.unwrap().call(prompt(thread, "hi")).await })
    };
    let text = async |answer: tokio::task::JoinHandle<Result<SessionReply, Failure>>| {
        answer.await.unwrap().unwrap().text()
    };
    let first = ask("busy");
    running.acquire().await.unwrap().forget();
    let more = [ask("busy"), ask("busy")];
    common::until(|| layer.store().snapshot().waiting == 2).await;
    assert_eq!(text(ask("other")).await, "1", "one permit is taken, and one is free");
    finish.add_permits(3);
    assert_eq!(text(first).await, "1");
    for (answer, expected) in more.into_iter().zip(["3", "5"]) {
        assert_eq!(text(answer).await, expected);
    }
}

/// Never ready, and never called.
#[derive(Clone)]
struct Closed;

impl Service<SessionRun> for Closed {
    type Response = SessionTurn;
    type Error = Failure;
    type Future = std::future::Ready<Result<SessionTurn, Failure>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Failure>> {
        std::task::Poll::Ready(Err(Failure::new(Reason::Network, "closed")))
    }

    fn call(&mut self, _: SessionRun) -> Self::Future {
        panic!("it is not ready");
    }
}

#[tokio::test]
async fn an_inner_service_that_is_never_ready_again_fails_the_prompt() {
    let (_folder, layer) = layer();
    let failure = layer.layer(Closed).oneshot(prompt("a", "hi")).await.unwrap_err();
    assert_eq!(failure.message(), "closed");
    assert_eq!(history(&layer, "a").await, [""; 0]);
}

#[test]
fn nothing_of_a_prompt_is_in_what_is_printed() {
    let request = ChatRequest::user("secret words").with_context(CallContext::default());
    let printed = format!("{:?}", SessionPrompt::new("a", request));
    assert!(!printed.contains("secret"), "{printed}");
}
