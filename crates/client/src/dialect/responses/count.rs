//! Counting the tokens of a request: `POST /responses/input_tokens`.

use bytes::Bytes;
use steadfast_core::Failure;

use super::{DIALECT, Responses};
use crate::{
    dialect::{
        Codec, Route, Wire,
        count::{CountCodec, CountRequest, input_tokens, only, with_model},
    },
    json::RequestError,
};

/// What of a request counts, and may stand in a request to count.
const COUNTED: [&str; 12] = [
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "text",
    "truncation",
    "previous_response_id",
    "conversation",
    "personality",
];

/// Counting the tokens of a request.
#[derive(Debug)]
pub(in crate::dialect) struct TokenCount;

impl CountCodec for TokenCount {
    fn decode_request(&self, body: &Bytes, _: Option<&str>) -> Result<CountRequest, RequestError> {
        let chat = Responses.decode_request(body, Route::default())?;
        Ok(CountRequest { chat, read: Some((DIALECT, body.clone())) })
    }

    fn encode_request(&self, request: &CountRequest, wire: &Wire) -> Result<Bytes, Failure> {
        let is_replayed = request.chat.state.as_ref().is_some_and(|state| state.is_replayed());
        match request.body(DIALECT).filter(|_| !is_replayed) {
            Some(body) => with_model(body, request, DIALECT),
            None => only(&COUNTED, &Responses.encode_request(&request.chat, wire)?),
        }
    }

    fn path(&self, _: &str) -> String {
        "/responses/input_tokens".to_owned()
    }

    fn decode_answer(&self, body: &Bytes) -> Result<u64, Failure> {
        input_tokens(DIALECT, body)
    }

    fn write_answer(&self, tokens: u64) -> Bytes {
        format!(r#"{{"object":"response.input_tokens","input_tokens":{tokens}}}"#).into()
    }
}
