//! A caller's request, read.

use bytes::Bytes;
use steadfast_chat::{
    ChatRequest, Media, MediaKind, MediaSource, Message, Opaque, Params, Part, ResponseFormat,
    Role, Text, Thinking, ThinkingConfig, Tool, ToolCall, ToolChoice, ToolResult,
};

use super::{DIALECT, citations};
use crate::json::{
    At, Fields, Raw, RequestError, borrowed, each, flag, float, kind, list, raw_object, string,
    strings, uint,
};

pub(super) fn decode(body: &Bytes) -> Result<ChatRequest, RequestError> {
    let body = &citations::without_foreign(body);
    let (mut top, all) = Fields::with_list(body, "messages")?;
    let mut messages = Vec::with_capacity(all.len() + 1);
    if let Some(raw) = top.take("system") {
        let parts = content(raw).at("system")?;
        let raw = raw.kept_in(body);
        messages.push(Message::from_wire(DIALECT, Role::System, parts, None, raw));
    }
    messages.extend(each(all, |raw| message(raw, body)).at("messages")?);
    let mut request = ChatRequest::new(messages);
    request.model = top.need("model", string)?.into();
    request.tools = top.get("tools", |raw| list(raw, tool))?.unwrap_or_default().into();
    request.stream = top.get("stream", flag)?.unwrap_or(false);
    request.params = params(&mut top)?.into();
    Ok(request.with_origin(DIALECT, body.clone()))
}

fn params(top: &mut Fields<'_>) -> Result<Params, RequestError> {
    let mut params = Params::default();
    params.max_output = top.get("max_tokens", uint)?;
    params.temperature = top.get("temperature", float)?;
    params.top_p = top.get("top_p", float)?;
    params.top_k = top.get("top_k", uint)?;
    params.stop = top.get("stop_sequences", strings)?.unwrap_or_default();
    if let Some((choice, parallel)) = top.get("tool_choice", tool_choice)? {
        params.tool_choice = choice;
        params.parallel_tool_calls = parallel;
    }
    params.user = top.get("metadata", |raw| Fields::read(raw)?.get("user_id", string))?.flatten();
    let thinking = top.get("thinking", thinking)?.flatten();
    let (effort, format) = top.get("output_config", output_config)?.unwrap_or_default();
    params.format = match format {
        Some(format) => Some(format),
        // The name while it was a beta.
        None => top.get("output_format", output_format)?.flatten(),
    };
    params.thinking = match (thinking, effort) {
        (None | Some(ThinkingConfig::Adaptive), Some(word)) => Some(ThinkingConfig::Effort(word)),
        (thinking, _) => thinking,
    };
    Ok(params)
}

type OutputConfig = (Option<String>, Option<ResponseFormat>);

fn output_config(raw: Raw<'_>) -> Result<OutputConfig, RequestError> {
    let mut fields = Fields::read(raw)?;
    Ok((fields.get("effort", string)?, fields.get("format", output_format)?.flatten()))
}

fn output_format(raw: Raw<'_>) -> Result<Option<ResponseFormat>, RequestError> {
    let mut fields = Fields::read(raw)?;
    if fields.need("type", string)? != "json_schema" {
        return Ok(None);
    }
    let schema = fields.need("schema", raw_object)?;
    Ok(Some(ResponseFormat::Schema { name: None, schema, strict: Some(true) }))
}

/// `None` for a kind of thinking that has no equivalent here; it is sent as it was read.
fn thinking(raw: Raw<'_>) -> Result<Option<ThinkingConfig>, RequestError> {
    let mut fields = Fields::read(raw)?;
    Ok(match &*fields.need("type", borrowed)? {
        "enabled" => Some(ThinkingConfig::Budget(fields.need("budget_tokens", uint)?)),
        "adaptive" => Some(ThinkingConfig::Adaptive),
        "disabled" => Some(ThinkingConfig::Off),
        _ => None,
    })
}

type Choice = (Option<ToolChoice>, Option<bool>);

fn tool_choice(raw: Raw<'_>) -> Result<Choice, RequestError> {
    let mut fields = Fields::read(raw)?;
    let choice = match &*fields.need("type", borrowed)? {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => ToolChoice::Tool(fields.need("name", string)?),
        other => {
            let problem = format!("`{other}` is no choice; one of auto, any, tool, none");
            return Err(RequestError::new(problem)).at("type");
        }
    };
    let parallel = fields.get("disable_parallel_tool_use", flag)?.map(|disabled| !disabled);
    Ok((Some(choice), parallel))
}

