//! Embeddings: vectors that are the same for the same model and text, and no others.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::Dialect;
use crate::dialect::gemini::errors::invalid as invalid_argument;
use crate::dialect::openai::errors::invalid as invalid_request;
use crate::dialect::{Refusal, items};
use crate::models::Model;
use crate::tokens::of_bytes;

/// Numbers that one hash makes.
const IN_HASH: usize = 8;

/// The most inputs of one request to OpenAI.
const MOST: usize = 2_048;

/// The vector of `text` by `model`, its first `dimensions` numbers.
///
/// Number `i` is made of the 32-bit word `i % 8`, little-endian, of the SHA-256 of the model, a line end, the text, a
/// line end, and `i / 8` in decimal: its upper 24 bits `n` are the number `(n - 2^23) / 2^23`, from -1 to 1, which a
/// 32-bit float and its decimal in JSON hold exactly.
///
/// ```
/// let vector = steadfast_sim::embedding("text-embedding-3-small", "a text", 1_536);
/// assert_eq!(vector.len(), 1_536);
/// assert_eq!(vector[..256], steadfast_sim::embedding("text-embedding-3-small", "a text", 256));
/// ```
#[must_use]
pub fn embedding(model: &str, text: &str, dimensions: usize) -> Vec<f32> {
    const HALF: f32 = 8_388_608.0;
    let mut start = Sha256::new();
    start.update(model.as_bytes());
    start.update(b"\n");
    start.update(text.as_bytes());
    start.update(b"\n");
    let mut out = Vec::with_capacity(dimensions);
    for block in 0..dimensions.div_ceil(IN_HASH) {
        let mut hash = start.clone();
        hash.update(block.to_string().as_bytes());
        let bytes = hash.finalize();
        for word in bytes.chunks_exact(4).take(dimensions - out.len()) {
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]) >> 8;
            #[expect(clippy::cast_precision_loss, reason = "24 bits are exact")]
            out.push((word as f32 - HALF) / HALF);
        }
    }
    out
}

/// A request for embeddings, read.
#[derive(Debug)]
pub(crate) struct EmbedCall {
    texts: Vec<String>,
    dimensions: usize,
    base64: bool,
    single: bool,
    pub(crate) input_tokens: u64,
}

/// Checks and reads a request of `dialect`; Gemini has a method of its own for a `single` text.
pub(crate) fn read(
    dialect: Dialect,
    model: &Model,
    single: bool,
    body: &Value,
) -> Result<EmbedCall, Refusal> {
    let (texts, dimensions, base64) = match dialect {
        Dialect::OpenAi => openai(model, body)?,
        _ => gemini(model, single, body)?,
    };
    let input_tokens = texts.iter().map(|text| of_bytes(text.len()) as u64).sum();
    Ok(EmbedCall { texts, dimensions, base64, single, input_tokens })
}

type Read = (Vec<String>, usize, bool);

fn openai(model: &Model, body: &Value) -> Result<Read, Refusal> {
    let bad_input = || {
        invalid_request(
            "'$.input' is invalid. Please check the API reference: \
             https://platform.openai.com/docs/api-reference.",
        )
    };
    let one = |value: &Value| match value {
        Value::String(text) if !text.is_empty() => Ok(text.clone()),
        Value::Array(tokens) if !tokens.is_empty() && tokens.iter().all(Value::is_u64) => {
            Ok(joined(tokens))
        }
        _ => Err(bad_input()),
    };
    let texts = match &body["input"] {
        Value::Array(list)
            if list.first().is_some_and(Value::is_array)
                || list.first().is_some_and(Value::is_string) =>
        {
            list.iter().map(one).collect::<Result<Vec<_>, _>>()?
        }
        other => vec![one(other)?],
    };
    if texts.len() > MOST {
        return Err(invalid_request(format!(
            "Invalid 'input': array too long. Expected an array with maximum length {MOST}, but got an array with \
             length {} instead.",
            texts.len()
        ))
        .param("input")
        .code("array_above_max_length"));
    }
    if let Some(long) = texts.iter().map(|text| of_bytes(text.len()) as u64).max()
        && long > model.context
    {
        return Err(invalid_request(format!(
            "This model's maximum context length is {} tokens, however you requested {long} tokens ({long} in your \
             prompt; 0 for the completion). Please reduce your prompt; or completion length.",
            model.context
        )));
    }
    let base64 = match body["encoding_format"].as_str() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let message =
                format!("Invalid value: '{other}'. Supported values are: 'float' and 'base64'.");
            return Err(invalid_request(message).param("encoding_format"));
        }
    };
    let dimensions = asked_dimensions(model, &body["dimensions"]).ok_or_else(|| {
        invalid_request(format!("Invalid value for 'dimensions' = {}.", body["dimensions"]))
            .param("dimensions")
    })?;
    Ok((texts, dimensions, base64))
}

