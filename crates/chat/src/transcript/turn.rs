//! Turns, and which result answers which call in them.

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::{Message, Part, Role, ToolCall, ToolResult};

/// A message, or an entry of a list that has one.
pub(super) trait HasMessage {
    fn message(&self) -> &Message;
}

impl HasMessage for Message {
    fn message(&self) -> &Message {
        self
    }
}

/// The index of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PartIndex {
    pub(super) message: usize,
    pub(super) part: usize,
}

impl PartIndex {
    pub(super) fn get<H: HasMessage>(self, list: &[H]) -> &Part {
        &list[self.message].message().parts()[self.part]
    }

    pub(super) fn call<H: HasMessage>(self, list: &[H]) -> Option<&ToolCall> {
        self.get(list).as_tool_call()
    }

    pub(super) fn result<H: HasMessage>(self, list: &[H]) -> Option<&ToolResult> {
        self.get(list).as_tool_result()
    }
}

/// All parts, with the role of their message.
pub(super) fn parts<H: HasMessage>(list: &[H]) -> impl Iterator<Item = (PartIndex, Role, &Part)> {
    parts_in(list, 0..list.len())
}

fn parts_in<H: HasMessage>(
    list: &[H],
    messages: Range<usize>,
) -> impl Iterator<Item = (PartIndex, Role, &Part)> {
    messages.flat_map(|message| {
        let held = list[message].message();
        let parts = held.parts().iter().enumerate();
        parts.map(move |(part, value)| (PartIndex { message, part }, held.role(), value))
    })
}

/// A part of a message, or one inside a tool result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartPath {
    pub(super) at: PartIndex,
    /// The index inside the result.
    pub(super) nested: Option<usize>,
}

impl From<PartIndex> for PartPath {
    fn from(at: PartIndex) -> Self {
        Self { at, nested: None }
    }
}

/// All parts and those inside tool results, each of these before its result.
pub(super) fn nested_parts<H: HasMessage>(
    list: &[H],
) -> impl Iterator<Item = (PartPath, Role, &Part)> {
    parts(list).flat_map(|(at, role, part)| {
        let content = part.as_tool_result().map_or(&[][..], |result| &result.content);
        let nested = move |(index, part)| (PartPath { at, nested: Some(index) }, role, part);
        content.iter().enumerate().map(nested).chain([(PartPath::from(at), role, part)])
    })
}

/// Messages of the model, and the reply to them.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    /// The model's messages; none in a turn that opens the conversation.
    pub(super) model: Range<usize>,
    /// Everything up to its next message.
    pub(super) reply: Range<usize>,
}

impl Turn {
    /// Whether a person wrote in the reply: something other than results in a user's message.
    pub(super) fn has_user<H: HasMessage>(&self, list: &[H]) -> bool {
        list[self.reply.clone()].iter().map(HasMessage::message).any(|message| {
            message.role() == Role::User
                && message.parts().iter().any(|part| part.as_tool_result().is_none())
        })
    }

    /// Whether results are in the reply.
    pub(super) fn has_results<H: HasMessage>(&self, list: &[H]) -> bool {
        let results = |held: &H| held.message().tool_results().next().is_some();
        list[self.reply.clone()].iter().any(results)
    }

    /// Whether the reply has nothing but instructions, or nothing at all.
    pub(super) fn is_unanswered<H: HasMessage>(&self, list: &[H]) -> bool {
        list[self.reply.clone()].iter().all(|held| held.message().role() == Role::System)
    }

    /// The parts of the model's messages.
    pub(super) fn model_parts<'a, H: HasMessage>(
        &self,
        list: &'a [H],
    ) -> impl Iterator<Item = (PartIndex, &'a Part)> + use<'a, H> {
        parts_in(list, self.model.clone()).map(|(at, _, part)| (at, part))
    }
}

/// Splits a conversation into turns. With `merges`, neighbouring messages of the model are one turn.
pub(super) fn turns<H: HasMessage>(list: &[H], merges: bool) -> impl Iterator<Item = Turn> {
    let is_model = move |index: usize| {
        list.get(index).is_some_and(|held| held.message().role() == Role::Assistant)
    };
    let mut next = 0;
    std::iter::from_fn(move || {
        if next >= list.len() {
            return None;
        }
        let start = next;
        while is_model(next) && (merges || next == start) {
            next += 1;
        }
        let reply = next;
        while next < list.len() && !is_model(next) {
            next += 1;
        }
        Some(Turn { model: start..reply, reply: reply..next })
    })
}

