//! What a message is made of.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use steadfast_core::Dialect;

use crate::{Extra, RawJson, ToolFailure};

/// One piece of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part {
    /// Text.
    Text(Text),
    /// Thinking that can be read.
    Thinking(Thinking),
    /// Thinking that only its provider can read.
    Redacted {
        /// The opaque data.
        data: String,
    },
    /// An image, document, audio or video.
    Media(Media),
    /// The model calls a tool.
    ToolCall(ToolCall),
    /// The result of a tool call.
    ToolResult(ToolResult),
    /// A block that only one dialect has: sent whole or not at all.
    Opaque(Opaque),
}

/// Text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Text {
    /// The text.
    pub text: String,
    /// A provider's signature over this part (Gemini signs the part that follows its thoughts).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// Other fields of the part, such as a cache mark or citations.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::json::extra")]
    pub extra: Extra,
}

/// Thinking that can be read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Thinking {
    /// The thoughts.
    pub text: String,
    /// The provider's signature over them: without it, or with a changed text, the provider
    /// refuses them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// Other fields of the part.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::json::extra")]
    pub extra: Extra,
}

/// A call of a tool by the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The id its result refers to. Empty when the dialect has none (Gemini).
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments as JSON text, exactly as they came. Not necessarily valid.
    pub arguments: String,
    /// A provider's signature over this part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// Other fields of the part.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::json::extra")]
    pub extra: Extra,
}

/// The result of a tool call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The id of the call it answers. Empty when the dialect has none (Gemini).
    pub id: String,
    /// The tool, where the dialect repeats it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The output: text and media.
    pub content: Vec<Part>,
    /// The tool failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
    /// How it failed, where it was run by this process: for the layers around it, never sent or stored.
    #[serde(skip)]
    pub failure: Option<Box<ToolFailure>>,
    /// Other fields of the part.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::json::extra")]
    pub extra: Extra,
}

/// An image, document, audio or video.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Media {
    /// What it is.
    pub kind: MediaKind,
    /// Where it is.
    pub source: MediaSource,
    /// Other fields of the part, such as the level of detail.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::json::extra")]
    pub extra: Extra,
}

/// What a medium is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MediaKind {
    /// A picture.
    Image,
    /// A document, such as a PDF.
    Document,
    /// Audio, such as speech.
    Audio,
    /// Video.
    Video,
}

/// Where a medium is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MediaSource {
    /// In the request itself.
    Base64 {
        /// Its media type, such as `image/png`.
        mime: String,
        /// Its bytes in base64.
        data: Arc<str>,
    },
    /// At an address the provider fetches.
    Url {
        /// Its media type, when known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mime: Option<String>,
        /// The address.
        url: String,
    },
    /// At the provider, uploaded before.
    File {
        /// Its media type, when known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mime: Option<String>,
        /// The provider's id or address of it.
        id: String,
    },
}

/// A block that only one dialect has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opaque {
    /// The dialect.
    pub dialect: Dialect,
    /// Its type in the dialect, such as `server_tool_use`.
    pub kind: String,
    /// The whole block.
    pub json: RawJson,
}

impl Part {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Part::Text(Text { text: text.into(), ..Text::default() })
    }

    /// A call of `name` with `arguments`, a JSON object as text.
    pub fn tool_call(
        id: impl Into<String>,
        name: impl Into<String>,
        arguments: impl Into<String>,
    ) -> Self {
        Part::ToolCall(ToolCall {
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
            ..ToolCall::default()
        })
    }

    /// The result of the call `id` as text.
    pub fn tool_result(id: impl Into<String>, text: impl Into<String>) -> Self {
        Part::ToolResult(ToolResult {
            id: id.into(),
            content: vec![Part::text(text)],
            ..ToolResult::default()
        })
    }

    /// An image in the request itself.
    pub fn image(mime: impl Into<String>, base64: impl Into<Arc<str>>) -> Self {
        Part::Media(Media {
            kind: MediaKind::Image,
            source: MediaSource::Base64 { mime: mime.into(), data: base64.into() },
            extra: None,
        })
    }

    /// The text, when it is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Part::Text(text) => Some(&text.text),
            _ => None,
        }
    }

    /// The call, when it is one.
    pub fn as_tool_call(&self) -> Option<&ToolCall> {
        match self {
            Part::ToolCall(call) => Some(call),
            _ => None,
        }
    }

    /// The result, when it is one.
    pub fn as_tool_result(&self) -> Option<&ToolResult> {
        match self {
            Part::ToolResult(result) => Some(result),
            _ => None,
        }
    }

    /// Whether it is thinking, readable or not.
    pub fn is_thinking(&self) -> bool {
        matches!(self, Part::Thinking(_) | Part::Redacted { .. })
    }

    /// Whether it is an image or a tool result with one.
    pub fn has_image(&self) -> bool {
        match self {
            Part::Media(media) => media.kind == MediaKind::Image,
            Part::ToolResult(result) => result.content.iter().any(Part::has_image),
            _ => false,
        }
    }

    /// Bytes of text in it, media left out.
    pub(crate) fn text_len(&self) -> usize {
        match self {
            Part::Text(text) => text.text.len(),
            Part::Thinking(thinking) => thinking.text.len(),
            Part::ToolCall(call) => call.name.len() + call.arguments.len(),
            Part::ToolResult(result) => result.content.iter().map(Part::text_len).sum(),
            Part::Redacted { .. } | Part::Media(_) | Part::Opaque(_) => 0,
        }
    }

    /// The most tokens that it can be taken to be.
    pub(crate) fn most_tokens(&self) -> usize {
        match self {
            Part::Text(_) | Part::Thinking(_) | Part::ToolCall(_) => most_tokens(self.text_len()),
            Part::ToolResult(result) => result.content.iter().map(Part::most_tokens).sum(),
            Part::Redacted { data } => most_tokens(data.len()),
            Part::Opaque(opaque) => most_tokens(opaque.json.get().len()),
            Part::Media(media) => media.most_tokens(),
        }
    }
}

/// The most tokens of so many bytes of text: text that models read has no fewer than three bytes to a token, on
/// average, in any common language.
pub(crate) fn most_tokens(bytes: usize) -> usize {
    bytes.div_ceil(3)
}

/// The most tokens of an image: more than the large vendors count for the largest that they take whole.
const IMAGE: usize = 4_096;

/// Bytes of another medium in base64 to a token, which is more than a page of dense text in a document has.
const BYTES_OF_MEDIA: usize = 8;

/// What is taken for another medium that is not in the request itself: about 20 pages, or half an hour of audio.
const REMOTE: usize = 65_536;

impl Media {
    fn most_tokens(&self) -> usize {
        match (self.kind, &self.source) {
            (MediaKind::Image, _) => IMAGE,
            (_, MediaSource::Base64 { data, .. }) => (data.len() / BYTES_OF_MEDIA).max(IMAGE),
            (_, MediaSource::Url { .. } | MediaSource::File { .. }) => REMOTE,
        }
    }
}
