//! Repeating a compaction: callers who send their whole history in every turn get the same
//! compacted beginning in every turn.
//!
//! A caller does not know that its request was compacted, and sends everything again, with a turn
//! added. [`Applied`] remembers which beginning of the history was replaced by what, and replaces it
//! again: so the prefix that the provider sees stays the same, byte for byte, until the next
//! compaction, and nothing is stripped or summarised twice. The original is the caller's and is
//! never changed.

use std::{
    fmt,
    hash::BuildHasher,
    ops::Range,
    sync::{LazyLock, OnceLock},
};

use foldhash::quality::RandomState;
use steadfast_chat::{
    ChatRequest, Message, Role,
    transcript::{TranscriptRules, unbind},
};
use steadfast_core::Dialect;

use super::Summary;

/// What a compaction replaced, and by what. Holds messages by counted pointers; of what was read from
/// the wire and replaced it holds a hash.
///
/// ```
/// use steadfast_compact::Applied;
/// use steadfast_chat::{ChatRequest, Message};
///
/// let mut history = vec![Message::user("one"), Message::assistant("two"), Message::user("three")];
/// let compacted = [Message::user("summary of one and two"), history[2].clone()];
/// let applied = Applied::new(history.clone(), compacted.to_vec(), None);
///
/// history.push(Message::assistant("four"));
/// let mut request = ChatRequest::new(history);
/// assert!(applied.apply(&mut request));
/// assert_eq!(request.messages.len(), 3);
/// assert_eq!(request.messages[2].text(), "four");
/// assert_eq!(applied.original(1), Some(2), "and each message can be traced back");
/// ```
#[derive(Clone)]
pub struct Applied {
    original: Vec<Fingerprint>,
    compacted: Vec<Message>,
    /// The original index of each compacted message.
    origins: Vec<Option<usize>>,
    summary: Option<Summary>,
    /// How many messages the caller's history had when it was first sent compacted: thinking in them is
    /// bound to what was replaced, and thinking behind them to what replaced it.
    unbinds: OnceLock<usize>,
    /// Other processes know it.
    shared: OnceLock<()>,
}

impl Applied {
    /// `original` was compacted to `compacted`, with `summary` in it if there is one.
    pub fn new(original: Vec<Message>, compacted: Vec<Message>, summary: Option<Summary>) -> Self {
        // What both end with is no part of it: the less is remembered, the more may a caller change
        // without its history being another one. One message stays, so that there is a border.
        let most = original.len().min(compacted.len()).saturating_sub(1);
        let ends = original.iter().rev().zip(compacted.iter().rev());
        let same = ends.take(most).take_while(|(one, other)| same_but_thinking(one, other)).count();
        let (mut original, mut compacted) = (original, compacted);
        // A history that was cut short must not be taken for the beginning of another: the first
        // message after the border is remembered, too.
        let same = same.saturating_sub(1);
        original.truncate(original.len() - same);
        compacted.truncate(compacted.len() - same);
        let mut next = 0;
        let mut origin = |message: &Message| {
            let found = original[next..].iter().position(|one| one.same(message))? + next;
            next = found + 1;
            Some(found)
        };
        let origins = compacted.iter().map(&mut origin).collect();
        let original = original.iter().map(Fingerprint::of).collect();
        Self {
            original,
            compacted,
            origins,
            summary,
            unbinds: OnceLock::new(),
            shared: OnceLock::new(),
        }
    }

    /// How many messages it replaces.
    pub(crate) fn replaced(&self) -> usize {
        self.original.len()
    }

    /// What it replaces them by, and the original index of each message that stayed.
    #[cfg(feature = "shared")]
    pub(crate) fn replacement(&self) -> impl Iterator<Item = (&Message, Option<usize>)> {
        self.compacted.iter().zip(self.origins.iter().copied())
    }

    /// Other processes know it from now on; whether they did not before.
    pub(crate) fn is_news(&self) -> bool {
        self.shared.set(()).is_ok()
    }

    /// Replaces the beginning of the request's history, when it is the one that was compacted;
    /// returns whether it was. A history that was edited or truncated since is another conversation and
    /// is not changed.
    pub fn apply(&self, request: &mut ChatRequest) -> bool {
        let covers = self.covers(&request.messages);
        if covers {
            let dialect = request.dialect().unwrap_or(Dialect::Anthropic);
            self.replace(request, &TranscriptRules::for_dialect(dialect));
        }
        covers
    }

    /// Replaces the beginning of a history that it [covers](Self::covers), and drops the thinking that is
    /// unbound by that.
    pub(crate) fn replace(&self, request: &mut ChatRequest, rules: &TranscriptRules) {
        let unbinds = self.is_sent(request.messages.len());
        let rest = &request.messages[self.original.len()..];
        let stale = unbinds.saturating_sub(self.original.len()).min(rest.len());
        request.messages = self.compacted.iter().chain(rest).cloned().collect();
        let kept = self.compacted.len();
        let stale: Range<usize> = kept..kept + stale;
        unbind(request, rules, stale);
    }

