//! A client of raw bytes over HTTP/1.1: it sends what no honest one would, and reads what comes back strictly.

use std::{net::SocketAddr, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};

use crate::check::Failed;

/// How long an answer may take that nothing delays.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// A response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Whether the body ended by its framing.
    pub(crate) is_whole: bool,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// Status and the beginning of its body.
    pub(crate) fn brief(&self) -> String {
        let text: String = self.text().chars().take(160).collect();
        format!("{}{} {text}", self.status, if self.is_whole { "" } else { " (cut)" })
    }

    /// Whether it is an error in one of the dialects' shapes.
    pub(crate) fn is_typed_error(&self) -> bool {
        let message = |body: Value| body["error"]["message"].is_string();
        self.status >= 400 && self.json().is_some_and(message)
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    ended: bool,
}

impl Client {
    pub(crate) async fn connect(addr: SocketAddr) -> Result<Self, Failed> {
        let stream = timeout(SOON, TcpStream::connect(addr)).await??;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new(), ended: false })
    }

    /// With a small buffer for what comes in, so that whoever writes to it soon has to wait.
    pub(crate) async fn narrow(addr: SocketAddr) -> Result<Self, Failed> {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        let stream = timeout(SOON, socket.connect(addr)).await??;
        Ok(Self { stream, buffer: Vec::new(), ended: false })
    }

    /// Sends bytes. A server may answer and close before it has read them all.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).await.is_ok()
    }

    /// Ends what is sent, and goes on reading.
    pub(crate) async fn half_close(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// Ends the connection with a reset.
    pub(crate) fn reset(self) {
        let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    /// The next bytes, at most until `deadline`; `None` at the end or when none came.
    async fn fill(&mut self, deadline: Instant) -> Option<usize> {
        if self.ended {
            return None;
        }
        match timeout_at(deadline, self.stream.read_buf(&mut self.buffer)).await {
            Ok(Ok(count)) if count > 0 => Some(count),
            Ok(_) => {
                self.ended = true;
                None
            }
            Err(_) => None,
        }
    }

    /// Whether the other side ends the connection within `limit`; what comes until then is thrown away.
    pub(crate) async fn is_closed(&mut self, limit: Duration) -> bool {
        self.rest(limit).await.1
    }

    /// How many bytes come until the connection ends, or for so long; whether it ended.
    pub(crate) async fn rest(&mut self, limit: Duration) -> (usize, bool) {
        let deadline = Instant::now() + limit;
        let mut seen = 0;
        while let Some(more) = self.fill(deadline).await {
            seen += more;
            self.buffer.clear();
        }
        (seen, self.ended)
    }

    /// The status of the next response, of which little more is read.
    pub(crate) async fn status(&mut self, limit: Duration) -> Option<u16> {
        let deadline = Instant::now() + limit;
        while self.buffer.len() < 12 {
            self.fill(deadline).await?;
        }
        std::str::from_utf8(&self.buffer[9..12]).ok()?.parse().ok()
    }

    /// The next response; `None` when the connection ended, or nothing came, before its head was whole.
    pub(crate) async fn reply(&mut self, limit: Duration) -> Option<Reply> {
        let deadline = Instant::now() + limit;
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at;
            }
            self.fill(deadline).await?;
        };
        let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers: Vec<_> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut reply = Reply { status, headers, ..Reply::default() };
        if status == 100 {
            reply.is_whole = true;
            return Some(reply);
        }
        if let Some(length) = reply.header("content-length") {
            let length: usize = length.parse().ok()?;
            while self.buffer.len() < length && self.fill(deadline).await.is_some() {}
            reply.is_whole = self.buffer.len() >= length;
            reply.body = self.buffer.drain(..length.min(self.buffer.len())).collect();
        } else if reply.header("transfer-encoding").is_some() {
            reply.is_whole = self.chunks(&mut reply.body, deadline).await;
        } else {
            reply.is_whole = status == 204 || status == 304;
        }
        Some(reply)
    }

    /// The chunks of a body; whether its end came.
    async fn chunks(&mut self, body: &mut Vec<u8>, deadline: Instant) -> bool {
        loop {
            let line = self.buffer.windows(2).position(|two| two == b"\r\n");
            let size = line.and_then(|line| {
                let size = std::str::from_utf8(&self.buffer[..line]).ok()?;
                Some((line + 2, usize::from_str_radix(size, 16).ok()?))
            });
            match size {
                Some((from, size)) if self.buffer.len() >= from + size + 2 => {
                    body.extend_from_slice(&self.buffer[from..from + size]);
                    self.buffer.drain(..from + size + 2);
                    if size == 0 {
                        return true;
                    }
                }
                _ => {
                    if self.fill(deadline).await.is_none() {
                        return false;
                    }
                }
            }
        }
    }

    /// All responses until the connection ends, or nothing comes for `silence`.
    pub(crate) async fn replies(&mut self, silence: Duration) -> Vec<Reply> {
        let mut all = Vec::new();
        while let Some(reply) = self.reply(silence).await {
            all.push(reply);
        }
        all
    }
}

/// The body of a question to `model`.
pub(crate) fn question(model: &str, content: &str, stream: bool) -> String {
    json!({"model": model, "stream": stream, "messages": [{"role": "user", "content": content}]})
        .to_string()
}

/// A request of OpenAI's dialect. `headers` end with a line end each.
pub(crate) fn chat(headers: &str, body: &str) -> Vec<u8> {
    post("/v1/chat/completions", headers, body.as_bytes())
}

/// The head of a chat whose body has `length` bytes. `headers` end with a line end each.
pub(crate) fn head(length: usize, headers: &str) -> String {
    head_of("/v1/chat/completions", headers, length)
}

/// A `POST` of `body`.
pub(crate) fn post(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    [head_of(path, headers, body.len()).as_bytes(), body].concat()
}

fn head_of(path: &str, headers: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
         {headers}content-length: {length}\r\n\r\n"
    )
}

/// Sends `request` on a connection of its own; the response.
pub(crate) async fn call(
    addr: SocketAddr,
    request: impl AsRef<[u8]>,
    limit: Duration,
) -> Result<Reply, Failed> {
    let mut client = Client::connect(addr).await?;
    let exchange = async {
        client.send(request).await;
        client.reply(limit).await
    };
    match timeout(limit, exchange).await {
        Ok(Some(reply)) => Ok(reply),
        Ok(None) => Err("no answer: the connection ended, or nothing came in time".into()),
        Err(_) => Err(format!("no answer within {limit:?}").into()),
    }
}

/// A `GET`.
pub(crate) async fn get(addr: SocketAddr, path: &str) -> Result<Reply, Failed> {
    call(addr, format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"), SOON).await
}

/// An ordinary call, answered well by a gateway that is well.
pub(crate) async fn ask(addr: SocketAddr, model: &str, content: &str) -> Result<Reply, Failed> {
    call(addr, chat("", &question(model, content, false)), SOON).await
}
