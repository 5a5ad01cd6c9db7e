//! Logs on standard error.
//!
//! A line is formatted where the event happens and written by a thread of its own, many lines at
//! once: a request does not pay for a system call. Warnings and errors are written at once, others
//! within [`DELAY`].

use std::{
    cell::Cell,
    fmt::{self, Write as _},
    io::{self, IsTerminal, Write as _},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::{Condvar, Mutex};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
};
use tracing_subscriber::{
    EnvFilter, Layer,
    fmt::MakeWriter,
    layer::{Context, SubscriberExt},
    util::SubscriberInitExt,
};

/// The longest a line waits to be written: 100 ms, which nobody who reads along notices.
const DELAY: Duration = Duration::from_millis(100);

/// From how many bytes on lines are written without further delay: 32 KiB, some 150 of them.
const FULL: usize = 32 * 1024;

/// How much is held while nobody reads standard error: 1 MiB. Then whoever logs waits.
const MOST: usize = 1024 * 1024;

/// Begins to log, by `RUST_LOG`; without it, what the layers do and what goes wrong. What has been
/// logged is written when the guard is dropped.
pub(crate) fn start() -> Guard {
    let shared = Arc::new(Shared::default());
    let writing = shared.clone();
    let thread = std::thread::Builder::new().name("logs".into()).spawn(move || writing.run());
    if thread.is_err() {
        shared.lines.lock().closed = true;
    }
    let out = Out(shared.clone());
    let terminal = io::stderr().is_terminal();
    match EnvFilter::try_from_default_env() {
        // The plain form knows no spans, which whoever sets a filter may look for.
        Err(_) if !terminal => {
            tracing_subscriber::registry().with(LevelFilter::INFO).with(Lines(out)).init();
        }
        filter => {
            let filter = filter.unwrap_or_else(|_| EnvFilter::new("info"));
            let lines = tracing_subscriber::fmt().with_env_filter(filter);
            lines.with_ansi(terminal).with_writer(out).init();
        }
    }
    Guard { shared, thread: thread.ok() }
}

/// Writes what is left when it is dropped.
#[must_use = "what has been logged last is lost without it"]
pub(crate) struct Guard {
    shared: Arc<Shared>,
    /// `None` when it could not be started; then every line is written where it is logged.
    thread: Option<JoinHandle<()>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.lines.lock().closed = true;
        self.shared.news.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has said so itself.
            let _ = thread.join();
        }
    }
}

#[derive(Default)]
struct Shared {
    lines: Mutex<Waiting>,
    news: Condvar,
}

#[derive(Default)]
struct Waiting {
    text: Vec<u8>,
    /// They are to be written now.
    hurry: bool,
    /// Nobody writes any more but who logs.
    closed: bool,
}

impl Shared {
    fn push(&self, line: &[u8], hurry: bool) {
        let mut lines = self.lines.lock();
        if lines.closed || lines.text.len() > MOST {
            let before = std::mem::take(&mut lines.text);
            drop(lines);
            write_out(&before);
            write_out(line);
            return;
        }
        let first = lines.text.is_empty();
        lines.text.extend_from_slice(line);
        let hurry = hurry || lines.text.len() > FULL;
        let wake = first || (hurry && !lines.hurry);
        lines.hurry |= hurry;
        drop(lines);
        if wake {
            self.news.notify_one();
        }
    }

    fn run(&self) {
        let mut writing = Vec::new();
        loop {
            let mut lines = self.lines.lock();
            while lines.text.is_empty() && !lines.closed {
                self.news.wait(&mut lines);
            }
            if !lines.hurry && !lines.closed {
                self.news.wait_for(&mut lines, DELAY);
            }
            std::mem::swap(&mut lines.text, &mut writing);
            lines.hurry = false;
            let closed = lines.closed;
            drop(lines);
            write_out(&writing);
            if closed {
                return;
            }
            writing.clear();
            writing.shrink_to(2 * FULL);
        }
    }
}

fn write_out(text: &[u8]) {
    // Nobody is left to be told.
    let _ = io::stderr().write_all(text);
}

/// Where lines go.
#[derive(Clone)]
struct Out(Arc<Shared>);

/// Where one line of the formatter's goes.
struct One<'a> {
    shared: &'a Shared,
    hurry: bool,
}

impl io::Write for One<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.shared.push(line, self.hurry);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Out {
    type Writer = One<'a>;

    fn make_writer(&'a self) -> One<'a> {
        One { shared: &self.0, hurry: true }
    }

    fn make_writer_for(&'a self, about: &tracing::Metadata<'_>) -> One<'a> {
        One { shared: &self.0, hurry: *about.level() <= Level::WARN }
    }
}

/// The plain form: time, level, target, message and fields, one line an event.
struct Lines(Out);

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let about = event.metadata();
        // Taken and put back: what is shown of a field may log too.
        let mut line = LINE.take();
        stamp(&mut line, steadfast_core::time::wall());
        line.push_str(match *about.level() {
            Level::ERROR => " ERROR ",
            Level::WARN => "  WARN ",
            Level::INFO => "  INFO ",
            Level::DEBUG => " DEBUG ",
            Level::TRACE => " TRACE ",
        });
        line.push_str(about.target());
        line.push(':');
        event.record(&mut Fields(&mut line));
        line.push('\n');
        self.0.0.push(line.as_bytes(), *about.level() <= Level::WARN);
        if line.capacity() <= LONG {
            line.clear();
            LINE.set(line);
        }
    }
}

