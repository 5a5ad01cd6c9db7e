//! The policies of every layer of a stack, as plain data.

use std::fmt;

use steadfast_breaker::BreakerPolicy;
use steadfast_classify::ClassifyPolicy;
use steadfast_compact::{CompactionPolicy, SpendPolicy, SummaryPolicy};
use steadfast_core::BudgetPolicy;
use steadfast_failover::FailoverPolicy;
use steadfast_guard::GuardPolicy;
use steadfast_health::HealthPolicy;
use steadfast_limit::{RatePolicy, SpendLimitPolicy};
use steadfast_recover::{ContinuationPolicy, ResumePolicy};
use steadfast_retry::RetryPolicy;
use steadfast_timeout::{DeadlinePolicy, StallPolicy};

/// The policies of every layer of a [`Stack`](crate::Stack): plain fields. `None` leaves a layer out.
///
/// The default is that of [`Stack::new`](crate::Stack::new); those of other systems are
/// [presets](crate::Preset).
///
/// ```
/// use steadfast::{Policies, Preset, Stack, failover::Chain};
///
/// let mut policies = Preset::Codebuddy.policies();
/// policies.retry.retries = 3;
/// let stack = Stack::new(Chain::new(["anthropic", "openai"])?).with_policies(&policies)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Policies {
    /// The limit of the whole.
    pub deadline: DeadlinePolicy,
    /// What tenants and API keys may spend.
    pub spend_limit: SpendLimitPolicy,
    /// The limits and rules of agents' tasks.
    pub guard: Option<GuardPolicy>,
    /// How answers that are cut off are continued.
    pub continuation: Option<ContinuationPolicy>,
    /// How streams that break are resumed.
    pub resume: Option<ResumePolicy>,
    /// Who is asked, and who rests. Its table is the classifier's and the breaker's too.
    pub failover: FailoverPolicy,
    /// When a provider is degraded for all callers, so that it is asked after the others.
    pub health: Option<HealthPolicy>,
    /// How conversations are kept inside their window.
    pub compaction: Option<CompactionPolicy>,
    /// How a summariser is asked, where there is one.
    pub summaries: SummaryPolicy,
    /// What summaries may cost.
    pub spend: SpendPolicy,
    /// Whether compactions are made in the background, for the next turn.
    pub deferred: bool,
    /// How often the same target is asked again.
    pub retry: RetryPolicy,
    /// The rates at which targets are asked: those that are set, and those that they state.
    pub rate_limit: RatePolicy,
    /// What retries, failovers and resumes draw from together; a capacity of 0 for no such limit.
    pub budget: BudgetPolicy,
    /// When a target is not asked at all.
    pub breaker: BreakerPolicy,
    /// The limits of an attempt.
    pub stall: StallPolicy,
    /// What an error means.
    pub classify: ClassifyPolicy,
}

impl Default for Policies {
    fn default() -> Self {
        Self {
            deadline: DeadlinePolicy::default(),
            spend_limit: SpendLimitPolicy::default(),
            guard: Some(GuardPolicy::default()),
            continuation: Some(ContinuationPolicy::default()),
            resume: Some(ResumePolicy::default()),
            failover: FailoverPolicy::default(),
            health: Some(HealthPolicy::default()),
            compaction: Some(CompactionPolicy::default()),
            summaries: SummaryPolicy::default(),
            spend: SpendPolicy::default(),
            deferred: false,
            retry: RetryPolicy::in_stack(),
            rate_limit: RatePolicy::default(),
            budget: BudgetPolicy::default(),
            breaker: BreakerPolicy::default(),
            stall: StallPolicy::default(),
            classify: ClassifyPolicy::default(),
        }
    }
}

/// A layer's policy that is invalid, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoliciesError {
    layer: &'static str,
    message: String,
}

impl PoliciesError {
    pub(crate) fn of<E: fmt::Display>(layer: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self { layer, message: error.to_string() }
    }

    /// The layer, such as `retry`.
    pub fn layer(&self) -> &'static str {
        self.layer
    }
}

impl fmt::Display for PoliciesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.layer, self.message)
    }
}

impl std::error::Error for PoliciesError {}
