//! How broken streams are resumed.

use steadfast_core::{Failover, Failure, Fault, Reason, Retry};

use crate::{PolicyError, Standing, seam::SeamPolicy};

/// How broken streams are resumed; plain fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ResumePolicy {
    /// How often one answer is resumed, at most; 0 turns resuming off.
    pub resumes: u32,
    /// The most text of an answer to keep, in bytes; a longer answer that breaks is not resumed.
    pub max_partial: usize,
    /// How the seam is looked for.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub seam: SeamPolicy,
}

impl Default for ResumePolicy {
    /// 2 resumes: the same target once more, then another. 1 MiB: four times the longest answer of
    /// current models, 64,000 tokens of about four bytes each.
    fn default() -> Self {
        Self { resumes: 2, max_partial: 1 << 20, seam: SeamPolicy::default() }
    }
}

impl ResumePolicy {
    /// Whether it makes sense.
    ///
    /// # Errors
    ///
    /// The first thing that does not.
    pub fn validate(&self) -> Result<(), PolicyError> {
        if self.max_partial == 0 {
            return Err(PolicyError::Zero("max_partial", ", or set `resumes` to 0"));
        }
        self.seam.validate()
    }
}

/// Why a broken stream is not resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Declined {
    /// The failure is final, or the caller's own, or would come again.
    Reason,
    /// There is no legal seam where the answer stands.
    Place(Standing),
    /// There are several answers in one stream.
    Several,
    /// It was resumed as often as it may be.
    Spent,
    /// The request has no time left.
    Deadline,
    /// The request has no attempts left.
    Attempts,
    /// The budget has too little left.
    Budget,
    /// The continuation does not go on with what was said.
    NoSeam,
    /// The further call failed.
    Call,
}

impl Declined {
    /// The name used in logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Declined::Reason => "reason",
            Declined::Place(standing) => standing.as_str(),
            Declined::Several => "several_answers",
            Declined::Spent => "resumes_spent",
            Declined::Deadline => "deadline",
            Declined::Attempts => "attempts_spent",
            Declined::Budget => "budget",
            Declined::NoSeam => "no_seam",
            Declined::Call => "call_failed",
        }
    }
}

/// Whether a stream that broke with `failure` may be gone on with at all. What is final stays final;
/// the caller's own limits are not got round by asking again.
pub(crate) fn may_resume(failure: &Failure) -> bool {
    let forbidden =
        failure.retry() == Retry::Forbidden || failure.failover() == Failover::Forbidden;
    let caller = failure.fault() == Fault::Caller
        || failure.reason() == Reason::Cancelled
        || failure.time_limit().is_some_and(|limit| !limit.blames_provider());
    let hopeless = failure.retry() == Retry::No && failure.failover() == Failover::Never;
    !(forbidden || caller || hopeless)
}

#[cfg(test)]
mod tests {
    use steadfast_core::TimeLimit;

    use super::*;

    #[test]
    fn what_passes_or_may_go_elsewhere_is_resumed() {
        let resumed = |reason| may_resume(&Failure::new(reason, ""));
        for reason in [Reason::Network, Reason::Timeout, Reason::Overloaded, Reason::ServerError] {
            assert!(resumed(reason), "{reason}");
        }
        for reason in [Reason::Safety, Reason::Cancelled, Reason::ContentFilter, Reason::Format] {
            assert!(!resumed(reason), "{reason}");
        }
        let timeout = |limit| Failure::new(Reason::Timeout, "").with_time_limit(limit);
        assert!(may_resume(&timeout(TimeLimit::Stall)));
        assert!(!may_resume(&timeout(TimeLimit::Pipeline)));
        assert!(!may_resume(&Failure::new(Reason::Network, "").with_retry(Retry::Forbidden)));
    }
}
