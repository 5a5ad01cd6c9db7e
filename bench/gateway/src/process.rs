//! The processes under test, and the kernel's figures of them.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tokio::time::Instant;

use crate::Error;

/// A child process, killed when dropped.
pub(crate) struct Process {
    child: Child,
}

/// Where a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cpu {
    /// Any.
    Any,
    /// Only this one.
    Only(usize),
}

/// A command for `program`, pinned to `cpu`.
pub(crate) fn pinned(cpu: Cpu, program: impl AsRef<OsStr>) -> Command {
    match cpu {
        Cpu::Any => Command::new(program),
        Cpu::Only(cpu) => {
            let mut command = Command::new("taskset");
            command.arg("-c").arg(cpu.to_string()).arg(program);
            command
        }
    }
}

/// Pins this process, and the threads it makes from now on.
pub(crate) fn pin_self(cpu: usize) -> bool {
    let pid = std::process::id().to_string();
    let mut command = Command::new("taskset");
    command.args(["-cp", &cpu.to_string(), &pid]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Process {
    /// Starts `command`, with its standard error in `log`, and waits for the line in which it
    /// prints its address.
    pub(crate) fn serving(mut command: Command, log: &Path) -> Result<(Self, SocketAddr), Error> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(log)?);
        let mut child =
            command.spawn().map_err(|error| format!("{name} can not be started: {error}"))?;
        let stdout = child.stdout.take();
        let process = Self { child };
        let mut line = String::new();
        if let Some(stdout) = stdout {
            let mut stdout = BufReader::new(stdout);
            stdout.read_line(&mut line)?;
            // Reads further output, so that it does not block.
            std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()).is_ok());
        }
        let address = line.trim().rsplit("http://").next().and_then(|at| at.parse().ok());
        let address = address.ok_or_else(|| {
            format!(
                "{name} did not say where it listens, but `{}`; see {}",
                line.trim(),
                log.display()
            )
        })?;
        Ok((process, address))
    }

    /// Starts `command`, which is to listen on `address`, and waits until it does.
    pub(crate) async fn listening(
        mut command: Command,
        address: SocketAddr,
        log: &Path,
        limit: Duration,
    ) -> Result<Self, Error> {
        let name = command.get_program().to_string_lossy().into_owned();
        let out = File::create(log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child =
            command.spawn().map_err(|error| format!("{name} can not be started: {error}"))?;
        let mut process = Self { child };
        let until = Instant::now() + limit;
        while tokio::net::TcpStream::connect(address).await.is_err() {
            if let Some(status) = process.child.try_wait()? {
                let output = fs::read_to_string(log).unwrap_or_default();
                let last: Vec<_> = output.lines().rev().take(2).collect();
                return Err(format!("{name} ended with {status}: {}", last.join(" / ")).into());
            }
            if Instant::now() > until {
                return Err(format!("{name} does not listen; see {}", log.display()).into());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(process)
    }

    /// CPU time used by all its threads, user and system, to the nanosecond.
    pub(crate) fn cpu(&self) -> Result<Duration, Error> {
        let mut all = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            // A thread may end meanwhile.
            let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
            all += text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(all))
    }

    /// Memory in use, in bytes.
    pub(crate) fn rss(&self) -> Result<u64, Error> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: u64 = line
            .and_then(|line| line.trim().trim_end_matches(" kB").trim().parse().ok())
            .ok_or("the kernel reports no memory of the process")?;
        Ok(kib * 1024)
    }

    /// Terminates it, and waits until it has ended.
    pub(crate) fn stop(mut self) -> Result<(), Error> {
        self.signal("-TERM")?;
        self.child.wait()?;
        Ok(())
    }

    /// Stops it until [`wake`](Self::wake).
    pub(crate) fn freeze(&self) -> Result<(), Error> {
        self.signal("-STOP")
    }

    /// Continues it.
    pub(crate) fn wake(&self) -> Result<(), Error> {
        self.signal("-CONT")
    }

    fn signal(&self, signal: &str) -> Result<(), Error> {
        Command::new("kill").arg(signal).arg(self.child.id().to_string()).status()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
