//! What runs in the store: each is one step there, whoever else writes.

use std::sync::LazyLock;

use redis::Script;

/// Writes facts of one kind, and lets the other nodes know.
pub(crate) static PUBLISH: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("scripts/keep.lua"), include_str!("scripts/publish.lua")))
});

/// A node says that it lives, and hears who else does and what time it is.
pub(crate) static BEAT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("scripts/keep.lua"), include_str!("scripts/beat.lua")))
});

/// Takes a claim that nobody has.
pub(crate) static CLAIM: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/claim.lua")));

/// Gives a claim back.
pub(crate) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/release.lua")));

/// Leases parts of what is limited.
pub(crate) static LEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/lease.lua")));

/// Takes down what was spent of accounts, and grants what may be.
pub(crate) static DRAW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/draw.lua")));
