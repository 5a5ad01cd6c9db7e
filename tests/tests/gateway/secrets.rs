//! No secret leaves the gateway, whatever it is, wherever a provider echoes it and however it is written; and what
//! stands around it does.

use std::{fmt::Write as _, time::Duration};

use serde_json::{Value, json};
use steadfast::sim::{Dialect, Fault, FaultPlan, Latency, RawResponse, SimProvider};
use steadfast_tests::gateway::{
    Rig, ask,
    http::{HttpRequest, Reply, poll_until},
    in_process::InProcess,
    model, pairs,
};
use steadfast_tests::seeds::number;

const MASK: &str = "[redacted]";

/// The operator's key, and its hash.
const ADMIN: &str = "the-operators-key";
const ADMIN_HASH: &str = "7e3dbba129176e4c8d2ac647a5c903bd0034b338a43566e594f61a873d8bd1d7";

/// Each failure reaches its caller at once.
const ONCE: &str = "[retry]\nretries = 0\n[failover]\nattempts = 1\n[resume]\nenabled = false\n[cooldown]\nauth = 0\n";

/// A gateway in front of one provider of this dialect, with so many credentials of these secrets, and that provider.
fn gateway(speaks: Dialect, secrets: &[String]) -> (InProcess, SimProvider) {
    let sim = SimProvider::builder(speaks).build();
    let names: Vec<_> = (0..secrets.len()).map(|n| format!("\"env:KEY_{n}\"")).collect();
    let text = format!(
        "[server]\nauth = \"none\"\nadmin_key = \"sha256:{ADMIN_HASH}\"\n{ONCE}[[providers]]\nname = \"{}\"\ndialect = \"{speaks}\"\n\
         credentials = [{}]\n",
        sim.name(),
        names.join(", "),
    );
    let number = |name: &str| name.trim_start_matches("KEY_").parse::<usize>().unwrap();
    let sims = [sim.clone()];
    (InProcess::with_secrets(&text, &sims, |name| &secrets[number(name)]), sim)
}

/// A refusal with this message, as a provider of the dialect writes it.
fn error(dialect: Dialect, status: u16, message: &str) -> String {
    let error = match dialect {
        Dialect::Anthropic => json!({"type": "error", "error": {
            "type": if status == 400 { "invalid_request_error" } else { "api_error" },
            "message": message,
        }}),
        Dialect::Gemini => json!({"error": {
            "code": status,
            "message": message,
            "status": if status == 400 { "INVALID_ARGUMENT" } else { "INTERNAL" },
        }}),
        _ => json!({"error": {
            "message": message,
            "type": if status == 400 { "invalid_request_error" } else { "server_error" },
            "param": null,
            "code": null,
        }}),
    };
    error.to_string()
}

/// A stream of the dialect that begins well and reports `error` after its first content.
fn broken_stream(dialect: Dialect, error: &str) -> RawResponse {
    let body = match dialect {
        Dialect::Anthropic => format!(
            "event: message_start\ndata: {}\n\nevent: content_block_start\ndata: {}\n\n\
             event: content_block_delta\ndata: {}\n\nevent: error\ndata: {error}\n\n",
            json!({"type": "message_start", "message": {
                "id": "msg_1", "type": "message", "role": "assistant", "content": [],
                "model": model(dialect), "stop_reason": null, "stop_sequence": null,
                "usage": {"input_tokens": 3, "output_tokens": 1},
            }}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Once"}}),
        ),
        Dialect::Responses => {
            let response = |status: &str| json!({"id": "resp_1", "object": "response", "status": status, "output": []});
            let mut failed = response("failed");
            failed["error"] = serde_json::from_str::<Value>(error).unwrap()["error"].clone();
            let message =
                json!({"id": "msg_1", "type": "message", "role": "assistant", "content": []});
            let events = [
                json!({"type": "response.created", "response": response("in_progress")}),
                json!({"type": "response.output_item.added", "output_index": 0, "item": message}),
                json!({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0,
                    "content_index": 0, "delta": "Once"}),
                json!({"type": "response.failed", "response": failed}),
            ];
            let events = events.iter().enumerate().map(|(sequence, event)| {
                let mut event = event.clone();
                event["sequence_number"] = json!(sequence);
                format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())
            });
            events.collect()
        }
        Dialect::Gemini => format!(
            "data: {}\n\ndata: {error}\n\n",
            json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "Once"}]}, "index": 0}]}),
        ),
        _ => format!(
            "data: {}\n\ndata: {error}\n\n",
            json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": model(dialect),
                "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Once"}}]}),
        ),
    };
    let headers = [("content-type".to_owned(), "text/event-stream".to_owned())].into();
    RawResponse { status: 200, headers, body }
}

