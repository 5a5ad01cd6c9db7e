//! Tools in a namespace: elsewhere, and in memory, each is a tool by itself whose name begins with the namespace's.

use serde_json::{Map, Value};
use steadfast_chat::{Extra, Tool};

use super::request_decode;
use crate::json::{Array, Fields, Object, Raw, RequestError, list, string};

/// What a tool's extra fields have of its namespace, and a call's of its name.
pub(super) const FIELD: &str = "namespace";

/// What is between the two names.
const BETWEEN: &str = "__";

/// The name of the tool `name` in `namespace` where there are none.
pub(super) fn joined(namespace: &str, name: &str) -> String {
    format!("{namespace}{BETWEEN}{name}")
}

/// The name in memory of what is called `name`, and may have a namespace among its `extra` fields.
pub(super) fn name_of_call(name: String, extra: &Extra) -> String {
    match extra.as_deref().and_then(|extra| extra.get(FIELD)).and_then(Value::as_str) {
        Some(namespace) => joined(namespace, &name),
        None => name,
    }
}

/// `name` without `namespace`.
pub(super) fn within<'n>(name: &'n str, namespace: &str) -> Option<&'n str> {
    name.strip_prefix(namespace)?.strip_prefix(BETWEEN)
}

/// The namespaces of `tools`.
pub(crate) fn names(tools: &[Tool]) -> Vec<Box<str>> {
    let mut names: Vec<Box<str>> = Vec::new();
    for namespace in tools.iter().filter_map(of_tool) {
        let name = namespace.get("name").and_then(Value::as_str).unwrap_or_default();
        if names.last().is_none_or(|last| **last != *name) {
            names.push(name.into());
        }
    }
    names
}

/// Name and description of the namespace of a tool that has one.
pub(super) fn of_tool(tool: &Tool) -> Option<&Map<String, Value>> {
    match tool {
        Tool::Function { extra, .. } => extra.as_deref()?.get(FIELD)?.as_object(),
        _ => None,
    }
}

/// The tools in the namespace `raw`; `None` where one is not known here, which only this dialect has then.
pub(super) fn tools(raw: Raw<'_>) -> Result<Option<Vec<Tool>>, RequestError> {
    let mut fields = Fields::read(raw)?;
    let name = fields.need("name", string)?;
    let description = fields.get("description", string)?;
    let mut tools = fields.need("tools", |raw| list(raw, request_decode::tool))?;
    let mut about = description.clone();
    for tool in &mut tools {
        let Tool::Function { name: own, description: text, extra, .. } = tool else {
            return Ok(None);
        };
        *own = joined(&name, own);
        // Once is enough: all of them are read.
        if let Some(about) = about.take().filter(|about| !about.is_empty()) {
            let own = text.take().unwrap_or_default();
            *text = Some(format!("{about}\n\n{own}").trim_end().to_owned());
        }
        let mut namespace = Map::new();
        namespace.insert("name".to_owned(), name.clone().into());
        namespace.insert("description".to_owned(), description.clone().into());
        extra.get_or_insert_default().insert(FIELD.to_owned(), namespace.into());
    }
    Ok((!tools.is_empty()).then_some(tools))
}

/// Writes those of `tools` that are in the namespace of the first one, each by `write`; how many they are.
pub(super) fn write<E>(
    out: &mut Array<'_>,
    tools: &[Tool],
    write: impl Fn(&Tool, &mut Array<'_>) -> Result<(), E>,
) -> Result<usize, E> {
    let Some(namespace) = tools.first().and_then(of_tool) else { return Ok(0) };
    let same = tools.iter().take_while(|tool| of_tool(tool) == Some(namespace)).count();
    let mut object: Object<'_> = out.object();
    object.put("type", FIELD);
    for (name, value) in namespace.iter().filter(|(_, value)| !value.is_null()) {
        object.put(name, value);
    }
    let mut list = object.array("tools");
    for tool in &tools[..same] {
        write(tool, &mut list)?;
    }
    Ok(same)
}
