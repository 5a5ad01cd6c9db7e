//! Fixed texts for people that more than one crate shows.

/// For the user of a thread whose history could not be loaded and was set aside. It has nothing of the error, and no model writes it.
pub const LOST_HISTORY: &str = "The history of this conversation couldn't be loaded, so this thread starts afresh. \
     Please repeat what still matters.";

/// For the user of an agent whose command, or any other tool, was not over in time.
pub const STOPPED_TOOL: &str =
    "A command took too long and was stopped. Say so if it should be tried again.";
