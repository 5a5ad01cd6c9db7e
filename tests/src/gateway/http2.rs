//! An HTTP/2 client of the gateway: one connection, many streams, windows of any size.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Response, body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, task::JoinHandle};

use super::http::{HttpRequest, within};

/// A connection.
#[derive(Debug)]
pub struct Http2 {
    streams: http2::SendRequest<Full<Bytes>>,
    addr: SocketAddr,
    /// Ready when the connection has ended.
    pub connection: JoinHandle<hyper::Result<()>>,
}

impl Http2 {
    /// Connects; each stream takes `window` bytes before it has to be read, all together any number.
    pub async fn connect(addr: SocketAddr, window: u32) -> Self {
        let stream = within(TcpStream::connect(addr)).await.unwrap();
        let (streams, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .initial_connection_window_size(64 * 1024 * 1024)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        Self { streams, addr, connection: tokio::spawn(connection) }
    }

    /// Sends `request`, and reads the head of the response.
    pub async fn open(&self, request: &HttpRequest) -> Response<Incoming> {
        let (mut parts, body) = request.to_http().into_parts();
        // The name is in the target alone.
        parts.headers.remove("host");
        let authority = self.addr.to_string();
        let mut target = parts.uri.into_parts();
        target.scheme = Some(http::uri::Scheme::HTTP);
        target.authority = Some(authority.parse().unwrap());
        parts.uri = http::Uri::from_parts(target).unwrap();
        self.send(http::Request::from_parts(parts, body)).await
    }

    /// Sends `request` as it is.
    pub async fn send(&self, request: http::Request<Vec<u8>>) -> Response<Incoming> {
        let mut streams = self.streams.clone();
        within(streams.ready()).await.unwrap();
        within(streams.send_request(request.map(Full::from))).await.unwrap()
    }
}

/// The bytes of a body, and whether it came to its end.
pub async fn rest(mut body: Incoming) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    while let Some(frame) = within(body.frame()).await {
        match frame {
            Ok(frame) => all.extend(frame.into_data().unwrap_or_default()),
            Err(_) => return (all, false),
        }
    }
    (all, true)
}
