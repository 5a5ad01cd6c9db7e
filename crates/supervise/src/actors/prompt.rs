//! What a turn is given: the prompt, and what overtakes it.

use std::{collections::VecDeque, fmt, sync::Arc};

use parking_lot::Mutex;
use steadfast_core::{Call, CallContext};
use tokio::sync::Notify;

/// A thread of a conversation, of one tenant.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadKey {
    tenant: Option<Arc<str>>,
    thread: Arc<str>,
}

impl ThreadKey {
    /// A thread of nobody in particular.
    pub fn new(thread: impl Into<Arc<str>>) -> Self {
        Self { tenant: None, thread: thread.into() }
    }

    /// Of this tenant: the same name of another tenant is another thread.
    #[must_use]
    pub fn with_tenant(self, tenant: impl Into<Arc<str>>) -> Self {
        Self { tenant: Some(tenant.into()), ..self }
    }

    /// Who pays.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// The thread's name.
    pub fn thread(&self) -> &str {
        &self.thread
    }
}

impl From<&str> for ThreadKey {
    fn from(thread: &str) -> Self {
        Self::new(thread)
    }
}

impl fmt::Debug for ThreadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tenant {
            Some(tenant) => write!(f, "{tenant}/{}", self.thread),
            None => write!(f, "{}", self.thread),
        }
    }
}

/// One prompt of a thread: the request of the service that [`Actors`](crate::Actors) run.
pub struct Prompt<T> {
    /// What the user sent.
    pub input: T,
    /// The thread.
    pub thread: ThreadKey,
    /// Counts the prompts of all threads, from 1.
    pub id: u64,
    /// What the user sends while this runs.
    pub steering: Steering<T>,
    /// The context of the calls of its turn: tenant, session, and the deadline of its whole run.
    pub context: CallContext,
}

impl<T> Call for Prompt<T> {
    fn context(&self) -> &CallContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.context
    }
}

impl<T> fmt::Debug for Prompt<T> {
    /// Without the input, which is the user's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prompt")
            .field("thread", &self.thread)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// What the user sends while a turn runs, and whether the process is about to end: for the turn, which reads it between its steps.
///
/// What it has not read when it ends is a prompt of its own, before those that wait.
pub struct Steering<T>(Arc<SteeringState<T>>);

struct SteeringState<T> {
    messages: Mutex<Messages<T>>,
    /// A message has come, or the state has changed.
    changed: Notify,
}

struct Messages<T> {
    unread: VecDeque<T>,
    is_stopping: bool,
    is_over: bool,
}

impl<T> Steering<T> {
    pub(super) fn new() -> Self {
        let messages = Messages { unread: VecDeque::new(), is_stopping: false, is_over: false };
        Self(Arc::new(SteeringState { messages: Mutex::new(messages), changed: Notify::new() }))
    }

    /// The next message, if one has come.
    pub fn try_next(&self) -> Option<T> {
        self.0.messages.lock().unread.pop_front()
    }

    /// Waits for the next message. Never ready after the turn is over. Nothing is lost when it is dropped.
    pub async fn next(&self) -> T {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if let Some(message) = self.try_next() {
                return message;
            }
            changed.await;
        }
    }

    /// Whether the process is about to end: the turn is to save what it has, and to end soon.
    pub fn is_stopping(&self) -> bool {
        self.0.messages.lock().is_stopping
    }

    /// Waits until the process is about to end.
    pub async fn stopping(&self) {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if self.is_stopping() {
                return;
            }
            changed.await;
        }
    }

    /// Gives it a message, if the turn is not over and fewer than `most` are unread.
    pub(super) fn push(&self, message: T, most: usize) -> Result<(), SteerError<T>> {
        {
            let mut messages = self.0.messages.lock();
            if messages.is_over {
                return Err(SteerError::Over(message));
            }
            if messages.unread.len() >= most {
                return Err(SteerError::Full(messages.unread.len()));
            }
            messages.unread.push_back(message);
        }
        self.0.changed.notify_waiters();
        Ok(())
    }

    pub(super) fn stop(&self) {
        self.0.messages.lock().is_stopping = true;
        self.0.changed.notify_waiters();
    }

    /// The turn is over: what it has not read.
    pub(super) fn finish(&self) -> VecDeque<T> {
        let mut messages = self.0.messages.lock();
        messages.is_over = true;
        std::mem::take(&mut messages.unread)
    }

    pub(super) fn shared(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Why a steering message was not taken.
pub(super) enum SteerError<T> {
    Over(T),
    Full(usize),
}

impl<T> fmt::Debug for Steering<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let messages = self.0.messages.lock();
        f.debug_struct("Steering")
            .field("unread", &messages.unread.len())
            .field("stopping", &messages.is_stopping)
            .field("over", &messages.is_over)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready_eq, task};

    use super::*;

    #[test]
    fn a_wait_that_is_dropped_at_any_moment_loses_nothing() {
        let steering = Steering::new();
        for dropped_when_woken in [false, true] {
            let mut waits = task::spawn(steering.next());
            assert_pending!(waits.poll());
            if dropped_when_woken {
                assert!(steering.push("one", 20).is_ok());
                assert!(waits.is_woken());
                drop(waits);
            } else {
                drop(waits);
                assert!(steering.push("one", 20).is_ok());
            }
            assert_ready_eq!(task::spawn(steering.next()).poll(), "one");
        }
        let mut stopping = task::spawn(steering.stopping());
        assert_pending!(stopping.poll());
        steering.stop();
        assert!(stopping.is_woken() && stopping.poll().is_ready());
        assert!(steering.finish().is_empty());
        assert!(matches!(steering.push("late", 20), Err(SteerError::Over("late"))));
    }
}
