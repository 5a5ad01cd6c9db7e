//! A request under repair.

use std::borrow::Cow;

use super::{Place, Repair, Rule, Rules, turn::Holds};
use crate::{ChatRequest, Message, Params, Part, Role, SharedVec, Tool};

/// A request under repair. Messages that no step touches stay the same.
pub(super) struct Draft<'a> {
    pub(super) rules: &'a Rules,
    pub(super) messages: Vec<Slot>,
    pub(super) tools: &'a mut SharedVec<Tool>,
    pub(super) params: &'a mut Params,
    target: &'a mut SharedVec<Message>,
    done: Vec<Repair>,
}

/// A message, and which one it was.
#[derive(Clone)]
pub(super) struct Slot {
    pub(super) message: Message,
    /// Its index before any repair; for a message put in, that of the one it belongs to.
    pub(super) from: usize,
}

impl Holds for Slot {
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

    /// A part of the message, or one inside a result, to be changed.
    pub(super) fn part_mut(&mut self, part: usize, nested: Option<usize>) -> Option<&mut Part> {
        let part = self.message.parts_mut().get_mut(part)?;
        match (nested, part) {
            (None, part) => Some(part),
            (Some(index), Part::ToolResult(result)) => result.content.get_mut(index),
            (Some(_), _) => None,
        }
    }
}

impl<'a> Draft<'a> {
    pub(super) fn new(request: &'a mut ChatRequest, rules: &'a Rules) -> Self {
        let messages = request
            .messages
            .iter()
            .enumerate()
            .map(|(from, message)| Slot { message: message.clone(), from })
            .collect();
        Self {
            rules,
            messages,
            tools: &mut request.tools,
            params: &mut request.params,
            target: &mut request.messages,
            done: Vec::new(),
        }
    }

    /// Notes what was done.
    pub(super) fn did(&mut self, rule: Rule, at: Place, what: impl Into<Cow<'static, str>>) {
        self.done.push(Repair { rule, at, what: what.into() });
    }

    /// Notes what was done to a message.
    pub(super) fn did_to(&mut self, rule: Rule, index: usize, what: impl Into<Cow<'static, str>>) {
        let at = Place::Message(self.messages[index].from);
        self.did(rule, at, what);
    }

    /// Takes parts away: those for which `fault` has a rule and words. A message left without any
    /// part goes too; the list is only closed up by [`sweep`](Draft::sweep).
    pub(super) fn take_parts(
        &mut self,
        index: usize,
        mut fault: impl FnMut(usize, &Part) -> Option<(Rule, &'static str)>,
    ) -> bool {
        let slot = &self.messages[index];
        let from = slot.from;
        let mut doomed = Vec::new();
        for (part, value) in slot.message.parts().iter().enumerate() {
            if let Some((rule, what)) = fault(part, value) {
                self.done.push(Repair {
                    rule,
                    at: Place::Part { message: from, part },
                    what: what.into(),
                });
                doomed.push(part);
            }
        }
        if doomed.is_empty() {
            return false;
        }
        let mut doomed = doomed.into_iter().peekable();
        let mut index_of = 0;
        self.messages[index].message.parts_mut().retain(|_| {
            let goes = doomed.next_if_eq(&index_of).is_some();
            index_of += 1;
            !goes
        });
        true
    }

    /// Removes messages that an edit has left without parts: those at `emptied`, in order.
    pub(super) fn sweep(&mut self, emptied: &[usize]) {
        let mut emptied = emptied.iter().peekable();
        let mut index = 0;
        self.messages.retain(|slot| {
            let edited = emptied.next_if(|at| **at == index).is_some();
            index += 1;
            !(edited && slot.message.parts().is_empty())
        });
    }

    /// Takes parts away in all messages, and the messages that this empties.
    pub(super) fn take_all(
        &mut self,
        mut fault: impl FnMut(usize, Role, usize, &Part) -> Option<(Rule, &'static str)>,
    ) {
        let mut edited = Vec::new();
        for index in 0..self.messages.len() {
            let role = self.messages[index].message.role();
            if self.take_parts(index, |part, value| fault(index, role, part, value)) {
                edited.push(index);
            }
        }
        self.sweep(&edited);
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
