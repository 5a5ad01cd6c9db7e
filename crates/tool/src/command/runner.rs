//! Runs commands.

use std::{
    future::{Future, poll_fn},
    io::{self, Write as _},
    os::{fd::OwnedFd, unix::process::ExitStatusExt as _},
    path::PathBuf,
    pin::{Pin, pin},
    process::{ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::process::Pid;
use steadfast_core::time::later;
use tokio::{
    io::{AsyncRead as _, ReadBuf},
    net::unix::pipe,
    process::{Child, Command},
    sync::oneshot,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    CommandPolicy,
    cgroup::CommandGroup,
    janitor::{Ending, Janitor, LEFTOVERS},
    output::CappedOutput,
    tree::{CommandMark, ProcessTree, TreeEnd, VARIABLE},
};
use crate::PolicyError;

/// Reads of one poll. One that writes without end would use up the budget of the task, and its time limit and
/// abort would not be noticed.
const READS: usize = 16;

/// How long the last output is read after every process has ended.
const LAST_OUTPUT: Duration = Duration::from_millis(100);

/// Runs commands of a shell, and ends all of their processes.
///
/// A command runs in a process group of its own, with no input and its two outputs as one. It is ended by its
/// time, by its abort, and when the future of [`run`](Self::run) is dropped: then its processes get SIGTERM, and
/// after [`CommandPolicy::grace`] SIGKILL, until none is left, also those that have left its group or session, or
/// whose parents have gone. What a command leaves behind when it ends by itself is ended as well, unless
/// [`CommandPolicy::keep_background`] is set.
///
/// Needs a tokio runtime with I/O and time. Cheap to clone.
///
/// ```
/// # #[cfg(unix)]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), steadfast_tool::CommandError> {
/// use steadfast_tool::{CommandEnd, CommandRunner, Script};
///
/// let done = CommandRunner::default().run(Script::new("echo hello; exit 3")).await?;
/// assert_eq!((done.output.as_str(), done.end), ("hello\n", CommandEnd::Exited(3)));
/// # Ok(())
/// # }
/// # #[cfg(not(unix))]
/// # fn main() {}
/// ```
#[derive(Clone, Debug, Default)]
pub struct CommandRunner {
    policy: Arc<CommandPolicy>,
}

/// A command to run.
#[derive(Clone, Debug)]
#[must_use = "a command is run by `CommandRunner::run`"]
pub struct Script {
    text: String,
    dir: Option<PathBuf>,
    time: Option<Duration>,
    abort: CancellationToken,
}

impl Script {
    /// This text, for the shell.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), dir: None, time: None, abort: CancellationToken::new() }
    }

    /// In this folder, from the policy's if it is relative.
    pub fn in_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// With at most this time, where the policy's limit is longer.
    pub fn within(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// Ended when this is cancelled.
    pub fn aborted_by(mut self, abort: CancellationToken) -> Self {
        self.abort = abort;
        self
    }
}

/// What a command came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommandOutput {
    /// What it wrote, to both outputs, in order; the middle is left out where it is long.
    pub output: String,
    /// How many bytes are left out.
    pub omitted: u64,
    /// How it ended.
    pub end: CommandEnd,
    /// How long it ran.
    pub elapsed: Duration,
    /// Processes in the background that were ended after it had ended by itself.
    pub leftovers: usize,
    /// Processes that could not be ended.
    pub survivors: usize,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommandEnd {
    /// By itself, with this status.
    Exited(i32),
    /// By this signal, which was not ours.
    Signalled(i32),
    /// It took too long, and was ended.
    TimedOut,
    /// It was aborted, and ended.
    Aborted,
}

impl CommandEnd {
    /// Whether a SIGKILL that was not ours ended it, or the last command of the shell (status 137): most likely
    /// that of the kernel, for want of memory.
    pub const fn is_killed(self) -> bool {
        matches!(self, Self::Signalled(9) | Self::Exited(137))
    }

    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, signal) => Self::Signalled(signal.unwrap_or(0)),
        }
    }
}

/// A command could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The folder that it was to run in is not there.
    #[error("there is no folder `{}` to run the command in", .0.display())]
    NoFolder(
        /// The folder.
        PathBuf,
    ),
    /// It could not be started.
    #[error("the command could not be started with `{}`: {source}", shell.display())]
    Start {
        /// The shell.
        shell: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It was lost after it had been started.
    #[error("the command could not be waited for: {0}")]
    Wait(
        /// Why.
        #[source]
        io::Error,
    ),
}