thread_local! {
    /// Memory for a line.
    static LINE: Cell<String> = const { Cell::new(String::new()) };
}

/// Memory for longer lines is not kept, in bytes: 4 KiB, ten times what a request's takes.
const LONG: usize = 4 * 1024;

struct Fields<'a>(&'a mut String);

impl Fields<'_> {
    fn name(&mut self, field: &Field) {
        self.0.push(' ');
        if field.name() != "message" {
            self.0.push_str(field.name());
            self.0.push('=');
        }
    }
}

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.name(field);
        // Looked through to the end, which is quicker than byte by byte.
        let plain = |byte: u8| matches!(byte, b' '..=b'~') & (byte != b'"') & (byte != b'\\');
        if value.bytes().fold(true, |all, byte| all & plain(byte)) {
            self.0.push('"');
            self.0.push_str(value);
            self.0.push('"');
        } else {
            // Writing to a string does not fail, here and below.
            let _ = write!(self.0, "{value:?}");
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.name(field);
        self.0.push_str(if value { "true" } else { "false" });
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.name(field);
        number(self.0, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.name(field);
        let _ = write!(OneLine(self.0), "{value:?}");
    }
}

/// Keeps a line one line, whatever is written to it.
struct OneLine<'a>(&'a mut String);

impl fmt::Write for OneLine<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let shown = text.bytes().fold(true, |all, byte| all & matches!(byte, b' '..=b'~'));
        if shown || !text.contains(char::is_control) {
            self.0.push_str(text);
        } else {
            self.0.extend(text.escape_debug());
        }
        Ok(())
    }
}

fn number(out: &mut String, mut value: u64) {
    if let small @ 0..=9 = value {
        return out.push(char::from(b'0' + small as u8));
    }
    let mut text = [0; 20];
    let mut at = text.len();
    while value > 0 {
        at -= 1;
        text[at] = b'0' + (value % 10) as u8;
        value /= 10;
    }
    // Digits alone.
    out.push_str(std::str::from_utf8(&text[at..]).unwrap_or_default());
}

/// `2026-01-31T12:00:00.000000Z`.
fn stamp(out: &mut String, at: SystemTime) {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years are counted from March, so that the leap day is their last: eras of 400 years, years,
    // months. Howard Hinnant's `civil_from_days`, for days after 1970.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let mut text = *b"0000-00-00T00:00:00.000000Z";
    // A year has four digits for the next eight thousand years.
    digits(&mut text[0..4], year as u32 % 10_000);
    digits(&mut text[5..7], month as u32);
    digits(&mut text[8..10], day as u32);
    digits(&mut text[11..13], second as u32 / 3_600);
    digits(&mut text[14..16], second as u32 / 60 % 60);
    digits(&mut text[17..19], second as u32 % 60);
    digits(&mut text[20..26], since.subsec_micros());
    // Digits and what is between them.
    out.push_str(std::str::from_utf8(&text).unwrap_or_default());
}

/// The last digits of `value`, as many as there is room for.
#[inline]
fn digits(out: &mut [u8], mut value: u32) {
    for digit in out.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_written_as_everybody_reads_it() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_767_225_599, "2025-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            let mut out = String::new();
            stamp(&mut out, UNIX_EPOCH + Duration::from_secs(seconds));
            assert_eq!(out, text);
        }
        for value in [0, 9, 10, 42, 1_234, u64::MAX] {
            let mut out = String::new();
            number(&mut out, value);
            assert_eq!(out, value.to_string());
        }
        let mut out = String::new();
        stamp(&mut out, UNIX_EPOCH + Duration::from_micros(1_000_042));
        assert_eq!(out, "1970-01-01T00:00:01.000042Z");
    }

    #[test]
    fn an_event_is_one_line_whatever_is_in_it() {
        let shared = Arc::new(Shared::default());
        let lines = tracing_subscriber::registry().with(Lines(Out(shared.clone())));
        tracing::subscriber::with_default(lines, || {
            tracing::info!(target: "t", n = 7, many = u64::MAX, yes = true, word = "a b", odd = "\"\n", shown = %"x\ny", none = None::<u8>, "said");
        });
        let text = String::from_utf8(shared.lines.lock().text.clone()).unwrap();
        let (stamp, rest) = text.split_once(' ').unwrap();
        assert!(stamp.ends_with('Z') && stamp.len() == 27, "{stamp}");
        assert_eq!(
            rest,
            " INFO t: said n=7 many=18446744073709551615 yes=true word=\"a b\" odd=\"\\\"\\n\" shown=x\\ny\n"
        );
    }

    #[test]
    fn what_is_logged_after_the_end_is_still_written() {
        let shared = Arc::new(Shared::default());
        shared.push(b"one\n", false);
        shared.lines.lock().closed = true;
        shared.run();
        assert!(shared.lines.lock().text.is_empty());
        shared.push(b"two\n", false);
        assert!(shared.lines.lock().text.is_empty(), "written by whoever logged it");
    }
}
