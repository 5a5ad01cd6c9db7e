//! Which parameter of the request an error is about.

use std::{collections::HashMap, sync::LazyLock};

use steadfast_core::RefusedParameter;

use super::{
    keys::{Folded, folded},
    message::Message,
    numbers::count,
    phrases::Number,
    table::{Table, TableError, built_in, table},
};

const FILE: Table = table!("parameters.txt");

/// By their folded names.
static NAMES: LazyLock<HashMap<Folded, &'static str>> = LazyLock::new(|| built_in(read(FILE)));

/// The sets of phrases that name a parameter in plain words, and it.
const IN_WORDS: [(&str, &str); 5] = [
    ("parameter.temperature", "temperature"),
    ("parameter.top-k", "top_k"),
    ("parameter.thinking", "thinking"),
    ("parameter.logprobs", "logprobs"),
    ("parameter.penalty", "presence_penalty"),
];

/// The objects that parameters are in.
const AROUND: [&str; 4] = ["body", "generation_config", "generationConfig", "inferenceConfig"];

fn read(table: Table) -> Result<HashMap<Folded, &'static str>, TableError> {
    let mut names = HashMap::new();
    for row in table.rows(2, 2)? {
        let name = row.text(0);
        let key = folded(name);
        if key.as_slice() != name.as_bytes() {
            return Err(row.error(format!("`{name}` has more than small letters and digits")));
        }
        row.insert(&mut names, key, row.text(1))?;
    }
    Ok(names)
}

/// Reads the table now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&NAMES);
}

/// The parameter at `path`, if it is one that an answer can do without.
fn at(path: &str) -> Option<&'static str> {
    let inside = |around: &&str| path.strip_prefix(*around)?.strip_prefix('.');
    let path = AROUND.iter().find_map(inside).unwrap_or(path);
    let first = || path.split('.').next().and_then(|first| NAMES.get(&folded(first)));
    NAMES.get(&folded(path)).or_else(first).copied()
}

/// What a field of an error says that names the part of the request that is meant: `Some(None)` when that is none
/// that an answer can do without. An object with parameters in it says nothing.
pub(crate) fn stated(path: &str) -> Option<Option<&'static str>> {
    (!path.is_empty() && !AROUND.contains(&path)).then(|| at(path))
}

/// What the messages are about; `stated` is what a field of the error says, which decides.
pub(super) fn refused(
    stated: Option<Option<&'static str>>,
    messages: &[Message<'_>],
) -> Option<RefusedParameter> {
    let name = stated.unwrap_or_else(|| messages.iter().find_map(in_message).flatten())?;
    let is_limit = matches!(name, "max_tokens" | "max_completion_tokens");
    let most = messages.iter().find_map(most).filter(|_| is_limit);
    Some(RefusedParameter { name, most })
}

/// The parameter that a message names. `Some(None)` where it is about something else for certain.
fn in_message(message: &Message<'_>) -> Option<Option<&'static str>> {
    let text = message.text().trim_start();
    // `temperature: Extra inputs are not permitted`
    if let Some((path, _)) = text.split_once(": ").filter(|(path, _)| is_path(path)) {
        let found = at(path);
        if found.is_some() || path.contains('.') {
            return Some(found);
        }
    }
    let named = words(text).find_map(at);
    let in_words = || {
        let found = message.found();
        let mut sets = IN_WORDS.iter().filter(|(set, _)| found.has_named(set));
        sets.next().map(|(_, parameter)| *parameter)
    };
    named.or_else(in_words).map(Some)
}

/// Whether this is the name, or the path, of a field.
fn is_path(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.[]".contains(&byte))
}

/// The words of a text that can be names of fields only: those in quotes, and those that are written together.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    let is_quote = |c: Option<char>| matches!(c, Some('\'' | '"' | '`'));
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(start) = text[at..].find(is_part).map(|found| at + found) {
            let length = text[start..].find(|c| !is_part(c)).unwrap_or(text.len() - start);
            at = start + length;
            let word = text[start..at].trim_end_matches('.');
            let quoted = is_quote(text[..start].chars().next_back())
                && is_quote(text[start + word.len()..].chars().next());
            let together = word.contains('_')
                || word
                    .bytes()
                    .zip(word.bytes().skip(1))
                    .any(|(before, byte)| before.is_ascii_lowercase() && byte.is_ascii_uppercase());
            if quoted || together {
                return Some(word);
            }
        }
        None
    })
}

