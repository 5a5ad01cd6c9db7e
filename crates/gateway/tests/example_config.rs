//! The configurations in the documentation are valid, and `check` prints what the page shows.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod reference;

use std::path::Path;

use steadfast_gateway::{
    config::{Config, Source},
    stack::Report,
};

const PAGE: &str = include_str!("../../../docs/gateway.md");

/// The marks on the page around the part that is generated from the types of the configuration.
const MADE: (&str, &str) =
    ("<!-- Made from the types of the configuration. -->\n\n", "<!-- End of what is made. -->");

/// The example of the repository.
fn example() -> (String, Config, Source) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/steadfast.toml");
    let source = Source::file(&path).unwrap();
    let config = source.parse().unwrap();
    (std::fs::read_to_string(path).unwrap(), config, source)
}

/// The first fenced block of the page that begins with `opening`.
fn block(opening: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(opening).unwrap_or_else(|| panic!("no {opening} on the page"));
    rest.split_once("\n```").map_or(rest, |(block, _)| block)
}

/// The keys of `table`, such as `retry.base_ms`; those of an array's tables are under its name.
fn keys(table: &toml::Table, under: &str, found: &mut Vec<String>) {
    for (name, value) in table {
        let key = if under.is_empty() { name.clone() } else { format!("{under}.{name}") };
        match value {
            toml::Value::Table(inner) if has_own_keys(&key) => keys(inner, &key, found),
            toml::Value::Array(items) if items.iter().all(toml::Value::is_table) => {
                items
                    .iter()
                    .filter_map(toml::Value::as_table)
                    .for_each(|item| keys(item, &key, found));
            }
            _ => found.push(key),
        }
    }
}

/// Maps, whose keys the operator chooses, count as values here.
fn has_own_keys(key: &str) -> bool {
    let maps = ["providers.models", "providers.downgrades", "providers.headers"];
    let spend = ["spend_limit.tenants", "spend_limit.keys", "spend_limit.prices"];
    let of_a_route = key.starts_with("routes.") && key.matches('.').count() > 1;
    !maps.contains(&key)
        && !spend.contains(&key)
        && !of_a_route
        && !["aliases", "recovery.reasons", "compaction.summariser"].contains(&key)
}

#[test]
fn the_example_is_accepted() {
    let (_, config, source) = example();
    config.validate(&source).unwrap();
    let report = Report::of(&config, &source).unwrap();
    assert!(report.lines.iter().any(|line| line.key == "failover.chains.vision"));
    assert_eq!(report.without_effect, [""; 0]);
}

#[test]
fn every_key_of_the_example_is_on_the_page() {
    let mut found = Vec::new();
    keys(&example().0.parse().unwrap(), "", &mut found);
    assert!(found.len() > 50, "the example is to be complete, it has {}", found.len());
    for key in found {
        let Some((section, name)) = key.rsplit_once('.') else {
            assert!(PAGE.contains(&format!("### `[{key}]`")), "no section `{key}` on the page");
            continue;
        };
        let title = match section {
            _ if section.starts_with("routes.") => "### `[routes.NAME]`".to_owned(),
            "tenants" | "providers" | "guard.tools" => format!("### `[[{section}]]`"),
            _ => format!("### `[{section}]`"),
        };
        let (_, rest) = PAGE.split_once(&title).unwrap_or_else(|| panic!("no {title} on the page"));
        let table = rest.split("\n### ").next().unwrap_or(rest);
        assert!(table.contains(&format!("`{name}`")), "{title} says nothing of `{name}`");
    }
}

#[test]
fn the_page_shows_what_check_prints_and_has_all_keys() {
    let source = Source::text(block("```toml\n"));
    let report = Report::of(&source.parse().unwrap(), &source).unwrap().to_string();
    let shown = block("$ steadfast check --config minimal.toml\n");
    let (before, rest) = PAGE.split_once(MADE.0).unwrap();
    let (_, after) = rest.split_once(MADE.1).unwrap();
    let page = [before, MADE.0, &reference::reference(), MADE.1, after].concat();
    let page = page.replace(shown.trim_end(), report.trim_end());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/gateway.md");
        std::fs::write(path, page).unwrap();
    } else {
        assert!(page == PAGE, "docs/gateway.md is stale; run this test with UPDATE_DOCS=1");
    }
}
