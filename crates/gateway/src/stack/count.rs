//! Counts of tokens: by the provider where it can, else here.
//!
//! A count is a question beside the calls. It takes nothing from a limit or a budget, and what comes of it is in
//! no health record: a provider that has no such endpoint may serve its models well.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use steadfast::{
    ChatRequest, Failure, Target, Usage,
    client::{
        ProviderCount,
        dialect::{CountRequest, count_codec},
    },
    compact::{CountedHistory, Counter},
    failover::NextTarget,
};
use steadfast_core::{Call, Keep, Keyed, KeyedPolicy, time::later};
use tokio::time::{Instant, timeout};
use tower::{Service, ServiceExt, util::BoxCloneSyncService};

/// Has a provider count.
pub(super) type CountService = BoxCloneSyncService<CountRequest, ProviderCount, Failure>;

/// How long a provider may take: 3 s. A count takes it some tenths of a second, and an agent waits for it before it
/// goes on with its turn.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long a provider is not asked again for counts of a model when it has no endpoint for that: an hour.
const UNABLE: Duration = Duration::from_secs(3_600);

/// The same when it failed: a minute, so that an agent waits for one that hangs now and then, and not in each turn.
const FAILED: Duration = Duration::from_secs(60);

/// Targets that are remembered not to count.
const MAX_TARGETS: usize = 1_024;

/// Who counts.
pub(crate) struct Counting {
    service: CountService,
    counter: Arc<Counter>,
    resting: Keyed<Target, RestingCount>,
    /// Something has been counted here: then the counter learns from chats, too.
    counts_here: AtomicBool,
}

/// Until when a target is not asked for counts.
#[derive(Debug)]
struct RestingCount(Instant);

impl Keep for RestingCount {}

/// A count, and who made it.
#[derive(Debug)]
pub(crate) enum Counted {
    /// The provider of this target.
    ByProvider(ProviderCount, Target),
    /// This gateway.
    Here(u64),
}

impl Counting {
    pub(super) fn new(service: CountService, counter: Arc<Counter>) -> Self {
        let policy = KeyedPolicy { capacity: MAX_TARGETS, ..KeyedPolicy::default() };
        let resting = Keyed::new(policy);
        Self { service, counter, resting, counts_here: AtomicBool::new(false) }
    }

    /// The input tokens of `request`, which would go to `next`.
    ///
    /// # Errors
    ///
    /// What that provider refuses of the request, where it and the caller speak the same dialect.
    pub(crate) async fn count(
        &self,
        next: NextTarget,
        request: CountRequest,
    ) -> Result<Counted, Failure> {
        let target = &next.profile.target;
        let asked_in = next.profile.asked_in(request.dialect());
        let can_count = asked_in.is_some_and(|own| count_codec(own).is_some());
        if can_count && next.is_well && !self.rests(target) {
            let same = asked_in == request.dialect();
            match self.ask(&next, request.clone()).await {
                Ok(Some(count)) => {
                    self.learn(target, &request.chat, count.tokens);
                    return Ok(Counted::ByProvider(count, target.clone()));
                }
                Ok(None) => {}
                Err(failure) if same && is_callers(&failure) => {
                    return Err(failure.with_attempts(0));
                }
                Err(failure) => self.rest(target, &failure),
            }
        }
        self.counts_here.store(true, Ordering::Relaxed);
        let model = target.model().unwrap_or(&request.chat.model);
        let count = self.counter.count(&mut CountedHistory::default(), &request.chat, model);
        Ok(Counted::Here(count.tokens))
    }

    /// Asks the provider; `None` where the request can not be put into its words.
    async fn ask(
        &self,
        next: &NextTarget,
        mut request: CountRequest,
    ) -> Result<Option<ProviderCount>, Failure> {
        request.chat.context.target = Some(next.profile.target.clone());
        // In the same dialect it is counted as it came.
        let asked_in = next.profile.asked_in(request.dialect());
        if asked_in != request.dialect() && request.chat.adapt(&next.profile).is_err() {
            return Ok(None);
        }
        let mut service = self.service.clone();
        let call = async { service.ready().await?.call(request).await };
        match timeout(PATIENCE, call).await {
            Ok(Ok(count)) => Ok(Some(count)),
            // It was not sent.
            Ok(Err(failure)) if failure.attempts() == 0 => Ok(None),
            Ok(Err(failure)) => Err(failure),
            Err(_) => {
                let message = "the provider did not count in time";
                Err(Failure::new(steadfast::Reason::Timeout, message))
            }
        }
    }

    fn rests(&self, target: &Target) -> bool {
        self.resting.get(&key(target)).is_some_and(|resting| resting.0 > Instant::now())
    }

    /// Does not ask `target` for a while.
    fn rest(&self, target: &Target, failure: &Failure) {
        let now = Instant::now();
        let key = key(target);
        self.resting.remove(&key);
        let wait = match failure.status() {
            Some(
                StatusCode::NOT_FOUND
                | StatusCode::METHOD_NOT_ALLOWED
                | StatusCode::NOT_IMPLEMENTED,
            ) => UNABLE,
            _ => failure.retry_after().unwrap_or(FAILED).clamp(FAILED, UNABLE),
        };
        self.resting.get_or_insert_with(&key, now, || RestingCount(later(now, wait)));
        tracing::debug!(
            name: "steadfast::gateway::count_failed",
            target: "steadfast::gateway",
            target = %target,
            reason = %failure.reason(),
            wait_s = wait.as_secs(),
            "a provider did not count tokens, and is not asked for a while",
        );
    }

    fn learn(&self, target: &Target, chat: &ChatRequest, tokens: u64) {
        learn(&self.counter, target, chat, tokens);
    }

    /// What there is to learn from the answer to `chat`, where counts are made here.
    pub(crate) fn lesson(&self, chat: &ChatRequest) -> Option<Lesson> {
        let counts_here = self.counts_here.load(Ordering::Relaxed);
        counts_here.then(|| Lesson { counter: self.counter.clone(), chat: chat.clone() })
    }
}

/// A chat whose reported usage shows how its model counts.
pub(crate) struct Lesson {
    counter: Arc<Counter>,
    chat: ChatRequest,
}

impl Lesson {
    /// `target` has reported `usage` of the request as it was.
    pub(crate) fn learn(&self, target: &Target, usage: &Usage) {
        if let Some(tokens) = usage.input {
            learn(&self.counter, target, &self.chat, tokens);
        }
    }
}

fn learn(counter: &Counter, target: &Target, chat: &ChatRequest, tokens: u64) {
    let mut history = CountedHistory::default();
    counter.count(&mut history, chat, target.model().unwrap_or(&chat.model));
    counter.reported(&mut history, tokens);
}

/// A provider's model, whichever key it is asked with.
fn key(target: &Target) -> Target {
    let provider = Target::new(target.provider());
    target.model().map_or(provider.clone(), |model| provider.with_model(model))
}

/// Whether a provider has found something wrong with the request.
fn is_callers(failure: &Failure) -> bool {
    let status = failure.upstream().and_then(|upstream| upstream.status);
    status.is_some_and(|status| [400, 413, 422].contains(&status.as_u16()))
}

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counting").field("resting", &self.resting.len()).finish_non_exhaustive()
    }
}
