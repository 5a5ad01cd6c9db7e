//! Images and documents in requests.

use steadfast_chat::{MediaKind, MediaSource};

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
