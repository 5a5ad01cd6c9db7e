//! The contents of a request, written.

use serde_json::{Map, Value};
use steadfast_chat::{
    ChatRequest, Media, MediaSource, Message, Opaque, Part, RawJson, Role, ToolResult,
};
use steadfast_core::{Dialect, Failure};

use super::{
    DIALECT,
    request_decode::{CALL, FILE, INLINE, RESPONSE},
};
use crate::{
    dialect::{
        calls::{Calls, Known, arguments, object},
        fault,
        media::mime_of,
        turns::{Item, instructions, turns},
    },
    json::{Array, Object},
};

/// What a conversation begins with that would begin with the model.
const OPENING: &str = "Continue.";

/// The signature that Google documents for calls which none of its models made: Gemini 3 refuses
/// a turn's first call without one.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

fn verbatim(message: &Message) -> Option<&RawJson> {
    message.raw(DIALECT).filter(|_| message.role() != Role::System)
}

/// The system instruction: `None` when there is none.
pub(super) fn system(request: &ChatRequest) -> Option<String> {
    let all: Vec<&Message> = instructions(&request.messages).map(|(_, message)| message).collect();
    if let [one] = all.as_slice()
        && let Some(raw) = one.raw(DIALECT)
    {
        return Some(raw.get().to_owned());
    }
    let texts = all.iter().flat_map(|message| message.parts()).filter_map(Part::as_text);
    let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
    (!texts.is_empty()).then(|| {
        Object::text(|object| {
            let mut parts = object.array("parts");
            for text in texts {
                parts.object().put("text", text);
            }
        })
    })
}

/// The list of contents.
pub(super) fn contents(out: &mut Vec<u8>, request: &ChatRequest) -> Result<(), Failure> {
    let messages = &request.messages;
    let calls = Calls::of(messages, DIALECT);
    let turns = turns(messages, DIALECT, &calls, verbatim, keep);
    let signs = request.model.contains("gemini-3");
    let mut list = Array::new(out);
    if turns.first().is_some_and(|turn| turn.model && turn.raw.is_none()) {
        let mut content = list.object();
        content.put("role", "user").array("parts").object().put("text", OPENING);
    }
    for turn in &turns {
        if let Some(raw) = turn.raw {
            list.raw(raw.get());
            continue;
        }
        let mut content = list.object();
        content.put("role", if turn.model { "model" } else { "user" });
        let mut parts = content.array("parts");
        let mut first_call = signs;
        for item in &turn.items {
            let unsigned = first_call && matches!(item.part, Part::ToolCall(_));
            first_call &= !unsigned;
            part(&mut parts, item, &calls, unsigned)?;
        }
    }
    Ok(())
}

/// Whether a part is sent at all: no empty text, no thoughts but Google's own.
fn keep(item: &Item<'_>) -> bool {
    match item.part {
        Part::Text(text) => !text.text.is_empty() || text.signature.is_some(),
        Part::Thinking(_) => item.has_extra(DIALECT),
        Part::Redacted { .. } => false,
        _ => true,
    }
}

fn part(
    list: &mut Array<'_>,
    item: &Item<'_>,
    calls: &Calls,
    needs_signature: bool,
) -> Result<(), Failure> {
    let own = item.has_extra(DIALECT);
    let native = item.is_native(DIALECT);
    let known = calls.get(item.at.0, item.at.1);
    match item.part {
        Part::Text(text) => {
            list.object()
                .put("text", &text.text)
                .put_some("thoughtSignature", text.signature.as_ref().filter(|_| native))
                .extra(text.extra.as_deref().filter(|_| own));
        }
        Part::Thinking(thinking) => {
            list.object()
                .put("text", &thinking.text)
                .put("thought", &true)
                .put_some("thoughtSignature", thinking.signature.as_ref())
                .extra(thinking.extra.as_deref());
        }
        Part::Media(medium) => media(list, medium, item.message)?,
        Part::ToolCall(call) => {
            let mut object = list.object();
            {
                let mut inner = object.object("functionCall");
                // Not every endpoint of Google's knows ids: only where one came from there.
                inner.put_some("id", Some(&call.id).filter(|id| own && !id.is_empty()));
                inner.put("name", &call.name).raw("args", &arguments(&call.arguments));
                inner.extra(inside(call.extra.as_deref().filter(|_| own), CALL[0]));
            }
            let signature = call.signature.as_deref().filter(|_| native);
            let signature = signature.or(needs_signature.then_some(NO_SIGNATURE));
            object.put_some("thoughtSignature", signature);
            beside(&mut object, call.extra.as_deref().filter(|_| own), CALL[0]);
        }
        Part::ToolResult(result) => tool_result(list, result, known, item.message)?,
        Part::Opaque(opaque) if opaque.dialect == DIALECT => list.raw(opaque.json.get()),
        Part::Opaque(opaque) => return Err(foreign(opaque)),
        _ => return Err(fault::unsupported(DIALECT, "a part of a message")),
    }
    Ok(())
}

