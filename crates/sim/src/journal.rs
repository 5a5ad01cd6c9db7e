//! The requests that a provider received and how each of them ended.

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

/// Every request a provider received, in order of arrival. Cheap to clone; clones share one
/// journal.
///
/// Several providers can share one journal, which then has the order among them.
#[derive(Clone, Debug)]
pub struct Journal {
    shared: Arc<JournalState>,
}

#[derive(Debug)]
struct JournalState {
    started: Instant,
    keep: usize,
    kept: Mutex<Kept>,
    changed: Notify,
}

/// Entries are identified by their absolute number, which stays the same when old ones are removed.
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

/// One request and its outcome.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// The provider's name.
    pub provider: String,
    /// Its number among the provider's generations since the last fault plan, from 1,
    /// embeddings among them; 0 for what generates nothing (model lists, token counts, unknown paths).
    pub number: u64,
    /// When it arrived, on tokio's clock since the journal was created.
    pub at: Duration,
    /// The method.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The query as received, its `key` redacted.
    pub query: String,
    /// The headers in order. Credentials are replaced by a hash and their last characters:
    /// comparable, not usable.
    pub headers: Vec<(String, String)>,
    /// The redacted credential, from whichever header or parameter carried it.
    pub key: Option<String>,
    /// The body's bytes.
    pub body: Bytes,
    /// The body as JSON, if it is JSON. On a platform it is the vendor's: what was in the platform's envelope.
    pub json: Option<Value>,
    /// The model asked for; empty if none was.
    pub model: String,
    /// Whether a stream was asked for.
    pub stream: bool,
    /// The fault that was applied.
    pub fault: Option<Fault>,
    /// The status of the response, once there was one.
    pub status: Option<u16>,
    /// The error message if the provider itself refused the request (not a fault).
    pub refused: Option<String>,
    /// The complete answer, also of one that was broken.
    pub sent: Option<Sent>,
    /// Content events that the client took.
    pub events: usize,
    /// Bytes of the body that the client took.
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
    /// The client took everything.
    Complete,
    /// The provider broke the connection.
    Broken,
    /// The client disconnected before the end.
    Dropped,
}

impl Default for Journal {
    fn default() -> Self {
        Self::new()
    }
}

impl Journal {
    /// An empty journal that starts now and keeps everything.
    #[must_use]
    pub fn new() -> Self {
        Self::keeping(usize::MAX)
    }

    /// An empty journal that keeps the newest `keep` requests (at least one), for long-running
    /// servers. Counts include the requests that are no longer kept.
    #[must_use]
    pub fn keeping(keep: usize) -> Self {
        let shared = JournalState {
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

    /// How many requests arrived, kept or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.kept.lock().len()
    }

    /// Whether none arrived.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of the entries kept are of this provider.
    #[must_use]
    pub fn count(&self, provider: &str) -> usize {
        self.shared.kept.lock().entries.iter().filter(|e| e.provider == provider).count()
    }

    /// Waits until at least `n` requests have arrived.
    ///
    /// Cancel safe. Has no time limit.
    pub async fn wait_for(&self, n: usize) -> Vec<Entry> {
        self.wait(|kept| kept.len() >= n).await
    }

    /// Waits until at least `n` of the requests kept have ended, in whatever way.
    pub async fn wait_ended(&self, n: usize) -> Vec<Entry> {
        self.wait_until(|entries| entries.iter().filter(|e| e.end != End::Open).count() >= n).await
    }

    /// Waits until `done` returns true for the entries. It is called when a request arrives, when
    /// one ends, and when content is sent.
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

    /// Removes all entries, also of requests still in flight, and resets the counts.
    pub fn clear(&self) {
        let mut kept = self.shared.kept.lock();
        kept.first += kept.entries.len();
        kept.cleared = kept.first;
        kept.entries.clear();
        drop(kept);
        self.shared.changed.notify_waiters();
    }

    pub(crate) fn open(&self, mut entry: Entry) -> EntryGuard {
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
        EntryGuard { journal: self.clone(), number, open: true }
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

/// Writes one entry. Dropping it records that the client disconnected.
#[derive(Debug)]
pub(crate) struct EntryGuard {
    journal: Journal,
    number: usize,
    open: bool,
}

impl EntryGuard {
    /// Changes the entry, if it is still kept.
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

impl Drop for EntryGuard {
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
                    Some((scheme, signed)) if scheme.starts_with("AWS4-") => {
                        format!("{scheme} {}", redacted_signature(signed))
                    }
                    Some((scheme, secret)) => format!("{scheme} {}", hash::redact(secret)),
                    None => hash::redact(&text),
                },
                "x-api-key"
                | "x-goog-api-key"
                | "api-key"
                | "x-amz-security-token"
                | "proxy-authorization"
                | "cookie" => hash::redact(&text),
                _ => text.into_owned(),
            };
            (name.as_str().to_owned(), shown)
        })
        .collect()
}

/// A signature's fields: whose it is and what it signs are no secrets.
fn redacted_signature(fields: &str) -> String {
    let field = |field: &str| match field.trim().split_once('=') {
        Some((name @ ("Credential" | "SignedHeaders"), value)) => format!("{name}={value}"),
        Some((name @ "Signature", value)) => format!("{name}={}", hash::redact(value)),
        _ => hash::redact(field),
    };
    fields.split(',').map(field).collect::<Vec<_>>().join(", ")
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
