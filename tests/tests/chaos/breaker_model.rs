//! A breaker as its documentation tells it, written down as plainly as can be: a list of what
//! ended, looked through from the beginning each time.

use std::{collections::VecDeque, time::Duration};

use steadfast::{
    Fault, Reason, Retry, Scope, Target, TimeLimit,
    breaker::{BreakerPolicy, Cause, Snapshot, State, Transition},
};
use tokio::time::Instant;

use crate::timeline::{Facts, How};

/// What a call is let through as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Ordinary,
    Probe,
    Lone,
    /// It would have been refused.
    Observed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Passes(Pass),
    Refused(Duration),
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    at: Duration,
    failed: bool,
    slow: bool,
}

/// A call under way.
#[derive(Clone, Copy, Debug)]
struct Out {
    id: u64,
    pass: Pass,
    since: Duration,
    /// The breaker has turned since, or gave it up: what it says comes too late.
    late: bool,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    since: Duration,
    until: Duration,
    hinted: bool,
    successes: u32,
    row: u32,
    last_lone: Duration,
}

/// A change of state that has to be told next.
#[derive(Clone, Copy, Debug)]
struct Due {
    from: State,
    to: State,
    cause: Cause,
    reason: Option<Reason>,
    /// The earliest and the latest end of the rest.
    until: Option<(Duration, Duration)>,
    hinted: bool,
}

#[derive(Debug)]
pub(crate) struct Breaker {
    policy: BreakerPolicy,
    born: Duration,
    state: State,
    ended: Vec<Ended>,
    /// Hard failures in a row.
    row: u32,
    failed_probes: u32,
    rest: Option<Rest>,
    out: Vec<Out>,
    due: VecDeque<Due>,
}

/// What a failure is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    Soft,
    Hard,
    Proof,
}

impl Breaker {
    pub(crate) fn new(policy: &BreakerPolicy, now: Duration) -> Self {
        Self {
            policy: policy.clone(),
            born: now,
            state: State::Closed,
            ended: Vec::new(),
            row: 0,
            failed_probes: 0,
            rest: None,
            out: Vec::new(),
            due: VecDeque::new(),
        }
    }

    /// A call asks to pass.
    pub(crate) fn ask(&mut self, id: u64, now: Duration, alone: bool) -> Decision {
        let decision = self.decide(now, alone);
        let pass = match decision {
            Decision::Passes(pass) => pass,
            Decision::Refused(_) if self.policy.observe => Pass::Observed,
            Decision::Refused(_) => return decision,
        };
        self.out.push(Out { id, pass, since: now, late: pass == Pass::Observed });
        Decision::Passes(pass)
    }

    fn decide(&mut self, now: Duration, alone: bool) -> Decision {
        let limit = self.policy.probe_limit;
        let Some(rest) = self.rest.filter(|_| self.state != State::Closed) else {
            return Decision::Passes(Pass::Ordinary);
        };
        for out in &mut self.out {
            let awaited = matches!(out.pass, Pass::Probe | Pass::Lone);
            out.late |= awaited && now - out.since >= limit;
        }
        if self.state == State::Open && now >= self.probe_from() {
            self.state = State::HalfOpen;
            self.due.push_back(Due {
                from: State::Open,
                to: State::HalfOpen,
                cause: Cause::Rested,
                reason: None,
                until: Some((rest.until, rest.until)),
                hinted: rest.hinted,
            });
        }
        if self.state == State::HalfOpen && self.count(Pass::Probe) < self.policy.probes {
            return Decision::Passes(Pass::Probe);
        }
        let left = rest.until.saturating_sub(now);
        let mut wait = if left.is_zero() { Duration::from_secs(1) } else { left };
        if let Some(lone) = self.policy.lone.filter(|_| alone) {
            let next = (rest.last_lone + lone.every).saturating_sub(now);
            let full = self.count(Pass::Lone) >= lone.at_once;
            if next.is_zero() && !full {
                self.rest = Some(Rest { last_lone: now, ..rest });
                return Decision::Passes(Pass::Lone);
            }
            wait = wait.min(if full { next.max(lone.every) } else { next });
        }
        Decision::Refused(wait)
    }

    fn count(&self, pass: Pass) -> u32 {
        let out = self.out.iter().filter(|out| out.pass == pass && !out.late);
        u32::try_from(out.count()).unwrap()
    }

    /// `probe_lead` before the end of the rest, never in its first half.
    fn probe_from(&self) -> Duration {
        let rest = self.rest.unwrap();
        let whole = rest.until - rest.since;
        rest.since + (whole - self.policy.probe_lead.min(whole / 2))
    }

