//! What is publicly known of models: a table that anybody can add a line to.

use std::{collections::HashMap, sync::LazyLock};

use serde::Deserialize;
use steadfast_core::model_names::{find, names};

/// What is publicly known of one model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ModelFacts {
    /// Its name, without a vendor or region before it and a date behind it.
    pub model: Box<str>,
    /// Its window in tokens: input and output together.
    pub window: u64,
    /// The most it writes in one answer, in tokens, when known.
    #[serde(default)]
    pub output: Option<u64>,
    /// The efforts of reasoning that it takes in OpenAI's dialect, from the least to the most; empty when that is
    /// not known, and for models that have none.
    #[serde(default)]
    pub efforts: Vec<Box<str>>,
    /// The one effort that it takes along with tools on chat completions, where that is one: from GPT-5.2 on
    /// any other is refused there, and so is, by those that think by default, none at all.
    #[serde(default)]
    pub effort_with_tools: Option<Box<str>>,
}

/// The table, made from `data/models.jsonl`: public model tables and reports as of November 2026.
static TABLE: LazyLock<HashMap<Box<str>, ModelFacts>> = LazyLock::new(|| {
    let rows = include_str!("../data/models.jsonl").lines();
    let rows = rows.filter_map(|row| serde_json::from_str::<ModelFacts>(row).ok());
    rows.map(|facts| (facts.model.clone(), facts)).collect()
});

impl ModelFacts {
    /// What is known of `model`. A name is matched as it is, without the vendor and region in front of it, in
    /// either case, and then by the longest known name that it continues at a `-`, `@`, `:` or `[`: so
    /// `us.anthropic.claude-sonnet-4-5-20250929-v1:0` is `claude-sonnet-4-5`.
    ///
    /// ```
    /// use steadfast_chat::ModelFacts;
    ///
    /// let facts = ModelFacts::of("openai/gpt-4o-2024-08-06").unwrap();
    /// assert_eq!((facts.window, facts.output), (128_000, Some(16_384)));
    /// assert!(ModelFacts::of("house-model").is_none());
    /// ```
    pub fn of(model: &str) -> Option<&'static Self> {
        let lower = model.to_ascii_lowercase();
        let table = |name: &str| TABLE.get(name);
        names(model).chain(names(&lower)).find_map(|name| find(name, table))
    }

    /// What is known of exactly this name.
    pub fn named(model: &str) -> Option<&'static Self> {
        TABLE.get(model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_valid() {
        let text = include_str!("../data/models.jsonl");
        for row in text.lines() {
            let facts: ModelFacts =
                serde_json::from_str(row).unwrap_or_else(|error| panic!("{row}: {error}"));
            assert!(facts.window >= 4_096, "{row}");
            assert!(facts.output.is_none_or(|output| output <= facts.window), "{row}");
            let with_tools = facts.effort_with_tools;
            assert!(with_tools.is_none_or(|effort| facts.efforts.contains(&effort)), "{row}");
        }
        assert_eq!(TABLE.len(), text.lines().count(), "a row stands twice");
    }

    #[test]
    fn names_are_found_with_any_prefix_and_suffix() {
        for (name, window) in [
            ("claude-sonnet-4-5", 200_000),
            ("claude-sonnet-4-5-20250929", 200_000),
            ("claude-sonnet-4-5@20250929", 200_000),
            ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 200_000),
            ("bedrock/eu.anthropic.claude-opus-4-7-v1:0", 1_000_000),
            ("Claude-Opus-4-7", 1_000_000),
            ("openai/gpt-4o-2024-08-06", 128_000),
            ("models/gemini-2.5-pro", 1_048_576),
            ("publishers/google/models/gemini-2.5-pro-002", 1_048_576),
            ("gpt-5.4-mini-2026-01-01", 272_000),
            ("meta.llama3-3-70b-instruct-v1:0", 128_000),
            ("o4-mini-high", 200_000),
        ] {
            assert_eq!(ModelFacts::of(name).map(|facts| facts.window), Some(window), "{name}");
        }
        for name in ["gpt-4.5", "o10", "", "///...---"] {
            assert_eq!(ModelFacts::of(name), None, "a longer number is another model: {name}");
        }
        assert!(ModelFacts::named("gpt-4o").is_some() && ModelFacts::named("gpt-4o-x").is_none());
    }
}
