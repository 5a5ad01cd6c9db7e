//! Where a vendor's models are served by somebody else: other addresses, credentials and envelopes around the same
//! dialects.
//!
//! A codec writes the request that the vendor would be sent; a platform puts it where and how the platform wants it,
//! and takes the answer out of what it came in.

mod azure;
#[cfg(feature = "bedrock")]
mod bedrock;
mod vertex;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, StatusCode, header};
use steadfast_core::{BoxError, Dialect, Failure};

#[cfg(feature = "bedrock")]
pub(crate) use self::bedrock::EventStream;
use crate::{ClientBody, TemporaryCredential, dialect::Codec, json::patched, source::AwsKeys};

/// Who serves the models of a provider.
///
/// ```
/// use steadfast_client::{Credential, Platform, Provider, Providers};
/// use steadfast_core::Dialect;
///
/// let azure = Provider::new("azure", Dialect::OpenAi)
///     .on(Platform::azure())
///     .with_base_url("https://my-resource.openai.azure.com")
///     .with_credential(Credential::new("main", "key"));
/// let vertex = Provider::new("vertex", Dialect::Anthropic)
///     .on(Platform::vertex("my-project", "us-east5"))
///     .with_credential(Credential::new("token", "ya29..."));
/// Providers::new([azure, vertex]).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Platform(Site);

/// Which it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Site {
    Vendor,
    Azure(Azure),
    Vertex(Vertex),
    #[cfg(feature = "bedrock")]
    Bedrock(Bedrock),
}

/// How Azure is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Azure {
    /// Of the older API, where deployments stand in the address; the newer one has none.
    api_version: Option<Box<str>>,
}

/// Where on Vertex AI models are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Vertex {
    project: Box<str>,
    location: Box<str>,
}

/// Where on Bedrock models are asked.
#[cfg(feature = "bedrock")]
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bedrock {
    region: Box<str>,
}

impl Platform {
    /// The vendor itself, or a server that is compatible with it.
    pub fn vendor() -> Self {
        Self(Site::Vendor)
    }

    /// Azure: OpenAI's models in their two dialects, and Anthropic's. By its newer API (`/openai/v1`), where the
    /// model's name is that of a deployment. The base URL is the resource's endpoint, such as `https://my-resource.openai.azure.com`; with Anthropic's dialect
    /// `https://my-resource.services.ai.azure.com`.
    pub fn azure() -> Self {
        Self(Site::Azure(Azure { api_version: None }))
    }

    /// Azure by its older API, with the deployment in the address and this version, such as `2024-10-21`, behind it.
    pub fn azure_version(api_version: impl Into<Box<str>>) -> Self {
        Self(Site::Azure(Azure { api_version: Some(api_version.into()) }))
    }

    /// Google Cloud's Vertex AI: Google's models, Anthropic's, and others in OpenAI's two dialects. A project and a
    /// location, such as `us-east5`, `eu` or `global`.
    pub fn vertex(project: impl Into<Box<str>>, location: impl Into<Box<str>>) -> Self {
        Self(Site::Vertex(Vertex { project: project.into(), location: location.into() }))
    }

    /// Amazon Bedrock: Anthropic's models, and others in OpenAI's two dialects. In a region, such as `eu-central-1`.
    #[cfg(feature = "bedrock")]
    pub fn bedrock(region: impl Into<Box<str>>) -> Self {
        Self(Site::Bedrock(Bedrock { region: region.into() }))
    }

    /// Whether it serves models in `dialect`.
    pub fn speaks(&self, dialect: Dialect) -> bool {
        match &self.0 {
            Site::Vendor | Site::Vertex(_) => true,
            Site::Azure(_) => dialect != Dialect::Gemini,
            #[cfg(feature = "bedrock")]
            Site::Bedrock(_) => dialect != Dialect::Gemini,
        }
    }

    /// Whether it is Azure.
    pub(crate) fn is_azure(&self) -> bool {
        matches!(self.0, Site::Azure(_))
    }

