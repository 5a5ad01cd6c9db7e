//! A reply under time limits: what they cover, and what its body and its event stream share.

use std::{
    collections::VecDeque,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http_body::Body;
use steadfast_chat::{ChatResponse, EmbedResponse, Event};
use steadfast_core::{AtOnce, Failure, UntilEnd};

use crate::{Clocks, Floor, StallBody, StallEvents};

/// A reply that can be under time limits, which cover what `Reach` defines: the whole reply
/// ([`UntilEnd`]), or the time until there is one ([`AtOnce`], which works for every type).
///
/// Implemented for [`ChatResponse`] and `http::Response`. A reply of your own wraps its stream in
/// [`StallEvents`] or [`StallBody`], or in a type that polls the [`Clocks`].
#[diagnostic::on_unimplemented(
    message = "a reply of type `{Self}` has no stream that a time limit could end",
    label = "the inner service replies with `{Self}`",
    note = "to limit the time until there is a reply, use the layer with `.at_once()`",
    note = "if it has a stream or a body, `impl TimeoutReply for {Self}` puts that under its `Clocks`; \
            `http::Response` and `ChatResponse` have it"
)]
pub trait TimeoutReply<Reach = UntilEnd>: Sized {
    /// The reply under its limits.
    type Limited;

    /// Puts the reply under `clocks`. A reply that can carry the [log](Clocks::log) of its call gets it, when it
    /// is enabled.
    fn limited(self, clocks: Clocks) -> Self::Limited;
}

impl<R> TimeoutReply<AtOnce> for R {
    type Limited = R;

    #[inline]
    fn limited(self, _: Clocks) -> R {
        self
    }
}

impl<S> TimeoutReply for ChatResponse<S>
where
    S: Stream<Item = Result<Event, Failure>> + Unpin,
{
    type Limited = ChatResponse<StallEvents<S>>;

    fn limited(mut self, clocks: Clocks) -> Self::Limited {
        if clocks.log().is_enabled() {
            self.head.log = clocks.log().clone();
        }
        self.map(|events| StallEvents::new(events, clocks))
    }
}

/// Nothing of it is still to come.
impl TimeoutReply for EmbedResponse {
    type Limited = Self;

    fn limited(mut self, clocks: Clocks) -> Self {
        if clocks.log().is_enabled() {
            self.head.log = clocks.log().clone();
        }
        self
    }
}

impl<B> TimeoutReply for http::Response<B>
where
    B: Body,
    B::Error: Into<Failure>,
{
    type Limited = http::Response<StallBody<B>>;

    fn limited(mut self, clocks: Clocks) -> Self::Limited {
        if clocks.log().is_enabled() {
            self.extensions_mut().insert(clocks.log().clone());
        }
        const SSE: &[u8] = b"text/event-stream";
        let header = |name| self.headers().get(name).map(http::HeaderValue::as_bytes);
        let plain =
            header(CONTENT_ENCODING).is_none_or(|how| how.eq_ignore_ascii_case(b"identity"));
        // Events are not found in compressed bytes: there, each piece is content.
        let sse = plain
            && header(CONTENT_TYPE)
                .and_then(|kind| kind.get(..SSE.len()))
                .is_some_and(|kind| kind.eq_ignore_ascii_case(SSE));
        self.map(|body| StallBody::new(body, sse, clocks))
    }
}

/// The pieces of a reply.
pub(crate) trait Pieces {
    type Piece;

    /// The next one; not called once the reply is over.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Self::Piece, Failure>>>;

    fn is_over(&self) -> bool;

    /// Drops the reply, which closes its connection.
    fn end(&mut self);

    fn is_content(&mut self, piece: &Self::Piece) -> bool;

    /// Progress other than content, such as a complete tool call.
    fn is_progress(&self, piece: &Self::Piece) -> bool;

    fn size(piece: &Self::Piece) -> Size;
}

/// The size of a piece.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    /// Characters for a reader, or a tool.
    pub(crate) chars: usize,
    /// Its size in memory.
    pub(crate) bytes: usize,
    /// It completes the answer.
    pub(crate) end: bool,
}

/// The clocks of a reply and what is held back of it.
#[derive(Debug)]
pub(crate) struct Limited<T> {
    pub(crate) clocks: Clocks,
    /// Boxed, since few replies have a floor.
    held: Option<Box<Held<T>>>,
}

