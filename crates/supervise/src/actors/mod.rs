//! One mailbox a thread.

mod drain;
mod mailbox;
mod post;
mod prompt;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use steadfast_core::{CallContext, Failure, IntoFailure, time::later};
use tokio::{runtime::Handle, sync::Notify, time::Instant};
use tower_service::Service;

use self::{
    drain::Turns,
    mailbox::{Mailbox, Waiting},
    post::BoxedReplies,
};
pub use self::{
    mailbox::Steered,
    post::{HISTORY_LOST, PostBody, ReplySink, TOOL_TIMEOUT, ThreadPost, TurnFailure},
    prompt::{Prompt, Steering, ThreadKey},
};
use crate::{ActorsPolicy, MailboxError, PolicyError, event};

/// One mailbox a thread, drained in order by one task: the boundary between an agent and its users. Cheap to clone; all clones are the same
/// mailboxes, looked at and steered.
///
/// Built over a service that runs one turn ([`Prompt`]), and a [`ReplySink`] that sends what comes of it.
///
/// * The prompts of a thread run one after the other, those of different threads at once.
/// * No error and no panic leaves a turn: its user gets a fixed text ([`TurnFailure`]), an ERROR event has all that is known, and the
///   next prompt runs.
/// * A prompt's whole run has 600 s, in which its reply is sent as well.
/// * A mailbox takes 20 prompts that wait, and refuses the next one with a [`MailboxError`].
/// * An idle mailbox is removed with its task, and made again by the next prompt.
/// * What waits is not kept over a restart.
///
/// ```
/// use std::convert::Infallible;
/// use steadfast_core::Failure;
/// use steadfast_supervise::{Actors, PostBody, Prompt, ThreadPost};
/// use tokio::sync::mpsc;
/// use tower::service_fn;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (sender, mut posts) = mpsc::unbounded_channel();
/// let actors = Actors::new(
///     service_fn(async |prompt: Prompt<String>| match prompt.input.as_str() {
///         "crash" => panic!("a bug"),
///         input => Ok::<_, Failure>(input.to_uppercase()),
///     }),
///     move |post: ThreadPost<String>| {
///         let _ = sender.send(post);
///         async { Ok(()) }
///     },
/// );
///
/// actors.send("thread-1", "crash".to_owned()).unwrap();
/// actors.send("thread-1", "hello".to_owned()).unwrap();
/// match posts.recv().await.unwrap().body {
///     PostBody::Failed(failure) => {
///         assert_eq!(failure.to_string(), "Something went wrong (panic). Please send your message again.");
///     }
///     other => panic!("{other:?}"),
/// }
/// assert_eq!(posts.recv().await.unwrap().body, PostBody::Reply("HELLO".to_owned()));
/// # }
/// ```
pub struct Actors<T>(Arc<Threads<T>>);

/// The mailboxes of all threads.
struct Threads<T> {
    map: RwLock<HashMap<ThreadKey, Arc<Actor<T>>>>,
    policy: ActorsPolicy,
    /// Starts the task of a mailbox.
    spawn: Box<Spawn<T>>,
    last_id: AtomicU64,
    is_stopping: AtomicBool,
    /// Tasks of mailboxes.
    tasks: AtomicUsize,
    /// One of those has ended.
    task_ended: Notify,
    counts: Mutex<TurnCounts>,
}

type Spawn<T> = dyn Fn(Arc<Threads<T>>, Arc<Actor<T>>) + Send + Sync;

/// One thread.
struct Actor<T> {
    key: ThreadKey,
    mailbox: Mutex<Mailbox<T>>,
    wake: Notify,
}

/// How turns have ended, since the mailboxes were made or the counters reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TurnCounts {
    /// Prompts that were taken.
    pub taken: u64,
    /// Messages that were refused.
    pub refused: u64,
    /// Turns with a reply, whether or not it could be sent.
    pub replied: u64,
    /// Turns that failed or panicked.
    pub failed: u64,
    /// Turns that were not over in time.
    pub timed_out: u64,
    /// Turns that were aborted.
    pub aborted: u64,
    /// Idle mailboxes that were removed.
    pub evicted: u64,
}

/// All mailboxes at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActorsSnapshot {
    /// Threads that have a mailbox.
    pub threads: usize,
    /// Turns that run.
    pub running: usize,
    /// Prompts that wait.
    pub waiting: usize,
    /// What has happened so far.
    pub counts: TurnCounts,
}

