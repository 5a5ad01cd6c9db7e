//! The layers that read conversations, around a service that answers chats.
//!
//! They need a chat, where the others take any request: so they have separate tables with a separate
//! bare service.

use std::{
    future::{Ready, ready},
    hint::black_box,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;
use steadfast_breaker::CircuitBreakerLayer;
use steadfast_chat::{
    ChatRequest, ChatResponse, Delta, Event, Head, Message, Part, Role, StopReason, ToolCall,
    ToolResult,
};
use steadfast_classify::ClassifyLayer;
use steadfast_compact::CompactionLayer;
use steadfast_core::{CallContext, Dialect, Failure, RetryBudget, Target};
use steadfast_escalate::EscalationLayer;
use steadfast_guard::{GuardPolicy, SafetyGuardHandle, SafetyGuardLayer};
use steadfast_health::ProviderHealthLayer;
use steadfast_limit::{RateLimitLayer, SpendLimitLayer};
use steadfast_recover::{ContinuationLayer, StreamResumeLayer};
use steadfast_retry::RetryBackoffLayer;
use steadfast_timeout::{DeadlineLayer, StallTimeoutLayer};
use tower::{Layer, Service, ServiceBuilder, layer::util::Identity};

use crate::{
    Table,
    drive::{Case, case},
    ours::failover,
};

/// Pieces in the stream of which one event is measured.
const EVENTS: u32 = 1_000;

/// Calls in the history that is read with each request.
const HISTORY: usize = 100;

const PROVEN: &str = "the policy makes sense";

/// An answer in so many pieces of text, and its end.
#[derive(Debug)]
struct TextPieces {
    left: Option<u32>,
}

impl Stream for TextPieces {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(match self.left {
            None => None,
            Some(0) => {
                self.left = None;
                Some(Ok(Event::new([Delta::Stop(StopReason::EndTurn.into()), Delta::End])))
            }
            Some(left) => {
                self.left = Some(left - 1);
                Some(Ok(Event::new([Delta::Text { index: 0, text: word(left) }])))
            }
        })
    }
}

/// Six bytes, as in the pieces of most models; no sentence of them repeats soon.
fn word(number: u32) -> String {
    let mut text = String::with_capacity(6);
    text.push(' ');
    let letter = |power: u32| char::from(b'a' + (number / power % 26) as u8);
    text.extend([1, 26, 3, 7, 11].map(letter));
    text
}

/// Answers a chat at once.
#[derive(Clone, Copy, Debug)]
struct ChatAnswers {
    pieces: u32,
}

impl Service<ChatRequest> for ChatAnswers {
    type Response = ChatResponse<TextPieces>;
    type Error = Failure;
    type Future = Ready<Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: ChatRequest) -> Self::Future {
        let mut head = Head::new(Dialect::OpenAi);
        head.stream = true;
        ready(Ok(ChatResponse::new(head, TextPieces { left: Some(self.pieces) })))
    }
}

/// The tables of these layers.
pub(crate) fn tables() -> Vec<Table> {
    vec![
        Table {
            title: "a chat, its answer read to the end",
            about: "The bare service answers a chat at once with a stream of one piece of text and \
                    the end. No other library has such layers.",
            per_call: 1,
            bare: case("bare", ChatAnswers { pieces: 1 }, chat()),
            columns: [[layers(1), tasks()].into_iter().flatten().collect(), vec![], vec![]],
        },
        Table {
            title: "an event of a chat's stream",
            about: "Of a stream of 1,000 pieces of text, six bytes each. The bare service allocates \
                    each of them.",
            per_call: EVENTS,
            bare: case("bare", ChatAnswers { pieces: EVENTS }, chat()),
            columns: [layers(EVENTS).into_iter().chain([named(EVENTS)]).collect(), vec![], vec![]],
        },
        Table {
            title: "a chat through the default stack",
            about: "The layers of `Stack` with their defaults in their order, for a caller with a tenant \
                    and an agent: first without health, rates, spending and escalation, then with one of \
                    them each, then all. The answer is one piece of text and the end; the provider \
                    states no rates, nothing is capped and nobody is asked.",
            per_call: 1,
            bare: case("bare", ChatAnswers { pieces: 1 }, caller()),
            columns: [stacks(1), vec![], vec![]],
        },
        Table {
            title: "an event through the default stack",
            about: "The same, of a stream of 1,000 pieces.",
            per_call: EVENTS,
            bare: case("bare", ChatAnswers { pieces: EVENTS }, caller()),
            columns: [stacks(EVENTS), vec![], vec![]],
        },
        Table {
            title: "a call of a tool under guard",
            about: "Checked before it is made, and its result read. Each call is new, so that the \
                    whole state is replaced. The bare one only reads call and result.",
            per_call: 1,
            bare: tool("bare", None),
            columns: [
                vec![tool("guard", Some(0)), tool("guard, 100,000 calls later", Some(100_000))],
                vec![],
                vec![],
            ],
        },
    ]
}

/// A request that no layer has to change.
fn chat() -> ChatRequest {
    let target = Target::new("openai").with_model("gpt-4o");
    let mut context = CallContext::new();
    context.target = Some(target);
    ChatRequest::user("What of the stars?").with_model("gpt-4o").streaming().with_context(context)
}

