//! Targets that are typed services, as HTTP servers that speak OpenAI's dialect, and a gateway before them that has
//! nothing in its file but their addresses.

use std::{future::Future, net::SocketAddr, time::Duration};

use axum::{
    Router,
    body::Body,
    response::{IntoResponse as _, Response},
    routing::post,
};
use bytes::Bytes;
use serde_json::{Value, json};
use steadfast::{ChatRequest, ChatResponse, Failure, Target};
use steadfast_gateway::{
    config::Source,
    server::{App, ConnectionLimits, serve},
    stack::Gateway,
};
use tokio::{io::AsyncReadExt as _, net::TcpListener, sync::watch};
use tokio_stream::StreamExt as _;

use super::http::HttpRequest;

/// A server that runs until `stop` is dropped.
pub async fn listen(router: Router, stop: &watch::Sender<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let mut stopped = stop.subscribe();
    let stopped = async move { while stopped.changed().await.is_ok() {} };
    tokio::spawn(serve(listener, router, ConnectionLimits::default(), stopped, Duration::ZERO));
    addr
}

/// The target `name` as a server: what it is asked, `ask` answers.
pub fn openai_server<F, A>(name: String, ask: F) -> Router
where
    F: Fn(ChatRequest) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Result<ChatResponse, Failure>> + Send,
{
    let answer = async move |body: Bytes| {
        let asked: Value = serde_json::from_slice(&body).unwrap();
        let request = ChatRequest::user("anything");
        let mut request = if asked["stream"] == true { request.streaming() } else { request };
        request.context.target = Some(Target::new(name.clone()));
        let streamed = request.stream;
        match ask(request).await {
            Ok(response) => answered(response, streamed),
            Err(failure) => refused(&failure),
        }
    };
    Router::new().route("/v1/chat/completions", post(answer))
}

fn answered(response: ChatResponse, streamed: bool) -> Response {
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

fn refused(failure: &Failure) -> Response {
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

/// A file that names the targets alone: the `n`th is `tN`.
pub fn file_of(targets: &[SocketAddr]) -> String {
    let named = targets.iter().enumerate().map(|(at, addr)| {
        format!(
            "[[providers]]\nname = \"t{at}\"\ndialect = \"openai\"\nbase_url = \"http://{addr}/v1\"\n"
        )
    });
    "[server]\nauth = \"none\"\n".to_owned() + &named.collect::<String>()
}

/// The gateway of the file.
pub fn gateway_of(file: &str) -> Router {
    let source = Source::text(file);
    let config = source.parse().unwrap();
    config.validate(&source).unwrap();
    let gateway = Gateway::connect(&config, &source).unwrap();
    App::new(&config, &source, gateway).unwrap().router()
}

/// Whether the gateway at `addr` answers one call to its end.
pub async fn is_answered(addr: SocketAddr, request: &ChatRequest) -> bool {
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
