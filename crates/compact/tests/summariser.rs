//! The summariser, well and badly: whatever it does, the request that goes out is one that fits.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use steadfast_chat::{ChatRequest, Completion, Delta, Event, Message, Role, StopReason};
use steadfast_compact::{CompactionLayer, Degraded, SpendPolicy, SummaryPolicy, Tier, Unusable};
use steadfast_core::{
    CallSpend, DegradedProviders, Failure, Priority, Reason, Spend, SpendAccount, SpendCaps,
    SpendLedger, Step, Usage, circuit::CircuitState,
};
use support::*;
use tokio::time::Instant;

/// A layer with this summariser, for a window of 8,192.
fn layer(summariser: &Model) -> CompactionLayer {
    CompactionLayer::new(summariser.clone()).with_targets(window(8_192)).with_seed(7)
}

/// A conversation that does not fit.
async fn turn(layer: &CompactionLayer, name: &str) -> Result<Completion, Failure> {
    let model = Model::fine();
    let answer = ask(&stacked(layer, &model), request(talk(120, 20), session(name))).await?;
    let sent = model.last();
    assert!(sent.messages.len() < 200, "it fits, whatever the summariser did");
    assert_eq!(sent.messages.last().unwrap().text(), "and now?");
    Ok(answer)
}

fn recorded() -> Model {
    Model::at_once(|_, _| Ok(say_used("The user asked many things, and all is well.", 5_000, 20)))
}

#[tokio::test(start_paused = true)]
async fn the_summary_replaces_what_is_removed() {
    let summariser = recorded();
    let layer = layer(&summariser);
    let answer = turn(&layer, "s").await.unwrap();
    let notice = notice(&answer);
    assert_eq!((notice.reports[0].tier, notice.degraded), (Tier::Summary, None));
    let compacted = notice.compacted.unwrap();
    let summary = compacted.messages.iter().find(|one| one.text().contains("[Summary of")).unwrap();
    assert_eq!(summary.role(), Role::User, "it is data");
    assert!(summary.text().contains("and all is well.") && !summary.text().contains("emergency"));

    let asked = summariser.last();
    assert_eq!(asked.context.tenant(), Some("acme"), "who pays");
    assert_eq!(asked.context.session(), None, "it is no part of the conversation");
    assert_eq!(asked.context.priority, Priority::Background);
    assert_eq!(asked.context.patience, Some(Duration::from_secs(5)), "the user waits for it");
    assert!(asked.context.deadline.is_some() && asked.tools.is_empty());
    assert_eq!(layer.handle().spent(Some("acme")), (5_020, 5_020), "what it did cost");
    assert_eq!(layer.handle().snapshot().counts.summarised, 1);
}

