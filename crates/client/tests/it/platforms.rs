//! The same request at each platform, and what comes back.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use serde_json::{Value, json};
use steadfast_chat::ChatRequest;
use steadfast_client::{
    ClientBody, Credential, CredentialFuture, CredentialSource, LlmClient, Platform, Provider,
    Providers, TemporaryCredential,
    dialect::{CountRequest, Route, codec},
};
use steadfast_core::{Dialect, Failure, Reason, RecoveryLog, Scope, time::wall};
use tower::ServiceExt;

use crate::fixtures::body;

pub(crate) type Seen = Arc<Mutex<Vec<(http::request::Parts, Bytes)>>>;

/// Answers one after the other, the last again and again, and keeps what it was asked.
#[derive(Clone)]
pub(crate) struct Http {
    seen: Seen,
    answers: Arc<[Response<Bytes>]>,
}

impl tower::Service<Request<ClientBody>> for Http {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let body = body.collect().now_or_never().unwrap().unwrap().to_bytes();
        let mut seen = self.seen.lock();
        let answer = &self.answers[seen.len().min(self.answers.len() - 1)];
        seen.push((parts, body));
        std::future::ready(Ok(answer.clone().map(Full::new)))
    }
}

/// A client of `provider` whose requests are seen, and how they are answered.
pub(crate) fn client(provider: Provider, answers: Vec<Response<Bytes>>) -> (LlmClient<Http>, Seen) {
    let seen = Seen::default();
    let http = Http { seen: seen.clone(), answers: answers.into() };
    (LlmClient::with_service(Providers::new([provider]).unwrap(), http), seen)
}

pub(crate) fn answer(dialect: Dialect) -> Response<Bytes> {
    let body = body(dialect).into();
    Response::builder().header("content-type", "application/json").body(body).unwrap()
}

pub(crate) fn refusal(
    status: u16,
    headers: &[(&str, &str)],
    body: &'static str,
) -> Response<Bytes> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(Bytes::from_static(body.as_bytes())).unwrap()
}

fn keyed(dialect: Dialect, platform: Platform) -> Provider {
    Provider::new("p", dialect).on(platform).with_credential(Credential::new("main", "s3cret-key"))
}

fn azure(dialect: Dialect, platform: Platform) -> Provider {
    keyed(dialect, platform).with_base_url("https://me.openai.azure.com/")
}

#[tokio::test]
async fn each_platform_is_asked_where_and_how_it_wants() {
    use Dialect::{Anthropic, Gemini, OpenAi, Responses};
    let vertex = || Platform::vertex("my-project", "us-east5");
    for (provider, stream, address, key) in [
        (
            azure(OpenAi, Platform::azure()),
            false,
            "https://me.openai.azure.com/openai/v1/chat/completions",
            ("api-key", "s3cret-key"),
        ),
        (
            azure(OpenAi, Platform::azure_version("2024-10-21")),
            true,
            "https://me.openai.azure.com/openai/deployments/my%20model/chat/completions?api-version=2024-10-21",
            ("api-key", "s3cret-key"),
        ),
        (
            azure(Responses, Platform::azure_version("2025-04-01-preview")),
            true,
            "https://me.openai.azure.com/openai/responses?api-version=2025-04-01-preview",
            ("api-key", "s3cret-key"),
        ),
        (
            azure(Anthropic, Platform::azure()),
            false,
            "https://me.openai.azure.com/anthropic/v1/messages",
            ("x-api-key", "s3cret-key"),
        ),
        (
            keyed(Gemini, vertex()),
            true,
            "https://us-east5-aiplatform.googleapis.com/v1beta1/projects/my-project/locations/us-east5/publishers/google/models/my%20model:streamGenerateContent?alt=sse",
            ("authorization", "Bearer s3cret-key"),
        ),
        (
            keyed(Anthropic, vertex()),
            true,
            "https://us-east5-aiplatform.googleapis.com/v1/projects/my-project/locations/us-east5/publishers/anthropic/models/my%20model:streamRawPredict",
            ("authorization", "Bearer s3cret-key"),
        ),
        (
            keyed(OpenAi, Platform::vertex("my-project", "global")),
            false,
            "https://aiplatform.googleapis.com/v1/projects/my-project/locations/global/endpoints/openapi/chat/completions",
            ("authorization", "Bearer s3cret-key"),
        ),
        (
            keyed(Responses, Platform::vertex("my-project", "eu")),
            false,
            "https://aiplatform.eu.rep.googleapis.com/v1/projects/my-project/locations/eu/publishers/openai/v1/responses",
            ("authorization", "Bearer s3cret-key"),
        ),
    ] {
        let dialect = provider.dialect();
        let (client, seen) = client(provider, vec![answer(dialect)]);
        let request = ChatRequest::user("hi").with_model("my model");
        let request = if stream { request.streaming() } else { request };
        client.oneshot(request).await.unwrap().collect().await.unwrap();
        let (parts, _) = seen.lock().pop().unwrap();
        assert_eq!(parts.uri.to_string(), address);
        assert_eq!(parts.headers[key.0], key.1, "{address}");
        let credentials = ["authorization", "api-key", "x-api-key", "x-goog-api-key"];
        let sent = credentials.iter().filter(|name| parts.headers.contains_key(**name));
        assert_eq!(sent.count(), 1, "{address}: one credential alone");
    }
}

