//! Cuts, windows, continuations and summaries over real sockets, in every dialect and form.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use common::talk::{Heard, chat, heard, stops};
use common::{KEY, model, path};
use serde_json::Value;
use steadfast_sim::{
    Answer, Dialect, GoesOn, Model, SimProvider, SimProviderBuilder, SimServer, Summaries, Summary,
    tokens::pieces,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TEXT: &str = "one two three incomprehensibilities four naïve 日本 five 🦀 six seven.";

struct Line {
    server: SimServer,
    stream: bool,
}

impl Line {
    fn dialect(&self) -> Dialect {
        self.server.provider().dialect()
    }

    async fn ask(&self, turns: &[(&str, &str)], max: u64) -> (u16, String) {
        let body = chat(self.dialect(), turns, Some(max), self.stream);
        over_socket(&self.server, &body.to_string(), self.stream).await
    }

    async fn hear(&self, turns: &[(&str, &str)], max: u64) -> Heard {
        let (status, body) = self.ask(turns, max).await;
        assert_eq!(status, 200, "{body}");
        heard(self.dialect(), &body, self.stream)
    }
}

/// A server of each dialect in each form.
async fn lines(setup: impl Fn(SimProviderBuilder) -> SimProviderBuilder) -> Vec<Line> {
    let mut lines = Vec::new();
    for dialect in Dialect::ALL {
        for stream in [false, true] {
            let provider = setup(SimProvider::builder(dialect)).build();
            lines.push(Line { server: SimServer::local(provider).await.unwrap(), stream });
        }
    }
    lines
}

#[tokio::test]
async fn an_answer_in_parts_arrives_whole() {
    let whole = || Answer::text(TEXT).goes_on(GoesOn::Faithful);
    for line in lines(|builder| builder.with_script([whole()])).await {
        let limit = 4;
        let first = line.hear(&[("user", "go")], limit).await;
        assert_eq!(first.text, pieces(TEXT).take(4).collect::<String>());
        assert_eq!((&*first.stop, first.output), (stops(line.dialect()).0, limit));
        let turns = [("user", "go"), ("model", &*first.text), ("user", "Go on.")];
        let rest = line.hear(&turns, 4_000).await;
        assert_eq!(first.text + &rest.text, TEXT);
        assert_eq!(rest.stop, stops(line.dialect()).1);
        assert_eq!(first.output + rest.output, whole().output_tokens());
        line.server.shutdown().await;
    }
}

#[tokio::test]
async fn a_window_and_a_summary_end_as_in_process() {
    let small = |builder: SimProviderBuilder| {
        let names = Dialect::ALL.map(model);
        let models = names.map(|name| Model::new(name, 100, 50).without_thinking());
        builder.with_models(models).with_summaries(Summaries::to("record").then(Summary::Endless))
    };
    for line in lines(small).await {
        let dialect = line.dialect();
        let (status, body) = line.ask(&[("user", &"abcd".repeat(97))], 10).await;
        let says: Value = serde_json::from_str(&body).unwrap();
        let right = match dialect {
            Dialect::OpenAi => {
                "This model's maximum context length is 100 tokens. However, your messages \
                 resulted in 101 tokens. Please reduce the length of the messages."
            }
            Dialect::Anthropic => "prompt is too long: 101 tokens > 100 maximum",
            Dialect::Gemini => {
                "The input token count (101) exceeds the maximum number of tokens allowed (100)."
            }
        };
        assert_eq!((status, says["error"]["message"].as_str().unwrap()), (400, right));
        let heard = line.hear(&[("user", "keep the record")], 9).await;
        assert_eq!((&*heard.stop, heard.output), (stops(dialect).0, 9));
        line.server.shutdown().await;
    }
}

/// The status and the body of the response, its chunks joined.
async fn over_socket(server: &SimServer, body: &str, stream: bool) -> (u16, String) {
    let dialect = server.provider().dialect();
    let key = match dialect {
        Dialect::OpenAi => format!("authorization: Bearer {KEY}"),
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
        let line = rest.windows(2).position(|two| two == b"\r\n").unwrap();
        let size = std::str::from_utf8(&rest[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (status, String::from_utf8(joined).unwrap());
        }
        joined.extend_from_slice(&rest[line + 2..line + 2 + size]);
        rest = &rest[line + 2 + size + 2..];
    }
}
