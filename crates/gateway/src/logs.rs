//! Logs on standard error.
//!
//! A line is formatted where the event happens and written by a thread of its own, so that no
//! request waits for a reader: lines that do not fit any more are dropped and counted.

use std::{
    fmt::{self, Write as _},
    io::{self, IsTerminal},
    sync::OnceLock,
    time::Duration,
};

use tracing::{
    Level, Metadata,
    field::{Field, Visit},
};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    EnvFilter,
    field::RecordFields,
    filter::filter_fn,
    fmt::{FormatFields, format::Writer},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::{config::LogConfig, secrets::mask_everything};

/// How many lines are held until they are written: about 2 MiB of them.
const LINES: usize = 8 * 1024;

/// How many bytes of lines are written at once: 32 KiB, some 150 lines.
const BLOCK: usize = 32 * 1024;

/// How long lines wait for others, at most: 50 ms, so that under load a few write calls a second do for all.
const DELAY: Duration = Duration::from_millis(50);

/// Counts what was dropped.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Begins to log, by `RUST_LOG`; without it, what the layers do and what goes wrong. What has been
/// logged is written when the guard is dropped, for at most a second.
pub(crate) fn start(config: LogConfig) -> WorkerGuard {
    let writer = NonBlockingBuilder::default().buffered_lines_limit(LINES).thread_name("logs");
    let (out, guard) = writer.finish(Stderr(Vec::with_capacity(BLOCK)));
    DROPPED.get_or_init(|| out.error_counter());
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .fmt_fields(OneLine)
        .with_writer(out)
        .finish()
        .with(filter_fn(move |line| is_shown(line, config)))
        .init();
    guard
}

/// Whether `line` is shown if `RUST_LOG` asks for it. In detail libraries log headers and pieces of messages.
fn is_shown(line: &Metadata<'_>, config: LogConfig) -> bool {
    config.libraries || *line.level() <= Level::INFO || line.target().starts_with("steadfast")
}

/// How many lines were dropped, because nobody read them or more came than could be written.
pub(crate) fn dropped() -> usize {
    DROPPED.get().map_or(0, ErrorCounter::dropped_lines)
}

/// Standard error, which may be closed: then nobody is left to read. Lines are written when their
/// thread has no more of them; it then waits, so that it is not woken for each.
struct Stderr(Vec<u8>);

impl Stderr {
    fn write_out(&mut self) {
        // Here, where no request waits.
        let _ = io::Write::write_all(&mut io::stderr(), &mask_everything(&self.0));
        self.0.clear();
    }
}

impl io::Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(line);
        if self.0.len() >= BLOCK {
            self.write_out();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.0.is_empty() {
            self.write_out();
            std::thread::park_timeout(DELAY);
        }
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
        if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || !text.contains(char::is_control)
        {
            self.writer.write_str(text)
        } else {
            write!(self.writer, "{}", text.escape_debug())
        }
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
            let masked = mask_everything(&lines);
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
