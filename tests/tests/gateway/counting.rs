//! Counts of tokens through the gateway: by the provider where it can, else here; and nothing else is changed by them.

use std::time::Duration;

use serde_json::{Value, json};
use steadfast::sim::{Dialect, ErrorKind, Fault, FaultPlan, RawResponse, count_tokens};
use steadfast_tests::gateway::{
    Rig, ask,
    http::{HttpRequest, Reply},
    in_process::InProcess,
    model, provider,
};

/// A question with a system prompt, a tool and some turns, of about so many words; without what only an answer
/// needs.
fn question(dialect: Dialect, model: &str, words: usize) -> Value {
    let text = |seed: usize| {
        let of = [
            "ships", "lantern", "the", "keeper's", "on", "counted", "Nacht", "42", "{x: 1}",
            "moths,",
        ];
        let word = |n: usize| of[(n * 7 + n / 3 + seed) % of.len()];
        (0..words).map(word).collect::<Vec<_>>().join(" ")
    };
    let schema = json!({"type": "object", "properties": {"q": {"type": "string"}}});
    match dialect {
        Dialect::Gemini => json!({
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
            "contents": [
                {"role": "user", "parts": [{"text": text(1)}]},
                {"role": "model", "parts": [{"text": text(2)}]},
                {"role": "user", "parts": [{"text": text(3)}]},
            ],
            "tools": [{"functionDeclarations": [
                {"name": "look_up", "description": "Looks up.", "parameters": schema},
            ]}],
        }),
        _ => json!({
            "model": model,
            "system": "Be brief.",
            "messages": [
                {"role": "user", "content": text(1)},
                {"role": "assistant", "content": text(2)},
                {"role": "user", "content": [{"type": "text", "text": text(3)}]},
            ],
            "tools": [{"name": "look_up", "description": "Looks up.", "input_schema": schema}],
        }),
    }
}

fn count(dialect: Dialect, model: &str, question: &Value) -> HttpRequest {
    match dialect {
        Dialect::Gemini => {
            let mut whole = question.clone();
            whole["model"] = json!(format!("models/{model}"));
            let body = json!({ "generateContentRequest": whole });
            HttpRequest::post(format!("/v1beta/models/{model}:countTokens"), body.to_string())
        }
        _ => HttpRequest::post("/v1/messages/count_tokens", question.to_string())
            .header("anthropic-version", "2023-06-01"),
    }
}

/// What a reply says, and who has counted.
fn tokens(reply: &Reply) -> (u64, &str) {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let body = reply.json();
    let tokens = body["input_tokens"].as_u64().or(body["totalTokens"].as_u64()).unwrap();
    (tokens, reply.header("x-steadfast-counted").unwrap())
}

