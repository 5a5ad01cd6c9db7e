//! Logs on standard error.
//!
//! A line is formatted where the event happens and written by a thread of its own, so that no
//! request waits for a reader. Whether standard error is read, closed or full changes nothing else:
//! lines for which there is no room, or that can not be written, are dropped and counted.

use std::{
    any::Any,
    fmt::{self, Write as _},
    io::{self, IsTerminal},
    panic,
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use tracing::{
    Level, Metadata,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter,
    field::RecordFields,
    filter::filter_fn,
    fmt::{FormatFields, MakeWriter, format::Writer},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::{config::LogConfig, escape, secrets::mask_lines};

/// How many bytes of lines are held until they are written: 2 MiB, some 8,000 lines.
const CAPACITY: usize = 2 * 1024 * 1024;

/// From so many bytes on, lines are written at once: 32 KiB, some 150 lines.
const BLOCK: usize = 32 * 1024;

/// How long lines wait for others, at most: 50 ms, so that under load a few write calls a second do for all.
const DELAY: Duration = Duration::from_millis(50);

/// How long the end of the process waits until what was logged is written: 1 s. Nobody may be reading.
const LAST: Duration = Duration::from_secs(1);

/// The queue of this process.
static QUEUE: OnceLock<Arc<Queue>> = OnceLock::new();

/// Begins to log, by `RUST_LOG`; without it, what the layers do and what goes wrong. What has been
/// logged is written when the guard is dropped, for at most a second. A panic is logged like anything else.
pub(crate) fn start(config: LogConfig) -> LogsGuard {
    let queue = QUEUE.get_or_init(Arc::default).clone();
    let writer = queue.clone();
    let thread = thread::Builder::new().name("logs".into());
    // Without the thread lines are dropped, and everything else works.
    let _ = thread.spawn(move || writer.write_out(&mut io::stderr()));
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .fmt_fields(OneLine)
        .with_writer(Lines(queue.clone()))
        .finish()
        .with(filter_fn(move |line| is_shown(line, config)))
        .init();
    panic::set_hook(Box::new(|panicked| {
        // The standard library's hook writes to standard error itself, and waits for its reader.
        tracing::error!(
            name: "steadfast::gateway::panicked",
            target: "steadfast::gateway",
            thread = thread::current().name(),
            at = panicked.location().map(tracing::field::display),
            error = payload(panicked.payload()),
            "a thread panicked",
        );
    }));
    LogsGuard(queue)
}

/// Whether `line` is shown if `RUST_LOG` asks for it. In detail libraries log headers and pieces of messages.
fn is_shown(line: &Metadata<'_>, config: LogConfig) -> bool {
    config.libraries || *line.level() <= Level::INFO || line.target().starts_with("steadfast")
}

/// What a panic was given as its message.
fn payload(payload: &dyn Any) -> Option<&str> {
    let fixed = payload.downcast_ref::<&str>().copied();
    fixed.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
}

/// How many lines were dropped, because nobody read them or they could not be written.
pub(crate) fn dropped() -> u64 {
    QUEUE.get().map_or(0, |queue| queue.held.lock().dropped)
}

/// Waits until what has been logged is written, for at most a second.
#[derive(Debug)]
#[must_use = "what has been logged is written when this is dropped"]
pub(crate) struct LogsGuard(Arc<Queue>);

impl Drop for LogsGuard {
    fn drop(&mut self) {
        let mut held = self.0.held.lock();
        held.hurry = true;
        self.0.filled.notify_one();
        let is_busy = |held: &mut Held| held.writing || !held.lines.is_empty();
        self.0.written.wait_while_for(&mut held, is_busy, LAST);
    }
}

/// Lines on their way to standard error.
#[derive(Debug, Default)]
struct Queue {
    held: Mutex<Held>,
    /// There are lines, or enough of them not to wait for more.
    filled: Condvar,
    /// All lines have been written.
    written: Condvar,
}

#[derive(Debug, Default)]
struct Held {
    lines: Vec<u8>,
    /// Lines are being written.
    writing: bool,
    /// The process ends: lines do not wait for others.
    hurry: bool,
    dropped: u64,
}

impl Queue {
    /// Adds a line, unless there is no room. Waits for nobody: the lock is held only while bytes are copied.
    fn push(&self, line: &[u8]) {
        let mut held = self.held.lock();
        if held.lines.len() + line.len() > CAPACITY {
            held.dropped += 1;
            return;
        }
        let before = held.lines.len();
        held.lines.extend_from_slice(line);
        let is_block = before < BLOCK && held.lines.len() >= BLOCK;
        if is_block || (before == 0 && !held.writing) {
            self.filled.notify_one();
        }
    }

    /// Writes lines as they come, without end.
    fn write_out(&self, out: &mut dyn io::Write) {
        let (mut block, mut reported) = (Vec::with_capacity(BLOCK), 0);
        loop {
            let mut held = self.held.lock();
            held.writing = false;
            if held.lines.is_empty() {
                self.written.notify_all();
                self.filled.wait_while(&mut held, |held| held.lines.is_empty());
            }
            // So that the thread is not woken for each line.
            let is_short = |held: &mut Held| held.lines.len() < BLOCK && !held.hurry;
            self.filled.wait_while_for(&mut held, is_short, DELAY);
            std::mem::swap(&mut block, &mut held.lines);
            held.writing = true;
            let dropped = held.dropped;
            drop(held);
            let lost = write_lines(out, &mask_lines(&block));
            block.clear();
            block.shrink_to(CAPACITY / 8);
            if lost > 0 {
                self.held.lock().dropped += lost;
            } else if dropped > reported {
                tracing::warn!(
                    name: "steadfast::gateway::log_lines_dropped",
                    target: "steadfast::gateway",
                    lines = dropped - reported,
                    "lines of the log were dropped: nobody read them in time",
                );
                reported = dropped;
            }
        }
    }
}

/// Writes `lines`, however long that takes; how many could not be written.
fn write_lines(out: &mut dyn io::Write, mut lines: &[u8]) -> u64 {
    while !lines.is_empty() {
        match out.write(lines) {
            Ok(0) => break,
            Ok(written) => lines = &lines[written..],
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                // Another process has made the pipe one that does not block.
                io::ErrorKind::WouldBlock => thread::park_timeout(DELAY),
                _ => break,
            },
        }
    }
    lines.iter().map(|byte| u64::from(*byte == b'\n')).sum()
}

/// Puts the lines of the subscriber into the queue.
#[derive(Clone, Debug)]
struct Lines(Arc<Queue>);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(&self.0)
    }
}

