//! What Anthropic refuses: each rule with a request that breaks it, the message, and a valid
//! variant that passes.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use base64::Engine as _;
use common::anthropic::{A, calls, image, messages, result, text, tool, u, user, with};
use common::{PNG, post};
use serde_json::{Value, json};
use steadfast_sim::{Model, SimProvider};

/// The first bytes of a PNG of that size.
fn png(side: u32) -> String {
    let bytes =
        [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(), &side.to_be_bytes(), &1_u32.to_be_bytes()]
            .concat();
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn marked(n: usize) -> Value {
    let blocks: Vec<Value> = (0..n)
        .map(|n| json!({"type": "text", "text": n.to_string(), "cache_control": {"type": "ephemeral"}}))
        .collect();
    user(json!(blocks))
}

#[tokio::test]
async fn every_rule() {
    let images = |n: usize, side: u32| user(json!(vec![image("image/png", &png(side)); n]));
    let no_result = |at: usize, ids: &str| {
        format!(
            "messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately \
             after: {ids}. Each `tool_use` block must have a corresponding `tool_result` block in \
             the next message."
        )
    };
    let orphan = |at: &str, id: &str| {
        format!(
            "messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each \
             `tool_result` block must have a corresponding `tool_use` block in the previous \
             message."
        )
    };
    let fine = || messages(json!([u(), calls(&["a"]), user(json!([result("a")]))]));
    let many_tools = |names: [&str; 2]| {
        let tools = names.map(|name| json!({"name": name, "input_schema": {"type": "object"}}));
        with(json!({ "tools": tools }))
    };
    let thinking = |fields: Value| {
        let mut body = with(json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}));
        for (key, value) in fields.as_object().unwrap() {
            body[key] = value.clone();
        }
        body
    };
    let s = str::to_owned;
    let table: Vec<(&str, Value, String, Value)> = vec![
        (
            "no max_tokens",
            with(json!({"max_tokens": null})),
            s("max_tokens: Field required"),
            with(json!({})),
        ),
        (
            "max_tokens type",
            with(json!({"max_tokens": "9"})),
            s("max_tokens: Input should be a valid integer"),
            with(json!({"max_tokens": 9})),
        ),
        (
            "max_tokens zero",
            with(json!({"max_tokens": 0})),
            s("max_tokens: Input should be greater than or equal to 1"),
            with(json!({"max_tokens": 1})),
        ),
        (
            "no messages",
            with(json!({"messages": null})),
            s("messages: Field required"),
            with(json!({})),
        ),
        (
            "messages type",
            with(json!({"messages": "x"})),
            s("messages: Input should be a valid list"),
            with(json!({})),
        ),
        (
            "no message",
            with(json!({"messages": []})),
            s("messages: at least one message is required"),
            with(json!({})),
        ),
        (
            "stream type",
            with(json!({"stream": 1})),
            s("stream: Input should be a valid boolean"),
            with(json!({"stream": true})),
        ),
        (
            "temperature",
            with(json!({"temperature": 1.5})),
            s("temperature: range: 0..1"),
            with(json!({"temperature": 1})),
        ),
        (
            "no role",
            messages(json!([{"content": "x"}])),
            s("messages.0.role: Field required"),
            messages(json!([u()])),
        ),
        (
            "strange role",
            messages(json!([{"role": "model", "content": "x"}])),
            s("messages.0.role: Input should be 'user' or 'assistant'"),
            messages(json!([u()])),
        ),
        (
            "system role",
            messages(json!([{"role": "system", "content": "x"}, u()])),
            s(
                "messages: Unexpected role \"system\". The Messages API accepts a top-level `system` parameter, not \"system\" as an input message role.",
            ),
            with(json!({"system": "x"})),
        ),
        (
            "system role in the middle, of a model that takes none",
            messages(json!([u(), {"role": "system", "content": "x"}])),
            s(
                "messages: Unexpected role \"system\". The Messages API accepts a top-level `system` parameter, not \"system\" as an input message role.",
            ),
            with(json!({
                "model": "claude-opus-5-5", "messages": [u(), {"role": "system", "content": "x"}],
            })),
        ),
        (
            "no content",
            messages(json!([{"role": "user"}])),
            s("messages.0.content: Field required"),
            messages(json!([u()])),
        ),
        (
            "content type",
            messages(json!([{"role": "user", "content": 3}])),
            s("messages.0.content: Input should be a valid list"),
            messages(json!([u()])),
        ),
        (
            "no block type",
            messages(json!([user(json!([{"text": "x"}]))])),
            s("messages.0.content.0.type: Field required"),
            messages(json!([user(json!([text("x")]))])),
        ),
        (
            "text missing",
            messages(json!([user(json!([{"type": "text"}]))])),
            s("messages.0.content.0.text.text: Field required"),
            messages(json!([user(json!([text("x")]))])),
        ),
        (
            "S1 first",
            messages(json!([{"role": "assistant", "content": "x"}, u()])),
            s("messages: first message must use the \"user\" role"),
            messages(json!([u(), {"role": "assistant", "content": "x"}, u()])),
        ),
        (
            "S3 unanswered",
            messages(json!([u(), calls(&["a", "b"]), user(json!([result("a")]))])),
            no_result(1, "b"),
            messages(json!([u(), calls(&["a", "b"]), user(json!([result("b"), result("a")]))])),
        ),
        ("S3 at the end", messages(json!([u(), calls(&["a"])])), no_result(1, "a"), fine()),
        (
            "S3 too late",
            messages(
                json!([u(), calls(&["a"]), u(), {"role": "assistant", "content": "x"}, user(json!([result("a")]))]),
            ),
            no_result(1, "a"),
            fine(),
        ),
        (
            "S2 neighbours are one turn",
            messages(json!([u(), calls(&["a"]), calls(&["b"]), user(json!([result("a")]))])),
            no_result(2, "b"),
            messages(json!([
                u(),
                calls(&["a"]),
                calls(&["b"]),
                user(json!([result("a")])),
                user(json!([result("b")]))
            ])),
        ),
        (
            "S4 orphan",
            messages(json!([user(json!([text("x"), result("a")]))])),
            orphan("0.content.1", "a"),
            fine(),
        ),
        (
            "S4 foreign",
            messages(json!([u(), calls(&["a"]), user(json!([result("a"), result("z")]))])),
            orphan("2.content.1", "z"),
            fine(),
        ),
        (
            "S5 twice",
            messages(json!([u(), calls(&["a"]), user(json!([result("a"), result("a")]))])),
            s(
                "messages.2.content.1: each tool_use must have a single result. Found multiple `tool_result` blocks with id: a",
            ),
            fine(),
        ),
        (
            "S6 results first",
            messages(json!([u(), calls(&["a"]), user(json!([text("so"), result("a")]))])),
            no_result(1, "a"),
            messages(json!([u(), calls(&["a"]), user(json!([result("a"), text("so")]))])),
        ),
        (
            "S8 unique",
            messages(json!([
                u(),
                calls(&["a"]),
                user(json!([result("a")])),
                calls(&["a"]),
                user(json!([result("a")]))
            ])),
            s("messages: `tool_use` ids must be unique"),
            messages(json!([
                u(),
                calls(&["a"]),
                user(json!([result("a")])),
                calls(&["b"]),
                user(json!([result("b")]))
            ])),
        ),
        (
            "S8 letters",
            messages(json!([u(), calls(&["a.b"]), user(json!([result("a.b")]))])),
            s("messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"),
            messages(json!([u(), calls(&["a_b-C9"]), user(json!([result("a_b-C9")]))])),
        ),
        (
            "input type",
            messages(
                json!([u(), {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "read", "input": "{}"}]}, user(json!([result("a")]))]),
            ),
            s("messages.1.content.0.tool_use.input: Input should be a valid dictionary"),
            fine(),
        ),
        (
            "call of a user",
            messages(json!([user(
                json!([{"type": "tool_use", "id": "a", "name": "read", "input": {}}])
            )])),
            s("messages.0: `tool_use` blocks can only be in `assistant` messages"),
            fine(),
        ),
        (
            "result of an assistant",
            messages(json!([u(), {"role": "assistant", "content": [result("a")]}])),
            s("messages.1: `tool_result` blocks can only be in `user` messages"),
            fine(),
        ),
        (
            "S9 empty string",
            messages(json!([{"role": "user", "content": ""}])),
            s("messages.0: user messages must have non-empty content"),
            messages(json!([u()])),
        ),
        (
            "S9 empty assistant",
            messages(json!([u(), {"role": "assistant", "content": []}, u()])),
            s(
                "messages.1: all messages must have non-empty content except for the optional final assistant message",
            ),
            messages(json!([u(), {"role": "assistant", "content": []}])),
        ),
        (
            "S9 empty text",
            messages(json!([user(json!([text("")]))])),
            s("messages: text content blocks must be non-empty"),
            messages(json!([user(json!([text("x")]))])),
        ),
        (
            "S9 white text",
            messages(json!([user(json!([text("x"), text(" \n")]))])),
            s("messages: text content blocks must contain non-whitespace text"),
            messages(json!([user(json!([text("x"), text("y")]))])),
        ),
        (
            "S9 white string",
            messages(json!([{"role": "user", "content": " \n"}])),
            s("messages: text content blocks must contain non-whitespace text"),
            messages(json!([u()])),
        ),
        (
            "S9 system",
            with(json!({"system": [text("")]})),
            s("system: text content blocks must be non-empty"),
            with(json!({"system": [text("x")]})),
        ),
        (
            "S10 no prefill",
            with(
                json!({"model": "claude-opus-4-6", "messages": [u(), {"role": "assistant", "content": "So"}]}),
            ),
            s(
                "This model does not support assistant message prefill. The conversation must end with a user message.",
            ),
            with(
                json!({"model": "claude-sonnet-4-5", "messages": [u(), {"role": "assistant", "content": "So"}]}),
            ),
        ),
        (
            "S10 white tail",
            messages(json!([u(), {"role": "assistant", "content": "So "}])),
            s("messages: final assistant content cannot end with trailing whitespace"),
            messages(json!([u(), {"role": "assistant", "content": "So"}])),
        ),
        (
            "S12 five marks",
            with(json!({"messages": [marked(5)]})),
            s("A maximum of 4 blocks with cache_control may be provided. Found 5."),
            with(json!({"messages": [marked(4)]})),
        ),
        (
            "S12 marks everywhere",
            with(
                json!({"messages": [marked(3)], "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
            "tools": [{"name": "t", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}]}),
            ),
            s("A maximum of 4 blocks with cache_control may be provided. Found 5."),
            with(
                json!({"messages": [marked(3)], "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}),
            ),
        ),
        (
            "S12 empty text",
            messages(json!([user(
                json!([{"type": "text", "text": "", "cache_control": {"type": "ephemeral"}}])
            )])),
            s("messages.0.content.0.text: cache_control cannot be set for empty text blocks"),
            messages(json!([marked(1)])),
        ),
        (
            "S12 kind",
            messages(json!([user(
                json!([{"type": "text", "text": "x", "cache_control": {"type": "lasting"}}])
            )])),
            s("messages.0.content.0.cache_control.type: Input should be 'ephemeral'"),
            messages(json!([marked(1)])),
        ),
        (
            "S12 order",
            messages(json!([user(
                json!([{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "y", "cache_control": {"type": "ephemeral", "ttl": "1h"}}])
            )])),
            s(
                "messages.0.content.1.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. Note that blocks are processed in the following order: `tools`, `system`, `messages`.",
            ),
            messages(json!([user(
                json!([{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}, {"type": "text", "text": "y", "cache_control": {"type": "ephemeral"}}])
            )])),
        ),
        (
            "S13 count",
            messages(json!([images(101, 1)])),
            s("Too much media: 0 document pages + 101 images > 100"),
            messages(json!([images(100, 1)])),
        ),
        (
            "S13 side",
            messages(json!([images(1, 8_001)])),
            s(
                "messages.0.content.0.image.source.base64.data: At least one of the image dimensions exceed max allowed size: 8000 pixels",
            ),
            messages(json!([images(20, 8_000)])),
        ),
        (
            "S13 side of many",
            messages(json!([images(21, 2_001)])),
            s(
                "messages.0.content.0.image.source.base64.data: At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels",
            ),
            messages(json!([images(21, 2_000)])),
        ),
        (
            "S13 bytes",
            messages(json!([user(json!([image("image/png", &"A".repeat(5 * 1024 * 1024 + 4))]))])),
            s(
                "messages.0.content.0.image.source.base64: image exceeds 5 MB maximum: 5242884 bytes > 5242880 bytes",
            ),
            with(
                json!({"model": "large", "messages": [user(json!([image("image/png", &"A".repeat(5 * 1024 * 1024))]))]}),
            ),
        ),
        (
            "S13 media type",
            messages(json!([user(json!([image("image/bmp", PNG)]))])),
            s(
                "messages.0.content.0.image.source.base64.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'",
            ),
            messages(json!([user(json!([image("image/png", PNG)]))])),
        ),
        (
            "S13 wrong media type",
            messages(json!([user(json!([image("image/jpeg", PNG)]))])),
            s(
                "messages.0.content.0.image.source.base64.data: The image was specified using the image/jpeg media type, but the image appears to be a image/png image",
            ),
            messages(json!([user(json!([image("image/png", PNG)]))])),
        ),
        (
            "S13 base64",
            messages(json!([user(json!([image("image/png", "!!")]))])),
            s("messages.0.content.0.image.source.base64: invalid base64 data"),
            messages(json!([user(json!([image("image/png", PNG)]))])),
        ),
        (
            "S13 blind model",
            with(json!({"model": "blind", "messages": [user(json!([image("image/png", PNG)]))]})),
            s("messages.0.content.0.image: 'blind' does not support image input."),
            with(json!({"messages": [user(json!([image("image/png", PNG)]))]})),
        ),
        (
            "S14 output",
            with(json!({"max_tokens": 64_001})),
            s(
                "max_tokens: 64001 > 64000, which is the maximum allowed number of output tokens for claude-sonnet-4-5",
            ),
            with(json!({"max_tokens": 64_000})),
        ),
        (
            "S14 window",
            with(
                json!({"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "x".repeat(388)}]}),
            ),
            s("prompt is too long: 101 tokens > 100 maximum"),
            with(
                json!({"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "x".repeat(380)}]}),
            ),
        ),
        (
            "S14 window with output",
            with(
                json!({"model": "tiny", "max_tokens": 50, "messages": [{"role": "user", "content": "x".repeat(188)}]}),
            ),
            s(
                "input length and `max_tokens` exceed context limit: 51 + 50 > 100, decrease input length or `max_tokens` and try again",
            ),
            with(
                json!({"model": "tiny", "max_tokens": 49, "messages": [{"role": "user", "content": "x".repeat(188)}]}),
            ),
        ),
        (
            "S15 undeclared",
            with(json!({"messages": [u(), calls(&["a"]), user(json!([result("a")]))]})),
            s("Requests which include `tool_use` or `tool_result` blocks must define tools."),
            fine(),
        ),
        (
            "tool name",
            with(json!({"tools": [{"name": "a.b", "input_schema": {"type": "object"}}]})),
            s("tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"),
            with(json!({"tools": [tool()]})),
        ),
        (
            "tool names",
            many_tools(["a", "a"]),
            s("tools: Tool names must be unique."),
            many_tools(["a", "b"]),
        ),
        (
            "no schema",
            with(json!({"tools": [{"name": "a"}]})),
            s("tools.0.custom.input_schema: Field required"),
            with(json!({"tools": [tool()]})),
        ),
        (
            "schema type",
            with(json!({"tools": [{"name": "a", "input_schema": {"type": "array"}}]})),
            s("tools.0.custom.input_schema.type: Input should be 'object'"),
            with(json!({"tools": [tool()]})),
        ),
        (
            "schema without type",
            with(json!({"tools": [{"name": "a", "input_schema": {}}]})),
            s("tools.0.custom.input_schema.type: Field required"),
            with(json!({"tools": [tool()]})),
        ),
        (
            "choice of no tool",
            with(json!({"tools": [tool()], "tool_choice": {"type": "tool", "name": "write"}})),
            s("Tool 'write' not found in provided tools"),
            with(json!({"tools": [tool()], "tool_choice": {"type": "tool", "name": "read"}})),
        ),
        (
            "choice without tools",
            with(json!({"tool_choice": {"type": "auto"}})),
            s("tool_choice may only be specified while providing tools"),
            with(json!({"tools": [tool()], "tool_choice": {"type": "auto"}})),
        ),
        (
            "small budget",
            thinking(json!({"thinking": {"type": "enabled", "budget_tokens": 1023}})),
            s("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"),
            thinking(json!({})),
        ),
        (
            "budget above output",
            thinking(json!({"max_tokens": 1024})),
            s(
                "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our documentation at https://docs.claude.com/en/docs/build-with-claude/extended-thinking#max-tokens-and-context-window-size",
            ),
            thinking(json!({"max_tokens": 1025})),
        ),
        (
            "thinking and temperature",
            thinking(json!({"temperature": 0.5})),
            s(
                "`temperature` may only be set to 1 when thinking is enabled. Please consult our documentation at https://docs.claude.com/en/docs/build-with-claude/extended-thinking#important-considerations-when-using-extended-thinking",
            ),
            thinking(json!({"temperature": 1})),
        ),
        (
            "thinking and force",
            thinking(json!({"tools": [tool()], "tool_choice": {"type": "any"}})),
            s("Thinking may not be enabled when tool_choice forces tool use."),
            thinking(json!({"tools": [tool()], "tool_choice": {"type": "auto"}})),
        ),
        (
            "model does not think",
            thinking(json!({"model": "claude-3-5-haiku-latest"})),
            s("'claude-3-5-haiku-latest' does not support thinking."),
            thinking(json!({})),
        ),
    ];
    let provider = SimProvider::builder(A)
        .with_model(Model::new("tiny", 100, 50))
        .with_model(Model::new("blind", 200_000, 8_192).without_vision())
        .with_model(Model::new("large", 10_000_000, 8_192))
        .build();
    for (rule, broken, words, repaired) in table {
        let read = post(&provider, &broken).await;
        assert_eq!(read.status, 400, "{rule}: {}", read.text());
        let id = read.header("request-id").unwrap();
        let expected = json!({
            "type": "error",
            "error": {"type": "invalid_request_error", "message": words},
            "request_id": id,
        });
        assert_eq!(read.json(), expected, "{rule}");
        let read = post(&provider, &repaired).await;
        assert_eq!(read.status, 200, "{rule}, repaired: {}", read.text());
    }
}
