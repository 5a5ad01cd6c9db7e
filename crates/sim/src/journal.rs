//! What a provider saw and what it did.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::hash;
use crate::{Fault, Sent};

/// Every request a provider saw, in order of arrival. Cheap to clone; clones are one journal.
///
/// Several providers can write one journal, which then holds the order among them.
#[derive(Clone, Debug)]
pub struct Journal {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    started: Instant,
    keep: usize,
    kept: Mutex<Kept>,
    changed: Notify,
}

/// Entries are known by their absolute number, which survives forgetting.
#[derive(Debug, Default)]
struct Kept {
    entries: VecDeque<Entry>,
    /// The number of the first entry kept.
    first: usize,
    /// The number of the first entry since the last `clear`.
    cleared: usize,
}

impl Kept {
    fn len(&self) -> usize {
        self.first + self.entries.len() - self.cleared
    }

    fn to_vec(&self) -> Vec<Entry> {
        self.entries.iter().cloned().collect()
    }
}

/// One request and what became of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// The provider's name.
    pub provider: String,
    /// Its number among the provider's generations since the last fault plan, from 1; 0 for
    /// requests that generate nothing (model lists, token counts, unknown paths).
    pub number: u64,
    /// When it came, on tokio's clock since the journal began.
    pub at: Duration,
    /// The method.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The query as it came, its `key` redacted.
    pub query: String,
    /// The headers in order. Credentials are replaced by a hash and their last characters:
    /// comparable, not usable.
    pub headers: Vec<(String, String)>,
    /// The redacted credential, wherever it came from.
    pub key: Option<String>,
    /// The body's bytes.
    pub body: Bytes,
    /// The body as JSON, if it is that.
    pub json: Option<Value>,
    /// The model asked for; empty if none was.
    pub model: String,
    /// Whether a stream was asked for.
    pub stream: bool,
    /// The fault that was applied.
    pub fault: Option<Fault>,
    /// The status of the response, once there was one.
    pub status: Option<u16>,
    /// Why the provider itself refused the request (not: a fault), in its words.
    pub refused: Option<String>,
    /// The whole truth of the answer, also of one that was broken.
    pub sent: Option<Sent>,
    /// Content events handed out.
    pub events: usize,
    /// Bytes of the body handed out.
    pub bytes: usize,
    /// How it ended.
    pub end: End,
    /// When it ended, on the same clock as `at`.
    pub ended_at: Option<Duration>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End {
    /// Not yet.
    Open,
    /// All that was to be sent was taken.
    Complete,
    /// The provider broke the connection.
    Broken,
    /// The client went away before.
    Dropped,
}

impl Default for Journal {
    fn default() -> Self {
        Self::new()
    }
}

impl Journal {
    /// An empty journal that begins now and keeps everything.
    #[must_use]
    pub fn new() -> Self {
        Self::keeping(usize::MAX)
    }

    /// An empty journal that keeps the newest `keep` requests (at least one), for servers that
    /// run for long. Counts go on.
    #[must_use]
    pub fn keeping(keep: usize) -> Self {
        let shared = Shared {
            started: Instant::now(),
            keep: keep.max(1),
            kept: Mutex::default(),
            changed: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// All entries kept, in order of arrival.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.shared.kept.lock().to_vec()
    }

    /// The entries of one provider.
    #[must_use]
    pub fn of(&self, provider: &str) -> Vec<Entry> {
        let kept = self.shared.kept.lock();
        kept.entries.iter().filter(|e| e.provider == provider).cloned().collect()
    }

    /// The newest entry.
    #[must_use]
    pub fn last(&self) -> Option<Entry> {
        self.shared.kept.lock().entries.back().cloned()
    }

    /// How many requests came, kept or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.kept.lock().len()
    }

    /// Whether none came.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of the entries kept are of this provider.
    #[must_use]
    pub fn count(&self, provider: &str) -> usize {
        self.shared.kept.lock().entries.iter().filter(|e| e.provider == provider).count()
    }

    /// Waits until at least `n` requests have come.
    ///
    /// Cancel safe. Has no time limit of its own.
    pub async fn wait_for(&self, n: usize) -> Vec<Entry> {
        self.wait(|kept| kept.len() >= n).await
    }

