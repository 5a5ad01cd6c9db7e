//! Regressions that the vendors' own SDKs showed.

use serde_json::json;
use steadfast_client::dialect::codec;
use steadfast_core::{Dialect, Failure, FaultSide, Reason, Target};

use crate::fixtures::{
    decode, encode, frames, json as parse, stream, try_encode, whole_stream, write_stream,
};

fn message(dialect: Dialect, failure: &Failure) -> String {
    let (_, _, body) = codec(dialect).encode_error(failure, None);
    parse(std::str::from_utf8(&body).unwrap())["error"]["message"].as_str().unwrap().to_owned()
}

/// Google's SDKs keep a streamed turn as the chunks it came in, and send them back so.
#[test]
fn chunks_of_a_turn_are_one_turn_and_its_calls_keep_their_results() {
    let body = r#"{"contents":[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"text":"Let "}]},{"role":"model","parts": {"text":"me."} },{"role":"model","parts":[{"functionCall":{"id":"a","name":"f","args":{"q": 1.50}}}]},{"role":"model","parts":[{"functionCall":{"id":"b","name":"g","args":{}}}]},{"role":"model"},{"role":"model","parts":[ ]},{"role":"model","parts":[{"text":""}]},{"role":"user","parts":[{"functionResponse":{"id":"a","name":"f","response":{"result":"one"}}},{"functionResponse":{"id":"b","name":"g","response":{"result":"two"}}}]},{"role":"model","parts":[{"text":"So."}]},{"role":"model","parts":[{"text":" Done."}]}],"tools":[{"functionDeclarations":[{"name":"f"},{"name":"g"}]}]}"#;
    let request = decode(Dialect::Gemini, body);
    assert_eq!(encode(Dialect::Gemini, &request), body, "the same dialect gets the same bytes");

    let written = parse(&encode(Dialect::OpenAi, &request));
    let messages = written["messages"].as_array().unwrap();
    let roles: Vec<_> = messages.iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "assistant"]);
    assert_eq!(messages[1]["tool_calls"].as_array().unwrap().len(), 2);
    assert!(messages[1]["content"].to_string().contains("Let "), "{}", messages[1]);
    assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], r#"{"q": 1.50}"#);
    assert_eq!([&messages[2]["content"], &messages[3]["content"]], ["one", "two"]);

    let written = parse(&encode(Dialect::Anthropic, &request));
    let blocks = written["messages"][2]["content"].as_array().unwrap();
    assert_eq!(blocks.len(), 2, "{blocks:?}");
    assert!(!written.to_string().contains("was lost"), "{written}");
}

/// Of a chunk without a part, the chats of Google's SDKs drop the whole turn.
#[test]
fn every_chunk_of_a_stream_for_gemini_has_a_part() {
    for from in [Dialect::OpenAi, Dialect::Anthropic] {
        let text = write_stream(from, Dialect::Gemini, &whole_stream(from, &stream(from)));
        let chunks = frames(&text);
        assert!(chunks.len() > 2, "{text}");
        for chunk in chunks {
            let chunk = parse(chunk.trim().trim_start_matches("data:").trim());
            let parts = chunk["candidates"][0]["content"]["parts"].as_array();
            assert!(parts.is_some_and(|parts| !parts.is_empty()), "{from}: {chunk}");
        }
    }
}

/// A turn of a conversation that Anthropic stores has no earlier messages in it.
#[test]
fn a_stored_conversation_is_refused_elsewhere_with_the_code_the_sdks_know() {
    let with = |thread: &str| {
        let body = format!(
            r#"{{"model":"m","max_tokens":9,"thread":{thread},"messages":[{{"role":"user","content":"and?"}}]}}"#
        );
        decode(Dialect::Anthropic, &body)
    };
    let request = with(r#"{"type": "continue", "previous_message_id": "msg_1"}"#);
    assert!(encode(Dialect::Anthropic, &request).contains("previous_message_id"));
    for other in [Dialect::OpenAi, Dialect::Gemini] {
        let failure = try_encode(other, &request).unwrap_err();
        assert_eq!((failure.reason(), failure.http_status().as_u16()), (Reason::Unsupported, 400));
        let (_, _, body) = codec(Dialect::Anthropic).encode_error(&failure, Some("req_1"));
        let body = parse(std::str::from_utf8(&body).unwrap());
        assert_eq!(
            body["error"]["details"],
            json!({"error_code": "thread_unsupported_request", "unsupported": ["provider"]})
        );
        for none in ["null", "false"] {
            assert!(!encode(other, &with(none)).contains("thread"));
        }
    }
}

#[test]
fn a_refused_key_of_the_operators_is_reported_as_one_with_what_was_tried() {
    let target = Target::new("p").with_model("m");
    let refused = || {
        Failure::new(Reason::Auth, "Incorrect API key provided")
            .with_target(target.clone())
            .with_attempts(1)
    };
    let failure = refused();
    for dialect in Dialect::ALL {
        let (status, _, _) = codec(dialect).encode_error(&failure, None);
        assert_eq!(status, 503, "{dialect}");
        let text = message(dialect, &failure);
        assert!(text.contains("An operator has to renew them. It answered: Incorrect"), "{text}");
        assert!(text.ends_with("Tried: p/m, once."), "{text}");
        let theirs = refused().with_fault(FaultSide::Caller);
        assert_eq!(codec(dialect).encode_error(&theirs, None).0, 401);
        assert_eq!(message(dialect, &theirs), "Incorrect API key provided");
        let broken = Failure::new(Reason::ServerError, "Sorry!")
            .with_target(target.clone())
            .with_attempts(3);
        assert_eq!(message(dialect, &broken), "server error: Sorry! Tried: p/m, 3 times.");
    }
}
