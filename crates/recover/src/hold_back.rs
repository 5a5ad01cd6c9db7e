//! Holds back parts of an answer until it is known whether it was cut off.

use std::collections::VecDeque;

use steadfast_chat::{Delta, Event, Stop, StopReason};

use crate::{
    Partial,
    held_calls::{HeldCalls, is_ping, of_cut_call},
    policy::EventStep,
};

/// Holds back what must not reach the caller if the answer is cut off: tool calls until they are
/// complete, the end of a text block until something follows, and, when configured, all of it.
#[derive(Debug, Default)]
pub(crate) struct HoldBack {
    /// All events so far, while the whole answer is withheld.
    pub(crate) withheld: Option<Vec<Event>>,
    withheld_bytes: usize,
    /// Tool calls that are not complete.
    calls: HeldCalls,
    /// The end of a text block.
    text_end: Option<Event>,
    /// Why the model stopped when it was last cut off.
    pub(crate) stop: Option<Stop>,
    /// It was cut off; the rest is only read to its end.
    draining: bool,
    /// Bytes of arguments of the tool calls that were cut off and dropped, if any.
    pub(crate) cut_bytes: Option<usize>,
    limit: usize,
}

impl HoldBack {
    pub(crate) fn new(limit: usize, withhold: bool) -> Self {
        let calls = HeldCalls::new(limit);
        Self { withheld: withhold.then(Vec::new), calls, limit, ..Self::default() }
    }

    /// Whether nothing is held back.
    pub(crate) fn is_empty(&self) -> bool {
        !self.draining
            && self.calls.is_empty()
            && self.text_end.is_none()
            && self.withheld.as_ref().is_none_or(Vec::is_empty)
    }

    /// Whether `event`, which the partial has seen, is text or thinking and nothing is held back.
    #[inline]
    pub(crate) fn passes(&self, event: &Event, partial: &Partial) -> bool {
        matches!(&event.deltas[..], [Delta::Text { .. } | Delta::Thinking { .. }])
            && self.is_empty()
            && self.withheld.is_none()
            && !partial.calls.has_cut()
    }

    /// Another stream continues the answer.
    pub(crate) fn next_piece(&mut self) {
        self.draining = false;
    }

    /// What may be delivered of the held back events when the stream failed; not a call that is not
    /// complete.
    pub(crate) fn release(&mut self) -> Option<Event> {
        self.calls.release();
        self.text_end.take().filter(|_| self.withheld.is_none())
    }

    /// An event that the partial has seen.
    pub(crate) fn take(
        &mut self,
        event: Event,
        partial: &mut Partial,
        out: &mut VecDeque<Event>,
    ) -> EventStep {
        if self.draining {
            return if event.is_end() { EventStep::Cut } else { EventStep::More };
        }
        let length = event.deltas.iter().find(|delta| is_length(delta));
        if let (Some(Delta::Stop(stop)), false) = (length, self.calls.has_spilled()) {
            if !partial.calls.has_whole() && !partial.is_closed() {
                self.stop = Some(stop.clone());
                return self.cut(event, partial, out);
            }
            // It is not continued, but the calls that were cut off are dropped too.
            if partial.calls.has_cut() {
                return self.finish_turn(event, partial, out);
            }
        }
        self.pass(event, partial, out)
    }

    fn pass(&mut self, event: Event, partial: &Partial, out: &mut VecDeque<Event>) -> EventStep {
        if is_ping(&event) && self.withheld.is_none() && out.is_empty() {
            return EventStep::Give(event, None);
        }
        if let Some(text_end) = self.text_end.take() {
            // The usual case, without the queue, which would have to be allocated.
            let passes = self.withheld.is_none() && out.is_empty() && !partial.calls.has_cut();
            if passes && !partial.is_text_end(&event) {
                return EventStep::Give(text_end, Some(event));
            }
            self.emit(text_end, out);
        }
        let Some(event) = self.calls.hold(event, partial) else { return EventStep::More };
        for event in self.calls.release() {
            self.emit(event, out);
        }
        if partial.is_text_end(&event) {
            self.text_end = Some(event);
            return EventStep::More;
        }
        if event.is_end()
            && let Some(withheld) = self.withheld.take()
        {
            out.extend(withheld);
        }
        if self.withheld.is_none() && out.is_empty() {
            return EventStep::Give(event, None);
        }
        self.emit(event, out);
        EventStep::More
    }

    /// The answer is cut off with `event`, and has no complete call.
    fn cut(&mut self, event: Event, partial: &mut Partial, out: &mut VecDeque<Event>) -> EventStep {
        let ended = event.is_end();
        let in_call = partial.calls.has_cut();
        self.cut_bytes = in_call.then(|| partial.calls.cut_bytes());
        if let Some(text_end) = self.text_end.take()
            && in_call
        {
            self.emit(text_end, out);
        }
        // Neither the end of the answer nor a call that was cut off is delivered.
        let ends = |delta: &Delta| match delta {
            Delta::Stop(_) | Delta::End | Delta::Usage(_) => true,
            Delta::BlockEnd { index } => partial.ends_text(*index),
            _ => false,
        };
        self.emit_all(event, |delta| !ends(delta) && !of_cut_call(delta, partial), out);
        partial.drop_cut_calls();
        partial.reopen_text();
        self.draining = true;
        if ended { EventStep::Cut } else { EventStep::More }
    }

    /// Drops the calls that were cut off. With a complete call, the turn is complete.
    fn finish_turn(
        &mut self,
        mut event: Event,
        partial: &mut Partial,
        out: &mut VecDeque<Event>,
    ) -> EventStep {
        if let Some(text_end) = self.text_end.take() {
            self.emit(text_end, out);
        }
        event.deltas_mut().retain(|delta| !of_cut_call(delta, partial));
        let whole = partial.calls.has_whole();
        for delta in event.deltas_mut() {
            if let Delta::Stop(stop) = delta
                && whole
            {
                *stop = StopReason::ToolUse.into();
            }
        }
        self.emit_all(Event::default(), |delta| !of_cut_call(delta, partial), out);
        partial.drop_cut_calls();
        self.pass(event, partial, out)
    }

    /// Delivers what is `kept` of the held back calls and of `last`.
    fn emit_all(&mut self, last: Event, kept: impl Fn(&Delta) -> bool, out: &mut VecDeque<Event>) {
        for mut event in self.calls.release().into_iter().chain([last]) {
            event.deltas_mut().retain(|delta| kept(delta));
            if !event.deltas.is_empty() {
                self.emit(event, out);
            }
        }
    }

    fn emit(&mut self, event: Event, out: &mut VecDeque<Event>) {
        let Some(withheld) = &mut self.withheld else {
            out.push_back(event);
            return;
        };
        self.withheld_bytes += event.size();
        withheld.push(event);
        if self.withheld_bytes > self.limit {
            out.extend(self.withheld.take().into_iter().flatten());
        }
    }
}

/// Whether it reports that the output limit was reached.
fn is_length(delta: &Delta) -> bool {
    matches!(delta, Delta::Stop(stop) if stop.reason == StopReason::MaxTokens)
}
