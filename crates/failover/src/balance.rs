//! Which of several equal targets is asked first: a pure function of what is known of each.

use std::{
    cmp::Ordering as Order,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

/// How calls are shared between the targets of a chain that are [equal](crate::TargetSpec::equal). Those that
/// cool or mostly fail come after the others, whatever this says, and a session stays where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub enum Balance {
    /// The one with the fewest calls under way for its weight; of several, by chance and weight. It follows
    /// what each can take without a number being set: a slow one has more under way.
    #[default]
    LeastInFlight,
    /// By chance, in the proportion of the weights.
    Weight,
    /// The one that has been the fastest to its first content lately, for its load and weight. What has not
    /// been asked for a while is asked again.
    FirstContent,
}

/// The time after which a measured first content counts for a third: as long as a queue at a provider usually
/// lasts.
const FADES: f64 = 30.0;

/// The share of a new measurement in what is known: the last few count.
const NEW: f64 = 0.3;

/// One of several equal targets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Equal {
    /// Which provider of the chain.
    pub(crate) spec: u8,
    pub(crate) weight: u32,
    pub(crate) in_flight: u32,
    /// How long its first content has taken lately, and how long ago the last one was, in seconds.
    pub(crate) first_content: Option<(f64, f64)>,
}

/// Brings `equals` into the order in which they are asked. `draw` is the chance.
pub(crate) fn order(balance: Balance, equals: &mut [Equal], draw: u64) {
    let key = |one: &Equal| {
        let weight = f64::from(one.weight);
        let load = match balance {
            Balance::Weight => 0.0,
            Balance::LeastInFlight => f64::from(one.in_flight) / weight,
            Balance::FirstContent => {
                let (took, ago) = one.first_content.unwrap_or_default();
                took * (-ago / FADES).exp() * (f64::from(one.in_flight) + 1.0) / weight
            }
        };
        // One of weight 0 comes last, whatever its load.
        (if one.weight == 0 { f64::INFINITY } else { load }, lot(one, draw))
    };
    equals.sort_by(|one, other| {
        let ((load, lot), (other_load, other_lot)) = (key(one), key(other));
        let by_load = load.partial_cmp(&other_load).unwrap_or(Order::Equal);
        by_load.then(lot.partial_cmp(&other_lot).unwrap_or(Order::Equal))
    });
}

/// A lot of chance: the smallest of several is each one's in the proportion of the weights.
fn lot(one: &Equal, draw: u64) -> f64 {
    // Above 0 and up to 1, in steps of 2^-53.
    let chance = ((mix(draw ^ mix(one.spec.into())) >> 11) + 1) as f64 / (1u64 << 53) as f64;
    -chance.ln() / f64::from(one.weight.max(1))
}