fn gemini(model: &Model, single: bool, body: &Value) -> Result<Read, Refusal> {
    let path = format!("models/{}", model.name);
    let requests = if single { std::slice::from_ref(body) } else { items(&body["requests"]) };
    let mut dimensions = model.dimensions;
    let mut texts = Vec::with_capacity(requests.len());
    for (at, request) in requests.iter().enumerate() {
        let field = match single {
            true => "EmbedContentRequest".to_owned(),
            false => format!("BatchEmbedContentsRequest.requests[{at}]"),
        };
        match request["model"].as_str() {
            None if single => {}
            Some(named) if named == path => {}
            _ => {
                let message = format!("* {field}.model: the model has to be {path}\n");
                return Err(invalid_argument(message));
            }
        }
        let content = request.get("content").filter(|content| content["parts"].is_array());
        let Some(content) = content else {
            return Err(invalid_argument(format!(
                "* {field}.content: contents is not specified\n"
            )));
        };
        texts.push(match items(&content["parts"]) {
            [part] if part["text"].is_string() => part["text"].as_str().unwrap_or_default().into(),
            parts => Value::from(parts.to_vec()).to_string(),
        });
        dimensions =
            asked_dimensions(model, &request["outputDimensionality"]).ok_or_else(|| {
                invalid_argument(format!("* {field}.output_dimensionality: is out of range\n"))
            })?;
    }
    if texts.is_empty() {
        let message = "* BatchEmbedContentsRequest.requests: requests is not specified\n";
        return Err(invalid_argument(message));
    }
    Ok((texts, dimensions, false))
}

/// `None` for more than the model has, and for none.
fn asked_dimensions(model: &Model, asked: &Value) -> Option<usize> {
    if asked.is_null() {
        return Some(model.dimensions);
    }
    let asked = usize::try_from(asked.as_u64()?).ok()?;
    (1..=model.dimensions).contains(&asked).then_some(asked)
}

/// Tokens as the text that they are embedded by: their numbers, with commas between.
fn joined(tokens: &[Value]) -> String {
    tokens.iter().map(Value::to_string).collect::<Vec<_>>().join(",")
}

impl EmbedCall {
    /// The answer of `model`.
    pub(crate) fn answer(&self, dialect: Dialect, model: &Model) -> String {
        let vector = |text: &String| {
            let vector = embedding(&model.name, text, self.dimensions);
            if self.base64 { encoded(&vector) } else { listed(&vector) }
        };
        let mut out = String::new();
        match dialect {
            Dialect::OpenAi => {
                out.push_str(r#"{"object":"list","data":["#);
                for (at, text) in self.texts.iter().enumerate() {
                    let comma = if at == 0 { "" } else { "," };
                    let vector = vector(text);
                    let _ = write!(
                        out,
                        r#"{comma}{{"object":"embedding","index":{at},"embedding":{vector}}}"#
                    );
                }
                let tokens = self.input_tokens;
                let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
                let _ = write!(out, r#"],"model":{},"usage":{usage}}}"#, json!(model.name));
            }
            _ => {
                let all: Vec<String> = self
                    .texts
                    .iter()
                    .map(|text| format!(r#"{{"values":{}}}"#, vector(text)))
                    .collect();
                let usage = json!({"promptTokenCount": self.input_tokens});
                let _ = match self.single {
                    true => write!(out, r#"{{"embedding":{}"#, all.concat()),
                    false => write!(out, r#"{{"embeddings":[{}]"#, all.join(",")),
                };
                let _ = write!(out, r#","usageMetadata":{usage}}}"#);
            }
        }
        out
    }
}

fn listed(vector: &[f32]) -> String {
    let numbers: Vec<String> = vector.iter().map(|n| f64::from(*n).to_string()).collect();
    format!("[{}]", numbers.join(","))
}

fn encoded(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|n| n.to_le_bytes()).collect();
    format!("\"{}\"", STANDARD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_exact_as_text_and_as_base64() {
        let vector = embedding("m", "na\u{ef}ve", 100);
        assert!(vector.iter().all(|n| (-1.0..1.0).contains(n)));
        let read: Vec<f32> = serde_json::from_str(&listed(&vector)).unwrap();
        assert_eq!(read, vector);
        // The first number by hand: sha256("m\na\n0").
        let hash = Sha256::digest(b"m\na\n0");
        let word = u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]]) >> 8;
        assert_eq!(embedding("m", "a", 1), [(f64::from(word) / 8_388_608.0 - 1.0) as f32]);
        assert_ne!(embedding("m", "a", 8), embedding("n", "a", 8));
        assert_ne!(embedding("m", "a", 8), embedding("m", "b", 8));
    }
}
