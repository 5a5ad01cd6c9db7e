//! The processes of one command.

use std::{collections::BTreeSet, time::Duration};

use rustix::process::{Pid, Signal};
use tokio::{process::Child, time::Instant};

use super::cgroup::CommandGroup;
#[cfg(target_os = "linux")]
use super::proc::{self, Process};

/// How long SIGKILL is repeated until nothing is left; what is left then can not be killed.
const KILL_LIMIT: Duration = Duration::from_millis(2_500);

/// How the variables begin that mark the processes of commands. Each command has a name of its own, and they are
/// passed on, so that a command which runs others by this crate ends together with them.
pub(super) const VARIABLE: &str = "STEADFAST_COMMAND_";

/// From one search for processes to the next: longer than a list of them is used.
const PACE: Duration = Duration::from_millis(15);

/// The processes of one command: of its group, with one of its two marks, in its cgroup, and the children of all
/// these.
///
/// Both marks are inherited. One is a variable of the environment, which a process may remove. The other is the
/// soft limit of file locks, which Linux has not used since 2.4.25: it is kept by `exec`, `env -i` and
/// `setsid`, and by dead processes, whose environment is gone. Both are there before the command begins.
#[derive(Debug)]
pub(super) struct ProcessTree {
    /// The shell, and its process group.
    root: Pid,
    /// When that started; `None` where it is not known.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "there is no `/proc`"))]
    start: Option<u64>,
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "there is no `/proc`"))]
    mark: CommandMark,
    cgroup: Option<CommandGroup>,
}

/// What the processes of one command have, and no other.
#[derive(Debug)]
pub(super) struct CommandMark {
    /// The name of a variable.
    pub(super) variable: String,
    /// The soft limit of file locks.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "no such limit"))]
    pub(super) lock_limit: u64,
}

/// What became of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TreeEnd {
    /// Processes that were ended, the shell left out.
    pub(super) ended: usize,
    /// Those that could not be.
    pub(super) left: usize,
    /// The shell's own end, where it was waited for.
    pub(super) status: Option<std::process::ExitStatus>,
}

/// What a search finds.
#[derive(Debug, Default)]
struct Members {
    alive: Vec<(i32, u64)>,
    /// Dead ones that only this process can reap.
    orphans: Vec<i32>,
}

impl ProcessTree {
    /// The tree of a shell that has been started, and waits: it is marked.
    pub(super) fn new(root: Pid, mark: CommandMark, cgroup: Option<CommandGroup>) -> Self {
        if let Some(cgroup) = &cgroup {
            cgroup.add(root);
        }
        #[cfg(target_os = "linux")]
        let start = {
            set_lock_limit(root, mark.lock_limit);
            proc::read(root.as_raw_nonzero().get()).map(|root| root.start)
        };
        #[cfg(not(target_os = "linux"))]
        let start = None;
        Self { root, start, mark, cgroup }
    }

    /// Kills its process group at once: while the shell has not been waited for, so that the group's number
    /// is nobody else's.
    pub(super) fn strike(&self) {
        let _ = rustix::process::kill_process_group(self.root, Signal::KILL);
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
    }

    /// Ends all of it: SIGTERM, and after `grace` SIGKILL until nothing is left. `child` is the shell, if it has
    /// not been waited for. When `hurry` becomes true the grace is over.
    pub(super) async fn end(
        self,
        mut child: Option<Child>,
        grace: Duration,
        hurry: impl Fn() -> bool,
    ) -> TreeEnd {
        let began = Instant::now();
        let (mut ended, mut asked) = (BTreeSet::new(), BTreeSet::new());
        let (mut status, mut empty, mut kills) = (None, 0, None);
        let left = loop {
            if let Some(running) = &mut child
                && let Ok(Some(exited)) = running.try_wait()
            {
                status = Some(exited);
                child = None;
            }
            let Members { alive, orphans } = self.members();
            orphans.into_iter().for_each(reap);
            // A process that is started during a search may be missed by it.
            empty = if alive.is_empty() && child.is_none() { empty + 1 } else { 0 };
            if empty == 2 {
                break 0;
            }
            if began.elapsed() >= grace || hurry() {
                let since = *kills.get_or_insert_with(Instant::now);
                if since.elapsed() >= KILL_LIMIT {
                    break alive.len();
                }
            }
            let kill = kills.is_some();
            for member in &alive {
                if kill {
                    self.signal(*member, Signal::KILL);
                } else if asked.insert(*member) {
                    self.signal(*member, Signal::TERM);
                }
            }
            ended.extend(alive);
            if kill && child.is_some() {
                self.strike();
            }
            tokio::time::sleep(PACE).await;
        };
        let root = self.root.as_raw_nonzero().get();
        let ended = ended.iter().filter(|(pid, _)| *pid != root).count();
        TreeEnd { ended: ended.saturating_sub(left), left, status }
    }
}

