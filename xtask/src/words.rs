//! `cargo xtask words`: names and comments say the words of the field. The table is
//! `xtask/words.txt`.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use crate::workspace;

const TABLE: &str = "xtask/words.txt";

/// Checks the files and folders that the table names, or `paths`.
pub(crate) fn run(paths: &[String]) -> Result<(), String> {
    let root = workspace::root();
    let table = Table::parse(&workspace::read(&root.join(TABLE))?)?;
    let paths = if paths.is_empty() { &table.checked } else { paths };
    let mut files = Vec::new();
    for path in paths {
        let path = root.join(path);
        if !path.exists() {
            return Err(format!("{TABLE}: there is no {}", path.display()));
        }
        collect(&path, &mut files)?;
    }
    let mut found = Vec::new();
    for file in &files {
        let name = file.strip_prefix(root).unwrap_or(file).display().to_string();
        let text = workspace::read(file)?;
        found.extend(table.check(&name, &text));
    }
    println!("== words: {} files, {} findings", files.len(), found.len());
    if found.is_empty() {
        return Ok(());
    }
    for finding in &found {
        eprintln!("{finding}");
    }
    Err(format!("{} words that {TABLE} has other words for", found.len()))
}

/// The Rust and Markdown files at or under `path`, in order, without what npm has installed.
pub(crate) fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    if path.file_name().is_some_and(|name| name == "node_modules") {
        return Ok(());
    }
    if path.is_file() {
        if path.extension().is_some_and(|extension| extension == "rs" || extension == "md") {
            files.push(path.to_owned());
        }
        return Ok(());
    }
    let entries =
        fs::read_dir(path).map_err(|error| format!("can not read {}: {error}", path.display()))?;
    let mut entries: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    entries.iter().try_for_each(|entry| collect(entry, files))
}

/// What the file says.
#[derive(Debug, Default)]
struct Table {
    /// Files and folders of the workspace.
    checked: Vec<String>,
    rules: Vec<Rule>,
    /// From each form of a word to its rule.
    by_word: HashMap<String, usize>,
}

#[derive(Debug)]
struct Rule {
    instead: String,
    in_names: bool,
    in_text: bool,
    /// Pieces of a line in which the word may stand.
    allowed: Vec<String>,
    /// How the paths of files begin in which the word may stand.
    files: Vec<String>,
}

impl Table {
    fn parse(text: &str) -> Result<Self, String> {
        let mut table = Self::default();
        let mut section = "";
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            let wrong = |what: &str| format!("{TABLE}:{}: {what}", number + 1);
            match (line, section) {
                ("" | "[checked]" | "[words]", _) => {
                    section = if line.is_empty() { section } else { line }
                }
                (comment, _) if comment.starts_with('#') => {}
                (path, "[checked]") => table.checked.push(path.to_owned()),
                (rule, "[words]") => {
                    table.add(rule).map_err(|what| wrong(&what))?;
                }
                _ => return Err(wrong("there is no section; write [checked] or [words] above")),
            }
        }
        Ok(table)
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let [forms, instead, scope, allowed] = columns[..] else {
            return Err("a rule has four columns: words | instead | where | allowed".to_owned());
        };
        let (in_names, in_text) = match scope {
            "names" => (true, false),
            "text" => (false, true),
            "both" => (true, true),
            _ => return Err(format!("`{scope}` is none of names, text, both")),
        };
        let pieces = allowed.split(';').map(str::trim).filter(|piece| !piece.is_empty());
        let (files, allowed): (Vec<_>, Vec<_>) =
            pieces.partition(|piece| piece.starts_with("file:"));
        let files = files.iter().map(|file| file["file:".len()..].to_owned()).collect();
        let allowed = allowed.iter().map(|piece| piece.to_lowercase()).collect();
        let rule = Rule { instead: instead.to_owned(), in_names, in_text, allowed, files };
        for form in forms.split_whitespace() {
            if self.by_word.insert(form.to_owned(), self.rules.len()).is_some() {
                return Err(format!("`{form}` is there twice"));
            }
        }
        self.rules.push(rule);
        Ok(())
    }

    /// What is wrong in one file: `path:line: word: say instead`.
    fn check(&self, path: &str, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        let stem = Path::new(path).file_stem().unwrap_or_default().to_string_lossy();
        let mut report = |line: usize, name: bool, word: &str, context: &str, at: usize| {
            let word = word.to_lowercase();
            let Some(rule) = self.by_word.get(&word).map(|index| &self.rules[*index]) else {
                return;
            };
            let refused = if name { rule.in_names } else { rule.in_text };
            if refused && !rule.allows(path, context, at..at + word.len()) {
                found.push(format!("{path}:{line}: {word}: say {}", rule.instead));
            }
        };
        for (start, word) in words(&stem) {
            report(1, true, word, &stem, start);
        }
        // Markdown is text from its first line on.
        let prose = path.ends_with(".md");
        let mut lexer = Lexer { inside: if prose { Inside::Prose } else { Inside::Code } };
        for (number, line) in text.lines().enumerate() {
            for (start, piece, name) in lexer.pieces(line) {
                for (at, word) in words(piece) {
                    report(number + 1, name, word, line, start + at);
                }
            }
        }
        found
    }
}

