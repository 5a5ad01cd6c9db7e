//! What a node has found, and what follows from what several have.

/// What one node has found about one key: that something holds from one time to another, and when it last found that
/// what was known before is over. A register that the node alone writes; the later [`number`](Self::number) is the
/// newer one. So nodes that have read the same registers, in any order and any number of times, know the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct Fact {
    /// Grows with each change.
    pub number: u64,
    /// What any node has found up to then is over, in milliseconds since 1970; 0: nothing is.
    pub over_ms: u64,
    /// Since when it holds.
    pub since_ms: u64,
    /// Until when; 0: nothing holds.
    pub until_ms: u64,
    /// What else the layer has to say of it.
    pub value: Box<str>,
}

/// What a node has to say of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum News {
    /// Something holds from one time to another.
    Holds {
        /// Since when.
        since_ms: u64,
        /// Until when.
        until_ms: u64,
        /// What else the layer has to say of it.
        value: Box<str>,
    },
    /// What anybody has found up to then is over.
    Over {
        /// When that was found.
        at_ms: u64,
    },
}

impl News {
    /// Something holds from one time to another.
    pub fn holds(since_ms: u64, until_ms: u64, value: impl Into<Box<str>>) -> Self {
        Self::Holds { since_ms, until_ms, value: value.into() }
    }

    /// What was found up to then is over.
    pub const fn over(at_ms: u64) -> Self {
        Self::Over { at_ms }
    }
}

/// What is known of a key by all nodes together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Known {
    /// What began up to then is over; 0: nothing is.
    pub over_ms: u64,
    /// Of what began later, that which lasts longest.
    pub fact: Option<Fact>,
}

impl Fact {
    /// The same register with `news` in it.
    #[must_use]
    pub(super) fn with(self, news: News, now_ms: u64) -> Self {
        // A register that was dropped, and begins again, is newer than what others may still have of it.
        let number = now_ms.max(self.number + 1);
        match news {
            News::Holds { since_ms, until_ms, value } => {
                Self { number, since_ms, until_ms, value, ..self }
            }
            News::Over { at_ms } => {
                Self { number, over_ms: at_ms.max(self.over_ms), ..Self::default() }
            }
        }
    }

    /// Moves its times. What is not set stays so.
    pub(super) fn shift(&mut self, by_ms: i64) {
        for ms in [&mut self.number, &mut self.over_ms, &mut self.since_ms, &mut self.until_ms] {
            if *ms > 0 {
                *ms = ms.saturating_add_signed(by_ms).max(1);
            }
        }
    }

    /// When there is nothing in it any more that matters to anybody.
    pub fn ends_ms(&self) -> u64 {
        // Until a node that was cut off for a while has read that something is over.
        const REMEMBERED: u64 = 600_000;
        let over = if self.over_ms == 0 { 0 } else { self.over_ms.saturating_add(REMEMBERED) };
        over.max(self.until_ms)
    }
}

impl Known {
    /// What follows from the registers of all nodes.
    pub fn of<'a>(registers: impl Iterator<Item = &'a Fact> + Clone) -> Self {
        let over_ms = registers.clone().map(|fact| fact.over_ms).max().unwrap_or(0);
        let holding = registers.filter(|fact| fact.until_ms > 0 && fact.since_ms > over_ms);
        // Of two that end at once, either; the same at every node.
        let longest = holding.max_by(|one, other| {
            let by = |fact: &Fact| (fact.until_ms, fact.since_ms, fact.number);
            by(one).cmp(&by(other)).then_with(|| one.value.cmp(&other.value))
        });
        Self { over_ms, fact: longest.cloned() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// A change of the register of one of four nodes.
    fn changes() -> impl Strategy<Value = Vec<(u8, Fact)>> {
        let change = (0..4_u8, any::<bool>(), 1..50_u64, 0..50_u64);
        proptest::collection::vec(change, 0..30).prop_map(|changes| {
            let mut registers = HashMap::<u8, Fact>::new();
            let mut all = Vec::new();
            for (at, (node, over, begins, lasts)) in changes.into_iter().enumerate() {
                let news = match over {
                    true => News::over(begins),
                    false => News::holds(begins, begins + lasts, node.to_string()),
                };
                let next = registers.remove(&node).unwrap_or_default().with(news, at as u64);
                registers.insert(node, next.clone());
                all.push((node, next));
            }
            all
        })
    }

    /// What a node knows that has read `changes` in this order.
    fn read<'a>(changes: impl Iterator<Item = &'a (u8, Fact)>) -> Known {
        let mut registers = HashMap::<u8, Fact>::new();
        for (node, fact) in changes {
            let register = registers.entry(*node).or_default();
            if fact.number > register.number || *register == Fact::default() {
                *register = fact.clone();
            }
        }
        Known::of(registers.values())
    }

    proptest! {
        #[test]
        fn all_know_the_same_in_whatever_order_and_how_often_they_have_read_it(
            changes in changes(),
            order in proptest::collection::vec(any::<prop::sample::Index>(), 60),
        ) {
            let shuffled: Vec<_> = match changes.is_empty() {
                true => vec![],
                false => order.iter().map(|at| at.get(&changes)).chain(&changes).collect(),
            };
            prop_assert_eq!(read(changes.iter()), read(shuffled.into_iter()));
        }

        #[test]
        fn what_is_over_holds_no_more_and_the_longest_of_the_rest_does(changes in changes()) {
            let known = read(changes.iter());
            let mut last = HashMap::new();
            for (node, fact) in &changes {
                last.insert(node, fact);
            }
            let longest = last
                .values()
                .filter(|fact| fact.until_ms > 0 && fact.since_ms > known.over_ms)
                .map(|fact| fact.until_ms)
                .max();
            prop_assert_eq!(known.fact.map(|fact| fact.until_ms), longest);
        }
    }

    #[test]
    fn the_longer_one_wins_and_what_is_over_is_over_for_all() {
        let holds = |since, until| Fact::default().with(News::holds(since, until, ""), since);
        let over = |at| Fact::default().with(News::over(at), at);
        let until = |facts: &[Fact]| Known::of(facts.iter()).fact.map(|fact| fact.until_ms);
        assert_eq!(until(&[holds(10, 50), holds(20, 40)]), Some(50));
        assert_eq!(until(&[holds(10, 50), over(30)]), None);
        assert_eq!(until(&[holds(10, 50), over(30), holds(31, 35)]), Some(35));
        assert_eq!(until(&[holds(10, 50), over(10)]), None, "in the same millisecond");
    }

    #[test]
    fn a_register_that_begins_again_is_newer() {
        let old = Fact::default().with(News::holds(1_000, 2_000, ""), 1_000);
        let new = Fact::default().with(News::over(5_000), 5_000);
        assert!(new.number > old.number);
        assert!(old.clone().with(News::over(900), 900).number > old.number, "and a clock set back");
    }
}
