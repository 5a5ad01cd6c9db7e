//! The client over a mock transport.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use steadfast_chat::{ChatRequest, Completion};
use steadfast_client::{ClientBody, Credential, LlmClient, Provider, Providers};
use steadfast_core::{BoxError, CallContext, Dialect, Failure, Reason, Retry, Target};
use tower::{ServiceExt, service_fn};

use crate::fixtures::{TEXT, body, decode, frames, stream};

fn providers() -> Providers {
    Providers::new(Dialect::ALL.map(|dialect| {
        Provider::new(dialect.as_str(), dialect)
            .with_base_url("http://provider.test/")
            .with_credential(Credential::new("main", "s3cret"))
            .with_credential(Credential::new("spare", "0ther"))
            .with_header("x-operator", "yes")
    }))
    .unwrap()
}

/// A body of given chunks; `None` hangs. A flag is set when it is dropped.
struct Chunks {
    chunks: VecDeque<Option<Result<Bytes, io::Error>>>,
    polled: Arc<AtomicUsize>,
    dropped: Arc<AtomicBool>,
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.polled.fetch_add(1, Ordering::Relaxed);
        if let Some(None) = self.chunks.front() {
            return Poll::Pending;
        }
        Poll::Ready(self.chunks.pop_front().flatten().map(|chunk| chunk.map(Frame::data)))
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone, Default)]
struct Probe {
    polled: Arc<AtomicUsize>,
    dropped: Arc<AtomicBool>,
}

impl Probe {
    fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// What a provider answers.
struct Reply {
    status: u16,
    kind: &'static str,
    chunks: Vec<Option<Result<Bytes, io::Error>>>,
}

fn ok(kind: &'static str, body: impl Into<Bytes>) -> Reply {
    Reply { status: 200, kind, chunks: vec![Some(Ok(body.into()))] }
}

const SSE: &str = "text/event-stream; charset=utf-8";
const JSON: &str = "application/json";

fn target(dialect: Dialect) -> CallContext {
    CallContext::new().with_target(dialect.as_str())
}

fn ask(dialect: Dialect, stream: bool) -> ChatRequest {
    let request = ChatRequest::user("hi").with_model("m").with_context(target(dialect));
    if stream { request.streaming() } else { request }
}

type Answer = steadfast_chat::ChatResponse<steadfast_client::ClientEvents<Chunks>>;

/// Gives `value` to who asks first, whichever clone of a service that is.
fn once<T>(value: T) -> impl Fn() -> T + Clone {
    let value = Arc::new(parking_lot::Mutex::new(Some(value)));
    move || value.lock().take().expect("asked once")
}

async fn call(request: ChatRequest, reply: Reply) -> (Result<Answer, Failure>, Probe) {
    let probe = Probe::default();
    let body = Chunks {
        chunks: reply.chunks.into(),
        polled: probe.polled.clone(),
        dropped: probe.dropped.clone(),
    };
    let response = Response::builder()
        .status(reply.status)
        .header("content-type", reply.kind)
        .header("x-request-id", "req_1")
        .header("x-ratelimit-remaining-requests", "9")
        .header("set-cookie", "a=b")
        .body(body)
        .unwrap();
    let response = once(response);
    let service = service_fn(move |_: Request<ClientBody>| {
        std::future::ready(Ok::<_, Infallible>(response()))
    });
    let client = LlmClient::with_service(providers(), service);
    (client.oneshot(request).await, probe)
}

async fn answer(request: ChatRequest, reply: Reply) -> Result<Completion, Failure> {
    match call(request, reply).await.0 {
        Ok(answer) => answer.collect().await,
        Err(failure) => Err(failure),
    }
}

/// The request that goes out.
async fn sent(request: ChatRequest) -> (http::request::Parts, String) {
    let (send, receive) = tokio::sync::oneshot::channel();
    let send = once(send);
    let service = service_fn(move |request: Request<ClientBody>| {
        let _ = send().send(request);
        std::future::ready(Err::<Response<ClientBody>, _>(io::Error::other("enough")))
    });
    let failure = LlmClient::with_service(providers(), service).oneshot(request).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Network);
    let (parts, body) = receive.await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn sends_what_each_provider_requires() {
    for (dialect, uri, header, value) in [
        (
            Dialect::OpenAi,
            "http://provider.test/chat/completions",
            "authorization",
            "Bearer s3cret",
        ),
        (Dialect::Anthropic, "http://provider.test/v1/messages", "x-api-key", "s3cret"),
        (
            Dialect::Gemini,
            "http://provider.test/v1beta/models/m:streamGenerateContent?alt=sse",
            "x-goog-api-key",
            "s3cret",
        ),
    ] {
        let mut request = ask(dialect, true);
        request.context.attempts = 2;
        let (parts, _) = sent(request).await;
        assert_eq!(parts.uri, uri);
        assert_eq!(parts.method, "POST");
        let headers = &parts.headers;
        assert_eq!(headers[header], value);
        assert!(headers[header].is_sensitive());
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers["accept"], "text/event-stream");
        assert_eq!(headers["user-agent"], concat!("steadfast/", env!("CARGO_PKG_VERSION")));
        assert_eq!(headers["x-steadfast-attempt"], "3");
        assert_eq!(headers["x-operator"], "yes");
        assert_eq!(headers.contains_key("anthropic-version"), dialect == Dialect::Anthropic);
    }
}

