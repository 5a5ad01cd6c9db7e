//! The contract of every layer, and the tests of tower's rules that only time limits need.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::future::Ready;

use common::Events;
use steadfast_chat::ChatResponse;
use steadfast_core::{Call, Deadline, Failure, UntilEnd};
use steadfast_testkit::{
    Action, Aspect, Chat, Contract, PinnedHttp, Plain, PlainRequest, contract, plain_request, secs,
};
use steadfast_timeout::{
    DeadlineLayer, StallBody, StallEvents, StallTimeoutLayer, TimeoutHandle, future::ResponseFuture,
};
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer, service_fn};
use tower_test::mock;

fn fired(handle: &TimeoutHandle) -> u64 {
    handle.snapshot().fired.iter().map(|(_, count)| count).sum()
}

const HOLDS_NOTHING: &str = "its timer is a part of the future or of the body";

/// A request whose deadline has passed is refused.
fn too_late(request: &mut impl Call) {
    request.context_mut().deadline = Some(Deadline::at(Instant::now()));
}

contract!(
    deadline_of_values,
    Contract::new(Plain, || DeadlineLayer::default().at_once())
        .refuses(|_, request| too_late(request))
        .state(Action::hang(), |layer| fired(&layer.handle()))
        .none(Aspect::Held, HOLDS_NOTHING)
);

contract!(
    deadline_of_http,
    Contract::new(PinnedHttp, DeadlineLayer::default)
        .refuses(|_, request| too_late(request))
        .state(Action::hang_late(), |layer| fired(&layer.handle()))
        .none(Aspect::Held, HOLDS_NOTHING)
);

contract!(
    deadline_of_chat,
    Contract::new(Chat, DeadlineLayer::default)
        .refuses(|_, request| too_late(request))
        .state(Action::hang_late(), |layer| fired(&layer.handle()))
        .none(Aspect::Held, HOLDS_NOTHING)
);

contract!(
    stall_of_values,
    Contract::new(Plain, || StallTimeoutLayer::default().at_once())
        .state(Action::hang(), |layer| fired(&layer.handle()))
        .none(Aspect::Refusal, "every call is sent")
        .none(Aspect::Held, HOLDS_NOTHING)
);

contract!(
    stall_of_http,
    Contract::new(PinnedHttp, StallTimeoutLayer::default)
        .state(Action::hang_late(), |layer| fired(&layer.handle()))
        .none(Aspect::Refusal, "every call is sent")
        .none(Aspect::Held, HOLDS_NOTHING)
);

contract!(
    stall_of_chat,
    Contract::new(Chat, StallTimeoutLayer::default)
        .state(Action::hang_late(), |layer| fired(&layer.handle()))
        .none(Aspect::Refusal, "every call is sent")
        .none(Aspect::Held, HOLDS_NOTHING)
);

#[tokio::test(start_paused = true)]
async fn a_limit_frees_the_permit_while_its_future_is_still_held() {
    let (inner, _handle) = mock::pair::<PlainRequest, &'static str>();
    let service = ServiceBuilder::new()
        .layer(StallTimeoutLayer::default().at_once())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(inner);
    let mut service = mock::Spawn::new(service);
    assert_ready_ok!(service.poll_ready());
    let mut clone = service.clone();
    assert_pending!(clone.poll_ready());
    assert_ready_ok!(service.poll_ready(), "the permit is kept");
    let mut call = task::spawn(service.call(plain_request(|_| ())));
    assert_pending!(call.poll());
    assert_pending!(clone.poll_ready(), "under way");
    // The limit frees the permit at once, though its future is still held.
    tokio::time::advance(secs(181)).await;
    assert!(call.poll().is_ready());
    assert!(clone.is_woken());
    assert_ready_ok!(clone.poll_ready());
}

#[tokio::test(start_paused = true)]
async fn a_setter_creates_new_state() {
    let layer = StallTimeoutLayer::default().at_once();
    let hanging = service_fn(|_: PlainRequest| std::future::pending::<Result<(), Failure>>());
    assert!(layer.layer(hanging).oneshot(plain_request(|_| ())).await.is_err());
    assert_eq!(fired(&layer.handle()), 1);
    assert_eq!(fired(&layer.with_stall(secs(1)).unwrap().handle()), 0);
}

#[test]
fn auto_traits_beyond_the_contract() {
    fn all<T: Send + Sync + Clone + 'static>() {}
    fn send<T: Send + Sync>() {}
    fn unpin<T: Unpin>() {}
    type Future = ResponseFuture<Ready<Result<ChatResponse<Events>, Failure>>, UntilEnd>;
    all::<TimeoutHandle>();
    send::<Future>();
    unpin::<StallEvents<Events>>();
    send::<StallEvents<Events>>();
    send::<StallBody<http_body_util::Full<bytes::Bytes>>>();
    unpin::<StallBody<http_body_util::Full<bytes::Bytes>>>();
}
