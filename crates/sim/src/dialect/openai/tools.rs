//! Tool declarations and the choice among them. Two tools of one name are taken: the last wins.

use serde_json::Value;

use super::errors::invalid;
use super::shape::{empty_array, function_name, missing, present, string, wrong_type};
use crate::dialect::Refusal;

/// Most tools of a request.
const TOOLS_MAX: usize = 128;

pub(crate) fn check(body: &Value) -> Result<(), Refusal> {
    let tools = match present(&body["tools"]) {
        None => {
            for key in ["tool_choice", "parallel_tool_calls"] {
                if present(&body[key]).is_some_and(|v| v != "none") {
                    return Err(invalid(format!(
                        "Invalid value for '{key}': '{key}' is only allowed when 'tools' are \
                         specified."
                    ))
                    .param(key));
                }
            }
            return Ok(());
        }
        Some(Value::Array(tools)) => tools,
        Some(other) => return Err(wrong_type("tools", "an array of objects", other)),
    };
    if tools.is_empty() {
        return Err(empty_array("tools"));
    }
    if tools.len() > TOOLS_MAX {
        return Err(invalid(format!(
            "Invalid 'tools': array too long. Expected an array with maximum length {TOOLS_MAX}, \
             but got an array with length {} instead.",
            tools.len()
        ))
        .param("tools")
        .code("array_above_max_length"));
    }
    let mut names = Vec::new();
    for (at, tool) in tools.iter().enumerate() {
        let path = format!("tools[{at}]");
        if !tool.is_object() {
            return Err(wrong_type(&path, "an object", tool));
        }
        if string(tool, "type", &path)? != "function" {
            continue;
        }
        let function = &tool["function"];
        if !function.is_object() {
            return Err(missing(&format!("{path}.function")));
        }
        let path = format!("{path}.function");
        let name = string(function, "name", &path)?;
        function_name(name, &format!("{path}.name"))?;
        names.push(name);
        let Some(schema) = present(&function["parameters"]) else { continue };
        if !schema.is_object() {
            return Err(wrong_type(&format!("{path}.parameters"), "an object", schema));
        }
        if schema["type"] != "object" {
            let got = schema["type"].as_str().unwrap_or("None");
            return Err(invalid(format!(
                "Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \
                 \"object\"', got 'type: \"{got}\"'."
            ))
            .param(format!("{path}.parameters"))
            .code("invalid_function_parameters"));
        }
    }
    if let Some(name) = body["tool_choice"]["function"]["name"].as_str()
        && !names.contains(&name)
    {
        return Err(invalid(format!(
            "Invalid value for 'tool_choice': no function named '{name}' was specified in the \
             'tools' parameter."
        ))
        .param("tool_choice"));
    }
    Ok(())
}
