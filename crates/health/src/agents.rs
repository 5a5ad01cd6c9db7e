//! Whose calls have failed.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, Hash, Hasher},
    sync::LazyLock,
    time::Duration,
};

use foldhash::quality::RandomState;
use smallvec::SmallVec;
use steadfast_core::{Call, Witness};
use tokio::time::Instant;

/// Agents remembered of one provider. A policy requires far fewer, and beyond this many failing ones nobody
/// needs to know which.
pub(crate) const MAX_AGENTS: usize = 64;

/// Who makes a call, as a hash: its agent, else its session, else its tenant, each of its tenant. A call without
/// any of them is one of its own, or of those with the same [witness](Witness).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AgentKey(
    /// 0: the call itself.
    u64,
);

impl AgentKey {
    /// Nobody is known: each call is by itself.
    pub const UNKNOWN: Self = Self(0);

    /// Whoever checks a provider without a call of anybody's: one agent, however often it checks.
    pub(crate) fn checker() -> Self {
        Self::hash(5, None, &())
    }

    /// The agent of this name.
    pub fn named(name: &str) -> Self {
        Self::hash(4, None, &name)
    }

    /// Who makes the call of `request`.
    pub fn of<Req: Call>(request: &Req) -> Self {
        let context = request.context();
        let tenant = context.tenant();
        if let Some(agent) = context.agent() {
            Self::hash(0, tenant, &agent)
        } else if let Some(session) = context.session() {
            Self::hash(1, tenant, &session)
        } else if tenant.is_some() {
            Self::hash(2, tenant, &())
        } else {
            let witness = match context.witness.is_known() {
                true => context.witness,
                false => Witness::new(context, request.prompt_digest()),
            };
            if witness.is_known() { Self::hash(3, None, &witness) } else { Self::UNKNOWN }
        }
    }

    fn hash(kind: u8, tenant: Option<&str>, name: &impl Hash) -> Self {
        /// Random, so that nobody can make two callers look the same.
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        let mut hasher = SEED.build_hasher();
        (kind, tenant).hash(&mut hasher);
        name.hash(&mut hasher);
        Self(hasher.finish().max(1))
    }

    /// In two halves, as a permit carries it.
    pub(crate) const fn halves(self) -> [u32; 2] {
        [(self.0 >> 32) as u32, self.0 as u32]
    }

    pub(crate) const fn from_halves([high, low]: [u32; 2]) -> Self {
        Self(((high as u64) << 32) | low as u64)
    }
}

/// The agents whose calls have ended lately.
#[derive(Clone, Debug)]
pub(crate) struct Agents {
    /// The longest silent first: in the order in which their last calls have ended.
    entries: VecDeque<AgentEntry>,
}

#[derive(Clone, Debug)]
struct AgentEntry {
    agent: Caller,
    last_failure: Option<Instant>,
    /// Failures in a row, each with the position of its call, the newest last.
    row: SmallVec<[(u64, Instant); 3]>,
    /// The latest call that succeeded.
    succeeded: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    Known(AgentKey),
    /// The call at this position in the order of calls.
    Call(u64),
}

impl Caller {
    fn of(agent: AgentKey, order: u64) -> Self {
        if agent == AgentKey::UNKNOWN { Self::Call(order) } else { Self::Known(agent) }
    }
}

impl Agents {
    /// With all the memory that it will ever need.
    pub(crate) fn new() -> Self {
        Self { entries: VecDeque::with_capacity(MAX_AGENTS) }
    }

    /// The call of `agent` that began as the `order`th has failed; the failures in a row that it is part of,
    /// among the last `keep` of them within the window.
    pub(crate) fn fail(
        &mut self,
        agent: AgentKey,
        order: u64,
        now: Instant,
        (window, keep): (Duration, u32),
    ) -> u32 {
        let entry = self.entry(Caller::of(agent, order), now, window);
        entry.last_failure = Some(now);
        // Something that the agent asked later has succeeded.
        if order < entry.succeeded {
            return 0;
        }
        entry.row.retain(|(_, at)| is_recent(*at, now, window));
        // No more than are asked for, so that the row never grows beyond its room.
        if entry.row.len() >= keep as usize {
            entry.row.remove(0);
        }
        entry.row.push((order, now));
        u32::try_from(entry.row.len()).unwrap_or(u32::MAX)
    }

