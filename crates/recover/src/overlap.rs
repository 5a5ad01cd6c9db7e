//! The overlap: where a further answer continues the text before.
//!
//! A model that has to continue after a break is asked to begin with the end of its text. [`Overlap`]
//! reads the beginning of the further answer, in pieces of any size, and finds where the repetition
//! ends: what comes after is new.
//!
//! ```
//! use steadfast_recover::{OverlapFound, Overlap, OverlapPolicy};
//!
//! let seen = "Once upon a time there was a queen who counted every star";
//! let mut overlap = Overlap::new(seen, OverlapPolicy::default());
//! assert_eq!(overlap.push("who counted ev"), OverlapFound::NotYet);
//! assert_eq!(overlap.push("ery star, and gave"), OverlapFound::Cut(", and gave".into()));
//! ```
//!
//! In the comparison all runs of white space are equal, and so are the two kinds of quotes. It searches
//! for, in this order:
//!
//! 1. exactly the [requested](Overlap::anchor) text, or all text so far, at the very beginning;
//! 2. the last 40, 32, 24, 16 or 12 characters, at most 8 characters in, so that a quote sign or an
//!    ellipsis may precede them;
//! 3. the longest beginning, of at least 6 characters, that is also the end of the text so far. When it
//!    is longer than the match of the second rule it has priority: a phrase that occurs twice in the
//!    repetition would else cut at its first occurrence.
//!
//! Until it is found, at most 240 characters are held back. No result is better than a wrong one: a
//! wrong cut loses text or repeats it.

use std::fmt;

use crate::PolicyError;

/// How an overlap is searched for; all numbers in characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlapPolicy {
    /// The lengths of the ends that are searched for, longest first. The shortest, 12, is about two
    /// English terms: shorter ones occur by chance.
    pub tails: Vec<usize>,
    /// How far in an end may begin.
    pub within: usize,
    /// The shortest beginning that counts as an overlap.
    pub shortest: usize,
    /// The most to hold back.
    pub hold: usize,
    /// How many of the last characters a model is asked to repeat.
    pub anchor: usize,
}

impl Default for OverlapPolicy {
    /// 40 characters are half a line: enough to be unique in most texts, and cheap to repeat. 240 are
    /// three lines, a second or two of a stream.
    fn default() -> Self {
        Self { tails: vec![40, 32, 24, 16, 12], within: 8, shortest: 6, hold: 240, anchor: 40 }
    }
}

impl OverlapPolicy {
    /// For a model that was asked *not* to repeat anything: only a long repetition counts. Text that
    /// continues like its own end (tables, lists) is kept.
    pub fn unasked() -> Self {
        Self { tails: vec![40, 32, 24], within: 0, shortest: 24, hold: 240, anchor: 0 }
    }

    /// Checks that an overlap can be found, and none by chance.
    ///
    /// # Errors
    ///
    /// The first invalid value.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let Self { shortest, hold, anchor, .. } = *self;
        let tail = self.tails.iter().copied().min().unwrap_or(1);
        for (field, value) in [("overlap.tails", tail), ("overlap.shortest", shortest)] {
            if value == 0 {
                return Err(PolicyError::Zero(field, ""));
            }
        }
        if anchor < shortest {
            return Err(PolicyError::Anchor { anchor, shortest });
        }
        // The tails may begin up to `within` characters in.
        let longest = self.tails.iter().max().map_or(0, |tail| tail.saturating_add(self.within));
        for (field, wanted) in [("overlap.anchor", anchor), ("overlap.tails", longest)] {
            if hold < wanted {
                return Err(PolicyError::Hold { field, wanted, hold });
            }
        }
        Ok(())
    }
}

/// The result of the search for an overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "it contains text that was held back"]
pub enum OverlapFound {
    /// More has to be read.
    NotYet,
    /// It is found: the new text, possibly empty.
    Cut(String),
    /// There is no overlap: the text that was held back.
    Nothing(String),
}

