//! The layer around a service of somebody else's types, driven by hand.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::convert::Infallible;

use steadfast_breaker::{BreakerPolicy, CircuitBreakerLayer, Covers};
use steadfast_core::circuit::CircuitState;
use steadfast_core::{CallContext, Failover, Failure, Reason, Retry, Target};
use support::*;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer, service_fn};

fn layer(
    policy: BreakerPolicy,
) -> CircuitBreakerLayer<Option<Target>, steadfast_breaker::ByTarget, steadfast_core::AtOnce> {
    CircuitBreakerLayer::new(policy).unwrap().at_once()
}

/// One call that the mock answers so.
macro_rules! call {
    ($service:expr, $hand:expr, $ask:expr, $answer:expr) => {{
        let mut future = task::spawn($service.ready().await.unwrap().call($ask));
        assert_pending!(future.poll());
        let (_, respond) = $hand.next_request().await.unwrap();
        match $answer {
            Ok(reply) => respond.send_response(reply),
            Err(failure) => respond.send_error::<Failure>(failure),
        }
        assert_ready!(future.poll())
    }};
}

#[tokio::test(start_paused = true)]
async fn passes_what_passes_and_refuses_without_asking() {
    let (mock, mut hand) = mock();
    let layer = layer(strict());
    let mut service = layer.layer(mock);
    assert_eq!(call!(service, hand, ask(&openai()), Ok("!")).unwrap(), "!");
    let failure: Failure = call!(service, hand, ask(&openai()), Err(network())).unwrap_err();
    assert_eq!(failure.reason(), Reason::Network, "the inner service's own");

    tokio::time::advance(secs(10)).await;
    let refused = ask(&openai());
    let log = refused.1.log.clone();
    let mut future = task::spawn(service.ready().await.unwrap().call(refused));
    let failure = assert_ready_err!(future.poll());
    assert_eq!(failure.reason(), Reason::CircuitOpen);
    assert_eq!(failure.retry_after(), Some(secs(20)));
    assert_eq!(failure.target(), Some(&openai()));
    assert_eq!((failure.attempts(), failure.evidence()), (0, "breaker"));
    assert_eq!((failure.retry(), failure.failover()), (Retry::No, Failover::NextTarget));
    assert!(failure.to_string().contains("openai/gpt-4o#main: the circuit breaker is open"));
    assert_eq!(log.to_string(), "breaker.refused openai/gpt-4o#main 20000ms");
    assert_pending!(hand.poll_request(), "the inner service was not called");
}

