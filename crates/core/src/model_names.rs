//! How the name of a model is found in a table of models.
//!
//! Names come with a vendor, a region or a folder before them and a date or a variant behind:
//! `us.anthropic.claude-sonnet-4-5-20250929-v1:0` is `claude-sonnet-4-5`.
//!
//! ```
//! use steadfast_core::model_names::{find, names};
//!
//! let known = |name: &str| (name == "gpt-4o").then_some(128_000);
//! let window = names("openai/gpt-4o-2024-08-06").find_map(|name| find(name, known));
//! assert_eq!(window, Some(128_000));
//! ```

/// A model's name and what it may be called without vendor, region and folder: everything after a
/// `/`, then after each `.` that a letter follows.
pub fn names(model: &str) -> impl Iterator<Item = &str> {
    let base = model.rsplit_once('/').map_or(model, |(_, base)| base);
    let dots = base.match_indices('.').map(|(at, _)| &base[at + 1..]);
    let suffixes = dots.filter(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic()));
    std::iter::once(model).chain(std::iter::once(base)).chain(suffixes)
}

/// What `known` says of `name`, or of the longest name that it continues.
pub fn find<T>(name: &str, known: impl Fn(&str) -> Option<T>) -> Option<T> {
    if let Some(found) = known(name) {
        return Some(found);
    }
    name.rmatch_indices(['-', '@', ':', '[']).find_map(|(at, _)| known(&name[..at]))
}
