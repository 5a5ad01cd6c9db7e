//! A chunk of a stream, or a whole answer, as it is on the wire. What this crate does not use is not
//! read.

use std::borrow::Cow;

use serde::Deserialize;
use steadfast_chat::{Citation, TokenLogprob};

use crate::json::{Raw, Str};

/// A chunk of a stream, or a whole answer: they differ in whether a choice has a `delta` or a
/// `message`.
#[derive(Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow)]
    pub(super) id: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(super) model: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(super) choices: Option<Vec<Choice<'a>>>,
    #[serde(borrow)]
    pub(super) usage: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(super) error: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(super) object: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(super) detail: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(super) message: Option<Raw<'a>>,
}

#[derive(Deserialize)]
pub(super) struct Choice<'a> {
    #[serde(default)]
    pub(super) index: u32,
    #[serde(borrow, alias = "message")]
    pub(super) delta: Option<Piece<'a>>,
    #[serde(borrow)]
    pub(super) logprobs: Option<Logprobs<'a>>,
    #[serde(borrow)]
    pub(super) finish_reason: Option<Str<'a>>,
}

/// The content of one answer, or of one piece of it.
#[derive(Deserialize)]
pub(super) struct Piece<'a> {
    #[serde(borrow)]
    pub(super) content: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(super) refusal: Option<Raw<'a>>,
    /// DeepSeek, vLLM and others.
    #[serde(borrow)]
    pub(super) reasoning_content: Option<Raw<'a>>,
    /// OpenRouter, Ollama, Groq.
    #[serde(borrow)]
    pub(super) reasoning: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(super) tool_calls: Option<Vec<Raw<'a>>>,
    #[serde(borrow)]
    pub(super) function_call: Option<Function<'a>>,
    #[serde(borrow)]
    pub(super) audio: Option<Raw<'a>>,
    /// OpenRouter.
    #[serde(borrow)]
    pub(super) images: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(super) annotations: Option<Raw<'a>>,
}

impl Piece<'_> {
    /// Whether it has content other than calls. Not all of it becomes deltas.
    pub(super) fn has_content(&self) -> bool {
        let all = [
            self.content,
            self.refusal,
            self.reasoning_content,
            self.reasoning,
            self.audio,
            self.images,
        ];
        all.into_iter().flatten().any(is_truthy)
    }
}

#[derive(Default, Deserialize)]
pub(super) struct Function<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) arguments: Option<Raw<'a>>,
}

#[derive(Deserialize)]
pub(super) struct Call<'a> {
    pub(super) index: Option<u32>,
    #[serde(borrow)]
    pub(super) id: Option<Str<'a>>,
    #[serde(borrow, rename = "type")]
    pub(super) kind: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) function: Option<Function<'a>>,
}

#[derive(Deserialize)]
pub(super) struct ContentPart<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) text: Option<Raw<'a>>,
}

#[derive(Deserialize)]
pub(super) struct Logprobs<'a> {
    #[serde(borrow)]
    content: Option<Raw<'a>>,
}

/// A token as it is on the wire.
#[derive(Deserialize)]
struct Token {
    token: String,
    logprob: f64,
    #[serde(default)]
    top_logprobs: Vec<Token>,
}

impl Logprobs<'_> {
    /// What can be read of them; it is no part of the answer's content.
    pub(super) fn read(&self) -> Vec<TokenLogprob> {
        let tokens = self.content.map(|raw| serde_json::from_str::<Vec<Token>>(raw.get()));
        let tokens = tokens.and_then(Result::ok).unwrap_or_default();
        let read = tokens.into_iter().map(|Token { token, logprob, top_logprobs }| {
            let mut read = TokenLogprob::new(token, logprob);
            read.top = top_logprobs.into_iter().map(|top| (top.token, top.logprob)).collect();
            read
        });
        read.collect()
    }
}

/// The sources in `annotations`, as far as they are addresses.
pub(super) fn citations(annotations: Raw<'_>) -> Vec<Citation> {
    #[derive(Deserialize)]
    struct Annotation {
        url_citation: Option<UrlCitation>,
    }
    #[derive(Deserialize)]
    struct UrlCitation {
        url: String,
        title: Option<String>,
        start_index: Option<u64>,
        end_index: Option<u64>,
    }
    let read: Vec<Annotation> = serde_json::from_str(annotations.get()).unwrap_or_default();
    let cited = read.into_iter().filter_map(|annotation| annotation.url_citation).map(|cited| {
        let mut citation = Citation::new(cited.url);
        citation.title = cited.title;
        citation.range = cited.start_index.zip(cited.end_index);
        citation
    });
    cited.collect()
}

/// The text of a chunk that has no more than one, as it stands in the chunk.
pub(super) fn only_text<'a>(choices: &[Choice<'a>]) -> Option<&'a str> {
    let [Choice { delta: Some(piece), .. }] = choices else { return None };
    let inside = |raw: Option<Raw<'a>>| raw.and_then(Raw::inside).filter(|text| !text.is_empty());
    inside(piece.content).or_else(|| inside(piece.reasoning_content.or(piece.reasoning)))
}

/// The text of a field that is of no importance when it is something else.
pub(super) fn some_text(raw: Raw<'_>) -> Option<String> {
    raw.text().ok().map(Cow::into_owned)
}

/// Whether a field counts as set: SDKs decide it in this way.
pub(super) fn is_truthy(raw: Raw<'_>) -> bool {
    !matches!(raw.get(), "null" | "false" | "\"\"" | "0" | "{}" | "[]")
}

/// Whether it is valid JSON with an error in it.
pub(super) fn is_error(data: &str) -> bool {
    #[derive(Deserialize)]
    struct Probe<'a> {
        #[serde(borrow)]
        error: Raw<'a>,
    }
    serde_json::from_str::<Probe<'_>>(data).is_ok_and(|probe| is_truthy(probe.error))
}
