//! Random histories: valid ones pass untouched; damaged ones come out valid, mended once and for
//! all, with every word that was said in them, and in a form that naive encoders make acceptable.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::json;
use steadfast_chat::{
    ChatRequest, Message, Opaque, Part, RawJson, Role, Text, Thinking, ThinkingConfig, Tool,
    ToolCall, ToolResult,
    transcript::{Rule, Rules, repair, validate},
};
use steadfast_core::Dialect;

// Histories

/// One stretch of a conversation: the user asks, the model works, the model answers.
#[derive(Clone, Debug)]
struct Stretch {
    asks: Vec<u8>,
    steps: Vec<Step>,
    thinks: bool,
    says: u8,
}

/// The model calls tools, and they answer.
#[derive(Clone, Debug)]
struct Step {
    calls: usize,
    says: bool,
    /// How the results come back.
    style: u8,
    /// Results in another order than the calls, where that is allowed.
    reversed: bool,
    image: bool,
}

fn step() -> impl Strategy<Value = Step> {
    (1..4_usize, any::<bool>(), 0..4_u8, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
        |(calls, says, style, reversed, image)| Step { calls, says, style, reversed, image },
    )
}

fn stretch() -> impl Strategy<Value = Stretch> {
    let asks = prop::collection::vec(0..6_u8, 1..3);
    (asks, prop::collection::vec(step(), 0..4), any::<bool>(), 0..4_u8)
        .prop_map(|(asks, steps, thinks, says)| Stretch { asks, steps, thinks, says })
}

/// A plan of a conversation, and whether it stops while tools are at work.
fn plan() -> impl Strategy<Value = (Vec<Stretch>, bool)> {
    (prop::collection::vec(stretch(), 1..5), any::<bool>())
}

