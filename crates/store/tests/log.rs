//! A log of records: what was acknowledged is there, whatever became of the file.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use proptest::prelude::*;
use steadfast_store::{AppendLog, FileRepair, Record};
use tempfile::TempDir;

type Log = AppendLog<String>;

fn open(path: &PathBuf) -> (Log, Vec<Record<String>>, FileRepair) {
    let mut records = Vec::new();
    let (log, repair) = Log::open(path, |record| records.push(record)).unwrap();
    (log, records, repair)
}

fn values(records: &[Record<String>]) -> Vec<&str> {
    records.iter().map(|record| record.value.as_str()).collect()
}

/// Four records, of which one has what a line may not: a line feed, quotes, and more than ASCII.
const FOUR: [&str; 4] = ["one", "two\n\"quoted\"\u{2028}", "three with ünï©ode", "four"];

fn four() -> (TempDir, PathBuf, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    let (mut log, ..) = open(&path);
    for (ordinal, value) in (1..).zip(FOUR) {
        assert_eq!(log.append(&value.to_owned()).unwrap(), ordinal);
    }
    let bytes = fs::read(&path).unwrap();
    assert_eq!(log.len(), bytes.len() as u64);
    (folder, path, bytes)
}

fn bad_lines(path: &Path) -> Vec<u8> {
    let mut name = path.as_os_str().to_owned();
    name.push(".bad");
    let bytes = fs::read(&name).unwrap_or_default();
    let _ = fs::remove_file(&name);
    bytes
}

#[test]
fn a_log_is_read_again() {
    let (_folder, path, bytes) = four();
    let (mut log, records, repair) = open(&path);
    assert_eq!(values(&records), FOUR);
    assert_eq!(records.iter().map(|record| record.ordinal).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(repair.is_clean());
    assert_eq!(repair.records, 4);
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(log.append(&"five".to_owned()).unwrap(), 5);
    // Each line is JSON by itself.
    for line in fs::read_to_string(&path).unwrap().lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}

/// Wherever a crash cuts the file, the records before are there, the rest is set aside, and the log goes on.
#[test]
fn a_log_cut_at_every_byte() {
    let (_folder, path, bytes) = four();
    let ends: Vec<_> =
        bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
    for cut in 0..=bytes.len() {
        fs::write(&path, &bytes[..cut]).unwrap();
        // A record whose line feed alone is missing is whole: its checksum says so.
        let whole = ends.iter().filter(|end| **end <= cut).count();
        let torn = if whole == 0 { cut } else { cut - (ends[whole - 1] + 1).min(cut) };
        let (mut log, records, repair) = open(&path);
        assert_eq!(values(&records), FOUR[..whole], "cut at {cut}");
        assert_eq!((repair.bad_lines, repair.torn_bytes), (0, torn as u64), "cut at {cut}");
        assert_eq!(bad_lines(&path).len(), if torn == 0 { 0 } else { torn + 1 });
        assert_eq!(log.append(&"next".to_owned()).unwrap(), whole as u64 + 1);
        let (_, records, repair) = open(&path);
        assert_eq!(values(&records), [&FOUR[..whole], &["next"]].concat(), "cut at {cut}");
        assert!(repair.is_clean(), "cut at {cut}");
    }
}

/// No changed byte is ever read as a value that was not written, and it costs no more than the lines it is in.
#[test]
fn a_log_with_every_byte_changed() {
    let (_folder, path, bytes) = four();
    for at in 0..bytes.len() {
        for change in [0x01, 0x20, 0x80] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            fs::write(&path, &changed).unwrap();
            let (log, records, repair) = open(&path);
            let kept = values(&records);
            assert!(kept.iter().all(|value| FOUR.contains(value)), "{at}: {kept:?}");
            assert!(kept.len() >= 2, "{at}: {kept:?}");
            let lost = kept.len() < 4;
            assert_eq!(!repair.is_clean(), lost, "{at}: {kept:?} {repair:?}");
            assert_eq!(!bad_lines(&path).is_empty(), lost);
            drop(log);
            let (_, again, repair) = open(&path);
            assert_eq!(again, records);
            assert!(repair.is_clean(), "{at}");
        }
    }
}

