//! Which requests get which fault.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use steadfast_core::time::millis;

use crate::Fault;
use crate::hash;
use crate::request::has_text;

/// An ordered list of rules; the first that matches a request decides.
///
/// ```
/// use steadfast_sim::FaultPlan;
///
/// let plan = FaultPlan::from_toml(r#"
///     seed = 7
///
///     [[rules]]
///     provider = "anthropic"
///     to = 3                                  # the first three requests
///     fault = { error = "overloaded" }
///
///     [[rules]]
///     model = "gpt-4o*"
///     stream = true
///     every = 5                               # requests 5, 10, 15, ...
///     fault = { break = { after_events = 8, how = "reset" } }
/// "#).unwrap();
/// assert_eq!(plan.rules.len(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultPlan {
    /// Seed of the rules with a probability.
    pub seed: u64,
    /// The rules, in order.
    pub rules: Vec<PlanRule>,
}

/// A fault and the requests it applies to. A condition that is not given matches everything.
///
/// Requests are counted from 1 for each provider, generations and embeddings only (no model lists, no
/// token counts), from the moment the plan was installed; so is the time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRule {
    /// The provider's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The model's name; a `*` at its end stands for anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Just this request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nth: Option<u64>,
    /// From this request on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// Up to this request, inclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// Each request whose number is a multiple of this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// From so many milliseconds on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// Before so many milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// With this probability, drawn from the plan's seed, the provider's name, the rule's index
    /// and the request's number: the same in every run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// Streaming requests only, or the others only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Only requests that have this text in their system prompt or in a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contains: Option<String>,
    /// Only requests whose conversation has so many results of tools: a certain step of an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_results: Option<usize>,
    /// So many of the requests that match, and none after them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// The fault.
    pub fault: Fault,
}

/// What a rule is matched against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestContext<'a> {
    pub(crate) provider: &'a str,
    pub(crate) model: &'a str,
    /// Counted from 1.
    pub(crate) number: u64,
    pub(crate) elapsed: Duration,
    pub(crate) stream: bool,
    /// The body, if it is JSON.
    pub(crate) body: Option<&'a Value>,
    pub(crate) tool_results: usize,
}

/// A plan that can not be read: where it is wrong, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    message: String,
}

impl FaultPlan {
    /// A plan without faults.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Every request gets this fault.
    #[must_use]
    pub fn always(fault: Fault) -> Self {
        Self::none().rule(PlanRule::new(fault))
    }

    /// The first `n` requests get this fault.
    #[must_use]
    pub fn first(n: u64, fault: Fault) -> Self {
        Self::none().rule(PlanRule::new(fault).to(n))
    }

    /// Adds a rule after the others.
    #[must_use]
    pub fn rule(mut self, rule: PlanRule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets the seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Reads a plan from TOML.
    ///
    /// # Errors
    ///
    /// Says the line, the key and what is allowed there.
    pub fn from_toml(text: &str) -> Result<Self, PlanError> {
        let plan: Self = toml::from_str(text)
            .map_err(|error| PlanError { message: error.to_string().trim_end().to_owned() })?;
        plan.check()?;
        Ok(plan)
    }

    /// Reads a plan from JSON.
    ///
    /// # Errors
    ///
    /// Says the line, the key and what is allowed there.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        let plan: Self =
            serde_json::from_str(text).map_err(|error| PlanError { message: error.to_string() })?;
        plan.check()?;
        Ok(plan)
    }

    /// Whether the numbers in it make sense.
    ///
    /// # Errors
    ///
    /// Names the rule (counted from 1) and the key.
    pub fn check(&self) -> Result<(), PlanError> {
        for (at, rule) in self.rules.iter().enumerate() {
            rule.check()
                .map_err(|message| PlanError { message: format!("rule {}: {message}", at + 1) })?;
        }
        Ok(())
    }

    /// The fault of the first rule that matches. `applied` has how often each rule has been that.
    pub(crate) fn pick(
        &self,
        context: RequestContext<'_>,
        applied: &mut Vec<u64>,
    ) -> Option<&Fault> {
        applied.resize(self.rules.len(), 0);
        let (at, rule) = self.rules.iter().enumerate().find(|(at, rule)| {
            rule.times.is_none_or(|times| applied[*at] < times)
                && rule.matches(self.seed, *at, context)
        })?;
        applied[at] += 1;
        Some(&rule.fault)
    }
}

