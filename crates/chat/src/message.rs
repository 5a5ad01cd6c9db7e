//! One message of a conversation.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use steadfast_core::Dialect;

use crate::{Extra, Part, RawJson};

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// The operator: instructions.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool, in dialects that give results a message of their own.
    Tool,
}

impl Role {
    /// The name used in logs and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// One message of a conversation. Cheap to clone; a clone is shared until it is changed.
///
/// A message read from the wire keeps its text, so that sending it on in the same dialect sends
/// what was read, byte for byte. Changing it drops that text.
///
/// With serde it is written as it is, wire text and unknown fields included, in a form of its own that
/// is no provider's: to be kept, and read again as the same message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message(Arc<Inner>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Inner {
    role: Role,
    parts: Vec<Part>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::json::extra")]
    extra: Extra,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dialect: Option<Dialect>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    raw: Option<RawJson>,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: Role, parts: Vec<Part>) -> Self {
        Self(Arc::new(Inner { role, parts, extra: None, dialect: None, raw: None }))
    }

    /// A message as it was read from the wire: its content, the fields this crate has no type for,
    /// and its text.
    pub fn from_wire(
        dialect: Dialect,
        role: Role,
        parts: Vec<Part>,
        extra: Extra,
        raw: RawJson,
    ) -> Self {
        Self(Arc::new(Inner { role, parts, extra, dialect: Some(dialect), raw: Some(raw) }))
    }

    /// A message of the user.
    pub fn user(text: impl Into<String>) -> Self {
        Self::new(Role::User, vec![Part::text(text)])
    }

    /// A message of the model.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::new(Role::Assistant, vec![Part::text(text)])
    }

    /// Instructions.
    pub fn system(text: impl Into<String>) -> Self {
        Self::new(Role::System, vec![Part::text(text)])
    }

    /// The result of the call `id`.
    pub fn tool(id: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(Role::Tool, vec![Part::tool_result(id, text)])
    }

    /// The role of its author.
    pub fn role(&self) -> Role {
        self.0.role
    }

    /// The content.
    pub fn parts(&self) -> &[Part] {
        &self.0.parts
    }

    /// The content, to be changed: drops the wire text.
    pub fn parts_mut(&mut self) -> &mut Vec<Part> {
        let inner = Arc::make_mut(&mut self.0);
        inner.raw = None;
        &mut inner.parts
    }

    /// Changes the role: drops the wire text.
    pub fn set_role(&mut self, role: Role) {
        let inner = Arc::make_mut(&mut self.0);
        inner.raw = None;
        inner.role = role;
    }

    /// Fields of the message's own dialect that this crate has no type for, when `dialect` is
    /// that dialect.
    pub fn extra(&self, dialect: Dialect) -> Option<&serde_json::Map<String, serde_json::Value>> {
        (self.0.dialect == Some(dialect)).then_some(self.0.extra.as_deref()).flatten()
    }

    /// The dialect it was read in.
    pub fn dialect(&self) -> Option<Dialect> {
        self.0.dialect
    }

    /// The text it was read from, when that was in `dialect` and it has not been changed since.
    pub fn raw(&self, dialect: Dialect) -> Option<&RawJson> {
        self.0.raw.as_ref().filter(|_| self.0.dialect == Some(dialect))
    }

    /// All text of it, joined.
    pub fn text(&self) -> String {
        self.0.parts.iter().filter_map(Part::as_text).collect()
    }

    /// The tool calls in it.
    pub fn tool_calls(&self) -> impl Iterator<Item = &crate::ToolCall> {
        self.0.parts.iter().filter_map(Part::as_tool_call)
    }

    /// The tool results in it.
    pub fn tool_results(&self) -> impl Iterator<Item = &crate::ToolResult> {
        self.0.parts.iter().filter_map(Part::as_tool_result)
    }

    /// Whether both are the same message in memory: equal without comparing their content.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Media, MediaKind, MediaSource, Opaque, Text, Thinking, ToolCall, ToolResult};

    #[test]
    fn a_kept_message_is_read_as_it_was() {
        // Deeper than one of its parts may be nested in a line of a file, and not too deep by itself.
        let deep = format!("{}{}", "[".repeat(120), "]".repeat(120));
        let extra = serde_json::from_str(&format!(r#"{{"z":1,"a":{deep}}}"#)).unwrap();
        let text = Text { text: "é\u{0}\n".into(), signature: Some("s".into()), extra };
        let call = ToolCall { id: "1".into(), arguments: "{\"cut".into(), ..ToolCall::default() };
        let image = Media {
            kind: MediaKind::Image,
            source: MediaSource::Base64 { mime: "image/png".into(), data: "AAAA".into() },
            extra: None,
        };
        let url = MediaSource::Url { mime: None, url: "https://a.test".into() };
        let file = MediaSource::File { mime: Some("audio/wav".into()), id: "f".into() };
        let opaque = Opaque {
            dialect: Dialect::Anthropic,
            kind: "server_tool_use".into(),
            json: RawJson::parse(r#"{"b":1.10,"a":"\ud83d"}"#).unwrap(),
        };
        let parts = vec![
            Part::Text(text.clone()),
            Part::Thinking(Thinking { text: "hm".into(), ..Thinking::default() }),
            Part::Redacted { data: "x".into() },
            Part::ToolCall(call),
            Part::ToolResult(ToolResult {
                id: "1".into(),
                name: Some("ls".into()),
                content: vec![Part::Text(text.clone()), Part::Media(image)],
                is_error: true,
                failure: None,
                extra: None,
            }),
            Part::Media(Media { kind: MediaKind::Document, source: url, extra: None }),
            Part::Media(Media { kind: MediaKind::Audio, source: file, extra: None }),
            Part::Opaque(opaque),
        ];
        let raw = RawJson::parse(r#"{"role": "user", "n": 1.10}"#).unwrap();
        for message in [
            Message::from_wire(Dialect::OpenAi, Role::User, parts.clone(), text.extra, raw),
            Message::new(Role::Assistant, parts),
            Message::tool("1", ""),
            Message::system("be brief"),
        ] {
            let json = serde_json::to_string(&message).unwrap();
            assert_eq!(serde_json::from_str::<Message>(&json).unwrap(), message, "{json}");
        }
        assert_eq!(
            serde_json::to_string(&Message::user("hi")).unwrap(),
            r#"{"role":"user","parts":[{"text":{"text":"hi"}}]}"#,
        );
    }

    #[test]
    fn a_change_drops_the_wire_text_of_this_clone_alone() {
        let raw = RawJson::parse(r#"{"role":"user","content":"hi"}"#).unwrap();
        let read =
            Message::from_wire(Dialect::OpenAi, Role::User, vec![Part::text("hi")], None, raw);
        let mut changed = read.clone();
        assert!(changed.same(&read));
        changed.parts_mut().push(Part::text(" there"));
        assert_eq!(changed.text(), "hi there");
        assert!(changed.raw(Dialect::OpenAi).is_none());
        assert!(read.raw(Dialect::OpenAi).is_some());
        assert!(read.raw(Dialect::Anthropic).is_none(), "no text in another dialect");
    }
}
