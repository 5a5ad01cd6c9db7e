//! Which declared tool does what a step asks for, and with which arguments.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::TaskCall;
use crate::generate::{least, type_of};

/// Codex's tool for whatever it writes, and its one argument where a provider does not know free text.
const PATCH: &str = "apply_patch";
const PATCH_INPUT: &str = "input";

/// The names of one kind of tool.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolNames {
    tools: Vec<String>,
    /// What an argument is called, by our name for it.
    arguments: BTreeMap<String, Vec<String>>,
}

static NAMES: LazyLock<BTreeMap<String, ToolNames>> =
    LazyLock::new(|| toml::from_str(include_str!("../../data/tools.toml")).unwrap_or_default());

/// The name of the tool for `call` among `declared`, and its arguments as JSON.
pub(super) fn call(
    call: &TaskCall,
    root: &str,
    declared: &[(String, Value)],
) -> Option<(String, String)> {
    let names = NAMES.get(call.verb())?;
    let found = names
        .tools
        .iter()
        .find_map(|wanted| declared.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)));
    let Some((name, schema)) = found else { return otherwise(call, root, declared) };
    let values: Vec<(&[String], String)> = call
        .arguments(root)
        .into_iter()
        .filter_map(|(ours, value)| Some((names.arguments.get(ours)?.as_slice(), value)))
        .collect();
    Some((name.clone(), Value::Object(object(schema, &values)).to_string()))
}

/// The same by tools that do more than one thing: a patch for what is written, a command for what is read.
fn otherwise(
    step: &TaskCall,
    root: &str,
    declared: &[(String, Value)],
) -> Option<(String, String)> {
    let Some(patch) = step.patch() else {
        return call(&step.by_command()?, root, declared);
    };
    let Some((name, schema)) = declared.iter().find(|(name, _)| name == PATCH) else {
        // Codex knows it as a command, too.
        let command = format!("{PATCH} <<'EOF'\n{patch}\nEOF");
        return call(&TaskCall::Run { command }, root, declared);
    };
    let input = [PATCH_INPUT.to_owned()];
    let arguments = match schema {
        // It takes free text, which the dialect takes out of the field again.
        Value::Null => Map::from_iter([(PATCH_INPUT.to_owned(), Value::from(patch))]),
        schema => object(schema, &[(&input[..], patch)]),
    };
    Some((name.clone(), Value::Object(arguments).to_string()))
}

/// An object of this schema that has the values under the schema's names for them, and of the rest what is
/// required.
fn object(schema: &Value, values: &[(&[String], String)]) -> Map<String, Value> {
    let required = |key: &str| {
        schema["required"].as_array().is_some_and(|list| list.iter().any(|name| name == key))
    };
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties
        .filter_map(|(key, property)| {
            let own = values.iter().find(|(names, _)| names.iter().any(|name| name == key));
            let value = match own {
                Some((_, value)) => typed(property, value),
                None if lists_own(property, values) => {
                    Value::Array(vec![Value::Object(object(&property["items"], values))])
                }
                None if required(key) => least(property),
                None => return None,
            };
            Some((key.clone(), value))
        })
        .collect()
}

/// Whether it is a list of objects that have one of the values, as a list of edits does.
fn lists_own(property: &Value, values: &[(&[String], String)]) -> bool {
    property["items"]["properties"].as_object().is_some_and(|properties| {
        values.iter().any(|(names, _)| names.iter().any(|name| properties.contains_key(name)))
    })
}

