//! Framing and smuggling: bytes that two readers of one connection could read in two ways.

use std::time::Duration;

use super::open;
use crate::{
    check::{Category, Check, Seen, expect},
    site::Site,
    wire::{Client, Reply, chat, question},
};

pub(crate) const CATEGORY: Category =
    Category { name: "framing", simulated: Vec::new, setup: open, at_once: 8, checks };

/// How long the gateway is given for more than it should send.
const SILENCE: Duration = Duration::from_millis(400);

/// What has to come of some bytes.
#[derive(Clone, Copy)]
enum Want {
    /// Nothing but one refusal of the kind 4xx, or none, and the end of the connection.
    Refused,
    /// At most one response, whatever it is, and the end of the connection.
    Once,
    /// So many responses of the kind 2xx, and no others.
    Answered(usize),
    /// One response that refuses it, 4xx; the connection may go on.
    No,
    /// At most one response, whatever it is; the connection may go on.
    One,
    /// These statuses, in this order.
    Statuses(&'static [u16]),
}

/// What a smuggled request would be: it is answered when somebody takes it for one.
const SMUGGLED: &str = "GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";

fn checks() -> Vec<Check> {
    rows()
        .into_iter()
        .map(|(name, bytes, want)| {
            Check::new(name, move |site| async move { send(&site, &bytes, want).await })
        })
        .collect()
}

async fn send(site: &Site, bytes: &[u8], want: Want) -> Seen {
    let mut client = Client::connect(site.gateway.addr).await?;
    client.send(bytes).await;
    let replies: Vec<Reply> = client.replies(SILENCE).await;
    let closed = client.is_closed(Duration::from_millis(1)).await;
    let statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
    let all = |kind: u16| statuses.iter().all(|status| status / 100 == kind);
    let holds = match want {
        Want::Refused => closed && statuses.len() <= 1 && all(4),
        Want::Once => closed && statuses.len() <= 1,
        Want::Answered(count) => statuses.len() == count && all(2),
        Want::No => statuses.len() == 1 && all(4),
        Want::One => statuses.len() <= 1,
        Want::Statuses(wanted) => statuses == wanted,
    };
    site.is_well().await?;
    let end = if closed { "closed" } else { "open" };
    expect(holds, format!("{statuses:?}, {end}"))
}

/// A head of a question with `headers`, and `rest` behind it.
fn with(headers: &str, rest: &str) -> Vec<u8> {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n\
         content-type: application/json\r\n{headers}\r\n{rest}"
    )
    .into_bytes()
}

/// A `GET` with this line and these headers.
fn get(line: &str, headers: &str) -> Vec<u8> {
    format!("{line}\r\n{headers}\r\n").into_bytes()
}

fn chunked(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
}

