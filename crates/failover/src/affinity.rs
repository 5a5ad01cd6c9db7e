//! Which target a conversation is at.

use std::{
    fmt,
    future::Future,
    hash::BuildHasher,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use steadfast_core::{
    Beginning, Call, CallContext, Keep, Keyed, Target, shared::KeyDigest, time::later,
};
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
    /// By what other processes know it, where there are any. Boxed, as most calls have none.
    shared: Option<Box<SharedSession>>,
    failover: Arc<FailoverState>,
}

/// A conversation as other processes know it.
#[derive(Clone, Debug)]
struct SharedSession {
    key: KeyDigest,
    /// Its request is the first, so nobody can know of it.
    begins: bool,
}

/// Where a conversation is as far as another process knows, which is awaited by its call.
pub(crate) type AffinityLookup = Pin<Box<dyn Future<Output = Option<Affinity>> + Send>>;

/// Other processes, as the conversations of a layer have them.
pub(crate) trait ShareSessions: fmt::Debug + Send + Sync {
    /// What the conversation of `request` is called among them, which has a name or not; `None` for one that others could
    /// not recognise.
    fn key(&self, request: &dyn Call, is_named: bool) -> Option<KeyDigest>;

    /// The same for the session of this name.
    fn key_of(&self, tenant: Option<&str>, session: &str) -> KeyDigest;

    /// Asks where a conversation is. `known_at`: when this process has last noted where, if it has. `None`: nobody can know it
    /// better.
    fn look_up(&self, key: &KeyDigest, known_at: Option<Instant>) -> Option<AffinityLookup>;

