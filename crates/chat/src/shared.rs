//! A list that is cheap to clone.

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;

/// A list shared by its clones until one of them changes it.
///
/// One that was read from the wire may not have been read item by item: that is done when somebody
/// first looks into it, once for all clones. Most requests are passed on without anybody looking.
#[derive(Clone)]
pub struct SharedVec<T>(Option<Arc<Shared<T>>>);

struct Shared<T> {
    items: OnceLock<Vec<T>>,
    unread: Option<Unread<T>>,
}

/// A list that has not been read.
struct Unread<T> {
    text: Bytes,
    len: usize,
    read: fn(&Bytes) -> Vec<T>,
}

impl<T> Shared<T> {
    fn items(&self) -> &Vec<T> {
        self.items.get_or_init(|| {
            let read = |unread: &Unread<T>| (unread.read)(&unread.text);
            self.unread.as_ref().map(read).unwrap_or_default()
        })
    }
}

impl<T> SharedVec<T> {
    /// A list of `len` items that `read` reads of `text`, once it is needed. Whoever makes it knows
    /// that `text` can be read, and how many items there are.
    #[doc(hidden)]
    pub fn unread(text: Bytes, len: usize, read: fn(&Bytes) -> Vec<T>) -> Self {
        let unread = Some(Unread { text, len, read });
        Self(Some(Arc::new(Shared { items: OnceLock::new(), unread })))
    }

    /// Whether nobody has looked into it since it was read from the wire.
    #[doc(hidden)]
    pub fn is_unread(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.items.get().is_none())
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        let Some(shared) = &self.0 else { return 0 };
        match (shared.items.get(), &shared.unread) {
            (Some(items), _) => items.len(),
            (None, unread) => unread.as_ref().map_or(0, |unread| unread.len),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether both are the same list in memory: equal without looking.
    pub fn same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl<T: Clone> SharedVec<T> {
    /// The list to be changed; copied first when it is shared.
    #[expect(clippy::expect_used, reason = "the message proves that it can not happen")]
    pub fn make_mut(&mut self) -> &mut Vec<T> {
        let shared = Arc::make_mut(self.0.get_or_insert_with(|| Arc::new(Vec::new().into())));
        shared.items();
        shared.unread = None;
        shared.items.get_mut().expect("the items have just been read")
    }
}

impl<T> From<Vec<T>> for Shared<T> {
    fn from(items: Vec<T>) -> Self {
        Self { items: OnceLock::from(items), unread: None }
    }
}

impl<T: Clone> Clone for Shared<T> {
    /// A copy of the items, to be changed.
    fn clone(&self) -> Self {
        self.items().clone().into()
    }
}

impl<T> Default for SharedVec<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Deref for SharedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_deref().map_or(&[], |shared| shared.items())
    }
}

impl<T: PartialEq> PartialEq for SharedVec<T> {
    fn eq(&self, other: &Self) -> bool {
        self.same(other) || (self.len() == other.len() && **self == **other)
    }
}

impl<T: Eq> Eq for SharedVec<T> {}

impl<T> From<Vec<T>> for SharedVec<T> {
    fn from(items: Vec<T>) -> Self {
        Self((!items.is_empty()).then(|| Arc::new(items.into())))
    }
}

impl<T> FromIterator<T> for SharedVec<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        items.into_iter().collect::<Vec<_>>().into()
    }
}

impl<'a, T> IntoIterator for &'a SharedVec<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: fmt::Debug> fmt::Debug for SharedVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unread() -> SharedVec<u8> {
        SharedVec::unread(Bytes::from_static(b"abc"), 3, |text| text.to_vec())
    }

    #[test]
    fn is_read_when_it_is_looked_into_and_for_all_clones() {
        let list = unread();
        let clone = list.clone();
        assert!(list.same(&clone) && list == clone);
        assert_eq!((list.len(), list.is_empty()), (3, false));
        assert!(clone.is_unread(), "none of that looks into it");
        assert_eq!(list[1], b'b');
        assert!(!clone.is_unread());
    }

    #[test]
    fn a_change_is_nobody_elses() {
        let list = unread();
        let mut changed = list.clone();
        changed.make_mut().push(b'd');
        assert_eq!((&*changed, &*list), (&b"abcd"[..], &b"abc"[..]));
        assert_eq!((changed.len(), list.len()), (4, 3));
        assert!(!changed.same(&list) && changed != list);

        let mut alone = unread();
        alone.make_mut().pop();
        assert_eq!((alone.len(), &*alone), (2, &b"ab"[..]));
    }

    #[test]
    fn nothing_is_the_same_as_nothing() {
        let mut empty = SharedVec::<u8>::from(Vec::new());
        assert!(empty.same(&SharedVec::default()) && empty.is_empty() && !empty.is_unread());
        empty.make_mut().push(1);
        assert_eq!(&*empty, [1]);
    }
}
