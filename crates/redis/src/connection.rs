//! A connection to the store, which counts what is sent.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Cmd, Pipeline, PushInfo, RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection, SendError},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
};
use tokio::time::timeout;

use crate::{
    AwayCause, RedisConfig,
    endpoint::{Endpoint, Route},
};

/// Commands that wait to be written to the socket. A few batches of the largest kind; callers beyond it wait, within
/// their limits.
const QUEUE: usize = 1_024;

/// A connection. Cheap to clone; it is closed when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Connection {
    link: Link,
    commands: Arc<AtomicU64>,
}

#[derive(Clone)]
enum Link {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Endpoint {
    /// Connects, within a time. `hear` is called with what comes unasked, in the task of the connection.
    pub(crate) async fn connect(
        &mut self,
        config: &RedisConfig,
        commands: &Arc<AtomicU64>,
        hear: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Connection, AwayCause> {
        install_crypto();
        let hear = move |push| -> Result<(), SendError> {
            hear(push);
            Ok(())
        };
        // Each sentinel that does not answer may cost as much.
        let hops = match &self.route {
            Route::Server(_) => 1,
            Route::Cluster { .. } => 2,
            Route::Sentinels { sentinels, .. } => sentinels.saturating_add(1),
        };
        let limit = config.connect_timeout.saturating_mul(hops);
        let link = timeout(limit, self.route.link(config, hear)).await;
        let link = link.map_err(|_| AwayCause::NoAnswer(limit))?;
        let link = link.map_err(|error| AwayCause::of(&error, limit))?;
        Ok(Connection { link, commands: commands.clone() })
    }
}

impl Route {
    async fn link(
        &mut self,
        config: &RedisConfig,
        hear: impl Fn(PushInfo) -> Result<(), SendError> + Send + Sync + 'static,
    ) -> RedisResult<Link> {
        let settings = || {
            AsyncConnectionConfig::new()
                .set_connection_timeout(Some(config.connect_timeout))
                .set_response_timeout(Some(config.answer_timeout))
                .set_pipeline_buffer_size(QUEUE)
        };
        match self {
            Self::Server(client) => {
                let settings = settings().set_push_sender(hear);
                let link = client.get_multiplexed_async_connection_with_config(&settings).await?;
                Ok(Link::Server(link))
            }
            Self::Sentinels { client, .. } => {
                let settings = settings().set_push_sender(hear);
                let link = client.get_async_connection_with_config(&settings).await?;
                Ok(Link::Server(link))
            }
            Self::Cluster { nodes, certificates } => {
                let mut builder = ClusterClient::builder(nodes.iter().cloned())
                    .use_protocol(redis::ProtocolVersion::RESP3)
                    .connection_timeout(config.connect_timeout)
                    .response_timeout(config.answer_timeout)
                    .overall_response_timeout(Some(config.answer_timeout))
                    .push_sender(hear);
                if let Some(certificates) = certificates {
                    builder = builder.certs(certificates.clone());
                }
                Ok(Link::Cluster(builder.build()?.get_async_connection().await?))
            }
        }
    }
}

impl Connection {
    /// Hears what is announced on `channel` from now on.
    pub(crate) async fn subscribe(&mut self, channel: &str) -> RedisResult<()> {
        self.commands.fetch_add(1, Ordering::Relaxed);
        match &mut self.link {
            Link::Server(link) => link.subscribe(channel).await,
            Link::Cluster(link) => link.subscribe(channel).await,
        }
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        self.commands.fetch_add(1, Ordering::Relaxed);
        match &mut self.link {
            Link::Server(link) => link.req_packed_command(cmd),
            Link::Cluster(link) => link.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.commands.fetch_add(pipeline.len() as u64, Ordering::Relaxed);
        match &mut self.link {
            Link::Server(link) => link.req_packed_commands(pipeline, offset, count),
            Link::Cluster(link) => link.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match &self.link {
            Link::Server(link) => link.get_db(),
            Link::Cluster(link) => link.get_db(),
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// The client takes the process' default. A program that has none, and two to choose from, would panic.
fn install_crypto() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Somebody else may have been first, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// As long as a store may take to answer each of several commands.
pub(crate) async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = RedisResult<T>>,
) -> Result<T, AwayCause> {
    let answer = timeout(limit, answer).await.map_err(|_| AwayCause::NoAnswer(limit))?;
    answer.map_err(|error| AwayCause::of(&error, limit))
}