    /// Lets the others know where a conversation is; `None`: wherever the chain says.
    fn put(&self, key: &KeyDigest, affinity: Option<&Affinity>, now: Instant, ttl: Duration);
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
        let shared = sessions.fleet.get().and_then(|fleet| {
            let key = fleet.key(request, unnamed.is_none())?;
            let beginning = unnamed.or_else(|| request.beginning());
            let begins = beginning.is_some_and(|beginning| beginning.is_first_turn);
            Some(Box::new(SharedSession { key, begins }))
        });
        Some(Self { key, unnamed, affinity, shared, failover: failover.clone() })
    }

    /// Asks other processes where the conversation is, where they may know and this one does not: what it knows from before
    /// they began to move some may be over.
    pub(crate) fn look_up(&self) -> Option<AffinityLookup> {
        let shared = self.shared.as_deref().filter(|shared| !shared.begins)?;
        let FailoverState { sessions, rules, .. } = &*self.failover;
        let ttl = rules.policy.sticky;
        let known_at = self.affinity.as_ref().map(|affinity| affinity.noted_at(ttl));
        sessions.fleet.get()?.look_up(&shared.key, known_at)
    }

    /// Another process knows where the conversation is.
    pub(crate) fn found(&mut self, found: Affinity) {
        let FailoverState { sessions, rules, .. } = &*self.failover;
        let now = Instant::now();
        let found = Affinity { until: found.until.min(later(now, rules.policy.sticky)), ..found };
        let known = sessions.of(self.unnamed).learn(self.key, found, now);
        self.affinity = Some(known);
    }

    /// `target` answered, which is the `usual` one where nothing is known of the conversation. `as_ever`: one of which nothing
    /// is known goes there, too, whatever happened to this call.
    ///
    /// Of one without a name nothing is remembered until it has been moved. As others may begin likewise, it stays
    /// for that one time, however often it is used, and no longer than until the next that begins so is answered
    /// by the usual target.
    pub(crate) fn answered(&self, target: &Target, usual: bool, as_ever: bool) {
        let FailoverState { sessions, rules, .. } = &*self.failover;
        let (ttl, now) = (rules.policy.sticky, Instant::now());
        let shares = self.shared.as_ref().map(|_| Shares { moved: !as_ever });
        let note = |of: &Conversations, before| {
            let news = of.note(self.key, target, before, ttl, now, shares);
            self.publish(news.as_ref().map(Some), now);
        };
        let Some(beginning) = self.unnamed else {
            return note(&sessions.named, false);
        };
        match &self.affinity {
            Some(affinity) if affinity.is_at(target, now) => {}
            None if usual && beginning.is_first_turn => {
                if sessions.unnamed.forget(self.key) {
                    self.publish(Some(None), now);
                }
            }
            None if usual => {}
            _ => note(&sessions.unnamed, !beginning.is_first_turn),
        }
    }

    /// Lets other processes know where it is, when that is news.
    fn publish(&self, news: Option<Option<&Affinity>>, now: Instant) {
        let FailoverState { sessions, rules, .. } = &*self.failover;
        if let (Some(affinity), Some(shared), Some(fleet)) =
            (news, &self.shared, sessions.fleet.get())
        {
            fleet.put(&shared.key, affinity, now, rules.policy.sticky);
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
    /// Other processes, when what is known here is shared with them.
    pub(crate) fleet: OnceLock<Box<dyn ShareSessions>>,
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
    known: Mutex<KnownSession>,
}

/// What is known of a session.
#[derive(Debug, Default)]
struct KnownSession {
    affinity: Option<Affinity>,
    /// Until when other processes know it, too.
    shared_until: Option<Instant>,
    /// It is another process that has moved it, and lets the others know.
    is_theirs: bool,
}

/// What other processes are to know of a session.
#[derive(Clone, Copy, Debug)]
struct Shares {
    /// It is elsewhere than one of which nothing is known.
    moved: bool,
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
        Self { named, unnamed, hasher: RandomState::default(), fleet: OnceLock::new() }
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
    pub(crate) fn forget(&self, tenant: Option<&str>, session: &str, ttl: Duration) -> bool {
        let key = self.hash(tenant, Some(session), None);
        let entry = self.named.entries.remove(&key.session);
        if let Some(fleet) = self.fleet.get() {
            fleet.put(&fleet.key_of(tenant, session), None, Instant::now(), ttl);
        }
        entry.is_some()
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
        self.entries.get(&key.session)?.known.lock().affinity.clone()
    }

    /// Forgets a conversation; whether other processes know of it.
    fn forget(&self, key: SessionKey) -> bool {
        let is_used = self.used.load(Ordering::Relaxed);
        let entry = is_used.then(|| self.entries.remove(&key.session)).flatten();
        entry.is_some_and(|entry| entry.known.lock().shared_until.is_some())
    }

    /// The conversation, of which something is known from now on.
    fn entry(&self, key: SessionKey, now: Instant) -> Arc<SessionEntry> {
        self.used.store(true, Ordering::Relaxed);
        let new = || SessionEntry { owner: key.tenant, known: Mutex::default() };
        self.entries.get_or_insert_with(&key.session, now, new)
    }

    /// `target` answered, and for `ttl` the conversation stays there; somebody who is not known may have answered
    /// `before`. Returns what other processes are to be sent of it.
    fn note(
        &self,
        key: SessionKey,
        target: &Target,
        before: bool,
        ttl: Duration,
        now: Instant,
        shares: Option<Shares>,
    ) -> Option<Affinity> {
        let entry = self.entry(key, now);
        let until = later(now, ttl);
        let mut known = entry.known.lock();
        let KnownSession { affinity, shared_until, is_theirs } = &mut *known;
        let changes = match &mut *affinity {
            Some(affinity) if affinity.target == *target => {
                affinity.until = until;
                false
            }
            old => {
                let mixed = old.as_ref().map_or(before, |old| old.mixed || !old.reads(target));
                *old = Some(Affinity { target: target.clone(), until, mixed });
                true
            }
        };
        let (affinity, shares) = (affinity.as_ref()?, shares?);
        let is_worth_it = shares.moved || affinity.mixed;
        *is_theirs &= !changes;
        // Who has moved it puts it again in quarters of its time; the others only if that one does not seem to.
        let again = if *is_theirs { ttl / 4 * 3 } else { ttl / 4 };
        let is_late =
            shared_until.is_none_or(|known| until.saturating_duration_since(known) >= again);
        // That it is back is news, too, and then no more.
        let is_news = (is_worth_it && (changes || is_late)) || (changes && shared_until.is_some());
        if is_news {
            *shared_until = is_worth_it.then_some(until);
        }
        is_news.then(|| affinity.clone())
    }

    /// Another process has `found` a conversation there. What is known after that.
    fn learn(&self, key: SessionKey, found: Affinity, now: Instant) -> Affinity {
        let entry = self.entry(key, now);
        let mut known = entry.known.lock();
        match &mut known.affinity {
            Some(own) if own.until >= found.until => own.clone(),
            old => {
                let mixed = old.as_ref().is_some_and(|old| old.mixed || !old.reads(&found.target));
                let found = Affinity { mixed: found.mixed || mixed, ..found };
                *old = Some(found.clone());
                (known.shared_until, known.is_theirs) = (Some(found.until), true);
                found
            }
        }
    }
}

impl Affinity {
    /// When it was noted, by the time that it then had.
    fn noted_at(&self, ttl: Duration) -> Instant {
        self.until.checked_sub(ttl).unwrap_or(self.until)
    }

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
        sessions.named.note(key, target, false, TTL, Instant::now(), None);
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
        sessions.named.note(one, &target, false, Duration::MAX, Instant::now(), None);
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
