//! What one conversation weighed last time.

use std::fmt;

use steadfast_chat::{ChatRequest, Message, SharedVec, Tool};

use super::{Calibration, Count, Sample, Scheme, Weight, calibrate::to_tokens, weigh};
use crate::mark::Mark;

/// The memory of one conversation: what each of its messages weighed, and what the provider said
/// about the last request. Holds its messages by counted pointers, not by copies; of messages read
/// from the wire it holds a hash.
#[derive(Clone, Default)]
pub struct Tape {
    entries: Vec<Entry>,
    /// What the entries weigh together.
    sum: Weight,
    tools: SharedVec<Tool>,
    tools_weight: Weight,
    counted: Option<Counted>,
    anchor: Option<Anchor>,
    growth: Option<Sample>,
    /// Where the next look at old messages begins.
    cursor: usize,
}

#[derive(Clone)]
struct Entry {
    mark: Mark,
    weight: Weight,
}

/// What was counted last.
#[derive(Clone, Debug)]
struct Counted {
    model: Box<str>,
    scheme: Scheme,
    sample: Sample,
}

/// What the provider said of a request, as long as all of it is still there.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    /// How many messages it had.
    messages: usize,
    sample: Sample,
    actual: u64,
}

/// Weight of the last turn in the growth per turn.
const GROWTH_WEIGHT: f64 = 0.2;

/// Of the messages that were there last time, how many of the newest are looked at in a turn. What
/// is edited is nearly always there.
const NEWEST: usize = 16;

/// And how many of the others, in turn: an edit anywhere in a history of a thousand messages is
/// found within thirty turns.
const OLDER: usize = 32;

impl Tape {
    /// Takes over the request's messages; `weigh` is asked for those that are not the same in
    /// memory as last time.
    pub(super) fn update(
        &mut self,
        request: &ChatRequest,
        model: &str,
        scheme: Scheme,
        weigh: impl Fn(&Message) -> Weight,
    ) {
        let list = &*request.messages;
        let is_same_model = self
            .counted
            .as_ref()
            .is_some_and(|last| *last.model == *model && last.scheme == scheme);
        if !is_same_model {
            self.entries.clear();
            self.sum = Weight::default();
            self.tools_weight = weigh::tools(&request.tools, &scheme);
            self.tools = request.tools.clone();
            self.anchor = None;
            self.growth = None;
        } else if !self.tools.same(&request.tools) {
            if self.tools != request.tools {
                self.tools_weight = weigh::tools(&request.tools, &scheme);
                self.anchor = None;
            }
            self.tools = request.tools.clone();
        }
        let known = self.entries.len();
        let mut unchanged = known.min(list.len());
        for (index, (entry, message)) in self.entries.iter_mut().zip(list).enumerate() {
            if entry.mark.same(message) {
                continue;
            }
            let is_equal = entry.mark.is(message);
            if !is_equal {
                unchanged = unchanged.min(index);
                let weight = weigh(message);
                self.sum = self.sum.minus(entry.weight).plus(weight);
                entry.weight = weight;
            }
            entry.mark = Mark::of(message);
        }
        for gone in self.entries.drain(list.len().min(known)..) {
            self.sum = self.sum.minus(gone.weight);
        }
        for message in list.iter().skip(known) {
            let weight = weigh(message);
            self.sum = self.sum.plus(weight);
            self.entries.push(Entry { mark: Mark::of(message), weight });
        }
        if self.anchor.is_some_and(|anchor| unchanged < anchor.messages) {
            self.anchor = None;
        }
        let sample = self.fixed(&scheme).plus(self.sum).sample(&scheme);
        if is_same_model && unchanged == known && list.len() > known {
            self.grow(known, sample);
        }
        match &mut self.counted {
            Some(counted) if is_same_model => counted.sample = sample,
            counted => *counted = Some(Counted { model: model.into(), scheme, sample }),
        }
    }

    /// Takes note of what a turn added to a history of `known` messages, which is `sample` now.
    fn grow(&mut self, known: usize, sample: Sample) {
        let Some(last) = self.counted.as_ref().filter(|_| known > 0) else { return };
        let grown = sample.minus(last.sample);
        let growth = self.growth.get_or_insert(grown);
        growth.scheme += (grown.scheme - growth.scheme) * GROWTH_WEIGHT;
        growth.quarter += (grown.quarter - growth.quarter) * GROWTH_WEIGHT;
    }

