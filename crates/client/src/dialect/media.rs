//! Images and documents in requests.

use serde_json::Value;
use steadfast_chat::{MediaKind, MediaSource, Opaque};
use steadfast_core::Dialect;

/// An address as a source: a `data:` URL in base64 is the medium itself.
pub(crate) fn source_of_url(url: String) -> MediaSource {
    let inline = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    match inline {
        Some((mime, data)) => MediaSource::Base64 { mime: mime.to_owned(), data: data.into() },
        None => MediaSource::Url { mime: None, url },
    }
}

/// The medium in the address itself.
pub(crate) fn data_url(mime: &str, data: &str) -> String {
    format!("data:{mime};base64,{data}")
}

/// What a medium of this type is; documents are what is nothing else.
pub(crate) fn kind_of(mime: &str) -> MediaKind {
    match mime.split('/').next() {
        Some("image") => MediaKind::Image,
        Some("audio") => MediaKind::Audio,
        Some("video") => MediaKind::Video,
        _ => MediaKind::Document,
    }
}

/// The media type an address suggests by its extension.
fn mime_of_url(url: &str, kind: MediaKind) -> &'static str {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    match path.rsplit('.').next().unwrap_or_default().to_ascii_lowercase().as_str() {
        "png" => "image/png",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "jpg" | "jpeg" => "image/jpeg",
        "pdf" => "application/pdf",
        "txt" => "text/plain",
        "mp3" => "audio/mp3",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        _ => match kind {
            MediaKind::Audio => "audio/mp3",
            MediaKind::Video => "video/mp4",
            MediaKind::Document => "application/pdf",
            _ => "image/jpeg",
        },
    }
}

/// The media type of a source, guessed from its address when it has none.
pub(crate) fn mime_of(source: &MediaSource, kind: MediaKind) -> &str {
    match source {
        MediaSource::Base64 { mime, .. }
        | MediaSource::Url { mime: Some(mime), .. }
        | MediaSource::File { mime: Some(mime), .. } => mime,
        MediaSource::Url { url, .. } | MediaSource::File { id: url, .. } => mime_of_url(url, kind),
        _ => mime_of_url("", kind),
    }
}

/// An image of an answer, which OpenAI's dialect and Gemini's have each in a block of its own: its source.
pub(crate) fn image_of(opaque: &Opaque) -> Option<MediaSource> {
    let block = opaque.json.to_value();
    match (opaque.dialect, opaque.kind.as_str()) {
        (Dialect::Gemini, "inlineData") => {
            let inner = block.get("inlineData").or_else(|| block.get("inline_data"))?;
            let mime = inner.get("mimeType").or_else(|| inner.get("mime_type"))?.as_str()?;
            let data = inner.get("data")?.as_str()?;
            let image = MediaSource::Base64 { mime: mime.to_owned(), data: data.into() };
            (kind_of(mime) == MediaKind::Image).then_some(image)
        }
        (Dialect::OpenAi, IMAGES) => {
            let url = match &block["image_url"] {
                Value::String(url) => url.as_str(),
                object => object["url"].as_str()?,
            };
            Some(source_of_url(url.to_owned()))
        }
        (Dialect::Responses, IMAGE_CALL) => {
            let format = block["output_format"].as_str().unwrap_or("png");
            let data = block["result"].as_str()?.into();
            Some(MediaSource::Base64 { mime: format!("image/{format}"), data })
        }
        _ => None,
    }
}

/// The kind of an item that is an image which the model made, in OpenAI's responses.
pub(crate) const IMAGE_CALL: &str = "image_generation_call";

/// The kind of a block that is an image of an answer in OpenAI's dialect, as relays have it.
pub(crate) const IMAGES: &str = "images";
