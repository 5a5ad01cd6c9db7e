//! An answer that goes on behind its output limit.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, Events};
use steadfast_core::{Call, Dialect, Failure, Retry, Target, Usage};
use tower_service::Service;

use super::{
    course::{Course, Next},
    event,
    layer::ContinuationLayer,
};
use crate::{
    Partial,
    again::{Again, Toll, cut_off, means},
    buffers, follow,
    seam::Seam,
    service::{Begun, Own},
    splice::Splice,
};

/// The events of an answer and, when it is cut off, of what continues it. After its first error it
/// stays ended. Dropping it ends whatever is under way.
pub struct ContinuedEvents<S: Service<ChatRequest>, E> {
    /// `None` while there is no stream to read.
    events: Option<E>,
    /// `None` once the answer is over.
    going: Option<Going<S>>,
    /// To be given next.
    out: VecDeque<Event>,
    /// To be given after that.
    then: Option<Event>,
    /// To be told after that.
    told: Option<Failure>,
}

struct Going<S: Service<ChatRequest>> {
    request: ChatRequest,
    own: Arc<Own<S, ContinuationLayer>>,
    course: Course,
    target: Option<Target>,
    /// The dialect the answer began in.
    dialect: Dialect,
    asked: u32,
    /// What is needed once it was cut off.
    cut: Option<Box<Cut<S>>>,
}

struct Cut<S: Service<ChatRequest>> {
    again: Option<Again<S>>,
    splice: Option<Splice>,
    /// What the pieces so far used.
    base: Usage,
    continuations: u32,
    /// Continuations in a row that brought little.
    poor: u32,
    escalated: bool,
    /// The answer that was dropped, until the next one has begun.
    saved: Option<Saved>,
}

/// An answer that was dropped to be asked for again.
struct Saved {
    partial: Partial,
    events: Vec<Event>,
    max_output: Option<u64>,
    base: Usage,
}

impl<S: Service<ChatRequest>, E> ContinuedEvents<S, E> {
    pub(crate) fn new(events: E, begun: Begun<S, ContinuationLayer>) -> Self {
        let Begun { request, own, target, dialect, asked } = begun;
        let policy = &own.layer.shared.policy;
        let wanted = !policy.is_off()
            && request.params.max_output.is_none_or(|asked| asked >= policy.least)
            && request.params.answers.is_none_or(|answers| answers <= 1);
        let withhold = policy.escalate_to > 0 && (policy.withhold || !request.stream);
        let limit = policy.max_partial;
        let going = wanted.then(move || {
            let mut partial = Partial::new(limit).with_buffer(buffers::take());
            partial.reads(dialect, request.stream);
            let course = Course::new(partial, limit, withhold);
            Going { request, own, course, target, dialect, asked, cut: None }
        });
        Self { events: Some(events), going, out: VecDeque::new(), then: None, told: None }
    }
}

