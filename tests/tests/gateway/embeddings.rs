//! Embeddings through the gateway: order and values exact, whatever fails, and never two models mixed.

use base64::Engine as _;
use serde_json::{Value, json};
use steadfast::sim::{
    Break, Dialect, ErrorKind, Fault, FaultPlan, How, Model, PlanRule, RawResponse,
    SimProviderBuilder, embedding,
};
use steadfast_tests::gateway::{
    Rig, ask,
    http::{HttpRequest, Reply},
    model, provider,
};

const SMALL: &str = "text-embedding-3-small";
const GEMINI: &str = "gemini-embedding-001";

/// Both dialects that have embeddings, and a model of each.
const BOTH: [(Dialect, &str); 2] = [(Dialect::OpenAi, SMALL), (Dialect::Gemini, GEMINI)];

fn texts(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("text {} of {count}, na\u{ef}ve \u{1f980}", n * 7 % 4_096)).collect()
}

/// Vectors of eight numbers, so that large batches are quick.
fn embed(dialect: Dialect, model: &str, texts: &[String]) -> HttpRequest {
    if dialect == Dialect::OpenAi {
        let body = json!({"model": model, "input": texts, "dimensions": 8, "user": "u"});
        return HttpRequest::post("/v1/embeddings", body.to_string());
    }
    let one = |text: &String| {
        json!({"model": format!("models/{model}"), "outputDimensionality": 8,
            "content": {"parts": [{"text": text}]}, "taskType": "RETRIEVAL_QUERY"})
    };
    let body = json!({"requests": texts.iter().map(one).collect::<Vec<_>>()});
    let path = format!("/v1beta/models/{model}:batchEmbedContents");
    HttpRequest::post(path, body.to_string())
}

fn vectors(dialect: Dialect, reply: &Reply) -> Vec<Vec<f32>> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let body = reply.json();
    let (list, field) = match dialect {
        Dialect::OpenAi => ("data", "embedding"),
        _ => ("embeddings", "values"),
    };
    let all = body[list].as_array().unwrap();
    if dialect == Dialect::OpenAi {
        assert!(all.iter().enumerate().all(|(at, one)| one["index"] == at), "in order");
    }
    all.iter().map(|one| serde_json::from_value(one[field].clone()).unwrap()).collect()
}

fn exact(model: &str, texts: &[String]) -> Vec<Vec<f32>> {
    texts.iter().map(|text| embedding(model, text, 8)).collect()
}

/// Without a pause between attempts.
const QUICK: &str = "[retry]\nbase_ms = 1\ncap_ms = 1\n";

