//! The items of a request, written.

use serde_json::{Map, Value};
use steadfast_chat::{
    ChatRequest, Media, MediaKind, MediaSource, Message, Part, Role, ToolCall, ToolResult,
};
use steadfast_core::Failure;

use super::{DIALECT, ITEM, custom, namespace};
use crate::{
    dialect::{calls::Calls, fault, media::data_url, openai::arguments_text, words::failed},
    json::{Array, Object},
};

/// What stands for a tool's answer without text.
const NO_OUTPUT: &str = "(no output)";

/// The instructions that stand before the conversation: those that are no items of it.
pub(super) fn instructions(messages: &[Message]) -> String {
    let leading = messages.iter().take_while(|message| is_instruction(message));
    leading.map(Message::text).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// Whether it stands in `instructions`, or would, and not among the items.
fn is_instruction(message: &Message) -> bool {
    let is_item = || message.raw(DIALECT).is_some_and(|raw| !raw.get().starts_with('"'));
    message.role() == Role::System && !is_item() && message.extra(DIALECT).is_none()
}

/// The list of items: those that nobody changed as they were read.
pub(super) fn write(out: &mut Vec<u8>, request: &ChatRequest) -> Result<(), Failure> {
    let messages = &request.messages;
    let calls = Calls::of(messages, DIALECT);
    let custom = custom::names(&request.tools);
    let mut list = Array::new(out);
    let mut leading = true;
    for (m, message) in messages.iter().enumerate() {
        leading &= is_instruction(message);
        if leading {
            continue;
        }
        let raw = message.raw(DIALECT).map(|raw| raw.get()).filter(|raw| !raw.starts_with('"'));
        if let Some(raw) = raw {
            // A turn of several items is a list of them.
            let items = raw.strip_prefix('[').and_then(|items| items.strip_suffix(']'));
            list.raw(items.unwrap_or(raw));
            continue;
        }
        let mut writer = ItemWriter { list: &mut list, message, content: Vec::new(), extra: None };
        if message.parts().iter().all(|part| part.as_text().is_some_and(str::is_empty)) {
            writer.blank();
        }
        for (p, part) in message.parts().iter().enumerate() {
            let known = calls.get(m, p).map(|known| known.id.as_str());
            match part {
                Part::ToolCall(call) => writer.call(call, known.unwrap_or(&call.id), &custom),
                Part::ToolResult(result) => {
                    let id = known.unwrap_or(&result.id);
                    let is_custom = is_custom(&result.extra)
                        || calls.get(m, p).is_some_and(|known| has(&custom, &known.name));
                    writer.result(result, id, is_custom)?;
                }
                _ => writer.part(part)?,
            }
        }
        writer.close();
    }
    Ok(())
}

fn has(names: &[Box<str>], name: &str) -> bool {
    names.iter().any(|known| **known == *name)
}

/// Whether what was left of an item says that it is a custom tool's.
fn is_custom(extra: &Option<Box<Map<String, Value>>>) -> bool {
    let kind = extra.as_deref().and_then(|extra| extra.get("type")).and_then(Value::as_str);
    kind.is_some_and(|kind| kind.starts_with("custom_"))
}

/// Writes a message as the items that it is here.
struct ItemWriter<'l, 'o, 'm> {
    list: &'l mut Array<'o>,
    message: &'m Message,
    /// The parts of the item of kind `message` that is open.
    content: Vec<String>,
    /// The other fields of that item, if it is the model's.
    extra: Option<&'m Map<String, Value>>,
}

impl<'m> ItemWriter<'_, '_, 'm> {
    /// Whether its extra fields are fields of this dialect.
    fn own(&self) -> bool {
        self.message.dialect() == Some(DIALECT)
    }

    /// Whether a signature in it means something here.
    fn is_native(&self) -> bool {
        self.message.dialect().is_none_or(|read| read == DIALECT)
    }

