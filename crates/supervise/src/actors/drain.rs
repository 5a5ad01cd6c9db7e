//! The task of one mailbox: its prompts, one after the other.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, atomic::Ordering::SeqCst},
    task::Poll,
    time::Duration,
};

use parking_lot::Mutex;
use steadfast_core::{
    CallContext, Deadline, Failure, IntoFailure, Reason, Step,
    time::{Alarm, later},
};
use tokio::time::Instant;
use tower_service::Service;

use super::{
    Actor, BoxedReplies, Kinds, PostBody, Prompt, ThreadKey, ThreadPost, Threads, TurnFailure,
    mailbox::{Running, Waiting},
};
use crate::{
    event::{self, FailedTurn},
    panic::{Caught, Panicked, caught},
};

/// What is shown where nothing is wrong but the process ends.
const RESTART: TurnFailure = TurnFailure::Unknown("restart");

/// What runs the turns of one thread.
pub(super) struct Turns<S, R> {
    /// The service as it was given, which makes that of each thread.
    pub(super) original: Arc<Mutex<S>>,
    pub(super) sink: BoxedReplies<R>,
    pub(super) kinds: Kinds,
}

impl<S, R> Turns<S, R> {
    /// For another thread.
    pub(super) fn another(&self) -> Self {
        let (sink, kinds) = (self.sink.clone(), self.kinds.clone());
        Self { original: self.original.clone(), sink, kinds }
    }
}

/// Why a turn has no reply.
enum Broken {
    /// The service is not to be used again.
    NotReady(Failure),
    Failed(Failure),
    Panicked(Panicked),
}

/// How something ended that is limited.
enum Limited<O> {
    Ended(O),
    Aborted,
    TimedOut,
}

/// Runs the prompts of a thread until it is idle, evicted or stopped.
pub(super) async fn drain<S, T>(
    threads: Arc<Threads<T>>,
    actor: Arc<Actor<T>>,
    turns: Turns<S, S::Response>,
) where
    S: Service<Prompt<T>, Error: IntoFailure, Response: Send + 'static, Future: Send + 'static>
        + Clone
        + Send
        + 'static,
    T: Send + 'static,
{
    let _alive = Alive(&threads);
    // The thread's own, from its first turn on. A turn that did not end by itself takes it along.
    let mut service = None;
    loop {
        if threads.is_stopping() {
            turns.give_up(&threads, &actor).await;
            return;
        }
        let (next, idle_since) = {
            let mut mailbox = actor.mailbox.lock();
            if mailbox.is_closed {
                return;
            }
            (mailbox.start(), mailbox.idle_since)
        };
        let Some((waiting, running)) = next else {
            let until = later(idle_since, threads.policy.idle);
            let woken = tokio::time::timeout_at(until, actor.wake.notified()).await;
            if woken.is_err() && threads.evict(&actor) {
                return;
            }
            continue;
        };
        let context = waiting.context.clone();
        let kept = turns.run(&mut service, &threads, &actor.key, waiting, &running).await;
        if !kept {
            // It may be in any state.
            let _ = caught(|| service = None);
        }
        let next_id = || threads.next_id();
        actor.mailbox.lock().finish(&context, next_id, Instant::now());
        // A thread whose turns never wait leaves room for others.
        tokio::task::yield_now().await;
    }
}

/// Counts a task of a mailbox.
struct Alive<'a, T>(&'a Threads<T>);

impl<T> Drop for Alive<'_, T> {
    fn drop(&mut self) {
        self.0.tasks.fetch_sub(1, SeqCst);
        self.0.task_ended.notify_waiters();
    }
}

