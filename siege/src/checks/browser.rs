//! Pages in the operator's browser: they can send what a browser lets them, and must not be answered.

use super::open;
use crate::{
    check::{Category, Check, Seen, expect},
    site::Site,
    wire::{SOON, call, question},
};

pub(crate) const CATEGORY: Category =
    Category { name: "browser", simulated: Vec::new, setup: open, at_once: 8, checks };

/// What a page asks for.
const TARGETS: [(&str, &str); 10] = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1beta/models/gpt-4o:generateContent"),
    ("GET", "/v1/models"),
    ("GET", "/metrics"),
    ("GET", "/admin/status"),
    ("POST", "/admin/reload"),
    ("POST", "/admin/guard/extend?task=a&tenant=b"),
    ("POST", "/admin/targets/out?target=nobody"),
    ("GET", "/admin/requests"),
];

/// Headers that a page's request has, and whether it may be answered.
#[rustfmt::skip]
const PAGES: &[(&str, &str, bool)] = &[
    ("a program of this machine", "host: 127.0.0.1\r\n", true),
    ("a page of this machine", "host: localhost\r\norigin: http://localhost:3000\r\n", true),
    ("a page of the same origin", "host: 127.0.0.1\r\norigin: http://127.0.0.1\r\nsec-fetch-site: same-origin\r\n", true),
    ("a person's own address line", "host: 127.0.0.1\r\nsec-fetch-site: none\r\n", true),
    ("a foreign page", "host: 127.0.0.1\r\norigin: https://evil.example\r\n", false),
    ("a page without an origin", "host: 127.0.0.1\r\norigin: null\r\n", false),
    ("an empty origin", "host: 127.0.0.1\r\norigin:\r\n", false),
    ("an origin that only begins well", "host: 127.0.0.1\r\norigin: http://localhost.evil.example\r\n", false),
    ("an origin with a user", "host: 127.0.0.1\r\norigin: http://127.0.0.1@evil.example\r\n", false),
    ("a file", "host: 127.0.0.1\r\norigin: file://\r\n", false),
    ("two origins", "host: 127.0.0.1\r\norigin: http://localhost\r\norigin: https://evil.example\r\n", false),
    ("two origins, the foreign one first", "host: 127.0.0.1\r\norigin: https://evil.example\r\norigin: http://localhost\r\n", false),
    ("cross-site, without an origin", "host: 127.0.0.1\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n", false),
    ("same-site, without an origin", "host: 127.0.0.1\r\nsec-fetch-site: same-site\r\nsec-fetch-mode: no-cors\r\n", false),
    ("cross-site, in a frame", "host: 127.0.0.1\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: iframe\r\n", false),
    ("a name that leads here", "host: rebound.evil.example\r\n", false),
    ("a name that leads here, same-origin", "host: rebound.evil.example\r\norigin: http://rebound.evil.example\r\nsec-fetch-site: same-origin\r\n", false),
    ("every address of this machine", "host: 0.0.0.0\r\n", false),
];

fn checks() -> Vec<Check> {
    let pages = PAGES.iter().map(|&(name, headers, may)| {
        Check::new(name, move |site| async move { page(&site, headers, may).await })
    });
    let others = [
        Check::new("a preflight allows nobody", |site| async move { preflight(&site).await }),
        Check::new("a form's content type", |site| async move { form(&site).await }),
        Check::new("a link from a foreign page may be followed", |site| async move {
            let headers = "host: 127.0.0.1\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n";
            let request = format!("GET /healthz HTTP/1.1\r\n{headers}\r\n");
            let reply = call(site.gateway.addr, request, SOON).await?;
            expect(reply.status == 200, reply.brief())
        }),
    ];
    pages.chain(others).collect()
}

async fn page(site: &Site, headers: &str, may: bool) -> Seen {
    let mut wrong = Vec::new();
    let mut seen = Vec::new();
    for (method, target) in TARGETS {
        let body = if method == "POST" { question("gpt-4o", "hi", false) } else { String::new() };
        let length = body.len();
        let request = format!(
            "{method} {target} HTTP/1.1\r\n{headers}content-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        let reply = call(site.gateway.addr, request, SOON).await?;
        let refused = matches!(reply.status, 400 | 401 | 403 | 421);
        // What a path makes of a body that is not its own is not asked here, and neither is an unknown task.
        let wrongly = if may { matches!(reply.status, 401 | 403 | 421) } else { !refused };
        if wrongly || reply.header("access-control-allow-origin").is_some() {
            wrong.push(format!("{method} {target}: {}", reply.status));
        }
        seen.push(reply.status);
    }
    expect(wrong.is_empty(), if wrong.is_empty() { format!("{seen:?}") } else { wrong.join(", ") })
}

async fn preflight(site: &Site) -> Seen {
    for (_, target) in TARGETS {
        let request = format!(
            "OPTIONS {target} HTTP/1.1\r\nhost: 127.0.0.1\r\norigin: https://evil.example\r\n\
             access-control-request-method: POST\r\naccess-control-request-headers: content-type\r\n\r\n"
        );
        let reply = call(site.gateway.addr, request, SOON).await?;
        let allows = |header: &(String, String)| header.0.starts_with("access-control-allow");
        if reply.headers.iter().any(allows) || reply.status < 300 {
            return expect(false, format!("{target}: {} {:?}", reply.status, reply.headers));
        }
    }
    Ok("refused everywhere, and no header allows anything".into())
}

async fn form(site: &Site) -> Seen {
    let body = question("gpt-4o", "hi", false);
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\norigin: https://evil.example\r\n\
         content-type: text/plain\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let reply = call(site.gateway.addr, request, SOON).await?;
    expect(matches!(reply.status, 400 | 401 | 403), reply.brief())
}
