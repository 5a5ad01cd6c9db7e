//! Fields of a body that no typed request has.

use steadfast_chat::ChatRequest;

use crate::json::{Fields, string};

/// The text `name` at the top of the body that `request` was read from, such as `prompt_cache_key`. `None` when it is
/// not there, or no text.
pub fn text_field(request: &ChatRequest, name: &str) -> Option<String> {
    let body = &request.origin(request.dialect()?)?.body;
    // Most have none, and to see that takes no reading.
    memchr::memmem::find(body, name.as_bytes())?;
    string(Fields::of_body(body).ok()?.take(name)?).ok()
}