    /// Signs `request` with keys of AWS.
    ///
    /// # Errors
    ///
    /// When nothing of it is AWS's, or it can not be signed.
    pub(crate) fn sign(
        &self,
        request: &mut Request<ClientBody>,
        body: &[u8],
        keys: &AwsKeys,
    ) -> Result<(), BoxError> {
        match &self.0 {
            #[cfg(feature = "bedrock")]
            Site::Bedrock(bedrock) => bedrock::sign(request, body, keys, bedrock),
            _ => {
                let _ = (request, body, keys);
                Err("is one of AWS, and signs requests to Bedrock alone".into())
            }
        }
    }

    /// What is wrong with it: a name that no address can carry.
    pub fn problem(&self) -> Option<&'static str> {
        match &self.0 {
            Site::Vendor => None,
            Site::Azure(azure) => azure.problem(),
            Site::Vertex(vertex) => vertex.problem(),
            #[cfg(feature = "bedrock")]
            Site::Bedrock(bedrock) => bedrock.problem(),
        }
    }

    /// The address where none is given; `None` where everybody has another one.
    pub(crate) fn base_url(&self, codec: &dyn Codec) -> Option<String> {
        match &self.0 {
            Site::Vendor => Some(codec.facts().base_url.to_owned()),
            Site::Azure(_) => None,
            Site::Vertex(vertex) => Some(vertex.base_url()),
            #[cfg(feature = "bedrock")]
            Site::Bedrock(bedrock) => Some(bedrock.base_url(codec.dialect())),
        }
    }

    /// An address that would be right.
    pub(crate) fn example(&self, codec: &dyn Codec) -> String {
        self.base_url(codec).unwrap_or_else(|| azure::EXAMPLE.to_owned())
    }

    /// Path segments that people add to the base URL though paths begin with them.
    pub(crate) fn redundant_suffixes(&self, codec: &dyn Codec) -> &'static [&'static str] {
        match &self.0 {
            Site::Vendor => codec.facts().redundant_suffixes,
            Site::Azure(_) => azure::SUFFIXES,
            Site::Vertex(_) => vertex::SUFFIXES,
            #[cfg(feature = "bedrock")]
            Site::Bedrock(_) => bedrock::SUFFIXES,
        }
    }

    /// The header that carries a credential which does not expire, and what stands before it there.
    pub(crate) fn credential(&self, codec: &dyn Codec) -> (HeaderName, &'static str) {
        match &self.0 {
            Site::Azure(_) if codec.dialect() != Dialect::Anthropic => azure::KEY,
            Site::Vendor | Site::Azure(_) => codec.facts().credential.clone(),
            Site::Vertex(_) => (header::AUTHORIZATION, "Bearer "),
            #[cfg(feature = "bedrock")]
            Site::Bedrock(_) => (header::AUTHORIZATION, "Bearer "),
        }
    }

    /// The path, and query, below the base URL; `None` where the platform has no such thing. `vendor` is the vendor's.
    pub(crate) fn path(
        &self,
        dialect: Dialect,
        what: Operation,
        model: &str,
        vendor: String,
    ) -> Option<String> {
        match &self.0 {
            Site::Vendor => Some(vendor),
            Site::Azure(azure) => Some(azure.path(dialect, what, model, &vendor)),
            Site::Vertex(vertex) => vertex.path(dialect, what, model, &vendor),
            #[cfg(feature = "bedrock")]
            Site::Bedrock(_) => bedrock::path(dialect, what, model, &vendor),
        }
    }

    /// What stands around requests and answers of `dialect`.
    pub(crate) fn envelope(&self, dialect: Dialect) -> Envelope {
        match &self.0 {
            Site::Vendor | Site::Azure(_) => Envelope::None,
            Site::Vertex(_) => match dialect {
                Dialect::Anthropic => Envelope::VertexMessages,
                Dialect::Gemini => Envelope::VertexGemini,
                Dialect::OpenAi | Dialect::Responses => Envelope::Vertex,
            },
            #[cfg(feature = "bedrock")]
            Site::Bedrock(_) => match dialect {
                Dialect::Anthropic => Envelope::BedrockMessages,
                _ => Envelope::Bedrock,
            },
        }
    }
}

/// What is asked of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// An answer of a model.
    Generate {
        /// As a stream.
        stream: bool,
    },
    /// How many tokens a request has.
    Count,
    /// Embeddings.
    Embed,
    /// What a provider keeps.
    Stored,
    /// Which models there are.
    List,
}

