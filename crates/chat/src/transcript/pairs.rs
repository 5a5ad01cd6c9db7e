//! S3 to S7: every call has one result, in its own turn, at the right position.

use std::collections::{HashMap, HashSet, VecDeque};

use smallvec::SmallVec;

use super::{
    Position, TranscriptRule, TranscriptRules,
    draft::{Draft, Slot},
    error_text,
    outcome::Findings,
    turn::{HasMessage, Pairs, PartIndex, Turn, Unmatched, pair, turns},
};
use crate::{ChatRequest, Message, Part, Role, ToolCall, ToolResult};

/// The result of a call that has none. It says what is true: nothing is known about the effects of
/// the call.
const NO_RESULT: &str = "No result: the call was interrupted or its result was lost. It may or may not have taken effect.";

pub(super) fn check(request: &ChatRequest, rules: &TranscriptRules, found: &mut Findings) {
    let list = &*request.messages;
    let dialect = rules.dialect;
    // The ids of calls without a result so far: a later result of one belongs to its batch.
    let mut open: HashSet<&str> = HashSet::new();
    for turn in turns(list, rules.merges) {
        let pairs = pair(list, &turn);
        for (at, answer) in pairs.calls.iter().zip(&pairs.answers) {
            if answer.is_none() {
                let id = call_id(list, *at);
                open.insert(id);
                let text = error_text::unanswered(dialect, at.message, id);
                found.push(TranscriptRule::Answered, *at, text);
            }
        }
        for (at, reason) in &pairs.unmatched {
            let id = result_id(list, *at);
            let (rule, text) = match reason {
                Unmatched::Duplicate => {
                    (TranscriptRule::Duplicate, error_text::duplicate(dialect, *at, id))
                }
                Unmatched::Orphan if open.contains(id) => {
                    (TranscriptRule::Batch, error_text::orphan(dialect, *at, id))
                }
                Unmatched::Orphan => (TranscriptRule::Orphan, error_text::orphan(dialect, *at, id)),
                Unmatched::Misplaced => {
                    (TranscriptRule::Orphan, error_text::misplaced(dialect, *at, at.get(list)))
                }
            };
            found.push(rule, *at, text);
        }
        if let Some((call, at)) = disorder(list, &turn, &pairs, rules) {
            let call = pairs.calls[call];
            let id = call_id(list, call);
            let text = error_text::disorder(dialect, call.message, at, id);
            found.push(TranscriptRule::Order, at, text);
        }
    }
}

fn call_id<H: HasMessage>(list: &[H], at: PartIndex) -> &str {
    at.call(list).map_or("", |call| &call.id)
}

fn result_id<H: HasMessage>(list: &[H], at: PartIndex) -> &str {
    at.result(list).map_or("", |result| &result.id)
}

/// The first result at a wrong position, and its call.
fn disorder<H: HasMessage>(
    list: &[H],
    turn: &Turn,
    pairs: &Pairs,
    rules: &TranscriptRules,
) -> Option<(usize, PartIndex)> {
    let result_of = |call: usize| pairs.answers[call].map(|at| (call, at));
    if rules.results_in_order
        && let Some(pair) = pairs.order.windows(2).find(|pair| pair[0] > pair[1])
    {
        return result_of(pair[1]);
    }
    if !rules.results_first || pairs.order.is_empty() {
        return None;
    }
    let first_other = turn.reply.clone().find_map(|message| {
        let parts = list[message].message().parts();
        let part = parts.iter().position(|part| part.as_tool_result().is_none())?;
        Some(PartIndex { message, part })
    })?;
    pairs.order.iter().copied().filter_map(result_of).find(|(_, at)| *at > first_other)
}

/// How one turn is repaired.
struct Plan {
    turn: Turn,
    pairs: Pairs,
    /// For calls without a result in their turn: the result in another one.
    moved: SmallVec<[Option<PartIndex>; 4]>,
    /// A result is at a wrong position.
    disordered: bool,
}

impl Plan {
    /// Whether the reply must be rebuilt.
    fn is_damaged(&self) -> bool {
        self.disordered
            || self.pairs.order.len() < self.pairs.calls.len()
            || self.pairs.unmatched.iter().any(|(at, _)| self.turn.reply.contains(&at.message))
    }

    /// Whether results are among the model's own parts.
    fn has_misplaced(&self) -> bool {
        self.pairs.unmatched.iter().any(|(at, _)| self.turn.model.contains(&at.message))
    }
}

