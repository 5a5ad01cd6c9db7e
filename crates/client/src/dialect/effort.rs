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
    fn the_three_common_efforts_come_back() {
        for name in ["low", "medium", "high"] {
            assert_eq!(word(budget(name)), name);
        }
    }
}
