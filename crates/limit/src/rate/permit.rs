//! What a call holds from its admission until its answer has ended.

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use steadfast_core::{Failure, Reason, RecoveryLog, Usage, hint, quota::QuotaHeaders, time::wall};

use super::{
    RatePolicy, ReleaseAt, event,
    quota::{Admitted, KINDS, Stated},
    state::RateKey,
};
use crate::meter::ReplyMeter;

/// A call that was let through. Reports what the provider states and what the call has used; dropped, it
/// frees what it holds.
pub struct RatePermit {
    key: Arc<RateKey>,
    call: Admitted,
    log: RecoveryLog,
    release_at: ReleaseAt,
    learn: bool,
    /// It counts against the concurrency.
    holds: bool,
    /// The request was handed to the inner service.
    sent: bool,
    /// What became of it is known.
    over: bool,
    usage: Usage,
    /// Bytes of content that have come.
    seen: u64,
}

impl RatePermit {
    pub(super) fn new(
        key: &Arc<RateKey>,
        call: Admitted,
        policy: &RatePolicy,
        log: &RecoveryLog,
    ) -> Self {
        Self {
            key: key.clone(),
            call,
            log: log.clone(),
            release_at: policy.release_at,
            learn: policy.learn,
            holds: true,
            sent: false,
            over: false,
            usage: Usage::default(),
            seen: 0,
        }
    }

    /// From now on a provider may have counted it.
    pub(super) const fn sent(&mut self) {
        self.sent = true;
    }

    fn release(&mut self) {
        if std::mem::take(&mut self.holds) {
            self.key.update(|quota, _| quota.release());
        }
    }

    fn release_at(&mut self, when: ReleaseAt) {
        if self.release_at <= when {
            self.release();
        }
    }

    /// Takes over what a provider states of its limits.
    /// Returns of what it states enough to be left for the call.
    fn learn(&self, headers: &HeaderMap) -> [bool; 4] {
        let mut has_room = [false; 4];
        if !self.learn {
            return has_room;
        }
        for quota in QuotaHeaders::all(headers) {
            let Some(kind) = KINDS.iter().position(|kind| *kind == quota.name) else { continue };
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "what is left is whole, and saturates"
            )]
            let remaining = quota.remaining().map(|left| left.max(0.0) as u64);
            let (limit, reset, window) = (quota.limit(), quota.reset(wall), quota.window());
            let stated = Stated { kind, limit, remaining, reset, window };
            let changed = self.key.update(|key, now| {
                has_room[kind] = key.has_room(&self.call, &stated);
                key.stated(&self.call, stated, now)
            });
            if let Some(quota) = changed {
                event::learned(self.key.target(), KINDS[kind], quota.limit, quota.period);
            }
        }
        has_room
    }

    fn rejected(&mut self, hint: Option<Duration>, has_room: [bool; 4]) {
        self.over = true;
        let in_a_row = self.key.update(|quota, now| {
            quota.refund(&self.call, true, now);
            quota.rejected(&self.call, hint, has_room, now)
        });
        self.key.count_rejection();
        event::rejected(self.key.target(), hint, in_a_row);
        self.release();
    }

    /// It has used what was reported, and where nothing was, what can be known: the estimate of its input, and
    /// as much output as has come.
    fn used(&mut self) {
        self.over = true;
        let mut usage = self.usage;
        if usage.output.is_none() && self.seen > 0 {
            usage.output = Some(self.seen / 4);
        }
        // In one step with its release: an answer that has ended frees what waits for it.
        let holds = std::mem::take(&mut self.holds);
        self.key.update(|quota, now| {
            quota.used(&self.call, &usage, now);
            if holds {
                quota.release();
            }
        });
    }

    fn refund(&mut self) {
        self.over = true;
        self.key.update(|quota, now| quota.refund(&self.call, false, now));
        self.release();
    }
}

impl ReplyMeter for RatePermit {
    fn log(&self) -> &RecoveryLog {
        &self.log
    }

    fn head(&mut self, status: StatusCode, headers: &HeaderMap) {
        let has_room = self.learn(headers);
        if status == StatusCode::TOO_MANY_REQUESTS {
            let text = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            self.rejected(text.and_then(|text| hint::until_reset(text.trim(), wall)), has_room);
        } else if status.is_success() {
            self.key.update(|quota, _| quota.served(&self.call));
        }
        self.release_at(ReleaseAt::Headers);
    }

    fn content(&mut self, bytes: usize) {
        self.seen = self.seen.saturating_add(bytes as u64);
        self.release_at(ReleaseAt::FirstContent);
    }

    fn usage(&mut self, usage: &Usage) {
        let had_input = self.usage.input.is_some();
        self.usage.update(usage);
        if !had_input && !self.over {
            self.key.update(|quota, now| quota.began(&mut self.call, usage, now));
        }
    }

    fn success(&mut self) {
        if !self.over {
            self.used();
        }
    }

    fn failure(&mut self, failure: &Failure) {
        if self.over {
            return;
        }
        if failure.attempts() == 0 {
            // A breaker refused it, or a limit of somebody else's.
            return self.refund();
        }
        let has_room = failure.upstream().map(|upstream| self.learn(&upstream.headers));
        if let Some(usage) = failure.usage() {
            self.usage.update(usage);
        }
        match failure.reason() {
            Reason::RateLimit => self.rejected(failure.retry_after(), has_room.unwrap_or_default()),
            _ => {
                // Of what failed before any content, no output is counted.
                if self.seen == 0 && self.usage.output.is_none() {
                    self.usage.output = Some(0);
                }
                self.used();
            }
        }
    }
}

impl Drop for RatePermit {
    fn drop(&mut self) {
        match (self.over, self.sent) {
            (true, _) => self.release(),
            (false, true) => self.used(),
            (false, false) => self.refund(),
        }
    }
}

impl fmt::Debug for RatePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RatePermit").field("call", &self.call).finish_non_exhaustive()
    }
}
