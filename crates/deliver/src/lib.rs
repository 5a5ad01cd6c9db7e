//! Delivery of replies and announcements to people, by layers around the service that sends to a chat platform.
//!
//! An agent's answer, the result of a subagent, the notice that a task failed: all of it ends with a call of somebody's platform,
//! which is down at times, limits rates, and answers late. These layers deliver a message **once**, or leave a record that people
//! see.
//!
//! | layer | what it does |
//! |---|---|
//! | [`DeadLetterLayer`] | keeps what could not be delivered in [`DeadLetters`], a durable queue that tries again for an hour |
//! | [`RouteFallbackLayer`] | announces through the parent agent; what that has not announced in 30 s goes directly to the channel |
//! | [`BatchLayer`] | around the parent: announcements of one session within 2 s share one turn |
//! | [`DeliveryRetryLayer`] | sends again: 3 retries from 1 s, for rate limits, 5xx and connections |
//! | [`SendOnceLayer`] | next to the channel: a key that was sent is not sent again, by the [`DeliveryLedger`] |
//!
//! The channel is yours: a `Service<Announcement>` whose error becomes a [`Failure`](steadfast_core::Failure), with the wait that the
//! platform asked for as its [`retry_after`](steadfast_core::Failure::retry_after).
//!
//! ```
//! use steadfast_core::Failure;
//! use steadfast_deliver::{
//!     Announcement, DeadLetterLayer, DeadLetters, DeliveryFolder, DeliveryLedger, DeliveryRetryLayer, DeliveryRoute,
//!     LedgerPolicy, LetterQueuePolicy, RouteFallbackLayer, SendOnceLayer,
//! };
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let folder = std::env::temp_dir().join(format!("steadfast-deliver-doc-{}", std::process::id()));
//! let channel = service_fn(async |message: Announcement| {
//!     println!("to {}: {}", message.destination, message.text);
//!     Ok::<_, Failure>(())
//! });
//! let parent = service_fn(async |message: Announcement| {
//!     println!("the agent announces: {}", message.text);
//!     Ok::<_, Failure>(())
//! });
//!
//! let folder = DeliveryFolder::open(folder).await?;
//! let ledger = DeliveryLedger::open(&folder, LedgerPolicy::default()).await?;
//!
//! let once = ServiceBuilder::new().layer(SendOnceLayer::new(ledger.clone())).service(channel);
//! // Letters go to the channel itself: they have a backoff of their own.
//! let letters =
//!     DeadLetters::open(&folder, LetterQueuePolicy::default(), ledger.clone(), once.clone()).await?;
//! let delivery = ServiceBuilder::new()
//!     .layer(DeadLetterLayer::new(letters.clone()))
//!     .layer(RouteFallbackLayer::new(parent, ledger.clone()))
//!     .layer(DeliveryRetryLayer::default())
//!     .service(once);
//!
//! let done = Announcement::new("task-7/done", "room-1", "The report is ready.").with_session("ada");
//! let receipt = delivery.clone().oneshot(done).await?;
//! assert_eq!(receipt.route, DeliveryRoute::Parent);
//!
//! letters.close().await;
//! ledger.close().await;
//! # std::fs::remove_dir_all(folder.path()).ok();
//! # Ok(())
//! # }
//! ```
//!
//! # Where to put this layer
//!
//! ```text
//! DeadLetter          outermost: what comes out of it is delivered, kept, or recorded
//! RouteFallback       with Batch around the parent
//! DeliveryRetry
//! SendOnce            next to the channel; letters are delivered by this
//! ```
//!
//! **Wrong:** `SendOnce` outside `DeliveryRetry`. A send is then all retries with their waits, and a timeout further out waits for a
//! send that nobody is making.
//!
//! **Wrong:** `DeliveryRetry` outside `RouteFallback`. Each retry is then another turn of the parent, 30 s and a call of a model, for a
//! channel that is down.
//!
//! **Wrong:** letters delivered by the service that the `DeadLetterLayer` is part of. A letter that fails would be given to its own queue, and
//! each attempt would cost a turn of the parent.
//!
//! # Once
//!
//! A message has one [key](Announcement::key) wherever it goes. A send is a task that nobody's timeout ends, so whatever follows the
//! timeout (a retry, the other route, a letter) waits for the same send, or finds in the ledger that it is done. What is known to have
//! failed is sent again. What *may* have been sent, because the connection broke, is sent again only where `resend_unclear` says that
//! the platform takes the key; elsewhere it ends in the record [`LetterEnd::Unclear`], and a person decides.
//!
//! So it is with a letter whose attempt was under way when its process was killed, or whose send had outlived the attempt: that it is
//! being sent is on the disk before it is sent, and until the send has ended. A turn of the parent that several share ends before anything
//! is sent in its stead.
//!
//! What remains is a parent that sends by means of its own after its turn was dropped, a message that is given again while it is a letter, by
//! a process that is killed before that is in the ledger's file, and a process that is killed while its disk takes nothing.
//!
//! # Cancellation
//!
//! A message is accepted with the call of the outermost service. When its future is dropped, in whichever layer it is, it becomes a
//! letter that is due at once. A reply does not: its user has gone. Letters survive the process; a message that is not a letter yet does
//! not.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod announcement;
mod batch;
mod clock;
mod error;
mod event;
mod folder;
mod journal;
mod ledger;
mod letters;
mod notice;
mod receipt;
mod retry;
mod route;
mod unclear;

pub use self::{
    announcement::{Announcement, DeliveryKind},
    batch::{Batch, BatchFuture, BatchLayer, BatchPolicy, ParentTurn},
    error::PolicyError,
    folder::{DeliverError, DeliveryFolder},
    ledger::{DeliveryLedger, LedgerPolicy, LedgerSnapshot, SendFuture, SendOnce, SendOnceLayer},
    letters::{
        DeadLetter, DeadLetterLayer, DeadLetterPolicy, DeadLetters, KeptDelivery, LetterDrain,
        LetterEnd, LetterFuture, LetterList, LetterQueuePolicy, LettersSnapshot, OfflineLetters,
    },
    notice::FailureNotice,
    receipt::{DeliveryReceipt, DeliveryRoute},
    retry::{
        DeliveryRetry, DeliveryRetryHandle, DeliveryRetryLayer, DeliveryRetryPolicy,
        DeliveryRetrySnapshot, RetryFuture,
    },
    route::{
        RouteFallback, RouteFallbackLayer, RouteFuture, RouteHandle, RoutePolicy, RouteSnapshot,
    },
    unclear::nothing_was_sent,
};
