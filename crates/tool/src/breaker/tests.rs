//! The circuits of a session against a table, and against a naive model.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{borrow::Cow, time::Duration};

use proptest::prelude::*;
use steadfast_chat::ToolFailureKind;
use tokio::time::Instant;

use super::{
    ToolBreakerPolicy,
    circuits::{Blocked, CallEnd, CallPermits, Circuits, MAX_CIRCUITS},
    text,
};

const TAG: Cow<'static, str> = Cow::Borrowed("connection_refused");
const OTHER: Cow<'static, str> = Cow::Borrowed("other");

fn failed(kind: ToolFailureKind) -> CallEnd<'static> {
    CallEnd::Failed { kind, tag: None, text: "it broke" }
}

#[expect(clippy::ptr_arg, reason = "a `CallEnd` has it")]
fn tagged<'a>(tag: &'a Cow<'static, str>) -> CallEnd<'a> {
    CallEnd::Failed { kind: ToolFailureKind::Failed, tag: Some(tag), text: "it broke" }
}

/// A session whose calls end at once.
struct OneByOne {
    circuits: Circuits,
    now: Instant,
}

impl OneByOne {
    fn new() -> Self {
        Self { circuits: Circuits::new(ToolBreakerPolicy::default()), now: Instant::now() }
    }

    fn begin(&mut self, tool: &str, call: u64) -> Result<CallPermits, Blocked> {
        self.circuits.admit(self.now, tool, call, &mut Vec::new())
    }

    fn run(&mut self, tool: &str, call: u64, end: CallEnd<'_>) -> Result<(), Blocked> {
        let permits = self.begin(tool, call)?;
        self.circuits.end(self.now, permits, end, &mut Vec::new());
        Ok(())
    }

    fn advance(&mut self, secs: u64) {
        self.now += Duration::from_secs(secs);
    }
}

#[test]
fn the_same_call_is_blocked_after_three_failures_in_a_row() {
    let mut all = OneByOne::new();
    let fails = failed(ToolFailureKind::Failed);
    all.run("a", 1, fails).unwrap();
    all.run("a", 1, fails).unwrap();
    all.run("a", 1, CallEnd::Success).unwrap();
    for _ in 0..3 {
        all.run("a", 1, fails).unwrap();
    }
    let blocked = all.run("a", 1, fails).unwrap_err();
    assert!(!blocked.whole_tool);
    assert_eq!(
        (blocked.failures, blocked.wait, &*blocked.last),
        (3, Duration::from_secs(60), "it broke")
    );
    all.run("a", 2, CallEnd::Success).expect("other arguments");
    all.run("b", 1, CallEnd::Success).expect("another tool");
    // One probe, and only one.
    all.advance(60);
    let probe = all.begin("a", 1).unwrap();
    assert!(probe.is_probe());
    all.begin("a", 1).unwrap_err();
    all.circuits.end(all.now, probe, fails, &mut Vec::new());
    assert_eq!(all.run("a", 1, fails).unwrap_err().failures, 4);
    all.advance(60);
    let cancelled = all.begin("a", 1).unwrap();
    all.circuits.end(all.now, cancelled, CallEnd::Cancelled, &mut Vec::new());
    all.run("a", 1, CallEnd::Success).expect("the permit of a cancelled probe is free");
    for _ in 0..3 {
        all.run("a", 1, fails).expect("counted anew");
    }
    all.run("a", 1, fails).unwrap_err();
}

#[test]
fn a_tool_is_blocked_after_five_failures_without_a_success() {
    let mut all = OneByOne::new();
    for call in 0..4 {
        all.run("a", call, failed(ToolFailureKind::TimedOut)).unwrap();
    }
    all.run("a", 99, CallEnd::Success).unwrap();
    for call in 0..5 {
        all.run("a", call + 10, failed(ToolFailureKind::Panicked)).unwrap();
    }
    let blocked = all.run("a", 50, CallEnd::Success).unwrap_err();
    assert_eq!((blocked.whole_tool, blocked.failures, blocked.tag), (true, 5, None));
    all.run("b", 50, CallEnd::Success).unwrap();
}

