//! Large requests, whose reading and writing takes long enough to hold up everybody else.

use std::{num::NonZeroUsize, pin::Pin, sync::Arc, task::ready, thread::available_parallelism};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Semaphore,
    task::block_in_place,
};
use tokio_util::sync::PollSemaphore;

/// Runs large requests beside the workers, so many at a time: half as many as there are processors, so that the
/// other half is for all other calls.
#[derive(Clone, Debug)]
pub(super) struct Heavy(Arc<Semaphore>);

impl Default for Heavy {
    fn default() -> Self {
        let processors = available_parallelism().map_or(1, NonZeroUsize::get);
        Self(Arc::new(Semaphore::new((processors / 2).max(1))))
    }
}

impl Heavy {
    /// `future`, to be run so.
    pub(super) fn boxed<T: 'static>(
        self,
        mut future: Pin<Box<dyn Future<Output = T> + Send>>,
    ) -> Pin<Box<dyn Future<Output = T> + Send>> {
        Box::pin(async move { self.run(future.as_mut()).await })
    }

    /// Runs `future` to its end. Each time that it is polled waits for its turn and runs where it blocks no
    /// other task; while it waits for something it has no turn. In a runtime with one thread there is nowhere
    /// else to run it.
    pub(super) async fn run<F: Future + ?Sized>(&self, mut future: Pin<&mut F>) -> F::Output {
        if Handle::current().runtime_flavor() != RuntimeFlavor::MultiThread {
            return future.await;
        }
        let mut turns = PollSemaphore::new(self.0.clone());
        std::future::poll_fn(|cx| {
            // The semaphore is never closed.
            let _turn = ready!(turns.poll_acquire(cx));
            block_in_place(|| future.as_mut().poll(cx))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn others_go_on_while_large_ones_run_one_by_one() {
        let heavy = Heavy(Arc::new(Semaphore::new(1)));
        let (running, most, others) =
            <(Arc<AtomicUsize>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let mut calls = JoinSet::new();
        for _ in 0..3 {
            let (heavy, running, most, others) =
                (heavy.clone(), running.clone(), most.clone(), others.clone());
            calls.spawn(async move {
                let call = pin!(async {
                    for _ in 0..3 {
                        let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        // With one worker nobody else could run.
                        let before = others.load(Ordering::SeqCst);
                        while others.load(Ordering::SeqCst) == before {
                            std::thread::yield_now();
                        }
                        running.fetch_sub(1, Ordering::SeqCst);
                        tokio::task::yield_now().await;
                    }
                    7
                });
                assert_eq!(heavy.run(call).await, 7);
            });
        }
        let other = tokio::spawn(async move {
            loop {
                others.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        while let Some(ended) = calls.join_next().await {
            ended.unwrap();
        }
        other.abort();
        assert_eq!(most.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_runtime_of_one_thread_runs_it_itself() {
        assert_eq!(Heavy::default().run(pin!(async { 7 })).await, 7);
    }
}
