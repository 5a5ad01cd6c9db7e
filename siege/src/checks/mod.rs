//! The attacks, by category.

mod bodies;
mod browser;
mod callers;
mod framing;
mod hostile;
mod hostile_raw;
mod http2;
mod limits;
mod secrets;
mod signals;
mod streams;
mod tenants;

use crate::check::Category;
use crate::{process::Setup, provider::Providers};

/// All of them, in the order in which they run.
pub(crate) const CATEGORIES: &[Category] = &[
    framing::CATEGORY,
    http2::CATEGORY,
    browser::CATEGORY,
    callers::CATEGORY,
    bodies::CATEGORY,
    hostile::CATEGORY,
    tenants::CATEGORY,
    secrets::CATEGORY,
    signals::CATEGORY,
    streams::CATEGORY,
    limits::CATEGORY,
];

/// A gateway that wants no keys.
fn open(providers: &Providers) -> Setup {
    Setup {
        config: providers.config(&[]),
        server: "auth = \"none\"".into(),
        ..Setup::default()
    }
}
