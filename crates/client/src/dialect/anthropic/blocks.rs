//! The messages of a request, written as blocks.

use base64::{Engine, engine::general_purpose::STANDARD};
use steadfast_chat::{
    ChatRequest, Media, MediaKind, MediaSource, Message, Opaque, Part, RawJson, ResponseFormat,
    Role, Text, ToolResult,
};
use steadfast_core::{Dialect, Failure};

use super::{
    DIALECT,
    cache::{can_be_marked, is_marked, mark},
};
use crate::{
    dialect::{
        calls::{Calls, arguments},
        fault,
        media::mime_of,
        schema::json_schema,
        turns::{Item, Turn, instructions, turns},
    },
    json::{Array, quoted, text_of},
};

/// What a conversation begins with that would begin with the model.
const OPENING: &str = "Continue.";

/// The text a message was read from, when it may be sent again. Thinking without a signature is
/// what an answer of another vendor became; Anthropic refuses it.
pub(super) fn verbatim(message: &Message) -> Option<&RawJson> {
    message.raw(DIALECT).filter(|raw| {
        let unsigned = |part: &Part| matches!(part, Part::Thinking(t) if t.signature.is_none());
        // The system prompt is a field of its own.
        let whole = message.role() != Role::System || raw.get().starts_with('{');
        whole && !message.parts().iter().any(unsigned)
    })
}

/// Whether every message can be sent as it was read.
pub(super) fn all_verbatim(messages: &[Message]) -> bool {
    messages.iter().all(|message| is_prompt(message) || verbatim(message).is_some())
}

/// Whether it is the system prompt as it was read.
fn is_prompt(message: &Message) -> bool {
    message.role() == Role::System
        && message.raw(DIALECT).is_some_and(|raw| !raw.get().starts_with('{'))
}

/// The system prompt: `None` when there is none. `format` is added to it as an instruction.
pub(super) fn system(request: &ChatRequest, format: Option<&ResponseFormat>) -> Option<String> {
    let prompts: Vec<&Message> = instructions(&request.messages)
        .map(|(_, message)| message)
        .filter(|message| verbatim(message).is_none())
        .collect();
    if let ([one], None) = (prompts.as_slice(), format)
        && is_prompt(one)
        && let Some(raw) = one.raw(DIALECT)
    {
        return Some(raw.get().to_owned());
    }
    let instruction = format.map(|format| instruction(format, request.dialect()));
    let mut texts: Vec<(&Text, bool)> = Vec::new();
    for message in &prompts {
        let own = message.dialect() == Some(DIALECT);
        texts.extend(message.parts().iter().filter_map(|part| match part {
            Part::Text(text) if !text.text.trim().is_empty() => Some((text, own)),
            _ => None,
        }));
    }
    let marked = is_marked(request);
    match (texts.as_slice(), &instruction) {
        ([], None) => return None,
        ([], Some(instruction)) if !marked => return Some(quoted(instruction)),
        ([(text, _)], None) if text.extra.is_none() && !marked => return Some(quoted(&text.text)),
        _ => {}
    }
    let mut out = Vec::new();
    {
        let mut list = Array::new(&mut out);
        let last = texts.len() - usize::from(instruction.is_none());
        for (at, (text, own)) in texts.into_iter().enumerate() {
            let mut block = list.object();
            block
                .put("type", "text")
                .put("text", &text.text)
                .extra(text.extra.as_deref().filter(|_| own));
            mark(&mut block, marked && at == last);
        }
        if let Some(instruction) = instruction {
            let mut block = list.object();
            block.put("type", "text").put("text", &instruction);
            mark(&mut block, marked);
        }
    }
    Some(text_of(out))
}

/// A form of answer as an instruction, for forms the dialect has no field for.
fn instruction(format: &ResponseFormat, read: Option<Dialect>) -> String {
    match format {
        ResponseFormat::Schema { schema, .. } => format!(
            "Answer with one JSON value and nothing else: no explanation, no code fence. It has \
             to follow this JSON schema:\n{}",
            json_schema(schema, read).get()
        ),
        _ => "Answer with one JSON object and nothing else: no explanation, no code fence."
            .to_owned(),
    }
}

/// The list of messages.
pub(super) fn messages(out: &mut Vec<u8>, request: &ChatRequest) -> Result<(), Failure> {
    let messages = &request.messages;
    let calls = Calls::of(messages, DIALECT);
    let mut turns = turns(messages, DIALECT, &calls, verbatim, keep);
    strip_prefill(&mut turns);
    let mut list = Array::new(out);
    if turns.first().is_some_and(|turn| turn.model && turn.raw.is_none()) {
        list.object().put("role", "user").put("content", OPENING);
    }
    let last = turns.len().saturating_sub(1);
    let marked = is_marked(request);
    for (t, turn) in turns.iter().enumerate() {
        if let Some(raw) = turn.raw {
            list.raw(raw.get());
            continue;
        }
        let mut message = list.object();
        message.put("role", if turn.model { "assistant" } else { "user" });
        let marked = marked && t == last;
        if let [Item { part: Part::Text(text), .. }] = turn.items.as_slice()
            && text.extra.is_none()
            && (!marked || turn.model)
        {
            // A trailing turn of the model may not end in white space.
            let prefill = turn.model && t == last;
            let text = if prefill { text.text.trim_end() } else { &text.text };
            message.put("content", text);
            continue;
        }
        let mut blocks = message.array("content");
        let end = turn.items.iter().rposition(|item| can_be_marked(item.part)).filter(|_| marked);
        for (at, item) in turn.items.iter().enumerate() {
            block(&mut blocks, item, &calls, end == Some(at))?;
        }
    }
    Ok(())
}

