//! What a simulation came to.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};
use steadfast::{
    Target,
    limit::{ModelPrice, Prices},
};
use steadfast_core::{Reason, RecoveryLog};

use super::target::TargetTally;
use crate::stories::{Ending, Outcome, Story, cost, first_content, is_failed};

/// Intervals of a picture: five minutes of a day.
pub(super) const INTERVALS: usize = 288;

/// How many lost calls are remembered whole.
const REMEMBERED: usize = 10;

/// The calls of one simulation.
#[derive(Debug, Default)]
pub struct Figures {
    /// Whose they are.
    pub name: String,
    /// Calls.
    pub asked: u64,
    /// Those that were answered whole.
    pub answered: u64,
    /// Those of them that were because something was done about a failure.
    pub recovered: u64,
    /// Why the others were not, by how many.
    pub lost: BTreeMap<Reason, u64>,
    /// Until the first content of answered calls, in milliseconds.
    pub first: Times,
    /// Of this, what was waited for and tried before.
    pub added: Times,
    /// How often targets were asked.
    pub attempts: u64,
    /// What all attempts cost, in millionths of a dollar.
    pub micro_dollars: u64,
    /// Tokens that were read anew because another target was asked than the one that had them.
    pub cache_lost: u64,
    /// What the layers did.
    pub steps: BTreeMap<(&'static str, &'static str), u64>,
    /// The targets' names and what they were asked, in the order of the chain.
    pub targets: Vec<(String, TargetTally)>,
    pub(super) intervals: Vec<Interval>,
    /// The model that was priced last, as most calls have it.
    pub(super) priced: Option<(Box<str>, ModelPrice)>,
    /// The first calls that were lost, the one with the latest first content, and the one to which most was added.
    pub(super) lost_calls: Vec<Arc<Story>>,
    pub(super) slowest: Option<(u32, Arc<Story>)>,
    pub(super) most_added: Option<(u32, Arc<Story>)>,
}

/// What began in an interval.
#[derive(Clone, Debug, Default)]
pub(super) struct Interval {
    pub(super) asked: u64,
    pub(super) answered: u64,
    pub(super) recovered: u64,
    pub(super) first: Times,
    pub(super) added: Times,
    pub(super) micro_dollars: u64,
    /// Answers by target.
    pub(super) by: Vec<u64>,
    /// How often its targets were looked at, and how they were.
    pub(super) samples: u32,
    pub(super) ill: Vec<u32>,
    pub(super) resting: Vec<u32>,
}

/// Times in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<u32>);

impl Times {
    pub(super) fn add(&mut self, time: Duration) {
        self.0.push(millis(time));
    }

