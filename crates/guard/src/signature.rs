//! Hashes that are equal for equal calls and equal results.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, Hasher},
};

use foldhash::quality::RandomState;
use serde_json::Value;
use steadfast_chat::{Media, MediaSource, Part, ToolCall, ToolResult};
use steadfast_core::{Keep, Keyed, KeyedPolicy};
use tokio::time::Instant;

use crate::{
    GuardPolicy, Kind, PolicyError,
    data::{OUTPUT_FRAMES, TRIVIAL_RESULTS},
    json::{self, Reading},
    path::{PATCH, canonical, in_patch},
    tools::{self, ToolLimits},
    volatile::stable,
};

/// A policy made ready for use.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) policy: GuardPolicy,
    names: HashMap<Box<str>, usize>,
    pub(crate) hasher: RandomState,
    /// The hashes of long results, by a hash of their bytes. A history is sent again with every
    /// request: for one with 900 kB of results, reading takes 3 ms, and the lookup 0.3 ms.
    results: Keyed<u64, ResultHash>,
}

/// What the guard needs to know about a call.
#[derive(Debug)]
pub(crate) struct CallFacts<'a> {
    /// The tool: its [`ToolSpec::name`](crate::ToolSpec::name), or its own name in lower case when it
    /// is not in the table.
    pub(crate) tool: Cow<'a, str>,
    pub(crate) kind: Kind,
    /// How often a task may call it.
    pub(crate) limits: ToolLimits,
    /// Equal for equal calls.
    pub(crate) signature: u64,
    /// The files it changes, each in one spelling.
    pub(crate) files: Vec<String>,
}

impl<'a> CallFacts<'a> {
    /// What is known about a call before its arguments are.
    pub(crate) fn named((tool, kind, limits): (Cow<'a, str>, Kind, ToolLimits)) -> Self {
        Self { tool, kind, limits, signature: 0, files: Vec::new() }
    }

    pub(crate) fn tool_hash(&self) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(self.tool.as_ref())
    }

    pub(crate) fn into_owned(self) -> CallFacts<'static> {
        CallFacts { tool: Cow::Owned(self.tool.into_owned()), ..self }
    }
}

/// What the guard needs to know about a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResultFacts {
    /// Equal for equal results.
    pub(crate) hash: u64,
    pub(crate) failed: bool,
    /// Too short for a repetition to prove anything.
    pub(crate) trivial: bool,
}

/// Repetitions of results shorter than this prove nothing: `ok`, `done`, `42`.
const SHORT: usize = 8;

/// Hashes of long results that are cached: less than a megabyte.
const MAX_RESULTS: usize = 8_192;

/// Reading a shorter text is faster than the lookup.
const LONG: usize = 256;

#[derive(Debug)]
struct ResultHash(u64);

impl Keep for ResultHash {}

impl Compiled {
    pub(crate) fn new(policy: GuardPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        let names = tools::index(&policy.tools)?;
        let results = Keyed::new(KeyedPolicy { capacity: MAX_RESULTS, ..KeyedPolicy::default() });
        Ok(Self { policy, names, hasher: RandomState::default(), results })
    }

    /// The same, with the hashes of `other`: what it has counted is recognised.
    pub(crate) fn hashing_as(&self, other: &Self) -> Self {
        let Self { policy, names, .. } = self;
        let results = Keyed::new(KeyedPolicy { capacity: MAX_RESULTS, ..KeyedPolicy::default() });
        Self { policy: policy.clone(), names: names.clone(), hasher: other.hasher.clone(), results }
    }

