//! Paths, keys and headers of the responses dialect: those of the vendor's other one, but for the calls.

use http::Method;

pub(crate) use crate::dialect::openai::routes::{check_headers, key};
use crate::dialect::{Route, openai};

pub(crate) fn route(method: &Method, path: &str) -> Route {
    match (method, path) {
        (&Method::POST, "/v1/responses") => Route::Generate { model: None, stream: None },
        (&Method::POST, "/v1/responses/input_tokens") => Route::Count { model: None },
        (&Method::POST, "/v1/chat/completions") => Route::Unknown,
        _ => match (method, path.strip_prefix("/v1/responses/")) {
            (&Method::GET, Some(id)) => Route::Kept(id.to_owned()),
            (&Method::DELETE, Some(id)) => Route::Deleted(id.to_owned()),
            _ => openai::routes::route(method, path),
        },
    }
}
