//! The inner service of every clause.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    marker::PhantomPinned,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use parking_lot::Mutex;
use pin_project_lite::pin_project;
use steadfast_core::{Failure, Reason};
use tower::util::BoxCloneSyncService;
use tower_service::Service;

use crate::{
    Exchange,
    act::{Act, Ending, Pause, Pieces, told},
};

/// A service that does as it is told, and watches how it is treated.
///
/// It has a number of places: a poll of readiness takes one, which a call passes on to its future,
/// and which is free again when that is over or dropped; a clone begins without one. What it is
/// told and what it saw goes through its [`ProbeHandle`]. It never panics: what is done to it
/// against the rules is [counted](ProbeHandle::misuse).
///
/// Its future is not `Unpin`.
pub struct Probe<E: Exchange> {
    exchange: E,
    shared: Arc<Shared>,
    last: Arc<Mutex<Option<E::Request>>>,
    /// To know who waits for readiness, and who need not any more.
    id: u64,
    ready: bool,
    /// Passes everything on to this, and watches.
    over: Option<Relayed<E>>,
}

type Relayed<E> = BoxCloneSyncService<<E as Exchange>::Request, <E as Exchange>::Reply, Failure>;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// Calls and kept readiness there may be at a time.
    places: usize,
    /// Readiness that was given and not used.
    reserved: usize,
    /// Futures that are neither over nor dropped.
    futures: usize,
    pub(crate) bodies: usize,
    broken: bool,
    waiting: HashMap<u64, Waker>,
    next_id: u64,
    acts: VecDeque<Act>,
    usual: Act,
    calls: u64,
    granted: u64,
    misuse: Vec<&'static str>,
    recording: bool,
}

/// Tells a [`Probe`] and its clones what to do, and what they saw. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ProbeHandle(Arc<Shared>);

impl<E: Exchange> Probe<E> {
    /// A probe that replies in `exchange`, is always ready and answers.
    pub fn new(exchange: E) -> (Self, ProbeHandle) {
        let state = State {
            places: usize::MAX,
            reserved: 0,
            futures: 0,
            bodies: 0,
            broken: false,
            waiting: HashMap::new(),
            next_id: 1,
            acts: VecDeque::new(),
            usual: Act::answer(),
            calls: 0,
            granted: 0,
            misuse: Vec::new(),
            recording: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state) });
        let handle = ProbeHandle(shared.clone());
        (Self { exchange, shared, last: Arc::default(), id: 0, ready: false, over: None }, handle)
    }

    /// A probe that passes everything on to `service`, and watches how it is treated.
    pub fn over<S>(exchange: E, service: S) -> (Self, ProbeHandle)
    where
        S: Service<E::Request, Response = E::Reply, Error: Into<Failure>, Future: Send + 'static>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        use tower::ServiceExt as _;
        let (mut probe, handle) = Self::new(exchange);
        let service = BoxCloneSyncService::new(service.map_err(Into::into));
        probe.over = Some(service);
        (probe, handle)
    }

    /// The last request, when the probe was told to keep it ([`ProbeHandle::record`]).
    pub fn last(&self) -> Option<E::Request> {
        self.last.lock().clone()
    }
}

impl<E: Exchange> Clone for Probe<E> {
    fn clone(&self) -> Self {
        let mut state = self.shared.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        Self {
            exchange: self.exchange.clone(),
            shared: self.shared.clone(),
            last: self.last.clone(),
            id,
            ready: false,
            over: self.over.clone(),
        }
    }
}

impl<E: Exchange> Drop for Probe<E> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.waiting.remove(&self.id);
        if self.ready {
            state.reserved -= 1;
            state.wake();
        }
    }
}

impl State {
    fn wake(&mut self) {
        self.waiting.drain().for_each(|(_, waker)| waker.wake());
    }
}

