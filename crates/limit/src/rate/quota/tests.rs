//! Limits that are configured and learned, and what is left of them.

use proptest::prelude::*;

use super::{learned::LEARNED_FOR, *};

const SECOND: u64 = 1_000_000_000;

fn stated(kind: usize, limit: u64, remaining: u64) -> Stated {
    Stated { kind, limit: Some(limit), remaining: Some(remaining), ..Stated::default() }
}

fn call(input: u64, output: u64) -> CallTokens {
    CallTokens { input, max_output: Some(output) }
}

fn take(quota: &mut KeyQuota, count: usize, now: u64) -> Vec<Admitted> {
    (0..count).map(|_| quota.admit(call(10, 5), now).unwrap()).collect()
}

fn left(quota: &KeyQuota, kind: &str, now: u64) -> Option<u64> {
    quota.known(now).find(|(name, ..)| *name == kind).map(|(_, _, left, _)| left)
}

#[test]
fn without_anything_known_nothing_is_limited() {
    let mut quota = KeyQuota::new(None, None, None);
    take(&mut quota, 10_000, 0);
    assert_eq!(quota.known(0).count(), 0);
}

#[test]
fn what_is_under_way_is_taken_off_what_remains() {
    let mut quota = KeyQuota::new(None, None, None);
    let calls = take(&mut quota, 50, SECOND);
    // The provider had seen ten of them when it answered the third.
    assert!(quota.stated(&calls[2], stated(0, 60, 50), SECOND).is_some());
    assert_eq!(left(&quota, "requests", SECOND), Some(1), "49 others may not be counted yet");
    // Later it states more of them: never more than that.
    quota.stated(&calls[3], stated(0, 60, 10), SECOND);
    assert_eq!(left(&quota, "requests", SECOND), Some(1));
    for call in &calls {
        quota.used(call, &Usage::new(10, 5), SECOND);
    }
    let next = take(&mut quota, 1, SECOND);
    assert_eq!(left(&quota, "requests", SECOND), Some(0));
    // It says that there is more: all the others are known to be counted.
    assert_eq!(quota.stated(&next[0], stated(0, 60, 9), SECOND), None);
    assert_eq!(left(&quota, "requests", SECOND), Some(9));
}

#[test]
fn a_period_is_believed_when_much_of_the_limit_is_used() {
    for (limit, remaining, reset, known, expected) in [
        (60, Some(59), Some(1.0), None, 60),
        // Whole seconds, a fixed window, and a clock that is a minute and a half wrong.
        (4_000, Some(3_999), Some(1.0), None, 60),
        (4_000, Some(3_999), Some(59.0), None, 60),
        (4_000, Some(0), Some(120.0), None, 60),
        (60, Some(0), Some(59.2), None, 60),
        // Of a day, used up to a tenth: what is known stays.
        (14_400, Some(14_399), Some(6.0), None, 60),
        (14_400, Some(14_399), Some(6.0), Some(86_400), 86_400),
        (14_400, Some(12_960), Some(8_640.0), None, 86_400),
        (1_000, Some(500), Some(1_800.0), None, 3_600),
        (1_000, Some(500), Some(30.0), Some(3_600), 60),
        (60, None, Some(3_600.0), None, 60),
        (60, Some(60), Some(0.0), None, 60),
    ] {
        let reset = reset.map(Duration::from_secs_f64);
        let stated = Stated { remaining, reset, ..stated(0, limit, 0) };
        let known = known.map(|secs| Quota::new(limit, secs * SECOND));
        let found = period(&stated, limit, known);
        assert_eq!(found / SECOND, expected, "{limit} {remaining:?} {reset:?} {known:?}");
    }
    let day = Some(Duration::from_secs(86_400));
    let named = Stated { window: day, reset: Some(Duration::from_secs(5)), ..stated(0, 100, 99) };
    assert_eq!(period(&named, 100, None), Quota::DAY);
}

#[test]
fn what_is_learned_changes_only_when_the_provider_says_something_else() {
    let mut quota = KeyQuota::new(None, None, None);
    let mut changes = 0;
    for used in 1..50 {
        let call = take(&mut quota, 1, 0)[0];
        // In whole seconds, rounded up.
        let reset = Some(Duration::from_secs(used * 60 / 4_000 + 1));
        let stated = Stated { reset, ..stated(0, 4_000, 4_000 - used) };
        changes += u32::from(quota.stated(&call, stated, 0).is_some());
    }
    assert_eq!(changes, 1);
}

