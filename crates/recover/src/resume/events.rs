//! A stream that goes on where it broke.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use steadfast_chat::{ChatRequest, ChatResponse, Event, Events};
use steadfast_core::{
    Attempt, Call, Dialect, Failure, Reason, RetryBudget, Target, Usage, Withdrawal,
};
use tokio::time::Sleep;
use tower_service::Service;

use super::{
    event,
    layer::StreamResumeLayer,
    policy::{Declined, may_resume},
};
use crate::{
    Partial, Standing,
    again::{Again, Budget, Toll, cut_off, means, until},
    buffers, follow,
    seam::Seam,
    service::{Begun, Own},
    splice::Splice,
};

/// The events of an answer, from one stream and, when that breaks, from the ones that go on with
/// it. After its first error it stays ended. Dropping it ends whatever is under way; a resume that
/// was paid for and not yet sent goes back into the budget.
pub struct ResumedEvents<S: Service<ChatRequest>, E> {
    /// `None` while there is no stream to read.
    events: Option<E>,
    /// `None` once the answer is over.
    course: Option<Course<S>>,
    /// What is needed once it broke.
    broken: Option<Box<Broken<S>>>,
}

/// What an answer needs to be resumed.
struct Course<S> {
    request: ChatRequest,
    own: Arc<Own<S, StreamResumeLayer>>,
    partial: Partial,
    /// Who answers.
    target: Option<Target>,
    dialect: Dialect,
    /// The dialect the answer began in.
    first: Dialect,
    /// How often a provider was asked.
    asked: u32,
}

/// What is known of an answer that broke at least once.
struct Broken<S: Service<ChatRequest>> {
    again: Option<Again<S>>,
    splice: Option<Splice>,
    /// The last message of the request is the model's own.
    prefilled: bool,
    resumes: u32,
    /// What the broken parts used.
    base: Usage,
    /// What the caller is given when this resume comes to nothing.
    failure: Option<Failure>,
    trail: Vec<Attempt>,
    spent: Option<(RetryBudget, Withdrawal)>,
    /// Fires at the deadline; armed while the seam is looked for.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl<S: Service<ChatRequest>, E> ResumedEvents<S, E> {
    pub(crate) fn new(events: E, begun: Begun<S, StreamResumeLayer>) -> Self {
        let Begun { request, own, target, dialect, asked } = begun;
        let shared = &own.layer.shared;
        if shared.policy.resumes == 0 {
            return Self { events: Some(events), course: None, broken: None };
        }
        let partial = Partial::new(shared.policy.max_partial).with_buffer(buffers::take());
        let course = Course { request, own, partial, target, dialect, first: dialect, asked };
        Self { events: Some(events), course: Some(course), broken: None }
    }

    /// The terminal event is there.
    fn ended(&mut self) {
        self.course = None;
        if let Some((budget, cost)) = self.broken.take().and_then(|broken| broken.spent) {
            budget.refund(cost);
        }
    }
}

