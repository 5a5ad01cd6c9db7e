//! What the fields of an error are: by their keys, without case and punctuation.

use std::sync::LazyLock;

use super::map::{Map, words};

/// What an object is to its document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// An error, or what wraps one.
    Error,
    /// Details of an error: metadata, quota violations, validation items.
    Detail,
    /// An answer's choices: only their finish reasons count.
    Choice,
    /// Headers quoted in a body: only waits count.
    Headers,
    /// Google's `retryDelay` as an object.
    Delay,
    /// An echo of the request, a history of earlier errors, and whatever else is not this error.
    #[default]
    Skip,
}

/// What a string says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Says {
    /// Why an answer ended.
    Stop,
    Code,
    Type,
    /// A status word, or a status.
    Status,
    /// Finer than a code.
    Reason,
    /// A status, and nothing else.
    Stated,
    /// Something for people, or another error.
    Message,
    /// The same, under `error`.
    Error,
    Quota,
    Wait,
    Reset,
    RequestId,
    #[default]
    Nothing,
}

/// What a number or another bare word says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Counts {
    /// A status, or a vendor's code.
    Code,
    /// A status, and nothing else.
    Stated,
    Success,
    /// Tokens of the request.
    Requested,
    /// Tokens that fit.
    Limit,
    Wait,
    WaitMillis,
    Reset,
    #[default]
    Nothing,
}

/// What a quoted header says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Quotes {
    Wait,
    Reset,
    /// Amazon's event streams name the exception in a header of the frame.
    Exception,
    #[default]
    Nothing,
}

/// A key: what its value is, whatever that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key {
    /// Of an object or array.
    place: Place,
    /// Of a string.
    pub(crate) says: Says,
    /// Of a bare word.
    pub(crate) counts: Counts,
    /// Of either, among headers.
    pub(crate) quotes: Quotes,
    /// There is none: an element of an array, or a document of several in a row.
    none: bool,
    /// Seconds of a delay that is an object.
    pub(crate) seconds: bool,
}

const PLACES: [(Place, &[&str]); 5] = [
    (
        Place::Error,
        &[
            "error",
            "err",
            "lasterror",
            "cause",
            "exception",
            "fault",
            "response",
            "data",
            "value",
            "event",
            "result",
            "body",
            "message",
            "reason",
        ],
    ),
    (
        Place::Detail,
        &[
            "innererror",
            "details",
            "detail",
            "metadata",
            "errors",
            "violations",
            "providerspecificfields",
            "errorargs",
            "baseresp",
            "errorinfo",
            "incompletedetails",
            "promptfeedback",
            "errordetails",
            "originalresponse",
        ],
    ),
    (Place::Choice, &["choices", "candidates"]),
    (Place::Headers, &["headers"]),
    (Place::Delay, &["retrydelay"]),
];

const SAYS: [(Says, &[&str]); 12] = [
    (Says::Stop, &["finishreason", "stopreason", "nativefinishreason"]),
    (Says::Code, &["code"]),
    (Says::Type, &["type", "errortype", "name", "class", "exceptiontype", "limitsource"]),
    (Says::Status, &["status", "state"]),
    (Says::Reason, &["reason", "errorcode", "errcode", "subtype", "blockreason", "subcode"]),
    (
        Says::Stated,
        &["statuscode", "httpcode", "httpstatus", "originalstatuscode", "upstreamstatus"],
    ),
    (
        Says::Message,
        &[
            "message",
            "msg",
            "errormessage",
            "errmsg",
            "statusmsg",
            "detail",
            "details",
            "title",
            "errordescription",
            "description",
            "raw",
            "stack",
            "body",
            "data",
            "errors",
            "text",
            "statustext",
            "err",
            "response",
            "exception",
            "rawmessage",
            "originalmessage",
            "cause",
        ],
    ),
    (Says::Error, &["error"]),
    (Says::Quota, &["quotaid", "quotametric", "quotalimit"]),
    (
        Says::Wait,
        &["retrydelay", "quotaresetdelay", "retryafter", "resetsinseconds", "retryafterseconds"],
    ),
    (Says::Reset, &["quotaresettimestamp", "resetsat", "resetat"]),
    (Says::RequestId, &["requestid", "xrequestid", "requestidheader"]),
];