#[test]
fn a_configured_limit_and_a_learned_one_both_hold() {
    let mut quota = KeyQuota::new(Some(100), None, None);
    let call = take(&mut quota, 1, 0)[0];
    quota.stated(&call, stated(0, 10, 5), 0);
    assert_eq!(left(&quota, "requests", 0), Some(5), "the smaller is shown");
    assert_eq!(left(&quota, "requests", LEARNED_FOR), Some(100));
    quota.stated(&call, stated(0, 1_000, 999), LEARNED_FOR);
    assert_eq!(left(&quota, "requests", LEARNED_FOR), Some(100));
}

#[test]
fn usage_corrects_the_estimate_as_soon_as_it_is_known() {
    let mut quota = KeyQuota::new(None, Some(1_000), None);
    let call = quota.admit(super::tests::call(100, 400), 0).unwrap();
    assert_eq!(left(&quota, "tokens", 0), Some(500));
    quota.used(&call, &Usage::new(100, 20), 0);
    assert_eq!(left(&quota, "tokens", 0), Some(880));
    let call = quota.admit(super::tests::call(100, 400), 0).unwrap();
    quota.refund(&call, false, 0);
    assert_eq!(left(&quota, "tokens", 0), Some(880));
    // The input is known when the answer begins.
    let mut call = quota.admit(super::tests::call(100, 0), 0).unwrap();
    let mut usage = Usage::new(300, 1);
    quota.began(&mut call, &usage, 0);
    assert_eq!(left(&quota, "tokens", 0), Some(580));
    usage.output = Some(1_000);
    quota.used(&call, &usage, 0);
    assert_eq!(left(&quota, "tokens", 0), Some(0), "more than the quota is the quota");
}

#[test]
fn a_call_is_expected_to_use_what_calls_have_used() {
    let mut quota = KeyQuota::new(None, None, None);
    assert_eq!(quota.cost(call(1_000, 32_000)), [1, 1_500, 1_000, 500]);
    assert_eq!(quota.cost(call(1_000, 100)), [1, 1_100, 1_000, 100], "never more than it may");
    let mut usage = Usage::new(2_000, 100);
    usage.cache_read = Some(1_800);
    for _ in 0..200 {
        let call = quota.admit(call(1_000, 32_000), 0).unwrap();
        quota.used(&call, &usage, 0);
    }
    assert_eq!(quota.cost(call(1_000, 32_000)), [1, 2_100, 200, 100]);
    quota.reset();
    assert_eq!(quota.cost(call(1_000, 32_000)), [1, 1_500, 1_000, 500]);
}

#[test]
fn a_hint_binds_its_call_and_others_from_the_second_429_until_any_success() {
    let hint = Some(Duration::from_secs(20));
    let none = [false; 4];
    let mut quota = KeyQuota::new(None, None, None);
    for row in 1..4 {
        let call = take(&mut quota, 1, 0)[0];
        assert_eq!(quota.rejected(&call, hint, none, 0), row);
        assert_eq!(quota.moves_on_for(0), Duration::ZERO, "nothing is known of its limits");
    }
    let mut quota = KeyQuota::new(Some(100), None, None);
    let calls = take(&mut quota, 5, 0);
    assert_eq!(quota.rejected(&calls[0], hint, none, 0), 1);
    assert_eq!(quota.rejected(&calls[1], hint, none, 0), 1, "of the same time");
    assert_eq!((quota.moves_on_for(0), left(&quota, "requests", 0)), (Duration::ZERO, Some(95)));
    let again = take(&mut quota, 1, SECOND);
    assert_eq!(quota.rejected(&again[0], hint, none, SECOND), 2);
    assert_eq!(quota.moves_on_for(SECOND), Duration::from_secs(20));
    assert_eq!(left(&quota, "requests", SECOND), Some(0), "used up, and refills");
    quota.served(&calls[2]);
    assert_eq!(quota.moves_on_for(SECOND), Duration::ZERO);
    let later = take(&mut quota, 1, 21 * SECOND);
    assert_eq!(quota.rejected(&later[0], hint, none, 21 * SECOND), 1, "another row");
    // For a minute at most.
    let mut quota = KeyQuota::new(Some(100), None, None);
    for _ in 0..2 {
        let call = take(&mut quota, 1, 0)[0];
        quota.rejected(&call, Some(Duration::from_secs(9_999)), none, 0);
    }
    assert_eq!(quota.moves_on_for(0), MAX_BLOCK);
    // Without a hint, what is limited is used up, except for what the provider has just stated to be left.
    let mut quota = KeyQuota::new(Some(60), None, None);
    let call = take(&mut quota, 1, 0)[0];
    quota.rejected(&call, None, none, 0);
    assert_eq!(quota.admit(CallTokens::default(), 0).unwrap_err(), Held::For(SECOND));
    let mut quota = KeyQuota::new(None, None, None);
    let call = take(&mut quota, 1, 0)[0];
    let there = [stated(0, 60, 30), stated(1, 1_000, 2)].map(|stated| {
        quota.stated(&call, stated, 0);
        quota.has_room(&call, &stated)
    });
    quota.rejected(&call, None, [there[0], there[1], false, false], 0);
    assert_eq!((left(&quota, "requests", 0), left(&quota, "tokens", 0)), (Some(30), Some(0)));
}

