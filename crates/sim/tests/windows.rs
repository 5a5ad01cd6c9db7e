//! Context windows: what fits, the error messages when it does not, and answers that fill one.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use common::conversation::{answer_to, chat, send_body, stops};
use common::model;
use serde_json::json;
use steadfast_sim::{
    Answer, Cut, Dialect, ErrorKind, Fault, FaultPlan, Model, Overflow, SimProvider,
    WindowOverride, count_tokens,
};

const WINDOW: u64 = 300;

/// A question of so many input tokens exactly.
fn question_of(tokens: u64) -> String {
    "abcd".repeat(usize::try_from(tokens).unwrap() - 4)
}

fn provider(dialect: Dialect, change: impl Fn(Model) -> Model) -> SimProvider {
    let model = Model::new(model(dialect), WINDOW, 200).without_thinking();
    SimProvider::builder(dialect)
        .with_model(change(model))
        .respond(|_| Some(Answer::text("ok ".repeat(500))))
        .build()
}

#[tokio::test]
async fn the_window_is_exact_to_the_token() {
    for dialect in Dialect::ALL {
        for stream in [false, true] {
            // Gemini's window is of the input alone.
            let fits = if dialect == Dialect::Gemini { WINDOW } else { WINDOW - 50 };
            for (input, status) in [(fits, 200), (fits + 1, 400)] {
                let text = question_of(input);
                let body = chat(dialect, &[("user", &text)], Some(50), stream);
                assert_eq!(count_tokens(&body) as u64, input);
                let read = send_body(&provider(dialect, |m| m), &body, stream).await;
                assert_eq!(read.status, status, "{dialect} {stream} {input}");
            }
        }
    }
}

/// The sentence for an input beyond the window and, where the output counts, for both together.
fn sentences(dialect: Dialect, overflow: Overflow) -> (String, Option<String>) {
    let (input, both) = (301, 280);
    let same = |text: &str| (text.to_owned(), Some(text.to_owned()));
    let one = |text: String| (text, None);
    match (overflow, dialect) {
        (Overflow::Usual, Dialect::OpenAi) => (
            format!(
                "This model's maximum context length is 300 tokens. However, your messages \
                 resulted in {input} tokens. Please reduce the length of the messages."
            ),
            Some(format!(
                "This model's maximum context length is 300 tokens. However, you requested 330 \
                 tokens ({both} in the messages, 50 in the completion). Please reduce the length \
                 of the messages or completion."
            )),
        ),
        (Overflow::Usual, Dialect::Anthropic) => (
            format!("prompt is too long: {input} tokens > 300 maximum"),
            Some(format!(
                "input length and `max_tokens` exceed context limit: {both} + 50 > 300, decrease \
                 input length or `max_tokens` and try again"
            )),
        ),
        (Overflow::Usual, Dialect::Gemini) => one(format!(
            "The input token count ({input}) exceeds the maximum number of tokens allowed (300)."
        )),
        (Overflow::NoNumbers, Dialect::OpenAi)
        | (Overflow::Usual | Overflow::NoNumbers, Dialect::Responses) => same(
            "Your input exceeds the context window of this model. Please adjust your input and \
             try again.",
        ),
        (Overflow::NoNumbers, Dialect::Anthropic) => {
            same("Request size exceeds model context window")
        }
        (Overflow::NoNumbers, Dialect::Gemini) => {
            one("The input token count exceeds the maximum number of tokens allowed.".to_owned())
        }
        (Overflow::Vllm, _) => {
            let says = |input: u64| {
                format!(
                    "This model's maximum context length is 300 tokens. However, you requested 50 \
                     output tokens and your prompt contains at least {input} input tokens, for a \
                     total of at least {} tokens. Please reduce the length of the input prompt or \
                     the number of requested output tokens.",
                    input + 50
                )
            };
            (says(input), Some(says(both)))
        }
        (Overflow::Xai, _) => one(format!(
            "This model's maximum prompt length is 300 but the request contains {input} tokens."
        )),
        (Overflow::Mistral, _) => one(format!(
            "Prompt contains {input} tokens and 0 draft tokens, too large for model with 300 \
             maximum context length"
        )),
        (Overflow::Groq, _) => same("Please reduce the length of the messages or completion."),
        (Overflow::LlamaCpp, _) => one(
            "the request exceeds the available context size. try increasing the context size or \
             enable context shift"
                .to_owned(),
        ),
        (Overflow::Together, _) => one(format!(
            "Input length {input} exceeds the maximum allowed input length of 300 tokens."
        )),
        (Overflow::Moonshot, _) => (
            "Invalid request: Your request exceeded model token limit: 300 (requested: 351)".into(),
            Some(
                "Invalid request: Your request exceeded model token limit: 300 (requested: 330)"
                    .into(),
            ),
        ),
        (Overflow::DashScope, _) => one(
            "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 300]"
                .to_owned(),
        ),
        (Overflow::MiniMax, _) => {
            one("invalid params, context window exceeds limit (2013)".to_owned())
        }
        (Overflow::Bedrock, _) => one("Input is too long for requested model.".to_owned()),
        other => panic!("{other:?} refuses nothing"),
    }
}

