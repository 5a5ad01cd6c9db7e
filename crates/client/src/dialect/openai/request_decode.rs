//! A caller's request, read.

use bytes::Bytes;
use serde_json::Value;
use steadfast_chat::{
    ChatRequest, Extra, Media, MediaKind, MediaSource, Message, Opaque, Params, Part, RawJson,
    ResponseFormat, Role, Text, ThinkingConfig, Tool, ToolCall, ToolChoice, ToolResult,
};

use super::DIALECT;
use crate::{
    dialect::media::{kind_of, source_of_url},
    json::{
        At, Fields, Object, Raw, RequestError, borrowed, each, flag, float, int, kind, list,
        raw_object, string, strings, uint,
    },
};

const ROLES: &str = "one of system, developer, user, assistant, tool";

pub(super) fn decode(body: &Bytes) -> Result<ChatRequest, RequestError> {
    let (mut top, messages) = Fields::with_list(body, "messages")?;
    let mut request = ChatRequest::new(each(messages, |raw| message(raw, body)).at("messages")?);
    request.model = top.need("model", string)?.into();
    let tools = top.get("tools", |raw| list(raw, tool))?;
    // Their older name.
    let functions = top.get("functions", |raw| list(raw, function_tool))?;
    let older = tools.is_none() && functions.is_some();
    let mut tools = tools.unwrap_or_default();
    tools.extend(functions.unwrap_or_default());
    request.tools = tools.into();
    request.stream = top.get("stream", flag)?.unwrap_or(false);
    let mut params = params(&mut top)?;
    params.functions = older;
    request.params = params.into();
    Ok(request.with_origin(DIALECT, body.clone()))
}

fn params(top: &mut Fields<'_>) -> Result<Params, RequestError> {
    let mut params = Params::default();
    let newer = top.get("max_completion_tokens", uint)?;
    params.max_output = newer.or(top.get("max_tokens", uint)?);
    params.temperature = top.get("temperature", float)?;
    params.top_p = top.get("top_p", float)?;
    params.parallel_tool_calls = top.get("parallel_tool_calls", flag)?;
    params.answers = top.get("n", uint)?;
    params.stop = top.get("stop", one_or_more)?.unwrap_or_default();
    params.seed = top.get("seed", int)?;
    params.presence_penalty = top.get("presence_penalty", float)?;
    params.frequency_penalty = top.get("frequency_penalty", float)?;
    params.logprobs = top.get("logprobs", flag)?;
    params.top_logprobs = top.get("top_logprobs", uint)?;
    params.user = top.get("user", string)?;
    params.tool_choice = match top.get("tool_choice", tool_choice)? {
        Some(choice) => choice,
        None => top.get("function_call", older_choice)?,
    };
    params.format = top.get("response_format", format)?.flatten();
    params.thinking = top.get("reasoning_effort", string)?.map(|word| match word.as_str() {
        "none" => ThinkingConfig::Off,
        _ => ThinkingConfig::Effort(word),
    });
    params.stream_usage =
        top.get("stream_options", |raw| Fields::read(raw)?.get("include_usage", flag))?.flatten();
    Ok(params)
}

/// A string, or a list of strings.
fn one_or_more(raw: Raw<'_>) -> Result<Vec<String>, RequestError> {
    if kind(raw) == "a list" {
        return strings(raw);
    }
    let one = string(raw);
    Ok(vec![one.map_err(|_| RequestError::expected("a string or a list of strings", raw))?])
}

fn message(raw: Raw<'_>, body: &Bytes) -> Result<Message, RequestError> {
    let mut fields = Fields::read(raw)?;
    let name = fields.need("role", borrowed)?;
    let (role, parts) = match &*name {
        "system" | "developer" => (Role::System, content(&mut fields)?),
        "user" => (Role::User, content(&mut fields)?),
        "assistant" => (Role::Assistant, assistant(&mut fields)?),
        "tool" => {
            let id = fields.need("tool_call_id", string)?;
            (Role::Tool, vec![result(id, None, content(&mut fields)?)])
        }
        // The older form, in which results have a name and no id.
        "function" => {
            let name = fields.need("name", string)?;
            (Role::Tool, vec![result(String::new(), Some(name), content(&mut fields)?)])
        }
        other => {
            return Err(RequestError::new(format!("`{other}` is no role; {ROLES}"))).at("role");
        }
    };
    let mut extra = fields.rest();
    // Instructions of a developer are instructions; when the message is written anew, their role
    // comes back.
    if name == "developer" {
        extra.get_or_insert_default().insert("role".to_owned(), Value::String(name.into_owned()));
    }
    Ok(Message::from_wire(DIALECT, role, parts, extra, raw.kept_in(body)))
}

fn result(id: String, name: Option<String>, content: Vec<Part>) -> Part {
    Part::ToolResult(ToolResult { id, name, content, ..ToolResult::default() })
}

