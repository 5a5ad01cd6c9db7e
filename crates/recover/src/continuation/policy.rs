//! How cut-off answers are continued.

use std::{fmt, sync::Arc};

use steadfast_chat::ChatRequest;
use steadfast_core::Target;

use crate::PolicyError;

/// How cut-off answers are continued; plain fields. Limits are in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ContinuationPolicy {
    /// What the output limit is raised to, once; 0 for never.
    pub escalate_to: u64,
    /// How often one answer is continued, at most; 0 for never.
    pub continuations: u32,
    /// A continuation that brings fewer new tokens than this brings little.
    pub little: u64,
    /// After so many continuations in a row that brought little, there are no more; 0 to go on
    /// whatever they bring.
    pub poor_in_a_row: u32,
    /// A request that asks for fewer tokens than this is left alone.
    pub least: u64,
    /// Holds back a streamed answer until it is known why it stopped, so that the output limit can
    /// be raised for it too.
    pub withhold: bool,
    /// The most to keep or hold back of an answer, in bytes. A longer one is not continued.
    pub max_partial: usize,
}

impl Default for ContinuationPolicy {
    /// 64,000: what current models write at most in one answer; with the usual limit of 8,000 one
    /// raise is enough for nearly all. 3 continuations of that are a book. Fewer than 500 tokens, three
    /// times in a row, is a model that goes in circles. A caller who asks for fewer than 256 tokens
    /// wants a title or a label, and no more. 1 MiB: see [`ResumePolicy`](crate::ResumePolicy).
    fn default() -> Self {
        Self {
            escalate_to: 64_000,
            continuations: 3,
            little: 500,
            poor_in_a_row: 3,
            least: 256,
            withhold: false,
            max_partial: 1 << 20,
        }
    }
}

impl ContinuationPolicy {
    /// Whether it never asks again.
    pub(crate) fn is_off(&self) -> bool {
        self.escalate_to == 0 && self.continuations == 0
    }

    /// Whether it makes sense.
    ///
    /// # Errors
    ///
    /// The first thing that does not.
    pub fn validate(&self) -> Result<(), PolicyError> {
        if self.max_partial == 0 {
            let off = ", or set `continuations` and `escalate_to` to 0";
            return Err(PolicyError::Zero("max_partial", off));
        }
        Ok(())
    }
}

/// What a model can do, in tokens; `None` where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimits {
    /// The most it writes in one answer.
    pub max_output: Option<u64>,
    /// Its window, of input and output together.
    pub window: Option<u64>,
}

/// Knows the limits of models. Implemented for closures.
pub(crate) type KnowsLimits = dyn Fn(&ChatRequest, Option<&Target>) -> OutputLimits + Send + Sync;

#[derive(Clone, Default)]
pub(crate) struct Limits(pub(crate) Option<Arc<KnowsLimits>>);

impl Limits {
    /// What the limit of `request` may be raised to, when that is more than `now`; `input` is what
    /// the request reads.
    pub(crate) fn raised(
        &self,
        policy: &ContinuationPolicy,
        request: &ChatRequest,
        target: Option<&Target>,
        input: u64,
        wrote: u64,
    ) -> Option<u64> {
        let limits = self.0.as_ref().map(|knows| knows(request, target)).unwrap_or_default();
        let room = limits.window.map(|window| window.saturating_sub(input));
        let most = [limits.max_output, room].into_iter().flatten().min().unwrap_or(u64::MAX);
        let raised = policy.escalate_to.min(most);
        (raised > request.params.max_output.unwrap_or(wrote)).then_some(raised)
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Limits(by closure)" } else { "Limits(unknown)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_as_far_as_everything_allows() {
        for (asked, max_output, window, raised) in [
            (Some(8_000), None, None, Some(64_000)),
            (None, None, None, Some(64_000)),
            (Some(64_000), None, None, None),
            (Some(100_000), None, None, None),
            (Some(8_000), Some(32_000), None, Some(32_000)),
            (Some(8_000), Some(8_000), None, None),
            (Some(8_000), Some(32_000), Some(21_000), Some(20_000)),
            (Some(8_000), None, Some(500), None),
            (None, None, Some(4_500), None),
        ] {
            let limits = Limits(Some(Arc::new(move |_, _| OutputLimits { max_output, window })));
            let mut request = ChatRequest::user("hi");
            request.params.max_output = asked;
            let policy = ContinuationPolicy::default();
            let got = limits.raised(&policy, &request, None, 1_000, 4_000);
            assert_eq!(got, raised, "{asked:?} {max_output:?} {window:?}");
        }
    }
}
