//! The messages of a request, written.

use std::borrow::Cow;

use serde_json::Value;
use steadfast_chat::{
    ChatRequest, Media, MediaKind, MediaSource, Message, Part, Role, ToolCall, surrogates::repaired,
};
use steadfast_core::Failure;

use super::DIALECT;
use crate::{
    dialect::{
        calls::Calls,
        fault,
        media::{IMAGES, data_url},
        openai::request_decode::REFUSAL,
        words::failed,
    },
    json::{Array, Object},
};

/// What stands for a tool's answer without text: the field may not be empty everywhere.
const NO_OUTPUT: &str = "(no output)";

/// The list of messages: those that nobody changed as they were read.
pub(super) fn write(out: &mut Vec<u8>, request: &ChatRequest) -> Result<(), Failure> {
    let messages = &request.messages;
    let calls = Calls::of(messages, DIALECT);
    let mut list = Array::new(out);
    let mut shown = Vec::new();
    for (m, message) in messages.iter().enumerate() {
        // Nothing may stand between the results of one answer's calls.
        if message.tool_results().next().is_none() {
            show(&mut list, &mut shown);
        }
        if let Some(raw) = message.raw(DIALECT) {
            list.raw(raw.get());
            continue;
        }
        match message.role() {
            Role::System => system(&mut list, message),
            Role::Assistant => assistant(&mut list, m, message, &calls)?,
            _ => user(&mut list, m, message, &calls, &mut shown)?,
        }
    }
    show(&mut list, &mut shown);
    Ok(())
}

/// Opens a message, with the role it had in this dialect and the fields nobody knew.
fn open<'l>(list: &'l mut Array<'_>, role: &str, message: &Message) -> Object<'l> {
    let extra = message.extra(DIALECT);
    let role = extra.and_then(|extra| extra.get("role")).and_then(Value::as_str).unwrap_or(role);
    let mut object = list.object();
    object.put("role", role);
    for (name, value) in extra.into_iter().flatten().filter(|(name, _)| *name != "role") {
        object.put(name, value);
    }
    object
}

fn system(list: &mut Array<'_>, message: &Message) {
    let texts: Vec<&str> = message.parts().iter().filter_map(Part::as_text).collect();
    // One string: many compatible servers take no list here.
    let text = texts.join("\n\n");
    if !text.is_empty() {
        open(list, "system", message).put("content", &text);
    }
}

/// The arguments of a call, for dialects in which they are a string: as they were written where that was in the
/// `own` one, else without halves of characters, which no other vendor has seen.
pub(in crate::dialect) fn arguments_text(call: &ToolCall, own: bool) -> Cow<'_, str> {
    match &*call.arguments {
        empty if empty.trim().is_empty() => "{}".into(),
        arguments if own => arguments.into(),
        arguments => repaired(arguments),
    }
}

fn assistant(
    list: &mut Array<'_>,
    m: usize,
    message: &Message,
    calls: &Calls,
) -> Result<(), Failure> {
    let text = message.text();
    let (mut written, mut images, mut refusal) = (Vec::new(), Vec::new(), None);
    for (p, part) in message.parts().iter().enumerate() {
        match part {
            Part::ToolCall(call) => {
                let id = calls.get(m, p).map_or(call.id.as_str(), |known| &known.id);
                let own = message.dialect() == Some(DIALECT);
                let arguments = arguments_text(call, own);
                let extra = call.extra.as_deref().filter(|_| own);
                written.push(Object::text(|object| {
                    object.put("id", id).put("type", "function");
                    object
                        .object("function")
                        .put("name", &call.name)
                        .put("arguments", &*arguments)
                        .extra(extra.and_then(|extra| extra.get("function")?.as_object()));
                    for (name, value) in extra.into_iter().flatten() {
                        if name != "function" {
                            object.put(name, value);
                        }
                    }
                }));
            }
            Part::Opaque(opaque)
                if opaque.dialect == DIALECT && opaque.kind.starts_with("tool_calls.") =>
            {
                written.push(opaque.json.get().to_owned());
            }
            Part::Opaque(opaque) if opaque.dialect == DIALECT && opaque.kind == REFUSAL => {
                refusal = opaque.json.to_value()["refusal"].as_str().map(str::to_owned);
            }
            Part::Opaque(opaque) if opaque.dialect == DIALECT && opaque.kind == IMAGES => {
                images.push(opaque.json.get().to_owned());
            }
            Part::Opaque(opaque) if opaque.dialect == DIALECT => {}
            Part::Opaque(_) => content_part(&mut images, part, message)?,
            Part::Media(medium) => images.push(media(medium, message)?),
            // Thinking does not go into a request of this dialect.
            _ => {}
        }
    }
    let besides = !written.is_empty() || !images.is_empty() || refusal.is_some();
    if !besides && !has_text(message) {
        return Ok(());
    }
    let mut object = open(list, "assistant", message);
    object.put("content", &Some(&text).filter(|text| !besides || !text.is_empty()));
    object.put_some("refusal", refusal);
    if !images.is_empty() {
        // As relays and compatible servers have it.
        let mut list = object.array("images");
        images.iter().for_each(|image| list.raw(image));
    }
    if !written.is_empty() {
        let mut list = object.array("tool_calls");
        written.iter().for_each(|call| list.raw(call));
    }
    Ok(())
}

/// Whether it has text, be it empty: who says nothing has had a turn nevertheless.
fn has_text(message: &Message) -> bool {
    message.parts().iter().any(|part| part.as_text().is_some())
}

