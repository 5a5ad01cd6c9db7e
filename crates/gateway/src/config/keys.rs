//! All keys with their defaults and meanings, from the types of the configuration.

use std::fmt::Write;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};
use toml::de::{DeTable, DeValue};

use super::Config;

/// The JSON schema of the file: `steadfast check --schema`, and what the reference in
/// `docs/gateway.md` is made from.
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|it| it.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<Config>().to_value()
}

/// Calls `found` for each key of `root` that is none, with its offset and what would be right.
pub(super) fn unknown(root: &DeTable<'_>, found: &mut dyn FnMut(&str, usize, String)) {
    search(root, &schema(), &mut String::new(), found);
}

fn search(
    table: &DeTable<'_>,
    schema: &Value,
    path: &mut String,
    found: &mut dyn FnMut(&str, usize, String),
) {
    let known = fields(schema);
    for (name, value) in table {
        let length = path.len();
        if length > 0 {
            path.push('.');
        }
        path.push_str(name.get_ref());
        let inner = match known {
            Some(known) => known.get(&**name.get_ref()),
            None => values(schema),
        };
        match (inner, value.get_ref()) {
            (None, _) => {
                if let Some(known) = known {
                    found(path, name.span().start, message(name.get_ref(), known));
                }
            }
            (Some(inner), DeValue::Table(table)) => search(table, inner, path, found),
            (Some(inner), DeValue::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    if let (DeValue::Table(table), Some(schema)) =
                        (item.get_ref(), inner.get("items"))
                    {
                        let length = path.len();
                        let _ = write!(path, "[{index}]");
                        search(table, schema, path, found);
                        path.truncate(length);
                    }
                }
            }
            _ => {}
        }
        path.truncate(length);
    }
}

fn message(name: &str, known: &Map<String, Value>) -> String {
    let known: Vec<_> = known.keys().map(|name| format!("`{name}`")).collect();
    format!("unknown field `{name}`, expected one of {}", known.join(", "))
}

/// The fields of a struct's schema, of an optional one's too.
fn fields(schema: &Value) -> Option<&Map<String, Value>> {
    let optional = schema["anyOf"].as_array().and_then(|all| all.iter().find_map(fields));
    optional.or_else(|| schema["properties"].as_object())
}

/// The schema of a map's values.
fn values(schema: &Value) -> Option<&Value> {
    schema.get("additionalProperties").filter(|values| values.is_object())
}