/// Finds where the repetition of earlier text ends in a further answer. Bounded: it keeps the last
/// [`hold`](OverlapPolicy::hold) characters of that text, and as many of the continuation.
#[derive(Clone)]
pub struct Overlap {
    policy: OverlapPolicy,
    /// The end of the earlier text, normalised, without white space at its end.
    tail: Vec<char>,
    /// The tail is all of that text.
    whole: bool,
    /// The white space that text ended in.
    space: String,
    /// The continuation so far.
    held: String,
    chars: usize,
    /// Where the repetition ends in `held`, once that is known.
    at: Option<usize>,
}

impl Overlap {
    /// Searches for the overlap with `seen`, all text so far.
    pub fn new(seen: &str, policy: OverlapPolicy) -> Self {
        let text = seen.trim_end();
        let space = seen[text.len()..].to_owned();
        let most = policy.hold.max(policy.anchor).max(1);
        // Twice as many, since there may be long runs of white space.
        let from = text.char_indices().rev().nth(most * 2).map_or(0, |(at, _)| at);
        let mut tail: Vec<char> = normal(&text[from..]).into_iter().map(|(c, _)| c).collect();
        let whole = from == 0 && tail.len() <= most;
        if tail.len() > most {
            tail.drain(..tail.len() - most);
        }
        // Only white space: there is nothing to repeat.
        let at = tail.is_empty().then_some(0);
        Self { policy, tail, whole, space, held: String::new(), chars: 0, at }
    }

    /// For a model that continues exactly at the end of `seen` without its trailing white space, which
    /// was sent as a *prefill*. Only that white space is cut.
    pub fn prefilled(seen: &str) -> Self {
        let mut overlap = Self::new("", OverlapPolicy::default());
        overlap.space = seen[seen.trim_end().len()..].to_owned();
        overlap
    }

    /// For a model that was asked to continue without repeating anything.
    pub fn unasked(seen: &str) -> Self {
        let policy = OverlapPolicy::unasked();
        let shortest = policy.tails.last().copied().unwrap_or(0);
        let mut overlap = Self::new(seen, policy);
        overlap.whole = false;
        let end = overlap.tail.len().saturating_sub(shortest);
        let last = &overlap.tail[end..];
        // A text that repeats itself continues so: an apparent repetition belongs to it.
        let repeats = overlap.tail.windows(shortest.max(1)).take(end).any(|part| part == last);
        if end == 0 || repeats {
            overlap.at = Some(0);
        }
        overlap.space.clear();
        overlap
    }

