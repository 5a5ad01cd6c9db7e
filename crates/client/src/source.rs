//! The body of an answer, and the connection it comes over.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Extensions, Version};
use http_body::{Body, Frame};

type Polled<B> = Poll<Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>>;

/// A body being read. Where the connection under it is known, what has arrived together is read
/// together; see [`crate::drive`].
pub(crate) struct Source<B> {
    body: Pin<Box<B>>,
    // Given back after the body has been dropped.
    connection: Connection,
}

impl<B: Body> Source<B> {
    /// `body`, which came by `version` of HTTP, over a connection that says of itself what is in
    /// `extensions`.
    pub(crate) fn new(body: B, version: Version, extensions: &Extensions) -> Self {
        let connection = match body.is_end_stream() {
            true => Connection::Unknown,
            false => Connection::of(version, extensions),
        };
        Self { body: Box::pin(body), connection }
    }

    /// Lets the connection go on by itself.
    pub(crate) fn release(&mut self) {
        self.connection = Connection::Unknown;
    }

    /// Whether it is known to be at its end.
    pub(crate) fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    /// The next frame; `None` at the end.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Polled<B> {
        let frame = match &mut self.connection {
            Connection::Unknown => ready!(self.body.as_mut().poll_frame(cx)),
            #[cfg(feature = "hyper")]
            Connection::Shared { link, more } => {
                ready!(shared(self.body.as_mut(), link, more, cx))
            }
            #[cfg(feature = "hyper")]
            Connection::Own { claim, dry } => ready!(own(self.body.as_mut(), claim, dry, cx)),
        };
        // A connection that has delivered all may have the next answer to bring already.
        if !matches!(frame, Some(Ok(_))) || self.body.is_end_stream() {
            self.release();
        }
        Poll::Ready(frame)
    }
}

/// What is known of the connection.
enum Connection {
    Unknown,
    /// There are other answers on it.
    #[cfg(feature = "hyper")]
    Shared {
        link: crate::drive::Link,
        /// Whether more may have arrived than it has handed over.
        more: bool,
    },
    /// It has nothing else to do.
    #[cfg(feature = "hyper")]
    Own {
        claim: crate::drive::Claim,
        /// Whether it has handed over all it had, and was not moved on since.
        dry: bool,
    },
}

impl Connection {
    #[cfg(feature = "hyper")]
    fn of(version: Version, extensions: &Extensions) -> Self {
        let Some(link) = extensions.get::<crate::drive::Link>() else { return Self::Unknown };
        if version >= Version::HTTP_2 {
            return Self::Shared { link: link.clone(), more: true };
        }
        match link.claim() {
            Some(claim) => Self::Own { claim, dry: false },
            None => Self::Unknown,
        }
    }

    #[cfg(not(feature = "hyper"))]
    fn of(_: Version, _: &Extensions) -> Self {
        Self::Unknown
    }
}

#[cfg(feature = "hyper")]
fn shared<B: Body>(
    mut body: Pin<&mut B>,
    link: &crate::drive::Link,
    more: &mut bool,
    cx: &mut Context<'_>,
) -> Polled<B> {
    // What is found by moving the connection on needs nobody to be woken.
    let quiet = &mut Context::from_waker(std::task::Waker::noop());
    if std::mem::take(more) {
        let mut polled = body.as_mut().poll_frame(quiet);
        if polled.is_pending() && link.drive() {
            polled = body.as_mut().poll_frame(quiet);
        }
        if polled.is_ready() {
            *more = true;
            return polled;
        }
    }
    let polled = body.poll_frame(cx);
    *more = polled.is_ready();
    polled
}

#[cfg(feature = "hyper")]
fn own<B: Body>(
    mut body: Pin<&mut B>,
    claim: &crate::drive::Claim,
    dry: &mut bool,
    cx: &mut Context<'_>,
) -> Polled<B> {
    // It is the connection that wakes.
    let quiet = &mut Context::from_waker(std::task::Waker::noop());
    let mut driven = false;
    claim.enter();
    loop {
        if claim.is_due() {
            if driven {
                // It was moved on and wants to be again: it lets others go first.
                claim.leave();
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            (driven, *dry) = (true, false);
            claim.drive();
        }
        if !*dry {
            let polled = body.as_mut().poll_frame(quiet);
            if polled.is_ready() {
                claim.leave();
                return polled;
            }
            *dry = true;
        }
        if claim.park(cx.waker()) {
            return Poll::Pending;
        }
    }
}
