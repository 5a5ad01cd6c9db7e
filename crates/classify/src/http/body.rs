//! An answer's body, judged as it is read.

use std::{
    fmt,
    io::IoSlice,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use steadfast_core::{BoxError, Failure, Reason, Upstream};

use super::{future::Ahead, sse::Scanner};
use crate::{Verdict, stream::Judge};

pin_project! {
    /// A body whose failures are [`Failure`]s. Bytes, trailers and sizes are handed on unchanged; an event
    /// stream of an LLM API is read meanwhile. Ends for good after its first error.
    pub struct ClassifiedBody<B>
    where
        B: Body,
    {
        #[pin]
        body: B,
        // Read before the answer was handed out; goes first.
        ahead: Ahead<B::Data>,
        judge: Judge,
        // For event streams.
        scanner: Option<Scanner>,
        // Comes after the bytes that were read before it.
        failure: Option<Failure>,
        delivered: bool,
        ended: bool,
    }
}

impl<B: Body> ClassifiedBody<B> {
    /// The body behind what was read of it `ahead`, which may have ended in a `failure`.
    pub(super) fn new(
        body: B,
        ahead: Ahead<B::Data>,
        failure: Option<Failure>,
        judge: Judge,
        events: bool,
    ) -> Self {
        Self {
            body,
            ahead,
            judge,
            scanner: events.then(Scanner::default),
            failure,
            delivered: false,
            ended: false,
        }
    }
}

/// Shows `each` slice of `data` without consuming it; whether that was all of it.
pub(super) fn slices(data: &impl Buf, mut each: impl FnMut(&[u8])) -> bool {
    let mut parts = [IoSlice::new(&[]); 16];
    let count = data.chunks_vectored(&mut parts);
    let mut seen = 0;
    for part in &parts[..count] {
        seen += part.len();
        each(part);
    }
    seen == data.remaining()
}

/// The failure of an error event; `None` when the user's own rules find it fine.
fn reported(judge: &Judge, data: Vec<u8>) -> Option<Failure> {
    judge.classifier.reported(Upstream::event(Bytes::from(data)), judge.target.as_ref())
}

/// The failure of a stream that just ends.
fn cut(judge: &Judge) -> Failure {
    let mut verdict = Verdict::new(Reason::ServerError, "no terminal event");
    verdict.message = "the stream ended without its terminal event".to_owned();
    judge.silent(verdict).with_status(StatusCode::OK)
}

impl<B> Body for ClassifiedBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = Failure;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Failure>>> {
        let this = self.project();
        if *this.ended {
            return Poll::Ready(None);
        }
        let fail = |ended: &mut bool, delivered: bool, failure: Failure| {
            *ended = true;
            let failure = if delivered { failure.with_delivered() } else { failure };
            Poll::Ready(Some(Err(failure)))
        };
        if !this.ahead.is_empty() {
            *this.delivered = true;
            return Poll::Ready(Some(Ok(this.ahead.remove(0))));
        }
        if let Some(failure) = this.failure.take() {
            return fail(this.ended, *this.delivered, failure);
        }
        match ready!(this.body.poll_frame(cx)) {
            Some(Ok(frame)) => {
                if let (Some(scanner), Some(data)) = (&mut *this.scanner, frame.data_ref()) {
                    let mut failure = None;
                    let seen = slices(data, |mut slice| {
                        while failure.is_none()
                            && let Some(data) = scanner.feed(&mut slice)
                        {
                            failure = reported(this.judge, data);
                        }
                    });
                    if failure.is_some() {
                        *this.failure = failure;
                    } else if !seen {
                        // A buffer that does not show itself can not be judged.
                        *this.scanner = None;
                    }
                }
                *this.delivered |= frame.is_data();
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                let target = this.judge.target.as_ref();
                let failure = this.judge.classifier.error(error, target);
                fail(this.ended, *this.delivered, failure)
            }
            None => {
                let scanner = this.scanner.as_mut();
                let failure = match scanner.map_or(Ok(()), Scanner::finish) {
                    Ok(()) => None,
                    Err(Some(data)) => reported(this.judge, data),
                    Err(None) => Some(cut(this.judge)),
                };
                match failure {
                    Some(failure) => fail(this.ended, *this.delivered, failure),
                    None => {
                        *this.ended = true;
                        Poll::Ready(None)
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        // A stream that has not ended well has its failure still to come.
        let may_end = self.scanner.as_ref().is_none_or(Scanner::may_end);
        self.ended
            || (self.failure.is_none()
                && self.ahead.is_empty()
                && may_end
                && self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        if self.ended {
            return SizeHint::with_exact(0);
        }
        let inner = self.body.size_hint();
        let ahead: usize = self.ahead.iter().filter_map(Frame::data_ref).map(Buf::remaining).sum();
        if ahead == 0 {
            return inner;
        }
        let ahead = ahead as u64;
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(ahead));
        if let Some(upper) = inner.upper().and_then(|upper| upper.checked_add(ahead)) {
            hint.set_upper(upper);
        }
        hint
    }
}

impl<B: Body> fmt::Debug for ClassifiedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClassifiedBody")
            .field("judge", &self.judge)
            .field("delivered", &self.delivered)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
