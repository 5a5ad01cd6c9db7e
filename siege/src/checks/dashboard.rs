//! The dashboard: who gets a session, what a session can do, and that no answer there has a key in it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use serde_json::json;

use crate::{
    check::{Category, Check, Failed, Seen, expect},
    process::Setup,
    provider::{KEY, Providers},
    site::{ADMIN, OTHER, Site, TENANT},
    wire::{Client, Reply, SOON, call, chat, post, question},
};

pub(crate) const CATEGORY: Category =
    Category { name: "dashboard", simulated: Vec::new, setup, at_once: 1, checks };

fn setup(providers: &Providers) -> Setup {
    let tenants = "[[tenants]]\nname = \"one\"\nkeys = [\"env:SIEGE_TENANT\"]\n\
                   [[tenants]]\nname = \"two\"\nkeys = [\"env:SIEGE_OTHER\"]\n";
    Setup {
        config: providers.config(&[]) + tenants,
        server: "auth = \"keys\"\nadmin_key = \"env:SIEGE_ADMIN\"".into(),
        ..Setup::default()
    }
}

/// The headers of the page itself.
const OWN: &str = "origin: http://127.0.0.1\r\nsec-fetch-site: same-origin\r\n";

/// Headers beside those of a session, and whether it may be used with them.
#[rustfmt::skip]
const PAGES: &[(&str, &str, bool)] = &[
    ("the page itself", OWN, true),
    ("a foreign page", "origin: https://evil.example\r\n", false),
    ("a foreign page that claims to be ours", "origin: https://evil.example\r\nsec-fetch-site: same-origin\r\n", false),
    ("another port of this machine", "origin: http://127.0.0.1:3000\r\nsec-fetch-site: same-site\r\n", false),
    ("another port, in an old browser", "origin: http://127.0.0.1:3000\r\n", false),
    ("a page without an origin", "origin: null\r\n", false),
    ("two origins", "origin: http://127.0.0.1\r\norigin: https://evil.example\r\n", false),
    ("cross-site", "origin: http://127.0.0.1\r\nsec-fetch-site: cross-site\r\n", false),
    ("cross-site, in a frame", "origin: http://127.0.0.1\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: iframe\r\n", false),
];

/// What is no session.
const COOKIES: [&str; 7] = [
    "steadfast_session=",
    "steadfast_session=AAAA",
    "steadfast_session=%00%ff",
    "steadfast_session=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "=; ;;=;steadfast_session",
    "steadfast_session=\u{e9}",
    "Steadfast_Session=AAAA",
];

/// What begins no session.
const LOGINS: [&[u8]; 7] = [
    b"",
    b"{",
    b"{\"key\":[]}",
    b"{\"key\":\"\xff\"}",
    b"{\"key\":\"\"}",
    b"null",
    b"{\"key\":\"x\",\"y\":1}",
];

fn checks() -> Vec<Check> {
    let pages = PAGES.iter().map(|&(name, headers, may)| {
        Check::new(name, move |site| async move { page(&site, headers, may).await })
    });
    let others = [
        Check::new(
            "nothing is loaded from elsewhere, shown in a frame or kept",
            |site| async move { headers(&site).await },
        ),
        Check::new("a session without the page's token changes nothing", |site| async move {
            token(&site).await
        }),
        Check::new("cookies that nobody was given", |site| async move { cookies(&site).await }),
        Check::new("logins that are none", |site| async move { logins(&site).await }),
        Check::new("tenants' keys do not open it", |site| async move { tenants(&site).await }),
        Check::new("no answer has a key in it", |site| async move { keys(&site).await }),
        Check::new("more pages than are fed, that read nothing", |site| async move {
            crowd(&site).await
        })
        .within_s(60),
    ];
    pages.chain(others).collect()
}

/// A session as a browser has it.
struct Session {
    cookie: String,
    token: String,
    set: String,
}