    /// It is sent instead of a history of so many messages; of how many it was the first time.
    pub(crate) fn is_sent(&self, messages: usize) -> usize {
        *self.unbinds.get_or_init(|| messages)
    }

    /// Whether a history begins with what was compacted. Messages that are the same in memory are
    /// not read.
    pub fn covers(&self, history: &[Message]) -> bool {
        history.len() >= self.original.len()
            && self.original.iter().zip(history).all(|(one, other)| one.matches(other))
    }

    /// The original index of the message at `index` of an applied history; `None` for the
    /// summary and for messages that were changed.
    pub fn original(&self, index: usize) -> Option<usize> {
        match self.origins.get(index) {
            Some(origin) => *origin,
            None => Some(index - self.compacted.len() + self.original.len()),
        }
    }

    /// The summary in the compacted history.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }
}

impl fmt::Debug for Applied {
    /// Without contents: prompts are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Applied").finish_non_exhaustive()
    }
}

/// Whether two messages are the same but for thinking that one of them has lost.
fn same_but_thinking(original: &Message, compacted: &Message) -> bool {
    if original.same(compacted) {
        return true;
    }
    original.role() == Role::Assistant
        && compacted.role() == Role::Assistant
        && without_thinking(original).eq(without_thinking(compacted))
}

/// Everything in a message but thinking.
fn without_thinking(message: &Message) -> impl Iterator<Item = &steadfast_chat::Part> {
    message.parts().iter().filter(|part| !part.is_thinking())
}

/// What is remembered of a message, to recognise it: the message itself where somebody else holds it
/// anyway, and a hash of its text where it was read from the wire, and would be kept alive by this
/// alone.
#[derive(Clone)]
pub(crate) enum Fingerprint {
    /// The message.
    Held(Message),
    /// A hash of its role and its text.
    Hash(u64),
}

impl Fingerprint {
    pub(crate) fn of(message: &Message) -> Self {
        hash(message).map_or_else(|| Self::Held(message.clone()), Self::Hash)
    }

    /// Whether it is this message.
    pub(crate) fn matches(&self, message: &Message) -> bool {
        match self {
            Self::Held(held) => held.same(message) || held == message,
            Self::Hash(known) => hash(message) == Some(*known),
        }
    }

    /// Whether it is this message; the message is recognised from now on, by its address in memory where
    /// it is held.
    pub(crate) fn renew(&mut self, message: &Message) -> bool {
        if matches!(self, Self::Held(held) if held.same(message)) {
            return true;
        }
        let matches = self.matches(message);
        if !matches || matches!(self, Self::Held(_)) {
            *self = Self::of(message);
        }
        matches
    }
}

/// A hash of a message that was read from the wire and not changed since. Seeded once a process: two
/// messages collide by accident only, once in 2^64.
fn hash(message: &Message) -> Option<u64> {
    static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::default);
    let dialect = message.dialect()?;
    let text = message.raw(dialect)?;
    Some(SEED.hash_one((dialect, message.role(), text)))
}

#[cfg(test)]
mod tests {
    use steadfast_chat::{Part, RawJson, Role, Thinking};
    use steadfast_core::Dialect;

    use super::*;

    fn history(length: usize) -> Vec<Message> {
        (0..length).map(|number| Message::user(format!("message {number}"))).collect()
    }

    /// The first six of ten messages became a summary.
    fn applied() -> (Vec<Message>, Applied) {
        let list = history(10);
        let mut compacted = vec![Message::user("summary")];
        compacted.extend_from_slice(&list[6..]);
        let applied = Applied::new(list.clone(), compacted, None);
        (list, applied)
    }

    fn texts(request: &ChatRequest) -> Vec<String> {
        request.messages.iter().map(Message::text).collect()
    }

    #[test]
    fn the_same_history_gets_the_same_beginning() {
        let (mut list, applied) = applied();
        let mut first = ChatRequest::new(list.clone());
        assert!(applied.apply(&mut first));
        list.push(Message::user("more"));
        // Read again from the wire.
        let mut second = ChatRequest::new(history(10));
        second.messages.make_mut().push(Message::user("more"));
        assert!(applied.apply(&mut second));
        assert_eq!(texts(&first)[..], texts(&second)[..5]);
        assert_eq!(texts(&first), ["summary", "message 6", "message 7", "message 8", "message 9"]);
        assert_eq!(texts(&second)[5], "more");
    }

