//! Custom tools: their input is free text, where a function's arguments are an object.
//!
//! In every other dialect such a tool is a function with one string, and so are its calls in memory: what is in
//! the field is the text.

use serde_json::Value;
use steadfast_chat::{RawJson, Tool, surrogates};

use crate::json::{Object, Raw, quoted};

/// The one field of the function's arguments.
const INPUT: &str = "input";

/// The schema of the function's arguments.
const PARAMETERS: &str = r#"{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}"#;

/// The schema of the function that stands for a custom tool.
pub(super) fn parameters() -> RawJson {
    RawJson::from_checked(PARAMETERS)
}

/// The description of the function that stands for a custom tool: with the grammar that a model would be held to.
pub(super) fn description(description: Option<String>, tool: Raw<'_>) -> Option<String> {
    let tool: Value = surrogates::read(tool.get()).unwrap_or_default();
    let format = &tool["format"];
    let (syntax, definition) = (format["syntax"].as_str(), format["definition"].as_str());
    let Some((syntax, definition)) = syntax.zip(definition) else { return description };
    let mut text = description.unwrap_or_default();
    if !text.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str(&format!("`input` has to match this grammar ({syntax}):\n{definition}"));
    Some(text)
}

/// The arguments of the function that stands for a call with this text.
pub(super) fn arguments(input: &str) -> String {
    Object::text(|object| {
        object.put(INPUT, input);
    })
}

/// What stands before the text, in arguments that come in pieces, and behind it.
pub(super) const AROUND: (&str, &str) = (r#"{"input":""#, r#""}"#);

/// A piece of the text, as it stands inside the string.
pub(super) fn inside(piece: &str) -> String {
    let quoted = quoted(piece);
    quoted[1..quoted.len() - 1].to_owned()
}

/// The text of a call with these arguments; what is no object with a text is the text itself.
pub(super) fn input(arguments: &str) -> String {
    let read: Value = surrogates::read(arguments).unwrap_or_default();
    match &read[INPUT] {
        Value::String(input) => input.clone(),
        _ => arguments.to_owned(),
    }
}

/// The names of those of `tools` that are custom.
pub(crate) fn names(tools: &[Tool]) -> Vec<Box<str>> {
    let custom = tools.iter().filter(|tool| matches!(tool, Tool::Function { custom: Some(_), .. }));
    custom.filter_map(Tool::name).map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_an_argument_and_comes_back() {
        for text in ["", "*** Begin Patch\n\"x\"\\", "é\u{0}"] {
            assert_eq!(input(&arguments(text)), text);
            let pieces: String = text.chars().map(|c| inside(&c.to_string())).collect();
            assert_eq!(input(&format!("{}{pieces}{}", AROUND.0, AROUND.1)), text);
        }
        assert_eq!(input("ls -l"), "ls -l");
        assert_eq!(input(r#"{"cmd":"x"}"#), r#"{"cmd":"x"}"#);
    }

    #[test]
    fn a_grammar_is_described() {
        let tool = r#"{"type":"custom","format":{"type":"grammar","syntax":"lark","definition":"start: x"}}"#;
        let raw: Raw<'_> = serde_json::from_str(tool).unwrap();
        let text = description(Some("Edits.".into()), raw).unwrap();
        assert_eq!(text, "Edits.\n\n`input` has to match this grammar (lark):\nstart: x");
        let free: Raw<'_> = serde_json::from_str(r#"{"format":{"type":"text"}}"#).unwrap();
        assert_eq!(description(None, free), None);
    }
}
