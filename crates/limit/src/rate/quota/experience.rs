//! What calls use, as far as they have shown.

use steadfast_core::Usage;

/// What is taken for the output of a call, before any has ended.
const FIRST_OUTPUT: u64 = 500;

/// What calls of the key have really used, of late: about the mean of the last eight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experience {
    pub(super) output: f64,
    /// Input reported, for each token that was estimated.
    pub(super) input: f64,
    /// The share of the input that did not come from a cache.
    pub(super) fresh: f64,
}

impl Default for Experience {
    fn default() -> Self {
        Self { output: FIRST_OUTPUT as f64, input: 1.0, fresh: 1.0 }
    }
}

impl Experience {
    pub(super) fn learn(&mut self, estimated: u64, usage: &Usage) {
        let update = |mean: &mut f64, value: f64| *mean += (value - *mean) / 8.0;
        if let Some(output) = usage.output {
            update(&mut self.output, output as f64);
        }
        let Some(input) = usage.input.filter(|input| *input > 0) else { return };
        update(&mut self.fresh, fresh(input, usage) as f64 / input as f64);
        if estimated > 0 {
            update(&mut self.input, (input as f64 / estimated as f64).clamp(0.1, 100.0));
        }
    }
}

/// What of `input` was not read from a cache: what providers count where input has a limit of its own.
pub(super) fn fresh(input: u64, usage: &Usage) -> u64 {
    input.saturating_sub(usage.cache_read.unwrap_or(0))
}