/// The most that the parameter may be, where a message states it.
fn most(message: &Message<'_>) -> Option<u64> {
    // `max_tokens: 32000 > 8192, which is the maximum`
    let compared = message.number(Number::Compared).and_then(|text| {
        let (_, used) = count(text)?;
        count(text[used..].strip_prefix(" > ")?)
    });
    let (most, used) = match (compared, message.number(Number::Most)) {
        (Some((most, _)), _) => (most, ""),
        (None, Some(text)) => count(text).map(|(most, used)| (most, &text[used..]))?,
        (None, None) => return None,
    };
    let most = if used.starts_with(" (exclusive)") { most.saturating_sub(1) } else { most };
    (most > 0).then_some(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(text: &str) -> Option<(&'static str, Option<u64>)> {
        let refused = refused(None, &[Message::of(text)])?;
        Some((refused.name, refused.most))
    }

    #[test]
    fn the_file_is_well_formed() {
        read(FILE).unwrap();
        let error = |text| read(Table { file: "x.txt", text }).unwrap_err().to_string();
        assert!(error("top_p | top_p").contains("more than small letters"));
        assert!(error("topp | a\ntopp | b").contains("listed twice"));
    }

    #[test]
    fn a_message_names_its_parameter() {
        for (text, name, most) in [
            (
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
                "max_tokens",
                None,
            ),
            (
                "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is supported.",
                "temperature",
                None,
            ),
            ("Unrecognized request argument supplied: reasoning_effort", "reasoning_effort", None),
            ("temperature: Extra inputs are not permitted", "temperature", None),
            (
                "thinking.budget_tokens: Input should be greater than or equal to 1024",
                "thinking",
                None,
            ),
            (
                "`temperature` and `top_p` cannot both be specified for this model. Please use only one.",
                "temperature",
                None,
            ),
            ("`top_k` is deprecated for this model.", "top_k", None),
            ("temperature is deprecated for this model.", "temperature", None),
            ("Penalty is not enabled for models/gemini-3.8-flash", "presence_penalty", None),
            ("Logprobs is not enabled for models/gemini-2.5-pro", "logprobs", None),
            ("Budget 0 is invalid. This model only works in thinking mode.", "thinking", None),
            ("The model does not support setting thinking_budget to 0.", "thinking", None),
            (
                "Unable to submit request because thinking is not configurable in this model; please remove the thinking_config setting",
                "thinking",
                None,
            ),
            (
                "Invalid JSON payload received. Unknown name \"topK\" at 'generation_config': Cannot find field.",
                "top_k",
                None,
            ),
            (
                "max_tokens is too large: 32000. This model supports at most 16384 completion tokens, whereas you provided 32000.",
                "max_tokens",
                Some(16_384),
            ),
            (
                "max_tokens: 32000 > 8192, which is the maximum allowed number of output tokens for this model",
                "max_tokens",
                Some(8_192),
            ),
            (
                "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the `context_window` for this model",
                "max_tokens",
                Some(8_192),
            ),
            (
                "Unable to submit request because it has a maxOutputTokens value of 32000 but the supported range is from 1 (inclusive) to 8193 (exclusive). Update the value",
                "max_tokens",
                Some(8_192),
            ),
            ("Range of max_tokens should be [1, 8192]", "max_tokens", Some(8_192)),
        ] {
            assert_eq!(about(text), Some((name, most)), "{text}");
        }
    }

    #[test]
    fn what_an_answer_needs_is_no_parameter() {
        for text in [
            "messages.0.content.1.thinking: Field required",
            "messages.1: roles must alternate between \"user\" and \"assistant\"",
            "tools.0.input_schema: JSON schema is invalid. It must have a `type`",
            "Invalid 'tools[0].function.name': string does not match pattern",
            "the user said that the temperature was high; seed the table",
            "",
        ] {
            assert_eq!(about(text), None, "{text}");
        }
        let refused = refused(Some(None), &[Message::of("'temperature' is not supported")]);
        assert_eq!(refused, None, "a field of the error names another part of the request");
        assert_eq!(at("generation_config.thinking_config.thinking_level"), Some("thinking"));
        assert_eq!(stated("messages.[0].content"), Some(None));
        assert_eq!(stated("generation_config"), None);
        assert_eq!(stated("generation_config.topK"), Some(Some("top_k")));
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,80}") {
            let _ = about(&text);
        }
    }
}
