//! The faults.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::continuation::ContinuationMode;
use crate::dialect::overflow::Overflow;

/// One misbehaviour.
///
/// In a plan file: `fault = "hang"`, `fault = { error = "overloaded" }`,
/// `fault = { break = { after_events = 8, how = "reset" } }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Fault {
    /// Exactly this response.
    Status(RawResponse),
    /// A refusal with the dialect's own body, status and headers.
    Error(ErrorKind),
    /// The same body under status 200.
    ErrorInOk(ErrorKind),
    /// A 200 with nothing in it. A stream of OpenAI's holds just `[DONE]`.
    Empty,
    /// Headers are never sent.
    Hang,
    /// The connection is refused. Over a real socket it already exists when a request is matched,
    /// so it is reset at once; `SimServer::refuse` closes the port.
    Refused,
    /// The connection is reset before the headers.
    Reset,
    /// The connection is closed before the headers.
    Close,
    /// The connection is closed inside the headers.
    HalfHeaders,
    /// The answer starts and then breaks.
    Break(Break),
    /// The first content is late.
    FirstToken(FirstToken),
    /// The body is sent in small pieces that split characters and frames.
    Drip(Drip),
    /// Several frames are sent in one piece.
    Coalesce(Coalesce),
    /// The body is right; its `content-type` is this.
    ContentType(String),
    /// The answer is cut after so many output tokens, whatever the request allowed.
    OutputLimit(u64),
    /// The model's window is this one.
    Window(WindowOverride),
    /// This answer instead of the script's; the script keeps its next one.
    Answer(Box<Answer>),
    /// If the request asks for the rest of an answer, the model continues like this.
    /// Its key is `goes_on`.
    #[serde(rename = "goes_on")]
    Continuation(ContinuationMode),
    /// All of these, in this order.
    Many(Vec<Fault>),
}

/// A literal response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawResponse {
    /// The status, 200 to 599.
    pub status: u16,
    /// Headers. Without a `content-type`, a body that is JSON gets `application/json` and any
    /// other `text/plain`.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The body.
    #[serde(default)]
    pub body: String,
}

/// Where an answer breaks, and how.
///
/// With `after_events = 0` not even the opening frames of a stream are sent. A stream that has
/// fewer events or bytes breaks right before its terminal events; `after_bytes` may also break it
/// between or inside them. Without a number a stream breaks before its first frame. A body that
/// is not a stream has no events: it breaks after `after_bytes`, else in its middle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Break {
    /// After so many content events (text, thinking or tool-call deltas).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_events: Option<usize>,
    /// After so many bytes of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_bytes: Option<usize>,
    /// How it breaks.
    pub how: How,
}

/// How an answer breaks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum How {
    /// The connection is reset.
    Reset,
    /// The connection is closed without the end of the chunked body.
    Close,
    /// The body ends cleanly, without the dialect's terminal event.
    End,
    /// Nothing more is sent; the connection stays open.
    Stall,
    /// The dialect's error event, then a clean end.
    ErrorEvent(ErrorKind),
    /// The next frame is not JSON; those after it are valid, to the terminal event.
    MalformedJson,
    /// Half of the next frame, then a clean end.
    TruncatedJson,
    /// Bytes that are not UTF-8 in place of the next frame; the frames after it are valid.
    Garbage,
}

/// A late first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirstToken {
    /// Milliseconds between the headers and the first content event.
    pub after_ms: u64,
    /// Until then, milliseconds between the dialect's keep-alives (`ping` event or comment).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ping_every_ms: Option<u64>,
}

/// A window other than the model's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowOverride {
    /// Its size in tokens.
    pub tokens: u64,
    /// How a request beyond it is refused; as the model's if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overflow: Option<Overflow>,
}

/// A body in small pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drip {
    /// Bytes at a time, at least 1.
    pub bytes: usize,
    /// Milliseconds between two pieces; 0 is as fast as the client reads.
    #[serde(default)]
    pub every_ms: u64,
}

/// Frames sent together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coalesce {
    /// Frames in one piece; 0 means all of them.
    #[serde(default)]
    pub frames: usize,
}

/// An error that every provider has, each with its own status and message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Too many requests or tokens: 429.
    RateLimit(RateLimit),
    /// No credit left: OpenAI's 429 `insufficient_quota`, Anthropic's 400 about the credit
    /// balance, Gemini's 429 for the day.
    InsufficientQuota,
    /// 529 (Anthropic), 503 (the others).
    Overloaded,
    /// 500.
    ServerError,
    /// The model itself failed: 424 on Bedrock, 500 elsewhere.
    ModelError,
    /// 504.
    GatewayTimeout,
    /// The key is wrong: 401, Gemini's 400 `API_KEY_INVALID`.
    Auth,
    /// The key lacks a permission: 403.
    Permission,
    /// 404.
    ModelNotFound,
    /// The input does not fit: 400.
    ContextOverflow,
    /// The request is malformed: 400.
    Format,
    /// The content policy forbids it: 400.
    ContentFilter,
    /// The request has too many bytes: 413.
    PayloadTooLarge,
    /// The error page of a proxy: 502 with HTML.
    BadGatewayHtml,
}

