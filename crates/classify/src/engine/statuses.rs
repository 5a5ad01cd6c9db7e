//! What bare statuses and stop reasons stand for.

use std::{collections::HashMap, sync::LazyLock};

use http::StatusCode;
use steadfast_core::Reason;

use super::table::{Table, TableError, built_in, table};

const STATUSES: Table = table!("statuses.txt");
const STOPS: Table = table!("stops.txt");

/// Finer than the core's, which knows the common ones.
static BY_STATUS: LazyLock<HashMap<u16, Reason>> = LazyLock::new(|| built_in(read(STATUSES)));

fn read(table: Table) -> Result<HashMap<u16, Reason>, TableError> {
    let mut statuses = HashMap::new();
    for row in table.rows(2, 2)? {
        let status: u16 = row.number(0)?;
        let reason = row.reason(1)?;
        if !(400..=599).contains(&status) {
            return Err(row.error(format!("`{status}` is no status of an error")));
        }
        let known = StatusCode::from_u16(status).ok().and_then(Reason::from_status);
        if known.is_some_and(|known| known != Reason::Unknown) {
            return Err(row.error(format!("`{status}` has a meaning for every layer already")));
        }
        row.insert(&mut statuses, status, reason)?;
    }
    Ok(statuses)
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

/// What a bare status stands for.
pub(crate) fn reason(status: u16) -> Reason {
    BY_STATUS.get(&status).copied().unwrap_or_else(|| {
        StatusCode::from_u16(status)
            .ok()
            .and_then(Reason::from_status)
            .filter(|reason| *reason != Reason::Unknown)
            .unwrap_or(if status >= 500 { Reason::ServerError } else { Reason::Unknown })
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
        for (status, expected) in [
            (405, Reason::Format),
            (412, Reason::Billing),
            (418, Reason::Unknown),
            (429, Reason::RateLimit),
            (530, Reason::ServerError),
            (560, Reason::ServerError),
            (599, Reason::Timeout),
        ] {
            assert_eq!(reason(status), expected, "{status}");
        }
    }
}
