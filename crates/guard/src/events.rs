//! An answer under guard.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use steadfast_chat::{Delta, Event, Events, Stop as Ending, StopReason};
use steadfast_core::{Failure, Usage};

use crate::{
    LoopRule, Stop, StopAs, StopCause, gate::Gate, repeat::Repeats, repeat::may_repeat,
    watch::Watch,
};

/// The events of an answer under guard. A stop drops the stream under it, which closes its
/// connection, and ends this one: with a failure, or with words and the usual end.
///
/// Time and repeated text stop no answer in which a call of a tool has begun: a call that was cut
/// off could be taken for a whole one. The next request is stopped instead.
pub struct GuardEvents<S> {
    /// `None` once over.
    events: Option<S>,
    /// What to say before anything else; when over, the rest.
    out: VecDeque<Result<Event, Failure>>,
    /// `None` for an answer that is the guard's own.
    watch: Option<Watch>,
    /// Boxed: most answers call no tools.
    gate: Option<Box<Gate>>,
    repeats: Repeats,
    stream: bool,
    /// The next block's number.
    next: u32,
    /// The block that has begun last, while it is open.
    open: Option<u32>,
    /// A call has begun.
    called: bool,
    /// Words or more have been handed on.
    delivered: bool,
    /// Words have.
    said: bool,
}

impl<S> GuardEvents<S> {
    #[inline]
    pub(crate) fn new(events: S, watch: Watch, stream: bool) -> Self {
        Self { events: Some(events), watch: Some(watch), ..Self::empty(stream) }
    }

    fn empty(stream: bool) -> Self {
        Self {
            events: None,
            out: VecDeque::new(),
            watch: None,
            gate: None,
            repeats: Repeats::default(),
            stream,
            next: 0,
            open: None,
            called: false,
            delivered: false,
            said: false,
        }
    }

    /// An answer that says nothing but that the task is stopped.
    pub(crate) fn last_words(stop: &Stop, stream: bool) -> Self {
        let mut answer = Self::empty(stream);
        let begin = [Delta::Start { id: None, model: None }];
        answer.end(begin.into_iter(), Some(Usage::new(0, 0)), stop);
        answer
    }

    /// Ends well, with `deltas` before the last words.
    fn end(&mut self, deltas: impl Iterator<Item = Delta>, usage: Option<Usage>, stop: &Stop) {
        self.events = None;
        self.out.clear();
        let mut all: Vec<Delta> = deltas.collect();
        let before = all.len();
        if let Some(index) = self.open.take() {
            all.push(Delta::BlockEnd { index });
        }
        let index = self.next;
        let gap = if self.said { "\n\n" } else { "" };
        all.push(Delta::Text { index, text: format!("{gap}{stop}") });
        all.push(Delta::BlockEnd { index });
        all.extend(usage.map(Delta::Usage));
        all.push(Delta::Stop(Ending::from(StopReason::EndTurn)));
        all.push(Delta::End);
        if !self.stream {
            self.out.push_back(Ok(Event::new(all)));
            return;
        }
        let rest = all.split_off(before);
        if !all.is_empty() {
            self.out.push_back(Ok(Event::new(all)));
        }
        self.out.extend(rest.into_iter().map(|delta| Ok(Event::new([delta]))));
    }

