//! What a request calls for, and how far: measured against the window of its target, it goes as it is,
//! is compacted, or waits for another request of its conversation that is being compacted.

mod compactor;
mod job;
mod leave_out;
mod plan;
mod policy;
mod refusal;
mod remedy;

use std::sync::Arc;

use steadfast_chat::{
    ChatRequest, Message, SharedVec,
    transcript::{repair, validate},
};
use steadfast_core::Failure;

pub use self::{
    compactor::{CompactionResult, CompactionTask, Compactor, SummaryInput},
    policy::{CompactionPolicy, Goal, Level, Room},
};
pub(crate) use self::{
    job::CompactionJob,
    leave_out::Refused,
    refusal::{Refusals, Remedy},
    remedy::{refused_compacted, remedied},
};
use crate::{
    Applied, Compacted, Count, Notice,
    event::{self, About},
    fleet::SentCompaction,
    measure::{TargetInfo, upper_bound},
    state::{CompactionPermit, Conversation, ConversationState, LayerState},
};

/// What is done with a request.
pub(crate) enum NextAction {
    /// It is sent as it is now.
    Send(CallState),
    /// It is compacted first.
    Compact(Box<CompactionJob>),
    /// Another request of its conversation is being compacted.
    Wait(Arc<Conversation>),
}

/// What is remembered of a request that was sent.
#[derive(Default)]
pub(crate) struct CallState {
    /// Learns from the usage that the provider reports.
    pub(crate) observer: Option<UsageObserver>,
    pub(crate) notice: Option<Box<Notice>>,
    /// The caller's own messages, when others are sent.
    pub(crate) caller: Option<SharedVec<Message>>,
    /// An answer shows that a compaction works: it was made without an internal error, and is sent.
    pub(crate) shows_success: bool,
    /// The window that the compaction was made for.
    pub(crate) window: u64,
}

impl CallState {
    /// For a request that is sent with `notice`; where `applied` replaced the beginning of the
    /// caller's messages, with that.
    fn new(
        conversation: &Arc<Conversation>,
        state: &ConversationState,
        request: &ChatRequest,
        mut notice: Notice,
        applied: Option<Arc<Applied>>,
        caller: SharedVec<Message>,
        saved: u64,
    ) -> Self {
        let messages = || request.messages.clone();
        notice.compacted =
            applied.map(|applied| Compacted { messages: messages(), saved, applied });
        Self {
            observer: UsageObserver::new(conversation, state),
            shows_success: notice.compacted.is_some(),
            caller: notice.compacted.is_some().then_some(caller),
            notice: Some(Box::new(notice)),
            window: 0,
        }
    }

    /// Lets other processes know what has replaced the beginning of the caller's messages in `request`, where they do not yet.
    pub(crate) fn publish(&self, layer: &LayerState, request: &ChatRequest) {
        let compacted = self.notice.as_ref().and_then(|notice| notice.compacted.as_ref());
        if let (Some(fleet), Some(caller), Some(compacted)) =
            (layer.memory.fleet.get(), &self.caller, compacted)
            && self.window > 0
            && compacted.applied.is_news()
        {
            let sent = SentCompaction {
                applied: &compacted.applied,
                caller,
                window: self.window,
                saved: compacted.saved,
            };
            fleet.put(&request.context, &sent);
        }
    }

    /// The request is sent now, in which its compaction is used for the first time.
    pub(crate) fn is_sent(&self) {
        let compacted = self.notice.as_ref().and_then(|notice| notice.compacted.as_ref());
        if let (Some(caller), Some(compacted)) = (&self.caller, compacted) {
            compacted.applied.is_sent(caller.len());
        }
    }

    /// For the same request when it is sent again with `messages`, of which nothing is counted.
    fn resent(&self, messages: &SharedVec<Message>) -> Self {
        let mut notice = self.notice.clone();
        let compacted = notice.as_mut().and_then(|notice| notice.compacted.as_mut());
        if let (Some(caller), Some(compacted)) = (&self.caller, compacted) {
            let applied = Applied::new(caller.to_vec(), messages.to_vec(), None);
            applied.is_sent(caller.len());
            compacted.applied = Arc::new(applied);
            compacted.messages = messages.clone();
        }
        Self { notice, caller: self.caller.clone(), ..Self::default() }
    }
}

