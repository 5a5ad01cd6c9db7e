//! Gemini `generateContent` and `streamGenerateContent`.

pub(crate) mod errors;
pub(crate) mod parts;
pub(crate) mod read;
pub(crate) mod render;
pub(crate) mod routes;
pub(crate) mod rules;
pub(crate) mod turns;

use serde_json::Value;

/// A field by its JSON name or its proto name; both are accepted on the wire.
pub(crate) fn field<'v>(object: &'v Value, camel: &str, snake: &str) -> &'v Value {
    match &object[camel] {
        Value::Null => &object[snake],
        found => found,
    }
}
