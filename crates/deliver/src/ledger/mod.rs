//! What was delivered, so that nothing is sent twice.

mod file;
mod handle;
mod policy;
mod send_once;
mod state;

pub(crate) use self::handle::{SendStart, SharedFailure, TurnGuard};
pub use self::{
    handle::{DeliveryLedger, LedgerSnapshot},
    policy::LedgerPolicy,
    send_once::{SendFuture, SendOnce, SendOnceLayer},
};