impl<T> Limited<T> {
    pub(crate) fn new(clocks: Clocks) -> Self {
        let held = clocks.limits().floor.map(|floor| Box::new(Held::new(floor)));
        Self { clocks, held }
    }

    /// The next piece that the caller may have. When a limit fires the reply is dropped at once
    /// and the failure is the last item.
    pub(crate) fn poll_next<P: Pieces<Piece = T>>(
        &mut self,
        pieces: &mut P,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<T, Failure>>> {
        let Self { clocks, held } = self;
        let failure = loop {
            if let Some(queue) = held {
                if let Some((piece, content)) = queue.pop() {
                    clocks.delivered(content);
                    return Poll::Ready(Some(Ok(piece)));
                }
                if queue.phase == Phase::Released {
                    *held = None;
                }
            }
            if pieces.is_over() {
                return Poll::Ready(None);
            }
            if let Some(failure) = clocks.overdue() {
                break failure;
            }
            match pieces.poll_piece(cx) {
                Poll::Ready(Some(Ok(piece))) => {
                    let content = pieces.is_content(&piece);
                    clocks.received(content, content || pieces.is_progress(&piece));
                    let piece = match held {
                        None => Some(piece),
                        Some(held) => held.push(piece, content, P::size, clocks),
                    };
                    if let Some(piece) = piece {
                        clocks.delivered(content);
                        return Poll::Ready(Some(Ok(piece)));
                    }
                }
                Poll::Ready(Some(Err(failure))) => break failure,
                Poll::Ready(None) => {
                    pieces.end();
                    if let Some(held) = held {
                        held.release(clocks);
                    }
                }
                Poll::Pending => break ready!(clocks.poll_fired(cx)),
            }
        };
        pieces.end();
        // What is held back is dropped undelivered.
        let was_held = held.take().is_some_and(|held| held.phase == Phase::Holding);
        Poll::Ready(Some(Err(clocks.mark_delivered(failure, was_held))))
    }

    /// What is held back.
    pub(crate) fn held(&self) -> impl Iterator<Item = &T> {
        self.held.iter().flat_map(|held| held.pieces.iter().map(|(piece, _)| piece))
    }
}

/// The most that is held back, in bytes. A floor requires a few hundred characters in a window,
/// which are a few kilobytes with the frames around them.
const MAX_HELD: usize = 64 * 1024;

/// Holds back pieces from the first content on until they have the characters that the floor
/// requires in a window.
#[derive(Debug)]
struct Held<T> {
    floor: Floor,
    phase: Phase,
    /// Each with whether it is content.
    pieces: VecDeque<(T, bool)>,
    bytes: usize,
    chars: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No content yet: pieces are passed on.
    Waiting,
    Holding,
    /// Fast enough, or over.
    Released,
}

impl<T> Held<T> {
    fn new(floor: Floor) -> Self {
        Self { floor, phase: Phase::Waiting, pieces: VecDeque::new(), bytes: 0, chars: 0 }
    }

    /// Holds a piece back, or returns it to be passed on.
    fn push(
        &mut self,
        piece: T,
        content: bool,
        size: impl Fn(&T) -> Size,
        clocks: &mut Clocks,
    ) -> Option<T> {
        if self.phase == Phase::Waiting {
            if !content {
                return Some(piece);
            }
            self.phase = Phase::Holding;
            clocks.open_window(&self.floor);
        }
        let Size { chars, bytes, end } = size(&piece);
        self.pieces.push_back((piece, content));
        self.bytes = self.bytes.saturating_add(bytes);
        self.chars = self.chars.saturating_add(chars as u64);
        #[expect(clippy::cast_precision_loss, reason = "a rate need not be exact")]
        let enough =
            self.chars as f64 >= self.floor.min_chars_per_s * self.floor.window.as_secs_f64();
        if enough || end || self.bytes > MAX_HELD {
            self.release(clocks);
        }
        None
    }

    /// Nothing is held back from now on.
    fn release(&mut self, clocks: &mut Clocks) {
        self.phase = Phase::Released;
        clocks.close_window();
    }

    /// The next piece that may be passed on.
    fn pop(&mut self) -> Option<(T, bool)> {
        if self.phase == Phase::Released { self.pieces.pop_front() } else { None }
    }
}
