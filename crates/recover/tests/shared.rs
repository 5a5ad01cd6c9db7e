//! Thinking that was signed at one node, and goes on at another.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{Block, Model, read, script, stream};
use steadfast_chat::{ChatRequest, Message, Part, Role, StopReason, Thinking, ThinkingConfig};
use steadfast_core::{Target, shared::EmbeddedStore};
use steadfast_recover::{ThinkingMemoryHandle, ThinkingMemoryLayer, ThinkingPolicy};
use steadfast_testkit::SharedNode;
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, ServiceExt};

struct Node {
    layer: ThinkingMemoryLayer,
    state: Arc<SharedNode>,
    model: Model,
}

/// Thinks, and then says which call it answers, or calls a tool.
fn model(name: &'static str) -> Model {
    Model::new(move |call, request| {
        let is_tool = request.messages.last().unwrap().text().contains("tool");
        let (stop, content) = match is_tool {
            true => (StopReason::ToolUse, Block::Call("ls", "{}".into())),
            false => (StopReason::EndTurn, Block::Text(format!("{name} answers {call}"))),
        };
        let blocks = [Block::Thinking(format!("{name} thinks {call}")), content];
        Ok(script(stream(&format!("{name}{call}"), &blocks, 5, true, stop)))
    })
}

fn node(store: &EmbeddedStore, name: &'static str) -> Node {
    node_with(store, name, ThinkingPolicy::default(), "")
}

fn node_with(
    store: &EmbeddedStore,
    name: &'static str,
    policy: ThinkingPolicy,
    mark: &'static str,
) -> Node {
    let layer = ThinkingMemoryLayer::new(policy);
    let state = Arc::new(SharedNode::new(store.join(name)));
    let shares = |handle: ThinkingMemoryHandle| {
        handle.share_named(state.clone(), move |target| Some(format!("{target}{mark}")))
    };
    assert!(shares(layer.handle()) && !shares(layer.handle()), "once");
    Node { layer, state, model: model(name) }
}

fn two() -> (Node, Node, EmbeddedStore) {
    let store = EmbeddedStore::new();
    (node(&store, "one"), node(&store, "other"), store)
}

fn request(list: &[Message], tenant: &str) -> ChatRequest {
    let mut request = ChatRequest::new(list.to_vec()).with_model("claude");
    request.params.thinking = Some(ThinkingConfig::Budget(2_000));
    request.context.target = Some(Target::new("anthropic").with_credential("main"));
    request.context.identity_mut().tenant = Some(tenant.into());
    request
}

impl Node {
    /// Adds `text` and the answer to it, as a caller has it that does not get thinking.
    async fn turn(&self, list: &mut Vec<Message>, text: &str) {
        list.push(Message::user(text));
        self.answer(list, "acme").await;
    }

    async fn answer(&self, list: &mut Vec<Message>, tenant: &str) {
        let service = self.layer.layer(self.model.clone());
        let response = service.oneshot(request(list, tenant)).await.unwrap();
        let mut answer = read(response).await.answer.into_message();
        answer.parts_mut().retain(|part| !part.is_thinking());
        list.push(answer);
        sleep(Duration::from_millis(1)).await;
    }

    /// The thinking that was last sent to the model.
    fn sent(&self) -> Vec<String> {
        let requests = self.model.requests.lock();
        let parts = requests.last().unwrap().messages.iter().flat_map(Message::parts);
        let thinking = parts.filter_map(|part| match part {
            Part::Thinking(thinking) => {
                assert!(thinking.signature.is_some());
                Some(thinking.text.clone())
            }
            _ => None,
        });
        thinking.collect()
    }
}

#[tokio::test(start_paused = true)]
async fn thinking_is_put_back_whichever_node_has_the_next_turn() {
    let (one, other, _) = two();
    let mut list = Vec::new();
    one.turn(&mut list, "a").await;
    one.turn(&mut list, "b").await;
    assert_eq!(one.sent(), ["one thinks 0"]);
    other.turn(&mut list, "c").await;
    assert_eq!(other.sent(), ["one thinks 0", "one thinks 1"], "in one read");
    assert_eq!(other.state.take_reads(), 1);
    one.turn(&mut list, "d").await;
    assert_eq!(one.sent(), ["one thinks 0", "one thinks 1", "other thinks 0"]);
    one.turn(&mut list, "e").await;
    assert_eq!(one.state.take_reads(), 1, "its own it knows");
}

#[tokio::test(start_paused = true)]
async fn a_tool_loop_goes_on_with_its_thinking() {
    let (one, other, _) = two();
    let mut list = Vec::new();
    one.turn(&mut list, "use a tool").await;
    let id = list[1].tool_calls().next().unwrap().id.clone();
    list.push(Message::new(Role::Tool, vec![Part::tool_result(id, "a.rs")]));
    other.answer(&mut list, "acme").await;
    assert_eq!(other.sent(), ["one thinks 0"]);
    assert_eq!(other.layer.handle().snapshot().returned, 1);
}

