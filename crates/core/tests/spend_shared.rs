//! Caps that several processes share hold for all of them together, whatever happens to them and to the store.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use steadfast_core::{
    CapSharing, Spend, SpendAccount, SpendCaps, SpendLedger, SpendRefusal, SpendReservation,
    shared::{EmbeddedNode, EmbeddedStore, SharedState},
};
use tokio::time::{Instant, sleep};

const CAP: u64 = 2_000;
const MOST: u64 = 100;
const NODES: usize = 4;
const HOUR: Duration = Duration::from_secs(3_600);

/// Longer than calls take by default.
const LONGEST_CALL: Duration = Duration::from_secs(900);

fn acme() -> SpendAccount {
    SpendAccount::Tenant("acme".into())
}

fn caps() -> SpendCaps {
    SpendCaps::of_tokens(CAP, 0)
}

fn tokens(tokens: u64) -> Spend {
    Spend::new(tokens, 0)
}

struct Node {
    shared: EmbeddedNode,
    ledger: SpendLedger,
    calls: Vec<Call>,
}

struct Call {
    held: SpendReservation,
    actual: u64,
    began: Instant,
}

impl Node {
    fn start(store: &EmbeddedStore, name: &str, sharing: CapSharing) -> Self {
        let shared = store.join(name);
        let ledger = SpendLedger::default();
        assert!(ledger.share(Arc::new(shared.clone()), sharing));
        Self { shared, ledger, calls: Vec::new() }
    }

    /// As the layer does.
    async fn reserve(&self, most: u64) -> Result<SpendReservation, SpendRefusal> {
        let reserve = || self.ledger.reserve(&acme(), &caps(), tokens(most), Instant::now());
        let mut reserved = reserve();
        for _ in 0..3 {
            let Err(refusal) = &reserved else { break };
            if !refusal.unasked {
                break;
            }
            self.ledger.lease([(acme(), caps())], tokens(most)).await;
            reserved = reserve();
        }
        reserved
    }

    fn held(&self) -> u64 {
        self.calls.iter().map(|call| call.held.held().tokens).sum()
    }
}

/// What really was spent, by all.
#[derive(Default)]
struct Truth(Vec<(Instant, u64)>);

impl Truth {
    fn spent(&self) -> u64 {
        let now = Instant::now();
        let inside = self.0.iter().filter(|(at, _)| now.duration_since(*at) < HOUR);
        inside.map(|(_, spent)| spent).sum()
    }

    fn add(&mut self, spent: u64) {
        self.0.push((Instant::now(), spent));
    }

    fn end(&mut self, Call { held, actual, .. }: Call) {
        held.charge(tokens(actual), Instant::now());
        self.add(actual);
    }
}

/// A few; `STEADFAST_SEEDS` says how many.
fn seeds() -> std::ops::Range<u64> {
    let asked = std::env::var("STEADFAST_SEEDS").ok();
    0..asked.map_or(12, |seeds| seeds.parse().unwrap())
}

/// Nodes that come and go, are cut off, and whose store is; the most by which the cap was exceeded.
async fn run(seed: u64, sharing: CapSharing, cuts: bool) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let store = EmbeddedStore::new();
    let mut started = NODES;
    let mut nodes: Vec<Node> =
        (0..NODES).map(|at| Node::start(&store, &format!("n{at}"), sharing)).collect();
    let (mut truth, mut exceeded) = (Truth::default(), 0);
    for _ in 0..160 {
        let at = rng.usize(..NODES);
        match rng.u32(..100) {
            0..50 => {
                let most = rng.u64(1..=MOST);
                if let Ok(held) = nodes[at].reserve(most).await {
                    let (actual, began) = (rng.u64(0..=most), Instant::now());
                    nodes[at].calls.push(Call { held, actual, began });
                }
            }
            50..80 => {
                if let Some(call) = nodes[at].calls.pop() {
                    truth.end(call);
                }
            }
            // Killed, with what it had under way: its provider may have done all of that.
            80..84 if cuts || !nodes[at].shared.is_away() => {
                truth.add(nodes[at].held());
                started += 1;
                nodes[at] = Node::start(&store, &format!("n{started}"), sharing);
            }
            84..90 if cuts => nodes[at].shared.set_away(true),
            90..96 if cuts => nodes[at].shared.set_away(false),
            80..99 => store.set_away(rng.bool()),
            _ => {
                let mut left = Duration::from_secs(rng.u64(..4_000));
                while !left.is_zero() {
                    let part = left.min(LONGEST_CALL / 3);
                    sleep(part).await;
                    left -= part;
                    for node in &mut nodes {
                        let is_over = |call: &mut Call| call.began.elapsed() >= LONGEST_CALL;
                        node.calls.extract_if(.., is_over).for_each(|call| truth.end(call));
                    }
                }
            }
        }
        sleep(Duration::from_millis(rng.u64(..700))).await;
        let held: u64 = nodes.iter().map(Node::held).sum();
        exceeded = exceeded.max((truth.spent() + held).saturating_sub(CAP));
    }
    exceeded
}

#[tokio::test(start_paused = true)]
async fn a_strict_cap_is_never_exceeded() {
    for seed in seeds() {
        assert_eq!(run(seed, CapSharing::Strict, seed % 2 == 0).await, 0, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cap_that_is_shared_is_exceeded_by_less_than_a_lease_of_each() {
    let mut most = 0;
    for seed in seeds() {
        let exceeded = run(seed, CapSharing::Share, false).await;
        // A lease is what a node takes in about a second: two calls here.
        assert!(exceeded < NODES as u64 * 2 * MOST, "seed {seed}: {exceeded}");
        most = most.max(exceeded);
    }
    println!("exceeded by {most} of {CAP} at most");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_cut_off_alone_has_its_part() {
    for seed in seeds() {
        let exceeded = run(seed, CapSharing::Share, true).await;
        assert!(exceeded < CAP, "seed {seed}: {exceeded}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_faults_the_cap_can_be_used_up() {
    for sharing in [CapSharing::Strict, CapSharing::Share] {
        let store = EmbeddedStore::new();
        let nodes: Vec<Node> =
            (0..NODES).map(|at| Node::start(&store, &format!("n{at}"), sharing)).collect();
        let mut spent = 0;
        for number in 0..80 {
            if let Ok(held) = nodes[number % NODES].reserve(MOST).await {
                held.charge(tokens(MOST), Instant::now());
                spent += MOST;
            }
            sleep(Duration::from_millis(300)).await;
        }
        assert!(spent >= CAP * 95 / 100, "{sharing:?}: {spent}");
        assert!(spent <= CAP + MOST, "{sharing:?}: {spent}");
        let refusal = nodes[0].reserve(MOST).await.unwrap_err();
        assert!(refusal.used + MOST > CAP, "{refusal}");
        let frees = refusal.frees_in.unwrap();
        assert!(frees <= HOUR + Duration::from_secs(60), "{refusal}");
        // It is there again with the window.
        sleep(HOUR + Duration::from_secs(61)).await;
        assert!(nodes[1].reserve(MOST).await.is_ok(), "{sharing:?}");
    }
}
