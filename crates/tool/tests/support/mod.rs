//! Real processes for tests.
#![allow(dead_code, clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{
    fs,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use steadfast_tool::{CommandPolicy, CommandRunner};
use tokio::time::Instant;

static TOKENS: AtomicU32 = AtomicU32::new(0);

/// A number of seconds to sleep that no other process sleeps: processes are found by it.
pub(crate) fn token() -> String {
    format!("31{}.{:05}", std::process::id(), TOKENS.fetch_add(1, Ordering::Relaxed))
}

/// A process, by `/proc/PID/stat`: its number, its state and its parent.
fn processes() -> Vec<(i32, char, i32)> {
    let pids = fs::read_dir("/proc").unwrap();
    let pids = pids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        Some((pid, fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
    })
    .collect()
}

/// Processes that have `token` in their command and are alive.
pub(crate) fn alive(token: &str) -> Vec<i32> {
    let has = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.windows(token.len()).any(|piece| piece == token.as_bytes()))
    };
    let pids = processes().into_iter().filter(|(_, state, _)| *state != 'Z').map(|one| one.0);
    pids.filter(has).filter(|pid| *pid != own()).collect()
}

fn own() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

/// Children of this process, dead or alive.
pub(crate) fn children() -> Vec<(i32, char)> {
    let children = processes().into_iter().filter(|(_, _, parent)| *parent == own());
    children.map(|(pid, state, _)| (pid, state)).collect()
}

/// Descriptors of this process.
pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits until `found` is true, for at most `limit`; whether it became so.
pub(crate) async fn becomes(limit: Duration, mut found: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !found() {
        if began.elapsed() > limit {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}

pub(crate) fn runner(change: impl FnOnce(&mut CommandPolicy)) -> CommandRunner {
    let mut policy = CommandPolicy::default();
    change(&mut policy);
    CommandRunner::new(policy).unwrap()
}

/// Commands that do not end by themselves, in which `@` is for a token, by what they do to survive.
pub(crate) const STUBBORN: [(&str, &str); 9] = [
    ("sleeps", "sleep @"),
    ("ignores SIGTERM", "trap '' TERM; sleep @; sleep @"),
    ("in the background", "trap '' TERM; sleep @ & sleep @ & wait"),
    ("own groups", "exec bash -c 'set -m; trap \"\" TERM; sleep @ & sleep @ & wait'"),
    ("own session", "setsid sh -c 'trap \"\" TERM; sleep @; sleep @' & sleep @"),
    (
        "own session, its parent gone",
        "(setsid sh -c 'trap \"\" TERM; (sleep @; sleep @) & exec sleep @' &); sleep @",
    ),
    (
        "twice forked, in two sessions",
        "(setsid sh -c 'trap \"\" TERM; setsid sh -c \"sleep @; sleep @\" & exit 0' &); trap '' TERM; sleep @",
    ),
    (
        "without the environment, and its parent gone",
        "(env -i /usr/bin/setsid /bin/sh -c 'trap \"\" TERM; (/bin/sleep @; /bin/sleep @) & exec /bin/sleep @' &); sleep @",
    ),
    (
        "without environment, pipe or parent",
        "(env -i /usr/bin/setsid /bin/sh -c 'exec >/dev/null 2>&1; trap \"\" TERM; (/bin/sleep @) & exec /bin/sleep @' &); sleep @",
    ),
];
