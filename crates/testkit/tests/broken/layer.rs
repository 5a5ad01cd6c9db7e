//! A layer that is sound, or has one flaw.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http_body::{Body, Frame};
use parking_lot::Mutex;
use steadfast_core::{Failure, Reason};
use steadfast_testkit::ProbeBody;
use tokio::sync::Notify;
use tower::{Layer, Service, ServiceExt};

use crate::flaw::Flaw;

/// Concurrent calls; the next one is refused. More than the clauses have under way at once, fewer
/// than they drop in a row.
const PERMITS: u64 = 9;

/// Refuses calls beyond [`PERMITS`], and all of them when switched to that.
#[derive(Clone, Debug)]
pub(crate) struct Limited {
    flaw: Flaw,
    pub(crate) state: Arc<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) calls: AtomicU64,
    pub(crate) taken: AtomicU64,
    pub(crate) refuses: AtomicBool,
    polled: Notify,
    seen: Mutex<Vec<Bytes>>,
    wakers: Arc<Mutex<Vec<Waker>>>,
}

static SHARED_STATE: LazyLock<Arc<State>> = LazyLock::new(Arc::default);

impl Limited {
    pub(crate) fn new(flaw: Flaw) -> Self {
        let state = match flaw {
            Flaw::StateOfTheProcess => SHARED_STATE.clone(),
            _ => Arc::default(),
        };
        Self { flaw, state }
    }
}

impl<S> Layer<S> for Limited {
    type Service = Service_<S>;

    fn layer(&self, inner: S) -> Service_<S> {
        let state = match self.flaw {
            Flaw::StateOfTheService => Arc::default(),
            _ => self.state.clone(),
        };
        Service_ { flaw: self.flaw, state, inner, ready: false, hoard: Vec::new() }
    }
}

pub(crate) struct Service_<S> {
    flaw: Flaw,
    state: Arc<State>,
    inner: S,
    ready: bool,
    hoard: Vec<S>,
}

impl<S: Clone> Clone for Service_<S> {
    fn clone(&self) -> Self {
        Self {
            flaw: self.flaw,
            state: self.state.clone(),
            inner: self.inner.clone(),
            ready: self.ready,
            hoard: Vec::new(),
        }
    }
}

impl<S> fmt::Debug for Service_<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Service");
        if self.flaw == Flaw::ShowsRequests {
            out.field("seen", &self.state.seen);
        }
        out.finish_non_exhaustive()
    }
}

