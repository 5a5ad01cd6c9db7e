//! The server over real sockets: what a client sees of each fault on the wire.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use std::io;
use std::time::Duration;

use common::{KEY, model, path, question};
use steadfast_sim::{Answer, Dialect, Drip, End, Fault, FaultPlan, How, SimProvider, SimServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TEXT: &str = "one two three four five six seven eight nine ten naïve 日本 🦀";

async fn server(dialect: Dialect, plan: FaultPlan) -> SimServer {
    let provider = SimProvider::builder(dialect)
        .respond(|_| Some(Answer::text(TEXT)))
        .with_faults(plan)
        .build();
    SimServer::local(provider).await.unwrap()
}

fn head(dialect: Dialect, stream: bool, close: bool) -> Vec<u8> {
    let body = question(dialect, "hello", stream).to_string();
    let key = match dialect {
        Dialect::OpenAi | Dialect::Responses => format!("authorization: Bearer {KEY}"),
        Dialect::Anthropic => format!("x-api-key: {KEY}\r\nanthropic-version: 2023-06-01"),
        Dialect::Gemini => format!("x-goog-api-key: {KEY}"),
    };
    let connection = if close { "close" } else { "keep-alive" };
    format!(
        "POST {} HTTP/1.1\r\nhost: sim\r\n{key}\r\nconnection: {connection}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        path(dialect, model(dialect), stream),
        body.len()
    )
    .into_bytes()
}

/// Sends one request on a new connection; returns all bytes that arrived, and how it ended.
async fn exchange(server: &SimServer, stream: bool) -> (Vec<u8>, io::Result<()>) {
    let mut socket = TcpStream::connect(server.addr()).await.unwrap();
    socket.write_all(&head(server.provider().dialect(), stream, true)).await.unwrap();
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match socket.read(&mut buffer).await {
            Ok(0) => return (all, Ok(())),
            Ok(n) => all.extend_from_slice(&buffer[..n]),
            Err(error) => return (all, Err(error)),
        }
    }
}

/// The chunks of a chunked response and whether it has its end.
fn dechunk(response: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let at = response.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(response[..at].to_vec()).unwrap().to_ascii_lowercase();
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    let mut rest = &response[at + 4..];
    let mut chunks = Vec::new();
    while let Some(line) = rest.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            return (chunks, true);
        }
        chunks.push(rest[line + 2..line + 2 + size].to_vec());
        rest = &rest[line + 2 + size + 2..];
    }
    (chunks, false)
}

#[tokio::test]
async fn a_stream_over_a_socket_is_the_stream_in_process() {
    for dialect in Dialect::ALL {
        let server = server(dialect, FaultPlan::none()).await;
        let (response, end) = exchange(&server, true).await;
        end.unwrap();
        let (chunks, ended) = dechunk(&response);
        assert!(ended);
        let in_process =
            SimProvider::builder(dialect).respond(|_| Some(Answer::text(TEXT))).build();
        let truth = common::ask(&in_process, true).await.unwrap();
        assert_eq!(chunks.concat(), truth.bytes());
        let entry = server.provider().journal().wait_ended(1).await.remove(0);
        assert_eq!((entry.end, entry.events), (End::Complete, 13));
        let base = server.base_url();
        let is_versioned = matches!(dialect, Dialect::OpenAi | Dialect::Responses);
        assert_eq!(base.ends_with("/v1"), is_versioned, "{base}");
    }
}

