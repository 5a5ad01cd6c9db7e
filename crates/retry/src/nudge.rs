//! The message added to a retried request.

use std::{borrow::Cow, fmt, sync::Arc};

use steadfast_core::Reason;

/// What is known about a retry, for a closure given to
/// [`RetryBackoffLayer::with_nudge`](crate::RetryBackoffLayer::with_nudge).
///
/// It does not contain the text of the error, so that nothing a provider wrote gets into a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nudge {
    /// Which retry it is; 1 is the first.
    pub retry: u32,
    /// Why the attempt before failed.
    pub reason: Reason,
    /// The answer had begun when it failed.
    pub began: bool,
}

/// Makes the message of a retried request, or none.
pub(crate) type MakeNudge = Arc<dyn Fn(&Nudge) -> Option<Cow<'static, str>> + Send + Sync>;

impl Nudge {
    pub(crate) const fn new(retry: u32, reason: Reason, began: bool) -> Self {
        Self { retry, reason, began }
    }

    /// The built-in message: the first asks to continue, every later one to finish. There is none
    /// after throttling, since the provider had not begun to answer.
    pub const fn text(&self) -> Option<&'static str> {
        if self.reason.is_throttling() { None } else { Some(self.any_text()) }
    }

    /// The same, whatever the reason.
    const fn any_text(&self) -> &'static str {
        match self.retry {
            0 | 1 => CARRY_ON,
            _ => FINISH,
        }
    }
}

const CARRY_ON: &str = "The previous attempt to answer was interrupted by a technical problem. \
                        Please carry on with the task from where the conversation stands.";

const FINISH: &str = "The answer was interrupted again by a technical problem. Please finish now \
                      from what you already have, as briefly as the task allows.";

/// Which message a retried request gets.
#[derive(Clone)]
pub(crate) enum Nudging {
    Off,
    BuiltIn {
        /// After throttling too.
        throttled: bool,
    },
    Custom(MakeNudge),
}

impl Nudging {
    pub(crate) fn text(&self, nudge: &Nudge) -> Option<Cow<'static, str>> {
        match self {
            Nudging::Off => None,
            Nudging::BuiltIn { throttled: false } => nudge.text().map(Cow::Borrowed),
            Nudging::BuiltIn { throttled: true } => Some(Cow::Borrowed(nudge.any_text())),
            Nudging::Custom(make) => make(nudge),
        }
    }
}

impl fmt::Debug for Nudging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Nudging::Off => "Off",
            Nudging::BuiltIn { .. } => "BuiltIn",
            Nudging::Custom(_) => "Custom",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_carry_on_then_finish_and_nothing_without_a_beginning() {
        assert_eq!(Nudge::new(1, Reason::Timeout, true).text(), Some(CARRY_ON));
        for retry in [2, 3, u32::MAX] {
            assert_eq!(Nudge::new(retry, Reason::Network, false).text(), Some(FINISH));
        }
        for reason in [Reason::RateLimit, Reason::Overloaded] {
            assert_eq!(Nudge::new(1, reason, true).text(), None);
        }
    }
}
