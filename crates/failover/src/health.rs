//! What is known of one provider, model or credential.

use std::{fmt, time::Duration};

use steadfast_core::{
    Permit, Reason, Target, Witness,
    circuit::{Blame, Circuit, CircuitPolicy, CircuitVerdict, Moment, Resting, SlidingWindow},
    time::{WallClock, later},
};
#[cfg(feature = "shared")]
use steadfast_core::{
    circuit::Transition,
    shared::{Known, News, PublishedCircuit},
};
use tokio::time::Instant;

use crate::{
    policy::FailoverPolicy,
    saved::{SavedError, SavedHealth},
};

/// How a target is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Status {
    /// Nothing is wrong with it.
    #[default]
    Healthy,
    /// It failed since it last answered.
    Degraded,
    /// It failed three times in a row (by default), or in a way that does not pass by itself.
    Down,
}

impl Status {
    /// The name used in logs and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Healthy => "healthy",
            Status::Degraded => "degraded",
            Status::Down => "down",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The last failure of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastError {
    /// Why.
    pub reason: Reason,
    /// The provider's message: bounded, secrets masked.
    pub message: Box<str>,
    /// When.
    pub at: Instant,
}

/// Why and until when a target is left alone, or asked after the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cooldown {
    /// Until when.
    pub until: Instant,
    /// From when on one call at a time may see whether it is over.
    pub probe_from: Instant,
    /// Why.
    pub reason: Reason,
    /// The provider, or an operator, asked for exactly this time.
    pub hinted: bool,
    /// No call is made before, not even one that has no other target: a key is refused, a bill unpaid, a
    /// model gone, or an operator wants it so.
    pub refuses: bool,
}

impl Cooldown {
    fn new(rest: Resting) -> Self {
        let Resting { until, probe_from, hinted, refuses, reason, .. } = rest;
        let reason = reason.unwrap_or(Reason::Cooling);
        Self { until, probe_from, reason, hinted, refuses }
    }
}

/// What is known of one provider, model or credential: a circuit whose rest is its cooldown, and what
/// is shown of it.
#[derive(Debug)]
pub(crate) struct Health {
    circuit: Circuit,
    pub(crate) errors: u64,
    pub(crate) consecutive: u32,
    pub(crate) last_error: Option<LastError>,
    /// Attempts of the last minute that got content, and that did not.
    calls: SlidingWindow,
    /// Answers of the last minute that arrived whole, and that broke after their first content.
    answers: SlidingWindow,
    /// Other models of the provider may stand in while it cools.
    pub(crate) yields: bool,
    /// Probes that another target's answer outran, since there was content.
    pub(crate) outrun: u32,
    /// An operator has taken it out. What happens to it meanwhile is counted as ever.
    out: Option<Cooldown>,
    /// What other processes know of it.
    #[cfg(feature = "shared")]
    published: PublishedCircuit,
}

/// How long at most something is out that an operator has taken out: ten years, which nobody waits for.
const OUT: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// Whether what is `left` of a rest is that of something which was taken out: nothing else rests for years.
pub(crate) fn is_out(left: Duration) -> bool {
    left > OUT / 2
}

/// What stands for the message of a failure of another process.
const BEFORE_START: &str = "before the last start";

/// The same of one that another process has seen.
const ELSEWHERE: &str = "another node has seen it";

/// Good calls that a target is taken to have had before it was asked: so a few failures do not make it one
/// that mostly fails.
const BENEFIT_OF_DOUBT: u64 = 2;

/// A call that failed, or one of its attempts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedCall<'a> {
    pub(crate) blame: Blame,
    /// Other models of the provider may stand in meanwhile.
    pub(crate) yields: bool,
    pub(crate) message: &'a str,
    pub(crate) report: Report,
}

/// Which failure is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// One attempt's; another may follow under the same permit.
    Attempt,
    /// The last attempt's, which has been reported as such: the call is over.
    Last,
    /// The call's.
    Whole,
    /// That of an answer, after its first content.
    Broken,
}

