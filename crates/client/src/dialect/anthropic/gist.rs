//! The gist of a whole answer, by one look at its bytes; as OpenAI's dialect has it.

use steadfast_chat::Gist;
use steadfast_core::Usage;

use super::words::{self, Wire};
use crate::json::{Cursor, Seen};

/// The gist, and all of the text when that is one piece without escapes.
pub(super) fn gist(body: &[u8]) -> Option<(Gist, Option<&str>)> {
    let mut gist = Gist::default();
    let (mut word, mut seen, mut said) = (None, Seen::default(), Said::Nothing);
    let mut cursor = Cursor::new(body)?;
    cursor.object(|cursor, name| {
        match name {
            "type" => {
                let kind = seen.first(0, cursor.sound_or_null())?;
                (kind != Some("error")).then_some(())?;
            }
            "id" => drop(seen.first(1, cursor.sound_or_null())?),
            "model" => drop(seen.first(2, cursor.sound_or_null())?),
            "content" => {
                seen.first(3, cursor.list(|cursor| block(cursor, &mut gist, &mut said)))?;
            }
            "stop_reason" => word = seen.first(4, cursor.sound_or_null())?,
            "stop_sequence" => drop(seen.first(5, cursor.sound_or_null())?),
            "usage" => gist.usage = seen.first(6, used(cursor))?,
            "error" => seen.first(7, cursor.null().then_some(()))?,
            // Those of a stream's events.
            "index" | "message" | "content_block" | "delta" => return None,
            _ => cursor.pass()?,
        }
        Some(())
    })?;
    let word = word.filter(|word| !word.contains('\\'))?;
    gist.stop = Some(words::reason(word));
    gist.end = true;
    // Without a list of blocks it is an error of the provider's.
    let said = match said {
        Said::Once(text) if memchr::memchr(b'\\', text.as_bytes()).is_none() => Some(text),
        _ => None,
    };
    (cursor.is_over() && seen.has(3)).then_some((gist, said))
}

fn used(cursor: &mut Cursor<'_>) -> Option<Option<Usage>> {
    if cursor.null() { Some(None) } else { Wire::quick(cursor).map(Some) }
}

/// In how many pieces the text comes.
enum Said<'a> {
    Nothing,
    Once(&'a str),
    More,
}

