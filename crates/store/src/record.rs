//! One line of a file.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

/// A record, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record<T> {
    /// Its place in the order of the records, from 1. Ordinals rise; where records were removed, some are missing.
    pub ordinal: u64,
    /// What was written.
    pub value: T,
}

/// What was wrong with a file. Everything else in it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileRepair {
    /// The records that were read.
    pub records: u64,
    /// Whole lines that are no record: no JSON, a checksum that differs, an ordinal that does not rise, a value of another shape.
    /// They are in the file beside it whose name ends in `.bad`.
    pub bad_lines: u64,
    /// The bytes after the last whole line: an append that was interrupted, and so never acknowledged. They are in that file, too.
    pub torn_bytes: u64,
}

impl FileRepair {
    /// Whether there was nothing to repair.
    pub const fn is_clean(&self) -> bool {
        self.bad_lines == 0 && self.torn_bytes == 0
    }
}

/// A line. Its members are in this order.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    n: u64,
    crc32: u32,
    #[serde(borrow)]
    v: &'a RawValue,
}

/// The checksum of a record: CRC-32 of its ordinal and its JSON.
fn checksum(ordinal: u64, json: &str) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&ordinal.to_le_bytes());
    hasher.update(json.as_bytes());
    hasher.finalize()
}

/// Appends the line of this value, with its line feed.
pub(crate) fn encode<T: Serialize + ?Sized>(
    ordinal: u64,
    value: &T,
    line: &mut Vec<u8>,
) -> Result<(), serde_json::Error> {
    // Raw, so that the checksum is of the very bytes that are written.
    let v = serde_json::value::to_raw_value(value)?;
    let crc32 = checksum(ordinal, v.get());
    serde_json::to_writer(&mut *line, &Line { n: ordinal, crc32, v: &v })?;
    line.push(b'\n');
    Ok(())
}

/// Reads a line, without its line feed. `None` when it is no record of such values.
pub(crate) fn decode<T: DeserializeOwned>(line: &[u8]) -> Option<Record<T>> {
    let Line { n, crc32, v } = serde_json::from_slice(line).ok()?;
    if n == 0 || crc32 != checksum(n, v.get()) {
        return None;
    }
    let value = serde_json::from_str(v.get()).ok()?;
    Some(Record { ordinal: n, value })
}
