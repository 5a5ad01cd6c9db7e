//! Each line of the matrix in each of the forms that users run, with nothing set; and what follows for those
//! who come after the first. Jitter is on, so that times are exact but for that.

use std::{fmt::Write as _, ops::RangeInclusive, time::Duration};

use steadfast::{
    Dialect,
    sim::{End, ErrorKind, Fault, FaultPlan, RateLimit},
};
use steadfast_tests::harness;
use tokio::time::{Instant, sleep_until};

use crate::{
    Pair, cells,
    faults::{DEADLINE, Expected, Outcome},
    table,
    wholes::{Question, Running, Whole, models},
};

/// What all waits of a call that has no other target may come to.
const PATIENCE: Duration = Duration::from_secs(60);

fn question(dialect: Dialect, stream: bool) -> Question {
    Question { dialect, model: models(dialect).1[0], prompt: "Who is the fox?", stream }
}

/// A wait of so many milliseconds with what jitter adds: a quarter, or 125 ms where the provider asked for it.
fn with_jitter(ms: u64) -> RangeInclusive<Duration> {
    Duration::from_millis(ms)..=Duration::from_millis(ms + (ms / 4).max(125))
}

/// Asserts that these waits are the first of those expected; how many there are.
fn assert_waits(waits: &[Duration], expected: &[u64], at: &str) -> usize {
    assert!(waits.len() <= expected.len(), "{at}: {waits:?}");
    for (wait, expected) in waits.iter().zip(expected) {
        assert!(with_jitter(*expected).contains(wait), "{at}: {waits:?}");
    }
    waits.len()
}

/// Failures on record, by what they speak of.
fn on_record(running: &Running) -> Vec<(String, u64)> {
    let snapshot = running.failover.snapshot();
    let failed = snapshot.targets().iter().filter(|health| health.errors > 0);
    failed.map(|health| (health.target.to_string(), health.errors)).collect()
}

async fn with_a_spare(
    whole: Whole,
    dialect: Dialect,
    stream: bool,
    fault: Fault,
    e: Expected,
    at: &str,
) {
    let pair = Pair::always(dialect, fault);
    let running = whole.start(&pair.both());
    let got = running.ask(question(dialect, stream)).await;
    let (primary, spare) = (pair.primary.journal().entries(), pair.spare.journal().entries());
    assert_eq!(got.attempts as usize, primary.len() + spare.len(), "{at}: attempts");
    let waits = harness::waits(&primary);
    assert_eq!(assert_waits(&waits, e.waits, at), e.waits.len(), "{at}: {waits:?}");
    let waited: Duration = waits.iter().sum();
    assert_eq!(got.took, waited + Duration::from_millis(e.last), "{at}: added");
    match e.outcome {
        Outcome::Spare => {
            assert_eq!(spare.len(), 1, "{at}: attempts at the spare");
            let sent = spare[0].sent.as_ref().unwrap();
            assert_eq!(got.outcome.as_ref(), Ok(&sent.text), "{at}");
            let failed = on_record(&running);
            if !e.blames {
                assert_eq!(failed, [], "{at}: another request may be served");
                return;
            }
            assert_eq!(failed.len(), 1, "{at}: one thing is to blame: {failed:?}");
            assert!(failed[0].0.starts_with(pair.primary.name()), "{at}: {failed:?}");
            assert_eq!(
                failed[0].1 as usize,
                primary.len(),
                "{at}: each attempt counts: {failed:?}"
            );
        }
        Outcome::Refusal(reason) => {
            assert_eq!(spare.len(), 0, "{at}: attempts at the spare");
            assert_eq!(got.outcome, Err(reason.to_string()), "{at}");
            assert_eq!(on_record(&running), [], "{at}: the caller is to blame");
        }
        Outcome::Partial(_) => unreachable!("broken streams are resumed"),
    }
}

