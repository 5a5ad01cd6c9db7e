//! What a person sees of a held request.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime},
};

use http::StatusCode;
use steadfast_chat::{ChatRequest, ModelName, Role};
use steadfast_core::{Attempt, Failure, FaultSide, Reason, Target, time::later};
use tokio::time::Instant;

use crate::{EscalationDecision, EscalationPolicy};

/// The id of a held request: unique in the process, and different in the next one, so that a late decision
/// never reaches another request. Written `5f3a9c01-17`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EscalationId {
    pub(crate) instance: u32,
    pub(crate) number: u64,
}

impl fmt::Display for EscalationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{}", self.instance, self.number)
    }
}

/// A text that is no [`EscalationId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("that is no id of a held request; one is written like `5f3a9c01-17`")]
pub struct ParseEscalationIdError;

impl FromStr for EscalationId {
    type Err = ParseEscalationIdError;

    fn from_str(text: &str) -> Result<Self, ParseEscalationIdError> {
        let (instance, number) = text.split_once('-').ok_or(ParseEscalationIdError)?;
        let parsed = Self {
            instance: u32::from_str_radix(instance, 16).map_err(|_| ParseEscalationIdError)?,
            number: number.parse().map_err(|_| ParseEscalationIdError)?,
        };
        // One spelling for each.
        if parsed.to_string() == text { Ok(parsed) } else { Err(ParseEscalationIdError) }
    }
}

/// A request that waits for a person's decision.
///
/// It has nothing of the conversation, unless [`show_prompt`](EscalationPolicy::show_prompt) is on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldRequest {
    /// Its id, the same in all rounds.
    pub id: EscalationId,
    /// How often it has been held, this time included.
    pub round: u32,
    /// When it was held first.
    pub since: Instant,
    /// The same by the clock on the wall.
    pub since_wall: SystemTime,
    /// Until when a decision is waited for.
    pub until: Instant,
    /// Who pays.
    pub tenant: Option<Box<str>>,
    /// Which agent.
    pub agent: Option<Box<str>>,
    /// Which of its tasks.
    pub task: Option<Box<str>>,
    /// Which conversation.
    pub session: Option<Box<str>>,
    /// The model that was asked for; empty when none was named.
    pub model: ModelName,
    /// Whether the answer is to come in pieces.
    pub stream: bool,
    /// Why it failed, as the caller would be answered.
    pub reason: Reason,
    /// How many times a provider was called.
    pub attempts: u32,
    /// What was tried and skipped, in all rounds, oldest first.
    pub chain: Vec<Attempt>,
    /// The targets of the chain, and what a wait for each would cost.
    pub targets: Vec<HeldTarget>,
    /// When the first of them is back, as far as that is known.
    pub soonest: Option<Instant>,
    /// Whether [`EscalationDecision::ResetCooldown`] is possible.
    pub can_reset: bool,
    /// The end of the user's last message, when the policy shows it.
    pub prompt: Option<Box<str>>,
}

/// A target that could serve a held request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldTarget {
    /// The target.
    pub target: Target,
    /// Why it did not answer, or was skipped, last.
    pub reason: Reason,
    /// The status it answered with.
    pub status: Option<StatusCode>,
    /// How often it was tried in the call; not how often its provider was called.
    pub tried: u32,
    /// When it is back, as far as that is known: the price of waiting for it.
    pub back: Option<Instant>,
}

impl HeldTarget {
    /// How long it would have to be waited for.
    pub fn wait_at(&self, now: Instant) -> Option<Duration> {
        self.back.map(|back| back.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }
}

impl HeldRequest {
    /// How much time is left to decide.
    pub fn left_at(&self, now: Instant) -> Duration {
        self.until.saturating_duration_since(now)
    }

    /// Whether `decision` can be carried out; the target that is not one of this request otherwise.
    pub(crate) fn knows<'a>(&self, decision: &'a EscalationDecision) -> Result<(), &'a Target> {
        let Some(target) = decision.target() else { return Ok(()) };
        // Of a cooldown also the parts: a key of a provider, a model there.
        let is_one = |known: &HeldTarget| target.covers(&known.target);
        if self.targets.iter().any(is_one) { Ok(()) } else { Err(target) }
    }
}

/// What a held request is described by.
pub(crate) struct Description<'a> {
    pub(crate) id: EscalationId,
    pub(crate) round: u32,
    pub(crate) since: (Instant, SystemTime),
    pub(crate) until: Instant,
    pub(crate) request: &'a ChatRequest,
    pub(crate) failure: &'a Failure,
    pub(crate) attempts: u32,
    pub(crate) chain: &'a [Attempt],
    pub(crate) can_reset: bool,
    pub(crate) policy: &'a EscalationPolicy,
}

