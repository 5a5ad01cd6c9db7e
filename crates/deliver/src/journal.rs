//! One writer a file: a task that appends records in their order, and keeps what the disk does not take.

use std::{sync::Arc, time::Duration};

use steadfast_store::StoreError;
use tokio::sync::{mpsc, oneshot};

use crate::{DeliveryFolder, event};

/// A file of records, as its writer sees it. Blocks.
pub(crate) trait JournalFile: Send + 'static {
    type Record: Send + Sync + 'static;

    /// The file's name, for people.
    const NAME: &'static str;

    /// Appends these records: when it returns they are on the disk.
    fn append(&mut self, records: &[Self::Record]) -> Result<(), StoreError>;

    /// Removes those of `records`, which wait to be written, that later ones of them have replaced.
    fn compress(&self, records: &mut Vec<Self::Record>);
}

/// Gives records to the writer. It does not wait, and does not care whether the disk does.
#[derive(Debug)]
pub(crate) struct Journal<R> {
    jobs: mpsc::UnboundedSender<Job<R>>,
}

#[derive(Debug)]
enum Job<R> {
    /// To be written; whoever waits for it learns whether it is on the disk, or in memory alone.
    Write(R, Option<oneshot::Sender<bool>>),
    Close(oneshot::Sender<bool>),
}

/// Records that wait for a disk that takes none are compressed when there are so many.
const COMPRESSED_FROM: usize = 4_096;

impl<R: Send + Sync + 'static> Journal<R> {
    /// Starts the writer of `file`. It ends when it is closed, or when this is dropped and everything is written; it holds the
    /// lock of the `folder` until then.
    pub(crate) fn start<F: JournalFile<Record = R>>(
        file: F,
        folder: DeliveryFolder,
        retry_every: Duration,
    ) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let file = run(file, queue, retry_every).await;
            // The file before the folder's lock.
            drop(file);
            drop(folder);
        });
        Self { jobs }
    }

    /// Writes `record`, some time.
    pub(crate) fn write(&self, record: R) {
        // Without a writer the runtime is shutting down.
        let _ = self.jobs.send(Job::Write(record, None));
    }

    /// Writes `record`; the receiver learns whether it is on the disk.
    pub(crate) fn write_and_wait(&self, record: R) -> oneshot::Receiver<bool> {
        let (done, receiver) = oneshot::channel();
        let _ = self.jobs.send(Job::Write(record, Some(done)));
        receiver
    }

    /// Writes what was given before, and ends. False: not all of it could be written.
    pub(crate) async fn close(&self) -> bool {
        let (done, receiver) = oneshot::channel();
        if self.jobs.send(Job::Close(done)).is_err() {
            return true;
        }
        receiver.await.unwrap_or(false)
    }
}

async fn run<F: JournalFile>(
    file: F,
    mut queue: mpsc::UnboundedReceiver<Job<F::Record>>,
    retry_every: Duration,
) -> Option<F> {
    let mut file = Some(file);
    let mut waiting: Arc<Vec<F::Record>> = Arc::default();
    let mut failing = false;
    loop {
        let mut jobs = Vec::new();
        if failing {
            tokio::select! {
                _ = queue.recv_many(&mut jobs, COMPRESSED_FROM) => {}
                () = tokio::time::sleep(retry_every) => {}
            }
        } else {
            queue.recv_many(&mut jobs, COMPRESSED_FROM).await;
        }
        let ended = jobs.is_empty() && queue.is_closed();
        let (mut close, mut waiters) = (None, Vec::new());
        let records = Arc::get_mut(&mut waiting)?;
        for job in jobs {
            match job {
                Job::Write(record, waiter) => {
                    records.push(record);
                    waiters.extend(waiter);
                }
                Job::Close(done) => close = Some(done),
            }
        }
        let mut written = true;
        if !records.is_empty() {
            let mut taken = file.take()?;
            let batch = waiting.clone();
            let work = tokio::task::spawn_blocking(move || {
                let result = taken.append(&batch);
                drop(batch);
                (taken, result)
            });
            // It fails when the runtime is shutting down.
            let (returned, result) = work.await.ok()?;
            match result {
                Ok(()) => {
                    if failing {
                        event::written_again(F::NAME, waiting.len());
                    }
                    waiting = Arc::default();
                    failing = false;
                }
                Err(error) => {
                    if !failing {
                        event::not_written(F::NAME, &error);
                    }
                    (failing, written) = (true, false);
                    if let Some(records) =
                        Arc::get_mut(&mut waiting).filter(|all| all.len() >= COMPRESSED_FROM)
                    {
                        returned.compress(records);
                    }
                }
            }
            file = Some(returned);
        }
        for waiter in waiters {
            // Nobody may be waiting any more.
            let _ = waiter.send(written);
        }
        if let Some(close) = close {
            queue.close();
            let _ = close.send(written);
            return file;
        }
        if ended {
            return file;
        }
    }
}
