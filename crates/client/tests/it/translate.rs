//! Requests of each dialect, written for each other one.

use serde_json::{Value, json};
use steadfast_chat::{
    ChatRequest, Media, MediaKind, MediaSource, Message, Part, Role, ThinkingConfig,
};
use steadfast_client::dialect::translation;
use steadfast_client::dialect::{Wire, codec};
use steadfast_core::{Dialect, Reason};

use crate::fixtures::{decode, encode, json as parse, try_encode};

/// One conversation in each dialect: instructions, an image, thinking, two calls at once, their
/// results in another order, tools, and unknown fields.
pub(crate) const REQUESTS: [(Dialect, &str); 4] = [
    (Dialect::OpenAi, OPENAI),
    (Dialect::Anthropic, ANTHROPIC),
    (Dialect::Gemini, GEMINI),
    (Dialect::Responses, RESPONSES),
];

const OPENAI: &str = r#"{"model":"gpt-4o", "messages":[{"role":"system","content":"Be brief.","name":"op"},{"role":"user","content":[{"type":"text","text":"What is \u00e9 in this?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","detail":"low"}},{"type":"image_url","image_url":{"url":"https://x.example/a.jpg"}}]},{"role":"assistant","content":"Let me look.","reasoning_content":"hm","tool_calls":[{"id":"call:1","type":"function","function":{"name":"read","arguments":"{\"path\": \"a\",  \"n\": 1.50}"}},{"id":"call_2","type":"function","function":{"name":"list","arguments":"{}"}}]},{"role":"tool","tool_call_id":"call_2","content":"{\"files\": [\"a\"]}"},{"role":"tool","tool_call_id":"call:1","content":"contents"},{"role":"user","content":"Go on.","x_unknown":true}],"tools":[{"type":"function","function":{"name":"read","description":"Reads.","parameters":{"type":"object","properties":{"path":{"type":"string"}}},"strict":true}},{"type":"function","function":{"name":"list"}}],"tool_choice":"required","parallel_tool_calls":false,"max_completion_tokens":500,"temperature":1.5,"top_p":0.9,"stop":["END"],"seed":7,"presence_penalty":0.25,"user":"u-1","logit_bias":{"a": 1.50, "b":[ 1e2 ]}}"#;

const ANTHROPIC: &str = r#"{"model":"claude-sonnet-4-5", "max_tokens":500,"system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"What is \u00e9 in this?","x_unknown":1},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},{"type":"image","source":{"type":"url","url":"https://x.example/a.jpg"}}]},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"c2ln"},{"type":"redacted_thinking","data":"zz"},{"type":"text","text":"Let me look."},{"type":"tool_use","id":"toolu_1","name":"read","input":{"path": "a",  "n": 1.50}},{"type":"tool_use","id":"toolu_2","name":"list","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_2","content":[{"type":"text","text":"{\"files\": [\"a\"]}","x_unknown":2}]},{"type":"tool_result","tool_use_id":"toolu_1","content":"contents","is_error":true},{"type":"text","text":"Go on."}]}],"tools":[{"name":"read","description":"Reads.","input_schema":{"type":"object","properties":{"path":{"type":"string"}}},"cache_control":{"type":"ephemeral"}},{"name":"list","input_schema":{"type":"object"}}],"tool_choice":{"type":"any","disable_parallel_tool_use":true},"temperature":0.7,"top_k":40,"stop_sequences":["END"],"metadata":{"user_id":"u-1"},"service_tier":{"a": 1.50, "b":[ 1e2 ]}}"#;

const GEMINI: &str = r#"{"systemInstruction":{"parts":[{"text":"Be brief."}]},"contents":[{"role":"user","parts":[{"text":"What is \u00e9 in this?"},{"inlineData":{"mimeType":"image/png","data":"AAAA"}},{"fileData":{"mimeType":"image/jpeg","fileUri":"https://x.example/a.jpg"}}]},{"role":"model","parts":[{"text":"hm","thought":true},{"text":"Let me look."},{"functionCall":{"name":"read","args":{"path": "a",  "n": 1.50}},"thoughtSignature":"c2ln"},{"functionCall":{"name":"list","args":{}}}]},{"role":"user","parts":[{"functionResponse":{"name":"list","response":{"files": ["a"]}}},{"functionResponse":{"name":"read","response":{"result":"contents"}}},{"text":"Go on."}]}],"tools":[{"functionDeclarations":[{"name":"read","description":"Reads.","parameters":{"type":"OBJECT","properties":{"path":{"type":"STRING"}}}},{"name":"list"}]}],"toolConfig":{"functionCallingConfig":{"mode":"ANY"}},"generationConfig":{"maxOutputTokens":500,"temperature":1.5,"topP":0.9,"stopSequences":["END"],"seed":7,"x":{"a": 1.50, "b":[ 1e2 ]}},"safetySettings":[]}"#;

