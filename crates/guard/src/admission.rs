//! Calls in an answer that somebody else will run: those beyond a limit are not let through.

use std::collections::VecDeque;

use steadfast_chat::{Delta, Event, Stop as Ending, StopReason, ToolCall};
use tokio::time::Instant;

use crate::{
    Kind, Stop, Verdict,
    signature::{CallFacts, Compiled},
    state::{TaskEvent, TaskState},
    stop::Name,
};

/// The calls of one answer.
///
/// A call beyond a limit is replaced, in its own block, by text that says so: what the caller runs
/// and sends back is exactly what was let through, and every call has its result. An edit can be
/// judged only when its file is known, at its end; when that could matter the rest of the answer is
/// held back until then, which delays nothing, since calls are run when an answer has ended.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    state: Box<TaskState>,
    /// Edits, whose files are not counted yet.
    edits: Vec<Edit>,
    /// Blocks of calls that are not let through.
    refused: Vec<u32>,
    /// Why.
    stop: Option<Stop>,
    /// The answer shows why.
    explained: bool,
    /// The stop was reported.
    reported: bool,
    /// Calls that are let through.
    passed: u32,
    /// Held back.
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
            Verdict::Stop(stop) => {
                self.refused.push(block);
                self.stop.get_or_insert(stop);
            }
            Verdict::Fine | Verdict::Warn(_) => {
                self.passed += 1;
                if facts.kind == Kind::Edit {
                    self.edit(c, block, name);
                }
            }
        }
    }

    fn edit(&mut self, c: &Compiled, block: u32, name: &str) {
        let Some(limit) = c.policy.limits.edits_per_file else { return };
        let here = u32::try_from(self.edits.len()).unwrap_or(u32::MAX);
        // Should all of them be of the file with the most edits already.
        self.holding |= self.state.files.most.saturating_add(here) >= limit;
        let call = ToolCall { name: name.to_owned(), ..ToolCall::default() };
        self.edits.push(Edit { block, call, held: self.holding });
    }

    /// A piece of a call's arguments.
    pub(crate) fn arguments(&mut self, block: u32, json: &str) {
        if let Some(edit) = self.edits.iter_mut().rev().find(|edit| edit.block == block) {
            edit.call.arguments.push_str(json);
        }
    }

    /// Why, when no call is let through.
    pub(crate) fn refuses_all(&self) -> Option<&Stop> {
        self.stop.as_ref().filter(|_| self.passed == 0)
    }

    /// Why calls were refused, the first time that it is asked for.
    pub(crate) fn take_unreported(&mut self) -> Option<&Stop> {
        let stop = self.stop.as_ref()?;
        (!std::mem::replace(&mut self.reported, true)).then_some(stop)
    }

    /// The answer is complete: counts the edits by file.
    pub(crate) fn judge_edits(&mut self, c: &Compiled) {
        let now = Instant::now();
        for edit in std::mem::take(&mut self.edits) {
            let files = c.call(&edit.call).files;
            if let Verdict::Stop(stop) = self.state.on(c, TaskEvent::Edit(&files), now)
                && edit.held
            {
                self.refused.push(edit.block);
                self.passed = self.passed.saturating_sub(1);
                self.stop.get_or_insert(stop);
            }
        }
    }

    /// What was held back; nothing is from now on.
    pub(crate) fn release(&mut self) -> VecDeque<Event> {
        self.holding = false;
        std::mem::take(&mut self.held)
    }

    /// Puts text in place of the calls that are refused.
    pub(crate) fn rewrite(&mut self, event: &mut Event) {
        if self.refused.is_empty() {
            return;
        }
        let (refused, passed) = (&self.refused, self.passed);
        let touched = |delta: &Delta| match delta {
            Delta::ToolCall { index, .. }
            | Delta::Arguments { index, .. }
            | Delta::Signature { index, .. } => refused.contains(index),
            Delta::Stop(stop) => passed == 0 && stop.reason == StopReason::ToolUse,
            _ => false,
        };
        if !event.deltas.iter().any(touched) {
            event.frame = None;
            return;
        }
        let deltas = event.deltas_mut();
        let was = std::mem::take(deltas);
        deltas.extend(was.into_iter().filter_map(|delta| match delta {
            delta if !touched(&delta) => Some(delta),
            Delta::ToolCall { index, name, .. } => {
                Some(Delta::Text { index, text: refusal(&self.stop, &mut self.explained, &name) })
            }
            Delta::Stop(_) => Some(Delta::Stop(Ending::from(StopReason::EndTurn))),
            _ => None,
        }));
    }
}

/// What stands in place of a call: why, for the first of them.
fn refusal(stop: &Option<Stop>, explained: &mut bool, name: &str) -> String {
    match stop {
        Some(stop) if !std::mem::replace(explained, true) => stop.message(),
        _ => format!("`{}` was not called either.", Name(name)),
    }
}
