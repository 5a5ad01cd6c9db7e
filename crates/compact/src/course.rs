//! The slow way of a call: it is compacted first, or was refused as too large.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
};

use steadfast_chat::{ChatRequest, ChatResponse, Events, transcript::validate};
use steadfast_core::{Failure, Lease, Reason, Retry, Track};
use tower_service::Service;

use crate::{
    Compacted, Degraded, Level, event,
    events::CompactionEvents,
    job::{Failed, Job, Made},
    look::{Seen, Sight, Watch, about, notice, pass, switched_off},
    memory::{Book, Conversation, Flight},
    refusal::Refusals,
    state::{Facts, Own, Shared, add, model},
};

/// The slow way, its type forgotten.
pub(crate) type Working<E> =
    Pin<Box<dyn Future<Output = Result<ChatResponse<CompactionEvents<E>>, Failure>> + Send>>;

/// How far to look for the first content of an answer.
pub(crate) fn peek() -> steadfast_core::Peek {
    steadfast_core::Peek::default()
}

/// A call as it was made, in case it has to be made again.
pub(crate) struct Sent {
    pub(crate) request: ChatRequest,
    pub(crate) sight: Sight,
}

impl Sent {
    /// Keeps `request` to make it again.
    pub(crate) fn keep(request: &ChatRequest, sight: Sight) -> Self {
        Self { request: request.clone(), sight }
    }
}

/// Whether a failure is worth compacting for.
pub(crate) fn is_overflow(failure: &Failure) -> bool {
    failure.reason() == Reason::ContextOverflow
        && failure.retry() != Retry::Forbidden
        && !failure.is_delivered()
        && failure.attempts() > 0
}

/// Whether a failure says something of messages that are not the caller's own.
pub(crate) fn is_ours(failure: &Failure, sight: &Sight) -> bool {
    failure.reason() == Reason::Format && failure.attempts() > 0 && sight.caller.is_some()
}

/// A provider does not take what a compaction made of a conversation: it is forgotten, so that the
/// next turn begins from the caller's own messages.
pub(crate) fn refused_ours<S>(own: &Own<S>, sent: &Sent) {
    let Some(caller) = &sent.sight.caller else { return };
    let mut original = sent.request.clone();
    original.messages = caller.clone();
    let conversation = own.shared.conversation(&original);
    let facts = own.facts(&original);
    if let Some(conversation) = &conversation {
        conversation.book.lock().forget();
    }
    // Else what is wrong may be the caller's own.
    if validate(&original, &facts.rules(&original)).is_ok() {
        own.shared.threw(conversation.as_deref(), &sent.request, "the provider refused the result");
    }
}

/// Compacts `request` and sends it with `service`, which is ready.
pub(crate) async fn compact_and_send<S, E>(
    own: Arc<Own<S>>,
    service: S,
    mut request: ChatRequest,
) -> Result<ChatResponse<CompactionEvents<E>>, Failure>
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error: Into<Failure>>,
    E: Events + Unpin,
{
    let facts = own.facts(&request);
    let sight = prepare(&own.shared, &facts, &mut request).await?;
    send(&own, service, Some(request), sight, None).await
}

/// Compacts a request that the provider refused with `failure`, and sends it again.
pub(crate) async fn compact_again<S, E>(
    own: Arc<Own<S>>,
    sent: Sent,
    failure: Failure,
) -> Result<ChatResponse<CompactionEvents<E>>, Failure>
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error: Into<Failure>> + Clone,
    E: Events + Unpin,
{
    let service = own.spare();
    send(&own, service, None, Sight::default(), Some((sent, failure))).await
}

/// Sends `request`, and compacts it again as long as it is refused as too large.
async fn send<S, E>(
    own: &Arc<Own<S>>,
    mut service: S,
    mut ready: Option<ChatRequest>,
    mut sight: Sight,
    mut refused: Option<(Sent, Failure)>,
) -> Result<ChatResponse<CompactionEvents<E>>, Failure>
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error: Into<Failure>>,
    E: Events + Unpin,
{
    let mut course = Refusals::default();
    loop {
        if let Some((sent, failure)) = refused.take() {
            let (request, seen) = course.compact(own, sent, failure).await?;
            poll_fn(|cx| service.poll_ready(cx)).await.map_err(Into::into)?;
            (ready, sight) = (Some(request), seen);
        }
        let Some(request) = ready.take() else {
            return Err(Failure::refused_fixed(Reason::Unknown, "there was nothing left to send"));
        };
        let sent = Sent::keep(&request, std::mem::take(&mut sight));
        let failure = match ask(&mut service, request).await {
            Ok((reply, look)) => {
                let mut reply = reply.commit(look, Lease::idle());
                reply.head.attempts = reply.head.attempts.saturating_add(course.asked);
                return Ok(finish(own, reply, sent.sight));
            }
            Err(failure) => failure,
        };
        if is_ours(&failure, &sent.sight) {
            refused_ours(own, &sent);
        }
        if !is_overflow(&failure) {
            let attempts = failure.attempts().saturating_add(course.asked);
            return Err(failure.with_attempts(attempts));
        }
        refused = Some((sent, failure));
    }
}

