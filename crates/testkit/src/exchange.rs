//! Kinds of requests and replies.

use std::{
    convert::Infallible,
    fmt,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_core::Stream;
use http::{HeaderValue, Method, header};
use http_body::{Body, Frame};
use pin_project_lite::pin_project;
use steadfast_chat::{
    ChatRequest, ChatResponse, Event, Events, Head, Part, ToolCall, ToolFailureKind, ToolRequest,
    ToolResult,
};
use steadfast_core::{Call, CallContext, Dialect, Failure, Reason, Target};

use crate::{Pieces, PinnedBody, PlainRequest, ProbeBody, ProbeEvents};

/// A part of every request that no `Debug` output may contain.
pub const SECRET: &str = "sk-probe-5f2b9c1e7a";

/// The types of a [`Probe`](crate::Probe)'s requests and replies. [`Plain`], [`Http`] and [`Chat`]
/// are included; one of your own is two short functions.
pub trait Exchange: Clone + Send + Sync + 'static {
    /// What the probe is called with.
    type Request: Call + Clone + Send + Sync + 'static;
    /// What the probe answers.
    type Reply: Read;

    /// A request, always the same, with [`SECRET`] in it. It should have a context already, so that
    /// a layer which writes to it need not allocate one.
    fn request(&self) -> Self::Request;

    /// Whether `received` is equal to `sent`, apart from the context, which layers may write to.
    fn same(&self, sent: &Self::Request, received: &Self::Request) -> bool;

    /// A reply with these pieces.
    fn reply(&self, pieces: Pieces) -> Self::Reply;
}

/// A reply that can be read to its end. Implemented for what core's layers answer with:
/// `ChatResponse`, `http::Response` and [`PlainReply`].
pub trait Read: Send + 'static {
    /// What comes before the first piece.
    type Head: fmt::Debug;
    /// One piece.
    type Piece: fmt::Debug;
    /// What comes after the head.
    type Pieces: Stream<Item = Result<Self::Piece, Failure>> + Send;

    /// Splits it into head and pieces.
    fn read(self) -> (Self::Head, Self::Pieces);

    /// The failure that it stands for: for services that answer with a failed result where others fail. By
    /// default none.
    fn failure(&self) -> Option<Failure> {
        None
    }
}

/// Plain values: a [`PlainRequest`], answered by a [`PlainReply`]. For layers whose replies are
/// complete as soon as they arrive ([`AtOnce`](steadfast_core::AtOnce)).
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

/// A reply without pieces.
#[derive(Debug)]
pub struct PlainReply {
    /// Kept so that the reply counts as alive.
    _pieces: Pieces,
}

impl Exchange for Plain {
    type Request = PlainRequest;
    type Reply = PlainReply;

    fn request(&self) -> PlainRequest {
        let mut request = PlainRequest { text: SECRET, ..PlainRequest::default() };
        request.context.target = Some(target());
        request
    }

    fn same(&self, sent: &PlainRequest, received: &PlainRequest) -> bool {
        sent.text == received.text && sent.nudges == received.nudges
    }

    fn reply(&self, pieces: Pieces) -> PlainReply {
        PlainReply { _pieces: pieces }
    }
}

impl Read for PlainReply {
    type Head = &'static str;
    type Piece = Infallible;
    type Pieces = NoPieces;

    fn read(self) -> (&'static str, NoPieces) {
        ("answered", NoPieces(PhantomData))
    }
}

/// The pieces of a reply that has none.
#[derive(Debug)]
pub struct NoPieces(PhantomData<()>);

impl Stream for NoPieces {
    type Item = Result<Infallible, Failure>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(None)
    }
}

fn target() -> Target {
    Target::new("probe")
}

/// The same as [`Http`] with a body that is not `Unpin`. For every layer except one that returns a
/// body after reading a part of it: that one needs `Unpin` bodies, and is tested with [`Http`].
#[derive(Clone, Copy, Debug, Default)]
pub struct PinnedHttp;

impl Exchange for PinnedHttp {
    type Request = http::Request<Bytes>;
    type Reply = http::Response<PinnedBody>;

    fn request(&self) -> Self::Request {
        Http.request()
    }

    fn same(&self, sent: &Self::Request, received: &Self::Request) -> bool {
        Http.same(sent, received)
    }

    fn reply(&self, pieces: Pieces) -> Self::Reply {
        Http.reply(pieces).map(PinnedBody::from)
    }
}

/// HTTP: `http::Request<Bytes>`, answered by `http::Response<ProbeBody>`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Http;

