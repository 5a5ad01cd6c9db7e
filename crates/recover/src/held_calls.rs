//! Tool calls that are held back until they are complete.

use std::collections::VecDeque;

use steadfast_chat::{Delta, Event};

use crate::Partial;

/// Holds back the events of tool calls that are not complete. When such a call is cut off or breaks, the
/// caller has nothing of it, and it can be made again.
#[derive(Debug, Default)]
pub(crate) struct HeldCalls {
    events: VecDeque<Event>,
    bytes: usize,
    limit: usize,
    /// Complete ones, too, until something has come behind them.
    until_followed: bool,
    /// How many calls had begun with the last event that is held back.
    calls: usize,
    /// A call was too large to be held back: the caller has its beginning.
    spilled: bool,
}

impl HeldCalls {
    /// Holds back at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Holds back complete calls, too, until something has come behind them: a stream that breaks there has shown
    /// nothing of the last call, and may be asked again.
    pub(crate) fn until_followed(limit: usize) -> Self {
        Self { until_followed: true, ..Self::new(limit) }
    }

    /// Whether there is a call of which nothing is to be delivered yet.
    pub(crate) fn waits(&self, partial: &Partial) -> bool {
        let calls = &partial.calls;
        if self.until_followed { calls.has_open() } else { calls.has_cut() }
    }

    /// Whether nothing is held back.
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether the caller has the beginning of a call that was too large.
    pub(crate) fn has_spilled(&self) -> bool {
        self.spilled
    }

    /// Holds back `event`, which the partial has seen, while a call is not complete. Otherwise returns it,
    /// to be delivered after what [was held](Self::release).
    pub(crate) fn hold(&mut self, event: Event, partial: &Partial) -> Option<Event> {
        // Once the model has stopped, a call that is not complete stays so.
        if self.spilled || partial.has_stopped() || !self.waits(partial) {
            return Some(event);
        }
        self.bytes = self.bytes.saturating_add(event.size());
        if self.bytes > self.limit {
            self.spilled = true;
            return Some(event);
        }
        self.events.push_back(event);
        self.calls = partial.calls.len();
        None
    }

    /// What was held back of calls that another one has followed since: so of several at once only the last is.
    pub(crate) fn release_followed(&mut self, partial: &Partial) -> VecDeque<Event> {
        match self.until_followed && partial.calls.are_followed(self.calls) {
            true => self.release(),
            false => VecDeque::new(),
        }
    }

    /// What was held back, which is to be delivered or dropped.
    pub(crate) fn release(&mut self) -> VecDeque<Event> {
        self.bytes = 0;
        std::mem::take(&mut self.events)
    }

    /// After a break: drops the calls that were held back, and delivers what else was held. Returns whether
    /// there were any. When another block has begun since, everything is delivered instead: what would be
    /// left could not be continued.
    pub(crate) fn drop_cut(&mut self, partial: &mut Partial, out: &mut VecDeque<Event>) -> bool {
        let mut held = self.release();
        if self.until_followed && !held.is_empty() {
            partial.calls.break_off();
        }
        let drops = !held.is_empty() && partial.ends_in_cut_calls();
        if drops {
            for event in &mut held {
                event.deltas_mut().retain(|delta| !of_cut_call(delta, partial));
            }
            held.retain(|event| !event.deltas.is_empty());
            partial.drop_cut_calls();
        }
        out.extend(held);
        drops
    }
}

/// Whether it belongs to a tool call whose arguments are not complete.
pub(crate) fn of_cut_call(delta: &Delta, partial: &Partial) -> bool {
    match delta {
        Delta::ToolCall { index, .. }
        | Delta::Arguments { index, .. }
        | Delta::Signature { index, .. }
        | Delta::BlockEnd { index } => partial.calls.is_cut(*index),
        _ => false,
    }
}

/// Whether it only keeps the connection alive. An event without deltas does not: its frame may be content.
pub(crate) fn is_ping(event: &Event) -> bool {
    !event.deltas.is_empty() && event.deltas.iter().all(|delta| matches!(delta, Delta::Ping))
}

#[cfg(test)]
mod tests {
    use steadfast_core::Usage;

    use super::*;
    use crate::ResumePoint;

    fn text(index: u32) -> Delta {
        Delta::Text { index, text: "hm".into() }
    }

    fn call(index: u32) -> Delta {
        Delta::ToolCall { index, id: "a".into(), name: "read".into() }
    }

    fn arguments(index: u32, json: &str) -> Delta {
        Delta::Arguments { index, json: json.into() }
    }

    /// What is delivered of `events` when the stream breaks after them, the resume point then, and whether
    /// calls were dropped.
    fn broken(events: Vec<Vec<Delta>>, limit: usize) -> (Vec<Delta>, ResumePoint, bool) {
        broken_with(HeldCalls::new(limit), events)
    }