impl<E: Exchange> Service<E::Request> for Probe<E> {
    type Response = E::Reply;
    type Error = Failure;
    type Future = Answering<E>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if let Some(over) = &mut self.over {
            ready!(over.poll_ready(cx))?;
        }
        let mut state = self.shared.state.lock();
        if state.broken {
            return Poll::Ready(Err(Failure::new(Reason::Network, BROKEN)));
        }
        if self.ready {
            return Poll::Ready(Ok(()));
        }
        if state.reserved + state.futures >= state.places {
            state.waiting.insert(self.id, cx.waker().clone());
            return Poll::Pending;
        }
        state.waiting.remove(&self.id);
        state.reserved += 1;
        state.granted += 1;
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: E::Request) -> Answering<E> {
        let mut state = self.shared.state.lock();
        state.calls += 1;
        if std::mem::take(&mut self.ready) {
            state.reserved -= 1;
        } else {
            state.misuse.push("it was called without having been polled ready since its last call");
        }
        state.futures += 1;
        let usual = state.usual;
        let act = state.acts.pop_front().unwrap_or(usual);
        if state.recording {
            *self.last.lock() = Some(request.clone());
        }
        drop(state);
        let course = match &mut self.over {
            Some(over) => Course::Relay { call: over.call(request) },
            None => Course::Own { exchange: self.exchange.clone(), act, pause: Pause::default() },
        };
        let place = Place { shared: self.shared.clone(), over: false };
        Answering { course, place, _pinned: PhantomPinned }
    }
}

/// What the failure of a broken probe says.
pub(crate) const BROKEN: &str = "the probe is broken for good";

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

enum Course<E: Exchange> {
    Own { exchange: E, act: Act, pause: Pause },
    Relay { call: BoxFuture<Result<E::Reply, Failure>> },
}

/// A place that is taken until the call is over.
struct Place {
    shared: Arc<Shared>,
    over: bool,
}

impl Place {
    fn free(&mut self) {
        if !std::mem::replace(&mut self.over, true) {
            let mut state = self.shared.state.lock();
            state.futures -= 1;
            state.wake();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.free();
    }
}

pin_project! {
    /// The future of a call of a [`Probe`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Answering<E: Exchange> {
        course: Course<E>,
        place: Place,
        #[pin]
        _pinned: PhantomPinned,
    }
}

impl<E: Exchange> Future for Answering<E> {
    type Output = Result<E::Reply, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.place.over {
            let mut state = this.place.shared.state.lock();
            state.misuse.push("its future was polled after it was ready");
            return Poll::Pending;
        }
        let result = match this.course {
            Course::Relay { call } => ready!(call.as_mut().poll(cx)),
            Course::Own { exchange, act, pause } => {
                ready!(pause.poll(act.slow, cx));
                match act.head {
                    Ending::Well => {
                        let pieces = Pieces::new(*act, this.place.shared.clone());
                        Ok(exchange.reply(pieces))
                    }
                    Ending::Fails(reason) => Err(told(reason)),
                    Ending::Hangs => return Poll::Pending,
                }
            }
        };
        this.place.free();
        Poll::Ready(result)
    }
}

impl ProbeHandle {
    /// What it does with the next calls, in order; then the usual again.
    pub fn next(&self, acts: impl IntoIterator<Item = Act>) {
        let mut state = self.0.state.lock();
        state.acts.clear();
        state.acts.extend(acts);
    }

    /// What it does with calls that it was told nothing about.
    pub fn usually(&self, act: Act) {
        self.0.state.lock().usual = act;
    }

    /// It has so many places from now on; those taken stay taken.
    pub fn places(&self, places: usize) {
        let mut state = self.0.state.lock();
        state.places = places;
        state.wake();
    }

    /// Its readiness fails from now on, for good.
    pub fn break_down(&self) {
        let mut state = self.0.state.lock();
        state.broken = true;
        state.wake();
    }

    /// It keeps the last request from now on.
    pub fn record(&self) {
        self.0.state.lock().recording = true;
    }

    /// How often it was called.
    pub fn calls(&self) -> u64 {
        self.0.state.lock().calls
    }

    /// How often its readiness was given to somebody.
    pub fn granted(&self) -> u64 {
        self.0.state.lock().granted
    }

    /// Readiness that was given and not used yet.
    pub fn reserved(&self) -> usize {
        self.0.state.lock().reserved
    }

    /// Calls that are neither over nor dropped.
    pub fn futures(&self) -> usize {
        self.0.state.lock().futures
    }

    /// Replies that are not dropped.
    pub fn bodies(&self) -> usize {
        self.0.state.lock().bodies
    }

    /// What was done to it against the rules.
    pub fn misuse(&self) -> Vec<&'static str> {
        self.0.state.lock().misuse.clone()
    }
}

impl<E: Exchange> fmt::Debug for Probe<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl<E: Exchange> fmt::Debug for Answering<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answering").field("over", &self.place.over).finish_non_exhaustive()
    }
}
