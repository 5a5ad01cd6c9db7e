//! Answers that are cut off, and continued.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use common::*;
use steadfast_chat::{ChatRequest, Delta, Event, Role, StopReason};
use steadfast_core::{Call, CallContext, Dialect, Reason, Usage};
use steadfast_recover::{CONTINUE, ContinuationLayer, OutputLimits, StreamResumeLayer};
use tower::{Layer, ServiceExt};

/// All of a stream in one event, like an answer that is not streamed.
fn whole(events: Vec<Event>) -> Vec<Event> {
    vec![Event::new(events.into_iter().flat_map(|event| event.deltas))]
}

fn take(text: &str, chars: usize) -> &str {
    text.char_indices().nth(chars).map_or(text, |(at, _)| &text[..at])
}

/// Writes `text` in pieces of at most `limit` characters, or of four to a token when the request
/// raises its limit.
fn author(text: String, limit: usize, ends: bool) -> Model {
    Model::new(move |_, request| {
        let shown = shown_text(request).unwrap_or_default();
        let rest = &text[shown.len()..];
        let limit =
            request.params.max_output.map_or(limit, |tokens| limit.max(tokens as usize * 4));
        let piece = take(rest, limit);
        let stop = if piece == rest { StopReason::EndTurn } else { StopReason::MaxTokens };
        let events = stream("a", &[Block::Text(piece.to_owned())], 7, ends, stop);
        Ok(script(if request.stream { events } else { whole(events) }))
    })
}

fn stop(got: &Received) -> StopReason {
    got.answer.stop.as_ref().unwrap().reason
}

fn recording_whole() -> ChatRequest {
    ChatRequest::user("go").with_context(CallContext::recording())
}