pub(super) fn repair(draft: &mut Draft<'_>) {
    let rules = draft.rules;
    let list = draft.messages.clone();
    let mut plans: Vec<Plan> = turns(&list, rules.merges)
        .map(|turn| {
            let pairs = pair(&list, &turn);
            let disordered = disorder(&list, &turn, &pairs, rules).is_some();
            Plan { moved: SmallVec::from_elem(None, pairs.calls.len()), turn, pairs, disordered }
        })
        .collect();
    match_elsewhere(draft, &list, &mut plans);

    let mut out = Vec::with_capacity(list.len());
    for plan in &plans {
        for index in plan.turn.model.clone() {
            match &list[index] {
                slot if plan.has_misplaced() => out.extend(without_results(slot)),
                slot => out.push(slot.clone()),
            }
        }
        if plan.is_damaged() {
            Reply { draft, list: &list, plan, out: &mut out }.rebuild();
        } else {
            out.extend_from_slice(&list[plan.turn.reply.clone()]);
        }
    }
    draft.messages = out;
}

/// Moves results that match no call of their turn to the first unanswered call of their id; the
/// others are dropped.
fn match_elsewhere(draft: &mut Draft<'_>, list: &[Slot], plans: &mut [Plan]) {
    if plans.iter().all(|plan| plan.pairs.unmatched.is_empty()) {
        return;
    }
    let mut open: HashMap<&str, VecDeque<(usize, usize)>> = HashMap::new();
    for (number, plan) in plans.iter().enumerate() {
        for (call, at) in plan.pairs.calls.iter().enumerate() {
            let id = call_id(list, *at);
            if plan.pairs.answers[call].is_none() && !id.is_empty() {
                open.entry(id).or_default().push_back((number, call));
            }
        }
    }
    let mut moves = Vec::new();
    for (at, reason) in plans.iter().flat_map(|plan| &plan.pairs.unmatched) {
        let call = match reason {
            Unmatched::Duplicate => None,
            Unmatched::Orphan | Unmatched::Misplaced => {
                open.get_mut(result_id(list, *at)).and_then(VecDeque::pop_front)
            }
        };
        let (rule, what) = match (call, reason) {
            (Some(_), _) => (TranscriptRule::Batch, "result moved back to its call"),
            (None, Unmatched::Duplicate) => {
                (TranscriptRule::Duplicate, "second result of one call dropped")
            }
            (None, _) => (TranscriptRule::Orphan, "result without a call dropped"),
        };
        moves.extend(call.map(|call| (call, *at)));
        draft.record(rule, *at, what);
    }
    for ((number, call), at) in moves {
        plans[number].moved[call] = Some(at);
    }
}

/// The message without its results, if anything is left.
fn without_results(slot: &Slot) -> Option<Slot> {
    let parts = slot.message.parts();
    let is_other = |part: &&Part| part.as_tool_result().is_none();
    match parts.iter().filter(is_other).count() {
        rest if rest == parts.len() => Some(slot.clone()),
        0 => None,
        _ => Some(slot.with_parts(parts.iter().filter(is_other).cloned().collect())),
    }
}

/// The answer to one call in a rebuilt reply.
#[derive(Clone, Copy)]
enum Answer {
    /// A result of the same reply.
    Here(PartIndex),
    /// A result of another turn.
    Moved(PartIndex),
    /// None: to be made.
    Missing(PartIndex),
}

/// Rebuilds a reply: the results, then the rest. Messages of which all parts stay together are not
/// changed.
struct Reply<'d, 'r, 'o> {
    draft: &'d mut Draft<'r>,
    list: &'o [Slot],
    plan: &'o Plan,
    out: &'o mut Vec<Slot>,
}

