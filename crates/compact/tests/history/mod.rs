//! Random histories as clients of the three dialects write them: tools, parallel calls, thinking,
//! images, instructions in between.

#![allow(
    dead_code,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::unwrap_used
)]

use proptest::prelude::*;
use steadfast_chat::{
    ChatRequest, Message, Part, RawJson, Role, Thinking, ThinkingConfig, Tool, ToolCall, ToolResult,
};
use steadfast_core::Dialect;

/// The user asks, the model works, the model answers.
#[derive(Clone, Debug)]
pub struct Stretch {
    asks: Vec<u8>,
    steps: Vec<Step>,
    answers: bool,
}

/// The model calls tools, and they answer.
#[derive(Clone, Debug)]
pub struct Step {
    calls: usize,
    says: bool,
    thinks: bool,
    /// How the results come back.
    together: bool,
    reversed: bool,
    image: bool,
    /// Characters of a result, and of an argument.
    sizes: (usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![3 => 0..150_usize, 2 => 150..1_500_usize, 1 => 1_500..20_000_usize];
    let argument = prop_oneof![4 => 0..50_usize, 1 => 150..3_000_usize];
    let flags =
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), prop::bool::weighted(0.15));
    (1..4_usize, flags, (size, argument)).prop_map(
        |(calls, (says, thinks, together, reversed, image), sizes)| Step {
            calls,
            says,
            thinks,
            together,
            reversed,
            image,
            sizes,
        },
    )
}

pub fn stretch() -> impl Strategy<Value = Stretch> {
    (prop::collection::vec(0..6_u8, 1..3), prop::collection::vec(step(), 0..5), any::<bool>())
        .prop_map(|(asks, steps, answers)| Stretch { asks, steps, answers })
}

pub fn stretches(most: usize) -> impl Strategy<Value = Vec<Stretch>> {
    prop::collection::vec(stretch(), 1..most)
}

pub fn dialect() -> impl Strategy<Value = Dialect> {
    prop_oneof![Just(Dialect::Anthropic), Just(Dialect::OpenAi), Just(Dialect::Gemini)]
}

/// What it thinks.
pub const THOUGHT: &str = "Hm, let me think.";

/// A picture of one pixel.
pub const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// The same as [`stretch`], from dice.
pub fn random_stretch(dice: &mut fastrand::Rng) -> Stretch {
    let asks = (0..dice.usize(1..3)).map(|_| dice.u8(0..6)).collect();
    let steps = (0..dice.usize(0..5)).map(|_| random_step(dice)).collect();
    Stretch { asks, steps, answers: dice.bool() }
}

fn random_step(dice: &mut fastrand::Rng) -> Step {
    let size = match dice.u8(..6) {
        0..3 => dice.usize(0..150),
        3..5 => dice.usize(150..900),
        _ => dice.usize(1_500..4_000),
    };
    let argument = if dice.u8(..6) == 0 { dice.usize(150..1_500) } else { dice.usize(0..50) };
    Step {
        calls: dice.usize(1..4),
        says: dice.bool(),
        thinks: dice.bool(),
        together: dice.bool(),
        reversed: dice.bool(),
        image: dice.u8(..7) == 0,
        sizes: (size, argument),
    }
}

/// Writes stretches out as clients of a dialect do.
pub struct Writer {
    dialect: Dialect,
    thinking: bool,
    pub messages: Vec<Message>,
    pieces: usize,
    ids: usize,
    /// What stands under thoughts and under calls.
    pub signatures: (String, String),
}

impl Writer {
    pub fn new(dialect: Dialect, thinking: bool) -> Self {
        let messages = vec![Message::system("You are a careful assistant.")];
        let signatures = ("sig".to_owned(), "sig".to_owned());
        Self { dialect, thinking, messages, pieces: 0, ids: 0, signatures }
    }

    pub fn request(&self) -> ChatRequest {
        let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
        let tool = |name: &str| Tool::function(name, "a tool", schema.clone());
        let mut request = ChatRequest::new(self.messages.clone()).with_tools(vec![
            tool("read_file"),
            tool("write_file"),
            tool("list"),
        ]);
        if self.thinking {
            request.params.thinking = Some(ThinkingConfig::Budget(1_024));
        }
        request
    }

