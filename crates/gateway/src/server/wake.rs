//! Knowing that nothing has happened since a body was last polled.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
};

use parking_lot::Mutex;

/// A waker that remembers that it was woken.
///
/// A server polls a body several times for each piece of it, and a poll goes through every layer.
/// What was polled with this waker need not be polled again before it is woken: whatever is pending
/// promises that.
#[derive(Default)]
pub(super) struct WakeFlag {
    woken: AtomicBool,
    /// The task that waits.
    task: Mutex<Option<Waker>>,
}

impl WakeFlag {
    /// Wakes `waker` from now on.
    pub(super) fn forward_to(&self, waker: &Waker) {
        let mut task = self.task.lock();
        if !task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }

    /// Whether it was woken since the last call, which has to come before the poll.
    pub(super) fn take(&self) -> bool {
        self.woken.swap(false, Ordering::SeqCst)
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}
