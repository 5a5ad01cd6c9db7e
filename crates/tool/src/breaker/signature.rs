//! The signature of a call: equal for equal calls.

use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::quality::RandomState;
use serde_json::Value;
use steadfast_chat::ToolCall;

/// The hash of a call by its tool and its arguments, whatever the order of their keys and white space.
/// Arguments that are no JSON are compared as text.
pub(super) fn signature(hasher: &RandomState, call: &ToolCall) -> u64 {
    let mut hash = hasher.build_hasher();
    call.name.hash(&mut hash);
    let arguments = call.arguments.trim();
    // Some models send an empty text for no arguments.
    let json = if arguments.is_empty() { "{}" } else { arguments };
    match serde_json::from_str(json) {
        Ok(arguments) => value(hasher, &arguments).hash(&mut hash),
        Err(_) => arguments.hash(&mut hash),
    }
    hash.finish()
}

fn value(hasher: &RandomState, json: &Value) -> u64 {
    match json {
        Value::Null => hasher.hash_one(0_u8),
        Value::Bool(bool) => hasher.hash_one((1_u8, bool)),
        Value::Number(number) => hasher.hash_one((2_u8, number.to_string())),
        Value::String(text) => hasher.hash_one((3_u8, text)),
        Value::Array(items) => {
            let mut hash = hasher.build_hasher();
            (4_u8, items.len()).hash(&mut hash);
            items.iter().for_each(|item| hash.write_u64(value(hasher, item)));
            hash.finish()
        }
        // A sum does not depend on the order of the fields.
        Value::Object(fields) => {
            let field =
                |(name, json): (&String, &Value)| hasher.hash_one((name, value(hasher, json)));
            let sum = fields.iter().map(field).fold(0_u64, u64::wrapping_add);
            hasher.hash_one((5_u8, sum))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_calls_are_equal_and_others_are_not() {
        let hasher = RandomState::default();
        let of = |arguments: &str| {
            let call = ToolCall {
                name: "read".into(),
                arguments: arguments.into(),
                ..ToolCall::default()
            };
            signature(&hasher, &call)
        };
        for (one, other) in [
            (
                r#"{"a":1,"b":{"c":2,"d":[3,{"e":4,"f":5}]}}"#,
                r#"{ "b":{"d":[3,{"f":5,"e":4}],"c":2}, "a":1 }"#,
            ),
            ("", "{}"),
            (" {} ", "{}"),
            ("not json", " not json "),
        ] {
            assert_eq!(of(one), of(other), "{one} {other}");
        }
        for (one, other) in [
            (r#"{"a":1}"#, r#"{"a":2}"#),
            (r#"{"a":1}"#, r#"{"a":"1"}"#),
            (r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#),
            (r#"{"a":{"b":1},"c":2}"#, r#"{"a":{"c":2},"b":1}"#),
            (r#"{"a":null}"#, "{}"),
            ("{", "{}"),
        ] {
            assert_ne!(of(one), of(other), "{one} {other}");
        }
    }
}
