//! What a simulation says of a configuration is what the gateway does over sockets in real time.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use steadfast::{ChatRequest, Dialect};
use steadfast_gateway::{
    config::Source,
    simulate::{Contender, Figures, Named, Simulation, SimulationOptions, Targets, World},
};
use steadfast_tests::gateway::{
    http::HttpRequest,
    over_sockets::{file_of, gateway_of, is_answered, listen, openai_server},
};
use tokio::{sync::watch, task::JoinSet, time::sleep};

use crate::stories;

/// Short answers, and targets that fail often enough for fifteen seconds.
const WORLD: &str = r#"
name = "short"
[calls]
streamed = 0.5
output_tokens = 20
[targets."*"]
first_content_ms = 40
tokens_per_s = 400
[targets.1]
first_content_ms = 40
tokens_per_s = 400
errors = 0.25
[targets.2]
first_content_ms = 40
tokens_per_s = 400
errors = 0.15
[[events]]
at = "30%"
for = "4s"
target = 1
what = "errors"
"#;

const LENGTH: Duration = Duration::from_secs(12);
const RATE: f64 = 20.0;

/// What happens so often in one is not missing in the other by chance.
const OFTEN: u64 = 12;

fn in_virtual_time(file: &str) -> Figures {
    let source = Source::text(file);
    let config = source.parse().unwrap();
    let world = World::parse(WORLD, "short").unwrap();
    let options = SimulationOptions { length: LENGTH, rate: RATE, ..SimulationOptions::default() };
    Simulation::new(config, source, world, options).unwrap().run(Contender::Steadfast).unwrap()
}

/// Calls, answers, how often targets were asked, and what the layers did.
async fn over_sockets() -> (u32, u32, u64, BTreeMap<String, u64>) {
    let world = World::parse(WORLD, "short").unwrap();
    let options = SimulationOptions { length: LENGTH, rate: RATE, ..SimulationOptions::default() };
    let chain: Vec<Named> =
        (0..2).map(|at| Named { name: format!("t{at}"), dialect: Dialect::OpenAi }).collect();
    let targets = Targets::new(&world, &chain, &options).await;
    let (stop, _) = watch::channel(());
    let mut addrs = Vec::new();
    for named in &chain {
        let targets = targets.clone();
        let server = openai_server(named.name.clone(), move |request| targets.clone().ask(request));
        addrs.push(listen(server, &stop).await);
    }
    let addr = listen(gateway_of(&file_of(&addrs)), &stop).await;
    let mut rng = Rng::with_seed(5);
    let mut calls = JoinSet::new();
    let began = tokio::time::Instant::now();
    while began.elapsed() < LENGTH {
        let request = ChatRequest::user(rng.u64(..).to_string());
        let request = if rng.bool() { request.streaming() } else { request };
        calls.spawn(async move { is_answered(addr, &request).await });
        sleep(Duration::from_secs_f64(-(1.0 - rng.f64()).ln() / RATE)).await;
    }
    let answers = calls.join_all().await;
    let answered = answers.iter().filter(|answered| **answered).count();
    let asked = targets.tallies().iter().map(|tally| tally.asked).sum();
    let metrics = HttpRequest::get("/metrics").send(addr).await;
    (answers.len() as u32, answered as u32, asked, stories::counted(metrics.text()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_simulation_agrees_with_sockets_in_real_time() {
    let addrs = ["127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()];
    let simulated = in_virtual_time(&file_of(&addrs));
    let (calls, answered, attempts, steps) = over_sockets().await;

    // What is done often in one is done in the other.
    let step =
        |((layer, action), times): (&(&str, &str), &u64)| (format!("{layer}.{action}"), *times);
    let expected: BTreeMap<String, u64> = simulated.steps.iter().map(step).collect();
    for (one, other) in [(&steps, &expected), (&expected, &steps)] {
        for (step, times) in one {
            assert!(*times < OFTEN || other.contains_key(step), "{step}: {one:?}, {other:?}");
        }
    }
    assert!(expected["retry.retried"] >= OFTEN && expected["failover.switched"] >= OFTEN);

    let share = f64::from(answered) / f64::from(calls);
    let expected = simulated.answered_share();
    // Four standard errors of either, and one call.
    let error = |share: f64, of: f64| (share * (1.0 - share) / of).sqrt();
    let bound = 4.0 * (error(share, f64::from(calls)) + error(expected, simulated.asked as f64))
        + 1.0 / f64::from(calls);
    assert!((share - expected).abs() <= bound, "{share} of {calls}, simulated {expected}");

    // An attempt fails with some chance, and is then followed by another: a geometric number, whose deviation is below 1.
    let a_call = attempts as f64 / f64::from(calls);
    let expected = simulated.attempts_a_call();
    let bound = 4.0 * (1.0 / f64::from(calls).sqrt() + 1.0 / (simulated.asked as f64).sqrt()) * 0.7;
    assert!((a_call - expected).abs() <= bound, "{a_call} attempts, simulated {expected}");
    assert!(expected > 1.05, "it has failures: {expected}");
}
