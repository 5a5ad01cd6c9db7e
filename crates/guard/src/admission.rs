//! The calls of an answer that run outside this process: those beyond a limit are removed.

use std::collections::VecDeque;

use steadfast_chat::{Delta, Event, Stop, StopReason, ToolCall};
use tokio::time::Instant;

use crate::{
    GuardVerdict, Kind, SafetyStop,
    signature::{CallFacts, Compiled},
    state::{TaskEvent, TaskState},
    stop::Name,
};

/// The calls of one answer.
///
/// A call beyond a limit is replaced, in its block, by text that says so: the caller runs only the
/// calls that were let through, and every call has its result. An edit can be checked only at its
/// end, when its file is known; when it could be beyond the limit the rest of the answer is held back
/// until then, which delays nothing, since calls are run when an answer has ended.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    state: Box<TaskState>,
    /// Edits, whose files are not counted yet.
    edits: Vec<Edit>,
    /// Blocks of calls that are not let through.
    refused: Vec<u32>,
    /// Why they are refused.
    stop: Option<SafetyStop>,
    /// The answer contains the reason.
    explained: bool,
    /// The stop was reported.
    reported: bool,
    /// Calls that are let through.
    passed: u32,
    /// Events that are held back.
    pub(crate) held: VecDeque<Event>,
    /// Whether events are to be held back.
    pub(crate) holding: bool,
}

#[derive(Debug)]
struct Edit {
    block: u32,
    call: ToolCall,
    held: bool,
}

impl Admission {
    pub(crate) fn new(state: Box<TaskState>) -> Self {
        Self { state, ..Self::default() }
    }

    /// A call begins.
    pub(crate) fn call(&mut self, c: &Compiled, block: u32, name: &str) {
        let facts = CallFacts::named(c.tool(name));
        match self.state.on(c, TaskEvent::Call(&facts), Instant::now()) {
            GuardVerdict::Stop(stop) => {
                self.refused.push(block);
                self.stop.get_or_insert(stop);
            }
            GuardVerdict::Fine | GuardVerdict::Warn(_) => {
                self.passed += 1;
                if facts.kind == Kind::Edit {
                    self.edit(c, block, name);
                }
            }
        }
    }

    fn edit(&mut self, c: &Compiled, block: u32, name: &str) {
        let Some(limit) = self.state.limits(c).edits_per_file else { return };
        let edits = u32::try_from(self.edits.len()).unwrap_or(u32::MAX);
        // All of them may be edits of the file with the most edits so far.
        self.holding |= self.state.files.most.saturating_add(edits) >= limit;
        let call = ToolCall { name: name.to_owned(), ..ToolCall::default() };
        self.edits.push(Edit { block, call, held: self.holding });
    }

    /// A piece of a call's arguments.
    pub(crate) fn arguments(&mut self, block: u32, json: &str) {
        if let Some(edit) = self.edits.iter_mut().rev().find(|edit| edit.block == block) {
            edit.call.arguments.push_str(json);
        }
    }

    /// The stop, when no call is let through.
    pub(crate) fn refuses_all(&self) -> Option<&SafetyStop> {
        self.stop.as_ref().filter(|_| self.passed == 0)
    }

    /// Why calls were refused; only the first call of this returns it.
    pub(crate) fn take_unreported(&mut self) -> Option<&SafetyStop> {
        let stop = self.stop.as_ref()?;
        (!std::mem::replace(&mut self.reported, true)).then_some(stop)
    }

    /// The answer is complete: counts the edits by file.
    pub(crate) fn check_edits(&mut self, c: &Compiled) {
        let now = Instant::now();
        for edit in std::mem::take(&mut self.edits) {
            let files = c.call(&edit.call).files;
            if let GuardVerdict::Stop(stop) = self.state.on(c, TaskEvent::Edit(&files), now)
                && edit.held
            {
                self.refused.push(edit.block);
                self.passed = self.passed.saturating_sub(1);
                self.stop.get_or_insert(stop);
            }
        }
    }

    /// Takes the events that were held back; further ones are not.
    pub(crate) fn release(&mut self) -> VecDeque<Event> {
        self.holding = false;
        std::mem::take(&mut self.held)
    }

    /// Replaces the calls that are refused by text.
    pub(crate) fn rewrite(&mut self, event: &mut Event) {
        if self.refused.is_empty() {
            return;
        }
        let (refused, passed) = (&self.refused, self.passed);
        let is_refused = |delta: &Delta| match delta {
            Delta::ToolCall { index, .. }
            | Delta::Arguments { index, .. }
            | Delta::Signature { index, .. } => refused.contains(index),
            Delta::Stop(stop) => passed == 0 && stop.reason == StopReason::ToolUse,
            _ => false,
        };
        if !event.deltas.iter().any(is_refused) {
            event.frame = None;
            return;
        }
        let deltas = event.deltas_mut();
        let all = std::mem::take(deltas);
        deltas.extend(all.into_iter().filter_map(|delta| match delta {
            delta if !is_refused(&delta) => Some(delta),
            Delta::ToolCall { index, name, .. } => {
                Some(Delta::Text { index, text: refusal(&self.stop, &mut self.explained, &name) })
            }
            Delta::Stop(_) => Some(Delta::Stop(Stop::from(StopReason::EndTurn))),
            _ => None,
        }));
    }
}

/// The text that replaces a call: the reason, for the first of them.
fn refusal(stop: &Option<SafetyStop>, explained: &mut bool, name: &str) -> String {
    match stop {
        Some(stop) if !std::mem::replace(explained, true) => stop.message(),
        _ => format!("`{}` was not called either.", Name(name)),
    }
}
