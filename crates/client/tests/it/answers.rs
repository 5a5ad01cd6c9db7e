//! Answers: translated between all nine pairs of dialects, they have the same content.

use bytes::Bytes;
use serde_json::{Value, json};
use steadfast_chat::{Completion, Delta, Event, Frame, Part, Stop, StopReason};
use steadfast_client::dialect::codec;
use steadfast_core::{Dialect, FaultSide, Reason, Usage};

use crate::fixtures::{
    ARGS, TEXT, body, caller, completion, frames, json as parse, stream, whole_stream, write_stream,
};

/// The fields of an answer that are compared.
#[derive(Debug, PartialEq)]
struct Content {
    text: String,
    thinking: String,
    calls: Vec<(String, String)>,
    ids: Vec<String>,
    stop: Option<StopReason>,
    input: Option<u64>,
    output: Option<u64>,
    cache_read: Option<u64>,
    model: Option<String>,
    ended: bool,
}

fn content(answer: &Completion) -> Content {
    Content {
        text: answer.text(),
        thinking: answer
            .parts
            .iter()
            .filter_map(|part| match part {
                Part::Thinking(thinking) => Some(thinking.text.as_str()),
                _ => None,
            })
            .collect(),
        calls: answer.tool_calls().map(|c| (c.name.clone(), c.arguments.clone())).collect(),
        ids: answer.tool_calls().map(|call| call.id.clone()).collect(),
        stop: answer.stop.as_ref().map(|stop| stop.reason),
        input: answer.usage.input,
        output: answer.usage.output,
        cache_read: answer.usage.cache_read,
        model: answer.model.clone(),
        ended: answer.ended,
    }
}

fn expected(dialect: Dialect) -> Content {
    let (model, ids) = match dialect {
        Dialect::Anthropic => ("claude-x", ["toolu_1", "toolu_2"].map(str::to_owned)),
        // Made from the answer's id, so that they are always the same.
        Dialect::Gemini => {
            let events = whole_stream(dialect, &stream(dialect));
            let ids = completion(dialect, &events);
            let ids: Vec<String> = ids.tool_calls().map(|call| call.id.clone()).collect();
            ("gemini-x", ids.try_into().unwrap())
        }
        _ => ("gpt-x", ["call_1", "call_2"].map(str::to_owned)),
    };
    Content {
        text: TEXT.into(),
        thinking: "Hm, a file.".into(),
        calls: vec![("read".into(), ARGS.into()), ("list".into(), "{}".into())],
        ids: ids.into(),
        stop: Some(StopReason::ToolUse),
        input: Some(20),
        output: Some(42),
        cache_read: Some(7),
        model: Some(model.into()),
        ended: true,
    }
}

