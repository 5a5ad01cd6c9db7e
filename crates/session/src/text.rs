//! Fixed texts for people.

/// For the user of a thread whose history was lost ([`Opened::Lost`](crate::Opened::Lost)): with the first answer after it.
pub const LOST_HISTORY: &str = "I could not load what we talked about before, so this thread starts afresh. \
     Please repeat what still matters.";
