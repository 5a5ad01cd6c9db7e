//! What is known of an open thread.

use steadfast_chat::{Message, SharedVec};
use tokio::time::Instant;

use crate::{
    OpenReport, SessionEntry, StartEntry, StartReason, TurnEntry,
    disk::Found,
    entry::{ContextHead, now},
    keys::Keys,
};

/// The state of an open thread. The files follow it.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) head: ContextHead,
    pub(crate) history: SharedVec<Message>,
    pub(crate) keys: Keys,
    pub(crate) report: OpenReport,
    /// The user has to be informed that the history was lost: until a turn has ended.
    pub(crate) lost: bool,
    /// Not in the log so far.
    pub(crate) unsaved: Vec<SessionEntry>,
    /// Raised by each change: the context on the disk has `saved` of them.
    version: u64,
    saved: u64,
    /// The last save failed.
    pub(crate) failing: bool,
    pub(crate) used: Instant,
}

/// What a save writes.
#[derive(Debug)]
pub(crate) struct Unsaved {
    pub(crate) entries: Vec<SessionEntry>,
    pub(crate) head: ContextHead,
    pub(crate) history: SharedVec<Message>,
    pub(crate) context: bool,
    version: u64,
}

impl Memory {
    pub(crate) fn of(found: Found, now_at: Instant) -> Self {
        let Found { history, log, aside, unwritable } = found;
        let report = OpenReport {
            how: history.how,
            bad_lines: log.bad_lines + history.repeated,
            torn_bytes: log.torn_bytes,
            missing: history.missing,
            aside,
            writable: unwritable.is_none(),
        };
        let is_stale = history.log_ahead > 0 || history.how == crate::Opened::Backup;
        let mut memory = Self {
            head: history.head,
            history: history.messages.into(),
            keys: history.keys,
            lost: history.lost,
            unsaved: Vec::new(),
            version: u64::from(is_stale),
            saved: 0,
            failing: false,
            used: now_at,
            report,
        };
        if memory.report.how == crate::Opened::Lost {
            memory.start(memory.head.session, StartReason::Lost);
        }
        memory
    }

    /// A turn has ended; `replaced`: the history after it, when that is not the one before with its messages. Returns its number.
    pub(crate) fn end_turn(
        &mut self,
        key: Option<String>,
        prompt: Vec<Message>,
        answer: Vec<Message>,
        last: bool,
        replaced: Option<Vec<Message>>,
    ) -> u64 {
        self.head.turn += 1;
        self.lost = false;
        let prompt_len = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let messages: Vec<Message> = prompt.into_iter().chain(answer).collect();
        match replaced {
            Some(history) => {
                self.history = history.into();
                self.head.replaced = self.head.turn;
            }
            None => self.history.make_mut().extend(messages.iter().cloned()),
        }
        let ContextHead { turn, session, .. } = self.head;
        let entry = TurnEntry { turn, session, at: now(), key, last, prompt: prompt_len, messages };
        self.keys.note(&entry);
        self.unsaved.push(SessionEntry::Turn(entry));
        self.version += 1;
        turn
    }

    /// Replaces the history, without a turn.
    pub(crate) fn replace(&mut self, history: Vec<Message>) {
        self.history = history.into();
        self.head.replaced = self.head.turn;
        self.version += 1;
    }

    /// The next session, with an empty history.
    pub(crate) fn roll_over(&mut self) -> u64 {
        let session = self.head.session + 1;
        self.start(session, StartReason::RolledOver);
        session
    }

    fn start(&mut self, session: u64, why: StartReason) {
        let after = self.head.turn;
        self.head = ContextHead { session, turn: after, replaced: 0 };
        self.history = SharedVec::default();
        let entry = StartEntry { session, after, at: now(), why };
        self.unsaved.push(SessionEntry::Started(entry));
        self.version += 1;
    }

    /// What is to be written, if anything.
    pub(crate) fn to_save(&self) -> Option<Unsaved> {
        let context = self.version > self.saved;
        (context || !self.unsaved.is_empty()).then(|| Unsaved {
            entries: self.unsaved.clone(),
            head: self.head,
            history: self.history.clone(),
            context,
            version: self.version,
        })
    }

    /// The first entries of `unsaved` are in the log.
    pub(crate) fn appended(&mut self, entries: usize) {
        self.unsaved.drain(..entries.min(self.unsaved.len()));
    }

    /// The context was saved.
    pub(crate) fn saved(&mut self, unsaved: &Unsaved) {
        self.saved = self.saved.max(unsaved.version);
    }

    /// Whether all of it is on the disk, in both files.
    pub(crate) fn is_saved(&self) -> bool {
        self.unsaved.is_empty() && self.version <= self.saved
    }

    /// Whether a crash would lose nothing: every turn is in one of the files.
    pub(crate) fn is_durable(&self) -> bool {
        self.unsaved.is_empty() || self.version <= self.saved
    }
}
