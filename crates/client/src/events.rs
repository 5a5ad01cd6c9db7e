//! A provider's answer as events.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use futures_core::Stream;
use http::{Extensions, HeaderMap, HeaderValue, Request, StatusCode};
use http_body::Body;
use steadfast_chat::{Event, Head, ReplyHeaders};
use steadfast_core::{BoxError, Dialect, Failure, Reason, RecoveryLog, Target, Upstream};
use tower_service::Service;

use crate::{
    AnswerLimits, ClientBody,
    authorize::{Outgoing, Sending},
    body::AnswerBody,
    dialect::{
        Codec, StreamDecoder,
        translation::{AnswerCheck, LeftOut},
    },
    headers::{is_event_stream, kept, request_id},
    platform::{Envelope, EventStream, Operation},
    transport_failure,
};

/// How much of a body is read to recognise what it is: only white space may come before that.
const SNIFF: usize = 4 * 1024;

/// A chunk that is copied rather than kept where it was read, in bytes: 1 KiB, an event or a few. To
/// copy those costs less than memory to read into.
const SMALL: usize = 1_024;

/// What is remembered of a request until its answer is over.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) target: Target,
    pub(crate) codec: &'static dyn Codec,
    pub(crate) envelope: Envelope,
    pub(crate) what: Operation,
    /// The dialect that the request was read in.
    pub(crate) caller: Option<Dialect>,
    /// What was left out of the request.
    pub(crate) left_out: LeftOut,
    /// Attempts made for the request, this one included.
    pub(crate) attempts: u32,
    pub(crate) log: RecoveryLog,
    pub(crate) limits: AnswerLimits,
}

impl Asked {
    /// Whether a stream was asked for.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.what, Operation::Generate { stream: true })
    }

    /// Sends the request by `service`, which is ready.
    pub(crate) fn send<S>(&self, service: &mut S, request: Outgoing) -> Sending<S>
    where
        S: Service<Request<ClientBody>> + Clone,
    {
        Sending::new(service, request, (&self.target, &self.log))
    }

    /// Adds where and when it happened.
    pub(crate) fn locate(&self, failure: Failure, headers: &HeaderMap) -> Failure {
        // One, whatever came before: each layer adds up what is below it.
        let failure = failure.with_target(self.target.clone()).with_attempts(1);
        match request_id(headers) {
            Some(id) => failure.with_request_id(id),
            None => failure,
        }
    }

    /// The failure that an answer of `status` is which is none.
    pub(crate) fn refusal(&self, status: StatusCode, headers: &HeaderMap, body: &Bytes) -> Failure {
        // A copy: what is kept of a failure does not keep a connection's buffer.
        let body = Bytes::copy_from_slice(&body[..body.len().min(self.limits.error)]);
        let mut upstream = Upstream::response(status, headers.clone(), body);
        upstream.dialect = self.envelope.error_dialect(self.codec.dialect(), &upstream.body);
        Failure::from_upstream(upstream)
    }

    /// Reads the whole `body` of an answer of `status`, if it can be one at all.
    pub(crate) fn read_whole<T>(
        &self,
        (status, headers): (StatusCode, &HeaderMap),
        body: &Bytes,
        read: impl FnOnce(&Bytes) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let text = body.trim_ascii();
        if text.is_empty() {
            return Err(Failure::new(Reason::ServerError, "the provider answered with nothing")
                .with_evidence("empty"));
        }
        // A page, or a line of text, from something before the provider.
        if !matches!(text.first(), Some(b'{' | b'[')) {
            return Err(self.refusal(status, headers, body));
        }
        let body = &self.envelope.unwrap(self.what, body.clone());
        read(body).map_err(|failure| match failure.upstream() {
            // What the provider reports is judged with its status and headers.
            Some(_) if failure.evidence() == "event" => self.refusal(status, headers, body),
            _ => failure,
        })
    }

    /// Whether an answer that is held whole may have `size` bytes.
    pub(crate) fn bounded(size: usize, limit: usize) -> Result<(), Failure> {
        if size <= limit {
            return Ok(());
        }
        let message = format!("the answer is larger than {limit} bytes");
        Err(Failure::new(Reason::ServerError, message).with_evidence("limit:answer"))
    }

    pub(crate) fn head(&self, status: StatusCode, headers: &Arc<HeaderMap>) -> Head {
        let mut head = Head::new(self.codec.dialect());
        head.target = Some(self.target.clone());
        head.status = status;
        head.headers = ReplyHeaders::picked(headers.clone(), kept);
        head.request_id = request_id(headers);
        head.stream = self.is_stream();
        head.attempts = self.attempts;
        head.log = self.log.clone();
        if !self.left_out.is_empty() {
            head.extensions.insert(self.left_out.clone());
        }
        head
    }
}