#[tokio::test(start_paused = true)]
async fn a_record_is_updated_and_not_made_again() {
    let summariser = Model::at_once(|number, _| Ok(say(&format!("Record number {number}."))));
    let layer = layer(&summariser);
    let model = Model::fine();
    let service = stacked(&layer, &model);
    let mut list = talk(120, 20);
    let mut compactions = 0;
    for turn in 0..150 {
        let answer = ask(&service, request(list.clone(), session("s"))).await.unwrap();
        compactions += notice(&answer).reports.len();
        list.push(Message::assistant(format!("more {turn}: {}", "all is well ".repeat(16))));
        list.push(Message::user(format!("next {turn}")));
    }
    assert!(compactions >= 2, "{compactions}");
    let asked = summariser.asked();
    assert_eq!(asked.len(), compactions);
    for (number, request) in asked.iter().enumerate().skip(1) {
        let text = request.messages[1].text();
        assert!(text.contains(&format!("Record number {}.", number - 1)), "{text}");
        assert!(!text.contains("question 3\n"), "what is in the record is not answered again");
    }
    let summaries = |one: &Message| one.text().contains("[Summary of");
    assert_eq!(model.last().messages.iter().filter(|one| summaries(one)).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn long_histories_are_summarised_in_parallel_chunks_and_merged() {
    let summariser = Model::new(|_, request| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let text = request.messages[1].text();
        let is_merge = text.contains("Record of part");
        Ok(say(&if is_merge { "One record of all.".to_owned() } else { "part ".repeat(300) }))
    });
    let mut policy = SummaryPolicy::default();
    (policy.chunk, policy.parallel) = (2_000, 3);
    let layer = layer(&summariser).with_summaries(policy).unwrap();
    let began = Instant::now();
    let answer = turn(&layer, "s").await.unwrap();
    assert_eq!(notice(&answer).reports[0].tier, Tier::Summary);
    let calls = summariser.calls();
    assert!(calls > 4, "{calls}");
    let rounds = (calls - 1).div_ceil(3) as u64 + 1;
    assert_eq!(began.elapsed(), Duration::from_secs(rounds), "three at a time, then the merge");
    assert!(summariser.last().messages[1].text().contains("Record of part 1 of"));
    let text: String =
        notice(&answer).compacted.unwrap().messages.iter().map(Message::text).collect();
    assert!(text.contains("One record of all."));
}

/// What a summariser says, and why it is of no use.
fn wrong() -> Vec<(&'static str, Model, Degraded)> {
    let unusable = |why| Degraded::Unusable(why);
    let at_once = |make: fn() -> Reply| Model::at_once(move |_, _| make());
    vec![
        (
            "an error",
            at_once(|| Err(Failure::new(Reason::Overloaded, "busy"))),
            Degraded::Failed(Reason::Overloaded),
        ),
        (
            "an error in the middle",
            at_once(|| {
                let failure = Failure::new(Reason::Network, "reset");
                Ok(events(vec![Ok(Event::new([text_delta("The user")])), Err(failure)]))
            }),
            Degraded::Failed(Reason::Network),
        ),
        ("nothing", at_once(|| Ok(say(""))), unusable(Unusable::Empty)),
        (
            "thoughts alone",
            at_once(|| {
                let thought = Delta::Thinking { index: 0, text: "hm".into() };
                Ok(answer(vec![thought, stop(StopReason::EndTurn), Delta::End]))
            }),
            unusable(Unusable::ThinkingOnly),
        ),
        ("a refusal", at_once(|| Ok(say("I'm sorry, but I can't."))), unusable(Unusable::Refused)),
        (
            "a filtered answer",
            at_once(|| Ok(answer(vec![stop(StopReason::ContentFilter), Delta::End]))),
            unusable(Unusable::Refused),
        ),
        (
            "a tool call",
            at_once(|| {
                let call = Delta::ToolCall { index: 0, id: "1".into(), name: "ls".into() };
                Ok(answer(vec![call, stop(StopReason::ToolUse), Delta::End]))
            }),
            unusable(Unusable::ToolCall),
        ),
        (
            "half an answer",
            at_once(|| {
                Ok(answer(vec![text_delta("The"), stop(StopReason::MaxTokens), Delta::End]))
            }),
            unusable(Unusable::Truncated),
        ),
        (
            "a stream that ends without saying so",
            at_once(|| Ok(answer(vec![text_delta("The user")]))),
            unusable(Unusable::Unfinished),
        ),
        (
            "an answer without end",
            at_once(|| {
                let more = || Ok(Event::new([text_delta(&"and on ".repeat(1_000))]));
                let endless = Box::pin(tokio_stream::iter(std::iter::repeat_with(more)));
                let head = steadfast_chat::Head::new(steadfast_core::Dialect::OpenAi);
                Ok(steadfast_chat::ChatResponse::new(head, endless as steadfast_chat::EventStream))
            }),
            Degraded::Endless,
        ),
        ("silence", Model::new(|_, _| std::future::pending()), Degraded::TimedOut),
        (
            "silence in the middle",
            at_once(|| {
                let first = tokio_stream::iter([Ok(Event::new([text_delta("The user")]))]);
                let silent = tokio_stream::StreamExt::chain(first, tokio_stream::pending());
                let head = steadfast_chat::Head::new(steadfast_core::Dialect::OpenAi);
                let events = Box::pin(silent) as steadfast_chat::EventStream;
                Ok(steadfast_chat::ChatResponse::new(head, events))
            }),
            Degraded::TimedOut,
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn every_failure_of_the_summariser_falls_back_to_the_rules() {
    for (what, summariser, expected) in wrong() {
        let layer = layer(&summariser);
        let began = Instant::now();
        let answer = turn(&layer, "s").await.unwrap();
        let notice = notice(&answer);
        assert_eq!(notice.degraded, Some(expected), "{what}");
        assert_eq!(notice.reports[0].tier, Tier::Fallback, "{what}");
        assert_eq!(summariser.calls(), 1, "{what}: nobody asks again");
        assert!(began.elapsed() <= Duration::from_secs(60), "{what}");
        assert_eq!(layer.handle().snapshot().counts.degraded, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn five_failures_open_its_breaker_for_a_minute_and_a_probe_follows() {
    let failing = Model::at_once(|number, _| match number {
        0..=5 => Err(Failure::new(Reason::ServerError, "broken")),
        _ => Ok(say("It works again.")),
    });
    let layer = layer(&failing);
    let tier = async |name: &str| {
        let notice = notice(&turn(&layer, name).await.unwrap());
        (notice.reports[0].tier, notice.degraded)
    };
    for number in 0..5 {
        assert_eq!(layer.handle().summariser(Some("acme")), CircuitState::Closed);
        let failed = Some(Degraded::Failed(Reason::ServerError));
        assert_eq!(tier(&format!("s{number}")).await, (Tier::Fallback, failed));
    }
    assert_eq!(layer.handle().summariser(Some("acme")), CircuitState::Open);
    assert_eq!(tier("s5").await, (Tier::Fallback, Some(Degraded::BreakerOpen)));
    assert_eq!(failing.calls(), 5, "nobody was asked");
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(tier("s6").await.1, Some(Degraded::Failed(Reason::ServerError)));
    assert_eq!(tier("s7").await.1, Some(Degraded::BreakerOpen), "one was enough");
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(tier("s8").await, (Tier::Summary, None));
    assert_eq!(layer.handle().summariser(Some("acme")), CircuitState::Closed);
    assert_eq!(tier("s9").await, (Tier::Summary, None));
}

/// A summariser whose own layers try again after the first attempt, which takes 3 s, has failed; and
/// what comes of it, 31 s later.
fn retrying(outcome: fn() -> Reply) -> Model {
    Model::new(move |_, request| async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        for wait in [1, 2, 4, 8, 16].map(Duration::from_secs) {
            let retried = Step::new("retry", "retried").with_reason(Reason::ServerError);
            request.context.log.record(|| retried.with_wait(wait));
            tokio::time::sleep(wait).await;
        }
        outcome()
    })
}

#[tokio::test(start_paused = true)]
async fn a_summariser_that_fails_holds_a_caller_for_five_seconds_more() {
    let summariser = retrying(|| Err(Failure::new(Reason::ServerError, "broken")));
    let layer = layer(&summariser);
    let began = Instant::now();
    let notice = notice(&turn(&layer, "s").await.unwrap());
    assert_eq!(began.elapsed(), Duration::from_secs(3 + 5));
    assert_eq!(notice.degraded, Some(Degraded::Failed(Reason::ServerError)));
    assert_eq!(notice.reports[0].tier, Tier::Fallback);
    assert_eq!((summariser.calls(), summariser.running()), (1, 0));
    assert_eq!(layer.handle().spent(Some("acme")), (0, 0), "a failure costs nothing");
}

#[tokio::test(start_paused = true)]
async fn a_summariser_that_is_slow_and_works_has_its_time() {
    let slow = Model::new(|_, request| async move {
        // What failed before this call is no failure of it.
        let earlier = Step::new("failover", "insisted").with_reason(Reason::Overloaded);
        request.context.log.record(|| earlier);
        tokio::time::sleep(Duration::from_secs(40)).await;
        Ok(say("The record."))
    });
    let layer = layer(&slow);
    let began = Instant::now();
    assert_eq!(notice(&turn(&layer, "s").await.unwrap()).reports[0].tier, Tier::Summary);
    assert_eq!(began.elapsed(), Duration::from_secs(40));
}

#[tokio::test(start_paused = true)]
async fn in_the_background_nobody_waits_for_retries() {
    let layer = CompactionLayer::new(retrying(|| Ok(say("The record."))))
        .with_targets(window(14_000))
        .with_counter(four_bytes())
        .with_deferred(true);
    let model = Model::fine();
    let service = stacked(&layer, &model);
    let mut list = talk(120, 20);
    ask(&service, request(list.clone(), session("s"))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(40)).await;
    list.push(Message::assistant("ok"));
    list.push(Message::user("go on"));
    ask(&service, request(list, session("s"))).await.unwrap();
    assert!(model.last().messages.iter().any(|one| one.text().contains("The record.")));
}

#[tokio::test(start_paused = true)]
async fn a_summariser_that_failed_is_not_asked_again_in_the_same_call() {
    let summariser = Model::at_once(|_, _| Err(Failure::new(Reason::Overloaded, "busy")));
    let model = Model::at_once(|number, _| match number {
        0 => Err(overflow(None, None)),
        _ => Ok(say("ok")),
    });
    let service = stacked(&layer(&summariser), &model);
    ask(&service, request(talk(120, 20), session("s"))).await.unwrap();
    assert_eq!((summariser.calls(), model.calls()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn the_breaker_is_the_tenants_own_and_its_numbers_are_the_policys() {
    let summariser = Model::at_once(|_, request| match request.context.tenant() {
        Some("acme") => Err(Failure::new(Reason::ServerError, "broken")),
        _ => Ok(say("The record.")),
    });
    let mut policy = SummaryPolicy::default();
    (policy.failures, policy.rest) = (2, Duration::from_secs(90));
    let layer = layer(&summariser).with_summaries(policy).unwrap();
    let handle = layer.handle();
    for number in 0..2 {
        assert_eq!(handle.summariser(Some("acme")), CircuitState::Closed);
        turn(&layer, &format!("s{number}")).await.unwrap();
    }
    assert_eq!(handle.snapshot().breakers, [(Box::<str>::from("acme"), CircuitState::Open)]);
    assert_eq!(handle.summariser(Some("umbrella")), CircuitState::Closed);
    let other = request(talk(120, 20), session("t").with_tenant("umbrella"));
    let answer = ask(&stacked(&layer, &Model::fine()), other).await.unwrap();
    assert_eq!(notice(&answer).reports[0].tier, Tier::Summary, "another tenant is summarised");

    tokio::time::advance(Duration::from_secs(89)).await;
    assert_eq!(notice(&turn(&layer, "s2").await.unwrap()).degraded, Some(Degraded::BreakerOpen));
    tokio::time::advance(Duration::from_secs(1)).await;
    turn(&layer, "s3").await.unwrap();
    assert_eq!(summariser.calls(), 4, "the probe");
    handle.reset();
    assert!(handle.snapshot().breakers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_probe_has_thirty_seconds() {
    let model = Model::new(|number, _| async move {
        match number {
            0..=4 => Err(Failure::new(Reason::ServerError, "broken")),
            _ => std::future::pending().await,
        }
    });
    let layer = layer(&model);
    for number in 0..5 {
        turn(&layer, &format!("s{number}")).await.unwrap();
    }
    tokio::time::advance(Duration::from_secs(60)).await;
    let began = Instant::now();
    let answer = turn(&layer, "s").await.unwrap();
    assert_eq!(notice(&answer).degraded, Some(Degraded::TimedOut));
    assert_eq!(began.elapsed(), Duration::from_secs(30));
    assert_eq!(layer.handle().summariser(Some("acme")), CircuitState::Open);
}

#[tokio::test(start_paused = true)]
async fn a_tenants_cap_holds_and_unused_tokens_are_returned() {
    let summariser = recorded();
    let policy = |hour| SpendPolicy { hour, ..SpendPolicy::default() };
    // One compaction may cost about ten thousand, and costs five.
    let layer = layer(&summariser).with_spend(policy(16_000));
    let handle = layer.handle();
    let mut summaries = 0;
    for number in 0..5 {
        let answer = turn(&layer, &format!("s{number}")).await.unwrap();
        match notice(&answer).degraded {
            None => summaries += 1,
            Some(why) => assert_eq!(why, Degraded::OverBudget),
        }
        assert!(handle.spent(Some("acme")).0 <= 16_000);
    }
    assert!((2..5).contains(&summaries), "{summaries}");
    assert_eq!(handle.spent(Some("acme")).0, summaries * 5_020);
    assert_eq!(handle.spent(Some("umbrella")), (0, 0));
    assert_eq!(handle.summariser(Some("acme")), CircuitState::Closed, "that is not its fault");
    tokio::time::advance(Duration::from_secs(3_661)).await;
    assert_eq!(notice(&turn(&layer, "afterwards").await.unwrap()).degraded, None);
    // Zero is no cap.
    let free = self::layer(&summariser).with_spend(SpendPolicy { hour: 0, day: 0 });
    for number in 0..5 {
        let answer = turn(&free, &format!("s{number}")).await.unwrap();
        assert_eq!(notice(&answer).degraded, None);
    }
}

#[tokio::test(start_paused = true)]
async fn where_all_is_too_much_the_older_half_is_summarised() {
    let summariser = recorded();
    // What all of it may cost is above this, what half of it may cost is not.
    let mut tiers = Vec::new();
    for hour in [3_000, 8_500, 20_000] {
        let layer = layer(&summariser).with_spend(SpendPolicy { hour, day: 0 });
        let notice = notice(&turn(&layer, "s").await.unwrap());
        tiers.push((notice.reports[0].tier, notice.degraded));
    }
    assert_eq!(tiers[0], (Tier::Fallback, Some(Degraded::OverBudget)));
    assert_eq!(tiers[2], (Tier::Summary, None));
    assert_eq!(tiers[1], (Tier::Partial, None));

    let mut policy = SummaryPolicy::default();
    (policy.chunk, policy.max_chunks, policy.overlap) = (1_000, 1, 0);
    let layer = layer(&summariser).with_summaries(policy).unwrap();
    let notice = notice(&turn(&layer, "s").await.unwrap());
    assert_eq!(notice.degraded, Some(Degraded::TooLong));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_frees_everything() {
    let summariser = Model::new(|_, _| std::future::pending());
    let layer = layer(&summariser);
    let model = Model::fine();
    let service = stacked(&layer, &model);
    let handle = layer.handle();
    for wait in [0, 10] {
        let asked = ask(&service, request(talk(120, 20), session("s")));
        let mut asked = Box::pin(asked);
        let polled = tokio::time::timeout(Duration::from_secs(wait), asked.as_mut()).await;
        assert!(polled.is_err());
        assert_eq!(summariser.running(), 1);
        assert!(handle.spent(Some("acme")).0 > 0, "set aside");
        assert!(handle.snapshot().conversations[0].is_busy);
        drop(asked);
        assert_eq!(summariser.running(), 0);
        assert_eq!(handle.spent(Some("acme")), (0, 0));
        assert!(!handle.snapshot().conversations[0].is_busy);
        assert_eq!(handle.summariser(Some("acme")), CircuitState::Closed);
        assert_eq!(model.calls(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn one_compacts_and_the_others_wait_for_it() {
    let summariser = Model::new(|_, _| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(say("The record."))
    });
    let layer = layer(&summariser);
    let model = Model::fine();
    let service = stacked(&layer, &model);
    let one = || ask(&service, request(talk(120, 20), session("s")));
    let other = ask(&service, request(talk(120, 20), session("t")));
    let began = Instant::now();
    let (first, second, third, _) = tokio::join!(one(), one(), one(), other);
    assert_eq!(began.elapsed(), Duration::from_secs(5));
    assert_eq!(summariser.calls(), 2, "one for each conversation");
    let reports = [first, second, third].map(|answer| notice(&answer.unwrap()).reports.len());
    assert_eq!(reports.iter().sum::<usize>(), 1);
    let asked = model.asked();
    let of_s: Vec<_> = asked.iter().filter(|one| one.context.session() == Some("s")).collect();
    assert!(of_s.iter().all(|one| one.messages == of_s[0].messages), "all send the same prefix");

    // Who waits for one that goes away is next.
    let stuck = Model::new(|number, _| async move {
        match number {
            0 => std::future::pending().await,
            _ => Ok(say("The record.")),
        }
    });
    let layer = self::layer(&stuck);
    let service = stacked(&layer, &model);
    let one = || Box::pin(ask(&service, request(talk(120, 20), session("s"))));
    let (mut first, mut second) = (one(), one());
    let soon = Duration::from_secs(1);
    assert!(tokio::time::timeout(soon, first.as_mut()).await.is_err());
    assert!(tokio::time::timeout(soon, second.as_mut()).await.is_err());
    drop(first);
    let answer = second.await.unwrap();
    assert_eq!(notice(&answer).reports[0].tier, Tier::Summary);
}

#[tokio::test(start_paused = true)]
async fn deferred_it_compacts_for_the_next_turn() {
    let summariser = Model::new(|_, _| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(say("The record."))
    });
    // Full to nine tenths, and it fits.
    let layer = CompactionLayer::new(summariser.clone())
        .with_targets(window(14_000))
        .with_counter(four_bytes())
        .with_deferred(true);
    let model = Model::fine();
    let service = stacked(&layer, &model);
    let mut list = talk(120, 20);
    let began = Instant::now();
    let answer = ask(&service, request(list.clone(), session("s"))).await.unwrap();
    let answered = notice(&answer);
    assert!(answered.deferred && answered.reports.is_empty(), "{answered:?}");
    assert_eq!(began.elapsed(), Duration::ZERO, "nobody waits");
    assert_eq!(model.last().messages[..], list[..], "all of it is sent");
    // While it is running, others go as they are.
    let answer = ask(&service, request(list.clone(), session("s"))).await.unwrap();
    assert!(!notice(&answer).deferred);
    tokio::time::sleep(Duration::from_secs(6)).await;
    list.push(Message::assistant("ok"));
    list.push(Message::user("go on"));
    let answer = ask(&service, request(list.clone(), session("s"))).await.unwrap();
    assert_eq!(summariser.calls(), 1);
    let sent = model.last().messages;
    assert!(sent.len() < list.len() && notice(&answer).reports.is_empty());
    assert!(sent.iter().any(|one| one.text().contains("The record.")));
    assert_eq!(sent.last().unwrap().text(), "go on");
}

#[tokio::test(start_paused = true)]
async fn deferred_a_request_that_does_not_fit_is_compacted_at_once_and_an_outdated_compaction_is_dropped()
 {
    let summariser = Model::new(|_, _| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(say("The record."))
    });
    let layer = layer(&summariser).with_deferred(true);
    let answer = turn(&layer, "s").await.unwrap();
    assert_eq!(notice(&answer).reports.len(), 1);

    let layer = CompactionLayer::new(summariser)
        .with_targets(window(14_000))
        .with_counter(four_bytes())
        .with_deferred(true);
    let model = Model::fine();
    let service = stacked(&layer, &model);
    ask(&service, request(talk(120, 20), session("s"))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    layer.handle().reset();
    tokio::time::sleep(Duration::from_secs(6)).await;
    let answer = ask(&service, request(talk(120, 20), session("s"))).await.unwrap();
    assert!(notice(&answer).compacted.is_none(), "what was made for a conversation before is gone");
}

#[tokio::test(start_paused = true)]
async fn compactions_that_do_not_help_end_the_summaries() {
    let summariser = recorded();
    let layer = layer(&summariser);
    let model = Model::fine();
    let service = stacked(&layer, &model);
    // The four recent messages are almost all there is room for.
    let mut degraded = Vec::new();
    let mut list = talk(30, 6);
    for turn in 0..6 {
        for _ in 0..4 {
            list.push(Message::assistant("all is well and more ".repeat(520)));
            list.push(Message::user(format!("and now? {turn}")));
        }
        let context = session("s");
        let answer = ask(&service, request(list.clone(), context.clone())).await.unwrap();
        degraded.push(notice(&answer).degraded);
    }
    let found = layer.handle().snapshot();
    assert!(found.conversations[0].ineffective >= 3, "{found:?}");
    assert_eq!(degraded[..3], [None; 3]);
    assert!(degraded[3..].iter().all(|why| *why == Some(Degraded::Thrashing)), "{degraded:?}");
    assert_eq!(summariser.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_summariser_has_half_of_the_time_to_the_deadline() {
    let summariser = Model::new(|_, _| std::future::pending());
    let layer = layer(&summariser);
    let model = Model::fine();
    let deadline = steadfast_core::Deadline::after(Duration::from_secs(20));
    let context = session("s").with_deadline(deadline);
    let began = Instant::now();
    let service = stacked(&layer, &model);
    let answer = ask(&service, request(talk(120, 20), context)).await.unwrap();
    assert_eq!(notice(&answer).degraded, Some(Degraded::TimedOut));
    assert_eq!(began.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn tokens_of_an_unused_summary_count() {
    let summariser = Model::at_once(|_, _| {
        Ok(answer(vec![
            text_delta("The"),
            Delta::Usage(Usage::new(700, 7)),
            stop(StopReason::MaxTokens),
            Delta::End,
        ]))
    });
    let layer = layer(&summariser);
    turn(&layer, "s").await.unwrap();
    assert_eq!(layer.handle().spent(Some("acme")), (707, 707));
    let hanging = Model::new(|_, _| std::future::pending());
    let layer = self::layer(&hanging);
    turn(&layer, "s").await.unwrap();
    assert!(layer.handle().spent(Some("acme")).0 > 1_000, "nobody knows what a hang did cost");
}

/// What a summary costs is in the account of the tenant's summaries, and in those of the call that needs it.
#[tokio::test(start_paused = true)]
async fn summaries_are_charged_to_the_call_that_needs_them() {
    let acme = SpendAccount::Tenant("acme".into());
    let summaries = SpendAccount::Summaries("acme".into());
    let turn = async |summariser: &Model, ledger: &SpendLedger, cap: u64| {
        let layer = layer(summariser).with_ledger(ledger.clone());
        let (caps, now) = (SpendCaps::of_tokens(cap, 0), Instant::now());
        let call = CallSpend::reserve(ledger, [(acme.clone(), caps)], Spend::new(1_000, 0), now);
        let mut context = session("s");
        context.spend = Some(call.unwrap());
        let model = Model::fine();
        let answer = ask(&stacked(&layer, &model), request(talk(120, 20), context)).await.unwrap();
        let tokens = |account| ledger.totals(account, Instant::now()).hour.tokens;
        (notice(&answer).degraded, tokens(&acme), tokens(&summaries))
    };
    let (ledger, summariser) = (SpendLedger::default(), recorded());
    assert_eq!(turn(&summariser, &ledger, 0).await, (None, 5_020, 5_020));
    // The tenant's own cap holds for its summaries, too.
    let over = (Some(Degraded::OverBudget), 5_020, 5_020);
    assert_eq!(turn(&summariser, &ledger, 7_000).await, over);
    assert_eq!(summariser.calls(), 1);

    // Whoever observes the attempts charges them, also those that the answer says nothing of.
    let ledger = SpendLedger::default();
    let observed = Model::at_once(|_, request: &ChatRequest| {
        let spend = request.context.spend.clone().unwrap();
        for tokens in [300, 40] {
            let attempt = spend.attempt(Spend::new(500, 0), Instant::now()).unwrap();
            attempt.charge(Spend::new(tokens, 7), Instant::now());
        }
        Ok(say_used("All is well.", 40, 0))
    });
    assert_eq!(turn(&observed, &ledger, 0).await, (None, 340, 340));
    for account in [&acme, &summaries] {
        assert_eq!(ledger.totals(account, Instant::now()).hour.cost, 14);
    }

    // A call of another ledger is none of its accounts.
    let (own, other) = (SpendLedger::default(), SpendLedger::default());
    let layer = layer(&recorded()).with_ledger(own.clone());
    let call = [(acme.clone(), SpendCaps::default())];
    let mut context = session("s");
    context.spend = CallSpend::reserve(&other, call, Spend::ZERO, Instant::now()).ok();
    ask(&stacked(&layer, &Model::fine()), request(talk(120, 20), context)).await.unwrap();
    assert_eq!(own.totals(&summaries, Instant::now()).hour.tokens, 5_020);
    assert_eq!(layer.handle().spent(Some("acme")), (5_020, 5_020));
    assert_eq!(other.snapshot(Instant::now()), []);
}

#[tokio::test(start_paused = true)]
async fn there_are_no_summaries_while_their_provider_is_degraded() {
    let degraded = DegradedProviders::default();
    let now = Instant::now();
    // Of the request's target, and of a provider that is named.
    for (from, provider) in
        [(None, target().provider().to_owned()), (Some("house"), "house".into())]
    {
        let summariser = recorded();
        let layer = layer(&summariser).with_health(degraded.clone());
        let layer = match from {
            Some(from) => layer.with_summaries_from(from),
            None => layer,
        };
        degraded.insert(&provider, now, Duration::from_secs(10));
        let answer = turn(&layer, "s").await.unwrap();
        let notice = notice(&answer);
        assert_eq!(notice.reports[0].tier, Tier::Fallback, "rules alone");
        assert_eq!(notice.degraded, Some(Degraded::ProviderDegraded));
        assert_eq!((summariser.calls(), layer.handle().spent(Some("acme"))), (0, (0, 0)));
        assert_eq!(layer.handle().snapshot().counts.degraded, 1);

        degraded.remove(&provider);
        degraded.insert("another", now, Duration::from_secs(10));
        let answer = turn(&layer, "t").await.unwrap();
        assert_eq!(crate::notice(&answer).degraded, None);
        assert_eq!(summariser.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_summarised_in_advance_while_their_provider_is_degraded() {
    let degraded = DegradedProviders::default();
    for is_degraded in [true, false] {
        let summariser = recorded();
        let layer = CompactionLayer::new(summariser.clone())
            .with_targets(window(14_000))
            .with_counter(four_bytes())
            .with_deferred(true)
            .with_health(degraded.clone());
        let model = Model::fine();
        if is_degraded {
            degraded.insert(target().provider(), Instant::now(), Duration::from_secs(10));
        } else {
            degraded.remove(target().provider());
        }
        // It is due, and still fits.
        let list = talk(120, 20);
        ask(&stacked(&layer, &model), request(list.clone(), session("s"))).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(model.last().messages.len(), list.len(), "all of it is sent");
        assert_eq!(summariser.calls(), usize::from(!is_degraded));
    }
}

#[tokio::test(start_paused = true)]
async fn health_is_a_setting_that_keeps_what_is_remembered() {
    let layer = layer(&recorded());
    let handle = layer.handle();
    let layer = layer.with_health(DegradedProviders::default());
    turn(&layer, "s").await.unwrap();
    assert_eq!(handle.snapshot().counts.summarised, 1);
}