impl<S, E> ResumedEvents<S, E>
where
    S: Service<ChatRequest, Response = ChatResponse<E>> + Clone,
    S::Error: Into<Failure>,
    E: Events + Unpin,
{
    /// The stream, or the call that was to go on with it (`call`), failed. Begins a resume, or gives
    /// back what the caller is to be told.
    fn broke(&mut self, failure: Failure, call: bool) -> Result<(), Failure> {
        self.events = None;
        let Some(course) = &mut self.course else { return Err(failure) };
        let counts = &course.own.layer.shared.counts;
        if !call {
            counts.broken.fetch_add(1, Ordering::Relaxed);
        }
        let resumes = self.broken.as_ref().map_or(0, |broken| broken.resumes);
        let toll = match course.decide(&failure, resumes, call) {
            Ok(toll) => toll,
            Err(why) => return Err(self.give_up(failure, why)),
        };
        let broken = self.broken.get_or_insert_with(|| Box::new(Broken::new()));
        broken.splice = None;
        broken.sleep = None;
        broken.resumes += 1;
        broken.trail.push(Attempt::from_failure(&failure));
        let input = course.request.needs().input_tokens;
        let lost = match call {
            true => Usage::default(),
            false => course.partial.used(input),
        };
        course.partial.next_piece();
        broken.base = broken.base.plus(&lost);
        counts.waste.fetch_add(lost.total().unwrap_or(0), Ordering::Relaxed);
        let text = course.partial.text();
        event::resuming(
            &course.request.context,
            &failure,
            course.target.as_ref(),
            broken.resumes,
            text.len(),
            &lost,
        );
        if call {
            course.asked = course.asked.saturating_add(failure.attempts());
        }
        // What the caller would have been told if there were no resumes is what broke the stream.
        broken.failure.get_or_insert(failure);
        let shared = &course.own.layer.shared;
        let in_text = course.partial.standing() == Standing::Text;
        broken.prefilled = in_text
            && !text.trim().is_empty()
            && !follow::thinks(&course.request)
            && shared.prefill.accepts(course.target.as_ref(), course.dialect);
        let mut request = if broken.prefilled {
            follow::prefilled(&course.request, text)
        } else if in_text {
            follow::repeating(&course.request, text, &shared.policy.seam)
        } else {
            course.request.clone()
        };
        let context = &mut request.context;
        context.attempts = context.attempts.saturating_add(course.asked);
        broken.again = Some(Again::new(course.own.spare.get(), request, toll));
        Ok(())
    }

    /// What the caller is told; the answer is over.
    fn give_up(&mut self, failure: Failure, why: Declined) -> Failure {
        self.events = None;
        let broken = self.broken.take();
        let Some(course) = self.course.take() else { return failure };
        course.own.layer.shared.counts.declined.fetch_add(1, Ordering::Relaxed);
        event::declined(&course.request.context, &failure, why);
        let failure = match broken {
            None => failure,
            Some(broken) => {
                let Broken { failure: first, mut trail, .. } = *broken;
                trail.push(Attempt::from_failure(&failure));
                // What is final is said as it is.
                let is_final = failure.retry() == steadfast_core::Retry::Forbidden;
                let told = match first {
                    Some(first) if !is_final => first,
                    _ => failure,
                };
                let told = told.with_attempts(course.asked);
                if told.trail().is_empty() && trail.len() > 1 {
                    told.with_trail(trail)
                } else {
                    told
                }
            }
        };
        match course.partial.standing() {
            Standing::Nothing => failure,
            _ => failure.with_delivered(),
        }
    }

    /// The further call is answered.
    fn began(&mut self, reply: ChatResponse<E>, spent: Option<(RetryBudget, Withdrawal)>) {
        let (Some(course), Some(broken)) = (&mut self.course, &mut self.broken) else { return };
        let (head, events) = reply.into_parts();
        course.asked = course.asked.saturating_add(head.attempts);
        course.target = head.target.or(course.target.take());
        course.dialect = head.dialect;
        broken.again = None;
        broken.spent = match (broken.spent.take(), spent) {
            (Some((_, before)), Some((budget, cost))) => Some((budget, before.and(cost))),
            (before, now) => now.or(before),
        };
        let shared = &course.own.layer.shared;
        let text = course.partial.text();
        let seam = if text.is_empty() {
            None
        } else if broken.prefilled && shared.prefill.accepts(course.target.as_ref(), head.dialect) {
            Some(Seam::prefilled(text))
        } else {
            Some(Seam::new(text, shared.policy.seam.clone()))
        };
        let splice = Splice::new(&mut course.partial, seam, false, broken.base)
            .foreign(head.dialect != course.first);
        self.events = Some(events);
        if splice.is_open() {
            broken.sleep = course.request.context.deadline.map(until);
        }
        broken.splice = Some(splice);
    }

    /// An event of a stream that goes on with the answer.
    fn fit(&mut self, event: Event) -> Result<Option<Event>, Failure> {
        let (Some(course), Some(broken)) = (&mut self.course, &mut self.broken) else {
            return Ok(Some(event));
        };
        let Some(splice) = &mut broken.splice else { return Ok(Some(event)) };
        let came = splice.take(event, &mut course.partial);
        let Ok(event) = came else { return Err(self.give_up(no_seam(), Declined::NoSeam)) };
        if broken.failure.is_some()
            && !splice.is_open()
            && event.as_ref().is_some_and(|event| event.is_content() || event.is_end())
        {
            broken.failure = None;
            broken.sleep = None;
            course.own.layer.shared.counts.resumed.fetch_add(1, Ordering::Relaxed);
            event::resumed(&course.request.context, course.target.as_ref(), broken.resumes);
        }
        if course.partial.is_ended() {
            self.ended();
        }
        Ok(event)
    }

    /// Whether the deadline passed while the seam was looked for.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.broken.as_mut().and_then(|broken| broken.sleep.as_mut()) {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl<S> Course<S> {
    /// Whether the answer may be gone on with after `failure`, and what was paid for that.
    fn decide(&self, failure: &Failure, resumes: u32, call: bool) -> Result<Toll, Declined> {
        let shared = &self.own.layer.shared;
        // A refusal of our own would come again at once.
        if !may_resume(failure) || (call && failure.reason().is_refusal()) {
            return Err(if call { Declined::Call } else { Declined::Reason });
        }
        let standing = self.partial.standing();
        if !standing.is_seam() {
            return Err(Declined::Place(standing));
        }
        if self.request.params.answers.is_some_and(|answers| answers > 1) {
            return Err(Declined::Several);
        }
        if resumes >= shared.policy.resumes {
            return Err(Declined::Spent);
        }
        match means(&self.request.context, self.asked) {
            Some("deadline") => return Err(Declined::Deadline),
            Some(_) => return Err(Declined::Attempts),
            None => {}
        }
        let budget = match &shared.budget {
            Budget::Unlimited => None,
            Budget::Own(budget) => Some(budget),
            Budget::Default => {
                Some(self.request.context.budget.as_ref().unwrap_or(&shared.fallback))
            }
        };
        Toll::pay(budget, failure.reason()).ok_or(Declined::Budget)
    }
}