/// The events of an answer: those of a stream as they come, or one that is the whole answer.
///
/// It ends (`None`) only after the provider's terminal event, and for good after the first error.
/// Dropping it closes the connection unless the answer was over.
///
/// Small: it goes from layer to layer.
pub struct ClientEvents<B>(Box<Reader<B>>);

/// Reads an answer.
struct Reader<B> {
    /// `None` once it has been read, or is of no more use.
    body: Option<AnswerBody<B>>,
    mode: Mode,
    asked: Asked,
    status: StatusCode,
    headers: Arc<HeaderMap>,
    /// Bytes read of the body.
    read: usize,
    /// Takes events out of a stream of the platform's own.
    unframe: Option<Box<EventStream>>,
    /// What ended that stream, behind what was good of it.
    broken: Option<Failure>,
}

enum Mode {
    /// Nothing but white space has come.
    Unknown(BytesMut),
    Stream(StreamDecoder),
    Whole(BytesMut),
    /// A whole answer that has been read and not been taken.
    Read(Option<Event>),
    Over,
}

impl<B> ClientEvents<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    pub(crate) fn new(
        body: B,
        asked: Asked,
        status: StatusCode,
        headers: HeaderMap,
        extensions: &Extensions,
    ) -> Self {
        let body = Some(AnswerBody::new(body, extensions));
        let mode = Mode::Unknown(BytesMut::new());
        let headers = Arc::new(if asked.is_stream() { unshared_headers(headers) } else { headers });
        let unframe = asked.envelope.event_stream(&headers, asked.limits.event).map(Box::new);
        Self(Box::new(Reader {
            body,
            mode,
            asked,
            status,
            headers,
            read: 0,
            unframe,
            broken: None,
        }))
    }

    /// What was known before the first event.
    pub(crate) fn head(&self) -> Head {
        let this = &self.0;
        let mut head = this.asked.head(this.status, &this.headers);
        head.stream = matches!(this.mode, Mode::Stream(_) | Mode::Unknown(_));
        head
    }

    /// Whether the answer is a stream by its content type and was asked to be one: then nothing is
    /// gained by waiting for its first byte.
    pub(crate) fn is_declared_stream(&self) -> bool {
        let this = &self.0;
        this.asked.is_stream() && (is_event_stream(&this.headers) || this.unframe.is_some())
    }

    /// Waits until it is known to be a stream, or the whole answer has been read. So an answer
    /// that is an error in disguise fails before it begins.
    pub(crate) fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.0.poll_open(cx)
    }
}

