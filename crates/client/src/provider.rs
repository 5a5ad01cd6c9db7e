//! Who is asked, and how to reach them.

use std::{collections::HashSet, fmt, sync::Arc};

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use steadfast_core::{Dialect, Failure, FaultSide, Reason, Scope, Target};

use crate::{
    Credential, CredentialSource, Platform, Secret,
    dialect::{Codec, Wire, codec},
    platform::{Envelope, Operation},
    source::Renewed,
};

/// One provider.
///
/// ```
/// use steadfast_client::{Credential, Provider, Providers};
/// use steadfast_core::Dialect;
///
/// let providers = Providers::new([
///     Provider::new("anthropic", Dialect::Anthropic).with_credential(Credential::new("main", "sk-ant")),
///     Provider::new("local", Dialect::OpenAi)
///         .with_base_url("http://localhost:11434/v1")
///         .without_credential(),
/// ])
/// .unwrap();
/// assert_eq!(providers.names().collect::<Vec<_>>(), ["anthropic", "local"]);
/// ```
#[derive(Clone)]
#[must_use]
pub struct Provider {
    name: Box<str>,
    dialect: Dialect,
    also: Option<Dialect>,
    platform: Platform,
    base_url: Option<String>,
    credentials: Vec<Held>,
    open: bool,
    headers: Vec<(String, String)>,
    propagates: bool,
    wire: Option<Wire>,
}

/// A credential, or where one comes from.
#[derive(Clone)]
enum Held {
    Fixed(Credential),
    Source(Box<str>, Arc<dyn CredentialSource>),
}

impl Held {
    fn name(&self) -> &str {
        match self {
            Self::Fixed(credential) => &credential.name,
            Self::Source(name, _) => name,
        }
    }
}

/// A provider that can not be used as it is described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// The list is empty.
    #[error("there is no provider; name at least one")]
    None,
    /// A provider without a name.
    #[error("a provider has no name; give it one to speak of it by")]
    NoName,
    /// Two of one name.
    #[error("two providers are called `{0}`; names have to differ")]
    Duplicate(Box<str>),
    /// No credential.
    #[error(
        "the provider `{0}` has no credential; give it one, or declare that it needs none with \
         `without_credential`"
    )]
    NoCredential(Box<str>),
    /// Two credentials of one name.
    #[error("the provider `{provider}` has two credentials called `{credential}`")]
    DuplicateCredential {
        /// The provider.
        provider: Box<str>,
        /// The name.
        credential: Box<str>,
    },
    /// A secret that no header can carry.
    #[error(
        "the secret of the credential `{credential}` of the provider `{provider}` has characters \
         that no HTTP header can carry, such as a line end"
    )]
    BadSecret {
        /// The provider.
        provider: Box<str>,
        /// The credential's name.
        credential: Box<str>,
    },
    /// An address that is none.
    #[error("the base URL of the provider `{provider}` {problem}; right would be `{example}`")]
    BadUrl {
        /// The provider.
        provider: Box<str>,
        /// What is wrong with it.
        problem: &'static str,
        /// The vendor's own, or one like it.
        example: String,
    },
    /// No address, where everybody has one of his own.
    #[error("the provider `{provider}` has no base URL; right would be one such as `{example}`")]
    NoUrl {
        /// The provider.
        provider: Box<str>,
        /// One that would be right.
        example: String,
    },
    /// A platform that is not described well.
    #[error("the platform of the provider `{provider}`: {problem}")]
    BadPlatform {
        /// The provider.
        provider: Box<str>,
        /// What is wrong.
        problem: &'static str,
    },
    /// A platform that does not serve models in the dialect.
    #[error("the platform of the provider `{provider}` has no models in the dialect {dialect}")]
    NoDialect {
        /// The provider.
        provider: Box<str>,
        /// The dialect.
        dialect: Dialect,
    },
    /// A header that is none.
    #[error("the header `{header}` of the provider `{provider}` is not valid in HTTP")]
    BadHeader {
        /// The provider.
        provider: Box<str>,
        /// Its name.
        header: String,
    },
}