/// A caller's request in Anthropic's dialect, with everything of it that clouds have elsewhere.
pub(crate) fn messages(stream: bool) -> ChatRequest {
    let body = json!({
        "model": "claude-x", "max_tokens": 10, "stream": stream, "zig": 1,
        "messages": [{"role": "user", "content": "hi"}],
    });
    let mut request = codec(Dialect::Anthropic)
        .decode_request(&body.to_string().into(), Route::default())
        .unwrap();
    let mut headers = http::HeaderMap::new();
    headers.insert("anthropic-beta", "one-2025-01-01, two-2025-01-01".parse().unwrap());
    headers.insert("anthropic-version", "2023-06-01".parse().unwrap());
    request.headers = headers.into();
    request.query = Some("beta=true".into());
    request
}

#[tokio::test]
async fn on_vertex_the_version_of_messages_is_in_the_body_and_the_model_in_the_address() {
    for stream in [false, true] {
        let provider = keyed(Dialect::Anthropic, Platform::vertex("p", "global"));
        let (client, seen) = client(provider, vec![answer(Dialect::Anthropic)]);
        client.oneshot(messages(stream)).await.unwrap().collect().await.unwrap();
        let (parts, body) = seen.lock().pop().unwrap();
        let method = if stream { "streamRawPredict" } else { "rawPredict" };
        let path = "/v1/projects/p/locations/global/publishers/anthropic/models/claude-x:";
        assert_eq!(parts.uri.path_and_query().unwrap().as_str(), format!("{path}{method}"));
        assert!(!parts.headers.contains_key("anthropic-version"));
        assert_eq!(parts.headers["anthropic-beta"], "one-2025-01-01, two-2025-01-01");
        let wanted = json!({
            "max_tokens": 10, "stream": stream, "zig": 1,
            "messages": [{"role": "user", "content": "hi"}],
            "anthropic_version": "vertex-2023-10-16",
        });
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), wanted);
    }
}

#[tokio::test]
async fn vertex_counts_at_an_address_of_its_own() {
    for (dialect, address, fields) in [
        (
            Dialect::Anthropic,
            "publishers/anthropic/models/count-tokens:rawPredict",
            &["model", "anthropic_version", "messages"][..],
        ),
        (Dialect::Gemini, "publishers/google/models/m:countTokens", &["contents"]),
    ] {
        let counted = match dialect {
            Dialect::Gemini => r#"{"totalTokens":7}"#,
            _ => r#"{"input_tokens":7}"#,
        };
        let response = Response::new(Bytes::from_static(counted.as_bytes()));
        let (client, seen) =
            client(keyed(dialect, Platform::vertex("p", "global")), vec![response]);
        let request = CountRequest::new(ChatRequest::user("hi").with_model("m"));
        assert_eq!(client.counting().oneshot(request).await.unwrap().tokens, 7);
        let (parts, body) = seen.lock().pop().unwrap();
        assert!(parts.uri.path().ends_with(address), "{}", parts.uri);
        let body: Value = serde_json::from_slice(&body).unwrap();
        let mut names: Vec<_> = body.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        let mut wanted = fields.to_vec();
        wanted.sort_unstable();
        assert_eq!(names, wanted);
    }
}

#[tokio::test]
async fn on_vertex_each_content_has_a_role() {
    for (contents, sent) in [
        (
            json!([{"parts": [{"text": "hi"}], "x": 1}]),
            json!([{"parts": [{"text": "hi"}], "x": 1, "role": "user"}]),
        ),
        (
            json!([{"role": "model", "parts": []}, {"parts": [{"text": "hi"}]}]),
            json!([{"role": "model", "parts": []}, {"parts": [{"text": "hi"}], "role": "user"}]),
        ),
    ] {
        let body = json!({"contents": contents, "zig": 1}).to_string();
        let route = Route { model: Some("m"), stream: Some(false) };
        let request = codec(Dialect::Gemini).decode_request(&body.into(), route).unwrap();
        let provider = keyed(Dialect::Gemini, Platform::vertex("p", "global"));
        let (client, seen) = client(provider, vec![answer(Dialect::Gemini)]);
        drop(client.oneshot(request).await.unwrap());
        let (_, body) = seen.lock().pop().unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body, json!({"contents": sent, "zig": 1}));
    }
}

