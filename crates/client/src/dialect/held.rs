//! JSON schemas that a vendor can hold a model to.
//!
//! Anthropic takes a part of JSON schema: every object is closed, and of what narrows a value only alternatives, constants
//! and some formats are held. What else narrows one is written into its description, so that the model knows it.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use steadfast_chat::RawJson;

use super::schema::MAX_DEPTH;

/// What is held, beside what is gone through below.
const HELD: [&str; 6] = ["type", "enum", "const", "description", "title", "default"];

/// Formats of texts that are held.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"];

/// What narrows a value and can be described in words.
const DESCRIBED: [&str; 14] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minItems",
    "maxItems",
    "uniqueItems",
    "examples",
    "example",
];

/// What says nothing of a value.
const SILENT: [&str; 3] = ["$schema", "$id", "$comment"];

/// Whether OpenAI can hold a model to `schema` as it is: there every object is closed, too, and has all of its
/// properties always.
pub(crate) fn is_strict(schema: &RawJson) -> bool {
    fn visit(schema: &Value, depth: usize) -> bool {
        if depth >= MAX_DEPTH {
            return false;
        }
        match schema {
            Value::Array(list) => list.iter().all(|inner| visit(inner, depth + 1)),
            Value::Object(fields) => {
                let required = fields.get("required").and_then(Value::as_array);
                let has = |name: &String| {
                    required.is_some_and(|names| names.iter().any(|known| known == name))
                };
                let is_object = fields.get("type").is_some_and(|kind| kind == "object");
                let properties = fields.get("properties").and_then(Value::as_object);
                let closed = fields.get("additionalProperties") == Some(&Value::Bool(false))
                    && properties.is_some_and(|properties| properties.keys().all(has));
                (!is_object || closed)
                    && properties.into_iter().flat_map(Map::values).all(|one| visit(one, depth + 1))
                    && fields
                        .iter()
                        .filter(|(name, _)| *name != "properties")
                        .all(|(_, inner)| visit(inner, depth + 1))
            }
            _ => true,
        }
    }
    visit(&schema.to_value(), 0)
}

/// `schema` as one that a model can be held to; `None` where that would mean something else: objects with any
/// names, schemas that contain themselves, conditions.
pub(crate) fn held(schema: &RawJson) -> Option<RawJson> {
    let tree = schema.to_value();
    is_finite(&tree).then_some(())?;
    Some(RawJson::from_value(&convert(&tree, 0)?))
}

fn convert(schema: &Value, depth: usize) -> Option<Value> {
    let fields = schema.as_object().filter(|_| depth < MAX_DEPTH)?;
    let convert = |schema: &Value| convert(schema, depth + 1);
    let (mut held, mut words) = (Map::new(), String::new());
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("$ref", Value::String(to)) if to.starts_with("#/") => {
                held.insert(name.clone(), value.clone());
            }
            ("properties" | "$defs" | "definitions", Value::Object(inner)) => {
                let inner: Option<Map<_, _>> = inner
                    .iter()
                    .map(|(name, inner)| Some((name.clone(), convert(inner)?)))
                    .collect();
                held.insert(name.clone(), Value::Object(inner?));
            }
            ("anyOf" | "oneOf" | "allOf", Value::Array(inner)) => {
                let inner: Option<Vec<_>> = inner.iter().map(convert).collect();
                let name = if name == "allOf" { "allOf" } else { "anyOf" };
                held.insert(name.to_owned(), Value::Array(inner?));
            }
            ("items", inner) => {
                held.insert(name.clone(), convert(inner)?);
            }
            ("required", Value::Array(_)) => {
                held.insert(name.clone(), value.clone());
            }
            ("additionalProperties", Value::Bool(false)) => {}
            ("format", Value::String(format)) if FORMATS.contains(&format.as_str()) => {
                held.insert(name.clone(), value.clone());
            }
            ("minItems", Value::Number(least)) if least.as_u64().is_some_and(|least| least < 2) => {
                held.insert(name.clone(), value.clone());
            }
            (name, _) if HELD.contains(&name) => {
                held.insert(name.to_owned(), value.clone());
            }
            (name, _) if SILENT.contains(&name) => {}
            (name, _) if DESCRIBED.contains(&name) => {
                let comma = if words.is_empty() { "" } else { ", " };
                let _ = write!(words, "{comma}{name}: {value}");
            }
            _ => return None,
        }
    }
    if !words.is_empty() {
        let known = held.get("description").and_then(Value::as_str).unwrap_or_default();
        let gap = if known.is_empty() { "" } else { " " };
        held.insert("description".to_owned(), json!(format!("{known}{gap}({words})")));
    }
    match held.get("type") {
        Some(Value::String(kind)) if kind == "object" => {
            held.get("properties")?;
            held.insert("additionalProperties".to_owned(), Value::Bool(false));
            Some(Value::Object(held))
        }
        Some(Value::Array(kinds)) => alternatives(&held, kinds, depth),
        _ => Some(Value::Object(held)),
    }
}

/// One schema for each of the `kinds` that a value may be of.
fn alternatives(held: &Map<String, Value>, kinds: &[Value], depth: usize) -> Option<Value> {
    let of = |kind: &Value| {
        let mut one = held.clone();
        one.insert("type".to_owned(), kind.clone());
        if kind == "null" {
            one = Map::from_iter([("type".to_owned(), kind.clone())]);
        }
        convert(&Value::Object(one), depth + 1)
    };
    let all: Option<Vec<Value>> = kinds.iter().map(of).collect();
    Some(json!({ "anyOf": all? }))
}

