//! A part of `cargo xtask docs`: the page of events and steps names all that the layers report.

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
    let mut sources = String::new();
    for file in files.iter().filter(|file| file.iter().any(|part| part == "src")) {
        let text = workspace::read(file)?;
        let layer = file.strip_prefix(root.join("crates")).ok().and_then(|path| path.iter().next());
        let layer = layer.and_then(|layer| layer.to_str()).unwrap_or_default();
        let steps = steps(&text).map(|action| format!("{layer}.{action}"));
        for name in events(&text).map(str::to_owned).chain(steps) {
            if !named.contains(&*name) {
                wrong.push(format!(
                    "{PAGE}: there is no `{name}`, which {} reports",
                    file.display()
                ));
            }
        }
        sources.push_str(&text);
    }
    for name in named.iter().filter(|name| is_ours(name)) {
        let action = name.rsplit([':', '.']).next().unwrap_or_default();
        if !sources.contains(&format!("\"{name}\"")) && !sources.contains(&format!("\"{action}\""))
        {
            wrong.push(format!("{PAGE}: nothing emits `{name}`"));
        }
    }
    println!("== docs: {} events and steps, {} wrong", named.len(), wrong.len());
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// The names that a source file gives its events.
fn events(source: &str) -> impl Iterator<Item = &str> {
    source
        .split("name: \"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .filter(|name| is_ours(name))
}

/// The actions of the steps that a source file makes, where they are written there.
fn steps(source: &str) -> impl Iterator<Item = &str> {
    let calls = source.split("Step::new(").skip(1).filter_map(|rest| rest.split(')').next());
    calls.filter_map(|arguments| arguments.strip_suffix('"')?.rsplit('"').next())
}

/// The name of an event, or of a step: `layer.action`.
fn is_ours(name: &str) -> bool {
    let word = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase())
    };
    match name
        .strip_prefix("steadfast::")
        .map_or_else(|| name.split_once('.'), |rest| rest.split_once("::"))
    {
        Some((layer, action)) => word(layer) && word(action),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_events_are_found() {
        let source =
            r#"event!(name: "steadfast::a::b_c", target: "steadfast::a"); x(name: "else")"#;
        assert_eq!(events(source).collect::<Vec<_>>(), ["steadfast::a::b_c"]);
        let source = r#"Step::new(LAYER, "a_b").with(x); Step::new("x", action)"#;
        assert_eq!(steps(source).collect::<Vec<_>>(), ["a_b"]);
        assert!(is_ours("retry.gave_up") && !is_ours("steadfast::retry") && !is_ours("a.b.c"));
    }
}