/// What tools have shown, as a message of the user's.
fn show(list: &mut Array<'_>, shown: &mut Vec<String>) {
    if shown.is_empty() {
        return;
    }
    let mut object = list.object();
    object.put("role", "user");
    let mut list = object.array("content");
    shown.drain(..).for_each(|part| list.raw(&part));
}

/// Results as a message each, and then what the user sends. What a message of a tool has besides is
/// added to `shown`.
fn user(
    list: &mut Array<'_>,
    m: usize,
    message: &Message,
    calls: &Calls,
    shown: &mut Vec<String>,
) -> Result<(), Failure> {
    let mut rest: Vec<&Part> = Vec::new();
    for (p, part) in message.parts().iter().enumerate() {
        let Part::ToolResult(result) = part else {
            rest.push(part);
            continue;
        };
        let known = calls.get(m, p);
        let texts: Vec<&str> = result.content.iter().filter_map(Part::as_text).collect();
        let mut text = texts.join("\n");
        if result.is_error && message.dialect().is_some_and(|read| read != DIALECT) {
            text = failed(text);
        }
        // What a tool showed: a tool's message takes text alone, so the user shows it.
        rest.extend(result.content.iter().filter(|part| matches!(part, Part::Media(_))));
        let mut object = if message.role() == Role::Tool {
            open(list, "tool", message)
        } else {
            let mut object = list.object();
            object.put("role", "tool");
            object
        };
        object
            .put("tool_call_id", known.map_or(result.id.as_str(), |known| &known.id))
            .put("content", if text.is_empty() { NO_OUTPUT } else { &text });
    }
    if rest.is_empty() {
        return Ok(());
    }
    let mut parts = Vec::new();
    for part in &rest {
        content_part(&mut parts, part, message)?;
    }
    if message.role() == Role::Tool {
        shown.append(&mut parts);
        return Ok(());
    }
    let only_text = match rest.as_slice() {
        [Part::Text(text)] if text.extra.is_none() => Some(&text.text),
        _ => None,
    };
    if parts.is_empty() {
        if rest.len() == message.parts().len() && has_text(message) {
            open(list, "user", message).put("content", "");
        }
        return Ok(());
    }
    let mut object = open(list, "user", message);
    if let Some(text) = only_text {
        object.put("content", text);
        return Ok(());
    }
    let mut list = object.array("content");
    parts.iter().for_each(|part| list.raw(part));
    Ok(())
}

fn content_part(out: &mut Vec<String>, part: &Part, message: &Message) -> Result<(), Failure> {
    let own = message.dialect() == Some(DIALECT);
    match part {
        Part::Text(text) if text.text.is_empty() => {}
        Part::Text(text) => out.push(Object::text(|object| {
            object
                .put("type", "text")
                .put("text", &text.text)
                .extra(text.extra.as_deref().filter(|_| own));
        })),
        Part::Media(medium) => out.push(media(medium, message)?),
        Part::Opaque(opaque) if opaque.dialect == DIALECT => {
            out.push(opaque.json.get().to_owned());
        }
        Part::Opaque(opaque) => {
            let what = format!("a part `{}` of the {} dialect", opaque.kind, opaque.dialect);
            return Err(fault::unsupported(DIALECT, &what));
        }
        Part::ToolCall(_) => {
            return Err(fault::unsupported(DIALECT, "a tool call in a message of the user"));
        }
        _ => {}
    }
    Ok(())
}

fn media(medium: &Media, message: &Message) -> Result<String, Failure> {
    let own = message.dialect() == Some(DIALECT);
    let name = match (medium.kind, &medium.source) {
        (MediaKind::Image, MediaSource::Base64 { .. } | MediaSource::Url { .. }) => "image_url",
        (MediaKind::Audio, MediaSource::Base64 { .. }) => "input_audio",
        (MediaKind::Document, MediaSource::Base64 { .. }) => "file",
        (_, MediaSource::File { .. }) if message.dialect().is_none_or(|read| read == DIALECT) => {
            "file"
        }
        (kind, MediaSource::File { .. }) => {
            let what = format!("a file ({kind:?}) uploaded to another vendor");
            return Err(fault::unsupported(DIALECT, &what));
        }
        (kind, _) => return Err(fault::unsupported(DIALECT, &format!("a medium ({kind:?})"))),
    };
    let extra = medium.extra.as_deref().filter(|_| own);
    Ok(Object::text(|object| {
        object.put("type", name);
        {
            let mut inner = object.object(name);
            match (&medium.source, name) {
                (MediaSource::Base64 { mime, data }, "image_url") => {
                    inner.put("url", &data_url(mime, data));
                }
                (MediaSource::Base64 { mime, data }, "input_audio") => {
                    let format = mime.rsplit('/').next().unwrap_or("wav");
                    let format = if format == "mpeg" { "mp3" } else { format };
                    inner.put("data", &**data).put("format", format);
                }
                (MediaSource::Base64 { mime, data }, _) => {
                    // The field is refused without a name, which other dialects have none for.
                    if extra.and_then(|extra| extra.get("file")).is_none() {
                        let end = mime.rsplit('/').next().unwrap_or("pdf");
                        inner.put("filename", &format!("document.{end}"));
                    }
                    inner.put("file_data", &data_url(mime, data));
                }
                (MediaSource::Url { url, .. }, _) => {
                    inner.put("url", url);
                }
                (MediaSource::File { id, .. }, _) => {
                    inner.put("file_id", id);
                }
                _ => {}
            }
            inner.extra(extra.and_then(|extra| extra.get(name)).and_then(Value::as_object));
        }
        for (key, value) in extra.into_iter().flatten().filter(|(key, _)| *key != name) {
            object.put(key, value);
        }
    }))
}
