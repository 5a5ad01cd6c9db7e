//! What other processes know of thinking, as the memory has them.

use std::{fmt, future::Future, pin::Pin};

use foldhash::quality::FixedState;
use steadfast_chat::{ChatRequest, Message, Part, Role, ThinkingConfig};
use steadfast_core::{Dialect, Target, shared::SharedKey};

use super::{
    memory::{Issuer, Memory},
    prefix::{AnswerDigest, PrefixDigest},
};

/// By which digests are made that are the same in each process. Whoever finds two histories with one digest has his own
/// tenant's thinking sent where its provider refuses it.
pub(super) const HASHER: FixedState = FixedState::with_seed(0);

/// The block before the first one of a row, where that is not known: no other's id.
const UNKNOWN: u64 = u64::MAX;

/// The thinking of a conversation, as another process has it.
pub(super) type ThinkingRead = Pin<Box<dyn Future<Output = Option<ThinkingRow>> + Send>>;

/// Other processes, as a memory has them.
pub(super) trait ShareThinking: fmt::Debug + Send + Sync {
    /// By what the thinking of the conversation of `tenant` with `target` is known that has this answer last.
    fn key(&self, tenant: Option<&str>, target: &Target, last: AnswerPosition)
    -> Option<SharedKey>;

    /// Whether others have put thinking of that target, so far as is known.
    fn has(&self, target: &Target) -> bool;

    /// Asks for the thinking of a conversation.
    fn read(&self, key: SharedKey) -> Option<ThinkingRead>;

    /// Lets the others know the thinking of a conversation.
    fn put(&self, target: &Target, key: SharedKey, row: &ThinkingRow);
}

/// Where an answer is in which conversation: digests of what came before it, and of itself, the same in each process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(serde::Deserialize, serde::Serialize))]
pub(super) struct AnswerPosition {
    pub(super) prefix: u64,
    pub(super) answer: u64,
}

/// Thinking that its model takes for one row: each block was written behind the one before it.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "shared", derive(serde::Deserialize, serde::Serialize))]
pub(super) struct ThinkingRow {
    /// There was none before it.
    pub(super) is_whole: bool,
    /// What answers begin with, the last one's last.
    pub(super) answers: Vec<ThinkingOf>,
}

/// The thinking that one answer begins with.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "shared", derive(serde::Deserialize, serde::Serialize))]
pub(super) struct ThinkingOf {
    pub(super) position: AnswerPosition,
    pub(super) parts: Vec<Part>,
}

impl ThinkingRow {
    /// The row of what was sent and accepted, with at most `room` bytes. `before`: the block before this one, where that is known.
    pub(super) fn of(
        memory: &Memory,
        messages: &[Message],
        mut room: usize,
        before: impl Fn(&Part) -> Option<u64>,
    ) -> Self {
        let mut row = Self { is_whole: true, answers: Vec::new() };
        let mut prefix = PrefixDigest::new(&HASHER);
        for message in messages {
            let parts = leading(message);
            if message.role() == Role::Assistant && message.parts().iter().any(Part::is_thinking) {
                let is_known = message.parts().iter().filter(|part| part.is_thinking()).count()
                    == parts.len()
                    && parts.iter().all(|part| memory.id(part).is_some());
                if !is_known {
                    // It can not be put back where it was, so what came before is of no use.
                    row = Self::default();
                } else {
                    let position = AnswerPosition {
                        prefix: prefix.get(),
                        answer: AnswerDigest::of(&HASHER, message),
                    };
                    row.answers.push(ThinkingOf { position, parts: parts.to_vec() });
                }
            }
            prefix.add(message);
        }
        let size = |one: &ThinkingOf| one.parts.iter().map(Memory::size).sum::<usize>();
        let fits = row.answers.iter().rev().take_while(|one| {
            let size = size(one);
            let fits = size <= room;
            room = room.saturating_sub(size);
            fits
        });
        let dropped = row.answers.len() - fits.count();
        row.answers.drain(..dropped);
        let first = row.answers.first().and_then(|one| one.parts.first());
        row.is_whole &= dropped == 0 && first.is_none_or(|part| before(part) == Some(0));
        row
    }

    /// Remembers it as if it had been written to `messages` here.
    pub(super) fn restore(&self, memory: &Memory, issuer: Issuer, messages: &[Message]) {
        let mut before = if self.is_whole { 0 } else { UNKNOWN };
        let mut rest: &[ThinkingOf] = &self.answers;
        let (mut prefix, mut own) = (PrefixDigest::new(&HASHER), PrefixDigest::new(&memory.hasher));
        for message in messages.iter() {
            let position = |prefix: &PrefixDigest<'_, _>| AnswerPosition {
                prefix: prefix.get(),
                answer: AnswerDigest::of(&HASHER, message),
            };
            let is_answer = message.role() == Role::Assistant && !rest.is_empty();
            let here = is_answer.then(|| position(&prefix));
            let at = here.and_then(|here| rest.iter().position(|one| one.position == here));
            for (index, one) in rest[..at.map_or(0, |at| at + 1)].iter().enumerate() {
                for id in one.parts.iter().filter_map(|part| memory.id(part)) {
                    if Some(index) == at {
                        memory.issued(issuer, id, own.get(), before, false);
                    }
                    before = id;
                }
            }
            if let Some(at) = at {
                let calls = message.tool_calls().filter(|call| !call.id.is_empty());
                calls.for_each(|call| memory.called(issuer, &call.id, before));
                let answer = AnswerDigest::of(&memory.hasher, message);
                memory.answered(issuer, own.get(), answer, rest[at].parts.clone());
                rest = &rest[at + 1..];
            }
            prefix.add(message);
            own.add(message);
        }
    }
}

/// The thinking that a message begins with.
fn leading(message: &Message) -> &[Part] {
    let parts = message.parts();
    let count = parts.iter().take_while(|part| part.is_thinking()).count();
    &parts[..count]
}

/// Whose thinking `request` has, as other processes know it.
pub(super) fn target(request: &ChatRequest) -> Option<Target> {
    let target = request.context.target.as_ref()?;
    let model = target.model().unwrap_or(&request.model);
    Some(Target::new(target.provider()).with_model(model))
}

/// Asks other processes for the thinking of the conversation in `request`, where its last answer has none and they may have
/// some that this one does not know.
pub(super) fn read(memory: &Memory, request: &ChatRequest) -> Option<(Issuer, ThinkingRead)> {
    let fleet = memory.fleet.get()?;
    let thinks = !matches!(request.params.thinking, None | Some(ThinkingConfig::Off));
    // What its caller has written in the provider's own dialect has its thinking, or had none.
    if !thinks || request.unchanged_body().is_some() {
        return None;
    }
    let last = request.messages.iter().rposition(|one| one.role() == Role::Assistant)?;
    let (before, message) = (&request.messages[..last], &request.messages[last]);
    let raw = message.raw(Dialect::Anthropic);
    if raw.is_some() || message.parts().iter().any(Part::is_thinking) {
        return None;
    }
    let target = target(request).filter(|target| fleet.has(target))?;
    let position = AnswerPosition {
        prefix: PrefixDigest::of(&HASHER, before),
        answer: AnswerDigest::of(&HASHER, message),
    };
    let key = fleet.key(request.context.tenant(), &target, position)?;
    let issuer = memory.issuer(request);
    let prefix = PrefixDigest::of(&memory.hasher, before);
    let is_known =
        memory.answer(issuer, prefix, AnswerDigest::of(&memory.hasher, message)).is_some();
    if is_known {
        return None;
    }
    fleet.read(key).map(|read| (issuer, read))
}
