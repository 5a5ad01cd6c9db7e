//! Which HTTP a client speaks.
//!
//! hyper-util would detect it, but waits for ever for a client that sends nothing or half of a
//! preface, and puts what it has read before the rest, for which hyper takes 16 KiB instead of 8: a
//! stream then holds 45.0 KB instead of 42.6 (`cargo xtask bench gateway`, memory).

use std::{io, time::Duration};

use tokio::net::TcpStream;

/// What a client of HTTP/2 sends first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Wait for the rest of a preface of which a part has come, which hardly ever happens.
const PAUSE: Duration = Duration::from_millis(20);

/// Whether the client speaks HTTP/2, once it has sent something. The caller limits the time.
pub(super) async fn is_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; PREFACE.len()];
    loop {
        let len = stream.peek(&mut first).await?;
        if len == 0 || len == PREFACE.len() || !PREFACE.starts_with(&first[..len]) {
            return Ok(first == *PREFACE);
        }
        // Peeking does not wait for the rest.
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt, net::TcpListener};

    use super::*;

    #[tokio::test]
    async fn the_first_bytes_show_the_version() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for (pieces, expected) in [
            (&[&PREFACE[..]][..], true),
            (&[&PREFACE[..3], &PREFACE[3..20], &PREFACE[20..]], true),
            (&[b"POST /v1/messages HTTP/1.1"], false),
            (&[b"P", b"RI /v1 HTTP/1.1\r\n\r\n"], false),
            (&[b"PRI * HTTP/2.0\r\n\r\nNO\r\n\r\n"], false),
            (&[], false),
        ] {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (server, _) = listener.accept().await.unwrap();
            let sends = async {
                for piece in pieces {
                    client.write_all(piece).await.unwrap();
                    tokio::time::sleep(PAUSE).await;
                }
                client.shutdown().await.unwrap();
            };
            let (is_http2, ()) = tokio::join!(is_http2(&server), sends);
            assert_eq!(is_http2.unwrap(), expected, "{pieces:?}");
        }
    }

    #[tokio::test]
    async fn half_a_preface_is_waited_for_as_long_as_the_caller_allows() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        client.write_all(&PREFACE[..5]).await.unwrap();
        assert!(tokio::time::timeout(3 * PAUSE, is_http2(&server)).await.is_err());
    }
}
