//! What becomes of a request that only its own dialect has all the words for, over sockets: what is left out
//! is named, what has no word makes the target be passed over, and nothing vanishes in silence.

use serde_json::{Value, json};
use steadfast::sim::{Answer, Dialect, Model};
use steadfast_tests::gateway::{
    DIALECTS, Rig, ask, http::HttpRequest, model, pairs, provider, question, wire_answer::refusal,
};

/// A question in `dialect` with these fields more.
fn with(dialect: Dialect, stream: bool, more: &Value) -> HttpRequest {
    let mut body = question(dialect, model(dialect), stream);
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    ask(dialect, model(dialect), stream).body(body.to_string())
}

/// A field that another dialect leaves out, and one that it refuses.
fn fields(dialect: Dialect) -> (Value, &'static str, Value, &'static str) {
    match dialect {
        Dialect::OpenAi => {
            let refused = json!({"web_search_options": {"search_context_size": "low"}});
            (json!({"logit_bias": {"7": 1}}), "logit_bias", refused, "web_search_options")
        }
        Dialect::Anthropic => {
            let tool = json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]});
            (json!({"service_tier": "auto"}), "service_tier", tool, "tools[0]")
        }
        Dialect::Responses => {
            let refused = json!({"prompt": {"id": "pmpt_1"}});
            (json!({"truncation": "auto"}), "truncation", refused, "prompt")
        }
        Dialect::Gemini => {
            let refused = json!({"cachedContent": "cachedContents/x"});
            (json!({"labels": {"a": "b"}}), "labels", refused, "cachedContent")
        }
    }
}

