//! What of an answer is held back until it is known whether it was cut off.

use std::collections::VecDeque;

use steadfast_chat::{Delta, Event, Stop, StopReason};

use crate::{Partial, policy::Step};

/// Holds back what must not reach the caller should the answer turn out to be cut off: tool calls until
/// they are whole, the end of a text block until something follows, and, when asked to, all of it.
#[derive(Debug, Default)]
pub(crate) struct HoldBack {
    /// All so far, while it is withheld.
    pub(crate) withheld: Option<Vec<Event>>,
    withheld_bytes: usize,
    /// Tool calls that are not whole.
    held: VecDeque<Event>,
    held_bytes: usize,
    /// A call was too large to be held back: the caller has the beginning of it.
    spilled: bool,
    /// The end of a text block.
    text_end: Option<Event>,
    /// Why the model stopped when it was last cut off.
    pub(crate) stop: Option<Stop>,
    /// It was cut off; what is left is read for its end alone.
    draining: bool,
    /// Bytes of arguments of the tool calls that were cut off and dropped, when there are such.
    pub(crate) cut_bytes: Option<usize>,
    limit: usize,
}

impl HoldBack {
    pub(crate) fn new(limit: usize, withhold: bool) -> Self {
        Self { withheld: withhold.then(Vec::new), limit, ..Self::default() }
    }

    /// Whether nothing is held back.
    pub(crate) fn is_empty(&self) -> bool {
        !self.draining
            && self.held.is_empty()
            && self.text_end.is_none()
            && self.withheld.as_ref().is_none_or(Vec::is_empty)
    }

    /// Whether `event`, which the partial has seen, is text behind which nothing is held back.
    #[inline]
    pub(crate) fn passes(&self, event: &Event, partial: &Partial) -> bool {
        matches!(&event.deltas[..], [Delta::Text { .. } | Delta::Thinking { .. }])
            && self.is_empty()
            && self.withheld.is_none()
            && !partial.calls.has_cut()
    }

    /// Another stream goes on with the answer.
    pub(crate) fn next_piece(&mut self) {
        self.draining = false;
        self.held_bytes = 0;
    }

    /// What of the held back may still be given when the stream failed. A call that is not whole
    /// never is.
    pub(crate) fn release(&mut self) -> Option<Event> {
        self.held.clear();
        self.text_end.take().filter(|_| self.withheld.is_none())
    }

    /// An event that the partial has seen.
    pub(crate) fn take(
        &mut self,
        event: Event,
        partial: &mut Partial,
        out: &mut VecDeque<Event>,
    ) -> Step {
        if self.draining {
            return if event.is_end() { Step::Cut } else { Step::More };
        }
        let length = event.deltas.iter().find(|delta| is_length(delta));
        if let (Some(Delta::Stop(stop)), false) = (length, self.spilled) {
            if !partial.calls.has_whole() && !partial.is_closed() {
                self.stop = Some(stop.clone());
                return self.cut(event, partial, out);
            }
            // It is not gone on with. What was cut off of a call is nobody's all the same.
            if partial.calls.has_cut() {
                return self.finish_turn(event, partial, out);
            }
        }
        self.pass(event, partial, out)
    }

    fn pass(&mut self, event: Event, partial: &Partial, out: &mut VecDeque<Event>) -> Step {
        // A frame that says nothing has to be passed on all the same: Anthropic's calls begin with one.
        let pings = !event.deltas.is_empty()
            && event.deltas.iter().all(|delta| matches!(delta, Delta::Ping));
        if pings && self.withheld.is_none() && out.is_empty() {
            return Step::Give(event, None);
        }
        if let Some(text_end) = self.text_end.take() {
            // The usual case, without the queue, which would have to be allocated.
            let passes = self.withheld.is_none() && out.is_empty() && !partial.calls.has_cut();
            if passes && !partial.is_text_end(&event) {
                return Step::Give(text_end, Some(event));
            }
            self.emit(text_end, out);
        }
        let stops = event.deltas.iter().any(|delta| matches!(delta, Delta::Stop(_) | Delta::End));
        if !stops && partial.calls.has_cut() && !self.spilled {
            self.held_bytes += event.size();
            if self.held_bytes <= self.limit {
                self.held.push_back(event);
                return Step::More;
            }
            self.spilled = true;
        }
        while let Some(event) = self.held.pop_front() {
            self.emit(event, out);
        }
        if partial.is_text_end(&event) {
            self.text_end = Some(event);
            return Step::More;
        }
        if event.is_end()
            && let Some(withheld) = self.withheld.take()
        {
            out.extend(withheld);
        }
        if self.withheld.is_none() && out.is_empty() {
            return Step::Give(event, None);
        }
        self.emit(event, out);
        Step::More
    }

    /// The answer is cut off with `event`, which has no whole call in it.
    fn cut(&mut self, event: Event, partial: &mut Partial, out: &mut VecDeque<Event>) -> Step {
        let ended = event.is_end();
        let in_call = partial.calls.has_cut();
        self.cut_bytes = in_call.then(|| partial.calls.cut_bytes());
        if let Some(text_end) = self.text_end.take()
            && in_call
        {
            self.emit(text_end, out);
        }
        // Nothing that ends the answer is given, and nothing of a call that was cut off.
        let ends = |delta: &Delta| match delta {
            Delta::Stop(_) | Delta::End | Delta::Usage(_) => true,
            Delta::BlockEnd { index } => partial.ends_text(*index),
            _ => false,
        };
        self.emit_all(event, |delta| !ends(delta) && !of_cut_call(delta, partial), out);
        partial.drop_cut_calls();
        partial.reopen_text();
        self.draining = true;
        if ended { Step::Cut } else { Step::More }
    }

    /// Drops the calls that were cut off. Beside whole ones, the turn is a complete one.
    fn finish_turn(
        &mut self,
        mut event: Event,
        partial: &mut Partial,
        out: &mut VecDeque<Event>,
    ) -> Step {
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

    /// Gives out what is `kept` of the held back calls and of `last`.
    fn emit_all(&mut self, last: Event, kept: impl Fn(&Delta) -> bool, out: &mut VecDeque<Event>) {
        for mut event in std::mem::take(&mut self.held).into_iter().chain([last]) {
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

/// Whether it says that the output limit was reached.
fn is_length(delta: &Delta) -> bool {
    matches!(delta, Delta::Stop(stop) if stop.reason == StopReason::MaxTokens)
}

/// Whether it is about a tool call whose arguments are not whole.
fn of_cut_call(delta: &Delta, partial: &Partial) -> bool {
    match delta {
        Delta::ToolCall { index, .. }
        | Delta::Arguments { index, .. }
        | Delta::Signature { index, .. }
        | Delta::BlockEnd { index } => partial.calls.is_cut(*index),
        _ => false,
    }
}
