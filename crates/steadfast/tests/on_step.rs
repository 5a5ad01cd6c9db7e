//! Every step of every layer of a stack is given to whoever observes it, as it happens.
#![cfg(feature = "stack")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use steadfast::{
    BoxError, CallContext, ChatRequest, ChatResponse, ChatService, Completion, Failure,
    OnStepLayer, Reason, RecoveryLog, Stack, Step, failover::Chain, retry::RetryBackoffLayer,
};
use support::*;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer};

async fn ask(llm: &ChatService, context: CallContext) -> Completion {
    let answer = llm.clone().oneshot(question().with_context(context)).await.unwrap();
    answer.collect().await.unwrap()
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Step>>>);

impl Seen {
    fn push(&self) -> impl Fn(&Step) + Send + Sync + 'static {
        let seen = self.clone();
        move |step| seen.0.lock().push(step.clone())
    }

    fn actions(&self) -> Vec<(&'static str, &'static str)> {
        self.0.lock().iter().map(|step| (step.layer, step.action)).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn with_a_log_it_is_the_log_and_without_one_the_same() {
    let mut seen_by = Vec::new();
    for context in [CallContext::recording(), CallContext::new()] {
        let seen = Seen::default();
        let log = context.log.clone();
        let llm = stack().on_step(seen.push()).boxed(eventful());
        let answer = ask(&llm, context.with_tenant("acme")).await;
        assert_eq!(answer.text(), format!("{TEXT}That is all."));
        if log.is_enabled() {
            assert_eq!(*seen.0.lock(), log.steps());
            assert_eq!(answer.head.log.steps(), log.steps());
        } else {
            assert!(answer.head.log.steps().is_empty(), "the caller wants none");
        }
        for step in seen.0.lock().iter() {
            assert_eq!(step.identity.as_ref().unwrap().tenant.as_deref(), Some("acme"));
            assert_eq!(step.model.as_deref(), Some("any"));
        }
        seen_by.push(seen.actions());
    }
    assert_eq!(seen_by[0], seen_by[1]);
    for step in [("retry", "retried"), ("recover", "resuming"), ("recover", "resumed")] {
        assert!(seen_by[0].contains(&step), "{step:?} in {seen_by:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_sees_them_as_they_happen() {
    let seen = Seen::default();
    let llm = stack().on_step(seen.push()).boxed(eventful());
    let asking = tokio::spawn(async move { llm.oneshot(question()).await });
    tokio::task::yield_now().await;
    assert_eq!(seen.actions().first(), Some(&("retry", "retried")), "while the call waits");
    assert!(!asking.is_finished());
    let answer = asking.await.unwrap().unwrap();
    assert!(!seen.actions().contains(&("recover", "resuming")));
    answer.collect().await.unwrap();
    assert!(seen.actions().contains(&("recover", "resuming")), "after the head");
}

#[tokio::test(start_paused = true)]
async fn a_panic_breaks_no_call_and_no_lock_is_held() {
    let stack = Stack::new(Chain::new(["first", "second"]).unwrap());
    let seen = Seen::default();
    let handles: Arc<Mutex<Option<steadfast::Handles>>> = Arc::default();
    let (known, push) = (handles.clone(), seen.push());
    let stack = stack.on_step(|step| panic!("{step}")).on_step(move |step| {
        push(step);
        let handles = known.lock();
        let handles = handles.as_ref().unwrap();
        let _ = (handles.failover.snapshot(), handles.breaker.snapshot(), handles.retry.snapshot());
        let _ = (handles.guard.snapshot(), handles.compaction.snapshot(), handles.stall.snapshot());
        let _ = (handles.resume.snapshot(), handles.continuation.snapshot());
    });
    *handles.lock() = Some(stack.handles());
    let dead = |_| fails(Reason::ServerError);
    let llm = stack.boxed(Client::of((0..60).map(dead).collect()));
    for _ in 0..4 {
        let _ = llm.clone().oneshot(question()).await;
    }
    let layers = seen.actions();
    for layer in ["retry", "failover"] {
        assert!(layers.iter().any(|(of, _)| *of == layer), "{layer} in {layers:?}");
    }
    assert!(ask(&stack.boxed(eventful()), CallContext::new()).await.text().starts_with(TEXT));
}

#[tokio::test(start_paused = true)]
async fn it_is_a_layer_of_its_own_for_a_service_builder() {
    let seen = Seen::default();
    let service = ServiceBuilder::new()
        .layer(OnStepLayer::new(seen.push()))
        .layer(RetryBackoffLayer::transient())
        .service(Client::of(vec![fails(Reason::Overloaded)]));
    service.oneshot(question()).await.unwrap().collect().await.unwrap();
    assert_eq!(seen.actions(), [("retry", "retried")]);
}

/// Refuses one provider, and notes which target each attempt goes to.
#[derive(Clone)]
struct Own<S>(S, Arc<Mutex<Vec<String>>>);

impl<S> Service<ChatRequest> for Own<S>
where
    S: Service<ChatRequest, Response = ChatResponse, Error: Into<BoxError>>,
    S::Future: Send + 'static,
{
    type Response = ChatResponse;
    type Error = BoxError;
    type Future = futures::BoxFuture<Result<ChatResponse, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let target = request.context.target.as_ref().unwrap().provider().to_owned();
        let refused = target == "first";
        self.1.lock().push(target);
        let call = (!refused).then(|| self.0.call(request));
        Box::pin(async move {
            match call {
                None => Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into()),
                Some(call) => call.await.map_err(Into::into),
            }
        })
    }
}

mod futures {
    pub(crate) type BoxFuture<T> = std::pin::Pin<Box<dyn Future<Output = T> + Send>>;
}

#[tokio::test(start_paused = true)]
async fn a_layer_of_ones_own_is_around_each_attempt_with_its_target() {
    let targets = Arc::new(Mutex::new(Vec::new()));
    let noted = targets.clone();
    let own = tower::layer::layer_fn(move |client| Own(client, noted.clone()));
    // tower's limit is shared by the clones that make further attempts: one at a time is no deadlock.
    let own = ServiceBuilder::new().layer(ConcurrencyLimitLayer::new(1)).layer(own);
    let context = CallContext::recording();
    let log = context.log.clone();
    let llm = stack().with_target_layer(own).boxed(Client::of(vec![fails(Reason::ServerError)]));
    let limit = Duration::from_secs(60);
    let answer = tokio::time::timeout(limit, ask(&llm, context)).await.unwrap();
    assert!(answer.text().starts_with(TEXT));
    assert_eq!(*targets.lock(), ["first", "first", "second", "second"]);
    // What it refuses is classified, retried and moved on from.
    assert!(log.to_string().contains("retry.retried first/any network"), "{log}");
    assert!(log.to_string().contains("failover.switched second/any network"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn the_log_of_the_request_is_that_of_the_answer_around_anybodys_service() {
    async fn recovery<L>(layer: L, script: Script) -> RecoveryLog
    where
        L: Layer<Client>,
        L::Service: Service<ChatRequest, Response: Headed, Error = Failure>,
    {
        let service = layer.layer(Client::of(script));
        let request = question().with_context(CallContext::recording());
        let log = request.context.log.clone();
        let answer = service.oneshot(request).await.unwrap();
        log.record(|| Step::new("test", "afterwards"));
        assert_eq!(answer.log().steps(), log.steps());
        answer.log().clone()
    }
    let builder = ServiceBuilder::new;
    let chain = || Chain::new(["first", "second"]).unwrap();
    let once = || vec![fails(Reason::Overloaded)];
    let failover = || steadfast::failover::CooldownFailoverLayer::new(chain());
    let log = recovery(RetryBackoffLayer::transient(), once()).await;
    assert!(log.to_string().starts_with("retry.retried overloaded"), "{log}");
    let log = recovery(failover(), once()).await;
    assert!(log.to_string().starts_with("failover.switched second/any overloaded"), "{log}");
    let both = || builder().layer(failover()).layer(RetryBackoffLayer::transient());
    let log = recovery(both(), vec![fails(Reason::Auth), fails(Reason::ServerError)]).await;
    assert!(log.to_string().contains("failover.switched"), "{log}");
    assert!(log.to_string().contains("retry.retried"), "{log}");
    recovery(steadfast::breaker::CircuitBreakerLayer::default(), vec![]).await;
    recovery(steadfast::timeout::StallTimeoutLayer::default(), vec![]).await;
    recovery(steadfast::timeout::DeadlineLayer::default(), vec![]).await;
    recovery(steadfast::guard::SafetyGuardLayer::default(), vec![]).await;
    recovery(steadfast::compact::CompactionLayer::rules_only(), vec![]).await;
    recovery(steadfast::recover::ContinuationLayer::default(), vec![]).await;
    recovery(steadfast::recover::StreamResumeLayer::default(), vec![]).await;
    recovery(stack(), once()).await;
}

trait Headed {
    fn log(&self) -> &RecoveryLog;
}

impl<E> Headed for ChatResponse<E> {
    fn log(&self) -> &RecoveryLog {
        self.recovery()
    }
}
