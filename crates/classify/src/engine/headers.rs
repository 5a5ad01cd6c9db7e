//! The headers of an answer that say something about an error.

use std::sync::LazyLock;

use http::{HeaderMap, HeaderName};

use super::table::{Table, TableError, built_in, table};

const FILE: Table = table!("headers.txt");

#[derive(Debug, Default)]
struct Headers {
    errors: Vec<HeaderName>,
    request_ids: Vec<HeaderName>,
}

static HEADERS: LazyLock<Headers> = LazyLock::new(|| built_in(read(FILE)));

fn read(table: Table) -> Result<Headers, TableError> {
    #[derive(Clone, Copy)]
    enum Role {
        Error,
        RequestId,
    }

    let roles = [("error", Role::Error), ("request-id", Role::RequestId)];
    let mut headers = Headers::default();
    let mut names: Vec<HeaderName> = Vec::new();
    for row in table.rows(2, 2)? {
        let mut name = |column: usize| {
            let text = row.text(column);
            let name = HeaderName::try_from(text)
                .map_err(|_| row.error(format!("`{text}` is no header")))?;
            if names.contains(&name) {
                return Err(row.error(format!("`{text}` is listed twice")));
            }
            names.push(name.clone());
            Ok(name)
        };
        match row.one_of(0, &roles)? {
            Role::Error => headers.errors.push(name(1)?),
            Role::RequestId => headers.request_ids.push(name(1)?),
        }
    }
    Ok(headers)
}

/// Reads the table now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&HEADERS);
}

/// A header as text.
pub(crate) fn text(headers: &HeaderMap, name: impl http::header::AsHeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// The names of errors in headers.
pub(crate) fn errors(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    HEADERS.errors.iter().filter_map(|name| text(headers, name))
}

/// The provider's id of the request.
pub(crate) fn request_id(headers: &HeaderMap) -> Option<&str> {
    HEADERS.request_ids.iter().find_map(|name| text(headers, name))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_file_is_well_formed() {
        read(FILE).unwrap();
        for (text, error) in [
            ("error | x-a\nrequest-id | x-a", "data/headers.txt:2: `x-a` is listed twice"),
            ("error | x a", "data/headers.txt:1: `x a` is no header"),
            ("wait | x-a", "data/headers.txt:1: `wait` is none of: error, request-id"),
        ] {
            let found = read(Table { file: "headers.txt", text }).unwrap_err();
            assert_eq!(found.to_string(), error);
        }
    }

    #[test]
    fn the_first_value_counts() {
        let mut map = HeaderMap::new();
        for value in [" first ", "second"] {
            map.append("x-request-id", HeaderValue::from_static(value));
        }
        assert_eq!(request_id(&map), Some("first"));
        map.insert("request-id", HeaderValue::from_static("the more specific"));
        assert_eq!(request_id(&map), Some("the more specific"));
    }
}
