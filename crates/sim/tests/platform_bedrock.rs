//! Bedrock around the dialects: signatures, envelopes, AWS's errors and streams.

#![cfg(feature = "clouds")]
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, SignableBody, SignableRequest, SigningSettings, sign as sign_http,
};
use aws_sigv4::sign::v4;
use aws_smithy_eventstream::frame::{DecodedFrame, MessageFrameDecoder};
use aws_smithy_types::event_stream::Message;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use common::{Read, is_terminated, question, send};
use http::{HeaderName, HeaderValue, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use steadfast_core::time::utc;
use steadfast_sim::{
    Answer, AwsSigner, Coalesce, Dialect, Drip, End, ErrorKind, Fault, FaultPlan, FirstToken, How,
    KeyLimits, Model, RateLimit, SimErrorKind, SimPlatform, SimProvider, SimProviderBuilder,
};
use tokio::time::Instant;

const ID: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const REGION: &str = "eu-central-1";
const KEY: &str = "bedrock-api-key-0123456789";
const MODEL: &str = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0";
const INVOKE: &str = "/model/eu.anthropic.claude-sonnet-4-5-20250929-v1%3A0/invoke";
const STREAM: &str =
    "/model/eu.anthropic.claude-sonnet-4-5-20250929-v1%3A0/invoke-with-response-stream";
const COUNT: &str = "/model/eu.anthropic.claude-sonnet-4-5-20250929-v1%3A0/count-tokens";
const TEXT: &str = "one two three four five six seven eight nine ten naïve 日本 🦀";

fn on(dialect: Dialect) -> SimProviderBuilder {
    let platform =
        SimPlatform::bedrock(REGION).with_signer(AwsSigner::new(ID, SECRET)).with_signer(
            AwsSigner::new("ASIATEMPORARY", "temporary-secret").with_session_token("session-token"),
        );
    SimProvider::builder(dialect)
        .on(platform)
        .with_model(Model::new(MODEL, 200_000, 64_000))
        .respond(|_| Some(Answer::text(TEXT)))
        .keys([KEY])
}

fn messages() -> Value {
    json!({
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 1024,
        "messages": [{"role": "user", "content": "hello"}],
    })
}

fn bare(path: &str, body: &Value) -> Request<Full<Bytes>> {
    Request::post(format!("http://sim{path}"))
        .header("content-type", "application/json")
        .body(Full::new(body.to_string().into()))
        .unwrap()
}

fn with_key(path: &str, body: &Value) -> Request<Full<Bytes>> {
    let mut request = bare(path, body);
    let value = HeaderValue::from_str(&format!("Bearer {KEY}")).unwrap();
    request.headers_mut().insert("authorization", value);
    request
}

/// What signs a request.
#[derive(Clone, Copy)]
struct By<'a> {
    id: &'a str,
    secret: &'a str,
    token: Option<&'a str>,
    region: &'a str,
    service: &'a str,
    at: SystemTime,
    checksum: bool,
}

impl By<'static> {
    fn usual() -> Self {
        Self {
            id: ID,
            secret: SECRET,
            token: None,
            region: REGION,
            service: "bedrock",
            at: utc(),
            checksum: false,
        }
    }
}

/// Signs with AWS's own library.
fn signed(path: &str, body: &Value, by: By<'_>) -> Request<Full<Bytes>> {
    let mut request = bare(path, body);
    let identity =
        Credentials::new(by.id, by.secret, by.token.map(str::to_owned), None, "test").into();
    let mut settings = SigningSettings::default();
    if by.checksum {
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    }
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(by.region)
        .name(by.service)
        .time(by.at)
        .settings(settings)
        .build()
        .unwrap()
        .into();
    let uri = request.uri().to_string();
    let text = body.to_string();
    let signable = SignableRequest::new(
        "POST",
        uri,
        [("content-type", "application/json")].into_iter(),
        SignableBody::Bytes(text.as_bytes()),
    )
    .unwrap();
    let (instructions, _) = sign_http(signable, &params).unwrap().into_parts();
    for header in instructions.into_parts().0 {
        request.headers_mut().insert(
            HeaderName::try_from(header.name()).unwrap(),
            HeaderValue::try_from(header.value()).unwrap(),
        );
    }
    request
}

async fn ask(provider: &SimProvider, request: Request<Full<Bytes>>) -> Read {
    send(provider, request).await.unwrap()
}

