//! A reply whose limits, usage and end are observed.

mod body;
#[cfg(feature = "chat")]
mod embed;
#[cfg(feature = "chat")]
mod events;

use http::{HeaderMap, StatusCode};
use steadfast_core::{AtOnce, Failure, RecoveryLog, UntilEnd, Usage};

pub use self::body::MeteredBody;
#[cfg(feature = "chat")]
pub use self::events::MeteredEvents;

/// What a layer observes of a reply. Dropped before [`success`](Self::success) or
/// [`failure`](Self::failure), the reply was cancelled. Must not panic or block.
pub trait ReplyMeter: Send + 'static {
    /// The recovery log of the call.
    fn log(&self) -> &RecoveryLog;

    /// Its head.
    fn head(&mut self, status: StatusCode, headers: &HeaderMap);

    /// Content has come, so many bytes.
    fn content(&mut self, bytes: usize);

    /// Usage is reported.
    fn usage(&mut self, usage: &Usage);

    /// It has ended as it should.
    fn success(&mut self);

    /// It has failed.
    fn failure(&mut self, failure: &Failure);
}

/// A reply that can be observed by a meter `M`, as far as `Reach` says: until its end ([`UntilEnd`]), or not at
/// all ([`AtOnce`], which works for every type).
///
/// Implemented for `http::Response` and, with the feature `chat`, for `ChatResponse` and `EmbedResponse`. A reply of your own wraps
/// its stream in a type that calls the [`ReplyMeter`].
#[diagnostic::on_unimplemented(
    message = "a reply of type `{Self}` has no end that a limit could observe",
    label = "the inner service replies with `{Self}`",
    note = "for plain values, use the layer with `.at_once()`",
    note = "`http::Response` has it, and `ChatResponse` with the feature `chat`"
)]
pub trait MeteredReply<M, Reach = UntilEnd>: Sized {
    /// The observed reply.
    type Metered;

    /// The reply, observed by `meter`. One that can carry the [log](ReplyMeter::log) of its call gets it, when
    /// it is enabled.
    fn metered(self, meter: M) -> Self::Metered;
}

impl<R, M: ReplyMeter> MeteredReply<M, AtOnce> for R {
    type Metered = R;

    #[inline]
    fn metered(self, mut meter: M) -> R {
        meter.success();
        self
    }
}

/// A meter that is large: each layer outside would move it.
impl<M: ReplyMeter> ReplyMeter for Box<M> {
    fn log(&self) -> &RecoveryLog {
        (**self).log()
    }

    fn head(&mut self, status: StatusCode, headers: &HeaderMap) {
        (**self).head(status, headers);
    }

    fn content(&mut self, bytes: usize) {
        (**self).content(bytes);
    }

    fn usage(&mut self, usage: &Usage) {
        (**self).usage(usage);
    }

    fn success(&mut self) {
        (**self).success();
    }

    fn failure(&mut self, failure: &Failure) {
        (**self).failure(failure);
    }
}

/// A meter, or none: of a call that nothing is known of and nothing is asked of.
impl<M: ReplyMeter> ReplyMeter for Option<M> {
    fn log(&self) -> &RecoveryLog {
        static NONE: RecoveryLog = RecoveryLog::disabled();
        self.as_ref().map_or(&NONE, M::log)
    }

    #[inline]
    fn head(&mut self, status: StatusCode, headers: &HeaderMap) {
        if let Some(meter) = self {
            meter.head(status, headers);
        }
    }

    #[inline]
    fn content(&mut self, bytes: usize) {
        if let Some(meter) = self {
            meter.content(bytes);
        }
    }

    #[inline]
    fn usage(&mut self, usage: &Usage) {
        if let Some(meter) = self {
            meter.usage(usage);
        }
    }

    #[inline]
    fn success(&mut self) {
        if let Some(meter) = self {
            meter.success();
        }
    }

    #[inline]
    fn failure(&mut self, failure: &Failure) {
        if let Some(meter) = self {
            meter.failure(failure);
        }
    }
}