async fn rig(providers: impl IntoIterator<Item = (SimProviderBuilder, &str)>) -> Rig {
    let mut rig = Rig::builder().config(QUICK);
    for (provider, lines) in providers {
        rig = rig.provider_with(provider.build(), lines);
    }
    rig.start().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_any_size_are_exact_and_go_as_they_came() {
    for (dialect, name) in BOTH {
        let rig = rig([(provider(dialect), "")]).await;
        for count in [1, 2, 3, 100, 2_048] {
            let texts = texts(count);
            let ask = embed(dialect, name, &texts);
            let reply = ask.send(rig.addr).await;
            assert_eq!(vectors(dialect, &reply), exact(name, &texts), "{dialect}, {count}");
            assert_eq!(rig.last().body, ask.sent(), "untouched");
            assert!(
                reply.header("x-steadfast-target").unwrap().ends_with(&format!("/{name}#provider"))
            );
            assert_eq!(reply.header("x-steadfast-attempts"), Some("1"));
            assert!(reply.header("x-request-id").is_some());
        }
        let metrics = HttpRequest::get("/metrics").send(rig.addr).await;
        let tokens =
            format!("steadfast_tokens_total{{provider=\"{dialect}\",direction=\"input\"}}");
        assert!(metrics.text().contains(&tokens), "{}", metrics.text());
        assert!(metrics.text().contains("outcome=\"ok\"} 5"), "{}", metrics.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_text_tokens_and_base64_pass() {
    let rig = rig([(provider(Dialect::OpenAi), "")]).await;
    let body = json!({"model": SMALL, "input": [[1, 2], [3]], "encoding_format": "base64", "x": 1});
    let post = HttpRequest::post("/v1/embeddings", body.to_string());
    let reply = post.send(rig.addr).await;
    assert_eq!(rig.last().body, body.to_string());
    let text = reply.json()["data"][0]["embedding"].as_str().unwrap().to_owned();
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
    let wanted = embedding(SMALL, "1,2", 1_536).into_iter().flat_map(f32::to_le_bytes);
    assert_eq!(bytes, wanted.collect::<Vec<u8>>());

    let rig = self::rig([(provider(Dialect::Gemini), "")]).await;
    let body = json!({"content": {"parts": [{"text": "one"}]}, "outputDimensionality": 4});
    let path = format!("/v1beta/models/{GEMINI}:embedContent");
    let reply = HttpRequest::post(path, body.to_string()).send(rig.addr).await;
    let values: Vec<f32> =
        serde_json::from_value(reply.json()["embedding"]["values"].clone()).unwrap();
    assert_eq!(values, embedding(GEMINI, "one", 4));
}

/// What a caller never sees: each fault in turn is met by the first attempts, and the answer is exact.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_are_not_seen() {
    let cut = |how| Fault::Break(Break { how, after_events: None, after_bytes: Some(300) });
    let raw = |body: Value| {
        Fault::Status(RawResponse {
            status: 200,
            headers: Default::default(),
            body: body.to_string(),
        })
    };
    for (dialect, name) in BOTH {
        let texts = texts(64);
        let short = match dialect {
            Dialect::OpenAi => {
                json!({"object": "list", "data": [{"index": 0, "embedding": [0.5]}]})
            }
            _ => json!({"embeddings": [{"values": [0.5]}]}),
        };
        for fault in [
            Fault::Error(ErrorKind::ServerError),
            Fault::Error(ErrorKind::Overloaded),
            Fault::ErrorInOk(ErrorKind::ServerError),
            cut(How::Close),
            cut(How::Reset),
            cut(How::TruncatedJson),
            cut(How::MalformedJson),
            Fault::Empty,
            Fault::Reset,
            raw(short),
        ] {
            let plan = FaultPlan::first(1, fault.clone());
            let rig = rig([(provider(dialect).with_faults(plan), "")]).await;
            let reply = embed(dialect, name, &texts).send(rig.addr).await;
            assert_eq!(vectors(dialect, &reply), exact(name, &texts), "{dialect}: {fault:?}");
            assert_eq!(reply.header("x-steadfast-attempts"), Some("2"), "{dialect}: {fault:?}");
            assert_eq!(rig.asked(), 2);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_goes_on_to_the_same_model_elsewhere_and_to_no_other() {
    let limited = || FaultPlan::always(Fault::Error(ErrorKind::Auth));
    let house = |name: &str| {
        let models = [Model::embedding(SMALL, 8_191, 1_536), Model::embedding("nomic", 8_191, 768)];
        provider(Dialect::OpenAi).with_name(name).with_models(models)
    };
    // `b` would be sent another model for chats, and calls this one by another name; `c` has another one.
    let azure = Model::embedding("our-small", 8_191, 1_536);
    let rig = rig([
        (house("a").with_faults(limited()), "models = { '*' = 'gpt-4o' }"),
        (provider(Dialect::Gemini).with_name("g"), ""),
        (provider(Dialect::Anthropic).with_name("t"), "models = { '*' = 'claude-sonnet-4-5' }"),
        (
            provider(Dialect::OpenAi)
                .with_name("c")
                .with_models([Model::embedding("nomic", 8_191, 768)]),
            "models = { '*' = 'nomic', 'text-*' = 'nomic' }",
        ),
        (
            provider(Dialect::OpenAi).with_name("b").with_model(azure),
            "models = { '*' = 'gpt-4o', 'text-embedding-3-small' = 'our-small' }",
        ),
    ])
    .await;
    let texts = texts(5);
    for _ in 0..3 {
        let reply = embed(Dialect::OpenAi, SMALL, &texts).send(rig.addr).await;
        assert_eq!(vectors(Dialect::OpenAi, &reply), exact("our-small", &texts));
        assert!(reply.header("x-steadfast-target").unwrap().starts_with("b/our-small"));
    }
    let asked = |at: usize| rig.sims[at].provider().journal().entries();
    let models = |at: usize| asked(at).into_iter().map(|entry| entry.model).collect::<Vec<_>>();
    assert!(models(0).iter().all(|model| model == SMALL), "{:?}", models(0));
    assert!(models(3).iter().all(|model| model == SMALL), "it has not got it: {:?}", models(3));
    assert_eq!(models(4), ["our-small"; 3]);
    assert_eq!([1, 2].map(|at| asked(at).len()), [0, 0], "of another dialect");
    assert!(asked(0).len() < 3 && asked(3).len() < 3, "what failed cools");
    // But for the model it is sent as it came.
    let mut sent = asked(4)[0].json.clone().unwrap();
    sent["model"] = json!(SMALL);
    let came: Value = serde_json::from_slice(embed(Dialect::OpenAi, SMALL, &texts).sent()).unwrap();
    assert_eq!(sent, came);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mapped_model_is_renamed_in_each_part_of_a_batch() {
    let own = Model::embedding("tuned", 2_048, 3_072);
    let lines = format!("models = {{ '{GEMINI}' = 'tuned' }}");
    let rig = rig([(provider(Dialect::Gemini).with_model(own), &*lines)]).await;
    let texts = texts(3);
    let reply = embed(Dialect::Gemini, GEMINI, &texts).send(rig.addr).await;
    assert_eq!(vectors(Dialect::Gemini, &reply), exact("tuned", &texts));
    let body = rig.last().json.unwrap();
    assert!(
        body["requests"].as_array().unwrap().iter().all(|one| one["taskType"] == "RETRIEVAL_QUERY")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vectors_that_came_in_another_order_are_sorted() {
    let data = |order: [usize; 3]| {
        let one =
            |at: usize| json!({"object": "embedding", "index": at, "embedding": [at as f32, 0.5]});
        json!({"object": "list", "model": "m", "data": order.map(one), "usage": {"prompt_tokens": 3}, "x": 1})
    };
    let answer = |body: Value| {
        Fault::Status(RawResponse {
            status: 200,
            headers: Default::default(),
            body: body.to_string(),
        })
    };
    let plan = FaultPlan::none()
        .rule(PlanRule::new(answer(data([2, 0, 1]))).nth(1))
        // Two vectors of one input are none of another.
        .rule(PlanRule::new(answer(data([0, 0, 1]))).nth(2));
    let rig = rig([(provider(Dialect::OpenAi).with_faults(plan), "")]).await;
    let texts = texts(3);
    let reply = embed(Dialect::OpenAi, SMALL, &texts).send(rig.addr).await;
    assert_eq!(reply.json(), data([0, 1, 2]));
    let reply = embed(Dialect::OpenAi, SMALL, &texts).send(rig.addr).await;
    assert_eq!(vectors(Dialect::OpenAi, &reply), exact(SMALL, &texts), "asked again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_is_reported_in_the_callers_dialect() {
    let rig = rig([(provider(Dialect::OpenAi), "")]).await;
    // The provider's own words.
    let empty = embed(Dialect::OpenAi, SMALL, &[String::new()]).send(rig.addr).await;
    assert_eq!(empty.status, 400);
    let message = empty.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(Some(message), rig.last().refused);
    // The gateway's.
    let before = rig.asked();
    for (body, says) in [
        ("{", "JSON"),
        (r#"{"model":"m"}"#, "input: is missing"),
        (r#"{"input":"x"}"#, "model: is missing"),
        (r#"{"model":"m","input":[true]}"#, "input[0]"),
    ] {
        let reply = HttpRequest::post("/v1/embeddings", body).send(rig.addr).await;
        assert_eq!(reply.status, 400, "{body}");
        assert!(
            reply.json()["error"]["message"].as_str().unwrap().contains(says),
            "{}",
            reply.text()
        );
    }
    let foreign = embed(Dialect::Gemini, GEMINI, &texts(1)).send(rig.addr).await;
    assert_eq!(
        (foreign.status, foreign.json()["error"]["status"].as_str()),
        (404, Some("NOT_FOUND"))
    );
    assert!(foreign.text().contains("dialect alone"), "{}", foreign.text());
    assert_eq!(rig.asked(), before);
    let missing = embed(Dialect::OpenAi, "no-such-model", &texts(1)).send(rig.addr).await;
    assert_eq!(missing.status, 404, "{}", missing.text());
    assert_eq!(missing.header("x-should-retry"), Some("false"));
}

/// A key that is refused for embeddings is not asked for chats, and the other way round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cooldowns_are_shared_with_chats() {
    let rig = rig([
        (
            provider(Dialect::OpenAi)
                .with_name("a")
                .with_faults(FaultPlan::first(1, Fault::Error(ErrorKind::Auth))),
            "",
        ),
        (provider(Dialect::OpenAi).with_name("b"), ""),
    ])
    .await;
    let reply = embed(Dialect::OpenAi, SMALL, &texts(2)).send(rig.addr).await;
    assert!(reply.header("x-steadfast-target").unwrap().starts_with("b/"));
    let chat = ask(Dialect::OpenAi, model(Dialect::OpenAi), false).send(rig.addr).await;
    assert!(chat.header("x-steadfast-target").unwrap().starts_with("b/"), "{}", chat.text());
    assert_eq!(rig.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_they_cost_is_charged() {
    let rig = Rig::builder()
        .config("[spend_limit]\nrecord = true\n")
        .provider(provider(Dialect::OpenAi).build())
        .start()
        .await;
    let texts = texts(10);
    let reply = embed(Dialect::OpenAi, SMALL, &texts).send(rig.addr).await;
    let used = reply.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    let spend = rig.app.gateway().spend().to_string();
    assert!(spend.contains(&format!("\"tokens\":{used}")), "{used}: {spend}");
}
