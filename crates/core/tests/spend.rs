//! The ledger: caps hold for calls that run at the same time, and what was spent is never forgotten early.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use proptest::prelude::*;
use steadfast_core::{
    AttemptSpend, CallSpend, KeyedPolicy, Spend, SpendAccount, SpendCaps, SpendLedger, SpendRecord,
    SpendReservation, SpendWindow,
};
use tokio::time::{Instant, advance};

const HOUR: u64 = 3_600;

fn tenant(name: &str) -> SpendAccount {
    SpendAccount::Tenant(name.into())
}

fn tokens(tokens: u64) -> Spend {
    Spend::new(tokens, 0)
}

async fn seconds(seconds: u64) -> Instant {
    advance(Duration::from_secs(seconds)).await;
    Instant::now()
}

#[tokio::test(start_paused = true)]
async fn exactly_the_cap_passes_and_one_more_does_not() {
    let (ledger, now) = (SpendLedger::default(), Instant::now());
    let (acme, caps) = (tenant("acme"), SpendCaps::of_tokens(100, 150));
    ledger.reserve(&acme, &caps, tokens(100), now).unwrap().charge(tokens(100), now);
    let now = seconds(HOUR - 61).await;
    let refusal = ledger.reserve(&acme, &caps, tokens(1), now).unwrap_err();
    assert_eq!((refusal.window, refusal.cap, refusal.used), (SpendWindow::Hour, 100, 100));
    // It is there when it says so, and not a second before.
    let frees = refusal.frees_in.unwrap().as_secs();
    let now = seconds(frees - 1).await;
    assert!(ledger.reserve(&acme, &caps, tokens(1), now).is_err());
    let now = seconds(1).await;
    ledger.reserve(&acme, &caps, tokens(50), now).unwrap().charge(tokens(50), now);
    let refusal = ledger.reserve(&acme, &caps, tokens(1), now).unwrap_err();
    assert_eq!((refusal.window, refusal.used), (SpendWindow::Day, 150));
    assert!(refusal.frees_in.unwrap() > Duration::from_secs(22 * HOUR));
    let text = refusal.to_string();
    assert!(
        text.starts_with("the cap of tenant `acme` on the tokens of a day is 150: 150 are"),
        "{text}"
    );
    let now = seconds(26 * HOUR).await;
    assert_eq!(ledger.totals(&acme, now).day, Spend::ZERO);
    assert_eq!(ledger.totals(&acme, now).month, tokens(150));
    let never = ledger.reserve(&acme, &caps, tokens(101), now).unwrap_err();
    assert_eq!(never.frees_in, None, "more than the cap");
    assert!(never.to_string().ends_with("it is larger than the whole cap"));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_used_is_given_back_and_what_is_not_charged_is_spent() {
    let (ledger, now) = (SpendLedger::default(), Instant::now());
    let (acme, caps) = (tenant("acme"), SpendCaps::of_tokens(100, 0));
    let first = ledger.reserve(&acme, &caps, tokens(90), now).unwrap();
    let refusal = ledger.reserve(&acme, &caps, tokens(20), now).unwrap_err();
    assert_eq!(refusal.frees_in, Some(Duration::from_secs(1)), "as soon as the first one ends");
    first.charge(tokens(20), now);
    drop(ledger.reserve(&acme, &caps, tokens(30), now).unwrap());
    assert_eq!(ledger.totals(&acme, now).hour, tokens(50));
    ledger.reserve(&acme, &caps, tokens(50), now).unwrap().charge(tokens(200), now);
    assert_eq!(ledger.totals(&acme, now).hour, tokens(250), "an overrun counts");
    assert!(ledger.reset(&acme) && !ledger.reset(&acme));
    assert_eq!(ledger.snapshot(now), []);
}

#[tokio::test(start_paused = true)]
async fn money_is_capped_beside_tokens() {
    let (ledger, now) = (SpendLedger::default(), Instant::now());
    let caps = SpendCaps { month: Spend::new(0, 5_000_000), ..SpendCaps::default() };
    ledger.charge(&tenant(""), Spend::new(9, 4_000_000), now);
    let refusal = ledger.reserve(&tenant(""), &caps, Spend::new(1, 1_500_000), now).unwrap_err();
    assert!(refusal.is_cost);
    let text = refusal.to_string();
    assert!(
        text.contains("calls without a tenant on the cost of a month is $5.000000: $4.000000"),
        "{text}"
    );
    let free = ledger.reserve(&tenant(""), &caps, Spend::new(u64::MAX, 0), now).unwrap();
    free.charge(Spend::ZERO, now);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_beyond_what_is_reserved_takes_from_the_caps_or_is_refused() {
    let (ledger, now) = (SpendLedger::default(), Instant::now());
    let accounts = || {
        [
            (tenant("acme"), SpendCaps::of_tokens(250, 0)),
            (SpendAccount::Key("k".into()), SpendCaps::of_tokens(1_000, 0)),
        ]
    };
    let call = CallSpend::reserve(&ledger, accounts(), tokens(100), now).unwrap();
    let first = call.attempt(tokens(100), now).unwrap();
    let hedge = call.attempt(tokens(100), now).unwrap();
    assert_eq!(ledger.totals(&tenant("acme"), now).held, tokens(200));
    // A third one beside them would exceed the cap, and takes nothing from the other account.
    assert!(call.attempt(tokens(100), now).is_err());
    assert_eq!(ledger.totals(&SpendAccount::Key("k".into()), now).held, tokens(200));
    hedge.charge(tokens(30), now);
    // What the hedge has left is the next attempt's.
    let retry = call.attempt(tokens(100), now).unwrap();
    first.charge(tokens(100), now);
    retry.charge(tokens(90), now);
    assert_eq!((call.attempts(), call.spent()), (3, tokens(220)));
    call.end(now);
    for (account, _) in accounts() {
        let totals = ledger.totals(&account, now);
        assert_eq!((totals.hour, totals.held), (tokens(220), Spend::ZERO), "{account}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_outlives_its_call_gives_back_what_it_leaves() {
    let (ledger, now) = (SpendLedger::default(), Instant::now());
    let call =
        CallSpend::reserve(&ledger, [(tenant("a"), SpendCaps::of_tokens(100, 0))], tokens(60), now)
            .unwrap();
    let attempt = call.attempt(tokens(50), now).unwrap();
    drop(call.clone());
    assert_eq!(ledger.totals(&tenant("a"), now).held, tokens(60));
    call.end(now);
    drop(call);
    assert_eq!(ledger.totals(&tenant("a"), now).held, tokens(50));
    attempt.charge(tokens(10), now);
    let totals = ledger.totals(&tenant("a"), now);
    assert_eq!((totals.hour, totals.held), (tokens(10), Spend::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_restart_forgets_nothing() {
    let ledger = SpendLedger::default();
    let caps = SpendCaps::of_tokens(100, 0);
    ledger.charge(&tenant("old"), tokens(7), Instant::now());
    let now = seconds(30 * 60).await;
    ledger.charge(&tenant("acme"), Spend::new(40, 9), now);
    let held = ledger.reserve(&tenant("acme"), &caps, tokens(50), now).unwrap();
    let record: SpendRecord = ledger.save();
    drop(held);
    let now = seconds(40 * 60).await;
    let new = SpendLedger::new(KeyedPolicy::default());
    new.restore(&record);
    let totals = new.totals(&tenant("acme"), now);
    assert_eq!(totals.hour, Spend::new(90, 9), "what was reserved counts as spent");
    assert!(new.reserve(&tenant("acme"), &caps, tokens(11), now).is_err());
    assert_eq!(new.totals(&tenant("old"), now).hour, Spend::ZERO, "more than an hour ago");
    assert_eq!(new.totals(&tenant("old"), now).day, tokens(7));
    assert_eq!(new.save().rows.len(), new.snapshot(now).len() * 3 - 1);
}

#[tokio::test(start_paused = true)]
async fn accounts_are_bounded_and_those_that_spent_go_last() {
    let ledger = SpendLedger::new(KeyedPolicy { capacity: 800, idle: Duration::from_secs(60) });
    let now = Instant::now();
    ledger.charge(&tenant("acme"), tokens(1), now);
    for n in 0..5_000 {
        let caps = SpendCaps::of_tokens(1, 0);
        let one = ledger.reserve(&tenant(&n.to_string()), &caps, tokens(1), now).unwrap();
        one.charge(Spend::ZERO, now);
    }
    assert_eq!(ledger.totals(&tenant("acme"), now).hour, tokens(1));
    assert!(format!("{ledger:?}").len() < 40);
}

/// What a ledger would be if it kept everything.
#[derive(Default)]
struct Naive {
    spent: Vec<(u64, u64)>,
    held: u64,
}

impl Naive {
    fn inside(&self, now: u64, length: u64) -> u64 {
        let inside = self.spent.iter().filter(|(at, _)| at + length > now);
        inside.map(|(_, tokens)| tokens).sum::<u64>() + self.held
    }
}

#[derive(Clone, Debug)]
enum Action {
    Wait(u64),
    Reserve(u64),
    Charge(usize, u64),
    Drop(usize),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let one = prop_oneof![
        (0_u64..5_000).prop_map(Action::Wait),
        (0_u64..70).prop_map(Action::Reserve),
        (0_usize..8, 0_u64..70).prop_map(|(which, tokens)| Action::Charge(which, tokens)),
        (0_usize..8).prop_map(Action::Drop),
    ];
    proptest::collection::vec(one, 1..120)
}

proptest! {
    /// Never admits more than the caps in any window to the second, and refuses only what would exceed
    /// them in a window that is one bucket longer.
    #[test]
    fn agrees_with_a_ledger_that_keeps_everything(actions in actions()) {
        const DAY: u64 = 24 * HOUR;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async move {
            let (ledger, caps, start) = (SpendLedger::default(), SpendCaps::of_tokens(100, 400), Instant::now());
            let (mut naive, mut held): (Naive, Vec<SpendReservation>) = Default::default();
            for action in actions {
                let now = (Instant::now() - start).as_secs();
                match action {
                    Action::Wait(wait) => advance(Duration::from_secs(wait)).await,
                    Action::Reserve(most) => match ledger.reserve(&tenant("a"), &caps, tokens(most), Instant::now()) {
                        Ok(reservation) => {
                            assert!(most == 0 || naive.inside(now, HOUR) + most <= 100);
                            assert!(most == 0 || naive.inside(now, DAY) + most <= 400);
                            naive.held += most;
                            held.push(reservation);
                        }
                        Err(_) => assert!(
                            naive.inside(now, HOUR + 60) + most > 100 || naive.inside(now, DAY + 900) + most > 400
                        ),
                    },
                    Action::Charge(which, actual) if which < held.len() => {
                        let reservation = held.remove(which);
                        naive.held -= reservation.held().tokens;
                        // A provider that reports more than was asked for counts, too.
                        naive.spent.push((now, actual));
                        reservation.charge(tokens(actual), Instant::now());
                    }
                    Action::Drop(which) if which < held.len() => {
                        let reservation = held.remove(which);
                        naive.held -= reservation.held().tokens;
                        naive.spent.push((now, reservation.held().tokens));
                    }
                    _ => {}
                }
            }
        });
    }

    /// Whatever attempts do, their sum is what is charged, and nothing stays reserved.
    #[test]
    fn attempts_add_up(most in 0_u64..100, attempts in proptest::collection::vec((0_u64..100, 0_u64..100, any::<bool>()), 0..20)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async move {
            let (ledger, now) = (SpendLedger::default(), Instant::now());
            let account = [(tenant("a"), SpendCaps::of_tokens(500, 0))];
            let call = CallSpend::reserve(&ledger, account, tokens(most), now).unwrap();
            let (mut under_way, mut spent): (Vec<(AttemptSpend, u64)>, u64) = Default::default();
            for (wants, uses, ends) in attempts {
                let totals = ledger.totals(&tenant("a"), now);
                if let Ok(attempt) = call.attempt(tokens(wants), now) {
                    under_way.push((attempt, uses.min(wants)));
                } else {
                    assert!(totals.hour.plus(totals.held).tokens + wants > 500);
                }
                if ends && !under_way.is_empty() {
                    let (attempt, uses) = under_way.remove(0);
                    attempt.charge(tokens(uses), now);
                    spent += uses;
                }
                let totals = ledger.totals(&tenant("a"), now);
                assert!(totals.hour.plus(totals.held).tokens <= 500, "never exceeded");
                assert_eq!(totals.hour.tokens, spent);
            }
            call.end(now);
            for (attempt, uses) in under_way {
                attempt.charge(tokens(uses), now);
                spent += uses;
            }
            let totals = ledger.totals(&tenant("a"), now);
            assert_eq!((totals.hour, totals.held), (tokens(spent), Spend::ZERO));
        });
    }
}
