//! Answers that are asked for in parts: how a model goes on depends on how it is asked.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use common::model;
use common::talk::{Heard, chat, hear, stops, talk};
use serde_json::{Value, json};
use steadfast_sim::{
    Answer, Dialect, Fault, FaultPlan, GoesOn, How, Model, Rule, SimProvider, SimProviderBuilder,
};

const TEXT: &str = "one two three incomprehensibilities four “five” naïve 日本 six 🦀 seven eight.";

fn provider(dialect: Dialect) -> SimProviderBuilder {
    let model = Model::new(model(dialect), 100_000, 8_000).without_thinking().with_prefill();
    SimProvider::builder(dialect).with_model(model)
}

fn forms() -> impl Iterator<Item = (Dialect, bool)> {
    Dialect::ALL.into_iter().flat_map(|dialect| [(dialect, false), (dialect, true)])
}

/// The words a request asks to have repeated: the last 20 characters, as far as there are.
fn anchor(said: &str) -> &str {
    let words = said.trim_end();
    let from = words.char_indices().rev().nth(19).map_or(0, |(at, _)| at);
    words[from..].trim_start()
}

fn repeat(said: &str) -> String {
    format!("Begin by repeating exactly these words:\n{}\nThen go on.", anchor(said))
}

const GO_ON: &str = "Go on exactly where you were cut off. No recap.";

async fn follow(provider: &SimProvider, said: &str, how: &str, stream: bool) -> Heard {
    let turns = [("user", "tell me"), ("model", said), ("user", how)];
    let turns = if how.is_empty() { &turns[..2] } else { &turns[..] };
    hear(provider, &chat(provider.dialect(), turns, None, stream), stream).await
}

#[tokio::test]
async fn a_faithful_model_goes_on_as_it_is_asked_after_every_character() {
    for (dialect, stream) in forms() {
        let whole = Answer::text(TEXT).goes_on(GoesOn::Faithful);
        for (at, _) in TEXT.char_indices().skip(1) {
            // A provider that never said it, and is given the whole of it to take over.
            let provider = provider(dialect).with_script([whole.clone()]).build();
            let (said, rest) = TEXT.split_at(at);

            let heard = follow(&provider, said, GO_ON, stream).await;
            assert_eq!((&*heard.text, &*heard.stop), (rest, stops(dialect).1), "{dialect} {at}");

            let heard = follow(&provider, said, &repeat(said), stream).await;
            let seam = said.trim_end().len() - anchor(said).len();
            if anchor(said).chars().count() >= 6 || anchor(said) == said.trim_end() {
                assert_eq!(heard.text, TEXT[seam..], "{dialect} {at}");
            }
            if !said.ends_with(' ') || dialect != Dialect::Anthropic {
                let heard = follow(&provider, said, "", stream).await;
                assert_eq!(heard.text, rest, "{dialect} prefill {at}");
            }
            // A prefill that had to lose its white space gets it back.
            let heard = follow(&provider, said.trim_end(), "", stream).await;
            assert_eq!(heard.text, TEXT[said.trim_end().len()..], "{dialect} prefill {at}");
            assert_eq!(provider.script_left(), 0);
        }
    }
}

#[tokio::test]
async fn each_way_of_going_on_says_what_it_says() {
    let said = &TEXT[..TEXT.find(" naïve").unwrap()];
    let rest = &TEXT[said.len()..];
    let words = anchor(said);
    let asked = format!("{words}{rest}");
    for (dialect, stream) in forms() {
        let cases = [
            (GoesOn::Faithful, GO_ON, rest.to_owned()),
            (GoesOn::Faithful, "r", asked.clone()),
            (GoesOn::Faithful, "", rest.to_owned()),
            (GoesOn::WithoutRepeating, GO_ON, rest.to_owned()),
            (GoesOn::WithoutRepeating, "r", rest.to_owned()),
            (GoesOn::WithoutRepeating, "", rest.to_owned()),
            (GoesOn::Chatty("Sure: ".into()), GO_ON, format!("Sure: {rest}")),
            (GoesOn::Chatty("Sure: ".into()), "r", format!("Sure: {asked}")),
            (GoesOn::Chatty("Sure: ".into()), "", rest.to_owned()),
            (GoesOn::Skips(2), "r", " six 🦀 seven eight.".to_owned()),
            (GoesOn::FromStart, GO_ON, TEXT.to_owned()),
            (GoesOn::FromStart, "r", TEXT.to_owned()),
            (GoesOn::FromStart, "", TEXT.to_owned()),
        ];
        for (how, ask, right) in cases {
            let whole = Answer::text(TEXT).goes_on(how.clone());
            let provider = provider(dialect).with_script([whole]).build();
            let ask = if ask == "r" { repeat(said) } else { ask.to_owned() };
            let heard = follow(&provider, said, &ask, stream).await;
            assert_eq!(heard.text, right, "{dialect} {stream} {how:?} {ask:?}");
        }
        for how in [GoesOn::Paraphrase, GoesOn::IgnoresAnchor] {
            let paraphrase = how == GoesOn::Paraphrase;
            let whole = Answer::text(TEXT).goes_on(how);
            let provider = provider(dialect).with_script([whole]).build();
            let heard = follow(&provider, said, &repeat(said), stream).await;
            assert!(!heard.text.contains(words), "{}", heard.text);
            assert_eq!(heard.text.ends_with(rest), paraphrase, "{}", heard.text);
            assert_eq!(heard.text.contains("four"), paraphrase, "the words, in another order");
            assert_eq!(heard.stop, stops(dialect).1);
        }
    }
}

