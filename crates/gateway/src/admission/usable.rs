//! How much memory the process may use.

use std::{
    fs,
    path::{Component, Path, PathBuf},
    sync::OnceLock,
};

/// The text of a file, if it is there.
type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// Where nothing of it is known, as on other systems than Linux: 4 GiB.
const UNKNOWN: u64 = 4 << 30;

/// The bytes that this process may use: the least of what its control groups (version 1 and 2), its limits
/// (`ulimit -v`, `-d`) and the machine allow. As it was when first asked: later a part of the address space is what
/// bodies take. Of address space, half: the allocator keeps the addresses of what it has given back, so that a flood of bodies takes twice as
/// many of those as of memory.
pub(super) fn usable() -> u64 {
    static USABLE: OnceLock<u64> = OnceLock::new();
    *USABLE.get_or_init(|| least(&|path| fs::read_to_string(path).ok()))
}

fn least(read: Read<'_>) -> u64 {
    let text = |path: &str| read(Path::new(path)).unwrap_or_default();
    let mapped = bytes(&text("/proc/self/status"), "VmSize:").unwrap_or(0);
    let (listed, soft, memory) =
        (text("/proc/self/cgroup"), text("/proc/self/limits"), text("/proc/meminfo"));
    let known = groups(&listed, read)
        .into_iter()
        .chain(limit(&soft, "Max address space").map(|limit| limit.saturating_sub(mapped) / 2))
        .chain(limit(&soft, "Max data size"))
        .chain(bytes(&memory, "MemTotal:"));
    known.min().unwrap_or(UNKNOWN)
}

/// The limits of the control groups in `listed`, a line a hierarchy, and of those around them. Inside a
/// container paths may be those outside of it, of which only the last ancestor is there: the container's own.
fn groups(listed: &str, read: Read<'_>) -> Vec<u64> {
    let mut found = Vec::new();
    for line in listed.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (mounted, file) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        // Never above the mount, whatever is written there.
        let names = Path::new(path).components().filter_map(|name| match name {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        let path: PathBuf = names.collect();
        for group in path.ancestors() {
            let limit = read(&Path::new(mounted).join(group).join(file));
            // `max` is none.
            found.extend(limit.and_then(|limit| limit.trim().parse::<u64>().ok()));
        }
    }
    found
}

/// The soft limit of this name in `/proc/self/limits`, unless there is none.
fn limit(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// The value of this name, which is one in KiB.
fn bytes(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: (&str, &str) = ("/proc/meminfo", "MemTotal:       16000 kB\nMemFree: 1 kB\n");
    const KB: u64 = 1024;

    #[test]
    fn the_least_of_all_limits_counts() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max cpu time              unlimited            unlimited            seconds   \n\
                      Max address space         3000000              unlimited            bytes     \n";
        let unlimited = limits.replace("3000000", "unlimited");
        for (name, files, expected) in [
            ("nothing is known", &[] as &[(&str, &str)], UNKNOWN),
            ("the machine", &[MACHINE], 16_000 * KB),
            ("ulimit", &[MACHINE, ("/proc/self/limits", limits)], 1_500_000),
            (
                "ulimit, of which a part is used",
                &[
                    MACHINE,
                    ("/proc/self/limits", limits),
                    ("/proc/self/status", "Name:\tx\nVmSize:\t 1000 kB\n"),
                ],
                (3_000_000 - 1000 * KB) / 2,
            ),
            ("no ulimit", &[MACHINE, ("/proc/self/limits", &unlimited)], 16_000 * KB),
            (
                "version 2, in a container",
                &[
                    MACHINE,
                    ("/proc/self/cgroup", "0::/\n"),
                    ("/sys/fs/cgroup/memory.max", "5000000\n"),
                ],
                5_000_000,
            ),
            (
                "version 2, a group around it",
                &[
                    MACHINE,
                    ("/proc/self/cgroup", "0::/system.slice/a.service\n"),
                    ("/sys/fs/cgroup/system.slice/a.service/memory.max", "max\n"),
                    ("/sys/fs/cgroup/system.slice/memory.max", "4000000\n"),
                ],
                4_000_000,
            ),
            (
                "version 1, paths of outside",
                &[
                    MACHINE,
                    ("/proc/self/cgroup", "5:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n0::/x\n"),
                    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n"),
                ],
                2_000_000,
            ),
            (
                "version 1 without a limit",
                &[
                    MACHINE,
                    ("/proc/self/cgroup", "4:memory:/\n"),
                    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ],
                16_000 * KB,
            ),
            (
                "a path that leads out",
                &[
                    MACHINE,
                    ("/proc/self/cgroup", "0::/../../secret\nnonsense\n7:memory\n"),
                    ("/sys/secret/memory.max", "1\n"),
                ],
                16_000 * KB,
            ),
        ] {
            let read = |path: &Path| {
                let found = files.iter().find(|(name, _)| Path::new(name) == path);
                found.map(|(_, text)| (*text).to_owned())
            };
            assert_eq!(least(&read), expected, "{name}");
        }
    }

    #[test]
    fn this_process_may_use_something() {
        assert!(usable() > 1 << 20);
    }
}
