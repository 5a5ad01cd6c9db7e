//! The answer of a guarded call.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use steadfast_chat::{Delta, Event, Events, Stop, StopReason};
use steadfast_core::{Failure, RecoveryLog, Usage};
use tokio::time::Instant;

use crate::{
    LoopRule, SafetyStop, StopAs, StopCause,
    admission::Admission,
    repeat::Repeats,
    state::{TaskEvent, TaskState},
    tasks::{Task, Tasks},
};

/// What the guard needs to check an answer.
#[derive(Debug)]
pub(crate) struct Guarded {
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) task: Option<Arc<Task>>,
    /// Whether the caller named the task.
    pub(crate) named: bool,
    /// When the task began, if that is known.
    pub(crate) began: Option<Instant>,
    /// The tool layer counts the calls of the answer, so they are not counted here.
    pub(crate) tool_layer: bool,
    /// The task's state, to count the answer's calls in; boxed, and `None` when this answer is the
    /// task's first event, as most are.
    pub(crate) state: Option<Box<TaskState>>,
    pub(crate) log: RecoveryLog,
}

impl Guarded {
    /// The head of the answer has come.
    pub(crate) fn begin(&self) {
        if let (true, Some(task)) = (self.tool_layer, &self.task) {
            task.state.lock().on(&self.tasks.c, TaskEvent::Answer, Instant::now());
        }
    }

    /// The stop when the time limit is exceeded.
    fn late(&mut self) -> Option<SafetyStop> {
        let (began, limit) = (self.began?, self.tasks.c.policy.limits_of(self.named).time?);
        let now = Instant::now();
        let is_late = |began: Instant| began.checked_add(limit).is_some_and(|until| now > until);
        if is_late(began) {
            // An operator may have extended the task meanwhile.
            self.began = self.task.as_ref()?.state.lock().began;
        }
        is_late(self.began?).then(|| self.stop(StopCause::Time(limit)))
    }

    /// A stop for something in the answer itself.
    fn stop(&self, cause: StopCause) -> SafetyStop {
        self.read(|state| state.stop(&self.tasks.c, cause, Instant::now()))
    }

    fn read<T>(&self, read: impl FnOnce(&TaskState) -> T) -> T {
        match (&self.state, &self.task) {
            (Some(state), _) => read(state),
            (None, Some(task)) if self.tool_layer => read(&task.state.lock()),
            (None, _) => read(&self.first()),
        }
    }

    /// The state of a task in which this answer is the first event.
    fn first(&self) -> Box<TaskState> {
        let mut state = Box::new(TaskState::new(self.began, self.named));
        state.on(&self.tasks.c, TaskEvent::Answer, Instant::now());
        state
    }

    /// Reports a stop inside the answer.
    fn stopped(&self, stop: &SafetyStop) {
        let task = self.task.as_ref().map(|task| task.id()).unwrap_or_default();
        self.tasks.stopped(task, stop, true, &self.log);
    }
}

/// The events of a guarded answer. A stop drops the inner stream, which closes its connection, and
/// ends this one: with a failure, or with its message and a regular end.
///
/// Time and repeated text do not stop an answer with a tool call in it: a truncated call could be
/// mistaken for a complete one. The next request is stopped instead.
pub struct GuardEvents<S> {
    /// `None` once over.
    events: Option<S>,
    /// Events to return before any other.
    out: VecDeque<Result<Event, Failure>>,
    /// `None` for an answer that the guard made.
    guarded: Option<Guarded>,
    /// Boxed: most answers call no tools.
    admission: Option<Box<Admission>>,
    repeats: Repeats,
    stream: bool,
    position: Position,
    /// There is a call in it.
    called: bool,
    /// Content has been delivered.
    delivered: bool,
}

/// The position in an answer.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    /// The next block's number.
    next: u32,
    /// The block that began last, while it is open.
    open: Option<u32>,
    /// Text has been delivered.
    text: bool,
}

impl Position {
    fn begin(&mut self, index: u32) {
        (self.next, self.open) = (self.next.max(index + 1), Some(index));
    }
}

