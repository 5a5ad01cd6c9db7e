//! The same law with the gateway over sockets, in real time: the targets are HTTP servers, and the gateway has
//! nothing in its file but their addresses. What a target alone comes to is taken from virtual time.

use std::{sync::Arc, time::Duration};

use steadfast_tests::{
    gateway::over_sockets::{file_of, gateway_of, is_answered, listen, openai_server},
    seeds::number,
};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};

use crate::{
    Compared,
    callers::{Tally, make_calls},
    provider::Targets,
    report,
    world::World,
};

/// Worlds that run at once.
const AT_ONCE: usize = 50;

/// How long callers begin calls, in a plain run and in a long one.
const SHORT: Duration = Duration::from_secs(8);
const LONG: Duration = Duration::from_secs(58);

/// Worlds of a plain run.
const WORLDS: u64 = 4;

async fn through_gateway(world: &World) -> Tally {
    let targets = Targets::new(world);
    let (stop, _) = watch::channel(());
    let mut addrs = Vec::new();
    for at in 0..world.targets.len() {
        let targets = targets.clone();
        let server = openai_server(format!("t{at}"), move |request| targets.clone().ask(request));
        addrs.push(listen(server, &stop).await);
    }
    let addr = listen(gateway_of(&file_of(&addrs)), &stop).await;
    let ask = move |request, _| async move { is_answered(addr, &request).await };
    let tally = make_calls(world, ask).await;
    Tally { attempts: targets.asked(), ..tally }
}

#[test]
fn the_default_gateway_over_sockets_against_its_best_target() {
    let long = number("STEADFAST_SOCKET_WORLDS");
    let (worlds, end) = long.map_or((WORLDS, SHORT), |worlds| (worlds, LONG));
    let at_once = number("STEADFAST_AT_ONCE").map_or(AT_ONCE, |number| number as usize);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let ran = runtime.block_on(async {
        let (room, mut running) = (Arc::new(Semaphore::new(at_once)), JoinSet::new());
        for seed in 1..=worlds {
            let room = room.clone();
            running.spawn(async move {
                let _room = room.acquire().await.unwrap();
                let world = World::new(seed).shortened(end);
                (through_gateway(&world).await, world)
            });
        }
        running.join_all().await
    });
    let compared: Vec<_> =
        ran.into_iter().map(|(tally, world)| Compared::with(tally, world)).collect();
    match long {
        Some(_) => report(&compared),
        // Too few calls for a mean.
        None => {
            for one in &compared {
                println!("{}", one.report());
                assert!(!one.failed(), "{:.1} standard errors below", one.below());
            }
        }
    }
}