/// What became of the threads when they were stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopReport {
    /// Turns that ended within the limit.
    pub finished: usize,
    /// Turns that were dropped at the limit.
    pub cut: usize,
    /// Prompts that had not begun, and will not.
    pub dropped: usize,
}

/// Settings of [`Actors`].
#[must_use = "settings do nothing until `build`"]
pub struct ActorsBuilder {
    policy: ActorsPolicy,
    kinds: Kinds,
}

type Kinds = Arc<dyn Fn(&Failure) -> TurnFailure + Send + Sync>;

impl Default for ActorsBuilder {
    fn default() -> Self {
        Self { policy: ActorsPolicy::default(), kinds: Arc::new(TurnFailure::of) }
    }
}

impl ActorsBuilder {
    /// With this policy.
    pub fn policy(self, policy: ActorsPolicy) -> Self {
        Self { policy, ..self }
    }

    /// With this decision on what a failure is to its user, in place of [`TurnFailure::of`].
    pub fn kinds(self, kinds: impl Fn(&Failure) -> TurnFailure + Send + Sync + 'static) -> Self {
        Self { kinds: Arc::new(kinds), ..self }
    }

    /// Mailboxes around `service`, whose replies go to `sink`.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; the error says what would be valid.
    ///
    /// # Panics
    ///
    /// Outside of tokio's runtime.
    pub fn build<S, T>(
        self,
        service: S,
        sink: impl ReplySink<S::Response>,
    ) -> Result<Actors<T>, PolicyError>
    where
        S: Service<Prompt<T>, Error: IntoFailure, Response: Send + 'static, Future: Send + 'static>
            + Clone
            + Send
            + 'static,
        T: Send + 'static,
    {
        self.policy.validate()?;
        Ok(self.made(service, sink))
    }

    fn made<S, T>(self, service: S, sink: impl ReplySink<S::Response>) -> Actors<T>
    where
        S: Service<Prompt<T>, Error: IntoFailure, Response: Send + 'static, Future: Send + 'static>
            + Clone
            + Send
            + 'static,
        T: Send + 'static,
    {
        let turns = Turns {
            original: Arc::new(Mutex::new(service)),
            sink: BoxedReplies::new(sink),
            kinds: self.kinds,
        };
        let runtime = Handle::current();
        let spawn = move |threads: Arc<Threads<T>>, actor| {
            runtime.spawn(drain::drain(threads, actor, turns.another()));
        };
        Actors(Arc::new(Threads {
            map: RwLock::default(),
            policy: self.policy,
            spawn: Box::new(spawn),
            last_id: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            tasks: AtomicUsize::new(0),
            task_ended: Notify::new(),
            counts: Mutex::default(),
        }))
    }
}

