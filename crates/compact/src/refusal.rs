//! A request that the provider refused as too large.

use std::sync::Arc;

use steadfast_chat::ChatRequest;
use steadfast_core::{Deadline, Failure};

use crate::{
    Degraded, Effect,
    course::Sent,
    event,
    job::{Failed, Job, Made},
    look::{Sight, about},
    memory::{Book, Conversation, Flight},
    state::{Own, add, model},
};

/// Compactions of a request that the provider refused as too large; the second only after progress.
const REFUSALS: u32 = 2;

/// What one call remembers over its refusals.
#[derive(Default)]
pub(crate) struct Refusals {
    times: u32,
    /// How often a provider was asked.
    pub(crate) asked: u32,
    /// What the provider counted last.
    requested: Option<u64>,
}

impl Refusals {
    /// Compacts what was refused, harder than the numbers say.
    ///
    /// # Errors
    ///
    /// The provider's refusal, when that is not possible, or would not help.
    pub(crate) async fn compact<S>(
        &mut self,
        own: &Own<S>,
        sent: Sent,
        failure: Failure,
    ) -> Result<(ChatRequest, Sight), Failure> {
        self.asked = self.asked.saturating_add(failure.attempts());
        let Sent { mut request, sight } = sent;
        let window = failure.window().unwrap_or_default();
        let context = &mut request.context;
        context.attempts = context.attempts.saturating_add(failure.attempts());
        let is_less = match (self.requested, window.requested) {
            (Some(before), Some(now)) => now < before,
            _ => true,
        };
        let is_over =
            context.deadline.is_some_and(Deadline::is_past) || context.attempts_left() == 0;
        if self.times >= REFUSALS || !is_less || is_over {
            return Err(failure.with_attempts(self.asked));
        }
        self.times += 1;
        self.requested = window.requested;
        let shared = &own.shared;
        add(&shared.counts.overflows);
        event::overflow(about(&request), window, self.times);

        if let Some(caller) = sight.caller {
            request.messages = caller;
        }
        let conversation = match sight.watch {
            Some(watch) => Some(watch.conversation),
            None => shared.conversation(&request),
        };
        if let Some(limit) = window.limit {
            shared.config.models.learn(model(&request), limit);
        }
        let facts = own.facts(&request);
        // Where the output counts, a number may be of both.
        let requested = window
            .requested
            .filter(|_| request.params.max_output.is_none() || !facts.output_counts(&request));
        let made = match &conversation {
            Some(conversation) => {
                let flight = take(conversation).await;
                let (seen, job) = {
                    let mut book = conversation.book.lock();
                    let seen = shared.see(&mut book, &mut request, &facts);
                    if let Some(requested) = requested {
                        let counter = &shared.config.counter;
                        counter.overflowed(&book.tape, model(&request), requested);
                    }
                    drop(book);
                    let job = Job::of(shared, conversation, &request, &facts, &seen);
                    (seen, job.refused(requested))
                };
                let made = job.compact(shared, &mut request).await;
                done(&made)
                    .then(|| shared.conclude(Some(&flight), &mut request, &facts, made, seen))
            }
            None => {
                let seen = shared.see(&mut Book::default(), &mut request, &facts);
                let mut job = Job::new(&request, &facts, &seen).refused(requested);
                job.unasked = Some(Degraded::Unscoped);
                let made = job.compact(shared, &mut request).await;
                done(&made).then(|| shared.conclude(None, &mut request, &facts, made, seen))
            }
        };
        match made {
            Some(Ok(sight)) => Ok((request, sight)),
            // What the provider said of it is worth more than what we would say.
            _ => Err(failure.with_attempts(self.asked)),
        }
    }
}

impl Job {
    fn refused(mut self, requested: Option<u64>) -> Self {
        self.refused = true;
        if let Some(requested) = requested {
            self.count.upper = self.count.upper.max(requested);
            self.count.tokens = self.count.tokens.max(requested);
        }
        self
    }
}

/// Whether a compaction made the request smaller.
fn done(made: &Result<Made, Failed>) -> bool {
    let run = made.as_ref().ok().and_then(|made| made.run.as_ref());
    run.is_some_and(|run| run.report.effect != Effect::Ineffective)
}

/// Waits until nobody else compacts the conversation.
async fn take(conversation: &Arc<Conversation>) -> Flight {
    loop {
        let waiting = conversation.waiting();
        if let Some(flight) = conversation.take() {
            return flight;
        }
        waiting.await;
    }
}
