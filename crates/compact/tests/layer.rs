//! What a caller sees of the layer: warnings, compactions, refusals that are made good.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use steadfast_chat::{
    ChatRequest, Delta, Event, Message, Role, transcript::TranscriptRules, transcript::validate,
};
use steadfast_compact::{
    CompactionLayer, CompactionPolicy, ConversationId, Effect, TargetFacts, Tier, TokenLimits,
};
use steadfast_core::{CallContext, Deadline, Failure, KeyedPolicy, Reason, Target};
use support::*;

fn layer(tokens: u64) -> CompactionLayer {
    CompactionLayer::rules_only()
        .with_targets(window(tokens))
        .with_counter(four_bytes())
        .with_seed(7)
}

#[tokio::test(start_paused = true)]
async fn a_request_that_fits_is_not_changed() {
    let model = Model::fine();
    let service = stacked(&layer(200_000), &model);
    let request = request(talk(3, 5), session("s"));
    let answer = ask(&service, request.clone()).await.unwrap();
    assert!(model.last().messages.same(&request.messages), "not even copied");
    assert!(steadfast_compact::Notice::of(&answer.head).is_none());
    assert!(request.context.log.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_filling_window_is_reported_and_announced_once() {
    let layer = layer(4_096);
    let model = Model::fine();
    let service = stacked(&layer, &model);
    // 80 % of 4,096 less 410 for the answer, counted by a scheme of known size.
    let mut list = talk(40, 14);
    let context = session("s");
    let mut warned = 0;
    for turn in 0..8 {
        let asked = request(list.clone(), context.clone());
        let answer = ask(&service, asked).await.unwrap();
        if let Some(notice) = steadfast_compact::Notice::of(&answer.head) {
            if notice.compacted.is_some() {
                break;
            }
            assert!(notice.warning);
            let used = notice.tokens + notice.reserve;
            assert!(used * 10 >= notice.window * 8 && used * 10 < notice.window * 9, "{notice:?}");
            warned += 1;
        }
        list.push(Message::assistant(format!("answer {turn}: {}", "all is well ".repeat(14))));
        list.push(Message::user("and now?"));
    }
    assert!(warned > 1, "some turns lie between 80 and 90 %");
    assert_eq!(layer.handle().snapshot().counts.warned, 1, "the event is of the moment it begins");
    assert!(context.log.to_string().contains("compact.warned"), "and every answer says so");
}

#[tokio::test(start_paused = true)]
async fn a_full_window_is_compacted_and_the_caller_sees_it() {
    let model = Model::fine();
    let layer = layer(8_192);
    let service = stacked(&layer, &model);
    let context = session("s");
    let list = talk(120, 20);
    let answer = ask(&service, request(list.clone(), context.clone())).await.unwrap();
    let notice = notice(&answer);
    let report = notice.reports[0];
    assert_eq!((report.tier, report.effect), (Tier::Fallback, Effect::Effective));
    let sent = model.last();
    assert!(
        validate(&sent, &TranscriptRules::for_dialect(steadfast_core::Dialect::Anthropic)).is_ok()
    );
    assert_eq!(sent.messages.last().unwrap().text(), "and now?");
    assert_eq!(sent.model, MODEL);

    let compacted = notice.compacted.unwrap();
    assert_eq!(compacted.messages[..], sent.messages[..]);
    assert_eq!(compacted.saved, report.before - report.after);
    assert!(notice.tokens + notice.reserve < 8_192 * 9 / 10);
    // The map to the originals: the instructions, no summary, then what is recent.
    assert_eq!(compacted.origin(0), Some(0));
    let last = sent.messages.len() - 1;
    assert_eq!(compacted.origin(last), Some(list.len() - 1));
    assert_eq!(compacted.origin(last + 1), None);
    let summaries: Vec<_> = (0..=last).filter(|index| compacted.origin(*index).is_none()).collect();
    assert_eq!(summaries.len(), 1);
    assert!(sent.messages[summaries[0]].text().contains("fallback=emergency-truncation"));

    let steps = context.log.steps();
    assert_eq!((steps[0].layer, steps[0].action), ("compact", "compacted"));
    assert_eq!(steps[0].target, Some(target()));
    assert!(steps[0].detail.as_deref().unwrap().contains("tier=fallback effect=effective before="));
}

#[tokio::test(start_paused = true)]
async fn between_compactions_the_prefix_stays_the_same() {
    let model = Model::fine();
    let layer = layer(8_192);
    let service = stacked(&layer, &model);
    let mut list = talk(120, 20);
    let mut before: Option<ChatRequest> = None;
    let mut compactions = 0;
    for turn in 0..60 {
        let answer = ask(&service, request(list.clone(), session("s"))).await.unwrap();
        let notice = notice(&answer);
        compactions += notice.reports.len();
        assert!(notice.compacted.is_some(), "the caller still sends everything");
        let sent = model.last();
        if let Some(before) = before.filter(|_| notice.reports.is_empty()) {
            assert!(sent.messages.starts_with(&before.messages), "turn {turn}");
        }
        before = Some(sent);
        list.push(Message::assistant(format!("more {turn}: {}", "all is well ".repeat(8))));
        list.push(Message::user(format!("next {turn}")));
    }
    assert!((1..=3).contains(&compactions), "{compactions}");
    let id = ConversationId::of(&session("s"));
    let mut found = layer.handle().snapshot().conversations;
    found.retain(|one| one.id == id);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].compactions, compactions as u64);
}

