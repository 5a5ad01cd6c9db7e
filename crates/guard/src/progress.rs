//! Loop detection: the part of a task's state that sees calls and their results.
//!
//! It counts repetitions without a change in between. Memory is bounded and each call costs the same,
//! however long the task.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use foldhash::fast::RandomState;

use crate::{
    Kind, LoopRule, LoopRules, Strikes,
    signature::{CallFacts, ResultFacts},
};

/// What a call and its result mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// Nothing.
    Fine,
    /// A poll that found nothing new: how long to wait.
    Wait(Duration),
    /// The model should be advised.
    Warn(LoopRule, u32),
    /// The task is stopped, after advice.
    Stop(LoopRule, u32),
}

impl Finding {
    fn weight(self) -> u8 {
        match self {
            Finding::Fine => 0,
            Finding::Wait(_) => 1,
            Finding::Warn(..) => 2,
            Finding::Stop(..) => 3,
        }
    }

    fn or(self, other: Self) -> Self {
        if other.weight() > self.weight() { other } else { self }
    }
}

/// A past call, for the detection of cycles.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    pair: u64,
    poll: bool,
    changed: bool,
}

/// The state of a cycle of one period.
#[derive(Clone, Copy, Debug, Default)]
struct Cycle {
    /// Calls in a row that equalled the one a period before.
    run: u32,
    warned: u32,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Calls with their results.
    pairs: Seen,
    /// Tools with their results.
    answers: Seen,
    /// Polls, whatever their results.
    polls: Seen,
    /// New pairs so far.
    news: u32,
    /// New answers so far.
    new_answers: u32,
    /// Calls that changed something, or may have, and polls that found a change.
    barrier: u32,
    /// Those of them that were new.
    new_barrier: u32,
    /// The last three calls, the last one first.
    past: [Past; 3],
    seen: u32,
    /// The cycles of period 2 and 3.
    cycles: [Cycle; 2],
    /// Answers of the model so far: advice is seen by the next one.
    round: u32,
}

impl Progress {
    /// The model has answered: it saw all advice given before.
    pub(crate) fn answered(&mut self) {
        self.round = self.round.saturating_add(1);
    }

    /// A turn of the user: everything starts again.
    pub(crate) fn reset(&mut self) {
        *self = Self { round: self.round, ..Self::default() };
    }

    /// Records a call and its result.
    pub(crate) fn observe(
        &mut self,
        rules: &LoopRules,
        facts: &CallFacts<'_>,
        result: ResultFacts,
    ) -> Finding {
        let poll = facts.kind == Kind::Poll;
        let factor = if poll { rules.poll_factor } else { 1 };
        let changed = matches!(facts.kind, Kind::Mutating | Kind::Edit) && !result.failed;
        let pair = mix(facts.signature, result.hash);
        let new = self.pairs.get(pair).is_none();
        self.news = self.news.saturating_add(u32::from(new));
        let answer = mix(facts.tool_hash(), result.hash);
        // A shell may have changed something: assumed for a new command with a new result.
        let may_have = facts.kind == Kind::Other
            && !result.failed
            && new
            && (result.trivial || self.answers.get(answer).is_none());
        // What is waited for makes progress.
        let found_change = poll && self.polled(facts.signature) && new && !result.failed;
        self.barrier = self.barrier.wrapping_add(u32::from(changed || may_have || found_change));
        self.new_barrier = self.new_barrier.wrapping_add(u32::from(changed && new));

        // A repeated change does not restart its own count.
        let barrier = if changed { self.new_barrier } else { self.barrier };
        let (rule, strikes) = match result.failed {
            true => (LoopRule::SameError, rules.same_error),
            false => (LoopRule::SameResult, rules.same_result),
        };
        let entry = self.pairs.count(pair, barrier, self.news, rules.forget_after);
        let count = entry.count;
        let mut found = strike(rule, strikes, factor, count, self.round, &mut entry.warned);
        // The same result to different arguments.
        if new && !changed && !result.trivial {
            let new = u32::from(self.answers.get(answer).is_none());
            self.new_answers = self.new_answers.saturating_add(new);
            let (rule, strikes) = (LoopRule::SameAnswer, rules.same_answer);
            let (news, forget_after) = (self.new_answers, rules.forget_after);
            let entry = self.answers.count(answer, self.barrier, news, forget_after);
            let count = entry.count;
            found = found.or(strike(rule, strikes, factor, count, self.round, &mut entry.warned));
        }
        found = found.or(self.cycle(rules, Past { pair, poll, changed }));
        if poll && found == Finding::Fine && !new {
            found = wait(rules, count).map_or(Finding::Fine, Finding::Wait);
        }
        found
    }