fn message(raw: Raw<'_>, body: &Bytes) -> Result<Message, RequestError> {
    let mut fields = Fields::read(raw)?;
    let role = match &*fields.need("role", borrowed)? {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        // In the middle of a conversation, for models that take it.
        "system" => Role::System,
        other => {
            let problem = format!("`{other}` is no role; one of user, assistant");
            return Err(RequestError::new(problem)).at("role");
        }
    };
    let parts = fields.need("content", content)?;
    Ok(Message::from_wire(DIALECT, role, parts, fields.rest(), raw.kept_in(body)))
}

/// A string, or a list of blocks.
fn content(raw: Raw<'_>) -> Result<Vec<Part>, RequestError> {
    match kind(raw) {
        "a string" => Ok(vec![Part::text(string(raw)?)]),
        "a list" => list(raw, block),
        _ => Err(RequestError::expected("a string or a list of blocks", raw)),
    }
}

fn block(raw: Raw<'_>) -> Result<Part, RequestError> {
    let mut fields = Fields::read(raw)?;
    let what = fields.need("type", borrowed)?;
    let opaque = || {
        let json = raw.kept();
        Ok(Part::Opaque(Opaque { dialect: DIALECT, kind: what.to_string(), json }))
    };
    Ok(match &*what {
        "text" => {
            let text = fields.need("text", string)?;
            Part::Text(Text { text, signature: None, extra: fields.rest() })
        }
        "thinking" => {
            let text = fields.need("thinking", string)?;
            // An empty signature is what an answer of another vendor is given: it is none.
            let signature = fields.get("signature", string)?.filter(|text| !text.is_empty());
            Part::Thinking(Thinking { text, signature, extra: fields.rest() })
        }
        "redacted_thinking" => Part::Redacted { data: fields.need("data", string)? },
        "tool_use" => {
            let id = fields.need("id", string)?;
            let name = fields.need("name", string)?;
            let arguments = fields.need("input", raw_object)?.get().to_owned();
            Part::ToolCall(ToolCall { id, name, arguments, signature: None, extra: fields.rest() })
        }
        "tool_result" => {
            let id = fields.need("tool_use_id", string)?;
            let content = fields.get("content", content)?.unwrap_or_default();
            let is_error = fields.get("is_error", flag)?.unwrap_or(false);
            let extra = fields.rest();
            Part::ToolResult(ToolResult { id, name: None, content, is_error, failure: None, extra })
        }
        "image" | "document" => {
            let kind = if what == "image" { MediaKind::Image } else { MediaKind::Document };
            match fields.need("source", source)? {
                Some(source) => Part::Media(Media { kind, source, extra: fields.rest() }),
                None => return opaque(),
            }
        }
        _ => return opaque(),
    })
}

/// `None` for a source that is no medium, such as a document's text.
fn source(raw: Raw<'_>) -> Result<Option<MediaSource>, RequestError> {
    let mut fields = Fields::read(raw)?;
    Ok(match &*fields.need("type", borrowed)? {
        "base64" => Some(MediaSource::Base64 {
            mime: fields.need("media_type", string)?,
            data: fields.need("data", string)?.into(),
        }),
        "url" => Some(MediaSource::Url { mime: None, url: fields.need("url", string)? }),
        "file" => Some(MediaSource::File { mime: None, id: fields.need("file_id", string)? }),
        _ => None,
    })
}

fn tool(raw: Raw<'_>) -> Result<Tool, RequestError> {
    let mut fields = Fields::read(raw)?;
    match fields.get("type", string)? {
        Some(kind) if kind != "custom" => {
            let json = raw.kept();
            return Ok(Tool::Opaque(Opaque { dialect: DIALECT, kind, json }));
        }
        _ => {}
    }
    Ok(Tool::Function {
        name: fields.need("name", string)?,
        description: fields.get("description", string)?,
        parameters: fields.get("input_schema", raw_object)?,
        strict: fields.get("strict", flag)?,
        custom: None,
        extra: fields.rest(),
        dialect: Some(DIALECT),
    })
}
