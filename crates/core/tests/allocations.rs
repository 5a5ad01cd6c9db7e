//! The shared types allocate nothing on the success path.

use std::{convert::Infallible, future::ready, sync::Arc};

use steadfast_core::{
    Call, CallContext, Lease, LeaseEnd, Observer, OnStep, OnStepLayer, Permit, PermitKind,
    RecoveryLog, Step, Target, WithContext,
};
use tower::{Layer, Service, service_fn};

fn allocations(run: impl FnOnce()) -> u64 {
    allocation_counter::measure(run).count_total
}

#[test]
fn a_default_context_and_its_clones_allocate_nothing() {
    assert_eq!(
        allocations(|| {
            let context = CallContext::default();
            let clone = context.clone();
            context.log.record(|| unreachable!("the log is disabled"));
            drop((context, clone));
        }),
        0
    );
    // The counter works.
    assert!(allocations(|| RecoveryLog::enabled().record(|| Step::new("a", "b"))) > 0);
}

#[test]
fn a_call_that_nobody_observes_allocates_nothing() {
    let mut service = OnStepLayer::none().layer(service_fn(|request: WithContext<()>| {
        request.context().log.record(|| unreachable!("the log is disabled"));
        ready(Ok::<_, Infallible>(()))
    }));
    let call = |service: &mut OnStep<_>| drop(service.call(WithContext::default()));
    assert_eq!(allocations(|| call(&mut service)), 0);
    // The counter works.
    let mut observed = OnStepLayer::new(|_| {})
        .layer(service_fn(|_: WithContext<()>| ready(Ok::<_, Infallible>(()))));
    assert!(allocations(|| drop(observed.call(WithContext::default()))) > 0);
}

#[test]
fn a_lease_allocates_nothing() {
    struct State;
    impl Observer for State {
        fn ended(&self, _: LeaseEnd<'_>) {}
    }
    let state = Arc::new(State);
    assert_eq!(
        allocations(|| {
            let lease = |order| {
                let permit = Permit::new(PermitKind::Ordinary, order);
                Lease::new(state.clone(), permit, RecoveryLog::disabled())
            };
            lease(1).success();
            drop(lease(2));
        }),
        0
    );
}

#[test]
fn a_target_is_cloned_compared_and_hashed_without_allocating() {
    let target = Target::new("openai").with_model("gpt-4o").with_credential("main");
    let same = Target::new("openai").with_model("gpt-4o").with_credential("main");
    let known = std::collections::HashSet::from([same]);
    assert_eq!(
        allocations(|| {
            let clone = target.clone();
            assert!(known.contains(&clone));
        }),
        0
    );
}
