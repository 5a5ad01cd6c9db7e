//! Vertex AI around the dialects: projects and locations, tokens, envelopes, Google's errors.

#![cfg(feature = "clouds")]
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use bytes::Bytes;
use common::{Read, is_terminated, question, send, streamed_text};
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use steadfast_sim::{
    Answer, Dialect, ErrorKind, Fault, FaultPlan, How, KeyLimits, Model, RateLimit, SimPlatform,
    SimProvider, SimProviderBuilder,
};

const TOKEN: &str = "ya29.token-0123456789";
const SITE: &str = "projects/my-project/locations/us-east5";
const CLAUDE: &str = "claude-sonnet-4-5@20250929";

fn on(dialect: Dialect) -> SimProviderBuilder {
    SimProvider::builder(dialect)
        .on(SimPlatform::vertex("my-project", "us-east5"))
        .with_model(Model::new(CLAUDE, 200_000, 64_000))
        .keys([TOKEN])
}

fn path(dialect: Dialect, stream: bool) -> String {
    let rest = match (dialect, stream) {
        (Dialect::Gemini, false) => "publishers/google/models/gemini-2.5-pro:generateContent",
        (Dialect::Gemini, true) => {
            "publishers/google/models/gemini-2.5-pro:streamGenerateContent?alt=sse"
        }
        (Dialect::Anthropic, false) => {
            "publishers/anthropic/models/claude-sonnet-4-5@20250929:rawPredict"
        }
        (Dialect::Anthropic, true) => {
            "publishers/anthropic/models/claude-sonnet-4-5%4020250929:streamRawPredict"
        }
        (Dialect::OpenAi, _) => "endpoints/openapi/chat/completions",
        (Dialect::Responses, _) => "publishers/openai/v1/responses",
    };
    let version = if dialect == Dialect::Gemini { "v1beta1" } else { "v1" };
    format!("/{version}/{SITE}/{rest}")
}

fn body(dialect: Dialect, stream: bool) -> Value {
    let mut body = question(dialect, "hello", stream);
    if dialect == Dialect::Anthropic {
        let fields = body.as_object_mut().unwrap();
        fields.shift_remove("model");
        fields.insert("anthropic_version".into(), "vertex-2023-10-16".into());
    }
    body
}

fn request(path: &str, token: &str, body: &Value) -> Request<Full<Bytes>> {
    Request::post(format!("http://sim{path}"))
        .header("authorization", format!("Bearer {token}"))
        .header("anthropic-beta", "context-1m-2025-08-07")
        .body(Full::new(body.to_string().into()))
        .unwrap()
}

async fn post(provider: &SimProvider, path: &str, body: &Value) -> Read {
    send(provider, request(path, TOKEN, body)).await.unwrap()
}

/// Google's error, in a list or not.
fn google(read: &Read) -> Value {
    let body = read.json();
    let error = if body.is_array() { &body[0]["error"] } else { &body["error"] };
    assert_eq!(error["code"], read.status, "{body}");
    error.clone()
}

#[tokio::test]
async fn its_addresses_are_accepted_with_a_token() {
    for dialect in Dialect::ALL {
        let provider = on(dialect).build();
        for stream in [false, true] {
            let path = path(dialect, stream);
            let sent = body(dialect, stream);
            let read = post(&provider, &path, &sent).await;
            assert_eq!(read.status, 200, "{path}: {}", read.text());
            if stream {
                assert!(is_terminated(dialect, &read.text()));
                assert!(!streamed_text(dialect, &read.text()).is_empty());
            }
            let entry = provider.journal().last().unwrap();
            assert_eq!(
                (entry.path.as_str(), entry.stream),
                (path.split('?').next().unwrap(), stream)
            );
            assert_eq!(entry.body, sent.to_string());
            assert!(!format!("{:?}", entry.headers).contains(TOKEN));
            if dialect == Dialect::Anthropic {
                let json = entry.json.unwrap();
                assert_eq!(
                    (&json["model"], &json["anthropic_version"]),
                    (&json!(CLAUDE), &Value::Null)
                );
                let id = if stream { read.text() } else { read.json().to_string() };
                assert!(id.contains("\"msg_vrtx_01"), "{id}");
                assert!(read.header("request-id").unwrap().starts_with("req_vrtx_011C"));
            }
            assert_eq!(read.header("anthropic-organization-id"), None);
            assert_eq!(read.header("openai-organization"), None);
        }
    }
    let provider = on(Dialect::Gemini).build();
    let stable = path(Dialect::Gemini, false).replace("v1beta1", "v1");
    assert_eq!(post(&provider, &stable, &body(Dialect::Gemini, false)).await.status, 200);
}

