//! The JSON of chunks and answers, taken apart.

use std::borrow::Cow;

use serde::Deserialize;

use crate::json::{Cursor, Raw, Seen};

/// A chunk of a stream, or a whole answer: they differ in whether a choice has a `delta` or a
/// `message`. What this crate does not use is not looked at.
#[derive(Debug, Default, PartialEq, Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow)]
    pub(super) id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) model: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) choices: Option<Vec<Choice<'a>>>,
    #[serde(borrow)]
    pub(super) usage: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(super) error: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(super) object: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) detail: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(super) message: Option<Raw<'a>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
pub(super) struct Choice<'a> {
    #[serde(default)]
    pub(super) index: u32,
    #[serde(borrow, alias = "message")]
    pub(super) delta: Option<Said<'a>>,
    #[serde(borrow)]
    pub(super) finish_reason: Option<Cow<'a, str>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
pub(super) struct Said<'a> {
    #[serde(borrow)]
    pub(super) content: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(super) refusal: Option<Cow<'a, str>>,
    /// DeepSeek, vLLM and others.
    #[serde(borrow)]
    pub(super) reasoning_content: Option<Cow<'a, str>>,
    /// OpenRouter, Ollama, Groq.
    #[serde(borrow)]
    pub(super) reasoning: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) tool_calls: Option<Vec<Raw<'a>>>,
    pub(super) function_call: Option<Function>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
pub(super) struct Function {
    pub(super) name: Option<String>,
    pub(super) arguments: Option<String>,
}

impl<'a> Chunk<'a> {
    /// Takes `data` apart. Whether all of it is known to be UTF-8 is told too: serde does not look at
    /// what it passes over.
    ///
    /// # Errors
    ///
    /// When it is no JSON, or its fields are of other types.
    pub(super) fn read(data: &'a [u8]) -> Result<(Self, bool), serde_json::Error> {
        match Self::quick(data) {
            Some(chunk) => Ok((chunk, true)),
            None => serde_json::from_slice(data).map(|chunk| (chunk, false)),
        }
    }

    /// The same for what providers usually send, at a fraction of the cost; `None` for whatever is
    /// out of the ordinary, of which serde knows best what it is.
    fn quick(data: &'a [u8]) -> Option<Self> {
        let (mut chunk, mut seen) = (Self::default(), Seen::default());
        let mut cursor = Cursor::new(data)?;
        cursor.object(|cursor, name| {
            match name {
                "id" => chunk.id = seen.first(0, cursor.words())?,
                "model" => chunk.model = seen.first(1, cursor.words())?,
                "choices" => chunk.choices = seen.first(2, choices(cursor))?,
                "usage" => chunk.usage = seen.first(3, cursor.there())?,
                "error" => chunk.error = seen.first(4, cursor.there())?,
                "object" => chunk.object = seen.first(5, cursor.words())?,
                "detail" => chunk.detail = seen.first(6, cursor.there())?,
                "message" => chunk.message = seen.first(7, cursor.there())?,
                _ => cursor.pass()?,
            }
            Some(())
        })?;
        cursor.is_over().then_some(chunk)
    }
}

fn choices<'a>(cursor: &mut Cursor<'a>) -> Option<Option<Vec<Choice<'a>>>> {
    if cursor.null() {
        return Some(None);
    }
    let mut choices = Vec::new();
    cursor.list(|cursor| {
        let choice = choice(cursor)?;
        // Nearly always one.
        choices.reserve_exact(1);
        choices.push(choice);
        (choices.len() <= 8).then_some(())
    })?;
    Some(Some(choices))
}

fn choice<'a>(cursor: &mut Cursor<'a>) -> Option<Choice<'a>> {
    let (mut choice, mut seen) = (Choice::default(), Seen::default());
    cursor.object(|cursor, name| {
        match name {
            "index" => choice.index = seen.first(0, cursor.raw()?.get().parse().ok())?,
            "delta" | "message" => choice.delta = seen.first(1, said(cursor))?,
            "finish_reason" => choice.finish_reason = seen.first(2, cursor.words())?,
            _ => cursor.pass()?,
        }
        Some(())
    })?;
    Some(choice)
}

