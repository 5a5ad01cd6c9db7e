//! Tokens of Google Cloud.

use std::{
    env, fmt, io,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use futures_util::FutureExt;
use gcp_auth::{
    ConfigDefaultCredentials, CustomServiceAccount, MetadataServiceAccount, TokenProvider,
};
use http::Uri;
use serde::Deserialize;
use steadfast_client::{CredentialFuture, CredentialSource, TemporaryCredential};
use steadfast_core::{Failure, Reason};
use tokio::{fs, process::Command, time::timeout};

use crate::causes::{causes, text};

/// What a token is for. Vertex AI asks for it.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// Names the file of a key, in all of Google's libraries.
const KEY_FILE: &str = "GOOGLE_APPLICATION_CREDENTIALS";

/// `true` where the metadata server is not to be asked, in Google's libraries for Python and Java.
const NO_METADATA: &str = "NO_GCE_CHECK";

/// What `gcloud` writes where nobody has logged in.
const NO_ACCOUNT: &str = "do not currently have an active account";

/// How long the metadata server may take: 5 s. It answers in milliseconds; outside of Google Cloud a network may
/// swallow what is sent to it.
const METADATA_LIMIT: Duration = Duration::from_secs(5);

/// Where tokens of Google Cloud come from, for models on Vertex AI.
///
/// Each fetch reads, runs and asks anew; the token comes with the end that its endpoint states. An endpoint that can
/// not be reached or answers with an error is asked five times within 750 ms, a fetch may take the 20 s of the client.
/// TLS trusts Mozilla's certificates.
///
/// # Cancellation
///
/// Dropping a fetch stops it, and ends the `gcloud` that it has started.
///
/// # Errors
///
/// * No credentials, a file that can not be read or is none of a service account: [`Reason::Auth`], in vain to ask
///   again. That is so as well where the metadata server's name is unknown, which is so outside of Google Cloud.
/// * An endpoint that can not be reached: [`Reason::Network`] or [`Reason::Timeout`].
/// * An endpoint that answers with an error, a `gcloud` that fails: [`Reason::ServerError`]. What the endpoint
///   answered is in the log, at `warn` from `gcp_auth`.
#[derive(Clone)]
#[must_use]
pub struct GoogleSource(Origin);

#[derive(Clone)]
enum Origin {
    Chain,
    ServiceAccount(PathBuf),
}

impl GoogleSource {
    /// The first that there is:
    ///
    /// 1. the service account whose key the file has that `GOOGLE_APPLICATION_CREDENTIALS` names;
    /// 2. application default credentials, as `gcloud auth application-default login` writes them into
    ///    `~/.config/gcloud/application_default_credentials.json` (on Windows in `%APPDATA%`): a user's, or a service
    ///    account's;
    /// 3. the metadata server of Compute Engine, GKE and Cloud Run, unless `NO_GCE_CHECK` is `true`. It has 5 s, and
    ///    the scopes are those of the machine;
    /// 4. `gcloud auth print-access-token`, which does not state the token's end: it is used until Google refuses it.
    ///
    /// Workload identity federation (`external_account`) and impersonation are not among them; the message of the
    /// failure names the type of the file.
    pub fn default_chain() -> Self {
        Self(Origin::Chain)
    }

    /// The service account whose key the JSON file `path` has. Its `token_uri` is asked for tokens.
    pub fn service_account(path: impl Into<PathBuf>) -> Self {
        Self(Origin::ServiceAccount(path.into()))
    }

    async fn token(&self) -> Result<TemporaryCredential, Failure> {
        if let Origin::ServiceAccount(path) = &self.0 {
            return of_key_file(path).await;
        }
        if let Some(path) = env::var_os(KEY_FILE).filter(|path| !path.is_empty()) {
            return of_key_file(Path::new(&path)).await;
        }
        if let Some(path) = default_file() {
            match fs::read_to_string(&path).await {
                Ok(text) => return of_default_file(&path, &text).await,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(unreadable(&path, &error)),
            }
        }
        let unavailable = match of_metadata().await {
            Ok(Some(token)) => return Ok(token),
            Ok(None) => None,
            Err(failure) => Some(failure),
        };
        match of_gcloud().await? {
            Some(token) => Ok(token),
            None => Err(unavailable.unwrap_or_else(|| {
                refused(format!(
                    "no Google credentials: {KEY_FILE} is not set, there are no application default \
                     credentials, no metadata server and no account of gcloud; right would be a service \
                     account's key in {KEY_FILE}, `gcloud auth application-default login`, or a \
                     service account of the machine"
                ))
            })),
        }
    }
}

impl CredentialSource for GoogleSource {
    fn fetch(&self) -> CredentialFuture<'_> {
        Box::pin(async move {
            // The library panics at an `expires_in` that no date can have.
            let token = AssertUnwindSafe(Box::pin(self.token())).catch_unwind().await;
            let token = token.unwrap_or_else(|_| {
                let message = "no Google credentials: the token's endpoint answered what gcp_auth \
                               can not handle";
                Err(Failure::new(Reason::ServerError, message))
            });
            token.map_err(|failure| failure.with_evidence("gcp_auth"))
        })
    }
}

