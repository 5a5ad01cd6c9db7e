//! Secrets by value, at every exit, with everything logged.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{
    check::{Category, Check, Seen, expect},
    process::Setup,
    provider::{KEY, Part, Providers, answer, event, response, stream_head, text_event},
    site::{ADMIN, OTHER, Site, TENANT},
    wire::{Client, Reply, SOON, call, chat, post, question},
};

/// One at a time: the last checks read what all of them left.
pub(crate) const CATEGORY: Category =
    Category { name: "secrets", simulated: Vec::new, setup, at_once: 1, checks };

/// In prompts and answers, which are logged nowhere.
const CANARY: &str = "canary-of-what-was-asked-58213";

fn setup(providers: &Providers) -> Setup {
    for (name, parts) in echoes() {
        providers.raw.serve(name, parts);
    }
    // One that refuses a prompt word for word. The canary is not sent there: what a provider's error says is logged.
    let refuses = Part::Echo(|_, body| refusal_of(&prompt(body)));
    providers.raw.serve("prompt", vec![refuses, Part::Keep]);
    let names: Vec<_> = echoes().into_iter().map(|(name, _)| name).chain(["prompt"]).collect();
    let config = format!(
        "{}[[tenants]]\nname = \"one\"\nkeys = [\"env:SIEGE_TENANT\"]\n\
         [[tenants]]\nname = \"two\"\nkeys = [\"env:SIEGE_OTHER\"]\n",
        providers.config(&names)
    );
    Setup {
        config,
        server: "auth = \"keys\"\nadmin_key = \"env:SIEGE_ADMIN\"".into(),
        env: vec![("RUST_LOG".into(), "trace".into())],
        ..Setup::default()
    }
}

/// The key that came in a request's head.
fn key(head: &str) -> String {
    let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with("authorization:"));
    line.and_then(|line| line.split_once("earer ")).map_or_else(String::new, |(_, key)| key.into())
}

/// A refusal that names the key that came.
fn refusal(status: &str, head: &str) -> Vec<u8> {
    let message = format!("The header was: {}. Nothing else is known.", key(head));
    let body = serde_json::json!({"error": {"message": message, "type": "invalid_request_error", "code": "invalid", "param": key(head)}});
    response(status, "", &body.to_string())
}

/// What was asked.
fn prompt(body: &[u8]) -> String {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    body["messages"][0]["content"].as_str().unwrap_or_default().to_owned()
}

/// A refusal with this message.
fn refusal_of(message: &str) -> Vec<u8> {
    response("400 Bad", "", &serde_json::json!({"error": {"message": message}}).to_string())
}