    /// The same as [`update`](Self::update) in a time that does not grow with the history: of the
    /// messages that were there last time it looks at the newest, and at some of the older ones, others
    /// in every turn. `false`, and nothing is taken over, when one of them is another in memory.
    pub(super) fn follow(
        &mut self,
        request: &ChatRequest,
        model: &str,
        scheme: Scheme,
        weigh: impl Fn(&Message) -> Weight,
    ) -> bool {
        let known = self.entries.len();
        let is_same = |last: &Counted| *last.model == *model && last.scheme == scheme;
        if !self.counted.as_ref().is_some_and(is_same)
            || !self.tools.same(&request.tools)
            || request.messages.len() < known
            || known == 0
        {
            return false;
        }
        let list = &*request.messages;
        let newest = known.saturating_sub(NEWEST)..known;
        let first = if self.cursor < newest.start { self.cursor } else { 0 };
        let older = first..newest.start.min(first + OLDER);
        self.cursor = older.end;
        let same = |at: usize| self.entries[at].mark.same(&list[at]);
        if !newest.chain(older).all(same) {
            return false;
        }
        if list.len() == known {
            return true;
        }
        for message in &list[known..] {
            let weight = weigh(message);
            self.sum = self.sum.plus(weight);
            self.entries.push(Entry { mark: Mark::of(message), weight });
        }
        let sample = self.fixed(&scheme).plus(self.sum).sample(&scheme);
        self.grow(known, sample);
        if let Some(counted) = &mut self.counted {
            counted.sample = sample;
        }
        true
    }

    /// The weight of everything that is no message.
    fn fixed(&self, scheme: &Scheme) -> Weight {
        let request = Weight { fixed: u64::from(scheme.request), ..Weight::default() };
        self.tools_weight.plus(request)
    }

    pub(super) fn total(&self, learned: &Calibration) -> Count {
        let Some(counted) = &self.counted else { return Count::default() };
        let fixed = learned.tokens(self.fixed(&counted.scheme).sample(&counted.scheme));
        let (known, unsure) = match self.anchor {
            Some(anchor) => {
                (anchor.actual as f64, learned.predict(counted.sample.minus(anchor.sample)))
            }
            None => (0.0, learned.predict(counted.sample)),
        };
        let tokens = known + unsure;
        let upper = tokens + unsure * learned.error();
        Count { tokens: to_tokens(tokens), upper: to_tokens(upper), fixed }
    }

    /// The tokens of each message, in order.
    pub fn messages(&self, learned: &Calibration) -> Vec<u64> {
        let Some(counted) = &self.counted else { return Vec::new() };
        let each = self.entries.iter().map(|entry| entry.weight.sample(&counted.scheme));
        each.map(|sample| learned.tokens(sample)).collect()
    }

    /// How much a turn adds, in tokens, once two have been seen.
    pub fn growth(&self, learned: &Calibration) -> Option<u64> {
        self.growth.map(|growth| learned.tokens(growth))
    }

    /// Takes over what the provider said of the request counted last. What there is to learn from
    /// it: what was added since it said something before, or all.
    pub(super) fn anchor(&mut self, model: &str, actual: u64) -> Option<(Sample, u64)> {
        let sample = self.sample(model).filter(|_| actual > 0)?;
        Some(self.anchor_at(sample, actual))
    }

    /// The model that was counted for last.
    pub(super) fn model(&self) -> Option<&str> {
        self.counted.as_ref().map(|last| &*last.model)
    }

    /// The same as [`anchor`](Self::anchor), whatever the model was.
    pub(super) fn anchor_last(&mut self, actual: u64) -> Option<(Sample, u64)> {
        let sample = self.counted.as_ref()?.sample;
        (actual > 0).then(|| self.anchor_at(sample, actual))
    }

    fn anchor_at(&mut self, sample: Sample, actual: u64) -> (Sample, u64) {
        let now = Anchor { messages: self.entries.len(), sample, actual };
        match self.anchor.replace(now) {
            Some(before) => (sample.minus(before.sample), actual.saturating_sub(before.actual)),
            None => (sample, actual),
        }
    }

    /// The sizes of the request counted last, when that was for `model`.
    pub(super) fn sample(&self, model: &str) -> Option<Sample> {
        self.counted.as_ref().filter(|last| *last.model == *model).map(|last| last.sample)
    }

    /// Lets go of what the provider said: the conversation was compacted, and a figure from before
    /// says nothing about it.
    pub fn compacted(&mut self) {
        self.anchor = None;
    }
}

impl fmt::Debug for Tape {
    /// Shows shapes, not contents: prompts are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tape")
            .field("messages", &self.entries.len())
            .field("counted", &self.counted)
            .finish_non_exhaustive()
    }
}
