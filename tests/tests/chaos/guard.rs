//! A stand-in for a safety guard: it refuses some callers permanently. It is the innermost layer, so
//! that every layer above must handle the refusal.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use fastrand::Rng;
use parking_lot::Mutex;
use steadfast::{ChatRequest, ChatResponse, ChatService, Failure, Reason};
use steadfast_tests::seeds::chance;
use tower_service::Service;

use crate::timeline::{Timeline, TraceEvent, caller_of};

/// Refuses some callers at their first attempt, some at a later one.
#[derive(Clone)]
pub(crate) struct Guard {
    inner: ChatService,
    timeline: Timeline,
    state: Arc<Mutex<State>>,
}

struct State {
    rng: Rng,
    /// The attempt at which a caller is refused, and how many it has made.
    callers: BTreeMap<usize, (u32, u32)>,
}

impl Guard {
    pub(crate) fn around(inner: ChatService, timeline: &Timeline, rng: Rng) -> ChatService {
        let state = Arc::new(Mutex::new(State { rng, callers: BTreeMap::new() }));
        ChatService::new(Self { inner, timeline: timeline.clone(), state })
    }

    fn refuses(&self, caller: usize) -> bool {
        let mut state = self.state.lock();
        let State { rng, callers } = &mut *state;
        let (at, made) = callers.entry(caller).or_insert_with(|| {
            let at = if chance(rng, 0.06) { rng.u32(1..4) } else { u32::MAX };
            (at, 0)
        });
        *made += 1;
        made >= at
    }
}

impl Service<ChatRequest> for Guard {
    type Response = ChatResponse;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<ChatResponse, Failure>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let caller = caller_of(&request);
        if caller.is_some_and(|caller| self.refuses(caller)) {
            self.timeline.note(TraceEvent::GuardRefused { caller });
            let refusal = Failure::refused(Reason::Safety, "the guard stopped this task");
            return Box::pin(async move { Err(refusal) });
        }
        self.inner.call(request)
    }
}
