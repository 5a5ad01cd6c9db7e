//! The queue against a naive model: a list of letters, searched from its beginning for everything.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use proptest::prelude::*;
use steadfast_core::{Failure, Reason};

use super::{
    DeadLetter, LetterDrain, LetterEnd, LetterQueuePolicy,
    boxed::{AttemptFailed, LetterBox},
};
use crate::Announcement;

#[derive(Clone, Debug)]
enum Event {
    Add(u8, u8, u64),
    Begin,
    Take(u8),
    Delivered(u8),
    Failed(u8, u64, u64),
    Ends(u8, LetterEnd),
    Idle(u8),
    Drain(u8),
    DrainAll,
    Discard(u8),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let (key, destination) = (0..12_u8, 0..3_u8);
    prop_oneof![
        4 => (key.clone(), destination.clone(), 0..50_u64).prop_map(|(k, d, w)| Event::Add(k, d, w)),
        3 => Just(Event::Begin),
        6 => destination.clone().prop_map(Event::Take),
        2 => key.clone().prop_map(Event::Delivered),
        4 => (key.clone(), 0..60_u64, 0..60_u64).prop_map(|(k, w, h)| Event::Failed(k, w, h)),
        1 => key.clone().prop_map(|k| Event::Ends(k, LetterEnd::Refused)),
        1 => key.clone().prop_map(|k| Event::Ends(k, LetterEnd::Unclear)),
        3 => destination.clone().prop_map(Event::Idle),
        1 => destination.prop_map(Event::Drain),
        1 => Just(Event::DrainAll),
        1 => key.prop_map(Event::Discard),
        4 => (0..60_u64).prop_map(Event::Wait),
    ]
}

const RETRIES: u32 = 3;
const AGE: u64 = 300;
const LETTERS: usize = 5;

/// One letter of the model.
#[derive(Clone, Debug)]
struct Naive {
    key: u8,
    destination: u8,
    next: u64,
    expires: u64,
    attempts: u32,
    /// By which drain.
    drained: Option<u64>,
    /// After how many drains the attempt under way began.
    sending: Option<u64>,
}

#[derive(Debug, Default)]
struct Model {
    letters: Vec<Naive>,
    /// The last end of each key, and how many ends there were.
    ended: BTreeMap<u8, LetterEnd>,
    ends: Vec<(u8, LetterEnd)>,
    added: usize,
    drains: u64,
}

impl Model {
    fn end(&mut self, at: usize, end: LetterEnd) {
        let letter = self.letters.remove(at);
        self.ended.insert(letter.key, end);
        self.ends.push((letter.key, end));
    }

    fn add(&mut self, key: u8, destination: u8, wait: u64, now: u64) {
        if self.letters.iter().any(|one| one.key == key) {
            return;
        }
        self.added += 1;
        if self.letters.len() >= LETTERS {
            let count = |destination| {
                let same = self
                    .letters
                    .iter()
                    .filter(|one| one.sending.is_none() && one.destination == destination);
                same.count()
            };
            let idle = self.letters.iter().enumerate().filter(|(_, one)| one.sending.is_none());
            // The first of the letters whose destination has most is that destination's oldest.
            let most = idle.clone().map(|(_, one)| count(one.destination)).max();
            let oldest = idle
                .clone()
                .find(|(_, one)| Some(count(one.destination)) == most)
                .map(|(at, _)| at);
            match oldest {
                Some(at) => self.end(at, LetterEnd::QueueFull),
                None => {
                    self.ended.insert(key, LetterEnd::QueueFull);
                    self.ends.push((key, LetterEnd::QueueFull));
                    return;
                }
            }
        }
        self.ended.remove(&key);
        let (next, expires) = (now + wait, now + AGE);
        self.letters.push(Naive {
            key,
            destination,
            next,
            expires,
            attempts: 0,
            drained: None,
            sending: None,
        });
    }

    fn take(&mut self, destination: u8, now: u64) -> Option<u8> {
        let due = self.letters.iter_mut().filter(|one| {
            one.destination == destination
                && one.sending.is_none()
                && (one.drained.is_some() || one.next <= now)
                && one.expires > now
        });
        let letter = due.min_by_key(|one| one.attempts)?;
        letter.sending = Some(self.drains);
        letter.drained = None;
        Some(letter.key)
    }

    fn failed(&mut self, key: u8, wait: u64, hint: u64, end: Option<LetterEnd>, now: u64) {
        let Some(at) = self.letters.iter().position(|one| one.key == key) else { return };
        let letter = &mut self.letters[at];
        let began_after = letter.sending.take().unwrap_or(self.drains);
        if letter.next <= now {
            letter.attempts += 1;
            letter.next = now + wait.max(hint);
        } else {
            letter.next = letter.next.max(now + hint);
        }
        let (next, destination, attempts, expires) =
            (letter.next, letter.destination, letter.attempts, letter.expires);
        if let Some(end) = end {
            self.end(at, end);
            if end == LetterEnd::Refused {
                return;
            }
        } else if attempts >= RETRIES {
            self.end(at, LetterEnd::NoRetries);
        } else if expires <= now {
            self.end(at, LetterEnd::TooOld);
        }
        for other in self.letters.iter_mut() {
            if other.destination == destination && other.sending.is_none() {
                other.drained = other.drained.filter(|drain| *drain > began_after);
                if other.next <= now {
                    other.next = next;
                }
            }
        }
    }

