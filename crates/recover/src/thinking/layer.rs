//! The layer, the service and the future of a call.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_chat::{
    ChatRequest, ChatResponse, Events, Message, Part, transcript::is_thinking_refused,
};
use steadfast_core::{Dialect, Failure, IntoFailure, Reason, inner_service};
#[cfg(feature = "shared")]
use steadfast_core::{Target, shared::SharedState};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    ThinkingEvents, ThinkingPolicy,
    answer::{Sent, SharedSent},
    fleet::{self, ThinkingRead, ThinkingRow},
    memory::{Issuer, Memory},
    select::select,
};
use crate::event;

/// Remembers who issued which thinking behind what, so that a provider is sent what it accepts and gets back
/// what it wrote. Put it around the client and its classifier, inside of all that edits requests.
///
/// * What a provider would refuse, because a layer has edited the history before it, or because another
///   model wrote it, is left out.
/// * What it wrote itself and the history has lost on the way, at another target or in another dialect, is put
///   back where it was, if all that was before it is as it was.
/// * What a provider has refused is not sent again.
///
/// A request that is sent as its caller wrote it, with thinking from such requests only, is not changed. What
/// is remembered is bounded, belongs to one tenant, is sent to nobody but the model that wrote it, and is
/// forgotten when it is not [used](ThinkingPolicy::keep).
///
/// ```
/// use steadfast_recover::ThinkingMemoryLayer;
///
/// let layer = ThinkingMemoryLayer::default();
/// assert_eq!(layer.handle().snapshot().blocks, 0);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct ThinkingMemoryLayer(Arc<Memory>);

impl ThinkingMemoryLayer {
    /// Remembers as much as `policy` says.
    pub fn new(policy: ThinkingPolicy) -> Self {
        Self(Arc::new(Memory::new(policy)))
    }

    /// Remembers nothing, and passes every request and answer unchanged.
    pub fn off() -> Self {
        Self::new(ThinkingPolicy { blocks: 0, answers: 0, ..ThinkingPolicy::default() })
    }

    /// With what the layer of this handle remembers.
    pub fn sharing(self, handle: &ThinkingMemoryHandle) -> Self {
        match self.0.is_off() || handle.0.is_off() {
            true => self,
            false => Self(handle.0.clone()),
        }
    }

    /// Shows what is remembered.
    pub fn handle(&self) -> ThinkingMemoryHandle {
        ThinkingMemoryHandle(self.0.clone())
    }
}

impl Default for ThinkingMemoryLayer {
    fn default() -> Self {
        Self::new(ThinkingPolicy::default())
    }
}

/// Shows what a [`ThinkingMemoryLayer`] remembers.
#[derive(Clone, Debug)]
pub struct ThinkingMemoryHandle(Arc<Memory>);

/// What a [`ThinkingMemoryLayer`] remembers and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThinkingMemorySnapshot {
    /// Blocks that are known by their signature.
    pub blocks: usize,
    /// Answers whose thinking is kept.
    pub answers: usize,
    /// Blocks that were left out, since its provider would have refused them.
    pub dropped: u64,
    /// Blocks that were put back.
    pub returned: u64,
}

impl ThinkingMemoryHandle {
    /// What is remembered now, and was done so far.
    pub fn snapshot(&self) -> ThinkingMemorySnapshot {
        ThinkingMemorySnapshot {
            blocks: self.0.blocks(),
            answers: self.0.answers(),
            dropped: self.0.dropped.load(Ordering::Relaxed),
            returned: self.0.returned.load(Ordering::Relaxed),
        }
    }

    /// Shares the thinking of conversations with other processes, where their callers do not have it: one whose next turn is
    /// another node's has its thinking back there. Once for a layer, from inside a tokio runtime; whether this was the
    /// first time. A layer that is [off](ThinkingMemoryLayer::off) shares nothing. See [`shared`](steadfast_core::shared).
    ///
    /// A call waits for the store where its last answer has no thinking and other nodes have put some of its target: for 20 ms at
    /// most, then it is sent without. Dropping it meanwhile sends nothing. What is put is the thinking itself, for as
    /// long as it is [kept](ThinkingPolicy::keep), under a digest of tenant, target and conversation.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use steadfast_core::shared::EmbeddedStore;
    /// use steadfast_recover::ThinkingMemoryLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let store = EmbeddedStore::new();
    /// let handle = ThinkingMemoryLayer::default().handle();
    /// assert!(handle.share(Arc::new(store.join("one"))));
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[cfg(feature = "shared")]
    pub fn share(&self, state: Arc<dyn SharedState>) -> bool {
        self.share_named(state, |target| Some(target.to_string()))
    }

    /// The same, where each target has the `name` there that it has in all processes in which it is the same: with a
    /// mark of its address, for example. The targets have no credential. The thinking of one without a name is not shared.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[cfg(feature = "shared")]
    pub fn share_named(
        &self,
        state: Arc<dyn SharedState>,
        name: impl Fn(&Target) -> Option<String> + Send + Sync + 'static,
    ) -> bool {
        super::shared::share(&self.0, state, name)
    }
}

impl<S> Layer<S> for ThinkingMemoryLayer {
    type Service = ThinkingMemory<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ThinkingMemory { inner, memory: self.0.clone() }
    }
}

/// A model whose thinking is remembered; made by [`ThinkingMemoryLayer`].
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct ThinkingMemory<S> {
    inner: S,
    memory: Arc<Memory>,
}

