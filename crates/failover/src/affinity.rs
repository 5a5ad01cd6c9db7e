//! Which target a conversation is at.

use std::{hash::BuildHasher, sync::Arc, time::Duration};

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use steadfast_core::{CallContext, Keep, Keyed, Target, time::later};
use tokio::time::Instant;

use crate::service::FailoverState;

/// The conversation of one call, and which target it was at when the call came.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    key: SessionKey,
    /// `None` while nobody has answered it.
    pub(crate) affinity: Option<Affinity>,
    failover: Arc<FailoverState>,
}

impl Session {
    /// The conversation `context` is part of, if it is part of one.
    #[inline]
    pub(crate) fn of(failover: &Arc<FailoverState>, context: &CallContext) -> Option<Self> {
        let key = failover.sessions.key(context, failover.rules.policy.sticky)?;
        let affinity = failover.sessions.find(key);
        Some(Self { key, affinity, failover: failover.clone() })
    }

    /// `target` answered.
    pub(crate) fn answered(&self, target: &Target) {
        let FailoverState { sessions, rules, .. } = &*self.failover;
        sessions.note(self.key, target, rules.policy.sticky, Instant::now());
    }
}

/// The sessions of a layer: bounded, the longest unused forgotten first.
///
/// A session is known by a seeded hash of tenant and name, so that a lookup copies no string and
/// one tenant can not steer another's.
#[derive(Debug)]
pub(crate) struct Sessions {
    entries: Keyed<u64, SessionEntry>,
    hasher: RandomState,
}

/// A session, and its tenant: a hash of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionKey {
    session: u64,
    tenant: u64,
}

#[derive(Debug)]
struct SessionEntry {
    owner: u64,
    affinity: Mutex<Option<Affinity>>,
}

/// Which target a session is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Affinity {
    /// The target that answered last.
    pub(crate) target: Target,
    /// While its cache lives.
    pub(crate) until: Instant,
    /// More than one provider or model has answered: parts of the history are foreign to each.
    pub(crate) mixed: bool,
}

impl Keep for SessionEntry {
    fn owner(&self) -> u64 {
        self.owner
    }
}

