//! Who decides, inside the process.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use crate::{EscalationDecision, HeldRequest};

/// Who decides about held requests: a person, reached by a message, a form, a telephone.
///
/// Every async closure is one. `None` leaves the decision to others, who have the
/// [handle](crate::EscalationHandle). The future is polled by the task of the held call and dropped with it:
/// when somebody else has decided, when the time is up, and when the caller has gone away.
///
/// ```
/// use std::sync::Arc;
/// use steadfast_escalate::{EscalationDecision, EscalationLayer, EscalationPolicy, HeldRequest};
///
/// let layer = EscalationLayer::new(EscalationPolicy::default())?.with_operator(
///     async |held: Arc<HeldRequest>| {
///         // ... ask somebody
///         held.targets.last().map(|last| EscalationDecision::TryTarget(last.target.clone()))
///     },
/// );
/// # Ok::<(), steadfast_escalate::PolicyError>(())
/// ```
pub trait Operator: Send + Sync + 'static {
    /// Decides about one request. A decision that is not possible is reported, and leaves it held.
    fn consult(
        &self,
        held: Arc<HeldRequest>,
    ) -> impl Future<Output = Option<EscalationDecision>> + Send + 'static;
}

impl<F, Fut> Operator for F
where
    F: Fn(Arc<HeldRequest>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Option<EscalationDecision>> + Send + 'static,
{
    fn consult(
        &self,
        held: Arc<HeldRequest>,
    ) -> impl Future<Output = Option<EscalationDecision>> + Send + 'static {
        self(held)
    }
}

type Deciding = Pin<Box<dyn Future<Output = Option<EscalationDecision>> + Send>>;

/// An operator without its type.
#[derive(Clone)]
pub(crate) struct AnyOperator(Arc<dyn Fn(Arc<HeldRequest>) -> Deciding + Send + Sync>);

impl AnyOperator {
    pub(crate) fn new(operator: impl Operator) -> Self {
        Self(Arc::new(move |held| Box::pin(operator.consult(held))))
    }

    /// Asks about `held`. The operator is called by the first poll.
    pub(crate) fn consult(&self, held: Arc<HeldRequest>) -> Consultation {
        Consultation::Before(self.clone(), held)
    }
}

impl fmt::Debug for AnyOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Operator")
    }
}

/// A question to an operator.
pub(crate) enum Consultation {
    Before(AnyOperator, Arc<HeldRequest>),
    Asked(Deciding),
    Over,
}

impl Consultation {
    /// What the operator has decided; an error when it panicked, which is not the caller's loss. Pending once
    /// it has decided.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<EscalationDecision>, String>> {
        if let Self::Before(operator, held) = self {
            let (operator, held) = (operator.clone(), held.clone());
            match catch_unwind(AssertUnwindSafe(|| (operator.0)(held))) {
                Ok(deciding) => *self = Self::Asked(deciding),
                Err(panic) => return self.panicked(&*panic),
            }
        }
        let Self::Asked(deciding) = self else { return Poll::Pending };
        match catch_unwind(AssertUnwindSafe(|| deciding.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(decision)) => {
                *self = Self::Over;
                Poll::Ready(Ok(decision))
            }
            Err(panic) => self.panicked(&*panic),
        }
    }

    fn panicked<T>(&mut self, panic: &(dyn Any + Send)) -> Poll<Result<T, String>> {
        *self = Self::Over;
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Poll::Ready(Err(format!("it panicked: {}", text.unwrap_or("without a message"))))
    }
}

impl fmt::Debug for Consultation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before(..) => "before",
            Self::Asked(_) => "asked",
            Self::Over => "over",
        })
    }
}
