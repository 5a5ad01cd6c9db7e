//! A circuit under test, its time, and the scripts that drive it.
//!
//! A script is a list of steps, separated by `; `:
//!
//! | step | what it does |
//! |---|---|
//! | `server` | an ordinary call with this [`verdict`] |
//! | `server by 7`, `success took 11` | the same, of a witness, or with first content after seconds |
//! | `open network` | ordinary calls with this verdict until the circuit opens |
//! | `call a`, `probe a`, `lone a`, `reserve a` | admits a call of this kind under a name |
//! | `probe a lost 1` | the same, when a lost call makes room |
//! | `send a`, `send a by 7` | an ordinary call without permission of the circuit |
//! | `turn a by 7`, `no turn 1 by 7` | a repetition that has its turn, or has to wait for it |
//! | `first a by 7` | the first attempt of a call where repetitions take turns |
//! | `a again server` | an attempt fails, and the call goes on |
//! | `a success`, `a success took 11` | ends the oldest call of that name; the last one can end twice |
//! | `a content 1` | its first content, after so many seconds |
//! | `refused 30`, `lone refused 1`, `no reserve` | a call, a lone call, a reservation is refused |
//! | `force isolated`, `reset`, `trip overloaded 1`, `rest overloaded 1` | what a handle does |
//! | `wait 30`, `wait rest`, `wait probe` | moves the time, to the end of the rest, to the next probe |
//! | `is row 4` | checks a [`value`](Rig::value) |
//! | `is rested 2 by 7` | how long it rests for a witness, in seconds from now |
//! | `soft x20`, `[lone a, a success] x3` | steps several times |
//!
//! A step that changes the state ends with ` => ` and the change, `closed > open consecutive network`
//! or a part of it; one that must change nothing in the snapshot with ` => same`.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use steadfast_core::{
    CallContext, Permit, PermitKind, Reason, Witness,
    circuit::{
        Blame, Circuit, CircuitPolicy, CircuitSnapshot, CircuitState, CircuitVerdict, Moment,
        Transition, Weight,
    },
};
use tokio::time::Instant;

/// A script for a circuit of some policy.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) policy: fn() -> CircuitPolicy,
    pub(crate) script: &'static str,
}

/// Runs each case on a new circuit.
pub(crate) fn run(cases: &[Case]) {
    for case in cases {
        let mut rig = Rig::new((case.policy)());
        rig.run(case.name, case.script);
    }
}

/// A circuit, its time, and the order of its calls.
pub(crate) struct Rig {
    circuit: Circuit,
    pub(crate) now: Instant,
    order: u64,
    calls: HashMap<String, VecDeque<Permit>>,
    /// The call of each name that ended last.
    ended: HashMap<String, Permit>,
    /// The case and its step, for messages.
    at: String,
}

pub(crate) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn time(text: &str) -> Duration {
    Duration::from_secs_f64(text.parse().unwrap())
}

/// The witness with this session; `none` for a call that is one of its own.
fn witness(session: &str) -> Witness {
    match session {
        "none" => Witness::NONE,
        session => Witness::new(&CallContext::new().with_session(session), None),
    }
}

pub(crate) fn blame(weight: Weight, reason: Reason, cooldown: Duration) -> Blame {
    Blame { weight, reason, cooldown, hinted: false, permanent: false }
}

/// `success`, `nothing`, or a failure: `soft`, `server`, `network`, `timeout`, `proof`, `permanent`,
/// `hint:7` and `permanent:7` with a hint of the provider in seconds, `hard:auth:600` and
/// `proof:auth:600` with their reason and cooldown.
pub(crate) fn verdict(text: &str) -> CircuitVerdict {
    let parts: Vec<&str> = text.split(':').collect();
    CircuitVerdict::Failure(match *parts {
        ["success"] => return CircuitVerdict::Success,
        ["nothing"] => return CircuitVerdict::Nothing,
        ["soft"] => blame(Weight::Soft, Reason::RateLimit, secs(60)),
        ["server"] => blame(Weight::Hard, Reason::ServerError, secs(60)),
        ["network"] => blame(Weight::Hard, Reason::Network, secs(30)),
        ["timeout"] => blame(Weight::Hard, Reason::Timeout, secs(30)),
        ["proof"] => blame(Weight::Proof, Reason::Auth, secs(600)),
        ["permanent"] => Blame { permanent: true, ..blame(Weight::Proof, Reason::Auth, secs(600)) },
        ["permanent", hint] => Blame {
            hinted: true,
            permanent: true,
            ..blame(Weight::Proof, Reason::Auth, time(hint))
        },
        ["hint", hint] => {
            Blame { hinted: true, ..blame(Weight::Soft, Reason::RateLimit, time(hint)) }
        }
        ["hard", reason, cooldown] => blame(Weight::Hard, reason.parse().unwrap(), time(cooldown)),
        ["proof", reason, cooldown] => {
            blame(Weight::Proof, reason.parse().unwrap(), time(cooldown))
        }
        _ => panic!("`{text}` is no verdict"),
    })
}

