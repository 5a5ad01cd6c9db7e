//! Whole sessions: facts survive, sizes fit, prefixes hold.

#![allow(clippy::unwrap_used)]

mod history;

use history::{total, weigh};
use steadfast_chat::{ChatRequest, Message, Part, Role, ToolResult, transcript::TranscriptRules};
use steadfast_compact::{
    CompactionPolicy, CompactionResult, CompactionTask, Compactor, Effect, Summary, Tier,
    TokenLimits,
};
use steadfast_core::Dialect;

struct Session {
    compactor: Compactor,
    rules: TranscriptRules,
    window: u64,
    growth: Option<u64>,
    summary: Option<Summary>,
    request: ChatRequest,
    rng: fastrand::Rng,
}

impl Session {
    fn new(window: u64) -> Self {
        Self {
            compactor: Compactor::new(CompactionPolicy::default()).unwrap(),
            rules: TranscriptRules::for_dialect(Dialect::OpenAi),
            window,
            growth: None,
            summary: None,
            request: ChatRequest::new(vec![Message::system("Work carefully.")]),
            rng: fastrand::Rng::with_seed(3),
        }
    }

    fn say(&mut self, message: Message) {
        self.request.messages.make_mut().push(message);
    }

    fn call(&mut self, id: &str, name: &str, arguments: &str, result: &str, is_error: bool) {
        self.say(Message::new(Role::Assistant, vec![Part::tool_call(id, name, arguments)]));
        let content = vec![Part::text(result)];
        let result = ToolResult { id: id.into(), content, is_error, ..ToolResult::default() };
        self.say(Message::new(Role::Tool, vec![Part::ToolResult(result)]));
    }

    fn turn(&mut self) -> Option<CompactionResult> {
        let mut task = CompactionTask::new(&self.rules, &weigh);
        task.room = self.compactor.policy().room(TokenLimits::new(self.window), None, true);
        task.growth = self.growth;
        task.summary = self.summary.as_ref();
        let run = self.compactor.run(&mut self.request, &task, &mut self.rng).unwrap()?;
        self.summary = run.summary.clone();
        Some(run)
    }
}

