//! The shared state, as a node has it.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use redis::cmd;
use steadfast_core::{
    shared::{
        AccountDraw, AccountGrant, Claim, FactListener, Fleet, KEPT, LEASED_FOR, News, NodeReport,
        SharedFuture, SharedState, StoreAway, WantedShare,
    },
    time::{WallClock, millis},
};
use tokio::{runtime::Handle, time::timeout};

use crate::{
    AwayCause, RedisConfig, RedisConfigError, account, driver, endpoint::Endpoint,
    local::LocalState, outbox::Write, scripts,
};

/// What is kept for longer than this is kept for this long: the store's times are bounded, and nothing stays for ever.
const LONGEST_MS: u64 = 366 * 24 * 3_600 * 1_000;

/// How long an account is kept that nobody draws from: somewhat longer than the longest window of a cap.
const ACCOUNT_MS: u64 = 31 * 24 * 3_600 * 1_000;

/// The state that the nodes of a fleet share over Redis or Valkey. Cheap to clone; the node leaves when the last clone is
/// dropped.
#[derive(Clone)]
pub struct RedisState(Arc<Membership>);

/// As long as this lives, the node is one of the fleet's.
struct Membership(Arc<LocalState>);

impl RedisState {
    /// A node of the fleet that `config` says. It waits for nothing: the store is [away](SharedState::is_away) until it
    /// has been reached, and whenever it can not be, and a task of the runtime goes on trying.
    ///
    /// # Errors
    ///
    /// When the configuration can not be used, or there is no tokio runtime.
    pub fn connect(config: RedisConfig) -> Result<Self, RedisConfigError> {
        config.check()?;
        let runtime = Handle::try_current().map_err(|_| RedisConfigError::NoRuntime)?;
        let endpoint = Endpoint::new(&config)?;
        let local = Arc::new(LocalState::new(config, &endpoint));
        runtime.spawn(driver::drive(local.clone(), endpoint));
        Ok(Self(Arc::new(Membership(local))))
    }

    /// Why the store is away; `None` when it is not.
    pub fn away(&self) -> Option<AwayCause> {
        self.local().away()
    }

    /// How many values were [put](SharedState::put) and lost, since the store was away or behind.
    pub fn dropped(&self) -> u64 {
        self.local().with_outbox(|outbox| outbox.dropped())
    }

    fn local(&self) -> &Arc<LocalState> {
        &self.0.0
    }
}

impl SharedState for RedisState {
    fn node(&self) -> &str {
        self.local().board.node()
    }

    fn clock(&self) -> WallClock {
        self.local().clock()
    }

    fn is_away(&self) -> bool {
        self.local().is_away()
    }

    fn nodes(&self) -> usize {
        self.local().nodes()
    }

    fn publish(&self, kind: &'static str, key: &str, news: News) {
        self.local().publish(kind, key, news);
    }

    fn subscribe(&self, kind: &'static str) -> FactListener {
        self.local().board.subscribe(kind)
    }

    fn get<'a>(&'a self, space: &'static str, key: &'a str) -> SharedFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            let local = self.local();
            let mut connection = local.connection().ok_or(StoreAway)?;
            let mut get = cmd("GET");
            get.arg(local.keys.value(space, key));
            let value = get.query_async::<Option<Bytes>>(&mut connection);
            match timeout(local.config.read_timeout, value).await {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(_)) | Err(_) => {
                    // The next ones need not wait for it if it is gone.
                    local.doubt.notify_one();
                    Err(StoreAway)
                }
            }
        })
    }

    fn put(&self, space: &'static str, key: &str, value: Bytes, lasts: Duration) {
        let key = self.local().keys.value(space, key);
        self.local().write(Write::Put { key, value, lasts_ms: bounded(lasts) });
    }

    fn lease(&self, wanted: Vec<WantedShare>) -> SharedFuture<'_, Vec<u32>> {
        Box::pin(async move {
            let local = self.local();
            let mut connection = local.connection().ok_or(StoreAway)?;
            let mut lease = scripts::LEASE.prepare_invoke();
            for WantedShare { key, .. } in &wanted {
                lease.key(local.keys.share(key));
            }
            lease.arg(self.node()).arg(millis(LEASED_FOR));
            for WantedShare { ppm, .. } in &wanted {
                lease.arg(*ppm);
            }
            let granted = lease.invoke_async::<Vec<u32>>(&mut connection);
            match timeout(local.config.answer_timeout, granted).await {
                Ok(Ok(granted)) => Ok(granted),
                Ok(Err(_)) | Err(_) => {
                    local.doubt.notify_one();
                    Err(StoreAway)
                }
            }
        })
    }

    fn draw(&self, draws: Vec<AccountDraw>) -> SharedFuture<'_, Vec<AccountGrant>> {
        Box::pin(async move {
            let local = self.local();
            let mut connection = local.connection().ok_or(StoreAway)?;
            let mut script = scripts::DRAW.prepare_invoke();
            script.arg(self.node()).arg(millis(KEPT)).arg(ACCOUNT_MS);
            for draw in &draws {
                script.key(local.keys.account(&draw.key)).key(local.keys.spenders(&draw.key));
                for number in account::numbers(draw) {
                    script.arg(number);
                }
            }
            let answers = script.invoke_async::<Vec<Vec<i64>>>(&mut connection);
            match timeout(local.config.answer_timeout, answers).await {
                Ok(Ok(answers)) => {
                    let grants: Option<_> = answers.iter().map(|row| account::grant(row)).collect();
                    grants.ok_or(StoreAway)
                }
                Ok(Err(_)) | Err(_) => {
                    local.doubt.notify_one();
                    Err(StoreAway)
                }
            }
        })
    }

    fn claim<'a>(&'a self, key: &'a str, lasts: Duration) -> SharedFuture<'a, Option<Claim>> {
        Box::pin(async move {
            let local = self.local();
            let mut connection = local.connection().ok_or(StoreAway)?;
            let mut claim = scripts::CLAIM.key(local.keys.claim(key));
            claim.key(local.keys.token()).arg(bounded(lasts));
            let token = claim.invoke_async::<Option<u64>>(&mut connection);
            match timeout(local.config.answer_timeout, token).await {
                Ok(Ok(token)) => Ok(token.map(|token| Claim::new(key, token))),
                Ok(Err(_)) | Err(_) => {
                    local.doubt.notify_one();
                    Err(StoreAway)
                }
            }
        })
    }

    fn release(&self, claim: &Claim) {
        let key = self.local().keys.claim(&claim.key);
        self.local().write(Write::Release { key, token: claim.token });
    }

    fn describe(&self, report: NodeReport) {
        self.local().describe(report);
    }

    fn fleet(&self) -> Fleet {
        self.local().fleet()
    }
}

impl fmt::Debug for RedisState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisState")
            .field("node", &self.node())
            .field("away", &self.away())
            .finish_non_exhaustive()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.closing.notify_one();
    }
}

/// As the store takes times, which are never nothing.
fn bounded(lasts: Duration) -> u64 {
    millis(lasts).clamp(1, LONGEST_MS)
}
