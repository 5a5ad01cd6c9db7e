//! Which requests are held: a state machine without a clock.

use std::collections::BTreeMap;

/// The held requests, by their number. `H` describes one, `R` is where its decision goes.
#[derive(Debug)]
pub(crate) struct Registry<H, R> {
    /// The number of the request that was admitted last.
    last: u64,
    bytes: u64,
    entries: BTreeMap<u64, Entry<H, R>>,
}

#[derive(Debug)]
struct Entry<H, R> {
    bytes: u64,
    /// While somebody may decide.
    waiting: Option<(H, R)>,
}

/// Up to when requests are admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) held: usize,
    pub(crate) bytes: u64,
}

/// Why a request is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overflow {
    /// As many as may be are held.
    Held,
    /// Their memory is used up.
    Bytes,
    /// It has no time left.
    Time,
}

impl Overflow {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Overflow::Held => "max_held",
            Overflow::Bytes => "max_held_bytes",
            Overflow::Time => "deadline",
        }
    }
}

/// Why nothing can be decided of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotHeld {
    /// It was never given.
    Unknown,
    /// Its request is gone.
    Over,
    /// It has been decided, or is not held yet.
    Decided,
}

impl<H, R> Registry<H, R> {
    pub(crate) const fn new() -> Self {
        Self { last: 0, bytes: 0, entries: BTreeMap::new() }
    }

    /// A number for a request of so many bytes, until it [leaves](Self::leave).
    pub(crate) fn admit(&mut self, bytes: u64, bounds: Bounds) -> Result<u64, Overflow> {
        if self.entries.len() >= bounds.held {
            return Err(Overflow::Held);
        }
        if self.bytes.saturating_add(bytes) > bounds.bytes {
            return Err(Overflow::Bytes);
        }
        self.last += 1;
        self.bytes += bytes;
        self.entries.insert(self.last, Entry { bytes, waiting: None });
        Ok(self.last)
    }

    /// From now on somebody may decide.
    pub(crate) fn hold(&mut self, number: u64, held: H, reply: R) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.waiting = Some((held, reply));
        }
    }

    /// Somebody decides: what describes the request, and where the decision goes. An error of `check` leaves it
    /// held.
    pub(crate) fn decide<E: From<NotHeld>>(
        &mut self,
        number: u64,
        check: impl FnOnce(&H) -> Result<(), E>,
    ) -> Result<R, E> {
        let Some(entry) = self.entries.get_mut(&number) else {
            let known = (1..=self.last).contains(&number);
            return Err(if known { NotHeld::Over } else { NotHeld::Unknown }.into());
        };
        let Some((held, _)) = &entry.waiting else { return Err(NotHeld::Decided.into()) };
        check(held)?;
        match entry.waiting.take() {
            Some((_, reply)) => Ok(reply),
            None => Err(NotHeld::Decided.into()),
        }
    }

    /// Its time is up: nobody may decide any more. Returns whether anybody could have; if not, the decision
    /// is on its way.
    pub(crate) fn expire(&mut self, number: u64) -> bool {
        self.entries.get_mut(&number).and_then(|entry| entry.waiting.take()).is_some()
    }

    /// It is over; whether it was waiting for a decision.
    pub(crate) fn leave(&mut self, number: u64) -> bool {
        let Some(entry) = self.entries.remove(&number) else { return false };
        self.bytes -= entry.bytes;
        entry.waiting.is_some()
    }

    /// Those that wait for a decision, the oldest first.
    pub(crate) fn held(&self) -> impl Iterator<Item = (u64, &H)> {
        self.entries
            .iter()
            .filter_map(|(number, entry)| entry.waiting.as_ref().map(|(held, _)| (*number, held)))
    }

    /// What describes one that waits for a decision.
    pub(crate) fn get(&self, number: u64) -> Option<&H> {
        self.entries.get(&number)?.waiting.as_ref().map(|(held, _)| held)
    }

    /// All of them, those that are decided included.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests;
