//! The table, read once, as a tree of fields.

use std::{borrow::Cow, collections::HashMap, sync::LazyLock};

use serde::Deserialize;
use serde_json::Value;
use steadfast_chat::ChatRequest;
use steadfast_core::Dialect;

use crate::json::Fields;

/// The rows: one a line.
const ROWS: &str = include_str!("../../../data/translation.jsonl");

/// Whether a field is in requests or in answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Where {
    Request,
    Answer,
}

/// What a field is: what is in no row is refused among content, and left out and named among parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Content,
    Parameter,
}

/// What becomes of a field in one other dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// It is written in the other dialect's words.
    Translated,
    /// It is not written, and named.
    LeftOut,
    /// The target is passed over; of an answer, it fails.
    Refused,
    /// Of an answer: a figure or name of the provider's own, which is no part of the answer.
    Bookkeeping,
}

/// An outcome as it stands in a row: its name, or `{"translated": how}`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Cell {
    Name(Outcome),
    Translated(#[expect(dead_code, reason = "for the page and the tests")] HowTranslated),
}

#[derive(Deserialize)]
struct HowTranslated {
    #[expect(dead_code, reason = "for the page and the tests")]
    translated: String,
}

/// A line of the table.
#[derive(Deserialize)]
struct Line {
    dialect: Dialect,
    #[serde(rename = "where")]
    side: Where,
    field: String,
    /// The fields beneath are those beneath this field.
    like: Option<String>,
    kind: Option<Kind>,
    openai: Option<Cell>,
    anthropic: Option<Cell>,
    gemini: Option<Cell>,
    responses: Option<Cell>,
    /// Values that ask for nothing.
    #[serde(default)]
    nothing: Vec<Value>,
    /// The name by which [`Params`](steadfast_chat::Params) knows it.
    param: Option<String>,
}

impl Line {
    /// The outcomes in the order of the dialects.
    fn cells(&mut self) -> [&mut Option<Cell>; Dialect::ALL.len()] {
        [&mut self.openai, &mut self.anthropic, &mut self.gemini, &mut self.responses]
    }
}

/// A row.
pub(super) struct Row {
    pub(super) field: String,
    outcomes: [Option<Outcome>; Dialect::ALL.len()],
    pub(super) nothing: Vec<Value>,
    param: Option<String>,
}

impl Row {
    /// What becomes of it in the dialect `to`.
    pub(super) fn outcome(&self, to: Dialect) -> Outcome {
        // A row without the dialect is its own, or fails the test of the table.
        self.outcomes[column(to)].unwrap_or(Outcome::Translated)
    }
}

/// The position of a dialect among all.
fn column(dialect: Dialect) -> usize {
    dialect as usize
}

/// A place in a body, by its number in the [`Tree`].
pub(super) type At = usize;

/// The fields of the requests, or of the answers, of one dialect.
pub(super) struct Tree {
    dialect: Dialect,
    nodes: Vec<Node>,
}

/// A place in a body.
pub(super) struct Node {
    pub(super) row: Option<Row>,
    pub(super) kind: Kind,
    /// The field as it is written in the table, for those that have no row.
    pub(super) path: String,
    fields: HashMap<String, At>,
    pub(super) items: Option<At>,
    /// By the kind of an object, which may be a family.
    tags: Vec<(String, At)>,
    /// By the text of a string.
    values: Vec<(String, At)>,
}