/// Learns from the usage that the provider reports of a request.
#[derive(Debug)]
pub(crate) struct UsageObserver {
    pub(crate) conversation: Arc<Conversation>,
    /// The number of its count.
    counted: u64,
}

impl UsageObserver {
    fn new(conversation: &Arc<Conversation>, state: &ConversationState) -> Option<Self> {
        let this = || Self { conversation: conversation.clone(), counted: state.counted };
        conversation.is_kept.then(this)
    }

    /// The provider answered: errors before this are no row any more.
    pub(crate) fn answered(&self) {
        self.conversation.state.lock().snapshot.throws = 0;
    }

    /// The provider reported that the request was `input` tokens.
    pub(crate) fn reported(&self, layer: &LayerState, input: u64) {
        let mut state = self.conversation.state.lock();
        if state.counted == self.counted {
            layer.counter.reported(&mut state.history, input);
        }
    }
}

/// A request as it is after what was compacted before replaced its beginning.
#[derive(Clone)]
pub(crate) struct Measurement {
    pub(crate) count: Count,
    pub(crate) level: Level,
    pub(crate) room: Room,
    pub(crate) applied: Option<Arc<Applied>>,
    pub(crate) caller: SharedVec<Message>,
}

impl Measurement {
    pub(crate) fn notice(&self) -> Notice {
        Notice {
            window: self.room.window,
            reserve: self.room.reserve,
            tokens: self.count.upper,
            warning: self.level != Level::Fine,
            ..Notice::default()
        }
    }
}

impl LayerState {
    /// What `request` calls for; with permission to compact it, when it has waited for that.
    pub(crate) fn next_action(
        self: &Arc<Self>,
        request: &mut ChatRequest,
        waited: Option<CompactionPermit>,
    ) -> NextAction {
        if self.config.off {
            return NextAction::Send(CallState::default());
        }
        let target = self.target(request);
        target.leave_out(request);
        let (policy, room) = (self.policy(), self.room(&target, request));
        if let Some(tokens) = upper_bound(request)
            && policy.level(room, tokens) == Level::Fine
        {
            target.leave_room(request, tokens);
            return NextAction::Send(CallState::default());
        }
        let of_permit = waited.as_ref().map(|permit| permit.conversation.clone());
        let conversation = of_permit.unwrap_or_else(|| self.conversation(request));
        let mut state = conversation.state.lock();
        if state.snapshot.is_off {
            drop(state);
            event::switched_off(About::of(request), false);
            let notice = Some(Box::new(Notice { switched_off: true, ..Notice::default() }));
            return NextAction::Send(CallState { notice, ..CallState::default() });
        }
        let mut measured = self.measure(&mut state, request, &target, room);
        if measured.level == Level::Compact && state.use_prepared(&measured.caller) {
            request.messages = measured.caller;
            measured = self.measure(&mut state, request, &target, room);
        }
        if waited.is_none() && measured.applied.is_none() {
            state.missed(&measured.caller);
        }
        let prepares = policy.prepare_at_warning
            && measured.level == Level::Warn
            && self.config.summariser.is_some()
            && !self.is_summariser_degraded(&request.context)
            && conversation.is_kept
            && !state.is_prepared(&measured.caller);
        if measured.level != Level::Compact && !prepares {
            drop(state);
            return NextAction::Send(self.send(&conversation, request, measured, false));
        }
        let permit = waited.or_else(|| conversation.try_permit(&state));
        let job = |permit| CompactionJob::new(self, permit, &state, request, target, &measured);
        let job = permit.map(job).map(Box::new);
        drop(state);
        if prepares {
            let job = job.map(|job| Box::new(job.ahead()));
            let is_deferred = job.is_some_and(|job| job.begin_in_background(request).is_ok());
            return NextAction::Send(self.send(&conversation, request, measured, is_deferred));
        }
        let has_room = measured.count.upper <= room.limit();
        if self.config.deferred && has_room && conversation.is_kept {
            if self.is_summariser_degraded(&request.context) {
                // A summary can wait until it is needed, or its provider is well again.
                return NextAction::Send(self.send(&conversation, request, measured, false));
            }
            // It can be sent, whatever becomes of the compaction.
            let is_deferred = match job.map(|job| job.begin_in_background(request)) {
                Some(Err(job)) => return NextAction::Compact(job),
                started => started.is_some(),
            };
            return NextAction::Send(self.send(&conversation, request, measured, is_deferred));
        }
        job.map_or_else(
            || {
                request.messages = measured.caller;
                NextAction::Wait(conversation)
            },
            NextAction::Compact,
        )
    }

