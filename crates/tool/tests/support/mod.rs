//! Real processes for tests.
#![allow(dead_code, clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{
    fs,
    path::PathBuf,
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
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
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

/// Those that sleep for `token`: what a command ends up with.
pub(crate) fn sleepers(token: &str) -> Vec<i32> {
    let argument = format!("\0{token}\0");
    let sleeps = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
            line.ends_with(argument.as_bytes()) && !line.windows(4).any(|piece| piece == b"\0-c\0")
        })
    };
    alive(token).into_iter().filter(sleeps).collect()
}

/// Whether these are gone, those included that nobody has reaped.
pub(crate) fn are_reaped(pids: &[i32]) -> bool {
    !processes().iter().any(|(pid, ..)| pids.contains(pid))
}

/// Whether orphans that this process does not adopt are reaped by anybody, as an init process does.
pub(crate) async fn init_reaps() -> bool {
    let orphan = std::process::Command::new("sh").args(["-c", "sleep 0 & echo $!"]).output();
    let pid = String::from_utf8(orphan.unwrap().stdout).unwrap().trim().parse().unwrap();
    let reaps = becomes(Duration::from_secs(10), || are_reaped(&[pid])).await;
    println!("orphans are {} here", if reaps { "reaped" } else { "reaped by nobody" });
    reaps
}

/// A folder of cgroup v2 that may be written to: that of `STEADFAST_TEST_CGROUP`, else one that can be made where cgroups
/// usually are.
pub(crate) fn cgroup() -> Option<PathBuf> {
    let named = std::env::var_os("STEADFAST_TEST_CGROUP").map(PathBuf::from);
    let found = named.or_else(|| {
        ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter().map(PathBuf::from).find(|folder| {
            let probe = folder.join(format!("steadfast-probe-{}", token()));
            let is_usable = fs::create_dir(&probe).is_ok() && probe.join("cgroup.kill").exists();
            let _ = fs::remove_dir(probe);
            is_usable
        })
    });
    match &found {
        Some(folder) => println!("cgroups in {}", folder.display()),
        None => println!(
            "not applicable: no cgroup v2 can be written, and STEADFAST_TEST_CGROUP names none"
        ),
    }
    found
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

/// Commands that do not end by themselves, in which `@` is for a token, by what they do to survive; and how many
/// [`sleepers`] each has when all of it has started.
pub(crate) const STUBBORN: [(&str, &str, usize); 9] = [
    ("sleeps", "sleep @", 1),
    ("ignores SIGTERM", "trap '' TERM; sleep @; sleep @", 1),
    ("in the background", "trap '' TERM; sleep @ & sleep @ & wait", 2),
    ("own groups", "exec bash -c 'set -m; trap \"\" TERM; sleep @ & sleep @ & wait'", 2),
    ("own session", "setsid sh -c 'trap \"\" TERM; sleep @; sleep @' & sleep @", 2),
    (
        "own session, its parent gone",
        "(setsid sh -c 'trap \"\" TERM; (sleep @; sleep @) & exec sleep @' &); sleep @",
        3,
    ),
    (
        "twice forked, in two sessions",
        "(setsid sh -c 'trap \"\" TERM; setsid sh -c \"sleep @; sleep @\" & exit 0' &); trap '' TERM; sleep @",
        2,
    ),
    (
        "without the environment, and its parent gone",
        "(env -i /usr/bin/setsid /bin/sh -c 'trap \"\" TERM; (/bin/sleep @; /bin/sleep @) & exec /bin/sleep @' &); sleep @",
        3,
    ),
    (
        "without environment, pipe or parent",
        "(env -i /usr/bin/setsid /bin/sh -c 'exec >/dev/null 2>&1; trap \"\" TERM; (/bin/sleep @) & exec /bin/sleep @' &); sleep @",
        3,
    ),
];