/// What a failure changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The call began before the last change: it is counted, and decides nothing.
    Late,
    /// It was counted; nothing cools because of it.
    Counted,
    /// It cools from now on.
    Cooled {
        /// For how long.
        wait: Duration,
        /// It did not before.
        fresh: bool,
    },
}

/// The time over which shares are taken, as wide as the providers' own rate windows.
const RATES: Duration = Duration::from_secs(60);

/// The circuit of a record: its rest is a preference between targets.
pub(crate) fn circuit(policy: &FailoverPolicy) -> CircuitPolicy {
    CircuitPolicy {
        consecutive: Some(policy.rest_after),
        // One failure has one witness.
        second_witness: policy.rest_after > 1,
        trusted_for: policy.trusted_for,
        window: RATES,
        min_calls: u32::MAX,
        failure_rate: None,
        slow: None,
        content_is_success: true,
        cooldown: Duration::ZERO,
        first_rest: policy.first_rest,
        growth: policy.rest_growth,
        max_cooldown: policy.longest_hint,
        permanent_cooldown: policy.permanent,
        max_permanent: policy.permanent_cap,
        probe_lead: policy.probe_window,
        probe_limit: policy.probe_limit,
        probes: 1,
        successes: 1,
        lone: None,
        turns: None,
    }
}

impl Health {
    /// Goes by `policy` from now on, and cools as it cooled.
    pub(crate) fn set_policy(&mut self, policy: &FailoverPolicy, now: Instant) {
        self.circuit.set_policy(circuit(policy), now);
    }

    pub(crate) fn new(policy: &FailoverPolicy, now: Instant) -> Self {
        Self {
            circuit: Circuit::new(circuit(policy), now),
            errors: 0,
            consecutive: 0,
            last_error: None,
            calls: SlidingWindow::new(RATES, now),
            answers: SlidingWindow::new(RATES, now),
            yields: false,
            outrun: 0,
            out: None,
            #[cfg(feature = "shared")]
            published: PublishedCircuit::default(),
        }
    }

    /// The cooldown for everybody, until a call has seen that it is over.
    pub(crate) fn cooling(&self) -> Option<Cooldown> {
        self.out.or_else(|| self.circuit.resting().map(Cooldown::new))
    }

    /// The cooldown for one witness.
    pub(crate) fn cooling_for(&self, witness: Witness, now: Instant) -> Option<Cooldown> {
        self.out.or_else(|| self.circuit.resting_for(witness, now).map(Cooldown::new))
    }

    /// Whether an operator has taken it out.
    pub(crate) fn is_out(&self) -> bool {
        self.out.is_some()
    }

    /// An operator takes it out, or puts it back. Returns whether that changes anything.
    pub(crate) fn set_out(&mut self, now: Instant, out: bool) -> bool {
        if out == self.is_out() {
            return false;
        }
        let until = later(now, OUT);
        self.out = out.then_some(Cooldown {
            until,
            probe_from: until,
            reason: Reason::Cooling,
            hinted: true,
            refuses: true,
        });
        true
    }

    /// A call begins.
    pub(crate) fn began(&mut self, permit: &Permit) {
        self.circuit.began(permit);
    }

    /// Whether less than half of the last minute's attempts got content, or less than half of its answers
    /// arrived whole.
    pub(crate) fn mostly_fails(&mut self, now: Instant) -> bool {
        [&mut self.calls, &mut self.answers].into_iter().any(|window| {
            let counts = window.counts(now);
            counts.failures > counts.calls - counts.failures + BENEFIT_OF_DOUBT
        })
    }

    /// Its message when it refused for this reason, while it rests for that.
    pub(crate) fn refusal(&self, reason: Reason) -> Option<&str> {
        self.cooling().filter(|cooling| cooling.refuses && cooling.reason == reason)?;
        let words = self.last_error.as_ref().filter(|error| error.reason == reason)?;
        Some(&*words.message).filter(|message| ![BEFORE_START, ELSEWHERE].contains(message))
    }

    /// Whether it has state that must not be evicted.
    pub(crate) fn is_worth_keeping(&self, now: Instant) -> bool {
        self.is_out() || self.circuit.is_worth_keeping(now)
    }

