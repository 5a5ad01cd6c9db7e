//! Whether the limits run until a reply is there or until it is over.

use futures_core::Stream;
use http_body::Body;
use steadfast_chat::{ChatResponse, Event};
use steadfast_core::{AtOnce, Failure, UntilEnd};

use crate::{Clocks, StallBody, StallEvents};

/// A reply whose coming can be watched.
///
/// Implemented for [`ChatResponse`] and `http::Response`. A reply of your own wraps its stream in
/// [`StallEvents`] or [`StallBody`], or in a type of its own that polls the [`Clocks`]. Plain
/// values need nothing: layers are told so by [`AtOnce`].
pub trait Watch: Sized {
    /// The reply under its limits.
    type Watched;

    /// Puts the reply under `clocks`.
    fn watch(self, clocks: Clocks) -> Self::Watched;
}

/// How far the limits of a layer reach. The two answers are [`UntilEnd`] and [`AtOnce`].
pub trait Watching<R> {
    /// See [`Watch::Watched`].
    type Watched;

    /// See [`Watch::watch`]. Clocks that are not asked for end with the future.
    fn watch(&self, reply: R, clocks: impl FnOnce() -> Clocks) -> Self::Watched;
}

impl<R: Watch> Watching<R> for UntilEnd {
    type Watched = R::Watched;

    #[inline]
    fn watch(&self, reply: R, clocks: impl FnOnce() -> Clocks) -> R::Watched {
        reply.watch(clocks())
    }
}

impl<R> Watching<R> for AtOnce {
    type Watched = R;

    #[inline]
    fn watch(&self, reply: R, _: impl FnOnce() -> Clocks) -> R {
        reply
    }
}

impl<S> Watch for ChatResponse<S>
where
    S: Stream<Item = Result<Event, Failure>> + Unpin,
{
    type Watched = ChatResponse<StallEvents<S>>;

    fn watch(self, clocks: Clocks) -> Self::Watched {
        self.map(|events| StallEvents::new(events, clocks))
    }
}

impl<B> Watch for http::Response<B>
where
    B: Body,
    B::Error: Into<Failure>,
{
    type Watched = http::Response<StallBody<B>>;

    fn watch(self, clocks: Clocks) -> Self::Watched {
        const SSE: &[u8] = b"text/event-stream";
        let sse = self.headers().get(http::header::CONTENT_TYPE).is_some_and(|kind| {
            kind.as_bytes().get(..SSE.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(SSE))
        });
        self.map(|body| StallBody::new(body, sse, clocks))
    }
}