async fn session(at: SocketAddr) -> Result<Session, Failed> {
    let body = json!({ "key": ADMIN }).to_string();
    let reply = call(at, post("/dashboard/session", OWN, body.as_bytes()), SOON).await?;
    let set = reply.header("set-cookie").ok_or_else(|| Failed(reply.brief()))?.to_owned();
    let json = reply.json().unwrap_or_default();
    let token = json["token"].as_str().unwrap_or_default().to_owned();
    Ok(Session { cookie: set.split(';').next().unwrap_or_default().to_owned(), token, set })
}

async fn get(at: SocketAddr, path: &str, headers: &str) -> Result<Reply, Failed> {
    call(at, format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}\r\n"), SOON).await
}

/// The status of a feed, of which little more is read.
async fn feed(at: SocketAddr, headers: &str) -> Result<(Client, Option<u16>), Failed> {
    let mut client = Client::connect(at).await?;
    client.send(format!("GET /dashboard/feed HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}\r\n")).await;
    let status = client.status(SOON).await;
    Ok((client, status))
}

async fn page(site: &Site, headers: &str, may: bool) -> Seen {
    let at = site.gateway.addr;
    let body = json!({ "key": ADMIN }).to_string();
    let login = call(at, post("/dashboard/session", headers, body.as_bytes()), SOON).await?;
    let own = session(at).await?;
    let with = format!("{headers}cookie: {}\r\n", own.cookie);
    let status = get(at, "/admin/status", &with).await?;
    let (_, feed) = feed(at, &with).await?;
    let with = format!("{with}x-steadfast-token: {}\r\n", own.token);
    let action = call(at, post("/admin/guard/extend?task=none", &with, b""), SOON).await?;
    let seen = [login.status, status.status, feed.unwrap_or(0), action.status];
    let wanted = if may { [200, 200, 200, 404] } else { [403, 401, 401, 401] };
    let allows = |reply: &&Reply| reply.header("access-control-allow-origin").is_some();
    let allowed = [&login, &status, &action].into_iter().any(|reply| allows(&reply));
    expect(seen == wanted && !allowed, format!("{seen:?}"))
}

async fn headers(site: &Site) -> Seen {
    let at = site.gateway.addr;
    for path in ["/dashboard", "/dashboard/app.js", "/dashboard/app.css", "/dashboard/session"] {
        let reply = get(at, path, "").await?;
        let has =
            |name: &str, part: &str| reply.header(name).is_some_and(|value| value.contains(part));
        let good = reply.status == 200
            && has("content-security-policy", "default-src 'none'")
            && has("content-security-policy", "frame-ancestors 'none'")
            && !has("content-security-policy", "unsafe")
            && has("x-frame-options", "DENY")
            && has("x-content-type-options", "nosniff")
            && has("referrer-policy", "no-referrer")
            && has("cache-control", "no-");
        if !good {
            return expect(false, format!("{path}: {} {:?}", reply.status, reply.headers));
        }
    }
    let own = session(at).await?;
    let parts = ["; HttpOnly", "; SameSite=Strict", "; Path=/"];
    expect(parts.iter().all(|part| own.set.contains(part)), own.set.replace(&own.cookie, "..."))
}

async fn token(site: &Site) -> Seen {
    let at = site.gateway.addr;
    let (own, other) = (session(at).await?, session(at).await?);
    let mut seen = Vec::new();
    for token in ["", "AAAA", &other.token, &own.cookie] {
        let with = format!("{OWN}cookie: {}\r\nx-steadfast-token: {token}\r\n", own.cookie);
        for path in ["/admin/reload", "/admin/targets/out?target=x", "/admin/letters/drain"] {
            seen.push(call(at, post(path, &with, b""), SOON).await?.status);
        }
    }
    expect(seen.iter().all(|status| *status == 401), format!("{seen:?}"))
}

