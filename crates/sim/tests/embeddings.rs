//! Embeddings over the wire of both dialects that have them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use base64::Engine as _;
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use steadfast_sim::{
    Break, Dialect, ErrorKind, Fault, FaultPlan, How, PlanRule, SimProvider, embedding,
};
use tower::ServiceExt;

async fn ask(provider: &SimProvider, path: &str, body: &Value) -> (u16, Vec<u8>) {
    let request = Request::post(path)
        .header("authorization", "Bearer k")
        .header("x-goog-api-key", "k")
        .body(body.to_string())
        .unwrap();
    let response = provider.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    match response.into_body().collect().await {
        Ok(body) => (status, body.to_bytes().to_vec()),
        Err(_) => (0, Vec::new()),
    }
}

async fn json_of(provider: &SimProvider, path: &str, body: Value) -> (u16, Value) {
    let (status, bytes) = ask(provider, path, &body).await;
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

fn floats(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

const SMALL: &str = "text-embedding-3-small";
const GEMINI: &str = "gemini-embedding-001";

#[tokio::test(start_paused = true)]
async fn openai_answers_texts_and_tokens_as_numbers_and_as_base64() {
    let provider = SimProvider::new(Dialect::OpenAi);
    let embed = |body: Value| json_of(&provider, "/v1/embeddings", body);
    let (status, answer) =
        embed(json!({"model": SMALL, "input": ["one", "two"], "dimensions": 5})).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["usage"], json!({"prompt_tokens": 2, "total_tokens": 2}));
    for (at, text) in ["one", "two"].into_iter().enumerate() {
        assert_eq!(answer["data"][at]["index"], at);
        assert_eq!(floats(&answer["data"][at]["embedding"]), embedding(SMALL, text, 5));
    }
    let (_, answer) =
        embed(json!({"model": SMALL, "input": [[1, 22], [3]], "encoding_format": "base64"})).await;
    let text = answer["data"][0]["embedding"].as_str().unwrap();
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
    let wanted: Vec<u8> =
        embedding(SMALL, "1,22", 1_536).into_iter().flat_map(f32::to_le_bytes).collect();
    assert_eq!(bytes, wanted);
    for (body, says) in [
        (json!({"model": SMALL, "input": ""}), "'$.input' is invalid"),
        (json!({"model": SMALL, "input": ["a", ""]}), "'$.input' is invalid"),
        (json!({"model": SMALL, "input": vec!["a"; 2_049]}), "array too long"),
        (json!({"model": SMALL, "input": "a", "dimensions": 1_537}), "'dimensions'"),
        (json!({"model": SMALL, "input": "x".repeat(40_000)}), "maximum context length"),
        (json!({"model": "gpt-4o", "input": "a"}), "does not exist"),
        (json!({"input": "a"}), "model parameter"),
    ] {
        let (status, answer) = embed(body).await;
        let message = answer["error"]["message"].as_str().unwrap().to_owned();
        assert!(status >= 400 && message.contains(says), "{says}: {answer}");
    }
    let chat = json!({"model": SMALL, "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(json_of(&provider, "/v1/chat/completions", chat).await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn gemini_answers_one_and_many() {
    let provider = SimProvider::new(Dialect::Gemini);
    let part = |text: &str| {
        json!({"model": format!("models/{GEMINI}"), "outputDimensionality": 3,
        "content": {"parts": [{"text": text}]}})
    };
    let one = format!("/v1beta/models/{GEMINI}:embedContent");
    let (status, answer) = json_of(&provider, &one, part("one")).await;
    assert_eq!(
        (status, floats(&answer["embedding"]["values"])),
        (200, embedding(GEMINI, "one", 3))
    );
    let many = format!("/v1beta/models/{GEMINI}:batchEmbedContents");
    let (_, answer) = json_of(&provider, &many, json!({"requests": [part("b"), part("a")]})).await;
    assert_eq!(floats(&answer["embeddings"][0]["values"]), embedding(GEMINI, "b", 3));
    assert_eq!(floats(&answer["embeddings"][1]["values"]), embedding(GEMINI, "a", 3));
    let mut other = part("a");
    other["model"] = json!("models/other");
    assert_eq!(json_of(&provider, &many, json!({"requests": [other]})).await.0, 400);
}

#[tokio::test(start_paused = true)]
async fn a_plan_has_its_faults_for_embeddings_too_and_counts_have_their_own() {
    let cut = Fault::Break(Break { how: How::Close, after_events: None, after_bytes: Some(40) });
    let provider = SimProvider::builder(Dialect::OpenAi)
        .with_faults(
            FaultPlan::first(1, Fault::Error(ErrorKind::ServerError))
                .rule(PlanRule::new(cut).nth(2)),
        )
        .build();
    let body = json!({"model": SMALL, "input": "a"});
    for wanted in [500, 0, 200] {
        assert_eq!(ask(&provider, "/v1/embeddings", &body).await.0, wanted);
    }
    let provider = SimProvider::new(Dialect::Gemini);
    let path = "/v1beta/models/gemini-2.5-pro:countTokens";
    let body = json!({"contents": [{"parts": [{"text": "12345678"}]}]});
    provider.set_count_fault(Some(Fault::Error(ErrorKind::ModelNotFound)));
    assert_eq!(ask(&provider, path, &body).await.0, 404);
    provider.set_count_fault(None);
    assert_eq!(json_of(&provider, path, body).await.1["totalTokens"], 6);
}