impl Rig {
    pub(crate) fn new(policy: CircuitPolicy) -> Self {
        let now = Instant::now();
        let circuit = Circuit::new(policy, now);
        let (calls, ended) = (HashMap::new(), HashMap::new());
        Self { circuit, now, order: 0, calls, ended, at: String::new() }
    }

    fn moment(&self) -> Moment {
        Moment { at: self.now, order: self.order }
    }

    fn begin(&mut self) -> Moment {
        self.order += 1;
        self.moment()
    }

    pub(crate) fn ask(&mut self, lone: bool) -> Result<Permit, Duration> {
        let now = self.begin();
        self.circuit.admit(now, lone).result.map_err(|refused| refused.wait)
    }

    #[track_caller]
    pub(crate) fn admitted(&mut self, kind: PermitKind) -> Permit {
        match self.ask(kind == PermitKind::Lone) {
            Ok(permit) if permit.kind == kind => permit,
            other => panic!("{}: {other:?}", self.at),
        }
    }

    pub(crate) fn end(&mut self, permit: Permit, verdict: CircuitVerdict) -> Option<Transition> {
        self.circuit.end(self.moment(), &permit, verdict, None)
    }

    /// Calls with this verdict until it opens.
    #[track_caller]
    pub(crate) fn open(&mut self, verdict: CircuitVerdict) {
        for _ in 0..100 {
            let permit = self.admitted(PermitKind::Ordinary);
            if let Some(change) = self.end(permit, verdict) {
                return assert_eq!(change.to, CircuitState::Open, "{}", self.at);
            }
        }
        panic!("{}: does not open", self.at);
    }

    pub(crate) fn snapshot(&mut self) -> CircuitSnapshot {
        self.circuit.snapshot(self.now)
    }

    /// Runs a script; `name` is for messages.
    #[track_caller]
    pub(crate) fn run(&mut self, name: &str, script: &str) {
        for step in script.split("; ") {
            let (steps, count) = match step.rsplit_once(" x") {
                Some((steps, count)) => (steps, count.parse().unwrap()),
                None => (step, 1),
            };
            for _ in 0..count {
                for step in steps.trim_matches(['[', ']']).split(", ") {
                    self.at = format!("{name}, `{step}`");
                    self.step(step);
                }
            }
        }
    }

    #[track_caller]
    fn step(&mut self, step: &str) {
        let (action, expected) = step.split_once(" => ").unwrap_or((step, ""));
        let before = (expected == "same").then(|| self.snapshot());
        let change = self.perform(&action.split(' ').collect::<Vec<_>>()).map(|it| {
            let reason = it.reason.map_or("none", Reason::as_str);
            format!(" {} > {} {} {reason} ", it.from, it.to, it.cause)
        });
        match (expected, change) {
            ("same", None) => assert_eq!(before, Some(self.snapshot()), "{}", self.at),
            ("", None) => {}
            (_, change) => {
                let change = change.unwrap_or_default();
                assert!(
                    !expected.is_empty() && change.contains(&format!(" {expected} ")),
                    "{}: the change is `{change}`",
                    self.at
                );
            }
        }
    }

    fn started(&mut self, name: &str, permit: Permit) {
        self.calls.entry(name.to_owned()).or_default().push_back(permit);
    }

