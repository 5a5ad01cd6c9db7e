//! Why there is no shared state: a configuration that can not be used, or a store that is away.

use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use steadfast_core::redact;

/// A configuration that can not be used. It never has a password in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedisConfigError {
    /// The URL has no scheme, or one that is none of a store.
    #[error(
        "the store's URL has to begin with redis://, rediss://, redis-sentinel:// or redis-cluster:// (or valkey in place of redis)"
    )]
    Scheme,
    /// The URL can not be read.
    #[error(
        "the store's URL can not be read: {why}; it is redis://user:password@host:port/database, where a password has %40 for @ and %2F for /"
    )]
    Url {
        /// What is wrong with it.
        why: Box<str>,
    },
    /// A URL of sentinels does not name the service.
    #[error(
        "a URL of sentinels ends with the name of what they watch: redis-sentinel://host:26379,host:26379/mymaster"
    )]
    Service,
    /// A name is empty, too long, or has characters that names do not have.
    #[error(
        "{what} has 1 to 64 letters, digits, '-', '_', '.' or ':'; {given:?} is not such a name"
    )]
    Name {
        /// Whose name it is.
        what: &'static str,
        /// What was given.
        given: Box<str>,
    },
    /// A certificate or a key can not be used.
    #[error("the certificates for the store can not be used: {why}")]
    Certificates {
        /// What is wrong with them.
        why: Box<str>,
    },
    /// There is no tokio runtime to run in.
    #[error("shared state runs in the background, in a tokio runtime; call this inside of one")]
    NoRuntime,
}

/// Why the store is away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AwayCause {
    /// Nothing has gone wrong yet: it has not been reached so far.
    #[error("the store has not been reached so far")]
    NotReached,
    /// There is no connection to it.
    #[error("no connection to the store: {0}")]
    Unreachable(Box<str>),
    /// It has not answered in time.
    #[error("the store has not answered within {}", in_ms(.0))]
    NoAnswer(Duration),
    /// It does not know this user or password, or they may not do what is needed.
    #[error(
        "the store refuses this node: {0}; check the user and the password of its URL, and what that user may do"
    )]
    Unauthorized(Box<str>),
    /// It is a replica, or has become one.
    #[error("the store takes no writes: {0}")]
    ReadOnly(Box<str>),
    /// It has no memory left.
    #[error("the store is full: {0}; give it more memory, or another policy than noeviction")]
    Full(Box<str>),
    /// Another fleet has this prefix.
    #[error(
        "the prefix {prefix:?} in this store belongs to the fleet {owner:?}, and this node is of {fleet:?}: \
         give each fleet a prefix of its own, and all nodes of one fleet the same name; \
         a fleet that is gone frees its prefix within {} s",
        crate::driver::OWNER.as_secs()
    )]
    OtherFleet {
        /// The prefix.
        prefix: Box<str>,
        /// Whose it is.
        owner: Box<str>,
        /// Whose this node is.
        fleet: Box<str>,
    },
    /// It has refused something.
    #[error("the store has refused a command: {0}")]
    Refused(Box<str>),
}

impl AwayCause {
    pub(crate) fn of(error: &RedisError, limit: Duration) -> Self {
        let text = redact(&text(error));
        match error.kind() {
            ErrorKind::Io if error.is_timeout() => Self::NoAnswer(limit),
            ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => Self::Unreachable(text),
            ErrorKind::MasterNameNotFoundBySentinel | ErrorKind::EmptySentinelList => {
                Self::Unreachable(text)
            }
            ErrorKind::AuthenticationFailed | ErrorKind::Server(ServerErrorKind::NoPerm) => {
                Self::Unauthorized(text)
            }
            ErrorKind::Server(ServerErrorKind::ReadOnly) => Self::ReadOnly(text),
            _ => match error.code() {
                Some("NOAUTH" | "WRONGPASS") => Self::Unauthorized(text),
                Some("OOM") => Self::Full(text),
                _ => Self::Refused(text),
            },
        }
    }
}

/// As the server has it, without where in a script it was.
fn text(error: &RedisError) -> String {
    let (Some(code), Some(detail)) = (error.code(), error.detail()) else {
        return error.to_string();
    };
    let detail = detail.split(". script: ").next().unwrap_or(detail);
    format!("{code} {detail}")
}

/// As a person writes it, since `Debug` says `500.0ms` for some.
fn in_ms(limit: &Duration) -> String {
    format!("{} ms", limit.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(code: &str) -> AwayCause {
        let detail = "no such luck. script: 1f, on @user_script:27.".to_owned();
        let error = redis::make_extension_error(code.to_owned(), Some(detail));
        AwayCause::of(&error, Duration::from_millis(500))
    }

    #[test]
    fn a_person_learns_what_to_do() {
        assert!(matches!(cause("NOAUTH"), AwayCause::Unauthorized(_)));
        assert!(matches!(cause("WRONGPASS"), AwayCause::Unauthorized(_)));
        assert_eq!(cause("OOM"), AwayCause::Full("OOM no such luck".into()));
        assert!(matches!(cause("MISCONF"), AwayCause::Refused(_)));
        let other = AwayCause::OtherFleet {
            prefix: "steadfast".into(),
            owner: "blue".into(),
            fleet: "green".into(),
        };
        let text = other.to_string();
        assert!(text.contains("\"blue\"") && text.contains("within 60 s"), "{text}");
        assert_eq!(
            AwayCause::NoAnswer(Duration::from_millis(500)).to_string(),
            "the store has not answered within 500 ms"
        );
    }
}
