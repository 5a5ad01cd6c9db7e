//! Thinking that a provider accepts only where it was made: what was issued by whom, and behind what.
//!
//! Anthropic's newest accounts bind each thinking block to the exact messages before it. A layer that edits a
//! history drops what it unbinds in the same step; this layer, next to the client, sees what is really sent
//! and what the provider signs for it, and so also what no other layer can know: that an answer was made
//! behind advice or a retry's message which the caller does not have, that a compacted history is sent as it
//! was before, or that a conversation is back at the provider which began it.

mod answer;
mod fleet;
mod layer;
mod memory;
mod prefix;
mod select;
#[cfg(feature = "shared")]
mod shared;

pub use self::{
    answer::ThinkingEvents,
    layer::{
        ThinkingFuture, ThinkingMemory, ThinkingMemoryHandle, ThinkingMemoryLayer,
        ThinkingMemorySnapshot,
    },
    memory::ThinkingPolicy,
};
