//! The service as a process, ended as systemd ends one.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::Command,
    time::timeout,
};

/// Longer than it takes on a busy machine: what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn sigterm_ends_it_in_good_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut service = Command::new(env!("CARGO_BIN_EXE_example-chat-service"))
        .args(["--serve", "127.0.0.1:0"])
        .env("ANTHROPIC_API_KEY", "sk-0123456789")
        .env_remove("OPENAI_API_KEY")
        .env("CHAT_FOLDER", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(service.stdout.take().unwrap()).lines();
    let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
    let address = line.strip_prefix("serving on http://").unwrap();

    // Somebody listens: the stream has an end, and does not break.
    let mut user = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /threads/a/events HTTP/1.1\r\nhost: {address}\r\n\r\n");
    user.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 15];
    user.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");

    let pid = service.id().unwrap().to_string();
    let killed = Command::new("/bin/kill").args(["-TERM", &pid]).status().await.unwrap();
    assert!(killed.success());
    let status = timeout(PATIENCE, service.wait()).await.unwrap().unwrap();
    assert!(status.success(), "{status}");
    let mut rest = String::new();
    user.read_to_string(&mut rest).await.unwrap();
    assert!(rest.ends_with("0\r\n\r\n"), "{rest:?}");
    let stopped = lines.next_line().await.unwrap().unwrap();
    assert!(stopped.starts_with("StopReport"), "{stopped}");
}
