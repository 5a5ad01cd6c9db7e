//! What each kind of failure costs a caller at most: the retry policy asked what it would do, again and
//! again.

use std::{fmt, time::Duration};

use http::StatusCode;
use serde::{Serialize, Serializer};
use steadfast::{
    failover::{FailoverPolicy, WhenExhausted},
    retry::{Decision, GiveUp, RetryPolicy, Situation},
};
use steadfast_core::{Backoff, Failure, Jitter, Reason, TimeLimit};

/// What one kind of failure costs a call at most at one target that goes on failing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Worst {
    /// What came.
    pub came: String,
    /// Before another target is asked.
    pub with_spare: Cost,
    /// Before the call fails, where there is nobody else to ask.
    pub alone: Cost,
}

/// Waits, and the attempts between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// All waits together, in milliseconds.
    #[serde(rename = "waits_ms", serialize_with = "millis")]
    pub waits: Duration,
    /// How often the target is asked.
    pub attempts: u32,
}

fn millis<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// A line for each kind of failure that is treated in its own way.
pub(super) fn of(retry: &RetryPolicy, failover: &FailoverPolicy) -> Vec<Worst> {
    kinds(retry)
        .into_iter()
        .map(|(came, failure)| {
            let with_spare = cost(retry, &failure, 1, failover.patience.with_spare);
            let mut alone = cost(retry, &failure, 0, failover.patience.alone);
            // A target that nobody retries is asked again in further rounds.
            let rounds = failover.when_exhausted == WhenExhausted::TrySoonest;
            if retry.retries == 0 && rounds && failure.retry() == steadfast_core::Retry::Yes {
                alone = Cost { waits: failover.patience.alone, attempts: failover.attempts };
            }
            Worst { came, with_spare, alone }
        })
        .collect()
}

fn kinds(retry: &RetryPolicy) -> Vec<(String, Failure)> {
    let failure = |reason, status: StatusCode| Failure::new(reason, "").with_status(status);
    let limited = || failure(Reason::RateLimit, StatusCode::TOO_MANY_REQUESTS);
    let (short, long) = (retry.failover_wait, retry.max_wait);
    vec![
        ("429 without a hint".to_owned(), limited()),
        (format!("429, a hint of {}", time(short)), limited().with_retry_after(Some(short))),
        (format!("429, a hint of {}", time(long)), limited().with_retry_after(Some(long))),
        (
            "500, network, an error in a 200".to_owned(),
            failure(Reason::ServerError, StatusCode::INTERNAL_SERVER_ERROR),
        ),
        ("503, 529".to_owned(), failure(Reason::Overloaded, StatusCode::SERVICE_UNAVAILABLE)),
        (
            "no content within our limit".to_owned(),
            Failure::new(Reason::Timeout, "").with_time_limit(TimeLimit::Stall),
        ),
        (
            "key refused, bill unpaid, model gone".to_owned(),
            failure(Reason::Auth, StatusCode::UNAUTHORIZED),
        ),
    ]
}

/// The cost of a target that goes on failing with `failure`: as many attempts as there are when chance adds
/// nothing to the waits, and the waits when it adds the most.
fn cost(policy: &RetryPolicy, failure: &Failure, alternatives: u32, patience: Duration) -> Cost {
    let exact = policy.backoff.with_jitter(Jitter::None).unwrap_or(policy.backoff);
    let exact = RetryPolicy { backoff: exact, ..*policy };
    let mut rng = fastrand::Rng::with_seed(0);
    let mut cost = Cost { waits: Duration::ZERO, attempts: 1 };
    let (mut waited, mut last) = (Duration::ZERO, Duration::ZERO);
    loop {
        let situation = Situation {
            retries: cost.attempts - 1,
            alternatives,
            overloaded: cost.attempts,
            hangs: cost.attempts,
            waited: last,
            patience: Some(patience.saturating_sub(waited)),
            ..Situation::default()
        };
        match exact.decide(failure, &situation, &mut rng) {
            Decision::Retry(wait) => {
                cost.attempts += 1;
                cost.waits = cost
                    .waits
                    .saturating_add(longest(&policy.backoff, wait, failure))
                    .min(patience);
                (waited, last) = (waited.saturating_add(wait), wait);
            }
            Decision::GiveUp(GiveUp::NoTime) if cost.attempts > 1 => {
                return Cost { waits: patience, ..cost };
            }
            _ => return cost,
        }
    }
}

/// The longest that jitter makes of `wait`; little of a wait that the provider asked for.
fn longest(backoff: &Backoff, wait: Duration, failure: &Failure) -> Duration {
    let hinted = failure.retry_after().is_some();
    match backoff.jitter() {
        Jitter::None => wait,
        Jitter::Additive(share) if hinted => wait + wait.min(backoff.base()).mul_f64(share),
        _ if hinted => wait + wait.min(backoff.base()) / 4,
        Jitter::Additive(share) => wait.mul_f64(1.0 + share),
        Jitter::Full => wait,
        _ => backoff.cap().max(wait),
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.attempts, self.waits.is_zero()) {
            (1, true) => f.pad("at once"),
            (attempts, _) => f.pad(&format!("{}, {attempts} attempts", time(self.waits))),
        }
    }
}

fn time(time: Duration) -> String {
    match time.as_millis() {
        ms if ms < 1_000 => format!("{ms} ms"),
        ms if ms % 1_000 == 0 => format!("{} s", ms / 1_000),
        ms => format!("{:.1} s", ms as f64 / 1_000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(retry: &RetryPolicy) -> Vec<[String; 3]> {
        let rows = of(retry, &FailoverPolicy::default()).into_iter();
        rows.map(|row| [row.came, row.with_spare.to_string(), row.alone.to_string()]).collect()
    }

    #[test]
    fn the_default_keeps_to_the_table_of_its_page() {
        let expected = [
            ["429 without a hint", "at once", "60 s, 10 attempts"],
            ["429, a hint of 1 s", "1.1 s, 2 attempts", "11.2 s, 11 attempts"],
            ["429, a hint of 60 s", "at once", "60 s, 2 attempts"],
            ["500, network, an error in a 200", "625 ms, 2 attempts", "60 s, 10 attempts"],
            ["503, 529", "1.9 s, 3 attempts", "60 s, 10 attempts"],
            ["no content within our limit", "at once", "625 ms, 2 attempts"],
            ["key refused, bill unpaid, model gone", "at once", "at once"],
        ];
        assert_eq!(shown(&RetryPolicy::in_stack()), expected.map(|row| row.map(str::to_owned)));
    }

    #[test]
    fn a_target_that_is_never_retried_is_asked_in_rounds() {
        let never = RetryPolicy { retries: 0, ..RetryPolicy::in_stack() };
        let rows = shown(&never);
        assert_eq!(rows[3][1..], ["at once", "60 s, 10 attempts"]);
        assert_eq!(rows[6][2], "at once");
    }
}