#[test]
fn a_tool_is_blocked_after_two_failures_of_one_tag() {
    let mut all = OneByOne::new();
    all.run("a", 1, tagged(&TAG)).unwrap();
    all.run("a", 2, tagged(&OTHER)).unwrap();
    all.run("a", 3, tagged(&TAG)).unwrap();
    let blocked = all.run("a", 4, CallEnd::Success).unwrap_err();
    assert_eq!((blocked.whole_tool, blocked.tag), (true, Some(TAG)));

    let mut all = OneByOne::new();
    all.run("a", 1, tagged(&TAG)).unwrap();
    all.run("a", 1, CallEnd::Success).unwrap();
    all.run("a", 2, tagged(&TAG)).unwrap();
    all.run("b", 2, tagged(&TAG)).unwrap();
    all.run("a", 4, CallEnd::Success).expect("one since the success, and one of another tool");
}

#[test]
fn what_says_nothing_of_the_tool_does_not_count() {
    for (kind, counts) in [
        (ToolFailureKind::Failed, true),
        (ToolFailureKind::Killed, true),
        (ToolFailureKind::TimedOut, true),
        (ToolFailureKind::Panicked, true),
        (ToolFailureKind::Arguments, false),
        (ToolFailureKind::Exit, false),
        (ToolFailureKind::Aborted, false),
        (ToolFailureKind::Refused, false),
    ] {
        let mut all = OneByOne::new();
        let mut passed = 0;
        while passed < 20 && all.run("a", 1, failed(kind)).is_ok() {
            passed += 1;
        }
        assert_eq!(passed, if counts { 3 } else { 20 }, "{kind:?}");
        // Nor does it end a row.
        let mut all = OneByOne::new();
        for end in [ToolFailureKind::Killed, kind, ToolFailureKind::Killed, kind] {
            all.run("a", 1, failed(end)).unwrap();
            if counts && matches!(end, ToolFailureKind::Killed) && all.begin("a", 1).is_err() {
                break;
            }
        }
    }
    // A command that runs is what a probe wants to know.
    let mut all = OneByOne::new();
    for call in 0..5 {
        all.run("sh", call, failed(ToolFailureKind::Failed)).unwrap();
    }
    all.advance(60);
    all.run("sh", 9, failed(ToolFailureKind::Exit)).unwrap();
    all.run("sh", 9, failed(ToolFailureKind::Exit)).unwrap();
    all.begin("sh", 9).unwrap();
    all.begin("sh", 10).expect("closed");
}

#[test]
fn exits_between_failures_do_not_hide_them() {
    let mut all = OneByOne::new();
    for _ in 0..3 {
        all.run("sh", 1, failed(ToolFailureKind::Killed)).unwrap();
        all.run("sh", 2, failed(ToolFailureKind::Exit)).unwrap();
    }
    all.run("sh", 1, CallEnd::Success).unwrap_err();
}

#[test]
fn a_call_that_began_before_it_opened_decides_nothing() {
    let mut all = OneByOne::new();
    let late: Vec<_> = (0..3).map(|_| all.begin("a", 1).unwrap()).collect();
    let failing: Vec<_> = (0..3).map(|_| all.begin("a", 1).unwrap()).collect();
    for permits in failing {
        all.circuits.end(all.now, permits, failed(ToolFailureKind::Failed), &mut Vec::new());
    }
    all.begin("a", 1).unwrap_err();
    for permits in late {
        all.circuits.end(all.now, permits, CallEnd::Success, &mut Vec::new());
    }
    all.begin("a", 1).unwrap_err();
}

