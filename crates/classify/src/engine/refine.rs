//! Adds the wait, the numbers, and what they mean for a retry.

use std::{borrow::Cow, time::Duration};

use steadfast_core::{Failover, Reason, Retry};

use super::{
    codes::Effect,
    decide::{Case, Finding},
    headers, parameter, retry_after, vendors, window,
};
use crate::Verdict;

/// A wait longer than this is not worth a retry at the same target; the hint is kept for cooldowns.
const WORTH_WAITING: Duration = Duration::from_secs(60);

/// The verdict that `found` is.
pub(super) fn refine(case: &Case<'_>, found: Finding) -> Verdict {
    let mut verdict = Verdict::new(found.reason, found.evidence);
    verdict.request_id = case.request_id();
    if verdict.reason == Reason::Safety {
        // No wait ends it, and no header allows a retry.
        return verdict;
    }
    match found.effect {
        Effect::None => {}
        Effect::NoRetry | Effect::Reopens => verdict.retry = Some(Retry::No),
        Effect::Retry => {
            verdict.retry = Some(Retry::Yes);
            verdict.failover = Some(Failover::NextTarget);
        }
        Effect::Permanent => verdict.permanent = true,
        Effect::Elsewhere => verdict.failover = Some(Failover::NextTarget),
    }
    let hopeless = verdict.reason == Reason::RateLimit && hopeless(case);
    if hopeless {
        verdict.retry = Some(Retry::No);
    }
    if verdict.reason == Reason::ContextOverflow {
        let stated = case.facts.window;
        verdict.window = (stated.limit.is_some() || stated.requested.is_some())
            .then_some(stated)
            .or_else(|| case.messages.iter().find_map(window::from_text));
    }
    if matches!(verdict.reason, Reason::Format | Reason::Unsupported) {
        verdict.parameter = parameter::refused(case.facts.parameter, &case.messages);
    }
    let reopens = matches!(found.effect, Effect::NoRetry | Effect::Reopens | Effect::Permanent);
    let longest = retry_after::longest(verdict.reason, hopeless || reopens);
    verdict.retry_after = wait(case, verdict.reason).map(|wait| wait.min(longest));
    let long = verdict.retry_after.is_some_and(|wait| wait > WORTH_WAITING);
    if found.effect == Effect::Reopens && verdict.retry_after.is_some() && !long && !hopeless {
        verdict.retry = Some(Retry::Yes);
    }
    if long && verdict.retry != Some(Retry::Forbidden) {
        verdict.retry = Some(Retry::No);
    }
    match headers::text(case.evidence.headers, "x-should-retry") {
        Some("true") if !long => stated(&mut verdict, Retry::Yes),
        Some("false") => stated(&mut verdict, Retry::No),
        _ => {}
    }
    verdict
}

/// The provider itself stated whether to try again.
fn stated(verdict: &mut Verdict, retry: Retry) {
    verdict.retry = Some(retry);
    verdict.evidence = Cow::Owned(format!("{}, header:x-should-retry", verdict.evidence));
}

/// A limit that the same request will not get under within a minute.
fn hopeless(case: &Case<'_>) -> bool {
    if case.facts.quota.per_day || case.messages.iter().any(window::never_fits) {
        return true;
    }
    // Gemini names the quota and the delay of limits by the minute; without either it is the
    // day's.
    let stated = case.facts.quota.per_minute || case.facts.wait.is_some();
    case.facts.vendors.contains(&vendors::GOOGLE)
        && !stated
        && case.messages.iter().any(|message| {
            message.found().has_named("current-quota") && !message.found().has_named("retry-in")
        })
}

/// How long to wait, from the first source that states it readably.
fn wait(case: &Case<'_>, reason: Reason) -> Option<Duration> {
    let header = case.header_wait();
    // What is stated about rates and cooldowns elsewhere is no hint for other failures.
    if header.is_some()
        || !matches!(
            reason,
            Reason::RateLimit | Reason::Overloaded | Reason::ServerError | Reason::Timeout
        )
    {
        return header;
    }
    let now = || case.evidence.now();
    let bucket = || match reason {
        Reason::RateLimit => retry_after::from_buckets(case.evidence.headers, bucket(case), now),
        _ => None,
    };
    bucket()
        .or_else(|| retry_after::from_fields(&case.facts, now))
        .or_else(|| case.messages.iter().find_map(retry_after::from_text))
}

/// Which bucket the body says was exhausted.
fn bucket(case: &Case<'_>) -> &'static str {
    let mut names = case.facts.hits.iter().map(|hit| hit.code.name);
    names.find(|name| matches!(*name, "tokens" | "requests")).unwrap_or_else(|| {
        let sets = ["bucket.input", "bucket.output", "bucket.tokens", "bucket.requests"];
        let set = sets.into_iter().find(|set| case.has(set));
        set.and_then(|set| set.strip_prefix("bucket.")).unwrap_or_default()
    })
}