fn assistant(fields: &mut Fields<'_>) -> Result<Vec<Part>, RequestError> {
    let mut parts = content(fields)?;
    if let Some(refusal) = fields.get("refusal", string)?.filter(|text| !text.is_empty()) {
        let block = Object::text(|block| {
            block.put("type", "refusal").put("refusal", &refusal);
        });
        let json = RawJson::from_checked(&block);
        parts.push(Part::Opaque(Opaque { dialect: DIALECT, kind: REFUSAL.to_owned(), json }));
    }
    parts.extend(fields.get("images", |raw| list(raw, part))?.unwrap_or_default());
    if let Some(calls) = fields.get("tool_calls", |raw| list(raw, call))? {
        // An empty text beside calls means nothing.
        parts.retain(|part| part.as_text() != Some(""));
        parts.extend(calls);
    }
    parts.extend(fields.get("function_call", function)?.map(Part::ToolCall));
    Ok(parts)
}

fn call(raw: Raw<'_>) -> Result<Part, RequestError> {
    let mut fields = Fields::read(raw)?;
    let what = fields.get("type", string)?.unwrap_or_else(|| "function".to_owned());
    if what != "function" {
        return Ok(opaque(&format!("tool_calls.{what}"), raw));
    }
    let id = fields.need("id", string)?;
    let mut call = fields.need("function", function)?;
    let (inner, mut outer) = (call.extra.take(), fields.rest());
    if let Some(inner) = inner {
        outer.get_or_insert_default().insert("function".to_owned(), Value::Object(*inner));
    }
    (call.id, call.extra) = (id, outer);
    Ok(Part::ToolCall(call))
}

fn function(raw: Raw<'_>) -> Result<ToolCall, RequestError> {
    let mut fields = Fields::read(raw)?;
    let name = fields.need("name", string)?;
    let arguments = fields.get("arguments", string)?.unwrap_or_default();
    Ok(ToolCall { name, arguments, extra: fields.rest(), ..ToolCall::default() })
}

fn opaque(kind: &str, raw: Raw<'_>) -> Part {
    let json = raw.kept();
    Part::Opaque(Opaque { dialect: DIALECT, kind: kind.to_owned(), json })
}

/// The field `content`: a string, a list of parts, null or missing.
fn content(fields: &mut Fields<'_>) -> Result<Vec<Part>, RequestError> {
    let Some(raw) = fields.take("content") else { return Ok(Vec::new()) };
    let parts = match kind(raw) {
        "a string" => string(raw).map(|text| vec![Part::text(text)]),
        "a list" => list(raw, part),
        _ => Err(RequestError::expected("a string or a list of parts", raw)),
    };
    parts.at("content")
}

fn part(raw: Raw<'_>) -> Result<Part, RequestError> {
    let mut fields = Fields::read(raw)?;
    let what = fields.need("type", borrowed)?;
    match &*what {
        "text" => {
            let text = fields.need("text", string)?;
            Ok(Part::Text(Text { text, signature: None, extra: fields.rest() }))
        }
        "image_url" => {
            let (url, inner) = fields.need("image_url", image)?;
            let source = source_of_url(url);
            Ok(media(MediaKind::Image, source, fields, "image_url", inner))
        }
        "input_audio" => {
            let (data, format, inner) = fields.need("input_audio", |raw| {
                let mut inner = Fields::read(raw)?;
                let data = inner.need("data", string)?;
                let format = inner.need("format", string)?;
                Ok((data, format, inner.rest()))
            })?;
            let mime = format!("audio/{format}");
            let source = MediaSource::Base64 { mime, data: data.into() };
            Ok(media(MediaKind::Audio, source, fields, "input_audio", inner))
        }
        "file" => {
            let (data, id, inner) = fields.need("file", |raw| {
                let mut inner = Fields::read(raw)?;
                let data = inner.get("file_data", string)?;
                let id = inner.get("file_id", string)?;
                Ok((data, id, inner.rest()))
            })?;
            let source = match (data, id) {
                (Some(data), _) => source_of_url(data),
                (None, Some(id)) => MediaSource::File { mime: None, id },
                (None, None) => return Ok(opaque(&what, raw)),
            };
            let kind = match &source {
                MediaSource::Base64 { mime, .. } => kind_of(mime),
                _ => MediaKind::Document,
            };
            Ok(media(kind, source, fields, "file", inner))
        }
        _ => Ok(opaque(&what, raw)),
    }
}

fn image(raw: Raw<'_>) -> Result<(String, Extra), RequestError> {
    if kind(raw) == "a string" {
        return Ok((string(raw)?, None));
    }
    let mut fields = Fields::read(raw)?;
    let url = fields.need("url", string)?;
    Ok((url, fields.rest()))
}