#[tokio::test]
async fn a_call_of_a_tool_has_an_id_of_the_platform() {
    let provider =
        on(Dialect::Anthropic).with_script([Answer::tool_call("read", r#"{"a":1}"#)]).build();
    let (path, body) = (path(Dialect::Anthropic, false), body(Dialect::Anthropic, false));
    let read = post(&provider, &path, &body).await.json();
    assert!(read["content"][0]["id"].as_str().unwrap().starts_with("toolu_vrtx_01"), "{read}");
}

#[tokio::test]
async fn other_addresses_are_not_found() {
    let rows = [
        (Dialect::Gemini, "/v1beta/models/gemini-2.5-pro:generateContent".to_owned()),
        (Dialect::Gemini, path(Dialect::Gemini, false).replace("v1beta1", "v2")),
        (Dialect::Gemini, path(Dialect::Gemini, false).replace("google", "anthropic")),
        (Dialect::Gemini, path(Dialect::Gemini, false).replace("generateContent", "predict")),
        (Dialect::Anthropic, "/v1/messages".to_owned()),
        (Dialect::Anthropic, path(Dialect::Anthropic, false).replace("/v1/", "/v1beta1/")),
        (Dialect::Anthropic, path(Dialect::Anthropic, false).replace(":rawPredict", "")),
        (Dialect::OpenAi, "/v1/chat/completions".to_owned()),
        (Dialect::OpenAi, path(Dialect::OpenAi, false).replace("chat/completions", "embeddings")),
        (Dialect::Responses, "/v1/responses".to_owned()),
    ];
    for (dialect, path) in rows {
        let provider = on(dialect).build();
        let read = post(&provider, &path, &body(dialect, false)).await;
        assert_eq!((read.status, &google(&read)["status"]), (404, &json!("NOT_FOUND")), "{path}");
    }
}

#[tokio::test]
async fn only_good_tokens_are_accepted_and_they_expire() {
    for dialect in Dialect::ALL {
        let provider = on(dialect).build();
        let (path, body) = (path(dialect, false), body(dialect, false));
        let read = send(&provider, request(&path, "ya29.wrong", &body)).await.unwrap();
        let error = google(&read);
        assert_eq!((read.status, &error["status"]), (401, &json!("UNAUTHENTICATED")));
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(
            "Request had invalid authentication credentials. Expected OAuth 2 access token, login"
        ));
        assert_eq!(error["details"][0]["metadata"]["service"], "aiplatform.googleapis.com");
        assert_eq!(read.json().is_array(), dialect == Dialect::OpenAi);

        let unsigned = |name: &str, value: &str| {
            let request = Request::post(format!("http://sim{path}")).header(name, value);
            send(&provider, request.body(Full::new(body.to_string().into())).unwrap())
        };
        let read = google(&unsigned("x-test", "none").await.unwrap());
        assert_eq!(read["details"][0]["reason"], "CREDENTIALS_MISSING");
        let read = google(&unsigned("x-goog-api-key", TOKEN).await.unwrap());
        assert!(read["message"].as_str().unwrap().starts_with("API keys are not supported"));

        provider.set_keys(["ya29.next"]);
        let read = send(&provider, request(&path, TOKEN, &body)).await.unwrap();
        assert_eq!(read.status, 401);
        let read = send(&provider, request(&path, "ya29.next", &body)).await.unwrap();
        assert_eq!(read.status, 200);
    }
}

#[tokio::test]
async fn another_project_is_forbidden_and_another_location_has_no_model() {
    for dialect in Dialect::ALL {
        let provider = on(dialect).build();
        let other = path(dialect, false).replace("my-project", "another");
        let error = google(&post(&provider, &other, &body(dialect, false)).await);
        assert_eq!(error["status"], "PERMISSION_DENIED");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.starts_with("Permission 'aiplatform.endpoints.predict' denied on resource")
        );
        assert!(message.contains("/projects/another/"));

        let other = path(dialect, false).replace("us-east5", "moon1");
        let error = google(&post(&provider, &other, &body(dialect, false)).await);
        assert_eq!(error["status"], "NOT_FOUND");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("locations/moon1/publishers/"), "{message}");
    }
}

#[tokio::test]
async fn a_model_that_is_not_there_is_not_found() {
    let gone = [
        (
            Dialect::Gemini,
            path(Dialect::Gemini, false).replace("2.5-pro", "0.1"),
            "google/models/gemini-0.1",
        ),
        (
            Dialect::Anthropic,
            path(Dialect::Anthropic, false).replace("sonnet", "haiku"),
            "anthropic/models/claude-haiku-4-5@20250929",
        ),
        (Dialect::OpenAi, path(Dialect::OpenAi, false), "meta/models/llama"),
    ];
    for (dialect, path, name) in gone {
        let provider = on(dialect).build();
        let mut body = body(dialect, false);
        if dialect == Dialect::OpenAi {
            body["model"] = "meta/llama".into();
        }
        let error = google(&post(&provider, &path, &body).await);
        assert_eq!(error["status"], "NOT_FOUND");
        let words = format!("Publisher Model `{SITE}/publishers/{name}` was not found or your");
        assert!(error["message"].as_str().unwrap().starts_with(&words), "{error}");
    }
}

