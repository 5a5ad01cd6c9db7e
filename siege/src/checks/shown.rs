//! What callers and providers write, where an operator reads it: in the log, in metrics, on pages, in headers.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::open;
use crate::{
    check::{Category, Check, Seen, expect},
    process::Setup,
    provider::{
        Part, Providers, answer, delta, event, response, stream_end, stream_head, text_event,
    },
    site::Site,
    text::is_hidden,
    wire::{Client, Reply, SOON, chat, get, post, question},
};

/// One at a time: the last checks read what the first ones left.
pub(crate) const CATEGORY: Category =
    Category { name: "shown", simulated: Vec::new, setup, at_once: 1, checks };

/// A terminal's commands, overrides of the writing direction, characters without width, ends of lines.
const HIDDEN: &str = "\u{1b}[2J\u{9b}31m\u{202e}cod\u{2066}\u{200b}\u{feff}\u{2028}end\u{e0041}";

/// The same without control characters, which no name may have.
const HIDDEN_NAME: &str = "\u{202e}cod\u{2066}\u{200b}\u{feff}\u{2028}end\u{e0041}";

fn setup(providers: &Providers) -> Setup {
    for (name, _, parts) in texts() {
        providers.raw.serve(name, parts);
    }
    let names: Vec<_> = texts().into_iter().map(|(name, _, _)| name).collect();
    Setup {
        config: format!("{}[log]\nlibraries = true\n", providers.config(&names)),
        env: vec![("RUST_LOG".into(), "trace".into())],
        ..open(providers)
    }
}

