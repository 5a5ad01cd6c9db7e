//! The faults of the matrix, and what each has to come to.

use std::time::Duration;

use steadfast::{
    Dialect, Reason,
    sim::{ErrorKind, Fault, How, RateLimit},
};

/// The stall limit of the matrix.
pub(crate) const STALL: u64 = 5_000;

/// The waits before the two retries, when the provider names none: the default backoff, without
/// its jitter.
const BACKOFF: &[u64] = &[500, 1_000];

/// After so many pieces of text a broken stream breaks.
pub(crate) const PIECES: usize = 8;

/// One line of the matrix.
pub(crate) struct Line {
    /// What is wrong with the primary, each time it is asked.
    pub(crate) name: &'static str,
    /// The fault, for a primary of this dialect called for a stream or for a whole answer, and
    /// what it has to come to; `None` where there is no such thing.
    pub(crate) cell: fn(Dialect, bool) -> Option<(Fault, Expect)>,
}

/// What a fault has to come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Expect {
    /// The waits between the attempts at the primary, in milliseconds: one less than attempts.
    pub(crate) waits: &'static [u64],
    /// How long the last of those attempts took, in milliseconds.
    pub(crate) last: u64,
    /// What the caller gets.
    pub(crate) got: Gets,
    /// Whether a person is told.
    pub(crate) alarm: bool,
}

/// What a caller gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Gets {
    /// The whole answer of the spare.
    Spare,
    /// The primary's refusal; the spare is not asked.
    Refusal(Reason),
    /// What had come until then, and one failure; the spare is not asked.
    Truth(Reason),
}

impl Expect {
    /// How long the whole takes.
    pub(crate) fn took(&self) -> Duration {
        Duration::from_millis(self.waits.iter().sum::<u64>() + self.last)
    }
}

const fn expect(waits: &'static [u64], last: u64, got: Gets) -> Expect {
    Expect { waits, last, got, alarm: false }
}

/// Asked again in place, then the spare.
const fn in_place(waits: &'static [u64]) -> Expect {
    expect(waits, 0, Gets::Spare)
}

/// Not asked again, the spare at once, and a person is told.
const ACCOUNT: Expect = Expect { alarm: true, ..expect(&[], 0, Gets::Spare) };

/// Silent for one stall limit, then the spare.
const SILENT: Expect = expect(&[], STALL, Gets::Spare);

const fn refusal(reason: Reason) -> Expect {
    expect(&[], 0, Gets::Refusal(reason))
}

const fn truth(reason: Reason) -> Expect {
    expect(&[], 0, Gets::Truth(reason))
}

fn error(kind: ErrorKind, expect: Expect) -> Option<(Fault, Expect)> {
    Some((Fault::Error(kind), expect))
}

fn limited(hints: RateLimit, waits: &'static [u64]) -> Option<(Fault, Expect)> {
    Some((Fault::rate_limit(hints), in_place(waits)))
}

/// A break in the middle. Of an answer that is to come whole nothing has reached the caller by
/// then.
fn broken(how: How, stream: bool, streamed: Expect, whole: Expect) -> Option<(Fault, Expect)> {
    Some((Fault::break_after(PIECES, how), if stream { streamed } else { whole }))
}

/// The matrix.
pub(crate) const LINES: [Line; 19] = [
    Line { name: "500", cell: |_, _| error(ErrorKind::ServerError, in_place(BACKOFF)) },
    Line {
        name: "529 (503 where it is called that)",
        cell: |_, _| error(ErrorKind::Overloaded, in_place(BACKOFF)),
    },
    Line {
        name: "401: the operator's key is refused",
        cell: |_, _| error(ErrorKind::Auth, ACCOUNT),
    },
    Line {
        name: "400: the request is malformed",
        cell: |_, _| error(ErrorKind::Format, refusal(Reason::Format)),
    },
    Line {
        name: "400: the context overflows",
        cell: |_, _| error(ErrorKind::ContextOverflow, refusal(Reason::ContextOverflow)),
    },
    Line {
        name: "429, `retry-after: 2`",
        cell: |_, _| limited(RateLimit::after("2"), &[2_000, 2_000]),
    },
    Line {
        name: "429, `retry-after-ms: 1500`",
        cell: |_, _| limited(RateLimit::after_ms(1_500), &[1_500, 1_500]),
    },
    Line {
        name: "429, `retry-after: 1.5`",
        cell: |_, _| limited(RateLimit::after("1.5"), &[1_500, 1_500]),
    },
    Line {
        name: "429, `x-ratelimit-reset-requests: 1.5s` (Gemini: `retryDelay` 1.5s)",
        cell: |dialect, _| {
            let retry_info = Some("1.5s".to_owned());
            match dialect {
                Dialect::OpenAi => limited(RateLimit::reset("1.5s"), &[1_500, 1_500]),
                Dialect::Gemini => {
                    limited(RateLimit { retry_info, ..RateLimit::default() }, &[1_500, 1_500])
                }
                _ => None,
            }
        },
    },
    Line {
        name: "429, 400: `insufficient_quota`, no credit left",
        cell: |dialect, _| match dialect {
            // A quota for the day, which Gemini tells in these words too, passes by itself.
            Dialect::Gemini => None,
            _ => error(ErrorKind::InsufficientQuota, ACCOUNT),
        },
    },
    Line { name: "headers never come", cell: |_, _| Some((Fault::Hang, SILENT)) },
    Line {
        name: "200 with an error, in a stream as its first event",
        cell: |_, stream| {
            let kind = ErrorKind::ServerError;
            let fault = match stream {
                true => Fault::break_after(0, How::ErrorEvent(kind)),
                false => Fault::ErrorInOk(kind),
            };
            Some((fault, in_place(BACKOFF)))
        },
    },
    Line {
        name: "200 with nothing, of an OpenAI stream only `[DONE]`",
        cell: |_, _| Some((Fault::Empty, in_place(BACKOFF))),
    },
    Line {
        name: "first token after 20 s",
        cell: |_, _| Some((Fault::first_token_after_ms(20_000), SILENT)),
    },
    Line {
        name: "cut in the middle",
        cell: |_, stream| broken(How::Reset, stream, truth(Reason::Network), in_place(BACKOFF)),
    },
    Line {
        name: "clean end in the middle",
        cell: |_, stream| broken(How::End, stream, truth(Reason::Network), in_place(BACKOFF)),
    },
    Line {
        name: "silence in the middle",
        cell: |_, stream| {
            let streamed = Expect { last: STALL, ..truth(Reason::Timeout) };
            broken(How::Stall, stream, streamed, SILENT)
        },
    },
    Line {
        name: "error event in the middle",
        cell: |_, stream| {
            let how = How::ErrorEvent(ErrorKind::ServerError);
            broken(how, stream, truth(Reason::ServerError), in_place(BACKOFF))
        },
    },
    Line {
        name: "malformed JSON in the middle",
        cell: |_, stream| {
            broken(How::MalformedJson, stream, truth(Reason::ServerError), in_place(BACKOFF))
        },
    },
];
