//! One request's story.

use std::{
    mem::size_of_val,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde_json::{Map, Value, json};
use steadfast::limit::{ModelPrice, Prices};
use steadfast_core::{
    AttemptEnd, AttemptRecord, CallContext, Dialect, Reason, RecoveryLog, Step, Target, TraceId,
    Usage, time::wall,
};
use tokio::time::Instant;

/// What is known of a request when it has been read.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) id: String,
    pub(crate) began: SystemTime,
    pub(crate) started: Instant,
    pub(crate) dialect: Dialect,
    /// The model that was asked for.
    pub(crate) model: String,
    pub(crate) route: Option<Arc<str>>,
    pub(crate) stream: bool,
    /// Who asked: tenant, key, agent, session, task.
    pub(crate) who: [Option<Box<str>>; 5],
    /// What models cost.
    pub(crate) prices: Option<Arc<Prices>>,
    /// Which trace it belongs to, where it is traced.
    pub(crate) trace: Option<TraceId>,
}

/// The names of [`Draft::who`].
const WHO: [&str; 5] = ["tenant", "key", "agent", "session", "task"];

impl Draft {
    /// Of a request by this id, of which nothing else is known.
    pub(crate) fn new(id: String) -> Self {
        Self {
            id,
            began: wall(),
            started: Instant::now(),
            dialect: Dialect::OpenAi,
            model: String::new(),
            route: None,
            stream: false,
            who: Default::default(),
            prices: None,
            trace: None,
        }
    }

    /// With what its context has.
    pub(crate) fn with_context(mut self, context: &CallContext) -> Self {
        let (tenant, key) = (context.tenant(), context.key());
        let who = [tenant, key, context.agent(), context.session(), context.task()];
        self.who = who.map(|name| name.map(Into::into));
        self
    }
}

/// How a request ended, for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Running,
    /// Answered whole.
    Ok,
    Failed,
    /// The caller has gone.
    Cancelled,
}

impl Outcome {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What is known of a request when it is over.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
    /// Of a failure.
    pub(crate) reason: Option<Reason>,
    pub(crate) evidence: Option<Box<str>>,
    /// What the caller was answered, where that is not about what it has written.
    pub(crate) error: Option<Box<str>>,
    /// Who has answered, or was asked last.
    pub(crate) target: Option<Target>,
    /// How often a provider was asked.
    pub(crate) asked: u32,
    pub(crate) usage: Usage,
    /// What of the request its provider was not sent.
    pub(crate) left_out: Option<Box<str>>,
}

impl Ending {
    pub(crate) fn new(outcome: Outcome) -> Self {
        Self {
            outcome,
            took: Duration::ZERO,
            reason: None,
            evidence: None,
            error: None,
            target: None,
            asked: 0,
            usage: Usage::default(),
            left_out: None,
        }
    }
}

/// What became of one request.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) draft: Arc<Draft>,
    /// Its position among the ends of requests.
    pub(super) order: u64,
    pub(crate) ending: Ending,
    pub(crate) attempts: Vec<AttemptRecord>,
    steps: Vec<Step>,
    pub(crate) dropped: usize,
    micro_dollars: u64,
}

impl Story {
    pub(crate) fn new(draft: Arc<Draft>, log: &RecoveryLog, ending: Ending) -> Self {
        let (attempts, steps, dropped) = (log.attempt_records(), log.steps(), log.dropped());
        let prices = draft.prices.as_ref();
        let micro_dollars = prices.map_or(0, |prices| cost(&attempts, |model| prices.price(model)));
        Self { draft, order: 0, ending, attempts, steps, dropped, micro_dollars }
    }

    /// The story of a request that is under way.
    pub(super) fn so_far(draft: &Arc<Draft>, log: &RecoveryLog) -> Self {
        let mut story = Self::new(draft.clone(), log, Ending::new(Outcome::Running));
        story.ending.took = draft.started.elapsed();
        story.ending.asked = log.attempts();
        story.ending.target = story.attempts.last().and_then(|attempt| attempt.target.clone());
        story
    }

    pub(crate) fn outcome(&self) -> Outcome {
        self.ending.outcome
    }

    pub(crate) fn reason(&self) -> Option<Reason> {
        self.ending.reason
    }

    /// Who has answered, or was asked last.
    pub(crate) fn target(&self) -> Option<&Target> {
        self.ending.target.as_ref()
    }

    /// Each time that a provider was asked.
    pub(super) fn attempts(&self) -> &[AttemptRecord] {
        &self.attempts
    }

    /// What the layers did.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// When the attempt began that brought the first content, and how long that took.
    pub(crate) fn first_content(&self) -> Option<(Duration, Duration)> {
        first_content(&self.attempts)
    }

    /// The tokens that providers have reported for all attempts.
    pub(super) fn usage(&self) -> Usage {
        self.attempts.iter().fold(Usage::default(), |all, one| all.plus(&one.usage))
    }

    /// What all attempts together have cost.
    pub(crate) fn micro_dollars(&self) -> u64 {
        self.micro_dollars
    }

