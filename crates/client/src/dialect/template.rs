//! Frames that say the next few words and are otherwise what the frame before was.
//!
//! Most frames of a stream are: identifiers, model and structure come with every token. Such a frame
//! is told by comparing its bytes, at a tenth of what reading it costs.

use std::ops::Range;

use bytes::Bytes;
use memchr::memmem;
use steadfast_chat::Delta;

use super::Deltas;
use crate::json::plain;

/// The longest frame remembered, in bytes: 1 KiB. Frames of a few words have 150 to 400.
const MOST: usize = 1_024;

/// A string of random length in many of OpenAI's chunks, which no dialect reads: it hides from who
/// watches the network how long the words are.
const PADDING: &[u8] = b"\"obfuscation\":\"";

/// A frame that was read, and what of it may differ in the next one without any difference to how
/// that is to be read.
///
/// It holds for the very next frame, and for the one behind that when the next one was like it:
/// whatever else is read may change what a frame means.
#[derive(Debug)]
pub(super) struct Template {
    /// Its bytes.
    frame: Vec<u8>,
    /// The inside of the string that is all it said.
    said: Range<usize>,
    /// What stands behind that and means nothing.
    padding: Range<usize>,
    padded_by: Padding,
    thinking: bool,
    /// The block its words belong to.
    index: u32,
    /// Nothing else has been read since.
    holds: bool,
}

/// What may stand where there is padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Padding {
    /// White space before the last brace, as Anthropic sends it.
    Spaces,
    /// The inside of a string.
    Words,
}

impl Template {
    /// Something else is read.
    pub(super) fn forget(&mut self) {
        self.holds = false;
    }

    /// Remembers `frame`, which has been read and said `deltas`. Its data stand at `data`, and were
    /// read by themselves; `said` is the inside of a string in them.
    pub(super) fn learn(
        known: &mut Option<Box<Self>>,
        frame: &Bytes,
        data: Range<usize>,
        said: Range<usize>,
        deltas: &Deltas,
    ) {
        let (index, thinking) = match &deltas[..] {
            [Delta::Text { index, .. }] => (*index, false),
            [Delta::Thinking { index, .. }] => (*index, true),
            _ => return,
        };
        // What ends in any other way might be continued.
        if frame.len() > MOST || !frame.ends_with(b"\n") || said.end >= data.end {
            return;
        }
        let behind = &frame[said.end..data.end];
        let (padding, padded_by) = match memmem::find(behind, PADDING) {
            Some(at) => {
                let from = said.end + at + PADDING.len();
                (from..from + plain(&frame[from..data.end], false), Padding::Words)
            }
            None => {
                let Some(brace) = memchr::memrchr(b'}', behind) else { return };
                let spaces = behind[..brace].iter().rev().take_while(|byte| **byte == b' ');
                let brace = said.end + brace;
                (brace - spaces.count()..brace, Padding::Spaces)
            }
        };
        let template = known.get_or_insert_with(|| {
            Box::new(Self {
                frame: Vec::new(),
                said: 0..0,
                padding: 0..0,
                padded_by,
                thinking,
                index,
                holds: false,
            })
        });
        let mut kept = std::mem::take(&mut template.frame);
        kept.clear();
        kept.extend_from_slice(frame);
        **template = Self { frame: kept, said, padding, padded_by, thinking, index, holds: true };
    }

    /// What the first frame of `input` says and how long it is, when it is like this one.
    #[inline]
    pub(super) fn read(&self, input: &[u8]) -> Option<(Delta, usize)> {
        if !self.holds {
            return None;
        }
        let rest = input.strip_prefix(self.frame.get(..self.said.start)?)?;
        let (said, rest) = words(rest)?;
        // Whether there is nothing in an empty piece is for the dialect to say.
        if said.is_empty() {
            return None;
        }
        let rest = rest.strip_prefix(self.frame.get(self.said.end..self.padding.start)?)?;
        let rest = match self.padded_by {
            Padding::Words => words(rest)?.1,
            Padding::Spaces => {
                let spaces = rest.iter().take_while(|byte| **byte == b' ').count();
                rest.get(spaces..)?
            }
        };
        let rest = rest.strip_prefix(self.frame.get(self.padding.end..)?)?;
        let (index, text) = (self.index, said.to_owned());
        let delta = match self.thinking {
            true => Delta::Thinking { index, text },
            false => Delta::Text { index, text },
        };
        Some((delta, input.len() - rest.len()))
    }
}

/// The inside of a JSON string without anything special in it, and what follows.
#[inline]
fn words(input: &[u8]) -> Option<(&str, &[u8])> {
    let (inside, rest) = input.split_at_checked(plain(input, false))?;
    Some((std::str::from_utf8(inside).ok()?, rest))
}
