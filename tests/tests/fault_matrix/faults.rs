//! The faults of the matrix, and the expected outcome of each.

use std::time::Duration;

use steadfast::{
    Dialect, Reason,
    sim::{ErrorKind, Fault, How, RateLimit},
};

/// The stall limit of the matrix.
pub(crate) const STALL: u64 = 5_000;

/// How long a whole answer may take, which is silent by nature.
pub(crate) const CEILING: u64 = 10 * STALL;

/// The wait before the one retry that a call with a spare makes: the default backoff, without its jitter.
const ONE: &[u64] = &[500];

/// Those of a provider without capacity.
const TWO: &[u64] = &[500, 1_000];

/// Those of a call without a spare, until it has waited as long as it may.
const ALL: &[u64] = &[500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000, 10_000];

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
    /// The same when the primary is alone.
    pub(crate) alone: &'static [u64],
    /// How long each of those attempts takes, in milliseconds.
    pub(crate) each: u64,
    /// What the caller gets.
    pub(crate) outcome: Outcome,
    /// The reason of the alarm, if one is raised.
    pub(crate) alarm: Option<Reason>,
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
    /// The whole answer of the primary, late.
    Late,
}

impl Expected {
    /// How long the call takes, with those waits between its attempts.
    pub(crate) fn took(&self, waits: &[u64]) -> Duration {
        let attempts = waits.len() as u64 + 1;
        Duration::from_millis(waits.iter().sum::<u64>() + attempts * self.each)
    }
}

const fn expected(waits: &'static [u64], each: u64, outcome: Outcome) -> Expected {
    Expected { waits, alone: waits, each, outcome, alarm: None }
}

/// Retries at the primary, then the spare.
const fn retried(waits: &'static [u64]) -> Expected {
    Expected { alone: ALL, ..expected(waits, 0, Outcome::Spare) }
}

/// No retry, the spare at once, and an alarm.
const fn account(reason: Reason) -> Expected {
    Expected { alarm: Some(reason), ..expected(&[], 0, Outcome::Spare) }
}

/// Silent for one stall limit, then the spare; without one, the same again.
const SILENT: Expected = Expected { alone: ONE, ..expected(&[], STALL, Outcome::Spare) };

/// The same for a whole answer.
const SILENT_WHOLE: Expected = Expected { each: CEILING, ..SILENT };

const fn refusal(reason: Reason) -> Expected {
    expected(&[], 0, Outcome::Refusal(reason))
}

const fn partial(reason: Reason) -> Expected {
    expected(&[], 0, Outcome::Partial(reason))
}

fn error(kind: ErrorKind, expected: Expected) -> Option<(Fault, Expected)> {
    Some((Fault::Error(kind), expected))
}

fn limited(
    hints: RateLimit,
    waits: &'static [u64],
    alone: &'static [u64],
) -> Option<(Fault, Expected)> {
    Some((Fault::rate_limit(hints), Expected { alone, ..retried(waits) }))
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
pub(crate) const LINES: [Line; 20] = [
    Line { name: "500", cell: |_, _| error(ErrorKind::ServerError, retried(ONE)) },
    Line {
        name: "529 (Anthropic), 503 (the others): overloaded",
        cell: |_, _| error(ErrorKind::Overloaded, retried(TWO)),
    },
    Line {
        name: "401: the operator's key is refused",
        cell: |_, _| error(ErrorKind::Auth, account(Reason::Auth)),
    },
    Line {
        name: "400: the request is malformed",
        cell: |_, _| error(ErrorKind::Format, refusal(Reason::Format)),
    },
    Line {
        name: "400: the context overflows",
        cell: |_, _| error(ErrorKind::ContextOverflow, refusal(Reason::ContextOverflow)),
    },
    Line { name: "429 without a hint", cell: |_, _| limited(RateLimit::default(), &[], ALL) },
    Line {
        name: "429, `retry-after: 2`",
        cell: |_, _| limited(RateLimit::after("2"), &[], &[2_000; 10]),
    },
    Line {
        name: "429, `retry-after-ms: 900`",
        cell: |_, _| limited(RateLimit::after_ms(900), &[900], &[900; 10]),
    },
    Line {
        name: "429, `retry-after: 0.5`",
        cell: |_, _| limited(RateLimit::after("0.5"), &[500], &[500; 10]),
    },
    Line {
        name: "429, `x-ratelimit-reset-requests: 0.5s` (Gemini: `retryDelay` 0.5s)",
        cell: |dialect, _| {
            let retry_info = Some("0.5s".to_owned());
            match dialect {
                Dialect::OpenAi => limited(RateLimit::reset("0.5s"), &[500], &[500; 10]),
                Dialect::Gemini => {
                    limited(RateLimit { retry_info, ..RateLimit::default() }, &[500], &[500; 10])
                }
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
    Line {
        name: "headers never arrive",
        cell: |_, stream| Some((Fault::Hang, if stream { SILENT } else { SILENT_WHOLE })),
    },
    Line {
        name: "200 with an error, in a stream as its first event",
        cell: |_, stream| {
            let kind = ErrorKind::ServerError;
            let fault = match stream {
                true => Fault::break_after(0, How::ErrorEvent(kind)),
                false => Fault::ErrorInOk(kind),
            };
            Some((fault, retried(ONE)))
        },
    },
    Line {
        name: "200 without content, of an OpenAI stream only `[DONE]`",
        cell: |_, _| Some((Fault::Empty, retried(ONE))),
    },
    Line {
        name: "first token after 20 s",
        cell: |_, stream| {
            let late = expected(&[], 20_000, Outcome::Late);
            let fault = Fault::first_token_after_ms(20_000);
            Some((fault, if stream { SILENT } else { late }))
        },
    },
    Line {
        name: "cut in the middle",
        cell: |_, stream| broken(How::Reset, stream, partial(Reason::Network), retried(ONE)),
    },
    Line {
        name: "clean end in the middle",
        cell: |_, stream| broken(How::End, stream, partial(Reason::Network), retried(ONE)),
    },
    Line {
        name: "silence in the middle",
        cell: |_, stream| {
            let streamed = Expected { each: STALL, ..partial(Reason::Timeout) };
            broken(How::Stall, stream, streamed, SILENT_WHOLE)
        },
    },
    Line {
        name: "error event in the middle",
        cell: |_, stream| {
            let how = How::ErrorEvent(ErrorKind::ServerError);
            broken(how, stream, partial(Reason::ServerError), retried(ONE))
        },
    },
    Line {
        name: "malformed JSON in the middle",
        cell: |_, stream| {
            broken(How::MalformedJson, stream, partial(Reason::ServerError), retried(ONE))
        },
    },
];
