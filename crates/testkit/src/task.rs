//! Polling by hand, with a new waker each time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

/// Longer than anything a layer waits for by default.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(3_600);

/// Polls in a row without the clock advancing. The clauses need fewer than ten: an attempt, a
/// reply, some pieces.
const MAX_POLLS_AT_ONCE: u32 = 64;

/// Polls by hand: each poll has a new waker, and only the latest one counts, as for a task that
/// moves between executors.
///
/// ```
/// use std::task::Poll;
/// use steadfast_testkit::TestTask;
///
/// let mut task = TestTask::new();
/// let mut kept = None;
/// let polled = task.poll(|cx| {
///     kept = Some(cx.waker().clone());
///     Poll::<()>::Pending
/// });
/// assert!(polled.is_pending() && !task.is_woken());
/// kept.unwrap().wake();
/// assert!(task.is_woken());
/// ```
#[derive(Debug, Default)]
pub struct TestTask {
    latest: Option<Arc<Flag>>,
    /// Adds a spurious poll to each poll.
    pub(crate) polls_twice: bool,
    /// Every waker has a share.
    wakers: Arc<()>,
}

#[derive(Debug)]
struct Flag {
    woken: AtomicBool,
    notify: Notify,
    _waker: Arc<()>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.notify.notify_one();
    }
}

/// Why something that was polled did not become ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stuck {
    /// Its latest waker was not woken for [`WAIT_LIMIT`].
    NotWoken,
    /// It was woken again and again while the clock did not advance.
    Spins,
}

impl Stuck {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Stuck::NotWoken => {
                "it was pending, and the latest waker was not woken for an hour although what it \
                 waited for had come: a pending poll must register the waker of its own context"
            }
            Stuck::Spins => {
                "it woke itself again and again although nothing had happened and no time had passed, \
                 which burns a core: wake when what is waited for comes"
            }
        }
    }
}

impl TestTask {
    /// A task that has polled nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Polls with a new waker; those of earlier polls do not count any more.
    pub fn poll<T>(&mut self, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let flag = Arc::new(Flag {
            woken: AtomicBool::new(false),
            notify: Notify::new(),
            _waker: self.wakers.clone(),
        });
        let waker = Waker::from(flag.clone());
        self.latest = Some(flag);
        poll(&mut Context::from_waker(&waker))
    }

    /// Whether the waker of the latest poll has been woken.
    pub fn is_woken(&self) -> bool {
        self.latest.as_ref().is_some_and(|flag| flag.woken.load(Ordering::SeqCst))
    }

    /// How many wakers are still held: by a timer, a queue, a task.
    pub fn holders(&self) -> usize {
        let own = usize::from(self.latest.is_some());
        let latest = self.latest.as_ref().map_or(0, |flag| Arc::strong_count(flag) - 1);
        // Each flag has one share; the latest flag is also held here.
        Arc::strong_count(&self.wakers) - 1 - own + latest
    }

    /// Waits until the latest waker is woken; false when it is not within `patience`.
    pub(crate) async fn woken(&self, patience: Duration) -> bool {
        let Some(flag) = &self.latest else { return false };
        let woken = async {
            while !flag.woken.load(Ordering::SeqCst) {
                flag.notify.notified().await;
            }
        };
        tokio::time::timeout(patience, woken).await.is_ok()
    }

    /// Polls until it is ready, or for at most `most` polls (then `None`).
    pub(crate) async fn run<T>(
        &mut self,
        most: usize,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<Option<T>, Stuck> {
        let (mut at, mut at_once) = (Instant::now(), 0);
        for polls in 1.. {
            if polls > most {
                break;
            }
            for _ in 0..=usize::from(self.polls_twice) {
                if let Poll::Ready(value) = self.poll(&mut poll) {
                    return Ok(Some(value));
                }
            }
            if polls == most {
                break;
            }
            if !self.woken(WAIT_LIMIT).await {
                return Err(Stuck::NotWoken);
            }
            // Lets other tasks run, and resets tokio's cooperative budget.
            tokio::task::yield_now().await;
            let now = Instant::now();
            at_once = if now == at { at_once + 1 } else { 0 };
            at = now;
            if at_once > MAX_POLLS_AT_ONCE {
                return Err(Stuck::Spins);
            }
        }
        Ok(None)
    }

    /// Polls until it is ready.
    pub(crate) async fn finish<T>(
        &mut self,
        poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<T, Stuck> {
        match self.run(usize::MAX, poll).await? {
            Some(value) => Ok(value),
            None => Err(Stuck::NotWoken),
        }
    }
}
