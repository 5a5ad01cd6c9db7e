//! What an event says, read when somebody looks.

use std::{
    fmt,
    ops::{Deref, Range},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use smallvec::SmallVec;
use steadfast_core::Usage;

use crate::{Delta, StopReason};

type Read = SmallVec<[Delta; 1]>;

/// What an [`Event`](crate::Event) says, in order; used like a list.
///
/// That of a whole answer may not have been read: then its gist is known, which is all that layers
/// usually ask for, and the rest is read when somebody first looks into it.
#[derive(Clone)]
pub struct EventDeltas(State);

#[derive(Clone)]
enum State {
    Read(Read),
    Unread(Arc<Unread>),
}

struct Unread {
    gist: Gist,
    /// Where in the body all the text stands that it says, when that is one piece as it is.
    said: Option<Range<usize>>,
    body: Bytes,
    read: fn(&Bytes) -> Read,
    deltas: OnceLock<Read>,
}

/// What layers ask of an answer, found without reading it delta by delta.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gist {
    /// There is something in it that a caller waits for.
    pub content: bool,
    /// Blocks end in it.
    pub ends_block: bool,
    /// Tools are called in it.
    pub calls: bool,
    /// It is complete.
    pub end: bool,
    /// Why the model stopped.
    pub stop: Option<StopReason>,
    /// The usage it reports.
    pub usage: Option<Usage>,
}

impl Gist {
    /// The gist of what has been read: what one that was found otherwise has to be equal to.
    pub fn of(deltas: &[Delta]) -> Self {
        let mut gist = Self::default();
        for delta in deltas {
            gist.content |= delta.is_content();
            match delta {
                Delta::BlockEnd { .. } => gist.ends_block = true,
                Delta::End => gist.end = true,
                Delta::ToolCall { .. } => gist.calls = true,
                Delta::Stop(stop) => gist.stop = Some(stop.reason),
                Delta::Usage(usage) => gist.usage = Some(*usage),
                _ => {}
            }
        }
        gist
    }
}

impl EventDeltas {
    pub(super) fn unread(
        body: Bytes,
        gist: Gist,
        said: Option<Range<usize>>,
        read: fn(&Bytes) -> Read,
    ) -> Self {
        let unread = Unread { gist, said, body, read, deltas: OnceLock::new() };
        Self(State::Unread(Arc::new(unread)))
    }

    /// Whether nobody has looked into it.
    #[doc(hidden)]
    pub fn is_unread(&self) -> bool {
        matches!(&self.0, State::Unread(unread) if unread.deltas.get().is_none())
    }

    /// The gist, when that is known without a look at the list.
    #[doc(hidden)]
    #[inline]
    pub fn gist(&self) -> Option<&Gist> {
        match &self.0 {
            State::Read(_) => None,
            State::Unread(unread) => Some(&unread.gist),
        }
    }

    /// All the text it says, where that is known without a look at the list.
    #[doc(hidden)]
    pub fn said(&self) -> Option<&str> {
        let State::Unread(unread) = &self.0 else { return None };
        std::str::from_utf8(unread.body.get(unread.said.clone()?)?).ok()
    }

    /// All of them.
    #[inline]
    pub fn as_slice(&self) -> &[Delta] {
        match &self.0 {
            State::Read(deltas) => deltas,
            State::Unread(unread) => unread.look(),
        }
    }

    /// Adds one.
    pub fn push(&mut self, delta: Delta) {
        self.make_mut().push(delta);
    }

    /// The list to be changed.
    pub(super) fn make_mut(&mut self) -> &mut Read {
        if let State::Unread(unread) = &self.0 {
            self.0 = State::Read(unread.look().clone());
        }
        match &mut self.0 {
            State::Read(deltas) => deltas,
            State::Unread(_) => unreachable!("what was unread has just been read"),
        }
    }

    /// About how many bytes it holds: of what has not been read, what that will be at most.
    pub(super) fn size(&self) -> usize {
        let deltas = match &self.0 {
            State::Read(deltas) => deltas,
            State::Unread(unread) => match unread.deltas.get() {
                Some(deltas) => deltas,
                None => return unread.body.len(),
            },
        };
        deltas
            .iter()
            .map(|delta| match delta {
                Delta::Text { text, .. } | Delta::Thinking { text, .. } => text.len(),
                Delta::Arguments { json, .. } => json.len(),
                Delta::Redacted { data, .. } => data.len(),
                Delta::Opaque { block, .. } => block.json.get().len(),
                _ => 0,
            })
            .sum()
    }
}

impl Unread {
    fn look(&self) -> &Read {
        self.deltas.get_or_init(|| (self.read)(&self.body))
    }
}

impl Default for EventDeltas {
    fn default() -> Self {
        Self(State::Read(Read::new()))
    }
}

impl Deref for EventDeltas {
    type Target = [Delta];

    #[inline]
    fn deref(&self) -> &[Delta] {
        self.as_slice()
    }
}

impl From<Read> for EventDeltas {
    #[inline]
    fn from(deltas: Read) -> Self {
        Self(State::Read(deltas))
    }
}

impl FromIterator<Delta> for EventDeltas {
    #[inline]
    fn from_iter<I: IntoIterator<Item = Delta>>(deltas: I) -> Self {
        Self(State::Read(deltas.into_iter().collect()))
    }
}

impl IntoIterator for EventDeltas {
    type Item = Delta;
    type IntoIter = smallvec::IntoIter<[Delta; 1]>;

    fn into_iter(mut self) -> Self::IntoIter {
        std::mem::take(self.make_mut()).into_iter()
    }
}

impl<'a> IntoIterator for &'a EventDeltas {
    type Item = &'a Delta;
    type IntoIter = std::slice::Iter<'a, Delta>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.as_slice().iter()
    }
}

impl PartialEq for EventDeltas {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl fmt::Debug for EventDeltas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}
