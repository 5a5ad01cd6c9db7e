//! The faults of the matrix, and the expected outcome of each.

use std::{collections::BTreeMap, time::Duration};

use steadfast::{
    Dialect, Reason,
    sim::{ErrorKind, Fault, How, RateLimit, RawResponse},
};

/// The stall limit, the default.
pub(crate) const STALL: u64 = 180_000;

/// The limit of an attempt that is not the first, the default.
const ATTEMPT: u64 = 60_000;

/// The deadline, the default.
pub(crate) const DEADLINE: u64 = 600_000;

/// The wait before the retry in place where there is a spare: the default backoff, without its jitter.
const ONCE: &[u64] = &[500];

/// The same at a provider without capacity.
const TWICE: &[u64] = &[500, 1_000];

/// The waits of a provider that is alone: the backoff, as far as a call waits.
const BACKOFF: &[u64] = &[500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000, 10_000];

/// A broken stream breaks after so many pieces of text.
pub(crate) const PIECES: usize = 8;

/// One line of the matrix.
pub(crate) struct Line {
    /// The fault of every attempt at the primary.
    pub(crate) name: &'static str,
    /// The fault, for a primary of this dialect and a stream or a whole answer, and its expected
    /// outcome; `None` where the dialect has no such fault.
    pub(crate) cell: fn(Dialect, bool) -> Option<(Fault, Expected)>,
}

/// The expected outcome of a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Expected {
    /// The waits between the attempts at the primary, in milliseconds.
    pub(crate) waits: &'static [u64],
    /// How long the last of those attempts took, in milliseconds.
    pub(crate) last: u64,
    /// What the caller gets.
    pub(crate) outcome: Outcome,
    /// Whether it is held against the primary.
    pub(crate) blames: bool,
    /// The reason of the alarm, if one is raised.
    pub(crate) alarm: Option<Reason>,
    /// The waits between the attempts without a spare, in milliseconds.
    pub(crate) alone: &'static [u64],
    /// How long the first of those attempts takes; no other one takes longer.
    pub(crate) each: u64,
}

/// What a caller gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// The whole answer of the spare.
    Spare,
    /// The primary's refusal; the spare is not called.
    Refusal(Reason),
    /// What had arrived until then, and one failure; the spare is not called.
    Partial(Reason),
}

impl Expected {
    /// How long the call takes.
    pub(crate) fn took(&self) -> Duration {
        Duration::from_millis(self.waits.iter().sum::<u64>() + self.last)
    }

    /// The same without a spare.
    pub(crate) fn took_alone(&self) -> Duration {
        let further = self.alone.len() as u64 * self.each.min(ATTEMPT);
        Duration::from_millis(self.alone.iter().sum::<u64>() + self.each + further)
    }
}

const fn expected(waits: &'static [u64], last: u64, outcome: Outcome) -> Expected {
    Expected { waits, last, outcome, blames: true, alarm: None, alone: &[], each: 0 }
}

/// Retries at the primary, then the spare.
const fn retried(waits: &'static [u64]) -> Expected {
    Expected { alone: BACKOFF, ..expected(waits, 0, Outcome::Spare) }
}

/// No retry, the spare at once, and an alarm.
const fn account(reason: Reason) -> Expected {
    Expected { alarm: Some(reason), ..expected(&[], 0, Outcome::Spare) }
}

/// Silent for one stall limit, then the spare. Alone, a stream is asked for once more; a whole answer is
/// silent by nature and has the time of the call.
const fn silent(stream: bool) -> Expected {
    let silent = expected(&[], STALL, Outcome::Spare);
    match stream {
        true => Expected { alone: &[500], each: STALL, ..silent },
        false => Expected { each: DEADLINE, ..silent },
    }
}

const fn refusal(reason: Reason) -> Expected {
    expected(&[], 0, Outcome::Refusal(reason))
}

const fn partial(reason: Reason) -> Expected {
    expected(&[], 0, Outcome::Partial(reason))
}

fn error(kind: ErrorKind, expected: Expected) -> Option<(Fault, Expected)> {
    Some((Fault::Error(kind), expected))
}

/// Throttled, with this hint.
fn limited(hints: RateLimit, hint: u64) -> Option<(Fault, Expected)> {
    let (waits, alone): (&[u64], &[u64]) = match hint {
        0 => (&[], BACKOFF),
        1_000 => (&[1_000], &[1_000; 10]),
        1_500 => (&[], &[1_500; 10]),
        2_000 => (&[], &[2_000; 10]),
        25_000 => (&[], &[25_000; 2]),
        _ => (&[], &[]),
    };
    Some((Fault::rate_limit(hints), Expected { alone, ..retried(waits) }))
}

/// This status, with a body that says nothing.
fn status(status: u16) -> Option<(Fault, Expected)> {
    let response = RawResponse { status, headers: BTreeMap::new(), body: String::new() };
    Some((Fault::Status(response), retried(ONCE)))
}

/// A break in the middle. Nothing of a whole answer has reached the caller by then.
fn broken(
    how: How,
    stream: bool,
    streamed: Expected,
    whole: Expected,
) -> Option<(Fault, Expected)> {
    Some((Fault::break_after(PIECES, how), if stream { streamed } else { whole }))
}

