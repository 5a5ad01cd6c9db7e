//! What an answer says about itself: its sources, and how sure the model was.

/// A source that a piece of an answer's text rests on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Citation {
    /// Its address.
    pub url: String,
    /// Its title.
    pub title: Option<String>,
    /// The piece of the answer's text, in characters from its beginning, where that is known.
    pub range: Option<(u64, u64)>,
}

impl Citation {
    /// A source at `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), title: None, range: None }
    }
}

/// How likely a token of an answer was.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TokenLogprob {
    /// The token's text.
    pub token: String,
    /// The logarithm of its probability.
    pub logprob: f64,
    /// The likeliest tokens in its place, if they were asked for.
    pub top: Vec<(String, f64)>,
}

impl TokenLogprob {
    /// A token, without others in its place.
    pub fn new(token: impl Into<String>, logprob: f64) -> Self {
        Self { token: token.into(), logprob, top: Vec::new() }
    }
}
