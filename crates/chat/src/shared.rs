//! A list that is cheap to clone.

use std::{fmt, ops::Deref, sync::Arc};

/// A list shared by its clones until one of them changes it.
#[derive(Clone)]
pub struct SharedVec<T>(Option<Arc<Vec<T>>>);

impl<T> SharedVec<T> {
    /// Whether both are the same list in memory: equal without comparing items.
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
    pub fn make_mut(&mut self) -> &mut Vec<T> {
        Arc::make_mut(self.0.get_or_insert_default())
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
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

impl<T: PartialEq> PartialEq for SharedVec<T> {
    fn eq(&self, other: &Self) -> bool {
        self.same(other) || **self == **other
    }
}

impl<T: Eq> Eq for SharedVec<T> {}

impl<T> From<Vec<T>> for SharedVec<T> {
    fn from(items: Vec<T>) -> Self {
        Self((!items.is_empty()).then(|| Arc::new(items)))
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

    #[test]
    fn a_change_is_not_seen_by_clones() {
        let list = SharedVec::from(vec![1, 2, 3]);
        let mut changed = list.clone();
        assert!(list.same(&changed));
        changed.make_mut().push(4);
        assert_eq!((&*changed, &*list), (&[1, 2, 3, 4][..], &[1, 2, 3][..]));
        assert!(!changed.same(&list) && changed != list);
    }

    #[test]
    fn empty_lists_are_the_same() {
        let mut empty = SharedVec::<u8>::from(Vec::new());
        assert!(empty.same(&SharedVec::default()) && empty.is_empty());
        empty.make_mut().push(1);
        assert_eq!(&*empty, [1]);
    }
}
