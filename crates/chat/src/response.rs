//! An answer of a model.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use http::StatusCode;
use steadfast_core::{Dialect, Failure, RecoveryLog, Target};

use crate::{Completion, Event, ReplyHeaders};

/// A stream of an answer's events. It ends (`None`) only after [`Delta::End`](crate::Delta::End);
/// after an error it stays ended.
pub trait Events: Stream<Item = Result<Event, Failure>> {}

impl<S: Stream<Item = Result<Event, Failure>>> Events for S {}

/// Events of an answer without the type of the stack.
pub type EventStream = Pin<Box<dyn Stream<Item = Result<Event, Failure>> + Send>>;

/// An answer: its head, and its events as they come. Streamed and whole answers have the same type;
/// [`collect`](ChatResponse::collect) makes a [`Completion`] of either.
///
/// Dropping it cancels the call: the connection under it is closed.
#[must_use = "an answer dropped unread cancels the call"]
pub struct ChatResponse<S = EventStream> {
    /// What is known before the first event. Boxed: every layer moves it.
    pub head: Box<Head>,
    pub(crate) events: S,
    /// The first content is buffered in `events`: waiting for it ends at once. Not known after
    /// [`map`](Self::map), as the new events may hold it back.
    pub(crate) has_content: bool,
}

/// What is known of an answer before its first event.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Head {
    /// The target that answers.
    pub target: Option<Target>,
    /// The dialect it answers in.
    pub dialect: Dialect,
    /// The HTTP status.
    pub status: StatusCode,
    /// The provider's headers.
    pub headers: ReplyHeaders,
    /// The provider's id of the request.
    pub request_id: Option<String>,
    /// Whether it comes in pieces.
    pub stream: bool,
    /// How many attempts were made for it, on all targets.
    pub attempts: u32,
    /// What the layers did.
    pub log: RecoveryLog,
    /// What layers report of the answer in types of their own, such as the report of a compaction.
    /// Allocates nothing while empty.
    pub extensions: http::Extensions,
}

impl Head {
    /// The head of an answer in `dialect`.
    pub fn new(dialect: Dialect) -> Self {
        Self {
            target: None,
            dialect,
            status: StatusCode::OK,
            headers: ReplyHeaders::default(),
            request_id: None,
            stream: false,
            attempts: 1,
            log: RecoveryLog::disabled(),
            extensions: http::Extensions::new(),
        }
    }
}

/// Why a model stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stop {
    /// The reason, the same for all dialects.
    pub reason: StopReason,
    /// The provider's value, such as `max_tokens`.
    pub word: Option<Box<str>>,
    /// The text that ended the answer, for [`StopReason::StopSequence`].
    pub sequence: Option<String>,
}

/// Why a model stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// The answer is complete.
    EndTurn,
    /// It ran into the output limit.
    MaxTokens,
    /// It wrote one of the texts that end an answer.
    StopSequence,
    /// It called tools.
    ToolUse,
    /// A content policy stopped it, or it refused.
    ContentFilter,
    /// It pauses, to be continued by sending the conversation back.
    Pause,
    /// Input and output together filled the window.
    Window,
    /// Anything else: see [`Stop::word`].
    Other,
}

impl StopReason {
    /// Its name, such as `end_turn`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EndTurn => "end_turn",
            Self::MaxTokens => "max_tokens",
            Self::StopSequence => "stop_sequence",
            Self::ToolUse => "tool_use",
            Self::ContentFilter => "content_filter",
            Self::Pause => "pause",
            Self::Window => "window",
            Self::Other => "other",
        }
    }
}

impl Stop {
    /// With the provider's value.
    pub fn new(reason: StopReason, word: impl Into<Box<str>>) -> Self {
        Self { reason, word: Some(word.into()), sequence: None }
    }
}

impl From<StopReason> for Stop {
    fn from(reason: StopReason) -> Self {
        Self { reason, word: None, sequence: None }
    }
}

impl<S> ChatResponse<S> {
    /// An answer.
    pub fn new(head: Head, events: S) -> Self {
        Self { head: Box::new(head), events, has_content: false }
    }

    /// Its two halves.
    pub fn into_parts(self) -> (Head, S) {
        (*self.head, self.events)
    }

    /// With its events changed by `map`: how a layer wraps the stream.
    #[inline]
    pub fn map<T>(self, map: impl FnOnce(S) -> T) -> ChatResponse<T> {
        ChatResponse { head: self.head, events: map(self.events), has_content: false }
    }

    /// The same as [`map`](Self::map), for a wrapper that passes every event on unchanged and at
    /// once: whether the first content has come is still known.
    #[inline]
    pub fn map_through<T>(self, map: impl FnOnce(S) -> T) -> ChatResponse<T> {
        ChatResponse { head: self.head, events: map(self.events), has_content: self.has_content }
    }

    /// What to show the person who gets the answer, once: that another model has stood in for an
    /// overloaded one. Only of requests that keep a recovery log.
    pub fn notice(&self) -> Option<String> {
        self.head.log.notice()
    }

    /// What the layers did to the call.
    pub fn recovery(&self) -> &RecoveryLog {
        &self.head.log
    }
}

impl<S: Events + Send + 'static> ChatResponse<S> {
    /// The same answer without the type of its stack.
    pub fn boxed(self) -> ChatResponse {
        ChatResponse {
            head: self.head,
            events: Box::pin(self.events),
            has_content: self.has_content,
        }
    }
}

impl<S: Events + Unpin> ChatResponse<S> {
    /// Waits for the whole answer.
    ///
    /// # Errors
    ///
    /// The failure that ended it; what had arrived by then is dropped.
    pub fn collect(self) -> Collect<S> {
        let completion = Completion::new(*self.head);
        Collect { completion: Some(completion), events: self.events }
    }
}

impl<S: Events + Unpin> Stream for ChatResponse<S> {
    type Item = Result<Event, Failure>;

    #[inline]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.events).poll_next(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.events.size_hint()
    }
}

impl<S> fmt::Debug for ChatResponse<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatResponse").field("head", &self.head).finish_non_exhaustive()
    }
}

/// Waits for the whole answer; see [`ChatResponse::collect`].
#[must_use = "futures do nothing unless polled"]
pub struct Collect<S> {
    /// `None` once ready.
    completion: Option<Completion>,
    events: S,
}

impl<S: Events + Unpin> Future for Collect<S> {
    type Output = Result<Completion, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        while let Some(completion) = &mut this.completion {
            match ready!(Pin::new(&mut this.events).poll_next(cx)) {
                Some(Ok(event)) => completion.push(&event),
                Some(Err(failure)) => {
                    this.completion = None;
                    return Poll::Ready(Err(failure));
                }
                None => break,
            }
        }
        Poll::Ready(this.completion.take().ok_or_else(|| {
            Failure::new(steadfast_core::Reason::Unknown, "`Collect` was polled after it was ready")
        }))
    }
}

impl<S> fmt::Debug for Collect<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collect").field("completion", &self.completion).finish_non_exhaustive()
    }
}
