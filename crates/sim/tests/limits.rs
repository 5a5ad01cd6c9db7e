//! Output limits: every answer is cut at the exact token, whoever sets the limit.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use common::conversation::{ReceivedAnswer, answer_to, chat, stops};
use common::model;
use steadfast_sim::tokens::pieces;
use steadfast_sim::{
    Answer, Cut, Dialect, Fault, FaultPlan, Model, SimProvider, Stop, count_output,
};

const THINKING: &str = "so it is naïve";
const TEXT: &str = "one two three incomprehensibilities 日本 🦀";
const ARGUMENTS: &str = r#"{"path": "a b c", "lines": 12}"#;
const ASK: &[(&str, &str)] = &[("user", "go")];

fn answer() -> Answer {
    Answer::thinking(THINKING).then_text(TEXT).then_tool_call("read", ARGUMENTS)
}

/// The blocks' names and their pieces, in order.
fn all() -> Vec<(Cut, &'static str)> {
    let of = |cut: Cut, text: &'static str| pieces(text).map(move |piece| (cut, piece));
    of(Cut::Thinking, THINKING)
        .chain(of(Cut::Text, TEXT))
        .chain(of(Cut::Arguments, ARGUMENTS))
        .collect()
}

/// What arrives of an answer cut at `limit`, computed from its pieces.
fn expected(dialect: Dialect, stream: bool, limit: usize) -> (ReceivedAnswer, Option<Cut>) {
    let all = all();
    let kept = &all[..limit.min(all.len())];
    let join = |of: Cut| -> String {
        kept.iter().filter(|(cut, _)| *cut == of).map(|(_, piece)| *piece).collect()
    };
    let cut = kept.len() < all.len();
    let arguments = match join(Cut::Arguments) {
        text if text.is_empty() => vec![],
        text if text == ARGUMENTS && matches!(dialect, Dialect::OpenAi | Dialect::Responses) => {
            vec![text]
        }
        text if text == ARGUMENTS && dialect == Dialect::Anthropic && stream => vec![text],
        text if text == ARGUMENTS => {
            vec![serde_json::from_str::<serde_json::Value>(&text).unwrap().to_string()]
        }
        text => match (dialect, stream) {
            (Dialect::OpenAi | Dialect::Responses, _) | (Dialect::Anthropic, true) => vec![text],
            (Dialect::Anthropic, false) => vec!["{}".to_owned()],
            (Dialect::Gemini, _) => vec![],
        },
    };
    let stop = match (cut, dialect) {
        (true, _) => stops(dialect).0,
        (false, Dialect::OpenAi) => "tool_calls",
        (false, Dialect::Anthropic) => "tool_use",
        (false, Dialect::Gemini) => "STOP",
        (false, Dialect::Responses) => "completed",
    };
    let received = ReceivedAnswer {
        text: join(Cut::Text),
        thinking: join(Cut::Thinking),
        arguments,
        stop: stop.to_owned(),
        input: 4 + 1,
        output: kept.len() as u64,
    };
    let within = |at: usize| all[at - 1].0 == all[at].0;
    let cut_in = cut.then(|| match limit {
        0 => Cut::Between,
        at if within(at) => all[at].0,
        _ => Cut::Between,
    });
    (received, cut_in)
}

#[tokio::test]
async fn every_limit_of_every_kind_cuts_at_its_token() {
    let total = all().len();
    assert_eq!(total as u64, answer().output_tokens());
    assert_eq!(total, [THINKING, TEXT, ARGUMENTS].map(count_output).iter().sum::<usize>());
    assert!(total > 12, "each block has places to be cut in");
    for dialect in Dialect::ALL {
        for stream in [false, true] {
            for limit in 1..=total + 1 {
                let n = limit as u64;
                let builder = || SimProvider::builder(dialect).with_script([answer()]);
                let small = Model::new(model(dialect), 100_000, n).without_thinking();
                let limited = SimProvider::builder(dialect).with_script([answer().limit(n)]);
                let cases = [
                    ("request", Some(n), builder()),
                    ("model", None, builder().with_model(small)),
                    ("provider", None, builder().with_output_limit(n)),
                    (
                        "fault",
                        None,
                        builder().with_faults(FaultPlan::always(Fault::OutputLimit(n))),
                    ),
                    ("answer", None, limited),
                    // The smallest decides.
                    ("smallest", Some(n), builder().with_output_limit(n + 5)),
                ];
                for (what, max, builder) in cases {
                    if max.is_some_and(|max| max < 16) && dialect == Dialect::Responses {
                        continue; // The vendor refuses it.
                    }
                    if what == "model" && dialect == Dialect::Anthropic {
                        continue; // There a request always names its limit.
                    }
                    let provider = builder.build();
                    let received =
                        answer_to(&provider, &chat(dialect, ASK, max, stream), stream).await;
                    let (right, cut) = expected(dialect, stream, limit);
                    assert_eq!(received, right, "{dialect} {stream} {what} {limit}");
                    let sent = provider.journal().last().unwrap().sent.unwrap();
                    assert_eq!(sent.cut, cut, "{dialect} {stream} {what} {limit}");
                    assert_eq!(sent.truncated, cut.is_some());
                    assert_eq!(sent.usage.output, right.output);
                }
            }
        }
    }
}

#[tokio::test]
async fn a_limit_of_zero_leaves_nothing() {
    for dialect in Dialect::ALL {
        for stream in [false, true] {
            let provider = SimProvider::builder(dialect).with_script([answer().limit(0)]).build();
            let received = answer_to(&provider, &chat(dialect, ASK, None, stream), stream).await;
            assert_eq!(received, expected(dialect, stream, 0).0, "{dialect} {stream}");
        }
    }
}

/// `length` with a whole call is no truncation of the call: it is there, whole.
#[tokio::test]
async fn a_cut_after_a_call_leaves_it_whole() {
    let tokens = count_output(ARGUMENTS) as u64;
    for dialect in Dialect::ALL {
        for stream in [false, true] {
            let whole = Answer::tool_call("read", ARGUMENTS).then_text("and so on");
            let provider = SimProvider::builder(dialect).with_output_limit(tokens);
            let provider = provider.with_script([whole]).build();
            let received = answer_to(&provider, &chat(dialect, ASK, None, stream), stream).await;
            let args: serde_json::Value = serde_json::from_str(&received.arguments[0]).unwrap();
            assert_eq!(args, serde_json::from_str::<serde_json::Value>(ARGUMENTS).unwrap());
            assert_eq!((received.text.as_str(), received.stop.as_str()), ("", stops(dialect).0));
            assert_eq!(received.output, tokens);
            let sent = provider.journal().last().unwrap().sent.unwrap();
            assert_eq!(sent.cut, Some(Cut::Between));
        }
    }
}

#[test]
fn a_cut_reports_no_more_thinking_than_output() {
    let usage = steadfast_sim::Usage { input: 9, output: 50, reasoning: 40, ..Default::default() };
    let mut cut = answer().usage(usage);
    assert_eq!(cut.cut_in(2), Some(Cut::Thinking));
    let usage = cut.usage.unwrap();
    assert_eq!((usage.input, usage.output, usage.reasoning), (9, 2, 2));
    assert_eq!(cut.stop, Some(Stop::MaxTokens));
}
