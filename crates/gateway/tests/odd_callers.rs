//! Callers that send invalid requests or nothing.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{future::pending, net::SocketAddr, time::Duration};

use axum::{body::Body, response::Response};
use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::Value;
use steadfast_gateway::{
    config::Source,
    server::{App, ConnectionLimits, serve},
    stack::Gateway,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
};
use tower::ServiceExt;

/// A gateway whose provider must not be called.
fn app() -> App {
    let source = Source::text(
        "[server]\nauth = 'none'\n[[providers]]\nname = 'p'\ndialect = 'openai'\n\
         base_url = 'http://127.0.0.1:1'\n",
    );
    let config = source.parse().unwrap();
    config.validate(&source).unwrap();
    let gateway = Gateway::connect(&config, &source).unwrap();
    App::new(&config, &source, gateway).unwrap()
}

async fn text(response: Response) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    body["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_invalid_model_name_is_refused_without_any_state() {
    let app = app();
    for (model, expected) in [("m".repeat(513), "513 bytes"), ("a\nINFO forged".into(), "line end")]
    {
        let body = serde_json::json!({
            "model": model, "messages": [{"role": "user", "content": "hi"}],
        });
        let request =
            Request::post("/v1/chat/completions").body(Body::from(body.to_string())).unwrap();
        let answer = app.router().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
        assert_eq!(answer.headers()["x-steadfast-attempts"], "0");
        let text = text(answer).await;
        assert!(text.contains(expected), "{text}");
    }
    assert!(app.gateway().handles().breaker.snapshot().is_empty());
    assert!(app.gateway().handles().failover.snapshot().targets().is_empty());
}

#[tokio::test]
async fn a_request_that_can_not_be_unpacked_is_refused_as_such() {
    for (encoding, status, says) in [
        ("br", StatusCode::UNSUPPORTED_MEDIA_TYPE, "gzip"),
        ("gzip, gzip", StatusCode::UNSUPPORTED_MEDIA_TYPE, "one content-encoding"),
        ("gzip", StatusCode::BAD_REQUEST, "ends too early"),
        ("zstd", StatusCode::BAD_REQUEST, "content-encoding"),
    ] {
        let request = Request::post("/v1/chat/completions")
            .header(header::CONTENT_ENCODING, encoding)
            .body(Body::from(&b"\x1f\x8b\x08"[..]))
            .unwrap();
        let answer = app().router().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), status, "{encoding}");
        assert_eq!(answer.headers()["connection"], "close", "what is left of it is no request");
        let text = text(answer).await;
        assert!(text.contains(says), "{encoding}: {text}");
    }
}

#[tokio::test]
async fn an_address_that_is_not_text_is_refused_in_the_callers_dialect() {
    let request = Request::post("/v1beta/models/%ff:generateContent").body(Body::empty()).unwrap();
    let answer = app().router().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    assert!(text(answer).await.contains("UTF-8"));
}

/// Waits for the server to end the connection, at most `wait` on the paused clock.
async fn ends(stream: &mut TcpStream, wait: u64) -> bool {
    let mut rest = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(wait), stream.read_to_end(&mut rest)).await;
    end.is_ok()
}

/// A gateway that listens at this address.
async fn served() -> SocketAddr {
    serve_on(TcpListener::bind("127.0.0.1:0").await.unwrap())
}

/// A gateway that listens here.
fn serve_on(listener: TcpListener) -> SocketAddr {
    let at = listener.local_addr().unwrap();
    let (router, limits) = (app().router(), ConnectionLimits::default());
    tokio::spawn(serve(listener, router, limits, pending(), Duration::ZERO));
    at
}

/// A head of a chat, with one more line.
fn head(line: &str) -> String {
    format!("POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n{line}\r\n\r\n")
}

#[tokio::test]
async fn a_body_in_which_two_readers_would_find_two_ends_is_refused() {
    let at = served().await;
    for encoding in ["chunked, chunked", "gzip, chunked", "chunked\r\ntransfer-encoding: chunked"] {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let head = head(&format!("transfer-encoding: {encoding}"));
        let smuggled = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
        stream.write_all(format!("{head}0\r\n\r\n{smuggled}").as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).await.unwrap();
        assert!(all.starts_with("HTTP/1.1 400 ") && all.contains("\"error\":"), "{all}");
        assert!(all.contains("connection: close\r\n"), "{all}");
        assert_eq!(all.matches("HTTP/1.1 ").count(), 1, "{all}");
    }
}

