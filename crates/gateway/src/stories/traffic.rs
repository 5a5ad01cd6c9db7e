//! Who was asked in the last five minutes, and how that went: sums of attempts, by target.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use serde_json::{Value, json};
use steadfast_core::{AttemptEnd, AttemptRecord, Target};
use tokio::time::Instant;

use super::{Story, timeline::Times};

/// How finely it is kept, and how many of those are five minutes.
const STEP: Duration = Duration::from_secs(10);
const INTERVALS: u64 = 30;

/// The most targets with sums of their own. Callers name models; what is beyond shares the sums of its provider alone.
const TARGETS: usize = 256;

/// Sums by target, of bounded size.
#[derive(Debug)]
pub(super) struct Traffic {
    began: Instant,
    targets: HashMap<Target, VecDeque<Sums>>,
}

/// What ended in an interval.
#[derive(Clone, Debug, Default)]
struct Sums {
    /// The interval's position since the beginning.
    number: u64,
    answered: u64,
    failed: u64,
    dropped: u64,
    first: Times,
}

impl Sums {
    fn add(&mut self, attempt: &AttemptRecord) {
        match attempt.end {
            AttemptEnd::Answered => self.answered += 1,
            AttemptEnd::Failed { .. } => self.failed += 1,
            _ => self.dropped += 1,
        }
        if let Some(first) = attempt.first_content {
            self.first.add(first);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.dropped += other.dropped;
        self.first.merge(&other.first);
    }

    fn attempts(&self) -> u64 {
        self.answered + self.failed + self.dropped
    }
}

impl Traffic {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), targets: HashMap::new() }
    }

    fn number(&self) -> u64 {
        self.began.elapsed().as_secs() / STEP.as_secs()
    }

    /// A request has ended.
    pub(super) fn add(&mut self, story: &Story) {
        let now = self.number();
        for attempt in story.attempts() {
            let Some(target) = &attempt.target else { continue };
            let sums = match self.targets.get_mut(target) {
                Some(sums) => sums,
                None => self.another(target, now),
            };
            if sums.back().is_none_or(|last| last.number < now) {
                sums.push_back(Sums { number: now, ..Sums::default() });
            }
            while sums.front().is_some_and(|first| is_old(first.number, now)) {
                sums.pop_front();
            }
            if let Some(last) = sums.back_mut() {
                last.add(attempt);
            }
        }
    }

    /// Where `target` is counted, of which nothing is known yet.
    fn another(&mut self, target: &Target, now: u64) -> &mut VecDeque<Sums> {
        if self.targets.len() >= TARGETS {
            let is_kept =
                |sums: &VecDeque<Sums>| sums.back().is_some_and(|last| !is_old(last.number, now));
            self.targets.retain(|_, sums| is_kept(sums));
        }
        let is_full = self.targets.len() >= TARGETS;
        // Providers are as many as are configured.
        let own = if is_full { Target::new(target.provider()) } else { target.clone() };
        self.targets.entry(own).or_default()
    }

    /// The last five minutes, by provider and by target. A share is one of all attempts.
    pub(super) fn lately(&self) -> Value {
        let now = self.number();
        let mut rows: BTreeMap<&str, Sums> = BTreeMap::new();
        let mut all = 0;
        for (target, sums) in &self.targets {
            for one in sums.iter().filter(|one| !is_old(one.number, now)) {
                all += one.attempts();
                rows.entry(target.provider()).or_default().merge(one);
                if target.provider() != target.as_str() {
                    rows.entry(target.as_str()).or_default().merge(one);
                }
            }
        }
        let shown = rows.iter().map(|(target, sums)| {
            json!({
                "target": target,
                "attempts": sums.attempts(),
                "answered": sums.answered,
                "failed": sums.failed,
                "dropped": sums.dropped,
                "share": (sums.attempts() as f64 / u64::max(all, 1) as f64 * 1e4).round() / 1e4,
                "first_content_ms": {"p50": sums.first.quantile(0.5), "p95": sums.first.quantile(0.95)},
            })
        });
        shown.collect()
    }
}

fn is_old(number: u64, now: u64) -> bool {
    now.saturating_sub(number) >= INTERVALS
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfast_core::{AttemptsLayer, Failure, Reason, RecoveryLog};
    use tokio::time::advance;
    use tower::{Layer, ServiceExt, service_fn};

    use super::{
        super::story::{Draft, Ending, Outcome},
        *,
    };

    /// A request for which `target` alone was asked.
    async fn story(target: &Target) -> Story {
        let log = RecoveryLog::enabled();
        let mut request = steadfast::ChatRequest::user("");
        request.context.log = log.clone();
        request.context.target = Some(target.clone());
        let fails = service_fn(|_| async { Err::<(), _>(Failure::new(Reason::Overloaded, "")) });
        let asked = AttemptsLayer::new().at_once().layer(fails).oneshot(request).await;
        assert!(asked.is_err());
        Story::new(Arc::new(Draft::new("x".to_owned())), &log, Ending::new(Outcome::Failed))
    }

    #[tokio::test(start_paused = true)]
    async fn sums_are_of_five_minutes_and_providers_have_those_of_their_targets() {
        let mut traffic = Traffic::new();
        let (a, b) = (Target::new("a").with_model("m"), Target::new("b"));
        for target in [&a, &a, &a, &b] {
            traffic.add(&story(target).await);
        }
        let shown = traffic.lately();
        let rows: Vec<_> = shown.as_array().unwrap().iter().collect();
        let row = |name: &str| {
            let row = rows.iter().find(|row| row["target"] == name).unwrap();
            (row["attempts"].as_u64().unwrap(), row["share"].as_f64().unwrap())
        };
        assert_eq!((row("a"), row("a/m"), row("b")), ((3, 0.75), (3, 0.75), (1, 0.25)));
        advance(Duration::from_secs(301)).await;
        assert_eq!(traffic.lately(), json!([]));
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_callers_ask_for_it_is_bounded() {
        let mut traffic = Traffic::new();
        for n in 0..1_000 {
            traffic.add(&story(&Target::new("a").with_model(format!("m{n}"))).await);
            advance(Duration::from_millis(100)).await;
        }
        assert!(traffic.targets.len() <= TARGETS + 1);
        let shown = traffic.lately();
        let provider = shown.as_array().unwrap().iter().find(|row| row["target"] == "a").unwrap();
        assert_eq!(provider["attempts"], 1_000);
        advance(Duration::from_secs(600)).await;
        traffic.add(&story(&Target::new("a").with_model("new")).await);
        assert_eq!(traffic.targets.len(), 1);
    }
}
