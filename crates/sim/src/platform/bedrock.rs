//! Amazon Bedrock: models in the address, signed requests, errors and streams of AWS's own.

use std::collections::HashSet;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use steadfast_core::time::utc;

use super::event_stream::{EventStream, chunk, events, exception};
use super::sigv4::{Authorization, AwsSigner, Scope, SignatureError, Signed};
use super::{bearer, decoded, is_date, is_route, take, text, uuid, vendor_version};
use crate::answer::Sent;
use crate::clock::WallClock;
use crate::dialect::openai::errors::hinted;
use crate::dialect::{self, Dialect, ErrorContext, Refusal};
use crate::fault::ErrorKind;
use crate::hosting::{Hosting, Received, VendorRequest};
use crate::limit::{Denied, Resource};
use crate::serve::set;
use crate::wire::{Frame, Framing, Kind, ServerSent};

/// The version of Anthropic's API that the body names, besides dates.
const VERSION: &str = "bedrock-2023-05-31";

/// What stands before what a model refuses.
const BY_MODEL: &str = "The model returned the following errors: ";

/// Most bytes of a body.
const BODY_MAX: u64 = 25_000_000;

const ERROR_TYPE: &str = "x-amzn-errortype";

const VALIDATION: &str = "ValidationException";

const THROTTLING: &str = "ThrottlingException";

/// How Bedrock serves models. Clones have the same signers.
#[derive(Clone, Debug)]
pub struct SimBedrock {
    region: String,
    signers: Vec<AwsSigner>,
    expired: Arc<Mutex<HashSet<String>>>,
}

/// An address that Bedrock has.
enum Address {
    /// A call of Anthropic's model.
    Model(String, Call),
    /// The vendor's own, in OpenAI's dialects.
    Vendor(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Invoke,
    Stream,
    Count,
}

impl SimBedrock {
    pub(super) fn new(region: String) -> Self {
        Self { region, signers: Vec::new(), expired: Arc::default() }
    }

    /// Adds credentials that requests may be signed with. Without any, and without
    /// [keys](crate::SimProviderBuilder::keys), every bearer token is accepted, and no signature.
    #[must_use]
    pub fn with_signer(mut self, signer: AwsSigner) -> Self {
        self.signers.push(signer);
        self
    }

    fn address(received: &Received<'_>) -> Option<Address> {
        let path = received.path();
        match received.dialect {
            Dialect::Gemini => None,
            Dialect::OpenAi | Dialect::Responses => {
                let path = path.strip_prefix("/openai")?;
                let known = match received.dialect {
                    Dialect::OpenAi => path == "/v1/chat/completions",
                    _ => path.starts_with("/v1/responses"),
                };
                (known && is_route(received, path)).then(|| Address::Vendor(path.to_owned()))
            }
            Dialect::Anthropic => {
                let (model, call) = path.strip_prefix("/model/")?.split_once('/')?;
                let call = match call {
                    "invoke" => Call::Invoke,
                    "invoke-with-response-stream" => Call::Stream,
                    "count-tokens" => Call::Count,
                    _ => return None,
                };
                let model = decoded(model).filter(|model| !model.is_empty())?;
                (received.method() == Method::POST).then_some(Address::Model(model, call))
            }
        }
    }

    /// Who calls, and why that is refused.
    fn authenticate(&self, received: &Received<'_>) -> (Option<String>, Option<Refusal>) {
        let headers = &received.head.headers;
        let Some(authorization) = text(headers, header::AUTHORIZATION.as_str()) else {
            let name = "MissingAuthenticationTokenException";
            return (None, Some(aws(403, name, "Missing Authentication Token")));
        };
        if let Some(token) = bearer(headers) {
            let has_tokens = received.keys.is_some() || self.signers.is_empty();
            let accepted = has_tokens && received.accepts(token);
            return (Some(token.to_owned()), (!accepted).then(bad_token));
        }
        match Authorization::read(authorization) {
            Some(Ok(read)) => {
                let refused = self.verify(received, &read).err();
                (Some(read.access_key_id.to_owned()), refused)
            }
            Some(Err(error)) => (None, Some(bad_signature(error))),
            None => {
                let message = "Authorization header requires 'Credential' parameter. Authorization \
                               header requires 'Signature' parameter. Authorization header \
                               requires 'SignedHeaders' parameter.";
                (None, Some(bad_signature(SignatureError::Incomplete(message.to_owned()))))
            }
        }
    }

