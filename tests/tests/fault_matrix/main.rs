//! The default stack before a primary with each of many faults, with a healthy spare and alone: which
//! provider is called how often, after which waits, and what the caller gets. On a paused clock and
//! without jitter, so that every time is exact.
//!
//! The result is the table in `docs/fault-matrix.md`, which is generated here and compared with the
//! file; `UPDATE_DOCS=1 cargo test -p steadfast-tests --test fault_matrix` writes it.

#![allow(clippy::unwrap_used)]

mod alarms;
mod defaults;
mod faults;
mod table;
mod wholes;

use std::time::Duration;

use steadfast::{
    ChatRequest, Delta, Dialect, Failover, FaultSide, Handles, Jitter, Reason, Stack,
    failover::{Chain, TargetSpec},
    retry::{RetryBackoffLayer, RetryPolicy},
    sim::{Answer, End, Fault, FaultPlan, SimProvider},
};
use steadfast_tests::{
    gateway::in_process::provider_name,
    harness::{self, CallResult},
};

use self::{
    alarms::Alarms,
    faults::{Expected, LINES, Outcome, PIECES},
    table::Table,
};

/// Long enough to be streamed in many pieces, so that a stream can break in the middle.
const WORDS: &str = "The quick brown fox jumps over the lazy dog, and the dog, who has \u{e4}lter \
                     bones, lets it: \u{1f98a} over \u{1f415}, again and again, until both sleep.";

/// A primary, and a spare of the next dialect.
struct Pair {
    primary: SimProvider,
    spare: SimProvider,
}

impl Pair {
    fn new(dialect: Dialect, plan: FaultPlan) -> Self {
        let next = match dialect {
            Dialect::Anthropic => Dialect::OpenAi,
            Dialect::OpenAi => Dialect::Gemini,
            Dialect::Gemini | Dialect::Responses => Dialect::Anthropic,
        };
        let build = |dialect, plan, words: String| {
            SimProvider::builder(dialect)
                .with_name(provider_name(dialect))
                .respond(move |_| Some(Answer::text(words.clone())))
                .with_faults(plan)
                .build()
        };
        Self {
            primary: build(dialect, plan, format!("Of the primary: {WORDS}")),
            spare: build(next, FaultPlan::none(), format!("Of the spare: {WORDS}")),
        }
    }

    fn always(dialect: Dialect, fault: Fault) -> Self {
        Self::new(dialect, FaultPlan::always(fault))
    }

    fn both(&self) -> Vec<SimProvider> {
        vec![self.primary.clone(), self.spare.clone()]
    }
}

fn retry(jitter: Jitter) -> RetryBackoffLayer {
    let backoff = RetryPolicy::in_stack().backoff.with_jitter(jitter).unwrap();
    let policy = RetryPolicy { backoff, ..RetryPolicy::in_stack() };
    RetryBackoffLayer::new(policy).unwrap()
}

fn stack(chain: Chain, retry: RetryBackoffLayer) -> Stack {
    // The matrix is about one call; resuming a stream makes another one.
    Stack::new(chain)
        .without_resume()
        .with_retry(retry)
        .with_budget(steadfast::RetryBudget::default())
}

fn request(stream: bool) -> ChatRequest {
    let request = ChatRequest::user("Tell me of the fox.").with_model("any").with_max_output(1_000);
    if stream { request.streaming() } else { request }
}

/// Makes one call through `stack` to `sims`.
async fn ask(stack: &Stack, sims: &[SimProvider], stream: bool) -> (CallResult, Handles) {
    let got = CallResult::of(&stack.boxed(harness::client(sims)), request(stream)).await;
    (got, stack.handles())
}

/// Asserts that the caller got exactly the answer of `provider`.
fn assert_answered_by(got: &CallResult, provider: &SimProvider, at: &str) {
    let sent = provider.journal().last().unwrap().sent.unwrap();
    let answer = got.answer();
    assert_eq!(answer.text(), sent.text, "{at}");
    assert_eq!(answer.usage.output, Some(sent.usage.output), "{at}");
    let target = answer.head.target.as_ref().unwrap();
    assert_eq!(target.provider(), provider.name(), "{at}");
}

