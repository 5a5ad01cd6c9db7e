//! `attempts` is how often a provider was asked, by whichever layer: in the header as far as the head can
//! know, in log and metric in full. Compared with the providers' own journals.

use std::{cell::Cell, fmt, sync::Once, time::Duration};

use serde_json::{Value, json};
use steadfast::{
    Dialect,
    sim::{
        Answer, ContinuationMode, ErrorKind, Fault, FaultPlan, How, Model, PlanRule, RateLimit,
        SimProvider,
    },
};
use steadfast_tests::gateway::{
    DIALECTS, ask, http::HttpRequest, in_process::InProcess, model, question, turns_key,
};
use tokio::time::advance;
use tracing::{Event, Subscriber, field::Field};
use tracing_subscriber::{Layer, layer::Context, prelude::*};

use crate::{asked, failing, sim, spare};

thread_local! {
    /// The attempts of the newest request that is over on this thread, by its log line.
    static LOGGED: Cell<usize> = const { Cell::new(0) };
}

/// The subscriber of the process: where each test has its own, tracing may take an event for one that nobody
/// is interested in, since another test raises it first.
struct Logged;

impl Logged {
    fn install() {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| tracing_subscriber::registry().with(Self).init());
    }
}

impl<S: Subscriber> Layer<S> for Logged {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().name() == "steadfast::gateway::request" {
            event.record(&mut |field: &Field, value: &dyn fmt::Debug| {
                if field.name() == "attempts" {
                    LOGGED.set(format!("{value:?}").parse().unwrap());
                }
            });
        }
    }
}

fn long_answer() -> Answer {
    let sentence = |n: u32| format!("Night {n}: {} ships and {} lights. ", n * n + 1, n * 13);
    let text: String = (1..=150).map(sentence).collect();
    Answer::text(text.trim_end()).continuation(ContinuationMode::Faithful)
}

/// A request for at most `tokens`.
fn limited(dialect: Dialect, stream: bool, tokens: u64) -> HttpRequest {
    let mut body = question(dialect, model(dialect), stream);
    body.as_object_mut().unwrap().remove("tools");
    match dialect {
        Dialect::Gemini => body["generationConfig"]["maxOutputTokens"] = json!(tokens),
        Dialect::Responses => body["max_output_tokens"] = json!(tokens),
        _ => body["max_tokens"] = json!(tokens),
    }
    ask(dialect, model(dialect), stream).body(body.to_string())
}

/// A conversation of several windows of 8,000 tokens.
fn too_long(dialect: Dialect, stream: bool) -> HttpRequest {
    let mut body: Value = serde_json::from_slice(limited(dialect, stream, 1_000).sent()).unwrap();
    let key = turns_key(dialect);
    let turns = body[key].as_array_mut().unwrap();
    for n in 0..120 {
        let (own, model) = (format!("Part {n}: {}", "word ".repeat(80)), format!("Read {n}."));
        match dialect {
            Dialect::Gemini => {
                turns.push(json!({"role": "model", "parts": [{"text": model}]}));
                turns.push(json!({"role": "user", "parts": [{"text": own}]}));
            }
            _ => {
                turns.push(json!({"role": "assistant", "content": model}));
                turns.push(json!({"role": "user", "content": own}));
            }
        }
    }
    ask(dialect, model(dialect), stream).body(body.to_string())
}

