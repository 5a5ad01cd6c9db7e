//! Which thinking of a request its provider accepts, and which it wrote that is missing.

use std::sync::{Arc, LazyLock, atomic::Ordering};

use steadfast_chat::{
    ChatRequest, Message, Part, Role, ThinkingConfig,
    transcript::{TranscriptRules, keep_thinking, open_loop},
};
use steadfast_core::Dialect;

use super::{
    memory::{Block, Issuer, Memory},
    prefix::{AnswerDigest, PrefixDigest},
};

/// The rules of the dialect that signs thinking.
static RULES: LazyLock<TranscriptRules> =
    LazyLock::new(|| TranscriptRules::for_dialect(Dialect::Anthropic));

/// What a request lost and got back, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) dropped: usize,
    pub(super) returned: usize,
}

/// A block of thinking that a request has, or could have, in the order of the conversation.
struct Candidate {
    /// The index of its message.
    message: usize,
    /// Its index there, where the request has it.
    part: usize,
    /// Where it is signed.
    id: Option<u64>,
    /// What is known of it, where that holds.
    block: Option<Arc<Block>>,
    /// The part, where the request does not have it.
    missing: Option<Part>,
    keep: bool,
}

/// Which block may come before those that are kept.
enum Before {
    /// Any.
    Any,
    /// Any that the request has: nothing is known of the one after it.
    Sent,
    /// This one.
    Block(u64),
    /// None.
    Nothing,
}

/// Takes out of `request` what `issuer` would refuse, and gives it back what it wrote.
///
/// What is refused was written by another model, or behind something else than it is now; unless both requests
/// are as their caller wrote them: then it is the caller's own edit, which not every account and model refuses.
/// Each block names the one before it, so what is kept is one unbroken row, up to the last that is valid.
pub(super) fn select(memory: &Memory, issuer: Issuer, request: &mut ChatRequest) -> Changed {
    if memory.is_empty() {
        return Changed::default();
    }
    let signs = memory.signs(issuer);
    if !signs && !request.messages.iter().flat_map(Message::parts).any(Part::is_thinking) {
        return Changed::default();
    }
    let untouched = request.unchanged_body().is_some();
    let (mut candidates, lost) = candidates(memory, issuer, signs, untouched, request);
    let superseded = drop_superseded(&mut candidates, request);
    let is_callers = |one: &Candidate| {
        one.keep && one.missing.is_none() && one.block.as_ref().is_none_or(|block| block.untouched)
    };
    if untouched && candidates.iter().all(is_callers) && (lost.is_empty() || !signs) {
        // Another model may have begun the tool loop, though: with a budget the first step has to think.
        if signs && matches!(request.params.thinking, Some(ThinkingConfig::Budget(_))) {
            keep_thinking(request, &RULES, |_, _| true);
        }
        return Changed { dropped: superseded, returned: 0 };
    }
    let open = open_loop(request, &RULES);
    let is_open = |one: &Candidate| open.contains(&one.message);
    let drop_open = |candidates: &mut [Candidate]| {
        candidates.iter_mut().filter(|one| is_open(one)).for_each(|one| one.keep = false);
    };
    // A tool loop has all of its thinking or none.
    if lost.iter().any(|message| open.contains(message)) {
        drop_open(&mut candidates);
    }
    keep_row(&mut candidates, memory.policy.max_returned);
    if candidates.iter().any(|one| is_open(one) && !one.keep) {
        drop_open(&mut candidates);
    }
    candidates.retain(|one| one.keep || one.missing.is_none());
    let returned = give_back(&mut candidates, request);
    let mut kept = candidates.iter().map(|one| one.keep);
    let dropped = keep_thinking(request, &RULES, |_, _| kept.next().unwrap_or(true));
    Changed { dropped: dropped + superseded, returned }
}

