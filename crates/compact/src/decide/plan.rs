//! What of a conversation may go, and where it may be cut. Pure.

use std::ops::Range;

use steadfast_chat::{Message, Part, Role};

use super::{CompactionPolicy, Goal};

/// A conversation as the plan sees it.
#[derive(Clone, Copy)]
pub(super) struct PlanInput<'a> {
    pub(super) messages: &'a [Message],
    /// The tokens of each.
    pub(super) tokens: &'a [u64],
    /// The tokens of everything else: tools and what the provider adds.
    pub(super) fixed: u64,
    /// Which message is the summary of an earlier compaction: it is no request of the user's.
    pub(super) summary: Option<usize>,
    /// Which messages are pinned: they survive whole.
    pub(super) pinned: &'a dyn Fn(&Message) -> bool,
}

/// What can not be cut apart: a user's message, or what the model wrote with the results of its
/// calls.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unit {
    range: Range<usize>,
    /// It survives whole.
    fixed: bool,
}

/// What may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CutPlan {
    units: Vec<Unit>,
    /// The first unit of the recent messages.
    recent: usize,
    /// Units that go in any cut: up to the earlier summary, which is merged into the new one.
    least: usize,
    /// Tokens of all that can not go.
    pub(super) floor: u64,
    /// Tokens of what can not go even were there no recent messages: tools, instructions, pins and
    /// the current request.
    pub(super) required: u64,
    /// The tokens of all of it.
    pub(super) total: u64,
    enough: bool,
}

/// A possible cut: what goes, and where what stays continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Messages that go, oldest first.
    pub(super) dropped: Vec<usize>,
    /// The first message after the cut: all from here on stays.
    pub(super) at: usize,
    /// The tokens of what goes.
    pub(super) freed: u64,
}

impl CutPlan {
    /// Plans for a conversation. Linear in its messages; reads their shapes, not their texts.
    pub(super) fn new(input: &PlanInput<'_>, policy: &CompactionPolicy) -> Self {
        let list = input.messages;
        let request = current_request(list, input.summary);
        let mut units = units(list);
        for unit in &mut units {
            unit.fixed = unit.range.clone().any(|index| (input.pinned)(&list[index]))
                || unit.range.start < request.end && request.start < unit.range.end;
        }
        let border = list.len().saturating_sub(policy.keep_recent);
        let recent = units.iter().position(|unit| unit.range.end > border).unwrap_or(units.len());
        let holds = |summary: usize| units.iter().position(|unit| unit.range.contains(&summary));
        let least = input.summary.and_then(holds).map_or(1, |unit| unit + 1);
        let total = input.fixed + input.tokens.iter().sum::<u64>();
        let loose: Vec<u64> = units.iter().map(|unit| unit.cut(input).1).collect();
        let enough = list.iter().filter(|message| message.role() != Role::System).count()
            >= policy.min_messages;
        let cuttable = if enough { loose[..recent].iter().sum() } else { 0 };
        Self {
            floor: total - cuttable,
            required: total - loose.iter().sum::<u64>(),
            enough,
            least,
            units,
            recent,
            total,
        }
    }

    /// The first message that is never touched, for being recent.
    pub(super) fn recent(&self) -> usize {
        self.units.get(self.recent).map_or_else(
            || self.units.last().map_or(0, |unit| unit.range.end),
            |unit| unit.range.start,
        )
    }

    /// Whether there are enough messages to summarise any, and one that may go.
    pub(super) fn can_cut(&self) -> bool {
        self.enough
            && self.least <= self.recent
            && self.units[..self.recent].iter().any(|unit| !unit.fixed)
    }

    /// The tokens that have to go for `room` tokens to be free below the goal's target.
    pub(super) fn wanted(&self, goal: Goal, room: u64) -> u64 {
        self.total.saturating_sub(goal.target.saturating_sub(room))
    }

