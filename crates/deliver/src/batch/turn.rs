//! The request of the parent.

use std::sync::Arc;

use steadfast_core::{Call, CallContext};

use crate::Announcement;

/// One turn of the parent agent, in which it announces all of these to the user of the session.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ParentTurn {
    /// The session.
    pub session: Arc<str>,
    /// What is to be announced, in the order in which it came; never empty.
    pub announcements: Vec<Announcement>,
    /// The context of the first of them, with the end of the turn as its deadline.
    pub context: CallContext,
}

impl ParentTurn {
    /// The texts, in their order.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.announcements.iter().map(|one| &*one.text)
    }
}

impl Call for ParentTurn {
    fn context(&self) -> &CallContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.context
    }
}
