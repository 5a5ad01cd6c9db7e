//! What is known of the limits of one key, and what is used of them. Pure: the time is an argument, in
//! nanoseconds since the layer was made.

use std::time::Duration;

use steadfast_core::Usage;

use super::bucket::{Bucket, Quota, nanos};
use crate::CallTokens;

/// What a provider limits, in the order of the arrays here.
pub(super) const KINDS: [&str; 4] = ["requests", "tokens", "input", "output"];

const REQUESTS: usize = 0;
const TOKENS: usize = 1;
const INPUT: usize = 2;
const OUTPUT: usize = 3;

/// How long a learned limit holds after a provider has stated it last: an hour, as for all that is learned.
const LEARNED_FOR: u64 = Quota::HOUR;

/// The longest that other calls move on for the hint of a 429: a minute, the window of rate limits. Then one
/// asks again, in case the hint was wrong.
const MAX_BLOCK: Duration = Duration::from_secs(60);

/// From so many 429s in a row on, their hint concerns other calls, too (rule 7 of the default stack).
const ROW: u32 = 2;

/// What is taken for the output of a call, before any has ended.
const FIRST_OUTPUT: u64 = 500;

/// Calls that were answered in a row although the estimate had no room for them, after which it is not believed
/// until the next 429. One may have been lucky.
const LUCKY: u32 = 5;

/// What a call takes of each limit.
pub(super) type Cost = [u64; 4];

/// A call under way, as the limits know it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admitted {
    pub(super) cost: Cost,
    /// The input that the request was estimated to have.
    estimated: u64,
    /// Its position in the order in which calls began.
    order: u64,
    /// Of what was taken before it, that which the provider had counted by then.
    counted: [i64; 4],
    /// It was let through although what was learned had no room for it.
    beyond: bool,
}

/// What the headers of an answer state of one limit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stated {
    pub(super) kind: usize,
    pub(super) limit: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) reset: Option<Duration>,
    /// The period that the header is named after.
    pub(super) window: Option<Duration>,
}

/// A limit that is configured: the operator's, which holds whatever a provider says.
#[derive(Clone, Copy, Debug)]
struct Configured {
    quota: Quota,
    bucket: Bucket,
}

/// A limit that a provider states, and what is taken to be left of it. An estimate: calls wait by it, and nobody
/// is refused who has nowhere else to go.
#[derive(Clone, Copy, Debug, Default)]
struct Learned {
    stated: Option<(Quota, u64)>,
    bucket: Bucket,
    /// What was taken since the layer was made, corrected; and what of it the provider has counted.
    taken: i64,
    counted: i64,
}

impl Learned {
    fn quota(&self, now: u64) -> Option<Quota> {
        let (quota, at) = self.stated?;
        (now < at.saturating_add(LEARNED_FOR)).then_some(quota)
    }
}

/// Whether `a` lets less through than `b`.
fn is_less(a: Quota, b: Quota) -> bool {
    u128::from(a.limit) * u128::from(b.period) < u128::from(b.limit) * u128::from(a.period)
}

/// What calls of the key have really used, of late: about the mean of the last eight.
#[derive(Clone, Copy, Debug)]
struct Experience {
    output: f64,
    /// Input reported, for each token that was estimated.
    input: f64,
    /// The share of the input that did not come from a cache.
    fresh: f64,
}

impl Default for Experience {
    fn default() -> Self {
        Self { output: FIRST_OUTPUT as f64, input: 1.0, fresh: 1.0 }
    }
}

impl Experience {
    fn learn(&mut self, estimated: u64, usage: &Usage) {
        let update = |mean: &mut f64, value: f64| *mean += (value - *mean) / 8.0;
        if let Some(output) = usage.output {
            update(&mut self.output, output as f64);
        }
        let Some(input) = usage.input.filter(|input| *input > 0) else { return };
        update(&mut self.fresh, fresh(input, usage) as f64 / input as f64);
        if estimated > 0 {
            update(&mut self.input, (input as f64 / estimated as f64).clamp(0.1, 100.0));
        }
    }
}