/// Whether a part is sent at all: no empty text, no thoughts of another vendor or unsigned.
fn keep(item: &Item<'_>) -> bool {
    match item.part {
        Part::Text(text) => !text.text.trim().is_empty(),
        Part::Thinking(thinking) => {
            item.is_native(DIALECT) && thinking.signature.as_ref().is_some_and(|s| !s.is_empty())
        }
        Part::Redacted { .. } => item.is_native(DIALECT),
        _ => true,
    }
}

/// A trailing turn of the model that is nothing but white space at its end is no prefill.
fn strip_prefill(turns: &mut Vec<Turn<'_>>) {
    if turns.last().is_some_and(|turn| turn.raw.is_none() && turn.items.is_empty()) {
        turns.pop();
    }
}

fn block(
    list: &mut Array<'_>,
    item: &Item<'_>,
    calls: &Calls,
    marked: bool,
) -> Result<(), Failure> {
    let own = item.has_extra(DIALECT);
    let known = calls.get(item.at.0, item.at.1);
    match item.part {
        Part::Text(text) => {
            let mut block = list.object();
            block
                .put("type", "text")
                .put("text", &text.text)
                .extra(text.extra.as_deref().filter(|_| own));
            mark(&mut block, marked);
        }
        Part::Thinking(thinking) => {
            list.object()
                .put("type", "thinking")
                .put("thinking", &thinking.text)
                .put_some("signature", thinking.signature.as_ref())
                .extra(thinking.extra.as_deref().filter(|_| own));
        }
        Part::Redacted { data } => {
            list.object().put("type", "redacted_thinking").put("data", data);
        }
        Part::Media(medium) => media(list, medium, item.message, marked)?,
        Part::ToolCall(call) => {
            let mut block = list.object();
            block
                .put("type", "tool_use")
                .put("id", known.map_or(call.id.as_str(), |known| &known.id))
                .put("name", &call.name)
                .raw("input", &arguments(&call.arguments))
                .extra(call.extra.as_deref().filter(|_| own));
            mark(&mut block, marked);
        }
        Part::ToolResult(result) => {
            let id = known.map_or(result.id.as_str(), |known| &known.id);
            tool_result(list, result, id, item.message, marked)?;
        }
        Part::Opaque(opaque) if opaque.dialect == DIALECT => list.raw(opaque.json.get()),
        Part::Opaque(opaque) => return Err(foreign(opaque)),
        _ => return Err(fault::unsupported(DIALECT, "a part of a message")),
    }
    Ok(())
}

fn foreign(opaque: &Opaque) -> Failure {
    let what = format!("a part `{}` of the {} dialect", opaque.kind, opaque.dialect);
    fault::unsupported(DIALECT, &what)
}

fn tool_result(
    list: &mut Array<'_>,
    result: &ToolResult,
    id: &str,
    message: &Message,
    marked: bool,
) -> Result<(), Failure> {
    let own = message.dialect() == Some(DIALECT);
    let mut object = list.object();
    object.put("type", "tool_result").put("tool_use_id", id);
    match result.content.as_slice() {
        [] => {}
        [Part::Text(text)] if text.extra.is_none() => {
            object.put("content", &text.text);
        }
        parts => {
            let mut blocks = object.array("content");
            for part in parts {
                match part {
                    Part::Text(text) if text.text.trim().is_empty() => {}
                    Part::Text(text) => {
                        blocks
                            .object()
                            .put("type", "text")
                            .put("text", &text.text)
                            .extra(text.extra.as_deref().filter(|_| own));
                    }
                    Part::Media(medium) => media(&mut blocks, medium, message, false)?,
                    Part::Opaque(opaque) if opaque.dialect == DIALECT => {
                        blocks.raw(opaque.json.get());
                    }
                    Part::Opaque(opaque) => return Err(foreign(opaque)),
                    _ => {}
                }
            }
        }
    }
    if result.is_error {
        object.put("is_error", &true);
    }
    object.extra(result.extra.as_deref().filter(|_| own));
    mark(&mut object, marked);
    Ok(())
}

fn media(
    list: &mut Array<'_>,
    medium: &Media,
    message: &Message,
    marked: bool,
) -> Result<(), Failure> {
    let kind = match medium.kind {
        MediaKind::Image => "image",
        MediaKind::Document => "document",
        other => {
            return Err(fault::unsupported(DIALECT, &format!("a medium ({other:?})")));
        }
    };
    let native = message.dialect().is_none_or(|read| read == DIALECT);
    let extra = medium.extra.as_deref().filter(|_| message.dialect() == Some(DIALECT));
    let mime = mime_of(&medium.source, medium.kind);
    let mut object = list.object();
    object.put("type", kind);
    {
        let mut source = object.object("source");
        match &medium.source {
            MediaSource::Base64 { data, .. } if kind == "document" && mime.starts_with("text/") => {
                let bytes = STANDARD.decode(data.as_bytes()).map_err(|error| {
                    let what = format!("a text document whose data is not valid base64 ({error})");
                    fault::unsupported(DIALECT, &what)
                })?;
                source
                    .put("type", "text")
                    .put("media_type", "text/plain")
                    .put("data", &String::from_utf8_lossy(&bytes));
            }
            MediaSource::Base64 { data, .. } => {
                source.put("type", "base64").put("media_type", mime).put("data", &**data);
            }
            MediaSource::Url { url, .. } => {
                source.put("type", "url").put("url", url);
            }
            MediaSource::File { id, .. } if native => {
                source.put("type", "file").put("file_id", id);
            }
            _ => {
                let what = format!("a file ({:?}) uploaded to another vendor", medium.kind);
                return Err(fault::unsupported(DIALECT, &what));
            }
        }
    }
    object.extra(extra);
    mark(&mut object, marked);
    Ok(())
}
