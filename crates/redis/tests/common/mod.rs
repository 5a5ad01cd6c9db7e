//! Servers for tests: each test has its own, on a port of its own, and nothing is left of it.

#![allow(dead_code, unreachable_pub, reason = "each test has what it needs of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests")]

pub mod network;

use std::{
    net::{TcpListener, UdpSocket},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use steadfast_core::shared::{FactListener, Known, News, SharedState};
use steadfast_redis::{RedisConfig, RedisState};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// How long anything is waited for, on a machine that has other things to do.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The kind of the facts of these tests.
pub const KIND: &str = "rests";

/// Before the path of a configuration file.
const FILE: &str = "file:";

/// A server, killed when it is dropped.
pub struct Server {
    child: Child,
    folder: TempDir,
    pub port: u16,
    ports: Vec<Port>,
    options: Vec<String>,
}

impl Server {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// A server with further options; `{port}` in them is its port.
    pub async fn start_with(options: &[&str]) -> Self {
        let options: Vec<_> = options.iter().map(|option| (*option).to_owned()).collect();
        loop {
            let folder = tempfile::tempdir().unwrap();
            let reserved = Port::free();
            let port = reserved.number;
            let child = spawn(&folder, port, &options);
            let options = options.clone();
            let mut server = Self { child, folder, port, ports: vec![reserved], options };
            if server.is_up().await {
                return server;
            }
        }
    }

    /// A sentinel in a folder, where its memory is. It gives up a master after a second.
    pub async fn start_sentinel(folder: &Path, master: u16) -> Self {
        let file = folder.join("sentinel.conf");
        let rules = format!(
            "sentinel monitor mymaster 127.0.0.1 {master} 1\n\
             sentinel down-after-milliseconds mymaster 1000\n\
             sentinel failover-timeout mymaster 5000\n"
        );
        std::fs::write(&file, rules).unwrap();
        Self::start_with(&[FILE, file.to_str().unwrap(), "--sentinel"]).await
    }

    /// A server that can be one of a cluster.
    pub async fn start_in_cluster() -> Self {
        // By default it is the port and 10,000, which may be none.
        let port = Port::free();
        let bus = port.number.to_string();
        let is_one = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
        let options = [&is_one[..], &["--cluster-port", &bus]].concat();
        let mut server = Self::start_with(&options).await;
        server.ports.push(port);
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A node of the default fleet.
    pub fn node(&self, name: &str) -> RedisState {
        RedisState::connect(RedisConfig::new(self.url()).with_node(name)).unwrap()
    }

    /// The same, once it has joined.
    pub async fn joined(&self, name: &str) -> RedisState {
        let node = self.node(name);
        eventually("it has joined", || !node.is_away()).await;
        node
    }

    /// What `redis-cli` says.
    pub fn cli(&self, arguments: &[&str]) -> String {
        cli(self.port, arguments)
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// On the same port, without what it had.
    pub async fn restart(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.child = spawn(&self.folder, self.port, &self.options);
            if self.is_up().await {
                return;
            }
            assert!(Instant::now() < deadline, "it does not start again");
        }
    }

    /// Whether it listens; not if it has ended, since another has the port.
    async fn is_up(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            if tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_ok() {
                return true;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("the server does not listen");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A frozen one as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server that is tested: `redis-server`, or what `STEADFAST_STORE` names, such as `valkey-server`.
fn program() -> String {
    std::env::var("STEADFAST_STORE").unwrap_or_else(|_| "redis-server".to_owned())
}

/// Its client, which comes with it.
pub fn client() -> Command {
    Command::new(program().replace("-server", "-cli"))
}

fn spawn(folder: &TempDir, port: u16, options: &[String]) -> Child {
    let (dir, port) = (folder.path().to_str().unwrap(), port.to_string());
    let mut command = Command::new(program());
    let options = match options {
        [first, file, rest @ ..] if first == FILE => {
            command.arg(file);
            rest
        }
        options => {
            command.args(["--save", "", "--appendonly", "no"]);
            options
        }
    };
    command.args(["--port", &port, "--bind", "127.0.0.1", "--dir", dir]);
    command.args(options.iter().map(|option| option.replace("{port}", &port)));
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.expect("these tests need redis-server, 7.0 or newer, in the PATH, or STEADFAST_STORE")
}

pub fn cli(port: u16, arguments: &[&str]) -> String {
    let mut command = client();
    let output = command.args(["-p", &port.to_string()]).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A port that no other test has, while its server is not there, either: what is reserved is that of UDP, which no
/// server here uses.
struct Port {
    number: u16,
    _reserved: UdpSocket,
}

impl Port {
    fn free() -> Self {
        loop {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let number = free.local_addr().unwrap().port();
            if let Ok(reserved) = UdpSocket::bind(("127.0.0.1", number)) {
                return Self { number, _reserved: reserved };
            }
        }
    }
}

/// Waits until something is so; for how long.
pub async fn eventually(what: &str, is_so: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(2)).await;
    }
    start.elapsed()
}

/// Something holds for another ten minutes.
pub fn publish(node: &RedisState, key: &str) {
    let now_ms = node.clock().unix_ms();
    node.publish(KIND, key, News::holds(now_ms, now_ms + 600_000, "{}"));
}

/// Waits until a key is heard of.
pub async fn hear(listener: &mut FactListener, key: &str) -> Known {
    let heard = async {
        loop {
            let (of, known) = listener.next().await;
            if *of == *key && known.fact.is_some() {
                return known;
            }
        }
    };
    let heard = tokio::time::timeout(PATIENCE, heard).await;
    heard.unwrap_or_else(|_| panic!("{key:?} is not heard of"))
}

/// As layers have it.
pub fn shared(node: RedisState) -> Arc<dyn SharedState> {
    Arc::new(node)
}
