//! What the fields of an error are: by their keys, without case and punctuation.

use std::{collections::HashMap, sync::LazyLock};

use smallvec::SmallVec;

use super::table::{Table, TableError, built_in, table};

const FILE: Table = table!("keys.txt");

/// What an object is to its document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Section {
    /// An error, or what wraps one.
    Error,
    /// Details of an error: metadata, quota violations, validation items.
    Detail,
    /// What is in an answer: only its stop reasons count.
    Answer,
    /// Headers quoted in a body.
    Headers,
    /// A duration as an object.
    Delay,
    /// An echo of the request, a history of earlier errors, and whatever else is not this error.
    #[default]
    Ignored,
}

/// What a value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Why an answer ended.
    Stop,
    Code,
    Type,
    /// A status name, or a status.
    Status,
    /// Finer than a code.
    Reason,
    /// A status, and nothing else.
    StatusOnly,
    /// Text for people, or another error.
    Message,
    /// The same, under `error`.
    Error,
    Quota,
    Wait,
    WaitMillis,
    /// When a limit resets.
    Reset,
    RequestId,
    Success,
    /// Tokens of the request.
    Requested,
    /// Tokens that fit.
    Limit,
    /// Seconds of a delay that is an object.
    Seconds,
    /// The part of the request that is meant.
    Parameter,
    /// Amazon's event streams name the exception in a header of the frame.
    Exception,
    #[default]
    Nothing,
}

/// A key: what its value is, by the kind of the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key {
    section: Section,
    pub(crate) text: Meaning,
    /// Of a number or another bare value.
    pub(crate) number: Meaning,
    /// Of a value among quoted headers.
    pub(crate) header: Meaning,
    /// There is none: an element of an array, or a document of several in a row.
    none: bool,
}

pub(crate) type Folded = SmallVec<[u8; 24]>;

static KEYS: LazyLock<HashMap<Folded, Key>> = LazyLock::new(|| built_in(read(FILE)));

fn read(table: Table) -> Result<HashMap<Folded, Key>, TableError> {
    const SECTIONS: [(&str, Section); 6] = [
        ("", Section::Ignored),
        ("error", Section::Error),
        ("detail", Section::Detail),
        ("answer", Section::Answer),
        ("headers", Section::Headers),
        ("delay", Section::Delay),
    ];
    const TEXTS: [(&str, Meaning); 15] = [
        ("", Meaning::Nothing),
        ("stop", Meaning::Stop),
        ("code", Meaning::Code),
        ("type", Meaning::Type),
        ("status", Meaning::Status),
        ("reason", Meaning::Reason),
        ("status-only", Meaning::StatusOnly),
        ("message", Meaning::Message),
        ("error", Meaning::Error),
        ("quota", Meaning::Quota),
        ("wait", Meaning::Wait),
        ("reset", Meaning::Reset),
        ("request-id", Meaning::RequestId),
        ("seconds", Meaning::Seconds),
        ("parameter", Meaning::Parameter),
    ];
    const NUMBERS: [(&str, Meaning); 10] = [
        ("", Meaning::Nothing),
        ("code", Meaning::Code),
        ("status-only", Meaning::StatusOnly),
        ("success", Meaning::Success),
        ("requested", Meaning::Requested),
        ("limit", Meaning::Limit),
        ("wait", Meaning::Wait),
        ("wait-ms", Meaning::WaitMillis),
        ("reset", Meaning::Reset),
        ("seconds", Meaning::Seconds),
    ];
    const HEADERS: [(&str, Meaning); 4] = [
        ("", Meaning::Nothing),
        ("wait", Meaning::Wait),
        ("reset", Meaning::Reset),
        ("exception", Meaning::Exception),
    ];
    let mut keys = HashMap::new();
    for row in table.rows(1, 5)? {
        let name = row.text(0);
        let folded = folded(name);
        if folded.as_slice() != name.as_bytes() {
            return Err(row.error(format!("`{name}` has more than small letters and digits")));
        }
        let key = Key {
            section: row.one_of(1, &SECTIONS)?,
            text: row.one_of(2, &TEXTS)?,
            number: row.one_of(3, &NUMBERS)?,
            header: row.one_of(4, &HEADERS)?,
            none: false,
        };
        if key == Key::default() {
            return Err(row.error(format!("`{name}` means nothing")));
        }
        row.insert(&mut keys, folded, key)?;
    }
    Ok(keys)
}

/// Reads the table now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&KEYS);
}

/// `key` without case, and letters and digits only.
pub(crate) fn folded(key: &str) -> Folded {
    key.bytes().filter(u8::is_ascii_alphanumeric).map(|byte| byte.to_ascii_lowercase()).collect()
}

impl Key {
    pub(crate) fn of(key: &str) -> Self {
        let folded = folded(key);
        if folded.is_empty() {
            return Self { none: true, text: Meaning::Message, ..Self::default() };
        }
        KEYS.get(&folded).copied().unwrap_or_default()
    }

    /// What an object or array under this key in `section` is.
    pub(crate) fn section_in(self, section: Section) -> Section {
        match section {
            Section::Ignored | Section::Headers | Section::Delay => Section::Ignored,
            // Array elements, and documents in a row.
            _ if self.none => section,
            Section::Answer if self.text == Meaning::Error => Section::Error,
            Section::Answer => Section::Ignored,
            Section::Error | Section::Detail => self.section,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_well_formed() {
        read(FILE).unwrap();
        for (text, error) in [
            ("error_code | | code", "`error_code` has more than small letters and digits"),
            ("code | | code\ncode | | type", "`code` is listed twice"),
            ("code", "`code` means nothing"),
            ("code | object", "`object` is none of: , error, detail, answer, headers, delay"),
        ] {
            let found = read(Table { file: "keys.txt", text }).unwrap_err().to_string();
            assert!(found.starts_with("data/keys.txt:") && found.ends_with(error), "{found}");
        }
    }

    #[test]
    fn spelling_does_not_matter() {
        for key in ["error_code", "errorCode", "ErrorCode", "error-code", " error code"] {
            assert_eq!(Key::of(key).text, Meaning::Reason, "{key}");
        }
        for key in ["", "@", "__", "é"] {
            assert_eq!(Key::of(key).section_in(Section::Detail), Section::Detail, "{key}");
        }
        for key in ["previous_errors", "a key that is longer than every known one"] {
            assert_eq!(Key::of(key).section_in(Section::Error), Section::Ignored, "{key}");
        }
    }
}
