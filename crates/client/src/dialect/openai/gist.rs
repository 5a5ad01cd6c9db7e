//! The gist of a whole answer, by one look at its bytes.
//!
//! An answer that is passed on as it came need not be taken apart: what layers ask of it is whether it
//! is complete, why it stopped, what it used and whether there is anything in it. What is told here,
//! [`answer_decode`](super::answer_decode) reads without an error and with the same gist. It is sure of
//! what providers usually send and of nothing else; that is read at once.

use steadfast_chat::{Gist, StopReason};
use steadfast_core::Usage;

use super::{plain::object, words};
use crate::json::{Cursor, Seen};

/// The gist, and all of the text when that is one piece without escapes.
pub(super) fn gist(body: &[u8]) -> Option<(Gist, Option<&str>)> {
    let (mut choices, mut usage, mut seen) = (Choices::default(), None, Seen::default());
    let mut cursor = Cursor::new(body)?;
    cursor.object(|cursor, name| match name {
        "id" => seen.first(0, cursor.sound_or_null()).map(drop),
        "model" => seen.first(1, cursor.sound_or_null()).map(drop),
        "choices" => seen.first(2, cursor.list(|cursor| choices.read(cursor))),
        "usage" => {
            usage = seen.first(3, used(cursor))?;
            Some(())
        }
        "error" => seen.first(4, cursor.null().then_some(())),
        "object" => {
            let kind = seen.first(5, cursor.sound_or_null())?;
            (kind != Some("error")).then_some(())
        }
        // They say something only when there is no choice.
        "detail" => seen.first(6, cursor.raw()).map(drop),
        "message" => seen.first(7, cursor.raw()).map(drop),
        _ => cursor.pass(),
    })?;
    if !cursor.is_over() {
        return None;
    }
    let Choice { content, calls, stop, said } = choices.first?;
    let mut gist = Gist::default();
    gist.content = content;
    gist.calls = calls;
    gist.end = true;
    gist.usage = usage;
    // A forced call of a tool ends with `stop`, though it waits for the tool.
    gist.stop = Some(match stop? {
        StopReason::EndTurn if calls => StopReason::ToolUse,
        stop => stop,
    });
    Some((gist, said))
}

fn used(cursor: &mut Cursor<'_>) -> Option<Option<Usage>> {
    if cursor.null() { Some(None) } else { words::quick_usage(cursor).map(Some) }
}

/// Of several answers only the first is told.
#[derive(Default)]
struct Choices<'a> {
    count: usize,
    first: Option<Choice<'a>>,
}

#[derive(Default)]
struct Choice<'a> {
    content: bool,
    calls: bool,
    stop: Option<StopReason>,
    said: Option<&'a str>,
}

impl<'a> Choices<'a> {
    fn read(&mut self, cursor: &mut Cursor<'a>) -> Option<()> {
        let (mut index, mut choice, mut word) = (0, Choice::default(), None);
        let mut seen = Seen::default();
        cursor.object(|cursor, name| {
            match name {
                "index" => {
                    index = u32::try_from(seen.first(0, cursor.count())??).ok()?;
                }
                "message" | "delta" => seen.first(1, choice.said(cursor))?,
                "finish_reason" => word = seen.first(2, cursor.sound_or_null())?,
                _ => cursor.pass()?,
            }
            Some(())
        })?;
        self.count += 1;
        if index == 0 {
            if let Some(word) = word {
                if word.contains('\\') {
                    return None;
                }
                choice.stop = Some(words::reason(word).ok()?);
            }
            if self.first.replace(choice).is_some() {
                return None;
            }
        }
        (self.count <= 8).then_some(())
    }
}

impl<'a> Choice<'a> {
    fn said(&mut self, cursor: &mut Cursor<'a>) -> Option<()> {
        let (mut words, mut thoughts) = ([None; 2], [None; 2]);
        let mut seen = Seen::default();
        cursor.object(|cursor, name| {
            match name {
                "content" => words[0] = seen.first(0, cursor.sound_or_null())?,
                "refusal" => words[1] = seen.first(1, cursor.sound_or_null())?,
                "reasoning_content" => thoughts[0] = seen.first(2, cursor.sound_or_null())?,
                "reasoning" => thoughts[1] = seen.first(3, cursor.sound_or_null())?,
                "tool_calls" => seen.first(4, self.calls(cursor))?,
                "function_call" => seen.first(5, cursor.null().then_some(()))?,
                _ => cursor.pass()?,
            }
            Some(())
        })?;
        let full = |text: &Option<&str>| text.is_some_and(|text| !text.is_empty());
        if !full(&words[1]) {
            self.said = words[0].filter(|text| memchr::memchr(b'\\', text.as_bytes()).is_none());
        }
        self.content = self.calls || words.iter().any(full) || full(&thoughts[0].or(thoughts[1]));
        Some(())
    }

