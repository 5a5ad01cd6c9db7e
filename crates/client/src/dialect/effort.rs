//! How much thinking: efforts by name, and their budgets in tokens.
//!
//! The two scales are those that Google documents for its OpenAI-compatible endpoint: low is
//! 1,024 tokens, medium 8,192, high 24,576. What is above high gets 32,768, the most any model
//! with budgets takes; minimal is 1,024 too, the least that Anthropic takes.

/// Efforts with their budgets in tokens.
const SCALE: [(&str, u64); 6] = [
    ("minimal", 1_024),
    ("low", 1_024),
    ("medium", 8_192),
    ("high", 24_576),
    ("xhigh", 32_768),
    ("max", 32_768),
];

/// The rank of medium among the efforts, of which not to think at all is the first.
const MEDIUM: usize = 3;

/// The efforts that every model with efforts knows.
pub(crate) const COMMON: [&str; 3] = ["low", "medium", "high"];

/// Of the efforts that a model knows the one nearest to `word`, rather more than less; an unknown one is medium.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let rank = |word: &str| match word {
        "none" => 0,
        _ => SCALE.iter().position(|(name, _)| *name == word).map_or(MEDIUM, |at| at + 1),
    };
    let wanted = rank(word);
    known.into_iter().min_by_key(|known| {
        let rank = rank(known);
        (rank.abs_diff(wanted), rank < wanted)
    })
}

/// The budget of an effort; an unknown one is medium.
pub(crate) fn budget(word: &str) -> u64 {
    SCALE.iter().find(|(name, _)| *name == word).map_or(8_192, |(_, tokens)| *tokens)
}

/// The effort for a budget: low, medium or high, which every model with efforts knows.
pub(crate) fn word(budget: u64) -> &'static str {
    match budget {
        0..=1_024 => "low",
        1_025..=8_192 => "medium",
        _ => "high",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_effort_that_a_model_knows() {
        let newer = ["none", "low", "medium", "high", "xhigh"];
        for (word, known, wanted) in [
            ("minimal", &newer[..], "low"),
            ("max", &newer, "xhigh"),
            ("none", &newer, "none"),
            ("none", &COMMON, "low"),
            ("none", &["minimal", "low"], "minimal"),
            ("xhigh", &COMMON, "high"),
            ("medium", &["high"], "high"),
            ("turbo", &COMMON, "medium"),
        ] {
            assert_eq!(nearest(word, known.iter().copied()), Some(wanted), "{word} of {known:?}");
        }
        assert_eq!(nearest("low", []), None);
    }

    #[test]
    fn the_three_common_efforts_come_back() {
        for name in ["low", "medium", "high"] {
            assert_eq!(word(budget(name)), name);
        }
    }
}
