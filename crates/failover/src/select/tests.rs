use proptest::prelude::*;

use super::*;

fn view(spec: u8, rank: u8) -> CandidateView {
    CandidateView {
        spec,
        position: spec,
        rank,
        lacks: Lacks::default(),
        window: None,
        rest: None,
        model_cools: false,
        mostly_fails: false,
        health: ProviderState::Well,
        probe_due: false,
        yields: false,
    }
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn rest(now: Instant, left: u64, probe_in: u64) -> CandidateRest {
    CandidateRest {
        until: now + secs(left),
        probe_from: now + secs(probe_in),
        probing: false,
        refuses: false,
        reason: Reason::Network,
    }
}

/// The candidates to ask, in order: `?` for a probe, `!` for one that cools, `~` for one that sees whether its
/// provider is still degraded.
fn order(plan: &Plan) -> String {
    let name = |pick: &PlannedCandidate| match (pick.probe, pick.insists) {
        (true, _) => format!("{}?", pick.slot),
        (false, Some(_)) => format!("{}!", pick.slot),
        (false, None) if pick.probes_provider => format!("{}~", pick.slot),
        (false, None) => pick.slot.to_string(),
    };
    plan.order.iter().map(name).collect::<Vec<_>>().join(" ")
}

#[tokio::test(start_paused = true)]
async fn those_that_cool_are_asked_last_and_probed_in_their_position() {
    let now = Instant::now();
    let mut views = [view(0, 0), view(1, 0), view(2, 0)];
    let mut planned = |change: &dyn Fn(&mut [CandidateView; 3])| {
        change(&mut views);
        order(&plan(&views, now, &Exclusions::default()))
    };
    assert_eq!(planned(&|_| {}), "0 1 2");
    assert_eq!(planned(&|views| views[0].rest = Some(rest(now, 60, 30))), "1 2 0!");
    assert_eq!(planned(&|views| views[0].rest = Some(rest(now, 30, 0))), "0? 1 2");
    let probing = CandidateRest { probing: true, ..rest(now, 30, 0) };
    assert_eq!(planned(&|views| views[0].rest = Some(probing)), "1 2 0!");
    let over = rest(now, 0, 0);
    assert_eq!(planned(&|views| views[0].rest = Some(over)), "0? 1 2", "a probe has to see it");
    // Those that cool go by their ends.
    assert_eq!(
        planned(&|views| {
            views[0].rest = Some(rest(now, 60, 30));
            views[2].rest = Some(rest(now, 9, 5));
        }),
        "1 2! 0!"
    );
    assert_eq!(planned(&|views| views[1].rest = Some(rest(now, 20, 10))), "2! 1! 0!");
}

#[tokio::test(start_paused = true)]
async fn those_that_mostly_fail_are_asked_after_the_others() {
    let now = Instant::now();
    let mut views = [view(0, 0), view(1, 0), view(2, 0), view(3, 0)];
    (views[0].mostly_fails, views[1].mostly_fails) = (true, true);
    views[2].rest = Some(rest(now, 9, 5));
    assert_eq!(order(&plan(&views, now, &Exclusions::default())), "3 0 1 2!");
    views[1].rest = Some(rest(now, 2, 0));
    assert_eq!(order(&plan(&views, now, &Exclusions::default())), "1? 3 0 2!", "as a probe, not");
}

#[tokio::test(start_paused = true)]
async fn those_whose_provider_is_degraded_are_asked_after_the_others_in_their_order() {
    let now = Instant::now();
    let well = [view(0, 0), view(1, 0), view(2, 0), view(3, 0)];
    let planned = |views: &[CandidateView]| order(&plan(views, now, &Exclusions::default()));
    let with = |slots: &[usize], health| {
        let mut views = well;
        slots.iter().for_each(|slot| views[*slot].health = health);
        views
    };
    for (slots, expected) in
        [(&[0][..], "1 2 3 0"), (&[0, 2], "1 3 0 2"), (&[0, 1, 2, 3], "0 1 2 3")]
    {
        assert_eq!(planned(&with(slots, ProviderState::Degraded)), expected);
        assert_eq!(planned(&with(slots, ProviderState::Avoided)), expected);
    }
    // After it those that mostly fail by themselves; before it what cools, where it is avoided alone.
    let others = |health| {
        let mut views = with(&[0], health);
        views[1].mostly_fails = true;
        views[2].rest = Some(rest(now, 60, 30));
        planned(&views)
    };
    assert_eq!(others(ProviderState::Degraded), "3 0 1 2!");
    assert_eq!(others(ProviderState::Avoided), "3 1 2! 0");
    // It is one of those that cool, when it cools itself; its own probe is made in its position.
    let mut views = with(&[0], ProviderState::Degraded);
    views[0].rest = Some(rest(now, 60, 30));
    views[3].rest = Some(rest(now, 90, 30));
    assert_eq!(planned(&views), "1 2 0! 3!");
    views[0].rest = Some(rest(now, 30, 0));
    assert_eq!(planned(&views), "0? 1 2 3!");
    // A session does not stay there.
    let preferred = Exclusions { preferred: Some(1), ..Exclusions::default() };
    let views = with(&[1], ProviderState::Degraded);
    assert_eq!(order(&plan(&views, now, &preferred)), "0 2 3 1");
}

#[tokio::test(start_paused = true)]
async fn a_probe_of_a_degraded_provider_is_made_in_its_position_where_others_are_preferred() {
    let now = Instant::now();
    for health in [ProviderState::Degraded, ProviderState::Avoided] {
        let mut views = [view(0, 0), view(1, 0), view(2, 0)];
        let planned = |views: &[CandidateView]| order(&plan(views, now, &Exclusions::default()));
        (views[0].health, views[0].probe_due) = (health, true);
        assert_eq!(planned(&views), "0~ 1 2");
        views[1].health = health;
        assert_eq!(planned(&views), "0~ 2 1");
        // Nobody is preferred to them.
        views[2].health = health;
        assert_eq!(planned(&views), "0 1 2");
        (views[0].probe_due, views[1].probe_due) = (false, true);
        assert_eq!(planned(&views), "0 1 2");
        views[2].rest = Some(rest(now, 60, 30));
        assert!(!planned(&views).contains('~'));
    }
}

#[tokio::test(start_paused = true)]
async fn what_refuses_is_asked_as_a_probe_alone_and_strictly_all_that_cool() {
    let now = Instant::now();
    let mut views = [view(0, 0), view(1, 0)];
    views[0].rest = Some(CandidateRest { refuses: true, ..rest(now, 600, 570) });
    views[1].rest = Some(rest(now, 60, 30));
    let planned = plan(&views, now, &Exclusions::default());
    assert_eq!(order(&planned), "1!");
    assert_eq!(planned.skipped[..], [(0, Skip::Cooling(views[0].rest.unwrap()))]);
    let strict = Exclusions { strict: true, ..Exclusions::default() };
    assert_eq!(order(&plan(&views, now, &strict)), "");
    let later = now + secs(570);
    assert_eq!(order(&plan(&views, later, &Exclusions::default())), "0? 1?");
    assert_eq!(order(&plan(&views, later, &strict)), "0? 1?");
}

#[tokio::test(start_paused = true)]
async fn a_session_stays_while_its_target_is_well() {
    let now = Instant::now();
    let mut views = [view(0, 0), view(1, 0), view(2, 0)];
    let exclusions = Exclusions { preferred: Some(1), ..Exclusions::default() };
    let planned =
        |views: &[CandidateView], exclusions: &Exclusions| order(&plan(views, now, exclusions));
    assert_eq!(planned(&views, &exclusions), "1 0 2");
    // Not as a probe, nor to a target that mostly fails: a session is no guinea pig.
    views[1].rest = Some(rest(now, 30, 0));
    assert_eq!(planned(&views, &exclusions), "0 1? 2");
    views[1].rest = Some(rest(now, 30, 15));
    assert_eq!(planned(&views, &exclusions), "0 2 1!");
    (views[1].rest, views[1].mostly_fails) = (None, true);
    assert_eq!(planned(&views, &exclusions), "0 2 1");
    views[1].mostly_fails = false;
    let mut gone = Exclusions { preferred: Some(1), ..Exclusions::default() };
    gone.excluded.add(1);
    assert_eq!(planned(&views, &gone), "0 2");
}

#[tokio::test(start_paused = true)]
async fn a_round_begins_when_the_first_candidate_is_back() {
    let now = Instant::now();
    let at = |slot, wait, held, spare| Some(NextRound { slot, at: now + secs(wait), held, spare });
    let mut views = [view(0, 0), view(1, 0)];
    let mut exclusions = Exclusions::default();
    let next =
        |views: &[CandidateView], exclusions: &Exclusions| next_round(views, now, exclusions);
    for slot in 0..2 {
        exclusions.excluded.add(slot);
        exclusions.again.add(slot);
    }
    assert_eq!(next(&views, &exclusions), at(0, 0, false, true), "at once, in the chain's order");
    views[0].rest = Some(rest(now, 9, 5));
    assert_eq!(next(&views, &exclusions), at(1, 0, false, true));
    exclusions.hold(1, now + secs(20), true);
    assert_eq!(next(&views, &exclusions), at(0, 9, false, true));
    views[0].rest = Some(rest(now, 60, 30));
    assert_eq!(next(&views, &exclusions), at(0, 10, false, true), "no longer for reasons of ours");
    exclusions.hold(0, now + secs(50), true);
    assert_eq!(next(&views, &exclusions), at(1, 20, true, true), "the provider's are kept");
    exclusions.hold(1, now + secs(20), false);
    assert_eq!(next(&views, &exclusions), at(1, 20, false, true), "the turn of others");
    exclusions.again.drop(1);
    assert_eq!(next(&views, &exclusions), at(0, 50, true, false), "it has failed for good");
    // A target that is alone has no rest from it.
    exclusions.waits.clear();
    assert_eq!(next(&views[..1], &exclusions), at(0, 0, false, false));
    exclusions.strict = true;
    assert_eq!(next(&views[..1], &exclusions), at(0, 30, false, false), "its probe");
    // What refuses is waited for only where nothing is asked that cools.
    views[0].rest = Some(CandidateRest { refuses: true, ..rest(now, 60, 30) });
    assert_eq!(next(&views[..1], &exclusions), at(0, 30, false, false));
    exclusions.strict = false;
    assert_eq!(next(&views[..1], &exclusions), None);
}

#[tokio::test(start_paused = true)]
async fn it_is_worth_coming_back_when_the_first_is_back() {
    let now = Instant::now();
    let mut views = [view(0, 0), view(1, 0)];
    let mut exclusions = Exclusions::default();
    let back = |views: &[CandidateView], exclusions: &Exclusions| {
        soonest_back(views, now, exclusions).map(|back| (back - now).as_secs())
    };
    // Nobody says when.
    assert_eq!(back(&views, &exclusions), None);
    // The one waits for its hint, the other has failed this request for good.
    (0..2).for_each(|slot| exclusions.excluded.add(slot));
    exclusions.hold(0, now + secs(90), true);
    assert_eq!(back(&views, &exclusions), Some(90));
    exclusions.hold(1, now + secs(70), true);
    assert_eq!(back(&views, &exclusions), Some(70));
    views[1].rest = Some(rest(now, 80, 50));
    assert_eq!(back(&views, &exclusions), Some(80), "both apply");
    // The other may be asked at any time.
    (exclusions.waits, views[1].rest) = (Default::default(), None);
    views[0].rest = Some(rest(now, 9, 5));
    exclusions.again.add(1);
    assert_eq!(back(&views, &exclusions), None);
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_stands_in_only_where_every_better_model_makes_way() {
    let now = Instant::now();
    // Two credentials of the model asked for, two of its downgrade, another provider.
    let mut views = [view(0, 0), view(0, 0), view(0, 1), view(0, 1), view(1, 0)];
    let slots = |views: &[CandidateView], exclusions: &Exclusions| -> Vec<u8> {
        plan(views, now, exclusions).order.iter().map(|pick| pick.slot).collect()
    };
    assert_eq!(slots(&views, &Exclusions::default()), [0, 1, 4]);
    let mut exclusions = Exclusions::default();
    exclusions.downgrade.add(0);
    exclusions.excluded.add(0);
    assert_eq!(slots(&views, &exclusions), [1, 4], "one credential has not been asked yet");
    exclusions.excluded.add(1);
    assert_eq!(slots(&views, &exclusions), [2, 3, 4]);
    exclusions.downgrade.drop(0);
    assert_eq!(slots(&views, &exclusions), [4], "it failed for another reason");
    for view in &mut views[..2] {
        let gone = CandidateRest { refuses: true, ..rest(now, 3_600, 3_570) };
        (view.rest, view.yields) = (Some(gone), true);
    }
    assert_eq!(slots(&views, &Exclusions::default()), [2, 3, 4], "known from before");
}

#[tokio::test(start_paused = true)]
async fn what_nobody_can_do_is_asked_of_nobody() {
    let now = Instant::now();
    let lacking = |all: [Lacks; 2]| {
        let mut views = [view(0, 0), view(1, 0)];
        views.iter_mut().zip(all).for_each(|(view, lacks)| view.lacks = lacks);
        plan(&views, now, &Exclusions::default())
            .order
            .iter()
            .map(|pick| pick.slot)
            .collect::<Vec<_>>()
    };
    let (none, both) = (Lacks::default(), Lacks(5));
    assert_eq!(lacking([Lacks::VISION, none]), [1]);
    assert_eq!(lacking([Lacks::VISION, Lacks::VISION]), [0, 1], "adapted, or refused by itself");
    assert_eq!(lacking([Lacks::WINDOW, Lacks::WINDOW]), [0, 1], "compacted by a layer below");
    // One sees, the other is large: a missing capability can not be made up for, size can.
    assert_eq!(lacking([Lacks::VISION, Lacks::WINDOW]), [1]);
    assert_eq!(lacking([both, Lacks::WINDOW]), [1]);
    assert!(lacking([Lacks::VISION, Lacks::TOOLS]).is_empty());
}

#[tokio::test(start_paused = true)]
async fn only_a_window_known_to_be_larger_is_larger() {
    let now = Instant::now();
    let mut views = [view(0, 0), view(1, 0), view(2, 0), view(3, 0)];
    for (view, window) in views.iter_mut().zip([Some(8), None, Some(16), Some(32)]) {
        view.window = window;
    }
    let with = |above, at_least| {
        let exclusions =
            Exclusions { floor: Some(Floor { above, at_least }), ..Exclusions::default() };
        plan(&views, now, &exclusions).order.iter().map(|pick| pick.slot).collect::<Vec<_>>()
    };
    assert_eq!(with(8, 0), [2, 3]);
    assert_eq!(with(8, 20), [3]);
    assert!(with(32, 0).is_empty());
}

#[tokio::test(start_paused = true)]
async fn of_two_cooldowns_the_later_counts_and_a_refusal_is_kept() {
    let now = Instant::now();
    let refuses = CandidateRest { refuses: true, ..rest(now, 5, 5) };
    let both = rest(now, 60, 30).later(refuses);
    assert_eq!(both, refuses.later(rest(now, 60, 30)));
    assert_eq!((both.until, both.probe_from, both.refuses), (now + secs(60), now + secs(30), true));
}

/// Seconds left and until the earliest probe, whether one is under way, and whether it refuses.
type Resting = Option<(u64, u64, bool, bool)>;

prop_compose! {
    fn arbitrary_view(spec: u8)(
        rank in 0u8..3,
        lacks in 0u8..8,
        window in prop::option::of(0u64..4),
        rest in prop::option::of((0u64..4, 0u64..4, any::<bool>(), any::<bool>())),
        mostly_fails in any::<bool>(),
        yields in any::<bool>(),
    ) -> (CandidateView, Resting) {
        let view =
            CandidateView { lacks: Lacks(lacks), window, mostly_fails, yields, ..view(spec, rank) };
        (view, rest)
    }
}

fn arbitrary_views() -> impl Strategy<Value = Vec<(CandidateView, Resting)>> {
    prop::collection::vec(0u8..3, 1..9).prop_flat_map(|mut specs| {
        specs.sort_unstable();
        specs.into_iter().map(arbitrary_view).collect::<Vec<_>>()
    })
}

proptest! {
    /// Against the rules applied one at a time, each reading everything.
    #[test]
    fn agrees_with_a_naive_model(
        views in arbitrary_views(),
        excluded in 0u128..512,
        downgrade in 0u128..8,
        (cooled_before, found) in (0u128..512, 0u128..512),
        model_cools in 0u128..512,
        waits in prop::collection::vec((0u8..9, 0u64..3), 0..3),
        strict in any::<bool>(),
        floor in prop::option::of((0u64..4, 0u64..4)),
        preferred in prop::option::of(0u8..9),
    ) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().start_paused(true).enable_time().build().unwrap();
        let _guard = runtime.enter();
        let now = Instant::now();
        let views: Vec<CandidateView> = views
            .into_iter()
            .enumerate()
            .map(|(slot, (view, resting))| CandidateView {
                model_cools: model_cools >> slot & 1 == 1,
                rest: resting.map(|(left, probe, probing, refuses)| {
                    CandidateRest { probing, refuses, ..rest(now, left, probe) }
                }),
                ..view
            })
            .collect();
        let mut exclusions = Exclusions {
            excluded: CandidateSet(excluded),
            downgrade: CandidateSet(downgrade),
            cooled_before: CandidateSet(cooled_before),
            found: CandidateSet(found),
            floor: floor.map(|(above, at_least)| Floor { above, at_least }),
            strict,
            preferred,
            ..Exclusions::default()
        };
        for (slot, wait) in &waits {
            exclusions.hold(*slot, now + secs(*wait), true);
        }
        let plan = plan(&views, now, &exclusions);

        // A requirement holds when somebody meets it; when nobody meets all, size is let go.
        let meets = |view: &CandidateView, bits: &[u8]| bits.iter().all(|bit| view.lacks.0 & bit == 0);
        let mut bits: Vec<u8> =
            [1, 2, 4].into_iter().filter(|bit| views.iter().any(|view| meets(view, &[*bit]))).collect();
        if !views.iter().any(|view| meets(view, &bits)) {
            bits.retain(|bit| *bit != 4);
        }
        let gone = |slot: usize| excluded >> slot & 1 == 1;
        // Class, end of the cooldown, slot: in this order.
        let mut expected: Vec<(u8, u64, u8)> = Vec::new();
        let mut passed = Vec::new();
        for (slot, view) in (0u8..).zip(&views) {
            let betters = views.iter().enumerate().filter(|(_, b)| b.spec == view.spec && b.rank < view.rank);
            let allowed = downgrade >> view.spec & 1 == 1;
            let way_is_made = betters.into_iter().all(|(b, v)| v.yields || allowed && gone(b));
            if gone(usize::from(slot)) || !way_is_made {
                continue;
            }
            let large = floor.is_none_or(|(above, least)| view.window.is_some_and(|w| w > above && w >= least));
            let held = waits.iter().any(|(waiting, wait)| *waiting == slot && *wait > 0);
            let behind = u8::from(view.mostly_fails);
            // What this call has found out itself does not rule out downgrades.
            let before = cooled_before >> slot & 1 == 1 || view.model_cools;
            let found = found >> slot & 1 == 1;
            let own = strict && view.rank > 0 && allowed && found && !before;
            match view.rest {
                _ if !meets(view, &bits) || !large || held => passed.push(slot),
                None => expected.push((behind, 0, slot)),
                Some(rest) if !rest.probing && rest.probe_from == now => expected.push((0, 0, slot)),
                Some(_) if own => expected.push((behind, 0, slot)),
                Some(rest) if strict || rest.refuses => passed.push(slot),
                Some(rest) => expected.push((2 + behind, (rest.until - now).as_secs(), slot)),
            }
        }
        expected.sort_by_key(|(class, left, slot)| (*class > 1, *left, *class, *slot));
        let mut expected: Vec<u8> = expected.into_iter().map(|(_, _, slot)| slot).collect();
        let well = |slot: u8| {
            let view = &views[usize::from(slot)];
            view.rest.is_none() && !view.mostly_fails
        };
        if let Some(at) = preferred.and_then(|own| expected.iter().position(|slot| *slot == own && well(own))) {
            let pick = expected.remove(at);
            expected.insert(0, pick);
        }
        prop_assert_eq!(plan.order.iter().map(|pick| pick.slot).collect::<Vec<_>>(), expected);
        for pick in &plan.order {
            let view = &views[usize::from(pick.slot)];
            let own = strict
                && view.rank > 0
                && downgrade >> view.spec & 1 == 1
                && cooled_before >> pick.slot & 1 == 0
                && found >> pick.slot & 1 == 1
                && !view.model_cools;
            let probe = view.rest.is_some_and(|rest| !rest.probing && rest.probe_from == now);
            prop_assert_eq!(pick.cools(), probe || (view.rest.is_some() && !own));
            prop_assert_eq!(pick.probe, probe);
            prop_assert!(may_serve(&views, pick.slot, &exclusions), "what is asked may serve");
        }
        prop_assert_eq!(plan.skipped.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), passed);
        if let Some(next) = next_round(&views, now, &exclusions) {
            prop_assert!(possible(&views, next.slot, &exclusions) && next.at >= now);
        }
    }
}