/// Runs one cell of the matrix and compares it with what is expected.
async fn cell(dialect: Dialect, stream: bool, fault: Fault, expected: Expected, at: &str) {
    let pair = Pair::always(dialect, fault);
    let sims = pair.both();
    let alarms = Alarms::record();
    let (got, _) = ask(&stack(harness::chain(&sims), retry(Jitter::None)), &sims, stream).await;

    let asked = pair.primary.journal().entries();
    let waits: Vec<u64> =
        harness::waits(&asked).iter().map(|wait| wait.as_millis().try_into().unwrap()).collect();
    assert_eq!(waits, expected.waits, "{at}: waits between the attempts at the primary");
    assert_eq!(got.took, expected.took(), "{at}: the whole");
    assert!(asked.iter().all(|entry| entry.end != End::Open), "{at}: an attempt was left open");

    let spare = pair.spare.journal().entries();
    match expected.outcome {
        Outcome::Spare => {
            assert_eq!(spare.len(), 1, "{at}: attempts at the spare");
            let left = asked.last().unwrap().ended_at.unwrap();
            assert_eq!(spare[0].at, left, "{at}: slept after the last attempt at the primary");
            assert_answered_by(&got, &pair.spare, at);
        }
        Outcome::Refusal(reason) => {
            assert_eq!(spare.len(), 0, "{at}: the spare is none of this");
            let failure = got.failure.as_ref().unwrap();
            assert_eq!((failure.reason(), failure.fault()), (reason, FaultSide::Caller), "{at}");
            assert_eq!((failure.attempts(), got.in_answer), (1, false), "{at}");
            assert_ne!(failure.failover(), Failover::NextTarget, "{at}");
        }
        Outcome::Partial(reason) => {
            assert_eq!(spare.len(), 0, "{at}: content has reached the caller");
            let failure = got.failure.as_ref().unwrap();
            assert_eq!(failure.reason(), reason, "{at}: {failure}");
            assert!(failure.is_delivered() && got.in_answer, "{at}");
            assert_prefix(&got, &pair.primary, at);
        }
    }
    let recorded = alarms.recorded();
    assert_eq!(recorded.len(), usize::from(expected.alarm.is_some()), "{at}: {recorded:?}");
    for (alarm, reason) in recorded.iter().zip(expected.alarm) {
        assert!(alarm.at.starts_with(pair.primary.name()), "{at}: {alarm:?}");
        let (level, named) = (alarm.level.as_str(), alarm.reason.as_str());
        assert_eq!((level, named), ("ERROR", reason.as_str()), "{at}");
    }
}

/// Asserts that the caller got exactly the pieces that were sent, and no end.
fn assert_prefix(got: &CallResult, provider: &SimProvider, at: &str) {
    let entry = provider.journal().last().unwrap();
    let seen = got.seen.as_ref().unwrap();
    let pieces = got.events.iter().filter(|event| event.is_content()).count();
    assert_eq!((pieces, entry.events), (PIECES, PIECES), "{at}: pieces");
    let truth = entry.sent.unwrap().text;
    let text = seen.text();
    assert!(
        !text.is_empty() && text.len() < truth.len() && truth.starts_with(&text),
        "{at}: {text}"
    );
    let ends = |delta: &Delta| matches!(delta, Delta::Stop(_) | Delta::End);
    assert!(!got.events.iter().flat_map(|event| &event.deltas).any(ends), "{at}: an invented end");
}

/// All cells.
fn cells() -> impl Iterator<Item = (&'static str, Dialect, bool, Fault, Expected)> {
    LINES.iter().flat_map(|line| {
        Dialect::ALL.into_iter().flat_map(move |dialect| {
            [false, true].into_iter().filter_map(move |stream| {
                let (fault, expected) = (line.cell)(dialect, stream)?;
                Some((line.name, dialect, stream, fault, expected))
            })
        })
    })
}

