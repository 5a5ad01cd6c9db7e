//! Steps are given to whoever observes them, as they happen.

use std::{convert::Infallible, sync::Arc, time::Duration};

use parking_lot::Mutex;
use steadfast_core::{
    AtOnce, Call, CallContext, Lease, MAX_STEPS, OnStepLayer, Reason, RecoveryLog, Step, Target,
    Track, UntilEnd, WithContext,
};
use tower::{ServiceBuilder, ServiceExt, service_fn};

type Request = WithContext<&'static str>;

/// In place of layers and a client: asks twice, and returns its log.
async fn inner(request: Request) -> Result<RecoveryLog, Infallible> {
    let log = request.context().log.clone();
    log.count_attempt();
    log.record(|| {
        Step::new("retry", "retried")
            .with_target(Some(&Target::new("openai")))
            .with_reason(Reason::Overloaded)
            .with_wait(Duration::from_millis(500))
    });
    log.count_attempt();
    log.record(|| Step::new("retry", "gave_up"));
    Ok(log)
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Step>>>);

impl Seen {
    fn layer(&self) -> OnStepLayer {
        let seen = self.clone();
        OnStepLayer::new(move |step| seen.0.lock().push(step.clone()))
    }

    fn texts(&self) -> Vec<String> {
        self.0.lock().iter().map(ToString::to_string).collect()
    }
}

async fn call(layer: OnStepLayer, context: CallContext) -> RecoveryLog {
    let service = ServiceBuilder::new().layer(layer).service(service_fn(inner));
    let request = Request::new("any").with_context(context);
    service.oneshot(request).await.unwrap()
}

const BOTH: [&str; 2] = ["retry.retried openai overloaded 500ms", "retry.gave_up"];

#[tokio::test(start_paused = true)]
async fn also_without_a_log_of_the_callers_and_then_nothing_is_kept() {
    let seen = Seen::default();
    let log = call(
        seen.layer(),
        CallContext::new().with_tenant("acme").with_target(Target::new("p").with_model("m")),
    )
    .await;
    assert_eq!(seen.texts(), BOTH);
    assert_eq!((log.steps(), log.is_empty(), log.attempts()), (vec![], true, 2));
    let steps = seen.0.lock();
    assert_eq!([steps[0].attempts, steps[1].attempts], [1, 2]);
    assert_eq!(steps[0].identity.as_ref().unwrap().tenant.as_deref(), Some("acme"));
    assert_eq!(steps[0].model.as_deref(), Some("m"));
}

#[tokio::test(start_paused = true)]
async fn the_callers_log_keeps_them_as_it_would_without() {
    let seen = Seen::default();
    let context = CallContext::recording().with_session("s");
    let callers = context.log.clone();
    tokio::time::advance(Duration::from_secs(3)).await;
    let log = call(seen.layer(), context).await;
    assert_eq!(seen.texts(), BOTH);
    assert_eq!(callers.steps(), *seen.0.lock());
    assert_eq!((log.steps(), log.to_string()), (callers.steps(), callers.to_string()));
    assert_eq!((log.attempts(), callers.attempts()), (2, 2));
    assert_eq!(callers.steps()[0].at, Duration::from_secs(3), "since the caller's log was made");
    // What comes after the answer's head is seen, too, and beyond what a log keeps.
    for _ in 0..MAX_STEPS {
        log.record(|| Step::new("recover", "resumed"));
    }
    assert_eq!((seen.0.lock().len(), callers.steps().len()), (MAX_STEPS + 2, MAX_STEPS));
    assert_eq!(callers.dropped(), 2);
}

#[tokio::test]
async fn several_observe_and_a_panic_of_one_breaks_nothing() {
    let (outer, second) = (Seen::default(), Seen::default());
    let seen = second.clone();
    let layer = OnStepLayer::new(|step| panic!("at {step}"))
        .and(move |step| seen.0.lock().push(step.clone()));
    let service =
        ServiceBuilder::new().layer(outer.layer()).layer(layer).service(service_fn(inner));
    let callers = RecoveryLog::enabled();
    let context = CallContext::new().with_log(callers.clone());
    service.oneshot(Request::new("any").with_context(context)).await.unwrap();
    assert_eq!(
        (outer.texts(), second.texts()),
        (BOTH.map(str::to_owned).to_vec(), BOTH.map(str::to_owned).to_vec())
    );
    assert_eq!((callers.steps().len(), callers.attempts()), (2, 2));
}

#[tokio::test]
async fn nobody_is_given_anything() {
    assert!(!call(OnStepLayer::none(), CallContext::new()).await.is_enabled());
}

#[test]
fn the_observer_may_read_the_callers_log() {
    let callers = RecoveryLog::enabled();
    let (log, lengths) = (callers.clone(), Arc::new(Mutex::new(Vec::new())));
    let seen = lengths.clone();
    let layer = OnStepLayer::new(move |_| seen.lock().push(log.steps().len()));
    let context = CallContext::new().with_log(callers);
    tokio_test::block_on(call(layer, context));
    assert_eq!(*lengths.lock(), [1, 2]);
}

#[test]
fn an_http_response_carries_the_log_of_its_call() {
    let reply = || http::Response::new(http_body_util::Full::new(bytes::Bytes::from("any")));
    let log = RecoveryLog::enabled();
    log.record(|| Step::new("retry", "retried"));
    let mut tracked = UntilEnd.track(reply());
    UntilEnd.attach(&mut tracked, Lease::idle().with_log(log));
    assert_eq!(tracked.extensions().get::<RecoveryLog>().unwrap().to_string(), "retry.retried");
    // Without a log there is nothing to carry.
    let mut tracked = UntilEnd.track(reply());
    UntilEnd.attach(&mut tracked, Lease::idle());
    assert!(tracked.extensions().is_empty());
    let mut value = AtOnce.track(7);
    AtOnce.attach(&mut value, Lease::idle());
    assert_eq!(value, 7);
}

#[test]
fn any_request_can_have_a_context() {
    let mut request = WithContext::from("any".to_owned());
    request.push_str(" text");
    request.context_mut().attempts = 2;
    assert_eq!((request.len(), request.context().attempts), (8, 2));
    let (length, context) = request.map(|text| text.len()).into_parts();
    assert_eq!((length, context.attempts), (8, 2));
}
