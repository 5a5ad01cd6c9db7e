//! Joins another stream's events to what was delivered to the caller.

use smallvec::SmallVec;
use steadfast_chat::{Delta, Event};
use steadfast_core::Usage;

use crate::{
    overlap::{Overlap, OverlapFound},
    partial::Partial,
};

/// Joins the events of another stream to what was delivered: the overlap is found and cut, blocks are
/// renumbered, a second start is left out, usage is added up.
#[derive(Debug)]
pub struct Join {
    /// Until the overlap is found.
    overlap: Option<Overlap>,
    /// Text without an overlap is kept, instead of an error.
    lenient: bool,
    /// A block of the stream began.
    began: bool,
    /// The stream's blocks and the caller's numbers of them; `None` for one that is left out.
    blocks: SmallVec<[(u32, Option<u32>); 4]>,
    /// What the streams before this one used.
    base: Usage,
    /// The caller has not received a start yet.
    fresh: bool,
    /// The stream is in another dialect than the answer began in: content that only its own dialect can
    /// read is left out.
    foreign: bool,
    /// The delivered text is complete, and a tool call was to follow it.
    before_call: bool,
}

/// The stream does not continue what was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoOverlap;

impl Join {
    /// Joins a stream to `partial`. Without an `overlap` all of the stream is new.
    pub(crate) fn new(
        partial: &mut Partial,
        overlap: Option<Overlap>,
        lenient: bool,
        base: Usage,
    ) -> Self {
        partial.next_piece();
        Self {
            overlap,
            lenient,
            began: false,
            blocks: SmallVec::new(),
            base,
            fresh: false,
            foreign: false,
            before_call: false,
        }
    }

    /// The answer broke in a tool call of which nothing was delivered. The text before it is complete, so
    /// the call may follow without a repetition of the text.
    pub(crate) fn before_call(mut self, before_call: bool) -> Self {
        self.before_call = before_call;
        self
    }

    /// The stream is in another dialect than the answer began in.
    pub(crate) fn foreign(mut self, foreign: bool) -> Self {
        self.foreign = foreign;
        self
    }

    /// For an answer of which nothing was delivered: only the usage of earlier streams is added.
    pub(crate) fn fresh(partial: &mut Partial, base: Usage) -> Self {
        let mut join = Self::new(partial, None, true, base);
        join.fresh = true;
        join
    }

    /// Whether the overlap is not found yet.
    pub(crate) fn is_open(&self) -> bool {
        self.overlap.is_some()
    }

    /// Whether it may still fail, without an overlap.
    pub(crate) fn may_fail(&self) -> bool {
        self.is_open() && !self.lenient
    }

    /// What is delivered of `event`, if anything; it is recorded in `partial`.
    pub(crate) fn take(
        &mut self,
        event: Event,
        partial: &mut Partial,
    ) -> Result<Option<Event>, NoOverlap> {
        let mut out = Out { event: Event::default(), partial };
        for delta in event.deltas {
            self.take_delta(delta, &mut out)?;
        }
        Ok((!out.event.deltas.is_empty()).then_some(out.event))
    }

