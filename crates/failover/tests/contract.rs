//! The contract of every layer.
#![allow(clippy::unwrap_used, reason = "tests")]

use steadfast_core::Target;
use steadfast_failover::{Chain, CooldownFailoverLayer, FailoverHandle};
use steadfast_testkit::{Action, Aspect, Chat, Contract, PinnedHttp, Plain, contract, secs};
use tokio::time::Instant;

const NAMES: [&str; 3] = ["probe", "other", "third"];

fn three() -> CooldownFailoverLayer {
    CooldownFailoverLayer::new(Chain::new(NAMES).unwrap())
}

/// The time of the last success, in milliseconds.
fn last_success(handle: &FailoverHandle, since: Instant) -> u64 {
    let snapshot = handle.snapshot();
    let last = snapshot.targets().iter().filter_map(|health| health.last_success).max();
    last.map_or(0, |at| at.saturating_duration_since(since).as_millis() as u64)
}

/// Probes under way.
fn probing(handle: &FailoverHandle) -> u64 {
    handle.snapshot().targets().iter().filter(|health| health.probing).count() as u64
}

fn cool(handle: &FailoverHandle) {
    NAMES.iter().for_each(|name| handle.cool(&Target::new(*name), secs(1_000)));
}

contract!(plain, {
    let since = Instant::now();
    Contract::new(Plain, || three().at_once())
        .refuses(|layer, _| cool(&layer.handle()))
        .state(Action::answer().slow(), move |layer| last_success(&layer.handle(), since))
        .held(|layer| probing(&layer.handle()))
});

contract!(http, {
    let since = Instant::now();
    Contract::new(PinnedHttp, three)
        .refuses(|layer, _| cool(&layer.handle()))
        .state(Action::answer().slow(), move |layer| last_success(&layer.handle(), since))
        .held(|layer| probing(&layer.handle()))
        .allocates(5, "the request is cloned for the next target, with headers and extensions")
});

const FIRST_EVENT: &str =
    "what is read while the first content is waited for, by whichever layer waits";

contract!(chat, {
    let since = Instant::now();
    Contract::new(Chat, three)
        .refuses(|layer, _| cool(&layer.handle()))
        .state(Action::answer().slow(), move |layer| last_success(&layer.handle(), since))
        .held(|layer| probing(&layer.handle()))
        .allocates(1, FIRST_EVENT)
});

// The cooldown of the first target is over, and the next call of it is a probe.
contract!(
    after_a_cooldown,
    Contract::new(Chat, || {
        let layer = three();
        layer.handle().cool(&Target::new(NAMES[0]), secs(30));
        layer
    })
    .after(secs(31))
    .refuses(|layer, _| cool(&layer.handle()))
    .none(Aspect::State, "each new layer starts with a cooling target")
    .held(|layer| probing(&layer.handle()))
    .allocates(1, FIRST_EVENT)
);