impl CommandRunner {
    /// Runs commands by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; the error says what would be valid.
    pub fn new(policy: CommandPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self { policy: Arc::new(policy) })
    }

    /// The policy in force.
    pub fn policy(&self) -> &CommandPolicy {
        &self.policy
    }

    /// Runs a command to its end. Dropping the future ends it: its process group gets SIGKILL at once, and
    /// whatever has left that within a moment, by a thread of its own.
    ///
    /// # Errors
    ///
    /// When it can not be started. A command that fails is no error.
    pub async fn run(&self, script: Script) -> Result<CommandOutput, CommandError> {
        let began = Instant::now();
        let time = script.time.map_or(self.policy.timeout, |time| time.min(self.policy.timeout));
        let (mut running, mut reading) = self.start(&script)?;

        let exited = running.wait(&mut reading, later(began, time), &script.abort).await?;
        let (end, why) = match exited {
            Waited::Exited(status) => (CommandEnd::of(status), LEFTOVERS),
            Waited::TimedOut => (CommandEnd::TimedOut, "timed_out"),
            Waited::Aborted => (CommandEnd::Aborted, "aborted"),
        };
        let tree = match exited {
            Waited::Exited(_) => {
                reading.until(sleep(self.policy.drain)).await;
                match self.policy.keep_background {
                    true => running.release(),
                    false => reading.while_waiting(running.end(Duration::ZERO, why)).await,
                }
            }
            _ => reading.while_waiting(running.end(self.policy.grace, why)).await,
        };
        reading.until(sleep(LAST_OUTPUT)).await;
        let (output, omitted) = reading.output.into_text();
        let leftovers = if why == LEFTOVERS { tree.ended } else { 0 };
        let (elapsed, survivors) = (began.elapsed(), tree.left);
        Ok(CommandOutput { output, omitted, end, elapsed, leftovers, survivors })
    }

    fn start(&self, script: &Script) -> Result<(RunningCommand, Reading), CommandError> {
        let policy = &*self.policy;
        let shell = &policy.shell;
        let failed = |source| CommandError::Start { shell: shell.clone(), source };
        let janitor = Janitor::get().map_err(failed)?;
        if policy.subreaper {
            become_subreaper().map_err(failed)?;
        }
        let dir = match (&policy.dir, &script.dir) {
            (Some(base), Some(dir)) => Some(base.join(dir)),
            (base, dir) => dir.clone().or_else(|| base.clone()),
        };
        if let Some(dir) = dir.as_ref().filter(|dir| !dir.is_dir()) {
            return Err(CommandError::NoFolder(dir.clone()));
        }
        if !shell.is_file() {
            return Err(failed(io::ErrorKind::NotFound.into()));
        }
        let (reader, writer) = io::pipe().map_err(failed)?;
        let reader = pipe::Receiver::from_owned_fd(OwnedFd::from(reader)).map_err(failed)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:x}_{number:x}_{:x}", std::process::id(), fastrand::u32(..));
        let cgroup = policy.cgroup.as_deref().and_then(|parent| CommandGroup::new(parent, &id));

        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(GATE)
            .arg(shell)
            .arg(&script.text)
            .stdin(Stdio::piped())
            .stdout(writer.try_clone().map_err(failed)?)
            .stderr(writer)
            .process_group(0)
            .env_clear();
        command.envs(std::env::vars_os().filter(|(name, _)| {
            name.to_str().is_some_and(|name| name.starts_with(VARIABLE) || policy.inherits(name))
        }));
        // No limit that anybody would set.
        let lock_limit = fastrand::u64(1 << 40..1 << 60);
        let mark = CommandMark { variable: format!("{VARIABLE}{id}"), lock_limit };
        command.envs(&policy.env).env(&mark.variable, "1");
        if let Some(dir) = dir {
            command.current_dir(dir);
        }
        let mut child = command.spawn().map_err(failed)?;
        // Our own ends to write are closed with it.
        drop(command);
        let root = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let lost = || CommandError::Wait(io::Error::other("it has no process id"));
        let tree = ProcessTree::new(root.ok_or_else(lost)?, mark, cgroup);
        let gate = child.stdin.take();
        let running = RunningCommand { child: Some(child), tree: Some(tree), janitor };
        // Every mark is set: it may begin. If it is dead already, waiting for it shows that.
        if let Some(gate) = gate.and_then(|gate| gate.into_owned_fd().ok()) {
            let _ = std::fs::File::from(gate).write_all(b"\n");
        }
        let output = CappedOutput::new(policy.max_output_bytes);
        Ok((running, Reading { pipe: Some(reader), output }))
    }
}

