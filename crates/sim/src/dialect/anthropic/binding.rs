//! What a thinking block is bound to: everything before it in the request that it was made for, and the
//! thinking block before it.
//!
//! The newest accounts refuse a block whose prefix is another one: the system prompt, the tools and the
//! messages, without thinking and without cache marks. Thinking may be left out from the beginning of the
//! conversation or altogether, but not from its middle.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::errors::invalid;
use super::turns::{At, Block, Turn, turns};
use crate::dialect::{Check, Refusal, items};
use crate::hash::{Binding, short};

/// The prefix of the next block, as it grows.
#[derive(Clone)]
pub(crate) struct Prefix {
    hash: Sha256,
    /// Of the thinking block before.
    before: [u8; 16],
}

impl Prefix {
    fn new(body: &Value) -> Self {
        let mut prefix = Self { hash: Sha256::new(), before: [0; 16] };
        match &body["system"] {
            Value::String(text) => prefix.text(text),
            system => items(system).iter().for_each(|block| prefix.block(Block::Typed(block))),
        }
        prefix.part("tools");
        items(&body["tools"]).iter().for_each(|tool| prefix.value(tool));
        prefix
    }

    /// Behind the whole of a request: where its answer begins.
    pub(crate) fn of_answer(body: &Value) -> Self {
        let mut prefix = Self::new(body);
        let turns = turns(items(&body["messages"]));
        for turn in &turns {
            prefix.turn(turn.user);
            turn.blocks.iter().for_each(|(_, block)| prefix.pass(*block));
        }
        if turns.last().is_none_or(|turn| turn.user) {
            prefix.turn(false);
        }
        prefix
    }

    /// What a block made here is bound to.
    pub(crate) fn binding(&self) -> Binding {
        let digest = self.hash.clone().finalize();
        let mut prefix = [0; 16];
        prefix.copy_from_slice(&digest[..16]);
        Binding { prefix, before: self.before }
    }

    fn turn(&mut self, user: bool) {
        self.part(if user { "user" } else { "assistant" });
    }

    fn part(&mut self, text: &str) {
        self.hash.update((text.len() as u64).to_le_bytes());
        self.hash.update(text);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.part("text");
        self.part(text);
    }

    /// A thinking block with this signature or data.
    pub(crate) fn thought(&mut self, signature: &str) {
        self.before = short(signature.as_bytes());
    }

    pub(crate) fn call(&mut self, id: &str, name: &str, input: &Value) {
        ["tool_use", id, name].into_iter().for_each(|text| self.part(text));
        self.value(input);
    }

    fn pass(&mut self, block: Block<'_>) {
        match block.kind() {
            "thinking" => self.thought(block.str("signature")),
            "redacted_thinking" => self.thought(block.str("data")),
            _ => self.block(block),
        }
    }

    fn block(&mut self, block: Block<'_>) {
        match (block, block.kind()) {
            (_, "text") => self.text(block.text().unwrap_or_default()),
            (Block::Typed(value), "tool_use") => {
                self.call(block.str("id"), block.str("name"), &value["input"]);
            }
            (Block::Typed(value), "tool_result") => {
                ["tool_result", block.str("tool_use_id")]
                    .into_iter()
                    .for_each(|text| self.part(text));
                match &value["content"] {
                    Value::String(text) => self.text(text),
                    content => {
                        items(content).iter().for_each(|part| self.block(Block::Typed(part)));
                    }
                }
                self.part(if value["is_error"] == true { "error" } else { "" });
            }
            (Block::Typed(value), _) => self.value(value),
            (Block::Plain(text), _) => self.text(text),
        }
    }

    /// JSON, whatever the order of its keys, without cache marks.
    fn value(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => {
                let mut fields: Vec<_> =
                    fields.iter().filter(|(key, _)| *key != "cache_control").collect();
                fields.sort_by_key(|(key, _)| *key);
                self.part("{");
                for (key, value) in fields {
                    self.part(key);
                    self.value(value);
                }
                self.part("}");
            }
            Value::Array(list) => {
                self.part("[");
                list.iter().for_each(|value| self.value(value));
                self.part("]");
            }
            leaf => self.part(&leaf.to_string()),
        }
    }
}

/// Refuses the first block whose prefix is not the one it was made with.
pub(crate) fn check(check: &Check<'_>, turns: &[Turn<'_>]) -> Result<(), Refusal> {
    let behavior = &check.body["thinking"]["block_binding"]["prefix_mismatch_behavior"];
    if !check.bound_thinking || behavior == "drop_block" {
        return Ok(());
    }
    let mut prefix = Prefix::new(check.body);
    let mut first = true;
    for turn in turns {
        prefix.turn(turn.user);
        for (at, block) in &turn.blocks {
            if block.is_thinking() {
                let bound = bound(check, *block);
                let now = prefix.binding();
                let follows = |bound: Binding| first || bound.before == now.before;
                if bound.is_none_or(|bound| bound.prefix != now.prefix || !follows(bound)) {
                    return Err(other_conversation(*at, block.kind()));
                }
                first = false;
            }
            prefix.pass(*block);
        }
    }
    Ok(())
}

fn bound(check: &Check<'_>, block: Block<'_>) -> Option<Binding> {
    match block.kind() {
        "thinking" => check.signer.bound(block.str("thinking"), block.str("signature")),
        _ => check.signer.enclosed(block.str("data")),
    }
}

fn other_conversation(at: At, kind: &str) -> Refusal {
    let key = if kind == "thinking" { "signature" } else { "data" };
    invalid(format!(
        "messages.{}.content.{}: Invalid `{key}` in `{kind}` block. The block is bound to a different \
         conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to \
         \"drop_block\". That setting requires the `thinking-binding-controls-2026-08-01` value in the \
         `anthropic-beta` header.",
        at.message, at.block
    ))
}
