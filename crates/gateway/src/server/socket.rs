//! The socket of a connection, whose writes have a limit of time.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

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

/// A socket that fails when the other side takes no byte for the send timeout, which covers what the
/// server has buffered behind the end of an answer, too.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    activity: Arc<Activity>,
    send_timeout: Duration,
    /// The last write was not taken; `stalled` runs.
    blocked: bool,
    stalled: Option<Alarm>,
    /// Our side is closed, and what comes is read until then.
    lingering: Option<Alarm>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, activity: Arc<Activity>, send_timeout: Duration) -> Self {
        Self { stream, activity, send_timeout, blocked: false, stalled: None, lingering: None }
    }

    /// The result of a write, or the error that nothing was written for too long.
    fn written(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            if self.blocked {
                self.blocked = false;
                self.activity.set_blocked(false);
            }
            return written;
        }
        if !self.blocked {
            self.blocked = true;
            self.activity.set_blocked(true);
            let due = later(Instant::now(), self.send_timeout);
            match &mut self.stalled {
                Some(alarm) => alarm.reset(due),
                None => self.stalled = Some(Alarm::at(due)),
            }
        }
        let Some(stalled) = &mut self.stalled else { return Poll::Pending };
        ready!(stalled.poll(cx));
        self.activity.end_unread();
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "the caller took not a byte for {} s (`server.send_timeout_s`)",
                self.send_timeout.as_secs_f64()
            ),
        )))
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
        self.written(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.written(cx, written)
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
        let until = this.lingering.get_or_insert_with(|| Alarm::at(Instant::now() + LINGER));
        let mut room = [0; 8 * 1024];
        loop {
            let mut dropped = ReadBuf::new(&mut room);
            match Pin::new(&mut this.stream).poll_read(cx, &mut dropped) {
                Poll::Ready(Ok(())) if !dropped.filled().is_empty() => {
                    if until.poll(cx).is_ready() {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return until.poll(cx).map(Ok),
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