/// What is done to one request: its name, the providers, the request, the attempts that it needs.
type Case = (&'static str, Vec<SimProvider>, HttpRequest, usize);

fn cases(dialect: Dialect, stream: bool) -> Vec<Case> {
    let plain = || limited(dialect, stream, 4_000);
    let first = |n, fault| failing(dialect, FaultPlan::first(n, fault));
    let server_error = || Fault::Error(ErrorKind::ServerError);
    let small = Model::new(model(dialect), 8_000, 2_000).without_thinking();
    let mut cases = vec![
        ("nothing", vec![sim(dialect).build()], plain(), 1),
        ("retries", vec![first(3, server_error())], plain(), 4),
        (
            "a retry, then the next target",
            vec![first(9, server_error()), spare(dialect)],
            plain(),
            3,
        ),
        (
            "a hint that is waited for",
            vec![first(2, Fault::rate_limit(RateLimit::after("3")))],
            plain(),
            3,
        ),
        (
            "a key that is refused",
            vec![first(9, Fault::Error(ErrorKind::Auth)), spare(dialect)],
            plain(),
            2,
        ),
        (
            "compaction after an overflow",
            vec![sim(dialect).with_models([small]).build()],
            too_long(dialect, stream),
            2,
        ),
        ("the time of a stall", vec![first(9, Fault::Hang), spare(dialect)], plain(), 2),
    ];
    let broken = FaultPlan::none().rule(PlanRule::new(Fault::break_after(9, How::Reset)).nth(1));
    let breaks = sim(dialect).with_script([long_answer()]).with_faults(broken).build();
    cases.push(("a break in the middle", vec![breaks], plain(), 2));
    let cut = sim(dialect).with_script([long_answer()]).build();
    let tokens = long_answer().output_tokens() / 3 + 1;
    let request = limited(dialect, stream, tokens).header("x-steadfast-continue", "1");
    // A whole answer is asked for again with a higher limit; a stream is continued.
    cases.push(("an answer that is cut off", vec![cut], request, if stream { 3 } else { 2 }));
    cases
}

#[tokio::test(start_paused = true)]
async fn attempts_are_those_of_the_journal() {
    Logged::install();
    for dialect in DIALECTS {
        for stream in [false, true] {
            for (name, sims, request, needed) in cases(dialect, stream) {
                let case = format!("{name}, {dialect}, stream {stream}");
                let gateway = InProcess::without_file(&sims);
                let reply = gateway.send(&request).await;
                assert_eq!(reply.status, 200, "{case}: {}", reply.text());
                assert_eq!(
                    asked(&sims),
                    needed,
                    "{case}: {:?}",
                    reply.header("x-steadfast-recovery")
                );
                assert_eq!(LOGGED.take(), needed, "{case}: the log");
                let counted = u64::try_from(needed).unwrap();
                assert_eq!(gateway.app.metrics().attempts(), counted, "{case}: the metric");
                let head: usize = reply.header("x-steadfast-attempts").unwrap().parse().unwrap();
                // What follows the head of a stream it can not know; a head is sent after 20 s of silence.
                let late =
                    ["a break in the middle", "an answer that is cut off", "the time of a stall"];
                let after_head = stream
                    && late.contains(&name)
                    // An array has no sign of life.
                    && (name != "the time of a stall" || reply.header("content-type") == Some("text/event-stream"));
                assert_eq!(head, if after_head { 1 } else { needed }, "{case}: the head");
            }
        }
    }
}

/// The call that sees whether a provider is back, and the one beside it.
#[tokio::test(start_paused = true)]
async fn a_probe_and_what_is_asked_beside_it_are_two_attempts() {
    Logged::install();
    for dialect in DIALECTS {
        let first = failing(dialect, FaultPlan::always(Fault::Error(ErrorKind::ServerError)));
        let sims = [first, spare(dialect)];
        let gateway = InProcess::without_file(&sims);
        let ask = |prompt: &str| {
            let request = limited(dialect, true, 500);
            let body = String::from_utf8_lossy(request.sent()).replace("What is it?", prompt);
            request.body(body)
        };
        for prompt in ["one", "two"] {
            assert_eq!(gateway.send(&ask(prompt)).await.status, 200);
        }
        sims[0].set_faults(FaultPlan::always(Fault::Hang));
        // Half of the rest.
        advance(Duration::from_secs(1)).await;
        let before = asked(&sims);
        let reply = gateway.send(&ask("three")).await;
        assert_eq!(asked(&sims) - before, 2, "{dialect}");
        assert_eq!(LOGGED.take(), 2, "{dialect}");
        assert_eq!(reply.header("x-steadfast-attempts"), Some("2"), "{dialect}");
    }
}

/// OpenAI itself speaks two dialects: who asks in one of them is answered in it, and who asks in another in the first.
#[tokio::test(start_paused = true)]
async fn a_vendor_of_two_dialects_is_asked_in_the_callers() {
    let sims = [sim(Dialect::OpenAi).build(), sim(Dialect::Responses).build()];
    let gateway = InProcess::without_file(&sims);
    for (asked, at) in [
        (Dialect::OpenAi, 0),
        (Dialect::Responses, 1),
        (Dialect::Anthropic, 0),
        (Dialect::Gemini, 0),
    ] {
        for stream in [false, true] {
            let before = sims.each_ref().map(|sim| sim.journal().len());
            let reply = gateway.send(&ask(asked, model(asked), stream)).await;
            assert_eq!(reply.status, 200, "{asked}: {}", reply.text());
            let mut after = before;
            after[at] += 1;
            assert_eq!(sims.each_ref().map(|sim| sim.journal().len()), after, "{asked}");
            assert_eq!(sims[at].journal().last().unwrap().refused, None, "{asked}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_are_a_metric() {
    let first = failing(Dialect::OpenAi, FaultPlan::first(2, Fault::Error(ErrorKind::ServerError)));
    let gateway = InProcess::without_file(&[first]);
    let request = limited(Dialect::OpenAi, false, 500);
    assert_eq!(gateway.send(&request).await.status, 200);
    let metrics = gateway.send(&HttpRequest::get("/metrics")).await;
    assert!(metrics.text().contains("\nsteadfast_attempts_total 3\n"), "{}", metrics.text());
}
