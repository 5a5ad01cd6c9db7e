//! The layers of a stack that are for embeddings, too.

use std::fmt;

use steadfast_breaker::{CircuitBreaker, CircuitBreakerLayer};
use steadfast_chat::{EmbedRequest, EmbedResponse};
use steadfast_classify::{ClassifyLayer, service::Classify};
use steadfast_core::{Attempts, AttemptsLayer, Failure, OnStep, OnStepLayer};
use steadfast_failover::{Chain, CooldownFailover, CooldownFailoverLayer};
use steadfast_health::{ProviderHealth, ProviderHealthLayer};
use steadfast_limit::{RateLimitLayer, RateLimited, SpendLimit, SpendLimitLayer, SpendMeter};
use steadfast_retry::{RetryBackoff, RetryBackoffLayer};
use steadfast_timeout::{DeadlineLayer, StallTimeout, StallTimeoutLayer, Timeout};
use tower::{ServiceBuilder, util::BoxCloneSyncService};
use tower_layer::Layer;
use tower_service::Service;

use crate::Stack;

/// A service of embeddings whose type has been forgotten: cheap to clone, to be shared between tasks.
pub type EmbedService = BoxCloneSyncService<EmbedRequest, EmbedResponse, Failure>;

/// What an [`EmbedStack`] makes of a service.
pub type EmbedStacked<S> =
    OnStep<Timeout<SpendLimit<CooldownFailover<ProviderHealth<RetriedEmbeddings<S>>>>>>;

/// The layers of an [`EmbedStack`] at one target.
type RetriedEmbeddings<S> =
    RetryBackoff<RateLimited<CircuitBreaker<Attempts<StallTimeout<SpendMeter<Classify<S>>>>>>>;

/// The layers of a [`Stack`] that do not read conversations, around a service of embeddings, with the stack's own
/// state: what cools, breaks or has a limit for chats does so for embeddings, budget and caps are the same. Made by
/// [`Stack::embeddings`].
#[derive(Clone)]
#[must_use = "a stack does nothing until it wraps a client"]
pub struct EmbedStack {
    on_step: OnStepLayer,
    deadline: DeadlineLayer,
    spend_limit: SpendLimitLayer,
    failover: CooldownFailoverLayer,
    health: ProviderHealthLayer,
    retry: RetryBackoffLayer,
    rate_limit: RateLimitLayer,
    breaker: CircuitBreakerLayer,
    attempts: AttemptsLayer,
    stall: StallTimeoutLayer,
    classify: ClassifyLayer,
}

impl<C, L> Stack<C, L> {
    /// The layers for embeddings over `chain`, with the state of this stack as it is now: take it last.
    ///
    /// Vectors of two models do not mix. So each target of `chain` has to be sent the same model for one that is
    /// asked for, whatever its name is there, and has no downgrades; those that `chain` has are left out.
    ///
    /// ```
    /// use steadfast::{Stack, failover::{Chain, TargetSpec}};
    ///
    /// let chat = Stack::new(Chain::new(["openai", "anthropic"])?);
    /// let embeddings = chat.embeddings(Chain::new([
    ///     TargetSpec::new("openai"),
    ///     TargetSpec::new("azure").with_model("text-embedding-3-small", "our-embeddings"),
    /// ])?);
    /// # let _ = embeddings;
    /// # Ok::<(), steadfast::failover::ChainError>(())
    /// ```
    pub fn embeddings(&self, chain: Chain) -> EmbedStack {
        let chain = chain.without_downgrades();
        let mut policy = self.failover.policy().clone();
        // Where a conversation is says nothing about its embeddings, and they nothing about where that is.
        policy.sticky = std::time::Duration::ZERO;
        let mut failover = CooldownFailoverLayer::new(chain).with_policy(policy);
        if let Some(budget) = self.failover.budget() {
            failover = failover.with_budget(budget.clone());
        }
        if self.health.policy().is_some() {
            failover = failover.with_health(self.health.degraded());
        }
        EmbedStack {
            on_step: self.on_step.clone(),
            deadline: self.deadline.clone(),
            spend_limit: self.spend_limit.clone(),
            failover: failover.sharing(&self.failover.handle()),
            health: self.health.clone(),
            retry: self.retry.clone(),
            rate_limit: self.rate_limit.clone(),
            breaker: self.breaker.clone(),
            attempts: AttemptsLayer::new(),
            stall: self.stall.clone(),
            classify: self.classify.clone(),
        }
    }
}

impl EmbedStack {
    /// The stack around `client`, its type forgotten.
    pub fn boxed<S>(&self, client: S) -> EmbedService
    where
        S: Service<EmbedRequest, Response = EmbedResponse, Error = Failure>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        BoxCloneSyncService::new(self.layer(client))
    }
}

impl<S: Clone> Layer<S> for EmbedStack {
    type Service = EmbedStacked<S>;

    fn layer(&self, client: S) -> Self::Service {
        ServiceBuilder::new()
            .layer(&self.on_step)
            .layer(&self.deadline)
            .layer(&self.spend_limit)
            .layer(&self.failover)
            .layer(&self.health)
            .layer(&self.retry)
            .layer(&self.rate_limit)
            .layer(&self.breaker)
            .layer(&self.attempts)
            .layer(&self.stall)
            .layer(self.spend_limit.meter())
            .layer(&self.classify)
            .service(client)
    }
}

impl fmt::Debug for EmbedStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbedStack").field("failover", &self.failover).finish_non_exhaustive()
    }
}
