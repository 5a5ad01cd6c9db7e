//! What a provider does when nothing is wrong: texts, tools, lists, counts, time, the journal.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use std::time::Duration;

use common::{ask, events, post, question, request, send, streamed_text};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use steadfast_sim::{
    Answer, Dialect, End, ErrorKind, Fault, FaultPlan, Journal, Latency, SimProvider, Stop,
};
use tokio::time::Instant;
use tower::ServiceExt;

#[tokio::test]
async fn the_same_seed_gives_the_same_bytes_and_another_others() {
    for dialect in Dialect::ALL {
        let run = async |seed| {
            let provider = SimProvider::builder(dialect).with_seed(seed).build();
            let mut all = Vec::new();
            for n in 0..4 {
                let read = ask(&provider, n % 2 == 0).await.unwrap();
                all.push((read.headers, read.chunks));
            }
            all
        };
        let (a, b, c) = (run(1).await, run(1).await, run(2).await);
        assert_eq!(a, b);
        assert_ne!(a[0].1, c[0].1);
        assert_ne!(a[0].1, a[2].1, "ids of two answers differ");
        let text =
            |n: usize| streamed_text(dialect, std::str::from_utf8(&a[n].1.concat()).unwrap());
        assert_eq!(text(0), text(2), "their text does not");
        assert!(!text(0).is_empty());
    }
}

#[tokio::test]
async fn streamed_and_whole_answers_are_the_same_and_in_the_journal() {
    for dialect in Dialect::ALL {
        let provider = SimProvider::builder(dialect)
            .respond(|request| Some(Answer::text(format!("you said {:?}", request.last_user))))
            .build();
        let whole = ask(&provider, false).await.unwrap();
        let stream = ask(&provider, true).await.unwrap();
        let entries = provider.journal().entries();
        for entry in &entries {
            let sent = entry.sent.as_ref().unwrap();
            assert_eq!(sent.text, "you said \"hello\"");
            assert!(!sent.truncated);
            assert_eq!((sent.usage.input, entry.end), (6, End::Complete));
        }
        assert_eq!(
            entries[0].sent.as_ref().unwrap().usage,
            entries[1].sent.as_ref().unwrap().usage
        );
        assert_eq!(streamed_text(dialect, &stream.text()), "you said \"hello\"");
        assert!(whole.text().contains("you said \\\"hello\\\""));
        assert_eq!(entries[1].bytes, stream.bytes().len());
        assert_eq!(entries[0].bytes, whole.bytes().len());
    }
}

#[tokio::test]
async fn tools_are_called_when_asked_for_and_results_get_a_text() {
    let schema = json!({
        "type": "object",
        "properties": {"path": {"type": "string"}, "n": {"type": "integer"}, "deep": {"type": "boolean"}},
        "required": ["path", "n"],
    });
    for dialect in Dialect::ALL {
        let names = ["read", "list"];
        let tools: Value = match dialect {
            Dialect::OpenAi => names
                .map(|name| {
                    json!({"type": "function", "function": {"name": name, "parameters": schema}})
                })
                .to_vec()
                .into(),
            Dialect::Anthropic => {
                names.map(|name| json!({"name": name, "input_schema": schema})).to_vec().into()
            }
            Dialect::Responses => names
                .map(|name| {
                    json!({"type": "function", "name": name, "parameters": schema, "strict": false})
                })
                .to_vec()
                .into(),
            Dialect::Gemini => {
                let list = names.map(|name| json!({"name": name, "parameters": schema}));
                json!([{ "functionDeclarations": list }])
            }
        };
        let provider = SimProvider::new(dialect);
        let mut body =
            question(dialect, "please call list and call read, call nothing, call reader", false);
        body["tools"] = tools;
        let read = post(&provider, &body).await;
        let sent = provider.journal().last().unwrap().sent.unwrap();
        let names: Vec<&str> = sent.tool_calls.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["list", "read"], "{dialect}");
        for call in &sent.tool_calls {
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
            let keys: Vec<&String> = arguments.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["path", "n"]);
            assert!(arguments["path"].is_string() && arguments["n"].is_u64());
        }
        // The answer goes back with results, as a client would do it.
        let answer = read.json();
        match dialect {
            Dialect::OpenAi => {
                let list = body["messages"].as_array_mut().unwrap();
                list.push(answer["choices"][0]["message"].clone());
                for call in &sent.tool_calls {
                    list.push(json!({"role": "tool", "tool_call_id": call.id, "content": "ok"}));
                }
            }
            Dialect::Responses => {
                let list = body["input"].as_array_mut().unwrap();
                list.extend(answer["output"].as_array().unwrap().iter().cloned());
                for call in &sent.tool_calls {
                    list.push(
                        json!({"type": "function_call_output", "call_id": call.id, "output": "ok"}),
                    );
                }
            }
            Dialect::Anthropic => {
                let results: Vec<Value> = sent
                    .tool_calls
                    .iter()
                    .map(|c| json!({"type": "tool_result", "tool_use_id": c.id, "content": "ok"}))
                    .collect();
                let list = body["messages"].as_array_mut().unwrap();
                list.push(json!({"role": "assistant", "content": answer["content"]}));
                list.push(json!({"role": "user", "content": results}));
            }
            Dialect::Gemini => {
                let parts: Vec<Value> = sent
                    .tool_calls
                    .iter()
                    .map(|c| json!({"functionResponse": {"name": c.name, "response": {"r": 1}}}))
                    .collect();
                let list = body["contents"].as_array_mut().unwrap();
                list.push(answer["candidates"][0]["content"].clone());
                list.push(json!({"role": "user", "parts": parts}));
            }
        }
        let read = post(&provider, &body).await;
        assert_eq!(read.status, 200, "{}", read.text());
        let sent = provider.journal().last().unwrap().sent.unwrap();
        assert!(sent.tool_calls.is_empty() && !sent.text.is_empty());
    }
}

