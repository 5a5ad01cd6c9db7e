//! The sweep of runs that nobody ended.

use std::fmt;

use steadfast_core::time::later;
use tokio::{
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval_at},
};

use crate::{GhostPolicy, PolicyError, RunRegistry};

/// Finds runs that are marked as running long after they should have ended: those that a crash left, and those whose watchdog did not
/// fire.
///
/// They are failed (`ghost_sweep`), with one notice each. Notices that nobody has confirmed are sent again.
///
/// ```
/// use steadfast_supervise::{GhostPolicy, GhostSweep, RunRegistry};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), steadfast_supervise::PolicyError> {
/// let registry = RunRegistry::in_memory();
/// let _sweeping = GhostSweep::new(registry, GhostPolicy::default())?.spawn();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct GhostSweep {
    registry: RunRegistry,
    policy: GhostPolicy,
}

impl GhostSweep {
    /// Sweeps `registry` by `policy`, once [spawned](Self::spawn).
    ///
    /// # Errors
    ///
    /// When the policy is invalid; the error says what would be valid.
    pub fn new(registry: RunRegistry, policy: GhostPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self { registry, policy })
    }

    /// Sweeps once, now. How many runs were failed.
    pub fn sweep(&self) -> usize {
        self.registry.sweep(&self.policy)
    }

    /// Sweeps at once, and then again and again. Never ready.
    pub async fn run(self) {
        self.sweep();
        self.sweep_again().await;
    }

    async fn sweep_again(self) {
        let every = self.policy.every;
        let mut ticks = interval_at(later(Instant::now(), every), every);
        // After a suspended machine one sweep is enough.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.sweep();
        }
    }

    /// Sweeps before this returns, and then again and again, on a task of its own until the result is dropped. A registry that is to send
    /// notices has its [sink](RunRegistry::with_notices) before: what ends without one is announced to nobody.
    ///
    /// # Panics
    ///
    /// Outside of tokio's runtime.
    pub fn spawn(self) -> Sweeping {
        self.sweep();
        Sweeping(tokio::spawn(self.sweep_again()))
    }
}

/// A task that sweeps. It ends when this is dropped.
#[must_use = "the sweep ends when this is dropped"]
pub struct Sweeping(JoinHandle<()>);

impl Drop for Sweeping {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl fmt::Debug for Sweeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sweeping").field("ended", &self.0.is_finished()).finish()
    }
}
