//! Paths, keys and headers of the Anthropic dialect.

use http::{HeaderMap, Method, header};

use super::errors::invalid;
use crate::dialect::{Refusal, Route};

pub(crate) fn route(method: &Method, path: &str) -> Route {
    match (method, path) {
        (&Method::POST, "/v1/messages") => Route::Generate { model: None, stream: None },
        (&Method::POST, "/v1/messages/count_tokens") => Route::Count { model: None },
        (&Method::GET, "/v1/models") => Route::Models,
        (&Method::GET | &Method::HEAD, "/api/hello") => Route::Hello,
        (&Method::GET, path) => match path.strip_prefix("/v1/models/") {
            Some(name) if !name.is_empty() => Route::Model(name.to_owned()),
            _ => Route::Unknown,
        },
        _ => Route::Unknown,
    }
}

pub(crate) fn key(headers: &HeaderMap, _query: &str) -> Option<String> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let bearer = || {
        let (scheme, key) = text(header::AUTHORIZATION.as_str())?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key)
    };
    text("x-api-key").or_else(bearer).filter(|key| !key.is_empty()).map(str::to_owned)
}

pub(crate) fn check_headers(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.get("anthropic-version").map(|value| value.to_str().unwrap_or_default()) {
        None => Err(invalid("anthropic-version: header is required")),
        // The last is what the vendor's SDKs send since 2.12 and 1.12.
        Some("2023-06-01" | "2023-01-01" | "2026-10-21") => Ok(()),
        Some(other) => {
            Err(invalid(format!("anthropic-version: \"{other}\" is not a valid version")))
        }
    }
}