    /// Call `id` has ended; its first content came so long after it was let through.
    pub(crate) fn end(&mut self, id: u64, now: Duration, how: &How, content: Option<Duration>) {
        let Some(at) = self.out.iter().position(|out| out.id == id) else { return };
        let out = self.out.remove(at);
        let content = match how {
            // A whole answer without any content began with its end.
            How::Whole => content.or(Some(now)),
            _ => content,
        };
        let slow = match (self.policy.slow, content) {
            (Some(slow), Some(at)) => at - out.since > slow.after,
            _ => false,
        };
        let blame = match how {
            How::Whole => None,
            How::Left => return,
            How::Failed(facts) => match self.weigh(facts) {
                None => return,
                Some(weight) => Some((weight, facts)),
            },
        };
        if out.late {
            return;
        }
        match out.pass {
            Pass::Ordinary => self.ordinary(now, blame, slow),
            Pass::Probe => self.probe(now, blame, slow),
            Pass::Lone => self.lone(now, blame, slow),
            Pass::Observed => {}
        }
    }

    /// The table of the documentation; `None` says nothing about the target.
    fn weigh(&self, facts: &Facts) -> Option<Weight> {
        let ours = facts.reason.is_refusal() || facts.fault != Fault::Provider;
        let request = matches!(facts.scope, Scope::Request | Scope::Task | Scope::Local);
        let patience = matches!(facts.limit, Some(TimeLimit::Makespan | TimeLimit::Pipeline));
        if ours || request || patience {
            return None;
        }
        let throttled = matches!(facts.reason, Reason::RateLimit | Reason::Overloaded);
        let narrow =
            matches!(facts.scope, Scope::Model | Scope::Credential | Scope::ModelCredential);
        Some(if self.permanent(facts) {
            Weight::Proof
        } else if throttled {
            Weight::Soft
        } else if narrow && facts.retry == Retry::No {
            Weight::Proof
        } else {
            Weight::Hard
        })
    }

    fn permanent(&self, facts: &Facts) -> bool {
        facts.permanent || self.policy.table.rule(facts.reason).permanent
    }

    fn ordinary(&mut self, now: Duration, blame: Option<(Weight, &Facts)>, slow: bool) {
        self.ended.push(Ended { at: now, failed: blame.is_some(), slow });
        match blame {
            None => self.row = 0,
            Some((Weight::Soft, _)) => {}
            Some(_) => self.row += 1,
        }
        let (calls, failures, slows) = self.window(now);
        let enough = calls >= u64::from(self.policy.min_calls);
        let share = |part: u64, rate: f64| part as f64 / calls as f64 >= rate;
        let failed = blame.is_some();
        let cause = if blame.is_some_and(|(weight, _)| weight == Weight::Proof) {
            Cause::Proof
        } else if failed && self.policy.consecutive.is_some_and(|row| self.row >= row) {
            Cause::Consecutive
        } else if failed
            && enough
            && self.policy.failure_rate.is_some_and(|rate| share(failures, rate))
        {
            Cause::FailureRate
        } else if slow && enough && self.policy.slow.is_some_and(|it| share(slows, it.rate)) {
            Cause::SlowRate
        } else {
            return;
        };
        self.open(now, cause, blame.map(|(_, facts)| facts));
    }

    fn probe(&mut self, now: Duration, blame: Option<(Weight, &Facts)>, slow: bool) {
        if blame.is_none() && !slow {
            let rest = self.rest.as_mut().unwrap();
            rest.successes += 1;
            if rest.successes >= self.policy.successes {
                self.close(Cause::Recovered);
            }
            return;
        }
        self.failed_probes += 1;
        self.open(now, Cause::ProbeFailed, blame.map(|(_, facts)| facts));
    }

    fn lone(&mut self, now: Duration, blame: Option<(Weight, &Facts)>, slow: bool) {
        let probe_from = self.probe_from();
        let longest = self.policy.max_permanent;
        let least = blame.map(|(_, facts)| self.shortest(Some(facts)).0);
        let rest = self.rest.as_mut().unwrap();
        match blame {
            None if !slow => {
                rest.row += 1;
                let enough = self.policy.lone.map_or(1, |lone| lone.successes);
                let believed = !rest.hinted || now >= probe_from;
                if rest.row >= enough.max(self.policy.successes) && believed {
                    self.close(Cause::Recovered);
                }
            }
            None => rest.row = 0,
            Some((weight, facts)) => {
                rest.row = 0;
                if let Some(hint) = facts.hint.filter(|hint| !hint.is_zero()) {
                    rest.until = rest.until.max(now + hint.min(longest));
                    rest.hinted = true;
                }
                if weight == Weight::Proof {
                    rest.until = rest.until.max(now + least.unwrap_or_default());
                }
            }
        }
    }

    /// The shortest rest, and where its doubling ends.
    fn shortest(&self, facts: Option<&Facts>) -> (Duration, Duration) {
        let policy = &self.policy;
        let Some(facts) = facts else { return (policy.cooldown, policy.max_cooldown) };
        let own = policy.table.rule(facts.reason).cooldown.unwrap_or(policy.cooldown);
        let hint = facts.hint.filter(|hint| !hint.is_zero());
        let asked = hint.map_or(own, |hint| hint.min(policy.max_permanent));
        if self.permanent(facts) {
            (asked.max(policy.permanent_cooldown), policy.max_permanent)
        } else {
            (asked, policy.max_cooldown)
        }
    }