/// A step of a path.
#[derive(Clone, Copy)]
enum Step<'a> {
    Field(&'a str),
    Items,
    Tag(&'a str),
    Value(&'a str),
}

/// The steps of a path such as `messages[].content[text].text`.
fn steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    let mut rest = path;
    std::iter::from_fn(move || {
        if let Some(inner) = rest.strip_prefix('[') {
            let (inside, after) = inner.split_once(']')?;
            rest = after;
            return Some(match inside.strip_prefix('=') {
                Some(value) => Step::Value(value),
                None if inside.is_empty() => Step::Items,
                None => Step::Tag(inside),
            });
        }
        rest = rest.strip_prefix('.').unwrap_or(rest);
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        (!name.is_empty()).then_some(Step::Field(name))
    })
}

impl Tree {
    fn new(dialect: Dialect) -> Self {
        Self { dialect, nodes: vec![Node::new(String::new(), Kind::Parameter)] }
    }

    pub(super) fn node(&self, at: At) -> &Node {
        &self.nodes[at]
    }

    /// The node under `path`, made where it is not there.
    fn node_at(&mut self, path: &str) -> At {
        let mut at = 0;
        for step in steps(path) {
            let node = &self.nodes[at];
            let by_name = |list: &[(String, At)], name: &str| {
                list.iter().find(|(known, _)| known == name).map(|(_, at)| *at)
            };
            let found = match step {
                Step::Field(name) => node.fields.get(name).copied(),
                Step::Items => node.items,
                Step::Tag(name) => by_name(&node.tags, name),
                Step::Value(name) => by_name(&node.values, name),
            };
            at = found.unwrap_or_else(|| self.grow(at, step));
        }
        at
    }

    fn grow(&mut self, parent: At, step: Step<'_>) -> At {
        let at = self.nodes.len();
        let node = &mut self.nodes[parent];
        let dot = if node.path.is_empty() { "" } else { "." };
        let path = match step {
            Step::Field(name) => format!("{}{dot}{name}", node.path),
            Step::Items => format!("{}[]", node.path),
            Step::Tag(name) => format!("{}[{name}]", node.path),
            Step::Value(name) => format!("{}[={name}]", node.path),
        };
        let kind = node.kind;
        match step {
            Step::Field(name) => drop(node.fields.insert(name.to_owned(), at)),
            Step::Items => node.items = Some(at),
            Step::Tag(name) => node.tags.push((name.to_owned(), at)),
            Step::Value(name) => node.values.push((name.to_owned(), at)),
        }
        self.nodes.push(Node::new(path, kind));
        at
    }

    /// The field `name` of the object at `at`. Google takes every name in snake case too.
    pub(super) fn field(&self, at: At, name: &str) -> Option<At> {
        let fields = &self.nodes[at].fields;
        let found = fields.get(name).copied();
        if found.is_some() || self.dialect != Dialect::Gemini || !name.contains('_') {
            return found;
        }
        fields.get(&camel_case(name)).copied()
    }

    /// The kind of an object at `at` of those that the dialect tells apart by a field of theirs: `None`
    /// for one that is in no row.
    pub(super) fn tagged(&self, at: At, tag: &str) -> Option<At> {
        let fits = |pattern: &str| match pattern.split_once('*') {
            Some((start, end)) => {
                tag.len() >= start.len() + end.len() && tag.starts_with(start) && tag.ends_with(end)
            }
            None => pattern == tag,
        };
        let fitting = self.nodes[at].tags.iter().filter(|(pattern, _)| fits(pattern));
        // The one that says most.
        fitting.max_by_key(|(pattern, _)| pattern.len()).map(|(_, at)| *at)
    }

    /// What sets objects of one place apart, in `fields`; `-` where there is none.
    pub(super) fn tag<'a>(&self, fields: &Fields<'a>) -> Cow<'a, str> {
        let names: &[&str] = match self.dialect {
            Dialect::Gemini => &["mimeType", "mime_type"],
            _ => &["type"],
        };
        let found = fields.iter().find(|(name, _)| names.contains(name));
        found.and_then(|(_, raw)| raw.text().ok()).unwrap_or(Cow::Borrowed("-"))
    }

    /// Whether the name of a field is what [`tag`](Self::tag) reads.
    pub(super) fn is_tag(&self, name: &str) -> bool {
        self.dialect != Dialect::Gemini && name == "type"
    }
}

impl Node {
    fn new(path: String, kind: Kind) -> Self {
        Self {
            row: None,
            kind,
            path,
            fields: HashMap::new(),
            items: None,
            tags: Vec::new(),
            values: Vec::new(),
        }
    }

    pub(super) fn has_fields(&self) -> bool {
        !self.fields.is_empty()
    }

    pub(super) fn has_tags(&self) -> bool {
        !self.tags.is_empty()
    }

    /// The place of a string's value: `None` where strings are not told apart, `Some(None)` for one
    /// that is in no row.
    pub(super) fn value(&self, text: &str) -> Option<Option<At>> {
        let found = self.values.iter().find(|(value, _)| value == text).map(|(_, at)| *at);
        (!self.values.is_empty()).then_some(found)
    }
}

fn camel_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut upper = false;
    for c in name.chars() {
        match c {
            '_' => upper = true,
            c if std::mem::take(&mut upper) => out.push(c.to_ascii_uppercase()),
            c => out.push(c),
        }
    }
    out
}

/// The trees of all dialects: of requests, and of answers.
struct Table {
    requests: [Tree; Dialect::ALL.len()],
    answers: [Tree; Dialect::ALL.len()],
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let trees = || Dialect::ALL.map(Tree::new);
    let mut table = Table { requests: trees(), answers: trees() };
    // A line that can not be read fails the test beneath.
    let mut lines: Vec<Line> =
        ROWS.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    // Kinds are handed down, so what is above comes first.
    lines.sort_by_key(|line| line.field.len());
    for line in &mut lines {
        if line.like.is_none() {
            let row = Row {
                outcomes: line.cells().map(|cell| cell.take().map(Cell::outcome)),
                nothing: std::mem::take(&mut line.nothing),
                param: line.param.take(),
                field: line.field.clone(),
            };
            let tree = table.tree(line.dialect, line.side);
            let at = tree.node_at(&line.field);
            tree.nodes[at].kind = line.kind.unwrap_or(Kind::Content);
            tree.nodes[at].row = Some(row);
        }
    }
    for line in &lines {
        let Some(like) = &line.like else { continue };
        let tree = table.tree(line.dialect, line.side);
        let (at, of) = (tree.node_at(&line.field), tree.node_at(like));
        let like = &tree.nodes[of];
        let (fields, items, kind) = (like.fields.clone(), like.items, like.kind);
        let (tags, values) = (like.tags.clone(), like.values.clone());
        let node = &mut tree.nodes[at];
        if node.row.is_none() {
            node.kind = kind;
        }
        node.fields.extend(fields);
        node.items = node.items.or(items);
        node.tags.extend(tags);
        node.values.extend(values);
    }
    table
});