    fn pieces(&mut self) -> Part {
        self.pieces += 1;
        Part::text(format!("Text {} about this and that.", self.pieces))
    }

    fn push(&mut self, role: Role, parts: Vec<Part>) {
        self.messages.push(Message::new(role, parts));
    }

    fn thought(&self) -> Part {
        let signature = (self.dialect != Dialect::OpenAi).then(|| self.signatures.0.clone());
        Part::Thinking(Thinking { text: THOUGHT.into(), signature, extra: None })
    }

    /// Writes one stretch; the last one of a request ends with the user's word or a result.
    pub fn stretch(&mut self, stretch: &Stretch, last: bool) {
        for ask in &stretch.asks {
            let mut parts = vec![self.pieces()];
            match ask {
                1 => parts.push(Part::image("image/png", PIXEL)),
                2 => parts.push(self.pieces()),
                3 => self.push(Role::System, vec![Part::text("Be brief.")]),
                _ => {}
            }
            self.push(Role::User, parts);
        }
        for (number, step) in stretch.steps.iter().enumerate() {
            // Anthropic holds an open loop to begin with thinking once thinking is asked for.
            let thinks = self.thinking && (number == 0 || step.thinks);
            self.step(step, thinks);
        }
        if !last && (stretch.answers || !stretch.steps.is_empty()) {
            let pieces = self.pieces();
            self.push(Role::Assistant, vec![pieces]);
        }
    }

    fn step(&mut self, step: &Step, thinks: bool) {
        let mut parts_out = Vec::new();
        if thinks {
            parts_out.push(self.thought());
        }
        if step.says {
            parts_out.push(self.pieces());
        }
        let gemini = self.dialect == Dialect::Gemini;
        let mut results = Vec::new();
        for number in 0..step.calls {
            self.ids += 1;
            let name = ["read_file", "write_file", "list"][(self.ids + number) % 3];
            let id = if gemini { String::new() } else { format!("call_{}", self.ids) };
            let argument = "a".repeat(step.sizes.1);
            parts_out.push(Part::ToolCall(ToolCall {
                id: id.clone(),
                name: name.into(),
                arguments: format!(r#"{{"path":"src/f{}.rs","text":"{argument}"}}"#, self.ids),
                signature: (gemini && number == 0).then(|| self.signatures.1.clone()),
                extra: None,
            }));
            let mut content =
                vec![Part::text(format!("out {} {}", self.ids, "x y".repeat(step.sizes.0 / 3)))];
            if step.image {
                content.push(Part::image("image/png", PIXEL));
            }
            results.push(Part::ToolResult(ToolResult {
                id,
                name: gemini.then(|| name.into()),
                content,
                is_error: self.ids.is_multiple_of(7),
                ..ToolResult::default()
            }));
        }
        self.push(Role::Assistant, parts_out);
        if step.reversed && !gemini {
            results.reverse();
        }
        if step.together && self.dialect != Dialect::OpenAi {
            self.push(Role::User, results);
        } else {
            let role = if self.dialect == Dialect::OpenAi { Role::Tool } else { Role::User };
            for result in results {
                self.push(role, vec![result]);
            }
        }
    }
}

/// Four bytes a token, 1,000 an image, 4 a message.
pub fn weigh(message: &Message) -> u64 {
    fn size(part: &Part) -> usize {
        match part {
            Part::Text(text) => text.text.len().div_ceil(4),
            Part::Thinking(thinking) => thinking.text.len().div_ceil(4),
            Part::ToolCall(call) => (call.name.len() + call.arguments.len()).div_ceil(4),
            Part::ToolResult(result) => result.content.iter().map(size).sum(),
            Part::Media(_) => 1_000,
            _ => 0,
        }
    }
    (4 + message.parts().iter().map(size).sum::<usize>()) as u64
}

pub fn total(messages: &[Message]) -> u64 {
    messages.iter().map(weigh).sum()
}
