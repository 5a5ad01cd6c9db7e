//! Counting tokens: requests read and written, answers read and written.

use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use steadfast_chat::ChatRequest;
use steadfast_core::{Dialect, Failure};

use super::{Wire, anthropic, fault, gemini, responses};
use crate::json::{Object, RequestError, fields_of_body, patched, quoted, text_of};

/// A request to count the tokens of a chat request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CountRequest {
    /// What is counted. Its context names the target.
    pub chat: ChatRequest,
    /// The dialect it was read in, and the body, when it was read.
    pub(crate) read: Option<(Dialect, Bytes)>,
}

impl CountRequest {
    /// Counts `chat`.
    pub fn new(chat: ChatRequest) -> Self {
        Self { chat, read: None }
    }

    /// The dialect it was read in.
    pub fn dialect(&self) -> Option<Dialect> {
        self.read.as_ref().map(|(dialect, _)| *dialect)
    }

    /// The body that was read in `dialect`.
    pub(crate) fn body(&self, dialect: Dialect) -> Option<&Bytes> {
        self.read.as_ref().filter(|(read, _)| *read == dialect).map(|(_, body)| body)
    }
}

/// How a dialect asks for a count of tokens.
pub trait CountCodec: fmt::Debug + Send + Sync {
    /// Reads a caller's request; Gemini has the model in the address.
    ///
    /// # Errors
    ///
    /// When the body is no request of this dialect; the error names the field.
    fn decode_request(
        &self,
        body: &Bytes,
        model: Option<&str>,
    ) -> Result<CountRequest, RequestError>;

    /// Writes a request for a provider: the body that was read, with the model of the chat request; one of another
    /// dialect is translated as a chat request to that provider would be.
    ///
    /// # Errors
    ///
    /// [`Reason::Unsupported`](steadfast_core::Reason) when the request has something this dialect can not express.
    fn encode_request(&self, request: &CountRequest, wire: &Wire) -> Result<Bytes, Failure>;

    /// The path below the base URL.
    fn path(&self, model: &str) -> String;

    /// The input tokens that an answer reports.
    ///
    /// # Errors
    ///
    /// When it reports none.
    fn decode_answer(&self, body: &Bytes) -> Result<u64, Failure>;

    /// The answer that reports so many.
    fn write_answer(&self, tokens: u64) -> Bytes;
}

/// How `dialect` asks for a count of tokens; `None` where it can not be asked for.
pub fn count_codec(dialect: Dialect) -> Option<&'static dyn CountCodec> {
    match dialect {
        Dialect::Anthropic => Some(&anthropic::TokenCount),
        Dialect::Gemini => Some(&gemini::TokenCount),
        Dialect::Responses => Some(&responses::TokenCount),
        // Chat completions have none.
        Dialect::OpenAi => None,
    }
}

/// The `body` of `request`, which was read in `dialect`, for the model that it goes to.
pub(super) fn with_model(
    body: &Bytes,
    request: &CountRequest,
    dialect: Dialect,
) -> Result<Bytes, Failure> {
    let asked = request.chat.origin(dialect).map(|origin| &origin.read().model);
    if asked == Some(&request.chat.model) {
        return Ok(body.clone());
    }
    let old = serde_json::from_slice(body)
        .map_err(|error| fault::malformed(dialect, "a request", &error))?;
    let set: [(&'static [&'static str], _); 1] = [(&["model"], Some(quoted(&request.chat.model)))];
    patched(Some(old), &set).map(Bytes::from)
}

/// The count in an answer of `dialect` that has it as `input_tokens`.
pub(super) fn input_tokens(dialect: Dialect, body: &Bytes) -> Result<u64, Failure> {
    #[derive(Deserialize)]
    struct Answer {
        input_tokens: u64,
    }
    let answer = serde_json::from_slice::<Answer>(body);
    answer
        .map(|answer| answer.input_tokens)
        .map_err(|error| fault::malformed(dialect, "a count of tokens", &error))
}

/// `body` with no other fields than `names`: all else is refused in a request to count.
pub(super) fn only(names: &[&str], body: &Bytes) -> Result<Bytes, Failure> {
    let mut out = Vec::with_capacity(body.len());
    {
        let mut object = Object::new(&mut out);
        for (name, raw) in fields_of_body(body)?.iter().filter(|(name, _)| names.contains(name)) {
            object.raw(name, raw.get());
        }
    }
    Ok(text_of(out).into())
}
