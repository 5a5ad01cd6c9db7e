//! What a probe does with a call, and the reply it gives.

use std::{
    fmt,
    marker::PhantomPinned,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_core::Stream;
use http_body::{Body, Frame};
use pin_project_lite::pin_project;
use steadfast_chat::{Delta, Event};
use steadfast_core::{Failure, Reason};
use tokio::time::Sleep;

use crate::probe::ProbeState;

/// How long a slow action waits at each stage. Shorter than any limit of a layer, longer than the
/// millisecond that timers are exact to.
const PAUSE: Duration = Duration::from_millis(10);

/// Pieces of a reply by default: a first one, one between, and a last one.
const PIECES: u32 = 3;

/// What a [`Probe`](crate::Probe) does with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an action does nothing until it is given to a probe"]
pub struct Action {
    pub(crate) head: Ending,
    pub(crate) body: Ending,
    pub(crate) pieces: u32,
    pub(crate) slow: bool,
}

/// How a head or a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Complete,
    Fails(Reason),
    Hangs,
}

impl Action {
    /// Answers at once: a head and three pieces.
    pub const fn answer() -> Self {
        Self { head: Ending::Complete, body: Ending::Complete, pieces: PIECES, slow: false }
    }

    /// Fails at once.
    pub const fn fail(reason: Reason) -> Self {
        Self { head: Ending::Fails(reason), ..Self::answer() }
    }

    /// Never answers.
    pub const fn hang() -> Self {
        Self { head: Ending::Hangs, ..Self::answer() }
    }

    /// Answers, and fails after its last piece.
    pub const fn fail_late(reason: Reason) -> Self {
        Self { body: Ending::Fails(reason), ..Self::answer() }
    }

    /// Answers, and stays pending after its last piece.
    pub const fn hang_late() -> Self {
        Self { body: Ending::Hangs, ..Self::answer() }
    }

    /// The same, but pending for 10 ms before its head and before each piece.
    pub const fn slow(self) -> Self {
        Self { slow: true, ..self }
    }

    /// The same with this number of pieces.
    pub const fn with_pieces(self, pieces: u32) -> Self {
        Self { pieces, ..self }
    }
}

impl Default for Action {
    fn default() -> Self {
        Self::answer()
    }
}

/// The wait before one stage of a slow action.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    sleep: Option<Pin<Box<Sleep>>>,
    over: bool,
}

impl Pause {
    pub(crate) fn poll(&mut self, slow: bool, cx: &mut Context<'_>) -> Poll<()> {
        if slow && !self.over {
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(PAUSE)));
            ready!(sleep.as_mut().poll(cx));
            self.sleep = None;
            self.over = true;
        }
        Poll::Ready(())
    }
}

pub(crate) fn scripted_failure(reason: Reason) -> Failure {
    Failure::new(reason, "the probe was scripted to fail")
}

/// What comes after the head of a reply, piece by piece: given to an
/// [`Exchange`](crate::Exchange), which makes a reply of it.
///
/// The probe counts it as alive until it is dropped, so a reply type of your own has to keep it. It
/// is a stream of numbers; [`into_events`](Self::into_events) and [`into_body`](Self::into_body)
/// convert it to what the replies of `steadfast-core` consist of.
#[must_use = "the reply counts as dropped when its pieces are"]
pub struct Pieces {
    at: u32,
    action: Action,
    pause: Pause,
    over: bool,
    _alive: Alive,
}

/// Counted by the probe until it is dropped.
struct Alive(Arc<ProbeState>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.state.lock().bodies -= 1;
    }
}

impl Pieces {
    pub(crate) fn new(action: Action, shared: Arc<ProbeState>) -> Self {
        shared.state.lock().bodies += 1;
        Self { at: 0, action, pause: Pause::default(), over: false, _alive: Alive(shared) }
    }

    /// Whether nothing more will come.
    fn is_over(&self) -> bool {
        self.over || (self.at == self.action.pieces && self.action.body == Ending::Complete)
    }

    /// As events: each piece is text, and the last event is [`Delta::End`].
    pub fn into_events(self) -> ProbeEvents {
        ProbeEvents { pieces: self, ended: false }
    }

    /// As a body: each piece is a frame of data.
    pub fn into_body(self) -> ProbeBody {
        ProbeBody(self)
    }
}

impl Stream for Pieces {
    type Item = Result<u32, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.over {
            return Poll::Ready(None);
        }
        ready!(this.pause.poll(this.action.slow, cx));
        this.pause = Pause::default();
        if this.at < this.action.pieces {
            this.at += 1;
            return Poll::Ready(Some(Ok(this.at)));
        }
        match this.action.body {
            Ending::Complete => {
                this.over = true;
                Poll::Ready(None)
            }
            Ending::Fails(reason) => {
                this.over = true;
                Poll::Ready(Some(Err(scripted_failure(reason))))
            }
            Ending::Hangs => {
                this.pause.over = true;
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces").field("at", &self.at).field("action", &self.action).finish()
    }
}

/// [`Pieces`] as the events of a `ChatResponse`.
#[derive(Debug)]
pub struct ProbeEvents {
    pieces: Pieces,
    ended: bool,
}

impl Stream for ProbeEvents {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        Poll::Ready(match ready!(Pin::new(&mut self.pieces).poll_next(cx)) {
            Some(Ok(at)) => {
                let text = format!("piece {at}");
                Some(Ok(Event::new([Delta::Text { index: 0, text }])))
            }
            Some(Err(failure)) => {
                self.ended = true;
                Some(Err(failure))
            }
            None => {
                self.ended = true;
                Some(Ok(Event::new([Delta::End])))
            }
        })
    }
}

/// [`Pieces`] as the body of an `http::Response`.
#[derive(Debug)]
pub struct ProbeBody(Pieces);

impl Body for ProbeBody {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let piece = Pin::new(&mut self.0).poll_next(cx);
        piece.map_ok(|at| {
            const WORDS: [&str; 4] = ["one", "two", "three", "more"];
            let word = WORDS[(at as usize - 1).min(WORDS.len() - 1)];
            Frame::data(Bytes::from_static(word.as_bytes()))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_over()
    }
}

pin_project! {
    /// A body that is not `Unpin`, as one made of an `async` block is not.
    #[derive(Debug)]
    pub struct PinnedBody {
        body: ProbeBody,
        #[pin]
        _pinned: PhantomPinned,
    }
}

impl From<ProbeBody> for PinnedBody {
    fn from(body: ProbeBody) -> Self {
        Self { body, _pinned: PhantomPinned }
    }
}

impl Body for PinnedBody {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        Pin::new(self.project().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
