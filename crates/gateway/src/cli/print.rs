//! What commands print. `println!` panics when the reader is gone.

use std::{
    fmt::Display,
    io::{self, Write},
    sync::mpsc,
    thread,
    time::Duration,
};

/// How long a command waits for a reader of what it does not depend on: 1 s.
const PATIENCE: Duration = Duration::from_secs(1);

/// Prints `text`, which is what the command is for: nothing else comes after it that could not be printed.
pub(super) fn result(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Prints `text` on standard output, where somebody is likely to read it: a server goes on without.
pub(super) fn announce(text: impl Display) {
    within(format!("{text}\n"), io::stdout());
}

/// Prints `text` on standard error, where somebody is likely to read it.
pub(super) fn report(text: impl Display) {
    within(format!("{text}\n"), io::stderr());
}

/// Writes `text` for at most a second: a full pipe that nobody reads would hold it for ever.
fn within(text: String, mut out: impl Write + Send + 'static) {
    let (done, written) = mpsc::channel();
    let write = move || {
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        let _ = done.send(());
    };
    if thread::Builder::new().spawn(write).is_ok() {
        let _ = written.recv_timeout(PATIENCE);
    }
}
