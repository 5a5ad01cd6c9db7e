//! The dashboard and what operators do there, through the whole gateway: who is let in, what it is fed with and how
//! often, and that each action does what it says.

use std::{sync::Arc, time::Duration};

use http_body_util::Full;
use serde_json::{Value, json};
use steadfast::{
    Failure, Message, Reason,
    deliver::{
        Announcement, DeadLetters, DeliveryFolder, DeliveryLedger, LedgerPolicy, LetterQueuePolicy,
    },
    session::SessionStore,
    sim::{Dialect, ErrorKind, Fault, FaultPlan, SimProvider},
};
use steadfast_tests::gateway::{
    ask,
    http::{HttpRequest, Reply},
    in_process::InProcess,
    provider, rich_answer,
};
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt as _;
use tower::ServiceExt as _;

/// The admin key, a tenant's, and their hashes.
const ADMIN: &str = "an-admin-key";
const ADMIN_HASH: &str = "sha256:6060cd3705fe21fdbaa921b8e680e599e1ac10a7c36e76adacd1f15e325e8465";
const TENANT: &str = "example-key-one";
const TENANT_HASH: &str = "sha256:fb70a93b69c9577a98c3bfa0924ccdc33cbca2988dd72a5ebee6512c0551e6fa";

/// Where the page is from.
const ORIGIN: &str = "http://127.0.0.1";

fn sims() -> [SimProvider; 2] {
    [Dialect::OpenAi, Dialect::Anthropic]
        .map(|dialect| provider(dialect).respond(|_| Some(rich_answer())).build())
}

fn gateway(sims: &[SimProvider], more: &str) -> InProcess {
    let text = format!(
        "{more}\n[server]\nadmin_key = '{ADMIN_HASH}'\n[[tenants]]\nname = 'acme'\nkeys = ['{TENANT_HASH}']"
    );
    InProcess::with_settings(&text, sims)
}

/// A browser with a session.
struct Browser<'g> {
    gateway: &'g InProcess,
    cookie: String,
    token: String,
}

fn login(key: &str) -> HttpRequest {
    HttpRequest::post("/dashboard/session", json!({ "key": key }).to_string())
        .header("origin", ORIGIN)
}