#[test]
fn planted_facts_survive_compaction_after_compaction() {
    let facts = [
        "src/engine/parser.rs",
        "config/prod.toml",
        "PROJ-4711",
        "550e8400-e29b-41d4-a716-446655440000",
        "8443",
        "Never touch the payments module.",
        "do not bump the major version",
        "write the migration guide",
        "update the changelog",
        "cargo test -p engine",
        "https://wiki.example.com/runbook",
        "build-2291",
    ];
    let mut session = Session::new(16_000);
    session.say(Message::user(
        "Fix PROJ-4711 on port 8443, see https://wiki.example.com/runbook. Never touch the payments \
         module. Please do not bump the major version.\n- [ ] write the migration guide\n\
         - [ ] collect names\nThe tenant is 550e8400-e29b-41d4-a716-446655440000.",
    ));
    session.say(Message::assistant("I see.\n- [x] collect names\nTODO: update the changelog"));
    session.call("1", "edit_file", r#"{"path":"src/engine/parser.rs"}"#, "ok", false);
    session.call("2", "read_file", r#"{"path":"config/prod.toml"}"#, "from build-2291", false);
    session.call("3", "run", r#"{"command":"cargo test -p engine"}"#, "two failed", true);
    let mut cut = 0;
    for turn in 0..400 {
        session.say(Message::user(format!("And what about part {}?", "so it is ".repeat(20))));
        session.say(Message::assistant("It goes like this. ".repeat(10 + turn % 7)));
        if let Some(run) = session.turn()
            && run.report.tier == Tier::Fallback
        {
            cut += 1;
            let text = session.summary.as_ref().unwrap().message().text();
            for fact in facts {
                assert!(text.contains(fact), "{fact} is gone after {cut}: {text}");
            }
            assert!(!text.contains("collect names"), "done is done");
        }
    }
    assert!(cut >= 5, "{cut}");
}

#[test]
fn every_window_is_fitted() {
    for (window, tokens) in [
        (32_768, 40_000),
        (8_192, 200_000),
        (4_096, 2_000_000),
        (200_000, 300_000),
        (1_000_000, 1_200_000),
    ] {
        let mut session = Session::new(window);
        let filler = "some filler that says nothing much. ".repeat(60);
        let mut number = 0;
        while total(&session.request.messages) < tokens {
            number += 1;
            session.say(Message::user(format!("question {number}: {}", &filler[..100])));
            let id = format!("c{number}");
            session.call(&id, "read_file", r#"{"path":"a.rs"}"#, &filler, false);
            session.say(Message::assistant(&filler[..190]));
        }
        session.say(Message::user("the last one"));
        let before = session.request.messages.clone();
        let run = session.turn().unwrap();
        let report = run.report;
        assert_eq!(report.effect, Effect::Effective, "{report}");
        assert!(report.after <= report.target && report.target < window * 9 / 10, "{report}");
        assert_eq!(report.after, total(&session.request.messages));
        assert_eq!(report.kept + report.dropped, before.len());
        assert!(session.request.messages.ends_with(&before[before.len() - 4..]));
        assert!(session.turn().is_none(), "and does not compact again");
    }
}

#[test]
fn over_two_hundred_turns_the_prefix_changes_six_times_at_most() {
    let mut session = Session::new(64_000);
    let mut changes = 0;
    let mut last_size = 0;
    for turn in 0..200 {
        session.say(Message::user(format!("step {turn}, please")));
        let result = "line of output\n".repeat(90 + turn % 40);
        session.call(&format!("c{turn}"), "run", r#"{"command":"make"}"#, &result, false);
        session.say(Message::assistant("That worked. ".repeat(6)));
        let size = total(&session.request.messages);
        session.growth = Some(size.saturating_sub(last_size)).filter(|_| last_size > 0);
        let before = session.request.messages.clone();
        match session.turn() {
            None => assert!(session.request.messages.same(&before)),
            Some(run) => {
                changes += 1;
                assert_ne!(run.report.effect, Effect::Ineffective, "{}", run.report);
                assert_eq!(session.request.messages[0], before[0], "instructions stay first");
            }
        }
        last_size = total(&session.request.messages);
    }
    assert!((1..=6).contains(&changes), "{changes} compactions");
}

#[test]
fn a_refusal_compacts_below_what_was_refused_whatever_the_numbers_say() {
    let mut session = Session::new(100_000);
    for number in 0..60 {
        session.say(Message::user(format!("question {number}")));
        session.say(Message::assistant("an answer of some length. ".repeat(20)));
    }
    session.say(Message::user("go on"));
    assert!(session.turn().is_none(), "by our numbers there is room");
    let before = total(&session.request.messages);
    let mut task = CompactionTask::new(&session.rules, &weigh);
    task.room = session.compactor.policy().room(TokenLimits::new(100_000), None, true);
    task.refused = true;
    let run =
        session.compactor.run(&mut session.request, &task, &mut session.rng).unwrap().unwrap();
    assert!(run.report.after < before * 4 / 5, "{}", run.report);
}

#[test]
fn pinned_messages_are_never_summarised() {
    let mut session = Session::new(4_096);
    session.compactor = Compactor::new(CompactionPolicy::default())
        .unwrap()
        .with_pins(|message| message.text().starts_with("PIN"));
    let pinned = Message::user("PIN this as it is");
    session.say(Message::user("hello"));
    session.say(Message::assistant("hello"));
    session.say(pinned.clone());
    for _ in 0..3 {
        for number in 0..70 {
            session.say(Message::user(format!("question {number}")));
            session.say(Message::assistant("an answer of some length. ".repeat(8)));
        }
        session.say(Message::user("go on"));
        assert_eq!(session.turn().unwrap().report.tier, Tier::Fallback);
        assert_eq!(session.request.messages.iter().filter(|one| **one == pinned).count(), 1);
    }
}

#[test]
fn a_written_summary_is_completed_and_brought_up_to_date() {
    let mut session = Session::new(8_192);
    session.say(Message::user("Fix PROJ-4711 in src/engine.rs. Never touch the tests."));
    session.say(Message::assistant("Right."));
    let mut records = Vec::new();
    for round in 0..3 {
        for number in 0..90 {
            session.say(Message::user(format!("question {number}")));
            session.say(Message::assistant("an answer of some length. ".repeat(14)));
        }
        session.say(Message::user("go on"));
        let mut task = CompactionTask::new(&session.rules, &weigh);
        task.room = session.compactor.policy().room(TokenLimits::new(session.window), None, true);
        task.summary = session.summary.as_ref();
        let pending = session.compactor.pending(&session.request, &task).unwrap().unwrap();
        assert_eq!(pending.messages.len(), pending.tokens.len());
        assert!(pending.messages.iter().all(|message| session.request.messages.contains(message)));
        let marked = |message: &Message| message.text().starts_with("[Summary of");
        assert!(!pending.messages.iter().any(marked), "an earlier summary is not summarised again");
        records.push(pending.earlier.clone());
        let written = format!("Round {round}: PROJ-4711 is in progress.");
        task.written = Some(&written);
        let gone = pending.messages.len();
        let run =
            session.compactor.run(&mut session.request, &task, &mut session.rng).unwrap().unwrap();
        assert_eq!((run.report.tier, run.report.effect), (Tier::Summary, Effect::Effective));
        assert_eq!(run.report.dropped, gone + usize::from(round > 0), "the very same messages");
        let summary = run.summary.unwrap();
        let text = summary.message().text();
        assert!(text.contains(&written) && !text.contains("emergency"), "{text}");
        for fact in ["src/engine.rs", "Never touch the tests."] {
            assert!(text.contains(fact), "{fact} is completed from the ledger: {text}");
        }
        assert_eq!(text.matches("PROJ-4711").count(), 1, "and no fact is stated twice");
        assert_eq!(session.request.messages.iter().filter(|one| marked(one)).count(), 1);
        session.summary = Some(summary);
    }
    let expected = [
        None,
        Some("Round 0: PROJ-4711 is in progress."),
        Some("Round 1: PROJ-4711 is in progress."),
    ];
    assert_eq!(records.iter().map(Option::as_deref).collect::<Vec<_>>(), expected);
}

#[test]
fn no_summary_is_requested_where_none_is_needed_or_would_help() {
    let mut session = Session::new(8_192);
    let pending = |session: &Session| {
        let mut task = CompactionTask::new(&session.rules, &weigh);
        task.room = session.compactor.policy().room(TokenLimits::new(session.window), None, true);
        session.compactor.pending(&session.request, &task).map(|pending| pending.is_some())
    };
    session.say(Message::user("go"));
    assert_eq!(pending(&session), Ok(false), "there is room");
    for number in 0..8 {
        session.call(&format!("c{number}"), "read_file", "{}", &"line\n".repeat(800), false);
    }
    assert_eq!(pending(&session), Ok(false), "markers are enough");
    session.say(Message::user("x".repeat(40_000)));
    assert!(pending(&session).unwrap_err().required > 10_000, "known before any call");
}