fn read_body(dialect: Dialect, text: &str) -> Event {
    codec(dialect).decode_answer(&Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

#[test]
fn a_stream_and_a_body_have_the_same_content() {
    for dialect in Dialect::ALL {
        let streamed = completion(dialect, &whole_stream(dialect, &stream(dialect)));
        assert_eq!(content(&streamed), expected(dialect), "{dialect}");
        let whole = completion(dialect, &[read_body(dialect, &body(dialect))]);
        assert_eq!(content(&whole), expected(dialect), "{dialect}");
        assert_eq!(whole.body.as_ref().unwrap().bytes, body(dialect));
        let signatures = streamed.parts.iter().filter(|part| match part {
            Part::Thinking(thinking) => thinking.signature.as_deref() == Some("c2ln"),
            Part::ToolCall(call) => call.signature.as_deref() == Some("c2ln"),
            _ => false,
        });
        assert_eq!(signatures.count(), usize::from(dialect != Dialect::OpenAi), "{dialect}");
    }
}

#[test]
fn same_dialect_passes_on_every_byte() {
    for dialect in Dialect::ALL {
        let text = stream(dialect);
        let events = whole_stream(dialect, &text);
        assert_eq!(write_stream(dialect, dialect, &events), text, "{dialect}");
        let answer = completion(dialect, &[read_body(dialect, &body(dialect))]);
        let written = codec(dialect).encode_answer(&answer, &caller()).unwrap();
        assert_eq!(written, body(dialect), "{dialect}");
    }
}

#[test]
fn all_nine_pairs_keep_the_content() {
    for from in Dialect::ALL {
        for to in Dialect::ALL {
            let wanted = expected(from);
            let streamed = whole_stream(from, &stream(from));
            let answer = completion(from, &streamed);

            let written = write_stream(from, to, &streamed);
            let again = completion(to, &whole_stream(to, &written));
            assert_eq!(content(&again), wanted, "{from} to {to}, streamed:\n{written}");

            let written = codec(to).encode_answer(&answer, &caller()).unwrap();
            let text = std::str::from_utf8(&written).unwrap();
            let again = completion(to, &[read_body(to, text)]);
            assert_eq!(content(&again), wanted, "{from} to {to}, whole:\n{text}");

            // The provider does not stream, the caller does.
            let whole = [read_body(from, &body(from))];
            let written = write_stream(from, to, &whole);
            let again = completion(to, &whole_stream(to, &written));
            assert_eq!(content(&again), wanted, "{from} to {to}, whole to stream:\n{written}");
            if from != to {
                assert!(!written.contains("c2ln"), "a signature means nothing elsewhere");
            }
        }
    }
}

#[test]
fn events_that_a_layer_changed_are_encoded_again_in_their_own_dialect() {
    for dialect in Dialect::ALL {
        let mut events = whole_stream(dialect, &stream(dialect));
        for event in &mut events {
            event.deltas_mut();
        }
        let written = write_stream(dialect, dialect, &events);
        let again = completion(dialect, &whole_stream(dialect, &written));
        assert_eq!(content(&again), expected(dialect), "{dialect}:\n{written}");
        if dialect != Dialect::OpenAi {
            assert!(written.contains("c2ln"), "{dialect}: its own signature stays");
        }
        // One changed in the middle, the rest passed on.
        let mut events = whole_stream(dialect, &stream(dialect));
        let at = events
            .iter()
            .position(|event| event.deltas.iter().any(|delta| matches!(delta, Delta::Text { .. })));
        events[at.unwrap() + 1].deltas_mut();
        let written = write_stream(dialect, dialect, &events);
        let again = completion(dialect, &whole_stream(dialect, &written));
        assert_eq!(content(&again), expected(dialect), "{dialect}:\n{written}");
    }
}

#[test]
fn openai_chunks_are_what_its_sdk_reads() {
    let events = whole_stream(Dialect::Anthropic, &stream(Dialect::Anthropic));
    let written = write_stream(Dialect::Anthropic, Dialect::OpenAi, &events);
    let frames = frames(&written);
    assert_eq!(
        frames[0],
        r#"{"id":"msg_1","object":"chat.completion.chunk","created":1700000000,"model":"claude-x","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#
    );
    let chunks: Vec<Value> = frames[..frames.len() - 1].iter().map(|frame| parse(frame)).collect();
    assert!(chunks.iter().all(|chunk| chunk["id"] == "msg_1" && chunk["created"] == 1_700_000_000));
    let finishes = chunks.iter().filter(|c| c["choices"][0]["finish_reason"].is_string());
    assert_eq!(finishes.count(), 1);
    let last = &chunks[chunks.len() - 1];
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"],
        json!({
            "prompt_tokens": 20, "completion_tokens": 42, "total_tokens": 62,
            "prompt_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 3},
        })
    );
    assert_eq!(frames.last().unwrap(), "[DONE]");
    assert!(written.contains(": ping\n\n"), "a keep-alive is passed on");
    let starts: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0])
        .filter(|call| call["id"].is_string())
        .collect();
    assert_eq!(starts.len(), 2);
    assert_eq!((&starts[1]["index"], &starts[1]["type"]), (&json!(1), &json!("function")));
}

