//! A stop of the guard as its caller sees it.

use serde_json::{Value, json};
use steadfast::sim::Dialect;
use steadfast_tests::gateway::{
    DIALECTS, Rig, ask,
    http::HttpRequest,
    model, provider, turns_key,
    wire_answer::{WireAnswer, refusal},
};

/// A conversation in which a tool gave the same result `times` times; then `more` of the user.
fn looping(dialect: Dialect, times: usize, more: Option<&str>, stream: bool) -> HttpRequest {
    let request = ask(dialect, model(dialect), stream);
    let mut body: Value = serde_json::from_slice(request.sent()).unwrap();
    let key = turns_key(dialect);
    let messages = body[key].as_array_mut().unwrap();
    for n in 0..times {
        let id = format!("call_{n}");
        messages.extend(match dialect {
            Dialect::OpenAi => [
                json!({"role": "assistant", "tool_calls": [{"id": id, "type": "function",
                    "function": {"name": "look_up", "arguments": r#"{"q":"x"}"#}}]}),
                json!({"role": "tool", "tool_call_id": id, "content": "nothing new at all"}),
            ],
            Dialect::Responses => [
                json!({"type": "function_call", "call_id": id, "name": "look_up",
                    "arguments": r#"{"q":"x"}"#}),
                json!({"type": "function_call_output", "call_id": id,
                    "output": "nothing new at all"}),
            ],
            Dialect::Anthropic => [
                json!({"role": "assistant", "content": [
                    {"type": "tool_use", "id": id, "name": "look_up", "input": {"q": "x"}}]}),
                json!({"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": id, "content": "nothing new at all"}]}),
            ],
            Dialect::Gemini => [
                json!({"role": "model", "parts": [
                    {"functionCall": {"name": "look_up", "args": {"q": "x"}}}]}),
                json!({"role": "user", "parts": [{"functionResponse":
                    {"name": "look_up", "response": {"output": "nothing new at all"}}}]}),
            ],
        });
    }
    if let Some(text) = more {
        messages.push(match dialect {
            Dialect::Gemini => json!({"role": "model", "parts": [{"text": "I was stopped."}]}),
            _ => json!({"role": "assistant", "content": "I was stopped."}),
        });
        messages.push(match dialect {
            Dialect::Gemini => json!({"role": "user", "parts": [{"text": text}]}),
            _ => json!({"role": "user", "content": text}),
        });
    }
    request.body(body.to_string()).header("x-steadfast-session", "s")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_is_final_and_only_the_user_lifts_it() {
    for dialect in DIALECTS {
        let rig = Rig::of(provider(dialect).build()).await;
        let mut stopped = None;
        for times in 1..8 {
            let reply = looping(dialect, times, None, true).send(rig.addr).await;
            if reply.status != 200 {
                stopped = Some((times, reply));
                break;
            }
        }
        let (times, reply) = stopped.expect("it was never stopped");
        let message = refusal(dialect, 400, &reply);
        assert!(message.starts_with("Safety limit reached"), "{dialect}: {message}");
        assert_eq!(reply.header("x-should-retry"), Some("false"));
        for own in
            ["Please continue.", "Your response above was cut off mid-stream. Resume directly."]
        {
            let again = looping(dialect, times, Some(own), false).send(rig.addr).await;
            assert_eq!(again.status, 400, "{dialect}: {own}: {}", again.text());
        }
        let person = looping(dialect, times, Some("Try the other file."), false);
        let person = person.send(rig.addr).await;
        assert_eq!(person.status, 200, "{dialect}: {}", person.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_as_an_answer_is_marked() {
    for dialect in DIALECTS {
        let rig = Rig::builder()
            .config("[guard]\nstop_as = \"answer\"\n")
            .provider(provider(dialect).build())
            .start()
            .await;
        for stream in [false, true] {
            for times in 1..8 {
                let reply = looping(dialect, times, None, stream).send(rig.addr).await;
                assert_eq!(reply.status, 200, "{dialect}: {}", reply.text());
                if reply.header("x-steadfast-stopped").is_some() {
                    assert_eq!(reply.header("x-steadfast-stopped"), Some("same_result"));
                    assert!(reply.text().contains("Safety limit reached"), "{}", reply.text());
                    if stream {
                        let answer = WireAnswer::stream(dialect, &reply.body);
                        assert!(answer.errors.is_empty() && !answer.ends.is_empty(), "{answer:?}");
                    }
                    break;
                }
                assert!(times < 7, "{dialect}: it was never stopped");
            }
        }
    }
}
