//! Remembering one answer.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use steadfast_chat::{ChatRequest, Head, Message, ProviderState, SharedVec};
use steadfast_client::dialect::StoredResponse;
use steadfast_core::{Dialect, RecoveryLog, Step, Target};

use super::{Content, ResponseMemory, SocketMemory};

/// Remembers the answer to one request, as its caller is given it.
pub(crate) struct Keeper {
    memory: Arc<ResponseMemory>,
    tenant: Option<Box<str>>,
    conversation: Option<Box<str>>,
    /// The conversation before the answer; `None` where not all of it is known.
    before: Option<SharedVec<Message>>,
    bytes: usize,
    /// Who answers, and keeps it.
    at: Option<Target>,
    /// Of an answer that nobody is to store: for how long it is remembered here.
    socket: Option<Arc<SocketMemory>>,
    log: RecoveryLog,
}

impl Keeper {
    /// `before` are the bytes of what stands before the request itself.
    pub(super) fn new(
        memory: Arc<ResponseMemory>,
        request: &ChatRequest,
        state: &ProviderState,
        is_known: bool,
        before: usize,
    ) -> Self {
        let mut messages = request.messages.clone();
        if is_known && state.has_instructions {
            messages.make_mut().remove(0);
        }
        let body = request.origin(Dialect::Responses).map_or(0, |origin| origin.body.len());
        Self {
            memory,
            tenant: request.context.tenant().map(Into::into),
            conversation: state.conversation.clone(),
            before: is_known.then_some(messages),
            bytes: before + body,
            at: None,
            socket: None,
            log: request.context.log.clone(),
        }
    }

    /// For as long as `socket` is open, if it is for one.
    pub(super) fn for_socket(self, socket: Option<Arc<SocketMemory>>) -> Self {
        Self { socket, ..self }
    }

    /// The answer begins.
    pub(crate) fn answered(&mut self, head: &Head) {
        let is_kept = head.dialect == Dialect::Responses && self.socket.is_none();
        self.at = head.target.clone().filter(|_| is_kept);
    }

    /// The answer has come whole.
    pub(crate) fn whole(self, body: &Bytes) {
        self.keep(StoredResponse::of_body(body));
    }

    /// The last frames of the answer have been written.
    pub(crate) fn ended(self, frames: &[u8]) {
        self.keep(StoredResponse::of_frames(frames));
    }

    fn keep(mut self, response: Option<StoredResponse>) {
        // What was put together of several answers no provider has.
        let is_joined =
            |step: &Step| step.layer == "recover" && matches!(step.action, "resumed" | "continued");
        // Of so many steps some are not in the log.
        if self.log.dropped() > 0 || self.log.steps().iter().any(is_joined) {
            self.at = None;
        }
        let tenant = self.tenant.as_deref();
        if let (Some(id), Some(at)) = (&self.conversation, &self.at) {
            self.memory.keep_conversation(tenant, id, at.clone());
        }
        let Some(response) = response else { return };
        // What nobody is to store no other gateway is sent, either.
        let is_shared = self.socket.is_none();
        if let Some(socket) = &self.socket {
            socket.made(tenant, response.id());
        }
        // Who asks for it gets it from who keeps it.
        let response = if self.at.is_some() { response.without_json() } else { response };
        match self.before {
            Some(before) => {
                let bytes = self.bytes + response.size();
                self.memory.keep(tenant, self.at, Content { before, response, bytes }, is_shared);
            }
            None => self.memory.keep_names(tenant, self.at, &response, is_shared),
        }
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("at", &self.at).finish_non_exhaustive()
    }
}