#[tokio::test]
async fn a_body_without_an_end_is_refused_at_its_limit_and_soon_not_read_any_more() {
    // Connections get the buffers of their listener. Left alone, Linux grows them to 32 MiB.
    let buffer = 256 * 1024;
    let listener = TcpSocket::new_v4().unwrap();
    listener.set_recv_buffer_size(buffer).unwrap();
    listener.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let at = serve_on(listener.listen(16).unwrap());
    let (mut answers, mut sends) = {
        let caller = TcpSocket::new_v4().unwrap();
        caller.set_send_buffer_size(buffer).unwrap();
        let mut stream = caller.connect(at).await.unwrap();
        stream.write_all(head("transfer-encoding: chunked").as_bytes()).await.unwrap();
        stream.into_split()
    };
    let chunk = [&b"100000\r\n"[..], &vec![b' '; 1 << 20], b"\r\n"].concat();
    let sending = async {
        let mut sent = 0;
        while sent < 200 && sends.write_all(&chunk).await.is_ok() {
            sent += 1;
        }
        sent
    };
    let answer = async {
        let mut first = [0; 13];
        answers.read_exact(&mut first).await.unwrap();
        String::from_utf8(first.to_vec()).unwrap()
    };
    let (sent, answer) = tokio::join!(sending, answer);
    assert_eq!(answer, "HTTP/1.1 413 ");
    // The limit of 32, the 64 that are read after it, and what the buffers take.
    assert!((32..100).contains(&sent), "{sent} MiB were taken");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_nothing_is_disconnected() {
    let at = served().await;
    for first in ["", "P", "PRI * HTTP/2.0\r\n"] {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(first.as_bytes()).await.unwrap();
        assert!(ends(&mut stream, 60).await, "after {first:?}");
    }
}

#[tokio::test]
async fn only_busy_connections_count_as_cut_at_shutdown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(serve(
        listener,
        app().router(),
        ConnectionLimits::default(),
        async { drop(stopped.await) },
        Duration::from_millis(200),
    ));
    // One in the middle of its body, two that are idle.
    let mut open = Vec::new();
    for body in ["content-length: 9\r\n\r\n{", "", ""] {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let head = if body.is_empty() {
            "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned()
        } else {
            format!("POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n{body}")
        };
        stream.write_all(head.as_bytes()).await.unwrap();
        if body.is_empty() {
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
        }
        open.push(stream);
    }
    stop.send(()).unwrap();
    assert_eq!(server.await.unwrap().unwrap(), 1);
}

/// A body that hangs after its first chunk.
struct Unfinished(bool);

impl http_body::Body for Unfinished {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        if std::mem::replace(&mut self.0, true) {
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(Some(Ok(http_body::Frame::data("{".into()))))
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_ends_times_out() {
    let began = tokio::time::Instant::now();
    let request = Request::post("/v1/messages").body(Body::new(Unfinished(false))).unwrap();
    let answer = app().router().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(began.elapsed().as_secs(), 30);
    assert!(text(answer).await.contains("server.body_progress_s"));
}

#[tokio::test]
async fn the_http_version_is_detected_however_the_first_bytes_are_split() {
    let at = served().await;
    let newer = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let older = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let confusing = b"PRI /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for piece in [1, 7, 24, 25, 1_000] {
        for (sent, wanted) in [
            // A settings frame: its type comes after its length.
            (&newer[..], &b"\x04"[..]),
            (older, b"HTTP/1.1 200"),
            (confusing, b"HTTP/1.1 "),
        ] {
            let mut stream = TcpStream::connect(at).await.unwrap();
            stream.set_nodelay(true).unwrap();
            for bytes in sent.chunks(piece) {
                stream.write_all(bytes).await.unwrap();
                tokio::task::yield_now().await;
            }
            let mut answer = [0; 16];
            stream.read_exact(&mut answer).await.unwrap();
            let answer = if wanted.len() == 1 { &answer[3..] } else { &answer[..] };
            assert!(
                answer.starts_with(wanted),
                "{answer:?} to {:?}",
                String::from_utf8_lossy(sent)
            );
        }
    }
}
