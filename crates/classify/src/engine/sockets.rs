//! Windows' socket errors, by number and name.

use std::sync::LazyLock;

use super::table::{Table, TableError, built_in, table};
use crate::TransportErrorKind;

const FILE: Table = table!("sockets.txt");

/// Number, name, and how the connection failed.
type Socket = (u32, &'static str, TransportErrorKind);

static SOCKETS: LazyLock<Vec<Socket>> = LazyLock::new(|| built_in(read(FILE)));

fn read(table: Table) -> Result<Vec<Socket>, TableError> {
    let mut sockets: Vec<Socket> = Vec::new();
    for row in table.rows(3, 3)? {
        let (number, name) = (row.number(0)?, row.text(1));
        let transport = TransportErrorKind::from_name(row.text(2))
            .ok_or_else(|| row.error(format!("`{}` is no transport failure", row.text(2))))?;
        if sockets.iter().any(|known| known.0 == number || known.1 == name) {
            return Err(row.error(format!("`{number}` or `{name}` is listed twice")));
        }
        sockets.push((number, name, transport));
    }
    Ok(sockets)
}

pub(crate) fn all() -> &'static [Socket] {
    &SOCKETS
}

/// How the connection failed, by the number of the operating system's error.
pub(crate) fn by_number(number: u32) -> Option<TransportErrorKind> {
    SOCKETS.iter().find(|socket| socket.0 == number).map(|socket| socket.2)
}

/// The texts that name an error by its number, in lower case.
pub(crate) fn phrases(number: u32, name: &str) -> [String; 4] {
    [
        format!("os error {number}"),
        format!("winerror {number}"),
        format!("errno {number}"),
        name.to_ascii_lowercase(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_well_formed() {
        read(FILE).unwrap();
        let twice = Table { file: "sockets.txt", text: "1 | A | reset\n1 | B | reset" };
        assert!(read(twice).unwrap_err().to_string().starts_with("data/sockets.txt:2: `1` or `B`"));
        let unknown = Table { file: "sockets.txt", text: "1 | A | pigeon" };
        assert!(read(unknown).unwrap_err().to_string().contains("`pigeon` is no transport"));
    }
}
