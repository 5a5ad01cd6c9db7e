//! Which target a conversation is at.

use std::{
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use steadfast_core::{Beginning, Call, CallContext, Keep, Keyed, Target, time::later};
use tokio::time::Instant;

use crate::service::FailoverState;

/// The conversation of one call, and which target it was at when the call came.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    key: SessionKey,
    /// How it begins, where that is all that it is known by.
    unnamed: Option<Beginning>,
    /// `None` while nobody has answered it.
    pub(crate) affinity: Option<Affinity>,
    failover: Arc<FailoverState>,
}

impl Session {
    /// The conversation that `request` is part of: by its name, or else by how it begins.
    #[inline]
    pub(crate) fn of<Req: Call>(failover: &Arc<FailoverState>, request: &Req) -> Option<Self> {
        let FailoverState { sessions, rules, .. } = &**failover;
        if rules.policy.sticky.is_zero() {
            return None;
        }
        let context = request.context();
        let unnamed = match context.session() {
            Some(_) => None,
            None => Some(request.beginning()?),
        };
        let key = sessions.key(context, unnamed);
        // One that only begins has been nowhere, whatever has begun likewise.
        let begins = unnamed.is_some_and(|beginning| beginning.is_first_turn);
        let affinity = if begins { None } else { sessions.of(unnamed).find(key) };
        Some(Self { key, unnamed, affinity, failover: failover.clone() })
    }

    /// `target` answered, which is the `usual` one where nothing is known of the conversation.
    ///
    /// Of one without a name nothing is remembered until it has been moved. As others may begin likewise, it stays
    /// for that one time, however often it is used, and no longer than until the next that begins so is answered
    /// by the usual target.
    pub(crate) fn answered(&self, target: &Target, usual: bool) {
        let FailoverState { sessions, rules, .. } = &*self.failover;
        let (ttl, now) = (rules.policy.sticky, Instant::now());
        let Some(beginning) = self.unnamed else {
            return sessions.named.note(self.key, target, false, ttl, now);
        };
        match &self.affinity {
            Some(affinity) if affinity.is_at(target, now) => {}
            None if usual && beginning.is_first_turn => sessions.unnamed.forget(self.key),
            None if usual => {}
            _ => sessions.unnamed.note(self.key, target, !beginning.is_first_turn, ttl, now),
        }
    }
}

/// The conversations of a layer.
///
/// One is known by a seeded hash of tenant and name, so that a lookup copies no string and
/// one tenant can not steer another's.
#[derive(Debug)]
pub(crate) struct Sessions {
    named: Conversations,
    /// Those without a name that have been moved: apart, as in an outage that is each question of everybody.
    unnamed: Conversations,
    hasher: RandomState,
}

/// Conversations: bounded, the longest unused forgotten first.
#[derive(Debug)]
pub(crate) struct Conversations {
    entries: Keyed<u64, SessionEntry>,
    /// There may be some.
    used: AtomicBool,
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
        let (named, unnamed) = (Conversations::new(capacity), Conversations::new(capacity));
        Self { named, unnamed, hasher: RandomState::default() }
    }

    pub(crate) fn set_capacity(&self, capacity: usize) {
        for conversations in [&self.named, &self.unnamed] {
            conversations.entries.set_policy(capacity.into());
        }
    }

    /// The key of the conversation that a call with this context is part of, whose caller gives it a name or not.
    #[inline]
    fn key(&self, context: &CallContext, unnamed: Option<Beginning>) -> SessionKey {
        let beginning = unnamed.map(|beginning| beginning.digest);
        self.hash(context.tenant(), context.session(), beginning)
    }

    fn hash(
        &self,
        tenant: Option<&str>,
        session: Option<&str>,
        beginning: Option<u64>,
    ) -> SessionKey {
        let session = self.hasher.hash_one((tenant, session, beginning));
        SessionKey { session, tenant: self.hasher.hash_one(tenant) }
    }

    /// Those with names, or those without.
    fn of(&self, unnamed: Option<Beginning>) -> &Conversations {
        if unnamed.is_some() { &self.unnamed } else { &self.named }
    }

    /// Forgets a session; whether it was known.
    pub(crate) fn forget(&self, tenant: Option<&str>, session: &str) -> bool {
        self.named.entries.remove(&self.hash(tenant, Some(session), None).session).is_some()
    }

    /// How many have names.
    pub(crate) fn len(&self) -> usize {
        self.named.entries.len()
    }
}

