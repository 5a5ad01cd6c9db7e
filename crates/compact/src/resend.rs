//! The request as it was sent, in case it has to be sent again.

use steadfast_chat::ChatRequest;
use steadfast_core::{Failure, Target};

use crate::decide::CallState;

/// A request as it was sent.
pub(crate) struct KeptRequest {
    pub(crate) request: ChatRequest,
    pub(crate) state: CallState,
}

impl KeptRequest {
    /// Keeps `request`. Where its target names its model, nothing is allocated for that.
    pub(crate) fn new(request: &mut ChatRequest, state: CallState) -> Self {
        let name = std::mem::take(&mut request.model);
        let mut kept = request.clone();
        if kept.context.target.as_ref().and_then(Target::model) != Some(&*name) {
            kept.model.clone_from(&name);
        }
        request.model = name;
        Self { request: kept, state }
    }

    /// With the model's name again.
    pub(crate) fn named(mut self) -> Self {
        if self.request.model.is_empty()
            && let Some(name) = self.request.context.target.as_ref().and_then(Target::model)
        {
            name.clone_into(&mut self.request.model);
        }
        self
    }
}

pub(crate) fn polled_twice() -> Failure {
    let why = "`ResponseFuture` was polled after it was ready";
    Failure::refused_fixed(steadfast_core::Reason::Unknown, why)
}
