//! OpenAI's Responses API over a WebSocket: a turn for each message, in front of any provider.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use steadfast::sim::{
    Answer, Dialect, ErrorKind, Fault, FaultPlan, Latency, PlanRule, SimProvider,
    SimProviderBuilder,
};
use steadfast_tests::gateway::{DIALECTS, Rig, http::HttpRequest, model, provider};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{self, Message, client::IntoClientRequest, protocol::frame::coding::CloseCode},
};

const MODEL: &str = "gpt-4o";

/// A provider that says how many questions it has been asked in the conversation.
fn counting(dialect: Dialect) -> SimProviderBuilder {
    provider(dialect).respond(|request| {
        let questions = request.body.to_string().matches("question ").count();
        Some(Answer::text(format!("answer {questions}")))
    })
}

async fn rig(provider: SimProvider) -> Rig {
    let dialect = provider.dialect();
    Rig::builder().provider_with(provider, &any(dialect)).start().await
}

/// The lines of a provider that answers for every model.
fn any(dialect: Dialect) -> String {
    format!("models = {{ \"*\" = \"{}\" }}", model(dialect))
}

/// A socket, as a client has it.
struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    async fn open(rig: &Rig) -> Self {
        Self::open_with(rig, &[]).await.unwrap()
    }

    async fn open_with(rig: &Rig, headers: &[(&str, &str)]) -> Result<Self, tungstenite::Error> {
        let mut request = format!("ws://{}/v1/responses", rig.addr).into_client_request()?;
        for (name, value) in headers {
            let name: http::HeaderName = name.parse().unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        let stream = TcpStream::connect(rig.addr).await.unwrap();
        Ok(Self(client_async(request, stream).await?.0))
    }

    async fn send(&mut self, message: &Value) {
        self.0.send(Message::Text(message.to_string().into())).await.unwrap();
    }

    /// The next event; `None` when it has been closed.
    async fn next(&mut self) -> Option<Value> {
        loop {
            let next = tokio::time::timeout(Duration::from_secs(20), self.0.next());
            match next.await.expect("an event")? {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).unwrap()),
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// The events of an answer, to its end.
    async fn answer(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await.expect("an answer has an end");
            let kind = event["type"].as_str().unwrap().to_owned();
            events.push(event);
            let ends = ["response.completed", "response.incomplete", "response.failed", "error"];
            if ends.contains(&kind.as_str()) {
                return events;
            }
        }
    }

    /// Asks, and waits for the response.
    async fn ask(&mut self, message: &Value) -> Value {
        self.send(message).await;
        let events = self.answer().await;
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.completed", "{last}");
        last["response"].clone()
    }
}