/// What a platform puts around the requests of a dialect, and its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Envelope {
    /// Nothing.
    None,
    /// Anthropic's messages on Vertex: the model is in the address, the version of the API in the body.
    VertexMessages,
    /// Gemini's own on Vertex, but for roles and counts of tokens.
    VertexGemini,
    /// Errors of Vertex.
    Vertex,
    /// Anthropic's messages on Bedrock: as on Vertex, betas and streaming too, and answers as an AWS event stream.
    #[cfg(feature = "bedrock")]
    BedrockMessages,
    /// Errors of AWS.
    #[cfg(feature = "bedrock")]
    Bedrock,
}

impl Envelope {
    /// Puts the vendor's request into it.
    ///
    /// # Errors
    ///
    /// When `body` is no object.
    pub(crate) fn wrap(
        self,
        what: Operation,
        body: Bytes,
        headers: &mut HeaderMap,
    ) -> Result<Bytes, Failure> {
        match self {
            Self::None | Self::Vertex => Ok(body),
            Self::VertexMessages => vertex::messages(what, &body, headers),
            Self::VertexGemini => vertex::gemini(what, body),
            #[cfg(feature = "bedrock")]
            Self::BedrockMessages => bedrock::messages(what, &body, headers),
            #[cfg(feature = "bedrock")]
            Self::Bedrock => Ok(body),
        }
    }

    /// Whether what a caller's address had in its query means something in the platform's.
    pub(crate) fn keeps_query(self) -> bool {
        matches!(self, Self::None | Self::Vertex | Self::VertexGemini)
    }

    /// Takes a whole answer out of it.
    pub(crate) fn unwrap(self, what: Operation, body: Bytes) -> Bytes {
        match self {
            #[cfg(feature = "bedrock")]
            Self::BedrockMessages if what == Operation::Count => bedrock::count(body),
            _ => {
                let _ = what;
                body
            }
        }
    }

    /// The dialect that a refusal is in: what the platform refuses itself is in none.
    pub(crate) fn error_dialect(self, dialect: Dialect, body: &[u8]) -> Option<Dialect> {
        let own = match self {
            Self::None | Self::VertexGemini => true,
            Self::VertexMessages => vertex::is_anthropic_error(body),
            Self::Vertex => false,
            #[cfg(feature = "bedrock")]
            Self::BedrockMessages => false,
            #[cfg(feature = "bedrock")]
            Self::Bedrock => bedrock::is_openai_error(body),
        };
        own.then_some(dialect)
    }

    /// A reader of the platform's own stream, where `headers` say that an answer is one.
    pub(crate) fn event_stream(self, headers: &HeaderMap, limit: usize) -> Option<EventStream> {
        match self {
            #[cfg(feature = "bedrock")]
            Self::BedrockMessages => EventStream::of(headers, limit),
            _ => {
                let _ = (headers, limit);
                None
            }
        }
    }

    /// Whether a refusal may mean that `credential`, which was fetched, is no longer good.
    pub(crate) fn is_stale(
        self,
        status: StatusCode,
        headers: &HeaderMap,
        credential: &TemporaryCredential,
    ) -> bool {
        match self {
            #[cfg(feature = "bedrock")]
            Self::BedrockMessages | Self::Bedrock => bedrock::is_stale(status, headers, credential),
            _ => {
                let _ = (headers, credential);
                status == StatusCode::UNAUTHORIZED
            }
        }
    }
}

/// Without Bedrock there is no such stream.
#[cfg(not(feature = "bedrock"))]
pub(crate) enum EventStream {}

#[cfg(not(feature = "bedrock"))]
impl EventStream {
    pub(crate) fn push(&mut self, _: &[u8], _: &mut bytes::BytesMut) -> Result<(), Failure> {
        match *self {}
    }
}

/// A change of a field by name: another value, or none.
type Change = (&'static [&'static str], Option<String>);

/// `body` with these fields changed.
fn changed(body: &Bytes, set: &[Change]) -> Result<Bytes, Failure> {
    let old = serde_json::from_slice(body)
        .map_err(|error| Failure::refused(steadfast_core::Reason::Format, error.to_string()))?;
    patched(Some(old), set).map(Bytes::from)
}

/// Whether `name` can stand in an address or a host as it is.
fn is_plain(name: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
    !name.is_empty() && name.bytes().all(plain) && name.bytes().any(|byte| byte != b'.')
}
