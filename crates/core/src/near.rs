//! A shared pointer that cores do not fight over.

use std::{fmt, ops::Deref, sync::Arc};

use crate::{Settle, Settled};

/// A pointer to state that many services share, counted apart from theirs.
///
/// Cloning an `Arc` writes to a counter beside the value. When every call on every core does that to
/// one value, its cache line travels from core to core, which costs several times the call. A `Near`
/// has a counter of its own in front: clones of one `Near` count there, and the value itself is only
/// read. So a layer makes one for each service it makes ([`new`](Self::new)), and each call clones its
/// service's.
///
/// ```
/// use std::sync::Arc;
/// use steadfast_core::Near;
///
/// let state = Arc::new(7);
/// let (mine, yours) = (Near::new(state.clone()), Near::new(state.clone()));
/// let call = mine.clone();
/// assert_eq!(*call + *yours, 14);
/// assert_eq!(Arc::strong_count(&state), 3, "a clone of a `Near` counts elsewhere");
/// ```
pub struct Near<T: ?Sized>(Arc<Arc<T>>);

impl<T: ?Sized> Near<T> {
    /// A pointer to `value` with a counter of its own. Allocates the counter.
    pub fn new(value: Arc<T>) -> Self {
        Self(Arc::new(value))
    }

    /// The shared pointer behind it.
    pub fn shared(&self) -> &Arc<T> {
        &self.0
    }

    /// Another pointer to the same value, with a counter of its own.
    #[must_use]
    pub fn renewed(&self) -> Self {
        Self::new(self.shared().clone())
    }
}

impl<T: Settle> Near<T> {
    /// The same as what a [`Lease`](crate::Lease) wants.
    #[inline]
    pub fn settle(&self) -> Arc<dyn Settle> {
        self.0.clone()
    }
}

impl<T: Settle + ?Sized> Settle for Arc<T> {
    #[inline]
    fn settle(&self, settled: Settled<'_>) {
        (**self).settle(settled);
    }
}

impl<T: ?Sized> Clone for Near<T> {
    #[inline]
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: ?Sized> Deref for Near<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Near<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
