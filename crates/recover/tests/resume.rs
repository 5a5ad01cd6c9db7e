//! Streams that break, and are resumed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{num::NonZeroU32, sync::atomic::Ordering, time::Duration};

use common::*;
use futures_util::StreamExt;
use steadfast_chat::{ChatRequest, Delta, Event, StopReason};
use steadfast_core::{Deadline, Preference, Reason, Retry, RetryBudget, Target, Usage};
use steadfast_recover::{ResumePoint, StreamResumeLayer};
use tower::{Layer, ServiceExt};

/// The rest of `blocks` after `shown`, preceded by `repeated`: the answer of a faithful model.
fn rest(blocks: &[Block], shown: &str, repeated: &str) -> Vec<Block> {
    let mut skip = shown.len();
    let mut out = Vec::new();
    for block in blocks {
        match block {
            Block::Text(text) if skip >= text.len() => skip -= text.len(),
            Block::Text(text) => {
                out.push(Block::Text(text[skip..].to_owned()));
                skip = 0;
            }
            // There is new thinking instead, about how to continue.
            Block::Thinking(_) => {}
            call => out.push(call.clone()),
        }
    }
    let space = &shown[shown.trim_end().len()..];
    let first = match out.first_mut() {
        Some(Block::Text(text)) => text,
        _ => {
            out.insert(0, Block::Text(String::new()));
            let Some(Block::Text(text)) = out.first_mut() else { unreachable!() };
            text
        }
    };
    first.insert_str(0, &format!("{repeated}{space}"));
    out.insert(0, Block::Thinking("where was I".into()));
    out
}

/// A model whose first answer breaks at `at`, and that continues faithfully.
fn faithful(blocks: Vec<Block>, at: usize, size: usize, ends: bool) -> Model {
    Model::new(move |call, request| {
        let events = stream("a", &blocks, size, ends, StopReason::EndTurn);
        if call == 0 {
            return Ok(broken(&events, at, fail(Reason::Network)));
        }
        Ok(match (shown_text(request), requested_anchor(request)) {
            (Some(shown), Some(anchor)) => {
                let rest = rest(&blocks, &shown, &anchor);
                script(stream("b", &rest, size + 3, ends, StopReason::EndTurn))
            }
            _ => script(events),
        })
    })
}

