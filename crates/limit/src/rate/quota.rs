//! What is known of the limits of one key, and what is used of them. Pure: the time is an argument, in
//! nanoseconds since the layer was made.

use std::time::Duration;

use steadfast_core::Usage;

use super::bucket::{Bucket, Quota, nanos};

/// What a provider limits, in the order of the arrays here.
pub(super) const KINDS: [&str; 4] = ["requests", "tokens", "input", "output"];

const REQUESTS: usize = 0;

/// How long a learned limit holds after a provider has stated it last: an hour, as for all that is learned.
const LEARNED_FOR: u64 = 3_600_000_000_000;

/// The longest that calls are held back after a 429: a minute, the window of rate limits. Then one is let
/// through, in case the hint was wrong.
const MAX_BLOCK: Duration = Duration::from_secs(60);

/// What is taken for the output of a call that states no limit, before any has ended.
const FIRST_OUTPUT: u64 = 500;

/// What a call takes of each limit.
pub(super) type Cost = [u64; 4];

/// A call under way, as the limits know it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admitted {
    pub(super) cost: Cost,
    /// Its position in the order in which calls began.
    order: u64,
    /// Of what was taken before it, that which the provider had counted by then.
    counted: [i64; 4],
}

/// What the headers of an answer state of one limit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stated {
    pub(super) kind: usize,
    pub(super) limit: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) reset: Option<Duration>,
}

/// One limit.
#[derive(Clone, Copy, Debug, Default)]
struct Limit {
    /// A minute.
    configured: Option<u64>,
    learned: Option<(Quota, u64)>,
    bucket: Bucket,
    /// What was taken since the layer was made, corrected; and what of it the provider has counted.
    taken: i64,
    counted: i64,
}

impl Limit {
    /// The one in force: the smaller of both.
    fn quota(&self, now: u64) -> Option<Quota> {
        let learned = self.learned.filter(|(_, at)| now < at.saturating_add(LEARNED_FOR));
        match (self.configured.map(Quota::a_minute), learned) {
            (Some(own), Some((stated, _))) if is_less(stated, own) => Some(stated),
            (Some(own), _) => Some(own),
            (None, stated) => stated.map(|(quota, _)| quota),
        }
    }

    fn is_learned(&self, now: u64) -> bool {
        self.learned.is_some_and(|(quota, _)| self.quota(now) == Some(quota))
    }
}

/// Whether `a` lets less through than `b`.
fn is_less(a: Quota, b: Quota) -> bool {
    u128::from(a.limit) * u128::from(b.period) < u128::from(b.limit) * u128::from(a.period)
}

/// The limits of one key.
#[derive(Debug)]
pub(super) struct KeyQuota {
    limits: [Limit; 4],
    /// Calls at once, where that is limited.
    max_concurrent: Option<u32>,
    pub(super) in_use: u32,
    pub(super) admitted: u64,
    /// Nothing is let through before.
    blocked_until: u64,
    /// 429s in a row, each of a call that began after the one before.
    rejections: u32,
    /// Calls that began before this one say nothing about what follows the last 429.
    rejected_at: u64,
    /// Of the calls that stated no limit of their own, about the mean output.
    output: u64,
}

/// Why a call has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// For so long, if nobody else takes anything.
    For(u64),
    /// Until another call ends.
    UntilOneEnds,
}

impl KeyQuota {
    pub(super) fn new(requests: Option<u64>, tokens: Option<u64>, concurrent: Option<u32>) -> Self {
        let mut new = Self {
            limits: [Limit::default(); 4],
            max_concurrent: None,
            in_use: 0,
            admitted: 0,
            blocked_until: 0,
            rejections: 0,
            rejected_at: 0,
            output: FIRST_OUTPUT,
        };
        new.configure(requests, tokens, concurrent, 0);
        new
    }

    /// With other configured limits. What is used stays used.
    pub(super) fn configure(
        &mut self,
        requests: Option<u64>,
        tokens: Option<u64>,
        concurrent: Option<u32>,
        now: u64,
    ) {
        self.max_concurrent = concurrent;
        for (limit, configured) in self.limits.iter_mut().zip([requests, tokens]) {
            let before = limit.quota(now);
            limit.configured = configured;
            if let (Some(before), Some(after)) = (before, limit.quota(now)) {
                limit.bucket.requote(before, after, now);
            }
        }
    }

