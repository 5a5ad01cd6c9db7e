//! What becomes of a request and of an answer in another dialect.
//!
//! A row of `data/translation.jsonl` says it for each field and each kind of content: it is translated in the
//! other dialect's words, it is left out and named, or the target is passed over. So nothing vanishes in
//! silence. [`check`] goes through a request by that table before it is written for a provider of
//! another dialect, and what a provider answers is gone through likewise. Within one dialect nothing of
//! this runs.
//!
//! `docs/translation.md` is made from the table.

mod answer;
mod check;
mod left_out;
mod spoken;
mod table;

pub(crate) use self::{
    answer::{AnswerCheck, left_out},
    spoken::spoken,
    table::param_field,
};
pub use self::{check::check, left_out::LeftOut};