    fn calls(&mut self, cursor: &mut Cursor<'_>) -> Option<()> {
        cursor.null_or(|cursor| {
            cursor.list(|cursor| {
                self.calls = true;
                call(cursor)
            })
        })
    }
}

fn call(cursor: &mut Cursor<'_>) -> Option<()> {
    object(cursor, &["index", "id", "type", "function"], |at, cursor| match at {
        0 => cursor.count()?.is_none_or(|index| u32::try_from(index).is_ok()).then_some(()),
        1 => cursor.sound_or_null().map(drop),
        2 => cursor.sound_or_null()?.is_none_or(|kind| kind == "function").then_some(()),
        _ => cursor.null_or(|cursor| {
            object(cursor, &["name", "arguments"], |_, cursor| cursor.sound_or_null().map(drop))
        }),
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use steadfast_chat::{Delta, Gist};

    use super::{super::answer_decode, *};

    /// Whether the gist is told. If so, it is that of what is read.
    fn told(body: &str) -> bool {
        let Some((gist, said)) = gist(body.as_bytes()) else { return false };
        let read = answer_decode::read(&Bytes::copy_from_slice(body.as_bytes()));
        let read = read.unwrap_or_else(|failure| panic!("{body}: {failure}"));
        assert_eq!(gist, Gist::of(&read), "{body}");
        let text = |delta: &Delta| match delta {
            Delta::Text { text, .. } => Some(text.clone()),
            _ => None,
        };
        let text: String = read.iter().filter_map(text).collect();
        assert!(said.is_none_or(|said| said == text), "{body}: {said:?}");
        true
    }

    fn of_choice(choice: &str) -> String {
        format!(r#"{{"id":"x","object":"chat.completion","choices":[{choice}]}}"#)
    }

    fn of_message(message: &str) -> String {
        of_choice(&format!(r#"{{"index":0,"message":{message},"finish_reason":"stop"}}"#))
    }

    #[test]
    fn what_providers_usually_send_is_told() {
        for message in [
            r#"{"role":"assistant","content":"hi \ud83d\ude00\n","refusal":null,"annotations":[]}"#,
            r#"{"content":""}"#,
            r#"{"content":null,"refusal":"no"}"#,
            r#"{"content":"","reasoning_content":"hm"}"#,
            r#"{"content":"","reasoning_content":"","reasoning":"hm"}"#,
            r#"{"reasoning_content":null,"reasoning":"hm"}"#,
            r#"{"tool_calls":null,"function_call":null}"#,
            r#"{"tool_calls":[]}"#,
            r#"{"content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}, {"index":1,"function":null}]}"#,
            "{}",
        ] {
            assert!(told(&of_message(message)), "{message}");
        }
        for word in ["stop", "length", "tool_calls", "content_filter", "eos", "something"] {
            for message in [r#"{"content":"x"}"#, r#"{"tool_calls":[{"id":"1"}]}"#] {
                let choice = format!(r#"{{"message":{message},"finish_reason":"{word}"}}"#);
                assert!(told(&of_choice(&choice)), "{choice}");
            }
        }
        for usage in [
            "null",
            "{}",
            r#"{"prompt_tokens":7,"completion_tokens":null,"total_tokens":7}"#,
            r#"{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":3,"cache_write_tokens":1,"x":[]},
                "completion_tokens_details":{"reasoning_tokens":2}}"#,
            r#"{"prompt_tokens_details":null,"completion_tokens_details":null}"#,
        ] {
            let body = format!(
                r#" {{"usage":{usage},"choices":[{{"message":{{"content":"x"}},"finish_reason":"stop"}},
                    {{"index":1,"message":{{"content":"y"}},"finish_reason":"error"}}],
                    "error":null,"detail":"x","message":{{}},"model":"m"}} "#
            );
            assert!(told(&body), "{body}");
        }
    }

    #[test]
    fn what_is_out_of_the_ordinary_is_read_at_once() {
        let good = r#"{"message":{"content":"x"},"finish_reason":"stop"}"#;
        for body in [
            "",
            "[]",
            "{}",
            r#"{"choices":null}"#,
            r#"{"choices":[]}"#,
            &of_choice("7"),
            &of_choice(r#"{"message":{"content":"x"}}"#),
            &of_choice(r#"{"message":{"content":"x"},"finish_reason":null}"#),
            &of_choice(r#"{"message":{"content":"x"},"finish_reason":"error"}"#),
            &of_choice(r#"{"message":{"content":"x"},"finish_reason":"st\u006fp"}"#),
            &of_choice(r#"{"index":1,"message":{"content":"x"},"finish_reason":"stop"}"#),
            &of_choice(r#"{"index":null,"message":{"content":"x"},"finish_reason":"stop"}"#),
            &of_choice(r#"{"message":{},"delta":{},"finish_reason":"stop"}"#),
            &of_choice(&format!("{good},{good}")),
            &of_message(r#"{"content":[{"type":"text","text":"x"}]}"#),
            &of_message(r#"{"content":7}"#),
            &of_message(r#"{"content":"\ud83d"}"#),
            &of_message(r#"{"content":"a","content":"b"}"#),
            &of_message(r#"{"c\u006fntent":"a","content":"b"}"#),
            &of_message(r#"{"tool_calls":[{"type":"custom"}]}"#),
            &of_message(r#"{"tool_calls":[{"id":7}]}"#),
            &of_message(r#"{"tool_calls":[7]}"#),
            &of_message(r#"{"function_call":{"name":"f"}}"#),
            &format!(r#"{{"choices":[{good}],"error":{{}}}}"#),
            &format!(r#"{{"choices":[{good}],"error":"x"}}"#),
            &format!(r#"{{"choices":[{good}],"object":"error"}}"#),
            &format!(r#"{{"choices":[{good}],"usage":[]}}"#),
            &format!(r#"{{"choices":[{good}],"usage":{{"prompt_tokens":-1}}}}"#),
            &format!(r#"{{"choices":[{good}],"usage":{{"prompt_tokens":1.5}}}}"#),
            &format!(r#"{{"choices":[{good}],"id":7}}"#),
            &format!(r#"{{"choices":[{good}]}} x"#),
        ] {
            assert!(!told(body), "{body}");
        }
    }

    fn value() -> impl Strategy<Value = String> {
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
            "reasoning_content",
            "tool_calls",
            "function_call",
            "type",
            "function",
            "name",
            "arguments",
            "prompt_tokens",
            "prompt_tokens_details",
            "cached_tokens",
            "other",
        ]);
        let leaf = prop::sample::select(vec![
            "null",
            "true",
            "0",
            "1",
            "-1",
            "1.5",
            "99999999999999999999",
            "\"\"",
            "\"a\"",
            "\"\\n\"",
            "\"\\ud83d\"",
            "\"stop\"",
            "\"error\"",
            "\"function\"",
            "{}",
            "[]",
        ]);
        leaf.prop_map(str::to_owned).prop_recursive(5, 40, 4, move |inner| {
            let fields = proptest::collection::vec((names.clone(), inner.clone()), 0..5);
            prop_oneof![
                proptest::collection::vec(inner, 0..3)
                    .prop_map(|all| format!("[{}]", all.join(","))),
                fields.prop_map(|all| {
                    let all: Vec<_> = all.iter().map(|(n, v)| format!("\"{n}\": {v}")).collect();
                    format!("{{{}}}", all.join(" ,"))
                }),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn what_is_told_is_what_is_read(a in value(), b in value(), c in value(), d in value()) {
            told(&a);
            told(&of_message(&a));
            told(&of_choice(&a));
            told(&of_message(&format!(r#"{{"content":{a},"refusal":{b},"reasoning":{c},"reasoning_content":{d}}}"#)));
            told(&of_message(&format!(
                r#"{{"tool_calls":[{{"id":{a},"type":{b},"function":{{"name":{c},"arguments":{d}}}}}]}}"#
            )));
            told(&format!(
                r#"{{"choices":[{{"index":{a},"message":{{"content":"x"}},"finish_reason":{b}}}],"usage":{c},"error":{d}}}"#
            ));
            told(&format!(
                r#"{{"choices":[{{"message":{{"content":"x"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":{a},
                    "completion_tokens":{b},"prompt_tokens_details":{c},"completion_tokens_details":{d}}}}}"#
            ));
        }
    }
}