    /// Whether a call is under way that sees whether it is well again.
    pub(crate) fn probing(&self, now: Instant) -> bool {
        self.circuit.is_probing(now)
    }

    /// Whether a success would change anything but its own time.
    pub(crate) fn is_degraded(&mut self, now: Instant) -> bool {
        self.is_out()
            || self.consecutive > 0
            || self.circuit.is_degraded(now)
            || self.calls.counts(now).failures > 0
            || self.answers.counts(now).failures > 0
    }

    /// What has been seen of calls without the lock.
    pub(crate) fn note_success(&mut self, order: u64, at: Option<Instant>) {
        self.circuit.note_success(order, at);
    }

    /// Calls of this very target have got content, and answers have arrived whole.
    pub(crate) fn count_good(&mut self, now: Instant, contents: u32, answers: u32) {
        for _ in 0..contents {
            self.calls.record(now, false, false);
        }
        for _ in 0..answers {
            self.answers.record(now, false, false);
        }
    }

    /// An attempt at this very target has failed, or its answer broke after its first content.
    pub(crate) fn count_failed(&mut self, now: Instant, broke: bool) {
        let window = if broke { &mut self.answers } else { &mut self.calls };
        window.record(now, true, false);
    }

    pub(crate) fn status(&self, policy: &FailoverPolicy) -> Status {
        if self.consecutive >= policy.down_after.max(1) || self.circuit.is_permanent() {
            Status::Down
        } else if self.consecutive > 0 || self.circuit.resting().is_some() {
            // What rests for single callers alone is not unwell.
            Status::Degraded
        } else {
            Status::Healthy
        }
    }

    /// A call has failed, or one of its attempts.
    pub(crate) fn fail(&mut self, now: Moment, permit: &Permit, failed: &FailedCall<'_>) -> Failed {
        let FailedCall { blame, yields, message, report } = *failed;
        let at = now.at;
        let cooled = self.circuit.resting().is_some();
        let late = !self.circuit.is_current(permit);
        if report != Report::Last {
            self.note_error(blame.reason, message, at);
            if late && !cooled {
                // It has recovered since, or has had its rest.
                return Failed::Late;
            }
            self.consecutive = self.consecutive.saturating_add(1);
        }
        let transition = match report {
            Report::Attempt => self.circuit.attempt_failed(now, permit, blame),
            _ => {
                let content = (report == Report::Broken).then_some(Duration::ZERO);
                self.circuit.end(now, permit, CircuitVerdict::Failure(blame), content)
            }
        };
        if transition.is_some() || self.circuit.resting().is_none() {
            // It may cool for one caller alone.
            self.yields = yields;
        }
        match transition {
            Some(transition) => {
                let until = transition.until.unwrap_or(at);
                Failed::Cooled { wait: until.saturating_duration_since(at), fresh: !cooled }
            }
            None if late => Failed::Late,
            None => Failed::Counted,
        }
    }

    fn note_error(&mut self, reason: Reason, message: &str, at: Instant) {
        self.errors += 1;
        match &mut self.last_error {
            // An outage says the same thing over and over.
            Some(last) if *last.message == *message => (last.reason, last.at) = (reason, at),
            last => *last = Some(LastError { reason, message: message.into(), at }),
        }
    }

    /// A call has got content; whether that ended a cooldown.
    pub(crate) fn content(&mut self, now: Moment, permit: &Permit) -> bool {
        if self.circuit.is_current(permit) {
            self.consecutive = 0;
        }
        self.outrun = 0;
        self.circuit.first_content(now, permit, Duration::ZERO).is_some()
    }

    /// An answer has arrived whole.
    pub(crate) fn succeed(&mut self, now: Moment, permit: &Permit) {
        let content = Some(Duration::ZERO);
        self.circuit.end(now, permit, CircuitVerdict::Success, content);
    }

    /// A call is over and says nothing.
    pub(crate) fn release(&mut self, now: Moment, permit: &Permit) {
        self.circuit.end(now, permit, CircuitVerdict::Nothing, None);
    }

    /// It can not be asked for `wait`, for no fault of its own.
    pub(crate) fn rest(&mut self, now: Instant, wait: Duration) {
        self.circuit.rest(now, wait, Reason::CircuitOpen);
    }

