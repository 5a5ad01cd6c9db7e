//! However often a request is compacted, the result is valid, fits, and keeps what must be kept; a
//! request that fits is not changed.

#![allow(clippy::unwrap_used)]

mod history;

use history::{Writer, dialect, stretch, stretches, total, weigh};
use proptest::prelude::*;
use steadfast_chat::{
    ChatRequest, Message, Part, Role,
    transcript::{TranscriptRules, repair, validate},
};
use steadfast_compact::{
    CompactionPolicy, CompactionResult, CompactionTask, Compactor, Effect, Summary, Tier,
    TokenLimits,
};
use steadfast_core::Dialect;

fn compact(
    request: &mut ChatRequest,
    rules: &TranscriptRules,
    window: u64,
    summary: Option<&Summary>,
    refused: bool,
) -> Result<Option<CompactionResult>, steadfast_compact::TooLarge> {
    let compactor = Compactor::new(CompactionPolicy::default()).unwrap();
    let mut task = CompactionTask::new(rules, &weigh);
    task.room = compactor.policy().room(TokenLimits::new(window), None, true);
    task.summary = summary;
    task.refused = refused;
    compactor.run(request, &task, &mut fastrand::Rng::with_seed(7))
}

/// The last messages that a compaction may not touch.
fn is_kept(before: &[Message], after: &[Message]) -> bool {
    let recent = &before[before.len().saturating_sub(4)..];
    // But for thinking that is unbound by what is changed before them.
    let without_thinking = |list: &[Message]| -> Vec<Vec<Part>> {
        let parts = |message: &Message| {
            message.parts().iter().filter(|part| !part.is_thinking()).cloned().collect()
        };
        list.iter().map(parts).collect()
    };
    without_thinking(after).ends_with(&without_thinking(recent))
}

/// Whether no thinking is behind the first message that was changed.
fn has_only_bound_thinking(before: &[Message], after: &[Message]) -> bool {
    let same = |(one, other): &(&Message, &Message)| one == other;
    let edited = before.iter().zip(after).take_while(same).count();
    let mut rest = after[edited..].iter().flat_map(Message::parts);
    edited == before.len() || !rest.any(Part::is_thinking)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    #[test]
    fn compacted_again_and_again_every_request_is_accepted(
        dialect in dialect(),
        thinking in any::<bool>(),
        start in stretches(6),
        more in prop::collection::vec((stretch(), any::<bool>()), 0..8),
        window in prop_oneof![4_096_u64..9_000, 9_000_u64..40_000],
    ) {
        let rules = TranscriptRules::for_dialect(dialect);
        let mut writer = Writer::new(dialect, thinking);
        let (last, first) = start.split_last().unwrap();
        for one in first {
            writer.stretch(one, false);
        }
        writer.stretch(last, true);
        let mut summary: Option<Summary> = None;
        let mut turns = more.iter();
        loop {
            let mut request = writer.request();
            validate(&request, &rules).expect("the history is valid");
            let before = request.messages.clone();
            let refused = turns.len() % 3 == 2;
            match compact(&mut request, &rules, window, summary.as_ref(), refused) {
                Ok(None) => prop_assert!(request.messages.same(&before), "not even copied"),
                Err(error) => {
                    prop_assert!(request.messages == before);
                    prop_assert!(error.floor > error.limit || error.before > error.limit);
                }
                Ok(Some(run)) => {
                    if let Err(wrong) = validate(&request, &rules) {
                        prop_assert!(false, "{}: {wrong}", run.report);
                    }
                    let report = run.report;
                    // An open loop whose thinking is unbound or cut off is without thinking from then on.
                    prop_assert_eq!(report.repaired, 0, "cut, not repaired");
                    prop_assert!(!rules.signed_thinking || has_only_bound_thinking(&before, &request.messages), "{}", report);
                    prop_assert_eq!(report.before, total(&before));
                    prop_assert_eq!(report.after, total(&request.messages));
                    prop_assert!(report.after <= report.target || report.effect == Effect::Ineffective, "{}", report);
                    if report.effect == Effect::Ineffective {
                        prop_assert!(request.messages.same(&before) || request.messages == before);
                    } else {
                        prop_assert!(report.after < report.before);
                    }
                    prop_assert!(is_kept(&before, &request.messages));
                    let instructions = |list: &[Message]| {
                        list.iter().filter(|message| message.role() == Role::System).count()
                    };
                    prop_assert_eq!(instructions(&before), instructions(&request.messages));
                    prop_assert_eq!(run.summary.is_some(), run.report.tier == Tier::Fallback || summary.as_ref().is_some_and(|s| request.messages.contains(s.message())));
                    if let Some(summary) = &run.summary {
                        let marked = request.messages.iter().filter(|m| m.text().starts_with("[Summary of"));
                        prop_assert_eq!(marked.count(), 1, "an earlier summary is taken up");
                        prop_assert!(request.messages.contains(summary.message()));
                    }
                    summary = run.summary;
                    writer.messages = request.messages.to_vec();
                }
            }
            let Some((stretch, answers)) = turns.next() else { break };
            // The model answers, and the user goes on.
            if *answers || dialect != Dialect::OpenAi {
                writer.messages.push(Message::assistant("An answer."));
            }
            writer.stretch(stretch, true);
        }
    }

    #[test]
    fn the_current_request_survives_whole(
        dialect in dialect(),
        start in stretches(6),
        window in 4_096_u64..20_000,
    ) {
        let rules = TranscriptRules::for_dialect(dialect);
        let mut writer = Writer::new(dialect, false);
        start.iter().for_each(|one| writer.stretch(one, false));
        writer.messages.push(Message::user("The current request, word for word."));
        writer.stretch(&start[0], true);
        let mut request = writer.request();
        let asked: Vec<_> = {
            let is_asked = |m: &&Message| m.role() == Role::User && m.tool_results().next().is_none();
            request.messages.iter().rev().filter(is_asked).take(1).cloned().collect()
        };
        if compact(&mut request, &rules, window, None, false).is_ok() {
            prop_assert!(asked.iter().all(|message| request.messages.contains(message)));
        }
    }

    #[test]
    fn damaged_histories_are_repaired(
        dialect in dialect(),
        start in stretches(6),
        gone in prop::collection::vec(any::<prop::sample::Index>(), 1..5),
        window in 4_096_u64..12_000,
    ) {
        let rules = TranscriptRules::for_dialect(dialect);
        let mut writer = Writer::new(dialect, false);
        start.iter().for_each(|one| writer.stretch(one, false));
        writer.messages.push(Message::user("go on"));
        for index in gone {
            writer.messages.remove(index.index(writer.messages.len()));
            if writer.messages.is_empty() {
                return Ok(());
            }
        }
        let mut request = writer.request();
        if let Ok(Some(run)) = compact(&mut request, &rules, window, None, false)
            && run.report.tier != Tier::None
        {
            let left = repair(&mut request, &rules);
            prop_assert!(left.done.is_empty(), "{:?}", left.done);
        }
    }
}

