//! OpenAI chat completions.

mod answer_decode;
mod answer_encode;
mod error;
mod messages;
mod request_decode;
mod request_encode;
mod stop;

use bytes::Bytes;
use http::{HeaderName, header};
use steadfast_core::{ChatRequest, Completion, Dialect, Event, Failure};

use super::{Caller, Codec, DecodeFrames, EncodeEvents, ErrorReply, Route, Wire};
use crate::json::RequestError;

/// The dialect of this folder.
const DIALECT: Dialect = Dialect::OpenAi;

/// OpenAI chat completions.
#[derive(Debug)]
pub(super) struct OpenAi;

impl Codec for OpenAi {
    fn dialect(&self) -> Dialect {
        DIALECT
    }

    fn decode_request(&self, body: &Bytes, _: Route<'_>) -> Result<ChatRequest, RequestError> {
        request_decode::decode(body)
    }

    fn encode_request(&self, request: &ChatRequest, wire: &Wire) -> Result<Bytes, Failure> {
        request_encode::encode(request, wire)
    }

    fn decode_answer(&self, body: &Bytes) -> Result<Event, Failure> {
        answer_decode::whole(body)
    }

    fn encode_answer(&self, answer: &Completion, caller: &Caller) -> Result<Bytes, Failure> {
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

    fn encode_stream_error(&self, failure: &Failure) -> Bytes {
        error::event(failure)
    }

    fn keep_alive(&self) -> Option<&'static [u8]> {
        Some(b": ping\n\n")
    }

    fn request_id_header(&self) -> HeaderName {
        HeaderName::from_static("x-request-id")
    }

    fn default_base_url(&self) -> &'static str {
        "https://api.openai.com/v1"
    }

    fn redundant_suffixes(&self) -> &'static [&'static str] {
        &["/chat/completions"]
    }

    fn path(&self, _: &str, _: bool) -> String {
        "/chat/completions".to_owned()
    }

    fn auth(&self, secret: &str) -> (HeaderName, String) {
        (header::AUTHORIZATION, format!("Bearer {secret}"))
    }
}
