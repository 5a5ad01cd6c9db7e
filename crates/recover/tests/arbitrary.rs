//! Any events in any order, with a break anywhere: nothing panics, nothing that was delivered is lost,
//! nothing is invented, and no call comes twice.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::task::{Context, Poll, Waker};

use common::{Model, ModelStep, fail, opaque, recording};
use futures_util::Stream;
use proptest::prelude::*;
use steadfast_chat::{ChatResponse, Delta, Event, StopReason};
use steadfast_core::{Failure, Reason, Usage};
use steadfast_recover::{ContinuationLayer, StreamResumeLayer};
use tower::{Layer, Service};

/// Pieces of an answer, in combinations that no provider sends.
fn piece() -> impl Strategy<Value = Event> {
    let index = 0..4_u32;
    let pieces = prop::sample::select(vec![
        "",
        "the stars are many",
        "many, and far away",
        "  ",
        "\u{201c}caf\u{e9}\u{201d}",
        "a",
        "and so on and so on and so on and so on and so on and so on",
    ]);
    let json =
        prop::sample::select(vec!["", "{}", "{\"a\":\"{\"", "}", "]]", "\"\\", "[1,{\"b\":2}]"]);
    let stop = prop::sample::select(vec![
        StopReason::EndTurn,
        StopReason::ToolUse,
        StopReason::MaxTokens,
        StopReason::MaxTokens,
    ]);
    let delta = prop_oneof![
        6 => (index.clone(), pieces.clone()).prop_map(|(index, t)| Delta::Text { index, text: t.into() }),
        1 => (index.clone(), pieces).prop_map(|(index, t)| Delta::Thinking { index, text: t.into() }),
        1 => index.clone().prop_map(|index| Delta::ToolCall { index, id: String::new(), name: "read".into() }),
        2 => (index.clone(), json).prop_map(|(index, json)| Delta::Arguments { index, json: json.into() }),
        2 => index.clone().prop_map(|index| Delta::BlockEnd { index }),
        1 => index.clone().prop_map(|index| Delta::Signature { index, signature: "s".into() }),
        1 => index.clone().prop_map(|index| Delta::Redacted { index, data: "r".into() }),
        1 => (0..9_u64).prop_map(|n| Delta::Usage(Usage::new(n, n))),
        1 => Just(Delta::Ping),
        1 => Just(Delta::Start { id: None, model: None }),
        2 => stop.prop_map(|reason| Delta::Stop(reason.into())),
    ];
    prop_oneof![
        20 => prop::collection::vec(delta, 0..3).prop_map(Event::new),
        1 => index.prop_map(opaque),
    ]
}

/// How an answer ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Well,
    Breaks,
    /// Nothing more comes.
    Silent,
}

type Answer = (Vec<Event>, End);

fn answer() -> impl Strategy<Value = Answer> {
    let end = prop::sample::select(vec![End::Well, End::Breaks, End::Breaks, End::Silent]);
    (pieces(), end)
}

/// After the stop reason there is no more content.
fn pieces() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(piece(), 0..14).prop_map(|mut events| {
        let mut stopped = false;
        for event in &mut events {
            event.deltas_mut().retain(|delta| {
                let had_stopped = stopped;
                stopped |= matches!(delta, Delta::Stop(_));
                !had_stopped || matches!(delta, Delta::Usage(_) | Delta::Ping)
            });
        }
        events
    })
}

/// Answers with `answers`, in order. The ids of tool calls identify their answer.
fn model(answers: &[Answer]) -> Model {
    let answers = answers.to_vec();
    Model::new(move |call, _| {
        let Some((events, end)) = answers.get(call) else { return Err(fail(Reason::Network)) };
        let mut count = 0;
        let mut all: Vec<_> = events
            .iter()
            .map(|event| {
                let mut event = event.clone();
                for delta in event.deltas_mut() {
                    if let Delta::ToolCall { id, .. } = delta {
                        count += 1;
                        *id = format!("{call}-{count}");
                    }
                }
                ModelStep::Event(event)
            })
            .collect();
        match end {
            End::Well => all.push(ModelStep::Event(Event::new([Delta::End]))),
            End::Breaks => all.push(ModelStep::Fail(fail(Reason::Network))),
            End::Silent => {}
        }
        Ok(all)
    })
}

/// Everything that `layer` delivers, read without a runtime: nothing here waits for I/O or time.
fn read<L, S>(layer: &L, model: Model, stream: bool) -> Vec<Result<Event, Failure>>
where
    L: Layer<Model>,
    L::Service: Service<steadfast_chat::ChatRequest, Response = ChatResponse<S>, Error = Failure>,
    S: Stream<Item = Result<Event, Failure>> + Unpin,
{
    let mut service = layer.layer(model);
    let mut cx = Context::from_waker(Waker::noop());
    let mut request = recording();
    request.stream = stream;
    let mut call = Box::pin(service.call(request));
    let mut polls = 0;
    let mut reply = loop {
        polls += 1;
        assert!(polls < 100, "it answers");
        if let Poll::Ready(reply) = call.as_mut().poll(&mut cx) {
            break reply.unwrap();
        }
    };
    let mut out = Vec::new();
    for _ in 0..2_000 {
        match std::pin::Pin::new(&mut reply).poll_next(&mut cx) {
            Poll::Ready(Some(event)) => out.push(event),
            Poll::Ready(None) => {
                let again = std::pin::Pin::new(&mut reply).poll_next(&mut cx);
                assert!(matches!(again, Poll::Ready(None)), "the stream is fused");
                return out;
            }
            Poll::Pending => {}
        }
    }
    unreachable!("it ends")
}