impl<S, E> ContinuedEvents<S, E>
where
    S: Service<ChatRequest, Response = ChatResponse<E>> + Clone,
    S::Error: Into<Failure>,
    E: Events + Unpin,
{
    /// An event of the stream under way: what is to be given now.
    fn take(&mut self, event: Event) -> Option<Event> {
        let Some(going) = &mut self.going else { return Some(event) };
        if going.cut.is_none() && going.course.needs_nothing(&event) {
            self.going = None;
            return Some(event);
        }
        let event = match going.cut.as_mut().and_then(|cut| cut.splice.as_mut()) {
            None => {
                going.course.partial.see(&event);
                event
            }
            // Without a seam the text goes on as it came: it is never refused.
            Some(splice) => match splice.take(event, &mut going.course.partial) {
                Ok(event) => event?,
                Err(_) => return None,
            },
        };
        let next = going.course.take(event, &mut self.out);
        if going.course.is_over() {
            self.going = None;
        }
        match next {
            Next::Give(event) => Some(event),
            Next::Both(event, then) => {
                self.then = Some(then);
                Some(event)
            }
            Next::More => None,
            Next::Cut => {
                self.was_cut();
                None
            }
        }
    }

    /// The answer was cut off, and its stream is over.
    fn was_cut(&mut self) {
        self.events = None;
        let Some(going) = &mut self.going else { return };
        going.own.layer.shared.counts.cut.fetch_add(1, Ordering::Relaxed);
        let used = going.course.partial.used(going.request.needs().input_tokens);
        let cut = going.cut.get_or_insert_with(|| Box::new(Cut::new()));
        cut.saved = None;
        let new = used.output.unwrap_or(0);
        let policy = &going.own.layer.shared.policy;
        if cut.continuations > 0 {
            cut.poor = if new < policy.little { cut.poor + 1 } else { 0 };
        }
        let before = cut.base;
        cut.base = cut.base.plus(&used);
        cut.splice = None;
        let means = means(&going.request.context, going.asked);
        if !cut.escalated
            && means.is_none()
            && let Some(events) = going.course.withheld.take()
        {
            cut.escalated = true;
            let limits = &going.own.layer.shared.limits;
            let (input, target) = (used.input.unwrap_or(0), going.target.as_ref());
            if let Some(to) = limits.raised(policy, &going.request, target, input, new) {
                going.own.layer.shared.counts.escalated.fetch_add(1, Ordering::Relaxed);
                event::escalated(&going.request.context, target, to, new);
                let fresh = Partial::new(policy.max_partial);
                let partial = std::mem::replace(&mut going.course.partial, fresh);
                let max_output = going.request.params.max_output.replace(to);
                cut.saved = Some(Saved { partial, events, max_output, base: before.plus(&used) });
                let request = going.request.clone();
                going.call(request);
                return;
            }
            self.out.extend(events);
        } else if let Some(events) = going.course.withheld.take() {
            self.out.extend(events);
        }
        self.go_on(new);
    }

    /// Continues the answer, or leaves it as it is.
    fn go_on(&mut self, new: u64) {
        let Some(going) = &mut self.going else { return };
        let Some(cut) = &mut going.cut else { return };
        let policy = &going.own.layer.shared.policy;
        let why = if cut.continuations >= policy.continuations {
            Some("continuations_spent")
        } else if policy.poor_in_a_row > 0 && cut.poor >= policy.poor_in_a_row {
            Some("little_new")
        } else {
            means(&going.request.context, going.asked)
        };
        if let Some(why) = why {
            return self.leave(why);
        }
        cut.continuations += 1;
        going.own.layer.shared.counts.continued.fetch_add(1, Ordering::Relaxed);
        let (text, bytes) = (going.course.partial.text(), going.course.cut_bytes);
        let request = match bytes {
            None => follow::continuing(&going.request, text),
            Some(bytes) => follow::calling(&going.request, text, bytes),
        };
        let target = going.target.as_ref();
        event::continued(&going.request.context, target, cut.continuations, new, bytes);
        going.call(request);
    }

    /// Ends the answer as the model did: cut off.
    fn leave(&mut self, why: &'static str) {
        self.events = None;
        let Some(mut going) = self.going.take() else { return };
        going.own.layer.shared.counts.truncated.fetch_add(1, Ordering::Relaxed);
        event::truncated(&going.request.context, going.target.as_ref(), why);
        let usage = going.cut.as_ref().map(|cut| cut.base).unwrap_or_default();
        let stop = going.course.stop.take();
        let ends = stop.map(Delta::Stop).into_iter().chain([Delta::End]);
        self.out.push_back(Event::new([Delta::Usage(usage)].into_iter().chain(ends)));
    }

    /// The further call is answered.
    fn began(&mut self, reply: ChatResponse<E>) {
        let Some(going) = &mut self.going else { return };
        let Some(cut) = &mut going.cut else { return };
        let (head, events) = reply.into_parts();
        going.asked = going.asked.saturating_add(head.attempts);
        going.target = head.target.or(going.target.take());
        cut.again = None;
        let partial = &mut going.course.partial;
        partial.reads(head.dialect, going.request.stream);
        let splice = if cut.saved.is_some() {
            Splice::fresh(partial, cut.base)
        } else {
            let seam = (!partial.text().is_empty()).then(|| Seam::unasked(partial.text()));
            Splice::new(partial, seam, true, cut.base)
        };
        cut.splice = Some(splice.foreign(head.dialect != going.dialect));
        self.events = Some(events);
    }

    /// The stream, or the further call, failed.
    fn failed(&mut self, failure: Failure, call: bool) {
        self.events = None;
        let Some(going) = &mut self.going else {
            self.told = Some(failure);
            return;
        };
        let is_final = failure.retry() == Retry::Forbidden;
        let has_come = going.course.partial.has_come();
        let Some(cut) = &mut going.cut else {
            // The answer itself: not ours to mend.
            let withheld = going.course.withheld.is_some();
            self.out.extend(going.course.failed());
            self.told = Some(if withheld { failure.without_delivered() } else { failure });
            self.going = None;
            return;
        };
        if call {
            going.asked = going.asked.saturating_add(failure.attempts());
        }
        cut.again = None;
        cut.splice = None;
        if is_final || has_come {
            self.out.extend(going.course.failed());
            self.told = Some(match cut.saved.take() {
                // What was there of the first answer was dropped unseen.
                Some(_) if !has_come => failure,
                _ => failure.with_delivered(),
            });
            self.going = None;
        } else if let Some(saved) = cut.saved.take() {
            // A higher limit was refused: the answer that was cut off is better than none.
            cut.base = saved.base;
            going.course.partial = saved.partial;
            going.request.params.max_output = saved.max_output;
            self.out.extend(saved.events);
            self.go_on(0);
        } else {
            self.leave("continuation_failed");
        }
    }
}

