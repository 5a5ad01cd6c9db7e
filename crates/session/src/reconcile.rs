//! What the history is, given what the two files have.
//!
//! A turn is appended to the log first and then saved with the context, so a crash between the two leaves the log ahead by that turn.
//! The context alone is ahead when the log could not be written. Pure: the files are read elsewhere.

use steadfast_chat::Message;

use crate::{
    SessionEntry, StartReason, TurnEntry,
    entry::{ContextFile, ContextHead},
    keys::Keys,
};

/// How a thread was found when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Opened {
    /// There was nothing.
    New,
    /// As it was saved last.
    Current,
    /// The context was damaged, and the one before it was read. With the turns of the log after that one it is complete, unless
    /// [`missing`](crate::OpenReport::missing) says otherwise.
    Backup,
    /// No context could be read. The log has every turn of the session, and the history was put together from it.
    Rebuilt,
    /// No context could be read, and the log misses turns. The thread has a new session with an empty history; the log keeps what it
    /// has, and the damaged files are set aside.
    Lost,
}

impl Opened {
    /// Its name in events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Opened::New => "new",
            Opened::Current => "current",
            Opened::Backup => "backup",
            Opened::Rebuilt => "rebuilt",
            Opened::Lost => "lost",
        }
    }
}

/// Whether the user of a thread has to be informed that its history was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LossNotice {
    /// It was not.
    #[default]
    None,
    /// With the next answer.
    Due,
    /// With the answer of this turn, the last of its run. Whoever asks for that answer again has the notice again.
    With(u64),
}

impl LossNotice {
    /// A run has ended with this turn.
    pub(crate) fn answered(&mut self, turn: u64) {
        if *self == Self::Due {
            *self = Self::With(turn);
        }
    }
}

/// What the file of the context had.
#[derive(Clone, Debug)]
pub(crate) enum ContextFound {
    Missing,
    Current(ContextFile),
    Backup(ContextFile),
    Lost,
}

impl ContextFound {
    pub(crate) fn file(&self) -> Option<&ContextFile> {
        match self {
            Self::Current(file) | Self::Backup(file) => Some(file),
            Self::Missing | Self::Lost => None,
        }
    }
}

/// What is needed of a log, entry by entry: the turns that the context does not have.
#[derive(Debug)]
pub(crate) struct LogDigest {
    /// The turns up to this one of this session are in the context.
    base: Option<(u64, u64)>,
    session: u64,
    /// The last turn before the session, when known.
    after: Option<u64>,
    turns: Vec<TurnEntry>,
    last: u64,
    keys: Keys,
    is_empty: bool,
    loss: LossNotice,
    /// Turns whose number does not rise: a second copy of a line is no second turn.
    repeated: u64,
}

impl LogDigest {
    pub(crate) fn new(context: Option<&ContextFile>, keys: usize) -> Self {
        Self {
            base: context.map(|context| (context.head.session, context.head.turn)),
            session: 1,
            after: Some(0),
            turns: Vec::new(),
            last: 0,
            keys: Keys::new(keys),
            is_empty: true,
            loss: LossNotice::None,
            repeated: 0,
        }
    }

    pub(crate) fn visit(&mut self, entry: SessionEntry) {
        self.is_empty = false;
        match entry {
            SessionEntry::Turn(turn) => self.visit_turn(turn),
            SessionEntry::Started(start) if start.session > self.session => {
                self.start(start.session, Some(start.after));
                self.last = self.last.max(start.after);
                if start.why == StartReason::Lost {
                    self.loss = LossNotice::Due;
                }
            }
            SessionEntry::Started(_) => self.repeated += 1,
        }
    }

    fn visit_turn(&mut self, turn: TurnEntry) {
        if turn.turn <= self.last || turn.session < self.session {
            self.repeated += 1;
            return;
        }
        if turn.session > self.session {
            // The line of its start is gone.
            self.start(turn.session, None);
        }
        self.last = turn.turn;
        if turn.last {
            self.loss.answered(turn.turn);
        }
        self.keys.note(&turn);
        if self.base.is_none_or(|base| (turn.session, turn.turn) > base) {
            self.turns.push(turn);
        }
    }

    fn start(&mut self, session: u64, after: Option<u64>) {
        (self.session, self.after) = (session, after);
        self.turns.clear();
    }
}

