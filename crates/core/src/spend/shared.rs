//! Accounts that several processes spend from.
//!
//! Each process may spend what the state that they share has granted it, and reports what it has spent, twice a second. So calls
//! hold what they may cost in the memory of their process, as they do without others. The amounts that a process reports and is
//! granted are sums since it began: see [`AccountDraw`].

use std::{
    fmt,
    future::Future,
    hash::BuildHasher,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, Sleep, sleep, timeout_at},
};

use super::{
    Account, AccountState, Accounts, Spend, SpendAccount, SpendCaps, SpendLedger, SpendRefusal,
    SpendTotals, SpendWindow, UNDER_WAY,
};
use crate::shared::{AccountDraw, AccountGrant, AccountKnown, SharedState, SharedTask, ShortCap};

/// How often what was spent is reported.
const EVERY: Duration = Duration::from_millis(500);

/// How long a call waits for the state: as long as it may for a value that it reads.
const PATIENCE: Duration = Duration::from_millis(20);

/// How often what others have spent of an account is asked for by who spends nothing.
const REFRESHED: Duration = Duration::from_secs(5);

/// What was granted is not spent any more when nothing was heard of the state for so long: it counts as spent there, and is
/// forgotten with its window.
const VOID: Duration = Duration::from_secs(60);

/// How long it is believed that a cap leaves too little, without asking again.
const SHORT: Duration = Duration::from_millis(250);

/// Accounts of one command.
const BATCH: usize = 64;

/// What a process does about a shared cap while nothing is granted to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub enum CapSharing {
    /// A call is made when what is known leaves enough, and so a cap may be exceeded, by less than one lease of each
    /// process. It waits only where it would be refused, 20 ms at most. While the state is away, each process has its part of what was
    /// left: one that is cut off alone may exceed the cap by that.
    #[default]
    Share,
    /// A cap is never exceeded. A call for which nothing has been granted waits for the state, 20 ms at most; while that is away, it
    /// is refused.
    Strict,
}

/// What this process has been granted of an account that several spend from, and has not spent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpendGrant {
    /// Whose account.
    pub account: SpendAccount,
    /// Whether money is capped, or else tokens alone.
    pub is_cost: bool,
    /// So much may be spent.
    pub granted: Spend,
    /// So much of it calls under way hold.
    pub held: Spend,
}

/// Other processes, as a ledger has them.
pub(super) struct SpendFleet {
    state: Arc<dyn SharedState>,
    sharing: CapSharing,
    signals: Arc<Signals>,
    _drawing: SharedTask,
}

#[derive(Default)]
pub(super) struct Signals {
    /// Accounts for which more is needed soon.
    urgent: Mutex<Vec<Arc<Account>>>,
    wake: Notify,
    /// Something was answered, or was not.
    answered: Notify,
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").field("urgent", &self.urgent.lock().len()).finish()
    }
}

impl Signals {
    fn ask(&self, account: &Arc<Account>) {
        let mut urgent = self.urgent.lock();
        if !urgent.iter().any(|known| Arc::ptr_eq(known, account)) {
            urgent.push(account.clone());
        }
        drop(urgent);
        self.wake.notify_one();
    }
}

/// What this process has of an account that others spend from, too.
#[derive(Clone, Debug)]
pub(super) struct SharedAccount {
    /// Another one than that of an account of the same name that was forgotten.
    life: u64,
    caps: SpendCaps,
    /// Of the last draw that was sent, and of the last one that was answered.
    number: u64,
    answered: u64,
    /// What was spent, and what may be, since it is shared.
    spent: Spend,
    granted: Spend,
    /// What calls have held, in all and by the last report.
    taken: Spend,
    taken_before: Spend,
    /// What they will hold soon, and as much of it as this process asks for.
    expected: Spend,
    ahead: Spend,
    /// What calls wait for.
    waiting: Spend,
    /// There is too little for all that could be needed soon: what is not needed is given back at once.
    is_tight: bool,
    signals: Arc<Signals>,
    known: AccountKnown,
    short: Option<(ShortCap, Instant)>,
    drawn_at: Option<Instant>,
    answered_at: Option<Instant>,
    reset: bool,
}

