//! Many commands, after which there is no descriptor, process or thread more than before. The only test of its
//! process: it counts what the process has.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{fs, time::Duration};

use steadfast_tool::{CommandEnd, Script};
use support::*;
use tokio::task::JoinSet;

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// One command of each kind, in turn.
async fn one(at: usize) {
    let (token, runner) = (token(), runner(|policy| policy.grace = Duration::from_millis(50)));
    let (_, text, _) = STUBBORN[at % STUBBORN.len()];
    let script = Script::new(text.replace('@', &token));
    match at % 4 {
        0 => {
            let done = runner.run(Script::new("echo hello | cat")).await.unwrap();
            assert_eq!(done.output, "hello\n");
        }
        1 => {
            let left =
                Script::new(format!("setsid sleep {token} >/dev/null 2>&1 & sleep {token} &"));
            assert_eq!(runner.run(left).await.unwrap().end, CommandEnd::Exited(0));
        }
        2 => {
            let done = runner.run(script.within(Duration::from_millis(300))).await.unwrap();
            assert_eq!((done.end, done.survivors), (CommandEnd::TimedOut, 0));
        }
        _ => {
            let call = tokio::time::timeout(Duration::from_millis(300), runner.run(script)).await;
            assert!(call.is_err(), "dropped");
        }
    }
    assert!(becomes(Duration::from_secs(10), || alive(&token).is_empty()).await, "{at}");
}

/// How many commands: `STEADFAST_COMMANDS`, such as 1000, which takes two minutes.
fn commands() -> usize {
    std::env::var("STEADFAST_COMMANDS").map_or(48, |commands| commands.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_commands_leave_nothing() {
    one(0).await;
    let before = (descriptors(), threads());
    let mut running = JoinSet::new();
    for at in 0..commands() {
        while running.len() >= 8 {
            running.join_next().await.unwrap().unwrap();
        }
        running.spawn(one(at));
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
    // A dropped command's shell is reaped a moment after it has ended.
    let same = || (descriptors(), threads()) == before && children().is_empty();
    let now = || (descriptors(), threads(), children());
    assert!(becomes(Duration::from_secs(5), same).await, "{before:?}, and then {:?}", now());
}
