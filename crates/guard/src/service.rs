//! The service: checks a request before the model is called.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_chat::{ChatRequest, ChatResponse, Events, Message, Role};
use steadfast_core::{Failure, IntoFailure, inner_service};
use tokio::time::Instant;
use tower_service::Service;

use crate::{
    Advice, GuardVerdict, TaskId, event,
    events::{GuardEvents, Guarded},
    future::{Refused, ResponseFuture},
    history,
    known::Counting,
    state::{TaskEvent, TaskState},
    tasks::Tasks,
};

/// A guarded model; made by [`SafetyGuardLayer`](crate::SafetyGuardLayer).
///
/// Whether a request passes is decided in `call`; one that does not leaves the inner service ready,
/// for the next one.
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct SafetyGuard<S> {
    inner: S,
    tasks: Arc<Tasks>,
}

inner_service!(SafetyGuard<S>);

impl<S> SafetyGuard<S> {
    pub(crate) fn new(inner: S, tasks: Arc<Tasks>) -> Self {
        Self { inner, tasks }
    }
}

impl<S, T> Service<ChatRequest> for SafetyGuard<S>
where
    S: Service<ChatRequest, Response = ChatResponse<T>>,
    S::Error: IntoFailure,
    T: Events + Unpin,
{
    type Response = ChatResponse<GuardEvents<T>>;
    type Error = Failure;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        match admit(&self.tasks, &mut request) {
            Ok(guarded) => {
                ResponseFuture { call: Some(self.inner.call(request)), admitted: Some(Ok(guarded)) }
            }
            Err(refused) => ResponseFuture { call: None, admitted: Some(Err(refused)) },
        }
    }
}

/// Whether the model may be called, and what its answer is checked with. Adds advice to the request.
fn admit(tasks: &Arc<Tasks>, request: &mut ChatRequest) -> Result<Guarded, Box<Refused>> {
    let (c, now) = (&tasks.c, Instant::now());
    let named = request.context.task().is_some();
    let task = TaskId::of(&request.context).map(|id| tasks.task(id, now));
    let tool_layer = tasks.has_tool_layer() && task.is_some();
    // The state counts the answer to this request. It is kept only if it is not empty.
    let (verdict, advice, began, state) = match &task {
        Some(task) => {
            let mut state = task.state.lock();
            let user_speaks = history::ends_with_user(request);
            if user_speaks && !named {
                // A named task continues over the user's turns, a session's task ends with each.
                *state = TaskState::new(Some(now), named);
            }
            state.named = named;
            if !tool_layer {
                history::read(c, request, &mut state, now);
            } else if user_speaks {
                // Its calls are counted by the tool layer.
                state.on(c, TaskEvent::UserTurn, now);
            }
            let verdict = state.on(c, TaskEvent::Ask, now);
            let counts = (!tool_layer && state.events > 0).then(|| Box::new(state.counts()));
            (verdict, state.pending.clone(), state.began, counts)
        }
        None => {
            let (mut state, turn) = (TaskState::default(), history::last_turn(&request.messages));
            history::feed(c, turn, |_| Counting::New, &mut state, now, |_, _, _, _| {});
            let verdict = state.on(c, TaskEvent::Ask, now);
            let advice = std::mem::take(&mut state.pending);
            (verdict, advice, None, (state.events > 0).then(|| Box::new(state)))
        }
    };
    let id = task.as_ref().map(|task| task.id()).unwrap_or_default();
    let log = request.context.log.clone();
    if let GuardVerdict::Stop(stop) = verdict {
        tasks.stopped(id, &stop, false, &log);
        let (dialect, stream, stop_as) = (request.dialect(), request.stream, c.policy.stop_as);
        return Err(Box::new(Refused { stop, stop_as, dialect, stream, log }));
    }
    advise(id, &advice, request);
    let state = state.map(|mut state| {
        state.on(c, TaskEvent::Answer, now);
        state
    });
    Ok(Guarded { tasks: tasks.clone(), task, named, began, tool_layer, state, log })
}

/// Appends advice as the last message: the messages before it are unchanged, for prompt caches.
fn advise(task: TaskId<'_>, advice: &[Advice], request: &mut ChatRequest) {
    let last = request.messages.last().map(Message::role);
    // After a message of the model it would be a reply to it.
    if advice.is_empty() || last == Some(Role::Assistant) {
        return;
    }
    event::advised(task, advice, &request.context.log);
    let text: Vec<_> = advice.iter().map(ToString::to_string).collect();
    request.messages.make_mut().push(Message::user(text.join("\n")));
}

impl<S: fmt::Debug> fmt::Debug for SafetyGuard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SafetyGuard").field("inner", &self.inner).finish_non_exhaustive()
    }
}
