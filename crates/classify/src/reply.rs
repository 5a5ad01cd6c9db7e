//! Replies that can be judged.

use steadfast_chat::{ChatResponse, EmbedResponse};

use crate::stream::{ClassifiedEvents, Judge};

/// A reply that [`Classify`](crate::service::Classify) can judge beyond the error that came in its place.
pub trait ClassifyReply {
    /// The judged reply.
    type Classified;

    /// The reply, judged by `judge` as it comes; with `retry_empty`, one that has nothing in it is a failure.
    fn classified(self, judge: Judge, retry_empty: bool) -> Self::Classified;
}

impl<E> ClassifyReply for ChatResponse<E> {
    type Classified = ChatResponse<ClassifiedEvents<E>>;

    fn classified(self, judge: Judge, retry_empty: bool) -> Self::Classified {
        self.map(|events| ClassifiedEvents::new(events, judge, retry_empty))
    }
}

/// Its reader has found what is wrong with it.
impl ClassifyReply for EmbedResponse {
    type Classified = Self;

    fn classified(self, _: Judge, _: bool) -> Self {
        self
    }
}
