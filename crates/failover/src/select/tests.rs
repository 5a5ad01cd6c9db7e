use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn view(spec: u8, rank: u8) -> CandidateView {
    CandidateView { spec, rank, lacks: Lacks::default(), window: None, rest: None, yields: false }
}

fn rest(now: Instant, left: u64, probe_in: u64) -> CandidateRest {
    CandidateRest {
        until: now + Duration::from_secs(left),
        probe_from: now + Duration::from_secs(probe_in),
        probing: false,
        hinted: false,
        reason: Reason::Network,
    }
}

fn order(plan: &Plan) -> Vec<(u8, bool)> {
    plan.order.iter().map(|pick| (pick.slot, pick.probe)).collect()
}

#[tokio::test(start_paused = true)]
async fn the_first_that_is_not_cooling_and_a_probe_before_it() {
    let now = Instant::now();
    let mut views = [view(0, 0), view(1, 0), view(2, 0)];
    assert_eq!(
        order(&plan(&views, now, &Exclusions::default())),
        [(0, false), (1, false), (2, false)]
    );

    views[0].rest = Some(rest(now, 60, 30));
    let early = plan(&views, now, &Exclusions::default());
    assert_eq!(order(&early), [(1, false), (2, false)]);
    assert_eq!(early.skipped[0], (0, Skip::Cooling(views[0].rest.unwrap())));

    views[0].rest = Some(rest(now, 30, 0));
    assert_eq!(order(&plan(&views, now, &Exclusions::default()))[0], (0, true));
    views[0].rest = Some(CandidateRest { probing: true, ..rest(now, 30, 0) });
    assert_eq!(order(&plan(&views, now, &Exclusions::default()))[0], (1, false));
    views[0].rest = Some(rest(now, 0, 0));
    assert_eq!(
        order(&plan(&views, now, &Exclusions::default()))[0],
        (0, false),
        "its rest is over"
    );
}

#[tokio::test(start_paused = true)]
async fn a_session_stays_while_its_target_is_well() {
    let now = Instant::now();
    let mut views = [view(0, 0), view(1, 0), view(2, 0)];
    let exclusions = Exclusions { preferred: Some(1), ..Exclusions::default() };
    assert_eq!(order(&plan(&views, now, &exclusions)), [(1, false), (0, false), (2, false)]);
    // Not as a probe: a session is no guinea pig.
    views[1].rest = Some(rest(now, 30, 0));
    assert_eq!(order(&plan(&views, now, &exclusions))[0], (0, false));
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
        (view.rest, view.yields) = (Some(rest(now, 3_600, 3_570)), true);
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
async fn of_two_cooldowns_the_later_counts_and_a_request_to_wait_is_kept() {
    let now = Instant::now();
    let asked = CandidateRest { hinted: true, ..rest(now, 5, 5) };
    let both = rest(now, 60, 30).later(asked);
    assert_eq!(both, asked.later(rest(now, 60, 30)));
    assert_eq!((both.until, both.hinted), (now + Duration::from_secs(60), true));
}

/// Seconds left and until the earliest probe, and whether one is under way.
type Resting = Option<(u64, u64, bool)>;

prop_compose! {
    fn arbitrary_view(spec: u8)(
        rank in 0u8..3,
        lacks in 0u8..8,
        window in prop::option::of(0u64..4),
        rest in prop::option::of((0u64..4, 0u64..4, any::<bool>())),
        yields in any::<bool>(),
    ) -> (CandidateView, Resting) {
        (CandidateView { lacks: Lacks(lacks), window, yields, ..view(spec, rank) }, rest)
    }
}

fn arbitrary_views() -> impl Strategy<Value = Vec<(CandidateView, Resting)>> {
    prop::collection::vec(0u8..3, 1..9).prop_flat_map(|mut specs| {
        specs.sort_unstable();
        specs.into_iter().map(arbitrary_view).collect::<Vec<_>>()
    })
}

proptest! {
    /// Against the rules applied one at a time, each looking at everything.
    #[test]
    fn agrees_with_a_naive_model(
        views in arbitrary_views(),
        excluded in 0u128..512,
        downgrade in 0u128..8,
        floor in prop::option::of((0u64..4, 0u64..4)),
        preferred in prop::option::of(0u8..9),
    ) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().start_paused(true).enable_time().build().unwrap();
        let _guard = runtime.enter();
        let now = Instant::now();
        let views: Vec<CandidateView> = views
            .into_iter()
            .map(|(view, resting)| CandidateView {
                rest: resting.map(|(left, probe, probing)| CandidateRest { probing, ..rest(now, left, probe) }),
                ..view
            })
            .collect();
        let exclusions = Exclusions {
            excluded: CandidateSet(excluded),
            downgrade: CandidateSet(downgrade),
            floor: floor.map(|(above, at_least)| Floor { above, at_least }),
            preferred,
        };
        let plan = plan(&views, now, &exclusions);

        // A requirement holds when somebody meets it; when nobody meets all, size is let go.
        let meets = |view: &CandidateView, bits: &[u8]| bits.iter().all(|bit| view.lacks.0 & bit == 0);
        let mut bits: Vec<u8> =
            [1, 2, 4].into_iter().filter(|bit| views.iter().any(|view| meets(view, &[*bit]))).collect();
        if !views.iter().any(|view| meets(view, &bits)) {
            bits.retain(|bit| *bit != 4);
        }
        let gone = |slot: usize| excluded >> slot & 1 == 1;
        let mut expected: Vec<(u8, bool)> = Vec::new();
        let mut passed = Vec::new();
        for (slot, view) in views.iter().enumerate() {
            let betters = views.iter().enumerate().filter(|(_, b)| b.spec == view.spec && b.rank < view.rank);
            let allowed = downgrade >> view.spec & 1 == 1;
            let way_is_made = betters.into_iter().all(|(b, v)| v.yields || allowed && gone(b));
            if gone(slot) || !way_is_made {
                continue;
            }
            let large = floor.is_none_or(|(above, least)| view.window.is_some_and(|w| w > above && w >= least));
            let left = view.rest.map_or(0, |rest| (rest.until - now).as_secs());
            let probe = view.rest.is_some_and(|rest| !rest.probing && rest.probe_from == now);
            if meets(view, &bits) && large && (left == 0 || probe) {
                expected.push((slot as u8, left > 0));
            } else {
                passed.push(slot as u8);
            }
        }
        if let Some(at) = preferred.and_then(|preferred| expected.iter().position(|pick| *pick == (preferred, false))) {
            let pick = expected.remove(at);
            expected.insert(0, pick);
        }
        prop_assert_eq!(order(&plan), expected);
        prop_assert_eq!(plan.skipped.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), passed);
        for (slot, _) in &plan.order.iter().map(|pick| (pick.slot, ())).collect::<Vec<_>>() {
            prop_assert!(possible(&views, *slot, &exclusions), "what is asked was possible");
        }
    }
}
