//! Adds the wait, the numbers, and what they mean for a retry.

use std::{borrow::Cow, time::Duration};

use steadfast_core::{Failover, Reason, Retry};

use super::{
    Finding, Lowered,
    codes::Twist,
    facts::Facts,
    headers::{Headers, SHOULD_RETRY},
    retry_after, window,
};
use crate::{Evidence, Verdict};

/// A wait longer than this is not worth a retry in place; the hint is kept for cooldowns.
const WORTH_WAITING: Duration = Duration::from_secs(60);

/// Adds the wait, the numbers, and what they mean for a retry.
pub(super) fn refine(
    evidence: &Evidence<'_>,
    headers: &Headers<'_>,
    found: Finding,
    facts: &Facts<'_>,
    lowered: &[Lowered],
) -> Verdict {
    let mut verdict = Verdict::new(found.reason, found.evidence);
    verdict.retry = found.retry;
    match found.twist {
        Twist::Plain => {}
        Twist::Long | Twist::Later => verdict.retry = Some(Retry::No),
        Twist::Again => {
            verdict.retry = Some(Retry::Yes);
            verdict.failover = Some(Failover::NextTarget);
        }
        Twist::Permanent => verdict.permanent = true,
        Twist::Elsewhere => verdict.failover = Some(Failover::NextTarget),
    }
    let hopeless = verdict.reason == Reason::RateLimit && hopeless(facts, lowered);
    match verdict.reason {
        Reason::RateLimit if hopeless => verdict.retry = Some(Retry::No),
        Reason::ContextOverflow => {
            let stated = facts.window;
            verdict.window = (stated.limit.is_some() || stated.requested.is_some())
                .then_some(stated)
                .or_else(|| lowered.iter().find_map(|lower| window::from_text(lower.numbers())));
        }
        _ => {}
    }
    verdict.retry_after = wait(evidence, headers, verdict.reason, facts, lowered);
    let long = verdict.retry_after.is_some_and(|wait| wait > WORTH_WAITING);
    if found.twist == Twist::Later && verdict.retry_after.is_some() && !long && !hopeless {
        verdict.retry = Some(Retry::Yes);
    }
    if long && verdict.retry != Some(Retry::Forbidden) {
        verdict.retry = Some(Retry::No);
    }
    match headers.text(SHOULD_RETRY) {
        Some("true") if !long => said(&mut verdict, Retry::Yes),
        Some("false") => said(&mut verdict, Retry::No),
        _ => {}
    }
    verdict
}

/// The provider itself said whether to try again.
fn said(verdict: &mut Verdict, retry: Retry) {
    verdict.retry = Some(retry);
    verdict.evidence = Cow::Owned(format!("{}, header:x-should-retry", verdict.evidence));
}

/// A limit that the same request will not get past within a minute.
fn hopeless(facts: &Facts<'_>, lowered: &[Lowered]) -> bool {
    if facts.quota.per_day || lowered.iter().any(|lower| window::never_fits(lower.numbers())) {
        return true;
    }
    // Gemini names the quota and the delay of limits by the minute; without either it is the
    // day's.
    let stated = facts.quota.per_minute || facts.wait.is_some();
    facts.google
        && !stated
        && lowered.iter().any(|lower| {
            lower.text.contains("exceeded your current quota") && !lower.text.contains("retry in ")
        })
}

fn wait(
    evidence: &Evidence<'_>,
    headers: &Headers<'_>,
    reason: Reason,
    facts: &Facts<'_>,
    lowered: &[Lowered],
) -> Option<Duration> {
    // The clock is read only where there is something to compare with it.
    let header = retry_after::from_headers(headers, || evidence.now());
    if header.is_some() {
        return header;
    }
    // What is said about rates and rests elsewhere is no hint for this failure.
    if !matches!(
        reason,
        Reason::RateLimit | Reason::Overloaded | Reason::ServerError | Reason::Timeout
    ) {
        return None;
    }
    let bucket = || {
        if reason != Reason::RateLimit || evidence.headers.is_empty() {
            return None;
        }
        retry_after::from_buckets(headers, kind(facts, lowered), || evidence.now())
    };
    bucket()
        .or_else(|| retry_after::from_fields(facts, || evidence.now()))
        .or_else(|| lowered.iter().find_map(|lower| retry_after::from_text(lower.numbers())))
}

/// Which bucket the body says was exhausted.
fn kind(facts: &Facts<'_>, lowered: &[Lowered]) -> &'static str {
    let named = facts.hits.iter().map(|hit| hit.code.name);
    if let Some(name) = named.into_iter().find(|name| matches!(*name, "tokens" | "requests")) {
        return name;
    }
    let says = |words: &str| lowered.iter().any(|lower| lower.text.contains(words));
    if says("input tokens") {
        "input"
    } else if says("output tokens") {
        "output"
    } else if says("tokens per") || says("(tpm)") {
        "tokens"
    } else if says("requests per") || says("(rpm)") {
        "requests"
    } else {
        ""
    }
}
