//! What a code or an exception that no table has is made of.
//!
//! Providers name new errors after old words: `request_quota_exceeded`, `EngineDeadError`,
//! `ClientPayloadError`. Asked last, when neither a known code nor any sentence has decided.

use std::sync::LazyLock;

use steadfast_core::Reason;

use super::Name;
use crate::engine::index::Index;

/// Names that say only that something was raised: what it was stands elsewhere.
const HOLLOW: &[&str] = &[
    "illegalstate",
    "invalidoperation",
    "runtimeerror",
    "runtimeexception",
    "valueerror",
    "typeerror",
    "keyerror",
    "attributeerror",
    "syntaxerror",
    "assertionerror",
    "apicallerror",
    "retryerror",
    "unhandled",
];

/// The first row of which a root is in the name decides: what is narrow stands before what is
/// wide.
const ROOTS: &[(Reason, &[&str])] = &[
    (
        Reason::ContextOverflow,
        &["contextlength", "contextwindow", "contextoverflow", "prompttoolong", "inputtoolong"],
    ),
    (
        Reason::ContentFilter,
        &[
            "contentfilter",
            "contentpolicy",
            "moderation",
            "safety",
            "sensitive",
            "inappropriate",
            "guardrail",
            "harmful",
        ],
    ),
    (
        Reason::Billing,
        &[
            "billing",
            "payment",
            "balance",
            "credits",
            "arrear",
            "overdue",
            "budget",
            "spend",
            "insufficientquota",
            "subscription",
            "unpaid",
        ],
    ),
    (
        Reason::RateLimit,
        &[
            "ratelimit",
            "toomany",
            "throttl",
            "quota",
            "limitreached",
            "limitexceeded",
            "requestlimit",
            "concurren",
        ],
    ),
    (Reason::Overloaded, &["overload", "capacity", "busy", "unavailable", "notready", "loading"]),
    (Reason::Timeout, &["timeout", "timedout", "deadline"]),
    (
        Reason::Network,
        &[
            "connect",
            "network",
            "socket",
            "protocolerror",
            "protocolexception",
            "payloaderror",
            "transport",
            "chunkedencoding",
            "sslerror",
            "sslexception",
            "tlserror",
            "dnserror",
            "unknownhost",
            "readerror",
            "writeerror",
        ],
    ),
    (
        Reason::Auth,
        &[
            "unauth",
            "authentic",
            "autherror",
            "authoriz",
            "permission",
            "forbidden",
            "accessdenied",
            "notallowed",
            "credential",
            "apikey",
            "invalidtoken",
            "tokeninvalid",
            "expiredtoken",
            "tokenexpired",
        ],
    ),
    (Reason::PayloadTooLarge, &["toolarge"]),
    (Reason::Unsupported, &["unsupported", "notsupported", "notimplemented", "notavailablein"]),
    (Reason::ModelNotFound, &["notfound", "nosuchmodel", "unknownmodel", "nomodel"]),
    (
        Reason::Format,
        &[
            "invalid",
            "validation",
            "badrequest",
            "malformed",
            "missing",
            "parseerror",
            "schema",
            "illegal",
            "unprocessable",
        ],
    ),
    (
        Reason::ServerError,
        &[
            "internal",
            "servererror",
            "serverexception",
            "engine",
            "unknownerror",
            "unexpected",
            "emptyresponse",
            "nooutput",
            "notext",
            "nocontent",
            "upstream",
            "backend",
            "worker",
            "gateway",
            "decodeerror",
            "crash",
        ],
    ),
];

/// The roots of all rows, and those of [`HOLLOW`], found in one pass over a name.
struct Roots {
    index: Index,
    roots: Vec<&'static str>,
    /// The row of each root; `None` for a hollow one.
    rows: Vec<Option<usize>>,
}

static FOUND: LazyLock<Roots> = LazyLock::new(|| {
    let hollow = HOLLOW.iter().map(|root| (*root, None));
    let rows = ROOTS.iter().enumerate();
    let known = rows.flat_map(|(row, (_, roots))| roots.iter().map(move |root| (*root, Some(row))));
    let (roots, rows): (Vec<_>, Vec<_>) = hollow.chain(known).unzip();
    Roots { index: Index::new(&roots), roots, rows }
});

/// Builds the table now rather than at the first name that needs it.
pub(super) fn warm() {
    LazyLock::force(&FOUND);
}

/// What a name of no table seems to mean.
pub(crate) fn guess(name: &str) -> Option<Reason> {
    let key = Name::of(name)?;
    let Roots { index, roots, rows } = &*FOUND;
    let (mut best, mut hollow) = (None, false);
    index.scan_anywhere(key.as_bytes(), roots, |root| match rows[root] {
        None => hollow = true,
        Some(row) => best = Some(best.map_or(row, |best: usize| best.min(row))),
    });
    let (reason, _) = ROOTS.get(best.filter(|_| !hollow)?)?;
    Some(*reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        for (name, expected) in [
            ("request_quota_exceeded", Some(Reason::RateLimit)),
            ("EngineDeadError", Some(Reason::ServerError)),
            ("aiohttp.client_exceptions.ClientPayloadError", Some(Reason::Network)),
            ("httpx.ConnectTimeout", Some(Reason::Timeout)),
            ("SubscriptionExpired", Some(Reason::Billing)),
            ("ApiKeyNotFound", Some(Reason::Auth)),
            ("ModelDeploymentNotFound", Some(Reason::ModelNotFound)),
            ("MissingSessionID", Some(Reason::Format)),
            ("ServiceBusy", Some(Reason::Overloaded)),
            ("System.InvalidOperationException", None),
            ("ValueError", None),
            ("SomeError", None),
            ("", None),
            ("not a name!", None),
        ] {
            assert_eq!(guess(name), expected, "{name}");
        }
    }
}