/// A text, or the words of a command where that is what the schema wants.
fn typed(property: &Value, value: &str) -> Value {
    match type_of(property).as_str() {
        "array" => Value::from(vec!["bash", "-lc", value]),
        _ => Value::from(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_step_has_names_for_all_of_its_arguments() {
        let text = String::new;
        for step in [
            TaskCall::Read { path: text() },
            TaskCall::Write { path: text(), content: text() },
            TaskCall::Edit { path: text(), old: text(), new: text() },
            TaskCall::Run { command: text() },
        ] {
            let names = &NAMES[step.verb()];
            assert!(!names.tools.is_empty());
            for (ours, _) in step.arguments("/") {
                assert!(names.arguments.contains_key(ours), "{} {ours}", step.verb());
            }
        }
        assert_eq!(NAMES.len(), 4);
    }

    #[test]
    fn arguments_fit_the_schemas_of_agents() {
        let edit = TaskCall::Edit { path: "a.txt".into(), old: "x".into(), new: "y".into() };
        let run = TaskCall::Run { command: "ls".into() };
        let made = |step: &TaskCall, name: &str, schema: Value| {
            let declared = [("other".to_owned(), json!({})), (name.to_owned(), schema)];
            let (found, arguments) = call(step, "/w/", &declared).unwrap();
            assert_eq!(found, name);
            serde_json::from_str::<Value>(&arguments).unwrap()
        };
        let plain = json!({"properties": {
            "file_path": {"type": "string"}, "old_string": {"type": "string"},
            "new_string": {"type": "string"}, "replace_all": {"type": "boolean"},
        }, "required": ["file_path", "old_string", "new_string"]});
        assert_eq!(
            made(&edit, "Edit", plain),
            json!({"file_path": "/w/a.txt", "old_string": "x", "new_string": "y"})
        );
        let list = json!({"properties": {"path": {"type": "string"}, "edits": {
            "type": "array",
            "items": {"properties": {"oldText": {"type": "string"}, "newText": {"type": "string"}}},
        }}, "required": ["path", "edits"]});
        assert_eq!(
            made(&edit, "edit", list),
            json!({"path": "/w/a.txt", "edits": [{"oldText": "x", "newText": "y"}]})
        );
        let words = json!({"properties": {
            "command": {"type": "ARRAY"}, "is_background": {"type": "BOOLEAN"},
        }, "required": ["command", "is_background"]});
        assert_eq!(
            made(&run, "shell", words),
            json!({"command": ["bash", "-lc", "ls"], "is_background": false})
        );
        assert_eq!(call(&run, "/w", &[("read".into(), json!({}))]), None);
    }

    #[test]
    fn one_tool_patches_and_a_command_reads() {
        let patch = |step: &TaskCall, schema: Value| {
            let declared = [("apply_patch".to_owned(), schema)];
            let (_, arguments) = call(step, "/w", &declared).unwrap();
            let read: Value = serde_json::from_str(&arguments).unwrap();
            read["input"].as_str().unwrap().to_owned()
        };
        let (old, new) = ("x\n".into(), "x\ny\n".into());
        let edit = TaskCall::Edit { path: "a.txt".into(), old, new };
        let wanted = "*** Begin Patch\n*** Update File: a.txt\n@@\n-x\n+x\n+y\n*** End Patch";
        assert_eq!(patch(&edit, Value::Null), wanted);
        let schema = json!({"properties": {"input": {"type": "string"}}, "required": ["input"]});
        assert_eq!(patch(&edit, schema), wanted);
        let write = TaskCall::Write { path: "b.txt".into(), content: "1\n".into() };
        let wanted = "*** Begin Patch\n*** Add File: b.txt\n+1\n*** End Patch";
        assert_eq!(patch(&write, Value::Null), wanted);

        let schema = json!({"properties": {"cmd": {"type": "string"}}});
        let declared = [("exec_command".to_owned(), schema.clone())];
        let (_, arguments) = call(&write, "/w", &declared).unwrap();
        assert!(arguments.starts_with(r#"{"cmd":"apply_patch <<'EOF'\n*** Begin"#), "{arguments}");
        let read = TaskCall::Read { path: "a.txt".into() };
        let (name, arguments) = call(&read, "/w", &[("exec_command".into(), schema)]).unwrap();
        assert_eq!((&*name, &*arguments), ("exec_command", r#"{"cmd":"cat a.txt"}"#));
    }
}