#[tokio::test]
async fn the_envelope_of_messages_is_strict() {
    let provider = on(Dialect::Anthropic).build();
    let (whole, stream) = (path(Dialect::Anthropic, false), path(Dialect::Anthropic, true));
    let with = |field: &str, value: Value| {
        let mut body = body(Dialect::Anthropic, false);
        body[field] = value;
        body
    };
    for (path, body, message) in [
        (&whole, with("anthropic_version", Value::Null), "anthropic_version: Field required"),
        (
            &whole,
            with("anthropic_version", "2031-01-01".into()),
            "anthropic_version: Input should be 'vertex-2023-10-16'",
        ),
        (&whole, with("model", CLAUDE.into()), "model: Extra inputs are not permitted"),
        (&whole, with("max_tokens", Value::Null), "max_tokens: Field required"),
    ] {
        let read = post(&provider, path, &body).await;
        assert_eq!((read.status, read.error_message().as_str()), (400, message));
        assert_eq!(read.json()["type"], "error", "as the vendor writes it");
    }
    for (path, streams) in [(&whole, true), (&stream, false)] {
        let read = post(&provider, path, &with("stream", streams.into())).await;
        assert_eq!(google(&read)["status"], "INVALID_ARGUMENT");
    }
    let read = post(&provider, &stream, &body(Dialect::Anthropic, false)).await;
    assert_eq!(google(&read)["status"], "INVALID_ARGUMENT", "no `stream` at all");
    let newest = with("anthropic_version", "2026-10-21".into());
    assert_eq!(post(&provider, &whole, &newest).await.status, 200);
    let broken = Request::post(format!("http://sim{whole}"))
        .header("authorization", format!("Bearer {TOKEN}"))
        .body(Full::new("{\"a".into()))
        .unwrap();
    let read = send(&provider, broken).await.unwrap();
    assert!(
        google(&read)["message"].as_str().unwrap().starts_with("Invalid JSON payload received")
    );
}

#[tokio::test]
async fn tokens_of_messages_are_counted_with_their_model() {
    let provider = on(Dialect::Anthropic).build();
    let path = format!("/v1/{SITE}/publishers/anthropic/models/count-tokens:rawPredict");
    let mut body = body(Dialect::Anthropic, false);
    body["model"] = CLAUDE.into();
    let read = post(&provider, &path, &body).await;
    assert_eq!((read.status, read.json()), (200, json!({"input_tokens": 6})));
    body.as_object_mut().unwrap().shift_remove("model");
    let read = post(&provider, &path, &body).await;
    assert_eq!((read.status, read.error_message().as_str()), (400, "model: Field required"));
}

#[tokio::test]
async fn gemini_is_stricter_than_at_the_vendor() {
    let provider = on(Dialect::Gemini).build();
    let count = path(Dialect::Gemini, false).replace("generateContent", "countTokens");
    let plain = body(Dialect::Gemini, false);
    let read = post(&provider, &count, &plain).await;
    assert_eq!((read.status, &read.json()["totalTokens"]), (200, &json!(6)));
    for field in ["generateContentRequest", "safetySettings"] {
        let mut body = plain.clone();
        body[field] = json!({ "contents": plain["contents"] });
        let read = post(&provider, &count, &body).await;
        let words = format!("Invalid JSON payload received. Unknown name \"{field}\"");
        assert!(read.error_message().starts_with(&words), "{}", read.text());
    }
    let nobody = json!({"contents": [{"parts": [{"text": "hello"}]}]});
    for path in [&count, &path(Dialect::Gemini, false)] {
        let read = post(&provider, path, &nobody).await;
        assert_eq!(read.status, 400);
        assert!(read.error_message().contains("Please use a valid role: user, model."));
    }
}

#[tokio::test]
async fn what_the_model_refuses_is_in_its_own_shape() {
    let provider = on(Dialect::OpenAi).build();
    let read = post(&provider, &path(Dialect::OpenAi, false), &json!({"model": "gpt-4o"})).await;
    assert_eq!(google(&read)["status"], "INVALID_ARGUMENT");
    assert!(read.json().is_array());
    let provider = on(Dialect::Responses).build();
    let read = post(&provider, &path(Dialect::Responses, false), &json!({"model": "gpt-4o"})).await;
    assert_eq!(read.json()["error"]["type"], "invalid_request_error");
}

