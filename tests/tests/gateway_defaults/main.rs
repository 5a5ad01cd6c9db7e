//! The gateway with nothing set: what callers may expect of it, in process and on a paused clock.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod agents;
mod answers;
mod attempts;
mod crowd;
mod hints;
mod notices;
mod poison;
mod refused_keys;
mod repairs;

use steadfast::{
    Dialect,
    sim::{FaultPlan, SimProvider, SimProviderBuilder},
};
use steadfast_tests::gateway::in_process::provider_name;

/// A provider of this dialect, called as the gateway calls it.
fn sim(dialect: Dialect) -> SimProviderBuilder {
    SimProvider::builder(dialect).with_name(provider_name(dialect))
}

/// The same with these faults.
fn failing(dialect: Dialect, plan: FaultPlan) -> SimProvider {
    sim(dialect).with_faults(plan).build()
}

/// The provider of another vendor's dialect: a healthy spare.
fn spare(dialect: Dialect) -> SimProvider {
    let next = match dialect {
        Dialect::OpenAi | Dialect::Responses => Dialect::Anthropic,
        Dialect::Anthropic => Dialect::Gemini,
        Dialect::Gemini => Dialect::Responses,
    };
    sim(next).build()
}

/// The requests that these providers have received.
fn asked(sims: &[SimProvider]) -> usize {
    sims.iter().map(|sim| sim.journal().len()).sum()
}
