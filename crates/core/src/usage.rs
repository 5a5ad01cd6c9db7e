//! Tokens used.

/// Tokens a call used, as the provider reported them; `None` where it reported nothing.
///
/// Providers count differently. Here `input` is everything that was read, cached or not, and
/// `output` everything that was written, visible or not; the other fields are parts of those two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Usage {
    /// All input tokens, cached ones included.
    pub input: Option<u64>,
    /// All output tokens, thinking included.
    pub output: Option<u64>,
    /// The part of `input` read from a prompt cache.
    pub cache_read: Option<u64>,
    /// The part of `input` written to a prompt cache.
    pub cache_write: Option<u64>,
    /// The part of `output` spent on thinking.
    pub thinking: Option<u64>,
}

impl Usage {
    /// Input and output tokens, nothing else known.
    pub const fn new(input: u64, output: u64) -> Self {
        Self {
            input: Some(input),
            output: Some(output),
            cache_read: None,
            cache_write: None,
            thinking: None,
        }
    }

    /// Takes the known counts of `later`: reports within one answer are cumulative, so the last one
    /// counts.
    pub fn update(&mut self, later: &Usage) {
        let Usage { input, output, cache_read, cache_write, thinking } = *later;
        self.input = input.or(self.input);
        self.output = output.or(self.output);
        self.cache_read = cache_read.or(self.cache_read);
        self.cache_write = cache_write.or(self.cache_write);
        self.thinking = thinking.or(self.thinking);
    }

    /// Adds the usage of another call that was made for the same answer.
    #[must_use]
    pub fn plus(self, other: &Usage) -> Self {
        fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
            match (a, b) {
                (Some(a), Some(b)) => Some(a.saturating_add(b)),
                (one, other) => one.or(other),
            }
        }
        Self {
            input: sum(self.input, other.input),
            output: sum(self.output, other.output),
            cache_read: sum(self.cache_read, other.cache_read),
            cache_write: sum(self.cache_write, other.cache_write),
            thinking: sum(self.thinking, other.thinking),
        }
    }

    /// Input and output together, when either is known.
    pub fn total(&self) -> Option<u64> {
        match (self.input, self.output) {
            (None, None) => None,
            (input, output) => Some(input.unwrap_or(0).saturating_add(output.unwrap_or(0))),
        }
    }
}
