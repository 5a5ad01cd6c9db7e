//! One writer a file: a task that appends records in their order, and keeps what the disk does not take.

use std::{sync::Arc, time::Duration};

use steadfast_store::StoreError;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use crate::{DeliveryFolder, event};

/// A file of records, as its writer sees it. Blocks.
pub(crate) trait JournalFile: Send + 'static {
    type Record: Send + Sync + 'static;

    /// The file's name, for people.
    const NAME: &'static str;

    /// Appends these records: when it returns they are on the disk.
    fn append(&mut self, records: &[Self::Record]) -> Result<(), StoreError>;

    /// Removes those of `records`, which wait to be written, that later ones of them have replaced, and what a file would not keep.
    fn compress(&self, records: &mut Vec<Self::Record>);
}

/// Gives records to the writer. It does not wait, and does not care whether the disk does.
#[derive(Debug)]
pub(crate) struct Journal<R> {
    jobs: mpsc::UnboundedSender<Job<R>>,
    /// `Some` once the writer has ended: whether everything was written.
    ended: watch::Receiver<Option<bool>>,
}

#[derive(Debug)]
enum Job<R> {
    /// To be written; whoever waits for it learns whether it is on the disk, or in memory alone.
    Write(R, Option<oneshot::Sender<bool>>),
    Close,
}

/// The most records that are written at once. Those that wait for a disk that takes none are compressed when they are twice as
/// many as the last time, and so many more.
const BATCH: usize = 1_024;

impl<R: Send + Sync + 'static> Journal<R> {
    /// Starts the writer of `file`. It ends when it is closed, or when this is dropped and everything is written; it holds the
    /// lock of the `folder` until then.
    pub(crate) fn start<F: JournalFile<Record = R>>(
        file: F,
        folder: DeliveryFolder,
        retry_every: Duration,
    ) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        let (result, ended) = watch::channel(None);
        tokio::spawn(async move {
            let mut writer = Writer::new(file, retry_every);
            let written = writer.run(queue).await;
            // The file before the folder's lock.
            drop(writer);
            drop(folder);
            result.send_replace(Some(written));
        });
        Self { jobs, ended }
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

    /// Writes what was given before, and ends. False, however often it is asked: not all of it could be written.
    pub(crate) async fn close(&self) -> bool {
        // It has ended before, or is no more: then its result is what counts.
        let _ = self.jobs.send(Job::Close);
        let mut ended = self.ended.clone();
        ended.wait_for(Option::is_some).await.is_ok_and(|written| *written == Some(true))
    }
}

/// What the writer's task has.
struct Writer<F: JournalFile> {
    /// `None` while it is written to; for ever, when that has panicked.
    file: Option<F>,
    /// What is not on the disk.
    waiting: Arc<Vec<F::Record>>,
    /// They are compressed when they are so many.
    compress_at: usize,
    /// The disk takes nothing, and is tried again at this time.
    retry_at: Option<Instant>,
    retry_every: Duration,
}

impl<F: JournalFile> Writer<F> {
    fn new(file: F, retry_every: Duration) -> Self {
        let waiting = Arc::default();
        Self { file: Some(file), waiting, compress_at: BATCH, retry_at: None, retry_every }
    }

    /// Writes until it is closed, or nobody can give it anything; whether everything is written.
    async fn run(&mut self, mut queue: mpsc::UnboundedReceiver<Job<F::Record>>) -> bool {
        loop {
            let mut jobs = Vec::new();
            tokio::select! {
                _ = queue.recv_many(&mut jobs, BATCH) => {}
                () = at(self.retry_at) => {}
            }
            let mut ends = jobs.is_empty() && queue.is_closed() && queue.is_empty();
            let mut waiters = Vec::new();
            let Some(records) = Arc::get_mut(&mut self.waiting) else { return false };
            for job in jobs {
                match job {
                    Job::Write(record, waiter) => {
                        records.push(record);
                        waiters.extend(waiter);
                    }
                    Job::Close => ends = true,
                }
            }
            let is_due = self.retry_at.is_none_or(|at| at <= Instant::now());
            let written = if is_due || ends { self.write().await } else { false };
            self.compress();
            for waiter in waiters {
                // Nobody may be waiting any more.
                let _ = waiter.send(written);
            }
            if ends || self.file.is_none() {
                return written;
            }
        }
    }

