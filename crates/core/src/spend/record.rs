//! A ledger as plain data, so that a restart does not forget it.

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Account, AccountState, Spend, SpendAccount, SpendLedger, SpendWindow};

/// What a [`SpendLedger`] knows, as plain data: [`save`](SpendLedger::save) makes it, and
/// [`restore`](SpendLedger::restore) reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SpendRecord {
    /// One row for each bucket of each window in which something was spent.
    pub rows: Vec<SpendRecordRow>,
}

/// What an account has spent in one bucket of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SpendRecordRow {
    /// Whose account.
    pub account: SpendAccount,
    /// Which window.
    pub window: SpendWindow,
    /// The start of the bucket, in seconds since 1970.
    pub at: u64,
    /// What was spent.
    pub spent: Spend,
}

impl SpendLedger {
    /// All that is known, as plain data. What calls under way have reserved counts as spent: nobody will know
    /// what they did cost.
    pub fn save(&self) -> SpendRecord {
        let unix = self.0.clock.unix(Instant::now());
        let mut rows = Vec::new();
        for (name, account) in self.0.keyed.entries() {
            let mut state = account.state.lock().clone();
            let held = std::mem::take(&mut state.held);
            state.add(held, unix);
            for (window, sum) in SpendWindow::ALL.into_iter().zip(&state.sums) {
                rows.extend(sum.buckets().map(|(at, spent)| SpendRecordRow {
                    account: name.clone(),
                    window,
                    at,
                    spent,
                }));
            }
        }
        rows.sort_by_cached_key(|row| (row.account.to_string(), row.window, row.at));
        SpendRecord { rows }
    }

    /// Adds what a process before this one has spent. What is older than its window is left out.
    pub fn restore(&self, record: &SpendRecord) {
        let now = Instant::now();
        let (clock, unix) = (self.0.clock, self.0.clock.unix(now));
        for row in &record.rows {
            let account = self.0.keyed.get_or_insert_with(&row.account, now, || Account {
                name: row.account.clone(),
                clock,
                state: Mutex::new(AccountState::new()),
            });
            let mut state = account.state.lock();
            let sum = &mut state.sums[row.window as usize];
            sum.restore(row.at, row.spent, unix);
            sum.total(unix);
        }
    }
}