    /// A message of nothing is one all the same, and may be the only one.
    fn blank(&mut self) {
        let is_model = self.message.role() == Role::Assistant;
        let kind = if is_model { "output_text" } else { "input_text" };
        self.content.push(Object::text(|object| {
            object.put("type", kind).put("text", "");
        }));
    }

    /// Writes what is open as a message.
    fn close(&mut self) {
        if self.content.is_empty() {
            return;
        }
        let extra = self.extra.take().or_else(|| self.message.extra(DIALECT));
        let named = extra.and_then(|extra| extra.get("role")).and_then(Value::as_str);
        let role = named.unwrap_or(match self.message.role() {
            Role::System => "developer",
            Role::Assistant => "assistant",
            _ => "user",
        });
        let mut object = self.list.object();
        object.put("type", "message").put("role", role);
        {
            let mut list = object.array("content");
            self.content.drain(..).for_each(|part| list.raw(&part));
        }
        put_rest(&mut object, extra, "role");
    }

    fn part(&mut self, part: &'m Part) -> Result<(), Failure> {
        let is_model = self.message.role() == Role::Assistant;
        match part {
            Part::Text(text) if text.text.is_empty() => {}
            Part::Text(text) => {
                let kind = if is_model { "output_text" } else { "input_text" };
                let extra = text.extra.as_deref().filter(|_| self.own());
                let item = extra.and_then(|extra| extra.get(ITEM)).and_then(Value::as_object);
                if item.is_some() {
                    self.close();
                    self.extra = item;
                }
                self.content.push(Object::text(|object| {
                    object.put("type", kind).put("text", &text.text);
                    put_rest(object, extra, ITEM);
                }));
            }
            Part::Media(_) if is_model => {
                return Err(fault::unsupported(DIALECT, "a medium in a message of the model"));
            }
            Part::Media(medium) => {
                let own = self.own();
                self.content.push(media(medium, self.is_native(), own)?);
            }
            Part::Thinking(thinking) => {
                let signature = thinking.signature.as_deref();
                let signature = signature.filter(|text| !text.is_empty() && self.is_native());
                let extra = thinking.extra.as_deref().filter(|_| self.own());
                // One with an id and nothing else is kept by its provider.
                let is_known = extra.is_some_and(|extra| extra.contains_key("id"));
                if signature.is_some() || is_known {
                    self.close();
                    reasoning(self.list, &thinking.text, signature, extra);
                }
            }
            Part::Redacted { data } if self.is_native() => {
                self.close();
                reasoning(self.list, "", Some(data), None);
            }
            Part::Opaque(opaque) if opaque.dialect == DIALECT => {
                // A part of a message's content, or an item of its own.
                if matches!(&*opaque.kind, "refusal") || opaque.kind.starts_with("input_") {
                    self.content.push(opaque.json.get().to_owned());
                } else {
                    self.close();
                    self.list.raw(opaque.json.get());
                }
            }
            Part::Opaque(opaque) => {
                let what = format!("a part `{}` of the {} dialect", opaque.kind, opaque.dialect);
                return Err(fault::unsupported(DIALECT, &what));
            }
            // Thinking that somebody else has signed.
            _ => {}
        }
        Ok(())
    }

    fn call(&mut self, call: &ToolCall, id: &str, custom: &[Box<str>]) {
        self.close();
        let own = self.own();
        let extra = call.extra.as_deref().filter(|_| own);
        let group = extra.and_then(|extra| extra.get(namespace::FIELD)).and_then(Value::as_str);
        let name = group.and_then(|group| namespace::within(&call.name, group));
        let name = name.unwrap_or(&call.name);
        let mut object = self.list.object();
        if is_custom(&call.extra) || has(custom, &call.name) {
            object.put("type", "custom_tool_call").put("call_id", id).put("name", name);
            object.put("input", &custom::input(&call.arguments));
        } else {
            object.put("type", "function_call").put("call_id", id).put("name", name);
            object.put("arguments", &*arguments_text(call, own));
        }
        put_rest(&mut object, extra, "type");
    }

