//! Under the mailboxes of `steadfast-supervise`: what the users of a thread read.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;

use steadfast_chat::{ChatRequest, Message};
use steadfast_core::Failure;
use steadfast_session::{
    SessionLayer, SessionPrompt, SessionReply, SessionRun, SessionStore, SessionTurn,
};
use steadfast_supervise::{Actors, PostBody, Prompt, ThreadPost, TurnFailure};
use tokio::sync::mpsc;
use tower::{Layer, ServiceExt, service_fn};

/// Sends this to the thread `a`; the text that its user gets.
async fn ask(folder: &std::path::Path, text: &'static str) -> String {
    let agent = service_fn(|run: SessionRun| async move {
        let answer = Message::assistant(format!("{} messages", run.request.messages.len()));
        Ok::<_, Failure>(SessionTurn::from(answer))
    });
    let sessions = SessionLayer::new(SessionStore::new(folder)).layer(agent);
    let turn = sessions.map_request(|prompt: Prompt<&'static str>| {
        let request = ChatRequest::user(prompt.input).with_context(prompt.context);
        SessionPrompt::new(prompt.thread.thread(), request)
    });
    let (sender, mut posts) = mpsc::unbounded_channel();
    let actors = Actors::new(turn, move |post: ThreadPost<SessionReply>| {
        let _ = sender.send(match post.body {
            PostBody::Reply(reply) => reply.to_string(),
            PostBody::Failed(failure) => failure.to_string(),
            other => panic!("{other:?}"),
        });
        async { Ok(()) }
    });
    actors.send("a", text).unwrap();
    let text = posts.recv().await.unwrap();
    actors.shutdown(std::time::Duration::from_secs(10)).await;
    text
}

#[tokio::test]
async fn a_lost_history_has_one_text_whoever_finds_it() {
    let folder = tempfile::tempdir().unwrap();
    for (text, answer) in [("one", "1 messages"), ("two", "3 messages"), ("three", "5 messages")] {
        assert_eq!(ask(folder.path(), text).await, answer);
    }
    let at = |name: &str| folder.path().join("a").join(name);
    let log = fs::read_to_string(at("log.jsonl")).unwrap();
    fs::write(at("log.jsonl"), log.replacen("two", "TWO", 1)).unwrap();
    fs::write(at("context.jsonl"), "{").unwrap();
    fs::write(at("context.jsonl.bak"), "{").unwrap();
    let text = TurnFailure::History.to_string();
    assert_eq!(ask(folder.path(), "four").await, format!("{text}\n\n1 messages"));
    assert_eq!(ask(folder.path(), "five").await, "3 messages", "once");
}

#[tokio::test]
async fn a_history_that_may_not_be_read_is_not_reported_as_lost() {
    let folder = tempfile::tempdir().unwrap();
    ask(folder.path(), "one").await;
    let log = folder.path().join("a/log.jsonl");
    let kept = fs::read(&log).unwrap();
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    assert_eq!(
        ask(folder.path(), "two").await,
        "Something went wrong (unknown). Please send your message again.",
    );
    fs::remove_dir(&log).unwrap();
    fs::write(&log, kept).unwrap();
    assert_eq!(ask(folder.path(), "two").await, "3 messages", "nothing was lost");
}
