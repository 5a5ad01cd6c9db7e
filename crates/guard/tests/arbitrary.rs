//! Any events in any order: nothing panics, nothing is lost and nothing is doubled.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use steadfast_chat::{ChatRequest, Delta, Event, StopReason};
use steadfast_core::{CallContext, Failure, Reason, Usage};
use steadfast_guard::{GuardPolicy, MARK, SafetyGuardHandle, StopAs};
use support::*;
use tokio_stream::Stream;
use tower::{Layer, Service};

/// Pieces of an answer, in combinations that no provider sends.
fn delta() -> impl Strategy<Value = Delta> {
    let index = 0..4_u32;
    let pieces = prop::sample::select(vec![
        "",
        "I will look at it again. ",
        "one ",
        "```\n",
        "| a |\n",
        "[safety guard] ",
        "\u{6211}\u{3002}",
    ]);
    let tool = prop::sample::select(vec!["edit_file", "Edit", "delete_file", "x", "", "\u{0}`"]);
    let json = prop::sample::select(vec![
        "",
        "{}",
        r#"{"path":"a"}"#,
        r#"{"path":"./a"}"#,
        "{\"path\":",
        "]]]",
        "*** Update File: a",
    ]);
    let reason = prop::sample::select(vec![
        StopReason::EndTurn,
        StopReason::ToolUse,
        StopReason::MaxTokens,
        StopReason::ContentFilter,
    ]);
    prop_oneof![
        4 => (index.clone(), pieces.clone()).prop_map(|(index, t)| text(index, t)),
        1 => (index.clone(), pieces).prop_map(|(index, t)| Delta::Thinking { index, text: t.into() }),
        2 => (index.clone(), tool).prop_map(|(index, name)| Delta::ToolCall {
            index,
            id: "id".into(),
            name: name.into()
        }),
        3 => (index.clone(), json).prop_map(|(index, json)| Delta::Arguments { index, json: json.into() }),
        2 => index.clone().prop_map(|index| Delta::BlockEnd { index }),
        1 => index.clone().prop_map(|index| Delta::Signature { index, signature: "s".into() }),
        1 => index.prop_map(|index| Delta::Redacted { index, data: "r".into() }),
        1 => (0..9_u64).prop_map(|n| Delta::Usage(Usage::new(n, n))),
        1 => Just(Delta::Ping),
        1 => Just(start()),
        1 => reason.prop_map(|reason| Delta::Stop(reason.into())),
    ]
}

/// An answer, which ends, fails or stops without an end.
fn answer() -> impl Strategy<Value = (Vec<Event>, Option<Failure>)> {
    let events = prop::collection::vec(prop::collection::vec(delta(), 0..4), 0..24);
    (events, 0..3_u8).prop_map(|(events, end)| {
        let mut events: Vec<_> = events.into_iter().map(Event::new).collect();
        if end == 0 {
            events.push(Event::new([Delta::End]));
        }
        (events, (end == 1).then(|| Failure::new(Reason::Network, "cut")))
    })
}

fn policy(stop_as: StopAs, tight: bool) -> GuardPolicy {
    let mut policy = GuardPolicy::default();
    policy.stop_as = stop_as;
    if tight {
        for limits in [&mut policy.limits, &mut policy.named] {
            limits.calls = Some(3);
            limits.per_tool = Some(2);
            limits.edits_per_file = Some(1);
        }
        policy.rules.repeated_text = Some(3);
    }
    policy
}

/// Reads an answer through the guard, without waiting.
fn read(
    guard: &SafetyGuardHandle,
    request: ChatRequest,
    shown: &[Event],
    failure: Option<&Failure>,
) -> Vec<Result<Event, Failure>> {
    let events = shown
        .iter()
        .cloned()
        .map(Ok)
        .chain(failure.map(|failure| Err(Failure::new(failure.reason(), "cut"))));
    let events: Vec<_> = events.collect();
    let mut head = steadfast_chat::Head::new(steadfast_core::Dialect::OpenAi);
    head.stream = true;
    let mut reply = Some(steadfast_chat::ChatResponse::new(head, tokio_stream::iter(events)));
    let inner = tower::service_fn(move |_: ChatRequest| {
        std::future::ready(Ok::<_, Failure>(reply.take().unwrap()))
    });
    let mut service = guard.layer().layer(inner);
    let mut cx = Context::from_waker(Waker::noop());
    let mut call = std::pin::pin!(service.call(request));
    let Poll::Ready(Ok(mut reply)) = call.as_mut().poll(&mut cx) else { panic!("it answers") };
    let mut out = Vec::new();
    while let Poll::Ready(Some(event)) = std::pin::Pin::new(&mut reply).poll_next(&mut cx) {
        out.push(event);
        assert!(out.len() < 1_000, "it ends");
    }
    let again = std::pin::Pin::new(&mut reply).poll_next(&mut cx);
    assert!(matches!(again, Poll::Ready(None)), "the stream is fused");
    out
}

