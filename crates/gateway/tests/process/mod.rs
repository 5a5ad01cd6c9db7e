//! The binary as a process, and what its tests need.

#![allow(dead_code, reason = "no test needs all of it")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// Longer than any command here takes on a busy machine: one that takes longer hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The model that stands in for an overloaded one, in the preset `claude-code`.
pub(crate) const FALLBACK_MODEL: &str = "FALLBACK_MODEL_ID";

/// The binary, without the environment variables of the test run.
pub(crate) fn steadfast(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
    command.args(args);
    for name in
        ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", FALLBACK_MODEL, "RUST_LOG"]
    {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs it to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    finish(Running::start(steadfast(args)))
}

pub(crate) fn finish(running: Running) -> Output {
    let Running { mut child, lines, errors } = running;
    let status = wait(&mut child);
    let stdout = lines.iter().fold(String::new(), |all, line| all + &line + "\n").into_bytes();
    Output { status, stdout, stderr: errors.join().unwrap() }
}

pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    // The standard library has no wait with a timeout.
    for _ in 0..PATIENCE.as_millis() / 10 {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        pause();
    }
    let _ = child.kill();
    panic!("it hangs");
}

#[allow(clippy::disallowed_methods, reason = "no executor here that could be blocked")]
pub(crate) fn pause() {
    thread::sleep(Duration::from_millis(10));
}

/// A command that runs until it is stopped.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) lines: mpsc::Receiver<String>,
    pub(crate) errors: thread::JoinHandle<Vec<u8>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (send, lines) = mpsc::channel();
        thread::spawn(move || read(stdout, &send));
        let errors = thread::spawn(move || {
            let mut all = Vec::new();
            stderr.read_to_end(&mut all).unwrap();
            all
        });
        Self { child, lines, errors }
    }

    /// The next line of its output that has `part` in it.
    pub(crate) fn line(&self, part: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no `{part}`"));
            if line.contains(part) {
                return line;
            }
        }
    }

    /// Asks it to stop, as an orchestrator does.
    pub(crate) fn terminate(&self) {
        self.signal("-TERM");
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status =
            Command::new("/bin/kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }
}

fn read(stdout: ChildStdout, lines: &mpsc::Sender<String>) {
    for line in BufReader::new(stdout).lines() {
        if lines.send(line.unwrap()).is_err() {
            return;
        }
    }
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A folder for this test.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

pub(crate) fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// The address in a line such as `steadfast serves on http://127.0.0.1:1234`.
pub(crate) fn address(line: &str) -> SocketAddr {
    let (_, rest) = line.split_once("http://").unwrap();
    rest.split(['/', ' ']).next().unwrap().parse().unwrap()
}

/// Sends an HTTP request, and reads until the server closes.
pub(crate) fn http(at: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    // The pieces of a chunked body may end anywhere, in a letter too.
    String::from_utf8_lossy(&answer).into_owned()
}

pub(crate) fn chat(model: &str, stream: bool, key: &str) -> String {
    let body = format!(
        "{{\"model\":\"{model}\",\"stream\":{stream},\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}"
    );
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}
