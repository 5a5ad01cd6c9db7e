//! The same property of fleets: 2 to 64 stacks that share what they know, each call by any of them, over a store that goes
//! away, loses what it has, and is cut off from some of them.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use steadfast::shared::{EmbeddedNode, EmbeddedStore};
use steadfast_tests::seeds::{self, number};
use tokio::time::sleep;

use crate::{Compared, callers::through_stacks, report, world::World};

/// Worlds of a default run.
const WORLDS: u64 = 8;

#[test]
fn fleets_against_their_best_target() {
    let one = number("STEADFAST_FLEET_WORLD");
    let worlds = number("STEADFAST_FLEET_WORLDS").unwrap_or(WORLDS);
    let compared = match one {
        Some(seed) => vec![of(seed)],
        None => seeds::run_all(worlds, of),
    };
    if one.is_some() {
        println!("{}", compared[0].report());
        return;
    }
    report(&compared);
}

fn of(seed: u64) -> Compared {
    let world = World::new(seed);
    // Of its own chance: the worlds are those of one stack.
    let mut rng = Rng::with_seed(seed ^ 0xf1ee7);
    let size = [2, 4, 16, 64][rng.usize(..4)];
    let stacks = through_stacks(&world, size, |handles| {
        let store = EmbeddedStore::new();
        let mut nodes = Vec::new();
        for (at, handles) in handles.iter().enumerate() {
            let node = store.join(&format!("node {at}"));
            handles.share(Arc::new(node.clone()));
            nodes.push(node);
        }
        tokio::spawn(disturb(store, nodes, rng));
    });
    Compared::with(stacks, world)
}

/// Now and then the store goes away, loses everything, or is cut off from half of the nodes.
async fn disturb(store: EmbeddedStore, nodes: Vec<EmbeddedNode>, mut rng: Rng) {
    loop {
        sleep(Duration::from_secs_f64(5.0 + 40.0 * rng.f64())).await;
        let lasts = Duration::from_secs_f64(20.0 * rng.f64());
        match rng.u8(..3) {
            0 => {
                store.set_away(true);
                sleep(lasts).await;
                store.set_away(false);
            }
            1 => store.lose(),
            _ => {
                let cut: Vec<_> = nodes.iter().filter(|_| rng.bool()).collect();
                cut.iter().for_each(|node| node.set_away(true));
                sleep(lasts).await;
                cut.iter().for_each(|node| node.set_away(false));
            }
        }
    }
}