    /// The call of `agent` that began as the `order`th has succeeded: the failures of those before it are no row
    /// any more.
    pub(crate) fn succeed(&mut self, agent: AgentKey, order: u64, now: Instant, window: Duration) {
        // A call by itself is over with that.
        if agent == AgentKey::UNKNOWN {
            return;
        }
        let entry = self.entry(Caller::Known(agent), now, window);
        entry.succeeded = entry.succeeded.max(order);
        entry.row.retain(|(failed, _)| *failed > order);
    }

    /// How many agents' calls have failed within the window.
    pub(crate) fn failing(&self, now: Instant, window: Duration) -> u32 {
        let failing = self.entries.iter().filter(|entry| entry.is_failing(now, window)).count();
        u32::try_from(failing).unwrap_or(u32::MAX)
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    fn entry(&mut self, agent: Caller, now: Instant, window: Duration) -> &mut AgentEntry {
        let known = self.entries.iter().position(|entry| entry.agent == agent);
        let entry = known.and_then(|at| self.entries.remove(at)).unwrap_or_else(|| {
            if self.entries.len() >= MAX_AGENTS {
                self.evict(now, window);
            }
            AgentEntry { agent, last_failure: None, row: SmallVec::new(), succeeded: 0 }
        });
        let at = self.entries.len();
        self.entries.push_back(entry);
        &mut self.entries[at]
    }

    /// Forgets one: of those that do not fail, else of all, the longest silent.
    fn evict(&mut self, now: Instant, window: Duration) {
        let silent = self.entries.iter().position(|entry| !entry.is_failing(now, window));
        self.entries.remove(silent.unwrap_or(0));
    }
}

impl AgentEntry {
    fn is_failing(&self, now: Instant, window: Duration) -> bool {
        self.last_failure.is_some_and(|at| is_recent(at, now, window))
    }
}

/// A failure counts for as long as the window is, and not at its very end any more.
fn is_recent(at: Instant, now: Instant, window: Duration) -> bool {
    now.saturating_duration_since(at) < window
}

#[cfg(test)]
mod tests {
    use steadfast_core::{CallContext, WithContext};

    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    fn key(change: impl FnOnce(CallContext) -> CallContext) -> AgentKey {
        let mut request = WithContext::new(());
        *request.context_mut() = change(CallContext::new());
        AgentKey::of(&request)
    }

    #[test]
    fn an_agent_is_the_agent_else_the_session_else_the_tenant() {
        let base = |context: CallContext| context.with_tenant("acme").with_agent("a");
        assert_eq!(key(base), key(|context| base(context).with_session("s")), "not the session");
        assert_ne!(key(base), key(|context| base(context).with_agent("b")));
        assert_ne!(key(base), key(|context| base(context).with_tenant("umbrella")));
        let session = |context: CallContext| context.with_tenant("acme").with_session("s");
        assert_ne!(key(session), key(|context| session(context).with_session("t")));
        assert_ne!(key(session), key(|context| context.with_tenant("acme").with_agent("s")));
        assert_eq!(
            key(|context| context.with_tenant("acme")),
            key(|context| context.with_tenant("acme").with_task("t"))
        );
        assert_eq!(key(|context| context), AgentKey::UNKNOWN);
        let witness = Witness::new(&CallContext::new(), Some(7));
        let of = |witness| {
            key(|mut context| {
                context.witness = witness;
                context
            })
        };
        assert_eq!(of(witness), of(witness), "one prompt is one caller");
        assert_ne!(of(witness), of(Witness::new(&CallContext::new(), Some(8))));
        let agent = key(base);
        assert_eq!(AgentKey::from_halves(agent.halves()), agent);
    }

    #[test]
    fn a_flood_of_others_evicts_no_agent_that_fails() {
        let (mut agents, start) = (Agents::new(), Instant::now());
        let named = |number: u64| AgentKey::named(&number.to_string());
        agents.fail(named(0), 1, start, (WINDOW, 3));
        for order in 2..2_000 {
            agents.succeed(named(order), order, start + Duration::from_secs(1), WINDOW);
        }
        assert_eq!(agents.failing(start + Duration::from_secs(2), WINDOW), 1);
        for order in 2_000..4_000 {
            agents.fail(AgentKey::UNKNOWN, order, start + Duration::from_secs(2), (WINDOW, 3));
        }
        assert_eq!(agents.entries.len(), MAX_AGENTS);
        assert_eq!(agents.entries.capacity(), MAX_AGENTS, "it never grew");
        assert_eq!(agents.failing(start + Duration::from_secs(2), WINDOW), MAX_AGENTS as u32);
        assert_eq!(agents.failing(start + Duration::from_secs(62), WINDOW), 0);
    }
}
