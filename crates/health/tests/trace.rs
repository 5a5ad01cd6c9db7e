//! What is traced. Alone in its file: a callsite that another test reaches first, without a
//! subscriber, may stay disabled.

use steadfast_core::{Failure, Reason};
use steadfast_health::{HealthStatus, ProviderHealthLayer};
use steadfast_testkit::{CapturedEvents, ms};

#[tokio::test(start_paused = true)]
async fn each_change_is_traced_once() {
    let captured = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(captured.clone());
    let handle = ProviderHealthLayer::default().handle();
    let failure = Failure::new(Reason::ServerError, "no capacity for sk-secret");
    handle.probed("openai", Ok(()));
    tokio::time::advance(ms(1_500)).await;
    for _ in 0..4 {
        handle.probed("openai", Err(&failure));
    }
    assert_eq!(
        captured.take(),
        [
            "steadfast::health::degraded provider=\"openai\" cause=\"consecutive\" reason=\"server_error\" agents=1 \
          in_a_row=3 calls=4 failures=3 after_ms=1500"
        ]
    );
    tokio::time::advance(ms(70_000)).await;
    for _ in 0..4 {
        handle.probed("openai", Ok(()));
    }
    assert_eq!(
        captured.take(),
        [
            "steadfast::health::recovered provider=\"openai\" cause=\"successes\" reason=\"server_error\" agents=0 \
          in_a_row=0 calls=3 failures=0 after_ms=70000"
        ]
    );
    handle.force("openai", HealthStatus::Degraded);
    handle.reset("openai");
    let steered = captured.take();
    assert_eq!(steered.len(), 2);
    assert!(steered.iter().all(|event| event.contains("cause=\"manual\"")), "{steered:?}");
}
