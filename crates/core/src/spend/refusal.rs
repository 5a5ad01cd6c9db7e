//! Why a call may not be made.

use std::{fmt, time::Duration};

use super::{SpendAccount, SpendWindow};

/// A cap that leaves too little for a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct SpendRefusal {
    /// Whose cap.
    pub account: SpendAccount,
    /// Which window.
    pub window: SpendWindow,
    /// Whether the cap on money is meant, or else that on tokens.
    pub is_cost: bool,
    /// The cap.
    pub cap: u64,
    /// What is used of it, reservations of calls under way included.
    pub used: u64,
    /// What the call would reserve.
    pub requested: u64,
    /// When there is room for it, if calls under way use what they have reserved; `None` when it is more
    /// than the cap.
    pub frees_in: Option<Duration>,
    /// The shared state has not been asked for more yet: it may [lease](super::SpendLedger::lease) it within
    /// milliseconds.
    pub unasked: bool,
    /// The shared state can not be asked, and without it nobody knows what is left.
    pub away: bool,
}

impl fmt::Display for SpendRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.away {
            let (account, unit, window) = (&self.account, self.unit(), self.window.as_str());
            return write!(
                f,
                "the cap of {account} on the {unit} of a {window} is shared with other processes, and the state that \
                 they share can not be reached; by `strict`, nothing is spent that it has not granted"
            );
        }
        let Self { account, window, cap, used, requested, .. } = self;
        write!(f, "the cap of {account} on the {} of a {} ", self.unit(), window.as_str())?;
        match self.is_cost {
            true => write!(
                f,
                "is {}: {} are used, and this call may need {}; ",
                Dollars(*cap),
                Dollars(*used),
                Dollars(*requested)
            )?,
            false => {
                write!(f, "is {cap}: {used} are used, and this call may need {requested}; ")?;
            }
        }
        match self.frees_in {
            Some(wait) => write!(f, "there is room for it in {} s", wait.as_secs().max(1)),
            None => f.write_str("it is larger than the whole cap"),
        }
    }
}

impl SpendRefusal {
    const fn unit(&self) -> &'static str {
        if self.is_cost { "cost" } else { "tokens" }
    }
}

/// Micro-dollars, as people read them.
struct Dollars(u64);

impl fmt::Display for Dollars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}