const WORDINGS: [Overflow; 12] = [
    Overflow::Usual,
    Overflow::NoNumbers,
    Overflow::Vllm,
    Overflow::Xai,
    Overflow::Mistral,
    Overflow::Groq,
    Overflow::LlamaCpp,
    Overflow::Together,
    Overflow::Moonshot,
    Overflow::DashScope,
    Overflow::MiniMax,
    Overflow::Bedrock,
];

#[tokio::test]
async fn every_overflow_has_the_providers_message_and_the_exact_numbers() {
    for dialect in Dialect::ALL {
        for stream in [false, true] {
            for overflow in WORDINGS {
                let (alone, both) = sentences(dialect, overflow);
                let provider = provider(dialect, |m| m.overflow(overflow));
                let status = if overflow == Overflow::LlamaCpp { 500 } else { 400 };
                let text = question_of(301);
                let read = send_body(
                    &provider,
                    &chat(dialect, &[("user", &text)], Some(50), stream),
                    stream,
                )
                .await;
                assert_eq!(
                    (read.status, read.error_message()),
                    (status, alone),
                    "{dialect} {overflow:?}"
                );
                let text = question_of(280);
                let read = send_body(
                    &provider,
                    &chat(dialect, &[("user", &text)], Some(50), stream),
                    stream,
                )
                .await;
                match both {
                    Some(both) => assert_eq!(read.error_message(), both, "{dialect} {overflow:?}"),
                    None => assert_eq!(read.status, 200, "{dialect} {overflow:?}"),
                }
            }
        }
    }
}

#[tokio::test]
async fn codes_types_and_fields_are_sent_with_the_message() {
    let text = question_of(301);
    let dialect = Dialect::OpenAi;
    for (overflow, fields) in [
        (Overflow::Usual, json!({"code": "context_length_exceeded", "param": "messages"})),
        (Overflow::NoNumbers, json!({"code": "context_length_exceeded", "param": "input"})),
        (
            Overflow::Groq,
            json!({"code": "context_length_exceeded", "type": "invalid_request_error"}),
        ),
        (Overflow::Vllm, json!({"code": 400, "type": "BadRequestError"})),
        (
            Overflow::LlamaCpp,
            json!({"code": 500, "type": "exceed_context_size_error", "n_prompt_tokens": 301,
                "n_ctx": 300}),
        ),
        (Overflow::DashScope, json!({"code": "invalid_parameter_error"})),
    ] {
        let provider = provider(dialect, |m| m.overflow(overflow));
        let read =
            send_body(&provider, &chat(dialect, &[("user", &text)], None, false), false).await;
        for (key, value) in fields.as_object().unwrap() {
            assert_eq!(&read.json()["error"][key], value, "{overflow:?} {key}");
        }
    }
    for (dialect, key, value) in [
        (Dialect::Anthropic, "type", "invalid_request_error"),
        (Dialect::Gemini, "status", "INVALID_ARGUMENT"),
    ] {
        let read = send_body(
            &provider(dialect, |m| m),
            &chat(dialect, &[("user", &text)], None, false),
            false,
        )
        .await;
        assert_eq!(read.json()["error"][key], value);
    }
}

