//! Auto traits and type inference.

use std::fmt::Debug;

use steadfast_breaker::{
    BreakerHandle, BreakerPolicy, BreakerSnapshot, BreakerTransition, ByTarget, CircuitBreaker,
    CircuitBreakerLayer, PolicyError, ResponseFuture,
};
use steadfast_core::{AtOnce, Failure, Target};
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneSyncService};

fn shared<T: Send + Sync + Unpin + 'static>() {}
fn cloned<T: Clone + Debug + Send + Sync + 'static>() {}

#[test]
fn auto_traits() {
    shared::<CircuitBreakerLayer>();
    shared::<CircuitBreaker<()>>();
    shared::<ResponseFuture<std::future::Ready<()>, AtOnce>>();
    shared::<BreakerHandle>();
    cloned::<CircuitBreakerLayer>();
    cloned::<CircuitBreakerLayer<String, fn(&()) -> String, AtOnce>>();
    cloned::<CircuitBreaker<()>>();
    cloned::<BreakerHandle<u64>>();
    cloned::<BreakerPolicy>();
    cloned::<PolicyError>();
    cloned::<BreakerSnapshot<Option<Target>>>();
    cloned::<BreakerTransition<Option<Target>>>();
    cloned::<ByTarget>();
}

#[test]
fn a_key_needs_no_other_traits() {
    // Not Debug, not Default, not Display.
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Key(u8);
    let layer = CircuitBreakerLayer::default().with_key(|_: &http::Request<()>| Key(1));
    let _: BreakerHandle<Key> = layer.handle();
    let shown = format!("{layer:?} {:?} {:?}", layer.handle(), layer.layer(()));
    assert!(shown.contains("CircuitBreakerLayer"));
}

/// The form that axum and hyper need, with an inferred body type.
#[tokio::test(start_paused = true)]
async fn boxes_and_infers() {
    let service = tower::ServiceBuilder::new()
        .layer(
            CircuitBreakerLayer::default()
                .with_key(|r: &http::Request<_>| r.uri().host().map(str::to_owned)),
        )
        .service(service_fn(|_: http::Request<http_body_util::Empty<bytes::Bytes>>| async {
            Ok::<_, Failure>(http::Response::new(http_body_util::Empty::<bytes::Bytes>::new()))
        }));
    let mut boxed = BoxCloneSyncService::new(service);
    let request = http::Request::get("http://a.test/").body(http_body_util::Empty::new()).unwrap();
    assert!(boxed.ready().await.unwrap().call(request).await.is_ok());
}
