//! The body of an answer, and the connection it comes over.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use http::Extensions;
use http_body::{Body, Frame};

#[cfg(feature = "hyper")]
use crate::drive::Link;

/// Without hyper no connection is known.
#[cfg(not(feature = "hyper"))]
#[derive(Clone)]
enum Link {}

#[cfg(not(feature = "hyper"))]
impl Link {
    fn drive(&self) -> bool {
        match *self {}
    }
}

/// A body being read. Where the connection under it is known, what has arrived together is read
/// together; see [`Link`].
pub(crate) struct AnswerBody<B> {
    body: Pin<Box<B>>,
    link: Option<Link>,
    /// More may have arrived than the connection has handed over.
    more: bool,
}

impl<B: Body> AnswerBody<B> {
    /// `body`, which came over a connection whose link, if it has one, is in `extensions`.
    pub(crate) fn new(body: B, extensions: &Extensions) -> Self {
        let link = extensions.get::<Link>().filter(|_| !body.is_end_stream()).cloned();
        Self { body: Box::pin(body), link, more: true }
    }

    /// Whether it is known to be at its end.
    pub(crate) fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    /// The next frame; `None` at the end.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = match self.poll_driven() {
            Poll::Ready(frame) => frame,
            Poll::Pending => ready!(self.body.as_mut().poll_frame(cx)),
        };
        self.more = true;
        // A connection that has delivered all may have the next answer to bring already.
        if !matches!(frame, Some(Ok(_))) || self.body.is_end_stream() {
            self.link = None;
        }
        Poll::Ready(frame)
    }

    /// What has arrived with the frame before, once the connection is driven.
    fn poll_driven(&mut self) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let Some(link) = &self.link else { return Poll::Pending };
        if !std::mem::take(&mut self.more) {
            return Poll::Pending;
        }
        // Nobody need be woken for what is found now.
        let cx = &mut Context::from_waker(Waker::noop());
        let mut polled = self.body.as_mut().poll_frame(cx);
        if polled.is_pending() && link.drive() {
            polled = self.body.as_mut().poll_frame(cx);
        }
        polled
    }
}