    /// The time that `share` of all are within; `None` where there is none.
    pub fn quantile(&self, share: f64) -> Option<u32> {
        let at = ((self.0.len() as f64 * share).ceil() as usize).max(1) - 1;
        let mut times = self.0.clone();
        (at < times.len()).then(|| *times.select_nth_unstable(at).1)
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

impl Figures {
    pub(super) fn new(name: &str, targets: &[String]) -> Self {
        let interval = Interval {
            by: vec![0; targets.len()],
            ill: vec![0; targets.len()],
            resting: vec![0; targets.len()],
            ..Interval::default()
        };
        Self {
            name: name.to_owned(),
            targets: targets.iter().map(|name| (name.clone(), TargetTally::default())).collect(),
            intervals: vec![interval; INTERVALS],
            ..Self::default()
        }
    }

    /// A call is over that began in the `at`th interval, by what its `log` has of it; `story` makes the whole of it,
    /// which few are worth.
    pub(super) fn add(
        &mut self,
        at: usize,
        log: &RecoveryLog,
        ending: &Ending,
        prices: &Prices,
        story: impl FnOnce() -> Story,
    ) {
        let (first, recovered, micro_dollars) = log.read(|attempts, steps| {
            for step in steps {
                *self.steps.entry((step.layer, step.action)).or_default() += 1;
            }
            let recovered = attempts.iter().any(is_failed);
            let priced = &mut self.priced;
            let price = |model: &str| match priced {
                Some((known, price)) if **known == *model => *price,
                _ => priced.insert((model.into(), prices.price(model))).1,
            };
            (first_content(attempts), recovered, cost(attempts, price))
        });
        let interval = &mut self.intervals[at.min(INTERVALS - 1)];
        self.asked += 1;
        interval.asked += 1;
        self.micro_dollars += micro_dollars;
        interval.micro_dollars += micro_dollars;
        if ending.outcome != Outcome::Ok {
            *self.lost.entry(ending.reason.unwrap_or(Reason::Unknown)).or_default() += 1;
            if self.lost_calls.len() < REMEMBERED {
                self.lost_calls.push(Arc::new(story()));
            }
            return;
        }
        self.answered += 1;
        interval.answered += 1;
        if recovered {
            self.recovered += 1;
            interval.recovered += 1;
        }
        if let Some(provider) = ending.target.as_ref().map(Target::provider)
            && let Some(at) = self.targets.iter().position(|(name, _)| name == provider)
        {
            interval.by[at] += 1;
        }
        let Some((began, first)) = first else { return };
        for times in [&mut self.first, &mut interval.first] {
            times.add(began + first);
        }
        for times in [&mut self.added, &mut interval.added] {
            times.add(began);
        }
        let (first, added) = (millis(began + first), millis(began));
        let is_more =
            |most: &Option<(u32, Arc<Story>)>, time| most.as_ref().is_none_or(|one| one.0 < time);
        if is_more(&self.slowest, first) || is_more(&self.most_added, added) {
            let story = Arc::new(story());
            if is_more(&self.slowest, first) {
                self.slowest = Some((first, story.clone()));
            }
            if is_more(&self.most_added, added) {
                self.most_added = Some((added, story));
            }
        }
    }

    /// The share of calls that were answered.
    pub fn answered_share(&self) -> f64 {
        self.answered as f64 / self.asked.max(1) as f64
    }

    /// How many were lost.
    pub fn lost_calls(&self) -> u64 {
        self.asked - self.answered
    }

    /// How often targets were asked, a call.
    pub fn attempts_a_call(&self) -> f64 {
        self.attempts as f64 / self.asked.max(1) as f64
    }

    /// In dollars.
    pub fn dollars(&self) -> f64 {
        self.micro_dollars as f64 / 1e6
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let times = |times: &Times| {
            json!({
                "p50": times.quantile(0.50), "p95": times.quantile(0.95), "p99": times.quantile(0.99),
                "max": times.quantile(1.0),
            })
        };
        let lost: serde_json::Map<_, _> = self
            .lost
            .iter()
            .map(|(reason, count)| (reason.as_str().to_owned(), json!(count)))
            .collect();
        let steps: serde_json::Map<_, _> = self
            .steps
            .iter()
            .map(|((layer, action), count)| (format!("{layer}.{action}"), json!(count)))
            .collect();
        let targets = self.targets.iter().map(|(name, tally)| {
            json!({
                "target": name, "asked": tally.asked, "answered": tally.answered,
                "seconds": tally.time.as_secs(),
            })
        });
        json!({
            "asking": self.name,
            "asked": self.asked,
            "answered": self.answered,
            "answered_share": self.answered_share(),
            "recovered": self.recovered,
            "lost": lost,
            "first_content_ms": times(&self.first),
            "added_ms": times(&self.added),
            "attempts": self.attempts,
            "dollars": self.dollars(),
            "cache_lost_tokens": self.cache_lost,
            "steps": steps,
            "targets": targets.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_times() {
        let mut times = Times::default();
        assert_eq!(times.quantile(0.5), None);
        for ms in [5, 1, 4, 2, 3] {
            times.add(Duration::from_millis(ms));
        }
        let of = |share| times.quantile(share).unwrap();
        assert_eq!([of(0.0), of(0.2), of(0.5), of(0.99), of(1.0)], [1, 1, 3, 5, 5]);
    }
}