    /// Stops after the first `keep` deltas of `event`.
    fn stop(&mut self, mut event: Event, keep: usize, stop: &Stop) {
        let Some(watch) = &self.watch else { return };
        watch.stopped(stop);
        if watch.shared.c.policy.stop_as == StopAs::Failure {
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

/// The next block, the open one, and whether words have been handed on.
type Place = (u32, Option<u32>, bool);

/// Where an event stops the answer, and why.
type Found = Option<(usize, Stop)>;

impl<S: Events + Unpin> GuardEvents<S> {
    /// Reads an event.
    #[inline]
    fn read(&mut self, event: &Event) -> Found {
        let Some(watch) = &mut self.watch else { return None };
        let texts = || event.deltas.iter().filter(|delta| matches!(delta, Delta::Text { .. }));
        let is_whole = !self.said && event.is_end() && texts().count() == 1;
        for (at, delta) in event.deltas.iter().enumerate() {
            match delta {
                Delta::Text { index, text } => {
                    (self.next, self.open) = (self.next.max(index + 1), Some(*index));
                    self.said |= !text.is_empty();
                    let Some(most) = watch.shared.c.policy.rules.repeated_text else { continue };
                    // Of a whole answer the lengths of its sentences are usually enough.
                    if is_whole && !may_repeat(text, most) {
                        continue;
                    }
                    if let Some(count) = self.repeats.push(*index, text, most)
                        && !self.called
                    {
                        let rule = LoopRule::RepeatedText;
                        let cause = StopCause::Loop { rule, tool: "".into(), count };
                        return Some((at + 1, watch.stop(cause)));
                    }
                }
                Delta::ToolCall { index, name, .. } => {
                    if !watch.elsewhere {
                        let begin = || Box::new(Gate::new(watch.take_ledger()));
                        let gate = self.gate.get_or_insert_with(begin);
                        gate.call(&watch.shared.c, *index, name);
                        if let Some(stop) = &gate.stop
                            && gate.passed == 0
                        {
                            return Some((at, stop.clone()));
                        }
                    }
                    (self.next, self.open) = (self.next.max(index + 1), Some(*index));
                    self.called = true;
                }
                Delta::Arguments { index, json } => {
                    if let Some(gate) = &mut self.gate {
                        gate.arguments(*index, json);
                    }
                }
                Delta::Thinking { index, .. }
                | Delta::Signature { index, .. }
                | Delta::Redacted { index, .. }
                | Delta::Opaque { index, .. } => {
                    (self.next, self.open) = (self.next.max(index + 1), Some(*index));
                }
                Delta::BlockEnd { index } if self.open == Some(*index) => self.open = None,
                _ => {}
            }
        }
        None
    }

    /// Whether calls or the time have to be looked after.
    #[inline]
    fn may_hold_back(&self) -> bool {
        let timed = |watch: &Watch| watch.until.is_some();
        self.gate.is_some() || (!self.called && self.watch.as_ref().is_some_and(timed))
    }

    /// Takes in an event of which something may have to be left out; what is to be handed on, if
    /// anything. `found` was read in it, after `was`.
    fn take(
        &mut self,
        mut event: Event,
        found: Found,
        was: Place,
    ) -> Option<Result<Event, Failure>> {
        if let Some((keep, stop)) = found {
            self.stop(event, keep, &stop);
            return self.out.pop_front();
        }
        if !self.called
            && let Some(watch) = &mut self.watch
            && watch.until.is_some()
            && !event.is_end()
            && let Some(stop) = watch.late()
        {
            // What wraps the answer is kept, what it says in this event is not begun.
            let keep = event.deltas.iter().take_while(|delta| !delta.is_content()).count();
            (self.next, self.open, self.said) = was;
            self.stop(event, keep, &stop);
            return self.out.pop_front();
        }
        let Some(gate) = &mut self.gate else {
            self.delivered |= event.is_content();
            return Some(Ok(event));
        };
        if gate.holding {
            let end = event.is_end();
            gate.hold(event);
            if end {
                self.settle();
            }
            return self.out.pop_front();
        }
        if gate.refuses() {
            gate.rewrite(&mut event);
        }
        self.tell(event.is_end());
        self.delivered |= event.is_content();
        Some(Ok(event))
    }

    /// Tells of the calls that were not let through, once.
    fn tell(&mut self, end: bool) {
        if let (true, Some(gate), Some(watch)) = (end, &mut self.gate, &self.watch)
            && let Some(stop) = &gate.stop
            && !std::mem::replace(&mut gate.told, true)
        {
            watch.stopped(stop);
        }
    }

    /// The end has come while events were held back.
    fn settle(&mut self) {
        let (Some(gate), Some(watch)) = (&mut self.gate, &self.watch) else { return };
        let held = gate.settle(&watch.shared.c);
        if let Some(stop) = gate.stop.clone()
            && gate.passed == 0
            && watch.shared.c.policy.stop_as == StopAs::Failure
        {
            self.stop(Event::default(), 0, &stop);
            return;
        }
        for mut event in held {
            if gate.refuses() {
                gate.rewrite(&mut event);
            }
            self.delivered |= event.is_content();
            self.out.push_back(Ok(event));
        }
        self.tell(true);
    }

    /// The answer broke off, or ended without saying so.
    fn broke(&mut self, failure: Option<Failure>) {
        self.events = None;
        if let Some(gate) = &mut self.gate {
            for mut event in gate.release() {
                if gate.refuses() {
                    gate.rewrite(&mut event);
                }
                self.out.push_back(Ok(event));
            }
        }
        self.tell(true);
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
                    let was = (this.next, this.open, this.said);
                    let found = this.read(&event);
                    // Nearly every event passes here.
                    if found.is_none() && !this.may_hold_back() {
                        this.delivered |= event.is_content();
                        return Poll::Ready(Some(Ok(event)));
                    }
                    if let Some(item) = this.take(event, found, was) {
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
            .field("watch", &self.watch)
            .finish_non_exhaustive()
    }
}