#[tokio::test(start_paused = true)]
async fn the_matrix_is_as_expected_and_documented() {
    let mut table = Table::default();
    for (name, dialect, stream, fault, expected) in cells() {
        let at = format!("{name}, {dialect}, stream: {stream}");
        cell(dialect, stream, fault, expected, &at).await;
        table.add(name, dialect, stream, expected);
    }
    table.check(&defaults::later_callers().await);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_is_alone_is_asked_again_and_there_is_no_wait_after_the_last_attempt() {
    for (name, dialect, stream, fault, expected) in cells() {
        let at = format!("{name}, {dialect}, stream: {stream}");
        let pair = Pair::always(dialect, fault);
        let alone = [pair.primary.clone()];
        let (got, _) =
            ask(&stack(harness::chain(&alone), retry(Jitter::None)), &alone, stream).await;
        let failure = got.failure.unwrap();
        let asked = pair.primary.journal().entries();
        let ended = asked.last().unwrap().ended_at.unwrap();
        assert_eq!(got.took, ended - asked[0].at, "{at}: slept for nothing");
        assert_eq!(got.took, expected.took_alone(), "{at}: the whole");
        let waits: Vec<u128> = harness::waits(&asked).iter().map(Duration::as_millis).collect();
        let waited: Vec<u128> = expected.alone.iter().map(|wait| u128::from(*wait)).collect();
        assert_eq!(waits, waited, "{at}: {failure}");
        assert_eq!(failure.attempts() as usize, asked.len(), "{at}: {failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hinted_wait_is_kept_within_a_second_and_never_shortened() {
    let cells = cells().filter(|(name, ..)| *name == "429, `retry-after: 1`");
    for (name, dialect, stream, fault, expected) in cells {
        for seed in 0..20 {
            // Limited once, then healthy: the retry succeeds, and the spare is not called.
            let pair = Pair::new(dialect, FaultPlan::first(1, fault.clone()));
            let sims = pair.both();
            let retry = retry(Jitter::Additive(0.25)).with_seed(seed);
            let (got, _) = ask(&stack(harness::chain(&sims), retry), &sims, stream).await;
            let at = format!("{name}, {dialect}, stream: {stream}, seed {seed}");
            assert_answered_by(&got, &pair.primary, &at);
            assert!(pair.spare.journal().is_empty(), "{at}");
            let waits = harness::waits(&pair.primary.journal().entries());
            let asked = Duration::from_millis(expected.waits[0]);
            assert_eq!(waits.len(), 1, "{at}");
            assert!(
                waits[0] >= asked && waits[0] < asked + Duration::from_secs(1),
                "{at}: {waits:?}"
            );
            assert_eq!(got.took, waits[0], "{at}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_overflow_fails_over_only_to_a_window_that_is_known_to_be_larger() {
    for dialect in Dialect::ALL {
        // A refusal without a number does not say what would be larger.
        let larger = usize::from(dialect != Dialect::Responses);
        for (window, asked) in [(4_000_000, larger), (1_000, 0)] {
            let pair =
                Pair::always(dialect, Fault::Error(steadfast::sim::ErrorKind::ContextOverflow));
            let sims = pair.both();
            let targets: Vec<TargetSpec> =
                vec![harness::target(&sims[0]), harness::target(&sims[1]).with_window(window)];
            let stack = stack(Chain::new(targets).unwrap(), retry(Jitter::None));
            let (got, _) = ask(&stack, &sims, true).await;
            let at = format!("{dialect}, window {window}");
            assert_eq!(pair.primary.journal().len(), 1, "{at}");
            assert_eq!(pair.spare.journal().len(), asked, "{at}");
            match asked {
                1 => assert_answered_by(&got, &pair.spare, &at),
                _ => assert_eq!(got.failure.unwrap().reason(), Reason::ContextOverflow, "{at}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_quota_for_the_day_is_not_waited_for() {
    let pair =
        Pair::always(Dialect::Gemini, Fault::Error(steadfast::sim::ErrorKind::InsufficientQuota));
    let sims = pair.both();
    let (got, _) = ask(&stack(harness::chain(&sims), retry(Jitter::None)), &sims, false).await;
    assert_answered_by(&got, &pair.spare, "a quota for the day");
    assert_eq!((pair.primary.journal().len(), got.took), (1, Duration::ZERO));
}