fn layers(pieces: u32) -> Vec<Case> {
    let inner = ChatAnswers { pieces };
    let all = ServiceBuilder::new()
        .layer(SafetyGuardLayer::default())
        .layer(ContinuationLayer::default())
        .layer(StreamResumeLayer::default())
        .service(inner);
    vec![
        case("compaction", CompactionLayer::rules_only().layer(inner), chat()),
        case("guard", SafetyGuardLayer::default().layer(inner), chat()),
        case("continuation", ContinuationLayer::default().layer(inner), chat()),
        case("stream resume", StreamResumeLayer::default().layer(inner), chat()),
        case("all three", all, chat()),
    ]
}

/// The same of a caller who is known.
fn caller() -> ChatRequest {
    let mut chat = chat();
    chat.context = chat.context.with_tenant("acme").with_agent("writer");
    chat
}

/// The default stack, with and without the layers that see more than a call.
fn stacks(pieces: u32) -> Vec<Case> {
    let inner = ChatAnswers { pieces };
    // A macro, because each has a type of its own.
    macro_rules! stack {
        ($name:literal, $outer:expr, $health:expr, $rates:expr, $meter:expr) => {{
            let budget = RetryBudget::default();
            let service = ServiceBuilder::new()
                .layer(DeadlineLayer::default())
                .layer($outer)
                .layer(SafetyGuardLayer::default())
                .layer(ContinuationLayer::default())
                .layer(StreamResumeLayer::default().with_budget(budget.drawing()))
                .layer(failover().with_budget(budget.clone()))
                .layer($health)
                .layer(CompactionLayer::rules_only())
                .layer(RetryBackoffLayer::in_stack().with_budget(budget.drawing()))
                .layer($rates)
                .layer(CircuitBreakerLayer::default())
                .layer(StallTimeoutLayer::default())
                .layer($meter)
                .layer(ClassifyLayer::default())
                .service(inner);
            case($name, service, caller())
        }};
    }
    let none = Identity::new;
    let (health, rates, escalation) =
        (ProviderHealthLayer::default, RateLimitLayer::default, EscalationLayer::off);
    let spend = SpendLimitLayer::default();
    let all = ServiceBuilder::new().layer(&spend).layer(escalation());
    vec![
        stack!("without", none(), none(), none(), none()),
        stack!("with health", none(), health(), none(), none()),
        stack!("with rates", none(), none(), rates(), none()),
        stack!("with spending", &spend, none(), none(), spend.meter()),
        stack!("with escalation", escalation(), none(), none(), none()),
        stack!("with all four", all, health(), rates(), spend.meter()),
    ]
}

/// A named task, whose time and calls are counted.
fn named(pieces: u32) -> Case {
    let mut chat = chat();
    chat.context = chat.context.with_task("a task");
    case(
        "guard, in a named task",
        SafetyGuardLayer::new(unlimited()).expect(PROVEN).layer(ChatAnswers { pieces }),
        chat,
    )
}

/// Without limits of calls, and with time for a long run.
fn unlimited() -> GuardPolicy {
    let mut policy = GuardPolicy::default();
    let limits = &mut policy.named;
    (limits.events, limits.calls, limits.per_tool) = (None, None, None);
    limits.time = Some(Duration::from_secs(1 << 20));
    policy
}

/// Cases in which the guard has state or a history to read.
fn tasks() -> Vec<Case> {
    let mut long = vec![Message::user("Count them.")];
    for at in 0..HISTORY {
        let id = format!("call_{at}");
        let arguments = format!(r#"{{"path":"sky.txt","offset":{at}}}"#);
        let call = Part::tool_call(id.as_str(), "look", arguments.as_str());
        long.push(Message::new(Role::Assistant, vec![call]));
        long.push(Message::tool(id, format!("there are {at} in this part of the sky")));
    }
    let guard = SafetyGuardLayer::new(unlimited()).expect(PROVEN).layer(ChatAnswers { pieces: 1 });
    let mut read = chat();
    *read.messages.make_mut() = long;
    vec![named(1), case("guard, 100 calls in the history", guard, read)]
}

/// Calls of a task that has made `before` of them.
fn tool(name: &'static str, before: Option<u32>) -> Case {
    const DIFFERENT: usize = 2_048;
    let guard = SafetyGuardHandle::new(unlimited()).expect(PROVEN);
    let pairs: Vec<_> = (0..DIFFERENT)
        .map(|at| {
            let call = ToolCall {
                name: "look".to_owned(),
                arguments: format!(r#"{{"path":"sky.txt","offset":{at}}}"#),
                ..ToolCall::default()
            };
            let text = format!("there are {at} in this part of the sky");
            (call, ToolResult { content: vec![Part::text(text)], ..ToolResult::default() })
        })
        .collect();
    let mut at = 0;
    let mut first = before.unwrap_or(0);
    let run = move |calls: u32| {
        // The earlier calls are made once, in the first run.
        for _ in 0..calls + std::mem::take(&mut first) {
            at = (at + 1) % DIFFERENT;
            let (call, result) = black_box(&pairs[at]);
            if before.is_some() {
                guard.answered("task");
                let admitted = guard.check_call("task", call);
                black_box((admitted.is_ok(), guard.observe_result("task", call, result)));
            }
        }
    };
    Case { name, run: Box::new(run) }
}
