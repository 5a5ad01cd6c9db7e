//! Checks after all callers are done.

use std::{collections::BTreeMap, time::Duration};

use steadfast::{
    Completion, Delta, Failure, Part, Reason, Step, TimeLimit,
    breaker::BreakerHandle,
    failover::WhenExhausted,
    sim::{End, Entry, Sent},
};

use crate::{
    callers::{Ending, caller_in},
    invariants::Invariant,
    timeline::{Boundary, EndState, Facts, TraceEntry, TraceEvent},
    world::{Policies, World},
};

/// Checks each caller's call.
pub(crate) fn all(world: &World, endings: &[Ending]) {
    let entries = world.journal.entries();
    let seen = Observations::of(&world.timeline.notes());
    let mut by_caller: Vec<Vec<&Entry>> = vec![Vec::new(); endings.len()];
    for entry in &entries {
        match caller_in(&entry.body) {
            Some(caller) => by_caller[caller].push(entry),
            None => {
                world
                    .violations
                    .add(Invariant::WithinAttempts, format!("an attempt of no caller: {entry:?}"));
            }
        }
    }
    for ending in endings {
        let attempts = &by_caller[ending.caller.id];
        let one = CallCheck { world, ending, attempts, seen: &seen };
        one.ends();
        one.in_time();
        one.attempts();
        one.answer_or_failure();
        one.forbidden();
        if !world.layers.preset {
            one.log();
        }
    }
}

/// Checks that nothing is in flight: no connection, no probe; and the budget is within its capacity.
pub(crate) fn at_rest(world: &World) {
    let violations = &world.violations;
    for entry in world.journal.entries() {
        violations.check(Invariant::NothingLeft, entry.end != End::Open, || {
            format!("left open: {entry:?}")
        });
    }
    for target in world.failover.iter().flat_map(|it| it.snapshot().targets().to_vec()) {
        violations.check(Invariant::NothingLeft, !target.probing, || {
            format!("nobody probes: {target:?}")
        });
    }
    for breaker in world.breaker.iter().flat_map(BreakerHandle::snapshot) {
        let none = (breaker.circuit.probes, breaker.circuit.lone) == (0, 0);
        violations.check(Invariant::NothingLeft, none, || format!("nobody probes: {breaker:?}"));
    }
    if let Some(budget) = &world.policies.budget {
        let holds = budget.remaining() <= budget.policy().capacity;
        violations.check(Invariant::NothingLeft, holds, || format!("{budget:?}"));
    }
}

/// The timeline by caller.
#[derive(Debug, Default)]
struct Observations {
    /// Attempts that failed.
    attempts: Vec<(Option<usize>, Duration, Facts)>,
    /// Admitted attempts that failed.
    asked: Vec<(Option<usize>, Duration, Facts)>,
    started: BTreeMap<usize, Started>,
    turns: Vec<(Duration, String)>,
    forbade: Vec<(usize, Duration)>,
}

/// What started for one caller.
#[derive(Clone, Debug, Default)]
struct Started {
    targets: Vec<(Duration, String)>,
    attempts: usize,
    asked: Vec<Duration>,
}

impl Observations {
    fn of(notes: &[TraceEntry]) -> Self {
        let mut seen = Self::default();
        let mut whose: BTreeMap<u64, Option<usize>> = BTreeMap::new();
        for note in notes {
            match &note.what {
                TraceEvent::Started { boundary, id, caller, target, .. } => {
                    whose.insert(*id, *caller);
                    let Some(caller) = caller else { continue };
                    let started = seen.started.entry(*caller).or_default();
                    match boundary {
                        Boundary::Call => {}
                        Boundary::Target => started.targets.push((
                            note.at,
                            target.as_ref().map(ToString::to_string).unwrap_or_default(),
                        )),
                        Boundary::Attempt => started.attempts += 1,
                        Boundary::Admitted => started.asked.push(note.at),
                    }
                }
                TraceEvent::Ended { boundary, id, how: EndState::Failed(facts) } => {
                    let caller = whose.get(id).copied().flatten();
                    let failed = (caller, note.at, facts.clone());
                    match boundary {
                        Boundary::Attempt => seen.attempts.push(failed),
                        Boundary::Admitted => seen.asked.push(failed),
                        _ => {}
                    }
                }
                TraceEvent::BreakerChanged(turn) => {
                    let key = turn.key.as_ref().map(ToString::to_string).unwrap_or_default();
                    seen.turns.push((note.at, format!("{key} {}", turn.transition.to)));
                }
                TraceEvent::GuardRefused { caller: Some(caller) } => {
                    seen.forbade.push((*caller, note.at));
                }
                _ => {}
            }
        }
        seen
    }
}

