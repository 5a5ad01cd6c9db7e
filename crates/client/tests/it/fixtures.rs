//! Requests and answers in the shapes that providers use: the same conversation and the same
//! answer in each dialect.

use bytes::Bytes;
use serde_json::Value;
use steadfast_chat::{ChatRequest, Event};
use steadfast_client::dialect::{Route, Wire, codec};
use steadfast_core::{Dialect, Failure};

use crate::codecs;
pub(crate) use crate::codecs::{caller, completion, read_stream};

/// Two lines, a quote and a character beyond the first plane: what breaks naive escaping.
pub(crate) const TEXT: &str = "Let me look.\n\"é\u{1F980}\" ";

/// Arguments with white space that no serializer writes.
pub(crate) const ARGS: &str = r#"{"path": "a\u0062.txt",  "depth": 1.50}"#;

/// What each dialect has in the address besides the body.
pub(crate) fn route(dialect: Dialect) -> Route<'static> {
    match dialect {
        Dialect::Gemini => Route { model: Some("gemini-2.5-flash"), stream: Some(false) },
        _ => Route::default(),
    }
}

pub(crate) fn decode(dialect: Dialect, body: &str) -> ChatRequest {
    decode_at(dialect, body, route(dialect))
}

pub(crate) fn decode_at(dialect: Dialect, body: &str, route: Route<'_>) -> ChatRequest {
    match codec(dialect).decode_request(&Bytes::copy_from_slice(body.as_bytes()), route) {
        Ok(request) => request,
        Err(error) => panic!("{dialect}: {error}"),
    }
}

pub(crate) fn encode(dialect: Dialect, request: &ChatRequest) -> String {
    try_encode(dialect, request).unwrap()
}

