//! Each time that a provider was asked for a call: what it was, and how it ended.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    AtOnce, Call, Failure, IntoFailure, Lease, LeaseEnd, Leased, Observer, Outcome, Permit,
    PermitKind, Reason, RecoveryLog, SpanId, Target, Track, UntilEnd, Usage, inner_service,
};

/// One time that a provider was asked for a call, as its [`RecoveryLog`] keeps it.
///
/// It has nothing of what was asked or answered.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AttemptRecord {
    /// Its position among those of the call, from 1.
    pub number: u32,
    /// Who was asked.
    pub target: Option<Target>,
    /// When, since the log was created.
    pub at: Duration,
    /// From its start to the first content of its answer; `None` where none has come.
    pub first_content: Option<Duration>,
    /// From its start to its end; `None` while it is under way.
    pub took: Option<Duration>,
    /// How it ended.
    pub end: AttemptEnd,
    /// The tokens that the provider has reported.
    pub usage: Usage,
    /// How many bytes of its answer have come, without its head.
    pub bytes: u64,
    /// Its span, where the call is [traced](crate::CallContext::trace).
    pub span: Option<SpanId>,
    /// What the provider says of its answer, where the call is traced.
    pub answer: Option<Box<AnswerRecord>>,
}

/// What a provider says of its answer, as its [`AttemptRecord`] keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AnswerRecord {
    /// Its id.
    pub id: Option<Box<str>>,
    /// The model that has answered.
    pub model: Option<Box<str>>,
    /// Why the model stopped, in the provider's word.
    pub finish: Option<Box<str>>,
}

/// How an [`AttemptRecord`] ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttemptEnd {
    /// It has not.
    #[default]
    Underway,
    /// The answer arrived whole.
    Answered,
    /// It failed.
    Failed {
        /// Why.
        reason: Reason,
        /// What that was concluded from ([`Failure::evidence`]).
        evidence: Option<Box<str>>,
    },
    /// Whoever asked did not wait for its end: the caller has gone, a hedge was quicker, or an answer that broke off
    /// elsewhere was gone on with.
    Dropped,
}

/// Notes each call in its [`RecoveryLog`] as an [`AttemptRecord`].
///
/// Without an [enabled](RecoveryLog::is_enabled) log a call passes through, and nothing is allocated.
///
/// # Where to put this layer
///
/// Around what asks the provider, with classification and time limits inside it, so that its failures have their
/// reasons.
///
/// **Wrong:** around retries. All of them are one attempt then.
#[derive(Clone, Debug, Default)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct AttemptsLayer<T = UntilEnd> {
    noted: Arc<Noted>,
    track: T,
}

impl AttemptsLayer {
    /// For replies that are over with their body or stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// For replies that are plain values, over as soon as they are there.
    pub fn at_once(self) -> AttemptsLayer<AtOnce> {
        AttemptsLayer { noted: self.noted, track: AtOnce }
    }
}

impl<S, T: Clone> Layer<S> for AttemptsLayer<T> {
    type Service = Attempts<S, T>;

    fn layer(&self, inner: S) -> Self::Service {
        Attempts { inner, layer: self.clone() }
    }
}

/// Notes each call of the inner service as an attempt; see [`AttemptsLayer`].
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct Attempts<S, T = UntilEnd> {
    inner: S,
    layer: AttemptsLayer<T>,
}

inner_service!(Attempts<S, T>);

impl<S, Req, T> Service<Req> for Attempts<S, T>
where
    S: Service<Req>,
    S::Error: IntoFailure,
    Req: Call,
    T: Track<S::Response> + Clone,
{
    type Response = T::Tracked;
    type Error = Failure;
    type Future = Leased<S::Future, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, mut request: Req) -> Self::Future {
        let context = request.context();
        let span = context.trace.as_ref().map(|call| call.child());
        let number = context.log.begin_attempt(context.target.as_ref(), span.as_ref());
        let lease = match number {
            None => Lease::idle().with_log(context.log.clone()),
            Some(number) => {
                let permit = Permit::new(PermitKind::Ordinary, number);
                let lease = Lease::new(self.layer.noted.clone(), permit, context.log.clone())
                    .observing_content(Instant::now())
                    .counting();
                if span.is_some() { lease.describing() } else { lease }
            }
        };
        if number.is_some() && span.is_some() {
            request.context_mut().trace = span.map(Arc::new);
        }
        Leased::new(self.inner.call(request), lease, self.layer.track.clone())
    }
}

impl<S: fmt::Debug, T: fmt::Debug> fmt::Debug for Attempts<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempts").field("inner", &self.inner).field("layer", &self.layer).finish()
    }
}

/// Writes what becomes of attempts into the logs of their calls; a permit's order is the attempt's number.
#[derive(Debug, Default)]
struct Noted;

