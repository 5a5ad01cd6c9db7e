//! The same law with the gateway over sockets, in real time: the targets are HTTP servers, and the gateway has
//! nothing in its file but their addresses. What a target alone comes to is taken from virtual time.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::State,
    response::{IntoResponse as _, Response},
    routing::post,
};
use bytes::Bytes;
use serde_json::{Value, json};
use steadfast::{ChatRequest, Failure, Target};
use steadfast_gateway::{
    config::Source,
    server::{App, ConnectionLimits, serve},
    stack::Gateway,
};
use steadfast_tests::{gateway::http::HttpRequest, seeds::number};
use tokio::{
    io::AsyncReadExt as _,
    net::TcpListener,
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tokio_stream::StreamExt as _;

use crate::{
    Compared,
    callers::{Tally, make_calls},
    provider::Targets,
    report,
    world::World,
};

/// Worlds that run at once.
const AT_ONCE: usize = 50;

/// How long callers begin calls, in a plain run and in a long one.
const SHORT: Duration = Duration::from_secs(8);
const LONG: Duration = Duration::from_secs(58);

/// Worlds of a plain run.
const WORLDS: u64 = 4;

/// A server that runs until `stop` is dropped.
async fn listen(router: Router, stop: &watch::Sender<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let mut stopped = stop.subscribe();
    let stopped = async move { while stopped.changed().await.is_ok() {} };
    tokio::spawn(serve(listener, router, ConnectionLimits::default(), stopped, Duration::ZERO));
    addr
}

/// One target as a server that speaks OpenAI's dialect.
async fn answer(State((targets, at)): State<(Targets, usize)>, body: Bytes) -> Response {
    let asked: Value = serde_json::from_slice(&body).unwrap();
    let request = ChatRequest::user("anything");
    let mut request = if asked["stream"] == true { request.streaming() } else { request };
    let streamed = request.stream;
    request.context.target = Some(Target::new(format!("t{at}")));
    let response = match targets.ask(request).await {
        Ok(response) => response,
        Err(failure) => return refuse(&failure),
    };
    if !streamed {
        let message = json!({"role": "assistant", "content": "An answer."});
        return axum::Json(json!({
            "id": "c", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4},
        }))
        .into_response();
    }
    let pieces = response.into_parts().1.map(|event| match event {
        Ok(event) if event.is_end() => {
            Ok(format!("data: {}\n\ndata: [DONE]\n\n", chunk(&json!({}), Some("stop"))))
        }
        Ok(_) => Ok(format!("data: {}\n\n", chunk(&json!({"content": "An answer."}), None))),
        // The connection breaks.
        Err(failure) => Err(failure),
    });
    ([("content-type", "text/event-stream")], Body::from_stream(pieces)).into_response()
}

fn chunk(delta: &Value, finish: Option<&str>) -> Value {
    json!({
        "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    })
}

fn refuse(failure: &Failure) -> Response {
    match failure.upstream().and_then(|upstream| Some((upstream.status?, upstream))) {
        Some((status, upstream)) => {
            (status, upstream.headers.clone(), upstream.body.clone()).into_response()
        }
        // It breaks off in the body.
        None => {
            let error = std::io::Error::other("broken off");
            Body::from_stream(tokio_stream::iter([Ok(Bytes::from("{")), Err(error)]))
                .into_response()
        }
    }
}

/// The gateway of a file that names the providers alone.
fn gateway(targets: &[SocketAddr]) -> Router {
    let mut file = "[server]\nauth = \"none\"\n".to_owned();
    for (at, addr) in targets.iter().enumerate() {
        file += &format!(
            "[[providers]]\nname = \"t{at}\"\ndialect = \"openai\"\nbase_url = \"http://{addr}/v1\"\n"
        );
    }
    let source = Source::text(file.as_str());
    let config = source.parse().unwrap();
    config.validate(&source).unwrap();
    let gateway = Gateway::connect(&config, &source).unwrap();
    App::new(&config, &source, gateway).unwrap().router()
}

/// Whether one call is answered to its end.
async fn ask(addr: SocketAddr, request: ChatRequest) -> bool {
    let body = json!({
        "model": "m",
        "stream": request.stream,
        "messages": [{"role": "user", "content": request.messages[0].text()}],
    });
    let mut http = HttpRequest::post("/v1/chat/completions", body.to_string());
    http = http.header("connection", "close");
    if let Some(session) = request.context.session() {
        http = http.header("x-steadfast-session", session);
    }
    let mut reply = Vec::new();
    let ended = http.start(addr).await.read_to_end(&mut reply).await;
    let reply = String::from_utf8_lossy(&reply);
    let end = if request.stream { "data: [DONE]" } else { "\"finish_reason\":\"stop\"" };
    ended.is_ok() && reply.starts_with("HTTP/1.1 200") && reply.contains(end)
}

async fn through_gateway(world: &World) -> Tally {
    let targets = Targets::new(world);
    let (stop, _) = watch::channel(());
    let mut addrs = Vec::new();
    for at in 0..world.targets.len() {
        let router = Router::new().route("/v1/chat/completions", post(answer));
        addrs.push(listen(router.with_state((targets.clone(), at)), &stop).await);
    }
    let addr = listen(gateway(&addrs), &stop).await;
    let tally = make_calls(world, move |request, _| ask(addr, request)).await;
    Tally { attempts: targets.asked(), ..tally }
}

#[test]
fn the_default_gateway_over_sockets_against_its_best_target() {
    let long = number("STEADFAST_SOCKET_WORLDS");
    let (worlds, end) = long.map_or((WORLDS, SHORT), |worlds| (worlds, LONG));
    let at_once = number("STEADFAST_AT_ONCE").map_or(AT_ONCE, |number| number as usize);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let ran = runtime.block_on(async {
        let (room, mut running) = (Arc::new(Semaphore::new(at_once)), JoinSet::new());
        for seed in 1..=worlds {
            let room = room.clone();
            running.spawn(async move {
                let _room = room.acquire().await.unwrap();
                let world = World::new(seed).shortened(end);
                (through_gateway(&world).await, world)
            });
        }
        running.join_all().await
    });
    let compared: Vec<_> =
        ran.into_iter().map(|(tally, world)| Compared::with(tally, world)).collect();
    match long {
        Some(_) => report(&compared),
        // Too few calls for a mean.
        None => {
            for one in &compared {
                println!("{}", one.report());
                assert!(!one.failed(), "{:.1} standard errors below", one.below());
            }
        }
    }
}
