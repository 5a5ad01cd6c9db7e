//! Random conversations that every provider of their dialect accepts.

use proptest::prelude::*;
use steadfast_chat::{
    ChatRequest, Message, Part, Role, Thinking, ThinkingConfig, ToolCall, ToolResult,
};
use steadfast_core::Dialect;

use crate::support::function;

/// The user asks, the model calls tools, the model answers.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    /// What kind of message each message of the user is.
    asks: Vec<u8>,
    steps: Vec<Step>,
    thinks: bool,
    /// What kind of answer it is.
    answer: u8,
}

/// The model calls tools, and their results.
#[derive(Clone, Debug)]
struct Step {
    calls: usize,
    /// A text beside the calls.
    has_text: bool,
    /// How the results come back.
    style: u8,
    /// Results in another order than the calls, where that is allowed.
    reversed: bool,
    image: bool,
}

fn step() -> impl Strategy<Value = Step> {
    (1..4_usize, any::<bool>(), 0..4_u8, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
        |(calls, has_text, style, reversed, image)| Step {
            calls,
            has_text,
            style,
            reversed,
            image,
        },
    )
}

fn exchange() -> impl Strategy<Value = Exchange> {
    let asks = prop::collection::vec(0..6_u8, 1..3);
    (asks, prop::collection::vec(step(), 0..4), any::<bool>(), 0..4_u8)
        .prop_map(|(asks, steps, thinks, answer)| Exchange { asks, steps, thinks, answer })
}

/// The exchanges of a conversation, and whether it ends with results.
pub(super) type Plan = (Vec<Exchange>, bool);

pub(super) fn plan() -> impl Strategy<Value = Plan> {
    (prop::collection::vec(exchange(), 1..5), any::<bool>())
}

/// Writes the messages of a plan as clients of a dialect do.
struct Writer {
    dialect: Dialect,
    messages: Vec<Message>,
    words: usize,
    ids: usize,
}

impl Writer {
    fn word(&mut self) -> Part {
        self.words += 1;
        Part::text(format!("word {}", self.words))
    }

    fn push(&mut self, role: Role, parts: Vec<Part>) {
        self.messages.push(Message::new(role, parts));
    }

    fn thought(&self) -> Part {
        Part::Thinking(Thinking {
            text: "hm".into(),
            signature: (self.dialect != Dialect::OpenAi).then(|| "sig".into()),
            extra: None,
        })
    }

    fn exchange(&mut self, exchange: &Exchange) {
        for ask in &exchange.asks {
            let mut parts = vec![self.word()];
            match ask {
                1 => parts.push(Part::image("image/png", "AAAA")),
                2 => parts.push(self.word()),
                3 => self.push(Role::System, vec![Part::text("be kind")]),
                _ => {}
            }
            self.push(Role::User, parts);
        }
        for step in &exchange.steps {
            self.step(step, exchange.thinks);
        }
    }

    fn step(&mut self, step: &Step, thinks: bool) {
        let mut parts = Vec::new();
        if thinks {
            parts.push(self.thought());
            if self.dialect == Dialect::Anthropic && step.image {
                parts.push(Part::Redacted { data: "x".into() });
            }
        }
        if step.has_text {
            parts.push(self.word());
        }
        let mut results = Vec::new();
        for number in 0..step.calls {
            self.ids += 1;
            let name = ["read", "write", "list"][(self.ids + number) % 3];
            let gemini = self.dialect == Dialect::Gemini;
            // Gemini has no ids; local models with OpenAI's dialect count from 0 in each turn.
            let id = match self.dialect {
                Dialect::Gemini if step.style.is_multiple_of(2) => String::new(),
                Dialect::OpenAi if step.style == 0 => format!("functions.{name}:{number}"),
                _ => format!("call_{}", self.ids),
            };
            parts.push(Part::ToolCall(ToolCall {
                id: id.clone(),
                name: name.into(),
                arguments: format!("{{\"n\":{}}}", self.ids),
                signature: (gemini && number == 0).then(|| "sig".into()),
                extra: None,
            }));
            let mut content = vec![Part::text(format!("out {}", self.ids))];
            if step.image {
                content.push(Part::image("image/png", "AAAA"));
            }
            results.push(Part::ToolResult(ToolResult {
                id,
                name: gemini.then(|| name.into()),
                content,
                ..ToolResult::default()
            }));
        }
        self.push(Role::Assistant, parts);
        if step.reversed && self.dialect != Dialect::Gemini {
            results.reverse();
        }
        match step.style {
            0 | 1 if self.dialect != Dialect::Gemini || step.style == 1 => {
                for result in results {
                    self.push(Role::Tool, vec![result]);
                }
            }
            2 => {
                for result in results {
                    self.push(Role::User, vec![result]);
                }
            }
            _ => self.push(Role::User, results),
        }
    }

    fn answer(&mut self, exchange: &Exchange) {
        let mut parts = Vec::new();
        if exchange.thinks {
            parts.push(self.thought());
        }
        parts.push(self.word());
        if exchange.answer == 1 {
            parts.push(self.word());
        }
        self.push(Role::Assistant, parts);
        // Two messages of the model in a row.
        if exchange.answer == 2 {
            let word = self.word();
            self.push(Role::Assistant, vec![word]);
        }
    }
}

pub(super) fn write(dialect: Dialect, plan: &Plan) -> ChatRequest {
    let mut writer = Writer { dialect, messages: Vec::new(), words: 0, ids: 0 };
    let (exchanges, is_open) = plan;
    for (index, exchange) in exchanges.iter().enumerate() {
        writer.exchange(exchange);
        let is_last = index + 1 == exchanges.len();
        if !(is_last && *is_open && !exchange.steps.is_empty()) {
            writer.answer(exchange);
        }
    }
    if !(*is_open && exchanges.last().is_some_and(|last| !last.steps.is_empty())) {
        let word = writer.word();
        writer.push(Role::User, vec![word]);
    }
    let tools = ["read", "write", "list"].map(function);
    let mut request = ChatRequest::new(writer.messages).with_tools(tools.to_vec());
    if exchanges.last().is_some_and(|last| last.thinks) {
        request.params.thinking = Some(ThinkingConfig::Budget(4_000));
    }
    request
}
