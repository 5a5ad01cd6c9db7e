//! OpenAI chat completions.

mod answer_decode;
mod answer_encode;
mod chunk;
mod embed;
mod error;
mod messages;
mod request_decode;
mod request_encode;
mod stop;

use bytes::Bytes;
use http::{HeaderName, header};
use steadfast_chat::{ChatRequest, Completion, Event};
use steadfast_core::{Dialect, Failure};

use super::{Caller, Codec, DecodeFrames, DialectFacts, EncodeEvents, ErrorReply, Route, Wire};
use crate::json::RequestError;

pub(super) use self::{
    answer_encode::put_tokens,
    embed::Embeddings,
    error::{body as error_body, kind_and_code},
    messages::arguments_text,
    request_encode::{
        effort_word, is_reasoning, loses_strict, may_be_strict, never_reasons, strict,
    },
};

/// The dialect of this folder.
const DIALECT: Dialect = Dialect::OpenAi;

static FACTS: DialectFacts = DialectFacts {
    dialect: DIALECT,
    keep_alive: Some(b": ping\n\n"),
    error_breaks_off: false,
    error_event: None,
    request_id: HeaderName::from_static("x-request-id"),
    base_url: "https://api.openai.com/v1",
    redundant_suffixes: &["/chat/completions"],
    credential: (header::AUTHORIZATION, "Bearer "),
    headers: &[],
};

/// OpenAI chat completions.
#[derive(Debug)]
pub(super) struct OpenAi;

impl Codec for OpenAi {
    fn facts(&self) -> &'static DialectFacts {
        &FACTS
    }

    fn decode_request(&self, body: &Bytes, _: Route<'_>) -> Result<ChatRequest, RequestError> {
        request_decode::decode(body)
    }

    fn encode_request(&self, request: &ChatRequest, wire: &Wire) -> Result<Bytes, Failure> {
        request_encode::encode(request, wire)
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
        "/chat/completions".to_owned()
    }
}