    fn verify(
        &self,
        received: &Received<'_>,
        authorization: &Authorization<'_>,
    ) -> Result<(), Refusal> {
        let head = received.head;
        let signed = Signed {
            method: head.method.as_str(),
            path: received.path(),
            query: received.query(),
            headers: &head.headers,
            authority: head.uri.authority().map(http::uri::Authority::as_str),
            body: received.body,
        };
        let scope = Scope {
            region: &self.region,
            // Responses are at a host of their own, and so at a service of their own.
            service: match received.dialect {
                Dialect::Responses => "bedrock-mantle",
                _ => "bedrock",
            },
        };
        let id = authorization.access_key_id;
        let signer = self.signers.iter().find(|signer| signer.access_key_id() == id);
        let signer = signer.ok_or_else(|| bad_signature(SignatureError::UnknownSigner))?;
        if self.expired.lock().contains(id) {
            return Err(expired());
        }
        authorization.check(&signed, scope, signer, utc()).map_err(bad_signature)?;
        authorization.verify(&signed, signer).map_err(bad_signature)
    }
}

impl Hosting for SimBedrock {
    fn open(&self, received: &Received<'_>) -> VendorRequest {
        let (key, unauthenticated) = self.authenticate(received);
        let mut request = VendorRequest { key, path: String::new(), ..VendorRequest::of(received) };
        let opened = match Self::address(received) {
            None => Err(unknown_operation()),
            Some(Address::Vendor(path)) => {
                request.path = path;
                Ok(())
            }
            Some(Address::Model(model, call)) => {
                request.path = match call {
                    Call::Invoke | Call::Stream => "/v1/messages".to_owned(),
                    Call::Count => "/v1/messages/count_tokens".to_owned(),
                };
                vendor_version(&mut request.headers);
                unwrap(&mut request.json, model, call)
            }
        };
        request.refused = unauthenticated.or(opened.err());
        request
    }

    fn request_id(
        &self,
        _dialect: Dialect,
        rng: &mut fastrand::Rng,
    ) -> (Option<&'static str>, String) {
        (Some("x-amzn-requestid"), uuid(rng))
    }

    fn id_infix(&self) -> &'static str {
        "bdrk_"
    }

    fn no_model(&self, dialect: Dialect, name: &str) -> Refusal {
        match dialect {
            Dialect::Anthropic => aws(400, VALIDATION, "The provided model identifier is invalid."),
            _ => dialect::no_model(dialect, name),
        }
    }

    fn bad_json(&self, dialect: Dialect, error: &serde_json::Error, body: &[u8]) -> Refusal {
        match dialect {
            Dialect::Anthropic => aws(
                400,
                VALIDATION,
                "Malformed input request, please reformat your input and try again.",
            ),
            _ => dialect::bad_json(dialect, error, body),
        }
    }

    fn limited(&self, dialect: Dialect, denied: &Denied, model: &str, wall: &WallClock) -> Refusal {
        match (dialect, denied.resource) {
            (Dialect::Anthropic, Resource::Requests) => throttled("requests"),
            (Dialect::Anthropic, Resource::Tokens) => throttled("tokens"),
            _ => dialect::limited(dialect, denied, model, wall),
        }
    }

    fn refused(&self, dialect: Dialect, refusal: Refusal, counting: bool) -> Refusal {
        if dialect != Dialect::Anthropic || refusal.html.is_some() || refusal.body.is_some() {
            return refusal;
        }
        let by = if counting { "" } else { BY_MODEL };
        aws(400, VALIDATION, format!("{by}{}", refusal.message))
    }

    fn error(&self, kind: &ErrorKind, context: &ErrorContext<'_>, own: Refusal) -> Refusal {
        match kind {
            ErrorKind::Auth => return bad_signature(SignatureError::UnknownSigner),
            ErrorKind::Permission => {
                return aws(
                    403,
                    "AccessDeniedException",
                    "You don't have access to the model with the specified model ID.",
                );
            }
            ErrorKind::ModelNotFound => return self.no_model(context.dialect, &context.model.name),
            _ if context.dialect != Dialect::Anthropic => return own,
            _ => {}
        }
        match kind {
            ErrorKind::RateLimit(hints) => hinted(throttled("tokens"), hints, context.wall),
            ErrorKind::InsufficientQuota => throttled("tokens per day"),
            ErrorKind::Overloaded => aws(
                503,
                "ServiceUnavailableException",
                "Bedrock is unable to process your request.",
            ),
            ErrorKind::ServerError => aws(
                500,
                "InternalServerException",
                "The system encountered an unexpected error during processing. Try your request \
                 again.",
            ),
            ErrorKind::ModelError => model_error(),
            ErrorKind::GatewayTimeout => aws(
                408,
                "ModelTimeoutException",
                "The request took too long to process. Processing time exceeded the model timeout \
                 length.",
            ),
            ErrorKind::PayloadTooLarge => aws(
                400,
                VALIDATION,
                format!(
                    "1 validation error detected: Value at 'body' failed to satisfy constraint: \
                     Member must have length less than or equal to {BODY_MAX}"
                ),
            ),
            _ => self.refused(context.dialect, own, false),
        }
    }