/// One call, its attempts in the providers' journals, and the timeline.
struct CallCheck<'a> {
    world: &'a World,
    ending: &'a Ending,
    attempts: &'a [&'a Entry],
    seen: &'a Observations,
}

impl CallCheck<'_> {
    fn check(&self, invariant: Invariant, holds: bool, what: impl FnOnce() -> String) {
        self.world
            .violations
            .check(invariant, holds, || format!("{}; {:?}", what(), self.ending.caller));
    }

    fn failure(&self) -> Option<&Failure> {
        self.ending.got.as_ref()?.failure.as_ref()
    }

    /// Whether a second target was asked at the same time, as far as is known.
    fn hedged(&self) -> bool {
        let log = &self.ending.log;
        let is_hedge = |step: &Step| (step.layer, step.action) == ("failover", "hedged");
        log.dropped() > 0 || log.steps().iter().any(is_hedge)
    }

    /// Whether the pipeline's limit ended it.
    fn too_late(&self) -> bool {
        self.failure().is_some_and(|it| it.time_limit() == Some(TimeLimit::Pipeline))
    }

    fn ends(&self) {
        self.check(Invariant::EndsOnce, self.ending.ended, || "it never ends".to_owned());
        let Some(got) = &self.ending.got else { return };
        let after = &got.after_end;
        self.check(Invariant::EndsOnce, after.is_none(), || {
            format!("after the end came {after:?}")
        });
        let deltas: Vec<&Delta> = got.events.iter().flat_map(|event| &event.deltas).collect();
        let end = deltas.iter().position(|delta| matches!(delta, Delta::End));
        let last = match got.failure {
            None => deltas.len().checked_sub(1),
            Some(_) => None,
        };
        self.check(Invariant::EndsOnce, end == last, || {
            format!("the end is at {end:?}, not {last:?}: {deltas:?} {:?}", got.failure)
        });
        let either = got.failure.is_some() || got.seen.as_ref().is_some_and(|seen| seen.ended);
        self.check(Invariant::EndsOnce, either, || format!("no answer and no failure: {got:?}"));
    }

    fn in_time(&self) {
        let Ending { began, at, limit, .. } = self.ending;
        let took = *at - *began;
        let holds = limit.is_none_or(|limit| took <= limit);
        self.check(Invariant::InTime, holds, || format!("took {took:?} of {limit:?}"));
        for entry in self.attempts {
            self.check(Invariant::InTime, entry.at <= *at, || {
                format!("asked when over: {entry:?}")
            });
            let over = entry.ended_at.is_some_and(|over| over <= *at);
            self.check(Invariant::NothingLeft, over, || format!("over at {at:?}: {entry:?}"));
        }
    }

    fn attempts(&self) {
        let World { layers, policies, candidates, .. } = self.world;
        let caller = &self.ending.caller;
        let count = u32::try_from(self.attempts.len()).unwrap();
        for entry in self.attempts {
            let limited = entry.status == Some(429);
            self.check(Invariant::WithinAttempts, entry.refused.is_none() || limited, || {
                format!("a request that the provider refused: {entry:?}")
            });
        }
        // Without a layer that repeats attempts, nothing enforces the maximum.
        let makes = layers.failover || layers.retry;
        if let Some(max) = caller.max_attempts.filter(|_| makes) {
            let allowed = max.get().saturating_sub(caller.already);
            // Without failover the first attempt is always made.
            let allowed = if layers.failover { allowed } else { allowed.max(1) };
            self.check(Invariant::WithinAttempts, count <= allowed, || {
                format!("{count} attempts, {allowed} allowed: {:?}", self.attempts)
            });
        }
        let retries = if layers.retry { policies.retry.retries } else { 0 };
        let visit = 1 + retries;
        let round = if layers.failover { u32::try_from(*candidates).unwrap() } else { 1 };
        // Each target is asked in the first round; a further one ends with the last attempt.
        let further = match policies.failover.when_exhausted {
            _ if !layers.failover => 0,
            WhenExhausted::Fail => 0,
            _ => policies.failover.attempts,
        };
        let hedge = if self.hedged() { visit } else { 0 };
        let most = (round * visit).max(further) + hedge;
        self.check(Invariant::WithinAttempts, count <= most, || {
            format!("{count} attempts of {most}")
        });

        // Whoever made them, also those that nobody waited for.
        let logged = self.ending.log.attempts();
        self.check(Invariant::WithinAttempts, logged == count, || {
            format!("{count} attempts, {logged} in the log: {}", self.ending.log)
        });
        let number = |entry: &&&Entry| entry.header("x-steadfast-attempt")?.parse::<u32>().ok();
        let mut numbers: Vec<_> = self.attempts.iter().filter_map(|it| number(&it)).collect();
        numbers.sort_unstable();
        let counted: Vec<u32> = (caller.already + 1..=caller.already + count).collect();
        // An attempt after a hedge may have the hedge's number.
        self.check(Invariant::WithinAttempts, numbers == counted || self.hedged(), || {
            format!("the attempts have the numbers {numbers:?}, not {counted:?}")
        });
        let Some(got) = &self.ending.got else { return };
        let reported = match (&got.failure, &got.seen) {
            // The head of an answer also counts the attempts before the stack.
            (_, Some(seen)) => seen.head.attempts - caller.already,
            (failure, None) => failure.as_ref().map_or(0, Failure::attempts),
        };
        // The deadline does not know the attempts it cancels; with a stall limit below, the attempt
        // ends by itself.
        let counts = layers.stall || !self.too_late();
        // That of an answer that came while another one was asked beside it does not count the other.
        let agrees = if self.hedged() { reported <= count } else { reported == count };
        self.check(Invariant::WithinAttempts, agrees || !counts, || {
            format!("{count} attempts, reported {reported}: {:?}", got.failure)
        });
    }

    fn answer_or_failure(&self) {
        let Some(got) = &self.ending.got else { return };
        let attempts = self.attempts;
        match (&got.failure, &got.seen) {
            (None, Some(seen)) => {
                let whole = |entry: &&Entry| is_whole(seen, entry);
                let found: Vec<_> = of_target(seen, attempts).filter(whole).collect();
                self.check(Invariant::NothingLostNothingTwice, !found.is_empty(), || {
                    format!("{seen:?} is no provider's answer: {attempts:?}")
                });
                let counted = |entry: &&Entry| counts(seen, entry);
                let once = found.is_empty() || found.iter().any(counted);
                self.check(Invariant::UsageOnce, once, || format!("{:?}: {found:?}", seen.usage));
            }
            (Some(failure), seen) => {
                let content = got.events.iter().any(steadfast::Event::is_content);
                let marked = failure.is_delivered() == content || !self.world.layers.failover;
                self.check(Invariant::NothingLostNothingTwice, marked, || {
                    format!("content: {content}, but {failure:?} {attempts:?}")
                });
                if let Some(seen) = seen.as_ref().filter(|_| content) {
                    let begins = of_target(seen, attempts).any(|entry| is_beginning(seen, entry));
                    self.check(Invariant::NothingLostNothingTwice, begins, || {
                        format!("{seen:?} is no beginning of {attempts:?}")
                    });
                }
                // Without a message from the provider there is at least a status.
                let reported = !failure.message().is_empty() || failure.status().is_some();
                self.check(Invariant::Reported, reported, || format!("{failure:?} {attempts:?}"));
            }
            // Checked in [`Self::ends`].
            (None, None) => {}
        }
    }

    fn forbidden(&self) {
        let own =
            || self.seen.forbade.iter().filter(|(caller, _)| *caller == self.ending.caller.id);
        let Some((_, at)) = own().next() else { return };
        let once = own().count() == 1;
        self.check(Invariant::ForbiddenIsFinal, once, || {
            "asked again, and refused again".to_owned()
        });
        let later = self.attempts.iter().find(|entry| entry.at > *at);
        self.check(Invariant::ForbiddenIsFinal, later.is_none(), || {
            format!("asked after it: {later:?}")
        });
        // Unless another attempt had answered before: then the refused one was a hedge.
        let refused = match &self.ending.got {
            None => true,
            Some(got) => got.failure.as_ref().is_none_or(|failure| {
                failure.reason() == Reason::Safety || got.in_answer || self.too_late()
            }),
        };
        let answered = self.ending.got.as_ref().is_some_and(|got| got.failure.is_none());
        self.check(Invariant::ForbiddenIsFinal, refused && (!answered || self.hedged()), || {
            format!("and the caller got {:?}", self.ending.got)
        });
    }

    /// Compares the recovery log with the timeline, and checks how often a target was retried.
    fn log(&self) {
        let log = &self.ending.log;
        if log.dropped() > 0 {
            return;
        }
        let id = Some(self.ending.caller.id);
        let steps = log.steps();
        let failed = |seen: &[(Option<usize>, Duration, Facts)], at: Duration, reason: Reason| {
            seen.iter().any(|(who, when, facts)| (*who, *when, facts.reason) == (id, at, reason))
        };
        for step in &steps {
            let at = self.ending.began + step.at;
            let holds = match (step.layer, step.action) {
                // Or the retry was refused, and the call ends with what it was retried for.
                ("retry", "gave_up") if step.detail.as_deref() == Some("refused") => {
                    failed(&self.seen.attempts, at, Reason::CircuitOpen)
                }
                ("retry", "retried" | "gave_up") => {
                    step.reason.is_some_and(|reason| failed(&self.seen.attempts, at, reason))
                }
                ("timeout", "fired") if step.detail.as_deref() != Some("pipeline") => {
                    failed(&self.seen.asked, at, Reason::Timeout)
                }
                ("breaker", "opened" | "closed") => {
                    let to = if step.action == "opened" { "open" } else { "closed" };
                    let key = step.target.as_ref().map(ToString::to_string).unwrap_or_default();
                    self.seen.turns.contains(&(at, format!("{key} {to}")))
                }
                _ => true,
            };
            self.check(Invariant::LogAgrees, holds, || {
                format!("{step} at {at:?} did not happen: {log}")
            });
        }
        let count = |layer: &str, actions: &[&str]| {
            let of = |step: &&Step| step.layer == layer && actions.contains(&step.action);
            steps.iter().filter(of).count()
        };
        let started = self.seen.started.get(&self.ending.caller.id).cloned().unwrap_or_default();
        let moves = count("failover", &["switched", "downgraded", "hedged"]);
        let waits = count("failover", &["waited"]);
        let retried = count("retry", &["retried"]);
        let refused = count("breaker", &["refused"]);
        let counts = || format!("{started:?}: {log}");
        let visits = started.targets.len();
        if self.world.layers.failover {
            // The first is logged if it is not the requested model; that a round begins with the target
            // that failed last, is not.
            let holds = (moves..=moves + 1 + waits).contains(&visits);
            self.check(Invariant::LogAgrees, holds, counts);
        }
        // One that is out of turn is sent again.
        let again = if self.world.layers.failover { refused } else { 0 };
        let stayed = self.ending.got.is_some() && !self.too_late() && !self.hedged();
        let made = started.attempts;
        let agree = made <= visits + retried + again && (!stayed || made >= visits + retried);
        self.check(Invariant::LogAgrees, agree, counts);
        let asked = started.asked.len();
        self.check(Invariant::LogAgrees, asked + refused == made, counts);
        self.waits(&steps);
        let own = self.seen.forbade.iter().filter(|(who, _)| *who == self.ending.caller.id).count();
        let sent = self.attempts.len() + own;
        self.check(Invariant::LogAgrees, sent <= asked && (!stayed || sent == asked), counts);
    }

    /// How long the call waited in all, between its attempts and for its targets.
    fn waits(&self, steps: &[Step]) {
        let Policies { failover, retry, .. } = &*self.world.policies;
        let own = match failover.when_exhausted {
            WhenExhausted::Wait(longest) => longest,
            _ => Duration::ZERO,
        };
        let most = own.max(failover.patience.with_spare).max(failover.patience.alone);
        let of = |layer: &str, action: &str| {
            let found = steps.iter().filter(move |it| (it.layer, it.action) == (layer, action));
            let waits: Vec<Duration> = found.filter_map(|step| step.wait).collect();
            (waits.iter().sum::<Duration>(), u32::try_from(waits.len()).unwrap())
        };
        let ((retried, retries), (waited, rounds)) =
            (of("retry", "retried"), of("failover", "waited"));
        // What is added to a hint is no part of the patience.
        let added = retry.backoff.base() * retries;
        let holds =
            !self.world.layers.failover || self.hedged() || retried + waited <= most + added;
        self.check(Invariant::InTime, holds, || {
            format!("waited {retried:?} and {waited:?} of {most:?}")
        });
        let waits = failover.when_exhausted != WhenExhausted::Fail;
        self.check(Invariant::InTime, waits || rounds == 0, || format!("waited {waited:?}"));
    }
}

