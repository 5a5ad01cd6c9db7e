//! Cuts, windows, continuations and summaries over real sockets, in every dialect and form.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use common::conversation::{ReceivedAnswer, chat, read_answer, stops};
use common::{KEY, model, path};
use serde_json::Value;
use steadfast_sim::{
    Answer, ContinuationMode, Dialect, Model, SimProvider, SimProviderBuilder, SimServer,
    Summaries, SummaryReply, tokens::pieces,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TEXT: &str = "one two three incomprehensibilities four naïve 日本 five 🦀 six seven.";

struct Endpoint {
    server: SimServer,
    stream: bool,
}

impl Endpoint {
    fn dialect(&self) -> Dialect {
        self.server.provider().dialect()
    }

    async fn ask(&self, turns: &[(&str, &str)], max: u64) -> (u16, String) {
        let body = chat(self.dialect(), turns, Some(max), self.stream);
        over_socket(&self.server, &body.to_string(), self.stream).await
    }

    async fn answer_to(&self, turns: &[(&str, &str)], max: u64) -> ReceivedAnswer {
        let (status, body) = self.ask(turns, max).await;
        assert_eq!(status, 200, "{body}");
        read_answer(self.dialect(), &body, self.stream)
    }
}

/// A server of each dialect in each form.
async fn endpoints(setup: impl Fn(SimProviderBuilder) -> SimProviderBuilder) -> Vec<Endpoint> {
    let mut endpoints = Vec::new();
    for dialect in Dialect::ALL {
        for stream in [false, true] {
            let provider = setup(SimProvider::builder(dialect)).build();
            endpoints.push(Endpoint { server: SimServer::local(provider).await.unwrap(), stream });
        }
    }
    endpoints
}

#[tokio::test]
async fn an_answer_in_parts_arrives_whole() {
    let whole = || Answer::text(TEXT).continuation(ContinuationMode::Faithful);
    for endpoint in endpoints(|builder| builder.with_script([whole()])).await {
        if endpoint.dialect() == Dialect::Responses {
            continue; // It takes no limit of a few tokens.
        }
        let limit = 4;
        let first = endpoint.answer_to(&[("user", "go")], limit).await;
        assert_eq!(first.text, pieces(TEXT).take(4).collect::<String>());
        assert_eq!((&*first.stop, first.output), (stops(endpoint.dialect()).0, limit));
        let turns = [("user", "go"), ("model", &*first.text), ("user", "Go on.")];
        let rest = endpoint.answer_to(&turns, 4_000).await;
        assert_eq!(first.text + &rest.text, TEXT);
        assert_eq!(rest.stop, stops(endpoint.dialect()).1);
        assert_eq!(first.output + rest.output, whole().output_tokens());
        endpoint.server.shutdown().await;
    }
}

#[tokio::test]
async fn a_window_and_a_summary_end_as_in_process() {
    let small = |builder: SimProviderBuilder| {
        let names = Dialect::ALL.map(model);
        let models = names.map(|name| Model::new(name, 100, 50).without_thinking());
        builder
            .with_models(models)
            .with_summaries(Summaries::to("record").then(SummaryReply::Endless))
    };
    for endpoint in endpoints(small).await {
        let dialect = endpoint.dialect();
        let (status, body) = endpoint.ask(&[("user", &"abcd".repeat(97))], 16).await;
        let says: Value = serde_json::from_str(&body).unwrap();
        let right = match dialect {
            Dialect::OpenAi => {
                "This model's maximum context length is 100 tokens. However, your messages \
                 resulted in 101 tokens. Please reduce the length of the messages."
            }
            Dialect::Responses => {
                "Your input exceeds the context window of this model. Please adjust your input \
                 and try again."
            }
            Dialect::Anthropic => "prompt is too long: 101 tokens > 100 maximum",
            Dialect::Gemini => {
                "The input token count (101) exceeds the maximum number of tokens allowed (100)."
            }
        };
        assert_eq!((status, says["error"]["message"].as_str().unwrap()), (400, right));
        let received = endpoint.answer_to(&[("user", "keep the record")], 16).await;
        assert_eq!((&*received.stop, received.output), (stops(dialect).0, 16));
        endpoint.server.shutdown().await;
    }
}

/// The status and the body of the response, its chunks joined.
async fn over_socket(server: &SimServer, body: &str, stream: bool) -> (u16, String) {
    let dialect = server.provider().dialect();
    let key = match dialect {
        Dialect::OpenAi | Dialect::Responses => format!("authorization: Bearer {KEY}"),
        Dialect::Anthropic => format!("x-api-key: {KEY}\r\nanthropic-version: 2023-06-01"),
        Dialect::Gemini => format!("x-goog-api-key: {KEY}"),
    };
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: sim\r\n{key}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        path(dialect, model(dialect), stream),
        body.len()
    );
    let mut socket = tokio::net::TcpStream::connect(server.addr()).await.unwrap();
    socket.write_all((head + body).as_bytes()).await.unwrap();
    let mut response = Vec::new();
    socket.read_to_end(&mut response).await.unwrap();
    let at = response.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8_lossy(&response[..at]).to_ascii_lowercase();
    let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut rest = &response[at..];
    if !head.contains("transfer-encoding: chunked") {
        return (status, String::from_utf8(rest.to_vec()).unwrap());
    }
    let mut joined = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n").unwrap();
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (status, String::from_utf8(joined).unwrap());
        }
        joined.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 2 + size + 2..];
    }
}