fn block<'a>(cursor: &mut Cursor<'a>, gist: &mut Gist, said: &mut Said<'a>) -> Option<()> {
    let (mut kind, mut text, mut thinking) = (None, None, false);
    let mut seen = Seen::default();
    let full = |text: Option<&str>| text.is_some_and(|text| !text.is_empty());
    cursor.object(|cursor, name| {
        match name {
            "type" => kind = seen.first(0, cursor.sound())?.into(),
            "text" => text = seen.first(1, cursor.sound_or_null())?,
            "thinking" => thinking = full(seen.first(2, cursor.sound_or_null())?),
            "signature" => drop(seen.first(3, cursor.sound_or_null())?),
            "data" => drop(seen.first(4, cursor.sound_or_null())?),
            "id" => drop(seen.first(5, cursor.sound_or_null())?),
            "name" => drop(seen.first(6, cursor.sound_or_null())?),
            "input" => drop(seen.first(7, cursor.raw())?),
            _ => cursor.pass()?,
        }
        Some(())
    })?;
    gist.content |= match kind? {
        "text" => {
            let text = text.unwrap_or_default();
            *said = match said {
                Said::Nothing => Said::Once(text),
                _ => Said::More,
            };
            !text.is_empty()
        }
        "thinking" => thinking,
        kind if kind.contains('\\') => return None,
        "tool_use" => {
            gist.calls = true;
            true
        }
        // Blocks of other kinds are something whatever is in them.
        _ => true,
    };
    gist.ends_block = true;
    Some(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use steadfast_chat::Delta;

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

    fn of_content(content: &str) -> String {
        format!(
            r#"{{"id":"x","type":"message","role":"assistant","model":"m","content":[{content}],
                "stop_reason":"end_turn","stop_sequence":null,
                "usage":{{"input_tokens":3,"cache_read_input_tokens":2,"output_tokens":1,"service_tier":"x"}}}}"#
        )
    }

    #[test]
    fn what_providers_usually_send_is_told() {
        for content in [
            "",
            r#"{"type":"text","text":"hi \ud83d\ude00\n","citations":null}"#,
            r#"{"type":"text","text":""}"#,
            r#"{"type":"thinking","thinking":"hm","signature":"c2ln"},{"type":"text","text":"x"}"#,
            r#"{"type":"thinking","thinking":"","signature":"c2ln"}"#,
            r#"{"type":"redacted_thinking","data":"xx"}"#,
            r#"{"type":"tool_use","id":"1","name":"f","input":{"a":[1]}}"#,
            r#"{"type":"tool_use"}"#,
            r#"{"type":"server_tool_use","id":"1","name":"web_search","input":{}}"#,
        ] {
            assert!(told(&of_content(content)), "{content}");
        }
        for word in ["max_tokens", "stop_sequence", "tool_use", "refusal", "something"] {
            let body = format!(
                r#"{{"content":[],"stop_reason":"{word}","stop_sequence":"x","usage":null,"error":null}}"#
            );
            assert!(told(&body), "{body}");
        }
    }

    #[test]
    fn what_is_out_of_the_ordinary_is_read_at_once() {
        for body in [
            "[]",
            "{}",
            r#"{"content":[]}"#,
            r#"{"stop_reason":"end_turn"}"#,
            r#"{"content":null,"stop_reason":"end_turn"}"#,
            r#"{"content":[],"stop_reason":null}"#,
            r#"{"content":[],"stop_reason":"end\u005fturn"}"#,
            r#"{"content":[],"stop_reason":"end_turn","type":"error"}"#,
            r#"{"content":[],"stop_reason":"end_turn","error":{}}"#,
            r#"{"content":[],"stop_reason":"end_turn","delta":{}}"#,
            r#"{"content":[],"stop_reason":"end_turn","index":-1}"#,
            r#"{"content":[],"stop_reason":"end_turn","usage":[]}"#,
            r#"{"content":[],"stop_reason":"end_turn","usage":{"input_tokens":"x"}}"#,
            r#"{"content":[],"content":[],"stop_reason":"end_turn"}"#,
            r#"{"content":[],"stop_reason":"end_turn"} x"#,
            &of_content("7"),
            &of_content("{}"),
            &of_content(r#"{"type":null}"#),
            &of_content(r#"{"type":"te\u0078t","text":""}"#),
            &of_content(r#"{"type":"text","text":7}"#),
            &of_content(r#"{"type":"text","text":"\ud83d"}"#),
            &of_content(r#"{"type":"text","text":"a","text":"b"}"#),
        ] {
            assert!(!told(body), "{body}");
        }
    }

    fn value() -> impl Strategy<Value = String> {
        let names = prop::sample::select(vec![
            "id",
            "model",
            "content",
            "usage",
            "error",
            "type",
            "stop_reason",
            "stop_sequence",
            "index",
            "text",
            "thinking",
            "signature",
            "data",
            "name",
            "input",
            "input_tokens",
            "cache_read_input_tokens",
            "other",
        ]);
        let leaf = prop::sample::select(vec![
            "null",
            "true",
            "0",
            "-1",
            "1.5",
            "99999999999999999999",
            "18446744073709551615",
            "\"\"",
            "\"a\"",
            "\"\\n\"",
            "\"\\ud83d\"",
            "\"text\"",
            "\"thinking\"",
            "\"redacted_thinking\"",
            "\"tool_use\"",
            "\"error\"",
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
            told(&of_content(&format!("{a},{b}")));
            told(&of_content(&format!(r#"{{"type":{a},"text":{b},"thinking":{c},"input":{d}}}"#)));
            told(&of_content(&format!(r#"{{"type":"text","text":{b},"x":{c},"name":{d}}}"#)));
            told(&format!(
                r#"{{"type":{a},"content":[],"stop_reason":{b},"stop_sequence":{c},"usage":{d}}}"#
            ));
            told(&format!(
                r#"{{"content":[],"stop_reason":"end_turn","usage":{{"input_tokens":{a},"output_tokens":{b},
                    "cache_read_input_tokens":{c},"cache_creation_input_tokens":{d}}}}}"#
            ));
        }
    }
}