    fn take_delta(&mut self, mut delta: Delta, out: &mut Out<'_>) -> Result<(), NoOverlap> {
        use Delta::{
            Arguments, BlockEnd, End, Opaque, Redacted, Signature, Start, Stop, Text, Thinking,
            ToolCall,
        };
        if matches!(delta, ToolCall { .. } | Opaque { .. } | Stop(_) | End) {
            if self.before_call && matches!(delta, ToolCall { .. }) {
                self.overlap = self.overlap.take().filter(|overlap| !overlap.is_unread());
            }
            self.finish(out)?;
        }
        if let Stop(stop) = &mut delta
            && self.foreign
        {
            // A value of another dialect's.
            stop.word = None;
        }
        let (new, index) = match &mut delta {
            Start { .. } if !self.fresh => return Ok(()),
            Signature { .. } | Redacted { .. } if self.foreign => return Ok(()),
            Text { index, text } => match self.overlap.as_mut().map(|overlap| overlap.push(text)) {
                Some(OverlapFound::NotYet) => return Ok(()),
                Some(found) => return self.found(found, Some(*index), out),
                None => (Some(self.index_of(*index, true, out)), index),
            },
            Thinking { index, .. } | Redacted { index, .. } => (self.thought(*index, out), index),
            ToolCall { index, .. } | Opaque { index, .. } => {
                (Some(self.index_of(*index, false, out)), index)
            }
            Signature { index, .. } | Arguments { index, .. } | BlockEnd { index } => {
                (self.known(*index), index)
            }
            Delta::Usage(usage) => {
                // Usage within one stream is cumulative: that of earlier streams is added.
                out.partial.see_delta(&Delta::Usage(*usage));
                out.event.deltas.push(Delta::Usage(self.base.plus(&out.partial.usage)));
                return Ok(());
            }
            _ => {
                out.push(delta);
                return Ok(());
            }
        };
        if let Some(new) = new {
            *index = new;
            out.push(delta);
        }
        Ok(())
    }

    /// No more text can come for the overlap.
    fn finish(&mut self, out: &mut Out<'_>) -> Result<(), NoOverlap> {
        match self.overlap.as_mut().map(Overlap::finish) {
            None => Ok(()),
            Some(found) => self.found(found, None, out),
        }
    }

    fn found(
        &mut self,
        found: OverlapFound,
        block: Option<u32>,
        out: &mut Out<'_>,
    ) -> Result<(), NoOverlap> {
        let text = match found {
            OverlapFound::Cut(new) => new,
            OverlapFound::Nothing(held) if self.lenient => held,
            OverlapFound::Nothing(_) | OverlapFound::NotYet => return Err(NoOverlap),
        };
        self.overlap = None;
        if text.is_empty() {
            return Ok(());
        }
        let index = match block {
            Some(block) => self.index_of(block, true, out),
            None => self.begin(true, out),
        };
        out.push(Delta::Text { index, text });
        Ok(())
    }

    /// The caller's number of a block of thinking. Thinking before the overlap is about how to continue,
    /// and left out.
    fn thought(&mut self, block: u32, out: &mut Out<'_>) -> Option<u32> {
        if self.overlap.is_some() && !self.blocks.iter().any(|(inner, _)| *inner == block) {
            self.blocks.push((block, None));
        }
        match self.blocks.iter().find(|(inner, _)| *inner == block) {
            Some((_, outer)) => *outer,
            None => Some(self.index_of(block, false, out)),
        }
    }

    /// The caller's number of `block`, if it has one.
    fn known(&self, block: u32) -> Option<u32> {
        self.blocks.iter().find(|(inner, _)| *inner == block).and_then(|(_, outer)| *outer)
    }

    /// The caller's number of `block`, which begins if it has none.
    fn index_of(&mut self, block: u32, is_text: bool, out: &mut Out<'_>) -> u32 {
        if let Some(index) = self.known(block) {
            return index;
        }
        let index = self.begin(is_text, out);
        self.blocks.push((block, Some(index)));
        index
    }

    /// The caller's number of a new block. The first one ends an open block of thinking, and continues an
    /// open block of text if it is text.
    fn begin(&mut self, is_text: bool, out: &mut Out<'_>) -> u32 {
        let first = !std::mem::replace(&mut self.began, true);
        if let (true, Some(index)) = (first, out.partial.open_thinking) {
            out.push(Delta::BlockEnd { index });
        }
        match out.partial.open_text {
            Some(index) if first && is_text => index,
            _ => out.partial.next,
        }
    }
}

/// The event to deliver, and the record of what was delivered.
struct Out<'a> {
    event: Event,
    partial: &'a mut Partial,
}

impl Out<'_> {
    fn push(&mut self, delta: Delta) {
        self.partial.see_delta(&delta);
        self.event.deltas.push(delta);
    }
}

#[cfg(test)]
mod tests {
    use steadfast_chat::StopReason;

