//! An answer under guard.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use steadfast_chat::{Delta, Event, Events, Stop as Ending, StopReason};
use steadfast_core::{Failure, RecoveryLog, Usage};
use tokio::time::Instant;

use crate::{
    LoopRule, Stop, StopAs, StopCause,
    admission::Admission,
    repeat::Repeats,
    state::{TaskEvent, TaskState},
    tasks::{Task, Tasks},
};

/// What an answer is guarded with.
#[derive(Debug)]
pub(crate) struct Guarded {
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) task: Option<Arc<Task>>,
    /// When the task began, if that is known.
    pub(crate) began: Option<Instant>,
    /// The tool half sees the calls of the answer, and this one does not.
    pub(crate) tool_half: bool,
    /// The task's state, to count the answer's own calls in; boxed, and `None` when this answer is
    /// the first thing that happens in it, as most are.
    pub(crate) state: Option<Box<TaskState>>,
    pub(crate) log: RecoveryLog,
}

impl Guarded {
    /// The head of the answer is there.
    pub(crate) fn begin(&self) {
        if let (true, Some(task)) = (self.tool_half, &self.task) {
            task.state.lock().on(&self.tasks.c, TaskEvent::Answer, Instant::now());
        }
    }

    /// The stop for time that is up, when it is.
    fn late(&mut self) -> Option<Stop> {
        let (began, limit) = (self.began?, self.tasks.c.policy.limits.time?);
        let now = Instant::now();
        let is_late = |began: Instant| began.checked_add(limit).is_some_and(|until| now > until);
        if is_late(began) {
            // An operator may have extended the task meanwhile.
            self.began = self.task.as_ref()?.state.lock().began;
        }
        is_late(self.began?).then(|| self.stop(StopCause::Time(limit)))
    }

    /// The stop for something that the answer itself shows.
    fn stop(&self, cause: StopCause) -> Stop {
        self.read(|state| state.stop(cause, Instant::now()))
    }

    fn read<T>(&self, read: impl FnOnce(&TaskState) -> T) -> T {
        match (&self.state, &self.task) {
            (Some(state), _) => read(state),
            (None, Some(task)) if self.tool_half => read(&task.state.lock()),
            (None, _) => read(&self.first()),
        }
    }

    /// The state of a task in which this answer is the first event.
    fn first(&self) -> Box<TaskState> {
        let mut state = Box::new(TaskState::new(self.began));
        state.on(&self.tasks.c, TaskEvent::Answer, Instant::now());
        state
    }

    /// Reports a stop inside the answer.
    fn stopped(&self, stop: &Stop) {
        let task = self.task.as_ref().map(|task| task.id()).unwrap_or_default();
        self.tasks.stopped(task, stop, true, &self.log);
    }
}

/// The events of an answer under guard. A stop drops the stream under it, which closes its
/// connection, and ends this one: with a failure, or with its message and the usual end.
///
/// Time and repeated text stop no answer in which a call of a tool has begun: a call that was cut
/// off could be taken for a whole one. The next request is stopped instead.
pub struct GuardEvents<S> {
    /// `None` once over.
    events: Option<S>,
    /// To be given before anything else; when over, the rest.
    out: VecDeque<Result<Event, Failure>>,
    /// `None` for an answer that is the guard's own.
    guarded: Option<Guarded>,
    /// Boxed: most answers call no tools.
    admission: Option<Box<Admission>>,
    repeats: Repeats,
    stream: bool,
    position: Position,
    /// A call has begun.
    called: bool,
    /// Content has been handed on.
    delivered: bool,
}

/// How far an answer has come.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    /// The next block's number.
    next: u32,
    /// The block that has begun last, while it is open.
    open: Option<u32>,
    /// Text has been handed on.
    text: bool,
}

impl Position {
    fn begin(&mut self, index: u32) {
        (self.next, self.open) = (self.next.max(index + 1), Some(index));
    }
}

/// Where an event stops the answer, and why.
type StopAt = Option<(usize, Stop)>;

impl<S> GuardEvents<S> {
    /// `None` for both when the answer is the guard's own.
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

    /// An answer of the guard's own: that the task is stopped, and nothing else.
    pub(crate) fn stopped(stop: &Stop, stream: bool) -> Self {
        let mut answer = Self::new(None, None, stream);
        let begin = [Delta::Start { id: None, model: None }];
        answer.end(begin.into_iter(), Some(Usage::new(0, 0)), stop);
        answer
    }

    /// Ends well, with `deltas` before the text of `stop`.
    fn end(&mut self, deltas: impl Iterator<Item = Delta>, usage: Option<Usage>, stop: &Stop) {
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
        all.push(Delta::Stop(Ending::from(StopReason::EndTurn)));
        all.push(Delta::End);
        let rest = if self.stream { all.split_off(before) } else { Vec::new() };
        if !all.is_empty() {
            self.out.push_back(Ok(Event::new(all)));
        }
        self.out.extend(rest.into_iter().map(|delta| Ok(Event::new([delta]))));
    }

    /// Stops after the first `keep` deltas of `event`.
    fn stop(&mut self, mut event: Event, keep: usize, stop: &Stop) {
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
                    if !guarded.tool_half {
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

    /// The stop for time that is up before `event`, when the answer was at `before`; none once a call has
    /// begun.
    fn late(&mut self, event: &Event, before: Position) -> StopAt {
        let guarded = self.guarded.as_mut().filter(|_| !self.called && !event.is_end())?;
        // What wraps the answer is kept, the content of this event is left out.
        let stop = guarded.late()?;
        self.position = before;
        Some((event.deltas.iter().take_while(|delta| !delta.is_content()).count(), stop))
    }

    /// Takes an event in; what is to be handed on now, if anything.
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
                let event = self.hand_on(event);
                self.report(end);
                Some(Ok(event))
            }
        }
    }

    /// `event`, without the calls that are refused.
    fn hand_on(&mut self, mut event: Event) -> Event {
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
        admission.judge_edits(&guarded.tasks.c);
        if let Some(stop) = admission.refuses_all().cloned()
            && guarded.tasks.c.policy.stop_as == StopAs::Failure
        {
            return self.stop(Event::default(), 0, &stop);
        }
        self.release();
    }

    /// Hands on what was held back.
    fn release(&mut self) {
        let held = self.admission.as_mut().map(|admission| admission.release());
        for event in held.into_iter().flatten() {
            let event = self.hand_on(event);
            self.out.push_back(Ok(event));
        }
        self.report(true);
    }

    /// The answer broke off, or ended without its terminal event: edits that are held back stay unjudged.
    fn broke(&mut self, failure: Option<Failure>) {
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
                Some(Err(failure)) => this.broke(Some(failure)),
                None => this.broke(None),
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