/// What the caller receives, without the messages of the guard.
fn pieces<'a>(deltas: impl IntoIterator<Item = &'a Delta>) -> Vec<(char, &'a str)> {
    let shown = |delta: &'a Delta| match delta {
        Delta::Text { text, .. }
            if text.contains("Safety limit reached")
                || text.ends_with("was not called either.") =>
        {
            None
        }
        Delta::Text { text, .. } => Some(('t', text.as_str())),
        Delta::Thinking { text, .. } => Some(('h', text.as_str())),
        Delta::ToolCall { name, .. } => Some(('c', name.as_str())),
        Delta::Arguments { json, .. } => Some(('a', json.as_str())),
        _ => None,
    };
    deltas.into_iter().filter_map(shown).collect()
}

/// Only for the clock.
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
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_events_pass_or_are_stopped_once(
        (shown, failure) in answer(),
        answers in any::<bool>(),
        tight in any::<bool>(),
        task in 0..3_u8,
    ) {
        let _entered = runtime().enter();
        let guard = SafetyGuardHandle::new(policy(if answers { StopAs::Answer } else { StopAs::Failure }, tight)).unwrap();
        let mut request = ChatRequest::user("go").streaming();
        if task > 0 {
            request.context = CallContext::new().with_task(TASK);
        }
        if task == 2 {
            let _ = guard.tool_layer();
        }
        let out = read(&guard, request, &shown, failure.as_ref());
        let sent: Vec<&Delta> = shown.iter().flat_map(|event| &event.deltas).collect();
        let received: Vec<&Delta> = out.iter().flatten().flat_map(|event| &event.deltas).collect();
        let failures = out.iter().filter(|item| item.is_err()).count();
        prop_assert!(failures <= 1 && (failures == 0 || out.last().unwrap().is_err()));
        prop_assert!(received.iter().filter(|delta| matches!(delta, Delta::End)).count() <= 1);
        if guard.stops() == 0 {
            prop_assert_eq!(&received, &sent, "unchanged");
            prop_assert_eq!(failures, usize::from(failure.is_some()));
            return Ok(());
        }
        prop_assert_eq!(guard.stops(), 1);
        let (sent, kept) = (pieces(sent.iter().copied()), pieces(received.iter().copied()));
        // What is left out is a call, or everything after the stop.
        let mut rest = sent.iter();
        for one in &kept {
            prop_assert!(rest.any(|other| other == one), "{:?} is out of order", one);
        }
        let texts = |all: &[(char, &str)]| -> String {
            all.iter().filter(|(kind, _)| "th".contains(*kind)).map(|(_, text)| *text).collect()
        };
        prop_assert!(texts(&sent).starts_with(&texts(&kept)), "no text is lost in between");
        let reported = received.iter().filter(|delta| matches!(delta, Delta::Text { text, .. } if text.contains("Safety limit reached"))).count();
        let safety = out.iter().flatten().count() < out.len() && out.last().unwrap().as_ref().is_err_and(|f| f.reason() == Reason::Safety);
        prop_assert!(reported + usize::from(safety) >= 1, "the reason is reported");
        prop_assert!(reported <= 1);
    }

    /// The history of a request comes from the caller: reading any history is safe.
    #[test]
    fn any_history_is_read(
        parts in prop::collection::vec((0..6_u8, "\\PC{0,12}", "\\PC{0,20}", any::<bool>()), 0..40),
    ) {
        let _entered = runtime().enter();
        use steadfast_chat::{Message, Part, Role};
        let messages = parts.into_iter().map(|(kind, name, text, flag)| match kind {
            0 => Message::user(text),
            1 => Message::user(format!("{MARK} {text}")),
            2 => Message::new(Role::Assistant, vec![Part::text(text)]),
            3 | 4 => Message::new(Role::Assistant, vec![Part::tool_call(name.as_str(), name.as_str(), text.as_str())]),
            _ => Message::new(Role::Tool, vec![Part::ToolResult(ToolRun { failed: flag, ..tool_run("", "", &text) }.result(&name))]),
        });
        let request = ChatRequest::new(messages.collect::<Vec<_>>());
        let guard = SafetyGuardHandle::default();
        prop_assert_eq!(guard.from_history(&request), guard.from_history(&request));
    }
}