inner_service!(ThinkingMemory<S>);

impl<S, T> Service<ChatRequest> for ThinkingMemory<S>
where
    S: Service<ChatRequest, Response = ChatResponse<T>> + Clone,
    S::Error: IntoFailure,
    T: Events + Unpin,
{
    type Response = ChatResponse<ThinkingEvents<T>>;
    type Error = Failure;
    type Future = ThinkingFuture<S>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        if let Some((issuer, read)) = fleet::read(&self.memory, &request) {
            let clone = self.inner.clone();
            let (inner, memory) = (mem::replace(&mut self.inner, clone), self.memory.clone());
            let waiting = Waiting { read, inner, memory, issuer, request };
            return ThinkingFuture { call: None, waiting: Some(Box::new(waiting)), sent: None };
        }
        let sent = (!self.memory.is_off()).then(|| prepare(&self.memory, &mut request));
        ThinkingFuture { call: Some(self.inner.call(request)), waiting: None, sent }
    }
}

/// Makes of `request` what its provider accepts, and keeps what its answer is bound to.
fn prepare(memory: &Arc<Memory>, request: &mut ChatRequest) -> Sent {
    let issuer = memory.issuer(request);
    let changed = select(memory, issuer, request);
    if changed.dropped + changed.returned > 0 {
        memory.dropped.fetch_add(changed.dropped as u64, Ordering::Relaxed);
        memory.returned.fetch_add(changed.returned as u64, Ordering::Relaxed);
        event::thinking(&request.context, changed.dropped, changed.returned);
    }
    let untouched = request.unchanged_body().is_some();
    Sent {
        memory: memory.clone(),
        issuer,
        messages: request.messages.clone(),
        untouched,
        shared: shared(memory, request, untouched),
    }
}

/// By what other processes know of `request`, where its caller will not have the thinking of its answer.
fn shared(memory: &Memory, request: &ChatRequest, untouched: bool) -> Option<Box<SharedSent>> {
    memory.fleet.get().filter(|_| !untouched)?;
    let (target, tenant) = (fleet::target(request)?, request.context.tenant().map(Into::into));
    Some(Box::new(SharedSent { target, tenant, digest: Default::default() }))
}

/// A call that waits for what other processes know.
struct Waiting<S> {
    read: ThinkingRead,
    /// Which is ready.
    inner: S,
    memory: Arc<Memory>,
    issuer: Issuer,
    request: ChatRequest,
}

impl<S: Service<ChatRequest>> Waiting<S> {
    /// The call, and what its answer is bound to, with what others know of it.
    fn call(self, row: Option<ThinkingRow>) -> (S::Future, Sent) {
        let Self { mut inner, memory, issuer, mut request, .. } = self;
        if let Some(row) = row {
            row.restore(&memory, issuer, &request.messages);
        }
        let sent = prepare(&memory, &mut request);
        (inner.call(request), sent)
    }
}

pin_project! {
    /// The future of a call through a [`ThinkingMemory`]. Dropping it drops the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct ThinkingFuture<S>
    where
        S: Service<ChatRequest>,
    {
        // Once it is made.
        #[pin]
        call: Option<S::Future>,
        // Before. Boxed, as few calls wait.
        waiting: Option<Box<Waiting<S>>>,
        // `None` where nothing is remembered, and once ready.
        sent: Option<Sent>,
    }
}

impl<S, T> Future for ThinkingFuture<S>
where
    S: Service<ChatRequest, Response = ChatResponse<T>>,
    S::Error: Into<Failure>,
{
    type Output = Result<ChatResponse<ThinkingEvents<T>>, Failure>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(waiting) = this.waiting {
            let row = ready!(waiting.read.as_mut().poll(cx));
            if let Some(waiting) = this.waiting.take() {
                let (call, sent) = waiting.call(row);
                this.call.set(Some(call));
                *this.sent = Some(sent);
            }
        }
        let Some(call) = this.call.as_pin_mut() else {
            let text = "the call was polled without having been made";
            return Poll::Ready(Err(Failure::refused(Reason::Unknown, text)));
        };
        let reply = ready!(call.poll(cx));
        let sent = this.sent.take();
        Poll::Ready(match reply {
            Ok(reply) => {
                let signs = reply.head.dialect == Dialect::Anthropic;
                Ok(reply.map(|events| ThinkingEvents::new(events, sent.filter(|_| signs))))
            }
            Err(error) => {
                let failure = error.into();
                if let Some(sent) = sent.filter(|_| is_thinking_refused(&failure)) {
                    refused(&sent);
                }
                Err(failure)
            }
        })
    }
}

/// The provider has refused thinking: which block is known by its position in the provider's own list alone, and
/// where one is refused, those behind it are, too. So all of it is left out from now on; what the model writes
/// meanwhile is bound to a history without it.
fn refused(sent: &Sent) {
    let Sent { memory, issuer, messages, .. } = sent;
    let issuer: Issuer = *issuer;
    for part in messages.iter().flat_map(Message::parts).filter(|part: &&Part| part.is_thinking()) {
        if let Some(id) = memory.id(part) {
            memory.refused(issuer, id);
        }
    }
}

impl<S: Service<ChatRequest>> fmt::Debug for ThinkingFuture<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThinkingFuture").finish_non_exhaustive()
    }
}

impl<S: fmt::Debug> fmt::Debug for ThinkingMemory<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThinkingMemory").field("inner", &self.inner).finish_non_exhaustive()
    }
}
