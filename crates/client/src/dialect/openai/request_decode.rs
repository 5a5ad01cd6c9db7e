//! A caller's request, read.

use bytes::Bytes;
use serde_json::{Map, Value};
use steadfast_core::{
    ChatRequest, Extra, Media, MediaKind, Message, Opaque, Params, Part, ResponseFormat, Role,
    Text, ThinkingConfig, Tool, ToolCall, ToolChoice, ToolResult,
};

use super::{DIALECT, plain};
use crate::{
    dialect::media::{kind_of, source_of_url},
    json::{
        At, Cursor, Fields, Raw, RequestError, Seen, flag, float, int, items, kind, string, uint,
    },
};

const ROLES: &str = "one of system, developer, user, assistant, tool";

pub(super) fn decode(body: &Bytes) -> Result<ChatRequest, RequestError> {
    let request = match quick(body) {
        Some(request) => request?,
        None => slow(body)?,
    };
    Ok(request.with_origin(DIALECT, body.clone()))
}

/// Reads a request as it usually is, in one pass; `None` for what is out of the ordinary, of which
/// [`slow`] says what it is.
fn quick(body: &Bytes) -> Option<Result<ChatRequest, RequestError>> {
    let mut request = ChatRequest::new(Vec::new());
    let (mut params, mut newer, mut rest) = (Params::default(), None, Fields::default());
    let (mut model, mut messages_there, mut seen) = (None, false, Seen::default());
    let mut misread = None;
    let mut cursor = Cursor::new(body)?;
    cursor.object(|cursor, name| {
        match name {
            "model" => model = Some(seen.first(0, cursor.sound())?),
            "messages" => {
                let found = seen.first(1, plain::list_of(cursor, plain::message))?;
                match agreed(found, messages).at(name) {
                    Ok(list) => request.messages = list.into(),
                    Err(error) => misread = Some(error),
                }
                messages_there = true;
            }
            "tools" => {
                let found = seen.first(2, plain::list_of(cursor, plain::tool))?;
                match agreed(found, tools).at(name) {
                    Ok(list) => request.tools = list.into(),
                    Err(error) => misread = Some(error),
                }
            }
            "stream" => request.stream = seen.first(3, cursor.flag())?.unwrap_or(false),
            "max_tokens" => params.max_output = seen.first(4, cursor.count())?,
            "max_completion_tokens" => newer = seen.first(5, cursor.count())?,
            "temperature" => params.temperature = seen.first(6, number(cursor))?,
            "top_p" => params.top_p = seen.first(7, number(cursor))?,
            "n" => params.answers = seen.first(8, cursor.count())?,
            "parallel_tool_calls" => params.parallel_tool_calls = seen.first(9, cursor.flag())?,
            _ if OTHERS.contains(&name) => rest.push(name, cursor.raw()?),
            // Of the others the origin knows.
            _ => cursor.pass()?,
        }
        Some(())
    })?;
    if !cursor.is_over() || !messages_there {
        return None;
    }
    request.model = model.filter(|model| !model.contains('\\'))?.to_owned();
    params.max_output = newer.or(params.max_output);
    others(&mut params, &mut rest).ok()?;
    request.params = params.into();
    Some(misread.map_or(Ok(request), Err))
}

/// What [`others`] reads.
const OTHERS: [&str; 9] = [
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "user",
    "tool_choice",
    "response_format",
    "reasoning_effort",
    "stream_options",
];

/// A number, or null. It is read by the same that reads it elsewhere, to the last bit.
fn number(cursor: &mut Cursor<'_>) -> Option<Option<f64>> {
    match cursor.there()? {
        None => Some(None),
        Some(raw) => float(raw).ok().map(Some),
    }
}

/// Reads any request.
fn slow(body: &Bytes) -> Result<ChatRequest, RequestError> {
    let mut top = Fields::of_body(body)?;
    let mut request = ChatRequest::new(Vec::new());
    request.messages = top.need("messages", messages)?.into();
    request.model = top.need("model", string)?;
    request.tools = top.get("tools", tools)?.unwrap_or_default().into();
    request.stream = top.get("stream", flag)?.unwrap_or(false);
    let mut params = Params::default();
    let newer = top.get("max_completion_tokens", uint)?;
    params.max_output = newer.or(top.get("max_tokens", uint)?);
    params.temperature = top.get("temperature", float)?;
    params.top_p = top.get("top_p", float)?;
    params.parallel_tool_calls = top.get("parallel_tool_calls", flag)?;
    params.answers = top.get("n", uint)?;
    others(&mut params, &mut top)?;
    request.params = params.into();
    Ok(request)
}

