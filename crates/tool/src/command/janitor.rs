//! The thread that ends commands.

use std::{io, sync::OnceLock, time::Duration};

use steadfast_core::time::millis;
use tokio::{
    process::Child,
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::tree::{ProcessTree, TreeEnd};

/// Ends commands on a thread of its own: also of a call that was dropped, and while the runtime it was made on
/// shuts down. Searching `/proc` would block a worker, too.
#[derive(Clone, Debug)]
pub(super) struct Janitor(mpsc::UnboundedSender<Job>);

type Job = (Ending, oneshot::Sender<TreeEnd>);

/// A command that is to end.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) tree: ProcessTree,
    /// The shell, if it has not been waited for.
    pub(super) child: Option<Child>,
    pub(super) grace: Duration,
    /// Why, for logs.
    pub(super) why: &'static str,
}

/// The one of this process, which starts with its first command.
static JANITOR: OnceLock<Janitor> = OnceLock::new();

impl Janitor {
    /// The one of this process.
    pub(super) fn get() -> io::Result<&'static Self> {
        if let Some(janitor) = JANITOR.get() {
            return Ok(janitor);
        }
        let (jobs, mut received) = mpsc::unbounded_channel::<Job>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let run = move || {
            runtime.block_on(async {
                while let Some((ending, done)) = received.recv().await {
                    tokio::spawn(ending.run(done));
                }
            });
        };
        // Where two begin at once, the other one's ends with its channel.
        std::thread::Builder::new().name("steadfast-tool".into()).spawn(run)?;
        Ok(JANITOR.get_or_init(|| Self(jobs)))
    }

    /// Ends a command. Nobody need wait for the answer.
    pub(super) fn end(&self, ending: Ending) -> oneshot::Receiver<TreeEnd> {
        let (done, answer) = oneshot::channel();
        let _ = self.0.send((ending, done));
        answer
    }
}

impl Ending {
    async fn run(self, done: oneshot::Sender<TreeEnd>) {
        let Self { tree, child, grace, why } = self;
        let began = Instant::now();
        // A call that is dropped while it is ended has nobody who waits for its grace.
        let end = tree.end(child, grace, || done.is_closed()).await;
        let (processes, left, elapsed_ms) = (end.ended, end.left, millis(began.elapsed()));
        if left > 0 {
            tracing::event!(
                name: "steadfast::tool::survived",
                target: "steadfast::tool",
                tracing::Level::ERROR,
                why,
                processes,
                left,
                elapsed_ms,
                "processes of a command could not be killed"
            );
        } else if processes > 0 || why != LEFTOVERS {
            tracing::event!(
                name: "steadfast::tool::killed",
                target: "steadfast::tool",
                tracing::Level::INFO,
                why,
                processes,
                elapsed_ms,
                "the processes of a command were ended"
            );
        }
        // Whoever waited may be gone.
        let _ = done.send(end);
    }
}

/// The command had ended by itself.
pub(super) const LEFTOVERS: &str = "leftovers";