pub(crate) fn try_encode(dialect: Dialect, request: &ChatRequest) -> Result<String, Failure> {
    let body = codec(dialect).encode_request(request, &Wire::default())?;
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(crate) fn whole_stream(dialect: Dialect, text: &str) -> Vec<Event> {
    let (events, failure) = read_stream(dialect, [Bytes::copy_from_slice(text.as_bytes())]);
    assert!(failure.is_none(), "{dialect}: {failure:?}\n{text}");
    events
}

/// The events of a stream of `from`, encoded for a caller of `to`.
pub(crate) fn write_stream(from: Dialect, to: Dialect, events: &[Event]) -> String {
    String::from_utf8(codecs::write_stream(from, to, events).unwrap()).unwrap()
}

/// The `data:` of each frame that has some.
pub(crate) fn frames(text: &str) -> Vec<String> {
    text.split("\n\n")
        .filter_map(|frame| frame.lines().find_map(|line| line.strip_prefix("data: ")))
        .map(str::to_owned)
        .collect()
}

/// A text in pieces that split JSON escapes and characters.
fn pieces(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(5).map(|chunk| chunk.iter().collect()).collect()
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// The answer: thinking, [`TEXT`], two calls at once with [`ARGS`] and none; as a stream.
pub(crate) fn stream(dialect: Dialect) -> String {
    let mut out = String::new();
    match dialect {
        Dialect::Anthropic => {
            let mut event = |name: &str, data: &str| {
                out.push_str(&format!("event: {name}\ndata: {data}\n\n"));
            };
            event(
                "message_start",
                r#"{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":10,"cache_creation_input_tokens":3,"cache_read_input_tokens":7,"output_tokens":1}}}"#,
            );
            event(
                "content_block_start",
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
            );
            event("ping", r#"{"type": "ping"}"#);
            event(
                "content_block_delta",
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm, a file."}}"#,
            );
            event(
                "content_block_delta",
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}"#,
            );
            event("content_block_stop", r#"{"type":"content_block_stop","index":0}"#);
            event(
                "content_block_start",
                r#"{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}"#,
            );
            for piece in pieces(TEXT) {
                event(
                    "content_block_delta",
                    &format!(
                        r#"{{"type":"content_block_delta","index":1,"delta":{{"type":"text_delta","text":{}}}}}"#,
                        quoted(&piece)
                    ),
                );
            }
            event("content_block_stop", r#"{"type":"content_block_stop","index":1}"#);
            event(
                "content_block_start",
                r#"{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_1","name":"read","input":{}}}"#,
            );
            event(
                "content_block_delta",
                r#"{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":""}}"#,
            );
            for piece in pieces(ARGS) {
                event(
                    "content_block_delta",
                    &format!(
                        r#"{{"type":"content_block_delta","index":2,"delta":{{"type":"input_json_delta","partial_json":{}}}}}"#,
                        quoted(&piece)
                    ),
                );
            }
            event("content_block_stop", r#"{"type":"content_block_stop","index":2}"#);
            event(
                "content_block_start",
                r#"{"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"toolu_2","name":"list","input":{}}}"#,
            );
            event("content_block_stop", r#"{"type":"content_block_stop","index":3}"#);
            event(
                "message_delta",
                r#"{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":42},"x_future":1}"#,
            );
            event("message_stop", r#"{"type":"message_stop"}"#);
        }
        Dialect::Responses => {
            let mut sequence = 0;
            let mut event = |name: &str, fields: &str| {
                out.push_str(&format!(
                    "event: {name}\ndata: {{\"type\":\"{name}\",\"sequence_number\":{sequence},{fields}}}\n\n"
                ));
                sequence += 1;
            };
            let started = r#""response":{"id":"resp_1","object":"response","created_at":1,"status":"in_progress","model":"gpt-x","output":[],"usage":null}"#;
            event("response.created", started);
            event("response.in_progress", started);
            event(
                "response.output_item.added",
                r#""output_index":0,"item":{"id":"rs_1","type":"reasoning","summary":[]}"#,
            );
            event(
                "response.reasoning_summary_part.added",
                r#""item_id":"rs_1","output_index":0,"summary_index":0,"part":{"type":"summary_text","text":""}"#,
            );
            event(
                "response.reasoning_summary_text.delta",
                r#""item_id":"rs_1","output_index":0,"summary_index":0,"delta":"Hm, a file.","obfuscation":"x""#,
            );
            event(
                "response.reasoning_summary_text.done",
                r#""item_id":"rs_1","output_index":0,"summary_index":0,"text":"Hm, a file.""#,
            );
            event(
                "response.reasoning_summary_part.done",
                r#""item_id":"rs_1","output_index":0,"summary_index":0,"part":{"type":"summary_text","text":"Hm, a file."}"#,
            );
            let [thinking, text, first, second] = response_items();
            event("response.output_item.done", &format!(r#""output_index":0,"item":{thinking}"#));
            event(
                "response.output_item.added",
                r#""output_index":1,"item":{"id":"msg_1","type":"message","status":"in_progress","role":"assistant","content":[]}"#,
            );
            event(
                "response.content_part.added",
                r#""item_id":"msg_1","output_index":1,"content_index":0,"part":{"type":"output_text","text":"","annotations":[]}"#,
            );
            for piece in pieces(TEXT) {
                event(
                    "response.output_text.delta",
                    &format!(
                        r#""item_id":"msg_1","output_index":1,"content_index":0,"delta":{},"logprobs":[]"#,
                        quoted(&piece)
                    ),
                );
            }
            event(
                "response.output_text.done",
                &format!(
                    r#""item_id":"msg_1","output_index":1,"content_index":0,"text":{}"#,
                    quoted(TEXT)
                ),
            );
            event("response.output_item.done", &format!(r#""output_index":1,"item":{text}"#));
            event(
                "response.output_item.added",
                r#""output_index":2,"item":{"id":"fc_1","type":"function_call","status":"in_progress","call_id":"call_1","name":"read","arguments":""}"#,
            );
            for piece in pieces(ARGS) {
                event(
                    "response.function_call_arguments.delta",
                    &format!(r#""item_id":"fc_1","output_index":2,"delta":{}"#, quoted(&piece)),
                );
            }
            event(
                "response.function_call_arguments.done",
                &format!(r#""item_id":"fc_1","output_index":2,"arguments":{}"#, quoted(ARGS)),
            );
            event("response.output_item.done", &format!(r#""output_index":2,"item":{first}"#));
            event(
                "response.output_item.added",
                r#""output_index":3,"item":{"id":"fc_2","type":"function_call","status":"in_progress","call_id":"call_2","name":"list","arguments":""}"#,
            );
            event("response.output_item.done", &format!(r#""output_index":3,"item":{second}"#));
            event("response.completed", &format!(r#""response":{}"#, body(dialect)));
        }
        Dialect::Gemini => {
            let mut event = |parts: &str, more: &str| {
                out.push_str(&format!(
                    "data: {{\"candidates\":[{{\"content\":{{\"parts\":[{parts}],\"role\":\"model\"}}{more},\"index\":0}}],\"usageMetadata\":{{\"promptTokenCount\":20,\"cachedContentTokenCount\":7,\"candidatesTokenCount\":30,\"thoughtsTokenCount\":12,\"totalTokenCount\":62}},\"modelVersion\":\"gemini-x\",\"responseId\":\"resp_1\"}}\r\n\r\n"
                ));
            };
            event(r#"{"text":"Hm, a file.","thought":true}"#, "");
            for piece in pieces(TEXT) {
                event(&format!(r#"{{"text":{}}}"#, quoted(&piece)), "");
            }
            event(
                &format!(
                    r#"{{"functionCall":{{"name":"read","args":{ARGS}}},"thoughtSignature":"c2ln"}},{{"functionCall":{{"name":"list","args":{{}}}}}}"#
                ),
                "",
            );
            event(r#"{"text":""}"#, r#","finishReason":"STOP""#);
        }
        _ => {
            let mut event = |delta: &str, finish: &str| {
                out.push_str(&format!(
                    "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"gpt-x\",\"system_fingerprint\":\"fp\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish}}}],\"usage\":null}}\n\n"
                ));
            };
            event(r#"{"role":"assistant","content":"","refusal":null}"#, "null");
            event(r#"{"reasoning_content":"Hm, a file."}"#, "null");
            for piece in pieces(TEXT) {
                event(&format!(r#"{{"content":{}}}"#, quoted(&piece)), "null");
            }
            event(
                r#"{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"read","arguments":""}}]}"#,
                "null",
            );
            for piece in pieces(ARGS) {
                event(
                    &format!(
                        r#"{{"tool_calls":[{{"index":0,"function":{{"arguments":{}}}}}]}}"#,
                        quoted(&piece)
                    ),
                    "null",
                );
            }
            event(
                r#"{"tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"list","arguments":"{}"}}]}"#,
                "null",
            );
            event("{}", r#""tool_calls""#);
            out.push_str("data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"gpt-x\",\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":42,\"total_tokens\":62,\"prompt_tokens_details\":{\"cached_tokens\":7},\"completion_tokens_details\":{\"reasoning_tokens\":12}}}\n\n");
            out.push_str("data: [DONE]\n\n");
        }
    }
    out
}

/// The items of the answer, whole.
fn response_items() -> [String; 4] {
    let (text, args) = (quoted(TEXT), quoted(ARGS));
    [
        r#"{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"Hm, a file."}],"encrypted_content":"c2ln"}"#.to_owned(),
        format!(r#"{{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{{"type":"output_text","text":{text},"annotations":[],"logprobs":[]}}]}}"#),
        format!(r#"{{"id":"fc_1","type":"function_call","status":"completed","call_id":"call_1","name":"read","arguments":{args}}}"#),
        r#"{"id":"fc_2","type":"function_call","status":"completed","call_id":"call_2","name":"list","arguments":"{}"}"#.to_owned(),
    ]
}

/// The same answer, whole.
pub(crate) fn body(dialect: Dialect) -> String {
    let (text, args) = (quoted(TEXT), quoted(ARGS));
    match dialect {
        Dialect::Anthropic => format!(
            r#"{{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","content":[{{"type":"thinking","thinking":"Hm, a file.","signature":"c2ln"}},{{"type":"text","text":{text}}},{{"type":"tool_use","id":"toolu_1","name":"read","input":{ARGS}}},{{"type":"tool_use","id":"toolu_2","name":"list","input":{{}}}}],"stop_reason":"tool_use","stop_sequence":null,"x_future":{{"a":1}},"usage":{{"input_tokens":10,"cache_creation_input_tokens":3,"cache_read_input_tokens":7,"output_tokens":42}}}}"#
        ),
        Dialect::Responses => format!(
            r#"{{"id":"resp_1","object":"response","created_at":1,"status":"completed","error":null,"incomplete_details":null,"model":"gpt-x","output":[{}],"usage":{{"input_tokens":20,"input_tokens_details":{{"cached_tokens":7,"cache_write_tokens":3}},"output_tokens":42,"output_tokens_details":{{"reasoning_tokens":12}},"total_tokens":62}},"x_future":{{"a":1}}}}"#,
            response_items().join(",")
        ),
        Dialect::Gemini => format!(
            r#"{{"candidates":[{{"content":{{"parts":[{{"text":"Hm, a file.","thought":true}},{{"text":{text}}},{{"functionCall":{{"name":"read","args":{ARGS}}},"thoughtSignature":"c2ln"}},{{"functionCall":{{"name":"list","args":{{}}}}}}],"role":"model"}},"finishReason":"STOP","index":0,"avgLogprobs":-0.1}}],"usageMetadata":{{"promptTokenCount":20,"cachedContentTokenCount":7,"candidatesTokenCount":30,"thoughtsTokenCount":12,"totalTokenCount":62}},"modelVersion":"gemini-x","responseId":"resp_1"}}"#
        ),
        _ => format!(
            r#"{{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt-x","choices":[{{"index":0,"message":{{"role":"assistant","content":{text},"reasoning_content":"Hm, a file.","refusal":null,"annotations":[],"tool_calls":[{{"id":"call_1","type":"function","function":{{"name":"read","arguments":{args}}}}},{{"id":"call_2","type":"function","function":{{"name":"list","arguments":"{{}}"}}}}]}},"logprobs":null,"finish_reason":"tool_calls"}}],"usage":{{"prompt_tokens":20,"completion_tokens":42,"total_tokens":62,"prompt_tokens_details":{{"cached_tokens":7}},"completion_tokens_details":{{"reasoning_tokens":12}}}},"service_tier":"default"}}"#
        ),
    }
}
