//! Amazon Bedrock: models in the address, signed requests, and streams of AWS's own.

use aws_credential_types::Credentials;
use aws_sigv4::{
    http_request::{SignableBody, SignableRequest, SigningSettings, sign as sign_http},
    sign::v4,
};
use aws_smithy_eventstream::frame::read_message_from;
use aws_smithy_types::event_stream::Message;
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use serde::Deserialize;
use steadfast_core::{BoxError, Dialect, Failure, Reason, Upstream, time::utc};

use super::{Bedrock, Change, Operation, changed, is_plain};
use crate::{
    ClientBody, TemporaryCredential,
    dialect::segment,
    source::{AwsKeys, Proof},
};

pub(super) const SUFFIXES: &[&str] = &["/openai/v1", "/openai"];

/// The version of Anthropic's API there, which is in the body; the vendor's documentation has had no other since 2023.
const VERSION: &str = "\"bedrock-2023-05-31\"";

/// In which a refusal is named.
pub(super) const ERROR_TYPE: HeaderName = HeaderName::from_static("x-amzn-errortype");

/// The content type of AWS's streams.
const EVENT_STREAM: &str = "application/vnd.amazon.eventstream";

const BETA: &str = "anthropic-beta";

impl Bedrock {
    pub(super) fn problem(&self) -> Option<&'static str> {
        (!is_plain(&self.region))
            .then_some("a region is made of letters, digits and hyphens, such as `eu-central-1`")
    }

    /// As the vendors' SDKs have it: responses are at a host of their own.
    pub(super) fn base_url(&self, dialect: Dialect) -> String {
        let region = &self.region;
        match dialect {
            Dialect::Responses => format!("https://bedrock-mantle.{region}.api.aws"),
            _ if region.starts_with("cn-") => {
                format!("https://bedrock-runtime.{region}.amazonaws.com.cn")
            }
            _ => format!("https://bedrock-runtime.{region}.amazonaws.com"),
        }
    }

    fn region(&self) -> &str {
        &self.region
    }
}

pub(super) fn path(dialect: Dialect, what: Operation, model: &str, vendor: &str) -> Option<String> {
    let method = match (dialect, what) {
        (_, Operation::List | Operation::Embed) => return None,
        (Dialect::OpenAi | Dialect::Responses, _) => return Some(format!("/openai/v1{vendor}")),
        (Dialect::Anthropic, Operation::Generate { stream: true }) => "invoke-with-response-stream",
        (Dialect::Anthropic, Operation::Generate { stream: false }) => "invoke",
        (Dialect::Anthropic, Operation::Count) => "count-tokens",
        (Dialect::Anthropic, Operation::Stored) | (Dialect::Gemini, _) => return None,
    };
    Some(format!("/model/{}/{method}", segment(model)))
}

/// Anthropic's request: its version and betas are in the body, its model and whether it streams in the address.
pub(super) fn messages(
    what: Operation,
    body: &Bytes,
    headers: &mut HeaderMap,
) -> Result<Bytes, Failure> {
    headers.remove("anthropic-version");
    if let Operation::Generate { stream: true } = what {
        headers.insert(header::ACCEPT, HeaderValue::from_static(EVENT_STREAM));
    }
    let betas: Vec<&str> = headers
        .get_all(BETA)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|beta| !beta.is_empty())
        .collect();
    let mut set: Vec<Change> = vec![
        (&["model"], None),
        (&["stream"], None),
        (&["anthropic_version"], Some(VERSION.to_owned())),
    ];
    if !betas.is_empty() {
        set.push((&["anthropic_beta"], Some(serde_json::json!(betas).to_string())));
    }
    headers.remove(BETA);
    let body = match what {
        // What is counted is a whole request, and those have a limit.
        Operation::Count => changed(body, &[(&["max_tokens"], Some("1".to_owned()))])
            .and_then(|body| changed(&body, &set))?,
        _ => return changed(body, &set),
    };
    let body = STANDARD.encode(body);
    Ok(serde_json::json!({"input": {"invokeModel": {"body": body}}}).to_string().into())
}