#[tokio::test]
async fn thinking_is_sent_when_requested() {
    let provider = SimProvider::new(Dialect::Anthropic);
    let mut body = question(Dialect::Anthropic, "x", false);
    post(&provider, &body).await;
    body["thinking"] = json!({"type": "enabled", "budget_tokens": 1024});
    post(&provider, &body).await;
    let entries = provider.journal().entries();
    assert_eq!(entries[0].sent.as_ref().unwrap().thinking, "");
    let sent = entries[1].sent.as_ref().unwrap();
    assert!(!sent.thinking.is_empty() && sent.signatures.len() == 1);
    assert!(sent.usage.reasoning > 0 && sent.usage.reasoning < sent.usage.output);

    let provider = SimProvider::new(Dialect::Gemini);
    let mut body = question(Dialect::Gemini, "x", false);
    body["generationConfig"] = json!({"thinkingConfig": {"includeThoughts": true}});
    let read = post(&provider, &body).await;
    assert_eq!(read.json()["candidates"][0]["content"]["parts"][0]["thought"], true);
}

#[tokio::test]
async fn the_requests_own_limit_cuts_the_answer() {
    for (dialect, key) in [
        (Dialect::OpenAi, "max_tokens"),
        (Dialect::OpenAi, "max_completion_tokens"),
        (Dialect::Anthropic, "max_tokens"),
        (Dialect::Gemini, "generationConfig"),
    ] {
        let provider =
            SimProvider::builder(dialect).with_script([Answer::text("one two three four")]).build();
        let mut body = question(dialect, "x", false);
        body[key] =
            if dialect == Dialect::Gemini { json!({"maxOutputTokens": 2}) } else { json!(2) };
        post(&provider, &body).await;
        let sent = provider.journal().last().unwrap().sent.unwrap();
        assert_eq!((sent.text.as_str(), sent.usage.output, sent.truncated), ("one two", 2, true));
    }
}

#[tokio::test]
async fn lists_and_counts() {
    let get = |dialect, path: &str| {
        let mut request = request(dialect, path, "");
        *request.method_mut() = http::Method::GET;
        request
    };
    for (dialect, list, one) in [
        (Dialect::OpenAi, "/v1/models", "/v1/models/gpt-4o"),
        (Dialect::Anthropic, "/v1/models", "/v1/models/claude-sonnet-4-5"),
        (Dialect::Gemini, "/v1beta/models", "/v1beta/models/gemini-2.5-pro"),
    ] {
        let provider = SimProvider::new(dialect);
        let body = send(&provider, get(dialect, list)).await.unwrap().json();
        let rows = body.get("data").or(body.get("models")).unwrap().as_array().unwrap().clone();
        assert_eq!(rows.len(), provider.models().len());
        let read = send(&provider, get(dialect, one)).await.unwrap();
        assert!(rows.contains(&read.json()));
        let read = send(&provider, get(dialect, &format!("{one}x"))).await.unwrap();
        assert_eq!(read.status, 404);
        assert_eq!(provider.journal().last().unwrap().number, 0);
    }
    let provider = SimProvider::new(Dialect::Anthropic);
    let mut body = question(Dialect::Anthropic, "hello", false);
    body.as_object_mut().unwrap().remove("max_tokens");
    let path = "/v1/messages/count_tokens";
    let read = send(&provider, request(Dialect::Anthropic, path, body.to_string())).await.unwrap();
    assert_eq!(read.json(), json!({"input_tokens": 6}));
    let provider = SimProvider::new(Dialect::Gemini);
    let body = question(Dialect::Gemini, "hello", false);
    let path = "/v1beta/models/gemini-2.5-pro:countTokens";
    for body in [body.clone(), json!({ "generateContentRequest": body })] {
        let read = send(&provider, request(Dialect::Gemini, path, body.to_string())).await.unwrap();
        assert_eq!(read.json(), json!({"totalTokens": 6}));
    }
}

