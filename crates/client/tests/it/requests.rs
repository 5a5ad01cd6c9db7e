//! Requests within one dialect: what was not changed is sent byte for byte.

use serde_json::{Value, json};
use steadfast_chat::{ChatRequest, Message, Part, Role, ThinkingConfig};
use steadfast_client::dialect::{Route, Wire, codec, translation};
use steadfast_core::{Call, Dialect};

use crate::{
    fixtures::{decode, decode_at, encode, json as parse},
    translate::REQUESTS,
};

#[test]
fn unchanged_requests_are_sent_byte_for_byte() {
    for (dialect, body) in REQUESTS {
        let request = decode(dialect, body);
        assert_eq!(encode(dialect, &request), body, "{dialect}");
        // The context is no part of the body.
        let mut request = request;
        request.context.attempts = 3;
        assert_eq!(encode(dialect, &request), body, "{dialect}");
    }
}

#[test]
fn another_model_changes_only_the_model() {
    for (dialect, body) in REQUESTS {
        let mut request = decode(dialect, body);
        let asked = std::mem::replace(&mut request.model, "other-model".into());
        let written = encode(dialect, &request);
        if dialect == Dialect::Gemini {
            assert_eq!(written, body, "the model is in the address");
            continue;
        }
        let mut wanted = parse(body);
        wanted["model"] = "other-model".into();
        assert_eq!(parse(&written), wanted, "{dialect}");
        assert!(body.contains(&*asked));
        // Digits and white space inside of fields are kept.
        for piece in [r#"{"a": 1.50, "b":[ 1e2 ]}"#, r#""x_unknown""#] {
            assert_eq!(written.contains(piece), body.contains(piece), "{dialect} {piece}");
            assert!(body.contains(piece), "{dialect} {piece}");
        }
        let order = |text: &str| -> Vec<String> {
            let Value::Object(fields) = parse(text) else { panic!() };
            fields.keys().cloned().collect()
        };
        assert_eq!(order(&written), order(body), "{dialect}");
    }
}

fn messages_of(dialect: Dialect, body: &Value) -> &Vec<Value> {
    let name = match dialect {
        Dialect::Gemini => "contents",
        Dialect::Responses => "input",
        _ => "messages",
    };
    body[name].as_array().unwrap()
}

#[test]
fn a_new_message_does_not_change_the_others() {
    for (dialect, body) in REQUESTS {
        let mut request = decode(dialect, body);
        request.messages.make_mut().push(Message::assistant("Done."));
        assert!(request.nudge("Go on."));
        let written = encode(dialect, &request);
        let (before, after) = (parse(body), parse(&written));
        let (old, new) = (messages_of(dialect, &before), messages_of(dialect, &after));
        assert_eq!(&new[..old.len()], &old[..], "{dialect}");
        assert_eq!(new.len(), old.len() + 2);
        assert!(new[old.len() + 1].to_string().contains("Go on."));
        // Byte for byte.
        for message in &decode(dialect, body).messages {
            if let Some(raw) = message.raw(dialect) {
                // A turn of several items is a list of them.
                let text = raw.get().trim_start_matches('[').trim_end_matches(']');
                assert!(written.contains(text), "{dialect}: {text}");
            }
        }
    }
}

#[test]
fn neighbours_of_one_role_are_joined_where_roles_alternate() {
    for dialect in [Dialect::Anthropic, Dialect::Gemini] {
        let body = match dialect {
            Dialect::Gemini => r#"{"contents":[{"role":"user","parts":[{"text":"a","x":1}]}]}"#,
            _ => {
                r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"a","x":1}]}]}"#
            }
        };
        let mut request = decode(dialect, body);
        request.nudge("b");
        let written = parse(&encode(dialect, &request));
        let messages = messages_of(dialect, &written);
        assert_eq!(messages.len(), 1, "{dialect}: {written}");
        let text = messages[0].to_string();
        assert!(text.contains("\"x\":1") && text.contains("\"b\""), "{text}");
    }
}

