//! The socket of a connection, whose writes have a limit of time.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use socket2::SockRef;
use steadfast_core::time::{Alarm, later};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Instant,
};

use super::reader::Activity;

/// How long what still comes is read after an answer that closes the connection: 2 s. Closed with bytes
/// unread a connection is reset, and the caller may lose the answer.
const LINGER: Duration = Duration::from_secs(2);

/// How much of it is read: 64 MiB, twice the default limit of a body. Who sends more does not read answers.
const LINGER_BYTES: usize = 64 * 1024 * 1024;

/// How often in a send timeout a socket is tried that is full.
const TRIES: u32 = 4;

/// A socket that fails when the other side takes no byte for the send timeout, which covers what the
/// server has buffered behind the end of an answer, too.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    activity: Arc<Activity>,
    send_timeout: Duration,
    /// The last write was not taken.
    stalled: Option<Stalled>,
    /// Our side is closed.
    lingering: Option<Lingering>,
}

/// A socket that reads what still comes, until then and so much.
#[derive(Debug)]
struct Lingering {
    until: Alarm,
    left: usize,
}

/// A socket that is full.
///
/// It counts as writable again when a third of its buffer is free, which can be a megabyte, and has room as
/// soon as the other side has taken a byte: so it is tried.
#[derive(Debug)]
struct Stalled {
    /// When the other side last took something.
    since: Instant,
    /// When it is tried next.
    next: Alarm,
    tried: bool,
    /// It has room, which is filled.
    filling: bool,
}

impl Stalled {
    fn new(limit: Duration) -> Self {
        let now = Instant::now();
        let next = Alarm::at(later(now, limit / TRIES));
        Self { since: now, next, tried: false, filling: false }
    }

    /// It was tried, and did or did not take something. Whether its time is over.
    fn tried(&mut self, taken: bool, limit: Duration, now: Instant) -> bool {
        let tried = std::mem::replace(&mut self.tried, true);
        // The first room may be what the system has added to the buffer.
        if taken && tried && !self.filling {
            self.since = now;
        }
        self.filling = taken;
        let end = later(self.since, limit);
        self.next.reset(end.min(later(now, limit / TRIES)));
        !taken && now >= end
    }
}

impl Socket {
    pub(super) fn new(stream: TcpStream, activity: Arc<Activity>, send_timeout: Duration) -> Self {
        Self { stream, activity, send_timeout, stalled: None, lingering: None }
    }

    /// The result of a write of `bytes`, or the error that nothing was written for too long.
    fn written(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            if self.stalled.is_some() {
                self.stalled = None;
                self.activity.set_blocked(false);
            }
            return written;
        }
        let limit = self.send_timeout;
        let activity = &self.activity;
        let stalled = self.stalled.get_or_insert_with(|| {
            activity.set_blocked(true);
            Stalled::new(limit)
        });
        loop {
            if !stalled.filling {
                ready!(stalled.next.poll(cx));
            }
            // Where it fails, the next write has the error.
            let taken = SockRef::from(&self.stream).send(bytes).unwrap_or_default();
            let over = stalled.tried(taken > 0, limit, Instant::now());
            if taken > 0 {
                return Poll::Ready(Ok(taken));
            }
            if over {
                activity.end_unread();
                let limit = limit.as_secs_f64();
                let message =
                    format!("the caller took not a byte for {limit} s (`server.send_timeout_s`)");
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)));
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.activity.received();
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, written, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        let first = pieces.iter().find(|piece| !piece.is_empty());
        self.written(cx, written, first.map_or(&[], |piece| piece))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            if !this.activity.lingers() {
                return Poll::Ready(Ok(()));
            }
        }
        let lingering = this.lingering.get_or_insert_with(|| Lingering {
            until: Alarm::at(Instant::now() + LINGER),
            left: LINGER_BYTES,
        });
        let mut room = [0; 8 * 1024];
        loop {
            let mut dropped = ReadBuf::new(&mut room);
            match Pin::new(&mut this.stream).poll_read(cx, &mut dropped) {
                Poll::Ready(Ok(())) if !dropped.filled().is_empty() => {
                    lingering.left = lingering.left.saturating_sub(dropped.filled().len());
                    if lingering.left == 0 || lingering.until.poll(cx).is_ready() {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return lingering.until.poll(cx).map(Ok),
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.activity.is_unread() {
            // Reset: what waits to be sent is of no use, and would be held for a caller that does not read.
            let _ = self.stream.set_zero_linger();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_byte_that_is_taken_gives_the_whole_time_again() {
        const LIMIT: Duration = Duration::from_secs(60);
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        // What the socket took at each try, and when it is tried next or its time is over.
        for (name, tries) in [
            (
                "nothing",
                &[
                    (15, false, Some(30)),
                    (30, false, Some(45)),
                    (45, false, Some(60)),
                    (60, false, None),
                ][..],
            ),
            (
                "room of the system",
                &[
                    (15, true, Some(30)),
                    (15, false, Some(30)),
                    (30, false, Some(45)),
                    (60, false, None),
                ],
            ),
            (
                "a byte",
                &[
                    (15, false, Some(30)),
                    (30, true, Some(45)),
                    (30, false, Some(45)),
                    (60, false, Some(75)),
                    (90, false, None),
                ],
            ),
            (
                "late",
                &[
                    (59, false, Some(60)),
                    (60, true, Some(75)),
                    (60, false, Some(75)),
                    (120, false, None),
                ],
            ),
        ] {
            let mut stalled = Stalled::new(LIMIT);
            assert_eq!(stalled.next.deadline(), at(15), "{name}");
            for (now, taken, next) in tries {
                let over = stalled.tried(*taken, LIMIT, at(*now));
                assert_eq!(over, next.is_none(), "{name} at {now}");
                if let Some(next) = next {
                    assert_eq!(stalled.next.deadline(), at(*next), "{name} at {now}");
                }
            }
        }
    }
}