impl Reply<'_, '_, '_> {
    fn rebuild(&mut self) {
        let answers = self.answers();
        if self.plan.disordered
            && let Some(first) = self.plan.turn.reply.clone().next()
        {
            let what = "results put where the provider expects them";
            self.draft.record(TranscriptRule::Order, Position::Message(first), what);
        }
        // The first message with something besides results in it: it may stay one message.
        let first_rest = self.plan.turn.reply.clone().find(|index| {
            let parts = self.list[*index].message.parts();
            parts.is_empty() || parts.iter().any(|part| part.as_tool_result().is_none())
        });
        let mut joined = None;
        let mut next = 0;
        while let Some(answer) = answers.get(next) {
            let Answer::Here(first) = *answer else {
                let is_inserted = |answer: &&Answer| !matches!(answer, Answer::Here(_));
                let count = answers[next..].iter().take_while(is_inserted).count();
                self.insert(&answers[next..next + count]);
                next += count;
                continue;
            };
            let mut chosen: SmallVec<[usize; 8]> = SmallVec::new();
            while let Some(Answer::Here(at)) = answers.get(next)
                && at.message == first.message
            {
                chosen.push(at.part);
                next += 1;
            }
            if next == answers.len() && first_rest == Some(first.message) {
                joined = first_rest;
                chosen.extend(others(&self.list[first.message]));
            }
            self.push_parts(first.message, &chosen);
        }
        for index in self.plan.turn.reply.clone() {
            let slot = &self.list[index];
            if joined == Some(index) {
                continue;
            }
            if slot.message.parts().is_empty() {
                self.out.push(slot.clone());
                continue;
            }
            let rest: SmallVec<[usize; 8]> = others(slot).collect();
            if !rest.is_empty() {
                self.push_parts(index, &rest);
            }
        }
    }

    /// The results in their order: that of the calls where it matters, else as they came, with
    /// what was missing at the end.
    fn answers(&self) -> Vec<Answer> {
        let pairs = &self.plan.pairs;
        let answer = |call: usize| match (pairs.answers[call], self.plan.moved[call]) {
            (Some(at), _) => Answer::Here(at),
            (None, Some(at)) => Answer::Moved(at),
            (None, None) => Answer::Missing(pairs.calls[call]),
        };
        let calls = 0..pairs.calls.len();
        if self.draft.rules.results_in_order {
            return calls.map(answer).collect();
        }
        let missing = calls.filter(|call| pairs.answers[*call].is_none());
        pairs.order.iter().copied().chain(missing).map(answer).collect()
    }

    /// Inserts results that were not in this reply: a message of another turn unchanged, when the
    /// result is all of it, else in messages of the dialect's own role.
    fn insert(&mut self, answers: &[Answer]) {
        let last = self.plan.turn.model.clone().next_back();
        let original = last.map_or(0, |last| self.list[last].original);
        let role = self.draft.rules.result_role();
        let mut parts = Vec::new();
        for answer in answers {
            match answer {
                Answer::Here(at) | Answer::Moved(at) => {
                    let slot = &self.list[at.message];
                    if slot.message.parts().len() == 1
                        && matches!(slot.message.role(), Role::User | Role::Tool)
                    {
                        self.push_results(role, original, &mut parts);
                        self.out.push(slot.clone());
                    } else {
                        parts.push(at.get(self.list).clone());
                    }
                }
                Answer::Missing(at) => {
                    let what = "answered with a failed result";
                    self.draft.record(TranscriptRule::Answered, *at, what);
                    parts.extend(at.call(self.list).map(failed));
                }
            }
        }
        self.push_results(role, original, &mut parts);
    }

    fn push_results(&mut self, role: Role, original: usize, parts: &mut Vec<Part>) {
        let parts = std::mem::take(parts);
        if role == Role::Tool {
            let each = parts.into_iter().map(|part| Message::new(role, vec![part]));
            self.out.extend(each.map(|message| Slot { message, original }));
        } else if !parts.is_empty() {
            self.out.push(Slot { message: Message::new(role, parts), original });
        }
    }

    /// Pushes the chosen parts of a message; the message itself, when that is all of it.
    fn push_parts(&mut self, index: usize, chosen: &[usize]) {
        let slot = &self.list[index];
        let parts = slot.message.parts();
        if chosen.iter().copied().eq(0..parts.len()) {
            self.out.push(slot.clone());
        } else {
            let parts = chosen.iter().map(|part| parts[*part].clone()).collect();
            self.out.push(slot.with_parts(parts));
        }
    }
}

/// The result of a call that has none.
fn failed(call: &ToolCall) -> Part {
    Part::ToolResult(ToolResult {
        id: call.id.clone(),
        name: Some(call.name.clone()),
        content: vec![Part::text(NO_RESULT)],
        is_error: true,
        ..ToolResult::default()
    })
}

/// The parts of a message that are no results.
fn others(slot: &Slot) -> impl Iterator<Item = usize> + '_ {
    let parts = slot.message.parts().iter().enumerate();
    parts.filter(|(_, part)| part.as_tool_result().is_none()).map(|(index, _)| index)
}
