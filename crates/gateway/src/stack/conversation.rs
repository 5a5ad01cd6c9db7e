//! The layers that understand what is being said.

use std::time::Duration;

use steadfast::{
    compact::{self, CompactionPolicy, SpendPolicy},
    guard::{GuardPolicy, PolicyError, ToolSpec},
    recover::{ContinuationPolicy, ResumePolicy},
};

use crate::config::{
    CompactionConfig, ConfigErrors, ContinuationConfig, GuardConfig, ResumeConfig, Source,
    ToolConfig,
};

/// What the guard goes by.
///
/// # Errors
///
/// When the numbers make no sense, or a name stands for two tools.
pub(crate) fn guard(given: &GuardConfig, source: &Source) -> Result<GuardPolicy, ConfigErrors> {
    if !given.enabled {
        return Ok(GuardPolicy::off());
    }
    let mut policy = GuardPolicy::default();
    policy.stop_as = given.stop_as;
    let limits = &mut policy.limits;
    limits.events = limit(given.events, limits.events);
    limits.calls = limit(given.calls, limits.calls);
    limits.time = match given.time_s {
        Some(seconds) => limit(Some(seconds), None).map(Duration::from_secs),
        None => limits.time,
    };
    limits.per_tool = limit(given.per_tool, limits.per_tool);
    limits.edits_per_file = limit(given.edits_per_file, limits.edits_per_file);
    policy.tools = tools(policy.tools, &given.tools);
    let (rules, loops) = (&mut policy.rules, &given.loops);
    for (rule, given) in [
        (&mut rules.same_result, loops.same_result),
        (&mut rules.same_error, loops.same_error),
        (&mut rules.cycle, loops.cycle),
        (&mut rules.same_answer, loops.same_answer),
    ] {
        if let Some(given) = given {
            *rule = given.0;
        }
    }
    rules.repeated_text = limit(loops.repeated_text, rules.repeated_text);
    rules.poll_factor = loops.poll_factor.unwrap_or(rules.poll_factor);
    policy.roots.clone_from(&given.roots);
    policy.path_fields.extend(given.path_fields.iter().cloned());
    policy.volatile_fields.extend(given.volatile_fields.iter().cloned());
    policy.error_prefixes.extend(given.error_prefixes.iter().cloned());
    policy.tasks.capacity = given.tasks.unwrap_or(policy.tasks.capacity);
    match policy.validate() {
        Ok(()) => Ok(policy),
        Err(error) => Err(source.error(&key(&error), error.to_string()).into()),
    }
}

/// How cut-off answers are continued.
pub(super) fn continuation(given: &ContinuationConfig) -> ContinuationPolicy {
    let mut policy = ContinuationPolicy::default();
    policy.continuations = given.continuations.unwrap_or(policy.continuations);
    policy.escalate_to = given.escalate_to.unwrap_or(policy.escalate_to);
    policy.least = given.least.unwrap_or(policy.least);
    policy.withhold = given.withhold;
    if !given.enabled {
        (policy.continuations, policy.escalate_to) = (0, 0);
    }
    policy
}

/// How broken streams are resumed.
pub(super) fn resume(given: &ResumeConfig) -> ResumePolicy {
    let mut policy = ResumePolicy::default();
    policy.resumes = given.resumes.filter(|_| given.enabled).unwrap_or(policy.resumes);
    if !given.enabled {
        policy.resumes = 0;
    }
    policy
}

/// The tools of the file, and the known ones without the names that the file uses.
fn tools(known: Vec<ToolSpec>, given: &[ToolConfig]) -> Vec<ToolSpec> {
    let taken = |name: &String| {
        let mut names = given.iter().flat_map(|tool| [&tool.name].into_iter().chain(&tool.aliases));
        names.any(|other| other.eq_ignore_ascii_case(name))
    };
    let left = known.into_iter().filter_map(|mut spec| {
        let names = std::iter::once(spec.name).chain(spec.aliases);
        let mut left = names.filter(|name| !taken(name));
        spec.name = left.next()?;
        spec.aliases = left.collect();
        Some(spec)
    });
    let mut all: Vec<ToolSpec> = left.collect();
    all.extend(given.iter().map(|tool| {
        let mut spec = ToolSpec::new(tool.name.as_str(), tool.kind);
        spec.aliases.clone_from(&tool.aliases);
        spec.limit = tool.limit;
        spec
    }));
    all
}

/// A number of the file: 0 is no limit.
fn limit<N: PartialEq + Default>(given: Option<N>, default: Option<N>) -> Option<N> {
    match given {
        Some(zero) if zero == N::default() => None,
        Some(limit) => Some(limit),
        None => default,
    }
}

/// The key of the file that `error` is about.
pub(super) fn key(error: &PolicyError) -> String {
    match error.field() {
        field if field.starts_with("rules.") => field.replacen("rules.", "guard.loops.", 1),
        field if field.starts_with("limits.") => field.replacen("limits.", "guard.", 1),
        field if field.starts_with("tools") => "guard.tools".to_owned(),
        field => format!("guard.{field}"),
    }
}

/// When conversations are compacted, and how far.
///
/// # Errors
///
/// When the numbers contradict each other.
pub(super) fn compaction(
    given: &CompactionConfig,
) -> Result<CompactionPolicy, compact::PolicyError> {
    let mut policy = CompactionPolicy::default();
    policy.warn_at = given.warn_at.unwrap_or(policy.warn_at);
    policy.compact_at = given.compact_at.unwrap_or(policy.compact_at);
    policy.target = given.target.unwrap_or(policy.target);
    policy.least_target = policy.least_target.min(policy.target);
    policy.keep_recent = given.keep_recent.unwrap_or(policy.keep_recent);
    policy.validate()?;
    Ok(policy)
}

/// What summaries may cost.
pub(super) fn spend(given: &CompactionConfig) -> SpendPolicy {
    let default = SpendPolicy::default();
    SpendPolicy {
        hour: given.spend_hour.unwrap_or(default.hour),
        day: given.spend_day.unwrap_or(default.day),
    }
}
