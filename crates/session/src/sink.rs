//! Where the turns of a run are reported.

use std::{fmt, mem, sync::Arc};

use parking_lot::Mutex;
use steadfast_chat::Message;
use steadfast_core::RecoveryLog;

use crate::{SessionError, SessionTurn, TurnSaved, slot::Slot, thread::save};

/// Where an agent reports each turn that ends before the last one, such as an answer with tool calls and their results. A crash
/// then loses at most the turn after it, and a retry of the prompt goes on from there.
///
/// Cheap to clone. Once the run is over, failed or was dropped, nothing is added any more.
#[derive(Clone)]
pub struct TurnSink(Arc<RunTurns>);

struct RunTurns {
    slot: Arc<Slot>,
    key: Option<String>,
    log: RecoveryLog,
    state: Mutex<RunState>,
}

#[derive(Default)]
struct RunState {
    is_over: bool,
    /// Added with the first turn.
    prompt: Vec<Message>,
    turns: usize,
    /// What the turns added, without the prompt.
    messages: Vec<Message>,
}

impl TurnSink {
    pub(crate) fn new(
        slot: Arc<Slot>,
        key: Option<Arc<str>>,
        prompt: Vec<Message>,
        log: RecoveryLog,
    ) -> Self {
        let state = RunState { prompt, ..RunState::default() };
        let key = key.map(|key| key.to_string());
        Self(Arc::new(RunTurns { slot, key, log, state: Mutex::new(state) }))
    }

    /// Adds a turn that has ended to the history, and saves it; the first one with the prompt before it.
    ///
    /// It is added before the first wait, so dropping the future stops the waiting alone. A turn that can not be saved is kept in
    /// memory, which is no error.
    ///
    /// # Errors
    ///
    /// The run is over; or the turn can be no part of a history, as it has no message, an empty one, or instructions.
    pub async fn end_turn(&self, turn: impl Into<SessionTurn>) -> Result<TurnSaved, SessionError> {
        let turn = turn.into();
        let thread = &self.0.slot.thread;
        let what = match turn.messages.as_slice() {
            [] => Some("has no message"),
            messages => SessionTurn::fault(messages),
        };
        if let Some(what) = what {
            return Err(SessionError::BadTurn { thread: thread.clone(), what });
        }
        let turn = self.add(turn, false)?;
        Ok(save(&self.0.slot, turn, &self.0.log).await)
    }

    /// Adds the last turn and ends the run; returns what it saved and what the run added. A turn without messages adds nothing,
    /// unless there were others before it, whose prompt has now been answered.
    pub(crate) async fn finish(
        &self,
        turn: SessionTurn,
    ) -> Result<(TurnSaved, Vec<Message>), SessionError> {
        let thread = &self.0.slot.thread;
        if let Some(what) = SessionTurn::fault(&turn.messages) {
            return Err(SessionError::BadTurn { thread: thread.clone(), what });
        }
        let is_nothing = turn.messages.is_empty() && turn.history.is_none();
        let is_first = self.0.state.lock().turns == 0;
        let turn = if is_nothing && is_first {
            self.0.state.lock().is_over = true;
            self.0.slot.memory().map_or(0, |memory| memory.head.turn)
        } else {
            self.add(turn, true)?
        };
        let saved = save(&self.0.slot, turn, &self.0.log).await;
        Ok((saved, mem::take(&mut self.0.state.lock().messages)))
    }

    fn add(&self, turn: SessionTurn, last: bool) -> Result<u64, SessionError> {
        let over = || SessionError::RunOver { thread: self.0.slot.thread.clone() };
        let mut state = self.0.state.lock();
        if state.is_over {
            return Err(over());
        }
        let mut memory = self.0.slot.memory().ok_or_else(over)?;
        state.turns += 1;
        state.is_over = last;
        state.messages.extend(turn.messages.iter().cloned());
        let prompt = mem::take(&mut state.prompt);
        let SessionTurn { messages, history } = turn;
        Ok(memory.end_turn(self.0.key.clone(), prompt, messages, last, history))
    }

    /// Ends the run when it is dropped.
    pub(crate) fn guard(&self) -> RunGuard {
        RunGuard(self.0.clone())
    }
}

/// Ends a run, so that what its tasks report afterwards is not added.
pub(crate) struct RunGuard(Arc<RunTurns>);

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.0.state.lock().is_over = true;
    }
}

impl fmt::Debug for TurnSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock();
        f.debug_struct("TurnSink")
            .field("thread", &self.0.slot.thread)
            .field("turns", &state.turns)
            .field("is_over", &state.is_over)
            .finish_non_exhaustive()
    }
}
