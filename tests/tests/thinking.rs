//! Thinking that is bound to its prefix, through the default stack: what a provider refuses is repaired where it
//! was refused, and a conversation that comes back to a provider has its thinking again, which nobody else is
//! shown.

#![allow(clippy::needless_pass_by_value, clippy::unwrap_used, clippy::expect_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use steadfast::{
    ChatRequest, ChatService, Dialect, Handles, Message, Part, RawJson, Reason, Stack,
    ThinkingConfig, Tool,
    recover::ThinkingMemoryLayer,
    sim::{Answer, ContinuationMode, ErrorKind, Fault, FaultPlan, How, PlanRule, SimProvider},
};
use steadfast_tests::harness::{CallResult, chain, client};

struct World {
    sims: Vec<SimProvider>,
    service: ChatService,
    handles: Handles,
}

impl World {
    fn new(first: FaultPlan, memory: ThinkingMemoryLayer) -> Self {
        let answers = |name: &str| {
            let name = name.to_owned();
            move |n: u32| {
                Answer::thinking(format!("{name} thinks {n}")).then_text(format!("{name} says {n}"))
            }
        };
        let sims: Vec<_> = [("anthropic", Dialect::Anthropic), ("resold", Dialect::Anthropic)]
            .map(|(name, dialect)| {
                let plan = if name == "anthropic" { first.clone() } else { FaultPlan::none() };
                SimProvider::builder(dialect)
                    .with_name(name)
                    .with_seed(name.len() as u64)
                    .with_continuation(ContinuationMode::Faithful)
                    .with_script((0..20).map(answers(name)))
                    .with_faults(plan)
                    .build()
            })
            .into();
        let stack = Stack::new(chain(&sims)).with_thinking(memory);
        let handles = stack.handles();
        Self { service: stack.boxed(client(&sims)), sims, handles }
    }

    async fn ask(&self, messages: &[Message], session: Option<&str>) -> CallResult {
        self.call(messages, session, false).await
    }

    async fn call(&self, messages: &[Message], session: Option<&str>, stream: bool) -> CallResult {
        let mut request = ChatRequest::new(messages.to_vec()).with_model("any");
        request.params.thinking = Some(ThinkingConfig::Budget(2_000));
        request.context.identity_mut().session = session.map(Into::into);
        request.stream = stream;
        CallResult::of(&self.service, request).await
    }

    /// The thinking in the last request to a provider, and its signatures.
    fn sent(&self, at: usize) -> Vec<(String, String)> {
        let entry = self.sims[at].journal().entries().pop().unwrap();
        let body = entry.json.unwrap();
        let blocks = body["messages"].as_array().unwrap().iter();
        let blocks =
            blocks.flat_map(|message| message["content"].as_array().cloned().unwrap_or_default());
        let thinking = blocks.filter(|block| block["type"] == "thinking");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        thinking.map(|block| (text(&block["thinking"]), text(&block["signature"]))).collect()
    }

    fn asked(&self) -> [usize; 2] {
        [0, 1].map(|at| self.sims[at].journal().entries().len())
    }
}

fn thoughts(sent: &[(String, String)]) -> Vec<&str> {
    sent.iter().map(|(text, _)| text.as_str()).collect()
}

