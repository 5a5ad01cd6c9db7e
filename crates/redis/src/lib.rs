//! What the nodes of a fleet know together, over Redis or Valkey.
//!
//! [`RedisState`] is the [`SharedState`](steadfast_core::shared::SharedState) of several machines. A decision is made from
//! this process' memory, always; a task behind it publishes what this one has found, and hears what they have.
//! So a store that is slow, frozen, full, read-only, failed over, restarted empty or gone adds nothing to a call: it is
//! [away](steadfast_core::shared::SharedState::is_away), and each node goes on by what it knows. Within 2 s of its return
//! all nodes have caught up.
//!
//! ```no_run
//! use std::sync::Arc;
//! use steadfast_core::shared::{News, SharedState};
//! use steadfast_redis::{RedisConfig, RedisState};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = RedisConfig::new("rediss://gateway:password@store.example:6379").with_fleet("blue");
//! let state: Arc<dyn SharedState> = Arc::new(RedisState::connect(config)?);
//!
//! // What this node has found, for the others.
//! let since_ms = state.clock().unix_ms();
//! state.publish("rests", "openai", News::holds(since_ms, since_ms + 60_000, "{}"));
//!
//! // What they have.
//! let mut listener = state.subscribe("rests");
//! let (key, known) = listener.next().await;
//! println!("{key}: {known:?}");
//! # Ok(())
//! # }
//! ```
//!
//! Layers take it by the `share` of their handles, and share nothing when they are given none. Give all layers of a process
//! the same state, and not one each:
//!
//! ```ignore
//! let state: Arc<dyn SharedState> = Arc::new(RedisState::connect(config)?);
//! failover.share(state.clone());
//! breaker.share(state);
//!
//! failover.share(Arc::new(RedisState::connect(config.clone())?)); // wrong: two nodes, two connections
//! breaker.share(Arc::new(RedisState::connect(config)?));
//! ```
//!
//! # The store
//!
//! Redis or Valkey, 7.0 or newer: one server, a master behind sentinels, or a cluster; the
//! [URL](RedisConfig::url) says which. One connection a node is enough, since nothing is asked for a call. All keys
//! begin with `{prefix}:1:` and have an expiry: a fleet that is switched off leaves nothing. No modules are needed, nor `KEYS`, nor
//! `CONFIG`. Two fleets on one store have a [prefix](RedisConfig::prefix) each; a node with another fleet's prefix
//! is refused, and stays [away](RedisState::away).
//!
//! A user that may do what is needed, and no more, has this line (for the default prefix):
//!
//! ```text
#![doc = include_str!("acl.txt")]
//! ```
//!
//! With sentinels, that user is the master's; they themselves are asked without one.
//!
//! # Time
//!
//! All times are the store's, as it has them with each beat; the clocks of the nodes may be apart by any amount. What a node
//! finds before it has first reached the store has its own clock's times, and is moved when the store's are known.
//!
//! # What is reported
//!
//! | event | level | when |
//! |---|---|---|
//! | `steadfast::state::away` | WARN | once an outage, with why |
//! | `steadfast::state::back` | INFO | when the node has caught up: how long it took, and how many changes waited |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod account;
mod clock;
mod config;
mod connection;
mod driver;
mod endpoint;
mod error;
mod event;
mod keys;
mod local;
mod outbox;
mod scripts;
mod session;
mod state;

pub use self::{
    config::RedisConfig,
    error::{AwayCause, RedisConfigError},
    state::RedisState,
};
