//! `codebuddy`.

use std::{io, time::Duration};

use steadfast::{
    BoxError, CallContext, Preset, Reason, Stack,
    client::{ClientBody, LlmClient},
    failover::Status,
    sim::{ErrorKind, Fault, How},
};
use steadfast_tests::harness::{self, Net};
use tokio::time::advance;
use tower::{ServiceExt as _, service_fn};

use crate::{
    World, agent, agent::Agent, always, chain, error, failing_stream, fine, hinted, request, secs,
    sims, status,
};

const PRESET: Preset = Preset::Codebuddy;

/// A fault, its reason, how long its provider rests, and whether it is retried in place.
fn rests() -> Vec<(&'static str, Fault, Reason, u64, bool)> {
    use Reason::{
        Auth, Billing, ModelNotFound, Network, Overloaded, RateLimit, ServerError, Timeout, Unknown,
    };
    vec![
        ("401", status(401, "no"), Auth, 600, false),
        ("403", status(403, "no"), Auth, 600, false),
        ("402", status(402, "pay"), Billing, 1_800, false),
        ("429", status(429, "slow down"), RateLimit, 60, true),
        ("quota exceeded", status(429, "quota exceeded"), RateLimit, 60, false),
        ("408", status(408, "late"), Timeout, 30, true),
        ("connection refused", Fault::Refused, Network, 30, true),
        ("connection reset", Fault::Reset, Network, 30, true),
        ("502", status(502, "bad gateway"), Overloaded, 120, true),
        ("503", status(503, "not now"), Overloaded, 120, true),
        ("529", status(529, "not now"), Overloaded, 120, true),
        ("overloaded", error(ErrorKind::Overloaded), Overloaded, 120, true),
        ("the word overloaded", status(500, "The engine is overloaded"), Overloaded, 120, true),
        ("the word capacity", status(500, "We are at capacity"), Overloaded, 120, true),
        ("404", error(ErrorKind::ModelNotFound), ModelNotFound, 3_600, false),
        ("500", status(500, "oops"), ServerError, 30, true),
        ("504", status(504, "late"), Timeout, 30, true),
        ("unknown", status(418, "teapot"), Unknown, 30, false),
    ]
}

