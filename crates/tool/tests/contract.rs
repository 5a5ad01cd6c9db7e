//! The contract of every layer.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::future::{Ready, ready};

use steadfast_chat::{ToolFailureKind, ToolRequest, ToolResult};
use steadfast_core::{Failure, Reason};
use steadfast_testkit::{Action, Aspect, Contract, Exchange as _, Tools, contract};
use steadfast_tool::{
    AccessPolicy, AccessProfile, ToolBreakerLayer, ToolErrorLayer, ToolPolicyLayer,
    ToolTimeoutLayer,
};
use tokio_test::{assert_ready, assert_ready_ok, task};
use tower::{Layer, Service, service_fn};

const ITS_RESULT: &str = "the id and the name of the call, for a result of our own";

contract!(
    timeout,
    Contract::new(Tools, ToolTimeoutLayer::default)
        .refuses(|_, request| request.abort.cancel())
        .state(Action::hang(), |layer| layer.handle().snapshot().timed_out)
        .none(Aspect::Held, "its timer is a part of its future")
        .allocates(2, ITS_RESULT)
);

contract!(
    errors,
    Contract::new(Tools, ToolErrorLayer::default)
        .state(Action::fail(Reason::Network), |layer| layer.snapshot().failed)
        .none(Aspect::Refusal, "every call is made")
        .none(Aspect::Held, "it holds nothing")
        .allocates(2, ITS_RESULT)
);

/// Fails the call of the exchange until it is blocked.
fn block(layer: &ToolBreakerLayer) {
    let fail = |request: ToolRequest| -> Ready<Result<_, Failure>> {
        ready(Ok(ToolResult::failed(&request.call, ToolFailureKind::Failed, "broken")))
    };
    let mut service = layer.layer(service_fn(fail));
    for _ in 0..3 {
        assert_ready_ok!(
            task::spawn(()).enter(|cx, _| { Service::<ToolRequest>::poll_ready(&mut service, cx) })
        );
        let result = assert_ready!(task::spawn(service.call(Tools.request())).poll());
        assert!(result.unwrap().is_error);
    }
}

/// Something that changes with each failure, blocked or not.
fn failures(layer: &ToolBreakerLayer) -> u64 {
    let handle = layer.handle();
    let counted = handle.snapshot().into_iter().map(|one| one.circuit.failures);
    handle.blocked() + counted.sum::<u64>()
}

contract!(
    breaker,
    Contract::new(Tools, ToolBreakerLayer::default)
        .refuses(|layer, _| block(layer))
        .state(Action::fail(Reason::Network), failures)
        .held(|layer| layer.handle().in_flight())
        .allocates(8, "circuits of the tool and of the call, which is parsed for its signature")
);

contract!(
    access_to_everything,
    Contract::new(Tools, || ToolPolicyLayer::new(AccessPolicy::default()).unwrap())
        .none(Aspect::Refusal, "everything is allowed")
        .none(Aspect::State, "only refusals are counted")
        .none(Aspect::Held, "it holds nothing")
);

contract!(
    access,
    Contract::new(Tools, || {
        let profile = AccessProfile {
            roots: Some(vec!["/srv".into()]),
            hosts: Some(vec!["example.com".into()]),
            max_file_bytes: Some(1_000),
            ..AccessProfile::default()
        };
        ToolPolicyLayer::new(AccessPolicy::of(profile)).unwrap()
    })
    .refuses(|_, request| request.call.arguments = r#"{"path":"/etc/passwd"}"#.into())
    .none(Aspect::State, "only refusals are counted")
    .none(Aspect::Held, "it holds nothing")
    .allocates(2, "the names of arguments, of the policy and of the call")
);
