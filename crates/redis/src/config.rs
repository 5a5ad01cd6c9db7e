//! Where the store is, and what this node is called there.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use crate::{RedisConfigError, endpoint::Endpoint};

/// Where the store is, whose prefix there, and how long to wait for it.
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisConfig {
    /// Where the store is, and by which user and password:
    ///
    /// * `redis://user:password@host:6379/0`, or `rediss://` with TLS.
    /// * `redis-sentinel://user:password@host:26379,host:26379/mymaster/0`: the master of that name. `rediss-sentinel://`
    ///   has TLS to both.
    /// * `redis-cluster://user:password@host:6379,host:6379`, or `rediss-cluster://`. One of them is enough to find
    ///   the others.
    /// * `unix:///run/redis.sock`.
    ///
    /// `valkey` may stand for `redis`.
    pub url: String,
    /// What the keys of the fleet begin with. Two fleets on one store have one each.
    pub prefix: String,
    /// The name of the fleet, which is the same at all its nodes. A prefix that another fleet has is refused, so that
    /// two fleets do not share by mistake.
    pub fleet: String,
    /// The name of this node. By default a random one, since it is another one each time a process starts.
    pub node: Option<String>,
    /// The certificates that the store's is to be signed by, in PEM. By default those that browsers know.
    pub ca: Option<Vec<u8>>,
    /// The certificate that this node shows, and its key, both in PEM.
    pub client_certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// How long a connection may take, with its handshakes. 1 s: one lost packet of each.
    pub connect_timeout: Duration,
    /// After how long without an answer the store is away. 500 ms: far beyond what a store takes in its data centre, and
    /// short enough that a picture is caught up within 2 s of its return.
    pub answer_timeout: Duration,
    /// How long a value is waited for. 20 ms: what a call that has to have it would not notice.
    pub read_timeout: Duration,
}

impl RedisConfig {
    /// The store at `url`, with the defaults.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            prefix: "steadfast".to_owned(),
            fleet: "default".to_owned(),
            node: None,
            ca: None,
            client_certificate: None,
            connect_timeout: Duration::from_secs(1),
            answer_timeout: Duration::from_millis(500),
            read_timeout: Duration::from_millis(20),
        }
    }

    /// The same, with this prefix.
    #[must_use]
    pub fn with_prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// The same, in this fleet.
    #[must_use]
    pub fn with_fleet(self, fleet: impl Into<String>) -> Self {
        Self { fleet: fleet.into(), ..self }
    }

    /// The same, with this name of the node.
    #[must_use]
    pub fn with_node(self, node: impl Into<String>) -> Self {
        Self { node: Some(node.into()), ..self }
    }

    /// The same, with these certificates in PEM, one of which has signed the store's.
    #[must_use]
    pub fn with_ca(self, pem: impl Into<Vec<u8>>) -> Self {
        Self { ca: Some(pem.into()), ..self }
    }

    /// Whether it can be used.
    ///
    /// # Errors
    ///
    /// With what is wrong with it.
    pub fn check(&self) -> Result<(), RedisConfigError> {
        name("the prefix of the fleet's keys", &self.prefix)?;
        name("the name of a fleet", &self.fleet)?;
        self.node.as_ref().map_or(Ok(()), |node| name("the name of a node", node))?;
        Endpoint::new(self).map(|_| ())
    }

    /// What this node is called.
    pub(crate) fn node(&self) -> String {
        // Its keys are from the operating system.
        let random = || format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        self.node.clone().unwrap_or_else(random)
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = Endpoint::new(self).map(|endpoint| endpoint.name().to_owned());
        f.debug_struct("RedisConfig")
            .field("store", &store)
            .field("prefix", &self.prefix)
            .field("fleet", &self.fleet)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

fn name(what: &'static str, given: &str) -> Result<(), RedisConfigError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    match (1..=64).contains(&given.len()) && given.bytes().all(is_plain) {
        true => Ok(()),
        false => {
            let given = given.chars().take(80).collect::<String>().into();
            Err(RedisConfigError::Name { what, given })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        let config = RedisConfig::new("redis://localhost");
        assert_eq!(config.check(), Ok(()));
        for prefix in ["", "a{b}", "a b", "*", &"x".repeat(65)] {
            let error = config.clone().with_prefix(prefix).check().unwrap_err();
            assert!(matches!(error, RedisConfigError::Name { .. }), "{error}");
        }
        assert_ne!(config.node(), config.node(), "another one each time");
        assert_eq!(config.with_node("n1").node(), "n1");
    }

    #[test]
    fn a_password_is_shown_nowhere() {
        for url in [
            "redis://me:hunter2@localhost:1/0",
            "redis://:hunter2@localhost",
            "redis-cluster://me:hunter2@a:1,b:2",
            "redis-sentinel://me:hunter2@a:1,b:2/main",
            "http://me:hunter2@localhost",
            "redis://me:hunter2@localhost:nonsense",
            "redis://me:hunter2/@localhost",
            "redis://me:hunter2@localhost/hunter2",
            "redis://me:hunter2@localhost/0?protocol=hunter2",
        ] {
            let config = RedisConfig::new(url);
            let shown = format!("{config:?} {:?}", config.check());
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}
