//! Gemini's own schemas as JSON schemas.

use serde_json::{Map, Value, json};
use steadfast_chat::RawJson;
use steadfast_core::Dialect;

/// How deep a schema is followed; deeper ones are refused by every provider.
pub(crate) const MAX_DEPTH: usize = 64;

/// A schema that was read in a dialect, or made by a program, as a JSON schema.
pub(crate) fn json_schema(schema: &RawJson, read: Option<Dialect>) -> RawJson {
    if read == Some(Dialect::Gemini) { to_json_schema(schema) } else { schema.clone() }
}

/// Whether the root of a JSON schema is an object, as far as it says.
pub(crate) fn is_object(schema: &RawJson) -> bool {
    let schema = schema.to_value();
    match &schema["type"] {
        Value::String(kind) => kind == "object",
        Value::Array(_) => false,
        _ => schema.get("enum").is_none() && schema.get("const").is_none(),
    }
}

/// A schema in Gemini's style (types in capitals, `nullable`) as a JSON schema. A JSON schema
/// passes unchanged.
fn to_json_schema(schema: &RawJson) -> RawJson {
    let mut tree = schema.to_value();
    let before = tree.clone();
    convert(&mut tree, 0);
    if tree == before { schema.clone() } else { RawJson::from_value(&tree) }
}

/// Bounds that may be written as strings, as all of Google's 64-bit numbers.
const COUNTS: [&str; 6] =
    ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];

/// Makes null a value of the schema.
fn allow_null(fields: &mut Map<String, Value>) {
    if let Some(kind) = fields.get_mut("type") {
        *kind = json!([kind.take(), "null"]);
    }
    if let Some(Value::Array(values)) = fields.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
    if let Some(Value::Array(choices)) = fields.get_mut("anyOf") {
        choices.push(json!({"type": "null"}));
    }
}

fn convert(schema: &mut Value, depth: usize) {
    let Value::Object(fields) = schema else { return };
    if depth > MAX_DEPTH {
        return;
    }
    if let Some(Value::String(kind)) = fields.get_mut("type") {
        *kind = kind.to_ascii_lowercase();
    }
    if fields.get("nullable").and_then(Value::as_bool).is_some() {
        let nullable = fields.shift_remove("nullable") == Some(Value::Bool(true));
        if nullable {
            allow_null(fields);
        }
    }
    if fields.get("format").is_some_and(|format| format == "enum") {
        fields.shift_remove("format");
    }
    for name in COUNTS {
        if let Some(count) = fields.get_mut(name)
            && let Some(Ok(number)) = count.as_str().map(str::parse::<u64>)
        {
            *count = json!(number);
        }
    }
    fields.shift_remove("propertyOrdering");
    for (name, inner) in fields.iter_mut() {
        match (name.as_str(), inner) {
            ("properties" | "$defs" | "defs", Value::Object(inner)) => {
                inner.values_mut().for_each(|schema| convert(schema, depth + 1));
            }
            ("items" | "additionalProperties", inner) => convert(inner, depth + 1),
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(inner)) => {
                inner.iter_mut().for_each(|schema| convert(schema, depth + 1));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capitals_become_json_schema_and_json_schema_stays_as_it_is_written() {
        let gemini = RawJson::parse(
            r#"{"type":"OBJECT","properties":{"type":{"type":"STRING","nullable":true},"n":{"type":"ARRAY","items":{"type":"INTEGER"}}},"propertyOrdering":["n"]}"#,
        )
        .unwrap();
        assert_eq!(
            to_json_schema(&gemini).get(),
            r#"{"type":"object","properties":{"type":{"type":["string","null"]},"n":{"type":"array","items":{"type":"integer"}}}}"#
        );
        let choice = RawJson::parse(
            r#"{"type":"STRING","format":"enum","nullable":true,"enum":["a"],"maxLength":"64"}"#,
        )
        .unwrap();
        assert_eq!(
            to_json_schema(&choice).get(),
            r#"{"type":["string","null"],"enum":["a",null],"maxLength":64}"#
        );
        let either =
            RawJson::parse(r#"{"nullable":true,"anyOf":[{"type":"STRING"},{"type":"NUMBER"}]}"#);
        assert_eq!(
            to_json_schema(&either.unwrap()).get(),
            r#"{"anyOf":[{"type":"string"},{"type":"number"},{"type":"null"}]}"#
        );
        let json = RawJson::parse(r#"{ "type": "object", "minimum": 1.50 }"#).unwrap();
        assert_eq!(to_json_schema(&json).get(), json.get());
    }
}
