//! Embeddings: requests read and written, answers read.

use std::fmt;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use steadfast_chat::{EmbedRequest, EmbedResponse, Embedding, Head};
use steadfast_core::{Dialect, Failure, Reason};

use super::{fault, gemini, openai};
use crate::json::{Raw, RequestError};

/// How a dialect asks for embeddings. Between dialects nothing is translated: a request is sent in the dialect it
/// was read in, as it came.
pub trait EmbedCodec: fmt::Debug + Send + Sync {
    /// Reads a caller's request.
    ///
    /// # Errors
    ///
    /// When the body is no request of this dialect; the error names the field.
    fn decode_request(
        &self,
        body: &Bytes,
        route: EmbedRoute<'_>,
    ) -> Result<EmbedRequest, RequestError>;

    /// Writes a request for a provider: the body that was read, with the model of the request.
    ///
    /// # Errors
    ///
    /// [`Reason::Unsupported`] when it was read in another dialect, or has something this one can not express.
    fn encode_request(&self, request: &EmbedRequest) -> Result<Bytes, Failure>;

    /// The path below the base URL.
    fn path(&self, request: &EmbedRequest) -> String;

    /// Reads a whole answer to a request of this shape, whose head is known. Vectors that came in another order
    /// than they were asked for are sorted.
    ///
    /// # Errors
    ///
    /// When it is an error object, no answer of this dialect, or has not one vector for each input.
    fn decode_answer(
        &self,
        head: Head,
        asked: EmbedShape,
        body: &Bytes,
    ) -> Result<EmbedResponse, Failure>;
}

/// How `dialect` asks for embeddings; `None` where its vendor has none.
pub fn embed_codec(dialect: Dialect) -> Option<&'static dyn EmbedCodec> {
    match dialect {
        Dialect::OpenAi => Some(&openai::Embeddings),
        Dialect::Gemini => Some(&gemini::Embeddings),
        Dialect::Anthropic | Dialect::Responses => None,
    }
}

/// What the address of a request for embeddings says, in dialects that put it there (Gemini).
#[derive(Clone, Copy, Debug, Default)]
pub struct EmbedRoute<'a> {
    /// The model.
    pub model: Option<&'a str>,
    /// Whether one vector is asked for by the method for one.
    pub is_single: bool,
}

/// What has to be known of a request to read its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbedShape {
    /// How many vectors it asks for.
    pub inputs: usize,
    /// Whether it asks for one by the method for one.
    pub is_single: bool,
}

impl EmbedShape {
    /// That of `request`.
    pub fn of(request: &EmbedRequest) -> Self {
        let is_single = request.origin().is_some_and(|origin| origin.is_single);
        Self { inputs: request.inputs().len(), is_single }
    }
}

const WHAT: &str = "an answer with embeddings";

/// `body` read as `T`.
pub(super) fn answer<'a, T: serde::Deserialize<'a>>(
    dialect: Dialect,
    body: &'a Bytes,
) -> Result<T, Failure> {
    let text = fault::text(body);
    fault::utf8(dialect, WHAT, &text, body)?;
    let read = std::str::from_utf8(body).ok().map(serde_json::from_str);
    match read {
        Some(Ok(read)) => Ok(read),
        Some(Err(error)) => Err(fault::malformed(dialect, WHAT, &error)),
        None => Err(fault::unfinished(dialect, "text")),
    }
}

/// An error in place of an answer.
pub(super) fn refuse_error(
    dialect: Dialect,
    error: Option<Raw<'_>>,
    body: &Bytes,
) -> Result<(), Failure> {
    match error {
        Some(_) => Err(fault::reported(dialect, &fault::text(body))),
        None => Ok(()),
    }
}

/// The vector that stands at `raw` in `body`, which is not copied.
pub(super) fn vector(dialect: Dialect, body: &Bytes, raw: Raw<'_>) -> Result<Embedding, Failure> {
    let text = raw.get();
    let inside = text.get(1..text.len().saturating_sub(1)).unwrap_or_default();
    if !text.starts_with(['[', '"']) || inside.trim().is_empty() {
        return Err(fault::unfinished(dialect, "vector in one of its embeddings"));
    }
    Ok(Embedding::new(body.slice_ref(text.as_bytes())))
}

/// Whether there are as many vectors as inputs.
pub(super) fn complete(dialect: Dialect, vectors: usize, asked: EmbedShape) -> Result<(), Failure> {
    if vectors == asked.inputs {
        return Ok(());
    }
    let message = format!(
        "the {dialect} answer has {vectors} embeddings, and {} were asked for",
        asked.inputs
    );
    Err(Failure::new(Reason::ServerError, message).with_evidence("incomplete"))
}

/// A number that some compatible servers leave out, or send as null or as something else.
pub(super) fn lenient<T: DeserializeOwned>(raw: Option<Raw<'_>>) -> Option<T> {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok())
}

/// A request that was read in another dialect.
pub(super) fn foreign(dialect: Dialect) -> Failure {
    fault::unsupported(dialect, "embeddings that were asked for in another dialect")
}
