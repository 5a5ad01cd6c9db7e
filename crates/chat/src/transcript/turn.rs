//! Turns, and who answers whom in them.

use std::{collections::HashMap, ops::Range};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::{Message, Part, Role, ToolCall, ToolResult};

/// Whatever holds a message.
pub(super) trait Holds {
    fn message(&self) -> &Message;
}

impl Holds for Message {
    fn message(&self) -> &Message {
        self
    }
}

/// What the model said, and what came back until it spoke again.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    /// The model's messages; none in a turn that opens the conversation.
    pub(super) model: Range<usize>,
    /// Everything up to its next message.
    pub(super) reply: Range<usize>,
}

impl Turn {
    /// Whether a person spoke in the reply: something other than results in a user's message.
    pub(super) fn has_user<H: Holds>(&self, list: &[H]) -> bool {
        list[self.reply.clone()].iter().map(Holds::message).any(|message| {
            message.role() == Role::User
                && message.parts().iter().any(|part| part.as_tool_result().is_none())
        })
    }

    /// Whether results are in the reply.
    pub(super) fn has_results<H: Holds>(&self, list: &[H]) -> bool {
        let results = |held: &H| held.message().tool_results().next().is_some();
        list[self.reply.clone()].iter().any(results)
    }

    /// Whether instructions are all the reply has, if anything.
    pub(super) fn is_unanswered<H: Holds>(&self, list: &[H]) -> bool {
        list[self.reply.clone()].iter().all(|held| held.message().role() == Role::System)
    }

    /// The parts of the model's messages.
    pub(super) fn model_parts<'a, H: Holds>(
        &self,
        list: &'a [H],
    ) -> impl Iterator<Item = (Spot, &'a Part)> + use<'a, H> {
        self.model.clone().flat_map(move |message| {
            let parts = list[message].message().parts().iter().enumerate();
            parts.map(move |(part, value)| (Spot { message, part }, value))
        })
    }
}

/// Cuts a conversation into turns. With `merges`, neighbouring messages of the model are one turn.
pub(super) fn turns<H: Holds>(list: &[H], merges: bool) -> impl Iterator<Item = Turn> {
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
        let spoken = next;
        while next < list.len() && !is_model(next) {
            next += 1;
        }
        Some(Turn { model: start..spoken, reply: spoken..next })
    })
}

/// A part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Spot {
    pub(super) message: usize,
    pub(super) part: usize,
}

impl Spot {
    pub(super) fn get<H: Holds>(self, list: &[H]) -> &Part {
        &list[self.message].message().parts()[self.part]
    }

    pub(super) fn call<H: Holds>(self, list: &[H]) -> Option<&ToolCall> {
        self.get(list).as_tool_call()
    }

    pub(super) fn result<H: Holds>(self, list: &[H]) -> Option<&ToolResult> {
        self.get(list).as_tool_result()
    }
}

/// Why a result answers nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stray {
    /// Its call has a result already.
    Duplicate,
    /// No call of this turn is meant.
    Orphan,
    /// It stands in a message that can not hold results.
    Misplaced,
}

/// Who answers whom in one turn.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    pub(super) calls: SmallVec<[Spot; 4]>,
    /// The result of each call.
    pub(super) answers: SmallVec<[Option<Spot>; 4]>,
    /// The calls answered, in the order of their results.
    pub(super) order: SmallVec<[usize; 4]>,
    /// Results that answer nothing.
    pub(super) strays: SmallVec<[(Spot, Stray); 1]>,
}

/// Pairs the calls of a turn with the results in its reply: by id, or, where one of the two has
/// none, by the tool's name; the first result to the first call that fits. Linear in the number of
/// parts, and without memory of its own for up to four calls answered in their order.
pub(super) fn pair<H: Holds>(list: &[H], turn: &Turn) -> Pairs {
    let mut pairs = Pairs::default();
    for (spot, part) in turn.model_parts(list) {
        match part {
            Part::ToolCall(_) => pairs.calls.push(spot),
            Part::ToolResult(_) => pairs.strays.push((spot, Stray::Misplaced)),
            _ => {}
        }
    }
    pairs.answers.resize(pairs.calls.len(), None);
    let mut first_open = 0;
    let mut index = None;
    for message in turn.reply.clone() {
        let held = list[message].message();
        for (part, value) in held.parts().iter().enumerate() {
            let Part::ToolResult(result) = value else { continue };
            let spot = Spot { message, part };
            if held.role() == Role::System {
                pairs.strays.push((spot, Stray::Misplaced));
                continue;
            }
            while pairs.answers.get(first_open).is_some_and(Option::is_some) {
                first_open += 1;
            }
            let next = pairs.calls.get(first_open).and_then(|spot| spot.call(list));
            let found = if next.is_some_and(|call| fits(call, result)) {
                Ok(first_open)
            } else {
                let index = index.get_or_insert_with(|| Index::new(list, &pairs.calls));
                index.find(result, &pairs.answers)
            };
            match found {
                Ok(call) => {
                    pairs.answers[call] = Some(spot);
                    pairs.order.push(call);
                }
                Err(stray) => pairs.strays.push((spot, stray)),
            }
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
struct Index<'a> {
    by_id: Queues<'a>,
    by_name: Queues<'a>,
    /// The calls without an id.
    nameless: Queues<'a>,
}

type Queues<'a> = HashMap<&'a str, Queue, RandomState>;

/// Calls that go by the same id or name, in order.
#[derive(Default)]
struct Queue {
    calls: Vec<usize>,
    /// Those before it are answered.
    head: usize,
}

impl Queue {
    fn first_open(&mut self, answers: &[Option<Spot>]) -> Option<usize> {
        while let Some(call) = self.calls.get(self.head) {
            if answers[*call].is_none() {
                return Some(*call);
            }
            self.head += 1;
        }
        None
    }
}

impl<'a> Index<'a> {
    fn new<H: Holds>(list: &'a [H], calls: &[Spot]) -> Self {
        let mut index = Self {
            by_id: Queues::default(),
            by_name: Queues::default(),
            nameless: Queues::default(),
        };
        for (number, spot) in calls.iter().enumerate() {
            let Some(call) = spot.call(list) else { continue };
            let queue = if call.id.is_empty() { &mut index.nameless } else { &mut index.by_id };
            let key = if call.id.is_empty() { &call.name } else { &call.id };
            queue.entry(key.as_str()).or_default().calls.push(number);
            index.by_name.entry(call.name.as_str()).or_default().calls.push(number);
        }
        index
    }

    fn find(&mut self, result: &ToolResult, answers: &[Option<Spot>]) -> Result<usize, Stray> {
        let name = result.name.as_deref();
        let queue = if result.id.is_empty() {
            name.and_then(|name| self.by_name.get_mut(name))
        } else if let Some(queue) = self.by_id.get_mut(result.id.as_str()) {
            Some(queue)
        } else {
            name.and_then(|name| self.nameless.get_mut(name))
        };
        let queue = queue.ok_or(Stray::Orphan)?;
        queue.first_open(answers).ok_or(Stray::Duplicate)
    }
}