const COUNTS: [(Counts, &[&str]); 8] = [
    (
        Counts::Code,
        &["code", "status", "errorcode", "errcode", "statuscode", "httpcode", "httpstatus"],
    ),
    (Counts::Stated, &["originalstatuscode", "upstreamstatus"]),
    (Counts::Success, &["success"]),
    (Counts::Requested, &["nprompttokens"]),
    (Counts::Limit, &["nctx"]),
    (
        Counts::Wait,
        &["resetsinseconds", "estimatedtime", "retryafter", "retryafterseconds", "retrydelay"],
    ),
    (Counts::WaitMillis, &["retryafterms"]),
    (Counts::Reset, &["resetsat", "resetat"]),
];

const QUOTES: [(Quotes, &[&str]); 3] = [
    (Quotes::Wait, &["retryafter"]),
    (Quotes::Reset, &["xratelimitreset"]),
    (Quotes::Exception, &["exceptiontype"]),
];

/// The longest key in the tables is below.
const MAX_KEY: usize = 24;

type Folded = [u64; MAX_KEY / 8];

static KEYS: LazyLock<Map<{ MAX_KEY / 8 }, Key>> = LazyLock::new(|| {
    let mut keys: Vec<(Folded, Key)> = Vec::new();
    let mut set = |name: &str, change: &dyn Fn(&mut Key)| {
        let Some(name) = folded(name) else { return };
        match keys.iter_mut().find(|(known, _)| *known == name) {
            Some((_, key)) => change(key),
            None => {
                let mut key = Key::default();
                change(&mut key);
                keys.push((name, key));
            }
        }
    };
    for (place, names) in PLACES {
        names.iter().for_each(|name| set(name, &|key| key.place = place));
    }
    for (says, names) in SAYS {
        names.iter().for_each(|name| set(name, &|key| key.says = says));
    }
    for (counts, names) in COUNTS {
        names.iter().for_each(|name| set(name, &|key| key.counts = counts));
    }
    for (quotes, names) in QUOTES {
        names.iter().for_each(|name| set(name, &|key| key.quotes = quotes));
    }
    set("seconds", &|key| key.seconds = true);
    Map::new(keys)
});

/// Builds the table now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&KEYS);
}

/// Letters in lower case and digits; zero for what is left out.
const FOLDED: [u8; 256] = {
    let mut folded = [0; 256];
    let mut byte = 0u8;
    loop {
        if byte.is_ascii_alphanumeric() {
            folded[byte as usize] = byte.to_ascii_lowercase();
        }
        if byte == u8::MAX {
            break folded;
        }
        byte += 1;
    }
};

/// `key` without case and punctuation; `None` for one longer than any known.
fn folded(key: &str) -> Option<Folded> {
    let mut bytes = [0; MAX_KEY];
    let mut length = 0;
    for byte in key.bytes() {
        let folded = FOLDED[usize::from(byte)];
        if folded != 0 {
            *bytes.get_mut(length)? = folded;
            length += 1;
        }
    }
    Some(words(&bytes))
}

impl Key {
    pub(crate) fn of(key: &str) -> Self {
        match folded(key) {
            None => Self::default(),
            Some(name) if name[0] == 0 => {
                Self { none: true, says: Says::Message, ..Self::default() }
            }
            Some(name) => KEYS.get(&name).copied().unwrap_or_default(),
        }
    }

    /// What an object or array under this key in `place` is.
    pub(crate) fn place_in(self, place: Place) -> Place {
        match place {
            Place::Skip | Place::Headers | Place::Delay => Place::Skip,
            // Array elements, and documents in a row.
            _ if self.none => place,
            Place::Choice if self.says == Says::Error => Place::Error,
            Place::Choice => Place::Skip,
            Place::Error | Place::Detail => self.place,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_does_not_matter() {
        for key in ["error_code", "errorCode", "ErrorCode", "error-code", " error code"] {
            assert_eq!(Key::of(key).says, Says::Reason, "{key}");
        }
        for key in ["", "@", "__", "é"] {
            assert_eq!(Key::of(key).place_in(Place::Detail), Place::Detail, "{key}");
        }
        for key in ["previous_errors", "a key that is longer than every known one"] {
            assert_eq!(Key::of(key).place_in(Place::Error), Place::Skip, "{key}");
        }
    }

    #[test]
    fn every_name_is_in_the_table() {
        let names = PLACES.iter().flat_map(|row| row.1);
        let names = names.chain(SAYS.iter().flat_map(|row| row.1));
        let names = names.chain(COUNTS.iter().flat_map(|row| row.1));
        for name in names.chain(QUOTES.iter().flat_map(|row| row.1)) {
            assert_ne!(Key::of(name), Key::default(), "{name}");
            assert_eq!(*name, name.to_ascii_lowercase());
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{name}");
        }
    }
}
