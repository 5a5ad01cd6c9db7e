//! Files that survive a crash.
//!
//! * [`AppendLog`]: records that are appended one by one. What [`append`](AppendLog::append) returned for is on the disk; an
//!   append that a crash interrupted is removed when the log is opened again.
//! * [`Document`]: records that are replaced together, with the generation before them as a backup.
//! * [`FolderLock`]: one writer a folder. The operating system holds it, so a killed process leaves no lock behind.
//! * [`replace`]: any file, replaced as a whole or not at all.
//!
//! A record is a line of JSON with an ordinal and a checksum over both, so that a line which a disk, an editor or a second
//! writer changed is noticed. Such lines are appended to a file beside the log, with the extension `.bad`, and counted in a
//! [`FileRepair`]; the records around them are kept.
//!
//! All of it blocks: in an asynchronous program call it from `tokio::task::spawn_blocking` or a thread of its own. Nothing is
//! cached, nothing is retried: a full disk is an error ([`StoreError::is_full`]) that leaves the file as it was, and the same call
//! works again once there is space.
//!
//! ```
//! use steadfast_store::{AppendLog, FolderLock};
//!
//! # fn main() -> Result<(), steadfast_store::StoreError> {
//! # let folder = std::env::temp_dir().join(format!("steadfast-store-doc-{}", std::process::id()));
//! let _lock = FolderLock::acquire(&folder)?;
//! let path = folder.join("log.jsonl");
//!
//! let (mut log, _) = AppendLog::<String>::open(&path, |_| {})?;
//! log.append(&"a first entry".to_owned())?;
//! log.append(&"a second".to_owned())?;
//! drop(log);
//!
//! // The process ends, perhaps in the middle of a line. The next one reads what was acknowledged.
//! let mut entries = Vec::new();
//! let (_log, repair) = AppendLog::<String>::open(&path, |record| entries.push(record.value))?;
//! assert_eq!(entries, ["a first entry", "a second"]);
//! assert!(repair.is_clean());
//! # std::fs::remove_dir_all(&folder).ok();
//! # Ok(())
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod aside;
mod document;
mod error;
mod lock;
mod log;
mod record;
mod replace;

pub use self::{
    document::{Document, Loaded},
    error::StoreError,
    lock::FolderLock,
    log::AppendLog,
    record::{FileRepair, Record},
    replace::{remove_leftovers, remove_leftovers_of, replace},
};