#[tokio::test(start_paused = true)]
async fn each_reason_rests_its_provider_from_the_first_failure_and_is_probed_half_a_minute_early() {
    for (name, fault, reason, rest, retried) in rests() {
        let world = World::new(PRESET, [always(fault), fine()]);
        let got = world.ask().await;
        assert_eq!(got.answer().head.target.as_ref().unwrap().provider(), "openai", "{name}");
        // Two retries in place, and then the next that does not rest.
        let waits: &[u128] = if retried { &[1_500, 3_000] } else { &[] };
        assert_eq!(world.waits(0), waits, "{name}");
        assert_eq!(world.counts(), [waits.len() + 1, 1], "{name}");
        // It rests since the first failure.
        let waited = Duration::from_millis(u64::try_from(waits.iter().sum::<u128>()).unwrap());
        assert_eq!(world.rest(0), Some(secs(rest) - waited), "{name}");

        let health = world.health(0);
        assert_eq!(health.errors, waits.len() as u64 + 1, "{name}");
        let status = if retried { Status::Down } else { Status::Degraded };
        assert_eq!(health.status, status, "{name}");
        let last = health.last_error.as_ref().map(|error| error.reason);
        assert_eq!((last, health.last_success), (Some(reason), None), "{name}");

        // Not asked until it is probed: 30 s before the end, and never in the first half.
        world.set(0, fine());
        let before = secs(rest) - secs(30).min(secs(rest) / 2);
        advance(before - waited - Duration::from_millis(100)).await;
        world.ask().await;
        assert_eq!(world.counts()[1], 2, "{name}: it rests");
        advance(Duration::from_millis(200)).await;
        let probe = world.ask().await;
        assert_eq!(probe.answer().head.target.as_ref().unwrap().provider(), "anthropic", "{name}");
        assert_eq!(world.rest(0), None, "{name}");
        let health = world.health(0);
        assert_eq!(health.status, Status::Healthy, "{name}");
        assert!(health.last_success.is_some(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_read_neither_rests_nor_fails_over() {
    let garbled = || {
        let body = r#"{"id": 1, "content": [}"#.to_owned();
        Fault::Status(steadfast::sim::RawResponse { status: 200, headers: [].into(), body })
    };
    let world = World::new(PRESET, [always(garbled()), fine()]);
    let failure = world.ask().await.failure.unwrap();
    assert_eq!(failure.reason(), Reason::Format, "{failure}");
    assert_eq!(world.counts(), [1, 0]);
    assert!(!world.anything_rests());
    // Of a stream too.
    let world = World::new(PRESET, [always(Fault::break_after(0, How::MalformedJson)), fine()]);
    let failure = world.send(request().streaming()).await.failure.unwrap();
    assert_eq!(failure.reason(), Reason::Format, "{failure}");
    assert_eq!(world.counts(), [1, 0]);
    // By default that is an error of the server's.
    let sims = sims([always(garbled()), fine()], |_, provider| provider);
    let world = World::of(&Stack::new(chain(&sims)), sims);
    world.ask().await.answer();
    assert_eq!(world.counts(), [2, 1]);
}

#[tokio::test(start_paused = true)]
async fn each_retry_has_a_nudge() {
    for fault in [status(500, "oops"), status(429, "slow down"), status(529, "not now")] {
        let world = World::new(PRESET, [always(fault)]);
        let _failure = world.ask().await.failure.unwrap();
        let bodies: Vec<_> = world
            .asked(0)
            .iter()
            .map(|one| String::from_utf8_lossy(&one.body).into_owned())
            .collect();
        assert!(!bodies[0].contains("technical problem"), "{}", bodies[0]);
        assert!(bodies[1].contains("carry on with the task"), "{}", bodies[1]);
        assert!(bodies[2].contains("finish now"), "{}", bodies[2]);
    }
}

#[tokio::test(start_paused = true)]
async fn permanent_words_are_never_retried() {
    for words in [
        "loop detected",
        "Infinite Loop",
        "same file edited",
        "safety limit",
        "user cancel",
        "abort",
        "authentication",
        "unauthorized",
        "invalid api key",
        "quota exceeded",
    ] {
        for status in [status(500, words), status(503, words)] {
            let world = World::new(PRESET, [always(status), fine()]);
            world.ask().await;
            assert_eq!(world.counts()[0], 1, "{words}");
        }
    }
}

/// A stream that begins well and then says so: nothing of it is asked for again in place.
#[tokio::test(start_paused = true)]
async fn permanent_words_in_a_stream_are_never_retried() {
    for (text, words, asked) in [
        ("", "oops", 3),
        ("", "loop detected", 1),
        ("", "Infinite Loop", 1),
        ("", "same file edited", 1),
        ("", "safety limit", 1),
        ("", "user cancel", 1),
        ("", "abort", 1),
        ("", "authentication", 1),
        ("", "unauthorized", 1),
        ("", "invalid api key", 1),
        ("", "quota exceeded", 1),
        // One that breaks after it has begun is resumed, in place first, and with these words elsewhere.
        ("It begins.", "oops", 2),
        ("It begins.", "loop detected", 1),
        ("It begins.", "quota exceeded", 1),
    ] {
        let fault = failing_stream(text, "api_error", words);
        let world = World::new(PRESET, [always(fault), fine()]);
        let got = world.send(request().streaming()).await;
        assert_eq!(world.counts(), [asked, 1], "{text} {words}: {:?}", got.failure);
    }
}

/// What the operating system calls ETIMEDOUT, and a provider that never answers.
#[tokio::test(start_paused = true)]
async fn timeouts_of_the_network_rest_half_a_minute() {
    let down = sims([fine(), fine()], |_, provider| provider);
    let net = Net::new(&down);
    let times_out = service_fn(move |request: http::Request<ClientBody>| {
        let (net, first) = (net.clone(), request.uri().host() == Some("anthropic"));
        async move {
            match first {
                true => Err(BoxError::from(io::Error::from(io::ErrorKind::TimedOut))),
                false => net.oneshot(request).await.map_err(BoxError::from),
            }
        }
    });
    let stack = Stack::new(chain(&down)).preset(PRESET);
    let client = LlmClient::with_service(harness::providers(&down), times_out);
    let (llm, handles) = (stack.boxed(client), stack.handles());
    let world = World { sims: down, llm, handles };
    let got = world.ask().await;
    got.answer();
    assert_eq!(got.took, Duration::from_millis(4_500), "two retries in place");
    assert_eq!(world.rest(0), Some(secs(30) - got.took));
    assert_eq!(world.health(0).last_error.as_ref().unwrap().reason, Reason::Timeout);

    let world = World::new(PRESET, [always(Fault::Hang), fine()]);
    let hangs = async {
        world.send(request().streaming()).await.answer();
    };
    let others = async {
        tokio::time::sleep(Duration::from_millis(180_001)).await;
        assert_eq!(world.rest(0), Some(Duration::from_millis(29_999)), "since its first silence");
        assert_eq!(world.health(0).last_error.as_ref().unwrap().reason, Reason::Timeout);
        world.ask().await.answer();
        assert_eq!(world.counts(), [1, 1]);
    };
    tokio::join!(hangs, others);
    assert_eq!(world.counts(), [3, 2], "twice again in place");
}

#[tokio::test(start_paused = true)]
async fn a_long_hint_is_the_rest() {
    let world = World::new(PRESET, [always(hinted(429, 300)), fine()]);
    world.ask().await.answer();
    assert_eq!(world.rest(0), Some(secs(300)));
    assert_eq!(world.counts(), [1, 1]);
}

fn world(sims: Vec<steadfast::sim::SimProvider>) -> World {
    World::of(&Stack::new(chain(&sims)).preset(PRESET), sims)
}

#[tokio::test(start_paused = true)]
async fn each_risky_tool_has_its_number_of_calls() {
    for (tool, most) in [
        ("edit_file", 8),
        ("delete_file", 3),
        ("run_command", 10),
        ("run_terminal_command", 100),
        ("web_search", 8),
    ] {
        let arguments =
            |at| format!(r#"{{"path": "{at}.rs", "command": "{at}", "query": "{at}"}}"#);
        let (calls, text) = agent::run(world, tool, arguments).await;
        assert_eq!(calls, most, "{tool}: {text}");
        assert!(text.contains(&format!("maximum of {most} invocations of `{tool}`")), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_is_edited_four_times() {
    let arguments = |at| format!(r#"{{"path": "one.rs", "text": "{at}"}}"#);
    let (calls, text) = agent::run(world, "edit_file", arguments).await;
    assert_eq!(calls, 4, "{text}");
    assert!(text.contains("`one.rs` was edited more than 4 times"), "{text}");
}

/// An agent that has made so many calls of one tool that is in no table.
fn busy(calls: usize) -> Agent {
    let mut agent = Agent::new();
    for at in 0..calls {
        agent.called("read_note", &format!(r#"{{"note": {at}}}"#), &format!("result {at}"));
    }
    agent
}

#[tokio::test(start_paused = true)]
async fn four_hundred_calls_are_the_most_and_a_stop_is_final() {
    let world = World::new(PRESET, [fine(), fine()]);
    world.send(busy(400).request("read_note")).await.answer();
    let failure = world.send(busy(401).request("read_note")).await.failure.unwrap();
    assert_eq!(failure.reason(), Reason::Safety);
    assert_eq!(world.counts(), [1, 0], "nothing retries it");
    let text = failure.message();
    assert!(text.starts_with("Forced stop: reached maximum of 400 tool invocations. "), "{text}");
    assert!(text.contains("Events processed: 1,2") && text.contains("| Tool calls: 400"), "{text}");
    assert!(text.contains("Please review the work completed so far."), "{text}");
}

#[tokio::test(start_paused = true)]
async fn two_thousand_events_are_the_most() {
    let mut policies = PRESET.policies();
    // So that events are what is reached first: each call is three of them.
    let guard = policies.guard.as_mut().unwrap();
    for limits in [&mut guard.limits, &mut guard.named] {
        (limits.calls, limits.per_tool) = (None, None);
    }
    let ask = async |calls| {
        let sims = sims([fine()], |_, provider| provider);
        let stack = Stack::new(chain(&sims)).with_policies(&policies).unwrap();
        World::of(&stack, sims).send(busy(calls).request("read_note")).await.failure
    };
    assert!(ask(660).await.is_none());
    let failure = ask(670).await.unwrap();
    let text = failure.message();
    assert!(text.starts_with("Forced stop: reached maximum of 2,000 events. "), "{text}");
    assert!(text.contains("Events processed: 2,0"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_task_has_ten_minutes() {
    let world = World::new(PRESET, [fine()]);
    let turn = || request().with_context(CallContext::recording().with_session("s").with_task("t"));
    world.send(turn()).await.answer();
    advance(secs(599)).await;
    world.send(turn()).await.answer();
    advance(secs(2)).await;
    let failure = world.send(turn()).await.failure.unwrap();
    assert_eq!(failure.reason(), Reason::Safety);
    let text = failure.message();
    assert!(text.starts_with("Forced stop: reached maximum time of 10m 0s. "), "{text}");
    assert!(text.contains("| Elapsed: 10m 1s"), "{text}");
}