#[test]
fn a_changed_message_keeps_its_unknown_fields() {
    for (dialect, body) in REQUESTS {
        let mut request = decode(dialect, body);
        for message in request.messages.make_mut() {
            // Accessed mutably, not changed: its wire text is dropped.
            message.parts_mut();
        }
        assert_eq!(parse(&encode(dialect, &request)), parse(body), "{dialect}");
    }
}

#[test]
fn parameters_are_changed_at_their_position() {
    let openai =
        r#"{"model":"m","max_tokens":64000,"temperature":0.70,"messages":[],"stop":"x","seed":1}"#;
    let mut request = decode(Dialect::OpenAi, openai);
    request.params.max_output = Some(8_000);
    request.params.temperature = None;
    request.params.top_p = Some(0.5);
    assert_eq!(
        encode(Dialect::OpenAi, &request),
        r#"{"model":"m","max_tokens":8000,"messages":[],"stop":"x","seed":1,"top_p":0.5}"#
    );

    let anthropic = r#"{"model":"claude-sonnet-4-5","max_tokens":64000,"thinking":{"type":"enabled","budget_tokens":32000,"display":"omitted"},"metadata":{"user_id":"u","x":1},"messages":[]}"#;
    let mut request = decode(Dialect::Anthropic, anthropic);
    request.params.max_output = Some(8_000);
    request.params.user = None;
    assert_eq!(
        encode(Dialect::Anthropic, &request),
        r#"{"model":"claude-sonnet-4-5","max_tokens":8000,"thinking":{"type":"enabled","budget_tokens":4000,"display":"omitted"},"metadata":{"x":1},"messages":[]}"#,
        "the budget stays below the limit"
    );
    request.params.thinking = None;
    assert!(!encode(Dialect::Anthropic, &request).contains("thinking"));

    let gemini = r#"{"contents":[],"generation_config":{"max_output_tokens":64000,"temperature":0.70,"thinkingConfig":{"thinkingBudget":5,"x":1},"y":[ 1 ]}}"#;
    let mut request = decode(Dialect::Gemini, gemini);
    request.params.max_output = Some(8_000);
    request.params.thinking = Some(ThinkingConfig::Budget(9));
    assert_eq!(
        encode(Dialect::Gemini, &request),
        r#"{"contents":[],"generation_config":{"max_output_tokens":8000,"temperature":0.70,"thinkingConfig":{"thinkingBudget":9,"x":1},"y":[ 1 ]}}"#
    );
}

#[test]
fn usage_is_requested_in_every_openai_stream() {
    for (body, wanted) in [
        (
            r#"{"model":"m","stream":true,"messages":[ ]}"#,
            r#"{"model":"m","stream":true,"messages":[ ],"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"stream_options":{"x":1, "include_usage":false},"model":"m","stream":true,"messages":[]}"#,
            r#"{"stream_options":{"x":1,"include_usage":true},"model":"m","stream":true,"messages":[]}"#,
        ),
        (
            r#"{"model":"m","stream":true,"stream_options":{ "include_usage":true },"messages":[]}"#,
            r#"{"model":"m","stream":true,"stream_options":{ "include_usage":true },"messages":[]}"#,
        ),
        (
            r#"{"model":"m","stream":true,"stream_options":null,"messages":[]}"#,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[]}"#,
        ),
    ] {
        let request = decode(Dialect::OpenAi, body);
        assert_eq!(encode(Dialect::OpenAi, &request), wanted);
    }
    // A server without this option, and a call that does not stream any more.
    let asked =
        r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[]}"#;
    let mut request = decode(Dialect::OpenAi, asked);
    let wire = Wire { stream_usage: false, ..Wire::default() };
    let written = codec(Dialect::OpenAi).encode_request(&request, &wire).unwrap();
    assert_eq!(written, r#"{"model":"m","stream":true,"messages":[]}"#);
    request.stream = false;
    assert_eq!(encode(Dialect::OpenAi, &request), r#"{"model":"m","messages":[]}"#);
}

#[test]
fn unsigned_thinking_is_not_sent_to_a_vendor_that_requires_signatures() {
    let body = r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"of another vendor","signature":""},{"type":"text","text":"b"}]},{"role":"user","content":"c"}]}"#;
    let written = encode(Dialect::Anthropic, &decode(Dialect::Anthropic, body));
    assert!(!written.contains("another vendor"), "{written}");
    assert_eq!(parse(&written)["messages"][1], json!({"role": "assistant", "content": "b"}));
    let signed = body.replace("\"signature\":\"\"", "\"signature\":\"s\"");
    assert_eq!(encode(Dialect::Anthropic, &decode(Dialect::Anthropic, &signed)), signed);
}