    /// The cuts that free so many tokens, the one that keeps most first; then those that free
    /// more; last those that free less, should the others not be acceptable to the provider for
    /// reasons that only it knows.
    pub(super) fn cuts<'a>(
        &'a self,
        input: &'a PlanInput<'_>,
        wanted: u64,
    ) -> impl Iterator<Item = Cut> + use<'a> {
        let borders = match self.units[..self.recent].iter().rposition(|unit| !unit.fixed) {
            Some(last) if self.can_cut() => self.least..(last + 2).max(self.least + 1),
            _ => 0..0,
        };
        let mut freed = 0;
        let first = (0..borders.end).find(|border| {
            let unit = border.checked_sub(1).map(|before| &self.units[before]);
            freed += unit.map_or(0, |unit| unit.cut(input).1);
            borders.contains(border) && freed >= wanted
        });
        let first = first.unwrap_or(borders.end.saturating_sub(1));
        let (more, less) = (first.max(borders.start)..borders.end, borders.start..first);
        more.chain(less.rev()).map(|border| self.cut(input, border))
    }

    /// The cut before the unit at `border`.
    fn cut(&self, input: &PlanInput<'_>, border: usize) -> Cut {
        let at = self.units.get(border).map_or(input.messages.len(), |unit| unit.range.start);
        let mut cut = Cut { dropped: Vec::new(), at, freed: 0 };
        for unit in &self.units[..border] {
            let (dropped, freed) = unit.cut(input);
            cut.dropped.extend(dropped);
            cut.freed += freed;
        }
        cut
    }
}

impl Unit {
    /// The messages that go when it goes, and their tokens: instructions never do.
    fn cut(&self, input: &PlanInput<'_>) -> (Vec<usize>, u64) {
        let range = if self.fixed { 0..0 } else { self.range.clone() };
        let goes = |index: &usize| input.messages[*index].role() != Role::System;
        let dropped: Vec<usize> = range.filter(goes).collect();
        let freed = dropped.iter().filter_map(|index| input.tokens.get(*index)).sum();
        (dropped, freed)
    }
}

/// Cuts a list into units.
fn units(list: &[Message]) -> Vec<Unit> {
    let is_model = |index: usize| list[index].role() == Role::Assistant;
    let is_system = |index: usize| list[index].role() == Role::System;
    let has_result = |index: usize| list[index].tool_results().next().is_some();
    let mut units = Vec::new();
    let mut next = 0;
    while next < list.len() {
        let start = next;
        next += 1;
        if is_model(start) {
            // The run of the model's messages, whatever instructions stand between them, and all up
            // to the last result before the model's next message.
            let run = (start..list.len()).take_while(|at| is_model(*at) || is_system(*at));
            let end = run.filter(|at| is_model(*at)).last().map_or(next, |at| at + 1);
            let reply = (end..list.len()).take_while(|at| !is_model(*at));
            next = reply.filter(|at| has_result(*at)).last().map_or(end, |at| at + 1);
        }
        // Instructions are never loose.
        let fixed = (start..next).all(is_system);
        units.push(Unit { range: start..next, fixed });
    }
    units
}

/// The user's current request: the last messages in a row in which a person speaks. A tool's result
/// a reminder that a program put in, and a summary are none.
fn current_request(list: &[Message], summary: Option<usize>) -> Range<usize> {
    let asks = |index: usize| summary != Some(index) && is_request(&list[index]);
    let Some(last) = (0..list.len()).rev().find(|index| asks(*index)) else { return 0..0 };
    let mut start = last;
    while start > 0 && asks(start - 1) && list[start].tool_results().next().is_none() {
        start -= 1;
    }
    start..last + 1
}

