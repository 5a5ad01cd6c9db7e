//! An answer for a caller, written: whole, or event by event.

use bytes::Bytes;
use steadfast_chat::{Citation, Completion, Part};

use super::{DIALECT, citations, stop};
use crate::{
    dialect::{Caller, calls::arguments},
    json::{Array, Object},
};

pub(super) use super::writer::Writer;

/// Writes a whole answer.
pub(super) fn whole(answer: &Completion, caller: &Caller) -> Bytes {
    let own = answer.head.dialect == DIALECT;
    Object::text(|object| {
        head(object, answer.id.as_deref(), answer.model.as_deref(), caller);
        {
            let mut content = object.array("content");
            for (at, part) in answer.parts.iter().enumerate() {
                block(&mut content, part, own, citations::of_block(answer, at));
            }
        }
        let stop = answer.stop.as_ref();
        object
            .put("stop_reason", &stop.map(|stop| stop::reason_name(stop, own)))
            .put("stop_sequence", &stop.and_then(|stop| stop.sequence.as_ref()));
        stop::put_usage(object, &answer.usage);
    })
    .into()
}

pub(super) fn head(
    object: &mut Object<'_>,
    id: Option<&str>,
    model: Option<&str>,
    caller: &Caller,
) {
    match id {
        Some(id) => object.put("id", id),
        None => object.put("id", &format!("msg_{}", caller.id)),
    };
    object
        .put("type", "message")
        .put("role", "assistant")
        .put("model", model.unwrap_or(&caller.model));
}

fn block<'a>(
    list: &mut Array<'_>,
    part: &Part,
    own: bool,
    sources: impl Iterator<Item = &'a Citation>,
) {
    match part {
        // Refused as history, so left out.
        Part::Text(text) if text.text.is_empty() => {}
        Part::Text(text) => {
            let mut block = list.object();
            block.put("type", "text").put("text", &text.text);
            let mut sources = sources.peekable();
            if sources.peek().is_some() {
                let mut list = block.array("citations");
                sources.for_each(|source| citations::put(&mut list.object(), source));
            }
        }
        Part::Thinking(thinking) => {
            let signature = thinking.signature.as_deref().filter(|_| own).unwrap_or_default();
            list.object()
                .put("type", "thinking")
                .put("thinking", &thinking.text)
                .put("signature", signature);
        }
        Part::Redacted { data } if own => {
            list.object().put("type", "redacted_thinking").put("data", data);
        }
        Part::ToolCall(call) => {
            list.object()
                .put("type", "tool_use")
                .put("id", &call.id)
                .put("name", &call.name)
                .raw("input", &arguments(&call.arguments));
        }
        Part::Opaque(opaque) if opaque.dialect == DIALECT => list.raw(opaque.json.get()),
        // What another vendor's servers did has no word here.
        _ => {}
    }
}
