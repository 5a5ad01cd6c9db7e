//! The circuits of one task or session: pure, driven by the time, calls and their results.

use std::{borrow::Cow, time::Duration};

use steadfast_chat::ToolFailureKind;
use steadfast_core::{
    Permit, PermitKind, Reason,
    circuit::{
        Blame, Circuit, CircuitCause, CircuitSnapshot, CircuitState, CircuitVerdict, Moment,
        Transition, Weight,
    },
};
use tokio::time::Instant;

use super::ToolBreakerPolicy;
use crate::called::head;

/// Tools and calls of one session that are remembered: those that are under way, or that have failed. The one
/// used the longest ago goes first, one that is not blocked before others.
pub(super) const MAX_CIRCUITS: usize = 32;

/// Tags of one tool that are counted.
const MAX_TAGS: usize = 8;

/// How much of the last failure's text is repeated to the model, in bytes.
const LAST: usize = 240;

/// The circuits of one task or session.
#[derive(Debug)]
pub(super) struct Circuits {
    policy: ToolBreakerPolicy,
    entries: Vec<Entry>,
    /// Entries made, and uses of them, so far.
    ticks: u64,
    /// Calls that were blocked.
    pub(super) blocked: u64,
}

/// A tool, or one call of it.
#[derive(Debug)]
struct Entry {
    /// Unlike any other's, also after this one has gone.
    id: u64,
    tool: Box<str>,
    /// The call's signature; `None`: the whole tool.
    call: Option<u64>,
    circuit: Box<Circuit>,
    /// Calls that have begun.
    order: u64,
    /// The latest of them that has succeeded: failures of those that began before count no more.
    succeeded: u64,
    in_flight: u32,
    /// When it was last used, in ticks.
    used: u64,
    /// Failures in a row when it opened, and of probes since.
    failures: u32,
    /// Failures of each tag since the last success.
    tags: Vec<(Cow<'static, str>, u32)>,
    /// The tag that opened it.
    tag: Option<Cow<'static, str>>,
    /// The beginning of the last failure's text.
    last: Box<str>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallEnd<'a> {
    Success,
    Failed {
        kind: ToolFailureKind,
        tag: Option<&'a Cow<'static, str>>,
        text: &'a str,
    },
    /// Nobody waited for it.
    Cancelled,
}

/// A call that may be made: what it holds of the tool's circuit and of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallPermits {
    tool: (u64, Permit),
    call: (u64, Permit),
}

impl CallPermits {
    /// It finds out whether something that was blocked works again.
    pub(super) fn is_probe(&self) -> bool {
        [self.tool, self.call].iter().any(|(_, permit)| permit.kind == PermitKind::Probe)
    }
}

/// A call that may not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blocked {
    pub(super) whole_tool: bool,
    pub(super) failures: u32,
    pub(super) tag: Option<Cow<'static, str>>,
    pub(super) wait: Duration,
    pub(super) last: Box<str>,
}

/// A circuit that has opened, half-opened or closed.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) tool: Box<str>,
    pub(super) whole_tool: bool,
    pub(super) failures: u32,
    pub(super) tag: Option<Cow<'static, str>>,
    pub(super) transition: Transition,
}

/// A tool or call, and its circuit.
#[derive(Clone, Debug)]
pub(super) struct EntrySnapshot {
    pub(super) tool: Box<str>,
    pub(super) whole_tool: bool,
    pub(super) circuit: CircuitSnapshot,
}

/// What a failure of that kind says: of the tool, and of this very call.
fn verdict(end: CallEnd<'_>, proof: bool, probe: bool, rest: Duration) -> CircuitVerdict {
    let CallEnd::Failed { kind, .. } = end else {
        return match end {
            CallEnd::Success => CircuitVerdict::Success,
            _ => CircuitVerdict::Nothing,
        };
    };
    let reason = match kind {
        // The command ran, which is what a probe wants to know; else it says nothing.
        ToolFailureKind::Exit if probe => return CircuitVerdict::Success,
        ToolFailureKind::Exit
        | ToolFailureKind::Arguments
        | ToolFailureKind::Aborted
        | ToolFailureKind::Refused => return CircuitVerdict::Nothing,
        ToolFailureKind::TimedOut => Reason::Timeout,
        _ => Reason::Unknown,
    };
    let weight = if proof { Weight::Proof } else { Weight::Hard };
    CircuitVerdict::Failure(Blame {
        weight,
        reason,
        cooldown: rest,
        hinted: false,
        permanent: false,
    })
}

