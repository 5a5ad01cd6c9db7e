//! A tool that is to be run: what the layers around tools are called with.

use steadfast_core::{Call, CallContext};
use tokio_util::sync::CancellationToken;

use crate::ToolCall;

/// A request to run a tool. It is a [`Call`], so that layers which serve any request serve it too.
///
/// [`ToolRequest`] is one; a type of your own needs these two functions and those of `Call`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a request to run a tool",
    label = "the layer is called with `{Self}`",
    note = "send a `ToolRequest`, or implement `ToolInvocation` for `{Self}`"
)]
pub trait ToolInvocation: Call {
    /// What the model called.
    fn call(&self) -> &ToolCall;

    /// Cancelled when nobody wants the result any more: the run ends at once.
    fn abort(&self) -> &CancellationToken;
}

/// A call of a tool, on whose behalf it is made, and how to abort it.
///
/// ```
/// use steadfast_chat::{ToolCall, ToolRequest};
/// use steadfast_core::CallContext;
///
/// let call = ToolCall { id: "1".into(), name: "ls".into(), ..ToolCall::default() };
/// let request = ToolRequest::new(CallContext::new().with_task("fix the bug"), call);
/// // Kept by whoever may abort the run.
/// let abort = request.abort.clone();
/// abort.cancel();
/// assert!(request.abort.is_cancelled());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ToolRequest {
    /// On whose behalf, and by when.
    pub context: CallContext,
    /// What the model called.
    pub call: ToolCall,
    /// Aborts the run.
    pub abort: CancellationToken,
}

impl ToolRequest {
    /// A call with this context.
    pub fn new(context: CallContext, call: ToolCall) -> Self {
        Self { context, call, abort: CancellationToken::new() }
    }

    /// Aborted by this token: that of a whole turn, for example.
    #[must_use]
    pub fn with_abort(mut self, abort: CancellationToken) -> Self {
        self.abort = abort;
        self
    }
}

impl Call for ToolRequest {
    fn context(&self) -> &CallContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.context
    }
}

impl ToolInvocation for ToolRequest {
    fn call(&self) -> &ToolCall {
        &self.call
    }

    fn abort(&self) -> &CancellationToken {
        &self.abort
    }
}