/// Asks, and waits for the first content.
async fn ask<S, E>(
    service: &mut S,
    request: ChatRequest,
) -> Result<(ChatResponse<E>, <ChatResponse<E> as Track>::Look), Failure>
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error: Into<Failure>>,
    E: Events + Unpin,
{
    let mut reply = service.call(request).await.map_err(Into::into)?;
    let mut look = Default::default();
    poll_fn(|cx| reply.poll_content(&mut look, peek(), cx)).await?;
    Ok((reply, look))
}

/// Says what was done in the answer's head, and learns from what the answer reports.
pub(crate) fn finish<S, E>(
    own: &Arc<Own<S>>,
    mut reply: ChatResponse<steadfast_chat::CommittedEvents<E>>,
    sight: Sight,
) -> ChatResponse<CompactionEvents<E>> {
    if let Some(notice) = sight.notice {
        notice.put(&mut reply.head);
    }
    let learns = sight.watch.map(|watch| (own.shared.clone(), watch));
    reply.map_through(|events| CompactionEvents::new(events, learns))
}

/// Makes `request` fit before it is sent.
async fn prepare(
    shared: &Arc<Shared>,
    facts: &Facts,
    request: &mut ChatRequest,
) -> Result<Sight, Failure> {
    let caller = request.messages.clone();
    let Some(conversation) = shared.conversation(request) else {
        let seen = shared.see(&mut Book::default(), request, facts);
        let mut job = Job::new(request, facts, &seen);
        job.unasked = Some(Degraded::Unscoped);
        let made = job.compact(shared, request).await;
        return shared.conclude(None, request, facts, made, seen);
    };
    let (flight, seen) = loop {
        // Before the look: what ends in between is not missed.
        let waiting = conversation.waiting();
        match shared.turn(&conversation, request, facts) {
            Turn::Pass(sight) => return Ok(sight),
            Turn::Compact(flight, seen) => break (flight, seen),
            Turn::Wait => {
                request.messages = caller.clone();
                waiting.await;
            }
        }
    };
    let job = Job::of(shared, &conversation, request, facts, &seen);
    let made = job.compact(shared, request).await;
    shared.conclude(Some(&flight), request, facts, made, *seen)
}

/// What is to be done in a conversation's turn.
enum Turn {
    Pass(Sight),
    Compact(Flight, Box<Seen>),
    /// Another request of the conversation is being compacted.
    Wait,
}

impl Shared {
    /// Not `async`: the books are open.
    fn turn(
        self: &Arc<Self>,
        conversation: &Arc<Conversation>,
        request: &mut ChatRequest,
        facts: &Facts,
    ) -> Turn {
        let mut book = conversation.book.lock();
        if book.off {
            drop(book);
            return Turn::Pass(switched_off(request));
        }
        let seen = self.see(&mut book, request, facts);
        if seen.level != Level::Compact {
            let sight = pass(conversation.clone(), &mut book, request, facts, seen);
            drop(book);
            sight.tell(self, request);
            return Turn::Pass(sight);
        }
        let fits = seen.count.upper <= seen.room.window.saturating_sub(seen.room.reserve);
        drop(book);
        let flight = conversation.take();
        if self.config.deferred && fits {
            match (flight, tokio::runtime::Handle::try_current()) {
                (Some(flight), Ok(runtime)) => {
                    event::deferred(about(request));
                    self.defer(&runtime, flight, request, facts, &seen);
                    return Turn::Pass(self.as_it_is(conversation, request, facts, seen, true));
                }
                // There is room for this turn, whatever becomes of the compaction under way.
                (None, _) => {
                    let sight = self.as_it_is(conversation, request, facts, seen, false);
                    return Turn::Pass(sight);
                }
                (Some(flight), Err(_)) => return Turn::Compact(flight, Box::new(seen)),
            }
        }
        flight.map_or(Turn::Wait, |flight| Turn::Compact(flight, Box::new(seen)))
    }

