//! Every wait for a caller has an end: requests that stop on their way or are announced as too large,
//! connections that are idle or old.

use std::time::Duration;

use steadfast::sim::Dialect;
use steadfast_tests::gateway::{
    Rig, ask,
    http::{HttpRequest, within},
    http2::{self, Http2},
    provider, rich_answer,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep},
};

async fn rig(server: &str) -> Rig {
    Rig::builder()
        .provider(provider(Dialect::OpenAi).respond(|_| Some(rich_answer())).build())
        .server(&format!("auth = \"none\"\n{server}"))
        .start()
        .await
}

/// Sends the head of a chat with these headers; returns the connection.
async fn begin(rig: &Rig, headers: &str) -> TcpStream {
    let mut connection = within(TcpStream::connect(rig.addr)).await.unwrap();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\n{headers}\r\n", rig.addr);
    within(connection.write_all(head.as_bytes())).await.unwrap();
    connection
}

/// Everything until the connection ends.
async fn all(mut connection: TcpStream) -> String {
    let mut all = Vec::new();
    // A reset after an answer is no loss.
    let _ = within(connection.read_to_end(&mut all)).await;
    String::from_utf8(all).unwrap()
}

/// The next bytes that come.
async fn next(connection: &mut TcpStream) -> String {
    let mut piece = vec![0; 64 * 1024];
    let read = within(connection.read(&mut piece)).await.unwrap();
    String::from_utf8(piece[..read].to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_announced_as_too_large_is_refused_at_once() {
    let rig = rig("").await;
    let began = Instant::now();
    // Nothing of it comes.
    let mut connection = begin(&rig, "content-length: 10000000000\r\n").await;
    let reply = next(&mut connection).await;
    assert!(reply.starts_with("HTTP/1.1 413 ") && reply.contains("33554432"), "{reply}");
    assert!(reply.contains("connection: close\r\n"), "{reply}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // Its connection is not held for it either.
    assert_eq!(all(connection).await, "");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());

    // Whoever sends it anyway still gets the answer.
    let mut connection = begin(&rig, "content-length: 10000000000\r\n").await;
    let piece = vec![b' '; 64 * 1024];
    for _ in 0..64 {
        if connection.write_all(&piece).await.is_err() {
            break;
        }
    }
    assert!(next(&mut connection).await.starts_with("HTTP/1.1 413 "));

    let client = Http2::connect(rig.addr, 65_535).await;
    let request = ask(Dialect::OpenAi, "gpt-4o", false).body(vec![b' '; 40_000_000]);
    let began = Instant::now();
    let reply = client.open(&request).await;
    assert_eq!(reply.status(), 413);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let reply = client.open(&ask(Dialect::OpenAi, "gpt-4o", false)).await;
    assert_eq!(reply.status(), 200, "the connection goes on");
    assert_eq!(rig.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_stops_or_drips_is_answered_408() {
    let rig = rig("body_timeout_s = 2\nbody_progress_s = 0.5").await;
    for (pause, key, least) in [
        (None, "body_progress_s", 500),
        (Some(Duration::from_millis(100)), "body_timeout_s", 2_000),
    ] {
        let began = Instant::now();
        let mut connection = begin(&rig, "content-length: 1000\r\n").await;
        within(connection.write_all(b"{")).await.unwrap();
        let (mut reads, mut writes) = connection.into_split();
        let drips = tokio::spawn(async move {
            while let Some(pause) = pause {
                sleep(pause).await;
                if writes.write_all(b" ").await.is_err() {
                    return None;
                }
            }
            Some(writes)
        });
        let mut piece = vec![0; 4 * 1024];
        let read = within(reads.read(&mut piece)).await.unwrap();
        let reply = String::from_utf8_lossy(&piece[..read]);
        assert!(reply.starts_with("HTTP/1.1 408 ") && reply.contains(key), "{reply}");
        let took = began.elapsed().as_millis();
        assert!((least..least + 10_000).contains(&took), "{key}: {took} ms");
        drips.abort();
    }
    assert!(rig.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_who_is_refused_is_asked_for_a_body() {
    const EXPECT: &str = "expect: 100-continue\r\n";
    let rig = rig("").await;
    for (headers, status) in [
        ("content-length: 10000000000\r\n", "413"),
        ("content-length: 10\r\norigin: https://evil.example\r\n", "401"),
        ("content-length: 10\r\ncontent-encoding: br\r\n", "415"),
    ] {
        let began = Instant::now();
        let reply = all(begin(&rig, &format!("{EXPECT}{headers}")).await).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: {reply}");
        assert!(!reply.contains(" 100 "), "{reply}");
        assert!(began.elapsed() < Duration::from_secs(15));
    }
    let body = ask(Dialect::OpenAi, "gpt-4o", false);
    let body = body.sent();
    let mut connection = begin(&rig, &format!("{EXPECT}content-length: {}\r\n", body.len())).await;
    assert_eq!(next(&mut connection).await, "HTTP/1.1 100 Continue\r\n\r\n");
    within(connection.write_all(body)).await.unwrap();
    assert!(next(&mut connection).await.starts_with("HTTP/1.1 200 "));
}

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let rig = rig("idle_timeout_s = 1.5\nsend_timeout_s = 0.6").await;
    let mut connection = within(TcpStream::connect(rig.addr)).await.unwrap();
    for _ in 0..5 {
        within(connection.write_all(HEALTH)).await.unwrap();
        assert!(next(&mut connection).await.starts_with("HTTP/1.1 200 "));
        sleep(Duration::from_millis(400)).await;
    }
    let began = Instant::now();
    assert_eq!(all(connection).await, "");
    let took = began.elapsed();
    assert!((700..10_000).contains(&took.as_millis()), "{took:?}");

    // A caller that closes as it is asked to.
    let client = Http2::connect(rig.addr, 65_535).await;
    for _ in 0..5 {
        let reply = client.open(&HttpRequest::get("/healthz")).await;
        assert_eq!(http2::rest(reply.into_body()).await, (b"ok\n".to_vec(), true));
        sleep(Duration::from_millis(400)).await;
    }
    within(client.connection).await.unwrap().unwrap();

    // One that does not: what it gets is its settings, and at the end a GOAWAY.
    let mut connection = within(TcpStream::connect(rig.addr)).await.unwrap();
    let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    within(connection.write_all(hello)).await.unwrap();
    let mut frames = Vec::new();
    let _ = within(connection.read_to_end(&mut frames)).await;
    let mut kinds = Vec::new();
    let mut rest = &frames[..];
    while let [a, b, c, kind, ..] = *rest {
        kinds.push(kind);
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        rest = &rest[9 + length..];
    }
    assert!(kinds.starts_with(&[4]) && kinds.contains(&7), "{kinds:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_connection_is_closed_after_an_answer() {
    let rig = rig("max_connection_age_s = 0.5").await;
    let mut connection = within(TcpStream::connect(rig.addr)).await.unwrap();
    let began = Instant::now();
    let mut answered = 0;
    loop {
        within(connection.write_all(HEALTH)).await.unwrap();
        let reply = next(&mut connection).await;
        if reply.is_empty() {
            break;
        }
        assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
        answered += 1;
        if next_or_open(&mut connection).await {
            break;
        }
    }
    let took = began.elapsed();
    assert!(answered > 3 && (400..10_000).contains(&took.as_millis()), "{answered} in {took:?}");
}

/// Whether the connection is closed within 50 ms.
async fn next_or_open(connection: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(Duration::from_millis(50), connection.read(&mut [0; 1])).await;
    matches!(read, Ok(Ok(0) | Err(_)))
}
