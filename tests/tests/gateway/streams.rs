//! Streams that break, in every pair of dialects, over real sockets: the caller gets what had
//! arrived, one error event of its own dialect, and nothing that looks like a proper end.

use serde_json::Value;
use steadfast::sim::{Break, Dialect, ErrorKind, Fault, FaultPlan, How};
use steadfast_tests::gateway::{
    DIALECTS, Rig, ask, model, pairs, path, provider, rich_answer,
    wire_answer::{WireAnswer, error_message},
};
use tokio::task::JoinSet;

/// Without resume, so that the caller sees the break; `gateway_conversation` tests resume.
const NO_RESUME: &str = "[resume]\nenabled = false\n";

/// The same for stalls, with a short limit. Elsewhere a busy machine must not count as a stall.
const SHORT_STALL: &str = "[resume]\nenabled = false\n[timeout]\nstall_ms = 600\n";

/// Content events before the break: inside the thinking, inside the text, inside the arguments.
const POSITIONS: [usize; 3] = [3, 12, 24];

/// Requests a stream that breaks in this way, in every pair and at every position, and checks what
/// the caller gets.
async fn every_pair(how: How) {
    let mut cases = JoinSet::new();
    for (caller, speaks) in pairs() {
        for after in POSITIONS {
            cases.spawn(one(caller, speaks, after, how.clone()));
        }
    }
    let mut broken = 0;
    while let Some(case) = cases.join_next().await {
        case.unwrap();
        broken += 1;
    }
    assert_eq!(broken, pairs().count() * POSITIONS.len());
}

async fn one(caller: Dialect, speaks: Dialect, after: usize, how: How) {
    let case = format!("{caller} <- {speaks}, {how:?} after {after}");
    let config = if how == How::Stall { SHORT_STALL } else { NO_RESUME };
    let plan = FaultPlan::always(Fault::break_after(after, how));
    let sim = provider(speaks).respond(|_| Some(rich_answer())).with_faults(plan).build();
    let rig = Rig::builder().provider(sim).config(config).start().await;

    let request = ask(caller, model(speaks), true);
    let reply = request.send(rig.addr).await;
    assert_eq!(reply.status, 200, "{case}: {}", reply.text());
    assert_eq!(reply.header("content-type"), Some("text/event-stream"), "{case}");
    // Gemini's SDKs take an end behind an error event for a good one.
    let breaks_off = caller == Dialect::Gemini;
    assert_eq!(reply.clean, !breaks_off, "{case}: the body ends by its framing");
    check(&rig, caller, after, &case, &WireAnswer::stream(caller, &reply.body));

    if caller == Dialect::Gemini {
        let request = request.at(path(caller, model(speaks), true).replace("?alt=sse", ""));
        let reply = request.send(rig.addr).await;
        assert_eq!(reply.status, 200, "{case}: {}", reply.text());
        assert_eq!(reply.header("content-type"), Some("application/json"), "{case}");
        assert!(reply.clean, "{case}");
        let array: Value = reply.json();
        assert!(array.as_array().unwrap().len() > 1, "{case}");
        check(&rig, caller, after, &case, &WireAnswer::array(&reply.body));
    }
}

fn check(rig: &Rig, caller: Dialect, after: usize, case: &str, answer: &WireAnswer) {
    assert_eq!(answer.errors.len(), 1, "{case}: {answer:?}");
    error_message(caller, &answer.errors[0]);
    assert_eq!(answer.ends, Vec::<String>::new(), "{case}: nothing looks like an end");
    assert!(!answer.thinking.is_empty(), "{case}: what had arrived is sent: {answer:?}");
    assert_eq!(
        answer.text.is_empty(),
        after == POSITIONS[0],
        "{case}: what had arrived is sent: {answer:?}"
    );
    answer.assert_prefix_of(&rig.last().sent.unwrap(), case);
}

macro_rules! broken {
    ($($name:ident: $how:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            every_pair($how).await;
        }
    )*};
}

broken! {
    a_reset: How::Reset;
    a_connection_closed_inside_the_body: How::Close;
    a_silent_clean_end: How::End;
    a_stall: How::Stall;
    an_error_event: How::ErrorEvent(ErrorKind::Overloaded);
    an_error_event_that_blames_the_caller: How::ErrorEvent(ErrorKind::ContentFilter);
    malformed_json: How::MalformedJson;
    half_a_frame: How::TruncatedJson;
    bytes_that_are_no_text: How::Garbage;
}