fn raw(status: u16, body: String) -> RawResponse {
    RawResponse { status, headers: [].into(), body }
}

/// Everything that could be seen of `reply`, as bytes of text.
fn seen(reply: &Reply) -> String {
    let headers = reply.headers.iter().map(|(name, value)| format!("{name}: {value}\n"));
    headers.collect::<String>() + reply.text()
}

/// Asserts that `secret` is not in `text`: neither as it is nor as JSON or an address would have it.
fn assert_none(text: &str, secret: &str, case: &str) {
    let json = json!(secret).to_string();
    let json = json[1..json.len() - 1].to_owned();
    let ascii = json.chars().fold(String::new(), |mut all, c| {
        if c.is_ascii() {
            all.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(all, "\\u{unit:04x}");
            }
        }
        all
    });
    for form in [secret.to_owned(), json, ascii, percent(secret)] {
        assert!(!text.contains(&form), "{case}: {secret:?} as {form:?} in {text}");
    }
}

fn percent(secret: &str) -> String {
    secret.bytes().fold(String::new(), |mut all, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            all.push(byte.into());
        } else {
            let _ = write!(all, "%{byte:02X}");
        }
        all
    })
}

#[tokio::test(start_paused = true)]
async fn what_a_provider_echoes_is_masked_and_nothing_else() {
    let secrets = [
        "plain-0123456789".to_owned(),
        "quo\"te\\and/ slash <&>".to_owned(),
        "sk-0123456789abcdefghij/with:more+of=it".to_owned(),
        "schl\u{fc}ssel-\u{1f980}-\u{65e5}\u{672c}".to_owned(),
        "correct horse  battery staple".to_owned(),
    ];
    for (caller, speaks) in pairs() {
        let (gateway, sim) = gateway(speaks, &secrets);
        for secret in &secrets {
            // Where it stands in the message, which is cut at 1,024 bytes for whoever does not get it word for word.
            for before in [20, 1_020] {
                let filled = "x ".repeat(before / 2);
                let message = |secret: &str| format!("{filled}({secret}) is wrong");
                for status in [400, 401, 500] {
                    let case = format!("{caller} -> {speaks}, {status}");
                    let body = error(speaks, status, &message(secret));
                    let mut fault = raw(status, body);
                    if secret.is_ascii() {
                        fault.headers.insert("x-request-id".to_owned(), secret.clone());
                        fault.headers.insert("x-ratelimit-key".to_owned(), secret.clone());
                    }
                    sim.set_faults(FaultPlan::always(Fault::Status(fault)));
                    for stream in [false, true] {
                        let reply = gateway.send(&ask(caller, model(speaks), stream)).await;
                        assert_ne!(reply.status, 200, "{case}");
                        assert_none(&seen(&reply), secret, &case);
                        if status == 400 && caller == speaks {
                            assert_eq!(reply.text(), error(speaks, 400, &message(MASK)), "{case}");
                        } else if before == 20 {
                            let text = reply.text();
                            assert!(text.contains(&message(MASK)), "{case}, {secret}: {text}");
                        }
                    }
                }
                let case = format!("{caller} -> {speaks}, event");
                let event = error(speaks, 400, &message(secret));
                let fault = broken_stream(speaks, &event);
                sim.set_faults(FaultPlan::always(Fault::Status(fault)));
                let reply = gateway.send(&ask(caller, model(speaks), true)).await;
                let text = reply.text();
                assert!(reply.status == 200 && text.contains("Once"), "{case}: {text}");
                assert_none(&seen(&reply), secret, &case);
                if before == 20 {
                    assert!(text.contains(&message(MASK)), "{case}, {secret}: {text}");
                }
            }
            for path in ["/admin/status", "/metrics"] {
                let reply = gateway.send(&HttpRequest::get(path).header("x-api-key", ADMIN)).await;
                assert_eq!(reply.status, 200, "{path}");
                assert_none(&seen(&reply), secret, path);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_model_writes_is_its_callers() {
    for (caller, speaks) in pairs() {
        let secret = "plain-0123456789".to_owned();
        let (gateway, sim) = gateway(speaks, std::slice::from_ref(&secret));
        let answer = steadfast::sim::Answer::text(format!("The key is {secret}."));
        sim.set_faults(FaultPlan::always(Fault::Answer(Box::new(answer))));
        let reply = gateway.send(&ask(caller, model(speaks), false)).await;
        assert!(reply.status == 200 && reply.text().contains(&secret), "{}", reply.text());
    }
}

#[tokio::test(start_paused = true)]
async fn a_callers_own_key_is_masked_in_what_it_gets() {
    let (gateway, sim) = gateway(Dialect::OpenAi, &["plain-0123456789".to_owned()]);
    let key = "sixteen-bytes-or";
    let status = |status, message: &str| {
        sim.set_faults(FaultPlan::always(Fault::Status(raw(
            status,
            error(Dialect::OpenAi, status, message),
        ))));
    };
    for (header, value) in [
        ("authorization", format!("Bearer {key}")),
        ("x-api-key", key.to_owned()),
        ("x-goog-api-key", key.to_owned()),
        ("api-key", key.to_owned()),
    ] {
        for caller in [Dialect::OpenAi, Dialect::Anthropic, Dialect::Gemini] {
            let ask = ask(caller, "gpt-4o", false).header(header, &value);
            for code in [400, 500] {
                status(code, &format!("the prompt says {key} and a test"));
                let reply = gateway.send(&ask).await;
                let text = seen(&reply);
                assert!(text.contains("the prompt says [redacted] and a test"), "{text}");
                assert_none(&text, key, header);
            }
        }
        // As the name of a model, of an address, and as the id of a request.
        let named = ask(Dialect::OpenAi, key, false).header(header, &value);
        status(404, &format!("no model {key}"));
        let nowhere = HttpRequest::get(format!("/{key}")).header(header, &value);
        for request in [named, nowhere] {
            let reply = gateway.send(&request.header("x-request-id", key)).await;
            assert_eq!(reply.status, 404);
            assert_none(&seen(&reply), key, header);
        }
    }
    let short = ask(Dialect::OpenAi, "gpt-4o", false).header("x-api-key", "test");
    status(400, "this is a test");
    assert!(seen(&gateway.send(&short).await).contains("this is a test"));
}

/// How many secrets, unless `STEADFAST_SECRETS` has another number: ten thousand take two minutes, nearly all of it to build
/// unoptimised searches.
const SECRETS: u64 = 1_000;

/// How many of them one gateway has.
const AT_ONCE: usize = 100;

const WORDS: [&str; 12] = [
    "correct",
    "horse",
    "battery",
    "staple",
    "password",
    "letmein",
    "hunter",
    "secret",
    "api",
    "key",
    "production",
    "do-not-share",
];

/// A secret of any shape, of 8 to 200 bytes.
fn random(rng: &mut fastrand::Rng) -> String {
    let length = if rng.u8(..) < 40 { rng.usize(8..=200) } else { rng.usize(8..=48) };
    let mut secret = String::new();
    let shape = rng.u8(..5);
    while secret.len() < length {
        let c = match shape {
            0 => rng.alphanumeric(),
            1 => char::from(*rng.choice(b"ABCXYZabcxyz0189+/=").unwrap()),
            2 => rng.char(' '..='~'),
            3 => *rng
                .choice(&['\u{e9}', '\u{df}', '\u{65e5}', '\u{1f980}', '"', '\\', 'a', '%'])
                .unwrap(),
            _ => {
                secret.push_str(rng.choice(WORDS).unwrap());
                let number = rng.u32(..);
                let _ = write!(secret, " {number}");
                '-'
            }
        };
        secret.push(c);
    }
    let mut end = length;
    while !secret.is_char_boundary(end) {
        end -= 1;
    }
    secret.truncate(end);
    // As a file is read.
    let secret = secret.trim().to_owned();
    if secret.len() < 8 { random(rng) } else { secret }
}

/// How somebody may write a secret into a text.
fn written(secret: &str, rng: &mut fastrand::Rng) -> String {
    if rng.u8(..4) == 0 { percent(secret) } else { secret.to_owned() }
}

#[tokio::test(start_paused = true)]
async fn random_secrets_of_any_shape_are_masked() {
    let secrets = usize::try_from(number("STEADFAST_SECRETS").unwrap_or(SECRETS)).unwrap();
    let mut rng = fastrand::Rng::with_seed(12);
    let pairs: Vec<_> = pairs().collect();
    for round in 0..secrets / AT_ONCE {
        let secrets: Vec<_> = (0..AT_ONCE).map(|_| random(&mut rng)).collect();
        let (caller, speaks) = pairs[round % pairs.len()];
        let case = format!("round {round}, {caller} -> {speaks}");
        let (gateway, sim) = gateway(speaks, &secrets);
        let (mut message, mut expected) = (String::new(), String::new());
        for (n, secret) in secrets.iter().enumerate() {
            let separator = rng.choice(["<", "\n", " \" ", " \\ ", "\u{e9}", ": "]).unwrap();
            let echoed = written(secret, &mut rng);
            let _ = write!(message, "{n}{separator}{echoed}{separator}");
            let _ = write!(expected, "{n}{separator}{MASK}{separator}");
        }
        let mut replies = Vec::new();
        for status in [400, 401, 500] {
            let mut fault = raw(status, error(speaks, status, &message));
            fault.headers.insert(
                "request-id".to_owned(),
                secrets[round % AT_ONCE].replace(|c: char| !c.is_ascii(), "?"),
            );
            sim.set_faults(FaultPlan::always(Fault::Status(fault)));
            let reply = gateway.send(&ask(caller, model(speaks), false)).await;
            if status == 400 && caller == speaks {
                assert_eq!(reply.text(), error(speaks, 400, &expected), "{case}");
            }
            replies.push(reply);
        }
        let fault = broken_stream(speaks, &error(speaks, 400, &message));
        sim.set_faults(FaultPlan::always(Fault::Status(fault)));
        let reply = gateway.send(&ask(caller, model(speaks), true)).await;
        if caller == speaks {
            let own = broken_stream(speaks, &error(speaks, 400, &expected)).body;
            assert!(reply.text().ends_with(own.rsplit_once("data: ").unwrap().1), "{case}");
        }
        replies.push(reply);
        for path in ["/admin/status", "/metrics"] {
            replies.push(gateway.send(&HttpRequest::get(path).header("x-api-key", ADMIN)).await);
        }
        for reply in &replies {
            let seen = seen(reply);
            for secret in &secrets {
                assert_none(&seen, secret, &case);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_was_rotated_is_masked_as_long_as_it_may_come_back() {
    let (old, newer, newest) = ("the-old-key-0123", "the-newer-key-45", "the-newest-key-6");
    let latency = Latency { headers: Duration::from_millis(800), ..Latency::default() };
    let echo = error(Dialect::OpenAi, 400, &format!("{old} {newer} {newest}"));
    let fault = Fault::Status(raw(400, echo));
    let sim = SimProvider::builder(Dialect::OpenAi)
        .with_latency(latency)
        .with_faults(FaultPlan::always(fault))
        .build();
    let rig = Rig::builder().provider(sim).config(ONCE).start().await;
    rig.rotate("provider", old);
    let reload = HttpRequest::post("/admin/reload", "");
    assert_eq!(reload.send(rig.addr).await.status, 200);
    let asks = || ask(Dialect::OpenAi, "gpt-4o", false);
    let under_way = tokio::spawn({
        let (asks, addr) = (asks(), rig.addr);
        async move { asks.send(addr).await }
    });
    poll_until("it is asked", || async { rig.asked() == 1 }).await;
    for key in [newer, newest] {
        rig.rotate("provider", key);
        assert_eq!(reload.send(rig.addr).await.status, 200);
    }
    // By the key before the last two reloads, and by the last one.
    let before = under_way.await.unwrap();
    assert!(before.text().contains(&format!("{MASK} {newer} {newest}")), "{}", before.text());
    let after = asks().send(rig.addr).await;
    assert!(after.text().contains(&format!("{old} {MASK} {MASK}")), "{}", after.text());
    let status = HttpRequest::get("/admin/status").send(rig.addr).await;
    assert_none(&seen(&status), newest, "/admin/status");
}
