//! A body that is observed.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use steadfast_core::Failure;

use super::{MeteredReply, ReplyMeter};

impl<B, M> MeteredReply<M> for http::Response<B>
where
    B: Body,
    B::Error: Into<Failure>,
    M: ReplyMeter,
{
    type Metered = http::Response<MeteredBody<B, M>>;

    fn metered(mut self, mut meter: M) -> Self::Metered {
        if meter.log().is_enabled() {
            let log = meter.log().clone();
            self.extensions_mut().insert(log);
        }
        meter.head(self.status(), self.headers());
        self.map(|body| {
            // A server never polls a body that is empty from the start.
            let over = body.is_end_stream();
            if over {
                meter.success();
            }
            MeteredBody { body, meter: (!over).then_some(meter), ended: false }
        })
    }
}

pin_project! {
    /// A body that is observed. It ends after its first error.
    pub struct MeteredBody<B, M> {
        #[pin]
        body: B,
        // `None` once it has ended.
        meter: Option<M>,
        ended: bool,
    }
}

impl<B, M> Body for MeteredBody<B, M>
where
    B: Body,
    B::Error: Into<Failure>,
    M: ReplyMeter,
{
    type Data = B::Data;
    type Error = Failure;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Failure>>> {
        let mut this = self.project();
        if *this.ended {
            return Poll::Ready(None);
        }
        let polled = ready!(this.body.as_mut().poll_frame(cx));
        Poll::Ready(match polled {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    this.meter.content(data.remaining());
                }
                // A reader of a body of known length stops at its last byte.
                if this.body.is_end_stream() {
                    this.meter.success();
                    *this.meter = None;
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                *this.ended = true;
                let failure = error.into();
                this.meter.failure(&failure);
                *this.meter = None;
                Some(Err(failure))
            }
            None => {
                *this.ended = true;
                this.meter.success();
                *this.meter = None;
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B, M> fmt::Debug for MeteredBody<B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeteredBody").field("over", &self.meter.is_none()).finish_non_exhaustive()
    }
}
