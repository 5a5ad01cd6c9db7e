//! The body of a request: received within its limits, and unpacked where it is compressed.

use std::{
    error::Error as _,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use async_compression::{
    tokio::bufread::{GzipDecoder, ZstdDecoder},
    zstd::DParameter,
};
use axum::body::{Body, Bytes};
use futures_core::Stream;
use http::{HeaderMap, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use steadfast_core::{BoxError, Failure, FaultSide, Reason, time::later};
use tokio::{
    io::AsyncRead,
    time::{Instant, timeout_at},
};
use tokio_util::io::{ReaderStream, StreamReader};

use super::Setup;
use crate::admission::{Admitted, COST};

/// The largest body that is copied out of the connection's buffer, in bytes: half of hyper's 8 KiB. The values of one
/// are not worth counting.
pub(super) const COPIED: usize = 4 * 1024;

/// How much is unpacked at once, in bytes: 16 KiB, so that what a small body grows to is charged as it grows.
const PIECE: usize = 16 * 1024;

/// How a body may be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Gzip,
    Zstd,
}

/// How the body is compressed, if it is.
///
/// # Errors
///
/// When it is in a way that is not unpacked here, or in more than one.
pub(super) fn encoding(headers: &HeaderMap) -> Result<Option<Encoding>, Failure> {
    let mut all = headers.get_all(header::CONTENT_ENCODING).iter();
    let Some(encoding) = all.next() else { return Ok(None) };
    let named = |name: &str| encoding.as_bytes().trim_ascii().eq_ignore_ascii_case(name.as_bytes());
    match all.next() {
        None if named("identity") || named("") => Ok(None),
        None if named("gzip") || named("x-gzip") => Ok(Some(Encoding::Gzip)),
        None if named("zstd") => Ok(Some(Encoding::Zstd)),
        _ => {
            let message = "the request body is compressed in a way that this gateway does not unpack; send it with \
                           one content-encoding, `gzip` or `zstd`, or without";
            Err(Failure::refused(Reason::Format, message)
                .with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE)
                .with_evidence("content-encoding"))
        }
    }
}

impl Encoding {
    /// `packed` as it was before, piece by piece. Not more than `limit` bytes of it are read, whatever they come to:
    /// there are frames that come to nothing.
    pub(super) fn unpack(self, packed: Body, limit: usize) -> Body {
        let packed = Limited::new(packed, limit).into_data_stream();
        let packed = StreamReader::new(MapErr(packed, |error| io::Error::other(Received(error))));
        match self {
            // Behind one member there may be others, and nothing else.
            Self::Gzip => {
                let mut unpacked = GzipDecoder::new(packed);
                unpacked.multiple_members(true);
                pieces(unpacked)
            }
            Self::Zstd => {
                // The window that RFC 9659 lets a sender use on the web, 8 MiB: more would be memory for little.
                let window = DParameter::window_log_max(23);
                let mut unpacked = ZstdDecoder::with_params(packed, &[window]);
                unpacked.multiple_members(true);
                pieces(unpacked)
            }
        }
    }
}

fn pieces(unpacked: impl AsyncRead + Send + 'static) -> Body {
    let pieces = Box::pin(ReaderStream::with_capacity(unpacked, PIECE));
    Body::from_stream(MapErr(pieces, Unpacking))
}