#[test]
fn a_caller_who_did_not_request_usage_gets_no_chunk_of_it() {
    let mut quiet = caller();
    quiet.stream_usage = false;
    for from in Dialect::ALL {
        let events = whole_stream(from, &stream(from));
        let mut encoder =
            steadfast_client::dialect::StreamEncoder::new(Dialect::OpenAi, &quiet, from);
        let mut out = String::new();
        for event in &events {
            out.push_str(std::str::from_utf8(&encoder.encode(event).unwrap()).unwrap());
        }
        assert!(!out.contains("prompt_tokens"), "{from}:\n{out}");
        assert!(out.ends_with("data: [DONE]\n\n"));
        if from == Dialect::OpenAi {
            let all = stream(from);
            let usage = all.split_inclusive("\n\n").find(|f| f.contains("prompt_tokens"));
            assert_eq!(out, all.replace(usage.unwrap(), ""), "the rest is unchanged");
        }
    }
}

/// Checks the order of events that Anthropic documents.
fn check_anthropic(written: &str) {
    let mut open: Option<i64> = None;
    let mut next = 0;
    let events: Vec<Value> = frames(written).iter().map(|frame| parse(frame)).collect();
    assert_eq!(events[0]["type"], "message_start");
    assert_eq!(events[events.len() - 1]["type"], "message_stop");
    assert_eq!(events[events.len() - 2]["type"], "message_delta");
    for event in &events[1..events.len() - 2] {
        let index = event["index"].as_i64();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!((open, index), (None, Some(next)), "{written}");
                open = index;
                next += 1;
            }
            "content_block_delta" => assert_eq!(index, open, "{written}"),
            "content_block_stop" => {
                assert_eq!(index, open, "{written}");
                open = None;
            }
            "ping" => {}
            other => panic!("{other} in between"),
        }
    }
    assert_eq!(open, None, "{written}");
    for frame in written.split_terminator("\n\n") {
        let (name, data) = frame.split_once('\n').unwrap();
        let kind = parse(data.strip_prefix("data: ").unwrap())["type"].clone();
        assert_eq!(name.strip_prefix("event: "), kind.as_str());
    }
}

#[test]
fn anthropic_blocks_are_sequential() {
    for from in Dialect::ALL {
        let events = whole_stream(from, &stream(from));
        check_anthropic(&write_stream(from, Dialect::Anthropic, &events));
    }
}

fn arguments(index: u32, json: &str) -> Delta {
    Delta::Arguments { index, json: json.into() }
}

fn call(index: u32, id: &str) -> Delta {
    Delta::ToolCall { index, id: id.into(), name: format!("tool_{id}") }
}

fn text(index: u32, text: &str) -> Delta {
    Delta::Text { index, text: text.into() }
}

#[test]
fn interleaved_calls_are_put_in_order() {
    let interleaved = [
        text(0, "Both. "),
        call(1, "a"),
        call(2, "b"),
        call(3, "c"),
        arguments(3, "{\"z\""),
        arguments(2, "{\"y\":"),
        arguments(1, "{\"x\":\"}"),
        text(0, "Now."),
        arguments(1, "\"}"),
        arguments(3, ":3}"),
        Delta::BlockEnd { index: 3 },
        arguments(2, "2}"),
        Delta::Stop(StopReason::ToolUse.into()),
        Delta::Usage(Usage::new(1, 2)),
        Delta::End,
    ];
    let events: Vec<Event> = interleaved
        .into_iter()
        .map(|delta| {
            // As if read from a provider: no frame of the caller's dialect.
            Event::from_frame(Frame::sse(Dialect::OpenAi, "data: x\n\n"), [delta])
        })
        .collect();
    for to in [Dialect::Anthropic, Dialect::Gemini] {
        let written = write_stream(Dialect::OpenAi, to, &events);
        if to == Dialect::Anthropic {
            check_anthropic(&written);
        }
        let answer = completion(to, &whole_stream(to, &written));
        let calls: Vec<_> =
            answer.tool_calls().map(|c| (c.id.as_str(), c.arguments.as_str())).collect();
        assert_eq!(
            calls,
            [("a", "{\"x\":\"}\"}"), ("b", "{\"y\":2}"), ("c", "{\"z\":3}")],
            "{written}"
        );
        assert_eq!(answer.text(), "Both. Now.");
    }
}

