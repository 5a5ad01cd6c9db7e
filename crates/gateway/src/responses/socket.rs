//! Responses that are remembered for the connection that they came over.

use std::{collections::VecDeque, fmt, sync::Arc};

use parking_lot::Mutex;

use super::ResponseMemory;

/// How many of one connection are remembered, the newest: 16, two for each answer that there may be at once.
const KEPT: usize = 16;

/// The responses of one connection that no provider stores: they are forgotten when it is closed.
pub(crate) struct SocketMemory {
    memory: Arc<ResponseMemory>,
    made: Mutex<VecDeque<Made>>,
}

/// A response: its tenant and its id.
type Made = (Option<Box<str>>, Box<str>);

impl SocketMemory {
    pub(crate) fn new(memory: Arc<ResponseMemory>) -> Arc<Self> {
        Arc::new(Self { memory, made: Mutex::default() })
    }

    /// The response `id` of `tenant` is about to be remembered.
    pub(super) fn made(&self, tenant: Option<&str>, id: &str) {
        let mut made = self.made.lock();
        made.push_back((tenant.map(Into::into), id.into()));
        if made.len() > KEPT
            && let Some(oldest) = made.pop_front()
        {
            drop(made);
            self.forget(&oldest);
        }
    }

    fn forget(&self, (tenant, id): &Made) {
        // No other gateway was sent it.
        self.memory.drop_local(tenant.as_deref(), id);
    }
}

impl Drop for SocketMemory {
    fn drop(&mut self) {
        let made = std::mem::take(self.made.get_mut());
        made.iter().for_each(|one| self.forget(one));
    }
}

impl fmt::Debug for SocketMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketMemory")
            .field("made", &self.made.lock().len())
            .finish_non_exhaustive()
    }
}