/// The attempts at the target that answered, according to the head.
fn of_target<'a>(seen: &Completion, attempts: &[&'a Entry]) -> impl Iterator<Item = &'a Entry> {
    let name = seen.head.target.as_ref().map(|target| target.provider().to_owned());
    attempts.iter().copied().filter(move |entry| Some(&entry.provider) == name.as_ref())
}

/// Thinking and text; each call's name and arguments.
fn content(seen: &Completion) -> (String, String, Vec<(&str, &str)>) {
    let thinking = seen.parts.iter().filter_map(|part| match part {
        Part::Thinking(thinking) => Some(thinking.text.as_str()),
        _ => None,
    });
    let calls = seen.tool_calls().map(|call| (call.name.as_str(), call.arguments.as_str()));
    (thinking.collect(), seen.text(), calls.collect())
}

fn sent_calls(sent: &Sent) -> Vec<(&str, &str)> {
    sent.tool_calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect()
}

fn is_whole(seen: &Completion, entry: &Entry) -> bool {
    let Some(sent) = &entry.sent else { return false };
    let (thinking, text, calls) = content(seen);
    entry.end == End::Complete
        && (&thinking, &text) == (&sent.thinking, &sent.text)
        && calls == sent_calls(sent)
        && seen.stop.as_ref().and_then(|stop| stop.word.as_deref()) == Some(&*sent.stop)
}

/// Input includes cached tokens; see [`steadfast::Usage`].
fn counts(seen: &Completion, entry: &Entry) -> bool {
    let Some(sent) = &entry.sent else { return false };
    let (usage, sent) = (&seen.usage, &sent.usage);
    let input = sent.input + sent.cache_read + sent.cache_write;
    usage.output.unwrap_or(0) == sent.output && usage.input.is_none_or(|seen| seen == input)
}

fn is_beginning(seen: &Completion, entry: &Entry) -> bool {
    let Some(sent) = &entry.sent else { return false };
    let (thinking, text, calls) = content(seen);
    let truth = sent_calls(sent);
    let calls_begin = calls.len() <= truth.len()
        && calls
            .iter()
            .zip(&truth)
            .all(|(call, truth)| call.0 == truth.0 && truth.1.starts_with(call.1));
    sent.thinking.starts_with(&thinking) && sent.text.starts_with(&text) && calls_begin
}
