//! HTTP/2: floods, windows, and frames that must not be.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use super::open;
use crate::{
    check::{Category, Check, Seen, expect},
    frames::{
        self, ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, PING,
        PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame,
        question_headers, settings_payload,
    },
    process::Setup,
    provider::{Part, Providers, chunk, stream_head},
    site::{Site, others},
    wire::question,
};

pub(crate) const CATEGORY: Category =
    Category { name: "http2", simulated: Vec::new, setup: with_endless, at_once: 4, checks };

/// With a provider whose stream has no end.
pub(super) fn with_endless(providers: &Providers) -> Setup {
    // Many bytes for little work: a hundred of these streams fill their buffers at once.
    let event = |n: usize| {
        let text = format!("{n} flows by{:020000}. ", n * 31);
        chunk(format!(
            r#"data: {{"choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}

"#
        ))
    };
    let name = "endless";
    providers.raw.serve(name, vec![Part::Bytes(stream_head()), Part::Numbered(event)]);
    Setup { config: providers.config(&[name]), ..open(providers) }
}

/// What has to come of some frames.
#[derive(Clone, Copy)]
enum Want {
    /// An answer with status 200.
    Answered,
    /// The connection ends with an error, and nothing was answered well.
    Ends,
    /// The stream or the connection ends with an error, or the answer is a refusal.
    Refused,
    /// Nothing was answered; the connection lives.
    Lives,
}

fn checks() -> Vec<Check> {
    let mut all: Vec<Check> = rows()
        .into_iter()
        .map(|(name, bytes, want)| {
            Check::new(name, move |site| async move { send(&site, &bytes, want).await })
        })
        .collect();
    for (name, head, each, megabytes) in floods() {
        let check = Check::new(name, move |site| async move {
            flood(&site, &head, &each, megabytes << 20).await
        });
        all.push(check.within_s(30));
    }
    all.extend([
        Check::new("20,000 requests, each reset at once", rapid_reset).within_s(30),
        Check::new("at most 128 streams of a connection at once", many_streams),
        Check::new("a window of zero, until the call's deadline", zero_window).within_s(20),
        Check::new("a window of zero beside streams that are read", zero_window_beside)
            .within_s(20),
        Check::new("a header of 4 KB a thousand times out of the table", table_bomb),
    ]);
    all
}

/// What came of a connection.
struct Came {
    statuses: Vec<u16>,
    resets: usize,
    gone: Option<u32>,
    ended: bool,
}

impl Came {
    async fn of(client: &mut Http2) -> Self {
        let frames = client.frames(Duration::from_millis(400)).await;
        let heads = frames.iter().filter(|frame| frame.kind == HEADERS);
        let gone = frames.iter().find(|frame| frame.kind == GOAWAY);
        Self {
            statuses: heads.filter_map(frames::Frame::status).collect(),
            resets: frames.iter().filter(|frame| frame.kind == RST_STREAM).count(),
            gone: gone.and_then(|frame| {
                Some(u32::from_be_bytes(frame.payload.get(4..8)?.try_into().ok()?))
            }),
            ended: client.ended,
        }
    }

    fn text(&self) -> String {
        let Self { statuses, resets, gone, ended } = self;
        format!("statuses {statuses:?}, {resets} resets, goaway {gone:?}, ended {ended}")
    }
}

async fn send(site: &Site, bytes: &[u8], want: Want) -> Seen {
    let mut client = Http2::connect(site.gateway.addr, &[]).await?;
    client.send(bytes).await;
    let came = Came::of(&mut client).await;
    let good = came.statuses.iter().any(|status| *status < 400);
    let dead = came.gone.is_some_and(|code| code != 0) || came.ended;
    let holds = match want {
        Want::Answered => came.statuses == [200],
        Want::Ends => dead && !good,
        Want::Refused => !good && (dead || came.resets > 0 || !came.statuses.is_empty()),
        Want::Lives => !good && !dead,
    };
    site.is_well().await?;
    expect(holds, came.text())
}

/// Headers of a `GET` of `path`.
fn get(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let own =
        [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "127.0.0.1")];
    block(&[&own[..], more].concat())
}

