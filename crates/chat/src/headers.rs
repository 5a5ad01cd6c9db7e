//! Headers that go up with a request, and those of a provider.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, LazyLock, OnceLock},
};

use http::HeaderMap;

/// Headers of a request, shared by its clones until one of them changes them. Dereferences to a [`HeaderMap`]; it is
/// small, because a request is moved from layer to layer, and a clone of a map would copy it.
///
/// ```
/// use http::HeaderValue;
/// use steadfast_chat::ChatRequest;
///
/// let mut request = ChatRequest::user("hello");
/// request.headers.insert("x-team", HeaderValue::from_static("search"));
/// let before = request.clone();
/// request.headers.remove("x-team");
/// assert!(request.headers.is_empty());
/// assert_eq!(before.headers["x-team"], "search");
/// ```
#[derive(Clone, Default)]
pub struct SharedHeaders(Option<Arc<HeaderMap>>);

/// The headers of a request that has none.
static NONE: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);

impl Deref for SharedHeaders {
    type Target = HeaderMap;

    fn deref(&self) -> &HeaderMap {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for SharedHeaders {
    fn deref_mut(&mut self) -> &mut HeaderMap {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

impl From<HeaderMap> for SharedHeaders {
    fn from(headers: HeaderMap) -> Self {
        Self((!headers.is_empty()).then(|| Arc::new(headers)))
    }
}

impl PartialEq for SharedHeaders {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for SharedHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The headers of a provider that are about the call. Dereferences to a [`HeaderMap`], which is made
/// when it is first read: most answers are passed on without that.
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

/// Makes a map of the headers to keep.
type Pick = fn(&HeaderMap) -> HeaderMap;

impl ReplyHeaders {
    /// The headers of `all` that `pick` selects, once they are read.
    pub fn picked(all: Arc<HeaderMap>, pick: fn(&HeaderMap) -> HeaderMap) -> Self {
        Self { picked: OnceLock::new(), from: Some((all, pick)) }
    }

    /// All that came, also what is not to be passed on: for layers that read a header or two of every answer.
    /// Makes no map.
    pub fn received(&self) -> &HeaderMap {
        match &self.from {
            Some((all, _)) => all,
            None => self,
        }
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
    fn are_picked_when_first_read_and_can_be_changed() {
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
        assert_eq!(headers.received().len(), 2, "without being picked");
        let before = headers.clone();
        headers.clear();
        assert_eq!((headers.len(), before.len()), (0, 1));
        assert!(ReplyHeaders::default().is_empty());
    }
}