impl Circuits {
    pub(super) fn new(policy: ToolBreakerPolicy) -> Self {
        Self { policy, entries: Vec::new(), ticks: 0, blocked: 0 }
    }

    /// Whether a call may be made. Either way the circuits that changed are added to `changes`.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        tool: &str,
        call: u64,
        changes: &mut Vec<Change>,
    ) -> Result<CallPermits, Blocked> {
        let tool_permit = self.enter(now, tool, None, changes)?;
        match self.enter(now, tool, Some(call), changes) {
            Ok(call_permit) => Ok(CallPermits { tool: tool_permit, call: call_permit }),
            Err(blocked) => {
                self.leave(now, tool_permit, CallEnd::Cancelled, changes);
                Err(blocked)
            }
        }
    }

    /// A call has ended.
    pub(super) fn end(
        &mut self,
        now: Instant,
        permits: CallPermits,
        end: CallEnd<'_>,
        changes: &mut Vec<Change>,
    ) {
        self.leave(now, permits.tool, end, changes);
        self.leave(now, permits.call, end, changes);
    }

    fn enter(
        &mut self,
        now: Instant,
        tool: &str,
        call: Option<u64>,
        changes: &mut Vec<Change>,
    ) -> Result<(u64, Permit), Blocked> {
        let at = self.position(now, tool, call);
        self.ticks += 1;
        let entry = &mut self.entries[at];
        entry.used = self.ticks;
        let admission = entry.circuit.admit(Moment { at: now, order: entry.order + 1 }, false);
        changes.extend(admission.transition.map(|transition| entry.change(transition)));
        match admission.result {
            Ok(permit) => {
                entry.order += 1;
                entry.in_flight += 1;
                Ok((entry.id, permit))
            }
            Err(refused) => {
                self.blocked += 1;
                Err(Blocked {
                    whole_tool: call.is_none(),
                    failures: entry.failures,
                    tag: entry.tag.clone(),
                    wait: refused.wait,
                    last: entry.last.clone(),
                })
            }
        }
    }

    fn leave(
        &mut self,
        now: Instant,
        (id, permit): (u64, Permit),
        end: CallEnd<'_>,
        changes: &mut Vec<Change>,
    ) {
        // It may have been evicted, or reset.
        let Some(at) = self.entries.iter().position(|entry| entry.id == id) else { return };
        let entry = &mut self.entries[at];
        entry.in_flight = entry.in_flight.saturating_sub(1);
        let counts = entry.circuit.is_current(&permit) && permit.order > entry.succeeded;
        let proof = counts && entry.counts_tag(end, self.policy.same_tag);
        let probe = permit.kind == PermitKind::Probe;
        let verdict = verdict(end, proof, probe, self.policy.rest);
        match (counts, verdict, end) {
            (true, CircuitVerdict::Success, _) => entry.forget(permit.order),
            (true, CircuitVerdict::Failure(_), CallEnd::Failed { text, .. }) => {
                entry.last = head(text, LAST).into();
            }
            _ => {}
        }
        let moment = Moment { at: now, order: entry.order };
        if let Some(transition) = entry.circuit.end(moment, &permit, verdict, None) {
            entry.count(&transition, now);
            changes.push(entry.change(transition));
        }
        if entry.in_flight == 0 && !entry.circuit.is_degraded(now) {
            self.entries.swap_remove(at);
        }
    }

    /// Where the entry is; made if there is none.
    fn position(&mut self, now: Instant, tool: &str, call: Option<u64>) -> usize {
        let known =
            self.entries.iter().position(|entry| entry.call == call && *entry.tool == *tool);
        if let Some(at) = known {
            return at;
        }
        if self.entries.len() >= MAX_CIRCUITS {
            let oldest = self.entries.iter().enumerate();
            let oldest = oldest.min_by_key(|(_, entry)| {
                let known = entry.in_flight > 0 || entry.circuit.is_degraded(now);
                (entry.circuit.is_worth_keeping(now), known, entry.used)
            });
            if let Some((at, _)) = oldest {
                self.entries.swap_remove(at);
            }
        }
        self.ticks += 1;
        let row = if call.is_some() { self.policy.same_call } else { self.policy.tool };
        self.entries.push(Entry {
            id: self.ticks,
            tool: tool.into(),
            call,
            circuit: Box::new(Circuit::new(self.policy.circuit(row), now)),
            order: 0,
            succeeded: 0,
            in_flight: 0,
            used: self.ticks,
            failures: 0,
            tags: Vec::new(),
            tag: None,
            last: Box::default(),
        });
        self.entries.len() - 1
    }

    /// Whether anything is blocked.
    pub(super) fn is_worth_keeping(&self, now: Instant) -> bool {
        self.entries.iter().any(|entry| entry.circuit.is_worth_keeping(now))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Calls that are under way.
    pub(super) fn in_flight(&self) -> u64 {
        let tools = self.entries.iter().filter(|entry| entry.call.is_none());
        tools.map(|entry| u64::from(entry.in_flight)).sum()
    }

    /// Forgets the failures of `tool`, or of all tools.
    pub(super) fn reset(&mut self, tool: Option<&str>) -> usize {
        let before = self.entries.len();
        self.entries.retain(|entry| tool.is_some_and(|tool| *entry.tool != *tool));
        before - self.entries.len()
    }

    pub(super) fn snapshot(&mut self, now: Instant) -> Vec<EntrySnapshot> {
        let entries = self.entries.iter_mut();
        let failing = entries.filter(|entry| entry.circuit.is_degraded(now));
        failing
            .map(|entry| EntrySnapshot {
                tool: entry.tool.clone(),
                whole_tool: entry.call.is_none(),
                circuit: entry.circuit.snapshot(now),
            })
            .collect()
    }
}

