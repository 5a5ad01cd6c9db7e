//! What it takes to make a call a second time: the request as it was sent, a service that is kept for
//! it, and the answer held back until its first content.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use parking_lot::Mutex;
use pin_project_lite::pin_project;
use steadfast_chat::{ChatRequest, ChatResponse, CommittedEvents, Events, Look};
use steadfast_core::{Failure, Lease, Peek, Target, Track};

use crate::decide::CallState;

/// A request as it was sent, in case it has to be sent again.
pub(crate) struct KeptRequest {
    pub(crate) request: ChatRequest,
    pub(crate) state: CallState,
}

impl KeptRequest {
    /// Keeps `request`. Where its target names its model, nothing is allocated for that.
    pub(crate) fn new(request: &mut ChatRequest, state: CallState) -> Self {
        let name = std::mem::take(&mut request.model);
        let mut kept = request.clone();
        if kept.context.target.as_ref().and_then(Target::model) != Some(&*name) {
            kept.model.clone_from(&name);
        }
        request.model = name;
        Self { request: kept, state }
    }

    /// With the model's name again.
    pub(crate) fn named(mut self) -> Self {
        if self.request.model.is_empty()
            && let Some(name) = self.request.context.target.as_ref().and_then(Target::model)
        {
            name.clone_into(&mut self.request.model);
        }
        self
    }
}

/// A service of which clones are made for further calls. Locked for the cloning alone.
#[derive(Clone, Debug)]
pub(crate) struct Spare<S>(Arc<Mutex<S>>);

impl<S: Clone> Spare<S> {
    pub(crate) fn new(service: S) -> Self {
        Self(Arc::new(Mutex::new(service)))
    }

    /// A service that has yet to be made ready.
    pub(crate) fn get(&self) -> S {
        self.0.lock().clone()
    }
}

pin_project! {
    /// A call whose answer is held back until its first content, so that one that fails before can be
    /// replaced unnoticed.
    #[project = UntilContentProj]
    pub(crate) enum UntilContent<F, E> {
        Calling { #[pin] call: F },
        // The answer has started and its first content has not come. `None` once it has.
        Answering { answer: Option<ChatResponse<E>>, buffer: Look },
    }
}

impl<F, E, R> UntilContent<F, E>
where
    F: Future<Output = Result<ChatResponse<E>, R>>,
    R: Into<Failure>,
    E: Events + Unpin,
{
    pub(crate) fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ChatResponse<CommittedEvents<E>>, Failure>> {
        loop {
            match self.as_mut().project() {
                UntilContentProj::Calling { call } => {
                    let answer = Some(ready!(call.poll(cx)).map_err(Into::into)?);
                    self.set(Self::Answering { answer, buffer: Look::default() });
                }
                UntilContentProj::Answering { answer: slot, buffer } => {
                    let Some(answer) = slot else { return Poll::Ready(Err(polled_twice())) };
                    ready!(answer.poll_content(buffer, Peek::default(), cx))?;
                    let committed = slot
                        .take()
                        .map(|answer| answer.commit(std::mem::take(buffer), Lease::idle()));
                    return Poll::Ready(committed.ok_or_else(polled_twice));
                }
            }
        }
    }
}

pub(crate) fn polled_twice() -> Failure {
    let why = "`ResponseFuture` was polled after it was ready";
    Failure::refused_fixed(steadfast_core::Reason::Unknown, why)
}