    /// Those of this destination, or all.
    fn drain(&mut self, destination: Option<u8>) {
        self.drains += 1;
        for one in &mut self.letters {
            if destination.is_none_or(|destination| one.destination == destination) {
                one.drained = Some(self.drains);
            }
        }
    }

    fn discard(&mut self, key: u8) {
        let at = self.letters.iter().position(|one| one.key == key && one.sending.is_none());
        if let Some(at) = at {
            self.end(at, LetterEnd::Discarded);
        }
    }

    fn expire(&mut self, now: u64) {
        while let Some(at) =
            self.letters.iter().position(|one| one.sending.is_none() && one.expires <= now)
        {
            self.end(at, LetterEnd::TooOld);
        }
    }
}

fn name(number: u8) -> Arc<str> {
    number.to_string().into()
}

fn letter(key: u8, destination: u8, now: u64) -> DeadLetter {
    let message = Announcement::new(name(key), name(destination), "text");
    DeadLetter::of(&message, &Failure::new(Reason::ServerError, "down"), false, now)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn as_a_list_of_letters(events in proptest::collection::vec(event(), 0..120)) {
        let policy = LetterQueuePolicy {
            retries: RETRIES,
            max_age: Duration::from_millis(AGE),
            letters: LETTERS,
            ended: 1_000,
            parallel: 2,
            ..LetterQueuePolicy::default()
        };
        let (mut letters, mut model, mut now) = (LetterBox::new(policy), Model::default(), 1_000);
        let mut busy: Vec<Arc<str>> = Vec::new();
        for event in events {
            match event {
                Event::Add(key, destination, wait) => {
                    letters.add(letter(key, destination, now), Some(wait), now);
                    model.add(key, destination, wait, now);
                }
                Event::Begin => {
                    let started = letters.begin(now);
                    for destination in &started {
                        prop_assert!(!busy.contains(destination), "one delivery a destination");
                        let due = model.letters.iter().any(|one| {
                            name(one.destination) == *destination
                                && one.sending.is_none()
                                && (one.drained.is_some() || one.next <= now)
                        });
                        prop_assert!(due, "{:?} has nothing due", destination);
                    }
                    busy.extend(started);
                    prop_assert!(busy.len() <= 2);
                }
                Event::Take(destination) => {
                    let taken = letters.take(&name(destination), now).map(|one| one.key);
                    prop_assert_eq!(taken, model.take(destination, now).map(name));
                }
                Event::Delivered(key) => {
                    letters.delivered(&name(key), now);
                    if let Some(at) = model.letters.iter().position(|one| one.key == key) {
                        let destination = model.letters[at].destination;
                        model.end(at, LetterEnd::Delivered);
                        let (others, drains) = (model.letters.iter_mut(), model.drains);
                        others
                            .filter(|one| one.sending.is_none() && one.destination == destination)
                            .for_each(|one| {
                                one.drained.get_or_insert(drains);
                            });
                    }
                }
                Event::Failed(key, wait, hint_ms) => {
                    let failed =
                        AttemptFailed { error: "no".into(), hint_ms, end: None, sending: false };
                    letters.failed(&name(key), failed, wait, now);
                    model.failed(key, wait, hint_ms, None, now);
                }
                Event::Ends(key, end) => {
                    let end = Some(end);
                    let failed =
                        AttemptFailed { error: "no".into(), hint_ms: 0, end, sending: false };
                    letters.failed(&name(key), failed, 1, now);
                    model.failed(key, 1, 0, end, now);
                }
                Event::Idle(destination) => {
                    letters.idle(&name(destination));
                    busy.retain(|one| *one != name(destination));
                }
                Event::Drain(destination) => {
                    letters.drain(&LetterDrain::Destination(name(destination)), now);
                    model.drain(Some(destination));
                }
                Event::DrainAll => {
                    letters.drain(&LetterDrain::All, now);
                    model.drain(None);
                }
                Event::Discard(key) => {
                    letters.discard(&name(key), now);
                    model.discard(key);
                }
                Event::Wait(time) => {
                    now += time;
                    letters.expire(now);
                    model.expire(now);
                }
            }
            let waiting: Vec<_> = letters.waiting().map(|one| (one.key.clone(), one.next_ms, one.attempts)).collect();
            let expected: Vec<_> =
                model.letters.iter().map(|one| (name(one.key), one.next, one.attempts)).collect();
            prop_assert_eq!(waiting, expected);
            for (key, end) in &model.ended {
                let found: Vec<_> = letters.ended().filter(|one| one.key == name(*key)).collect();
                prop_assert_eq!(found.last().and_then(|one| one.end), Some(*end), "{}", key);
            }
            // Nothing is lost: what was added waits, or has ended, each once.
            prop_assert_eq!(model.added, model.letters.len() + model.ends.len());
            let sending = model.letters.iter().filter(|one| one.sending.is_some()).count();
            prop_assert_eq!(letters.sending(), sending);
            // Something that can be done at once is due, and what is due is not missed.
            let free = |one: &&Naive| one.sending.is_none() && !busy.contains(&name(one.destination)) && busy.len() < 2;
            let soonest = model.letters.iter().filter(free).map(|one| {
                if one.drained.is_some() { 0 } else { one.next.min(one.expires) }
            }).min();
            if let Some(soonest) = soonest {
                prop_assert!(letters.next_due().is_some_and(|due| due <= soonest));
            }
        }
    }
}
