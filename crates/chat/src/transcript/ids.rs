//! S8: ids and names.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

use super::{
    IdRules, TranscriptRule, TranscriptRules,
    draft::Draft,
    error_text,
    outcome::Findings,
    turn::{PartIndex, pair, turns},
};
use crate::{ChatRequest, Part, ToolCall, ToolResult};

/// The name of a call that came without one.
const UNNAMED: &str = "unknown_tool";

/// The bytes of a generated id; a shorter limit could not be kept.
const GENERATED_LEN: usize = "call_0123456789abcdef".len();

fn id_is_valid(rules: IdRules, id: &str) -> bool {
    rules.charset.accepts(id, rules.max_len.max(GENERATED_LEN))
}

fn name_is_valid(rules: &TranscriptRules, name: &str) -> bool {
    rules.name_charset.accepts(name, rules.name_len.max(UNNAMED.len()))
}

pub(super) fn check(request: &ChatRequest, rules: &TranscriptRules, found: &mut Findings) {
    let list = &*request.messages;
    let dialect = rules.dialect;
    let mut seen: HashSet<&str, RandomState> = HashSet::default();
    for turn in turns(list, rules.merges) {
        let pairs = pair(list, &turn);
        if rules.ids.is_some_and(|ids| !ids.unique) {
            seen.clear();
        }
        for (at, answer) in pairs.calls.iter().zip(&pairs.answers) {
            let Some(call) = at.call(list) else { continue };
            if !name_is_valid(rules, &call.name) {
                let text = error_text::bad_name(dialect, *at, rules.name_len);
                found.push(TranscriptRule::Ids, *at, text);
            }
            if let Some(ids) = rules.ids {
                if !id_is_valid(ids, &call.id) {
                    let text = error_text::bad_id(dialect, *at, &call.id, ids.max_len);
                    found.push(TranscriptRule::Ids, *at, text);
                } else if (ids.unique || pairs.calls.len() > 1) && !seen.insert(&call.id) {
                    let text = error_text::repeated_id(dialect, *at, &call.id);
                    found.push(TranscriptRule::Ids, *at, text);
                }
            }
            let Some((at, result)) = answer.and_then(|at| Some((at, at.result(list)?))) else {
                continue;
            };
            if has_wrong_id(call, result, rules) {
                found.push(TranscriptRule::Ids, at, error_text::wrong_id(dialect, at, &result.id));
            }
            if has_wrong_name(call, result, rules) {
                found.push(TranscriptRule::Ids, at, error_text::wrong_name(at, &call.name));
            }
        }
    }
}

/// Whether a result has another id than its call. It may have none where the dialect does without.
fn has_wrong_id(call: &ToolCall, result: &ToolResult, rules: &TranscriptRules) -> bool {
    result.id != call.id && (rules.ids.is_some() || !result.id.is_empty())
}

/// Whether a result has another name than its call, or none, and no id to find the name by.
fn has_wrong_name(call: &ToolCall, result: &ToolResult, rules: &TranscriptRules) -> bool {
    rules.calls_by_name
        && match &result.name {
            Some(name) => *name != call.name,
            None => result.id.is_empty() || result.id != call.id,
        }
}

/// A new id and name of a call or result.
struct Edit {
    at: PartIndex,
    id: Option<String>,
    name: Option<String>,
    what: &'static str,
}

pub(super) fn repair(draft: &mut Draft<'_>) {
    let rules = draft.rules;
    let list = &draft.messages;
    let mut ids = rules.ids.map(|ids| NewIds::new(ids, draft));
    let mut edits = Vec::new();
    for turn in turns(list, rules.merges) {
        let pairs = pair(list, &turn);
        if let Some(ids) = &mut ids {
            ids.next_batch();
        }
        for (at, answer) in pairs.calls.iter().zip(&pairs.answers) {
            let Some(call) = at.call(list) else { continue };
            let name = (!name_is_valid(rules, &call.name)).then(|| clean_name(&call.name, rules));
            let id = ids.as_mut().and_then(|ids| ids.replacement(call));
            let result = answer.and_then(|at| Some((at, at.result(list)?)));
            if let Some((at, result)) = result {
                let renamed = name.is_some() && rules.calls_by_name && result.name.is_some();
                let new_id = id.is_some() || has_wrong_id(call, result, rules);
                let new_name = renamed || has_wrong_name(call, result, rules);
                edits.push(Edit {
                    at,
                    id: new_id.then(|| id.as_ref().unwrap_or(&call.id).clone()),
                    name: new_name.then(|| name.as_ref().unwrap_or(&call.name).clone()),
                    what: "result given the id and name of its call",
                });
            }
            edits.push(Edit { at: *at, id, name, what: "call given a valid id and name" });
        }
    }
    for edit in edits.into_iter().filter(|edit| edit.id.is_some() || edit.name.is_some()) {
        match draft.part_mut(edit.at) {
            Some(Part::ToolCall(call)) => {
                replace(&mut call.id, edit.id);
                replace(&mut call.name, edit.name);
            }
            Some(Part::ToolResult(result)) => {
                replace(&mut result.id, edit.id);
                result.name = edit.name.or(result.name.take());
            }
            _ => {}
        }
        draft.record(TranscriptRule::Ids, edit.at, edit.what);
    }
}

fn replace(old: &mut String, new: Option<String>) {
    if let Some(new) = new {
        *old = new;
    }
}

/// The name with every character that is not allowed replaced, cut to length.
fn clean_name(name: &str, rules: &TranscriptRules) -> String {
    if name.is_empty() {
        return UNNAMED.to_owned();
    }
    let allowed = |c: char| u8::try_from(c).is_ok_and(|byte| rules.name_charset.allows(byte));
    name.chars()
        .map(|c| if allowed(c) { c } else { '_' })
        .take(rules.name_len.max(UNNAMED.len()))
        .collect()
}

/// Generates ids from the content of a call, so that the same call gets the same id in every turn
/// of a conversation, whatever is cut off before it.
struct NewIds {
    rules: IdRules,
    /// Every id in the request.
    taken: HashSet<String>,
    /// Ids of calls so far, in the scope in which they must differ.
    seen: HashSet<String>,
    /// How many ids each hash has made.
    generated: HashMap<u64, u64>,
}

impl NewIds {
    fn new(rules: IdRules, draft: &Draft<'_>) -> Self {
        let parts = draft.messages.iter().flat_map(|slot| slot.message.parts());
        let taken = parts.filter_map(|part| match part {
            Part::ToolCall(call) => Some(call.id.clone()),
            Part::ToolResult(result) => Some(result.id.clone()),
            _ => None,
        });
        Self { rules, taken: taken.collect(), seen: HashSet::new(), generated: HashMap::new() }
    }

    fn next_batch(&mut self) {
        if !self.rules.unique {
            self.seen.clear();
        }
    }

    /// Another id for the call, when it needs one.
    fn replacement(&mut self, call: &ToolCall) -> Option<String> {
        let valid = id_is_valid(self.rules, &call.id);
        if valid && self.seen.insert(call.id.clone()) {
            return None;
        }
        let hash = hash(&[&call.id, &call.name, &call.arguments]);
        let generated = self.generated.entry(hash).or_default();
        loop {
            let id = format!("call_{:016x}", hash.wrapping_add(*generated));
            *generated += 1;
            if self.taken.insert(id.clone()) {
                self.seen.insert(id.clone());
                return Some(id);
            }
        }
    }
}

/// FNV-1a, 64 bits: the same on every machine and in every version.
fn hash(texts: &[&str]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for text in texts {
        for byte in text.bytes().chain([0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash
}
