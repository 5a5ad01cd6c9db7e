//! What bare statuses and stop reasons stand for.

use std::{collections::HashMap, sync::LazyLock};

use http::StatusCode;
use steadfast_core::Reason;

use super::table::{Table, TableError, built_in, table};

const STATUSES: Table = table!("statuses.txt");
const STOPS: Table = table!("stops.txt");

/// What a status stands for.
#[derive(Clone, Copy, Debug)]
struct Meaning {
    /// At an LLM API.
    llm: Reason,
    /// At any other HTTP service.
    http: Reason,
}

/// Finer than the core's, which knows the common ones.
static BY_STATUS: LazyLock<HashMap<u16, Meaning>> = LazyLock::new(|| built_in(read(STATUSES)));

fn read(table: Table) -> Result<HashMap<u16, Meaning>, TableError> {
    let mut statuses = HashMap::new();
    for row in table.rows(2, 3)? {
        let status: u16 = row.number(0)?;
        let llm = row.reason(1)?;
        let http = if row.text(2).is_empty() { llm } else { row.reason(2)? };
        if !(400..=599).contains(&status) {
            return Err(row.error(format!("`{status}` is no status of an error")));
        }
        if known(status).is_some_and(|known| known != llm || llm == http) {
            return Err(row.error(format!("`{status}` has a meaning for every layer already")));
        }
        row.insert(&mut statuses, status, Meaning { llm, http })?;
    }
    Ok(statuses)
}

/// What a status stands for in every layer.
fn known(status: u16) -> Option<Reason> {
    let reason = StatusCode::from_u16(status).ok().and_then(Reason::from_status);
    reason.filter(|reason| *reason != Reason::Unknown)
}

/// Why an answer stopped, where that is not an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Truncated,
    Filtered,
    /// The model wrote something that the provider could not use.
    Malformed,
    Broken,
    /// Broken, unless there is an answer.
    Unclear,
}

static BY_STOP: LazyLock<HashMap<&str, Stop>> = LazyLock::new(|| built_in(read_stops(STOPS)));

fn read_stops(table: Table) -> Result<HashMap<&'static str, Stop>, TableError> {
    let meanings = [
        ("truncated", Stop::Truncated),
        ("filtered", Stop::Filtered),
        ("malformed", Stop::Malformed),
        ("broken", Stop::Broken),
        ("unclear", Stop::Unclear),
    ];
    let mut stops = HashMap::new();
    for row in table.rows(2, 2)? {
        row.insert(&mut stops, row.text(0), row.one_of(1, &meanings)?)?;
    }
    Ok(stops)
}

/// Reads the tables now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&BY_STATUS);
    LazyLock::force(&BY_STOP);
}

/// What a bare status stands for at an LLM API.
pub(crate) fn reason(status: u16) -> Reason {
    meaning(status, Reason::Unknown).llm
}

/// What a bare status stands for at any other HTTP service. By RFC 9110, section 15, an unknown 4xx
/// is a 400.
pub(crate) fn http_reason(status: u16) -> Reason {
    meaning(status, Reason::Format).http
}

/// The meaning of a status; a 4xx that nobody knows is `unknown`.
fn meaning(status: u16, unknown: Reason) -> Meaning {
    BY_STATUS.get(&status).copied().unwrap_or_else(|| {
        let reason = known(status).unwrap_or(unknown);
        Meaning { llm: reason, http: reason }
    })
}

/// What a stop reason means; `None` for an end.
pub(crate) fn stop(reason: &str) -> Option<Stop> {
    BY_STOP.get(reason).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_well_formed() {
        read(STATUSES).unwrap();
        read_stops(STOPS).unwrap();
        for (text, error) in [
            ("429 | rate_limit", "`429` has a meaning for every layer already"),
            ("404 | auth | format", "`404` has a meaning for every layer already"),
            ("302 | format", "`302` is no status of an error"),
            ("405 | format\n405 | auth", "`405` is listed twice"),
            ("4o5 | format", "`4o5` is no number that fits here"),
        ] {
            let found = read(Table { file: "statuses.txt", text }).unwrap_err().to_string();
            assert!(found.starts_with("data/statuses.txt:") && found.ends_with(error), "{found}");
        }
        let twice = Table { file: "stops.txt", text: "a | broken\na | filtered" };
        assert!(read_stops(twice).unwrap_err().to_string().contains("stops.txt:2: `a`"));
    }

    #[test]
    fn every_status_of_an_error_has_a_reason() {
        for (status, llm, http) in [
            (401, Reason::Auth, Reason::Auth),
            (404, Reason::ModelNotFound, Reason::Format),
            (405, Reason::Format, Reason::Format),
            (408, Reason::Timeout, Reason::Timeout),
            (409, Reason::ServerError, Reason::ServerError),
            (410, Reason::ModelNotFound, Reason::Format),
            (412, Reason::Billing, Reason::Format),
            (418, Reason::Unknown, Reason::Format),
            (429, Reason::RateLimit, Reason::RateLimit),
            (501, Reason::Unsupported, Reason::Unsupported),
            (503, Reason::Overloaded, Reason::Overloaded),
            (529, Reason::Overloaded, Reason::Overloaded),
            (700, Reason::ServerError, Reason::ServerError),
        ] {
            assert_eq!((reason(status), http_reason(status)), (llm, http), "{status}");
        }
    }

    #[test]
    fn a_5xx_that_nobody_knows_is_an_error_of_the_server() {
        for status in [506, 507, 508, 509, 510, 511, 525, 526, 527, 528, 530, 560, 598, 599] {
            assert_eq!(reason(status), Reason::ServerError, "{status}");
            assert_eq!(http_reason(status), Reason::ServerError, "{status}");
        }
    }
}
