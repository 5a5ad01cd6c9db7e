//! Keys of AWS.

use std::{
    error::Error,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use aws_config::{
    default_provider::credentials::DefaultCredentialsChain,
    environment::{
        credentials::EnvironmentVariableCredentialsProvider,
        region::EnvironmentVariableRegionProvider,
    },
    meta::region::RegionProviderChain,
    profile::{ProfileFileCredentialsProvider, ProfileFileRegionProvider},
    provider_config::ProviderConfig,
};
use aws_credential_types::{
    Credentials,
    provider::{ProvideCredentials, SharedCredentialsProvider, error::CredentialsError},
};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_smithy_http_client::{
    Builder,
    tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode},
};
use aws_smithy_runtime_api::client::{http::SharedHttpClient, result::ConnectorError};
use base64::{Engine, engine::general_purpose::STANDARD};
use steadfast_client::{CredentialFuture, CredentialSource, TemporaryCredential};
use steadfast_core::{Failure, Reason};
use tracing::{Dispatch, instrument::WithSubscriber};
use webpki_root_certs::TLS_SERVER_ROOT_CERTS;

use crate::causes::{causes, text};

/// What `aws-config` writes before a token that it shows, because no header can carry it.
const SHOWN_TOKEN: &str = "could not be used as a header value";

/// What `aws-config` writes where EC2's metadata service answers 403: it is switched off there, as sandboxes have it.
const NO_METADATA: &str = "IMDS is disabled";

/// Where keys of AWS come from, which sign requests to Amazon Bedrock.
///
/// Each fetch reads, runs and asks anew, and passes on when the keys expire; keys without an end hold until AWS refuses
/// them. Single steps have limits of their own (a connection 1 s to 4 s), the whole the 20 s of the client.
///
/// For AWS SSO and `aws login`, which `aws-config` is built without, name a profile that has the AWS CLI provide its
/// keys:
///
/// ```ini
/// [profile models]
/// credential_process = aws configure export-credentials --profile my-sso-profile --format process
/// ```
///
/// TLS, which web identities and roles need, trusts Mozilla's certificates, those of the client, and not those of the
/// system. Nothing that `aws-config` logs is logged, since some of it has secrets in it.
///
/// # Cancellation
///
/// Dropping a fetch stops it; a `credential_process` that it has started runs to its end by itself.
///
/// # Errors
///
/// * No credentials, a profile that is missing or can not be used, a file that can not be read:
///   [`Reason::Auth`], in vain to ask again. That is so as well where EC2's metadata service can not be reached or
///   answers 403, since there is none outside of EC2. In a container on EC2 it is out of reach with the default hop limit of 1.
/// * An endpoint that can not be reached: [`Reason::Network`] or [`Reason::Timeout`].
/// * An endpoint that answers with an error, a `credential_process` that fails: [`Reason::ServerError`].
#[derive(Clone)]
#[must_use]
pub struct AwsSource(Origin);

#[derive(Clone)]
enum Origin {
    Chain(SharedHttpClient),
    Profile { name: Box<str>, file: Option<PathBuf>, http: SharedHttpClient },
    Provider(SharedCredentialsProvider),
}

impl AwsSource {
    /// The first that there is, as all AWS SDKs have it:
    ///
    /// 1. the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`;
    /// 2. the profile that `AWS_PROFILE` names, else `default`, in `~/.aws/config` and `~/.aws/credentials`
    ///    (`AWS_CONFIG_FILE`, `AWS_SHARED_CREDENTIALS_FILE`);
    /// 3. a web identity, as EKS has them: `AWS_WEB_IDENTITY_TOKEN_FILE` and `AWS_ROLE_ARN`;
    /// 4. a container's, of ECS or EKS: `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` or
    ///    `AWS_CONTAINER_CREDENTIALS_FULL_URI`;
    /// 5. EC2's metadata service, version 2, unless `AWS_EC2_METADATA_DISABLED` is `true`.
    ///
    /// A web identity, or a profile with a role, needs a region to ask: `AWS_REGION` or the profile's.
    pub fn default_chain() -> Self {
        Self(Origin::Chain(http_client()))
    }

