//! State that several processes share, such as the nodes of a gateway behind a balancer.
//!
//! A decision is made from local memory, always: nothing here is waited for by a call, but for a read of a
//! [value](SharedState::get), which is bounded. The store changes that memory from behind, and lets others know what
//! this node has found. While it is [away](SharedState::is_away), each node goes on by what it knows.
//!
//! * [`Fact`]: what a node has found, such as that a target rests until a time. It is [published](SharedState::publish)
//!   on change, and heard through a [`FactListener`].
//! * *Values*: what is read by key when this node does not know it, with an expiry.
//! * *Leases* of [parts](WantedShare) of what is limited, such as the rate of a provider, and [grants](AccountGrant) of
//!   what may be spent under a cap.
//! * [`Claim`]: what is done once, by one node, until a time.
//!
//! [`EmbeddedStore`] is the store of one process, and of tests with many nodes in one; `steadfast-redis` has that of
//! several machines. Layers take either, by their handles' `share`.
//!
//! ```
//! use std::sync::Arc;
//! use steadfast_core::shared::{EmbeddedStore, News, SharedState};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let store = EmbeddedStore::new();
//! let (one, other) = (store.join("one"), store.join("other"));
//! let mut listener = other.subscribe("rests");
//!
//! let since_ms = one.clock().unix_ms();
//! one.publish("rests", "openai", News::holds(since_ms, since_ms + 60_000, "{}"));
//! let (key, known) = listener.next().await;
//! assert_eq!((&*key, known.fact.unwrap().until_ms), ("openai", since_ms + 60_000));
//!
//! // Once, by one of them.
//! let limit = std::time::Duration::from_secs(10);
//! let claim = one.claim("letter 7", limit).await.unwrap().unwrap();
//! assert_eq!(other.claim("letter 7", limit).await, Ok(None));
//! one.release(&claim);
//! assert!(other.claim("letter 7", limit).await.unwrap().unwrap().token > claim.token);
//! # }
//! ```

mod account;
mod board;
mod claim;
mod embedded;
mod fact;
mod facts;
mod fleet;
mod key;
mod lease;
mod notice;
mod values;

use std::{fmt, future::Future, pin::Pin, time::Duration};

use bytes::Bytes;

pub use self::{
    account::{AccountDraw, AccountGrant, AccountKnown, KEPT, ShortCap},
    board::{FactBoard, FactListener, FactRow},
    claim::{Claim, ProbeTurns},
    embedded::{EmbeddedNode, EmbeddedStore},
    fact::{Fact, Known, News},
    facts::{PublishedCircuit, SharedFacts, SharedTask},
    fleet::{Fleet, NodeReport, StoreReport},
    key::{KeyDigest, SharedKey},
    lease::{LEASED_FOR, WHOLE, WantedShare},
    notice::PutNotices,
    values::{LARGEST_VALUE, READ_LIMIT, ReadValue, SharedValues, ValueFuture},
};
use crate::time::WallClock;

/// What a [`SharedState`] answers later.
pub type SharedFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreAway>> + Send + 'a>>;

/// The store can not be asked at the moment, or has not answered in time. Whoever reads this goes on with what it
/// knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("the shared state can not be reached; this node goes on by what it knows itself")]
pub struct StoreAway;

/// State that several processes share, as one of them sees it.
///
/// All times in it are those of the store's clock, in milliseconds since 1970: the clocks of the nodes may differ by
/// any amount. Nothing here blocks; dropping a future leaves the store as if it had not been asked, or had been.
pub trait SharedState: fmt::Debug + Send + Sync + 'static {
    /// The name of this node, another one each time a process starts.
    fn node(&self) -> &str;

    /// Now, by the store's clock; by this node's until the store has first been reached.
    fn clock(&self) -> WallClock;

    /// Whether the store can not be reached.
    fn is_away(&self) -> bool;

    /// How many nodes there are, this one included; while the store is away, how many there were.
    fn nodes(&self) -> usize;

    /// Lets the others know what this node has found about `key`. Returns at once. Of what could not be sent yet, the
    /// latest news of a key is; so an outage of the store costs memory for each key and not for each change.
    fn publish(&self, kind: &'static str, key: &str, news: News);

    /// What other nodes have found about keys of this `kind`, beginning with all that is known.
    fn subscribe(&self, kind: &'static str) -> FactListener;

    /// The value of `key` in `space`. Answers within 20 ms, and at once while the store is away.
    fn get<'a>(&'a self, space: &'static str, key: &'a str) -> SharedFuture<'a, Option<Bytes>>;

    /// Keeps `value` for `key` in `space` for as long as `lasts`. Returns at once; it is lost when the store is away,
    /// or behind by thousands.
    fn put(&self, space: &'static str, key: &str, value: Bytes, lasts: Duration);

    /// Leases parts of what is limited, for [`LEASED_FOR`]: what is granted of each, in parts per million and in the
    /// order asked. All that nodes have leased of a key is never more than the whole of it. Asked for about twice a
    /// second, for everything at once.
    fn lease(&self, wanted: Vec<WantedShare>) -> SharedFuture<'_, Vec<u32>>;

    /// Reports what this node has spent of accounts, and asks what it may spend: an answer for each, in their order. What
    /// all nodes have spent and been granted of an account is never more than its caps. About twice a second, for
    /// everything at once, and whenever a call waits for it.
    fn draw(&self, draws: Vec<AccountDraw>) -> SharedFuture<'_, Vec<AccountGrant>>;

    /// Claims `key` for this node, for `lasts` at most; `None` while another one has it, or this one.
    fn claim<'a>(&'a self, key: &'a str, lasts: Duration) -> SharedFuture<'a, Option<Claim>>;

    /// Gives a claim back. Returns at once; one that has expired, and is another node's, is left alone.
    fn release(&self, claim: &Claim);

    /// What others are shown of this node from now on.
    fn describe(&self, report: NodeReport);

    /// The nodes, the store, and what each of them has found, as far as this node knows.
    fn fleet(&self) -> Fleet;
}
