//! Streams that break in one dialect and go on in another, on the wire.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use common::*;
use futures_util::StreamExt;
use steadfast_client::dialect::{Caller, StreamDecoder, StreamEncoder};
use steadfast_core::{ChatRequest, Completion, Delta, Dialect, Event, Head, Reason, StopReason};
use steadfast_recover::{ContinuationLayer, Partial, Standing, StreamResumeLayer};
use tower::{Layer, ServiceExt};

/// `events` as a provider of `dialect` says them: each with its frame.
fn wire(dialect: Dialect, events: &[Event]) -> Vec<Event> {
    let mut request = ChatRequest::user("go").with_model("m");
    request.params.stream_usage = Some(true);
    let mut encoder = StreamEncoder::new(dialect, &Caller::of(&request), dialect);
    let mut decoder = StreamDecoder::new(dialect);
    for event in events {
        decoder.push(encoder.encode(event).unwrap());
    }
    // Gemini's answers end with the input.
    std::iter::from_fn(|| decoder.next_event().or_else(|| decoder.finish()))
        .map(Result::unwrap)
        .collect()
}

/// What a caller of `dialect` understands of what it is sent.
struct Reader {
    encoder: StreamEncoder,
    decoder: StreamDecoder,
    answer: Completion,
}

impl Reader {
    fn new(dialect: Dialect, source: Dialect) -> Self {
        let caller = Caller::of(&ChatRequest::user("go").with_model("m"));
        Self {
            encoder: StreamEncoder::new(dialect, &caller, source),
            decoder: StreamDecoder::new(dialect),
            answer: Completion::new(Head::new(dialect)),
        }
    }

    /// The answer, when the stream has ended, well or with a failure.
    fn finish(mut self, well: bool) -> Completion {
        if well && let Some(event) = self.decoder.finish() {
            self.answer.push(&event.unwrap());
        }
        self.answer
    }

    fn read(&mut self, event: &Event) {
        self.decoder.push(self.encoder.encode(event).unwrap());
        while let Some(event) = self.decoder.next_event() {
            self.answer.push(&event.unwrap());
        }
    }
}

fn words(random: &mut fastrand::Rng, count: usize) -> String {
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
async fn broken_anywhere_and_resumed_in_any_dialect() {
    let mut resumed = 0;
    // `STEADFAST_SEEDS=10000` for the long run.
    let seeds = std::env::var("STEADFAST_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let seeds = seeds.unwrap_or(1_500);
    for seed in 0..seeds {
        let mut random = fastrand::Rng::with_seed(seed);
        let (one, two, caller) = (dialect(&mut random), dialect(&mut random), dialect(&mut random));
        let count = random.usize(1..40);
        let whole = words(&mut random, count);
        let mut blocks = vec![Block::Text(whole.clone())];
        if random.bool() {
            blocks.insert(0, Block::Thinking(words(&mut random, 5)));
        }
        if random.bool() {
            blocks.push(Block::Call("read", r#"{"path":"a {b}","n":[1,{"c":2}]}"#.into()));
        }
        let size = random.usize(1..20);
        let events = wire(one, &stream("a", &blocks, size, true, StopReason::EndTurn));
        let at = random.usize(0..events.len());
        let mut seen = Partial::new(1 << 20);
        events[..at].iter().for_each(|event| seen.see(event));
        // One in five goes on with something else.
        let faithful = random.u8(..5) > 0;
        let (text, call) = (whole.clone(), blocks.last().cloned());
        let first = events.clone();
        let mut model = Model::new(move |asked, request| {
            if asked == 0 {
                return Ok(broken(&first, at, fail(Reason::Network)));
            }
            let rest = match (said(request), asked_for(request)) {
                (Some(_), Some(_)) if !faithful => "AS I WAS SAYING, THERE IS MORE.".repeat(size),
                (Some(said), Some(words)) => {
                    let end = said.trim_end().len();
                    format!("{words}{}", &text[end..])
                }
                _ => text.clone(),
            };
            let mut blocks = vec![Block::Thinking("so".into()), Block::Text(rest)];
            blocks.extend(call.clone().filter(|block| matches!(block, Block::Call(..))));
            Ok(say(wire(two, &stream("b", &blocks, size, true, StopReason::EndTurn))))
        });
        model.dialects = vec![one, two];
        let stack = ContinuationLayer::default().layer(StreamResumeLayer::default().layer(model));
        let mut events = stack.oneshot(recording()).await.unwrap();
        let mut reader = Reader::new(caller, one);
        let mut failures = 0;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => reader.read(&event),
                Err(_) => failures += 1,
            }
        }
        let case = format!("seed {seed}: {one} to {two} for {caller}, at {at}");
        let answer = reader.finish(failures == 0);
        let in_text = seen.standing() == Standing::Text;
        if seen.standing().is_seam() && (faithful || !in_text) {
            resumed += 1;
            assert_eq!(failures, 0, "{case}");
            assert_eq!(answer.text(), whole, "{case}");
            assert!(answer.ended, "{case}");
            let calls: Vec<_> = answer.tool_calls().map(|call| call.name.clone()).collect();
            assert_eq!(
                calls.len(),
                usize::from(blocks.len() > 1 && matches!(blocks.last(), Some(Block::Call(..)))),
                "{case}"
            );
        } else {
            assert_eq!((failures, answer.ended), (1, false), "{case}");
            assert!(whole.starts_with(&answer.text()), "{case}");
        }
    }
    assert!(resumed > seeds / 3, "{resumed} of {seeds}");
}

#[tokio::test(start_paused = true)]
async fn cut_off_and_continued_in_every_dialect() {
    for provider in Dialect::ALL {
        for caller in Dialect::ALL {
            for limit in [5, 60, 200] {
                let whole = words(&mut fastrand::Rng::with_seed(limit as u64), 30);
                let text = whole.clone();
                let mut model = Model::new(move |_, request| {
                    let rest = &text[said(request).unwrap_or_default().len()..];
                    let (at, _) = rest.char_indices().nth(limit).unwrap_or((rest.len(), ' '));
                    let end =
                        if at == rest.len() { StopReason::EndTurn } else { StopReason::MaxTokens };
                    let piece = [Block::Text(rest[..at].to_owned())];
                    Ok(say(wire(provider, &stream("a", &piece, 7, true, end))))
                });
                model.dialects = vec![provider];
                let layer = ContinuationLayer::default().tune(|policy| {
                    policy.continuations = 99;
                    policy.poor_in_a_row = 0;
                });
                let layer = layer.unwrap();
                let mut events = layer.layer(model).oneshot(recording()).await.unwrap();
                let mut reader = Reader::new(caller, provider);
                while let Some(event) = events.next().await {
                    reader.read(&event.unwrap());
                }
                let case = format!("{provider} for {caller}, {limit}");
                let answer = reader.finish(true);
                assert_eq!(answer.text(), whole, "{case}");
                assert!(answer.ended, "{case}");
                let stop = answer.stop.unwrap();
                assert_eq!(stop.reason, StopReason::EndTurn, "{case}");
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
