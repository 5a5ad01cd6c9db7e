//! HTTP to a collector, on the client that the workspace has anyway.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use opentelemetry_http::{HttpClient, HttpError};
use tokio::{runtime::Handle, time::timeout};

/// How much of a collector's answer is read: 64 KiB. It is some ten bytes when it is well.
const MAX_ANSWER: usize = 64 * 1024;

/// Sends on a runtime, whoever asks: metrics are exported by a thread that has none.
pub(crate) struct Transport {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
    limit: Duration,
}

impl Transport {
    /// A transport whose requests take `limit` at most.
    #[expect(clippy::expect_used, reason = "the message proves that it can not happen")]
    pub(crate) fn new(runtime: Handle, limit: Duration) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(limit));
        // `https` is the next connector's.
        tcp.enforce_http(false);
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(Arc::new(rustls::crypto::ring::default_provider()))
            .expect("ring, built with TLS 1.2 and 1.3, supports the default versions")
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(tcp);
        let client =
            Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Self { client, runtime, limit }
    }
}

type Sending<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

impl HttpClient for Transport {
    fn send_bytes<'a, 'b>(&'a self, request: Request<Bytes>) -> Sending<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        let (client, limit) = (self.client.clone(), self.limit);
        let sending = async move {
            let (parts, body) = client.request(request.map(Full::new)).await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(parts, body))
        };
        // A timer is made on the runtime, too.
        let sending = self.runtime.spawn(async move { timeout(limit, sending).await? });
        Box::pin(async move { sending.await? })
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("limit", &self.limit).finish_non_exhaustive()
    }
}
