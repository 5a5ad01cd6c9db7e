//! How much there may be at once, and how it is shared.

use super::usable::usable;
use crate::config::ServerConfig;

/// The least memory there can be, 16 MiB: of its small part a tenant can have a body of the largest size.
pub(crate) const LEAST_MIB: u64 = 16;

/// The share of memory that small bodies have: an eighth.
const SMALL_SHARE: u64 = 8;

/// How many times what it leaves to the others a tenant may hold: three times, as where calls wait.
const FAIR: u64 = 3;

/// How much there may be at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Requests in flight.
    pub(super) requests: u64,
    /// What their bodies may be charged, in bytes.
    pub(super) memory: u64,
    /// There are tenants, among whom it is shared.
    pub(super) shared: bool,
}

/// Which memory a body is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Small,
    Large,
}

/// Whether there is room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Free,
    /// The tenant holds as much as it may.
    NotForTenant,
    None,
}

impl Limits {
    /// Those of the configuration; without `memory_mib` half of what the process may use.
    pub(crate) fn of(server: &ServerConfig, tenants: usize) -> Self {
        let memory = server.memory_mib.map(|mib| mib.saturating_mul(1 << 20));
        Self {
            requests: server.max_in_flight as u64,
            memory: memory.unwrap_or_else(|| (usable() / 2).max(LEAST_MIB << 20)),
            shared: tenants > 1,
        }
    }

    /// What is charged at most for waiting between attempts: a quarter.
    pub(crate) fn memory_of_waiting(&self) -> u64 {
        self.memory / 4
    }

    /// What sockets may hold of messages that are not charged yet, beside the rest: an eighth.
    pub(crate) fn memory_of_sockets(&self) -> u64 {
        self.memory / SMALL_SHARE
    }

    /// What all bodies of a size may be charged.
    pub(super) fn memory_for(&self, size: Size) -> u64 {
        let small = self.memory / SMALL_SHARE;
        match size {
            Size::Small => small,
            Size::Large => self.memory - small,
        }
    }

    /// What one body can be charged where there is no other.
    pub(super) fn most(&self) -> u64 {
        let all = self.memory_for(Size::Large);
        if self.shared { all / (FAIR + 1) * FAIR } else { all }
    }

    /// Whether `more` of a `total` is there for a tenant who holds `own`, where all hold `held`.
    pub(super) fn room(&self, total: u64, held: u64, own: u64, more: u64) -> Room {
        match total.checked_sub(held).and_then(|left| left.checked_sub(more)) {
            None => Room::None,
            Some(left) if self.shared && own + more > left.saturating_mul(FAIR) => {
                Room::NotForTenant
            }
            Some(_) => Room::Free,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tenant_takes_more_than_three_times_what_it_leaves() {
        let alone = Limits { requests: 0, memory: 800, shared: false };
        let shared = Limits { shared: true, ..alone };
        for (limits, held, own, more, expected) in [
            (alone, 0, 0, 100, Room::Free),
            (alone, 0, 0, 101, Room::None),
            (alone, 100, 0, 0, Room::Free),
            // After a limit was lowered.
            (alone, 101, 0, 0, Room::None),
            (shared, 0, 0, 75, Room::Free),
            (shared, 0, 0, 76, Room::NotForTenant),
            (shared, 75, 75, 1, Room::NotForTenant),
            (shared, 75, 0, 18, Room::Free),
            (shared, 75, 0, 19, Room::NotForTenant),
            (shared, 75, 0, 26, Room::None),
        ] {
            let seen = limits.room(100, held, own, more);
            assert_eq!(seen, expected, "{limits:?}: {held}, {own} + {more}");
        }
        assert_eq!((alone.memory_for(Size::Small), alone.memory_for(Size::Large)), (100, 700));
        assert_eq!((alone.most(), shared.most()), (700, 525));
    }

    #[test]
    fn without_a_number_it_is_half_of_what_may_be_used() {
        let mut server = ServerConfig::default();
        assert_eq!(Limits::of(&server, 0).memory, usable() / 2);
        server.memory_mib = Some(7);
        assert_eq!(
            Limits::of(&server, 2),
            Limits { requests: 4_096, memory: 7 << 20, shared: true }
        );
        assert!(!Limits::of(&server, 1).shared);
    }
}
