//! A caller's request, read. Google takes every name in camel case and in snake case.

use bytes::Bytes;
use serde_json::Value;
use steadfast_chat::{
    ChatRequest, Extra, Media, MediaSource, Message, Opaque, Params, Part, RawJson, ResponseFormat,
    Role, Text, Thinking, ThinkingConfig, Tool, ToolCall, ToolChoice, ToolResult,
};

use super::DIALECT;
use crate::{
    dialect::{Route, media::kind_of},
    json::{
        At, Fields, Raw, RequestError, borrowed, flag, float, int, items, list, raw_object, string,
        strings, uint,
    },
};

/// Both names of a field.
pub(super) type Names = &'static [&'static str];

pub(super) const SYSTEM: Names = &["systemInstruction", "system_instruction"];
pub(super) const CONFIG: Names = &["generationConfig", "generation_config"];
pub(super) const TOOL_CONFIG: Names = &["toolConfig", "tool_config"];
pub(super) const MAX_OUTPUT: Names = &["maxOutputTokens", "max_output_tokens"];
pub(super) const TOP_P: Names = &["topP", "top_p"];
pub(super) const TOP_K: Names = &["topK", "top_k"];
pub(super) const STOP: Names = &["stopSequences", "stop_sequences"];
pub(super) const PRESENCE: Names = &["presencePenalty", "presence_penalty"];
pub(super) const FREQUENCY: Names = &["frequencyPenalty", "frequency_penalty"];
pub(super) const LOGPROBS: Names = &["responseLogprobs", "response_logprobs"];
pub(super) const TOP_LOGPROBS: Names = &["logprobs"];
pub(super) const COUNT: Names = &["candidateCount", "candidate_count"];
pub(super) const MIME: Names = &["responseMimeType", "response_mime_type"];
pub(super) const SCHEMA: Names = &["responseSchema", "response_schema"];
pub(super) const JSON_SCHEMA: Names = &["responseJsonSchema", "response_json_schema"];
pub(super) const THINKING: Names = &["thinkingConfig", "thinking_config"];
pub(super) const BUDGET: Names = &["thinkingBudget", "thinking_budget"];
pub(super) const LEVEL: Names = &["thinkingLevel", "thinking_level"];
pub(super) const SHOW: Names = &["includeThoughts", "include_thoughts"];
pub(super) const CALLING: Names = &["functionCallingConfig", "function_calling_config"];
pub(super) const ALLOWED: Names = &["allowedFunctionNames", "allowed_function_names"];
pub(super) const INLINE: Names = &["inlineData", "inline_data"];
pub(super) const FILE: Names = &["fileData", "file_data"];
pub(super) const CALL: Names = &["functionCall", "function_call"];
pub(super) const RESPONSE: Names = &["functionResponse", "function_response"];
pub(super) const DECLARATIONS: Names = &["functionDeclarations", "function_declarations"];
const SIGNATURE: Names = &["thoughtSignature", "thought_signature"];

pub(super) fn decode(body: &Bytes, route: Route<'_>) -> Result<ChatRequest, RequestError> {
    let (mut top, all) = Fields::with_list(body, "contents")?;
    let mut messages = Vec::with_capacity(all.len() + 1);
    if let Some((name, raw)) = top.take_any(SYSTEM) {
        let parts = Fields::read(raw).and_then(|mut fields| parts(&mut fields)).at(name)?;
        let raw = raw.kept_in(body);
        messages.push(Message::from_wire(DIALECT, Role::System, parts, None, raw));
    }
    contents(all, body, &mut messages).at("contents")?;
    let mut request = ChatRequest::new(messages);
    request.model = match route.model {
        Some(model) => model.strip_prefix("models/").unwrap_or(model).into(),
        None => top.get("model", string)?.unwrap_or_default().into(),
    };
    request.stream = route.stream.unwrap_or(false);
    if let Some(raw) = top.take("tools") {
        request.tools = tools(raw).at("tools")?.into();
    }
    request.params = params(&mut top)?.into();
    Ok(request.with_origin(DIALECT, body.clone()))
}

/// The value under any of `names`.
fn get<'a, T>(
    fields: &mut Fields<'a>,
    names: Names,
    read: impl FnOnce(Raw<'a>) -> Result<T, RequestError>,
) -> Result<Option<T>, RequestError> {
    match fields.take_any(names) {
        Some((name, raw)) => read(raw).map(Some).at(name),
        None => Ok(None),
    }
}

fn need<'a, T>(
    fields: &mut Fields<'a>,
    names: Names,
    read: impl FnOnce(Raw<'a>) -> Result<T, RequestError>,
) -> Result<T, RequestError> {
    match get(fields, names, read)? {
        Some(value) => Ok(value),
        None => Err(RequestError::new("is missing")).at(names[0]),
    }
}

