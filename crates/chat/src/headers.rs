//! A provider's headers.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, OnceLock},
};

use http::HeaderMap;

/// A provider's headers, as far as they say something about the call. Used like the map they are,
/// which is made when somebody first asks: most answers are passed on without anybody asking.
///
/// ```
/// use http::{HeaderMap, HeaderValue};
/// use steadfast_chat::ReplyHeaders;
///
/// let mut all = HeaderMap::new();
/// all.insert("retry-after", HeaderValue::from_static("3"));
/// let headers = ReplyHeaders::from(all);
/// assert_eq!(headers["retry-after"], "3");
/// ```
#[derive(Clone, Default)]
pub struct ReplyHeaders {
    picked: OnceLock<HeaderMap>,
    from: Option<(Arc<HeaderMap>, Pick)>,
}

/// Makes a map of those that are worth it.
type Pick = fn(&HeaderMap) -> HeaderMap;

impl ReplyHeaders {
    /// Those of `all` that `pick` picks out, once somebody asks.
    pub fn picked(all: Arc<HeaderMap>, pick: fn(&HeaderMap) -> HeaderMap) -> Self {
        Self { picked: OnceLock::new(), from: Some((all, pick)) }
    }
}

impl Deref for ReplyHeaders {
    type Target = HeaderMap;

    fn deref(&self) -> &HeaderMap {
        let pick = |(all, pick): &(Arc<HeaderMap>, Pick)| pick(all);
        self.picked.get_or_init(|| self.from.as_ref().map(pick).unwrap_or_default())
    }
}

impl DerefMut for ReplyHeaders {
    #[expect(clippy::expect_used, reason = "the message proves that it can not happen")]
    fn deref_mut(&mut self) -> &mut HeaderMap {
        let _ = &**self;
        self.picked.get_mut().expect("they have just been picked")
    }
}

impl From<HeaderMap> for ReplyHeaders {
    fn from(headers: HeaderMap) -> Self {
        Self { picked: OnceLock::from(headers), from: None }
    }
}

impl fmt::Debug for ReplyHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    #[test]
    fn are_picked_once_somebody_asks_and_can_be_changed_then() {
        let all = HeaderMap::from_iter([
            (header::RETRY_AFTER, HeaderValue::from_static("3")),
            (header::SET_COOKIE, HeaderValue::from_static("secret")),
        ]);
        let pick = |all: &HeaderMap| {
            HeaderMap::from_iter([(header::RETRY_AFTER, all[header::RETRY_AFTER].clone())])
        };
        let mut headers = ReplyHeaders::picked(Arc::new(all), pick);
        assert!(headers.picked.get().is_none());
        assert!(!format!("{headers:?}").contains("secret"));
        let before = headers.clone();
        headers.clear();
        assert_eq!((headers.len(), before.len()), (0, 1));
        assert!(ReplyHeaders::default().is_empty());
    }
}