impl Sessions {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { entries: Keyed::new(capacity.into()), hasher: RandomState::default() }
    }

    pub(crate) fn set_capacity(&self, capacity: usize) {
        self.entries.set_policy(capacity.into());
    }

    /// The key of the conversation `context` is part of; none when nothing is remembered.
    #[inline]
    fn key(&self, context: &CallContext, ttl: Duration) -> Option<SessionKey> {
        let session = context.session()?;
        (!ttl.is_zero()).then(|| self.hash(context.tenant(), session))
    }

    fn hash(&self, tenant: Option<&str>, session: &str) -> SessionKey {
        let hash = |value: Option<&str>| self.hasher.hash_one(value);
        SessionKey { session: self.hasher.hash_one((tenant, session)), tenant: hash(tenant) }
    }

    fn find(&self, key: SessionKey) -> Option<Affinity> {
        self.entries.get(&key.session)?.affinity.lock().clone()
    }

    /// `target` answered the session, which stays there for `ttl`.
    pub(crate) fn note(&self, key: SessionKey, target: &Target, ttl: Duration, now: Instant) {
        let new = || SessionEntry { owner: key.tenant, affinity: Mutex::default() };
        let entry = self.entries.get_or_insert_with(&key.session, now, new);
        let until = later(now, ttl);
        let mut affinity = entry.affinity.lock();
        match &mut *affinity {
            Some(affinity) if affinity.target == *target => affinity.until = until,
            old => {
                let mixed = old.as_ref().is_some_and(|old| old.mixed || !old.reads(target));
                *old = Some(Affinity { target: target.clone(), until, mixed });
            }
        }
    }

    /// Forgets a session; whether it was known.
    pub(crate) fn forget(&self, tenant: Option<&str>, session: &str) -> bool {
        self.entries.remove(&self.hash(tenant, session).session).is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Affinity {
    /// Whether the session stays at `target`: the same provider with the same key, whatever
    /// the model.
    pub(crate) fn is_at(&self, target: &Target, now: Instant) -> bool {
        self.until > now && self.is_with(target)
    }

    /// The same, over or not.
    pub(crate) fn is_with(&self, target: &Target) -> bool {
        self.target.provider() == target.provider()
            && self.target.credential() == target.credential()
    }

    /// Whether `target` can read what this session's model wrote: the same provider and model,
    /// whatever the key.
    pub(crate) fn reads(&self, target: &Target) -> bool {
        !self.mixed
            && self.target.provider() == target.provider()
            && self.target.model() == target.model()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(300);

    fn context(tenant: &str, session: &str) -> CallContext {
        CallContext::new().with_tenant(tenant).with_session(session)
    }

    #[tokio::test(start_paused = true)]
    async fn an_affinity_is_renewed_by_use_and_ends() {
        let sessions = Sessions::new(64);
        let key = sessions.key(&context("acme", "s"), TTL).unwrap();
        let target = Target::new("b").with_model("m");
        for _ in 0..5 {
            sessions.note(key, &target, TTL, Instant::now());
            tokio::time::advance(Duration::from_secs(299)).await;
            assert!(sessions.find(key).unwrap().is_at(&target, Instant::now()));
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        let affinity = sessions.find(key).unwrap();
        assert!(!affinity.is_at(&target, Instant::now()), "its cache is gone");
        assert!(affinity.reads(&target), "its history is still its own");
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_too_long_to_represent_does_not_end() {
        let sessions = Sessions::new(64);
        let (target, year) = (Target::new("b"), Duration::from_secs(31_536_000));
        let one = sessions.hash(None, "s");
        sessions.note(one, &target, Duration::MAX, Instant::now());
        assert!(sessions.find(one).unwrap().is_at(&target, Instant::now() + year));
    }

    #[tokio::test(start_paused = true)]
    async fn tenants_do_not_share_sessions_and_memory_is_bounded() {
        let sessions = Sessions::new(64);
        let one = sessions.key(&context("acme", "s"), TTL).unwrap();
        assert_ne!(one, sessions.key(&context("umbrella", "s"), TTL).unwrap());
        for n in 0..1_000 {
            let key = sessions.key(&context("acme", &n.to_string()), TTL).unwrap();
            sessions.note(key, &Target::new("b"), TTL, Instant::now());
            assert!(sessions.len() <= 64);
        }
        assert_eq!(sessions.key(&context("acme", "s"), Duration::ZERO), None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_tenants_sessions_do_not_move_anothers() {
        let sessions = Sessions::new(1_024);
        let at = |tenant: &str, n: u32| sessions.hash(Some(tenant), &n.to_string());
        for n in 0..50 {
            sessions.note(at("acme", n), &Target::new("b"), TTL, Instant::now());
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        for n in 0..12_000 {
            sessions.note(at("umbrella", n), &Target::new("a"), TTL, Instant::now());
        }
        assert!((0..50).all(|n| sessions.find(at("acme", n)).is_some()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_history_of_two_authors_stays_one() {
        let sessions = Sessions::new(64);
        let (a, b) = (Target::new("a"), Target::new("b"));
        let (one, now) = (sessions.hash(None, "s"), Instant::now());
        sessions.note(one, &a.with_credential("x"), TTL, now);
        sessions.note(one, &a.with_credential("y"), TTL, now);
        assert!(sessions.find(one).unwrap().reads(&a), "a key is no author");
        sessions.note(one, &b, TTL, now);
        sessions.note(one, &b, TTL, now);
        let affinity = sessions.find(one).unwrap();
        assert!(!affinity.reads(&b) && !affinity.reads(&a), "each finds parts of the other's");
    }
}
