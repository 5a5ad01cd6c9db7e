//! A caller's request, read.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use steadfast_chat::{
    ChatRequest, Extra, Media, MediaKind, MediaSource, Message, Opaque, Params, Part,
    ProviderState, RawJson, ResponseFormat, Role, Text, Thinking, ThinkingConfig, Tool, ToolCall,
    ToolChoice, ToolResult,
};

use super::{DIALECT, ITEM, custom, namespace};
use crate::{
    dialect::media::{kind_of, source_of_url},
    json::{
        At, Fields, Raw, RequestError, borrowed, flag, float, kind, list, raw_object, string, uint,
    },
};

const ROLES: &str = "one of user, assistant, system, developer";

pub(super) fn decode(body: &Bytes) -> Result<ChatRequest, RequestError> {
    let mut top = Fields::of_body(body)?;
    let mut messages = Vec::new();
    let mut state = state(&mut top)?;
    if let Some(raw) = top.take("instructions") {
        let text = string(raw).at("instructions")?;
        let raw = raw.kept_in(body);
        messages.push(Message::from_wire(DIALECT, Role::System, vec![Part::text(text)], None, raw));
        state.has_instructions = true;
    }
    match top.take("input") {
        Some(raw) => messages.extend(input(raw, body).at("input")?),
        // What the provider keeps can be all of it.
        None if state.previous.is_some()
            || state.conversation.is_some()
            || top.take("prompt").is_some() => {}
        None => return Err(RequestError::new("is missing")).at("input"),
    }
    for part in messages.iter().flat_map(Message::parts) {
        let Part::Opaque(opaque) = part else { continue };
        match opaque.kind.as_str() {
            "item_reference" => state.has_references = true,
            "compaction" => state.has_compaction = true,
            "compaction_trigger" => state.asks_for_compaction = true,
            _ => {}
        }
    }
    let mut request = ChatRequest::new(messages);
    request.model = top.need("model", string)?.into();
    request.tools = top.get("tools", tools)?.unwrap_or_default().into();
    request.stream = top.get("stream", flag)?.unwrap_or(false);
    request.params = params(&mut top)?.into();
    request.state = Some(Arc::new(state));
    Ok(request.with_origin(DIALECT, body.clone()))
}

/// What the request leaves to its provider.
fn state(top: &mut Fields<'_>) -> Result<ProviderState, RequestError> {
    let mut state = ProviderState::default();
    state.previous = top.get("previous_response_id", string)?.map(Into::into);
    state.conversation = top.get("conversation", conversation)?.map(Into::into);
    state.unstored = top.get("store", flag)? == Some(false);
    Ok(state)
}

/// An id, or an object that has it.
fn conversation(raw: Raw<'_>) -> Result<String, RequestError> {
    if raw.is_object() { Fields::read(raw)?.need("id", string) } else { string(raw) }
}

fn params(top: &mut Fields<'_>) -> Result<Params, RequestError> {
    let mut params = Params::default();
    params.max_output = top.get("max_output_tokens", uint)?;
    params.temperature = top.get("temperature", float)?;
    params.top_p = top.get("top_p", float)?;
    params.parallel_tool_calls = top.get("parallel_tool_calls", flag)?;
    params.top_logprobs = top.get("top_logprobs", uint)?;
    params.user = top.get("user", string)?;
    params.tool_choice = top.get("tool_choice", tool_choice)?.flatten();
    params.format =
        top.get("text", |raw| Fields::read(raw)?.get("format", format))?.flatten().flatten();
    let effort = top.get("reasoning", |raw| Fields::read(raw)?.get("effort", string))?;
    params.thinking = effort.flatten().map(|word| match word.as_str() {
        "none" => ThinkingConfig::Off,
        _ => ThinkingConfig::Effort(word),
    });
    Ok(params)
}

/// The messages of a list of items.
pub(super) fn items(body: &Bytes) -> Result<Vec<Message>, RequestError> {
    let raw: Raw<'_> = serde_json::from_slice(body).map_err(RequestError::invalid)?;
    input(raw, body)
}

/// A string, or a list of items.
fn input(raw: Raw<'_>, body: &Bytes) -> Result<Vec<Message>, RequestError> {
    match kind(raw) {
        "a string" => Ok(vec![Message::user(string(raw)?)]),
        "a list" => Ok(turns(list(raw, |raw| Ok((item(raw)?, raw)))?, body)),
        _ => Err(RequestError::expected("a string or a list of items", raw)),
    }
}