impl Entry {
    /// Counts the tag of a failure of the tool; whether it is enough to open.
    fn counts_tag(&mut self, end: CallEnd<'_>, enough: Option<u32>) -> bool {
        let CallEnd::Failed { tag: Some(tag), .. } = end else { return false };
        let (true, Some(enough)) = (self.call.is_none(), enough) else { return false };
        if !matches!(verdict(end, false, false, Duration::ZERO), CircuitVerdict::Failure(_)) {
            return false;
        }
        let at = match self.tags.iter().position(|(known, _)| known == tag) {
            Some(at) => at,
            None => {
                if self.tags.len() >= MAX_TAGS {
                    self.tags.remove(0);
                }
                self.tags.push((tag.clone(), 0));
                self.tags.len() - 1
            }
        };
        self.tags[at].1 += 1;
        let opens = self.tags[at].1 >= enough;
        if opens {
            self.tag = Some(tag.clone());
        }
        opens
    }

    /// Notes how many failures it took.
    fn count(&mut self, transition: &Transition, now: Instant) {
        self.failures = match transition.cause {
            CircuitCause::ProbeFailed => self.failures + 1,
            // The row that it took may not be the latest one.
            CircuitCause::Consecutive => {
                let latest = self.circuit.snapshot(now).consecutive;
                self.circuit.policy().consecutive.unwrap_or(0).max(latest)
            }
            CircuitCause::Proof => self.tags.iter().map(|(_, count)| *count).max().unwrap_or(0),
            _ => self.failures,
        };
    }

    /// It has succeeded.
    fn forget(&mut self, order: u64) {
        self.succeeded = order;
        self.tags.clear();
        self.tag = None;
    }

    fn change(&self, transition: Transition) -> Change {
        let tag = self.tag.clone().filter(|_| transition.to == CircuitState::Open);
        Change {
            tool: self.tool.clone(),
            whole_tool: self.call.is_none(),
            failures: self.failures,
            tag,
            transition,
        }
    }
}
