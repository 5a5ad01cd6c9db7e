//! Continuations: how a model continues an answer depends on how the request asks for it.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use common::conversation::{ReceivedAnswer, answer_to, chat, send_body, stops};
use common::model;
use serde_json::{Value, json};
use steadfast_sim::{
    Answer, ContinuationMode, Dialect, Fault, FaultPlan, How, Model, PlanRule, SimProvider,
    SimProviderBuilder,
};

const TEXT: &str = "one two three incomprehensibilities four “five” naïve 日本 six 🦀 seven eight.";

fn provider(dialect: Dialect) -> SimProviderBuilder {
    let model = Model::new(model(dialect), 100_000, 8_000).without_thinking().with_prefill();
    SimProvider::builder(dialect).with_model(model)
}

fn forms() -> impl Iterator<Item = (Dialect, bool)> {
    Dialect::ALL.into_iter().flat_map(|dialect| [(dialect, false), (dialect, true)])
}

/// Those that take a limit of a few tokens, and may refuse a prefill.
fn short_forms() -> impl Iterator<Item = (Dialect, bool)> {
    forms().filter(|(dialect, _)| *dialect != Dialect::Responses)
}

/// The words a request asks to repeat: up to 20 last characters.
fn anchor(partial: &str) -> &str {
    let words = partial.trim_end();
    let from = words.char_indices().rev().nth(19).map_or(0, |(at, _)| at);
    words[from..].trim_start()
}

fn repeat(partial: &str) -> String {
    format!("Begin by repeating exactly these words:\n{}\nThen go on.", anchor(partial))
}

const GO_ON: &str = "Go on exactly where you were cut off. No recap.";

async fn follow(provider: &SimProvider, partial: &str, how: &str, stream: bool) -> ReceivedAnswer {
    let turns = [("user", "tell me"), ("model", partial), ("user", how)];
    let turns = if how.is_empty() { &turns[..2] } else { &turns[..] };
    answer_to(provider, &chat(provider.dialect(), turns, None, stream), stream).await
}

#[tokio::test]
async fn a_faithful_model_continues_as_asked_after_every_character() {
    for (dialect, stream) in forms() {
        let whole = Answer::text(TEXT).continuation(ContinuationMode::Faithful);
        for (at, _) in TEXT.char_indices().skip(1) {
            // A provider that did not send the beginning, and has the whole answer to take over.
            let provider = provider(dialect).with_script([whole.clone()]).build();
            let (partial, rest) = TEXT.split_at(at);

            let received = follow(&provider, partial, GO_ON, stream).await;
            assert_eq!(
                (&*received.text, &*received.stop),
                (rest, stops(dialect).1),
                "{dialect} {at}"
            );

            let received = follow(&provider, partial, &repeat(partial), stream).await;
            let join = partial.trim_end().len() - anchor(partial).len();
            if anchor(partial).chars().count() >= 6 || anchor(partial) == partial.trim_end() {
                assert_eq!(received.text, TEXT[join..], "{dialect} {at}");
            }
            if !partial.ends_with(' ') || dialect != Dialect::Anthropic {
                let received = follow(&provider, partial, "", stream).await;
                assert_eq!(received.text, rest, "{dialect} prefill {at}");
            }
            // A prefill that had to be trimmed: the rest begins with the white space.
            let received = follow(&provider, partial.trim_end(), "", stream).await;
            assert_eq!(received.text, TEXT[partial.trim_end().len()..], "{dialect} prefill {at}");
            assert_eq!(provider.script_left(), 0);
        }
    }
}

