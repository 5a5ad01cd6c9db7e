//! The handle: snapshots, control and events.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::time::Duration;

use steadfast_breaker::{BreakerPolicy, CircuitBreakerLayer};
use steadfast_core::circuit::{CircuitCause, CircuitState};
use steadfast_core::{Failure, KeyedPolicy, Reason, Target};
use steadfast_testkit::CapturedEvents;
use support::*;
use tokio::{sync::broadcast::error::RecvError, time::Instant};
use tower::{Layer, Service, ServiceExt, service_fn};

/// Answers "!", or fails with the reason that the request names.
async fn serve(request: PlainRequest) -> Result<Reply, Failure> {
    match request.text.parse::<Reason>() {
        Ok(reason) => Err(Failure::new(reason, "")),
        Err(_) => Ok("!"),
    }
}

fn fails(reason: &'static str) -> PlainRequest {
    PlainRequest { text: reason, ..request(&openai()) }
}

#[tokio::test(start_paused = true)]
async fn controls_each_key() {
    let layer = CircuitBreakerLayer::new(strict()).unwrap().at_once();
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(serve));
    let mut passes =
        async |target: &Target| service.ready().await.unwrap().call(request(target)).await.is_ok();
    let (key, other) = (Some(openai()), openai().with_model("other"));
    assert!(handle.snapshot().is_empty() && handle.get(&key).is_none() && !handle.reset(&key));

    // Also before the first call.
    assert!(handle.force_open(&key) && !handle.force_open(&key));
    assert!(!passes(&openai()).await && passes(&other).await);
    assert!(handle.reset(&key));
    assert!(passes(&openai()).await);
    assert!(handle.isolate(&key));
    tokio::time::advance(Duration::from_secs(1_000_000)).await;
    assert!(!passes(&openai()).await);
    assert!(handle.force_closed(&key));
    assert!(passes(&openai()).await);
    assert!(!handle.trip(&key, Reason::Overloaded, secs(5)), "a forced state is kept");
    assert!(handle.reset(&key));
    assert!(handle.trip(&key, Reason::Overloaded, secs(5)));
    assert!(!passes(&openai()).await);
    let snapshot = handle.get(&key).unwrap();
    assert_eq!(
        (snapshot.circuit.state, snapshot.circuit.last_reason),
        (CircuitState::Open, Some(Reason::Overloaded))
    );
    assert_eq!(snapshot.circuit.remaining(Instant::now()), secs(5));
    assert!(handle.trip(&Some(other.clone()), Reason::Overloaded, secs(5)));
    assert_eq!(handle.reset_all(), 2);
    assert!(passes(&openai()).await && passes(&other).await);
    assert!(handle.isolate(&key));
    assert!(!passes(&openai()).await);
    assert!(handle.forget(&key) && !handle.forget(&key));
    assert!(passes(&openai()).await, "it begins anew");
}

