//! What a model may answer besides plain text: it arrives in the same dialect as the same bytes, and is paid
//! for once.

use std::time::Duration;

use serde_json::{Value, json};
use steadfast::{
    Dialect,
    sim::{Fault, FaultPlan, RawResponse},
};
use steadfast_tests::gateway::{
    DIALECTS, ask, in_process::InProcess, model, pairs, wire_answer::WireAnswer,
};

use crate::{asked, failing};

/// A kind of answer, in each dialect: the message of a whole answer, the pieces of a stream, and the word
/// for its end.
struct Odd {
    name: &'static str,
    openai: (Value, Vec<Value>, &'static str),
    anthropic: (Vec<Block>, &'static str),
    gemini: (Vec<Value>, &'static str),
    /// The items, and why they are incomplete.
    responses: (Vec<Value>, Option<&'static str>),
}

/// A block of Anthropic's, and the pieces that it comes in.
struct Block {
    start: Value,
    deltas: Vec<Value>,
    whole: Value,
}

fn block(start: Value, deltas: Vec<Value>, whole: Value) -> Block {
    Block { start, deltas, whole }
}

fn text_block(text: &str) -> Block {
    block(
        json!({"type": "text", "text": ""}),
        vec![json!({"type": "text_delta", "text": text})],
        json!({"type": "text", "text": text}),
    )
}

/// Stands for half of a surrogate pair, which no Rust string can have.
const HALF: &str = "HALF-OF-A-PAIR";

/// The halves of one that belong together.
const PAIR: [&str; 2] = ["FIRST-OF-A-PAIR", "SECOND-OF-A-PAIR"];

fn odd_answers() -> Vec<Odd> {
    let message = |text: &str| json!({"role": "assistant", "content": text});
    let piece = |text: &str| json!({"content": text});
    let part = |text: &str| json!({"text": text});
    let spoken = |content: Value| json!({"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": content});
    let output = |text: &str| json!([{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]);
    let arguments = "{\"q\": unquoted";
    vec![
        Odd {
            name: "empty",
            openai: (message(""), vec![], "stop"),
            anthropic: (vec![], "end_turn"),
            gemini: (vec![], "STOP"),
            responses: (vec![], None),
        },
        Odd {
            name: "no content at all",
            openai: (
                json!({"role": "assistant", "content": null}),
                vec![json!({"role": "assistant", "content": ""})],
                "stop",
            ),
            anthropic: (vec![text_block("")], "end_turn"),
            gemini: (vec![part("")], "STOP"),
            responses: (vec![spoken(json!([]))], None),
        },
        Odd {
            name: "audio",
            openai: (
                json!({"role": "assistant", "content": null, "audio": {"id": "audio_1", "data": "UklGRg==", "transcript": "Hi.", "expires_at": 1}}),
                vec![
                    json!({"audio": {"id": "audio_1", "transcript": "Hi."}}),
                    json!({"audio": {"data": "UklGRg=="}}),
                ],
                "stop",
            ),
            anthropic: (
                vec![block(
                    json!({"type": "audio", "source": {"type": "base64", "media_type": "audio/wav", "data": "UklGRg=="}}),
                    vec![],
                    json!({"type": "audio", "source": {"type": "base64", "media_type": "audio/wav", "data": "UklGRg=="}}),
                )],
                "end_turn",
            ),
            gemini: (
                vec![
                    json!({"inlineData": {"mimeType": "audio/L16;rate=24000", "data": "UklGRg=="}}),
                ],
                "STOP",
            ),
            responses: (vec![json!({"id": "au_1", "type": "audio", "data": "UklGRg=="})], None),
        },
        Odd {
            name: "image",
            openai: (
                json!({"role": "assistant", "content": "", "images": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]}),
                vec![
                    json!({"images": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]}),
                ],
                "stop",
            ),
            anthropic: (
                vec![block(
                    json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}),
                    vec![],
                    json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}),
                )],
                "end_turn",
            ),
            gemini: (
                vec![json!({"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}})],
                "STOP",
            ),
            responses: (
                vec![
                    json!({"id": "ig_1", "type": "image_generation_call", "status": "completed", "result": "iVBORw0KGgo="}),
                ],
                None,
            ),
        },
        Odd {
            name: "code and its output",
            openai: (message("```\n1 + 1\n```"), vec![piece("```\n1 + 1\n```")], "stop"),
            anthropic: (
                vec![
                    block(
                        json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {}}),
                        vec![
                            json!({"type": "input_json_delta", "partial_json": "{\"code\":\"1 + 1\"}"}),
                        ],
                        json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "1 + 1"}}),
                    ),
                    block(
                        json!({"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": {"type": "code_execution_result", "stdout": "2\n", "stderr": "", "return_code": 0, "content": []}}),
                        vec![],
                        json!({"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": {"type": "code_execution_result", "stdout": "2\n", "stderr": "", "return_code": 0, "content": []}}),
                    ),
                ],
                "end_turn",
            ),
            gemini: (
                vec![
                    json!({"executableCode": {"language": "PYTHON", "code": "print(1 + 1)"}}),
                    json!({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2\n"}}),
                ],
                "STOP",
            ),
            responses: (
                vec![
                    json!({"id": "ci_1", "type": "code_interpreter_call", "status": "completed", "container_id": "c", "code": "1 + 1", "outputs": [{"type": "logs", "logs": "2\n"}]}),
                ],
                None,
            ),
        },
        Odd {
            name: "refusal",
            openai: (
                json!({"role": "assistant", "content": null, "refusal": "I can not help with that."}),
                vec![json!({"refusal": "I can not "}), json!({"refusal": "help with that."})],
                "stop",
            ),
            anthropic: (vec![text_block("I can not")], "refusal"),
            gemini: (vec![part("I can not")], "SAFETY"),
            responses: (
                vec![spoken(json!([{"type": "refusal", "refusal": "I can not help with that."}]))],
                None,
            ),
        },
        Odd {
            name: "half of a surrogate pair",
            openai: (message(HALF), vec![piece(HALF), piece("?")], "stop"),
            anthropic: (vec![text_block(HALF)], "end_turn"),
            gemini: (vec![part(HALF), part("?")], "STOP"),
            responses: (vec![spoken(output(HALF))], None),
        },
        Odd {
            name: "a surrogate pair in two pieces",
            openai: (
                message(&format!("a {}{} b", PAIR[0], PAIR[1])),
                vec![piece(&format!("a {}", PAIR[0])), piece(&format!("{} b", PAIR[1]))],
                "stop",
            ),
            anthropic: (
                vec![block(
                    json!({"type": "text", "text": ""}),
                    vec![
                        json!({"type": "text_delta", "text": format!("a {}", PAIR[0])}),
                        json!({"type": "text_delta", "text": format!("{} b", PAIR[1])}),
                    ],
                    json!({"type": "text", "text": format!("a {}{} b", PAIR[0], PAIR[1])}),
                )],
                "end_turn",
            ),
            gemini: (
                vec![part(&format!("a {}", PAIR[0])), part(&format!("{} b", PAIR[1]))],
                "STOP",
            ),
            responses: (vec![spoken(output(&format!("a {}{} b", PAIR[0], PAIR[1])))], None),
        },
        Odd {
            name: "an unknown finish reason",
            openai: (message("Hello."), vec![piece("Hello.")], "moonlight"),
            anthropic: (vec![text_block("Hello.")], "moonlight"),
            gemini: (vec![part("Hello.")], "MOONLIGHT"),
            responses: (vec![spoken(output("Hello."))], Some("moonlight")),
        },
        Odd {
            name: "arguments that are no JSON",
            openai: (
                json!({"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": arguments}}]}),
                vec![
                    json!({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": ""}}]}),
                    json!({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}),
                ],
                "tool_calls",
            ),
            // A whole answer can not have them in this dialect, and a stream can.
            anthropic: (
                vec![block(
                    json!({"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {}}),
                    vec![json!({"type": "input_json_delta", "partial_json": arguments})],
                    json!({"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"_raw": arguments}}),
                )],
                "tool_use",
            ),
            // Nor can this one: see below.
            gemini: (vec![json!({"functionCall": {"name": "look_up", "args": {}}})], "STOP"),
            responses: (
                vec![
                    json!({"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "call_1", "name": "look_up", "arguments": arguments}),
                ],
                None,
            ),
        },
    ]
}

/// With half of a pair, written as an escape, where something stands for one.
fn halved(text: &str) -> String {
    let text = text.replace(HALF, "half \\ud83e of it");
    text.replace(PAIR[0], "\\ud83e").replace(PAIR[1], "\\udd80")
}

fn whole(dialect: Dialect, odd: &Odd) -> String {
    let body = match dialect {
        Dialect::OpenAi => json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model(dialect),
            "choices": [{"index": 0, "message": odd.openai.0, "finish_reason": odd.openai.2}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
        }),
        Dialect::Responses => response(odd, Some(&odd.responses.0)),
        Dialect::Anthropic => json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": model(dialect),
            "content": odd.anthropic.0.iter().map(|block| &block.whole).collect::<Vec<_>>(),
            "stop_reason": odd.anthropic.1, "stop_sequence": null,
            "usage": {"input_tokens": 3, "output_tokens": 5},
        }),
        Dialect::Gemini => json!({
            "candidates": [{
                "content": {"role": "model", "parts": odd.gemini.0}, "finishReason": odd.gemini.1, "index": 0,
            }],
            "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 5, "totalTokenCount": 8},
        }),
    };
    halved(&body.to_string())
}

/// An answer of OpenAI's responses, which has ended with `items`, or has started.
fn response(odd: &Odd, items: Option<&[Value]>) -> Value {
    let incomplete = odd.responses.1.filter(|_| items.is_some());
    let status = match (items, incomplete) {
        (None, _) => "in_progress",
        (_, None) => "completed",
        (_, Some(_)) => "incomplete",
    };
    json!({
        "id": "resp_1", "object": "response", "created_at": 1, "model": model(Dialect::Responses), "status": status,
        "error": null, "incomplete_details": incomplete.map(|reason| json!({"reason": reason})),
        "output": items.unwrap_or_default(),
        "usage": items.map(|_| json!({"input_tokens": 3, "output_tokens": 5, "total_tokens": 8})),
    })
}

/// The events of an item: its text in two pieces where half of a pair stands in it.
fn item_events(at: usize, item: &Value, events: &mut Vec<(String, Value)>) {
    let mut push = |name: &str, mut more: Value| {
        more["output_index"] = json!(at);
        events.push((format!("response.{name}"), more));
    };
    let mut started = item.clone();
    for field in ["content", "arguments"] {
        match &mut started[field] {
            Value::Array(list) => list.clear(),
            Value::String(text) => text.clear(),
            _ => drop(started.as_object_mut().unwrap().remove(field)),
        }
    }
    push("output_item.added", json!({"item": started}));
    for part in item["content"].as_array().into_iter().flatten() {
        let with = |field: &str, value: Value| json!({"item_id": item["id"], "content_index": 0, field: value});
        let (kind, text) = match part["text"].as_str() {
            Some(text) => ("output_text", text),
            None => ("refusal", part["refusal"].as_str().unwrap()),
        };
        push("content_part.added", with("part", json!({"type": kind, "text": "", "refusal": ""})));
        let cut = text.find(PAIR[1]).unwrap_or(text.len());
        for piece in [&text[..cut], &text[cut..]].into_iter().filter(|piece| !piece.is_empty()) {
            push(&format!("{kind}.delta"), with("delta", json!(piece)));
        }
        push(
            &format!("{kind}.done"),
            with(if kind == "refusal" { kind } else { "text" }, json!(text)),
        );
        push("content_part.done", with("part", part.clone()));
    }
    if let Some(text) = item["arguments"].as_str() {
        push("function_call_arguments.delta", json!({"item_id": item["id"], "delta": text}));
        push("function_call_arguments.done", json!({"item_id": item["id"], "arguments": text}));
    }
    push("output_item.done", json!({"item": item}));
}

fn streamed(dialect: Dialect, odd: &Odd) -> String {
    let mut text = String::new();
    match dialect {
        Dialect::OpenAi => {
            let chunk = |delta: &Value, finish: Value| {
                json!({
                    "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1,
                    "model": model(dialect),
                    "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
                })
            };
            let mut chunks = vec![chunk(&json!({"role": "assistant"}), Value::Null)];
            chunks.extend(odd.openai.1.iter().map(|delta| chunk(delta, Value::Null)));
            chunks.push(chunk(&json!({}), json!(odd.openai.2)));
            for chunk in chunks {
                text += &format!("data: {chunk}\n\n");
            }
            text += "data: [DONE]\n\n";
        }
        Dialect::Responses => {
            let started = || json!({"response": response(odd, None)});
            let mut events = vec![
                ("response.created".to_owned(), started()),
                ("response.in_progress".to_owned(), started()),
            ];
            for (at, item) in odd.responses.0.iter().enumerate() {
                item_events(at, item, &mut events);
            }
            let ended = response(odd, Some(&odd.responses.0));
            let name = format!("response.{}", ended["status"].as_str().unwrap());
            events.push((name, json!({"response": ended})));
            for (sequence, (name, mut event)) in events.into_iter().enumerate() {
                event["type"] = json!(name);
                event["sequence_number"] = json!(sequence);
                text += &format!("event: {name}\ndata: {event}\n\n");
            }
        }
        Dialect::Anthropic => {
            let mut events = vec![json!({"type": "message_start", "message": {
                "id": "msg_1", "type": "message", "role": "assistant", "model": model(dialect),
                "content": [], "stop_reason": null, "stop_sequence": null,
                "usage": {"input_tokens": 3, "output_tokens": 1},
            }})];
            for (index, block) in odd.anthropic.0.iter().enumerate() {
                events.push(json!({"type": "content_block_start", "index": index, "content_block": block.start}));
                for delta in &block.deltas {
                    events.push(
                        json!({"type": "content_block_delta", "index": index, "delta": delta}),
                    );
                }
                events.push(json!({"type": "content_block_stop", "index": index}));
            }
            events.push(json!({
                "type": "message_delta",
                "delta": {"stop_reason": odd.anthropic.1, "stop_sequence": null},
                "usage": {"output_tokens": 5},
            }));
            events.push(json!({"type": "message_stop"}));
            for event in events {
                text += &format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap());
            }
        }
        Dialect::Gemini => {
            for part in &odd.gemini.0 {
                let piece = json!({"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]});
                text += &format!("data: {piece}\r\n\r\n");
            }
            let end = json!({
                "candidates": [{"finishReason": odd.gemini.1, "index": 0}],
                "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 5},
            });
            text += &format!("data: {end}\r\n\r\n");
        }
    }
    halved(&text)
}

/// A provider's answer, and its body.
fn answering(dialect: Dialect, odd: &Odd, stream: bool) -> (Fault, String) {
    let (kind, body) = match stream {
        true => ("text/event-stream", streamed(dialect, odd)),
        false => ("application/json", whole(dialect, odd)),
    };
    let headers = [("content-type".into(), kind.into())].into();
    (Fault::Status(RawResponse { status: 200, headers, body: body.clone() }), body)
}

#[tokio::test(start_paused = true)]
async fn whatever_a_model_answers_arrives_as_it_came_and_is_paid_once() {
    let mut wrong = Vec::new();
    for odd in odd_answers() {
        for dialect in DIALECTS {
            for stream in [false, true] {
                let case = format!("{}, {dialect}, stream {stream}", odd.name);
                let (fault, body) = answering(dialect, &odd, stream);
                let sims = [failing(dialect, FaultPlan::always(fault))];
                let gateway = InProcess::without_file(&sims);
                let reply = gateway.send(&ask(dialect, model(dialect), stream)).await;
                let text = String::from_utf8_lossy(&reply.body).into_owned();
                if (reply.status, asked(&sims)) != (200, 1) || text != body || !reply.clean {
                    wrong.push(format!(
                        "{case}: {}, asked {}\n  {body:?}\n  {text:?}",
                        reply.status,
                        asked(&sims)
                    ));
                    continue;
                }
                // It counts against nobody.
            }
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}

/// What is wrong with the answer of a provider as the caller of another dialect reads it.
fn wrong_in(caller: Dialect, odd: &Odd, body: &str, stream: bool) -> Option<String> {
    let answer = match stream {
        true => WireAnswer::stream(caller, body.as_bytes()),
        false => WireAnswer::whole(caller, body.as_bytes()),
    };
    let wrong = |what: &str| Some(format!("{what}: {answer:?}"));
    if !answer.errors.is_empty() {
        return wrong("an error");
    }
    if answer.stop.is_none() || (stream && answer.ends.is_empty()) {
        return wrong("no end");
    }
    let stop = answer.stop.as_deref();
    match odd.name {
        "empty" | "no content at all" if !answer.text.is_empty() => wrong("an invented text"),
        "half of a surrogate pair"
            if !["half \u{fffd} of it", "half \u{fffd} of it?"].contains(&&*answer.text) =>
        {
            wrong("the text")
        }
        "a surrogate pair in two pieces" if answer.text != "a \u{1f980} b" => wrong("the text"),
        "an unknown finish reason" if answer.text != "Hello." => wrong("the text"),
        "refusal" => {
            let refuses = match caller {
                // A text that OpenAI's models refuse with has a field of its own.
                Dialect::OpenAi => {
                    stop == Some("content_filter") || body.contains("\"refusal\":\"I")
                }
                Dialect::Anthropic => stop == Some("refusal"),
                Dialect::Gemini => stop == Some("SAFETY"),
                Dialect::Responses => stop == Some("content_filter"),
            };
            match (refuses, body.contains("I can not")) {
                (false, _) => wrong("no word for a refusal"),
                (_, false) => wrong("its text is lost"),
                _ => None,
            }
        }
        "arguments that are no JSON" => match answer.calls.as_slice() {
            [call] if call.name == "look_up" => {
                let read = serde_json::from_str::<Value>(&call.arguments);
                // A text, which callers read themselves, and which has been forwarded piece by piece.
                let is_text = matches!(caller, Dialect::OpenAi | Dialect::Responses)
                    || (caller == Dialect::Anthropic && stream);
                let holds = is_text || read.is_ok_and(|read| read.is_object());
                if holds { None } else { wrong("what are these arguments?") }
            }
            _ => wrong("the call is lost"),
        },
        _ => None,
    }
}

/// What a caller of another dialect can not have (audio, images, code that was run) is an error that names it, and never
/// dropped in silence; it is no failure of the provider or the caller, and not asked for again.
#[tokio::test(start_paused = true)]
async fn whatever_a_model_answers_can_be_had_in_another_dialect_and_is_paid_once() {
    let mut wrong = Vec::new();
    for odd in odd_answers() {
        for (caller, dialect) in pairs().filter(|(caller, dialect)| caller != dialect) {
            for stream in [false, true] {
                let case = format!("{}, {caller} <- {dialect}, stream {stream}", odd.name);
                let (fault, _) = answering(dialect, &odd, stream);
                let sims = [failing(dialect, FaultPlan::always(fault))];
                let gateway = InProcess::without_file(&sims);
                let reply = gateway.send(&ask(caller, model(caller), stream)).await;
                let failed = gateway.app.gateway().handles().failover.snapshot();
                assert!(failed.targets().iter().all(|health| health.errors == 0), "{case}");
                let names_it = reply.text().contains("has no word for it");
                if (reply.status, asked(&sims), names_it) == (502, 1, true) {
                    assert!(
                        ["audio", "image", "code and its output"].contains(&odd.name),
                        "{case}"
                    );
                    continue;
                }
                if (reply.status, asked(&sims)) != (200, 1) || !reply.clean {
                    let asked = asked(&sims);
                    wrong.push(format!(
                        "{case}: {}, asked {asked}\n  {}",
                        reply.status,
                        reply.text()
                    ));
                    continue;
                }
                if let Some(what) = wrong_in(caller, &odd, reply.text(), stream) {
                    wrong.push(format!("{case}: {what}\n  {}", reply.text()));
                }
                let failed = gateway.app.gateway().handles().failover.snapshot();
                assert!(failed.targets().iter().all(|health| health.errors == 0), "{case}");
            }
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}

/// Gemini's word for arguments that its model could not write: there is no answer, and asking again helps. It
/// is not the caller's fault, and a provider whose model does that to everything one caller asks is not ill.
#[tokio::test(start_paused = true)]
async fn a_call_that_the_model_could_not_write_is_asked_for_again() {
    let dialect = Dialect::Gemini;
    let body = json!({
        "candidates": [{"content": {"role": "model", "parts": []}, "finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}],
        "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 5},
    });
    for stream in [false, true] {
        let (kind, body) = match stream {
            true => ("text/event-stream", format!("data: {body}\r\n\r\n")),
            false => ("application/json", body.to_string()),
        };
        let headers = [("content-type".into(), kind.into())].into();
        let fault = Fault::Status(RawResponse { status: 200, headers, body });
        let sims = [failing(dialect, FaultPlan::first(1, fault.clone()))];
        let gateway = InProcess::without_file(&sims);
        let reply = gateway.send(&ask(dialect, model(dialect), stream)).await;
        assert_eq!((reply.status, asked(&sims)), (200, 2), "stream {stream}: {}", reply.text());
        assert_eq!(reply.header("x-steadfast-attempts"), Some("2"));

        // It has been paid for, so it is asked for once more and no oftener.
        sims[0].set_faults(FaultPlan::always(fault.clone()));
        let reply = gateway.send(&ask(dialect, model(dialect), stream)).await;
        assert!(reply.status >= 500, "stream {stream}: {}", reply.text());
        assert_eq!(asked(&sims), 4, "stream {stream}: two for each call");
        assert_eq!(reply.header("x-steadfast-attempts"), Some("2"));
        assert_eq!(reply.header("x-should-retry"), Some("false"));
        let cooling = gateway.app.gateway().handles().failover.snapshot();
        assert_eq!(cooling.cooling().count(), 0, "stream {stream}: for others");

        // Another vendor's model may write it.
        let sims = [
            failing(dialect, FaultPlan::always(fault)),
            failing(Dialect::OpenAi, FaultPlan::none()),
        ];
        let gateway = InProcess::without_file(&sims);
        let start = tokio::time::Instant::now();
        let reply = gateway.send(&ask(dialect, model(dialect), stream)).await;
        assert_eq!((reply.status, asked(&sims)), (200, 3), "stream {stream}: {}", reply.text());
        assert_eq!(sims[0].journal().len(), 2, "stream {stream}");
        assert!(start.elapsed() < Duration::from_secs(1), "stream {stream}: {:?}", start.elapsed());
    }
}
