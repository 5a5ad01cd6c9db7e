//! Callers of each dialect, who write and read only the bytes of their own dialect.

use bytes::Bytes;
use serde_json::{Value, json};
use steadfast::{
    ChatRequest, ChatService, Completion, Dialect, Event, Head, Part, RecoveryLog,
    client::dialect::{Caller, Route, StreamDecoder, StreamEncoder, codec},
};
use steadfast_tests::harness::{self, CallResult, turns_key};

/// The smallest PNG there is.
pub(crate) const PICTURE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=";

const QUESTION: &str = "What is in the picture, and in both files? \u{1f5bc}";

/// One caller's conversation: the body of its next request.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    dialect: Dialect,
    stream: bool,
    body: Value,
}

impl Conversation {
    /// A question with a picture and two tools.
    pub(crate) fn new(dialect: Dialect, stream: bool) -> Self {
        let schema = json!({
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        });
        let tools = ["read", "list"].map(|name| match dialect {
            Dialect::Anthropic => {
                json!({"name": name, "description": "Files.", "input_schema": schema})
            }
            Dialect::Gemini => {
                json!({"name": name, "description": "Files.", "parameters": schema})
            }
            Dialect::Responses => {
                json!({"type": "function", "name": name, "description": "Files.", "parameters": schema,
                    "strict": false})
            }
            Dialect::OpenAi => json!({
                "type": "function",
                "function": {"name": name, "description": "Files.", "parameters": schema},
            }),
        });
        let model = harness::model(dialect);
        let body = match dialect {
            Dialect::Anthropic => json!({
                "model": model,
                "max_tokens": 1_000,
                "stream": stream,
                "system": "Be brief.",
                "tools": tools,
                "messages": [{"role": "user", "content": [
                    {"type": "text", "text": QUESTION},
                    {"type": "image", "source": {
                        "type": "base64", "media_type": "image/png", "data": PICTURE,
                    }},
                ]}],
            }),
            Dialect::Gemini => json!({
                "systemInstruction": {"parts": [{"text": "Be brief."}]},
                "generationConfig": {"maxOutputTokens": 1_000},
                "tools": [{"functionDeclarations": tools}],
                "contents": [{"role": "user", "parts": [
                    {"text": QUESTION},
                    {"inlineData": {"mimeType": "image/png", "data": PICTURE}},
                ]}],
            }),
            Dialect::Responses => json!({
                "model": model,
                "max_output_tokens": 1_000,
                "stream": stream,
                "instructions": "Be brief.",
                "tools": tools,
                "input": [{"role": "user", "content": [
                    {"type": "input_text", "text": QUESTION},
                    {"type": "input_image", "image_url": format!("data:image/png;base64,{PICTURE}")},
                ]}],
            }),
            Dialect::OpenAi => {
                let mut body = json!({
                    "model": model,
                    "max_tokens": 1_000,
                    "stream": stream,
                    "tools": tools,
                    "messages": [
                        {"role": "system", "content": "Be brief."},
                        {"role": "user", "content": [
                            {"type": "text", "text": QUESTION},
                            {"type": "image_url", "image_url": {
                                "url": format!("data:image/png;base64,{PICTURE}"),
                            }},
                        ]},
                    ],
                });
                if stream {
                    body["stream_options"] = json!({"include_usage": true});
                }
                body
            }
        };
        Self { dialect, stream, body }
    }

    /// The conversation after `answer`, with a result for each of its calls.
    pub(crate) fn followed_by(&self, answer: &Completion, result: impl Fn(&str) -> String) -> Self {
        let mut next = self.clone();
        let turns = match self.dialect {
            Dialect::Anthropic => anthropic_turns(answer, &result),
            Dialect::Gemini => gemini_turns(answer, &result),
            Dialect::Responses => responses_turns(answer, &result),
            Dialect::OpenAi => openai_turns(answer, &result),
        };
        let key = turns_key(self.dialect);
        next.body[key].as_array_mut().unwrap().extend(turns);
        next
    }

    /// The request as a gateway reads it.
    fn request(&self) -> ChatRequest {
        let route = match self.dialect {
            Dialect::Gemini => {
                Route { model: Some(harness::model(self.dialect)), stream: Some(self.stream) }
            }
            _ => Route::default(),
        };
        let body = Bytes::from(self.body.to_string());
        codec(self.dialect).decode_request(&body, route).unwrap()
    }