/// The list of the text that a scanner found to be readable, with so many items.
///
/// # Errors
///
/// When the reader finds another: one of them misread the request.
fn agreed<T>(
    (text, len): (Raw<'_>, usize),
    read: fn(Raw<'_>) -> Result<Vec<T>, RequestError>,
) -> Result<Vec<T>, RequestError> {
    let list = read(text)?;
    if list.len() == len {
        return Ok(list);
    }
    let problem = format!("was misread: {len} items were scanned, {} were read", list.len());
    Err(RequestError::new(problem))
}

pub(super) fn messages(raw: Raw<'_>) -> Result<Vec<Message>, RequestError> {
    items(raw)?.into_iter().enumerate().map(|(i, raw)| message(raw).index(i)).collect()
}

/// The parameters that are seldom there.
fn others(params: &mut Params, top: &mut Fields<'_>) -> Result<(), RequestError> {
    if top.is_empty() {
        return Ok(());
    }
    params.stop = top.get("stop", one_or_more)?.unwrap_or_default();
    params.seed = top.get("seed", int)?;
    params.presence_penalty = top.get("presence_penalty", float)?;
    params.frequency_penalty = top.get("frequency_penalty", float)?;
    params.user = top.get("user", string)?;
    params.tool_choice = top.get("tool_choice", tool_choice)?.flatten();
    params.format = top.get("response_format", format)?.flatten();
    params.thinking = top.get("reasoning_effort", string)?.map(|word| match word.as_str() {
        "none" => ThinkingConfig::Off,
        _ => ThinkingConfig::Effort(word),
    });
    params.stream_usage =
        top.get("stream_options", |raw| Fields::read(raw)?.get("include_usage", flag))?.flatten();
    Ok(())
}

/// A string, or a list of strings.
fn one_or_more(raw: Raw<'_>) -> Result<Vec<String>, RequestError> {
    if kind(raw) == "a list" {
        items(raw)?.into_iter().enumerate().map(|(i, raw)| string(raw).index(i)).collect()
    } else {
        Ok(vec![
            string(raw)
                .map_err(|_| RequestError::expected("a string or a list of strings", raw))?,
        ])
    }
}

fn message(raw: Raw<'_>) -> Result<Message, RequestError> {
    let mut fields = Fields::read(raw)?;
    let word = fields.need("role", string)?;
    let (role, parts) = match word.as_str() {
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
    // Instructions of a developer are instructions; when the message is written anew, the word
    // for them comes back.
    if word == "developer" {
        extra.get_or_insert_default().insert("role".to_owned(), Value::String(word));
    }
    Ok(Message::from_wire(DIALECT, role, parts, extra, raw.kept()))
}

fn result(id: String, name: Option<String>, content: Vec<Part>) -> Part {
    Part::ToolResult(ToolResult { id, name, content, is_error: false, extra: None })
}

fn assistant(fields: &mut Fields<'_>) -> Result<Vec<Part>, RequestError> {
    let mut parts = content(fields)?;
    if let Some(calls) = fields.take("tool_calls") {
        let calls = items(calls)
            .and_then(|calls| {
                let each = calls.into_iter().enumerate();
                each.map(|(i, raw)| call(raw).index(i)).collect::<Result<Vec<_>, _>>()
            })
            .at("tool_calls")?;
        // An empty text beside calls says nothing.
        parts.retain(|part| part.as_text() != Some(""));
        parts.extend(calls);
    }
    if let Some(raw) = fields.take("function_call") {
        parts.push(function(raw, String::new(), None).at("function_call")?);
    }
    Ok(parts)
}

fn call(raw: Raw<'_>) -> Result<Part, RequestError> {
    let mut fields = Fields::read(raw)?;
    let what = fields.get("type", string)?.unwrap_or_else(|| "function".to_owned());
    if what != "function" {
        return Ok(opaque(&format!("tool_calls.{what}"), raw));
    }
    let id = fields.need("id", string)?;
    let inner = fields.take("function").ok_or_else(|| RequestError::new("is missing"));
    function(inner.at("function")?, id, fields.rest()).at("function")
}

fn function(raw: Raw<'_>, id: String, extra: Extra) -> Result<Part, RequestError> {
    let mut fields = Fields::read(raw)?;
    let name = fields.need("name", string)?;
    let arguments = fields.get("arguments", string)?.unwrap_or_default();
    Ok(Part::ToolCall(ToolCall { id, name, arguments, signature: None, extra }))
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
        "a list" => {
            let all = items(raw)?.into_iter().enumerate();
            all.map(|(i, raw)| part(raw).index(i)).collect()
        }
        _ => Err(RequestError::expected("a string or a list of parts", raw)),
    };
    parts.at("content")
}

fn part(raw: Raw<'_>) -> Result<Part, RequestError> {
    let mut fields = Fields::read(raw)?;
    let what = fields.need("type", string)?;
    match what.as_str() {
        "text" => {
            let text = fields.need("text", string)?;
            Ok(Part::Text(Text { text, signature: None, extra: fields.rest() }))
        }
        "image_url" => {
            let raw = fields.take("image_url").ok_or_else(|| RequestError::new("is missing"));
            let (url, inner) = image(raw.at("image_url")?).at("image_url")?;
            let source = source_of_url(url);
            Ok(media(MediaKind::Image, source, fields, "image_url", inner))
        }
        "input_audio" => {
            let raw = fields.take("input_audio").ok_or_else(|| RequestError::new("is missing"));
            let read = |raw| {
                let mut inner = Fields::read(raw)?;
                let data = inner.need("data", string)?;
                let format = inner.need("format", string)?;
                Ok((data, format, inner.rest()))
            };
            let (data, format, inner) = read(raw.at("input_audio")?).at("input_audio")?;
            let source = steadfast_core::MediaSource::Base64 {
                mime: format!("audio/{format}"),
                data: data.into(),
            };
            Ok(media(MediaKind::Audio, source, fields, "input_audio", inner))
        }
        "file" => {
            let whole = raw;
            let raw = fields.take("file").ok_or_else(|| RequestError::new("is missing"));
            let read = |raw| {
                let mut inner = Fields::read(raw)?;
                let data = inner.get("file_data", string)?;
                let id = inner.get("file_id", string)?;
                Ok((data, id, inner.rest()))
            };
            let (data, id, inner) = read(raw.at("file")?).at("file")?;
            let source = match (data, id) {
                (Some(data), _) => source_of_url(data),
                (None, Some(id)) => steadfast_core::MediaSource::File { mime: None, id },
                (None, None) => return Ok(opaque(&what, whole)),
            };
            let kind = match &source {
                steadfast_core::MediaSource::Base64 { mime, .. } => kind_of(mime),
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

/// A medium. What is left of the part goes into its extra fields, what is left of the object
/// inside it under that object's name.
fn media(
    kind: MediaKind,
    source: steadfast_core::MediaSource,
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

pub(super) fn tools(raw: Raw<'_>) -> Result<Vec<Tool>, RequestError> {
    items(raw)?.into_iter().enumerate().map(|(i, raw)| tool(raw).index(i)).collect()
}

fn tool(raw: Raw<'_>) -> Result<Tool, RequestError> {
    let mut fields = Fields::read(raw)?;
    let what = fields.need("type", string)?;
    if what != "function" {
        let json = raw.kept();
        return Ok(Tool::Opaque(Opaque { dialect: DIALECT, kind: what, json }));
    }
    let inner = fields.take("function").ok_or_else(|| RequestError::new("is missing"));
    let mut inner = Fields::read(inner.at("function")?).at("function")?;
    let name = inner.need("name", string).at("function")?;
    let description = inner.get("description", string).at("function")?;
    let parameters = inner.get("parameters", crate::json::raw_object).at("function")?;
    let strict = inner.get("strict", flag).at("function")?;
    let extra: Option<Box<Map<String, Value>>> = fields.rest();
    Ok(Tool::Function { name, description, parameters, strict, extra, dialect: Some(DIALECT) })
}

/// `None` for choices that have no word here; they stay as they were read.
fn tool_choice(raw: Raw<'_>) -> Result<Option<ToolChoice>, RequestError> {
    if kind(raw) != "a string" {
        let mut fields = Fields::read(raw)?;
        if fields.need("type", string)? != "function" {
            return Ok(None);
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
            let schema = inner.get("schema", crate::json::raw_object)?;
            Ok(match schema {
                Some(schema) => ResponseFormat::Schema { name, schema, strict },
                None => ResponseFormat::Json,
            })
        })?),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether the quick way dared to; what it reads the slow one reads too.
    fn both(text: &str) -> bool {
        let body = Bytes::copy_from_slice(text.as_bytes());
        let Some(quick) = quick(&body) else { return false };
        let quick = quick.unwrap_or_else(|error| panic!("{text}: {error}"));
        let slow = slow(&body).unwrap_or_else(|error| panic!("{text}: {error}"));
        let same = (&quick.model, &quick.stream, &quick.params, &quick.messages, &quick.tools)
            == (&slow.model, &slow.stream, &slow.params, &slow.messages, &slow.tools);
        assert!(same, "{text}");
        true
    }

    #[test]
    fn a_list_that_is_read_otherwise_than_it_was_scanned_is_an_error() {
        let raw = Raw::read(br#"[{"role":"user","content":"hi"}]"#).unwrap();
        assert_eq!(agreed((raw, 1), messages).unwrap().len(), 1);
        let error = agreed((raw, 2), messages).at("messages").unwrap_err();
        assert_eq!(error.to_string(), "messages: was misread: 2 items were scanned, 1 were read");
        // A list that the scanner would have to refuse, too.
        let raw = Raw::read(br#"[{"role":"wizard"}]"#).unwrap();
        let error = agreed((raw, 1), messages).at("messages").unwrap_err();
        assert!(error.to_string().starts_with("messages[0].role: "), "{error}");
    }

    const MESSAGES: &str = r#""messages":[{"role":"user","content":"hi"}]"#;

    #[test]
    fn the_usual_is_read_the_quick_way() {
        for more in [
            "",
            r#","stream":true,"max_tokens":7,"temperature":0.7,"top_p":1e-1,"n":1"#,
            r#","stream":null,"max_tokens":7,"max_completion_tokens":9,"parallel_tool_calls":false"#,
            r#","max_tokens":null,"temperature":null,"top_p":null,"n":null,"parallel_tool_calls":null"#,
            r#","stop":["a","b"],"seed":-3,"presence_penalty":1,"frequency_penalty":0.5,"user":"u\n""#,
            r#","stop":"a","stop":"b","tool_choice":"auto","reasoning_effort":"low""#,
            r#","tool_choice":{"type":"function","function":{"name":"f"}}"#,
            r#","response_format":{"type":"json_schema","json_schema":{"schema":{}}}"#,
            r#","stream_options":{"include_usage":true},"unknown":{"a":[1]}"#,
            r#","tools":[{"type":"function","function":{"name":"f"}}]"#,
        ] {
            assert!(both(&format!(r#" {{"model":"m",{MESSAGES}{more}}} "#)), "{more}");
        }
    }

    #[test]
    fn what_is_out_of_the_ordinary_is_read_the_slow_way() {
        for text in [
            "[]",
            "{}",
            r#"{"model":"m"}"#,
            &format!("{{{MESSAGES}}}"),
            &format!(r#"{{"model":"m",{MESSAGES}}} x"#),
            &format!(r#"{{"model":"m\u0061",{MESSAGES}}}"#),
            &format!(r#"{{"model":"m","model":"n",{MESSAGES}}}"#),
            &format!(r#"{{"model":"m",{MESSAGES},{MESSAGES}}}"#),
            &format!(r#"{{"model":null,{MESSAGES}}}"#),
            &format!(r#"{{"model":"m",{MESSAGES},"tools":null}}"#),
            &format!(r#"{{"model":"m",{MESSAGES},"max_tokens":-1}}"#),
            &format!(r#"{{"model":"m",{MESSAGES},"max_tokens":1.0}}"#),
            &format!(r#"{{"model":"m",{MESSAGES},"temperature":"x"}}"#),
            &format!(r#"{{"model":"m",{MESSAGES},"temperature":1e999}}"#),
            &format!(r#"{{"model":"m",{MESSAGES},"stop":7}}"#),
            &format!(r#"{{"model":"m",{MESSAGES},"str\u0065am":true}}"#),
        ] {
            assert!(!both(text), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn both_ways_read_the_same(fields in proptest::collection::vec((
            prop::sample::select(vec![
                "model", "messages", "tools", "stream", "max_tokens", "max_completion_tokens", "temperature",
                "top_p", "n", "parallel_tool_calls", "stop", "seed", "user", "tool_choice", "other",
            ]),
            prop::sample::select(vec![
                "null", "true", "0", "7", "-1", "0.5", "1e3", "99999999999999999999", "\"m\"", "\"\"",
                "\"auto\"", "[]", "[\"a\"]", "{}", r#"[{"role":"user","content":"x"}]"#,
                r#"[{"type":"function","function":{"name":"f"}}]"#,
            ]),
        ), 0..6), sound in any::<bool>()) {
            let fields: Vec<_> = fields.iter().map(|(n, v)| format!("\"{n}\": {v}")).collect();
            let begin = if sound { format!(r#""model":"m",{MESSAGES},"#) } else { String::new() };
            both(&format!("{{{begin}{}}}", fields.join(" ,")));
        }
    }
}