impl<B> Reader<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        loop {
            match &self.mode {
                Mode::Stream(_) | Mode::Over | Mode::Read(_) => return Poll::Ready(Ok(())),
                Mode::Unknown(_) | Mode::Whole(_) => {}
            }
            let chunk = match ready!(self.poll_chunk(cx)) {
                Ok(chunk) => chunk,
                Err(failure) => return Poll::Ready(Err(self.fail(failure))),
            };
            if let Err(failure) = self.take(chunk) {
                return Poll::Ready(Err(self.fail(failure)));
            }
        }
    }

    /// The next bytes; `None` at the end.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Failure>> {
        if let Some(failure) = self.broken.take() {
            return Poll::Ready(Err(failure));
        }
        let Some(body) = &mut self.body else { return Poll::Ready(Ok(None)) };
        loop {
            let frame = ready!(body.poll_frame(cx));
            return Poll::Ready(match frame {
                None => {
                    self.body = None;
                    Ok(None)
                }
                Some(Err(error)) => Err(transport_failure(error.into())),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(mut data) => {
                        let chunk = data.copy_to_bytes(data.remaining());
                        let chunk = match &mut self.unframe {
                            None => chunk,
                            Some(frames) => {
                                let mut events = BytesMut::new();
                                self.broken = frames.push(&chunk, &mut events).err();
                                match (events.is_empty(), self.broken.take()) {
                                    (true, None) => continue,
                                    (true, Some(failure)) => return Poll::Ready(Err(failure)),
                                    (false, broken) => self.broken = broken,
                                }
                                events.freeze()
                            }
                        };
                        // Nobody need ask for the end of a body whose length is known.
                        if body.is_end_stream() {
                            self.body = None;
                        }
                        Ok(Some(chunk))
                    }
                    // Trailers.
                    Err(_) => continue,
                },
            });
        }
    }

    /// Takes a chunk, or the end, before it is known to be a stream.
    fn take(&mut self, chunk: Option<Bytes>) -> Result<(), Failure> {
        match (&mut self.mode, chunk) {
            (Mode::Unknown(seen), Some(chunk)) => {
                seen.extend_from_slice(&chunk);
                let Some(is_stream) = is_stream(seen, is_event_stream(&self.headers)) else {
                    return Ok(());
                };
                let seen = std::mem::take(seen);
                self.mode = if is_stream {
                    let dialect = self.asked.codec.dialect();
                    let mut stream = StreamDecoder::with_limit(dialect, self.asked.limits.event);
                    stream = stream.checked(AnswerCheck::new(dialect, self.asked.caller));
                    stream.push(seen.freeze());
                    Mode::Stream(stream)
                } else {
                    Mode::Whole(seen)
                };
                self.check_size()
            }
            (Mode::Whole(body), Some(chunk)) => {
                body.extend_from_slice(&chunk);
                self.check_size()
            }
            (Mode::Whole(body) | Mode::Unknown(body), None) => {
                let body = std::mem::take(body).freeze();
                let event = self.whole(&body)?;
                self.mode = Mode::Read(Some(event));
                Ok(())
            }
            (Mode::Stream(_) | Mode::Read(_) | Mode::Over, _) => Ok(()),
        }
    }

    fn check_size(&self) -> Result<(), Failure> {
        match &self.mode {
            Mode::Whole(body) => self.bounded(body.len()),
            _ => Ok(()),
        }
    }

    /// Whether an answer that is held whole may have `size` bytes.
    fn bounded(&self, size: usize) -> Result<(), Failure> {
        Asked::bounded(size, self.asked.limits.answer)
    }

    fn whole(&self, body: &Bytes) -> Result<Event, Failure> {
        let read = |body: &Bytes| self.asked.codec.decode_answer(body);
        let answer = self.asked.read_whole((self.status, &self.headers), body, read)?;
        let dialect = self.asked.codec.dialect();
        if let Some(mut check) = AnswerCheck::new(dialect, self.asked.caller) {
            check.body(body).map_err(|failure| match answer.usage() {
                Some(usage) => failure.with_usage(*usage),
                None => failure,
            })?;
            check.report(&self.asked.target, &self.asked.log);
        }
        Ok(answer)
    }

    /// Ends for good, and adds where it happened.
    fn fail(&mut self, failure: Failure) -> Failure {
        self.mode = Mode::Over;
        self.body = None;
        let failure = match failure.upstream() {
            Some(upstream) if upstream.headers.is_empty() => {
                let mut upstream = upstream.clone();
                upstream.headers = (*self.headers).clone();
                failure.with_upstream(upstream)
            }
            _ => failure,
        };
        self.asked.locate(failure, &self.headers)
    }

    /// After the answer: reads what is there of the body's end without waiting for it, so that the
    /// connection can be used again.
    fn finish(&mut self, cx: &mut Context<'_>) {
        let mut left = self.asked.limits.drain;
        while self.body.is_some() {
            match self.poll_chunk(cx) {
                Poll::Ready(Ok(Some(chunk))) if chunk.len() <= left => left -= chunk.len(),
                Poll::Pending => return,
                Poll::Ready(_) => self.body = None,
            }
        }
    }
}

