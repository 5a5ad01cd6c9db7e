//! What tenants and keys spend, and the caps on it.
//!
//! A [`SpendLedger`] has an account for each tenant and key, with rolling windows of an hour, a day and a
//! month. Before a call the most that it may cost is reserved; afterwards it is charged what it did cost.
//! So calls that run at the same time can not exceed a cap together.

mod call;
mod record;
mod refusal;
mod shared;
mod window;

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use self::shared::{SharedAccount, SpendFleet};
pub(crate) use self::window::RollingSum;
pub use self::{
    call::{AttemptSpend, CallSpend},
    record::{SpendRecord, SpendRecordRow},
    refusal::SpendRefusal,
    shared::{CapSharing, SpendGrant, SpendLease},
};
use crate::{Keep, Keyed, KeyedPolicy, time::wall};

/// Tokens, and what they cost in micro-dollars (a millionth of a US dollar).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Spend {
    /// Tokens, input and output together.
    pub tokens: u64,
    /// Micro-dollars.
    pub cost: u64,
}

impl Spend {
    /// Nothing.
    pub const ZERO: Self = Self::new(0, 0);

    /// So many tokens at so many micro-dollars.
    pub const fn new(tokens: u64, cost: u64) -> Self {
        Self { tokens, cost }
    }

    /// The sum of both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self::new(self.tokens.saturating_add(other.tokens), self.cost.saturating_add(other.cost))
    }

    /// The difference, zero where `other` is larger.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self::new(self.tokens.saturating_sub(other.tokens), self.cost.saturating_sub(other.cost))
    }

    /// The larger of both, in tokens and in cost.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self::new(self.tokens.max(other.tokens), self.cost.max(other.cost))
    }

    /// The smaller of both, in tokens and in cost.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self::new(self.tokens.min(other.tokens), self.cost.min(other.cost))
    }
}

/// The most that an account may spend in each window; 0 for no cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpendCaps {
    /// In any hour.
    pub hour: Spend,
    /// In any day.
    pub day: Spend,
    /// In any 30 days.
    pub month: Spend,
}

impl SpendCaps {
    /// Caps on tokens in any hour and in any day.
    pub const fn of_tokens(hour: u64, day: u64) -> Self {
        Self { hour: Spend::new(hour, 0), day: Spend::new(day, 0), month: Spend::ZERO }
    }

    /// Whether nothing is capped.
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) const fn get(&self, window: SpendWindow) -> Spend {
        match window {
            SpendWindow::Hour => self.hour,
            SpendWindow::Day => self.day,
            SpendWindow::Month => self.month,
        }
    }
}

/// A rolling window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum SpendWindow {
    /// 60 minutes, forgotten by the minute.
    Hour,
    /// 24 hours, forgotten by the quarter of an hour.
    Day,
    /// 30 days, forgotten by the quarter of a day.
    Month,
}

impl SpendWindow {
    /// All of them, the shortest first.
    pub const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Month];

    /// The name used in logs and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    const fn sum(self) -> RollingSum {
        match self {
            Self::Hour => RollingSum::new(60, 60),
            Self::Day => RollingSum::new(15 * 60, 96),
            Self::Month => RollingSum::new(6 * 3_600, 120),
        }
    }
}

/// Whose account it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum SpendAccount {
    /// A tenant's; calls without one share the account of the empty name.
    Tenant(Arc<str>),
    /// An API key's, by its name.
    Key(Arc<str>),
    /// That of the summaries of a tenant's conversations. They are in the tenant's own account as well, as far as
    /// the calls that needed them are.
    Summaries(Arc<str>),
}

impl fmt::Display for SpendAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenant(name) if name.is_empty() => f.write_str("calls without a tenant"),
            Self::Tenant(name) => write!(f, "tenant `{name}`"),
            Self::Key(name) => write!(f, "key `{name}`"),
            Self::Summaries(name) if name.is_empty() => {
                f.write_str("summaries for calls without a tenant")
            }
            Self::Summaries(name) => write!(f, "summaries for tenant `{name}`"),
        }
    }
}

/// What an account has spent, and what calls under way have reserved of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SpendTotals {
    /// In the last hour.
    pub hour: Spend,
    /// In the last day.
    pub day: Spend,
    /// In the last 30 days.
    pub month: Spend,
    /// Reserved by calls under way, in addition.
    pub held: Spend,
}

impl SpendTotals {
    /// What was spent in `window`, without what is reserved.
    pub const fn spent(&self, window: SpendWindow) -> Spend {
        match window {
            SpendWindow::Hour => self.hour,
            SpendWindow::Day => self.day,
            SpendWindow::Month => self.month,
        }
    }
}

/// What calls under way may give back is free in about this time.
const UNDER_WAY: Duration = Duration::from_secs(1);

