//! Bedrock: signed requests, envelopes, and streams of AWS's own.

use aws_smithy_eventstream::frame::write_message_to;
use aws_smithy_types::event_stream::{Header, HeaderValue, Message};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::StreamExt;
use http::{Response, StatusCode};
use proptest::prelude::*;
use serde_json::{Value, json};
use steadfast_chat::{ChatRequest, Delta};
use steadfast_client::{
    Credential, CredentialFuture, CredentialSource, Platform, Provider, TemporaryCredential,
    dialect::CountRequest,
};
use steadfast_core::{Dialect, Failure, Reason};
use tower::ServiceExt;

use crate::platforms::{answer, ask, client, messages, refusal};

#[derive(Debug)]
struct Keys;

impl CredentialSource for Keys {
    fn fetch(&self) -> CredentialFuture<'_> {
        let session = Some("a session".into());
        Box::pin(async { Ok(TemporaryCredential::aws("AKIDEXAMPLE", "wJalrXUtnFEMI", session)) })
    }
}

fn bedrock(dialect: Dialect) -> Provider {
    Provider::new("p", dialect).on(Platform::bedrock("eu-central-1"))
}

fn message(headers: &[(&str, &str)], payload: &str) -> Vec<u8> {
    let headers = headers.iter().map(|(name, value)| {
        Header::new((*name).to_owned(), HeaderValue::String((*value).to_owned().into()))
    });
    let message = Message::new_from_parts(headers.collect(), payload.to_owned());
    let mut out = Vec::new();
    write_message_to(&message, &mut out).unwrap();
    out
}

fn chunk(event: &Value) -> Vec<u8> {
    let payload = json!({"bytes": STANDARD.encode(event.to_string()), "p": "abcdefg"}).to_string();
    message(&[(":event-type", "chunk"), (":message-type", "event")], &payload)
}

/// The messages of an answer that says `Hel` and `lo`.
fn hello() -> Vec<Vec<u8>> {
    let text = |text: &str| json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}});
    [
        json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {"input_tokens": 3, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        text("Hel"),
        text("lo"),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}),
        json!({"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 3}}),
    ]
    .iter()
    .map(chunk)
    .collect()
}

fn streamed(body: impl Into<Bytes>) -> Response<Bytes> {
    let kind = "application/vnd.amazon.eventstream";
    Response::builder().header("content-type", kind).body(body.into()).unwrap()
}

/// What arrived of a stream, its frames, and how it ended.
async fn read(body: impl Into<Bytes>) -> (String, String, Result<(), Failure>) {
    let provider = bedrock(Dialect::Anthropic).with_credential(Credential::new("main", "key"));
    let (client, _) = client(provider, vec![streamed(body)]);
    let mut stream = client.oneshot(ask().streaming()).await.unwrap();
    let (mut text, mut frames) = (String::new(), String::new());
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                text.extend(event.deltas.iter().filter_map(|delta| match delta {
                    Delta::Text { text, .. } => Some(text.as_str()),
                    _ => None,
                }));
                let frame = event.frame(Dialect::Anthropic).unwrap();
                frames.push_str(std::str::from_utf8(&frame.bytes).unwrap());
            }
            Err(failure) => return (text, frames, Err(failure)),
        }
    }
    (text, frames, Ok(()))
}

#[tokio::test]
async fn requests_are_signed_and_in_the_envelope() {
    for stream in [false, true] {
        let provider = bedrock(Dialect::Anthropic).with_source("main", Keys);
        let reply = if stream { streamed(hello().concat()) } else { answer(Dialect::Anthropic) };
        let (client, seen) = client(provider, vec![reply]);
        client.oneshot(messages(stream)).await.unwrap().collect().await.unwrap();
        let (parts, body) = seen.lock().pop().unwrap();
        let method = if stream { "invoke-with-response-stream" } else { "invoke" };
        let address = "https://bedrock-runtime.eu-central-1.amazonaws.com/model/claude-x/";
        assert_eq!(parts.uri.to_string(), format!("{address}{method}"));
        let header = |name: &str| parts.headers[name].to_str().unwrap();
        assert!(header("authorization").starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"));
        assert!(header("authorization").contains("/eu-central-1/bedrock/aws4_request"));
        assert_eq!(header("x-amz-security-token"), "a session");
        assert!(parts.headers["authorization"].is_sensitive());
        assert!(!parts.headers.contains_key("anthropic-version"));
        assert!(!parts.headers.contains_key("anthropic-beta"));
        let wanted = json!({
            "max_tokens": 10, "zig": 1,
            "messages": [{"role": "user", "content": "hi"}],
            "anthropic_version": "bedrock-2023-05-31",
            "anthropic_beta": ["one-2025-01-01", "two-2025-01-01"],
        });
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), wanted);
    }
}