#[cfg(target_os = "linux")]
impl ProcessTree {
    fn members(&self) -> Members {
        let Some(start) = self.start else { return Members::default() };
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let root = self.root.as_raw_nonzero().get();
        let all = proc::all();
        // A group's number is another's once the group is empty and its leader was waited for.
        let group_is_ours = !all.iter().any(|one| one.pid == root && one.start != start);
        let in_cgroup = self.cgroup.as_ref().map(CommandGroup::processes).unwrap_or_default();
        let (mut members, mut others): (Vec<&Process>, Vec<&Process>) = all
            .iter()
            .filter(|one| one.start >= start && one.pid != own && one.pid != 1)
            .partition(|one| {
                (group_is_ours && one.group == root)
                    || in_cgroup.contains(&one.pid)
                    || one.has_mark(&self.mark.variable, self.mark.lock_limit)
            });
        // Their children, and the children of these.
        let mut seen = 0;
        while seen < members.len() {
            let parent = members[seen].pid;
            members.extend(others.extract_if(.., |one| one.parent == parent));
            seen += 1;
        }
        let orphan = |one: &&&Process| one.dead && one.parent == own && one.pid != root;
        Members {
            orphans: members.iter().filter(orphan).map(|one| one.pid).collect(),
            alive: members.iter().filter(|one| !one.dead).map(|one| (one.pid, one.start)).collect(),
        }
    }

    /// Sends a signal to that process, and to no other one that has got its number since.
    fn signal(&self, (pid, start): (i32, u64), signal: Signal) {
        use rustix::process::{PidfdFlags, kill_process, pidfd_open, pidfd_send_signal};
        let Some(number) = Pid::from_raw(pid) else { return };
        let fd = pidfd_open(number, PidfdFlags::empty());
        if proc::read(pid).is_none_or(|one| one.start != start) {
            return;
        }
        // It may have ended meanwhile, and some can not be killed: the next search shows that.
        let _ = match fd {
            Ok(fd) => pidfd_send_signal(fd, signal),
            // No descriptor is free, or the kernel is older than these are.
            Err(_) => kill_process(number, signal),
        };
    }
}

/// Marks a process; it may be that it can not be.
#[cfg(target_os = "linux")]
fn set_lock_limit(pid: Pid, limit: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
    let maximum = getrlimit(Resource::Locks).maximum;
    if maximum.is_none_or(|maximum| maximum >= limit) {
        let _ = prlimit(Some(pid), Resource::Locks, Rlimit { current: Some(limit), maximum });
    }
}

/// Elsewhere there is no `/proc`: the tree is the process group.
#[cfg(not(target_os = "linux"))]
impl ProcessTree {
    fn members(&self) -> Members {
        let root = self.root.as_raw_nonzero().get();
        let alive = rustix::process::test_kill_process_group(self.root).is_ok();
        Members { alive: alive.then_some((root, 0)).into_iter().collect(), orphans: Vec::new() }
    }

    fn signal(&self, _: (i32, u64), signal: Signal) {
        let _ = rustix::process::kill_process_group(self.root, signal);
    }
}

/// Reaps a process that is known to be a command's, and so nobody else waits for.
fn reap(pid: i32) {
    use rustix::process::{WaitOptions, waitpid};
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}