/// The accounts of tenants and keys: a handle, cheap to clone, that all of its users share.
///
/// ```
/// use steadfast_core::{Spend, SpendAccount, SpendCaps, SpendLedger};
/// use tokio::time::Instant;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (ledger, now) = (SpendLedger::default(), Instant::now());
/// let (acme, caps) = (SpendAccount::Tenant("acme".into()), SpendCaps::of_tokens(1_000, 0));
/// let held = ledger.reserve(&acme, &caps, Spend::new(900, 0), now).unwrap();
/// assert!(ledger.reserve(&acme, &caps, Spend::new(200, 0), now).is_err());
/// held.charge(Spend::new(300, 0), now);
/// assert_eq!(ledger.totals(&acme, now).hour.tokens, 300);
/// # }
/// ```
#[derive(Clone)]
pub struct SpendLedger(Arc<Accounts>);

struct Accounts {
    keyed: Keyed<SpendAccount, Account>,
    clock: Clock,
    /// Other processes that spend from the same accounts.
    fleet: OnceLock<SpendFleet>,
}

/// Relates instants to seconds since 1970, which a restart survives.
#[derive(Clone, Copy, Debug)]
struct Clock {
    began: Instant,
    unix: u64,
}

impl Clock {
    fn new() -> Self {
        let unix = wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self { began: Instant::now(), unix: unix.as_secs() }
    }

    fn unix(self, now: Instant) -> u64 {
        self.unix.saturating_add(now.saturating_duration_since(self.began).as_secs())
    }
}

/// One account.
struct Account {
    name: SpendAccount,
    clock: Clock,
    state: Mutex<AccountState>,
}

#[derive(Clone, Debug)]
struct AccountState {
    /// Of this process.
    sums: [RollingSum; 3],
    held: Spend,
    /// Where others spend from it, too.
    shared: Option<Box<SharedAccount>>,
}

/// A sum for each window.
pub(crate) const fn window_sums() -> [RollingSum; 3] {
    [SpendWindow::Hour.sum(), SpendWindow::Day.sum(), SpendWindow::Month.sum()]
}

impl AccountState {
    const fn new() -> Self {
        Self { sums: window_sums(), held: Spend::ZERO, shared: None }
    }

    /// What this process has spent and holds.
    fn own_totals(&mut self, unix: u64) -> SpendTotals {
        let [hour, day, month] = self.sums.each_mut().map(|sum| sum.total(unix));
        SpendTotals { hour, day, month, held: self.held }
    }

    /// What all processes have spent and hold, as far as this one knows.
    fn totals(&mut self, unix: u64) -> SpendTotals {
        let own = self.own_totals(unix);
        self.shared.as_ref().map_or(own, |shared| shared.totals(own))
    }

    fn add(&mut self, spent: Spend, unix: u64) {
        for sum in &mut self.sums {
            sum.total(unix);
            sum.add(spent, unix);
        }
    }
}

impl Account {
    /// Holds `most` in addition to what it holds, or says which cap leaves less; of several, the one that
    /// frees last.
    fn hold(
        self: &Arc<Self>,
        caps: &SpendCaps,
        most: Spend,
        now: Instant,
        fleet: Option<&SpendFleet>,
    ) -> Result<(), SpendRefusal> {
        if let Some(fleet) = fleet.filter(|_| !caps.is_off()) {
            return fleet.hold(self, caps, most, now);
        }
        let unix = self.clock.unix(now);
        let mut state = self.state.lock();
        let totals = state.own_totals(unix);
        let mut refusal: Option<SpendRefusal> = None;
        for window in SpendWindow::ALL {
            let cap = caps.get(window);
            let spent = totals.spent(window).plus(state.held);
            let units: [(bool, u64, u64, u64); 2] = [
                (false, cap.tokens, spent.tokens, most.tokens),
                (true, cap.cost, spent.cost, most.cost),
            ];
            for (is_cost, cap, used, requested) in units {
                let over = used.saturating_add(requested).saturating_sub(cap);
                if cap == 0 || over == 0 || requested == 0 {
                    continue;
                }
                let found = SpendRefusal {
                    account: self.name.clone(),
                    window,
                    is_cost,
                    cap,
                    used,
                    requested,
                    frees_in: (requested <= cap)
                        .then(|| state.frees_in(window, is_cost, over, unix)),
                    unasked: false,
                    away: false,
                };
                // `None` frees never, and so last.
                let waits = |one: &SpendRefusal| one.frees_in.unwrap_or(Duration::MAX);
                if refusal.as_ref().is_none_or(|known| waits(known) < waits(&found)) {
                    refusal = Some(found);
                }
            }
        }
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        state.held = state.held.plus(most);
        Ok(())
    }

    /// Of what is held, `held` is free again, and `spent` was spent.
    fn charge(self: &Arc<Self>, held: Spend, spent: Spend, now: Instant) {
        let mut state = self.state.lock();
        state.held = state.held.minus(held);
        state.add(spent, self.clock.unix(now));
        let held = state.held;
        if let Some(shared) = &mut state.shared {
            shared.spent(self, spent, held);
        }
    }
}

