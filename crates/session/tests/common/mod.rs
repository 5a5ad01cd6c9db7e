//! Child processes: this test binary again, with what to do in its environment.
#![allow(clippy::unwrap_used, dead_code, reason = "helpers of tests are tests")]

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use steadfast_chat::Message;
use steadfast_core::time::wall;
use steadfast_session::{SessionStore, SessionThread};

/// What a child has to do, and where.
const CHILD: &str = "child_process";
pub(crate) const JOB: &str = "STEADFAST_SESSION_JOB";
pub(crate) const FOLDER: &str = "STEADFAST_SESSION_FOLDER";

/// A command that runs the test `child_process` of this binary as a process with this job.
pub(crate) fn child(job: &str, folder: &Path) -> Command {
    in_shell(job, folder, "")
}

/// The same, after these commands of a shell.
pub(crate) fn in_shell(job: &str, folder: &Path, before: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{before} exec \"$@\""), "sh"])
        .arg(env::current_exe().unwrap())
        .args([CHILD, "--exact", "--nocapture", "--test-threads=1"])
        .env(JOB, job)
        .env(FOLDER, folder);
    command
}

/// The job of this process and its folder, if it is a child.
pub(crate) fn job() -> Option<(String, PathBuf)> {
    Some((env::var(JOB).ok()?, env::var_os(FOLDER)?.into()))
}

/// Role and text of each message.
pub(crate) fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(Message::text).collect()
}

/// The thread, opened by a new store, as another process would.
pub(crate) async fn reopened(root: &Path, thread: &str) -> SessionThread {
    SessionStore::new(root).open(thread).await.unwrap()
}

/// Where waiting for the disk takes no time, if there is such a place.
pub(crate) fn memory() -> PathBuf {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { shm.to_owned() } else { env::temp_dir() }
}

/// Waits until this is so, which other tasks and threads bring about. Not by tokio's clock, which may be paused.
pub(crate) async fn until(is_so: impl Fn() -> bool) {
    let began = wall();
    while !is_so() {
        let waited = wall().duration_since(began).unwrap_or_default();
        assert!(waited < Duration::from_secs(60), "it never came to that");
        tokio::task::yield_now().await;
    }
}