impl Observer for Noted {
    fn first_content(&self, permit: Permit, _: Instant, after: Duration, log: &RecoveryLog) {
        log.update_attempt(permit.order, |attempt, _| attempt.first_content = Some(after));
    }

    fn ended(&self, end: LeaseEnd<'_>) {
        end.log.update_attempt(end.permit.order, |attempt, now| {
            attempt.took = Some(now.saturating_sub(attempt.at));
            (attempt.usage, attempt.bytes) = (end.usage, end.bytes);
            attempt.answer = end.answer.cloned().map(Box::new);
            if end.content_reported || matches!(end.outcome, Outcome::Success) {
                attempt.first_content = attempt.first_content.or(end.first_content);
            }
            attempt.end = match end.outcome {
                Outcome::Success => AttemptEnd::Answered,
                Outcome::Cancelled => AttemptEnd::Dropped,
                Outcome::Failure(failure) => {
                    if let Some(usage) = failure.usage() {
                        attempt.usage.update(usage);
                    }
                    let evidence = Some(failure.evidence()).filter(|text| !text.is_empty());
                    let evidence = evidence.map(Into::into);
                    AttemptEnd::Failed { reason: failure.reason(), evidence }
                }
            };
        });
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, convert::Infallible, future::ready};

    use http_body_util::{BodyExt, Full};
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::CallContext;

    fn body() -> http::Response<impl http_body::Body<Data = bytes::Bytes, Error = Failure>> {
        let body = Full::from("body").map_err(|never: Infallible| match never {});
        http::Response::new(body)
    }

    fn request(log: &RecoveryLog) -> http::Request<()> {
        let mut request = http::Request::new(());
        let mut context = CallContext::default();
        context.log = log.clone();
        context.target = Some(Target::new("p").with_model("m"));
        request.extensions_mut().insert(context);
        request
    }

    #[tokio::test(start_paused = true)]
    async fn each_time_that_a_provider_is_asked_is_in_the_log() {
        let log = RecoveryLog::enabled();
        let turn = Cell::new(0);
        let service = service_fn(|_: http::Request<()>| {
            turn.set(turn.get() + 1);
            let turn = turn.get();
            async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                match turn {
                    1 => Err(Failure::new(Reason::Overloaded, "no").with_evidence("status:503")),
                    _ => Ok(body()),
                }
            }
        });
        let layer = AttemptsLayer::new();
        assert!(layer.layer(service).oneshot(request(&log)).await.is_err());
        tokio::time::advance(Duration::from_millis(100)).await;
        let reply = layer.layer(service).oneshot(request(&log)).await.unwrap();
        let underway = log.attempt_records();
        assert_eq!((underway[1].number, underway[1].took), (2, None));
        assert_eq!(underway[1].end, AttemptEnd::Underway);
        tokio::time::advance(Duration::from_millis(5)).await;
        reply.into_body().collect().await.unwrap();
        drop(layer.layer(service).oneshot(request(&log)).await.unwrap());
        let never = layer.layer(service).oneshot(request(&log));
        drop(Box::pin(tokio::time::timeout(Duration::from_millis(1), never)).await);

        let ms = |n| Duration::from_millis(n);
        let [first, second, dropped, unanswered] = &log.attempt_records()[..] else { panic!() };
        let evidence = Some("status:503".into());
        assert_eq!(first.end, AttemptEnd::Failed { reason: Reason::Overloaded, evidence });
        assert_eq!((first.at, first.took, first.first_content), (ms(0), Some(ms(20)), None));
        assert_eq!((second.at, second.took), (ms(120), Some(ms(25))));
        assert_eq!((second.first_content, second.bytes), (Some(ms(25)), 4));
        assert_eq!(second.end, AttemptEnd::Answered);
        assert_eq!(dropped.end, AttemptEnd::Dropped);
        assert_eq!((&unanswered.end, unanswered.took), (&AttemptEnd::Dropped, Some(ms(1))));
        assert_eq!(second.target.as_ref().unwrap().as_str(), "p/m");
        assert!(log.is_empty(), "an attempt is no step");
    }

    #[tokio::test]
    async fn without_a_log_nothing_is_noted_and_with_many_the_first_are_kept() {
        let service = service_fn(|_: http::Request<()>| ready(Ok::<_, Failure>(body())));
        let layer = AttemptsLayer::new();
        let disabled = RecoveryLog::disabled();
        layer.layer(service).oneshot(request(&disabled)).await.unwrap();
        assert!(disabled.attempt_records().is_empty());
        let log = RecoveryLog::enabled();
        for _ in 0..crate::MAX_STEPS + 3 {
            layer.layer(service).oneshot(request(&log)).await.unwrap();
        }
        assert_eq!(log.attempt_records().len(), crate::MAX_STEPS);
        assert_eq!(log.dropped(), 0, "of the steps");
    }
}
