//! Nobody waits for an observer: standard output and error that are closed, full or read by nobody change
//! nothing else.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs::File,
    io::{PipeReader, Read, Write, pipe},
    net::{SocketAddr, TcpListener, TcpStream},
    panic,
    process::{Child, Command, Stdio, id},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
};

use self::process::{PATIENCE, Running, address, chat, file, folder, http, pause, steadfast, wait};

mod process;

const KEY: &str = "gw-live-caller-1934";

/// What a standard stream of the gateway is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stream {
    /// `/dev/null`.
    Read,
    /// Closed before it starts.
    Closed,
    /// A pipe whose reader is gone.
    Gone,
    /// A disk without room.
    Full,
    /// A full pipe that somebody could read, and nobody does.
    Unread,
}

const STREAMS: [Stream; 5] =
    [Stream::Read, Stream::Closed, Stream::Gone, Stream::Full, Stream::Unread];

impl Stream {
    /// The stream, and what keeps it open.
    fn open(self) -> (Stdio, Option<PipeReader>) {
        match self {
            Stream::Read | Stream::Closed => (Stdio::null(), None),
            Stream::Full => (File::options().write(true).open("/dev/full").unwrap().into(), None),
            Stream::Gone => (pipe().unwrap().1.into(), None),
            Stream::Unread => {
                let (reader, mut writer) = pipe().unwrap();
                // As much as a pipe holds.
                writer.write_all(&[b'\n'; 65_536]).unwrap();
                (writer.into(), Some(reader))
            }
        }
    }
}

/// `steadfast serve` with these streams.
struct Gateway {
    child: Child,
    at: SocketAddr,
    stderr: Option<PipeReader>,
    _stdout: Option<PipeReader>,
}

impl Gateway {
    fn start(provider: SocketAddr, name: &str, [out, err]: [Stream; 2], log: &str) -> Self {
        let at = free();
        let key = file(&folder("observers"), &format!("{name}.key"), KEY);
        let config = format!(
            "[server]\nlisten = \"{at}\"\n[[tenants]]\nname = \"acme\"\nkeys = [\"file:{key}\"]\n[[providers]]\nname = \"main\"\n\
             dialect = \"openai\"\nbase_url = \"http://{provider}/v1\"\ncredentials = [\"file:{key}\"]\n"
        );
        let path = file(&folder("observers"), &format!("{name}.toml"), &config);
        let mut command = Command::new("/bin/sh");
        let close = |stream, closes| if stream == Stream::Closed { closes } else { "" };
        let script = format!("exec \"$@\" {} {}", close(out, ">&-"), close(err, "2>&-"));
        let serve = steadfast(&["serve", "--config", &path]);
        command.args(["-c", &script, "sh"]).arg(serve.get_program()).args(serve.get_args());
        command.env("RUST_LOG", log);
        let ((out, stdout), (err, stderr)) = (out.open(), err.open());
        let mut child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().unwrap();
        for _ in 0..PATIENCE.as_millis() / 10 {
            if TcpStream::connect(at).is_ok() {
                return Self { child, at, stderr, _stdout: stdout };
            }
            assert_eq!(child.try_wait().unwrap(), None, "{name}: it has ended");
            pause();
        }
        panic!("{name}: it does not start");
    }

    fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("/bin/kill").args(["-TERM", &pid]).status().unwrap().success());
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address where nobody listens. Not one that the system chooses: it could give another test, or a connection, the same.
fn free() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = id().wrapping_mul(101).wrapping_add(NEXT.fetch_add(1, Relaxed));
        // Below those that Linux hands out.
        let port = 20_000 + (number % 10_000) as u16;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().unwrap();
        }
    }
}

/// A provider whose streamed answers take a while.
fn provider(name: &str) -> (Running, SocketAddr) {
    let plan = "[[rules]]\nstream = true\nfault = { drip = { bytes = 40, every_ms = 10 } }\n";
    let path = file(&folder("observers"), &format!("{name}.toml"), plan);
    let sim = Running::start(steadfast(&["sim", "--listen", "127.0.0.1:0", "--plan", &path]));
    let at = address(&sim.line("openai"));
    (sim, at)
}

#[test]
fn whatever_the_standard_streams_are_it_serves_and_stops() {
    let (sim, provider) = provider("plan-a");
    for out in STREAMS {
        thread::scope(|scope| {
            for err in STREAMS {
                scope.spawn(move || serves_and_stops(provider, out, err));
            }
        });
    }
    sim.terminate();
}

fn serves_and_stops(provider: SocketAddr, out: Stream, err: Stream) {
    let name = format!("stdout {out:?}, stderr {err:?}");
    let mut gateway = Gateway::start(provider, &format!("{out:?}-{err:?}"), [out, err], "info");
    for n in 0..20 {
        let answer = panic::catch_unwind(|| http(gateway.at, &chat("gpt-4o", false, KEY)));
        let ended = gateway.child.try_wait().unwrap();
        assert_eq!(ended, None, "{name}: it has ended after {n} calls");
        let answer = answer.unwrap_or_else(|_| panic!("{name}: call {n} was not answered"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{name}: {answer}");
    }
    let mut stream = TcpStream::connect(gateway.at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(chat("gpt-4o", true, KEY).as_bytes()).unwrap();
    let mut head = [0; 15];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK", "{name}");
    gateway.terminate();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{name}: the answer in progress ends well: {rest}");
    assert_eq!(wait(&mut gateway.child).code(), Some(0), "{name}");
}

/// The lines that were dropped, by the metrics.
fn dropped(at: SocketAddr) -> u64 {
    let metrics = http(at, "GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n");
    let line =
        metrics.lines().find_map(|line| line.strip_prefix("steadfast_log_lines_dropped_total "));
    line.unwrap().parse().unwrap()
}

#[test]
fn a_log_that_nobody_reads_is_dropped_and_counted() {
    let (sim, provider) = provider("plan-b");
    let streams = [Stream::Read, Stream::Unread];
    let mut gateway = Gateway::start(provider, "unread", streams, "trace");
    let mut asked = 0;
    while dropped(gateway.at) == 0 {
        let answer = http(gateway.at, &chat("gpt-4o", false, KEY));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        asked += 1;
        assert!(asked < 20_000, "the log has no bound");
    }
    // Somebody reads again.
    let mut reader = gateway.stderr.take().unwrap();
    let log = thread::spawn(move || {
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        all
    });
    for _ in 0..10 {
        http(gateway.at, &chat("gpt-4o", false, KEY));
    }
    gateway.terminate();
    assert_eq!(wait(&mut gateway.child).code(), Some(0));
    let log = log.join().unwrap();
    let note = log.lines().find(|line| line.contains("lines of the log were dropped")).unwrap();
    let lines: u64 = note.rsplit_once("lines=").unwrap().1.parse().unwrap();
    assert!(lines > 0, "{note}");
    assert!(log.contains("stopping"), "what comes after it is written");
    sim.terminate();
}

#[test]
fn a_command_whose_reader_is_gone_ends_quietly() {
    for args in [&["check", "--schema"][..], &["completions", "bash"]] {
        let mut command = steadfast(args);
        command.stdout(Stream::Gone.open().0);
        let output = command.output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*errors), (Some(0), ""), "{args:?}");
        let mut command = steadfast(args);
        command.stdout(Stream::Full.open().0);
        let output = command.output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(errors.contains("No space left"), "{args:?}: {errors}");
    }
}
