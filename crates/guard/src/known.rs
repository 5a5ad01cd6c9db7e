//! What a task has counted already: its conversations are sent again and again.

use std::collections::HashMap;

use foldhash::fast::RandomState;

/// What an answer in a history counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// It is new: it is counted.
    New,
    /// It was counted before: only loops are detected in it.
    Again,
    /// It was there when an operator extended the task: not even that.
    Past,
}

/// Answers that are remembered of one task: a few hundred kilobytes. Further ones are not counted, since
/// they would be counted again with each request.
const MAX_ANSWERS: usize = 8_192;

/// The answers that a task has counted. One that is repeated in a conversation is counted as often as it
/// is there.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownAnswers {
    known: HashMap<u64, Known, RandomState>,
    /// The number of histories read so far.
    reading: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// How often it was counted.
    times: u32,
    /// How often when an operator last extended the task.
    past: u32,
    /// How often it was in the history that was the `reading`th.
    seen: u32,
    reading: u32,
}

impl KnownAnswers {
    /// A history will be read, from its beginning.
    pub(crate) fn begin(&mut self) {
        self.reading = self.reading.wrapping_add(1);
    }

    /// Reads an answer.
    pub(crate) fn read(&mut self, answer: u64) -> Counting {
        let full = self.known.len() >= MAX_ANSWERS;
        let known = match self.known.get_mut(&answer) {
            Some(known) => known,
            None if full => return Counting::Again,
            None => self.known.entry(answer).or_default(),
        };
        if known.reading != self.reading {
            (known.reading, known.seen) = (self.reading, 0);
        }
        known.seen = known.seen.saturating_add(1);
        if known.seen > known.times {
            known.times = known.seen;
            Counting::New
        } else if known.seen > known.past {
            Counting::Again
        } else {
            Counting::Past
        }
    }

    /// An operator extends the task.
    pub(crate) fn extend(&mut self) {
        for known in self.known.values_mut() {
            known.past = known.times;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Counting::*, *};

    fn read(known: &mut KnownAnswers, answers: &[u64]) -> Vec<Counting> {
        known.begin();
        answers.iter().map(|answer| known.read(*answer)).collect()
    }

    #[test]
    fn each_answer_counts_once() {
        let mut known = KnownAnswers::default();
        assert_eq!(read(&mut known, &[1, 2]), [New, New]);
        assert_eq!(read(&mut known, &[1, 2, 3]), [Again, Again, New]);
        // Of another conversation.
        assert_eq!(read(&mut known, &[7]), [New]);
        // The first of them was left out meanwhile, and one is there three times.
        assert_eq!(read(&mut known, &[2, 3, 3, 3]), [Again, Again, New, New]);
        known.extend();
        assert_eq!(read(&mut known, &[2, 3, 3, 3, 3, 4]), [Past, Past, Past, Past, New, New]);
        assert_eq!(read(&mut known, &[3, 3, 3, 3, 4]), [Past, Past, Past, Again, Again]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut known = KnownAnswers::default();
        let all: Vec<_> = (0..2 * MAX_ANSWERS as u64).collect();
        for _ in 0..3 {
            read(&mut known, &all);
        }
        assert_eq!(known.known.len(), MAX_ANSWERS);
        assert_eq!(read(&mut known, &all[all.len() - 1..]), [Again]);
    }
}
