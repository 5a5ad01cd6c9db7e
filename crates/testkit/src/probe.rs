//! The scripted inner service of every clause.

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
    action::{Action, Ending, Pause, Pieces, scripted_failure},
};

/// A scripted service that records how it is used.
///
/// It has a number of permits: a poll of readiness acquires one, which a call passes on to its
/// future, and which is released when that is over or dropped; a clone has none. Its
/// [`ProbeHandle`] scripts it and shows what it recorded. It never panics: calls against tower's
/// rules are [recorded](ProbeHandle::misuse).
///
/// Its future is not `Unpin`.
pub struct Probe<E: Exchange> {
    exchange: E,
    shared: Arc<ProbeState>,
    last: Arc<Mutex<Option<E::Request>>>,
    /// Identifies the clone in [`State::waiting`].
    id: u64,
    ready: bool,
    /// A service to forward calls to, instead of scripted replies.
    forward: Option<Inner<E>>,
}

type Inner<E> = BoxCloneSyncService<<E as Exchange>::Request, <E as Exchange>::Reply, Failure>;

#[derive(Debug)]
pub(crate) struct ProbeState {
    pub(crate) state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// Permits: calls and unused readiness there may be at a time.
    capacity: usize,
    /// Readiness that was granted and not used.
    reserved: usize,
    /// Futures that are neither over nor dropped.
    futures: usize,
    pub(crate) bodies: usize,
    broken: bool,
    waiting: HashMap<u64, Waker>,
    next_id: u64,
    script: VecDeque<Action>,
    default_action: Action,
    calls: u64,
    granted: u64,
    misuse: Vec<&'static str>,
    recording: bool,
}

/// Scripts a [`Probe`] and its clones, and shows what they recorded. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ProbeHandle(Arc<ProbeState>);

impl<E: Exchange> Probe<E> {
    /// A probe with the types of `exchange` that is always ready and answers.
    pub fn new(exchange: E) -> (Self, ProbeHandle) {
        let state = State {
            capacity: usize::MAX,
            reserved: 0,
            futures: 0,
            bodies: 0,
            broken: false,
            waiting: HashMap::new(),
            next_id: 1,
            script: VecDeque::new(),
            default_action: Action::answer(),
            calls: 0,
            granted: 0,
            misuse: Vec::new(),
            recording: false,
        };
        let shared = Arc::new(ProbeState { state: Mutex::new(state) });
        let handle = ProbeHandle(shared.clone());
        (
            Self { exchange, shared, last: Arc::default(), id: 0, ready: false, forward: None },
            handle,
        )
    }

    /// A probe that forwards every call to `service`, and records how it is used.
    pub fn forwarding<S>(exchange: E, service: S) -> (Self, ProbeHandle)
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
        probe.forward = Some(service);
        (probe, handle)
    }

    /// The last request since [`ProbeHandle::record`].
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
            forward: self.forward.clone(),
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
    type Future = ProbeFuture<E>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if let Some(inner) = &mut self.forward {
            ready!(inner.poll_ready(cx))?;
        }
        let mut state = self.shared.state.lock();
        if state.broken {
            return Poll::Ready(Err(Failure::new(Reason::Network, BROKEN)));
        }
        if self.ready {
            return Poll::Ready(Ok(()));
        }
        if state.reserved + state.futures >= state.capacity {
            state.waiting.insert(self.id, cx.waker().clone());
            return Poll::Pending;
        }
        state.waiting.remove(&self.id);
        state.reserved += 1;
        state.granted += 1;
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: E::Request) -> ProbeFuture<E> {
        let mut state = self.shared.state.lock();
        state.calls += 1;
        if std::mem::take(&mut self.ready) {
            state.reserved -= 1;
        } else {
            state.misuse.push("it was called without having been polled ready since its last call");
        }
        state.futures += 1;
        let default_action = state.default_action;
        let action = state.script.pop_front().unwrap_or(default_action);
        if state.recording {
            *self.last.lock() = Some(request.clone());
        }
        drop(state);
        let call = match &mut self.forward {
            Some(inner) => ProbeCall::Forwarded { call: inner.call(request) },
            None => ProbeCall::Scripted {
                exchange: self.exchange.clone(),
                action,
                pause: Pause::default(),
            },
        };
        let permit = ProbePermit { shared: self.shared.clone(), freed: false };
        ProbeFuture { call, permit, _pinned: PhantomPinned }
    }
}

