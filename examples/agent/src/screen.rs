//! What the user sees: text as it comes, a line for each tool and each recovery, and a spinner while nothing comes.

use std::{
    fmt::Display,
    io::{IsTerminal as _, Write, stdout},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use steadfast::Step;
use tokio::{task::JoinHandle, time::Instant};

/// The terminal, or whatever standard output is. Clones are the same screen.
#[derive(Clone)]
pub(crate) struct Screen(Arc<Mutex<State>>);

struct State {
    out: Box<dyn Write + Send>,
    /// Whether there is somebody who sees a spinner.
    is_terminal: bool,
    /// The last thing written did not end its line.
    mid_line: bool,
    /// A spinner is on the line.
    spins: bool,
}

const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

impl Screen {
    /// Standard output.
    pub(crate) fn new() -> Self {
        Self::on(stdout(), stdout().is_terminal())
    }

    /// Something else.
    pub(crate) fn on(out: impl Write + Send + 'static, is_terminal: bool) -> Self {
        let out = Box::new(out);
        Self(Arc::new(Mutex::new(State { out, is_terminal, mid_line: false, spins: false })))
    }

    /// A piece of the model's text.
    pub(crate) fn text(&self, piece: &str) {
        let mut state = self.0.lock();
        state.wipe();
        state.put(piece);
        state.mid_line = !piece.ends_with('\n');
    }

    /// A line of its own.
    pub(crate) fn line(&self, line: impl Display) {
        let mut state = self.0.lock();
        state.wipe();
        let newline = if std::mem::take(&mut state.mid_line) { "\n" } else { "" };
        state.put(&format!("{newline}{line}\n"));
    }

    /// A line about the work: less bright than the answer.
    pub(crate) fn aside(&self, line: impl Display) {
        let is_terminal = self.0.lock().is_terminal;
        match is_terminal {
            true => self.line(format_args!("\x1b[2m  {line}\x1b[0m")),
            false => self.line(format_args!("  {line}")),
        }
    }

    /// What a layer did.
    pub(crate) fn step(&self, step: &Step) {
        let who = step.identity.as_ref().and_then(|identity| identity.agent.clone());
        match who {
            Some(agent) => self.aside(format_args!("~ [{agent}] {step}")),
            None => self.aside(format_args!("~ {step}")),
        }
    }

    /// Shows that something is going on until it is dropped.
    pub(crate) fn spinner(&self, what: &'static str) -> Spinner {
        if !self.0.lock().is_terminal {
            return Spinner(None);
        }
        let (screen, since) = (self.clone(), Instant::now());
        let spinning = tokio::spawn(async move {
            for frame in FRAMES.iter().cycle() {
                tokio::time::sleep(Duration::from_millis(120)).await;
                screen.spin(frame, what, since.elapsed());
            }
        });
        Spinner(Some((spinning, self.clone())))
    }

    fn spin(&self, frame: &str, what: &str, time: Duration) {
        let mut state = self.0.lock();
        if !state.mid_line {
            state.put(&format!("\r\x1b[2K{frame} {what} {} s", time.as_secs()));
            state.spins = true;
        }
    }
}

impl State {
    fn wipe(&mut self) {
        if std::mem::take(&mut self.spins) {
            self.put("\r\x1b[2K");
        }
    }

    /// Who reads may have gone; the agent works on.
    fn put(&mut self, text: &str) {
        let _ = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
    }
}

/// Spins until it is dropped.
pub(crate) struct Spinner(Option<(JoinHandle<()>, Screen)>);

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some((spinning, screen)) = &self.0 {
            spinning.abort();
            screen.0.lock().wipe();
        }
    }
}
