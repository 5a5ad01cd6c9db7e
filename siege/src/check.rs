//! A check: its name, its bound on time, and what it has seen.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use steadfast_sim::SimProvider;

use crate::{process::Setup, provider::Providers, site::Site};

/// What a check has seen: in a sentence when all was well, else what was wrong.
pub(crate) type Seen = Result<String, Failed>;

/// Why a check failed. Made of whatever can be printed.
pub(crate) struct Failed(pub(crate) String);

impl<E: fmt::Display> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

type Run = Box<dyn FnOnce(Arc<Site>) -> Pin<Box<dyn Future<Output = Seen> + Send>> + Send>;

/// One attack.
pub(crate) struct Check {
    pub(crate) name: String,
    pub(crate) is_quick: bool,
    /// It has failed when it takes longer.
    pub(crate) bound: Duration,
    pub(crate) run: Run,
}

impl Check {
    /// A quick check that takes at most ten seconds.
    pub(crate) fn new<F, R>(name: impl Into<String>, run: F) -> Self
    where
        F: FnOnce(Arc<Site>) -> R + Send + 'static,
        R: Future<Output = Seen> + Send + 'static,
    {
        Self {
            name: name.into(),
            is_quick: true,
            bound: Duration::from_secs(10),
            run: Box::new(|site| Box::pin(run(site))),
        }
    }

    /// Bounds its time.
    pub(crate) fn within_s(mut self, seconds: u64) -> Self {
        self.bound = Duration::from_secs(seconds);
        self
    }

    /// Leaves it out of the quick part.
    pub(crate) fn slow(mut self) -> Self {
        self.is_quick = false;
        self
    }
}

/// Checks of one kind, against one process.
pub(crate) struct Category {
    pub(crate) name: &'static str,
    /// Providers of its own.
    pub(crate) simulated: fn() -> Vec<SimProvider>,
    /// How the process is configured.
    pub(crate) setup: fn(&Providers) -> Setup,
    /// How many of its checks run at once: those that mostly wait.
    pub(crate) at_once: usize,
    pub(crate) checks: fn() -> Vec<Check>,
}

/// `Ok` with what was seen when `holds`, else the same as a failure.
pub(crate) fn expect(holds: bool, seen: impl Into<String>) -> Seen {
    if holds { Ok(seen.into()) } else { Err(Failed(seen.into())) }
}