    /// What a call is expected to take.
    pub(super) fn cost(&self, input: u64, max_output: Option<u64>) -> Cost {
        let output = max_output.unwrap_or(self.output);
        [1, input.saturating_add(output), input, output]
    }

    /// Lets a call through, or says what it waits for.
    #[inline]
    pub(super) fn admit(&mut self, cost: Cost, now: u64) -> Result<Admitted, Held> {
        let wait = self.wait(cost, now);
        if wait > 0 {
            return Err(Held::For(wait));
        }
        if self.max_concurrent.is_some_and(|most| self.in_use >= most) {
            return Err(Held::UntilOneEnds);
        }
        self.in_use += 1;
        self.admitted += 1;
        let counted = self.limits.map(|limit| limit.counted);
        for (limit, amount) in self.limits.iter_mut().zip(cost) {
            limit.taken = limit.taken.wrapping_add(signed(amount));
            if let Some(quota) = limit.quota(now) {
                limit.bucket.take(quota, amount, now);
            }
        }
        Ok(Admitted { cost, order: self.admitted, counted })
    }

    fn wait(&self, cost: Cost, now: u64) -> u64 {
        self.wait_behind([0; 4], cost, now)
    }

    /// How long a call waits behind others that take `ahead`, as far as that can be known.
    pub(super) fn wait_behind(&self, ahead: Cost, cost: Cost, now: u64) -> u64 {
        let waits = self.limits.iter().zip(ahead.into_iter().zip(cost)).filter_map(
            |(limit, (ahead, amount))| {
                let quota = limit.quota(now)?;
                Some(limit.bucket.wait(quota, ahead, amount, now))
            },
        );
        waits.max().unwrap_or(0).max(self.blocked_until.saturating_sub(now))
    }

    /// A call does not count against the concurrency any more.
    pub(super) fn release(&mut self) {
        self.in_use = self.in_use.saturating_sub(1);
    }

    /// A call was not sent, or its provider has refused to count it: gives back the tokens, and the request,
    /// too, unless it was `sent`.
    pub(super) fn refund(&mut self, call: &Admitted, sent: bool, now: u64) {
        let mut actual = [0; 4];
        actual[REQUESTS] = u64::from(sent);
        self.correct(call, actual, now);
    }

    /// A call has ended and has used so much.
    pub(super) fn used(&mut self, call: &Admitted, usage: &Usage, now: u64) {
        let [_, _, input, output] = call.cost;
        // What is read from a cache does not count where input has a limit of its own.
        let fresh = usage.input.map(|all| all.saturating_sub(usage.cache_read.unwrap_or(0)));
        let all = usage.input.unwrap_or(input);
        let output = usage.output.unwrap_or(output);
        self.correct(call, [1, all.saturating_add(output), fresh.unwrap_or(input), output], now);
        if let Some(output) = usage.output {
            // About the mean of the last eight.
            self.output = (self.output.saturating_mul(7).saturating_add(output) / 8).max(1);
        }
    }

    fn correct(&mut self, call: &Admitted, actual: Cost, now: u64) {
        for (limit, (taken, actual)) in
            self.limits.iter_mut().zip(call.cost.into_iter().zip(actual))
        {
            limit.taken = limit.taken.wrapping_add(signed(actual)).wrapping_sub(signed(taken));
            limit.counted = limit.counted.wrapping_add(signed(actual));
            let Some(quota) = limit.quota(now) else { continue };
            if actual > taken {
                limit.bucket.take(quota, actual - taken, now);
            } else {
                limit.bucket.give(quota, taken - actual);
            }
        }
    }

