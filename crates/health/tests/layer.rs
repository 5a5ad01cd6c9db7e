//! The layer around services: who called, what others see, and what a call costs.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use futures_util::StreamExt;
use parking_lot::Mutex;
use steadfast_core::{Call, CallContext, Failure, KeyedPolicy, Reason, RecoveryLog, WithContext};
use steadfast_health::{HealthPolicy, HealthStatus, ProviderHealthLayer};
use steadfast_testkit::{Action, Chat, Exchange, Probe, ms, secs};
use tower::{Layer, Service, ServiceExt, service_fn};

type Request = WithContext<()>;

fn request(provider: &str, agent: &str) -> Request {
    let mut request = WithContext::new(());
    *request.context_mut() = CallContext::recording().with_target(provider).with_agent(agent);
    request
}

/// Whether the next calls succeed.
#[derive(Clone, Default)]
struct Model(Arc<Mutex<Option<Reason>>>);

impl Model {
    fn fails(&self, reason: Reason) {
        *self.0.lock() = Some(reason);
    }

    fn is_well(&self) {
        *self.0.lock() = None;
    }

    fn service(
        &self,
    ) -> impl Service<Request, Response = (), Error = Failure, Future: Send> + Clone + use<> {
        let this = self.clone();
        service_fn(move |_: Request| {
            let failure = this.0.lock().map(|reason| Failure::new(reason, "as asked for"));
            async move { failure.map_or(Ok(()), Err) }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn agents_of_one_provider_are_seen_together_and_others_are_not_touched() {
    let layer = ProviderHealthLayer::default().at_once();
    let (handle, degraded, model) = (layer.handle(), layer.degraded(), Model::default());
    let call = async |provider: &str, agent: &str| {
        let request = request(provider, agent);
        let log = request.context().log.clone();
        let _ = layer.layer(model.service()).oneshot(request).await;
        log.to_string()
    };
    let mut watch = handle.watch();
    model.fails(Reason::ServerError);
    assert_eq!(call("a", "one").await, "");
    assert_eq!(call("b", "one").await, "");
    assert!(degraded.is_empty() && !watch.has_changed().unwrap());
    assert_eq!(call("a", "two").await, "health.degraded a server_error agents");
    assert_eq!(degraded.list(), ["a".into()]);
    assert!(watch.has_changed().unwrap());
    let snapshot = watch.borrow_and_update().clone();
    assert_eq!(snapshot.get("a").unwrap().status, HealthStatus::Degraded);
    assert_eq!(snapshot.get("b").unwrap().status, HealthStatus::Healthy);
    assert_eq!(snapshot.degraded().count(), 1);

    model.is_well();
    assert_eq!(call("b", "two").await, "");
    assert_eq!((call("a", "one").await, call("a", "one").await), (String::new(), String::new()));
    assert_eq!(call("a", "two").await, "health.recovered a successes");
    assert!(degraded.is_empty());
    let a = watch.borrow_and_update().get("a").cloned().unwrap();
    assert_eq!((a.status, a.degradations), (HealthStatus::Healthy, 1));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_and_one_that_hangs() {
    let layer = ProviderHealthLayer::new(HealthPolicy::comis()).unwrap().at_once();
    let handle = layer.handle();
    let hangs = service_fn(|_: Request| std::future::pending::<Result<(), Failure>>());
    for agent in ["one", "two", "three"] {
        let call = layer.layer(hangs).oneshot(request("a", agent));
        assert!(tokio::time::timeout(secs(600), call).await.is_err());
    }
    let a = handle.get("a").unwrap();
    assert_eq!((a.status, a.calls, a.under_way), (HealthStatus::Healthy, 0, 0));
    // With a time limit inside, a hang is a failure.
    let limited = tower::timeout::TimeoutLayer::new(secs(60)).layer(hangs);
    for agent in ["one", "two"] {
        assert!(layer.layer(limited.clone()).oneshot(request("a", agent)).await.is_err());
        tokio::time::advance(ms(1)).await;
    }
    // 60 s apart: each is over when the other comes.
    assert_eq!(handle.get("a").unwrap().status, HealthStatus::Healthy);
    let both = [request("a", "one"), request("a", "two")]
        .map(|request| tokio::spawn(layer.layer(limited.clone()).oneshot(request)));
    for call in both {
        assert!(call.await.unwrap().is_err());
    }
    assert_eq!(handle.get("a").unwrap().status, HealthStatus::Degraded);
}

#[tokio::test(start_paused = true)]
async fn first_content_is_a_success_and_a_broken_stream_a_failure() {
    let layer = ProviderHealthLayer::new(HealthPolicy::comis()).unwrap();
    let handle = layer.handle();
    let counted = || {
        let probe = handle.get("probe").unwrap();
        (probe.calls, probe.failures, probe.under_way)
    };
    let (probe, script) = Probe::new(Chat);
    let service = layer.layer(probe);
    let call = async |action: Action, agent: &str| {
        script.script([action]);
        let mut request = Chat.request();
        request.context.identity_mut().agent = Some(agent.into());
        service.clone().oneshot(request).await.unwrap()
    };
    let (_, mut stream) = call(Action::hang_late(), "one").await.into_parts();
    assert_eq!(counted(), (0, 0, 1), "a head is no content");
    assert!(stream.next().await.is_some());
    assert_eq!(counted(), (1, 0, 0));
    drop(stream);
    assert_eq!(counted(), (1, 0, 0), "the caller went away");

    for (agent, degraded) in [("one", false), ("two", true)] {
        let broken = call(Action::fail_late(Reason::Network), agent).await;
        assert!(broken.collect().await.is_err());
        assert_eq!(layer.degraded().contains("probe"), degraded);
    }
    // A probe that is read no further than its first content is evidence enough.
    let (_, mut stream) = call(Action::hang_late(), "one").await.into_parts();
    assert!(layer.degraded().contains("probe"));
    assert!(stream.next().await.is_some());
    assert!(layer.degraded().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_operator_and_a_health_check_are_heard() {
    let layer = ProviderHealthLayer::default();
    let (handle, degraded) = (layer.handle(), layer.degraded());
    let down = Failure::new(Reason::Network, "refused");
    // A checker is one agent, however often it checks.
    for failures in 1..=3 {
        assert!(degraded.is_empty());
        handle.probed("a", Err(&down));
        assert_eq!(handle.get("a").unwrap().failing_agents, u32::from(failures < 3));
    }
    assert!(degraded.contains("a") && !degraded.is_probe_due("a", tokio::time::Instant::now()));
    handle.probed("a", Ok(()));
    assert!(degraded.is_probe_due("a", tokio::time::Instant::now()), "the next may follow at once");
    for _ in 1..3 {
        handle.probed("a", Ok(()));
    }
    assert!(degraded.is_empty());

    assert!(handle.force("b", HealthStatus::Degraded));
    assert!(!handle.force("b", HealthStatus::Degraded), "it is already");
    for _ in 0..9 {
        handle.probed("b", Ok(()));
    }
    assert!(degraded.contains("b") && handle.get("b").unwrap().forced);
    assert_eq!((handle.reset_all(), handle.reset("b"), handle.reset("c")), (1, false, false));
    assert!(degraded.is_empty() && !handle.get("b").unwrap().forced);

    handle.force("b", HealthStatus::Degraded);
    handle.retain(|provider| provider == "a");
    assert!(degraded.is_empty(), "what is not configured is not degraded");
    assert_eq!(handle.get("b"), None);
}

#[tokio::test(start_paused = true)]
async fn a_checker_and_a_caller_are_two_agents() {
    let layer = ProviderHealthLayer::default().at_once();
    let (handle, model) = (layer.handle(), Model::default());
    handle.probed("a", Err(&Failure::new(Reason::Network, "refused")));
    model.fails(Reason::ServerError);
    assert!(layer.layer(model.service()).oneshot(request("a", "one")).await.is_err());
    assert!(layer.degraded().contains("a"));
}

#[tokio::test(start_paused = true)]
async fn a_new_layer_goes_on_where_the_old_one_was() {
    let old = ProviderHealthLayer::default();
    old.handle().force("a", HealthStatus::Degraded);
    let new = ProviderHealthLayer::new(HealthPolicy::comis()).unwrap().sharing(&old.handle());
    assert!(new.degraded().contains("a"));
    assert_eq!(old.handle().policy(), HealthPolicy::comis());
    new.handle().reset("a");
    assert!(old.degraded().is_empty());
    let off = ProviderHealthLayer::off().sharing(&old.handle());
    assert_eq!((off.policy(), old.handle().policy()), (None, HealthPolicy::comis()));
}

#[tokio::test(start_paused = true)]
async fn providers_are_bounded_and_those_that_are_forgotten_are_not_degraded() {
    let keys = KeyedPolicy { capacity: 16, ..KeyedPolicy::default() };
    let policy = HealthPolicy { providers: keys, ..HealthPolicy::default() };
    let layer = ProviderHealthLayer::new(policy).unwrap();
    let handle = layer.handle();
    let down = Failure::new(Reason::Network, "refused");
    for number in 0..200 {
        let name = number.to_string();
        for _ in 0..3 {
            handle.probed(&name, Err(&down));
        }
        assert!(handle.snapshot().providers.len() <= 16);
    }
    let known = handle.snapshot();
    let mut degraded = layer.degraded().list();
    degraded.sort();
    let names: Vec<_> = known.degraded().map(|provider| provider.provider.clone()).collect();
    assert_eq!(names, degraded);
    assert_eq!(names.len(), known.providers.len());
}

#[tokio::test(start_paused = true)]
async fn an_off_layer_hands_on_the_log() {
    let layer = ProviderHealthLayer::off();
    let log = RecoveryLog::enabled();
    let service = layer.layer(service_fn(async |_: http::Request<()>| {
        Ok::<_, Failure>(http::Response::new(String::new()))
    }));
    let mut request = http::Request::new(());
    request.context_mut().log = log;
    let reply = service.oneshot(request).await.unwrap();
    assert!(reply.extensions().get::<RecoveryLog>().is_some());
    assert!(layer.handle().snapshot().providers.is_empty());
}
