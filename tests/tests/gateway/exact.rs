//! What a caller gets is exactly what the provider sent, in every pair of dialects, whole and
//! streamed; and within one dialect the same bytes, unknown fields included, in both directions.

use http_body_util::BodyExt;
use serde_json::{Value, json};
use steadfast::sim::{
    Answer, Coalesce, Dialect, Fault, FaultPlan, LineEnd, RawResponse, Sent, SimProvider, Stop,
    Usage,
};
use steadfast_tests::gateway::{
    DIALECTS, PROVIDER_KEY, Rig, ask, call,
    http::Reply,
    model, pairs, path, provider, question, rich_answer, turns_key,
    wire_answer::{WireAnswer, without_ids},
};
use tower::ServiceExt;

/// Reads a reply as the caller would.
fn read(caller: Dialect, stream: bool, reply: &Reply) -> WireAnswer {
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(reply.clean);
    if stream {
        WireAnswer::stream(caller, &reply.body)
    } else {
        WireAnswer::whole(caller, &reply.body)
    }
}

/// The stop reason of `dialect` for the stop reason `word` of another dialect.
fn stop_word(dialect: Dialect, word: &str) -> &'static str {
    let row = match word {
        "stop" | "end_turn" | "stop_sequence" | "STOP" | "completed" => {
            ["stop", "end_turn", "STOP", "completed"]
        }
        "tool_calls" | "tool_use" => ["tool_calls", "tool_use", "STOP", "completed"],
        "length" | "max_tokens" | "MAX_TOKENS" | "max_output_tokens" => {
            ["length", "max_tokens", "MAX_TOKENS", "max_output_tokens"]
        }
        "content_filter" | "refusal" | "SAFETY" => {
            ["content_filter", "refusal", "SAFETY", "content_filter"]
        }
        other => panic!("what is {other}?"),
    };
    row[DIALECTS.iter().position(|known| *known == dialect).unwrap()]
}

/// Asserts that `answer` is exactly what was `sent`.
fn assert_exact(
    case: &str,
    (caller, speaks): (Dialect, Dialect),
    answer: &WireAnswer,
    sent: &Sent,
) {
    assert_eq!(answer.errors, Vec::<Value>::new(), "{case}");
    assert!(answer.text == sent.text, "{case}: {:?} is not {:?}", answer.text, sent.text);
    assert_eq!(answer.thinking, sent.thinking, "{case}");
    assert_eq!(answer.without_ids(), without_ids(&sent.tool_calls), "{case}");
    for (answer, sent) in answer.calls.iter().zip(&sent.tool_calls) {
        if sent.id.is_empty() {
            assert!(caller == Dialect::Gemini || !answer.id.is_empty(), "{case}: calls need ids");
        } else {
            assert_eq!(answer.id, sent.id, "{case}");
        }
    }
    let usage = sent.usage;
    let prompt = usage.input + usage.cache_read + usage.cache_write;
    assert_eq!(answer.prompt, Some(prompt), "{case}: prompt tokens");
    assert_eq!(answer.cached.unwrap_or(0), usage.cache_read, "{case}: cached tokens");
    assert_eq!(answer.output, Some(usage.output), "{case}: output tokens");
    let both_report = caller != Dialect::Anthropic && speaks != Dialect::Anthropic;
    if both_report {
        assert_eq!(answer.reasoning.unwrap_or(0), usage.reasoning, "{case}: thinking tokens");
    }
    let stop = match sent.stop.as_str() {
        // These have one word for both.
        "STOP" | "completed" if !sent.tool_calls.is_empty() => stop_word(caller, "tool_use"),
        // Only Anthropic's dialect distinguishes these.
        "stop_sequence" if caller == Dialect::Anthropic => "stop_sequence",
        word => stop_word(caller, word),
    };
    assert_eq!(answer.stop.as_deref(), Some(stop), "{case}");
}