/// Writes a plan out the way clients of a dialect do.
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

    fn stretch(&mut self, stretch: &Stretch) {
        for ask in &stretch.asks {
            let mut parts = vec![self.word()];
            match ask {
                1 => parts.push(Part::image("image/png", "AAAA")),
                2 => parts.push(self.word()),
                3 => self.push(Role::System, vec![Part::text("be kind")]),
                _ => {}
            }
            self.push(Role::User, parts);
        }
        for step in &stretch.steps {
            self.step(step, stretch.thinks);
        }
    }

    fn step(&mut self, step: &Step, thinks: bool) {
        let mut said = Vec::new();
        if thinks {
            said.push(self.thought());
            if self.dialect == Dialect::Anthropic && step.image {
                said.push(Part::Redacted { data: "x".into() });
            }
        }
        if step.says {
            said.push(self.word());
        }
        let mut results = Vec::new();
        for number in 0..step.calls {
            self.ids += 1;
            let name = ["read", "write", "list"][(self.ids + number) % 3];
            let gemini = self.dialect == Dialect::Gemini;
            // Gemini has no ids; local models behind OpenAI's dialect count anew in each turn.
            let id = match self.dialect {
                Dialect::Gemini if step.style.is_multiple_of(2) => String::new(),
                Dialect::OpenAi if step.style == 0 => format!("functions.{name}:{number}"),
                _ => format!("call_{}", self.ids),
            };
            said.push(Part::ToolCall(ToolCall {
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
        self.push(Role::Assistant, said);
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

    fn answer(&mut self, stretch: &Stretch) {
        let mut parts = Vec::new();
        if stretch.thinks {
            parts.push(self.thought());
        }
        parts.push(self.word());
        if stretch.says == 1 {
            parts.push(self.word());
        }
        self.push(Role::Assistant, parts);
        // Two messages of the model in a row.
        if stretch.says == 2 {
            let word = self.word();
            self.push(Role::Assistant, vec![word]);
        }
    }
}

fn write(dialect: Dialect, plan: &(Vec<Stretch>, bool)) -> ChatRequest {
    let mut writer = Writer { dialect, messages: Vec::new(), words: 0, ids: 0 };
    let (stretches, is_open) = plan;
    for (index, stretch) in stretches.iter().enumerate() {
        writer.stretch(stretch);
        let is_last = index + 1 == stretches.len();
        if !(is_last && *is_open && !stretch.steps.is_empty()) {
            writer.answer(stretch);
        }
    }
    if !(*is_open && stretches.last().is_some_and(|last| !last.steps.is_empty())) {
        let word = writer.word();
        writer.push(Role::User, vec![word]);
    }
    let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
    let tools = ["read", "write", "list"].map(|name| Tool::function(name, "", schema.clone()));
    let mut request = ChatRequest::new(writer.messages).with_tools(tools.to_vec());
    if stretches.last().is_some_and(|last| last.thinks) {
        request.params.thinking = Some(ThinkingConfig::Budget(4_000));
    }
    request
}

// Damage

#[derive(Clone, Debug)]
enum Damage {
    Drop(usize),
    Repeat(usize),
    Swap(usize, usize),
    Truncate(usize),
    Behead(usize),
    Split(usize, usize),
    Join(usize),
    Clear(usize),
    DropPart(usize, usize),
    RepeatPart(usize, usize),
    MovePart(usize, usize, usize),
    Blank(usize, usize),
    Id(usize, usize, u8),
    Name(usize, usize, u8),
    Role(usize, u8),
    Foreign(usize, usize),
    Insert(usize, usize, u8),
    Unsign(usize, usize),
    Mark(usize, usize, bool),
    NoTools,
    Thinking(bool),
}

/// Damage to the order and number of messages and parts alone.
fn shuffling() -> impl Strategy<Value = Damage> {
    let at = 0..40_usize;
    prop_oneof![
        at.clone().prop_map(Damage::Drop),
        at.clone().prop_map(Damage::Repeat),
        (at.clone(), at.clone()).prop_map(|(a, b)| Damage::Swap(a, b)),
        at.clone().prop_map(Damage::Truncate),
        at.clone().prop_map(Damage::Behead),
        (at.clone(), 0..4_usize).prop_map(|(a, b)| Damage::Split(a, b)),
        at.clone().prop_map(Damage::Join),
        (at.clone(), 0..5_usize).prop_map(|(a, b)| Damage::DropPart(a, b)),
        (at, 0..5_usize).prop_map(|(a, b)| Damage::RepeatPart(a, b)),
    ]
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = 0..40_usize;
    let part = 0..5_usize;
    let spot = (at.clone(), part.clone());
    prop_oneof![
        9 => shuffling(),
        1 => at.clone().prop_map(Damage::Clear),
        1 => (at.clone(), part, at.clone()).prop_map(|(a, b, c)| Damage::MovePart(a, b, c)),
        1 => spot.clone().prop_map(|(a, b)| Damage::Blank(a, b)),
        2 => (spot.clone(), 0..6_u8).prop_map(|((a, b), c)| Damage::Id(a, b, c)),
        1 => (spot.clone(), 0..4_u8).prop_map(|((a, b), c)| Damage::Name(a, b, c)),
        1 => (at, 0..4_u8).prop_map(|(a, b)| Damage::Role(a, b)),
        1 => spot.clone().prop_map(|(a, b)| Damage::Foreign(a, b)),
        2 => (spot.clone(), 0..7_u8).prop_map(|((a, b), c)| Damage::Insert(a, b, c)),
        1 => spot.clone().prop_map(|(a, b)| Damage::Unsign(a, b)),
        1 => (spot, any::<bool>()).prop_map(|((a, b), c)| Damage::Mark(a, b, c)),
        1 => Just(Damage::NoTools),
        1 => any::<bool>().prop_map(Damage::Thinking),
    ]
}

fn foreign(dialect: Dialect) -> Part {
    let dialect = if dialect == Dialect::Gemini { Dialect::OpenAi } else { Dialect::Gemini };
    let json = RawJson::parse("{}").unwrap();
    Part::Opaque(Opaque { dialect, kind: "strange".into(), json })
}

/// Something that may not belong where it is put.
fn thing(dialect: Dialect, kind: u8) -> Part {
    let server = |kind: &str, json: serde_json::Value| {
        Part::Opaque(Opaque { dialect, kind: kind.into(), json: RawJson::from_value(&json) })
    };
    match kind {
        0 => Part::tool_call("stray", "read", "{}"),
        1 => Part::tool_result("stray", "x"),
        2 => {
            Part::Thinking(Thinking { text: "hm".into(), signature: Some("s".into()), extra: None })
        }
        3 => Part::image("image/bmp", "AAAA"),
        4 => server("server_tool_use", json!({"id": "srv"})),
        5 => server("web_search_tool_result", json!({"tool_use_id": "srv"})),
        _ => Part::ToolResult(ToolResult {
            id: "call_1".into(),
            content: vec![Part::text(""), foreign(dialect), Part::tool_call("in", "side", "")],
            ..ToolResult::default()
        }),
    }
}

fn mark(is_long: bool) -> steadfast_chat::Extra {
    let ttl = if is_long { "1h" } else { "5m" };
    let fields = json!({"cache_control": {"type": "ephemeral", "ttl": ttl}});
    fields.as_object().cloned().map(Box::new)
}

fn apply(request: &mut ChatRequest, dialect: Dialect, damage: &Damage) {
    let list = request.messages.make_mut();
    let len = list.len();
    if len == 0 {
        return;
    }
    match *damage {
        Damage::Drop(at) => drop(list.remove(at % len)),
        Damage::Repeat(at) => list.insert(at % len, list[at % len].clone()),
        Damage::Swap(a, b) => list.swap(a % len, b % len),
        Damage::Truncate(at) => list.truncate(at % len),
        Damage::Behead(at) => drop(list.drain(..at % len)),
        Damage::Split(at, part) => {
            let mut rest = list[at % len].clone();
            let parts = list[at % len].parts().len();
            *rest.parts_mut() = list[at % len].parts_mut().split_off(part.min(parts));
            list.insert(at % len + 1, rest);
        }
        Damage::Join(at) => {
            if at % len + 1 < len {
                let next = list.remove(at % len + 1);
                list[at % len].parts_mut().extend_from_slice(next.parts());
            }
        }
        Damage::Clear(at) => list[at % len].parts_mut().clear(),
        Damage::Role(at, role) => {
            let roles = [Role::System, Role::User, Role::Assistant, Role::Tool];
            list[at % len].set_role(roles[usize::from(role)]);
        }
        Damage::MovePart(at, part, to) => {
            let parts = list[at % len].parts_mut();
            if !parts.is_empty() {
                let part = parts.remove(part % parts.len());
                list[to % len].parts_mut().push(part);
            }
        }
        Damage::Foreign(at, part) => insert(&mut list[at % len], part, foreign(dialect)),
        Damage::Insert(at, part, kind) => insert(&mut list[at % len], part, thing(dialect, kind)),
        Damage::NoTools => request.tools = Vec::new().into(),
        Damage::Thinking(on) => {
            request.params.thinking = on.then_some(ThinkingConfig::Budget(1_024));
        }
        Damage::DropPart(at, _)
        | Damage::RepeatPart(at, _)
        | Damage::Blank(at, _)
        | Damage::Id(at, ..)
        | Damage::Name(at, ..)
        | Damage::Unsign(at, _)
        | Damage::Mark(at, ..) => apply_to_part(&mut list[at % len], damage),
    }
}

fn insert(message: &mut Message, at: usize, part: Part) {
    let parts = message.parts_mut();
    parts.insert(at % (parts.len() + 1), part);
}

fn apply_to_part(message: &mut Message, damage: &Damage) {
    let parts = message.parts_mut();
    let len = parts.len();
    if len == 0 {
        return;
    }
    match *damage {
        Damage::DropPart(_, part) => drop(parts.remove(part % len)),
        Damage::RepeatPart(_, part) => parts.insert(part % len, parts[part % len].clone()),
        Damage::Blank(_, part) => {
            let blank = Part::text(if part % 2 == 0 { "" } else { " \n" });
            match &mut parts[part % len] {
                Part::ToolResult(result) => result.content = vec![blank],
                text @ Part::Text(_) => *text = blank,
                _ => {}
            }
        }
        Damage::Id(_, part, kind) => {
            let long = "x".repeat(70);
            let id = ["", "call_1", "call_2", "a.b", "stray", &long][usize::from(kind)];
            match &mut parts[part % len] {
                Part::ToolCall(call) => id.clone_into(&mut call.id),
                Part::ToolResult(result) => id.clone_into(&mut result.id),
                _ => {}
            }
        }
        Damage::Name(_, part, kind) => {
            let name = ["", "no such tool", "read", "functions.read"][usize::from(kind)];
            match &mut parts[part % len] {
                Part::ToolCall(call) => name.clone_into(&mut call.name),
                Part::ToolResult(result) => result.name = Some(name.to_owned()),
                _ => {}
            }
        }
        Damage::Unsign(_, part) => match &mut parts[part % len] {
            Part::Thinking(thinking) => thinking.signature = None,
            Part::ToolCall(call) => call.signature = None,
            _ => {}
        },
        Damage::Mark(_, part, is_long) => match &mut parts[part % len] {
            Part::Text(Text { extra, .. })
            | Part::Thinking(Thinking { extra, .. })
            | Part::ToolCall(ToolCall { extra, .. })
            | Part::ToolResult(ToolResult { extra, .. }) => *extra = mark(is_long),
            _ => {}
        },
        _ => unreachable!("damage to a whole message"),
    }
}

/// Rules off the beaten path.
fn rules(dialect: Dialect, bits: u8) -> Rules {
    let mut rules = Rules::for_dialect(dialect);
    rules.prefill = bits & 1 != 0;
    rules.images.vision = bits & 2 == 0;
    rules.signed_calls = bits & 4 != 0 && dialect == Dialect::Gemini;
    rules.foreign_history = bits & 24 == 24;
    rules
}

// What must hold

/// Every word that was said, by anyone, in order; white space is no word.
fn said(request: &ChatRequest) -> Vec<String> {
    let texts = request.messages.iter().flat_map(Message::parts).filter_map(Part::as_text);
    texts.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned).collect()
}

fn is_subsequence(part: &[String], whole: &[String]) -> bool {
    let mut whole = whole.iter();
    part.iter().all(|word| whole.any(|other| other == word))
}

/// What an encoder puts on the wire, as far as calls and results go.
#[derive(Debug)]
struct Wire {
    is_model: bool,
    items: Vec<Item>,
}

#[derive(Clone, Debug, PartialEq)]
enum Item {
    Call(Ref),
    Result(Ref),
    Other,
}

/// A call, by id and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ref {
    id: String,
    /// A result may leave it to the encoder.
    name: Option<String>,
}

/// The plainest encoder that could be: instructions are lifted out or become the user's words;
/// neighbours are joined, or every result stands alone.
fn encode(request: &ChatRequest, dialect: Dialect, lifts: bool) -> Vec<Wire> {
    let mut wire: Vec<Wire> = Vec::new();
    for message in request.messages.iter() {
        let is_model = message.role() == Role::Assistant;
        if message.role() == Role::System && lifts {
            continue;
        }
        let item = |part: &Part| match part {
            Part::ToolCall(call) => {
                Item::Call(Ref { id: call.id.clone(), name: Some(call.name.clone()) })
            }
            Part::ToolResult(result) => {
                Item::Result(Ref { id: result.id.clone(), name: result.name.clone() })
            }
            _ => Item::Other,
        };
        let items: Vec<Item> = message.parts().iter().map(item).collect();
        if dialect == Dialect::OpenAi {
            if is_model {
                wire.push(Wire { is_model, items });
            } else {
                wire.extend(items.into_iter().map(|item| Wire { is_model, items: vec![item] }));
            }
        } else {
            match wire.last_mut() {
                Some(last) if last.is_model == is_model => last.items.extend(items),
                _ => wire.push(Wire { is_model, items }),
            }
        }
    }
    wire
}

fn calls(items: &[Item]) -> Vec<&Ref> {
    let mut calls = Vec::new();
    for item in items {
        if let Item::Call(call) = item {
            calls.push(call);
        }
    }
    calls
}

fn results(items: &[Item]) -> Vec<&Ref> {
    let mut results = Vec::new();
    for item in items {
        if let Item::Result(result) = item {
            results.push(result);
        }
    }
    results
}

fn sorted_ids(refs: &[&Ref]) -> Vec<String> {
    let mut ids: Vec<_> = refs.iter().map(|call| call.id.clone()).collect();
    ids.sort_unstable();
    ids
}

/// Whether Gemini sees the response of this call: by id, which may be left out, and by name, which
/// an encoder finds through the id.
fn answers(call: &Ref, result: &Ref) -> bool {
    let id = result.id.is_empty() || result.id == call.id;
    let name = match &result.name {
        Some(_) => result.name == call.name,
        None => !result.id.is_empty(),
    };
    id && name
}

/// Whether a strict provider takes the pairs; written without a look at the code under test.
fn accepts(wire: &[Wire], dialect: Dialect) -> Result<(), String> {
    let mut due: Vec<&Ref> = Vec::new();
    for (at, turn) in wire.iter().enumerate() {
        let refuse = |why: &str| Err(format!("{why} at {at}: {wire:#?}"));
        let results = results(&turn.items);
        if turn.is_model {
            if !due.is_empty() {
                return refuse("calls not answered");
            }
            if !results.is_empty() {
                return refuse("results among the model's words");
            }
            due = calls(&turn.items);
            continue;
        }
        if !calls(&turn.items).is_empty() {
            return refuse("the user calls");
        }
        match dialect {
            Dialect::OpenAi => match results.first() {
                Some(result) => match due.iter().position(|call| call.id == result.id) {
                    Some(call) => drop(due.remove(call)),
                    None => return refuse("a result of nothing"),
                },
                None if !due.is_empty() => return refuse("words before results"),
                None => {}
            },
            Dialect::Gemini => {
                let fit = results.iter().zip(&due).all(|(result, call)| answers(call, result));
                if results.len() != due.len() || !fit {
                    return refuse("results are not those of the calls in their order");
                }
                due.clear();
            }
            _ => {
                if sorted_ids(&results) != sorted_ids(&std::mem::take(&mut due)) {
                    return refuse("results are not those of the calls");
                }
                if results.len() != self::results(&turn.items[..results.len()]).len() {
                    return refuse("words before results");
                }
            }
        }
    }
    if due.is_empty() { Ok(()) } else { Err(format!("calls not answered at the end: {wire:#?}")) }
}

fn dialect() -> impl Strategy<Value = Dialect> {
    prop::sample::select(Dialect::ALL.to_vec())
}

/// A second's worth of cases, unless `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 400;
    }
    config
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_valid_history_passes_untouched(dialect in dialect(), plan in plan(), bits in 0..8_u8) {
        let mut request = write(dialect, &plan);
        let mut rules = rules(dialect, bits & !2);
        rules.prefill = false;
        let before = request.clone();
        let repairs = repair(&mut request, &rules);
        prop_assert!(repairs.is_empty(), "{repairs:#?}\n{:#?}", before.messages);
        prop_assert!(request.messages.same(&before.messages));
        prop_assert!(request.tools.same(&before.tools));
        prop_assert_eq!(&request.params, &before.params);
        // The oracle agrees, so that it means something below.
        prop_assert_eq!(accepts(&encode(&request, dialect, true), dialect), Ok(()));
    }

    #[test]
    fn a_damaged_history_is_mended(
        wrote in dialect(),
        target in dialect(),
        plan in plan(),
        damages in prop::collection::vec(damage(), 1..8),
        bits in 0..32_u8,
    ) {
        let mut request = write(wrote, &plan);
        for damage in &damages {
            apply(&mut request, target, damage);
        }
        let rules = rules(target, bits);
        let before = request.clone();
        let repairs = repair(&mut request, &rules);
        let after = || format!("{repairs:#?}\nbefore {:#?}\nafter {:#?}", before.messages, request.messages);

        // Valid, but for a conversation in which nothing is left.
        if request.messages.is_empty() {
            prop_assert_eq!(repairs.unrepaired.len(), 1);
            prop_assert_eq!(repairs.unrepaired[0].rule, Rule::FirstMessage);
        } else {
            prop_assert!(repairs.unrepaired.is_empty(), "{}", after());
            prop_assert!(validate(&request, &rules).is_ok());
        }

        // Nothing said is lost.
        prop_assert!(is_subsequence(&said(&before), &said(&request)), "{}", after());

        // Once and for all.
        let mended = request.clone();
        let again = repair(&mut request, &rules);
        prop_assert!(again.done.is_empty(), "{again:#?}");
        prop_assert!(request.messages.same(&mended.messages));
        prop_assert!(request.tools.same(&mended.tools));
        prop_assert_eq!(&request.params, &mended.params);

        // The same way every time.
        let mut twin = before.clone();
        let _ = repair(&mut twin, &rules);
        prop_assert_eq!(&*twin.messages, &*mended.messages);

        // Whatever the encoder does with instructions, the provider takes it.
        for lifts in [true, false] {
            let wire = encode(&mended, target, lifts || target == Dialect::OpenAi);
            prop_assert_eq!(accepts(&wire, target), Ok(()));
        }
    }

    /// Where only the order and number of things are wrong, what is refused is what the oracle
    /// refuses: no more, no less.
    #[test]
    fn pairs_are_refused_exactly_when_a_provider_refuses_them(
        dialect in dialect(),
        plan in plan(),
        damages in prop::collection::vec(shuffling(), 0..5),
    ) {
        let mut request = write(dialect, &plan);
        let list = request.messages.make_mut();
        list.retain(|message| message.role() != Role::System);
        for damage in &damages {
            apply(&mut request, dialect, damage);
        }
        // Joining may mix roles, which is another matter.
        request.messages.make_mut().retain(|message| !message.parts().is_empty());
        let pairing = [Rule::Answered, Rule::Orphan, Rule::Duplicate, Rule::Order, Rule::Batch];
        let refused: Vec<_> = match validate(&request, &Rules::for_dialect(dialect)) {
            Ok(()) => Vec::new(),
            // Gemini's ids are part of its pairs; it has no other rules for them.
            Err(found) => found
                .into_iter()
                .filter(|v| {
                    pairing.contains(&v.rule)
                        || (v.rule == Rule::Ids && dialect == Dialect::Gemini)
                })
                .collect(),
        };
        let mixed = request.messages.iter().any(|message| {
            let texts = message.parts().iter().any(|part| part.as_tool_result().is_none());
            message.role() == Role::Tool && texts
        });
        if !mixed {
            let oracle = accepts(&encode(&request, dialect, true), dialect);
            prop_assert_eq!(refused.is_empty(), oracle.is_ok(), "{:#?}\n{:?}", refused, oracle);
        }
    }

    /// Whoever wrote it: a history that one vendor took can be sent to every other.
    #[test]
    fn a_history_moves_between_dialects(from in dialect(), to in dialect(), plan in plan()) {
        let mut request = write(from, &plan);
        let before = request.clone();
        let mut rules = Rules::for_dialect(to);
        rules.foreign_history = from != to;
        let repairs = repair(&mut request, &rules);
        prop_assert!(repairs.unrepaired.is_empty(), "{repairs:#?}");
        prop_assert_eq!(said(&before), said(&request));
        // Every result survives, under the id of its call.
        let outputs = |request: &ChatRequest| {
            let mut texts = HashMap::<String, usize>::new();
            for result in request.messages.iter().flat_map(Message::tool_results) {
                for text in result.content.iter().filter_map(Part::as_text) {
                    *texts.entry(text.to_owned()).or_default() += 1;
                }
            }
            texts
        };
        prop_assert_eq!(outputs(&before), outputs(&request));
        prop_assert_eq!(accepts(&encode(&request, to, true), to), Ok(()));
    }
}
