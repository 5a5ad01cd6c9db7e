//! Who serves the models: their vendor, or somebody with other addresses, credentials and envelopes around the same
//! dialect.

use std::fmt;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method};
use serde_json::Value;

use crate::answer::Sent;
use crate::clock::WallClock;
use crate::dialect::{self, Dialect, ErrorContext, Refusal, Route};
use crate::fault::ErrorKind;
use crate::limit::Denied;
use crate::wire::{Frame, Framing, ServerSent};

/// A request as it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<'a> {
    pub(crate) dialect: Dialect,
    pub(crate) head: &'a Parts,
    pub(crate) body: &'a Bytes,
    /// The keys that are accepted; any with `None`.
    pub(crate) keys: Option<&'a [String]>,
}

impl Received<'_> {
    pub(crate) fn method(&self) -> &Method {
        &self.head.method
    }

    pub(crate) fn path(&self) -> &str {
        self.head.uri.path()
    }

    pub(crate) fn query(&self) -> &str {
        self.head.uri.query().unwrap_or_default()
    }

    pub(crate) fn accepts(&self, key: &str) -> bool {
        !key.is_empty() && self.keys.is_none_or(|keys| keys.iter().any(|known| known == key))
    }
}

/// The vendor's request that is in a received one.
#[derive(Debug)]
pub(crate) struct VendorRequest {
    /// Empty where the address is none.
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) json: Result<Value, serde_json::Error>,
    /// What identifies the caller.
    pub(crate) key: Option<String>,
    /// Why it is refused before it is read.
    pub(crate) refused: Option<Refusal>,
}

impl VendorRequest {
    /// What was received, as it is.
    pub(crate) fn of(received: &Received<'_>) -> Self {
        Self {
            path: received.path().to_owned(),
            query: received.query().to_owned(),
            headers: received.head.headers.clone(),
            json: serde_json::from_slice(received.body),
            key: None,
            refused: None,
        }
    }
}

/// Everything in which those who serve a dialect differ. What is not overridden is the vendor's.
pub(crate) trait Hosting: fmt::Debug + Send + Sync {
    /// Takes the vendor's request out of a received one, and checks what stands around it.
    fn open(&self, received: &Received<'_>) -> VendorRequest;

    /// Whether it is the vendor itself, with the headers of its responses.
    fn is_vendor(&self) -> bool {
        false
    }

    /// The id of a response, and the header that it is in.
    fn request_id(
        &self,
        dialect: Dialect,
        rng: &mut fastrand::Rng,
    ) -> (Option<&'static str>, String) {
        dialect::request_id(dialect, rng)
    }

    /// What stands in Anthropic's ids behind their prefix.
    fn id_infix(&self) -> &'static str {
        ""
    }

    fn no_model(&self, dialect: Dialect, name: &str) -> Refusal {
        dialect::no_model(dialect, name)
    }

    fn bad_json(&self, dialect: Dialect, error: &serde_json::Error, body: &[u8]) -> Refusal {
        dialect::bad_json(dialect, error, body)
    }

    fn limited(&self, dialect: Dialect, denied: &Denied, model: &str, wall: &WallClock) -> Refusal {
        dialect::limited(dialect, denied, model, wall)
    }

    /// How a refusal of the dialect's rules is sent.
    fn refused(&self, _dialect: Dialect, refusal: Refusal, _counting: bool) -> Refusal {
        refusal
    }

    /// How a planned error is sent; `own` is the dialect's.
    fn error(&self, _kind: &ErrorKind, context: &ErrorContext<'_>, own: Refusal) -> Refusal {
        self.refused(context.dialect, own, false)
    }

    /// The event of a planned error; `own` is the dialect's.
    fn error_frame(&self, _kind: &ErrorKind, _context: &ErrorContext<'_>, own: Bytes) -> Bytes {
        own
    }

    fn count(&self, dialect: Dialect, tokens: u64) -> Value {
        dialect::count(dialect, tokens)
    }

    /// A whole answer.
    fn whole(&self, _dialect: Dialect, body: String) -> String {
        body
    }

    /// The frames of a streamed answer.
    fn frames(&self, _dialect: Dialect, frames: Vec<Frame>, _sent: &Sent) -> Vec<Frame> {
        frames
    }

    fn framing(&self, _dialect: Dialect) -> &dyn Framing {
        &ServerSent
    }

    fn stream_type(&self, dialect: Dialect, sse: bool) -> &'static str {
        dialect::stream_type(dialect, sse)
    }

    /// Adds to the headers that every response has.
    fn headers(&self, _dialect: Dialect, _id: &str, _headers: &mut HeaderMap) {}

    /// Adds to the headers of an answer.
    fn answer_headers(
        &self,
        _dialect: Dialect,
        _stream: bool,
        _sent: &Sent,
        _headers: &mut HeaderMap,
    ) {
    }

    /// Whether the vendor's rate limits are in its headers.
    fn shows_limits(&self) -> bool {
        true
    }

    /// Makes a signer's credentials expired; `false` where there is none of this id.
    #[cfg(feature = "clouds")]
    fn expire_signer(&self, _access_key_id: &str) -> bool {
        false
    }
}

/// The vendor itself.
#[derive(Debug)]
pub(crate) struct Vendor;

impl Hosting for Vendor {
    fn open(&self, received: &Received<'_>) -> VendorRequest {
        let Received { dialect, head, .. } = *received;
        let key = dialect::key(dialect, &head.headers, received.query());
        let greets = dialect::route(dialect, received.method(), received.path()) == Route::Hello;
        let accepted = greets || key.as_deref().is_some_and(|key| received.accepts(key));
        let refused = (!accepted).then(|| dialect::bad_key(dialect, key.as_deref()));
        VendorRequest { key, refused, ..VendorRequest::of(received) }
    }

    fn is_vendor(&self) -> bool {
        true
    }
}
