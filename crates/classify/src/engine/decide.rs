//! The order of evidence: which of the facts about an error decides.

use std::borrow::Cow;

use smallvec::SmallVec;
use steadfast_core::Reason;

use super::{
    codes::{Code, Effect, Weight},
    facts::{Facts, Field, Hit, Rank},
    headers,
    message::Message,
    prose, retry_after,
    rules::{self, Certainty, Known},
    statuses,
};
use crate::Evidence;

/// An error with all that is known of it.
#[derive(Debug)]
pub(super) struct Case<'a> {
    pub(super) evidence: &'a Evidence<'a>,
    /// The response's status, when it is one of an error.
    pub(super) http: Option<u16>,
    /// The status that counts.
    pub(super) status: Option<u16>,
    pub(super) facts: Facts<'a>,
    /// The facts' texts, the innermost first.
    pub(super) messages: SmallVec<[Message<'a>; 4]>,
}

/// What decided, and what it says.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) reason: Reason,
    pub(super) effect: Effect,
    pub(super) rank: Rank,
    pub(super) evidence: Cow<'static, str>,
}

impl Finding {
    fn code(hit: &Hit) -> Self {
        let evidence = match hit.field {
            Field::Header => Cow::Borrowed("header:x-amzn-errortype"),
            _ => Cow::Owned(["code:", hit.code.name].concat()),
        };
        let Code { reason, effect, .. } = hit.code;
        Self { reason, effect, rank: hit.rank, evidence }
    }

    pub(super) fn status(reason: Reason, status: u16) -> Self {
        Self::of(reason, format!("status:{status}"))
    }

    fn of(reason: Reason, evidence: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, effect: Effect::None, rank: Rank::default(), evidence: evidence.into() }
    }
}

impl<'a> Case<'a> {
    pub(super) fn new(evidence: &'a Evidence<'a>, text: &'a str, http: Option<u16>) -> Self {
        let mut facts = Facts::collect(evidence, text);
        // The innermost status, except that a relay's own refusal of the caller stands.
        let status = match (http, facts.status) {
            (Some(own @ 401..=403), _) => Some(own),
            (_, Some((_, inner))) => Some(inner),
            (own, None) => own,
        };
        let messages = std::mem::take(&mut facts.texts).into_iter().map(Message::new).collect();
        Self { evidence, http, status, facts, messages }
    }

    /// What decides. Texts are asked from the innermost outwards, and only where no code has
    /// decided.
    pub(super) fn decide(&self) -> Finding {
        let found = self
            .code(Weight::Final)
            .or_else(|| self.rule(Certainty::Exact))
            .or_else(|| self.code(Weight::Firm))
            .or_else(|| self.rule(Certainty::Loose))
            .or_else(|| self.stated_wait())
            .or_else(|| self.name())
            .unwrap_or_else(|| self.status());
        self.relayed(found)
    }

    fn code(&self, weight: Weight) -> Option<Finding> {
        self.facts.best(weight).map(Finding::code)
    }

    fn rule(&self, certainty: Certainty) -> Option<Finding> {
        let known = Known {
            vendors: &self.facts.vendors,
            status: self.status,
            coded: !self.facts.hits.is_empty(),
        };
        self.messages.iter().find_map(|message| {
            let (rule, phrase) = rules::decide(certainty, message.found(), known)?;
            Some(Finding {
                reason: rule.reason,
                effect: rule.effect,
                rank: message.rank(),
                evidence: Cow::Owned(["pattern:", phrase].concat()),
            })
        })
    }

    /// Whoever states when to come back has a limit, whatever it is called.
    fn stated_wait(&self) -> Option<Finding> {
        if self.status.is_some() {
            return None;
        }
        self.messages.iter().find_map(retry_after::from_text)?;
        Some(Finding::of(Reason::RateLimit, "a wait"))
    }

    /// What an unknown name is made of, where the status says little: relays answer with these
    /// for everything.
    fn name(&self) -> Option<Finding> {
        if !matches!(self.status, None | Some(400 | 422 | 500 | 502)) {
            return None;
        }
        let (rank, reason, name) = self.facts.guess()?;
        // An unknown name says more than a known one that stands for everything.
        let wide = |reason| matches!(reason, Reason::Format | Reason::ServerError);
        if let Some(hint) = self.facts.best(Weight::Hint)
            && (!wide(hint.code.reason) || wide(reason) || rank < hint.rank)
        {
            return None;
        }
        // What a server calls the caller's fault is none of its own, whatever its name.
        let own = matches!(
            reason,
            Reason::Network | Reason::Timeout | Reason::Overloaded | Reason::ServerError
        );
        if own && matches!(self.status, Some(400 | 422)) {
            return None;
        }
        let evidence = ["name:", prose::head(name, 64)].concat();
        Some(Finding { rank, ..Finding::of(reason, evidence) })
    }

    /// A status, or a code that says no more than one.
    fn status(&self) -> Finding {
        match (self.status, self.facts.best(Weight::Hint)) {
            (None, Some(hint)) => Finding::code(hint),
            // A 400 is the caller's whatever the code calls itself.
            (Some(status @ (400 | 422)), Some(hint)) if hint.code.reason == Reason::ServerError => {
                Finding::status(Reason::Format, status)
            }
            (Some(400 | 422 | 500 | 502), Some(hint)) => Finding::code(hint),
            (Some(status), _) => Finding::status(statuses::reason(status), status),
            (None, None) => Finding::of(Reason::Unknown, "nothing known"),
        }
    }

    /// A relay's own 401, 402 or 403 stands against what its upstream is quoted with, unless the
    /// quote explains it.
    fn relayed(&self, found: Finding) -> Finding {
        // OpenRouter's 402 for credit that is in use by other calls clears by itself; then it
        // says when.
        const IN_USE: &str = "openrouter_in_flight_budget";
        let in_use = self.facts.hits.iter().any(|hit| hit.code.name == IN_USE);
        match self.http {
            Some(402) if in_use && self.header_wait().is_some() => Finding {
                reason: Reason::RateLimit,
                evidence: Cow::Owned(["code:", IN_USE].concat()),
                ..found
            },
            Some(402) if in_use => Finding::status(Reason::Billing, 402),
            Some(status @ 401..=403) if found.rank.nest > 0 => match found.reason {
                Reason::RateLimit
                | Reason::Overloaded
                | Reason::ServerError
                | Reason::Timeout
                | Reason::Network
                | Reason::Format
                | Reason::PayloadTooLarge
                | Reason::Unknown => Finding::status(statuses::reason(status), status),
                _ => found,
            },
            _ => found,
        }
    }

    /// How long the headers ask to wait. The clock is read only where there is something to
    /// compare with it.
    pub(super) fn header_wait(&self) -> Option<std::time::Duration> {
        retry_after::from_headers(self.evidence.headers, || self.evidence.now())
    }

    /// The provider's id of the request.
    pub(super) fn request_id(&self) -> Option<Box<str>> {
        let stated = self.facts.request_id.as_deref();
        let id = stated.or_else(|| headers::request_id(self.evidence.headers))?;
        Some(prose::head(id, 128).into())
    }

    /// Whether a phrase of `set` is in one of the texts.
    pub(super) fn has(&self, set: &str) -> bool {
        self.messages.iter().any(|message| message.found().has_named(set))
    }
}
