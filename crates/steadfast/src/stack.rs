//! All layers, in their order.

use std::{fmt, pin::Pin};

use steadfast_breaker::{BreakerHandle, BreakerPolicy, CircuitBreaker, CircuitBreakerLayer};
use steadfast_chat::{ChatRequest, ChatResponse, Events};
use steadfast_classify::{ClassifyLayer, service::Classify};
use steadfast_compact::{Compaction, CompactionHandle, CompactionLayer};
use steadfast_core::{
    Attempts, AttemptsLayer, Failure, IntoBoxError, OnStep, OnStepLayer, RecoveryTable,
    RetryBudget, SpendLedger, Step,
};
use steadfast_escalate::{Escalation, EscalationHandle, EscalationLayer};
use steadfast_failover::{
    Chain, ChooseChain, CooldownFailover, CooldownFailoverLayer, FailoverHandle, OneChain,
};
use steadfast_guard::{SafetyGuard, SafetyGuardHandle, SafetyGuardLayer};
use steadfast_health::{HealthHandle, ProviderHealth, ProviderHealthLayer};
use steadfast_limit::{
    RateHandle, RateLimitLayer, RateLimited, SpendLimit, SpendLimitLayer, SpendMeter,
};
use steadfast_recover::{
    Continuation, ContinuationHandle, ContinuationLayer, ResumeHandle, StreamResume,
    StreamResumeLayer, ThinkingMemory, ThinkingMemoryHandle, ThinkingMemoryLayer,
};
use steadfast_retry::{RetryBackoff, RetryBackoffLayer, RetryHandle};
use steadfast_timeout::{DeadlineLayer, StallTimeout, StallTimeoutLayer, Timeout, TimeoutHandle};
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_layer::{Identity, Layer};
use tower_service::Service;

use crate::{Policies, PoliciesError, Preset};

/// A chat service whose type has been forgotten: cheap to clone, to be shared between tasks.
pub type ChatService = BoxCloneSyncService<ChatRequest, ChatResponse, Failure>;

/// A call whose type has been forgotten.
type BoxedCall = Pin<Box<dyn Future<Output = Result<ChatResponse, Failure>> + Send>>;

/// What a [`Stack`] makes of a service.
pub type Stacked<S, C = OneChain, L = Identity> =
    Called<Answered<AtTarget<Attempted<<L as Layer<S>>::Service>>, C>>;

/// The layers of a [`Stack`] that a call goes through once.
type Called<S> = OnStep<Timeout<SpendLimit<Escalation<SafetyGuard<S>>>>>;

/// The layers of a [`Stack`] that make one answer.
type Answered<S, C> = Continuation<StreamResume<CooldownFailover<S, C>>>;

/// The layers of a [`Stack`] that a call goes through at each target.
type AtTarget<S> = ProviderHealth<Compaction<RetryBackoff<S>>>;

/// The layers of a [`Stack`] that each attempt goes through.
type Attempted<S> =
    RateLimited<CircuitBreaker<Attempts<StallTimeout<SpendMeter<ThinkingMemory<Classify<S>>>>>>>;

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
pub struct Stack<C = OneChain, L = Identity> {
    pub(crate) on_step: OnStepLayer,
    pub(crate) deadline: DeadlineLayer,
    pub(crate) spend_limit: SpendLimitLayer,
    escalation: EscalationLayer,
    guard: SafetyGuardLayer,
    continuation: ContinuationLayer,
    resume: StreamResumeLayer,
    pub(crate) failover: CooldownFailoverLayer<C>,
    pub(crate) health: ProviderHealthLayer,
    compaction: CompactionLayer,
    pub(crate) retry: RetryBackoffLayer,
    pub(crate) rate_limit: RateLimitLayer,
    pub(crate) breaker: CircuitBreakerLayer,
    attempts: AttemptsLayer,
    pub(crate) stall: StallTimeoutLayer,
    thinking: ThinkingMemoryLayer,
    pub(crate) classify: ClassifyLayer,
    target_layer: L,
}

