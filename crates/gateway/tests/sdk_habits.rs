//! What the vendors' SDKs rely on: connections that are kept, and request ids.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{future::pending, time::Duration};

use axum::body::Body;
use http::Request;
use steadfast_gateway::{
    config::Source,
    server::{App, serve},
    stack::Gateway,
};
use steadfast_sim::{Dialect, SimProvider, SimServer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tower::ServiceExt;

fn app(server: &str, base_url: &str) -> App {
    let source = Source::text(format!(
        "[server]\n{server}\n[[providers]]\nname = 'p'\ndialect = 'openai'\n\
         models = {{ '*' = 'gpt-4o' }}\nbase_url = '{base_url}'\n\
         headers = {{ authorization = 'Bearer operator' }}\n"
    ));
    let config = source.parse().unwrap();
    config.validate(&source).unwrap();
    let gateway = Gateway::connect(&config, &source).unwrap();
    App::new(&config, &source, gateway).unwrap()
}

/// The head of the next answer; its body has the announced length.
async fn head(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    let end = loop {
        let mut buffer = [0; 4096];
        let n = timeout(Duration::from_secs(10), stream.read(&mut buffer)).await.unwrap().unwrap();
        assert!(n > 0, "the connection was closed: {:?}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&buffer[..n]);
        if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end;
        }
    };
    let head = String::from_utf8(read[..end].to_vec()).unwrap().to_ascii_lowercase();
    let (_, length) = head.split_once("content-length: ").unwrap();
    let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
    let mut rest = vec![0; end + 4 + length - read.len()];
    stream.read_exact(&mut rest).await.unwrap();
    head
}

#[tokio::test]
async fn a_refusal_before_the_body_was_read_keeps_the_connection() {
    let hash = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let server = format!("[[tenants]]\nname = 't'\nkeys = ['{hash}']");
    let app = app(&server, "http://127.0.0.1:1");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(
        listener,
        app.router(),
        app.connection_limits(),
        pending(),
        Duration::ZERO,
    ));
    let mut stream = TcpStream::connect(at).await.unwrap();
    for (path, status) in [
        ("/v1/chat/completions", "401"),
        ("/v1/responses", "401"),
        ("/v1/audio/speech", "404"),
        ("/v1beta/models/m:predict", "404"),
        ("/v1beta/models/m:countTokens", "401"),
        ("/v1/models", "405"),
        ("/v1/messages", "401"),
    ] {
        let line = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 30000\r\n\r\n");
        stream.write_all(line.as_bytes()).await.unwrap();
        // SDKs write the body separately, after the headers.
        tokio::task::yield_now().await;
        stream.write_all(&[b'x'; 30_000]).await.unwrap();
        let head = head(&mut stream).await;
        assert!(head.starts_with(&format!("http/1.1 {status} ")), "{path}: {head}");
        assert!(!head.contains("connection: close"), "{path}: {head}");
    }
    // A body too long to be drained closes the connection, with the header for it.
    let line = "POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 30000000\r\n\r\n";
    stream.write_all(line.as_bytes()).await.unwrap();
    let head = head(&mut stream).await;
    assert!(head.contains("connection: close"), "{head}");
    server.abort();
}

#[tokio::test]
async fn every_answer_has_its_request_id_where_the_callers_sdk_reads_it() {
    let provider = SimServer::local(SimProvider::new(Dialect::OpenAi)).await.unwrap();
    let app = app("auth = 'none'", &provider.base_url());
    for (path, header, stream) in [
        ("/v1/messages", "request-id", "true"),
        ("/v1/messages", "request-id", "false"),
        ("/v1/chat/completions", "x-request-id", "true"),
        ("/v1/chat/completions", "x-request-id", "false"),
    ] {
        let body = format!(
            r#"{{"model": "m", "max_tokens": 9, "stream": {stream}, "messages": [{{"role": "user", "content": "hi"}}]}}"#
        );
        let request =
            Request::post(path).header("x-request-id", "mine-1").body(Body::from(body)).unwrap();
        let answer = app.router().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()[header], "mine-1", "{path}, stream: {stream}");
    }
}
