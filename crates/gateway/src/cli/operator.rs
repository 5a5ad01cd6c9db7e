//! What a running gateway is asked by its operator's commands.

use std::{path::Path, time::Duration};

use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;
use steadfast::client::{ClientBody, Secret, transport::Transport};
use tokio::time::timeout;
use tower::ServiceExt;

use super::{Exit, GatewayArgs};
use crate::{config::Config, escape, keys};

/// Where a gateway is that has the default configuration, on this machine.
const HOME: &str = "http://127.0.0.1:8080";

/// The environment variable with the admin key.
const KEY: &str = "STEADFAST_ADMIN_KEY";

/// The longest that an answer may take: 10 s.
const LIMIT: Duration = Duration::from_secs(10);

/// The largest answer that is read: 64 MiB, as much as is remembered of requests by default.
const LARGEST: usize = 64 * 1024 * 1024;

/// A running gateway.
pub(super) struct Operator {
    base: String,
    key: Option<Secret>,
    transport: Transport,
}

impl Operator {
    pub(super) fn of(args: &GatewayArgs) -> Result<Self, Exit> {
        let given = args.config.as_deref().map(config).transpose()?;
        let (listed, configured) = given.unwrap_or_default();
        let base = args.url.clone().or(listed).unwrap_or_else(|| HOME.to_owned());
        let own = std::env::var(KEY).ok().map(|key| key.trim().to_owned());
        let own = own.filter(|key| !key.is_empty()).map(Secret::new);
        Ok(Self {
            base: base.trim_end_matches('/').to_owned(),
            key: own.or(configured),
            transport: Transport::new(),
        })
    }

    /// The JSON at `path`; `None` if there is nothing there.
    pub(super) async fn get(&self, path: &str) -> Result<Option<Value>, Exit> {
        let address = format!("{}{path}", self.base);
        let mut request = Request::get(&address);
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", key.expose()));
        }
        let request = request
            .body(ClientBody::default())
            .map_err(|error| Exit::usage(format_args!("--url: {address}: {error}")))?;
        let asked = async {
            let response = self.transport.clone().oneshot(request).await.map_err(|error| {
                Exit::failed(format_args!(
                    "no gateway answers at {}: {error}; where is it? --url URL, or --config FILE for its address",
                    self.base
                ))
            })?;
            let status = response.status();
            let body = Limited::new(response.into_body(), LARGEST).collect().await;
            let body = body.map_err(|error| Exit::failed(format_args!("{address}: {error}")))?;
            Ok::<_, Exit>((status, body.to_bytes()))
        };
        let (status, body) = timeout(LIMIT, asked).await.map_err(|_| {
            Exit::failed(format_args!("{address} has not answered within {LIMIT:?}"))
        })??;
        let text = String::from_utf8_lossy(&body);
        match status {
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::UNAUTHORIZED => Err(Exit::usage(format_args!(
                "{}: the admin key is missing or another one: it is read from {KEY}, or from where --config FILE has it",
                self.base
            ))),
            StatusCode::OK => serde_json::from_str(&text)
                .map(Some)
                .map_err(|_| Exit::failed(format_args!("{address}: this is no steadfast gateway"))),
            _ => Err(Exit::failed(format_args!(
                "{address}: {status}: {}",
                escape::text(text.trim())
            ))),
        }
    }
}

/// Where the gateway of a configuration listens, and its admin key.
fn config(path: &Path) -> Result<(Option<String>, Option<Secret>), Exit> {
    let (config, _) = Config::load(Some(path))?;
    let mut at = config.server.listen;
    if at.ip().is_unspecified() {
        at.set_ip(match at {
            std::net::SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    let key = config.server.admin_key.as_deref().filter(|key| !key.starts_with("sha256:"));
    let key = key.map(keys::resolve).transpose();
    let key = key.map_err(|why| Exit::usage(format_args!("server.admin_key: {why}")))?;
    Ok((Some(format!("http://{at}")), key))
}