#[tokio::test]
async fn an_answer_ends_where_the_window_is_full() {
    let text = question_of(280);
    for stream in [false, true] {
        // OpenAI without a limit: the answer has what the window leaves it.
        let openai = provider(Dialect::OpenAi, |m| m);
        let body = chat(Dialect::OpenAi, &[("user", &text)], None, stream);
        let received = answer_to(&openai, &body, stream).await;
        assert_eq!((received.output, received.stop.as_str()), (20, "length"));

        // A model that takes any limit fills the window, and Anthropic has a stop reason for it.
        for (dialect, word) in
            [(Dialect::OpenAi, "length"), (Dialect::Anthropic, "model_context_window_exceeded")]
        {
            let filling = provider(dialect, Model::filling_window);
            let body = chat(dialect, &[("user", &text)], Some(50), stream);
            let received = answer_to(&filling, &body, stream).await;
            assert_eq!((received.output, received.stop.as_str()), (20, word), "{dialect} {stream}");
            let sent = filling.journal().last().unwrap().sent.unwrap();
            assert_eq!((sent.truncated, sent.cut), (true, Some(Cut::Text)));
            // Below the window it is the limit that cuts.
            let body = chat(dialect, &[("user", &text)], Some(19), stream);
            let received = answer_to(&filling, &body, stream).await;
            assert_eq!((received.output, received.stop.as_str()), (19, stops(dialect).0));
        }

        // Gemini's output does not count against the window.
        let gemini = provider(Dialect::Gemini, |m| m);
        let body = chat(Dialect::Gemini, &[("user", &text)], Some(50), stream);
        let received = answer_to(&gemini, &body, stream).await;
        assert_eq!((received.output, received.stop.as_str()), (50, "MAX_TOKENS"));
    }
}

#[tokio::test]
async fn an_overflow_can_be_silent() {
    let text = question_of(400);
    for dialect in Dialect::ALL {
        for stream in [false, true] {
            let body = chat(dialect, &[("user", &text)], Some(50), stream);
            let silent = provider(dialect, |m| m.overflow(Overflow::Silent));
            let received = answer_to(&silent, &body, stream).await;
            assert_eq!(
                (received.text.as_str(), received.stop.as_str(), received.input, received.output),
                ("", stops(dialect).1, 400, 0),
                "{dialect} {stream}"
            );
            let cut = provider(dialect, |m| m.overflow(Overflow::Truncates));
            let received = answer_to(&cut, &body, stream).await;
            assert_eq!((received.input, received.output), (WINDOW, 50), "{dialect} {stream}");
        }
    }
}

#[tokio::test]
async fn a_plan_makes_the_window_smaller_and_sets_the_message() {
    let plan = FaultPlan::from_toml(
        r#"
        [[rules]]
        nth = 1
        fault = { window = { tokens = 300 } }
        [[rules]]
        nth = 2
        fault = { window = { tokens = 300, overflow = "xai" } }
        "#,
    )
    .unwrap();
    assert_eq!(plan.rules[0].fault, Fault::window(300));
    let named = WindowOverride { tokens: 300, overflow: Some(Overflow::Xai) };
    assert_eq!(plan.rules[1].fault, Fault::Window(named));
    for dialect in Dialect::ALL {
        let provider = SimProvider::builder(dialect).with_faults(plan.clone()).build();
        let text = question_of(301);
        let body = chat(dialect, &[("user", &text)], Some(50), false);
        let read = send_body(&provider, &body, false).await;
        assert_eq!(read.error_message(), sentences(dialect, Overflow::Usual).0);
        let entry = provider.journal().last().unwrap();
        assert_eq!(entry.fault, Some(Fault::window(300)));
        assert_eq!(entry.refused.as_deref(), Some(&*read.error_message()));
        let read = send_body(&provider, &body, false).await;
        assert_eq!(read.error_message(), sentences(dialect, Overflow::Xai).0);
        assert_eq!(send_body(&provider, &body, false).await.status, 200);
    }
}

/// A planned overflow has the message of the model.
#[tokio::test]
async fn a_planned_overflow_has_the_models_message() {
    let plan = FaultPlan::always(Fault::Error(ErrorKind::ContextOverflow));
    for dialect in Dialect::ALL {
        let model = Model::new(model(dialect), 1_000, 200).overflow(Overflow::Moonshot);
        let provider =
            SimProvider::builder(dialect).with_model(model).with_faults(plan.clone()).build();
        let read =
            send_body(&provider, &chat(dialect, &[("user", "hi")], None, false), false).await;
        let input = if dialect == Dialect::Gemini { 1_001 } else { 1_100 };
        let says = format!(
            "Invalid request: Your request exceeded model token limit: 1000 (requested: {input})"
        );
        assert_eq!(read.error_message(), says);
    }
}