impl Rule {
    /// Whether the word at `at` in `line` is a part of a piece that is allowed.
    fn allows(&self, path: &str, line: &str, at: std::ops::Range<usize>) -> bool {
        let line = line.to_ascii_lowercase();
        self.files.iter().any(|file| path.starts_with(file))
            || self.allowed.iter().any(|piece| {
                line.match_indices(piece.as_str())
                    .any(|(start, _)| start <= at.start && at.end <= start + piece.len())
            })
    }
}

/// The words of a text or of an identifier, with where they begin: split at what is no letter, and
/// where a capital follows a small letter.
fn words(text: &str) -> Vec<(usize, &str)> {
    let bytes = text.as_bytes();
    let mut words = Vec::new();
    let mut start = 0;
    for at in 0..=bytes.len() {
        let letter = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphabetic);
        let hump = at > start
            && letter(at)
            && bytes[at].is_ascii_uppercase()
            && bytes[at - 1].is_ascii_lowercase();
        if !letter(at) || hump {
            if at > start {
                words.push((start, &text[start..at]));
            }
            start = if hump { at } else { at + 1 };
        }
    }
    words
}

/// Separates code, comments and literals, over the lines of a file.
#[derive(Debug, Default)]
struct Lexer {
    inside: Inside,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Inside {
    #[default]
    Code,
    /// So many block comments deep.
    Comment(usize),
    /// A literal; with so many `#` when it is raw.
    Literal(Option<usize>),
    /// A file that is no code.
    Prose,
}

impl Lexer {
    /// The pieces of a line that are checked: where each begins, and whether it is code. Literals
    /// are left out: they are data.
    fn pieces<'a>(&mut self, line: &'a str) -> Vec<(usize, &'a str, bool)> {
        let mut pieces = Vec::new();
        let bytes = line.as_bytes();
        let (mut from, mut at) = (0, 0);
        // Ends the piece before `end`; the next one begins at `next`.
        let mut cut = |inside: Inside, from: &mut usize, end: usize, next: usize| {
            if *from < end && !matches!(inside, Inside::Literal(_)) {
                pieces.push((*from, &line[*from..end], inside == Inside::Code));
            }
            *from = next;
        };
        while at < bytes.len() {
            let rest = &bytes[at..];
            match self.inside {
                Inside::Code if rest.starts_with(b"//") => {
                    cut(Inside::Code, &mut from, at, at);
                    cut(Inside::Comment(0), &mut from, bytes.len(), bytes.len());
                    return pieces;
                }
                Inside::Code if rest.starts_with(b"/*") => {
                    cut(Inside::Code, &mut from, at, at);
                    self.inside = Inside::Comment(1);
                    at += 2;
                }
                Inside::Code if rest[0] == b'"' => {
                    cut(Inside::Code, &mut from, at, at);
                    let before = &bytes[..at];
                    let hashes = before.iter().rev().take_while(|byte| **byte == b'#').count();
                    let raw = before[..at - hashes].last() == Some(&b'r');
                    self.inside = Inside::Literal(raw.then_some(hashes));
                    at += 1;
                }
                // A character, so that '"' begins no literal; a lifetime has no closing quote.
                Inside::Code if rest.starts_with(b"'\\") => {
                    at += 3
                        + rest[3.min(rest.len())..].iter().take_while(|b| **b != b'\'').count()
                        + 1;
                }
                Inside::Code if rest[0] == b'\'' && rest.get(2) == Some(&b'\'') => at += 3,
                Inside::Comment(depth) if rest.starts_with(b"*/") => {
                    at += 2;
                    if depth <= 1 {
                        cut(self.inside, &mut from, at, at);
                        self.inside = Inside::Code;
                    } else {
                        self.inside = Inside::Comment(depth - 1);
                    }
                }
                Inside::Comment(depth) if rest.starts_with(b"/*") => {
                    self.inside = Inside::Comment(depth + 1);
                    at += 2;
                }
                Inside::Literal(None) if rest[0] == b'\\' => at += 2,
                Inside::Literal(raw) if rest[0] == b'"' => {
                    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
                    at += 1;
                    if hashes >= raw.unwrap_or(0) {
                        at += raw.unwrap_or(0);
                        cut(self.inside, &mut from, at, at);
                        self.inside = Inside::Code;
                    }
                }
                _ => at += 1,
            }
        }
        cut(self.inside, &mut from, bytes.len(), bytes.len());
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "
        # a comment
        [checked]
        a/src
        [words]
        seat seats | permit | both |
        place | position | names |
        flight | attempt | both | in flight; in_flight
        bench | fixture | names | file:b/
    ";

    fn check(path: &str, text: &str) -> Vec<String> {
        Table::parse(RULES).unwrap().check(path, text)
    }

    #[test]
    fn finds_words_where_they_are_refused() {
        let table: &[(&str, &[&str])] = &[
            ("fn take_seat() {}", &["a/x.rs:1: seat: say permit"]),
            ("struct SeatTaken;", &["a/x.rs:1: seat: say permit"]),
            ("let a = 1;\n// Two seats.", &["a/x.rs:2: seats: say permit"]),
            (
                "/* Two\n seats */ fn seat() {}",
                &["a/x.rs:2: seats: say permit", "a/x.rs:2: seat: say permit"],
            ),
            ("// Takes its place.", &[]),
            ("let place = 1;", &["a/x.rs:1: place: say position"]),
            ("let in_flight = 1; // Those in flight.", &[]),
            ("let flight = in_flight;", &["a/x.rs:1: flight: say attempt"]),
            ("let theseats = seating;", &[]),
            // Literals are data.
            (r##"f("a seat", r#"a "seat" "#); let seat = '"';"##, &["a/x.rs:1: seat: say permit"]),
            ("f(\"a \\\" seat\nseat\"); seat", &["a/x.rs:2: seat: say permit"]),
            (r"fn f<'a>(seat: &'a str) { '\''; '\u{7f}'; }", &["a/x.rs:1: seat: say permit"]),
        ];
        for (text, findings) in table {
            assert_eq!(check("a/x.rs", text), *findings, "{text}");
        }
    }

    #[test]
    fn markdown_is_text() {
        assert_eq!(check("a/x.md", "Its place: \"a seat\"."), ["a/x.md:1: seat: say permit"]);
    }

    #[test]
    fn the_table_itself_makes_sense() {
        let table =
            Table::parse(&workspace::read(&workspace::root().join(TABLE)).unwrap()).unwrap();
        assert!(!table.rules.is_empty());
        for path in &table.checked {
            assert!(workspace::root().join(path).exists(), "{path}");
        }
    }

    #[test]
    fn files_are_names_and_may_be_allowed() {
        assert_eq!(check("a/seat.rs", ""), ["a/seat.rs:1: seat: say permit"]);
        assert_eq!(check("b/x.rs", "mod bench;"), [""; 0]);
        assert_eq!(check("a/x.rs", "mod bench;").len(), 1);
    }

    #[test]
    fn a_wrong_line_is_named() {
        let table: &[(&str, &str)] = &[
            ("seat | permit | both |", "words.txt:1: there is no section"),
            ("[words]\nseat | permit", "words.txt:2: a rule has four columns"),
            ("[words]\nseat | permit | code |", "words.txt:2: `code` is none of"),
            ("[words]\na | b | both |\na | c | both |", "words.txt:3: `a` is there twice"),
        ];
        for (text, message) in table {
            let error = Table::parse(text).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