#[tokio::test]
async fn each_continuation_mode_sends_its_text() {
    let partial = &TEXT[..TEXT.find(" naïve").unwrap()];
    let rest = &TEXT[partial.len()..];
    let words = anchor(partial);
    let asked = format!("{words}{rest}");
    for (dialect, stream) in forms() {
        let cases = [
            (ContinuationMode::Faithful, GO_ON, rest.to_owned()),
            (ContinuationMode::Faithful, "r", asked.clone()),
            (ContinuationMode::Faithful, "", rest.to_owned()),
            (ContinuationMode::WithoutRepeating, GO_ON, rest.to_owned()),
            (ContinuationMode::WithoutRepeating, "r", rest.to_owned()),
            (ContinuationMode::WithoutRepeating, "", rest.to_owned()),
            (ContinuationMode::Chatty("Sure: ".into()), GO_ON, format!("Sure: {rest}")),
            (ContinuationMode::Chatty("Sure: ".into()), "r", format!("Sure: {asked}")),
            (ContinuationMode::Chatty("Sure: ".into()), "", rest.to_owned()),
            (ContinuationMode::Skips(2), "r", " six 🦀 seven eight.".to_owned()),
            (ContinuationMode::FromStart, GO_ON, TEXT.to_owned()),
            (ContinuationMode::FromStart, "r", TEXT.to_owned()),
            (ContinuationMode::FromStart, "", TEXT.to_owned()),
        ];
        for (how, ask, right) in cases {
            let whole = Answer::text(TEXT).continuation(how.clone());
            let provider = provider(dialect).with_script([whole]).build();
            let ask = if ask == "r" { repeat(partial) } else { ask.to_owned() };
            let received = follow(&provider, partial, &ask, stream).await;
            assert_eq!(received.text, right, "{dialect} {stream} {how:?} {ask:?}");
        }
        for how in [ContinuationMode::Paraphrase, ContinuationMode::IgnoresAnchor] {
            let paraphrase = how == ContinuationMode::Paraphrase;
            let whole = Answer::text(TEXT).continuation(how);
            let provider = provider(dialect).with_script([whole]).build();
            let received = follow(&provider, partial, &repeat(partial), stream).await;
            assert!(!received.text.contains(words), "{}", received.text);
            assert_eq!(received.text.ends_with(rest), paraphrase, "{}", received.text);
            assert_eq!(received.text.contains("four"), paraphrase, "the words, in another order");
            assert_eq!(received.stop, stops(dialect).1);
        }
    }
}

/// One entry of a script; the caller joins the parts that the limit allows.
#[tokio::test]
async fn an_answer_of_many_times_the_limit_arrives_whole_and_once() {
    for (dialect, stream) in short_forms() {
        let whole = Answer::text(TEXT).continuation(ContinuationMode::Faithful);
        let total = whole.output_tokens();
        for limit in 1..=total {
            let other = Answer::text("something else");
            let provider = provider(dialect).with_script([whole.clone(), other]).build();
            let (mut partial, mut tokens, mut calls) = (String::new(), 0, 0);
            loop {
                let mut turns = vec![("user", "tell me")];
                if !partial.is_empty() {
                    turns.extend([("model", partial.as_str()), ("user", GO_ON)]);
                }
                let body = chat(dialect, &turns, Some(limit), stream);
                let received = answer_to(&provider, &body, stream).await;
                calls += 1;
                tokens += received.output;
                partial.push_str(&received.text);
                if received.stop == stops(dialect).1 {
                    break;
                }
                assert_eq!((&*received.stop, received.output), (stops(dialect).0, limit));
                assert!(calls <= total, "it ends");
            }
            assert_eq!((partial.as_str(), tokens), (TEXT, total), "{dialect} {stream} {limit}");
            assert_eq!(calls, total.div_ceil(limit));
            assert_eq!(provider.script_left(), 1);
            // The next turn gets the next answer of the script.
            let turns = [("user", "tell me"), ("model", &*partial), ("user", "thanks. and now?")];
            let received = answer_to(&provider, &chat(dialect, &turns, None, stream), stream).await;
            assert_eq!(received.text, "something else");
        }
    }
}