impl<S> Drop for Course<S> {
    fn drop(&mut self) {
        buffers::put(self.partial.take_buffer());
    }
}

impl<S: Service<ChatRequest>> Broken<S> {
    fn new() -> Self {
        Self {
            again: None,
            splice: None,
            prefilled: false,
            resumes: 0,
            base: Usage::default(),
            failure: None,
            trail: Vec::new(),
            spent: None,
            sleep: None,
        }
    }
}

fn no_seam() -> Failure {
    Failure::new(Reason::Unknown, "the continuation did not go on with what had been said")
        .with_evidence("seam")
}

impl<S, E> Stream for ResumedEvents<S, E>
where
    S: Service<ChatRequest, Response = ChatResponse<E>> + Clone,
    S::Error: Into<Failure>,
    E: Events + Unpin,
{
    type Item = Result<Event, Failure>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(again) = this.broken.as_mut().and_then(|broken| broken.again.as_mut()) {
                match ready!(again.poll(cx)) {
                    Ok((reply, spent)) => this.began(reply, spent),
                    Err(failure) => {
                        if let Err(told) = this.broke(failure, true) {
                            return Poll::Ready(Some(Err(told)));
                        }
                        continue;
                    }
                }
            }
            let Some(events) = &mut this.events else { return Poll::Ready(None) };
            let failure = match Pin::new(events).poll_next(cx) {
                Poll::Ready(Some(Ok(event))) if this.broken.is_none() => {
                    if event.is_end() {
                        this.ended();
                    } else if let Some(course) = &mut this.course {
                        course.partial.see(&event);
                    }
                    return Poll::Ready(Some(Ok(event)));
                }
                Poll::Ready(Some(Ok(event))) => match this.fit(event) {
                    Ok(Some(event)) => return Poll::Ready(Some(Ok(event))),
                    Ok(None) => continue,
                    Err(told) => return Poll::Ready(Some(Err(told))),
                },
                Poll::Ready(Some(Err(failure))) => failure,
                Poll::Ready(None) if this.course.is_none() => return Poll::Ready(None),
                Poll::Ready(None) => cut_off(),
                Poll::Pending => {
                    ready!(this.poll_deadline(cx));
                    let failure = Failure::refused(
                        Reason::Timeout,
                        "the deadline passed while the seam was looked for",
                    );
                    let told = this.give_up(failure, Declined::Deadline);
                    return Poll::Ready(Some(Err(told)));
                }
            };
            if let Err(told) = this.broke(failure, false) {
                return Poll::Ready(Some(Err(told)));
            }
        }
    }
}

impl<S: Service<ChatRequest>, E> fmt::Debug for ResumedEvents<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResumedEvents")
            .field("over", &self.course.is_none())
            .field("resumes", &self.broken.as_ref().map_or(0, |broken| broken.resumes))
            .finish_non_exhaustive()
    }
}