    /// The tool of that name: its [`CallFacts::tool`], its kind and its limits.
    pub(crate) fn tool<'a>(&'a self, name: &'a str) -> (Cow<'a, str>, Kind, ToolLimits) {
        let lower = match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => Cow::Owned(name.to_ascii_lowercase()),
            false => Cow::Borrowed(name),
        };
        match self.names.get(lower.as_ref()) {
            Some(at) => {
                let spec = &self.policy.tools[*at];
                (Cow::Borrowed(spec.name.as_str()), spec.kind, spec.limits())
            }
            None => (lower, Kind::Other, ToolLimits::default()),
        }
    }

    /// The facts of a call.
    pub(crate) fn call<'a>(&'a self, call: &'a ToolCall) -> CallFacts<'a> {
        let (tool, kind, limits) = self.tool(&call.name);
        let mut hash = self.hasher.build_hasher();
        tool.hash(&mut hash);
        let arguments = call.arguments.trim();
        // Some models send an empty text for no arguments.
        let json = if arguments.is_empty() { "{}" } else { arguments };
        match json::hash(self, Reading::Arguments, json) {
            Some(arguments) => hash.write_u64(arguments),
            None => arguments.hash(&mut hash),
        }
        let signature = hash.finish();
        let files = match kind {
            Kind::Edit => self.files(&call.arguments),
            _ => Vec::new(),
        };
        // A shell that is given a patch edits. Its edits have no limit: their files are known too late to
        // refuse the call.
        let edits = kind == Kind::Other && call.arguments.contains(PATCH);
        let kind = if edits { Kind::Edit } else { kind };
        CallFacts { tool, kind, limits, signature, files }
    }

    /// The files that a call with these arguments changes.
    fn files(&self, arguments: &str) -> Vec<String> {
        let mut files = Vec::new();
        let mut add = |path: &str| {
            let file = canonical(path, &self.policy.roots);
            if !files.iter().any(|known| *known == file) {
                files.push(file.into_owned());
            }
        };
        let Ok(Value::Object(fields)) = serde_json::from_str(arguments) else {
            // Some tools take a bare patch.
            in_patch(arguments).for_each(&mut add);
            return files;
        };
        for (name, value) in fields {
            let Value::String(text) = value else { continue };
            if self.policy.path_fields.contains(&name) {
                add(&text);
            } else if self.policy.patch_fields.contains(&name) {
                in_patch(&text).for_each(&mut add);
            }
        }
        files
    }

    /// The facts of a result.
    pub(crate) fn result(&self, result: &ToolResult) -> ResultFacts {
        let mut hash = self.hasher.build_hasher();
        let mut failed = result.is_error;
        let mut trivial = true;
        for (at, part) in result.content.iter().enumerate() {
            match part {
                Part::Text(text) => {
                    let text = text.text.trim();
                    trivial &= is_trivial(text);
                    failed |= at == 0 && self.is_failure(text);
                    hash.write_u64(self.text(text));
                }
                Part::Media(Media { source, .. }) => {
                    trivial = false;
                    match source {
                        MediaSource::Base64 { data, .. } => data.hash(&mut hash),
                        MediaSource::Url { url: id, .. } | MediaSource::File { id, .. } => {
                            id.hash(&mut hash);
                        }
                        _ => {}
                    }
                }
                Part::Opaque(block) => {
                    trivial = false;
                    hash.write_u64(self.text(block.json.get()));
                }
                _ => {}
            }
        }
        failed.hash(&mut hash);
        ResultFacts { hash: hash.finish(), failed, trivial }
    }

    fn is_failure(&self, text: &str) -> bool {
        let begins = |prefix: &String| {
            text.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
        };
        self.policy.error_prefixes.iter().any(begins)
    }

    /// The hash of a text without its volatile parts.
    fn text(&self, text: &str) -> u64 {
        if text.len() < LONG {
            return self.read(text);
        }
        let known = || ResultHash(self.read(text));
        self.results.get_or_insert_with(&self.hash(text), Instant::now(), known).0
    }

    /// The same without the cache: read as JSON, when it is an object or a list.
    fn read(&self, text: &str) -> u64 {
        if text.starts_with(['{', '['])
            && let Some(hash) = json::hash(self, Reading::Result, text)
        {
            return hash;
        }
        let mut hash = self.hasher.build_hasher();
        stable(text, |piece| piece.hash(&mut hash));
        hash.finish()
    }

    /// The hash of anything.
    pub(crate) fn hash(&self, value: impl Hash) -> u64 {
        self.hasher.hash_one(value)
    }
}

/// Whether a result has almost no content, however it is framed.
fn is_trivial(text: &str) -> bool {
    // Longer than any frame.
    if text.len() >= LONG {
        return false;
    }
    let json = text.starts_with(['{', '[']).then(|| serde_json::from_str(text).ok()).flatten();
    let length: usize = match &json {
        Some(json) => json_content(json),
        None => text.lines().map(content).sum(),
    };
    length < SHORT
}

/// The length of a line, unless it is part of a frame or says that there is nothing.
fn content(line: &str) -> usize {
    let line = line.trim();
    let begins =
        |frame: &&str| line.get(..frame.len()).is_some_and(|head| head.eq_ignore_ascii_case(frame));
    let is_nothing = TRIVIAL_RESULTS.iter().any(|known| line.eq_ignore_ascii_case(known))
        || OUTPUT_FRAMES.iter().any(begins);
    if is_nothing { 0 } else { line.len() }
}