/// The answer of a caller whose dialect has no thinking that is sent back.
fn without_thinking(answer: Message) -> Message {
    let mut answer = answer;
    answer.parts_mut().retain(|part| !part.is_thinking());
    answer
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_bound_thinking_is_repaired_once_at_the_same_target() {
    for memory in [ThinkingMemoryLayer::off(), ThinkingMemoryLayer::default()] {
        let remembers = memory.handle();
        let world = World::new(FaultPlan::none(), memory);
        // As a caller has it whose process began before this one, and who has edited its history.
        let elsewhere = World::new(FaultPlan::none(), ThinkingMemoryLayer::off());
        let mut list = vec![Message::user("one")];
        list.push(elsewhere.ask(&list, None).await.answer().clone().into_message());
        list[0] = Message::user("something else");
        list.push(Message::user("two"));
        let got = world.ask(&list, None).await;
        assert_eq!(got.failure.as_ref().map(|failure| failure.to_string()), None);
        assert_eq!(got.seen.as_ref().unwrap().text(), "anthropic says 0");
        assert_eq!(world.asked(), [2, 0], "the same target, once more, and no other");
        let refused: Vec<_> = world.sims[0]
            .journal()
            .entries()
            .into_iter()
            .map(|entry| entry.refused.is_some())
            .collect();
        assert_eq!(refused, [true, false]);
        assert_eq!(world.sent(0), []);
        for breaker in world.handles.breaker.snapshot() {
            assert_eq!(breaker.circuit.consecutive, 0, "{breaker:?}");
        }
        assert_eq!(got.seen.unwrap().head.attempts, 2);

        // From now on it is left out at once, where that is remembered, and what was written since is not.
        list.push(Message::assistant("anthropic says 0"));
        list.push(Message::user("three"));
        let again = world.ask(&list, None).await;
        assert!(again.failure.is_none());
        let remembered = remembers.snapshot().blocks > 0;
        assert_eq!(world.asked(), [if remembered { 3 } else { 4 }, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_stays_is_the_callers_and_goes_nowhere() {
    let body = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation."}}"#;
    let refusal =
        steadfast::sim::RawResponse { status: 400, headers: Default::default(), body: body.into() };
    let world =
        World::new(FaultPlan::always(Fault::Status(refusal)), ThinkingMemoryLayer::default());
    let elsewhere = World::new(FaultPlan::none(), ThinkingMemoryLayer::off());
    let mut list = vec![Message::user("one")];
    list.push(elsewhere.ask(&list, None).await.answer().clone().into_message());
    list.push(Message::user("two"));
    let failure = world.ask(&list, None).await.failure.unwrap();
    assert_eq!(failure.reason(), Reason::Format);
    assert!(
        failure.evidence().contains("bound to a different conversation"),
        "{}",
        failure.evidence()
    );
    assert_eq!(world.asked(), [2, 0]);
    assert!(
        world.handles.failover.snapshot().targets().iter().all(|target| target.cooling.is_none())
    );
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_is_back_has_its_thinking_again() {
    for keeps in [true, false] {
        let down = PlanRule::new(Fault::Error(ErrorKind::Overloaded)).nth(2);
        let plan = (3..20).fold(FaultPlan::none().rule(down), |plan, n| {
            let down = PlanRule::new(Fault::Error(ErrorKind::Overloaded)).nth(n);
            if n < 5 { plan.rule(down) } else { plan }
        });
        let world = World::new(plan, ThinkingMemoryLayer::default());
        let mut list = Vec::new();
        let mut from = Vec::new();
        for turn in 0..5 {
            list.push(Message::user(format!("question {turn}")));
            let got = world.ask(&list, Some("s")).await;
            let answer = got.answer();
            from.push(answer.text().split(' ').next().unwrap().to_owned());
            let at = usize::from(from[turn] == "resold");
            let (sent, name) = (world.sent(at), &from[turn]);
            // Nobody reads what another has signed.
            let is_own = |text: &&str| text.starts_with(name.as_str());
            assert!(thoughts(&sent).iter().all(is_own), "turn {turn} at {name}: {sent:?}");
            // Whoever is asked again has all that it wrote before.
            let own = from[..turn].iter().filter(|one| *one == name).count();
            assert_eq!(sent.len(), own, "turn {turn} of {from:?} at {name}: {sent:?}");
            let answer = answer.clone().into_message();
            list.push(if keeps { answer } else { without_thinking(answer) });
            // Longer than a session stays where it was.
            tokio::time::sleep(Duration::from_secs(400)).await;
        }
        assert_eq!(from, ["anthropic", "resold", "anthropic", "anthropic", "anthropic"]);
        assert_eq!(
            world
                .sims
                .iter()
                .flat_map(|sim| sim.journal().entries())
                .filter_map(|e| e.refused)
                .count(),
            0
        );
        assert!(world.handles.thinking.snapshot().returned > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_one_tenant_thought_another_never_gets() {
    let world = World::new(FaultPlan::none(), ThinkingMemoryLayer::default());
    let ask = async |tenant: &str, list: &[Message]| {
        let mut request = ChatRequest::new(list.to_vec()).with_model("any");
        request.params.thinking = Some(ThinkingConfig::Budget(2_000));
        request.context = request.context.with_tenant(tenant);
        CallResult::of(&world.service, request).await.answer().clone().into_message()
    };
    let mut list = vec![Message::user("one")];
    list.push(without_thinking(ask("acme", &list).await));
    list.push(Message::user("two"));
    ask("acme", &list).await;
    assert_eq!(world.sent(0).len(), 1);
    ask("umbrella", &list).await;
    assert_eq!(world.sent(0).len(), 0, "the same words are another's");
    // Its own begins with its own.
    let mut other = vec![Message::user("one")];
    other.push(without_thinking(ask("umbrella", &other).await));
    other.push(Message::user("two"));
    ask("umbrella", &other).await;
    assert_eq!(world.sent(0).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_longer_behind_the_same_words_is_not_put_back() {
    let world = World::new(FaultPlan::none(), ThinkingMemoryLayer::default());
    let mut list = vec![Message::user("one")];
    list.push(without_thinking(world.ask(&list, None).await.answer().clone().into_message()));
    list.push(Message::user("two"));
    list[0] = Message::user("another one");
    world.ask(&list, None).await;
    assert_eq!(world.sent(0).len(), 0);
    // Nor in front of another answer.
    let mut list = vec![Message::user("one")];
    let answer = without_thinking(world.ask(&list, None).await.answer().clone().into_message());
    list.push(Message::assistant(format!("{}, or not", answer.text())));
    list.push(Message::user("two"));
    world.ask(&list, None).await;
    assert_eq!(world.sent(0).len(), 0);
    let parts: Vec<&Part> = list.iter().flat_map(Message::parts).collect();
    assert!(parts.iter().all(|part| !part.is_thinking()));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_used_is_forgotten() {
    let world = World::new(FaultPlan::none(), ThinkingMemoryLayer::default());
    let mut list = vec![Message::user("one")];
    list.push(without_thinking(world.ask(&list, None).await.answer().clone().into_message()));
    list.push(Message::user("two"));
    for (wait, left) in [(3_000, 1), (3_000, 1), (3_700, 0)] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        world.ask(&list, None).await;
        assert_eq!(world.sent(0).len(), left, "after {wait} s");
    }
}

#[tokio::test(start_paused = true)]
async fn thinking_that_was_signed_before_its_stream_broke_makes_room_for_that_of_the_next() {
    let mut twice = 0;
    for bytes in (500..1_800).step_by(30) {
        let broken = PlanRule::new(Fault::break_after_bytes(bytes, How::Reset)).nth(1);
        let world = World::new(FaultPlan::none().rule(broken), ThinkingMemoryLayer::default());
        let mut list = vec![Message::user("one")];
        let got = world.call(&list, None, true).await;
        assert!(got.failure.is_none(), "after {bytes}: {:?}", got.failure);
        let answer = got.seen.unwrap().into_message();
        let signed =
            |part: &&Part| matches!(part, Part::Thinking(thinking) if thinking.signature.is_some());
        twice += usize::from(answer.parts().iter().filter(signed).count() > 1);
        list.push(answer);
        list.push(Message::user("two"));
        let got = world.call(&list, None, true).await;
        assert!(got.failure.is_none(), "after {bytes}: {:?}", got.failure);
        assert_eq!(world.sent(0).len(), 1, "after {bytes}");
        let refused =
            world.sims[0].journal().entries().into_iter().filter_map(|entry| entry.refused);
        assert_eq!(refused.collect::<Vec<_>>(), Vec::<String>::new(), "after {bytes}");
    }
    assert!(twice > 0, "some answers have both");
}

/// Two providers whose answers end with a call of a tool, and a stack with `memory` before them.
fn looking_up(
    first: FaultPlan,
    memory: ThinkingMemoryLayer,
    answers: impl Fn(u32) -> Answer + Send + Sync + 'static,
) -> (Vec<SimProvider>, ChatService) {
    let answers = Arc::new(answers);
    let provider = |(name, plan): (&str, FaultPlan)| {
        let (asked, answers) = (AtomicU32::new(0), answers.clone());
        SimProvider::builder(Dialect::Anthropic)
            .with_name(name)
            .respond(move |_| {
                let answer = answers(asked.fetch_add(1, Ordering::Relaxed));
                Some(answer.then_tool_call("look_up", r#"{"q":1}"#))
            })
            .with_faults(plan)
            .build()
    };
    let sims = [("anthropic", first), ("resold", FaultPlan::none())].map(provider).to_vec();
    let service = Stack::new(chain(&sims)).with_thinking(memory).boxed(client(&sims));
    (sims, service)
}

async fn look_up(service: &ChatService, messages: &[Message]) -> CallResult {
    let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
    let tool = Tool::function("look_up", "Looks up.", schema);
    let mut request = ChatRequest::new(messages.to_vec()).with_tools(vec![tool]);
    request.params.thinking = Some(ThinkingConfig::Budget(2_000));
    CallResult::of(service, request.with_model("any").streaming()).await
}

fn refused(sim: &SimProvider) -> Vec<String> {
    sim.journal().entries().into_iter().filter_map(|entry| entry.refused).collect()
}

#[tokio::test(start_paused = true)]
async fn a_tool_loop_whose_caller_lost_some_of_its_thinking_is_repaired_at_the_same_target() {
    for memory in [ThinkingMemoryLayer::off(), ThinkingMemoryLayer::default()] {
        let remembers = memory.handle();
        let think = |n| Answer::thinking(format!("Look {n}.")).then_text("I look.");
        let (sims, service) = looking_up(FaultPlan::none(), memory, think);
        let mut list = vec![Message::user("one")];
        for step in 0..3 {
            let got = look_up(&service, &list).await;
            assert!(got.failure.is_none(), "step {step}: {:?}", got.failure);
            let answer = got.seen.unwrap().into_message();
            let call = answer.tool_calls().next().unwrap().id.clone();
            list.push(if step == 1 { without_thinking(answer) } else { answer });
            list.push(Message::tool(call.as_str(), "found"));
        }
        assert!(sims[1].journal().entries().is_empty());
        // Where it is remembered what the answer had, it is known before.
        let is_known = remembers.snapshot().blocks > 0;
        assert_eq!(refused(&sims[0]).len(), usize::from(!is_known), "{:?}", refused(&sims[0]));
    }
}

/// The stream that went on thinks again before the call that was held back: that thinking is about how to go on,
/// and not the caller's. The tool loop is then sent without any.
#[tokio::test(start_paused = true)]
async fn a_call_whose_thinking_was_left_out_by_a_resume_is_sent_back_without_any() {
    let mut partly = 0;
    for events in 3..14 {
        let broken = PlanRule::new(Fault::break_after(events, How::Reset)).nth(1);
        let think = |n| match n {
            0 => Answer::thinking("First look.").then_text("I look it up."),
            _ => Answer::thinking("Only the call is left."),
        };
        let (sims, service) =
            looking_up(FaultPlan::none().rule(broken), ThinkingMemoryLayer::default(), think);
        let mut list = vec![Message::user("one")];
        let answer = look_up(&service, &list).await.seen.unwrap();
        let calls: Vec<_> = answer.tool_calls().map(|call| call.id.clone()).collect();
        if calls.is_empty() {
            continue;
        }
        let answer = answer.into_message();
        let shown = answer.parts().iter().filter(|part| part.is_thinking()).count();
        list.push(answer);
        list.extend(calls.iter().map(|id| Message::tool(id.as_str(), "found")));
        let got = look_up(&service, &list).await;
        assert!(got.failure.is_none(), "after {events}: {:?}", got.failure);
        partly += usize::from(sims[0].journal().entries().len() == 3 && shown == 1);
        assert_eq!(refused(&sims[0]), Vec::<String>::new(), "after {events}");
    }
    assert!(partly > 0, "some answers have only the first");
}
