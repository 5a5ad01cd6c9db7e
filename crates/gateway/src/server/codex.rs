//! The list of models that Codex reads: not only their names, but how to work with each.

use serde_json::{Value, json};
use steadfast_chat::{ChatRequest, ModelFacts};

use crate::stack::Gateway;

/// The least that Codex starts a conversation with: it asks for them with each model, in its own list or another's.
const INSTRUCTIONS: &str = include_str!("../../data/codex_instructions.md");

/// How much of a tool's output Codex keeps of one call: what its own list says of every model, in tokens.
const TOOL_OUTPUT: u64 = 10_000;

/// What the list has of `names`: fields that Codex 0.171 does not read an entry without, and what is known here. A
/// window is that of the provider which would be asked now: Codex compacts by itself at nine tenths of it.
pub(super) fn list(gateway: &Gateway, names: &[String]) -> Value {
    let chat = names.iter().filter(|name| !name.contains("embed"));
    let models: Vec<Value> = chat.enumerate().map(|(n, name)| model(gateway, name, n)).collect();
    json!({ "models": models })
}

fn model(gateway: &Gateway, name: &str, priority: usize) -> Value {
    let asked = gateway.alias(name).unwrap_or(name);
    let request = ChatRequest::user("").with_model(asked);
    let next = gateway.route(&request).next_target(&request).profile;
    let sent = next.target.model().unwrap_or(asked);
    let efforts = ModelFacts::of(sent).map_or(&[][..], |facts| &facts.efforts);
    let levels = efforts.iter().map(|effort| json!({"effort": effort, "description": effort}));
    json!({
        "slug": name,
        "display_name": name,
        "description": (sent != name).then(|| format!("{sent} of {}", next.target.provider())),
        "base_instructions": INSTRUCTIONS,
        "context_window": gateway.window(&next),
        "input_modalities": if next.can.vision { &["text", "image"][..] } else { &["text"] },
        "supported_reasoning_levels": levels.collect::<Vec<_>>(),
        "supports_reasoning_summaries": !efforts.is_empty(),
        "supports_parallel_tool_calls": true,
        "support_verbosity": false,
        "shell_type": "default",
        // A custom tool, which is a function where there is none.
        "apply_patch_tool_type": "freeform",
        "truncation_policy": {"mode": "tokens", "limit": TOOL_OUTPUT},
        "experimental_supported_tools": [],
        "visibility": "list",
        "supported_in_api": true,
        "priority": priority,
        "upgrade": null,
    })
}
