//! Compactions that one node has made, and others go on with.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use steadfast_chat::{ChatRequest, Message};
use steadfast_compact::CompactionLayer;
use steadfast_core::shared::EmbeddedStore;
use steadfast_testkit::SharedNode;
use support::*;
use tokio::time::{Instant, sleep};

struct Node {
    layer: CompactionLayer,
    summariser: Model,
    model: Model,
    state: Arc<SharedNode>,
}

fn node(store: &EmbeddedStore, name: &'static str) -> Node {
    let summariser =
        Model::at_once(move |number, _| Ok(say(&format!("Record {number} of {name}."))));
    let layer = CompactionLayer::new(summariser.clone()).with_targets(window(8_192));
    let state = Arc::new(SharedNode::new(store.join(name)));
    assert!(layer.handle().share(state.clone()));
    Node { layer, summariser, model: Model::fine(), state }
}

fn two() -> (Node, Node, EmbeddedStore) {
    let store = EmbeddedStore::new();
    (node(&store, "one"), node(&store, "other"), store)
}

impl Node {
    async fn turn(&self, list: &[Message], session: &str) -> Vec<String> {
        let own = request(list.to_vec(), support::session(session));
        self.send(own).await
    }

    /// What the model is sent.
    async fn send(&self, request: ChatRequest) -> Vec<String> {
        ask(&stacked(&self.layer, &self.model), request).await.unwrap();
        sleep(Duration::from_millis(1)).await;
        self.model.last().messages.iter().map(Message::text).collect()
    }
}

/// The next turn of a conversation.
fn next(list: &[Message]) -> Vec<Message> {
    let more = [Message::assistant("ok"), Message::user("go on")];
    list.iter().cloned().chain(more).collect()
}

/// As another process reads them.
fn copied(list: &[Message]) -> Vec<Message> {
    serde_json::from_slice(&serde_json::to_vec(list).unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_next_turn_at_another_node_has_the_same_summary() {
    let (one, other, _) = two();
    let list = talk(120, 20);
    let sent = one.turn(&list, "s").await;
    assert!(sent.iter().any(|text| text.contains("Record 0 of one.")));
    let list = copied(&next(&list));
    let went = other.turn(&list, "s").await;
    assert_eq!(went[..sent.len()], sent, "what its provider has in its cache");
    assert_eq!((other.summariser.calls(), other.state.take_reads()), (0, 1));
    let conversations = other.layer.handle().snapshot().conversations;
    assert!(conversations[0].saved > 0);
    other.turn(&next(&list), "s").await;
    assert_eq!((other.summariser.calls(), other.state.take_reads()), (0, 0), "it knows it");
}

#[tokio::test(start_paused = true)]
async fn the_next_compaction_goes_on_from_the_record_whoever_has_made_it() {
    let (one, other, _) = two();
    let mut list = talk(120, 20);
    one.turn(&list, "s").await;
    let mut compactions = 0;
    for turn in 0..150 {
        list.push(Message::assistant(format!("more {turn}: {}", "all is well ".repeat(16))));
        list.push(Message::user(format!("next {turn}")));
        other.turn(&copied(&list), "s").await;
        compactions = other.summariser.calls();
        if compactions > 0 {
            break;
        }
    }
    assert_eq!(compactions, 1);
    assert!(other.summariser.last().messages[1].text().contains("Record 0 of one."));
    // And back, as it is the longer one now.
    let went = one.turn(&list, "s").await;
    assert!(went.iter().any(|text| text.contains("Record 0 of other.")), "{went:?}");
    assert_eq!(one.summariser.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn another_history_or_tenant_does_not_get_it() {
    let (one, other, _) = two();
    let list = talk(120, 20);
    one.turn(&list, "s").await;
    let mut edited = list.clone();
    edited[2] = Message::user("something else entirely");
    other.turn(&edited, "s").await;
    assert_eq!(other.summariser.calls(), 1);
    other.turn(&list, "another").await;
    assert_eq!(other.summariser.calls(), 2);
    let mut theirs = request(list.clone(), session("s"));
    theirs.context.identity_mut().tenant = Some("umbrella".into());
    other.send(theirs).await;
    assert_eq!(other.summariser.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_what_fits_or_while_nobody_has_compacted() {
    let (one, other, _) = two();
    one.turn(&talk(120, 20), "s").await;
    assert_eq!((one.state.take_reads(), one.state.take_writes()), (0, 1));
    other.turn(&talk(4, 20), "t").await;
    assert_eq!((other.state.take_reads(), other.state.take_writes()), (0, 0));
    one.turn(&next(&talk(120, 20)), "s").await;
    assert_eq!(one.state.take_writes(), 0, "it is known");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_frozen_or_empty_holds_no_call_up() {
    let (one, other, store) = two();
    let list = talk(120, 20);
    one.turn(&list, "s").await;
    store.set_away(true);
    let start = Instant::now();
    other.turn(&list, "s").await;
    assert_eq!((other.summariser.calls(), start.elapsed().as_millis()), (1, 1));
    store.set_away(false);
    let frozen = node(&store, "frozen");
    frozen.state.set_frozen(true);
    sleep(Duration::from_millis(1)).await;
    let start = Instant::now();
    frozen.turn(&list, "s").await;
    assert_eq!(frozen.summariser.calls(), 1);
    assert!((20..=23).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    store.lose();
    let late = node(&store, "late");
    sleep(Duration::from_millis(1)).await;
    late.turn(&list, "s").await;
    assert_eq!((late.summariser.calls(), late.state.take_reads()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_while_it_reads_leaves_nothing_behind() {
    let (one, other, _) = two();
    let list = talk(120, 20);
    one.turn(&list, "s").await;
    other.state.set_frozen(true);
    {
        let service = stacked(&other.layer, &other.model);
        let mut call = Box::pin(ask(&service, request(list.clone(), session("s"))));
        let polled = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending())).await;
        assert!(polled, "it reads");
        assert_eq!(other.state.take_reads(), 1);
    }
    let conversations = other.layer.handle().snapshot().conversations;
    assert!(conversations.iter().all(|one| !one.is_busy && one.compactions == 0));
    other.state.set_frozen(false);
    other.turn(&list, "s").await;
    assert_eq!((other.summariser.calls(), other.model.calls()), (0, 1));
}