impl fmt::Debug for GoogleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("GoogleSource");
        match &self.0 {
            Origin::Chain => out.field("from", &"default chain"),
            Origin::ServiceAccount(path) => out.field("service_account", path),
        };
        out.finish()
    }
}

/// What decides how a file is read.
#[derive(Deserialize)]
struct Described {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    token_uri: Option<String>,
}

impl Described {
    fn read(path: &Path, text: &str) -> Result<Self, Failure> {
        // What serde says may have a part of the file in it.
        serde_json::from_str(text).map_err(|error| {
            refused(format!(
                "no Google credentials: {} is not the JSON of a key (line {}, column {}); right \
                 would be the file that Google Cloud made for a service account",
                path.display(),
                error.line(),
                error.column()
            ))
        })
    }

    /// The type of a file without one is a service account's, as `gcp_auth` has it.
    fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or("service_account")
    }
}

/// By the key of a service account.
async fn of_key_file(path: &Path) -> Result<TemporaryCredential, Failure> {
    let text = fs::read_to_string(path).await.map_err(|error| unreadable(path, &error))?;
    of_key(path, &text, &Described::read(path, &text)?).await
}

/// By application default credentials.
async fn of_default_file(path: &Path, text: &str) -> Result<TemporaryCredential, Failure> {
    let described = Described::read(path, text)?;
    if described.kind() != "authorized_user" {
        return of_key(path, text, &described).await;
    }
    let asked = ConfigDefaultCredentials::new().await;
    asked_of(&asked.map_err(|error| match error {
        gcp_auth::Error::Json("failed to deserialize ApplicationCredentials", _) => {
            refused(format!(
                "no Google credentials: {} lacks `client_id`, `client_secret` or `refresh_token`; \
                 `gcloud auth application-default login` writes it anew",
                path.display()
            ))
        }
        error => unanswered("Google's token endpoint", &error),
    })?)
    .await
    .map_err(|error| unanswered("Google's token endpoint", &error))
}

async fn of_key(
    path: &Path,
    text: &str,
    described: &Described,
) -> Result<TemporaryCredential, Failure> {
    let invalid =
        |problem: &str| refused(format!("no Google credentials: {} {problem}", path.display()));
    if described.kind() != "service_account" {
        return Err(invalid(&format!(
            "is of the type `{}`, which is not supported here; right would be the key of a service \
             account",
            described.kind()
        )));
    }
    let account = CustomServiceAccount::from_json(text).map_err(|error| match error {
        gcp_auth::Error::Json(..) => invalid(
            "lacks `client_email`, `private_key` or `token_uri`; right would be the file that \
             Google Cloud made for a service account",
        ),
        _ => invalid(
            "has a `private_key` that is no RSA key in PKCS#8; right would be the file that Google \
             Cloud made for a service account",
        ),
    })?;
    let endpoint = described.token_uri.as_deref().unwrap_or_default();
    // The library would panic.
    if !endpoint.parse::<Uri>().is_ok_and(|uri| uri.scheme().is_some() && uri.host().is_some()) {
        return Err(invalid(
            "has a `token_uri` that is no address; right would be \
             `https://oauth2.googleapis.com/token`",
        ));
    }
    asked_of(&account)
        .await
        .map_err(|error| unanswered(&format!("the token endpoint {endpoint}"), &error))
}

