//! Callers that take an answer and do not read it: they hold nothing of the provider past the send timeout
//! or the call's own deadline, and nobody else notices.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use steadfast::sim::Dialect;
use steadfast_tests::gateway::{
    Rig, RigBuilder, ask,
    http::{HttpRequest, poll_until, within},
    http2::{self, Http2},
    path, question,
    wire_answer::WireAnswer,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::Instant,
};

/// The text of one event.
const PIECE: usize = 16 * 1024;
/// Longer than all the buffers between a provider and a caller take.
const LONG: usize = 400;

/// A provider of one kind of answer, that is held by whoever does not read it.
#[derive(Clone)]
struct Source {
    addr: SocketAddr,
    pieces: usize,
    /// Calls it has received, and those whose connections are open.
    asked: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
}

impl Source {
    /// Answers have so many pieces, all in one where a call does not stream.
    fn start(pieces: usize) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(64 * 1024).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1_024).unwrap();
        let addr = listener.local_addr().unwrap();
        let source = Self { addr, pieces, asked: Arc::default(), open: Arc::default() };
        let source_of_all = source.clone();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let source = source_of_all.clone();
                tokio::spawn(async move { source.serve(connection).await });
            }
        });
        source
    }

    async fn serve(&self, mut connection: TcpStream) {
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            if connection.read_buf(&mut request).await.unwrap_or(0) == 0 {
                return;
            }
        }
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.open.fetch_add(1, Ordering::SeqCst);
        let streams = String::from_utf8_lossy(&request).contains("\"stream\":true");
        let _ = if streams {
            self.events(&mut connection).await
        } else {
            self.whole(&mut connection).await
        };
        // It fails when the other side has gone.
        let _ = connection.shutdown().await;
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    async fn events(&self, connection: &mut TcpStream) -> std::io::Result<()> {
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        connection.write_all(head.as_bytes()).await?;
        let event = |delta, finish: Option<&str>| {
            let choices = json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
            let id = json!({
                "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o",
                "choices": choices,
            });
            format!("data: {id}\n\n")
        };
        let piece = event(json!({"content": "x".repeat(PIECE)}), None);
        for _ in 0..self.pieces {
            connection.write_all(piece.as_bytes()).await?;
        }
        let end = event(json!({}), Some("stop")) + "data: [DONE]\n\n";
        connection.write_all(end.as_bytes()).await
    }

    async fn whole(&self, connection: &mut TcpStream) -> std::io::Result<()> {
        let message = json!({"role": "assistant", "content": "x".repeat(PIECE * self.pieces)});
        let body = json!({
            "id": "c", "object": "chat.completion", "created": 1, "model": "gpt-4o",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        });
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        connection.write_all(head.as_bytes()).await?;
        connection.write_all(body.as_bytes()).await
    }

    /// The gateway in front of it, with these lines of `[server]` and further sections.
    async fn rig(&self, server: &str, more: &str) -> Rig {
        self.builder(server, more).start().await
    }

    fn builder(&self, server: &str, more: &str) -> RigBuilder {
        let provider = format!(
            "{more}\n[[providers]]\nname = \"source\"\ndialect = \"openai\"\n\
             base_url = \"http://{}/v1\"\n",
            self.addr
        );
        Rig::builder().server(&format!("auth = \"none\"\n{server}")).config(&provider)
    }

    /// Waits until so many calls have come, and none of them holds a connection any more.
    async fn until_free(&self, calls: usize) {
        poll_until("the provider's connections are closed", || async {
            let asked = self.asked.load(Ordering::SeqCst);
            asked == calls && self.open.load(Ordering::SeqCst) == 0
        })
        .await;
    }
}

/// More than any caller waits for.
const ENDLESS: usize = usize::MAX;
const ONE_SECOND: &str = "send_timeout_s = 1";

/// Asks over HTTP/1 from a socket that takes little, and reads nothing.
async fn ask_unread(addr: SocketAddr, stream: bool) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    let mut connection = within(socket.connect(addr)).await.unwrap();
    let body = question(Dialect::OpenAi, "gpt-4o", stream).to_string();
    let path = path(Dialect::OpenAi, "gpt-4o", stream);
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: {addr}\r\ncontent-length: {length}\r\n\r\n");
    within(connection.write_all(format!("{head}{body}").as_bytes())).await.unwrap();
    connection
}

/// Reads to the end; whether that was a reset.
async fn is_reset(mut connection: TcpStream) -> bool {
    let mut rest = Vec::new();
    within(connection.read_to_end(&mut rest)).await.is_err()
}

async fn metrics(rig: &Rig) -> String {
    HttpRequest::get("/metrics").send(rig.addr).await.text().to_owned()
}

async fn until_nothing_is_under_way(rig: &Rig) {
    poll_until("nothing is under way", || async {
        metrics(rig).await.contains("\nsteadfast_in_flight 0\n")
    })
    .await;
}

