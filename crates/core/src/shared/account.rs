//! Accounts under caps that several nodes spend from: each may spend what it has been granted.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::{
    Spend, SpendCaps, SpendTotals, SpendWindow,
    spend::{RollingSum, window_sums},
};

/// How long what a silent node has been granted is kept for it: longer than any call takes that it may still have under way, so
/// that whatever it spends is in the window of a cap for as long as it should. Then it counts as spent, as nobody knows
/// better, and the node is forgotten.
pub const KEPT: Duration = Duration::from_secs(3_600);

/// What a node has spent of an account, and what it needs to go on. All amounts are sums since the node began, so that a draw
/// that is sent twice, or arrives late, changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccountDraw {
    /// Which account.
    pub key: Box<str>,
    /// Which of the accounts of that name that this process has had: what is not known any more begins anew.
    pub life: u64,
    /// Greater than that of each draw of this account that the node has sent before.
    pub number: u64,
    /// The caps, as this node has them.
    pub caps: SpendCaps,
    /// What it has spent.
    pub spent: Spend,
    /// What it may spend by the grants before: it keeps to this until it is answered.
    pub granted: Spend,
    /// What it would have spent with the calls that are under way or wait.
    pub needed: Spend,
    /// What it would have spent with those that will come soon: granted as far as there is enough for all.
    pub wanted: Spend,
    /// What it knows of the account, in case that the store does not know it any more.
    pub known: AccountKnown,
    /// What was spent before is to be forgotten.
    pub reset: bool,
}

/// What a node knows of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccountKnown {
    /// Since when the store has the account: a store that has lost it has another time.
    pub since_ms: u64,
    /// What all nodes have spent of it by then, and what they hold.
    pub totals: SpendTotals,
    /// What this node has reported of what it has spent.
    pub reported: Spend,
}

/// What a node may spend of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccountGrant {
    /// In all, since it began.
    pub granted: Spend,
    /// Since when the store has the account.
    pub since_ms: u64,
    /// What all nodes have spent of it, and what they have been granted in addition.
    pub totals: SpendTotals,
    /// The cap that is in the way, where less is granted than was needed; of several, the one that frees last.
    pub short: Option<ShortCap>,
}

/// A cap that leaves less than is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShortCap {
    /// Which window.
    pub window: SpendWindow,
    /// Whether the cap on money is meant, or else that on tokens.
    pub is_cost: bool,
    /// How much of it is missing.
    pub missing: u64,
    /// When so much will have been forgotten; `None` while what other nodes have been granted is in the way, and may come back.
    pub frees_in: Option<Duration>,
}

impl AccountDraw {
    /// The first draw of a node that has spent nothing and needs nothing.
    pub fn new(key: impl Into<Box<str>>, caps: SpendCaps) -> Self {
        Self {
            key: key.into(),
            life: 0,
            number: 1,
            caps,
            spent: Spend::ZERO,
            granted: Spend::ZERO,
            needed: Spend::ZERO,
            wanted: Spend::ZERO,
            known: AccountKnown::default(),
            reset: false,
        }
    }
}

impl AccountKnown {
    /// What `granted` says, by a node that has reported this.
    pub const fn of(granted: &AccountGrant, reported: Spend) -> Self {
        Self { since_ms: granted.since_ms, totals: granted.totals, reported }
    }

    /// An account that a store does not know yet, of which so much has been spent.
    pub fn restored(totals: SpendTotals) -> Self {
        Self { totals, ..Self::default() }
    }
}

impl AccountGrant {
    /// What a store answers.
    pub const fn new(
        granted: Spend,
        since_ms: u64,
        totals: SpendTotals,
        short: Option<ShortCap>,
    ) -> Self {
        Self { granted, since_ms, totals, short }
    }
}

impl ShortCap {
    /// So much of this cap is missing.
    pub const fn new(
        window: SpendWindow,
        is_cost: bool,
        missing: u64,
        frees_in: Option<Duration>,
    ) -> Self {
        Self { window, is_cost, missing, frees_in }
    }
}