/// Anthropic's blocks have numbers; the other dialects, and a live caller, have the order of arrival.
#[test]
fn interleaved_text_keeps_the_order_of_its_arrival() {
    let events = [
        text(1, "Let m"),
        text(0, "Then "),
        text(1, "e look."),
        Delta::Stop(StopReason::EndTurn.into()),
        Delta::Usage(Usage::new(1, 2)),
        Delta::End,
    ]
    .map(|delta| Event::new([delta]));
    for to in Dialect::ALL {
        let written = write_stream(Dialect::Anthropic, to, &events);
        let arrived: String = whole_stream(to, &written)
            .iter()
            .flat_map(|event| &event.deltas)
            .filter_map(|delta| match delta {
                Delta::Text { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(arrived, "Let mThen e look.", "{to}: {written}");
    }
}

#[test]
fn a_call_is_written_as_soon_as_the_calls_before_it_are_complete() {
    let mut encoder = steadfast_client::dialect::StreamEncoder::new(
        Dialect::Anthropic,
        &caller(),
        Dialect::OpenAi,
    );
    let mut write = |delta: Delta| {
        let bytes = encoder.encode(&Event::new([delta])).unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    };
    assert!(write(call(0, "a")).contains("tool_a"));
    assert!(write(arguments(0, "{}")).contains("input_json_delta"));
    let second = write(call(1, "b"));
    assert!(second.contains("content_block_stop") && second.contains("tool_b"), "{second}");
    assert_eq!(write(call(2, "c")), "", "the call before it is not complete");
    let third = write(arguments(1, "{}"));
    assert!(third.contains("tool_c"), "{third}");
}

#[test]
fn arguments_that_come_after_their_call_are_the_providers_failure() {
    let late = [
        call(0, "a"),
        arguments(0, "{}"),
        call(1, "b"),
        arguments(1, "{}"),
        arguments(0, "{}"),
        Delta::End,
    ];
    let mut encoder = steadfast_client::dialect::StreamEncoder::new(
        Dialect::Anthropic,
        &caller(),
        Dialect::OpenAi,
    );
    let failure = encoder.encode(&Event::new(late)).unwrap_err();
    assert_eq!((failure.reason(), failure.fault()), (Reason::ServerError, FaultSide::Provider));
}

#[test]
fn line_ends_between_tokens_do_not_end_a_frame() {
    let pretty = "{\n  \"a\": \"x\\ny\"\r\n}";
    let event = Event::new([call(0, "a"), arguments(0, pretty), Delta::End]);
    let written = write_stream(Dialect::OpenAi, Dialect::Gemini, &[event]);
    let answer = frames(&written);
    let args = &parse(&answer[0])["candidates"][0]["content"]["parts"][0]["functionCall"]["args"];
    assert_eq!(args, &json!({"a": "x\ny"}));
    assert_eq!(answer.len(), 2, "{written}");
}

/// Every stop reason, from each dialect into each.
#[test]
fn stop_words_of_all_pairs() {
    use StopReason::{
        ContentFilter, EndTurn, MaxTokens, Other, Pause, StopSequence, ToolUse, Window,
    };
    for (reason, openai, anthropic, gemini) in [
        (EndTurn, "stop", "end_turn", "STOP"),
        (MaxTokens, "length", "max_tokens", "MAX_TOKENS"),
        (ToolUse, "tool_calls", "tool_use", "STOP"),
        (StopSequence, "stop", "stop_sequence", "STOP"),
        (ContentFilter, "content_filter", "refusal", "SAFETY"),
        (Pause, "stop", "pause_turn", "STOP"),
        (Window, "length", "model_context_window_exceeded", "MAX_TOKENS"),
        (Other, "stop", "end_turn", "OTHER"),
    ] {
        for (to, wanted, pointer) in [
            (Dialect::OpenAi, openai, "/choices/0/finish_reason"),
            (Dialect::Anthropic, anthropic, "/stop_reason"),
            (Dialect::Gemini, gemini, "/candidates/0/finishReason"),
        ] {
            let event = Event::new([text(0, "x"), Delta::Stop(reason.into()), Delta::End]);
            let answer = completion(Dialect::OpenAi, &[event]);
            let written = codec(to).encode_answer(&answer, &caller()).unwrap();
            let written = parse(std::str::from_utf8(&written).unwrap());
            assert_eq!(written.pointer(pointer), Some(&json!(wanted)), "{reason:?} to {to}");
        }
    }
    // Where a dialect has several values for one reason, its own is kept.
    for (dialect, word, reason) in [
        (Dialect::Gemini, "RECITATION", ContentFilter),
        (Dialect::Gemini, "PROHIBITED_CONTENT", ContentFilter),
        (Dialect::OpenAi, "function_call", ToolUse),
    ] {
        let stop = Stop::new(reason, word);
        let answer =
            completion(dialect, &[Event::new([text(0, "x"), Delta::Stop(stop), Delta::End])]);
        let written = codec(dialect).encode_answer(&answer, &caller()).unwrap();
        assert!(std::str::from_utf8(&written).unwrap().contains(word), "{word}");
    }
}

#[test]
fn a_stop_sequence_is_reported() {
    let mut stop = Stop::new(StopReason::StopSequence, "stop_sequence");
    stop.sequence = Some("END".into());
    let events = [Event::new([text(0, "x"), Delta::Stop(stop.clone()), Delta::End])];
    let written = write_stream(Dialect::OpenAi, Dialect::Anthropic, &events);
    let again = completion(Dialect::Anthropic, &whole_stream(Dialect::Anthropic, &written));
    assert_eq!(again.stop, Some(stop));
}

#[test]
fn server_tools_survive_in_their_own_dialect_and_are_left_out_elsewhere() {
    let written = concat!(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"model\":\"c\",\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}}\n\n",
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"server_tool_use\",\"id\":\"s\",\"name\":\"web_search\",\"input\":{}}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"query\\\":\\\"x\\\"}\"}}\n\n",
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"text\",\"text\":\"Found.\"}}\n\n",
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":1}\n\n",
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":5}}\n\n",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    );
    let events = whole_stream(Dialect::Anthropic, written);
    let answer = completion(Dialect::Anthropic, &events);
    let Part::Opaque(block) = &answer.parts[0] else { panic!("{:?}", answer.parts) };
    assert_eq!(block.kind, "server_tool_use");
    assert_eq!(block.json.to_value()["input"], json!({"query": "x"}));
    let whole = codec(Dialect::Anthropic).encode_answer(&answer, &caller()).unwrap();
    assert_eq!(
        parse(std::str::from_utf8(&whole).unwrap())["content"][0]["input"],
        json!({"query": "x"})
    );
    for to in [Dialect::OpenAi, Dialect::Gemini] {
        let again = write_stream(Dialect::Anthropic, to, &events);
        assert_eq!(completion(to, &whole_stream(to, &again)).text(), "Found.");
        assert!(!again.contains("web_search"));
    }
}

/// Sources stand at the text that rests on them, and come back to no provider that knows nothing of them.
#[test]
fn sources_are_of_the_same_text_in_every_dialect() {
    let source = |n: u32| json!({"type": "web_search_result_location", "url": format!("https://{n}.example"), "title": "t", "encrypted_index": "e", "cited_text": "c"});
    let whole = json!({"id": "m", "type": "message", "role": "assistant", "model": "c", "content": [
        {"type": "text", "text": "Näive "},
        {"type": "text", "text": "one", "citations": [source(1), source(2)]},
        {"type": "text", "text": " and "},
        {"type": "text", "text": "two", "citations": [source(3)]},
    ], "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}});
    let event = codec(Dialect::Anthropic).decode_answer(&whole.to_string().into()).unwrap();
    let answer = completion(Dialect::Anthropic, &[event]);
    let ranges: Vec<_> = answer.citations.iter().map(|citation| citation.range).collect();
    assert_eq!(ranges, [Some((6, 9)), Some((6, 9)), Some((14, 17))]);
    let written = codec(Dialect::OpenAi).write_answer(&answer, &caller()).unwrap();
    let message = &parse(std::str::from_utf8(&written).unwrap())["choices"][0]["message"];
    let last = &message["annotations"][2]["url_citation"];
    assert_eq!((&last["start_index"], &last["end_index"]), (&json!(14), &json!(17)));
    assert_eq!(last["url"], "https://3.example");

    // And back.
    let event = codec(Dialect::OpenAi).decode_answer(&written).unwrap();
    let answer = completion(Dialect::OpenAi, &[event]);
    assert_eq!(answer.citations.len(), 3);
    let written = codec(Dialect::Anthropic).write_answer(&answer, &caller()).unwrap();
    let written = parse(std::str::from_utf8(&written).unwrap());
    assert_eq!(written["content"][0]["citations"][2]["url"], "https://3.example");
    let asked = json!({"model": "m", "max_tokens": 1, "messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": written["content"]},
        {"role": "user", "content": "z"},
    ]});
    let request = codec(Dialect::Anthropic)
        .decode_request(&asked.to_string().into(), Default::default())
        .unwrap();
    let sent = codec(Dialect::Anthropic).encode_request(&request, &Default::default()).unwrap();
    let sent = parse(std::str::from_utf8(&sent).unwrap());
    assert_eq!(sent["messages"][1]["content"][0]["citations"], Value::Null);
    assert_eq!(sent["messages"][1]["content"][0]["text"], written["content"][0]["text"]);
}

/// Pieces of text that differ in their text alone are not all read: they count.
#[test]
fn a_source_in_a_stream_is_of_its_block_however_many_pieces_come_before() {
    let mut body = String::new();
    let mut event = |value: Value| body.push_str(&format!("data: {value}\n\n"));
    event(json!({"type": "message_start", "message": {"id": "m", "model": "c"}}));
    let source = json!({"type": "web_search_result_location", "url": "https://1.example", "title": "t", "encrypted_index": "e", "cited_text": "c"});
    for (at, pieces) in [(0, 40), (1, 10)] {
        event(
            json!({"type": "content_block_start", "index": at, "content_block": {"type": "text", "text": ""}}),
        );
        for _ in 0..pieces {
            event(
                json!({"type": "content_block_delta", "index": at, "delta": {"type": "text_delta", "text": "né"}}),
            );
        }
        if at == 1 {
            event(
                json!({"type": "content_block_delta", "index": at, "delta": {"type": "citations_delta", "citation": source}}),
            );
        }
        event(json!({"type": "content_block_stop", "index": at}));
    }
    event(
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}}),
    );
    event(json!({"type": "message_stop"}));
    let answer = completion(Dialect::Anthropic, &whole_stream(Dialect::Anthropic, &body));
    assert_eq!(answer.citations[0].range, Some((80, 100)));
}