#[test]
fn memory_is_bounded_and_what_is_blocked_is_kept() {
    let mut all = OneByOne::new();
    for _ in 0..3 {
        all.run("blocked", 1, failed(ToolFailureKind::Failed)).unwrap();
    }
    for at in 0..500 {
        let tool = format!("tool {at}");
        all.run(&tool, at, failed(ToolFailureKind::Failed)).unwrap();
        assert!(all.circuits.snapshot(all.now).len() <= MAX_CIRCUITS);
    }
    all.run("blocked", 1, CallEnd::Success).unwrap_err();
    // What works leaves nothing.
    let mut all = OneByOne::new();
    for at in 0..500 {
        all.run("a", at, CallEnd::Success).unwrap();
    }
    assert_eq!(all.circuits.snapshot(all.now).len(), 0);
    assert_eq!(all.circuits.in_flight(), 0);
    assert!(all.circuits.is_empty());
}

#[test]
fn the_text_says_what_failed_how_often_and_what_to_do() {
    let mut all = OneByOne::new();
    for _ in 0..3 {
        all.run("grep", 1, failed(ToolFailureKind::Failed)).unwrap();
    }
    assert_eq!(
        text("grep", &all.begin("grep", 1).unwrap_err()),
        "`grep` was not called, because this same call failed 3 times in a row. The last failure: \"it broke\". \
         Do not repeat it: change the arguments, use another tool, or do another part of the task. It can be \
         tried once more in 60 s."
    );
    for call in 1..3 {
        all.run("fetch", call, tagged(&TAG)).unwrap();
    }
    assert_eq!(
        text("fetch", &all.begin("fetch", 3).unwrap_err()),
        "`fetch` was not called, because it failed 2 times in a row, again and again with \
         `connection_refused`. The last failure: \"it broke\". Do not call it for now: use another tool, do \
         another part of the task, or report what you could not do. It can be tried once more in 60 s."
    );
}

/// One circuit as it is described: every call it has seen, in order, and nothing clever.
#[derive(Default)]
struct Naive {
    calls: Vec<NaiveEnd>,
    /// Calls before this one decide nothing.
    from: usize,
    until: Option<Duration>,
    /// A probe that is under way.
    probe: Option<usize>,
    tags: Vec<Cow<'static, str>>,
}

#[derive(Clone, Copy, PartialEq)]
enum NaiveEnd {
    UnderWay,
    Failed,
    Fine,
    Nothing,
}

impl Naive {
    fn admits(&self, now: Duration) -> bool {
        self.until.is_none_or(|until| now >= until && self.probe.is_none())
    }

    /// The call's number.
    fn begin(&mut self) -> usize {
        self.calls.push(NaiveEnd::UnderWay);
        let number = self.calls.len() - 1;
        if self.until.is_some() {
            self.probe = Some(number);
        }
        number
    }

    fn end(&mut self, now: Duration, call: usize, end: CallEnd<'_>, row: usize, whole: bool) {
        let probe = self.probe == Some(call);
        let (ended, tag) = match end {
            CallEnd::Success => (NaiveEnd::Fine, None),
            CallEnd::Cancelled => (NaiveEnd::Nothing, None),
            CallEnd::Failed { kind: ToolFailureKind::Exit, .. } if probe => (NaiveEnd::Fine, None),
            CallEnd::Failed { kind: ToolFailureKind::Exit, .. } => (NaiveEnd::Nothing, None),
            CallEnd::Failed { tag, .. } => (NaiveEnd::Failed, tag.filter(|_| whole)),
        };
        self.calls[call] = ended;
        let closed = self.until.is_none();
        if !probe && (call < self.from || !closed) {
            return;
        }
        if probe {
            self.probe = None;
        }
        match ended {
            NaiveEnd::Fine => {
                self.tags.clear();
                // It ends the rows of those that began before.
                self.from = if probe { self.calls.len() } else { self.from.max(call + 1) };
                if probe {
                    self.until = None;
                }
            }
            NaiveEnd::Failed => {
                self.tags.extend(tag.cloned());
                let same = tag.map_or(0, |tag| self.tags.iter().filter(|one| *one == tag).count());
                if probe || same >= 2 || self.row_around(call) >= row {
                    self.until = Some(now + Duration::from_secs(60));
                    self.from = self.calls.len();
                }
            }
            NaiveEnd::UnderWay | NaiveEnd::Nothing => {}
        }
    }

