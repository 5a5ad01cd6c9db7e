//! What the tests share: requests of the dialects and readers of their streams.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::needless_pass_by_value)]

pub mod anthropic;
pub mod conversation;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use steadfast_sim::{Dialect, SimBody, SimError, SimProvider};
use tower::ServiceExt;

pub const KEY: &str = "sk-test-0123456789abcdef";

/// The smallest PNG there is.
pub const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=";

/// A response with its body read as far as it went.
#[derive(Debug)]
pub struct Read {
    pub status: u16,
    pub headers: HeaderMap,
    pub chunks: Vec<Bytes>,
    /// How the body ended: `None` is its proper end.
    pub error: Option<SimError>,
}

impl Read {
    pub fn bytes(&self) -> Vec<u8> {
        self.chunks.concat()
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.bytes()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes()).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|v| v.to_str().unwrap())
    }

    /// The message of the error in the dialect's body.
    pub fn error_message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
    }
}

pub fn path(dialect: Dialect, model: &str, stream: bool) -> String {
    match dialect {
        Dialect::OpenAi => "/v1/chat/completions".into(),
        Dialect::Anthropic => "/v1/messages".into(),
        Dialect::Responses => "/v1/responses".into(),
        Dialect::Gemini if stream => {
            format!("/v1beta/models/{model}:streamGenerateContent?alt=sse")
        }
        Dialect::Gemini => format!("/v1beta/models/{model}:generateContent"),
    }
}

pub fn model(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::OpenAi | Dialect::Responses => "gpt-4o",
        Dialect::Anthropic => "claude-sonnet-4-5",
        Dialect::Gemini => "gemini-2.5-pro",
    }
}

/// A plain question.
pub fn question(dialect: Dialect, text: &str, stream: bool) -> Value {
    match dialect {
        Dialect::OpenAi => json!({
            "model": "gpt-4o", "stream": stream,
            "messages": [{"role": "user", "content": text}],
        }),
        Dialect::Anthropic => json!({
            "model": "claude-sonnet-4-5", "max_tokens": 4096, "stream": stream,
            "messages": [{"role": "user", "content": text}],
        }),
        Dialect::Gemini => json!({"contents": [{"role": "user", "parts": [{"text": text}]}]}),
        Dialect::Responses => json!({
            "model": "gpt-4o", "stream": stream, "input": [{"role": "user", "content": text}],
        }),
    }
}

pub fn request(dialect: Dialect, path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let request =
        Request::post(format!("http://sim{path}")).header("content-type", "application/json");
    let request = match dialect {
        Dialect::OpenAi | Dialect::Responses => {
            request.header("authorization", format!("Bearer {KEY}"))
        }
        Dialect::Anthropic => {
            request.header("x-api-key", KEY).header("anthropic-version", "2023-06-01")
        }
        Dialect::Gemini => request.header("x-goog-api-key", KEY),
    };
    request.body(Full::new(body.into())).unwrap()
}

pub async fn send(provider: &SimProvider, request: Request<Full<Bytes>>) -> Result<Read, SimError> {
    let response = provider.clone().oneshot(request).await?;
    let (head, body) = response.into_parts();
    let (chunks, error) = drain(body).await;
    Ok(Read { status: head.status.as_u16(), headers: head.headers, chunks, error })
}

pub async fn drain(mut body: SimBody) -> (Vec<Bytes>, Option<SimError>) {
    let mut chunks = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => chunks.push(frame.into_data().unwrap()),
            Err(error) => {
                assert!(body.frame().await.is_none(), "a body that failed stays ended");
                return (chunks, Some(error));
            }
        }
    }
    assert!(body.frame().await.is_none(), "a body that ended stays ended");
    (chunks, None)
}

/// Sends a body to the provider's own generation path.
pub async fn post(provider: &SimProvider, body: &Value) -> Read {
    let dialect = provider.dialect();
    let stream = body["stream"] == true;
    let path = path(dialect, model(dialect), stream);
    send(provider, request(dialect, &path, body.to_string())).await.unwrap()
}

/// Asks a plain question.
pub async fn ask(provider: &SimProvider, stream: bool) -> Result<Read, SimError> {
    let dialect = provider.dialect();
    let path = path(dialect, model(dialect), stream);
    send(provider, request(dialect, &path, question(dialect, "hello", stream).to_string())).await
}

/// The `data` of each event, as JSON where it is that.
pub fn events(text: &str) -> Vec<Value> {
    text.replace("\r\n", "\n")
        .split("\n\n")
        .filter_map(|event| {
            event.lines().find_map(|line| line.strip_prefix("data: ").map(str::to_owned))
        })
        .map(|data| serde_json::from_str(&data).unwrap_or(Value::String(data)))
        .collect()
}

/// Text that came in a stream of any dialect.
pub fn streamed_text(dialect: Dialect, text: &str) -> String {
    events(text)
        .iter()
        .map(|event| match dialect {
            Dialect::OpenAi => event["choices"][0]["delta"]["content"].as_str().unwrap_or_default(),
            Dialect::Anthropic => event["delta"]["text"].as_str().unwrap_or_default(),
            Dialect::Responses if event["type"] == "response.output_text.delta" => {
                event["delta"].as_str().unwrap_or_default()
            }
            Dialect::Responses => "",
            Dialect::Gemini => {
                event["candidates"][0]["content"]["parts"][0]["text"].as_str().unwrap_or_default()
            }
        })
        .collect()
}

/// Whether a stream has the event that makes its end a clean one.
pub fn is_terminated(dialect: Dialect, text: &str) -> bool {
    match dialect {
        Dialect::OpenAi => text.ends_with("data: [DONE]\n\n"),
        Dialect::Anthropic => text.contains("event: message_stop\n"),
        Dialect::Gemini => text.contains("\"finishReason\""),
        Dialect::Responses => {
            text.contains("event: response.completed\n")
                || text.contains("event: response.incomplete\n")
        }
    }
}
