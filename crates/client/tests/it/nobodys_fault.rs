//! What is nobody's failure: an answer with nothing in it, half of a character, a value nobody knows,
//! a refusal, arguments that are no object. It passes in its own dialect as it came, and in another
//! with its meaning.

use bytes::Bytes;
use serde_json::{Value, json};
use steadfast_chat::{ChatRequest, Completion, Event, Message, Part, Role, StopReason, surrogates};
use steadfast_client::dialect::{StreamDecoder, codec};
use steadfast_core::{
    Dialect::{self, Anthropic, Gemini, OpenAi, Responses},
    FaultSide, Reason, Retry, Scope,
};

use crate::fixtures::{
    caller, completion, decode, encode, json as parse, whole_stream, write_stream,
};

/// One answer, whole and in pieces, and what it means.
struct Case {
    name: &'static str,
    from: Dialect,
    whole: String,
    stream: String,
    text: &'static str,
    /// The arguments of its call.
    call: Option<&'static str>,
    stop: StopReason,
    /// It has content.
    content: bool,
}

impl Case {
    fn new(name: &'static str, from: Dialect, whole: String, stream: String) -> Self {
        let (text, call, stop, content) = ("", None, StopReason::EndTurn, false);
        Self { name, from, whole, stream, text, call, stop, content }
    }

    fn says(self, text: &'static str) -> Self {
        Self { text, content: true, ..self }
    }

    fn calls(self, arguments: &'static str) -> Self {
        Self { call: Some(arguments), content: true, stop: StopReason::ToolUse, ..self }
    }

    fn stops(self, stop: StopReason) -> Self {
        Self { stop, ..self }
    }

    fn shows(self) -> Self {
        Self { content: true, ..self }
    }
}

fn openai(name: &'static str, message: &str, deltas: &[&str], finish: &str) -> Case {
    let chunk = |delta: &str, finish: &str| {
        format!(
            "data: {{\"id\":\"c\",\"x_new\":[\"\\ud83d\"],\"choices\":[{{\"index\":0,\
             \"delta\":{delta},\"finish_reason\":{finish}}}]}}\n\n"
        )
    };
    let mut stream: String = deltas.iter().map(|delta| chunk(delta, "null")).collect();
    stream += &chunk("{}", &format!("\"{finish}\""));
    let whole = format!(
        r#"{{"id":"c","x_new":["\ud83d"],"choices":[{{"index":0,"message":{message},"finish_reason":"{finish}"}}]}}"#
    );
    Case::new(name, OpenAi, whole, stream + "data: [DONE]\n\n")
}

