//! The layer.

use tower_layer::Layer;

use super::{DeadLetterPolicy, DeadLetters, KeptDelivery};

/// Makes a dead letter of what could not be delivered: outermost, around the route and the retries.
///
/// A message is accepted when it is [called](tower_service::Service::call) with. From then on it is delivered, or kept, or ends
/// in an event and, unless it is a reply, a record; also when the future is dropped.
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
