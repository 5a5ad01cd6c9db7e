//! How much the gateway takes in at once: connections, requests, bytes of bodies. Beyond it callers are refused
//! soon, in their own dialect and with a time to come back.

use std::time::Duration;

use serde_json::json;
use steadfast::sim::{Dialect, Fault, FaultPlan, PlanRule};
use steadfast_tests::gateway::{
    Rig, RigBuilder, ask,
    http::{HttpRequest, Reply, poll_until, within},
    provider,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

const KIB: usize = 1024;
/// What a request without an answer says.
const SILENCE: &str = "Be silent.";

fn builder(server: &str) -> RigBuilder {
    let silence = FaultPlan::none().rule(PlanRule::new(Fault::Hang).contains(SILENCE));
    Rig::builder()
        .provider(provider(Dialect::OpenAi).with_faults(silence).build())
        .server(&format!("auth = \"none\"\n{server}"))
}

/// A question of about so many bytes.
fn sized(text: &str, bytes: usize) -> HttpRequest {
    let content = format!("{text} {}", "All is well. ".repeat(bytes / 13));
    let body = json!({ "model": "gpt-4.1", "messages": [{ "role": "user", "content": content }] });
    HttpRequest::post("/v1/chat/completions", body.to_string())
}

/// Sends a request of so many bytes that gets no answer, and waits until it has come; it is held as long as its
/// connection.
async fn hold(rig: &Rig, request: HttpRequest) -> TcpStream {
    let asked = rig.asked();
    let held = request.start(rig.addr).await;
    poll_until("the provider is asked", || async { rig.asked() > asked }).await;
    held
}

async fn metric(rig: &Rig, line: &str) -> bool {
    let metrics = HttpRequest::get("/metrics").send(rig.addr).await;
    metrics.text().lines().any(|found| found == line)
}

/// It is a refusal that says when to come back, in `dialect`.
fn assert_refused(reply: &Reply, dialect: Dialect, key: &str) {
    let body = reply.json();
    assert_eq!(reply.status, 503, "{body}");
    assert_eq!(reply.header("retry-after"), Some("1"), "{:?}", reply.headers);
    assert_eq!(reply.header("x-should-retry"), Some("true"));
    assert!(body["error"]["message"].as_str().unwrap().contains(key), "{body}");
    let kind = match dialect {
        Dialect::Anthropic => &body["error"]["type"],
        Dialect::Gemini => &body["error"]["status"],
        Dialect::OpenAi | Dialect::Responses => &body["error"]["type"],
    };
    assert!(kind.is_string(), "{body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_requests_in_flight_callers_are_refused_at_once() {
    let rig = builder("max_in_flight = 2").start().await;
    let held = [hold(&rig, sized(SILENCE, 10)).await, hold(&rig, sized(SILENCE, 10)).await];
    for dialect in Dialect::ALL {
        for streams in [false, true] {
            let began = Instant::now();
            let reply = ask(dialect, "gpt-4o", streams).send(rig.addr).await;
            assert_refused(&reply, dialect, "server.max_in_flight");
            assert!(began.elapsed() < Duration::from_secs(1));
        }
    }
    for path in ["/healthz", "/readyz", "/admin/status"] {
        assert_eq!(HttpRequest::get(path).send(rig.addr).await.status, 200, "{path}");
    }
    assert!(metric(&rig, "steadfast_in_flight 2").await);
    assert!(metric(&rig, "steadfast_provider_connections 2").await);
    assert!(metric(&rig, "steadfast_refused_total{limit=\"in_flight\"} 8").await);
    drop(held);
    poll_until("they are over", || async { rig.app.in_flight() == 0 }).await;
    assert_eq!(ask(Dialect::OpenAi, "gpt-4o", false).send(rig.addr).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_connections_requests_are_refused_and_connections_end() {
    let rig = builder("max_connections = 3").start().await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(within(TcpStream::connect(rig.addr)).await.unwrap());
    }
    poll_until("all are accepted", || async {
        ask(Dialect::OpenAi, "gpt-4o", false).send(rig.addr).await.status == 503
    })
    .await;
    for dialect in Dialect::ALL {
        let reply = ask(dialect, "gpt-4o", true).send(rig.addr).await;
        assert_refused(&reply, dialect, "server.max_connections");
        assert_eq!(reply.header("connection"), Some("close"));
    }
    for path in ["/healthz", "/readyz", "/admin/status"] {
        assert_eq!(HttpRequest::get(path).send(rig.addr).await.status, 200, "{path}");
    }
    // One that asks nothing does not last.
    let began = Instant::now();
    let mut silent = within(TcpStream::connect(rig.addr)).await.unwrap();
    assert_eq!(within(silent.read(&mut [0])).await.unwrap_or(0), 0);
    assert!(began.elapsed() < Duration::from_secs(10));
    // What was there before goes on.
    let last = held.pop().unwrap();
    let (mut reader, mut writer) = last.into_split();
    let request = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", rig.addr);
    writer.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    within(reader.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    drop((reader, writer));
    poll_until("there is room again", || async {
        ask(Dialect::OpenAi, "gpt-4o", false).send(rig.addr).await.status == 200
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_wait_for_memory_and_small_ones_pass() {
    // 14 MiB are for large ones, which are charged four times their bytes.
    let rig = builder("memory_mib = 16").start().await;
    let held = hold(&rig, sized(SILENCE, 3_000 * KIB)).await;
    assert!(!metric(&rig, "steadfast_body_memory_bytes{size=\"large\"} 0").await);

    let began = Instant::now();
    let reply = sized("Well?", 1_000 * KIB).send(rig.addr).await;
    assert_refused(&reply, Dialect::OpenAi, "server.memory_mib");
    let waited = began.elapsed();
    assert!((Duration::from_secs(1)..Duration::from_secs(5)).contains(&waited), "{waited:?}");
    let began = Instant::now();
    assert_eq!(sized("Well?", 100 * KIB).send(rig.addr).await.status, 200);
    assert!(began.elapsed() < waited, "it did not wait");

    // What could never fit is not waited for.
    let reply = sized("Well?", 4_000 * KIB).send(rig.addr).await;
    assert_eq!(reply.status, 413, "{}", reply.text());
    assert!(reply.text().contains("server.memory_mib"), "{}", reply.text());

    let addr = rig.addr;
    let waiting = tokio::spawn(async move { sized("Well?", 1_000 * KIB).send(addr).await });
    poll_until("it waits", || metric(&rig, "steadfast_body_memory_waiting 1")).await;
    drop(held);
    assert_eq!(within(waiting).await.unwrap().status, 200);
    poll_until("all is given back", || {
        metric(&rig, "steadfast_body_memory_bytes{size=\"large\"} 0")
    })
    .await;
    assert!(metric(&rig, "steadfast_body_memory_bytes{size=\"small\"} 0").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_leaves_memory_to_the_others() {
    let builder = builder("");
    let tenant = |name: &str| {
        let key = builder.secret(name, &format!("the-key-of-{name}"));
        format!("[[tenants]]\nname = \"{name}\"\nkeys = [\"{key}\"]\n")
    };
    let tenants = tenant("one") + &tenant("two");
    let rig = builder.server("memory_mib = 16").config(&tenants).start().await;
    let of = |name: &str, request: HttpRequest| {
        request.header("authorization", &format!("Bearer the-key-of-{name}"))
    };
    let _held = hold(&rig, of("one", sized(SILENCE, 2_400 * KIB))).await;
    let more = of("one", sized("Well?", 600 * KIB)).send(rig.addr).await;
    assert_refused(&more, Dialect::OpenAi, "server.memory_mib");
    let other = of("two", sized("Well?", 600 * KIB)).send(rig.addr).await;
    assert_eq!(other.status, 200, "{}", other.text());
    let whole = of("two", sized("Well?", 3_000 * KIB)).send(rig.addr).await;
    assert_eq!(whole.status, 413, "no tenant can have all of it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_without_its_length_is_charged_as_it_comes() {
    let rig = builder("memory_mib = 16").start().await;
    let mut connection = within(TcpStream::connect(rig.addr)).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\ntransfer-encoding: chunked\r\n\r\n",
        rig.addr
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("19000\r\n{}\r\n", " ".repeat(100 * KIB));
    for (sent, size, charged) in [(1, "small", 512), (2, "small", 1024), (3, "large", 2048)] {
        connection.write_all(chunk.as_bytes()).await.unwrap();
        let line = format!("steadfast_body_memory_bytes{{size=\"{size}\"}} {}", charged * KIB);
        poll_until(&format!("{sent} chunks"), || metric(&rig, &line)).await;
    }
    // Too much in all.
    for _ in 0..40 {
        if connection.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let mut reply = vec![0; 12];
    within(connection.read_exact(&mut reply)).await.unwrap();
    assert_eq!(reply, b"HTTP/1.1 413");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_changes_the_limits() {
    let rig = builder("max_in_flight = 1").start().await;
    let held = hold(&rig, sized(SILENCE, 10)).await;
    let status = || async { sized("Well?", 10).send(rig.addr).await.status };
    assert_eq!(status().await, 503);
    rig.rewrite(&rig.config.replace("max_in_flight = 1", "max_in_flight = 2"));
    rig.app.reload().unwrap();
    assert_eq!(status().await, 200);
    drop(held);
}
