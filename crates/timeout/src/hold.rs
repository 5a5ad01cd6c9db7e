//! The beginning of an answer, held back until it has shown to be fast enough.

use std::collections::VecDeque;

use crate::{Floor, clocks::Clocks};

/// The most that is held back, in bytes. What a floor asks of a window is a few hundred
/// characters; frames around them make that a few kilobytes.
const MOST_HELD: usize = 64 * 1024;

/// Holds back pieces from the first content on until they bring what the floor asks of a window.
#[derive(Debug)]
pub(crate) struct Hold<T> {
    floor: Floor,
    phase: Phase,
    pieces: VecDeque<T>,
    bytes: usize,
    chars: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No content yet: what comes is passed on.
    Waiting,
    Holding,
    /// Fast enough, or over.
    Released,
}

/// What one piece is, in the eyes of the floor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Piece {
    /// It has content.
    pub(crate) content: bool,
    /// How much.
    pub(crate) chars: usize,
    /// How much memory it takes.
    pub(crate) bytes: usize,
    /// The answer is complete with it.
    pub(crate) end: bool,
}

impl<T> Hold<T> {
    pub(crate) fn new(floor: Floor) -> Self {
        Self { floor, phase: Phase::Waiting, pieces: VecDeque::new(), bytes: 0, chars: 0 }
    }

    /// Takes a piece in, or gives it back to be passed on.
    pub(crate) fn push(&mut self, piece: T, about: Piece, clocks: &mut Clocks) -> Option<T> {
        if self.phase == Phase::Waiting {
            if !about.content {
                return Some(piece);
            }
            self.phase = Phase::Holding;
            clocks.open_window(&self.floor);
        }
        self.pieces.push_back(piece);
        self.bytes = self.bytes.saturating_add(about.bytes);
        self.chars = self.chars.saturating_add(about.chars as u64);
        #[expect(clippy::cast_precision_loss, reason = "a rate is no exact number")]
        let enough =
            self.chars as f64 >= self.floor.min_chars_per_s * self.floor.window.as_secs_f64();
        if enough || about.end || self.bytes > MOST_HELD {
            self.release(clocks);
        }
        None
    }

    /// Nothing is held back from now on.
    pub(crate) fn release(&mut self, clocks: &mut Clocks) {
        self.phase = Phase::Released;
        clocks.close_window();
    }

    /// The next piece that may be passed on.
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.phase == Phase::Released { self.pieces.pop_front() } else { None }
    }

    /// Nothing is held back, and nothing will be.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Released && self.pieces.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether what came since the first content is held back still.
    pub(crate) fn is_holding(&self) -> bool {
        self.phase == Phase::Holding
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter()
    }
}
