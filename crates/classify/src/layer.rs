//! The layers: one for chat services, one for HTTP services.

use std::{fmt, sync::Arc};

use steadfast_core::{RecoveryTable, Target};
use tower_layer::Layer;

use crate::{Classifier, ClassifyOverride, http::HttpClassifyLayer, service::Classify};

/// A target's window in tokens, if known.
pub(crate) type Windows = Arc<dyn Fn(&Target) -> Option<u64> + Send + Sync>;

/// Judges the failures of a chat service, and answers that only seem to be one.
///
/// See the [crate's documentation](crate) for what it does and where to put it;
/// [`ClassifyLayer::http`] is the same for a raw HTTP service.
#[derive(Clone)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct ClassifyLayer {
    classifier: Classifier,
    windows: Option<Windows>,
}

impl Default for ClassifyLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ClassifyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClassifyLayer")
            .field("classifier", &self.classifier)
            .field("windows", &self.windows.is_some())
            .finish()
    }
}

impl ClassifyLayer {
    /// The built-in rules and the default table, for a service of
    /// [`ChatResponse`](steadfast_chat::ChatResponse)s.
    pub fn new() -> Self {
        Self { classifier: Classifier::new(), windows: None }
    }

    /// The same for a service of `http::Response`s.
    pub fn http() -> HttpClassifyLayer {
        HttpClassifyLayer::new(Classifier::new())
    }

    /// Uses `classifier`.
    pub fn with_classifier(mut self, classifier: Classifier) -> Self {
        self.classifier = classifier;
        self
    }

    /// Asks `own` before the built-in rules; it may have no opinion. See [`ClassifyOverride`].
    pub fn with_override(mut self, own: impl ClassifyOverride + 'static) -> Self {
        self.classifier = self.classifier.with_override(own);
        self
    }

    /// Reads reasons through `table`: what may be retried, where else a call may go, what cools
    /// down.
    pub fn with_table(mut self, table: RecoveryTable) -> Self {
        self.classifier = self.classifier.with_table(table);
        self
    }

    /// States the window of a target, in tokens. With it, an answer whose reported input is larger
    /// than the window is a [`ContextOverflow`](steadfast_core::Reason::ContextOverflow): the
    /// provider cut the conversation without saying so.
    pub fn with_windows(
        mut self,
        windows: impl Fn(&Target) -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        self.windows = Some(Arc::new(windows));
        self
    }
}

impl<S> Layer<S> for ClassifyLayer {
    type Service = Classify<S>;

    fn layer(&self, inner: S) -> Classify<S> {
        Classify::new(inner, self.classifier.clone(), self.windows.clone())
    }
}
