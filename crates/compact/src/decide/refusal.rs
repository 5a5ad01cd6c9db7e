//! A request that the provider refused: as too large, or for what a compaction made of it.

use std::sync::Arc;

use steadfast_chat::{ChatRequest, transcript::validate};
use steadfast_core::{Deadline, Failure, Reason, Retry};

use super::{CallState, CompactionJob};
use crate::{
    event::{self, About},
    resend::KeptRequest,
    state::LayerState,
};

/// Compactions of a request that the provider refused as too large; the second only after progress.
const REFUSALS: u32 = 2;

/// What one call remembers over its refusals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusals {
    times: u32,
    /// How often a provider was asked.
    asked: u32,
    /// What the provider counted last.
    requested: Option<u64>,
}

impl Refusals {
    /// The attempts of an answer or failure that had `attempts` itself.
    pub(crate) fn attempts(&self, attempts: u32) -> u32 {
        attempts.saturating_add(self.asked)
    }

    /// Whether `request`, which was refused, may be compacted and sent again.
    pub(crate) fn may_resend(&mut self, request: &mut ChatRequest, failure: &Failure) -> bool {
        self.asked = self.attempts(failure.attempts());
        let requested = failure.window().unwrap_or_default().requested;
        let context = &mut request.context;
        context.attempts = context.attempts.saturating_add(failure.attempts());
        let is_less = match (self.requested, requested) {
            (Some(before), Some(now)) => now < before,
            _ => true,
        };
        let is_over =
            context.deadline.is_some_and(Deadline::is_past) || context.attempts_left() == 0;
        let may_resend = self.times < REFUSALS && is_less && !is_over;
        if may_resend {
            self.times += 1;
            self.requested = requested;
        }
        may_resend
    }
}

/// Whether a failure is worth compacting for.
pub(crate) fn is_overflow(failure: &Failure) -> bool {
    failure.reason() == Reason::ContextOverflow
        && failure.retry() != Retry::Forbidden
        && !failure.is_delivered()
        && failure.attempts() > 0
}

/// A provider may not accept what a compaction made of a conversation: that is forgotten then, so that
/// the next turn begins from the caller's own messages.
pub(crate) fn refused_compacted(layer: &LayerState, kept: &KeptRequest, failure: &Failure) {
    let is_malformed = failure.reason() == Reason::Format && failure.attempts() > 0;
    let Some(caller) = kept.state.caller.as_ref().filter(|_| is_malformed) else { return };
    let mut original = kept.request.clone();
    original.messages = caller.clone();
    let conversation = layer.conversation(&original);
    conversation.state.lock().forget();
    // Otherwise the caller's own messages may be malformed.
    if validate(&original, &layer.target(&original).rules(&original)).is_ok() {
        let what = "the provider refused the result";
        layer.failed_internally(&conversation, &kept.request, what);
    }
}

/// Compacts a request that was refused as too large, harder than the numbers say.
///
/// # Errors
///
/// The provider's refusal, when that does not help: its message is better than ours.
pub(crate) async fn compact_refused(
    layer: &Arc<LayerState>,
    kept: KeptRequest,
    failure: Failure,
    refusals: Refusals,
) -> Result<(ChatRequest, CallState), Failure> {
    let KeptRequest { mut request, state } = kept;
    let window = failure.window().unwrap_or_default();
    layer.counts.lock().overflows += 1;
    event::overflow(About::of(&request), window, refusals.times);
    if let Some(caller) = state.caller {
        request.messages = caller;
    }
    if let Some(limit) = window.limit {
        layer.config.models.learn(&layer.target(&request).model, limit);
    }
    let (target, observed) = (layer.target(&request), state.observer);
    // Where the output counts, the number may be of both.
    let is_input = request.params.max_output.is_none() || !target.output_counts(&request);
    let requested = window.requested.filter(|_| is_input);
    let conversation =
        observed.map_or_else(|| layer.conversation(&request), |observer| observer.conversation);
    let permit = conversation.permit().await;
    let room = layer.room(&target, &request);
    let job = {
        let mut state = conversation.state.lock();
        let measured = layer.measure(&mut state, &mut request, &target, room);
        if let Some(requested) = requested {
            layer.config.counter.overflowed(&state.history, requested);
        }
        CompactionJob::new(layer, permit, &state, &request, target, &measured).refused(requested)
    };
    job.run_if_helpful().await.ok_or_else(|| failure.with_attempts(refusals.asked))
}
