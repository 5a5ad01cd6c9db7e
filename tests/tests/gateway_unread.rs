//! Callers that take an answer and do not read it: they hold nothing of the provider past the send timeout
//! or the call's own deadline, and nobody else notices.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{net::SocketAddr, time::Duration};

use steadfast::sim::{Answer, Dialect, End, Fault, FaultPlan, How, SimProvider};
use steadfast_tests::gateway::{
    Rig, ask,
    http::{HttpRequest, poll_until, within},
    http2::{self, Http2},
    path, provider, question,
    wire_answer::WireAnswer,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::Instant,
};

/// Longer than all the buffers between a provider and a caller take.
const PIECES: usize = 400;
const PIECE: usize = 16 * 1024;

fn long_answer() -> Answer {
    Answer::text("0123456789abcdef".repeat(PIECES * PIECE / 16)).in_chunks_of(PIECE)
}

/// A provider that sends most of a long answer, and then nothing.
fn endless() -> SimProvider {
    let stalls = FaultPlan::always(Fault::break_after(PIECES - 1, How::Stall));
    provider(Dialect::OpenAi).respond(|_| Some(long_answer())).with_faults(stalls).build()
}

fn whole() -> SimProvider {
    provider(Dialect::OpenAi).respond(|_| Some(long_answer())).build()
}

/// A question whose answer may be of any length.
fn long_question(stream: bool) -> String {
    let mut body = question(Dialect::OpenAi, "gpt-4o", stream);
    body.as_object_mut().unwrap().remove("max_tokens").unwrap();
    body.to_string()
}

/// Asks over HTTP/1 from a socket that takes little, and reads nothing.
async fn ask_unread(addr: SocketAddr, stream: bool) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 * 1024).unwrap();
    let mut connection = within(socket.connect(addr)).await.unwrap();
    let body = long_question(stream);
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
    let rig =
        Rig::builder().provider(endless()).config("[timeout]\npipeline_ms = 6000\n").start().await;
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(ask_unread(rig.addr, true));
    }
    let connections = callers.join_all().await;
    let entries = within(rig.sims[0].provider().journal().wait_ended(CALLERS)).await;
    let took = began.elapsed();
    assert!(entries.iter().all(|entry| entry.end == End::Dropped), "the provider is left");
    assert!((6..12).contains(&took.as_secs()), "at the deadline: {took:?}");
    until_nothing_is_under_way(&rig).await;
    assert!(metrics(&rig).await.contains(&cancelled(CALLERS)), "{}", metrics(&rig).await);
    for connection in connections {
        assert!(is_reset(connection).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_takes_no_byte_for_the_send_timeout_is_given_up() {
    for stream in [true, false] {
        let sim = if stream { endless() } else { whole() };
        let server = "auth = \"none\"\nsend_timeout_s = 1";
        let rig = Rig::builder().provider(sim).server(server).start().await;
        let connection = ask_unread(rig.addr, stream).await;
        let entries = within(rig.sims[0].provider().journal().wait_ended(1)).await;
        let end = if stream { End::Dropped } else { End::Complete };
        assert_eq!(entries[0].end, end);
        until_nothing_is_under_way(&rig).await;
        // Of a whole answer, what the server has is still there for the time.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(is_reset(connection).await, "stream {stream}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_caller_gets_every_byte() {
    let server = "auth = \"none\"\nsend_timeout_s = 1";
    let rig = Rig::builder().provider(whole()).server(server).start().await;
    let mut connection = ask_unread(rig.addr, true).await;
    let (mut all, mut piece) = (Vec::new(), vec![0; 64 * 1024]);
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        let read = within(connection.read(&mut piece)).await.unwrap();
        all.extend_from_slice(&piece[..read]);
    }
    // Its end is not that of the connection.
    while !all.ends_with(b"\r\n0\r\n\r\n") {
        let read = within(connection.read(&mut piece)).await.unwrap();
        assert!(read > 0, "cut after {} bytes", all.len());
        all.extend_from_slice(&piece[..read]);
    }
    assert!(all.len() > PIECES * PIECE);
    assert_eq!(rig.last().end, End::Complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_not_read_is_reset_and_the_others_of_its_connection_live() {
    let server = "auth = \"none\"\nsend_timeout_s = 1";
    let rig = Rig::builder().provider(whole()).server(server).start().await;
    let client = Http2::connect(rig.addr, 32 * 1024).await;
    let request = ask(Dialect::OpenAi, "gpt-4o", true).body(long_question(true));
    let unread = client.open(&request).await;
    let journal = rig.sims[0].provider().journal();
    within(journal.wait_for(1)).await;
    let mut others = JoinSet::new();
    for n in 0..8 {
        let body = client.open(&request).await.into_body();
        others.spawn(async move {
            // Slower than the other one's time, some of them.
            tokio::time::sleep(Duration::from_millis(100 * n)).await;
            http2::rest(body).await
        });
    }
    within(journal.wait_ended(1)).await;
    for (bytes, ended) in others.join_all().await {
        assert!(ended, "after {} bytes", bytes.len());
        assert_eq!(WireAnswer::stream(Dialect::OpenAi, &bytes).text.len(), PIECES * PIECE);
    }
    let (bytes, ended) = http2::rest(unread.into_body()).await;
    assert!(!ended && bytes.len() <= 32 * 1024, "reset after {} bytes", bytes.len());
    let (bytes, ended) = http2::rest(client.open(&request).await.into_body()).await;
    assert!(ended && bytes.len() > PIECES * PIECE, "a new stream on the same connection");
    until_nothing_is_under_way(&rig).await;
    assert!(metrics(&rig).await.contains(&cancelled(1)), "{}", metrics(&rig).await);
    assert!(!client.connection.is_finished());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_with_a_window_of_nothing_are_reset() {
    for stream in [true, false] {
        for config in ["", "[timeout]\npipeline_ms = 1500\n"] {
            let server = if config.is_empty() {
                "auth = \"none\"\nsend_timeout_s = 1"
            } else {
                "auth = \"none\""
            };
            // A whole answer has no provider any more.
            if !stream && !config.is_empty() {
                continue;
            }
            let sim = if stream { endless() } else { whole() };
            let rig = Rig::builder().provider(sim).server(server).config(config).start().await;
            let client = Http2::connect(rig.addr, 0).await;
            let began = Instant::now();
            let request = ask(Dialect::OpenAi, "gpt-4o", stream).body(long_question(stream));
            let reply = client.open(&request).await;
            let (bytes, ended) = http2::rest(reply.into_body()).await;
            assert!(!ended && bytes.is_empty(), "stream {stream}: reset");
            assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
            within(rig.sims[0].provider().journal().wait_ended(1)).await;
            until_nothing_is_under_way(&rig).await;
            assert!(!client.connection.is_finished());
        }
    }
}
