//! The wire dialects: requests, answers, streams and errors, read and written.
//!
//! One [`Codec`] a dialect, used on both sides: a client writes requests and reads answers with
//! it, a gateway reads its callers' requests and writes their answers. What has not been changed
//! in between leaves as the bytes that came in.
//!
//! ```
//! use steadfast_client::dialect::{Route, Wire, codec};
//! use steadfast_core::Dialect;
//!
//! let body = br#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}],"x":1}"#[..].into();
//! let request = codec(Dialect::OpenAi).decode_request(&body, Route::default()).unwrap();
//!
//! let same = codec(Dialect::OpenAi).encode_request(&request, &Wire::default()).unwrap();
//! assert_eq!(same, body, "untouched");
//!
//! let other = codec(Dialect::Anthropic).encode_request(&request, &Wire::default()).unwrap();
//! assert_eq!(
//!     other,
//!     br#"{"model":"gpt-4o","messages":[{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]}],"max_tokens":16384}"#[..],
//! );
//! ```
//!
//! A further dialect is a further folder with a codec in it, and a line in [`codec`].

mod anthropic;
mod calls;
mod count;
mod effort;
mod embed;
mod error;
mod fault;
mod field;
mod gemini;
mod held;
mod media;
mod openai;
mod responses;
mod schema;
mod sse_out;
mod stream;
mod template;
pub mod translation;
mod turns;
mod words;

