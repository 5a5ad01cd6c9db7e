//! What a node does while it is connected.

use std::{
    collections::{BTreeSet, HashMap},
    sync::atomic::Ordering,
    time::Duration,
};

use foldhash::fast::RandomState;
use redis::{RedisResult, cmd, pipe};
use steadfast_core::{
    shared::{FactRow, NodeReport},
    time::millis,
};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::{
    AwayCause,
    clock::StoreClock,
    connection::{Connection, within},
    driver::{BEAT, OWNER, SILENCE},
    keys,
    local::{LocalState, StoredFact, local_time},
    outbox::Write,
    scripts,
};

/// Facts that one script writes. Others wait for it, a fraction of a millisecond.
const BATCH: usize = 128;

/// Facts that are read at once.
const PAGE: usize = 512;

/// A beat out of turn comes no sooner after another one.
const SOONEST: Duration = Duration::from_millis(100);

/// One connection, from its beginning to its end.
pub(crate) struct Session<'a> {
    local: &'a LocalState,
    connection: Connection,
    clock: StoreClock,
    /// The kinds of facts that there are.
    kinds: BTreeSet<String>,
    last_beat: Instant,
}

/// What a beat answers: the owner, the store's time in seconds and microseconds, whether the node was known, the nodes,
/// when each was heard of, what each shows, and the kinds.
type Beat = (String, u64, u64, u8, Vec<String>, Vec<u64>, Vec<String>, Vec<String>);

impl<'a> Session<'a> {
    /// Joins the fleet, and catches up with it.
    pub(crate) async fn join(
        local: &'a LocalState,
        connection: Connection,
    ) -> Result<Self, AwayCause> {
        let mut session = Self {
            local,
            connection,
            clock: StoreClock::default(),
            kinds: BTreeSet::new(),
            last_beat: Instant::now(),
        };
        // Or the first beat would take longer than its way, by which the clocks are compared.
        let limit = local.config.answer_timeout;
        within(limit, scripts::BEAT.load_async(&mut session.connection)).await?;
        session.exchange_beat().await?;
        let waited = session.catch_up().await?;
        let waited = waited + local.with_outbox(|outbox| outbox.len());
        local.come_back(session.connection.clone(), waited);
        Ok(session)
    }