impl Provider {
    /// A provider at the vendor's own address.
    pub fn new(name: impl Into<Box<str>>, dialect: Dialect) -> Self {
        Self {
            name: name.into(),
            dialect,
            also: None,
            platform: Platform::vendor(),
            base_url: None,
            credentials: Vec::new(),
            open: false,
            headers: Vec::new(),
            propagates: false,
            wire: None,
        }
    }

    /// Speaks this dialect besides, at the same address: a caller of it is answered by it as it is, and everybody else
    /// in the other one. OpenAI itself speaks chat completions and responses.
    pub fn with_also(mut self, dialect: Dialect) -> Self {
        self.also = Some(dialect).filter(|also| *also != self.dialect);
        self
    }

    /// Served by this platform instead of the vendor.
    pub fn on(mut self, platform: Platform) -> Self {
        self.platform = platform;
        self
    }

    /// At this address, as the vendor's own SDK has it: OpenAI's ends in `/v1`, Anthropic's and
    /// Gemini's is the host. A slash, or for the latter two a version, at its end does no harm.
    pub fn with_base_url(mut self, url: impl Into<String>) -> Self {
        self.base_url = Some(url.into());
        self
    }

    /// With one more credential. The first is used when a target names none.
    pub fn with_credential(mut self, credential: Credential) -> Self {
        self.credentials.push(Held::Fixed(credential));
        self
    }

    /// With one more credential, which expires: what `source` gives is used until shortly before its end, and
    /// replaced at once, in the same attempt, when the provider no longer takes it.
    pub fn with_source(
        mut self,
        name: impl Into<Box<str>>,
        source: impl CredentialSource + 'static,
    ) -> Self {
        self.credentials.push(Held::Source(name.into(), Arc::new(source)));
        self
    }

    /// Needs none, as a server of one's own.
    pub fn without_credential(mut self) -> Self {
        self.open = true;
        self
    }

    /// With this header on every request; it replaces one this crate would send.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Is sent which trace a call belongs to, as `traceparent` and `tracestate` of the attempt, where the call is
    /// [traced](steadfast_core::CallContext::trace). By default no provider is: the ids are somebody else's business.
    pub fn with_trace_context(mut self) -> Self {
        self.propagates = true;
        self
    }

    /// How it differs from its dialect. Without this, addresses at OpenAI and Azure know
    /// `max_completion_tokens`, others are taken for compatible servers, which may not.
    pub fn with_wire(mut self, wire: Wire) -> Self {
        self.wire = Some(wire);
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it speaks.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }
}

impl fmt::Debug for Provider {
    /// Shows names alone: an address or a header may hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("name", &self.name)
            .field("dialect", &self.dialect)
            .field("credentials", &self.credentials.iter().map(Held::name).collect::<Vec<_>>())
            .field("headers", &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// The providers a client knows. Cheap to clone.
#[derive(Clone)]
pub struct Providers(Arc<[Endpoint]>);

/// A provider that has been checked.
pub(crate) struct Endpoint {
    pub(crate) name: Box<str>,
    pub(crate) codec: &'static dyn Codec,
    pub(crate) platform: Platform,
    pub(crate) envelope: Envelope,
    /// Scheme, host and path, without a slash at its end.
    pub(crate) base_url: String,
    /// The address of every request, where model and streaming are no part of it.
    pub(crate) uri: Option<Uri>,
    pub(crate) credentials: Vec<Key>,
    pub(crate) headers: HeaderMap,
    /// Whether it is sent which trace a call belongs to.
    pub(crate) propagates: bool,
    pub(crate) wire: Wire,
    /// The same in its other dialect.
    also: Option<Box<Endpoint>>,
}

/// A credential as it is sent.
pub(crate) struct Key {
    pub(crate) name: Box<str>,
    kind: KeyKind,
}

enum KeyKind {
    Header { secret: Secret, header: HeaderName, value: HeaderValue },
    Renewed(Arc<Renewed>),
}

impl Key {
    /// Puts it into `headers`, where it can be.
    pub(crate) fn add_to(&self, headers: &mut HeaderMap) {
        if let KeyKind::Header { header, value, .. } = &self.kind {
            headers.insert(header, value.clone());
        }
    }

    /// What is fetched, where it can not.
    pub(crate) fn renewed(&self) -> Option<&Arc<Renewed>> {
        match &self.kind {
            KeyKind::Header { .. } => None,
            KeyKind::Renewed(renewed) => Some(renewed),
        }
    }
}

impl Providers {
    /// Checks the providers.
    ///
    /// # Errors
    ///
    /// When one can not be used: no or a bad address, no credential, a name given twice.
    pub fn new(providers: impl IntoIterator<Item = Provider>) -> Result<Self, ProviderError> {
        let mut names = HashSet::new();
        let mut endpoints = Vec::new();
        for provider in providers {
            if provider.name.is_empty() {
                return Err(ProviderError::NoName);
            }
            if !names.insert(provider.name.clone()) {
                return Err(ProviderError::Duplicate(provider.name));
            }
            endpoints.push(Endpoint::new(provider)?);
        }
        if endpoints.is_empty() {
            return Err(ProviderError::None);
        }
        Ok(Self(endpoints.into()))
    }

    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|endpoint| &*endpoint.name)
    }

