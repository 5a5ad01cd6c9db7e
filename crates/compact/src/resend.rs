//! The request as it was sent, in case it has to be sent again.

use steadfast_chat::ChatRequest;
use steadfast_core::Failure;

use crate::decide::CallState;

/// A request as it was sent.
pub(crate) struct KeptRequest {
    pub(crate) request: ChatRequest,
    pub(crate) state: CallState,
}

pub(crate) fn polled_twice() -> Failure {
    let why = "`ResponseFuture` was polled after it was ready";
    Failure::refused_fixed(steadfast_core::Reason::Unknown, why)
}
