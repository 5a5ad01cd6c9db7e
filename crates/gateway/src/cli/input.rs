//! A request body, as a command is given one.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use steadfast::client::dialect::{RequestError, Route, codec};
use steadfast_chat::ChatRequest;
use steadfast_core::Dialect;

use super::{FAILED, USAGE};

/// Why there is no request.
#[derive(Debug)]
pub(super) enum InputError {
    /// It can not be read.
    Unread(Option<PathBuf>, io::Error),
    /// It is no request of the dialect.
    NoRequest(Option<PathBuf>, Dialect, RequestError),
}

impl InputError {
    /// What the command ends with.
    pub(super) fn code(&self) -> u8 {
        match self {
            InputError::Unread(..) => USAGE,
            InputError::NoRequest(..) => FAILED,
        }
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (InputError::Unread(path, _) | InputError::NoRequest(path, ..)) = self;
        match path {
            Some(path) => write!(f, "{}: ", path.display())?,
            None => f.write_str("standard input: ")?,
        }
        match self {
            InputError::Unread(_, error) => write!(f, "can not be read: {error}"),
            InputError::NoRequest(_, dialect, error) => {
                write!(f, "is no request body of the dialect `{dialect}`: {error}")
            }
        }
    }
}

impl std::error::Error for InputError {}

/// The request in `file`, or on standard input.
pub(super) fn request(file: Option<&Path>, dialect: Dialect) -> Result<ChatRequest, InputError> {
    let path = file.map(Path::to_owned);
    let mut body = Vec::new();
    let read = match file {
        Some(file) => File::open(file).and_then(|mut file| file.read_to_end(&mut body)),
        None => io::stdin().lock().read_to_end(&mut body),
    };
    if let Err(error) = read {
        return Err(InputError::Unread(path, error));
    }
    // Gemini says the model in the address, which is not here.
    let route = match dialect {
        Dialect::Gemini => Route { model: Some("recorded"), stream: Some(false) },
        _ => Route::default(),
    };
    codec(dialect)
        .decode_request(&Bytes::from(body), route)
        .map_err(|error| InputError::NoRequest(path, dialect, error))
}