    /// The dialect of the provider `name`.
    pub fn dialect(&self, name: &str) -> Option<Dialect> {
        self.get(name).map(|endpoint| endpoint.codec.dialect())
    }

    /// Where they are, by their names: host and port.
    pub fn servers(&self) -> impl Iterator<Item = (&str, (String, u16))> {
        self.0.iter().filter_map(|endpoint| {
            let uri: Uri = endpoint.base_url.parse().ok()?;
            let usual = if uri.scheme_str() == Some("http") { 80 } else { 443 };
            let port = uri.port_u16().unwrap_or(usual);
            Some((&*endpoint.name, (uri.host()?.to_owned(), port)))
        })
    }

    /// The names of the credentials of the provider `name`.
    pub fn credentials(&self, name: &str) -> impl Iterator<Item = &str> {
        self.get(name)
            .into_iter()
            .flat_map(|endpoint| endpoint.credentials.iter().map(|k| &*k.name))
    }

    /// The secrets of all providers that do not change, for whoever keeps them out of logs and errors.
    pub fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let keys = self.0.iter().flat_map(|endpoint| &endpoint.credentials);
        keys.filter_map(|key| match &key.kind {
            KeyKind::Header { secret, .. } => Some(secret),
            KeyKind::Renewed(_) => None,
        })
    }

    fn get(&self, name: &str) -> Option<&Endpoint> {
        self.0.iter().find(|endpoint| &*endpoint.name == name)
    }

    /// Where a call with this target goes; without one, to the first provider.
    pub(crate) fn route(
        &self,
        target: Option<&Target>,
        caller: Option<Dialect>,
    ) -> Result<(&Endpoint, Option<&Key>), Failure> {
        let endpoint = match target {
            None => self.0.first(),
            Some(target) => self.get(target.provider()),
        };
        let Some(endpoint) = endpoint else {
            let names: Vec<&str> = self.names().collect();
            let asked = target.map_or("", |target| target.provider());
            let message =
                format!("there is no provider `{asked}`; this client knows {}", names.join(", "));
            return Err(Failure::refused(Reason::Unsupported, message)
                .with_fault(FaultSide::Local)
                .with_scope(Scope::Local)
                .with_evidence("client:target"));
        };
        let also = endpoint.also.as_deref();
        let endpoint = also.filter(|also| caller == Some(also.codec.dialect())).unwrap_or(endpoint);
        let key = match target.and_then(Target::credential) {
            None => endpoint.credentials.first(),
            Some(name) => {
                let found = endpoint.credentials.iter().find(|key| &*key.name == name);
                Some(found.ok_or_else(|| {
                    let message =
                        format!("the provider `{}` has no credential `{name}`", endpoint.name);
                    Failure::refused(Reason::Auth, message).with_evidence("client:credential")
                })?)
            }
        };
        Ok((endpoint, key))
    }
}