/// The vendor's answer to a request to count. What is none is left as it is.
pub(super) fn count(body: Bytes) -> Bytes {
    #[derive(Deserialize)]
    struct Count {
        #[serde(rename = "inputTokens")]
        input_tokens: u64,
    }
    match serde_json::from_slice::<Count>(&body) {
        Ok(Count { input_tokens }) => format!("{{\"input_tokens\":{input_tokens}}}").into(),
        Err(_) => body,
    }
}

/// Whether a refusal is that of OpenAI's dialect, and not of AWS.
pub(super) fn is_openai_error(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Refusal {
        #[expect(dead_code, reason = "that it is there")]
        error: serde::de::IgnoredAny,
    }
    serde_json::from_slice::<Refusal>(body).is_ok()
}

/// Whether credentials that were good may have expired. Of a token that is no longer good AWS says what it says of
/// everybody who may not.
pub(super) fn is_stale(
    status: StatusCode,
    headers: &HeaderMap,
    credential: &TemporaryCredential,
) -> bool {
    let is_token = matches!(credential.proof, Proof::Bearer(_));
    let name = headers.get(ERROR_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name = name.split(':').next().unwrap_or_default();
    status == StatusCode::UNAUTHORIZED
        || status == StatusCode::FORBIDDEN
            && (is_token
                || matches!(
                    name,
                    "ExpiredTokenException" | "ExpiredToken" | "UnrecognizedClientException"
                ))
}

/// Signs `request` with `keys`, by Signature Version 4.
///
/// # Errors
///
/// When it can not be signed: a header or an address that AWS has no words for.
pub(super) fn sign(
    request: &mut Request<ClientBody>,
    body: &[u8],
    keys: &AwsKeys,
    bedrock: &Bedrock,
) -> Result<(), BoxError> {
    // Responses are at a host of their own, and so at a service of their own.
    let host = request.uri().host().unwrap_or_default();
    let is_mantle = host.starts_with("bedrock-mantle.")
        || !host.starts_with("bedrock-runtime") && request.uri().path().contains("/responses");
    let identity = Credentials::new(
        &*keys.access_key_id,
        keys.secret_access_key.expose(),
        keys.session_token.as_ref().map(|token| token.expose().to_owned()),
        None,
        "steadfast",
    );
    let identity = identity.into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(bedrock.region())
        .name(if is_mantle { "bedrock-mantle" } else { "bedrock" })
        .time(utc())
        .settings(SigningSettings::default())
        .build()?
        .into();
    let uri = request.uri().to_string();
    // The others may be changed on their way.
    let signed = [header::CONTENT_TYPE];
    let headers = signed
        .iter()
        .filter_map(|name| Some((name.as_str(), request.headers().get(name)?.to_str().ok()?)));
    let signable =
        SignableRequest::new(request.method().as_str(), uri, headers, SignableBody::Bytes(body))?;
    let (instructions, _) = sign_http(signable, &params)?.into_parts();
    let (headers, _) = instructions.into_parts();
    for header in headers {
        let mut value = HeaderValue::try_from(header.value())?;
        value.set_sensitive(header.sensitive() || header.name() == "authorization");
        request.headers_mut().insert(HeaderName::try_from(header.name())?, value);
    }
    Ok(())
}

/// The least that a message of a stream has: two lengths and two checksums of four bytes each.
const LEAST: usize = 16;

/// A stream of AWS: messages in, the vendor's events out.
pub(crate) struct EventStream {
    left: BytesMut,
    limit: usize,
}

impl EventStream {
    /// A reader, where `headers` say that a body is such a stream; of messages of at most `limit` bytes.
    pub(super) fn of(headers: &HeaderMap, limit: usize) -> Option<Self> {
        let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
        let is_stream = kind.split(';').next()?.trim().eq_ignore_ascii_case(EVENT_STREAM);
        // Base64 makes a third more of what is in it.
        let limit = limit.saturating_mul(2);
        is_stream.then(|| Self { left: BytesMut::new(), limit })
    }

    /// Adds a chunk, and writes the events that are complete as server-sent ones.
    ///
    /// # Errors
    ///
    /// When the stream reports an error, or is damaged. What was written before is good; nothing is read after that.
    pub(crate) fn push(&mut self, chunk: &[u8], out: &mut BytesMut) -> Result<(), Failure> {
        self.left.extend_from_slice(chunk);
        while let Some(length) = self.left.first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            if !(LEAST..=self.limit).contains(&length) {
                return Err(malformed(&format!("a message of {length} bytes")));
            }
            if self.left.len() < length {
                break;
            }
            // Its checksums are verified.
            let message = read_message_from(self.left.split_to(length))
                .map_err(|error| malformed(&format!("a damaged message: {error}")))?;
            event(&message, out)?;
        }
        Ok(())
    }
}