impl<T: Send + 'static> Actors<T> {
    /// Mailboxes around `service`, whose replies go to `sink`, by the default policy.
    ///
    /// # Panics
    ///
    /// Outside of tokio's runtime.
    pub fn new<S>(service: S, sink: impl ReplySink<S::Response>) -> Self
    where
        S: Service<Prompt<T>, Error: IntoFailure, Response: Send + 'static, Future: Send + 'static>
            + Clone
            + Send
            + 'static,
    {
        ActorsBuilder::default().made(service, sink)
    }

    /// Takes a prompt, to run after those that the thread has already. Its number.
    ///
    /// # Errors
    ///
    /// When the mailbox takes no more.
    pub fn send(&self, thread: impl Into<ThreadKey>, input: T) -> Result<u64, MailboxError> {
        self.send_with(thread, input, CallContext::new())
    }

    /// As [`send`](Self::send), with the context for its calls. Its tenant and session are those of the thread, unless it has others.
    ///
    /// # Errors
    ///
    /// When the mailbox takes no more.
    pub fn send_with(
        &self,
        thread: impl Into<ThreadKey>,
        input: T,
        context: CallContext,
    ) -> Result<u64, MailboxError> {
        let id = self.0.next_id();
        let prompt = Waiting { id, input, context };
        self.0.with_mailbox(&thread.into(), |mailbox| mailbox.push(prompt).map(|()| id))
    }

    /// Gives a message to the turn that runs, which can read it between two steps ([`Prompt::steering`]). If none runs, or it ends without having
    /// read it, it is the thread's next prompt.
    ///
    /// # Errors
    ///
    /// When too many are unread.
    pub fn steer(&self, thread: impl Into<ThreadKey>, input: T) -> Result<Steered, MailboxError> {
        let prompt = Waiting { id: self.0.next_id(), input, context: CallContext::new() };
        self.0.with_mailbox(&thread.into(), |mailbox| mailbox.steer(prompt))
    }

    /// Drops the turn that runs, without a text for its user, who has asked for it. What waits runs next. The number of its prompt; `None` if
    /// nothing runs.
    pub fn abort(&self, thread: &ThreadKey) -> Option<u64> {
        let actor = self.0.map.read().get(thread).cloned()?;
        let mailbox = actor.mailbox.lock();
        mailbox.abort()
    }

    /// Forgets the prompts of this thread that wait. How many there were.
    pub fn clear(&self, thread: &ThreadKey) -> usize {
        let Some(actor) = self.0.map.read().get(thread).cloned() else { return 0 };
        let cleared = actor.mailbox.lock().clear();
        cleared.len()
    }

    /// All mailboxes at this moment.
    pub fn snapshot(&self) -> ActorsSnapshot {
        let counts = *self.0.counts.lock();
        let mut snapshot = ActorsSnapshot { counts, ..ActorsSnapshot::default() };
        for actor in self.0.map.read().values() {
            let mailbox = actor.mailbox.lock();
            snapshot.threads += 1;
            snapshot.running += usize::from(mailbox.is_running());
            snapshot.waiting += mailbox.waiting();
        }
        snapshot
    }

    /// Sets the counters to zero.
    pub fn reset(&self) {
        *self.0.counts.lock() = TurnCounts::default();
    }

    /// The policy in force.
    pub fn policy(&self) -> &ActorsPolicy {
        &self.0.policy
    }

    /// Takes no more prompts and ends all threads: what waits is dropped, and what runs has `limit` to end or to save what it has
    /// ([`Steering::stopping`]); then it is dropped. Users whose prompt is dropped get a fixed text.
    ///
    /// Takes at most `limit` and the time of the fixed texts. Dropped before, no more prompts are taken, and what runs goes on.
    pub async fn shutdown(&self, limit: Duration) -> StopReport {
        let before = {
            // Whoever holds the map's lock sees it: nothing is taken after this.
            let map = self.0.map.write();
            self.0.is_stopping.store(true, SeqCst);
            map.values().for_each(|actor| {
                actor.mailbox.lock().stop();
                actor.wake.notify_one();
            });
            *self.0.counts.lock()
        };
        let waiting = self.snapshot().waiting;
        let deadline = later(Instant::now(), limit);
        let mut cut = 0;
        if !self.0.ended_by(deadline).await {
            let actors: Vec<_> = self.0.map.read().values().cloned().collect();
            cut = actors.iter().filter(|actor| actor.mailbox.lock().abort().is_some()).count();
            // A thread may have two to send: of what ran, and of what waited.
            self.0.ended_by(later(Instant::now(), self.0.policy.notice.saturating_mul(2))).await;
        }
        let after = *self.0.counts.lock();
        let ended = |counts: TurnCounts| counts.replied + counts.failed + counts.timed_out;
        let finished = usize::try_from(ended(after) - ended(before)).unwrap_or(usize::MAX);
        event::stopped(finished, cut, waiting);
        StopReport { finished, cut, dropped: waiting }
    }
}