/// In a stream they may come before their text, and behind it, as long as its block is open.
#[test]
fn sources_in_a_stream_are_written_into_the_block_of_their_text() {
    let chunk = |delta: Value| {
        let stop = delta.get("stop").cloned();
        let delta = if stop.is_some() { json!({}) } else { delta };
        format!(
            "data: {}\n\n",
            json!({"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": stop}]})
        )
    };
    let cited = |n: u32| json!({"annotations": [{"type": "url_citation", "url_citation": {"url": format!("https://{n}.example"), "title": "t", "start_index": 0, "end_index": 2}}]});
    let body =
        [cited(1), json!({"content": "hi"}), cited(2), json!({"stop": "stop"})].map(chunk).concat()
            + "data: [DONE]\n\n";
    let events = whole_stream(Dialect::OpenAi, &body);
    let written = write_stream(Dialect::OpenAi, Dialect::Anthropic, &events);
    check_anthropic(&written);
    let events = frames(&written).into_iter().map(|frame| parse(&frame));
    let sources = events.filter(|event| event["delta"]["type"] == "citations_delta");
    let urls: Vec<Value> = sources.map(|event| event["delta"]["citation"]["url"].clone()).collect();
    assert_eq!(urls, [json!("https://1.example"), json!("https://2.example")]);
}