fn said<'a>(cursor: &mut Cursor<'a>) -> Option<Option<Said<'a>>> {
    if cursor.null() {
        return Some(None);
    }
    let (mut said, mut seen) = (Said::default(), Seen::default());
    cursor.object(|cursor, name| {
        match name {
            "content" => said.content = seen.first(0, cursor.there())?,
            "refusal" => said.refusal = seen.first(1, cursor.words())?,
            "reasoning_content" => said.reasoning_content = seen.first(2, cursor.words())?,
            "reasoning" => said.reasoning = seen.first(3, cursor.words())?,
            "tool_calls" => said.tool_calls = seen.first(4, calls(cursor))?,
            "function_call" => seen.first(5, cursor.null().then_some(()))?,
            _ => cursor.pass()?,
        }
        Some(())
    })?;
    Some(Some(said))
}

fn calls<'a>(cursor: &mut Cursor<'a>) -> Option<Option<Vec<Raw<'a>>>> {
    if cursor.null() {
        return Some(None);
    }
    let mut calls = Vec::new();
    cursor.list(|cursor| {
        calls.push(cursor.raw()?);
        Some(())
    })?;
    Some(Some(calls))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What serde reads, and whether the quick way dared to.
    fn both(text: &str) -> bool {
        let slow = serde_json::from_str::<Chunk<'_>>(text);
        match Chunk::quick(text.as_bytes()) {
            None => false,
            Some(quick) => {
                assert_eq!(quick, slow.unwrap_or_else(|e| panic!("{text}: {e}")), "{text}");
                true
            }
        }
    }

    #[test]
    fn the_usual_is_read_the_quick_way() {
        for text in [
            r#"{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#,
            r#"{"id":"x\u00e9","choices":[{"delta":{"content":" w\n","refusal":null},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}"#,
            r#"{"choices":[{"index":1,"message":{"content":null,"tool_calls":[{"id":"a"}, 7]}}],"usage":null,"error":null}"#,
            r#"{"choices":[],"object":null,"detail":"x","message":{"a":[1]}}"#,
            r#"{"choices":[{"delta":{"tool_calls":null,"function_call":null}}]}"#,
            " { } ",
        ] {
            assert!(both(text), "{text}");
        }
    }

    #[test]
    fn what_is_out_of_the_ordinary_is_left_to_serde() {
        for text in [
            "[]",
            "7",
            "{",
            r#"{"id":7}"#,
            r#"{"id":"a","id":"b"}"#,
            r#"{"\u0069d":"a"}"#,
            r#"{"id":"\ud800"}"#,
            r#"{"choices":{}}"#,
            r#"{"choices":[7]}"#,
            r#"{"choices":[{"index":-1}]}"#,
            r#"{"choices":[{"index":1.0}]}"#,
            r#"{"choices":[{"delta":{},"message":{}}]}"#,
            r#"{"choices":[{"delta":[]}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":{}}}]}"#,
            r#"{"choices":[{"delta":{"function_call":{}}}]}"#,
        ] {
            assert!(!both(text), "{text}");
        }
    }

    fn piece() -> impl Strategy<Value = String> {
        let names = prop::sample::select(vec![
            "id",
            "model",
            "choices",
            "usage",
            "error",
            "object",
            "detail",
            "message",
            "index",
            "delta",
            "finish_reason",
            "content",
            "refusal",
            "reasoning",
            "tool_calls",
            "function_call",
            "other",
        ]);
        let leaf = prop_oneof![
            Just("null".to_owned()),
            Just("0".to_owned()),
            Just("\"a\"".to_owned()),
            Just("\"\\n\"".to_owned()),
            Just("{}".to_owned()),
            Just("[]".to_owned()),
            Just("-1".to_owned()),
        ];
        leaf.prop_recursive(4, 24, 4, move |inner| {
            let fields = proptest::collection::vec((names.clone(), inner.clone()), 0..4);
            prop_oneof![
                proptest::collection::vec(inner, 0..3)
                    .prop_map(|all| format!("[{}]", all.join(", "))),
                fields.prop_map(|all| {
                    let all: Vec<_> = all.iter().map(|(n, v)| format!("\"{n}\" : {v}")).collect();
                    format!("{{{}}}", all.join(","))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn both_ways_read_the_same(choice in piece(), said in piece(), top in piece()) {
            both(&top);
            both(&format!(r#"{{"choices":[{choice}],"usage":{top}}}"#));
            both(&format!(r#"{{"choices":[{{"index":0,"delta":{said}}}]}}"#));
        }
    }
}