    /// Whether there was this poll before.
    fn polled(&mut self, signature: u64) -> bool {
        self.polls.count(signature, 0, 0, u32::MAX).count > 1
    }

    /// Detects two or three calls in turn.
    fn cycle(&mut self, rules: &LoopRules, now: Past) -> Finding {
        let mut found = Finding::Fine;
        for (cycle, period) in self.cycles.iter_mut().zip([2_u32, 3]) {
            let length = period as usize;
            let others = &self.past[..length - 1];
            let again = self.seen >= period
                && self.past[length - 1].pair == now.pair
                && others.iter().any(|past| past.pair != now.pair);
            // A cycle with a change in it is work, unless all its calls are the same changes.
            let changes = others.iter().chain([&now]).filter(|past| past.changed).count();
            if !again || (changes > 0 && changes < length) {
                *cycle = Cycle::default();
                continue;
            }
            cycle.run = cycle.run.saturating_add(1);
            let poll = now.poll || others.iter().any(|past| past.poll);
            let factor = if poll { rules.poll_factor } else { 1 };
            let cycles = (cycle.run + period) / period;
            let (rule, round) = (LoopRule::Cycle, self.round);
            found = found.or(strike(rule, rules.cycle, factor, cycles, round, &mut cycle.warned));
        }
        self.past.rotate_right(1);
        self.past[0] = now;
        self.seen = self.seen.saturating_add(1);
        found
    }

    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.pairs.len() + self.answers.len() + self.polls.len()
    }
}

/// The finding for `count`. A stop needs advice that the model has seen before this call, and so does
/// further advice: the calls of one answer were made before the model saw any.
fn strike(
    rule: LoopRule,
    strikes: Option<Strikes>,
    factor: u32,
    count: u32,
    round: u32,
    warned: &mut u32,
) -> Finding {
    let Some(strikes) = strikes.map(|strikes| strikes.times(factor)) else { return Finding::Fine };
    if count < strikes.warn {
        return Finding::Fine;
    }
    let now = round.saturating_add(1);
    if *warned == now {
        return Finding::Fine;
    }
    let advised = *warned > 0;
    if advised && count >= strikes.stop {
        return Finding::Stop(rule, count);
    }
    *warned = now;
    Finding::Warn(rule, count)
}

/// How long to wait when a poll found the same `count` times.
pub(crate) fn wait(rules: &LoopRules, count: u32) -> Option<Duration> {
    let last = rules.poll_waits.len().checked_sub(1)?;
    let at = usize::try_from(count.checked_sub(2)?).unwrap_or(last);
    rules.poll_waits.get(at.min(last)).copied()
}

fn mix(one: u64, other: u64) -> u64 {
    // Odd, so that no bit of either is lost.
    (one.rotate_left(23) ^ other).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Entries kept of one kind: a kilobyte for every 32 of them. Loops of a longer period are stopped by
/// the limits.
const MAX_SEEN: usize = 512;

/// The count of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// How often since the count last started.
    count: u32,
    /// The number of changes when the count started.
    barrier: u32,
    /// The number of new pairs when it was last seen.
    news: u32,
    /// One more than the round in which advice was last given; 0 for none.
    warned: u32,
}

/// The last [`MAX_SEEN`] new keys, with their counts.
#[derive(Clone, Debug, Default)]
struct Seen {
    known: HashMap<u64, Entry, RandomState>,
    order: VecDeque<u64>,
}

