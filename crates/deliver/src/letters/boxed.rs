//! The letters that wait and those that have ended: a pure state machine, which is given the time.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use super::{DeadLetter, LetterDrain, LetterEnd, LetterQueuePolicy};
use crate::clock::later_ms;

/// All letters. What changes one returns it as it is afterwards, to be written and reported.
#[derive(Debug)]
pub(crate) struct LetterBox {
    policy: LetterQueuePolicy,
    /// In the order in which they came.
    waiting: BTreeMap<u64, Waiting>,
    by_key: HashMap<Arc<str>, u64>,
    next: u64,
    bytes: usize,
    /// Destinations that are delivered to.
    busy: HashSet<Arc<str>>,
    /// How often letters were drained.
    drains: u64,
    /// The last that have ended, the oldest first.
    ended: VecDeque<DeadLetter>,
}

#[derive(Debug)]
struct Waiting {
    letter: DeadLetter,
    /// It is due, whatever its backoff says: since this drain.
    drained: Option<u64>,
    /// An attempt is under way, which began after so many drains.
    sending: Option<u64>,
}

/// Why an attempt has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttemptFailed {
    pub(crate) error: Arc<str>,
    /// How long the platform asked to wait, in milliseconds.
    pub(crate) hint_ms: u64,
    /// The letter ends, whatever is left.
    pub(crate) end: Option<LetterEnd>,
    /// Its send goes on: the attempt has only stopped to wait for it.
    pub(crate) sending: bool,
}

impl LetterBox {
    pub(crate) fn new(policy: LetterQueuePolicy) -> Self {
        Self {
            policy,
            waiting: BTreeMap::new(),
            by_key: HashMap::new(),
            next: 0,
            bytes: 0,
            busy: HashSet::new(),
            drains: 0,
            ended: VecDeque::new(),
        }
    }

    /// A letter as the file has it, before anything else comes. A clock that was set back makes none last longer.
    pub(crate) fn load(&mut self, mut letter: DeadLetter, now: u64) {
        if letter.end.is_some() {
            self.remember(letter);
            return;
        }
        if letter.kept_ms > now {
            let age = letter.expires_ms.saturating_sub(letter.kept_ms);
            (letter.kept_ms, letter.next_ms) = (now, now);
            letter.expires_ms = now.saturating_add(age);
        }
        self.insert(letter);
    }

    /// A message that has failed just now. A key that waits already is one letter. It is tried after `wait`; at once
    /// with `None`. What has changed, the letter itself last.
    pub(crate) fn add(
        &mut self,
        mut letter: DeadLetter,
        wait_ms: Option<u64>,
        now: u64,
    ) -> Vec<DeadLetter> {
        if let Some(one) = self.by_key.get(&letter.key).and_then(|at| self.waiting.get_mut(at)) {
            one.letter.sending |= letter.sending;
            return Vec::new();
        }
        letter.kept_ms = now;
        letter.next_ms = now.saturating_add(wait_ms.unwrap_or(0));
        letter.expires_ms = later_ms(now, self.policy.max_age);
        let mut changed = self.make_room(&letter, now);
        self.ended.retain(|ended| ended.key != letter.key);
        if self.waiting.len() < self.policy.letters {
            changed.push(letter.clone());
            self.insert(letter);
        } else {
            // Each other one is being sent.
            changed.push(self.remember(letter.ended(LetterEnd::QueueFull, now)));
        }
        changed
    }

    /// A message that ends in a record without having waited.
    pub(crate) fn add_ended(&mut self, letter: DeadLetter, end: LetterEnd, now: u64) -> DeadLetter {
        if let Some(number) = self.by_key.get(&letter.key).copied()
            && let Some(ended) = self.end(number, end, now)
        {
            return ended;
        }
        self.ended.retain(|ended| ended.key != letter.key);
        self.remember(letter.ended(end, now))
    }

    /// The letter of this key that waits.
    pub(crate) fn get(&self, key: &str) -> Option<&DeadLetter> {
        self.waiting.get(self.by_key.get(key)?).map(|one| &one.letter)
    }

