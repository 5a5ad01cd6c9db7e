//! Which session is meant.

use std::fmt;

use thiserror::Error;

/// Names a thread, and where it matters the session of it that has to be the live one.
///
/// What is to be done to a session is done only when the scope names exactly one that is live: never to the first of several, and
/// never to one that is made for the purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionScope {
    name: Name,
    session: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    Thread(String),
    Prefix(String),
}

/// A scope that names more or less than exactly one live session. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScopeError {
    /// It names nothing.
    #[error("no thread is named; give the id of one")]
    Empty,
    /// There is none.
    #[error("there is no thread {scope}")]
    Unknown {
        /// What was asked for.
        scope: SessionScope,
    },
    /// There are several.
    #[error("{count} threads are {scope}, such as `{}`; give the whole id of one", examples.join("`, `"))]
    Ambiguous {
        /// What was asked for.
        scope: SessionScope,
        /// How many there are.
        count: usize,
        /// The first three.
        examples: Vec<String>,
    },
    /// The session named is not the live one of the thread.
    #[error("session {session} of thread `{thread}` is not live, session {live} is")]
    NotLive {
        /// The thread.
        thread: String,
        /// The session named.
        session: u64,
        /// The live one.
        live: u64,
    },
}

impl SessionScope {
    /// The thread with this id.
    pub fn thread(id: impl Into<String>) -> Self {
        Self { name: Name::Thread(id.into()), session: None }
    }

    /// The thread whose id begins with this.
    pub fn prefix(start: impl Into<String>) -> Self {
        Self { name: Name::Prefix(start.into()), session: None }
    }

    /// And this session of it has to be live.
    #[must_use]
    pub fn in_session(mut self, session: u64) -> Self {
        self.session = Some(session);
        self
    }

    /// The one thread of these that it names.
    ///
    /// # Errors
    ///
    /// It names none, or several.
    pub fn resolve<'a>(
        &self,
        threads: impl IntoIterator<Item = &'a str>,
    ) -> Result<&'a str, ScopeError> {
        let (Name::Thread(name) | Name::Prefix(name)) = &self.name;
        if name.is_empty() {
            return Err(ScopeError::Empty);
        }
        let mut found: Vec<&str> = threads
            .into_iter()
            .filter(|thread| match &self.name {
                Name::Thread(id) => thread == id,
                Name::Prefix(start) => thread.starts_with(start.as_str()),
            })
            .collect();
        found.sort_unstable();
        found.dedup();
        // A whole id is meant even where another one begins with it.
        if let Some(exact) = found.iter().find(|thread| *thread == name) {
            return Ok(exact);
        }
        match found.as_slice() {
            [] => Err(ScopeError::Unknown { scope: self.clone() }),
            [one] => Ok(one),
            many => Err(ScopeError::Ambiguous {
                scope: self.clone(),
                count: many.len(),
                examples: many.iter().take(3).map(|thread| (*thread).to_owned()).collect(),
            }),
        }
    }

    /// Whether this session may be the live one.
    pub(crate) fn check(&self, thread: &str, live: u64) -> Result<(), ScopeError> {
        match self.session {
            Some(session) if session != live => {
                Err(ScopeError::NotLive { thread: thread.to_owned(), session, live })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for SessionScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Name::Thread(id) => write!(f, "`{id}`")?,
            Name::Prefix(start) => write!(f, "`{start}...`")?,
        }
        match self.session {
            Some(session) => write!(f, " with session {session}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_or_an_error() {
        let threads = ["a", "ab", "abc", "b1", "b2", "b3", "b4", "c"];
        for (scope, expected) in [
            (SessionScope::thread("ab"), Ok("ab")),
            (SessionScope::prefix("abc"), Ok("abc")),
            (SessionScope::prefix("ab"), Ok("ab")),
            (SessionScope::prefix("c"), Ok("c")),
            (SessionScope::thread("b"), Err("there is no thread `b`")),
            (
                SessionScope::prefix("b"),
                Err("4 threads are `b...`, such as `b1`, `b2`, `b3`; give the whole id of one"),
            ),
            (SessionScope::prefix(""), Err("no thread is named; give the id of one")),
            (SessionScope::thread(""), Err("no thread is named; give the id of one")),
            (SessionScope::thread("x").in_session(2), Err("there is no thread `x` with session 2")),
        ] {
            let found = scope.resolve(threads).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned));
        }
        let scope = SessionScope::thread("a").in_session(2);
        scope.check("a", 2).unwrap();
        assert!(matches!(scope.check("a", 3), Err(ScopeError::NotLive { live: 3, .. })));
    }
}
