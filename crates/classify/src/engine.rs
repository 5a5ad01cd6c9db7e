//! The decision: pure, without I/O and clocks of its own.
//!
//! The order of evidence is written out in [`error`]; everything else here prepares for it
//! (statuses, headers) or refines what it found (waits, quotas, numbers).

mod answered;
mod block;
mod codes;
mod facts;
mod headers;
mod index;
mod keys;
mod map;
mod numbers;
mod patterns;
mod prose;
mod refine;
mod retry_after;
mod success;
pub(crate) mod transport;
mod unwrap;
mod walk;
mod window;

use std::{borrow::Cow, cell::OnceCell};

use http::StatusCode;
use smallvec::SmallVec;
use steadfast_core::{Dialect, Reason, Retry};

use self::{
    answered::answered,
    codes::{Code, Twist, Weight},
    facts::{Facts, Field, Hit, Rank},
    headers::Headers,
    numbers::{Numbers, Positions},
    patterns::{Circumstance, Found, Tier},
    refine::refine,
};
use crate::{Evidence, Transport, Verdict};

pub(crate) use self::answered::{has_stop, is_error_event};

/// How much of a body is read. Errors are a few hundred bytes; more is an echo or a web page.
pub(crate) const MAX_BODY: usize = 64 * 1024;

/// Most of a message kept on its way to a failure, which bounds it further.
const MAX_MESSAGE: usize = 4_096;

/// Builds the tables now rather than at the first failure.
pub(crate) fn warm() {
    patterns::warm();
    codes::warm();
    keys::warm();
    headers::warm();
}

/// Judges `evidence`; `None` when it is fine.
pub(crate) fn judge(evidence: &Evidence<'_>) -> Option<Verdict> {
    if let Some(transport) = evidence.transport {
        return Some(connection(evidence, transport));
    }
    let status = evidence.status.map(|status| status.as_u16());
    match status {
        Some(100..=199 | 304) => None,
        Some(200..=299) => answered(evidence),
        Some(300..=399) => Some(redirected(evidence)),
        _ => {
            let text = success::text(readable(evidence), MAX_BODY);
            Some(error(evidence, &text, status.filter(|status| *status >= 400)))
        }
    }
}

/// The body, unless it is compressed.
fn readable<'a>(evidence: &Evidence<'a>) -> &'a [u8] {
    match evidence.header(http::header::CONTENT_ENCODING) {
        None | Some("identity") => evidence.body,
        Some(_) => &[],
    }
}

/// A typed transport error decides before anything a text says.
fn connection(evidence: &Evidence<'_>, transport: Transport) -> Verdict {
    let text = success::text(evidence.body, MAX_MESSAGE);
    let mut verdict = Verdict::new(transport::reason(transport), format!("transport:{transport}"));
    let certificate = transport == Transport::Certificate
        || (transport == Transport::Tls && transport::is_certificate(&text));
    if certificate {
        verdict.retry = Some(Retry::No);
    }
    let headers = Headers::of(evidence.headers);
    verdict.retry_after = retry_after::from_headers(&headers, || evidence.now());
    verdict.message = text.trim().to_owned();
    verdict
}

/// No LLM API redirects a call: the base URL is wrong.
fn redirected(evidence: &Evidence<'_>) -> Verdict {
    let status = evidence.status.map_or(0, |status| status.as_u16());
    let mut verdict = Verdict::new(Reason::Unknown, format!("status:{status}"));
    let location = evidence.header(http::header::LOCATION).unwrap_or("an unnamed place");
    verdict.message = format!("redirected to {location}; the provider's base URL looks wrong");
    verdict
}

fn is(provider: &str, names: &[&str]) -> bool {
    names.iter().any(|name| codes::contains_ignore_case(provider, name))
}

/// What was found, before it is refined.
struct Finding {
    reason: Reason,
    twist: Twist,
    retry: Option<Retry>,
    rank: Rank,
    evidence: Cow<'static, str>,
}

impl Finding {
    fn code(hit: &Hit) -> Self {
        let evidence = match hit.field {
            Field::Header => Cow::Borrowed("header:x-amzn-errortype"),
            _ => Cow::Owned(["code:", hit.code.name].concat()),
        };
        let Code { reason, twist, .. } = hit.code;
        Self { reason, twist, retry: None, rank: hit.rank, evidence }
    }

    fn status(reason: Reason, status: u16) -> Self {
        Self { evidence: Cow::Owned(format!("status:{status}")), ..Self::plain(reason) }
    }

