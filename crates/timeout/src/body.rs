//! A body under time limits.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use steadfast_core::Failure;

use crate::{
    Clocks,
    hold::{Hold, Piece},
    sse::Sse,
};

pin_project! {
    /// A body under time limits. When a limit fires, the body under it is dropped at once, which
    /// closes its connection, and the failure is the last frame.
    ///
    /// Frames of data are content; of server-sent events only those with data that is no ping.
    pub struct StallBody<B>
    where
        B: Body,
    {
        // `None` once over.
        #[pin]
        body: Option<B>,
        clocks: Clocks,
        // Boxed: few have a floor.
        hold: Option<Box<Hold<Frame<B::Data>>>>,
        sse: Option<Sse>,
    }
}

impl<B: Body> StallBody<B> {
    /// `body` under `clocks`; `sse` says that it is a stream of server-sent events.
    pub fn new(body: B, sse: bool, clocks: Clocks) -> Self {
        let hold = clocks.floor().map(|floor| Box::new(Hold::new(floor)));
        let sse = (sse && clocks.tells_content()).then(Sse::default);
        Self { body: Some(body), clocks, hold, sse }
    }
}

impl<B> Body for StallBody<B>
where
    B: Body,
    B::Error: Into<Failure>,
{
    type Data = B::Data;
    type Error = Failure;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Failure>>> {
        let mut this = self.project();
        let failure = loop {
            if let Some(hold) = this.hold {
                if let Some(frame) = hold.pop() {
                    this.clocks.delivered();
                    return Poll::Ready(Some(Ok(frame)));
                }
                if hold.is_over() {
                    *this.hold = None;
                }
            }
            let Some(body) = this.body.as_mut().as_pin_mut() else { return Poll::Ready(None) };
            if let Some(failure) = this.clocks.overdue() {
                break failure;
            }
            match body.poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    let (content, size) = look(this.sse, &frame);
                    this.clocks.came(content);
                    let frame = match this.hold {
                        None => Some(frame),
                        Some(hold) => {
                            let end = frame.is_trailers();
                            let about = Piece { content, chars: size, bytes: size, end };
                            hold.push(frame, about, this.clocks)
                        }
                    };
                    if let Some(frame) = frame {
                        if content {
                            this.clocks.delivered();
                        }
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
                Poll::Ready(Some(Err(error))) => break error.into(),
                Poll::Ready(None) => {
                    this.body.set(None);
                    if let Some(hold) = this.hold {
                        hold.release(this.clocks);
                    }
                }
                Poll::Pending => break ready!(this.clocks.poll_fired(cx)),
            }
        };
        // What is held back was never seen and never will be.
        this.body.set(None);
        let held = this.hold.take().is_some_and(|hold| hold.is_holding());
        Poll::Ready(Some(Err(this.clocks.told(failure, held))))
    }

    fn is_end_stream(&self) -> bool {
        self.hold.as_ref().is_none_or(|hold| hold.is_empty())
            && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let held = self.hold.as_ref().map_or(0, |hold| held(hold));
        // The upper bound first: it must never be below the lower.
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(held));
        }
        hint.set_lower(hint.lower().saturating_add(held));
        hint
    }
}

/// Whether there is content in a frame, and how many bytes of data.
fn look<D: Buf>(sse: &mut Option<Sse>, frame: &Frame<D>) -> (bool, usize) {
    let Some(data) = frame.data_ref() else { return (false, 0) };
    let size = data.remaining();
    let content = match sse {
        None => size > 0,
        Some(sse) => {
            let chunk = data.chunk();
            // What can not be read without taking it is taken for content.
            sse.feed(chunk) || chunk.len() < size
        }
    };
    (content, size)
}

fn held<D: Buf>(hold: &Hold<Frame<D>>) -> u64 {
    hold.iter().filter_map(Frame::data_ref).map(|data| data.remaining() as u64).sum()
}

impl<B: Body> fmt::Debug for StallBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StallBody")
            .field("over", &self.body.is_none())
            .field("clocks", &self.clocks)
            .finish_non_exhaustive()
    }
}