/// What of `input` was not read from a cache: what providers count where input has a limit of its own.
fn fresh(input: u64, usage: &Usage) -> u64 {
    input.saturating_sub(usage.cache_read.unwrap_or(0))
}

/// The limits of one key.
#[derive(Debug)]
pub(super) struct KeyQuota {
    /// Of requests and of tokens.
    configured: [Option<Configured>; 2],
    learned: [Learned; 4],
    experience: Experience,
    /// Calls at once, where that is limited.
    max_concurrent: Option<u32>,
    pub(super) in_use: u32,
    pub(super) admitted: u64,
    /// Nothing is let through before: the operator's word.
    blocked_until: u64,
    /// A provider has asked for that in a row of 429s: calls with another target go there.
    hinted_until: u64,
    /// 429s in a row, each of a call that began after the one before.
    rejections: u32,
    /// Calls that began before this one say nothing about what follows the last 429.
    rejected_at: u64,
    /// Calls answered in a row that the estimate had no room for.
    lucky: u32,
}

/// How long a call has to wait, if nobody else takes anything, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QuotaWait {
    /// For what the operator has limited.
    pub(super) certain: u64,
    /// For what is taken to be left of the provider's limits.
    pub(super) estimated: u64,
}

impl QuotaWait {
    pub(super) fn longest(self) -> u64 {
        self.certain.max(self.estimated)
    }
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
            configured: [None; 2],
            learned: [Learned::default(); 4],
            experience: Experience::default(),
            max_concurrent: None,
            in_use: 0,
            admitted: 0,
            blocked_until: 0,
            hinted_until: 0,
            rejections: 0,
            rejected_at: 0,
            lucky: 0,
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
        for (limit, configured) in self.configured.iter_mut().zip([requests, tokens]) {
            let new = configured.map(Quota::a_minute);
            *limit = new.map(|quota| {
                let mut bucket = Bucket::default();
                if let Some(before) = limit {
                    bucket = before.bucket;
                    bucket.requote(before.quota, quota, now);
                }
                Configured { quota, bucket }
            });
        }
    }

    /// What a call is expected to take, by what calls of the key have used lately: providers count what is used,
    /// and the most that a call may write is many times that.
    pub(super) fn cost(&self, call: CallTokens) -> Cost {
        let Experience { output, input, fresh } = self.experience;
        let output = whole(output).min(call.max_output.unwrap_or(u64::MAX));
        let input = call.input as f64 * input;
        [1, whole(input).saturating_add(output), whole(input * fresh), output]
    }

    /// Lets a call through, or says what it waits for.
    #[inline]
    pub(super) fn admit(&mut self, call: CallTokens, now: u64) -> Result<Admitted, Held> {
        let cost = self.cost(call);
        let wait = self.wait_behind([0; 4], cost, now);
        match wait.longest() {
            0 => self.take(call, cost, false, now),
            wait => Err(Held::For(wait)),
        }
    }

    /// The same, whatever is taken to be left of the provider's limits: it is asked.
    pub(super) fn admit_beyond(&mut self, call: CallTokens, now: u64) -> Result<Admitted, Held> {
        let cost = self.cost(call);
        let wait = self.wait_behind([0; 4], cost, now);
        match wait.certain {
            0 => self.take(call, cost, wait.estimated > 0, now),
            wait => Err(Held::For(wait)),
        }
    }

    fn take(
        &mut self,
        call: CallTokens,
        cost: Cost,
        beyond: bool,
        now: u64,
    ) -> Result<Admitted, Held> {
        if self.is_full() {
            return Err(Held::UntilOneEnds);
        }
        self.in_use += 1;
        self.admitted += 1;
        let counted = self.learned.map(|limit| limit.counted);
        let admitted =
            Admitted { cost, estimated: call.input, order: self.admitted, counted, beyond };
        self.correct_buckets([0; 4], cost, now);
        Ok(admitted)
    }

    /// Whether as many calls are under way as may be.
    pub(super) fn is_full(&self) -> bool {
        self.max_concurrent.is_some_and(|most| self.in_use >= most)
    }

    /// How long a call waits behind others that take `ahead`, as far as that can be known.
    pub(super) fn wait_behind(&self, ahead: Cost, cost: Cost, now: u64) -> QuotaWait {
        let amounts = || ahead.into_iter().zip(cost);
        let certain =
            self.configured.iter().zip(amounts()).filter_map(|(limit, (ahead, amount))| {
                let Configured { quota, bucket } = (*limit)?;
                Some(bucket.wait(quota, ahead, amount, now))
            });
        let certain = certain.max().unwrap_or(0).max(self.blocked_until.saturating_sub(now));
        if self.lucky >= LUCKY {
            return QuotaWait { certain, estimated: 0 };
        }
        let estimated =
            self.learned.iter().zip(amounts()).filter_map(|(limit, (ahead, amount))| {
                Some(limit.bucket.wait(limit.quota(now)?, ahead, amount, now))
            });
        QuotaWait { certain, estimated: estimated.max().unwrap_or(0) }
    }

    /// How much of the key's time a call takes: what turns are weighed by.
    pub(super) fn weight(&self, cost: Cost, now: u64) -> u64 {
        let configured = self.configured.iter().map(|limit| limit.map(|limit| limit.quota));
        let learned = self.learned.iter().map(|limit| limit.quota(now));
        let times = |quotas: &mut dyn Iterator<Item = Option<Quota>>| {
            quotas.zip(cost).filter_map(|(quota, amount)| Some(quota?.time(amount))).max()
        };
        times(&mut configured.into_iter()).max(times(&mut learned.into_iter())).unwrap_or(1).max(1)
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
        self.ended(call, actual, now);
    }

    /// The answer to a call has begun with what its input was: that is counted before the answer ends.
    pub(super) fn began(&mut self, call: &mut Admitted, usage: &Usage, now: u64) {
        let Some(input) = usage.input else { return };
        let [requests, _, _, output] = call.cost;
        let known = [requests, input.saturating_add(output), fresh(input, usage), output];
        self.correct_buckets(call.cost, known, now);
        call.cost = known;
    }

    /// A call has ended and has used so much.
    pub(super) fn used(&mut self, call: &Admitted, usage: &Usage, now: u64) {
        let [_, tokens, input, output] = call.cost;
        let used = usage.output.unwrap_or(output);
        let (all, fresh) = match usage.input {
            Some(all) => (all, fresh(all, usage)),
            None => (tokens.saturating_sub(output), input),
        };
        self.ended(call, [1, all.saturating_add(used), fresh, used], now);
        self.experience.learn(call.estimated, usage);
    }

    fn ended(&mut self, call: &Admitted, actual: Cost, now: u64) {
        for (limit, actual) in self.learned.iter_mut().zip(actual) {
            limit.counted = limit.counted.wrapping_add(signed(actual));
        }
        self.correct_buckets(call.cost, actual, now);
    }

    fn correct_buckets(&mut self, taken: Cost, actual: Cost, now: u64) {
        let amounts = || taken.into_iter().zip(actual);
        for (limit, (taken, actual)) in self.configured.iter_mut().zip(amounts()) {
            if let Some(Configured { quota, bucket }) = limit {
                bucket.correct(*quota, taken, actual, now);
            }
        }
        for (limit, (taken, actual)) in self.learned.iter_mut().zip(amounts()) {
            limit.taken = limit.taken.wrapping_add(signed(actual)).wrapping_sub(signed(taken));
            if let Some(quota) = limit.quota(now) {
                limit.bucket.correct(quota, taken, actual, now);
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
        let limit = &mut self.learned[stated.kind];
        let before = limit.quota(now);
        let mut changed = None;
        if let Some(stated_limit) = stated.limit.filter(|limit| *limit > 0) {
            let known = limit.stated.map(|(known, _)| known);
            let quota = Quota { limit: stated_limit, period: period(&stated, stated_limit, known) };
            changed = (known != Some(quota)).then_some(quota);
            limit.stated = Some((quota, now));
        }
        let quota = limit.quota(now)?;
        match before {
            Some(before) if before != quota => limit.bucket.requote(before, quota, now),
            Some(_) => {}
            None => limit.bucket = Bucket::default(),
        }
        if let Some(remaining) = stated.remaining.map(|remaining| remaining.min(quota.limit)) {
            // Of the call itself, its output may not be counted yet.
            let own = match stated.kind {
                REQUESTS => 1,
                TOKENS => call.cost[TOKENS].saturating_sub(call.cost[OUTPUT]),
                INPUT => call.cost[INPUT],
                _ => 0,
            };
            let unseen = limit.taken.wrapping_sub(call.counted[stated.kind]);
            let unseen = unseen.wrapping_sub(signed(own));
            let least = remaining.saturating_sub(u64::try_from(unseen).unwrap_or(0));
            let ours = limit.bucket.available(quota, now);
            // What was taken before the limit was known is not in the bucket.
            let corrected = if before.is_none() { least } else { ours.clamp(least, remaining) };
            if corrected != ours {
                limit.bucket.set_available(quota, corrected, now);
            }
        }
        changed
    }

    /// What of the limits a provider has stated to be left is enough for `call`.
    pub(super) fn has_room(&self, call: &Admitted, stated: &Stated) -> bool {
        stated.remaining.is_some_and(|left| left > 0 && left >= call.cost[stated.kind])
    }

    /// A provider has answered `call` with content, or with anything but a 429.
    pub(super) fn served(&mut self, call: &Admitted) {
        (self.rejections, self.hinted_until) = (0, 0);
        if call.beyond {
            self.lucky = self.lucky.saturating_add(1);
        }
    }

    /// A provider has refused `call` for its rate; `has_room` says of what it has stated enough to be left.
    /// Returns the 429s in a row.
    ///
    /// A hint binds the call that it is for. Without one, and from the second 429 in a row on, what is limited is
    /// taken as used up, and refills; and calls that can go elsewhere do, until the hint is over. Of a provider that
    /// states no limits that is for failover to judge.
    pub(super) fn rejected(
        &mut self,
        call: &Admitted,
        hint: Option<Duration>,
        has_room: [bool; 4],
        now: u64,
    ) -> u32 {
        self.lucky = 0;
        if call.order > self.rejected_at {
            self.rejections = self.rejections.saturating_add(1);
            self.rejected_at = self.admitted;
        }
        if hint.is_some() && self.rejections < ROW {
            return self.rejections;
        }
        let mut known = false;
        let configured = self.configured.iter_mut().flatten();
        let configured = configured.map(|limit| (limit.quota, &mut limit.bucket));
        let learned = self.learned.iter_mut().zip(has_room).filter_map(|(limit, has_room)| {
            let quota = limit.quota(now)?;
            known = true;
            (!has_room).then_some((quota, &mut limit.bucket))
        });
        let mut any_configured = false;
        for (quota, bucket) in configured.inspect(|_| any_configured = true).chain(learned) {
            if bucket.available(quota, now) > 0 {
                bucket.set_available(quota, 0, now);
            }
        }
        if let Some(hint) = hint
            && (known || any_configured)
        {
            let until = now.saturating_add(nanos(hint.min(MAX_BLOCK)));
            self.hinted_until = self.hinted_until.max(until);
        }
        self.rejections
    }

    /// Lets nothing through for a time.
    pub(super) fn block(&mut self, time: Duration, now: u64) {
        self.blocked_until = self.blocked_until.max(now.saturating_add(nanos(time)));
    }

    /// How long calls move on that can.
    pub(super) fn moves_on_for(&self, now: u64) -> Duration {
        Duration::from_nanos(self.hinted_until.saturating_sub(now))
    }

    pub(super) fn blocked_for(&self, now: u64) -> Duration {
        Duration::from_nanos(self.blocked_until.max(self.hinted_until).saturating_sub(now))
    }

    /// Each limit in force: what it is of, the quota, what is left, and whether a provider has stated it. Where one
    /// is configured, too, the smaller.
    pub(super) fn known(&self, now: u64) -> impl Iterator<Item = (&'static str, Quota, u64, bool)> {
        KINDS.into_iter().zip(&self.learned).enumerate().filter_map(move |(kind, (name, limit))| {
            let learned = limit.quota(now).map(|quota| (quota, limit.bucket, true));
            let own = self.configured.get(kind).copied().flatten();
            let own = own.map(|limit| (limit.quota, limit.bucket, false));
            let smaller = match (own, learned) {
                (Some(own), Some(learned)) if is_less(learned.0, own.0) => Some(learned),
                (own, learned) => own.or(learned),
            };
            let (quota, bucket, is_learned) = smaller?;
            Some((name, quota, bucket.available(quota, now), is_learned))
        })
    }

    /// Forgets what was learned, and fills the buckets. Calls under way stay counted.
    pub(super) fn reset(&mut self) {
        for limit in &mut self.learned {
            limit.stated = None;
        }
        for limit in self.configured.iter_mut().flatten() {
            limit.bucket = Bucket::default();
        }
        self.experience = Experience::default();
        (self.blocked_until, self.hinted_until) = (0, 0);
        (self.rejections, self.lucky) = (0, 0);
    }
}

/// The period of a limit: what its header is named after, else a minute, unless much of it is used and takes
/// longer than two to come back. Then it is an hour, or a day: a reset is never later than the period is long,
/// whether the provider refills all the time or at once.
///
/// While little is used, a reset in whole seconds says nothing, and what is known stays. To be wrong with a
/// period that is too short costs a 429 now and then, with one that is too long everybody's time.
fn period(stated: &Stated, limit: u64, known: Option<Quota>) -> u64 {
    if let Some(window) = stated.window {
        return nanos(window).max(1);
    }
    let known =
        known.filter(|known| known.limit == limit).map_or(Quota::MINUTE, |known| known.period);
    let (Some(remaining), Some(reset)) = (stated.remaining, stated.reset) else { return known };
    let used = limit.saturating_sub(remaining);
    match nanos(reset) {
        _ if used < limit.div_ceil(10) => known,
        reset if reset <= 2 * Quota::MINUTE => Quota::MINUTE,
        reset if reset <= Quota::HOUR => Quota::HOUR,
        _ => Quota::DAY,
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
fn whole(amount: f64) -> u64 {
    amount.round() as u64
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
        Stated { kind, limit: Some(limit), remaining: Some(remaining), ..Stated::default() }
    }

    fn call(input: u64, output: u64) -> CallTokens {
        CallTokens { input, max_output: Some(output) }
    }

    fn take(quota: &mut KeyQuota, count: usize, now: u64) -> Vec<Admitted> {
        (0..count).map(|_| quota.admit(call(10, 5), now).unwrap()).collect()
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
    fn a_period_is_believed_when_much_of_the_limit_is_used() {
        for (limit, remaining, reset, known, expected) in [
            (60, Some(59), Some(1.0), None, 60),
            // Whole seconds, a fixed window, and a clock that is a minute and a half wrong.
            (4_000, Some(3_999), Some(1.0), None, 60),
            (4_000, Some(3_999), Some(59.0), None, 60),
            (4_000, Some(0), Some(120.0), None, 60),
            (60, Some(0), Some(59.2), None, 60),
            // Of a day, used up to a tenth: what is known stays.
            (14_400, Some(14_399), Some(6.0), None, 60),
            (14_400, Some(14_399), Some(6.0), Some(86_400), 86_400),
            (14_400, Some(12_960), Some(8_640.0), None, 86_400),
            (1_000, Some(500), Some(1_800.0), None, 3_600),
            (1_000, Some(500), Some(30.0), Some(3_600), 60),
            (60, None, Some(3_600.0), None, 60),
            (60, Some(60), Some(0.0), None, 60),
        ] {
            let reset = reset.map(Duration::from_secs_f64);
            let stated = Stated { remaining, reset, ..stated(0, limit, 0) };
            let known = known.map(|secs| Quota { limit, period: secs * SECOND });
            let found = period(&stated, limit, known);
            assert_eq!(found / SECOND, expected, "{limit} {remaining:?} {reset:?} {known:?}");
        }
        let day = Some(Duration::from_secs(86_400));
        let named =
            Stated { window: day, reset: Some(Duration::from_secs(5)), ..stated(0, 100, 99) };
        assert_eq!(period(&named, 100, None), Quota::DAY);
    }

    #[test]
    fn what_is_learned_changes_only_when_the_provider_says_something_else() {
        let mut quota = KeyQuota::new(None, None, None);
        let mut changes = 0;
        for used in 1..50 {
            let call = take(&mut quota, 1, 0)[0];
            // In whole seconds, rounded up.
            let reset = Some(Duration::from_secs(used * 60 / 4_000 + 1));
            let stated = Stated { reset, ..stated(0, 4_000, 4_000 - used) };
            changes += u32::from(quota.stated(&call, stated, 0).is_some());
        }
        assert_eq!(changes, 1);
    }

    #[test]
    fn a_configured_limit_and_a_learned_one_both_hold() {
        let mut quota = KeyQuota::new(Some(100), None, None);
        let call = take(&mut quota, 1, 0)[0];
        quota.stated(&call, stated(0, 10, 5), 0);
        assert_eq!(left(&quota, "requests", 0), Some(5), "the smaller is shown");
        assert_eq!(left(&quota, "requests", LEARNED_FOR), Some(100));
        quota.stated(&call, stated(0, 1_000, 999), LEARNED_FOR);
        assert_eq!(left(&quota, "requests", LEARNED_FOR), Some(100));
    }

    #[test]
    fn usage_corrects_the_estimate_as_soon_as_it_is_known() {
        let mut quota = KeyQuota::new(None, Some(1_000), None);
        let call = quota.admit(super::tests::call(100, 400), 0).unwrap();
        assert_eq!(left(&quota, "tokens", 0), Some(500));
        quota.used(&call, &Usage::new(100, 20), 0);
        assert_eq!(left(&quota, "tokens", 0), Some(880));
        let call = quota.admit(super::tests::call(100, 400), 0).unwrap();
        quota.refund(&call, false, 0);
        assert_eq!(left(&quota, "tokens", 0), Some(880));
        // The input is known when the answer begins.
        let mut call = quota.admit(super::tests::call(100, 0), 0).unwrap();
        let mut usage = Usage::new(300, 1);
        quota.began(&mut call, &usage, 0);
        assert_eq!(left(&quota, "tokens", 0), Some(580));
        usage.output = Some(1_000);
        quota.used(&call, &usage, 0);
        assert_eq!(left(&quota, "tokens", 0), Some(0), "more than the quota is the quota");
    }

    #[test]
    fn a_call_is_expected_to_use_what_calls_have_used() {
        let mut quota = KeyQuota::new(None, None, None);
        assert_eq!(quota.cost(call(1_000, 32_000)), [1, 1_500, 1_000, 500]);
        assert_eq!(quota.cost(call(1_000, 100)), [1, 1_100, 1_000, 100], "never more than it may");
        let mut usage = Usage::new(2_000, 100);
        usage.cache_read = Some(1_800);
        for _ in 0..200 {
            let call = quota.admit(call(1_000, 32_000), 0).unwrap();
            quota.used(&call, &usage, 0);
        }
        assert_eq!(quota.cost(call(1_000, 32_000)), [1, 2_100, 200, 100]);
        quota.reset();
        assert_eq!(quota.cost(call(1_000, 32_000)), [1, 1_500, 1_000, 500]);
    }

    #[test]
    fn a_hint_binds_its_call_and_others_from_the_second_429_until_any_success() {
        let hint = Some(Duration::from_secs(20));
        let none = [false; 4];
        let mut quota = KeyQuota::new(None, None, None);
        for row in 1..4 {
            let call = take(&mut quota, 1, 0)[0];
            assert_eq!(quota.rejected(&call, hint, none, 0), row);
            assert_eq!(quota.moves_on_for(0), Duration::ZERO, "nothing is known of its limits");
        }
        let mut quota = KeyQuota::new(Some(100), None, None);
        let calls = take(&mut quota, 5, 0);
        assert_eq!(quota.rejected(&calls[0], hint, none, 0), 1);
        assert_eq!(quota.rejected(&calls[1], hint, none, 0), 1, "of the same time");
        assert_eq!(
            (quota.moves_on_for(0), left(&quota, "requests", 0)),
            (Duration::ZERO, Some(95))
        );
        let again = take(&mut quota, 1, SECOND);
        assert_eq!(quota.rejected(&again[0], hint, none, SECOND), 2);
        assert_eq!(quota.moves_on_for(SECOND), Duration::from_secs(20));
        assert_eq!(left(&quota, "requests", SECOND), Some(0), "used up, and refills");
        quota.served(&calls[2]);
        assert_eq!(quota.moves_on_for(SECOND), Duration::ZERO);
        let later = take(&mut quota, 1, 21 * SECOND);
        assert_eq!(quota.rejected(&later[0], hint, none, 21 * SECOND), 1, "another row");
        // For a minute at most.
        let mut quota = KeyQuota::new(Some(100), None, None);
        for _ in 0..2 {
            let call = take(&mut quota, 1, 0)[0];
            quota.rejected(&call, Some(Duration::from_secs(9_999)), none, 0);
        }
        assert_eq!(quota.moves_on_for(0), MAX_BLOCK);
        // Without a hint, what is limited is used up, except for what the provider has just stated to be left.
        let mut quota = KeyQuota::new(Some(60), None, None);
        let call = take(&mut quota, 1, 0)[0];
        quota.rejected(&call, None, none, 0);
        assert_eq!(quota.admit(CallTokens::default(), 0).unwrap_err(), Held::For(SECOND));
        let mut quota = KeyQuota::new(None, None, None);
        let call = take(&mut quota, 1, 0)[0];
        let there = [stated(0, 60, 30), stated(1, 1_000, 2)].map(|stated| {
            quota.stated(&call, stated, 0);
            quota.has_room(&call, &stated)
        });
        quota.rejected(&call, None, [there[0], there[1], false, false], 0);
        assert_eq!((left(&quota, "requests", 0), left(&quota, "tokens", 0)), (Some(30), Some(0)));
    }

    #[test]
    fn what_a_provider_states_is_not_believed_when_it_serves_more_until_it_refuses() {
        let mut quota = KeyQuota::new(None, None, None);
        let first = take(&mut quota, 1, 0)[0];
        quota.stated(&first, stated(0, 60, 0), 0);
        for _ in 0..LUCKY {
            assert_eq!(quota.admit(call(1, 1), 0).unwrap_err(), Held::For(SECOND));
            let beyond = quota.admit_beyond(call(1, 1), 0).unwrap();
            quota.stated(&beyond, stated(0, 60, 0), 0);
            quota.served(&beyond);
            // Otherwise the next one would wait for this one, too.
            quota.refund(&beyond, false, 0);
        }
        let call = quota.admit(call(1, 1), 0).unwrap();
        quota.rejected(&call, None, [false; 4], 0);
        assert!(quota.admit(super::tests::call(1, 1), 0).is_err());
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
                    Action::Call => sent.extend(quota.admit(call(1, 1), 0)),
                    Action::Arrive(which) if which < sent.len() => {
                        let call = sent.remove(which);
                        if left == 0 {
                            quota.rejected(&call, None, [false; 4], 0);
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
        assert_eq!(quota.admit(call(1, 1), 0).unwrap_err(), Held::UntilOneEnds);
        quota.release();
        take(&mut quota, 1, 0);
    }
}
