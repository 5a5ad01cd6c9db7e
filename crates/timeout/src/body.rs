//! A body under time limits.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use steadfast_core::Failure;

use crate::{
    Clocks,
    reply::{Limited, Pieces, Size},
    sse::Sse,
};

pin_project! {
    /// A body under time limits. When a limit fires, the body under it is dropped at once, which
    /// closes its connection, and the failure is the last frame.
    ///
    /// Frames with data are content; of server-sent events only those with data other than pings.
    pub struct StallBody<B>
    where
        B: Body,
    {
        // `None` once over.
        #[pin]
        body: Option<B>,
        limited: Limited<Frame<B::Data>>,
        sse: Option<Sse>,
    }
}

impl<B: Body> StallBody<B> {
    /// `body` under `clocks`; `sse` when it is a stream of server-sent events.
    pub fn new(body: B, sse: bool, clocks: Clocks) -> Self {
        let sse = (sse && clocks.limits().need_content()).then(Sse::default);
        Self { body: Some(body), limited: Limited::new(clocks), sse }
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
        let this = self.project();
        this.limited.poll_next(&mut Frames { body: this.body, sse: this.sse }, cx)
    }

    fn is_end_stream(&self) -> bool {
        self.limited.held().next().is_none() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let held = self.limited.held().map(|frame| data_len(frame) as u64).sum();
        // The upper bound first: it must not be below the lower one.
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(held));
        }
        hint.set_lower(hint.lower().saturating_add(held));
        hint
    }
}

struct Frames<'a, B> {
    body: Pin<&'a mut Option<B>>,
    sse: &'a mut Option<Sse>,
}

impl<B> Pieces for Frames<'_, B>
where
    B: Body,
    B::Error: Into<Failure>,
{
    type Piece = Frame<B::Data>;

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Self::Piece, Failure>>> {
        let body = self.body.as_mut().as_pin_mut();
        body.map_or(Poll::Ready(None), |body| body.poll_frame(cx).map_err(Into::into))
    }

    fn is_over(&self) -> bool {
        self.body.is_none()
    }

    fn end(&mut self) {
        self.body.set(None);
    }

    fn is_content(&mut self, frame: &Self::Piece) -> bool {
        let Some(data) = frame.data_ref() else { return false };
        match self.sse {
            None => data.has_remaining(),
            // Only the first chunk can be read without consuming it; further ones count as content.
            Some(sse) => sse.feed(data.chunk()) || data.chunk().len() < data.remaining(),
        }
    }

    fn is_progress(&self, _: &Self::Piece) -> bool {
        false
    }

    fn size(frame: &Self::Piece) -> Size {
        let bytes = data_len(frame);
        Size { chars: bytes, bytes, end: frame.is_trailers() }
    }
}

fn data_len<D: Buf>(frame: &Frame<D>) -> usize {
    frame.data_ref().map_or(0, Buf::remaining)
}

impl<B: Body> fmt::Debug for StallBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StallBody")
            .field("over", &self.body.is_none())
            .field("clocks", &self.limited.clocks)
            .finish_non_exhaustive()
    }
}