#[tokio::test(start_paused = true)]
async fn tells_the_log_of_each_request_what_it_did_with_it() {
    let (mock, mut hand) = mock();
    let mut service = layer(strict()).layer(mock);
    let mut told = vec![];
    for (wait, answer) in [(0, Err(network())), (15, Err(network())), (60, Ok("!")), (0, Ok("!"))] {
        tokio::time::advance(secs(wait)).await;
        let ask = ask(&openai());
        let log = ask.1.log.clone();
        let _ = call!(service, hand, ask, answer);
        told.push(log.to_string());
    }
    assert_eq!(
        told,
        [
            "breaker.opened openai/gpt-4o#main network 30000ms consecutive",
            "breaker.probe openai/gpt-4o#main; \
             breaker.opened openai/gpt-4o#main network 60000ms probe_failed",
            "breaker.probe openai/gpt-4o#main; breaker.closed openai/gpt-4o#main recovered",
            "",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn each_target_has_its_own_and_those_without_share_one() {
    let (mock, mut hand) = mock();
    let layer = layer(strict());
    let mut service = layer.layer(mock);
    let other = openai().with_model("gpt-4o-mini");
    assert!(call!(service, hand, ask(&openai()), Err(network())).is_err());
    assert_eq!(call!(service, hand, ask(&other), Ok("!")).unwrap(), "!");
    assert_eq!(call!(service, hand, Ask("?", CallContext::new()), Ok("!")).unwrap(), "!");
    let failure = service.ready().await.unwrap().call(ask(&openai())).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::CircuitOpen);

    assert!(call!(service, hand, Ask("?", CallContext::new()), Err(network())).is_err());
    let failure = service.ready().await.unwrap().call(Ask("?", CallContext::new())).await;
    assert_eq!(failure.unwrap_err().target(), None);
    let mut states: Vec<_> =
        layer.handle().snapshot().into_iter().map(|one| (one.key, one.circuit.state)).collect();
    states.sort_by_key(|(key, _)| key.as_ref().map(ToString::to_string));
    let expected = [
        (None, CircuitState::Open),
        (Some(openai()), CircuitState::Open),
        (Some(other), CircuitState::Closed),
    ];
    assert_eq!(states, expected);
}

#[tokio::test(start_paused = true)]
async fn state_is_the_layers_and_not_the_services() {
    let layer = layer(strict());
    let (mock, mut hand) = mock();
    // One service per route, as axum does, and one per connection.
    let mut one = layer.layer(mock.clone());
    let mut two = layer.clone().layer(mock.clone());
    let mut three = one.clone();
    assert!(call!(one, hand, ask(&openai()), Err(network())).is_err());
    for service in [&mut two, &mut three] {
        let failure = service.ready().await.unwrap().call(ask(&openai())).await.unwrap_err();
        assert_eq!(failure.reason(), Reason::CircuitOpen);
    }
    // Another layer value is another state.
    let mut other = self::layer(strict()).layer(mock);
    assert_eq!(call!(other, hand, ask(&openai()), Ok("!")).unwrap(), "!");
}

#[tokio::test(start_paused = true)]
async fn by_a_closure_over_somebody_elses_request() {
    let layer = CircuitBreakerLayer::new(strict())
        .unwrap()
        .with_key(|request: &http::Request<&'static str>| request.uri().host().map(str::to_owned))
        .at_once();
    let mut service = layer.layer(service_fn(|request: http::Request<&'static str>| async move {
        match request.into_body() {
            "down" => Err(network()),
            "404" => Err(Failure::new(Reason::ModelNotFound, "no such model")),
            body => Ok(body),
        }
    }));
    let mut ask = async |host: &str, body| {
        let request = http::Request::get(format!("http://{host}/v1")).body(body).unwrap();
        service.ready().await.unwrap().call(request).await.map_err(|failure| failure.reason())
    };
    assert_eq!(ask("a.test", "down").await, Err(Reason::Network));
    // No alternatives are known of, but the policy has no panic rule.
    assert_eq!(ask("a.test", "fine").await, Err(Reason::CircuitOpen));
    assert_eq!(ask("b.test", "fine").await, Ok("fine"));
    // One missing model does not take its host down.
    assert_eq!(ask("b.test", "404").await, Err(Reason::ModelNotFound));
    assert_eq!(ask("b.test", "fine").await, Ok("fine"));
}

#[tokio::test(start_paused = true)]
async fn a_key_as_narrow_as_a_model_believes_that_it_is_missing() {
    // A target with a model does so by itself; others when they say so.
    let missing = || Err::<Reply, _>(Failure::new(Reason::ModelNotFound, "no such model"));
    for (covers, target, refused) in [
        (None, openai(), true),
        (None, Target::new("openai"), false),
        (Some(Covers::ALL), Target::new("openai"), true),
        (Some(Covers::NONE), openai(), false),
    ] {
        let policy = BreakerPolicy { consecutive: None, lone: None, ..touchy() };
        let layer = CircuitBreakerLayer::new(policy).unwrap().at_once();
        let layer = match covers {
            Some(covers) => layer.with_covers(covers),
            None => layer,
        };
        let mut service = layer.layer(service_fn(move |_: Ask| async move { missing() }));
        for expected in [
            Reason::ModelNotFound,
            if refused { Reason::CircuitOpen } else { Reason::ModelNotFound },
        ] {
            let failure = service.ready().await.unwrap().call(ask(&target)).await.unwrap_err();
            assert_eq!(failure.reason(), expected, "{target} {covers:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_keeps_the_readiness_of_what_is_inside() {
    let (mock, mut hand) = mock();
    let layer = layer(strict());
    let stack = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(mock);
    let mut service = stack.clone();
    assert!(call!(service, hand, ask(&openai()), Err(network())).is_err());
    // The only permit is taken by readiness, and not used up by a refusal.
    for _ in 0..3 {
        let mut future = task::spawn(service.ready().await.unwrap().call(ask(&openai())));
        assert_eq!(assert_ready_err!(future.poll()).reason(), Reason::CircuitOpen);
    }
    // It is still in the service, for the next call.
    let mut other = task::spawn(stack.clone());
    assert_pending!(other.enter(|cx, mut service| service.poll_ready(cx)));
    layer.handle().reset(&Some(openai()));
    let mut future = task::spawn(service.call(ask(&openai())));
    assert_pending!(future.poll());
    answer(&mut hand).await;
    assert_eq!(assert_ready_ok!(future.poll()), "!");
    drop(future);
    // And free when the call is over.
    assert_ready_ok!(other.enter(|cx, mut service| service.poll_ready(cx)));
}

async fn answer(hand: &mut Hand) {
    let (_, respond) = hand.next_request().await.unwrap();
    respond.send_response("!");
}

#[tokio::test(start_paused = true)]
async fn readiness_is_the_inner_services_and_its_end_is_told() {
    let (mock, mut hand) = tower_test::mock::pair::<Ask, Reply>();
    let mut service = task::spawn(layer(strict()).layer(mock));
    hand.allow(0);
    assert_pending!(service.enter(|cx, mut service| service.poll_ready(cx)));
    hand.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.enter(|cx, mut service| service.poll_ready(cx)));
    hand.send_error(network());
    // An open breaker is no error of readiness; a service that has ended is.
    let failure = assert_ready_err!(service.enter(|cx, mut service| service.poll_ready(cx)));
    assert_eq!(failure.reason(), Reason::Network, "found in tower's box");
}

#[tokio::test(start_paused = true)]
async fn counts_no_refusal_no_callers_fault_and_no_impatience() {
    let (mock, mut hand) = mock();
    let layer = layer(strict());
    let mut service = layer.layer(mock);
    for reason in [
        Reason::Format,
        Reason::ContextOverflow,
        Reason::ContentFilter,
        Reason::Safety,
        Reason::Exhausted,
        Reason::Budget,
        Reason::Cancelled,
    ] {
        let failure: Failure =
            call!(service, hand, ask(&openai()), Err(Failure::new(reason, ""))).unwrap_err();
        assert_eq!(failure.reason(), reason);
    }
    let long =
        Failure::new(Reason::Timeout, "").with_time_limit(steadfast_core::TimeLimit::Makespan);
    assert!(call!(service, hand, ask(&openai()), Err(long)).is_err());
    let seen = layer.handle().get(&Some(openai())).unwrap();
    assert_eq!(
        (seen.circuit.state, seen.circuit.calls, seen.circuit.consecutive),
        (CircuitState::Closed, 0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn alone_a_little_passes() {
    let (mock, mut hand) = mock();
    let mut service = layer(touchy()).layer(mock);
    let lone = || Ask("?", CallContext::recording().with_target(openai()));
    assert!(call!(service, hand, lone(), Err(network())).is_err());
    let failure = service.ready().await.unwrap().call(lone()).await.unwrap_err();
    assert_eq!(failure.retry_after(), Some(secs(1)));
    tokio::time::advance(secs(1)).await;
    // Whoever has somewhere else to go, goes there.
    let failure = service.ready().await.unwrap().call(ask(&openai())).await.unwrap_err();
    assert_eq!(failure.retry_after(), Some(secs(29)));
    for _ in 0..3 {
        let ask = lone();
        let log = ask.1.log.clone();
        assert_eq!(call!(service, hand, ask, Ok("!")).unwrap(), "!");
        assert!(log.to_string().starts_with("breaker.probe openai/gpt-4o#main nowhere else to go"));
        tokio::time::advance(secs(1)).await;
    }
    assert_eq!(call!(service, hand, ask(&openai()), Ok("!")).unwrap(), "!");
}

#[tokio::test(start_paused = true)]
async fn observes_only() {
    let (mock, mut hand) = mock();
    let layer = layer(BreakerPolicy { observe: true, ..strict() });
    let handle = layer.handle();
    let mut service = layer.layer(mock);
    assert!(call!(service, hand, ask(&openai()), Err(network())).is_err());
    for _ in 0..3 {
        let ask = ask(&openai());
        let log = ask.1.log.clone();
        assert_eq!(call!(service, hand, ask, Ok("!")).unwrap(), "!");
        assert_eq!(log.to_string(), "breaker.would_refuse openai/gpt-4o#main 30000ms");
    }
    // It goes through its states as if it had refused.
    let seen = handle.get(&Some(openai())).unwrap();
    assert_eq!((seen.circuit.state, seen.refused, seen.circuit.calls), (CircuitState::Open, 3, 1));
    tokio::time::advance(secs(15)).await;
    assert!(call!(service, hand, ask(&openai()), Ok("!")).is_ok());
    assert_eq!(handle.get(&Some(openai())).unwrap().circuit.state, CircuitState::Closed);
    // In earnest now.
    handle.set_observe(false);
    assert!(call!(service, hand, ask(&openai()), Err(network())).is_err());
    let failure = service.ready().await.unwrap().call(ask(&openai())).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::CircuitOpen);
}

#[tokio::test(start_paused = true)]
async fn mixes_with_towers_own_layers() {
    let stack = ServiceBuilder::new().layer(layer(strict())).buffer(4).timeout(secs(5)).service(
        service_fn(|ask: Ask| async move {
            match ask.0 {
                "hang" => std::future::pending::<Result<Reply, Failure>>().await,
                "fail" => Err(Failure::new(Reason::Overloaded, "")),
                _ => Ok("!"),
            }
        }),
    );
    let mut service = stack;
    let failure = service.ready().await.unwrap().call(Ask("fail", ask(&openai()).1)).await;
    assert_eq!(failure.unwrap_err().reason(), Reason::Overloaded, "found in the buffer's box");
    assert_eq!(service.ready().await.unwrap().call(ask(&openai())).await.unwrap(), "!");
    // A timeout inside counts.
    let failure = service.ready().await.unwrap().call(Ask("hang", ask(&openai()).1)).await;
    assert_eq!(failure.unwrap_err().reason(), Reason::Unknown);
    let failure = service.ready().await.unwrap().call(ask(&openai())).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::CircuitOpen);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_can_not_fail_is_served_too() {
    let mut service =
        layer(strict()).layer(service_fn(|ask: Ask| async move { Ok::<_, Infallible>(ask.0) }));
    assert_eq!(service.ready().await.unwrap().call(ask(&openai())).await.unwrap(), "?");
}

#[tokio::test(start_paused = true)]
async fn slow_to_begin_is_measured_from_admission() {
    let slow = Some(steadfast_core::circuit::SlowPolicy { after: secs(10), rate: 1.0 });
    let policy = BreakerPolicy { slow, min_calls: 2, ..strict() };
    let (mock, mut hand) = mock();
    let layer = layer(policy);
    let mut service = layer.layer(mock);
    for _ in 0..2 {
        let mut future = task::spawn(service.ready().await.unwrap().call(ask(&openai())));
        assert_pending!(future.poll());
        let (_, respond) = hand.next_request().await.unwrap();
        tokio::time::advance(secs(11)).await;
        respond.send_response("!");
        assert_ready_ok!(future.poll());
    }
    let seen = layer.handle().get(&Some(openai())).unwrap();
    assert_eq!((seen.circuit.state, seen.circuit.slow_rate()), (CircuitState::Open, Some(1.0)));
}