    /// A provider has stated a limit in the answer to `call`. Returns the limit, if it is another one than
    /// before.
    ///
    /// What remains there lies between two bounds. It is at most what was stated. It is at least that without
    /// what the provider may not have counted yet: what was taken since the call began, and what was under way
    /// then.
    pub(super) fn stated(&mut self, call: &Admitted, stated: Stated, now: u64) -> Option<Quota> {
        let Stated { kind, limit: stated_limit, remaining, reset } = stated;
        let limit = &mut self.limits[kind];
        let before = limit.quota(now);
        let mut changed = None;
        if let Some(stated_limit) = stated_limit.filter(|limit| *limit > 0) {
            let period = period(stated_limit, remaining, reset);
            let quota = Quota { limit: stated_limit, period };
            if limit.learned.is_none_or(|(known, _)| known != quota) {
                changed = Some(quota);
            }
            limit.learned = Some((quota, now));
        }
        let quota = limit.quota(now)?;
        match before {
            Some(before) if before != quota => limit.bucket.requote(before, quota, now),
            Some(_) => {}
            None => limit.bucket = Bucket::default(),
        }
        if let Some(remaining) = remaining {
            // Of the call itself, its output may not be counted yet.
            let own = if kind == REQUESTS { 1 } else { signed(call.cost[2].min(call.cost[kind])) };
            let unseen = limit.taken.wrapping_sub(call.counted[kind]).wrapping_sub(own);
            let least = remaining.saturating_sub(u64::try_from(unseen).unwrap_or(0));
            let ours = limit.bucket.available(quota, now);
            let corrected = match before {
                // What was taken before the limit was known is not in the bucket.
                None => least,
                // A configured limit is not raised by a larger one of the provider's.
                Some(_) if !limit.is_learned(now) => ours.min(remaining),
                Some(_) => ours.clamp(least, remaining),
            };
            if corrected != ours {
                limit.bucket.set_available(quota, corrected, now);
            }
        }
        changed
    }

    /// A provider has answered `call` with content, or with anything but a 429.
    pub(super) fn served(&mut self, call: &Admitted) {
        if call.order > self.rejected_at {
            self.rejections = 0;
            self.blocked_until = 0;
        }
    }

    /// A provider has refused `call` for its rate. Returns the 429s in a row.
    ///
    /// Without a hint, what is known to be limited is taken as used up, and refills. With one, calls wait for it,
    /// where the provider's limits are known: a 429 of one that states none is for failover to judge.
    pub(super) fn rejected(&mut self, call: &Admitted, hint: Option<Duration>, now: u64) -> u32 {
        if call.order > self.rejected_at {
            self.rejections = self.rejections.saturating_add(1);
            self.rejected_at = self.admitted;
        }
        let mut known = false;
        for limit in &mut self.limits {
            let Some(quota) = limit.quota(now) else { continue };
            known = true;
            if hint.is_none() && limit.bucket.available(quota, now) > 0 {
                limit.bucket.set_available(quota, 0, now);
            }
        }
        if let Some(hint) = hint
            && known
        {
            self.block(hint.min(MAX_BLOCK), now);
        }
        self.rejections
    }

    /// Lets nothing through for a time.
    pub(super) fn block(&mut self, time: Duration, now: u64) {
        self.blocked_until = self.blocked_until.max(now.saturating_add(nanos(time)));
    }

    pub(super) fn blocked_for(&self, now: u64) -> Duration {
        Duration::from_nanos(self.blocked_until.saturating_sub(now))
    }

    /// Each limit in force: what it is of, the quota, what is left, and whether a provider has stated it.
    pub(super) fn known(&self, now: u64) -> impl Iterator<Item = (&'static str, Quota, u64, bool)> {
        KINDS.into_iter().zip(&self.limits).filter_map(move |(name, limit)| {
            let quota = limit.quota(now)?;
            Some((name, quota, limit.bucket.available(quota, now), limit.is_learned(now)))
        })
    }

    /// Forgets what was learned, and fills the buckets. Calls under way stay counted.
    pub(super) fn reset(&mut self) {
        for limit in &mut self.limits {
            limit.learned = None;
            limit.bucket = Bucket::default();
        }
        (self.blocked_until, self.rejections, self.output) = (0, 0, FIRST_OUTPUT);
    }
}

/// The period of a limit, by when the rest of it is available again. A minute, unless that takes longer than
/// it would: then the limit is one of an hour or of a day.
fn period(limit: u64, remaining: Option<u64>, reset: Option<Duration>) -> u64 {
    let (Some(remaining), Some(reset)) = (remaining, reset) else { return Quota::MINUTE };
    let used = limit.saturating_sub(remaining).max(1);
    let implied = u128::from(nanos(reset)) * u128::from(limit) / u128::from(used);
    let implied = u64::try_from(implied).unwrap_or(u64::MAX);
    // Below this it is a minute, rounded.
    if implied < 2 * Quota::MINUTE { Quota::MINUTE } else { implied }
}

fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn stated(kind: usize, limit: u64, remaining: u64) -> Stated {
        Stated { kind, limit: Some(limit), remaining: Some(remaining), reset: None }
    }

    fn take(quota: &mut KeyQuota, count: usize, now: u64) -> Vec<Admitted> {
        (0..count).map(|_| quota.admit(quota.cost(10, Some(5)), now).unwrap()).collect()
    }

    fn left(quota: &KeyQuota, kind: &str, now: u64) -> Option<u64> {
        quota.known(now).find(|(name, ..)| *name == kind).map(|(_, _, left, _)| left)
    }

    #[test]
    fn without_anything_known_nothing_is_limited() {
        let mut quota = KeyQuota::new(None, None, None);
        take(&mut quota, 10_000, 0);
        assert_eq!(quota.known(0).count(), 0);
    }

    #[test]
    fn what_is_under_way_is_taken_off_what_remains() {
        let mut quota = KeyQuota::new(None, None, None);
        let calls = take(&mut quota, 50, SECOND);
        // The provider had seen ten of them when it answered the third.
        assert!(quota.stated(&calls[2], stated(0, 60, 50), SECOND).is_some());
        assert_eq!(left(&quota, "requests", SECOND), Some(1), "49 others may not be counted yet");
        // Later it states more of them: never more than that.
        quota.stated(&calls[3], stated(0, 60, 10), SECOND);
        assert_eq!(left(&quota, "requests", SECOND), Some(1));
        for call in &calls {
            quota.used(call, &Usage::new(10, 5), SECOND);
        }
        let next = take(&mut quota, 1, SECOND);
        assert_eq!(left(&quota, "requests", SECOND), Some(0));
        // It says that there is more: all the others are known to be counted.
        assert_eq!(quota.stated(&next[0], stated(0, 60, 9), SECOND), None);
        assert_eq!(left(&quota, "requests", SECOND), Some(9));
    }

    #[test]
    fn a_limit_of_a_day_is_known_by_its_reset() {
        for (limit, remaining, reset, expected) in [
            (60, Some(59), Some(1.0), 60),
            (60, Some(59), Some(0.4), 60),
            (60, Some(0), Some(59.2), 60),
            (14_400, Some(14_399), Some(6.0), 86_400),
            (1_000, Some(500), Some(1_800.0), 3_600),
            (60, None, Some(3_600.0), 60),
            (60, Some(60), Some(0.0), 60),
        ] {
            let found = period(limit, remaining, reset.map(Duration::from_secs_f64));
            assert_eq!(found / SECOND, expected, "{limit} {remaining:?} {reset:?}");
        }
    }

    #[test]
    fn a_configured_limit_and_a_learned_one_the_smaller_holds_for_an_hour() {
        let mut quota = KeyQuota::new(Some(100), None, None);
        let call = take(&mut quota, 1, 0)[0];
        quota.stated(&call, stated(0, 10, 5), 0);
        assert_eq!(left(&quota, "requests", 0), Some(5));
        assert_eq!(left(&quota, "requests", LEARNED_FOR), Some(100));
        quota.stated(&call, stated(0, 1_000, 999), LEARNED_FOR);
        assert_eq!(left(&quota, "requests", LEARNED_FOR), Some(100));
    }

    #[test]
    fn usage_corrects_the_estimate() {
        let mut quota = KeyQuota::new(None, Some(1_000), None);
        let call = quota.admit(quota.cost(100, Some(400)), 0).unwrap();
        assert_eq!(left(&quota, "tokens", 0), Some(500));
        quota.used(&call, &Usage::new(80, 20), 0);
        assert_eq!(left(&quota, "tokens", 0), Some(900));
        let call = quota.admit(quota.cost(100, Some(400)), 0).unwrap();
        quota.refund(&call, false, 0);
        assert_eq!(left(&quota, "tokens", 0), Some(900));
        let call = quota.admit(quota.cost(100, Some(10)), 0).unwrap();
        quota.used(&call, &Usage::new(100, 1_000), 0);
        assert_eq!(left(&quota, "tokens", 0), Some(0));
        assert_eq!(quota.admit([1, 1, 1, 0], 0).unwrap_err(), Held::For(201 * SECOND * 60 / 1_000));
    }

    #[test]
    fn a_429_holds_others_back_and_a_success_ends_that() {
        let hint = Some(Duration::from_secs(20));
        let mut quota = KeyQuota::new(None, None, None);
        for row in 1..4 {
            let call = take(&mut quota, 1, 0)[0];
            assert_eq!(quota.rejected(&call, hint, 0), row);
            assert_eq!(quota.blocked_for(0), Duration::ZERO, "nothing is known of its limits");
        }
        let mut quota = KeyQuota::new(Some(100), None, None);
        let calls = take(&mut quota, 5, 0);
        assert_eq!(quota.rejected(&calls[0], hint, 0), 1);
        assert_eq!(quota.blocked_for(0), Duration::from_secs(20));
        assert_eq!(quota.rejected(&calls[1], hint, 0), 1, "of the same time");
        quota.blocked_until = 0;
        let again = take(&mut quota, 2, SECOND);
        assert_eq!(quota.rejected(&again[0], hint, SECOND), 2);
        assert_eq!(quota.admit([1; 4], SECOND).unwrap_err(), Held::For(20 * SECOND));
        quota.served(&again[1]);
        assert_eq!(quota.blocked_for(SECOND), Duration::from_secs(20), "it began before");
        let later = take(&mut quota, 1, 21 * SECOND);
        quota.served(&later[0]);
        assert_eq!(quota.rejected(&later[0], Some(Duration::from_secs(9_999)), 21 * SECOND), 1);
        // For a minute at most.
        let mut quota = KeyQuota::new(Some(100), None, None);
        let call = take(&mut quota, 1, 0)[0];
        quota.rejected(&call, Some(Duration::from_secs(9_999)), 0);
        assert_eq!(quota.blocked_for(0), MAX_BLOCK);
        let mut quota = KeyQuota::new(Some(60), None, None);
        let call = take(&mut quota, 1, 0)[0];
        quota.rejected(&call, None, 0);
        assert_eq!(quota.admit([1; 4], 0).unwrap_err(), Held::For(SECOND), "used up, and refills");
    }

    #[derive(Clone, Debug)]
    enum Action {
        /// A call is made, if it is let through.
        Call,
        /// One that is under way arrives at the provider.
        Arrive(usize),
        /// An answer that was sent is read, in any order.
        Answer(usize),
        /// Somebody else uses the key.
        Other,
    }

    fn actions() -> impl Strategy<Value = Vec<Action>> {
        let one = prop_oneof![
            4 => Just(Action::Call),
            3 => (0_usize..9).prop_map(Action::Arrive),
            3 => (0_usize..9).prop_map(Action::Answer),
            1 => Just(Action::Other),
        ];
        prop::collection::vec(one, 1..200)
    }

    proptest! {
        /// A provider that counts, and a wire that delays and reorders. While no time passes and nobody else
        /// uses the key, what we take to be left is never more than what will be left there once all calls
        /// have arrived.
        #[test]
        fn never_takes_more_to_be_left_than_there_is(actions in actions(), limit in 5_u64..60) {
            let mut quota = KeyQuota::new(None, None, None);
            let (mut left, mut others) = (limit, false);
            let mut sent: Vec<Admitted> = Vec::new();
            let mut answers: Vec<(Admitted, u64)> = Vec::new();
            for action in actions {
                match action {
                    Action::Call => sent.extend(quota.admit(quota.cost(1, Some(1)), 0)),
                    Action::Arrive(which) if which < sent.len() => {
                        let call = sent.remove(which);
                        if left == 0 {
                            quota.rejected(&call, None, 0);
                            quota.refund(&call, true, 0);
                            continue;
                        }
                        left -= 1;
                        answers.push((call, left));
                    }
                    Action::Answer(which) if which < answers.len() => {
                        let (call, remaining) = answers.remove(which);
                        quota.stated(&call, stated(0, limit, remaining), 0);
                        quota.used(&call, &Usage::new(1, 1), 0);
                    }
                    Action::Other if left > 0 => (left, others) = (left - 1, true),
                    _ => {}
                }
                if let (false, Some(ours)) = (others, self::left(&quota, "requests", 0)) {
                    let there = left.saturating_sub(sent.len() as u64);
                    prop_assert!(ours <= there, "{} of {}", ours, there);
                }
            }
        }
    }

    #[test]
    fn so_many_at_once() {
        let mut quota = KeyQuota::new(None, None, Some(2));
        take(&mut quota, 2, 0);
        assert_eq!(quota.admit([1; 4], 0).unwrap_err(), Held::UntilOneEnds);
        quota.release();
        take(&mut quota, 1, 0);
    }
}
