//! How it went, over time: what became of all requests, in intervals.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use steadfast_core::time::wall;
use tokio::time::Instant;

use super::{Outcome, Story};

/// What is kept: 15 minutes by 10 seconds, 6 hours by 2 minutes and 24 hours by 10.
const SPANS: [Span; 3] =
    [Span::new("15m", 10, 90), Span::new("6h", 120, 180), Span::new("24h", 600, 144)];

/// The bounds of times are this factor apart, from a millisecond on: 40 % of a time is as near as anybody looks.
const FACTOR: f64 = 1.4;

/// How many times there are between a millisecond and an hour.
const BOUNDS: usize = 46;

/// How long something is kept, and how finely.
#[derive(Clone, Copy, Debug)]
struct Span {
    name: &'static str,
    step: Duration,
    intervals: usize,
}

impl Span {
    const fn new(name: &'static str, step_s: u64, intervals: usize) -> Self {
        Self { name, step: Duration::from_secs(step_s), intervals }
    }
}

/// Sums of what ended, by intervals; of bounded size.
#[derive(Debug)]
pub(super) struct Timeline {
    began: Instant,
    began_at: SystemTime,
    spans: [VecDeque<Interval>; SPANS.len()],
}

/// What ended in an interval.
#[derive(Clone, Debug, Default)]
struct Interval {
    /// Its position since the beginning.
    number: u64,
    ok: u64,
    recovered: u64,
    failed: u64,
    cancelled: u64,
    /// What was done about failures, by the names of steps.
    kinds: BTreeMap<(&'static str, &'static str), u64>,
    /// Until the first content.
    first: Times,
    /// Before the attempt began that brought it.
    added: Times,
    tokens: (u64, u64),
    micro_dollars: u64,
}

/// How many times were within each bound.
#[derive(Clone, Debug, Default)]
pub(super) struct Times(Vec<u32>);

impl Times {
    pub(super) fn add(&mut self, time: Duration) {
        let bound = (time.as_secs_f64() * 1e3).max(1.0).log(FACTOR).ceil() as usize;
        let bound = bound.min(BOUNDS - 1);
        if self.0.len() <= bound {
            self.0.resize(bound + 1, 0);
        }
        self.0[bound] = self.0[bound].saturating_add(1);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (sum, times) in self.0.iter_mut().zip(&other.0) {
            *sum = sum.saturating_add(*times);
        }
    }