use std::{fmt, time::UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use steadfast_chat::{ChatRequest, Completion, Delta, Event, ModelName, Stop};
use steadfast_core::{Call, Dialect, Failure, Usage};

pub use self::count::{CountCodec, CountRequest, count_codec};
pub use self::embed::{EmbedCodec, EmbedRoute, EmbedShape, embed_codec};
pub use self::responses::{StandIn, StandsFor, StoredResponse, with_items};
use self::stream::range_of;
pub use self::stream::{DecodeFrames, DecodedFrame, EncodeEvents, StreamDecoder, StreamEncoder};
pub use crate::json::{RequestError, values};

/// All that is particular to one wire dialect.
pub trait Codec: fmt::Debug + Send + Sync {
    /// What never changes about the dialect.
    fn facts(&self) -> &'static DialectFacts;

    /// Reads a caller's request. Where a dialect puts model and streaming into the address, they
    /// come by `route`.
    ///
    /// # Errors
    ///
    /// When the body is no request of this dialect; the error names the field.
    fn decode_request(&self, body: &Bytes, route: Route<'_>) -> Result<ChatRequest, RequestError>;

    /// Writes a request for a provider: the body that was read when nothing has changed, else only
    /// the changed fields anew; a request of another dialect is translated.
    ///
    /// # Errors
    ///
    /// [`Reason::Unsupported`](steadfast_core::Reason) when the request has something this dialect
    /// can not express.
    fn encode_request(&self, request: &ChatRequest, wire: &Wire) -> Result<Bytes, Failure>;

    /// What [`encode_request`](Self::encode_request) leaves out of a request of another dialect because
    /// of the model that it goes to, by the names of [`Params`](steadfast_chat::Params::NAMES). What is
    /// left out whatever the model is, [`translation::check`] finds.
    fn leaves_out(&self, request: &ChatRequest) -> Vec<&'static str>;

    /// Reads a whole answer into one event.
    ///
    /// # Errors
    ///
    /// When it is an error object, no answer of this dialect, or not complete.
    fn decode_answer(&self, body: &Bytes) -> Result<Event, Failure>;

    /// Writes a whole answer for a caller, whatever it was read from. What the model did wrong is no
    /// error: arguments that are no JSON object become one where the dialect needs one.
    ///
    /// # Errors
    ///
    /// When the dialect can not express it.
    fn write_answer(&self, answer: &Completion, caller: &Caller) -> Result<Bytes, Failure>;

    /// A reader of this dialect's stream frames; see [`StreamDecoder`].
    fn frames(&self) -> Box<dyn DecodeFrames>;

    /// A writer of this dialect's stream frames; see [`StreamEncoder`].
    fn events(&self, caller: &Caller) -> Box<dyn EncodeEvents>;

    /// The body of this dialect's error.
    fn error_body(&self, error: &ErrorReply<'_>) -> Vec<u8>;

    /// The path, and query, below the base URL.
    fn path(&self, model: &str, stream: bool) -> String;

    /// The dialect.
    fn dialect(&self) -> Dialect {
        self.facts().dialect
    }

    /// A whole answer for a caller: the body it was read from, when that was in this dialect.
    ///
    /// # Errors
    ///
    /// As of [`write_answer`](Self::write_answer).
    fn encode_answer(&self, answer: &Completion, caller: &Caller) -> Result<Bytes, Failure> {
        match answer.body.as_ref().filter(|body| body.dialect == self.dialect()) {
            Some(body) => Ok(body.bytes.clone()),
            None => self.write_answer(answer, caller),
        }
    }

    /// The frame that reports a failure to a streaming caller. Nothing may follow it.
    fn encode_stream_error(&self, failure: &Failure) -> Bytes {
        error::event(failure, self.facts(), &|reply| self.error_body(reply))
    }

    /// What to answer a caller whose call failed: status, headers and body in this dialect. The
    /// provider's own answer, byte by byte, when it spoke this dialect and it is the caller who
    /// has to change something.
    fn encode_error(
        &self,
        failure: &Failure,
        request_id: Option<&str>,
    ) -> (StatusCode, HeaderMap, Bytes) {
        error::encode(failure, self.facts(), request_id, &|reply| self.error_body(reply))
    }
}

/// What never changes about a dialect.
#[derive(Debug)]
#[non_exhaustive]
pub struct DialectFacts {
    /// The dialect.
    pub dialect: Dialect,
    /// A frame that says nothing, to keep a silent stream open. `None` when this dialect's own SDKs
    /// can not bear one: Google's takes every line that is not data for a piece of JSON.
    pub keep_alive: Option<&'static [u8]>,
    /// This dialect's own SDKs take a stream that ends behind an error event for one that ended well, or as if
    /// nothing had been wrong: what reports a failure has to break the stream off behind its event.
    pub error_breaks_off: bool,
    /// The name of the stream's event that is an error, where events have names.
    pub error_event: Option<&'static str>,
    /// The header in which this dialect's providers send the id of a request.
    pub request_id: HeaderName,
    /// The address the vendor's own SDK uses.
    pub base_url: &'static str,
    /// Path segments that people add to the base URL though this dialect's paths begin with them.
    pub redundant_suffixes: &'static [&'static str],
    /// The header that carries the credential, and what stands before it there.
    pub credential: (HeaderName, &'static str),
    /// Headers this dialect's providers want besides.
    pub headers: &'static [(HeaderName, HeaderValue)],
}

pub(crate) use self::fault::unsupported;
pub(crate) use self::gemini::segment;
pub use self::{error::ErrorReply, fault::NO_RESPONSE, field::text_field};

/// The codec of `dialect`.
pub fn codec(dialect: Dialect) -> &'static dyn Codec {
    match dialect {
        Dialect::Anthropic => &anthropic::Anthropic,
        Dialect::Gemini => &gemini::Gemini,
        Dialect::Responses => &responses::Responses,
        // A dialect without a codec of its own fails the test beneath.
        Dialect::OpenAi => &openai::OpenAi,
    }
}

/// What the address of a request says, in dialects that put it there (Gemini).
#[derive(Clone, Copy, Debug, Default)]
pub struct Route<'a> {
    /// The model.
    pub model: Option<&'a str>,
    /// Whether the answer is to be streamed.
    pub stream: Option<bool>,
}

/// How one provider differs from its dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wire {
    /// OpenAI's dialect: it knows `max_completion_tokens`; else the older `max_tokens` is sent,
    /// which is the only one that many compatible servers know. OpenAI's reasoning models refuse
    /// the older one, so they get the newer in any case. A field that the caller wrote keeps its
    /// name.
    pub max_completion_tokens: bool,
    /// OpenAI's dialect: it takes `stream_options`, by which usage is asked for. Always asked for
    /// when it does.
    pub stream_usage: bool,
}