    fn broken_with(
        mut held: HeldCalls,
        events: Vec<Vec<Delta>>,
    ) -> (Vec<Delta>, ResumePoint, bool) {
        let mut partial = Partial::new(1_000);
        let mut out = VecDeque::new();
        for event in events {
            let event = Event::new(event);
            partial.see(&event);
            out.extend(held.release_followed(&partial));
            if let Some(event) = held.hold(event, &partial) {
                out.extend(held.release());
                out.push_back(event);
            }
        }
        let dropped = held.drop_cut(&mut partial, &mut out);
        let delivered = out.into_iter().flat_map(|event| event.deltas).collect();
        (delivered, partial.resume_point(), dropped)
    }

    #[test]
    fn a_call_that_breaks_is_dropped_and_nothing_else() {
        let usage = || Delta::Usage(Usage::new(1, 1));
        let end = |index| Delta::BlockEnd { index };
        let cut = || arguments(1, "{\"a\":");
        for (events, delivered, point, dropped) in [
            (
                vec![vec![text(0)], vec![call(1)], vec![cut()], vec![usage()]],
                vec![text(0), usage()],
                ResumePoint::Text,
                true,
            ),
            (vec![vec![text(0), call(1)], vec![cut()]], vec![text(0)], ResumePoint::Text, true),
            (vec![vec![call(0)]], vec![], ResumePoint::Nothing, true),
            (
                vec![vec![text(0)], vec![call(1)], vec![cut()], vec![arguments(1, "1}")]],
                vec![text(0), call(1), cut(), arguments(1, "1}")],
                ResumePoint::AfterCall,
                false,
            ),
            // The first of two is complete: the turn is finished.
            (
                vec![vec![call(0)], vec![arguments(0, "{}"), end(0)], vec![call(1)], vec![cut()]],
                vec![call(0), arguments(0, "{}"), end(0)],
                ResumePoint::AfterCall,
                true,
            ),
            (vec![vec![call(0)], vec![call(1)], vec![cut()]], vec![], ResumePoint::Nothing, true),
            // Another block has begun.
            (
                vec![vec![call(0)], vec![text(1)]],
                vec![call(0), text(1)],
                ResumePoint::InCall,
                false,
            ),
        ] {
            let case = format!("{events:?}");
            assert_eq!(broken(events, 10_000), (delivered, point, dropped), "{case}");
        }
    }

    #[test]
    fn a_complete_call_is_certain_when_something_follows_it() {
        let end = |index| Delta::BlockEnd { index };
        let whole = |index| vec![vec![call(index)], vec![arguments(index, "{}"), end(index)]];
        let stop = || vec![Delta::Stop(steadfast_chat::StopReason::ToolUse.into())];
        for (events, delivered, point, dropped) in [
            ([vec![vec![text(0)]], whole(1)].concat(), 1, ResumePoint::Text, true),
            (whole(0), 0, ResumePoint::Nothing, true),
            ([whole(0), whole(1)].concat(), 3, ResumePoint::AfterCall, true),
            ([whole(0), vec![stop()]].concat(), 4, ResumePoint::Finished, false),
            ([whole(0), vec![vec![text(1)]]].concat(), 4, ResumePoint::AfterCall, false),
        ] {
            let case = format!("{events:?}");
            let broken = broken_with(HeldCalls::until_followed(10_000), events);
            assert_eq!((broken.0.len(), broken.1, broken.2), (delivered, point, dropped), "{case}");
        }
    }

    #[test]
    fn the_first_of_two_calls_does_not_wait_for_the_end_of_the_second() {
        let (mut held, mut partial) = (HeldCalls::until_followed(10_000), Partial::new(1_000));
        let mut shown = |deltas: Vec<Delta>| {
            let event = Event::new(deltas);
            partial.see(&event);
            let before = held.release_followed(&partial).len();
            before + usize::from(held.hold(event, &partial).is_some())
        };
        assert_eq!(shown(vec![call(0)]), 0);
        assert_eq!(shown(vec![arguments(0, "{}")]), 0, "its end may break off yet");
        assert_eq!(shown(vec![call(1)]), 2, "the first");
        assert_eq!(shown(vec![arguments(1, "{")]), 0);
    }

    #[test]
    fn a_call_larger_than_the_limit_is_delivered_as_it_comes() {
        let events = vec![vec![call(0)], vec![arguments(0, "{\"a\":")]];
        let (delivered, point, dropped) = broken(events, 0);
        assert_eq!((delivered.len(), point, dropped), (2, ResumePoint::InCall, false));
    }
}
