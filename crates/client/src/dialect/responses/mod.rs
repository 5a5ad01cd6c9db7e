//! OpenAI responses.

mod answer_decode;
mod answer_encode;
mod count;
mod custom;
mod error;
mod items;
mod namespace;
mod request_decode;
mod request_encode;
mod stop;
mod stored;
mod writer;

use bytes::Bytes;
use http::{HeaderName, header};
use steadfast_chat::{ChatRequest, Completion, Event};
use steadfast_core::{Dialect, Failure};

use super::{Caller, Codec, DecodeFrames, DialectFacts, EncodeEvents, ErrorReply, Route, Wire};
use crate::json::RequestError;

pub(super) use self::count::TokenCount;
pub use self::stored::{StandIn, StandsFor, StoredResponse, with_items};
pub(super) use self::{
    custom::names as custom_names, namespace::names as namespaces, request_encode::shared,
};

/// The dialect of this folder.
const DIALECT: Dialect = Dialect::Responses;

/// The field of a text's extra ones that has those of the item that it begins.
const ITEM: &str = "item";

static FACTS: DialectFacts = DialectFacts {
    dialect: DIALECT,
    keep_alive: Some(b": ping\n\n"),
    error_breaks_off: false,
    error_event: Some("error"),
    request_id: HeaderName::from_static("x-request-id"),
    base_url: "https://api.openai.com/v1",
    redundant_suffixes: &["/responses"],
    credential: (header::AUTHORIZATION, "Bearer "),
    headers: &[],
};

/// OpenAI responses.
#[derive(Debug)]
pub(super) struct Responses;

impl Codec for Responses {
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
        Box::new(writer::Writer::new(caller))
    }

    fn error_body(&self, error: &ErrorReply<'_>) -> Vec<u8> {
        error::body(error)
    }

    fn path(&self, _: &str, _: bool) -> String {
        "/responses".to_owned()
    }
}