/// The hints of a 429 about when to retry. All fields are optional and are sent as given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateLimit {
    /// `retry-after`, as written: `"2"`, `"1.5"` or an HTTP date.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<String>,
    /// `retry-after` as an HTTP date so many seconds from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_date_s: Option<u64>,
    /// `retry-after-ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// `x-ratelimit-reset-requests`, as written: `"1.5s"`, `"6m0s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset: Option<String>,
    /// `anthropic-ratelimit-requests-reset`: RFC 3339, so many seconds from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anthropic_reset_s: Option<u64>,
    /// The `retryDelay` of a `google.rpc.RetryInfo`, as written: `"34.4s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_info: Option<String>,
    /// The wait named in the message, as written: `"7m12s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_message: Option<String>,
    /// `x-should-retry`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub should_retry: Option<bool>,
}

impl RateLimit {
    /// A `retry-after` header with this text.
    pub fn after(text: impl Into<String>) -> Self {
        Self { retry_after: Some(text.into()), ..Self::default() }
    }

    /// A `retry-after-ms` header.
    #[must_use]
    pub fn after_ms(ms: u64) -> Self {
        Self { retry_after_ms: Some(ms), ..Self::default() }
    }

    /// An `x-ratelimit-reset-requests` header with this text.
    pub fn reset(text: impl Into<String>) -> Self {
        Self { reset: Some(text.into()), ..Self::default() }
    }
}

impl Fault {
    /// A 429 with the given hints.
    #[must_use]
    pub fn rate_limit(hints: RateLimit) -> Self {
        Self::Error(ErrorKind::RateLimit(hints))
    }

    /// The stream breaks after `events` content events.
    #[must_use]
    pub fn break_after(events: usize, how: How) -> Self {
        Self::Break(Break { after_events: Some(events), after_bytes: None, how })
    }

    /// The body breaks after `bytes` bytes.
    #[must_use]
    pub fn break_after_bytes(bytes: usize, how: How) -> Self {
        Self::Break(Break { after_events: None, after_bytes: Some(bytes), how })
    }

    /// The first content event comes `after_ms` milliseconds after the headers, with no keep-alive
    /// before it.
    #[must_use]
    pub fn first_token_after_ms(after_ms: u64) -> Self {
        Self::FirstToken(FirstToken { after_ms, ping_every_ms: None })
    }

    /// The model's window has so many tokens.
    #[must_use]
    pub fn window(tokens: u64) -> Self {
        Self::Window(WindowOverride { tokens, overflow: None })
    }

    /// This answer instead of the script's.
    #[must_use]
    pub fn answer(answer: Answer) -> Self {
        Self::Answer(Box::new(answer))
    }

    /// `bytes` at a time, without pauses.
    #[must_use]
    pub fn drip(bytes: usize) -> Self {
        Self::Drip(Drip { bytes, every_ms: 0 })
    }

    /// An error message that begins with the key, if a value is invalid.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::Status(raw) => {
                if !(200..=599).contains(&raw.status) {
                    return Err(format!("status.status is {}; it must be 200 to 599", raw.status));
                }
                for (name, value) in &raw.headers {
                    if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
                        return Err(format!("status.headers: {name:?} is no header name"));
                    }
                    if http::HeaderValue::from_str(value).is_err() {
                        return Err(format!("status.headers.{name}: {value:?} is no header value"));
                    }
                }
                Ok(())
            }
            Self::Break(b) if b.after_events.is_some() && b.after_bytes.is_some() => {
                Err("break has both after_events and after_bytes; give one of them".into())
            }
            Self::Drip(drip) if drip.bytes == 0 => {
                Err("drip.bytes is 0; it must be at least 1".into())
            }
            Self::FirstToken(first) if first.ping_every_ms == Some(0) => {
                Err("first_token.ping_every_ms is 0; leave it out for silence".into())
            }
            Self::ContentType(text) if http::HeaderValue::from_str(text).is_err() => {
                Err(format!("content_type: {text:?} is no header value"))
            }
            Self::Error(kind) | Self::ErrorInOk(kind) => kind.check(),
            Self::Answer(answer) => answer.check().map_err(|message| format!("answer.{message}")),
            Self::Many(faults) => faults.iter().try_for_each(Self::check),
            _ => Ok(()),
        }
    }

    /// The faults in it, one level deep.
    pub(crate) fn each(&self) -> &[Fault] {
        match self {
            Self::Many(faults) => faults,
            one => std::slice::from_ref(one),
        }
    }
}

impl ErrorKind {
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self::RateLimit(hints) = self else { return Ok(()) };
        for (key, text) in [("retry_after", &hints.retry_after), ("reset", &hints.reset)] {
            if let Some(text) = text
                && http::HeaderValue::from_str(text).is_err()
            {
                return Err(format!("rate_limit.{key}: {text:?} is no header value"));
            }
        }
        Ok(())
    }
}
