//! Generated answers, for requests without a scripted one.

use serde_json::{Map, Value};

use crate::answer::{Answer, Block};
use crate::dialect;
use crate::request::SimRequest;

/// Words of the default texts: some have multi-byte characters, so that a cut inside one shows.
const WORDS: &[&str] = &[
    "the",
    "river",
    "keeps",
    "its",
    "own",
    "time",
    "and",
    "every",
    "naïve",
    "stone",
    "remembers",
    "where",
    "it",
    "lay",
    "before",
    "über",
    "water",
    "came",
    "down",
    "slowly",
    "from",
    "日本",
    "with",
    "small",
    "lights",
    "on",
    "either",
    "bank",
    "we",
    "counted",
    "seven",
    "boats",
    "café",
    "until",
    "morning",
    "nothing",
    "moved",
    "but",
    "snow",
    "🦀",
    "quietly",
    "again",
];

/// An answer that depends only on the seed and the request.
///
/// A request for JSON of a schema, in its field or in words, is answered with the least that fits it. A user text that contains `call <tool>` for declared tools is answered with calls of them, in
/// the order of their names in the text; tool results are answered with a text.
pub(crate) fn answer(request: &SimRequest, seed: u64) -> Answer {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut answer = Answer::default();
    if request.thinking {
        let words = rng.usize(6..16);
        answer = answer.then_thinking(sentence(&mut rng, words));
    }
    if !request.after_tool_results {
        for (name, schema) in wanted(request) {
            let arguments = arguments(&mut rng, schema);
            answer = answer.then(Block::ToolCall { id: None, name: name.to_owned(), arguments });
        }
        if answer.blocks.iter().any(|block| matches!(block, Block::ToolCall { .. })) {
            return answer;
        }
    }
    let schema = dialect::schema(request.dialect, &request.body).cloned();
    if let Some(schema) = schema.or_else(|| instructed_schema(&request.body)) {
        return answer.then_text(least(&schema).to_string());
    }
    let words = rng.usize(24..72);
    answer.then_text(sentence(&mut rng, words))
}

/// The declared tools the user asks for, in the order of the text.
fn wanted(request: &SimRequest) -> Vec<(&str, &Value)> {
    let mut found: Vec<(usize, &str, &Value)> = Vec::new();
    for (name, schema) in &request.tools {
        let call = format!("call {name}");
        let ends = |at: usize| {
            !request.last_user[at + call.len()..]
                .starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '-')
        };
        found.extend(
            request
                .last_user
                .match_indices(&call)
                .filter(|(at, _)| ends(*at))
                .map(|(at, _)| (at, name.as_str(), schema)),
        );
    }
    found.sort_by_key(|(at, ..)| *at);
    found.into_iter().map(|(_, name, schema)| (name, schema)).collect()
}

pub(crate) fn sentence(rng: &mut fastrand::Rng, words: usize) -> String {
    let mut out = String::new();
    for n in 0..words {
        if n > 0 {
            out.push(if n % 17 == 0 { '\n' } else { ' ' });
        }
        out.push_str(WORDS[rng.usize(..WORDS.len())]);
    }
    out.push('.');
    out
}

/// Arguments that fit the schema: its required properties, or all if none is required.
fn arguments(rng: &mut fastrand::Rng, schema: &Value) -> String {
    Value::Object(object(rng, schema, 0)).to_string()
}

fn object(rng: &mut fastrand::Rng, schema: &Value, depth: usize) -> Map<String, Value> {
    let required = schema["required"].as_array();
    let wanted = |key: &str| required.is_none_or(|list| list.iter().any(|name| name == key));
    schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| wanted(key))
        .map(|(key, property)| (key.clone(), value(rng, property, depth)))
        .collect()
}

fn value(rng: &mut fastrand::Rng, schema: &Value, depth: usize) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|list| list.first()) {
        return first.clone();
    }
    let kind = schema["type"].as_str().unwrap_or("string").to_ascii_lowercase();
    match kind.as_str() {
        "integer" => rng.u32(0..1_000).into(),
        "number" => (f64::from(rng.u32(0..1_000)) + 0.5).into(),
        "boolean" => rng.bool().into(),
        "null" => Value::Null,
        "array" if depth < 3 => vec![value(rng, &schema["items"], depth + 1)].into(),
        "array" => Value::Array(Vec::new()),
        "object" if depth < 3 => object(rng, schema, depth + 1).into(),
        "object" => Map::new().into(),
        _ => WORDS[rng.usize(..WORDS.len())].into(),
    }
}

/// The schema that the system prompt asks to follow, where the dialect or a model has no field for it: behind
/// these words.
fn instructed_schema(body: &Value) -> Option<Value> {
    fn find(value: &Value) -> Option<Value> {
        match value {
            Value::String(text) => {
                let (_, schema) = text.rsplit_once("follow this JSON schema:\n")?;
                serde_json::Deserializer::from_str(schema).into_iter().next()?.ok()
            }
            Value::Array(list) => list.iter().find_map(find),
            Value::Object(fields) => fields.values().find_map(find),
            _ => None,
        }
    }
    ["system", "systemInstruction", "system_instruction", "instructions"]
        .iter()
        .find_map(|key| find(&body[key]))
        .or_else(|| {
            let of = |key: &str| dialect::items(&body[key]).iter();
            let mut messages = of("messages").chain(of("input"));
            messages.find(|m| m["role"] == "system" || m["role"] == "developer").and_then(find)
        })
}

/// The least that fits a schema: what is required, empty, false and at its minimum.
pub(crate) fn least(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|list| list.first()) {
        return first.clone();
    }
    match type_of(schema).as_str() {
        "object" => {
            let required = |key: &str| {
                schema["required"]
                    .as_array()
                    .is_some_and(|list| list.iter().any(|name| name == key))
            };
            let properties = schema["properties"].as_object().into_iter().flatten();
            properties
                .filter(|(key, _)| required(key))
                .map(|(key, property)| (key.clone(), least(property)))
                .collect::<Map<String, Value>>()
                .into()
        }
        // A score or a count mostly begins at 1, whether or not the schema has it; a share at 0.
        "integer" => schema.get("minimum").cloned().unwrap_or_else(|| 1.into()),
        "number" => schema.get("minimum").cloned().unwrap_or_else(|| 0.into()),
        "boolean" => false.into(),
        "array" => Value::Array(Vec::new()),
        "null" => Value::Null,
        _ => "The next step of the task".into(),
    }
}

/// The type that a schema names, in lower case; of several the first.
pub(crate) fn type_of(schema: &Value) -> String {
    let first = schema["type"].as_array().and_then(|list| list.first());
    let name = first.unwrap_or(&schema["type"]).as_str();
    let implied = if schema["properties"].is_object() { "object" } else { "string" };
    name.unwrap_or(implied).to_ascii_lowercase()
}
