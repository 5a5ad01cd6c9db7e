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
#[derive(Clone, Debug, PartialEq)]
pub struct Message(Arc<Inner>);

#[derive(Clone, Debug, PartialEq)]
struct Inner {
    role: Role,
    parts: Vec<Part>,
    extra: Extra,
    dialect: Option<Dialect>,
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