impl SharedAccount {
    fn new(caps: SpendCaps, restored: SpendTotals, signals: Arc<Signals>) -> Self {
        static LIVES: AtomicU64 = AtomicU64::new(0);
        Self {
            life: LIVES.fetch_add(1, Ordering::Relaxed),
            caps,
            number: 0,
            answered: 0,
            spent: Spend::ZERO,
            granted: Spend::ZERO,
            taken: Spend::ZERO,
            taken_before: Spend::ZERO,
            expected: Spend::ZERO,
            ahead: Spend::ZERO,
            waiting: Spend::ZERO,
            is_tight: false,
            signals,
            known: AccountKnown::restored(SpendTotals { held: Spend::ZERO, ..restored }),
            short: None,
            drawn_at: None,
            answered_at: None,
            reset: false,
        }
    }

    /// A call of `account` has spent so much, and so much is still held.
    pub(super) fn spent(&mut self, account: &Arc<Account>, spent: Spend, held: Spend) {
        self.spent = self.spent.plus(spent);
        let idle = self.granted.minus(self.spent.plus(held));
        if self.is_tight && idle.minus(self.ahead) != Spend::ZERO {
            self.signals.ask(account);
        }
    }

    pub(super) const fn reset(&mut self) {
        self.reset = true;
        self.short = None;
    }

    /// What all have spent, where this process has spent `own`.
    pub(super) fn totals(&self, own: SpendTotals) -> SpendTotals {
        if self.known.since_ms == 0 {
            return own;
        }
        let since = self.spent.minus(self.known.reported);
        let SpendTotals { hour, day, month, held } = self.known.totals;
        let more = |spent: Spend| spent.plus(since);
        let held = held.max(own.held);
        SpendTotals { hour: more(hour), day: more(day), month: more(month), held }
    }

    /// What is to be reported now, and asked for by one of so many `nodes`; `ticked` where that is done for all accounts in
    /// turn.
    fn draw(
        &mut self,
        name: &SpendAccount,
        held: Spend,
        (ticked, nodes): (bool, u64),
        now: Instant,
    ) -> Option<AccountDraw> {
        if ticked {
            let used = self.taken.minus(self.taken_before);
            self.taken_before = self.taken;
            self.expected = expected(used, self.expected);
        }
        // As much for each of the others, twice: near the cap nobody has what another one needs.
        let idle = self.granted.minus(self.spent.plus(held));
        let share = |is_cost, idle: u64| self.left(is_cost).saturating_add(idle) / (2 * nodes);
        let most = Spend::new(share(false, idle.tokens), share(true, idle.cost));
        self.ahead = self.expected.min(most);
        self.is_tight = self.short.is_some() || self.ahead != self.expected;
        let under_way = self.spent.plus(held);
        let needed = under_way.plus(self.waiting);
        let wanted = needed.plus(self.ahead);
        // It is given back before anybody knows.
        let gives_back = self.granted.minus(wanted) != Spend::ZERO;
        self.granted = self.granted.min(wanted);
        let is_due = self.drawn_at.is_none_or(|at| now.saturating_duration_since(at) >= REFRESHED);
        let has_news = self.reset
            || gives_back
            || self.spent != self.known.reported
            || wanted.minus(self.granted) != Spend::ZERO;
        // By this a node also says that it still has what it was granted.
        let is_used = self.known.totals != SpendTotals::default();
        if !(has_news || is_used && is_due) {
            return None;
        }
        self.number += 1;
        self.drawn_at = Some(now);
        Some(AccountDraw {
            life: self.life,
            number: self.number,
            spent: self.spent,
            granted: self.granted,
            needed,
            wanted,
            known: self.known,
            reset: std::mem::take(&mut self.reset),
            ..AccountDraw::new(name.key(), self.caps)
        })
    }

    /// The state has answered `draw`.
    fn answer(&mut self, draw: &AccountDraw, grant: &AccountGrant, now: Instant) {
        if draw.number != self.number {
            return;
        }
        self.answered = draw.number;
        self.answered_at = Some(now);
        self.granted = grant.granted;
        self.known = AccountKnown::of(grant, draw.spent);
        self.short = grant.short.map(|short| (short, now));
    }

    /// What all nodes together leave of one unit of a cap, without what they have been granted.
    fn left(&self, is_cost: bool) -> u64 {
        let unit = |spend: Spend| if is_cost { spend.cost } else { spend.tokens };
        let left = SpendWindow::ALL.into_iter().filter_map(|window| {
            let cap = unit(self.caps.get(window));
            let used = unit(self.known.totals.spent(window).plus(self.known.totals.held));
            (cap > 0).then(|| cap.saturating_sub(used))
        });
        left.min().unwrap_or(u64::MAX)
    }
}

