//! Reading and writing JSON without a tree in between, so that what is not read keeps every
//! byte.

mod patch;
mod read;
mod scan;
mod write;

pub use self::read::RequestError;
pub(crate) use self::{
    patch::{Patch, fields_of, patched},
    read::{
        At, Fields, Raw, Text, flag, float, inside, int, is_object, items, kind, list, raw_object,
        string, strings, text, uint,
    },
    scan::ObjectScan,
    write::{Array, Object, quoted, text_of},
};
