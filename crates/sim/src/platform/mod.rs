//! Where a vendor's models are served by somebody else: other addresses, credentials and envelopes around the same
//! dialects, and errors and streams of the platform's own.
//!
//! Each platform takes the vendor's request out of its envelope, so that the dialect's rules hold as they are.

mod azure;
mod bedrock;
mod event_stream;
mod sigv4;
mod vertex;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde_json::Value;

pub use self::azure::SimAzure;
pub use self::bedrock::SimBedrock;
pub use self::sigv4::AwsSigner;
pub use self::vertex::SimVertex;
use crate::dialect::{self, Dialect, Route};
use crate::hash;
use crate::hosting::{Hosting, Received};

const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// A cloud platform that serves models.
///
/// ```
/// use steadfast_sim::{AwsSigner, Dialect, SimPlatform, SimProvider};
///
/// let azure = SimProvider::builder(Dialect::OpenAi).on(SimPlatform::azure()).keys(["key"]).build();
/// let bedrock = SimPlatform::bedrock("eu-central-1").with_signer(AwsSigner::new("AKIDEXAMPLE", "secret"));
/// let bedrock = SimProvider::builder(Dialect::Anthropic).on(bedrock).build();
/// # let _ = (azure, bedrock);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SimPlatform {
    /// Azure: OpenAI's models in their two dialects, and Anthropic's.
    Azure(SimAzure),
    /// Google Cloud's Vertex AI: Google's models, Anthropic's, and others in OpenAI's two dialects.
    Vertex(SimVertex),
    /// Amazon Bedrock: Anthropic's models, and others in OpenAI's two dialects.
    Bedrock(SimBedrock),
}

impl SimPlatform {
    /// Azure by its newer API (`/openai/v1`). The names of the models are those of deployments.
    #[must_use]
    pub fn azure() -> Self {
        Self::Azure(SimAzure::new(None))
    }

    /// Azure by its older API, with deployments in the address and this version, such as `2024-10-21`, behind it.
    pub fn azure_version(api_version: impl Into<String>) -> Self {
        Self::Azure(SimAzure::new(Some(api_version.into())))
    }

    /// Vertex AI: one project, at one location such as `us-east5` or `global`.
    pub fn vertex(project: impl Into<String>, location: impl Into<String>) -> Self {
        Self::Vertex(SimVertex::new(project.into(), location.into()))
    }

    /// Bedrock in a region, such as `eu-central-1`.
    #[must_use]
    pub fn bedrock(region: impl Into<String>) -> SimBedrock {
        SimBedrock::new(region.into())
    }

    pub(crate) fn hosting(self) -> Box<dyn Hosting> {
        match self {
            Self::Azure(azure) => Box::new(azure),
            Self::Vertex(vertex) => Box::new(vertex),
            Self::Bedrock(bedrock) => Box::new(bedrock),
        }
    }
}

impl From<SimBedrock> for SimPlatform {
    fn from(bedrock: SimBedrock) -> Self {
        Self::Bedrock(bedrock)
    }
}

/// Whether the vendor has this path, for the method of the request.
fn is_route(received: &Received<'_>, path: &str) -> bool {
    dialect::route(received.dialect, received.method(), path) != Route::Unknown
}

/// The first header of this name, where it is text and not empty.
fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok().map(str::trim).filter(|text| !text.is_empty())
}

/// The token of `authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = text(headers, header::AUTHORIZATION.as_str())?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim()).filter(|token| !token.is_empty())
}

/// The value of a parameter of a query, as it is written there.
fn parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    query
        .split('&')
        .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name))
        .map(|(_, value)| value)
}

/// A segment of a path without its escapes; `None` where they are no text.
fn decoded(segment: &str) -> Option<String> {
    String::from_utf8(unescaped(segment.as_bytes())).ok()
}

/// `%41` is `A`; what is no escape stays.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or(b'%'));
                at += 3;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    out
}

/// Whether it is a version of Anthropic's API as the vendor itself has them, which the newest SDKs send everywhere.
fn is_date(version: &str) -> bool {
    let mut headers = HeaderMap::new();
    if let Ok(version) = HeaderValue::from_str(version) {
        headers.insert(ANTHROPIC_VERSION, version);
    }
    dialect::check_headers(Dialect::Anthropic, &headers).is_ok()
}

/// Gives a request the version that stood in its envelope.
fn vendor_version(headers: &mut HeaderMap) {
    headers.insert(ANTHROPIC_VERSION, HeaderValue::from_static("2023-06-01"));
}

/// Removes a field of an object, in the order of the others.
fn take(body: &mut Value, name: &str) -> Option<Value> {
    body.as_object_mut()?.shift_remove(name)
}

/// An id as the platforms' gateways have them.
fn uuid(rng: &mut fastrand::Rng) -> String {
    let (a, b) = (rng.u64(..), rng.u64(..));
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        a >> 32,
        a >> 16 & 0xffff,
        a & 0xfff,
        b >> 48 & 0x3fff | 0x8000,
        b & 0xffff_ffff_ffff
    )
}

/// Another id, that belongs to `id`.
fn uuid_of(id: &str) -> String {
    uuid(&mut fastrand::Rng::with_seed(hash::seed(&[b"uuid", id.as_bytes()])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_read_and_what_is_none_stays() {
        for (written, read) in [
            ("claude-v1%3A0", "claude-v1:0"),
            ("a%2Fb%40c", "a/b@c"),
            ("100%", "100%"),
            ("%zz%4", "%zz%4"),
            ("%E1%88%B4", "ሴ"),
        ] {
            assert_eq!(decoded(written).as_deref(), Some(read));
        }
        assert_eq!(decoded("%ff"), None);
        assert_eq!(parameter("alt=sse&api-version=v1", "api-version"), Some("v1"));
        assert_eq!(parameter("api-version", "api-version"), None);
    }

    #[test]
    fn an_id_has_the_form_of_a_random_one() {
        let id = uuid_of("x");
        let parts: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!(id.as_bytes()[14], b'4');
        assert_ne!(id, uuid_of("y"));
    }
}