/// What will be held until the next report but one, by what was since the last: half as much when nothing was, until it is less
/// than a hundredth of what it was at first.
fn expected(used: Spend, before: Spend) -> Spend {
    let unit = |used: u64, before: u64| {
        let faded = before / 2;
        let faded = if faded < 1_000 { 0 } else { faded };
        used.saturating_add(used / 2).max(faded)
    };
    Spend::new(unit(used.tokens, before.tokens), unit(used.cost, before.cost))
}

impl SpendFleet {
    /// Holds `most` in addition to what `account` holds, by what this process has been granted.
    pub(super) fn hold(
        &self,
        account: &Arc<Account>,
        caps: &SpendCaps,
        most: Spend,
        now: Instant,
    ) -> Result<(), SpendRefusal> {
        let unix = account.clock.unix(now);
        let mut state = account.state.lock();
        let own = state.own_totals(unix);
        let held = state.held;
        let shared = state
            .shared
            .get_or_insert_with(|| Box::new(SharedAccount::new(*caps, own, self.signals.clone())));
        shared.caps = *caps;
        let under_way = shared.spent.plus(held);
        let silent = shared.answered_at.map(|at| now.saturating_duration_since(at));
        if silent.is_some_and(|silent| silent >= VOID) {
            shared.granted = shared.granted.min(under_way);
        }
        let over = under_way.plus(most).minus(shared.granted);
        let missing = capped(over, caps);
        if missing != Spend::ZERO && !self.may_overdraw(shared, account, over, most) {
            let idle = shared.granted.minus(under_way);
            return Err(self.refusal(shared, account, (most, idle), now));
        }
        shared.taken = shared.taken.plus(most);
        let rest = shared.granted.minus(under_way.plus(most));
        let is_low = capped(shared.ahead.minus(rest.plus(rest)), caps) != Spend::ZERO;
        let is_soon = shared.drawn_at.is_some_and(|at| now.saturating_duration_since(at) < SHORT);
        if missing != Spend::ZERO || (is_low && !is_soon) {
            self.signals.ask(account);
        }
        state.held = state.held.plus(most);
        Ok(())
    }

    /// Whether a call may be made for which `over` more is needed than was granted.
    fn may_overdraw(
        &self,
        shared: &SharedAccount,
        account: &Account,
        over: Spend,
        most: Spend,
    ) -> bool {
        if self.sharing == CapSharing::Strict {
            return false;
        }
        let nodes = self.state.nodes().max(1) as u64;
        [(false, over.tokens, most.tokens), (true, over.cost, most.cost)].into_iter().all(
            |(is_cost, over, most)| {
                let left = shared.left(is_cost);
                if left == u64::MAX {
                    return true;
                }
                if self.state.is_away() {
                    return over <= self.part(&account.name, left, most, nodes);
                }
                let lease = if is_cost { shared.ahead.cost } else { shared.ahead.tokens };
                // Nothing is known before the first answer, which comes within milliseconds.
                let left = if shared.answered == 0 { left / nodes } else { left };
                over <= left.min(lease.max(most))
            },
        )
    }

    /// This process' part of what is `left`, without the state. Where that is too little for a call of each, some of them have
    /// it, chosen by the account.
    fn part(&self, account: &SpendAccount, left: u64, most: u64, nodes: u64) -> u64 {
        let holders = (left / most.max(1)).clamp(1, nodes);
        if holders == nodes {
            return left / nodes;
        }
        let key = account.key();
        let rank = |node: &str| FixedState::default().hash_one((node, &key));
        let own = rank(self.state.node());
        let fleet = self.state.fleet();
        let before = fleet.nodes.iter().filter(|node| rank(&node.name) > own).count() as u64;
        // Of nodes that are not known by name, nobody knows who has it: then nobody has.
        if fleet.nodes.len() as u64 >= nodes && before < holders { left / holders } else { 0 }
    }