impl Seen {
    fn get(&self, key: u64) -> Option<&Entry> {
        self.known.get(&key)
    }

    /// Counts one more; from one, when something has changed or enough was new in between.
    fn count(&mut self, key: u64, barrier: u32, news: u32, forget_after: u32) -> &mut Entry {
        if !self.known.contains_key(&key) {
            if self.order.len() >= MAX_SEEN
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
            self.order.push_back(key);
        }
        let entry = self.known.entry(key).or_default();
        if entry.barrier != barrier || news.saturating_sub(entry.news) > forget_after {
            *entry = Entry { barrier, ..Entry::default() };
        }
        entry.count += 1;
        entry.news = news;
        entry
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.known.len().max(self.order.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::ToolLimits;

    fn facts(tool: &'static str, signature: u64, kind: Kind) -> CallFacts<'static> {
        let limits = ToolLimits::default();
        CallFacts { tool: tool.into(), kind, limits, signature, files: Vec::new() }
    }

    fn returned(hash: u64) -> ResultFacts {
        ResultFacts { hash, failed: false, trivial: false }
    }

    /// One call a round: the name is the tool and the arguments, the number the result.
    fn seen(progress: &mut Progress, call: &'static str, result: u64) -> Finding {
        let kind = match call.as_bytes()[0] {
            b'p' => Kind::Poll,
            b'm' => Kind::Mutating,
            b's' => Kind::Other,
            _ => Kind::ReadOnly,
        };
        let failed = call.starts_with('f');
        progress.answered();
        let signature = call.bytes().fold(7, |hash, byte| mix(hash, u64::from(byte)));
        let outcome = ResultFacts { failed, ..returned(result) };
        progress.observe(&LoopRules::default(), &facts(call, signature, kind), outcome)
    }

    fn run(calls: &[(&'static str, u64)]) -> Vec<Finding> {
        let mut progress = Progress::default();
        calls.iter().map(|(call, result)| seen(&mut progress, call, *result)).collect()
    }

    /// The calls at which a trace is first advised and stopped, counted from 1.
    fn marks(calls: &[(&'static str, u64)]) -> (Option<usize>, Option<usize>) {
        let found = run(calls);
        let first = |weight| found.iter().position(|f| f.weight() == weight).map(|at| at + 1);
        (first(2), first(3))
    }

    fn again(cycle: &[(&'static str, u64)], times: usize) -> Vec<(&'static str, u64)> {
        cycle.repeat(times)
    }

    /// A call that waits, and after each a poll.
    fn poll_between(found: impl Fn(u64) -> u64) -> Vec<(&'static str, u64)> {
        (0..40).flat_map(|at| [("s", 1), ("p", 100 + found(at))]).collect()
    }

    #[test]
    fn each_rule_warns_and_stops_at_its_counts() {
        for (what, calls, wanted) in [
            ("the same call", again(&[("a", 1)], 9), (Some(3), Some(5))),
            ("a failing call", again(&[("f", 1)], 9), (Some(2), Some(4))),
            ("two in turn", again(&[("a", 1), ("b", 2)], 9), (Some(5), Some(8))),
            ("three in turn", again(&[("a", 1), ("b", 2), ("c", 3)], 9), (Some(7), Some(12))),
            (
                "five in turn",
                again(&[("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)], 9),
                (Some(11), Some(21)),
            ),
            ("polls", again(&[("p", 1)], 30), (Some(12), Some(20))),
            ("a shell", again(&[("s", 1)], 9), (Some(3), Some(5))),
            ("two shells in turn", again(&[("s1", 1), ("s2", 2)], 9), (Some(6), Some(8))),
            (
                "build, new command",
                vec![("f", 1), ("s1", 1), ("f", 1), ("s2", 2), ("f", 1), ("s3", 3), ("f", 1)],
                (None, None),
            ),
            ("the same change", again(&[("m", 1)], 9), (Some(3), Some(5))),
            ("two changes in turn", again(&[("m1", 1), ("m2", 2)], 9), (Some(6), Some(8))),
            ("build, edit", again(&[("a", 1), ("m", 2)], 2), (None, None)),
            ("wait, new text", poll_between(|at| at), (None, None)),
            ("wait, the same text", poll_between(|_| 0), (Some(5), Some(9))),
        ] {
            assert_eq!(marks(&calls), wanted, "{what}");
        }
    }

    #[test]
    fn one_result_to_different_arguments() {
        let search = |progress: &mut Progress, at: u64, result: ResultFacts| {
            progress.answered();
            progress.observe(&LoopRules::default(), &facts("search", at, Kind::ReadOnly), result)
        };
        let mut progress = Progress::default();
        let found: Vec<_> =
            (0..8).map(|at| search(&mut progress, at, returned(1)).weight()).collect();
        assert_eq!(found, [0, 0, 0, 0, 2, 2, 2, 3]);
        let mut progress = Progress::default();
        let empty = ResultFacts { trivial: true, ..returned(1) };
        assert!((0..50).all(|at| search(&mut progress, at, empty) == Finding::Fine));
        let mut progress = Progress::default();
        assert!(
            (0..50).all(|at| search(&mut progress, at, returned(at)) == Finding::Fine),
            "paging"
        );
    }

    #[test]
    fn a_change_and_a_user_turn_restart_the_counts() {
        let mut calls = Vec::new();
        for edit in ["m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8"] {
            calls.extend([("a", 1), ("a", 1), (edit, 9)]);
        }
        assert_eq!(marks(&calls), (None, None));
        let mut progress = Progress::default();
        for _ in 0..9 {
            seen(&mut progress, "a", 1);
            assert_eq!(seen(&mut progress, "a", 1), Finding::Fine);
            progress.reset();
        }
    }

    #[test]
    fn new_results_in_between_restart_a_count_only_when_they_are_many() {
        let new: [&'static str; 12] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "x", "y"];
        let trace = |between: usize| {
            let mut calls = Vec::new();
            let mut fresh = 100;
            for _ in 0..8 {
                calls.push(("a", 1));
                for call in &new[..between] {
                    fresh += 1;
                    calls.push((call, fresh));
                }
            }
            marks(&calls)
        };
        assert_eq!(trace(2), (Some(7), Some(13)));
        assert_eq!(trace(11), (None, None));
    }

    #[test]
    fn a_stop_needs_evidence_after_the_advice() {
        let mut progress = Progress::default();
        let rules = LoopRules::default();
        let call = facts("a", 1, Kind::ReadOnly);
        progress.answered();
        let batch: Vec<_> =
            (0..9).map(|_| progress.observe(&rules, &call, returned(1)).weight()).collect();
        assert_eq!(batch, [0, 0, 2, 0, 0, 0, 0, 0, 0], "the model has not seen the advice");
        progress.answered();
        assert_eq!(progress.observe(&rules, &call, returned(2)), Finding::Fine, "a new result");
        assert_eq!(progress.observe(&rules, &call, returned(1)).weight(), 3);
    }

    #[test]
    fn polls_are_advised_to_wait_longer_each_time() {
        let found = run(&again(&[("p", 1)], 8));
        let waits: Vec<_> = found
            .iter()
            .map(|found| match found {
                Finding::Wait(wait) => wait.as_secs(),
                _ => 0,
            })
            .collect();
        assert_eq!(waits, [0, 5, 10, 30, 60, 60, 60, 60]);
        let progress: Vec<_> = (0..100).map(|at| ("p", at)).collect();
        assert!(run(&progress).iter().all(|found| *found == Finding::Fine));
    }

    #[test]
    fn memory_is_bounded() {
        let mut progress = Progress::default();
        for at in 0..10_000 {
            let _ =
                progress.observe(&LoopRules::default(), &facts("x", at, Kind::Other), returned(at));
        }
        assert!(progress.remembered() <= 2 * MAX_SEEN);
    }
}
