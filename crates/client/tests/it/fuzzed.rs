//! Bugs that fuzzing and reviews found in answers, streams and requests, each as a small input.

use bytes::Bytes;
use serde_json::{Value, json};
use steadfast_chat::{
    Delta, Event,
    transcript::{TranscriptRules, validate},
};
use steadfast_client::dialect::{Route, codec};
use steadfast_core::{Dialect, Failure, Reason};

use crate::fixtures::{completion, decode, encode, read_stream, write_stream};

fn refused(dialect: Dialect, body: String) -> Failure {
    codec(dialect).decode_request(&body.into(), Route::default()).unwrap_err().into()
}

#[test]
fn a_body_that_nests_too_deep_is_refused_with_its_position() {
    let schema = |levels: usize| "{\"a\":".repeat(levels) + "1" + &"}".repeat(levels);
    let body = |dialect: Dialect, schema: &str| {
        let text = match dialect {
            Dialect::Anthropic => {
                r#"{"model":"m","max_tokens":1,"messages":[],"tools":[{"name":"f","input_schema":@}]}"#
            }
            Dialect::Gemini => {
                r#"{"contents":[],"tools":[{"functionDeclarations":[{"name":"f","parameters":@}]}]}"#
            }
            Dialect::Responses => {
                r#"{"model":"m","input":[],"tools":[{"type":"function","name":"f","parameters":@}]}"#
            }
            _ => {
                r#"{"model":"m","messages":[],"tools":[{"type":"function","function":{"name":"f","parameters":@}}]}"#
            }
        };
        text.replace('@', schema)
    };
    for dialect in Dialect::ALL {
        for levels in [128, 100_000] {
            let failure = refused(dialect, body(dialect, &schema(levels)));
            assert_eq!(failure.reason(), Reason::Format);
            let message = failure.message();
            assert!(message.starts_with("tools: is nested deeper than 128 levels"), "{message}");
        }
        // Deeper than any real schema, and passed on to every dialect.
        let request = decode(dialect, &body(dialect, &schema(100)));
        for to in Dialect::ALL {
            assert!(encode(to, &request).contains(&schema(99)), "{dialect} to {to}");
        }
    }
    // Fields that this crate does not read are passed on too, so the limit holds for them.
    let extra =
        format!(r#"{{"model":"m","messages":[],"x":{}}}"#, "[".repeat(200) + &"]".repeat(200));
    assert!(refused(Dialect::OpenAi, extra).message().starts_with("x: is nested deeper"));
}

#[test]
fn of_a_list_that_is_repeated_the_last_one_counts() {
    for (dialect, body) in [
        (
            Dialect::OpenAi,
            r#"{"model":"m","messages":1,"messages":[{"role":"user","content":"hi"}]}"#,
        ),
        (
            Dialect::Anthropic,
            r#"{"model":"m","max_tokens":1,"messages":{},"messages":[{"role":"user","content":"hi"}]}"#,
        ),
        (
            Dialect::Gemini,
            r#"{"contents":"x","contents":[{"role":"user","parts":[{"text":"hi"}]}]}"#,
        ),
    ] {
        assert!(encode(dialect, &decode(dialect, body)).contains("hi"), "{dialect}");
    }
    let last = r#"{"model":"m","messages":[],"messages":1}"#.to_owned();
    assert!(
        refused(Dialect::OpenAi, last)
            .message()
            .starts_with("messages: is a number, but has to be a list")
    );
}

#[test]
fn invalid_utf8_is_not_passed_on_in_unread_fields() {
    for (dialect, answer, frame) in [
        (
            Dialect::OpenAi,
            &b"{\"x\":\"\xff\",\"choices\":[{\"message\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}"[..],
            &b"data: {\"x\":\"\xff\",\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"[..],
        ),
        (
            Dialect::Anthropic,
            b"{\"x\":\"\xff\",\"content\":[],\"stop_reason\":\"end_turn\"}",
            b"event: content_block_stop\ndata: {\"x\":\"\xff\",\"type\":\"content_block_stop\",\"index\":0}\n\n",
        ),
        (
            Dialect::Gemini,
            b"{\"candidates\":[{\"content\":{\"role\":\"m\xff\"},\"finishReason\":\"STOP\"}]}",
            b"data: {\"candidates\":[{\"content\":{\"role\":\"m\xff\",\"parts\":[{\"text\":\"a\"}]}}]}\n\n",
        ),
    ] {
        let failure = codec(dialect).decode_answer(&Bytes::from_static(answer)).unwrap_err();
        assert_eq!((failure.reason(), failure.evidence()), (Reason::ServerError, "malformed"));
        let (events, failure) = read_stream(dialect, [Bytes::from_static(frame)]);
        assert!(events.is_empty(), "{dialect}");
        assert_eq!(failure.unwrap().evidence(), "malformed", "{dialect}");
    }
    // The provider's error is read nevertheless.
    let error = b"event: error\ndata: {\"error\":{\"message\":\"caf\xe9 overloaded\"}}\n\n";
    let (_, failure) = read_stream(Dialect::OpenAi, [Bytes::from_static(error)]);
    assert_eq!(failure.unwrap().evidence(), "event");
}

#[test]
fn an_empty_result_of_a_tool_needs_no_repair() {
    for response in [r#"{"result":""}"#, r#"{"error":""}"#] {
        let body = format!(
            r#"{{"contents":[{{"role":"user","parts":[{{"text":"x"}}]}},{{"role":"model","parts":[{{"functionCall":{{"name":"f","args":{{}}}}}}]}},{{"role":"user","parts":[{{"functionResponse":{{"name":"f","response":{response}}}}}]}}],"tools":[{{"functionDeclarations":[{{"name":"f"}}]}}]}}"#
        );
        let mut request = decode(Dialect::Gemini, &body);
        assert!(validate(&request, &TranscriptRules::for_dialect(Dialect::Gemini)).is_ok());
        // Encoded again it is the same.
        request.messages.make_mut().iter_mut().for_each(|message| {
            message.parts_mut();
        });
        assert!(encode(Dialect::Gemini, &request).contains(response), "{response}");
    }
}

#[test]
fn a_turn_without_words_is_not_left_out() {
    for role in ["user", "assistant"] {
        let body = json!({
            "model": "m", "max_tokens": 9, "messages": [{"role": role, "content": ""}],
        });
        let request = decode(Dialect::Anthropic, &body.to_string());
        let written: Value = serde_json::from_str(&encode(Dialect::OpenAi, &request)).unwrap();
        assert_eq!(written["messages"], json!([{"role": role, "content": ""}]));
    }
}

#[test]
fn empty_lines_of_a_provider_keep_the_callers_stream_open() {
    for dialect in Dialect::ALL {
        let (events, _) = read_stream(dialect, ["\n\r\n".into()]);
        assert_eq!(events.len(), 2, "each at once");
        assert!(events.iter().all(|event| event.deltas[..] == [Delta::Ping]));
        assert_eq!(write_stream(dialect, dialect, &events), "\n\r\n");
    }
}

/// Not a benchmark: it would take minutes if the time for one delta grew with the number of calls.
#[test]
fn many_calls_take_linear_time() {
    const CALLS: usize = 6_000;
    let delta = |call: String| {
        format!("data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{call}]}}}}]}}\n\n")
    };
    let begin = |n: usize| {
        delta(format!(r#"{{"index":{n},"id":"c{n}","function":{{"name":"f","arguments":"{{"}}}}"#))
    };
    let go_on = |n: usize| delta(format!(r#"{{"index":{n},"function":{{"arguments":"}}"}}}}"#));
    let openai: String = (0..CALLS).map(begin).chain((0..CALLS).map(go_on)).collect();
    let (events, _) = read_stream(Dialect::OpenAi, [openai.into()]);
    let answer = completion(Dialect::OpenAi, &events);
    assert_eq!(answer.tool_calls().filter(|call| call.arguments == "{}").count(), CALLS);

    let bare: Vec<Event> = events.iter().map(|e| Event::new(e.deltas.clone())).collect();
    for to in Dialect::ALL {
        let written = write_stream(Dialect::OpenAi, to, &bare);
        assert!(to == Dialect::Gemini || written.contains("c0"), "{to}");
    }

    // Blocks that begin and do not end, then pieces from the oldest on.
    let block = |n: usize| {
        format!(
            "data: {{\"type\":\"content_block_start\",\"index\":{n},\"content_block\":{{\"type\":\"text\",\"text\":\"\"}}}}\n\n"
        )
    };
    let piece = |n: usize| {
        format!(
            "data: {{\"type\":\"content_block_delta\",\"index\":{n},\"delta\":{{\"type\":\"text_delta\",\"text\":\"a\"}}}}\n\n"
        )
    };
    let end = |n: usize| format!("data: {{\"type\":\"content_block_stop\",\"index\":{n}}}\n\n");
    let anthropic: String =
        (0..CALLS).map(block).chain((0..CALLS).map(piece)).chain((0..CALLS).map(end)).collect();
    let (events, _) = read_stream(Dialect::Anthropic, [anthropic.into()]);
    assert_eq!(completion(Dialect::Anthropic, &events).text().len(), CALLS);
    for to in Dialect::ALL {
        let bare: Vec<Event> = events.iter().map(|e| Event::new(e.deltas.clone())).collect();
        assert!(!write_stream(Dialect::Anthropic, to, &bare).is_empty());
    }
}

#[test]
fn an_index_used_again_ends_the_block_that_had_it() {
    let start = |kind: &str| {
        format!(
            "data: {{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{kind}}}\n\n"
        )
    };
    let text = start(r#"{"type":"server_tool_use","id":"s","name":"w","input":{}}"#)
        + &start(r#"{"type":"text","text":"a"}"#)
        + "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"b\"}}\n\n";
    let (events, _) = read_stream(Dialect::Anthropic, [text.into()]);
    let deltas: Vec<&Delta> = events.iter().flat_map(|event| &event.deltas).collect();
    assert!(matches!(deltas[0], Delta::Opaque { index: 0, .. }), "{deltas:?}");
    assert_eq!(deltas[1], &Delta::BlockEnd { index: 0 });
    assert_eq!(completion(Dialect::Anthropic, &events).text(), "ab");
}

#[test]
fn a_call_without_id_and_name_is_not_a_piece_of_the_one_before_it() {
    let body = r#"{"choices":[{"message":{"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"","type":"function","function":{"name":"","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}"#;
    let answer = codec(Dialect::OpenAi).decode_answer(&body.into()).unwrap();
    let answer = completion(Dialect::OpenAi, &[answer]);
    let calls: Vec<_> = answer.tool_calls().map(|c| (c.name.as_str(), &*c.arguments)).collect();
    assert_eq!(calls, [("f", "{}"), ("", "{}")]);
}
