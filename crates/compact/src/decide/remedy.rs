//! A request that the provider refused, made one that it may accept.

use std::sync::Arc;

use steadfast_chat::{
    ChatRequest,
    transcript::{TranscriptRule, TranscriptRules, keep_thinking, repair, unbind_edited, validate},
};
use steadfast_core::{Failure, Reason, Window};

use super::{CallState, CompactionJob, Refused, Remedy};
use crate::{
    apply::{lighten, omit_media},
    event::{self, About},
    measure::model,
    resend::KeptRequest,
    state::LayerState,
};

/// A request, and what is remembered of it.
type Resend = (ChatRequest, CallState);

/// Applies `remedy`, for the `times`th time in this call, to a request that was refused.
///
/// # Errors
///
/// The provider's refusal, when that does not help: its message is better than ours.
pub(crate) async fn remedied(
    layer: &Arc<LayerState>,
    kept: &KeptRequest,
    failure: Failure,
    remedy: Remedy,
    times: u32,
) -> Result<Resend, Failure> {
    let resend = match remedy {
        Remedy::Compact => {
            let window = failure.window().unwrap_or_default();
            layer.memory.counts.lock().overflows += 1;
            event::overflow(About::of(&kept.request), window, times);
            if let Some(limit) = window.limit {
                layer.models.learn(&layer.target(&kept.request).model, limit);
            }
            compacted(layer, kept, window).await
        }
        Remedy::LeaveOut => without_parameter(layer, kept, &failure),
        Remedy::Lighten => lightened(layer, kept).await,
        Remedy::OmitMedia => changed(layer, kept, without_media),
        // Which block is meant is known by its place in the provider's own list, and where one is refused,
        // those behind it are too.
        Remedy::DropThinking => {
            changed(layer, kept, |request, rules| keep_thinking(request, rules, |_, _| false) > 0)
        }
        Remedy::Repair => {
            changed(layer, kept, |request, rules| !repair(request, rules).done.is_empty())
        }
    };
    let Some(resend) = resend else {
        refused_compacted(layer, kept, &failure);
        return Err(failure);
    };
    if remedy != Remedy::Compact {
        layer.memory.counts.lock().repaired += 1;
        event::repaired(About::of(&kept.request), remedy, failure.reason());
    }
    Ok(resend)
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

/// The request without the parameter that was refused, which is remembered of the target.
fn without_parameter(layer: &LayerState, kept: &KeptRequest, failure: &Failure) -> Option<Resend> {
    let mut request = kept.request.clone();
    let refused = Refused::of(failure, &request)?;
    refused.leave_out_of(&mut request.params).then(|| {
        layer.models.learn_refused(request.context.target.as_ref(), model(&request), refused);
        let state = kept.state.resent(&request.messages);
        (request, state)
    })
}

/// The request compacted harder than the numbers say; `None` when it did not become smaller.
async fn compacted(layer: &Arc<LayerState>, kept: &KeptRequest, window: Window) -> Option<Resend> {
    let (mut request, state) = (kept.request.clone(), &kept.state);
    if let Some(caller) = &state.caller {
        request.messages = caller.clone();
    }
    // A summariser that failed in this call has had its time.
    let degraded = state.notice.as_ref().and_then(|notice| notice.degraded);
    let target = layer.target(&request);
    // Where the output counts, the number may be of both.
    let is_input = request.params.max_output.is_none() || !target.output_counts(&request);
    let requested = window.requested.filter(|_| is_input);
    let conversation = match &state.observer {
        Some(observer) => observer.conversation.clone(),
        None => layer.conversation(&request),
    };
    let permit = conversation.permit().await;
    let room = layer.room(&target, &request);
    let job = {
        let mut state = conversation.state.lock();
        let measured = layer.measure(&mut state, &mut request, &target, room);
        if let Some(requested) = requested {
            layer.counter.overflowed(&state.history, requested);
        }
        CompactionJob::new(layer, permit, &state, &request, target, &measured)
    };
    let resend = job.refused(requested).without_summary(degraded).run_if_helpful().await;
    resend.inspect(|(_, state)| state.is_sent())
}

/// The request with its largest results and media as markers; where that is not half of its bytes, it
/// is compacted as well.
async fn lightened(layer: &Arc<LayerState>, kept: &KeptRequest) -> Option<Resend> {
    let mut is_halved = false;
    let lighter = changed(layer, kept, |request, _| {
        let (markers, halved) = fewer_bytes(layer, request);
        is_halved = halved;
        markers > 0
    });
    if is_halved {
        return lighter;
    }
    let Some((mut request, state)) = compacted(layer, kept, Window::default()).await else {
        return lighter;
    };
    let (markers, _) = fewer_bytes(layer, &mut request);
    let state = if markers > 0 { state.resent(&request.messages) } else { state };
    Some((request, state))
}

/// Makes markers of what is large; how many, and whether half of the bytes are gone.
fn fewer_bytes(layer: &LayerState, request: &mut ChatRequest) -> (usize, bool) {
    let policy = layer.policy();
    let Some(pinned) = layer.config.compactor.pinned(&request.messages) else { return (0, false) };
    let border = request.messages.len().saturating_sub(policy.keep_recent);
    lighten(request.messages.make_mut(), &pinned, border, policy.strip_over)
}

/// Replaces the images that the rules find fault with; all media where they find none.
fn without_media(request: &mut ChatRequest, rules: &TranscriptRules) -> bool {
    let is_known = validate(request, rules)
        .is_err_and(|found| found.iter().any(|one| one.rule == TranscriptRule::Images));
    if is_known {
        !repair(request, rules).done.is_empty()
    } else {
        omit_media(request.messages.make_mut()) > 0
    }
}

/// The request as it was sent, changed; `None` when nothing was.
fn changed(
    layer: &LayerState,
    kept: &KeptRequest,
    change: impl FnOnce(&mut ChatRequest, &TranscriptRules) -> bool,
) -> Option<Resend> {
    let mut request = kept.request.clone();
    let rules = layer.target(&request).rules(&request);
    change(&mut request, &rules).then(|| {
        unbind_edited(&mut request, &rules, &kept.request.messages);
        let state = kept.state.resent(&request.messages);
        (request, state)
    })
}