    fn refusal(
        &self,
        shared: &SharedAccount,
        account: &Account,
        (most, idle): (Spend, Spend),
        now: Instant,
    ) -> SpendRefusal {
        let (is_strict, is_away) = (self.sharing == CapSharing::Strict, self.state.is_away());
        let short = shared.short.filter(|(_, at)| now.saturating_duration_since(*at) < SHORT);
        let units = |is_cost: bool, spend: Spend| if is_cost { spend.cost } else { spend.tokens };
        let all = SpendWindow::ALL.into_iter().flat_map(|window| [(window, false), (window, true)]);
        let capped = all.filter(|(window, is_cost)| units(*is_cost, shared.caps.get(*window)) > 0);
        // What is granted to this process and idle is not used.
        let held = shared.known.totals.held.minus(idle);
        let used = |window, is_cost| units(is_cost, shared.known.totals.spent(window).plus(held));
        let missing = |(window, is_cost): &(SpendWindow, bool)| {
            let cap = units(*is_cost, shared.caps.get(*window));
            used(*window, *is_cost).saturating_add(units(*is_cost, most)).saturating_sub(cap)
        };
        let by_answer = short.map(|(short, _)| (short.window, short.is_cost));
        let (window, is_cost) =
            by_answer.or_else(|| capped.max_by_key(missing)).unwrap_or((SpendWindow::Hour, false));
        let cap = units(is_cost, shared.caps.get(window));
        let requested = units(is_cost, most);
        let frees = short.and_then(|(short, _)| short.frees_in).unwrap_or(UNDER_WAY);
        SpendRefusal {
            account: account.name.clone(),
            window,
            is_cost,
            cap,
            used: used(window, is_cost),
            requested,
            frees_in: (requested <= cap).then_some(frees),
            unasked: !is_away && short.is_none(),
            away: is_strict && is_away,
        }
    }
}

/// As much of `spend` as counts under `caps`.
fn capped(spend: Spend, caps: &SpendCaps) -> Spend {
    let has_cap = |unit: fn(Spend) -> u64| {
        SpendWindow::ALL.into_iter().any(|window| unit(caps.get(window)) > 0)
    };
    Spend::new(
        if has_cap(|spend| spend.tokens) { spend.tokens } else { 0 },
        if has_cap(|spend| spend.cost) { spend.cost } else { 0 },
    )
}

impl SpendAccount {
    /// Its name in the state that processes share.
    fn key(&self) -> String {
        match self {
            Self::Tenant(name) => format!("tenant:{name}"),
            Self::Key(name) => format!("key:{name}"),
            Self::Summaries(name) => format!("summaries:{name}"),
        }
    }
}

impl SpendLedger {
    /// Shares the accounts that have caps with other processes: a cap holds for all of them together. Once, from inside a
    /// tokio runtime; further calls change nothing. Whether it was not shared before.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn share(&self, state: Arc<dyn SharedState>, sharing: CapSharing) -> bool {
        if self.is_shared() {
            return false;
        }
        let signals = Arc::<Signals>::default();
        let drawing =
            SharedTask::spawn(draw(Arc::downgrade(&self.0), state.clone(), signals.clone()));
        self.0.fleet.set(SpendFleet { state, sharing, signals, _drawing: drawing }).is_ok()
    }

    /// Whether other processes spend from its accounts.
    pub fn is_shared(&self) -> bool {
        self.0.fleet.get().is_some()
    }

    /// What this process has been granted of the accounts that it shares and has not spent, in their order.
    pub fn grants(&self) -> Vec<SpendGrant> {
        let granted = |(account, known): (SpendAccount, Arc<Account>)| {
            let state = known.state.lock();
            let shared = state.shared.as_ref()?;
            let granted = shared.granted.minus(shared.spent);
            let is_cost = capped(Spend::new(0, 1), &shared.caps) != Spend::ZERO;
            let is_open = capped(granted.plus(state.held), &shared.caps) != Spend::ZERO;
            is_open.then(|| SpendGrant { account, is_cost, granted, held: state.held })
        };
        let mut all: Vec<_> = self.0.keyed.entries().into_iter().filter_map(granted).collect();
        all.sort_by_cached_key(|one| one.account.to_string());
        all
    }

    /// Asks the state that several processes share for what a call needs that may spend `most` in each of `accounts`: after
    /// a refusal which is [`unasked`](SpendRefusal::unasked). Ready once it has answered, or after 20 ms; then
    /// the call reserves again.
    pub fn lease(
        &self,
        accounts: impl IntoIterator<Item = (SpendAccount, SpendCaps)>,
        most: Spend,
    ) -> SpendLease {
        let now = Instant::now();
        let accounts = accounts.into_iter().map(|(name, caps)| (self.account(&name, now), caps));
        SpendLease::new(self, accounts.collect(), most)
    }
}

