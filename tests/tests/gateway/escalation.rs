//! Requests that every provider has failed, held for an operator, over sockets.

use std::{net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use serde_json::{Value, json};
use steadfast::sim::{Answer, Dialect, Fault, FaultPlan, RawResponse, SimProvider};
use steadfast_tests::gateway::{
    DIALECTS, PROVIDER_KEY, Rig, RigBuilder, ask,
    http::{HttpRequest, OpenReply, Reply, poll_until, within},
    model, provider,
    wire_answer::{WireAnswer, refusal},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};

/// A provider that refuses its key, and shows it.
fn dead(dialect: Dialect) -> SimProvider {
    let body = json!({ "error": { "message": format!("the key {PROVIDER_KEY} is refused") } });
    let headers = [("content-type".to_owned(), "application/json".to_owned())].into();
    let refused = Fault::Status(RawResponse { status: 401, headers, body: body.to_string() });
    provider(dialect)
        .respond(move |_| Some(Answer::text(format!("{dialect} lives"))))
        .with_faults(FaultPlan::always(refused))
        .build()
}

fn all_dead(escalation: &str) -> RigBuilder {
    let config = format!("[escalation]\n{escalation}\n");
    DIALECTS.into_iter().fold(Rig::builder().config(&config), |builder, dialect| {
        let models = format!("models = {{ \"*\" = \"{}\" }}", model(dialect));
        builder.provider_with(dead(dialect), &models)
    })
}

/// Sends `question` on a task of its own.
fn send(rig: &Rig, question: HttpRequest) -> JoinHandle<Reply> {
    let addr = rig.addr;
    tokio::spawn(async move { question.send(addr).await })
}

async fn held(addr: SocketAddr) -> Vec<Value> {
    let reply = HttpRequest::get("/admin/escalations").send(addr).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["escalations"].as_array().unwrap().clone()
}

/// Waits until `count` requests are held.
async fn wait_for(rig: &Rig, count: usize) -> Vec<Value> {
    let addr = rig.addr;
    poll_until("requests are held", || async move { held(addr).await.len() == count }).await;
    held(addr).await
}

async fn decide(rig: &Rig, id: &str, decision: Value) -> Reply {
    let path = format!("/admin/escalations/{id}");
    HttpRequest::post(path, decision.to_string()).send(rig.addr).await
}

fn id(held: &Value) -> String {
    held["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_sees_why_and_chooses_a_target() {
    let rig = all_dead("enabled = true").start().await;
    let question = ask(Dialect::OpenAi, "gpt-4o", false)
        .header("x-steadfast-session", "s1")
        .header("x-steadfast-agent", "clerk");
    let call = send(&rig, question);
    let all = wait_for(&rig, 1).await;
    let shown = &all[0];
    let names: Vec<_> = DIALECTS.iter().map(ToString::to_string).collect();
    for (n, name) in names.iter().enumerate() {
        let target = &shown["targets"][n];
        assert!(target["target"].as_str().unwrap().starts_with(name.as_str()), "{target}");
        assert_eq!((&target["reason"], &target["tried"]), (&json!("auth"), &json!(1)));
        assert!(target["back_in_s"].as_f64().unwrap() > 590.0, "ten minutes: {target}");
    }
    assert_eq!((&shown["session"], &shown["agent"]), (&json!("s1"), &json!("clerk")));
    assert_eq!((&shown["model"], &shown["attempts"]), (&json!("gpt-4o"), &json!(DIALECTS.len())));
    assert_eq!((&shown["round"], &shown["prompt"]), (&json!(1), &Value::Null));
    assert!(shown["left_s"].as_f64().unwrap() > 290.0);
    assert_eq!(shown["decisions"].as_array().unwrap().len(), 6);
    assert!(shown.to_string().contains("is refused"), "the message of a provider: {shown}");
    assert!(!shown.to_string().contains(PROVIDER_KEY), "{shown}");
    assert!(!shown.to_string().contains("What is it?"), "no prompt: {shown}");

    // Its key works again, and nobody else knows.
    rig.sims[1].provider().set_faults(FaultPlan::none());
    let decided =
        decide(&rig, &id(shown), json!({"decision": "try_target", "target": "anthropic"})).await;
    assert_eq!((decided.status, decided.text()), (200, "decided\n"));
    let reply = within(call).await.unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(WireAnswer::whole(Dialect::OpenAi, &reply.body).text, "anthropic lives");
    assert!(reply.header("x-steadfast-target").unwrap().starts_with("anthropic/"));
    rig.assert_attempts(&reply, 0, "three that failed and one");
    let recovery = reply.header("x-steadfast-recovery").unwrap();
    assert!(recovery.contains("escalate.held"), "{recovery}");
    assert!(recovery.contains("escalate.decided anthropic try_target"), "{recovery}");
    assert!(held(rig.addr).await.is_empty());
    let again = decide(&rig, &id(shown), json!({"decision": "refuse"})).await;
    assert_eq!(again.status, 409, "{}", again.text());
    rig.assert_all_attempts("after a decision").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_by_hand_is_a_regular_answer_in_every_dialect() {
    let rig = all_dead("enabled = true").start().await;
    for dialect in DIALECTS {
        for stream in [false, true] {
            let case = format!("{dialect}, stream: {stream}");
            let call = send(&rig, ask(dialect, model(dialect), stream));
            let shown = wait_for(&rig, 1).await.remove(0);
            let text = "We call you back: \u{1f4de} \"soon\".";
            let answer = json!({"decision": "answer", "text": text});
            assert_eq!(decide(&rig, &id(&shown), answer).await.status, 200, "{case}");
            let reply = within(call).await.unwrap();
            assert_eq!(reply.status, 200, "{case}: {}", reply.text());
            let sent = match stream {
                true => WireAnswer::stream(dialect, &reply.body),
                false => WireAnswer::whole(dialect, &reply.body),
            };
            assert_eq!(sent.text, text, "{case}");
            let body = reply.text();
            assert!(body.contains(model(dialect)), "{case}: the model's name: {body}");
            let recovery = reply.header("x-steadfast-recovery").unwrap();
            assert!(recovery.ends_with("escalate.answered by hand"), "{case}: {recovery}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_decides_or_somebody_refuses_and_the_failure_is_as_before() {
    let without = all_dead("enabled = false").start().await;
    let with = all_dead("enabled = true\nhold_s = 1").start().await;
    let refused = all_dead("enabled = true").start().await;
    let question =
        || ask(Dialect::Anthropic, "claude-sonnet-4-5", false).header("x-request-id", "same");
    let bare = question().send(without.addr).await;
    let expired = question().send(with.addr).await;
    let call = send(&refused, question());
    let shown = wait_for(&refused, 1).await.remove(0);
    assert_eq!(decide(&refused, &id(&shown), json!({"decision": "refuse"})).await.status, 200);
    for (case, reply) in [("expired", expired), ("refused", within(call).await.unwrap())] {
        assert_eq!(reply.status, bare.status, "{case}");
        assert_eq!(reply.text(), bare.text(), "{case}");
        for header in
            ["x-steadfast-reason", "x-steadfast-attempts", "x-should-retry", "x-steadfast-target"]
        {
            assert_eq!(reply.header(header), bare.header(header), "{case}: {header}");
        }
    }
    refusal(Dialect::Anthropic, 503, &bare);
    let status = HttpRequest::get("/admin/status").send(with.addr).await.json();
    assert_eq!(status["escalation"]["expired"], json!(1));
    let status = HttpRequest::get("/admin/status").send(refused.addr).await.json();
    assert_eq!(status["escalation"]["decided"]["refuse"], json!(1));
    let status = HttpRequest::get("/admin/status").send(without.addr).await.json();
    assert_eq!(status["escalation"]["total"], json!(0), "off by default");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bounded_number_is_held_and_a_caller_that_hangs_up_is_not() {
    let rig = all_dead("enabled = true\nmax_held = 2").start().await;
    let question = || ask(Dialect::OpenAi, "gpt-4o", false);
    let leaves = question().start(rig.addr).await;
    wait_for(&rig, 1).await;
    let call = send(&rig, question());
    wait_for(&rig, 2).await;
    let one_more = question().send(rig.addr).await;
    assert_eq!(one_more.status, 503);
    let recovery = one_more.header("x-steadfast-recovery").unwrap();
    assert!(recovery.ends_with("escalate.overflow max_held"), "{recovery}");
    let metrics = HttpRequest::get("/metrics").send(rig.addr).await;
    let metrics = metrics.text();
    assert!(metrics.contains("\nsteadfast_escalations_held 2\n"), "{metrics}");
    drop(leaves);
    let shown = wait_for(&rig, 1).await.remove(0);
    // What it is now decided about is the other one.
    decide(&rig, &id(&shown), json!({"decision": "refuse"})).await;
    assert_eq!(within(call).await.unwrap().status, 503);
    let metrics = HttpRequest::get("/metrics").send(rig.addr).await;
    let metrics = metrics.text();
    assert!(metrics.contains("\nsteadfast_escalations_held 0\n"));
    let status = HttpRequest::get("/admin/status").send(rig.addr).await.json();
    let done = &status["escalation"];
    assert_eq!((&done["left"], &done["overflowed"]), (&json!(1), &json!(1)), "{done}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_be_decided_is_refused_and_leaves_the_request_held() {
    let rig = all_dead("enabled = true").start().await;
    let call = send(&rig, ask(Dialect::OpenAi, "gpt-4o", false));
    let shown = wait_for(&rig, 1).await.remove(0);
    let id = id(&shown);
    for (id, body, status, says) in [
        ("x", r#"{"decision":"refuse"}"#, 404, "is no id"),
        ("00000000-1", r#"{"decision":"refuse"}"#, 404, "no request has the id"),
        (&*id, "", 400, "a decision is like"),
        (&*id, r#"{"decision":"cry"}"#, 400, "unknown variant `cry`"),
        (&*id, r#"{"decision":"try_target"}"#, 400, "missing field `target`"),
        (&*id, r#"{"decision":"try_target","target":"nobody"}"#, 400, "`nobody` is no target"),
        (&*id, r#"{"decision":"answer","text":""}"#, 400, "has to have 1 to"),
        (&*id, r#"{"decision":"answer","text":"x","to":"y"}"#, 400, "unknown field `to`"),
    ] {
        let path = format!("/admin/escalations/{id}");
        let reply = HttpRequest::post(path, body).send(rig.addr).await;
        assert_eq!(reply.status, status, "{body}: {}", reply.text());
        assert!(reply.text().contains(says), "{body}: {}", reply.text());
    }
    assert_eq!(held(rig.addr).await.len(), 1);
    let large = format!(r#"{{"decision":"answer","text":"{}"}}"#, "x".repeat(3 << 20));
    let path = format!("/admin/escalations/{id}");
    let reply = HttpRequest::post(path, large).open(rig.addr).await;
    assert_eq!(reply.status, 413);
    // A cooldown that is ended is ended for all: the provider is asked again.
    rig.sims[0].provider().set_faults(FaultPlan::none());
    let target = &shown["targets"][0]["target"];
    let reset = json!({"decision": "reset_cooldown", "target": target});
    assert_eq!(decide(&rig, &id, reset).await.status, 200);
    let reply = within(call).await.unwrap();
    assert_eq!(WireAnswer::whole(Dialect::OpenAi, &reply.body).text, "openai lives");
    let next = ask(Dialect::OpenAi, "gpt-4o", false).send(rig.addr).await;
    assert_eq!(next.status, 200);
    assert_eq!(next.header("x-steadfast-attempts"), Some("1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_operators_see_and_decide() {
    let builder = Rig::builder();
    let (acme, admin) = (
        builder.secret("acme", "gw-acme-secret-0417"),
        builder.secret("admin", "gw-admin-secret-7731"),
    );
    let rig = builder
        .server(&format!("admin_key = \"{admin}\""))
        .config(&format!(
            "[escalation]\nenabled = true\n[[tenants]]\nname = \"acme\"\nkeys = [\"{acme}\"]\n"
        ))
        .provider(dead(Dialect::OpenAi))
        .start()
        .await;
    let question = ask(Dialect::OpenAi, "gpt-4o", false).header("x-api-key", "gw-acme-secret-0417");
    let call = send(&rig, question);
    let list = || HttpRequest::get("/admin/escalations");
    let as_admin = |request: HttpRequest| request.header("x-api-key", "gw-admin-secret-7731");
    let addr = rig.addr;
    poll_until("the request is held", || async move {
        let reply = as_admin(list()).send(addr).await;
        !reply.json()["escalations"].as_array().unwrap().is_empty()
    })
    .await;
    let shown = as_admin(list()).send(addr).await.json()["escalations"][0].clone();
    assert_eq!(shown["tenant"], json!("acme"));
    let path = format!("/admin/escalations/{}", id(&shown));
    let refuse = || HttpRequest::post(path.clone(), r#"{"decision":"refuse"}"#);
    for request in [list(), refuse()] {
        assert_eq!(request.clone().send(addr).await.status, 401);
        let tenant = request.header("x-api-key", "gw-acme-secret-0417");
        assert_eq!(tenant.send(addr).await.status, 401, "a tenant is no operator");
    }
    assert!(!call.is_finished());
    assert_eq!(as_admin(refuse()).send(addr).await.status, 200);
    assert_eq!(within(call).await.unwrap().status, 503);
}

/// Takes notices; answers the first one with 500.
async fn receiver() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let notices = Arc::<Mutex<Vec<String>>>::default();
    let taken = notices.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let taken = taken.clone();
            tokio::spawn(async move {
                let mut buffer = Vec::new();
                let whole = loop {
                    if stream.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
                        return;
                    }
                    let text = String::from_utf8_lossy(&buffer).into_owned();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let length =
                        head.lines().find_map(|line| line.strip_prefix("content-length: "));
                    if body.len() >= length.unwrap().parse().unwrap() {
                        break text;
                    }
                };
                let status = if taken.lock().is_empty() { "500 Broken" } else { "204 Taken" };
                taken.lock().push(whole);
                let reply =
                    format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                let reply = if status.starts_with("204") {
                    "HTTP/1.1 204 Taken\r\nconnection: close\r\n\r\n".to_owned()
                } else {
                    reply
                };
                let _ = stream.write_all(reply.as_bytes()).await;
            });
        }
    });
    (addr, notices)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_webhook_gets_one_notice_for_each_request_without_secrets() {
    let (addr, notices) = receiver().await;
    let builder = all_dead("");
    let address = builder.secret("hook", &format!("http://{addr}/hooks/T0-secret-path"));
    let rig = builder
        .config(&format!("[escalation]\nenabled = true\nwebhook = \"{address}\"\n"))
        .start()
        .await;
    let call = send(&rig, ask(Dialect::OpenAi, "gpt-4o", false));
    let shown = wait_for(&rig, 1).await.remove(0);
    // The first try is answered with 500; the call does not wait for it.
    let count = || async { notices.lock().len() == 2 };
    poll_until("the notice is taken", count).await;
    let again = json!({"decision": "try_again"});
    assert_eq!(decide(&rig, &id(&shown), again).await.status, 200);
    let addr = rig.addr;
    let second =
        || async move { held(addr).await.first().is_some_and(|it| it["round"] == json!(2)) };
    poll_until("it is held again", second).await;
    assert_eq!(decide(&rig, &id(&shown), json!({"decision": "refuse"})).await.status, 200);
    assert_eq!(within(call).await.unwrap().status, 503);
    let all = notices.lock().clone();
    assert_eq!(all.len(), 2, "none for the second round");
    let (head, body) = all[1].split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /hooks/T0-secret-path HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("content-type: application/json"), "{head}");
    let notice: Value = serde_json::from_str(body).unwrap();
    assert_eq!(notice["event"], json!("held"));
    assert_eq!(notice["request"]["id"], shown["id"]);
    let text = notice["text"].as_str().unwrap();
    assert!(text.contains("gpt-4o") && text.contains(&id(&shown)), "{text}");
    assert!(body.contains("is refused") && !body.contains(PROVIDER_KEY), "{body}");
    assert!(!body.contains("What is it?"), "{body}");
    let status = HttpRequest::get("/admin/status").send(rig.addr).await;
    assert!(!status.text().contains("T0-secret-path"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_keeps_what_is_held_and_a_streaming_caller_waits_too() {
    let rig = all_dead("enabled = true").start().await;
    let addr = rig.addr;
    let streamed = ask(Dialect::Gemini, "gemini-2.5-pro", true);
    let call = tokio::spawn(async move { OpenReply::rest(streamed.open(addr).await).await });
    let before = wait_for(&rig, 1).await.remove(0);
    rig.rewrite(&rig.config.replace("enabled = true", "enabled = true\nmax_rounds = 1"));
    assert_eq!(HttpRequest::post("/admin/reload", "").send(addr).await.status, 200);
    let after = held(addr).await.remove(0);
    assert_eq!(after["id"], before["id"]);
    rig.sims[2].provider().set_faults(FaultPlan::none());
    let target = json!({"decision": "try_target", "target": "gemini"});
    assert_eq!(decide(&rig, &id(&after), target).await.status, 200);
    let reply = within(call).await.unwrap();
    assert_eq!(WireAnswer::stream(Dialect::Gemini, &reply.body).text, "gemini lives");
}
