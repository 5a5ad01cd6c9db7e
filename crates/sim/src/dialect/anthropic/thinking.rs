//! Thinking: its parameters, its signatures, its position in an open tool loop.

use serde_json::Value;

use super::binding;
use super::errors::invalid;
use super::read::enabled;
use super::turns::Turn;
use crate::dialect::{Check, Refusal};

/// The least budget.
const BUDGET_MIN: u64 = 1_024;
const DOCS: &str = "https://docs.claude.com/en/docs/build-with-claude/extended-thinking";

pub(crate) fn check(check: &Check<'_>, turns: &[Turn<'_>]) -> Result<(), Refusal> {
    parameters(check)?;
    for (at, block) in turns.iter().filter(|t| !t.user).flat_map(|t| t.blocks.iter().copied()) {
        let (what, key, genuine) = match block.kind() {
            "thinking" => (
                "thinking",
                "signature",
                check.signer.bound(block.str("thinking"), block.str("signature")).is_some(),
            ),
            "redacted_thinking" => {
                ("redacted_thinking", "data", check.signer.enclosed(block.str("data")).is_some())
            }
            _ => continue,
        };
        if !genuine {
            return Err(invalid(format!(
                "messages.{}.content.{}: Invalid `{key}` in `{what}` block",
                at.message, at.block
            )));
        }
    }
    open_loop(check, turns)?;
    binding::check(check, turns)
}

fn parameters(check: &Check<'_>) -> Result<(), Refusal> {
    let body = check.body;
    let thinking = &body["thinking"];
    match thinking["type"].as_str() {
        None if thinking.is_null() => return Ok(()),
        Some("disabled") => return Ok(()),
        Some("enabled" | "adaptive") => {}
        _ => {
            return Err(invalid(
                "thinking: Input tag found using 'type' does not match any of the expected tags: \
                 'adaptive', 'disabled', 'enabled'",
            ));
        }
    }
    if !check.model.thinking {
        return Err(invalid(format!("'{}' does not support thinking.", check.model.name)));
    }
    if thinking["type"] == "enabled" {
        let budget = match &thinking["budget_tokens"] {
            Value::Null => {
                return Err(invalid("thinking.enabled.budget_tokens: Field required"));
            }
            other => other.as_u64().unwrap_or_default(),
        };
        if budget < BUDGET_MIN {
            return Err(invalid(format!(
                "thinking.enabled.budget_tokens: Input should be greater than or equal to \
                 {BUDGET_MIN}"
            )));
        }
        if !check.counting && body["max_tokens"].as_u64().is_some_and(|max| max <= budget) {
            return Err(invalid(format!(
                "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our \
                 documentation at {DOCS}#max-tokens-and-context-window-size"
            )));
        }
    }
    if body["temperature"].as_f64().is_some_and(|t| (t - 1.0).abs() > f64::EPSILON) {
        return Err(invalid(format!(
            "`temperature` may only be set to 1 when thinking is enabled. Please consult our \
             documentation at \
             {DOCS}#important-considerations-when-using-extended-thinking"
        )));
    }
    if matches!(body["tool_choice"]["type"].as_str(), Some("any" | "tool")) {
        return Err(invalid("Thinking may not be enabled when tool_choice forces tool use."));
    }
    Ok(())
}

/// The tool loop that the request continues: its thinking must be sent back unchanged, or left out
/// completely.
fn open_loop(check: &Check<'_>, turns: &[Turn<'_>]) -> Result<(), Refusal> {
    let results = |turn: &Turn<'_>| turn.user && turn.has("tool_result");
    if !turns.last().is_some_and(results) {
        return Ok(());
    }
    let start = turns.iter().rposition(|turn| turn.user && !results(turn)).unwrap_or(0);
    let steps: Vec<&Turn<'_>> = turns[start..].iter().filter(|turn| !turn.user).collect();
    let thinks = |turn: &Turn<'_>| turn.blocks.iter().any(|(_, b)| b.is_thinking());
    if !steps.iter().any(|step| thinks(step)) {
        return Ok(());
    }
    for step in &steps {
        let signatures: Vec<String> = step
            .blocks
            .iter()
            .filter(|(_, block)| block.is_thinking())
            .map(|(_, block)| match block.kind() {
                "thinking" => block.str("signature").to_owned(),
                _ => block.str("data").to_owned(),
            })
            .collect();
        let mut original = Vec::new();
        let mut ours = false;
        for (_, call) in step.of_kind("tool_use") {
            if let Some(thoughts) = check.memory.thinking_before(call.str("id")) {
                ours = true;
                for thought in thoughts {
                    if !original.contains(&thought) {
                        original.push(thought);
                    }
                }
            }
        }
        if ours && original != signatures {
            let at = step.blocks.first().map(|(at, _)| *at);
            let (message, block) = at.map_or((0, 0), |at| (at.message, at.block));
            return Err(invalid(format!(
                "messages.{message}.content.{block}: `thinking` or `redacted_thinking` blocks in \
                 the latest assistant message cannot be modified. These blocks must remain as \
                 they were in the original response."
            )));
        }
    }
    match steps.first() {
        Some(first) if enabled(check.body) => match first.blocks.first() {
            Some((_, block)) if !block.is_thinking() => Err(expected(first)),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// The refusal of an assistant turn that should begin with thinking.
pub(crate) fn expected(turn: &Turn<'_>) -> Refusal {
    let (message, found) =
        turn.blocks.first().map_or((turn.last, "text"), |(at, block)| (at.message, block.kind()));
    invalid(format!(
        "messages.{message}.content.0.type: Expected `thinking` or `redacted_thinking`, but found \
         `{found}`. When `thinking` is enabled, a final `assistant` message must start with a \
         thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks). We \
         recommend you include thinking blocks from previous turns. To avoid this requirement, \
         disable `thinking`. Please consult our documentation at {DOCS}"
    ))
}
