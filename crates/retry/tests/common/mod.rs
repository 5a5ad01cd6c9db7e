//! A request of somebody else's type, and a provider that follows a script.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_types,
    reason = "tests; each file uses its part"
)]

use std::{
    sync::{
        Arc, Mutex as StdMutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use steadfast_core::{BoxError, Call, CallContext, Failure, Jitter, Reason};
use steadfast_retry::{RetryBackoff, RetryBackoffLayer, RetryPolicy};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};
use tower_test::mock::{self, Mock};

/// Counts its clones and keeps what it was nudged with.
#[derive(Debug, Default)]
pub struct Ask {
    pub context: CallContext,
    pub nudges: Vec<String>,
    pub clones: Arc<AtomicUsize>,
}

impl Clone for Ask {
    fn clone(&self) -> Self {
        self.clones.fetch_add(1, Ordering::Relaxed);
        Self {
            context: self.context.clone(),
            nudges: self.nudges.clone(),
            clones: self.clones.clone(),
        }
    }
}

impl Call for Ask {
    fn context(&self) -> &CallContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.context
    }

    fn nudge(&mut self, text: &str) -> bool {
        self.nudges.push(text.to_owned());
        true
    }
}

pub fn ask(change: impl FnOnce(&mut CallContext)) -> Ask {
    let mut ask = Ask::default();
    change(&mut ask.context);
    ask
}

pub fn fail(reason: Reason) -> Failure {
    Failure::new(reason, "as the script says")
}

pub fn hint(reason: Reason, wait: Duration) -> Failure {
    fail(reason).with_retry_after(Some(wait))
}

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The default policy without jitter, so that waits are exact.
pub fn exact() -> RetryPolicy {
    let policy = RetryPolicy::default();
    RetryPolicy { backoff: policy.backoff.jitter(Jitter::None).unwrap(), ..policy }
}

pub fn layer(policy: RetryPolicy) -> RetryBackoffLayer<steadfast_core::AtOnce> {
    RetryBackoffLayer::new(policy).unwrap().at_once()
}

/// What happened when a request was sent to a provider that follows a script.
#[derive(Debug)]
pub struct Played {
    /// When each attempt arrived, since the call.
    pub arrived: Vec<Duration>,
    /// The requests as they arrived.
    pub seen: Vec<Ask>,
    /// When the call ended.
    pub ended: Duration,
    pub answer: Result<&'static str, Failure>,
    /// Steps of the script that were not reached.
    pub left: usize,
}

type Inner = Mock<Ask, &'static str>;

/// Sends `request` through `layer` to a provider that answers by `script`, in order.
pub async fn play(
    layer: &RetryBackoffLayer<steadfast_core::AtOnce>,
    request: Ask,
    script: impl IntoIterator<Item = Result<&'static str, Failure>>,
) -> Played {
    let (inner, mut handle) = mock::pair();
    let service: RetryBackoff<Inner, _> = layer.layer(inner);
    let mut script: Vec<_> = script.into_iter().collect();
    script.reverse();
    let began = Instant::now();
    let provider = tokio::spawn(async move {
        let (mut arrived, mut seen) = (Vec::new(), Vec::new());
        while let Some((request, reply)) = handle.next_request().await {
            arrived.push(whole(began.elapsed()));
            seen.push(request);
            match script.pop().expect("no attempt beyond the script") {
                Ok(answer) => reply.send_response(answer),
                Err(failure) => reply.send_error(failure),
            }
        }
        (arrived, seen, script.len())
    });
    let answer = service.oneshot(request).await;
    let ended = whole(began.elapsed());
    let (arrived, seen, left) = provider.await.unwrap();
    Played { arrived, seen, ended, answer, left }
}

/// Timers fire on whole milliseconds, at or after their time.
fn whole(elapsed: Duration) -> Duration {
    ms(u64::try_from(elapsed.as_millis()).unwrap())
}

/// A service that is ready.
pub async fn ready<S, Req>(service: &mut S) -> &mut S
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    service.ready().await.map_err(Into::into).unwrap()
}

/// Names and fields of the events of `tracing` on this thread.
#[derive(Clone, Default)]
pub struct Heard(pub Arc<StdMutex<Vec<String>>>);

impl tracing::Subscriber for Heard {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields(String);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() != "message" {
                    self.0 += &format!(" {}={value:?}", field.name());
                }
            }
        }
        let mut fields = Fields(event.metadata().name().to_owned());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
