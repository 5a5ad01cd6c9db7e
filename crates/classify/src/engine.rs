//! The decision: pure, without I/O and clocks of its own.
//!
//! From top to bottom: [`unwrap`] takes a body apart, [`facts`] collects what it states,
//! [`decide`] has the order of evidence, and [`refine`] adds waits and numbers. What providers'
//! codes, phrases and keys mean are data files, which [`table`] reads.

mod answer;
mod codes;
mod decide;
pub(crate) mod events;
mod facts;
mod headers;
mod keys;
mod message;
mod numbers;
mod parameter;
mod phrases;
mod prose;
mod refine;
mod retry_after;
mod rules;
mod sockets;
mod statuses;
mod success;
mod table;
pub(crate) mod transport;
mod unwrap;
mod vendors;
mod walk;
mod window;

use http::header::{CONTENT_ENCODING, LOCATION};
use steadfast_core::{Reason, Retry};

use self::decide::{Case, Finding};
use crate::{Evidence, TransportErrorKind, Verdict};

pub(crate) use self::{
    answer::text,
    success::{empty, has_stop, is_error},
};

/// How much of a body is read. Errors are a few hundred bytes; more is an echo or a web page.
pub(crate) const MAX_BODY: usize = 64 * 1024;

/// Most of a message that is kept for a failure, which bounds it further.
const MAX_MESSAGE: usize = 4_096;

/// Reads the tables now rather than at the first failure.
pub(crate) fn warm() {
    vendors::warm();
    codes::warm();
    phrases::warm();
    rules::warm();
    keys::warm();
    parameter::warm();
    headers::warm();
    prose::warm();
    statuses::warm();
    transport::warm();
}

/// Judges `evidence` of an LLM API; `None` when it is fine.
pub(crate) fn judge(evidence: &Evidence<'_>) -> Option<Verdict> {
    if let Some(transport) = evidence.transport {
        return Some(connection(evidence, transport));
    }
    let status = evidence.status.map(|status| status.as_u16());
    match status {
        Some(100..=199 | 304) => None,
        Some(200..=299) => success::judge(evidence),
        Some(300..=399) => Some(redirected(evidence)),
        _ => {
            let text = answer::text(readable(evidence), MAX_BODY);
            Some(error(evidence, &text, status.filter(|status| *status >= 400)))
        }
    }
}

/// Judges an answer of any HTTP service: its status and headers decide, its body is its own affair.
pub(crate) fn judge_http(evidence: &Evidence<'_>) -> Option<Verdict> {
    let Some(status) = evidence.status.filter(|_| evidence.transport.is_none()) else {
        return judge(evidence);
    };
    let status = status.as_u16();
    (status >= 400).then(|| {
        let case = Case::new(evidence, "", Some(status));
        refine::refine(&case, Finding::status(statuses::http_reason(status), status))
    })
}

/// Judges what is an error, whatever its status: `http` is the response's, when it is one.
fn error(evidence: &Evidence<'_>, text: &str, http: Option<u16>) -> Verdict {
    let case = Case::new(evidence, text, http);
    let found = case.decide();
    let mut verdict = refine::refine(&case, found);
    let innermost = case.messages.first().map_or(text, |message| message.text());
    verdict.message = prose::head(innermost.trim(), MAX_MESSAGE).to_owned();
    verdict
}

/// A typed transport error decides before anything a text says.
fn connection(evidence: &Evidence<'_>, transport: TransportErrorKind) -> Verdict {
    let text = answer::text(evidence.body, MAX_MESSAGE);
    let mut verdict = Verdict::new(transport::reason(transport), format!("transport:{transport}"));
    // A certificate does not become valid by itself.
    let certificate = || {
        let found = phrases::find(&phrases::normalized(&text));
        found.has_named("tls-certificate") && !found.has_named("not-tls-certificate")
    };
    if transport == TransportErrorKind::Certificate
        || (transport == TransportErrorKind::Tls && certificate())
    {
        verdict.retry = Some(Retry::No);
    }
    let wait = retry_after::from_headers(evidence.headers, || evidence.now());
    verdict.retry_after = wait.map(|wait| wait.min(retry_after::longest(verdict.reason, false)));
    verdict.message = text.trim().to_owned();
    verdict
}

/// No LLM API redirects a call: the base URL is wrong.
fn redirected(evidence: &Evidence<'_>) -> Verdict {
    let status = evidence.status.map_or(0, |status| status.as_u16());
    let mut verdict = Verdict::new(Reason::Unknown, format!("status:{status}"));
    let location = evidence.header(LOCATION).unwrap_or("no location");
    verdict.message = format!("redirected to {location}; the provider's base URL is wrong");
    verdict
}

/// The body, unless it is compressed.
fn readable<'a>(evidence: &Evidence<'a>) -> &'a [u8] {
    match evidence.header(CONTENT_ENCODING) {
        None | Some("identity") => evidence.body,
        Some(_) => &[],
    }
}