    /// Gives up the oldest letters of those who have most, until there is room for `letter`.
    fn make_room(&mut self, letter: &DeadLetter, now: u64) -> Vec<DeadLetter> {
        let mut given_up = Vec::new();
        while self.waiting.len() >= self.policy.letters
            || self.bytes + letter.bytes() > self.policy.bytes && !self.waiting.is_empty()
        {
            let mut counts = HashMap::<&Arc<str>, (usize, u64)>::new();
            for (number, one) in self.waiting.iter().filter(|(_, one)| one.sending.is_none()) {
                counts.entry(&one.letter.destination).or_insert((0, *number)).0 += 1;
            }
            // Of two with as many, the one that has waited longer.
            let most = counts.into_values().max_by_key(|(count, first)| (*count, u64::MAX - first));
            let Some((_, oldest)) = most else { break };
            given_up.extend(self.end(oldest, LetterEnd::QueueFull, now));
        }
        given_up
    }

    /// The destinations to deliver to now, which are busy from now on until [`idle`](Self::idle).
    pub(crate) fn begin(&mut self, now: u64) -> Vec<Arc<str>> {
        let mut started = Vec::new();
        for one in self.waiting.values() {
            if self.busy.len() >= self.policy.parallel {
                break;
            }
            if one.is_due(now) && self.busy.insert(one.letter.destination.clone()) {
                started.push(one.letter.destination.clone());
            }
        }
        started
    }

    /// The letter to send to this destination now. It has to end by [`delivered`](Self::delivered) or
    /// [`failed`](Self::failed).
    pub(crate) fn take(&mut self, destination: &str, now: u64) -> Option<DeadLetter> {
        let due = self.waiting.iter_mut().filter(|(_, one)| {
            &*one.letter.destination == destination && one.is_due(now) && !one.letter.is_old(now)
        });
        // In their order, but those that were tried less first: one that the platform never takes does not block the others.
        let (_, one) = due.min_by_key(|(number, one)| (one.letter.attempts, **number))?;
        one.sending = Some(self.drains);
        one.drained = None;
        one.letter.sending = true;
        Some(one.letter.clone())
    }

    /// The destination has no letter that is due, or has failed.
    pub(crate) fn idle(&mut self, destination: &str) {
        self.busy.remove(destination);
    }

    /// It was delivered: its destination is well, so what else waits there is due.
    pub(crate) fn delivered(&mut self, key: &str, now: u64) -> Option<DeadLetter> {
        let letter = self.end(*self.by_key.get(key)?, LetterEnd::Delivered, now)?;
        for other in self.waiting.values_mut().filter(|other| other.sending.is_none()) {
            if other.letter.destination == letter.destination {
                other.drained.get_or_insert(self.drains);
            }
        }
        Some(letter)
    }

    /// It was not delivered; it is tried again after `wait_ms`. What else is due at its destination waits as long, but not what
    /// was drained while the attempt was under way: the attempt knows nothing of what has recovered since it began.
    pub(crate) fn failed(
        &mut self,
        key: &str,
        failed: AttemptFailed,
        wait_ms: u64,
        now: u64,
    ) -> Option<DeadLetter> {
        let number = *self.by_key.get(key)?;
        let one = self.waiting.get_mut(&number)?;
        let began_after = one.sending.take().unwrap_or(self.drains);
        let letter = &mut one.letter;
        (letter.error, letter.sending) = (failed.error, failed.sending);
        // By its own backoff; earlier than that, by a drain, it uses up no retry.
        if letter.next_ms <= now {
            letter.attempts += 1;
            letter.next_ms = now.saturating_add(wait_ms.max(failed.hint_ms));
        } else {
            letter.next_ms = letter.next_ms.max(now.saturating_add(failed.hint_ms));
        }
        let (next, destination) = (letter.next_ms, letter.destination.clone());
        let end = failed.end.or_else(|| {
            if letter.attempts >= self.policy.retries {
                Some(LetterEnd::NoRetries)
            } else if letter.is_old(now) {
                Some(LetterEnd::TooOld)
            } else {
                None
            }
        });
        let changed = match end {
            Some(end) => self.end(number, end, now),
            None => self.waiting.get(&number).map(|one| one.letter.clone()),
        };
        // What a platform never takes says nothing of the channel. Any other end does.
        if failed.end != Some(LetterEnd::Refused) {
            for other in self.waiting.values_mut() {
                if other.letter.destination == destination && other.sending.is_none() {
                    other.drained = other.drained.filter(|drain| *drain > began_after);
                    if other.letter.next_ms <= now {
                        other.letter.next_ms = next;
                    }
                }
            }
        }
        changed
    }

