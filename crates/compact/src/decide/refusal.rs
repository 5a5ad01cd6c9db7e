//! What a provider's refusal of a request calls for. Pure.

use std::sync::LazyLock;

use steadfast_chat::{ChatRequest, Message, Part, transcript::is_thinking_refused};
use steadfast_core::{CallContext, Deadline, Failure, Reason, Retry};

use super::Refused;
use crate::apply::{has_media, has_word, table_lines};

/// What is done to a request that the provider refused, before it is sent once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// It has too many tokens: it is compacted.
    Compact,
    /// It has too many bytes: the largest results and media become markers.
    Lighten,
    /// An image or another medium is refused: it becomes a marker.
    OmitMedia,
    /// Its transcript breaks a rule: it is repaired.
    Repair,
    /// It has a parameter that the model does not take: the answer does without.
    LeaveOut,
    /// Its thinking is bound to another history, or not signed as it has to be: it is dropped.
    DropThinking,
}

impl Remedy {
    /// The name used in logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Remedy::Compact => "compact",
            Remedy::Lighten => "lighten",
            Remedy::OmitMedia => "omit_media",
            Remedy::Repair => "repair",
            Remedy::LeaveOut => "leave_out",
            Remedy::DropThinking => "drop_thinking",
        }
    }

    /// How often one call may have it, which may be compacted `overflows` times.
    const fn most(self, overflows: u32) -> u32 {
        match self {
            Remedy::Compact => overflows,
            // Of several a provider names one at a time.
            Remedy::LeaveOut => 4,
            Remedy::Lighten | Remedy::OmitMedia | Remedy::Repair | Remedy::DropThinking => 1,
        }
    }

    /// What `failure` calls for, of the call of `request`.
    fn of(request: &ChatRequest, failure: &Failure) -> Option<Self> {
        if failure.retry() == Retry::Forbidden || failure.is_delivered() || failure.attempts() == 0
        {
            return None;
        }
        let is_about_media = || {
            let texts = [failure.message(), failure.evidence()];
            texts.into_iter().any(names_media) && has_media(&request.messages)
        };
        match failure.reason() {
            Reason::ContextOverflow => Some(Self::Compact),
            Reason::Format | Reason::Unsupported if names_parameter(request, failure) => {
                Some(Self::LeaveOut)
            }
            // Another target may read what this one does not.
            Reason::Unsupported if request.context.alternatives > 0 => None,
            Reason::PayloadTooLarge | Reason::Format | Reason::Unsupported if is_about_media() => {
                Some(Self::OmitMedia)
            }
            Reason::PayloadTooLarge => Some(Self::Lighten),
            Reason::Format if is_thinking_refused(failure) && has_thinking(request) => {
                Some(Self::DropThinking)
            }
            // Where the same request may succeed, the model misbehaved.
            Reason::Format if failure.retry() == Retry::No => Some(Self::Repair),
            _ => None,
        }
    }
}

/// Whether a parameter of `request` is refused that it can do without.
fn names_parameter(request: &ChatRequest, failure: &Failure) -> bool {
    Refused::of(failure, request).is_some_and(|refused| refused.is_in(request))
}

/// Whether an error message is about an image or another medium.
fn names_media(text: &str) -> bool {
    static WORDS: LazyLock<Vec<&str>> =
        LazyLock::new(|| table_lines(include_str!("../../data/media_words.txt")).collect());
    let lower = text.to_lowercase();
    WORDS.iter().any(|word| has_word(&lower, word))
}

fn has_thinking(request: &ChatRequest) -> bool {
    request.messages.iter().flat_map(Message::parts).any(Part::is_thinking)
}

/// What one call remembers over its refusals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusals {
    /// How often each remedy was applied, by its position.
    tried: [u32; 6],
    /// How often a provider was asked in vain.
    asked: u32,
    /// What the provider counted last.
    requested: Option<u64>,
}

impl Refusals {
    /// A call with this context has failed: its attempts count for the next one, too.
    pub(crate) fn count(&mut self, context: &mut CallContext, failure: &Failure) {
        self.asked = self.asked.saturating_add(failure.attempts());
        context.attempts = context.attempts.saturating_add(failure.attempts());
    }

    /// How often a provider was asked in vain: the attempts of the failure that the caller gets.
    pub(crate) fn asked(&self) -> u32 {
        self.asked
    }

    /// The attempts in the head of an answer to a request with this context, whose own head says
    /// `attempts`: a client counts on from the context, a service of one's own may not.
    pub(crate) fn attempts(&self, context: &CallContext, attempts: u32) -> u32 {
        match self.asked {
            0 => attempts,
            _ => attempts.max(context.attempts.saturating_add(1)),
        }
    }

    /// How often `remedy` was applied.
    pub(crate) fn times(&self, remedy: Remedy) -> u32 {
        self.tried[remedy as usize]
    }

    /// What is done to `request`, which failed with `failure`; `None` to pass the failure on. Counts as
    /// applied. A compaction is made at most `overflows` times, and again only after progress.
    pub(crate) fn remedy(
        &mut self,
        request: &ChatRequest,
        failure: &Failure,
        overflows: u32,
    ) -> Option<Remedy> {
        let context = &request.context;
        if context.deadline.is_some_and(Deadline::is_past) || context.attempts_left() == 0 {
            return None;
        }
        let remedy = Remedy::of(request, failure)?;
        if self.times(remedy) >= remedy.most(overflows) {
            return None;
        }
        if remedy == Remedy::Compact {
            let requested = failure.window().unwrap_or_default().requested;
            if matches!((self.requested, requested), (Some(before), Some(now)) if now >= before) {
                return None;
            }
            self.requested = requested;
        }
        self.tried[remedy as usize] += 1;
        Some(remedy)
    }
}

