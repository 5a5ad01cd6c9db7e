//! S3 to S7: every call has one result, in its own turn, in its place.

use std::collections::{HashMap, HashSet, VecDeque};

use smallvec::SmallVec;

use super::{
    Place, Rule, Rules,
    draft::{Draft, Slot},
    outcome::Findings,
    turn::{Holds, Pairs, Spot, Stray, Turn, pair, turns},
    words,
};
use crate::{ChatRequest, Message, Part, Role, ToolCall, ToolResult};

/// What a call is answered with that nobody answered. The model is told the truth: that nothing is
/// known about the call's effects.
const NO_RESULT: &str = "No result: the call was interrupted or its result was lost. It may or may not have taken effect.";

pub(super) fn check(request: &ChatRequest, rules: &Rules, found: &mut Findings) {
    let list = &*request.messages;
    let dialect = rules.dialect;
    // The ids of calls without a result so far: a result of theirs that turns up later strayed
    // from its batch.
    let mut open: HashSet<&str> = HashSet::new();
    for turn in turns(list, rules.merges) {
        let pairs = pair(list, &turn);
        for (call, answer) in pairs.calls.iter().zip(&pairs.answers) {
            if answer.is_none() {
                let id = call.call(list).map_or("", |call| &call.id);
                open.insert(id);
                let words = words::unanswered(dialect, call.message, id);
                found.part(Rule::Answered, call.message, call.part, words);
            }
        }
        for (spot, stray) in &pairs.strays {
            let id = spot.result(list).map_or("", |result| &result.id);
            let (rule, words) = match stray {
                Stray::Duplicate => (Rule::Duplicate, words::duplicate(dialect, *spot, id)),
                Stray::Orphan if open.contains(id) => {
                    (Rule::Batch, words::orphan(dialect, *spot, id))
                }
                Stray::Orphan => (Rule::Orphan, words::orphan(dialect, *spot, id)),
                Stray::Misplaced => {
                    (Rule::Orphan, words::misplaced(dialect, *spot, spot.get(list)))
                }
            };
            found.part(rule, spot.message, spot.part, words);
        }
        if let Some((call, spot)) = disorder(list, &turn, &pairs, rules) {
            let id = pairs.calls[call].call(list).map_or("", |call| &call.id);
            let words = words::disorder(dialect, pairs.calls[call].message, spot, id);
            found.part(Rule::Order, spot.message, spot.part, words);
        }
    }
}

/// The first result that stands in the wrong place, and its call.
fn disorder<H: Holds>(
    list: &[H],
    turn: &Turn,
    pairs: &Pairs,
    rules: &Rules,
) -> Option<(usize, Spot)> {
    let spot_of = |call: usize| pairs.answers[call].map(|spot| (call, spot));
    if rules.results_in_order
        && let Some(pair) = pairs.order.windows(2).find(|pair| pair[0] > pair[1])
    {
        return spot_of(pair[1]);
    }
    if !rules.results_first || pairs.order.is_empty() {
        return None;
    }
    let first_other = turn.reply.clone().find_map(|message| {
        let parts = list[message].message().parts();
        let part = parts.iter().position(|part| part.as_tool_result().is_none())?;
        Some(Spot { message, part })
    })?;
    pairs.order.iter().copied().filter_map(spot_of).find(|(_, spot)| *spot > first_other)
}

/// What becomes of one turn.
struct Plan {
    turn: Turn,
    pairs: Pairs,
    /// For calls without a result of their own: the result that strayed elsewhere.
    adopted: SmallVec<[Option<Spot>; 4]>,
    /// A result stands in the wrong place.
    disordered: bool,
}

impl Plan {
    /// Whether the reply must be put together anew.
    fn is_damaged(&self) -> bool {
        self.disordered
            || self.pairs.order.len() < self.pairs.calls.len()
            || self.pairs.strays.iter().any(|(spot, _)| self.turn.reply.contains(&spot.message))
    }

    /// Whether results stand among the model's own parts.
    fn has_misplaced(&self) -> bool {
        self.pairs.strays.iter().any(|(spot, _)| self.turn.model.contains(&spot.message))
    }
}

