//! Values of one kind, as a layer shares them.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::timeout;

use super::{SharedKey, SharedState};
use crate::time::WallClock;

/// How long a call waits for a value at most: 20 ms, several times what a store in the same network takes, and a
/// hundredth of what a model takes for its first content.
pub const READ_LIMIT: Duration = Duration::from_millis(20);

/// The largest value that is shared: 256 KiB, which a store sends within the [limit](READ_LIMIT) over a network of
/// 100 Mbit/s.
pub const LARGEST_VALUE: usize = 256 << 10;

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
#[derive(Clone, Debug)]
pub struct SharedValues {
    state: Arc<dyn SharedState>,
    space: &'static str,
}

impl SharedValues {
    /// The values in `space`.
    pub fn new(state: Arc<dyn SharedState>, space: &'static str) -> Self {
        Self { state, space }
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
