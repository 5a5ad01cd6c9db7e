//! The layer.

use std::{fmt, sync::Arc};

use steadfast_chat::transcript::TranscriptRules;
use tower_layer::Layer;

use crate::{PromptParts, Session, SessionPrompt, SessionStore};

/// Chooses the rules that a history has to keep, for one prompt.
type RulesOf = Arc<dyn Fn(&SessionPrompt) -> TranscriptRules + Send + Sync>;

/// Gives an agent its history, and keeps what it adds.
///
/// Around a `Service<SessionRun, Response: Into<SessionTurn>>` it makes a `Service<SessionPrompt, Response = SessionReply>`; see
/// the [crate's documentation](crate). Every service of the layer uses the threads of its [`SessionStore`], which is also the handle
/// to its state.
#[derive(Clone)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct SessionLayer {
    pub(crate) shared: Arc<LayerConfig>,
}

#[derive(Clone)]
pub(crate) struct LayerConfig {
    pub(crate) store: SessionStore,
    pub(crate) parts: PromptParts,
    pub(crate) rules: Option<RulesOf>,
}

impl SessionLayer {
    /// Keeps the threads of this store.
    pub fn new(store: SessionStore) -> Self {
        let parts = PromptParts::new();
        Self { shared: Arc::new(LayerConfig { store, parts, rules: None }) }
    }

    /// With this system prompt, in front of each history.
    pub fn with_prompt(mut self, parts: PromptParts) -> Self {
        Arc::make_mut(&mut self.shared).parts = parts;
        self
    }

    /// Before each run the history is repaired by the rules that this returns, such as those of the target's dialect or profile.
    ///
    /// Without it they are those of the dialect that its messages were read in, and OpenAI's when they were read in none: calls get
    /// their results, and hardly anything else is touched. What a target needs beyond that, the layers inside do, which know it.
    pub fn with_rules(
        mut self,
        rules: impl Fn(&SessionPrompt) -> TranscriptRules + Send + Sync + 'static,
    ) -> Self {
        Arc::make_mut(&mut self.shared).rules = Some(Arc::new(rules));
        self
    }

    /// The threads.
    pub fn store(&self) -> &SessionStore {
        &self.shared.store
    }
}

impl<S> Layer<S> for SessionLayer {
    type Service = Session<S>;

    fn layer(&self, inner: S) -> Session<S> {
        Session { inner, shared: self.shared.clone() }
    }
}

impl fmt::Debug for LayerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerConfig")
            .field("store", &self.store)
            .field("rules", &self.rules.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SessionLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SessionLayer").field(&self.shared).finish()
    }
}
