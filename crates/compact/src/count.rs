//! Counting tokens: exactly where a vocabulary is public, by a learning estimate elsewhere.
//!
//! A message is counted once, however often it is sent: a [`Tape`] recognises the messages of its
//! conversation by their place in memory, and a [`Counter`] knows all others by their content. A
//! turn costs the count of what is new in it.
//!
//! ```
//! use steadfast_compact::{Counter, Tape};
//! use steadfast_chat::{ChatRequest, Message};
//!
//! let counter = Counter::default();
//! let mut tape = Tape::default();
//! let mut request = ChatRequest::user("How many tokens is this?");
//! let first = counter.count(&mut tape, &request, "claude-sonnet-4-5");
//!
//! // The provider says what it really was: the next count starts from that.
//! counter.reported(&mut tape, "claude-sonnet-4-5", 20);
//! request.messages.make_mut().push(Message::assistant("Not many."));
//! let second = counter.count(&mut tape, &request, "claude-sonnet-4-5");
//! assert!(second.tokens > 20 && second.tokens < 40);
//! assert!(second.upper - second.tokens <= first.upper - first.tokens + 1, "and is surer");
//! ```

mod calibrate;
mod scheme;
mod tape;
mod weigh;

use std::collections::HashMap;

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use steadfast_chat::{ChatRequest, Message};

pub use self::{
    calibrate::{Calibration, Sample},
    scheme::{Encoding, Scheme},
    tape::Tape,
    weigh::Weight,
};

/// Messages whose weight is remembered, whoever sent them, at most.
const MAX_MESSAGES: usize = 65_536;

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

/// Counts tokens for all conversations of a process, and learns from what providers report.
///
/// Bounded: 65,536 message weights of a few bytes each, 1,024 models. Cheap to share in an `Arc`.
#[derive(Debug)]
pub struct Counter {
    hasher: RandomState,
    seen: Mutex<Generations>,
    models: Mutex<HashMap<Box<str>, Calibration>>,
    schemes: Vec<(Box<str>, Scheme)>,
}

impl Default for Counter {
    fn default() -> Self {
        Self {
            hasher: RandomState::default(),
            seen: Mutex::new(Generations::new(MAX_MESSAGES)),
            models: Mutex::default(),
            schemes: Vec::new(),
        }
    }
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

    /// The input tokens of `request` for `model`. `tape` is the conversation's own memory: with a
    /// new one all is looked up by content.
    pub fn count(&self, tape: &mut Tape, request: &ChatRequest, model: &str) -> Count {
        let scheme = self.scheme(model);
        tape.update(request, model, scheme, |message| self.weigh(message, &scheme));
        tape.total(&self.calibration(model))
    }

    /// The same as [`count`](Self::count) in a time that does not grow with the history, for callers
    /// that keep their messages in memory: of those counted last time it looks at the newest and at
    /// some of the older ones, in turn. So an edit far back may be counted some turns late.
    pub fn follow(&self, tape: &mut Tape, request: &ChatRequest, model: &str) -> Count {
        self.follow_by(tape, request, model, &self.scheme(model))
    }

    pub(crate) fn follow_by(
        &self,
        tape: &mut Tape,
        request: &ChatRequest,
        model: &str,
        scheme: &Scheme,
    ) -> Count {
        let weigh = |message: &Message| self.weigh(message, scheme);
        if !tape.follow(request, model, *scheme, weigh) {
            tape.update(request, model, *scheme, weigh);
        }
        tape.total(&self.calibration(model))
    }

    /// The tokens of one message for `model`, as learned so far.
    pub fn message(&self, message: &Message, model: &str) -> u64 {
        let scheme = self.scheme(model);
        let weight = self.weigh(message, &scheme);
        self.calibration(model).tokens(weight.sample(&scheme))
    }

    /// The provider reported that the request counted last on `tape` had `actual` input tokens.
    /// Zero is taken for "not known".
    pub fn reported(&self, tape: &mut Tape, model: &str, actual: u64) {
        if let Some((sample, tokens)) = tape.anchor(model, actual) {
            self.learn(model, sample, tokens);
        }
    }

    /// The same as [`reported`](Self::reported), for the model that was counted for last.
    pub(crate) fn reported_last(&self, tape: &mut Tape, actual: u64) {
        let learned = tape.anchor_last(actual);
        if let (Some((sample, tokens)), Some(model)) = (learned, tape.model()) {
            self.learn(model, sample, tokens);
        }
    }

    /// The provider refused the request counted last on `tape` and said how large it was. Nothing
    /// is anchored: a number in an error may count the output in.
    pub fn overflowed(&self, tape: &Tape, model: &str, requested: u64) {
        if let Some(sample) = tape.sample(model) {
            self.learn(model, sample, requested);
        }
    }

    fn learn(&self, model: &str, sample: Sample, actual: u64) {
        let error = self.scheme(model).error;
        let mut models = self.models.lock();
        if let Some(known) = models.get_mut(model) {
            known.observe(sample, actual);
        } else if models.len() < MAX_MODELS {
            let mut fresh = Calibration::new(error);
            fresh.observe(sample, actual);
            models.insert(model.into(), fresh);
        }
    }

    /// The weight of a message, counted at most once as long as it is remembered.
    fn weigh(&self, message: &Message, scheme: &Scheme) -> Weight {
        let key = weigh::fingerprint(message, scheme, &self.hasher);
        if let Some(weight) = self.seen.lock().get(key) {
            return weight;
        }
        let weight = weigh::message(message, scheme);
        self.seen.lock().insert(key, weight);
        weight
    }
}

/// A bounded map that forgets what was not asked for since its last two fillings.
#[derive(Debug)]
struct Generations {
    young: HashMap<u64, Weight, foldhash::fast::RandomState>,
    old: HashMap<u64, Weight, foldhash::fast::RandomState>,
    half: usize,
}

impl Generations {
    fn new(capacity: usize) -> Self {
        Self { young: HashMap::default(), old: HashMap::default(), half: (capacity / 2).max(1) }
    }

    fn get(&mut self, key: u64) -> Option<Weight> {
        if let Some(weight) = self.young.get(&key) {
            return Some(*weight);
        }
        let weight = self.old.remove(&key)?;
        self.insert(key, weight);
        Some(weight)
    }

    fn insert(&mut self, key: u64, weight: Weight) {
        if self.young.len() >= self.half {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded_and_what_is_used_stays() {
        let mut seen = Generations::new(8);
        let weight = Weight { text: 1, bytes: 3, fixed: 2 };
        for key in 0..100 {
            seen.insert(key, weight);
            assert_eq!(seen.get(0), Some(weight), "after {key}");
            assert!(seen.young.len() + seen.old.len() <= 8);
        }
        assert_eq!(seen.get(50), None);
    }

    #[test]
    fn a_scheme_of_ones_own_goes_by_the_longest_prefix() {
        let flat = |bytes| Scheme { encoding: Encoding::Bytes(bytes), ..Scheme::for_model("x") };
        let counter =
            Counter::default().with_scheme("house", flat(4)).with_scheme("house-big", flat(2));
        assert_eq!(counter.scheme("house-big-1").encoding, Encoding::Bytes(2));
        assert_eq!(counter.scheme("house-small").encoding, Encoding::Bytes(4));
    }
}