    use super::*;
    use crate::OverlapPolicy;

    fn text(index: u32, text: &str) -> Delta {
        Delta::Text { index, text: text.into() }
    }

    const SHOWN: &str = "hello out there, whoever";

    /// What is delivered of `events` after the text of `SHOWN`, in block 1.
    fn fit(events: Vec<Delta>) -> Result<Vec<Delta>, NoOverlap> {
        let mut partial = Partial::new(1_000);
        partial.see_delta(&Delta::Thinking { index: 0, text: "hm".into() });
        partial.see_delta(&text(1, SHOWN));
        let overlap = Overlap::new(partial.text(), OverlapPolicy::default());
        let mut join = Join::new(&mut partial, Some(overlap), false, Usage::new(10, 6));
        let mut out = Vec::new();
        for delta in events {
            out.extend(
                join.take(Event::new([delta]), &mut partial)?
                    .into_iter()
                    .flat_map(|event| event.deltas),
            );
        }
        Ok(out)
    }

    #[test]
    fn the_overlap_is_cut_and_blocks_are_renumbered() {
        let mut usage = Usage::default();
        usage.output = Some(9);
        let out = fit(vec![
            Delta::Start { id: Some("other".into()), model: None },
            Delta::Usage(Usage::new(20, 1)),
            Delta::Thinking { index: 0, text: "how was it".into() },
            Delta::Signature { index: 0, signature: "s".into() },
            Delta::BlockEnd { index: 0 },
            text(1, "out there, who"),
            Delta::Ping,
            text(1, "ever you"),
            text(1, " are"),
            Delta::BlockEnd { index: 1 },
            Delta::ToolCall { index: 2, id: "a".into(), name: "read".into() },
            Delta::Arguments { index: 2, json: "{}".into() },
            Delta::Usage(usage),
            Delta::Stop(StopReason::ToolUse.into()),
            Delta::End,
        ]);
        let mut after = vec![
            Delta::Usage(Usage::new(30, 7)),
            Delta::Ping,
            text(1, " you"),
            text(1, " are"),
            Delta::BlockEnd { index: 1 },
            Delta::ToolCall { index: 2, id: "a".into(), name: "read".into() },
            Delta::Arguments { index: 2, json: "{}".into() },
            Delta::Usage(Usage::new(30, 15)),
            Delta::Stop(StopReason::ToolUse.into()),
            Delta::End,
        ];
        assert_eq!(out.unwrap(), after);
        // The same when there is only the repetition before the call.
        let out = fit(vec![
            text(4, SHOWN),
            Delta::BlockEnd { index: 4 },
            Delta::ToolCall { index: 7, id: "a".into(), name: "read".into() },
        ]);
        assert_eq!(out.unwrap(), [after.remove(5)]);
    }

    #[test]
    fn a_missing_overlap_is_known_at_any_kind_of_end() {
        for end in [
            Delta::ToolCall { index: 2, id: "a".into(), name: "read".into() },
            Delta::Stop(StopReason::EndTurn.into()),
            Delta::End,
        ] {
            assert_eq!(fit(vec![text(0, "out"), end.clone()]), Err(NoOverlap));
            assert_eq!(fit(vec![end]), Err(NoOverlap));
        }
        assert_eq!(
            fit(vec![text(0, "Sorry about that! Where was I? Hello to everybody who listens.")]),
            Err(NoOverlap)
        );
    }

    #[test]
    fn thinking_that_begins_again_is_a_new_block() {
        let mut partial = Partial::new(1_000);
        partial.see_delta(&Delta::Thinking { index: 0, text: "hm".into() });
        let mut join = Join::new(&mut partial, None, false, Usage::default());
        let thought = |index| Delta::Thinking { index, text: "well".into() };
        let event = join.take(Event::new([thought(0), text(1, "yes")]), &mut partial).unwrap();
        let deltas = event.unwrap().deltas;
        assert_eq!(deltas[..], [Delta::BlockEnd { index: 0 }, thought(1), text(2, "yes")]);
    }
}
