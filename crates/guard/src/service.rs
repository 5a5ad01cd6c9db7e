//! The service: checks a request before the model is called.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_chat::{ChatRequest, ChatResponse, Events, Message, Role};
use steadfast_core::{Failure, inner_service};
use tokio::time::Instant;
use tower_service::Service;

use crate::{
    Advice, GuardVerdict, TaskId, event,
    events::{GuardEvents, Guarded},
    future::{Refused, ResponseFuture},
    history,
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
    S::Error: Into<Failure>,
    T: Events + Unpin,
{
    type Response = ChatResponse<GuardEvents<T>>;
    type Error = Failure;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let admitted = admit(&self.tasks, &mut request);
        let call = admitted.is_ok().then(|| self.inner.call(request));
        ResponseFuture { call, admitted: Some(admitted) }
    }
}

/// Whether the model may be called, and what its answer is checked with. Adds advice to the request.
fn admit(tasks: &Arc<Tasks>, request: &mut ChatRequest) -> Result<Guarded, Box<Refused>> {
    let (c, now) = (&tasks.c, Instant::now());
    // A named task continues over the user's turns, a session's task ends with each.
    let per_turn = request.context.task().is_none();
    let task = TaskId::of(&request.context).map(|id| tasks.task(id, now));
    let user_speaks = history::ends_with_user(request);
    let tool_layer = tasks.has_tool_layer() && task.is_some();
    let mut began = None;
    let (mut messages, mut skip) = (history::last_turn(&request.messages), 0);
    let mut seen = None;
    if let Some(task) = &task {
        let mut state = task.state.lock();
        if per_turn && user_speaks {
            *state = TaskState::new(Some(now));
        }
        began = state.began;
        if tool_layer {
            // Its calls are counted by the tool layer.
            if user_speaks {
                state.on(c, TaskEvent::UserTurn, now);
            }
            seen = Some((state.on(c, TaskEvent::Ask, now), state.pending.clone(), None));
        } else {
            let (all, before_turn) = history::answers(request);
            (messages, skip) = (&request.messages, state.skips(all, before_turn, per_turn));
        }
    }
    let (verdict, advice, state) = seen.unwrap_or_else(|| {
        // Its calls are read from the request.
        let mut read = TaskState::new(began);
        history::feed(c, messages, skip, &mut read, now, |_, _, _, _| {});
        let verdict = read.on(c, TaskEvent::Ask, now);
        if let Some(task) = &task {
            task.state.lock().record(&read);
        }
        let advice = std::mem::take(&mut read.pending);
        // Counts the answer to this request. The state is kept only if it is not empty.
        let state = (read.events > 0).then(|| {
            read.on(c, TaskEvent::Answer, now);
            Box::new(read)
        });
        (verdict, advice, state)
    });
    let id = task.as_ref().map(|task| task.id()).unwrap_or_default();
    let log = request.context.log.clone();
    if let GuardVerdict::Stop(stop) = verdict {
        tasks.stopped(id, &stop, false, &log);
        let (dialect, stream, stop_as) = (request.dialect(), request.stream, c.policy.stop_as);
        return Err(Box::new(Refused { stop, stop_as, dialect, stream, log }));
    }
    advise(id, &advice, request);
    Ok(Guarded { tasks: tasks.clone(), task, began, tool_layer, state, log })
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
