//! The layer around a mock service, driven by hand.
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

/// One call, which the mock answers with `$answer`.
macro_rules! call {
    ($service:expr, $provider:expr, $request:expr, $answer:expr) => {{
        let mut future = task::spawn($service.ready().await.unwrap().call($request));
        assert_pending!(future.poll());
        let (_, respond) = $provider.next_request().await.unwrap();
        match $answer {
            Ok(reply) => respond.send_response(reply),
            Err(failure) => respond.send_error::<Failure>(failure),
        }
        assert_ready!(future.poll())
    }};
}

#[tokio::test(start_paused = true)]
async fn passes_answers_and_refuses_without_a_call() {
    let (mock, mut provider) = mock();
    let layer = layer(strict());
    let mut service = layer.layer(mock);
    assert_eq!(call!(service, provider, request(&openai()), Ok("!")).unwrap(), "!");
    let failure: Failure =
        call!(service, provider, request(&openai()), Err(network())).unwrap_err();
    assert_eq!(failure.reason(), Reason::Network, "the failure of the inner service");

    tokio::time::advance(secs(10)).await;
    let refused = request(&openai());
    let log = refused.context.log.clone();
    let mut future = task::spawn(service.ready().await.unwrap().call(refused));
    let failure = assert_ready_err!(future.poll());
    assert_eq!(failure.reason(), Reason::CircuitOpen);
    assert_eq!(failure.retry_after(), Some(secs(5)));
    assert_eq!(failure.target(), Some(&openai()));
    assert_eq!((failure.attempts(), failure.evidence()), (0, "breaker"));
    assert_eq!((failure.retry(), failure.failover()), (Retry::No, Failover::NextTarget));
    assert!(failure.to_string().contains("openai/gpt-4o#main: the circuit breaker is open"));
    assert_eq!(log.to_string(), "breaker.refused openai/gpt-4o#main 5000ms");
    assert_pending!(provider.poll_request(), "the inner service was not called");
}