    fn as_it_is(
        &self,
        conversation: &Arc<Conversation>,
        request: &ChatRequest,
        facts: &Facts,
        seen: Seen,
        deferred: bool,
    ) -> Sight {
        let mut book = conversation.book.lock();
        let mut sight = pass(conversation.clone(), &mut book, request, facts, seen);
        drop(book);
        if let Some(notice) = &mut sight.notice {
            notice.deferred = deferred;
        }
        sight.tell(self, request);
        sight
    }

    /// Compacts for the next turn, in the background.
    fn defer(
        self: &Arc<Self>,
        runtime: &tokio::runtime::Handle,
        flight: Flight,
        request: &ChatRequest,
        facts: &Facts,
        seen: &Seen,
    ) {
        let (shared, facts, seen) = (self.clone(), *facts, seen.clone());
        let mut request = request.clone();
        // Nobody waits for it, and the answer's head is written without it.
        request.context.deadline = None;
        request.context.log = steadfast_core::RecoveryLog::disabled();
        let job = Job::of(self, &flight.conversation, &request, &facts, &seen);
        runtime.spawn(async move {
            let made = job.compact(&shared, &mut request).await;
            // What it has to say, it has said in events.
            let _ = shared.conclude(Some(&flight), &mut request, &facts, made, seen);
        });
    }

    /// What comes of a request after a compaction, or after none was possible.
    pub(crate) fn conclude(
        &self,
        flight: Option<&Flight>,
        request: &mut ChatRequest,
        facts: &Facts,
        made: Result<Made, Failed>,
        seen: Seen,
    ) -> Result<Sight, Failure> {
        let mut told = notice(&seen);
        let mut saved = 0;
        let mut standing = seen.applied.clone();
        match made {
            Ok(mut made) => {
                told.degraded = made.degraded;
                if let Some(run) = &mut made.run {
                    told.reports.push(run.report);
                    if let Some(kept) = self.book(flight, &seen, request, run) {
                        (saved, standing) = (kept.saved, Some(kept.applied));
                    }
                }
            }
            Err(Failed::TooLarge(error)) => {
                add(&self.counts.too_large);
                event::too_large(about(request), &error);
                // A window that is guessed is no reason to refuse.
                if facts.is_known {
                    let failure = error.into_failure();
                    return Err(match &request.context.target {
                        Some(target) => failure.with_target(target.clone()),
                        None => failure,
                    });
                }
            }
            Err(Failed::Threw(what)) => {
                let conversation = flight.map(|flight| &*flight.conversation);
                self.threw(conversation, request, what);
                told.switched_off = conversation.is_some_and(|one| one.book.lock().off);
            }
        }
        let mut sight = Sight::default();
        let counter = &self.config.counter;
        let mut once = Book::default();
        let mut book = flight.map(|flight| flight.conversation.book.lock());
        let open = book.as_deref_mut().unwrap_or(&mut once);
        let count = counter.count(&mut open.tape, request, model(request));
        open.counted += 1;
        open.tokens = count.tokens;
        told.tokens = count.upper;
        told.warning = self.policy().level(seen.room, count.upper) != Level::Fine;
        open.warned = told.warning;
        if let Some(applied) = standing {
            let saved = saved.max(open.saved);
            let messages = request.messages.clone();
            told.compacted = Some(Compacted { messages, saved, applied });
            sight.caller = Some(seen.caller);
        }
        sight.watch = flight.map(|flight| Watch {
            conversation: flight.conversation.clone(),
            counted: open.counted,
            bytes: None,
            model: facts.model,
        });
        sight.notice = Some(Box::new(told));
        Ok(sight)
    }
}

impl Job {
    /// For a request of which nothing is remembered.
    pub(crate) fn new(request: &ChatRequest, facts: &Facts, seen: &Seen) -> Self {
        Self {
            rules: facts.rules(request),
            room: seen.room,
            model: model(request).to_owned(),
            count: seen.count,
            growth: None,
            summary: seen.applied.as_ref().and_then(|applied| applied.summary().cloned()),
            refused: false,
            unasked: None,
        }
    }

    pub(crate) fn of(
        shared: &Shared,
        conversation: &Conversation,
        request: &ChatRequest,
        facts: &Facts,
        seen: &Seen,
    ) -> Self {
        let book = conversation.book.lock();
        let mut job = Self::new(request, facts, seen);
        job.growth = book.tape.growth(&shared.config.counter.calibration(&job.model));
        job.unasked =
            (book.ineffective >= shared.policy().max_ineffective).then_some(Degraded::Thrashing);
        job
    }
}