    fn plain(reason: Reason) -> Self {
        Self {
            reason,
            twist: Twist::Plain,
            retry: None,
            rank: Rank::default(),
            evidence: Cow::Borrowed("nothing known"),
        }
    }
}

/// A text in lower case.
struct Lowered {
    rank: Rank,
    text: String,
    positions: OnceCell<Positions>,
}

impl Lowered {
    /// It with its numbers, which are looked for once.
    fn numbers(&self) -> Numbers<'_> {
        let at = self.positions.get_or_init(|| numbers::positions(&self.text));
        Numbers { text: &self.text, at }
    }
}

/// What kinds of texts the patterns may ask for.
#[derive(Clone, Copy)]
struct Circumstances {
    google: bool,
    cerebras: bool,
}

/// Judges what is an error, whatever its status: `http` is the response's, when it is one.
fn error(evidence: &Evidence<'_>, text: &str, http: Option<u16>) -> Verdict {
    let mut facts = Facts { provider: evidence.provider, ..Facts::default() };
    if success::is_stream(text) {
        for data in success::data_lines(text) {
            unwrap::read(&mut facts, data, 0, Cow::Borrowed);
        }
    } else {
        unwrap::read(&mut facts, text, 0, Cow::Borrowed);
    }
    let headers = Headers::of(evidence.headers);
    for name in headers.errors() {
        facts.code(Rank::default(), Field::Header, name);
    }
    facts.settle();
    facts.google |= evidence.dialect == Some(Dialect::Gemini)
        || evidence.provider.is_some_and(|name| is(name, &["gemini", "google", "vertex"]));

    // The innermost status, except that a relay's own refusal of the caller stands.
    let status = match (http, facts.status) {
        (Some(own @ 401..=403), _) => Some(own),
        (_, Some((_, inner))) => Some(inner),
        (own, None) => own,
    };
    let lowered = lower(&facts);
    let circumstances = Circumstances {
        google: facts.google,
        cerebras: evidence.provider.is_some_and(|name| is(name, &["cerebras"])),
    };
    let found = in_order(&facts, &lowered, status, circumstances);
    let found = relay(found, http, &facts, || {
        retry_after::from_headers(&headers, || evidence.now()).is_some()
    });
    let mut verdict = refine(evidence, &headers, found, &facts, &lowered);
    verdict.message = message(&facts, text);
    verdict.request_id = request_id(&headers, &facts);
    verdict
}

fn lower(facts: &Facts<'_>) -> SmallVec<[Lowered; 4]> {
    facts
        .texts
        .iter()
        .map(|text| {
            let mut lower = text.text.to_ascii_lowercase();
            // Typographic quotes all begin with this byte.
            if memchr::memchr(0xE2, lower.as_bytes()).is_some() {
                lower = lower.replace(['’', '‘'], "'").replace(['“', '”'], "\"");
            }
            Lowered { rank: text.rank, text: lower, positions: OnceCell::new() }
        })
        .collect()
}

fn scan(lowered: &[Lowered], circumstances: Circumstances) -> SmallVec<[Found; 2]> {
    lowered
        .iter()
        .map(|lower| {
            let mut found = patterns::scan(&lower.text);
            if circumstances.google {
                found.note(Circumstance::Google);
            }
            if circumstances.cerebras {
                found.note(Circumstance::Cerebras);
            }
            found
        })
        .collect()
}

/// The order of evidence. Texts are asked from the innermost outwards, and only where no code
/// has settled it.
fn in_order(
    facts: &Facts<'_>,
    lowered: &[Lowered],
    status: Option<u16>,
    circumstances: Circumstances,
) -> Finding {
    if let Some(hit) = facts.best(Weight::Final) {
        return Finding::code(hit);
    }
    let scanned = scan(lowered, circumstances);
    let words = |tier: Tier| {
        lowered.iter().zip(&scanned).find_map(|(lower, found)| {
            let (pattern, evidence) = patterns::decide(tier, found, &lower.text, status)?;
            Some(Finding {
                reason: pattern.reason,
                twist: pattern.twist,
                retry: pattern.retry,
                rank: lower.rank,
                evidence: Cow::Borrowed(evidence),
            })
        })
    };
    words(Tier::Exact)
        .or_else(|| facts.best(Weight::Firm).map(Finding::code))
        .or_else(|| words(Tier::Loose))
        .or_else(|| asked_to_wait(lowered, status))
        .unwrap_or_else(|| weak(facts, status))
}

/// Whoever names a time to come back has a limit, whatever it is called.
fn asked_to_wait(lowered: &[Lowered], status: Option<u16>) -> Option<Finding> {
    if status.is_some() {
        return None;
    }
    lowered.iter().find_map(|lower| retry_after::from_text(lower.numbers()))?;
    Some(Finding { evidence: Cow::Borrowed("a wait"), ..Finding::plain(Reason::RateLimit) })
}

