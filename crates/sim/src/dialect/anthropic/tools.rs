//! Tool declarations and the choice among them.

use std::collections::HashSet;

use serde_json::Value;

use super::errors::invalid;
use super::turns::Turn;
use crate::dialect::Refusal;

pub(crate) fn check(body: &Value, turns: &[Turn<'_>]) -> Result<(), Refusal> {
    let tools = match &body["tools"] {
        Value::Null => [].as_slice(),
        Value::Array(tools) => tools,
        _ => return Err(invalid("tools: Input should be a valid list")),
    };
    let mut names = HashSet::new();
    for (at, tool) in tools.iter().enumerate() {
        let custom = matches!(tool["type"].as_str(), None | Some("custom"));
        let path = if custom { format!("tools.{at}.custom") } else { format!("tools.{at}") };
        let name = match &tool["name"] {
            Value::String(name) => name.as_str(),
            Value::Null if !custom => continue,
            Value::Null => return Err(invalid(format!("{path}.name: Field required"))),
            _ => return Err(invalid(format!("{path}.name: Input should be a valid string"))),
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > 128 || !name.chars().all(fits) {
            return Err(invalid(format!(
                "{path}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
            )));
        }
        if !names.insert(name) {
            return Err(invalid("tools: Tool names must be unique."));
        }
        if custom {
            schema(&path, &tool["input_schema"])?;
        }
    }
    if !body["tool_choice"].is_null() && tools.is_empty() {
        return Err(invalid("tool_choice may only be specified while providing tools"));
    }
    if body["tool_choice"]["type"] == "tool" {
        let name = body["tool_choice"]["name"].as_str().unwrap_or_default();
        if !names.contains(name) {
            return Err(invalid(format!("Tool '{name}' not found in provided tools")));
        }
    }
    let uses = turns.iter().any(|turn| turn.has("tool_use") || turn.has("tool_result"));
    if uses && tools.is_empty() {
        return Err(invalid(
            "Requests which include `tool_use` or `tool_result` blocks must define tools.",
        ));
    }
    Ok(())
}

fn schema(path: &str, schema: &Value) -> Result<(), Refusal> {
    let path = format!("{path}.input_schema");
    match schema {
        Value::Null => Err(invalid(format!("{path}: Field required"))),
        Value::Object(fields) => match fields.get("type") {
            Some(kind) if kind == "object" => Ok(()),
            Some(_) => Err(invalid(format!("{path}.type: Input should be 'object'"))),
            None => Err(invalid(format!("{path}.type: Field required"))),
        },
        _ => Err(invalid(format!("{path}: Input should be a valid dictionary"))),
    }
}