impl Conversations {
    fn new(capacity: usize) -> Self {
        Self { entries: Keyed::new(capacity.into()), used: AtomicBool::new(false) }
    }

    #[inline]
    fn find(&self, key: SessionKey) -> Option<Affinity> {
        if !self.used.load(Ordering::Relaxed) {
            return None;
        }
        self.entries.get(&key.session)?.affinity.lock().clone()
    }

    fn forget(&self, key: SessionKey) {
        if self.used.load(Ordering::Relaxed) {
            self.entries.remove(&key.session);
        }
    }

    /// `target` answered, and for `ttl` the conversation stays there; somebody who is not known may have answered
    /// `before`.
    fn note(&self, key: SessionKey, target: &Target, before: bool, ttl: Duration, now: Instant) {
        self.used.store(true, Ordering::Relaxed);
        let new = || SessionEntry { owner: key.tenant, affinity: Mutex::default() };
        let entry = self.entries.get_or_insert_with(&key.session, now, new);
        let until = later(now, ttl);
        let mut affinity = entry.affinity.lock();
        match &mut *affinity {
            Some(affinity) if affinity.target == *target => affinity.until = until,
            old => {
                let mixed = old.as_ref().map_or(before, |old| old.mixed || !old.reads(target));
                *old = Some(Affinity { target: target.clone(), until, mixed });
            }
        }
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

    fn key(sessions: &Sessions, tenant: Option<&str>, session: &str) -> SessionKey {
        sessions.hash(tenant, Some(session), None)
    }

    fn note(sessions: &Sessions, key: SessionKey, target: &Target) {
        sessions.named.note(key, target, false, TTL, Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn an_affinity_is_renewed_by_use_and_ends() {
        let sessions = Sessions::new(64);
        let key = key(&sessions, Some("acme"), "s");
        let target = Target::new("b").with_model("m");
        for _ in 0..5 {
            note(&sessions, key, &target);
            tokio::time::advance(Duration::from_secs(299)).await;
            assert!(sessions.named.find(key).unwrap().is_at(&target, Instant::now()));
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        let affinity = sessions.named.find(key).unwrap();
        assert!(!affinity.is_at(&target, Instant::now()), "its cache is gone");
        assert!(affinity.reads(&target), "its history is still its own");
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_too_long_to_represent_does_not_end() {
        let sessions = Sessions::new(64);
        let (target, year) = (Target::new("b"), Duration::from_secs(31_536_000));
        let one = key(&sessions, None, "s");
        sessions.named.note(one, &target, false, Duration::MAX, Instant::now());
        assert!(sessions.named.find(one).unwrap().is_at(&target, Instant::now() + year));
    }

    #[tokio::test(start_paused = true)]
    async fn tenants_do_not_share_sessions_and_memory_is_bounded() {
        let sessions = Sessions::new(64);
        let one = key(&sessions, Some("acme"), "s");
        assert_ne!(one, key(&sessions, Some("umbrella"), "s"));
        for n in 0..1_000 {
            note(&sessions, key(&sessions, Some("acme"), &n.to_string()), &Target::new("b"));
            assert!(sessions.len() <= 64);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_tenants_sessions_do_not_move_anothers() {
        let sessions = Sessions::new(1_024);
        let at = |tenant: &str, n: u32| key(&sessions, Some(tenant), &n.to_string());
        for n in 0..50 {
            note(&sessions, at("acme", n), &Target::new("b"));
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        for n in 0..12_000 {
            note(&sessions, at("umbrella", n), &Target::new("a"));
        }
        assert!((0..50).all(|n| sessions.named.find(at("acme", n)).is_some()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_history_of_two_authors_stays_one() {
        let sessions = Sessions::new(64);
        let (a, b) = (Target::new("a"), Target::new("b"));
        let one = key(&sessions, None, "s");
        note(&sessions, one, &a.with_credential("x"));
        note(&sessions, one, &a.with_credential("y"));
        assert!(sessions.named.find(one).unwrap().reads(&a), "a key is no author");
        note(&sessions, one, &b);
        note(&sessions, one, &b);
        let affinity = sessions.named.find(one).unwrap();
        assert!(!affinity.reads(&b) && !affinity.reads(&a), "each finds parts of the other's");
    }
}
