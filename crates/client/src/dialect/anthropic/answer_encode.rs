//! An answer for a caller, written: whole, or event by event.

use bytes::Bytes;
use steadfast_chat::{Completion, Part};
use steadfast_core::{Dialect, Failure};

use super::{DIALECT, stop};
use crate::{
    dialect::{Caller, calls::arguments, fault},
    json::{Array, Object},
};

pub(super) use super::writer::Writer;

/// Writes a whole answer.
pub(super) fn whole(answer: &Completion, caller: &Caller) -> Result<Bytes, Failure> {
    let mut out = Vec::new();
    {
        let mut object = Object::new(&mut out);
        head(&mut object, answer.id.as_deref(), answer.model.as_deref(), caller);
        {
            let mut content = object.array("content");
            for part in &answer.parts {
                block(&mut content, part, answer.head.dialect)?;
            }
        }
        object.put("stop_reason", &answer.stop.as_ref().map(stop::reason_name));
        object.put("stop_sequence", &answer.stop.as_ref().and_then(|s| s.sequence.as_ref()));
        stop::put_usage(&mut object, &answer.usage);
    }
    Ok(out.into())
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

fn block(list: &mut Array<'_>, part: &Part, source: Dialect) -> Result<(), Failure> {
    let own = source == DIALECT;
    match part {
        // Refused as history, so left out.
        Part::Text(text) if text.text.is_empty() => {}
        Part::Text(text) => {
            list.object().put("type", "text").put("text", &text.text);
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
            let input = arguments(&call.arguments)
                .ok_or_else(|| fault::bad_arguments(DIALECT, &call.name))?;
            list.object()
                .put("type", "tool_use")
                .put("id", &call.id)
                .put("name", &call.name)
                .raw("input", input);
        }
        Part::Opaque(opaque) if opaque.dialect == DIALECT => list.raw(opaque.json.get()),
        // What another vendor's servers did has no word here.
        _ => {}
    }
    Ok(())
}