/// One line: the subscriber writes it by one call.
#[derive(Debug)]
struct Line<'a>(&'a Queue);

impl io::Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the fields of an event in one line, whatever is in them.
///
/// tracing-subscriber's own would write a line end in a value as it is.
struct OneLine;

impl<'w> FormatFields<'w> for OneLine {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        fields.record(&mut Fields { writer, is_first: true });
        Ok(())
    }
}

struct Fields<'w> {
    writer: Writer<'w>,
    is_first: bool,
}

impl Fields<'_> {
    fn name(&mut self, field: &Field) {
        // Writing to the memory of a line does not fail, here and below.
        let _ = self.writer.write_str(if std::mem::take(&mut self.is_first) { "" } else { " " });
        if field.name() != "message" {
            let _ = self.writer.write_str(field.name()).and_then(|()| self.writer.write_char('='));
        }
    }
}

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.name(field);
        let bare = |byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        if value.bytes().all(bare) {
            for part in ["\"", value, "\""] {
                let _ = self.writer.write_str(part);
            }
        } else {
            let _ = write!(self, "{value:?}");
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.name(field);
        let _ = write!(self, "{value:?}");
    }
}

impl fmt::Write for Fields<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.writer.write_str(&escape::text(text))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::secrets::{Secrets, keep_configured};

    /// What is written of the events in `log`, with secrets in it, at any level.
    fn logged(config: LogConfig, log: impl FnOnce()) -> Vec<u8> {
        let lines = Lines::default();
        let out = lines.clone();
        let logs = tracing_subscriber::fmt().fmt_fields(OneLine).with_ansi(false);
        let logs = logs.with_env_filter("trace").with_writer(move || out.clone()).finish();
        let logs = logs.with(filter_fn(move |line| is_shown(line, config)));
        tracing::subscriber::with_default(logs, log);
        std::mem::take(&mut lines.0.lock())
    }

    #[test]
    fn libraries_are_not_asked_for_details() {
        let log = || {
            tracing::trace!(target: "steadfast::retry", "ours");
            tracing::trace!(target: "h2::codec", "headers of h2");
            tracing::debug!(target: "hyper_util::client", "headers of hyper");
            tracing::info!(target: "hyper", "it is well");
        };
        let text = |libraries| String::from_utf8(logged(LogConfig { libraries }, log)).unwrap();
        let quiet = text(false);
        assert!(quiet.contains("ours") && quiet.contains("it is well"), "{quiet}");
        assert!(!quiet.contains("headers of"), "{quiet}");
        assert_eq!(text(true).matches("headers of").count(), 2);
    }

    #[test]
    fn no_field_shows_a_secret() {
        let secrets = [
            "plain-0123456789",
            "quo\"te\\and/slash",
            "it's-a-secret",
            "schl\u{fc}ssel-\u{1f980}",
            "a\u{301}-combining-one",
            "tab\tand\u{1b}escape\u{202e}s",
            "correct horse battery",
        ];
        let configured = Arc::new(Secrets::of(secrets));
        keep_configured(&configured);
        let mut rng = fastrand::Rng::with_seed(3);
        let random: Vec<String> = (0..60)
            .map(|n| {
                let kinds = [('!', '~'), (' ', '\u{ff}'), ('\u{0}', '\u{ffff}')];
                let (from, to) = kinds[n % kinds.len()];
                let some = (0..rng.usize(8..60)).map(|_| rng.char(from..=to));
                // As it is read.
                format!("<{}>", some.collect::<String>())
            })
            .collect();
        let configured_too = Arc::new(Secrets::of(&random));
        keep_configured(&configured_too);
        for secret in secrets.into_iter().chain(random.iter().map(String::as_str)) {
            let lines = logged(LogConfig::default(), || {
                let inner = format!("a {secret} and a\nline");
                tracing::info!(target: "t", text = secret, shown = %secret, "message");
                tracing::info!(target: "t", shown = ?secret, text = inner, "message {secret}");
                tracing::info!(target: "t", shown = ?Some(&inner), error = %inner, "message");
            });
            let masked = mask_lines(&lines);
            let text = std::str::from_utf8(&masked).unwrap();
            assert_eq!(text.matches("[redacted]").count(), 7, "{text}");
            assert!(text.lines().count() == 3 && !text.contains(secret), "{text}");
        }
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_whatever_is_in_it() {
        let lines = Lines::default();
        let out = lines.clone();
        let logs = tracing_subscriber::fmt().fmt_fields(OneLine).with_ansi(false);
        tracing::subscriber::with_default(logs.with_writer(move || out.clone()).finish(), || {
            tracing::info!(target: "t", n = 7, yes = true, text = "a b", odd = "\"\n", shown = %"x\ny\u{1b}[1m", none = None::<u8>, "message");
        });
        let text = String::from_utf8(lines.0.lock().clone()).unwrap();
        let (time, rest) = text.split_once(' ').unwrap();
        assert!(time.ends_with('Z') && time.len() == 27, "{time}");
        assert_eq!(
            rest,
            " INFO t: message n=7 yes=true text=\"a b\" odd=\"\\\"\\n\" shown=x\\ny\\u{1b}[1m\n"
        );
    }
}
