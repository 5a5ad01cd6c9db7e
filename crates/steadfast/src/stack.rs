//! All layers, in their order.

use std::fmt;

use steadfast_breaker::{BreakerHandle, BreakerPolicy, CircuitBreaker, CircuitBreakerLayer};
use steadfast_chat::{ChatRequest, ChatResponse, Events};
use steadfast_classify::{ClassifyLayer, service::Classify};
use steadfast_compact::{Compaction, CompactionHandle, CompactionLayer};
use steadfast_core::{Failure, RecoveryTable, RetryBudget};
use steadfast_failover::{
    Chain, CooldownFailover, CooldownFailoverLayer, FailoverHandle, OneChain,
};
use steadfast_guard::{SafetyGuard, SafetyGuardHandle, SafetyGuardLayer};
use steadfast_recover::{
    Continuation, ContinuationHandle, ContinuationLayer, ResumeHandle, StreamResume,
    StreamResumeLayer,
};
use steadfast_retry::{RetryBackoff, RetryBackoffLayer, RetryHandle};
use steadfast_timeout::{DeadlineLayer, StallTimeout, StallTimeoutLayer, Timeout, TimeoutHandle};
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_layer::Layer;
use tower_service::Service;

use crate::{Policies, PoliciesError, Preset};

/// A chat service whose type has been forgotten: cheap to clone, to be shared between tasks.
pub type ChatService = BoxCloneSyncService<ChatRequest, ChatResponse, Failure>;

/// What a [`Stack`] makes of a service.
pub type Stacked<S, C = OneChain> = Timeout<SafetyGuard<Continuation<StreamResume<Routed<S, C>>>>>;

/// The layers of a [`Stack`] from failover inwards.
type Routed<S, C> =
    CooldownFailover<Compaction<RetryBackoff<CircuitBreaker<StallTimeout<Classify<S>>>>>, C>;

/// All layers, in the order that works, sharing one retry budget.
///
/// ```
/// use steadfast::{Stack, ChatRequest, failover::Chain};
/// # use steadfast::{ChatResponse, Delta, Dialect, Event, EventStream, Failure, Head};
/// # fn client() -> steadfast::ChatService {
/// #     tower::util::BoxCloneSyncService::new(tower::service_fn(async |request: ChatRequest| {
/// #         assert_eq!(request.context.target.as_ref().unwrap().provider(), "anthropic");
/// #         let say = Delta::Text { index: 0, text: "Hello!".into() };
/// #         let events = tokio_stream::iter([Ok(Event::new([say, Delta::End]))]);
/// #         let events = Box::pin(events) as EventStream;
/// #         Ok::<_, Failure>(ChatResponse::new(Head::new(Dialect::Anthropic), events))
/// #     }))
/// # }
/// # use tower::ServiceExt;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stack = Stack::new(Chain::new(["anthropic", "openai", "google"])?);
/// let llm = stack.boxed(client());
/// let answer = llm.oneshot(ChatRequest::user("hello")).await?.collect().await?;
/// assert_eq!(answer.text(), "Hello!");
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a stack does nothing until it wraps a client"]
pub struct Stack<C = OneChain> {
    deadline: DeadlineLayer,
    guard: SafetyGuardLayer,
    continuation: ContinuationLayer,
    resume: StreamResumeLayer,
    failover: CooldownFailoverLayer<C>,
    compaction: CompactionLayer,
    retry: RetryBackoffLayer,
    breaker: CircuitBreakerLayer,
    stall: StallTimeoutLayer,
    classify: ClassifyLayer,
}

/// The handles of a [`Stack`]'s layers: to look at their state, and to steer it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Handles {
    /// What each task used and which were stopped; [`extend`](SafetyGuardHandle::extend) sets a task's
    /// counts to zero and lifts its stop.
    pub guard: SafetyGuardHandle,
    /// Which answers were cut off.
    pub continuation: ContinuationHandle,
    /// Which streams broke.
    pub resume: ResumeHandle,
    /// Which targets are cooling, why, and until when.
    pub failover: FailoverHandle,
    /// What was compacted, and what was spent on it.
    pub compaction: CompactionHandle,
    /// Each breaker's state.
    pub breaker: BreakerHandle,
    /// What was retried, and the budget.
    pub retry: RetryHandle,
    /// Which limits of an attempt fired.
    pub stall: TimeoutHandle,
    /// How often the whole took too long.
    pub deadline: TimeoutHandle,
}

impl Stack {
    /// Every layer with its defaults, around `chain`.
    pub fn new(chain: Chain) -> Self {
        Self::around(CooldownFailoverLayer::new(chain))
    }
}

impl<C> Stack<C> {
    /// Every other layer with its defaults, around this failover.
    pub fn around(failover: CooldownFailoverLayer<C>) -> Self {
        let budget = RetryBudget::default();
        Self {
            deadline: DeadlineLayer::default(),
            guard: SafetyGuardLayer::default(),
            continuation: ContinuationLayer::default(),
            resume: StreamResumeLayer::default().with_budget(budget.drawing()),
            failover: failover.with_budget(budget.clone()),
            compaction: CompactionLayer::rules_only(),
            retry: RetryBackoffLayer::in_stack().with_budget(budget.drawing()),
            breaker: CircuitBreakerLayer::default(),
            stall: StallTimeoutLayer::default(),
            classify: ClassifyLayer::default(),
        }
    }