/// One account: pure. The same as the script of `steadfast-redis`.
///
/// What has been spent in a window and what nodes have been granted in addition is together never more than its cap, as far as
/// nodes spend what they have been granted.
#[derive(Clone, Debug)]
pub(super) struct AccountTable {
    since_ms: u64,
    sums: [RollingSum; 3],
    /// By node, and which life.
    nodes: BTreeMap<(Box<str>, u64), NodeRow>,
}

#[derive(Clone, Copy, Debug)]
struct NodeRow {
    number: u64,
    spent: Spend,
    granted: Spend,
    heard: Instant,
}

impl NodeRow {
    /// What it may spend that it has not reported.
    fn open(&self) -> Spend {
        self.granted.minus(self.spent)
    }
}

impl AccountTable {
    pub(super) const fn new(now_ms: u64) -> Self {
        Self { since_ms: now_ms, sums: window_sums(), nodes: BTreeMap::new() }
    }

    /// What `node` may spend from now on.
    pub(super) fn draw(
        &mut self,
        node: &str,
        draw: &AccountDraw,
        now: Instant,
        now_ms: u64,
    ) -> AccountGrant {
        let unix = now_ms / 1_000;
        if draw.known.since_ms != self.since_ms {
            self.raise(&draw.known.totals, unix);
        }
        self.write_off(now, unix);
        let reported = draw.known.reported;
        let row = NodeRow { number: 0, spent: reported, granted: reported, heard: now };
        let row = self.nodes.entry((node.into(), draw.life)).or_insert(row);
        if draw.number <= row.number {
            // It was sent before another one that has arrived.
            let granted = row.granted;
            let totals = self.totals(unix);
            return AccountGrant { granted, since_ms: self.since_ms, totals, short: None };
        }
        let spent = draw.spent.minus(row.spent);
        let granted = draw.granted.max(draw.spent);
        let number = draw.number;
        *row = NodeRow { number, spent: row.spent.max(draw.spent), granted, heard: now };
        if draw.reset {
            self.sums = window_sums();
        }
        for sum in &mut self.sums {
            sum.total(unix);
            sum.add(spent, unix);
        }
        let totals = self.totals(unix);
        let (tokens, short_tokens) = self.grant(draw, granted, &totals, unix, false);
        let (cost, short_cost) = self.grant(draw, granted, &totals, unix, true);
        let more = Spend::new(tokens, cost);
        let granted = granted.plus(more);
        if let Some(row) = self.nodes.get_mut(&(node.into(), draw.life)) {
            row.granted = granted;
        }
        let waits = |short: &ShortCap| short.frees_in.unwrap_or(Duration::ZERO);
        let short = [short_tokens, short_cost].into_iter().flatten().max_by_key(waits);
        let totals = SpendTotals { held: totals.held.plus(more), ..totals };
        AccountGrant { granted, since_ms: self.since_ms, totals, short }
    }

    /// How much more of one unit a node that has `granted` gets, and what is in the way of what it needs.
    fn grant(
        &self,
        draw: &AccountDraw,
        granted: Spend,
        totals: &SpendTotals,
        unix: u64,
        is_cost: bool,
    ) -> (u64, Option<ShortCap>) {
        let unit = |spend: Spend| if is_cost { spend.cost } else { spend.tokens };
        let needed = unit(draw.needed.minus(granted));
        let wanted = unit(draw.wanted.minus(granted)).max(needed);
        let caps = SpendWindow::ALL.map(|window| (window, unit(draw.caps.get(window))));
        let used = |window| unit(totals.spent(window)).saturating_add(unit(totals.held));
        let free = caps.iter().filter(|(_, cap)| *cap > 0);
        let free = free.map(|(window, cap)| cap.saturating_sub(used(*window))).min();
        let free = free.unwrap_or(u64::MAX);
        // Enough for this node, and as much for the others; near the cap no more than what is needed.
        let share = free / (2 * self.nodes.len().max(1) as u64);
        let more = wanted.min(share.max(needed.min(free)));
        if more >= needed {
            return (more, None);
        }
        // Others give back soon what they do not use.
        let elsewhere = unit(totals.held).saturating_sub(unit(granted.minus(draw.spent)));
        let short = caps.into_iter().filter(|(_, cap)| *cap > 0).filter_map(|(window, cap)| {
            let missing = used(window).saturating_add(needed).saturating_sub(cap);
            (missing > 0).then(|| {
                let sum = &self.sums[window as usize];
                let frees = sum.frees(missing, |spend| unit(*spend));
                let frees = frees.filter(|_| missing > elsewhere);
                let frees_in = frees.map(|at| Duration::from_secs(at.saturating_sub(unix)));
                ShortCap { window, is_cost, missing, frees_in }
            })
        });
        (more, short.max_by_key(|short| short.frees_in.unwrap_or(Duration::ZERO)))
    }