#[tokio::test(start_paused = true)]
async fn a_changed_history_does_not_get_it_nor_does_another_tenant_or_target() {
    let (one, other, store) = two();
    let mut list = Vec::new();
    one.turn(&mut list, "a").await;
    let mut changed = list.clone();
    changed[0] = Message::user("something else");
    other.turn(&mut changed, "b").await;
    assert_eq!(other.sent(), [""; 0]);
    let mut theirs = list.clone();
    theirs.push(Message::user("b"));
    other.answer(&mut theirs, "umbrella").await;
    assert_eq!(other.sent(), [""; 0]);
    let elsewhere = node_with(&store, "elsewhere", ThinkingPolicy::default(), " @another");
    sleep(Duration::from_millis(1)).await;
    elsewhere.turn(&mut list.clone(), "b").await;
    assert_eq!((elsewhere.sent().len(), elsewhere.state.take_reads()), (0, 0));
    other.turn(&mut list, "b").await;
    assert_eq!(other.sent(), ["one thinks 0"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_without_the_first_thinking_stays_without_it() {
    let store = EmbeddedStore::new();
    let small = ThinkingPolicy { max_returned: 30, ..ThinkingPolicy::default() };
    let (one, other) = (node_with(&store, "one", small, ""), node(&store, "other"));
    let mut list = Vec::new();
    for text in ["a", "b", "c"] {
        one.turn(&mut list, text).await;
    }
    assert_eq!(one.sent(), ["one thinks 1"], "as much as there is room for");
    other.turn(&mut list, "d").await;
    assert_eq!(other.sent(), ["one thinks 1", "one thinks 2"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_read_where_nothing_can_be_missing() {
    let (one, other, _) = two();
    let mut list = Vec::new();
    other.turn(&mut list, "a").await;
    let mut own = list.clone();
    other.turn(&mut own, "b").await;
    assert_eq!(other.state.take_reads(), 0, "nobody else has put any");
    one.turn(&mut Vec::new(), "x").await;
    assert_eq!(one.state.take_reads(), 0, "a first turn");
    other.turn(&mut own, "c").await;
    assert_eq!(other.state.take_reads(), 0, "it knows the last answer");
    // A caller that has the thinking, and one that wants none.
    let thought = |text: &str| {
        let thinking =
            Thinking { text: text.into(), signature: Some("s".into()), ..Default::default() };
        Message::new(Role::Assistant, vec![Part::Thinking(thinking), Part::text("ho")])
    };
    let mut has = vec![Message::user("hi"), thought("hm"), Message::user("b")];
    other.answer(&mut has, "acme").await;
    let mut request =
        request(&[Message::user("hi"), Message::assistant("ho"), Message::user("b")], "acme");
    request.params.thinking = None;
    let service = other.layer.layer(other.model.clone());
    drop(service.oneshot(request).await.unwrap());
    assert_eq!(other.state.take_reads(), 0);
    // Nobody knows this one, which is asked for once.
    let unknown = [Message::user("hi"), Message::assistant("ho"), Message::user("b")];
    for _ in 0..3 {
        other.answer(&mut unknown.to_vec(), "acme").await;
    }
    assert_eq!(other.state.take_reads(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_or_frozen_holds_no_call_up() {
    let (one, other, store) = two();
    let mut list = Vec::new();
    one.turn(&mut list, "a").await;
    store.set_away(true);
    let start = Instant::now();
    other.turn(&mut list.clone(), "b").await;
    assert_eq!((other.sent().len(), other.state.take_reads()), (0, 0));
    assert_eq!(start.elapsed().as_millis(), 1, "of the test's own");
    store.set_away(false);
    other.state.set_frozen(true);
    let start = Instant::now();
    other.turn(&mut list.clone(), "b").await;
    assert_eq!(other.sent(), [""; 0], "then without");
    assert!((20..=23).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    other.state.set_frozen(false);
    other.turn(&mut list.clone(), "b").await;
    assert_eq!(other.sent(), ["one thinks 0"]);
    store.lose();
    let late = node(&store, "late");
    sleep(Duration::from_millis(1)).await;
    late.turn(&mut list.clone(), "b").await;
    assert_eq!(late.sent(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_while_it_reads_sends_nothing() {
    let (one, other, _) = two();
    let mut list = Vec::new();
    one.turn(&mut list, "a").await;
    list.push(Message::user("b"));
    other.state.set_frozen(true);
    let service = other.layer.layer(other.model.clone());
    let mut call = Box::pin(service.oneshot(request(&list, "acme")));
    assert!(futures_util::poll!(call.as_mut()).is_pending());
    assert_eq!(other.state.take_reads(), 1);
    drop(call);
    assert_eq!(other.model.calls(), 0);
    assert_eq!(other.layer.handle().snapshot(), ThinkingMemoryLayer::default().handle().snapshot());
    other.state.set_frozen(false);
    other.answer(&mut list, "acme").await;
    assert_eq!(other.sent(), ["one thinks 0"]);
}

#[tokio::test(start_paused = true)]
async fn it_is_kept_for_its_time() {
    let (one, other, _) = two();
    let mut list = Vec::new();
    one.turn(&mut list, "a").await;
    advance(ThinkingPolicy::default().keep).await;
    other.turn(&mut list, "b").await;
    assert_eq!(other.sent(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_memory_that_is_off_shares_nothing() {
    let store = EmbeddedStore::new();
    let state = Arc::new(SharedNode::new(store.join("one")));
    assert!(!ThinkingMemoryLayer::off().handle().share(state));
}