    /// With the policies of a documented system in every layer. Comes first: of what is set before only the
    /// chains, the summariser and the classifier's own rules are kept.
    #[expect(clippy::expect_used, reason = "the policies of presets are valid; a test makes each")]
    pub fn preset(self, preset: Preset) -> Self {
        self.with_policies(&preset.policies()).expect("the policies of a preset are valid")
    }

    /// With these policies in every layer. Comes first: of what is set before only the chains, the
    /// summariser and the classifier's own rules are kept.
    ///
    /// # Errors
    ///
    /// When a policy is invalid.
    pub fn with_policies(self, policies: &Policies) -> Result<Self, PoliciesError> {
        policies.failover.validate().map_err(PoliciesError::of("failover"))?;
        let table = policies.failover.table.clone();
        let guard = match &policies.guard {
            Some(policy) => SafetyGuardLayer::new(policy.clone()),
            None => Ok(SafetyGuardLayer::off()),
        };
        let continuation = match &policies.continuation {
            Some(policy) => ContinuationLayer::new(policy.clone()),
            None => Ok(ContinuationLayer::off()),
        };
        let resume = match &policies.resume {
            Some(policy) => StreamResumeLayer::new(policy.clone()),
            None => Ok(StreamResumeLayer::off()),
        };
        let compaction = match &policies.compaction {
            Some(policy) => self
                .compaction
                .with_policy(policy.clone())
                .and_then(|layer| layer.with_summaries(policies.summaries))
                .map(|layer| layer.with_spend(policies.spend).with_deferred(policies.deferred)),
            None => Ok(CompactionLayer::off()),
        };
        let breaker = BreakerPolicy { table: table.clone(), ..policies.breaker.clone() };
        let deadline = DeadlineLayer::new(policies.deadline);
        let retry = RetryBackoffLayer::new(policies.retry);
        let stack = Self {
            deadline: deadline.map_err(PoliciesError::of("deadline"))?,
            guard: guard.map_err(PoliciesError::of("guard"))?,
            continuation: continuation.map_err(PoliciesError::of("continuation"))?,
            resume: resume.map_err(PoliciesError::of("resume"))?,
            failover: self.failover.with_policy(policies.failover.clone()),
            compaction: compaction.map_err(PoliciesError::of("compaction"))?,
            retry: retry.map_err(PoliciesError::of("retry"))?,
            breaker: CircuitBreakerLayer::new(breaker).map_err(PoliciesError::of("breaker"))?,
            stall: StallTimeoutLayer::new(policies.stall).map_err(PoliciesError::of("stall"))?,
            classify: self.classify.with_table(table).with_policy(policies.classify.clone()),
        };
        Ok(match policies.budget.capacity {
            0 => stack.without_budget(),
            _ => stack.with_budget(RetryBudget::new(policies.budget)),
        })
    }

    /// With this limit of the whole.
    pub fn with_deadline(mut self, layer: DeadlineLayer) -> Self {
        self.deadline = layer;
        self
    }

    /// With this guard: its limits, and what it knows of tasks.
    pub fn with_guard(mut self, layer: impl Into<SafetyGuardLayer>) -> Self {
        self.guard = layer.into();
        self
    }

    /// Without a guard: nothing is counted, and nothing stopped.
    pub fn without_guard(mut self) -> Self {
        self.guard = SafetyGuardLayer::off();
        self
    }

    /// With these continuations of answers that are cut off.
    pub fn with_continuation(mut self, layer: ContinuationLayer) -> Self {
        self.continuation = layer;
        self
    }

    /// Without continuations: an answer that is cut off is passed on as it comes.
    pub fn without_continuation(mut self) -> Self {
        self.continuation = ContinuationLayer::off();
        self
    }

    /// With these resumes of streams that break. Give it a budget of its own, or set the
    /// [`with_budget`](Self::with_budget) of the stack after it.
    pub fn with_resume(mut self, layer: StreamResumeLayer) -> Self {
        self.resume = layer;
        self
    }

    /// With this compaction: its summariser, models and limits.
    pub fn with_compaction(mut self, layer: CompactionLayer) -> Self {
        self.compaction = layer;
        self
    }

    /// Without compaction: what is too long for its model is refused by it.
    pub fn without_compaction(mut self) -> Self {
        self.compaction = CompactionLayer::off();
        self
    }

    /// Without resumes: a stream that breaks after content ends with its failure.
    pub fn without_resume(mut self) -> Self {
        self.resume = StreamResumeLayer::off();
        self
    }

    /// With these retries. Without a budget of its own it draws from that of the failover.
    pub fn with_retry(mut self, layer: RetryBackoffLayer) -> Self {
        self.retry = layer;
        self
    }

    /// With this breaker.
    pub fn with_breaker(mut self, layer: CircuitBreakerLayer) -> Self {
        self.breaker = layer;
        self
    }

