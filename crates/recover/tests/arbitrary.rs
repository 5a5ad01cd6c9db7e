//! Whatever events come, in whatever order, and wherever they break off: nothing panics, nothing
//! that was shown is lost, nothing is made up, and no call comes twice.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::task::{Context, Poll, Waker};

use common::{Do, Model, fail, opaque, recording};
use futures_util::Stream;
use proptest::prelude::*;
use steadfast_chat::{ChatResponse, Delta, Event, StopReason};
use steadfast_core::{Failure, Reason, Usage};
use steadfast_recover::{ContinuationLayer, StreamResumeLayer};
use tower::{Layer, Service};

/// Pieces of an answer, as no provider in its right mind would put them together.
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

/// How an answer is over.
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

/// Once it is shown why the model stopped, it says no more.
fn pieces() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(piece(), 0..14).prop_map(|mut events| {
        let mut stopped = false;
        for event in &mut events {
            event.deltas_mut().retain(|delta| {
                let was = stopped;
                stopped |= matches!(delta, Delta::Stop(_));
                !was || matches!(delta, Delta::Usage(_) | Delta::Ping)
            });
        }
        events
    })
}

/// Says `answers` one after the other. Its calls have ids that show where they come from.
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
                Do::Say(event)
            })
            .collect();
        match end {
            End::Well => all.push(Do::Say(Event::new([Delta::End]))),
            End::Breaks => all.push(Do::Fail(fail(Reason::Network))),
            End::Silent => {}
        }
        Ok(all)
    })
}

/// Everything that comes through `layer`, read without a runtime: nothing here waits for the world.
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
                assert!(matches!(again, Poll::Ready(None)), "it stays ended");
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

/// Whether `rest` is what is left of each of `texts`, in their order, after something was cut from
/// the beginning of each, or off its end by a break.
fn is_made_of(rest: &str, texts: &[String]) -> bool {
    let Some((first, others)) = texts.split_first() else { return rest.is_empty() };
    let cuts = |text: &str| -> Vec<usize> {
        text.char_indices().map(|(at, _)| at).chain([text.len()]).collect()
    };
    cuts(rest).into_iter().any(|at| first.contains(&rest[..at]) && is_made_of(&rest[at..], others))
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
    let got = deltas(out.iter().flatten());
    let ends = got.iter().filter(|delta| matches!(delta, Delta::End)).count();
    prop_assert_eq!(ends + failures, 1, "one end, or one failure");
    if ends == 1 {
        prop_assert!(matches!(got.last(), Some(Delta::End)), "the end is the last");
    }
    let mut ids: Vec<_> = got
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
    let shown = text(&got);
    let texts: Vec<_> = answers.iter().map(|(events, _)| text(&deltas(events))).collect();
    if let Some(rest) = shown.strip_prefix(texts[0].as_str()) {
        prop_assert!(is_made_of(rest, &texts[1..]), "{:?} is not made of {:?}", shown, texts);
    } else if kept && ends == 1 {
        prop_assert!(false, "{:?} was lost of {:?}", texts[0], shown);
    } else {
        prop_assert!(is_made_of(&shown, &texts), "{:?} is not made of {:?}", shown, texts);
    }
    Ok(())
}

/// For timers alone.
fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: std::sync::OnceLock<tokio::runtime::Runtime> = std::sync::OnceLock::new();
    let make = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    RUNTIME.get_or_init(make)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_streams_are_gone_on_with_or_given_up(
        answers in prop::collection::vec(answer(), 1..5),
        stream in any::<bool>(),
    ) {
        let _entered = runtime().enter();
        let (resume, continuation) = (StreamResumeLayer::default(), ContinuationLayer::default());
        check(&read(&resume, model(&answers), stream), &answers, true)?;
        // An answer that was not streamed may have been dropped unseen, to be asked for again.
        let kept = stream;
        check(&read(&continuation, model(&answers), stream), &answers, kept)?;
        let both = tower::ServiceBuilder::new().layer(continuation).layer(resume).into_inner();
        check(&read(&both, model(&answers), stream), &answers, kept)?;
    }

    /// An answer that ends well, and was not cut off, is not touched.
    #[test]
    fn what_ends_well_is_as_it_came(events in pieces()) {
        let _entered = runtime().enter();
        let cut = deltas(&events).iter().any(|delta| {
            matches!(delta, Delta::Stop(stop) if stop.reason == StopReason::MaxTokens)
        });
        prop_assume!(!cut);
        let answers = [(events, End::Well)];
        let gave: Vec<_> = deltas(&answers[0].0).into_iter().cloned().chain([Delta::End]).collect();
        let both = tower::ServiceBuilder::new()
            .layer(ContinuationLayer::default())
            .layer(StreamResumeLayer::default())
            .into_inner();
        let out = read(&both, model(&answers), true);
        let got: Vec<_> = deltas(out.iter().flatten()).into_iter().cloned().collect();
        let plain = |all: &[Delta]| {
            let mut all = all.to_vec();
            // Sent at once, whatever is held back.
            all.retain(|delta| !matches!(delta, Delta::Ping));
            // Its id says which call it was.
            for delta in &mut all {
                if let Delta::ToolCall { id, .. } = delta {
                    id.clear();
                }
            }
            all
        };
        prop_assert_eq!(plain(&got), plain(&gave));
    }
}