#[tokio::test]
async fn the_same_request_with_another_limit_gets_the_same_answer() {
    for (dialect, stream) in short_forms() {
        let whole =
            Answer::thinking("hm hm").then_text(TEXT).continuation(ContinuationMode::Faithful);
        let provider = provider(dialect).with_script([whole]).build();
        for (max, text, stop) in [
            (Some(1), "", stops(dialect).0),
            (Some(4), "one two", stops(dialect).0),
            (Some(1_000), TEXT, stops(dialect).1),
        ] {
            let body = chat(dialect, &[("user", "tell me")], max, stream);
            let received = answer_to(&provider, &body, stream).await;
            assert_eq!(
                (&*received.text, &*received.stop),
                (text, stop),
                "{dialect} {stream} {max:?}"
            );
        }
    }
}

/// Cut in its thinking, then asked to answer at once: in a separate message or part.
#[tokio::test]
async fn an_answer_of_which_only_thinking_arrived_is_sent_without_its_thinking() {
    for (dialect, stream) in short_forms() {
        let whole =
            Answer::thinking("hm hm hm").then_text(TEXT).continuation(ContinuationMode::Faithful);
        let provider = provider(dialect).with_script([whole, Answer::text("other")]).build();
        let body = chat(dialect, &[("user", "tell me")], Some(2), stream);
        let cut = answer_to(&provider, &body, stream).await;
        assert_eq!((&*cut.thinking, &*cut.text), ("hm hm", ""));
        let now = "Answer now, directly.";
        let mut merged = chat(dialect, &[("user", "")], None, stream);
        match dialect {
            Dialect::Gemini => {
                merged["contents"][0]["parts"] = json!([{"text": "tell me"}, {"text": now}]);
            }
            _ => {
                merged["messages"][0]["content"] = json!([
                    {"type": "text", "text": "tell me"}, {"type": "text", "text": now},
                ]);
            }
        }
        let received = answer_to(&provider, &merged, stream).await;
        assert_eq!((&*received.thinking, &*received.text), ("", TEXT), "{dialect} {stream}");
        if dialect != Dialect::Gemini {
            let body = chat(dialect, &[("user", "tell me"), ("user", now)], None, stream);
            let again = answer_to(&provider, &body, stream).await;
            assert_eq!((again.thinking, again.text), (received.thinking, received.text));
        }
        // Another question gets the next answer.
        let body = chat(dialect, &[("user", "tell me more")], None, stream);
        assert_eq!(answer_to(&provider, &body, stream).await.text, "other");
    }
}

#[tokio::test]
async fn a_new_script_forgets_the_old_answers() {
    for (dialect, stream) in forms() {
        let provider = provider(dialect)
            .with_script([Answer::text(TEXT).continuation(ContinuationMode::Faithful)]);
        let provider = provider.build();
        let body = chat(dialect, &[("user", "tell me")], None, stream);
        for _ in 0..2 {
            assert_eq!(answer_to(&provider, &body, stream).await.text, TEXT);
        }
        provider.set_script([Answer::text("new")]);
        assert_eq!(answer_to(&provider, &body, stream).await.text, "new");
    }
}

#[tokio::test]
async fn an_answer_without_a_continuation_is_taken_once() {
    for (dialect, stream) in forms() {
        let script = [Answer::text(TEXT), Answer::text("next")];
        let provider = provider(dialect).with_script(script).build();
        let received = follow(&provider, "one two", GO_ON, stream).await;
        assert_eq!(received.text, TEXT);
        let received = follow(&provider, "one two", GO_ON, stream).await;
        assert_eq!(received.text, "next");
    }
}

