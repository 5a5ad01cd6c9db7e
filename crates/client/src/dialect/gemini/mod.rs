//! Gemini `generateContent` and `streamGenerateContent`.

mod answer_decode;
mod answer_encode;
mod contents;
mod count;
mod embed;
mod error;
mod notes;
mod request_decode;
mod request_encode;
mod stop;

use bytes::Bytes;
use http::HeaderName;
use steadfast_chat::{ChatRequest, Completion, Event};
use steadfast_core::{Dialect, Failure};

use super::{Caller, Codec, DecodeFrames, DialectFacts, EncodeEvents, ErrorReply, Route, Wire};
use crate::json::RequestError;

pub(super) use self::{count::TokenCount, embed::Embeddings};

/// The dialect of this folder.
const DIALECT: Dialect = Dialect::Gemini;

static FACTS: DialectFacts = DialectFacts {
    dialect: DIALECT,
    keep_alive: None,
    error_breaks_off: true,
    error_event: None,
    request_id: HeaderName::from_static("x-request-id"),
    base_url: "https://generativelanguage.googleapis.com",
    redundant_suffixes: &["/v1beta/models", "/v1beta", "/v1"],
    credential: (HeaderName::from_static("x-goog-api-key"), ""),
    headers: &[],
};

/// Gemini.
#[derive(Debug)]
pub(super) struct Gemini;

impl Codec for Gemini {
    fn facts(&self) -> &'static DialectFacts {
        &FACTS
    }

    fn decode_request(&self, body: &Bytes, route: Route<'_>) -> Result<ChatRequest, RequestError> {
        request_decode::decode(body, route)
    }

    fn encode_request(&self, request: &ChatRequest, _: &Wire) -> Result<Bytes, Failure> {
        request_encode::encode(request)
    }

    fn leaves_out(&self, _: &ChatRequest) -> Vec<&'static str> {
        Vec::new()
    }

    fn decode_answer(&self, body: &Bytes) -> Result<Event, Failure> {
        answer_decode::whole(body)
    }

    fn write_answer(&self, answer: &Completion, caller: &Caller) -> Result<Bytes, Failure> {
        Ok(answer_encode::whole(answer, caller))
    }

    fn frames(&self) -> Box<dyn DecodeFrames> {
        Box::<answer_decode::Frames>::default()
    }

    fn events(&self, caller: &Caller) -> Box<dyn EncodeEvents> {
        Box::new(answer_encode::Writer::new(caller))
    }

    fn error_body(&self, error: &ErrorReply<'_>) -> Vec<u8> {
        error::body(error)
    }

    fn path(&self, model: &str, stream: bool) -> String {
        method_path(model, if stream { "streamGenerateContent?alt=sse" } else { "generateContent" })
    }
}

/// The path of a method of `model`.
fn method_path(model: &str, method: &str) -> String {
    let (folder, model) = folder(model);
    format!("/v1beta/{folder}/{}:{method}", segment(model))
}

/// The name of `model` as it stands in a body.
fn resource(model: &str) -> String {
    let (folder, model) = folder(model);
    format!("{folder}/{model}")
}

/// Where `model` is, and its name there.
fn folder(model: &str) -> (&'static str, &str) {
    let model = model.strip_prefix("models/").unwrap_or(model);
    match model.strip_prefix("tunedModels/") {
        Some(model) => ("tunedModels", model),
        None => ("models", model),
    }
}

/// `name` as one segment of a path: a model's name may come from a caller, and must not lead
/// anywhere else.
pub(crate) fn segment(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') {
            out.push(char::from(byte));
        } else if byte == b'.' && name.bytes().any(|b| b != b'.') {
            out.push('.');
        } else {
            out.push('%');
            for digit in [byte >> 4, byte & 15] {
                out.push(char::from_digit(digit.into(), 16).unwrap_or('0').to_ascii_uppercase());
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_can_not_lead_elsewhere() {
        let path = |model| Gemini.path(model, false);
        assert_eq!(path("gemini-2.5-pro"), "/v1beta/models/gemini-2.5-pro:generateContent");
        assert_eq!(path("models/x"), "/v1beta/models/x:generateContent");
        assert_eq!(path("tunedModels/x"), "/v1beta/tunedModels/x:generateContent");
        assert_eq!(path("../v1/x?a#b"), "/v1beta/models/..%2Fv1%2Fx%3Fa%23b:generateContent");
        assert_eq!(path(".."), "/v1beta/models/%2E%2E:generateContent");
        assert!(Gemini.path("x", true).ends_with(":streamGenerateContent?alt=sse"));
    }
}
