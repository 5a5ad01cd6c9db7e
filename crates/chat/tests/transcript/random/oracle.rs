//! A strict provider, to check repairs against.

use steadfast_chat::{ChatRequest, Part, Role};
use steadfast_core::Dialect;

/// A message on the wire, as far as calls and results are concerned.
#[derive(Debug)]
pub(super) struct Wire {
    is_model: bool,
    items: Vec<Item>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item {
    Call(Ref),
    Result(Ref),
    Other,
}

/// A call, by id and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ref {
    id: String,
    /// A result may leave it out: the encoder has it from the call.
    name: Option<String>,
}

/// The simplest encoder: instructions are moved out or become messages of the user; neighbours are
/// joined, or every result is a message.
pub(super) fn encode(
    request: &ChatRequest,
    dialect: Dialect,
    moves_instructions: bool,
) -> Vec<Wire> {
    let mut wire: Vec<Wire> = Vec::new();
    for message in request.messages.iter() {
        let is_model = message.role() == Role::Assistant;
        if message.role() == Role::System && moves_instructions {
            continue;
        }
        let item = |part: &Part| match part {
            Part::ToolCall(call) => {
                Item::Call(Ref { id: call.id.clone(), name: Some(call.name.clone()) })
            }
            Part::ToolResult(result) => {
                Item::Result(Ref { id: result.id.clone(), name: result.name.clone() })
            }
            _ => Item::Other,
        };
        let items: Vec<Item> = message.parts().iter().map(item).collect();
        if matches!(dialect, Dialect::OpenAi | Dialect::Responses) {
            if is_model {
                wire.push(Wire { is_model, items });
            } else {
                wire.extend(items.into_iter().map(|item| Wire { is_model, items: vec![item] }));
            }
        } else {
            match wire.last_mut() {
                Some(last) if last.is_model == is_model => last.items.extend(items),
                _ => wire.push(Wire { is_model, items }),
            }
        }
    }
    wire
}

fn calls(items: &[Item]) -> Vec<&Ref> {
    items
        .iter()
        .filter_map(|item| if let Item::Call(call) = item { Some(call) } else { None })
        .collect()
}

fn results(items: &[Item]) -> Vec<&Ref> {
    items
        .iter()
        .filter_map(|item| if let Item::Result(result) = item { Some(result) } else { None })
        .collect()
}

fn sorted_ids(refs: &[&Ref]) -> Vec<String> {
    let mut ids: Vec<_> = refs.iter().map(|call| call.id.clone()).collect();
    ids.sort_unstable();
    ids
}

/// Whether Gemini takes this result for that of this call: by id, which may be left out, and by name,
/// which an encoder finds by the id.
fn answers(call: &Ref, result: &Ref) -> bool {
    let id = result.id.is_empty() || result.id == call.id;
    let name = match &result.name {
        Some(_) => result.name == call.name,
        None => !result.id.is_empty(),
    };
    id && name
}

/// Whether a strict provider accepts the pairs; independent of the code under test.
pub(super) fn accepts(wire: &[Wire], dialect: Dialect) -> Result<(), String> {
    let mut due: Vec<&Ref> = Vec::new();
    for (at, turn) in wire.iter().enumerate() {
        let refuse = |why: &str| Err(format!("{why} at {at}: {wire:#?}"));
        let results = results(&turn.items);
        if turn.is_model {
            if !due.is_empty() {
                return refuse("calls not answered");
            }
            if !results.is_empty() {
                return refuse("results in the model's message");
            }
            due = calls(&turn.items);
            continue;
        }
        if !calls(&turn.items).is_empty() {
            return refuse("the user calls");
        }
        match dialect {
            Dialect::OpenAi | Dialect::Responses => match results.first() {
                Some(result) => match due.iter().position(|call| call.id == result.id) {
                    Some(call) => drop(due.remove(call)),
                    None => return refuse("a result of nothing"),
                },
                None if !due.is_empty() => return refuse("a text before results"),
                None => {}
            },
            Dialect::Gemini => {
                let fit = results.iter().zip(&due).all(|(result, call)| answers(call, result));
                if results.len() != due.len() || !fit {
                    return refuse("results are not those of the calls in their order");
                }
                due.clear();
            }
            _ => {
                if sorted_ids(&results) != sorted_ids(&std::mem::take(&mut due)) {
                    return refuse("results are not those of the calls");
                }
                if results.len() != self::results(&turn.items[..results.len()]).len() {
                    return refuse("a text before results");
                }
            }
        }
    }
    if due.is_empty() { Ok(()) } else { Err(format!("calls not answered at the end: {wire:#?}")) }
}