    #[track_caller]
    fn perform(&mut self, step: &[&str]) -> Option<Transition> {
        match *step {
            ["wait", "rest"] => self.now = self.snapshot().until.unwrap(),
            ["wait", "probe"] => self.now = self.snapshot().probe_from.unwrap(),
            ["wait", seconds] => self.now += time(seconds),
            ["open", text] => self.open(verdict(text)),
            ["is", "rested", expected, "by", by] => {
                let rest = self.circuit.resting_for(witness(by), self.now);
                let left = rest.map(|rest| (rest.until - self.now).as_secs_f64().to_string());
                assert_eq!(left.as_deref().unwrap_or("none"), expected, "{}", self.at);
            }
            ["is", name, ref expected @ ..] => {
                assert_eq!(self.value(name), expected.join(" "), "{}", self.at);
            }
            ["refused"] => assert!(self.ask(false).is_err(), "{}", self.at),
            ["refused", wait] => assert_eq!(self.ask(false), Err(time(wait)), "{}", self.at),
            ["lone", "refused"] => assert!(self.ask(true).is_err(), "{}", self.at),
            ["lone", "refused", wait] => {
                assert_eq!(self.ask(true), Err(time(wait)), "{}", self.at);
            }
            ["no", "reserve"] => {
                let now = self.begin();
                assert!(self.circuit.acquire_probe(now).is_none(), "{}", self.at);
            }
            ["reserve", name] => {
                let now = self.begin();
                let permit = self.circuit.acquire_probe(now).expect(&self.at);
                self.started(name, permit);
            }
            ["send", name] => {
                let permit = Permit::new(PermitKind::Ordinary, self.begin().order);
                self.started(name, permit);
            }
            ["send", name, "by", by] => {
                let order = self.begin().order;
                let permit =
                    Permit { witness: witness(by), ..Permit::new(PermitKind::Ordinary, order) };
                self.circuit.began(&permit);
                self.started(name, permit);
            }
            [kind @ ("turn" | "first"), name, "by", by] => {
                let now = self.begin();
                let admission = self.circuit.take_turn(now, kind == "first", witness(by));
                let permit = admission.result.expect(&self.at);
                self.started(name, permit);
            }
            ["no", "turn", wait, "by", by] => {
                let now = Moment { order: self.order + 1, ..self.moment() };
                let refused = self.circuit.take_turn(now, false, witness(by)).result;
                assert_eq!(refused.map_err(|it| it.wait), Err(time(wait)), "{}", self.at);
            }
            [call, "again", text] => {
                let permit = self.calls[call][0];
                let CircuitVerdict::Failure(blame) = verdict(text) else { panic!("{}", self.at) };
                return self.circuit.attempt_failed(self.moment(), &permit, blame);
            }
            [kind @ ("call" | "probe" | "lone"), name] => {
                let permit = self.admitted(match kind {
                    "call" => PermitKind::Ordinary,
                    "probe" => PermitKind::Probe,
                    _ => PermitKind::Lone,
                });
                self.started(name, permit);
            }
            ["probe", name, "lost", lost] => {
                let now = self.begin();
                let admission = self.circuit.admit(now, false);
                assert_eq!(admission.lost.to_string(), lost, "{}", self.at);
                let permit = admission.result.expect(&self.at);
                assert_eq!(permit.kind, PermitKind::Probe, "{}", self.at);
                self.started(name, permit);
            }
            ["force", name] => {
                let states =
                    [CircuitState::ForcedOpen, CircuitState::ForcedClosed, CircuitState::Isolated];
                let state = states.into_iter().find(|state| state.as_str() == name).unwrap();
                return self.circuit.force(self.moment(), state);
            }
            ["reset"] => return self.circuit.reset(self.moment()),
            ["trip", reason, cooldown] => {
                let (reason, cooldown) = (reason.parse().unwrap(), time(cooldown));
                return self.circuit.trip(self.moment(), reason, cooldown);
            }
            ["rest", reason, seconds] => {
                self.circuit.rest(self.now, time(seconds), reason.parse().unwrap());
            }
            [text] => {
                let permit = self.admitted(PermitKind::Ordinary);
                return self.end(permit, verdict(text));
            }
            [text, "took", content] => {
                let permit = self.admitted(PermitKind::Ordinary);
                let content = Some(time(content));
                return self.circuit.end(self.moment(), &permit, verdict(text), content);
            }
            [text, "by", by] => {
                let permit = Permit { witness: witness(by), ..self.admitted(PermitKind::Ordinary) };
                self.circuit.began(&permit);
                return self.end(permit, verdict(text));
            }
            [call, "content", after] => {
                let permit = self.calls[call][0];
                return self.circuit.first_content(self.moment(), &permit, time(after));
            }
            [call, text, ref took @ ..] => {
                let next = self.calls.get_mut(call).expect(&self.at).pop_front();
                let permit = next.unwrap_or_else(|| self.ended[call]);
                self.ended.insert(call.to_owned(), permit);
                let content = took.get(1).map(|took| time(took));
                return self.circuit.end(self.moment(), &permit, verdict(text), content);
            }
            [] => panic!("{}: an empty step", self.at),
        }
        None
    }

    /// What a script can check.
    fn value(&mut self, name: &str) -> String {
        let it = self.snapshot();
        let yes = |value| if value { "yes" } else { "no" }.to_owned();
        match name {
            "state" => it.state.to_string(),
            "row" => it.consecutive.to_string(),
            "calls" => it.calls.to_string(),
            "failures" => it.failures.to_string(),
            "failure_rate" => it.failure_rate().map_or("none".into(), |rate| rate.to_string()),
            "failed_probes" => it.failed_probes.to_string(),
            "probe_successes" => it.probe_successes.to_string(),
            "probes" => it.probes.to_string(),
            // The end of the rest, in seconds from now.
            "rest" => (it.until.unwrap() - self.now).as_secs_f64().to_string(),
            // The same, while no call is admitted.
            "left" => match self.circuit.resting() {
                Some(resting) => {
                    resting.until.saturating_duration_since(self.now).as_secs_f64().to_string()
                }
                None => "none".to_owned(),
            },
            "reason" => match self.circuit.resting() {
                Some(resting) => resting.reason.map_or("none", Reason::as_str).to_owned(),
                None => "none".to_owned(),
            },
            "refuses" => yes(self.circuit.resting().is_some_and(|resting| resting.refuses)),
            "permanent" => yes(self.circuit.is_permanent()),
            "probing" => yes(self.circuit.is_probing(self.now)),
            _ => panic!("{}: no such value", self.at),
        }
    }
}