/// The handles of a [`Stack`]'s layers: to look at their state, and to steer it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Handles {
    /// What each tenant and each API key has spent, where caps are set or it is recorded.
    pub spend: SpendLedger,
    /// Which requests wait for a person, and what is decided about them.
    pub escalation: EscalationHandle,
    /// What each task used and which were stopped; [`extend`](SafetyGuardHandle::extend) sets a task's
    /// counts to zero and lifts its stop.
    pub guard: SafetyGuardHandle,
    /// Which answers were cut off.
    pub continuation: ContinuationHandle,
    /// Which streams broke.
    pub resume: ResumeHandle,
    /// Which targets are cooling, why, and until when.
    pub failover: FailoverHandle,
    /// Which providers are degraded, seen across all callers.
    pub health: HealthHandle,
    /// What was compacted, and what was spent on it.
    pub compaction: CompactionHandle,
    /// What is known of each target's rate limits, and who waits for them.
    pub rate_limit: RateHandle,
    /// Each breaker's state.
    pub breaker: BreakerHandle,
    /// What was retried, and the budget.
    pub retry: RetryHandle,
    /// Which limits of an attempt fired.
    pub stall: TimeoutHandle,
    /// What is remembered of the thinking that models have signed.
    pub thinking: ThinkingMemoryHandle,
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
        let stack = Self {
            on_step: OnStepLayer::none(),
            deadline: DeadlineLayer::default(),
            spend_limit: SpendLimitLayer::default(),
            escalation: EscalationLayer::off(),
            guard: SafetyGuardLayer::default(),
            continuation: ContinuationLayer::default(),
            resume: StreamResumeLayer::default().with_budget(budget.drawing()),
            failover: failover.with_budget(budget.clone()),
            compaction: CompactionLayer::rules_only(),
            health: ProviderHealthLayer::default(),
            retry: RetryBackoffLayer::in_stack().with_budget(budget.drawing()),
            rate_limit: RateLimitLayer::default(),
            breaker: CircuitBreakerLayer::default(),
            attempts: AttemptsLayer::new(),
            stall: StallTimeoutLayer::default(),
            thinking: ThinkingMemoryLayer::default(),
            classify: ClassifyLayer::default(),
            target_layer: Identity::new(),
        };
        stack.with_shared()
    }
}

impl<C, L> Stack<C, L> {
    /// Gives each step of each layer to `on_step`, as it happens and whether or not the caller keeps a
    /// [`RecoveryLog`](steadfast_core::RecoveryLog): see [`OnStepLayer`]. Called again, it adds another.
    ///
    /// ```
    /// # use steadfast::{Stack, failover::Chain};
    /// # let chain = Chain::new(["anthropic"]).unwrap();
    /// let stack = Stack::new(chain).on_step(|step| println!("{step}"));
    /// ```
    pub fn on_step(mut self, on_step: impl Fn(&Step) + Send + Sync + 'static) -> Self {
        self.on_step = self.on_step.and(on_step);
        self
    }