#[tokio::test(start_paused = true)]
async fn latency_is_exact_and_jitter_stays_in_its_bounds() {
    let headers = Duration::from_millis(700);
    let per_token = Duration::from_millis(100);
    for dialect in Dialect::ALL {
        let run = async |jitter: f64, stream: bool| {
            let provider = SimProvider::builder(dialect)
                .with_latency(Latency { headers, per_token, jitter })
                .respond(|_| Some(Answer::text("a b c d e f g h i j")))
                .build();
            let start = Instant::now();
            ask(&provider, stream).await.unwrap();
            start.elapsed()
        };
        assert_eq!(run(0.0, true).await, headers + 10 * per_token);
        assert_eq!(run(0.0, false).await, headers + 10 * per_token);
        let jittered = run(0.5, true).await;
        assert_ne!(jittered, headers + 10 * per_token);
        assert!(jittered >= headers + 5 * per_token && jittered <= headers + 15 * per_token);
        assert_eq!(jittered, run(0.5, true).await, "jitter comes from the seed");
    }
}

#[tokio::test(start_paused = true)]
async fn the_journal_has_whether_a_body_was_dropped_or_read_to_its_last_byte() {
    for dialect in Dialect::ALL {
        let provider = SimProvider::new(dialect);
        let path = common::path(dialect, common::model(dialect), true);
        let ask = || request(dialect, &path, question(dialect, "x", true).to_string());
        let mut body = provider.clone().oneshot(ask()).await.unwrap().into_body();
        body.frame().await.unwrap().unwrap();
        assert_eq!(provider.journal().last().unwrap().end, End::Open);
        tokio::time::advance(Duration::from_secs(3)).await;
        drop(body);
        let entry = provider.journal().last().unwrap();
        assert_eq!(entry.end, End::Dropped);
        assert_eq!(entry.ended_at.unwrap() - entry.at, Duration::from_secs(3));

        let total = send(&provider, ask()).await.unwrap().chunks.len();
        let mut body = provider.clone().oneshot(ask()).await.unwrap().into_body();
        for _ in 0..total {
            body.frame().await.unwrap().unwrap();
        }
        // A reader that saw the terminal event does not poll again.
        drop(body);
        assert_eq!(provider.journal().last().unwrap().end, End::Complete);
    }
}

#[tokio::test]
async fn the_journal_keeps_requests_and_no_secret() {
    let journal = Journal::new();
    let make = |name: &str, dialect| {
        SimProvider::builder(dialect).with_name(name).with_journal(&journal).build()
    };
    let (a, b) = (make("a", Dialect::OpenAi), make("b", Dialect::Anthropic));
    let mut body = question(Dialect::OpenAi, "hello", true);
    body["x_unknown"] = json!({"deep": [1]});
    post(&a, &body).await;
    ask(&b, false).await.unwrap();
    ask(&b, false).await.unwrap();
    assert_eq!((journal.len(), journal.count("a"), journal.count("b")), (3, 1, 2));
    let entries = journal.entries();
    let first = &entries[0];
    assert_eq!((first.method.as_str(), first.path.as_str()), ("POST", "/v1/chat/completions"));
    assert_eq!((first.model.as_str(), first.stream, first.status), ("gpt-4o", true, Some(200)));
    assert_eq!(first.body, body.to_string());
    assert_eq!(first.json.as_ref().unwrap(), &body);
    assert_eq!(first.header("content-type"), Some("application/json"));
    assert_eq!((first.number, entries[2].number), (1, 2));
    assert_eq!(first.key, entries[1].key, "the same key is known again");
    assert!(first.key.as_ref().unwrap().ends_with("cdef"));
    assert!(!format!("{entries:?}").contains(common::KEY));
    assert!(!format!("{a:?} {b:?} {journal:?}").contains(common::KEY));
    assert_eq!(journal.of("b").len(), 2);
    journal.clear();
    assert!(journal.is_empty());
}

