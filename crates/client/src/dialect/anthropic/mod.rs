//! Anthropic messages.

mod answer_decode;
mod answer_encode;
mod blocks;
mod cache;
mod citations;
mod count;
mod error;
mod input;
mod plan;
mod request_decode;
mod request_encode;
mod stop;
mod writer;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use steadfast_chat::{ChatRequest, Completion, Event};
use steadfast_core::{Dialect, Failure};

use super::{Caller, Codec, DecodeFrames, DialectFacts, EncodeEvents, ErrorReply, Route, Wire};
use crate::json::RequestError;

pub(super) use self::count::TokenCount;

/// The dialect of this folder.
const DIALECT: Dialect = Dialect::Anthropic;

/// The version of the API this codec writes; the vendor has had no other since 2023.
static HEADERS: [(HeaderName, HeaderValue); 1] =
    [(HeaderName::from_static("anthropic-version"), HeaderValue::from_static("2023-06-01"))];

static FACTS: DialectFacts = DialectFacts {
    dialect: DIALECT,
    keep_alive: Some(b"event: ping\ndata: {\"type\":\"ping\"}\n\n"),
    error_breaks_off: false,
    error_event: Some("error"),
    request_id: HeaderName::from_static("request-id"),
    base_url: "https://api.anthropic.com",
    redundant_suffixes: &["/v1/messages", "/v1"],
    credential: (HeaderName::from_static("x-api-key"), ""),
    headers: &HEADERS,
};

/// Anthropic messages.
#[derive(Debug)]
pub(super) struct Anthropic;

impl Codec for Anthropic {
    fn facts(&self) -> &'static DialectFacts {
        &FACTS
    }

    fn decode_request(&self, body: &Bytes, _: Route<'_>) -> Result<ChatRequest, RequestError> {
        request_decode::decode(body)
    }

    fn encode_request(&self, request: &ChatRequest, _: &Wire) -> Result<Bytes, Failure> {
        request_encode::encode(request)
    }

    fn leaves_out(&self, request: &ChatRequest) -> Vec<&'static str> {
        request_encode::leaves_out(request)
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

    fn path(&self, _: &str, _: bool) -> String {
        "/v1/messages".to_owned()
    }
}
