//! A request body, as a command is given one.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use bytes::Bytes;
use steadfast::client::dialect::{Route, codec};
use steadfast_chat::ChatRequest;
use steadfast_core::Dialect;

use super::Exit;

/// The request in `file`, or on standard input.
pub(super) fn request(file: Option<&Path>, dialect: Dialect) -> Result<ChatRequest, Exit> {
    let name = file.map_or("standard input".into(), Path::to_string_lossy);
    let mut body = Vec::new();
    let read = match file {
        Some(file) => File::open(file).and_then(|mut file| file.read_to_end(&mut body)),
        None => io::stdin().lock().read_to_end(&mut body),
    };
    read.map_err(|error| Exit::usage(format_args!("{name}: can not be read: {error}")))?;
    // Gemini names the model in the address, which is not here.
    let route = match dialect {
        Dialect::Gemini => Route { model: Some("recorded"), stream: Some(false) },
        _ => Route::default(),
    };
    codec(dialect).decode_request(&Bytes::from(body), route).map_err(|error| {
        Exit::failed(format_args!("{name}: is no request body of the dialect `{dialect}`: {error}"))
    })
}