#[tokio::test]
async fn a_bounded_journal_removes_the_oldest_and_keeps_counting() {
    let journal = Journal::keeping(2);
    let provider = SimProvider::builder(Dialect::OpenAi).with_journal(&journal).build();
    let path = common::path(Dialect::OpenAi, "", true);
    let ask_ = || request(Dialect::OpenAi, &path, question(Dialect::OpenAi, "x", true).to_string());
    let first = provider.clone().oneshot(ask_()).await.unwrap();
    for _ in 0..4 {
        ask(&provider, false).await.unwrap();
    }
    // Its entry was removed: its end must change no other entry.
    drop(first);
    assert_eq!(journal.wait_for(5).await.len(), 2);
    assert_eq!(journal.len(), 5);
    let entries = journal.entries();
    assert_eq!(entries.iter().map(|e| e.number).collect::<Vec<_>>(), [4, 5]);
    assert!(entries.iter().all(|e| e.end == End::Complete));
    let under_way = provider.clone().oneshot(ask_()).await.unwrap();
    journal.clear();
    ask(&provider, false).await.unwrap();
    drop(under_way);
    assert_eq!((journal.len(), journal.last().unwrap().end), (1, End::Complete));
}

#[tokio::test(start_paused = true)]
async fn waiting_for_requests() {
    let provider = SimProvider::builder(Dialect::OpenAi)
        .with_latency(Latency { headers: Duration::from_secs(5), ..Latency::default() })
        .build();
    let journal = provider.journal().clone();
    let start = Instant::now();
    let asking = tokio::spawn({
        let provider = provider.clone();
        async move {
            ask(&provider, false).await.unwrap();
            ask(&provider, false).await.unwrap();
        }
    });
    assert_eq!(journal.wait_for(2).await.len(), 2);
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    journal.wait_ended(2).await;
    assert_eq!(start.elapsed(), Duration::from_secs(10));
    asking.await.unwrap();
}

#[tokio::test]
async fn only_requests_that_get_an_answer_take_one_from_the_script() {
    let provider = SimProvider::builder(Dialect::OpenAi)
        .with_script([Answer::text("first"), Answer::text("second").stop(Stop::MaxTokens)])
        .with_faults(FaultPlan::first(1, Fault::Error(ErrorKind::ServerError)))
        .build();
    ask(&provider, true).await.unwrap();
    post(&provider, &json!({"model": "gpt-4o"})).await;
    assert_eq!(provider.script_left(), 2);
    let read = ask(&provider, true).await.unwrap();
    assert_eq!(streamed_text(Dialect::OpenAi, &read.text()), "first");
    let read = ask(&provider, true).await.unwrap();
    assert_eq!(streamed_text(Dialect::OpenAi, &read.text()), "second");
    let finish: Vec<Value> = events(&read.text())
        .iter()
        .map(|e| e["choices"][0]["finish_reason"].clone())
        .filter(Value::is_string)
        .collect();
    assert_eq!(finish, ["length"]);
    assert_eq!(provider.script_left(), 0);
    let refused = &provider.journal().entries()[1];
    assert_eq!(refused.refused.as_deref(), Some("Missing required parameter: 'messages'."));
    assert!(refused.fault.is_none() && refused.sent.is_none());
}

#[tokio::test]
async fn a_fault_of_the_body_spares_a_request_that_is_refused() {
    let provider = SimProvider::builder(Dialect::OpenAi)
        .with_faults(FaultPlan::always(Fault::break_after(1, steadfast_sim::How::Reset)))
        .build();
    let read = post(&provider, &json!({"model": "gpt-4o"})).await;
    assert_eq!(read.status, 400);
    assert!(read.error.is_none());
    assert_eq!(provider.journal().last().unwrap().fault, None);
}

#[tokio::test]
async fn arbitrary_bytes_never_panic() {
    let mut rng = fastrand::Rng::with_seed(11);
    let seeds: Vec<Vec<u8>> = Dialect::ALL
        .iter()
        .map(|d| question(*d, "naïve 🦀", true).to_string().into_bytes())
        .collect();
    for dialect in Dialect::ALL {
        let provider = SimProvider::new(dialect);
        for _ in 0..400 {
            let mut bytes = seeds[rng.usize(..seeds.len())].clone();
            for _ in 0..rng.usize(1..6) {
                let at = rng.usize(..bytes.len());
                match rng.u8(..3) {
                    0 => bytes[at] = rng.u8(..),
                    1 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, b"{}[]\":,0null"[rng.usize(..12)]),
                }
            }
            let path = common::path(dialect, common::model(dialect), rng.bool());
            let read = send(&provider, request(dialect, &path, bytes)).await.unwrap();
            assert!(matches!(read.status, 200 | 400 | 404), "{}", read.status);
        }
    }
}