/// A body could not be received, before it was unpacked.
#[derive(Debug, thiserror::Error)]
#[error("the body was not received")]
struct Received(#[source] BoxError);

/// A body could not be unpacked, or not be received.
#[derive(Debug, thiserror::Error)]
#[error("the body can not be unpacked")]
struct Unpacking(#[source] io::Error);

impl Unpacking {
    /// What went wrong before it was unpacked.
    fn before(&self) -> Option<&Received> {
        self.0.get_ref()?.downcast_ref()
    }
}

/// A stream with other errors.
struct MapErr<S, F>(S, F);

impl<S, T, E, F, G> Stream for MapErr<S, F>
where
    S: Stream<Item = Result<T, E>> + Unpin,
    F: Fn(E) -> G + Unpin,
{
    type Item = Result<T, G>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self(stream, other) = self.get_mut();
        Pin::new(stream).poll_next(cx).map(|item| item.map(|item| item.map_err(other)))
    }
}

fn too_large(limit: usize) -> Failure {
    let message = format!("the request body is larger than the {limit} bytes this gateway takes");
    Failure::refused(Reason::PayloadTooLarge, message)
}

/// The failure of a body that ended with `error`.
fn unreadable(error: axum::Error, limit: usize) -> Failure {
    let mut cause = error.source();
    let unpacking = loop {
        let Some(one) = cause else { break None };
        if let Some(unpacking) = one.downcast_ref::<Unpacking>() {
            break Some(unpacking);
        }
        cause = one.source();
    };
    match unpacking.map(Unpacking::before) {
        Some(Some(Received(before))) if before.is::<LengthLimitError>() => too_large(limit),
        Some(None) => {
            let message =
                "the request body is not what its content-encoding says, or ends too early";
            Failure::refused(Reason::Format, message)
                .with_evidence("content-encoding")
                .with_source(error)
        }
        _ => Failure::refused(Reason::Cancelled, "the request body broke off").with_source(error),
    }
}

/// The whole of a body, within its limits and in memory that there is. One that is announced as too large is
/// not read.
pub(super) async fn collect(
    body: &mut Body,
    setup: &Setup,
    admitted: &mut Admitted,
) -> Result<Bytes, Failure> {
    let limit = setup.body_limit;
    let hint = body.size_hint();
    if hint.lower() > limit as u64 {
        return Err(too_large(limit));
    }
    let announced = hint.upper().map_or(limit, |length| length as usize);
    admitted.announced(hint.lower())?;
    let now = Instant::now();
    let end = later(now, setup.body_timeout);
    let mut due = end.min(later(now, setup.body_progress));
    let mut pieces = Collected::default();
    loop {
        let frame = match timeout_at(due, body.frame()).await {
            Err(_) => return Err(late(due == end, setup)),
            Ok(None) => break,
            Ok(Some(Err(error))) => return Err(unreadable(error, limit)),
            Ok(Some(Ok(frame))) => frame,
        };
        // An empty piece is no progress.
        let Some(bytes) = frame.into_data().ok().filter(|bytes| !bytes.is_empty()) else {
            continue;
        };
        let length = pieces.len() + bytes.len();
        if length > limit {
            return Err(too_large(limit));
        }
        // Twice as much each time, so that nothing is taken for what may never come.
        let most = announced.max(length);
        admitted.reserve(length.next_power_of_two().min(most)).await?;
        pieces.push(bytes, most);
        if !body.is_end_stream() {
            due = end.min(later(Instant::now(), setup.body_progress));
        }
    }
    admitted.shrink(pieces.len());
    Ok(pieces.whole())
}

/// The failure of a body that took too long: as a whole, or between two pieces.
fn late(whole: bool, setup: &Setup) -> Failure {
    let (limit, key) = if whole {
        (setup.body_timeout, "body_timeout_s")
    } else {
        (setup.body_progress, "body_progress_s")
    };
    let limit = limit.as_secs_f64();
    let what = if whole { "did not arrive in time" } else { "stopped on its way" };
    let message = format!("the request body {what}: the limit is {limit} s (`server.{key}`)");
    Failure::refused(Reason::Timeout, message)
        .with_status(http::StatusCode::REQUEST_TIMEOUT)
        .with_fault(FaultSide::Caller)
        .with_evidence("request body")
}

/// The pieces of a body that have come; one alone is not copied.
#[derive(Default)]
struct Collected {
    first: Bytes,
    /// With the first, once there are more.
    all: Vec<u8>,
}

impl Collected {
    fn len(&self) -> usize {
        self.first.len().max(self.all.len())
    }

    /// One more, of `most` bytes in all.
    fn push(&mut self, bytes: Bytes, most: usize) {
        if self.len() == 0 {
            self.first = bytes;
            return;
        }
        let length = self.len() + bytes.len();
        if self.all.capacity() < length {
            // Grown in few steps: what is left behind is not given back at once. As much is charged by now.
            let capacity = length.saturating_mul(COST as usize).min(most);
            self.all.reserve_exact(capacity - self.all.len());
        }
        if self.all.is_empty() {
            self.all.extend_from_slice(&self.first);
            self.first = Bytes::new();
        }
        self.all.extend_from_slice(&bytes);
    }

    fn whole(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.into() }
    }
}

/// `body`, without the buffer it was read into if it is small. The request is kept until its answer
/// has ended, and would keep that buffer with it; the connection would get another one meanwhile.
pub(super) fn let_go(body: Bytes) -> Bytes {
    if body.len() <= COPIED { Bytes::copy_from_slice(&body) } else { body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_body_lets_go_of_what_it_was_read_into() {
        for (length, free) in [(0, true), (COPIED, true), (COPIED + 1, false)] {
            let buffer = Bytes::from(vec![b'x'; 2 * COPIED]);
            let body = let_go(buffer.slice(..length));
            assert_eq!((body.len(), buffer.is_unique()), (length, free));
        }
    }
}