    /// Lets one call through that is to see whether the cooldown is over, where one is needed.
    pub(crate) fn acquire_probe(&mut self, now: Moment) -> ProbePermit {
        if self.is_out() {
            return ProbePermit::Refused;
        }
        if self.circuit.resting().is_none() {
            return ProbePermit::NotNeeded;
        }
        match self.circuit.acquire_probe(now) {
            Some(_) => ProbePermit::Acquired,
            None => ProbePermit::Refused,
        }
    }

    /// An operator leaves it alone for `wait`.
    pub(crate) fn force(&mut self, now: Moment, wait: Duration) {
        self.circuit.trip(now, Reason::Cooling, wait);
    }

    /// What is kept over a restart, while it cools.
    pub(crate) fn save(&self, target: &Target, clock: WallClock) -> Option<SavedHealth> {
        let error = |error: &LastError| SavedError {
            reason: error.reason,
            at_ms: clock.to_unix_ms(error.at),
        };
        Some(SavedHealth {
            target: target.clone(),
            circuit: self.circuit.save(clock)?,
            consecutive: self.consecutive,
            yields: self.yields,
            last_error: self.last_error.as_ref().map(error),
        })
    }

    /// Goes on with a cooldown of another process; the reason, and how long it still takes.
    pub(crate) fn restore(
        &mut self,
        saved: &SavedHealth,
        clock: WallClock,
        order: u64,
    ) -> Option<Cooldown> {
        self.circuit.restore(&saved.circuit, clock, order)?;
        self.goes_on(saved, clock, BEFORE_START);
        self.cooling()
    }

    /// What of its last change is news to other processes, with its cooldown as `write` has it.
    #[cfg(feature = "shared")]
    pub(crate) fn news(
        &mut self,
        target: &Target,
        clock: WallClock,
        write: impl FnOnce(&SavedHealth) -> String,
    ) -> Option<News> {
        let saved = self.save(target, clock);
        let rest = saved
            .as_ref()
            .map(|saved| (&saved.circuit, saved.circuit.live_until_ms(self.circuit.policy())));
        let value = || saved.as_ref().map(write).unwrap_or_default();
        self.published.changed(rest, clock, value)
    }

    /// Other processes know this of it, with its cooldown there. What that changes here.
    #[cfg(feature = "shared")]
    pub(crate) fn hear(
        &mut self,
        now: Moment,
        known: &Known,
        saved: Option<&SavedHealth>,
        clock: WallClock,
    ) -> Option<Transition> {
        let over = self.circuit.take_back(now, clock.to_instant(known.over_ms));
        if over.is_some() {
            self.consecutive = 0;
        }
        let rests = saved.and_then(|saved| {
            let transition = self.circuit.merge(&saved.circuit, clock, now.order)?;
            self.goes_on(saved, clock, ELSEWHERE);
            Some(transition)
        });
        self.published.heard(known, self.circuit.resting().is_some(), clock);
        rests.or(over)
    }

    /// It cools as it did in another process.
    fn goes_on(&mut self, saved: &SavedHealth, clock: WallClock, message: &str) {
        (self.consecutive, self.yields) = (saved.consecutive, saved.yields);
        self.last_error = saved.last_error.map(|error| LastError {
            reason: error.reason,
            message: message.into(),
            at: clock.to_instant(error.at_ms).min(clock.at()),
        });
    }

    /// As if nothing had ever happened; what is under way decides nothing.
    pub(crate) fn reset(&mut self, now: Moment) {
        // Nor is it known of any success: a renewed key has not been used.
        self.circuit = Circuit::new(*self.circuit.policy(), now.at);
        self.circuit.reset(now);
        (self.errors, self.consecutive, self.last_error) = (0, 0, None);
        (self.yields, self.outrun, self.out) = (false, 0, None);
        self.calls.clear();
        self.answers.clear();
    }
}

/// What came of asking for the permit of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbePermit {
    /// It does not cool.
    NotNeeded,
    /// This call is the probe.
    Acquired,
    /// It is too early, or somebody else is the probe.
    Refused,
}