#[test]
fn gemini_lists_and_blocked_prompts_are_answers() {
    let chunks: Vec<String> = frames(&stream(Dialect::Gemini).replace("\r\n", "\n"));
    let listed = format!("[{}\n]", chunks.join("\n,\r\n"));
    let event = read_body(Dialect::Gemini, &listed);
    assert!(event.frame.is_none(), "a list is no body of the plain method");
    assert_eq!(content(&completion(Dialect::Gemini, &[event])), expected(Dialect::Gemini));

    let blocked = r#"{"promptFeedback":{"blockReason":"PROHIBITED_CONTENT"},"usageMetadata":{"promptTokenCount":3},"modelVersion":"g"}"#;
    let answer = completion(Dialect::Gemini, &[read_body(Dialect::Gemini, blocked)]);
    assert_eq!(answer.stop, Some(Stop::new(StopReason::ContentFilter, "PROHIBITED_CONTENT")));
    let streamed = completion(
        Dialect::Gemini,
        &whole_stream(Dialect::Gemini, &format!("data: {blocked}\n\n")),
    );
    assert!(streamed.ended && streamed.is_empty());
}

#[test]
fn several_choices_pass_and_the_first_is_reported() {
    let text = concat!(
        "data: {\"id\":\"1\",\"choices\":[{\"index\":1,\"delta\":{\"content\":\"B\"}},{\"index\":0,\"delta\":{\"content\":\"A\"}}]}\n\n",
        "data: {\"id\":\"1\",\"choices\":[{\"index\":1,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n",
        "data: {\"id\":\"1\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        "data: [DONE]\n\n",
    );
    let events = whole_stream(Dialect::OpenAi, text);
    assert_eq!(write_stream(Dialect::OpenAi, Dialect::OpenAi, &events), text);
    let answer = completion(Dialect::OpenAi, &events);
    assert_eq!(answer.text(), "A");
    assert_eq!(answer.stop.unwrap().reason, StopReason::EndTurn);
}

#[test]
fn oddities_of_compatible_servers_are_read() {
    // All calls numbered 0, with different ids; reasoning under another name; content as parts; a
    // forced call that ends with `stop`.
    let text = concat!(
        ": OPENROUTER PROCESSING\n\n",
        "data: {\"choices\":[{\"delta\":{\"reasoning\":\"hm\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"b\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\"\"}}]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"b\",\"function\":{\"name\":\"f\",\"arguments\":\":1}\"}}]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n",
        "data: [DONE]\n\n",
    );
    let events = whole_stream(Dialect::OpenAi, text);
    assert!(matches!(events[0].deltas.as_slice(), [Delta::Ping]), "a comment is a keep-alive");
    let answer = completion(Dialect::OpenAi, &events);
    assert_eq!(answer.text(), "hi");
    let calls: Vec<_> =
        answer.tool_calls().map(|c| (c.id.as_str(), c.arguments.as_str())).collect();
    assert_eq!(calls, [("a", "{}"), ("b", "{\"x\":1}")]);
    assert_eq!(answer.stop, Some(Stop::new(StopReason::ToolUse, "stop")));
    assert_eq!(answer.usage, Usage::new(1, 2));
    assert!(answer.ended, "one line end between the last two frames is enough");
}
