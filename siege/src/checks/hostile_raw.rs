//! What a hostile provider writes, byte by byte.

use serde_json::json;

use super::hostile::Want;
use crate::provider::{
    Part, answer, chunk, delta, event, response, stream_end, stream_head, text_event,
};

/// One kind of answer.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) stream: bool,
    pub(super) parts: Vec<Part>,
    pub(super) want: Want,
    pub(super) is_quick: bool,
}

/// A whole answer.
fn whole(name: &'static str, want: Want, parts: Vec<Part>) -> Kind {
    Kind { name, stream: false, parts, want, is_quick: true }
}

/// A stream: its head, and then `parts`.
fn stream(name: &'static str, want: Want, parts: Vec<Part>) -> Kind {
    let parts = [vec![Part::Bytes(stream_head())], parts].concat();
    Kind { name, stream: true, parts, want, is_quick: true }
}

/// These bytes.
fn bytes(text: impl Into<Vec<u8>>) -> Part {
    Part::Bytes(text.into())
}

/// A response with a head of these lines and this body.
fn with(lines: &str, body: &str) -> Vec<Part> {
    vec![bytes(format!("HTTP/1.1 {lines}\r\n\r\n{body}"))]
}

/// A call of a tool with these values.
fn tool(index: &serde_json::Value, name: &str, arguments: &str) -> Vec<u8> {
    let function = json!({"name": name, "arguments": arguments});
    delta(
        &json!({"tool_calls": [{"index": index, "id": "c", "type": "function", "function": function}]}),
    )
}

