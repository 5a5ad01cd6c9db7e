//! A pool of buffers for the text that is kept of an answer.
//!
//! Both layers keep the text of every answer while it streams, so that they can continue it. A
//! successful answer should cost no allocation for it; without this pool it would cost one each
//! time its text doubles, in each of the two layers.

use std::cell::RefCell;

/// Buffers kept by a thread: one for each layer, for a few answers at a time.
const MAX_KEPT: usize = 16;

/// Larger buffers are freed: an answer of 4,000 tokens fits, and a thread keeps at most 256 KiB.
const MAX_CAPACITY: usize = 16 * 1024;

/// Buffers of answers that are over; the first `kept` are in use.
struct Pool {
    buffers: [String; MAX_KEPT],
    kept: usize,
}

thread_local! {
    // Per thread, so that no lock is needed. A buffer may be put back on another thread.
    static POOL: RefCell<Pool> =
        const { RefCell::new(Pool { buffers: [const { String::new() }; MAX_KEPT], kept: 0 }) };
}

/// An empty buffer, one of an earlier answer if there is any.
pub(crate) fn take() -> String {
    let last = |pool: &RefCell<Pool>| {
        let pool = &mut *pool.borrow_mut();
        pool.kept = pool.kept.saturating_sub(1);
        std::mem::take(&mut pool.buffers[pool.kept])
    };
    // The pool is gone while the thread ends.
    POOL.try_with(last).unwrap_or_default()
}

/// Keeps a buffer for another answer.
pub(crate) fn put(mut buffer: String) {
    if buffer.capacity() == 0 || buffer.capacity() > MAX_CAPACITY {
        return;
    }
    buffer.clear();
    let _ = POOL.try_with(|pool| {
        let pool = &mut *pool.borrow_mut();
        if let Some(empty) = pool.buffers.get_mut(pool.kept) {
            *empty = buffer;
            pool.kept += 1;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_a_few_small_buffers_without_their_contents() {
        put(String::new());
        put(String::with_capacity(MAX_CAPACITY + 1));
        assert_eq!(take().capacity(), 0, "neither is kept");
        for _ in 0..MAX_KEPT + 9 {
            put("private".into());
        }
        for _ in 0..MAX_KEPT {
            let buffer = take();
            assert_eq!((buffer.as_str(), buffer.capacity() > 0), ("", true));
        }
        assert_eq!(take().capacity(), 0, "all are taken");
    }
}