#[test]
fn model_and_stream_are_in_the_address_for_gemini() {
    let body = r#"{"contents":[{"parts":[{"text":"x"}]}]}"#;
    let route = Route { model: Some("models/gemini-x"), stream: Some(true) };
    let request = decode_at(Dialect::Gemini, body, route);
    assert_eq!((request.model.as_str(), request.stream), ("gemini-x", true));
    assert_eq!(request.messages[0].role(), Role::User);
}

#[test]
fn a_request_of_a_program_is_written_for_each_dialect() {
    let mut request = ChatRequest::new(vec![
        Message::system("Be brief."),
        Message::user("hi"),
        Message::new(Role::Assistant, vec![Part::tool_call("c1", "f", "{\"x\": 1}")]),
        Message::tool("c1", "42"),
    ])
    .with_model("m")
    .with_max_output(100)
    .streaming();
    request.params.temperature = Some(0.5);
    let written = Dialect::ALL.map(|dialect| encode(dialect, &request));
    assert_eq!(
        written[0],
        r#"{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]},{"role":"tool","tool_call_id":"c1","content":"42"}],"max_completion_tokens":100,"temperature":0.5,"stream":true,"stream_options":{"include_usage":true}}"#
    );
    assert_eq!(
        written[1],
        r#"{"model":"m","system":"Be brief.","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"f","input":{"x": 1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"42"}]}],"max_tokens":100,"temperature":0.5,"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"none"},"stream":true}"#
    );
    assert_eq!(
        written[2],
        r#"{"systemInstruction":{"parts":[{"text":"Be brief."}]},"contents":[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f","args":{"x": 1}}}]},{"role":"user","parts":[{"functionResponse":{"name":"f","response":{"result":"42"}}}]}],"generationConfig":{"maxOutputTokens":100,"temperature":0.5}}"#
    );
    let older = Wire { max_completion_tokens: false, ..Wire::default() };
    let written = codec(Dialect::OpenAi).encode_request(&request, &older).unwrap();
    assert!(std::str::from_utf8(&written).unwrap().contains(r#""max_tokens":100"#));
}

#[test]
fn instructions_in_the_middle_of_a_conversation_keep_their_position_in_their_own_dialect() {
    let body = r#"{"model":"m","max_tokens":9,"system":"first","messages":[{"role":"user","content":"a"},{"role":"system","content":"late"},{"role":"user","content":"b"}]}"#;
    let mut request = decode(Dialect::Anthropic, body);
    assert_eq!(encode(Dialect::Anthropic, &request), body);
    request.nudge("c");
    assert_eq!(
        encode(Dialect::Anthropic, &request),
        r#"{"model":"m","max_tokens":9,"system":"first","messages":[{"role":"user","content":"a"},{"role":"system","content":"late"},{"role":"user","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]}]}"#
    );
    let elsewhere = parse(&encode(Dialect::Gemini, &request));
    assert_eq!(
        elsewhere["systemInstruction"],
        json!({"parts": [{"text": "first"}, {"text": "late"}]})
    );
}

#[test]
fn what_was_taken_to_fit_the_model_is_named_as_its_caller_does() {
    for (dialect, body, wanted) in [
        (
            Dialect::OpenAi,
            r#"{"model":"m","max_completion_tokens":50,"reasoning_effort":"low","seed":1,"messages":[]}"#,
            "seed, reasoning_effort, max_completion_tokens",
        ),
        (Dialect::OpenAi, r#"{"model":"m","max_tokens":50,"messages":[]}"#, "max_tokens"),
        (
            Dialect::Anthropic,
            r#"{"model":"m","max_tokens":50,"thinking":{"type":"adaptive"},"messages":[]}"#,
            "thinking, max_tokens",
        ),
    ] {
        let mut request = decode(dialect, body);
        let left_out =
            |request: &ChatRequest| translation::check(request, dialect).unwrap().to_string();
        assert_eq!(left_out(&request), "");
        request.params.max_output = Some(20);
        (request.params.thinking, request.params.seed) = (None, None);
        assert_eq!(left_out(&request), wanted);
        request.params.max_output = Some(90);
        assert!(!left_out(&request).contains("max"), "more is not less");
    }
}

#[test]
fn a_limit_whose_name_was_refused_gets_the_other_one() {
    for (read, sent) in [
        (r#"{"model":"m","max_tokens":50,"messages":[]}"#, "max_completion_tokens"),
        (r#"{"model":"m","max_completion_tokens":50,"messages":[]}"#, "max_tokens"),
    ] {
        let mut request = decode(Dialect::OpenAi, read);
        request.params.other_limit_name = true;
        let wanted = format!(r#"{{"model":"m","messages":[],"{sent}":50}}"#);
        assert_eq!(encode(Dialect::OpenAi, &request), wanted);
    }
    let mut translated =
        decode(Dialect::Anthropic, r#"{"model":"m","max_tokens":50,"messages":[]}"#);
    translated.params.other_limit_name = true;
    let written = parse(&encode(Dialect::OpenAi, &translated));
    assert_eq!((&written["max_tokens"], written.get("max_completion_tokens")), (&json!(50), None));
}

#[test]
fn what_the_model_of_failover_would_refuse_is_left_out() {
    let body =
        r#"{"model":"gpt-4o","max_tokens":50,"temperature":0.7,"top_p":0.9,"messages":[],"x":1}"#;
    let mut request = decode(Dialect::OpenAi, body);
    request.model = "gpt-4.1".into();
    assert_eq!(encode(Dialect::OpenAi, &request), body.replace("gpt-4o", "gpt-4.1"));
    request.model = "gpt-5".into();
    assert_eq!(
        encode(Dialect::OpenAi, &request),
        r#"{"model":"gpt-5","messages":[],"x":1,"max_completion_tokens":50}"#
    );

    let body = r#"{"model":"gpt-5","reasoning_effort":"minimal","messages":[]}"#;
    let mut request = decode(Dialect::OpenAi, body);
    request.model = "gpt-5-mini".into();
    assert_eq!(encode(Dialect::OpenAi, &request), body.replace("gpt-5", "gpt-5-mini"));
    request.model = "o3".into();
    let low = body.replace("gpt-5", "o3").replace("minimal", "low");
    assert_eq!(encode(Dialect::OpenAi, &request), low, "the least that it knows");
    request.model = "gpt-4o".into();
    assert_eq!(encode(Dialect::OpenAi, &request), r#"{"model":"gpt-4o","messages":[]}"#);

    let body = r#"{"model":"claude-sonnet-4-5","max_tokens":5000,"temperature":1,"thinking":{"type":"enabled","budget_tokens":2000},"messages":[]}"#;
    let mut request = decode(Dialect::Anthropic, body);
    request.model = "claude-opus-4-7".into();
    assert_eq!(
        encode(Dialect::Anthropic, &request),
        r#"{"model":"claude-opus-4-7","max_tokens":5000,"thinking":{"type":"adaptive"},"messages":[],"output_config":{"effort":"medium"}}"#
    );
}
