//! Connections that whoever waits for their bytes can move on.
//!
//! hyper reads a connection in a task of its own and hands a body over chunk by chunk, one at a
//! time: eight events that arrived together are eight switches between two tasks, and eight writes
//! to the caller. A reader that has just been given a chunk moves the connection on itself instead,
//! so that it gets what has arrived with it at once.
//!
//! While one answer is all that a connection has to do, as with HTTP/1, its reader takes the
//! connection over ([`Link::claim`]): what wakes the connection then wakes the reader, which reads
//! the socket in its own name, and the connection's task rests until the answer is over. So a chunk
//! that comes alone costs one task switch instead of three.

use std::{
    cell::RefCell,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock, Weak},
    task::{Context, Poll, Wake, Waker},
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
        tokio::spawn(Task(Arc::new(Connection {
            future: Mutex::new(Some(future)),
            woken: Mutex::default(),
            link: OnceLock::new(),
        })));
    }
}

/// What is polled by its task, or by who holds a [`Link`] to it. It is its own waker, since who has
/// to hear of it changes.
struct Connection {
    /// `None` once it has ended.
    future: Mutex<Option<BoxFuture>>,
    /// Held for moments only, and never while something else is called.
    woken: Mutex<Woken>,
    /// Set once its stream has found it.
    link: OnceLock<()>,
}

/// Who hears of it when the connection is woken.
#[derive(Default)]
struct Woken {
    /// The task; `None` until it is polled first.
    task: Option<Waker>,
    /// A reader has taken it over.
    claimed: bool,
    /// There has been a reason to poll it since the reader last did.
    due: bool,
    /// The reader looks at the connection at this moment, and will see what is due.
    active: bool,
    /// The reader, while it waits.
    reader: Option<Waker>,
}

impl Woken {
    /// Whom to tell that the connection is to be polled.
    fn wake(&mut self) -> Option<Waker> {
        if !self.claimed {
            return self.task.clone();
        }
        self.due = true;
        match self.reader.take() {
            Some(reader) => Some(reader),
            None if self.active => None,
            // A reader that does not read may not do so for long, and a connection whose answer was
            // there at once may have the next call already.
            None => self.task.clone(),
        }
    }
}

impl Wake for Connection {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let waker = self.woken.lock().wake();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Connection {
    fn poll(self: &Arc<Self>, future: &mut Option<BoxFuture>) -> Poll<()> {
        let Some(running) = future else { return Poll::Ready(()) };
        let waker = Waker::from(self.clone());
        let polled = running.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            *future = None;
        }
        polled
    }

    /// The reader that has taken it over, if any, is to look what has happened.
    fn tell_reader(&self) {
        let mut woken = self.woken.lock();
        woken.due |= woken.claimed;
        let waker = woken.reader.take();
        drop(woken);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The task of a connection.
struct Task(Arc<Connection>);

impl Future for Task {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let connection = &self.0;
        {
            let mut woken = connection.woken.lock();
            if woken.task.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
                woken.task = Some(cx.waker().clone());
            }
        }
        let mut future = connection.future.lock();
        let found = connection.link.get().is_some();
        if !found {
            POLLED.set(Some(Arc::downgrade(connection)));
        }
        let polled = connection.poll(&mut future);
        if !found {
            POLLED.set(None);
        }
        drop(future);
        // A reader does not wait for the body itself.
        connection.tell_reader();
        polled
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // Wakers that have gone out would keep it.
        let future = self.0.future.lock().take();
        drop(future);
        self.0.tell_reader();
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
        self.0.get().and_then(Weak::upgrade).is_some_and(|connection| drive(&connection))
    }

    /// Takes the connection over, for an answer that is all it has to do. `None` when the connection
    /// is not known or somebody else has it.
    pub(crate) fn claim(&self) -> Option<Claim> {
        let connection = self.0.get().and_then(Weak::upgrade)?;
        {
            let mut woken = connection.woken.lock();
            if std::mem::replace(&mut woken.claimed, true) {
                return None;
            }
            // Whatever woke it so far woke its task.
            woken.due = true;
        }
        Some(Claim(connection))
    }
}

fn drive(connection: &Arc<Connection>) -> bool {
    let Some(mut future) = connection.future.try_lock() else { return false };
    if future.is_none() {
        return false;
    }
    if connection.poll(&mut future).is_ready() {
        drop(future);
        // To find that there is nothing left.
        let task = connection.woken.lock().task.clone();
        if let Some(task) = task {
            task.wake();
        }
    }
    true
}

/// A connection that a reader has taken over: it is to be moved on whenever it [is
/// due](Self::is_due). Dropping this gives it back to its task.
pub(crate) struct Claim(Arc<Connection>);

impl Claim {
    /// The reader looks at the connection, until it [leaves](Self::leave) or [parks](Self::park).
    pub(crate) fn enter(&self) {
        self.0.woken.lock().active = true;
    }

    /// The reader has got something, and may come back at any time.
    pub(crate) fn leave(&self) {
        self.0.woken.lock().active = false;
    }

    /// Whether there has been a reason to move the connection on since it last was.
    pub(crate) fn is_due(&self) -> bool {
        self.0.woken.lock().due
    }

