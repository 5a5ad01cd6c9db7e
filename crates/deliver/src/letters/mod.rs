//! Messages that could not be delivered, until they are or end in a record that people see.

mod boxed;
mod file;
mod future;
mod handle;
mod layer;
mod letter;
#[cfg(test)]
mod model;
mod offline;
mod policy;
mod queue;
mod service;
mod worker;

pub use self::{
    future::LetterFuture,
    handle::{DeadLetters, LettersSnapshot},
    layer::DeadLetterLayer,
    letter::{DeadLetter, LetterDrain, LetterEnd},
    offline::{LetterList, OfflineLetters},
    policy::{DeadLetterPolicy, LetterQueuePolicy},
    service::KeptDelivery,
};
