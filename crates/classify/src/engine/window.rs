//! The numbers of an overflow: the limit, and what the request would have needed.

use steadfast_core::Window;

use super::numbers::{Numbers, after, count};

/// Words right before the limit.
const LIMIT_AFTER: [&str; 24] = [
    "maximum context length is ",
    "maximum context length of ",
    "maximum prompt length is ",
    "maximum input length is ",
    "maximum model length of ",
    "model token limit: ",
    "exceeds the limit of ",
    "exceed the limit of ",
    "maximum allowed input length of ",
    "maximum number of tokens allowed (",
    "maximum number of tokens allowed ",
    "number of input tokens (",
    "should be [1, ",
    "while limit is ",
    "context window of ",
    "context length of ",
    "context length (",
    "context size (",
    "context limit of ",
    "too large for model with ",
    "limit is ",
    "tokens > ",
    "must be less than ",
    "max_model_len of ",
];

/// Words right before what was asked for.
const REQUESTED_AFTER: [&str; 22] = [
    "prompt is too long: ",
    "messages resulted in ",
    "resulted in ",
    "you requested about ",
    "you requested ",
    "prompt contains at least ",
    "request contains ",
    "contains at least ",
    "prompt contains ",
    "input token count (",
    "input token count of ",
    "token count of ",
    "input token count is ",
    "input length ",
    "(requested: ",
    "requested: ",
    "current length is ",
    "the input (",
    "the request (",
    "request (",
    "prompt length (",
    "given: ",
];

/// The numbers a message states, in lower case.
pub(crate) fn from_text(lower: Numbers<'_>) -> Option<Window> {
    // `exceed context limit: 199759 + 8192 > 200000`: input, output, limit.
    if let Some((_, rest)) = after(lower, &["context limit: "])
        && let Some(sum) = sum(rest)
    {
        return Some(sum);
    }
    let limit = number(after(lower, &LIMIT_AFTER));
    let stated = after(lower, &REQUESTED_AFTER);
    let mut requested = number(stated);
    // `you requested 100 output tokens and your prompt contains at least 40861 input tokens`.
    if let Some((_, rest)) = after(lower, &["requested "])
        && let Some((output, used)) = count(rest)
        && rest[used..].starts_with(" output tokens")
    {
        let input = number(after(lower, &["contains at least ", "prompt contains ", "contains "]));
        requested = Some(output.saturating_add(input.unwrap_or(0)));
    }
    (limit.is_some() || requested.is_some()).then_some(Window { limit, requested })
}

fn number(found: Option<(&str, &str)>) -> Option<u64> {
    count(found?.1).map(|(value, _)| value).filter(|value| *value > 0)
}

fn sum(text: &str) -> Option<Window> {
    let (input, used) = count(text)?;
    let rest = text[used..].strip_prefix(" + ")?;
    let (output, used) = count(rest)?;
    let (limit, _) = count(rest[used..].strip_prefix(" > ")?)?;
    Some(Window { limit: Some(limit), requested: Some(input.saturating_add(output)) })
}

/// A rate limit's own numbers: `Limit 6000, Requested 10338`. The request that is larger than
/// the whole bucket never passes.
pub(crate) fn never_fits(lower: Numbers<'_>) -> bool {
    let requested = number(after(lower, &["requested: ", "requested ", "requested about "]));
    requested.is_some_and(|requested| {
        let limit = number(after(lower, &["limit: ", "limit ", "limit of "]));
        limit.is_some_and(|limit| requested > limit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::numbers::positions;

    fn from_text(text: &str) -> Option<Window> {
        super::from_text(Numbers { text, at: &positions(text) })
    }

    fn never_fits(text: &str) -> bool {
        super::never_fits(Numbers { text, at: &positions(text) })
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