/// Each block as it is whole, as it begins, and its deltas.
fn anthropic(name: &'static str, blocks: &[(&str, &str, &[&str])], stop: &str) -> Case {
    let mut stream = String::new();
    let mut event = |kind: &str, rest: &str| {
        stream += &format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n");
    };
    event("message_start", r#","x_new":["\ud83d"],"message":{"id":"m","model":"c"}"#);
    for (at, (_, begins, deltas)) in blocks.iter().enumerate() {
        event("content_block_start", &format!(r#","index":{at},"content_block":{begins}"#));
        for delta in *deltas {
            event("content_block_delta", &format!(r#","index":{at},"delta":{delta}"#));
        }
        event("content_block_stop", &format!(r#","index":{at}"#));
    }
    event("message_delta", &format!(r#","delta":{{"stop_reason":"{stop}"}}"#));
    event("message_stop", "");
    let content: Vec<&str> = blocks.iter().map(|(whole, ..)| *whole).collect();
    let content = content.join(",");
    let whole = format!(
        r#"{{"id":"m","type":"message","model":"c","x_new":["\ud83d"],"content":[{content}],"stop_reason":"{stop}"}}"#
    );
    Case::new(name, Anthropic, whole, stream)
}

fn gemini(name: &'static str, whole: &str, parts: &[&str], finish: &str) -> Case {
    let chunk = |content: &str, finish: &str| {
        format!(r#"{{"candidates":[{{"x_new":["\ud83d"],"content":{{{content}}}{finish}}}]}}"#)
    };
    let finish = format!(r#","finishReason":"{finish}""#);
    let part = |part: &&str| format!("data: {}\n\n", chunk(&format!(r#""parts":[{part}]"#), ""));
    let mut stream: String = parts.iter().map(part).collect();
    stream += &format!("data: {}\n\n", chunk("", &finish));
    Case::new(name, Gemini, chunk(&format!(r#""parts":[{whole}]"#), &finish), stream)
}

const TEXT: &str = r#"{"type":"text","text":""}"#;
const CALL: &str = r#"{"type":"tool_use","id":"t1","name":"f","input":{}}"#;

/// A call in one piece, as OpenAI's dialect has it whole and streamed.
fn openai_call(name: &'static str, arguments: &str, finish: &str) -> Case {
    let call = format!(
        r#"{{"tool_calls":[{{"index":0,"id":"t1","type":"function","function":{{"name":"f","arguments":{arguments}}}}}]}}"#
    );
    openai(name, &call, &[&call], finish)
}

fn cases() -> Vec<Case> {
    use StopReason::{ContentFilter, Other};
    let nothing = "an end and nothing else";
    let split = "half of a character in a piece";
    let alone = "half of a character";
    let arguments = "half of a character in a piece of arguments";
    let unknown = "an end that nobody knows";
    let unknown_call = "an end that nobody knows, after a call";
    let refusal = "a refusal";
    let silent = "a refusal without a text";
    let shown = "content without text";
    vec![
        openai(nothing, r#"{"content":null}"#, &[r#"{"content":""}"#], "stop"),
        anthropic(nothing, &[], "end_turn"),
        gemini(nothing, "", &[], "STOP"),
        openai(
            split,
            r#"{"content":"a\ud83d\ude00b"}"#,
            &[r#"{"content":"a\ud83d"}"#, r#"{"content":""}"#, r#"{"content":"\ude00b"}"#],
            "stop",
        )
        .says("a😀b"),
        anthropic(
            split,
            &[(
                r#"{"type":"text","text":"a\ud83d\ude00b"}"#,
                TEXT,
                &[
                    r#"{"type":"text_delta","text":"a\ud83d"}"#,
                    r#"{"type":"text_delta","text":"\ude00b"}"#,
                ],
            )],
            "end_turn",
        )
        .says("a😀b"),
        gemini(
            split,
            r#"{"text":"a\ud83d\ude00b"}"#,
            &[r#"{"text":"a\ud83d"}"#, r#"{"text":"\ude00b"}"#],
            "STOP",
        )
        .says("a😀b"),
        openai(alone, r#"{"content":"a\ud83d"}"#, &[r#"{"content":"a\ud83d"}"#], "stop")
            .says("a\u{fffd}"),
        anthropic(
            alone,
            &[(
                r#"{"type":"text","text":"a\ud83d"}"#,
                TEXT,
                &[r#"{"type":"text_delta","text":"a\ud83d"}"#],
            )],
            "end_turn",
        )
        .says("a\u{fffd}"),
        gemini(alone, r#"{"text":"a\ud83d"}"#, &[r#"{"text":"a\ud83d"}"#], "STOP")
            .says("a\u{fffd}"),
        openai(
            arguments,
            r#"{"tool_calls":[{"id":"t1","type":"function","function":{"name":"f","arguments":"{\"a\":\"\ud83d\ude00\",\"b\":\"\\ufffd\"}"}}]}"#,
            &[
                r#"{"tool_calls":[{"index":0,"id":"t1","function":{"name":"f","arguments":"{\"a\":\"\ud83d"}}]}"#,
                r#"{"tool_calls":[{"index":0,"function":{"arguments":"\ude00\",\"b\":\"\\ud8"}}]}"#,
                r#"{"tool_calls":[{"index":0,"function":{"arguments":"3d\"}"}}]}"#,
            ],
            "tool_calls",
        )
        .calls(r#"{"a":"😀","b":"\ufffd"}"#),
        anthropic(
            arguments,
            &[(
                r#"{"type":"tool_use","id":"t1","name":"f","input":{"a":"😀","b":"\ud83d"}}"#,
                CALL,
                &[
                    r#"{"type":"input_json_delta","partial_json":"{\"a\":\"\ud83d"}"#,
                    r#"{"type":"input_json_delta","partial_json":"\ude00\",\"b\":\"\\ud83d"}"#,
                    r#"{"type":"input_json_delta","partial_json":"\"}"}"#,
                ],
            )],
            "tool_use",
        )
        .calls(r#"{"a":"😀","b":"\ufffd"}"#),
        gemini(
            arguments,
            r#"{"functionCall":{"name":"f","args":{"a":"😀","b":"\ud83d"}}}"#,
            &[r#"{"functionCall":{"name":"f","args":{"a":"😀","b":"\ud83d"}}}"#],
            "STOP",
        )
        .calls(r#"{"a":"😀","b":"\ufffd"}"#),
        openai(unknown, r#"{"content":"a"}"#, &[r#"{"content":"a"}"#], "tired")
            .says("a")
            .stops(Other),
        anthropic(unknown, &[], "tired").stops(Other),
        gemini(unknown, r#"{"text":"a"}"#, &[r#"{"text":"a"}"#], "TIRED").says("a").stops(Other),
        openai_call(unknown_call, r#""{}""#, "tired").calls("{}"),
        anthropic(unknown_call, &[(CALL, CALL, &[])], "tired").calls("{}"),
        gemini(
            unknown_call,
            r#"{"functionCall":{"name":"f","args":{}}}"#,
            &[r#"{"functionCall":{"name":"f","args":{}}}"#],
            "TIRED",
        )
        .calls("{}"),
        openai(
            refusal,
            r#"{"content":null,"refusal":"I can not."}"#,
            &[r#"{"refusal":"I can"}"#, r#"{"refusal":" not."}"#],
            "stop",
        )
        .says("I can not.")
        .stops(ContentFilter),
        anthropic(
            refusal,
            &[(
                r#"{"type":"text","text":"I can not."}"#,
                TEXT,
                &[r#"{"type":"text_delta","text":"I can not."}"#],
            )],
            "refusal",
        )
        .says("I can not.")
        .stops(ContentFilter),
        gemini(refusal, r#"{"text":"I can"}"#, &[r#"{"text":"I can"}"#], "SAFETY")
            .says("I can")
            .stops(ContentFilter),
        openai(silent, r#"{"content":null}"#, &[], "content_filter").stops(ContentFilter),
        anthropic(silent, &[], "refusal").stops(ContentFilter),
        gemini(silent, "", &[], "SAFETY").stops(ContentFilter),
        openai(
            shown,
            r#"{"content":null,"audio":{"id":"a","data":"AAAA","transcript":"hi"}}"#,
            &[r#"{"audio":{"id":"a","transcript":"hi"}}"#, r#"{"audio":{"data":"AAAA"}}"#],
            "stop",
        )
        .shows(),
        openai(
            shown,
            r#"{"content":"","images":[{"type":"image_url","image_url":{"url":"data:,"}}]}"#,
            &[r#"{"images":[{"type":"image_url","image_url":{"url":"data:,"}}]}"#],
            "stop",
        )
        .shows(),
        anthropic(
            shown,
            &[(
                r#"{"type":"server_tool_use","id":"s","name":"bash","input":{"command":"ls"}}"#,
                r#"{"type":"server_tool_use","id":"s","name":"bash","input":{}}"#,
                &[r#"{"type":"input_json_delta","partial_json":"{\"command\":\"ls\"}"}"#],
            )],
            "end_turn",
        )
        .shows(),
        gemini(
            shown,
            r#"{"executableCode":{"code":"1"}},{"codeExecutionResult":{"output":"1"}}"#,
            &[
                r#"{"inlineData":{"mimeType":"image/png","data":"AAAA"}}"#,
                r#"{"partOfTomorrow":{"a":1}}"#,
            ],
            "STOP",
        )
        .shows(),
        // What the model wrote wrong.
        openai_call("arguments that are no object", r#""[1]""#, "tool_calls").calls("[1]"),
    ]
}

/// The arguments of a call in the dialect `to`, where only OpenAI's has those that are no object.
fn arguments(to: Dialect, text: &str) -> Value {
    match surrogates::read::<Value>(text) {
        Ok(object @ Value::Object(_)) => object,
        _ if to == OpenAi => text.into(),
        _ => json!({ "_raw": text }),
    }
}

fn check(case: &Case, to: Dialect, how: &str, answer: &Completion) {
    let name = format!("{} of {} for {to}, {how}", case.name, case.from);
    assert!(answer.ended, "{name}");
    assert_eq!(answer.text(), case.text, "{name}");
    let calls: Vec<Value> =
        answer.tool_calls().map(|call| arguments(to, &call.arguments)).collect();
    let wanted: Vec<Value> = case.call.iter().map(|text| arguments(to, text)).collect();
    assert_eq!(calls, wanted, "{name}");
    let stop = match case.stop {
        // Only Gemini has a value for it.
        StopReason::Other if to != case.from && to != Gemini => StopReason::EndTurn,
        stop => stop,
    };
    assert_eq!(answer.stop.as_ref().map(|stop| stop.reason), Some(stop), "{name}");
}

#[test]
fn it_passes_as_it_came_and_means_the_same_elsewhere() {
    for case in cases() {
        let from = case.from;
        let body = Bytes::from(case.whole.clone());
        let whole = codec(from).decode_answer(&body);
        let whole = whole.unwrap_or_else(|failure| panic!("{} of {from}: {failure}", case.name));
        let streamed = whole_stream(from, &case.stream);
        for (how, events) in [("whole", std::slice::from_ref(&whole)), ("streamed", &streamed[..])]
        {
            let has_content = events.iter().any(Event::is_content);
            assert_eq!(has_content, case.content, "{} of {from}, {how}", case.name);
            let answer = completion(from, events);
            check(&case, from, how, &answer);
            for to in Dialect::ALL {
                let body = codec(to).encode_answer(&answer, &caller()).unwrap();
                let frames = write_stream(from, to, events);
                if to == from && how == "whole" {
                    assert_eq!(body, case.whole);
                } else if to == from {
                    assert_eq!(frames, case.stream);
                } else {
                    // As a strict reader reads it.
                    parse(std::str::from_utf8(&body).unwrap());
                    check(&case, to, how, &completion(to, &[read(to, &body)]));
                    check(&case, to, how, &completion(to, &whole_stream(to, &frames)));
                }
            }
        }
    }
}

fn read(dialect: Dialect, body: &Bytes) -> Event {
    codec(dialect).decode_answer(body).unwrap()
}

/// When a layer has changed every event: the values are still the provider's.
#[test]
fn its_own_dialect_gets_the_same_when_it_is_written_again() {
    for case in cases().into_iter().filter(|case| case.name != "content without text") {
        let from = case.from;
        let mut events = whole_stream(from, &case.stream);
        for event in &mut events {
            event.deltas_mut();
        }
        let written = write_stream(from, from, &events);
        let again = completion(from, &whole_stream(from, &written));
        let stop = completion(from, &events).stop.unwrap();
        assert_eq!(again.stop.as_ref().unwrap().word, stop.word, "{} of {from}", case.name);
        assert_eq!(again.text(), case.text, "{} of {from}", case.name);
    }
}

#[test]
fn each_piece_of_an_answer_is_content_when_it_comes() {
    for (case, wanted) in [
        // The audio, and not the end; the call of the server, its input, and its end.
        ("content without text", [2, 1, 3, 2]),
        // The empty piece is none.
        ("half of a character in a piece", [2, 2, 2, 0]),
    ] {
        let cases = cases().into_iter().filter(|other| other.name == case);
        for (case, wanted) in cases.zip(wanted) {
            let events = whole_stream(case.from, &case.stream);
            let content = events.iter().filter(|event| event.is_content()).count();
            assert_eq!(content, wanted, "{} of {}", case.name, case.from);
        }
    }
}

/// A caller of OpenAI's dialect sends the answer back, and may not do so with null.
#[test]
fn an_answer_with_nothing_in_it_can_be_sent_back() {
    for case in cases().iter().filter(|case| case.name == "an end and nothing else") {
        let answer = completion(case.from, &[read(case.from, &case.whole.clone().into())]);
        let body = codec(OpenAi).write_answer(&answer, &caller()).unwrap();
        let body = parse(std::str::from_utf8(&body).unwrap());
        assert_eq!(body["choices"][0]["message"]["content"], "", "{}", case.from);
        let body = codec(Gemini).write_answer(&answer, &caller()).unwrap();
        let body = parse(std::str::from_utf8(&body).unwrap());
        assert_eq!(body["candidates"][0]["content"]["parts"], json!([{"text": ""}]));
    }
}

/// Half of a character wherever a caller can put one.
const REQUESTS: [(Dialect, &str); 4] = [
    (
        OpenAi,
        r#"{"model":"gpt-4o","messages":[{"role":"user","content":"cut \ud83d","name":"\ude00"},{"role":"assistant","content":null,"tool_calls":[{"id":"t1","type":"function","function":{"name":"f","arguments":"{\"a\":\"\\ud83d\"}"}}]},{"role":"tool","tool_call_id":"t1","content":"\ude00 out"}],"tools":[{"type":"function","function":{"name":"f","description":"d \ud83d","parameters":{"type":"object","description":"\ud83d"}}}],"x":"\ud83d"}"#,
    ),
    (
        Anthropic,
        r#"{"model":"claude-sonnet-4-5","max_tokens":9,"messages":[{"role":"user","content":"cut \ud83d"},{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"f","input":{"a":"\ud83d"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"\ude00 out"}]}],"tools":[{"name":"f","description":"d \ud83d","input_schema":{"type":"object","description":"\ud83d"}}],"x":"\ud83d"}"#,
    ),
    (
        Gemini,
        r#"{"contents":[{"role":"user","parts":[{"text":"cut \ud83d"}]},{"role":"model","parts":[{"functionCall":{"name":"f","args":{"a":"\ud83d"}}}]},{"role":"user","parts":[{"functionResponse":{"name":"f","response":{"result":"\ude00 out"}}}]}],"tools":[{"functionDeclarations":[{"name":"f","description":"d \ud83d","parameters":{"type":"object","description":"\ud83d"}}]}],"x":"\ud83d"}"#,
    ),
    (
        Responses,
        r#"{"model":"gpt-4o","input":[{"type":"message","role":"user","content":"cut \ud83d"},{"type":"function_call","call_id":"t1","name":"f","arguments":"{\"a\":\"\\ud83d\"}"},{"type":"function_call_output","call_id":"t1","output":"\ude00 out"}],"tools":[{"type":"function","name":"f","description":"d \ud83d","parameters":{"type":"object","description":"\ud83d"}}],"x":"\ud83d"}"#,
    ),
];

#[test]
fn half_of_a_character_of_a_caller_goes_to_every_provider() {
    for (from, body) in REQUESTS {
        let request = decode(from, body);
        for to in Dialect::ALL {
            let written = encode(to, &request);
            if to == from {
                assert_eq!(written, body, "{from}");
                continue;
            }
            // Anthropic refuses a body with half of a pair in it.
            parse(&written);
            for text in ["cut \u{fffd}", "\u{fffd} out", "d \u{fffd}"] {
                assert!(written.contains(text), "{from} to {to}: {text} in {written}");
            }
            let again = decode(to, &written);
            let call =
                again.messages.iter().flat_map(|message| message.tool_calls()).next().unwrap();
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
            assert_eq!(arguments, json!({"a": "\u{fffd}"}), "{from} to {to}");
        }
    }
    // A message that is written again keeps the fields that nobody knows.
    let mut request = decode(OpenAi, REQUESTS[0].1);
    request.messages.make_mut()[0].parts_mut();
    let written = encode(OpenAi, &request);
    assert!(written.contains("\"name\":\"\u{fffd}\""), "{written}");
    assert!(written.ends_with(r#""x":"\ud83d"}"#), "{written}");
}

/// What the model wrote wrong is in the history of every later request.
#[test]
fn arguments_that_are_no_object_can_be_sent_back_to_everybody() {
    for text in [r#"{"x":"#, "[1]", "null", "ls -l", "{}{}"] {
        let request = ChatRequest::new(vec![
            Message::user("x"),
            Message::new(Role::Assistant, vec![Part::tool_call("t1", "f", text)]),
            Message::tool("t1", "no JSON object"),
        ]);
        let request = request.with_model("m");
        let [openai, anthropic, gemini] =
            [OpenAi, Anthropic, Gemini].map(|to| parse(&encode(to, &request)));
        let call = &openai["messages"][1]["tool_calls"][0]["function"];
        assert_eq!(call["arguments"], text);
        let wrapped = json!({ "_raw": text });
        assert_eq!(anthropic["messages"][1]["content"][0]["input"], wrapped, "{text}");
        assert_eq!(gemini["contents"][1]["parts"][0]["functionCall"]["args"], wrapped, "{text}");
    }
}

#[test]
fn what_nobody_can_use_of_an_answer_is_the_models_fault_and_may_be_asked_again() {
    for word in ["MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL"] {
        let case = gemini("broken", "", &[], word);
        let mut failures = vec![codec(Gemini).decode_answer(&case.whole.into()).unwrap_err()];
        let mut stream = StreamDecoder::new(Gemini);
        stream.push(case.stream.into());
        failures.push(stream.next_event().unwrap().unwrap_err());
        for failure in failures {
            assert_eq!((failure.reason(), failure.retry()), (Reason::ServerError, Retry::Yes));
            assert_eq!(failure.fault(), FaultSide::Model, "{word}");
            assert_eq!(failure.scope(), Scope::Request, "{word}: the target is fine");
        }
    }
}