impl<S> Going<S>
where
    S: Service<ChatRequest> + Clone,
{
    fn call(&mut self, mut request: ChatRequest) {
        let context = &mut request.context;
        context.attempts = context.attempts.saturating_add(self.asked);
        self.course.partial.next_piece();
        self.course.next_piece();
        if let Some(cut) = &mut self.cut {
            cut.again = Some(Again::new(self.own.spare.get(), request, Toll::default()));
        }
    }
}

impl<S: Service<ChatRequest>> Drop for Going<S> {
    fn drop(&mut self) {
        buffers::put(self.course.partial.take_buffer());
    }
}

impl<S: Service<ChatRequest>> Cut<S> {
    fn new() -> Self {
        Self {
            again: None,
            splice: None,
            base: Usage::default(),
            continuations: 0,
            poor: 0,
            escalated: false,
            saved: None,
        }
    }
}

impl<S, E> Stream for ContinuedEvents<S, E>
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
            if let Some(event) = this.out.pop_front().or_else(|| this.then.take()) {
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(failure) = this.told.take() {
                return Poll::Ready(Some(Err(failure)));
            }
            let cut = this.going.as_mut().and_then(|going| going.cut.as_mut());
            if let Some(again) = cut.and_then(|cut| cut.again.as_mut()) {
                match ready!(again.poll(cx)) {
                    Ok((reply, _)) => this.began(reply),
                    Err(failure) => this.failed(failure, true),
                }
                continue;
            }
            let Some(events) = &mut this.events else { return Poll::Ready(None) };
            match ready!(Pin::new(events).poll_next(cx)) {
                Some(Ok(event)) => {
                    if let Some(Going { course, cut: None, .. }) = &mut this.going
                        && course.passes(&event)
                    {
                        return Poll::Ready(Some(Ok(event)));
                    }
                    if let Some(event) = this.take(event) {
                        return Poll::Ready(Some(Ok(event)));
                    }
                }
                Some(Err(failure)) => this.failed(failure, false),
                None if this.going.is_none() => return Poll::Ready(None),
                None => this.failed(cut_off(), false),
            }
        }
    }
}

impl<S: Service<ChatRequest>, E> fmt::Debug for ContinuedEvents<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = self.going.as_ref().and_then(|going| going.cut.as_ref());
        f.debug_struct("ContinuedEvents")
            .field("over", &self.going.is_none())
            .field("continuations", &cut.map_or(0, |cut| cut.continuations))
            .finish_non_exhaustive()
    }
}
