//! What is issued with an answer.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;
use steadfast_chat::{Delta, Event, Events, Message, Part, SharedVec, Thinking};
use steadfast_core::{Failure, Target};

use super::{
    fleet::{AnswerPosition, HASHER, ThinkingOf, ThinkingRow},
    memory::{Issuer, Memory},
    prefix::{AnswerDigest, PrefixDigest},
    select::last,
};

/// The events of an answer, whose thinking is remembered. They pass unchanged.
pub struct ThinkingEvents<S> {
    events: S,
    /// `None` where nothing is remembered.
    request: Option<Sent>,
    /// Other content has come before any thinking.
    has_other: bool,
    /// Once it thinks. Boxed, as not every answer does.
    recorder: Option<Box<Recorder>>,
}

/// What was sent for the answer.
pub(super) struct Sent {
    pub(super) memory: Arc<Memory>,
    pub(super) issuer: Issuer,
    pub(super) messages: SharedVec<Message>,
    pub(super) untouched: bool,
    /// Where other processes are to know of its thinking. Boxed, as not every memory is shared.
    pub(super) shared: Option<Box<SharedSent>>,
}

/// By what other processes know of what was sent.
pub(super) struct SharedSent {
    pub(super) target: Target,
    pub(super) tenant: Option<Box<str>>,
    /// That of the answer, as it comes.
    pub(super) digest: AnswerDigest,
}

/// Collects the thinking of an answer.
struct Recorder {
    sent: Sent,
    prefix: u64,
    /// The block before the next one.
    before: u64,
    /// The block that is open: its number, and what has come of it.
    open: Option<(u32, Thinking)>,
    /// What the answer begins with; `None` once it is too large to keep.
    leading: Option<Vec<Part>>,
    bytes: usize,
    /// Signed thinking has come.
    has_issued: bool,
    /// Other content has come.
    is_over: bool,
    digest: AnswerDigest,
}

impl<S> ThinkingEvents<S> {
    pub(super) fn new(events: S, request: Option<Sent>) -> Self {
        Self { events, request, has_other: false, recorder: None }
    }

    fn record(&mut self, event: &Event) {
        for delta in &event.deltas {
            if self.recorder.is_none()
                && matches!(delta, Delta::Thinking { .. } | Delta::Redacted { .. })
            {
                let has_other = self.has_other;
                let recorder = self.request.take().map(|sent| Recorder::new(sent, has_other));
                self.recorder = recorder.map(Box::new);
            }
            match &mut self.recorder {
                Some(recorder) => recorder.take(delta),
                None => self.has_other |= delta.is_content(),
            }
        }
    }
}

impl Recorder {
    /// `is_over`: what comes now can not be put back where it was, and only its binding is of use.
    fn new(sent: Sent, is_over: bool) -> Self {
        let prefix = PrefixDigest::of(&sent.memory.hasher, &sent.messages);
        let before = last(&sent.memory, &sent.messages);
        Self {
            sent,
            prefix,
            before,
            open: None,
            leading: Some(Vec::new()),
            bytes: 0,
            has_issued: false,
            is_over,
            digest: AnswerDigest::default(),
        }
    }

    fn take(&mut self, delta: &Delta) {
        match delta {
            Delta::Thinking { index, text } => self.open(*index).text.push_str(text),
            Delta::Signature { index, signature } if self.is_open(*index) => {
                let thinking = self.open(*index);
                thinking.signature.get_or_insert_default().push_str(signature);
            }
            Delta::Redacted { data, .. } => {
                self.close();
                self.issued(Part::Redacted { data: data.clone() });
            }
            Delta::BlockEnd { index } if self.is_open(*index) => self.close(),
            Delta::Text { text, .. } => {
                self.other();
                self.digest.text(text);
                if let Some(shared) = &mut self.sent.shared {
                    shared.digest.text(text);
                }
            }
            Delta::ToolCall { id, name, .. } => {
                self.other();
                if self.has_issued {
                    self.sent.memory.called(self.sent.issuer, id, self.before);
                }
                self.digest.call(&self.sent.memory.hasher, name);
                if let Some(shared) = &mut self.sent.shared {
                    shared.digest.call(&HASHER, name);
                }
            }
            Delta::Opaque { .. } => {
                self.other();
                self.leading = None;
            }
            Delta::End => {
                self.close();
                self.ended();
            }
            _ => {}
        }
    }

    fn is_open(&self, index: u32) -> bool {
        self.open.as_ref().is_some_and(|(open, _)| *open == index)
    }

    /// The block `index`, which is open from now on.
    fn open(&mut self, index: u32) -> &mut Thinking {
        if !self.is_open(index) {
            self.close();
        }
        &mut self.open.get_or_insert_with(|| (index, Thinking::default())).1
    }

    fn other(&mut self) {
        self.close();
        self.is_over = true;
    }

    fn close(&mut self) {
        if let Some((_, thinking)) = self.open.take() {
            self.issued(Part::Thinking(thinking));
        }
    }

    fn issued(&mut self, part: Part) {
        let Sent { memory, issuer, untouched, .. } = &self.sent;
        let Some(id) = memory.id(&part) else { return };
        memory.issued(*issuer, id, self.prefix, self.before, *untouched);
        self.before = id;
        self.has_issued = true;
        self.bytes += Memory::size(&part);
        if self.bytes > memory.policy.max_bytes {
            self.leading = None;
        }
        if let Some(leading) = self.leading.as_mut().filter(|_| !self.is_over) {
            leading.push(part);
        }
    }

    fn ended(&mut self) {
        let Sent { memory, issuer, .. } = &self.sent;
        if let Some(leading) = self.leading.take().filter(|parts| !parts.is_empty()) {
            self.publish(&leading);
            memory.answered(*issuer, self.prefix, self.digest.get(&memory.hasher), leading);
        }
    }

    /// Lets other processes know with which thinking the conversation goes on from here.
    fn publish(&self, leading: &[Part]) {
        let Sent { memory, issuer, messages, shared, .. } = &self.sent;
        let (Some(shared), Some(fleet)) = (shared, memory.fleet.get()) else { return };
        let position = AnswerPosition {
            prefix: PrefixDigest::of(&HASHER, messages),
            answer: shared.digest.get(&HASHER),
        };
        let Some(key) = fleet.key(shared.tenant.as_deref(), &shared.target, position) else {
            return;
        };
        let before =
            |part: &Part| memory.block(*issuer, memory.id(part)?).map(|block| block.before);
        let mut row = ThinkingRow::of(memory, messages, memory.policy.max_returned, before);
        row.answers.push(ThinkingOf { position, parts: leading.to_vec() });
        if row.answers.len() == 1 {
            row.is_whole &= leading.first().and_then(before) == Some(0);
        }
        fleet.put(&shared.target, key, &row);
    }
}

impl<S: Events + Unpin> Stream for ThinkingEvents<S> {
    type Item = Result<Event, Failure>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.events).poll_next(cx);
        if let Poll::Ready(Some(Ok(event))) = &polled
            && (this.request.is_some() || this.recorder.is_some())
        {
            this.record(event);
        }
        polled
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.events.size_hint()
    }
}

impl<S> fmt::Debug for ThinkingEvents<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThinkingEvents")
            .field("thinks", &self.recorder.is_some())
            .finish_non_exhaustive()
    }
}
