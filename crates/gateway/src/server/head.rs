//! The head of a request: whether everybody who reads it on its way reads the same.

use http::{HeaderMap, Uri, header};

use crate::authority::{self, Misaddressed};

/// Whether the head of a request says in one way only to whom it is, and where its body ends.
///
/// # Errors
///
/// What is wrong, and what would be right.
pub(super) fn check(headers: &HeaderMap, uri: &Uri) -> Result<(), &'static str> {
    authority::of(headers, uri).map_err(Misaddressed::message)?;
    if is_chunked_or_not(headers) {
        return Ok(());
    }
    Err(
        "the request's transfer-encoding is not `chunked`, alone and once; send that, or content-length",
    )
}

/// Whether there is no transfer encoding, or `chunked` once.
///
/// Of several hyper obeys the last, as of `chunked, chunked`. A proxy in front that obeys the first, or all of
/// them, finds another end of the body, and what is a body to one of the two is a request to the other.
fn is_chunked_or_not(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let Some(encoding) = encodings.next() else { return true };
    encoding.as_bytes().eq_ignore_ascii_case(b"chunked") && encodings.next().is_none()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn one_encoding_is_taken_and_it_is_chunked() {
        for (encodings, is_right) in [
            (&[][..], true),
            (&["chunked"], true),
            (&["Chunked"], true),
            (&["chunked, chunked"], false),
            (&["chunked", "chunked"], false),
            (&["gzip, chunked"], false),
            (&["gzip", "chunked"], false),
            (&["identity"], false),
            (&["chunked,"], false),
            (&["xchunked"], false),
            (&[""], false),
        ] {
            let headers = encodings
                .iter()
                .map(|value| (header::TRANSFER_ENCODING, HeaderValue::from_static(value)))
                .fold(HeaderMap::new(), |mut all, (name, value)| {
                    all.append(name, value);
                    all
                });
            assert_eq!(check(&headers, &Uri::default()).is_ok(), is_right, "{encodings:?}");
        }
    }
}