#[tokio::test(start_paused = true)]
async fn shows_the_counts() {
    let policy = BreakerPolicy { lone: None, ..BreakerPolicy::default() };
    let layer = CircuitBreakerLayer::new(policy).unwrap().at_once();
    let mut service = layer.layer(service_fn(serve));
    let start = Instant::now();
    for reason in ["", "rate_limit", "network", "", "server_error", "format"] {
        let _ = service.ready().await.unwrap().call(fails(reason)).await;
    }
    let snapshot = layer.handle().snapshot().remove(0);
    assert_eq!(
        (snapshot.circuit.state, snapshot.circuit.since, snapshot.circuit.until),
        (CircuitState::Closed, start, None)
    );
    assert_eq!(
        (snapshot.circuit.calls, snapshot.circuit.failures, snapshot.circuit.consecutive),
        (5, 3, 1)
    );
    assert_eq!(snapshot.circuit.failure_rate(), Some(0.6));
    assert_eq!((snapshot.circuit.generation, snapshot.refused, snapshot.circuit.probes), (0, 0, 0));
    tokio::time::advance(secs(61)).await;
    let snapshot = layer.handle().snapshot().remove(0);
    assert_eq!(
        (snapshot.circuit.calls, snapshot.circuit.failure_rate(), snapshot.circuit.consecutive),
        (0, None, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn notifies_subscribers_and_never_waits_for_them() {
    let layer = CircuitBreakerLayer::new(strict()).unwrap().at_once();
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(serve));
    let mut events = handle.subscribe();
    let mut slow = handle.subscribe();
    // A subscriber may read the breaker when it is notified: no lock is held.
    let opened = Instant::now();
    let _ = service.ready().await.unwrap().call(fails("network")).await;
    let event = events.recv().await.unwrap();
    assert_eq!(handle.get(&event.key).unwrap().circuit.state, CircuitState::Open);
    assert_eq!(
        (event.transition.from, event.transition.to, event.transition.cause),
        (CircuitState::Closed, CircuitState::Open, CircuitCause::Consecutive)
    );
    assert_eq!((event.transition.reason, event.transition.at), (Some(Reason::Network), opened));
    assert_eq!((event.transition.until, event.transition.generation), (Some(opened + secs(30)), 1));
    tokio::time::advance(secs(20)).await;
    assert!(service.ready().await.unwrap().call(request(&openai())).await.is_ok());
    let reported = [events.recv().await.unwrap(), events.recv().await.unwrap()]
        .map(|event| (event.transition.to, event.transition.cause, event.transition.generation));
    let expected = [
        (CircuitState::HalfOpen, CircuitCause::Rested, 1),
        (CircuitState::Closed, CircuitCause::Recovered, 2),
    ];
    assert_eq!(reported, expected);
    for _ in 0..200 {
        handle.force_open(&Some(openai()));
        handle.reset(&Some(openai()));
    }
    assert!(matches!(slow.recv().await, Err(RecvError::Lagged(147))), "3 + 400 - 256");
    assert_eq!(slow.recv().await.unwrap().transition.cause, CircuitCause::Manual);
}

#[tokio::test(start_paused = true)]
async fn keeps_a_bounded_number_of_keys() {
    let keys = KeyedPolicy { capacity: 64, idle: secs(60) };
    let layer = CircuitBreakerLayer::new(BreakerPolicy { keys, ..strict() }).unwrap().at_once();
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(serve));
    handle.isolate(&Some(openai()));
    handle.trip(&Some(Target::new("tripped")), Reason::Billing, secs(100_000));
    for tenant in 0..5_000 {
        let target = Target::new(format!("tenant-{tenant}"));
        service.ready().await.unwrap().call(request(&target)).await.unwrap();
        assert!(handle.snapshot().len() <= 64);
        tokio::time::advance(secs(3)).await;
    }
    // Forced and open breakers are not evicted for being idle.
    assert_eq!(
        handle.get(&Some(openai())).map(|snapshot| snapshot.circuit.state),
        Some(CircuitState::Isolated)
    );
    let tripped = handle.get(&Some(Target::new("tripped")));
    assert_eq!(tripped.map(|snapshot| snapshot.circuit.state), Some(CircuitState::Open));
}

#[tokio::test(start_paused = true)]
async fn a_busy_key_is_not_evicted_for_idle_ones() {
    let keys = KeyedPolicy { capacity: 64, idle: secs(600) };
    let layer = CircuitBreakerLayer::new(BreakerPolicy { keys, ..strict() }).unwrap().at_once();
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(serve));
    service.ready().await.unwrap().call(request(&openai())).await.unwrap();
    // A breaker that was evicted starts again with generation 0.
    handle.reset(&Some(openai()));
    for tenant in 0..2_000 {
        for target in [openai(), Target::new(format!("tenant-{tenant}"))] {
            service.ready().await.unwrap().call(request(&target)).await.unwrap();
        }
        tokio::time::advance(secs(1)).await;
        assert_eq!(handle.get(&Some(openai())).unwrap().circuit.generation, 1);
    }
    assert!(handle.snapshot().len() <= 64);
}

