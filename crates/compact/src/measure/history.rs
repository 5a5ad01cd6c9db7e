//! The tokens of one conversation as it was counted last.

use std::fmt;

use steadfast_chat::{ChatRequest, SharedVec, Tool};

use super::{
    Calibration, Count, Scheme,
    calibration::{Sample, to_tokens},
    message::MessageTokens,
};
use crate::apply::Fingerprint;

/// The tokens of one conversation as it was counted last: of each of its messages, and what the
/// provider reported of the last request. Holds its messages by counted pointers, not by copies; of
/// messages read from the wire it holds a hash.
#[derive(Clone, Default)]
pub struct CountedHistory {
    entries: Vec<Entry>,
    /// The tokens of all entries.
    sum: MessageTokens,
    tools: SharedVec<Tool>,
    tools_tokens: MessageTokens,
    last: Option<LastCount>,
    reported: Option<Reported>,
    growth: Option<Sample>,
}

#[derive(Clone)]
struct Entry {
    message: Fingerprint,
    tokens: MessageTokens,
}

#[derive(Clone, Debug)]
struct LastCount {
    model: Box<str>,
    scheme: Scheme,
    sample: Sample,
}

/// What the provider reported of a request, as long as all of it is still there.
#[derive(Clone, Copy, Debug)]
struct Reported {
    /// How many messages it had.
    messages: usize,
    sample: Sample,
    actual: u64,
}

/// Weight of the last turn in the growth per turn.
const GROWTH_WEIGHT: f64 = 0.2;

impl CountedHistory {
    /// Takes over the request's messages; counted are those that are not the same as last time.
    pub(super) fn update(&mut self, request: &ChatRequest, model: &str, scheme: &Scheme) {
        let last = self.last.as_ref();
        let is_same_scheme = last.is_some_and(|last| last.scheme == *scheme);
        let is_same_model = is_same_scheme && last.is_some_and(|last| *last.model == *model);
        if !is_same_scheme {
            *self = Self { last: self.last.take(), ..Self::default() };
        }
        if !is_same_model {
            (self.reported, self.growth) = (None, None);
        }
        if !self.tools.same(&request.tools) {
            if self.tools != request.tools {
                self.tools_tokens = MessageTokens::tools(&request.tools, scheme);
                self.reported = None;
            }
            self.tools = request.tools.clone();
        }
        let (list, known) = (&*request.messages, self.entries.len());
        let mut unchanged = known.min(list.len());
        for entry in self.entries.drain(unchanged..) {
            self.sum = self.sum.minus(entry.tokens);
        }
        for (index, (entry, message)) in self.entries.iter_mut().zip(list).enumerate() {
            if !entry.message.renew(message) {
                unchanged = unchanged.min(index);
                let tokens = MessageTokens::of(message, scheme);
                self.sum = self.sum.minus(entry.tokens).plus(tokens);
                entry.tokens = tokens;
            }
        }
        for message in list.iter().skip(known) {
            let tokens = MessageTokens::of(message, scheme);
            self.sum = self.sum.plus(tokens);
            self.entries.push(Entry { message: Fingerprint::of(message), tokens });
        }
        self.reported = self.reported.filter(|reported| unchanged >= reported.messages);
        let sample = self.fixed(scheme).plus(self.sum).sample(scheme);
        match &mut self.last {
            Some(last) if is_same_model => {
                if unchanged == known && list.len() > known && known > 0 {
                    let grown = sample.minus(last.sample);
                    let growth = self.growth.get_or_insert(grown);
                    growth.scheme += (grown.scheme - growth.scheme) * GROWTH_WEIGHT;
                    growth.quarter += (grown.quarter - growth.quarter) * GROWTH_WEIGHT;
                }
                last.sample = sample;
            }
            last => *last = Some(LastCount { model: model.into(), scheme: *scheme, sample }),
        }
    }

    /// The tokens of everything that is no message.
    fn fixed(&self, scheme: &Scheme) -> MessageTokens {
        self.tools_tokens.plus(MessageTokens::added(scheme.request))
    }

    pub(super) fn total(&self, learned: &Calibration) -> Count {
        let Some(last) = &self.last else { return Count::default() };
        let fixed = learned.tokens(self.fixed(&last.scheme).sample(&last.scheme));
        // What was reported is certain; only what came after it is estimated.
        let (known, rest) = self.reported.map_or((0.0, last.sample), |reported| {
            (reported.actual as f64, last.sample.minus(reported.sample))
        });
        let estimate = learned.predict(rest);
        let tokens = known + estimate;
        let upper = tokens + estimate * learned.error();
        Count { tokens: to_tokens(tokens), upper: to_tokens(upper), fixed }
    }

    /// The tokens of each message, in order.
    pub fn messages(&self, learned: &Calibration) -> Vec<u64> {
        let Some(last) = &self.last else { return Vec::new() };
        let each = self.entries.iter().map(|entry| entry.tokens.sample(&last.scheme));
        each.map(|sample| learned.tokens(sample)).collect()
    }

    /// How much a turn adds, in tokens, once two were counted.
    pub fn growth(&self, learned: &Calibration) -> Option<u64> {
        self.growth.map(|growth| learned.tokens(growth))
    }

    /// The model, the error of its scheme, and the sizes of the request counted last.
    pub(super) fn last(&self) -> Option<(&str, f64, Sample)> {
        self.last.as_ref().map(|last| (&*last.model, last.scheme.error, last.sample))
    }

    /// Takes over what the provider reported of the request counted last. Returns what there is to
    /// learn from it: what was added since the report before, or all.
    pub(super) fn report(&mut self, actual: u64) -> Option<(Sample, u64)> {
        let sample = self.last.as_ref().filter(|_| actual > 0)?.sample;
        let now = Reported { messages: self.entries.len(), sample, actual };
        let before = self.reported.replace(now);
        Some(before.map_or((sample, actual), |before| {
            (sample.minus(before.sample), actual.saturating_sub(before.actual))
        }))
    }

    /// Drops what the provider reported: the conversation was compacted, and a figure from before says
    /// nothing about it.
    pub fn compacted(&mut self) {
        self.reported = None;
    }
}

impl fmt::Debug for CountedHistory {
    /// Without contents: prompts are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountedHistory").finish_non_exhaustive()
    }
}
