//! Any request, with a context.

use std::ops::{Deref, DerefMut};

use crate::{Call, CallContext};

/// Any request, with the context that the layers need: for a request type that is not a [`Call`], and that
/// need not become one.
///
/// It is read as the request inside it. At the bottom of the stack [`into_inner`](Self::into_inner) leaves
/// that:
///
/// ```
/// use steadfast_core::{Call, CallContext, Failure, WithContext};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// /// Somebody else's.
/// #[derive(Clone)]
/// struct Translate { text: String }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Failure> {
/// let translator = service_fn(async |request: Translate| Ok::<_, Failure>(request.text.len()));
/// let service = ServiceBuilder::new()
///     // Here go the layers, such as retry and breaker.
///     .map_request(WithContext::into_inner)
///     .service(translator);
///
/// let context = CallContext::recording().with_tenant("acme");
/// let request = WithContext::new(Translate { text: "Grüezi".into() }).with_context(context);
/// assert_eq!((request.text.as_str(), request.context().tenant()), ("Grüezi", Some("acme")));
/// assert_eq!(service.oneshot(request).await?, 7);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct WithContext<R> {
    request: R,
    context: CallContext,
}

impl<R> WithContext<R> {
    /// `request` with an empty context.
    pub const fn new(request: R) -> Self {
        Self { request, context: CallContext::new() }
    }

    /// With this context.
    #[must_use]
    pub fn with_context(self, context: CallContext) -> Self {
        Self { context, ..self }
    }

    /// With its request changed by `map`.
    pub fn map<T>(self, map: impl FnOnce(R) -> T) -> WithContext<T> {
        WithContext { request: map(self.request), context: self.context }
    }

    /// The request, without its context.
    pub fn into_inner(self) -> R {
        self.request
    }

    /// The request and its context.
    pub fn into_parts(self) -> (R, CallContext) {
        (self.request, self.context)
    }
}

impl<R> Call for WithContext<R> {
    fn context(&self) -> &CallContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.context
    }
}

impl<R> Deref for WithContext<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.request
    }
}

impl<R> DerefMut for WithContext<R> {
    fn deref_mut(&mut self) -> &mut R {
        &mut self.request
    }
}

impl<R> From<R> for WithContext<R> {
    fn from(request: R) -> Self {
        Self::new(request)
    }
}