    /// Goes on until the store is away; why it is.
    pub(crate) async fn serve(mut self) -> AwayCause {
        let mut beat = interval_at(Instant::now() + BEAT, BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // What came while it caught up.
        self.local.wake.notify_one();
        loop {
            let done = tokio::select! {
                _ = beat.tick() => self.beat().await,
                () = self.local.doubt.notified() => {
                    beat.reset_at(self.last_beat + SOONEST);
                    Ok(())
                }
                () = self.local.wake.notified() => self.flush().await,
            };
            if let Err(cause) = done {
                return cause;
            }
        }
    }

    /// Says that this node lives, and reads again what the store has when either has missed something.
    async fn beat(&mut self) -> Result<(), AwayCause> {
        let is_known = self.exchange_beat().await?;
        let has_missed = self.local.may_have_missed.load(Ordering::Relaxed);
        if !is_known || has_missed {
            self.catch_up().await?;
        }
        self.local.board.expire(self.local.clock().unix_ms());
        Ok(())
    }

    /// Whether the store has known this node.
    async fn exchange_beat(&mut self) -> Result<bool, AwayCause> {
        let LocalState { config, keys, board, .. } = self.local;
        let report = serde_json::to_string(&self.local.report()).unwrap_or_default();
        let mut beat = scripts::BEAT.key(keys.owner());
        beat.key(keys.heard()).key(keys.nodes()).key(keys.kinds());
        for kind in &self.kinds {
            beat.key(keys.facts(kind)).key(keys.ends(kind));
        }
        beat.arg(&config.fleet).arg(board.node()).arg(report);
        beat.arg(millis(OWNER)).arg(millis(SILENCE));

        let sent = Instant::now();
        let answer = beat.invoke_async::<Beat>(&mut self.connection);
        let answer = within(config.answer_timeout, answer).await?;
        let received = Instant::now();
        self.last_beat = received;
        let (owner, seconds, micros, known, nodes, heard, reports, kinds) = answer;
        if owner != config.fleet {
            return Err(AwayCause::OtherFleet {
                prefix: config.prefix.as_str().into(),
                owner: owner.into(),
                fleet: config.fleet.as_str().into(),
            });
        }
        let store = Duration::from_secs(seconds) + Duration::from_micros(micros);
        let ahead = self.clock.observe(local_time(sent), local_time(received), store);
        self.local.set_ahead(ahead);
        let nodes = nodes.into_iter().zip(heard).zip(reports);
        self.local.meet(nodes.map(|((name, heard), report)| node(name, heard, &report)).collect());
        self.kinds = kinds.into_iter().collect();
        Ok(known > 0)
    }

    /// Reads all facts, and writes those of this node that the store lacks; how many.
    async fn catch_up(&mut self) -> Result<usize, AwayCause> {
        let LocalState { config, keys, .. } = self.local;
        self.local.may_have_missed.store(false, Ordering::Relaxed);
        // What is announced from here on is heard, and what was before is read, of kinds that are new since the last
        // beat, too. A cluster's connection that was made again may not be subscribed yet.
        within(config.answer_timeout, self.connection.subscribe(&keys.events())).await?;
        let mut members = cmd("SMEMBERS");
        members.arg(keys.kinds());
        let kinds = members.query_async::<Vec<String>>(&mut self.connection);
        self.kinds.extend(within(config.answer_timeout, kinds).await?);
        // All that wait are on the board, too.
        self.local.with_outbox(|outbox| outbox.take_facts());
        let mut stored = HashMap::<(Box<str>, Box<str>), u64, RandomState>::default();
        for kind in self.kinds.clone() {
            for row in self.read_facts(&kind).await? {
                stored.insert((row.kind, row.key), row.fact.number);
            }
        }
        let now_ms = self.local.clock().unix_ms();
        let mut missing = self.local.board.own();
        missing.retain(|row| {
            let number = stored.get(&(row.kind.clone(), row.key.clone()));
            row.fact.ends_ms() > now_ms && number.is_none_or(|number| *number < row.fact.number)
        });
        let count = missing.len();
        self.write_facts(missing).await?;
        Ok(count)
    }

    /// Reads the facts of one kind; those of this node are returned.
    async fn read_facts(&mut self, kind: &str) -> Result<Vec<FactRow>, AwayCause> {
        let key = self.local.keys.facts(kind);
        let mut own = Vec::new();
        let mut cursor = 0_u64;
        loop {
            let mut scan = cmd("HSCAN");
            scan.arg(&key).arg(cursor).arg("COUNT").arg(PAGE);
            let page = scan.query_async::<(u64, Vec<Vec<u8>>)>(&mut self.connection);
            let (next, page) = within(self.local.config.answer_timeout, page).await?;
            let stored = page.chunks_exact(2).map(|pair| &pair[1]);
            own.extend(stored.filter_map(|stored| self.local.read_or_own(stored)));
            cursor = next;
            if cursor == 0 {
                return Ok(own);
            }
        }
    }

    /// Writes what waits.
    async fn flush(&mut self) -> Result<(), AwayCause> {
        let facts = self.local.with_outbox(|outbox| outbox.take_facts());
        match facts {
            Some(facts) => self.write_facts(facts).await?,
            None => _ = self.catch_up().await?,
        }
        write_waiting(self.local, &mut self.connection).await
    }

    async fn write_facts(&mut self, facts: Vec<FactRow>) -> Result<(), AwayCause> {
        let LocalState { config, keys, .. } = self.local;
        let mut kinds = HashMap::<Box<str>, Vec<FactRow>, RandomState>::default();
        for row in facts {
            kinds.entry(row.kind.clone()).or_default().push(row);
        }
        for (kind, rows) in kinds {
            for rows in rows.chunks(BATCH) {
                let mut publish = scripts::PUBLISH.key(keys.kinds());
                publish.key(keys.facts(&kind)).key(keys.ends(&kind));
                publish.arg(keys.events()).arg(&*kind);
                for row in rows {
                    // Nothing in it can not be written.
                    let fact = StoredFact::from(row.clone());
                    let Ok(json) = serde_json::to_vec(&fact) else { continue };
                    publish.arg(keys::field(&row.key, &row.node));
                    publish.arg(row.fact.number).arg(row.fact.ends_ms()).arg(json);
                }
                let published = publish.invoke_async::<()>(&mut self.connection);
                within(config.answer_timeout, published).await?;
            }
            self.kinds.insert(kind.into());
        }
        Ok(())
    }
}

/// Writes the values and releases that wait.
async fn write_waiting(local: &LocalState, connection: &mut Connection) -> Result<(), AwayCause> {
    let limit = local.config.answer_timeout;
    loop {
        let writes = local.with_outbox(|outbox| outbox.take_writes(BATCH));
        if writes.is_empty() {
            return Ok(());
        }
        let mut puts = pipe();
        for write in writes {
            match write {
                Write::Put { key, value, lasts_ms } => {
                    puts.cmd("SET").arg(key).arg(&value[..]).arg("PX").arg(lasts_ms).ignore();
                }
                Write::Release { key, token } => {
                    let mut release = scripts::RELEASE.key(key);
                    let released = release.arg(token).invoke_async::<()>(connection);
                    within(limit, released).await?;
                }
            }
        }
        if !puts.is_empty() {
            within(limit, puts.query_async::<()>(connection)).await?;
        }
    }
}

/// Writes what waits, and leaves the fleet.
pub(crate) async fn leave(local: &LocalState) -> RedisResult<()> {
    let Some(mut connection) = local.connection() else { return Ok(()) };
    // It is about to be dropped, whatever comes of it.
    let _ = write_waiting(local, &mut connection).await;
    let node = local.board.node();
    let mut leave = pipe();
    leave.cmd("ZREM").arg(local.keys.heard()).arg(node).ignore();
    leave.cmd("HDEL").arg(local.keys.nodes()).arg(node).ignore();
    leave.query_async::<()>(&mut connection).await
}

/// What a node shows of itself; of one of a version to come, its name.
fn node(name: String, heard_ms: u64, report: &str) -> NodeReport {
    let mut node = serde_json::from_str::<NodeReport>(report).unwrap_or_default();
    node.name = name;
    node.heard_ms = heard_ms;
    node
}
