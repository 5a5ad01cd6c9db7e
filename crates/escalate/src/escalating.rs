//! One request from its first hold to its end.

use std::{
    fmt,
    num::NonZeroU32,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, SystemTime},
};

use steadfast_chat::{ChatRequest, ChatResponse, Events};
use steadfast_core::{
    Attempt, Deadline, Failure, Preference, Reason, RecoveryLog, Retry,
    time::{later, wall},
};
use tokio::{
    sync::oneshot,
    time::{Instant, Sleep, sleep_until},
};
use tower_service::Service;

use crate::{
    EscalationDecision, EscalationEvent, event,
    events::{EscalatedEvents, answer_by_hand},
    future::passed,
    held::{Description, attempts_of},
    last_word,
    operator::Consultation,
    registry::Overflow,
    service::Source,
    state::{Entry, count},
};

/// What is left of a deadline when a hold ends: so the caller gets the failure, and not that of its deadline.
const RESERVE: Duration = Duration::from_secs(1);

/// A request from its first hold to its end. While it is held its memory is the request, what is known of
/// its failures, and a timer.
pub(crate) struct Escalating<S: Service<ChatRequest>> {
    source: Arc<Source<S>>,
    /// `None` once its last attempt has it.
    request: Option<ChatRequest>,
    log: RecoveryLog,
    /// Attempts that were made before the request came here.
    before: u32,
    /// Those that it came with, again for each round: a person has asked for them.
    allowance: u32,
    since: (Instant, SystemTime),
    until: Instant,
    rounds: u32,
    /// Attempts made since.
    calls: u32,
    /// What was tried and skipped in all rounds; the waits in it count from then on.
    chain: (Instant, Vec<Attempt>),
    /// Present while it is held.
    failure: Option<Failure>,
    entry: Entry,
    phase: Phase<S>,
}

enum Phase<S: Service<ChatRequest>> {
    Held(Hold),
    Readying(S, Box<ChatRequest>),
    Calling(Pin<Box<S::Future>>),
    Done,
}

/// The wait for a decision.
struct Hold {
    decision: oneshot::Receiver<EscalationDecision>,
    operator: Option<Consultation>,
    timer: Pin<Box<Sleep>>,
}

/// How a request ends.
type Ended<E> = Result<ChatResponse<EscalatedEvents<E>>, Failure>;

impl<S: Service<ChatRequest>> Escalating<S> {
    /// Holds `request`, if `failure` is a last word and there is room and time.
    ///
    /// # Errors
    ///
    /// The failure unchanged, when it is not held.
    pub(crate) fn begin(
        source: Arc<Source<S>>,
        request: ChatRequest,
        failure: Failure,
    ) -> Result<Self, Failure> {
        let context = &request.context;
        if !last_word::is_last_word(&failure, context) {
            return Err(failure);
        }
        let now = Instant::now();
        let until = latest(now, source.settings.policy.hold, context.deadline);
        let admitted = match until > now {
            true => source.requests.admit(context.held_bytes, source.settings.bounds()),
            false => Err(Overflow::Time),
        };
        let number = match admitted {
            Ok(number) => number,
            Err(why) => {
                source.requests.overflowed(why, &context.log);
                return Err(failure);
            }
        };
        count(&source.requests.counts.held);
        let mut this = Self {
            log: context.log.clone(),
            before: context.attempts,
            allowance: context.attempts_left(),
            since: (now, wall()),
            until,
            rounds: 0,
            calls: failure.attempts(),
            chain: (now, attempts_of(&failure)),
            failure: None,
            entry: Entry::new(source.requests.clone(), number),
            phase: Phase::Done,
            request: Some(request),
            source,
        };
        this.hold(failure, now);
        Ok(this)
    }

