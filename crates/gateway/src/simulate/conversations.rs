//! Those who ask, in conversations that grow, and what providers have of them in their prompt caches.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use parking_lot::Mutex;
use steadfast::Usage;

use super::{replay::Recorded, world::Calls};

/// How long a provider keeps the beginning of a prompt: the vendors' own five minutes, from its last use.
const CACHED: Duration = Duration::from_secs(300);

/// What a turn adds to a conversation besides its answer, in tokens.
const TURN: u64 = 150;

/// The most conversations at a time.
const MOST: usize = 100_000;

/// Conversations that go on at the same time.
#[derive(Debug)]
pub(super) struct Conversations {
    turns: u32,
    first: u64,
    answer: u64,
    /// Calls of a recording, in place of conversations.
    recorded: Arc<[Recorded]>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    all: Vec<Conversation>,
    lost: u64,
}

#[derive(Clone, Debug)]
struct Conversation {
    /// Its position, and how many were there before it.
    name: Arc<str>,
    generation: u32,
    turn: u32,
    input: u64,
    /// The target that has its beginning in a cache, how many tokens of it, and when it was last used.
    cached: Option<(usize, u64, Duration)>,
}

impl Conversation {
    fn new(at: usize, generation: u32, input: u64) -> Self {
        let name = format!("{at}.{generation}").into();
        Self { name, generation, turn: 0, input, cached: None }
    }
}

impl Conversations {
    /// As many as there are when each takes its turns at its pace; what was `recorded` has none.
    pub(super) fn new(calls: &Calls, rate: f64, seed: u64, recorded: &Arc<[Recorded]>) -> Self {
        let count = ((rate * calls.think_s).ceil() as usize).clamp(1, MOST);
        let first = calls.input_tokens;
        let mut rng = Rng::with_seed(seed ^ 0xc0de);
        let turn = TURN + calls.output_tokens;
        // They did not all begin now.
        let all = (0..count).map(|at| {
            let done = rng.u32(..calls.turns);
            let input = first + u64::from(done) * turn;
            Conversation { turn: done, ..Conversation::new(at, 0, input) }
        });
        let state = State { all: all.collect(), lost: 0, rng };
        Self {
            turns: calls.turns,
            first,
            answer: calls.output_tokens,
            recorded: recorded.clone(),
            state: Mutex::new(state),
        }
    }

    /// The next turn of one of them: the name of the conversation.
    pub(super) fn next(&self) -> Arc<str> {
        let state = &mut *self.state.lock();
        let at = state.rng.usize(..state.all.len());
        let one = &mut state.all[at];
        one.turn += 1;
        if one.turn > self.turns {
            *one =
                Conversation { turn: 1, ..Conversation::new(at, one.generation + 1, self.first) };
        } else {
            one.input += TURN + self.answer;
        }
        one.name.clone()
    }

    /// The call of a recording that goes by this name.
    fn recorded(&self, name: &str) -> Option<&Recorded> {
        self.recorded.get(name.strip_prefix('r')?.parse::<usize>().ok()?)
    }

    /// What the target at `position` counts of a turn of the conversation `name` that it answers after `now`.
    pub(super) fn usage(&self, name: Option<&str>, position: usize, now: Duration) -> Usage {
        if let Some(call) = name.and_then(|name| self.recorded(name)) {
            let mut usage = Usage::new(call.input.unwrap_or(self.first), 0);
            usage.output = call.output;
            return usage;
        }
        let state = &mut *self.state.lock();
        let at = name.and_then(|name| name.split('.').next()?.parse::<usize>().ok());
        let Some(one) = at.and_then(|at| state.all.get_mut(at)) else {
            return Usage::new(self.first, 0);
        };
        let input = one.input;
        let mut usage = Usage::new(input, 0);
        usage.output = None;
        let kept = one.cached.filter(|(.., used)| now.saturating_sub(*used) < CACHED);
        if let Some((at, tokens, _)) = kept {
            if at == position {
                usage.cache_read = Some(tokens.min(input));
            } else {
                state.lost += tokens;
            }
        }
        one.cached = Some((position, input, now));
        usage
    }

    /// How many tokens had to be read anew because another target was asked than the one that had them.
    pub(super) fn cache_lost(&self) -> u64 {
        self.state.lock().lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_with_one_target_and_for_five_minutes() {
        let calls = Calls { turns: 1_000, think_s: 1.0, ..Calls::default() };
        let all = Conversations::new(&calls, 0.5, 1, &Arc::default());
        let at = Duration::from_secs;
        let read = |position, now| {
            let name = all.next();
            all.usage(Some(&name), position, now).cache_read
        };
        assert_eq!(read(0, at(0)), None);
        let kept = read(0, at(100)).unwrap();
        assert_eq!(read(1, at(150)), None, "another target");
        assert!(all.cache_lost() > kept, "it had grown by a turn");
        let lost = all.cache_lost();
        assert!(read(1, at(200)).is_some());
        assert_eq!(read(1, at(501)), None, "too late");
        assert_eq!(all.cache_lost(), lost, "nobody took it");
    }

    #[test]
    fn conversations_end_and_begin_anew() {
        let calls = Calls { turns: 2, think_s: 1.0, ..Calls::default() };
        let all = Conversations::new(&calls, 1.0, 1, &Arc::default());
        let names: std::collections::BTreeSet<_> = (0..20).map(|_| all.next()).collect();
        assert!((9..=11).contains(&names.len()), "{names:?}");
    }
}
