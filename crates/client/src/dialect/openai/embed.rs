//! OpenAI embeddings.

use bytes::Bytes;
use serde::Deserialize;
use steadfast_chat::{EmbedInput, EmbedRequest, EmbedResponse, Head};
use steadfast_core::{Failure, Usage};

use super::DIALECT;
use crate::{
    dialect::{
        embed::{self, EmbedCodec, EmbedRoute, EmbedShape},
        fault,
    },
    json::{
        Array, Fields, Object, Raw, RequestError, each, items, kind, list, patched, quoted, string,
        text_of, uint,
    },
};

/// OpenAI embeddings.
#[derive(Debug)]
pub(in crate::dialect) struct Embeddings;

impl EmbedCodec for Embeddings {
    fn decode_request(
        &self,
        body: &Bytes,
        _: EmbedRoute<'_>,
    ) -> Result<EmbedRequest, RequestError> {
        let mut top = Fields::of_body(body)?;
        let inputs = top.need("input", inputs)?;
        let mut request = EmbedRequest::of_inputs(inputs).with_model(top.need("model", string)?);
        if let Some(dimensions) = top.get("dimensions", uint)? {
            request = request.with_dimensions(dimensions);
        }
        Ok(request.with_origin(DIALECT, body.clone(), false))
    }

    fn encode_request(&self, request: &EmbedRequest) -> Result<Bytes, Failure> {
        let Some(origin) = request.origin() else { return Ok(anew(request)) };
        if origin.dialect != DIALECT {
            return Err(embed::foreign(DIALECT));
        }
        if origin.model == request.model {
            return Ok(origin.body.clone());
        }
        let old = embed::answer(DIALECT, &origin.body)?;
        let set: [(&'static [&'static str], _); 1] = [(&["model"], Some(quoted(&request.model)))];
        patched(Some(old), &set).map(Bytes::from)
    }

    fn path(&self, _: &EmbedRequest) -> String {
        "/embeddings".to_owned()
    }

    fn decode_answer(
        &self,
        head: Head,
        asked: EmbedShape,
        body: &Bytes,
    ) -> Result<EmbedResponse, Failure> {
        let answer: Answer<'_> = embed::answer(DIALECT, body)?;
        embed::refuse_error(DIALECT, answer.error, body)?;
        let data = answer.data.ok_or_else(|| fault::unfinished(DIALECT, "data"))?;
        embed::complete(DIALECT, data.len(), asked)?;
        let in_order = (0..).zip(&data).all(|(at, item)| item.index.is_none_or(|own| own == at));
        if !in_order {
            return self.decode_answer(head, asked, &sorted(&data, body)?);
        }
        let vector = |item: &Item<'_>| embed::vector(DIALECT, body, item.embedding);
        let vectors = data.iter().map(vector).collect::<Result<_, _>>()?;
        let mut usage = Usage::default();
        usage.input = answer.usage.and_then(|usage| embed::lenient(usage.prompt_tokens));
        Ok(EmbedResponse::new(head, vectors, body.clone())
            .with_model(embed::lenient(answer.model))
            .with_usage(usage))
    }
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    error: Option<Raw<'a>>,
    #[serde(borrow)]
    data: Option<Vec<Item<'a>>>,
    #[serde(borrow)]
    model: Option<Raw<'a>>,
    #[serde(borrow)]
    usage: Option<Reported<'a>>,
}

#[derive(Deserialize)]
struct Item<'a> {
    index: Option<u64>,
    #[serde(borrow)]
    embedding: Raw<'a>,
}

#[derive(Deserialize)]
struct Reported<'a> {
    #[serde(borrow)]
    prompt_tokens: Option<Raw<'a>>,
}

/// A text, a list of them, a list of tokens, or a list of such lists.
fn inputs(raw: Raw<'_>) -> Result<Vec<EmbedInput>, RequestError> {
    let one = |raw| match kind(raw) {
        "a string" => string(raw).map(EmbedInput::Text),
        "a list" => list(raw, uint).map(EmbedInput::Tokens),
        // What compatible servers take beside text.
        "an object" => Ok(EmbedInput::Opaque(raw.kept())),
        _ => Err(RequestError::expected("a text or a list of tokens", raw)),
    };
    if kind(raw) != "a list" {
        return Ok(vec![one(raw)?]);
    }
    let all = items(raw)?;
    match all.first().map(|first| kind(*first)) {
        Some("a number") => Ok(vec![EmbedInput::Tokens(each(all, uint)?)]),
        _ => each(all, one),
    }
}

/// The answer with its vectors in the order of their numbers.
fn sorted(data: &[Item<'_>], body: &Bytes) -> Result<Bytes, Failure> {
    let lacks = || fault::unfinished(DIALECT, "one embedding for each index");
    let mut at = vec![None; data.len()];
    let items: Vec<Raw<'_>> = {
        #[derive(Deserialize)]
        struct Whole<'a> {
            #[serde(borrow)]
            data: Vec<Raw<'a>>,
        }
        embed::answer::<Whole<'_>>(DIALECT, body)?.data
    };
    for (item, raw) in data.iter().zip(items) {
        let index = item.index.and_then(|index| usize::try_from(index).ok());
        match index.and_then(|index| at.get_mut(index)) {
            Some(free @ None) => *free = Some(raw),
            _ => return Err(lacks()),
        }
    }
    let mut out = Vec::with_capacity(body.len());
    {
        let mut list = Array::new(&mut out);
        for raw in at {
            list.raw(raw.ok_or_else(lacks)?.get());
        }
    }
    let old = embed::answer(DIALECT, body)?;
    let set: [(&'static [&'static str], _); 1] = [(&["data"], Some(text_of(out)))];
    patched(Some(old), &set).map(Bytes::from)
}

fn anew(request: &EmbedRequest) -> Bytes {
    let text = Object::text(|object| {
        object.put("model", &request.model);
        let mut list = object.array("input");
        for input in request.inputs() {
            match input {
                EmbedInput::Text(text) => list.put(text),
                EmbedInput::Tokens(tokens) => list.put(tokens),
                EmbedInput::Opaque(json) => list.raw(json.get()),
                _ => {}
            }
        }
        drop(list);
        object.put_some("dimensions", request.dimensions());
    });
    text.into()
}
