//! Summaries: every way in which a summariser answers or fails to.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use common::conversation::{answer_to, chat, send_body, stops};
use common::model;
use serde_json::{Value, json};
use steadfast_sim::{
    Answer, Dialect, ErrorKind, Fault, FaultPlan, PlanRule, SimProvider, Summaries, SummaryReply,
};

const MARK: &str = "You keep the record";
const ASK: &str = "You keep the record. What was said since:\n(user) Fix src/a.rs line 17.\n\n\
                   (assistant) It is fixed, with a change of three lines and one more in the tests \
                   beside it.";

fn forms() -> impl Iterator<Item = (Dialect, bool)> {
    Dialect::ALL.into_iter().flat_map(|dialect| [(dialect, false), (dialect, true)])
}

/// The least limit of a dialect, or `other` where any will do.
fn least(dialect: Dialect, other: u64) -> u64 {
    if dialect == Dialect::Responses { 16 } else { other }
}

/// A request for a summary in at most 50 tokens; other questions are of other conversations.
fn ask(dialect: Dialect, stream: bool) -> Value {
    chat(dialect, &[("user", ASK)], Some(50), stream)
}

fn provider(dialect: Dialect, summary: SummaryReply) -> SimProvider {
    SimProvider::builder(dialect).with_summaries(Summaries::to(MARK).then(summary)).build()
}

#[tokio::test]
async fn good_forgetful_and_declining_summaries_are_texts_that_end() {
    let good = "What was said:\n- You keep the record. What was said since:\n- (user) Fix src/a.rs \
                line 17.\n- (assistant) It is fixed, with a change of three lines and one";
    for (dialect, stream) in forms() {
        for (summary, text) in [
            (SummaryReply::Good, good),
            (
                SummaryReply::Forgetful,
                "Some things were asked for, some were done, and the work goes on.",
            ),
            (SummaryReply::Declines, "I'm sorry, but I can't help with that."),
            (SummaryReply::Empty, ""),
        ] {
            let received =
                answer_to(&provider(dialect, summary), &ask(dialect, stream), stream).await;
            assert_eq!((&*received.text, &*received.stop), (text, stops(dialect).1), "{dialect}");
            assert!(received.output <= 50);
        }
        let thinking = provider(dialect, SummaryReply::ThinkingOnly);
        let received = answer_to(&thinking, &ask(dialect, stream), stream).await;
        assert_eq!((&*received.text, &*received.stop), ("", stops(dialect).1));
        assert!(!received.thinking.is_empty());
    }
}

/// What does not fit is left out by the line: a good summary is never cut.
#[tokio::test]
async fn a_good_summary_fits_any_limit() {
    for (dialect, stream) in forms() {
        for limit in least(dialect, 3)..40 {
            let body = chat(dialect, &[("user", ASK)], Some(limit), stream);
            let received = answer_to(&provider(dialect, SummaryReply::Good), &body, stream).await;
            assert_eq!(received.stop, stops(dialect).1, "{dialect} {limit}: {}", received.text);
            assert!(received.text.starts_with("What was said:"));
        }
    }
}

#[tokio::test]
async fn an_endless_summary_is_cut_at_every_limit() {
    for (dialect, stream) in forms() {
        let provider = provider(dialect, SummaryReply::Endless);
        for limit in [1, 7, 50, 900].into_iter().filter(|limit| *limit >= least(dialect, 1)) {
            let body = chat(dialect, &[("user", ASK)], Some(limit), stream);
            let received = answer_to(&provider, &body, stream).await;
            assert_eq!((&*received.stop, received.output), (stops(dialect).0, limit), "{dialect}");
        }
    }
}

#[tokio::test]
async fn a_summary_can_be_refused_in_an_answer_and_in_an_error() {
    for (dialect, stream) in forms() {
        let received =
            answer_to(&provider(dialect, SummaryReply::Refused), &ask(dialect, stream), stream)
                .await;
        let word = match dialect {
            Dialect::OpenAi | Dialect::Responses => "content_filter",
            Dialect::Anthropic => "refusal",
            Dialect::Gemini => "SAFETY",
        };
        assert_eq!((&*received.text, &*received.stop), ("", word));

        let blocked = provider(dialect, SummaryReply::Blocked);
        let read = send_body(&blocked, &ask(dialect, stream), stream).await;
        let plan = FaultPlan::always(Fault::Error(ErrorKind::ContentFilter));
        let policy = SimProvider::builder(dialect).with_faults(plan).build();
        let right = send_body(&policy, &ask(dialect, stream), stream).await;
        assert_eq!((read.status, read.error_message()), (400, right.error_message()));
        let entry = blocked.journal().last().unwrap();
        assert_eq!((entry.refused, entry.sent), (Some(right.error_message()), None));

        let fails = SummaryReply::Fails(ErrorKind::Overloaded);
        let read = send_body(&provider(dialect, fails), &ask(dialect, stream), stream).await;
        assert_eq!(read.status, if dialect == Dialect::Anthropic { 529 } else { 503 });
    }
}

