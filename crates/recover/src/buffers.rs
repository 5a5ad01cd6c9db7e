//! Buffers for the text that is kept of an answer, used again.
//!
//! Both layers keep the text of every answer while it streams, so that they can go on with it. The rule
//! is that an answer that ends well costs no allocation of a layer; without this pool it would cost
//! one each time its text doubles, in each of the two layers.

use std::cell::RefCell;

/// Buffers kept by a thread: one for each layer of as many answers as usually end before as many
/// others begin.
const MOST: usize = 16;

/// Larger ones are given back to the allocator: an answer of 4,000 tokens fits, and a thread keeps at
/// most 256 KiB.
const LARGEST: usize = 16 * 1024;

/// Buffers of answers that are over, the first so many of them.
struct Spare {
    buffers: [String; MOST],
    kept: usize,
}

thread_local! {
    // Of the thread and not of the layer, so that no lock is needed. A buffer may come back on
    // another thread than it was taken on.
    static SPARE: RefCell<Spare> =
        const { RefCell::new(Spare { buffers: [const { String::new() }; MOST], kept: 0 }) };
}

/// An empty buffer. With those of answers that are over, an answer allocates nothing for what has
/// to be kept of it.
pub(crate) fn take() -> String {
    let last = |spare: &RefCell<Spare>| {
        let spare = &mut *spare.borrow_mut();
        spare.kept = spare.kept.saturating_sub(1);
        std::mem::take(&mut spare.buffers[spare.kept])
    };
    // A thread that ends keeps nothing.
    SPARE.try_with(last).unwrap_or_default()
}

/// Keeps a buffer for another answer.
pub(crate) fn put(mut buffer: String) {
    if buffer.capacity() == 0 || buffer.capacity() > LARGEST {
        return;
    }
    buffer.clear();
    let _ = SPARE.try_with(|spare| {
        let spare = &mut *spare.borrow_mut();
        if let Some(empty) = spare.buffers.get_mut(spare.kept) {
            *empty = buffer;
            spare.kept += 1;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_small_ones_are_kept_and_nothing_of_what_was_in_them() {
        put(String::new());
        put(String::with_capacity(LARGEST + 1));
        assert_eq!(take().capacity(), 0, "neither is kept");
        for _ in 0..MOST + 9 {
            put("private".into());
        }
        for _ in 0..MOST {
            let buffer = take();
            assert_eq!((buffer.as_str(), buffer.capacity() > 0), ("", true));
        }
        assert_eq!(take().capacity(), 0, "all are taken");
    }
}