/// A `GET` on stream 1.
fn whole_get(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, 1, &get(path, more))
}

/// A `GET` on stream 1 with exactly these headers.
fn exactly(headers: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(headers))
}

#[rustfmt::skip]
fn rows() -> Vec<(&'static str, Vec<u8>, Want)> {
    use Want::{Answered, Ends, Lives, Refused};
    let body = question("gpt-4o", "hi", false);
    let length = body.len().to_string();
    let head = |more: &[(&str, &str)]| frame(HEADERS, END_HEADERS, 1, &question_headers(more));
    let data = |flags: u8, text: &str| frame(DATA, flags, 1, text.as_bytes());
    let get_head = |authority: &'static str, more: &[(&str, &str)]| {
        let own = [(":method", "GET"), (":scheme", "http"), (":path", "/v1/models"), (":authority", authority)];
        exactly(&[&own[..], more].concat())
    };
    let window = |stream: u32, by: u32| frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes());
    let setting = |key: u16, value: u32| frame(SETTINGS, 0, 0, &settings_payload(&[(key, value)]));
    let big = "x".repeat(20_000);
    vec![
        ("a question", frames::question(1, &body, &[]), Answered),
        ("a body with its length", frames::question(1, &body, &[("content-length", &length)]), Answered),
        ("a body shorter than its length", frames::question(1, &body, &[("content-length", "9999")]), Refused),
        ("a body longer than its length", frames::question(1, &body, &[("content-length", "3")]), Refused),
        ("two lengths", frames::question(1, &body, &[("content-length", &length), ("content-length", "3")]), Refused),
        // Whose name counts.
        ("a foreign :authority", get_head("evil.example", &[]), Refused),
        ("a :authority with a user", get_head("evil@127.0.0.1", &[]), Refused),
        ("a foreign Host beside :authority", get_head("127.0.0.1", &[("host", "evil.example")]), Refused),
        ("a foreign :authority beside Host", get_head("evil.example", &[("host", "127.0.0.1")]), Refused),
        ("two Hosts and no :authority", exactly(&[(":method", "GET"), (":scheme", "http"), (":path", "/v1/models"), ("host", "127.0.0.1"), ("host", "evil.example")]), Refused),
        ("/metrics by a foreign :authority", exactly(&[(":method", "GET"), (":scheme", "http"), (":path", "/metrics"), (":authority", "evil.example")]), Refused),
        ("/admin by a foreign :authority", exactly(&[(":method", "GET"), (":scheme", "http"), (":path", "/admin/status"), (":authority", "evil.example")]), Refused),
        // Headers that must not be.
        ("a name in upper case", whole_get("/healthz", &[("X-A", "b")]), Refused),
        ("a `connection` header", whole_get("/healthz", &[("connection", "close")]), Refused),
        ("a `transfer-encoding` header", whole_get("/healthz", &[("transfer-encoding", "chunked")]), Refused),
        ("a line end in a value", whole_get("/healthz", &[("x-a", "b\r\nx-c: d")]), Refused),
        ("a NUL in a value", whole_get("/healthz", &[("x-a", "b\0")]), Refused),
        ("a colon in a name", whole_get("/healthz", &[("x:a", "b")]), Refused),
        ("a pseudo-header behind a header", exactly(&[(":method", "GET"), ("x-a", "b"), (":scheme", "http"), (":path", "/healthz"), (":authority", "127.0.0.1")]), Refused),
        ("two paths", exactly(&[(":method", "GET"), (":scheme", "http"), (":path", "/healthz"), (":path", "/metrics"), (":authority", "127.0.0.1")]), Refused),
        ("no path", exactly(&[(":method", "GET"), (":scheme", "http"), (":authority", "127.0.0.1")]), Refused),
        ("an empty path", exactly(&[(":method", "GET"), (":scheme", "http"), (":path", ""), (":authority", "127.0.0.1")]), Refused),
        ("a path that is a request line", exactly(&[(":method", "GET"), (":scheme", "http"), (":path", "/healthz HTTP/1.1\r\nx: y"), (":authority", "127.0.0.1")]), Refused),
        ("a method that is a request line", exactly(&[(":method", "GET / HTTP/1.1\r\nx: y"), (":scheme", "http"), (":path", "/healthz"), (":authority", "127.0.0.1")]), Refused),
        ("an unknown pseudo-header", exactly(&[(":method", "GET"), (":scheme", "http"), (":path", "/healthz"), (":authority", "127.0.0.1"), (":x", "y")]), Refused),
        ("a status in a request", exactly(&[(":method", "GET"), (":scheme", "http"), (":path", "/healthz"), (":authority", "127.0.0.1"), (":status", "200")]), Refused),
        ("60 KB of headers", [frame(HEADERS, END_STREAM, 1, &get("/healthz", &[])), frame(CONTINUATION, 0, 1, &block(&[("x-a", &big[..16_000])])).repeat(3), frame(CONTINUATION, END_HEADERS, 1, &block(&[("x-a", &big[..12_000])]))].concat(), Refused),
        ("a block that is no HPACK", frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff; 64]), Ends),
        ("an index beyond the table", frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff, 0xff, 0xff, 0x0f]), Ends),
        ("a table's size of 2^31", frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x3f, 0xff, 0xff, 0xff, 0xff, 0x07]), Ends),
        // Frames that must not be.
        ("headers on stream 0", frame(HEADERS, END_HEADERS | END_STREAM, 0, &get("/healthz", &[])), Ends),
        ("headers on an even stream", frame(HEADERS, END_HEADERS | END_STREAM, 2, &get("/healthz", &[])), Ends),
        ("data on stream 0", frame(DATA, 0, 0, b"hi"), Ends),
        ("data on a stream that never was", frame(DATA, 0, 7, b"hi"), Ends),
        ("data after the end of a stream", [head(&[]), data(END_STREAM, "{}"), data(0, "more")].concat(), Refused),
        ("headers inside another block", [frame(HEADERS, 0, 1, &get("/healthz", &[])), frame(PING, 0, 0, &[0; 8])].concat(), Ends),
        ("a continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, &get("/healthz", &[])), Ends),
        ("a frame longer than allowed", frame(DATA, 0, 1, big.as_bytes()), Ends),
        ("a frame that announces 16 MB", vec![0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1], Ends),
        ("padding longer than its frame", [head(&[]), frame(DATA, 8, 1, &[200, 1, 2])].concat(), Ends),
        ("a promise by a client", frame(PUSH_PROMISE, END_HEADERS, 1, &[&[0, 0, 0, 2], &get("/healthz", &[])[..]].concat()), Ends),
        ("a reset of a stream that never was", frame(RST_STREAM, 0, 9, &[0, 0, 0, 8]), Ends),
        ("a reset of stream 0", frame(RST_STREAM, 0, 0, &[0, 0, 0, 8]), Ends),
        ("a stream that depends on itself", frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 5]), Lives),
        ("settings of a wrong length", frame(SETTINGS, 0, 0, &[0; 5]), Ends),
        ("settings on a stream", frame(SETTINGS, 0, 1, &[]), Ends),
        ("an acknowledgement with a payload", frame(SETTINGS, ACK, 0, &[0; 6]), Ends),
        ("a window of 2^31 by setting", setting(4, 1 << 31), Ends),
        ("a frame size below the least", setting(5, 100), Ends),
        ("a frame size above the most", setting(5, 1 << 24), Ends),
        ("a ping of a wrong length", frame(PING, 0, 0, &[0; 7]), Ends),
        ("a connection's window beyond 2^31", [window(0, 0x7fff_ffff), window(0, 0x7fff_ffff)].concat(), Ends),
        ("a connection's window by zero", window(0, 0), Ends),
        ("a stream's window beyond 2^31", [head(&[]), window(1, 0x7fff_ffff), window(1, 0x7fff_ffff)].concat(), Refused),
        ("a stream's window by zero", [head(&[]), window(1, 0)].concat(), Refused),
        ("a goodbye, and a question after it", [frame(GOAWAY, 0, 0, &[0; 8]), frames::question(1, &body, &[])].concat(), Answered),
        ("a frame of a kind that nobody knows", frame(0xaa, 0xff, 0, &[1, 2, 3]), Lives),
    ]
}