    #[test]
    fn a_history_that_was_edited_or_truncated_is_not_changed() {
        let (list, applied) = applied();
        let mut edited = list.clone();
        edited[2] = Message::user("something else");
        for history in [edited, list[..3].to_vec(), list[..6].to_vec(), vec![]] {
            let mut request = ChatRequest::new(history.clone());
            assert!(!applied.apply(&mut request));
            assert_eq!(&request.messages[..], &history[..]);
        }
    }

    #[test]
    fn what_comes_after_the_border_may_change() {
        let (mut list, applied) = applied();
        list[8] = Message::user("edited");
        let mut request = ChatRequest::new(list);
        assert!(applied.apply(&mut request));
        assert_eq!(texts(&request)[3], "edited");
    }

    #[test]
    fn messages_are_traced_back() {
        let (list, applied) = applied();
        let origins: Vec<_> = (0..6).map(|index| applied.original(index)).collect();
        assert_eq!(origins, [None, Some(6), Some(7), Some(8), Some(9), Some(10)]);
        let mut request = ChatRequest::new(list.clone());
        applied.apply(&mut request);
        for (index, message) in request.messages.iter().enumerate().skip(1) {
            let origin = applied.original(index).unwrap();
            assert!(message.same(&list[origin]), "{index}");
        }
    }

    #[test]
    fn a_compaction_that_changed_nothing_changes_nothing() {
        let list = history(3);
        let applied = Applied::new(list.clone(), list.clone(), None);
        let mut request = ChatRequest::new(list.clone());
        assert!(applied.apply(&mut request));
        assert_eq!(&request.messages[..], &list[..]);
        let none = Applied::new(vec![], vec![], None);
        assert!(none.apply(&mut request));
        assert_eq!(request.messages.len(), 3);
    }

    #[test]
    fn thinking_from_before_a_compaction_is_dropped_each_time_and_no_other() {
        let thought = |id: usize| {
            let thinking = Thinking { signature: Some(format!("s{id}")), ..Thinking::default() };
            Message::new(
                Role::Assistant,
                vec![Part::Thinking(thinking), Part::text(format!("{id}"))],
            )
        };
        let mut list: Vec<Message> = (0..5)
            .flat_map(|id| [Message::user(format!("question {id}")), thought(id)])
            .chain([Message::user("now")])
            .collect();
        // The first two turns are a summary now, and what is behind it has lost its thinking.
        let without = |message: &Message| {
            let mut message = message.clone();
            message.parts_mut().retain(|part| !part.is_thinking());
            message
        };
        let mut compacted = vec![Message::user("summary")];
        compacted.extend(list[4..].iter().map(without));
        let applied = Applied::new(list.clone(), compacted, None);
        assert_eq!(applied.is_sent(list.len()), 11);
        let signed = |request: &ChatRequest| {
            let parts = request.messages.iter().flat_map(Message::parts);
            parts.filter(|part| part.is_thinking()).count()
        };
        for turn in 5..8 {
            let mut request = ChatRequest::new(list.clone());
            assert!(applied.apply(&mut request));
            assert_eq!(
                signed(&request),
                turn - 5,
                "what was written since is bound to the summary"
            );
            assert_eq!(request.messages.len(), list.len() - 3);
            list.extend([thought(turn), Message::user(format!("question {turn}"))]);
        }
        // One that was made ahead unbinds all that was there when it was first used.
        let ahead =
            Applied::new(list[..5].to_vec(), vec![Message::user("summary"), list[4].clone()], None);
        let mut request = ChatRequest::new(list.clone());
        ahead.apply(&mut request);
        assert_eq!(signed(&request), 0);
        list.extend([thought(9), Message::user("more")]);
        let mut request = ChatRequest::new(list);
        ahead.apply(&mut request);
        assert_eq!(signed(&request), 1);
    }

    fn read(text: &str) -> Message {
        let raw = RawJson::parse(&format!("{{\"role\":\"user\",\"content\":\"{text}\"}}")).unwrap();
        Message::from_wire(Dialect::OpenAi, Role::User, vec![Part::text(text)], None, raw)
    }

    #[test]
    fn messages_are_recognised_and_those_of_the_wire_are_not_kept() {
        let (own, wire) = (Message::user("hi"), read("hi"));
        let (mut held, hash) = (Fingerprint::of(&own), Fingerprint::of(&wire));
        assert!(held.matches(&Message::user("hi")) && !held.matches(&Message::user("ho")));
        assert!(matches!(hash, Fingerprint::Hash(_)));
        assert!(hash.matches(&read("hi")) && !hash.matches(&read("ho")) && !hash.matches(&own));
        assert!(!held.renew(&Message::user("ho")) && held.renew(&Message::user("ho")));
        let mut changed = wire;
        changed.parts_mut().push(Part::text("more"));
        assert!(!hash.matches(&changed), "it is no longer what was read");
    }
}