#[tokio::test(start_paused = true)]
async fn logs_its_actions_for_each_request() {
    let (mock, mut provider) = mock();
    let mut service = layer(strict()).layer(mock);
    let mut logs = vec![];
    for (wait, answer) in [(0, Err(network())), (15, Err(network())), (60, Ok("!")), (0, Ok("!"))] {
        tokio::time::advance(secs(wait)).await;
        let request = request(&openai());
        let log = request.context.log.clone();
        let _ = call!(service, provider, request, answer);
        logs.push(log.to_string());
    }
    assert_eq!(
        logs,
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
async fn each_target_has_a_breaker_and_calls_without_one_share_one() {
    let (mock, mut provider) = mock();
    let layer = layer(strict());
    let mut service = layer.layer(mock);
    let other = openai().with_model("gpt-4o-mini");
    assert!(call!(service, provider, request(&openai()), Err(network())).is_err());
    assert_eq!(call!(service, provider, request(&other), Ok("!")).unwrap(), "!");
    assert_eq!(call!(service, provider, PlainRequest::default(), Ok("!")).unwrap(), "!");
    let failure = service.ready().await.unwrap().call(request(&openai())).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::CircuitOpen);

    assert!(call!(service, provider, PlainRequest::default(), Err(network())).is_err());
    let failure = service.ready().await.unwrap().call(PlainRequest::default()).await;
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
async fn state_belongs_to_the_layer_and_not_to_the_service() {
    let layer = layer(strict());
    let (mock, mut provider) = mock();
    // One service per route, as axum does, and one per connection.
    let mut one = layer.layer(mock.clone());
    let mut two = layer.clone().layer(mock.clone());
    let mut three = one.clone();
    assert!(call!(one, provider, request(&openai()), Err(network())).is_err());
    for service in [&mut two, &mut three] {
        let failure = service.ready().await.unwrap().call(request(&openai())).await.unwrap_err();
        assert_eq!(failure.reason(), Reason::CircuitOpen);
    }
    // Another layer value has separate state.
    let mut other = self::layer(strict()).layer(mock);
    assert_eq!(call!(other, provider, request(&openai()), Ok("!")).unwrap(), "!");
}

#[tokio::test(start_paused = true)]
async fn a_closure_makes_the_key_of_any_request() {
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
    let mut send = async |host: &str, body| {
        let request = http::Request::get(format!("http://{host}/v1")).body(body).unwrap();
        service.ready().await.unwrap().call(request).await.map_err(|failure| failure.reason())
    };
    assert_eq!(send("a.test", "down").await, Err(Reason::Network));
    // No alternatives are known, but the policy has no rule for lone calls.
    assert_eq!(send("a.test", "fine").await, Err(Reason::CircuitOpen));
    assert_eq!(send("b.test", "fine").await, Ok("fine"));
    // One missing model does not take its host down.
    assert_eq!(send("b.test", "404").await, Err(Reason::ModelNotFound));
    assert_eq!(send("b.test", "fine").await, Ok("fine"));
}

#[tokio::test(start_paused = true)]
async fn a_missing_model_counts_only_for_a_key_that_covers_models() {
    // A target with a model covers it; other keys as configured.
    let missing = || Err::<Reply, _>(Failure::new(Reason::ModelNotFound, "no such model"));
    for (covers, target, refused) in [
        (None, openai(), true),
        (None, Target::new("openai"), false),
        (Some(Covers::ALL), Target::new("openai"), true),
        (Some(Covers::NONE), openai(), false),
    ] {
        let policy = BreakerPolicy { consecutive: None, lone: None, ..sensitive() };
        let layer = CircuitBreakerLayer::new(policy).unwrap().at_once();
        let layer = match covers {
            Some(covers) => layer.with_covers(covers),
            None => layer,
        };
        let mut service = layer.layer(service_fn(move |_: PlainRequest| async move { missing() }));
        for expected in [
            Reason::ModelNotFound,
            if refused { Reason::CircuitOpen } else { Reason::ModelNotFound },
        ] {
            let failure = service.ready().await.unwrap().call(request(&target)).await.unwrap_err();
            assert_eq!(failure.reason(), expected, "{target} {covers:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_keeps_the_readiness_of_the_inner_service() {
    let (mock, mut provider) = mock();
    let layer = layer(strict());
    let stack = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(mock);
    let mut service = stack.clone();
    assert!(call!(service, provider, request(&openai()), Err(network())).is_err());
    // The only permit is acquired by readiness, and not used by a refusal.
    for _ in 0..3 {
        let mut future = task::spawn(service.ready().await.unwrap().call(request(&openai())));
        assert_eq!(assert_ready_err!(future.poll()).reason(), Reason::CircuitOpen);
    }
    // It is still in the service, for the next call.
    let mut other = task::spawn(stack.clone());
    assert_pending!(other.enter(|cx, mut service| service.poll_ready(cx)));
    layer.handle().reset(&Some(openai()));
    let mut future = task::spawn(service.call(request(&openai())));
    assert_pending!(future.poll());
    answer(&mut provider).await;
    assert_eq!(assert_ready_ok!(future.poll()), "!");
    drop(future);
    // And released when the call is over.
    assert_ready_ok!(other.enter(|cx, mut service| service.poll_ready(cx)));
}

async fn answer(provider: &mut MockHandle) {
    let (_, respond) = provider.next_request().await.unwrap();
    respond.send_response("!");
}

#[tokio::test(start_paused = true)]
async fn readiness_and_its_errors_are_those_of_the_inner_service() {
    let (mock, mut provider) = tower_test::mock::pair::<PlainRequest, Reply>();
    let mut service = task::spawn(layer(strict()).layer(mock));
    provider.allow(0);
    assert_pending!(service.enter(|cx, mut service| service.poll_ready(cx)));
    provider.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.enter(|cx, mut service| service.poll_ready(cx)));
    provider.send_error(network());
    // An open breaker is no error of readiness; a closed inner service is.
    let failure = assert_ready_err!(service.enter(|cx, mut service| service.poll_ready(cx)));
    assert_eq!(failure.reason(), Reason::Network, "found in tower's boxed error");
}

#[tokio::test(start_paused = true)]
async fn does_not_count_refusals_callers_faults_and_long_answers() {
    let (mock, mut provider) = mock();
    let layer = layer(strict());
    let mut service = layer.layer(mock);
    for reason in [
        Reason::Format,
        Reason::ContextOverflow,
        Reason::ContentFilter,
        Reason::Safety,
        Reason::Exhausted,
        Reason::Budget,
        Reason::SpendCap,
        Reason::Cancelled,
    ] {
        let failure: Failure =
            call!(service, provider, request(&openai()), Err(Failure::new(reason, "")))
                .unwrap_err();
        assert_eq!(failure.reason(), reason);
    }
    let long =
        Failure::new(Reason::Timeout, "").with_time_limit(steadfast_core::TimeLimit::Makespan);
    assert!(call!(service, provider, request(&openai()), Err(long)).is_err());
    let snapshot = layer.handle().get(&Some(openai())).unwrap();
    assert_eq!(
        (snapshot.circuit.state, snapshot.circuit.calls, snapshot.circuit.consecutive),
        (CircuitState::Closed, 0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_few_lone_calls_pass() {
    let (mock, mut provider) = mock();
    let mut service = layer(sensitive()).layer(mock);
    let lone = || PlainRequest {
        context: CallContext::recording().with_target(openai()),
        ..PlainRequest::default()
    };
    assert!(call!(service, provider, lone(), Err(network())).is_err());
    let failure = service.ready().await.unwrap().call(lone()).await.unwrap_err();
    assert_eq!(failure.retry_after(), Some(secs(1)));
    tokio::time::advance(secs(1)).await;
    // A call with alternatives is refused.
    let failure = service.ready().await.unwrap().call(request(&openai())).await.unwrap_err();
    assert_eq!(failure.retry_after(), Some(secs(14)));
    for _ in 0..3 {
        let request = lone();
        let log = request.context.log.clone();
        assert_eq!(call!(service, provider, request, Ok("!")).unwrap(), "!");
        assert!(log.to_string().starts_with("breaker.probe openai/gpt-4o#main nowhere else to go"));
        tokio::time::advance(secs(1)).await;
    }
    assert_eq!(call!(service, provider, request(&openai()), Ok("!")).unwrap(), "!");
}

#[tokio::test(start_paused = true)]
async fn observes_only() {
    let (mock, mut provider) = mock();
    let layer = layer(BreakerPolicy { observe: true, ..strict() });
    let handle = layer.handle();
    let mut service = layer.layer(mock);
    assert!(call!(service, provider, request(&openai()), Err(network())).is_err());
    for _ in 0..3 {
        let request = request(&openai());
        let log = request.context.log.clone();
        assert_eq!(call!(service, provider, request, Ok("!")).unwrap(), "!");
        assert_eq!(log.to_string(), "breaker.would_refuse openai/gpt-4o#main 15000ms");
    }
    // Its state changes as if it had refused.
    let snapshot = handle.get(&Some(openai())).unwrap();
    assert_eq!(
        (snapshot.circuit.state, snapshot.refused, snapshot.circuit.calls),
        (CircuitState::Open, 3, 1)
    );
    tokio::time::advance(secs(15)).await;
    assert!(call!(service, provider, request(&openai()), Ok("!")).is_ok());
    assert_eq!(handle.get(&Some(openai())).unwrap().circuit.state, CircuitState::Closed);
    // Now it refuses.
    handle.set_observe(false);
    assert!(call!(service, provider, request(&openai()), Err(network())).is_err());
    let failure = service.ready().await.unwrap().call(request(&openai())).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::CircuitOpen);
}

#[tokio::test(start_paused = true)]
async fn works_with_towers_own_layers() {
    let stack = ServiceBuilder::new().layer(layer(strict())).buffer(4).timeout(secs(5)).service(
        service_fn(|request: PlainRequest| async move {
            match request.text {
                "hang" => std::future::pending::<Result<Reply, Failure>>().await,
                "fail" => Err(Failure::new(Reason::Overloaded, "")),
                _ => Ok("!"),
            }
        }),
    );
    let mut service = stack;
    let failing = PlainRequest { text: "fail", ..request(&openai()) };
    let failure = service.ready().await.unwrap().call(failing).await;
    assert_eq!(
        failure.unwrap_err().reason(),
        Reason::Overloaded,
        "found in the buffer's boxed error"
    );
    assert_eq!(service.ready().await.unwrap().call(request(&openai())).await.unwrap(), "!");
    // An inner timeout counts.
    let hanging = PlainRequest { text: "hang", ..request(&openai()) };
    let failure = service.ready().await.unwrap().call(hanging).await;
    assert_eq!(failure.unwrap_err().reason(), Reason::Unknown);
    let failure = service.ready().await.unwrap().call(request(&openai())).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::CircuitOpen);
}

#[tokio::test(start_paused = true)]
async fn an_infallible_service_works_too() {
    let mut service = layer(strict()).layer(service_fn(|request: PlainRequest| async move {
        Ok::<_, Infallible>(request.text)
    }));
    assert_eq!(service.ready().await.unwrap().call(request(&openai())).await.unwrap(), "?");
}

#[tokio::test(start_paused = true)]
async fn slow_to_begin_is_measured_from_admission() {
    let slow = Some(steadfast_core::circuit::SlowPolicy { after: secs(10), rate: 1.0 });
    let policy = BreakerPolicy { slow, min_calls: 2, ..strict() };
    let (mock, mut provider) = mock();
    let layer = layer(policy);
    let mut service = layer.layer(mock);
    for _ in 0..2 {
        let mut future = task::spawn(service.ready().await.unwrap().call(request(&openai())));
        assert_pending!(future.poll());
        let (_, respond) = provider.next_request().await.unwrap();
        tokio::time::advance(secs(11)).await;
        respond.send_response("!");
        assert_ready_ok!(future.poll());
    }
    let snapshot = layer.handle().get(&Some(openai())).unwrap();
    assert_eq!(
        (snapshot.circuit.state, snapshot.circuit.slow_rate()),
        (CircuitState::Open, Some(1.0))
    );
}
