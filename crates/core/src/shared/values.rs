//! Values of one kind, as a layer shares them.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{SharedKey, SharedState};
use crate::{Keep, Keyed, KeyedPolicy, time::WallClock};

/// How long a call waits for a value at most: 20 ms, several times what a store in the same network takes, and a
/// hundredth of what a model takes for its first content.
pub const READ_LIMIT: Duration = Duration::from_millis(20);

/// The largest value that is shared: 256 KiB, which a store sends within the [limit](READ_LIMIT) over a network of
/// 100 Mbit/s.
pub const LARGEST_VALUE: usize = 256 << 10;

/// Of which keys it is remembered that they were read: 4,096, as many as there are conversations in a layer by default, for an hour.
const ASKED: KeyedPolicy = KeyedPolicy { capacity: 4_096, idle: Duration::from_secs(3_600) };

/// The read of a value. Dropping it leaves nothing behind.
pub type ValueFuture = Pin<Box<dyn Future<Output = ReadValue> + Send>>;

/// What a read has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadValue {
    /// The value.
    Found(Bytes),
    /// There is none.
    Nothing,
    /// The store is away, or has not answered in time.
    Away,
}

/// Values of one space, by keys that are the same in all processes: what a node that does not know something reads
/// of those that do.
#[derive(Clone)]
pub struct SharedValues {
    state: Arc<dyn SharedState>,
    space: &'static str,
    /// When the store has last answered for a key.
    asked: Arc<Keyed<SharedKey, Asked>>,
}

struct Asked(Mutex<Instant>);

impl Keep for Asked {}

impl SharedValues {
    /// The values in `space`.
    pub fn new(state: Arc<dyn SharedState>, space: &'static str) -> Self {
        Self { state, space, asked: Arc::new(Keyed::new(ASKED)) }
    }

    /// By which the times in values are.
    pub fn clock(&self) -> WallClock {
        self.state.clock()
    }

    /// Reads the value of `key`, within 20 ms; `None` at once while the store is away. Nothing is asked before the future is
    /// polled.
    pub fn read(&self, key: SharedKey) -> Option<ValueFuture> {
        if self.state.is_away() {
            return None;
        }
        let (state, space) = (self.state.clone(), self.space);
        Some(Box::pin(async move {
            let key = key.text();
            // A store keeps to it by itself; one of a program's own might not.
            match timeout(READ_LIMIT, state.get(space, &key)).await {
                Ok(Ok(Some(value))) => ReadValue::Found(value),
                Ok(Ok(None)) => ReadValue::Nothing,
                Ok(Err(_)) | Err(_) => ReadValue::Away,
            }
        }))
    }

    /// The same, but for a key that was read `since` then, whether or not there was a value: `None`. So what nobody knows is
    /// asked for once.
    pub fn read_since(&self, key: SharedKey, since: Instant) -> Option<ValueFuture> {
        if self.asked.get(&key).is_some_and(|asked| *asked.0.lock() >= since) {
            return None;
        }
        let (read, asked) = (self.read(key)?, self.asked.clone());
        Some(Box::pin(async move {
            let at = Instant::now();
            let value = read.await;
            if value != ReadValue::Away {
                let mark = asked.get_or_insert_with(&key, at, || Asked(Mutex::new(at)));
                *mark.0.lock() = at;
            }
            value
        }))
    }

    /// Keeps `value` for `key` for as long as `lasts`; whether it is small enough to be [shared](LARGEST_VALUE). Returns
    /// at once.
    pub fn put(&self, key: SharedKey, value: Bytes, lasts: Duration) -> bool {
        let fits = value.len() <= LARGEST_VALUE;
        if fits {
            self.state.put(self.space, &key.text(), value, lasts);
        }
        fits
    }
}

impl fmt::Debug for SharedValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedValues")
            .field("state", &self.state)
            .field("space", &self.space)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "shared"))]
mod tests {
    use super::*;
    use crate::shared::{EmbeddedStore, KeyDigest};

    fn key(name: &str) -> SharedKey {
        let mut digest = KeyDigest::default();
        digest.add(name.as_bytes());
        digest.key()
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_is_read_once_and_not_while_the_store_is_away() {
        let store = EmbeddedStore::new();
        let (one, other) = (store.join("one"), store.join("other"));
        let one = SharedValues::new(Arc::new(one), "values");
        let values = SharedValues::new(Arc::new(other.clone()), "values");
        let start = Instant::now();
        let read = |name| values.read_since(key(name), start);
        drop(read("a").unwrap());
        assert_eq!(read("a").unwrap().await, ReadValue::Nothing, "one that was dropped is no read");
        assert!(read("a").is_none(), "nobody knows it");
        one.put(key("a"), Bytes::from_static(b"1"), Duration::from_secs(60));
        tokio::time::advance(Duration::from_secs(1)).await;
        let again = values.read_since(key("a"), Instant::now()).unwrap().await;
        assert_eq!(again, ReadValue::Found(Bytes::from_static(b"1")));
        let under_way = read("b").unwrap();
        other.set_away(true);
        assert_eq!(under_way.await, ReadValue::Away);
        assert!(read("b").is_none() && values.read(key("a")).is_none());
        other.set_away(false);
        assert_eq!(read("b").unwrap().await, ReadValue::Nothing, "it is not known yet");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_large_is_not_shared() {
        let values = SharedValues::new(Arc::new(EmbeddedStore::new().join("one")), "values");
        let minute = Duration::from_secs(60);
        assert!(values.put(key("a"), vec![0; LARGEST_VALUE].into(), minute));
        assert!(!values.put(key("a"), vec![1; LARGEST_VALUE + 1].into(), minute));
        let value = values.read(key("a")).unwrap().await;
        assert_eq!(value, ReadValue::Found(vec![0; LARGEST_VALUE].into()));
    }
}
