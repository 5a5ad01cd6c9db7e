//! Whose name counts: a gateway without keys answers programs of its own machine, by whichever way a
//! request names it, and no page of a browser.

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
};

async fn open_rig() -> Rig {
    Rig::of(provider(Dialect::OpenAi).respond(|_| Some(rich_answer())).build()).await
}

/// What is answered by name, and with which status to whom may not.
const PATHS: [(&str, u16); 5] = [
    ("/healthz", 403),
    ("/readyz", 403),
    ("/metrics", 403),
    ("/v1/models", 401),
    ("/admin/status", 401),
];

/// How a name is refused.
#[derive(Clone, Copy)]
enum Answer {
    Served,
    Refused,
    /// 400, whatever is asked for.
    Misaddressed,
}

impl Answer {
    fn status(self, refused: u16) -> u16 {
        match self {
            Self::Served => 200,
            Self::Refused => refused,
            Self::Misaddressed => 400,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_that_is_checked_is_the_one_that_is_used() {
    let rig = open_rig().await;
    for (target, headers, answer) in [
        ("", "host: localhost\r\n", Answer::Served),
        ("", "host: 127.0.0.1:8080\r\n", Answer::Served),
        ("", "host: [::1]\r\n", Answer::Served),
        ("", "host: evil.example\r\n", Answer::Refused),
        ("", "host:\r\n", Answer::Refused),
        ("", "host: localhost\r\nhost: localhost\r\n", Answer::Misaddressed),
        ("", "host: localhost\r\nhost: evil.example\r\n", Answer::Misaddressed),
        ("", "host: evil@127.0.0.1\r\n", Answer::Misaddressed),
        ("http://localhost", "host: localhost\r\n", Answer::Served),
        ("http://evil.example", "host: localhost\r\n", Answer::Misaddressed),
        ("http://localhost", "host: evil.example\r\n", Answer::Misaddressed),
        ("http://evil.example", "", Answer::Refused),
        ("http://evil.example", "host: evil.example\r\n", Answer::Refused),
        ("http://evil@127.0.0.1", "", Answer::Misaddressed),
        ("", "host: localhost\r\norigin: https://evil.example\r\n", Answer::Refused),
        ("", "host: localhost\r\nsec-fetch-site: cross-site\r\n", Answer::Refused),
        ("", "host: localhost\r\nsec-fetch-site: same-site\r\n", Answer::Refused),
        ("", "host: localhost\r\nsec-fetch-site: same-origin\r\n", Answer::Served),
        (
            "",
            "host: localhost\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\n\
             sec-fetch-dest: document\r\n",
            Answer::Served,
        ),
        (
            "",
            "host: localhost\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\n\
             sec-fetch-dest: iframe\r\n",
            Answer::Refused,
        ),
    ] {
        for (path, refused) in PATHS {
            let mut connection = within(TcpStream::connect(rig.addr)).await.unwrap();
            let head = format!("GET {target}{path} HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
            within(connection.write_all(head.as_bytes())).await.unwrap();
            let mut reply = Vec::new();
            within(connection.read_to_end(&mut reply)).await.unwrap();
            let reply = String::from_utf8(reply).unwrap();
            let status = format!("HTTP/1.1 {} ", answer.status(refused));
            assert!(reply.starts_with(&status), "{head}{reply}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_of_http2_is_a_name_like_any_other() {
    let rig = open_rig().await;
    let client = Http2::connect(rig.addr, 65_535).await;
    for (authority, host, answer) in [
        ("localhost", None, Answer::Served),
        ("127.0.0.1:1", Some("127.0.0.1:1"), Answer::Served),
        ("evil.example", None, Answer::Refused),
        ("evil.example", Some("localhost"), Answer::Misaddressed),
        ("localhost", Some("evil.example"), Answer::Misaddressed),
        ("evil@127.0.0.1", None, Answer::Misaddressed),
    ] {
        for (path, refused) in PATHS {
            let request = http::Request::get(format!("http://{authority}{path}"));
            let request =
                host.into_iter().fold(request, |request, host| request.header("host", host));
            let reply = client.send(request.body(Vec::new()).unwrap()).await;
            let status = reply.status().as_u16();
            let (body, _) = http2::rest(reply.into_body()).await;
            let body = String::from_utf8_lossy(&body);
            assert_eq!(status, answer.status(refused), "{authority} {host:?} {path}: {body}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_key_any_one_name_is_served() {
    let builder = Rig::builder();
    let key = builder.secret("acme", "gw-acme-key-5309");
    let rig = builder
        .server("")
        .config(&format!("[[tenants]]\nname = \"acme\"\nkeys = [\"{key}\"]\n"))
        .provider(provider(Dialect::OpenAi).respond(|_| Some(rich_answer())).build())
        .start()
        .await;
    let client = Http2::connect(rig.addr, 65_535).await;
    for path in ["/metrics", "/readyz", "/healthz", "/v1/models"] {
        let request = http::Request::get(format!("http://gateway.example{path}"))
            .header("authorization", "Bearer gw-acme-key-5309")
            .header("sec-fetch-site", "cross-site");
        let reply = client.send(request.body(Vec::new()).unwrap()).await;
        assert_eq!(reply.status(), 200, "{path}");
    }
    let status = HttpRequest::get("/admin/status").header("sec-fetch-site", "cross-site");
    assert_eq!(status.send(rig.addr).await.status, 401, "the operator's machine, but a page");
    let request = ask(Dialect::OpenAi, "gpt-4o", false);
    let request = request.header("authorization", "Bearer gw-acme-key-5309");
    assert_eq!(request.clone().send(rig.addr).await.status, 200);
    let reply = request.header("host", "localhost").send(rig.addr).await;
    assert_eq!(reply.status, 400, "two names, whoever asks");
}