    /// Polls the connection, unless its task does so at this moment; then that says when it is
    /// through.
    pub(crate) fn drive(&self) {
        self.0.woken.lock().due = false;
        drive(&self.0);
    }

    /// Wakes `waker` once the connection is due. `false` when it is already.
    pub(crate) fn park(&self, waker: &Waker) -> bool {
        let mut woken = self.0.woken.lock();
        if woken.due {
            return false;
        }
        let known = woken.reader.as_ref().is_some_and(|reader| reader.will_wake(waker));
        let before = if known { None } else { woken.reader.replace(waker.clone()) };
        woken.active = false;
        drop(woken);
        drop(before);
        true
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let (task, _reader) = {
            let mut woken = self.0.woken.lock();
            (woken.claimed, woken.active) = (false, false);
            (woken.task.clone(), woken.reader.take())
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("found", &self.0.get().is_some()).finish()
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").finish_non_exhaustive()
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

    /// A connection that counts its polls and says of each, and ends when it is told to.
    struct Driven {
        link: Link,
        polls: mpsc::UnboundedReceiver<()>,
        wakers: mpsc::UnboundedReceiver<Waker>,
        end: oneshot::Sender<()>,
    }

    impl Driven {
        async fn start() -> Self {
            let link = Link::default();
            let (say, mut polls) = mpsc::unbounded_channel();
            let (tell, mut wakers) = mpsc::unbounded_channel();
            let (end, mut ended) = oneshot::channel::<()>();
            let inner = link.clone();
            Spawn.execute(Box::pin(std::future::poll_fn(move |cx| {
                inner.find();
                let _ = say.send(());
                let _ = tell.send(cx.waker().clone());
                Pin::new(&mut ended).poll(cx).map(|_| ())
            })));
            polls.recv().await.unwrap();
            wakers.recv().await.unwrap();
            Self { link, polls, wakers, end }
        }

        async fn is_at_rest(&mut self) -> bool {
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            self.polls.try_recv().is_err()
        }
    }

    /// A waker that can be asked whether it was woken.
    fn reader() -> (Arc<Flag>, Waker) {
        let flag = Arc::new(Flag::default());
        (flag.clone(), Waker::from(flag))
    }

    #[derive(Default)]
    struct Flag(std::sync::atomic::AtomicUsize);

    impl Flag {
        fn count(&self) -> usize {
            self.0.load(std::sync::atomic::Ordering::SeqCst)
        }
    }

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn what_wakes_a_claimed_connection_wakes_its_reader_alone() {
        let mut driven = Driven::start().await;
        let claim = driven.link.claim().unwrap();
        assert!(driven.link.claim().is_none(), "one at a time");
        let (flag, waker) = reader();
        assert!(claim.is_due() && !claim.park(&waker), "nobody knows what was missed");
        claim.drive();
        assert!(!claim.is_due() && claim.park(&waker));
        driven.polls.recv().await.unwrap();
        let wake = driven.wakers.recv().await.unwrap();

        wake.wake_by_ref();
        assert_eq!((flag.count(), claim.is_due()), (1, true));
        claim.enter();
        wake.wake_by_ref();
        assert_eq!(flag.count(), 1, "once until it waits again");
        assert!(!claim.park(&waker) && driven.is_at_rest().await);

        claim.leave();
        wake.wake_by_ref();
        driven.polls.recv().await.expect("nobody reads, so the task goes on");
        driven.wakers.recv().await.unwrap();
        assert_eq!(flag.count(), 1);

        drop(claim);
        driven.polls.recv().await.expect("its task goes on");
        wake.wake_by_ref();
        driven.polls.recv().await.expect("and hears of it again");
        assert_eq!(flag.count(), 1);
        assert!(driven.link.claim().is_some());
    }

    #[tokio::test]
    async fn a_reader_hears_when_the_connection_is_polled_by_its_task_or_ends() {
        let mut driven = Driven::start().await;
        driven.link.drive();
        driven.polls.recv().await.unwrap();
        // Its task is woken before the claim, and runs after it.
        driven.wakers.recv().await.unwrap().wake();
        let claim = driven.link.claim().unwrap();
        let (flag, waker) = reader();
        claim.drive();
        driven.polls.recv().await.unwrap();
        assert!(claim.park(&waker));
        driven.polls.recv().await.expect("the task");
        tokio::task::yield_now().await;
        assert_eq!((flag.count(), claim.is_due()), (1, true));

        claim.drive();
        assert!(claim.park(&waker));
        driven.end.send(()).unwrap();
        assert_eq!(flag.count(), 2, "what ends it wakes it");
        claim.drive();
        drop(claim);
        while driven.polls.recv().await.is_some() {}
        assert!(!driven.link.drive(), "over for its task too");
    }

    #[test]
    fn a_reader_hears_when_the_runtime_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let driven = runtime.block_on(Driven::start());
        let claim = driven.link.claim().unwrap();
        let (flag, waker) = reader();
        claim.drive();
        assert!(claim.park(&waker));
        drop(runtime);
        assert_eq!(flag.count(), 1);
        assert!(driven.polls.is_closed(), "dropped, though wakers of it are left");
    }
}