impl AccountState {
    /// When so much of a window has been forgotten, if calls under way use what they hold.
    fn frees_in(&self, window: SpendWindow, is_cost: bool, over: u64, unix: u64) -> Duration {
        let amount = |spend: &Spend| if is_cost { spend.cost } else { spend.tokens };
        let at = self.sums[window as usize].frees(over, amount);
        // Only what is under way is in the way: it may give back enough as soon as it ends.
        at.map_or(UNDER_WAY, |at| Duration::from_secs(at.saturating_sub(unix)))
    }
}

impl Keep for Account {
    /// Without what is spent its cap would not hold.
    fn keep(&self, now: Instant) -> bool {
        self.state.lock().totals(self.clock.unix(now)) != SpendTotals::default()
    }
}

impl Default for SpendLedger {
    /// With [`KeyedPolicy::default`]: at most 4,096 accounts of about 6 KiB each.
    fn default() -> Self {
        Self::new(KeyedPolicy::default())
    }
}

impl SpendLedger {
    /// An empty ledger of as many accounts as `policy` says. What is too many is forgotten: accounts that
    /// have spent nothing first.
    pub fn new(policy: KeyedPolicy) -> Self {
        let (clock, fleet) = (Clock::new(), OnceLock::new());
        Self(Arc::new(Accounts { keyed: Keyed::new(policy), clock, fleet }))
    }

    /// Keeps as many accounts as `policy` says from now on.
    pub fn set_policy(&self, policy: KeyedPolicy) {
        self.0.keyed.set_policy(policy);
    }

    fn account(&self, name: &SpendAccount, now: Instant) -> Arc<Account> {
        let clock = self.0.clock;
        self.0.keyed.get_or_insert_with(name, now, || Account {
            name: name.clone(),
            clock,
            state: Mutex::new(AccountState::new()),
        })
    }

    /// Reserves the most that a call may spend, if the caps of its account leave so much.
    ///
    /// # Errors
    ///
    /// With the cap that leaves less; nothing is reserved then.
    pub fn reserve(
        &self,
        account: &SpendAccount,
        caps: &SpendCaps,
        most: Spend,
        now: Instant,
    ) -> Result<SpendReservation, SpendRefusal> {
        let account = self.account(account, now);
        account.hold(caps, most, now, self.0.fleet.get())?;
        Ok(SpendReservation { account: Some(account), held: most })
    }

    /// Adds what was spent without a reservation.
    pub fn charge(&self, account: &SpendAccount, spent: Spend, now: Instant) {
        self.account(account, now).charge(Spend::ZERO, spent, now);
    }

    /// What an account has spent.
    pub fn totals(&self, account: &SpendAccount, now: Instant) -> SpendTotals {
        let unix = self.0.clock.unix(now);
        let known = self.0.keyed.get(account);
        known.map_or_else(SpendTotals::default, |account| account.state.lock().totals(unix))
    }

    /// What each account has spent, by name; those that have spent nothing are left out.
    pub fn snapshot(&self, now: Instant) -> Vec<(SpendAccount, SpendTotals)> {
        let unix = self.0.clock.unix(now);
        let accounts = self.0.keyed.entries().into_iter();
        let totals = accounts.map(|(name, account)| (name, account.state.lock().totals(unix)));
        let mut spent: Vec<_> =
            totals.filter(|(_, totals)| *totals != SpendTotals::default()).collect();
        spent.sort_by_cached_key(|(name, _)| name.to_string());
        spent
    }

    /// Forgets what an account has spent; what calls under way have reserved stays reserved. Returns whether
    /// there was anything.
    pub fn reset(&self, account: &SpendAccount) -> bool {
        let Some(account) = self.0.keyed.get(account) else { return false };
        let mut state = account.state.lock();
        let was = state.totals(self.0.clock.unix(Instant::now())).month != Spend::ZERO;
        state.sums = window_sums();
        if let Some(shared) = &mut state.shared {
            shared.reset();
        }
        was
    }
}

impl fmt::Debug for SpendLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpendLedger").field("accounts", &self.0.keyed.len()).finish()
    }
}

/// What is reserved for one call. Dropped without [`charge`](Self::charge), all of it is spent: nobody knows
/// what such a call did cost.
#[must_use = "what is not charged is spent"]
pub struct SpendReservation {
    /// `None` once charged.
    account: Option<Arc<Account>>,
    held: Spend,
}

impl SpendReservation {
    /// What is reserved.
    pub const fn held(&self) -> Spend {
        self.held
    }

    /// The call has cost `actual`; more than was reserved counts, too.
    pub fn charge(mut self, actual: Spend, now: Instant) {
        if let Some(account) = self.account.take() {
            account.charge(self.held, actual, now);
        }
    }
}

impl Drop for SpendReservation {
    fn drop(&mut self) {
        if let Some(account) = self.account.take() {
            account.charge(self.held, self.held, Instant::now());
        }
    }
}

impl fmt::Debug for SpendReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpendReservation").field("held", &self.held).finish_non_exhaustive()
    }
}
