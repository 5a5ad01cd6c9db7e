//! S15, and S8's declared names: what is called is declared.

use std::collections::HashSet;

use serde_json::json;

use super::{Place, Rule, Rules, draft::Draft, outcome::Findings, turn::Spot, words};
use crate::{ChatRequest, Message, Part, RawJson, Tool, ToolCall, ToolChoice};

const DESCRIPTION: &str = "Used earlier in this conversation.";

pub(super) fn check(request: &ChatRequest, rules: &Rules, found: &mut Findings) {
    let mut parts = request.messages.iter().flat_map(Message::parts);
    if rules.tools_declared && request.tools.is_empty() && parts.any(is_of_tools) {
        found.push(Rule::Tools, Place::Request, words::no_tools());
    }
    if !rules.calls_by_name {
        return;
    }
    let declared = declared(&request.tools);
    if declared.is_empty() {
        return;
    }
    for (message, value) in request.messages.iter().enumerate() {
        for (part, value) in value.parts().iter().enumerate() {
            if let Part::ToolCall(ToolCall { name, .. }) = value
                && !declared.contains(name.as_str())
            {
                let words = words::undeclared(Spot { message, part }, name);
                found.part(Rule::Ids, message, part, words);
            }
        }
    }
}

fn is_of_tools(part: &Part) -> bool {
    matches!(part, Part::ToolCall(_) | Part::ToolResult(_))
}

fn declared(tools: &[Tool]) -> HashSet<&str> {
    tools.iter().filter_map(Tool::name).collect()
}

pub(super) fn mend(draft: &mut Draft<'_>) {
    let rules = draft.rules;
    let rule = if rules.tools_declared && draft.tools.is_empty() {
        Rule::Tools
    } else if rules.calls_by_name && draft.tools.iter().any(|tool| tool.name().is_some()) {
        Rule::Ids
    } else {
        return;
    };
    let mut known: HashSet<String> =
        draft.tools.iter().filter_map(Tool::name).map(str::to_owned).collect();
    let calls = draft.messages.iter().flat_map(|slot| slot.message.tool_calls());
    let missing: Vec<String> = calls
        .filter(|call| known.insert(call.name.clone()))
        .map(|call| call.name.clone())
        .collect();
    for name in &missing {
        draft.did(rule, Place::Request, format!("tool `{name}` declared"));
    }
    if missing.is_empty() {
        return;
    }
    // Nobody stands ready to run them.
    if draft.tools.is_empty() {
        draft.params.tool_choice = Some(ToolChoice::None);
    }
    draft.tools.make_mut().extend(missing.into_iter().map(|name| {
        Tool::Function {
            name,
            description: Some(DESCRIPTION.to_owned()),
            // Gemini refuses an object without properties, and takes a function without parameters.
            parameters: rules
                .tools_declared
                .then(|| RawJson::from_value(&json!({"type": "object", "properties": {}}))),
            strict: None,
            extra: None,
            dialect: None,
        }
    }));
}