async fn cookies(site: &Site) -> Seen {
    let at = site.gateway.addr;
    let own = session(at).await?;
    let mut seen = Vec::new();
    let many = "a=b; ".repeat(500);
    let cut = &own.cookie[..own.cookie.len() - 2];
    for cookie in COOKIES.into_iter().chain([&*many, cut]) {
        let with = format!("{OWN}cookie: {cookie}\r\n");
        seen.push(get(at, "/admin/status", &with).await?.status);
    }
    let refused = seen.iter().all(|status| matches!(status, 400 | 401));
    site.is_well().await?;
    expect(refused, format!("{seen:?}"))
}

async fn logins(site: &Site) -> Seen {
    let at = site.gateway.addr;
    let mut seen = Vec::new();
    for body in LOGINS {
        seen.push(call(at, post("/dashboard/session", OWN, body), SOON).await?.status);
    }
    let large = vec![b'x'; 100_000];
    seen.push(call(at, post("/dashboard/session", OWN, &large), SOON).await?.status);
    expect(seen.iter().all(|status| matches!(status, 400 | 401)), format!("{seen:?}"))
}

async fn tenants(site: &Site) -> Seen {
    let at = site.gateway.addr;
    let mut seen = Vec::new();
    for key in [TENANT, OTHER] {
        let body = json!({ "key": key }).to_string();
        seen.push(call(at, post("/dashboard/session", OWN, body.as_bytes()), SOON).await?.status);
        let bearer = format!("authorization: Bearer {key}\r\n");
        for path in ["/admin/status", "/admin/requests", "/admin/letters", "/dashboard/feed"] {
            seen.push(get(at, path, &bearer).await?.status);
        }
    }
    expect(seen.iter().all(|status| *status == 401), format!("{seen:?}"))
}

async fn keys(site: &Arc<Site>) -> Seen {
    let at = site.gateway.addr;
    for content in ["hello", TENANT, ADMIN, KEY] {
        let bearer = format!("authorization: Bearer {TENANT}\r\nx-steadfast-task: {TENANT}\r\n");
        call(at, chat(&bearer, &question(TENANT, content, false)), SOON).await?;
    }
    let own = session(at).await?;
    let with = format!("{OWN}cookie: {}\r\n", own.cookie);
    let mut all = String::new();
    for path in ["/dashboard/session", "/admin/status", "/admin/requests", "/admin/spend"] {
        all += &get(at, path, &with).await?.text();
    }
    let mut client = Client::connect(at).await?;
    client.send(format!("GET /dashboard/feed HTTP/1.1\r\nhost: 127.0.0.1\r\n{with}\r\n")).await;
    // It goes on; what has come by then is a frame at least.
    let frame = client.reply(Duration::from_secs(2)).await.map(|reply| reply.text());
    let frame = frame.filter(|frame| frame.contains("\"requests\"")).ok_or("no frame came")?;
    all += &frame;
    let shown: Vec<_> = [("a tenant's", TENANT), ("the admin's", ADMIN), ("a provider's", KEY)]
        .into_iter()
        .filter(|(_, key)| all.contains(key))
        .map(|(whose, _)| whose)
        .collect();
    expect(shown.is_empty(), format!("{} bytes, keys in them: {shown:?}", all.len()))
}

async fn crowd(site: &Site) -> Seen {
    let at = site.gateway.addr;
    let own = session(at).await?;
    let with = format!("{OWN}cookie: {}\r\n", own.cookie);
    let (mut pages, mut refused) = (Vec::new(), 0);
    for _ in 0..40 {
        match feed(at, &with).await? {
            (client, Some(200)) => pages.push(client),
            (_, Some(503)) => refused += 1,
            (_, other) => return expect(false, format!("{other:?}")),
        }
    }
    let fed = pages.len();
    site.is_well().await?;
    drop(pages);
    site.is_as_before().await?;
    expect((fed, refused) == (32, 8), format!("{fed} were fed, {refused} refused"))
}