/// A name, what comes first, and what then comes by the megabyte.
#[rustfmt::skip]
fn floods() -> Vec<(&'static str, Vec<u8>, Vec<u8>, usize)> {
    let open = frame(HEADERS, END_HEADERS, 1, &question_headers(&[]));
    let reset = frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    let block = block(&[("x-filler", &"y".repeat(1000))]);
    vec![
        ("a flood of continuations", frame(HEADERS, 0, 1, &question_headers(&[])), frame(CONTINUATION, 0, 1, &block), 64),
        ("a flood of empty continuations", frame(HEADERS, 0, 1, &question_headers(&[])), frame(CONTINUATION, 0, 1, &[]), 4),
        ("a flood of settings", Vec::new(), frame(SETTINGS, 0, 0, &settings_payload(&[(4, 65_535)])), 16),
        ("a flood of pings", Vec::new(), frame(PING, 0, 0, &[7; 8]), 16),
        ("a flood of priorities", Vec::new(), frame(PRIORITY, 0, 3, &[0, 0, 0, 1, 5]), 16),
        ("a flood of window updates", open.clone(), frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]), 16),
        ("a flood of unknown frames", Vec::new(), frame(0xbb, 0, 0, &[0; 100]), 32),
        ("a flood of empty data", open.clone(), frame(DATA, 0, 1, &[]), 4),
        ("a flood of data on a closed stream", [open, reset.clone()].concat(), frame(DATA, 0, 1, &[0; 1000]), 32),
        ("a flood of resets", frame(HEADERS, END_HEADERS, 1, &question_headers(&[])), reset, 8),
    ]
}

