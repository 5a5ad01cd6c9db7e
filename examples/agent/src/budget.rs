//! A token budget: how much work a prompt is worth.

/// How many output tokens a run is to use. A model that is done before 90 % of it is asked to go on, until that brings little three times
/// in a row. What it did before it was first asked is no such time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBudget {
    total: u64,
    used: u64,
    /// What was used when the model was asked to go on the last time, if it was.
    asked_at: Option<u64>,
    /// How often in a row that brought little.
    little: u32,
}

/// New tokens below which going on has brought little, and how often in a row is enough.
const LITTLE: u64 = 500;
const ENOUGH: u32 = 3;

impl TokenBudget {
    /// Of `total` output tokens.
    pub(crate) const fn new(total: u64) -> Self {
        Self { total, used: 0, asked_at: None, little: 0 }
    }

    /// An answer has used `tokens`.
    pub(crate) const fn spend(&mut self, tokens: u64) {
        self.used = self.used.saturating_add(tokens);
    }

    /// Whether a model that is done is to go on.
    pub(crate) fn wants_more(&self) -> bool {
        let is_used = u128::from(self.used) * 10 >= u128::from(self.total) * 9;
        !is_used && self.after_this() < ENOUGH
    }

    /// The model is asked to go on: what it reads.
    pub(crate) fn ask(&mut self) -> String {
        (self.little, self.asked_at) = (self.after_this(), Some(self.used));
        let percent = u128::from(self.used) * 100 / u128::from(self.total.max(1));
        format!(
            "You have used {percent} % of the effort that this task is worth ({} of {} tokens). Go on with the work itself: what is \
             missing, what can be checked, what can be better. Do not summarise.",
            self.used, self.total
        )
    }

    /// How often in a row it has brought little, the last time included.
    const fn after_this(&self) -> u32 {
        match self.asked_at {
            Some(asked_at) if self.used - asked_at < LITTLE => self.little + 1,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens of each turn, until the budget wants no more: how often the model was asked.
    fn asked(total: u64, turns: &[u64]) -> usize {
        let mut budget = TokenBudget::new(total);
        let mut asked = 0;
        for tokens in turns {
            budget.spend(*tokens);
            if !budget.wants_more() {
                return asked;
            }
            let text = budget.ask();
            assert!(text.contains(" % of the effort"), "{text}");
            asked += 1;
        }
        asked
    }

    #[test]
    fn it_ends_at_nine_tenths_or_when_little_comes() {
        for (total, turns, times) in [
            (10_000, &[9_000][..], 0),
            (10_000, &[8_999, 1], 1),
            (10_000, &[5_000, 3_000, 2_000], 2),
            // Going on has brought little three times in a row.
            (10_000, &[499, 499, 499, 499, 499], 3),
            (10_000, &[500, 499, 499, 499, 499], 3),
            (10_000, &[500, 499, 499, 500, 499, 499, 499, 499], 6),
            (0, &[0], 0),
            (u64::MAX, &[u64::MAX, 1], 0),
        ] {
            assert_eq!(asked(total, turns), times, "{total} {turns:?}");
        }
    }

    #[test]
    fn the_model_reads_its_share() {
        let mut budget = TokenBudget::new(10_000);
        budget.spend(4_250);
        assert!(budget.ask().contains("42 % of the effort that this task is worth (4250 of 10000"));
    }
}