    /// Failures in a row around this one: what says nothing is passed over.
    fn row_around(&self, call: usize) -> usize {
        let part = |end: &&NaiveEnd| matches!(end, NaiveEnd::Failed | NaiveEnd::Nothing);
        let failed = |end: &&NaiveEnd| **end == NaiveEnd::Failed;
        let before = self.calls[self.from..call].iter().rev().take_while(part).filter(failed);
        let after = self.calls[call..].iter().take_while(part).filter(failed);
        before.count() + after.count()
    }
}

#[derive(Clone, Debug)]
enum Move {
    Begin(u64),
    /// Of the calls under way, by position.
    End(usize, usize),
    Advance(u64),
}

const ENDS: [CallEnd<'static>; 6] = [
    CallEnd::Success,
    CallEnd::Cancelled,
    CallEnd::Failed { kind: ToolFailureKind::Failed, tag: None, text: "x" },
    CallEnd::Failed { kind: ToolFailureKind::Failed, tag: Some(&TAG), text: "x" },
    CallEnd::Failed { kind: ToolFailureKind::TimedOut, tag: Some(&OTHER), text: "x" },
    CallEnd::Failed { kind: ToolFailureKind::Exit, tag: None, text: "x" },
];

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        6 => (0..4_u64).prop_map(Move::Begin),
        6 => (0..3_usize, prop_oneof![1 => Just(0_usize), 1 => Just(1), 6 => Just(2), 2 => 3..6_usize])
            .prop_map(|(at, end)| Move::End(at, end)),
        1 => prop_oneof![Just(1_u64), Just(30), Just(60)].prop_map(Move::Advance),
    ];
    proptest::collection::vec(one, 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_circuits_do_what_the_naive_model_does(moves in moves()) {
        let policy = ToolBreakerPolicy::default();
        let (began, mut now) = (Instant::now(), Duration::ZERO);
        let mut circuits = Circuits::new(policy);
        let mut tool = Naive::default();
        let mut calls: [Naive; 4] = std::array::from_fn(|_| Naive::default());
        let mut under_way: Vec<(u64, CallPermits, usize, usize)> = Vec::new();
        for one in moves {
            match one {
                Move::Begin(call) => {
                    let admitted = circuits.admit(began + now, "a", call, &mut Vec::new());
                    let own = &mut calls[usize::try_from(call).unwrap()];
                    let allowed = tool.admits(now) && own.admits(now);
                    prop_assert_eq!(admitted.is_ok(), allowed, "{:?}", admitted);
                    if let Err(blocked) = &admitted {
                        prop_assert_eq!(blocked.whole_tool, !tool.admits(now));
                        prop_assert!(blocked.wait > Duration::ZERO && blocked.wait <= policy.rest);
                        prop_assert!(blocked.failures >= 2);
                    }
                    if let Ok(permits) = admitted {
                        let probe = tool.until.is_some() || own.until.is_some();
                        prop_assert_eq!(permits.is_probe(), probe);
                        under_way.push((call, permits, tool.begin(), own.begin()));
                    } else if tool.admits(now) {
                        // It held the tool's permit for a moment.
                        let number = tool.begin();
                        tool.end(now, number, CallEnd::Cancelled, 5, true);
                    }
                }
                Move::End(at, end) if !under_way.is_empty() => {
                    let (call, permits, of_tool, of_call) = under_way.remove(at % under_way.len());
                    circuits.end(began + now, permits, ENDS[end], &mut Vec::new());
                    tool.end(now, of_tool, ENDS[end], 5, true);
                    calls[usize::try_from(call).unwrap()].end(now, of_call, ENDS[end], 3, false);
                }
                Move::End(..) => {}
                Move::Advance(secs) => now += Duration::from_secs(secs),
            }
            prop_assert_eq!(circuits.in_flight(), under_way.len() as u64);
        }
    }
}
