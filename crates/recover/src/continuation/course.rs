//! What becomes of each event of an answer that may be cut off.

use std::collections::VecDeque;

use steadfast_chat::{Delta, Event, Stop, StopReason};

use crate::Partial;

/// What becomes of one event. What was held back before it is in the queue.
#[derive(Debug)]
pub(crate) enum Next {
    /// The caller is given it.
    Give(Event),
    /// The caller is given the one that was held back, and then this one.
    Both(Event, Event),
    /// See the queue, or read on.
    More,
    /// The stream is over, and the answer was cut off.
    Cut,
}

/// Follows an answer, and holds back what must not reach the caller should it turn out to be cut off:
/// tool calls until they are whole, the end of a text block until something follows, and, when
/// asked to, all of it.
#[derive(Debug)]
pub(crate) struct Course {
    pub(crate) partial: Partial,
    /// All so far, while it is withheld.
    pub(crate) withheld: Option<Vec<Event>>,
    withheld_bytes: usize,
    /// Tool calls that are not whole.
    held: VecDeque<Event>,
    held_bytes: usize,
    /// A call was too large to be held back: the caller has the beginning of it.
    spilled: bool,
    /// The end of a text block.
    closing: Option<Event>,
    /// Why the model stopped when it was last cut off.
    pub(crate) stop: Option<Stop>,
    /// It was cut off; what is left is read for its end alone.
    draining: bool,
    /// Bytes of arguments of the tool calls that were cut off and dropped, when there are such.
    pub(crate) cut_bytes: Option<usize>,
    limit: usize,
}

impl Course {
    pub(crate) fn new(partial: Partial, limit: usize, withhold: bool) -> Self {
        Self {
            partial,
            withheld: withhold.then(Vec::new),
            withheld_bytes: 0,
            held: VecDeque::new(),
            held_bytes: 0,
            spilled: false,
            closing: None,
            stop: None,
            draining: false,
            cut_bytes: None,
            limit,
        }
    }

    /// The answer has ended, and was not cut off.
    pub(crate) fn is_over(&self) -> bool {
        self.partial.is_ended() && !self.draining
    }

    /// Whether `event` is the end of an answer that was not cut off, and nothing is held back: it
    /// need not even be looked at.
    pub(crate) fn needs_nothing(&self, event: &Event) -> bool {
        event.is_end()
            && !self.draining
            && self.held.is_empty()
            && self.closing.is_none()
            && self.withheld.as_ref().is_none_or(Vec::is_empty)
            && event.stop_reason() != Some(StopReason::MaxTokens)
    }

    /// Takes note of `event` when it is the next piece of an answer of which nothing is held back: it
    /// passes as it is. Nearly every event does.
    #[inline]
    pub(crate) fn passes(&mut self, event: &Event) -> bool {
        let [delta @ (Delta::Text { .. } | Delta::Thinking { .. })] = &event.deltas[..] else {
            return false;
        };
        let free = !self.draining
            && self.closing.is_none()
            && self.held.is_empty()
            && self.withheld.is_none()
            && !self.partial.has_cut_call();
        if free {
            self.partial.see_delta(delta);
        }
        free
    }

    /// Another stream goes on with the answer.
    pub(crate) fn next_piece(&mut self) {
        self.draining = false;
        self.held_bytes = 0;
    }

    /// What of the held back may still be given when the stream failed. A call that is not whole
    /// never is.
    pub(crate) fn failed(&mut self) -> Option<Event> {
        self.held.clear();
        self.closing.take().filter(|_| self.withheld.is_none())
    }

    /// An event that the partial has seen.
    pub(crate) fn take(&mut self, event: Event, out: &mut VecDeque<Event>) -> Next {
        if self.draining {
            return if event.is_end() { Next::Cut } else { Next::More };
        }
        let length = event.deltas.iter().find(|delta| is_length(delta));
        if let (Some(Delta::Stop(stop)), false) = (length, self.spilled) {
            if !self.partial.has_whole_call() && !self.partial.is_closed() {
                self.stop = Some(stop.clone());
                return self.cut(event, out);
            }
            // It is not gone on with. What was cut off of a call is nobody's all the same.
            if self.partial.has_cut_call() {
                return self.finish_turn(event, out);
            }
        }
        self.pass(event, out)
    }