impl fmt::Debug for Providers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Endpoint {
    fn new(provider: Provider) -> Result<Self, ProviderError> {
        let also = match provider.also {
            Some(dialect) => {
                let other = Provider { dialect, also: None, ..provider.clone() };
                Some(Box::new(Self::new(other)?))
            }
            None => None,
        };
        let Provider {
            name,
            dialect,
            platform,
            base_url,
            credentials,
            open,
            headers,
            propagates,
            wire,
            ..
        } = provider;
        let codec = codec(dialect);
        if !platform.speaks(dialect) {
            return Err(ProviderError::NoDialect { provider: name, dialect });
        }
        if let Some(problem) = platform.problem() {
            return Err(ProviderError::BadPlatform { provider: name, problem });
        }
        let Some(base_url) = base_url.or_else(|| platform.base_url(codec)) else {
            return Err(ProviderError::NoUrl { provider: name, example: platform.example(codec) });
        };
        let suffixes = platform.redundant_suffixes(codec);
        let (base_url, host) = checked_url(&base_url, suffixes).map_err(|problem| {
            let example = platform.example(codec);
            ProviderError::BadUrl { provider: name.clone(), problem, example }
        })?;
        if credentials.is_empty() && !open {
            return Err(ProviderError::NoCredential(name));
        }
        let mut keys: Vec<Key> = Vec::new();
        for held in credentials {
            if keys.iter().any(|key| *key.name == *held.name()) {
                let credential = held.name().into();
                return Err(ProviderError::DuplicateCredential { provider: name, credential });
            }
            keys.push(match held {
                Held::Fixed(Credential { name: credential, secret }) => {
                    let (header, prefix) = platform.credential(codec);
                    let value = format!("{prefix}{}", secret.expose());
                    let Ok(mut value) = HeaderValue::try_from(value) else {
                        return Err(ProviderError::BadSecret { provider: name, credential });
                    };
                    value.set_sensitive(true);
                    Key { name: credential, kind: KeyKind::Header { secret, header, value } }
                }
                Held::Source(name, source) => {
                    Key { name, kind: KeyKind::Renewed(Arc::new(Renewed::new(source))) }
                }
            });
        }
        let mut all = HeaderMap::new();
        for (header, value) in headers {
            match (HeaderName::try_from(&header), HeaderValue::try_from(value)) {
                (Ok(header), Ok(mut value)) => {
                    // It may be one more secret.
                    value.set_sensitive(true);
                    all.append(header, value);
                }
                _ => return Err(ProviderError::BadHeader { provider: name, header }),
            }
        }
        let wire = wire.unwrap_or_else(|| Wire {
            max_completion_tokens: host.ends_with("openai.com")
                || host.ends_with("azure.com")
                || platform.is_azure(),
            ..Wire::default()
        });
        let path = |model, stream| {
            let vendor = codec.path(model, stream);
            platform.path(dialect, Operation::Generate { stream }, model, vendor)
        };
        let fixed = path("a", false).filter(|fixed| path("b", true).as_ref() == Some(fixed));
        let uri = fixed.and_then(|path| format!("{base_url}{path}").parse().ok());
        let envelope = platform.envelope(dialect);
        let credentials = keys;
        let headers = all;
        Ok(Self {
            name,
            codec,
            platform,
            envelope,
            base_url,
            uri,
            credentials,
            headers,
            propagates,
            wire,
            also,
        })
    }

    /// The address, below the base URL, of `what` of `model`, which is at `vendor` with the vendor.
    pub(crate) fn path(
        &self,
        what: Operation,
        model: &str,
        vendor: String,
    ) -> Result<String, Failure> {
        self.platform.path(self.codec.dialect(), what, model, vendor).ok_or_else(|| {
            let message = format!("the platform of `{}` has no such thing", self.name);
            Failure::refused(Reason::Unsupported, message).with_evidence("platform")
        })
    }
}