    /// Waits for a decision.
    fn hold(&mut self, failure: Failure, now: Instant) {
        let Some(request) = &self.request else { return };
        if let Some(spend) = &request.context.spend {
            // Nobody else is to want for it meanwhile: an attempt after a decision reserves what it needs.
            spend.end(now);
        }
        self.rounds += 1;
        let settings = &self.source.settings;
        let held = Description {
            id: self.entry.id(),
            round: self.rounds,
            since: self.since,
            until: self.until,
            request,
            failure: &failure,
            attempts: self.calls,
            chain: &self.chain.1,
            can_reset: settings.reset.is_some(),
            policy: &settings.policy,
        };
        let held = Arc::new(held.held(now));
        let operator = settings.operator.as_ref().map(|operator| operator.consult(held.clone()));
        let decision = self.entry.hold(held.clone());
        let timer = Box::pin(sleep_until(self.until));
        self.failure = Some(failure);
        self.phase = Phase::Held(Hold { decision, operator, timer });
        event::held(&held, now, &self.log);
        self.entry.requests().notify(EscalationEvent::Held(held));
    }

    /// The attempt after a decision has failed: holds the request again, or returns the failure it ends with.
    fn failed(&mut self, failure: Failure) -> Option<Failure> {
        self.calls = self.calls.saturating_add(failure.attempts());
        let now = Instant::now();
        let (since, chain) = &mut self.chain;
        for earlier in &mut *chain {
            let left = earlier.retry_after.map(|wait| wait.saturating_sub(now - *since));
            earlier.retry_after = left.filter(|left| !left.is_zero());
        }
        *since = now;
        chain.extend(attempts_of(&failure));
        let failure = failure.with_attempts(self.calls).with_trail(chain.clone());
        let again = self.rounds < self.source.settings.policy.max_rounds && now < self.until;
        // What the chosen target or model holds against the request says nothing of the others.
        if again && !last_word::is_final(&failure) && self.request.is_some() {
            self.hold(failure, now);
            return None;
        }
        event::failed(self.entry.id(), self.rounds, &self.log);
        Some(failure)
    }

    /// The request that carries `decision` out.
    fn request_for(&mut self, decision: &EscalationDecision) -> Option<ChatRequest> {
        // The last attempt takes the request.
        let mut request = match self.rounds < self.source.settings.policy.max_rounds {
            true => self.request.clone()?,
            false => self.request.take()?,
        };
        let context = &mut request.context;
        context.attempts = self.before.saturating_add(self.calls);
        if context.max_attempts.is_some() {
            context.max_attempts = NonZeroU32::new(context.attempts.saturating_add(self.allowance));
        }
        match decision {
            EscalationDecision::TryTarget(target) => {
                context.preference = Some(Arc::new(Preference::Only(target.clone())));
            }
            EscalationDecision::TryModel(model) => request.model = model.clone(),
            EscalationDecision::ResetCooldown(target) => {
                let id = self.entry.id();
                let reset = self.source.settings.reset.as_ref();
                match reset.map(|reset| catch_unwind(AssertUnwindSafe(|| reset(target)))) {
                    Some(Ok(known)) => event::cooldown_reset(id, target, known, &self.log),
                    Some(Err(_)) => {
                        event::operator_failed(id, &"the closure that ends cooldowns panicked");
                    }
                    None => {}
                }
            }
            _ => {}
        }
        Some(request)
    }
}

/// Until when a request is held.
fn latest(now: Instant, hold: Duration, deadline: Option<Deadline>) -> Instant {
    let until = later(now, hold);
    let left = deadline.map(|deadline| deadline.remaining_at(now).saturating_sub(RESERVE));
    left.map_or(until, |left| until.min(later(now, left)))
}