/// Everything that a provider can do with the key that it was sent, except in an answer that is well: its content is
/// the caller's, and is not searched.
#[rustfmt::skip]
fn echoes() -> Vec<(&'static str, Vec<Part>)> {
    let stream = |last: fn(&str, &[u8]) -> Vec<u8>| vec![Part::Bytes([stream_head(), text_event("a")].concat()), Part::Echo(last), Part::Bytes(b"0\r\n\r\n".to_vec())];
    vec![
        ("e400", vec![Part::Echo(|head, _| refusal("400 Bad", head)), Part::Keep]),
        ("e401", vec![Part::Echo(|head, _| refusal("401 Unauthorized", head)), Part::Keep]),
        ("e403", vec![Part::Echo(|head, _| refusal("403 Forbidden", head)), Part::Keep]),
        ("e404", vec![Part::Echo(|head, _| refusal("404 Not Found", head)), Part::Keep]),
        ("e413", vec![Part::Echo(|head, _| refusal("413 Too Large", head)), Part::Keep]),
        ("e422", vec![Part::Echo(|head, _| refusal("422 What", head)), Part::Keep]),
        ("e429", vec![Part::Echo(|head, _| refusal("429 Too Many", head)), Part::Keep]),
        ("e500", vec![Part::Echo(|head, _| refusal("500 Oops", head)), Part::Keep]),
        ("e529", vec![Part::Echo(|head, _| refusal("529 Overloaded", head)), Part::Keep]),
        ("html", vec![Part::Echo(|head, _| {
            let page = format!("<html>{}</html>", key(head));
            format!("HTTP/1.1 502 Bad\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n{page}", page.len()).into_bytes()
        }), Part::Keep]),
        ("text", vec![Part::Echo(|head, _| response("200 OK", "", &key(head))), Part::Keep]),
        ("percent", vec![Part::Echo(|head, _| response("400 Bad", "", &format!(r#"{{"error":{{"message":"at /x?key={}"}}}}"#, percent(&key(head)))) ), Part::Keep]),
        ("base64", vec![Part::Echo(|head, _| response("400 Bad", "", &format!(r#"{{"error":{{"message":"Basic {}"}}}}"#, base64(key(head).as_bytes())))), Part::Keep]),
        ("base64-inside", vec![Part::Echo(|head, _| response("400 Bad", "", &format!(r#"{{"error":{{"message":"Basic {}"}}}}"#, base64(format!("u:{}", key(head)).as_bytes())))), Part::Keep]),
        ("headers", vec![Part::Echo(|head, _| {
            let key = key(head);
            let names = ["x-request-id", "request-id", "x-ratelimit-limit-requests", "retry-after", "server", "www-authenticate", "location", "openai-organization"];
            let lines: String = names.iter().map(|name| format!("{name}: {key}\r\n")).collect();
            response("400 Bad", &lines, r#"{"error":{"message":"no"}}"#)
        }), Part::Keep]),
        ("headers-of-an-answer", vec![Part::Echo(|head, _| {
            let key = key(head);
            let lines = format!("x-request-id: {key}\r\nx-model: {key}\r\nset-cookie: k={key}\r\n");
            response("200 OK", &lines, &answer("Fine."))
        }), Part::Keep]),
        ("reason-phrase", vec![Part::Echo(|head, _| format!("HTTP/1.1 400 {}\r\ncontent-length: 0\r\n\r\n", key(head)).into_bytes()), Part::Keep]),
        ("error-event", stream(|head, _| event(&serde_json::json!({"error": {"message": format!("bad key {}", key(head))}}).to_string()))),
        ("error-event-no-json", stream(|head, _| event(&format!("oops {}", key(head))))),
        ("error-first", vec![Part::Bytes(stream_head()), Part::Echo(|head, _| event(&serde_json::json!({"error": {"message": key(head), "code": 400}}).to_string())), Part::Bytes(b"0\r\n\r\n".to_vec())]),
        ("well", vec![Part::Bytes(response("200 OK", "", &answer(CANARY))), Part::Keep]),
    ]
}

fn percent(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let part = |n: usize| u32::from(three.get(n).copied().unwrap_or(0));
        let bits = part(0) << 16 | part(1) << 8 | part(2);
        for n in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * n) & 63) as usize];
            out.push(if n > three.len() { '=' } else { char::from(letter) });
        }
    }
    out
}

/// The part of a secret in base64 that does not depend on what stands before and after it.
fn base64_core(secret: &str, before: usize) -> String {
    let padded = [&vec![b'_'; before], secret.as_bytes()].concat();
    let whole = padded.len() / 3 * 3;
    let from = before.div_ceil(3) * 4;
    base64(&padded[..whole]).get(from..).unwrap_or_default().to_owned()
}

/// The forms of the secrets that `text` has in it.
fn leaks(text: &str, secrets: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for secret in secrets {
        let json = serde_json::json!(secret).to_string();
        let mut forms = vec![
            ("as it is", (*secret).to_owned()),
            ("escaped", json.trim_matches('"').to_owned()),
            ("escaped twice", secret.replace('"', "\\\\\\\"")),
            ("percent", percent(secret)),
        ];
        forms.extend((0..3).map(|n| ("base64", base64_core(secret, n))));
        for (form, value) in forms {
            if text.contains(&value) {
                let name: String = secret.chars().take(5).collect();
                found.push(format!("{name}... {form}"));
            }
        }
    }
    found.dedup();
    found
}

fn everything(reply: &Reply) -> String {
    format!("{:?} {}", reply.headers, reply.text()).replace("\\\"", "\"") + &reply.text()
}

const BEARER: &str = "x-steadfast-max-attempts: 1\r\nx-steadfast-timeout-ms: 3000\r\n";

fn checks() -> Vec<Check> {
    let mut all = Vec::new();
    for (name, _) in echoes() {
        let title = format!("a provider that echoes its key: {name}");
        all.push(Check::new(title, move |site| async move { echo(&site, name).await }));
    }
    all.extend([
        Check::new("a caller's key that is not known", unknown_key),
        Check::new("an operator's key where a tenant's belongs", |site| async move {
            let body = question("gpt-4o", "hi", false);
            let headers = format!("authorization: Bearer {ADMIN}\r\n");
            let reply = call(site.gateway.addr, chat(&headers, &body), SOON).await?;
            let request = format!(
                "GET /admin/status HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: {TENANT}\r\n\r\n"
            );
            let admin = call(site.gateway.addr, request, SOON).await?;
            let found = leaks(&(everything(&reply) + &everything(&admin)), &[ADMIN, TENANT]);
            let statuses = (reply.status, admin.status);
            expect(found.is_empty() && statuses == (401, 401), format!("{statuses:?} {found:?}"))
        }),
        Check::new("300 random secrets that a provider echoes", |site| random(site, 300)),
        Check::new("10,000 random secrets that a provider echoes", |site| random(site, 10_000))
            .within_s(120)
            .slow(),
        Check::new("the status page", |site| async move { page(&site, "/admin/status").await }),
        Check::new("the metrics", |site| async move { page(&site, "/metrics").await }),
        Check::new("the log, with everything logged", |site| async move { log(&site).await }),
        Check::new("prompts and answers are not logged", |site| async move {
            let log = site.gateway.output();
            let found = log.lines().find(|line| line.contains(CANARY));
            let line: String = found.unwrap_or_default().chars().take(200).collect();
            expect(found.is_none(), format!("{} bytes of log {line}", log.len()))
        }),
        Check::new("a configured secret of 7 bytes is refused at the start", short_secret),
    ]);
    all
}

async fn echo(site: &Site, name: &str) -> Seen {
    let model = format!("raw-{name}");
    let mut found = Vec::new();
    let mut statuses = Vec::new();
    let prompt = format!("{CANARY}, {name}?");
    for stream in [false, true] {
        let anthropic = serde_json::json!({"model": model, "max_tokens": 99, "stream": stream, "messages": [{"role": "user", "content": prompt}]}).to_string();
        let gemini =
            serde_json::json!({"contents": [{"role": "user", "parts": [{"text": prompt}]}]})
                .to_string();
        let method = if stream { "streamGenerateContent?alt=sse" } else { "generateContent" };
        let headers = format!("{BEARER}authorization: Bearer {TENANT}\r\n");
        let requests = [
            chat(&headers, &question(&model, &prompt, stream)),
            post(
                "/v1/messages",
                &format!("{BEARER}x-api-key: {TENANT}\r\nanthropic-version: 2023-06-01\r\n"),
                anthropic.as_bytes(),
            ),
            post(
                &format!("/v1beta/models/{model}:{method}"),
                &format!("{BEARER}x-goog-api-key: {TENANT}\r\n"),
                gemini.as_bytes(),
            ),
        ];
        for request in requests {
            let reply = call(site.gateway.addr, request, SOON).await?;
            // A model may say what it likes; these do not.
            found.extend(leaks(&everything(&reply), &[KEY, TENANT, ADMIN]));
            statuses.push(reply.status);
        }
    }
    let asked = site.providers.raw.asked(name);
    found.sort_unstable();
    found.dedup();
    expect(found.is_empty() && asked > 0, format!("{statuses:?} {found:?}, asked {asked} times"))
}

/// How many secrets one prompt has in it.
const AT_ONCE: usize = 20;

/// So many keys of a tenant, which another one puts into its prompts in this form or that, and a provider refuses
/// word for word.
async fn random(site: Arc<Site>, count: usize) -> Seen {
    let mut rng = fastrand::Rng::with_seed(7);
    let secrets: Vec<String> =
        (0..count).map(|_| (0..rng.usize(8..64)).map(|_| rng.char('!'..='~')).collect()).collect();
    let gateway = site
        .another(|setup| {
            let names: Vec<_> = (0..count).map(|n| format!("\"env:SIEGE_RANDOM_{n}\"")).collect();
            setup.config +=
                &format!("[[tenants]]\nname = \"many\"\nkeys = [{}]\n", names.join(", "));
            setup.env.retain(|(name, _)| name != "RUST_LOG");
            let named =
                |(n, secret): (usize, &String)| (format!("SIEGE_RANDOM_{n}"), secret.clone());
            setup.env.extend(secrets.iter().enumerate().map(named));
        })
        .await?;
    let mut client = Client::connect(gateway.addr).await?;
    let (mut found, mut cut) = (Vec::new(), 0);
    let mut all = String::new();
    for some in secrets.chunks(AT_ONCE) {
        let form = |(n, secret): (usize, &String)| match n % 3 {
            0 => format!("#{n} {secret}"),
            1 => format!("#{n} {}", percent(secret)),
            _ => format!("#{n} {}", base64(secret.as_bytes())),
        };
        let prompt: Vec<_> = some.iter().enumerate().map(form).collect();
        let headers = format!("{BEARER}authorization: Bearer {TENANT}\r\n");
        client.send(chat(&headers, &question("raw-prompt", &prompt.join(" "), false))).await;
        let reply = client.reply(SOON).await.ok_or("no answer")?;
        let text = everything(&reply);
        let secrets: Vec<_> = some.iter().map(String::as_str).collect();
        found.extend(leaks(&text, &secrets));
        // What stands between them is untouched.
        cut += (0..some.len()).filter(|n| !text.contains(&format!("#{n} "))).count();
        all = text;
    }
    sleep(Duration::from_millis(200)).await;
    let log = gateway.output();
    let secrets: Vec<_> = secrets.iter().map(String::as_str).collect();
    found.extend(leaks(&log, &secrets));
    let end: String = all.chars().take(80).collect();
    expect(
        found.is_empty() && cut == 0,
        format!("{found:?}, {cut} neighbours were lost; the last one {end}"),
    )
}

async fn unknown_key(site: Arc<Site>) -> Seen {
    let unknown = "nobodys-key-0a1b2c3d4e5f";
    let mut found = Vec::new();
    for header in ["authorization: Bearer", "x-api-key:", "x-goog-api-key:"] {
        let request = chat(&format!("{header} {unknown}\r\n"), &question("gpt-4o", "hi", false));
        let reply = call(site.gateway.addr, request, SOON).await?;
        found.extend(leaks(&everything(&reply), &[unknown]));
        if reply.status != 401 {
            return expect(false, reply.brief());
        }
    }
    let path = format!("/v1beta/models/gpt-4o:generateContent?key={unknown}");
    let reply = call(site.gateway.addr, post(&path, "", b"{}"), SOON).await?;
    found.extend(leaks(&everything(&reply), &[unknown]));
    sleep(Duration::from_millis(150)).await;
    found.extend(leaks(&site.gateway.output(), &[unknown]));
    expect(found.is_empty(), format!("{} {found:?}", reply.status))
}

async fn page(site: &Site, path: &str) -> Seen {
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {ADMIN}\r\n\r\n");
    let reply = call(site.gateway.addr, request, SOON).await?;
    let found = leaks(&everything(&reply), &[KEY, TENANT, OTHER, ADMIN]);
    expect(
        reply.status == 200 && found.is_empty(),
        format!("{} {} bytes {found:?}", reply.status, reply.body.len()),
    )
}

async fn log(site: &Site) -> Seen {
    // The log is written within 50 ms.
    sleep(Duration::from_millis(200)).await;
    let log = site.gateway.output();
    let secrets = [KEY, TENANT, OTHER, ADMIN];
    let lines: Vec<_> = log.lines().filter(|line| !leaks(line, &secrets).is_empty()).collect();
    let first: String = lines.first().unwrap_or(&"").chars().take(200).collect();
    let found = leaks(&log, &secrets);
    expect(
        lines.is_empty(),
        format!("{} of {} lines {found:?} {first}", lines.len(), log.lines().count()),
    )
}

async fn short_secret(site: Arc<Site>) -> Seen {
    let short = "s3cret7";
    let gateway = site.spawn(|setup| {
        setup.env.retain(|(name, _)| name != "SIEGE_PROVIDER");
        setup.env.push(("SIEGE_PROVIDER".into(), short.into()));
    })?;
    let status = gateway.wait_exit(Duration::from_secs(3)).await?;
    let output = gateway.output();
    expect(
        status.code() == Some(2) && !output.contains(short) && output.contains("SIEGE_PROVIDER"),
        format!("{status}: {}", gateway.log()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_in_each_of_its_forms() {
        let form = |text: &str| !leaks(text, &[KEY]).is_empty();
        assert!(form(&format!("a {KEY} b")));
        assert!(form(&serde_json::json!({ "a": KEY }).to_string()));
        assert!(form(&serde_json::json!({ "a": serde_json::json!(KEY).to_string() }).to_string()));
        assert!(form(&format!("?key={}", percent(KEY))));
        for before in ["", "a", "ab", "abc", "user:"] {
            for after in ["", "z", "zz"] {
                assert!(
                    form(&base64(format!("{before}{KEY}{after}").as_bytes())),
                    "{before} {after}"
                );
            }
        }
        assert!(!form("quiet-harbour/4471"));
        assert_eq!(base64(b"hello"), "aGVsbG8=");
    }
}
