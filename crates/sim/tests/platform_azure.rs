//! Azure around the dialects: addresses, keys and tokens, versions, deployments, filters.

#![cfg(feature = "clouds")]
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use bytes::Bytes;
use common::{Read, events, is_terminated, model, question, send, streamed_text};
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use steadfast_sim::{
    Dialect, ErrorKind, Fault, FaultPlan, How, KeyLimits, RateLimit, SimPlatform, SimProvider,
    SimProviderBuilder,
};

const KEY: &str = "azure-key-0123456789";
const TOKEN: &str = "entra-token-0123456789";

fn on(dialect: Dialect, platform: SimPlatform) -> SimProviderBuilder {
    SimProvider::builder(dialect).on(platform).keys([KEY, TOKEN])
}

fn dated() -> SimPlatform {
    SimPlatform::azure_version("2024-10-21")
}

fn request(path: &str, headers: &[(&str, &str)], body: &Value) -> Request<Full<Bytes>> {
    let mut request = Request::post(format!("http://sim{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body.to_string().into())).unwrap()
}

async fn ask(provider: &SimProvider, path: &str, headers: &[(&str, &str)], stream: bool) -> Read {
    let body = question(provider.dialect(), "hello", stream);
    send(provider, request(path, headers, &body)).await.unwrap()
}

const CHAT: &str = "/openai/v1/chat/completions";
const DEPLOYED: &str = "/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21";
const VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");

#[tokio::test]
async fn its_addresses_are_accepted_with_a_key_and_with_a_token() {
    let rows = [
        (Dialect::OpenAi, SimPlatform::azure(), CHAT),
        (Dialect::OpenAi, SimPlatform::azure(), "/openai/v1/chat/completions?api-version=preview"),
        (Dialect::OpenAi, dated(), DEPLOYED),
        (Dialect::Responses, SimPlatform::azure(), "/openai/v1/responses"),
        (Dialect::Responses, dated(), "/openai/responses?api-version=2024-10-21"),
        (Dialect::Anthropic, SimPlatform::azure(), "/anthropic/v1/messages"),
        (Dialect::Anthropic, SimPlatform::azure(), "/anthropic/v1/messages?beta=true"),
        (Dialect::Anthropic, dated(), "/anthropic/v1/messages"),
    ];
    for (dialect, platform, path) in rows {
        let provider = on(dialect, platform).build();
        let bearer = format!("Bearer {TOKEN}");
        let mut credentials = vec![("api-key", KEY), ("authorization", &*bearer)];
        if dialect == Dialect::Anthropic {
            credentials.push(("x-api-key", KEY));
        }
        for credential in credentials {
            for stream in [false, true] {
                let read = ask(&provider, path, &[credential, VERSION], stream).await;
                assert_eq!(read.status, 200, "{path} {credential:?}: {}", read.text());
                assert!(read.header("apim-request-id").is_some());
                assert_eq!(read.header("openai-organization"), None);
                let entry = provider.journal().last().unwrap();
                assert_eq!(entry.path, path.split('?').next().unwrap());
                assert_eq!(entry.json.unwrap()["model"], model(dialect));
                let headers = format!("{:?}", entry.headers);
                assert!(!headers.contains(KEY) && !headers.contains(TOKEN), "redacted");
                if stream {
                    assert!(is_terminated(dialect, &read.text()));
                    assert!(!streamed_text(dialect, &read.text()).is_empty());
                }
            }
        }
    }
}

#[tokio::test]
async fn what_is_not_below_a_deployment_is_asked_below_none() {
    let key = ("api-key", KEY);
    let embed = json!({"model": "text-embedding-3-small", "input": "hello"});
    for (platform, path, status) in [
        (SimPlatform::azure(), "/openai/v1/embeddings", 200),
        (
            dated(),
            "/openai/deployments/text-embedding-3-small/embeddings?api-version=2024-10-21",
            200,
        ),
        (dated(), "/openai/embeddings?api-version=2024-10-21", 404),
    ] {
        let provider = on(Dialect::OpenAi, platform).build();
        let read = send(&provider, request(path, &[key], &embed)).await.unwrap();
        assert_eq!(read.status, status, "{path}");
    }
    let provider = on(Dialect::Anthropic, SimPlatform::azure()).build();
    let mut body = question(Dialect::Anthropic, "hello", false);
    body.as_object_mut().unwrap().shift_remove("max_tokens");
    let count = request("/anthropic/v1/messages/count_tokens", &[key, VERSION], &body);
    assert_eq!(send(&provider, count).await.unwrap().json(), json!({"input_tokens": 6}));

    let provider = on(Dialect::Responses, SimPlatform::azure()).build();
    let id = ask(&provider, "/openai/v1/responses", &[key], false).await.json()["id"].clone();
    let path = format!("http://sim/openai/v1/responses/{}", id.as_str().unwrap());
    let kept = Request::get(path).header("api-key", KEY).body(Full::new(Bytes::new())).unwrap();
    assert_eq!(send(&provider, kept).await.unwrap().json()["id"], id);
}

#[tokio::test]
async fn the_deployment_of_the_address_is_the_model() {
    let provider = on(Dialect::OpenAi, dated()).build();
    let body = json!({"model": "no-such", "messages": [{"role": "user", "content": "hi"}]});
    let read = send(&provider, request(DEPLOYED, &[("api-key", KEY)], &body)).await.unwrap();
    assert_eq!(read.json()["model"], "gpt-4o");
    let entry = provider.journal().last().unwrap();
    assert_eq!(entry.model, "gpt-4o");
    assert_eq!(entry.json.unwrap()["model"], "gpt-4o");
    assert_eq!(entry.body, body.to_string(), "as it came");
    assert_eq!(entry.query, "api-version=2024-10-21");
}

#[tokio::test]
async fn other_addresses_and_versions_are_not_found() {
    let key = ("api-key", KEY);
    let rows = [
        (SimPlatform::azure(), "/v1/chat/completions"),
        (SimPlatform::azure(), "/openai/chat/completions"),
        (SimPlatform::azure(), "/openai/v1/completions"),
        (SimPlatform::azure(), "/openai/v1/chat/completions?api-version=2024-10-21"),
        (SimPlatform::azure(), DEPLOYED),
        (SimPlatform::azure(), "/anthropic/v1/messages"),
        (dated(), CHAT),
        (dated(), "/openai/v1/chat/completions?api-version=2024-10-21"),
        (dated(), "/openai/deployments/gpt-4o/chat/completions"),
        (dated(), "/openai/deployments/gpt-4o/chat/completions?api-version=2031-01-01"),
        (dated(), "/openai/chat/completions?api-version=2024-10-21"),
        (dated(), "/openai/deployments//chat/completions?api-version=2024-10-21"),
        (dated(), "/v1/chat/completions?api-version=2024-10-21"),
    ];
    for (platform, path) in rows {
        let provider = on(Dialect::OpenAi, platform).build();
        let read = ask(&provider, path, &[key], false).await;
        assert_eq!(read.status, 404, "{path}");
        let body = json!({"error": {"code": "404", "message": "Resource not found"}});
        assert_eq!(read.json(), body);
        assert_eq!(provider.journal().last().unwrap().refused.unwrap(), "Resource not found");
    }
    let nowhere = SimProvider::builder(Dialect::Gemini).on(SimPlatform::azure()).build();
    let path = "/v1beta/models/gemini-2.5-pro:generateContent";
    assert_eq!(ask(&nowhere, path, &[key], false).await.status, 404);
}

#[tokio::test]
async fn a_deployment_that_is_not_there_is_not_found() {
    for (dialect, platform, path) in [
        (Dialect::OpenAi, dated(), "/openai/deployments/x/chat/completions?api-version=2024-10-21"),
        (Dialect::OpenAi, SimPlatform::azure(), CHAT),
        (Dialect::Anthropic, SimPlatform::azure(), "/anthropic/v1/messages"),
    ] {
        let provider = on(dialect, platform).build();
        let mut body = question(dialect, "hello", false);
        body["model"] = "x".into();
        let headers = [("api-key", KEY), VERSION];
        let read = send(&provider, request(path, &headers, &body)).await.unwrap();
        assert_eq!(read.status, 404);
        assert_eq!(read.json()["error"]["code"], "DeploymentNotFound");
        assert!(read.error_message().starts_with("The API deployment for this resource does not"));
    }
}

#[tokio::test]
async fn wrong_keys_and_expired_tokens_are_refused() {
    let provider = on(Dialect::OpenAi, SimPlatform::azure()).build();
    let read = ask(&provider, CHAT, &[("api-key", "wrong")], false).await;
    assert_eq!((read.status, &read.json()["error"]["code"]), (401, &json!("401")));
    assert!(read.error_message().starts_with("Access denied due to invalid subscription key"));
    for headers in [
        &[][..],
        &[("authorization", "Bearer wrong")],
        // The vendor's other header is not one of this dialect's here.
        &[("x-api-key", KEY)],
    ] {
        let read = ask(&provider, CHAT, headers, false).await;
        assert_eq!((read.status, &read.json()["statusCode"]), (401, &json!(401)), "{headers:?}");
    }

    let bearer = format!("Bearer {TOKEN}");
    let token = [("authorization", &*bearer)];
    assert_eq!(ask(&provider, CHAT, &token, false).await.status, 200);
    provider.set_keys(["entra-token-2"]);
    assert_eq!(ask(&provider, CHAT, &token, false).await.status, 401);
    let next = [("authorization", "Bearer entra-token-2")];
    assert_eq!(ask(&provider, CHAT, &next, false).await.status, 200);
}

#[tokio::test]
async fn the_rules_of_the_dialect_hold() {
    let provider = on(Dialect::OpenAi, dated()).build();
    let body = json!({"messages": "none"});
    let read = send(&provider, request(DEPLOYED, &[("api-key", KEY)], &body)).await.unwrap();
    assert_eq!(read.status, 400);
    assert_eq!(read.json()["error"]["type"], "invalid_request_error");

    let provider = on(Dialect::Anthropic, SimPlatform::azure()).build();
    let read = ask(&provider, "/anthropic/v1/messages", &[("api-key", KEY)], false).await;
    assert_eq!(read.error_message(), "anthropic-version: header is required");
    assert_eq!(read.json()["type"], "error");
}

#[tokio::test]
async fn answers_have_what_the_filter_says() {
    let provider = on(Dialect::OpenAi, SimPlatform::azure()).build();
    let key = [("api-key", KEY)];
    let whole = ask(&provider, CHAT, &key, false).await.json();
    let safe = json!({"filtered": false, "severity": "safe"});
    assert_eq!(whole["choices"][0]["content_filter_results"]["hate"], safe);
    let prompt = &whole["prompt_filter_results"][0];
    assert_eq!(prompt["prompt_index"], 0);
    assert_eq!(prompt["content_filter_results"]["jailbreak"]["detected"], false);

    let text = ask(&provider, CHAT, &key, true).await.text();
    let chunks = events(&text);
    assert_eq!(chunks[0]["choices"], json!([]));
    assert!(chunks[0]["prompt_filter_results"].is_array());
    assert_eq!(chunks[1]["choices"][0]["content_filter_results"], json!({}));
    assert_eq!(chunks[2]["choices"][0]["content_filter_results"]["violence"], safe);
    assert!(text.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn streams_break_as_they_do_at_the_vendor() {
    for how in [How::MalformedJson, How::ErrorEvent(ErrorKind::ServerError), How::End] {
        let provider = on(Dialect::OpenAi, SimPlatform::azure())
            .with_faults(FaultPlan::always(Fault::break_after(2, how.clone())))
            .build();
        let text = ask(&provider, CHAT, &[("api-key", KEY)], true).await.text();
        let read = events(&text);
        match how {
            How::MalformedJson => assert!(read.iter().filter(|e| e.is_string()).count() > 1),
            How::ErrorEvent(_) => assert_eq!(read.last().unwrap()["error"]["type"], "server_error"),
            _ => assert!(!text.contains("[DONE]")),
        }
    }
}

#[tokio::test]
async fn errors_are_those_of_the_platform() {
    let limit = ErrorKind::RateLimit(RateLimit::after("7"));
    for (kind, status, code) in [
        (limit, 429, "429"),
        (ErrorKind::InsufficientQuota, 429, "429"),
        (ErrorKind::Auth, 401, "401"),
        (ErrorKind::Permission, 401, "PermissionDenied"),
        (ErrorKind::ModelNotFound, 404, "DeploymentNotFound"),
        (ErrorKind::ServerError, 500, "InternalServerError"),
        (ErrorKind::ContentFilter, 400, "content_filter"),
        (ErrorKind::Overloaded, 503, "server_is_overloaded"),
        (ErrorKind::ContextOverflow, 400, "context_length_exceeded"),
    ] {
        let provider = on(Dialect::OpenAi, dated())
            .with_faults(FaultPlan::always(Fault::Error(kind.clone())))
            .build();
        let read = ask(&provider, DEPLOYED, &[("api-key", KEY)], false).await;
        assert_eq!(
            (read.status, &read.json()["error"]["code"]),
            (status, &json!(code)),
            "{kind:?}"
        );
        match kind {
            ErrorKind::RateLimit(_) => {
                assert_eq!(read.header("retry-after"), Some("7"));
                assert!(read.error_message().contains("API version 2024-10-21 have exceeded call"));
            }
            ErrorKind::ContentFilter => {
                let inner = &read.json()["error"]["innererror"];
                assert_eq!(inner["code"], "ResponsibleAIPolicyViolation");
                assert_eq!(inner["content_filter_result"]["sexual"]["filtered"], true);
            }
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_names_the_seconds_to_wait() {
    let limits = KeyLimits { requests: Some(1), tokens: None };
    let provider = on(Dialect::OpenAi, SimPlatform::azure()).with_limits(limits).build();
    let key = [("api-key", KEY)];
    assert_eq!(ask(&provider, CHAT, &key, false).await.status, 200);
    let read = ask(&provider, CHAT, &key, false).await;
    assert_eq!(read.status, 429);
    assert_eq!(read.header("retry-after"), Some("60"));
    assert!(read.error_message().contains("Please retry after 60 seconds."));
}

/// No path or body is the end of it.
#[tokio::test]
async fn nothing_that_is_sent_makes_it_panic() {
    for platform in [SimPlatform::azure(), dated()] {
        let provider = on(Dialect::OpenAi, platform).build();
        for path in [
            CHAT,
            DEPLOYED,
            "/openai/deployments/%ff/chat/completions?api-version=2024-10-21",
            "/openai/deployments/%/chat/completions?api-version=2024-10-21",
            "/openai//?&=&api-version",
            "/openai/v1/",
            "/",
        ] {
            for body in ["", "null", "[]", "{\"model\":[]}", "{\"messages\":{}}", "\u{0}"] {
                let mut request = request(path, &[("api-key", KEY)], &Value::Null);
                *request.body_mut() = Full::new(Bytes::from(body));
                let status = send(&provider, request).await.unwrap().status;
                assert!((400..500).contains(&status), "{path} {body}: {status}");
            }
        }
    }
}