impl<T> Threads<T> {
    fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Relaxed) + 1
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(SeqCst)
    }

    /// Uses a thread's mailbox, which is made if there is none.
    fn with_mailbox<O>(
        self: &Arc<Self>,
        key: &ThreadKey,
        take: impl FnOnce(&mut Mailbox<T>) -> Result<O, MailboxError>,
    ) -> Result<O, MailboxError> {
        let result = self.try_mailbox(key, take);
        let mut counts = self.counts.lock();
        match &result {
            Ok(_) => counts.taken += 1,
            Err(error) => {
                counts.refused += 1;
                drop(counts);
                event::refused(key, error.as_str());
            }
        }
        result
    }

    fn try_mailbox<O>(
        self: &Arc<Self>,
        key: &ThreadKey,
        take: impl FnOnce(&mut Mailbox<T>) -> Result<O, MailboxError>,
    ) -> Result<O, MailboxError> {
        // Under the map's lock, so that no mailbox is removed meanwhile.
        let map = self.map.read();
        if self.is_stopping() {
            return Err(MailboxError::Stopping);
        }
        if let Some(actor) = map.get(key) {
            let taken = take(&mut actor.mailbox.lock())?;
            actor.wake.notify_one();
            return Ok(taken);
        }
        drop(map);
        let (mut evicted, mut made) = (Vec::new(), None);
        let result = {
            let mut map = self.map.write();
            if self.is_stopping() {
                return Err(MailboxError::Stopping);
            }
            let actor = match map.get(key) {
                Some(actor) => actor.clone(),
                None => {
                    evicted = self.make_room(&mut map)?;
                    let mailbox = Mailbox::new(self.policy.mailbox, Instant::now());
                    let (mailbox, wake) = (Mutex::new(mailbox), Notify::new());
                    let actor = Arc::new(Actor { key: key.clone(), mailbox, wake });
                    map.insert(key.clone(), actor.clone());
                    self.tasks.fetch_add(1, SeqCst);
                    made.insert(actor).clone()
                }
            };
            actor.wake.notify_one();
            take(&mut actor.mailbox.lock())
        };
        if let Some(actor) = made {
            (self.spawn)(self.clone(), actor);
        }
        self.counts.lock().evicted += evicted.len() as u64;
        for actor in evicted {
            actor.wake.notify_one();
            event::evicted(&actor.key);
        }
        result
    }

    /// Removes an eighth of the mailboxes, the longest idle, when there are too many.
    fn make_room(
        &self,
        map: &mut HashMap<ThreadKey, Arc<Actor<T>>>,
    ) -> Result<Vec<Arc<Actor<T>>>, MailboxError> {
        let threads = self.policy.threads;
        if map.len() < threads {
            return Ok(Vec::new());
        }
        let idle = map.values().filter_map(|actor| {
            let mailbox = actor.mailbox.lock();
            mailbox.is_idle().then(|| (mailbox.idle_since, actor.clone()))
        });
        let mut idle: Vec<_> = idle.collect();
        if idle.is_empty() {
            return Err(MailboxError::TooManyThreads { threads });
        }
        idle.sort_by_key(|(since, _)| *since);
        idle.truncate((threads / 8).max(1));
        let evicted = idle.into_iter().map(|(_, actor)| actor);
        let evicted = evicted.inspect(|actor| {
            actor.mailbox.lock().is_closed = true;
            map.remove(&actor.key);
        });
        Ok(evicted.collect())
    }

    /// Removes this mailbox if it is idle, and has been for as long as it may. Whether its task is to end.
    fn evict(&self, actor: &Actor<T>) -> bool {
        {
            let mut map = self.map.write();
            let mut mailbox = actor.mailbox.lock();
            if mailbox.is_closed {
                return true;
            }
            if !mailbox.is_idle() {
                return false;
            }
            mailbox.is_closed = true;
            map.remove(&actor.key);
        }
        self.counts.lock().evicted += 1;
        event::evicted(&actor.key);
        true
    }

    /// Whether all tasks of mailboxes have ended by then.
    async fn ended_by(&self, deadline: Instant) -> bool {
        loop {
            let mut ended = std::pin::pin!(self.task_ended.notified());
            ended.as_mut().enable();
            if self.tasks.load(SeqCst) == 0 {
                return true;
            }
            if tokio::time::timeout_at(deadline, ended).await.is_err() {
                return false;
            }
        }
    }
}

impl<T> Clone for Actors<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for Actors<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Actors")
            .field("policy", &self.0.policy)
            .field("threads", &self.0.map.read().len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ActorsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActorsBuilder").field("policy", &self.policy).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tower::service_fn;

    use super::*;

    /// The idle timer may fire while a prompt comes in on another thread.
    #[tokio::test(start_paused = true)]
    async fn a_mailbox_that_has_something_to_do_is_not_evicted() {
        let turn = service_fn(|_: Prompt<()>| pending::<Result<(), Failure>>());
        let actors = Actors::new(turn, |_: ThreadPost<()>| ready(Ok(())));
        let key = ThreadKey::new("t");
        actors.send(key.clone(), ()).unwrap();
        let actor = actors.0.map.read().get(&key).cloned().unwrap();
        assert!(!actors.0.evict(&actor), "it waits");
        tokio::task::yield_now().await;
        assert_eq!(actors.snapshot().running, 1);
        assert!(!actors.0.evict(&actor), "it runs");
        actors.abort(&key).unwrap();
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert!(actors.0.evict(&actor) && actors.0.evict(&actor));
        assert_eq!(actors.snapshot().threads, 0);
    }
}