#[rustfmt::skip]
fn rows() -> Vec<(&'static str, Vec<u8>, Want)> {
    use Want::{Answered, No, Once, One, Refused, Statuses};
    let body = question("gpt-4o", "hi", false);
    let n = body.len();
    let te = "transfer-encoding: chunked\r\n";
    let chunks = chunked(&body);
    let local = "host: 127.0.0.1\r\n";
    let huge = "x".repeat(1 << 20);
    let many = |count: usize| (0..count).map(|i| format!("x-{i}: y\r\n")).collect::<String>();
    let plain = chat("", &body);
    vec![
        // Whose length counts.
        ("length and chunks, the length first", with(&format!("content-length: 5\r\n{te}"), &format!("{chunks}{SMUGGLED}")), Once),
        ("chunks and length, the chunks first", with(&format!("{te}content-length: 5\r\n"), &format!("{chunks}{SMUGGLED}")), Once),
        ("length and chunks, no body", with(&format!("content-length: 0\r\n{te}"), &format!("0\r\n\r\n{SMUGGLED}")), Once),
        ("two lengths that differ", with(&format!("content-length: {n}\r\ncontent-length: 0\r\n"), &format!("{body}{SMUGGLED}")), Refused),
        ("two lengths that agree", with(&format!("content-length: {n}\r\ncontent-length: {n}\r\n"), &body), One),
        ("a list of lengths", with(&format!("content-length: {n}, {n}\r\n"), &body), Refused),
        ("a length with a sign", with(&format!("content-length: +{n}\r\n"), &body), Refused),
        ("a length below zero", with("content-length: -1\r\n", &body), Refused),
        ("a length in hexadecimal", with(&format!("content-length: 0x{n:x}\r\n"), &body), Refused),
        ("a length with a space in it", with("content-length: 1 0\r\n", &body), Refused),
        ("a length beyond 64 bits", with("content-length: 99999999999999999999999\r\n", &body), Refused),
        ("a length that is no number", with("content-length: many\r\n", &body), Refused),
        ("an empty length", with("content-length:\r\n", &body), Refused),
        ("a length with a vertical tab", with(&format!("content-length: \x0b{n}\r\n"), &body), Refused),
        // Whose chunks count.
        ("chunks as they should be", with(te, &chunks), Answered(1)),
        ("chunked twice", with("transfer-encoding: chunked, chunked\r\n", &format!("{chunks}{SMUGGLED}")), Refused),
        ("chunked twice, in two headers", with("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", &format!("{chunks}{SMUGGLED}")), Refused),
        ("packed and chunked", with("transfer-encoding: gzip, chunked\r\n", &format!("{chunks}{SMUGGLED}")), Refused),
        ("chunked, and a comma", with("transfer-encoding: chunked,\r\n", &format!("{chunks}{SMUGGLED}")), Refused),
        ("chunked, and then not", with("transfer-encoding: chunked, identity\r\n", &format!("{chunks}{SMUGGLED}")), Refused),
        ("an encoding that nobody knows", with("transfer-encoding: xchunked\r\n", &format!("{chunks}{SMUGGLED}")), Refused),
        ("identity", with(&format!("transfer-encoding: identity\r\ncontent-length: {n}\r\n"), &body), Once),
        ("a tab before chunked", with("transfer-encoding:\tchunked\r\n", &chunks), Answered(1)),
        ("a vertical tab before chunked", with("transfer-encoding: \x0bchunked\r\n", &format!("{chunks}{SMUGGLED}")), Refused),
        ("two encodings", with("transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", &format!("{chunks}{SMUGGLED}")), Refused),
        ("a space before the colon", with("transfer-encoding : chunked\r\n", &format!("{chunks}{SMUGGLED}")), Refused),
        ("chunks in HTTP/1.0", format!("POST /v1/chat/completions HTTP/1.0\r\nhost: 127.0.0.1\r\n{te}\r\n{chunks}{SMUGGLED}").into_bytes(), Once),
        ("a chunk's size beyond 64 bits", with(te, &format!("fffffffffffffffff\r\n{body}")), Refused),
        ("a chunk's size of 2^64 - 1", with(te, &format!("ffffffffffffffff\r\n{body}")), One),
        ("a chunk's size below zero", with(te, &format!("-1\r\n{body}")), Refused),
        ("a chunk's size with 0x", with(te, &format!("0x{n:x}\r\n{body}\r\n0\r\n\r\n")), Refused),
        ("a chunk's size that is no number", with(te, &format!("zz\r\n{body}")), Refused),
        ("an empty chunk's size", with(te, &format!("\r\n{body}")), Refused),
        ("a chunk's size with a megabyte of extension", with(te, &format!("{n:x};{huge}\r\n{body}\r\n0\r\n\r\n")), Refused),
        ("a chunk's end by LF alone", with(te, &format!("{n:x}\n{body}\n0\n\n{SMUGGLED}")), Refused),
        ("a chunk longer than its size", with(te, &format!("{:x}\r\n{body}\r\n0\r\n\r\n{SMUGGLED}", n - 3)), Refused),
        ("a megabyte of trailers", with(te, &format!("{n:x}\r\n{body}\r\n0\r\nx-a: {huge}\r\n\r\n")), Once),
        // Lines.
        ("a folded header", with(&format!("x-a: b\r\n c\r\ncontent-length: {n}\r\n"), &body), Refused),
        ("a folded encoding", with("transfer-encoding:\r\n chunked\r\n", &format!("{chunks}{SMUGGLED}")), Refused),
        ("a first header that is folded", get("GET /healthz HTTP/1.1", " x: y\r\nhost: 127.0.0.1\r\n"), Refused),
        ("line ends by LF alone", b"GET /healthz HTTP/1.1\nhost: 127.0.0.1\n\n".to_vec(), One),
        ("a CR alone in a value", get("GET /healthz HTTP/1.1", "host: 127.0.0.1\r\nx-a: b\rc\r\n"), Refused),
        ("a NUL in a value", get("GET /healthz HTTP/1.1", "host: 127.0.0.1\r\nx-a: b\0c\r\n"), Refused),
        ("a NUL in a name", get("GET /healthz HTTP/1.1", "host: 127.0.0.1\r\nx\0a: b\r\n"), Refused),
        ("a NUL in the target", get("GET /health\0z HTTP/1.1", local), Refused),
        ("a header without a name", get("GET /healthz HTTP/1.1", "host: 127.0.0.1\r\n: b\r\n"), Refused),
        ("a header without a colon", get("GET /healthz HTTP/1.1", "host: 127.0.0.1\r\nabc\r\n"), Refused),
        ("a space in a method", get("GE T /healthz HTTP/1.1", local), Refused),
        ("no version", get("GET /healthz", local), Refused),
        ("version 3.0", get("GET /healthz HTTP/3.0", local), Refused),
        ("version 1.9", get("GET /healthz HTTP/1.9", local), Refused),
        ("version 0.9", b"GET /healthz\r\n".to_vec(), Refused),
        ("empty lines before a request", [b"\r\n\r\n".as_slice(), SMUGGLED.as_bytes()].concat(), Answered(1)),
        ("a method of a megabyte", get(&format!("{huge} / HTTP/1.1"), local), Refused),
        ("a target of a megabyte", get(&format!("GET /{huge} HTTP/1.1"), local), Refused),
        ("a header of a megabyte", get("GET /healthz HTTP/1.1", &format!("{local}x-a: {huge}\r\n")), Refused),
        ("a name of a megabyte", get("GET /healthz HTTP/1.1", &format!("{local}{huge}: a\r\n")), Refused),
        ("a thousand headers", get("GET /healthz HTTP/1.1", &format!("{local}{}", many(1_000))), Refused),
        ("a hundred thousand headers", get("GET /healthz HTTP/1.1", &format!("{local}{}", many(100_000))), Refused),
        ("bytes of no protocol", vec![0xff; 4096], Refused),
        ("a TLS hello", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice(), &[7; 512]].concat(), Refused),
        ("a proxy's preface", [b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n".as_slice(), SMUGGLED.as_bytes()].concat(), Refused),
        // One connection, many requests.
        ("fifty requests at once", plain.repeat(50), Answered(50)),
        ("a request behind a body that is too short", [chat("", "{}"), plain.clone()].concat(), Statuses(&[400, 200])),
        ("a GET with a body that is a request", [format!("GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n\r\n", SMUGGLED.len()).as_bytes(), SMUGGLED.as_bytes()].concat(), Answered(1)),
        ("an upgrade to h2c", get("GET /healthz HTTP/1.1", "host: 127.0.0.1\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"), Answered(1)),
        ("an upgrade to a websocket", get("GET /healthz HTTP/1.1", "host: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"), Answered(1)),
        ("CONNECT", get("CONNECT 127.0.0.1:22 HTTP/1.1", local), No),
        ("TRACE", get("TRACE /healthz HTTP/1.1", local), No),
        ("an expectation that nobody knows", with(&format!("expect: 200-maybe\r\ncontent-length: {n}\r\n"), &body), One),
        // Whose name counts.
        ("an absolute target with a foreign name", get("GET http://evil.example/v1/models HTTP/1.1", local), No),
        ("an absolute target with a foreign name, posted", format!("POST http://evil.example/v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {n}\r\n\r\n{body}").into_bytes(), No),
        ("an absolute target and a foreign Host", get("GET http://127.0.0.1/v1/models HTTP/1.1", "host: evil.example\r\n"), No),
        ("two Hosts", get("GET /v1/models HTTP/1.1", "host: 127.0.0.1\r\nhost: evil.example\r\n"), No),
        ("two Hosts, the foreign one first", get("GET /v1/models HTTP/1.1", "host: evil.example\r\nhost: 127.0.0.1\r\n"), No),
        ("two equal Hosts", get("GET /v1/models HTTP/1.1", "host: 127.0.0.1\r\nhost: 127.0.0.1\r\n"), No),
        ("a Host with a user", get("GET /v1/models HTTP/1.1", "host: evil@127.0.0.1\r\n"), No),
        ("an absolute target with a user", get("GET http://evil@127.0.0.1/v1/models HTTP/1.1", local), No),
        ("a Host that is a list", get("GET /v1/models HTTP/1.1", "host: 127.0.0.1, evil.example\r\n"), No),
        ("a Host with a path", get("GET /v1/models HTTP/1.1", "host: 127.0.0.1/x\r\n"), No),
        ("an empty Host", get("GET /v1/models HTTP/1.1", "host:\r\n"), No),
        ("no Host", get("GET /v1/models HTTP/1.1", ""), One),
        ("a Host that only begins well", get("GET /v1/models HTTP/1.1", "host: 127.0.0.1.evil.example\r\n"), No),
        ("an x-forwarded-host", get("GET /v1/models HTTP/1.1", "host: evil.example\r\nx-forwarded-host: 127.0.0.1\r\n"), No),
        ("/metrics by a foreign name", get("GET /metrics HTTP/1.1", "host: evil.example\r\n"), No),
        ("/readyz by a foreign name", get("GET /readyz HTTP/1.1", "host: evil.example\r\n"), No),
        ("/admin by a foreign name", get("GET /admin/status HTTP/1.1", "host: evil.example\r\n"), No),
        ("/admin by a foreign absolute target", get("GET http://evil.example/admin/status HTTP/1.1", local), No),
        ("/metrics by two Hosts", get("GET /metrics HTTP/1.1", "host: 127.0.0.1\r\nhost: evil.example\r\n"), No),
    ]
}