    /// Writes what waits; whether it is on the disk.
    async fn write(&mut self) -> bool {
        if self.waiting.is_empty() {
            return true;
        }
        let Some(mut file) = self.file.take() else { return false };
        let batch = self.waiting.clone();
        let work = tokio::task::spawn_blocking(move || {
            let result = file.append(&batch);
            drop(batch);
            (file, result)
        });
        // It fails when it has panicked, or the runtime is shutting down.
        let Ok((file, result)) = work.await else { return false };
        self.file = Some(file);
        match result {
            Ok(()) => {
                if self.retry_at.take().is_some() {
                    event::written_again(F::NAME, self.waiting.len());
                }
                (self.waiting, self.compress_at) = (Arc::default(), BATCH);
                true
            }
            Err(error) => {
                if self.retry_at.is_none() {
                    event::not_written(F::NAME, &error);
                }
                self.retry_at = Some(Instant::now() + self.retry_every);
                false
            }
        }
    }

    /// Keeps what waits for the disk bounded.
    fn compress(&mut self) {
        if self.waiting.len() < self.compress_at {
            return;
        }
        if let (Some(file), Some(records)) = (&self.file, Arc::get_mut(&mut self.waiting)) {
            file.compress(records);
            self.compress_at = 2 * records.len() + BATCH;
        }
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// A disk by a script, and how many records each append had.
    #[derive(Clone, Debug, Default)]
    struct Disk(Arc<Mutex<(DiskDoes, Vec<usize>)>>);

    #[derive(Clone, Copy, Debug, Default)]
    enum DiskDoes {
        #[default]
        Writes,
        Fails,
        Panics,
    }

    impl Disk {
        fn set(&self, does: DiskDoes) {
            self.0.lock().0 = does;
        }

        fn appends(&self) -> Vec<usize> {
            std::mem::take(&mut self.0.lock().1)
        }
    }

    impl JournalFile for Disk {
        type Record = u32;

        const NAME: &'static str = "a file";

        fn append(&mut self, records: &[u32]) -> Result<(), StoreError> {
            let does = {
                let mut state = self.0.lock();
                state.1.push(records.len());
                state.0
            };
            match does {
                DiskDoes::Writes => Ok(()),
                DiskDoes::Fails => {
                    // Nothing is there.
                    let missing = steadfast_store::AppendLog::<u32>::read("".as_ref(), |_| ());
                    missing.map(drop)
                }
                DiskDoes::Panics => panic!("as the script says"),
            }
        }

        /// One of a hundred is enough.
        fn compress(&self, records: &mut Vec<u32>) {
            records.retain(|record| record % 100 == 0);
        }
    }

    async fn journal() -> (Disk, Journal<u32>, tempfile::TempDir) {
        let (disk, folder) = (Disk::default(), tempfile::tempdir().unwrap());
        let locked = DeliveryFolder::open(folder.path()).await.unwrap();
        let journal = Journal::start(disk.clone(), locked, Duration::from_secs(5));
        (disk, journal, folder)
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_fails_is_tried_now_and_then_and_what_waits_is_bounded() {
        let (disk, journal, _folder) = journal().await;
        disk.set(DiskDoes::Fails);
        assert_eq!(journal.write_and_wait(0).await, Ok(false));
        assert_eq!(disk.appends(), [1]);
        for record in 1..100_000 {
            journal.write(record);
        }
        assert_eq!(journal.write_and_wait(100_000).await, Ok(false), "told at once");
        assert_eq!(disk.appends(), [0; 0], "not tried for each");
        tokio::time::sleep(Duration::from_secs(6)).await;
        let tried = disk.appends();
        assert!(matches!(tried[..], [one] if one < 6_000), "{tried:?}");
        disk.set(DiskDoes::Writes);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(disk.appends(), tried);
        assert_eq!(journal.write_and_wait(7).await, Ok(true));
        assert_eq!(disk.appends(), [1]);
        assert!(journal.close().await);
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_written_is_reported_however_often_it_is_closed() {
        for (does, written) in
            [(DiskDoes::Writes, true), (DiskDoes::Fails, false), (DiskDoes::Panics, false)]
        {
            let (disk, journal, _folder) = journal().await;
            disk.set(does);
            journal.write(1);
            for _ in 0..3 {
                assert_eq!(journal.close().await, written, "{does:?}");
            }
        }
        // Its writer died before.
        let (disk, journal, _folder) = journal().await;
        disk.set(DiskDoes::Panics);
        assert_eq!(journal.write_and_wait(1).await, Ok(false));
        assert!(!journal.close().await);
    }
}
