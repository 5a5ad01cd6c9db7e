//! What a URL of a store says.

use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    TlsCertificates,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};

use crate::{RedisConfig, RedisConfigError};

/// A store, as it is found by its URL.
pub(crate) struct Endpoint {
    /// Without secrets.
    name: Box<str>,
    database: i64,
    pub(crate) route: Route,
}

/// How one gets to where values are written.
pub(crate) enum Route {
    /// At once.
    Server(Client),
    /// Sentinels know where the master is.
    Sentinels { client: Box<SentinelClient>, sentinels: u32 },
    /// The nodes of a cluster know which of them has a key.
    Cluster { nodes: Vec<ConnectionInfo>, certificates: Option<TlsCertificates> },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Server,
    Sentinels,
    Cluster,
}

impl Endpoint {
    pub(crate) fn new(config: &RedisConfig) -> Result<Self, RedisConfigError> {
        let (scheme, rest) = config.url.split_once("://").ok_or(RedisConfigError::Scheme)?;
        if scheme == "unix" {
            return Self::server(config, &config.url, rest.split('?').next().unwrap_or_default());
        }
        let (form, is_tls) = form(scheme).ok_or(RedisConfigError::Scheme)?;
        // A path, a query or a fragment; in a user's name they would have been escaped.
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        if tail.contains('#') {
            return Err(url_error("it has a fragment, with a #"));
        }
        let base = if is_tls { "rediss" } else { "redis" };
        let (service, tail) = match form {
            Form::Sentinels => {
                let path = tail.strip_prefix('/').unwrap_or_default();
                let at = path.find(['/', '?']).unwrap_or(path.len());
                let (service, tail) = path.split_at(at);
                match service {
                    "" => return Err(RedisConfigError::Service),
                    service => (Some(service), tail),
                }
            }
            _ => (None, tail),
        };
        let urls = hosts.split(',').map(|host| format!("{base}://{user}{host}{tail}"));
        let nodes = urls.map(|url| connection(&url)).collect::<Result<Vec<_>, _>>()?;
        let name = format!(
            "{scheme}://{hosts}{}",
            service.map_or(String::new(), |service| format!("/{service}"))
        );
        match form {
            Form::Server if nodes.len() > 1 => {
                Err(url_error("it has several hosts; those of a cluster are redis-cluster://"))
            }
            Form::Server => {
                let url = format!("{base}://{user}{hosts}{tail}");
                Self::server(config, &url, &name)
            }
            Form::Sentinels => Self::sentinels(config, &nodes, service.unwrap_or_default(), &name),
            Form::Cluster => Self::cluster(config, nodes, &name),
        }
    }

    fn server(config: &RedisConfig, url: &str, name: &str) -> Result<Self, RedisConfigError> {
        let info = connection(url)?;
        let database = info.redis_settings().db();
        let client = match (info.addr(), certificates(config)) {
            (ConnectionAddr::TcpTls { .. }, Some(certificates)) => {
                Client::build_with_tls(info, certificates)
                    .map_err(|error| certificate_error(&error))?
            }
            _ => Client::open(info).map_err(|error| url_error(error.category()))?,
        };
        let name = if database == 0 { name.into() } else { format!("{name}/{database}").into() };
        Ok(Self { name, database, route: Route::Server(client) })
    }

    fn sentinels(
        config: &RedisConfig,
        nodes: &[ConnectionInfo],
        service: &str,
        name: &str,
    ) -> Result<Self, RedisConfigError> {
        let addresses: Vec<_> = nodes.iter().map(|node| node.addr().clone()).collect();
        let sentinels = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let is_tls = matches!(addresses.first(), Some(ConnectionAddr::TcpTls { .. }));
        let Some(settings) = nodes.first().map(ConnectionInfo::redis_settings) else {
            return Err(url_error("it has no host"));
        };
        let database = settings.db();
        let error = |error: redis::RedisError| url_error(error.category());
        let mut builder =
            SentinelClientBuilder::new(addresses, service, SentinelServerType::Master)
                .map_err(error)?
                .set_client_to_redis_protocol(ProtocolVersion::RESP3)
                .set_client_to_redis_db(database);
        if let Some(user) = settings.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = settings.password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if is_tls {
            builder = builder.set_client_to_redis_tls_mode(redis::TlsMode::Secure);
            if let Some(certificates) = certificates(config) {
                builder = builder
                    .set_client_to_redis_certificates(certificates.clone())
                    .set_client_to_sentinel_certificates(certificates);
            }
        }
        let client = Box::new(builder.build().map_err(|error| certificate_error(&error))?);
        Ok(Self { name: name.into(), database, route: Route::Sentinels { client, sentinels } })
    }