    /// The profile `name` in `~/.aws/config` and `~/.aws/credentials`, or the files that `AWS_CONFIG_FILE` and
    /// `AWS_SHARED_CREDENTIALS_FILE` name: its keys, its role, its `credential_process`.
    pub fn profile(name: impl Into<Box<str>>) -> Self {
        Self(Origin::Profile { name: name.into(), file: None, http: http_client() })
    }

    /// The profile `name` in `file` alone, which is written as `~/.aws/config` is.
    pub fn profile_in(name: impl Into<Box<str>>, file: impl Into<PathBuf>) -> Self {
        let file = Some(file.into());
        Self(Origin::Profile { name: name.into(), file, http: http_client() })
    }

    /// What `provider` provides at each fetch. It must not provide what it gave before from a cache of its own.
    pub fn from_provider(provider: impl ProvideCredentials + 'static) -> Self {
        Self(Origin::Provider(SharedCredentialsProvider::new(provider)))
    }

    async fn provide(&self) -> Result<Credentials, CredentialsError> {
        match &self.0 {
            Origin::Chain(http) => {
                // The first of the chain by itself: building the others may ask EC2's metadata service for the region.
                match EnvironmentVariableCredentialsProvider::new().provide_credentials().await {
                    Err(CredentialsError::CredentialsNotLoaded(_)) => {}
                    provided => return provided,
                }
                let config = ProviderConfig::without_region().with_http_client(http.clone());
                let chain = DefaultCredentialsChain::builder().configure(config).build().await;
                chain.provide_credentials().await
            }
            Origin::Profile { name, file, http } => {
                let files = file.as_ref().map_or_else(EnvConfigFiles::default, |file| {
                    EnvConfigFiles::builder().with_file(EnvConfigFileKind::Config, file).build()
                });
                let region = ProfileFileRegionProvider::builder()
                    .profile_name(&**name)
                    .profile_files(files.clone())
                    .build();
                let region =
                    RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
                        .or_else(region)
                        .region()
                        .await;
                let config = ProviderConfig::without_region()
                    .with_http_client(http.clone())
                    .with_region(region);
                let profile = ProfileFileCredentialsProvider::builder()
                    .configure(&config)
                    .profile_name(&**name)
                    .profile_files(files)
                    .build();
                profile.provide_credentials().await
            }
            Origin::Provider(provider) => provider.provide_credentials().await,
        }
    }

    /// What it means that there are none.
    fn failure(&self, error: &CredentialsError) -> Failure {
        // A profile reports the error of what it refers to as the cause of its own.
        let root = causes(error).filter_map(|cause| cause.downcast_ref()).last().unwrap_or(error);
        match root {
            CredentialsError::CredentialsNotLoaded(_) => {
                Failure::refused(Reason::Auth, self.to_string() + self.0.remedy())
            }
            CredentialsError::InvalidConfiguration(_) => {
                let text = text(error);
                // The token is not shown.
                let text = match text.contains(SHOWN_TOKEN) {
                    true => {
                        "the token of AWS_CONTAINER_AUTHORIZATION_TOKEN or of the file \
                        AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE has characters that no HTTP header \
                        can carry, such as a line end"
                    }
                    false => &text,
                };
                Failure::refused(Reason::Auth, format!("{self}: {text}{}", self.0.remedy()))
            }
            CredentialsError::ProviderTimedOut(_) => {
                Failure::new(Reason::Timeout, format!("{self}: {}", text(error)))
            }
            _ => match Obstacle::of(error) {
                Obstacle::File => {
                    let message = format!(
                        "{self}: a file that is referred to can not be read: {}; check those of \
                         AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE and \
                         the profile",
                        text(error)
                    );
                    Failure::refused(Reason::Auth, message)
                }
                Obstacle::Endpoint(_) if text(error).contains(NO_METADATA) => {
                    let message = format!("{self}: {}{}", text(error), self.0.remedy());
                    Failure::refused(Reason::Auth, message)
                }
                Obstacle::Endpoint(reason) => {
                    Failure::new(reason, format!("{self}: {}", text(error)))
                }
            },
        }
        .with_evidence("aws-config")
    }
}

