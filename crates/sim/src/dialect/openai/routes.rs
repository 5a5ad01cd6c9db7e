//! Paths, keys and headers of the OpenAI dialect.

use http::{HeaderMap, Method, header};

use crate::dialect::{Refusal, Route};

pub(crate) fn route(method: &Method, path: &str) -> Route {
    match (method, path) {
        (&Method::POST, "/v1/chat/completions") => Route::Generate { model: None, stream: None },
        (&Method::POST, "/v1/embeddings") => Route::Embed { model: None, single: false },
        (&Method::GET, "/v1/models") => Route::Models,
        (&Method::GET, path) => match path.strip_prefix("/v1/models/") {
            Some(name) if !name.is_empty() => Route::Model(name.to_owned()),
            _ => Route::Unknown,
        },
        _ => Route::Unknown,
    }
}

pub(crate) fn key(headers: &HeaderMap, _query: &str) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !key.trim().is_empty()).then(|| key.trim().to_owned())
}

#[expect(clippy::unnecessary_wraps, reason = "the other dialects have something to check here")]
pub(crate) fn check_headers(_headers: &HeaderMap) -> Result<(), Refusal> {
    Ok(())
}
