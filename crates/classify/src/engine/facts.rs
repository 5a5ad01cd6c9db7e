//! What was found in an error: codes, statuses, texts, waits and numbers, each with how deep it
//! was, because the innermost structured error decides.

use std::{borrow::Cow, time::Duration};

use smallvec::SmallVec;
use steadfast_core::{Dialect, Reason, Window};

use super::{
    codes::{self, Code, Weight},
    events::{self, Line},
    headers, unwrap,
    vendors::{self, Vendor},
};
use crate::Evidence;

/// How deep something was: strings unwrapped first, then objects within one document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// Strings unwrapped to get there.
    pub(crate) nest: u8,
    /// Objects around it in its document.
    pub(crate) depth: u8,
}

/// Which field a code was in, the more specific one last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Field {
    /// Found in prose at an anchored position.
    Prose,
    /// A header.
    Header,
    /// `status` or `domain`.
    Status,
    /// `type`, or an exception's name.
    Type,
    /// `code`.
    Code,
    /// `reason`, `error_code` and the like: finer than a code.
    Reason,
}

/// A known code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    pub(crate) rank: Rank,
    pub(crate) field: Field,
    pub(crate) code: Code,
}

#[derive(Clone, Debug)]
pub(crate) struct Text<'a> {
    pub(crate) rank: Rank,
    pub(crate) text: Cow<'a, str>,
}

/// Most texts and codes kept: real errors have a handful of each; more is an echo.
const MAX_TEXTS: usize = 12;
const MAX_HITS: usize = 24;
const MAX_UNKNOWN: usize = 6;

/// What a body's quota fields say about how long its limit lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) per_day: bool,
    pub(crate) per_minute: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Facts<'a> {
    /// Whose error it is, by the provider's name, the dialect and the body.
    pub(crate) vendors: SmallVec<[Vendor; 2]>,
    pub(crate) hits: SmallVec<[Hit; 6]>,
    pub(crate) texts: SmallVec<[Text<'a>; 4]>,
    /// Names that are in no table.
    pub(crate) unknown: SmallVec<[(Rank, Box<str>); 2]>,
    /// The innermost status stated in the body.
    pub(crate) status: Option<(Rank, u16)>,
    pub(crate) quota: Quota,
    /// From `RetryInfo`, `resets_in_seconds`, `estimated_time` and their like.
    pub(crate) wait: Option<Duration>,
    /// From `resets_at`: a moment, in epoch seconds or milliseconds.
    pub(crate) reset_at: Option<f64>,
    /// From `quotaResetTimeStamp`: a moment in RFC 3339.
    pub(crate) reset_date: Option<Cow<'a, str>>,
    pub(crate) window: Window,
    /// The parameter that a field of the error names; `Some(None)` for another part of the request.
    pub(crate) parameter: Option<Option<&'static str>>,
    pub(crate) request_id: Option<Cow<'a, str>>,
    /// A stop reason was met.
    pub(crate) stopped: bool,
    /// An object or string under `error`, or `success: false`: this is no success.
    pub(crate) is_error: bool,
}

impl<'a> Facts<'a> {
    /// Everything that `text`, the body of `evidence`, and the headers state.
    pub(crate) fn collect(evidence: &Evidence<'_>, text: &'a str) -> Self {
        let mut facts = Self {
            vendors: evidence.provider.map(vendors::of).unwrap_or_default(),
            ..Self::default()
        };
        if evidence.dialect == Some(Dialect::Gemini) {
            facts.vendor(vendors::GOOGLE);
        }
        if events::is_stream(text) {
            for line in events::lines(text) {
                if let Line::Data(document) | Line::Raw(document) = line {
                    unwrap::read(&mut facts, document, 0, Cow::Borrowed);
                }
            }
        } else {
            unwrap::read(&mut facts, text, 0, Cow::Borrowed);
        }
        for name in headers::errors(evidence.headers) {
            facts.code(Rank::default(), Field::Header, name);
        }
        // The innermost text first; equals keep their order.
        facts.texts.sort_by_key(|text| std::cmp::Reverse(text.rank));
        facts
    }

    /// Notes whose error it is.
    pub(crate) fn vendor(&mut self, vendor: Vendor) {
        if !self.vendors.contains(&vendor) {
            self.vendors.push(vendor);
        }
    }

    /// Notes a code by its name, if it is known, for one of the vendors or anywhere.
    pub(crate) fn code(&mut self, rank: Rank, field: Field, name: &str) -> bool {
        let Some(code) = codes::lookup(name, &self.vendors) else {
            self.unknown(rank, field, name);
            return false;
        };
        // Other gRPC servers write it `ResourceExhausted`.
        if code.name == "RESOURCE_EXHAUSTED" && name.contains('_') {
            self.vendor(vendors::GOOGLE);
        }
        if self.hits.len() < MAX_HITS {
            self.hits.push(Hit { rank, field, code });
        }
        true
    }

    /// Keeps a name that no table has. In prose only an exception differs from an ordinary word.
    fn unknown(&mut self, rank: Rank, field: Field, name: &str) {
        let is_name = match field {
            Field::Prose => name.ends_with("Error") || name.ends_with("Exception"),
            _ => name.bytes().any(|b| b.is_ascii_alphabetic()),
        };
        if is_name && self.unknown.len() < MAX_UNKNOWN {
            self.unknown.push((rank, name.into()));
        }
    }

    /// What the innermost unknown name seems to mean, and the name.
    pub(crate) fn guess(&self) -> Option<(Rank, Reason, &str)> {
        let mut best: Option<(Rank, Reason, &str)> = None;
        for (rank, name) in &self.unknown {
            if best.is_none_or(|best| *rank > best.0)
                && let Some(reason) = codes::guess(name)
            {
                best = Some((*rank, reason, name));
            }
        }
        best
    }

    /// Notes a status stated in the body. The innermost counts, and there the first.
    pub(crate) fn status(&mut self, rank: Rank, status: u64) -> bool {
        let Ok(status) = u16::try_from(status) else { return false };
        if !(400..=599).contains(&status) {
            return false;
        }
        if self.status.is_none_or(|(known, _)| rank > known) {
            self.status = Some((rank, status));
        }
        true
    }

    /// Notes a text for the rules.
    pub(crate) fn text(&mut self, rank: Rank, text: Cow<'a, str>) {
        if self.texts.len() < MAX_TEXTS && text.bytes().any(|b| b.is_ascii_alphabetic() || b > 127)
        {
            self.texts.push(Text { rank, text });
        }
    }

    /// The code of `weight` that decides: the innermost, and there the most specific field.
    pub(crate) fn best(&self, weight: Weight) -> Option<&Hit> {
        self.hits.iter().filter(|hit| hit.code.weight == weight).reduce(|best, hit| {
            if (hit.rank, hit.field) > (best.rank, best.field) { hit } else { best }
        })
    }

    /// How many things were found; shows whether a structure held anything.
    pub(crate) fn gained(&self) -> usize {
        self.hits.len()
            + self.texts.len()
            + usize::from(self.status.is_some())
            + usize::from(self.stopped)
            + usize::from(self.wait.is_some())
            + usize::from(self.is_error)
    }
}