/// Answers worth carrying over, by name.
fn answers() -> Vec<(&'static str, Answer)> {
    let long: String = (0..400)
        .map(|line| {
            format!(
                "Zeile {line} mit {} \u{201e}Zeichen\u{201c}, \u{1f469}\u{200d}\u{1f680} und so fort.\r\n",
                line * line
            )
        })
        .collect();
    let usage =
        Usage { input: 1_234, output: 777, cache_read: 4_096, cache_write: 0, reasoning: 0 };
    vec![
        ("plain", Answer::text("Hello.")),
        (
            "unicode",
            Answer::text(
                "na\u{ef}ve \u{65e5}\u{672c}\u{8a9e} \u{1f980}\u{1f469}\u{200d}\u{1f52c} e\u{301} \u{202e}rtl\u{202c} \
                 \u{0}\u{1}\u{7f}\u{2028}\u{feff} \"quoted\" \\ /slash/ </script>",
            )
            .in_chunks_of(3),
        ),
        (
            "lines",
            Answer::text("\r\n\r\ndata: {\"x\":1}\r\n\r\nevent: error\n\n: no comment\r[DONE]\n\n")
                .in_chunks_of(5),
        ),
        ("long", Answer::text(long).in_chunks_of(97)),
        ("thinking", Answer::thinking("Hm.\r\n\u{1f914} So be it.").then_text("Yes.")),
        ("everything", rich_answer()),
        (
            "calls alone",
            Answer::default()
                .then(call("call_1", "look_up", "{}"))
                .then(call("call_2", "look_up", r#"{ "q" : "a\r\nb\u0000" , "big":12345678901234567890, "e":1e400, "z":-0.0 }"#))
                .then(call("call_3", "look_up", r#"{"b":1,"a":2,"a":3}"#))
                .in_chunks_of(4),
        ),
        ("usage", Answer::text("counted").usage(usage)),
        ("cut", Answer::text("and so on and").stop(Stop::MaxTokens)),
        ("stop sequence", Answer::text("up to").stop(Stop::StopSequence("END".into()))),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pair_whole_and_streamed() {
    for speaks in DIALECTS {
        // An answer that is cut off has to be reported as such.
        let config = "[continuation]\nenabled = false\n";
        let rig = Rig::builder().provider(provider(speaks).build()).config(config).start().await;
        for caller in DIALECTS {
            for (name, answer) in answers() {
                for stream in [false, true] {
                    let case = format!("{name}: {caller} <- {speaks}, stream {stream}");
                    rig.sims[0].provider().script([answer.clone()]);
                    let before = rig.asked();
                    let reply = ask(caller, model(speaks), stream).send(rig.addr).await;
                    rig.assert_attempts(&reply, before, &case);
                    let answer = read(caller, stream, &reply);
                    let sent = rig.last().sent.unwrap();
                    assert_exact(&case, (caller, speaks), &answer, &sent);
                    if stream {
                        let ends = match caller {
                            Dialect::OpenAi => vec![sent_end(&answer), "[DONE]"],
                            Dialect::Anthropic => vec![sent_end(&answer), "message_stop"],
                            Dialect::Gemini => vec![sent_end(&answer)],
                            Dialect::Responses => {
                                let is_whole = sent_end(&answer) == "completed";
                                let ends = ["response.incomplete", "response.completed"];
                                vec![sent_end(&answer), ends[usize::from(is_whole)]]
                            }
                        };
                        assert_eq!(answer.ends, ends, "{case}: one end");
                    }
                }
            }
            let entry = rig.last();
            assert_eq!(entry.model, model(speaks), "the model asked for is the one sent");
        }
        assert!(rig.seen().iter().all(|entry| entry.refused.is_none()), "translated well");
    }
}

fn sent_end(answer: &WireAnswer) -> &str {
    answer.stop.as_deref().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_without_ids_get_ids_that_differ() {
    let answer = Answer::tool_call("look_up", "{\"q\":1}").then_tool_call("look_up", "{\"q\":1}");
    let rig =
        Rig::of(provider(Dialect::Gemini).respond(move |_| Some(answer.clone())).build()).await;
    for caller in [Dialect::OpenAi, Dialect::Anthropic] {
        for stream in [false, true] {
            let reply = ask(caller, model(Dialect::Gemini), stream).send(rig.addr).await;
            let answer = read(caller, stream, &reply);
            assert_eq!(answer.without_ids(), [("look_up", "{\"q\":1}"); 2]);
            assert!(
                !answer.calls[0].id.is_empty() && answer.calls[0].id != answer.calls[1].id,
                "{answer:?}"
            );
        }
    }
}

/// Frames split into single bytes, or joined, are the same answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn framing_makes_no_difference() {
    for speaks in DIALECTS {
        let sim = provider(speaks).respond(|_| Some(rich_answer())).build();
        let rig = Rig::of(sim).await;
        for caller in DIALECTS {
            for fault in [
                Fault::drip(1),
                Fault::drip(7),
                Fault::Coalesce(Coalesce { frames: 0 }),
                Fault::Coalesce(Coalesce { frames: 3 }),
            ] {
                for stream in [true, false] {
                    let case = format!("{caller} <- {speaks}, {fault:?}, stream {stream}");
                    rig.sims[0].provider().set_faults(FaultPlan::always(fault.clone()));
                    let reply = ask(caller, model(speaks), stream).send(rig.addr).await;
                    let answer = read(caller, stream, &reply);
                    assert_exact(&case, (caller, speaks), &answer, &rig.last().sent.unwrap());
                }
            }
        }
    }
}

/// The provider's answer to `body`, called without a gateway.
async fn direct(twin: &SimProvider, dialect: Dialect, stream: bool, body: &[u8]) -> Vec<u8> {
    let (name, key) = match dialect {
        Dialect::OpenAi | Dialect::Responses => ("authorization", format!("Bearer {PROVIDER_KEY}")),
        Dialect::Anthropic => ("x-api-key", PROVIDER_KEY.into()),
        Dialect::Gemini => ("x-goog-api-key", PROVIDER_KEY.into()),
    };
    let request =
        http::Request::post(format!("http://twin{}", path(dialect, model(dialect), stream)))
            .header(name, key)
            .header("content-type", "application/json")
            .header("anthropic-version", "2023-06-01")
            .body(String::from_utf8(body.to_vec()).unwrap())
            .unwrap();
    let response = twin.clone().oneshot(request).await.unwrap();
    response.into_body().collect().await.unwrap().to_bytes().to_vec()
}

/// A body of `dialect` with unknown fields at every depth and unusual white space.
fn odd_body(dialect: Dialect, stream: bool) -> String {
    let mut body = question(dialect, model(dialect), stream);
    body["x_unknown"] = json!({"deep": [1.0, 1e3, null, "\u{1f980}"], "a": {}});
    let inner = turns_key(dialect);
    body[inner][0]["x_inner"] = json!("\u{0}kept");
    let text = serde_json::to_string_pretty(&body).unwrap().replace('\n', "\r\n\t");
    // Numbers and escapes in another form than the gateway writes.
    let text = text.replace("8000", "8000 ").replace("What is it?", "W\\u0068at \\/is it?");
    format!(" \r\n{text}\n ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn within_a_dialect_bodies_pass_unchanged() {
    for dialect in DIALECTS {
        for line_end in [LineEnd::Crlf, LineEnd::Lf] {
            let make = || {
                let answer =
                    rich_answer().extra("x_new", json!({"a": [1, 2.50, "\u{1f980}"], "b": null}));
                provider(dialect)
                    .with_line_end(line_end)
                    .respond(move |_| Some(answer.clone()))
                    .build()
            };
            let (rig, twin) = (Rig::of(make()).await, make());
            for stream in [false, true] {
                let body = odd_body(dialect, stream);
                let reply =
                    ask(dialect, model(dialect), stream).body(body.as_str()).send(rig.addr).await;
                let entry = rig.last();
                let case = format!("{dialect}, stream {stream}");
                assert_eq!(entry.refused, None, "{case}");
                assert_eq!(std::str::from_utf8(&entry.body).unwrap(), body, "{case}: upstream");
                let sent = direct(&twin, dialect, stream, &entry.body).await;
                assert!(String::from_utf8_lossy(&sent).contains("x_new"));
                assert_eq!(reply.text(), String::from_utf8(sent).unwrap(), "{case}: downstream");
                // Split or joined, these are the same bytes.
                for fault in [Fault::drip(1), Fault::Coalesce(Coalesce { frames: 2 })] {
                    // Both restart their count of requests: the numbers are in the answers.
                    rig.sims[0].provider().set_faults(FaultPlan::always(fault));
                    let again = ask(dialect, model(dialect), stream)
                        .body(body.as_str())
                        .send(rig.addr)
                        .await;
                    twin.set_faults(FaultPlan::none());
                    let sent = direct(&twin, dialect, stream, body.as_bytes()).await;
                    assert_eq!(again.text(), String::from_utf8(sent).unwrap(), "{case}");
                }
                rig.sims[0].provider().set_faults(FaultPlan::none());
                twin.set_faults(FaultPlan::none());
            }
        }
    }
}

/// Undocumented events, comments and unusual white space are forwarded unchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn within_a_dialect_unexpected_streams_pass_unchanged() {
    let streams = [
        (
            Dialect::OpenAi,
            ": a comment\n\ndata:{\"id\":\"c\" ,\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":\
             {\"role\":\"assistant\",\"content\":\"a\\u00e9\",\"x_new\":[1.0]},\"finish_reason\":null}],\"x\":{}}\r\n\r\n\
             : another\n\n\
             data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\",\"x\":1}]}\n\n\
             data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2,\"x\":3}}\n\n\
             data: [DONE]\n\n",
        ),
        (
            Dialect::Anthropic,
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"type\":\"message\",\"role\":\"assistant\",\
             \"model\":\"x\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}}\n\n\
             event: x_future\ndata: {\"type\":\"x_future\", \"a\":1.0}\n\n\
             event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n\
             event: ping\ndata: {\"type\": \"ping\"}\n\n: a comment\n\n\
             event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\\u00e9\"},\"x\":[]}\n\n\
             event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"x_delta\",\"x\":1}}\n\n\
             event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n\
             event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":3}}\n\n\
             event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        ),
        (
            Dialect::Gemini,
            "data: {\"candidates\": [ {\"content\": {\"parts\": [{\"text\": \"a\\u00e9\",\"x\":1.0}],\"role\": \"model\"},\"index\": 0}],\"x\":[]}\r\n\r\n\
             data: {\"candidates\":[{\"content\":{\"parts\":[{\"xPart\":{}}],\"role\":\"model\"},\"index\":0}]}\n\n\
             data: {\"candidates\":[{\"finishReason\":\"STOP\",\"index\":0}],\"usageMetadata\":{\"promptTokenCount\":1,\"x\":2}}\r\n\r\n",
        ),
    ];
    for (dialect, body) in streams {
        let raw = RawResponse {
            status: 200,
            headers: [("content-type".into(), "text/event-stream".into())].into(),
            body: body.into(),
        };
        let plan = FaultPlan::always(Fault::Status(raw));
        let rig = Rig::of(provider(dialect).with_faults(plan).build()).await;
        let reply = ask(dialect, model(dialect), true).send(rig.addr).await;
        assert_eq!(reply.status, 200, "{dialect}: {}", reply.text());
        assert_eq!(reply.text(), body, "{dialect}");
    }
}

/// OpenAI's dialect makes usage in streams optional: a caller who did not request it does not get
/// it, whichever provider answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_is_sent_only_on_request() {
    for speaks in DIALECTS {
        let rig = Rig::of(provider(speaks).respond(|_| Some(rich_answer())).build()).await;
        let mut body = question(Dialect::OpenAi, model(speaks), true);
        body.as_object_mut().unwrap().remove("stream_options");
        let request = ask(Dialect::OpenAi, model(speaks), true).body(body.to_string());
        let answer = read(Dialect::OpenAi, true, &request.send(rig.addr).await);
        assert_eq!((answer.prompt, answer.output), (None, None), "{speaks}");
        assert_eq!(answer.text, rig.last().sent.unwrap().text, "{speaks}");
        assert_eq!(answer.ends, ["tool_calls", "[DONE]"], "{speaks}");
        // It is counted nevertheless.
        let metrics =
            steadfast_tests::gateway::http::HttpRequest::get("/metrics").send(rig.addr).await;
        let counted =
            format!("steadfast_tokens_total{{provider=\"{speaks}\",direction=\"output\"}}");
        let output = rig.last().sent.unwrap().usage.output;
        assert!(metrics.text().contains(&format!("{counted} {output}\n")), "{}", metrics.text());
    }
}

/// Gemini's array has the items that its events have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn geminis_array_has_the_items_of_its_events() {
    for speaks in DIALECTS {
        let rig = Rig::of(provider(speaks).respond(|_| Some(rich_answer())).build()).await;
        let request = ask(Dialect::Gemini, model(speaks), true);
        let array = request.at(path(Dialect::Gemini, model(speaks), true).replace("?alt=sse", ""));
        let reply = array.send(rig.addr).await;
        assert_eq!(reply.header("content-type"), Some("application/json"));
        let answer = WireAnswer::array(&reply.body);
        assert_exact(
            &format!("array <- {speaks}"),
            (Dialect::Gemini, speaks),
            &answer,
            &rig.last().sent.unwrap(),
        );
        assert_eq!(answer.ends.len(), 1);
    }
}

/// A history is translated to the provider's dialect, including the tool results of a loop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_loop_continues_in_every_pair() {
    for (caller, speaks) in pairs() {
        let rig = Rig::of(provider(speaks).build()).await;
        let args = r#"{"q":"\ud83e\udd80 caf\u00e9"}"#;
        let mut body = question(caller, model(speaks), false);
        let more = match caller {
            Dialect::OpenAi => vec![
                json!({"role": "assistant", "content": null, "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": args}},
                    {"id": "call_2", "type": "function", "function": {"name": "look_up", "arguments": "{}"}},
                ]}),
                json!({"role": "tool", "tool_call_id": "call_1", "content": "one \u{1f980}"}),
                json!({"role": "tool", "tool_call_id": "call_2", "content": "two"}),
            ],
            Dialect::Responses => vec![
                json!({"type": "function_call", "call_id": "call_1", "name": "look_up", "arguments": args}),
                json!({"type": "function_call", "call_id": "call_2", "name": "look_up", "arguments": "{}"}),
                json!({"type": "function_call_output", "call_id": "call_1", "output": "one \u{1f980}"}),
                json!({"type": "function_call_output", "call_id": "call_2", "output": "two"}),
            ],
            Dialect::Anthropic => vec![
                json!({"role": "assistant", "content": [
                    {"type": "tool_use", "id": "call_1", "name": "look_up", "input": serde_json::from_str::<Value>(args).unwrap()},
                    {"type": "tool_use", "id": "call_2", "name": "look_up", "input": {}},
                ]}),
                json!({"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "call_1", "content": "one \u{1f980}"},
                    {"type": "tool_result", "tool_use_id": "call_2", "content": "two"},
                ]}),
            ],
            Dialect::Gemini => vec![
                json!({"role": "model", "parts": [
                    {"functionCall": {"id": "call_1", "name": "look_up", "args": serde_json::from_str::<Value>(args).unwrap()}},
                    {"functionCall": {"id": "call_2", "name": "look_up", "args": {}}},
                ]}),
                json!({"role": "user", "parts": [
                    {"functionResponse": {"id": "call_1", "name": "look_up", "response": {"result": "one \u{1f980}"}}},
                    {"functionResponse": {"id": "call_2", "name": "look_up", "response": {"result": "two"}}},
                ]}),
            ],
        };
        let turns = turns_key(caller);
        body[turns].as_array_mut().unwrap().extend(more);
        let reply = ask(caller, model(speaks), false).body(body.to_string()).send(rig.addr).await;
        assert_eq!(reply.status, 200, "{caller} -> {speaks}: {}", reply.text());
        let entry = rig.last();
        let seen = entry.json.as_ref().unwrap();
        let (called, ids) = match speaks {
            Dialect::OpenAi => {
                let calls = &seen["messages"][1]["tool_calls"];
                let args = calls[0]["function"]["arguments"].as_str().unwrap();
                (
                    serde_json::from_str(args).unwrap(),
                    [calls[0]["id"].clone(), calls[1]["id"].clone()],
                )
            }
            Dialect::Responses => {
                let call = |n: usize| &seen["input"][n];
                let args = call(1)["arguments"].as_str().unwrap();
                (
                    serde_json::from_str(args).unwrap(),
                    [call(1)["call_id"].clone(), call(2)["call_id"].clone()],
                )
            }
            Dialect::Anthropic => {
                let calls = &seen["messages"][1]["content"];
                (calls[0]["input"].clone(), [calls[0]["id"].clone(), calls[1]["id"].clone()])
            }
            Dialect::Gemini => {
                let calls = &seen["contents"][1]["parts"];
                let call = |n: usize| calls[n]["functionCall"]["id"].clone();
                (calls[0]["functionCall"]["args"].clone(), [call(0), call(1)])
            }
        };
        assert_eq!(called, serde_json::from_str::<Value>(args).unwrap(), "{caller} -> {speaks}");
        if speaks != Dialect::Gemini {
            assert_eq!(ids, ["call_1", "call_2"], "{caller} -> {speaks}");
        }
        let body = seen.to_string();
        assert!(
            body.contains("one \u{1f980}") && body.contains("two"),
            "{caller} -> {speaks}: {body}"
        );
    }
}
