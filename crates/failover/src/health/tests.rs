use proptest::prelude::*;

use super::*;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn blame(cooldown: u64) -> Blame {
    Blame {
        reason: Reason::ServerError,
        cooldown: secs(cooldown),
        asked: false,
        permanent: false,
        downgrade: false,
    }
}

/// A machine with a clock and generations that count up by themselves.
struct Rig {
    health: Health,
    policy: FailoverPolicy,
    now: Instant,
    generation: u64,
}

impl Rig {
    fn new() -> Self {
        Self {
            health: Health::default(),
            policy: FailoverPolicy::default(),
            now: Instant::now(),
            generation: 0,
        }
    }

    fn next(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    fn fail(&mut self, blame: Blame) -> Failed {
        self.fail_from(self.generation, blame)
    }

    fn fail_from(&mut self, admitted: u64, blame: Blame) -> Failed {
        let next = self.next();
        self.health.fail(self.now, admitted, next, blame, "", &self.policy)
    }

    fn succeed_from(&mut self, admitted: u64) -> bool {
        let next = self.next();
        self.health.succeed(self.now, admitted, next)
    }

    fn claim(&mut self, mark: u64) -> bool {
        let next = self.next();
        self.health.claim(self.now, mark, next, secs(180))
    }

    fn left(&self) -> Option<u64> {
        self.health.cooling(self.now).map(|cooldown| (cooldown.until - self.now).as_secs())
    }

    fn status(&self) -> Status {
        self.health.status(&self.policy)
    }
}

#[tokio::test(start_paused = true)]
async fn degraded_then_down_then_healthy() {
    let mut rig = Rig::new();
    let mut seen = vec![rig.status()];
    for _ in 0..3 {
        rig.fail(blame(60));
        seen.push(rig.status());
    }
    let admitted = rig.generation;
    assert!(rig.succeed_from(admitted));
    seen.push(rig.status());
    use Status::{Degraded, Down, Healthy};
    assert_eq!(seen, [Healthy, Degraded, Degraded, Down, Healthy]);
    assert_eq!(rig.health.errors, 3, "what happened is not forgotten");
}

#[tokio::test(start_paused = true)]
async fn the_longer_cooldown_wins_in_either_order() {
    for waits in [[300, 5], [5, 300]] {
        let mut rig = Rig::new();
        for wait in waits {
            rig.fail(blame(wait));
        }
        assert_eq!(rig.left(), Some(300), "{waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn permanent_doubles_to_a_day_and_starts_over_after_a_success() {
    let mut rig = Rig::new();
    let permanent = Blame { permanent: true, ..blame(600) };
    let mut hours = Vec::new();
    for _ in 0..7 {
        rig.fail(permanent);
        assert_eq!(rig.status(), Status::Down, "at once");
        let left = rig.left().unwrap();
        hours.push(left / 3_600);
        rig.now += secs(left);
    }
    assert_eq!(hours, [1, 2, 4, 8, 16, 24, 24]);
    let admitted = rig.generation;
    rig.succeed_from(admitted);
    rig.fail(permanent);
    assert_eq!(rig.left(), Some(3_600));
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_was_under_way_together_doubles_once() {
    let mut rig = Rig::new();
    for _ in 0..50 {
        rig.fail_from(0, Blame { permanent: true, ..blame(600) });
    }
    assert_eq!(rig.left(), Some(3_600));
    assert_eq!(rig.health.errors, 50);
}

#[tokio::test(start_paused = true)]
async fn stragglers_decide_nothing() {
    let mut rig = Rig::new();
    rig.fail(blame(60));
    // A success that was under way before the failure does not end the cooldown.
    assert!(!rig.succeed_from(0));
    assert_eq!(rig.left(), Some(60));
    // One from after it does, and then a failure from before it cools nothing.
    let after = rig.generation;
    assert!(rig.succeed_from(after));
    assert_eq!(rig.fail_from(0, blame(60)), Failed::Counted);
    assert_eq!((rig.left(), rig.status()), (None, Status::Healthy));
    assert_eq!(rig.health.errors, 2, "it is counted all the same");
}

#[tokio::test(start_paused = true)]
async fn a_stragglers_longer_hint_counts_while_it_cools() {
    let mut rig = Rig::new();
    rig.fail(blame(60));
    let asked = Blame { asked: true, ..blame(300) };
    assert_eq!(rig.fail_from(0, asked), Failed::Extended);
    assert_eq!(rig.left(), Some(300));
}

#[tokio::test(start_paused = true)]
async fn probes_come_late_alone_and_not_while_asked_to_wait() {
    for (wait, early) in [(600, 30), (120, 30), (60, 30), (30, 15), (10, 5)] {
        let mut rig = Rig::new();
        rig.fail(blame(wait));
        rig.now += secs(wait - early) - Duration::from_millis(1);
        assert!(!rig.claim(1), "{wait}: too early");
        rig.now += Duration::from_millis(1);
        assert!(rig.claim(2), "{wait}");
        assert!(!rig.claim(3), "{wait}: one is enough");
        rig.health.release(3);
        assert!(!rig.claim(4), "{wait}: somebody else's release frees nothing");
        rig.health.release(2);
        assert!(rig.claim(5), "{wait}: free again");
    }
    let mut rig = Rig::new();
    rig.fail(Blame { asked: true, ..blame(60) });
    rig.now += Duration::from_millis(59_999);
    assert!(!rig.claim(1), "the provider asked for a minute");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_never_heard_of_is_replaced_and_decides_nothing() {
    let mut rig = Rig::new();
    rig.policy.probe_window = secs(600);
    rig.fail(blame(1_200));
    rig.now += secs(600);
    assert!(rig.claim(1));
    let first = rig.generation;
    rig.now += secs(179);
    assert!(!rig.claim(2));
    rig.now += secs(1);
    assert!(rig.claim(3), "taken over");
    let second = rig.generation;
    assert!(!rig.succeed_from(first), "too late");
    assert!(rig.left().is_some());
    rig.health.release(1);
    assert!(rig.health.probing(rig.now), "the second one's place is its own");
    assert!(rig.succeed_from(second));
}

#[tokio::test(start_paused = true)]
async fn a_failed_probe_cools_again_and_frees_its_place() {
    let mut rig = Rig::new();
    rig.fail(blame(60));
    rig.now += secs(40);
    assert!(rig.claim(1));
    assert_eq!(rig.fail(blame(60)), Failed::Cooled { wait: secs(60), fresh: false });
    assert!(!rig.health.probing(rig.now));
    assert_eq!(rig.left(), Some(60));
}

#[tokio::test(start_paused = true)]
async fn force_and_reset_make_what_is_under_way_irrelevant() {
    let mut rig = Rig::new();
    let next = rig.next();
    rig.health.force(rig.now, secs(60), next);
    assert!(!rig.succeed_from(0));
    assert_eq!(rig.left(), Some(60));
    let next = rig.next();
    rig.health.reset(next);
    assert_eq!((rig.left(), rig.status(), rig.health.errors), (None, Status::Healthy, 0));
    assert_eq!(rig.fail_from(0, blame(60)), Failed::Counted);
}

#[derive(Clone, Debug)]
enum Op {
    Pass(u64),
    /// Cooldown; how many generations ago the call was admitted; asked for; permanent.
    Fail(u64, u64, bool, bool),
    Succeed(u64),
    Claim,
    Release(usize),
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (1u64..200).prop_map(Op::Pass),
        (0u64..120, 0u64..4, any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(wait, ago, asked, permanent)| Op::Fail(wait, ago, asked, permanent)),
        (0u64..4).prop_map(Op::Succeed),
        Just(Op::Claim),
        (0usize..3).prop_map(Op::Release),
        Just(Op::Reset),
    ]
}

/// The same rules over a list of everything that ever happened, looked through each time.
#[derive(Default)]
struct Naive {
    now: u64,
    generation: u64,
    /// When the rules of the game last changed.
    turned: u64,
    /// Ends of cooldowns with their earliest probe, since the last recovery.
    ends: Vec<(u64, u64)>,
    in_a_row: u32,
    permanent: u32,
    probe: Option<(u64, u64)>,
}

impl Naive {
    fn until(&self) -> Option<(u64, u64)> {
        // Of those that end last, the first.
        let latest = self.ends.iter().map(|(until, _)| *until).max()?;
        self.ends.iter().find(|(until, _)| *until == latest && latest > self.now).copied()
    }

    fn fail(&mut self, wait: u64, admitted: u64, asked: bool, permanent: bool) {
        let (late, cooling) = (admitted < self.turned, self.until().is_some());
        if late && !cooling {
            return;
        }
        self.in_a_row += 1;
        let mut wait = wait * 1_000;
        if permanent {
            if !late || self.permanent == 0 {
                self.permanent += 1;
            }
            let hours = [1, 2, 4, 8, 16].get(self.permanent as usize - 1).copied().unwrap_or(24);
            wait = wait.max(hours * 3_600_000);
        }
        if wait == 0 {
            return;
        }
        let early = if asked { 0 } else { 30_000.min(wait / 2) };
        self.ends.push((self.now + wait, self.now + wait - early));
        if !late {
            self.turned = self.generation;
            self.probe = None;
        }
    }

    fn succeed(&mut self, admitted: u64) {
        if admitted < self.turned {
            return;
        }
        if !self.ends.is_empty() {
            self.turned = self.generation;
            self.probe = None;
        }
        self.ends.clear();
        (self.in_a_row, self.permanent) = (0, 0);
    }

    fn claim(&mut self, mark: u64) -> bool {
        let Some((_, from)) = self.until() else { return true };
        let busy = self.probe.is_some_and(|(_, until)| until > self.now);
        if from > self.now || busy {
            return false;
        }
        if self.probe.is_some() {
            self.turned = self.generation;
        }
        self.probe = Some((mark, self.now + 180_000));
        true
    }
}

proptest! {
    #[test]
    fn agrees_with_a_naive_model(ops in prop::collection::vec(op(), 0..60)) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().start_paused(true).enable_time().build().unwrap();
        let _guard = runtime.enter();
        let mut rig = Rig::new();
        let start = rig.now;
        let mut naive = Naive::default();
        let mut marks = Vec::new();
        for op in ops {
            let before = rig.health.cooling(rig.now).map(|cooldown| cooldown.until);
            let mut may_shorten = false;
            match op {
                Op::Pass(tenths) => {
                    rig.now += Duration::from_millis(tenths * 100);
                    naive.now += tenths * 100;
                }
                Op::Fail(wait, ago, asked, permanent) => {
                    let admitted = rig.generation.saturating_sub(ago);
                    rig.fail_from(admitted, Blame { asked, permanent, ..blame(wait) });
                    naive.generation += 1;
                    naive.fail(wait, admitted, asked, permanent);
                }
                Op::Succeed(ago) => {
                    may_shorten = true;
                    let admitted = rig.generation.saturating_sub(ago);
                    rig.succeed_from(admitted);
                    naive.generation += 1;
                    naive.succeed(admitted);
                }
                Op::Claim => {
                    let mark = marks.len() as u64 + 1;
                    marks.push(mark);
                    let taken = rig.claim(mark);
                    naive.generation += 1;
                    prop_assert_eq!(taken, naive.claim(mark));
                }
                Op::Release(ago) => {
                    if let Some(mark) = marks.iter().rev().nth(ago) {
                        rig.health.release(*mark);
                        naive.probe = naive.probe.filter(|(own, _)| own != mark);
                    }
                }
                Op::Reset => {
                    may_shorten = true;
                    let next = rig.next();
                    rig.health.reset(next);
                    let (now, generation) = (naive.now, naive.generation + 1);
                    naive = Naive { now, generation, turned: generation, ..Naive::default() };
                }
            }
            let after = rig.health.cooling(rig.now);
            let millis = after.map(|cooldown| {
                let at = |instant: Instant| (instant - start).as_millis() as u64;
                (at(cooldown.until), at(cooldown.probe_from))
            });
            prop_assert_eq!(millis, naive.until());
            prop_assert_eq!(rig.health.consecutive, naive.in_a_row);
            let probing = naive.probe.is_some_and(|(_, until)| until > naive.now);
            prop_assert_eq!(rig.health.probing(rig.now), probing);
            if let (Some(before), false) = (before.filter(|until| *until > rig.now), may_shorten) {
                prop_assert!(after.is_some_and(|after| after.until >= before), "shortened");
            }
        }
    }
}