#[tokio::test]
async fn errors_are_those_of_the_platform_or_of_the_model() {
    let limit = || ErrorKind::RateLimit(RateLimit::default());
    for (dialect, kind, status, name) in [
        (Dialect::Gemini, limit(), 429, "RESOURCE_EXHAUSTED"),
        (Dialect::Anthropic, limit(), 429, "RESOURCE_EXHAUSTED"),
        (Dialect::Anthropic, ErrorKind::InsufficientQuota, 403, "PERMISSION_DENIED"),
        (Dialect::Anthropic, ErrorKind::Auth, 401, "UNAUTHENTICATED"),
        (Dialect::Anthropic, ErrorKind::Permission, 403, "PERMISSION_DENIED"),
        (Dialect::Anthropic, ErrorKind::ModelNotFound, 404, "NOT_FOUND"),
        (Dialect::Anthropic, ErrorKind::GatewayTimeout, 504, "DEADLINE_EXCEEDED"),
        (Dialect::OpenAi, ErrorKind::Overloaded, 503, "UNAVAILABLE"),
        (Dialect::OpenAi, ErrorKind::ServerError, 500, "INTERNAL"),
        (Dialect::Gemini, ErrorKind::Overloaded, 503, "UNAVAILABLE"),
    ] {
        let plan = FaultPlan::always(Fault::Error(kind.clone()));
        let provider = on(dialect).with_faults(plan).build();
        let read = post(&provider, &path(dialect, false), &body(dialect, false)).await;
        assert_eq!((read.status, &google(&read)["status"]), (status, &json!(name)), "{kind:?}");
    }
    for (kind, status, name) in [
        (ErrorKind::Overloaded, 529, "overloaded_error"),
        (ErrorKind::ServerError, 500, "api_error"),
        (ErrorKind::ContextOverflow, 400, "invalid_request_error"),
    ] {
        let plan = FaultPlan::always(Fault::Error(kind));
        let provider = on(Dialect::Anthropic).with_faults(plan).build();
        let read =
            post(&provider, &path(Dialect::Anthropic, false), &body(Dialect::Anthropic, false))
                .await;
        assert_eq!((read.status, &read.json()["error"]["type"]), (status, &json!(name)));
        assert!(read.json()["request_id"].as_str().unwrap().starts_with("req_vrtx_"));
    }
}

/// In a stream the model speaks, whatever the error.
#[tokio::test]
async fn an_error_in_a_stream_is_the_models() {
    for dialect in Dialect::ALL {
        let how = How::ErrorEvent(ErrorKind::RateLimit(RateLimit::default()));
        let plan = FaultPlan::always(Fault::break_after(2, how));
        let provider = on(dialect).with_faults(plan).build();
        let text = post(&provider, &path(dialect, true), &body(dialect, true)).await.text();
        assert!(!is_terminated(dialect, &text));
        let words = match dialect {
            Dialect::Anthropic => "rate_limit_error",
            Dialect::Gemini => "Resource exhausted. Please try again later.",
            _ => "rate_limit_exceeded",
        };
        assert!(text.contains(words), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_a_quota() {
    let limits = KeyLimits { requests: Some(1), tokens: None };
    let provider = on(Dialect::Anthropic).with_limits(limits).build();
    let (path, body) = (path(Dialect::Anthropic, false), body(Dialect::Anthropic, false));
    assert_eq!(post(&provider, &path, &body).await.status, 200);
    let read = post(&provider, &path, &body).await;
    let error = google(&read);
    assert_eq!((read.status, read.header("retry-after")), (429, None));
    assert!(error["message"].as_str().unwrap().contains("with base model: anthropic-claude-"));
}

/// No path or body is the end of it.
#[tokio::test]
async fn nothing_that_is_sent_makes_it_panic() {
    for dialect in Dialect::ALL {
        let provider = on(dialect).build();
        let usual = path(dialect, true);
        for path in [
            usual.clone(),
            usual.replace("my-project", "%ff"),
            usual.replace("models/", "models/%ff"),
            usual.replace("models/", "models/::"),
            "/v1/projects//locations//publishers/".to_owned(),
            "/".to_owned(),
        ] {
            for body in
                ["", "null", "[]", "{\"anthropic_version\":{}}", "{\"contents\":[1]}", "\u{0}"]
            {
                let mut request = request(&path, TOKEN, &Value::Null);
                *request.body_mut() = Full::new(Bytes::from(body));
                let status = send(&provider, request).await.unwrap().status;
                assert!((400..500).contains(&status), "{path} {body}: {status}");
            }
        }
    }
}