    /// How many retries the letter of this key has used.
    pub(crate) fn attempts(&self, key: &str) -> u32 {
        self.get(key).map_or(0, |letter| letter.attempts)
    }

    /// Ends what is too old and not being sent.
    pub(crate) fn expire(&mut self, now: u64) -> Vec<DeadLetter> {
        let old =
            self.waiting.iter().filter(|(_, one)| one.sending.is_none() && one.letter.is_old(now));
        let old: Vec<u64> = old.map(|(number, _)| *number).collect();
        old.into_iter().filter_map(|number| self.end(number, LetterEnd::TooOld, now)).collect()
    }

    /// The send of this letter, on which its attempt had stopped to wait, has failed without sending it.
    pub(crate) fn not_sent(&mut self, key: &str) -> Option<DeadLetter> {
        let one = self.waiting.get_mut(self.by_key.get(key)?)?;
        one.letter.sending = false;
        Some(one.letter.clone())
    }

    /// Makes letters due now, those that are being sent as soon as that fails; how many, and what has changed in the file.
    pub(crate) fn drain(&mut self, which: &LetterDrain, now: u64) -> (usize, Vec<DeadLetter>) {
        let mut changed = Vec::new();
        if let LetterDrain::Key(key) = which
            && let Some(at) = self.ended.iter().position(|one| one.key == *key)
            && self.ended[at].end != Some(LetterEnd::Delivered)
            && let Some(mut letter) = self.ended.remove(at)
        {
            (letter.end, letter.ended_ms, letter.attempts) = (None, None, 0);
            changed = self.add(letter, None, now);
        }
        self.drains += 1;
        let mut count = 0;
        for one in self.waiting.values_mut() {
            let wanted = match which {
                LetterDrain::All => true,
                LetterDrain::Destination(destination) => one.letter.destination == *destination,
                LetterDrain::Key(key) => one.letter.key == *key,
            };
            if wanted {
                one.drained = Some(self.drains);
                count += 1;
            }
        }
        (count, changed)
    }

    /// Drops a letter that is not being sent.
    pub(crate) fn discard(&mut self, key: &str, now: u64) -> Option<DeadLetter> {
        let number = *self.by_key.get(key)?;
        self.waiting.get(&number).filter(|one| one.sending.is_none())?;
        self.end(number, LetterEnd::Discarded, now)
    }

    /// When something is due, in milliseconds since 1970.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let due = self.waiting.values().filter(|one| one.sending.is_none()).map(|one| {
            let is_free = !self.busy.contains(&one.letter.destination)
                && self.busy.len() < self.policy.parallel;
            match (is_free, one.drained.is_some()) {
                (true, true) => 0,
                (true, false) => one.letter.next_ms.min(one.letter.expires_ms),
                (false, _) => one.letter.expires_ms,
            }
        });
        due.min()
    }

    /// Those that wait, the oldest first.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &DeadLetter> {
        self.waiting.values().map(|one| &one.letter)
    }

    /// The last that have ended, the oldest first.
    pub(crate) fn ended(&self) -> impl Iterator<Item = &DeadLetter> {
        self.ended.iter()
    }

    pub(crate) fn sending(&self) -> usize {
        self.waiting.values().filter(|one| one.sending.is_some()).count()
    }

    fn insert(&mut self, letter: DeadLetter) {
        self.bytes += letter.bytes();
        self.by_key.insert(letter.key.clone(), self.next);
        self.waiting.insert(self.next, Waiting { letter, drained: None, sending: None });
        self.next += 1;
    }

    fn end(&mut self, number: u64, end: LetterEnd, now: u64) -> Option<DeadLetter> {
        let Waiting { letter, .. } = self.waiting.remove(&number)?;
        self.by_key.remove(&letter.key);
        self.bytes -= letter.bytes();
        Some(self.remember(letter.ended(end, now)))
    }

    fn remember(&mut self, letter: DeadLetter) -> DeadLetter {
        self.ended.push_back(letter.clone());
        while self.ended.len() > self.policy.ended {
            self.ended.pop_front();
        }
        letter
    }
}

impl Waiting {
    fn is_due(&self, now: u64) -> bool {
        self.sending.is_none() && (self.drained.is_some() || self.letter.next_ms <= now)
    }
}

impl DeadLetter {
    fn is_old(&self, now: u64) -> bool {
        self.expires_ms <= now
    }
}
