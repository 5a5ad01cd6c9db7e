//! Knowing that nothing has happened.

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
/// A server asks for the next piece of a body several times a piece, and the way to the answer is
/// long. What is polled with a bell needs no second poll until the bell has rung: whatever is
/// pending promises that.
#[derive(Default)]
pub(super) struct Bell {
    rung: AtomicBool,
    /// The task that waits.
    task: Mutex<Option<Waker>>,
}

impl Bell {
    /// Wakes `waker` from now on.
    pub(super) fn wakes(&self, waker: &Waker) {
        let before = {
            let mut task = self.task.lock();
            if task.as_ref().is_some_and(|task| task.will_wake(waker)) {
                return;
            }
            task.replace(waker.clone())
        };
        drop(before);
    }

    /// Whether it has rung since this was last asked, which is to be before what rings it is polled.
    pub(super) fn has_rung(&self) -> bool {
        self.rung.swap(false, Ordering::SeqCst)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::SeqCst);
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}
