//! What an error of a library was caused by.

use std::{error::Error, iter::successors};

/// How many causes are read; a chain can be a cycle. Those of the libraries have up to eight.
const MAX_CAUSES: usize = 16;

/// The error and its causes.
pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error: &&'a (dyn Error + 'static)| error.source()).take(MAX_CAUSES)
}

/// Their messages as one, without those that the one before has in it already.
pub(crate) fn text(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::{fmt, io};

    use super::*;

    #[derive(Debug)]
    struct Cycle;

    impl fmt::Display for Cycle {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("again")
        }
    }

    impl Error for Cycle {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&Self)
        }
    }

    #[test]
    fn each_message_is_there_once_and_a_cycle_ends() {
        assert_eq!(text(&Cycle), "again");
        assert_eq!(text(&io::Error::other("it: again")), "it: again");
        assert_eq!(causes(&Cycle).count(), MAX_CAUSES);
    }
}
