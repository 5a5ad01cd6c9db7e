//! The state of one thread: what waits and what runs. It has no clock, no task and no service.

use std::{collections::VecDeque, sync::Arc};

use steadfast_core::CallContext;
use tokio::{sync::Notify, time::Instant};

use super::{Steering, prompt::SteerError};
use crate::MailboxError;

/// A prompt that waits.
pub(super) struct Waiting<T> {
    pub(super) id: u64,
    pub(super) input: T,
    pub(super) context: CallContext,
}

/// What can be done to the prompt that runs.
pub(super) struct Running<T> {
    pub(super) id: u64,
    pub(super) steering: Steering<T>,
    /// Notified when it is to be dropped.
    pub(super) abort: Notify,
}

pub(super) struct Mailbox<T> {
    waiting: VecDeque<Waiting<T>>,
    running: Option<Arc<Running<T>>>,
    capacity: usize,
    /// When it had nothing to do last; of use while it has nothing to do.
    pub(super) idle_since: Instant,
    /// It is not in the map any more, and takes nothing.
    pub(super) is_closed: bool,
}

/// What became of a steering message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Steered {
    /// The turn that runs can read it.
    Running {
        /// Its prompt.
        prompt: u64,
    },
    /// Nothing runs: it is the thread's next prompt.
    Next {
        /// Its number.
        prompt: u64,
    },
}

impl<T> Mailbox<T> {
    pub(super) const fn new(capacity: usize, now: Instant) -> Self {
        Self {
            waiting: VecDeque::new(),
            running: None,
            capacity,
            idle_since: now,
            is_closed: false,
        }
    }

    pub(super) fn push(&mut self, prompt: Waiting<T>) -> Result<(), MailboxError> {
        self.has_room()?;
        self.waiting.push_back(prompt);
        Ok(())
    }

    fn has_room(&self) -> Result<(), MailboxError> {
        match self.waiting.len() {
            waiting if waiting >= self.capacity => Err(MailboxError::Full { waiting }),
            _ => Ok(()),
        }
    }

    /// How many messages a turn may have that it has not read. A full mailbox still takes some: they overtake.
    fn room_for_steering(&self) -> usize {
        self.capacity.saturating_mul(2).saturating_sub(self.waiting.len()).min(self.capacity)
    }

    /// Overtakes what waits.
    pub(super) fn steer(&mut self, prompt: Waiting<T>) -> Result<Steered, MailboxError> {
        let Waiting { id, input, context } = prompt;
        let input = match &self.running {
            None => input,
            // What it does not read comes before what waits, so that together they are bounded.
            Some(running) => match running.steering.push(input, self.room_for_steering()) {
                Ok(()) => return Ok(Steered::Running { prompt: running.id }),
                Err(SteerError::Full(waiting)) => return Err(MailboxError::Full { waiting }),
                Err(SteerError::Over(input)) => input,
            },
        };
        self.has_room()?;
        self.waiting.push_front(Waiting { id, input, context });
        Ok(Steered::Next { prompt: id })
    }

    /// The next prompt runs.
    pub(super) fn start(&mut self) -> Option<(Waiting<T>, Arc<Running<T>>)> {
        let next = self.waiting.pop_front()?;
        let running = Running { id: next.id, steering: Steering::new(), abort: Notify::new() };
        let running = Arc::new(running);
        self.running = Some(running.clone());
        Some((next, running))
    }

    /// It does not run any more. What it was sent and has not read comes next, in its order, numbered by `next_id`; each is a prompt of its
    /// own, of which only the caller is that of `context`.
    pub(super) fn finish(
        &mut self,
        context: &CallContext,
        mut next_id: impl FnMut() -> u64,
        now: Instant,
    ) {
        self.idle_since = now;
        let Some(running) = self.running.take() else { return };
        let unread = running.steering.finish();
        let unread = unread.into_iter().map(|input| (next_id(), input)).collect::<Vec<_>>();
        for (id, input) in unread.into_iter().rev() {
            let mut own = CallContext::new();
            if let Some(identity) = context.identity() {
                *own.identity_mut() = identity.clone();
            }
            self.waiting.push_front(Waiting { id, input, context: own });
        }
    }

    /// What runs is to be dropped. Its prompt.
    pub(super) fn abort(&self) -> Option<u64> {
        let running = self.running.as_ref()?;
        running.abort.notify_one();
        Some(running.id)
    }

    /// Nothing that waits will run.
    pub(super) fn clear(&mut self) -> VecDeque<Waiting<T>> {
        std::mem::take(&mut self.waiting)
    }

    /// The turn that runs is to end soon.
    pub(super) fn stop(&self) {
        if let Some(running) = &self.running {
            running.steering.stop();
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_none()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) const fn is_running(&self) -> bool {
        self.running.is_some()
    }
}