#[test]
fn a_long_agent_run_on_one_request_is_cut_inside_it() {
    let rules = TranscriptRules::for_dialect(Dialect::Anthropic);
    let mut messages = vec![Message::system("rules"), Message::user("Build the thing.")];
    for number in 0..60 {
        let id = format!("call_{number}");
        let call = steadfast_chat::Part::tool_call(&id, "read_file", r#"{"path":"a.rs"}"#);
        messages.push(Message::new(Role::Assistant, vec![call]));
        // Each too short to be stripped.
        messages.push(Message::new(
            Role::User,
            vec![steadfast_chat::Part::tool_result(&id, "y".repeat(190))],
        ));
    }
    let schema = steadfast_chat::RawJson::parse("{}").unwrap();
    let tools = vec![steadfast_chat::Tool::function("read_file", "reads", schema)];
    let mut request = ChatRequest::new(messages.clone()).with_tools(tools);
    let run = compact(&mut request, &rules, 4_096, None, false).unwrap().unwrap();
    assert_eq!((run.report.tier, run.report.effect), (Tier::Fallback, Effect::Effective));
    assert_eq!(request.messages[..2], messages[..2], "the prefix stays, with the request in it");
    assert!(request.messages[2].text().contains("fallback=emergency-truncation"));
    assert!(is_kept(&messages, &request.messages));
    validate(&request, &rules).unwrap();
}

#[test]
fn what_can_not_fit_is_an_error_with_the_numbers_and_changes_nothing() {
    let rules = TranscriptRules::for_dialect(Dialect::OpenAi);
    let huge = Message::user("x".repeat(40_000));
    let mut messages: Vec<_> = (0..20).map(|n| Message::user(format!("turn {n}"))).collect();
    messages.push(Message::assistant("yes"));
    messages.push(huge);
    let mut request = ChatRequest::new(messages.clone());
    let error = compact(&mut request, &rules, 8_000, None, false).unwrap_err();
    assert_eq!(&request.messages[..], &messages[..]);
    assert_eq!((error.window, error.reserve, error.limit), (8_000, 800, 7_200));
    assert!(
        error.required > 10_000 && error.floor >= error.required && error.before >= error.floor
    );
    let failure = error.into_failure();
    assert_eq!(failure.reason(), steadfast_core::Reason::ContextOverflow);
    assert_eq!(failure.window().unwrap().limit, Some(8_000));
    assert!(failure.message().contains("current request"), "{failure}");
}