/// One entry of a script; the caller joins what the limit leaves of each answer.
#[tokio::test]
async fn an_answer_of_many_times_the_limit_arrives_whole_and_once() {
    for (dialect, stream) in forms() {
        let whole = Answer::text(TEXT).goes_on(GoesOn::Faithful);
        let total = whole.output_tokens();
        for limit in 1..=total {
            let other = Answer::text("something else");
            let provider = provider(dialect).with_script([whole.clone(), other]).build();
            let (mut said, mut tokens, mut calls) = (String::new(), 0, 0);
            loop {
                let mut turns = vec![("user", "tell me")];
                if !said.is_empty() {
                    turns.extend([("model", said.as_str()), ("user", GO_ON)]);
                }
                let body = chat(dialect, &turns, Some(limit), stream);
                let heard = hear(&provider, &body, stream).await;
                calls += 1;
                tokens += heard.output;
                said.push_str(&heard.text);
                if heard.stop == stops(dialect).1 {
                    break;
                }
                assert_eq!((&*heard.stop, heard.output), (stops(dialect).0, limit));
                assert!(calls <= total, "it ends");
            }
            assert_eq!((said.as_str(), tokens), (TEXT, total), "{dialect} {stream} {limit}");
            assert_eq!(calls, total.div_ceil(limit));
            assert_eq!(provider.script_left(), 1);
            // The conversation goes on, and so does the script.
            let turns = [("user", "tell me"), ("model", &*said), ("user", "thanks. and now?")];
            let heard = hear(&provider, &chat(dialect, &turns, None, stream), stream).await;
            assert_eq!(heard.text, "something else");
        }
    }
}

#[tokio::test]
async fn the_same_request_with_another_limit_gets_the_same_answer() {
    for (dialect, stream) in forms() {
        let whole = Answer::thinking("hm hm").then_text(TEXT).goes_on(GoesOn::Faithful);
        let provider = provider(dialect).with_script([whole]).build();
        for (max, text, stop) in [
            (Some(1), "", stops(dialect).0),
            (Some(4), "one two", stops(dialect).0),
            (Some(1_000), TEXT, stops(dialect).1),
        ] {
            let body = chat(dialect, &[("user", "tell me")], max, stream);
            let heard = hear(&provider, &body, stream).await;
            assert_eq!((&*heard.text, &*heard.stop), (text, stop), "{dialect} {stream} {max:?}");
        }
    }
}

/// Cut in its thinking, and asked to answer at once: in a message or a part of its own.
#[tokio::test]
async fn an_answer_of_which_nothing_was_heard_is_given_without_its_thinking() {
    for (dialect, stream) in forms() {
        let whole = Answer::thinking("hm hm hm").then_text(TEXT).goes_on(GoesOn::Faithful);
        let provider = provider(dialect).with_script([whole, Answer::text("other")]).build();
        let body = chat(dialect, &[("user", "tell me")], Some(2), stream);
        let cut = hear(&provider, &body, stream).await;
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
        let heard = hear(&provider, &merged, stream).await;
        assert_eq!((&*heard.thinking, &*heard.text), ("", TEXT), "{dialect} {stream}");
        if dialect != Dialect::Gemini {
            let body = chat(dialect, &[("user", "tell me"), ("user", now)], None, stream);
            let again = hear(&provider, &body, stream).await;
            assert_eq!((again.thinking, again.text), (heard.thinking, heard.text));
        }
        // Another question is another question.
        let body = chat(dialect, &[("user", "tell me more")], None, stream);
        assert_eq!(hear(&provider, &body, stream).await.text, "other");
    }
}

