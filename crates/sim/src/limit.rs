//! Request and token limits a minute, as token buckets.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The limits of a key per minute; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// Requests.
    pub requests: Option<u64>,
    /// Tokens, input and output. Input is charged when a request is admitted, output when it is
    /// answered.
    pub tokens: Option<u64>,
}

/// What ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Requests,
    Tokens,
}

/// A request beyond a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Denied {
    pub(crate) resource: Resource,
    pub(crate) limit: u64,
    pub(crate) used: u64,
    pub(crate) requested: u64,
    /// Until it would fit; `None` if it never will.
    pub(crate) wait: Option<Duration>,
}

/// The state of one resource, for the headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    pub(crate) resource: Resource,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    /// Until it is full again.
    pub(crate) reset: Duration,
}

/// The buckets of all keys.
#[derive(Debug)]
pub(crate) struct Limiter {
    limits: KeyLimits,
    keys: Mutex<HashMap<String, [Option<Bucket>; 2]>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    capacity: f64,
    level: f64,
    at: Instant,
}

impl Limiter {
    pub(crate) fn new(limits: KeyLimits) -> Self {
        Self { limits, keys: Mutex::default() }
    }

    /// Takes one request and its input tokens, or returns what ran out and takes nothing.
    pub(crate) fn admit(&self, key: &str, tokens: u64) -> Result<(), Denied> {
        if self.limits == KeyLimits::default() {
            return Ok(());
        }
        let now = Instant::now();
        let mut keys = self.keys.lock();
        let buckets = keys.entry(key.to_owned()).or_insert_with(|| {
            [self.limits.requests, self.limits.tokens].map(|limit| limit.map(Bucket::full))
        });
        let wants = [(Resource::Requests, 1), (Resource::Tokens, tokens)];
        for (bucket, (resource, requested)) in buckets.iter_mut().zip(wants) {
            let Some(bucket) = bucket else { continue };
            bucket.refill(now);
            let missing = requested as f64 - bucket.level;
            if missing > 1e-9 {
                let limit = bucket.capacity as u64;
                return Err(Denied {
                    resource,
                    limit,
                    used: (bucket.capacity - bucket.level).round() as u64,
                    requested,
                    wait: (requested <= limit).then(|| bucket.time_for(missing)),
                });
            }
        }
        for (bucket, (_, requested)) in buckets.iter_mut().zip(wants) {
            if let Some(bucket) = bucket {
                bucket.level -= requested as f64;
            }
        }
        Ok(())
    }

    /// Takes the output of an admitted request; the level may go below zero.
    pub(crate) fn charge_output(&self, key: &str, tokens: u64) {
        if let Some([_, Some(bucket)]) = self.keys.lock().get_mut(key) {
            bucket.level -= tokens as f64;
        }
    }

    /// The state of each resource, for the headers of a response.
    pub(crate) fn levels(&self, key: &str) -> Vec<Level> {
        let now = Instant::now();
        let mut keys = self.keys.lock();
        let Some(buckets) = keys.get_mut(key) else { return Vec::new() };
        buckets
            .iter_mut()
            .zip([Resource::Requests, Resource::Tokens])
            .filter_map(|(bucket, resource)| {
                let bucket = bucket.as_mut()?;
                bucket.refill(now);
                Some(Level {
                    resource,
                    limit: bucket.capacity as u64,
                    remaining: bucket.level.max(0.0).floor() as u64,
                    reset: bucket.time_for(bucket.capacity - bucket.level),
                })
            })
            .collect()
    }
}

impl Bucket {
    fn full(limit: u64) -> Self {
        Self { capacity: limit as f64, level: limit as f64, at: Instant::now() }
    }

    fn refill(&mut self, now: Instant) {
        let minutes = now.duration_since(self.at).as_secs_f64() / 60.0;
        self.level = (self.level + minutes * self.capacity).min(self.capacity);
        self.at = now;
    }

    /// Rounded up to the millisecond, so that a client that waits that long is admitted.
    fn time_for(&self, tokens: f64) -> Duration {
        if self.capacity <= 0.0 {
            return Duration::from_secs(60);
        }
        let ms = (tokens.max(0.0) / self.capacity * 60_000.0 - 1e-6).ceil().max(0.0);
        Duration::from_millis(ms as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_wait_that_is_named_is_long_enough_and_not_longer() {
        let limiter = Limiter::new(KeyLimits { requests: Some(3), tokens: None });
        for _ in 0..3 {
            limiter.admit("k", 1).unwrap();
        }
        let denied = limiter.admit("k", 1).unwrap_err();
        assert_eq!((denied.limit, denied.used, denied.requested), (3, 3, 1));
        let wait = denied.wait.unwrap();
        assert_eq!(wait, Duration::from_secs(20));
        limiter.admit("other", 1).unwrap();
        tokio::time::advance(wait - Duration::from_millis(1)).await;
        limiter.admit("k", 1).unwrap_err();
        tokio::time::advance(Duration::from_millis(1)).await;
        limiter.admit("k", 1).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_count_input_and_output_and_too_large_has_no_wait() {
        let limiter = Limiter::new(KeyLimits { requests: None, tokens: Some(600) });
        assert_eq!(limiter.admit("k", 601).unwrap_err().wait, None);
        limiter.admit("k", 500).unwrap();
        limiter.charge_output("k", 200);
        assert_eq!(limiter.levels("k")[0].remaining, 0);
        // 100 below zero, 50 needed: 15 s at 10 tokens a second.
        assert_eq!(limiter.admit("k", 50).unwrap_err().wait, Some(Duration::from_secs(15)));
    }
}