/// The address without what is too much at its end, and its host.
fn checked_url(url: &str, suffixes: &[&str]) -> Result<(String, String), &'static str> {
    let url = url.trim();
    if url.contains(['?', '#']) {
        return Err("has a query or a fragment");
    }
    let uri: Uri = url.parse().map_err(|_| "is not a URL")?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        Some(_) => return Err("has a scheme other than http and https"),
        None => return Err("has no scheme"),
    }
    let authority = uri.authority().ok_or("has no host")?;
    if authority.as_str().contains('@') {
        return Err("has a credential in it, which belongs into the credentials");
    }
    // A host may be called as a path ends.
    let host_end = url.find("://").map_or(0, |at| at + 3 + authority.as_str().len());
    let mut base = url.trim_end_matches('/');
    for suffix in suffixes {
        if let Some(shorter) = base.strip_suffix(suffix).filter(|left| left.len() >= host_end) {
            base = shorter.trim_end_matches('/');
        }
    }
    Ok((base.to_owned(), authority.host().to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(dialect: Dialect, url: &str) -> Result<String, ProviderError> {
        let provider = Provider::new("p", dialect).with_base_url(url).without_credential();
        Providers::new([provider]).map(|providers| providers.0[0].base_url.clone())
    }

    #[test]
    fn addresses_are_those_of_the_vendors_sdk_with_or_without_their_ends() {
        use Dialect::{Anthropic, Gemini, OpenAi, Responses};
        for (dialect, url, wanted) in [
            (OpenAi, "https://api.openai.com/v1", "https://api.openai.com/v1"),
            (OpenAi, "https://api.openai.com/v1/", "https://api.openai.com/v1"),
            (OpenAi, "http://localhost:1234", "http://localhost:1234"),
            (Anthropic, "https://api.anthropic.com", "https://api.anthropic.com"),
            (Anthropic, "https://api.anthropic.com/v1/", "https://api.anthropic.com"),
            (Anthropic, "https://relay/anthropic/", "https://relay/anthropic"),
            (Gemini, "https://g.googleapis.com/v1beta/", "https://g.googleapis.com"),
            (Responses, "http://responses", "http://responses"),
            (Responses, "http://host/v1/responses", "http://host/v1"),
        ] {
            assert_eq!(one(dialect, url).as_deref(), Ok(wanted), "{url}");
        }
        for url in
            ["", "api.openai.com/v1", "ftp://x", "https://", "https://key@host", "http://h?k=v"]
        {
            assert!(matches!(one(OpenAi, url), Err(ProviderError::BadUrl { .. })), "{url}");
        }
    }

    #[test]
    fn errors_name_what_is_wrong_and_no_secret() {
        let provider = |name: &str| Provider::new(name, Dialect::OpenAi);
        let errors = [
            Providers::new([]).unwrap_err(),
            Providers::new([provider("a")]).unwrap_err(),
            Providers::new([
                provider("a").without_credential(),
                provider("a").without_credential(),
            ])
            .unwrap_err(),
            Providers::new([provider("a")
                .with_credential(Credential::new("k", "one"))
                .with_credential(Credential::new("k", "two"))])
            .unwrap_err(),
            Providers::new([provider("a").with_credential(Credential::new("k", "hid\nden"))])
                .unwrap_err(),
            Providers::new([provider("a").without_credential().with_header("a b", "c")])
                .unwrap_err(),
        ];
        let mut shown: Vec<String> = errors.iter().map(ToString::to_string).collect();
        shown.sort();
        shown.dedup();
        assert_eq!(shown.len(), errors.len(), "each says something else");
        assert!(!shown.concat().contains("hid"));
    }

    #[test]
    fn a_target_chooses_provider_and_credential() {
        let providers = Providers::new([
            Provider::new("a", Dialect::OpenAi)
                .with_credential(Credential::new("k1", "1"))
                .with_credential(Credential::new("k2", "2")),
            Provider::new("b", Dialect::Gemini).without_credential(),
        ])
        .unwrap();
        let chosen = |target: Option<Target>| {
            providers
                .route(target.as_ref(), None)
                .map(|(endpoint, key)| (endpoint.name.to_string(), key.map(|k| k.name.to_string())))
                .map_err(|failure| failure.message().to_owned())
        };
        assert_eq!(chosen(None), Ok(("a".into(), Some("k1".into()))));
        let second = Target::new("a").with_credential("k2");
        assert_eq!(chosen(Some(second)), Ok(("a".into(), Some("k2".into()))));
        assert_eq!(chosen(Some(Target::new("b"))), Ok(("b".into(), None)));
        assert!(chosen(Some(Target::new("c"))).unwrap_err().contains("knows a, b"));
        assert!(chosen(Some(Target::new("a").with_credential("x"))).is_err());
    }
}
