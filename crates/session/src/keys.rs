//! Which prompts a thread has had.

use std::collections::VecDeque;

use crate::TurnEntry;

/// The latest idempotency keys of a thread, and what became of their prompts.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    limit: usize,
    used: VecDeque<KeyUse>,
}

#[derive(Clone, Debug)]
struct KeyUse {
    key: String,
    session: u64,
    first: u64,
    last: u64,
    finished: bool,
}

/// What is known of the prompt with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyState {
    /// Nothing: it is to be run.
    New,
    /// Its run was interrupted after a turn of it had been saved, and nothing has happened since: it goes on there.
    Started,
    /// The same, and other turns came after it.
    Superseded,
    /// It was answered in these turns.
    Finished { first: u64, last: u64 },
}

impl Keys {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, used: VecDeque::new() }
    }

    /// A turn that has ended.
    pub(crate) fn note(&mut self, turn: &TurnEntry) {
        let Some(key) = &turn.key else { return };
        if let Some(used) = self.used.iter_mut().rfind(|used| used.key == *key) {
            used.last = turn.turn;
            used.finished |= turn.last;
            return;
        }
        if self.used.len() >= self.limit {
            self.used.pop_front();
        }
        self.used.push_back(KeyUse {
            key: key.clone(),
            session: turn.session,
            first: turn.turn,
            last: turn.turn,
            finished: turn.last,
        });
    }

    /// What is known of this key, in a thread whose last turn is `turn` of this session.
    pub(crate) fn state(&self, key: &str, session: u64, turn: u64) -> KeyState {
        match self.used.iter().rfind(|used| used.key == key) {
            None => KeyState::New,
            Some(used) if used.finished => {
                KeyState::Finished { first: used.first, last: used.last }
            }
            Some(used) if (used.session, used.last) == (session, turn) => KeyState::Started,
            Some(_) => KeyState::Superseded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(turn: u64, key: &str, last: bool) -> TurnEntry {
        let key = Some(key.to_owned());
        TurnEntry {
            turn,
            session: 1,
            at: String::new(),
            key,
            last,
            prompt: 0,
            messages: Vec::new(),
        }
    }

    #[test]
    fn a_prompt_is_new_started_superseded_or_finished() {
        let mut keys = Keys::new(2);
        assert_eq!(keys.state("a", 1, 0), KeyState::New);
        keys.note(&turn(1, "a", false));
        assert_eq!(keys.state("a", 1, 1), KeyState::Started);
        assert_eq!(keys.state("a", 2, 1), KeyState::Superseded, "of a session before");
        keys.note(&turn(2, "b", true));
        assert_eq!(keys.state("a", 1, 2), KeyState::Superseded);
        assert_eq!(keys.state("b", 1, 2), KeyState::Finished { first: 2, last: 2 });
        keys.note(&turn(3, "c", false));
        keys.note(&turn(4, "c", true));
        assert_eq!(keys.state("c", 1, 9), KeyState::Finished { first: 3, last: 4 });
        assert_eq!(keys.state("a", 1, 4), KeyState::New, "forgotten: two are kept");
    }
}
