//! What holds whatever happens.

use steadfast::{
    Completion, Delta, Failure, Part,
    failover::WhenExhausted,
    sim::{End, Entry, Sent},
};

use crate::{
    callers::{Ending, whose},
    world::World,
};

/// Everything that holds when all callers have gone.
pub(crate) fn all(world: &World, endings: &[Ending]) {
    let entries = at_rest(world);
    let mut by_caller: Vec<Vec<&Entry>> = vec![Vec::new(); endings.len()];
    for entry in &entries {
        let caller = whose(&entry.body).unwrap_or_else(|| panic!("whose is this? {entry:?}"));
        by_caller[caller].push(entry);
    }
    for ending in endings {
        one(world, ending, &by_caller[ending.caller.id]);
    }
}

/// Nothing is under way: no connection, no probe, no token too many.
///
/// Returns what the providers saw.
pub(crate) fn at_rest(world: &World) -> Vec<Entry> {
    let entries = world.journal.entries();
    for entry in &entries {
        assert_ne!(entry.end, End::Open, "left open: {entry:?}");
    }
    for target in world.handles.failover.snapshot().targets() {
        assert!(!target.probing, "nobody probes: {target:?}");
    }
    for breaker in world.handles.breaker.snapshot() {
        assert_eq!((breaker.probes, breaker.lone), (0, 0), "nobody probes: {breaker:?}");
    }
    budget(world);
    entries
}

pub(crate) fn budget(world: &World) {
    if let Some(budget) = &world.budget {
        assert!(budget.remaining() <= budget.policy().capacity, "{budget:?}");
    }
}

/// What holds of one call and its attempts.
fn one(world: &World, ending: &Ending, attempts: &[&Entry]) {
    let caller = &ending.caller;
    let hedge = world.failover.hedge;
    let at = format!("{caller:?}, hedge: {hedge:?}");
    assert!(ending.took <= ending.limit, "{at}: took {:?}", ending.took);
    for entry in attempts {
        assert!(entry.at <= ending.at, "{at}: asked when it was over: {entry:?}");
        let over = entry.ended_at.unwrap_or_else(|| panic!("{at}: left open: {entry:?}"));
        assert!(over <= ending.at, "{at}: open until {over:?}, over at {:?}: {entry:?}", ending.at);
        assert_eq!(entry.refused, None, "{at}: not what a provider takes");
    }

    let count = u32::try_from(attempts.len()).unwrap();
    if let Some(max) = caller.max_attempts {
        assert!(
            count <= max.get().saturating_sub(caller.already),
            "{at}: {count} attempts: {attempts:?}"
        );
    }
    // Whoever waits for a target may ask it twice.
    let rounds =
        if matches!(world.failover.when_exhausted, WhenExhausted::Wait(_)) { 2 } else { 1 };
    let most = u32::try_from(world.sims.len()).unwrap() * (1 + world.retry.retries) * rounds;
    assert!(count <= most, "{at}: {count} attempts, at most {most}");

    let mut numbers: Vec<u32> = attempts
        .iter()
        .map(|entry| entry.header("x-steadfast-attempt").unwrap().parse().unwrap())
        .collect();
    numbers.sort_unstable();
    if hedge.is_none() {
        let counted: Vec<u32> = (caller.already + 1..=caller.already + count).collect();
        assert_eq!(numbers, counted, "{at}: the numbers that providers were told");
    }

    let Some(got) = &ending.got else { return };
    let deltas: Vec<&Delta> = got.events.iter().flat_map(|event| &event.deltas).collect();
    let end = deltas.iter().position(|delta| matches!(delta, Delta::End));
    match (&got.failure, &got.seen) {
        (None, Some(seen)) => {
            assert_eq!(end, Some(deltas.len() - 1), "{at}: the end is what comes last: {deltas:?}");
            assert!(seen.ended, "{at}");
            let whole = of_target(seen, attempts).any(|entry| is_whole(seen, entry));
            assert!(whole, "{at}: {seen:?} is nobody's answer: {attempts:?}");
        }
        (Some(failure), seen) => {
            assert_eq!(end, None, "{at}: failed after its end: {failure:?}");
            let content = deltas.iter().any(|delta| delta.is_content());
            let delivered = failure.is_delivered();
            assert_eq!(delivered, content, "{at}: {deltas:?} {failure:?} {attempts:?}");
            if let Some(seen) = seen.as_ref().filter(|_| content) {
                let begins = of_target(seen, attempts).any(|entry| is_beginning(seen, entry));
                assert!(begins, "{at}: {seen:?} is no beginning of {attempts:?}");
            }
            // A provider that says nothing leaves a status at least.
            let told = !failure.message().is_empty() || failure.status().is_some();
            assert!(told, "{at}: {failure:?} {attempts:?}");
        }
        (None, None) => panic!("{at}: neither an answer nor a failure"),
    }
    if hedge.is_none() {
        let told = match (&got.failure, &got.seen) {
            // An answer counts the attempts before the stack too.
            (_, Some(seen)) => seen.head.attempts - caller.already,
            (failure, None) => failure.as_ref().map_or(0, Failure::attempts),
        };
        assert_eq!(told, count, "{at}: attempts as told and as made: {:?}", got.failure);
    }
}

/// The attempts at the target that is said to have answered.
fn of_target<'a>(seen: &Completion, attempts: &[&'a Entry]) -> impl Iterator<Item = &'a Entry> {
    let name = seen.head.target.as_ref().map(|target| target.provider().to_owned());
    attempts.iter().copied().filter(move |entry| Some(&entry.provider) == name.as_ref())
}

/// Thinking and text; each call's name and arguments.
fn said(seen: &Completion) -> (String, String, Vec<(&str, &str)>) {
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
    let (thinking, text, calls) = said(seen);
    entry.end == End::Complete
        && (&thinking, &text) == (&sent.thinking, &sent.text)
        && calls == sent_calls(sent)
        && seen.usage.output.unwrap_or(0) == sent.usage.output
        && seen.stop.as_ref().and_then(|stop| stop.word.as_deref()) == Some(&*sent.stop)
}

fn is_beginning(seen: &Completion, entry: &Entry) -> bool {
    let Some(sent) = &entry.sent else { return false };
    let (thinking, text, calls) = said(seen);
    let truth = sent_calls(sent);
    let calls_begin = calls.len() <= truth.len()
        && calls
            .iter()
            .zip(&truth)
            .all(|(call, truth)| call.0 == truth.0 && truth.1.starts_with(call.1));
    sent.thinking.starts_with(&thinking) && sent.text.starts_with(&text) && calls_begin
}
