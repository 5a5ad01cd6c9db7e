//! A minimal HTTP/1.1 client, so that tests see every byte of a response.

use std::{future::Future, net::SocketAddr, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Longer than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// `future`, which must not hang.
pub async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TIMEOUT, future).await.expect("timed out")
}

/// Waits until `holds` returns true, by asking it again and again: for what a test can not be
/// notified of.
///
/// # Panics
///
/// With `what` when that takes longer than anything here.
pub async fn poll_until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let polls = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(TIMEOUT, polls).await.is_ok(), "timed out: {what}");
}

/// A request.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    method: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl HttpRequest {
    /// `GET`.
    pub fn get(path: impl Into<String>) -> Self {
        Self { method: "GET", path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    /// `POST` of JSON.
    pub fn post(path: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        let ask = Self { method: "POST", body: body.into(), ..Self::get(path) };
        ask.header("content-type", "application/json")
    }

    /// By another method.
    #[must_use]
    pub fn method(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }

    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// With `more` at the end of the address.
    #[must_use]
    pub fn query(mut self, more: &str) -> Self {
        self.path.push(if self.path.contains('?') { '&' } else { '?' });
        self.path.push_str(more);
        self
    }

    /// With another address.
    #[must_use]
    pub fn at(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }

    /// With another body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// The body.
    pub fn sent(&self) -> &[u8] {
        &self.body
    }

    /// The same for a service in process.
    pub fn to_http(&self) -> http::Request<Vec<u8>> {
        let request = http::Request::builder().method(self.method).uri(&self.path);
        let request = request.header("host", "127.0.0.1");
        let request = self
            .headers
            .iter()
            .fold(request, |request, (name, value)| request.header(name.as_str(), value.as_str()));
        request.body(self.body.clone()).unwrap()
    }

    /// Sends it on a new connection; returns the connection, before anything was read from it.
    pub async fn start(&self, addr: SocketAddr) -> TcpStream {
        let mut head = format!("{} {} HTTP/1.1\r\nhost: {addr}\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("content-length: {}\r\n\r\n", self.body.len());
        let mut stream = within(TcpStream::connect(addr)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        within(async {
            stream.write_all(head.as_bytes()).await.unwrap();
            // A server may answer and close before it has read everything.
            let _ = stream.write_all(&self.body).await;
        })
        .await;
        stream
    }

    /// Sends it, and reads the head of the response.
    pub async fn open(&self, addr: SocketAddr) -> OpenReply {
        let mut stream = self.start(addr).await;
        let mut buffer = Vec::new();
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at;
            }
            let read = within(stream.read_buf(&mut buffer)).await.unwrap();
            assert!(read > 0, "closed inside the head: {:?}", String::from_utf8_lossy(&buffer));
        };
        let head = String::from_utf8(buffer.drain(..end + 4).collect()).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<_> = lines
            .map(|line| line.split_once(':').unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let left = length.map(|(_, length)| length.parse().unwrap());
        let chunked = headers.iter().any(|h| h.0 == "transfer-encoding" && h.1 == "chunked");
        assert!(chunked != left.is_some(), "a body has one framing: {headers:?}");
        OpenReply { stream, buffer, left, status, headers, clean: false }
    }

    /// Sends it, and reads the whole response.
    pub async fn send(&self, addr: SocketAddr) -> Reply {
        self.open(addr).await.rest().await
    }
}

/// A response whose body has not been read yet.
#[derive(Debug)]
pub struct OpenReply {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Bytes left of a body of known length; `None` for a chunked one.
    left: Option<usize>,
    /// The status.
    pub status: u16,
    headers: Vec<(String, String)>,
    clean: bool,
}

impl OpenReply {
    /// The next bytes of the body; `None` at its end, or where the connection ended.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        if self.clean {
            return None;
        }
        loop {
            match self.left {
                Some(left) => {
                    if left == 0 {
                        self.clean = true;
                        return None;
                    }
                    if !self.buffer.is_empty() {
                        let piece: Vec<_> =
                            self.buffer.drain(..self.buffer.len().min(left)).collect();
                        self.left = Some(left - piece.len());
                        return Some(piece);
                    }
                }
                None => {
                    if let Some(piece) = self.chunk() {
                        self.clean = piece.is_empty();
                        return Some(piece).filter(|piece| !piece.is_empty());
                    }
                }
            }
            if within(self.stream.read_buf(&mut self.buffer)).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// A whole chunk, if one has arrived. The last one is empty.
    fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = self.buffer.windows(2).position(|two| two == b"\r\n")?;
        let size = std::str::from_utf8(&self.buffer[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        let end = line + 2 + size + 2;
        if self.buffer.len() < end {
            return None;
        }
        assert_eq!(&self.buffer[end - 2..end], b"\r\n");
        let mut chunk: Vec<_> = self.buffer.drain(..end).skip(line + 2).collect();
        chunk.truncate(size);
        Some(chunk)
    }

    /// Reads until `done` returns true for the bytes since this was called.
    pub async fn until(&mut self, done: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let mut all = Vec::new();
        while !done(&all) {
            let piece = self.next().await;
            all.extend(piece.unwrap_or_else(|| {
                let tail = &all[all.len().saturating_sub(400)..];
                panic!("it ended too early: {:?}", String::from_utf8_lossy(tail))
            }));
        }
        all
    }

    /// The rest of the body.
    pub async fn rest(mut self) -> Reply {
        let mut body = Vec::new();
        while let Some(piece) = self.next().await {
            body.extend(piece);
        }
        let Self { status, headers, clean, .. } = self;
        Reply { status, headers, body, clean }
    }
}

/// A whole response.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers in order, their names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Whether the body ended by its framing, and not with the connection.
    pub clean: bool,
}

impl Reply {
    /// The header of this name, which must not be repeated.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter().filter(|header| header.0 == name);
        let first = all.next();
        assert!(all.next().is_none(), "`{name}` is repeated: {:?}", self.headers);
        first.map(|header| header.1.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e} in {:?}", self.text()))
    }

    /// Headers and body as text, to search them for what must not be there.
    pub fn everything(&self) -> String {
        format!("{:?} {}", self.headers, String::from_utf8_lossy(&self.body))
    }
}