type Request = http::Request<Bytes>;
type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<S> Service<Request> for Service_<S>
where
    S: Service<Request, Response = http::Response<ProbeBody>, Error = Failure>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
{
    type Response = http::Response<LimitedBody>;
    type Error = Failure;
    type Future = BoxFuture<Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.state.polled.notify_waiters();
        match self.flaw {
            Flaw::PollsNewClones => {
                let mut clone = self.inner.clone();
                let ready = clone.poll_ready(cx);
                if ready.is_ready() {
                    self.inner = clone;
                }
                ready
            }
            Flaw::LosesReadiness => {
                let ready = self.inner.poll_ready(cx);
                // The second poll gives its permit away.
                if std::mem::replace(&mut self.ready, ready.is_ready()) {
                    self.inner = self.inner.clone();
                    self.ready = false;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                ready
            }
            Flaw::ClonesReadiness if self.ready => Poll::Ready(Ok(())),
            Flaw::ClonesReadiness => {
                let ready = self.inner.poll_ready(cx);
                self.ready = ready.is_ready();
                ready
            }
            Flaw::AlwaysReady => Poll::Ready(Ok(())),
            Flaw::NoWakerInReadiness => {
                self.inner.poll_ready(&mut Context::from_waker(Waker::noop()))
            }
            Flaw::SwallowsErrors => self.inner.poll_ready(cx).map(|_| Ok(())),
            Flaw::WaitsForTheBroken => match self.inner.poll_ready(cx) {
                Poll::Ready(Err(_)) => Poll::Pending,
                other => other,
            },
            Flaw::FailsInReadiness if self.state.refuses.load(SeqCst) => {
                Poll::Ready(Err(refused()))
            }
            Flaw::SpinsInReadiness => {
                let ready = self.inner.poll_ready(cx);
                if ready.is_pending() {
                    cx.waker().wake_by_ref();
                }
                ready
            }
            _ => self.inner.poll_ready(cx),
        }
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        self.ready = false;
        let (flaw, state) = (self.flaw, self.state.clone());
        state.calls.fetch_add(1, SeqCst);
        if flaw == Flaw::ShowsRequests {
            state.seen.lock().push(request.body().clone());
        }
        let full = state.taken.fetch_add(1, SeqCst) >= PERMITS;
        let permit = Permit { state: state.clone(), freed: false };
        if full || state.refuses.load(SeqCst) {
            match flaw {
                Flaw::LeaksOnRefusal => std::mem::forget(permit),
                Flaw::CallsAndRefuses => drop(self.inner.call(request)),
                Flaw::HoardsReadiness => {
                    let clone = self.inner.clone();
                    self.hoard.push(std::mem::replace(&mut self.inner, clone));
                }
                _ => drop(permit),
            }
            return Box::pin(async move {
                if flaw == Flaw::RefusesLate {
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
                Err(refused())
            });
        }
        if flaw == Flaw::ChangesRequests {
            request.headers_mut().insert("x-seen-by", http::HeaderValue::from_static("us"));
        }
        if flaw == Flaw::CallsTwice {
            drop(self.inner.call(request.clone()));
        }
        let clone = self.inner.clone();
        let call: BoxFuture<_> = match flaw {
            Flaw::CallsAClone => {
                let mut clone = clone;
                Box::pin(clone.call(request))
            }
            Flaw::AlwaysReady | Flaw::WaitsForItself => Box::pin(clone.oneshot(request)),
            Flaw::Spawns => {
                let task = tokio::spawn(self.inner.call(request));
                Box::pin(async move { task.await.unwrap() })
            }
            Flaw::Allocates => Box::pin(Box::pin(self.inner.call(request))),
            Flaw::NoWaker | Flaw::StaleWaker | Flaw::Spins | Flaw::KeepsWakers => {
                let inner = Box::pin(self.inner.call(request));
                Box::pin(BadPolling { inner, flaw, first: None, kept: state.wakers.clone() })
            }
            // Not boxed here: it is boxed together with `finish`.
            _ => return Box::pin(finish(self.inner.call(request), flaw, state, permit)),
        };
        Box::pin(finish(call, flaw, state, permit))
    }
}

async fn finish<F>(
    call: F,
    flaw: Flaw,
    state: Arc<State>,
    permit: Permit,
) -> Result<http::Response<LimitedBody>, Failure>
where
    F: Future<Output = Result<http::Response<ProbeBody>, Failure>>,
{
    if flaw == Flaw::NeedsTheNextCall {
        state.polled.notified().await;
    }
    let result = if flaw == Flaw::LeaksOnDrop {
        // Released by hand, below.
        let permit = std::mem::ManuallyDrop::new(permit);
        let result = call.await;
        result.map(|reply| (reply, std::mem::ManuallyDrop::into_inner(permit)))
    } else {
        match call.await {
            Ok(reply) => Ok((reply, permit)),
            Err(failure) => {
                assert!(flaw != Flaw::Panics, "{failure}");
                if flaw == Flaw::LeaksOnError {
                    std::mem::forget(permit);
                }
                Err(failure)
            }
        }
    };
    let (mut reply, permit) = result?;
    if flaw == Flaw::ChangesHeads {
        *reply.status_mut() = http::StatusCode::OK;
    }
    let first = flaw == Flaw::DropsAPiece;
    Ok(reply.map(|body| LimitedBody { body, flaw, permit: Some(permit), first }))
}

fn refused() -> Failure {
    Failure::refused_fixed(Reason::Budget, "there are too many calls at once")
}

#[derive(Debug)]
struct Permit {
    state: Arc<State>,
    freed: bool,
}

impl Permit {
    fn free(&mut self) {
        if !std::mem::replace(&mut self.freed, true) {
            self.state.taken.fetch_sub(1, SeqCst);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.free();
    }
}

/// Polls the inner future with the wrong waker, or wakes itself.
struct BadPolling<F> {
    inner: Pin<Box<F>>,
    flaw: Flaw,
    first: Option<Waker>,
    kept: Arc<Mutex<Vec<Waker>>>,
}

impl<F: Future> Future for BadPolling<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        match this.flaw {
            Flaw::NoWaker => this.inner.as_mut().poll(&mut Context::from_waker(Waker::noop())),
            Flaw::StaleWaker => {
                let first = this.first.get_or_insert_with(|| cx.waker().clone()).clone();
                this.inner.as_mut().poll(&mut Context::from_waker(&first))
            }
            Flaw::KeepsWakers => {
                this.kept.lock().push(cx.waker().clone());
                this.inner.as_mut().poll(cx)
            }
            _ => {
                let polled = this.inner.as_mut().poll(cx);
                if polled.is_pending() {
                    cx.waker().wake_by_ref();
                }
                polled
            }
        }
    }
}

pub(crate) struct LimitedBody {
    body: ProbeBody,
    flaw: Flaw,
    permit: Option<Permit>,
    /// The first piece has to be left out.
    first: bool,
}

impl LimitedBody {
    fn over(&mut self) {
        if self.flaw != Flaw::HoldsUntilDrop {
            self.permit = None;
        }
    }
}

impl Drop for LimitedBody {
    fn drop(&mut self) {
        if self.flaw == Flaw::LeaksBodies {
            std::mem::forget(self.permit.take());
        }
    }
}

impl Body for LimitedBody {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let this = &mut *self;
        let polled = match this.flaw {
            Flaw::NoWakerInBodies => {
                Pin::new(&mut this.body).poll_frame(&mut Context::from_waker(Waker::noop()))
            }
            _ => Pin::new(&mut this.body).poll_frame(cx),
        };
        if let Poll::Ready(frame) = &polled {
            match frame {
                Some(Ok(_)) if std::mem::take(&mut this.first) => return self.poll_frame(cx),
                Some(Ok(_)) => {}
                Some(Err(_)) if this.flaw == Flaw::HoldsFailedBodies => {}
                Some(Err(_)) | None => this.over(),
            }
        }
        polled
    }
}
