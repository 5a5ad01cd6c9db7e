//! The page, as it was built: `crates/gateway/web`.

use std::sync::LazyLock;

use axum::{body::Body, http::request::Parts, response::Response};
use http::{HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};

use super::private;

/// A file of the page.
struct Asset {
    content_type: &'static str,
    bytes: &'static [u8],
    tag: LazyLock<HeaderValue>,
}

macro_rules! asset {
    ($name:literal, $content_type:literal) => {
        Asset {
            content_type: $content_type,
            bytes: include_bytes!(concat!("../../../web/dist/", $name)),
            tag: LazyLock::new(|| tag(include_bytes!(concat!("../../../web/dist/", $name)))),
        }
    };
}

static PAGE: Asset = asset!("index.html", "text/html; charset=utf-8");
static SCRIPT: Asset = asset!("app.js", "text/javascript; charset=utf-8");
static STYLE: Asset = asset!("app.css", "text/css; charset=utf-8");

/// `GET /dashboard`.
pub(super) async fn page(asked: Parts) -> Response {
    PAGE.answer(&asked)
}

/// `GET /dashboard/app.js`.
pub(super) async fn script(asked: Parts) -> Response {
    SCRIPT.answer(&asked)
}

/// `GET /dashboard/app.css`.
pub(super) async fn style(asked: Parts) -> Response {
    STYLE.answer(&asked)
}

impl Asset {
    /// The file, or that the one which the browser has is still it.
    fn answer(&self, asked: &Parts) -> Response {
        let known = asked.headers.get(header::IF_NONE_MATCH);
        let is_known = known.is_some_and(|known| known.as_bytes() == self.tag.as_bytes());
        let body = if is_known { Body::empty() } else { Body::from(self.bytes) };
        let mut response = Response::new(body);
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        private(&mut response);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.insert(header::ETAG, self.tag.clone());
        // It changes with the binary: asked for each time, and mostly not sent.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }
}

fn tag(bytes: &[u8]) -> HeaderValue {
    let hash = Sha256::digest(bytes);
    let hex: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::from_str(&format!("\"{hex}\""))
        .unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}