/// A history, and how it was found.
#[derive(Debug)]
pub(crate) struct Reconciled {
    pub(crate) head: ContextHead,
    pub(crate) messages: Vec<Message>,
    pub(crate) how: Opened,
    /// Turns that are neither in the context nor in the log, as far as that can be seen.
    pub(crate) missing: u64,
    pub(crate) repeated: u64,
    pub(crate) keys: Keys,
    pub(crate) loss: LossNotice,
    /// Turns of the log that the context did not have.
    pub(crate) log_ahead: u64,
    /// Turns of the context that the log does not have at its end.
    pub(crate) context_ahead: u64,
}

/// Puts both together; `clean` when every line of the log could be read.
pub(crate) fn reconcile(context: ContextFound, log: LogDigest, clean: bool) -> Reconciled {
    let LogDigest { session, after, turns, last, keys, is_empty, loss, repeated, .. } = log;
    // A context was saved, so that a log with nothing in it has lost something.
    let is_lost = matches!(context, ContextFound::Lost) && is_empty;
    let (how, file) = match context {
        ContextFound::Missing if is_empty && clean => (Opened::New, None),
        ContextFound::Missing | ContextFound::Lost => (Opened::Rebuilt, None),
        ContextFound::Current(file) => (Opened::Current, Some(file)),
        ContextFound::Backup(file) => (Opened::Backup, Some(file)),
    };
    let context_turn = file.as_ref().map_or(0, |file| file.head.turn);
    let last = last.max(context_turn);
    let context_ahead = last - log.last;
    // Of the live session: a later one may have started since the context was saved.
    let file = file.filter(|file| file.head.session >= session);
    let turns = match &file {
        Some(file) if file.head.session > session => Vec::new(),
        _ => turns,
    };
    let start = file.as_ref().map(|file| file.head.turn).or(after);
    let missing = gaps(start, &turns);
    let is_lost = how == Opened::Rebuilt && (is_lost || missing > 0 || !clean || start.is_none());
    let mut found = Reconciled {
        head: ContextHead { session, turn: last, replaced: 0 },
        messages: Vec::new(),
        how,
        missing,
        repeated,
        keys,
        loss,
        log_ahead: turns.len() as u64,
        context_ahead,
    };
    if is_lost {
        (found.how, found.loss) = (Opened::Lost, LossNotice::Due);
        found.head.session += 1;
        return found;
    }
    if let Some(file) = file {
        found.head = ContextHead { turn: last, ..file.head };
        found.messages = file.messages;
    }
    found.messages.extend(turns.into_iter().flat_map(|turn| turn.messages));
    found
}