const RESPONSES: &str = r#"{"model":"gpt-4o", "instructions":"Be brief.","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"What is \u00e9 in this?"},{"type":"input_image","image_url":"data:image/png;base64,AAAA","detail":"low"},{"type":"input_image","image_url":"https://x.example/a.jpg"}]},{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"c2ln"},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Let me look."}],"id":"msg_1","status":"completed","phase":"commentary"},{"type":"function_call","call_id":"call:1","name":"read","arguments":"{\"path\": \"a\",  \"n\": 1.50}","id":"fc_1","status":"completed"},{"type":"function_call","call_id":"call_2","name":"list","arguments":"{}"},{"type":"function_call_output","call_id":"call_2","output":"{\"files\": [\"a\"]}"},{"type":"function_call_output","call_id":"call:1","output":"contents"},{"type":"message","role":"user","content":[{"type":"input_text","text":"Go on."}],"x_unknown":true}],"tools":[{"type":"function","name":"read","description":"Reads.","parameters":{"type":"object","properties":{"path":{"type":"string"}}},"strict":true},{"type":"function","name":"list"}],"tool_choice":"required","parallel_tool_calls":false,"max_output_tokens":500,"temperature":1.5,"top_p":0.9,"user":"u-1","x_unknown":{"a": 1.50, "b":[ 1e2 ]}}"#;

/// The request written for `to`, and the ids of its calls.
fn translated(from: Dialect, to: Dialect) -> Value {
    let body = REQUESTS.iter().find(|request| request.0 == from).unwrap().1;
    let written = encode(to, &decode(from, body));
    for foreign in ["c2ln", "zz", "x_unknown", "1e2", "\"hm\""] {
        assert!(!written.contains(foreign), "{from} to {to}: {foreign}: {written}");
    }
    if to != Dialect::Anthropic {
        assert!(!written.contains("cache_control"), "{from} to {to}: {written}");
    }
    // Arguments as they were written.
    let args = if matches!(to, Dialect::OpenAi | Dialect::Responses) {
        r#"{\"path\": \"a\",  \"n\": 1.50}"#
    } else {
        r#"{"path": "a",  "n": 1.50}"#
    };
    assert!(written.contains(args), "{from} to {to}: {written}");
    parse(&written)
}

/// Takes the cache marks out of a request for Anthropic; where they were.
fn take_marks(written: &mut Value) -> Vec<String> {
    fn take(value: &mut Value, path: &str, marks: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                if let Some(mark) = fields.remove("cache_control") {
                    assert_eq!(mark, json!({"type": "ephemeral"}));
                    marks.push(path.to_owned());
                }
                fields
                    .iter_mut()
                    .for_each(|(name, value)| take(value, &format!("{path}/{name}"), marks));
            }
            Value::Array(items) => {
                let items = items.iter_mut().enumerate();
                items.for_each(|(at, value)| take(value, &format!("{path}/{at}"), marks));
            }
            _ => {}
        }
    }
    let mut marks = Vec::new();
    take(written, "", &mut marks);
    marks
}