#[tokio::test]
async fn a_new_script_knows_nothing_of_the_old_answers() {
    for (dialect, stream) in forms() {
        let provider =
            provider(dialect).with_script([Answer::text(TEXT).goes_on(GoesOn::Faithful)]);
        let provider = provider.build();
        let body = chat(dialect, &[("user", "tell me")], None, stream);
        for _ in 0..2 {
            assert_eq!(hear(&provider, &body, stream).await.text, TEXT);
        }
        provider.set_script([Answer::text("new")]);
        assert_eq!(hear(&provider, &body, stream).await.text, "new");
    }
}

#[tokio::test]
async fn an_answer_that_says_nothing_of_it_is_taken_once_as_ever() {
    for (dialect, stream) in forms() {
        let script = [Answer::text(TEXT), Answer::text("next")];
        let provider = provider(dialect).with_script(script).build();
        let heard = follow(&provider, "one two", GO_ON, stream).await;
        assert_eq!(heard.text, TEXT);
        let heard = follow(&provider, "one two", GO_ON, stream).await;
        assert_eq!(heard.text, "next");
    }
}

#[tokio::test]
async fn a_provider_can_make_all_its_answers_whole_ones() {
    for (dialect, stream) in forms() {
        // Its own text too, which nobody scripted.
        let provider = provider(dialect).with_goes_on(GoesOn::Faithful).with_seed(5).build();
        let ask = |turns: &[(&str, &str)], max| chat(dialect, turns, max, stream);
        let begun = hear(&provider, &ask(&[("user", "tell me")], Some(9)), stream).await;
        let rest = follow(&provider, &begun.text, GO_ON, stream).await;
        let whole = hear(&provider, &ask(&[("user", "tell me")], None), stream).await;
        assert_eq!(whole.text, begun.text + &rest.text);
        assert_eq!(whole.output, 9 + rest.output);
    }
}

#[tokio::test]
async fn a_call_that_was_cut_is_made_anew_and_thinking_is_not_repeated() {
    let arguments = r#"{"path":"a b c d e f"}"#;
    for (dialect, stream) in forms() {
        let whole = Answer::thinking("hm hm hm")
            .then_text("I look.")
            .then_tool_call("read", arguments)
            .goes_on(GoesOn::Faithful);
        let provider = provider(dialect).with_script([whole]).build();
        let body = chat(dialect, &[("user", "look")], Some(3 + 2 + 2), stream);
        let cut = hear(&provider, &body, stream).await;
        assert_eq!((&*cut.text, &*cut.stop), ("I look.", stops(dialect).0));
        assert_ne!(cut.arguments, [arguments]);
        let anew = follow(&provider, &cut.text, "Make the call again.", stream).await;
        assert_eq!((&*anew.text, &*anew.thinking), ("", ""), "{dialect} {stream}");
        assert_eq!(anew.arguments, [arguments]);
    }
}

#[tokio::test]
async fn a_broken_stream_is_gone_on_with_by_another_dialect() {
    for first in Dialect::ALL {
        for second in Dialect::ALL {
            let whole = Answer::text(TEXT).goes_on(GoesOn::Faithful);
            for events in [1, 3, 7] {
                let one = provider(first)
                    .with_script([whole.clone()])
                    .with_faults(FaultPlan::always(Fault::break_after(events, How::Reset)))
                    .build();
                let body = chat(first, &[("user", "tell me")], None, true);
                let read = talk(&one, &body, true).await;
                assert!(read.error.is_some());
                let said = common::talk::heard(first, &read.text(), true).text;
                let two = provider(second).with_script([whole.clone()]).build();
                let heard = follow(&two, &said, &repeat(&said), true).await;
                let seam = said.len() - anchor(&said).len();
                let repeated = anchor(&said) == said || anchor(&said).chars().count() >= 6;
                assert_eq!(heard.text, TEXT[if repeated { seam } else { said.len() }..]);
            }
        }
    }
}

