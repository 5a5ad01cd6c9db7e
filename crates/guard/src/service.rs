//! The service: looks at a request before the model does.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_chat::{ChatRequest, ChatResponse, Events, Message, Part, Role};
use steadfast_core::{Call, Failure, Near};
use tokio::time::Instant;
use tower_service::Service;

use crate::{
    Advice, Stop, TaskId, event,
    events::GuardEvents,
    future::{Refused, ResponseFuture},
    history::{self, From},
    ledger::Ledger,
    state::{Shared, Task},
    watch::{Sight, Watch},
};

/// A model behind a safety guard; made by [`SafetyGuardLayer`](crate::SafetyGuardLayer).
///
/// Whether a request passes is decided in `call`; one that does not leaves the inner service ready,
/// for the next one.
#[must_use = "services do nothing unless called"]
pub struct SafetyGuardService<S> {
    inner: S,
    shared: Near<Shared>,
}

impl<S> SafetyGuardService<S> {
    pub(crate) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared: Near::new(shared) }
    }

    /// The service inside.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service inside, to be changed.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service inside, without the guard.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, T> Service<ChatRequest> for SafetyGuardService<S>
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

    #[inline]
    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        match admit(&self.shared, &mut request) {
            Ok(watch) => ResponseFuture::asking(self.inner.call(request), watch),
            Err(refused) => ResponseFuture::refused(refused),
        }
    }
}

/// Whether no tool is called in the history: then nothing has happened since the user last spoke.
fn calls_nothing(request: &ChatRequest) -> bool {
    let is_call = |part: &Part| matches!(part, Part::ToolCall(_) | Part::Opaque(_));
    let calls = |message: &Message| {
        message.role() == Role::Assistant && message.parts().iter().any(is_call)
    };
    !request.messages.iter().any(calls)
}

/// Whether the model may be asked, and how its answer is to be watched. Adds what the model should
/// know.
#[inline]
fn admit(shared: &Near<Shared>, request: &mut ChatRequest) -> Result<Watch, Box<Refused>> {
    let context = request.context();
    let Some(id) = TaskId::of(context) else {
        if calls_nothing(request) {
            return Ok(Watch::new(shared.clone(), None, Sight::Answer(None), request));
        }
        return admit_unnamed(shared, request);
    };
    // A task by its name goes on over the user's turns, one by its conversation ends with them.
    let per_turn = context.task().is_none();
    let now = Instant::now();
    let task = shared.task(id, now);
    if shared.is_by_hand() {
        admit_by_hand(shared, task, per_turn, request, now)
    } else {
        admit_read(shared, task, per_turn, request, now)
    }
}

/// The task of which nothing is known but the request.
fn admit_unnamed(shared: &Near<Shared>, request: &mut ChatRequest) -> Result<Watch, Box<Refused>> {
    let now = Instant::now();
    let read = history::read(&shared.c, request, From::LastTurn, None, now);
    let ledger = settle(shared, TaskId::default(), read, request, now)?;
    Ok(Watch::new(shared.clone(), None, Sight::Answer(ledger.map(Box::new)), request))
}

/// A task whose calls are seen elsewhere one by one.
fn admit_by_hand(
    shared: &Near<Shared>,
    task: Arc<Task>,
    per_turn: bool,
    request: &mut ChatRequest,
    now: Instant,
) -> Result<Watch, Box<Refused>> {
    let mut book = task.book.lock();
    if history::ends_with_user(request) {
        book.ledger.user_turn(per_turn, Some(now));
    }
    let may = book.ledger.may_answer(&shared.c, now);
    let notes = book.ledger.pending().to_vec();
    drop(book);
    if let Err(stop) = may {
        return Err(refuse(shared, task.id(), stop, request));
    }
    advise(task.id(), &notes, request);
    Ok(Watch::new(shared.clone(), Some(task), Sight::Elsewhere, request))
}

/// A task whose calls are read out of the request.
fn admit_read(
    shared: &Near<Shared>,
    task: Arc<Task>,
    per_turn: bool,
    request: &mut ChatRequest,
    now: Instant,
) -> Result<Watch, Box<Refused>> {
    let mut book = task.book.lock();
    if per_turn && history::ends_with_user(request) {
        book.anew(now);
    }
    let from = book.begins(request, per_turn);
    let began = book.ledger.counters.began;
    drop(book);
    let read = history::read(&shared.c, request, from, began, now);
    let had = read.is_some();
    // Without a history there still is the time.
    let read = read.or_else(|| Some(Ledger::new(began)));
    let settled = settle(shared, task.id(), read, request, now);
    let (counters, stop) = match &settled {
        Ok(ledger) => (ledger.as_ref().map_or((0, 0), Ledger::used), None),
        Err(refused) => ((refused.stop.events, refused.stop.calls), Some(refused.stop.clone())),
    };
    task.book.lock().was_read(counters.0, counters.1, stop);
    let ledger = settled?.filter(|_| had);
    Ok(Watch::new(shared.clone(), Some(task), Sight::Answer(ledger.map(Box::new)), request))
}

/// Refuses or advises by what was read.
fn settle(
    shared: &Near<Shared>,
    task: TaskId<'_>,
    read: Option<Ledger>,
    request: &mut ChatRequest,
    now: Instant,
) -> Result<Option<Ledger>, Box<Refused>> {
    let Some(mut ledger) = read else { return Ok(None) };
    if let Err(stop) = ledger.may_answer(&shared.c, now) {
        return Err(refuse(shared, task, stop, request));
    }
    advise(task, ledger.pending(), request);
    // The answer that is asked for now.
    ledger.answered();
    Ok(Some(ledger))
}

fn refuse(shared: &Shared, task: TaskId<'_>, stop: Stop, request: &ChatRequest) -> Box<Refused> {
    let log = request.context.log.clone();
    shared.stopped(task, &stop, false, &log);
    let (dialect, stream) = (request.dialect(), request.stream);
    Box::new(Refused { stop, stop_as: shared.c.policy.stop_as, dialect, stream, log })
}

/// Adds advice behind everything else: what stands before stays as it is, for prompt caches.
fn advise(task: TaskId<'_>, advice: &[Advice], request: &mut ChatRequest) {
    let last = request.messages.last().map(Message::role);
    // Behind words of the model it would be an answer to them.
    if advice.is_empty() || last == Some(Role::Assistant) {
        return;
    }
    event::advised(task, advice, &request.context.log);
    let text: Vec<_> = advice.iter().map(ToString::to_string).collect();
    request.messages.make_mut().push(Message::user(text.join("\n")));
}

impl<S: Clone> Clone for SafetyGuardService<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: self.shared.clone() }
    }
}

impl<S: fmt::Debug> fmt::Debug for SafetyGuardService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SafetyGuardService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