/// The delta at which an event stops the answer, and why.
type StopAt = Option<(usize, SafetyStop)>;

impl<S> GuardEvents<S> {
    /// `None` for both when the guard made the answer.
    pub(crate) fn new(events: Option<S>, guarded: Option<Guarded>, stream: bool) -> Self {
        Self {
            events,
            out: VecDeque::new(),
            guarded,
            admission: None,
            repeats: Repeats::default(),
            stream,
            position: Position::default(),
            called: false,
            delivered: false,
        }
    }

    /// An answer made by the guard, with the message of `stop`.
    pub(crate) fn stopped(stop: &SafetyStop, stream: bool) -> Self {
        let mut answer = Self::new(None, None, stream);
        let begin = [Delta::Start { id: None, model: None }];
        answer.end(begin.into_iter(), Some(Usage::new(0, 0)), stop);
        answer
    }

    /// Ends the answer regularly, with `deltas` and then the message of `stop`.
    fn end(
        &mut self,
        deltas: impl Iterator<Item = Delta>,
        usage: Option<Usage>,
        stop: &SafetyStop,
    ) {
        self.events = None;
        self.out.clear();
        let mut all: Vec<Delta> = deltas.collect();
        let before = all.len();
        all.extend(self.position.open.take().map(|index| Delta::BlockEnd { index }));
        let index = self.position.next;
        let gap = if self.position.text { "\n\n" } else { "" };
        all.push(Delta::Text { index, text: format!("{gap}{stop}") });
        all.push(Delta::BlockEnd { index });
        all.extend(usage.map(Delta::Usage));
        all.push(Delta::Stop(Stop::from(StopReason::EndTurn)));
        all.push(Delta::End);
        let rest = if self.stream { all.split_off(before) } else { Vec::new() };
        if !all.is_empty() {
            self.out.push_back(Ok(Event::new(all)));
        }
        self.out.extend(rest.into_iter().map(|delta| Ok(Event::new([delta]))));
    }

    /// Stops after the first `keep` deltas of `event`.
    fn stop(&mut self, mut event: Event, keep: usize, stop: &SafetyStop) {
        let Some(guarded) = &self.guarded else { return };
        guarded.stopped(stop);
        if guarded.tasks.c.policy.stop_as == StopAs::Failure {
            let failure = stop.failure();
            let failure = if self.delivered { failure.with_delivered() } else { failure };
            self.events = None;
            self.out.clear();
            self.out.push_back(Err(failure));
            return;
        }
        let usage = event.usage().cloned();
        let kept = std::mem::take(event.deltas_mut()).into_iter().take(keep);
        self.end(kept.filter(|delta| !matches!(delta, Delta::Usage(_))), usage, stop);
    }
}

impl<S: Events + Unpin> GuardEvents<S> {
    /// Reads an event.
    fn read(&mut self, event: &Event) -> StopAt {
        let guarded = self.guarded.as_mut()?;
        for (at, delta) in event.deltas.iter().enumerate() {
            match delta {
                Delta::Text { index, text } => {
                    self.position.begin(*index);
                    self.position.text |= !text.is_empty();
                    if let Some(most) = guarded.tasks.c.policy.rules.repeated_text
                        && let Some(count) = self.repeats.push(*index, text, most)
                        && !self.called
                    {
                        let rule = LoopRule::RepeatedText;
                        let cause = StopCause::Loop { rule, tool: "".into(), count };
                        return Some((at + 1, guarded.stop(cause)));
                    }
                }
                Delta::ToolCall { index, name, .. } => {
                    if !guarded.tool_layer {
                        if self.admission.is_none() {
                            let state = guarded.state.take().unwrap_or_else(|| guarded.first());
                            self.admission = Some(Box::new(Admission::new(state)));
                        }
                        let Some(admission) = &mut self.admission else { continue };
                        admission.call(&guarded.tasks.c, *index, name);
                        if let Some(stop) = admission.refuses_all() {
                            return Some((at, stop.clone()));
                        }
                    }
                    self.position.begin(*index);
                    self.called = true;
                }
                Delta::Arguments { index, json } => {
                    if let Some(admission) = &mut self.admission {
                        admission.arguments(*index, json);
                    }
                }
                Delta::Thinking { index, .. }
                | Delta::Signature { index, .. }
                | Delta::Redacted { index, .. }
                | Delta::Opaque { index, .. } => self.position.begin(*index),
                Delta::BlockEnd { index } => {
                    self.position.open.take_if(|open| open == index);
                }
                _ => {}
            }
        }
        None
    }