    /// The time that `share` of all are within, in milliseconds.
    pub(super) fn quantile(&self, share: f64) -> Option<f64> {
        let all: u64 = self.0.iter().copied().map(u64::from).sum();
        let wanted = ((all as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let bound = self.0.iter().position(|times| {
            seen += u64::from(*times);
            seen >= wanted
        });
        bound.map(|bound| FACTOR.powi(i32::try_from(bound).unwrap_or(0)).round())
    }
}

impl Interval {
    fn add(&mut self, story: &Story) {
        let count = match story.outcome() {
            Outcome::Ok if story.is_recovered() => &mut self.recovered,
            Outcome::Ok => &mut self.ok,
            Outcome::Failed => &mut self.failed,
            Outcome::Cancelled => &mut self.cancelled,
            Outcome::Running => return,
        };
        *count += 1;
        for step in story.steps() {
            *self.kinds.entry((step.layer, step.action)).or_default() += 1;
        }
        if let Some((began, first)) = story.first_content() {
            self.first.add(began + first);
            self.added.add(began);
        }
        let usage = story.usage();
        self.tokens.0 = self.tokens.0.saturating_add(usage.input.unwrap_or(0));
        self.tokens.1 = self.tokens.1.saturating_add(usage.output.unwrap_or(0));
        self.micro_dollars = self.micro_dollars.saturating_add(story.micro_dollars());
    }

    fn merge(&mut self, other: &Self) {
        self.ok += other.ok;
        self.recovered += other.recovered;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        for (kind, times) in &other.kinds {
            *self.kinds.entry(*kind).or_default() += times;
        }
        self.first.merge(&other.first);
        self.added.merge(&other.added);
        self.tokens.0 = self.tokens.0.saturating_add(other.tokens.0);
        self.tokens.1 = self.tokens.1.saturating_add(other.tokens.1);
        self.micro_dollars = self.micro_dollars.saturating_add(other.micro_dollars);
    }

    fn json(&self) -> Value {
        let kinds: serde_json::Map<_, _> = self
            .kinds
            .iter()
            .map(|((layer, action), times)| (format!("{layer}.{action}"), json!(times)))
            .collect();
        json!({
            "ok": self.ok,
            "recovered": self.recovered,
            "failed": self.failed,
            "cancelled": self.cancelled,
            "steps": kinds,
            "first_content_ms": {"p50": self.first.quantile(0.5), "p95": self.first.quantile(0.95)},
            "added_ms": {"p50": self.added.quantile(0.5), "p95": self.added.quantile(0.95)},
            "input_tokens": self.tokens.0,
            "output_tokens": self.tokens.1,
            "micro_dollars": self.micro_dollars,
        })
    }
}

impl Timeline {
    pub(super) fn new() -> Self {
        let spans = Default::default();
        Self { began: Instant::now(), began_at: wall(), spans }
    }

    /// A request has ended.
    pub(super) fn add(&mut self, story: &Story) {
        let elapsed = self.began.elapsed();
        for (span, intervals) in SPANS.iter().zip(&mut self.spans) {
            let number = number(elapsed, span.step);
            if intervals.back().is_none_or(|last| last.number < number) {
                intervals.push_back(Interval { number, ..Interval::default() });
            }
            while intervals.front().is_some_and(|first| is_old(first.number, number, span)) {
                intervals.pop_front();
            }
            if let Some(last) = intervals.back_mut() {
                last.add(story);
            }
        }
    }

    /// The intervals of the span with this name, the oldest first: those in which nothing ended are left out. `None`
    /// if there is no such span.
    pub(super) fn span(&self, name: &str) -> Option<Value> {
        let at = SPANS.iter().position(|span| span.name == name)?;
        let (span, now) = (&SPANS[at], number(self.began.elapsed(), SPANS[at].step));
        let kept = self.spans[at].iter().filter(|one| !is_old(one.number, now, span));
        let shown = kept.map(|interval| {
            let since =
                span.step.saturating_mul(u32::try_from(interval.number).unwrap_or(u32::MAX));
            let mut shown = interval.json();
            let at = self.began_at.checked_add(since).unwrap_or(self.began_at);
            shown["at"] = json!(humantime::format_rfc3339_seconds(at).to_string());
            shown
        });
        Some(json!({
            "span": span.name,
            "step_s": span.step.as_secs(),
            "intervals": shown.collect::<Vec<_>>(),
        }))
    }

    /// All that ended in the last five minutes, together.
    pub(super) fn lately(&self) -> Value {
        let span = Span { intervals: 30, ..SPANS[0] };
        let now = number(self.began.elapsed(), span.step);
        let mut all = Interval::default();
        for interval in self.spans[0].iter().filter(|one| !is_old(one.number, now, &span)) {
            all.merge(interval);
        }
        all.json()
    }
}

/// The names of what is kept.
pub(super) fn names() -> [&'static str; SPANS.len()] {
    SPANS.map(|span| span.name)
}

fn number(elapsed: Duration, step: Duration) -> u64 {
    elapsed.as_secs() / step.as_secs()
}

fn is_old(number: u64, now: u64, span: &Span) -> bool {
    now.saturating_sub(number) >= span.intervals as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use steadfast_core::RecoveryLog;
    use tokio::time::advance;

    use super::{
        super::story::{Draft, Ending},
        *,
    };

    fn ended(outcome: Outcome) -> Story {
        Story::new(
            Arc::new(Draft::new("x".to_owned())),
            &RecoveryLog::disabled(),
            Ending::new(outcome),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn what_ended_is_in_its_interval_and_gone_after_its_span() {
        let mut timeline = Timeline::new();
        timeline.add(&ended(Outcome::Ok));
        advance(Duration::from_secs(9)).await;
        timeline.add(&ended(Outcome::Failed));
        advance(Duration::from_secs(1)).await;
        timeline.add(&ended(Outcome::Cancelled));
        let counts = |timeline: &Timeline, name: &str| -> Vec<[u64; 3]> {
            let span = timeline.span(name).unwrap();
            let intervals = span["intervals"].as_array().unwrap().iter();
            let of =
                |one: &Value| ["ok", "failed", "cancelled"].map(|name| one[name].as_u64().unwrap());
            intervals.map(of).collect()
        };
        assert_eq!(counts(&timeline, "15m"), [[1, 1, 0], [0, 0, 1]]);
        assert_eq!(counts(&timeline, "6h"), [[1, 1, 1]]);
        assert_eq!(timeline.lately()["failed"], 1);
        advance(Duration::from_secs(300)).await;
        assert_eq!(
            (&timeline.lately()["failed"], &timeline.lately()["cancelled"]),
            (&json!(0), &json!(0))
        );
        advance(Duration::from_secs(15 * 60)).await;
        assert_eq!(counts(&timeline, "15m"), [[0; 3]; 0]);
        assert_eq!(counts(&timeline, "6h").len(), 1);
        advance(Duration::from_secs(24 * 3_600)).await;
        timeline.add(&ended(Outcome::Ok));
        for name in names() {
            assert_eq!(counts(&timeline, name), [[1, 0, 0]], "{name}");
        }
        assert!(timeline.span("7d").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn however_long_it_runs_it_is_bounded() {
        let mut timeline = Timeline::new();
        for _ in 0..5_000 {
            timeline.add(&ended(Outcome::Ok));
            advance(Duration::from_secs(61)).await;
        }
        let kept: Vec<usize> = timeline.spans.iter().map(VecDeque::len).collect();
        assert!(kept.iter().zip(SPANS).all(|(kept, span)| *kept <= span.intervals), "{kept:?}");
    }

    proptest! {
        #[test]
        fn a_quantile_is_near_the_time_that_it_is(mut times in proptest::collection::vec(1_u64..600_000, 1..60)) {
            let mut all = Times::default();
            for time in &times {
                all.add(Duration::from_millis(*time));
            }
            times.sort_unstable();
            for share in [0.5, 0.95] {
                let at = ((times.len() as f64 * share).ceil() as usize).max(1) - 1;
                let (exact, found) = (times[at] as f64, all.quantile(share).unwrap());
                prop_assert!(found >= exact * 0.99 - 1.0 && found <= exact * FACTOR + 1.0, "{exact} {found}");
            }
        }
    }
}
