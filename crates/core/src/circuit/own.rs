//! The failures of single witnesses, which rest a target for nobody else.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::{Blame, CircuitPolicy, MAX_ROW, Resting};
use crate::{Reason, Witness, time::later};

/// Witnesses remembered in a circuit. Each has failed there lately; the one that failed longest ago is
/// forgotten first.
const WITNESSES: usize = 16;

/// How long a witness is remembered after its last failure, and its rest. 10 min: a caller whose request
/// fails comes back sooner, or not at all. While one is remembered, every call is noted.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The witnesses whose last calls have failed.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    rows: Vec<OwnRow>,
}

/// The last calls of one witness.
#[derive(Clone, Debug)]
struct OwnRow {
    witness: Witness,
    /// In the order in which they began, each with whether it has failed; the others are under way.
    calls: VecDeque<(u64, bool)>,
    /// How often it has been rested in this row.
    rests: u32,
    /// The end of its rest, and whether it is refused meanwhile.
    until: Instant,
    refuses: bool,
    reason: Option<Reason>,
    last_turn: Instant,
    changed: Instant,
}

impl Own {
    pub(super) fn is_empty(&self, now: Instant) -> bool {
        self.rows.iter().all(|row| row.is_over(now))
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }

    /// Forgets the witnesses that have not failed for long.
    pub(super) fn forget(&mut self, now: Instant) {
        self.rows.retain(|row| !row.is_over(now));
    }

    fn find(&mut self, witness: Witness) -> Option<&mut OwnRow> {
        if self.rows.is_empty() || !witness.is_known() {
            return None;
        }
        self.rows.iter_mut().find(|row| row.witness.is_same(witness))
    }

    /// A call has begun.
    pub(super) fn began(&mut self, witness: Witness, order: u64) {
        if let Some(row) = self.find(witness) {
            row.put(order, false);
        }
    }

    /// A call has succeeded: nothing is known against its witness that is older.
    pub(super) fn succeeded(&mut self, witness: Witness, order: u64) {
        if let Some(row) = self.find(witness) {
            row.calls.retain(|(began, _)| *began > order);
            row.until = row.changed;
            row.rests = 0;
        }
        self.rows.retain(|row| row.calls.iter().any(|(_, failed)| *failed));
    }

    /// A call has ended: unless it has failed, a row goes past it.
    pub(super) fn void(&mut self, witness: Witness, order: u64) {
        if let Some(row) = self.find(witness) {
            row.calls.retain(|call| *call != (order, false));
        }
    }

    /// A call has failed. Its witness is rested when its own row is long enough.
    pub(super) fn failed(
        &mut self,
        now: Instant,
        order: u64,
        witness: Witness,
        blame: Blame,
        proves: bool,
        policy: &CircuitPolicy,
    ) {
        if !witness.is_known() {
            return;
        }
        if self.find(witness).is_none() {
            self.forget(now);
            if self.rows.len() >= WITNESSES
                && let Some(oldest) = (0..self.rows.len()).min_by_key(|at| self.rows[*at].changed)
            {
                self.rows.swap_remove(oldest);
            }
            self.rows.push(OwnRow::new(witness, now));
        }
        let Some(row) = self.find(witness) else { return };
        row.changed = now;
        row.put(order, true);
        let enough = policy.consecutive.unwrap_or(u32::MAX);
        if proves || (row.around(order) >= enough && now >= row.until) {
            let rest = policy.cooldown(Some(blame), row.rests);
            row.until = row.until.max(later(now, rest));
            row.rests += 1;
            row.refuses = proves;
            row.reason = Some(blame.reason);
        }
    }

    /// Until when `witness` is rested.
    pub(super) fn resting(&self, witness: Witness, now: Instant) -> Option<Resting> {
        let row = self.rows.iter().find(|row| row.witness.is_same(witness))?;
        (row.until > now).then_some(Resting {
            until: row.until,
            probe_from: row.until,
            reason: row.reason,
            hinted: false,
            refuses: row.refuses,
        })
    }

    /// How long a call that repeats itself has to wait for its turn, where its witness has failed `dead`
    /// times in a row; zero when it is its turn.
    pub(super) fn turn(
        &mut self,
        witness: Witness,
        now: Instant,
        dead: u32,
        every: Duration,
    ) -> Duration {
        let Some(row) = self.find(witness) else { return Duration::ZERO };
        let latest = row.calls.iter().rev().find(|(_, failed)| *failed).map(|(order, _)| *order);
        if latest.is_none_or(|order| row.around(order) < dead) {
            return Duration::ZERO;
        }
        let wait = later(row.last_turn, every).saturating_duration_since(now);
        if wait.is_zero() {
            row.last_turn = now;
        }
        wait
    }
}

impl OwnRow {
    fn new(witness: Witness, now: Instant) -> Self {
        Self {
            witness,
            calls: VecDeque::new(),
            rests: 0,
            until: now,
            refuses: false,
            reason: None,
            last_turn: now,
            changed: now,
        }
    }

    /// Its witness has not come back, and does not rest.
    fn is_over(&self, now: Instant) -> bool {
        now >= self.until && now.saturating_duration_since(self.changed) >= REMEMBERED
    }

    /// Notes call `order` at its position.
    fn put(&mut self, order: u64, failed: bool) {
        let at = self.calls.partition_point(|(began, _)| *began < order);
        match self.calls.get_mut(at) {
            Some(call) if call.0 == order => call.1 |= failed,
            _ => self.calls.insert(at, (order, failed)),
        }
        if self.calls.len() > MAX_ROW as usize {
            self.calls.pop_front();
        }
    }

    /// How many calls around call `order` have failed one after the other.
    fn around(&self, order: u64) -> u32 {
        let at = self.calls.partition_point(|(began, _)| *began < order);
        let failed = |(_, failed): &&(u64, bool)| *failed;
        let later = self.calls.iter().skip(at).take_while(failed).count();
        let earlier = self.calls.iter().take(at).rev().take_while(failed).count();
        u32::try_from(later + earlier).unwrap_or(u32::MAX)
    }
}