fn tool_result(
    list: &mut Array<'_>,
    result: &ToolResult,
    known: Option<&Known>,
    message: &Message,
) -> Result<(), Failure> {
    let own = message.dialect() == Some(DIALECT);
    let texts: Vec<&str> = result.content.iter().filter_map(Part::as_text).collect();
    let text = texts.join("\n");
    {
        let mut part = list.object();
        let mut inner = part.object("functionResponse");
        inner.put_some("id", Some(&result.id).filter(|id| own && !id.is_empty()));
        let name = result.name.as_deref().or(known.map(|known| known.name.as_str()));
        inner.put("name", name.unwrap_or("unknown"));
        match object(&text) {
            Some(json) if !result.is_error => {
                inner.raw("response", &json);
            }
            _ => {
                let key = if result.is_error { "error" } else { "result" };
                inner.object("response").put(key, &text);
            }
        }
        let extra = result.extra.as_deref().filter(|_| own);
        inner.extra(inside(extra, RESPONSE[0]));
        drop(inner);
        beside(&mut part, extra, RESPONSE[0]);
    }
    for part in &result.content {
        match part {
            Part::Media(medium) => media(list, medium, message)?,
            Part::Opaque(opaque) if opaque.dialect != DIALECT => return Err(foreign(opaque)),
            _ => {}
        }
    }
    Ok(())
}

fn foreign(opaque: &Opaque) -> Failure {
    let what = format!("a part `{}` of the {} dialect", opaque.kind, opaque.dialect);
    fault::unsupported(DIALECT, &what)
}

fn media(list: &mut Array<'_>, medium: &Media, message: &Message) -> Result<(), Failure> {
    let native = message.dialect().is_none_or(|read| read == Dialect::Gemini);
    let extra = medium.extra.as_deref().filter(|_| message.dialect() == Some(DIALECT));
    let mime = mime_of(&medium.source, medium.kind);
    let mut object = list.object();
    match &medium.source {
        MediaSource::Base64 { data, .. } => {
            let mut inner = object.object("inlineData");
            inner.put("mimeType", mime).put("data", &**data).extra(inside(extra, INLINE[0]));
        }
        MediaSource::Url { url, .. } => {
            let mut inner = object.object("fileData");
            inner.put("mimeType", mime).put("fileUri", url).extra(inside(extra, FILE[0]));
        }
        MediaSource::File { id, mime, .. } if native => {
            let mut file = object.object("fileData");
            file.put_some("mimeType", mime.as_ref()).put("fileUri", id);
            file.extra(inside(extra, FILE[0]));
        }
        _ => {
            let what = format!("a file ({:?}) uploaded to another vendor", medium.kind);
            return Err(fault::unsupported(DIALECT, &what));
        }
    }
    let name = if matches!(medium.source, MediaSource::Base64 { .. }) { INLINE } else { FILE };
    beside(&mut object, extra, name[0]);
    Ok(())
}

/// What was left of the object `name` in a part.
fn inside<'e>(extra: Option<&'e Map<String, Value>>, name: &str) -> Option<&'e Map<String, Value>> {
    extra?.get(name)?.as_object()
}

/// What was left of a part beside the object `name` in it.
fn beside(part: &mut Object<'_>, extra: Option<&Map<String, Value>>, name: &str) {
    for (key, value) in extra.into_iter().flatten().filter(|(key, _)| *key != name) {
        part.put(key, value);
    }
}
