//! Reading and writing JSON without a tree in between, so that what is not read keeps every byte.

mod patch;
mod pieces;
mod raw;
mod read;
mod scan;
mod write;

pub(crate) use self::{
    patch::{Patch, fields_of, fields_of_body, patched},
    pieces::{JsonPieces, TextPieces},
    raw::Raw,
    read::{
        At, Fields, Str, borrowed, each, flag, float, int, items, kind, list, raw_object, string,
        strings, uint,
    },
    scan::ObjectScan,
    write::{Array, Object, quoted, text_of},
};
pub use self::{read::RequestError, scan::values};
