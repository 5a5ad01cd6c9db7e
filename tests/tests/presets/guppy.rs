//! `guppy`.

use steadfast::{
    Preset, Reason,
    sim::{ErrorKind, Fault, FaultPlan, PlanRule},
};

use crate::{World, always, error, fine, request, status};

const PRESET: Preset = Preset::Guppy;

#[tokio::test(start_paused = true)]
async fn three_retries_after_2_4_and_8_seconds_and_nothing_rests() {
    for fault in [
        error(ErrorKind::Overloaded),
        status(429, "slow down"),
        status(500, "oops"),
        status(501, "oops"),
        status(502, "oops"),
        status(503, "oops"),
        status(504, "oops"),
        Fault::Refused,
        Fault::Reset,
    ] {
        let world = World::new(PRESET, [always(fault.clone())]);
        let _failure = world.ask().await.failure.unwrap();
        assert_eq!(world.waits(0), [2_000, 4_000, 8_000], "{fault:?}");
        // No breaker, and no rest: the next call is made at once, and the one after an outage answered.
        assert!(!world.anything_rests(), "{fault:?}");
        for _ in 0..10 {
            let _failure = world.ask().await.failure.unwrap();
        }
        assert_eq!(world.counts(), [44], "{fault:?}");
        world.set(0, fine());
        world.ask().await.answer();
        assert_eq!(world.counts(), [45], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_else_is_retried() {
    for fault in [400, 401, 402, 404, 408, 409, 505, 524].map(|code| status(code, "no")) {
        let world = World::new(PRESET, [always(fault.clone())]);
        let _failure = world.ask().await.failure.unwrap();
        let _failure = world.ask().await.failure.unwrap();
        assert_eq!(world.counts(), [2], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_overflow_is_compacted_and_not_retried() {
    let plan = FaultPlan::none().rule(PlanRule::new(error(ErrorKind::ContextOverflow)));
    let world = World::new(PRESET, [plan]);
    let got = world.send(request()).await;
    assert_eq!(got.failure.unwrap().reason(), Reason::ContextOverflow);
    assert_eq!(world.counts(), [1], "there is nothing to compact in one message");
}
