//! What one conversation weighed last time.

use steadfast_core::{ChatRequest, Message, SharedVec, Tool};

use super::{Calibration, Count, Sample, Scheme, Weight, calibrate::to_tokens, weigh};

/// The memory of one conversation: what each of its messages weighed, and what the provider said
/// about the last request. Holds its messages by counted pointers, not by copies.
#[derive(Clone, Debug, Default)]
pub struct Tape {
    entries: Vec<Entry>,
    /// What the entries weigh together.
    sum: Weight,
    tools: SharedVec<Tool>,
    tools_weight: Weight,
    counted: Option<Counted>,
    anchor: Option<Anchor>,
    growth: Option<Sample>,
}

#[derive(Clone, Debug)]
struct Entry {
    message: Message,
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
            if entry.message.same(message) {
                continue;
            }
            let is_equal = entry.message == *message;
            if !is_equal {
                unchanged = unchanged.min(index);
                let weight = weigh(message);
                self.sum = self.sum.minus(entry.weight).plus(weight);
                entry.weight = weight;
            }
            entry.message = message.clone();
        }
        for gone in self.entries.drain(list.len().min(known)..) {
            self.sum = self.sum.minus(gone.weight);
        }
        for message in list.iter().skip(known) {
            let weight = weigh(message);
            self.sum = self.sum.plus(weight);
            self.entries.push(Entry { message: message.clone(), weight });
        }
        if self.anchor.is_some_and(|anchor| unchanged < anchor.messages) {
            self.anchor = None;
        }
        let sample = self.fixed(&scheme).plus(self.sum).sample(&scheme);
        if let Some(last) = self.counted.as_ref().filter(|_| is_same_model)
            && unchanged == known
            && list.len() > known
            && known > 0
        {
            let grown = sample.minus(last.sample);
            let growth = self.growth.get_or_insert(grown);
            growth.scheme += (grown.scheme - growth.scheme) * GROWTH_WEIGHT;
            growth.quarter += (grown.quarter - growth.quarter) * GROWTH_WEIGHT;
        }
        match &mut self.counted {
            Some(counted) if is_same_model => counted.sample = sample,
            counted => *counted = Some(Counted { model: model.into(), scheme, sample }),
        }
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
        let now = Anchor { messages: self.entries.len(), sample, actual };
        match self.anchor.replace(now) {
            Some(before) => {
                Some((sample.minus(before.sample), actual.saturating_sub(before.actual)))
            }
            None => Some((sample, actual)),
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