fn create(n: usize, previous: Option<&Value>) -> Value {
    let mut message = json!({
        "type": "response.create", "model": MODEL, "store": false,
        "input": [{"role": "user", "content": format!("question {n}")}],
    });
    if let Some(previous) = previous {
        message["previous_response_id"] = previous["id"].clone();
    }
    message
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{response}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_turn_is_the_events_of_a_stream_before_every_provider() {
    for dialect in DIALECTS {
        let rig = rig(counting(dialect).build()).await;
        let mut socket = Socket::open(&rig).await;
        for _ in 0..2 {
            socket.send(&create(1, None)).await;
            let events = socket.answer().await;
            let kinds: Vec<_> =
                events.iter().map(|event| event["type"].as_str().unwrap()).collect();
            assert_eq!(kinds[..2], ["response.created", "response.in_progress"], "{dialect}");
            assert_eq!(kinds.last(), Some(&"response.completed"), "{dialect}: {kinds:?}");
            assert!(kinds.contains(&"response.output_text.delta"), "{dialect}: {kinds:?}");
            let numbers = events.iter().map(|event| event["sequence_number"].as_u64().unwrap());
            assert!(numbers.eq(0..events.len() as u64), "{dialect}: without a gap");
            assert!(events.iter().all(|event| event.get("stream_id").is_none()));
        }
        let sent = rig.last().json.unwrap();
        assert!(sent.get("type").is_none() && sent.get("generate").is_none(), "{dialect}: {sent}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_that_nobody_stores_goes_on_by_its_ids_while_the_socket_is_open() {
    for dialect in DIALECTS {
        let rig = rig(counting(dialect).build()).await;
        let mut socket = Socket::open(&rig).await;
        let mut last = socket.ask(&create(1, None)).await;
        for n in 2..=4 {
            last = socket.ask(&create(n, Some(&last))).await;
            assert_eq!(text(&last), format!("answer {n}"), "{dialect}: all it knew");
        }
        let sent = rig.last().json.unwrap();
        assert!(
            sent.get("previous_response_id").is_none(),
            "{dialect}: nobody else has it: {sent}"
        );
        // Another socket of the same caller has it while this one is open.
        let mut other = Socket::open(&rig).await;
        assert_eq!(text(&other.ask(&create(5, Some(&last))).await), "answer 5", "{dialect}");
        socket.0.close(None).await.unwrap();
        while socket.next().await.is_some() {}
        let gone = async {
            loop {
                other.send(&create(5, Some(&last))).await;
                let events = other.answer().await;
                let last = events.last().unwrap().clone();
                if last["type"] == "error" {
                    return last;
                }
            }
        };
        let gone = tokio::time::timeout(Duration::from_secs(10), gone).await.unwrap();
        assert_eq!(gone["status"], 400, "{dialect}: {gone}");
        let home = dialect == Dialect::Responses;
        assert!(
            home || gone["error"]["code"] == "previous_response_not_found",
            "{dialect}: {gone}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_prepared_asks_no_model_and_can_be_gone_on_from() {
    for dialect in DIALECTS {
        let rig = rig(counting(dialect).build()).await;
        let mut socket = Socket::open(&rig).await;
        let mut prepare = create(1, None);
        prepare["generate"] = json!(false);
        prepare["instructions"] = json!("be brief");
        let prepared = socket.ask(&prepare).await;
        assert_eq!((rig.asked(), &prepared["output"]), (0, &json!([])), "{dialect}: {prepared}");
        let mut second = create(2, Some(&prepared));
        second["input"] = json!([]);
        second["instructions"] = json!("be brief");
        assert_eq!(text(&socket.ask(&second).await), "answer 1", "{dialect}");
        let sent = String::from_utf8(rig.last().body.to_vec()).unwrap();
        assert_eq!(sent.matches("be brief").count(), 1, "{dialect}: {sent}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_fails_over_behind_an_open_socket() {
    for dialect in DIALECTS {
        let rig = Rig::builder()
            .provider(counting(Dialect::Responses).with_name("home").build())
            .provider_with(counting(dialect).with_name("spare").build(), &any(dialect))
            .config("[retry]\nretries = 0\n")
            .start()
            .await;
        let mut socket = Socket::open(&rig).await;
        let mut first = create(1, None);
        first["store"] = json!(true);
        let first = socket.ask(&first).await;
        let down = FaultPlan::always(Fault::Error(ErrorKind::ServerError));
        rig.sims[0].provider().set_faults(down);
        let second = socket.ask(&create(2, Some(&first))).await;
        assert_eq!(text(&second), "answer 2", "{dialect}");
        assert_eq!(text(&socket.ask(&create(3, Some(&second))).await), "answer 3", "{dialect}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_reported_and_the_socket_stays() {
    let rig = rig(counting(Dialect::Responses).build()).await;
    let mut socket = Socket::open(&rig).await;
    for (message, code) in [
        ("{", "invalid_json"),
        ("[]", "invalid_json"),
        ("{}", "unsupported_event"),
        (r#"{"type":"response.steer","input":"x"}"#, "unsupported_event"),
        (r#"{"type":"response.create","stream_id":""}"#, "invalid_stream_id"),
        (r#"{"type":"response.create","background":true}"#, "unsupported_parameter"),
    ] {
        socket.0.send(Message::Text(message.into())).await.unwrap();
        let error = socket.next().await.unwrap();
        assert_eq!((&error["type"], &error["status"]), (&json!("error"), &json!(400)), "{message}");
        assert_eq!(error["error"]["code"], code, "{message}: {error}");
    }
    let mut bad = create(1, None);
    bad["input"] = json!(7);
    socket.send(&bad).await;
    let error = socket.next().await.unwrap();
    assert_eq!((&error["status"], rig.asked()), (&json!(400), 0), "{error}");
    assert!(error["error"]["message"].as_str().unwrap().contains("input"), "{error}");
    let unpaid = FaultPlan::always(Fault::Error(ErrorKind::InsufficientQuota));
    rig.sims[0].provider().set_faults(unpaid);
    socket.send(&create(1, None)).await;
    let error = socket.next().await.unwrap();
    assert_eq!(error["type"], "error", "{error}");
    assert!(error["headers"]["x-request-id"].is_string(), "{error}");
    assert_eq!(error["error"]["headers"], error["headers"], "{error}");
    rig.sims[0].provider().set_faults(FaultPlan::none());
    socket.0.send(Message::Binary(vec![1].into())).await.unwrap();
    let closed = socket.0.next().await.unwrap().unwrap();
    assert!(matches!(closed, Message::Close(Some(frame)) if frame.code == CloseCode::Unsupported));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_several_streams_come_together_and_those_of_one_in_turn() {
    let rig = rig(counting(Dialect::Anthropic).build()).await;
    let mut socket = Socket::open(&rig).await;
    let in_stream = |n, id: &str| {
        let mut message = create(n, None);
        message["stream_id"] = json!(id);
        message
    };
    for n in [1, 2, 3] {
        socket.send(&in_stream(n, "a")).await;
    }
    for _ in 0..3 {
        let events = socket.answer().await;
        assert_eq!(events[0]["type"], "response.created", "none before the end of the one before");
        assert!(events.iter().all(|event| event["stream_id"] == "a"), "{events:?}");
    }
    // One that never comes holds up those of its stream, and no other.
    let hang = PlanRule::new(Fault::Hang).contains("question 4");
    rig.sims[0].provider().set_faults(FaultPlan::none().rule(hang));
    for (n, id) in [(4, "a"), (5, "a"), (6, "b"), (7, "c")] {
        socket.send(&in_stream(n, id)).await;
    }
    let mut ended = std::collections::BTreeSet::new();
    while ended.len() < 2 {
        let event = socket.next().await.unwrap();
        let id = event["stream_id"].as_str().unwrap();
        assert_ne!(id, "a", "the first of it has not come: {event}");
        if event["type"] == "response.completed" {
            ended.insert(id.to_owned());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_is_let_in_like_a_request() {
    let mut builder = Rig::builder().provider(counting(Dialect::Responses).build());
    let key = builder.secret("acme", "acme-secret-key");
    let other = builder.secret("other", "other-secret-key");
    builder = builder.server("auth = \"keys\"").config(&format!(
        "[[tenants]]\nname = \"acme\"\nkeys = [\"{key}\"]\n[[tenants]]\nname = \"other\"\nkeys = [\"{other}\"]\n"
    ));
    let rig = builder.start().await;
    for headers in [&[][..], &[("authorization", "Bearer wrong-secret-key")]] {
        match Socket::open_with(&rig, headers).await.map(drop).unwrap_err() {
            tungstenite::Error::Http(response) => assert_eq!(response.status(), 401),
            error => panic!("{error}"),
        }
    }
    let own = [("authorization", "Bearer acme-secret-key")];
    let mut socket = Socket::open_with(&rig, &own).await.unwrap();
    let first = socket.ask(&create(1, None)).await;
    let theirs = [("authorization", "Bearer other-secret-key")];
    let mut theirs = Socket::open_with(&rig, &theirs).await.unwrap();
    theirs.send(&create(2, Some(&first))).await;
    let error = theirs.next().await.unwrap();
    assert_eq!(error["error"]["code"], "previous_response_not_found", "another tenant's: {error}");

    let open = self::rig(counting(Dialect::Responses).build()).await;
    let page = [("origin", "https://evil.example")];
    match Socket::open_with(&open, &page).await.map(drop).unwrap_err() {
        tungstenite::Error::Http(response) => assert_eq!(response.status(), 401, "a foreign page"),
        error => panic!("{error}"),
    }
    for (headers, status) in [
        (&[][..], 405),
        (&[("upgrade", "websocket"), ("connection", "upgrade")], 426),
        (
            &[
                ("upgrade", "websocket"),
                ("connection", "upgrade"),
                ("sec-websocket-version", "8"),
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ],
            426,
        ),
    ] {
        let request =
            headers.iter().fold(HttpRequest::get("/v1/responses"), |request, (name, value)| {
                request.header(name, value)
            });
        let reply = request.send(open.addr).await;
        assert_eq!(reply.status, status, "{headers:?}: {}", reply.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_lets_the_answer_end_and_says_goodbye() {
    let slow = Latency { per_token: Duration::from_millis(30), ..Latency::default() };
    let mut rig = rig(counting(Dialect::Gemini).with_latency(slow).build()).await;
    let mut idle = Socket::open(&rig).await;
    let mut socket = Socket::open(&rig).await;
    socket.send(&create(1, None)).await;
    assert_eq!(socket.next().await.unwrap()["type"], "response.created");
    rig.begin_stop();
    assert_eq!(socket.answer().await.last().unwrap()["type"], "response.completed");
    for socket in [&mut idle, &mut socket] {
        let closed = socket.0.next().await.unwrap().unwrap();
        assert!(matches!(closed, Message::Close(Some(frame)) if frame.code == CloseCode::Away));
    }
    drop((idle, socket));
    assert_eq!(rig.stopped().await, 0, "none was cut");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_goes_away_takes_the_call_with_it() {
    let rig = rig(counting(Dialect::OpenAi).build()).await;
    rig.sims[0].provider().set_faults(FaultPlan::always(Fault::Hang));
    let mut socket = Socket::open(&rig).await;
    socket.send(&create(1, None)).await;
    let asked = async {
        while rig.asked() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), asked).await.unwrap();
    drop(socket);
    let ended = async {
        while rig.app.in_flight() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), ended).await.expect("the call has ended");
}
