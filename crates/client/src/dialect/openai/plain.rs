//! Which conversations need not be read to know that they can be.

use crate::json::{Cursor, Raw};

/// Passes a list that holds nothing out of the ordinary, by `item`: its text, and how many items it
/// has.
///
/// What is found plain here, [`request_decode`](super::request_decode) reads without an error, so
/// that this may wait until somebody wants to know. It is sure of what callers usually send and of
/// nothing else; that is read at once.
pub(super) fn list_of<'a>(
    cursor: &mut Cursor<'a>,
    item: fn(&mut Cursor<'_>) -> Option<()>,
) -> Option<(Raw<'a>, usize)> {
    let mut ahead = cursor.clone();
    let len = list(&mut ahead, item)?;
    Some((cursor.up_to(&ahead)?, len))
}

fn list(
    cursor: &mut Cursor<'_>,
    mut item: impl FnMut(&mut Cursor<'_>) -> Option<()>,
) -> Option<usize> {
    let mut len = 0;
    cursor.list(|cursor| {
        len += 1;
        item(cursor)
    })?;
    Some(len)
}

/// An object. `known` is given a number for each of `names`, each of which stands there once at
/// most, and has to pass its value; other fields may be anything.
pub(super) fn object<'a>(
    cursor: &mut Cursor<'a>,
    names: &[&str],
    mut known: impl FnMut(usize, &mut Cursor<'a>) -> Option<()>,
) -> Option<()> {
    let mut seen = 0_u8;
    cursor.object(|cursor, name| {
        let Some(at) = names.iter().position(|known| *known == name) else {
            return cursor.pass();
        };
        let before = seen;
        seen |= 1 << at;
        (before != seen).then_some(())?;
        known(at, cursor)
    })
}

pub(super) fn message(cursor: &mut Cursor<'_>) -> Option<()> {
    const NAMES: [&str; 5] = ["role", "content", "tool_calls", "tool_call_id", "function_call"];
    let (mut role, mut id) = (None, false);
    object(cursor, &NAMES, |at, cursor| match at {
        0 => {
            role = Some(cursor.sound()?);
            Some(())
        }
        1 => content(cursor),
        2 => cursor.null_or(|cursor| list(cursor, call).map(drop)),
        3 => {
            id = cursor.begins(b'"');
            cursor.null_or(|cursor| cursor.sound().map(drop))
        }
        _ => cursor.null().then_some(()),
    })?;
    match role? {
        "system" | "developer" | "user" | "assistant" => Some(()),
        "tool" => id.then_some(()),
        _ => None,
    }
}

fn content(cursor: &mut Cursor<'_>) -> Option<()> {
    if cursor.begins(b'[') {
        return list(cursor, part).map(drop);
    }
    cursor.null_or(|cursor| cursor.sound().map(drop))
}

fn part(cursor: &mut Cursor<'_>) -> Option<()> {
    let (mut kind, mut text, mut image) = (None, false, false);
    object(cursor, &["type", "text", "image_url"], |at, cursor| match at {
        0 => {
            kind = Some(cursor.sound()?);
            Some(())
        }
        1 => {
            text = true;
            cursor.sound().map(drop)
        }
        _ => {
            image = true;
            url(cursor)
        }
    })?;
    match kind? {
        "text" => text.then_some(()),
        "image_url" => image.then_some(()),
        _ => None,
    }
}

fn url(cursor: &mut Cursor<'_>) -> Option<()> {
    if cursor.begins(b'"') {
        return cursor.sound().map(drop);
    }
    let mut there = false;
    object(cursor, &["url"], |_, cursor| {
        there = true;
        cursor.sound().map(drop)
    })?;
    there.then_some(())
}

fn call(cursor: &mut Cursor<'_>) -> Option<()> {
    let (mut id, mut named) = (false, false);
    object(cursor, &["id", "type", "function"], |at, cursor| match at {
        0 => {
            id = true;
            cursor.sound().map(drop)
        }
        1 => cursor.null_or(|cursor| cursor.sound().filter(|kind| *kind == "function").map(drop)),
        _ => object(cursor, &["name", "arguments"], |at, cursor| {
            if at == 0 {
                named = true;
                return cursor.sound().map(drop);
            }
            cursor.null_or(|cursor| cursor.sound().map(drop))
        }),
    })?;
    (id && named).then_some(())
}

pub(super) fn tool(cursor: &mut Cursor<'_>) -> Option<()> {
    const NAMES: [&str; 4] = ["name", "description", "parameters", "strict"];
    let (mut kind, mut named) = (None, false);
    object(cursor, &["type", "function"], |at, cursor| {
        if at == 0 {
            kind = Some(cursor.sound()?);
            return Some(());
        }
        object(cursor, &NAMES, |at, cursor| match at {
            0 => {
                named = true;
                cursor.sound().map(drop)
            }
            1 => cursor.null_or(|cursor| cursor.sound().map(drop)),
            2 if !cursor.begins(b'{') => cursor.null().then_some(()),
            2 => cursor.raw().map(drop),
            _ => {
                let flag = cursor.there()?;
                flag.is_none_or(|raw| matches!(raw.get(), "true" | "false")).then_some(())
            }
        })
    })?;
    (kind? == "function" && named).then_some(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use steadfast_core::ChatRequest;

    use super::{
        super::request_decode::{decode, messages, tools},
        *,
    };
    use crate::json::Raw;

    /// Whether each list was found plain. What was, is read as the list that it is.
    fn plain(messages_text: &str, tools_text: &str) -> (bool, bool) {
        let body = format!(r#"{{"model":"m","messages":{messages_text} ,"tools":{tools_text}}}"#);
        let read_messages = Raw::read(messages_text.as_bytes()).ok().map(messages);
        let read_tools = Raw::read(tools_text.as_bytes()).ok().map(tools);
        let found = |text: &str, item| {
            let mut cursor = Cursor::new(text.as_bytes()).unwrap();
            list_of(&mut cursor, item).map(|(text, len)| (text.get().to_owned(), len))
        };
        let (first, second) = (found(messages_text, message), found(tools_text, tool));
        if let Some((text, len)) = &first {
            let read = read_messages.unwrap().unwrap_or_else(|e| panic!("{messages_text}: {e}"));
            assert_eq!((text.as_str(), *len), (messages_text.trim(), read.len()));
        }
        if let Some((text, len)) = &second {
            let read = read_tools.unwrap().unwrap_or_else(|e| panic!("{tools_text}: {e}"));
            assert_eq!((text.as_str(), *len), (tools_text.trim(), read.len()));
        }
        if let Ok(request) = decode(&Bytes::from(body)) {
            same(&request, messages_text, tools_text);
        }
        (first.is_some(), second.is_some())
    }

    fn same(request: &ChatRequest, messages_text: &str, tools_text: &str) {
        let raw = |text| Raw::read(text).unwrap();
        let (many, more) = (request.messages.len(), request.tools.len());
        assert_eq!(request.messages[..], messages(raw(messages_text.as_bytes())).unwrap()[..]);
        if tools_text != "null" {
            assert_eq!(request.tools[..], tools(raw(tools_text.as_bytes())).unwrap()[..]);
        }
        assert_eq!((many, more), (request.messages.len(), request.tools.len()));
    }

    #[test]
    fn what_callers_usually_send_is_plain() {
        let messages = [
            r#"[]"#,
            r#"[{"role":"user","content":"hi \ud83d\ude00\n","name":"x","other":{"role":7}}]"#,
            r#"[{"role":"developer","content":[{"type":"text","text":"a","cache":{}}]},
                {"content":null,"role":"assistant","tool_calls":[{"id":"1","type":"function",
                 "function":{"name":"f","arguments":"{}"}}],"function_call":null,"refusal":null},
                {"role":"tool","tool_call_id":"1","content":"done"},
                {"role":"assistant","tool_calls":null}]"#,
            r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x/y"}},
                {"type":"image_url","image_url":"data:image/png;base64,AAAA"}]}]"#,
        ];
        let tools = r#"[{"type":"function","function":{"name":"f","description":null,
            "parameters":{"type":"object"},"strict":true}},
            {"function":{"name":"g"},"type":"function","x":1}]"#;
        for messages in messages {
            assert_eq!(plain(messages, tools), (true, true), "{messages}");
        }
        let body = Bytes::from(format!(
            r#"{{"messages":{},"tools":{tools},"model":"m","x":[1]}}"#,
            messages[2]
        ));
        let request = decode(&body).unwrap();
        assert!(body.starts_with(b"{") && request.messages[1].tool_calls().count() == 1);
    }

    #[test]
    fn what_is_out_of_the_ordinary_is_read_at_once() {
        for odd in [
            "null",
            "{}",
            "[7]",
            "[{}]",
            r#"[{"role":null}]"#,
            r#"[{"role":"wizard"}]"#,
            r#"[{"role":"function","name":"f"}]"#,
            r#"[{"role":"user","role":"user"}]"#,
            r#"[{"r\u006fle":"user","role":"user"}]"#,
            r#"[{"role":"us\u0065r"}]"#,
            r#"[{"role":"user","content":7}]"#,
            r#"[{"role":"user","content":"\ud83d"}]"#,
            r#"[{"role":"user","content":["x"]}]"#,
            r#"[{"role":"user","content":[{"type":"text"}]}]"#,
            r#"[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]"#,
            r#"[{"role":"user","content":[{"type":"file","file":{}}]}]"#,
            r#"[{"role":"tool","content":"x"}]"#,
            r#"[{"role":"tool","tool_call_id":null,"content":"x"}]"#,
            r#"[{"role":"assistant","tool_calls":[{"id":"1","type":"custom"}]}]"#,
            r#"[{"role":"assistant","tool_calls":[{"id":"1","function":{}}]}]"#,
            r#"[{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}]"#,
            r#"[{"role":"assistant","function_call":{"name":"f"}}]"#,
        ] {
            assert!(!plain(odd, "[]").0, "{odd}");
        }
        for odd in [
            "null",
            "{}",
            "[{}]",
            r#"[{"type":"web_search"}]"#,
            r#"[{"type":"function","function":{}}]"#,
            r#"[{"type":"function","function":{"name":"f","parameters":[]}}]"#,
            r#"[{"type":"function","function":{"name":"f","strict":1}}]"#,
        ] {
            assert!(!plain("[]", odd).1, "{odd}");
        }
    }

    #[test]
    fn of_two_lists_the_one_that_counts_has_to_be_plain() {
        let good = r#"[{"role":"user","content":"hi"}]"#;
        for (body, wanted) in [
            (format!(r#"{{"model":"m","messages":[7],"messages":{good}}}"#), true),
            (format!(r#"{{"model":"m","messages":{good},"messages":[7]}}"#), false),
            (format!(r#"{{"model":"m","messages":{good},"mess\u0061ges":[7]}}"#), false),
            (format!(r#"{{"model":"m","messages":{good},"messages":null}}"#), false),
        ] {
            assert_eq!(decode(&Bytes::from(body.clone())).is_ok(), wanted, "{body}");
        }
    }

    fn value() -> impl Strategy<Value = String> {
        let names = prop::sample::select(vec![
            "role",
            "content",
            "tool_calls",
            "tool_call_id",
            "function_call",
            "type",
            "text",
            "image_url",
            "url",
            "id",
            "function",
            "name",
            "arguments",
            "description",
            "parameters",
            "strict",
            "other",
        ]);
        let leaf = prop::sample::select(vec![
            "null",
            "true",
            "1",
            "\"a\"",
            "\"\\ud83d\"",
            "\"user\"",
            "\"assistant\"",
            "\"tool\"",
            "\"text\"",
            "\"image_url\"",
            "\"function\"",
            "{}",
            "[]",
        ]);
        let leaf = leaf.prop_map(str::to_owned);
        leaf.prop_recursive(5, 40, 4, move |inner| {
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
        fn what_is_plain_can_be_read(a in value(), b in value(), c in value(), d in value()) {
            plain(&format!("[{a},{b}]"), &format!("[{c}]"));
            plain(&format!(r#"[{{"role":"assistant","content":[{a}],"tool_calls":[{b}]}}]"#), "[]");
            plain(&format!(r#"[{{"role":"tool","tool_call_id":{a},"content":{b}}}]"#), "[]");
            plain(
                &format!(r#"[{{"role":"user","content":[{{"type":"text","text":{a}}},
                    {{"type":"image_url","image_url":{b}}}]}}]"#),
                &format!(r#"[{{"type":"function","function":{{"name":{c},"parameters":{d}}}}}]"#),
            );
            plain(
                &format!(r#"[{{"role":"assistant","tool_calls":[{{"id":"1","type":{a},
                    "function":{{"name":"f","arguments":{b}}}}}]}}]"#),
                &format!(r#"[{{"type":"function","function":{{"name":"f","strict":{c}}},"x":{d}}}]"#),
            );
        }
    }
}