impl<'g> Browser<'g> {
    async fn new(gateway: &'g InProcess) -> Self {
        let reply = gateway.send(&login(ADMIN)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let cookie = reply.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        let token = reply.json()["token"].as_str().unwrap().to_owned();
        Self { gateway, cookie, token }
    }

    fn get(&self, path: &str) -> HttpRequest {
        HttpRequest::get(path)
            .header("cookie", &self.cookie)
            .header("sec-fetch-site", "same-origin")
    }

    /// Without its token.
    fn forged(&self, path: &str) -> HttpRequest {
        HttpRequest::post(path, "").header("cookie", &self.cookie).header("origin", ORIGIN)
    }

    async fn post(&self, path: &str) -> Reply {
        let request = self.forged(path).header("x-steadfast-token", &self.token);
        self.gateway.send(&request).await
    }

    async fn status(&self) -> Value {
        let reply = self.gateway.send(&self.get("/admin/status")).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    }
}

async fn question(gateway: &InProcess) -> Reply {
    gateway.send(&ask(Dialect::OpenAi, "gpt-4o", false).header("x-api-key", TENANT)).await
}

/// Who has answered.
async fn answered_by(gateway: &InProcess) -> String {
    let reply = question(gateway).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let target = reply.header("x-steadfast-target").unwrap();
    target.split('/').next().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn the_admin_key_begins_a_session_and_nothing_else_does() {
    let gateway = gateway(&sims(), "");
    let status = |request: HttpRequest| {
        let gateway = &gateway;
        async move { gateway.send(&request).await.status }
    };
    assert_eq!(status(login("wrong")).await, 401);
    assert_eq!(status(login(TENANT)).await, 401, "a tenant's key opens nothing");
    let foreign = HttpRequest::post("/dashboard/session", json!({ "key": ADMIN }).to_string());
    assert_eq!(status(foreign.clone()).await, 403, "nobody knows what page it is from");
    assert_eq!(status(foreign.clone().header("origin", "http://evil.example")).await, 403);
    let site = foreign.header("origin", ORIGIN).header("sec-fetch-site", "cross-site");
    assert_eq!(status(site).await, 403);
    for body in ["", "7", "{\"key\":1}", "{\"other\":\"x\"}", &"x".repeat(10_000)] {
        let request = HttpRequest::post("/dashboard/session", body).header("origin", ORIGIN);
        assert_eq!(status(request).await, 400, "{body:.20}");
    }

    let reply = gateway.send(&login(ADMIN)).await;
    let cookie = reply.header("set-cookie").unwrap();
    assert!(cookie.contains("; HttpOnly; SameSite=Strict") && !cookie.contains(ADMIN), "{cookie}");
    let browser = Browser::new(&gateway).await;
    for path in ["/admin/status", "/admin/requests", "/admin/spend", "/admin/timeline"] {
        assert_eq!(status(browser.get(path)).await, 200, "{path}");
        assert_eq!(status(HttpRequest::get(path)).await, 401, "{path}");
        let other = browser.get(path).header("origin", "http://evil.example");
        assert_eq!(status(other).await, 401, "{path}");
        assert_eq!(status(HttpRequest::get(path).header("x-api-key", TENANT)).await, 401);
    }
    let session = gateway.send(&browser.get("/dashboard/session")).await.json();
    assert_eq!(session["token"], *browser.token);
    let none = gateway.send(&HttpRequest::get("/dashboard/session")).await.json();
    assert_eq!((&none["token"], &none["needs_key"]), (&Value::Null, &json!(true)));

    let out = browser.forged("/dashboard/session").method("DELETE");
    let reply = gateway.send(&out).await;
    assert!(reply.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(status(HttpRequest::get("/dashboard/feed")).await, 401);
    // By now one has been tried too often.
    for _ in 0..10 {
        status(login("wrong")).await;
    }
    assert_eq!(status(login(ADMIN)).await, 429);
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(status(login(ADMIN)).await, 200);
}

#[tokio::test(start_paused = true)]
async fn without_the_token_of_the_page_nothing_is_done() {
    let gateway = gateway(&sims(), "");
    let browser = Browser::new(&gateway).await;
    for path in [
        "/admin/reload",
        "/admin/targets/out?target=openai",
        "/admin/guard/extend?task=a",
        "/admin/compaction/forget?model=a",
        "/admin/letters/drain",
        "/admin/escalations/e1",
    ] {
        assert_eq!(gateway.send(&browser.forged(path)).await.status, 401, "{path}");
        let wrong = browser.forged(path).header("x-steadfast-token", "AAAA");
        assert_eq!(gateway.send(&wrong).await.status, 401, "{path}");
        // Of another session, and from another page.
        let other = Browser::new(&gateway).await;
        let wrong = browser.forged(path).header("x-steadfast-token", &other.token);
        assert_eq!(gateway.send(&wrong).await.status, 401, "{path}");
        assert_ne!(browser.post(path).await.status, 401, "{path}");
    }
    let foreign = HttpRequest::post("/admin/reload", "")
        .header("cookie", &browser.cookie)
        .header("x-steadfast-token", &browser.token)
        .header("origin", "http://evil.example");
    assert_eq!(gateway.send(&foreign).await.status, 401);
    // A program needs no page.
    let key = HttpRequest::post("/admin/targets/in?target=openai", "").header("x-api-key", ADMIN);
    assert_eq!(gateway.send(&key).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn the_page_loads_nothing_from_elsewhere_and_is_in_no_frame() {
    let gateway = gateway(&sims(), "");
    for (path, content_type) in [
        ("/dashboard", "text/html"),
        ("/dashboard/app.js", "text/javascript"),
        ("/dashboard/app.css", "text/css"),
        ("/dashboard/session", "application/json"),
    ] {
        let reply = gateway.send(&HttpRequest::get(path)).await;
        assert_eq!(reply.status, 200, "{path}");
        assert!(reply.header("content-type").unwrap().starts_with(content_type), "{path}");
        let policy = reply.header("content-security-policy").unwrap();
        for part in ["default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'"] {
            assert!(policy.contains(part) && !policy.contains("unsafe"), "{path}: {policy}");
        }
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        if let Some(tag) = reply.header("etag") {
            let again = HttpRequest::get(path).header("if-none-match", tag);
            let again = gateway.send(&again).await;
            assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
        } else {
            assert_eq!(reply.header("cache-control"), Some("no-store"));
        }
        let text = reply.text();
        assert!(!text.contains("src=\"http") && !text.contains("href=\"http"), "{path}");
    }
}

/// The frames of a feed, as they come.
pub(crate) async fn feed(
    gateway: &InProcess,
    request: &HttpRequest,
) -> impl tokio_stream::Stream<Item = String> + use<> {
    let request = request.to_http().map(Full::from);
    let response = gateway.app.router().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let pieces = axum::body::Body::new(response.into_body()).into_data_stream();
    Box::pin(pieces.map(|piece| String::from_utf8(piece.unwrap().to_vec()).unwrap()))
}

/// What a frame says.
pub(crate) fn data(frame: &str) -> Value {
    let text = frame.strip_prefix("data: ").unwrap();
    serde_json::from_str(text.strip_suffix("\n\n").unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn however_many_calls_there_are_a_feed_has_three_frames_a_second_and_ends_with_the_gateway() {
    let gateway = Arc::new(gateway(&sims(), ""));
    let browser = Browser::new(&gateway).await;
    let mut one = feed(&gateway, &browser.get("/dashboard/feed")).await;
    let mut other = feed(&gateway, &browser.get("/dashboard/feed")).await;
    let first = data(&one.next().await.unwrap());
    assert_eq!((&first["remembered"], &first["status"]["attention"]), (&json!(0), &json!([])));
    let calls = {
        let gateway = gateway.clone();
        tokio::spawn(async move {
            for _ in 0..1_000 {
                question(&gateway).await;
                sleep(Duration::from_millis(10)).await;
            }
        })
    };
    let (mut frames, began, mut last) = (0, Instant::now(), first);
    while let Ok(frame) = timeout(Duration::from_secs(1), one.next()).await {
        frames += 1;
        last = data(&frame.unwrap());
        if began.elapsed() > Duration::from_secs(10) {
            break;
        }
    }
    assert!((10..=28).contains(&frames), "{frames}");
    assert!(
        last["remembered"].as_u64().unwrap() > 500
            && last["last_5_min"]["ok"] == last["remembered"]
    );
    assert!(last["requests"].as_array().unwrap().len() <= 80);
    let traffic = &last["status"]["traffic"][0];
    assert_eq!((&traffic["target"], &traffic["share"]), (&json!("openai"), &json!(1.0)));
    calls.abort();
    // The one that has read nothing all the while gets the newest, and not all that there were.
    let late = data(&other.next().await.unwrap());
    assert!(late["remembered"].as_u64() >= last["remembered"].as_u64().map(|n| n - 100));
    let mut quiet = 0;
    let until = Instant::now() + Duration::from_secs(10);
    while let Ok(Some(_)) = tokio::time::timeout_at(until, one.next()).await {
        quiet += 1;
    }
    assert!((3..=8).contains(&quiet), "{quiet} while nothing happens");
    gateway.app.drain();
    assert!(
        timeout(Duration::from_secs(1), async { while one.next().await.is_some() {} })
            .await
            .is_ok()
    );
    assert_eq!(gateway.send(&browser.get("/dashboard/feed")).await.status, 503);
}

#[tokio::test(start_paused = true)]
async fn there_are_not_more_pages_than_are_fed() {
    let gateway = gateway(&sims(), "");
    let browser = Browser::new(&gateway).await;
    let mut pages = Vec::new();
    for _ in 0..32 {
        pages.push(feed(&gateway, &browser.get("/dashboard/feed")).await);
    }
    let reply = gateway.send(&browser.get("/dashboard/feed")).await;
    assert_eq!((reply.status, reply.text().contains("32")), (503, true));
    pages.pop();
    let mut page = feed(&gateway, &browser.get("/dashboard/feed")).await;
    assert!(page.next().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_target_is_taken_out_and_put_back() {
    let gateway = gateway(&sims(), "");
    let browser = Browser::new(&gateway).await;
    assert_eq!(answered_by(&gateway).await, "openai");
    let reply = browser.post("/admin/targets/out?target=openai").await;
    assert_eq!((reply.status, reply.text().contains("out")), (200, true), "{}", reply.text());
    assert_eq!(answered_by(&gateway).await, "anthropic");
    let status = browser.status().await;
    let attention = &status["attention"][0];
    assert_eq!((&attention["kind"], &attention["target"]), (&json!("out"), &json!("openai")));
    assert_eq!(attention["severity"], "note");
    // A reset is about rests.
    assert_eq!(browser.post("/admin/targets/reset?target=openai").await.status, 200);
    assert_eq!(answered_by(&gateway).await, "anthropic");
    browser.post("/admin/targets/out?target=anthropic").await;
    let status = browser.status().await;
    assert!(
        status["attention"][0]["text"].as_str().unwrap().contains("route default"),
        "{status:#}"
    );
    assert_ne!(question(&gateway).await.status, 200);
    assert!(browser.post("/admin/targets/in?target=openai").await.text().ends_with("back\n"));
    assert!(browser.post("/admin/targets/in?target=openai").await.text().ends_with("already\n"));
    assert_eq!(answered_by(&gateway).await, "openai");
    for (path, status) in [
        ("/admin/targets/out", 400),
        ("/admin/targets/out?target=nobody", 404),
        ("/admin/targets/explode?target=openai", 404),
        ("/admin/breakers/open?target=nobody", 404),
    ] {
        assert_eq!(browser.post(path).await.status, status, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_key_needs_a_person_until_its_rest_is_reset() {
    let sims = sims();
    let gateway = gateway(&sims, "");
    let browser = Browser::new(&gateway).await;
    sims[0].set_faults(FaultPlan::always(Fault::Error(ErrorKind::Auth)));
    assert_eq!(answered_by(&gateway).await, "anthropic");
    let status = browser.status().await;
    let attention = &status["attention"][0];
    assert_eq!(
        (&attention["severity"], &attention["kind"]),
        (&json!("bad"), &json!("key_refused"))
    );
    let target = attention["target"].as_str().unwrap().replace('#', "%23");
    sims[0].set_faults(FaultPlan::none());
    assert_eq!(answered_by(&gateway).await, "anthropic", "it still rests");
    assert_eq!(browser.post(&format!("/admin/targets/reset?target={target}")).await.status, 200);
    assert_eq!(answered_by(&gateway).await, "openai");
    assert_eq!(browser.status().await["attention"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn a_breaker_is_held_open_and_closed_until_it_is_reset() {
    let gateway = gateway(&sims(), "");
    let browser = Browser::new(&gateway).await;
    assert_eq!(answered_by(&gateway).await, "openai");
    let status = browser.status().await;
    let breaker = status["breakers"][0]["target"].as_str().unwrap().to_owned();
    assert!(breaker.starts_with("openai"), "{breaker}");
    let query = breaker.replace('#', "%23");
    let state = async || {
        let status = browser.status().await;
        let mut all = status["breakers"].as_array().unwrap().iter();
        all.find(|one| one["target"] == *breaker).unwrap()["state"].clone()
    };
    for (action, wanted, answers) in [
        ("open", "forced_open", "anthropic"),
        ("close", "forced_closed", "openai"),
        ("open", "forced_open", "anthropic"),
        ("reset", "closed", "openai"),
    ] {
        let reply = browser.post(&format!("/admin/breakers/{action}?target={query}")).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(state().await, wanted);
        // What rests because of the breaker rests no longer than that.
        sleep(Duration::from_secs(60)).await;
        assert_eq!(answered_by(&gateway).await, answers, "{action}");
        let forced = browser.status().await["attention"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["kind"] == "forced");
        assert_eq!(forced, wanted != "closed");
    }
}

fn down() -> Failure {
    Failure::new(Reason::ServerError, "the channel is down")
}

/// A folder with two dead letters and a conversation, that nobody has open.
async fn kept() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let deliveries = DeliveryFolder::open(folder.path()).await.unwrap();
    let ledger = DeliveryLedger::in_memory(LedgerPolicy::default()).unwrap();
    let channel = tower::service_fn(async |_: Announcement| Err::<(), _>(down()));
    let policy = LetterQueuePolicy::default();
    let queue = DeadLetters::open(&deliveries, policy, ledger, channel).await.unwrap();
    for key in ["report-17", "report-18"] {
        let message = Announcement::new(key, "room:ops", "what nobody else may read");
        assert!(queue.keep(&message, &down()).await.unwrap());
    }
    assert!(queue.close().await);
    let mut thread = SessionStore::new(folder.path()).open("agent-7").await.unwrap();
    let turn = vec![Message::user("a question"), Message::assistant("an answer")];
    assert!(thread.end_turn(turn).await.saved);
    folder
}

#[tokio::test]
async fn folders_are_shown_when_they_are_configured() {
    let bare = gateway(&sims(), "");
    let browser = Browser::new(&bare).await;
    for path in ["/admin/letters", "/admin/sessions", "/admin/runs"] {
        let reply = bare.send(&browser.get(path)).await;
        assert_eq!((reply.status, reply.text().contains("observe.")), (404, true), "{path}");
    }
    let folder = kept().await;
    let path = folder.path().display();
    let gateway = gateway(
        &sims(),
        &format!("[observe]\nletters = '{path}'\nsessions = '{path}'\nruns = '{path}'"),
    );
    let browser = Browser::new(&gateway).await;
    assert_eq!(
        browser.status().await["keeps"],
        json!({ "letters": true, "sessions": true, "runs": true })
    );
    let reply = gateway.send(&browser.get("/admin/letters")).await;
    assert!(!reply.text().contains("nobody else"), "{}", reply.text());
    let letters = reply.json();
    assert_eq!(letters["waiting"], 2);
    let letter = &letters["letters"][0];
    assert_eq!((&letter["key"], &letter["state"]), (&json!("report-17"), &json!("waiting")));
    let sessions = gateway.send(&browser.get("/admin/sessions")).await.json();
    assert_eq!(sessions["known"], 1);
    let session = &sessions["sessions"][0];
    assert_eq!((&session["thread"], &session["messages"]), (&json!("agent-7"), &json!(2)));
    let runs = gateway.send(&browser.get("/admin/runs")).await.json();
    assert_eq!(runs, json!({ "known": 0, "runs": [] }));
    let drained = browser.post("/admin/letters/drain?key=report-18").await;
    assert_eq!((drained.status, drained.text()), (200, "1 letter is due\n"));
    let drained = browser.post("/admin/letters/drain").await;
    assert_eq!((drained.status, drained.text()), (200, "2 letters are due\n"));
    // Another process delivers from it.
    let _held = DeliveryFolder::open(folder.path()).await.unwrap();
    assert_eq!(browser.post("/admin/letters/drain").await.status, 409);
    assert_eq!(gateway.send(&browser.get("/admin/letters")).await.status, 200);
}