impl Default for Wire {
    fn default() -> Self {
        Self { max_completion_tokens: true, stream_usage: true }
    }
}

/// The value that `stop` came with, when the answer is of the dialect that it is written in: there it
/// means what its provider meant, whether this crate knows it or not.
fn own_word(stop: &Stop, own: bool) -> Option<&str> {
    stop.word.as_deref().filter(|_| own)
}

/// What has to be known of a request to answer its caller.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The model to name when the provider named none.
    pub model: ModelName,
    /// Whether a stream is to report usage at its end (OpenAI's dialect makes that a choice).
    pub stream_usage: bool,
    /// Tools were declared as `functions`, the older name in OpenAI's dialect, and calls are written so.
    pub functions: bool,
    /// The tools that take free text, in the dialect of OpenAI's responses: calls of them are written so.
    pub custom: Vec<Box<str>>,
    /// The namespaces of tools, in the dialect of OpenAI's responses: calls of them are written with it.
    pub namespaces: Vec<Box<str>>,
    /// About how many tokens the request has: what a stream in Anthropic's dialect says at its beginning, until
    /// the provider has counted them.
    pub input_tokens: u64,
    /// When the answer was made, in seconds since 1970 (OpenAI's dialect).
    pub created: u64,
    /// The id of the answer when the provider gave it none; prefixes are put before it.
    pub id: String,
}

impl Caller {
    /// Who made `request`.
    pub fn of(request: &ChatRequest) -> Self {
        Self {
            functions: request.params.functions,
            custom: responses::custom_names(&request.tools),
            namespaces: responses::namespaces(&request.tools),
            input_tokens: match request.dialect() {
                None | Some(Dialect::Anthropic) => request.needs().input_tokens,
                // Only Anthropic's dialect says it before the provider does.
                Some(_) => 0,
            },
            ..Self::new(request.model.clone(), request.params.stream_usage == Some(true))
        }
    }

    /// Whether the tool `name` takes free text.
    pub(crate) fn is_custom(&self, name: &str) -> bool {
        self.custom.iter().any(|custom| **custom == *name)
    }

    /// Who asked for `model`, and whether for usage at the end of a stream. The answer is made now.
    pub fn new(model: impl Into<ModelName>, stream_usage: bool) -> Self {
        let now = steadfast_core::time::wall();
        Self {
            model: model.into(),
            stream_usage,
            functions: false,
            custom: Vec::new(),
            namespaces: Vec::new(),
            input_tokens: 0,
            created: now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            id: format!("{:016x}", fastrand::u64(..)),
        }
    }
}

/// What is known of an answer that is written piece by piece.
#[derive(Debug)]
struct Known {
    caller: Caller,
    id: Option<String>,
    model: Option<String>,
    usage: Usage,
    stop: Option<Stop>,
}

impl Known {
    /// Nothing yet of an answer to `caller`.
    fn new(caller: &Caller) -> Self {
        Self { caller: caller.clone(), id: None, model: None, usage: Usage::default(), stop: None }
    }

    /// What a delta adds, whoever writes it.
    fn note(&mut self, delta: &Delta) {
        match delta {
            Delta::Start { id, model } => {
                self.id = self.id.take().or_else(|| id.clone());
                self.model = self.model.take().or_else(|| model.clone());
            }
            Delta::Usage(usage) => self.usage.update(usage),
            Delta::Stop(stop) => self.stop = Some(stop.clone()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dialect_has_its_own_codec() {
        for dialect in Dialect::ALL {
            assert_eq!(codec(dialect).dialect(), dialect);
        }
    }
}