#[tokio::test]
async fn what_a_platform_refuses_itself_is_in_no_dialect() {
    let anthropic = r#"{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: too large"}}"#;
    let google = r#"{"error":{"code":400,"message":"no such thing","status":"INVALID_ARGUMENT"}}"#;
    for (dialect, body, own) in [
        (Dialect::Anthropic, anthropic, Some(Dialect::Anthropic)),
        (Dialect::Anthropic, google, None),
        (Dialect::Gemini, google, Some(Dialect::Gemini)),
    ] {
        let provider = keyed(dialect, Platform::vertex("p", "global"));
        let (client, _) = client(provider, vec![refusal(400, &[], body)]);
        let request = ChatRequest::user("hi").with_model("m");
        let failure = client.oneshot(request).await.map(drop).unwrap_err();
        assert_eq!(failure.upstream().unwrap().dialect, own, "{body}");
    }
}

#[test]
fn what_is_wrong_with_a_platform_is_found_before_it_is_asked() {
    let problem = |provider: Provider| Providers::new([provider]).unwrap_err().to_string();
    let key = Credential::new("main", "k");
    let no_url = Provider::new("p", Dialect::OpenAi).on(Platform::azure());
    let error = problem(no_url.with_credential(key.clone()));
    assert!(error.contains("no base URL") && error.contains("my-resource"), "{error}");
    let error = problem(keyed(Dialect::Gemini, Platform::azure()));
    assert!(error.contains("gemini"), "{error}");
    for platform in [
        Platform::vertex("a/b", "global"),
        Platform::vertex("", "global"),
        Platform::vertex("p", ".."),
        Platform::azure_version("1&x=2"),
    ] {
        let error = problem(azure(Dialect::OpenAi, platform));
        assert!(error.contains("platform"), "{error}");
    }
    let models = Provider::new("p", Dialect::OpenAi).on(Platform::vertex("p", "global"));
    let (client, seen) = client(models.with_credential(key), vec![answer(Dialect::OpenAi)]);
    let listed = client.list_models("p").now_or_never().unwrap();
    assert_eq!(listed.unwrap_err().reason(), Reason::Unsupported);
    assert!(seen.lock().is_empty());
}

/// Gives as it is scripted, and counts.
#[derive(Debug, Default)]
struct Scripted {
    asked: AtomicUsize,
    takes: Duration,
    holds: Option<Duration>,
    fails: Mutex<Vec<Failure>>,
}

impl CredentialSource for Scripted {
    fn fetch(&self) -> CredentialFuture<'_> {
        Box::pin(async move {
            let number = self.asked.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(self.takes).await;
            if let Some(failure) = self.fails.lock().pop() {
                return Err(failure);
            }
            let token = TemporaryCredential::bearer(format!("token-{number}"));
            Ok(match self.holds {
                Some(holds) => token.expires_at(wall() + holds),
                None => token,
            })
        })
    }
}