    fn error_frame(&self, kind: &ErrorKind, context: &ErrorContext<'_>, own: Bytes) -> Bytes {
        if context.dialect != Dialect::Anthropic {
            return own;
        }
        let refusal = context.refusal(kind);
        let mut body = json!({"message": refusal.message});
        // Those that the service's model has for a stream.
        let name = match kind {
            ErrorKind::RateLimit(_) | ErrorKind::InsufficientQuota => "throttlingException",
            ErrorKind::Overloaded => "serviceUnavailableException",
            ErrorKind::ServerError => "internalServerException",
            ErrorKind::GatewayTimeout => "modelTimeoutException",
            ErrorKind::ModelError | ErrorKind::BadGatewayHtml => {
                body["originalStatusCode"] = json!(502);
                body["originalMessage"] = json!("Bad Gateway");
                "modelStreamErrorException"
            }
            _ => "validationException",
        };
        exception(name, &body)
    }

    fn count(&self, dialect: Dialect, tokens: u64) -> Value {
        match dialect {
            Dialect::Anthropic => json!({"inputTokens": tokens}),
            _ => dialect::count(dialect, tokens),
        }
    }

    fn frames(&self, dialect: Dialect, frames: Vec<Frame>, sent: &Sent) -> Vec<Frame> {
        if dialect != Dialect::Anthropic {
            return frames;
        }
        let framed = |mut frame: Frame| {
            let mut out = Vec::new();
            for event in events(&frame.bytes).filter_map(|event| event_of(event, sent)) {
                out.extend_from_slice(&chunk(&event));
            }
            frame.bytes = out.into();
            frame
        };
        frames
            .into_iter()
            .map(framed)
            .filter(|frame| frame.kind != Kind::Meta || !frame.bytes.is_empty())
            .collect()
    }

    fn framing(&self, dialect: Dialect) -> &dyn Framing {
        match dialect {
            Dialect::Anthropic => &EventStream,
            _ => &ServerSent,
        }
    }

    fn stream_type(&self, dialect: Dialect, sse: bool) -> &'static str {
        match dialect {
            Dialect::Anthropic => "application/vnd.amazon.eventstream",
            _ => dialect::stream_type(dialect, sse),
        }
    }

    fn answer_headers(&self, dialect: Dialect, stream: bool, sent: &Sent, headers: &mut HeaderMap) {
        if dialect != Dialect::Anthropic {
            return;
        }
        let mut add = |name, value: &str| set(headers, HeaderName::from_static(name), value);
        if stream {
            return add("x-amzn-bedrock-content-type", "application/json");
        }
        let latency = latency(sent);
        add("x-amzn-bedrock-invocation-latency", &latency.to_string());
        add("x-amzn-bedrock-input-token-count", &sent.usage.input.to_string());
        add("x-amzn-bedrock-output-token-count", &sent.usage.output.to_string());
    }

    fn shows_limits(&self) -> bool {
        false
    }

    fn expire_signer(&self, access_key_id: &str) -> bool {
        let known = self.signers.iter().any(|signer| signer.access_key_id() == access_key_id);
        if known {
            self.expired.lock().insert(access_key_id.to_owned());
        }
        known
    }
}

/// Makes a call of Anthropic's model the vendor's request.
fn unwrap(
    json: &mut Result<Value, serde_json::Error>,
    model: String,
    call: Call,
) -> Result<(), Refusal> {
    if call == Call::Count {
        *json = counted(json.as_ref().ok())?;
    }
    let Ok(body) = json else { return Ok(()) };
    let Some(fields) = body.as_object() else { return Ok(()) };
    for key in ["model", "stream"] {
        if fields.contains_key(key) {
            return Err(malformed(&format!("#: extraneous key [{key}] is not permitted"), call));
        }
    }
    match &body["anthropic_version"] {
        Value::String(version) if version == VERSION || is_date(version) => {}
        Value::Null => {
            return Err(malformed("#: required key [anthropic_version] not found", call));
        }
        Value::String(version) => {
            let message = format!("#/anthropic_version: {version} is not a valid enum value");
            return Err(malformed(&message, call));
        }
        _ => return Err(malformed("#/anthropic_version: expected type: String", call)),
    }
    match &body["anthropic_beta"] {
        Value::Null => {}
        Value::Array(list) if list.iter().all(Value::is_string) => {}
        _ => return Err(malformed("#/anthropic_beta: expected type: JSONArray", call)),
    }
    if call == Call::Count && body["max_tokens"].is_null() {
        return Err(aws(400, VALIDATION, "max_tokens: Field required"));
    }
    take(body, "anthropic_version");
    take(body, "anthropic_beta");
    body["model"] = model.into();
    if call == Call::Stream {
        body["stream"] = true.into();
    }
    Ok(())
}