    /// Everybody who was asked.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &Target> {
        self.attempts.iter().filter_map(|attempt| attempt.target.as_ref()).chain(self.target())
    }

    /// Whether it was answered because something was done about a failure.
    pub(crate) fn is_recovered(&self) -> bool {
        self.outcome() == Outcome::Ok && self.attempts.iter().any(is_failed)
    }

    /// Whether it is worth more than one of which there is nothing to say.
    pub(super) fn is_notable(&self) -> bool {
        // What was refused at the door says nothing of any provider, and anybody can make many of those.
        let is_failure = self.outcome() == Outcome::Failed && self.draft.route.is_some();
        is_failure || !self.steps.is_empty() || self.attempts.iter().any(is_failed)
    }

    /// How much memory it takes, about.
    pub(super) fn size(&self) -> usize {
        let length = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        let draft = &*self.draft;
        let who: usize = draft.who.iter().map(length).sum();
        let Ending { evidence, error, left_out, .. } = &self.ending;
        let evidences = self.attempts.iter().map(|attempt| match &attempt.end {
            AttemptEnd::Failed { evidence, .. } => length(evidence),
            _ => 0,
        });
        let answers = self.attempts.iter().filter_map(|attempt| attempt.answer.as_deref());
        let answers = answers.map(|answer| {
            let texts = [&answer.id, &answer.model, &answer.finish].map(length);
            size_of_val(answer) + texts.iter().sum::<usize>()
        });
        let details = self.steps.iter().map(|step| length(&step.detail));
        let texts = [evidence, error, left_out].map(length).iter().sum::<usize>()
            + evidences.sum::<usize>()
            + answers.sum::<usize>()
            + details.sum::<usize>();
        size_of_val(self)
            + size_of_val(draft)
            + draft.id.len()
            + draft.model.len()
            + who
            + texts
            + size_of_val(&*self.attempts)
            + size_of_val(&*self.steps)
    }

    /// What a list has of it.
    pub(crate) fn summary(&self) -> Value {
        let (draft, ending) = (&*self.draft, &self.ending);
        let first = self.first_content().map(|(at, first)| at + first);
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| {
            if !value.is_null() {
                object.insert(name.to_owned(), value);
            }
        };
        put("id", json!(draft.id));
        put("at", json!(humantime::format_rfc3339_millis(draft.began).to_string()));
        for (name, who) in WHO.iter().zip(&draft.who) {
            put(name, json!(who));
        }
        put("dialect", json!(draft.dialect.as_str()));
        put("model", json!(draft.model));
        put("route", json!(draft.route));
        put("stream", json!(draft.stream));
        put("outcome", json!(ending.outcome.as_str()));
        put("recovered", json!(self.is_recovered()));
        put("reason", json!(ending.reason.map(Reason::as_str)));
        put("evidence", json!(ending.evidence));
        put("error", json!(ending.error));
        put("target", json!(ending.target.as_ref().map(Target::as_str)));
        put("asked", json!(ending.asked));
        put("ms", millis(ending.took));
        put("first_content_ms", first.map_or(Value::Null, millis));
        put("usage", usage(&ending.usage));
        put("micro_dollars", json!(self.micro_dollars));
        put("left_out", json!(ending.left_out));
        put("trace_id", json!(draft.trace.map(|trace| trace.to_string())));
        Value::Object(object)
    }

    /// All of it.
    pub(crate) fn whole(&self) -> Value {
        let mut story = self.summary();
        story["attempts"] = self.attempts.iter().map(attempt).collect();
        story["steps"] = self.steps.iter().map(step).collect();
        story["steps_dropped"] = json!(self.dropped);
        story
    }
}

/// When the attempt began that brought the first content, and how long that took.
pub(crate) fn first_content(attempts: &[AttemptRecord]) -> Option<(Duration, Duration)> {
    let brought = attempts.iter().filter_map(|one| Some((one.at, one.first_content?)));
    brought.min_by_key(|(at, first)| *at + *first)
}

/// What all `attempts` together have cost, in millionths of a dollar.
pub(crate) fn cost(attempts: &[AttemptRecord], mut price: impl FnMut(&str) -> ModelPrice) -> u64 {
    let cost = |attempt: &AttemptRecord| {
        let model = attempt.target.as_ref()?.model()?;
        attempt.usage.total()?;
        Some(price(model).cost(&attempt.usage))
    };
    attempts.iter().filter_map(cost).fold(0, u64::saturating_add)
}

pub(crate) fn is_failed(attempt: &AttemptRecord) -> bool {
    matches!(attempt.end, AttemptEnd::Failed { .. })
}

fn attempt(of: &AttemptRecord) -> Value {
    let (outcome, reason, evidence) = match &of.end {
        AttemptEnd::Answered => ("answered", None, None),
        AttemptEnd::Failed { reason, evidence } => ("failed", Some(*reason), evidence.as_deref()),
        AttemptEnd::Dropped => ("dropped", None, None),
        _ => ("underway", None, None),
    };
    json!({
        "number": of.number,
        "target": of.target.as_ref().map(Target::as_str),
        "at_ms": millis(of.at),
        "first_content_ms": of.first_content.map(millis),
        "ms": of.took.map(millis),
        "outcome": outcome,
        "reason": reason.map(Reason::as_str),
        "evidence": evidence,
        "usage": usage(&of.usage),
        "bytes": of.bytes,
    })
}

fn step(of: &Step) -> Value {
    json!({
        "at_ms": millis(of.at),
        "step": format!("{}.{}", of.layer, of.action),
        "target": of.target.as_ref().map(Target::as_str),
        "reason": of.reason.map(Reason::as_str),
        "wait_ms": of.wait.map(millis),
        "detail": of.detail,
    })
}

/// `null` where nothing is known.
fn usage(of: &Usage) -> Value {
    let Usage { input, output, cache_read, cache_write, thinking, .. } = *of;
    if of.total().is_none() {
        return Value::Null;
    }
    json!({
        "input": input,
        "output": output,
        "cache_read": cache_read,
        "cache_write": cache_write,
        "thinking": thinking,
    })
}

/// In milliseconds, to the microsecond: what happens at once has an order.
fn millis(time: Duration) -> Value {
    json!(time.as_micros() as f64 / 1e3)
}