/// The error's name and message.
fn error(read: &Read) -> (u16, String, String) {
    let name = read.header("x-amzn-errortype").unwrap();
    assert!(name.ends_with(":http://internal.amazon.com/coral/com.amazon.bedrock/"), "{name}");
    assert_eq!(read.header("x-amzn-requestid").unwrap().len(), 36);
    let message = read.json()["message"].as_str().unwrap_or_default().to_owned();
    (read.status, name.split(':').next().unwrap().to_owned(), message)
}

/// The whole messages of a stream, and what is left or why it ended.
fn decoded(bytes: &[u8]) -> (Vec<Message>, Result<usize, String>) {
    let mut decoder = MessageFrameDecoder::new();
    let mut buffer = BytesMut::from(bytes);
    let mut out = Vec::new();
    loop {
        match decoder.decode_frame(&mut buffer) {
            Ok(DecodedFrame::Complete(message)) => out.push(message),
            Ok(_) => return (out, Ok(buffer.len())),
            Err(error) => return (out, Err(error.to_string())),
        }
    }
}

fn header<'m>(message: &'m Message, name: &str) -> &'m str {
    let header = message.headers().iter().find(|header| header.name().as_str() == name);
    header.map_or("", |header| header.value().as_string().unwrap().as_str())
}

/// The vendor's event in a message, as far as it is JSON.
fn event(message: &Message) -> Option<Value> {
    let payload: Value = serde_json::from_slice(message.payload()).ok()?;
    serde_json::from_slice(&STANDARD.decode(payload["bytes"].as_str()?).unwrap()).ok()
}

