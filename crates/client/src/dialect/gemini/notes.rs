//! What an answer says about itself, as this dialect writes it: sources, and how likely its tokens were.

use serde::Deserialize;
use steadfast_chat::{Citation, TokenLogprob};

use crate::json::{Array, Object, Raw};

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Logprobs {
    chosen_candidates: Vec<Token>,
    top_candidates: Vec<Top>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Top {
    candidates: Vec<Token>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Token {
    token: String,
    log_probability: f64,
}

/// Reads `logprobsResult`; what can not be read is not known.
pub(super) fn logprobs(raw: Raw<'_>) -> Vec<TokenLogprob> {
    let read: Logprobs = serde_json::from_str(raw.get()).unwrap_or_default();
    let mut tops = read.top_candidates.into_iter();
    let tokens = read.chosen_candidates.into_iter().map(|token| {
        let mut read = TokenLogprob::new(token.token, token.log_probability);
        let top = tops.next().unwrap_or_default().candidates.into_iter();
        read.top = top.map(|top| (top.token, top.log_probability)).collect();
        read
    });
    tokens.collect()
}

/// Writes `logprobsResult`.
pub(super) fn put_logprobs(candidate: &mut Object<'_>, logprobs: &[TokenLogprob]) {
    let token = |list: &mut Array<'_>, token: &str, logprob: f64| {
        list.object().put("token", token).put("logProbability", &logprob);
    };
    let mut result = candidate.object("logprobsResult");
    {
        let mut chosen = result.array("chosenCandidates");
        for read in logprobs {
            token(&mut chosen, &read.token, read.logprob);
        }
    }
    let mut tops = result.array("topCandidates");
    for read in logprobs {
        let mut top = tops.object();
        let mut candidates = top.array("candidates");
        for (text, logprob) in &read.top {
            token(&mut candidates, text, *logprob);
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Citations {
    // By Gemini's own API, and by Vertex.
    #[serde(rename = "citationSources", alias = "citations")]
    citations: Vec<Cited>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Cited {
    uri: Option<String>,
    title: Option<String>,
}

/// Reads the sources in `citationMetadata`. Its ranges are in bytes of a text that may come in pieces:
/// they are left out.
pub(super) fn cited(raw: Raw<'_>) -> Vec<Citation> {
    let read: Citations = serde_json::from_str(raw.get()).unwrap_or_default();
    read.citations.into_iter().filter_map(citation).collect()
}

fn citation(cited: Cited) -> Option<Citation> {
    let mut citation = Citation::new(cited.uri?);
    citation.title = cited.title.filter(|title| !title.is_empty());
    Some(citation)
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Grounding {
    grounding_chunks: Vec<Chunk>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Chunk {
    web: Option<Cited>,
}

/// Reads the pages in `groundingMetadata`.
pub(super) fn grounded(raw: Raw<'_>) -> Vec<Citation> {
    let read: Grounding = serde_json::from_str(raw.get()).unwrap_or_default();
    read.grounding_chunks.into_iter().filter_map(|chunk| citation(chunk.web?)).collect()
}

/// Writes `citationMetadata`.
pub(super) fn put_citations(candidate: &mut Object<'_>, citations: &[Citation]) {
    let mut metadata = candidate.object("citationMetadata");
    let mut list = metadata.array("citationSources");
    for citation in citations {
        list.object().put("uri", &citation.url).put_some("title", citation.title.as_ref());
    }
}
