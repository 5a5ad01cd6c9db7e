//! A document, its backup, and the lock of their folder.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{fs, io, path::Path};

use steadfast_store::{
    Document, FolderLock, Loaded, remove_leftovers, remove_leftovers_of, replace,
};

fn two_generations(folder: &Path) -> Document<String> {
    let document = Document::new(folder.join("context.jsonl"));
    assert_eq!(document.load().unwrap(), Loaded::Missing);
    document.save(&["old".to_owned()]).unwrap();
    assert_eq!(document.load().unwrap(), Loaded::Current(vec!["old".to_owned()]));
    document.save(&new()).unwrap();
    document
}

fn new() -> Vec<String> {
    vec!["new".to_owned(), "line\nfeed".to_owned()]
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_last_save_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let document = two_generations(folder.path());
    assert_eq!(document.load().unwrap(), Loaded::Current(new()));
    assert_eq!(names(folder.path()), ["context.jsonl", "context.jsonl.bak"]);
    document.save(&[]).unwrap();
    assert_eq!(document.load().unwrap(), Loaded::Current(Vec::new()));
    document.remove().unwrap();
    assert_eq!(document.load().unwrap(), Loaded::Missing);
    document.remove().unwrap();
}

/// A save that was killed between its two renames leaves one file with both names.
#[test]
fn a_save_after_one_that_was_killed_leaves_no_temporary_file() {
    let folder = tempfile::tempdir().unwrap();
    let document = two_generations(folder.path());
    fs::remove_file(document.backup_path()).unwrap();
    fs::hard_link(document.path(), document.backup_path()).unwrap();
    document.save(&["newer".to_owned()]).unwrap();
    assert_eq!(names(folder.path()), ["context.jsonl", "context.jsonl.bak"]);
    assert_eq!(document.load().unwrap(), Loaded::Current(vec!["newer".to_owned()]));
    fs::remove_file(document.path()).unwrap();
    assert_eq!(document.load().unwrap(), Loaded::Backup { values: new(), aside: None });
}

/// Neither a cut nor a changed byte is ever taken for a save.
#[test]
fn a_damaged_save_is_set_aside_for_the_backup() {
    let folder = tempfile::tempdir().unwrap();
    let document = two_generations(folder.path());
    let bytes = fs::read(document.path()).unwrap();
    let cuts = (0..bytes.len()).map(|cut| bytes[..cut].to_vec());
    let changes = (0..bytes.len()).map(|at| {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        changed
    });
    let more = [[&bytes[..], b"{}"].concat(), [&bytes[..], &bytes[..]].concat()];
    for damaged in cuts.chain(changes).chain(more) {
        fs::write(document.path(), &damaged).unwrap();
        let read = document.read().unwrap();
        let old = vec!["old".to_owned()];
        let path = Some(document.path().to_owned());
        assert_eq!(read, Loaded::Backup { values: old.clone(), aside: path });
        let Loaded::Backup { values, aside: Some(aside) } = document.load().unwrap() else {
            panic!("{}", String::from_utf8_lossy(&damaged));
        };
        assert_eq!((values, fs::read(&aside).unwrap()), (old, damaged));
        assert!(aside.to_string_lossy().contains("context.jsonl.bad-20"), "{}", aside.display());
        fs::remove_file(&aside).unwrap();
    }
    // The backup is no worse for it: the next save leaves it, since there is no other generation.
    document.save(&["newer".to_owned()]).unwrap();
    fs::remove_file(document.path()).unwrap();
    let backup = Loaded::Backup { values: vec!["old".to_owned()], aside: None };
    assert_eq!(document.load().unwrap(), backup);
}

#[test]
fn two_damaged_generations_are_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let document = two_generations(folder.path());
    for _ in 0..2 {
        // Twice within a second: no name is used twice.
        fs::write(document.path(), "damaged").unwrap();
        fs::write(document.backup_path(), "too").unwrap();
        let Loaded::Lost { aside } = document.load().unwrap() else { panic!() };
        let texts: Vec<_> = aside.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        assert_eq!(texts, ["damaged", "too"]);
        assert_eq!(document.load().unwrap(), Loaded::Missing);
    }
    assert_eq!(names(folder.path()).len(), 4);
}

/// A file that can not be read is neither missing nor damaged.
#[test]
fn an_error_is_no_empty_document() {
    let folder = tempfile::tempdir().unwrap();
    let document = Document::<String>::new(folder.path().join("context.jsonl"));
    fs::create_dir(document.path()).unwrap();
    let error = document.load().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    assert!(error.to_string().contains("context.jsonl"), "{error}");
    fs::remove_dir(document.path()).unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let below_a_file = Document::<String>::new(folder.path().join("file/context.jsonl"));
    assert_eq!(below_a_file.load().unwrap_err().kind(), io::ErrorKind::NotADirectory);
    below_a_file.save(&new()).unwrap_err();
}

#[test]
fn a_file_is_replaced_and_keeps_its_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    replace(&path, b"one").unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }
    assert_eq!(fs::read(&path).unwrap(), b"two");

    // A folder is in its place: nothing is left behind.
    let occupied = folder.path().join("occupied");
    fs::create_dir_all(occupied.join("inner")).unwrap();
    replace(&occupied, b"three").unwrap_err();
    assert_eq!(names(folder.path()), ["occupied", "state.json"]);
}

#[test]
fn leftovers_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    for name in [".state.json.0123456789abcdef.tmp", ".other.tmp", "a.tmp", ".hidden", "state.json"]
    {
        fs::write(folder.path().join(name), "").unwrap();
    }
    assert_eq!(remove_leftovers_of(&folder.path().join("state.json")).unwrap(), 1);
    assert_eq!(remove_leftovers(folder.path()).unwrap(), 1);
    assert_eq!(names(folder.path()), [".hidden", "a.tmp", "state.json"]);
    remove_leftovers(&folder.path().join("none")).unwrap_err();
}

#[test]
fn one_lock_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("a/b");
    let lock = FolderLock::acquire(&inner).unwrap();
    assert_eq!(lock.folder(), inner);
    let error = FolderLock::acquire(&inner).unwrap_err();
    assert!(error.is_locked(), "{error}");
    assert!(!error.is_full() && !error.is_denied());
    let _other = FolderLock::acquire(folder.path()).unwrap();
    drop(lock);
    let _lock = FolderLock::acquire(&inner).unwrap();
    let holder = fs::read_to_string(inner.join(".lock")).unwrap();
    assert_eq!(holder.trim(), std::process::id().to_string());
}