async fn alone(whole: Whole, dialect: Dialect, stream: bool, fault: Fault, e: Expected, at: &str) {
    let pair = Pair::always(dialect, fault);
    let running = whole.start(std::slice::from_ref(&pair.primary));
    let got = running.ask(question(dialect, stream)).await;
    let asked = pair.primary.journal().entries();
    assert_eq!(got.attempts as usize, asked.len(), "{at}: attempts");
    assert!(got.outcome.is_err(), "{at}");
    let waits = harness::waits(&asked);
    let (made, waited) = (assert_waits(&waits, e.alone, at), waits.iter().sum::<Duration>());
    // Jitter may leave no room for the last of them.
    let no_room = made + 1 == e.alone.len()
        && waited + Duration::from_millis(e.alone[made]) * 5 / 4 > PATIENCE;
    assert!(made == e.alone.len() || no_room, "{at}: {waits:?}");
    // The timer rounds each wait up to its millisecond; the call counts what it asked for.
    let rounded = Duration::from_millis(1) * u32::try_from(waits.len()).unwrap();
    assert!(waited <= PATIENCE + rounded, "{at}: {waited:?}");
    assert_eq!(
        got.took,
        asked.last().unwrap().ended_at.unwrap() - asked[0].at,
        "{at}: slept for nothing"
    );
    let failed: u64 = on_record(&running).iter().map(|(_, errors)| errors).sum();
    // The end of the call's own time says nothing of anybody.
    let blamed = e.blames && !matches!(e.outcome, Outcome::Refusal(_)) && e.each != DEADLINE;
    assert_eq!(failed > 0, blamed, "{at}: {failed}");
    assert!(failed as usize <= asked.len(), "{at}: {failed}");
}

#[tokio::test(start_paused = true)]
async fn every_line_is_the_same_in_each_form_that_users_run() {
    for whole in Whole::ALL {
        for (name, dialect, stream, fault, expected) in cells() {
            // By default such a stream is resumed: another page.
            if matches!(expected.outcome, Outcome::Partial(_)) {
                continue;
            }
            let at = format!("{whole:?}, {name}, {dialect}, stream: {stream}");
            with_a_spare(whole, dialect, stream, fault.clone(), expected, &at).await;
            alone(whole, dialect, stream, fault, expected, &format!("{at}, alone")).await;
        }
    }
}

/// Those who come one after the other, each with a prompt of its own, and the model that each asks for.
const CALLERS: [(&str, usize); 5] = [("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", 0)];