/// The events of this layer, as `name fields`.
fn take(captured: &CapturedEvents) -> Vec<String> {
    let events = captured.take();
    let own = events.iter().filter_map(|event| event.strip_prefix("steadfast::breaker::"));
    own.map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn events_have_stable_names_and_no_unknown_keys() {
    let captured = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(captured.clone());
    let layer = CircuitBreakerLayer::new(strict()).unwrap().at_once();
    let mut service = layer.layer(service_fn(serve));
    for (wait, reason) in [(0, ""), (0, "network"), (1, ""), (20, ""), (0, "")] {
        tokio::time::advance(secs(wait)).await;
        let _ = service.ready().await.unwrap().call(fails(reason)).await;
    }
    let expected = ["opened", "refused", "half_opened", "probe", "closed"];
    let reported = take(&captured);
    assert_eq!(reported.len(), expected.len(), "no event for a call that passes: {reported:?}");
    for (event, name) in reported.iter().zip(expected) {
        assert!(event.starts_with(&format!("{name} key=openai/gpt-4o#main ")), "{event}");
    }

    // A key may be a secret: it is shown only by its label.
    for label in [false, true] {
        let layer = CircuitBreakerLayer::new(strict())
            .unwrap()
            .with_key(|_: &PlainRequest| "sk-secret".to_owned())
            .at_once();
        let layer =
            if label { layer.with_label(|key| format!("{} bytes", key.len())) } else { layer };
        let shown = format!("{layer:?} {:?}", layer.handle());
        assert!(!shown.contains("secret"), "{shown}");
        layer.handle().isolate(&"sk-secret".to_owned());
        let key = if label { "9 bytes" } else { "-" };
        let events = take(&captured);
        assert!(events.concat().starts_with(&format!("opened key={key} from=")), "{events:?}");
    }
}

/// Real threads on one key: every call is counted once.
#[test]
fn threads_on_one_key_lose_no_count() {
    const THREADS: u64 = 4;
    const CALLS: u64 = 5_000;
    let policy = BreakerPolicy {
        consecutive: None,
        failure_rate: None,
        window: Duration::from_secs(3_600),
        lone: None,
        ..BreakerPolicy::default()
    };
    let layer = CircuitBreakerLayer::new(policy).unwrap().at_once();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let mut service = layer.layer(service_fn(serve));
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async {
                    for call in 0..CALLS {
                        let reason = if (call + thread) % 10 == 0 { "network" } else { "" };
                        let _ = service.ready().await.unwrap().call(fails(reason)).await;
                    }
                });
            });
        }
    });
    let snapshot = layer.handle().snapshot().remove(0);
    assert_eq!(
        (snapshot.circuit.calls, snapshot.circuit.failures),
        (THREADS * CALLS, THREADS * CALLS / 10)
    );
}

#[tokio::test(start_paused = true)]
async fn breakers_outlive_their_layer_and_go_by_the_policy_of_the_next() {
    let policy = |failures| BreakerPolicy { consecutive: Some(failures), ..strict() };
    let old = CircuitBreakerLayer::new(policy(3)).unwrap().at_once();
    let (open, shut) = (openai(), openai().with_model("other"));
    let mut before = old.layer(service_fn(serve));
    let ask = |target: &Target| PlainRequest { text: "server_error", ..request(target) };
    for _ in 0..3 {
        let _ = before.ready().await.unwrap().call(ask(&open)).await;
    }
    let _ = before.ready().await.unwrap().call(ask(&shut)).await;
    let state =
        |target: &Target| old.handle().get(&Some(target.clone())).map(|one| one.circuit.state);
    assert_eq!(
        (state(&open), state(&shut)),
        (Some(CircuitState::Open), Some(CircuitState::Closed))
    );

    let new = CircuitBreakerLayer::new(policy(2)).unwrap().at_once().sharing(&old.handle());
    assert_eq!((new.policy().consecutive, new.handle().policy().consecutive), (Some(2), Some(2)));
    let mut after = new.layer(service_fn(serve));
    let refused = after.ready().await.unwrap().call(request(&open)).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::CircuitOpen, "what is open is open");
    let _ = after.ready().await.unwrap().call(ask(&shut)).await;
    assert_eq!(state(&shut), Some(CircuitState::Open), "the second of two, the first by the old");
    // New ones too, whichever layer makes them.
    let third = openai().with_model("third");
    for _ in 0..2 {
        let _ = before.ready().await.unwrap().call(ask(&third)).await;
    }
    assert_eq!(state(&third), Some(CircuitState::Open));
}

/// Callers can ask for any number of models that do not exist.
#[tokio::test(start_paused = true)]
async fn targets_that_never_answered_evict_none_that_did() {
    let keys = KeyedPolicy { capacity: 64, ..KeyedPolicy::default() };
    let layer = CircuitBreakerLayer::new(BreakerPolicy { keys, ..strict() }).unwrap().at_once();
    let mut service = layer.layer(service_fn(serve));
    for text in ["", "network"] {
        let asked = PlainRequest { text, ..request(&openai()) };
        let _ = service.ready().await.unwrap().call(asked).await;
    }
    tokio::time::advance(secs(5)).await;
    for n in 0..1_000 {
        let invented = openai().with_model(format!("invented-{n}"));
        let asked = PlainRequest { text: "network", ..request(&invented) };
        assert!(service.ready().await.unwrap().call(asked).await.is_err());
    }
    let known = layer.handle().get(&Some(openai())).unwrap();
    assert_eq!(known.circuit.state, CircuitState::Open);
    assert!(layer.handle().snapshot().len() <= 64);
}
