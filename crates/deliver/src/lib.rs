//! Delivery of replies and announcements to people: retries, another route, a durable queue of dead letters, and a ledger so
//! that nothing is sent twice.

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
    ledger::{
        DeliveryLedger, LedgerPolicy, LedgerSnapshot, SendFuture, SendOnce, SendOnceLayer,
    },
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
    route::{RouteFallback, RouteFallbackLayer, RouteFuture, RouteHandle, RoutePolicy, RouteSnapshot},
    unclear::nothing_was_sent,
};