/// SplitMix64: every bit of the result depends on every bit of `n`.
const fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// Draws without a lock: the same seed gives the same draws.
#[derive(Debug)]
pub(crate) struct Draws(AtomicU64);

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub(crate) fn next(&self) -> u64 {
        mix(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// What is under way at a provider, and how fast it is.
#[derive(Debug, Default)]
pub(crate) struct Load {
    in_flight: AtomicU32,
    /// The bits of seconds; 0.0: not known.
    first_content: AtomicU64,
    /// Nanoseconds since the registry's epoch.
    measured: AtomicU64,
}

impl Load {
    pub(crate) fn started(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// First content came after `took`, at `now` since the epoch.
    pub(crate) fn measure(&self, took: Duration, now: Duration) {
        let took = took.as_secs_f64();
        let known = match self.first_content(now) {
            // What is long ago says little.
            Some((known, ago)) => {
                let keep = (1.0 - NEW) * (-ago / FADES).exp();
                known * keep + took * (1.0 - keep)
            }
            None => took,
        };
        self.first_content.store(known.to_bits(), Ordering::Relaxed);
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.measured.store(nanos, Ordering::Relaxed);
    }

    /// How long the first content has taken lately, and how long ago that was known, in seconds.
    pub(crate) fn first_content(&self, now: Duration) -> Option<(f64, f64)> {
        let took = f64::from_bits(self.first_content.load(Ordering::Relaxed));
        let measured = Duration::from_nanos(self.measured.load(Ordering::Relaxed));
        (took > 0.0).then(|| (took, now.saturating_sub(measured).as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Weight, calls under way, and the first content.
    type Known = (u32, u32, Option<(f64, f64)>);

    fn equals(list: &[Known]) -> Vec<Equal> {
        let of = |(spec, &(weight, in_flight, first_content))| Equal {
            spec,
            weight,
            in_flight,
            first_content,
        };
        (0..).zip(list).map(of).collect()
    }

    fn first(balance: Balance, list: &[Known], draw: u64) -> u8 {
        let mut equals = equals(list);
        order(balance, &mut equals, draw);
        equals[0].spec
    }

    #[test]
    fn the_idle_one_and_the_faster_one_come_first() {
        use Balance::*;
        let fast = Some((0.2, 1.0));
        let slow = Some((2.0, 1.0));
        for draw in 0..200 {
            for (balance, list, expected) in [
                (LeastInFlight, [(1, 3, None), (1, 0, None), (1, 2, None)], 1),
                (LeastInFlight, [(4, 3, None), (1, 1, None), (1, 2, None)], 0),
                (LeastInFlight, [(0, 0, None), (1, 9, None), (1, 8, None)], 2),
                (FirstContent, [(1, 0, slow), (1, 0, fast), (1, 0, slow)], 1),
                // Busy: ten calls wait there already.
                (FirstContent, [(1, 0, slow), (1, 20, fast), (1, 1, slow)], 0),
                (FirstContent, [(1, 0, fast), (1, 0, None), (1, 0, fast)], 1),
                // Not asked for two minutes: it may be fast again.
                (FirstContent, [(1, 0, Some((2.0, 120.0))), (1, 0, fast), (1, 0, slow)], 0),
                (Weight, [(0, 0, None), (1, 9, slow), (0, 0, fast)], 1),
            ] {
                assert_eq!(first(balance, &list, draw), expected, "{balance:?} {list:?}");
            }
        }
    }

    #[test]
    fn what_is_measured_follows_what_is() {
        let load = Load::default();
        let at = |seconds: u64| Duration::from_secs(seconds);
        assert_eq!(load.first_content(at(0)), None);
        load.measure(at(4), at(1));
        assert_eq!(load.first_content(at(3)), Some((4.0, 2.0)));
        for second in 2..12 {
            load.measure(Duration::from_millis(200), at(second));
        }
        let (took, _) = load.first_content(at(12)).unwrap();
        assert!((0.2..0.4).contains(&took), "{took}");
        load.measure(at(1), at(1_000));
        assert!(load.first_content(at(1_000)).unwrap().0 > 0.95, "what is old does not count");
    }

    proptest! {
        /// Shares are those of the weights, within chance; nobody starves, and the order is the seed's.
        #[test]
        fn shares_are_those_of_the_weights(
            weights in prop::collection::vec(1u32..9, 2..6),
            seed: u64,
            balance in prop::sample::select(vec![Balance::Weight, Balance::LeastInFlight]),
        ) {
            const CALLS: u32 = 4_000;
            let list: Vec<_> = weights.iter().map(|weight| (*weight, 0, None)).collect();
            let run = || {
                let draws = Draws::new(seed);
                (0..CALLS).map(|_| first(balance, &list, draws.next())).collect::<Vec<_>>()
            };
            let asked = run();
            prop_assert_eq!(&asked, &run());
            let all: u32 = weights.iter().sum();
            for (spec, weight) in (0u8..).zip(&weights) {
                let share = f64::from(*weight) / f64::from(all);
                let expected = share * f64::from(CALLS);
                // Six standard deviations.
                let chance = 6.0 * (f64::from(CALLS) * share * (1.0 - share)).sqrt();
                let got = asked.iter().filter(|one| **one == spec).count() as f64;
                prop_assert!((got - expected).abs() <= chance, "{} of {}: {}", spec, expected, got);
            }
        }

        /// Nobody is left out or doubled, whatever is known.
        #[test]
        fn an_order_is_a_permutation(
            list in prop::collection::vec(
                (0u32..9, any::<u32>(), prop::option::of((0.0..1e9, 0.0..1e9))), 1..9,
            ),
            draw: u64,
            balance in prop::sample::select(vec![
                Balance::Weight, Balance::LeastInFlight, Balance::FirstContent,
            ]),
        ) {
            let mut ordered = equals(&list);
            order(balance, &mut ordered, draw);
            let last = ordered.iter().rposition(|one| one.weight > 0);
            let drained = ordered.iter().position(|one| one.weight == 0);
            prop_assert!(drained.is_none_or(|at| last.is_none_or(|last| last < at)));
            ordered.sort_by_key(|one| one.spec);
            prop_assert_eq!(ordered, equals(&list));
        }
    }
}