/// Sends `head`, and then `each` until so many bytes went out, the connection ended, or nothing more is taken. Others
/// are answered in time meanwhile, and the memory stays.
async fn flood(site: &Arc<Site>, head: &[u8], each: &[u8], bytes: usize) -> Seen {
    let before = site.gateway.usage()?.rss_mib;
    let mut client = Http2::connect(site.gateway.addr, &[]).await?;
    client.send(head).await;
    let many = each.repeat((64 * 1024 / each.len()).max(1));
    let beside = tokio::spawn(others(site.clone(), Duration::from_secs(1)));
    let (mut sent, mut most) = (0, before);
    let end = loop {
        if sent >= bytes {
            break "all went out";
        }
        match timeout(Duration::from_secs(2), client.send(&many)).await {
            Ok(true) => sent += many.len(),
            Ok(false) => break "the connection ended",
            Err(_) => break "nothing more was taken",
        }
        most = most.max(site.gateway.usage()?.rss_mib);
    };
    let (slowest, _) = beside.await??;
    let grown = most.saturating_sub(before);
    expect(
        grown <= 50 && slowest < Duration::from_millis(500),
        format!(
            "{end} after {} KiB, memory + {grown} MiB, others at most {slowest:.0?}",
            sent >> 10
        ),
    )
}

async fn rapid_reset(site: Arc<Site>) -> Seen {
    let before = site.gateway.usage()?.rss_mib;
    let asked = site.providers.good.provider().journal().len();
    let beside = tokio::spawn(others(site.clone(), Duration::from_secs(2)));
    let body = question("gpt-4o", "Never mind.", true);
    let mut sent = 0;
    for _ in 0..20 {
        // A connection that is ended is opened again, as an attacker would.
        let mut client = Http2::connect(site.gateway.addr, &[]).await?;
        for n in 0..1000 {
            let id = 2 * n + 1;
            let both = [frames::question(id, &body, &[]), frame(RST_STREAM, 0, id, &[0, 0, 0, 8])];
            if !client.send(both.concat()).await {
                break;
            }
            sent += 1;
        }
        let _ = client.frames(Duration::from_millis(20)).await;
    }
    let (slowest, _) = beside.await??;
    let grown = site.gateway.usage()?.rss_mib.saturating_sub(before);
    let asked = site.providers.good.provider().journal().len() - asked;
    expect(
        grown <= 50 && slowest < Duration::from_secs(1),
        format!(
            "{sent} went out, the provider was asked {asked} times, memory + {grown} MiB, others at most {slowest:.0?}"
        ),
    )
}