pub(super) fn mend(draft: &mut Draft<'_>) {
    let rules = draft.rules;
    let list = std::mem::take(&mut draft.messages);
    let mut plans: Vec<Plan> = turns(&list, rules.merges)
        .map(|turn| {
            let pairs = pair(&list, &turn);
            let disordered = disorder(&list, &turn, &pairs, rules).is_some();
            Plan { adopted: SmallVec::from_elem(None, pairs.calls.len()), turn, pairs, disordered }
        })
        .collect();
    adopt(draft, &list, &mut plans);

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

/// Gives results that strayed to the first unanswered call of their id; the others are dropped.
fn adopt(draft: &mut Draft<'_>, list: &[Slot], plans: &mut [Plan]) {
    if plans.iter().all(|plan| plan.pairs.strays.is_empty()) {
        return;
    }
    let mut open: HashMap<&str, VecDeque<(usize, usize)>> = HashMap::new();
    for (number, plan) in plans.iter().enumerate() {
        for (call, spot) in plan.pairs.calls.iter().enumerate() {
            let id = spot.call(list).map_or("", |call| &call.id);
            if plan.pairs.answers[call].is_none() && !id.is_empty() {
                open.entry(id).or_default().push_back((number, call));
            }
        }
    }
    let mut adoptions = Vec::new();
    for (spot, stray) in plans.iter().flat_map(|plan| &plan.pairs.strays) {
        let at = Place::Part { message: list[spot.message].from, part: spot.part };
        let id = spot.result(list).map_or("", |result| &result.id);
        let parent = match stray {
            Stray::Duplicate => None,
            Stray::Orphan | Stray::Misplaced => open.get_mut(id).and_then(VecDeque::pop_front),
        };
        match (parent, stray) {
            (Some(parent), _) => {
                adoptions.push((parent, *spot));
                draft.did(Rule::Batch, at, "result moved back to its call");
            }
            (None, Stray::Duplicate) => {
                draft.did(Rule::Duplicate, at, "second result of one call dropped");
            }
            (None, _) => draft.did(Rule::Orphan, at, "result without a call dropped"),
        }
    }
    for ((number, call), spot) in adoptions {
        plans[number].adopted[call] = Some(spot);
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

/// What stands in a reply for one call.
#[derive(Clone, Copy)]
enum Answer {
    /// A result of the same reply.
    Here(Spot),
    /// A result from elsewhere.
    Adopted(Spot),
    /// Nobody's: to be made.
    Missing(Spot),
}

/// A reply that is put together anew: the results, then the rest. Messages that come out whole
/// stay the same.
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
            let at = Place::Message(self.list[first].from);
            self.draft.did(Rule::Order, at, "results put where the provider expects them");
        }
        // The first message of which something is left besides results: it may go on in one piece.
        let first_rest = self.plan.turn.reply.clone().find(|index| {
            let parts = self.list[*index].message.parts();
            parts.is_empty() || parts.iter().any(|part| part.as_tool_result().is_none())
        });
        let mut joined = None;
        let mut at = 0;
        while let Some(answer) = answers.get(at) {
            let Answer::Here(first) = *answer else {
                let run =
                    answers[at..].iter().take_while(|a| !matches!(a, Answer::Here(_))).count();
                self.put_in(&answers[at..at + run]);
                at += run;
                continue;
            };
            let mut chosen: SmallVec<[usize; 8]> = SmallVec::new();
            while let Some(Answer::Here(spot)) = answers.get(at)
                && spot.message == first.message
            {
                chosen.push(spot.part);
                at += 1;
            }
            if at == answers.len() && first_rest == Some(first.message) {
                joined = first_rest;
                chosen.extend(others(&self.list[first.message]));
            }
            self.pass(first.message, &chosen);
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
                self.pass(index, &rest);
            }
        }
    }

    /// The results in their order: that of the calls where it matters, else as they came, with
    /// what was missing at the end.
    fn answers(&self) -> Vec<Answer> {
        let pairs = &self.plan.pairs;
        let answer = |call: usize| match (pairs.answers[call], self.plan.adopted[call]) {
            (Some(spot), _) => Answer::Here(spot),
            (None, Some(spot)) => Answer::Adopted(spot),
            (None, None) => Answer::Missing(pairs.calls[call]),
        };
        let calls = 0..pairs.calls.len();
        if self.draft.rules.results_in_order {
            return calls.map(answer).collect();
        }
        let missing = calls.filter(|call| pairs.answers[*call].is_none());
        pairs.order.iter().copied().chain(missing).map(answer).collect()
    }

    /// Puts in results that did not stand in this reply: a message from elsewhere as it is, when
    /// the result is all of it, else in messages of the dialect's own kind.
    fn put_in(&mut self, answers: &[Answer]) {
        let last = self.plan.turn.model.clone().next_back();
        let from = last.map_or(0, |last| self.list[last].from);
        let role = self.draft.rules.result_role();
        let mut parts = Vec::new();
        for answer in answers {
            match answer {
                Answer::Here(spot) | Answer::Adopted(spot) => {
                    let slot = &self.list[spot.message];
                    if slot.message.parts().len() == 1
                        && matches!(slot.message.role(), Role::User | Role::Tool)
                    {
                        self.push_results(role, from, &mut parts);
                        self.out.push(slot.clone());
                    } else {
                        parts.push(spot.get(self.list).clone());
                    }
                }
                Answer::Missing(spot) => {
                    let message = self.list[spot.message].from;
                    let at = Place::Part { message, part: spot.part };
                    self.draft.did(Rule::Answered, at, "answered with a failed result");
                    parts.extend(spot.call(self.list).map(failed));
                }
            }
        }
        self.push_results(role, from, &mut parts);
    }

    fn push_results(&mut self, role: Role, from: usize, parts: &mut Vec<Part>) {
        let parts = std::mem::take(parts);
        if role == Role::Tool {
            let each = parts.into_iter().map(|part| Message::new(role, vec![part]));
            self.out.extend(each.map(|message| Slot { message, from }));
        } else if !parts.is_empty() {
            self.out.push(Slot { message: Message::new(role, parts), from });
        }
    }

    /// Passes on the chosen parts of a message; the message itself, when that is all of it.
    fn pass(&mut self, index: usize, chosen: &[usize]) {
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
        extra: None,
    })
}

/// The parts of a message that are no results.
fn others(slot: &Slot) -> impl Iterator<Item = usize> + '_ {
    let parts = slot.message.parts().iter().enumerate();
    parts.filter(|(_, part)| part.as_tool_result().is_none()).map(|(index, _)| index)
}