/// How many turns are missing between this turn and the last of these.
fn gaps(start: Option<u64>, turns: &[TurnEntry]) -> u64 {
    let Some(last) = turns.last() else { return 0 };
    let start = start.unwrap_or_else(|| turns.first().map_or(0, |first| first.turn - 1));
    last.turn.saturating_sub(start).saturating_sub(turns.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StartEntry;

    fn turn(session: u64, turn: u64) -> SessionEntry {
        let messages = vec![Message::user(format!("u{turn}"))];
        let at = String::new();
        SessionEntry::Turn(TurnEntry {
            turn,
            session,
            at,
            key: None,
            last: true,
            prompt: 1,
            messages,
        })
    }

    fn start(session: u64, after: u64, why: StartReason) -> SessionEntry {
        SessionEntry::Started(StartEntry { session, after, at: String::new(), why })
    }

    fn context(session: u64, turn: u64, texts: &[&str]) -> ContextFile {
        let messages = texts.iter().map(|text| Message::user(*text)).collect();
        ContextFile { head: ContextHead { session, turn, replaced: 0 }, messages }
    }

    #[test]
    fn the_table() {
        use ContextFound as C;
        use Opened as O;
        let rolled = |session, after| start(session, after, StartReason::RolledOver);
        // context; log; whether every line was read -> how, session, last turn, texts, missing
        for (name, found, log, clean, expected) in [
            ("nothing", C::Missing, vec![], true, (O::New, 1, 0, "", 0)),
            (
                "both whole",
                C::Current(context(1, 2, &["u1", "u2"])),
                vec![turn(1, 1), turn(1, 2)],
                true,
                (O::Current, 1, 2, "u1u2", 0),
            ),
            (
                "a crash before the context was saved",
                C::Current(context(1, 1, &["u1"])),
                vec![turn(1, 1), turn(1, 2)],
                true,
                (O::Current, 1, 2, "u1u2", 0),
            ),
            (
                "a crash before it was saved for the first time",
                C::Missing,
                vec![turn(1, 1)],
                true,
                (O::Rebuilt, 1, 1, "u1", 0),
            ),
            (
                "the backup, and the log after it",
                C::Backup(context(1, 1, &["short"])),
                vec![turn(1, 1), turn(1, 2), turn(1, 3)],
                true,
                (O::Backup, 1, 3, "shortu2u3", 0),
            ),
            (
                "the log lost its end",
                C::Current(context(1, 3, &["u1", "u2", "u3"])),
                vec![turn(1, 1)],
                false,
                (O::Current, 1, 3, "u1u2u3", 0),
            ),
            (
                "the log is gone",
                C::Current(context(2, 3, &["u3"])),
                vec![],
                true,
                (O::Current, 2, 3, "u3", 0),
            ),
            (
                "a line after the context is gone",
                C::Current(context(1, 1, &["u1"])),
                vec![turn(1, 1), turn(1, 3)],
                false,
                (O::Current, 1, 3, "u1u3", 1),
            ),
            (
                "rebuilt",
                C::Lost,
                vec![turn(1, 1), rolled(2, 1), turn(2, 2), turn(2, 3)],
                true,
                (O::Rebuilt, 2, 3, "u2u3", 0),
            ),
            ("a bad line", C::Lost, vec![turn(1, 1)], false, (O::Lost, 2, 1, "", 0)),
            ("the first turn", C::Lost, vec![turn(1, 2)], true, (O::Lost, 2, 2, "", 1)),
            ("a start", C::Lost, vec![turn(1, 1), turn(2, 2)], true, (O::Lost, 3, 2, "", 0)),
            ("no log", C::Lost, vec![], true, (O::Lost, 2, 0, "", 0)),
            (
                "a crash in a rollover",
                C::Current(context(1, 1, &["u1"])),
                vec![turn(1, 1), rolled(2, 1)],
                true,
                (O::Current, 2, 1, "", 0),
            ),
            (
                "the context of a new session alone",
                C::Current(context(2, 1, &[])),
                vec![turn(1, 1)],
                false,
                (O::Current, 2, 1, "", 0),
            ),
            (
                "the backup is of the session before",
                C::Backup(context(1, 1, &["u1"])),
                vec![turn(1, 1), rolled(2, 1), turn(2, 2)],
                true,
                (O::Backup, 2, 2, "u2", 0),
            ),
            (
                "a line twice",
                C::Missing,
                vec![turn(1, 1), turn(1, 1), turn(1, 2)],
                true,
                (O::Rebuilt, 1, 2, "u1u2", 0),
            ),
        ] {
            let mut digest = LogDigest::new(found.file(), 8);
            log.into_iter().for_each(|entry| digest.visit(entry));
            let found = reconcile(found, digest, clean);
            let texts: String = found.messages.iter().map(Message::text).collect();
            let (how, session, turn, expected_texts, missing) = expected;
            assert_eq!((found.how, texts.as_str()), (how, expected_texts), "{name}");
            assert_eq!((found.head.session, found.head.turn), (session, turn), "{name}");
            assert_eq!(found.missing, missing, "{name}");
            assert_eq!(found.loss == LossNotice::Due, how == Opened::Lost, "{name}");
        }
    }

    #[test]
    fn a_lost_history_is_reported_until_a_run_has_ended() {
        let step = |number| match turn(2, number) {
            SessionEntry::Turn(turn) => SessionEntry::Turn(TurnEntry { last: false, ..turn }),
            entry => entry,
        };
        let rolled = start(3, 2, StartReason::RolledOver);
        for (more, loss) in [
            (vec![], LossNotice::Due),
            (vec![step(2)], LossNotice::Due),
            (vec![step(2), rolled], LossNotice::Due),
            (vec![turn(2, 2)], LossNotice::With(2)),
            (vec![step(2), turn(2, 3), turn(2, 4)], LossNotice::With(3)),
        ] {
            let mut digest = LogDigest::new(None, 8);
            digest.visit(turn(1, 1));
            digest.visit(start(2, 1, StartReason::Lost));
            more.into_iter().for_each(|entry| digest.visit(entry));
            let found = reconcile(ContextFound::Missing, digest, true);
            assert_eq!((found.how, found.loss), (Opened::Rebuilt, loss));
        }
    }
}
