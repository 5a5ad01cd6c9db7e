//! Only the headers that the operator names reach a provider.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use axum::body::Body;
use http::{Request, StatusCode, header};
use steadfast_gateway::{config::Source, server::App, stack::Gateway};
use steadfast_sim::{Dialect, Entry, SimProvider, SimServer};
use tower::ServiceExt;

/// The request that a provider of OpenAI's dialect gets for a call at `path`, with `server` as the
/// `[server]` table.
async fn seen(server: &str, path: &str, body: &'static str) -> Entry {
    let provider = SimProvider::builder(Dialect::OpenAi).keys(["operator"]).build();
    let provider = SimServer::local(provider).await.unwrap();
    let source = Source::text(format!(
        "[server]\nauth = 'none'\n{server}\n[[providers]]\nname = 'p'\ndialect = 'openai'\n\
         models = {{ '*' = 'gpt-4o' }}\nbase_url = '{}'\nheaders = {{ authorization = 'Bearer operator' }}\n",
        provider.base_url()
    ));
    let config = source.parse().unwrap();
    config.validate(&source).unwrap();
    let gateway = Gateway::connect(&config, &source).unwrap();
    let app = App::new(&config, &source, gateway).unwrap();
    let request = Request::post(path)
        .header(header::AUTHORIZATION, "Bearer caller")
        .header(header::ACCEPT_ENCODING, "br")
        .header("x-title", "mine")
        .header("openai-organization", "org-of-the-caller")
        .body(Body::from(body))
        .unwrap();
    let answer = app.router().oneshot(request).await.unwrap();
    // With the caller's own credential it would be a 401.
    assert_eq!(answer.status(), StatusCode::OK);
    provider.provider().journal().last().unwrap()
}

const OPENAI: (&str, &str) = (
    "/v1/chat/completions",
    r#"{"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}"#,
);
const ANTHROPIC: (&str, &str) = (
    "/v1/messages",
    r#"{"model": "gpt-4o", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}"#,
);

#[tokio::test]
async fn named_headers_reach_a_provider_of_the_callers_dialect() {
    let named = "forward_headers = ['x-title']";
    let entry = seen(named, OPENAI.0, OPENAI.1).await;
    assert_eq!(entry.header("x-title"), Some("mine"));
    assert_eq!(entry.header("openai-organization"), None);
    assert_eq!(entry.header("accept-encoding"), Some("identity"), "the gateway's own");

    let entry = seen(named, ANTHROPIC.0, ANTHROPIC.1).await;
    assert_eq!(entry.header("x-title"), None, "it may mean something else in another dialect");
}

#[tokio::test]
async fn callers_choose_the_operators_account_only_when_configured() {
    let entry = seen("", OPENAI.0, OPENAI.1).await;
    assert_eq!((entry.header("openai-organization"), entry.header("x-title")), (None, None));
}