/// Writes `message` as a server-sent event.
fn event(message: &Message, out: &mut BytesMut) -> Result<(), Failure> {
    let text = |name: &str| {
        let header = message.headers().iter().find(|header| header.name().as_str() == name)?;
        header.value().as_string().ok().map(|text| text.as_str())
    };
    match text(":message-type") {
        Some("event") if text(":event-type") == Some("chunk") => chunk(message.payload(), out),
        // What is new says nothing to who does not know it.
        Some("event") => Ok(()),
        Some("exception") => {
            Err(exception(text(":exception-type").unwrap_or_default(), message.payload()))
        }
        Some("error") => {
            let payload = serde_json::json!({"message": text(":error-message")}).to_string();
            Err(exception(text(":error-code").unwrap_or_default(), &payload.into()))
        }
        _ => Err(malformed("a message without a type")),
    }
}

fn malformed(what: &str) -> Failure {
    Failure::new(Reason::ServerError, format!("the provider's AWS event stream has {what}"))
        .with_evidence("malformed")
}

/// Writes the vendor's event that is in a chunk.
fn chunk(payload: &Bytes, out: &mut BytesMut) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Chunk<'a> {
        #[serde(borrow)]
        bytes: std::borrow::Cow<'a, str>,
    }
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(rename = "type", borrow)]
        kind: std::borrow::Cow<'a, str>,
    }
    let chunk: Chunk<'_> =
        serde_json::from_slice(payload).map_err(|_| malformed("a chunk without bytes"))?;
    let json = STANDARD
        .decode(chunk.bytes.as_bytes())
        .map_err(|_| malformed("a chunk that is no base64"))?;
    let event: Event<'_> =
        serde_json::from_slice(&json).map_err(|_| malformed("a chunk that is no event"))?;
    // A line of its own each; in valid JSON no string has an end of a line.
    out.reserve(json.len() + event.kind.len() + 24);
    out.extend_from_slice(b"event: ");
    out.extend(event.kind.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')));
    out.extend_from_slice(b"\ndata: ");
    out.extend(json.iter().filter(|byte| !matches!(byte, b'\r' | b'\n')));
    out.extend_from_slice(b"\n\n");
    Ok(())
}

/// The failure that an exception within a stream is: that of the same name as a whole answer.
fn exception(name: &str, payload: &Bytes) -> Failure {
    let mut name: String = name.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
    if let Some(first) = name.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    // As the service's model has them.
    let status = match &*name {
        "ValidationException" => StatusCode::BAD_REQUEST,
        "AccessDeniedException" | "ExpiredTokenException" => StatusCode::FORBIDDEN,
        "ModelTimeoutException" => StatusCode::REQUEST_TIMEOUT,
        "ModelStreamErrorException" | "ModelErrorException" => StatusCode::FAILED_DEPENDENCY,
        "ThrottlingException" | "ModelNotReadyException" => StatusCode::TOO_MANY_REQUESTS,
        "ServiceUnavailableException" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::try_from(name) {
        headers.insert(ERROR_TYPE, value);
    }
    let body = Bytes::copy_from_slice(payload);
    Failure::from_upstream(Upstream::response(status, headers, body)).with_evidence("event")
}
