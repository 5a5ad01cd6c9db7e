//! Streams that break in one dialect and are resumed in another, on the wire.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use common::*;
use futures_util::StreamExt;
use steadfast_chat::{ChatRequest, Completion, Delta, Event, Head, StopReason};
use steadfast_client::dialect::{Caller, StreamDecoder, StreamEncoder, codec};
use steadfast_core::{Dialect, Failure, Reason, TimeLimit};
use steadfast_recover::{ContinuationLayer, ResumePoint, StreamResumeLayer};
use tower::{Layer, ServiceExt};

/// `events` as a provider of `dialect` sends them, each with its frame.
fn wire(dialect: Dialect, events: &[Event]) -> Vec<Event> {
    let mut request = ChatRequest::user("go").with_model("m");
    request.params.stream_usage = Some(true);
    let mut encoder = StreamEncoder::new(dialect, &Caller::of(&request), dialect);
    let mut decoder = StreamDecoder::new(dialect);
    for event in events {
        decoder.push(encoder.encode(event).unwrap());
    }
    // Gemini's answers end at the end of the input.
    std::iter::from_fn(|| decoder.next_event().or_else(|| decoder.finish()))
        .map(Result::unwrap)
        .collect()
}

/// A copy of the failure.
fn copy(failure: &Failure) -> Failure {
    let same = Failure::new(failure.reason(), failure.message());
    match failure.time_limit() {
        Some(limit) => same.with_time_limit(limit),
        None => same,
    }
}

/// A caller, who decodes what the gateway would encode.
struct CallerReader {
    encoder: StreamEncoder,
    decoder: StreamDecoder,
    answer: Completion,
    failures: Vec<Failure>,
}

impl CallerReader {
    fn new(dialect: Dialect, source: Dialect) -> Self {
        let caller = Caller::of(&ChatRequest::user("go").with_model("m"));
        Self {
            encoder: StreamEncoder::new(dialect, &caller, source),
            decoder: StreamDecoder::new(dialect),
            answer: Completion::new(Head::new(dialect)),
            failures: Vec::new(),
        }
    }

    /// The answer and the failures, when the stream has ended.
    fn finish(mut self) -> (Completion, Vec<Failure>) {
        let last = self.decoder.finish();
        self.take(last);
        (self.answer, self.failures)
    }

    /// Reads an event, or the failure that ends the stream.
    fn read(&mut self, item: &Result<Event, Failure>) {
        assert!(self.failures.is_empty(), "nothing comes after a failure");
        self.decoder.push(match item {
            Ok(event) => self.encoder.encode(event).unwrap(),
            Err(failure) => codec(self.answer.head.dialect).encode_stream_error(failure),
        });
        while let Some(event) = self.decoder.next_event() {
            self.take(Some(event));
        }
    }

    fn take(&mut self, event: Option<Result<Event, Failure>>) {
        match event {
            Some(Ok(event)) => self.answer.push(&event),
            Some(Err(failure)) => self.failures.push(failure),
            None => {}
        }
    }
}

fn random_text(random: &mut fastrand::Rng, count: usize) -> String {
    let mut text = String::new();
    for at in 0..count {
        for _ in 0..random.usize(1..8) {
            text.push(random.lowercase());
        }
        text.push_str(&at.to_string());
        text.push_str(
            random.choice([" ", " ", ", ", ".\n\n", "\u{2019} ", " \u{1f980} "]).unwrap(),
        );
    }
    text
}

