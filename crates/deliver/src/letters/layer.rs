//! The layer.

use tower_layer::Layer;

use super::{DeadLetterPolicy, DeadLetters, KeptDelivery};

/// Makes a dead letter of what could not be delivered: outermost, around the route and the retries.
///
/// A message is accepted when it is [called](tower_service::Service::call) with. From then on it is delivered, or kept, or ends
/// in an event and, unless it is a reply, a record; also when the future is dropped.
///
/// Whatever is decided is a receipt: delivered, kept ([`DeliveryRoute::Letter`](crate::DeliveryRoute::Letter)), or ended in a record
/// ([`DeliveryRoute::Recorded`](crate::DeliveryRoute::Recorded)), such as a message that the platform refuses. A failure is returned
/// for what nobody has, so that it may be sent again: kinds of messages that the policy does not keep, and everything once
/// the queue is closed.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct DeadLetterLayer {
    letters: DeadLetters,
    policy: DeadLetterPolicy,
}

impl DeadLetterLayer {
    /// With these letters, and the default policy: announcements and notices are kept, replies are not.
    pub fn new(letters: DeadLetters) -> Self {
        Self { letters, policy: DeadLetterPolicy::default() }
    }

    /// Keeps what this policy says.
    pub fn with_policy(self, policy: DeadLetterPolicy) -> Self {
        Self { policy, ..self }
    }

    /// The policy in force.
    pub const fn policy(&self) -> &DeadLetterPolicy {
        &self.policy
    }

    /// The queue: it shows the letters and controls them.
    pub const fn handle(&self) -> &DeadLetters {
        &self.letters
    }
}

impl<S> Layer<S> for DeadLetterLayer {
    type Service = KeptDelivery<S>;

    fn layer(&self, inner: S) -> Self::Service {
        KeptDelivery::new(inner, self.letters.clone(), self.policy)
    }
}
