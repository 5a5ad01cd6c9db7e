//! A call whose answer is one document, read whole before there is anything of it.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use steadfast_chat::Head;
use steadfast_core::{BoxError, Failure};

use crate::{
    AnswerLimits,
    body::AnswerBody,
    events::Asked,
    future::{Reading, Started, polled_again, started},
    transport_failure,
};

/// Reads the document that was asked for.
pub trait ReadDocument {
    /// What it is read into.
    type Output;

    /// The largest there may be, in bytes.
    fn limit(&self, limits: &AnswerLimits) -> usize;

    /// Reads it; its head is known.
    ///
    /// # Errors
    ///
    /// When it is something else.
    fn read(&self, head: Head, body: &Bytes) -> Result<Self::Output, Failure>;
}

pin_project! {
    /// Waits for the whole of an answer that is one document. Dropping it cancels the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct DocumentFuture<F, B, R> {
        #[pin]
        state: State<F, B>,
        reader: Option<R>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, B> {
        Refused { failure: Option<Failure> },
        Calling { #[pin] future: F, asked: Option<Asked> },
        Refusal { reading: Box<Reading<B>> },
        Collecting { document: Box<Document<B>> },
        Done,
    }
}

/// A document as far as it has come.
struct Document<B> {
    body: AnswerBody<B>,
    asked: Asked,
    status: StatusCode,
    headers: Arc<HeaderMap>,
    read: BytesMut,
}

impl<F, B, R> DocumentFuture<F, B, R> {
    pub(crate) fn calling(future: F, asked: Asked, reader: R) -> Self {
        Self { state: State::Calling { future, asked: Some(asked) }, reader: Some(reader) }
    }

    pub(crate) fn refused(failure: Failure) -> Self {
        Self { state: State::Refused { failure: Some(failure) }, reader: None }
    }
}

impl<F, B, E, R> Future for DocumentFuture<F, B, R>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body,
    B::Error: Into<BoxError>,
    R: ReadDocument,
{
    type Output = Result<R::Output, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let done = match this.state.as_mut().project() {
                StateProj::Refused { failure } => Err(failure.take().unwrap_or_else(polled_again)),
                StateProj::Calling { future, asked } => {
                    let response = ready!(future.poll(cx));
                    match (asked.take(), response) {
                        (None, _) => Err(polled_again()),
                        (Some(asked), Err(error)) => {
                            Err(asked.locate(transport_failure(error.into()), &HeaderMap::new()))
                        }
                        (Some(asked), Ok(response)) => {
                            this.state.set(match started(response, asked) {
                                Started::Failed(failure) => {
                                    State::Refused { failure: Some(failure) }
                                }
                                Started::Refusal(reading) => State::Refusal { reading },
                                Started::Answer(parts, body, asked) => State::Collecting {
                                    document: Box::new(Document {
                                        body: AnswerBody::new(body, &parts.extensions),
                                        asked,
                                        status: parts.status,
                                        headers: Arc::new(parts.headers),
                                        read: BytesMut::new(),
                                    }),
                                },
                            });
                            continue;
                        }
                    }
                }
                StateProj::Refusal { reading } => Err(ready!(reading.poll(cx))),
                StateProj::Collecting { document } => match this.reader {
                    None => Err(polled_again()),
                    Some(reader) => ready!(document.poll(reader, cx)),
                },
                StateProj::Done => Err(polled_again()),
            };
            this.state.set(State::Done);
            return Poll::Ready(done);
        }
    }
}

impl<B> Document<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    fn poll<R: ReadDocument>(
        &mut self,
        reader: &R,
        cx: &mut Context<'_>,
    ) -> Poll<Result<R::Output, Failure>> {
        let limit = reader.limit(&self.asked.limits);
        let collected = loop {
            // Nobody need ask for the end of a body whose length is known.
            if self.body.is_end_stream() {
                break Ok(());
            }
            match ready!(self.body.poll_frame(cx)) {
                None => break Ok(()),
                Some(Err(error)) => break Err(transport_failure(error.into())),
                Some(Ok(frame)) => {
                    let Ok(mut data) = frame.into_data() else { continue };
                    let size = self.read.len().saturating_add(data.remaining());
                    if let Err(failure) = Asked::bounded(size, limit) {
                        break Err(failure);
                    }
                    self.read.extend_from_slice(&data.copy_to_bytes(data.remaining()));
                }
            }
        };
        let body = std::mem::take(&mut self.read).freeze();
        let Self { asked, status, headers, .. } = self;
        let head = asked.head(*status, headers);
        let read = |body: &Bytes| reader.read(head, body);
        let read = collected.and_then(|()| asked.read_whole((*status, headers), &body, read));
        Poll::Ready(read.map_err(|failure| asked.locate(failure, headers)))
    }
}

impl<F, B, R> fmt::Debug for DocumentFuture<F, B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DocumentFuture").finish_non_exhaustive()
    }
}
