//! A part of `cargo xtask docs`: the page of events and steps names all that the layers report, and
//! nothing else.
//!
//! The names are read from the text of the sources, in the forms in which they are written there;
//! see [`events`] and [`steps`]. A name in another form is reported as one that nothing emits.

use std::collections::BTreeSet;

use crate::{words, workspace};

const PAGE: &str = "docs/events.md";

/// Compares the page with the sources of the crates, both ways.
pub(crate) fn run() -> Result<(), String> {
    let root = workspace::root();
    let page = workspace::read(&root.join(PAGE))?;
    let named: BTreeSet<&str> = page.split('`').skip(1).step_by(2).collect();
    let mut files = Vec::new();
    words::collect(&root.join("crates"), &mut files)?;
    // What `core` has of them are examples.
    files.retain(|file| !file.starts_with(root.join("crates/core")));
    let mut wrong = Vec::new();
    let mut reported = BTreeSet::new();
    for file in files.iter().filter(|file| file.iter().any(|part| part == "src")) {
        let text = workspace::read(file)?;
        let layer = file.strip_prefix(root.join("crates")).ok().and_then(|path| path.iter().next());
        let layer = layer.and_then(|layer| layer.to_str()).unwrap_or_default();
        let steps = steps(&text).into_iter().map(|action| format!("{layer}.{action}"));
        for name in events(&text).into_iter().chain(steps) {
            if !named.contains(&*name) {
                wrong.push(format!(
                    "{PAGE}: there is no `{name}`, which {} reports",
                    file.display()
                ));
            }
            reported.insert(name);
        }
    }
    for name in named.iter().filter(|name| is_ours(name) && !reported.contains(**name)) {
        wrong.push(format!("{PAGE}: nothing emits `{name}`"));
    }
    println!("== docs: {} events and steps, {} wrong", reported.len(), wrong.len());
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// The names that a source file gives its events: its literals of that form, and the names that a
/// macro makes with `concat!("steadfast::LAYER::", $action)`, where the action is the first literal
/// of each `event!`.
fn events(source: &str) -> Vec<String> {
    let written = source.split('"').filter(|text| text.starts_with("steadfast::"));
    let mut names: Vec<String> = written.map(str::to_owned).collect();
    let prefix = source.split_once("concat!(\"steadfast::");
    if let Some((layer, _)) = prefix.and_then(|(_, rest)| rest.split_once("::\"")) {
        let actions = source.split("event!(").skip(1).filter_map(|call| call.split('"').nth(1));
        names.extend(actions.map(|action| format!("steadfast::{layer}::{action}")));
    }
    names.retain(|name| is_ours(name));
    names
}

/// The actions of the steps that a source file makes: the last literal of
/// `Step::new(LAYER, "action")` and of `record(..., "action", ||`, the first of `.step("action"`.
/// Where `Step::new` is given a variable `action`, that was selected before: each word that is the
/// value of a block in that file is an action.
fn steps(source: &str) -> Vec<&str> {
    let made = source.split("Step::new(").skip(1).filter_map(|rest| rest.split(')').next());
    let made = made.filter_map(|arguments| arguments.strip_suffix('"')?.rsplit('"').next());
    let recorded = source.split("record(").skip(1).filter_map(|rest| rest.split("||").next());
    let recorded = recorded.filter_map(|start| start.strip_suffix("\", ")?.rsplit('"').next());
    let named = source.split(".step(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let mut actions: Vec<&str> = made.chain(recorded).chain(named).collect();
    if source.contains(", action)") {
        let parts: Vec<&str> = source.split('"').collect();
        let values = parts.windows(2).filter(|pair| pair[1].trim_start().starts_with('}'));
        actions.extend(values.map(|pair| pair[0]));
    }
    actions.retain(|action| is_word(action));
    actions
}

/// The name of an event, or of a step: `layer.action`.
fn is_ours(name: &str) -> bool {
    match name
        .strip_prefix("steadfast::")
        .map_or_else(|| name.split_once('.'), |rest| rest.split_once("::"))
    {
        Some((layer, action)) => is_word(layer) && is_word(action),
        None => false,
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_events_are_found() {
        let source = r#"event!(name: "steadfast::a::b_c", target: "steadfast::a"); x(name: "else")
            opened!("steadfast::a::d", WARN)"#;
        assert_eq!(events(source), ["steadfast::a::b_c", "steadfast::a::d"]);
        let source = r#"tracing::event!(name: concat!("steadfast::e::", $action));
            event!(about, INFO "f_g" "text", tokens); event!(name: "steadfast::e::h")"#;
        assert_eq!(events(source), ["steadfast::e::h", "steadfast::e::f_g"]);
        assert!(is_ours("retry.gave_up") && !is_ours("steadfast::retry") && !is_ours("a.b.c"));
    }

    #[test]
    fn the_actions_of_steps_are_found() {
        let source = r#"Step::new(LAYER, "a_b").with(x); about.step("c", || d);
            record(context, target, "e", || f); log.record(|| Step::new(LAYER, "g"));
            if h { "else" }"#;
        assert_eq!(steps(source), ["a_b", "g", "e", "c"]);
        let source = r#"let action = if a { "b" } else { "c_d" }; Step::new("x", action)"#;
        assert_eq!(steps(source), ["b", "c_d"]);
    }
}
