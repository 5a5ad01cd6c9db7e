//! What is known of an open thread.

use steadfast_chat::{Message, SharedVec};
use tokio::time::Instant;

use crate::{
    OpenReport, SessionEntry, StartEntry, StartReason, TurnEntry,
    disk::Found,
    entry::{ContextHead, now},
    keys::Keys,
    reconcile::LossNotice,
};

/// The most entries that are kept for a log that can not be written to; beyond it the oldest are dropped. The history stays whole.
///
/// 256, as many as there are prompts of which a thread knows by default whether they were answered.
const MAX_UNSAVED: usize = 256;

/// The state of an open thread. The files follow it.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) head: ContextHead,
    pub(crate) history: SharedVec<Message>,
    pub(crate) keys: Keys,
    pub(crate) report: OpenReport,
    pub(crate) loss: LossNotice,
    /// Not in the log so far.
    pub(crate) unsaved: Vec<SessionEntry>,
    /// How many were dropped, so that the log will never have them.
    pub(crate) dropped: usize,
    /// Raised by each change: the context on the disk has `saved` of them.
    version: u64,
    saved: u64,
    /// The log alone does not lead to this version, which is in the context or lost.
    context_only: u64,
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
            loss: history.loss,
            unsaved: Vec::new(),
            dropped: 0,
            version: u64::from(is_stale),
            saved: 0,
            context_only: 0,
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
        if last {
            self.loss.answered(self.head.turn);
        }
        let prompt_len = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let messages: Vec<Message> = prompt.into_iter().chain(answer).collect();
        match replaced {
            Some(history) => self.replace(history),
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
        self.context_only = self.version;
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
        self.context_only = 0;
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

    /// The log could not be written to.
    pub(crate) fn not_appended(&mut self) {
        let beyond = self.unsaved.len().saturating_sub(MAX_UNSAVED);
        if beyond > 0 {
            self.unsaved.drain(..beyond);
            self.dropped += beyond;
            self.context_only = self.version;
        }
    }

    /// The context was saved.
    pub(crate) fn saved(&mut self, unsaved: &Unsaved) {
        self.saved = self.saved.max(unsaved.version);
    }

    /// Whether all of it is on the disk, in both files.
    pub(crate) fn is_saved(&self) -> bool {
        self.unsaved.is_empty() && self.version <= self.saved
    }

    /// Whether a crash would lose nothing: the log has every turn with its key, and the context the history that the log does not
    /// lead to.
    pub(crate) fn is_durable(&self) -> bool {
        self.unsaved.is_empty() && self.context_only <= self.saved
    }
}

#[cfg(test)]
mod tests {
    use steadfast_store::FileRepair;

    use super::*;
    use crate::reconcile::{ContextFound, LogDigest, reconcile};

    fn memory() -> Memory {
        let history = reconcile(ContextFound::Missing, LogDigest::new(None, 8), true);
        let log = FileRepair::default();
        Memory::of(Found { history, log, aside: Vec::new(), unwritable: None }, Instant::now())
    }

    /// A save of which the two files have this.
    fn save(memory: &mut Memory, log: bool, context: bool) {
        let unsaved = memory.to_save().unwrap();
        match log {
            true => memory.appended(unsaved.entries.len()),
            false => memory.not_appended(),
        }
        if context {
            memory.saved(&unsaved);
        }
    }

    fn end_turn(memory: &mut Memory, replaced: Option<Vec<Message>>) {
        memory.end_turn(None, Vec::new(), vec![Message::user("hi")], true, replaced);
    }

    #[test]
    fn it_is_durable_when_the_files_have_all() {
        let short = || vec![Message::user("short")];
        for (what, change, log, context, durable) in [
            ("a turn", None, true, false, true),
            ("its key is in the log alone", None, false, true, false),
            ("a turn that shortens", Some(true), true, false, false),
            ("a turn that shortens", Some(true), true, true, true),
            ("a history is replaced", Some(false), true, false, false),
            ("a history is replaced", Some(false), true, true, true),
        ] {
            let mut memory = memory();
            match change {
                Some(false) => memory.replace(short()),
                change => end_turn(&mut memory, change.map(|_| short())),
            }
            assert!(!memory.is_durable(), "{what}");
            save(&mut memory, log, context);
            assert_eq!(memory.is_durable(), durable, "{what}");
            if !memory.is_saved() {
                save(&mut memory, true, true);
            }
            assert!(memory.is_durable() && memory.is_saved(), "{what}");
        }
        let mut memory = memory();
        memory.replace(short());
        memory.roll_over();
        save(&mut memory, true, false);
        assert!(memory.is_durable(), "the log alone leads to an empty history");
    }

    #[test]
    fn what_waits_for_the_log_is_bounded() {
        let mut memory = memory();
        for _ in 0..MAX_UNSAVED + 9 {
            end_turn(&mut memory, None);
            save(&mut memory, false, false);
        }
        assert_eq!((memory.unsaved.len(), memory.dropped), (MAX_UNSAVED, 9));
        assert_eq!(memory.history.len(), MAX_UNSAVED + 9, "nothing of the history is");
        save(&mut memory, true, false);
        assert!(!memory.is_durable(), "the log misses turns");
        save(&mut memory, true, true);
        assert!(memory.is_durable());
    }
}
