//! A request under repair.

use std::borrow::Cow;

use super::{
    Position, Repair, TranscriptRule, TranscriptRules,
    turn::{HasMessage, PartIndex, PartPath, parts},
};
use crate::{ChatRequest, Message, Part, Role, SharedParams, SharedVec, Tool};

/// A request under repair. Messages that no step changes stay the same.
pub(super) struct Draft<'a> {
    pub(super) rules: &'a TranscriptRules,
    pub(super) messages: Vec<Slot>,
    pub(super) tools: &'a mut SharedVec<Tool>,
    pub(super) params: &'a mut SharedParams,
    target: &'a mut SharedVec<Message>,
    /// The tools before any repair.
    old_tools: SharedVec<Tool>,
    done: Vec<Repair>,
}

/// A message and its original index.
#[derive(Clone)]
pub(super) struct Slot {
    pub(super) message: Message,
    /// Its index before any repair; for an inserted message, that of the one it belongs to.
    pub(super) original: usize,
}

impl HasMessage for Slot {
    fn message(&self) -> &Message {
        &self.message
    }
}

impl Slot {
    /// The same message with other parts.
    pub(super) fn with_parts(&self, parts: Vec<Part>) -> Self {
        let mut slot = self.clone();
        *slot.message.parts_mut() = parts;
        slot
    }
}

impl<'a> Draft<'a> {
    pub(super) fn new(request: &'a mut ChatRequest, rules: &'a TranscriptRules) -> Self {
        let messages = request.messages.iter().enumerate();
        Self {
            rules,
            messages: messages
                .map(|(original, message)| Slot { message: message.clone(), original })
                .collect(),
            old_tools: request.tools.clone(),
            tools: &mut request.tools,
            params: &mut request.params,
            target: &mut request.messages,
            done: Vec::new(),
        }
    }

    /// The messages before any repair.
    pub(super) fn before(&self) -> &[Message] {
        self.target
    }

    /// Whether the tools are others than before.
    pub(super) fn has_new_tools(&self) -> bool {
        *self.tools != self.old_tools
    }

    /// Records what was done at `at`, which has the indices of this draft.
    pub(super) fn record(
        &mut self,
        rule: TranscriptRule,
        at: impl Into<Position>,
        what: impl Into<Cow<'static, str>>,
    ) {
        let original = |index: usize| self.messages[index].original;
        let at = match at.into() {
            Position::Message(message) => Position::Message(original(message)),
            Position::Part { message, part } => Position::Part { message: original(message), part },
            other => other,
        };
        self.done.push(Repair { rule, at, what: what.into() });
    }

    /// A part to be changed.
    pub(super) fn part_mut(&mut self, path: impl Into<PartPath>) -> Option<&mut Part> {
        let PartPath { at, nested } = path.into();
        let part = self.messages[at.message].message.parts_mut().get_mut(at.part)?;
        match (nested, part) {
            (None, part) => Some(part),
            (Some(index), Part::ToolResult(result)) => result.content.get_mut(index),
            (Some(_), _) => None,
        }
    }

    /// Removes the parts for which `fault` has a rule and a report, and the messages that are left
    /// without parts.
    pub(super) fn remove_parts(
        &mut self,
        mut fault: impl FnMut(PartIndex, Role, &Part) -> Option<(TranscriptRule, &'static str)>,
    ) {
        let faults: Vec<_> = parts(&self.messages)
            .filter_map(|(at, role, part)| Some((at, fault(at, role, part)?)))
            .collect();
        for (at, (rule, what)) in &faults {
            self.record(*rule, *at, *what);
        }
        let mut removed = faults.into_iter().map(|(at, _)| at).peekable();
        let mut index = 0;
        self.messages.retain_mut(|slot| {
            let message = index;
            index += 1;
            if removed.peek().is_none_or(|at| at.message != message) {
                return true;
            }
            let mut part = 0;
            slot.message.parts_mut().retain(|_| {
                let at = PartIndex { message, part };
                part += 1;
                removed.next_if_eq(&at).is_none()
            });
            !slot.message.parts().is_empty()
        });
    }

    /// Removes what `fault` has a rule for from the content of tool results.
    pub(super) fn remove_from_results(
        &mut self,
        fault: impl Fn(&Part) -> Option<TranscriptRule>,
        what: &'static str,
    ) {
        let faults: Vec<_> = parts(&self.messages)
            .filter_map(|(at, _, part)| {
                Some((at, part.as_tool_result()?.content.iter().find_map(&fault)?))
            })
            .collect();
        for (at, rule) in faults {
            if let Some(Part::ToolResult(result)) = self.part_mut(at) {
                result.content.retain(|part| fault(part).is_none());
            }
            self.record(rule, at, what);
        }
    }

    /// Writes the messages back, if any has changed.
    pub(super) fn finish(self) -> Vec<Repair> {
        let unchanged = self.messages.len() == self.target.len()
            && self.messages.iter().zip(self.target.iter()).all(|(a, b)| a.message.same(b));
        if !unchanged {
            *self.target = self.messages.into_iter().map(|slot| slot.message).collect();
        }
        self.done
    }
}