/// A status, or a code that says no more than one.
fn weak(facts: &Facts<'_>, status: Option<u16>) -> Finding {
    let hint = facts.best(Weight::Hint);
    // These say little: relays answer with them for everything.
    if matches!(status, None | Some(400 | 422 | 500 | 502)) {
        // An unknown name says more than a known one that stands for everything.
        let wide = |reason| matches!(reason, Reason::Format | Reason::ServerError);
        // What a server calls the caller's fault is no trouble of its own, whatever its name.
        let own = |reason| {
            matches!(
                reason,
                Reason::Network | Reason::Timeout | Reason::Overloaded | Reason::ServerError
            )
        };
        let guess = facts.guess().filter(|(rank, reason, _)| {
            hint.is_none_or(|hint| wide(hint.code.reason) && !wide(*reason) && *rank >= hint.rank)
                && !(own(*reason) && matches!(status, Some(400 | 422)))
        });
        if let Some((rank, reason, name)) = guess {
            let evidence = Cow::Owned(["name:", prose::head(name, 64)].concat());
            return Finding { rank, evidence, ..Finding::plain(reason) };
        }
    }
    match (status, hint) {
        (None, Some(hint)) => Finding::code(hint),
        // A 400 is the caller's whatever the code calls itself.
        (Some(status @ (400 | 422)), Some(hint)) if hint.code.reason == Reason::ServerError => {
            Finding::status(Reason::Format, status)
        }
        (Some(400 | 422 | 500 | 502), Some(hint)) => Finding::code(hint),
        (Some(status), _) => Finding::status(by_status(status), status),
        (None, None) => Finding::plain(Reason::Unknown),
    }
}

/// What a bare status stands for. Finer than the core's, which knows the common ones.
fn by_status(status: u16) -> Reason {
    match status {
        // Method, media type, length: the request is built for another endpoint.
        405 | 406 | 411 | 415 | 416 | 417 | 428 => Reason::Format,
        // Conflicts, misdirected requests, failed dependencies and early data pass; sent again,
        // they may arrive.
        409 | 421 | 424 | 425 => Reason::ServerError,
        410 => Reason::ModelNotFound,
        // Fireworks: the account is suspended.
        412 => Reason::Billing,
        431 => Reason::PayloadTooLarge,
        451 | 501 | 505 => Reason::Unsupported,
        // Cloudflare's and proxies' own.
        525..=528 | 530 => Reason::ServerError,
        598 | 599 => Reason::Timeout,
        _ => StatusCode::from_u16(status)
            .ok()
            .and_then(Reason::from_status)
            .filter(|reason| *reason != Reason::Unknown)
            .unwrap_or(if status >= 500 { Reason::ServerError } else { Reason::Unknown }),
    }
}

/// A relay's own 401, 402 or 403 stands against what its upstream is quoted with, unless the
/// quote explains it.
fn relay(
    found: Finding,
    http: Option<u16>,
    facts: &Facts<'_>,
    says_when: impl FnOnce() -> bool,
) -> Finding {
    // OpenRouter's 402 for credit that is in flight passes by itself; it says when.
    let in_flight = facts.hits.iter().any(|hit| hit.code.name == "openrouter_in_flight_budget");
    match http {
        Some(402) if in_flight && says_when() => Finding {
            reason: Reason::RateLimit,
            evidence: Cow::Borrowed("code:openrouter_in_flight_budget"),
            ..found
        },
        Some(402) if in_flight => Finding::status(Reason::Billing, 402),
        Some(status @ 401..=403) if found.rank.nest > 0 => match found.reason {
            Reason::RateLimit
            | Reason::Overloaded
            | Reason::ServerError
            | Reason::Timeout
            | Reason::Network
            | Reason::Format
            | Reason::PayloadTooLarge
            | Reason::Unknown => Finding::status(by_status(status), status),
            _ => found,
        },
        _ => found,
    }
}

/// The innermost text, for people.
fn message(facts: &Facts<'_>, text: &str) -> String {
    let inner = facts.texts.first().map_or(text, |text| &text.text);
    prose::head(inner.trim(), MAX_MESSAGE).to_owned()
}

fn request_id(headers: &Headers<'_>, facts: &Facts<'_>) -> Option<Box<str>> {
    let id = facts.request_id.as_deref().or_else(|| headers.request_id())?;
    Some(prose::head(id, 128).into())
}