/// The length of all texts in it: numbers and flags alone say little, and others are other results.
fn json_content(json: &Value) -> usize {
    match json {
        Value::String(text) => text.lines().map(content).sum(),
        Value::Array(items) => items.iter().map(json_content).sum(),
        Value::Object(fields) => fields.values().map(json_content).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled() -> Compiled {
        let policy = GuardPolicy { roots: vec!["/w".into()], ..GuardPolicy::default() };
        Compiled::new(policy).unwrap()
    }

    fn call(name: &str, arguments: &str) -> ToolCall {
        ToolCall { name: name.into(), arguments: arguments.into(), ..ToolCall::default() }
    }

    fn result(text: &str) -> ToolResult {
        ToolResult { content: vec![Part::text(text)], ..ToolResult::default() }
    }

    #[test]
    fn calls_that_are_the_same() {
        let c = compiled();
        for (one, other) in [
            (
                call("read", r#"{"path":"a.rs","n":1}"#),
                call("Read", r#"{ "n" : 1, "path":"./a.rs" }"#),
            ),
            (call("edit_file", r#"{"path":"/w/a.rs"}"#), call("str_replace", r#"{"path":"a.rs"}"#)),
            (call("x", ""), call("x", "{}")),
            (call("x", " not json "), call("x", "not json")),
            (call("x", r#"{"a":{"b":1,"c":[1,2]}}"#), call("x", r#"{"a":{"c":[1,2],"b":1}}"#)),
        ] {
            assert_eq!(c.call(&one).signature, c.call(&other).signature, "{one:?}");
        }
    }

    #[test]
    fn calls_that_differ() {
        let c = compiled();
        for (one, other) in [
            (call("x", r#"{"page":1}"#), call("x", r#"{"page":2}"#)),
            (call("x", r#"{"page":1}"#), call("y", r#"{"page":1}"#)),
            (call("x", r#"{"page":1}"#), call("x", r#"{"page":"1"}"#)),
            (call("x", r#"{"l":[1,2]}"#), call("x", r#"{"l":[2,1]}"#)),
            (call("x", r#"{"a":1,"b":2}"#), call("x", r#"{"a":2,"b":1}"#)),
            (call("x", r#"{"at":"17:28:17"}"#), call("x", r#"{"at":"17:28:18"}"#)),
            (call("x", r#"{"a":null}"#), call("x", "{}")),
        ] {
            assert_ne!(c.call(&one).signature, c.call(&other).signature, "{one:?}");
        }
    }

    #[test]
    fn results_ignore_order_ids_and_times_and_nothing_else() {
        let c = compiled();
        let hash = |text| c.result(&result(text)).hash;
        assert_eq!(
            hash(r#"{"a":1,"took":5,"now":"x","id":"123e4567-e89b-12d3-a456-426614174000"}"#),
            hash(r#"{"now":"y","id":"123e4567-e89b-12d3-a456-426614174009","a":1,"took":6}"#),
        );
        assert_eq!(hash("at 17:28:17"), hash("at 17:28:18"));
        assert_ne!(hash(r#"{"progress":41}"#), hash(r#"{"progress":42}"#));
        assert_ne!(hash("41 of 50 done"), hash("42 of 50 done"));
        assert_ne!(hash("same"), {
            let failed = ToolResult { is_error: true, ..result("same") };
            c.result(&failed).hash
        });
    }

    #[test]
    fn failures_and_trivial_results_are_known() {
        let c = compiled();
        assert!(c.result(&result("Error: no such file")).failed);
        assert!(!c.result(&result("no error")).failed);
        for text in [
            "",
            "  ",
            "[]",
            "No matches found",
            "No files found",
            "ok",
            "42",
            "Exit code: 0\nWall time: 0.1 seconds\nOutput:\n",
            r#"{"output":"","metadata":{"exit_code":0,"duration_seconds":0.0}}"#,
            r#"{"matches":[],"truncated":false}"#,
        ] {
            assert!(c.result(&result(text)).trivial, "{text:?}");
        }
        for text in [
            "the file is empty",
            "a.rs\nb.rs\nc.rs",
            "Exit code: 0\nWall time: 0.1 seconds\nOutput:\na.rs b.rs c.rs\n",
            r#"{"output":"a.rs b.rs c.rs","metadata":{"exit_code":0}}"#,
            "{ this is no JSON }",
        ] {
            assert!(!c.result(&result(text)).trivial, "{text:?}");
        }
        assert!(c.result(&ToolResult::default()).trivial);
    }

    #[test]
    fn edits_name_their_files() {
        let c = compiled();
        let patch = r#"{"patch":"*** Update File: ./a.rs\n*** Delete File: /w/b.rs"}"#;
        assert_eq!(c.call(&call("apply_patch", patch)).files, ["a.rs", "b.rs"]);
        let bare = "*** Begin Patch\n*** Update File: c.rs\n";
        assert_eq!(c.call(&call("apply_patch", bare)).files, ["c.rs"]);
        assert!(c.call(&call("read", r#"{"path":"a"}"#)).files.is_empty(), "it edits nothing");
        let shell =
            r#"{"command":["bash","-lc","apply_patch <<'EOF'\n*** Begin Patch\n*** End Patch"]}"#;
        assert_eq!(c.call(&call("shell", shell)).kind, Kind::Edit);
        assert_eq!(c.call(&call("shell", r#"{"command":["ls"]}"#)).kind, Kind::Other);
    }
}
