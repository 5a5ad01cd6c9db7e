//! Content that the other dialect has no block for, in words that every dialect has.

use std::borrow::Cow;

use serde_json::{Map, Value};
use steadfast_chat::{
    ChatRequest, Media, MediaKind, MediaSource, Message, Opaque, Part, ToolResult,
};
use steadfast_core::{Dialect, Failure};

use crate::dialect::{
    fault,
    media::{IMAGE_CALL, IMAGES, image_of},
};

/// `request` with what only another dialect than `to` has a block for as text and media: documents given
/// as text, search results, refusals, and the names that documents have.
///
/// # Errors
///
/// When a block can not be written in `to`.
pub(crate) fn spoken(request: &ChatRequest, to: Dialect) -> Result<Cow<'_, ChatRequest>, Failure> {
    let foreign = |message: &Message| {
        message.parts().iter().any(|part| has_foreign(part, message.dialect(), to))
    };
    if request.dialect() == Some(to) || !request.messages.iter().any(foreign) {
        return Ok(Cow::Borrowed(request));
    }
    let mut request = request.clone();
    for message in request.messages.make_mut() {
        if !foreign(message) {
            continue;
        }
        let read = message.dialect();
        let parts = message.parts().to_vec();
        *message.parts_mut() = spoken_all(parts, read, to)?;
    }
    Ok(Cow::Owned(request))
}

/// Whether a part of a message that was read in `read` is one that is not sent as it is.
fn has_foreign(part: &Part, read: Option<Dialect>, to: Dialect) -> bool {
    match part {
        Part::Opaque(opaque) => opaque.dialect != to,
        Part::Media(media) => read != Some(to) && !heading(media).is_empty(),
        Part::ToolResult(result) => result.content.iter().any(|part| has_foreign(part, read, to)),
        _ => false,
    }
}

fn spoken_all(parts: Vec<Part>, read: Option<Dialect>, to: Dialect) -> Result<Vec<Part>, Failure> {
    let mut out = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            Part::Opaque(opaque) if opaque.dialect != to => spoken_block(&opaque, to, &mut out)?,
            Part::Media(media) if read != Some(to) => {
                out.extend(text(&heading(&media)));
                out.push(Part::Media(media));
            }
            Part::ToolResult(result) => {
                let content = spoken_all(result.content, read, to)?;
                out.push(Part::ToolResult(ToolResult { content, ..result }));
            }
            part => out.push(part),
        }
    }
    Ok(out)
}

/// What a medium is called, as lines of text.
fn heading(media: &Media) -> String {
    let Some(extra) = media.extra.as_deref() else { return String::new() };
    let file = extra.get("file").and_then(Value::as_object);
    let inline = ["inlineData", "fileData"].iter().find_map(|name| extra.get(*name)?.as_object());
    let of = |object: Option<&Map<String, Value>>, name: &str| {
        Some(object?.get(name)?.as_str()?.to_owned())
    };
    let title = of(Some(extra), "title")
        .or_else(|| of(file, "filename"))
        .or_else(|| of(Some(extra), "filename"))
        .or_else(|| of(inline, "displayName"))
        .or_else(|| of(inline, "display_name"));
    let title = title.filter(|_| media.kind == MediaKind::Document || inline.is_some());
    head(title.as_deref(), of(Some(extra), "context").as_deref())
}

fn head(title: Option<&str>, context: Option<&str>) -> String {
    let mut lines = Vec::new();
    if let Some(title) = title {
        lines.push(format!("Document: {title}"));
    }
    if let Some(context) = context {
        lines.push(format!("Context: {context}"));
    }
    lines.join("\n")
}

fn text(text: &str) -> Option<Part> {
    (!text.is_empty()).then(|| Part::text(text))
}

/// A block of another dialect.
fn spoken_block(opaque: &Opaque, to: Dialect, out: &mut Vec<Part>) -> Result<(), Failure> {
    let block = opaque.json.to_value();
    let before = out.len();
    let of = |name: &str| block[name].as_str();
    match (opaque.dialect, opaque.kind.as_str()) {
        (Dialect::Anthropic, "document") => {
            out.extend(text(&head(of("title"), of("context"))));
            let source = &block["source"];
            match &source["content"] {
                Value::Array(blocks) => {
                    for block in blocks {
                        out.push(inner(block).ok_or_else(|| unsaid(opaque, to))?);
                    }
                }
                content => out.extend(source["data"].as_str().or(content.as_str()).and_then(text)),
            }
        }
        (Dialect::Anthropic, "search_result") => {
            let title = of("title").map(|title| format!("Search result: {title}"));
            let source = of("source").map(|source| format!("Source: {source}"));
            let lines: Vec<String> = title.into_iter().chain(source).collect();
            out.extend(text(&lines.join("\n")));
            for block in block["content"].as_array().into_iter().flatten() {
                out.push(inner(block).ok_or_else(|| unsaid(opaque, to))?);
            }
        }
        (Dialect::OpenAi, IMAGES)
        | (Dialect::Gemini, "inlineData")
        | (Dialect::Responses, IMAGE_CALL) => {
            let source = image_of(opaque).ok_or_else(|| unsaid(opaque, to))?;
            out.push(Part::Media(Media { kind: MediaKind::Image, source, extra: None }));
        }
        (Dialect::OpenAi | Dialect::Responses, "refusal") => {
            out.extend(of("refusal").and_then(text));
        }
        _ => return Err(unsaid(opaque, to)),
    }
    if out.len() == before { Err(unsaid(opaque, to)) } else { Ok(()) }
}

fn unsaid(opaque: &Opaque, to: Dialect) -> Failure {
    fault::unsupported(to, &format!("a part `{}` of the {} dialect", opaque.kind, opaque.dialect))
}

/// A block inside a document: text, or an image.
fn inner(block: &Value) -> Option<Part> {
    let source = &block["source"];
    let of = |name: &str| source[name].as_str().map(str::to_owned);
    let source = match (block["type"].as_str()?, source["type"].as_str()) {
        ("text", _) => return Some(Part::text(block["text"].as_str()?)),
        ("image", Some("base64")) => {
            MediaSource::Base64 { mime: of("media_type")?, data: of("data")?.into() }
        }
        ("image", Some("url")) => MediaSource::Url { mime: None, url: of("url")? },
        _ => return None,
    };
    Some(Part::Media(Media { kind: MediaKind::Image, source, extra: None }))
}