    fn result(&mut self, result: &ToolResult, id: &str, is_custom: bool) -> Result<(), Failure> {
        self.close();
        let texts: Vec<&str> = result.content.iter().filter_map(Part::as_text).collect();
        let mut text = texts.join("\n");
        if result.is_error && !self.own() && self.message.dialect().is_some() {
            text = failed(text);
        }
        let mut media_parts = Vec::new();
        for part in &result.content {
            match part {
                Part::Media(medium) => {
                    media_parts.push(media(medium, self.is_native(), self.own())?);
                }
                Part::Opaque(opaque) if opaque.dialect == DIALECT => {
                    media_parts.push(opaque.json.get().to_owned());
                }
                Part::Opaque(opaque) => {
                    let what =
                        format!("a part `{}` of the {} dialect", opaque.kind, opaque.dialect);
                    return Err(fault::unsupported(DIALECT, &what));
                }
                _ => {}
            }
        }
        let extra = result.extra.as_deref().filter(|_| self.own());
        let kind = if is_custom { "custom_tool_call_output" } else { "function_call_output" };
        let mut object = self.list.object();
        object.put("type", kind).put("call_id", id);
        if media_parts.is_empty() {
            object.put("output", if text.is_empty() { NO_OUTPUT } else { &text });
        } else {
            let mut list = object.array("output");
            if !text.is_empty() {
                list.object().put("type", "input_text").put("text", &text);
            }
            media_parts.iter().for_each(|part| list.raw(part));
        }
        put_rest(&mut object, extra, "type");
        Ok(())
    }
}

/// What is left of an item, but for the field `not`.
fn put_rest(object: &mut Object<'_>, extra: Option<&Map<String, Value>>, not: &str) {
    for (name, value) in extra.into_iter().flatten().filter(|(name, _)| *name != not) {
        object.put(name, value);
    }
}

fn reasoning(
    list: &mut Array<'_>,
    text: &str,
    signature: Option<&str>,
    extra: Option<&Map<String, Value>>,
) {
    let mut object = list.object();
    object.put("type", "reasoning");
    let has_summary = extra.is_some_and(|extra| extra.contains_key("summary"));
    if !has_summary {
        let mut summary = object.array("summary");
        if !text.is_empty() {
            summary.object().put("type", "summary_text").put("text", text);
        }
    }
    object.put_some("encrypted_content", signature).extra(extra);
}

fn media(medium: &Media, is_native: bool, own: bool) -> Result<String, Failure> {
    let extra = medium.extra.as_deref().filter(|_| own);
    let is_image = medium.kind == MediaKind::Image;
    let name = match (medium.kind, &medium.source) {
        (MediaKind::Image, MediaSource::Base64 { .. } | MediaSource::Url { .. }) => "image_url",
        (MediaKind::Document, MediaSource::Base64 { .. }) => "file_data",
        (MediaKind::Document, MediaSource::Url { .. }) => "file_url",
        (MediaKind::Image | MediaKind::Document, MediaSource::File { .. }) if is_native => {
            "file_id"
        }
        (kind, MediaSource::File { .. }) => {
            let what = format!("a file ({kind:?}) uploaded to another vendor");
            return Err(fault::unsupported(DIALECT, &what));
        }
        (kind, _) => return Err(fault::unsupported(DIALECT, &format!("a medium ({kind:?})"))),
    };
    Ok(Object::text(|object| {
        object.put("type", if is_image { "input_image" } else { "input_file" });
        match &medium.source {
            MediaSource::Base64 { mime, data } => {
                // The field is refused without a name, which other dialects have none for.
                if !is_image && !extra.is_some_and(|extra| extra.contains_key("filename")) {
                    let end = mime.rsplit('/').next().unwrap_or("pdf");
                    object.put("filename", &format!("document.{end}"));
                }
                object.put(name, &data_url(mime, data));
            }
            MediaSource::Url { url, .. } => {
                object.put(name, url);
            }
            MediaSource::File { id, .. } => {
                object.put(name, id);
            }
            _ => {}
        }
        object.extra(extra);
    }))
}
