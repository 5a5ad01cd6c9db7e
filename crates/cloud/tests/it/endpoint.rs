//! An HTTP endpoint on loopback that answers by a script.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
};

/// What it does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// This status and body.
    Status(u16, String),
    /// Nothing, until the caller hangs up.
    Never,
}

pub(crate) struct Endpoint {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<String>>>,
    hung_up: mpsc::UnboundedReceiver<()>,
    arrived: mpsc::UnboundedReceiver<()>,
    serving: JoinHandle<()>,
}

impl Endpoint {
    /// Answers with each of `script` in turn, and with its last one from then on.
    pub(crate) async fn new(script: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let script: Vec<_> = script.into_iter().collect();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (went, hung_up) = mpsc::unbounded_channel();
        let (came, arrived) = mpsc::unbounded_channel();
        let seen = requests.clone();
        let serving = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let Some(request) = read(&mut stream).await else { continue };
                let number = {
                    let mut seen = seen.lock();
                    seen.push(request);
                    seen.len() - 1
                };
                came.send(()).unwrap();
                match &script[number.min(script.len() - 1)] {
                    Answer::Status(status, body) => {
                        let head = format!(
                            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n\
                             x-aws-ec2-metadata-token-ttl-seconds: 21600\r\n\
                             content-length: {}\r\nconnection: close\r\n\r\n",
                            body.len()
                        );
                        stream.write_all((head + body).as_bytes()).await.unwrap();
                    }
                    Answer::Never => {
                        let went = went.clone();
                        tokio::spawn(async move {
                            while stream.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {}
                            let _ = went.send(());
                        });
                    }
                }
            }
        });
        Self { url, requests, hung_up, arrived, serving }
    }

    /// An address at which nobody listens.
    pub(crate) async fn down() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    }

    /// Heads and bodies, as they came.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }

    /// A request has come.
    pub(crate) async fn arrived(&mut self) {
        self.arrived.recv().await.unwrap();
    }

    /// A caller who got no answer has gone.
    pub(crate) async fn hung_up(&mut self) {
        self.hung_up.recv().await.unwrap();
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn read(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
            });
            if body.len() >= length.unwrap_or(0) {
                return Some(text.into_owned());
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}