/// The kind of a part that is a refusal, which may stand beside the content too.
pub(super) const REFUSAL: &str = "refusal";

/// A medium. What is left of the part goes into its extra fields, what is left of the object
/// inside it under that object's name.
fn media(
    kind: MediaKind,
    source: MediaSource,
    outer: Fields<'_>,
    name: &str,
    inner: Extra,
) -> Part {
    let mut extra = outer.rest();
    if let Some(inner) = inner {
        extra.get_or_insert_default().insert(name.to_owned(), Value::Object(*inner));
    }
    Part::Media(Media { kind, source, extra })
}

fn tool(raw: Raw<'_>) -> Result<Tool, RequestError> {
    let mut fields = Fields::read(raw)?;
    let what = fields.need("type", string)?;
    if what != "function" {
        let json = raw.kept();
        return Ok(Tool::Opaque(Opaque { dialect: DIALECT, kind: what, json }));
    }
    let mut declared = fields.need("function", function_tool)?;
    // What is left of the tool, beside what is left of the function in it.
    if let (Tool::Function { extra, .. }, Some(outer)) = (&mut declared, fields.rest()) {
        let inner = extra.take().map(|inner| ("function".to_owned(), Value::Object(*inner)));
        *extra = Some(Box::new(outer.into_iter().chain(inner).collect()));
    } else if let Tool::Function { extra: Some(extra), .. } = &mut declared {
        let inner = Value::Object(std::mem::take(extra));
        extra.insert("function".to_owned(), inner);
    }
    Ok(declared)
}

/// A function; what is left of it is in its extra fields.
fn function_tool(raw: Raw<'_>) -> Result<Tool, RequestError> {
    let mut fields = Fields::read(raw)?;
    Ok(Tool::Function {
        name: fields.need("name", string)?,
        description: fields.get("description", string)?,
        parameters: fields.get("parameters", raw_object)?,
        strict: fields.get("strict", flag)?,
        custom: None,
        extra: fields.rest(),
        dialect: Some(DIALECT),
    })
}

/// The older form of a choice.
fn older_choice(raw: Raw<'_>) -> Result<ToolChoice, RequestError> {
    match kind(raw) {
        "a string" => match &*borrowed(raw)? {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            other => Err(RequestError::new(format!(
                "`{other}` is no choice; one of auto, none, or a function"
            ))),
        },
        _ => Ok(ToolChoice::Tool(Fields::read(raw)?.need("name", string)?)),
    }
}

/// Some of the tools: `None` when one of them is no function.
fn allowed(raw: Raw<'_>) -> Result<Option<ToolChoice>, RequestError> {
    let mut fields = Fields::read(raw)?;
    let required = &*fields.need("mode", borrowed)? == "required";
    let names = fields.need("tools", |raw| {
        list(raw, |raw| {
            let mut tool = Fields::read(raw)?;
            if tool.need("type", string)? != "function" {
                return Ok(None);
            }
            tool.need("function", |raw| Fields::read(raw)?.need("name", string)).map(Some)
        })
    })?;
    let names: Option<Vec<String>> = names.into_iter().collect();
    Ok(names.map(|names| ToolChoice::Allowed { names, required }))
}

/// `None` for choices that have no equivalent here; they are sent as they were read.
fn tool_choice(raw: Raw<'_>) -> Result<Option<ToolChoice>, RequestError> {
    if kind(raw) != "a string" {
        let mut fields = Fields::read(raw)?;
        match &*fields.need("type", borrowed)? {
            "function" => {}
            "allowed_tools" => return fields.need("allowed_tools", allowed),
            _ => return Ok(None),
        }
        let name = fields.need("function", |raw| Fields::read(raw)?.need("name", string))?;
        return Ok(Some(ToolChoice::Tool(name)));
    }
    match string(raw)?.as_str() {
        "auto" => Ok(Some(ToolChoice::Auto)),
        "none" => Ok(Some(ToolChoice::None)),
        "required" => Ok(Some(ToolChoice::Required)),
        other => Err(RequestError::new(format!(
            "`{other}` is no choice; one of auto, none, required, or a function"
        ))),
    }
}

fn format(raw: Raw<'_>) -> Result<Option<ResponseFormat>, RequestError> {
    let mut fields = Fields::read(raw)?;
    Ok(match fields.need("type", string)?.as_str() {
        "text" => Some(ResponseFormat::Text),
        "json_object" => Some(ResponseFormat::Json),
        "json_schema" => Some(fields.need("json_schema", |raw| {
            let mut inner = Fields::read(raw)?;
            let name = inner.get("name", string)?;
            let strict = inner.get("strict", flag)?;
            let schema = inner.get("schema", raw_object)?;
            Ok(match schema {
                Some(schema) => ResponseFormat::Schema { name, schema, strict },
                None => ResponseFormat::Json,
            })
        })?),
        _ => None,
    })
}