fn text(messages: &[Message]) -> String {
    let events = messages.iter().filter_map(event);
    events.map(|event| event["delta"]["text"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn signed_requests_are_accepted() {
    let provider = on(Dialect::Anthropic).build();
    let temporary = By {
        id: "ASIATEMPORARY",
        secret: "temporary-secret",
        token: Some("session-token"),
        ..By::usual()
    };
    for by in [By::usual(), By { checksum: true, ..By::usual() }, temporary] {
        for path in [INVOKE, &INVOKE.replace("%3A", ":")] {
            let read = ask(&provider, signed(path, &messages(), by)).await;
            assert_eq!(read.status, 200, "{}", read.text());
            let answer = read.json();
            assert_eq!(
                (&answer["model"], &answer["content"][0]["text"]),
                (&json!(MODEL), &json!(TEXT))
            );
            assert!(answer["id"].as_str().unwrap().starts_with("msg_bdrk_01"));
            assert_eq!(read.header("x-amzn-bedrock-input-token-count"), Some("6"));
            assert_eq!(read.header("anthropic-organization-id"), None);
            let entry = provider.journal().last().unwrap();
            assert_eq!(entry.path, path);
            assert_eq!(entry.body, messages().to_string());
            let json = entry.json.as_ref().unwrap();
            assert_eq!((&json["model"], &json["anthropic_version"]), (&json!(MODEL), &Value::Null));
            let shown = entry.header("authorization").unwrap();
            assert!(shown.starts_with(&format!("AWS4-HMAC-SHA256 Credential={}/", by.id)));
            assert!(shown.contains("/eu-central-1/bedrock/aws4_request, SignedHeaders="));
            assert!(shown.contains("Signature=sha256:"), "{shown}");
            assert!(!format!("{:?}", entry.headers).contains("session-token"));
        }
    }
}

#[tokio::test]
async fn each_dialect_has_its_addresses_and_its_service() {
    for (dialect, path, service) in [
        (Dialect::OpenAi, "/openai/v1/chat/completions", "bedrock"),
        (Dialect::Responses, "/openai/v1/responses", "bedrock-mantle"),
    ] {
        let provider = on(dialect).build();
        for stream in [false, true] {
            let body = question(dialect, "hello", stream);
            let by = By { service, ..By::usual() };
            let read = ask(&provider, signed(path, &body, by)).await;
            assert_eq!(read.status, 200, "{}", read.text());
            assert!(!stream || is_terminated(dialect, &read.text()));
            assert_eq!(ask(&provider, with_key(path, &body)).await.status, 200);
            assert!(read.header("x-amzn-requestid").is_some());
        }
        let other = if service == "bedrock" { "bedrock-mantle" } else { "bedrock" };
        let by = By { service: other, ..By::usual() };
        let read = ask(&provider, signed(path, &question(dialect, "hello", false), by)).await;
        assert_eq!(error(&read).1, "InvalidSignatureException");
        let read = ask(&provider, with_key(path, &json!({"model": "gpt-4o"}))).await;
        assert_eq!(read.json()["error"]["type"], "invalid_request_error", "of the dialect");
    }
}

#[tokio::test]
async fn what_is_not_signed_right_is_refused() {
    let provider = on(Dialect::Anthropic).build();
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let usual = By::usual();
    let temporary =
        By { id: "ASIATEMPORARY", secret: "temporary-secret", token: Some("other"), ..usual };
    let invalid = "InvalidSignatureException";
    let unknown = "UnrecognizedClientException";
    for (by, name, words) in [
        (By { id: "AKIDOTHER", ..usual }, unknown, "The security token included in the request is"),
        (By { secret: "wrong", ..usual }, invalid, "The request signature we calculated does not"),
        (
            By { region: "us-east-1", ..usual },
            invalid,
            "Credential should be scoped to a valid region",
        ),
        (By { service: "s3", ..usual }, invalid, "scoped to correct service: 'bedrock'"),
        (By { at: usual.at - minutes(6), ..usual }, invalid, "Signature expired: "),
        (By { at: usual.at + minutes(6), ..usual }, invalid, "Signature not yet current: "),
        (temporary, unknown, "invalid"),
        (By { token: None, ..temporary }, unknown, "invalid"),
        (By { token: Some("session-token"), ..usual }, unknown, "invalid"),
    ] {
        let read = ask(&provider, signed(INVOKE, &messages(), by)).await;
        let (status, found, message) = error(&read);
        assert_eq!((status, found.as_str()), (403, name));
        assert!(message.contains(words), "{message}");
    }
    for by in [By { at: usual.at - minutes(4), ..usual }, By { at: usual.at + minutes(4), ..usual }]
    {
        assert_eq!(ask(&provider, signed(INVOKE, &messages(), by)).await.status, 200);
    }
}

#[tokio::test]
async fn what_is_changed_after_it_was_signed_is_refused() {
    let provider = on(Dialect::Anthropic).build();
    let fresh = || signed(INVOKE, &messages(), By { checksum: true, ..By::usual() });
    let mut another_path = fresh();
    *another_path.uri_mut() = format!("http://sim{STREAM}").parse().unwrap();
    let mut another_body = fresh();
    *another_body.body_mut() = Full::new(messages().to_string().replace("hello", "bye").into());
    let mut another_type = fresh();
    another_type.headers_mut().insert("content-type", HeaderValue::from_static("text/plain"));
    let mut another_host = fresh();
    *another_host.uri_mut() = format!("http://other{INVOKE}").parse().unwrap();
    let mut another_sum = fresh();
    let sum = HeaderValue::from_static("UNSIGNED-PAYLOAD");
    another_sum.headers_mut().insert("x-amz-content-sha256", sum);
    let mut more = fresh();
    more.headers_mut().insert("x-amz-target", HeaderValue::from_static("x"));
    for request in [another_path, another_body, another_type, another_host, another_sum, more] {
        let read = ask(&provider, request).await;
        let (status, name, _) = error(&read);
        assert_eq!((status, name.as_str()), (403, "InvalidSignatureException"));
    }
    let mut no_date = fresh();
    no_date.headers_mut().remove("x-amz-date");
    let mut no_fields = fresh();
    no_fields
        .headers_mut()
        .insert("authorization", HeaderValue::from_static("AWS4-HMAC-SHA256 Credential=x"));
    let mut basic = fresh();
    basic.headers_mut().insert("authorization", HeaderValue::from_static("Basic eDp5"));
    for request in [no_date, no_fields, basic] {
        let read = ask(&provider, request).await;
        assert_eq!(error(&read).1, "IncompleteSignatureException");
    }
}

#[tokio::test]
async fn keys_are_accepted_until_they_are_replaced() {
    let provider = on(Dialect::Anthropic).build();
    assert_eq!(ask(&provider, with_key(INVOKE, &messages())).await.status, 200);
    provider.set_keys(["bedrock-api-key-next"]);
    let read = ask(&provider, with_key(INVOKE, &messages())).await;
    assert_eq!((read.status, error(&read).1.as_str()), (403, "AccessDeniedException"));
    let body = json!({"Message": "Authentication failed: Please make sure your API Key is valid."});
    assert_eq!(read.json(), body);

    let signers = SimPlatform::bedrock(REGION).with_signer(AwsSigner::new(ID, SECRET));
    let signed_only = SimProvider::builder(Dialect::Anthropic).on(signers).build();
    assert_eq!(ask(&signed_only, with_key(INVOKE, &messages())).await.status, 403);
    let open = SimProvider::builder(Dialect::Anthropic).on(SimPlatform::bedrock(REGION)).build();
    assert_eq!(error(&ask(&open, with_key(INVOKE, &messages())).await).0, 400, "no such model");
    let read = ask(&open, signed(INVOKE, &messages(), By::usual())).await;
    assert_eq!(error(&read).1, "UnrecognizedClientException");
}

#[tokio::test]
async fn a_signers_credentials_expire() {
    let provider = on(Dialect::Anthropic).build();
    assert!(!provider.expire_signer("AKIDOTHER"));
    assert!(provider.expire_signer("ASIATEMPORARY"));
    let old = By {
        id: "ASIATEMPORARY",
        secret: "temporary-secret",
        token: Some("session-token"),
        ..By::usual()
    };
    let read = ask(&provider, signed(INVOKE, &messages(), old)).await;
    let expected = "The security token included in the request is expired".to_owned();
    assert_eq!(error(&read), (403, "ExpiredTokenException".to_owned(), expected));
    assert_eq!(ask(&provider, signed(INVOKE, &messages(), By::usual())).await.status, 200);
    let vendor = SimProvider::new(Dialect::OpenAi);
    assert!(!vendor.expire_signer(ID));
}

#[tokio::test]
async fn other_addresses_are_no_operations() {
    let provider = on(Dialect::Anthropic).build();
    for path in [
        "/v1/messages",
        "/model/x/converse",
        "/model//invoke",
        "/model/a/b/invoke",
        "/openai/v1/chat/completions",
    ] {
        let read = ask(&provider, signed(path, &messages(), By::usual())).await;
        assert_eq!(
            (read.status, error(&read).1.as_str()),
            (404, "UnknownOperationException"),
            "{path}"
        );
    }
    // As a vendor is asked.
    let mut request = bare("/v1/messages", &question(Dialect::Anthropic, "hello", false));
    request.headers_mut().insert("x-api-key", HeaderValue::from_static(KEY));
    let read = ask(&provider, request).await;
    let expected = "Missing Authentication Token".to_owned();
    assert_eq!(error(&read), (403, "MissingAuthenticationTokenException".to_owned(), expected));
}

#[tokio::test]
async fn the_envelope_is_strict() {
    let provider = on(Dialect::Anthropic).build();
    let with = |field: &str, value: Value| {
        let mut body = messages();
        body[field] = value;
        body
    };
    let mut unversioned = messages();
    unversioned.as_object_mut().unwrap().shift_remove("anthropic_version");
    let malformed = |what: &str| {
        format!(
            "The model returned the following errors: Malformed input request: {what}, please \
             reformat your input and try again."
        )
    };
    for (body, message) in [
        (with("stream", true.into()), malformed("#: extraneous key [stream] is not permitted")),
        (with("model", MODEL.into()), malformed("#: extraneous key [model] is not permitted")),
        (unversioned, malformed("#: required key [anthropic_version] not found")),
        (
            with("anthropic_version", "x".into()),
            malformed("#/anthropic_version: x is not a valid enum value"),
        ),
        (
            with("anthropic_version", 1.into()),
            malformed("#/anthropic_version: expected type: String"),
        ),
        (
            with("anthropic_beta", "a".into()),
            malformed("#/anthropic_beta: expected type: JSONArray"),
        ),
        (
            with("max_tokens", Value::Null),
            "The model returned the following errors: max_tokens: Field required".to_owned(),
        ),
        (
            json!([1]),
            "Malformed input request, please reformat your input and try again.".to_owned(),
        ),
    ] {
        for path in [INVOKE, STREAM] {
            let read = ask(&provider, with_key(path, &body)).await;
            assert_eq!(error(&read), (400, "ValidationException".to_owned(), message.clone()));
            assert_eq!(provider.journal().last().unwrap().refused.unwrap(), message);
        }
    }
    for body in [
        with("anthropic_version", "2026-10-21".into()),
        with("anthropic_beta", json!(["context-1m-2025-08-07"])),
    ] {
        assert_eq!(ask(&provider, with_key(INVOKE, &body)).await.status, 200);
    }
    let read = ask(&provider, with_key("/model/no.such/invoke", &messages())).await;
    let expected = "The provided model identifier is invalid.".to_owned();
    assert_eq!(error(&read), (400, "ValidationException".to_owned(), expected));
}

#[tokio::test]
async fn tokens_are_counted_of_a_whole_request() {
    let provider = on(Dialect::Anthropic).build();
    let counted =
        |inner: String| json!({"input": {"invokeModel": {"body": STANDARD.encode(inner)}}});
    let read = ask(&provider, signed(COUNT, &counted(messages().to_string()), By::usual())).await;
    assert_eq!((read.status, read.json()), (200, json!({"inputTokens": 6})));
    let entry = provider.journal().last().unwrap();
    assert_eq!(entry.json.unwrap()["model"], MODEL);

    let unlimited = messages().to_string().replace("\"max_tokens\":1024,", "");
    for (body, message) in [
        (counted(unlimited), "max_tokens: Field required"),
        (counted(messages().to_string().replace("hello", "")), ""),
        (json!({}), "1 validation error detected: Value null at 'input'"),
        (
            json!({"input": {"converse": {}}}),
            "1 validation error detected: Value null at 'input.inv",
        ),
        (json!({"input": {"invokeModel": {"body": "?"}}}), "Expected a blob in base64"),
        (json!("x"), "Expected a JSON object"),
        (counted("{\"a".to_owned()), "Malformed input request, please reformat"),
    ] {
        let read = ask(&provider, with_key(COUNT, &body)).await;
        let (status, _, found) = error(&read);
        assert_eq!(status, 400);
        assert!(found.starts_with(message) && !found.contains("The model returned"), "{found}");
    }
}

#[tokio::test]
async fn a_stream_is_one_of_aws() {
    let provider = on(Dialect::Anthropic).build();
    let read = ask(&provider, signed(STREAM, &messages(), By::usual())).await;
    assert_eq!(read.header("content-type"), Some("application/vnd.amazon.eventstream"));
    assert_eq!(read.header("x-amzn-bedrock-content-type"), Some("application/json"));
    let (messages, left) = decoded(&read.bytes());
    assert_eq!(left, Ok(0));
    assert_eq!(text(&messages), TEXT);
    let mut paddings = Vec::new();
    for message in &messages {
        assert_eq!(header(message, ":event-type"), "chunk");
        assert_eq!(header(message, ":content-type"), "application/json");
        assert_eq!(header(message, ":message-type"), "event");
        let payload: Value = serde_json::from_slice(message.payload()).unwrap();
        paddings.push(payload["p"].as_str().unwrap().len());
    }
    paddings.sort_unstable();
    paddings.dedup();
    assert!(paddings.len() > 3, "of varying length");
    let events: Vec<Value> = messages.iter().filter_map(event).collect();
    assert_eq!(events.len(), messages.len(), "one message an event");
    assert_eq!(events[0]["type"], "message_start");
    assert!(events.iter().all(|event| event["type"] != "ping"), "there are none here");
    let last = events.last().unwrap();
    assert_eq!(last["type"], "message_stop");
    let sent = provider.journal().last().unwrap().sent.unwrap();
    let metrics = &last["amazon-bedrock-invocationMetrics"];
    assert_eq!(metrics["inputTokenCount"], sent.usage.input);
    assert_eq!(metrics["outputTokenCount"], sent.usage.output);
}

async fn streamed(fault: Fault) -> (SimProvider, Read) {
    let provider = on(Dialect::Anthropic).with_faults(FaultPlan::always(fault)).build();
    let read = ask(&provider, with_key(STREAM, &messages())).await;
    (provider, read)
}

#[tokio::test(start_paused = true)]
async fn an_error_in_a_stream_is_an_exception() {
    let limit = ErrorKind::RateLimit(RateLimit::default());
    for (kind, name, message) in [
        (limit, "throttlingException", "Too many tokens, please wait before trying again."),
        (
            ErrorKind::Overloaded,
            "serviceUnavailableException",
            "Bedrock is unable to process your request.",
        ),
        (
            ErrorKind::ServerError,
            "internalServerException",
            "The system encountered an unexpected error during processing. Try your request again.",
        ),
        (
            ErrorKind::GatewayTimeout,
            "modelTimeoutException",
            "The request took too long to process. Processing time exceeded the model timeout length.",
        ),
        (
            ErrorKind::ModelError,
            "modelStreamErrorException",
            "The request failed due to an error while processing the model.",
        ),
        (
            ErrorKind::ContentFilter,
            "validationException",
            "The model returned the following errors: Output blocked by content filtering policy",
        ),
    ] {
        for after in [0, 3] {
            let fault = Fault::break_after(after, How::ErrorEvent(kind.clone()));
            let (_, read) = streamed(fault).await;
            let (messages, left) = decoded(&read.bytes());
            assert_eq!((read.status, left), (200, Ok(0)));
            let last = messages.last().unwrap();
            assert_eq!(header(last, ":message-type"), "exception");
            assert_eq!(header(last, ":exception-type"), name);
            let body: Value = serde_json::from_slice(last.payload()).unwrap();
            assert_eq!(body["message"], message);
            assert_eq!(messages.len() == 1, after == 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_breaks_between_its_messages_and_inside_them() {
    for (how, broken) in [
        (How::Reset, Some(SimErrorKind::Reset)),
        (How::Close, Some(SimErrorKind::Closed)),
        (How::End, None),
    ] {
        let (provider, read) = streamed(Fault::break_after(3, how.clone())).await;
        let (messages, left) = decoded(&read.bytes());
        assert_eq!(left, Ok(0), "whole messages");
        assert!(TEXT.starts_with(&text(&messages)) && !text(&messages).is_empty());
        assert_eq!(read.error.as_ref().map(steadfast_sim::SimError::kind), broken);
        assert_eq!(provider.journal().last().unwrap().events, 3);

        let (_, read) = streamed(Fault::break_after_bytes(700, how)).await;
        assert_eq!(read.bytes().len(), 700);
        let (_, left) = decoded(&read.bytes());
        assert!(left.unwrap() > 0, "a message was cut");
    }
    let (_, read) = streamed(Fault::break_after(3, How::TruncatedJson)).await;
    let (whole, left) = decoded(&read.bytes());
    assert!(left.unwrap() > 0 && text(&whole).len() > 2);

    let provider = on(Dialect::Anthropic)
        .with_faults(FaultPlan::always(Fault::break_after(3, How::Stall)))
        .build();
    let stalled = ask(&provider, with_key(STREAM, &messages()));
    assert!(tokio::time::timeout(Duration::from_secs(3_600), stalled).await.is_err());
    assert_eq!(provider.journal().last().unwrap().end, End::Dropped);
}

/// The messages behind the bad one are good, to the end.
#[tokio::test(start_paused = true)]
async fn a_message_is_damaged_and_those_behind_it_are_good() {
    for how in [How::MalformedJson, How::Garbage] {
        let (_, read) = streamed(Fault::break_after(3, how.clone())).await;
        let (messages, left) = decoded(&read.bytes());
        assert_eq!(left, Ok(0), "the framing is right");
        let bad: Vec<_> = messages.iter().filter(|message| event(message).is_none()).collect();
        assert_eq!(bad.len(), 1, "{how:?}");
        let payload: Result<Value, _> = serde_json::from_slice(bad[0].payload());
        assert_eq!(payload.is_ok(), how == How::MalformedJson);
        assert_eq!(event(messages.last().unwrap()).unwrap()["type"], "message_stop");
    }
    let (_, read) = streamed(Fault::break_after_bytes(2_000, How::MalformedJson)).await;
    let (messages, left) = decoded(&read.bytes());
    assert!(left.unwrap_err().contains("checksum"), "of the message that was cut");
    assert!(!messages.is_empty());
}

#[tokio::test(start_paused = true)]
async fn pieces_are_joined_dripped_and_late() {
    let (_, plain) = streamed(Fault::Many(Vec::new())).await;
    let (_, joined) = streamed(Fault::Coalesce(Coalesce { frames: 0 })).await;
    assert_eq!((joined.chunks.len(), joined.bytes()), (1, plain.bytes()));
    let (_, dripped) = streamed(Fault::Drip(Drip { bytes: 7, every_ms: 1 })).await;
    assert!(dripped.chunks.iter().all(|chunk| chunk.len() <= 7));
    assert_eq!(dripped.bytes(), plain.bytes());

    let started = Instant::now();
    let late = FirstToken { after_ms: 10_000, ping_every_ms: Some(3_000) };
    let (_, read) = streamed(Fault::FirstToken(late)).await;
    assert_eq!(started.elapsed(), Duration::from_secs(10));
    let (messages, left) = decoded(&read.bytes());
    assert_eq!(left, Ok(0));
    let pings = messages.iter().filter_map(event).filter(|event| event["type"] == "ping");
    assert_eq!(pings.count(), 3);
}

#[tokio::test]
async fn errors_are_those_of_the_service() {
    let limit = ErrorKind::RateLimit(RateLimit::after("3"));
    for (kind, status, name) in [
        (limit, 429, "ThrottlingException"),
        (ErrorKind::InsufficientQuota, 429, "ThrottlingException"),
        (ErrorKind::Overloaded, 503, "ServiceUnavailableException"),
        (ErrorKind::ServerError, 500, "InternalServerException"),
        (ErrorKind::ModelError, 424, "ModelErrorException"),
        (ErrorKind::GatewayTimeout, 408, "ModelTimeoutException"),
        (ErrorKind::Auth, 403, "UnrecognizedClientException"),
        (ErrorKind::Permission, 403, "AccessDeniedException"),
        (ErrorKind::ModelNotFound, 400, "ValidationException"),
        (ErrorKind::ContextOverflow, 400, "ValidationException"),
        (ErrorKind::Format, 400, "ValidationException"),
        (ErrorKind::ContentFilter, 400, "ValidationException"),
        (ErrorKind::PayloadTooLarge, 400, "ValidationException"),
    ] {
        let plan = FaultPlan::always(Fault::Error(kind.clone()));
        let provider = on(Dialect::Anthropic).with_faults(plan).build();
        for path in [INVOKE, STREAM] {
            let read = ask(&provider, with_key(path, &messages())).await;
            let (found, named, message) = error(&read);
            assert_eq!((found, named.as_str()), (status, name), "{kind:?}");
            assert!(!message.is_empty());
            assert_eq!(read.header("content-type"), Some("application/json"));
            if let ErrorKind::RateLimit(_) = kind {
                assert_eq!(read.header("retry-after"), Some("3"));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn limits_are_throttling() {
    let requests = KeyLimits { requests: Some(1), tokens: None };
    let tokens = KeyLimits { requests: None, tokens: Some(5) };
    for (limits, message) in [
        (requests, "Too many requests, please wait before trying again."),
        (tokens, "Too many tokens, please wait before trying again."),
    ] {
        let provider = on(Dialect::Anthropic).with_limits(limits).build();
        let _ = ask(&provider, with_key(INVOKE, &messages())).await;
        let read = ask(&provider, with_key(INVOKE, &messages())).await;
        let expected = (429, "ThrottlingException".to_owned(), message.to_owned());
        assert_eq!(error(&read), expected);
        assert_eq!(read.header("retry-after"), None);
    }
}

/// No header, path or body is the end of it.
#[tokio::test]
async fn nothing_that_is_sent_makes_it_panic() {
    let provider = on(Dialect::Anthropic).build();
    let authorizations: [&[u8]; 8] = [
        b"AWS4-HMAC-SHA256",
        b"AWS4-HMAC-SHA256 Credential=////,SignedHeaders=;;,Signature=0",
        b"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/x/eu-central-1/bedrock/aws4_request,SignedHeaders=host,Signature=\xc3\xa9",
        b"AWS4-HMAC-SHA256Credential=",
        b"Bearer ",
        b"Bearer",
        b"\xff\xfe",
        b"",
    ];
    let bodies = ["", "null", "[]", "{\"anthropic_version\":{}}", "{\"messages\":{}}", "\u{0}"];
    for authorization in authorizations {
        for path in [INVOKE, STREAM, COUNT, "/model/%ff/invoke", "/", "/model/%3A"] {
            for body in bodies {
                for date in ["", "20150830T123600Z", "é", "99999999T999999Z"] {
                    let mut request = bare(path, &Value::Null);
                    *request.body_mut() = Full::new(Bytes::from(body));
                    let headers = request.headers_mut();
                    let value = HeaderValue::from_bytes(authorization).unwrap();
                    headers.insert("authorization", value);
                    headers.insert("x-amz-date", HeaderValue::from_bytes(date.as_bytes()).unwrap());
                    let status = ask(&provider, request).await.status;
                    assert!((400..500).contains(&status), "{status}");
                }
            }
        }
    }
}