#[test]
fn what_a_provider_states_is_not_believed_when_it_serves_more_until_it_refuses() {
    let mut quota = KeyQuota::new(None, None, None);
    let first = take(&mut quota, 1, 0)[0];
    quota.stated(&first, stated(0, 60, 0), 0);
    for _ in 0..LUCKY {
        assert_eq!(quota.admit(call(1, 1), 0).unwrap_err(), Held::For(SECOND));
        let beyond = quota.admit_beyond(call(1, 1), 0).unwrap();
        quota.stated(&beyond, stated(0, 60, 0), 0);
        quota.served(&beyond);
        // Otherwise the next one would wait for this one, too.
        quota.refund(&beyond, false, 0);
    }
    let call = quota.admit(call(1, 1), 0).unwrap();
    quota.rejected(&call, None, [false; 4], 0);
    assert!(quota.admit(super::tests::call(1, 1), 0).is_err());
}

#[derive(Clone, Debug)]
enum Action {
    /// A call is made, if it is let through.
    Call,
    /// One that is under way arrives at the provider.
    Arrive(usize),
    /// An answer that was sent is read, in any order.
    Answer(usize),
    /// Somebody else uses the key.
    Other,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let one = prop_oneof![
        4 => Just(Action::Call),
        3 => (0_usize..9).prop_map(Action::Arrive),
        3 => (0_usize..9).prop_map(Action::Answer),
        1 => Just(Action::Other),
    ];
    prop::collection::vec(one, 1..200)
}

proptest! {
    /// A provider that counts, and a wire that delays and reorders. While no time passes and nobody else
    /// uses the key, what we take to be left is never more than what will be left there once all calls
    /// have arrived.
    #[test]
    fn never_takes_more_to_be_left_than_there_is(actions in actions(), limit in 5_u64..60) {
        let mut quota = KeyQuota::new(None, None, None);
        let (mut left, mut others) = (limit, false);
        let mut sent: Vec<Admitted> = Vec::new();
        let mut answers: Vec<(Admitted, u64)> = Vec::new();
        for action in actions {
            match action {
                Action::Call => sent.extend(quota.admit(call(1, 1), 0)),
                Action::Arrive(which) if which < sent.len() => {
                    let call = sent.remove(which);
                    if left == 0 {
                        quota.rejected(&call, None, [false; 4], 0);
                        quota.refund(&call, true, 0);
                        continue;
                    }
                    left -= 1;
                    answers.push((call, left));
                }
                Action::Answer(which) if which < answers.len() => {
                    let (call, remaining) = answers.remove(which);
                    quota.stated(&call, stated(0, limit, remaining), 0);
                    quota.used(&call, &Usage::new(1, 1), 0);
                }
                Action::Other if left > 0 => (left, others) = (left - 1, true),
                _ => {}
            }
            if let (false, Some(ours)) = (others, self::left(&quota, "requests", 0)) {
                let there = left.saturating_sub(sent.len() as u64);
                prop_assert!(ours <= there, "{} of {}", ours, there);
            }
        }
    }
}

#[test]
fn so_many_at_once() {
    let mut quota = KeyQuota::new(None, None, Some(2));
    take(&mut quota, 2, 0);
    assert_eq!(quota.admit(call(1, 1), 0).unwrap_err(), Held::UntilOneEnds);
    quota.release();
    take(&mut quota, 1, 0);
}