fn for_openai(from: Dialect) -> Value {
    let written = translated(from, Dialect::OpenAi);
    let ids: Vec<Value> = written["messages"][2]["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["id"].clone())
        .collect();
    let expected = match from {
        Dialect::Gemini => ["call_0", "call_1"],
        // What is in no id of the dialect is written otherwise.
        Dialect::Responses => ["call_1_95b5b0995da20468", "call_2"],
        _ => ["toolu_1", "toolu_2"],
    };
    assert_eq!(ids, expected);
    written
}

#[test]
fn to_openai() {
    for from in [Dialect::Anthropic, Dialect::Gemini, Dialect::Responses] {
        let written = for_openai(from);
        let ids = &written["messages"][2]["tool_calls"];
        // The dialect has no field for it.
        let failed = if from == Dialect::Anthropic { "Error: contents" } else { "contents" };
        assert_eq!(
            written["messages"],
            json!([
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [
                    {"type": "text", "text": "What is é in this?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    {"type": "image_url", "image_url": {"url": "https://x.example/a.jpg"}},
                ]},
                {"role": "assistant", "content": "Let me look.", "tool_calls": [
                    {"id": ids[0]["id"], "type": "function", "function": {
                        "name": "read", "arguments": "{\"path\": \"a\",  \"n\": 1.50}"}},
                    {"id": ids[1]["id"], "type": "function", "function": {
                        "name": "list", "arguments": "{}"}},
                ]},
                {"role": "tool", "tool_call_id": ids[1]["id"], "content": "{\"files\": [\"a\"]}"},
                {"role": "tool", "tool_call_id": ids[0]["id"], "content": failed},
                {"role": "user", "content": "Go on."},
            ]),
            "{from}"
        );
        let mut read = json!({"type": "function", "function": {
            "name": "read", "description": "Reads.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        }});
        if from == Dialect::Responses {
            read["function"]["strict"] = json!(true);
        }
        assert_eq!(written["tools"][0], read, "{from}");
        assert_eq!(written["tools"][1]["function"]["name"], "list");
        assert_eq!(written["tool_choice"], "required");
        assert_eq!(written["max_completion_tokens"], 500);
        let stop = written.get("stop").cloned();
        assert_eq!(stop, (from != Dialect::Responses).then(|| json!(["END"])), "{from}");
        match from {
            Dialect::Responses => {
                assert_eq!(
                    (&written["temperature"], &written["user"]),
                    (&json!(1.5), &json!("u-1"))
                );
            }
            Dialect::Anthropic => {
                assert_eq!(written["parallel_tool_calls"], false);
                assert_eq!(
                    (&written["temperature"], &written["user"]),
                    (&json!(0.7), &json!("u-1"))
                );
            }
            _ => {
                assert_eq!((&written["temperature"], &written["seed"]), (&json!(1.5), &json!(7)));
            }
        }
        let allowed = [
            "model",
            "messages",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "max_completion_tokens",
            "temperature",
            "top_p",
            "stop",
            "seed",
            "user",
        ];
        for name in written.as_object().unwrap().keys() {
            assert!(allowed.contains(&name.as_str()), "{from}: {name}");
        }
    }
}

#[test]
fn to_anthropic() {
    for from in [Dialect::OpenAi, Dialect::Gemini, Dialect::Responses] {
        let mut written = translated(from, Dialect::Anthropic);
        assert_eq!(take_marks(&mut written), ["/system/0", "/messages/2/content/2", "/tools/1"]);
        let calls = written["messages"][1]["content"].as_array().unwrap();
        let (first, second) = (&calls[1]["id"], &calls[2]["id"]);
        for id in [first, second] {
            let id = id.as_str().unwrap();
            assert!(
                id.len() <= 64
                    && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
            );
        }
        assert_ne!(first, second);
        assert_eq!(written["system"], json!([{"type": "text", "text": "Be brief."}]));
        assert_eq!(
            written["messages"],
            json!([
                {"role": "user", "content": [
                    {"type": "text", "text": "What is é in this?"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                    {"type": "image", "source": {"type": "url", "url": "https://x.example/a.jpg"}},
                ]},
                {"role": "assistant", "content": [
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": first, "name": "read", "input": {"path": "a", "n": 1.5}},
                    {"type": "tool_use", "id": second, "name": "list", "input": {}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": first, "content": "contents"},
                    {"type": "tool_result", "tool_use_id": second, "content": "{\"files\": [\"a\"]}"},
                    {"type": "text", "text": "Go on."},
                ]},
            ]),
            "{from}"
        );
        let mut tools = json!([
            {"name": "read", "description": "Reads.",
             "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}},
            {"name": "list", "input_schema": {"type": "object"}},
        ]);
        if from != Dialect::Gemini {
            tools[0]["strict"] = json!(true);
        }
        assert_eq!(written["tools"], tools);
        assert_eq!(written["tool_choice"]["type"], "any");
        assert_eq!(written["max_tokens"], 500);
        assert_eq!(written["temperature"], 1.0, "clamped to what the vendor takes");
        assert_eq!(written.get("top_p"), None);
        let stop = written.get("stop_sequences").cloned();
        assert_eq!(stop, (from != Dialect::Responses).then(|| json!(["END"])), "{from}");
        assert_eq!(written.get("seed"), None);
        if from != Dialect::Gemini {
            assert_eq!(written["tool_choice"]["disable_parallel_tool_use"], true);
            assert_eq!(written["metadata"], json!({"user_id": "u-1"}));
        }
    }
}

#[test]
fn to_gemini() {
    for from in [Dialect::OpenAi, Dialect::Anthropic, Dialect::Responses] {
        let written = translated(from, Dialect::Gemini);
        let read = if from == Dialect::Anthropic {
            json!({"error": "contents"})
        } else {
            json!({"result": "contents"})
        };
        assert_eq!(written["systemInstruction"], json!({"parts": [{"text": "Be brief."}]}));
        assert_eq!(
            written["contents"],
            json!([
                {"role": "user", "parts": [
                    {"text": "What is é in this?"},
                    {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
                    {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://x.example/a.jpg"}},
                ]},
                {"role": "model", "parts": [
                    {"text": "Let me look."},
                    {"functionCall": {"name": "read", "args": {"path": "a", "n": 1.5}}},
                    {"functionCall": {"name": "list", "args": {}}},
                ]},
                {"role": "user", "parts": [
                    {"functionResponse": {"name": "read", "response": read}},
                    {"functionResponse": {"name": "list", "response": {"files": ["a"]}}},
                    {"text": "Go on."},
                ]},
            ]),
            "{from}"
        );
        assert_eq!(
            written["tools"][0]["functionDeclarations"][0],
            json!({"name": "read", "description": "Reads.", "parametersJsonSchema":
                {"type": "object", "properties": {"path": {"type": "string"}}}})
        );
        assert_eq!(written["toolConfig"]["functionCallingConfig"], json!({"mode": "ANY"}));
        assert_eq!(written["generationConfig"]["maxOutputTokens"], 500);
        let stop = written["generationConfig"].get("stopSequences").cloned();
        assert_eq!(stop, (from != Dialect::Responses).then(|| json!(["END"])), "{from}");
        assert_eq!(written.get("model"), None);
    }
}

#[test]
fn to_responses() {
    for from in [Dialect::OpenAi, Dialect::Anthropic, Dialect::Gemini] {
        let written = translated(from, Dialect::Responses);
        let [first, second] = [2, 3].map(|at| &written["input"][at]["call_id"]);
        let failed = if from == Dialect::Anthropic { "Error: contents" } else { "contents" };
        assert_eq!(written["instructions"], "Be brief.");
        assert_eq!(
            written["input"],
            json!([
                {"type": "message", "role": "user", "content": [
                    {"type": "input_text", "text": "What is é in this?"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
                    {"type": "input_image", "image_url": "https://x.example/a.jpg"},
                ]},
                {"type": "message", "role": "assistant", "content": [
                    {"type": "output_text", "text": "Let me look."},
                ]},
                {"type": "function_call", "call_id": first, "name": "read",
                 "arguments": "{\"path\": \"a\",  \"n\": 1.50}"},
                {"type": "function_call", "call_id": second, "name": "list", "arguments": "{}"},
                {"type": "function_call_output", "call_id": second,
                 "output": "{\"files\": [\"a\"]}"},
                {"type": "function_call_output", "call_id": first, "output": failed},
                {"type": "message", "role": "user", "content": [
                    {"type": "input_text", "text": "Go on."},
                ]},
            ]),
            "{from}"
        );
        // The field is required where a tool has none.
        let none = match from {
            Dialect::Anthropic => json!({"type": "object"}),
            _ => json!({"type": "object", "properties": {}}),
        };
        assert_eq!(
            written["tools"],
            json!([
                {"type": "function", "name": "read", "description": "Reads.", "strict": from == Dialect::OpenAi,
                 "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
                {"type": "function", "name": "list", "strict": false, "parameters": none},
            ]),
            "{from}"
        );
        assert_eq!(written["tool_choice"], "required");
        assert_eq!(written["max_output_tokens"], 500);
        assert_eq!((&written["store"], &written["include"]), (&json!(false), &Value::Null));
    }
}

/// A turn of several items is one message; changed, it is the same items again.
#[test]
fn a_turn_in_items_is_one_message() {
    let request = decode(Dialect::Responses, RESPONSES);
    let roles: Vec<Role> = request.messages.iter().map(Message::role).collect();
    assert_eq!(
        roles,
        [Role::System, Role::User, Role::Assistant, Role::Tool, Role::Tool, Role::User]
    );
    let parts = request.messages[2].parts();
    assert!(matches!(
        parts,
        [Part::Thinking(_), Part::Text(_), Part::ToolCall(_), Part::ToolCall(_)]
    ));
}

#[test]
fn gemini_3_gets_the_documented_signature_for_calls_it_did_not_make() {
    let mut request = decode(Dialect::OpenAi, OPENAI);
    request.model = "gemini-3-flash-preview".into();
    let written = parse(&encode(Dialect::Gemini, &request));
    let parts = &written["contents"][1]["parts"];
    assert_eq!(parts[1]["thoughtSignature"], "skip_thought_signature_validator");
    assert_eq!(parts[2].get("thoughtSignature"), None, "the first of a turn is enough");
}

/// A request with this field more.
fn with(from: Dialect, more: &str) -> String {
    match from {
        Dialect::Gemini => {
            format!(r#"{{"contents":[{{"role":"user","parts":[{{"text":"x"}}]}}],{more}}}"#)
        }
        Dialect::Anthropic => format!(
            r#"{{"model":"claude-sonnet-4-5","max_tokens":40000,"messages":[{{"role":"user","content":"x"}}],{more}}}"#
        ),
        Dialect::Responses => format!(r#"{{"model":"gpt-5","input":"x",{more}}}"#),
        Dialect::OpenAi => {
            format!(r#"{{"model":"gpt-5","messages":[{{"role":"user","content":"x"}}],{more}}}"#)
        }
    }
}

#[test]
fn thinking_in_all_pairs() {
    use Dialect::{Anthropic, Gemini, OpenAi};
    for (from, more, to, model, wanted) in [
        (
            OpenAi,
            r#""reasoning_effort":"high""#,
            Anthropic,
            "claude-sonnet-4-5",
            json!({"thinking": {"type": "enabled", "budget_tokens": 24576}}),
        ),
        (
            OpenAi,
            r#""reasoning_effort":"high""#,
            Anthropic,
            "claude-opus-4-7",
            json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
        ),
        (OpenAi, r#""reasoning_effort":"none""#, Anthropic, "claude-opus-4-7", json!({})),
        (
            OpenAi,
            r#""reasoning_effort":"low""#,
            Gemini,
            "gemini-2.5-flash",
            json!({"thinkingConfig": {"thinkingBudget": 1024, "includeThoughts": true}}),
        ),
        (
            OpenAi,
            r#""reasoning_effort":"medium""#,
            Gemini,
            "gemini-3-flash",
            json!({"thinkingConfig": {"thinkingLevel": "high", "includeThoughts": true}}),
        ),
        (
            OpenAi,
            r#""reasoning_effort":"none""#,
            Gemini,
            "gemini-2.5-flash",
            json!({"thinkingConfig": {"thinkingBudget": 0}}),
        ),
        (
            Anthropic,
            r#""thinking":{"type":"enabled","budget_tokens":8000}"#,
            OpenAi,
            "gpt-5",
            json!({"reasoning_effort": "medium"}),
        ),
        (
            Anthropic,
            r#""thinking":{"type":"enabled","budget_tokens":8000}"#,
            OpenAi,
            "gpt-4o",
            json!({}),
        ),
        (
            Anthropic,
            r#""thinking":{"type":"enabled","budget_tokens":8000}"#,
            Gemini,
            "gemini-2.5-pro",
            json!({"thinkingConfig": {"thinkingBudget": 8000, "includeThoughts": true}}),
        ),
        (
            Anthropic,
            r#""thinking":{"type":"disabled"}"#,
            OpenAi,
            "gpt-5",
            json!({"reasoning_effort": "minimal"}),
        ),
        (
            Gemini,
            r#""generationConfig":{"thinkingConfig":{"thinkingBudget":0}}"#,
            OpenAi,
            "gpt-5.4",
            json!({"reasoning_effort": "none"}),
        ),
        (
            Anthropic,
            r#""thinking":{"type":"disabled"}"#,
            OpenAi,
            "gpt-7-of-tomorrow",
            json!({"reasoning_effort": "low"}),
        ),
        (Anthropic, r#""thinking":{"type":"disabled"}"#, OpenAi, "gpt-4o", json!({})),
        (
            Gemini,
            r#""generationConfig":{"thinkingConfig":{"thinkingBudget":0}}"#,
            OpenAi,
            "o3",
            json!({"reasoning_effort": "low"}),
        ),
        (
            Gemini,
            r#""generationConfig":{"thinkingConfig":{"thinkingBudget":0}}"#,
            OpenAi,
            "gpt-5.1",
            json!({"reasoning_effort": "none"}),
        ),
        (
            Anthropic,
            r#""thinking":{"type":"adaptive"},"output_config":{"effort":"max"}"#,
            OpenAi,
            "gpt-5",
            json!({"reasoning_effort": "high"}),
        ),
        (
            Gemini,
            r#""generationConfig":{"thinkingConfig":{"thinkingBudget":30000}}"#,
            OpenAi,
            "o3",
            json!({"reasoning_effort": "high"}),
        ),
        (
            Gemini,
            r#""generationConfig":{"thinkingConfig":{"thinkingLevel":"LOW"}}"#,
            OpenAi,
            "openai/gpt-5.1",
            json!({"reasoning_effort": "low"}),
        ),
        (
            Gemini,
            r#""generationConfig":{"thinkingConfig":{"thinkingBudget":-1}}"#,
            Anthropic,
            "claude-sonnet-4-5",
            json!({"thinking": {"type": "enabled", "budget_tokens": 8192}}),
        ),
        (
            Gemini,
            r#""generationConfig":{"thinkingConfig":{"thinkingBudget":2000}}"#,
            Anthropic,
            "claude-sonnet-4-5",
            json!({"thinking": {"type": "enabled", "budget_tokens": 2000}}),
        ),
    ] {
        let mut request = decode(from, &with(from, more));
        request.model = model.into();
        let written = parse(&encode(to, &request));
        let config = if to == Gemini { &written["generationConfig"] } else { &written };
        let mut got = json!({});
        for name in ["thinking", "output_config", "reasoning_effort", "thinkingConfig"] {
            if let Some(value) = config.get(name) {
                got[name] = value.clone();
            }
        }
        assert_eq!(got, wanted, "{from} {more} to {to} {model}");
    }
}

#[test]
fn formats_in_all_pairs() {
    use Dialect::{Anthropic, Gemini, OpenAi};
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let strict = format!(
        r#""response_format":{{"type":"json_schema","json_schema":{{"name":"n","strict":true,"schema":{schema}}}}}"#
    );
    let loose = strict.replace("\"strict\":true,", "");
    let object = r#""response_format":{"type":"json_object"}"#;
    let anthropic =
        format!(r#""output_config":{{"format":{{"type":"json_schema","schema":{schema}}}}}"#);
    let gemini = r#""generationConfig":{"responseMimeType":"application/json","responseSchema":{"type":"OBJECT","properties":{"a":{"type":"STRING"}}}}"#;

    let written = |from, more: &str, to| parse(&encode(to, &decode(from, &with(from, more))));
    let mut closed = schema.clone();
    closed["additionalProperties"] = json!(false);
    let held = json!({"format": {"type": "json_schema", "schema": closed}});
    let format = written(OpenAi, &strict, Anthropic);
    assert_eq!(format["output_config"], held);
    assert_eq!(format.get("system"), None);
    for more in [loose.as_str(), object] {
        let asked = written(OpenAi, more, Anthropic);
        assert_eq!(asked.get("output_config"), None);
        let prompt = asked["system"][0]["text"].as_str().unwrap();
        assert!(
            prompt.contains("JSON") && (more == object || prompt.contains("\"properties\"")),
            "{prompt}"
        );
    }
    let config = &written(OpenAi, &strict, Gemini)["generationConfig"];
    assert_eq!(config["responseMimeType"], "application/json");
    assert_eq!(config["responseJsonSchema"], schema);
    let config = &written(OpenAi, object, Gemini)["generationConfig"];
    assert_eq!(config, &json!({"responseMimeType": "application/json"}));

    let loose = json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}});
    assert_eq!(written(Anthropic, &anthropic, OpenAi)["response_format"], loose);
    let request = decode(Anthropic, &with(Anthropic, &anthropic));
    assert_eq!(translation::check(&request, OpenAi).unwrap().to_string(), "strict");
    let mut whole = closed.clone();
    whole["required"] = json!(["a"]);
    let anthropic = anthropic.replace(&schema.to_string(), &whole.to_string());
    let request = decode(Anthropic, &with(Anthropic, &anthropic));
    assert_eq!(translation::check(&request, OpenAi).unwrap().to_string(), "");
    let format = &written(Anthropic, &anthropic, OpenAi)["response_format"]["json_schema"];
    assert_eq!(*format, json!({"name": "answer", "schema": whole, "strict": true}));
    let config = &written(Anthropic, &anthropic, Gemini)["generationConfig"];
    assert_eq!(config["responseJsonSchema"], whole);

    let format = &written(Gemini, gemini, OpenAi)["response_format"];
    assert_eq!(
        format,
        &json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})
    );
    let asked = written(Gemini, gemini, Anthropic);
    assert!(asked["system"][0]["text"].as_str().unwrap().contains("\"object\""), "an older model");
    let mut request = decode(Gemini, &with(Gemini, gemini));
    request.model = "claude-sonnet-4-5".into();
    let asked = parse(&encode(Anthropic, &request));
    assert_eq!((&asked["output_config"], asked.get("system")), (&held, None));
    let map = gemini.replace(r#"{"type":"STRING"}"#, r#"{"type":"OBJECT"}"#);
    let mut request = decode(Gemini, &with(Gemini, &map));
    request.model = "claude-sonnet-4-5".into();
    let asked = parse(&encode(Anthropic, &request));
    assert!(asked["system"][0]["text"].as_str().unwrap().contains("\"object\""), "{asked}");
}

#[test]
fn tool_choices_in_all_pairs() {
    let openai = [
        ("auto", r#""auto""#),
        ("none", r#""none""#),
        ("required", r#""required""#),
        ("tool", r#"{"type":"function","function":{"name":"f"}}"#),
    ];
    let anthropic = |kind: &str| match kind {
        "auto" => json!({"type": "auto"}),
        "none" => json!({"type": "none"}),
        "required" => json!({"type": "any"}),
        _ => json!({"type": "tool", "name": "f"}),
    };
    let gemini = |kind: &str| match kind {
        "auto" => json!({"mode": "AUTO"}),
        "none" => json!({"mode": "NONE"}),
        "required" => json!({"mode": "ANY"}),
        _ => json!({"mode": "ANY", "allowedFunctionNames": ["f"]}),
    };
    let responses = |kind: &str| match kind {
        "auto" | "none" | "required" => json!(kind),
        _ => json!({"type": "function", "name": "f"}),
    };
    for (kind, tool_choice) in openai {
        let bodies = [
            (
                Dialect::Responses,
                format!(
                    r#""tools":[{{"type":"function","name":"f"}}],"tool_choice":{}"#,
                    responses(kind)
                ),
            ),
            (
                Dialect::OpenAi,
                format!(
                    r#""tools":[{{"type":"function","function":{{"name":"f"}}}}],"tool_choice":{tool_choice}"#
                ),
            ),
            (
                Dialect::Anthropic,
                format!(
                    r#""tools":[{{"name":"f","input_schema":{{"type":"object"}}}}],"tool_choice":{}"#,
                    anthropic(kind)
                ),
            ),
            (
                Dialect::Gemini,
                format!(
                    r#""tools":[{{"functionDeclarations":[{{"name":"f"}}]}}],"toolConfig":{{"functionCallingConfig":{}}}"#,
                    gemini(kind)
                ),
            ),
        ];
        for (from, more) in bodies {
            let request = decode(from, &with(from, &more));
            let [a, b, c, d] = Dialect::ALL.map(|to| parse(&encode(to, &request)));
            assert_eq!(a["tool_choice"], parse(tool_choice), "{from} {kind}");
            assert_eq!(b["tool_choice"], anthropic(kind), "{from} {kind}");
            assert_eq!(c["toolConfig"]["functionCallingConfig"], gemini(kind), "{from} {kind}");
            assert_eq!(d["tool_choice"], responses(kind), "{from} {kind}");
        }
    }
}

#[test]
fn what_a_dialect_can_not_express_is_refused_by_name() {
    use Dialect::{Anthropic, Gemini, OpenAi};
    let user = |part: &str| {
        format!(
            r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"user","content":[{part}]}}]}}"#
        )
    };
    for (from, body, to, what) in [
        (OpenAi, with(OpenAi, r#""n":2"#), Anthropic, "several answers"),
        (OpenAi, with(OpenAi, r#""n":2"#), Gemini, "several answers"),
        (
            Gemini,
            with(Gemini, r#""generationConfig":{"candidateCount":2}"#),
            OpenAi,
            "several answers",
        ),
        (
            OpenAi,
            with(OpenAi, r#""tools":[{"type":"custom","custom":{"name":"x"}}]"#),
            Gemini,
            "openai tool `custom`",
        ),
        (
            Anthropic,
            with(Anthropic, r#""tools":[{"type":"web_search_20250305","name":"web_search"}]"#),
            OpenAi,
            "`web_search_20250305`",
        ),
        (
            Gemini,
            with(Gemini, r#""tools":[{"googleSearch":{}}]"#),
            Anthropic,
            "gemini tool `googleSearch`",
        ),
        (
            OpenAi,
            user(r#"{"type":"video_url","video_url":{"url":"https://x"}}"#),
            Gemini,
            "`video_url`",
        ),
        (
            OpenAi,
            user(r#"{"type":"file","file":{"file_id":"f"}}"#),
            Anthropic,
            "uploaded to another vendor",
        ),
        (
            OpenAi,
            user(r#"{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}}"#),
            Anthropic,
            "Audio",
        ),
    ] {
        let request = decode(from, &body);
        let failure = try_encode(to, &request).unwrap_err();
        assert_eq!(failure.reason(), Reason::Unsupported, "{failure}");
        assert_eq!(failure.attempts(), 0);
        assert!(failure.message().contains(what), "{failure}, wanted {what}");
        assert_eq!(encode(from, &request), body, "its own dialect has it");
    }
}

/// OpenAI refuses a batch of calls when anything is between their results.
#[test]
fn media_of_tools_come_after_all_their_results() {
    use steadfast_chat::{ChatRequest, Message, Part, Role, ToolResult};
    let call = |id: &str| Part::tool_call(id, "shot", "{}");
    let result = |id: &str, content| {
        let result = ToolResult { id: id.into(), content, ..ToolResult::default() };
        Message::new(Role::Tool, vec![Part::ToolResult(result)])
    };
    let request = ChatRequest::new(vec![
        Message::user("Look."),
        Message::new(Role::Assistant, vec![call("a"), call("b"), call("c")]),
        result("a", vec![Part::image("image/png", "AAAA")]),
        result("b", vec![Part::text("nothing")]),
        result("c", vec![Part::text("this"), Part::image("image/png", "BBBB")]),
        Message::user("And?"),
    ])
    .with_model("gpt-4o");
    let written = parse(&encode(Dialect::OpenAi, &request));
    let messages = written["messages"].as_array().unwrap();
    let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "tool", "user", "user"]);
    let shown = |at: usize| messages[5]["content"][at]["image_url"]["url"].as_str().unwrap();
    assert!(shown(0).ends_with("AAAA") && shown(1).ends_with("BBBB"), "{written}");
    assert_eq!(messages[6]["content"], "And?");
}

#[test]
fn documents_and_images_of_tools_are_translated() {
    let body = r#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"JVBE"}},{"type":"document","source":{"type":"text","media_type":"text/plain","data":"plain words"}}]},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"shot","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}]}]}"#;
    let request = decode(Dialect::Anthropic, body);
    let written = parse(&encode(Dialect::OpenAi, &request));
    assert_eq!(
        written["messages"][0]["content"],
        json!([
            {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,JVBE"}},
            {"type": "text", "text": "plain words"},
        ])
    );
    assert_eq!(
        written["messages"][2],
        json!({"role": "tool", "tool_call_id": "t", "content": "(no output)"})
    );
    assert_eq!(
        written["messages"][3]["content"][0]["image_url"]["url"],
        "data:image/png;base64,AAAA"
    );
    let written = parse(&encode(Dialect::Gemini, &request));
    assert_eq!(written["contents"][0]["parts"][0]["inlineData"]["mimeType"], "application/pdf");
    assert_eq!(
        written["contents"][2]["parts"],
        json!([
            {"functionResponse": {"name": "shot", "response": {"result": ""}}},
            {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
        ])
    );
}

#[test]
fn irregular_conversations_become_valid() {
    // It begins with the model, has two neighbours of one role, an empty message, and a prefill.
    let body = r#"{"model":"m","messages":[{"role":"assistant","content":"Hello."},{"role":"user","content":"a"},{"role":"developer","content":"Late."},{"role":"user","content":"b"},{"role":"assistant","content":"  "},{"role":"user","content":"c"},{"role":"assistant","content":"So \n"}]}"#;
    let request = decode(Dialect::OpenAi, body);
    let mut written = parse(&encode(Dialect::Anthropic, &request));
    assert_eq!(take_marks(&mut written), ["/system/0"], "a prefill is no turn that comes again");
    assert_eq!(written["system"], json!([{"type": "text", "text": "Late."}]));
    assert_eq!(
        written["messages"],
        json!([
            {"role": "user", "content": "Continue."},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": [
                {"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "text", "text": "c"},
            ]},
            {"role": "assistant", "content": "So"},
        ])
    );
    assert_eq!(written["max_tokens"], 8_192, "the dialect needs a limit");
    let written = parse(&encode(Dialect::Gemini, &request));
    let roles: Vec<&Value> =
        written["contents"].as_array().unwrap().iter().map(|content| &content["role"]).collect();
    assert!(roles.windows(2).all(|pair| pair[0] != pair[1]), "{roles:?}");
}

#[test]
fn what_comes_from_a_dialect_without_cache_marks_is_marked_where_it_can_be() {
    let marks = |more: &str| {
        let body = format!(r#"{{"model":"gpt-4o","messages":[{more}]}}"#);
        take_marks(&mut parse(&encode(Dialect::Anthropic, &decode(Dialect::OpenAi, &body))))
    };
    let call = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"a","content":"1"}"#;
    let user = r#"{"role":"user","content":"hi"}"#;
    assert_eq!(marks(user), ["/messages/0/content/0"]);
    // The tools that were called are declared, and not worth a mark.
    assert_eq!(marks(&format!("{user},{call}")), ["/messages/2/content/0"]);
    let image = r#"{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"https://a.test/b.png"}}]}"#;
    assert_eq!(marks(image), ["/messages/0/content/1"]);
    // A program's own request is left as it is, and so is one of the dialect.
    let own = steadfast_chat::ChatRequest::user("hi").with_model("claude-opus-4-5");
    assert!(!encode(Dialect::Anthropic, &own).contains("cache_control"));
}

#[test]
fn models_that_take_no_effort_beside_tools_get_the_one_that_they_take() {
    let tools = r#""tools":[{"name":"ls","input_schema":{"type":"object"}}]"#;
    let thinks = r#""thinking":{"type":"adaptive"},"output_config":{"effort":"high"}"#;
    let both = format!("{tools},{thinks}");
    for (model, more, effort) in [
        ("gpt-5.4", &*both, Some("none")),
        ("gpt-5.4", tools, Some("none")),
        ("gpt-5.4", thinks, Some("high")),
        ("gpt-5.1", &both, Some("high")),
        ("gpt-5", tools, None),
    ] {
        let mut request = decode(Dialect::Anthropic, &with(Dialect::Anthropic, more));
        request.model = model.into();
        let written = parse(&encode(Dialect::OpenAi, &request));
        assert_eq!(written["reasoning_effort"].as_str(), effort, "{model} {more}");
    }
    let body = r#"{"model":"gpt-5.5","reasoning_effort":"high","messages":[],"tools":[{"type":"function","function":{"name":"ls"}}]}"#;
    let mut request = decode(Dialect::OpenAi, body);
    assert_eq!(encode(Dialect::OpenAi, &request), body, "the caller's own choice");
    request.model = "gpt-5.4".into();
    let moved = body.replace("gpt-5.5", "gpt-5.4").replace("high", "none");
    assert_eq!(encode(Dialect::OpenAi, &request), moved);
}

#[test]
fn a_thinking_budget_is_translated_to_the_models_levels() {
    let mut request = steadfast_chat::ChatRequest::user("x").with_model("claude-sonnet-4-5");
    request.params.thinking = Some(ThinkingConfig::Effort("medium".into()));
    let written = parse(&encode(Dialect::Anthropic, &request));
    assert_eq!(written["thinking"], json!({"type": "enabled", "budget_tokens": 8192}));
    assert_eq!(written["max_tokens"], 8_192 + 8_192);
}

#[test]
fn a_text_document_that_is_no_base64_is_refused_and_never_sent_empty() {
    let document = |data: &str| {
        let source = MediaSource::Base64 { mime: "text/plain".into(), data: data.into() };
        let part = Part::Media(Media { kind: MediaKind::Document, source, extra: None });
        let request = ChatRequest::new(vec![Message::new(Role::User, vec![part])]);
        codec(Dialect::Anthropic).encode_request(&request.with_model("m"), &Wire::default())
    };
    let written = document("aGVsbG8=").unwrap();
    assert!(written.windows(5).any(|window| window == b"hello"));
    let failure = document("%%%").unwrap_err();
    assert_eq!(failure.reason(), Reason::Unsupported);
    assert!(failure.message().contains("not valid base64"), "{failure}");
}