/// What is counted: a whole request, as it would be sent.
fn counted(outer: Option<&Value>) -> Result<Result<Value, serde_json::Error>, Refusal> {
    let serialization = |message: &str| aws(400, "SerializationException", message);
    let outer = outer
        .filter(|outer| outer.is_object())
        .ok_or_else(|| serialization("Expected a JSON object"))?;
    if outer["input"].is_null() {
        return Err(aws(
            400,
            VALIDATION,
            "1 validation error detected: Value null at 'input' failed to satisfy constraint: \
             Member must not be null",
        ));
    }
    let body = &outer["input"]["invokeModel"]["body"];
    let body = body.as_str().ok_or_else(|| {
        aws(
            400,
            VALIDATION,
            "1 validation error detected: Value null at 'input.invokeModel.body' failed to \
             satisfy constraint: Member must not be null",
        )
    })?;
    let body = STANDARD.decode(body).map_err(|_| serialization("Expected a blob in base64"))?;
    Ok(serde_json::from_slice(&body))
}

/// The vendor's event as it is sent here; `None` for one that is not.
fn event_of(event: &str, sent: &Sent) -> Option<String> {
    let mut parsed: Value = serde_json::from_str(event).ok()?;
    match parsed["type"].as_str() {
        Some("ping") => None,
        Some("message_stop") => {
            parsed["amazon-bedrock-invocationMetrics"] = json!({
                "inputTokenCount": sent.usage.input,
                "outputTokenCount": sent.usage.output,
                "invocationLatency": latency(sent),
                "firstByteLatency": latency(sent) / 2,
                "cacheReadInputTokenCount": sent.usage.cache_read,
                "cacheWriteInputTokenCount": sent.usage.cache_write,
            });
            Some(parsed.to_string())
        }
        _ => Some(event.to_owned()),
    }
}

/// Milliseconds that an answer of this length may have taken.
fn latency(sent: &Sent) -> u64 {
    sent.usage.output.saturating_mul(10).saturating_add(200)
}

/// A refusal of AWS.
fn aws(status: u16, name: &'static str, message: impl Into<String>) -> Refusal {
    let message = message.into();
    let body = json!({ "message": message });
    typed(Refusal::new(status, name, message), name).body(body)
}

/// Names a refusal, as only its header does.
fn typed(refusal: Refusal, name: &str) -> Refusal {
    let name = format!("{name}:http://internal.amazon.com/coral/com.amazon.bedrock/");
    refusal.header(ERROR_TYPE, name)
}

fn throttled(what: &str) -> Refusal {
    aws(429, THROTTLING, format!("Too many {what}, please wait before trying again."))
}

fn malformed(what: &str, call: Call) -> Refusal {
    let by = if call == Call::Count { "" } else { BY_MODEL };
    let message =
        format!("{by}Malformed input request: {what}, please reformat your input and try again.");
    aws(400, VALIDATION, message)
}

fn model_error() -> Refusal {
    let message = "The request failed due to an error while processing the model.";
    let refusal = aws(424, "ModelErrorException", message);
    refusal.body(json!({"message": message, "originalStatusCode": 502}))
}

fn unknown_operation() -> Refusal {
    let name = "UnknownOperationException";
    typed(Refusal::new(404, name, "unknown operation"), name).body(json!({
        "Output": {"__type": "com.amazon.coral.service#UnknownOperationException"},
        "Version": "1.0",
    }))
}

/// A wrong or expired key of Bedrock's own.
fn bad_token() -> Refusal {
    let message = "Authentication failed: Please make sure your API Key is valid.";
    aws(403, "AccessDeniedException", message).body(json!({ "Message": message }))
}

fn expired() -> Refusal {
    let message = "The security token included in the request is expired";
    aws(403, "ExpiredTokenException", message)
}

fn bad_signature(error: SignatureError) -> Refusal {
    match error {
        SignatureError::Incomplete(message) => aws(403, "IncompleteSignatureException", message),
        SignatureError::UnknownSigner => aws(
            403,
            "UnrecognizedClientException",
            "The security token included in the request is invalid.",
        ),
        SignatureError::Invalid(message) => aws(403, "InvalidSignatureException", message),
    }
}
