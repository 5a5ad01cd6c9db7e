//! Anthropic's `count_tokens`.

use bytes::Bytes;
use steadfast_core::Failure;

use super::{Anthropic, DIALECT};
use crate::{
    dialect::{
        Codec, Route, Wire,
        count::{CountCodec, CountRequest, input_tokens, only, with_model},
    },
    json::RequestError,
};

/// What of a message request counts, and may stand in a request to count. All else is refused there.
const COUNTED: [&str; 7] =
    ["model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"];

/// Anthropic's `count_tokens`.
#[derive(Debug)]
pub(in crate::dialect) struct TokenCount;

impl CountCodec for TokenCount {
    fn decode_request(&self, body: &Bytes, _: Option<&str>) -> Result<CountRequest, RequestError> {
        let chat = Anthropic.decode_request(body, Route::default())?;
        Ok(CountRequest { chat, read: Some((DIALECT, body.clone())) })
    }

    fn encode_request(&self, request: &CountRequest, wire: &Wire) -> Result<Bytes, Failure> {
        match request.body(DIALECT) {
            Some(body) => with_model(body, request, DIALECT),
            None => only(&COUNTED, &Anthropic.encode_request(&request.chat, wire)?),
        }
    }

    fn path(&self, _: &str) -> String {
        "/v1/messages/count_tokens".to_owned()
    }

    fn decode_answer(&self, body: &Bytes) -> Result<u64, Failure> {
        input_tokens(DIALECT, body)
    }

    fn write_answer(&self, tokens: u64) -> Bytes {
        format!(r#"{{"input_tokens":{tokens}}}"#).into()
    }
}