fn cancelled(times: usize) -> String {
    format!(
        "steadfast_requests_total{{dialect=\"openai\",stream=\"true\",outcome=\"cancelled\"}} {times}\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_callers_that_do_not_read_free_their_providers_at_the_deadline() {
    const CALLERS: usize = 100;
    let source = Source::start(ENDLESS);
    let builder = source.builder("", "[timeout]\npipeline_ms = 10000");
    let rig = builder.send_buffer(64 * 1024).start().await;
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(ask_unread(rig.addr, true));
    }
    let connections = callers.join_all().await;
    source.until_free(CALLERS).await;
    let took = began.elapsed();
    assert!((10..20).contains(&took.as_secs()), "at the deadline: {took:?}");
    until_nothing_is_under_way(&rig).await;
    assert!(metrics(&rig).await.contains(&cancelled(CALLERS)), "{}", metrics(&rig).await);
    for connection in connections {
        assert!(is_reset(connection).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_takes_no_byte_for_the_send_timeout_is_given_up() {
    for (stream, pieces) in [(true, ENDLESS), (false, LONG)] {
        let source = Source::start(pieces);
        let rig = source.rig(ONE_SECOND, "").await;
        let connection = ask_unread(rig.addr, stream).await;
        source.until_free(1).await;
        until_nothing_is_under_way(&rig).await;
        // Of a whole answer the server has all that is left.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(is_reset(connection).await, "stream {stream}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_caller_gets_every_byte() {
    let source = Source::start(LONG);
    let rig = source.rig("send_timeout_s = 2", "").await;
    let mut connection = ask_unread(rig.addr, true).await;
    let (mut all, mut piece) = (Vec::new(), vec![0; 64 * 1024]);
    // Less than makes the gateway's socket writable.
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(600)).await;
        let read = within(connection.read(&mut piece)).await.unwrap();
        all.extend_from_slice(&piece[..read]);
    }
    while !all.ends_with(b"\r\n0\r\n\r\n") {
        let read = within(connection.read(&mut piece)).await.unwrap();
        assert!(read > 0, "cut after {} bytes", all.len());
        all.extend_from_slice(&piece[..read]);
    }
    assert!(all.len() > LONG * PIECE, "{} bytes", all.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_not_read_is_reset_and_the_others_of_its_connection_live() {
    const WINDOW: u32 = 32 * 1024;
    let source = Source::start(LONG);
    let rig = source.rig(ONE_SECOND, "").await;
    let client = Http2::connect(rig.addr, WINDOW).await;
    let request = ask(Dialect::OpenAi, "gpt-4o", true);
    let unread = client.open(&request).await;
    let mut others = JoinSet::new();
    for n in 0..4 {
        let body = client.open(&request).await.into_body();
        others.spawn(async move {
            tokio::time::sleep(Duration::from_millis(200 * n)).await;
            http2::rest(body).await
        });
    }
    for (bytes, ended) in others.join_all().await {
        assert!(ended, "after {} bytes", bytes.len());
        assert_eq!(WireAnswer::stream(Dialect::OpenAi, &bytes).text.len(), LONG * PIECE);
    }
    source.until_free(5).await;
    let (bytes, ended) = http2::rest(unread.into_body()).await;
    assert!(!ended && bytes.len() <= WINDOW as usize, "reset after {} bytes", bytes.len());
    let (bytes, ended) = http2::rest(client.open(&request).await.into_body()).await;
    assert!(ended && bytes.len() > LONG * PIECE, "a new stream of the same connection");
    until_nothing_is_under_way(&rig).await;
    assert!(metrics(&rig).await.contains(&cancelled(1)), "{}", metrics(&rig).await);
    assert!(!client.connection.is_finished());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_with_a_window_of_nothing_are_reset() {
    for (stream, server, more) in [
        (true, ONE_SECOND, ""),
        (false, ONE_SECOND, ""),
        (true, "", "[timeout]\npipeline_ms = 1000"),
    ] {
        let source = Source::start(if stream { ENDLESS } else { LONG });
        let rig = source.rig(server, more).await;
        let client = Http2::connect(rig.addr, 0).await;
        let began = Instant::now();
        let reply = client.open(&ask(Dialect::OpenAi, "gpt-4o", stream)).await;
        assert_eq!(reply.status(), 200);
        let (bytes, ended) = http2::rest(reply.into_body()).await;
        let took = began.elapsed();
        assert!(!ended && bytes.is_empty(), "stream {stream} {server}{more}");
        assert!((1..15).contains(&took.as_secs()), "stream {stream} {server}{more}: {took:?}");
        source.until_free(1).await;
        until_nothing_is_under_way(&rig).await;
        assert!(!client.connection.is_finished());
    }
}