/// By the metadata server; `None` where there is none.
async fn of_metadata() -> Result<Option<TemporaryCredential>, Failure> {
    if env::var(NO_METADATA).is_ok_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let server = "Google's metadata server";
    match timeout(METADATA_LIMIT, MetadataServiceAccount::new()).await {
        Ok(Ok(account)) => {
            asked_of(&account).await.map(Some).map_err(|error| unanswered(server, &error))
        }
        Ok(Err(error)) if is_unknown_name(&error) => Ok(None),
        Ok(Err(error)) => Err(unanswered(server, &error)),
        Err(_) => {
            let message =
                format!("no Google credentials: {server} did not answer in {METADATA_LIMIT:?}");
            Err(Failure::new(Reason::Timeout, message))
        }
    }
}

/// By the command; `None` where it is not installed or has no account. `gcp_auth` has this as well, but blocks the thread meanwhile.
async fn of_gcloud() -> Result<Option<TemporaryCredential>, Failure> {
    let mut command = Command::new(if cfg!(windows) { "gcloud.cmd" } else { "gcloud" });
    command.args(["auth", "print-access-token", "--quiet"]).stdin(Stdio::null()).kill_on_drop(true);
    let failed = |why: &str| {
        let message = format!(
            "no Google credentials: `gcloud auth print-access-token` failed: {why}; `gcloud auth \
             login` may help"
        );
        Failure::new(Reason::ServerError, message)
    };
    let output = match command.output().await {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&error.to_string())),
    };
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        if why.contains(NO_ACCOUNT) {
            return Ok(None);
        }
        return Err(failed(&format!("{}: {}", output.status, why.trim())));
    }
    match str::from_utf8(&output.stdout).map(str::trim) {
        Ok(token) if !token.is_empty() => Ok(Some(TemporaryCredential::bearer(token))),
        _ => Err(failed("it printed no token")),
    }
}

/// A provider that is new gives a token that is new.
async fn asked_of(provider: &impl TokenProvider) -> Result<TemporaryCredential, gcp_auth::Error> {
    let token = provider.token(&[SCOPE]).await?;
    let credential = TemporaryCredential::bearer(token.as_str());
    Ok(credential.expires_at(token.expires_at().into()))
}

/// Application default credentials, where gcloud writes them.
fn default_file() -> Option<PathBuf> {
    let folder = match cfg!(windows) {
        true => env::var_os("APPDATA").map(PathBuf::from),
        false => env::home_dir().map(|home| home.join(".config")),
    };
    Some(folder?.join("gcloud/application_default_credentials.json"))
}

/// The name is in no DNS, and not merely out of reach for now.
fn is_unknown_name(error: &gcp_auth::Error) -> bool {
    let is_name = causes(error).any(|cause| cause.to_string().starts_with("dns error"));
    let text = text(error);
    // Of glibc and of musl.
    is_name && !["Temporary failure", "Try again"].iter().any(|later| text.contains(later))
}

fn refused(message: impl AsRef<str>) -> Failure {
    Failure::refused(Reason::Auth, message)
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    refused(format!(
        "no Google credentials: the file {} can not be read: {error}; right would be the key of a \
         service account, readable for this process",
        path.display()
    ))
}

/// An endpoint gave no token.
fn unanswered(endpoint: &str, error: &gcp_auth::Error) -> Failure {
    let late = |cause: &io::Error| cause.kind() == io::ErrorKind::TimedOut;
    let reason = match error {
        gcp_auth::Error::Http(..) | gcp_auth::Error::Other(..) => {
            let timed_out = causes(error).filter_map(|cause| cause.downcast_ref()).any(late);
            if timed_out { Reason::Timeout } else { Reason::Network }
        }
        // The library does not pass on what was answered.
        _ => Reason::ServerError,
    };
    let why = match error {
        // What serde says may have a part of the answer in it.
        gcp_auth::Error::Json(..) => "its answer is no token".to_owned(),
        error => text(error),
    };
    Failure::new(reason, format!("no Google credentials from {endpoint}: {why}"))
}