/// What was in the way.
enum Obstacle {
    /// A file.
    File,
    /// An endpoint or a command.
    Endpoint(Reason),
}

impl Obstacle {
    fn of(error: &(dyn Error + 'static)) -> Self {
        for cause in causes(error) {
            if let Some(connector) = cause.downcast_ref::<ConnectorError>() {
                let late = connector.is_timeout();
                return Self::Endpoint(if late { Reason::Timeout } else { Reason::Network });
            }
            // Below a connector it would be the connection's.
            if cause.is::<io::Error>() {
                return Self::File;
            }
        }
        Self::Endpoint(Reason::ServerError)
    }
}

impl Origin {
    /// What would be right.
    fn remedy(&self) -> &'static str {
        match self {
            Self::Chain(_) => {
                "; right would be one of: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the \
                 environment, a profile in ~/.aws/config (AWS_PROFILE), \
                 AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN, a role of the container, a role of \
                 the EC2 instance"
            }
            Self::Profile { .. } => {
                "; right would be a profile with keys, a role or a credential_process; for SSO \
                 credential_process = aws configure export-credentials --profile NAME --format \
                 process"
            }
            Self::Provider(_) => "",
        }
    }
}

impl CredentialSource for AwsSource {
    fn fetch(&self) -> CredentialFuture<'_> {
        Box::pin(async move {
            // At its levels of detail, and where a token is malformed, the library logs secrets.
            let provided = Box::pin(self.provide()).with_subscriber(Dispatch::none()).await;
            provided.map(|keys| temporary(&keys)).map_err(|error| self.failure(&error))
        })
    }
}

impl fmt::Display for AwsSource {
    /// What is missing when it fails.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Origin::Chain(_) => f.write_str("no AWS credentials from the default chain"),
            Origin::Profile { name, file, .. } => {
                let file = file.as_deref().unwrap_or(Path::new("~/.aws/config"));
                write!(f, "no AWS credentials from the profile `{name}` of {}", file.display())
            }
            Origin::Provider(_) => f.write_str("no AWS credentials from the provider of them"),
        }
    }
}

impl fmt::Debug for AwsSource {
    /// Shows names alone: a provider may show its keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("AwsSource");
        match &self.0 {
            Origin::Chain(_) => out.field("from", &"default chain"),
            Origin::Profile { name, file, .. } => out.field("profile", name).field("file", file),
            Origin::Provider(_) => out.field("from", &"provider"),
        };
        out.finish()
    }
}

/// The region of AWS that the environment (`AWS_REGION`, `AWS_DEFAULT_REGION`) or else the profile (`AWS_PROFILE`, else
/// `default`) names, read anew; `None` where none does. EC2's metadata service is not asked.
pub async fn aws_region() -> Option<String> {
    let profile = ProfileFileRegionProvider::builder().build();
    let chain =
        RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new()).or_else(profile);
    chain.region().await.map(|region| region.as_ref().to_owned())
}

fn temporary(keys: &Credentials) -> TemporaryCredential {
    let credential = TemporaryCredential::aws(
        keys.access_key_id(),
        keys.secret_access_key(),
        keys.session_token().map(Arc::from),
    );
    match keys.expiry() {
        Some(expires) => credential.expires_at(expires),
        None => credential,
    }
}

/// For metadata services and STS. It trusts what the client trusts, so that an image without certificates will do.
fn http_client() -> SharedHttpClient {
    let mut pem = String::new();
    for root in TLS_SERVER_ROOT_CERTS {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        STANDARD.encode_string(root, &mut pem);
        pem.push_str("\n-----END CERTIFICATE-----\n");
    }
    let trusted = TrustStore::empty().with_pem_certificate(pem);
    let tls = TlsContext::builder().with_trust_store(trusted).build().unwrap_or_default();
    Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).tls_context(tls).build_https()
}