    /// Replaces the beginning of `request` by what was compacted before, and counts.
    pub(crate) fn measure(
        &self,
        state: &mut ConversationState,
        request: &mut ChatRequest,
        target: &TargetInfo,
        room: Room,
    ) -> Measurement {
        let caller = request.messages.clone();
        let applied = state.applied(&caller, room.window);
        if let Some(applied) = &applied {
            let rules = target.rules(request);
            applied.replace(request, &rules);
            // What was repaired when it was compacted, and what the caller broke since.
            if validate(request, &rules).is_err() {
                let _ = repair(request, &rules);
            }
        }
        let count = self.count(state, request, target);
        let level = self.policy().level(room, count.upper);
        target.leave_room(request, count.upper);
        Measurement { count, level, room, applied, caller }
    }

    fn count(
        &self,
        state: &mut ConversationState,
        request: &ChatRequest,
        target: &TargetInfo,
    ) -> Count {
        let count = self.counter.count(&mut state.history, request, &target.model);
        state.counted += 1;
        state.snapshot.tokens = count.tokens;
        count
    }

    /// Sends a request as it is now.
    fn send(
        &self,
        conversation: &Arc<Conversation>,
        request: &ChatRequest,
        measured: Measurement,
        deferred: bool,
    ) -> CallState {
        let is_warning = measured.level != Level::Fine;
        let mut state = conversation.state.lock();
        let is_new = is_warning && !std::mem::replace(&mut state.warned, is_warning);
        if !is_warning && measured.applied.is_none() {
            let observer = UsageObserver::new(conversation, &state);
            return CallState { observer, ..CallState::default() };
        }
        let mut notice = measured.notice();
        notice.deferred = deferred;
        let saved = state.snapshot.saved;
        let (used, window) = (notice.tokens.saturating_add(notice.reserve), notice.window);
        let (applied, caller) = (measured.applied, measured.caller);
        let mut sent =
            CallState::new(conversation, &state, request, notice, applied, caller, saved);
        sent.window = state.window();
        // Another compaction is due, and nothing is known of that one yet.
        sent.shows_success &= measured.level != Level::Compact;
        drop(state);
        sent.publish(self, request);
        if is_warning {
            self.memory.counts.lock().warned += u64::from(is_new);
            event::warned(About::of(request), used, window, is_new);
        }
        sent
    }

    /// Decides, waits and compacts until `request` can be sent.
    pub(crate) async fn prepare(
        self: &Arc<Self>,
        mut request: ChatRequest,
        mut action: NextAction,
    ) -> Result<(ChatRequest, CallState), Failure> {
        loop {
            action = match action {
                NextAction::Send(state) => return Ok((request, state)),
                NextAction::Compact(mut job) => {
                    if job.adopt().await {
                        let (own, permit) = job.again();
                        request = own;
                        self.next_action(&mut request, Some(permit))
                    } else {
                        let (request, sent) = job.run().await?;
                        sent.is_sent();
                        sent.publish(self, &request);
                        return Ok((request, sent));
                    }
                }
                NextAction::Wait(conversation) => {
                    let permit = conversation.permit().await;
                    self.next_action(&mut request, Some(permit))
                }
            };
        }
    }
}