/// The provider's error message is in the caller's error, in every pair.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_has_the_providers_message() {
    for (caller, speaks) in pairs() {
        let fault = Fault::break_after(6, How::ErrorEvent(ErrorKind::Overloaded));
        let sim = provider(speaks)
            .respond(|_| Some(rich_answer()))
            .with_faults(FaultPlan::always(fault))
            .build();
        let rig = Rig::of(sim).await;
        let reply = ask(caller, model(speaks), true).send(rig.addr).await;
        let answer = WireAnswer::stream(caller, &reply.body);
        let message = error_message(caller, &answer.errors[0]).to_lowercase();
        assert!(message.contains("overloaded"), "{caller} <- {speaks}: {message}");
    }
}

/// After a break the same gateway answers the next request properly, in every dialect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_request_is_answered() {
    for speaks in DIALECTS {
        let plan = FaultPlan::first(1, Fault::break_after(4, How::Reset));
        let sim = provider(speaks).respond(|_| Some(rich_answer())).with_faults(plan).build();
        // One bad answer must not put the only provider into a cooldown.
        let config = format!("{NO_RESUME}[cooldown]\nnetwork = 0\n");
        let rig = Rig::builder().provider(sim).config(&config).start().await;
        let broken = ask(speaks, model(speaks), true).send(rig.addr).await;
        assert_eq!(WireAnswer::stream(speaks, &broken.body).errors.len(), 1);
        for caller in DIALECTS {
            let reply = ask(caller, model(speaks), true).send(rig.addr).await;
            let answer = WireAnswer::stream(caller, &reply.body);
            assert_eq!(answer.errors, Vec::<Value>::new(), "{caller} <- {speaks}");
            assert_eq!(answer.text, rig.last().sent.unwrap().text, "{caller} <- {speaks}");
            assert!(!answer.ends.is_empty());
        }
    }
}

/// Before content nothing has been sent to the caller, so a break is repaired by a retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_before_content_is_retried_unseen() {
    for (caller, speaks) in pairs() {
        for how in [
            How::Reset,
            How::Close,
            How::End,
            How::MalformedJson,
            How::TruncatedJson,
            How::ErrorEvent(ErrorKind::ServerError),
        ] {
            let case = format!("{caller} <- {speaks}, {how:?}");
            let plan = FaultPlan::first(1, Fault::break_after(0, how));
            let sim = provider(speaks).respond(|_| Some(rich_answer())).with_faults(plan).build();
            let config = "[retry]\nbase_ms = 1\ncap_ms = 2\n";
            let rig = Rig::builder().provider(sim).config(config).start().await;
            let reply = ask(caller, model(speaks), true).send(rig.addr).await;
            assert_eq!(reply.status, 200, "{case}: {}", reply.text());
            rig.assert_attempts(&reply, 0, &case);
            assert_eq!(rig.asked(), 2, "{case}");
            let answer = WireAnswer::stream(caller, &reply.body);
            assert_eq!(answer.errors, Vec::<Value>::new(), "{case}");
            let sent = rig.last().sent.unwrap();
            assert_eq!((&answer.text, &answer.thinking), (&sent.text, &sent.thinking), "{case}");
            assert_eq!(answer.calls.len(), sent.tool_calls.len(), "{case}: nothing twice");
            assert!(!answer.ends.is_empty(), "{case}");
        }
    }
}

/// A whole answer that does not arrive whole is an error with a status, never half an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_answer_that_breaks_is_an_error() {
    for (caller, speaks) in pairs() {
        for how in [
            How::Reset,
            How::Close,
            How::End,
            How::MalformedJson,
            How::TruncatedJson,
            How::Garbage,
            How::ErrorEvent(ErrorKind::ServerError),
        ] {
            let case = format!("{caller} <- {speaks}, {how:?}");
            let fault = Fault::Break(Break { after_events: None, after_bytes: Some(200), how });
            let sim = provider(speaks)
                .respond(|_| Some(rich_answer()))
                .with_faults(FaultPlan::always(fault))
                .build();
            let rig = Rig::builder().provider(sim).config("[retry]\nretries = 0\n").start().await;
            let reply = ask(caller, model(speaks), false).send(rig.addr).await;
            assert!(
                (500..600).contains(&reply.status),
                "{case}: {} {}",
                reply.status,
                reply.text()
            );
            assert!(reply.clean, "{case}");
            rig.assert_attempts(&reply, 0, &case);
            error_message(caller, &reply.json());
            assert!(!reply.text().contains("step by step"), "{case}: {}", reply.text());
        }
    }
}
