//! Counting tokens: exactly where a vocabulary is public and the feature `exact-tokens` is on, by a
//! learning estimate elsewhere.
//!
//! A message is counted once, however often it is sent: a [`CountedHistory`] recognises the messages of
//! its conversation, by their address in memory or by a hash of what was read from the wire.
//!
//! ```
//! use steadfast_compact::{CountedHistory, Counter};
//! use steadfast_chat::{ChatRequest, Message};
//!
//! let counter = Counter::default();
//! let mut history = CountedHistory::default();
//! let mut request = ChatRequest::user("How many tokens is this?");
//! let first = counter.count(&mut history, &request, "claude-sonnet-4-5");
//!
//! // The provider reports what it really was: the next count starts from that.
//! counter.reported(&mut history, 20);
//! request.messages.make_mut().push(Message::assistant("Not many."));
//! let second = counter.count(&mut history, &request, "claude-sonnet-4-5");
//! assert!(second.tokens > 20 && second.tokens < 40);
//! assert!(second.upper - second.tokens <= first.upper - first.tokens + 1, "and is surer");
//! ```

mod calibration;
mod history;
mod message;
mod models;
mod scheme;
#[cfg(feature = "shared")]
mod shared;
mod target;

use std::collections::HashMap;

use parking_lot::Mutex;
use steadfast_chat::{ChatRequest, Message};

#[cfg(feature = "shared")]
pub(crate) use self::shared::share;
pub use self::{
    calibration::Calibration,
    history::CountedHistory,
    models::{Models, TokenLimits, UNKNOWN},
    scheme::{Encoding, Scheme},
    target::TargetFacts,
};
use self::{calibration::Sample, message::MessageTokens};
pub(crate) use self::{
    message::upper_bound,
    target::{TargetInfo, model},
};

/// Models that are calibrated, at most.
const MAX_MODELS: usize = 1_024;

/// How large a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// The likeliest number of input tokens.
    pub tokens: u64,
    /// The upper end of the estimate's error: what a trigger compares with its threshold.
    pub upper: u64,
    /// The part of `tokens` that is no message: tools and what the provider adds.
    pub fixed: u64,
}

/// Counts tokens for all conversations of a process, and learns from what providers report, of 1,024
/// models at most. Cheap to share in an `Arc`.
#[derive(Debug, Default)]
pub struct Counter {
    models: Mutex<HashMap<Box<str>, Calibration>>,
    schemes: Vec<(Box<str>, Scheme)>,
}

impl Counter {
    /// Counts models whose name begins with `prefix` by `scheme`. The longest prefix wins.
    #[must_use]
    pub fn with_scheme(mut self, prefix: impl Into<Box<str>>, scheme: Scheme) -> Self {
        self.schemes.push((prefix.into(), scheme));
        self.schemes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        self
    }

    /// How `model` is counted.
    pub fn scheme(&self, model: &str) -> Scheme {
        let given = self.schemes.iter().find(|(prefix, _)| model.starts_with(&**prefix));
        given.map_or_else(|| Scheme::for_model(model), |(_, scheme)| *scheme)
    }

    /// What was learned of `model`.
    pub fn calibration(&self, model: &str) -> Calibration {
        let known = self.models.lock().get(model).copied();
        known.unwrap_or_else(|| Calibration::new(self.scheme(model).error))
    }

    /// The input tokens of `request` for `model`. `history` belongs to the conversation; with a new
    /// one every message is counted.
    pub fn count(&self, history: &mut CountedHistory, request: &ChatRequest, model: &str) -> Count {
        history.update(request, model, &self.scheme(model));
        history.total(&self.calibration(model))
    }

    /// The tokens of one message for `model`, as learned so far.
    pub fn message(&self, message: &Message, model: &str) -> u64 {
        let scheme = self.scheme(model);
        self.calibration(model).tokens(MessageTokens::of(message, &scheme).sample(&scheme))
    }

    /// The provider reported that the request counted last had `actual` input tokens. Zero is taken
    /// for "not known".
    pub fn reported(&self, history: &mut CountedHistory, actual: u64) {
        let learned = history.report(actual);
        if let (Some((sample, tokens)), Some((model, error, _))) = (learned, history.last()) {
            self.learn(model, error, sample, tokens);
        }
    }

    /// The provider refused the request counted last and stated how large it was. The next count does
    /// not start from it: a number in an error may include the output.
    pub fn overflowed(&self, history: &CountedHistory, requested: u64) {
        if let Some((model, error, sample)) = history.last() {
            self.learn(model, error, sample, requested);
        }
    }

    fn learn(&self, model: &str, error: f64, sample: Sample, actual: u64) {
        let mut models = self.models.lock();
        if let Some(known) = models.get_mut(model) {
            known.observe(sample, actual);
        } else if models.len() < MAX_MODELS {
            let mut fresh = Calibration::new(error);
            fresh.observe(sample, actual);
            models.insert(model.into(), fresh);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_custom_scheme_is_found_by_the_longest_prefix() {
        let flat = |bytes| Scheme { encoding: Encoding::Bytes(bytes), ..Scheme::for_model("x") };
        let counter =
            Counter::default().with_scheme("house", flat(4)).with_scheme("house-big", flat(2));
        assert_eq!(counter.scheme("house-big-1").encoding, Encoding::Bytes(2));
        assert_eq!(counter.scheme("house-small").encoding, Encoding::Bytes(4));
    }
}