impl Exchange for Http {
    type Request = http::Request<Bytes>;
    type Reply = http::Response<ProbeBody>;

    fn request(&self) -> Self::Request {
        let mut request = http::Request::new(Bytes::from_static(SECRET.as_bytes()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = http::Uri::from_static("http://probe.test/v1/ask?n=1");
        let headers = request.headers_mut();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static(SECRET));
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/plain"));
        request.context_mut().target = Some(target());
        request
    }

    fn same(&self, sent: &Self::Request, received: &Self::Request) -> bool {
        sent.method() == received.method()
            && sent.uri() == received.uri()
            && sent.version() == received.version()
            && sent.headers() == received.headers()
            && sent.body() == received.body()
    }

    fn reply(&self, pieces: Pieces) -> Self::Reply {
        let mut reply = http::Response::new(pieces.into_body());
        *reply.status_mut() = http::StatusCode::ACCEPTED;
        let kind = HeaderValue::from_static("application/octet-stream");
        reply.headers_mut().insert(header::CONTENT_TYPE, kind);
        reply.headers_mut().insert("x-request-id", HeaderValue::from_static("probe-1"));
        reply
    }
}

impl<B> Read for http::Response<B>
where
    B: Body<Data: fmt::Debug, Error: Into<Failure>> + Send + 'static,
{
    type Head = http::response::Parts;
    type Piece = Frame<B::Data>;
    type Pieces = Frames<B>;

    fn read(self) -> (Self::Head, Frames<B>) {
        let (head, body) = self.into_parts();
        (head, Frames { body })
    }
}

pin_project! {
    /// The frames of a body, as a stream.
    #[derive(Debug)]
    pub struct Frames<B> {
        #[pin]
        body: B,
    }
}

impl<B: Body<Error: Into<Failure>>> Stream for Frames<B> {
    type Item = Result<Frame<B::Data>, Failure>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let frame = ready!(self.project().body.poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }
}

/// Chat: a `ChatRequest`, answered by a `ChatResponse`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chat;

impl Exchange for Chat {
    type Request = ChatRequest;
    type Reply = ChatResponse<ProbeEvents>;

    fn request(&self) -> ChatRequest {
        let mut request = ChatRequest::user(SECRET);
        request.stream = true;
        request.params.temperature = Some(0.5);
        request.context = steadfast_core::CallContext::new().with_target(target());
        request
    }

    fn same(&self, sent: &ChatRequest, received: &ChatRequest) -> bool {
        sent.model == received.model
            && sent.messages[..] == received.messages[..]
            && sent.tools[..] == received.tools[..]
            && sent.params == received.params
            && sent.stream == received.stream
            && sent.headers == received.headers
    }

    fn reply(&self, pieces: Pieces) -> Self::Reply {
        let mut head = Head::new(Dialect::OpenAi);
        head.target = Some(target());
        head.stream = true;
        ChatResponse::new(head, pieces.into_events())
    }
}

impl<S: Events + Send + 'static> Read for ChatResponse<S> {
    type Head = Head;
    type Piece = Event;
    type Pieces = S;

    fn read(self) -> (Head, S) {
        self.into_parts()
    }
}

/// Tools: a `ToolRequest`, answered by a `ToolResult`, which counts as a failure when it is an error.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tools;

impl Exchange for Tools {
    type Request = ToolRequest;
    type Reply = ToolResult;

    fn request(&self) -> ToolRequest {
        let call = ToolCall {
            id: "call_1".into(),
            name: "probe".into(),
            arguments: format!(r#"{{"text":"{SECRET}"}}"#),
            ..ToolCall::default()
        };
        ToolRequest::new(CallContext::new().with_target(target()), call)
    }

    fn same(&self, sent: &ToolRequest, received: &ToolRequest) -> bool {
        sent.call == received.call && sent.abort.is_cancelled() == received.abort.is_cancelled()
    }

    fn reply(&self, _: Pieces) -> ToolResult {
        ToolResult { content: vec![Part::text("answered")], ..ToolResult::default() }
    }
}

impl Read for ToolResult {
    type Head = Self;
    type Piece = Infallible;
    type Pieces = NoPieces;

    fn read(self) -> (Self, NoPieces) {
        (self, NoPieces(PhantomData))
    }

    fn failure(&self) -> Option<Failure> {
        let text = self.content.iter().find_map(Part::as_text).unwrap_or_default();
        self.failure_kind().map(|kind| match kind {
            ToolFailureKind::Refused => Failure::refused(Reason::CircuitOpen, text),
            _ => Failure::new(Reason::Unknown, text),
        })
    }
}
