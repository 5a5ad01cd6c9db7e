//! The reference of all keys, from the schema of the configuration.

use std::fmt::Write;

use serde_json::{Map, Value};
use steadfast_gateway::config::schema;

/// The reference of all keys as Markdown: a section a table of the file, a row a key.
pub(super) fn reference() -> String {
    let mut page = String::new();
    for (name, schema) in fields(&schema()).into_iter().flatten() {
        section(&mut page, name, schema, &schema["default"]);
        if let Some(values) = values(schema).filter(|values| fields(values).is_some()) {
            section(&mut page, &format!("{name}.NAME"), values, &Value::Null);
        }
    }
    page
}

fn section(page: &mut String, path: &str, schema: &Value, defaults: &Value) {
    let items = schema.get("items");
    let title = if items.is_some() { format!("[[{path}]]") } else { format!("[{path}]") };
    let title = if self::fields(items.unwrap_or(schema))
        .or(values(schema).and(Some(&Map::new())))
        .is_none()
    {
        path.to_owned()
    } else {
        title
    };
    // Writing to a string does not fail, here and below.
    let _ = writeln!(page, "### `{title}`\n\n{}\n", description(schema));
    let schema = items.unwrap_or(schema);
    if let Some(fields) = fields(schema) {
        let required = |name: &String| {
            let all = schema["required"].as_array();
            all.is_some_and(|all| all.iter().any(|one| one == name))
        };
        page.push_str("| key | type or unit | default | meaning |\n|---|---|---|---|\n");
        for (name, field) in fields {
            let default = match defaults.get(name).or_else(|| field.get("default")) {
                _ if required(name) => "required".to_owned(),
                value => default(field, value),
            };
            let _ = writeln!(
                page,
                "| `{name}` | {} | {default} | {} |",
                kind(name, field),
                meaning(field)
            );
        }
        page.push('\n');
        for (name, field) in fields {
            let inner = field.get("items").unwrap_or(field);
            if self::fields(inner).is_some() {
                section(page, &format!("{path}.{name}"), field, &defaults[name]);
            } else if let Some(values) =
                values(field).filter(|values| self::fields(values).is_some())
            {
                section(page, &format!("{path}.{name}.NAME"), values, &Value::Null);
            }
        }
    }
}

/// What is written there, by the unit that the key ends with.
fn kind(name: &str, schema: &Value) -> String {
    let choices = choices(schema);
    if !choices.is_empty() {
        return choices.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.first().and_then(Value::as_str),
        kind => kind.as_str(),
    };
    match kind {
        Some("integer" | "number") if name.ends_with("_ms") => "ms",
        Some("integer" | "number") if name.ends_with("_s") && !name.ends_with("_per_s") => "s",
        Some("integer" | "number") => "number",
        Some("boolean") => "true, false",
        Some("string") => "text",
        Some("array") => "list",
        _ => "table",
    }
    .to_owned()
}

fn default(schema: &Value, value: Option<&Value>) -> String {
    match value {
        Some(Value::Number(number)) if number.as_f64() == Some(0.0) => "0: off".to_owned(),
        Some(Value::Array(items)) if items.is_empty() => "none".to_owned(),
        Some(Value::Array(items)) if items.len() > 4 => "built in".to_owned(),
        // The fields of a table have defaults of their own.
        Some(Value::Object(map)) if map.is_empty() || fields(schema).is_some() => "none".to_owned(),
        Some(Value::Object(map)) => {
            let pairs = map.iter().map(|(name, value)| format!("{name} = {value}"));
            format!("`{{ {} }}`", pairs.collect::<Vec<_>>().join(", "))
        }
        None | Some(Value::Null) => "none".to_owned(),
        Some(value) => format!("`{value}`"),
    }
}

fn meaning(schema: &Value) -> String {
    let mut meaning = description(schema);
    for (name, what) in choices(schema) {
        if let Some(what) = what {
            let _ = write!(meaning, " `{name}`: {what}");
        }
    }
    meaning.replace('|', "\\|")
}

/// The documentation of a type or field, in one line and without the links that rustdoc knows.
fn description(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    let mut text_only = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("[`") {
        let Some((name, after)) = link.split_once("`]") else { break };
        let _ = write!(text_only, "{before}`{name}`");
        rest = match after.strip_prefix('(').and_then(|target| target.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
    }
    text_only.push_str(rest);
    text_only.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The values to choose from, with what they mean.
fn choices(schema: &Value) -> Vec<(String, Option<String>)> {
    let variants = schema["oneOf"].as_array().into_iter().flatten();
    let inner = schema["anyOf"].as_array().into_iter().flatten().flat_map(choices);
    let own = variants.flat_map(|variant| {
        let listed = variant["enum"].as_array().into_iter().flatten();
        let all = listed.chain(variant.get("const")).map(Value::to_string);
        let what = variant.get("description").map(|_| description(variant));
        all.map(move |name| (name, what.clone())).collect::<Vec<_>>()
    });
    let listed =
        schema["enum"].as_array().into_iter().flatten().map(|name| (name.to_string(), None));
    own.chain(inner).chain(listed).collect()
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
