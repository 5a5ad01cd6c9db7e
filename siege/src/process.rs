//! The gateway as a process of its own, and what the system knows of it.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use tokio::{
    process::{Child, Command},
    time::{sleep, timeout},
};

use crate::{check::Failed, wire};

/// How a gateway is started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    /// Everything but `listen`: `[server]` comes last, so that a test can go on with its keys.
    pub(crate) config: String,
    /// Keys of `[server]`.
    pub(crate) server: String,
    pub(crate) env: Vec<(String, String)>,
    /// More arguments of `steadfast serve`.
    pub(crate) arguments: &'static [&'static str],
    /// What the shell does before it becomes the gateway, such as `ulimit -n 64`.
    pub(crate) before: &'static str,
    /// Where its standard output and its standard error go.
    pub(crate) streams: [Sink; 2],
}

/// Where a standard stream goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sink {
    #[default]
    File,
    Closed,
    /// A disk without room.
    Full,
    /// A pipe whose reader is gone.
    Gone,
    /// A pipe that nobody reads.
    Unread,
}

impl Sink {
    pub(crate) const ALL: [Self; 5] =
        [Self::File, Self::Closed, Self::Full, Self::Gone, Self::Unread];

    /// As a shell writes it, of descriptor `n`.
    fn redirect(self, n: u8, file: &str) -> String {
        match self {
            Self::File => format!("{n}>{file}"),
            Self::Closed => format!("{n}>&-"),
            Self::Full => format!("{n}>/dev/full"),
            Self::Gone | Self::Unread => String::new(),
        }
    }

    fn stdio(self) -> Stdio {
        if matches!(self, Self::Gone | Self::Unread) { Stdio::piped() } else { Stdio::null() }
    }
}

/// A running gateway. It is killed when dropped.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) addr: SocketAddr,
    pub(crate) folder: PathBuf,
    pid: u32,
    child: parking_lot::Mutex<Child>,
}

/// What the system knows of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) rss_mib: u64,
    pub(crate) peak_mib: u64,
    pub(crate) descriptors: usize,
    pub(crate) threads: u64,
}

impl Gateway {
    /// Starts `binary` and waits until it answers.
    pub(crate) async fn start(binary: &Path, setup: &Setup) -> Result<Self, Failed> {
        let gateway = Self::spawn(binary, setup)?;
        for _ in 0..800 {
            if wire::get(gateway.addr, "/healthz").await.is_ok_and(|reply| reply.status == 200) {
                return Ok(gateway);
            }
            if let Some(status) = gateway.exited() {
                return Err(format!("it ended at its start, {status}: {}", gateway.log()).into());
            }
            sleep(Duration::from_millis(25)).await;
        }
        Err(format!("it does not answer after its start: {}", gateway.log()).into())
    }

    /// Starts `binary`.
    pub(crate) fn spawn(binary: &Path, setup: &Setup) -> Result<Self, Failed> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "steadfast-siege-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder)?;
        // The system gives a port that was free to the next who asks for one only much later.
        let addr = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let file = folder.join("steadfast.toml");
        let Setup { config, server, .. } = setup;
        fs::write(&file, format!("{config}\n[server]\nlisten = \"{addr}\"\n{server}\n"))?;
        let path = folder.to_str().ok_or("the folder for temporary files is not UTF-8")?;
        let [out, err] = setup.streams;
        let redirects =
            [out.redirect(1, &format!("{path}/out")), err.redirect(2, &format!("{path}/log"))];
        let mut child = Command::new("sh")
            .args(["-c", &format!("{} exec \"$@\" {}", setup.before, redirects.join(" ")), "sh"])
            .arg(binary)
            .args(["serve", "--config"])
            .arg(&file)
            .args(setup.arguments)
            .envs(setup.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(out.stdio())
            .stderr(err.stdio())
            .kill_on_drop(true)
            .spawn()?;
        if out == Sink::Gone {
            drop(child.stdout.take());
        }
        if err == Sink::Gone {
            drop(child.stderr.take());
        }
        let pid = child.id().ok_or("it ended at once")?;
        Ok(Self { addr, folder, pid, child: parking_lot::Mutex::new(child) })
    }

    /// The end of its log.
    pub(crate) fn log(&self) -> String {
        let text = fs::read(self.folder.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(600)..]);
        text.replace('\n', " | ")
    }

    /// Everything that it has logged and printed.
    pub(crate) fn output(&self) -> String {
        let read = |name| fs::read(self.folder.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&[read("out"), read("log")].concat()).into_owned()
    }

    /// How it ended, if it did.
    pub(crate) fn exited(&self) -> Option<ExitStatus> {
        self.child.lock().try_wait().ok().flatten()
    }

    /// Waits until it has ended.
    pub(crate) async fn wait_exit(&self, limit: Duration) -> Result<ExitStatus, Failed> {
        let ended = async {
            loop {
                if let Some(status) = self.exited() {
                    return status;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(limit, ended).await.map_err(|_| Failed(format!("it still runs after {limit:?}")))
    }

    /// Sends it a signal, such as `TERM`.
    pub(crate) async fn signal(&self, name: &str) -> Result<(), Failed> {
        let status =
            Command::new("kill").args(["-s", name, &self.pid.to_string()]).status().await?;
        if status.success() { Ok(()) } else { Err(format!("kill -s {name}: {status}").into()) }
    }

    /// What the system knows of it now.
    pub(crate) fn usage(&self) -> Result<Usage, Failed> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let number = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let digits =
                line.and_then(|line| line.trim_start_matches(':').split_whitespace().next());
            digits.and_then(|digits| digits.parse::<u64>().ok()).unwrap_or(0)
        };
        Ok(Usage {
            rss_mib: number("VmRSS") / 1024,
            peak_mib: number("VmHWM") / 1024,
            threads: number("Threads"),
            descriptors: fs::read_dir(format!("/proc/{}/fd", self.pid))?.count(),
        })
    }

    /// Lets the peak begin anew.
    pub(crate) fn reset_peak(&self) {
        // Where it is refused the peak is that of the whole run, which is stricter.
        let _ = fs::write(format!("/proc/{}/clear_refs", self.pid), "5");
    }

    /// How long it has used processors.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // After the name, which may have spaces and ends with the last parenthesis.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks =
            fields.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok());
        Duration::from_millis(ticks.sum::<u64>() * 10)
    }

    /// How many connections it holds whose own port is its address's: callers'.
    pub(crate) fn callers(&self) -> usize {
        self.connections(|local, _| local == self.addr.port())
    }

    /// How many connections it holds to others: providers'.
    pub(crate) fn upstream(&self, ports: &[u16]) -> usize {
        self.connections(|_, remote| ports.contains(&remote))
    }

    /// Connections of this machine that are open and that somebody holds.
    fn connections(&self, wanted: impl Fn(u16, u16) -> bool) -> usize {
        let table = fs::read_to_string(format!("/proc/{}/net/tcp", self.pid)).unwrap_or_default();
        let port = |field: &str| {
            field.rsplit_once(':').and_then(|(_, port)| u16::from_str_radix(port, 16).ok())
        };
        let held = table.lines().skip(1).filter(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let [_, local, remote, state, _, _, _, _, _, inode, ..] = fields[..] else {
                return false;
            };
            let ports = port(local).zip(port(remote));
            // 0A listens.
            state != "0A" && inode != "0" && ports.is_some_and(|(own, other)| wanted(own, other))
        });
        held.count()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.lock().start_kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