/// Where a provider can write something, and whether in a stream.
#[rustfmt::skip]
fn texts() -> Vec<(&'static str, bool, Vec<Part>)> {
    let refusal = |status: &str, error: Value| vec![Part::Bytes(response(status, "", &json!({ "error": error }).to_string())), Part::Keep];
    let stream = |last: Vec<u8>| vec![Part::Bytes([stream_head(), text_event("a"), last].concat())];
    let good: Value = serde_json::from_str(&answer("Fine.")).unwrap_or_default();
    let with = |key: &str, value: &str| {
        let mut body = good.clone();
        body[key] = value.into();
        vec![Part::Bytes(response("200 OK", "", &body.to_string())), Part::Keep]
    };
    let call = json!({"tool_calls": [{"index": 0, "id": HIDDEN, "type": "function", "function": {"name": HIDDEN, "arguments": "{}"}}]});
    let page = format!("<html><title>{HIDDEN}</title></html>");
    vec![
        ("message", false, refusal("400 Bad", json!({"message": HIDDEN, "type": "t"}))),
        ("fields", false, refusal("422 What", json!({"message": "no", "type": HIDDEN, "code": HIDDEN, "param": HIDDEN}))),
        ("overloaded", false, refusal("529 Overloaded", json!({"message": HIDDEN, "type": HIDDEN}))),
        ("page", false, vec![Part::Bytes(format!("HTTP/1.1 502 Bad\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n{page}", page.len()).into_bytes())]),
        ("phrase", false, vec![Part::Bytes(format!("HTTP/1.1 500 {HIDDEN_NAME}\r\ncontent-length: 0\r\n\r\n").into_bytes())]),
        ("header", false, vec![Part::Bytes(response("400 Bad", &format!("x-request-id: {HIDDEN_NAME}\r\nretry-after: {HIDDEN_NAME}\r\nserver: {HIDDEN_NAME}\r\n"), r#"{"error":{"message":"no"}}"#)), Part::Keep]),
        ("header-of-an-answer", false, vec![Part::Bytes(response("200 OK", &format!("x-request-id: {HIDDEN_NAME}\r\nopenai-model: {HIDDEN_NAME}\r\n"), &answer("Fine."))), Part::Keep]),
        ("model", false, with("model", HIDDEN)),
        ("id", false, with("id", HIDDEN)),
        ("no-json", false, vec![Part::Bytes(response("200 OK", "", HIDDEN)), Part::Keep]),
        ("error-event", true, stream([event(&json!({"error": {"message": HIDDEN, "type": HIDDEN}}).to_string()), b"0\r\n\r\n".to_vec()].concat())),
        ("event-no-json", true, stream([event(HIDDEN), b"0\r\n\r\n".to_vec()].concat())),
        ("tool", true, stream([delta(&call), stream_end()].concat())),
        ("finish", true, stream([event(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": HIDDEN}]}).to_string()), stream_end()].concat())),
    ]
}

fn checks() -> Vec<Check> {
    let mut all = vec![Check::new("what callers are called", callers)];
    for (name, stream, _) in texts() {
        let title = format!("what a provider writes: {name}");
        all.push(Check::new(title, move |site| async move { provider(&site, name, stream).await }));
    }
    let pages = [("the status page", "/admin/status", "\\u202e"), ("the metrics", "/metrics", "")];
    for (title, path, escaped) in pages {
        let check = move |site: Arc<Site>| async move {
            let text = get(site.gateway.addr, path).await?.text();
            visible(&text, escaped)
        };
        all.push(Check::new(title, check));
    }
    all.push(Check::new("the log, with everything logged", |site| async move {
        // The log is written within 50 ms.
        sleep(Duration::from_millis(200)).await;
        visible(&site.gateway.output(), "u{202e}")
    }));
    all
}

/// Whether `text` shows `escaped`, and nothing of what it stands for.
fn visible(text: &str, escaped: &str) -> Seen {
    let hidden = |line: &&str| line.contains(is_hidden);
    let lines: Vec<_> = text.lines().filter(hidden).collect();
    let first: String = lines.first().unwrap_or(&"").chars().take(200).collect();
    let times = if escaped.is_empty() { 0 } else { text.matches(escaped).count() };
    expect(
        lines.is_empty() && (escaped.is_empty() || times > 0),
        format!("{} of {} lines, {times} times escaped {first}", lines.len(), text.lines().count()),
    )
}

/// What an answer's headers have in them; its body is in JSON, where each reader escapes for himself.
fn headers(reply: &Reply) -> String {
    reply.headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
}

async fn provider(site: &Site, name: &'static str, stream: bool) -> Seen {
    let mut client = Client::connect(site.gateway.addr).await?;
    let model = format!("raw-{name}");
    let more = "x-steadfast-max-attempts: 1\r\nx-steadfast-timeout-ms: 3000\r\n";
    let body = question(&model, &format!("{HIDDEN} {name}?"), stream);
    client.send(chat(more, &body)).await;
    let reply = client.reply(SOON).await.ok_or("no answer")?;
    let asked = site.providers.raw.asked(name);
    if asked == 0 {
        return expect(false, "the provider was not asked");
    }
    visible(&headers(&reply), "").map(|_| format!("{} in order", reply.status))
}

async fn callers(site: Arc<Site>) -> Seen {
    let hi = json!([{"role": "user", "content": "hi"}]);
    let tool =
        json!({"type": "function", "function": {"name": HIDDEN, "parameters": {"type": "object"}}});
    let history = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": HIDDEN, "type": "function", "function": {"name": HIDDEN, "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": HIDDEN, "content": HIDDEN},
    ]);
    let bodies = [
        json!({"model": format!("gpt-{HIDDEN_NAME}"), "messages": hi}),
        json!({"model": format!("gpt-{HIDDEN}"), "messages": hi}),
        json!({"model": "gpt-4o", "user": HIDDEN, "prompt_cache_key": HIDDEN, "safety_identifier": HIDDEN, "messages": hi}),
        json!({"model": "gpt-4o", "metadata": {"user_id": HIDDEN, "session_id": HIDDEN}, "messages": hi}),
        json!({"model": "gpt-4o", "messages": history, "tools": [tool]}),
        json!({"model": "gpt-4o", HIDDEN: HIDDEN, "messages": [{"role": HIDDEN, "content": "hi"}]}),
    ];
    let names = [
        "x-steadfast-task",
        "x-steadfast-session",
        "x-steadfast-agent",
        "x-request-id",
        "user-agent",
        "origin",
        "authorization",
    ];
    let lines = names.map(|name| format!("{name}: {HIDDEN_NAME}\r\n"));
    let plain = json!({"model": "gpt-4o", "messages": hi}).to_string();
    let anthropic = json!({"model": "gpt-4o", "max_tokens": 9, "metadata": {"user_id": HIDDEN}, "messages": hi});
    let mut requests: Vec<_> = bodies.iter().map(|body| chat("", &body.to_string())).collect();
    requests.extend(lines.iter().map(|line| chat(line, &plain)));
    requests.push(post("/v1/messages", "", anthropic.to_string().as_bytes()));
    for path in [
        "/v1beta/models/gpt-%E2%80%AE%1b:generateContent",
        "/%1b%5b2J%E2%80%AE",
        "/\u{202e}\u{200b}",
    ] {
        requests.push(post(path, "", br#"{"contents":[{"parts":[{"text":"hi"}]}]}"#));
    }
    let mut statuses = Vec::new();
    for request in requests {
        let mut client = Client::connect(site.gateway.addr).await?;
        client.send(request).await;
        let Some(reply) = client.reply(SOON).await else { return expect(false, "no answer") };
        statuses.push(reply.status);
        if headers(&reply).lines().any(|line| line.contains(is_hidden)) {
            return visible(&headers(&reply), "");
        }
    }
    let known = |status: &u16| matches!(status, 200 | 400 | 401 | 404);
    expect(statuses.iter().all(known), format!("{statuses:?}"))
}