#[tokio::test]
async fn the_target_names_provider_model_and_credential() {
    let mut request = ChatRequest::user("hi").with_model("asked");
    let (parts, body) = sent(request.clone()).await;
    assert_eq!(
        parts.headers["authorization"], "Bearer s3cret",
        "the first key of the first provider"
    );
    assert!(body.contains(r#""model":"asked""#));

    let target = Target::new("anthropic").with_model("mapped").with_credential("spare");
    request.context = CallContext::new().with_target(target);
    let (parts, body) = sent(request.clone()).await;
    assert_eq!(parts.headers["x-api-key"], "0ther");
    assert!(body.contains(r#""model":"mapped""#), "{body}");

    for (target, reason) in [
        (Target::new("nobody"), Reason::Unsupported),
        (Target::new("openai").with_credential("gone"), Reason::Auth),
    ] {
        request.context = CallContext::new().with_target(target.clone());
        let failure = answer(request.clone(), ok(JSON, "{}")).await.unwrap_err();
        assert_eq!((failure.reason(), failure.attempts()), (reason, 0));
        assert_eq!(failure.target(), Some(&target));
    }
    let failure = answer(ChatRequest::user("hi"), ok(JSON, "{}")).await.unwrap_err();
    assert!(failure.message().contains("names no model"), "{failure}");
}

#[tokio::test]
async fn a_callers_headers_reach_only_providers_of_its_own_dialect() {
    let body = r#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"x"}]}"#;
    for (dialect, passed) in [(Dialect::Anthropic, true), (Dialect::OpenAi, false)] {
        let mut request = decode(dialect, body);
        request.context = target(Dialect::Anthropic);
        for (name, value) in [
            ("anthropic-beta", "one"),
            ("anthropic-beta", "two"),
            ("x-api-key", "the callers own"),
            ("authorization", "Bearer callers"),
            ("cookie", "c"),
            ("accept-encoding", "br"),
            ("x-steadfast-attempt", "9"),
            ("x-of-their-own", "yes"),
        ] {
            request.headers.append(name, value.parse().unwrap());
        }
        let (parts, _) = sent(request).await;
        let betas: Vec<_> = parts.headers.get_all("anthropic-beta").iter().collect();
        assert_eq!(betas.len(), if passed { 2 } else { 0 });
        assert_eq!(parts.headers.contains_key("x-of-their-own"), passed);
        assert_eq!(parts.headers["x-api-key"], "s3cret");
        assert_eq!(parts.headers["x-steadfast-attempt"], "1");
        for own in ["cookie", "authorization"] {
            assert!(!parts.headers.contains_key(own), "{own}");
        }
        assert_eq!(parts.headers["accept-encoding"], "identity");
    }
}

#[tokio::test]
async fn a_query_reaches_only_providers_of_the_callers_dialect() {
    let body = r#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"x"}]}"#;
    for (dialect, query) in [(Dialect::Anthropic, Some("beta=true")), (Dialect::OpenAi, None)] {
        let mut request = decode(dialect, body);
        request.context = target(Dialect::Anthropic);
        request.query = Some("beta=true".into());
        let (parts, _) = sent(request).await;
        assert_eq!(parts.uri.query(), query, "{dialect}");
    }
    // Gemini's own stays.
    let mut request = ask(Dialect::Gemini, true);
    request.query = Some("%24fields=a".into());
    let (parts, _) = sent(request).await;
    assert_eq!(parts.uri.query(), Some("alt=sse&%24fields=a"));
}

#[tokio::test]
async fn answers_are_read_streamed_and_whole_whatever_was_requested() {
    for dialect in Dialect::ALL {
        for asked in [true, false] {
            for (kind, text, streamed) in [
                (SSE, stream(dialect), true),
                (JSON, body(dialect), false),
                // With a wrong content type, or none.
                ("application/octet-stream", stream(dialect), true),
                (SSE, body(dialect), false),
                ("text/plain", format!("\n {}", body(dialect)), false),
            ] {
                let (answered, _) = call(ask(dialect, asked), ok(kind, text)).await;
                let answered = answered.unwrap();
                let head = &answered.head;
                assert_eq!(head.target.as_ref().unwrap().provider(), dialect.as_str());
                assert_eq!((head.dialect, head.attempts), (dialect, 1));
                assert_eq!(head.request_id.as_deref(), Some("req_1"));
                assert_eq!(head.headers["x-ratelimit-remaining-requests"], "9");
                assert!(!head.headers.contains_key("set-cookie"));
                if kind != SSE {
                    assert_eq!(head.stream, streamed, "{dialect} {kind}");
                }
                let answer = answered.collect().await.unwrap();
                assert_eq!(answer.text(), TEXT, "{dialect} {kind}");
                assert!(answer.ended);
            }
        }
    }
    let listed = format!("[{}]", frames(&stream(Dialect::Gemini).replace("\r\n", "\n")).join(","));
    let answer = answer(ask(Dialect::Gemini, true), ok(JSON, listed)).await.unwrap();
    assert_eq!(answer.text(), TEXT);
}

#[tokio::test]
async fn a_stream_is_answered_at_its_head() {
    let reply = Reply { status: 200, kind: SSE, chunks: vec![None] };
    let (answer, probe) = call(ask(Dialect::OpenAi, true), reply).await;
    let mut answer = answer.unwrap();
    assert_eq!(probe.polled.load(Ordering::Relaxed), 0, "nothing is waited for");
    assert!(answer.next().now_or_never().is_none());
    drop(answer);
    assert!(probe.is_dropped(), "dropping the answer closes the connection");
}

#[tokio::test]
async fn failures_have_the_whole_upstream_answer() {
    let body = r#"{"error":{"message":"slow down","type":"requests"}}"#;
    let reply = Reply { status: 429, kind: JSON, chunks: vec![Some(Ok(body.into()))] };
    let mut request = ask(Dialect::OpenAi, true);
    request.context.attempts = 1;
    let failure = answer(request, reply).await.unwrap_err();
    // One: the layers above add up the attempts of their calls.
    assert_eq!((failure.reason(), failure.attempts()), (Reason::RateLimit, 1));
    assert_eq!(failure.target(), Some(&Target::new("openai")));
    assert_eq!(failure.request_id(), Some("req_1"));
    let upstream = failure.upstream().unwrap();
    assert_eq!(upstream.body, body);
    assert_eq!(upstream.dialect, Some(Dialect::OpenAi));
    assert_eq!(upstream.headers["x-ratelimit-remaining-requests"], "9");
}

#[tokio::test]
async fn invalid_successes_fail_before_the_first_event() {
    for dialect in Dialect::ALL {
        for asked in [true, false] {
            for (kind, text) in [
                ("text/html", "<!doctype html><title>Sign in</title>"),
                (JSON, "{\"error\":{\"message\":\"no\",\"code\":400}}"),
                ("text/plain", "upstream connect error or disconnect/reset before headers"),
            ] {
                let (answered, probe) = call(ask(dialect, asked), ok(kind, text)).await;
                let failure = answered.unwrap_err();
                let upstream = failure.upstream().unwrap();
                assert_eq!(
                    (upstream.status, &upstream.body[..]),
                    (Some(StatusCode::OK), text.as_bytes())
                );
                assert_eq!(upstream.headers["x-request-id"], "req_1");
                assert_eq!(failure.attempts(), 1);
                assert!(probe.is_dropped());
            }
            let failure = answer(ask(dialect, asked), ok(JSON, "{\"cut\":")).await.unwrap_err();
            assert_eq!((failure.reason(), failure.retry()), (Reason::ServerError, Retry::Yes));
            let nothing = Reply { status: 200, kind: JSON, chunks: vec![] };
            let failure = answer(ask(dialect, asked), nothing).await.unwrap_err();
            assert_eq!(failure.evidence(), "empty");
        }
    }
}

#[tokio::test]
async fn errors_inside_a_stream_have_the_responses_headers() {
    let text =
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
    let failure = answer(ask(Dialect::Anthropic, true), ok(SSE, text)).await.unwrap_err();
    let upstream = failure.upstream().unwrap();
    assert_eq!(upstream.headers["x-ratelimit-remaining-requests"], "9");
    assert_eq!(failure.request_id(), Some("req_1"));
    assert_eq!(failure.target().unwrap().provider(), "anthropic");
}

#[tokio::test]
async fn a_broken_connection_is_a_failure_with_the_usage_so_far() {
    let text = stream(Dialect::Anthropic);
    let half = Bytes::from(text[..text.len() / 2].to_owned());
    let reset = io::Error::new(io::ErrorKind::ConnectionReset, "reset by peer");
    let reply = Reply { status: 200, kind: SSE, chunks: vec![Some(Ok(half)), Some(Err(reset))] };
    let (answered, probe) = call(ask(Dialect::Anthropic, true), reply).await;
    let mut answered = answered.unwrap();
    let failure = loop {
        match answered.next().await.unwrap() {
            Ok(_) => {}
            Err(failure) => break failure,
        }
    };
    assert_eq!((failure.reason(), failure.retry()), (Reason::Network, Retry::Yes));
    assert_eq!(failure.usage().unwrap().input, Some(20));
    assert!(failure.message().contains("reset by peer"), "{failure}");
    assert!(std::error::Error::source(&failure).is_some());
    assert!(probe.is_dropped());
    assert!(answered.next().await.is_none(), "it stays ended");
}

#[tokio::test]
async fn transport_errors_keep_their_kind_and_failures_are_not_changed() {
    for (error, reason) in [
        (BoxError::from(io::Error::new(io::ErrorKind::TimedOut, "slow")), Reason::Timeout),
        (BoxError::from(io::Error::other("dns")), Reason::Network),
        (BoxError::from(Failure::new(Reason::Budget, "ours")), Reason::Budget),
    ] {
        let error = once(error);
        let service = service_fn(move |_: Request<ClientBody>| {
            std::future::ready(Err::<Response<ClientBody>, _>(error()))
        });
        let client = LlmClient::with_service(providers(), service);
        let failure = client.oneshot(ask(Dialect::OpenAi, false)).await.unwrap_err();
        assert_eq!((failure.reason(), failure.attempts()), (reason, 1));
        assert!(failure.target().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn error_bodies_are_bounded_and_a_small_rest_is_read() {
    let chunk = || Some(Ok(Bytes::from(vec![b'x'; 16 * 1024])));
    // 96 KiB: 64 are kept, the rest is thrown away, the body is read to its end.
    let reply = Reply { status: 500, kind: JSON, chunks: (0..6).map(|_| chunk()).collect() };
    let (failure, probe) = call(ask(Dialect::OpenAi, false), reply).await;
    assert_eq!(failure.unwrap_err().upstream().unwrap().body.len(), 64 * 1024);
    assert_eq!(probe.polled.load(Ordering::Relaxed), 7, "to its end");
    // 10 MiB: dropped after 128 KiB.
    let reply = Reply { status: 500, kind: JSON, chunks: (0..640).map(|_| chunk()).collect() };
    let (failure, probe) = call(ask(Dialect::OpenAi, false), reply).await;
    assert_eq!(failure.unwrap_err().upstream().unwrap().body.len(), 64 * 1024);
    assert_eq!(probe.polled.load(Ordering::Relaxed), 9);
    assert!(probe.is_dropped());
    // The rest is not waited for when it does not arrive.
    let chunks = (0..4).map(|_| chunk()).chain([None]).collect();
    let began = tokio::time::Instant::now();
    let (failure, _) =
        call(ask(Dialect::OpenAi, false), Reply { status: 500, kind: JSON, chunks }).await;
    assert_eq!(failure.unwrap_err().reason(), Reason::ServerError);
    assert_eq!(began.elapsed(), Duration::from_millis(100));
    // Nor is a body that hangs: the status alone classifies the failure.
    let chunks = vec![Some(Ok("{\"error\":{".into())), None];
    let began = tokio::time::Instant::now();
    let (failure, probe) =
        call(ask(Dialect::OpenAi, false), Reply { status: 429, kind: JSON, chunks }).await;
    assert_eq!(failure.unwrap_err().reason(), Reason::RateLimit);
    assert_eq!(began.elapsed(), Duration::from_secs(5));
    assert!(probe.is_dropped());
    // A body that breaks off has the same classification with less evidence.
    let broken = Some(Err(io::Error::other("x")));
    let chunks = vec![Some(Ok("half an ex".into())), broken];
    let (failure, _) =
        call(ask(Dialect::OpenAi, false), Reply { status: 503, kind: JSON, chunks }).await;
    let failure = failure.unwrap_err();
    assert_eq!(
        (failure.reason(), &failure.upstream().unwrap().body[..]),
        (Reason::Overloaded, &b"half an ex"[..])
    );
}

#[tokio::test]
async fn a_compressed_answer_that_was_not_requested_is_a_failure() {
    for (status, stream, reason) in [
        (200, false, Reason::ServerError),
        (200, true, Reason::ServerError),
        (429, false, Reason::RateLimit),
    ] {
        let service = service_fn(move |_: Request<ClientBody>| {
            let body = ClientBody::from(&b"\x1f\x8b\x08\0\0\0\0\0"[..]);
            let response = Response::builder()
                .status(status)
                .header("content-type", if stream { SSE } else { JSON })
                .header("content-encoding", "gzip")
                .header("retry-after", "7")
                .body(body)
                .unwrap();
            std::future::ready(Ok::<_, Infallible>(response))
        });
        let client = LlmClient::with_service(providers(), service);
        let failure = client.oneshot(ask(Dialect::OpenAi, stream)).await.unwrap_err();
        assert_eq!(failure.reason(), reason, "{failure}");
        assert!(!failure.message().contains('\u{fffd}'), "{failure}");
        if status == 200 {
            assert!(failure.message().contains("`gzip`"), "{failure}");
        } else {
            let upstream = failure.upstream().unwrap();
            assert_eq!(upstream.headers["retry-after"], "7");
            assert!(upstream.body.is_empty());
        }
    }
}

#[tokio::test]
async fn a_stream_that_was_not_requested_is_bounded_like_a_whole_answer() {
    let piece = "data: {\"choices\":[{\"delta\":{\"content\":\"xxxxxxxx\"}}]}\n\n";
    let mut limits = steadfast_client::AnswerLimits::default();
    limits.answer = 1_000;
    for (stream, evidence) in
        [(false, "limit:answer"), (true, "stream ended without its terminal event")]
    {
        let service = service_fn(move |_: Request<ClientBody>| {
            let chunks = (0..100).map(|_| Some(Ok(Bytes::from(piece)))).collect();
            let Probe { polled, dropped } = Probe::default();
            let body = Chunks { chunks, polled, dropped };
            let response = Response::builder().header("content-type", SSE).body(body).unwrap();
            std::future::ready(Ok::<_, Infallible>(response))
        });
        let client = LlmClient::with_service(providers(), service).with_limits(limits);
        let failure = match client.oneshot(ask(Dialect::OpenAi, stream)).await {
            Ok(answer) => answer.collect().await.unwrap_err(),
            Err(failure) => failure,
        };
        assert_eq!(failure.evidence(), evidence, "{failure}");
    }
}

#[tokio::test]
async fn answers_and_events_are_bounded() {
    let mut limits = steadfast_client::AnswerLimits::default();
    limits.answer = 1_000;
    limits.event = 100;
    for (asked, kind, evidence) in [(false, JSON, "limit:answer"), (true, SSE, "limit:event")] {
        let text = if asked {
            format!("data: {}", "x".repeat(2_000))
        } else {
            format!("{{\"a\":\"{}", "x".repeat(2_000))
        };
        let service = service_fn(move |_: Request<ClientBody>| {
            let body = ClientBody::from(text.clone());
            let response = Response::builder().header("content-type", kind).body(body).unwrap();
            std::future::ready(Ok::<_, Infallible>(response))
        });
        let client = LlmClient::with_service(providers(), service).with_limits(limits);
        let failure = match client.oneshot(ask(Dialect::OpenAi, asked)).await {
            Ok(answer) => answer.collect().await.unwrap_err(),
            Err(failure) => failure,
        };
        assert_eq!(failure.evidence(), evidence, "{failure}");
    }
}

#[tokio::test]
async fn what_can_not_be_translated_is_refused_without_a_call() {
    let mut request = decode(
        Dialect::OpenAi,
        r#"{"model":"m","n":2,"messages":[{"role":"user","content":"x"}]}"#,
    );
    request.context = target(Dialect::Gemini);
    let service = service_fn(|_: Request<ClientBody>| async {
        panic!("nobody is to be asked");
        #[expect(unreachable_code, reason = "names the type")]
        Ok::<Response<ClientBody>, Infallible>(Response::default())
    });
    let client = LlmClient::with_service(providers(), service);
    let failure = client.oneshot(request).await.unwrap_err();
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Unsupported, 0));
}

#[tokio::test]
async fn nothing_shows_a_secret() {
    let client = LlmClient::with_service(providers(), ());
    let shown = format!(
        "{client:?} {:?}",
        Provider::new("p", Dialect::OpenAi)
            .with_credential(Credential::new("main", "s3cret"))
            .with_header("x-key", "s3cret")
    );
    assert!(!shown.contains("s3cret"), "{shown}");
}

#[tokio::test]
async fn an_axum_router_is_a_provider() {
    let router = axum::Router::new().route(
        "/chat/completions",
        axum::routing::post(|| async { ([("content-type", SSE)], stream(Dialect::OpenAi)) }),
    );
    let client = LlmClient::with_service(providers(), router);
    let answer = client.oneshot(ask(Dialect::OpenAi, true)).await.unwrap().collect().await.unwrap();
    assert_eq!(answer.text(), TEXT);
}
