//! Gemini's `embedContent` and `batchEmbedContents`.

use bytes::Bytes;
use serde::Deserialize;
use steadfast_chat::{EmbedInput, EmbedRequest, EmbedResponse, Head};
use steadfast_core::{Failure, Usage};

use super::{DIALECT, method_path, resource};
use crate::{
    dialect::{
        embed::{self, EmbedCodec, EmbedRoute, EmbedShape},
        fault,
    },
    json::{
        Array, At, Fields, Object, Raw, RequestError, fields_of_body, items, patched, quoted,
        string, text_of, uint,
    },
};

/// Both names of a field.
const DIMENSIONS: [&str; 2] = ["outputDimensionality", "output_dimensionality"];
const MODEL: &[&str] = &["model"];

/// Gemini's embeddings.
#[derive(Debug)]
pub(in crate::dialect) struct Embeddings;

impl EmbedCodec for Embeddings {
    fn decode_request(
        &self,
        body: &Bytes,
        route: EmbedRoute<'_>,
    ) -> Result<EmbedRequest, RequestError> {
        let (mut top, mut inputs, mut dimensions) = (Fields::of_body(body)?, Vec::new(), None);
        let mut model = None;
        let mut add = |mut fields: Fields<'_>| -> Result<(), RequestError> {
            inputs.push(fields.need("content", content)?);
            model = fields.get("model", string)?.or(model.take());
            if let Some((name, raw)) = fields.take_any(&DIMENSIONS) {
                dimensions = Some(uint(raw).at(name)?);
            }
            Ok(())
        };
        if route.is_single {
            add(top)?;
        } else {
            let all = top.need("requests", items)?;
            for (at, raw) in all.into_iter().enumerate() {
                Fields::read(raw).and_then(&mut add).index(at).at("requests")?;
            }
        }
        let model = route.model.map(str::to_owned).or(model).unwrap_or_default();
        let model = model.strip_prefix("models/").unwrap_or(&model);
        let mut request = EmbedRequest::of_inputs(inputs).with_model(model);
        if let Some(dimensions) = dimensions {
            request = request.with_dimensions(dimensions);
        }
        Ok(request.with_origin(DIALECT, body.clone(), route.is_single))
    }

    fn encode_request(&self, request: &EmbedRequest) -> Result<Bytes, Failure> {
        let Some(origin) = request.origin() else { return anew(request) };
        if origin.dialect != DIALECT {
            return Err(embed::foreign(DIALECT));
        }
        if origin.model == request.model {
            return Ok(origin.body.clone());
        }
        // Each part of a batch names the model again.
        let model = quoted(&resource(&request.model));
        if origin.is_single {
            return renamed(embed::answer(DIALECT, &origin.body)?, &model).map(Bytes::from);
        }
        let requests = fields_of_body(&origin.body)?.get("requests", items)?.unwrap_or_default();
        let mut out = Vec::with_capacity(origin.body.len());
        {
            let mut list = Array::new(&mut out);
            for raw in requests {
                list.raw(&renamed(raw, &model)?);
            }
        }
        let old = embed::answer(DIALECT, &origin.body)?;
        let set: [(&'static [&'static str], _); 1] = [(&["requests"], Some(text_of(out)))];
        patched(Some(old), &set).map(Bytes::from)
    }

    fn path(&self, request: &EmbedRequest) -> String {
        let method = match EmbedShape::of(request).is_single {
            true => "embedContent",
            false => "batchEmbedContents",
        };
        method_path(&request.model, method)
    }

    fn decode_answer(
        &self,
        head: Head,
        asked: EmbedShape,
        body: &Bytes,
    ) -> Result<EmbedResponse, Failure> {
        let answer: Answer<'_> = embed::answer(DIALECT, body)?;
        embed::refuse_error(DIALECT, answer.error, body)?;
        let all = match (answer.embeddings, answer.embedding) {
            (Some(all), None) if !asked.is_single => all,
            (None, Some(one)) if asked.is_single => vec![one],
            _ => return Err(fault::unfinished(DIALECT, "embeddings")),
        };
        embed::complete(DIALECT, all.len(), asked)?;
        let vector = |one: &Vector<'_>| embed::vector(DIALECT, body, one.values);
        let vectors = all.iter().map(vector).collect::<Result<_, _>>()?;
        let mut usage = Usage::default();
        usage.input = answer.usage.and_then(|usage| embed::lenient(usage.prompt));
        Ok(EmbedResponse::new(head, vectors, body.clone()).with_usage(usage))
    }
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    error: Option<Raw<'a>>,
    #[serde(borrow)]
    embedding: Option<Vector<'a>>,
    #[serde(borrow)]
    embeddings: Option<Vec<Vector<'a>>>,
    #[serde(borrow, rename = "usageMetadata")]
    usage: Option<Reported<'a>>,
}

#[derive(Deserialize)]
struct Vector<'a> {
    #[serde(borrow)]
    values: Raw<'a>,
}

#[derive(Deserialize)]
struct Reported<'a> {
    #[serde(borrow, rename = "promptTokenCount")]
    prompt: Option<Raw<'a>>,
}

/// A text, where a content is one and nothing else.
fn content(raw: Raw<'_>) -> Result<EmbedInput, RequestError> {
    let parts = Fields::read(raw)?.get("parts", items)?.unwrap_or_default();
    if let [part] = *parts {
        let mut fields = Fields::read(part).index(0).at("parts")?;
        if let Some(text) = fields.get("text", string)?
            && fields.names().next().is_none()
        {
            return Ok(EmbedInput::Text(text));
        }
    }
    Ok(EmbedInput::Opaque(raw.kept()))
}

/// `raw` with `model`, where it names one.
fn renamed(raw: Raw<'_>, model: &str) -> Result<String, Failure> {
    let names_one = Fields::read(raw).is_ok_and(|mut fields| fields.take("model").is_some());
    let set = [(MODEL, Some(model.to_owned()))];
    patched(Some(raw), if names_one { &set } else { &[] })
}

fn anew(request: &EmbedRequest) -> Result<Bytes, Failure> {
    if request.inputs().iter().any(|input| matches!(input, EmbedInput::Tokens(_))) {
        return Err(fault::unsupported(DIALECT, "an input that is split into tokens"));
    }
    let model = resource(&request.model);
    let text = Object::text(|object| {
        let mut list = object.array("requests");
        for input in request.inputs() {
            let mut one = list.object();
            one.put("model", &model);
            match input {
                EmbedInput::Text(text) => {
                    let mut content = one.object("content");
                    content.array("parts").object().put("text", text);
                }
                EmbedInput::Opaque(json) => {
                    one.raw("content", json.get());
                }
                _ => {}
            }
            one.put_some(DIMENSIONS[0], request.dimensions());
        }
    });
    Ok(text.into())
}