const COUNTERS: [Dialect; 2] = [Dialect::Anthropic, Dialect::Gemini];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_is_asked_in_its_words_and_its_answer_passed_on() {
    for caller in COUNTERS {
        for speaks in COUNTERS {
            let sent = model(speaks);
            let rig = Rig::builder()
                .provider_with(provider(speaks).build(), &format!("models = {{ '*' = '{sent}' }}"))
                .start()
                .await;
            let question = question(caller, "any", 40);
            let reply = count(caller, "any", &question).send(rig.addr).await;
            let entry = rig.last();
            let body = entry.json.clone().unwrap();
            let counted = body.get("generateContentRequest").unwrap_or(&body);
            let wanted = count_tokens(counted) as u64;
            assert_eq!(tokens(&reply), (wanted, "provider"), "{caller} <- {speaks}");
            assert!(reply.header("x-steadfast-target").unwrap().contains(sent));
            assert_eq!(reply.header("x-steadfast-attempts"), Some("0"));
            assert_eq!(entry.status, Some(200));
            if caller == speaks {
                let mut as_it_came = question.clone();
                as_it_came["model"] = match caller {
                    Dialect::Gemini => json!(format!("models/{sent}")),
                    _ => json!(sent),
                };
                assert_eq!(*counted, as_it_came, "but for the model");
            }
            assert!(counted.get("max_tokens").is_none(), "a count is refused with it: {counted}");
            // Beside requests, and not among them.
            let metrics = HttpRequest::get("/metrics").send(rig.addr).await;
            let metrics = metrics.text();
            let line =
                format!("steadfast_token_counts_total{{dialect=\"{caller}\",by=\"provider\"}} 1");
            assert!(metrics.contains(&line), "{metrics}");
            assert!(!metrics.contains("steadfast_requests_total{"), "{metrics}");
            assert!(metrics.contains("steadfast_attempts_total 0"), "{metrics}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contents_alone_are_counted_where_that_is_asked() {
    let sim = provider(Dialect::Gemini).build();
    let rig = Rig::of(sim).await;
    let body = json!({"contents": [{"parts": [{"text": "12345678"}]}]}).to_string();
    let path = format!("/v1/models/{}:countTokens", model(Dialect::Gemini));
    let reply = HttpRequest::post(path, body.clone()).send(rig.addr).await;
    assert_eq!(tokens(&reply), (6, "provider"));
    assert_eq!(rig.last().body, body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_request_is_reported_in_the_callers_dialect() {
    let rig = Rig::of(provider(Dialect::Anthropic).build()).await;
    let post = |body: &str| {
        HttpRequest::post("/v1/messages/count_tokens", body)
            .header("anthropic-version", "2023-06-01")
    };
    let reply = post(r#"{"model":"m","messages":7}"#).send(rig.addr).await;
    assert_eq!((reply.status, reply.json()["type"].as_str()), (400, Some("error")));
    assert!(rig.seen().is_empty());
    // What the provider finds is passed on as it says it.
    let body = json!({"model": model(Dialect::Anthropic), "messages": []}).to_string();
    let reply = post(&body).send(rig.addr).await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(reply.text().contains(rig.last().refused.as_deref().unwrap()), "{}", reply.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_needed_and_a_body_has_its_limit() {
    let builder = Rig::builder();
    let key = builder.secret("tenant", "sk-tenant-of-the-test-0001");
    let rig = builder
        .server("auth = \"keys\"\nbody_limit = 2000")
        .config(&format!("[[tenants]]\nname = \"t\"\nkeys = [\"{key}\"]\n"))
        .provider(provider(Dialect::Anthropic).build())
        .start()
        .await;
    let name = model(Dialect::Anthropic);
    let small = count(Dialect::Anthropic, name, &question(Dialect::Anthropic, name, 3));
    assert_eq!(small.send(rig.addr).await.status, 401);
    let large = count(Dialect::Anthropic, name, &question(Dialect::Anthropic, name, 900));
    let with_key = |ask: HttpRequest| ask.header("x-api-key", "sk-tenant-of-the-test-0001");
    assert_eq!(with_key(large).send(rig.addr).await.status, 413);
    assert_eq!(with_key(small).send(rig.addr).await.status, 200);
}

fn gateway(sims: &[steadfast::sim::SimProvider]) -> InProcess {
    InProcess::with_settings("[server]\nauth = 'none'", sims)
}

/// All that is known of targets.
fn records(gateway: &InProcess) -> String {
    let gateway = gateway.app.gateway();
    let status = gateway.status();
    let of = |key: &str| status[key].to_string();
    // How long ago something was is no record.
    let age = |text: String| text.replace("\"for_s\":3.0", "\"for_s\":0.0");
    let known = ["breakers", "health", "retry", "rate_limits"].map(|key| age(of(key)));
    format!("{known:?} {:?}", gateway.handles().failover.snapshot().targets())
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_does_not_count_is_not_asked_for_a_while_and_nothing_is_held_against_it() {
    let raw = |status| {
        let (headers, body) = Default::default();
        Fault::Status(RawResponse { status, headers, body })
    };
    for (fault, pause_s) in [
        (raw(404), 3_600),
        (raw(405), 3_600),
        (raw(500), 60),
        (raw(429), 60),
        (Fault::Error(ErrorKind::Overloaded), 60),
        (Fault::Hang, 60),
        (Fault::Reset, 60),
    ] {
        let sim = provider(Dialect::Anthropic).build();
        sim.set_count_fault(Some(fault.clone()));
        let gateway = gateway(std::slice::from_ref(&sim));
        let name = model(Dialect::Anthropic);
        // So that there are records.
        assert_eq!(gateway.send(&ask(Dialect::Anthropic, name, false)).await.status, 200);
        let before = records(&gateway);
        let counting = count(Dialect::Anthropic, name, &question(Dialect::Anthropic, name, 50));
        let began = tokio::time::Instant::now();
        for _ in 0..5 {
            assert_eq!(tokens(&gateway.send(&counting).await).1, "gateway", "{fault:?}");
        }
        assert_eq!(sim.journal().len(), 2, "{fault:?}: asked once, and not retried");
        let waited = began.elapsed();
        let most = if fault == Fault::Hang { Duration::from_secs(4) } else { Duration::ZERO };
        assert!(waited <= most, "{fault:?}: {waited:?}");
        assert_eq!(records(&gateway), before, "{fault:?}");
        assert_eq!(gateway.app.metrics().attempts(), 1);
        // A while later it is asked again.
        sim.set_count_fault(None);
        tokio::time::advance(Duration::from_secs(pause_s - 2)).await;
        assert_eq!(tokens(&gateway.send(&counting).await).1, "gateway", "{fault:?}");
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(tokens(&gateway.send(&counting).await).1, "provider", "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_rests_is_not_asked_and_the_next_that_is_well_is() {
    let sims = [Dialect::Anthropic, Dialect::Gemini].map(|dialect| provider(dialect).build());
    let gateway = gateway(&sims);
    let name = model(Dialect::Anthropic);
    let ask = count(Dialect::Anthropic, name, &question(Dialect::Anthropic, name, 50));
    let handle = gateway.app.gateway().handles().failover.clone();
    assert_eq!(tokens(&gateway.send(&ask).await).1, "provider");
    handle.cool(&"anthropic".into(), Duration::from_secs(600));
    let reply = gateway.send(&ask).await;
    assert_eq!(tokens(&reply).1, "provider");
    assert!(reply.header("x-steadfast-target").unwrap().starts_with("gemini/"));
    handle.cool(&"gemini".into(), Duration::from_secs(600));
    assert_eq!(tokens(&gateway.send(&ask).await).1, "gateway");
    assert_eq!(sims.map(|sim| sim.journal().len()), [1, 1]);
}

fn close(reply: &Reply, question: &Value, case: &str) {
    let (counted, by) = tokens(reply);
    let wanted = count_tokens(question) as u64;
    assert_eq!(by, "gateway");
    let off = counted.abs_diff(wanted) as f64 / wanted as f64;
    assert!(off <= 0.03, "{case}: {counted} for {wanted}, {:.1} %", off * 100.0);
}

/// What was counted by the provider teaches what is counted here, once it does not count any more.
#[tokio::test(start_paused = true)]
async fn what_is_counted_here_is_within_three_percent_once_the_provider_has_counted() {
    for dialect in COUNTERS {
        let sim = provider(dialect).build();
        let gateway = gateway(std::slice::from_ref(&sim));
        let name = model(dialect);
        for words in [60, 200, 30, 90, 500, 40] {
            let ask = count(dialect, name, &question(dialect, name, words));
            assert_eq!(tokens(&gateway.send(&ask).await).1, "provider");
        }
        sim.set_count_fault(Some(Fault::Error(ErrorKind::ServerError)));
        for words in [50, 120, 500, 2_000, 9_000] {
            let question = question(dialect, name, words);
            let reply = gateway.send(&count(dialect, name, &question)).await;
            close(&reply, &question, &format!("{dialect}, {words} words"));
        }
    }
}

/// Where the provider has no such endpoint, the usage that it reports of chats teaches.
#[tokio::test(start_paused = true)]
async fn what_is_counted_here_is_within_three_percent_once_chats_have_reported_usage() {
    let sim = provider(Dialect::OpenAi).build();
    let gateway = gateway(std::slice::from_ref(&sim));
    let (caller, name) = (Dialect::Anthropic, "any");
    let first = count(caller, name, &question(caller, name, 40));
    assert_eq!(tokens(&gateway.send(&first).await).1, "gateway");
    for words in [60, 200, 90] {
        let mut chat = question(caller, name, words);
        chat["max_tokens"] = json!(500);
        let ask = ask(caller, name, false).body(chat.to_string());
        assert_eq!(gateway.send(&ask).await.status, 200);
    }
    for words in [50, 120, 500, 2_000] {
        let question = question(caller, name, words);
        let reply = gateway.send(&count(caller, name, &question)).await;
        close(&reply, &question, &format!("{words} words"));
    }
    assert_eq!(sim.journal().len(), 3, "no count was asked of it");
}

/// A chat fails where a count of the same provider does not, and is counted as before.
#[tokio::test(start_paused = true)]
async fn counts_and_chats_do_not_know_of_each_other() {
    let sim = provider(Dialect::Anthropic).build();
    let gateway = gateway(std::slice::from_ref(&sim));
    let name = model(Dialect::Anthropic);
    sim.set_count_fault(Some(Fault::Error(ErrorKind::Auth)));
    let counting = count(Dialect::Anthropic, name, &question(Dialect::Anthropic, name, 50));
    assert_eq!(tokens(&gateway.send(&counting).await).1, "gateway");
    let chat = ask(Dialect::Anthropic, name, false);
    assert_eq!(gateway.send(&chat).await.status, 200, "a key that may not count may chat");
    sim.set_faults(FaultPlan::none());
}