/// All thinking of the model's messages, and what is missing in those that are not as their caller wrote them;
/// and the messages with a call whose thinking is neither there nor can be put back.
fn candidates(
    memory: &Memory,
    issuer: Issuer,
    signs: bool,
    untouched: bool,
    request: &ChatRequest,
) -> (Vec<Candidate>, Vec<usize>) {
    let (mut found, mut lost) = (Vec::new(), Vec::new());
    let mut prefix = PrefixDigest::new(&memory.hasher);
    for (index, message) in request.messages.iter().enumerate() {
        if message.role() == Role::Assistant {
            let here = prefix.get();
            let candidate = |(at, part): (usize, &Part)| {
                let id = memory.id(part);
                let block = id.and_then(|id| memory.block(issuer, id));
                let keep = match (&id, &block) {
                    // Without a signature it is no model's who signs its own.
                    (None, _) => !signs,
                    (Some(_), None) => true,
                    (Some(_), Some(block)) => {
                        !block.refused.load(Ordering::Relaxed)
                            && block.issuer == issuer.issuer
                            && (block.prefix == here || (block.untouched && untouched))
                    }
                };
                let block = block.filter(|block| block.prefix == here);
                Candidate { message: index, part: at, id, block, missing: None, keep }
            };
            let sent = found.len();
            let parts = message.parts().iter().enumerate();
            found.extend(parts.filter(|(_, part)| part.is_thinking()).map(candidate));
            if found.len() == sent && signs && message.raw(Dialect::Anthropic).is_none() {
                let answer = AnswerDigest::of(&memory.hasher, message);
                for part in memory.answer(issuer, here, answer).unwrap_or_default() {
                    let mut one = candidate((0, &part));
                    one.keep &= one.block.is_some();
                    one.missing = Some(part);
                    found.push(one);
                }
            }
            let is_lost = |block: u64| !found[sent..].iter().any(|one| one.id == Some(block));
            let mut calls = message.tool_calls();
            if signs
                && calls.any(|call| memory.thought_before(issuer, &call.id).is_some_and(is_lost))
            {
                lost.push(index);
            }
        }
        prefix.add(message);
    }
    (found, lost)
}

/// Drops the thinking of a stream that broke behind it, where that of the stream which went on is in the same
/// message: both were written at the same point, and the rest of the answer follows the second. How many blocks.
fn drop_superseded(candidates: &mut Vec<Candidate>, request: &mut ChatRequest) -> usize {
    let is_superseded = |index: usize| {
        let one = &candidates[index];
        let later = candidates[index + 1..].iter().take_while(|later| later.message == one.message);
        one.missing.is_none()
            && later.filter_map(|later| later.block.as_ref()).any(|later| {
                match (&one.id, &one.block) {
                    (None, _) => true,
                    (Some(_), Some(block)) => block.before == later.before,
                    (Some(_), None) => false,
                }
            })
    };
    let dropped: Vec<usize> = (0..candidates.len()).filter(|index| is_superseded(*index)).collect();
    for index in dropped.iter().rev() {
        let Candidate { message, part, .. } = candidates.remove(*index);
        request.messages.make_mut()[message].parts_mut().remove(part);
    }
    dropped.len()
}

/// Keeps of the candidates one row, in which each block is the one before the next when that was written, with
/// at most `room` bytes that the request does not have.
fn keep_row(candidates: &mut [Candidate], mut room: usize) {
    let mut before = Before::Any;
    for one in candidates.iter_mut().rev().filter(|one| one.keep) {
        let size = one.missing.as_ref().map_or(0, Memory::size);
        if size > room {
            (one.keep, room) = (false, 0);
            continue;
        }
        one.keep = match before {
            Before::Any => true,
            Before::Sent => one.missing.is_none(),
            Before::Block(id) => one.id == Some(id),
            Before::Nothing => false,
        };
        if one.keep {
            room -= size;
            before = match &one.block {
                Some(block) if block.before == 0 => Before::Nothing,
                Some(block) => Before::Block(block.before),
                None => Before::Sent,
            };
        }
    }
}

/// Puts what is missing in front of its message; how many blocks.
fn give_back(candidates: &mut [Candidate], request: &mut ChatRequest) -> usize {
    let mut returned = 0;
    // From behind, so that the first comes first.
    for one in candidates.iter_mut().rev() {
        let Some(part) = one.missing.take() else { continue };
        request.messages.make_mut()[one.message].parts_mut().insert(0, part);
        returned += 1;
    }
    returned
}

/// The last thinking block of a request; 0 without one.
pub(super) fn last(memory: &Memory, messages: &[Message]) -> u64 {
    let parts = messages.iter().rev().filter(|message| message.role() == Role::Assistant);
    let mut thinking =
        parts.flat_map(|message| message.parts().iter().rev()).filter(|part| part.is_thinking());
    thinking.next().and_then(|part| memory.id(part)).unwrap_or(0)
}