#[tokio::test]
async fn each_dialect_has_its_host_and_a_key_is_a_bearer() {
    for (dialect, address) in [
        (Dialect::OpenAi, "bedrock-runtime.eu-central-1.amazonaws.com/openai/v1/chat/completions"),
        (Dialect::Responses, "bedrock-mantle.eu-central-1.api.aws/openai/v1/responses"),
    ] {
        let provider = bedrock(dialect).with_credential(Credential::new("main", "key"));
        let (one, seen) = client(provider, vec![answer(dialect)]);
        one.oneshot(ask()).await.unwrap().collect().await.unwrap();
        let (parts, _) = seen.lock().pop().unwrap();
        assert_eq!(parts.uri.to_string(), format!("https://{address}"));
        assert_eq!(parts.headers["authorization"], "Bearer key");
        let (one, seen) = client(bedrock(dialect).with_source("main", Keys), vec![answer(dialect)]);
        one.oneshot(ask()).await.unwrap().collect().await.unwrap();
        let service = if dialect == Dialect::OpenAi { "/bedrock/" } else { "/bedrock-mantle/" };
        let (parts, _) = seen.lock().pop().unwrap();
        assert!(parts.headers["authorization"].to_str().unwrap().contains(service));
    }
}

#[tokio::test]
async fn tokens_are_counted_of_a_whole_request() {
    let counted = Response::new(Bytes::from_static(br#"{"inputTokens":12}"#));
    let (client, seen) =
        client(bedrock(Dialect::Anthropic).with_source("main", Keys), vec![counted]);
    let model = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0";
    let request = CountRequest::new(ChatRequest::user("hi").with_model(model));
    assert_eq!(client.counting().oneshot(request).await.unwrap().tokens, 12);
    let (parts, body) = seen.lock().pop().unwrap();
    let path = "/model/eu.anthropic.claude-sonnet-4-5-20250929-v1%3A0/count-tokens";
    assert_eq!(parts.uri.path(), path);
    let body: Value = serde_json::from_slice(&body).unwrap();
    let inner = STANDARD.decode(body["input"]["invokeModel"]["body"].as_str().unwrap()).unwrap();
    let inner: Value = serde_json::from_slice(&inner).unwrap();
    assert_eq!((&inner["max_tokens"], &inner["model"]), (&json!(1), &Value::Null));
    assert_eq!(inner["anthropic_version"], "bedrock-2023-05-31");
}

#[tokio::test]
async fn a_stream_is_the_vendors_own_events() {
    let (text, frames, end) = read(hello().concat()).await;
    end.unwrap();
    assert_eq!(text, "Hello");
    assert!(frames.starts_with("event: message_start\ndata: {"), "{frames}");
    assert!(frames.ends_with("}\n\n") && frames.contains("amazon-bedrock-invocationMetrics"));
    assert_eq!(frames.matches("event: ").count(), 7);
}

#[tokio::test]
async fn a_stream_that_breaks_says_so_behind_what_was_good() {
    let good = hello()[..4].concat();
    let exception = |name: &str, text: &str| {
        let payload = json!({ "message": text }).to_string();
        message(&[(":exception-type", name), (":message-type", "exception")], &payload)
    };
    let mut damaged = chunk(&json!({"type": "ping"}));
    *damaged.last_mut().unwrap() ^= 1;
    let odd = message(&[(":event-type", "chunk"), (":message-type", "event")], "{}");
    let error = message(
        &[
            (":error-code", "InternalFailure"),
            (":error-message", "broke"),
            (":message-type", "error"),
        ],
        "",
    );
    for (then, reason, status, says) in [
        (Vec::new(), Reason::Network, None, "terminal event"),
        (chunk(&json!({"type": "ping"}))[..20].to_vec(), Reason::Network, None, "terminal event"),
        (
            exception("throttlingException", "Too many tokens"),
            Reason::RateLimit,
            Some(StatusCode::TOO_MANY_REQUESTS),
            "Too many tokens",
        ),
        (
            exception("modelStreamErrorException", "broke"),
            // What 424 means the classifier knows by the exception's name.
            Reason::Unknown,
            Some(StatusCode::FAILED_DEPENDENCY),
            "broke",
        ),
        (error, Reason::ServerError, Some(StatusCode::INTERNAL_SERVER_ERROR), "broke"),
        (damaged, Reason::ServerError, None, "AWS event stream"),
        (odd, Reason::ServerError, None, "chunk without bytes"),
        (vec![0xff; 64], Reason::ServerError, None, "AWS event stream"),
    ] {
        let (text, _, end) = read([good.clone(), then].concat()).await;
        let failure = end.unwrap_err();
        assert_eq!(text, "Hello", "{failure}");
        assert_eq!((failure.status(), failure.reason()), (status, reason), "{failure}");
        assert!(failure.message().contains(says), "{failure}");
        assert_eq!(failure.usage().and_then(|usage| usage.input), Some(3), "{failure}");
    }
}

#[tokio::test]
async fn a_stream_that_begins_with_an_exception_is_a_refusal() {
    let payload = r#"{"message":"try again"}"#;
    let unavailable = message(
        &[(":exception-type", "serviceUnavailableException"), (":message-type", "exception")],
        payload,
    );
    let (text, _, end) = read(unavailable).await;
    let failure = end.unwrap_err();
    assert_eq!((text.as_str(), failure.status()), ("", Some(StatusCode::SERVICE_UNAVAILABLE)));
    let upstream = failure.upstream().unwrap();
    assert_eq!(upstream.headers["x-amzn-errortype"], "ServiceUnavailableException");
    assert_eq!(upstream.dialect, None, "no words of a dialect");
}

#[tokio::test]
async fn expired_keys_are_fetched_anew_and_others_not() {
    for (status, name, asked) in [
        (403, "ExpiredTokenException:http://internal.amazon.com/coral/", 2),
        (403, "UnrecognizedClientException", 2),
        (403, "AccessDeniedException", 1),
        (400, "ExpiredTokenException", 1),
        (429, "ThrottlingException", 1),
    ] {
        let refused = refusal(status, &[("x-amzn-errortype", name)], r#"{"message":"no"}"#);
        let (client, seen) =
            client(bedrock(Dialect::Anthropic).with_source("main", Keys), vec![refused]);
        let failure = client.oneshot(ask()).await.map(drop).unwrap_err();
        assert_eq!(failure.upstream().unwrap().dialect, None);
        assert_eq!(seen.lock().len(), asked, "{name}");
    }
}

#[tokio::test]
async fn keys_of_aws_sign_for_bedrock_alone() {
    let provider = Provider::new("p", Dialect::OpenAi).with_source("main", Keys);
    let (client, seen) = client(provider, vec![answer(Dialect::OpenAi)]);
    let failure = client.oneshot(ask()).await.map(drop).unwrap_err();
    assert_eq!(failure.reason(), Reason::Auth);
    assert!(failure.message().contains("Bedrock alone"), "{failure}");
    assert!(seen.lock().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn however_it_is_cut_a_stream_reads_the_same(cut in any::<prop::sample::Index>()) {
        let whole = hello().concat();
        let cut = cut.index(whole.len());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        // Less than all of it is never an end.
        let (text, _, end) = runtime.block_on(read(whole[..cut].to_vec()));
        prop_assert!(end.is_err() && "Hello".starts_with(&text));
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (_, _, end) = runtime.block_on(read(bytes));
        prop_assert!(end.is_err());
    }
}
