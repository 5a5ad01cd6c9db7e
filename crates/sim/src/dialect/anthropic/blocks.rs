//! The shape of messages and their blocks.

use serde_json::Value;

use super::errors::invalid;
use super::turns::Turn;
use crate::dialect::{Check, Refusal, images, items};

/// Most images of a request.
const IMAGES_MAX: usize = 100;
/// Above so many images the smaller pixel limit applies.
const MANY: usize = 20;
/// Most pixels of a side, and in requests with many images.
const SIDE_MAX: u32 = 8_000;
const SIDE_MAX_OF_MANY: u32 = 2_000;
/// Most bytes of an image, in base64.
const IMAGE_BYTES_MAX: usize = 5 * 1024 * 1024;

const TAGS: &[&str] = &[
    "bash_code_execution_tool_result",
    "code_execution_tool_result",
    "compaction",
    "container_upload",
    "document",
    "image",
    "mcp_tool_result",
    "mcp_tool_use",
    "redacted_thinking",
    "search_result",
    "server_tool_use",
    "text",
    "text_editor_code_execution_tool_result",
    "thinking",
    "tool_result",
    "tool_use",
    "web_fetch_tool_result",
    "web_search_tool_result",
];

pub(crate) fn system(value: &Value) -> Result<(), Refusal> {
    match value {
        Value::Null | Value::String(_) => Ok(()),
        Value::Array(list) => list.iter().enumerate().try_for_each(|(at, block)| {
            let path = format!("system.{at}");
            if block["type"] != "text" {
                return Err(invalid(format!("{path}.type: Input should be 'text'")));
            }
            string(block, "text", &path)?;
            text("system", &path, block)
        }),
        _ => Err(invalid("system: Input should be a valid list")),
    }
}

/// Checks the message at `at`. One of the role `system` is accepted where `instructs`: in the middle of a
/// conversation, by a model that takes such.
pub(crate) fn message(
    at: usize,
    message: &Value,
    last: bool,
    instructs: bool,
) -> Result<(), Refusal> {
    let path = format!("messages.{at}");
    if !message.is_object() {
        return Err(invalid(format!(
            "{path}: Input should be a valid dictionary or object to extract fields from"
        )));
    }
    let user = match message["role"].as_str() {
        Some("user") => true,
        Some("assistant") => false,
        Some("system") if instructs => true,
        Some("system") => {
            return Err(invalid(
                "messages: Unexpected role \"system\". The Messages API accepts a top-level \
                 `system` parameter, not \"system\" as an input message role.",
            ));
        }
        None if message["role"].is_null() => {
            return Err(invalid(format!("{path}.role: Field required")));
        }
        _ => {
            return Err(invalid(format!("{path}.role: Input should be 'user' or 'assistant'")));
        }
    };
    let empty = match &message["content"] {
        Value::Null => return Err(invalid(format!("{path}.content: Field required"))),
        Value::String(text) => {
            if !text.is_empty() && text.trim().is_empty() {
                return Err(whitespace("messages"));
            }
            text.is_empty()
        }
        Value::Array(list) => {
            for (n, block) in list.iter().enumerate() {
                one(&format!("{path}.content.{n}"), user, block)?;
            }
            let thinking = list.last().is_some_and(|b| {
                matches!(b["type"].as_str(), Some("thinking" | "redacted_thinking"))
            });
            if thinking {
                return Err(invalid(format!(
                    "{path}: The final block in an assistant message cannot be `thinking`."
                )));
            }
            list.is_empty()
        }
        _ => return Err(invalid(format!("{path}.content: Input should be a valid list"))),
    };
    match (empty, user) {
        (false, _) => Ok(()),
        (true, true) => Err(invalid(format!("{path}: user messages must have non-empty content"))),
        (true, false) if last => Ok(()),
        (true, false) => Err(invalid(format!(
            "{path}: all messages must have non-empty content except for the optional final \
             assistant message"
        ))),
    }
}

fn one(path: &str, user: bool, block: &Value) -> Result<(), Refusal> {
    let Some(kind) = block["type"].as_str() else {
        return Err(invalid(format!("{path}.type: Field required")));
    };
    if !TAGS.contains(&kind) {
        let tags: Vec<String> = TAGS.iter().map(|tag| format!("'{tag}'")).collect();
        return Err(invalid(format!(
            "{path}: Input tag '{kind}' found using 'type' does not match any of the expected \
             tags: {}",
            tags.join(", ")
        )));
    }
    let message = path.split(".content").next().unwrap_or(path);
    let only = |role: &str| {
        invalid(format!("{message}: `{kind}` blocks can only be in `{role}` messages"))
    };
    let path = format!("{path}.{kind}");
    match kind {
        "text" => {
            string(block, "text", &path)?;
            text("messages", &path, block)
        }
        "tool_use" | "thinking" | "redacted_thinking" if user => Err(only("assistant")),
        "tool_result" if !user => Err(only("user")),
        "tool_use" => {
            id(block, "id", &path)?;
            string(block, "name", &path)?;
            match &block["input"] {
                Value::Object(_) => Ok(()),
                Value::Null => Err(invalid(format!("{path}.input: Field required"))),
                _ => Err(invalid(format!("{path}.input: Input should be a valid dictionary"))),
            }
        }
        "tool_result" => {
            id(block, "tool_use_id", &path)?;
            match &block["content"] {
                Value::Null | Value::String(_) => Ok(()),
                Value::Array(list) => list.iter().enumerate().try_for_each(|(n, inner)| {
                    let path = format!("{path}.content.{n}");
                    match inner["type"].as_str() {
                        Some("text") => {
                            let text = string(inner, "text", &format!("{path}.text"))?;
                            if text.is_empty() { Err(non_empty("messages")) } else { Ok(()) }
                        }
                        Some("image") => image(&format!("{path}.image"), inner),
                        Some("document" | "search_result" | "tool_reference") => Ok(()),
                        _ => Err(invalid(format!(
                            "{path}.type: Input should be 'text', 'image', 'document', \
                             'search_result' or 'tool_reference'"
                        ))),
                    }
                }),
                _ => Err(invalid(format!("{path}.content: Input should be a valid list"))),
            }
        }
        "thinking" => {
            no_mark(block, &path)?;
            string(block, "thinking", &path)?;
            string(block, "signature", &path).map(drop)
        }
        "redacted_thinking" => {
            no_mark(block, &path)?;
            string(block, "data", &path).map(drop)
        }
        "image" => image(&path, block),
        _ => Ok(()),
    }
}