    /// Waits until at least `n` of the requests kept have ended, however.
    pub async fn wait_ended(&self, n: usize) -> Vec<Entry> {
        self.wait_until(|entries| entries.iter().filter(|e| e.end != End::Open).count() >= n).await
    }

    /// Waits until `done` says so of the entries. It is asked when a request comes, when one
    /// ends, and when content is handed out.
    pub async fn wait_until(&self, done: impl Fn(&[Entry]) -> bool) -> Vec<Entry> {
        self.wait(|kept| done(kept.entries.make_contiguous())).await
    }

    async fn wait(&self, done: impl Fn(&mut Kept) -> bool) -> Vec<Entry> {
        loop {
            let changed = self.shared.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            {
                let mut kept = self.shared.kept.lock();
                if done(&mut kept) {
                    return kept.to_vec();
                }
            }
            changed.await;
        }
    }

    /// Forgets everything seen so far, counts too. Requests still under way are forgotten.
    pub fn clear(&self) {
        let mut kept = self.shared.kept.lock();
        kept.first += kept.entries.len();
        kept.cleared = kept.first;
        kept.entries.clear();
        drop(kept);
        self.shared.changed.notify_waiters();
    }

    pub(crate) fn open(&self, mut entry: Entry) -> Ticket {
        entry.at = self.shared.started.elapsed();
        let mut kept = self.shared.kept.lock();
        let number = kept.first + kept.entries.len();
        kept.entries.push_back(entry);
        if kept.entries.len() > self.shared.keep {
            kept.entries.pop_front();
            kept.first += 1;
        }
        drop(kept);
        self.shared.changed.notify_waiters();
        Ticket { journal: self.clone(), number, open: true }
    }
}

impl Entry {
    pub(crate) fn new(provider: &str, method: &str, path: &str) -> Self {
        Self {
            provider: provider.to_owned(),
            number: 0,
            at: Duration::ZERO,
            method: method.to_owned(),
            path: path.to_owned(),
            query: String::new(),
            headers: Vec::new(),
            key: None,
            body: Bytes::new(),
            json: None,
            model: String::new(),
            stream: false,
            fault: None,
            status: None,
            refused: None,
            sent: None,
            events: 0,
            bytes: 0,
            end: End::Open,
            ended_at: None,
        }
    }

    /// The first header of this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }
}

/// The right to write one entry. Dropping it means that the client went away.
#[derive(Debug)]
pub(crate) struct Ticket {
    journal: Journal,
    number: usize,
    open: bool,
}

impl Ticket {
    /// Changes the entry, unless it was forgotten.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Entry)) {
        let shared = &self.journal.shared;
        let mut kept = shared.kept.lock();
        let at = self.number.checked_sub(kept.first);
        if let Some(entry) = at.and_then(|at| kept.entries.get_mut(at)) {
            change(entry);
        }
        drop(kept);
        shared.changed.notify_waiters();
    }

    pub(crate) fn end(&mut self, end: End) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let now = self.journal.shared.started.elapsed();
        self.update(|entry| {
            entry.end = end;
            entry.ended_at = Some(now);
        });
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}

/// Headers as the journal keeps them.
pub(crate) fn redacted_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .map(|(name, value)| {
            let text = String::from_utf8_lossy(value.as_bytes());
            let shown = match name.as_str() {
                "authorization" => match text.split_once(' ') {
                    Some((scheme, secret)) => format!("{scheme} {}", hash::redact(secret)),
                    None => hash::redact(&text),
                },
                "x-api-key" | "x-goog-api-key" | "api-key" | "proxy-authorization" | "cookie" => {
                    hash::redact(&text)
                }
                _ => text.into_owned(),
            };
            (name.as_str().to_owned(), shown)
        })
        .collect()
}

/// The query as the journal keeps it.
pub(crate) fn redacted_query(query: &str) -> String {
    query
        .split('&')
        .map(|pair| match pair.strip_prefix("key=") {
            Some(secret) => format!("key={}", hash::redact(secret)),
            None => pair.to_owned(),
        })
        .collect::<Vec<_>>()
        .join("&")
}
