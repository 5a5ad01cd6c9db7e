//! Edge cases of the gateway: invalid requests, providers that refuse, and the headers that a caller
//! gets.

use serde_json::Value;
use steadfast::sim::{Dialect, ErrorKind, Fault, FaultPlan, RateLimit, RawResponse};
use steadfast_tests::gateway::{
    DIALECTS, Rig, ask,
    http::{HttpRequest, Reply},
    model, pairs, path, provider, question, rich_answer,
    wire_answer::{WireAnswer, error_message, refusal},
};

async fn open_rig(dialect: Dialect) -> Rig {
    Rig::of(provider(dialect).respond(|_| Some(rich_answer())).build()).await
}

/// Invalid bodies, and what the error must name.
fn wrong_bodies(dialect: Dialect) -> Vec<(Vec<u8>, &'static str)> {
    let change = |pointer: &str, value: Value| {
        let mut body = question(dialect, model(dialect), false);
        *body.pointer_mut(pointer).unwrap() = value;
        body.to_string().into_bytes()
    };
    let without = |key: &str| {
        let mut body = question(dialect, model(dialect), false);
        body.as_object_mut().unwrap().remove(key).unwrap();
        body.to_string().into_bytes()
    };
    let mut all = vec![
        (b"{\"model\": ".to_vec(), "JSON"),
        (b"".to_vec(), "JSON"),
        (b"[]".to_vec(), "object"),
        (b"{\"a\": \"\xff\xfe\"}".to_vec(), "invalid utf-8"),
        ("[".repeat(100_000).into_bytes(), "not valid JSON"),
    ];
    all.extend(match dialect {
        Dialect::OpenAi => vec![
            (change("/messages", 7.into()), "messages"),
            (change("/messages/0/content", 7.into()), "messages[0].content"),
            (change("/messages/0/role", "robot".into()), "messages[0].role"),
            (change("/max_tokens", "many".into()), "max_tokens"),
            (change("/tools/0/function/name", 1.into()), "tools[0].function.name"),
            (change("/model", Value::Null), "model"),
            (without("messages"), "messages"),
            (without("model"), "model"),
        ],
        Dialect::Anthropic => vec![
            (change("/messages", "hello".into()), "messages"),
            (change("/messages/0/content", 7.into()), "messages[0].content"),
            (change("/messages/0/role", "robot".into()), "messages[0].role"),
            (change("/max_tokens", "many".into()), "max_tokens"),
            (change("/tools/0/name", 1.into()), "tools[0].name"),
            (without("messages"), "messages"),
            (without("model"), "model"),
        ],
        Dialect::Responses => vec![
            (change("/input", 7.into()), "input"),
            (change("/input/0/content", 7.into()), "input[0].content"),
            (change("/input/0/role", "robot".into()), "input[0].role"),
            (change("/max_output_tokens", "many".into()), "max_output_tokens"),
            (change("/tools/0/name", 1.into()), "tools[0].name"),
            (without("input"), "input"),
            (without("model"), "model"),
        ],
        Dialect::Gemini => vec![
            (change("/contents", 7.into()), "contents"),
            (change("/contents/0/parts", "hello".into()), "contents[0].parts"),
            (change("/contents/0/parts/0/text", 7.into()), "contents[0].parts[0].text"),
            (change("/contents/0/role", "robot".into()), "contents[0].role"),
            (
                change("/generationConfig/maxOutputTokens", "many".into()),
                "generationConfig.maxOutputTokens",
            ),
            (without("contents"), "contents"),
        ],
    });
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_body_is_refused_in_the_callers_dialect_without_a_call() {
    for dialect in DIALECTS {
        let rig = open_rig(dialect).await;
        for (body, named) in wrong_bodies(dialect) {
            let shown = String::from_utf8_lossy(&body[..body.len().min(120)]).into_owned();
            let reply = ask(dialect, model(dialect), false).body(body).send(rig.addr).await;
            let message = refusal(dialect, 400, &reply);
            assert!(message.contains(named), "{dialect} {shown}: {named} in {message:?}");
            assert_eq!(reply.header("x-steadfast-reason"), Some("format"), "{shown}");
            assert_eq!(reply.header("x-should-retry"), Some("false"), "{shown}");
            assert_eq!(reply.header("x-steadfast-attempts"), Some("0"), "{shown}");
        }
        assert!(rig.seen().is_empty(), "{dialect}: no provider is called");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_above_the_limit_is_refused_in_the_callers_dialect() {
    for dialect in DIALECTS {
        let rig = open_rig(dialect).await;
        let body = vec![b' '; 33 * 1024 * 1024];
        let reply = ask(dialect, model(dialect), false).body(body).send(rig.addr).await;
        let message = refusal(dialect, 413, &reply);
        assert!(message.contains("33554432"), "the limit is named: {message}");
        assert!(rig.seen().is_empty());
        // A body below the limit is accepted.
        let mut body = question(dialect, model(dialect), false).to_string().into_bytes();
        body.resize(1024 * 1024, b' ');
        assert_eq!(ask(dialect, model(dialect), false).body(body).send(rig.addr).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_model_is_not_found_in_every_pair_the_next_time_too() {
    for (caller, speaks) in pairs() {
        for stream in [false, true] {
            let rig = open_rig(speaks).await;
            for time in 1..=3 {
                let reply = ask(caller, "no-such-model", stream).send(rig.addr).await;
                let message = refusal(caller, 404, &reply);
                assert!(
                    message.contains("no-such-model"),
                    "{caller} <- {speaks}, {time}: {message}"
                );
                assert_eq!(reply.header("x-steadfast-reason"), Some("model_not_found"));
                assert_eq!(reply.header("x-should-retry"), Some("false"));
            }
            // Other models of the provider are not affected.
            let good = ask(caller, model(speaks), stream).send(rig.addr).await;
            assert_eq!(good.status, 200, "{caller} <- {speaks}: {}", good.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_paths_are_refused_in_the_likely_dialect() {
    let rig = open_rig(Dialect::OpenAi).await;
    for method in ["predict", "countTextTokens", ""] {
        let address = format!("/v1beta/models/{}:{method}", model(Dialect::Gemini));
        let reply = HttpRequest::post(address, "{}").send(rig.addr).await;
        let message = refusal(Dialect::Gemini, 404, &reply);
        assert!(message.contains("streamGenerateContent"), "it names what exists: {message}");
    }
    for (dialect, nowhere) in [
        (Dialect::OpenAi, HttpRequest::post("/v1/images/generations", "{}")),
        (Dialect::OpenAi, HttpRequest::get("/index.html")),
        (Dialect::OpenAi, HttpRequest::get("/v1/chat/completions/../../etc/passwd")),
        (
            Dialect::Anthropic,
            HttpRequest::post("/v1/complete", "{}").header("anthropic-version", "x"),
        ),
        (Dialect::Gemini, HttpRequest::get("/v1beta/files")),
    ] {
        let message = refusal(dialect, 404, &nowhere.send(rig.addr).await);
        assert!(message.contains("there is nothing at"), "{message}");
    }
    for (dialect, wrong) in [
        (Dialect::OpenAi, HttpRequest::get("/v1/chat/completions")),
        (
            Dialect::Anthropic,
            HttpRequest::get("/v1/messages").header("anthropic-version", "2023-06-01"),
        ),
        (Dialect::Gemini, HttpRequest::post("/v1beta/models", "{}")),
        (Dialect::OpenAi, HttpRequest::post("/healthz", "{}")),
    ] {
        let message = refusal(dialect, 405, &wrong.send(rig.addr).await);
        assert!(message.contains("POST") && message.contains("/"), "{message}");
    }
    assert!(rig.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_header_of_a_provider_is_sent_downstream() {
    for dialect in DIALECTS {
        let body = match dialect {
            Dialect::OpenAi => {
                "{\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}"
            }
            Dialect::Responses => {
                "{\"id\":\"resp_1\",\"object\":\"response\",\"status\":\"completed\",\"output\":[{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"status\":\"completed\",\"content\":[{\"type\":\"output_text\",\"text\":\"hi\",\"annotations\":[]}]}]}"
            }
            Dialect::Anthropic => {
                "{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}],\"stop_reason\":\"end_turn\",\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}"
            }
            Dialect::Gemini => {
                "{\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"hi\"}],\"role\":\"model\"},\"finishReason\":\"STOP\"}]}"
            }
        };
        let headers = [
            ("content-type", "application/json; charset=utf-8"),
            ("set-cookie", "provider=1"),
            ("server", "provider/1"),
            ("x-upstream", "internal"),
            ("keep-alive", "timeout=1"),
            ("content-encoding", "identity"),
            ("openai-organization", "org-secret"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let raw = RawResponse { status: 200, headers: headers.into(), body: body.into() };
        let plan = FaultPlan::always(Fault::Status(raw));
        let rig = Rig::of(provider(dialect).with_faults(plan).build()).await;
        let reply = ask(dialect, model(dialect), false).send(rig.addr).await;
        assert_eq!((reply.status, reply.text()), (200, body));
        for (name, value) in &reply.headers {
            let own = ["content-type", "content-length", "date", "x-request-id"];
            // Anthropic's SDKs read the gateway's id under this name.
            let known = dialect == Dialect::Anthropic && name == "request-id";
            assert!(
                own.contains(&name.as_str()) || known || name.starts_with("x-steadfast-"),
                "{name}: {value}"
            );
            assert!(!known || reply.header("x-request-id") == Some(value), "{value}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovery_is_reported_in_headers() {
    for caller in DIALECTS {
        for stream in [false, true] {
            let failing = provider(Dialect::OpenAi)
                .with_faults(FaultPlan::always(Fault::Error(ErrorKind::Overloaded)))
                .build();
            let rig = Rig::builder()
                .provider_with(failing, "models = { \"*\" = \"gpt-4o\" }")
                .provider_with(
                    provider(Dialect::Anthropic).respond(|_| Some(rich_answer())).build(),
                    "models = { \"*\" = \"claude-sonnet-4-5\" }",
                )
                .config("[retry]\nretries = 1\nbase_ms = 1\ncap_ms = 2\n")
                .start()
                .await;
            let request = ask(caller, "anything", stream).header("x-request-id", "mine-1:2.3_4");
            let reply = request.send(rig.addr).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            assert_eq!(reply.header("x-request-id"), Some("mine-1:2.3_4"));
            assert_eq!(
                reply.header("x-steadfast-target"),
                Some("anthropic/claude-sonnet-4-5#provider")
            );
            rig.assert_attempts(&reply, 0, &format!("{caller}, stream {stream}"));
            assert!(rig.asked() >= 2);
            let recovery = reply.header("x-steadfast-recovery").unwrap();
            assert!(recovery.contains("failover") && recovery.contains("overloaded"), "{recovery}");
            if stream {
                assert_eq!(reply.header("cache-control"), Some("no-cache"));
                assert_eq!(reply.header("x-accel-buffering"), Some("no"));
            }
            // An unsafe id is replaced.
            let reply = ask(caller, "anything", stream)
                .header("x-request-id", "a b<c>")
                .send(rig.addr)
                .await;
            assert!(reply.header("x-request-id").unwrap().starts_with("req_"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callers_own_limits_are_obeyed() {
    let plan = FaultPlan::always(Fault::Error(ErrorKind::ServerError));
    let sim = provider(Dialect::OpenAi).with_faults(plan).build();
    let rig = Rig::builder()
        .provider(sim)
        .config("[retry]\nretries = 5\nbase_ms = 1\ncap_ms = 2\n[cooldown]\nserver_error = 0\n")
        .start()
        .await;
    let request = ask(Dialect::OpenAi, "gpt-4o", false).header("x-steadfast-max-attempts", "2");
    let reply = request.send(rig.addr).await;
    refusal(Dialect::OpenAi, 502, &reply);
    rig.assert_attempts(&reply, 0, "at most two");
    assert_eq!(rig.seen().len(), 2);

    let rig =
        Rig::of(provider(Dialect::OpenAi).with_faults(FaultPlan::always(Fault::Hang)).build())
            .await;
    let request = ask(Dialect::OpenAi, "gpt-4o", true).header("x-steadfast-timeout-ms", "100");
    let reply = request.send(rig.addr).await;
    refusal(Dialect::OpenAi, 504, &reply);
    assert_eq!(reply.header("x-steadfast-reason"), Some("timeout"));
    rig.assert_attempts(&reply, 0, "cut off by a limit");
    rig.assert_all_attempts("cut off by a limit").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_limit_has_the_retry_delay_and_whether_the_sdk_should_retry() {
    for (caller, speaks) in pairs() {
        let case = format!("{caller} <- {speaks}");
        let plan = FaultPlan::always(Fault::rate_limit(RateLimit::after("40")));
        let rig = Rig::builder()
            .provider(provider(speaks).with_faults(plan).build())
            .config("[retry]\nmax_wait_ms = 1000\n[failover]\nwhen_exhausted = \"fail\"\nrest_after = 1\n")
            .start()
            .await;
        let wait = |reply: &Reply| {
            let seconds: u64 = reply.header("retry-after").unwrap().parse().unwrap();
            let millis: u64 = reply.header("retry-after-ms").unwrap().parse().unwrap();
            assert_eq!(seconds, millis.div_ceil(1000), "{case}: rounded up");
            seconds
        };
        let reply = ask(caller, model(speaks), true).send(rig.addr).await;
        refusal(caller, 429, &reply);
        assert!((20..=40).contains(&wait(&reply)), "{case}: {}", wait(&reply));
        assert_eq!(reply.header("x-should-retry"), Some("false"), "{case}: it was tried here");
        rig.assert_attempts(&reply, 0, &case);
        let asked = rig.seen().len();

        // During the cooldown the provider is not called, and the caller's SDK should retry.
        let reply = ask(caller, model(speaks), false).send(rig.addr).await;
        refusal(caller, 429, &reply);
        assert!((20..=40).contains(&wait(&reply)), "{case}");
        rig.assert_attempts(&reply, asked, &case);
        assert_eq!(reply.header("x-should-retry"), Some("true"), "{case}");
        assert_eq!(rig.seen().len(), asked, "{case}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_with_slashes_and_dots_reaches_no_other_path() {
    let rig = open_rig(Dialect::Gemini).await;
    for name in ["tuned/../../admin", "a%2Fb", "models%2Fx"] {
        let reply = HttpRequest::post(
            path(Dialect::Gemini, name, false),
            question(Dialect::Gemini, name, false).to_string(),
        )
        .send(rig.addr)
        .await;
        assert_eq!(reply.status, 404, "{name}: {}", reply.text());
        error_message(Dialect::Gemini, &reply.json());
    }
    let good = ask(Dialect::Gemini, model(Dialect::Gemini), false).send(rig.addr).await;
    assert!(!WireAnswer::whole(Dialect::Gemini, &good.body).text.is_empty());
}