/// No empty text, no blank text, no cache mark on an empty one.
fn text(root: &str, path: &str, block: &Value) -> Result<(), Refusal> {
    let text = block["text"].as_str().unwrap_or_default();
    if text.is_empty() && !block["cache_control"].is_null() {
        return Err(invalid(format!("{path}: cache_control cannot be set for empty text blocks")));
    }
    if text.is_empty() {
        return Err(non_empty(root));
    }
    if text.trim().is_empty() {
        return Err(whitespace(root));
    }
    Ok(())
}

fn non_empty(root: &str) -> Refusal {
    invalid(format!("{root}: text content blocks must be non-empty"))
}

fn whitespace(root: &str) -> Refusal {
    invalid(format!("{root}: text content blocks must contain non-whitespace text"))
}

fn no_mark(block: &Value, path: &str) -> Result<(), Refusal> {
    if block["cache_control"].is_null() {
        return Ok(());
    }
    Err(invalid(format!("{path}.cache_control: Extra inputs are not permitted")))
}

fn string<'v>(block: &'v Value, key: &str, path: &str) -> Result<&'v str, Refusal> {
    match &block[key] {
        Value::String(text) => Ok(text),
        Value::Null => Err(invalid(format!("{path}.{key}: Field required"))),
        _ => Err(invalid(format!("{path}.{key}: Input should be a valid string"))),
    }
}

fn id(block: &Value, key: &str, path: &str) -> Result<(), Refusal> {
    let id = string(block, key, path)?;
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if id.is_empty() || !id.chars().all(fits) {
        return Err(invalid(format!(
            "{path}.{key}: String should match pattern '^[a-zA-Z0-9_-]+$'"
        )));
    }
    Ok(())
}

fn image(path: &str, block: &Value) -> Result<(), Refusal> {
    let source = &block["source"];
    match source["type"].as_str() {
        Some("base64") => {}
        Some("url" | "file") => return Ok(()),
        _ if source.is_null() => return Err(invalid(format!("{path}.source: Field required"))),
        _ => {
            return Err(invalid(format!(
                "{path}.source: Input tag found using 'type' does not match any of the expected \
                 tags: 'base64', 'file', 'url'"
            )));
        }
    }
    let path = format!("{path}.source.base64");
    let mime = string(source, "media_type", &path)?;
    if !["image/jpeg", "image/png", "image/gif", "image/webp"].contains(&mime) {
        return Err(invalid(format!(
            "{path}.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' or \
             'image/webp'"
        )));
    }
    let data = string(source, "data", &path)?;
    if data.is_empty() {
        return Err(invalid(format!("{path}: image cannot be empty")));
    }
    if data.len() > IMAGE_BYTES_MAX {
        return Err(invalid(format!(
            "{path}: image exceeds 5 MB maximum: {} bytes > {IMAGE_BYTES_MAX} bytes",
            data.len()
        )));
    }
    let Some(bytes) = images::decode(data) else {
        return Err(invalid(format!("{path}: invalid base64 data")));
    };
    match images::inspect(&bytes) {
        Some(found) if found.mime != mime => Err(invalid(format!(
            "{path}.data: The image was specified using the {mime} media type, but the image \
             appears to be a {} image",
            found.mime
        ))),
        _ => Ok(()),
    }
}

/// How many images, how large, and whether the model accepts any.
pub(crate) fn images(check: &Check<'_>, turns: &[Turn<'_>]) -> Result<(), Refusal> {
    let mut found = Vec::new();
    for (at, block) in turns.iter().flat_map(|turn| &turn.blocks) {
        let super::turns::Block::Typed(block) = block else { continue };
        let path = format!("messages.{}.content.{}", at.message, at.block);
        if block["type"] == "image" {
            found.push((format!("{path}.image"), *block));
        }
        for (n, inner) in items(&block["content"]).iter().enumerate() {
            if inner["type"] == "image" {
                found.push((format!("{path}.tool_result.content.{n}.image"), inner));
            }
        }
    }
    if let Some((path, _)) = found.first()
        && !check.model.vision
    {
        return Err(invalid(format!(
            "{path}: '{}' does not support image input.",
            check.model.name
        )));
    }
    if found.len() > IMAGES_MAX {
        return Err(invalid(format!(
            "Too much media: 0 document pages + {} images > {IMAGES_MAX}",
            found.len()
        )));
    }
    let (limit, words) = if found.len() > MANY {
        (SIDE_MAX_OF_MANY, " for many-image requests")
    } else {
        (SIDE_MAX, "")
    };
    for (path, block) in found {
        let size = block["source"]["data"]
            .as_str()
            .and_then(images::decode)
            .and_then(|bytes| images::inspect(&bytes))
            .and_then(|image| image.size);
        if size.is_some_and(|(w, h)| w > limit || h > limit) {
            return Err(invalid(format!(
                "{path}.source.base64.data: At least one of the image dimensions exceed max \
                 allowed size{words}: {limit} pixels"
            )));
        }
    }
    Ok(())
}