/// How many commands were started.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// Waits until its processes can be known, for a line; then runs its second argument in the shell of its first.
/// Without that line whoever started it is gone.
const GATE: &str = r#"read -r _ || exit 125; exec "$0" -c "$1" </dev/null"#;

#[cfg(target_os = "linux")]
fn become_subreaper() -> io::Result<()> {
    // Any process id switches it on.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(Into::into)
}

#[cfg(not(target_os = "linux"))]
fn become_subreaper() -> io::Result<()> {
    Ok(())
}

/// A command that has not ended.
#[derive(Debug)]
struct RunningCommand {
    /// `None` once it has been waited for, or is the janitor's.
    child: Option<Child>,
    /// `None` once it is the janitor's.
    tree: Option<ProcessTree>,
    janitor: &'static Janitor,
}

/// Why waiting has ended.
#[derive(Clone, Copy, Debug)]
enum Waited {
    Exited(ExitStatus),
    TimedOut,
    Aborted,
}

impl RunningCommand {
    /// Waits for the shell, the time or the abort, and reads meanwhile.
    async fn wait(
        &mut self,
        reading: &mut Reading,
        until: Instant,
        abort: &CancellationToken,
    ) -> Result<Waited, CommandError> {
        let Some(child) = &mut self.child else {
            return Err(CommandError::Wait(io::Error::other("it was waited for before")));
        };
        let waited = {
            let (mut exit, mut aborted) = (pin!(child.wait()), pin!(abort.cancelled()));
            let mut time = pin!(sleep_until(until));
            poll_fn(|cx| {
                let _ = reading.poll(cx);
                if let Poll::Ready(exited) = exit.as_mut().poll(cx) {
                    return Poll::Ready(exited.map(Waited::Exited));
                }
                if aborted.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Ok(Waited::Aborted));
                }
                if time.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Ok(Waited::TimedOut));
                }
                Poll::Pending
            })
            .await
        };
        let waited = waited.map_err(CommandError::Wait)?;
        if matches!(waited, Waited::Exited(_)) {
            self.child = None;
        }
        Ok(waited)
    }

    /// Has the janitor end it.
    fn end(&mut self, grace: Duration, why: &'static str) -> Option<oneshot::Receiver<TreeEnd>> {
        let (tree, child) = (self.tree.take()?, self.child.take());
        Some(self.janitor.end(Ending { tree, child, grace, why }))
    }

    /// Leaves what it has started alone.
    fn release(&mut self) -> TreeEnd {
        self.tree = None;
        TreeEnd::default()
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        if let Some(tree) = &self.tree {
            // At once, since the whole process may end before the janitor's turn comes.
            if self.child.is_some() {
                tree.strike();
            }
            drop(self.end(Duration::ZERO, "dropped"));
        }
    }
}

/// The output of a command, as it is read.
#[derive(Debug)]
struct Reading {
    /// `None` once nobody can write to it.
    pipe: Option<pipe::Receiver>,
    output: CappedOutput,
}

impl Reading {
    /// Reads what there is. Ready when no more can come.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut bytes = [0; 8_192];
        for _ in 0..READS {
            let Some(pipe) = &mut self.pipe else { return Poll::Ready(()) };
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(pipe).poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                self.pipe = None;
            }
            self.output.push(buffer.filled());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads to the end, or until `limit`.
    async fn until(&mut self, limit: impl Future<Output = ()>) {
        let mut limit = pin!(limit);
        poll_fn(|cx| match self.poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => limit.as_mut().poll(cx),
        })
        .await;
    }

    /// Reads while the processes are ended.
    async fn while_waiting(&mut self, answer: Option<oneshot::Receiver<TreeEnd>>) -> TreeEnd {
        let Some(answer) = answer else { return TreeEnd::default() };
        let mut answer = pin!(answer);
        poll_fn(|cx| {
            let _ = self.poll(cx);
            answer.as_mut().poll(cx).map(Result::unwrap_or_default)
        })
        .await
    }
}