    fn pass(&mut self, event: Event, out: &mut VecDeque<Event>) -> Next {
        // A frame that says nothing has its place all the same: Anthropic's calls begin with one.
        let pings = !event.deltas.is_empty()
            && event.deltas.iter().all(|delta| matches!(delta, Delta::Ping));
        if pings && self.withheld.is_none() && out.is_empty() {
            return Next::Give(event);
        }
        if let Some(closing) = self.closing.take() {
            // The usual case, without the queue.
            let passes = self.withheld.is_none() && out.is_empty() && !self.partial.has_cut_call();
            if passes && !self.partial.is_text_end(&event) {
                return Next::Both(closing, event);
            }
            self.emit(closing, out);
        }
        let stops = event.deltas.iter().any(|delta| matches!(delta, Delta::Stop(_) | Delta::End));
        if !stops && self.partial.has_cut_call() && !self.spilled {
            self.held_bytes += event.size();
            if self.held_bytes <= self.limit {
                self.held.push_back(event);
                return Next::More;
            }
            self.spilled = true;
        }
        while let Some(event) = self.held.pop_front() {
            self.emit(event, out);
        }
        if self.partial.is_text_end(&event) {
            self.closing = Some(event);
            return Next::More;
        }
        if event.is_end()
            && let Some(withheld) = self.withheld.take()
        {
            out.extend(withheld);
        }
        if self.withheld.is_none() && out.is_empty() {
            return Next::Give(event);
        }
        self.emit(event, out);
        Next::More
    }

    /// The answer is cut off with `event`, which has no whole call in it.
    fn cut(&mut self, event: Event, out: &mut VecDeque<Event>) -> Next {
        let ended = event.is_end();
        let in_call = self.partial.has_cut_call();
        self.cut_bytes = in_call.then(|| self.partial.cut_bytes());
        if let Some(closing) = self.closing.take()
            && in_call
        {
            self.emit(closing, out);
        }
        while let Some(event) = self.held.pop_front() {
            self.emit_rest(event, out);
        }
        self.emit_rest(event, out);
        self.partial.drop_cut_calls();
        self.partial.reopen_text();
        self.draining = true;
        if ended { Next::Cut } else { Next::More }
    }

    /// Drops the calls that were cut off. Beside whole ones, the turn is a complete one.
    fn finish_turn(&mut self, mut event: Event, out: &mut VecDeque<Event>) -> Next {
        if let Some(closing) = self.closing.take() {
            self.emit(closing, out);
        }
        while let Some(mut event) = self.held.pop_front() {
            event.deltas_mut().retain(|delta| !of_cut_call(delta, &self.partial));
            if !event.deltas.is_empty() {
                self.emit(event, out);
            }
        }
        event.deltas_mut().retain(|delta| !of_cut_call(delta, &self.partial));
        let whole = self.partial.has_whole_call();
        for delta in event.deltas_mut() {
            if let Delta::Stop(stop) = delta
                && whole
            {
                *stop = StopReason::ToolUse.into();
            }
        }
        self.partial.drop_cut_calls();
        self.pass(event, out)
    }

    /// What of `event` may be given before the answer goes on: nothing that ends it, nothing of a
    /// call that was cut off.
    fn emit_rest(&mut self, mut event: Event, out: &mut VecDeque<Event>) {
        let ends_text = |delta: &Delta| {
            let Delta::BlockEnd { .. } = delta else { return false };
            self.partial.is_text_end(&Event::new([delta.clone()]))
        };
        let ends = |delta: &Delta| {
            matches!(delta, Delta::Stop(_) | Delta::End | Delta::Usage(_)) || ends_text(delta)
        };
        event.deltas_mut().retain(|delta| !ends(delta) && !of_cut_call(delta, &self.partial));
        if !event.deltas.is_empty() {
            self.emit(event, out);
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
        | Delta::BlockEnd { index } => partial.is_cut_call(*index),
        _ => false,
    }
}