#[tokio::test]
async fn a_provider_can_make_all_its_answers_continuable() {
    for (dialect, stream) in short_forms() {
        // Its generated text too.
        let provider =
            provider(dialect).with_continuation(ContinuationMode::Faithful).with_seed(5).build();
        let ask = |turns: &[(&str, &str)], max| chat(dialect, turns, max, stream);
        let first = answer_to(&provider, &ask(&[("user", "tell me")], Some(9)), stream).await;
        let rest = follow(&provider, &first.text, GO_ON, stream).await;
        let whole = answer_to(&provider, &ask(&[("user", "tell me")], None), stream).await;
        assert_eq!(whole.text, first.text + &rest.text);
        assert_eq!(whole.output, 9 + rest.output);
    }
}

#[tokio::test]
async fn a_call_that_was_cut_is_sent_again_and_thinking_is_not() {
    let arguments = r#"{"path":"a b c d e f"}"#;
    for (dialect, stream) in short_forms() {
        let whole = Answer::thinking("hm hm hm")
            .then_text("I look.")
            .then_tool_call("read", arguments)
            .continuation(ContinuationMode::Faithful);
        let provider = provider(dialect).with_script([whole]).build();
        let body = chat(dialect, &[("user", "look")], Some(3 + 2 + 2), stream);
        let cut = answer_to(&provider, &body, stream).await;
        assert_eq!((&*cut.text, &*cut.stop), ("I look.", stops(dialect).0));
        assert_ne!(cut.arguments, [arguments]);
        let anew = follow(&provider, &cut.text, "Make the call again.", stream).await;
        assert_eq!((&*anew.text, &*anew.thinking), ("", ""), "{dialect} {stream}");
        assert_eq!(anew.arguments, [arguments]);
    }
}

#[tokio::test]
async fn a_broken_stream_is_continued_in_another_dialect() {
    for first in Dialect::ALL {
        for second in Dialect::ALL {
            let whole = Answer::text(TEXT).continuation(ContinuationMode::Faithful);
            for events in [1, 3, 7] {
                let one = provider(first)
                    .with_script([whole.clone()])
                    .with_faults(FaultPlan::always(Fault::break_after(events, How::Reset)))
                    .build();
                let body = chat(first, &[("user", "tell me")], None, true);
                let read = send_body(&one, &body, true).await;
                assert!(read.error.is_some());
                let partial = common::conversation::read_answer(first, &read.text(), true).text;
                let two = provider(second).with_script([whole.clone()]).build();
                let received = follow(&two, &partial, &repeat(&partial), true).await;
                let join = partial.len() - anchor(&partial).len();
                let repeated = anchor(&partial) == partial || anchor(&partial).chars().count() >= 6;
                assert_eq!(received.text, TEXT[if repeated { join } else { partial.len() }..]);
            }
        }
    }
}

#[tokio::test]
async fn an_endless_answer_never_ends_and_never_repeats() {
    for (dialect, stream) in short_forms() {
        let provider = provider(dialect).with_script([Answer::endless()]).build();
        let body = chat(dialect, &[("user", "go")], Some(10), stream);
        let mut partial = answer_to(&provider, &body, stream).await.text;
        for _ in 0..6 {
            let turns = [("user", "go"), ("model", partial.as_str()), ("user", GO_ON)];
            let received =
                answer_to(&provider, &chat(dialect, &turns, Some(10), stream), stream).await;
            assert_eq!((&*received.stop, received.output), (stops(dialect).0, 10));
            partial.push_str(&received.text);
        }
        let all: Vec<&str> = partial.split_inclusive("next.").collect();
        for (n, sentence) in all.iter().enumerate().take(all.len() - 1) {
            assert_eq!(sentence.trim(), format!("Step {} comes next.", n + 1));
        }
        assert_eq!(steadfast_sim::count_output(&partial), 70);
    }
}