#[tokio::test(start_paused = true)]
async fn the_longest_unused_conversations_are_forgotten() {
    let policy = KeyedPolicy { capacity: 16, ..KeyedPolicy::default() };
    let layer = layer(8_192).with_conversations(policy);
    let service = stacked(&layer, &Model::fine());
    for number in 0..40 {
        let context = session(&format!("s{number}"));
        ask(&service, request(talk(120, 20), context)).await.unwrap();
    }
    let found = layer.handle().snapshot().conversations;
    assert!(found.len() <= policy.capacity, "{}", found.len());
    let last = ConversationId::of(&session("s39"));
    assert!(found.iter().any(|one| one.id == last), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn the_first_tier_is_enough_where_results_are_large() {
    let model = Model::fine();
    let service = stacked(&layer(8_192), &model);
    let mut list = vec![Message::user("read them all")];
    for number in 0..12 {
        let id = format!("call_{number}");
        let call = steadfast_chat::Part::tool_call(&id, "read_file", r#"{"path":"a.rs"}"#);
        list.push(Message::new(Role::Assistant, vec![call]));
        let result = steadfast_chat::Part::tool_result(&id, "let it = be();\n".repeat(150));
        list.push(Message::new(Role::User, vec![result]));
    }
    let schema = steadfast_chat::RawJson::parse("{}").unwrap();
    let tools = vec![steadfast_chat::Tool::function("read_file", "reads", schema)];
    let answer = ask(&service, request(list, session("s")).with_tools(tools)).await.unwrap();
    let report = notice(&answer).reports[0];
    assert_eq!((report.tier, report.dropped), (Tier::Strip, 0));
    assert!(report.stripped > 3);
}

#[tokio::test(start_paused = true)]
async fn what_can_not_fit_fails_without_a_call() {
    let model = Model::fine();
    let layer = layer(8_192);
    let service = stacked(&layer, &model);
    let asked = request(vec![Message::user("why? ".repeat(20_000))], session("s"));
    let failure = ask(&service, asked.clone()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::ContextOverflow);
    assert_eq!((failure.attempts(), model.calls()), (0, 0));
    assert_eq!(failure.target(), Some(&target()));
    assert!(failure.message().contains("a window of 8192"), "{failure}");
    assert!(asked.context.log.to_string().contains("compact.too_large"));

    // A window that nobody knows is no reason to refuse.
    let unknown = stacked(&CompactionLayer::rules_only(), &model);
    let huge = request(vec![Message::user("why? ".repeat(200_000))], session("s"));
    assert!(ask(&unknown, huge).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_compacted_harder_and_sent_again_once() {
    let model = Model::at_once(|number, _| match number {
        0 => Err(overflow(Some(6_000), Some(9_000))),
        _ => Ok(say("ok")),
    });
    // The stated window.
    let layer = layer(100_000);
    let service = stacked(&layer, &model);
    let context = session("s");
    let list = talk(120, 20);
    let answer = ask(&service, request(list.clone(), context.clone())).await.unwrap();
    assert_eq!(answer.text(), "ok");
    assert_eq!(answer.head.attempts, 2, "both were asked");
    let [first, second] = &model.asked()[..] else { panic!("two calls") };
    assert_eq!((first.context.attempts, second.context.attempts), (0, 1));
    assert_eq!(second.model, MODEL);
    let report = notice(&answer).reports[0];
    assert!(report.before >= 9_000, "the provider's number: {report}");
    assert!(report.after < 6_000 * 6 / 10, "harder than the number says: {report}");
    assert_eq!(layer.handle().models().limits(MODEL).window, 6_000, "the window is learned");
    assert_eq!(layer.handle().snapshot().counts.overflows, 1);
    let steps: Vec<_> = context.log.steps().iter().map(|step| step.action).collect();
    assert_eq!(steps, ["overflow", "compacted"]);

    // The next turn begins with it, and is not refused.
    let mut list = list;
    list.push(Message::assistant("ok"));
    list.push(Message::user("thanks"));
    ask(&service, request(list, context)).await.unwrap();
    assert_eq!(model.calls(), 3);
    assert!(model.last().messages.starts_with(&second.messages));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_in_the_stream_before_content_is_one_too() {
    for delivered in [false, true] {
        let model = Model::at_once(move |number, _| {
            let mut list = vec![Ok(Event::new([Delta::Ping]))];
            if delivered {
                list.push(Ok(Event::new([text_delta("I")])));
            }
            list.push(Err(overflow(None, None)));
            Ok(if number == 0 { events(list) } else { say("ok") })
        });
        let service = stacked(&layer(100_000), &model);
        let answer = ask(&service, request(talk(120, 20), session("s"))).await;
        if delivered {
            assert_eq!(answer.unwrap_err().reason(), Reason::ContextOverflow);
            assert_eq!(model.calls(), 1, "half of the answer is the caller's already");
        } else {
            assert_eq!(answer.unwrap().text(), "ok");
            assert_eq!(model.calls(), 2);
            let (first, second) = (&model.asked()[0], &model.asked()[1]);
            assert!(second.messages.len() < first.messages.len() / 2);
        }
    }
}

/// A layer that holds streams back until their end.
fn withholding() -> CompactionLayer {
    let mut policy = CompactionPolicy::default();
    policy.withhold = true;
    layer(100_000).with_policy(policy).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_refusal_in_a_stream_that_is_withheld_is_repaired_whatever_came_before() {
    for streams in [true, false] {
        let model = Model::at_once(|number, _| {
            let started =
                vec![Ok(Event::new([text_delta("I")])), Err(overflow(None, None).with_delivered())];
            Ok(if number == 0 { events(started) } else { say_used("ok", 900, 2) })
        });
        let service = stacked(&withholding(), &model);
        let mut request = request(talk(120, 20), session("s"));
        request.stream = streams;
        let answer = ask(&service, request).await;
        if !streams {
            assert_eq!(answer.unwrap_err().reason(), Reason::ContextOverflow, "it comes whole");
            continue;
        }
        let answer = answer.unwrap();
        assert_eq!((answer.text().as_str(), answer.usage.input), ("ok", Some(900)));
        assert_eq!((model.calls(), answer.head.attempts), (2, 2));
    }
}

/// What is too much to be held back has been seen.
#[tokio::test(start_paused = true)]
async fn a_long_stream_is_withheld_in_part_and_passed_on_whole() {
    let mib = 1 << 20;
    for (pieces, fails) in [(3, false), (3, true), (1, true)] {
        let model = Model::at_once(move |number, _| {
            let mut list: Vec<_> =
                (0..pieces).map(|_| Ok(Event::new([text_delta(&"x".repeat(mib / 2))]))).collect();
            list.push(if fails && number == 0 {
                Err(overflow(None, None))
            } else {
                Ok(Event::new([Delta::End]))
            });
            Ok(events(list))
        });
        let mut request = request(talk(120, 20), session("s"));
        request.stream = true;
        let answer = ask(&stacked(&withholding(), &model), request).await;
        let repaired = fails && pieces == 1;
        assert_eq!(model.calls(), 1 + usize::from(repaired), "{pieces}, {fails}");
        match answer {
            Ok(answer) => assert_eq!(answer.text().len(), pieces * mib / 2, "{pieces}, {fails}"),
            Err(failure) => {
                assert!(fails && !repaired, "{pieces}: {failure}");
                assert!(failure.is_delivered());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_is_compacted_a_second_time_only_after_progress() {
    for (second, third, calls) in [
        (Some(5_000), Some(4_000), 3),
        (Some(9_000), None, 2),
        (Some(10_000), None, 2),
        (None, None, 3),
    ] {
        let model = Model::at_once(move |number, _| {
            Err(overflow(None, [Some(9_000), second, third][number.min(2)]))
        });
        let service = stacked(&layer(100_000), &model);
        let failure = ask(&service, request(talk(200, 20), session("s"))).await.unwrap_err();
        assert_eq!(failure.reason(), Reason::ContextOverflow);
        assert_eq!(model.calls(), calls, "{second:?}");
        assert_eq!(failure.attempts() as usize, calls);
        let sizes: Vec<_> = model.asked().iter().map(|one| one.messages.len()).collect();
        assert!(sizes.is_sorted_by(|one, next| one >= next), "{sizes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_returned_where_no_compaction_helps() {
    let overflows = || Model::at_once(|_, _| Err(overflow(None, None)));
    let late = Model::new(|_, _| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Err(overflow(None, None))
    });
    let busy = Model::at_once(|_, _| Err(Failure::new(Reason::Overloaded, "busy")));
    let mut once = session("s");
    once.max_attempts = std::num::NonZeroU32::new(1);
    let short = session("s").with_deadline(Deadline::after(Duration::from_secs(3)));
    let (long, too_large) = (talk(120, 20), Reason::ContextOverflow);
    for (case, model, list, context, reason) in [
        ("nothing may be cut", overflows(), vec![Message::user("hi")], session("s"), too_large),
        ("no attempts are left", overflows(), long.clone(), once, too_large),
        ("no time is left", late, long.clone(), short, too_large),
        ("another failure", busy, long, session("s"), Reason::Overloaded),
    ] {
        let service = stacked(&layer(100_000), &model);
        let failure = ask(&service, request(list, context)).await.unwrap_err();
        assert_eq!((failure.reason(), model.calls()), (reason, 1), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn reported_usage_decides_the_next_turn() {
    // Twice what is estimated.
    let model = Model::at_once(|_, request| {
        let bytes: usize = request.messages.iter().map(|message| message.text().len()).sum();
        Ok(say_used("ok", bytes as u64 / 2, 1))
    });
    let layer = layer(20_000);
    let service = stacked(&layer, &model);
    let mut list = talk(60, 40);
    let bytes =
        |list: &[Message]| -> u64 { list.iter().map(|message| message.text().len() as u64).sum() };
    for _ in 0..3 {
        let answer = ask(&service, request(list.clone(), session("s"))).await.unwrap();
        drop(answer);
        list.push(Message::assistant("all is well ".repeat(10)));
        list.push(Message::user("and now?"));
    }
    let tokens = layer.handle().snapshot().conversations[0].tokens;
    let actual = bytes(&model.last().messages) / 2;
    assert!(tokens.abs_diff(actual) * 100 <= actual * 3, "{tokens} for {actual}");
}

#[tokio::test(start_paused = true)]
async fn a_conversation_without_a_session_is_known_by_its_beginning() {
    let model = Model::fine();
    let layer = layer(8_192);
    let service = stacked(&layer, &model);
    let unnamed = || CallContext::new().with_target(target()).with_tenant("acme");
    let mut list = talk(120, 20);
    list[1] = Message::user("this is conversation one");
    ask(&service, request(list.clone(), unnamed())).await.unwrap();
    let first = model.last();
    list.push(Message::assistant("ok"));
    list.push(Message::user("go on"));
    let answer = ask(&service, request(list.clone(), unnamed())).await.unwrap();
    assert!(notice(&answer).reports.is_empty(), "it is the same conversation");
    assert!(model.last().messages.starts_with(&first.messages));

    // Another one, and the same one of another tenant.
    list[1] = Message::user("this is conversation two");
    let answer = ask(&service, request(list.clone(), unnamed())).await.unwrap();
    assert_eq!(notice(&answer).reports.len(), 1);
    let other = CallContext::new().with_target(target()).with_tenant("umbrella");
    list[1] = Message::user("this is conversation one");
    let answer = ask(&service, request(list, other)).await.unwrap();
    assert_eq!(notice(&answer).reports.len(), 1, "no tenant sees another's");
    assert_eq!(layer.handle().snapshot().conversations.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_for_a_malformed_name() {
    let model = Model::fine();
    let strict = layer(8_192);
    let service = stacked(&strict, &model);
    let context = session(" s ");
    for _ in 0..2 {
        let answer = ask(&service, request(talk(120, 20), context.clone())).await.unwrap();
        assert_eq!(notice(&answer).reports.len(), 1, "it is compacted each time anew");
    }
    assert!(strict.handle().snapshot().conversations.is_empty());
    assert!(context.log.to_string().contains("compact.dropped"));

    let lax = layer(8_192).with_fail_closed_rollover(false);
    let service = stacked(&lax, &model);
    ask(&service, request(talk(120, 20), session(" s "))).await.unwrap();
    assert_eq!(lax.handle().snapshot().conversations[0].compactions, 1);
}

#[tokio::test(start_paused = true)]
async fn two_histories_of_one_name_are_not_mixed() {
    let model = Model::fine();
    let layer = layer(8_192);
    let service = stacked(&layer, &model);
    let mut one = talk(120, 20);
    let mut two = talk(120, 20);
    one[3] = Message::user("ALPHA secret");
    two[3] = Message::user("BETA secret");
    let mut refused = 0;
    for turn in 0..4 {
        for (list, foreign) in [(&mut one, "BETA"), (&mut two, "ALPHA")] {
            let context = session("shared");
            ask(&service, request(list.clone(), context.clone())).await.unwrap();
            refused += usize::from(context.log.to_string().contains("two histories"));
            let sent = model.last();
            assert!(!sent.messages.iter().any(|one| one.text().contains(foreign)), "{turn}");
            list.push(Message::assistant("ok"));
            list.push(Message::user("go on"));
        }
    }
    assert!(refused >= 3, "{refused}");
    // Once the first is no longer there, the second replaces it.
    for _ in 0..4 {
        ask(&service, request(two.clone(), session("shared"))).await.unwrap();
    }
    let answer = ask(&service, request(two.clone(), session("shared"))).await.unwrap();
    assert!(notice(&answer).reports.is_empty());
}

#[tokio::test(start_paused = true)]
async fn internal_errors_switch_it_off_and_are_reported() {
    let model = Model::fine();
    // A closure that panics.
    let layer = layer(8_192).with_pins(|message| {
        assert!(!message.text().contains("question 5"), "a pin that can not be decided");
        false
    });
    let service = stacked(&layer, &model);
    let mut context = session("s");
    for turn in 0..5 {
        context = session("s");
        let asked = request(talk(120, 20), context.clone());
        let asked_list = asked.messages.clone();
        let answer = ask(&service, asked).await.unwrap();
        assert_eq!(model.last().messages[..], asked_list[..], "it goes as it is");
        assert_eq!(notice(&answer).switched_off, turn >= 2, "{turn}");
    }
    assert!(context.log.to_string().contains("compact.switched_off"));
    let id = ConversationId::of(&context);
    let found = layer.handle().snapshot().conversations;
    assert!(found.len() == 1 && found[0].is_off && found[0].id == id);
    assert!(layer.handle().forget(&id));
    assert!(layer.handle().snapshot().conversations.is_empty());
}

#[tokio::test(start_paused = true)]
async fn only_internal_errors_in_a_row_switch_it_off() {
    let model = Model::fine();
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = broken.clone();
    let layer = layer(8_192).with_pins(move |_| {
        assert!(!is_broken.load(Ordering::Relaxed), "a pin that can not be decided");
        false
    });
    let service = stacked(&layer, &model);
    let conversation = || layer.handle().snapshot().conversations.remove(0);
    let mut list = talk(120, 20);
    for _ in 0..3 {
        for throws in 1..=2 {
            ask(&service, request(list.clone(), session("s"))).await.unwrap();
            assert_eq!(conversation().throws, throws);
        }
        broken.store(false, Ordering::Relaxed);
        let answer = ask(&service, request(list.clone(), session("s"))).await.unwrap();
        assert_eq!((notice(&answer).reports.len(), conversation().throws), (1, 0));
        broken.store(true, Ordering::Relaxed);
        // So long that it is compacted again.
        list.extend(talk(120, 20).into_iter().skip(1));
    }
    for throws in 1..=3 {
        ask(&service, request(list.clone(), session("s"))).await.unwrap();
        assert_eq!((conversation().throws, conversation().is_off), (throws, throws == 3));
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_the_provider_refuses_is_forgotten() {
    let model = Model::at_once(|_, request| {
        let is_compacted = request.messages.iter().any(|one| one.text().contains("[Summary of"));
        match is_compacted {
            true => Err(steadfast_core::Failure::new(Reason::Format, "messages.1: no")),
            false => Ok(say("ok")),
        }
    });
    let layer = layer(8_192);
    let service = stacked(&layer, &model);
    for turn in 1..=3 {
        let failure = ask(&service, request(talk(90, 16), session("s"))).await.unwrap_err();
        assert_eq!(failure.reason(), Reason::Format);
        assert_eq!(layer.handle().snapshot().conversations[0].throws, turn);
    }
    // From now on the provider sees the caller's own messages.
    assert!(ask(&service, request(talk(90, 16), session("s"))).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn each_target_has_a_window_of_its_own() {
    let model = Model::fine();
    let layer = CompactionLayer::rules_only().with_targets(|target: &Target| {
        let window = if target.provider() == "small" { 8_192 } else { 200_000 };
        TargetFacts::default().with_limits(TokenLimits::new(window))
    });
    let service = stacked(&layer, &model);
    let list = talk(120, 20);
    for (provider, is_compacted) in [("big", false), ("small", true), ("big", false)] {
        let context = session("s").with_target(Target::new(provider).with_model("m"));
        let answer = ask(&service, request(list.clone(), context)).await.unwrap();
        let _ = answer;
        assert_eq!(model.last().messages.len() < list.len(), is_compacted, "{provider}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_target_has_the_window_of_its_model() {
    let model = Model::fine();
    let layer = CompactionLayer::rules_only().with_targets(|target: &Target| {
        let is_small = target.provider().is_empty() && target.model() == Some(MODEL);
        let window = if is_small { 8_192 } else { 200_000 };
        TargetFacts::default().with_limits(TokenLimits::new(window))
    });
    let service = stacked(&layer, &model);
    let list = talk(120, 20);
    for (name, is_compacted) in [(MODEL, true), ("another", false)] {
        let context = CallContext::new().with_session("s");
        ask(&service, request(list.clone(), context).with_model(name)).await.unwrap();
        assert_eq!(model.last().messages.len() < list.len(), is_compacted, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_that_a_provider_stated_refuses_for_an_hour_or_until_it_is_forgotten() {
    let model = Model::at_once(|number, _| match number {
        0 | 2 => Err(overflow(Some(2_000), None)),
        _ => Ok(say("ok")),
    });
    let layer = CompactionLayer::rules_only().with_counter(four_bytes());
    let service = stacked(&layer, &model);
    let handle = layer.handle();
    let one = async || {
        let asked = request(vec![Message::user("why? ".repeat(4_000))], session("s"));
        ask(&service, asked).await.map_err(|failure| failure.attempts()).map(drop)
    };
    assert_eq!(one().await, Err(1), "the provider refuses it, and nothing can be removed");
    tokio::time::advance(Duration::from_secs(3_599)).await;
    assert_eq!((one().await, model.calls()), (Err(0), 1), "it is not asked again");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(one().await, Ok(()));
    assert_eq!(one().await, Err(1));
    assert_eq!(handle.snapshot().learned, [(Box::<str>::from(MODEL), 2_000)]);
    assert!(handle.forget_learned(MODEL) && !handle.forget_learned(MODEL));
    assert_eq!(one().await, Ok(()));
    assert!(handle.snapshot().learned.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_contradicts_itself_is_refused() {
    let mut policy = CompactionPolicy::default();
    policy.target = 0.95;
    assert!(CompactionLayer::rules_only().with_policy(policy).is_err());
    let mut summaries = steadfast_compact::SummaryPolicy::default();
    summaries.chunk = 10;
    assert!(CompactionLayer::rules_only().with_summaries(summaries).is_err());
}

/// A conversation as it comes from the wire.
fn read(turns: usize) -> ChatRequest {
    let messages: Vec<_> = (0..=2 * turns)
        .map(|at| {
            let role = if at % 2 == 0 { "user" } else { "assistant" };
            let content = format!("text {at}: {}", "all is well ".repeat(20));
            format!(r#"{{"role":"{role}","content":"{content}"}}"#)
        })
        .collect();
    let body = format!(r#"{{"model":"{MODEL}","messages":[{}]}}"#, messages.join(","));
    let codec = steadfast_client::dialect::codec(steadfast_core::Dialect::OpenAi);
    let route = steadfast_client::dialect::Route::default();
    codec.decode_request(&body.into(), route).unwrap().with_context(session("s"))
}

#[tokio::test(start_paused = true)]
async fn a_request_from_the_wire_is_counted_where_its_length_is_not_enough() {
    let model = Model::at_once(|_, _| Ok(say_used("ok", 20_000, 3)));
    let layer = CompactionLayer::rules_only().with_targets(|_| {
        TargetFacts::default().with_limits(TokenLimits::new(40_000).with_output(1_000))
    });
    let service = stacked(&layer, &model);
    // 27 KB: fewer bytes than there is room for in tokens.
    ask(&service, read(50)).await.unwrap();
    assert!(layer.handle().snapshot().conversations.is_empty(), "nothing is remembered of it");
    // 80 KB, of which nothing is known: it is counted.
    ask(&service, read(150)).await.unwrap();
    assert_eq!(layer.handle().snapshot().conversations.len(), 1);
    // What those came to was reported, and only what is new is estimated.
    ask(&service, read(152)).await.unwrap();
    let tokens = layer.handle().snapshot().conversations[0].tokens;
    assert!((20_000..20_500).contains(&tokens), "{tokens}");
    // What is too much is compacted.
    let answer = ask(&service, read(400)).await.unwrap();
    assert_eq!(notice(&answer).reports.len(), 1);
    let first = model.last();
    let answer = ask(&service, read(401)).await.unwrap();
    assert!(notice(&answer).reports.is_empty());
    assert!(model.last().messages.starts_with(&first.messages), "recognised by its text");
}
