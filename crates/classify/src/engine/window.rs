//! The numbers of an overflow: the limit, and what the request would have needed.

use steadfast_core::Window;

use super::{message::Message, numbers::count, phrases::Number};

/// The numbers that a message states.
pub(crate) fn from_text(message: &Message<'_>) -> Option<Window> {
    // `exceed context limit: 199759 + 8192 > 200000`: input, output, limit.
    if let Some(sum) = message.number(Number::WindowSum).and_then(sum) {
        return Some(sum);
    }
    let limit = number(message, Number::Limit);
    let mut requested = number(message, Number::Requested);
    // `you requested 100 output tokens and your prompt contains at least 40861 input tokens`.
    if let Some(rest) = message.number(Number::Output)
        && let Some((output, used)) = count(rest)
        && rest[used..].starts_with(" output tokens")
    {
        let input = number(message, Number::Prompt);
        requested = Some(output.saturating_add(input.unwrap_or(0)));
    }
    (limit.is_some() || requested.is_some()).then_some(Window { limit, requested })
}

fn number(message: &Message<'_>, number: Number) -> Option<u64> {
    count(message.number(number)?).map(|(value, _)| value).filter(|value| *value > 0)
}

fn sum(text: &str) -> Option<Window> {
    let (input, used) = count(text)?;
    let rest = text[used..].strip_prefix(" + ")?;
    let (output, used) = count(rest)?;
    let (limit, _) = count(rest[used..].strip_prefix(" > ")?)?;
    Some(Window { limit: Some(limit), requested: Some(input.saturating_add(output)) })
}

/// A rate limit's own numbers: `Limit 6000, Requested 10338`. The request that is larger than
/// the whole bucket never fits.
pub(crate) fn never_fits(message: &Message<'_>) -> bool {
    let requested = number(message, Number::QuotaRequested);
    let limit = number(message, Number::QuotaLimit);
    requested.zip(limit).is_some_and(|(requested, limit)| requested > limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_text(text: &str) -> Option<Window> {
        super::from_text(&Message::of(text))
    }

    fn never_fits(text: &str) -> bool {
        super::never_fits(&Message::of(text))
    }

    #[test]
    fn the_numbers_of_each_wording() {
        for (text, limit, requested) in [
            ("prompt is too long: 213462 tokens > 200000 maximum", Some(200_000), Some(213_462)),
            (
                "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease",
                Some(200_000),
                Some(207_951),
            ),
            (
                "this model's maximum context length is 4097 tokens. however, you requested 5360 tokens (1360 in the messages, 4000 in the completion).",
                Some(4_097),
                Some(5_360),
            ),
            (
                "this model's maximum context length is 128000 tokens. however, your messages resulted in 130,123 tokens.",
                Some(128_000),
                Some(130_123),
            ),
            (
                "this model's maximum context length is 40960 tokens. however, you requested 100 output tokens and your prompt contains at least 40861 input tokens",
                Some(40_960),
                Some(40_961),
            ),
            (
                "the input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                Some(1_048_576),
                Some(1_200_000),
            ),
            (
                "this model's maximum prompt length is 131072 but the request contains 537812 tokens.",
                Some(131_072),
                Some(537_812),
            ),
            (
                "prompt contains 142937 tokens and 0 draft tokens, too large for model with 131072 maximum context length",
                Some(131_072),
                Some(142_937),
            ),
            (
                "your request exceeded model token limit: 262144 (requested: 291351)",
                Some(262_144),
                Some(291_351),
            ),
            (
                "prompt token count of 128744 exceeds the limit of 128000",
                Some(128_000),
                Some(128_744),
            ),
            ("range of input length should be [1, 983616]", Some(983_616), None),
            ("current length is 9000 while limit is 8192", Some(8_192), Some(9_000)),
            ("context size has been exceeded", None, None),
        ] {
            let window = from_text(text).unwrap_or_default();
            assert_eq!((window.limit, window.requested), (limit, requested), "{text}");
        }
    }

    #[test]
    fn a_request_larger_than_the_bucket() {
        assert!(never_fits("tokens per minute (tpm): limit 6000, requested 10338, please reduce"));
        assert!(!never_fits("(tpm): limit 10000, used 8554, requested 3082. please"));
        assert!(!never_fits("limit: 10000 / min."));
    }
}