#[tokio::test]
async fn an_endless_answer_never_ends_and_never_repeats() {
    for (dialect, stream) in forms() {
        let provider = provider(dialect).with_script([Answer::endless()]).build();
        let body = chat(dialect, &[("user", "go")], Some(10), stream);
        let mut said = hear(&provider, &body, stream).await.text;
        for _ in 0..6 {
            let turns = [("user", "go"), ("model", said.as_str()), ("user", GO_ON)];
            let heard = hear(&provider, &chat(dialect, &turns, Some(10), stream), stream).await;
            assert_eq!((&*heard.stop, heard.output), (stops(dialect).0, 10));
            said.push_str(&heard.text);
        }
        let all: Vec<&str> = said.split_inclusive("next.").collect();
        for (n, sentence) in all.iter().enumerate().take(all.len() - 1) {
            assert_eq!(sentence.trim(), format!("Step {} comes next.", n + 1));
        }
        assert_eq!(steadfast_sim::count_output(&said), 70);
    }
}

#[tokio::test]
async fn a_prefill_is_refused_in_the_providers_words_where_it_is_not_taken() {
    for (dialect, stream) in forms() {
        let says = match dialect {
            Dialect::OpenAi => {
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
            // Unless told otherwise, as ever.
            (refusing, if dialect == Dialect::Gemini { 400 } else { 200 }),
        ] {
            let provider = SimProvider::builder(dialect).with_model(refusing).build();
            let read = talk(&provider, &body, stream).await;
            assert_eq!(read.status, status, "{dialect}");
            if status == 400 {
                assert_eq!(read.says(), says);
                assert_eq!(provider.journal().last().unwrap().refused.as_deref(), Some(says));
            }
        }
    }
}

/// A call at the end is never a prefill.
#[tokio::test]
async fn prefill_does_not_excuse_an_open_call() {
    let provider = provider(Dialect::Gemini).build();
    let body = json!({"contents": [
        {"role": "user", "parts": [{"text": "go"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "read", "args": {}}}]},
    ]});
    let read = talk(&provider, &body, false).await;
    assert_eq!(read.status, 400);
    assert!(read.says().contains("number of function response parts"), "{}", read.says());
}

#[tokio::test]
async fn a_plan_says_how_one_request_is_gone_on_with() {
    let plan = FaultPlan::none().rule(Rule::new(Fault::GoesOn(GoesOn::FromStart)).nth(2));
    for (dialect, stream) in forms() {
        let whole = Answer::text(TEXT).goes_on(GoesOn::Faithful);
        let provider = provider(dialect).with_script([whole]).with_faults(plan.clone()).build();
        let rest = &TEXT["one two".len()..];
        for right in [rest, TEXT, rest] {
            let heard = follow(&provider, "one two", GO_ON, stream).await;
            assert_eq!(heard.text, right);
        }
    }
}

#[tokio::test]
async fn a_responder_can_follow_by_itself() {
    for (dialect, stream) in forms() {
        let provider = provider(dialect)
            .respond(|asked| {
                let whole = Answer::text(TEXT).goes_on(GoesOn::Faithful);
                let rest = whole.follow(asked)?;
                Some(Answer::text(format!("[{}]", rest.blocks.len())).then(rest.blocks[0].clone()))
            })
            .build();
        let heard = follow(&provider, "one two", GO_ON, stream).await;
        assert_eq!(heard.text, format!("[1]{}", &TEXT["one two".len()..]));
    }
}

#[test]
fn a_script_of_whole_answers_is_data() {
    let read: Vec<Answer> = serde_json::from_value::<Vec<Answer>>(json!([
        {"blocks": [{"text": "a"}], "goes_on": "faithful"},
        {"blocks": [{"text": "a"}], "goes_on": {"chatty": "So: "}, "limit": 5},
        {"blocks": [{"text": "a"}], "goes_on": {"skips": 3}},
        {"endless": true, "goes_on": "faithful"},
        {"refuse": "overloaded"},
        {"summary": {"fails": "server_error"}},
    ]))
    .unwrap();
    assert_eq!(read[1], Answer::text("a").goes_on(GoesOn::Chatty("So: ".into())).limit(5));
    assert_eq!(read[3], Answer::endless());
    let again: Value = serde_json::to_value(&read).unwrap();
    assert_eq!(serde_json::from_value::<Vec<Answer>>(again).unwrap(), read);
    assert!(serde_json::from_value::<Answer>(json!({"goes_on": "faithfully"})).is_err());
}
