//! The minimal reverse proxy on hyper, as the reference: a pooled client, bodies streamed through
//! unread.

use http::{Request, Response, StatusCode, Uri, uri::Authority};
use http_body_util::{Either, Empty};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

use crate::{Error, serve};

type Pooled = Client<HttpConnector, Incoming>;

/// Forwards everything to `upstream`.
pub(crate) fn run(upstream: Option<&str>) -> Result<(), Error> {
    let upstream = upstream.ok_or("proxy needs the address of its upstream")?;
    let upstream: Authority = upstream.parse()?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Pooled = Client::builder(TokioExecutor::new()).build(connector);
    serve::run(move |request| pass(client.clone(), upstream.clone(), request))
}

async fn pass(
    client: Pooled,
    upstream: Authority,
    mut request: Request<Incoming>,
) -> Response<Either<Incoming, Empty<bytes::Bytes>>> {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(http::uri::Scheme::HTTP);
    parts.authority = Some(upstream);
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    request.headers_mut().remove(http::header::HOST);
    match client.request(request).await {
        Ok(response) => response.map(Either::Left),
        Err(_) => {
            let mut response = Response::new(Either::Right(Empty::new()));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response
        }
    }
}
