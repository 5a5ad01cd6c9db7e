//! Paths, keys and headers of the Gemini dialect.

use http::{HeaderMap, Method, header};

use crate::dialect::{Refusal, Route};

pub(crate) fn route(method: &Method, path: &str) -> Route {
    let Some(rest) =
        path.strip_prefix("/v1beta/models").or_else(|| path.strip_prefix("/v1/models"))
    else {
        return Route::Unknown;
    };
    if rest.is_empty() && method == Method::GET {
        return Route::Models;
    }
    let Some(rest) = rest.strip_prefix('/') else { return Route::Unknown };
    match (method, rest.split_once(':')) {
        (&Method::GET, None) if !rest.is_empty() => Route::Model(rest.to_owned()),
        (&Method::POST, Some((model, "generateContent"))) => {
            Route::Generate { model: Some(model.to_owned()), stream: Some(false) }
        }
        (&Method::POST, Some((model, "streamGenerateContent"))) => {
            Route::Generate { model: Some(model.to_owned()), stream: Some(true) }
        }
        (&Method::POST, Some((model, method @ ("embedContent" | "batchEmbedContents")))) => {
            Route::Embed { model: Some(model.to_owned()), single: method == "embedContent" }
        }
        (&Method::POST, Some((model, "countTokens"))) => {
            Route::Count { model: Some(model.to_owned()) }
        }
        _ => Route::Unknown,
    }
}

pub(crate) fn key(headers: &HeaderMap, query: &str) -> Option<String> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let query = || query.split('&').find_map(|pair| pair.strip_prefix("key="));
    let bearer = || {
        let (scheme, key) = text(header::AUTHORIZATION.as_str())?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key)
    };
    text("x-goog-api-key")
        .or_else(query)
        .or_else(bearer)
        .filter(|key| !key.is_empty())
        .map(str::to_owned)
}

#[expect(clippy::unnecessary_wraps, reason = "the other dialects have something to check here")]
pub(crate) fn check_headers(_headers: &HeaderMap) -> Result<(), Refusal> {
    Ok(())
}