async fn many_streams(site: Arc<Site>) -> Seen {
    let mut client = Http2::connect(site.gateway.addr, &[]).await?;
    let frames = client.frames(Duration::from_millis(200)).await;
    let settings = frames.iter().find(|frame| frame.kind == SETTINGS && frame.flags & ACK == 0);
    let most = settings.and_then(|frame| {
        let mut pairs = frame.payload.chunks_exact(6);
        pairs.find_map(|pair| match pair {
            [0, 3, value @ ..] => Some(u32::from_be_bytes(value.try_into().ok()?)),
            _ => None,
        })
    });
    for n in 0..1000_u32 {
        client.send(frame(HEADERS, END_HEADERS, 2 * n + 1, &question_headers(&[]))).await;
    }
    let came = Came::of(&mut client).await;
    expect(
        most.is_some_and(|most| most <= 128) && (came.resets >= 800 || came.gone.is_some()),
        format!("{most:?} are announced; of 1000, {}", came.text()),
    )
}

async fn zero_window(site: Arc<Site>) -> Seen {
    let mut client = Http2::connect(site.gateway.addr, &[(4, 0)]).await?;
    let body = question("raw-endless", "Say much.", true);
    let from = Instant::now();
    client.send(frames::question(1, &body, &[("x-steadfast-timeout-ms", "3000")])).await;
    sleep(Duration::from_millis(500)).await;
    let began = site.providers.raw.open("endless");
    while site.providers.raw.open("endless") > 0 && from.elapsed() < Duration::from_secs(12) {
        sleep(Duration::from_millis(50)).await;
    }
    let took = from.elapsed();
    expect(
        began > 0 && took < Duration::from_secs(8),
        format!("{began} stream, the provider was free after {took:.1?}, the deadline is 3 s"),
    )
}

async fn zero_window_beside(site: Arc<Site>) -> Seen {
    // Stream 1 has no window; the others get theirs each.
    let mut client = Http2::connect(site.gateway.addr, &[(4, 0)]).await?;
    let stuck = question("raw-slow", "Say much.", true);
    client.send(frames::question(1, &stuck, &[("x-steadfast-timeout-ms", "3000")])).await;
    let mut whole = 0;
    for n in 1..=40_u32 {
        let id = 2 * n + 1;
        client.send(frames::question(id, &question("gpt-4o", "And I?", true), &[])).await;
        client.send(frame(WINDOW_UPDATE, 0, id, &[0, 1, 0, 0])).await;
        let body = client.body(id, Duration::from_secs(5)).await;
        let body = body.ok_or_else(|| format!("stream {id} did not end well"))?;
        whole += usize::from(String::from_utf8_lossy(&body).contains("[DONE]"));
        sleep(Duration::from_millis(150)).await;
    }
    expect(whole == 40, format!("{whole} of 40 other streams were whole"))
}

async fn table_bomb(site: Arc<Site>) -> Seen {
    let before = site.gateway.usage()?.rss_mib;
    let mut client = Http2::connect(site.gateway.addr, &[]).await?;
    let mut bomb = get("/healthz", &[]);
    // Into the table, and then out of it: a byte stands for 4 KB.
    bomb.push(0x40);
    frames::text(&mut bomb, "x-a");
    frames::text(&mut bomb, &"y".repeat(3900));
    bomb.extend(std::iter::repeat_n(0x80 | 62, 10_000));
    client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb)).await;
    let came = Came::of(&mut client).await;
    let grown = site.gateway.usage()?.rss_mib.saturating_sub(before);
    site.is_well().await?;
    let good = came.statuses.iter().any(|status| *status < 400);
    expect(!good && grown <= 50, format!("{}, memory + {grown} MiB", came.text()))
}