impl<B> Stream for ClientEvents<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self.0;
        loop {
            match &mut this.mode {
                Mode::Over => {
                    this.finish(cx);
                    this.body = None;
                    return Poll::Ready(None);
                }
                Mode::Read(event) => {
                    let event = event.take();
                    this.mode = Mode::Over;
                    return Poll::Ready(event.map(Ok));
                }
                Mode::Unknown(_) | Mode::Whole(_) => {
                    if let Err(failure) = ready!(this.poll_open(cx)) {
                        return Poll::Ready(Some(Err(failure)));
                    }
                }
                Mode::Stream(stream) => {
                    if let Some(read) = stream.next_event() {
                        return Poll::Ready(Some(this.emit(read, cx)));
                    }
                    let usage = *stream.usage();
                    match ready!(this.poll_chunk(cx)) {
                        Ok(Some(chunk)) => {
                            this.read = this.read.saturating_add(chunk.len());
                            // Nobody asked for a stream, so somebody collects it.
                            if !this.asked.is_stream()
                                && let Err(failure) = this.bounded(this.read)
                            {
                                return Poll::Ready(Some(Err(this.fail(failure))));
                            }
                            if let Mode::Stream(stream) = &mut this.mode {
                                stream.push(unshared(chunk));
                            }
                        }
                        Ok(None) => {
                            let read = match &mut this.mode {
                                Mode::Stream(stream) => stream.finish(),
                                _ => None,
                            };
                            match read {
                                Some(read) => return Poll::Ready(Some(this.emit(read, cx))),
                                None => this.mode = Mode::Over,
                            }
                        }
                        Err(failure) => {
                            let failure = match usage.total() {
                                Some(_) => failure.with_usage(usage),
                                None => failure,
                            };
                            return Poll::Ready(Some(Err(this.fail(failure))));
                        }
                    }
                }
            }
        }
    }
}

impl<B> Reader<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    fn emit(
        &mut self,
        read: Result<Event, Failure>,
        cx: &mut Context<'_>,
    ) -> Result<Event, Failure> {
        match read {
            Ok(event) => {
                if let Mode::Stream(stream) = &mut self.mode
                    && let Some(check) = stream.check_mut()
                {
                    check.report(&self.asked.target, &self.asked.log);
                }
                if event.is_end() {
                    self.mode = Mode::Over;
                    self.finish(cx);
                }
                Ok(event)
            }
            Err(failure) => Err(self.fail(failure)),
        }
    }
}

/// A small chunk in memory of its own. Until it is sent the connection reads on, and would
/// have to find another buffer of 8 KiB for that.
fn unshared(chunk: Bytes) -> Bytes {
    if chunk.len() <= SMALL { Bytes::copy_from_slice(&chunk) } else { chunk }
}

/// `headers` in memory of their own: those that were read share the connection's buffer, which
/// would stay as long as a stream does.
fn unshared_headers(mut headers: HeaderMap) -> HeaderMap {
    for value in headers.values_mut() {
        // It was one before.
        if let Ok(mut own) = HeaderValue::from_bytes(value.as_bytes()) {
            own.set_sensitive(value.is_sensitive());
            *value = own;
        }
    }
    headers
}

/// Whether a body that begins with `seen` is a stream; `None` when that is not known yet. With
/// `declared`, its content type is that of one: then only what can not be one is not.
fn is_stream(seen: &[u8], declared: bool) -> Option<bool> {
    let text = seen.strip_prefix(b"\xef\xbb\xbf").unwrap_or(seen).trim_ascii_start();
    let first = match text.first() {
        None if seen.len() > SNIFF => return Some(declared),
        None => return None,
        Some(first) => first,
    };
    if matches!(first, b'{' | b'[' | b'<') {
        return Some(false);
    }
    if declared {
        return Some(true);
    }
    let mut maybe = false;
    for field in [&b":"[..], b"data:", b"event:", b"id:", b"retry:"] {
        if text.starts_with(field) {
            return Some(true);
        }
        maybe |= field.starts_with(text);
    }
    if maybe { None } else { Some(false) }
}

impl<B> fmt::Debug for ClientEvents<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientEvents")
            .field("target", &self.0.asked.target)
            .field("over", &matches!(self.0.mode, Mode::Over))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_a_stream_by_its_first_bytes() {
        for (seen, declared, wanted) in [
            ("{", false, Some(false)),
            ("\n [", true, Some(false)),
            ("<!doctype", true, Some(false)),
            ("data: {", false, Some(true)),
            ("\u{feff}: hi", false, Some(true)),
            ("da", false, None),
            ("dat", false, None),
            ("dab", false, Some(false)),
            ("upstream connect error", false, Some(false)),
            ("anything", true, Some(true)),
            ("", true, None),
            ("\n\n", false, None),
        ] {
            assert_eq!(is_stream(seen.as_bytes(), declared), wanted, "{seen:?} {declared}");
        }
    }
}
