//! Reading and writing JSON without a tree in between, so that what is not looked at keeps every
//! byte.

mod cursor;
mod patch;
mod raw;
mod read;
mod scan;
mod write;

pub use self::read::RequestError;
pub(crate) use self::{
    cursor::{Cursor, Seen, plain},
    patch::{Patch, fields_of, patched},
    raw::Raw,
    read::{At, Fields, flag, float, int, items, kind, raw_object, string, uint},
    scan::ObjectScan,
    write::{Array, Object, quoted, text_of},
};