/// Whether a person speaks in a message.
fn is_request(message: &Message) -> bool {
    message.role() == Role::User
        && message.parts().iter().any(|part| match part {
            Part::ToolResult(_) => false,
            Part::Text(text) => {
                let text = text.text.trim();
                let is_reminder =
                    text.starts_with("<system-reminder>") && text.ends_with("</system-reminder>");
                !text.is_empty() && !is_reminder
            }
            _ => true,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> Message {
        Message::new(Role::Assistant, vec![Part::tool_call(id, "ls", "{}")])
    }

    fn none(_: &Message) -> bool {
        false
    }

    fn plan(list: &[Message], pinned: &dyn Fn(&Message) -> bool) -> (CutPlan, Vec<Vec<usize>>) {
        let tokens = vec![10; list.len()];
        let conversation =
            PlanInput { messages: list, tokens: &tokens, fixed: 5, summary: None, pinned };
        let plan = CutPlan::new(&conversation, &CompactionPolicy::default());
        let goal = Goal { target: 0, trigger: 1_000, limit: 2_000 };
        let cuts = plan.cuts(&conversation, plan.wanted(goal, 0)).map(|cut| cut.dropped).collect();
        (plan, cuts)
    }

    /// system, ask, call, result, answer, ask, call, result, call, result, answer
    fn session() -> Vec<Message> {
        vec![
            Message::system("be kind"),
            Message::user("first"),
            call("1"),
            Message::tool("1", "out"),
            Message::assistant("done"),
            Message::user("second"),
            call("2"),
            Message::tool("2", "out"),
            call("3"),
            Message::tool("3", "out"),
            Message::assistant("done"),
        ]
    }

    #[test]
    fn units_keep_calls_with_their_results() {
        let ranges: Vec<_> = units(&session()).into_iter().map(|unit| unit.range).collect();
        assert_eq!(ranges, [0..1, 1..2, 2..4, 4..5, 5..6, 6..8, 8..10, 10..11]);
    }

    #[test]
    fn a_run_of_the_models_messages_is_one_unit_and_its_instructions_are_kept() {
        let list = [
            Message::user("a"),
            call("1"),
            Message::system("hurry"),
            call("2"),
            Message::new(Role::User, vec![Part::tool_result("1", "x")]),
            Message::tool("2", "x"),
            Message::user("b"),
            Message::assistant("c"),
            Message::user("d"),
            Message::assistant("e"),
        ];
        let ranges: Vec<_> = units(&list).into_iter().map(|unit| unit.range).collect();
        assert_eq!(ranges, [0..1, 1..6, 6..7, 7..8, 8..9, 9..10]);
        let (_, cuts) = plan(&list, &none);
        assert_eq!(cuts[0], [0, 1, 3, 4, 5], "the instruction at 2 stays");
    }

    #[test]
    fn recent_messages_instructions_and_the_request_are_kept() {
        let (plan, cuts) = plan(&session(), &none);
        assert_eq!(plan.recent(), 6, "message 7 is recent, and a result keeps its call");
        assert_eq!(cuts[0], [1, 2, 3, 4], "not the instructions at 0, not the request at 5");
        assert_eq!(plan.total, 115);
        assert_eq!(plan.floor, 75);
        assert_eq!(plan.required, 25, "tools, instructions and the request");
        let lengths: Vec<_> = cuts.iter().map(Vec::len).collect();
        assert_eq!(lengths, [4, 3, 1, 0], "and never more than asked for first");
    }

    #[test]
    fn pins_keep_their_unit() {
        let is_pinned = |message: &Message| message.tool_results().any(|result| result.id == "1");
        let (plan, cuts) = plan(&session(), &is_pinned);
        assert_eq!(cuts[0], [1, 4]);
        assert_eq!(plan.floor, 95);
    }

    #[test]
    fn few_messages_are_not_changed() {
        let list: Vec<_> = session().into_iter().take(6).collect();
        let (plan, cuts) = plan(&list, &none);
        assert!(!plan.can_cut(), "five and an instruction");
        assert_eq!(plan.floor, plan.total);
        assert!(cuts.is_empty());
    }

    #[test]
    fn no_more_goes_than_has_to() {
        let list = session();
        let tokens = vec![10; list.len()];
        let conversation =
            PlanInput { messages: &list, tokens: &tokens, fixed: 5, summary: None, pinned: &none };
        let plan = CutPlan::new(&conversation, &CompactionPolicy::default());
        let goal = Goal { target: 100, trigger: 1_000, limit: 2_000 };
        let first = |room| plan.cuts(&conversation, plan.wanted(goal, room)).next().unwrap();
        assert_eq!(first(0).dropped, [1, 2, 3], "15 too many");
        assert_eq!(first(20).dropped, [1, 2, 3, 4], "and 20 for the summary");
        assert_eq!(first(20).freed, 40);
    }

    #[test]
    fn results_and_reminders_are_no_request() {
        let mut list = session();
        list.push(Message::user("<system-reminder>Mind the gap.</system-reminder>"));
        list.push(Message::new(Role::User, vec![Part::tool_result("x", "out")]));
        list.push(Message::user("  "));
        assert_eq!(current_request(&list, None), 5..6);
        list.push(Message::user("third"));
        list.push(Message::new(Role::User, vec![Part::image("image/png", "AAAA")]));
        assert_eq!(current_request(&list, None), 14..16, "two messages in a row are one request");
        assert_eq!(current_request(&list, Some(15)), 14..15, "a summary is none");
        assert_eq!(current_request(&[], None), 0..0);
    }
}
