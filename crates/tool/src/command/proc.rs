//! Processes, as `/proc` shows them.

use std::{
    cell::{OnceCell, RefCell},
    fs,
    io::Read as _,
    rc::Rc,
    time::Duration,
};

use tokio::time::Instant;

use super::tree::VARIABLE;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// When it started, in ticks since the machine did: two processes of one number differ in it.
    pub(super) start: u64,
    /// It has ended, and its parent has not noticed.
    pub(super) dead: bool,
    /// Read when it is first asked for.
    marks: OnceCell<Marks>,
}

/// What a process has inherited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Marks {
    /// The names of variables that begin as those of commands do.
    variables: Vec<String>,
    lock_limit: Option<u64>,
}

/// How old the list of processes may be: when many commands are ended at once, they share one.
const MAX_AGE: Duration = Duration::from_millis(10);

thread_local! {
    static LIST: RefCell<Option<(Instant, Rc<Vec<Process>>)>> = const { RefCell::new(None) };
}

impl Process {
    /// Whether it was started with an environment variable of that name, or has that soft limit of file locks.
    pub(super) fn has_mark(&self, variable: &str, lock_limit: u64) -> bool {
        let marks = self.marks.get_or_init(|| Marks {
            // A dead one has none.
            variables: if self.dead { Vec::new() } else { variables(self.pid) },
            lock_limit: read_lock_limit(self.pid),
        });
        marks.lock_limit == Some(lock_limit) || marks.variables.iter().any(|one| one == variable)
    }
}

/// The environment of a process is read up to here: the most that Linux gives a program by default is 2 MiB.
const MAX_ENVIRONMENT: u64 = 4 * 1_024 * 1_024;

/// The process of that number, if there is one.
pub(super) fn read(pid: i32) -> Option<Process> {
    // A program's name is cut after 15 bytes, also within a character.
    parse(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
}

fn parse(stat: &str) -> Option<Process> {
    let (pid, rest) = stat.split_once(' ')?;
    // The program's name is in brackets and can have brackets and spaces in it.
    let (_, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let number = |at: usize| fields.get(at)?.trim().parse::<i32>().ok();
    // A dead main thread with others that live is no dead process.
    let threads = number(17)?;
    Some(Process {
        pid: pid.parse().ok()?,
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        start: fields.get(19)?.trim().parse().ok()?,
        dead: matches!(fields[0], "Z" | "X") && threads <= 1,
        marks: OnceCell::new(),
    })
}

/// All processes of this moment, or of one a few milliseconds ago.
pub(super) fn all() -> Rc<Vec<Process>> {
    LIST.with_borrow_mut(|list| match list {
        Some((taken, list)) if taken.elapsed() < MAX_AGE => list.clone(),
        _ => {
            let all = Rc::new(read_all());
            *list = Some((Instant::now(), all.clone()));
            all
        }
    })
}

fn read_all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(read).collect()
}

/// The names of the variables that a process was started with, of those that mark commands.
fn variables(pid: i32) -> Vec<String> {
    let mut environment = Vec::new();
    let Ok(file) = fs::File::open(format!("/proc/{pid}/environ")) else { return Vec::new() };
    if file.take(MAX_ENVIRONMENT).read_to_end(&mut environment).is_err() {
        return Vec::new();
    }
    let marks = environment.split(|byte| *byte == 0);
    let marks = marks.filter(|one| one.starts_with(VARIABLE.as_bytes()));
    let names = marks.filter_map(|one| one.split(|byte| *byte == b'=').next());
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

/// The soft limit of file locks of a process, dead ones included; `None` where there is none.
fn read_lock_limit(pid: i32) -> Option<u64> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file locks"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stat_is_read_whatever_the_name() {
        let line =
            "4711 (a) R (b c) Z 1 4700 4699 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 998877 0 0\n";
        let dead = Process {
            pid: 4711,
            parent: 1,
            group: 4700,
            session: 4699,
            start: 998_877,
            dead: true,
            marks: OnceCell::new(),
        };
        assert_eq!(parse(line).as_ref(), Some(&dead));
        // Its main thread has ended, and another one has not.
        let threads = line.replace("20 0 1 0", "20 0 2 0");
        assert_eq!(parse(&threads), Some(Process { dead: false, ..dead }));
        for broken in
            ["", "1", "1 (a", "1 (a) R 2", "x (a) R 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1"]
        {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn this_process_is_there() {
        let own = i32::try_from(std::process::id()).unwrap();
        let found = read(own).unwrap();
        assert!(!found.dead && found.pid == own);
        assert!(all().iter().any(|one| one.pid == own && one.start == found.start));
        assert!(!found.has_mark("STEADFAST_COMMAND_none", 1));
        assert_eq!(found.marks.get(), Some(&Marks::default()));
    }
}