    fn open(&mut self, now: Duration, cause: Cause, facts: Option<&Facts>) {
        let (base, cap) = self.shortest(facts);
        let doubled = 1u32.checked_shl(self.failed_probes).unwrap_or(u32::MAX);
        let wait = base.saturating_mul(doubled).min(cap.max(base));
        let most = wait + wait.mul_f64(self.policy.jitter) + Duration::from_nanos(1);
        let old = self.rest.filter(|_| self.state != State::Closed).map(|rest| rest.until);
        let floor = old.unwrap_or_default();
        self.due.push_back(Due {
            from: self.state,
            to: State::Open,
            cause,
            reason: facts.map(|facts| facts.reason),
            until: Some(((now + wait).max(floor), (now + most).max(floor))),
            hinted: facts.is_some_and(|facts| facts.hint.is_some_and(|hint| !hint.is_zero())),
        });
        self.state = State::Open;
        self.all_late();
    }

    fn close(&mut self, cause: Cause) {
        self.due.push_back(Due {
            from: self.state,
            to: State::Closed,
            cause,
            reason: None,
            until: None,
            hinted: false,
        });
        self.clear();
    }

    fn clear(&mut self) {
        self.state = State::Closed;
        self.ended.clear();
        (self.row, self.failed_probes, self.rest) = (0, 0, None);
        self.all_late();
    }

    fn all_late(&mut self) {
        self.out.iter_mut().for_each(|out| out.late = true);
    }

    /// An operator resets it.
    pub(crate) fn reset(&mut self) {
        if self.state == State::Closed {
            self.clear();
        } else {
            self.close(Cause::Manual);
        }
    }

    /// It says that it turned. What is wrong with that, if anything is.
    pub(crate) fn turned(
        &mut self,
        turn: &Transition<Option<Target>>,
        began: Instant,
    ) -> Result<(), String> {
        let since = |at: Instant| at.saturating_duration_since(began);
        let Some(due) = self.due.pop_front() else {
            return Err(format!("it turned, {turn:?}, and had no cause to: {self:?}"));
        };
        let until = turn.until.map(since);
        let fits = match (until, due.until) {
            (None, None) => true,
            (Some(until), Some((least, most))) => least <= until && until <= most,
            _ => false,
        };
        let told = (turn.from, turn.to, turn.cause, turn.reason);
        if told != (due.from, due.to, due.cause, due.reason) || !fits {
            return Err(format!("{told:?} until {until:?}, but {due:?} was due"));
        }
        // Only chance made the end of the rest uncertain: now it is known.
        if let (State::Open, Some(until)) = (due.to, until) {
            let now = since(turn.at);
            let before = self.rest.filter(|rest| due.from != State::Closed && rest.until == until);
            let hinted = before.map_or(due.hinted, |rest| rest.hinted);
            let (successes, row, last_lone) = (0, 0, now);
            self.rest = Some(Rest { since: now, until, hinted, successes, row, last_lone });
        }
        Ok(())
    }

    /// A turn that was never told.
    pub(crate) fn overdue(&self) -> Option<String> {
        let due = self.due.front()?;
        Some(format!("it should have turned: {due:?}"))
    }

    /// Calls, failures and slow ones of the window: the running tenth and the nine before it.
    fn window(&self, now: Duration) -> (u64, u64, u64) {
        let tenth = self.policy.window.as_nanos() / 10;
        let piece = |at: Duration| (at - self.born).as_nanos() / tenth;
        let inside = || self.ended.iter().filter(|ended| piece(ended.at) + 10 > piece(now));
        let count = |which: fn(&Ended) -> bool| {
            u64::try_from(inside().filter(|ended| which(ended)).count()).unwrap()
        };
        (count(|_| true), count(|ended| ended.failed), count(|ended| ended.slow))
    }

    /// What is different in `seen`, if anything is.
    pub(crate) fn differs(
        &self,
        seen: &Snapshot<Option<Target>>,
        now: Duration,
        began: Instant,
    ) -> Option<String> {
        let limit = self.policy.probe_limit;
        let under_way = |pass: Pass| {
            let out = self.out.iter().filter(|out| out.pass == pass && !out.late);
            u32::try_from(out.filter(|out| now - out.since < limit).count()).unwrap()
        };
        let resting = self.rest.filter(|_| self.state != State::Closed);
        let own = (
            self.state,
            resting.map(|rest| rest.until),
            self.row,
            self.failed_probes,
            self.window(now),
            (under_way(Pass::Probe), under_way(Pass::Lone)),
        );
        let told = (
            seen.state,
            seen.until.map(|until| until.saturating_duration_since(began)),
            seen.consecutive,
            seen.failed_probes,
            (seen.calls, seen.failures, seen.slow),
            (seen.probes, seen.lone),
        );
        (own != told).then(|| format!("expected {own:?}, and it is {told:?}"))
    }
}