#[test]
fn lines_of_others_are_set_aside() {
    let (_folder, path, bytes) = four();
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let foreign: [&[u8]; 6] =
        [b"\n", b"{}\n", b"\x00\x00\n", b"\xff\n", b"a person's note\n", lines[0]];
    let mixed = [lines[0], lines[1], &foreign.concat(), lines[2], lines[3]].concat();
    fs::write(&path, &mixed).unwrap();
    let (_, records, repair) = open(&path);
    // The first record a second time, too: its ordinal does not rise.
    assert_eq!(values(&records), FOUR);
    assert_eq!((repair.records, repair.bad_lines, repair.torn_bytes), (4, 6, 0));
    assert_eq!(bad_lines(&path), foreign.concat());
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

/// Both at once: a bad line, and a last record whose line feed a crash cut off.
#[test]
fn a_bad_line_before_a_record_without_its_line_feed() {
    let (_folder, path, bytes) = four();
    fs::write(&path, [b"bad\n", &bytes[..bytes.len() - 1]].concat()).unwrap();
    let (_, records, repair) = open(&path);
    assert_eq!(values(&records), FOUR);
    assert_eq!((repair.records, repair.bad_lines, repair.torn_bytes), (4, 1, 0));
    assert_eq!(bad_lines(&path), b"bad\n");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

/// What a later version wrote is kept for it.
#[test]
fn a_value_of_another_shape_is_set_aside() {
    let (_folder, path, bytes) = four();
    let mut numbers = Vec::new();
    let (mut log, repair) =
        AppendLog::<u64>::open(&path, |record| numbers.push(record.value)).unwrap();
    assert_eq!((numbers.len(), repair.bad_lines), (0, 4));
    log.append(&7).unwrap();
    assert_eq!(bad_lines(&path), bytes);
}

#[test]
fn rewritten() {
    let (_folder, path, _) = four();
    let (mut log, records, _) = open(&path);
    let kept = [&records[1], &records[3]];
    log.rewrite(kept.iter().map(|record| (record.ordinal, &record.value))).unwrap();
    assert_eq!(log.append(&"five".to_owned()).unwrap(), 5);
    let (mut log, records, repair) = open(&path);
    assert_eq!(values(&records), [FOUR[1], FOUR[3], "five"]);
    assert_eq!(records.iter().map(|record| record.ordinal).collect::<Vec<_>>(), [2, 4, 5]);
    assert!(repair.is_clean());

    // Ordinals of somebody else are refused, and nothing is changed.
    let value = "x".to_owned();
    for ordinals in [vec![0], vec![2, 2], vec![4, 2], vec![6]] {
        let error = log.rewrite(ordinals.iter().map(|ordinal| (*ordinal, &value))).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
    assert_eq!(open(&path).1, records);
    log.rewrite([]).unwrap();
    assert!(log.is_empty());
    assert_eq!(log.append(&value).unwrap(), 6);
}

/// Others may read while it is written to.
#[test]
fn read_without_a_change() {
    let (_folder, path, bytes) = four();
    let torn = [&bytes[..], b"{\"n\":5,"].concat();
    fs::write(&path, &torn).unwrap();
    let mut records = Vec::new();
    let repair = Log::read(&path, |record| records.push(record)).unwrap();
    assert_eq!(values(&records), FOUR);
    assert_eq!(repair.torn_bytes, 7);
    assert_eq!(fs::read(&path).unwrap(), torn);
    assert!(bad_lines(&path).is_empty());
    let missing = Log::read(&path.with_file_name("none.jsonl"), |_| ()).unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
    assert!(missing.to_string().contains("none.jsonl"), "{missing}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Appended, in any number of sittings, is what is read.
    #[test]
    fn any_values(sittings in prop::collection::vec(prop::collection::vec(".*", 0..5), 1..5)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut written = Vec::new();
        for sitting in sittings {
            let (mut log, records, repair) = open(&path);
            prop_assert_eq!(values(&records), written.clone());
            prop_assert!(repair.is_clean());
            log.append_all(&sitting).unwrap();
            written.extend(sitting);
        }
        let (_, records, _) = open(&path);
        prop_assert_eq!(values(&records), written);
    }

    /// Any bytes are a log: nothing panics, and the log is clean afterwards.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        fs::write(&path, bytes).unwrap();
        let (_, records, _) = open(&path);
        let (_, again, repair) = open(&path);
        prop_assert_eq!(records, again);
        prop_assert!(repair.is_clean());
    }
}