    /// The text to request: the end of `seen`.
    pub fn anchor<'a>(seen: &'a str, policy: &OverlapPolicy) -> &'a str {
        let text = seen.trim_end();
        let last = policy.anchor.saturating_sub(1);
        let from = text.char_indices().rev().nth(last).map_or(0, |(at, _)| at);
        text[from..].trim_start()
    }

    /// Reads the next piece.
    pub fn push(&mut self, piece: &str) -> OverlapFound {
        self.held.push_str(piece);
        self.chars += piece.chars().count();
        self.try_find(self.chars >= self.policy.hold.max(1))
    }

    /// Whether no text has been read so far.
    pub(crate) fn is_unread(&self) -> bool {
        self.held.is_empty()
    }

    /// There are no more pieces: never [`OverlapFound::NotYet`].
    pub fn finish(&mut self) -> OverlapFound {
        self.try_find(true)
    }

    fn try_find(&mut self, last: bool) -> OverlapFound {
        if self.at.is_none() {
            match self.search(last) {
                Search::At(at) => self.at = Some(at),
                Search::Open if !last => return OverlapFound::NotYet,
                Search::Open | Search::Nowhere => {
                    return OverlapFound::Nothing(std::mem::take(&mut self.held));
                }
            }
        }
        let at = self.at.unwrap_or(0);
        match past(&self.space, &self.held[at..], last) {
            Some(space) => {
                let new = self.held.split_off(at + space);
                self.held.clear();
                OverlapFound::Cut(new)
            }
            None => OverlapFound::NotYet,
        }
    }

    fn search(&self, last: bool) -> Search {
        let normal = normal(&self.held);
        let start = usize::from(normal.first().is_some_and(|(c, _)| *c == ' '));
        let start_of_new: Vec<char> = normal[start..].iter().map(|(c, _)| *c).collect();
        let end = |chars: usize| normal[start + chars - 1].1;
        let mut open = false;
        // 1. Exactly the requested text, or all of it.
        let anchor = self.policy.anchor.min(self.tail.len());
        let requested = trim(&self.tail[self.tail.len() - anchor..]);
        for exact in [requested, if self.whole { &self.tail[..] } else { &[] }] {
            if !exact.is_empty() && start_of_new.starts_with(exact) {
                return Search::At(end(exact.len()));
            }
            open |= exact.starts_with(&start_of_new);
        }
        if open && !last {
            return Search::Open;
        }
        // 2. An end of it, a little way in.
        let mut found: Option<(usize, usize)> = None;
        for &length in self.policy.tails.iter().filter(|length| **length > 0) {
            let Some(from) = self.tail.len().checked_sub(length) else { continue };
            let tail = &self.tail[from..];
            for at in 0..=self.policy.within {
                let Some(part) = start_of_new.get(at..start_of_new.len().min(at + length)) else {
                    open = true;
                    break;
                };
                if part == tail {
                    found = found.or(Some((length, at + length)));
                    break;
                }
                open |= tail.starts_with(part);
            }
        }
        if open && !last {
            return Search::Open;
        }
        // 3. The longest overlap.
        let mut overlap = None;
        for length in (self.policy.shortest.max(1)..=self.tail.len()).rev() {
            let tail = &self.tail[self.tail.len() - length..];
            if length > start_of_new.len() {
                if !last && tail.starts_with(&start_of_new) {
                    return Search::Open;
                }
            } else if start_of_new.starts_with(tail) {
                overlap = Some((length, length));
                break;
            }
        }
        // The longer of the two is better evidence.
        match found.max(overlap) {
            Some((_, chars)) => Search::At(end(chars)),
            None => Search::Nowhere,
        }
    }
}

impl fmt::Debug for Overlap {
    /// Shows sizes, not contents: answers are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlap")
            .field("tail", &self.tail.len())
            .field("whole", &self.whole)
            .field("held", &self.chars)
            .field("found", &self.at.is_some())
            .finish_non_exhaustive()
    }
}

enum Search {
    At(usize),
    Open,
    Nowhere,
}

/// The normalised characters of `text`, each with the byte at which it ends there.
fn normal(text: &str) -> Vec<(char, usize)> {
    let mut out: Vec<(char, usize)> = Vec::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        let end = at + c.len_utf8();
        let c = match c {
            '\u{2018}' | '\u{2019}' | '\u{201a}' | '\u{201b}' => '\'',
            '\u{201c}' | '\u{201d}' | '\u{201e}' | '\u{201f}' => '"',
            c if c.is_whitespace() => ' ',
            c => c,
        };
        match out.last_mut() {
            Some((' ', last)) if c == ' ' => *last = end,
            _ => out.push((c, end)),
        }
    }
    out
}

fn trim(text: &[char]) -> &[char] {
    match text {
        [' ', rest @ ..] => rest,
        text => text,
    }
}

/// How many bytes at the beginning of `new` repeat `space`, which has been delivered. All line ends are
/// equal. `None` when more has to be read.
fn past(space: &str, new: &str, last: bool) -> Option<usize> {
    let mut space = space.chars().peekable();
    let mut new = new.char_indices().peekable();
    let mut done = 0;
    while let Some(&c) = space.peek() {
        let Some(&(at, n)) = new.peek() else { return last.then_some(done) };
        let end = at + n.len_utf8();
        if c == n {
            space.next();
            new.next();
            done = end;
        } else if c == '\r' {
            space.next();
        } else if n == '\r' && c == '\n' {
            new.next();
        } else {
            break;
        }
    }
    Some(done)
}

#[cfg(test)]
mod tests;