/// A message of each item, and one of all that the model wrote without a break: what it thought, wrote and called is
/// one turn, as in every other dialect.
fn turns(items: Vec<(Item, Raw<'_>)>, body: &Bytes) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut items = items.into_iter().peekable();
    while let Some((mut first, raw)) = items.next() {
        let mut turn = vec![raw];
        while first.role == Role::Assistant
            && let Some((more, raw)) = items.next_if(|(next, _)| next.role == Role::Assistant)
        {
            first.parts.extend(more.parts);
            turn.push(raw);
        }
        let raw = match &turn[..] {
            [one] => one.kept_in(body),
            all => {
                let texts: Vec<&str> = all.iter().map(|raw| raw.get()).collect();
                RawJson::from_checked(&format!("[{}]", texts.join(",")))
            }
        };
        messages.push(Message::from_wire(DIALECT, first.role, first.parts, first.extra, raw));
    }
    messages
}

/// An item, read.
struct Item {
    role: Role,
    parts: Vec<Part>,
    extra: Extra,
}

fn item(raw: Raw<'_>) -> Result<Item, RequestError> {
    let mut fields = Fields::read(raw)?;
    let what = fields.get("type", string)?.unwrap_or_else(|| "message".to_owned());
    let (role, parts, extra) = match what.as_str() {
        "message" => message(fields)?,
        "function_call" => {
            let id = fields.need("call_id", string)?;
            let name = fields.need("name", string)?;
            let arguments = fields.get("arguments", string)?.unwrap_or_default();
            let extra = fields.rest();
            let name = namespace::name_of_call(name, &extra);
            let call = ToolCall { id, name, arguments, signature: None, extra };
            (Role::Assistant, vec![Part::ToolCall(call)], None)
        }
        "custom_tool_call" => {
            let id = fields.need("call_id", string)?;
            let name = fields.need("name", string)?;
            let arguments = custom::arguments(&fields.need("input", borrowed)?);
            let extra = typed(fields, &what);
            let name = namespace::name_of_call(name, &extra);
            let call = ToolCall { id, name, arguments, signature: None, extra };
            (Role::Assistant, vec![Part::ToolCall(call)], None)
        }
        "function_call_output" | "custom_tool_call_output" => {
            let id = fields.need("call_id", string)?;
            let content = fields.get("output", content)?.unwrap_or_default();
            let extra = match what.as_str() {
                "function_call_output" => fields.rest(),
                _ => typed(fields, &what),
            };
            let result = ToolResult { id, content, extra, ..ToolResult::default() };
            (Role::Tool, vec![Part::ToolResult(result)], None)
        }
        "reasoning" => (Role::Assistant, vec![reasoning(fields)?], None),
        _ => {
            let json = raw.kept();
            let role = if is_callers(&what) { Role::User } else { Role::Assistant };
            (role, vec![Part::Opaque(Opaque { dialect: DIALECT, kind: what, json })], None)
        }
    };
    Ok(Item { role, parts, extra })
}

/// Whether an item of this kind is what a caller writes: the model writes all others.
fn is_callers(what: &str) -> bool {
    what.ends_with("_output")
        || matches!(
            what,
            "item_reference" | "compaction_trigger" | "mcp_approval_response" | "additional_tools"
        )
}

/// What is left of an item, with its kind.
fn typed(fields: Fields<'_>, what: &str) -> Extra {
    let mut extra = fields.rest();
    extra.get_or_insert_default().insert("type".to_owned(), Value::String(what.to_owned()));
    extra
}

fn message(mut fields: Fields<'_>) -> Result<(Role, Vec<Part>, Extra), RequestError> {
    let name = fields.need("role", borrowed)?;
    let role = match &*name {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" | "developer" => Role::System,
        other => {
            return Err(RequestError::new(format!("`{other}` is no role; {ROLES}"))).at("role");
        }
    };
    let mut parts = fields.need("content", content)?;
    let mut extra = fields.rest();
    if role == Role::Assistant
        && let Some(Part::Text(text)) = parts.first_mut()
        && let Some(of_item) = extra.take()
    {
        // Its message may have other items, and others of this kind.
        text.extra.get_or_insert_default().insert(ITEM.to_owned(), Value::Object(*of_item));
    }
    if role == Role::System {
        // Which of the two comes back when it is written anew.
        extra.get_or_insert_default().insert("role".to_owned(), Value::String(name.into_owned()));
    }
    Ok((role, parts, extra))
}

/// A string, or a list of parts.
fn content(raw: Raw<'_>) -> Result<Vec<Part>, RequestError> {
    match kind(raw) {
        "a string" => Ok(vec![Part::text(string(raw)?)]),
        "a list" => list(raw, part),
        _ => Err(RequestError::expected("a string or a list of parts", raw)),
    }
}

fn part(raw: Raw<'_>) -> Result<Part, RequestError> {
    let mut fields = Fields::read(raw)?;
    let what = fields.need("type", string)?;
    let opaque = || {
        let json = raw.kept();
        Ok(Part::Opaque(Opaque { dialect: DIALECT, kind: what.clone(), json }))
    };
    match what.as_str() {
        "input_text" | "output_text" | "text" => {
            let text = fields.need("text", string)?;
            let mut extra = fields.rest();
            // Every answer's text has these, be there none.
            if let Some(fields) = &mut extra {
                fields.retain(|_, value| !value.as_array().is_some_and(Vec::is_empty));
            }
            let extra = extra.filter(|fields| !fields.is_empty());
            Ok(Part::Text(Text { text, signature: None, extra }))
        }
        "input_image" => {
            let url = fields.get("image_url", string)?;
            let id = fields.get("file_id", string)?;
            let source = match (url, id) {
                (Some(url), _) => source_of_url(url),
                (None, Some(id)) => MediaSource::File { mime: None, id },
                (None, None) => return opaque(),
            };
            Ok(Part::Media(Media { kind: MediaKind::Image, source, extra: fields.rest() }))
        }
        "input_file" => {
            let data = fields.get("file_data", string)?;
            let (id, url) = (fields.get("file_id", string)?, fields.get("file_url", string)?);
            let source = match (data, url, id) {
                (Some(data), ..) => source_of_url(data),
                (None, Some(url), _) => MediaSource::Url { mime: None, url },
                (None, None, Some(id)) => MediaSource::File { mime: None, id },
                (None, None, None) => return opaque(),
            };
            let kind = match &source {
                MediaSource::Base64 { mime, .. } => kind_of(mime),
                _ => MediaKind::Document,
            };
            Ok(Part::Media(Media { kind, source, extra: fields.rest() }))
        }
        _ => opaque(),
    }
}

fn reasoning(mut fields: Fields<'_>) -> Result<Part, RequestError> {
    let signature = fields.get("encrypted_content", string)?.filter(|text| !text.is_empty());
    let content = fields.get("content", texts)?.filter(|texts| !texts.is_empty());
    let texts = match content {
        Some(content) => content,
        None => fields.get("summary", texts)?.unwrap_or_default(),
    };
    let extra = fields.rest();
    if texts.is_empty()
        && extra.is_none()
        && let Some(data) = signature
    {
        return Ok(Part::Redacted { data });
    }
    Ok(Part::Thinking(Thinking { text: texts.join("\n\n"), signature, extra }))
}

fn texts(raw: Raw<'_>) -> Result<Vec<String>, RequestError> {
    list(raw, |raw| Fields::read(raw)?.need("text", string))
}

/// The tools of a list, those in namespaces one by one.
fn tools(raw: Raw<'_>) -> Result<Vec<Tool>, RequestError> {
    let lists = list(raw, |raw| {
        let what = Fields::read(raw)?.get("type", borrowed)?;
        if what.as_deref() == Some(namespace::FIELD)
            && let Some(tools) = namespace::tools(raw)?
        {
            return Ok(tools);
        }
        Ok(vec![tool(raw)?])
    })?;
    Ok(lists.into_iter().flatten().collect())
}

pub(super) fn tool(raw: Raw<'_>) -> Result<Tool, RequestError> {
    let mut fields = Fields::read(raw)?;
    let what = fields.need("type", string)?;
    match what.as_str() {
        "function" => Ok(Tool::Function {
            name: fields.need("name", string)?,
            description: fields.get("description", string)?,
            parameters: fields.get("parameters", raw_object)?,
            strict: fields.get("strict", flag)?,
            custom: None,
            extra: fields.rest(),
            dialect: Some(DIALECT),
        }),
        "custom" => Ok(Tool::Function {
            name: fields.need("name", string)?,
            description: custom::description(fields.get("description", string)?, raw),
            parameters: Some(custom::parameters()),
            strict: None,
            custom: Some(raw.kept()),
            extra: None,
            dialect: Some(DIALECT),
        }),
        _ => Ok(Tool::Opaque(Opaque { dialect: DIALECT, kind: what, json: raw.kept() })),
    }
}

/// `None` for choices that have no equivalent here; they are sent as they were read.
fn tool_choice(raw: Raw<'_>) -> Result<Option<ToolChoice>, RequestError> {
    if kind(raw) == "a string" {
        return match &*borrowed(raw)? {
            "auto" => Ok(Some(ToolChoice::Auto)),
            "none" => Ok(Some(ToolChoice::None)),
            "required" => Ok(Some(ToolChoice::Required)),
            other => Err(RequestError::new(format!(
                "`{other}` is no choice; one of auto, none, required, or a tool"
            ))),
        };
    }
    let mut fields = Fields::read(raw)?;
    match &*fields.need("type", borrowed)? {
        "function" | "custom" => Ok(Some(ToolChoice::Tool(fields.need("name", string)?))),
        "allowed_tools" => {
            let required = &*fields.need("mode", borrowed)? == "required";
            let names = fields.need("tools", |raw| {
                list(raw, |raw| {
                    let mut tool = Fields::read(raw)?;
                    let what = tool.need("type", borrowed)?;
                    let has_name = matches!(&*what, "function" | "custom");
                    has_name.then(|| tool.need("name", string)).transpose()
                })
            })?;
            let names: Option<Vec<String>> = names.into_iter().collect();
            Ok(names.map(|names| ToolChoice::Allowed { names, required }))
        }
        _ => Ok(None),
    }
}

fn format(raw: Raw<'_>) -> Result<Option<ResponseFormat>, RequestError> {
    let mut fields = Fields::read(raw)?;
    Ok(match &*fields.need("type", borrowed)? {
        "text" => Some(ResponseFormat::Text),
        "json_object" => Some(ResponseFormat::Json),
        "json_schema" => {
            let name = fields.get("name", string)?;
            let strict = fields.get("strict", flag)?;
            let schema = fields.need("schema", raw_object)?;
            Some(ResponseFormat::Schema { name, schema, strict })
        }
        _ => None,
    })
}