fn params(top: &mut Fields<'_>) -> Result<Params, RequestError> {
    let mut params = get(top, CONFIG, config)?.unwrap_or_default();
    params.tool_choice =
        get(top, TOOL_CONFIG, |raw| get(&mut Fields::read(raw)?, CALLING, tool_choice))?
            .flatten()
            .flatten();
    Ok(params)
}

fn config(raw: Raw<'_>) -> Result<Params, RequestError> {
    let mut fields = Fields::read(raw)?;
    let fields = &mut fields;
    let mut params = Params::default();
    params.max_output = get(fields, MAX_OUTPUT, uint)?;
    params.temperature = get(fields, &["temperature"], float)?;
    params.top_p = get(fields, TOP_P, float)?;
    // Google's own SDKs send this one as a float.
    params.top_k = get(fields, TOP_K, float)?.map(|k| k.max(0.0) as u64);
    params.stop = get(fields, STOP, strings)?.unwrap_or_default();
    params.seed = get(fields, &["seed"], int)?;
    params.presence_penalty = get(fields, PRESENCE, float)?;
    params.frequency_penalty = get(fields, FREQUENCY, float)?;
    params.answers = get(fields, COUNT, uint)?;
    params.logprobs = get(fields, LOGPROBS, flag)?;
    params.top_logprobs = get(fields, TOP_LOGPROBS, uint)?;
    let mime = get(fields, MIME, string)?;
    let schema = match get(fields, JSON_SCHEMA, raw_object)? {
        Some(schema) => Some(schema),
        None => get(fields, SCHEMA, raw_object)?,
    };
    params.format = match (schema, mime.as_deref()) {
        (Some(schema), _) => Some(ResponseFormat::Schema { name: None, schema, strict: None }),
        (None, Some("application/json")) => Some(ResponseFormat::Json),
        (None, Some("text/plain")) => Some(ResponseFormat::Text),
        _ => None,
    };
    params.thinking = get(fields, THINKING, thinking)?.flatten();
    Ok(params)
}

fn thinking(raw: Raw<'_>) -> Result<Option<ThinkingConfig>, RequestError> {
    let mut fields = Fields::read(raw)?;
    let budget = get(&mut fields, BUDGET, int)?;
    let level = get(&mut fields, LEVEL, string)?;
    let shown = get(&mut fields, SHOW, flag)?;
    Ok(match (budget, level) {
        (Some(0), _) => Some(ThinkingConfig::Off),
        (Some(tokens), _) => Some(match u64::try_from(tokens) {
            Ok(tokens) => ThinkingConfig::Budget(tokens),
            // Minus one.
            Err(_) => ThinkingConfig::Adaptive,
        }),
        (None, Some(level)) => Some(ThinkingConfig::Effort(level.to_ascii_lowercase())),
        (None, None) => shown.filter(|shown| *shown).map(|_| ThinkingConfig::Adaptive),
    })
}

/// `None` for modes that have no equivalent here; they are sent as they were read.
fn tool_choice(raw: Raw<'_>) -> Result<Option<ToolChoice>, RequestError> {
    let mut fields = Fields::read(raw)?;
    let mode = fields.get("mode", borrowed)?;
    let mut allowed = get(&mut fields, ALLOWED, strings)?.unwrap_or_default();
    Ok(match (mode.as_deref(), allowed.len()) {
        (Some("AUTO"), _) => Some(ToolChoice::Auto),
        (Some("NONE"), _) => Some(ToolChoice::None),
        (Some("ANY"), 1) => allowed.pop().map(ToolChoice::Tool),
        (Some("ANY"), 0) => Some(ToolChoice::Required),
        (Some("ANY"), _) => Some(ToolChoice::Allowed { names: allowed, required: true }),
        (Some("VALIDATED"), 0) => Some(ToolChoice::Auto),
        (Some("VALIDATED"), _) => Some(ToolChoice::Allowed { names: allowed, required: false }),
        _ => None,
    })
}

/// Reads the turns. Contents of the model's in a row are one: Google's SDKs send back a turn that
/// was streamed as the chunks it came in, calls and all.
fn contents(
    all: Vec<Raw<'_>>,
    body: &Bytes,
    messages: &mut Vec<Message>,
) -> Result<(), RequestError> {
    let mut run: Vec<Raw<'_>> = Vec::new();
    for (i, raw) in all.into_iter().enumerate() {
        let message = content(raw, body).index(i)?;
        if message.role() == Role::Assistant {
            run.push(raw);
        } else {
            join(&mut run, messages)?;
        }
        messages.push(message);
    }
    join(&mut run, messages)
}

