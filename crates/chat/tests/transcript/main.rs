//! The rules of transcripts, S1 to S16, in every dialect: what is refused, with which error message,
//! and what a repair makes of it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod ends;
mod ids;
mod images;
mod marks;
mod opaque;
mod pairs;
mod random;
mod reports;
mod size_and_tools;
mod support;
mod thinking;
mod unbind;
