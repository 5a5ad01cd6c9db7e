//! What sockets hold of messages that are not requests yet: charged to nobody, and so bounded for all together.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much of it every socket may have, whatever the others have: 16 KiB, so that what is new in a turn goes on.
const FREE: u64 = 16 * 1024;

/// The bytes that one socket holds, among those of all.
#[derive(Debug)]
pub(super) struct SocketBytes {
    own: AtomicU64,
    all: Arc<AtomicU64>,
    most: u64,
}

impl SocketBytes {
    /// Of a socket; `all` have `most`.
    pub(super) fn new(all: Arc<AtomicU64>, most: u64) -> Arc<Self> {
        Arc::new(Self { own: AtomicU64::new(0), all, most })
    }

    /// It has read so many more; whether there was room for them.
    fn add(&self, bytes: u64) -> bool {
        let own = self.own.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let all = self.all.fetch_add(bytes, Ordering::Relaxed) + bytes;
        own <= FREE || all <= self.most
    }

    /// It has let go of so many.
    pub(super) fn sub(&self, bytes: u64) {
        self.own.fetch_sub(bytes, Ordering::Relaxed);
        self.all.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// It holds so many.
    pub(super) fn set(&self, bytes: u64) {
        let before = self.own.swap(bytes, Ordering::Relaxed);
        self.all.fetch_add(bytes, Ordering::Relaxed);
        self.all.fetch_sub(before, Ordering::Relaxed);
    }
}

impl Drop for SocketBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(*self.own.get_mut(), Ordering::Relaxed);
    }
}

/// A connection whose bytes are counted as they are read.
#[derive(Debug)]
pub(super) struct Metered<S> {
    inner: S,
    bytes: Arc<SocketBytes>,
}

impl<S> Metered<S> {
    pub(super) fn new(inner: S, bytes: Arc<SocketBytes>) -> Self {
        Self { inner, bytes }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let read = buffer.filled().len() - before;
        if self.bytes.add(read as u64) {
            return Poll::Ready(Ok(()));
        }
        let message = "there is no memory left for the messages of sockets";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::OutOfMemory, message)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn each_has_a_little_and_all_have_so_much() {
        let all = Arc::new(AtomicU64::new(0));
        let (first, second) =
            (SocketBytes::new(all.clone(), 100_000), SocketBytes::new(all.clone(), 100_000));
        assert!(first.add(90_000), "as long as the others have nothing");
        assert!(second.add(FREE), "a little has everybody");
        assert!(!second.add(1) && !first.add(1));
        first.set(10);
        assert_eq!(all.load(Ordering::Relaxed), 10 + FREE + 1);
        first.sub(5);
        assert!(second.add(1));
        drop(second);
        assert_eq!(all.load(Ordering::Relaxed), 5);
    }

    #[tokio::test]
    async fn what_is_read_counts_and_what_is_too_much_is_an_error() {
        let (mut peer, own) = tokio::io::duplex(1 << 20);
        let bytes = SocketBytes::new(Arc::default(), 0);
        let mut own = Metered::new(own, bytes.clone());
        peer.write_all(&vec![0; 30_000]).await.unwrap();
        let mut read = vec![0; 16_000];
        own.read_exact(&mut read).await.unwrap();
        let error = own.read_exact(&mut read).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        bytes.set(0);
        own.write_all(b"still").await.unwrap();
    }
}
