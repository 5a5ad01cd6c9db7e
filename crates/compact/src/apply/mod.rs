//! Changing a conversation: stripping large results, summaries as messages, facts kept by rule, and
//! what the answer's head reports.

mod applied;
mod digest;
mod facts;
mod ledger;
mod lighten;
mod notice;
mod render;
mod strip;
mod summary;

pub use self::{
    applied::Applied,
    ledger::Ledger,
    notice::{Compacted, CompactionReport, Effect, Notice, Tier},
    render::{EMERGENCY, SummaryHeader, escape, render},
    strip::{Stripped, strip},
    summary::Summary,
};
pub(crate) use self::{
    applied::Fingerprint,
    facts::has_word,
    ledger::clip,
    lighten::{has_media, lighten, omit_media},
    render::{delimiter, framed},
    strip::{MARKER, thousands},
};

/// The rows of a table in a text file: its lines, without empty ones and comments.
pub(crate) fn table_lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with("# "))
}