#[tokio::test]
async fn a_prefill_is_refused_with_the_providers_message_where_it_is_not_accepted() {
    for (dialect, stream) in short_forms() {
        let message = match dialect {
            Dialect::OpenAi | Dialect::Responses => {
                "Expected last role User or Tool (or Assistant with prefix True) for serving but \
                 got assistant"
            }
            Dialect::Anthropic => {
                "This model does not support assistant message prefill. The conversation must end \
                 with a user message."
            }
            Dialect::Gemini => {
                "Please ensure that multiturn requests end with a user role or a function response."
            }
        };
        let body = chat(dialect, &[("user", "go"), ("model", "one two")], None, stream);
        let refusing = Model::new(model(dialect), 10_000, 5_000).without_thinking();
        for (refusing, status) in [
            (refusing.clone().without_prefill(), 400),
            (refusing.clone().with_prefill(), 200),
            // The dialect's default.
            (refusing, if dialect == Dialect::Gemini { 400 } else { 200 }),
        ] {
            let provider = SimProvider::builder(dialect).with_model(refusing).build();
            let read = send_body(&provider, &body, stream).await;
            assert_eq!(read.status, status, "{dialect}");
            if status == 400 {
                assert_eq!(read.error_message(), message);
                assert_eq!(provider.journal().last().unwrap().refused.as_deref(), Some(message));
            }
        }
    }
}

/// A call at the end is never a prefill.
#[tokio::test]
async fn a_prefill_does_not_allow_an_open_call() {
    let provider = provider(Dialect::Gemini).build();
    let body = json!({"contents": [
        {"role": "user", "parts": [{"text": "go"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "read", "args": {}}}]},
    ]});
    let read = send_body(&provider, &body, false).await;
    assert_eq!(read.status, 400);
    assert!(
        read.error_message().contains("number of function response parts"),
        "{}",
        read.error_message()
    );
}

#[tokio::test]
async fn a_plan_sets_the_continuation_of_one_request() {
    let plan = FaultPlan::none()
        .rule(PlanRule::new(Fault::Continuation(ContinuationMode::FromStart)).nth(2));
    for (dialect, stream) in forms() {
        let whole = Answer::text(TEXT).continuation(ContinuationMode::Faithful);
        let provider = provider(dialect).with_script([whole]).with_faults(plan.clone()).build();
        let rest = &TEXT["one two".len()..];
        for right in [rest, TEXT, rest] {
            let received = follow(&provider, "one two", GO_ON, stream).await;
            assert_eq!(received.text, right);
        }
    }
}

#[tokio::test]
async fn a_responder_can_continue_an_answer() {
    for (dialect, stream) in forms() {
        let provider = provider(dialect)
            .respond(|request| {
                let whole = Answer::text(TEXT).continuation(ContinuationMode::Faithful);
                let rest = whole.continue_for(request)?;
                Some(Answer::text(format!("[{}]", rest.blocks.len())).then(rest.blocks[0].clone()))
            })
            .build();
        let received = follow(&provider, "one two", GO_ON, stream).await;
        assert_eq!(received.text, format!("[1]{}", &TEXT["one two".len()..]));
    }
}

#[test]
fn a_script_of_whole_answers_is_read_from_json() {
    let read: Vec<Answer> = serde_json::from_value::<Vec<Answer>>(json!([
        {"blocks": [{"text": "a"}], "goes_on": "faithful"},
        {"blocks": [{"text": "a"}], "goes_on": {"chatty": "So: "}, "limit": 5},
        {"blocks": [{"text": "a"}], "goes_on": {"skips": 3}},
        {"endless": true, "goes_on": "faithful"},
        {"refuse": "overloaded"},
        {"summary": {"fails": "server_error"}},
    ]))
    .unwrap();
    assert_eq!(
        read[1],
        Answer::text("a").continuation(ContinuationMode::Chatty("So: ".into())).limit(5)
    );
    assert_eq!(read[3], Answer::endless());
    let again: Value = serde_json::to_value(&read).unwrap();
    assert_eq!(serde_json::from_value::<Vec<Answer>>(again).unwrap(), read);
    assert!(serde_json::from_value::<Answer>(json!({"goes_on": "faithfully"})).is_err());
}