/// Why a result answers no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unmatched {
    /// Its call has a result already.
    Duplicate,
    /// No call of this turn has its id or name.
    Orphan,
    /// Its message can not hold results.
    Misplaced,
}

/// The calls of one turn and their results.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    pub(super) calls: SmallVec<[PartIndex; 4]>,
    /// The result of each call.
    pub(super) answers: SmallVec<[Option<PartIndex>; 4]>,
    /// The calls answered, in the order of their results.
    pub(super) order: SmallVec<[usize; 4]>,
    /// Results that answer no call.
    pub(super) unmatched: SmallVec<[(PartIndex, Unmatched); 1]>,
}

/// Pairs the calls of a turn with the results in its reply: by id, or, where one of the two has
/// none, by the tool's name; the first result to the first call that fits. Linear in the number of
/// parts, and without memory of its own for up to four calls answered in their order.
pub(super) fn pair<H: HasMessage>(list: &[H], turn: &Turn) -> Pairs {
    let mut pairs = Pairs::default();
    for (at, part) in turn.model_parts(list) {
        match part {
            Part::ToolCall(_) => pairs.calls.push(at),
            Part::ToolResult(_) => pairs.unmatched.push((at, Unmatched::Misplaced)),
            _ => {}
        }
    }
    pairs.answers.resize(pairs.calls.len(), None);
    let mut first_open = 0;
    let mut index = None;
    for (at, role, part) in parts_in(list, turn.reply.clone()) {
        let Part::ToolResult(result) = part else { continue };
        if role == Role::System {
            pairs.unmatched.push((at, Unmatched::Misplaced));
            continue;
        }
        while pairs.answers.get(first_open).is_some_and(Option::is_some) {
            first_open += 1;
        }
        let next = pairs.calls.get(first_open).and_then(|at| at.call(list));
        let found = if next.is_some_and(|call| fits(call, result)) {
            Ok(first_open)
        } else {
            let index = index.get_or_insert_with(|| Index::new(list, &pairs.calls));
            index.find(result, &pairs.answers)
        };
        match found {
            Ok(call) => {
                pairs.answers[call] = Some(at);
                pairs.order.push(call);
            }
            Err(reason) => pairs.unmatched.push((at, reason)),
        }
    }
    pairs
}

/// Whether a result can be the answer to a call.
fn fits(call: &ToolCall, result: &ToolResult) -> bool {
    if call.id.is_empty() || result.id.is_empty() {
        result.name.as_ref().is_none_or(|name| *name == call.name)
    } else {
        call.id == result.id
    }
}

/// Finds calls whose results come out of order.
#[derive(Default)]
struct Index<'a> {
    by_id: Queues<'a>,
    by_name: Queues<'a>,
    /// The calls without an id, by name.
    without_id: Queues<'a>,
}

/// The calls of one id or name in order. Those in front that are answered go when one is looked for.
type Queues<'a> = HashMap<&'a str, VecDeque<usize>, RandomState>;

impl<'a> Index<'a> {
    fn new<H: HasMessage>(list: &'a [H], calls: &[PartIndex]) -> Self {
        let mut index = Self::default();
        for (number, at) in calls.iter().enumerate() {
            let Some(call) = at.call(list) else { continue };
            let (queues, key) = match call.id.as_str() {
                "" => (&mut index.without_id, &*call.name),
                id => (&mut index.by_id, id),
            };
            queues.entry(key).or_default().push_back(number);
            index.by_name.entry(&call.name).or_default().push_back(number);
        }
        index
    }

    fn find(
        &mut self,
        result: &ToolResult,
        answers: &[Option<PartIndex>],
    ) -> Result<usize, Unmatched> {
        let name = result.name.as_deref();
        let queue = if result.id.is_empty() {
            name.and_then(|name| self.by_name.get_mut(name))
        } else if let Some(queue) = self.by_id.get_mut(result.id.as_str()) {
            Some(queue)
        } else {
            name.and_then(|name| self.without_id.get_mut(name))
        };
        let queue = queue.ok_or(Unmatched::Orphan)?;
        while queue.front().is_some_and(|call| answers[*call].is_some()) {
            queue.pop_front();
        }
        queue.front().copied().ok_or(Unmatched::Duplicate)
    }
}
