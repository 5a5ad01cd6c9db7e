//! Streams that break, in every pair of dialects, over real sockets: the caller gets what there
//! was, one error event of its own dialect, and no end that would pass for a good one.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use serde_json::Value;
use steadfast::sim::{Break, Dialect, ErrorKind, Fault, FaultPlan, How};
use steadfast_tests::gateway::{
    DIALECTS, Rig, ask, model, pairs, path, provider, rich_answer,
    told::{Told, error_message},
};
use tokio::task::JoinSet;

/// What is told where nothing goes on with a stream that broke; `gateway_conversation` has the rest.
const AS_IT_IS: &str = "[resume]\nenabled = false\n";

/// The same for stalls: silence ends soon. Elsewhere a busy machine must not be taken for one.
const SOON: &str = "[resume]\nenabled = false\n[timeout]\nstall_ms = 600\n";

/// Content events before the break: inside the thinking, inside the text, inside the arguments.
const PLACES: [usize; 3] = [3, 12, 24];

/// Asks for a stream that breaks in this way, in every pair and place, and checks what is told.
async fn every_pair(how: How) {
    let mut cases = JoinSet::new();
    for (caller, speaks) in pairs() {
        for after in PLACES {
            cases.spawn(one(caller, speaks, after, how.clone()));
        }
    }
    let mut broken = 0;
    while let Some(case) = cases.join_next().await {
        case.unwrap();
        broken += 1;
    }
    assert_eq!(broken, 9 * PLACES.len());
}

async fn one(caller: Dialect, speaks: Dialect, after: usize, how: How) {
    let case = format!("{caller} <- {speaks}, {how:?} after {after}");
    let config = if how == How::Stall { SOON } else { AS_IT_IS };
    let plan = FaultPlan::always(Fault::break_after(after, how));
    let sim = provider(speaks).respond(|_| Some(rich_answer())).with_faults(plan).build();
    let rig = Rig::builder().provider(sim).config(config).start().await;

    let request = ask(caller, model(speaks), true);
    let reply = request.send(rig.addr).await;
    assert_eq!(reply.status, 200, "{case}: {}", reply.text());
    assert_eq!(reply.header("content-type"), Some("text/event-stream"), "{case}");
    assert!(reply.clean, "{case}: the body ends by its framing");
    check(&rig, caller, after, &case, &Told::stream(caller, &reply.body));

    if caller == Dialect::Gemini {
        let request = request.at(path(caller, model(speaks), true).replace("?alt=sse", ""));
        let reply = request.send(rig.addr).await;
        assert_eq!(reply.status, 200, "{case}: {}", reply.text());
        assert_eq!(reply.header("content-type"), Some("application/json"), "{case}");
        assert!(reply.clean, "{case}");
        let array: Value = reply.json();
        assert!(array.as_array().unwrap().len() > 1, "{case}");
        check(&rig, caller, after, &case, &Told::array(&reply.body));
    }
}

fn check(rig: &Rig, caller: Dialect, after: usize, case: &str, told: &Told) {
    assert_eq!(told.errors.len(), 1, "{case}: {told:?}");
    error_message(caller, &told.errors[0]);
    assert_eq!(told.ends, Vec::<String>::new(), "{case}: nothing passes for an end");
    assert!(!told.thinking.is_empty(), "{case}: what there was is told: {told:?}");
    assert_eq!(
        told.text.is_empty(),
        after == PLACES[0],
        "{case}: what there was is told: {told:?}"
    );
    told.assert_prefix_of(&rig.last().sent.unwrap(), case);
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

/// The provider's own words about its own trouble are in the caller's error, in every pair.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_says_what_the_provider_said() {
    for (caller, speaks) in pairs() {
        let fault = Fault::break_after(6, How::ErrorEvent(ErrorKind::Overloaded));
        let sim = provider(speaks)
            .respond(|_| Some(rich_answer()))
            .with_faults(FaultPlan::always(fault))
            .build();
        let rig = Rig::of(sim).await;
        let reply = ask(caller, model(speaks), true).send(rig.addr).await;
        let told = Told::stream(caller, &reply.body);
        let message = error_message(caller, &told.errors[0]).to_lowercase();
        assert!(message.contains("overloaded"), "{caller} <- {speaks}: {message}");
    }
}

/// The same gateway answers the next request well, in every dialect, after each kind of break.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_request_is_answered() {
    for speaks in DIALECTS {
        let plan = FaultPlan::first(1, Fault::break_after(4, How::Reset));
        let sim = provider(speaks).respond(|_| Some(rich_answer())).with_faults(plan).build();
        // One bad answer must not rest the only provider here.
        let config = format!("{AS_IT_IS}[cooldown]\nnetwork = 0\n");
        let rig = Rig::builder().provider(sim).config(&config).start().await;
        let broken = ask(speaks, model(speaks), true).send(rig.addr).await;
        assert_eq!(Told::stream(speaks, &broken.body).errors.len(), 1);
        for caller in DIALECTS {
            let reply = ask(caller, model(speaks), true).send(rig.addr).await;
            let told = Told::stream(caller, &reply.body);
            assert_eq!(told.errors, Vec::<Value>::new(), "{caller} <- {speaks}");
            assert_eq!(told.text, rig.last().sent.unwrap().text, "{caller} <- {speaks}");
            assert!(!told.ends.is_empty());
        }
    }
}

/// Until content has come nothing has been told, so a break is mended by asking again, unseen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_before_content_is_mended_unseen() {
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
            assert_eq!(reply.header("x-steadfast-attempts"), Some("2"), "{case}");
            let told = Told::stream(caller, &reply.body);
            assert_eq!(told.errors, Vec::<Value>::new(), "{case}");
            let sent = rig.last().sent.unwrap();
            assert_eq!((&told.text, &told.thinking), (&sent.text, &sent.thinking), "{case}");
            assert_eq!(told.calls.len(), sent.tool_calls.len(), "{case}: nothing twice");
            assert!(!told.ends.is_empty(), "{case}");
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
            error_message(caller, &reply.json());
            assert!(!reply.text().contains("step by step"), "{case}: {}", reply.text());
        }
    }
}
