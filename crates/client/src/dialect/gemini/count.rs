//! Gemini's `countTokens`.

use bytes::Bytes;
use serde::Deserialize;
use steadfast_core::Failure;

use super::{DIALECT, Gemini, method_path, resource};
use crate::{
    dialect::{
        Codec, Route, Wire,
        count::{CountCodec, CountRequest},
        fault,
    },
    json::{At, Fields, Object, Raw, RequestError, fields_of_body, patched, quoted, text_of},
};

/// Both names of the field with a whole request in it; without it the contents alone are counted.
const WHOLE: &[&str] = &["generateContentRequest", "generate_content_request"];

/// Gemini's `countTokens`.
#[derive(Debug)]
pub(in crate::dialect) struct TokenCount;

impl CountCodec for TokenCount {
    fn decode_request(
        &self,
        body: &Bytes,
        model: Option<&str>,
    ) -> Result<CountRequest, RequestError> {
        let route = Route { model, stream: Some(false) };
        let whole = Fields::of_body(body)?.take_any(WHOLE).map(|(name, raw)| {
            if !raw.is_object() {
                return Err(RequestError::expected("an object", raw)).at(name);
            }
            let inner = body.slice_ref(raw.get().as_bytes());
            Gemini.decode_request(&inner, route).at(name)
        });
        let chat = whole.unwrap_or_else(|| Gemini.decode_request(body, route))?;
        Ok(CountRequest { chat, read: Some((DIALECT, body.clone())) })
    }

    fn encode_request(&self, request: &CountRequest, wire: &Wire) -> Result<Bytes, Failure> {
        let model = quoted(&resource(&request.chat.model));
        if let Some(body) = request.body(DIALECT) {
            return with_model(body, request, model);
        }
        let body = Gemini.encode_request(&request.chat, wire)?;
        let mut out = Vec::with_capacity(body.len() + 64);
        {
            let mut object = Object::new(&mut out);
            let mut whole = object.object(WHOLE[0]);
            whole.raw("model", &model);
            for (name, raw) in fields_of_body(&body)?.iter().filter(|(name, _)| *name != "model") {
                whole.raw(name, raw.get());
            }
        }
        Ok(text_of(out).into())
    }

    fn path(&self, model: &str) -> String {
        method_path(model, "countTokens")
    }

    fn decode_answer(&self, body: &Bytes) -> Result<u64, Failure> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(rename = "totalTokens")]
            total: u64,
        }
        let answer = serde_json::from_slice::<Answer>(body);
        answer
            .map(|answer| answer.total)
            .map_err(|error| fault::malformed(DIALECT, "a count of tokens", &error))
    }

    fn write_answer(&self, tokens: u64) -> Bytes {
        format!(r#"{{"totalTokens":{tokens}}}"#).into()
    }
}

/// The body as it came; a whole request in it names `model`, where it names one.
fn with_model(body: &Bytes, request: &CountRequest, model: String) -> Result<Bytes, Failure> {
    let asked = request.chat.origin(DIALECT).map(|origin| &origin.read().model);
    let read = |body| {
        let raw: Result<Raw<'_>, _> = serde_json::from_slice(body);
        raw.map_err(|error| fault::malformed(DIALECT, "a request", &error))
    };
    let whole = fields_of_body(body)?.take_any(WHOLE).map(|(_, raw)| raw);
    match whole {
        Some(whole) if asked != Some(&request.chat.model) => {
            let whole = patched(Some(whole), &[(&["model"], Some(model))])?;
            patched(Some(read(body)?), &[(WHOLE, Some(whole))]).map(Bytes::from)
        }
        _ => Ok(body.clone()),
    }
}