    fn totals(&mut self, unix: u64) -> SpendTotals {
        let [hour, day, month] = self.sums.each_mut().map(|sum| sum.total(unix));
        let held = self.nodes.values().fold(Spend::ZERO, |sum, row| sum.plus(row.open()));
        SpendTotals { hour, day, month, held }
    }

    /// A node knows that more has been spent: this store has lost what it knew.
    fn raise(&mut self, known: &SpendTotals, unix: u64) {
        for (window, sum) in SpendWindow::ALL.into_iter().zip(&mut self.sums) {
            let missing = known.spent(window).minus(sum.total(unix));
            sum.add(missing, unix);
        }
    }

    /// What nodes have that are silent for too long counts as spent.
    fn write_off(&mut self, now: Instant, unix: u64) {
        let Self { sums, nodes, .. } = self;
        nodes.retain(|_, row| {
            let is_kept = now.saturating_duration_since(row.heard) < KEPT;
            if !is_kept {
                for sum in &mut *sums {
                    sum.total(unix);
                    sum.add(row.open(), unix);
                }
            }
            is_kept
        });
    }

    /// Whether it says nothing any more.
    pub(super) fn is_empty(&mut self, now: Instant, now_ms: u64) -> bool {
        self.write_off(now, now_ms / 1_000);
        self.nodes.is_empty() && self.totals(now_ms / 1_000) == SpendTotals::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_silent_node_was_granted_is_kept_and_then_counts_as_spent() {
        let (mut table, start) = (AccountTable::new(0), Instant::now());
        let mut draw = |node: &str, number, spent, granted, needed, at: Duration| {
            let mut draw = AccountDraw::new("acme", SpendCaps::of_tokens(1_000, 0));
            (draw.number, draw.spent) = (number, Spend::new(spent, 0));
            (draw.granted, draw.needed) = (Spend::new(granted, 0), Spend::new(needed, 0));
            let now_ms = u64::try_from(at.as_millis()).unwrap();
            let grant = table.draw(node, &draw, start + at, now_ms);
            (grant.granted.tokens, grant.totals.hour.tokens, grant.totals.held.tokens)
        };
        let second = Duration::from_secs(1);
        assert_eq!(draw("silent", 1, 0, 0, 600, Duration::ZERO), (600, 0, 600));
        assert_eq!(draw("other", 1, 0, 0, 500, KEPT - second), (400, 0, 1_000));
        assert_eq!(draw("other", 2, 0, 0, 0, KEPT - second), (0, 0, 600));
        assert_eq!(draw("silent", 2, 250, 600, 600, KEPT - second), (600, 250, 350), "it is back");
        let gone = KEPT * 2 - second;
        for number in 3..5 {
            assert_eq!(draw("other", number, 0, 0, 0, gone), (0, 600, 0), "once");
        }
        // It counts for an hour from then.
        assert_eq!(draw("other", 5, 0, 0, 0, gone + KEPT - second).1, 350);
        assert_eq!(draw("other", 6, 0, 0, 0, gone + KEPT + 60 * second).1, 0);
    }
}