    /// Makes the call, and reads the answer in the caller's dialect.
    ///
    /// # Errors
    ///
    /// A message of what is wrong.
    pub(crate) async fn ask(
        &self,
        service: &ChatService,
        log: &RecoveryLog,
    ) -> Result<Completion, String> {
        let mut request = self.request();
        request.context.log = log.clone();
        let caller = Caller::of(&request);
        let got = CallResult::of(service, request).await;
        if let Some(failure) = &got.failure {
            return Err(failure.to_string());
        }
        let events = if self.stream {
            self.through_a_stream(&got, &caller)?
        } else {
            let body = codec(self.dialect).encode_answer(got.answer(), &caller);
            let body = body.map_err(|failure| failure.to_string())?;
            vec![codec(self.dialect).decode_answer(&body).map_err(|failure| failure.to_string())?]
        };
        let mut read = Completion::new(Head::new(self.dialect));
        events.iter().for_each(|event| read.push(event));
        if read.ended { Ok(read) } else { Err("the answer has no end".to_owned()) }
    }

    /// Encodes the events as frames of the caller's dialect and decodes them again in chunks that
    /// split the frames.
    fn through_a_stream(&self, got: &CallResult, caller: &Caller) -> Result<Vec<Event>, String> {
        let source = got.answer().head.dialect;
        let mut encoder = StreamEncoder::new(self.dialect, caller, source);
        let mut wire = Vec::new();
        for event in &got.events {
            let frames = encoder.encode(event).map_err(|failure| failure.to_string())?;
            wire.extend_from_slice(&frames);
        }
        let mut decoder = StreamDecoder::new(self.dialect);
        let mut events = Vec::new();
        for chunk in wire.chunks(97) {
            decoder.push(Bytes::copy_from_slice(chunk));
            while let Some(read) = decoder.next_event() {
                events.push(read.map_err(|failure| failure.to_string())?);
            }
        }
        while let Some(read) = decoder.finish() {
            events.push(read.map_err(|failure| format!("no clean end: {failure}"))?);
        }
        Ok(events)
    }
}

/// The arguments of a call as JSON.
fn arguments(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

fn anthropic_turns(answer: &Completion, result: &dyn Fn(&str) -> String) -> Vec<Value> {
    let content: Vec<Value> = answer
        .parts
        .iter()
        .filter_map(|part| match part {
            Part::Text(text) => Some(json!({"type": "text", "text": text.text})),
            Part::ToolCall(call) => Some(json!({
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": arguments(&call.arguments),
            })),
            _ => None,
        })
        .collect();
    let results: Vec<Value> = answer
        .tool_calls()
        .map(|call| {
            json!({"type": "tool_result", "tool_use_id": call.id, "content": result(&call.name)})
        })
        .collect();
    vec![
        json!({"role": "assistant", "content": content}),
        json!({"role": "user", "content": results}),
    ]
}

fn gemini_turns(answer: &Completion, result: &dyn Fn(&str) -> String) -> Vec<Value> {
    let content: Vec<Value> = answer
        .parts
        .iter()
        .filter_map(|part| match part {
            Part::Text(text) => Some(json!({"text": text.text})),
            Part::ToolCall(call) => {
                let mut part = json!({"functionCall": {
                    "id": call.id, "name": call.name, "args": arguments(&call.arguments),
                }});
                if let Some(signature) = &call.signature {
                    part["thoughtSignature"] = json!(signature);
                }
                Some(part)
            }
            _ => None,
        })
        .collect();
    let results: Vec<Value> = answer
        .tool_calls()
        .map(|call| {
            json!({"functionResponse": {
                "id": call.id, "name": call.name, "response": {"output": result(&call.name)},
            }})
        })
        .collect();
    vec![json!({"role": "model", "parts": content}), json!({"role": "user", "parts": results})]
}

fn responses_turns(answer: &Completion, result: &dyn Fn(&str) -> String) -> Vec<Value> {
    let text = answer.text();
    let spoken = (!text.is_empty()).then(|| {
        json!({"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": text, "annotations": []},
        ]})
    });
    let calls = answer.tool_calls().map(|call| {
        json!({"type": "function_call", "call_id": call.id, "name": call.name,
            "arguments": call.arguments})
    });
    let results = answer.tool_calls().map(|call| {
        json!({"type": "function_call_output", "call_id": call.id, "output": result(&call.name)})
    });
    spoken.into_iter().chain(calls).chain(results).collect()
}

fn openai_turns(answer: &Completion, result: &dyn Fn(&str) -> String) -> Vec<Value> {
    let calls: Vec<Value> = answer
        .tool_calls()
        .map(|call| {
            json!({
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            })
        })
        .collect();
    let content = json!({"role": "assistant", "content": answer.text(), "tool_calls": calls});
    let results = answer.tool_calls().map(
        |call| json!({"role": "tool", "tool_call_id": call.id, "content": result(&call.name)}),
    );
    std::iter::once(content).chain(results).collect()
}
