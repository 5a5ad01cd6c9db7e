//! Many commands, after which there is no descriptor, process or thread more than before. The only test of its
//! process: it counts what the process has.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{fs, time::Duration};

use steadfast_tool::{CommandEnd, Script};
use support::*;
use tokio::{task::JoinSet, time::Instant};

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// How long a tree may be there after its time, at most.
const IN_TIME: Duration = Duration::from_secs(3);

/// One that does not want to end, and is gone in time after its own; and then one of another kind. How long it was there after its time.
async fn one(at: usize) -> Duration {
    let (token, runner) = (token(), runner(|policy| policy.grace = Duration::from_millis(50)));
    let (what, text, _) = STUBBORN[at % STUBBORN.len()];
    let script = Script::new(text.replace('@', &token));
    let (limit, began) = (Duration::from_millis(300), Instant::now());
    let done = runner.run(script.clone().within(limit)).await.unwrap();
    assert_eq!((done.end, done.survivors), (CommandEnd::TimedOut, 0), "{what}");
    assert_eq!(alive(&token), [] as [i32; 0], "{what}");
    let late = began.elapsed().saturating_sub(limit);
    assert!(late < IN_TIME, "{what}: {late:?}");
    match at % 8 {
        0 => {
            let done = runner.run(Script::new("echo hello | cat")).await.unwrap();
            assert_eq!(done.output, "hello\n");
        }
        1 => {
            let left =
                Script::new(format!("setsid sleep {token} >/dev/null 2>&1 & sleep {token} &"));
            assert_eq!(runner.run(left).await.unwrap().end, CommandEnd::Exited(0));
        }
        2..5 => {
            let call = tokio::time::timeout(limit, runner.run(script)).await;
            assert!(call.is_err(), "dropped");
        }
        _ => {}
    }
    assert!(becomes(IN_TIME, || alive(&token).is_empty()).await, "{at}");
    late
}

/// How many commands: `STEADFAST_COMMANDS`, such as 1000, which takes a minute and a half.
fn commands() -> usize {
    std::env::var("STEADFAST_COMMANDS").map_or(48, |commands| commands.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_commands_leave_nothing() {
    one(0).await;
    let before = (descriptors(), threads());
    let (mut running, mut latest) = (JoinSet::new(), Duration::ZERO);
    for at in 0..commands() {
        while running.len() >= 8 {
            latest = latest.max(running.join_next().await.unwrap().unwrap());
        }
        running.spawn(one(at));
    }
    while let Some(done) = running.join_next().await {
        latest = latest.max(done.unwrap());
    }
    println!("{} trees, each gone at most {latest:?} after its time", commands());
    // A dropped command's shell is reaped a moment after it has ended.
    let same = || (descriptors(), threads()) == before && children().is_empty();
    let now = || (descriptors(), threads(), children());
    assert!(becomes(Duration::from_secs(5), same).await, "{before:?}, and then {:?}", now());
}
