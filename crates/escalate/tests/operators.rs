//! Who decides inside the process.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use steadfast_escalate::{
    DecisionKind, EscalationDecision, EscalationEvent, HeldRequest, Operator,
};
use support::*;

type Decided = Option<EscalationDecision>;

#[tokio::test(start_paused = true)]
async fn an_operator_is_asked_in_each_round() {
    let layer = on().with_operator(async |held: Arc<HeldRequest>| {
        passes(Duration::from_secs(60)).await;
        match held.round {
            1 => Some(EscalationDecision::TryTarget(held.targets[1].target.clone())),
            _ => Some(EscalationDecision::Answer(format!("after {} attempts", held.attempts))),
        }
    });
    let model = Model::failing(9);
    let call = model.call(&layer, hello()).await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(answer.collect().await.unwrap().text(), "after 10 attempts");
    let snapshot = layer.handle().snapshot();
    let decided = |kind: DecisionKind| snapshot.decided[kind as usize];
    assert_eq!(decided(DecisionKind::TryTarget), (DecisionKind::TryTarget, 1));
    assert_eq!(decided(DecisionKind::Answer), (DecisionKind::Answer, 1));
}

/// One that is no closure.
struct Never;

impl Operator for Never {
    fn consult(&self, _: Arc<HeldRequest>) -> impl Future<Output = Decided> + Send + 'static {
        std::future::pending()
    }
}

#[tokio::test(start_paused = true)]
async fn an_operator_without_a_decision_leaves_it_to_others() {
    let silent = on().with_operator(async |_: Arc<HeldRequest>| None);
    for layer in [silent, on().with_operator(Never)] {
        let model = Model::failing(1);
        let call = model.call(&layer, hello()).await;
        layer.handle().decide(only(&layer.handle()).id, EscalationDecision::TryAgain).unwrap();
        let _ = call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_operators_work_ends_with_the_hold() {
    struct Working(Arc<AtomicUsize>);
    impl Drop for Working {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let working = Arc::new(AtomicUsize::new(0));
    let count = working.clone();
    let layer = on().with_operator(move |_: Arc<HeldRequest>| {
        count.fetch_add(1, Ordering::Relaxed);
        let working = Working(count.clone());
        async move {
            let _working = working;
            std::future::pending::<Decided>().await
        }
    });
    let model = Model::failing(1);
    let call = model.call(&layer, hello()).await;
    assert_eq!(working.load(Ordering::Relaxed), 1);
    layer.handle().decide(only(&layer.handle()).id, EscalationDecision::TryAgain).unwrap();
    let _ = call.await.unwrap().unwrap();
    assert_eq!(working.load(Ordering::Relaxed), 0, "somebody else has decided");
    let model = Model::failing(1);
    let call = model.call(&layer, hello()).await;
    assert_eq!(working.load(Ordering::Relaxed), 1);
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert_eq!(working.load(Ordering::Relaxed), 0, "the caller went away");
}

#[tokio::test(start_paused = true)]
async fn subscribers_see_what_happens_and_layers_that_share_have_one_list() {
    let layer = on();
    let handle = layer.handle();
    let mut events = handle.subscribe();
    // As after a reload of a configuration.
    let layer = with(|policy| policy.max_rounds = 1).sharing(&handle);
    let model = Model::failing(1);
    let call = model.call(&layer, hello()).await;
    let id = only(&handle).id;
    handle.decide(id, EscalationDecision::TryAgain).unwrap();
    let _ = call.await.unwrap().unwrap();
    assert!(matches!(events.try_recv(), Ok(EscalationEvent::Held(held)) if held.id == id));
    let decided = events.try_recv().unwrap();
    let is_same = |decided| matches!(decided, EscalationEvent::Decided { id: of, kind: DecisionKind::TryAgain } if of == id);
    assert!(is_same(decided));
    handle.reset();
    assert_eq!((handle.snapshot().total, handle.snapshot().recovered), (0, 0));
}

#[test]
fn many_threads_decide_and_one_of_them_has() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let layer = on();
        let handle = layer.handle();
        let mut events = handle.subscribe();
        for _ in 0..50 {
            let model = Model::new(|call, _| if call == 0 { Err(exhausted()) } else { Ok("x") });
            let service = tower::Layer::layer(&layer, model.clone());
            let call = tokio::spawn(tower::ServiceExt::oneshot(service, hello()));
            let id = loop {
                if let EscalationEvent::Held(held) = events.recv().await.unwrap() {
                    break held.id;
                }
            };
            let decided: usize = std::thread::scope(|scope| {
                let decide =
                    || usize::from(handle.decide(id, EscalationDecision::TryAgain).is_ok());
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(decide)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(decided, 1);
            let _ = call.await.unwrap().unwrap();
            assert_eq!(model.calls(), 2);
        }
    });
}