    /// With a layer of your own around each attempt at a target. It is the innermost one, directly around the
    /// client: it gets the request as it is sent, with the target in
    /// [`context.target`](steadfast_core::CallContext::target), and what it returns is classified.
    ///
    /// Any `tower::Layer` whose service is `Clone`; several are one
    /// [`ServiceBuilder`](tower::ServiceBuilder), with a limit outside of what may refuse a call: otherwise the
    /// refused call keeps its permit until the whole call is over. Their errors need `Into<BoxError>`.
    ///
    /// ```
    /// use steadfast::{ChatRequest, Stack, failover::Chain};
    /// use tower::{ServiceBuilder, limit::ConcurrencyLimitLayer, util::MapRequestLayer};
    ///
    /// // A header for one provider.
    /// let header = MapRequestLayer::new(|mut request: ChatRequest| {
    ///     if request.context.target.as_ref().is_some_and(|target| target.provider() == "house") {
    ///         let team = http::HeaderValue::from_static("search");
    ///         request.headers.insert("x-team", team);
    ///     }
    ///     request
    /// });
    /// // At most four attempts that wait for the head of their answer, at all targets together: clones of the
    /// // service share the limit.
    /// let limit = ConcurrencyLimitLayer::new(4);
    ///
    /// let chain = Chain::new(["house", "anthropic"])?;
    /// let stack = Stack::new(chain).with_target_layer(ServiceBuilder::new().layer(limit).layer(header));
    /// # let _ = stack;
    /// # Ok::<(), steadfast::failover::ChainError>(())
    /// ```
    pub fn with_target_layer<L2>(self, target_layer: L2) -> Stack<C, L2> {
        Stack {
            on_step: self.on_step,
            deadline: self.deadline,
            spend_limit: self.spend_limit,
            escalation: self.escalation,
            guard: self.guard,
            continuation: self.continuation,
            resume: self.resume,
            failover: self.failover,
            health: self.health,
            compaction: self.compaction,
            retry: self.retry,
            rate_limit: self.rate_limit,
            breaker: self.breaker,
            attempts: self.attempts,
            stall: self.stall,
            thinking: self.thinking,
            classify: self.classify,
            target_layer,
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
        let health = match policies.health {
            Some(policy) => ProviderHealthLayer::new(policy),
            None => Ok(ProviderHealthLayer::off()),
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
        let spend_limit = SpendLimitLayer::new(policies.spend_limit);
        let rate_limit = RateLimitLayer::new(policies.rate_limit);
        let stack = Self {
            on_step: self.on_step,
            deadline: deadline.map_err(PoliciesError::of("deadline"))?,
            spend_limit: spend_limit.map_err(PoliciesError::of("spend_limit"))?,
            escalation: self.escalation,
            guard: guard.map_err(PoliciesError::of("guard"))?,
            continuation: continuation.map_err(PoliciesError::of("continuation"))?,
            resume: resume.map_err(PoliciesError::of("resume"))?,
            failover: self.failover.with_policy(policies.failover.clone()),
            health: health.map_err(PoliciesError::of("health"))?,
            compaction: compaction.map_err(PoliciesError::of("compaction"))?,
            retry: retry.map_err(PoliciesError::of("retry"))?,
            rate_limit: rate_limit.map_err(PoliciesError::of("rate_limit"))?,
            breaker: CircuitBreakerLayer::new(breaker).map_err(PoliciesError::of("breaker"))?,
            attempts: AttemptsLayer::new(),
            stall: StallTimeoutLayer::new(policies.stall).map_err(PoliciesError::of("stall"))?,
            thinking: self.thinking,
            classify: self.classify.with_table(table).with_policy(policies.classify.clone()),
            target_layer: self.target_layer,
        };
        let stack = stack.with_shared();
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

    /// With these caps of what tenants and API keys may spend. Nothing is capped without.
    pub fn with_spend_limit(mut self, layer: SpendLimitLayer) -> Self {
        self.spend_limit = layer;
        self.with_shared()
    }

    /// With these rate limits. Without any set, those that providers state are kept.
    pub fn with_rate_limit(mut self, layer: RateLimitLayer) -> Self {
        self.rate_limit = layer;
        self
    }

    /// With this escalation: what every target has failed is held for a person. Without it nothing is held.
    pub fn with_escalation(mut self, layer: EscalationLayer) -> Self {
        self.escalation = layer;
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

    /// With this rule of when a provider is degraded, seen across all callers: failover asks it after the
    /// others, and nothing is summarised there.
    pub fn with_health(mut self, layer: ProviderHealthLayer) -> Self {
        self.health = layer;
        self.with_shared()
    }

    /// Takes no provider as degraded.
    pub fn without_health(self) -> Self {
        self.with_health(ProviderHealthLayer::off())
    }

    /// Failover and compaction ask the stack's health layer, and summaries are charged to the stack's ledger.
    fn with_shared(mut self) -> Self {
        let ledger = self.spend_limit.ledger().clone();
        self.compaction = self.compaction.with_health(self.health.degraded()).with_ledger(ledger);
        self.failover = match self.health.policy() {
            Some(_) => self.failover.with_health(self.health.degraded()),
            None => self.failover.without_health(),
        };
        self
    }

    /// With this compaction: its summariser, models and limits.
    pub fn with_compaction(mut self, layer: CompactionLayer) -> Self {
        self.compaction = layer;
        self.with_shared()
    }

    /// Without compaction: what is too long for its model is refused by it.
    pub fn without_compaction(mut self) -> Self {
        self.compaction = CompactionLayer::off();
        self.with_shared()
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

    /// With this memory of thinking.
    pub fn with_thinking(mut self, layer: ThinkingMemoryLayer) -> Self {
        self.thinking = layer;
        self
    }

    /// With this classifier.
    pub fn with_classify(mut self, layer: ClassifyLayer) -> Self {
        self.classify = layer;
        self
    }

    /// With `budget` for further rounds, retries beyond a call's first two, hedges and resumes together.
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

    /// As this stack is set, with the state of the stack that `handles` are of: what cools still cools, a
    /// stopped task stays stopped, and one budget is drawn from. So several stacks, of different chains and
    /// limits, know the same of the targets they share, and a stack with new settings goes on where the old
    /// one was, whose calls under way end undisturbed.
    ///
    /// Targets, their breakers and the budget go by the settings of the stack that shared them last; calls go
    /// by those of the stack they came to. The last of the settings: each of the others begins with fresh
    /// state in its layer.
    ///
    /// ```
    /// use std::time::Duration;
    /// use steadfast::{Stack, failover::Chain, timeout::DeadlineLayer};
    ///
    /// let chat = Stack::new(Chain::new(["anthropic", "openai"])?);
    /// let handles = chat.handles();
    /// let quick = Stack::new(Chain::new(["openai", "google"])?)
    ///     .with_deadline(DeadlineLayer::after(Duration::from_secs(20))?)
    ///     .sharing(&handles);
    /// # let _ = quick;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sharing(mut self, handles: &Handles) -> Self {
        if let (Some(own), Some(shared)) = (self.failover.budget(), handles.failover.budget()) {
            let budget = own.sharing(shared);
            self = self.with_budget(budget);
        }
        if self.health.policy().is_some() {
            let health = self.health.clone().sharing(&handles.health);
            self = self.with_health(health);
        }
        Self {
            on_step: self.on_step,
            deadline: self.deadline.sharing(&handles.deadline),
            spend_limit: self.spend_limit.with_ledger(handles.spend.clone()),
            escalation: self.escalation.sharing(&handles.escalation),
            guard: self.guard.sharing(&handles.guard),
            continuation: self.continuation.sharing(&handles.continuation),
            resume: self.resume.sharing(&handles.resume),
            failover: self.failover.sharing(&handles.failover),
            health: self.health,
            compaction: self.compaction.sharing(&handles.compaction),
            retry: self.retry.sharing(&handles.retry),
            rate_limit: self.rate_limit.sharing(&handles.rate_limit),
            breaker: self.breaker.sharing(&handles.breaker),
            attempts: self.attempts,
            stall: self.stall.sharing(&handles.stall),
            thinking: self.thinking.sharing(&handles.thinking),
            classify: self.classify,
            target_layer: self.target_layer,
        }
    }

    /// The handles of the layers. Take them last: a setting begins with fresh state.
    pub fn handles(&self) -> Handles {
        Handles {
            spend: self.spend_limit.ledger().clone(),
            escalation: self.escalation.handle(),
            guard: self.guard.guard().clone(),
            continuation: self.continuation.handle(),
            resume: self.resume.handle(),
            failover: self.failover.handle(),
            health: self.health.handle(),
            compaction: self.compaction.handle(),
            breaker: self.breaker.handle(),
            retry: self.retry.handle(),
            rate_limit: self.rate_limit.handle(),
            stall: self.stall.handle(),
            thinking: self.thinking.handle(),
            deadline: self.deadline.handle(),
        }
    }
}

impl<C, L> Stack<C, L> {
    /// The stack around `client`, its type forgotten.
    pub fn boxed<S, E>(&self, client: S) -> ChatService
    where
        L: Layer<S>,
        L::Service: Service<ChatRequest, Response = ChatResponse<E>, Error: IntoBoxError, Future: Send>
            + Clone
            + Send
            + Sync
            + 'static,
        C: ChooseChain<ChatRequest> + Clone + Send + Sync + 'static,
        E: Events + Unpin + Send + 'static,
    {
        let attempt = opaque(self.attempt(client));
        let answer = opaque(self.answer(opaque(self.target(attempt))));
        BoxCloneSyncService::new(self.call(answer).map_response(ChatResponse::boxed))
    }

    /// What a call goes through once, around what makes its answer.
    fn call<S: Clone>(&self, answer: S) -> Called<S> {
        ServiceBuilder::new()
            .layer(&self.on_step)
            .layer(&self.deadline)
            .layer(&self.spend_limit)
            .layer(&self.escalation)
            .layer(&self.guard)
            .service(answer)
    }

    /// What makes one answer, however often it asks, around what it goes through at each target.
    fn answer<S: Clone>(&self, target: S) -> Answered<S, C>
    where
        C: Clone,
    {
        ServiceBuilder::new()
            .layer(&self.continuation)
            .layer(&self.resume)
            .layer(&self.failover)
            .service(target)
    }

    /// What a call goes through at each target, around its attempts.
    fn target<S: Clone>(&self, attempt: S) -> AtTarget<S> {
        ServiceBuilder::new()
            .layer(&self.health)
            .layer(&self.compaction)
            .layer(&self.retry)
            .service(attempt)
    }

    /// What each attempt goes through, around `client`.
    fn attempt<S>(&self, client: S) -> Attempted<L::Service>
    where
        L: Layer<S, Service: Clone>,
    {
        ServiceBuilder::new()
            .layer(&self.rate_limit)
            .layer(&self.breaker)
            .layer(&self.attempts)
            .layer(&self.stall)
            .layer(self.spend_limit.meter())
            .layer(&self.thinking)
            .layer(&self.classify)
            .layer(&self.target_layer)
            .service(client)
    }
}

/// `service` with its future and its answer behind pointers. Each layer moves those of the layers inside it, several
/// times and some kilobytes: of a call through the whole stack that was a quarter of all instructions.
fn opaque<S, E>(
    service: S,
) -> impl Service<ChatRequest, Response = ChatResponse, Error = Failure, Future = BoxedCall>
+ Clone
+ Send
+ Sync
+ 'static
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error = Failure, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    E: Events + Send + 'static,
{
    service.map_response(ChatResponse::boxed).map_future(|future| Box::pin(future) as BoxedCall)
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
impl<C, L> Stack<C, L> {
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
        L: Layer<steadfast_client::LlmClient<T>>,
        L::Service: Service<ChatRequest, Response = ChatResponse<E>, Error: IntoBoxError, Future: Send>
            + Clone
            + Send
            + Sync
            + 'static,
        C: ChooseChain<ChatRequest> + Clone + Send + Sync + 'static,
        E: Events + Unpin + Send + 'static,
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

impl<S, C, L> Layer<S> for Stack<C, L>
where
    L: Layer<S, Service: Clone>,
    C: Clone,
{
    type Service = Stacked<S, C, L>;

    fn layer(&self, client: S) -> Self::Service {
        self.call(self.answer(self.target(self.attempt(client))))
    }
}

impl<C, L> fmt::Debug for Stack<C, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack")
            .field("on_step", &self.on_step)
            .field("deadline", &self.deadline)
            .field("spend_limit", &self.spend_limit)
            .field("escalation", &self.escalation)
            .field("guard", &self.guard)
            .field("continuation", &self.continuation)
            .field("resume", &self.resume)
            .field("health", &self.health)
            .field("compaction", &self.compaction)
            .field("retry", &self.retry)
            .field("rate_limit", &self.rate_limit)
            .field("breaker", &self.breaker)
            .field("stall", &self.stall)
            .field("thinking", &self.thinking)
            .field("classify", &self.classify)
            .finish_non_exhaustive()
    }
}