/// Whether no definition contains itself.
fn is_finite(root: &Value) -> bool {
    fn visits<'a>(at: &'a Value, root: &'a Value, inside: &mut Vec<&'a str>) -> bool {
        if inside.len() >= MAX_DEPTH {
            return false;
        }
        match at {
            Value::Array(list) => list.iter().all(|inner| visits(inner, root, inside)),
            Value::Object(fields) => {
                fields.iter().all(|(name, inner)| match (name.as_str(), inner) {
                    ("$ref", Value::String(to)) => {
                        let Some(target) = to.strip_prefix('#').and_then(|path| root.pointer(path))
                        else {
                            return false;
                        };
                        if inside.contains(&to.as_str()) {
                            return false;
                        }
                        inside.push(to);
                        let finite = visits(target, root, inside);
                        inside.pop();
                        finite
                    }
                    // They are gone through where they are referred to.
                    ("$defs" | "definitions", _) => true,
                    _ => visits(inner, root, inside),
                })
            }
            _ => true,
        }
    }
    visits(root, root, &mut Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(schema: &Value) -> Option<Value> {
        held(&RawJson::from_value(schema)).map(|schema| schema.to_value())
    }

    #[test]
    fn objects_are_closed_and_what_is_not_held_is_described() {
        let schema = json!({
            "$schema": "x",
            "type": "object",
            "properties": {
                "n": {"type": "integer", "minimum": 1, "maximum": 10, "description": "A number"},
                "when": {"type": "string", "format": "date-time"},
                "code": {"type": "string", "format": "zip", "pattern": "[0-9]+"},
                "list": {"type": "array", "minItems": 1, "items": {"oneOf": [{"const": 1}, {"enum": ["a"]}]}},
                "note": {"type": ["string", "null"], "maxLength": 5},
            },
            "required": ["n"],
        });
        let wanted = json!({
            "type": "object",
            "properties": {
                "n": {"type": "integer", "description": "A number (minimum: 1, maximum: 10)"},
                "when": {"type": "string", "format": "date-time"},
                "code": {"type": "string", "description": "(format: \"zip\", pattern: \"[0-9]+\")"},
                "list": {"type": "array", "minItems": 1, "items": {"anyOf": [{"const": 1}, {"enum": ["a"]}]}},
                "note": {"anyOf": [{"type": "string", "description": "(maxLength: 5)"}, {"type": "null"}]},
            },
            "required": ["n"],
            "additionalProperties": false,
        });
        assert_eq!(of(&schema), Some(wanted.clone()));
        assert_eq!(of(&wanted), Some(wanted), "and stays as it is");
    }

    #[test]
    fn what_would_mean_something_else_is_not_held() {
        let with = |more: Value| {
            let mut schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
            schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            of(&schema)
        };
        assert!(with(json!({})).is_some());
        for more in [
            json!({"additionalProperties": true}),
            json!({"additionalProperties": {"type": "string"}}),
            json!({"patternProperties": {"^a": {"type": "string"}}}),
            json!({"if": {}, "then": {}}),
            json!({"properties": {"map": {"type": "object"}}}),
            json!({"properties": {"elsewhere": {"$ref": "https://x.example/s"}}}),
            json!({"properties": {"gone": {"$ref": "#/$defs/nothing"}}}),
            json!({"properties": {"self": {"$ref": "#"}}}),
            json!({
                "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
                "properties": {"first": {"$ref": "#/$defs/node"}},
            }),
        ] {
            assert_eq!(with(more.clone()), None, "{more}");
        }
        let shared = json!({
            "$defs": {"leaf": {"type": "object", "properties": {"n": {"type": "number"}}}},
            "properties": {"a": {"$ref": "#/$defs/leaf"}, "b": {"$ref": "#/$defs/leaf"}},
        });
        assert!(with(shared).is_some(), "twice is not within itself");
        assert_eq!(of(&json!(true)), None);
    }

    #[test]
    fn openai_wants_all_properties() {
        let strict = |schema: Value| is_strict(&RawJson::from_value(&schema));
        let object = |required: Value, inner: Value| {
            json!({
                "type": "object",
                "properties": {"type": inner},
                "required": required,
                "additionalProperties": false,
            })
        };
        let text = json!({"type": "string"});
        let whole = object(json!(["type"]), text.clone());
        let optional = object(json!([]), text.clone());
        assert!(strict(whole.clone()) && !strict(optional.clone()));
        assert!(strict(object(json!(["type"]), whole.clone())));
        assert!(!strict(object(json!(["type"]), optional.clone())));
        assert!(!strict(json!({"anyOf": [whole, optional]})));
        assert!(!strict(json!({"type": "object"})) && strict(text));
    }

    proptest::proptest! {
        #[test]
        fn what_is_held_is_held_as_it_is(names in proptest::collection::vec("[a-c]", 0..5), least in 0..9_i32) {
            let properties: Map<String, Value> = names
                .iter()
                .map(|name| (name.clone(), json!({"type": ["integer", "null"], "minimum": least})))
                .collect();
            let schema = json!({"type": "object", "properties": properties, "required": names});
            let once = of(&schema).unwrap();
            proptest::prop_assert_eq!(of(&once), Some(once));
        }
    }
}