#[tokio::test]
async fn a_summariser_calls_a_tool_declared_or_not() {
    for (dialect, stream) in forms() {
        for declared in [false, true] {
            let mut body = ask(dialect, stream);
            if declared {
                let schema = json!({"type": "object"});
                body["tools"] = match dialect {
                    Dialect::OpenAi => json!([{"type": "function",
                        "function": {"name": "find", "parameters": schema}}]),
                    Dialect::Responses => json!([{"type": "function", "name": "find",
                        "parameters": schema, "strict": false}]),
                    Dialect::Anthropic => json!([{"name": "find", "input_schema": schema}]),
                    Dialect::Gemini => json!([{"functionDeclarations": [{"name": "find"}]}]),
                };
            }
            let provider = provider(dialect, SummaryReply::ToolCall);
            let received = answer_to(&provider, &body, stream).await;
            assert_eq!((&*received.text, received.arguments.len()), ("", 1), "{dialect} {stream}");
            let sent = provider.journal().last().unwrap().sent.unwrap();
            assert_eq!(sent.tool_calls[0].name, if declared { "find" } else { "lookup" });
        }
    }
}

#[tokio::test]
async fn summaries_and_the_script_do_not_take_from_each_other() {
    for (dialect, stream) in forms() {
        let provider = SimProvider::builder(dialect)
            .with_script([Answer::text("one"), Answer::text("two")])
            .with_summaries(
                Summaries::to(MARK).then(SummaryReply::Empty).then(SummaryReply::Forgetful),
            )
            .build();
        let question = chat(dialect, &[("user", "hi")], None, stream);
        let mut received = Vec::new();
        for body in [&question, &ask(dialect, stream), &ask(dialect, stream), &question] {
            received.push(answer_to(&provider, body, stream).await.text);
        }
        assert_eq!(received[..2], ["one", ""]);
        assert!(received[2].starts_with("Some things"), "{}", received[2]);
        assert_eq!(received[3], "two");
        // The last one repeats, and a system prompt is searched too.
        let mut body = question.clone();
        match dialect {
            Dialect::OpenAi => {
                let system = json!({"role": "system", "content": MARK});
                body["messages"].as_array_mut().unwrap().insert(0, system);
            }
            Dialect::Responses => body["instructions"] = json!(MARK),
            Dialect::Anthropic => body["system"] = json!([{"type": "text", "text": MARK}]),
            Dialect::Gemini => body["systemInstruction"] = json!({"parts": [{"text": MARK}]}),
        }
        assert!(answer_to(&provider, &body, stream).await.text.starts_with("Some things"));
        // They can be replaced at run time.
        provider.set_summaries(Some(Summaries::to(MARK).then(SummaryReply::Declines)));
        assert!(answer_to(&provider, &body, stream).await.text.starts_with("I'm sorry"));
        provider.set_summaries(None);
        provider.script([Answer::text("three")]);
        assert_eq!(answer_to(&provider, &body, stream).await.text, "three");
    }
}

#[tokio::test]
async fn a_plan_gives_answers_to_the_requests_it_picks() {
    let plan = FaultPlan::from_toml(&format!(
        r#"
        [[rules]]
        contains = "{MARK}"
        fault = {{ answer = {{ summary = "empty" }} }}
        [[rules]]
        model = "nobody*"
        fault = {{ answer = {{ summary = {{ fails = "overloaded" }} }} }}
        [[rules]]
        nth = 3
        fault = {{ many = [{{ answer = {{ blocks = [{{ text = "a b c" }}] }} }}, {{ output_limit = 2 }}] }}
        "#
    ))
    .unwrap();
    let json = serde_json::to_string(&plan).unwrap();
    assert_eq!(FaultPlan::from_json(&json).unwrap(), plan);
    assert_eq!(FaultPlan::from_toml(&toml::to_string(&plan).unwrap()).unwrap(), plan);
    assert_eq!(
        plan.rules[0],
        PlanRule::new(Fault::answer(Answer::summary(SummaryReply::Empty))).contains(MARK)
    );
    for (dialect, stream) in forms() {
        let provider = SimProvider::builder(dialect)
            .with_faults(plan.clone())
            .with_script([Answer::text("as told")])
            .build();
        let question = chat(dialect, &[("user", "hi")], None, stream);
        let received = answer_to(&provider, &ask(dialect, stream), stream).await;
        assert_eq!((&*received.text, &*received.stop), ("", stops(dialect).1));
        assert_eq!(provider.script_left(), 1, "the script keeps what it has");
        assert_eq!(answer_to(&provider, &question, stream).await.text, "as told");
        let received = answer_to(&provider, &question, stream).await;
        assert_eq!((&*received.text, &*received.stop), ("a b", stops(dialect).0));
        assert_eq!(provider.journal().last().unwrap().model, model(dialect));
    }
}

#[test]
fn a_plan_with_an_impossible_answer_says_so() {
    for (answer, words) in [
        ("{ chunks = 0 }", "answer.chunks is 0"),
        ("{ summary = \"brilliant\" }", "brilliant"),
        ("{ goes = 1 }", "goes"),
        ("{ refuse = { rate_limit = { retry_after = \"a\\nb\" } } }", "rate_limit.retry_after"),
    ] {
        let text = format!("[[rules]]\nfault = {{ answer = {answer} }}\n");
        let error = FaultPlan::from_toml(&text).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
