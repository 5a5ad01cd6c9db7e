//! The layers: one for chat services, one for HTTP services.

use std::{borrow::Cow, fmt, sync::Arc};

use steadfast_core::{RecoveryTable, Target};
use tower_layer::Layer;

use crate::{
    Classifier, ClassifyOverride, ClassifyPolicy, http::HttpClassifyLayer, service::Classify,
};

/// A target's window in tokens, if known.
pub(crate) type Windows = Arc<dyn Fn(&Target) -> Option<u64> + Send + Sync>;

/// Judges the failures of a chat service, and answers that only seem to be one.
///
/// See the [crate's documentation](crate) for what it does and where to put it;
/// [`ClassifyLayer::llm_http`] is the same for a raw HTTP client of an LLM API, and
/// [`ClassifyLayer::http`] for any HTTP service.
#[derive(Clone)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct ClassifyLayer {
    classifier: Classifier,
    windows: Option<Windows>,
    retry_empty: bool,
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
            .field("retry_empty", &self.retry_empty)
            .finish()
    }
}

impl ClassifyLayer {
    /// The built-in rules and the default table, for a service of
    /// [`ChatResponse`](steadfast_chat::ChatResponse)s.
    pub fn new() -> Self {
        Self { classifier: Classifier::new(), windows: None, retry_empty: false }
    }

    /// The same for a service of `http::Response`s whose bodies are an LLM's answers: errors in a 200,
    /// web pages and streams that were cut off become failures, and what an error's body says decides
    /// before its status.
    pub fn llm_http() -> HttpClassifyLayer {
        HttpClassifyLayer::new(Classifier::new())
    }

    /// For any service of `http::Response`s: status, headers and transport errors decide, and a 2xx is
    /// fine whatever its body. For an LLM API [`llm_http`](Self::llm_http) is right: this one does not
    /// know its answers.
    pub fn http() -> HttpClassifyLayer {
        HttpClassifyLayer::new(Classifier::http())
    }

    /// Uses `classifier`.
    pub fn with_classifier(mut self, classifier: Classifier) -> Self {
        self.classifier = classifier;
        self
    }

    /// Asks `own` before the built-in rules; it may have no opinion. See [`ClassifyOverride`]. Here
    /// [`Opinion::Fine`](crate::Opinion::Fine) is none either: of an error that a chat client returned
    /// there is no answer to hand on.
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

    /// Changes what the rules find as `policy` says.
    pub fn with_policy(mut self, policy: ClassifyPolicy) -> Self {
        self.classifier = self.classifier.with_policy(policy);
        self
    }

    /// Takes secrets that are known by value out of what a provider wrote; see [`Classifier::with_mask`].
    pub fn with_mask(
        mut self,
        mask: impl for<'t> Fn(&'t [u8]) -> Cow<'t, [u8]> + Send + Sync + 'static,
    ) -> Self {
        self.classifier = self.classifier.with_mask(mask);
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

    /// Asks once more for an answer that ended as it should and has nothing in it. Off by default: it is
    /// the model's answer, and handed on. With it, the first attempt of a call that is answered so is a
    /// [`ServerError`](steadfast_core::Reason::ServerError) of that
    /// [request](steadfast_core::Scope::Request) alone, which no breaker counts; a second one is handed
    /// on. A stop reason that explains it, such as the output limit or a refusal, is never one.
    pub fn with_retry_empty(mut self, retry: bool) -> Self {
        self.retry_empty = retry;
        self
    }
}

impl<S> Layer<S> for ClassifyLayer {
    type Service = Classify<S>;

    fn layer(&self, inner: S) -> Classify<S> {
        Classify::new(inner, self.classifier.clone(), self.windows.clone(), self.retry_empty)
    }
}
