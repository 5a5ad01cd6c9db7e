//! What is known of the limits of one key, and what is used of them. Pure: the time is an argument, in
//! nanoseconds since the layer was made.

mod experience;
mod learned;

use std::time::Duration;

use steadfast_core::{Usage, shared::WHOLE};

pub(super) use self::learned::Stated;
use self::{
    experience::{Experience, fresh},
    learned::{Learned, is_less, period},
};
use super::bucket::{Bucket, Quota, nanos};
use crate::CallTokens;

/// What a provider limits, in the order of the arrays here.
pub(super) const KINDS: [&str; 4] = ["requests", "tokens", "input", "output"];

const REQUESTS: usize = 0;
const TOKENS: usize = 1;
const INPUT: usize = 2;
const OUTPUT: usize = 3;

/// The longest that other calls move on for the hint of a 429: a minute, the window of rate limits. Then one
/// asks again, in case the hint was wrong.
const MAX_BLOCK: Duration = Duration::from_secs(60);

/// From so many 429s in a row on, their hint concerns other calls, too (rule 7 of the default stack).
const ROW: u32 = 2;

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

/// A limit that is configured: the operator's, which holds whatever a provider says.
#[derive(Clone, Copy, Debug)]
struct Configured {
    whole: Quota,
    /// What this process has of it.
    quota: Quota,
    bucket: Bucket,
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
    /// The part of each limit that this process has, in parts per million.
    ppm: u32,
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
            ppm: WHOLE,
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
            *limit = new.map(|whole| {
                let quota = whole.part(self.ppm);
                let mut bucket = Bucket::default();
                if let Some(before) = limit {
                    bucket = before.bucket;
                    bucket.requote(before.quota, quota, now);
                }
                Configured { whole, quota, bucket }
            });
        }
    }

    /// The part of each limit that this process has, in parts per million.
    pub(super) const fn part(&self) -> u32 {
        self.ppm
    }

    /// This process has this part of each limit from now on, in parts per million.
    pub(super) fn set_part(&mut self, ppm: u32, now: u64) {
        if ppm == self.ppm {
            return;
        }
        self.ppm = ppm;
        for Configured { whole, quota, bucket } in self.configured.iter_mut().flatten() {
            let new = whole.part(ppm);
            bucket.repart(*quota, new, now);
            *quota = new;
        }
        for limit in &mut self.learned {
            let before = limit.quota(now);
            limit.ppm = ppm;
            if let Some((before, new)) = before.zip(limit.quota(now)) {
                limit.bucket.repart(before, new, now);
            }
        }
    }

    /// What was taken of each kind since the key is known: what a process uses is the difference.
    #[cfg(feature = "shared")]
    pub(super) fn taken(&self) -> [i64; 4] {
        self.learned.map(|limit| limit.taken)
    }

    /// The whole limits that are known.
    #[cfg(feature = "shared")]
    pub(super) fn limits(&self, now: u64) -> [Option<Quota>; 4] {
        let mut limits = self.learned.map(|limit| {
            let (quota, _) = limit.stated?;
            limit.quota(now).map(|_| quota)
        });
        for (limit, own) in limits.iter_mut().zip(&self.configured) {
            let own = own.map(|own| own.whole);
            *limit = match (own, *limit) {
                (Some(own), Some(learned)) if is_less(learned, own) => Some(learned),
                (own, learned) => own.or(learned),
            };
        }
        limits
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
                let Configured { quota, bucket, .. } = (*limit)?;
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
            if let Some(Configured { quota, bucket, .. }) = limit {
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
            let quota = Quota::new(stated_limit, period(&stated, stated_limit, known));
            changed = (known != Some(quota)).then_some(quota);
            limit.stated = Some((quota, now));
        }
        let quota = limit.quota(now)?;
        match before {
            Some(before) if before != quota => limit.bucket.requote(before, quota, now),
            Some(_) => {}
            None => limit.bucket = Bucket::default(),
        }
        let remaining = stated.remaining.map(|remaining| limit.part(remaining));
        if let Some(remaining) = remaining.map(|remaining| remaining.min(quota.limit)) {
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

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
fn whole(amount: f64) -> u64 {
    amount.round() as u64
}

fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