#[tokio::test]
async fn a_whole_answer_has_a_length_and_the_connection_is_kept() {
    let server = server(Dialect::OpenAi, FaultPlan::none()).await;
    let mut socket = TcpStream::connect(server.addr()).await.unwrap();
    for n in 1..=3 {
        socket.write_all(&head(Dialect::OpenAi, false, false)).await.unwrap();
        let mut response = Vec::new();
        let mut buffer = [0; 4096];
        while !response.ends_with(b"}") {
            let read = socket.read(&mut buffer).await.unwrap();
            assert_ne!(read, 0);
            response.extend_from_slice(&buffer[..read]);
        }
        let text = String::from_utf8(response).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        assert_eq!(server.provider().journal().wait_ended(n).await.len(), n);
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn resets_are_tcp_resets() {
    for fault in [Fault::Reset, Fault::Refused] {
        let server = server(Dialect::OpenAi, FaultPlan::always(fault)).await;
        let (response, end) = exchange(&server, true).await;
        assert!(response.is_empty());
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
    for dialect in Dialect::ALL {
        let plan = FaultPlan::always(Fault::break_after(8, How::Reset));
        let server = server(dialect, plan).await;
        let (response, end) = exchange(&server, true).await;
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let (chunks, ended) = dechunk(&response);
        assert!(!ended);
        let text = String::from_utf8(chunks.concat()).unwrap();
        assert_eq!(
            common::streamed_text(dialect, &text),
            "one two three four five six seven eight",
            "all that was sent before the reset arrives"
        );
        assert_eq!(server.provider().journal().last().unwrap().end, End::Broken);
    }
}

#[tokio::test]
async fn closes_leave_the_message_without_its_end() {
    let server = server(Dialect::OpenAi, FaultPlan::always(Fault::Close)).await;
    let (response, end) = exchange(&server, true).await;
    end.unwrap();
    assert!(response.is_empty());

    server.provider().set_faults(FaultPlan::always(Fault::HalfHeaders));
    let (response, end) = exchange(&server, true).await;
    end.unwrap();
    assert!(response.starts_with(b"HTTP/1.1 200 OK\r\n"));
    assert!(!response.windows(4).any(|w| w == b"\r\n\r\n"));

    server.provider().set_faults(FaultPlan::always(Fault::break_after(8, How::Close)));
    let (response, end) = exchange(&server, true).await;
    end.unwrap();
    let (chunks, ended) = dechunk(&response);
    assert_eq!((chunks.len(), ended), (1 + 8, false), "no end of the chunked body");

    server.provider().set_faults(FaultPlan::always(Fault::break_after(8, How::End)));
    let (response, end) = exchange(&server, true).await;
    end.unwrap();
    let (chunks, ended) = dechunk(&response);
    assert_eq!((chunks.len(), ended), (1 + 8, true), "a clean end that lies");
}

#[tokio::test]
async fn a_drip_splits_characters_on_the_wire() {
    let plan = FaultPlan::always(Fault::Drip(Drip { bytes: 3, every_ms: 0 }));
    let server = server(Dialect::Anthropic, plan).await;
    let (response, end) = exchange(&server, true).await;
    end.unwrap();
    let (chunks, ended) = dechunk(&response);
    assert!(ended && chunks.iter().all(|chunk| chunk.len() <= 3));
    assert!(chunks.iter().any(|chunk| std::str::from_utf8(chunk).is_err()));
    let text = String::from_utf8(chunks.concat()).unwrap();
    assert_eq!(common::streamed_text(Dialect::Anthropic, &text), TEXT);
}

#[tokio::test]
async fn a_disconnect_is_recorded_in_hangs_and_in_stalls() {
    for fault in [Fault::Hang, Fault::break_after(2, How::Stall)] {
        let server = server(Dialect::Gemini, FaultPlan::always(fault.clone())).await;
        let mut socket = TcpStream::connect(server.addr()).await.unwrap();
        socket.write_all(&head(Dialect::Gemini, true, false)).await.unwrap();
        let journal = server.provider().journal();
        let hangs = fault == Fault::Hang;
        let entry = journal.wait_until(|e| e.first().is_some_and(|e| hangs || e.events == 2)).await;
        assert_eq!(entry[0].end, End::Open);
        drop(socket);
        let entry = journal.wait_ended(1).await.remove(0);
        assert_eq!((entry.end, entry.status.is_none()), (End::Dropped, hangs));
    }
}

#[tokio::test]
async fn a_refusing_server_refuses_and_comes_back_on_its_port() {
    let server = server(Dialect::OpenAi, FaultPlan::none()).await;
    server.refuse().await;
    let error = TcpStream::connect(server.addr()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    server.accept().await;
    let (response, end) = exchange(&server, false).await;
    end.unwrap();
    assert!(response.starts_with(b"HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn a_graceful_stop_lets_streams_end_and_an_abrupt_one_resets_them() {
    let slow = Fault::Drip(Drip { bytes: 64, every_ms: 2 });
    for graceful in [true, false] {
        let server = server(Dialect::OpenAi, FaultPlan::always(slow.clone())).await;
        let addr = server.addr();
        let journal = server.provider().journal().clone();
        let mut socket = TcpStream::connect(addr).await.unwrap();
        socket.write_all(&head(Dialect::OpenAi, true, false)).await.unwrap();
        let client = tokio::spawn(async move {
            let mut all = Vec::new();
            let mut buffer = [0; 4096];
            loop {
                match socket.read(&mut buffer).await {
                    Ok(0) => return (all, Ok(())),
                    Ok(n) => all.extend_from_slice(&buffer[..n]),
                    Err(error) => return (all, Err(error.kind())),
                }
            }
        });
        journal.wait_until(|e| e.first().is_some_and(|e| e.events > 0)).await;
        let stop = async { if graceful { server.shutdown().await } else { server.abort().await } };
        tokio::time::timeout(Duration::from_secs(10), stop).await.unwrap();
        let (response, end) = client.await.unwrap();
        if graceful {
            assert_eq!(end, Ok(()));
            assert!(dechunk(&response).1);
        } else {
            assert_eq!(end, Err(io::ErrorKind::ConnectionReset));
        }
        let refused = TcpStream::connect(addr).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