impl Cell {
    fn outcome(self) -> Outcome {
        match self {
            Cell::Name(outcome) => outcome,
            Cell::Translated(_) => Outcome::Translated,
        }
    }
}

impl Table {
    fn tree(&mut self, dialect: Dialect, side: Where) -> &mut Tree {
        match side {
            Where::Request => &mut self.requests[column(dialect)],
            Where::Answer => &mut self.answers[column(dialect)],
        }
    }
}

/// The fields of the requests, or of the answers, of `dialect`.
pub(super) fn tree(dialect: Dialect, side: Where) -> &'static Tree {
    match side {
        Where::Request => &TABLE.requests[column(dialect)],
        Where::Answer => &TABLE.answers[column(dialect)],
    }
}

/// Parameters that have two names.
const SYNONYMS: [[&str; 2]; 2] =
    [["max_tokens", "max_completion_tokens"], ["thinking", "reasoning_effort"]];

/// The field of the dialect `dialect` that [`Params`](steadfast_chat::Params) knows as `param`: of
/// several, the one that is in the body of `request`.
pub(crate) fn param_field(
    request: &ChatRequest,
    dialect: Dialect,
    param: &str,
) -> Option<&'static str> {
    let rows = tree(dialect, Where::Request).nodes.iter().filter_map(|node| node.row.as_ref());
    let is_it = |known: &str| {
        known == param || SYNONYMS.iter().any(|two| two.contains(&known) && two.contains(&param))
    };
    let names = rows.filter(|row| row.param.as_deref().is_some_and(is_it)).map(|row| &*row.field);
    let names: Vec<&'static str> = names.collect();
    let is_there = |name: &&str| {
        let body = request.unchanged_body()?;
        let last = name.rsplit(['.', ']']).find(|part| !part.is_empty())?;
        memchr::memmem::find(body, format!("\"{last}\"").as_bytes())
    };
    let there = names.iter().find(|name| is_there(name).is_some()).copied();
    there.or_else(|| names.first().copied())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_line_is_a_row_that_says_what_becomes_of_a_field_in_all_other_dialects() {
        let mut seen = HashSet::new();
        for line in ROWS.lines() {
            let mut row: Line =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            let tree = (row.dialect, row.side == Where::Request);
            assert!(
                seen.insert((tree, row.field.clone(), row.like.is_some())),
                "twice: {}",
                row.field
            );
            if let Some(like) = &row.like {
                let known = |field: &str| field == like || field.starts_with(&format!("{like}["));
                let known = |field: &str| known(field) || field.starts_with(&format!("{like}."));
                assert!(
                    like.is_empty()
                        || ROWS.lines().any(|line| {
                            let other: Line = serde_json::from_str(line).unwrap();
                            (other.dialect, other.side == Where::Request) == tree
                                && known(&other.field)
                        }),
                    "{like} is nowhere"
                );
                continue;
            }
            assert!(row.kind.is_some(), "{line}");
            let (own, is_request) = (column(row.dialect), row.side == Where::Request);
            for (at, cell) in row.cells().into_iter().enumerate() {
                let own = at == own;
                assert_eq!(cell.is_none(), own, "{line}");
                let bookkeeping = matches!(cell, Some(Cell::Name(Outcome::Bookkeeping)));
                assert!(!bookkeeping || !is_request, "{line}");
                // What is translated has to be translated how.
                assert!(!matches!(cell, Some(Cell::Name(Outcome::Translated))), "{line}");
            }
        }
    }

    #[test]
    fn a_family_of_kinds_is_one_row() {
        let tree = tree(Dialect::Anthropic, Where::Request);
        let tools = tree.field(0, "tools").unwrap();
        let of = |tag: &str| tree.tagged(tools, tag).map(|at| tree.node(at).path.as_str());
        assert_eq!(of("web_search_20991231"), Some("tools[web_search_*]"));
        assert_eq!(of("custom"), Some("tools[custom]"));
        assert_eq!(of("new_thing_1"), None);
    }
}
