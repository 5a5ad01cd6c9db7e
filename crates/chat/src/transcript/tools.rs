//! S15, and S8's declared names: what is called is declared.

use std::collections::HashSet;

use serde_json::json;

use super::{
    Position, TranscriptRule, TranscriptRules, draft::Draft, error_text, outcome::Findings,
    turn::parts,
};
use crate::{ChatRequest, Part, RawJson, Tool, ToolChoice};

const DESCRIPTION: &str = "Used earlier in this conversation.";

pub(super) fn check(request: &ChatRequest, rules: &TranscriptRules, found: &mut Findings) {
    let is_of_tools = |part: &Part| matches!(part, Part::ToolCall(_) | Part::ToolResult(_));
    if rules.tools_declared
        && request.tools.is_empty()
        && parts(&request.messages).any(|(_, _, part)| is_of_tools(part))
    {
        found.push(TranscriptRule::Tools, Position::Request, error_text::NO_TOOLS);
    }
    let declared: HashSet<&str> = request.tools.iter().filter_map(Tool::name).collect();
    if !rules.calls_by_name || declared.is_empty() {
        return;
    }
    for (at, _, part) in parts(&request.messages) {
        if let Part::ToolCall(call) = part
            && !declared.contains(&*call.name)
        {
            found.push(TranscriptRule::Ids, at, error_text::undeclared(at, &call.name));
        }
    }
}

pub(super) fn repair(draft: &mut Draft<'_>) {
    let rules = draft.rules;
    let rule = if rules.tools_declared && draft.tools.is_empty() {
        TranscriptRule::Tools
    } else if rules.calls_by_name && draft.tools.iter().any(|tool| tool.name().is_some()) {
        TranscriptRule::Ids
    } else {
        return;
    };
    let mut declared: HashSet<&str> = draft.tools.iter().filter_map(Tool::name).collect();
    let calls = draft.messages.iter().flat_map(|slot| slot.message.tool_calls());
    let missing: Vec<String> =
        calls.filter(|call| declared.insert(&call.name)).map(|call| call.name.clone()).collect();
    for name in &missing {
        draft.record(rule, Position::Request, format!("tool `{name}` declared"));
    }
    if missing.is_empty() {
        return;
    }
    // The caller does not run them.
    if draft.tools.is_empty() {
        draft.params.tool_choice = Some(ToolChoice::None);
    }
    // Gemini refuses an object without properties, and takes a function without parameters.
    let parameters = rules
        .tools_declared
        .then(|| RawJson::from_value(&json!({"type": "object", "properties": {}})));
    draft.tools.make_mut().extend(missing.into_iter().map(|name| Tool::Function {
        name,
        description: Some(DESCRIPTION.to_owned()),
        parameters: parameters.clone(),
        strict: None,
        custom: None,
        extra: None,
        dialect: None,
    }));
}