fn dialect(random: &mut fastrand::Rng) -> Dialect {
    random.choice(Dialect::ALL).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_break_at_any_event_is_resumed_in_any_dialect() {
    let mut resumed = 0;
    // `cargo xtask chaos` runs ten thousand.
    let seeds = std::env::var("STEADFAST_CHAOS_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let seeds = seeds.unwrap_or(1_500);
    for seed in 0..seeds {
        let mut random = fastrand::Rng::with_seed(seed);
        let (one, two, caller) = (dialect(&mut random), dialect(&mut random), dialect(&mut random));
        let count = random.usize(1..40);
        let whole = random_text(&mut random, count);
        let mut blocks = vec![Block::Text(whole.clone())];
        if random.bool() {
            blocks.insert(0, Block::Thinking(random_text(&mut random, 5)));
        }
        if random.bool() {
            blocks.push(Block::Call("read", r#"{"path":"a {b}","n":[1,{"c":2}]}"#.into()));
        }
        let size = random.usize(1..20);
        let events = wire(one, &stream("a", &blocks, size, true, StopReason::EndTurn));
        let at = random.usize(0..events.len());
        let (_, point) = delivered(&events[..at]);
        // A reset, a stall, or a connection that is closed without an error.
        let failure = match random.u8(..3) {
            0 => Some(fail(Reason::Network)),
            1 => Some(fail(Reason::Timeout).with_time_limit(TimeLimit::Stall)),
            _ => None,
        };
        // One in five continues with another text.
        let faithful = random.u8(..5) > 0;
        let (text, call) = (whole.clone(), blocks.last().cloned());
        let first = events.clone();
        let mut model = Model::new(move |call_number, request| {
            if call_number == 0 {
                let events = first[..at].iter().cloned().map(ModelStep::Event);
                return Ok(events.chain(failure.as_ref().map(copy).map(ModelStep::Fail)).collect());
            }
            let rest = match (shown_text(request), requested_anchor(request)) {
                (Some(_), Some(_)) if !faithful => "AS I WAS SAYING, THERE IS MORE.".repeat(size),
                (Some(shown), Some(anchor)) => {
                    let end = shown.trim_end().len();
                    format!("{anchor}{}", &text[end..])
                }
                _ => text.clone(),
            };
            let mut blocks = vec![Block::Thinking("so".into()), Block::Text(rest)];
            blocks.extend(call.clone().filter(|block| matches!(block, Block::Call(..))));
            Ok(script(wire(two, &stream("b", &blocks, size, true, StopReason::EndTurn))))
        });
        model.dialects = vec![one, two];
        let stack = ContinuationLayer::default().layer(StreamResumeLayer::default().layer(model));
        let mut events = stack.oneshot(recording()).await.unwrap();
        let mut reader = CallerReader::new(caller, one);
        while let Some(event) = events.next().await {
            reader.read(&event);
        }
        let case = format!("seed {seed}: {one} to {two} for {caller}, at {at}");
        let (answer, failures) = reader.finish();
        let in_text = point == ResumePoint::Text;
        if point.is_resumable() && (faithful || !in_text) {
            resumed += 1;
            assert!(failures.is_empty(), "{case}: {failures:?}");
            assert_eq!(answer.text(), whole, "{case}");
            assert!(answer.ended, "{case}");
            let calls: Vec<_> = answer.tool_calls().map(|call| call.name.clone()).collect();
            assert_eq!(
                calls.len(),
                usize::from(blocks.len() > 1 && matches!(blocks.last(), Some(Block::Call(..)))),
                "{case}"
            );
        } else {
            // One error event of the caller's dialect, and no end.
            assert_eq!((failures.len(), answer.ended), (1, false), "{case}: {failures:?}");
            assert!(whole.starts_with(&answer.text()), "{case}");
        }
    }
    assert!(resumed > seeds / 3, "{resumed} of {seeds}");
}

#[tokio::test(start_paused = true)]
async fn truncated_answers_are_continued_in_every_dialect() {
    for provider in Dialect::ALL {
        for caller in Dialect::ALL {
            for limit in [5, 60, 200] {
                let whole = random_text(&mut fastrand::Rng::with_seed(limit as u64), 30);
                let text = whole.clone();
                let mut model = Model::new(move |_, request| {
                    let rest = &text[shown_text(request).unwrap_or_default().len()..];
                    let (at, _) = rest.char_indices().nth(limit).unwrap_or((rest.len(), ' '));
                    let end =
                        if at == rest.len() { StopReason::EndTurn } else { StopReason::MaxTokens };
                    let piece = [Block::Text(rest[..at].to_owned())];
                    Ok(script(wire(provider, &stream("a", &piece, 7, true, end))))
                });
                model.dialects = vec![provider];
                let layer = ContinuationLayer::default().tune(|policy| {
                    policy.continuations = 99;
                    policy.poor_in_a_row = 0;
                });
                let layer = layer.unwrap();
                let mut events = layer.layer(model).oneshot(recording()).await.unwrap();
                let mut reader = CallerReader::new(caller, provider);
                while let Some(event) = events.next().await {
                    reader.read(&event);
                }
                let case = format!("{provider} for {caller}, {limit}");
                let (answer, failures) = reader.finish();
                assert!(failures.is_empty(), "{case}: {failures:?}");
                assert_eq!(answer.text(), whole, "{case}");
                assert!(answer.ended, "{case}");
                let stop = answer.stop.unwrap();
                assert_eq!(stop.reason, StopReason::EndTurn, "{case}");
            }
        }
    }
}

/// Arguments cut off after every single byte, from providers that stream them: no part of them is
/// delivered, and the call comes once, complete.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_cut_off_is_not_delivered_in_any_dialect() {
    const WHOLE: &str = r#"{"path":"a.rs","text":"one {two} \"three\" \u00e9"}"#;
    for provider in [Dialect::OpenAi, Dialect::Anthropic] {
        for caller in Dialect::ALL {
            for bytes in 0..WHOLE.len() {
                let mut model = Model::new(move |call, request| {
                    let text = Block::Text("Let me write it.".into());
                    let (cut, stop) = (WHOLE[..bytes].to_owned(), StopReason::MaxTokens);
                    Ok(script(match call {
                        0 => wire(
                            provider,
                            &stream("a", &[text, Block::Call("write", cut)], 5, true, stop),
                        ),
                        _ => {
                            let prompt = request.messages.last().unwrap().text();
                            assert!(prompt.contains(&format!("after {bytes} bytes")), "{prompt}");
                            let call = Block::Call("write", WHOLE.into());
                            wire(provider, &stream("b", &[call], 5, true, StopReason::ToolUse))
                        }
                    }))
                });
                model.dialects = vec![provider];
                let layer = ContinuationLayer::default();
                let mut events = layer.layer(model.clone()).oneshot(recording()).await.unwrap();
                let mut reader = CallerReader::new(caller, provider);
                while let Some(event) = events.next().await {
                    reader.read(&event);
                }
                let case = format!("{provider} for {caller}, {bytes}");
                let (answer, failures) = reader.finish();
                assert!(failures.is_empty() && answer.ended, "{case}: {failures:?}");
                let calls: Vec<_> = answer.tool_calls().collect();
                assert_eq!(calls.len(), 1, "{case}: {calls:?}");
                let made: serde_json::Value = serde_json::from_str(&calls[0].arguments).unwrap();
                assert_eq!(
                    made,
                    serde_json::from_str::<serde_json::Value>(WHOLE).unwrap(),
                    "{case}"
                );
                assert_eq!(answer.text(), "Let me write it.", "{case}");
                assert_eq!((model.calls(), answer.stop.unwrap().reason), (2, StopReason::ToolUse));
            }
        }
    }
}

/// A break that can not be resumed is reported by an error that agents retry: one of the provider's, not of
/// the request.
#[tokio::test(start_paused = true)]
async fn a_break_that_is_not_resumed_is_the_providers_fault_in_every_dialect() {
    let call = |name| Block::Call(name, r#"{"path":"a.rs"}"#.into());
    let text = || Block::Text("Let me look.".into());
    for (blocks, calls) in [(vec![call("read"), call("list")], 1), (vec![text(), call("list")], 2)]
    {
        for reason in [Reason::Network, Reason::Timeout, Reason::ServerError, Reason::Overloaded] {
            let events = stream("a", &blocks, 4, true, StopReason::ToolUse);
            // In the last call; what would resume it is refused as malformed.
            let at = events.len() - 4;
            let model = Model::new(move |call, _| match call {
                0 => Ok(broken(&events, at, fail(reason))),
                _ => Err(fail(Reason::Format)),
            });
            let got = send(&model, &StreamResumeLayer::default(), recording()).await;
            assert_eq!((model.calls(), got.failures.len()), (calls, 1), "{reason}");
            assert!(got.calls().iter().all(|(name, _)| name == "read"), "{reason}: half a call");
            for (caller, kinds) in [
                (Dialect::Anthropic, ["api_error", "timeout_error", "overloaded_error"]),
                (Dialect::OpenAi, ["server_error", "timeout", "service_unavailable_error"]),
                (Dialect::Gemini, ["UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL"]),
            ] {
                let frame = codec(caller).encode_stream_error(&got.failures[0]);
                let frame = String::from_utf8_lossy(&frame);
                assert!(kinds.iter().any(|kind| frame.contains(kind)), "{caller}: {frame}");
            }
        }
    }
}

#[test]
fn the_frames_are_those_of_the_dialect() {
    let events = stream("a", &[Block::Text("Hello there".into())], 4, true, StopReason::EndTurn);
    for dialect in Dialect::ALL {
        let events = wire(dialect, &events);
        assert!(events.iter().all(|event| event.frame(dialect).is_some() || event.is_end()));
        assert!(events.last().unwrap().deltas.contains(&Delta::End), "{dialect}");
    }
}
