//! What one seed stands for.

use std::time::Duration;

use fastrand::Rng;

use crate::quota::StatedQuota;

/// How long callers begin calls in virtual time.
const END: Duration = Duration::from_secs(240);

/// Some targets, and those who ask them.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) seed: u64,
    /// How long callers begin calls.
    pub(crate) end: Duration,
    pub(crate) targets: Vec<Nature>,
    pub(crate) callers: Callers,
    /// From the request to the first content.
    pub(crate) first_content: Duration,
    /// From there to the end.
    pub(crate) length: Duration,
    pub(crate) streamed: bool,
    pub(crate) identity: Identity,
    /// What calls may write at most, in tokens, where they say so.
    pub(crate) max_output: Option<u64>,
}

/// As whom callers are known.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Identity {
    /// All ask the same.
    OnePrompt,
    /// So many sessions.
    Sessions(u32),
    /// Each asks something else.
    Unknown,
}

/// How calls arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Callers {
    /// So many a second, whatever becomes of them.
    Open(f64),
    /// So many at a time, each begins its next call when the last one has ended.
    Closed(usize),
}

/// What a target does wrong.
#[derive(Clone, Debug)]
pub(crate) struct Nature {
    pub(crate) fault: FaultPattern,
    /// How long until a failure is known.
    pub(crate) fails_after: Duration,
    /// The share of streams that break half way.
    pub(crate) broken: f64,
    /// What it limits and states in its headers.
    pub(crate) quota: Option<StatedQuota>,
}

#[derive(Clone, Debug)]
pub(crate) enum FaultPattern {
    /// Each call for itself.
    Chance(f64),
    /// Everything in these times.
    Windows(Vec<(Duration, Duration)>),
    /// A share that falls from everything to nothing between these times.
    Slope(Duration, Duration),
    /// More than so many calls a second are refused, with this hint.
    Rate(f64, Duration),
    /// More than so many calls at once are refused, with this hint.
    Concurrency(usize, Duration),
}

fn one_of<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.usize(..choices.len())]
}

fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn between(rng: &mut Rng, from: f64, to: f64) -> f64 {
    from + (to - from) * rng.f64()
}

fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -mean * (1.0 - rng.f64()).ln()
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let targets = one_of(&mut rng, &[1, 2, 2, 3, 3, 4]);
        // One outage for all that have one, now and then.
        let shared = rng.f64() < 0.2;
        let window = outage(&mut rng);
        let targets = (0..targets)
            .map(|_| {
                let mut nature = Nature::new(&mut rng);
                if let (FaultPattern::Windows(windows), true) = (&mut nature.fault, shared) {
                    *windows = vec![window];
                }
                nature
            })
            .collect();
        let callers = match rng.f64() < 0.3 {
            true => Callers::Closed(one_of(&mut rng, &[2, 8, 32])),
            false => Callers::Open(one_of(&mut rng, &[1.0, 5.0, 10.0, 20.0])),
        };
        let mut targets: Vec<Nature> = targets;
        // Of their own chance: the worlds are otherwise what they were.
        let mut own = Rng::with_seed(seed ^ 0x0a07a);
        let limited = own.u8(..3) == 0;
        for nature in targets.iter_mut().filter(|_| limited) {
            nature.quota = (own.u8(..3) > 0).then(|| StatedQuota::new(&mut own));
        }
        Self {
            seed,
            end: END,
            targets,
            callers,
            max_output: own.bool().then_some(32_000),
            first_content: secs(one_of(&mut rng, &[0.05, 0.5, 2.0])),
            length: secs(one_of(&mut rng, &[0.1, 1.0, 5.0, 20.0, 60.0])),
            streamed: rng.f64() < 0.6,
            identity: match rng.u8(..3) {
                0 => Identity::OnePrompt,
                1 => Identity::Sessions(one_of(&mut rng, &[1, 4, 32])),
                _ => Identity::Unknown,
            },
        }
    }
}

/// What a world over sockets has at most: a few hundred calls a second make a machine with few cores the
/// thing that is measured.
#[cfg(feature = "gateway")]
mod sockets {
    use std::time::Duration;

    use super::{Callers, END, FaultPattern, World};

    const FIRST_CONTENT: Duration = Duration::from_millis(500);
    const LENGTH: Duration = Duration::from_millis(1_500);
    const RATE: f64 = 10.0;
    const CALLERS: usize = 8;

    impl World {
        /// The same in real time, which ends after `end`: everything that has a time in it is as much shorter.
        pub(crate) fn shortened(mut self, end: Duration) -> Self {
            let share = end.as_secs_f64() / END.as_secs_f64();
            let shorter = |time: &mut Duration| *time = time.mul_f64(share);
            self.end = end;
            self.first_content = self.first_content.min(FIRST_CONTENT);
            self.length = self.length.min(LENGTH);
            self.callers = match self.callers {
                Callers::Open(rate) => Callers::Open(rate.min(RATE)),
                Callers::Closed(callers) => Callers::Closed(callers.min(CALLERS)),
            };
            for nature in &mut self.targets {
                // A quarter of a minute shows nothing of a limit a minute.
                nature.quota = None;
                shorter(&mut nature.fails_after);
                match &mut nature.fault {
                    FaultPattern::Windows(windows) => {
                        for (from, until) in windows {
                            shorter(from);
                            shorter(until);
                        }
                    }
                    FaultPattern::Slope(from, until) => {
                        shorter(from);
                        shorter(until);
                    }
                    _ => {}
                }
            }
            self
        }
    }
}

fn outage(rng: &mut Rng) -> (Duration, Duration) {
    let half = END.as_secs_f64() / 2.0;
    let from = between(rng, 0.0, half);
    (secs(from), secs(from + between(rng, 10.0, half)))
}

impl Nature {
    fn new(rng: &mut Rng) -> Self {
        // The long ones lie.
        let hint = secs(one_of(rng, &[0.0, 1.0, 1.0, 5.0, 20.0, 3_600.0]));
        let fault = match rng.u8(..7) {
            0 | 1 => {
                let shares = [0.0, 0.0, 0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0];
                FaultPattern::Chance(one_of(rng, &shares))
            }
            2 => FaultPattern::Windows(bursts(rng)),
            3 => FaultPattern::Windows(vec![outage(rng)]),
            4 => {
                let (from, until) = outage(rng);
                FaultPattern::Slope(from, until)
            }
            5 => FaultPattern::Rate(one_of(rng, &[2.0, 5.0, 10.0, 20.0]), hint),
            _ => FaultPattern::Concurrency(one_of(rng, &[5, 20, 50]), hint),
        };
        Self {
            fault,
            fails_after: secs(one_of(rng, &[0.005, 0.05, 0.5, 2.0, 10.0])),
            broken: one_of(rng, &[0.0, 0.0, 0.0, 0.02, 0.1]),
            quota: None,
        }
    }
}

/// Times of failing that come again and again.
fn bursts(rng: &mut Rng) -> Vec<(Duration, Duration)> {
    let (well, ill) = (between(rng, 5.0, 120.0), between(rng, 1.0, 60.0));
    let (mut at, mut windows) = (0.0, Vec::new());
    while at < END.as_secs_f64() {
        let from = at + exponential(rng, well);
        at = from + exponential(rng, ill);
        windows.push((secs(from), secs(at)));
    }
    windows
}