/// The message of the failure of a probe that broke down.
pub(crate) const BROKEN: &str = "the probe has failed permanently";

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

enum ProbeCall<E: Exchange> {
    Scripted { exchange: E, action: Action, pause: Pause },
    Forwarded { call: BoxFuture<Result<E::Reply, Failure>> },
}

/// Held until the call is over.
struct ProbePermit {
    shared: Arc<ProbeState>,
    freed: bool,
}

impl ProbePermit {
    fn free(&mut self) {
        if !std::mem::replace(&mut self.freed, true) {
            let mut state = self.shared.state.lock();
            state.futures -= 1;
            state.wake();
        }
    }
}

impl Drop for ProbePermit {
    fn drop(&mut self) {
        self.free();
    }
}

pin_project! {
    /// The future of a call of a [`Probe`].
    #[must_use = "futures do nothing unless polled"]
    pub struct ProbeFuture<E: Exchange> {
        call: ProbeCall<E>,
        permit: ProbePermit,
        #[pin]
        _pinned: PhantomPinned,
    }
}

impl<E: Exchange> Future for ProbeFuture<E> {
    type Output = Result<E::Reply, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.permit.freed {
            let mut state = this.permit.shared.state.lock();
            state.misuse.push("its future was polled after it was ready");
            return Poll::Pending;
        }
        let result = match this.call {
            ProbeCall::Forwarded { call } => ready!(call.as_mut().poll(cx)),
            ProbeCall::Scripted { exchange, action, pause } => {
                ready!(pause.poll(action.slow, cx));
                match action.head {
                    Ending::Complete => {
                        let pieces = Pieces::new(*action, this.permit.shared.clone());
                        Ok(exchange.reply(pieces))
                    }
                    Ending::Fails(reason) => Err(scripted_failure(reason)),
                    Ending::Hangs => return Poll::Pending,
                }
            }
        };
        this.permit.free();
        Poll::Ready(result)
    }
}

impl ProbeHandle {
    /// What it does with the next calls, in order; then the default again.
    pub fn script(&self, actions: impl IntoIterator<Item = Action>) {
        let mut state = self.0.state.lock();
        state.script.clear();
        state.script.extend(actions);
    }

    /// What it does with calls that are not in the script.
    pub fn set_default(&self, action: Action) {
        self.0.state.lock().default_action = action;
    }

    /// Changes the number of its permits; those held are kept.
    pub fn set_capacity(&self, capacity: usize) {
        let mut state = self.0.state.lock();
        state.capacity = capacity;
        state.wake();
    }

    /// Its readiness fails from now on.
    pub fn break_down(&self) {
        let mut state = self.0.state.lock();
        state.broken = true;
        state.wake();
    }

    /// Keeps the last request from now on.
    pub fn record(&self) {
        self.0.state.lock().recording = true;
    }

    /// How often it was called.
    pub fn calls(&self) -> u64 {
        self.0.state.lock().calls
    }

    /// How often its readiness was granted.
    pub fn granted(&self) -> u64 {
        self.0.state.lock().granted
    }

    /// Readiness that was granted and not used yet.
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

    /// How it was used against tower's rules.
    pub fn misuse(&self) -> Vec<&'static str> {
        self.0.state.lock().misuse.clone()
    }
}

impl<E: Exchange> fmt::Debug for Probe<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl<E: Exchange> fmt::Debug for ProbeFuture<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeFuture").field("done", &self.permit.freed).finish_non_exhaustive()
    }
}
