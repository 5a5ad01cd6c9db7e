//! Whether an attempt is repeated: a pure function.

use std::time::Duration;

use http::StatusCode;
use steadfast_core::{Failure, Reason, Retry};

use crate::{DeliveryRetryPolicy, unclear::is_unclear};

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryDecision {
    /// Another one, after this long.
    Retry(Duration),
    /// The failure is returned, for this reason.
    GiveUp(&'static str),
}

impl DeliveryRetryPolicy {
    /// What follows after `retries` retries, with so much time `left`.
    pub(crate) fn decide(
        &self,
        failure: &Failure,
        retries: u32,
        previous: Duration,
        left: Duration,
        rng: &mut fastrand::Rng,
    ) -> RetryDecision {
        use RetryDecision::{GiveUp, Retry as Again};

        if failure.retry() != Retry::Yes || !may_pass(failure) {
            return GiveUp("not retried");
        }
        if is_unclear(failure) && !self.resend_unclear {
            return GiveUp("it may have been sent");
        }
        if retries >= self.retries {
            return GiveUp("no retries left");
        }
        let wait = match failure.retry_after().filter(|hint| !hint.is_zero()) {
            Some(hint) if hint > self.max_wait => return GiveUp("the wait is too long"),
            Some(hint) => self.backoff().spread(hint, rng),
            None => self.backoff().delay(retries, previous, rng),
        };
        if wait >= left { GiveUp("the deadline is earlier") } else { Again(wait) }
    }
}

/// Rate limits, a lack of capacity, 5xx, and errors of the connection.
fn may_pass(failure: &Failure) -> bool {
    let by_reason = match failure.reason() {
        Reason::RateLimit | Reason::Overloaded | Reason::ServerError | Reason::Network => true,
        // Of the platform, or of a connection; a 408 is neither.
        Reason::Timeout => failure.status().is_none(),
        _ => false,
    };
    by_reason
        || failure.status().is_some_and(|status| status.is_server_error())
        || failure.status() == Some(StatusCode::TOO_MANY_REQUESTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    fn decide(policy: &DeliveryRetryPolicy, failure: &Failure, retries: u32) -> RetryDecision {
        let mut rng = fastrand::Rng::with_seed(1);
        policy.decide(failure, retries, Duration::ZERO, LONG, &mut rng)
    }

    fn exact() -> DeliveryRetryPolicy {
        DeliveryRetryPolicy {
            jitter: steadfast_core::Jitter::None,
            ..DeliveryRetryPolicy::default()
        }
    }

    fn of(status: u16) -> Failure {
        let status = StatusCode::from_u16(status).unwrap();
        Failure::new(Reason::from_status(status).unwrap_or(Reason::Unknown), "").with_status(status)
    }

    #[test]
    fn what_is_retried_and_when() {
        use RetryDecision::{GiveUp, Retry as Again};
        let again = |secs| Again(Duration::from_secs(secs));
        let hinted = |secs| of(429).with_retry_after(Some(Duration::from_secs(secs)));
        let network = || Failure::new(Reason::Network, "reset");
        let refused = || network().with_evidence("transport:connect");
        for (failure, retries, expected) in [
            (of(500), 0, again(1)),
            (of(502), 1, again(2)),
            (of(503), 2, again(4)),
            (of(504), 0, again(1)),
            (of(529), 3, GiveUp("no retries left")),
            (of(429), 0, again(1)),
            (hinted(7), 2, again(7)),
            (hinted(60), 0, again(60)),
            (hinted(61), 0, GiveUp("the wait is too long")),
            (hinted(0), 0, again(1)),
            (refused(), 0, again(1)),
            (network(), 0, GiveUp("it may have been sent")),
            (Failure::new(Reason::Timeout, "ours"), 0, GiveUp("it may have been sent")),
            (of(500).with_delivered(), 0, GiveUp("it may have been sent")),
            (of(400), 0, GiveUp("not retried")),
            (of(401), 0, GiveUp("not retried")),
            (of(404), 0, GiveUp("not retried")),
            (of(408), 0, GiveUp("not retried")),
            (of(500).with_retry(Retry::No), 0, GiveUp("not retried")),
            (Failure::new(Reason::Safety, ""), 0, GiveUp("not retried")),
            (Failure::refused(Reason::CircuitOpen, ""), 0, GiveUp("not retried")),
        ] {
            assert_eq!(decide(&exact(), &failure, retries), expected, "{failure:?}");
        }
        let guppy = DeliveryRetryPolicy { resend_unclear: true, ..exact() };
        assert_eq!(decide(&guppy, &network(), 0), again(1));
    }

    #[test]
    fn never_beyond_the_deadline() {
        let (policy, mut rng) = (exact(), fastrand::Rng::with_seed(1));
        let mut left =
            |ms| policy.decide(&of(500), 0, Duration::ZERO, Duration::from_millis(ms), &mut rng);
        assert_eq!(left(1_000), RetryDecision::GiveUp("the deadline is earlier"));
        assert_eq!(left(1_001), RetryDecision::Retry(Duration::from_secs(1)));
    }
}