/// A gateway whose models of all dialects are the same one of its provider's.
async fn rig(providers: &[Dialect]) -> Rig {
    let mut builder = Rig::builder();
    for dialect in providers {
        let answer = Answer::text("Hello.");
        let provider = provider(*dialect).respond(move |_| Some(answer.clone())).build();
        let own = model(*dialect);
        let models: Vec<String> = DIALECTS
            .iter()
            // Two of them have the same model.
            .filter(|other| model(**other) != own)
            .map(|other| format!("'{}' = '{own}'", model(*other)))
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect();
        builder =
            builder.provider_with(provider, &format!("models = {{ {} }}\n", models.join(", ")));
    }
    builder.start().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_out_is_named_in_a_header_and_the_recovery_log() {
    for (caller, speaks) in pairs() {
        let rig = rig(&[speaks]).await;
        let (left_out, name, ..) = fields(caller);
        for stream in [false, true] {
            let reply = with(caller, stream, &left_out).send(rig.addr).await;
            let case = format!("{caller:?} to {speaks:?}, stream {stream}: {}", reply.text());
            assert_eq!(reply.status, 200, "{case}");
            let named = reply.header("x-steadfast-left-out");
            if caller == speaks {
                assert_eq!(named, None, "{case}");
                let sent = String::from_utf8(rig.last().body.to_vec()).unwrap();
                assert!(sent.contains(name), "{case}");
                continue;
            }
            assert_eq!(named, Some(name), "{case}");
            let recovery = reply.header("x-steadfast-recovery").unwrap();
            assert!(recovery.contains("client.left_out"), "{case}: {recovery}");
            assert!(recovery.ends_with(name), "{case}: {recovery}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_word_is_refused_with_its_path_and_costs_no_provider_anything() {
    for (caller, speaks) in pairs().filter(|(caller, speaks)| caller != speaks) {
        let rig = rig(&[speaks]).await;
        let (.., refused, path) = fields(caller);
        for stream in [false, true] {
            let reply = with(caller, stream, &refused).send(rig.addr).await;
            let message = refusal(caller, 400, &reply);
            assert!(message.contains(path), "{caller:?} to {speaks:?}: {message}");
            assert_eq!(reply.header("x-should-retry"), Some("false"), "{message}");
            assert_eq!(reply.header("x-steadfast-reason"), Some("unsupported"));
        }
        assert_eq!(rig.asked(), 0, "nobody was asked");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spare_that_has_the_word_answers_where_the_first_has_none() {
    for (caller, speaks) in pairs().filter(|(caller, speaks)| caller != speaks) {
        let rig = rig(&[speaks, caller]).await;
        let (.., refused, _) = fields(caller);
        let reply = with(caller, false, &refused).send(rig.addr).await;
        let target = reply.header("x-steadfast-target").unwrap_or_default().to_owned();
        // What the simulator makes of the field is its own matter: it was asked, and got all of it.
        assert_eq!(rig.asked(), 1, "{caller:?} to {speaks:?}: {}", reply.text());
        assert!(target.starts_with(caller.as_str()), "{target}: {}", reply.text());
        let spare = rig.sims[1].provider().journal().last().unwrap();
        let sent = String::from_utf8(spare.body.to_vec()).unwrap();
        let field = refused.as_object().unwrap().keys().next().unwrap();
        assert!(sent.contains(field.as_str()), "{sent}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_may_have_the_target_passed_over_instead() {
    let provider = provider(Dialect::OpenAi).build();
    let rig = Rig::builder()
        .provider_with(
            provider,
            "models = { 'claude-sonnet-4-5' = 'gpt-4o' }\non_unsupported = 'refuse'\n",
        )
        .start()
        .await;
    let more = json!({"service_tier": "auto"});
    let reply = with(Dialect::Anthropic, false, &more).send(rig.addr).await;
    let message = refusal(Dialect::Anthropic, 400, &reply);
    assert!(message.contains("service_tier"), "{message}");
    assert_eq!(rig.asked(), 0);
}

/// Agents add up and show what stands there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_beginning_of_a_translated_stream_says_about_how_long_the_request_is() {
    let rig = rig(&[Dialect::OpenAi]).await;
    let words = "several words ".repeat(100);
    let more = json!({"messages": [{"role": "user", "content": words}]});
    let reply = with(Dialect::Anthropic, true, &more).send(rig.addr).await;
    let start =
        reply.text().lines().find(|line| line.contains("message_start\",\"message")).unwrap();
    let start: Value = serde_json::from_str(start.strip_prefix("data: ").unwrap()).unwrap();
    let input = start["message"]["usage"]["input_tokens"].as_u64().unwrap();
    assert!((100..1_000).contains(&input), "{start}");
}

/// Who declares functions by their older name reads calls by that name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_of_the_older_functions_gets_a_function_call() {
    let call = steadfast_tests::gateway::call("c1", "look_up", r#"{"q":"x"}"#);
    let answer = Answer::text("").then(call);
    let provider = provider(Dialect::Anthropic).respond(move |_| Some(answer.clone())).build();
    let rig = Rig::builder()
        .provider_with(provider, "models = { 'gpt-4o' = 'claude-sonnet-4-5' }\n")
        .start()
        .await;
    for stream in [false, true] {
        let mut body = question(Dialect::OpenAi, "gpt-4o", stream);
        body.as_object_mut().unwrap().shift_remove("tools");
        body["functions"] =
            json!([{"name": "look_up", "parameters": {"type": "object", "properties": {}}}]);
        let reply =
            ask(Dialect::OpenAi, "gpt-4o", stream).body(body.to_string()).send(rig.addr).await;
        let text = reply.text();
        assert!(text.contains("\"function_call\":{\"name\":\"look_up\""), "{text}");
        assert!(text.contains("\"finish_reason\":\"function_call\""), "{text}");
        assert!(!text.contains("tool_calls"), "{text}");
    }
}

/// What nothing was known of before: the model takes no temperature, and writes less than was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parameter_that_a_model_refuses_is_left_out_once_and_then_from_the_beginning() {
    let temperature = |dialect| match dialect {
        Dialect::Gemini => {
            json!({"generationConfig": {"temperature": 0.5, "maxOutputTokens": 8000}})
        }
        Dialect::Responses => json!({"temperature": 0.5, "max_output_tokens": 8000}),
        Dialect::OpenAi | Dialect::Anthropic => json!({"temperature": 0.5, "max_tokens": 8000}),
    };
    for (caller, speaks) in pairs() {
        let house = Model::new("house-model", 128_000, 4_000).refusing(&["temperature"]);
        let house = if matches!(speaks, Dialect::OpenAi | Dialect::Responses) {
            house.without_thinking()
        } else {
            house
        };
        let provider = provider(speaks).with_model(house);
        let provider = provider.respond(|_| Some(Answer::text("Hello."))).build();
        let models = format!("models = {{ '{}' = 'house-model' }}\n", model(caller));
        let rig = Rig::builder().provider_with(provider, &models).start().await;
        for (attempts, stream) in [(3, true), (1, false), (1, true)] {
            let before = rig.asked();
            let reply = with(caller, stream, &temperature(caller)).send(rig.addr).await;
            let case = format!("{caller:?} to {speaks:?}, stream {stream}: {}", reply.text());
            assert_eq!(reply.status, 200, "{case}");
            assert_eq!(rig.asked() - before, attempts, "{case}");
            rig.assert_attempts(&reply, before, &case);
            let named = reply.header("x-steadfast-left-out").unwrap_or_default();
            assert!(named.contains("temperature"), "{case}: {named}");
            assert!(named.to_lowercase().contains("max"), "{case}: {named}");
            let sent = String::from_utf8(rig.last().body.to_vec()).unwrap();
            assert!(!sent.contains("temperature") && sent.contains("4000"), "{case}: {sent}");
        }
    }
}

/// Fields that no other dialect has a word for, refused by another server of the same dialect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_field_that_another_server_refuses_is_left_out_once_and_then_from_the_beginning() {
    let house = Model::new("house-model", 128_000, 16_000).without_thinking();
    let house = house.refusing(&["store", "stream_options"]);
    let provider = provider(Dialect::OpenAi).with_model(house);
    let provider = provider.respond(|_| Some(Answer::text("Hello."))).build();
    let models = format!("models = {{ '{}' = 'house-model' }}\n", model(Dialect::OpenAi));
    let rig = Rig::builder().provider_with(provider, &models).start().await;
    let more = json!({"store": true, "logit_bias": {"7": 1}, "stream_options": null});
    for (attempts, stream) in [(3, true), (1, true), (1, false)] {
        let before = rig.asked();
        let reply = with(Dialect::OpenAi, stream, &more).send(rig.addr).await;
        let case = format!("stream {stream}: {}", reply.text());
        assert_eq!((reply.status, rig.asked() - before), (200, attempts), "{case}");
        // What was asked for with the stream, without the caller's doing, is not named.
        assert_eq!(reply.header("x-steadfast-left-out"), Some("store"), "{case}");
        let sent = rig.last().json.unwrap();
        assert_eq!(sent["logit_bias"], more["logit_bias"], "{case}");
    }
}

/// The dialect needs a limit: it is what the window has room for beside the conversation, by the provider's own
/// numbers and by what was counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_nobody_asked_for_is_what_the_window_leaves() {
    let small = Model::new("house-model", 20_000, 16_000);
    let provider = provider(Dialect::Anthropic).with_model(small);
    let provider = provider.respond(|_| Some(Answer::text("Hello."))).build();
    let models = format!(
        "models = {{ '{}' = 'house-model' }}\nwindow = 20000\nmax_output = 16000\n",
        model(Dialect::OpenAi)
    );
    let rig = Rig::builder().provider_with(provider, &models).start().await;
    let mut most = u64::MAX;
    for words in [1, 4_000, 10_000, 13_000] {
        let mut body = question(Dialect::OpenAi, model(Dialect::OpenAi), false);
        body["messages"] = json!([{"role": "user", "content": "word ".repeat(words)}]);
        body.as_object_mut().unwrap().remove("max_tokens");
        let asked = ask(Dialect::OpenAi, model(Dialect::OpenAi), false);
        let reply = asked.body(body.to_string()).send(rig.addr).await;
        assert_eq!(reply.status, 200, "{words} words: {}", reply.text());
        let sent = rig.last();
        let limit = sent.json.unwrap()["max_tokens"].as_u64().unwrap();
        let room = 20_000 - sent.sent.unwrap().usage.input;
        assert!(limit <= room.min(16_000), "{words} words: {limit} of {room}");
        assert!(
            limit * 3 >= room.min(16_000) * 2 || words > 10_000,
            "{words} words: {limit} of {room}"
        );
        assert!(limit < most, "{words} words: {limit}");
        most = limit;
    }
    assert_eq!(rig.asked(), 4, "none was refused");

    // How much a model writes nobody knows: what is usual, though the window has room for more.
    let large = Model::new("house-model", 200_000, 16_000);
    let provider = steadfast_tests::gateway::provider(Dialect::Anthropic).with_model(large);
    let provider = provider.respond(|_| Some(Answer::text("Hello."))).build();
    let models =
        format!("models = {{ '{}' = 'house-model' }}\nwindow = 200000\n", model(Dialect::OpenAi));
    let rig = Rig::builder().provider_with(provider, &models).start().await;
    let mut body = question(Dialect::OpenAi, model(Dialect::OpenAi), false);
    body.as_object_mut().unwrap().remove("max_tokens");
    let asked = ask(Dialect::OpenAi, model(Dialect::OpenAi), false);
    let reply = asked.body(body.to_string()).send(rig.addr).await;
    assert_eq!((reply.status, rig.asked()), (200, 1), "{}", reply.text());
    assert_eq!(rig.last().json.unwrap()["max_tokens"], 8_192);
}

/// Who asks this very model in its own dialect gets its refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_caller_wrote_for_the_model_is_refused_by_the_model() {
    for dialect in DIALECTS {
        let house = Model::new("house-model", 128_000, 4_000).refusing(&["temperature"]);
        let rig = Rig::of(provider(dialect).with_model(house).build()).await;
        let mut body = question(dialect, "house-model", false);
        match dialect {
            Dialect::Gemini => body["generationConfig"] = json!({"temperature": 0.5}),
            _ => body["temperature"] = json!(0.5),
        }
        let reply = ask(dialect, "house-model", false).body(body.to_string()).send(rig.addr).await;
        let message = refusal(dialect, 400, &reply);
        assert!(message.contains("temperature"), "{message}");
        assert_eq!(rig.asked(), 1);
    }
}

/// What a repair would take out before the table is asked: content makes the target be passed over, the rest is
/// named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_repair_takes_out_is_named_or_refused() {
    let audio = json!({"messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": null, "audio": {"id": "audio_1"}},
        {"role": "user", "content": "z"},
    ]});
    let orphan = json!({"messages": [
        {"role": "user", "content": "q"},
        {"role": "tool", "tool_call_id": "nope", "content": "a result"},
    ]});
    let thought = json!({"contents": [
        {"role": "user", "parts": [{"text": "q"}]},
        {"role": "model", "parts": [{"text": "a thought", "thought": true}]},
        {"role": "user", "parts": [{"text": "z"}]},
    ]});
    let picture = json!({"systemInstruction": {"parts": [
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
    ]}});
    for (caller, more, left_out) in [
        (Dialect::OpenAi, &audio, None),
        (Dialect::OpenAi, &orphan, Some("messages[].tool_call_id")),
        (Dialect::Gemini, &thought, Some("contents[].parts[].thought")),
        (Dialect::Gemini, &picture, None),
    ] {
        let rig = rig(&[Dialect::Anthropic]).await;
        let reply = with(caller, false, more).send(rig.addr).await;
        let case = format!("{more}: {}", reply.text());
        match left_out {
            Some(name) => {
                assert_eq!(reply.status, 200, "{case}");
                let named = reply.header("x-steadfast-left-out").unwrap_or_default();
                assert!(named.contains(name), "{case}: {named}");
            }
            None => {
                assert_eq!((reply.status, rig.asked()), (400, 0), "{case}");
            }
        }
    }
}

/// The same dialect, another model than the one that it was written for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_model_of_the_dialect_would_refuse_is_named() {
    let provider = provider(Dialect::OpenAi).build();
    let models = "models = { 'gpt-4o' = 'gpt-5.4' }\n";
    let rig = Rig::builder().provider_with(provider, models).start().await;
    let more = json!({"temperature": 0.5, "top_p": 0.5, "reasoning_effort": "high"});
    let reply = with(Dialect::OpenAi, false, &more).send(rig.addr).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let named = reply.header("x-steadfast-left-out").unwrap_or_default();
    for name in ["temperature", "top_p", "reasoning_effort"] {
        assert!(named.contains(name), "{named}");
    }
}
