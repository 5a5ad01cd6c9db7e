//! The contract of every layer.
#![allow(clippy::unwrap_used, reason = "tests")]

use steadfast_core::{CallSpend, Spend, SpendAccount, SpendCaps, SpendLedger, Target};
use steadfast_limit::{
    CallTokens, RateHandle, RateLimitLayer, RatePolicy, ReleaseAt, SpendLimitLayer,
    SpendLimitPolicy,
};
use steadfast_testkit::{Action, Aspect, Chat, Contract, PinnedHttp, Plain, contract, secs};
use tokio::time::Instant;

/// The target of the testkit's requests.
fn key() -> Option<Target> {
    Some(Target::new("probe"))
}

fn block(handle: &RateHandle) {
    handle.block(&key(), secs(3_600));
}

fn admitted(handle: &RateHandle) -> u64 {
    handle.get(&key()).map_or(0, |key| key.admitted)
}

/// Calls under way, and calls that wait.
fn held(handle: &RateHandle) -> u64 {
    handle.get(&key()).map_or(0, |key| u64::from(key.in_use) + key.waiting as u64)
}

contract!(
    rate_of_values,
    Contract::new(Plain, || RateLimitLayer::default().at_once())
        .refuses(|layer, _| block(&layer.handle()))
        .state(Action::answer(), |layer| admitted(&layer.handle()))
        .held(|layer| held(&layer.handle()))
);

contract!(
    rate_of_http,
    Contract::new(PinnedHttp, RateLimitLayer::default)
        .refuses(|layer, _| block(&layer.handle()))
        .state(Action::answer(), |layer| admitted(&layer.handle()))
        .held(|layer| held(&layer.handle()))
);

contract!(
    rate_of_chat,
    Contract::new(Chat, RateLimitLayer::default)
        .refuses(|layer, _| block(&layer.handle()))
        .state(Action::answer(), |layer| admitted(&layer.handle()))
        .held(|layer| held(&layer.handle()))
);

/// Everything that can be configured is.
fn configured() -> RateLimitLayer {
    let policy = RatePolicy {
        requests: Some(10_000),
        tokens: Some(100_000),
        max_concurrent: Some(2),
        release_at: ReleaseAt::End,
        ..RatePolicy::default()
    };
    RateLimitLayer::new(policy).unwrap()
}

contract!(
    rate_configured,
    Contract::new(Chat, configured)
        .refuses(|layer, _| block(&layer.handle()))
        .state(Action::answer(), |layer| admitted(&layer.handle()))
        .held(|layer| held(&layer.handle()))
        .may_refuse_crowds()
);

fn nobody() -> SpendAccount {
    SpendAccount::Tenant("".into())
}

fn capped() -> SpendLimitLayer {
    SpendLimitLayer::new(SpendLimitPolicy { assumed_output: 10, ..SpendLimitPolicy::comis() })
        .unwrap()
}

fn spend_all(ledger: &SpendLedger) {
    ledger.charge(&nobody(), Spend::new(10_000_000, 0), Instant::now());
}

fn reserved(ledger: &SpendLedger) -> u64 {
    ledger.totals(&nobody(), Instant::now()).held.tokens
}

fn spent(ledger: &SpendLedger) -> u64 {
    ledger.totals(&nobody(), Instant::now()).hour.tokens
}

const RESERVATION: &str = "what the call may spend, the list of its accounts, and its meter";

contract!(
    spend_of_values,
    Contract::new(Plain, || capped().with_estimate(ten).at_once())
        .refuses(|layer, _| spend_all(layer.ledger()))
        .state(Action::answer(), |layer| spent(layer.ledger()))
        .held(|layer| reserved(layer.ledger()))
        .allocates(3, RESERVATION)
);

fn ten<Req>(_: &Req) -> CallTokens {
    CallTokens { input: 10, max_output: None }
}

contract!(
    spend_of_http,
    Contract::new(PinnedHttp, || capped().with_estimate(ten))
        .refuses(|layer, _| spend_all(layer.ledger()))
        .state(Action::answer(), |layer| spent(layer.ledger()))
        .held(|layer| reserved(layer.ledger()))
        .allocates(3, RESERVATION)
);

contract!(
    spend_of_chat,
    Contract::new(Chat, || capped().with_estimate(ten))
        .refuses(|layer, _| spend_all(layer.ledger()))
        .state(Action::answer(), |layer| spent(layer.ledger()))
        .held(|layer| reserved(layer.ledger()))
        .allocates(3, RESERVATION)
);

contract!(
    spend_uncapped,
    Contract::new(Chat, SpendLimitLayer::default)
        .none(Aspect::Refusal, "nothing is capped")
        .none(Aspect::State, "nothing is recorded")
        .none(Aspect::Held, "nothing is reserved")
);

contract!(
    meter,
    Contract::new(Chat, || capped().with_estimate(ten).meter())
        .refuses(|_, request: &mut steadfast_chat::ChatRequest| {
            let (ledger, now) = (SpendLedger::default(), Instant::now());
            let caps = [(nobody(), SpendCaps::of_tokens(1, 0))];
            let call = CallSpend::reserve(&ledger, caps, Spend::ZERO, now);
            request.context.spend = Some(call.unwrap());
        })
        .none(Aspect::State, "it is in the context of the call")
        .none(Aspect::Held, "it is in the context of the call")
);
