//! The bodies of requests that are refused before they were read.

use std::{pin::Pin, time::Duration};

use axum::{body::Body, response::Response};
use http::{HeaderMap, HeaderValue, header};
use http_body::Body as _;

/// How much of such a body is read to keep its connection: 256 KiB, more than a usual chat, less
/// than it costs to open a new connection.
const MOST: usize = 256 * 1024;
/// How long that may take: 1 s, for a body that is still coming.
const PATIENCE: Duration = Duration::from_secs(1);

/// `response` to the request with `headers`, once the rest of its `body` was read and dropped. What is
/// left unread ends an HTTP/1 connection, and unless the caller learns of it, its next request on it is
/// lost: what is too long or too slow is answered with `connection: close`.
pub(super) async fn drop_rest(
    headers: &HeaderMap,
    mut body: Body,
    mut response: Response,
) -> Response {
    // Who was waited for already is not waited for again, and reading is what lets a caller go on that
    // asks first.
    let late = response.status() == http::StatusCode::REQUEST_TIMEOUT;
    let unread = late
        || headers.contains_key(header::EXPECT)
        || body.size_hint().lower() > MOST as u64
        || tokio::time::timeout(PATIENCE, rest(Pin::new(&mut body))).await != Ok(true);
    if unread {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Whether the body came to its end.
async fn rest(mut body: Pin<&mut Body>) -> bool {
    let mut left = MOST;
    loop {
        if body.is_end_stream() {
            return true;
        }
        match std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => {
                let size = frame.data_ref().map_or(0, bytes::Bytes::len);
                match left.checked_sub(size) {
                    Some(less) => left = less,
                    None => return false,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn closes(body: Body) -> bool {
        closes_after(&HeaderMap::new(), body).await
    }

    async fn closes_after(headers: &HeaderMap, body: Body) -> bool {
        let response = drop_rest(headers, body, Response::new(Body::empty())).await;
        response.headers().contains_key(header::CONNECTION)
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_kept_unless_too_much_is_left_on_it() {
        assert!(!closes(Body::empty()).await);
        assert!(!closes(Body::from(vec![b'x'; MOST])).await);
        assert!(closes(Body::from(vec![b'x'; MOST + 1])).await);
        assert!(closes(Body::new(Never { announced: 0 })).await);
    }

    #[tokio::test(start_paused = true)]
    async fn what_need_not_come_is_not_waited_for() {
        let began = tokio::time::Instant::now();
        let asks =
            HeaderMap::from_iter([(header::EXPECT, HeaderValue::from_static("100-continue"))]);
        assert!(closes_after(&asks, Body::new(Never { announced: 0 })).await);
        assert!(closes(Body::new(Never { announced: 10_000_000_000 })).await);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    /// A body that is announced and does not come.
    struct Never {
        announced: u64,
    }

    impl http_body::Body for Never {
        type Data = bytes::Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
            std::task::Poll::Pending
        }

        fn size_hint(&self) -> http_body::SizeHint {
            let mut hint = http_body::SizeHint::new();
            hint.set_lower(self.announced);
            hint
        }
    }
}