    /// With these limits of an attempt.
    pub fn with_stall(mut self, layer: StallTimeoutLayer) -> Self {
        self.stall = layer;
        self
    }

    /// With this classifier.
    pub fn with_classify(mut self, layer: ClassifyLayer) -> Self {
        self.classify = layer;
        self
    }

    /// With `budget` for retries, failovers and resumes together.
    pub fn with_budget(mut self, budget: RetryBudget) -> Self {
        self.retry = self.retry.with_budget(budget.drawing());
        self.resume = self.resume.with_budget(budget.drawing());
        self.failover = self.failover.with_budget(budget);
        self
    }

    /// With nothing that bounds retries, failovers and resumes together, but what each call brings
    /// itself.
    pub fn without_budget(mut self) -> Self {
        self.retry = self.retry.without_budget();
        self.resume = self.resume.without_budget();
        self.failover = self.failover.without_budget();
        self
    }

    /// With the operator's own table of what each reason means, for failover and classifier.
    pub fn with_table(mut self, table: RecoveryTable) -> Self {
        self.failover = self.failover.with_table(table.clone());
        self.classify = self.classify.with_table(table);
        self
    }

    /// The handles of the layers. Take them last: a setting begins with fresh state.
    pub fn handles(&self) -> Handles {
        Handles {
            guard: self.guard.guard().clone(),
            continuation: self.continuation.handle(),
            resume: self.resume.handle(),
            failover: self.failover.handle(),
            compaction: self.compaction.handle(),
            breaker: self.breaker.handle(),
            retry: self.retry.handle(),
            stall: self.stall.handle(),
            deadline: self.deadline.handle(),
        }
    }
}

impl<C> Stack<C> {
    /// The stack around `client`, its type forgotten.
    pub fn boxed<S, E>(&self, client: S) -> ChatService
    where
        S: Clone,
        C: Clone,
        Stacked<S, C>: Service<ChatRequest, Response = ChatResponse<E>, Error = Failure>
            + Clone
            + Send
            + Sync
            + 'static,
        <Stacked<S, C> as Service<ChatRequest>>::Future: Send + 'static,
        E: Events + Send + 'static,
    {
        BoxCloneSyncService::new(self.layer(client).map_response(ChatResponse::boxed))
    }
}

/// A chain that names a provider which the client does not know.
#[cfg(feature = "client")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownProvider {
    /// What the chain names.
    pub provider: String,
    /// What the client knows.
    pub known: Vec<String>,
}

#[cfg(feature = "client")]
impl fmt::Display for UnknownProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { provider, known } = self;
        write!(
            f,
            "the chain names the provider `{provider}`, which the client does not know; it knows: {}",
            known.join(", ")
        )
    }
}

#[cfg(feature = "client")]
impl std::error::Error for UnknownProvider {}

#[cfg(feature = "client")]
impl<C> Stack<C> {
    /// The stack around `client`, its type forgotten; the client has to know every provider of the chains.
    ///
    /// # Errors
    ///
    /// The first provider that it does not know.
    pub fn connect<T, E>(
        &self,
        client: steadfast_client::LlmClient<T>,
    ) -> Result<ChatService, UnknownProvider>
    where
        T: Clone,
        C: Clone,
        Stacked<steadfast_client::LlmClient<T>, C>: Service<ChatRequest, Response = ChatResponse<E>, Error = Failure>
            + Clone
            + Send
            + Sync
            + 'static,
        <Stacked<steadfast_client::LlmClient<T>, C> as Service<ChatRequest>>::Future:
            Send + 'static,
        E: Events + Send + 'static,
    {
        let known: Vec<_> = client.providers().names().map(str::to_owned).collect();
        let chains = self.failover.handle().chains();
        let named = chains.iter().flat_map(|(_, chain)| chain.iter());
        match named.map(|spec| &spec.provider).find(|provider| !known.contains(provider)) {
            Some(provider) => Err(UnknownProvider { provider: provider.clone(), known }),
            None => Ok(self.boxed(client)),
        }
    }
}

impl<S, C> Layer<S> for Stack<C>
where
    S: Clone,
    C: Clone,
{
    type Service = Stacked<S, C>;

    fn layer(&self, client: S) -> Self::Service {
        ServiceBuilder::new()
            .layer(&self.deadline)
            .layer(&self.guard)
            .layer(&self.continuation)
            .layer(&self.resume)
            .layer(&self.failover)
            .layer(&self.compaction)
            .layer(&self.retry)
            .layer(&self.breaker)
            .layer(&self.stall)
            .layer(&self.classify)
            .service(client)
    }
}

impl<C> fmt::Debug for Stack<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack")
            .field("deadline", &self.deadline)
            .field("guard", &self.guard)
            .field("continuation", &self.continuation)
            .field("resume", &self.resume)
            .field("compaction", &self.compaction)
            .field("retry", &self.retry)
            .field("breaker", &self.breaker)
            .field("stall", &self.stall)
            .field("classify", &self.classify)
            .finish_non_exhaustive()
    }
}
