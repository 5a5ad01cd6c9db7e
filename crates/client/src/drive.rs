//! Connections that whoever waits for their bytes can move on.
//!
//! hyper reads a connection in a task of its own and hands a body over chunk by chunk, one at a
//! time: eight events that arrived together are eight switches between two tasks, and eight writes
//! to the caller. A reader that has just been given a chunk moves the connection on itself instead,
//! so that it gets what has arrived with it at once. Nothing waits for anything: a connection that
//! has nothing more to give stays with its task, which is woken as ever.

use std::{
    cell::RefCell,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock, Weak},
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

thread_local! {
    /// The connection that is being polled on this thread, while its stream looks for it.
    static POLLED: RefCell<Option<Weak<Connection>>> = const { RefCell::new(None) };
}

/// Runs what a connection pool spawns, connections among it, on tokio.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spawn;

impl hyper::rt::Executor<BoxFuture> for Spawn {
    fn execute(&self, future: BoxFuture) {
        let state = State { future: Some(future), waker: None };
        tokio::spawn(Task(Arc::new(Connection {
            state: Mutex::new(state),
            link: OnceLock::new(),
        })));
    }
}

/// What is polled by its task, or by who holds a [`Link`] to it.
struct Connection {
    state: Mutex<State>,
    /// Set once its stream has found it.
    link: OnceLock<()>,
}

struct State {
    /// `None` once it has ended.
    future: Option<BoxFuture>,
    /// The task's.
    waker: Option<Waker>,
}

impl State {
    fn poll(&mut self) -> Poll<()> {
        let (Some(future), Some(waker)) = (&mut self.future, &self.waker) else {
            return Poll::Ready(());
        };
        let polled = future.as_mut().poll(&mut Context::from_waker(waker));
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

/// The task of a connection.
struct Task(Arc<Connection>);

impl Future for Task {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let connection = &self.0;
        let mut state = connection.state.lock();
        if state.waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        if connection.link.get().is_some() {
            return state.poll();
        }
        POLLED.set(Some(Arc::downgrade(connection)));
        let polled = state.poll();
        POLLED.set(None);
        polled
    }
}

/// The way from a stream, and from the answers that come over it, to the connection around it.
#[derive(Clone, Default)]
pub(crate) struct Link(Arc<OnceLock<Weak<Connection>>>);

impl Link {
    /// Called by the stream whenever it is read: the first time it finds out by whom.
    pub(crate) fn find(&self) {
        if self.0.get().is_none()
            && let Some(connection) = POLLED.take()
        {
            if let Some(connection) = connection.upgrade() {
                connection.link.get_or_init(|| ());
            }
            self.0.get_or_init(|| connection);
        }
    }

    /// Polls the connection in the name of its task, unless somebody does so at this moment.
    /// Whether it was polled.
    pub(crate) fn drive(&self) -> bool {
        let Some(connection) = self.0.get().and_then(Weak::upgrade) else { return false };
        let Some(mut state) = connection.state.try_lock() else { return false };
        if state.future.is_none() || state.waker.is_none() {
            return false;
        }
        if state.poll().is_ready()
            && let Some(task) = &state.waker
        {
            // To find that there is nothing left.
            task.wake_by_ref();
        }
        true
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("found", &self.0.get().is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use hyper::rt::Executor as _;
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    #[tokio::test]
    async fn is_moved_on_by_whoever_has_the_link_and_ends_once() {
        let link = Link::default();
        assert!(!link.drive(), "nothing has been found yet");
        let (say, mut heard) = mpsc::unbounded_channel();
        let (end, mut ended) = oneshot::channel::<()>();
        let inner = link.clone();
        Spawn.execute(Box::pin(std::future::poll_fn(move |cx| {
            inner.find();
            let _ = say.send(());
            Pin::new(&mut ended).poll(cx).map(|_| ())
        })));
        heard.recv().await.unwrap();
        assert!(link.drive());
        heard.try_recv().unwrap();
        // The waker of the last poll is the task's.
        end.send(()).unwrap();
        heard.recv().await.unwrap();
        assert_eq!(heard.recv().await, None, "dropped with what it held");
        assert!(!link.drive());
    }

    #[tokio::test]
    async fn one_that_ends_while_it_is_driven_is_over_for_its_task_too() {
        let link = Link::default();
        let (inner, mut polls) = (link.clone(), 0);
        let (done, over) = oneshot::channel::<()>();
        let mut done = Some(done);
        Spawn.execute(Box::pin(std::future::poll_fn(move |_| {
            inner.find();
            polls += 1;
            assert!(polls < 3, "polled after its end");
            if polls < 2 {
                return Poll::Pending;
            }
            done.take();
            Poll::Ready(())
        })));
        tokio::task::yield_now().await;
        assert!(link.drive());
        assert!(over.await.is_err());
        tokio::task::yield_now().await;
        assert!(!link.drive());
    }
}