impl<S, R: Send + 'static> Turns<S, R> {
    /// Runs one prompt to its end. Whether the service may be used again.
    async fn run<T>(
        &self,
        service: &mut Option<S>,
        threads: &Threads<T>,
        thread: &ThreadKey,
        waiting: Waiting<T>,
        running: &Running<T>,
    ) -> bool
    where
        S: Service<Prompt<T>, Error: IntoFailure, Response = R, Future: Send + 'static>
            + Clone
            + Send
            + 'static,
        T: Send + 'static,
    {
        let Waiting { id, input, mut context } = waiting;
        let pipeline = threads.policy.pipeline;
        let started = Instant::now();
        let own = later(started, pipeline);
        context = context.with_deadline(Deadline::of_limit(own, pipeline));
        identify(&mut context, thread);
        let deadline = context.deadline.map_or(own, Deadline::instant);
        let log = context.log.clone();
        let steering = running.steering.shared();
        let prompt = Prompt { input, thread: thread.clone(), id, steering, context };

        let turn = limited(self.turn(service, prompt), deadline, running).await;
        let (replied, ended) = match turn {
            Limited::Ended(Ok(reply)) => {
                threads.counts.lock().replied += 1;
                let post = self.post(thread, id, PostBody::Reply(reply));
                (true, limited(post, deadline, running).await)
            }
            Limited::Ended(Err(broken)) => {
                threads.counts.lock().failed += 1;
                let is_kept = matches!(broken, Broken::Failed(_));
                let failure = self.report(thread, id, broken);
                self.post_text(thread, id, failure, threads.policy.notice).await;
                return is_kept;
            }
            Limited::Aborted => (false, Limited::Aborted),
            Limited::TimedOut => (false, Limited::TimedOut),
        };
        match ended {
            Limited::Ended(Ok(())) => return true,
            Limited::Ended(Err(error)) => event::post_failed(thread, id, "reply", &error),
            Limited::Aborted if threads.is_stopping() => {
                threads.counts.lock().aborted += u64::from(!replied);
                event::aborted(thread, id, "restart");
                self.post_text(thread, id, RESTART, threads.policy.notice).await;
            }
            Limited::Aborted => {
                threads.counts.lock().aborted += u64::from(!replied);
                event::aborted(thread, id, "by_hand");
            }
            Limited::TimedOut => {
                threads.counts.lock().timed_out += u64::from(!replied);
                let limit = deadline.saturating_duration_since(started);
                event::pipeline_timeout(thread, id, limit);
                log.record(|| {
                    Step::new("supervise", "aborted")
                        .with_reason(Reason::Timeout)
                        .with_wait(limit)
                        .with_detail("pipeline_timeout")
                });
                let failure = TurnFailure::Pipeline;
                self.post_text(thread, id, failure, threads.policy.notice).await;
            }
        }
        replied
    }

    /// The turn: the service, polled ready and called. Panics of it are results.
    async fn turn<T>(&self, service: &mut Option<S>, prompt: Prompt<T>) -> Result<R, Broken>
    where
        S: Service<Prompt<T>, Error: IntoFailure, Response = R> + Clone,
    {
        let (thread, id) = (prompt.thread.clone(), prompt.id);
        let service = match service {
            Some(service) => service,
            empty => {
                empty.insert(caught(|| self.original.lock().clone()).map_err(Broken::Panicked)?)
            }
        };
        poll_fn(|cx| match caught(|| service.poll_ready(cx)) {
            Ok(Poll::Ready(Err(error))) => Poll::Ready(Err(Broken::of(error, true))),
            Ok(ready) => ready.map(|_| Ok(())),
            Err(panicked) => Poll::Ready(Err(Broken::Panicked(panicked))),
        })
        .await?;
        let call = caught(|| service.call(prompt)).map_err(Broken::Panicked)?;
        match Caught::new(call).of(thread, id).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(Broken::of(error, false)),
            Err(panicked) => Err(Broken::Panicked(panicked)),
        }
    }

    /// Sends something to the user; the error as text.
    fn post(
        &self,
        thread: &ThreadKey,
        prompt: u64,
        body: PostBody<R>,
    ) -> impl Future<Output = Result<(), String>> + Send + use<S, R> {
        let sink = self.sink.clone();
        let post = ThreadPost::new(thread.clone(), prompt, body);
        let posting = Caught::new(async move { sink.post(post).await });
        let posting = posting.of(thread.clone(), prompt);
        async move {
            match posting.await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(failure)) => Err(event::chain(&failure)),
                Err(panicked) => Err(panicked.to_string()),
            }
        }
    }

    /// Sends a fixed text, within the time that it has.
    async fn post_text(&self, thread: &ThreadKey, id: u64, failure: TurnFailure, limit: Duration) {
        let post = self.post(thread, id, PostBody::Failed(failure));
        match tokio::time::timeout(limit, post).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => event::post_failed(thread, id, "text", &error),
            Err(_) => event::post_failed(thread, id, "text", "it was not sent in time"),
        }
    }

    /// Reports a turn without a reply, once, and decides what its user is shown.
    fn report(&self, thread: &ThreadKey, prompt: u64, broken: Broken) -> TurnFailure {
        let (failure, reason, error, backtrace) = match broken {
            Broken::NotReady(failure) | Broken::Failed(failure) => {
                let kind = caught(|| (self.kinds)(&failure));
                let kind = kind.unwrap_or_else(|_| TurnFailure::of(&failure));
                (kind, failure.reason().as_str(), event::chain(&failure), None)
            }
            Broken::Panicked(panicked) => {
                (TurnFailure::Unknown("panic"), "panic", panicked.to_string(), panicked.backtrace)
            }
        };
        event::turn_failed(&FailedTurn {
            thread,
            prompt,
            kind: failure.as_str(),
            reason,
            error,
            backtrace: backtrace.as_deref(),
        });
        failure
    }

    /// The process ends: what waits will not run, and its user is notified.
    async fn give_up<T>(&self, threads: &Threads<T>, actor: &Actor<T>) {
        let waiting = actor.mailbox.lock().clear();
        if let Some(first) = waiting.front() {
            let id = first.id;
            self.post_text(&actor.key, id, RESTART, threads.policy.notice).await;
        }
        let mut map = threads.map.write();
        actor.mailbox.lock().is_closed = true;
        map.remove(&actor.key);
    }
}

impl Broken {
    fn of(error: impl Into<Failure>, is_service_over: bool) -> Self {
        match caught(|| error.into()) {
            Ok(failure) if is_service_over => Self::NotReady(failure),
            Ok(failure) => Self::Failed(failure),
            Err(panicked) => Self::Panicked(panicked),
        }
    }
}

/// Waits for this, the abort of the run, or its deadline, whichever is first; then this is dropped.
async fn limited<F: Future, T>(
    future: F,
    deadline: Instant,
    running: &Running<T>,
) -> Limited<F::Output> {
    let mut future = pin!(future);
    let mut abort = pin!(running.abort.notified());
    let mut alarm = Alarm::at(deadline);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Limited::Ended(output));
        }
        if abort.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Limited::Aborted);
        }
        alarm.poll(cx).map(|()| Limited::TimedOut)
    })
    .await
}

/// The context's caller is the thread's, where it names none.
fn identify(context: &mut CallContext, thread: &ThreadKey) {
    let (tenant, session) = (context.tenant().is_none(), context.session().is_none());
    let identity = context.identity_mut();
    if tenant {
        identity.tenant = thread.tenant().map(Into::into);
    }
    if session {
        identity.session = Some(thread.thread().into());
    }
}