#[tokio::test(start_paused = true)]
async fn an_answer_cut_anywhere_is_completed_without_repetition() {
    let text = long();
    let chars = text.chars().count();
    for limit in (chars / 4 + 1)..=chars {
        for ends in [true, false] {
            let model = author(text.clone(), limit, ends);
            let got = send(&model, &ContinuationLayer::default(), recording()).await;
            assert_eq!(got.text(), text, "{limit}");
            assert_eq!(stop(&got), StopReason::EndTurn);
            assert_eq!(got.answer.parts.len(), 1, "one block");
            assert_eq!(model.calls(), chars.div_ceil(limit));
            // 10 input tokens of each call, and the output of all.
            assert_eq!(got.answer.usage.input, Some(10 * model.calls() as u64));
            assert!(got.answer.usage.output.unwrap() + 4 >= (text.len() / 4) as u64);
            // Not streamed, without raising the limit.
            let layer = ContinuationLayer::default().tune(|policy| policy.escalate_to = 0).unwrap();
            let model = author(text.clone(), limit, ends);
            let got = send(&model, &layer, recording_whole()).await;
            assert_eq!((got.text(), stop(&got)), (text.clone(), StopReason::EndTurn));
            assert_eq!(got.answer.usage.input, Some(10 * model.calls() as u64));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_the_caller_set_is_the_callers() {
    let text: String = (0..90).map(|n| format!("Sentence {n} of it. ")).collect();
    let asking = |mut request: ChatRequest, value: &'static str| {
        request.headers.insert(CONTINUE, value.parse().unwrap());
        request
    };
    let usual = ContinuationLayer::default();
    let always = usual.clone().tune(|policy| policy.when_callers_limit = true).unwrap();
    for plain in [recording as fn() -> ChatRequest, recording_whole] {
        for (what, layer, request, continued) in [
            ("no limit", &usual, plain(), true),
            ("a limit", &usual, plain().with_max_output(256), false),
            ("asked for", &usual, asking(plain().with_max_output(256), "1"), true),
            ("not asked for", &usual, asking(plain().with_max_output(256), "0"), false),
            ("asked for with a low limit", &usual, asking(plain().with_max_output(16), "1"), true),
            ("by policy", &always, plain().with_max_output(256), true),
            ("by policy with a low limit", &always, plain().with_max_output(16), false),
        ] {
            let model = author(text.clone(), 1_000, true);
            let got = send(&model, layer, request).await;
            let end = if continued { StopReason::EndTurn } else { StopReason::MaxTokens };
            assert_eq!((model.calls() > 1, stop(&got)), (continued, end), "{what}");
            assert_eq!(
                (got.text() == text, log(&got).is_empty()),
                (continued, !continued),
                "{what}"
            );
        }
    }
    // A call that is cut off there arrives as it came.
    let request = recording().with_max_output(1_000);
    let got = send(&cut_call(9, true), &usual, request).await;
    assert_eq!(got.calls(), [("write".to_owned(), WHOLE[..9].to_owned())]);
    assert_eq!(stop(&got), StopReason::MaxTokens);
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_raised_once_when_nothing_was_delivered() {
    let text = long();
    for (request, layer) in [
        (recording_whole as fn() -> ChatRequest, ContinuationLayer::default()),
        (recording, ContinuationLayer::default().with_withhold(true)),
    ] {
        let model = author(text.clone(), 100, true);
        let got = send(&model, &layer, request()).await;
        assert_eq!((got.text(), stop(&got)), (text.clone(), StopReason::EndTurn));
        assert_eq!(log(&got), ["escalated"]);
        assert!(matches!(got.deltas[0], Delta::Start { .. }), "it has one start");
        let requests = model.requests.lock().clone();
        assert_eq!(requests.len(), 2);
        assert_eq!(requests[1].params.max_output, Some(64_000));
        assert_eq!(requests[1].messages[..], requests[0].messages[..], "the same request");
        assert_eq!(got.answer.usage.input, Some(20), "the usage of the dropped answer counts");
        // At most the limit of the model, and what the window leaves after 10 tokens of input.
        for (limits, to) in [
            (OutputLimits { max_output: Some(50), window: None }, 50),
            (OutputLimits { max_output: Some(50), window: Some(50) }, 40),
        ] {
            let model = author(text.clone(), 100, true);
            let got = send(&model, &layer.clone().with_limits(move |_, _| limits), request()).await;
            assert_eq!(model.requests.lock()[1].params.max_output, Some(to));
            assert!(text.starts_with(&got.text()) && got.text().chars().count() > 500);
            assert_eq!(log(&got)[..2], ["escalated", "continued"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_is_kept_when_the_raised_limit_is_refused() {
    let text = long();
    let inner = author(text.clone(), 400, true);
    let model = Model::new(move |call, request| match request.params.max_output {
        Some(_) => Err(fail(Reason::Format)),
        None => (inner_script(&inner))(call, request),
    });
    let got = send(&model, &ContinuationLayer::default(), recording_whole()).await;
    assert_eq!((got.text(), stop(&got)), (text, StopReason::EndTurn));
    assert_eq!(log(&got), ["escalated", "continued", "continued"]);
    // Not after a final failure.
    let model = Model::new(move |call, _| match call {
        0 => Ok(script(whole(stream(
            "a",
            &[Block::Text("Hm".into())],
            9,
            true,
            StopReason::MaxTokens,
        )))),
        _ => Err(fail(Reason::Safety)),
    });
    let got = send(&model, &ContinuationLayer::default(), recording_whole()).await;
    assert_eq!((got.failures[0].reason(), got.deltas.len()), (Reason::Safety, 0));
}

fn inner_script(
    model: &Model,
) -> impl Fn(usize, &ChatRequest) -> Result<Vec<ModelStep>, steadfast_core::Failure> + '_ {
    |call, request| model.answer(call, request)
}

#[tokio::test(start_paused = true)]
async fn a_model_that_never_stops_is_truncated_after_its_continuations() {
    let endless = |pieces: usize| {
        Model::new(move |call, _| {
            let text = format!("{call} ").repeat(pieces);
            Ok(script(stream("a", &[Block::Text(text)], 99, true, StopReason::MaxTokens)))
        })
    };
    let model = endless(4_000);
    let layer = ContinuationLayer::default();
    let got = send(&model, &layer, recording()).await;
    assert_eq!(
        (model.calls(), stop(&got)),
        (4, StopReason::MaxTokens),
        "truncated, without an error"
    );
    assert_eq!(log(&got), ["continued", "continued", "continued", "truncated"]);
    assert_eq!(got.answer.usage, Usage::new(40, 8_000));
    let snapshot = layer.handle().snapshot();
    assert_eq!((snapshot.cut, snapshot.continued, snapshot.truncated), (4, 3, 1));
    // A continuation of 499 tokens counts as little, one of 500 does not.
    for (pieces, calls) in [(998, 4), (1_000, 10)] {
        let layer = ContinuationLayer::default().tune(|policy| policy.continuations = 9).unwrap();
        let model = endless(pieces);
        send(&model, &layer, recording()).await;
        assert_eq!(model.calls(), calls, "{pieces}");
    }
}

const WHOLE: &str = r#"{"path":"a","text":"one {two} \"three\""}"#;

/// Text and a call with only `bytes` bytes of arguments, then the complete call.
fn cut_call(bytes: usize, ends: bool) -> Model {
    Model::new(move |call, request| {
        let text = Block::Text("Let me write it.".into());
        let events = if call == 0 {
            let cut = Block::Call("write", WHOLE[..bytes].into());
            stream("a", &[text, cut], 4, ends, StopReason::MaxTokens)
        } else {
            assert!(
                request.messages.last().unwrap().text().contains(&format!("after {bytes} bytes"))
            );
            stream("b", &[Block::Call("write", WHOLE.into())], 4, ends, StopReason::ToolUse)
        };
        Ok(script(if request.stream { events } else { whole(events) }))
    })
}

#[tokio::test(start_paused = true)]
async fn a_cut_call_is_not_delivered_and_made_again() {
    for bytes in 1..WHOLE.len() {
        for ends in [true, false] {
            for request in [recording(), recording_whole()] {
                let layer =
                    ContinuationLayer::default().tune(|policy| policy.escalate_to = 0).unwrap();
                let got = send(&cut_call(bytes, ends), &layer, request).await;
                let calls = got.calls();
                assert_eq!(calls.len(), 1, "{bytes}: {got:?}");
                assert_eq!(calls[0].1, WHOLE, "{bytes}");
                assert_eq!(got.text(), "Let me write it.");
                assert_eq!(stop(&got), StopReason::ToolUse);
            }
        }
    }
    // Without continuations: the text, without the call.
    let layer = ContinuationLayer::default().tune(|policy| policy.continuations = 0).unwrap();
    let got = send(&cut_call(9, true), &layer, recording()).await;
    assert_eq!((got.calls().len(), stop(&got)), (0, StopReason::MaxTokens));
}

#[tokio::test(start_paused = true)]
async fn a_complete_call_at_the_limit_is_not_cut_off() {
    let calls = |second: &str| {
        let (first, second) = (r#"{"a":1}"#.to_owned(), second.to_owned());
        Model::new(move |_, _| {
            let blocks = [Block::Call("read", first.clone()), Block::Call("list", second.clone())];
            Ok(script(stream("a", &blocks, 3, true, StopReason::MaxTokens)))
        })
    };
    let mut model = calls("{}");
    model.dialects = vec![Dialect::OpenAi];
    let got = send(&model, &ContinuationLayer::default(), recording()).await;
    assert_eq!((model.calls(), got.calls().len()), (1, 2));
    assert_eq!(stop(&got), StopReason::MaxTokens, "as the model reported it");
    // One is complete, the other is not: the turn ends with the complete one.
    let model = calls("{\"b\":");
    let got = send(&model, &ContinuationLayer::default(), recording()).await;
    assert_eq!((model.calls(), got.calls()), (1, vec![("read".into(), r#"{"a":1}"#.into())]));
    assert_eq!(stop(&got), StopReason::ToolUse);
}

/// On Anthropic's wire a call without arguments is the same as one cut off before the first byte of its
/// arguments, and in an answer that is not streamed partial arguments arrive as a complete object.
#[tokio::test(start_paused = true)]
async fn a_call_that_only_seems_complete_is_made_again() {
    let answers = |arguments: &'static str| {
        Model::new(move |call, request| {
            let (arguments, stop) = match call {
                0 => (arguments, StopReason::MaxTokens),
                _ => (WHOLE, StopReason::ToolUse),
            };
            let events = stream("a", &[Block::Call("write", arguments.into())], 9, true, stop);
            Ok(script(if request.stream { events } else { whole(events) }))
        })
    };
    let layer = ContinuationLayer::default().tune(|policy| policy.escalate_to = 0).unwrap();
    for (dialect, request, arguments, calls) in [
        (Dialect::Anthropic, recording(), "{}", 2),
        (Dialect::Anthropic, recording(), r#"{"path":"a"}"#, 1),
        (Dialect::Anthropic, recording_whole(), r#"{"path":"a"}"#, 2),
        (Dialect::OpenAi, recording(), "{}", 1),
        (Dialect::OpenAi, recording_whole(), r#"{"path":"a"}"#, 1),
        (Dialect::OpenAi, recording(), "", 2),
    ] {
        let mut model = answers(arguments);
        model.dialects = vec![dialect];
        let got = send(&model, &layer, request).await;
        let case = format!("{dialect} {arguments}: {got:?}");
        assert_eq!(model.calls(), calls, "{case}");
        let made = if calls == 2 { WHOLE } else { arguments };
        assert_eq!(got.calls(), [("write".to_owned(), made.to_owned())], "{case}");
        if calls == 2 {
            let prompt = model.requests.lock()[1].messages.last().unwrap().text();
            assert!(prompt.contains("in the middle of a tool call"), "{prompt}");
        }
    }
    // A call before another block, or before another stop reason, is complete.
    for (blocks, stop) in [
        (
            vec![Block::Call("list", "{}".into()), Block::Call("read", "{\"a\":".into())],
            StopReason::MaxTokens,
        ),
        (vec![Block::Call("list", "{}".into())], StopReason::ToolUse),
    ] {
        for request in [recording(), recording_whole()] {
            let (blocks, streams) = (blocks.clone(), request.stream);
            let model = Model::new(move |_, _| {
                let events = stream("a", &blocks, 9, true, stop);
                Ok(script(if streams { events } else { whole(events) }))
            });
            let got = send(&model, &layer, request).await;
            assert_eq!((model.calls(), got.calls()), (1, vec![("list".into(), "{}".into())]));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_complete_answer_is_unchanged() {
    let blocks = [
        Block::Thinking("hm".into()),
        Block::Text("Hello there.".into()),
        Block::Call("none", String::new()),
        Block::Call("read", r#"{"a":{}}"#.into()),
    ];
    for end in [StopReason::ToolUse, StopReason::EndTurn, StopReason::ContentFilter] {
        let events = stream("a", &blocks, 3, true, end);
        let sent: Vec<Delta> = events.iter().flat_map(|event| event.deltas.clone()).collect();
        for withhold in [false, true] {
            let events = events.clone();
            let model = Model::new(move |_, _| Ok(script(events.clone())));
            let layer = ContinuationLayer::default().with_withhold(withhold);
            let got = send(&model, &layer, recording()).await;
            assert_eq!(got.deltas, sent);
            assert!(log(&got).is_empty());
        }
    }
    // An answer to a request with a low limit, or for several answers, is not continued.
    for request in [recording().with_max_output(16), {
        let mut request = recording();
        request.params.answers = Some(2);
        request
    }] {
        let model = author(long(), 100, true);
        let got = send(&model, &ContinuationLayer::default(), request).await;
        assert_eq!((model.calls(), stop(&got)), (1, StopReason::MaxTokens));
    }
}

#[tokio::test(start_paused = true)]
async fn failures_of_answers_and_continuations() {
    let piece = |text: &str, end| stream("a", &[Block::Text(text.into())], 4, true, end);
    // The answer itself fails: its failure is returned.
    for at in 0..6 {
        let events = piece("Hello there", StopReason::EndTurn);
        let model = Model::new(move |_, _| Ok(broken(&events, at, fail(Reason::Network))));
        let got = send(&model, &ContinuationLayer::default(), recording()).await;
        assert_eq!((model.calls(), got.failures[0].reason()), (1, Reason::Network));
    }
    // The continuation fails before its first content: the truncated answer.
    for reason in [Reason::Network, Reason::Exhausted] {
        let first = piece("Hello there", StopReason::MaxTokens);
        let model = Model::new(move |call, _| match call {
            0 => Ok(script(first.clone())),
            _ => Err(fail(reason)),
        });
        let got = send(&model, &ContinuationLayer::default(), recording()).await;
        assert_eq!((got.text().as_str(), stop(&got)), ("Hello there", StopReason::MaxTokens));
        assert_eq!(log(&got), ["continued", "truncated"]);
    }
    // It breaks half way: the end is not invented.
    let (first, second) =
        (piece("Hello there", StopReason::MaxTokens), piece(", all of you", StopReason::EndTurn));
    let model = Model::new(move |call, _| match call {
        0 => Ok(script(first.clone())),
        _ => Ok(broken(&second, 3, fail(Reason::Network))),
    });
    let got = send(&model, &ContinuationLayer::default(), recording()).await;
    assert_eq!((got.text().as_str(), got.failures.len()), ("Hello there, al", 1));
    assert!(got.failures[0].is_delivered());
    // With an inner resume layer, it is completed.
    let model = Model::new(move |call, request| {
        let text = match (call, requested_anchor(request)) {
            (0, _) => return Ok(script(piece("Hello there", StopReason::MaxTokens))),
            (1, _) => {
                return Ok(broken(
                    &piece(", all of you", StopReason::EndTurn),
                    4,
                    fail(Reason::Network),
                ));
            }
            (_, anchor) => format!("{} you", anchor.unwrap()),
        };
        Ok(script(piece(&text, StopReason::EndTurn)))
    });
    let stack = ContinuationLayer::default().layer(StreamResumeLayer::default().layer(model));
    let got = read(stack.oneshot(recording()).await.unwrap()).await;
    assert_eq!(got.text(), "Hello there, all of you");
    assert_eq!(log(&got), ["continued", "resuming", "resumed"]);
}

#[tokio::test(start_paused = true)]
async fn repetitions_are_cut_and_thinking_alone_is_continued() {
    let text = long();
    let (first, rest) = text.split_at(200);
    let (one, two) = (first.to_owned(), format!("{}{rest}", &first[first.len() - 60..]));
    let model = Model::new(move |call, _| {
        let (text, end) = match call {
            0 => (one.clone(), StopReason::MaxTokens),
            _ => (two.clone(), StopReason::EndTurn),
        };
        Ok(script(stream("a", &[Block::Text(text)], 9, true, end)))
    });
    let got = send(&model, &ContinuationLayer::default(), recording()).await;
    assert_eq!(got.text(), text);
    let model = Model::new(|call, request| {
        let (block, end) = match call {
            0 => (Block::Thinking("Let me think about".into()), StopReason::MaxTokens),
            _ => (Block::Text("Yes.".into()), StopReason::EndTurn),
        };
        assert!(request.messages.iter().all(|message| message.role() == Role::User));
        Ok(script(stream("a", &[block], 9, true, end)))
    });
    let got = send(&model, &ContinuationLayer::default(), recording()).await;
    assert_eq!((got.text().as_str(), got.answer.parts.len()), ("Yes.", 2));
}

#[tokio::test(start_paused = true)]
async fn dropping_it_at_any_poll_ends_everything() {
    dropped_anywhere(&ContinuationLayer::default(), || author(long(), 300, true)).await;
}

#[tokio::test(start_paused = true)]
async fn the_attempts_of_the_request_are_kept() {
    let mut request = recording();
    request.context_mut().max_attempts = std::num::NonZeroU32::new(2);
    let model = author(long(), 300, true);
    let got = send(&model, &ContinuationLayer::default(), request).await;
    assert_eq!((model.calls(), stop(&got)), (2, StopReason::MaxTokens));
    assert_eq!(model.requests.lock()[1].context.attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn every_attempt_is_counted_once() {
    for counts in [true, false] {
        for mut request in [recording(), recording_whole()] {
            let mut model = author(long(), 400, true);
            model.counts = counts;
            request.context.attempts = 2;
            send(&model, &ContinuationLayer::default(), request).await;
            let before: Vec<_> =
                model.requests.lock().iter().map(|it| it.context.attempts).collect();
            assert!(before.len() > 1, "{counts}");
            assert_eq!(before, (2..).take(before.len()).collect::<Vec<u32>>(), "{counts}");
        }
        // A failure has the sum, of all that was done for it.
        let piece = |text: &str, end| stream("a", &[Block::Text(text.into())], 4, true, end);
        let (first, second) =
            (piece("Hello there", StopReason::MaxTokens), piece(", all", StopReason::EndTurn));
        let mut model = Model::new(move |call, _| match call {
            0 => Ok(script(first.clone())),
            _ => Ok(broken(&second, 3, fail(Reason::Network).with_attempts(3))),
        });
        model.counts = counts;
        let mut request = recording();
        request.context.attempts = 2;
        let got = send(&model, &ContinuationLayer::default(), request).await;
        assert_eq!(got.failures[0].attempts(), 4, "{counts}");
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_that_were_made_inside_after_the_head_are_counted() {
    let piece = |text: &str, end| stream("a", &[Block::Text(text.into())], 4, true, end);
    let model = Model::new(move |call, request| match (call, requested_anchor(request)) {
        (0, _) => {
            let events = piece("Hello there", StopReason::EndTurn);
            Ok(broken(&events, 4, fail(Reason::Network)))
        }
        (1, anchor) => {
            let text = format!("{} all", anchor.unwrap());
            Ok(script(piece(&text, StopReason::MaxTokens)))
        }
        _ => Ok(script(piece(", of you", StopReason::EndTurn))),
    });
    let resumes = StreamResumeLayer::default().layer(model.clone());
    let stack = ContinuationLayer::default().layer(resumes);
    let got = read(stack.oneshot(recording()).await.unwrap()).await;
    assert_eq!(got.text(), "Hello th all, of you");
    let before: Vec<_> = model.requests.lock().iter().map(|it| it.context.attempts).collect();
    assert_eq!((before, got.answer.head.log.attempts()), (vec![0, 1, 2], 3));
}

#[tokio::test(start_paused = true)]
async fn a_cut_call_is_dropped_from_an_answer_that_can_not_be_continued() {
    let model = Model::new(move |_, _| {
        Ok(script([
            opaque(0),
            Event::new([Delta::ToolCall { index: 1, id: "a".into(), name: "write".into() }]),
            Event::new([Delta::Arguments { index: 1, json: "{\"path".into() }]),
            Event::new([Delta::Stop(StopReason::MaxTokens.into())]),
            Event::new([Delta::End]),
        ]))
    });
    let got = send(&model, &ContinuationLayer::default(), recording()).await;
    assert_eq!((model.calls(), got.calls().len(), stop(&got)), (1, 0, StopReason::MaxTokens));
}

#[tokio::test(start_paused = true)]
async fn a_call_too_large_to_be_held_back_is_unchanged() {
    for end in [StopReason::ToolUse, StopReason::MaxTokens] {
        let call = Block::Call("write", format!("{{\"a\":\"{}", "x".repeat(9_000)));
        let events = stream("a", &[call], 90, true, end);
        let sent: Vec<Delta> = events.iter().flat_map(|event| event.deltas.clone()).collect();
        let model = Model::new(move |_, _| Ok(script(events.clone())));
        let layer = ContinuationLayer::default().tune(|policy| policy.max_partial = 5_000).unwrap();
        let got = send(&model, &layer, recording()).await;
        assert_eq!((model.calls(), got.deltas), (1, sent));
    }
}
