//! Calls in an answer that somebody else will run: those beyond a limit do not get through.

use std::collections::VecDeque;

use steadfast_chat::{Delta, Event, Stop as Ending, StopReason, ToolCall};
use tokio::time::Instant;

use crate::{Kind, Stop, ledger::Ledger, signature::Compiled, stop::Name};

/// The calls of one answer.
///
/// A call beyond a limit is replaced, in its own block, by words that say so: what the caller runs
/// and sends back is exactly what was let through, and every call has its result. An edit can be
/// judged only when its file is known, at its end; when that could matter the rest of the answer is
/// held back until then, which delays nothing, since calls are run when an answer has ended.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    ledger: Box<Ledger>,
    /// Edits, whose files are not counted yet.
    edits: Vec<Edit>,
    /// Blocks of calls that are not let through.
    refused: Vec<u32>,
    /// The answer says why.
    explained: bool,
    /// Why.
    pub(crate) stop: Option<Stop>,
    /// That it was told of.
    pub(crate) told: bool,
    /// Calls that are.
    pub(crate) passed: u32,
    /// Held back.
    held: VecDeque<Event>,
    pub(crate) holding: bool,
}

#[derive(Debug)]
struct Edit {
    block: u32,
    call: ToolCall,
    held: bool,
}

impl Gate {
    pub(crate) fn new(ledger: Box<Ledger>) -> Self {
        Self { ledger, ..Self::default() }
    }

    /// A call begins.
    pub(crate) fn call(&mut self, c: &Compiled, block: u32, name: &str) {
        match self.ledger.admit_named(c, name, Instant::now()) {
            Ok(kind) => {
                self.passed += 1;
                if kind == Kind::Edit {
                    self.edit(c, block, name);
                }
            }
            Err(stop) => {
                self.refused.push(block);
                self.stop.get_or_insert(stop);
            }
        }
    }

    fn edit(&mut self, c: &Compiled, block: u32, name: &str) {
        let Some(limit) = c.policy.limits.edits_per_file else { return };
        let here = u32::try_from(self.edits.len()).unwrap_or(u32::MAX);
        // Should all of them be of the file with the most edits already.
        self.holding |= self.ledger.counters.most_edits().saturating_add(here) >= limit;
        let call = ToolCall { name: name.to_owned(), ..ToolCall::default() };
        self.edits.push(Edit { block, call, held: self.holding });
    }

    /// A piece of a call's arguments.
    pub(crate) fn arguments(&mut self, block: u32, json: &str) {
        if let Some(edit) = self.edits.iter_mut().rev().find(|edit| edit.block == block) {
            edit.call.arguments.push_str(json);
        }
    }

    pub(crate) fn hold(&mut self, event: Event) {
        self.held.push_back(event);
    }

    /// Whether anything has to be rewritten.
    pub(crate) fn refuses(&self) -> bool {
        !self.refused.is_empty()
    }

    /// The answer is complete: counts the edits by file, and hands out what was held back.
    pub(crate) fn settle(&mut self, c: &Compiled) -> VecDeque<Event> {
        let now = Instant::now();
        for edit in std::mem::take(&mut self.edits) {
            let facts = c.facts(&edit.call);
            if let Err(stop) = self.ledger.admit_files(c, &facts.files, now)
                && edit.held
            {
                self.refused.push(edit.block);
                self.passed = self.passed.saturating_sub(1);
                self.stop.get_or_insert(stop);
            }
        }
        self.holding = false;
        std::mem::take(&mut self.held)
    }

    /// What was held back, its edits unjudged: the answer broke off.
    pub(crate) fn release(&mut self) -> VecDeque<Event> {
        self.holding = false;
        std::mem::take(&mut self.held)
    }

    /// Puts words in the place of the calls that are not let through.
    pub(crate) fn rewrite(&mut self, event: &mut Event) {
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
                Some(Delta::Text { index, text: words(&self.stop, &mut self.explained, &name) })
            }
            Delta::Stop(_) => Some(Delta::Stop(Ending::from(StopReason::EndTurn))),
            _ => None,
        }));
    }
}

/// What stands in the place of a call: why, for the first of them.
fn words(stop: &Option<Stop>, explained: &mut bool, name: &str) -> String {
    match stop {
        Some(stop) if !std::mem::replace(explained, true) => stop.message(),
        _ => format!("`{}` was not called either.", Name(name)),
    }
}