/// Makes one message of the last ones, those of `run`.
fn join(run: &mut Vec<Raw<'_>>, messages: &mut Vec<Message>) -> Result<(), RequestError> {
    if run.len() > 1 {
        messages.truncate(messages.len() - run.len());
        messages.push(joined(run)?);
    }
    run.clear();
    Ok(())
}

/// One content with the parts of all of `run`.
fn joined(run: &[Raw<'_>]) -> Result<Message, RequestError> {
    let mut text = String::from(r#"{"role":"model","parts":["#);
    let mut between = "";
    for raw in run {
        let Some(parts) = Fields::read(*raw)?.take("parts") else { continue };
        let parts = parts.get().trim();
        let list = parts.strip_prefix('[').and_then(|list| list.strip_suffix(']'));
        let parts = list.unwrap_or(parts).trim();
        if !parts.is_empty() {
            text.push_str(between);
            text.push_str(parts);
            between = ",";
        }
    }
    text.push_str("]}");
    let text = Bytes::from(text);
    let raw = serde_json::from_slice(&text)
        .map_err(|error| RequestError::new(format!("can not be joined: {error}")))?;
    content(raw, &text)
}

fn content(raw: Raw<'_>, body: &Bytes) -> Result<Message, RequestError> {
    let mut fields = Fields::read(raw)?;
    let role = match fields.get("role", string)?.as_deref() {
        None | Some("user" | "function") => Role::User,
        Some("model") => Role::Assistant,
        Some(other) => {
            let problem = format!("`{other}` is no role; one of user, model");
            return Err(RequestError::new(problem)).at("role");
        }
    };
    let parts = parts(&mut fields)?;
    Ok(Message::from_wire(DIALECT, role, parts, fields.rest(), raw.kept_in(body)))
}

/// The field `parts`: a list; Google takes a single part too.
fn parts(fields: &mut Fields<'_>) -> Result<Vec<Part>, RequestError> {
    let read = |raw: Raw<'_>| if raw.is_object() { Ok(vec![part(raw)?]) } else { list(raw, part) };
    Ok(fields.get("parts", read)?.unwrap_or_default())
}

fn part(raw: Raw<'_>) -> Result<Part, RequestError> {
    let mut fields = Fields::read(raw)?;
    let signature = get(&mut fields, SIGNATURE, string)?;
    let thought = fields.get("thought", flag)?.unwrap_or(false);
    if let Some(text) = fields.get("text", string)? {
        let extra = fields.rest();
        return Ok(if thought {
            Part::Thinking(Thinking { text, signature, extra })
        } else {
            Part::Text(Text { text, signature, extra })
        });
    }
    if let Some((source, inner)) = get(&mut fields, INLINE, inline)? {
        return Ok(media(source, signature, with(fields.rest(), INLINE[0], inner)));
    }
    if let Some((source, inner)) = get(&mut fields, FILE, file)? {
        return Ok(media(source, signature, with(fields.rest(), FILE[0], inner)));
    }
    if let Some(mut call) = get(&mut fields, CALL, call)? {
        call.signature = signature;
        call.extra = with(fields.rest(), CALL[0], call.extra.take());
        return Ok(Part::ToolCall(call));
    }
    if let Some(mut result) = get(&mut fields, RESPONSE, response)? {
        let mut outer = fields.rest();
        if let Some(signature) = signature {
            outer.get_or_insert_default().insert(SIGNATURE[0].to_owned(), signature.into());
        }
        result.extra = with(outer, RESPONSE[0], result.extra.take());
        return Ok(Part::ToolResult(result));
    }
    let Some(kind) = fields.names().next().map(str::to_owned) else {
        return Err(RequestError::new(
            "has no content; one of text, inlineData, fileData, functionCall, functionResponse",
        ));
    };
    Ok(Part::Opaque(Opaque { dialect: DIALECT, kind, json: raw.kept() }))
}

/// What is left of a part, with what is left of the object `name` inside it.
fn with(mut outer: Extra, name: &str, inner: Extra) -> Extra {
    if let Some(inner) = inner {
        outer.get_or_insert_default().insert(name.to_owned(), Value::Object(*inner));
    }
    outer
}

fn media(source: MediaSource, signature: Option<String>, mut extra: Extra) -> Part {
    let kind = match &source {
        MediaSource::Base64 { mime, .. }
        | MediaSource::Url { mime: Some(mime), .. }
        | MediaSource::File { mime: Some(mime), .. } => kind_of(mime),
        _ => kind_of("image/"),
    };
    if let Some(signature) = signature {
        extra.get_or_insert_default().insert(SIGNATURE[0].to_owned(), signature.into());
    }
    Part::Media(Media { kind, source, extra })
}

fn inline(raw: Raw<'_>) -> Result<(MediaSource, Extra), RequestError> {
    let mut fields = Fields::read(raw)?;
    let mime = need(&mut fields, &["mimeType", "mime_type"], string)?;
    let data = fields.need("data", string)?.into();
    Ok((MediaSource::Base64 { mime, data }, fields.rest()))
}

/// What was uploaded to Google, and what lies elsewhere.
fn file(raw: Raw<'_>) -> Result<(MediaSource, Extra), RequestError> {
    let mut fields = Fields::read(raw)?;
    let mime = get(&mut fields, &["mimeType", "mime_type"], string)?;
    let uri = need(&mut fields, &["fileUri", "file_uri"], string)?;
    let elsewhere = uri.starts_with("http") && !uri.contains("generativelanguage.googleapis.com");
    let source = if elsewhere {
        MediaSource::Url { mime, url: uri }
    } else {
        MediaSource::File { mime, id: uri }
    };
    Ok((source, fields.rest()))
}

fn call(raw: Raw<'_>) -> Result<ToolCall, RequestError> {
    let mut fields = Fields::read(raw)?;
    let arguments = fields.get("args", raw_object)?;
    Ok(ToolCall {
        id: fields.get("id", string)?.unwrap_or_default(),
        name: fields.need("name", string)?,
        arguments: arguments.map_or_else(|| "{}".to_owned(), |args| args.get().to_owned()),
        signature: None,
        extra: fields.rest(),
    })
}

fn response(raw: Raw<'_>) -> Result<ToolResult, RequestError> {
    let mut fields = Fields::read(raw)?;
    let id = fields.get("id", string)?.unwrap_or_default();
    let name = fields.need("name", string)?;
    let response = fields.get("response", raw_object)?;
    let mut content = Vec::new();
    let mut is_error = false;
    if let Some(response) = response {
        let (text, failed) = result_text(&response);
        is_error = failed;
        if !text.is_empty() {
            content.push(Part::text(text));
        }
    }
    // Media that a tool answered with.
    content.extend(
        fields
            .get("parts", |raw| {
                let all = items(raw)?.into_iter().enumerate();
                all.map(|(i, raw)| part(raw).index(i)).collect::<Result<Vec<_>, _>>()
            })?
            .unwrap_or_default(),
    );
    Ok(ToolResult { id, name: Some(name), content, is_error, failure: None, extra: fields.rest() })
}

/// An answer of a tool as text, and whether it is an error: the text under the names Google
/// documents for it, else the object itself.
fn result_text(response: &RawJson) -> (String, bool) {
    let whole = (response.get().to_owned(), false);
    let Ok(tree) = response.read::<serde_json::Map<String, Value>>() else {
        return whole;
    };
    let mut entries = tree.into_iter();
    match (entries.next(), entries.next()) {
        (Some((name, Value::String(text))), None) => match name.as_str() {
            "result" | "output" => (text, false),
            "error" => (text, true),
            _ => whole,
        },
        _ => whole,
    }
}

fn tools(raw: Raw<'_>) -> Result<Vec<Tool>, RequestError> {
    let mut tools = Vec::new();
    for (i, raw) in items(raw)?.into_iter().enumerate() {
        let mut fields = Fields::read(raw).index(i)?;
        let mut json = raw.kept();
        let declared = fields.take_any(DECLARATIONS);
        let kind = fields.names().next().unwrap_or_default().to_owned();
        if let Some((name, declared)) = declared {
            tools.extend(list(declared, function).at(name).index(i)?);
            // A tool of Google's own may stand in the same object.
            let Some(rest) = fields.rest() else { continue };
            json = RawJson::from_value(&Value::Object(*rest));
        }
        tools.push(Tool::Opaque(Opaque { dialect: DIALECT, kind, json }));
    }
    Ok(tools)
}

fn function(raw: Raw<'_>) -> Result<Tool, RequestError> {
    let mut fields = Fields::read(raw)?;
    let name = fields.need("name", string)?;
    let description = fields.get("description", string)?;
    let json = get(&mut fields, &["parametersJsonSchema", "parameters_json_schema"], raw_object)?;
    let parameters = match json {
        Some(schema) => Some(schema),
        None => fields.get("parameters", raw_object)?,
    };
    let extra = fields.rest();
    Ok(Tool::Function {
        name,
        description,
        parameters,
        strict: None,
        custom: None,
        extra,
        dialect: Some(DIALECT),
    })
}
