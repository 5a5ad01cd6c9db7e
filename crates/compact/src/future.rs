//! The future of a call.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_chat::{ChatRequest, ChatResponse, Events, TrackedEvents};
use steadfast_core::{BufferLimits, Failure, FirstContent, Lease, Spare, UntilEnd};
use tower_service::Service;

use crate::{
    body::CompactionEvents,
    decide::{CallState, NextAction, Refusals, Remedy, refused_compacted, remedied},
    resend::{KeptRequest, polled_twice},
    state::LayerState,
    withheld::{Broken, Released, Withheld},
};

/// A compaction before a call is made; with the service to make it with, which is ready.
type Preparing<S> =
    Pin<Box<dyn Future<Output = Result<(S, ChatRequest, CallState), Failure>> + Send>>;

pin_project! {
    /// The future of a call through a [`Compaction`](crate::Compaction): the inner call's, whose answer
    /// is returned at its first content; boxed only where a conversation is compacted.
    ///
    /// Dropping it drops the call and calls of a summariser; what was reserved for those and not used is
    /// given back.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, E>
    where
        S: Service<ChatRequest>,
    {
        #[pin]
        state: State<S, S::Future, E>,
        layer: Arc<LayerState>,
        spare: Spare<S>,
        // `None` while the call is prepared.
        kept: Option<KeptRequest>,
        refusals: Refusals,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, F, E> {
        Preparing { work: Preparing<S> },
        Calling { #[pin] call: FirstContent<F, ChatResponse<TrackedEvents<E>>> },
        // Its end is waited for; boxed, as few calls ever are here.
        Withholding { answer: Box<Withheld<TrackedEvents<E>>> },
        Done,
    }
}

impl<S, E> ResponseFuture<S, E>
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error: Into<Failure>, Future: Send>
        + Clone
        + Send
        + 'static,
    E: Events + Unpin + Send + 'static,
{
    /// The call of a request that is not changed.
    #[inline]
    pub(crate) fn calling(
        layer: Arc<LayerState>,
        spare: Spare<S>,
        kept: KeptRequest,
        call: S::Future,
    ) -> Self {
        let state = State::Calling { call: FirstContent::new(call) };
        Self { state, layer, spare, kept: Some(kept), refusals: Refusals::default() }
    }

    /// The call of a request that is compacted first, with `service`, which is ready.
    pub(crate) fn preparing(
        layer: Arc<LayerState>,
        spare: Spare<S>,
        service: S,
        request: ChatRequest,
        action: NextAction,
    ) -> Self {
        let preparing = layer.clone();
        let work = Box::pin(async move {
            let (request, state) = preparing.prepare(request, action).await?;
            Ok((service, request, state))
        });
        let refusals = Refusals::default();
        Self { state: State::Preparing { work }, layer, spare, kept: None, refusals }
    }
}

/// Applies `remedy` to a request that was refused, and makes a service ready to send it again.
async fn prepare_resend<S>(
    layer: Arc<LayerState>,
    mut service: S,
    kept: KeptRequest,
    failure: Failure,
    refusals: Refusals,
    remedy: Remedy,
) -> Result<(S, ChatRequest, CallState), Failure>
where
    S: Service<ChatRequest, Error: Into<Failure>>,
{
    let asked = refusals.asked();
    let resend = remedied(&layer, &kept, failure, remedy, refusals.times(remedy)).await;
    let (request, state) = resend.map_err(|failure| failure.with_attempts(asked))?;
    poll_fn(|cx| service.poll_ready(cx)).await.map_err(|error| {
        let failure: Failure = error.into();
        let attempts = asked.saturating_add(failure.attempts());
        failure.with_attempts(attempts)
    })?;
    Ok((service, request, state))
}

/// `answer` as the caller gets it, with what was held back of it first.
fn answered<E: Events + Unpin>(
    layer: &Arc<LayerState>,
    mut kept: KeptRequest,
    refusals: &Refusals,
    released: Released<TrackedEvents<E>>,
) -> ChatResponse<CompactionEvents<E>> {
    let Released { mut answer, events: withheld } = released;
    answer.head.attempts = refusals.attempts(&kept.request.context, answer.head.attempts);
    if let Some(notice) = kept.state.notice.take() {
        notice.put(&mut answer.head);
    }
    let observer = kept.state.observer.take();
    if let Some(observer) = observer.as_ref().filter(|_| kept.state.shows_success) {
        observer.answered();
    }
    let observer = observer.map(|observer| (layer.clone(), observer));
    answer.map_through(|events| CompactionEvents::new(events, observer, withheld))
}

impl<S, E> Future for ResponseFuture<S, E>
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error: Into<Failure>, Future: Send>
        + Clone
        + Send
        + 'static,
    E: Events + Unpin + Send + 'static,
{
    type Output = Result<ChatResponse<CompactionEvents<E>>, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let failure = match this.state.as_mut().project() {
                StateProjection::Preparing { work } => match ready!(work.as_mut().poll(cx)) {
                    Ok((mut service, request, state)) => {
                        *this.kept = Some(KeptRequest { request: request.clone(), state });
                        let call = FirstContent::new(service.call(request));
                        this.state.set(State::Calling { call });
                        continue;
                    }
                    Err(failure) => {
                        this.state.set(State::Done);
                        return Poll::Ready(Err(failure));
                    }
                },
                StateProjection::Calling { mut call } => {
                    let ended = ready!(call.as_mut().poll(&UntilEnd, BufferLimits::default(), cx));
                    match (ended, this.kept.as_ref()) {
                        (Err(failed), _) => failed.failure,
                        (Ok(()), Some(kept)) => {
                            let log = kept.request.context.log.clone();
                            let answer = call.finish(&UntilEnd, Lease::idle().with_log(log))?;
                            let policy = this.layer.policy();
                            if policy.withhold && kept.request.stream && !this.layer.config.off {
                                let answer = Box::new(Withheld::new(answer));
                                this.state.set(State::Withholding { answer });
                                continue;
                            }
                            let kept = this.kept.take().ok_or_else(polled_twice)?;
                            let released = Released { answer, events: VecDeque::new() };
                            let answer = answered(this.layer, kept, this.refusals, released);
                            return Poll::Ready(Ok(answer));
                        }
                        (Ok(()), None) => return Poll::Ready(Err(polled_twice())),
                    }
                }
                StateProjection::Withholding { answer } => match ready!(answer.poll(cx)) {
                    Ok(Some(released)) => {
                        let kept = this.kept.take().ok_or_else(polled_twice)?;
                        this.state.set(State::Done);
                        let answer = answered(this.layer, kept, this.refusals, released);
                        return Poll::Ready(Ok(answer));
                    }
                    Ok(None) => return Poll::Ready(Err(polled_twice())),
                    Err(Broken { failure, attempts }) => {
                        // The head counts on from what was asked before.
                        let before =
                            this.kept.as_ref().map_or(0, |kept| kept.request.context.attempts);
                        let attempts = attempts.saturating_sub(before).max(failure.attempts());
                        failure.with_attempts(attempts.max(1))
                    }
                },
                StateProjection::Done => return Poll::Ready(Err(polled_twice())),
            };
            // A call that failed is dropped before another is made.
            this.state.set(State::Done);
            let Some(mut kept) = this.kept.take() else { return Poll::Ready(Err(polled_twice())) };
            this.refusals.count(&mut kept.request.context, &failure);
            let remedy = match this.layer.config.off {
                true => None,
                false => {
                    let overflows = this.layer.policy().overflows;
                    this.refusals.remedy(&kept.request, &failure, overflows)
                }
            };
            let Some(remedy) = remedy else {
                refused_compacted(this.layer, &kept, &failure);
                let attempts = this.refusals.asked();
                return Poll::Ready(Err(failure.with_attempts(attempts)));
            };
            let (layer, service) = (this.layer.clone(), this.spare.get());
            let refusals = *this.refusals;
            let work = Box::pin(prepare_resend(layer, service, kept, failure, refusals, remedy));
            this.state.set(State::Preparing { work });
        }
    }
}

impl<S, E> fmt::Debug for ResponseFuture<S, E>
where
    S: Service<ChatRequest>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Preparing { .. } => "compacting",
            State::Calling { .. } => "calling",
            State::Withholding { .. } => "withholding",
            State::Done => "done",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