#[cfg(test)]
mod tests {
    use steadfast_chat::{Role, Thinking};
    use steadfast_core::Window;

    use super::*;

    fn failure(reason: Reason, text: &str) -> Failure {
        Failure::new(reason, text)
    }

    #[test]
    fn a_refusal_calls_for_one_remedy() {
        use Reason::{
            ContentFilter, ContextOverflow, Format, Overloaded, PayloadTooLarge, Unsupported,
        };
        let text = ChatRequest::user("hi");
        let picture = Message::new(Role::User, vec![Part::image("image/png", "AAAA")]);
        let mut picture = ChatRequest::new(vec![picture]);
        let forbidden = failure(Format, "no").with_retry(Retry::Forbidden);
        for (request, failure, expected) in [
            (&text, failure(ContextOverflow, "too long"), Some(Remedy::Compact)),
            (&text, failure(PayloadTooLarge, "request entity too large"), Some(Remedy::Lighten)),
            (&picture, failure(PayloadTooLarge, "body too large"), Some(Remedy::Lighten)),
            (
                &picture,
                failure(PayloadTooLarge, "messages.0.content.0.image.source.base64: image exceeds"),
                Some(Remedy::OmitMedia),
            ),
            (&picture, failure(Format, "Could not process image"), Some(Remedy::OmitMedia)),
            (
                &picture,
                failure(Format, "At most 1 image(s) may be provided"),
                Some(Remedy::OmitMedia),
            ),
            (
                &picture,
                failure(Format, "Bad request").with_evidence("code:invalid_image_format"),
                Some(Remedy::OmitMedia),
            ),
            (&picture, failure(Format, "see the documentation"), Some(Remedy::Repair)),
            (&text, failure(Format, "Could not process image"), Some(Remedy::Repair)),
            (&text, failure(Format, "roles must alternate"), Some(Remedy::Repair)),
            (&text, failure(Format, "no call made").with_retry(Retry::Yes), None),
            (
                &picture,
                failure(Unsupported, "The model is not multimodal."),
                Some(Remedy::OmitMedia),
            ),
            (&text, failure(Unsupported, "no temperature"), None),
            (&text, failure(ContentFilter, "no"), None),
            (&text, failure(Overloaded, "busy"), None),
            (&text, failure(Format, "no").with_delivered(), None),
            (&text, failure(Format, "not sent").with_attempts(0), None),
            (&text, forbidden, None),
        ] {
            assert_eq!(Remedy::of(request, &failure), expected, "{failure}");
        }
        let thought = Thinking { signature: Some("s".into()), ..Thinking::default() };
        let thinking =
            ChatRequest::new(vec![Message::new(Role::Assistant, vec![Part::Thinking(thought)])]);
        let bound = failure(Format, "the block is bound to a different conversation")
            .with_evidence("pattern:bound to a different conversation");
        assert_eq!(Remedy::of(&thinking, &bound), Some(Remedy::DropThinking));
        assert_eq!(Remedy::of(&text, &bound), Some(Remedy::Repair), "there is none");
        let changed = failure(Format, "blocks in the latest assistant message cannot be modified")
            .with_evidence("pattern:`thinking` or `redacted_thinking`");
        assert_eq!(Remedy::of(&thinking, &changed), Some(Remedy::DropThinking));
        picture.context.alternatives = 1;
        let blind = failure(Unsupported, "The model is not multimodal.");
        assert_eq!(Remedy::of(&picture, &blind), None, "another target may read it");
        let broken = failure(Format, "Could not process image");
        assert_eq!(Remedy::of(&picture, &broken), Some(Remedy::OmitMedia));
    }

    #[test]
    fn each_remedy_is_applied_once_and_a_compaction_again_after_progress() {
        let request = ChatRequest::user("hi");
        let mut refusals = Refusals::default();
        let format = failure(Reason::Format, "no");
        assert_eq!(refusals.remedy(&request, &format, 2), Some(Remedy::Repair));
        assert_eq!(refusals.remedy(&request, &format, 2), None);
        let overflow = |requested| {
            let window = Window { limit: None, requested };
            failure(Reason::ContextOverflow, "").with_window(window)
        };
        assert_eq!(refusals.remedy(&request, &overflow(Some(9)), 2), Some(Remedy::Compact));
        assert_eq!(refusals.remedy(&request, &overflow(Some(9)), 2), None);
        assert_eq!(refusals.remedy(&request, &overflow(Some(8)), 2), Some(Remedy::Compact));
        assert_eq!(refusals.remedy(&request, &overflow(Some(1)), 2), None);
        assert_eq!((refusals.times(Remedy::Compact), refusals.times(Remedy::Lighten)), (2, 0));
        let mut once = Refusals::default();
        assert_eq!(once.remedy(&request, &overflow(Some(9)), 1), Some(Remedy::Compact));
        assert_eq!(once.remedy(&request, &overflow(Some(8)), 1), None);
    }

    #[test]
    fn attempts_are_counted_once() {
        let mut context = CallContext::new();
        context.attempts = 2;
        let mut refusals = Refusals::default();
        assert_eq!(refusals.attempts(&context, 3), 3, "nothing was asked in vain here");
        refusals.count(&mut context, &failure(Reason::Format, "").with_attempts(4));
        assert_eq!((refusals.asked(), context.attempts), (4, 6));
        assert_eq!(refusals.attempts(&context, 7), 7, "a client counts on from the context");
        assert_eq!(refusals.attempts(&context, 1), 7, "a service of one's own does not");
    }
}