    fn cluster(
        config: &RedisConfig,
        nodes: Vec<ConnectionInfo>,
        name: &str,
    ) -> Result<Self, RedisConfigError> {
        if nodes.iter().any(|node| node.redis_settings().db() != 0) {
            return Err(url_error("a cluster has one database, 0"));
        }
        let route = Route::Cluster { nodes, certificates: certificates(config) };
        Ok(Self { name: name.into(), database: 0, route })
    }

    /// What it is called, without secrets.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The number of its database.
    pub(crate) fn database(&self) -> i64 {
        self.database
    }
}

/// What a scheme stands for, and whether it has TLS.
fn form(scheme: &str) -> Option<(Form, bool)> {
    let (base, form) = match scheme.split_once('-') {
        None => (scheme, Form::Server),
        Some((base, "sentinel")) => (base, Form::Sentinels),
        Some((base, "cluster")) => (base, Form::Cluster),
        Some(_) => return None,
    };
    match base {
        "redis" | "valkey" => Some((form, false)),
        "rediss" | "valkeys" => Some((form, true)),
        _ => None,
    }
}

fn connection(url: &str) -> Result<ConnectionInfo, RedisConfigError> {
    // Its message may have the part that is wrong in it, and that may be a part of a password.
    let info = url.into_connection_info().map_err(|error| url_error(error.category()))?;
    // Facts come over the connection that asks.
    let settings = info.redis_settings().clone();
    let settings = settings.set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
    Ok(info.set_redis_settings(settings))
}

fn certificates(config: &RedisConfig) -> Option<TlsCertificates> {
    let client_tls = config.client_certificate.clone();
    let client_tls =
        client_tls.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    let is_given = client_tls.is_some() || config.ca.is_some();
    is_given.then(|| TlsCertificates { client_tls, root_cert: config.ca.clone() })
}

fn url_error(why: &str) -> RedisConfigError {
    RedisConfigError::Url { why: why.into() }
}

fn certificate_error(error: &redis::RedisError) -> RedisConfigError {
    RedisConfigError::Certificates { why: error.to_string().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Result<Endpoint, RedisConfigError> {
        Endpoint::new(&RedisConfig::new(url))
    }

    #[test]
    fn a_url_says_where_the_store_is() {
        for (url, name) in [
            ("redis://localhost", "redis://localhost"),
            ("redis://me:se%40cret@localhost:7/3", "redis://localhost:7/3"),
            ("rediss://:secret@store.example:6380", "rediss://store.example:6380"),
            ("valkey://[::1]:7", "valkey://[::1]:7"),
            ("unix:///run/redis.sock?pass=secret", "/run/redis.sock"),
            ("redis-cluster://me:secret@a:1,b:2", "redis-cluster://a:1,b:2"),
            ("redis-sentinel://me:secret@a:1,b:2/main/4", "redis-sentinel://a:1,b:2/main"),
        ] {
            let endpoint = endpoint(url).unwrap();
            assert_eq!(endpoint.name(), name);
        }
        assert_eq!(endpoint("redis-sentinel://a:1/main/4").unwrap().database(), 4);
    }

    #[test]
    fn what_is_none_is_refused() {
        for url in ["localhost:6379", "http://localhost", "redis-ring://localhost"] {
            assert_eq!(endpoint(url).err(), Some(RedisConfigError::Scheme), "{url}");
        }
        assert_eq!(endpoint("redis-sentinel://a:1").err(), Some(RedisConfigError::Service));
        for url in [
            "redis://",
            "redis://a:1,b:2",
            "redis://localhost/x",
            "redis://localhost:99999",
            "redis-cluster://a:1/2",
            "rediss://localhost#insecure",
        ] {
            assert!(matches!(endpoint(url).err(), Some(RedisConfigError::Url { .. })), "{url}");
        }
        let config = RedisConfig::new("rediss://localhost").with_ca("no certificate");
        assert!(Endpoint::new(&config).is_ok_and(|_| true) || config.check().is_err());
    }
}