fn shapes() -> Vec<Vec<Block>> {
    // A little longer than what is held back.
    let text = || Block::Text(long().chars().take(420).collect());
    let call = |name| Block::Call(name, r#"{"path":"src/{a}.rs","lines":[1,2]}"#.into());
    let thought = || Block::Thinking("First I think about it for quite a while.".into());
    vec![
        vec![text()],
        vec![Block::Text("Hi.".into())],
        vec![thought(), text()],
        vec![thought(), Block::Text("Let me look at it.".into()), call("read"), call("list")],
        vec![call("read")],
        vec![thought(), call("read")],
        vec![Block::Text("I will read.".into()), call("read")],
    ]
}

#[tokio::test(start_paused = true)]
async fn a_break_after_any_event() {
    let mut resumed = 0;
    for blocks in shapes() {
        let whole: String = blocks
            .iter()
            .map(|b| if let Block::Text(text) = b { text.as_str() } else { "" })
            .collect();
        let calls: Vec<_> = blocks
            .iter()
            .filter_map(|b| match b {
                Block::Call(name, json) => Some(((*name).to_owned(), json.clone())),
                _ => None,
            })
            .collect();
        for (size, ends) in [(1, true), (7, true), (7, false), (50, false)] {
            let events = stream("a", &blocks, size, ends, StopReason::EndTurn);
            for at in 0..events.len() {
                let (shown, point) = delivered(&events[..at]);
                let is_untouched = point == ResumePoint::Nothing && shown < at;
                let model = faithful(blocks.clone(), at, size, ends);
                let got = send(&model, &StreamResumeLayer::default(), recording()).await;
                let case = format!("{blocks:?} at {at} of {size}: {got:?}");
                if point.is_resumable() || is_untouched {
                    resumed += 1;
                    assert!(got.failures.is_empty(), "{case}");
                    assert_eq!(got.text(), whole, "{case}");
                    assert_eq!(got.calls(), calls, "{case}");
                    assert_eq!(log(&got), ["resuming", "resumed"], "{case}");
                    assert!(
                        got.answer.usage.input >= Some(20),
                        "the usage of both parts counts: {case}"
                    );
                } else {
                    assert_eq!(got.failures.len(), 1, "{case}");
                    assert_eq!(got.failures[0].reason(), Reason::Network);
                    assert_eq!(model.calls(), 1, "{case}");
                    assert_eq!(log(&got), ["not_resumed"]);
                    let received = got.deltas.len();
                    let sent: usize = events[..shown].iter().map(|event| event.deltas.len()).sum();
                    assert_eq!(received, sent, "everything before the break: {case}");
                    let has_content = point != ResumePoint::Nothing;
                    assert_eq!(got.failures[0].is_delivered(), has_content, "{case}");
                }
            }
        }
    }
    assert!(resumed > 1_000, "{resumed}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_several_times() {
    let text = long();
    for breaks in 1..=3 {
        let whole = text.clone();
        let model = Model::new(move |call, request| {
            let blocks = match (shown_text(request), requested_anchor(request)) {
                (Some(shown), Some(anchor)) => rest(&[Block::Text(whole.clone())], &shown, &anchor),
                _ => vec![Block::Text(whole.clone())],
            };
            let events = stream("x", &blocks, 9, true, StopReason::EndTurn);
            Ok(if call < breaks {
                broken(&events, 22, fail(Reason::Overloaded))
            } else {
                script(events)
            })
        });
        let layer = StreamResumeLayer::default();
        let got = send(&model, &layer, recording()).await;
        if breaks < 3 {
            assert_eq!(got.text(), text);
            assert_eq!(model.calls(), breaks + 1);
        } else {
            assert!(text.starts_with(&got.text()));
            assert_eq!(got.failures[0].reason(), Reason::Overloaded);
            assert_eq!(got.failures[0].attempts(), 3);
            assert!(got.failures[0].trail().len() == 3, "{:?}", got.failures[0]);
        }
        let snapshot = layer.handle().snapshot();
        assert_eq!((snapshot.broken, snapshot.resumed), (breaks as u64, breaks.min(2) as u64));
    }
}

/// A first stream that breaks in its text, and the answers of `then` to further calls.
fn after_text(
    then: impl Fn() -> Result<Vec<ModelStep>, steadfast_core::Failure> + Send + Sync + 'static,
) -> Model {
    let events = stream("a", &[Block::Text(long())], 9, true, StopReason::EndTurn);
    Model::new(move |call, _| match call {
        0 => Ok(broken(&events, 30, fail(Reason::Timeout))),
        _ => then(),
    })
}

#[tokio::test(start_paused = true)]
async fn a_resume_without_an_overlap_is_one_failure() {
    for text in ["I am sorry, the connection broke. As I was saying, there is more.", "", "Well"] {
        let text = text.to_owned();
        let model = after_text(move || {
            Ok(script(stream("b", &[Block::Text(text.clone())], 5, true, StopReason::EndTurn)))
        });
        let got = send(&model, &StreamResumeLayer::default(), recording()).await;
        assert_eq!(got.failures[0].reason(), Reason::Timeout, "the failure that broke it");
        assert!(got.failures[0].is_delivered());
        assert_eq!(model.calls(), 2, "no third call");
        assert!(long().starts_with(&got.text()), "nothing of it is delivered");
        assert_eq!(log(&got), ["resuming", "not_resumed"]);
    }
}

#[tokio::test(start_paused = true)]
async fn failures_of_the_resume_itself() {
    // A call that fails is made again, but not after a refusal of our own or a final failure.
    for (reason, calls, reported) in [
        (Reason::Network, 3, Reason::Timeout),
        (Reason::Exhausted, 2, Reason::Timeout),
        (Reason::Format, 2, Reason::Timeout),
        (Reason::Safety, 2, Reason::Safety),
    ] {
        let model = after_text(move || Err(fail(reason)));
        let got = send(&model, &StreamResumeLayer::default(), recording()).await;
        assert_eq!((model.calls(), got.failures[0].reason()), (calls, reported), "{reason}");
    }
    // Streams that end too early, or break before the overlap.
    for end in [0, 1, 2, 3] {
        let events = stream("b", &[Block::Text("Word".into())], 4, true, StopReason::EndTurn);
        let model = after_text(move || Ok(script(events[..end].iter().cloned())));
        let got = send(&model, &StreamResumeLayer::default(), recording()).await;
        assert_eq!((model.calls(), got.failures.len()), (3, 1), "the end is not invented");
    }
}

#[tokio::test(start_paused = true)]
async fn final_failures_are_not_resumed() {
    for reason in [Reason::Safety, Reason::Cancelled, Reason::ContentFilter] {
        let events = stream("a", &[Block::Text(long())], 9, true, StopReason::EndTurn);
        let model = Model::new(move |_, _| Ok(broken(&events, 30, fail(reason))));
        let got = send(&model, &StreamResumeLayer::default(), recording()).await;
        assert_eq!((model.calls(), got.failures[0].reason()), (1, reason));
    }
}

#[tokio::test(start_paused = true)]
async fn deadline_attempts_and_budget_are_kept() {
    let model = || faithful(vec![Block::Text(long())], 30, 9, true);
    let layer = StreamResumeLayer::default;
    // The deadline has passed when it breaks.
    let mut request = recording();
    request.context.deadline = Some(Deadline::after(Duration::ZERO));
    let inner = model();
    assert_eq!(send(&inner, &layer(), request).await.failures.len(), 1);
    assert_eq!(inner.calls(), 1);
    // It passes during the search for the overlap.
    let mut request = recording();
    request.context.deadline = Some(Deadline::after(Duration::from_secs(5)));
    let inner = after_text(|| Ok(vec![ModelStep::Hang]));
    let got = send(&inner, &layer(), request).await;
    assert_eq!(got.failures[0].reason(), Reason::Timeout);
    // Attempts.
    for (most, calls) in [(1, 1), (2, 2)] {
        let mut request = recording();
        request.context.max_attempts = NonZeroU32::new(most);
        let inner = model();
        let got = send(&inner, &layer(), request).await;
        assert_eq!((inner.calls(), got.failures.len()), (calls, usize::from(most == 1)));
        if most == 2 {
            assert_eq!(inner.requests.lock()[1].context.attempts, 1);
        }
    }
    // The budget is drawn from, and refunded when the answer succeeded.
    let budget = RetryBudget::default();
    let inner = model();
    send(&inner, &layer().with_budget(budget.clone()), recording()).await;
    assert!(budget.is_full());
    let inner = after_text(|| Err(fail(Reason::Format)));
    send(&inner, &layer().with_budget(budget.clone()), recording()).await;
    assert_eq!(budget.remaining(), 500 - budget.policy().transient);
    while let Some(cost) = budget.reserve(Reason::Timeout) {
        let _ = cost.spend();
    }
    let inner = after_text(|| Ok(Vec::new()));
    let mut request = recording();
    request.context.budget = Some(budget);
    assert_eq!(send(&inner, &layer(), request).await.failures.len(), 1);
    assert_eq!(inner.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_prefill_is_continued_without_repetition() {
    let whole = long();
    for at in [5, 20, 33] {
        let text = whole.clone();
        let model = Model::new(move |call, request| {
            let events = stream("a", &[Block::Text(text.clone())], 9, false, StopReason::EndTurn);
            if call == 0 {
                return Ok(broken(&events, at, fail(Reason::Network)));
            }
            let shown = shown_text(request).unwrap();
            assert_eq!(shown.trim_end(), shown);
            assert_eq!(request.messages.len(), 2, "it is the last message");
            let rest = Block::Text(text[shown.len()..].to_owned());
            Ok(script(stream("b", &[rest], 9, false, StopReason::EndTurn)))
        });
        let layer = StreamResumeLayer::default().with_prefill(|_, _| true);
        let got = send(&model, &layer, recording()).await;
        assert_eq!(got.text(), whole);
    }
    // Another target answers, which does not accept a prefill: its text needs an overlap.
    let model = after_text(|| {
        Ok(script(stream("b", &[Block::Text("Anew.".into())], 9, true, StopReason::EndTurn)))
    });
    let layer = StreamResumeLayer::default()
        .with_prefill(|target, _| target.is_some_and(|target| target.provider() == "p0"));
    assert_eq!(send(&model, &layer, recording()).await.failures.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_lost_part_is_estimated_and_reported() {
    let model = faithful(vec![Block::Text(long())], 30, 9, true);
    let layer = StreamResumeLayer::default();
    let got = send(&model, &layer, recording()).await;
    // 28 pieces of 9 characters had come, and 10 tokens of input were reported.
    let seen: usize = stream("a", &[Block::Text(long())], 9, true, StopReason::EndTurn)[..30]
        .iter()
        .flat_map(|event| &event.deltas)
        .map(|delta| if let Delta::Text { text, .. } = delta { text.len() } else { 0 })
        .sum();
    let lost = Usage::new(10, seen.div_ceil(4) as u64);
    assert_eq!(Some(layer.handle().snapshot().wasted_tokens), lost.total());
    let steps = got.answer.head.log.steps();
    assert!(
        steps[0]
            .detail
            .as_deref()
            .unwrap()
            .contains(&format!("about 10 input and {}", lost.output.unwrap()))
    );
    assert!(got.answer.usage.output > lost.output);
}

#[tokio::test(start_paused = true)]
async fn dropping_it_at_any_poll_ends_everything() {
    let layer = StreamResumeLayer::default();
    dropped_anywhere(&layer, || faithful(vec![Block::Text(long())], 30, 9, true)).await;
}

#[tokio::test(start_paused = true)]
async fn opaque_blocks_and_several_answers_are_not_resumed() {
    let events = vec![Event::new([Delta::Text { index: 0, text: "Searching.".into() }]), opaque(1)];
    let model = Model::new(move |_, _| Ok(broken(&events, 2, fail(Reason::Network))));
    assert_eq!(send(&model, &StreamResumeLayer::default(), recording()).await.failures.len(), 1);
    assert_eq!(model.calls(), 1);
    let mut request = recording();
    request.params.answers = Some(2);
    let model = faithful(vec![Block::Text(long())], 30, 9, true);
    assert_eq!(send(&model, &StreamResumeLayer::default(), request).await.failures.len(), 1);
}

/// Ready for the first call, and for others only when switched to ready.
#[derive(Clone)]
struct SwitchedService(Model, std::sync::Arc<std::sync::atomic::AtomicBool>);

impl tower::Service<ChatRequest> for SwitchedService {
    type Response = <Model as tower::Service<ChatRequest>>::Response;
    type Error = steadfast_core::Failure;
    type Future = <Model as tower::Service<ChatRequest>>::Future;

    fn poll_ready(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        if self.0.calls() == 0 || self.1.load(Ordering::Relaxed) {
            return std::task::Poll::Ready(Ok(()));
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        self.0.call(request)
    }
}

#[tokio::test(start_paused = true)]
async fn a_resume_waits_for_readiness_and_costs_nothing_until_it_is_sent() {
    for is_ready in [true, false] {
        let budget = RetryBudget::default();
        let service =
            SwitchedService(faithful(vec![Block::Text(long())], 30, 9, true), Default::default());
        let layer = StreamResumeLayer::default().with_budget(budget.clone());
        let mut events = layer.layer(service.clone()).oneshot(recording()).await.unwrap();
        for _ in 0..30 {
            events.next().await.unwrap().unwrap();
        }
        let mut next = Box::pin(events.next());
        for _ in 0..3 {
            assert!(futures_util::poll!(next.as_mut()).is_pending());
        }
        assert_eq!(service.0.calls(), 1);
        assert!(!budget.is_full(), "the cost is reserved");
        if is_ready {
            service.1.store(true, Ordering::Relaxed);
            assert!(next.await.unwrap().is_ok());
            assert!(events.collect().await.unwrap().ended);
            assert_eq!(service.0.calls(), 2);
        } else {
            drop(next);
            drop(events);
        }
        assert!(budget.is_full(), "the cost is refunded");
    }
}

const CALL: &str = r#"{"path":"a.rs","text":"one {two}"}"#;

fn write() -> Block {
    Block::Call("write", CALL.into())
}

/// A first answer that breaks in its call, after `text`, and the answers of `then` to further calls.
fn breaks_in_call(
    text: Option<&str>,
    then: impl Fn() -> Vec<Event> + Send + Sync + 'static,
) -> Model {
    let text = text.map(|text| Block::Text(text.into()));
    let blocks: Vec<_> = text.into_iter().chain([write()]).collect();
    let events = stream("a", &blocks, 4, true, StopReason::ToolUse);
    // The last piece of the arguments, the end of the block, the reason to stop and the end are missing.
    let at = events.len() - 4;
    Model::new(move |call, _| match call {
        0 => Ok(broken(&events, at, fail(Reason::Network).with_delivered())),
        _ => Ok(script(then())),
    })
}

#[tokio::test(start_paused = true)]
async fn a_call_that_broke_is_made_again_after_the_text_before_it() {
    const TEXT: &str = "I will write it.";
    let text = |text: &str| Block::Text(text.into());
    for (what, blocks, made) in [
        ("the text is repeated", vec![text(TEXT), write()], true),
        ("the call is made at once", vec![write()], true),
        ("after thinking", vec![Block::Thinking("so".into()), write()], true),
        ("after another text", vec![text("No."), write()], false),
        ("neither", vec![], false),
    ] {
        let then = move || stream("b", &blocks, 4, true, StopReason::ToolUse);
        let model = breaks_in_call(Some(TEXT), then);
        let got = send(&model, &StreamResumeLayer::default(), recording()).await;
        assert_eq!((model.calls(), got.text().as_str()), (2, TEXT), "{what}");
        assert_eq!(got.failures.len(), usize::from(!made), "{what}");
        if made {
            assert_eq!(got.calls(), [("write".to_owned(), CALL.to_owned())], "{what}");
            assert_eq!(log(&got), ["resuming", "resumed"], "{what}");
        } else {
            assert_eq!(got.calls().len(), 0, "{what}: half a call");
            assert_eq!(got.failures[0].reason(), Reason::Network, "{what}");
            assert!(got.failures[0].is_delivered(), "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_broke_before_anything_was_delivered() {
    // The same request is sent again.
    let model = breaks_in_call(None, || stream("b", &[write()], 4, true, StopReason::ToolUse));
    let got = send(&model, &StreamResumeLayer::default(), recording()).await;
    assert_eq!(got.calls(), [("write".to_owned(), CALL.to_owned())]);
    assert_eq!(log(&got), ["resuming", "resumed"]);
    let requests = model.requests.lock().clone();
    assert_eq!(requests[1].messages[..], requests[0].messages[..]);
    // Without a second answer the caller has nothing.
    let model = breaks_in_call(None, Vec::new);
    let got = send(&model, &StreamResumeLayer::default(), recording()).await;
    assert_eq!((model.calls(), got.calls().len(), got.failures.len()), (3, 0, 1));
    assert!(!got.failures[0].is_delivered());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_held_back_is_not_made_again() {
    let small = StreamResumeLayer::default().tune(|policy| policy.max_partial = 1).unwrap();
    let mut several = recording();
    several.params.answers = Some(2);
    for (layer, request) in [(small, recording()), (StreamResumeLayer::default(), several)] {
        let model = breaks_in_call(None, Vec::new);
        let got = send(&model, &layer, request).await;
        assert_eq!((model.calls(), got.calls().len(), got.failures.len()), (1, 1, 1));
        assert!(got.failures[0].is_delivered());
    }
}

#[tokio::test(start_paused = true)]
async fn a_complete_answer_is_unchanged() {
    let blocks = [
        Block::Thinking("hm".into()),
        Block::Text("Hello there.".into()),
        write(),
        Block::Call("none", String::new()),
        Block::Call("malformed", r#"{"a":"#.into()),
        Block::Text("So much for that.".into()),
    ];
    for (size, ends) in [(1, true), (3, false), (99, true)] {
        let events = stream("a", &blocks, size, ends, StopReason::ToolUse);
        let sent: Vec<Delta> = events.iter().flat_map(|event| event.deltas.clone()).collect();
        let model = Model::new(move |_, _| Ok(script(events.clone())));
        let got = send(&model, &StreamResumeLayer::default(), recording()).await;
        assert_eq!(got.deltas, sent);
        assert!(log(&got).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn pings_arrive_while_a_call_is_held_back() {
    let model = Model::new(|_, _| {
        let call = Event::new([Delta::ToolCall { index: 0, id: "a".into(), name: "read".into() }]);
        let ping = ModelStep::Event(Event::new([Delta::Ping]));
        Ok(vec![ModelStep::Event(call), ping, ModelStep::Hang])
    });
    let stack = StreamResumeLayer::default().layer(model);
    let mut events = stack.oneshot(recording()).await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().deltas[..], [Delta::Ping]);
    assert!(futures_util::poll!(events.next()).is_pending());
}

#[tokio::test(start_paused = true)]
async fn every_attempt_is_counted_once() {
    for counts in [true, false] {
        let events = stream("a", &[Block::Text(long())], 9, true, StopReason::EndTurn);
        let mut model = Model::new(move |call, _| match call {
            0 => Ok(broken(&events, 30, fail(Reason::Network))),
            1 => Err(fail(Reason::Network).with_attempts(3)),
            _ => Err(fail(Reason::Network).with_attempts(2)),
        });
        model.counts = counts;
        let mut request = recording();
        request.context.attempts = 5;
        let got = send(&model, &StreamResumeLayer::default(), request).await;
        let before: Vec<_> = model.requests.lock().iter().map(|it| it.context.attempts).collect();
        assert_eq!(before, [5, 6, 9], "{counts}");
        assert_eq!(got.failures[0].attempts(), 6, "{counts}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_stream_is_resumed_where_it_broke_and_then_elsewhere() {
    let blocks = [Block::Text(long())];
    let model = Model::new(move |call, _| {
        let events = stream("a", &blocks, 9, true, StopReason::EndTurn);
        Ok(broken(&events, 40 + 10 * call, fail(Reason::Network)))
    });
    let got = send(&model, &StreamResumeLayer::default(), recording()).await;
    assert_eq!(got.failures.len(), 1);
    let preferences: Vec<_> = model
        .requests
        .lock()
        .iter()
        .map(|request| request.context.preference.as_deref().cloned())
        .collect();
    let expected =
        [None, Some(Preference::For("p0".into())), Some(Preference::Against("p1".into()))];
    assert_eq!(preferences, expected);
}

/// A failure for which its target is not to be asked again is none of chance.
#[tokio::test(start_paused = true)]
async fn what_its_target_is_not_asked_again_for_is_resumed_elsewhere_or_not_at_all() {
    let except = |targets: &[&str]| {
        Preference::Except(targets.iter().map(|target| Target::from(*target)).collect())
    };
    for (first, second, expected) in [
        (Retry::Yes, Retry::No, [Preference::For("p0".into()), except(&["p1"])]),
        (Retry::No, Retry::Yes, [except(&["p0"]), except(&["p0"])]),
        (Retry::No, Retry::No, [except(&["p0"]), except(&["p0", "p1"])]),
    ] {
        let events = stream("a", &[Block::Text(long())], 9, true, StopReason::EndTurn);
        let model = Model::new(move |call, _| {
            let failure = |retry| fail(Reason::ServerError).with_retry(retry);
            match call {
                0 => Ok(broken(&events, 40, failure(first))),
                // Before it has begun: its failure says who it was.
                1 => Err(failure(second).with_target("p1".into())),
                _ => Err(fail(Reason::Network)),
            }
        });
        send(&model, &StreamResumeLayer::default(), recording()).await;
        let requests = model.requests.lock();
        let preferences: Vec<_> =
            requests[1..].iter().map(|one| one.context.preference.as_deref().cloned()).collect();
        assert_eq!(preferences, expected.map(Some));
    }
}