impl Scripted {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

fn renewing(source: Scripted) -> (Arc<Scripted>, Provider) {
    let source = Arc::new(source);
    let platform = Platform::vertex("p", "global");
    (source.clone(), Provider::new("p", Dialect::Gemini).on(platform).with_source("main", source))
}

pub(crate) fn ask() -> ChatRequest {
    ChatRequest::user("hi").with_model("m")
}

fn tokens(seen: &Seen) -> Vec<String> {
    let seen = seen.lock();
    let tokens = seen.iter().map(|(parts, _)| parts.headers["authorization"].to_str().unwrap());
    tokens.map(|token| token.trim_start_matches("Bearer token-").to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn one_fetches_for_all_and_what_holds_is_used_until_shortly_before_its_end() {
    let hour = Duration::from_secs(3_600);
    let source =
        Scripted { takes: Duration::from_secs(1), holds: Some(hour), ..Scripted::default() };
    let (source, provider) = renewing(source);
    let (client, seen) = client(provider, vec![answer(Dialect::Gemini)]);
    let calls = (0..8).map(|_| client.clone().oneshot(ask()));
    for answer in futures_util::future::join_all(calls).await {
        drop(answer.unwrap());
    }
    assert_eq!(source.asked(), 1, "one fetches for all");
    tokio::time::advance(hour - Duration::from_secs(301)).await;
    drop(client.clone().oneshot(ask()).await.unwrap());
    assert_eq!(source.asked(), 1, "it holds");
    tokio::time::advance(Duration::from_secs(10)).await;
    // Near its end one fetches, and the others go on with what holds.
    let calls = (0..3).map(|_| client.clone().oneshot(ask()));
    futures_util::future::join_all(calls).await;
    assert_eq!(source.asked(), 2);
    assert_eq!(tokens(&seen).split_off(9), ["0", "0", "1"]);
}

#[tokio::test(start_paused = true)]
async fn one_that_holds_for_a_minute_is_not_fetched_with_each_call() {
    let minute = Duration::from_secs(60);
    let (source, provider) = renewing(Scripted { holds: Some(minute), ..Scripted::default() });
    let (client, _) = client(provider, vec![answer(Dialect::Gemini)]);
    for _ in 0..44 {
        drop(client.clone().oneshot(ask()).await.unwrap());
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(source.asked(), 1);
    tokio::time::advance(Duration::from_secs(2)).await;
    drop(client.oneshot(ask()).await.unwrap());
    assert_eq!(source.asked(), 2, "in the last quarter of its life");
}

#[tokio::test(start_paused = true)]
async fn while_a_new_one_can_not_be_had_the_old_one_serves() {
    let hour = Duration::from_secs(3_600);
    let down = || Failure::new(Reason::Network, "the metadata service is away");
    let (source, provider) = renewing(Scripted { holds: Some(hour), ..Scripted::default() });
    let (client, seen) = client(provider, vec![answer(Dialect::Gemini)]);
    drop(client.clone().oneshot(ask()).await.unwrap());
    *source.fails.lock() = vec![down(), down(), down()];
    tokio::time::advance(hour - Duration::from_secs(60)).await;
    for _ in 0..5 {
        drop(client.clone().oneshot(ask()).await.unwrap());
    }
    assert_eq!(source.asked(), 2, "not asked with each call");
    tokio::time::advance(Duration::from_secs(11)).await;
    drop(client.clone().oneshot(ask()).await.unwrap());
    assert_eq!((source.asked(), tokens(&seen).last().unwrap().as_str()), (3, "0"));
    tokio::time::advance(Duration::from_secs(60)).await;
    let failure = client.clone().oneshot(ask()).await.map(drop).unwrap_err();
    assert_eq!((failure.reason(), failure.scope()), (Reason::Network, Scope::Credential));
    assert_eq!(failure.target().unwrap().provider(), "p");
    drop(client.clone().oneshot(ask()).await.unwrap());
    assert_eq!(tokens(&seen).last().unwrap(), "4");
}

#[tokio::test(start_paused = true)]
async fn a_source_that_hangs_is_given_up_and_one_that_is_left_goes_on_with_the_next() {
    let day = Duration::from_secs(86_400);
    let (source, provider) = renewing(Scripted { takes: day, ..Scripted::default() });
    let (client, _) = client(provider, vec![answer(Dialect::Gemini)]);
    let left = tokio::time::timeout(Duration::from_secs(1), client.clone().oneshot(ask()));
    let other = tokio::time::timeout(Duration::from_secs(22), client.clone().oneshot(ask()));
    let (left, other) = tokio::join!(left, other);
    assert!(left.is_err(), "the first was dropped as it fetched");
    let failure = other.unwrap().map(drop).unwrap_err();
    assert_eq!((failure.reason(), source.asked()), (Reason::Timeout, 2));
}

#[tokio::test]
async fn a_credential_that_is_refused_is_replaced_in_the_same_attempt_once() {
    let unauthorized = || refusal(401, &[], r#"{"error":{"code":401,"status":"UNAUTHENTICATED"}}"#);
    let (source, provider) = renewing(Scripted::default());
    let answers = vec![answer(Dialect::Gemini), unauthorized(), answer(Dialect::Gemini)];
    let (one, seen) = client(provider, answers);
    drop(one.clone().oneshot(ask()).await.unwrap());
    let log = RecoveryLog::enabled();
    let mut request = ask();
    request.context.log = log.clone();
    drop(one.clone().oneshot(request).await.unwrap());
    assert_eq!((tokens(&seen), source.asked()), (vec!["0".into(), "0".into(), "1".into()], 2));
    let steps = log.steps();
    assert!(steps.iter().any(|step| step.action == "credential_renewed"), "{steps:?}");
    drop(one.oneshot(ask()).await.unwrap());
    assert_eq!(tokens(&seen).last().unwrap(), "1", "the new one is kept");

    let (source, provider) = renewing(Scripted::default());
    let (one, seen) = client(provider, vec![unauthorized()]);
    let failure = one.oneshot(ask()).await.map(drop).unwrap_err();
    assert_eq!(failure.status(), Some(StatusCode::UNAUTHORIZED));
    assert_eq!(failure.upstream().unwrap().headers["retry-after"], "60", "not until a person came");
    assert_eq!((seen.lock().len(), source.asked()), (2, 2), "once, and no more");
}