/// Reports and asks, again and again, as long as somebody has the ledger.
async fn draw(ledger: Weak<Accounts>, state: Arc<dyn SharedState>, signals: Arc<Signals>) {
    let mut next = Instant::now() + EVERY;
    loop {
        let _ = timeout_at(next, signals.wake.notified()).await;
        let ticked = Instant::now() >= next;
        if ticked {
            next = Instant::now() + EVERY;
        }
        let urgent = std::mem::take(&mut *signals.urgent.lock());
        let accounts = match ticked {
            false => urgent,
            true => {
                let Some(ledger) = ledger.upgrade() else { return };
                ledger.keyed.entries().into_iter().map(|(_, account)| account).collect()
            }
        };
        let (now, nodes) = (Instant::now(), state.nodes().max(1) as u64);
        let due = accounts.into_iter().filter_map(|account| {
            let draw = account.draw((ticked, nodes), now)?;
            Some((account, draw))
        });
        let due: Vec<_> = due.collect();
        for due in due.chunks(BATCH) {
            let draws = due.iter().map(|(_, draw)| draw.clone()).collect();
            let grants = state.draw(draws).await.unwrap_or_default();
            let now = Instant::now();
            for ((account, draw), grant) in due.iter().zip(grants) {
                if let Some(shared) = &mut account.state.lock().shared {
                    shared.answer(draw, &grant, now);
                }
            }
        }
        signals.answered.notify_waiters();
    }
}

impl Account {
    fn draw(&self, turn: (bool, u64), now: Instant) -> Option<AccountDraw> {
        let AccountState { held, shared, .. } = &mut *self.state.lock();
        shared.as_mut()?.draw(&self.name, *held, turn, now)
    }

    fn with_shared<R>(&self, with: impl FnOnce(&mut SharedAccount) -> R) -> Option<R> {
        self.state.lock().shared.as_mut().map(|shared| with(shared))
    }
}

/// Waits for the state that several processes share: see [`SpendLedger::lease`]. Dropping it asks for nothing more.
#[must_use = "futures do nothing unless polled"]
pub struct SpendLease {
    /// Each with the draw that has to be answered.
    accounts: Vec<(Arc<Account>, u64)>,
    most: Spend,
    signals: Option<Arc<Signals>>,
    answered: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    limit: Pin<Box<Sleep>>,
}

impl SpendLease {
    pub(super) fn new(
        ledger: &SpendLedger,
        accounts: Vec<(Arc<Account>, SpendCaps)>,
        most: Spend,
    ) -> Self {
        let signals = ledger.0.fleet.get().map(|fleet| fleet.signals.clone());
        let asked = accounts.into_iter().filter_map(|(account, _)| {
            let number = account.with_shared(|shared| {
                shared.waiting = shared.waiting.plus(most);
                shared.number + 1
            })?;
            if let Some(signals) = &signals {
                signals.ask(&account);
            }
            Some((account, number))
        });
        let accounts = asked.collect();
        Self { accounts, most, signals, answered: None, limit: Box::pin(sleep(PATIENCE)) }
    }

    fn is_answered(&self) -> bool {
        let is_answered = |(account, number): &(Arc<Account>, u64)| {
            account.with_shared(|shared| shared.answered >= *number).unwrap_or(true)
        };
        self.accounts.iter().all(is_answered)
    }
}

impl Future for SpendLease {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let Some(signals) = &this.signals else { return Poll::Ready(()) };
        loop {
            // Before the accounts are read, or an answer between would be missed.
            let answered = this.answered.get_or_insert_with(|| {
                let signals = signals.clone();
                Box::pin(async move { signals.answered.notified().await })
            });
            let notified = answered.as_mut().poll(cx);
            if this.is_answered() || this.limit.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            ready!(notified);
            this.answered = None;
        }
    }
}

impl Drop for SpendLease {
    fn drop(&mut self) {
        for (account, _) in &self.accounts {
            account.with_shared(|shared| shared.waiting = shared.waiting.minus(self.most));
        }
    }
}

impl fmt::Debug for SpendLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpendLease").field("most", &self.most).finish_non_exhaustive()
    }
}