impl PlanRule {
    /// A rule that matches every request.
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        Self {
            provider: None,
            model: None,
            nth: None,
            from: None,
            to: None,
            every: None,
            since_ms: None,
            until_ms: None,
            probability: None,
            stream: None,
            contains: None,
            tool_results: None,
            times: None,
            fault,
        }
    }

    /// Only this provider.
    #[must_use]
    pub fn provider(mut self, name: impl Into<String>) -> Self {
        self.provider = Some(name.into());
        self
    }

    /// Only this model; a `*` at the end stands for anything.
    #[must_use]
    pub fn model(mut self, name: impl Into<String>) -> Self {
        self.model = Some(name.into());
        self
    }

    /// Only the `n`-th request.
    #[must_use]
    pub fn nth(mut self, n: u64) -> Self {
        self.nth = Some(n);
        self
    }

    /// From the `n`-th request on.
    #[must_use]
    pub fn from(mut self, n: u64) -> Self {
        self.from = Some(n);
        self
    }

    /// Up to the `n`-th request, inclusive.
    #[must_use]
    pub fn to(mut self, n: u64) -> Self {
        self.to = Some(n);
        self
    }

    /// Every `n`-th request.
    #[must_use]
    pub fn every(mut self, n: u64) -> Self {
        self.every = Some(n);
        self
    }

    /// From so many milliseconds on.
    #[must_use]
    pub fn since_ms(mut self, ms: u64) -> Self {
        self.since_ms = Some(ms);
        self
    }

    /// Before so many milliseconds.
    #[must_use]
    pub fn until_ms(mut self, ms: u64) -> Self {
        self.until_ms = Some(ms);
        self
    }

    /// With this probability, 0 to 1.
    #[must_use]
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = Some(probability);
        self
    }

    /// Only streaming requests (`true`) or only the others.
    #[must_use]
    pub fn stream(mut self, stream: bool) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Only requests that have this text in their system prompt or in a message.
    #[must_use]
    pub fn contains(mut self, text: impl Into<String>) -> Self {
        self.contains = Some(text.into());
        self
    }

    /// Only requests whose conversation has so many results of tools.
    #[must_use]
    pub fn tool_results(mut self, results: usize) -> Self {
        self.tool_results = Some(results);
        self
    }

    /// So many of the requests that match, and none after them.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    fn check(&self) -> Result<(), String> {
        if let Some(p) = self.probability
            && !(0.0..=1.0).contains(&p)
        {
            return Err(format!("probability is {p}; it must lie between 0 and 1"));
        }
        for (key, n) in
            [("nth", self.nth), ("from", self.from), ("to", self.to), ("every", self.every)]
        {
            if n == Some(0) {
                return Err(format!("{key} is 0; requests are counted from 1"));
            }
        }
        if self.times == Some(0) {
            return Err("times is 0; no request can match".to_owned());
        }
        if let (Some(from), Some(to)) = (self.from, self.to)
            && from > to
        {
            return Err(format!("from ({from}) is behind to ({to}); no request can match"));
        }
        if let (Some(since), Some(until)) = (self.since_ms, self.until_ms)
            && since >= until
        {
            return Err(format!(
                "since_ms ({since}) is not before until_ms ({until}); no request can match"
            ));
        }
        self.fault.check().map_err(|message| format!("fault.{message}"))
    }

    fn matches(&self, seed: u64, at: usize, o: RequestContext<'_>) -> bool {
        let ms = millis(o.elapsed);
        self.provider.as_deref().is_none_or(|name| name == o.provider)
            && self.model.as_deref().is_none_or(|name| match name.strip_suffix('*') {
                Some(prefix) => o.model.starts_with(prefix),
                None => o.model == name,
            })
            && self.nth.is_none_or(|n| o.number == n)
            && self.from.is_none_or(|n| o.number >= n)
            && self.to.is_none_or(|n| o.number <= n)
            && self.every.is_none_or(|n| n != 0 && o.number.is_multiple_of(n))
            && self.since_ms.is_none_or(|since| ms >= since)
            && self.until_ms.is_none_or(|until| ms < until)
            && self.stream.is_none_or(|stream| stream == o.stream)
            && self.tool_results.is_none_or(|results| results == o.tool_results)
            && self
                .contains
                .as_deref()
                .is_none_or(|text| o.body.is_some_and(|body| has_text(body, text)))
            && self.probability.is_none_or(|p| {
                let draw = hash::seed(&[
                    &seed.to_le_bytes(),
                    o.provider.as_bytes(),
                    &(at as u64).to_le_bytes(),
                    &o.number.to_le_bytes(),
                ]);
                fastrand::Rng::with_seed(draw).f64() < p
            })
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fault plan: {}", self.message)
    }
}

impl std::error::Error for PlanError {}