/// Faults of the provider that is asked first, with a healthy one after it, and what they come to for
/// callers who come one after the other: what is added for each, in milliseconds and without jitter, and
/// the attempts at the provider.
type Later = (&'static str, bool, Fault, [(u64, usize); 5]);

fn later() -> Vec<Later> {
    // The second caller's failure ends the row: it opens the breaker, and nobody sleeps for a refusal.
    let whole_provider = [(500, 2), (0, 1), (0, 0), (0, 0), (0, 0)];
    let each_model = [(0, 1), (0, 1), (0, 1), (0, 1), (0, 0)];
    let at_once = [(0, 1), (0, 0), (0, 0), (0, 0), (0, 0)];
    let silent = [(180_000, 1), (180_000, 1), (0, 0), (0, 0), (0, 0)];
    vec![
        ("500", true, Fault::Error(ErrorKind::ServerError), whole_provider),
        ("connection refused", true, Fault::Refused, whole_provider),
        (
            "529: overloaded",
            true,
            Fault::Error(ErrorKind::Overloaded),
            // A model that mostly fails comes after another target before it rests.
            [(1_500, 3), (0, 0), (1_500, 3), (0, 0), (0, 0)],
        ),
        ("429 without a hint", true, Fault::rate_limit(RateLimit::default()), each_model),
        ("429, `retry-after: 20`", true, Fault::rate_limit(RateLimit::after("20")), each_model),
        ("headers never arrive, a stream", true, Fault::Hang, silent),
        ("headers never arrive, a whole answer", false, Fault::Hang, silent),
        ("401: the key is refused", true, Fault::Error(ErrorKind::Auth), at_once),
        ("no credit left", true, Fault::Error(ErrorKind::InsufficientQuota), at_once),
        (
            "404: the model is gone",
            true,
            Fault::Error(ErrorKind::ModelNotFound),
            [(0, 1), (0, 0), (0, 1), (0, 0), (0, 0)],
        ),
    ]
}

/// What rests at the end, and how long.
async fn come_later(whole: Whole, (name, stream, fault, expected): &Later) -> String {
    let dialect = Dialect::Anthropic;
    let pair = Pair::always(dialect, fault.clone());
    let running = whole.start(&pair.both());
    let mut rests = Vec::new();
    for ((prompt, model), (added, attempts)) in CALLERS.into_iter().zip(expected) {
        let at = format!("{whole:?}, {name}, caller {prompt}");
        let before = pair.primary.journal().len();
        let model = models(dialect).1[model];
        let got = running.ask(Question { prompt, model, ..question(dialect, *stream) }).await;
        assert!(got.outcome.as_ref().unwrap().starts_with("Of the spare"), "{at}");
        assert_eq!(pair.primary.journal().len() - before, *attempts, "{at}: attempts");
        assert_eq!(got.attempts as usize, attempts + 1, "{at}: attempts, by its own account");
        let most = Duration::from_millis(added + added / 4);
        assert!(got.took >= Duration::from_millis(*added) && got.took <= most, "{at}: {got:?}");
        for health in running.failover.snapshot().cooling() {
            // A key is a part of the name where there are keys.
            let target = health.target.to_string().replace("#ANTHROPIC_API_KEY", "");
            let rest = health.cooling_for(Instant::now()).unwrap_or_default();
            let rest = format!("`{target}`, {} s", rest.as_secs());
            if !rests.contains(&rest) {
                rests.push(rest);
            }
        }
    }
    if rests.is_empty() { "nothing".to_owned() } else { rests.join("; ") }
}

const LATER: &str = "
## Those who come later

What a fault of the first provider comes to for five callers who come one after the other, each with a prompt \
of its own, the third and the fourth with another model: what is added to the answer of a healthy spare, and \
the attempts at the provider. The same by `Stack::new`, by the single layers in their order, and by \
`steadfast serve` with nothing but keys.

| fault of the provider | first | second | third, another model | fourth | fifth | then rests |
|---|---|---|---|---|---|---|
";

/// The same in every form that users run; as a table.
pub(crate) async fn later_callers() -> String {
    let mut page = LATER.to_owned();
    for row in later() {
        let mut rests = Vec::new();
        for whole in Whole::ALL {
            rests.push(come_later(whole, &row).await);
        }
        assert!(rests.iter().all(|rest| *rest == rests[0]), "{}: {rests:?}", row.0);
        write!(page, "| {} |", row.0).unwrap();
        for (added, attempts) in row.3 {
            write!(page, " {}, {attempts} |", table::seconds(added)).unwrap();
        }
        writeln!(page, " {} |", rests[0]).unwrap();
    }
    page + "
A call that is the probe of a provider which rests, and has no content after 5 s, has the next one asked beside it; \
whoever comes meanwhile goes to the next one at once.
"
}

#[tokio::test(start_paused = true)]
async fn a_probe_without_content_costs_five_seconds_and_one_caller() {
    for whole in Whole::ALL {
        let dialect = Dialect::Anthropic;
        let pair = Pair::always(dialect, Fault::Error(ErrorKind::ServerError));
        let running = whole.start(&pair.both());
        for (prompt, _) in &CALLERS[..2] {
            running.ask(Question { prompt, ..question(dialect, true) }).await;
        }
        let cooling = running.failover.snapshot().cooling().next().unwrap().cooling.unwrap();
        // Neither well nor failing: it does not say anything.
        pair.primary.set_faults(FaultPlan::always(Fault::Hang));
        sleep_until(cooling.probe_from).await;
        let asked = pair.primary.journal().len();
        let one = running.ask(Question { prompt: "one", ..question(dialect, true) });
        let other = running.ask(Question { prompt: "other", ..question(dialect, true) });
        let (one, other) = tokio::join!(one, other);
        assert_eq!(
            one.took,
            Duration::from_secs(5),
            "{whole:?}: the next target is asked beside it"
        );
        assert_eq!(
            (other.took, other.attempts),
            (Duration::ZERO, 1),
            "{whole:?}: one probe at a time"
        );
        for got in [one, other] {
            assert!(got.outcome.unwrap().starts_with("Of the spare"), "{whole:?}");
        }
        let probes = &pair.primary.journal().entries()[asked..];
        assert_eq!(probes.len(), 1, "{whole:?}");
        assert_eq!(probes[0].end, End::Dropped, "{whole:?}: it is not paid for twice");
        // Content ends the rest, for whatever model.
        pair.primary.set_faults(FaultPlan::none());
        for (prompt, model) in CALLERS {
            let model = models(dialect).1[model];
            let got = running.ask(Question { prompt, model, ..question(dialect, true) }).await;
            assert!(got.outcome.unwrap().starts_with("Of the primary"), "{whole:?}");
        }
        assert_eq!(running.failover.snapshot().cooling().count(), 0, "{whole:?}");
    }
}