impl Description<'_> {
    pub(crate) fn held(self, now: Instant) -> HeldRequest {
        let Self { id, round, since, until, request, failure, policy, .. } = self;
        let own = |part: Option<&str>| part.map(Box::from);
        let context = &request.context;
        let targets = targets(self.chain, now);
        let known = targets.iter().filter_map(|target| target.back).min();
        let hint = failure.retry_after().map(|wait| later(now, wait));
        HeldRequest {
            id,
            round,
            since: since.0,
            since_wall: since.1,
            until,
            tenant: own(context.tenant()),
            agent: own(context.agent()),
            task: own(context.task()),
            session: own(context.session()),
            model: request.model.clone(),
            stream: request.stream,
            reason: failure.outward_reason(),
            attempts: self.attempts,
            chain: shown(self.chain, policy.show_prompt),
            targets,
            soonest: hint.or(known),
            can_reset: self.can_reset,
            prompt: policy.show_prompt.then(|| prompt(request, policy.max_prompt_bytes)).flatten(),
        }
    }
}

/// What was tried because of `failure`.
pub(crate) fn attempts_of(failure: &Failure) -> Vec<Attempt> {
    match failure.trail() {
        [] => vec![Attempt::from_failure(failure)],
        trail => trail.to_vec(),
    }
}

/// The attempts without what may quote the conversation.
fn shown(chain: &[Attempt], show_prompt: bool) -> Vec<Attempt> {
    let mut chain = chain.to_vec();
    for attempt in chain.iter_mut().filter(|_| !show_prompt) {
        if matches!(attempt.fault, FaultSide::Caller | FaultSide::Model) {
            attempt.message = Box::default();
        }
    }
    chain
}

/// Each target once, in the order in which they were tried first, with what is known of it last.
fn targets(chain: &[Attempt], now: Instant) -> Vec<HeldTarget> {
    let mut targets: Vec<HeldTarget> = Vec::new();
    for attempt in chain {
        let Some(target) = &attempt.target else { continue };
        let tried = u32::from(!attempt.skipped);
        let back = attempt.retry_after.map(|wait| later(now, wait));
        let (reason, status) = (attempt.reason, attempt.status);
        match targets.iter_mut().find(|known| known.target == *target) {
            Some(known) => {
                (known.reason, known.status, known.back) = (reason, status, back);
                known.tried += tried;
            }
            None => {
                targets.push(HeldTarget { target: target.clone(), reason, status, tried, back });
            }
        }
    }
    targets
}

/// The end of the user's last message, where it says what is wanted.
fn prompt(request: &ChatRequest, max: usize) -> Option<Box<str>> {
    let last = request.messages.iter().rfind(|message| message.role() == Role::User)?;
    let text = last.text();
    let mut start = text.len().saturating_sub(max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    Some(text[start..].into())
}

#[cfg(test)]
mod tests {
    use steadfast_chat::Message;

    use super::*;

    #[test]
    fn an_id_has_one_spelling() {
        let id = EscalationId { instance: 0x1f, number: 17 };
        assert_eq!(id.to_string(), "0000001f-17");
        assert_eq!("0000001f-17".parse(), Ok(id));
        for text in
            ["", "17", "1f-17", "0000001f-017", "0000001F-17", "0000001f-", "x-1", "0000001f-17 "]
        {
            assert_eq!(text.parse::<EscalationId>(), Err(ParseEscalationIdError), "{text}");
        }
    }

    #[test]
    fn the_prompt_is_cut_between_characters() {
        let request = ChatRequest::new(vec![
            Message::user("first"),
            Message::assistant("second"),
            Message::user("αβγ"),
            Message::assistant("fourth"),
        ]);
        for (max, shown) in [(100, "αβγ"), (6, "αβγ"), (5, "βγ"), (4, "βγ"), (1, ""), (0, "")]
        {
            assert_eq!(prompt(&request, max).as_deref(), Some(shown), "{max}");
        }
        assert_eq!(prompt(&ChatRequest::new(Vec::new()), 10), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_target_is_listed_once_with_what_is_known_last() {
        let now = Instant::now();
        let (a, b) = (Target::new("a"), Target::new("b"));
        let failed = |target: &Target, reason, wait: Option<u64>| {
            let wait = wait.map(Duration::from_secs);
            let failure = Failure::new(reason, "").with_target(target.clone());
            Attempt::from_failure(&failure.with_retry_after(wait))
        };
        let chain = [
            failed(&a, Reason::Overloaded, Some(9)),
            Attempt::skipped(b.clone(), Reason::Auth, ""),
            failed(&a, Reason::Network, None),
            failed(&b, Reason::RateLimit, Some(2)),
        ];
        let found = targets(&chain, now);
        let lines: Vec<_> = found
            .iter()
            .map(|known| (known.target.as_str(), known.reason, known.tried, known.wait_at(now)))
            .collect();
        let expected = [
            ("a", Reason::Network, 2, None),
            ("b", Reason::RateLimit, 1, Some(Duration::from_secs(2))),
        ];
        assert_eq!(lines, expected);
    }
}