#[rustfmt::skip]
pub(super) fn kinds() -> Vec<Kind> {
    use Want::{Answers, Any, Fails};
    let good = answer("All is well.");
    let n = good.len();
    let large = "y".repeat(1 << 20);
    let end = || bytes(stream_end());
    let text = |text: &str| bytes(text_event(text));
    let ok = |headers: &str, body: &str| vec![Part::Bytes(response("200 OK", headers, body))];
    let refused = |status: &str, headers: &str| vec![Part::Bytes(response(status, headers, r#"{"error":{"message":"Not now.","type":"t"}}"#)), Part::Keep];
    let mut all = vec![
        // Heads.
        whole("headers without an end", Fails, vec![bytes("HTTP/1.1 200 OK\r\n"), Part::Endless(b"x-a: b\r\n".to_vec())]),
        whole("a header without an end", Fails, vec![bytes("HTTP/1.1 200 OK\r\nx-a: "), Part::Endless(vec![b'y'; 1000])]),
        whole("a status line without an end", Fails, vec![bytes("HTTP/1.1 200 "), Part::Endless(vec![b'y'; 1000])]),
        whole("10,000 headers", Fails, vec![bytes("HTTP/1.1 200 OK\r\n"), Part::Repeat(b"x-a: b\r\n".to_vec(), 10_000), bytes(format!("content-length: {n}\r\n\r\n{good}"))]),
        whole("100 continue without an end", Fails, vec![Part::Endless(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec())]),
        whole("1,000 early hints and an answer", Any, [vec![Part::Repeat(b"HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n".to_vec(), 1_000)], ok("", &good)].concat()),
        whole("a protocol that is switched", Fails, with("101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade", "")),
        whole("no content", Fails, with("204 No Content", "")),
        whole("not modified", Fails, with("304 Not Modified", "")),
        whole("status 999", Fails, with("999 What\r\ncontent-length: 0", "")),
        whole("status 000", Fails, with("000 What\r\ncontent-length: 0", "")),
        whole("a status of two digits", Fails, with("20 OK\r\ncontent-length: 0", "")),
        whole("a status below zero", Fails, with("-200 OK\r\ncontent-length: 0", "")),
        whole("another protocol", Fails, vec![bytes("SSH-2.0-OpenSSH_9.9\r\n")]),
        whole("HTTP/2 where nobody asked for it", Fails, vec![bytes(b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64".to_vec()), Part::Hang]),
        whole("bytes of no protocol", Fails, vec![bytes(vec![0xff; 4096])]),
        whole("an answer without a head", Fails, vec![bytes(good.clone())]),
        whole("a line end in a header's value", Any, with(&format!("200 OK\r\nx-request-id: a\r\n b\r\ncontent-length: {n}"), &good)),
        whole("a NUL in a header's value", Fails, with(&format!("200 OK\r\nx-a: b\0c\r\ncontent-length: {n}"), &good)),
        whole("header values that are no UTF-8", Any, vec![bytes([b"HTTP/1.1 200 OK\r\nx-request-id: \xff\xfe\r\ncontent-length: ".as_slice(), n.to_string().as_bytes(), b"\r\n\r\n", good.as_bytes()].concat())]),
        whole("a request id of 30 KB", Any, ok(&format!("x-request-id: {}\r\n", &large[..30_000]), &good)),
        whole("a thousand cookies", Any, vec![bytes("HTTP/1.1 200 OK\r\n"), Part::Repeat(b"set-cookie: a=b\r\n".to_vec(), 90), bytes(format!("content-length: {n}\r\n\r\n{good}"))]),
        // Lies about length.
        whole("shorter than its length", Fails, with(&format!("200 OK\r\ncontent-length: {}", n + 10), &good)),
        whole("longer than its length", Any, with(&format!("200 OK\r\ncontent-length: {n}"), &format!("{good}{good}"))),
        whole("half of it by its length", Fails, with(&format!("200 OK\r\ncontent-length: {}", n / 2), &good)),
        whole("two lengths", Fails, with(&format!("200 OK\r\ncontent-length: {n}\r\ncontent-length: 3"), &good)),
        whole("a length of 2^63", Fails, with("200 OK\r\ncontent-length: 9223372036854775807", &good)),
        whole("a length beyond 64 bits", Fails, with("200 OK\r\ncontent-length: 99999999999999999999", &good)),
        whole("a length below zero", Fails, with("200 OK\r\ncontent-length: -1", &good)),
        whole("length and chunks", Any, with("200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked", &String::from_utf8_lossy(&[chunk(&good), b"0\r\n\r\n".to_vec()].concat()))),
        whole("until the connection ends", Any, with("200 OK\r\ncontent-type: application/json", &good)),
        whole("chunks without their end", Fails, with("200 OK\r\ntransfer-encoding: chunked", &String::from_utf8_lossy(&chunk(&good)))),
        whole("a chunk of 2^64 - 1", Fails, with("200 OK\r\ntransfer-encoding: chunked", &format!("ffffffffffffffff\r\n{good}"))),
        whole("a chunk beyond 64 bits", Fails, with("200 OK\r\ntransfer-encoding: chunked", &format!("fffffffffffffffff\r\n{good}"))),
        whole("a chunk whose size is no number", Fails, with("200 OK\r\ntransfer-encoding: chunked", "zz\r\nab")),
        whole("an extension of a chunk without an end", Fails, vec![bytes("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;"), Part::Endless(vec![b'y'; 1000])]),
        whole("trailers without an end", Fails, vec![bytes([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".as_slice(), &chunk(&good), b"0\r\n"].concat()), Part::Endless(b"x-a: b\r\n".to_vec())]),
        whole("an unknown transfer encoding", Fails, with("200 OK\r\ntransfer-encoding: gzip, chunked", "5\r\nhello\r\n0\r\n\r\n")),
        // Bodies.
        whole("packed though nobody asked", Fails, vec![bytes([b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 20\r\n\r\n".as_slice(), &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3], &[0; 10]].concat())]),
        whole("a body without an end", Fails, vec![bytes("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"), Part::Endless(chunk(&large))]),
        whole("an answer of 100 MB of spaces", Fails, vec![bytes("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"), Part::Repeat(chunk(" ".repeat(1 << 20)), 100), bytes(b"0\r\n\r\n".to_vec())]),
        whole("nested a million deep", Fails, ok("", &"[".repeat(1_000_000))),
        whole("nested a million deep, in a field", Any, ok("", &good.replace("\"created\":1", &format!("\"x\":{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000))))),
        whole("JSON of another kind", Fails, ok("", "[1,2,3]")),
        whole("null", Fails, ok("", "null")),
        whole("choices that are a number", Fails, ok("", r#"{"choices":7}"#)),
        whole("100,000 choices", Any, ok("", &format!(r#"{{"object":"chat.completion","choices":[{}]}}"#, vec![r#"{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}"#; 100_000].join(",")))),
        whole("half of a character", Any, ok("", &good.replace("All is well.", r"\ud83e"))),
        whole("bytes that are no UTF-8", Fails, vec![bytes([b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n".as_slice(), &[0xff; 4]].concat())]),
        whole("usage of 10^30", Any, ok("", &good.replace("\"prompt_tokens\":1", "\"prompt_tokens\":1e30"))),
        whole("usage below zero", Any, ok("", &good.replace("\"prompt_tokens\":1", "\"prompt_tokens\":-5"))),
        whole("usage of 2^64", Any, ok("", &good.replace("\"prompt_tokens\":1", "\"prompt_tokens\":18446744073709551616"))),
        whole("a text of 5 MB", Answers, ok("", &answer(&large.repeat(5)))),
        whole("escapes and overrides in a text", Answers, ok("", &answer("\u{1b}[2J\u{202e}\u{200b}\0"))),
        whole("a second answer behind the first", Any, vec![bytes([response("200 OK", "", &good), response("200 OK", "", &answer("STOLEN"))].concat()), Part::Keep]),
        // Refusals.
        whole("a redirect 301", Fails, refused("301 Moved", "location: ../../trap/v1/chat/completions\r\n")),
        whole("a redirect 302", Fails, refused("302 Found", "location: /trap/v1/chat/completions\r\n")),
        whole("a redirect 307", Fails, refused("307 Temporary", "location: /trap/v1/chat/completions\r\n")),
        whole("a redirect 308", Fails, refused("308 Permanent", "location: /trap/v1/chat/completions\r\n")),
        whole("a 429 for 10^18 seconds", Fails, refused("429 Too Many", "retry-after: 1000000000000000000\r\n")),
        whole("a 429 for 2^64 milliseconds", Fails, refused("429 Too Many", "retry-after-ms: 18446744073709551616\r\n")),
        whole("a 429 for -5 seconds", Fails, refused("429 Too Many", "retry-after: -5\r\n")),
        whole("a 429 for NaN seconds", Fails, refused("429 Too Many", "retry-after: NaN\r\n")),
        whole("a 429 for 1e308 seconds", Fails, refused("429 Too Many", "retry-after: 1e308\r\n")),
        whole("a 429 until the year 9999", Fails, refused("429 Too Many", "retry-after: Fri, 31 Dec 9999 23:59:59 GMT\r\n")),
        whole("a 429 with a reset of 10^400", Fails, refused("429 Too Many", &format!("x-ratelimit-reset-requests: 1{}s\r\n", "0".repeat(400)))),
        whole("a 400 of 20 MB", Fails, vec![Part::Bytes(response("400 Bad", "", &json!({"error": {"message": large.repeat(20)}}).to_string())), Part::Keep]),
        whole("a 500 of 50 MB of HTML", Fails, vec![bytes("HTTP/1.1 500 Oops\r\ncontent-type: text/html\r\ntransfer-encoding: chunked\r\n\r\n"), Part::Repeat(chunk("<p>oops</p>".repeat(50_000)), 100), bytes(b"0\r\n\r\n".to_vec())]),
        whole("a 500 without an end", Fails, vec![bytes("HTTP/1.1 500 Oops\r\ntransfer-encoding: chunked\r\n\r\n"), Part::Endless(chunk(&large))]),
        whole("an error that is a text", Fails, ok("", r#"{"error":"no"}"#)),
        whole("an error that is null beside an answer", Any, ok("", &good.replace("{\"id\"", "{\"error\":null,\"id\""))),
        // Streams.
        stream("a stream that is well", Answers, vec![text("All is well."), end()]),
        stream("an index of 2^64 - 1", Any, vec![bytes(tool(&json!(u64::MAX), "f", "{}")), end()]),
        // Which JSON has and no number of the gateway.
        stream("an index of 2^64", Any, vec![bytes(event(r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":18446744073709551616,"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}}]}"#)), end()]),
        stream("an index of 4 billion", Any, vec![bytes(tool(&json!(u32::MAX), "f", "{}")), end()]),
        stream("an index below zero", Any, vec![bytes(tool(&json!(-1), "f", "{}")), end()]),
        stream("an index of 1e308", Any, vec![bytes(tool(&json!(1e308), "f", "{}")), end()]),
        stream("an index that is a text", Any, vec![bytes(tool(&json!("0"), "f", "{}")), end()]),
        stream("a choice's index of 2^64", Any, vec![bytes(event(r#"{"choices":[{"index":18446744073709551616,"delta":{"content":"a"}}]}"#)), end()]),
        stream("20,000 calls of tools", Any, [(0..20_000).map(|n| bytes(tool(&json!(n), "f", "{}"))).collect(), vec![end()]].concat()),
        stream("a tool's name of 1 MB", Any, vec![bytes(tool(&json!(0), &large, "{}")), end()]),
        stream("100 MB of arguments", Any, vec![bytes(tool(&json!(0), "f", "{\"a\":\"")), Part::Repeat(tool(&json!(0), "", &large), 100), end()]),
        stream("a line without an end", Fails, vec![bytes(chunk("data: ")), Part::Endless(chunk(&large))]),
        stream("a line of 20 MB", Any, vec![text(&large.repeat(20)), end()]),
        stream("comments without an end", Fails, vec![Part::Endless(chunk(": still here\n\n"))]),
        stream("empty lines without an end", Fails, vec![Part::Endless(chunk("\n\n\n\n"))]),
        stream("empty data without an end", Fails, vec![Part::Endless(event(""))]),
        stream("empty objects without an end", Fails, vec![Part::Endless(event("{}"))]),
        stream("names of events without an end", Fails, vec![Part::Endless(chunk("event: x\nid: 7\nretry: 1\n"))]),
        stream("text without an end", Fails, vec![Part::Endless(text_event("and on "))]),
        stream("200,000 events", Any, vec![Part::Repeat(text_event("a"), 200_000), end()]),
        stream("a million events", Any, vec![Part::Repeat(text_event("a"), 1_000_000), end()]),
        stream("thinking without an end", Fails, vec![Part::Endless(delta(&json!({"reasoning_content": "hm "})))]),
        stream("data that is no JSON", Fails, vec![text("a"), bytes(event("{oops")), end()]),
        stream("data that is null", Any, vec![text("a"), bytes(event("null")), end()]),
        stream("data that is a list", Any, vec![text("a"), bytes(event("[]")), end()]),
        stream("an event nested 100,000 deep", Any, vec![text("a"), bytes(event(&format!("{{\"x\":{}", "[".repeat(100_000)))), end()]),
        stream("its end first", Any, vec![end(), text("late")]),
        stream("its end twice", Any, vec![text("a"), end(), end()]),
        stream("no terminal event", Fails, vec![text("a"), bytes(b"0\r\n\r\n".to_vec())]),
        stream("a finish reason of 1 MB", Any, vec![text("a"), bytes(event(&format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{large}"}}]}}"#))), end()]),
        stream("an error event of 10 MB", Fails, vec![text("a"), bytes(event(&json!({"error": {"message": large.repeat(10)}}).to_string())), bytes(b"0\r\n\r\n".to_vec())]),
        stream("an error event with escapes and overrides", Fails, vec![text("a"), bytes(event(&json!({"error": {"message": "\u{1b}[2J\u{202e}\u{2028}"}}).to_string())), bytes(b"0\r\n\r\n".to_vec())]),
        stream("line ends by CR alone", Any, vec![bytes(chunk("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\r\r")), end()]),
        stream("a byte order mark", Any, vec![bytes(chunk("\u{feff}data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n")), end()]),
        stream("bytes that are no UTF-8, in a text", Any, vec![bytes(chunk([b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"".as_slice(), &[0xff, 0xfe], b"\"}}]}\n\n"].concat())), end()]),
        stream("a reset in the middle", Fails, vec![text("a"), Part::PauseMs(50), Part::Reset]),
        stream("silence in the middle", Fails, vec![text("a"), Part::Hang]),
        stream("silence at the start", Fails, vec![Part::Hang]),
        stream("a stream that is one object", Any, vec![bytes(chunk(&good)), bytes(b"0\r\n\r\n".to_vec())]),
    ];
    for kind in &mut all {
        let slow = ["a million events", "100 MB of arguments", "a 500 of 50 MB of HTML", "an answer of 100 MB of spaces"];
        kind.is_quick = !slow.contains(&kind.name);
    }
    all
}