fn deltas<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<&'a Delta> {
    events.into_iter().flat_map(|event| &event.deltas).collect()
}

fn text(deltas: &[&Delta]) -> String {
    let pieces = |delta: &&Delta| match delta {
        Delta::Text { text, .. } => Some(text.clone()),
        _ => None,
    };
    deltas.iter().filter_map(pieces).collect()
}

/// Whether `rest` consists of a part of each of `texts`, in order: the beginning of each may be cut as
/// an overlap, and its end by a break.
fn consists_of(rest: &str, texts: &[String]) -> bool {
    let Some((first, others)) = texts.split_first() else { return rest.is_empty() };
    let cuts = |text: &str| -> Vec<usize> {
        text.char_indices().map(|(at, _)| at).chain([text.len()]).collect()
    };
    cuts(rest).into_iter().any(|at| first.contains(&rest[..at]) && consists_of(&rest[at..], others))
}

/// What must hold of any answer.
fn check(
    out: &[Result<Event, Failure>],
    answers: &[Answer],
    kept: bool,
) -> Result<(), TestCaseError> {
    let failures = out.iter().filter(|item| item.is_err()).count();
    prop_assert!(
        failures <= 1 && (failures == 0 || out.last().unwrap().is_err()),
        "one failure, at the end"
    );
    let received = deltas(out.iter().flatten());
    let ends = received.iter().filter(|delta| matches!(delta, Delta::End)).count();
    prop_assert_eq!(ends + failures, 1, "one end, or one failure");
    if ends == 1 {
        prop_assert!(matches!(received.last(), Some(Delta::End)), "the end is the last");
    }
    let mut ids: Vec<_> = received
        .iter()
        .filter_map(|delta| match delta {
            Delta::ToolCall { id, .. } => Some(id.clone()),
            _ => None,
        })
        .collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    prop_assert_eq!(ids.len(), all, "no call comes twice");
    let delivered = text(&received);
    let texts: Vec<_> = answers.iter().map(|(events, _)| text(&deltas(events))).collect();
    if let Some(rest) = delivered.strip_prefix(texts[0].as_str()) {
        prop_assert!(
            consists_of(rest, &texts[1..]),
            "{:?} does not consist of {:?}",
            delivered,
            texts
        );
    } else if kept && ends == 1 {
        prop_assert!(false, "{:?} was lost of {:?}", texts[0], delivered);
    } else {
        prop_assert!(
            consists_of(&delivered, &texts),
            "{:?} does not consist of {:?}",
            delivered,
            texts
        );
    }
    Ok(())
}

/// Only for timers.
fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: std::sync::OnceLock<tokio::runtime::Runtime> = std::sync::OnceLock::new();
    let make = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
    };
    RUNTIME.get_or_init(make)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_streams_are_continued_or_given_up(
        answers in prop::collection::vec(answer(), 1..5),
        stream in any::<bool>(),
    ) {
        let _entered = runtime().enter();
        let (resume, continuation) = (StreamResumeLayer::default(), ContinuationLayer::default());
        check(&read(&resume, model(&answers), stream), &answers, true)?;
        // An answer that was not streamed may be dropped for a request with a higher limit.
        let kept = stream;
        check(&read(&continuation, model(&answers), stream), &answers, kept)?;
        let both = tower::ServiceBuilder::new().layer(continuation).layer(resume).into_inner();
        check(&read(&both, model(&answers), stream), &answers, kept)?;
    }

    /// An answer that succeeds, and is not cut off, is unchanged.
    #[test]
    fn a_successful_answer_is_unchanged(events in pieces()) {
        let _entered = runtime().enter();
        let cut = deltas(&events).iter().any(|delta| {
            matches!(delta, Delta::Stop(stop) if stop.reason == StopReason::MaxTokens)
        });
        prop_assume!(!cut);
        let answers = [(events, End::Well)];
        let sent: Vec<_> = deltas(&answers[0].0).into_iter().cloned().chain([Delta::End]).collect();
        let both = tower::ServiceBuilder::new()
            .layer(ContinuationLayer::default())
            .layer(StreamResumeLayer::default())
            .into_inner();
        let out = read(&both, model(&answers), true);
        let received: Vec<_> = deltas(out.iter().flatten()).into_iter().cloned().collect();
        let comparable = |all: &[Delta]| {
            let mut all = all.to_vec();
            // Pings overtake what is held back.
            all.retain(|delta| !matches!(delta, Delta::Ping));
            // The ids identify the answer.
            for delta in &mut all {
                if let Delta::ToolCall { id, .. } = delta {
                    id.clear();
                }
            }
            all
        };
        prop_assert_eq!(comparable(&received), comparable(&sent));
    }
}