    /// The stop when the time limit is exceeded before `event`, when the answer was at `before`; none
    /// with a call in it.
    fn late(&mut self, event: &Event, before: Position) -> StopAt {
        let guarded = self.guarded.as_mut().filter(|_| !self.called && !event.is_end())?;
        // The event's content is left out, the deltas before it are kept.
        let stop = guarded.late()?;
        self.position = before;
        Some((event.deltas.iter().take_while(|delta| !delta.is_content()).count(), stop))
    }

    /// Handles an event; returns the next one to deliver, if any.
    fn take(&mut self, event: Event) -> Option<Result<Event, Failure>> {
        let before = self.position;
        if let Some((keep, stop)) = self.read(&event).or_else(|| self.late(&event, before)) {
            self.stop(event, keep, &stop);
            return self.out.pop_front();
        }
        let end = event.is_end();
        match &mut self.admission {
            Some(admission) if admission.holding => {
                admission.held.push_back(event);
                if end {
                    self.finish();
                }
                self.out.pop_front()
            }
            _ => {
                let event = self.deliver(event);
                self.report(end);
                Some(Ok(event))
            }
        }
    }

    /// `event`, without the calls that are refused.
    fn deliver(&mut self, mut event: Event) -> Event {
        if let Some(admission) = &mut self.admission {
            admission.rewrite(&mut event);
        }
        self.delivered |= event.is_content();
        event
    }

    /// Reports the calls that were refused, once, at the `end` of the answer.
    fn report(&mut self, end: bool) {
        if let (true, Some(admission), Some(guarded)) = (end, &mut self.admission, &self.guarded)
            && let Some(stop) = admission.take_unreported()
        {
            guarded.stopped(stop);
        }
    }

    /// The end has come while events were held back.
    fn finish(&mut self) {
        let (Some(admission), Some(guarded)) = (&mut self.admission, &self.guarded) else { return };
        admission.check_edits(&guarded.tasks.c);
        if let Some(stop) = admission.refuses_all().cloned()
            && guarded.tasks.c.policy.stop_as == StopAs::Failure
        {
            return self.stop(Event::default(), 0, &stop);
        }
        self.release();
    }

    /// Delivers what was held back.
    fn release(&mut self) {
        let held = self.admission.as_mut().map(|admission| admission.release());
        for event in held.into_iter().flatten() {
            let event = self.deliver(event);
            self.out.push_back(Ok(event));
        }
        self.report(true);
    }

    /// The answer failed, or ended without its terminal event: edits that are held back are not checked.
    fn interrupted(&mut self, failure: Option<Failure>) {
        self.events = None;
        self.release();
        self.out.extend(failure.map(Err));
    }
}

impl<S: Events + Unpin> Stream for GuardEvents<S> {
    type Item = Result<Event, Failure>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(item) = this.out.pop_front() {
                return Poll::Ready(Some(item));
            }
            let Some(events) = &mut this.events else { return Poll::Ready(None) };
            match ready!(Pin::new(events).poll_next(cx)) {
                Some(Ok(event)) => {
                    if let Some(item) = this.take(event) {
                        return Poll::Ready(Some(item));
                    }
                }
                Some(Err(failure)) => this.interrupted(Some(failure)),
                None => this.interrupted(None),
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // A limit may end it at any time.
        (0, None)
    }
}

impl<S> fmt::Debug for GuardEvents<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardEvents")
            .field("over", &self.events.is_none())
            .field("guarded", &self.guarded)
            .finish_non_exhaustive()
    }
}