/// The matrix.
pub(crate) const LINES: [Line; 35] = [
    Line { name: "500", cell: |_, _| error(ErrorKind::ServerError, retried(ONCE)) },
    Line {
        name: "502 with a page of HTML",
        cell: |_, _| error(ErrorKind::BadGatewayHtml, retried(ONCE)),
    },
    Line { name: "504", cell: |_, _| error(ErrorKind::GatewayTimeout, retried(ONCE)) },
    Line { name: "520", cell: |_, _| status(520) },
    Line { name: "599, which nobody has defined", cell: |_, _| status(599) },
    Line { name: "408", cell: |_, _| status(408) },
    Line { name: "409", cell: |_, _| status(409) },
    Line {
        name: "501: it has no such thing",
        cell: |_, _| {
            let at_once = Expected { blames: false, ..expected(&[], 0, Outcome::Spare) };
            status(501).map(|(fault, _)| (fault, at_once))
        },
    },
    Line {
        name: "529 (Anthropic), 503 (the others): overloaded",
        cell: |_, _| error(ErrorKind::Overloaded, retried(TWICE)),
    },
    Line { name: "connection refused", cell: |_, _| Some((Fault::Refused, retried(ONCE))) },
    Line { name: "reset before the headers", cell: |_, _| Some((Fault::Reset, retried(ONCE))) },
    Line { name: "closed before the headers", cell: |_, _| Some((Fault::Close, retried(ONCE))) },
    Line { name: "closed in the headers", cell: |_, _| Some((Fault::HalfHeaders, retried(ONCE))) },
    Line {
        name: "401: the operator's key is refused",
        cell: |_, _| error(ErrorKind::Auth, account(Reason::Auth)),
    },
    Line {
        name: "404: the model is gone",
        cell: |_, _| error(ErrorKind::ModelNotFound, account(Reason::ModelNotFound)),
    },
    Line {
        name: "400: the request is malformed",
        cell: |_, _| error(ErrorKind::Format, refusal(Reason::Format)),
    },
    Line {
        name: "400: the context overflows",
        cell: |_, _| error(ErrorKind::ContextOverflow, refusal(Reason::ContextOverflow)),
    },
    Line { name: "429 without a hint", cell: |_, _| limited(RateLimit::default(), 0) },
    Line { name: "429, `retry-after: 1`", cell: |_, _| limited(RateLimit::after("1"), 1_000) },
    Line { name: "429, `retry-after: 2`", cell: |_, _| limited(RateLimit::after("2"), 2_000) },
    Line { name: "429, `retry-after: 25`", cell: |_, _| limited(RateLimit::after("25"), 25_000) },
    Line { name: "429, `retry-after: 90`", cell: |_, _| limited(RateLimit::after("90"), 90_000) },
    Line {
        name: "429, `retry-after-ms: 1500`",
        cell: |_, _| limited(RateLimit::after_ms(1_500), 1_500),
    },
    Line { name: "429, `retry-after: 1.5`", cell: |_, _| limited(RateLimit::after("1.5"), 1_500) },
    Line {
        name: "429, `x-ratelimit-reset-requests: 1.5s` (Gemini: `retryDelay` 1.5s)",
        cell: |dialect, _| {
            let retry_info = Some("1.5s".to_owned());
            match dialect {
                Dialect::OpenAi | Dialect::Responses => limited(RateLimit::reset("1.5s"), 1_500),
                Dialect::Gemini => limited(RateLimit { retry_info, ..RateLimit::default() }, 1_500),
                _ => None,
            }
        },
    },
    Line {
        name: "429, 400: `insufficient_quota`, no credit left",
        cell: |dialect, _| match dialect {
            // Gemini has the same message for a quota of the day, which resets by itself.
            Dialect::Gemini => None,
            _ => error(ErrorKind::InsufficientQuota, account(Reason::Billing)),
        },
    },
    Line { name: "headers never arrive", cell: |_, stream| Some((Fault::Hang, silent(stream))) },
    Line {
        name: "200 with an error, in a stream as its first event",
        cell: |_, stream| {
            let kind = ErrorKind::ServerError;
            let fault = match stream {
                true => Fault::break_after(0, How::ErrorEvent(kind)),
                false => Fault::ErrorInOk(kind),
            };
            Some((fault, retried(ONCE)))
        },
    },
    Line {
        name: "200 without content, of an OpenAI stream only `[DONE]`",
        cell: |_, _| Some((Fault::Empty, retried(ONCE))),
    },
    Line {
        name: "first token after 11 min",
        cell: |_, stream| Some((Fault::first_token_after_ms(660_000), silent(stream))),
    },
    Line {
        name: "cut in the middle",
        cell: |_, stream| broken(How::Reset, stream, partial(Reason::Network), retried(ONCE)),
    },
    Line {
        name: "clean end in the middle",
        cell: |_, stream| broken(How::End, stream, partial(Reason::Network), retried(ONCE)),
    },
    Line {
        name: "silence in the middle",
        cell: |_, stream| {
            let streamed = Expected { last: STALL, each: STALL, ..partial(Reason::Timeout) };
            broken(How::Stall, stream, streamed, silent(false))
        },
    },
    Line {
        name: "error event in the middle",
        cell: |_, stream| {
            let how = How::ErrorEvent(ErrorKind::ServerError);
            broken(how, stream, partial(Reason::ServerError), retried(ONCE))
        },
    },
    Line {
        name: "malformed JSON in the middle",
        cell: |_, stream| {
            broken(How::MalformedJson, stream, partial(Reason::ServerError), retried(ONCE))
        },
    },
];
