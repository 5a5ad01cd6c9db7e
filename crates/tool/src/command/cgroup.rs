//! Groups of cgroup v2, one for each command.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use rustix::process::Pid;

/// The group of one command. Dropped, it is removed; one that has a process in it then, when the next one is made after that has
/// ended.
#[derive(Debug)]
pub(super) struct CommandGroup(PathBuf);

/// Groups that could not be removed: a process that may go on, or that can not be killed, is in them.
static IN_USE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

impl CommandGroup {
    /// A new one in `parent`; `None` where none can be made.
    pub(super) fn new(parent: &Path, id: &str) -> Option<Self> {
        IN_USE.lock().retain(|group| is_in_use(group));
        let group = parent.join(format!("steadfast-{id}"));
        fs::create_dir(&group).ok()?;
        let group = Self(group);
        // It is no cgroup of version 2, or of a kernel before 5.14.
        group.0.join("cgroup.kill").exists().then_some(group)
    }

    /// Puts a process into it.
    pub(super) fn add(&self, pid: Pid) {
        let _ = fs::write(self.0.join("cgroup.procs"), pid.as_raw_nonzero().to_string());
    }

    /// Kills what is in it.
    pub(super) fn kill(&self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
    }

    /// What is in it.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "there are no cgroups"))]
    pub(super) fn processes(&self) -> BTreeSet<i32> {
        let text = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for CommandGroup {
    fn drop(&mut self) {
        if is_in_use(&self.0) {
            IN_USE.lock().push(self.0.clone());
        }
    }
}

/// Removes a group, unless a process is in it.
fn is_in_use(group: &Path) -> bool {
    fs::remove_dir(group).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
}