impl<S, E> Escalating<S>
where
    S: Service<ChatRequest, Response = ChatResponse<E>> + Clone,
    S::Error: Into<Failure>,
    E: Events + Unpin,
{
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended<E>> {
        let this = self;
        loop {
            match &mut this.phase {
                Phase::Held(hold) => match ready!(hold.poll(&this.entry, cx)) {
                    Some(decision) => {
                        if let Some(ended) = this.decided(decision) {
                            return Poll::Ready(ended);
                        }
                    }
                    None => {
                        this.phase = Phase::Done;
                        count(&this.entry.requests().counts.expired);
                        event::expired(this.entry.id(), this.rounds, &this.log);
                        let id = this.entry.id();
                        this.entry.requests().notify(EscalationEvent::Expired { id });
                        return Poll::Ready(Err(this.last_failure()));
                    }
                },
                Phase::Readying(service, _) => {
                    let ready = ready!(service.poll_ready(cx));
                    let Phase::Readying(mut service, request) =
                        std::mem::replace(&mut this.phase, Phase::Done)
                    else {
                        return Poll::Ready(Err(this.last_failure()));
                    };
                    match ready {
                        Ok(()) => this.phase = Phase::Calling(Box::pin(service.call(*request))),
                        // The service can take no more calls.
                        Err(error) => {
                            let failure: Failure = error.into();
                            let failed = this.failed(failure.with_attempts(0));
                            if let Some(failure) = failed {
                                return Poll::Ready(Err(failure));
                            }
                        }
                    }
                }
                Phase::Calling(call) => {
                    let ended = ready!(call.as_mut().poll(cx));
                    this.phase = Phase::Done;
                    match ended {
                        Ok(mut reply) => {
                            count(&this.entry.requests().counts.recovered);
                            if this.log.is_enabled() {
                                reply.head.log = this.log.clone();
                            }
                            return Poll::Ready(Ok(passed(reply, None)));
                        }
                        Err(error) => {
                            if let Some(failure) = this.failed(error.into()) {
                                return Poll::Ready(Err(failure));
                            }
                        }
                    }
                }
                Phase::Done => return Poll::Ready(Err(this.last_failure())),
            }
        }
    }

    /// Carries `decision` out; what the request ends with, if it does.
    fn decided(&mut self, decision: EscalationDecision) -> Option<Ended<E>> {
        self.phase = Phase::Done;
        let (id, kind) = (self.entry.id(), decision.kind());
        count(&self.entry.requests().counts.decided[kind as usize]);
        event::decided(id, &decision, &self.log);
        self.entry.requests().notify(EscalationEvent::Decided { id, kind });
        match decision {
            // Whoever asks again by itself would ask the same person.
            EscalationDecision::Refuse => Some(Err(self.last_failure().with_retry(Retry::No))),
            EscalationDecision::Answer(text) => {
                let request = self.request.take()?;
                event::answered(id, text.len(), &self.log);
                Some(Ok(answer_by_hand(&request, text, self.calls)))
            }
            retried => {
                let Some(request) = self.request_for(&retried) else {
                    return Some(Err(self.last_failure()));
                };
                self.phase = Phase::Readying(self.source.spare.get(), Box::new(request));
                None
            }
        }
    }
}

impl<S: Service<ChatRequest>> Escalating<S> {
    fn last_failure(&mut self) -> Failure {
        self.failure.take().unwrap_or_else(|| {
            let text = "a held request was polled after it was over";
            Failure::refused_fixed(Reason::Unknown, text)
        })
    }
}

impl Hold {
    /// The decision; `None` when nobody has decided in time.
    fn poll(&mut self, entry: &Entry, cx: &mut Context<'_>) -> Poll<Option<EscalationDecision>> {
        loop {
            if let Poll::Ready(decision) = Pin::new(&mut self.decision).poll(cx) {
                return Poll::Ready(decision.ok());
            }
            if let Some(operator) = &mut self.operator
                && let Poll::Ready(decided) = operator.poll(cx)
            {
                self.operator = None;
                let id = entry.id();
                match decided {
                    Ok(Some(decision)) => match entry.requests().decide(id, decision) {
                        Ok(()) => continue,
                        Err(error) => event::operator_failed(id, &error),
                    },
                    Ok(None) => {}
                    Err(error) => event::operator_failed(id, &error),
                }
            }
            ready!(self.timer.as_mut().poll(cx));
            // Otherwise somebody has just decided, and the decision is on its way.
            return if entry.expire() { Poll::Ready(None) } else { Poll::Pending };
        }
    }
}

impl<S: Service<ChatRequest>> fmt::Debug for Escalating<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match &self.phase {
            Phase::Held(_) => "held",
            Phase::Readying(..) => "readying",
            Phase::Calling(_) => "calling",
            Phase::Done => "done",
        };
        f.debug_struct("Escalating")
            .field("id", &self.entry.id())
            .field("phase", &phase)
            .field("rounds", &self.rounds)
            .finish_non_exhaustive()
    }
}
